# SPDX-License-Identifier: Apache-2.0
"""A cluster whose nodes are in network namespaces, with the source and Redis beside them, while all of them read."""

from .cluster import Cluster, Redis
from .cluster_load import Readers, make_dataset
from .env import LONG, SANITIZER, scaled, seed, wait_until
from .netns import Network
from .s3 import S3Server

NODES = 8 if LONG else 4
# All nodes together hold the dataset about twice, so that they ask each other for as long as they read.
DATASET_MIB = 256 if LONG else scaled(64, 48)
CACHE = (DATASET_MIB * 2 // NODES + 8) << 20
HEARTBEAT_S = 1 if SANITIZER else 0.5
OPTIONS = {'cache_size': CACHE, 'passthrough': 'off', 'heartbeat_ms': f'{int(1000 * HEARTBEAT_S)}ms',
           'settle_ms': '300ms', 'policy_interval': '1s'}


class Lab:
    """Nodes in namespaces, source and Redis beside them. members='list': without Redis."""

    def __init__(self, place, members='redis', **options):
        self.place, self.members, self.options = place, members, {**OPTIONS, **options}

    def __enter__(self):
        self.network = Network(NODES).__enter__()
        try:
            self.s3 = S3Server(self.place, address=self.network.hub_address)
            self.redis = Redis(self.network.hub_address).start()
            self.files = make_dataset(self.s3, DATASET_MIB)
            self.cluster = Cluster(self.place, self.s3, NODES, network=self.network,
                                   redis=self.redis.url if self.members == 'redis' else None, **self.options)
            self.cluster.start().wait_met()
            self.readers = Readers(self.cluster, self.files, seed(), again=True)
        except BaseException:
            self.network.__exit__()
            raise
        return self

    def __exit__(self, *why):
        try:
            self.readers.__exit__(*why)
            self.cluster.__exit__(*why)
            self.redis.stop()
            self.s3.__exit__(*why)
        finally:
            self.network.__exit__()


def id_of(node):
    return f'node-{node.number}'


def peers_of(node):
    return {peer['id']: peer for peer in node.mount.ask('peers')['peers'] if not peer['self']}


def hears(node, other):
    """One that is no member any more is not heard."""
    return peers_of(node).get(id_of(other), {}).get('breaker') == 'closed'


def wait_breaker(nodes, of, is_closed, seconds=60):
    for node in nodes:
        for other in of:
            if node is not other:
                wait_until(lambda node=node, other=other: hears(node, other) == is_closed, seconds,
                           f'{id_of(node)} {"hears" if is_closed else "misses"} {id_of(other)}')
