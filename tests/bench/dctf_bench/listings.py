# SPDX-License-Identifier: Apache-2.0
"""Eight nodes look at one tree: what that asks of the source, and how long it takes, shared or not."""

import time

from . import host
from .cluster import NODES, each
from .measure import Row, alternate
from .s3_server import DctffsS3, S3Server
from .tree import make, timed

from dctf_e2e.cluster import free_ports

TITLE = 'listings: eight nodes look at one tree'
ABOUT = '''Eight mounts of a bucket on this machine, with empty caches; `ls -lR` on all of them at once. As a cluster (members as a list) they
share listings; against the same mounts without a cluster. The server waits a while before each answer, as a service does. The figures are
the LIST requests that the server saw, against the number of pages of the tree, which one node alone has to ask for, and the time until the last
of the eight is through, against that without a cluster, in the same round.'''

PER_DIR = 2000
PAGE = 1000  # keys of one answer


class Mounts:
    def __init__(self, work, server, shared):
        ports = free_ports(NODES)
        peers = r'\,'.join(f'127.0.0.1:{port}' for port in ports)
        self.work, self.server, self.kind = work, server, 'shared' if shared else 'alone'
        self.mounts = [DctffsS3(work, server, name=f'{self.kind}-{i}', cache=f'{self.kind}-cache-{i}', memory='256M',
                                metadata_ttl='1h', **({'listen': f'127.0.0.1:{port}', 'peers': peers} if shared else {}))
                       for i, port in enumerate(ports)]

    def look(self, lines, latency_ms):
        """(LIST requests, seconds until the last is through)."""
        self.work.say(f'{NODES} nodes, {self.kind}')
        each(self.mounts, lambda mount: mount.start())
        try:
            time.sleep(4)  # the settle time of a start is not what this is about
            self.server.latency(latency_ms)
            self.server.reset()
            begin = time.monotonic()
            each(self.mounts, lambda mount: timed(['ls', '-lR'], mount.mountpoint, lines))
            return self.server.stats()['requests']['list'], time.monotonic() - begin
        finally:
            self.server.latency(0)
            each(self.mounts, lambda mount: mount.stop())
            for i in range(NODES):
                self.work.remove(f'{self.kind}-cache-{i}')


def bench(work):
    count, latency_ms = work.pick(40000, 10000), 30
    directories = count // PER_DIR
    pages = directories * ((PER_DIR + PAGE - 1) // PAGE) + 1
    server = S3Server(work, make(work, 'source', count, PER_DIR))
    shared, alone = Mounts(work, server, True), Mounts(work, server, False)
    host.drop_caches()
    samples = alternate(work.settings.runs, {'shared': lambda: shared.look(count, latency_ms),
                                             'alone': lambda: alone.look(count, latency_ms)})
    lists = {name: [one[0] for one in took] for name, took in samples.items()}
    seconds = {name: [one[1] for one in took] for name, took in samples.items()}
    return [Row('LIST requests of eight nodes', lists['shared'], [pages] * len(lists['shared']), 'one node', '', '≤ 1.1'),
            Row('the same, without a cluster', lists['alone'], [pages] * len(lists['alone']), 'one node', '', ''),
            Row('`ls -lR`, the last of eight', seconds['shared'], seconds['alone'], 'without a cluster', 's', '≤ 1.5')], [
        f'{count} keys in {directories} directories; {latency_ms} ms before each answer of the server.']
