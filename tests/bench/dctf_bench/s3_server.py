# SPDX-License-Identifier: Apache-2.0
"""The S3 server of the tests, and mounts of its bucket by others."""

import os

from dctf_e2e import s3

from .mounts import Dctffs, Mount

BUCKET = 'bench'
REGION = 'us-east-1'
KEY = s3.Key('AKIDBENCHMARKBENCH00', 'benchmark/secret/key/of/no/use/elsewhere')


class S3Server(s3.S3Server):
    """One server with one bucket that shows the files of a directory."""

    def __init__(self, work, directory, address='127.0.0.1'):
        self.directory = directory
        s3.SERVER = work.program('tests/dctf-s3-server')
        super().__init__(bucket=BUCKET, key=KEY, region=REGION, imports={BUCKET: directory}, address=address)
        work.on_exit(self.stop)
        self.bucket(BUCKET, region=REGION, public=True)

    def latency(self, ms):
        """Wait this long before every answer."""
        self.clear()
        if ms:
            self.fault('latency', ms=ms)

    def url_of(self, name):
        return f'{self.url}/{BUCKET}/{name}'


class DctffsS3(Dctffs):
    """`host`: the one it runs on (net.py), None: the server's."""

    def __init__(self, work, server, host=None, **options):
        super().__init__(work, None, endpoint=server.url, region=REGION, access_key_id=KEY.access, **options)
        self.enter = ['nsenter', f'--net={host.path}'] if host else []

    def command(self):
        options = ','.join(f'{key}={value}' for key, value in self.options.items())
        return [*self.enter, self.work.program('mount-tools/dctffs'), '-f', f's3://{BUCKET}', self.mountpoint, '-o', options]

    def environment(self):
        return {**super().environment(), 'DCTF_SECRET_ACCESS_KEY': KEY.secret}


class RcloneS3(Mount):
    name = 'rclone'

    def __init__(self, work, server):
        super().__init__(work)
        self.server, self.cache = server, work.path('rclone')

    def command(self):
        return ['rclone', 'mount', f'bench:{BUCKET}', self.mountpoint, '--read-only', '--vfs-cache-mode', 'full',
                '--cache-dir', self.cache, '--dir-cache-time', '24h', '--attr-timeout', '24h', '--poll-interval', '0',
                '--config', os.devnull]

    def environment(self):
        return {**super().environment(), 'RCLONE_CONFIG_BENCH_TYPE': 's3', 'RCLONE_CONFIG_BENCH_PROVIDER': 'Other',
                'RCLONE_CONFIG_BENCH_ENDPOINT': self.server.url, 'RCLONE_CONFIG_BENCH_REGION': REGION,
                'RCLONE_CONFIG_BENCH_ACCESS_KEY_ID': KEY.access, 'RCLONE_CONFIG_BENCH_SECRET_ACCESS_KEY': KEY.secret}


class S3fs(Mount):
    name = 's3fs'

    def __init__(self, work, server):
        super().__init__(work)
        self.server, self.cache = server, work.path('s3fs')
        self.password_file = work.path('s3fs.passwd')
        with open(self.password_file, 'w', encoding='ascii',
                  opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write(f'{KEY.access}:{KEY.secret}\n')

    def command(self):
        return ['s3fs', BUCKET, self.mountpoint, '-f', '-o',
                f'url={self.server.url},use_path_request_style,endpoint={REGION},passwd_file={self.password_file},'
                f'use_cache={self.cache},ro,parallel_count=16,multireq_max=16,max_stat_cache_size=200000']

    def start(self, timeout=120):
        os.makedirs(self.cache, exist_ok=True)
        return super().start(timeout)
