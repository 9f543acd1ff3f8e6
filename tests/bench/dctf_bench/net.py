# SPDX-License-Identifier: Apache-2.0
"""Nodes of a cluster on hosts of their own: network namespaces joined by a link that is shaped, or by a delay line."""

import ctypes
import signal
import subprocess
import time

from dctf_e2e import cluster
from dctf_e2e.bottleneck import Bottleneck, payload_rate
from dctf_e2e.netns import Namespace

from .mounts import Dctffs

__all__ = ['DelayLine', 'Node', 'Redis', 'Switched', 'payload_rate', 'seen_by', 'wait_for']

SECRET = 'the secret of a benchmark, of no use elsewhere'


def _die_with_us():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def wait_for(condition, what, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f'not within {seconds} s: {what}')
        time.sleep(0.05)


class Switched(Bottleneck):
    """Two hosts at a switch, until the benchmark ends."""

    def __init__(self, work):
        super().__init__()
        work.on_exit(self.close)


class DelayLine:
    """Two hosts whose packets a program hands over later (tests/bench/delay_line.c)."""

    near_address, far_address = '10.79.0.1', '10.79.0.2'

    def __init__(self, work, delay_us):
        self.near, self.far = Namespace(), Namespace()
        self._process = subprocess.Popen(
            [work.program('tests/bench_delay'), self.near.path, self.far.path, 'eth0', str(delay_us)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, preexec_fn=_die_with_us)
        work.on_exit(self.close)
        if self._process.stdout.readline() != 'ready\n':
            raise RuntimeError('the delay line does not start')
        for host, address in ((self.near, self.near_address), (self.far, self.far_address)):
            host.ip('addr', 'add', f'{address}/24', 'dev', 'eth0')
            host.ip('link', 'set', 'eth0', 'up')

    def delay(self, us):
        """From now on, in each direction: as if the route had changed."""
        self._process.stdin.write(f'{us}\n')
        self._process.stdin.flush()

    def close(self):
        self._process.kill()
        self._process.wait()
        for namespace in (self.near, self.far):
            namespace.close()


class Redis(cluster.Redis):
    """A server on one host."""

    def __init__(self, work, host, address):
        with host.inside():
            super().__init__(address)
            self.start()
        work.on_exit(self.stop)


class Node(Dctffs):
    """A member of a cluster, on a host."""

    def __init__(self, work, source, name, host, address, **options):
        super().__init__(work, source, cache='cache-' + name, name=name, listen=address, node=name, **options)
        self.host = host

    def command(self):
        # Not `ip netns exec`: that would hide the mount from us.
        return ['nsenter', f'--net={self.host.path}', *super().command()]

    def environment(self):
        return {**super().environment(), 'DCTF_CLUSTER_SECRET': SECRET}


def seen_by(node, other):
    """What a node knows of another one."""
    with open(node.path('.dctf', 'peers.tsv'), encoding='utf-8') as file:
        names, *rows = [line.rstrip('\n').split('\t') for line in file]
    return next((dict(zip(names, row)) for row in rows if row[1] == other.options['listen']), {'rtt_us': 0})
