# SPDX-License-Identifier: Apache-2.0
"""The S3 server for tests (tests/lib/s3_server.h), and a client that signs by hand.

    with S3Server(place) as s3:
        s3.put('feature/shard-0.bin', b'...')
        s3.fault('slowdown', op='get', p=0.1)
        mount(f's3://{s3.bucket_name}/', environ=s3.environ(), endpoint=s3.url)
        assert s3.stats()['requests']['get'] == 1
"""

import base64
import calendar
import collections
import datetime
import hashlib
import hmac
import http.client
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
import xml.etree.ElementTree as ElementTree

from .env import BUILD_DIR, freeze, limit

SERVER = os.path.join(BUILD_DIR, 'tests/dctf-s3-server')

Answer = collections.namedtuple('Answer', 'status headers body')
Key = collections.namedtuple('Key', 'access secret token', defaults=(None,))


class S3Error(Exception):
    """The control interface did not like what it was told."""


class S3Server:
    """One server with one bucket and one key. As a context manager it is ended at the end; it
    ends by itself when this process does.

    place      a Place (or anything with path(), environ() and note_pid()), None for none of it
    directory  keep objects there across restarts; default: below the place
    domains    names for virtual-host style: Host BUCKET.DOMAIN
    tls        True: https on tls_port too, with a certificate for localhost, *.localhost, 127.0.0.1
    imports    {bucket: directory} to show as they are
    address    where to listen, for plain HTTP alone (dctf_e2e.netns)
    """

    def __init__(self, place=None, *, name='s3', bucket='data', key=Key('AKIDCTFTESTS', 'dctf/secret+key'),
                 region='us-east-1', domains=('localhost',), tls=False, directory=None, imports=(),
                 idle_timeout=None, address='127.0.0.1', port=0):
        self.place, self.bucket_name, self.key, self.region = place, bucket, key, region
        self._hide(key)
        self._directory = directory or (place.path(name) if place else None)
        self.address = address
        self._arguments = [*(f'--domain={d}' for d in domains), f'--region={region}', f'--bucket={bucket}']
        if address != '127.0.0.1':
            self._arguments.append(f'--address={address}')
        if key:
            self._arguments.append(f'--key={key.access}:{key.secret}')
        self._arguments += [f'--import={b}={d}' for b, d in dict(imports).items()]
        if idle_timeout is not None:
            self._arguments.append(f'--idle-timeout={idle_timeout}')
        self.ca_file = None
        if tls:
            self.ca_file, key_file = make_certificate(place.directory(name + '-tls'))
            self._arguments += [f'--tls-cert={self.ca_file}', f'--tls-key={key_file}']
        self.port, self.tls_port, self.process = port, 0, None
        self.start()

    def _hide(self, key):
        """No daemon under test may show them."""
        if key and isinstance(getattr(self.place, 'secrets', None), set):
            self.place.secrets.update(filter(None, (key.secret, key.token)))

    # Its life

    def start(self):
        """Start, or start again on the same ports with the same objects."""
        arguments = [SERVER, f'--port={self.port}', f'--tls-port={self.tls_port or 0}', *self._arguments]
        if self._directory:
            arguments.append(f'--dir={self._directory}')
        environ = self.place.environ() if self.place else None
        self.process = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ)
        if self.place and hasattr(self.place, 'note_pid'):
            self.place.note_pid(self.process.pid)
        ready, _, _ = select.select([self.process.stdout], [], [], limit(20))
        line = self.process.stdout.readline() if ready else b''
        if not line:
            self.kill()
            raise S3Error('the S3 server does not start')
        ports = json.loads(line)
        self.port, self.tls_port = ports['port'], ports['tls_port']

    def stop(self):
        """End it in good order; fails when it does not end well."""
        if self.process is None:
            return
        process, self.process = self.process, None
        process.send_signal(signal.SIGCONT)
        process.stdin.close()
        try:
            status = process.wait(limit(20))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError('the S3 server does not end') from None
        finally:
            process.stdout.close()
        assert status == 0, f'the S3 server ended with status {status}'

    def kill(self):
        """As a crash; start() makes a new one."""
        process, self.process = self.process, None
        if process:
            process.kill()
            process.wait()
            process.stdin.close()
            process.stdout.close()

    def freeze(self):
        """It holds its connections and answers nothing, until thaw()."""
        freeze(self.process.pid)

    def thaw(self):
        self.process.send_signal(signal.SIGCONT)

    def __enter__(self):
        return self

    def __exit__(self, kind, *unused):
        if kind is None:
            self.stop()
        else:
            self.kill()

    # Where it is

    @property
    def url(self):
        return f'http://{self.address}:{self.port}'

    @property
    def tls_url(self):
        return f'https://localhost:{self.tls_port}'

    def environ(self):
        """What the AWS tools and SDKs read: the key, the region, where the services are."""
        environ = {'AWS_REGION': self.region, 'AWS_EC2_METADATA_DISABLED': 'true'}
        if self.key:
            environ.update(AWS_ACCESS_KEY_ID=self.key.access, AWS_SECRET_ACCESS_KEY=self.key.secret)
            if self.key.token:
                environ['AWS_SESSION_TOKEN'] = self.key.token
        return environ

    def services(self):
        """What the AWS tools and SDKs read to find STS, IMDS and the container endpoint here."""
        return {'AWS_ENDPOINT_URL_STS': self.url, 'AWS_EC2_METADATA_SERVICE_ENDPOINT': self.url,
                'AWS_CONTAINER_CREDENTIALS_FULL_URI': self.url + '/v1/credentials'}

    # Control

    def control(self, method, path, body=None, seconds=60):
        """Ask the control interface; bytes are sent as they are, all else as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(f'{self.url}/-/{path}', data=data, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=limit(seconds)) as answer:
                data = answer.read()
                is_json = answer.headers.get_content_type() == 'application/json'
        except urllib.error.HTTPError as error:
            with error:
                raise S3Error(f'{method} {path}: {error.code} {error.read()[:500]!r}') from None
        return json.loads(data) if is_json else data

    def _object(self, key, bucket):
        return f'objects/{bucket or self.bucket_name}/{quote(key)}'

    def put(self, key, data, bucket=None):
        """Make or overwrite an object, without a signature; returns its ETag."""
        return self.control('PUT', self._object(key, bucket), bytes(data))['etag']

    def get(self, key, bucket=None):
        return self.control('GET', self._object(key, bucket))

    def delete(self, key, bucket=None):
        self.control('DELETE', self._object(key, bucket))

    def put_tree(self, root, prefix='', bucket=None):
        """Copy the files below a directory; returns how many."""
        count = 0
        for directory, _, names in os.walk(root):
            for name in names:
                path = os.path.join(directory, name)
                with open(path, 'rb') as file:
                    self.put(prefix + os.path.relpath(path, root), file.read(), bucket)
                count += 1
        return count

    def import_tree(self, directory, prefix='', bucket=None):
        """Show the files below a directory without copying them; returns how many."""
        return self.control('POST', 'import', {'bucket': bucket or self.bucket_name, 'dir': directory,
                                               'prefix': prefix}, seconds=600)['count']

    def bulk(self, count, size, prefix='', suffix='', first=0, digits=8, bucket=None):
        """Many objects that share their bytes."""
        self.control('POST', 'bulk', {'bucket': bucket or self.bucket_name, 'count': count, 'size': size,
                                      'prefix': prefix, 'suffix': suffix, 'first': first, 'digits': digits}, seconds=600)

    def bucket(self, name, **fields):
        """Make or change a bucket: region, public, requester_pays, redirect."""
        self.control('POST', 'buckets', {'name': name, **fields})

    def drop_bucket(self, name):
        self.control('DELETE', f'buckets/{name}')

    def settings(self, **fields):
        """Change settings; returns all."""
        return self.control('POST', 'settings', fields)

    def fault(self, kind, **fields):
        """Add a rule; returns its id."""
        return self.control('POST', 'faults', {'kind': kind, **fields})['ids'][0]

    def set_faults(self, *rules):
        """Replace all rules; returns their ids."""
        return self.control('POST', 'faults', {'rules': rules, 'replace': True})['ids']

    def clear(self, rule=None):
        """Remove one rule or all; what stalls because of it goes on."""
        self.control('DELETE', f'faults/{rule}' if rule else 'faults')

    def fired(self, rule):
        return next(r['fired'] for r in self.control('GET', 'faults')['rules'] if r['id'] == rule)

    def stats(self, keys=False):
        return self.control('GET', 'stats?keys=1' if keys else 'stats')

    def reset(self):
        self.control('DELETE', 'stats')

    def requests(self, op=None, last=1000):
        """The last requests that are over."""
        requests = self.control('GET', f'requests?n={last}')['requests']
        return [r for r in requests if op in (None, r['op'])]

    def add_key(self, key, seconds=None):
        self._hide(key)
        fields = {'access_key': key.access, 'secret_key': key.secret}
        if key.token:
            fields['session_token'] = key.token
        if seconds is not None:
            fields['seconds'] = seconds
        self.control('POST', 'keys', fields)

    def remove_key(self, access):
        self.control('DELETE', f'keys/{access}')

    def expire(self):
        """All credentials with a session token expire now."""
        self.control('POST', 'expire')

    # A client

    def send(self, method, target, headers=(), body=b'', host=None, tls=False, seconds=30):
        """One request, exactly as told, on a connection of its own."""
        port = self.tls_port if tls else self.port
        if tls:
            connection = http.client.HTTPSConnection('127.0.0.1', port, timeout=limit(seconds),
                                                     context=ssl.create_default_context(cafile=self.ca_file))
        else:
            connection = http.client.HTTPConnection('127.0.0.1', port, timeout=limit(seconds))
        try:
            connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
            connection.putheader('Host', host or f'127.0.0.1:{port}')
            for name, value in dict(headers).items():
                connection.putheader(name, value)
            if body:
                connection.putheader('Content-Length', str(len(body)))
            connection.endheaders(body or None)
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())
        finally:
            connection.close()

    def begin(self, target='/data/k', headers=()):
        """A socket on which a signed GET was sent."""
        host = f'127.0.0.1:{self.port}'
        target, signed = sign_v4(self.key, 'GET', host, target, headers=headers)
        sock = socket.create_connection(('127.0.0.1', self.port), timeout=limit(20))
        lines = [f'GET {target} HTTP/1.1', f'Host: {host}', *(f'{n}: {v}' for n, v in signed.items()), '', '']
        sock.sendall('\r\n'.join(lines).encode())
        return sock

    def ask(self, method, path, query=(), headers=(), body=b'', *, key=None, version=4, region=None,
            when=None, host=None, tls=False, seconds=30):
        """One signed request. path and query are not encoded yet; path begins with /BUCKET, or for a
        virtual host with the key."""
        port = self.tls_port if tls else self.port
        host = host or f'{"localhost" if tls else "127.0.0.1"}:{port}'
        key, region = key or self.key, region or self.region
        if version == 4:
            target, headers = sign_v4(key, method, host, path, query, headers, body, region, when)
        else:
            target, headers = sign_v2(key, method, path, query, headers, when)
        return self.send(method, target, headers, body, host, tls, seconds)


def text_of(answer, name):
    """Text of the first element of that name, whatever its namespace; None: there is none."""
    return next((e.text or '' for e in ElementTree.fromstring(answer.body).iter()
                 if e.tag.split('}')[-1] == name), None)


def error_of(answer):
    """(status, code) of an error document."""
    return answer.status, ElementTree.fromstring(answer.body).findtext('Code')


def epoch_of(text):
    """Seconds since 1970 of YYYY-MM-DDTHH:MM:SSZ."""
    return calendar.timegm(time.strptime(text, '%Y-%m-%dT%H:%M:%SZ'))


def quote(text, safe='/'):
    """Percent-encoded as Signature Version 4 wants it."""
    return urllib.parse.quote(text if isinstance(text, bytes) else text.encode(), safe=safe + '-._~')


def encode_query(query):
    """name=value&..., encoded and sorted; query is a dictionary or a list of pairs."""
    pairs = query.items() if isinstance(query, dict) else query
    return '&'.join(f'{n}={v}' for n, v in sorted((quote(n, ''), quote(str(v), '')) for n, v in pairs))


def _hmac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def sign_v4(key, method, host, path, query=(), headers=(), body=b'', region='us-east-1', when=None,
            service='s3', payload=None):
    """(target, headers) of a request signed with Signature Version 4. `when` is in seconds since
    1970; `payload` is what to say of the body, else its hash."""
    when = time.time() if when is None else when
    stamp = datetime.datetime.fromtimestamp(when, datetime.timezone.utc).strftime('%Y%m%dT%H%M%SZ')
    path, query = quote(path), encode_query(query)
    headers = {'x-amz-date': stamp, **dict(headers)}
    payload = payload or hashlib.sha256(body).hexdigest()
    if service == 's3':
        headers['x-amz-content-sha256'] = payload
    if key.token:
        headers['x-amz-security-token'] = key.token
    lines = sorted((n.lower(), ' '.join(v.split())) for n, v in {'host': host, **headers}.items())
    names = ';'.join(n for n, _ in lines)
    canonical = '\n'.join([method, path, query, *(f'{n}:{v}' for n, v in lines), '', names, payload])
    scope = f'{stamp[:8]}/{region}/{service}/aws4_request'
    text = f'AWS4-HMAC-SHA256\n{stamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}'
    secret = ('AWS4' + key.secret).encode()
    for part in scope.split('/'):
        secret = _hmac(secret, part)
    headers['Authorization'] = (f'AWS4-HMAC-SHA256 Credential={key.access}/{scope}, SignedHeaders={names}, '
                                f'Signature={_hmac(secret, text).hex()}')
    return path + ('?' + query if query else ''), headers


def sign_v2(key, method, path, query=(), headers=(), when=None, bucket=None):
    """(target, headers) of a request signed with Signature Version 2; `bucket` for a virtual host."""
    when = time.time() if when is None else when
    date = datetime.datetime.fromtimestamp(when, datetime.timezone.utc).strftime('%a, %d %b %Y %H:%M:%S GMT')
    headers = {'Date': date, **dict(headers)}
    if key.token:
        headers['x-amz-security-token'] = key.token
    lower = {n.lower(): v for n, v in headers.items()}
    amz = ''.join(f'{n}:{v}\n' for n, v in sorted(lower.items()) if n.startswith('x-amz-'))
    query = dict(query)
    subs = '&'.join(n + (f'={query[n]}' if query[n] else '') for n in sorted(query)
                    if n in ('acl', 'location', 'uploads', 'versionId', 'versioning'))
    resource = (f'/{bucket}' if bucket else '') + quote(path) + ('?' + subs if subs else '')
    text = f'{method}\n{lower.get("content-md5", "")}\n{lower.get("content-type", "")}\n{date}\n{amz}{resource}'
    signature = base64.b64encode(hmac.new(key.secret.encode(), text.encode(), hashlib.sha1).digest()).decode()
    headers['Authorization'] = f'AWS {key.access}:{signature}'
    return quote(path) + ('?' + encode_query(query) if query else ''), headers


def make_certificate(directory):
    """A certificate that signs itself; (certificate, key) as files."""
    certificate, key = os.path.join(directory, 'cert.pem'), os.path.join(directory, 'key.pem')
    subprocess.run(['openssl', 'req', '-x509', '-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes',
                    '-days', '30', '-subj', '/CN=localhost', '-addext',
                    'subjectAltName=DNS:localhost,DNS:*.localhost,IP:127.0.0.1', '-keyout', key, '-out', certificate],
                   check=True, capture_output=True, timeout=limit(60))
    return certificate, key
