# SPDX-License-Identifier: Apache-2.0
"""A Ceph object gateway (tests/rgw/rgw.sh), and a small S3 client to fill its buckets with."""

import glob
import http.client
import json
import os
import subprocess
import urllib.parse

from .env import SANITIZER, limit, skip
from .s3 import Key, sign_v4

_SCRIPT = os.path.abspath(os.path.join(os.path.dirname(__file__), '../../rgw/rgw.sh'))


class S3Error(AssertionError):
    def __init__(self, status, body):
        super().__init__(f'status {status}: {body[:500]!r}')
        self.status = status


class S3Client:
    """Signed, path-style requests to one endpoint over one connection. Keys are bytes or str."""

    def __init__(self, endpoint, key, region='us-east-1'):
        parts = urllib.parse.urlsplit(endpoint)
        assert parts.scheme == 'http' and parts.path in ('', '/')
        self.url, self.key, self.region = endpoint, key, region
        self._host = parts.netloc
        self._connection = None

    def request(self, method, bucket, key=b'', query=(), body=b''):
        """(headers, body) of a success; anything else raises S3Error."""
        path = f'/{bucket}'.encode() + (b'/' + (key.encode() if isinstance(key, str) else key) if key else b'')
        target, headers = sign_v4(self.key, method, self._host, path, query, (), body, self.region)
        for attempt in (1, 2):  # a kept connection may have been closed meanwhile
            try:
                if self._connection is None:
                    self._connection = http.client.HTTPConnection(self._host, timeout=limit(60))
                self._connection.request(method, target, body, headers)
                response = self._connection.getresponse()
                answer = response.read()
                break
            except (http.client.HTTPException, ConnectionError):
                self.close()
                if attempt == 2:
                    raise
        if response.status not in (200, 204):
            raise S3Error(response.status, answer)
        return response.headers, answer

    def make_bucket(self, bucket):
        self.request('PUT', bucket)

    def put(self, key, body, bucket):
        """The ETag of what is stored now."""
        return self.request('PUT', bucket, key, body=body)[0]['ETag'].strip('"')

    def get(self, key, bucket):
        return self.request('GET', bucket, key)[1]

    def delete(self, key, bucket):
        self.request('DELETE', bucket, key)

    def close(self):
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class Rgw(S3Client):
    """A running gateway. DCTF_TEST_RGW: 0 does without, 1 demands it; else it is used where its
    packages are there or can be installed within two minutes, with the plain build only."""

    def __init__(self, place):
        wanted = os.environ.get('DCTF_TEST_RGW', '')
        if wanted == '0':
            skip('Ceph RGW: switched off by DCTF_TEST_RGW=0')
        if SANITIZER and wanted != '1':
            skip('Ceph RGW judges the plain build; DCTF_TEST_RGW=1 demands it of this one too')
        self._dir = os.path.join(os.path.dirname(place.root), 'rgw')
        for what in (['install', '120'], ['start', self._dir]):
            done = subprocess.run([_SCRIPT, *what], stdin=subprocess.DEVNULL, capture_output=True,
                                  text=True, timeout=limit(200), check=False)
            if done.returncode != 0:
                if wanted == '1' or what[0] == 'start':
                    raise AssertionError(f'Ceph RGW is not to be had: {done.stderr}')
                skip(f'Ceph RGW is not to be had: {done.stderr.strip()}')
        for name in glob.glob(os.path.join(self._dir, 'run/*.pid')):
            with open(name) as file:
                place.note_pid(int(file.read()))
        told = json.loads(done.stdout)
        super().__init__(told['endpoint'], Key(told['access_key'], told['secret_key']))
        self.version = told['version']

    def stop(self):
        self.close()
        subprocess.run([_SCRIPT, 'stop', self._dir], stdin=subprocess.DEVNULL, timeout=limit(60), check=True)
