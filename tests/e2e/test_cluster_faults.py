#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults of nodes while all nodes read: no byte is wrong, no read fails. DCTF_LONG=1 has eight nodes instead of four."""

import os
import signal
import time

from dctf_e2e import *
from dctf_e2e.cluster import Cluster, Redis
from dctf_e2e.cluster_lab import CACHE, DATASET_MIB, NODES, wait_breaker
from dctf_e2e.cluster_load import Readers, make_dataset
from dctf_e2e.s3 import S3Server

# Leases are short, since the tests wait for some to be over.
OPTIONS = {'cache_size': CACHE, 'passthrough': 'off', 'heartbeat_ms': '1s', 'settle_ms': '300ms'}


def _start(place, s3, redis):
    return Cluster(place, s3, NODES, redis=redis.url, **OPTIONS).start().wait_met()


def _kill(place, readers, node):
    node.kill()
    readers.drop(node)
    umount(place.path(f'mnt-{node.number}'))


def test_kill_a_node(place):
    """Killed, and started again with what its cache had."""
    with S3Server(place) as s3, Redis() as redis:
        files = make_dataset(s3, DATASET_MIB)
        with _start(place, s3, redis) as cluster, Readers(cluster, files, seed(), again=True) as readers:
            readers.read_on(20)
            victim = cluster.nodes[1]
            _kill(place, readers, victim)
            readers.read_on(20)
            victim.start()
            readers.begin(victim)
            wait_breaker(cluster.alive, [victim], True)
            readers.read_on(20)


def test_freeze_a_node(place):
    """It holds its connections and answers nothing, for longer than its lease; then it goes on as if nothing was."""
    with S3Server(place) as s3, Redis() as redis:
        files = make_dataset(s3, DATASET_MIB)
        with _start(place, s3, redis) as cluster, Readers(cluster, files, seed(), again=True) as readers:
            readers.read_on(20)
            victim = cluster.nodes[2]
            victim.mount.freeze()
            try:
                readers.read_on(20, but=[victim])
                time.sleep(6)  # a lease is four heartbeats
            finally:
                victim.mount.signal(signal.SIGCONT)
            wait_breaker(cluster.alive, [victim], True)
            readers.read_on(20)


def _rot(directory):
    """Flip a bit in every 256 KiB of the shard files."""
    for where, _, names in os.walk(os.path.join(directory, 'shards')):
        for name in names:
            path = os.path.join(where, name)
            with open(path, 'r+b') as file:
                for at in range(100, os.path.getsize(path), 256 * 1024):
                    file.seek(at)
                    byte = file.read(1)
                    file.seek(at)
                    file.write(bytes([byte[0] ^ 4]))


def test_rot_a_disk(place):
    """A node comes back with rotten blocks: none of them reaches a reader of any node."""
    with S3Server(place) as s3, Redis() as redis:
        files = make_dataset(s3, DATASET_MIB)
        with _start(place, s3, redis) as cluster, Readers(cluster, files, seed(), again=True) as readers:
            readers.read_on(len(files))
            victim = cluster.nodes[3]
            _kill(place, readers, victim)
            _rot(victim.cache)
            victim.start()
            readers.begin(victim)
            wait_breaker(cluster.alive, [victim], True)
            readers.read_on(len(files))
            assert cluster.metric('dctf_errors_total', code='3007') > 0


def test_restart_one_after_the_other(place):
    """As for an upgrade: each ends in good order and comes back with its cache, while the others read."""
    with S3Server(place) as s3, Redis() as redis:
        files = make_dataset(s3, DATASET_MIB)
        with _start(place, s3, redis) as cluster, Readers(cluster, files, seed(), again=True) as readers:
            readers.read_on(20)
            for node in cluster.nodes:
                readers.leave(node)
                node.stop()
                readers.read_on(5)
                node.start()
                readers.begin(node)
                readers.read_on(5)
            wait_breaker(cluster.alive, cluster.alive, True)


if __name__ == '__main__':
    main(globals())
