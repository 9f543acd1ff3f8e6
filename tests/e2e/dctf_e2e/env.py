# SPDX-License-Identifier: Apache-2.0
"""Where the binaries are, how slow they may be, and time."""

import contextlib
import glob
import os
import random
import signal
import time

_HERE = os.path.dirname(os.path.abspath(__file__))
BUILD_DIR = os.environ.get('DCTF_BUILD_DIR') or os.path.join(_HERE, '../../../build/dev')
BUILD_DIR = os.path.abspath(BUILD_DIR)
DCTFFS = os.path.join(BUILD_DIR, 'mount-tools/dctffs')
DCTF = os.path.join(BUILD_DIR, 'mount-tools/dctf')
DCTFFS_TEST = os.path.join(BUILD_DIR, 'tests/dctffs-test')

# The -fsanitize= of the build, and how much slower than a plain build it may be.
SANITIZER = os.environ.get('DCTF_SANITIZE', '')
FACTOR = float(os.environ.get('DCTF_TIME_FACTOR') or
               (8 if 'thread' in SANITIZER else 4 if SANITIZER else 1))
# The long forms of the tests: more rounds, a million entries.
LONG = os.environ.get('DCTF_LONG', '') not in ('', '0')


class Skip(Exception):
    """The test cannot run here."""


def skip(why):
    raise Skip(why)


def limit(seconds):
    """A time limit in seconds, scaled for slow builds."""
    return seconds * FACTOR


def scaled(count, least=1):
    """An amount of work, smaller in slow builds."""
    return max(least, int(count / FACTOR))


def seed():
    """The seed of this run, printed so that it can be repeated with DCTF_SEED."""
    value = int(os.environ.get('DCTF_SEED') or random.SystemRandom().randrange(1 << 32))
    print(f'     seed: DCTF_SEED={value}', flush=True)
    return value


@contextlib.contextmanager
def within(seconds, what='this'):
    """The body takes at most so long. What may hang belongs into a Child."""
    start = time.monotonic()
    yield
    took = time.monotonic() - start
    assert took <= limit(seconds), f'{what} took {took:.2f} s, allowed are {limit(seconds):.2f} s'


def wait_until(condition, seconds, what):
    """Wait for a condition, and return its first true value."""
    end = time.monotonic() + limit(seconds)
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f'waited {limit(seconds):.0f} s in vain until {what}'
        time.sleep(0.01)


def freeze(pid):
    """SIGSTOP, and wait until every thread has stopped: on a busy machine they run on for a while."""
    def stopped():
        for path in glob.glob(f'/proc/{pid}/task/*/stat'):
            try:
                with open(path) as file:
                    state = file.read().rsplit(')', 1)[1].split()[0]
            except FileNotFoundError:
                continue
            if state not in 'TtZX':
                return False
        return True
    os.kill(pid, signal.SIGSTOP)
    wait_until(stopped, 30, f'process {pid} stops')
