# SPDX-License-Identifier: Apache-2.0
"""Processes that do what may hang, so that a test can watch and kill them."""

import os
import pickle
import select
import signal
import sys
import time
import traceback

from .env import limit


class ChildFailed(AssertionError):
    pass


class Child:
    """Runs fn(*args) in a process of its own. As a context manager it is killed at the end."""

    def __init__(self, fn, *args):
        reader, writer = os.pipe()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._run(writer, fn, args)
        os.close(writer)
        self._reader = reader
        self._data = b''
        self.status = None

    @staticmethod
    def _run(writer, fn, args):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        try:
            answer = ('value', fn(*args))
        except OSError as error:
            answer = ('errno', error.errno, str(error))
        except BaseException:
            answer = ('text', traceback.format_exc())
        with os.fdopen(writer, 'wb') as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        if self.status is None:
            self.kill(signal.SIGKILL)
            self.gone(10)

    def kill(self, sig=signal.SIGKILL):
        if self.status is None:
            os.kill(self.pid, sig)

    def poll(self):
        """The wait status, None while it runs."""
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.status = status
        return self.status

    def gone(self, seconds):
        """Wait for the end without caring for the answer; True when it came."""
        end = time.monotonic() + limit(seconds)
        while self.poll() is None and time.monotonic() < end:
            ready, _, _ = select.select([self._reader], [], [], 0.005)
            if ready:
                self._data += os.read(self._reader, 1 << 20)
                time.sleep(0.001)
        return self.status is not None

    def result(self, seconds):
        """What fn returned; an OSError of fn is raised again. Fails at the time limit."""
        end = time.monotonic() + limit(seconds)
        while True:
            left = end - time.monotonic()
            ready, _, _ = select.select([self._reader], [], [], max(0, left))
            if not ready:
                self.kill()
                raise ChildFailed(f'a child did not answer within {limit(seconds):.1f} s')
            data = os.read(self._reader, 1 << 20)
            if not data:
                break
            self._data += data
        if self.status is None:
            _, self.status = os.waitpid(self.pid, 0)
        if not self._data:
            raise ChildFailed(f'a child ended without an answer, wait status {self.status}')
        answer = pickle.loads(self._data)
        if answer[0] == 'errno':
            raise OSError(answer[1], answer[2])
        if answer[0] == 'text':
            raise ChildFailed('in a child:\n' + answer[1])
        return answer[1]


def in_child(seconds, fn, *args):
    """fn(*args) in a child, for at most so long."""
    with Child(fn, *args) as child:
        return child.result(seconds)


class Load:
    """Calls step(n) over and over in several processes until it is left; `check()` fails when
    one of them did, leaving the context checks too. `steps()` tells how many were done."""

    def __init__(self, step, workers=2):
        self._stop_reader, self._stop_writer = os.pipe()
        self._count_reader, self._count_writer = os.pipe()
        os.set_blocking(self._count_reader, False)
        self._steps = 0
        self._children = [Child(self._work, step, i) for i in range(workers)]

    def _work(self, step, worker):
        os.close(self._stop_writer)
        n = worker
        while not select.select([self._stop_reader], [], [], 0)[0]:
            step(n)
            os.write(self._count_writer, b'.')
            n += 1000003
        return True

    def steps(self):
        try:
            while self._count_reader is not None and (done := os.read(self._count_reader, 65536)):
                self._steps += len(done)
        except BlockingIOError:
            pass
        return self._steps

    def check(self):
        for child in self._children:
            if child.poll() is not None:
                child.result(1)

    def __enter__(self):
        return self

    def __exit__(self, kind, *unused):
        os.close(self._stop_writer)
        try:
            for child in self._children:
                if kind is None:
                    child.result(60)
        finally:
            for child in self._children:
                child.__exit__()
            self.steps()
            for fd in (self._stop_reader, self._count_reader, self._count_writer):
                os.close(fd)
            self._count_reader = None
