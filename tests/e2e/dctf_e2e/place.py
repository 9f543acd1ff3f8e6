# SPDX-License-Identifier: Apache-2.0
"""The private directory of one test."""

import glob
import os
import subprocess

from . import mounts
from .env import limit


_SUPPRESSIONS = os.path.abspath(os.path.join(os.path.dirname(__file__), '../../tsan.supp'))


class Place:
    def __init__(self, root, name):
        self.root = os.path.join(root, name)
        os.mkdir(self.root)
        os.chmod(self.root, 0o755)
        self.mounts = []
        self.secrets = set()  # texts that nobody may see
        self.source = self.directory('source')
        self.cache = self.path('cache')
        self.empty_config = self.path('empty.conf')
        with open(self.empty_config, 'w'):
            pass
        self.reports = self.directory('reports')
        self._pids = os.path.join(root, 'pids')
        os.chmod(self.reports, 0o777)

    def path(self, *names):
        return os.path.join(self.root, *names)

    def directory(self, *names):
        path = self.path(*names)
        os.makedirs(path, exist_ok=True)
        return path

    def new_log(self):
        return self.path(f'log-{len(self.mounts)}')

    def note_pid(self, pid):
        """For whoever cleans up after a test that cannot do so itself."""
        with open(self._pids, 'a') as file:
            file.write(f'{pid}\n')

    def environ(self):
        """The environment of daemons and tools: nothing of the caller's DCTF_*, and reports of
        sanitizers where they are looked for."""
        environ = {k: v for k, v in os.environ.items() if not k.startswith(('DCTF_', 'AWS_'))}
        environ['AWS_EC2_METADATA_DISABLED'] = 'true'  # nothing beyond this machine is asked
        report = os.path.join(self.reports, 'report')
        for name in ('ASAN', 'UBSAN', 'TSAN', 'LSAN'):
            key = name + '_OPTIONS'
            options = [environ.get(key), f'log_path={report}', 'print_stacktrace=1']
            if name == 'TSAN':
                options += [f'suppressions={_SUPPRESSIONS}', 'second_deadlock_stack=1']
            environ[key] = ':'.join(filter(None, options))
        return environ

    def filesystem(self, name, kind='tmpfs', size='64M', options=''):
        """A small filesystem of its own, mounted at `name`. Gone with the test."""
        path = self.directory(name)
        if kind == 'tmpfs':
            command = ['mount', '-t', 'tmpfs', '-o', ','.join(filter(None, (f'size={size}', options))),
                       'dctf-e2e', path]
        else:
            image = self.path(name + '.img')
            subprocess.run(['truncate', '-s', size, image], check=True)
            subprocess.run([f'mkfs.{kind}', '-q', *options.split(), image], check=True)
            command = ['mount', '-o', 'loop', image, path]
        subprocess.run(command, check=True, timeout=limit(30))
        return path

    def used_bytes(self, path):
        """What du(1) says."""
        total = 0
        for directory, _, names in os.walk(path):
            for name in [directory, *(os.path.join(directory, n) for n in names)]:
                try:
                    total += os.lstat(name).st_blocks * 512
                except FileNotFoundError:
                    pass
        return total

    def check_secrets(self, text, where):
        for secret in self.secrets:
            assert secret not in text, f'a secret in {where}'

    def check(self):
        """After a test that went well."""
        for mount in self.mounts:
            if not mount._done:
                raise AssertionError(f'the test left {mount.point} mounted')
        for report in glob.glob(os.path.join(self.reports, '*')):
            with open(report, errors='replace') as file:
                text = file.read()
            if text.strip():
                raise AssertionError(f'sanitizer report:\n{text[:20000]}')

    def complain(self):
        """After a test that failed: what the daemons said last."""
        for mount in self.mounts:
            lines = mount.log_text().splitlines()
            print(f'     --- {mount.log}: {len(lines)} lines, the last:')
            for line in lines[-25:]:
                print('     | ' + line.encode('utf-8', 'backslashreplace').decode())
        for report in glob.glob(os.path.join(self.reports, '*')):
            with open(report, errors='replace') as file:
                print(file.read()[:10000])

    def clear(self):
        for mount in self.mounts:
            if not mount._done:
                mount.abandon()
        mounts.clear(self.root)
        subprocess.run(['rm', '-rf', '--one-file-system', self.root], check=False,
                       timeout=limit(120))
