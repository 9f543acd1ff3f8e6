# SPDX-License-Identifier: Apache-2.0
"""The working directory of a run: data sets, programs, and the way back to a clean machine."""

import hashlib
import os
import random
import shutil
import subprocess
import sys
import tempfile

from .host import MIB


class Work:
    """Use as a context manager; what was registered is undone in reverse order, whatever happened."""

    def __init__(self, parent, build_dir, settings):
        self.build_dir = build_dir
        self.settings = settings
        self.dir = tempfile.mkdtemp(prefix='dctf-bench-', dir=parent)
        self._undo = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.clean()
        shutil.rmtree(self.dir, ignore_errors=True)

    def clean(self):
        """Stop and remove everything of one benchmark."""
        while self._undo:
            undo = self._undo.pop()
            try:
                undo()
            except Exception as error:  # the rest must be undone all the same
                print(f'clean-up: {error}', file=sys.stderr)
        for name in os.listdir(self.dir):
            path = os.path.join(self.dir, name)
            if os.path.ismount(path):
                continue  # better left than deleted through
            if os.path.isdir(path):
                shutil.rmtree(path, ignore_errors=True)
            elif not name.endswith('.log'):
                os.unlink(path)

    def on_exit(self, undo):
        self._undo.append(undo)

    def pick(self, normal, quick, long=None):
        """A size by the kind of run."""
        if self.settings.quick:
            return quick
        return long if self.settings.long and long is not None else normal

    def path(self, *names):
        return os.path.join(self.dir, *names)

    def remove(self, name):
        shutil.rmtree(self.path(name), ignore_errors=True)

    def program(self, name):
        return os.path.join(self.build_dir, name)

    def say(self, text):
        print(f'    {text}', file=sys.stderr, flush=True)

    # Data ---------------------------------------------------------------------------------------

    def dataset(self, name, files):
        """Make files of random bytes, no two alike: `files` is (relative path, size) pairs."""
        root = self.path(name)
        base = random.Random(1).randbytes(4 * MIB)
        made = set()
        for number, (relative, size) in enumerate(files):
            path = os.path.join(root, relative)
            folder = os.path.dirname(path)
            if folder not in made:
                os.makedirs(folder, exist_ok=True)
                made.add(folder)
            with open(path, 'wb', buffering=0) as file:
                left, part = size, 0
                while left > 0:
                    stamp = hashlib.sha256(b'%d %d' % (number, part)).digest()
                    start = int.from_bytes(stamp[:4], 'little') % (3 * MIB)
                    file.write((stamp + base[start:start + MIB - len(stamp)])[:min(left, MIB)])
                    left -= MIB
                    part += 1
        return root

    def list_file(self, name, names):
        path = self.path(name)
        with open(path, 'w', encoding='utf-8') as file:
            file.writelines(f'{entry}\n' for entry in names)
        return path


def same_bytes(left, right, names):
    """Compare files of two trees; raises on the first that differs. Reads all of both."""
    for name in names:
        with open(os.path.join(left, name), 'rb', buffering=0) as a, \
                open(os.path.join(right, name), 'rb', buffering=0) as b:
            while True:
                one, two = a.read(MIB), b.read(MIB)
                if one != two:
                    raise RuntimeError(f'wrong bytes in {name} near {b.tell()}')
                if not one:
                    break


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout
