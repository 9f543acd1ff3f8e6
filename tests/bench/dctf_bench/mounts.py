# SPDX-License-Identifier: Apache-2.0
"""Mounts under measurement: dctffs, the plain FUSE server, rclone. Each is a child that is stopped by its pid."""

import ctypes
import json
import os
import re
import signal
import subprocess
import time

from . import host

_libc = ctypes.CDLL(None, use_errno=True)
_DETACH = 2


def _is_mounted(path):
    os.statvfs(path)  # always asks the server; a dead one's attributes may be remembered
    return os.stat(path).st_dev != os.stat(os.path.dirname(path)).st_dev


class Mount:
    """A server in the foreground, and its mount point."""

    name = '?'

    def __init__(self, work):
        self.work = work
        self.mountpoint = work.path('mnt-' + self.name)
        self.process = None
        os.makedirs(self.mountpoint, exist_ok=True)
        work.on_exit(self.stop)

    def command(self):
        raise NotImplementedError

    def start(self, timeout=120):
        """Returns the seconds from exec until the root of the mount answers."""
        log = open(self.work.path(self.name + '.log'), 'ab')
        begin = time.monotonic()
        with log:
            self.process = subprocess.Popen(self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                            start_new_session=True, env=self.environment())
        while not self.is_up():
            if self.process.poll() is not None:
                raise RuntimeError(f'{self.name} ended with {self.process.returncode}: see {log.name}\n'
                                   + self.log_tail())
            if time.monotonic() - begin > timeout:
                self.stop()
                raise RuntimeError(f'{self.name} does not mount: see {log.name}')
            time.sleep(0.002)
        return time.monotonic() - begin

    def environment(self):
        return {key: value for key, value in os.environ.items() if not key.startswith(('DCTF_', 'AWS_'))}

    def is_up(self):
        try:
            return _is_mounted(self.mountpoint)
        except OSError:
            return False  # a mount whose server has gone

    def log_tail(self):
        with open(self.work.path(self.name + '.log'), encoding='utf-8', errors='replace') as file:
            return ''.join(file.readlines()[-5:])

    @property
    def pid(self):
        return self.process.pid

    def path(self, *names):
        return os.path.join(self.mountpoint, *names)

    def stop(self):
        """In order if it can be, by force if not; returns the seconds it took."""
        begin = time.monotonic()
        process, self.process = self.process, None
        if process and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        _libc.umount2(os.fsencode(self.mountpoint), _DETACH)
        return time.monotonic() - begin

    def kill(self):
        """As a crash would end it; leaves the dead mount behind."""
        process, self.process = self.process, None
        process.kill()
        process.wait()


class Dctffs(Mount):
    name = 'dctffs'

    def __init__(self, work, source, cache='cache', **options):
        self.name = options.pop('name', self.name)
        super().__init__(work)
        self.source, self.cache = source, work.path(cache)
        self.options = {'cache_dir': self.cache, 'cache_size': '64G', 'log_level': 'warn', **options}

    def command(self):
        options = ','.join(f'{key}={value}' for key, value in self.options.items())
        return [self.work.program('mount-tools/dctffs'), '-f', 'file://' + self.source, self.mountpoint, '-o', options]

    def status(self):
        with open(self.path('.dctf', 'status.json'), encoding='utf-8') as file:
            return json.load(file)

    def metrics(self):
        """Value by name, labels included; a name without its labels gives the sum."""
        with open(self.path('.dctf', 'metrics'), encoding='utf-8') as file:
            text = file.read()
        values = {}
        for name, labels, value in re.findall(r'^([a-z_]+)(\{.*\})? (\S+)$', text, re.M):
            values[name + labels] = float(value)
            if labels:
                values[name] = values.get(name, 0) + float(value)
        return values

    def tier(self, *names):
        return os.getxattr(self.path(*names), 'user.dctf.tier').decode()

    def present(self, *names):
        return int(os.getxattr(self.path(*names), 'user.dctf.present').decode())

    def backing_file(self):
        """The one shard file of a cache that holds one large shard."""
        found = []
        for where, _, names in os.walk(os.path.join(self.cache, 'shards')):
            found += [os.path.join(where, name) for name in names]
        if len(found) != 1:
            raise RuntimeError(f'{len(found)} shard files in {self.cache}, not one')
        return found[0]


class Fuse(Mount):
    """bench_fuse: by pread() from the source, or from a copy in memory."""

    def __init__(self, work, source, memory=False):
        self.name = 'fuse-memory' if memory else 'fuse-plain'
        super().__init__(work)
        self.source, self.memory = source, memory

    def command(self):
        return [self.work.program('tests/bench_fuse'), *(['--memory'] if self.memory else []), self.source,
                self.mountpoint]

    def start(self, timeout=120):
        took = super().start(timeout)
        host.set_read_ahead(self.mountpoint, 1024)
        return took


class Rclone(Mount):
    name = 'rclone'

    def __init__(self, work, source, cache='rclone'):
        super().__init__(work)
        self.source, self.cache = source, work.path(cache)

    def command(self):
        return ['rclone', 'mount', self.source, self.mountpoint, '--read-only', '--vfs-cache-mode', 'full',
                '--cache-dir', self.cache, '--vfs-cache-max-age', '24h', '--dir-cache-time', '24h', '--attr-timeout',
                '24h', '--poll-interval', '0', '--config', os.devnull]
