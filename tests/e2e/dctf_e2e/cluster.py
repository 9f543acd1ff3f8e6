# SPDX-License-Identifier: Apache-2.0
"""Several mounts of one bucket on this machine, each a node of one cluster, with a cache of its own."""

import ctypes
import random
import shutil
import signal
import socket
import subprocess

from .child import Child
from .data import assert_same, bytes_of, read_all
from .env import skip, wait_until
from .mount import Mount

SECRET = 'the secret of a test cluster'


def free_ports(count):
    """Ports nobody listens on; held until all are known, so that they differ."""
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(('127.0.0.1', 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def _die_with_us():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Redis:
    """A server that keeps nothing on disk. `address`: where it listens (dctf_e2e.netns)."""

    def __init__(self, address='127.0.0.1'):
        self.program = shutil.which('redis-server') or shutil.which('valkey-server')
        if not self.program:
            skip('no redis-server here (package redis-server)')
        self.address, self.port = address, free_ports(1)[0]
        self.process = None

    @property
    def url(self):
        return f'redis://{self.address}:{self.port}'

    def start(self):
        self.process = subprocess.Popen(
            [self.program, '--port', str(self.port), '--bind', self.address, '--protected-mode', 'no', '--save', '',
             '--appendonly', 'no'],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=_die_with_us)
        wait_until(lambda: self.call('PING') == b'+PONG\r\n', 20, 'redis-server answers')
        return self

    def call(self, *words):
        try:
            with socket.create_connection((self.address, self.port), timeout=5) as connection:
                connection.sendall(' '.join(words).encode() + b'\r\n')
                return connection.recv(4096)
        except OSError:
            return None

    def stop(self):
        if self.process:
            self.process.kill()
            self.process.wait()
            self.process = None

    def __enter__(self):
        return self.start()

    def __exit__(self, *unused):
        self.stop()


class Node:
    """One member: where it is, and its mount while it lives."""

    def __init__(self, cluster, number, port):
        self.cluster, self.number, self.port = cluster, number, port
        self.addr = f'{cluster.network.address(number) if cluster.network else "127.0.0.1"}:{port}'
        self.cache = cluster.place.path(f'cache-{number}')
        self.mount = None

    def start(self, wait=True, **options):
        cluster = self.cluster
        self.mount = Mount(
            cluster.place, cluster.source, name=f'mnt-{self.number}', cache=self.cache, wait=wait,
            netns=cluster.network.nodes[self.number] if cluster.network else None,
            environ={**cluster.s3.environ(), 'DCTF_CLUSTER_SECRET': SECRET, **cluster.environ},
            **{'endpoint': cluster.s3.url, 'metadata_ttl': '1h', 'listen': self.addr, 'node': f'node-{self.number}',
               **cluster.membership(), **cluster.options, **options})
        return self

    def stop(self):
        mount, self.mount = self.mount, None
        mount.unmount(60)

    def kill(self):
        mount, self.mount = self.mount, None
        mount.kill()


class Cluster:
    """Nodes of one cluster; as a context manager they are all ended at the end. `redis`: its URL;
    `network`: a dctf_e2e.netns.Network, each node in a namespace of its own."""

    def __init__(self, place, s3, count, *, prefix='', redis=None, environ=None, network=None, **options):
        self.place, self.s3, self.redis, self.network = place, s3, redis, network
        place.secrets.add(SECRET)
        self.source = f's3://{s3.bucket_name}' + (f'/{prefix}' if prefix else '')
        self.environ = environ or {}
        self.options = options
        self.nodes = [Node(self, i, port) for i, port in enumerate(free_ports(count))]

    def membership(self):
        if self.redis:
            return {'redis': self.redis, 'cluster': 'e2e'}
        return {'peers': r'\,'.join(node.addr for node in self.nodes)}

    def start(self, **options):
        """All at once."""
        for node in self.nodes:
            node.start(wait=False, **options)
        for node in self.nodes:
            node.mount.wait_ready()
        return self

    def wait_met(self):
        """Until each has heard all others: before that reads may go to second homes."""
        def met(node):
            return all(peer['self'] or (peer['breaker'] == 'closed' and peer['rtt_us'] > 0)
                       for peer in node.mount.ask('peers')['peers'])
        for node in self.alive:
            wait_until(lambda node=node: met(node), 30, 'the members have met')
        return self

    def stop(self):
        for node in self.nodes:
            if node.mount:
                node.stop()

    def __enter__(self):
        return self

    def __exit__(self, kind, *unused):
        if kind is None:
            self.stop()
        for node in self.nodes:
            if node.mount:
                node.mount.abandon()

    @property
    def alive(self):
        return [node for node in self.nodes if node.mount]

    def metric(self, name, **labels):
        """Sum over the nodes that live."""
        return sum(node.mount.metric(name, **labels) for node in self.alive)

    def readers(self, files, order=None, nodes=None):
        """One process per node that reads every file once, whole, and compares it. `order`: seed of a
        shuffle that differs by node; None: as they are."""
        return [Child(_read_files, node.mount.point, files, None if order is None else order + node.number)
                for node in nodes or self.alive]

    def read_everywhere(self, files, order=None, seconds=120, nodes=None):
        children = self.readers(files, order, nodes)
        try:
            for child in children:
                child.result(seconds)
        finally:
            for child in children:
                child.__exit__()


def _read_files(point, files, order):
    """{key: size} of bytes_of()."""
    names = sorted(files)
    if order is not None:
        random.Random(order).shuffle(names)
    for name in names:
        assert_same(read_all(f'{point}/{name}'), bytes_of(name, files[name]), name)
    return len(names)
