# SPDX-License-Identifier: Apache-2.0
"""A mount, its daemon and its log; and the script of an origin that misbehaves."""

import json
import os
import re
import signal
import socket
import subprocess
import time

from . import mounts
from .control import Control
from .env import DCTF, DCTFFS, DCTFFS_TEST, freeze, limit, wait_until

# Lines that no daemon may write, whatever a test does to it.
_NEVER = re.compile(r'Sanitizer|runtime error:|[Aa]ssertion .* failed|SUMMARY: |stack smashing|'
                    r'free\(\): |malloc\(\): |terminate called| err=9002\b')
_ERROR = re.compile(r'^\S+Z ERROR ')


class Script:
    """Steers an origin of tests/lib/origin_script.h in front of a directory."""

    def __init__(self, place, directory):
        self.control = place.path('script.json')
        self._stats = place.path('script-stats.json')
        self.url = f'script://{self.control}?file://{directory}'
        self._serial = 0
        self._rules = []
        self.set()

    def set(self, *rules, seed=1):
        """Replace the rules; the next request meets the new ones."""
        self._serial += 1
        self._rules = rules
        with open(self.control + '.new', 'w') as file:
            json.dump({'serial': self._serial, 'seed': seed, 'stats': self._stats,
                       'rules': list(rules)}, file)
        os.rename(self.control + '.new', self.control)

    def stats(self):
        """What the origin was asked for up to now."""
        self.set(*self._rules)

        def fresh():
            try:
                with open(self._stats) as file:
                    stats = json.load(file)
            except FileNotFoundError:
                return None
            return stats if stats['serial'] == self._serial else None
        return wait_until(fresh, 10, 'the scripted origin writes its statistics')

    def gets(self, key):
        return self.stats()['keys'].get(key, {'gets': 0, 'bytes': 0, 'ranges': []})


class Mount:
    """One life of a daemon. As a context manager it is unmounted cleanly at the end, and what it
    left behind or complained about fails the test."""

    def __init__(self, place, source=None, *, name='mnt', cache=None, background=False, wait=True,
                 user=None, environ=None, netns=None, **options):
        self.place = place
        self._environ = environ or {}
        self.point = place.directory(name)
        self.source = source or 'file://' + place.source
        self.options = {'cache_dir': cache or place.cache, 'cache_size': '1G', **options}
        self.program = DCTFFS_TEST if self.source.startswith('script:') else DCTFFS
        self.background = background
        self.log = place.new_log()
        self.pid = None
        self._process = None
        self._expected = []
        self._user = user
        self._netns = netns  # a dctf_e2e.netns.Namespace
        self._done = False
        self.status = None
        place.mounts.append(self)
        self._start()
        if wait:
            self.wait_ready()

    # Start and end -----------------------------------------------------------------

    def command(self):
        options = dict(self.options)
        if self.background:
            options.setdefault('log_file', self.log)
        text = ','.join(key if value is True else f'{key}={value}'
                        for key, value in options.items() if value is not None)
        return [self.program, '-c', self.place.empty_config, *([] if self.background else ['-f']),
                '-o', text, self.source, self.point]

    def _start(self):
        environ = {**self.place.environ(), **self._environ}
        if self.background:
            done = subprocess.run(self.command(), env=environ, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  timeout=limit(60), check=False, user=self._user)
            assert done.returncode == 0, f'dctffs: status {done.returncode}: {done.stdout}'
            self.pid = self.runtime()['pid']
            self.place.note_pid(self.pid)
            return
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        address = self.place.path(f'notify-{len(self.place.mounts)}.sock')
        self._notify.bind(address)
        os.chmod(address, 0o777)
        with open(self.log, 'wb') as log:
            self._process = subprocess.Popen(
                self.command(), env={**environ, 'NOTIFY_SOCKET': address}, user=self._user,
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                preexec_fn=self._netns.enter if self._netns else None)
        self.pid = self._process.pid
        self.place.note_pid(self.pid)

    def wait_ready(self):
        if self.background:
            return self
        self._notify.settimeout(0.05)
        end = time.monotonic() + limit(40)
        while True:
            try:
                told = self._notify.recv(4096)
            except socket.timeout:
                assert self._process.poll() is None, \
                    f'dctffs ended with {self._process.returncode} while starting: {self.log_text()}'
                assert time.monotonic() < end, 'dctffs did not get ready'
                continue
            if b'READY=1' in told:
                self._notify.close()
                return self

    def __enter__(self):
        return self

    def __exit__(self, kind, *unused):
        if self._done:
            return
        if kind is None:
            self.unmount()
        else:
            self.abandon()

    def is_alive(self):
        if self._process:
            return self._process.poll() is None
        try:
            with open(f'/proc/{self.pid}/stat') as stat:
                return stat.read().rsplit(')', 1)[1].split()[0] != 'Z'
        except FileNotFoundError:
            return False

    def status_now(self):
        return self._process.poll() if self._process else None

    def signal(self, sig):
        os.kill(self.pid, sig)

    def freeze(self):
        """The daemon answers nothing until SIGCONT."""
        freeze(self.pid)

    def wait_end(self, seconds=30, status=0):
        """Wait until the daemon is gone, and check its exit status."""
        wait_until(lambda: not self.is_alive(), seconds, f'daemon {self.pid} ends')
        if self._process:
            self.status = self._process.returncode
            assert self.status == status, f'the daemon ended with status {self.status}'
        self._done = True

    def unmount(self, seconds=30):
        """umount(8) as root does it, then everything must be gone."""
        def try_it():
            try:
                mounts.umount(self.point)
            except OSError as error:
                if error.errno != 16:
                    raise
                return False  # a moment ago a probe of somebody was there
            return True
        self.check_secrets()
        wait_until(try_it, 10, f'{self.point} is not busy')
        self.wait_end(seconds)
        self.check_clean()

    def terminate(self, seconds=30):
        """SIGTERM, then everything must be gone."""
        self.signal(signal.SIGTERM)
        self.wait_end(seconds)
        self.check_clean()

    def kill(self):
        """kill -9; the dead mount stays."""
        self.signal(signal.SIGKILL)
        self.wait_end(status=-signal.SIGKILL)  # of one in the background nobody knows the status
        self.check_log()

    def abandon(self):
        """After a failure: no checks, no waiting."""
        self._done = True
        for sig in (signal.SIGCONT, signal.SIGKILL):
            try:
                os.kill(self.pid, sig)
            except (ProcessLookupError, TypeError):
                pass
        mounts.clear(self.point)
        if self._process:
            self._process.wait()

    def check_clean(self):
        self.check_log()
        left = mounts.mounted_below(self.point)
        assert not left, f'still mounted: {left}'
        assert self.runtime() is None, 'word of the daemon is left in /run/dctf'

    # The log ------------------------------------------------------------------------

    def log_text(self):
        try:
            with open(self.log, errors='surrogateescape') as log:
                return log.read()
        except FileNotFoundError:
            return ''

    def expect(self, pattern):
        """Announce lines of level ERROR that match."""
        self._expected.append(re.compile(pattern))
        return self

    def check_secrets(self):
        """Nothing that others can look at tells a secret."""
        if not self.place.secrets or not self.is_alive():
            return
        with open(f'/proc/{self.pid}/cmdline', errors='replace') as cmdline:
            self.place.check_secrets(cmdline.read(), 'the command line')
        for what in ('status', 'config', 'metrics'):
            self.place.check_secrets(json.dumps(self.ask(what)), f'the answer to {what}')

    def check_log(self):
        self.place.check_secrets(self.log_text(), 'the log')
        for line in self.log_text().splitlines():
            assert not _NEVER.search(line), f'in the log: {line}'
            if _ERROR.match(line):
                assert any(e.search(line) for e in self._expected), f'in the log: {line}'

    # Looking at it ------------------------------------------------------------------

    def path(self, *names):
        return os.path.join(self.point, *names)

    def runtime(self):
        """What the daemon left for the tools in /run/dctf."""
        try:
            names = os.listdir('/run/dctf')
        except FileNotFoundError:
            return None
        for name in names:
            if name.endswith('.json'):
                try:
                    with open(os.path.join('/run/dctf', name)) as file:
                        runtime = json.load(file)
                except FileNotFoundError:
                    continue
                if runtime.get('mountpoint') == self.point:
                    return runtime
        return None

    def control(self, seconds=10):
        return Control(self.runtime()['socket'], seconds)

    def ask(self, cmd, seconds=30, **fields):
        with self.control(seconds) as control:
            return control.ask(cmd, **fields)

    def sync(self, path='', force=True):
        return self.ask('sync', path=path, force=force)['directories']

    def metrics(self):
        """Every sample of the metrics, by name with labels. Over the socket: the mount may be
        what is under test."""
        samples = {}
        for line in self.ask('metrics')['text'].splitlines():
            if line and line[0] != '#':
                name, value = line.rsplit(' ', 1)
                samples[name] = float(value)
        return samples

    def metric(self, name, **labels):
        """One sample; 0 when there is none (an error code that did not occur)."""
        if labels:
            name += '{' + ','.join(f'{key}="{value}"' for key, value in labels.items()) + '}'
        return self.metrics().get(name, 0)

    def origin_bytes(self):
        return self.metric('dctf_origin_bytes_total')

    def tool_status(self):
        return self.ask('status')['status']

    def dctf(self, *arguments, status=0, seconds=60):
        """Run the tool; returns what it printed (stdout)."""
        done = subprocess.run([DCTF, *arguments], env=self.place.environ(), timeout=limit(seconds),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              errors='surrogateescape', check=False)
        assert done.returncode == status, \
            f'dctf {arguments}: status {done.returncode}\n{done.stdout}{done.stderr}'
        return done.stdout

    def rss(self):
        """Resident bytes of the daemon."""
        with open(f'/proc/{self.pid}/statm') as statm:
            return int(statm.read().split()[1]) * os.sysconf('SC_PAGESIZE')

    def peak_rss(self):
        with open(f'/proc/{self.pid}/status') as status:
            for line in status:
                if line.startswith('VmHWM:'):
                    return int(line.split()[1]) * 1024
        raise AssertionError('no VmHWM')
