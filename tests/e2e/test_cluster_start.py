#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Nodes that start together, one after the other, or again: what leaves the source. DCTF_LONG=1 has eight nodes, a larger
dataset and starts spread over ten seconds."""

import subprocess
import time

from dctf_e2e import *
from dctf_e2e.cluster import Cluster, Redis
from dctf_e2e.cluster_load import Reader, make_dataset
from dctf_e2e.s3 import S3Server

NODES = 8 if LONG else 4
DATASET_MIB = 256 if LONG else scaled(64, 24)
OPTIONS = {'passthrough': 'off', 'heartbeat_ms': '1s'}


def _bound(cluster):
    """A peer that misses two pings on a busy machine is read around, and what it was asked for may be fetched twice:
    not what is looked at here, unless everything is."""
    if not LONG and any('does not answer' in node.mount.log_text() for node in cluster.alive):
        return 1.25
    return 1.05


def _start_and_read(cluster, s3, files, order, spread):
    """Each node reads all from when it is mounted; the starts are spread over so many seconds. What left the source,
    against the dataset."""
    begun, readers = time.monotonic(), []
    s3.reset()
    for i, node in enumerate(cluster.nodes):
        time.sleep(max(0, begun + i * spread / (len(cluster.nodes) - 1) - time.monotonic()))
        node.start(wait=spread > 0)
        if spread:
            readers.append(Reader(node.mount.point, files, order and order + i))
    if not spread:
        for i, node in enumerate(cluster.nodes):
            node.mount.wait_ready()
            readers.append(Reader(node.mount.point, files, order and order + i))
    try:
        for reader in readers:
            reader.finish(120)
    finally:
        for reader in readers:
            reader.close()
    fetched = s3.stats()['bytes_out'] / sum(files.values())
    print(f'     starts over {spread} s, {"own orders" if order else "same order"}: {fetched:.4f} of the dataset', flush=True)
    return fetched


def _end(cluster, wipe):
    cluster.stop()
    for node in cluster.nodes:
        if wipe:
            subprocess.run(['rm', '-rf', node.cache], check=True)


def _matrix(place, order, spreads):
    with S3Server(place) as s3, Redis() as redis:
        files = make_dataset(s3, DATASET_MIB)
        with Cluster(place, s3, NODES, redis=redis.url, **OPTIONS) as cluster:
            for spread in spreads:
                assert _start_and_read(cluster, s3, files, order, spread) <= _bound(cluster)
                _end(cluster, True)
            # All at once with nothing, then with what they have.
            assert _start_and_read(cluster, s3, files, order, 0) <= _bound(cluster)
            _end(cluster, False)
            assert _start_and_read(cluster, s3, files, order, 0) <= 0.01
            _end(cluster, False)


def test_start_in_own_orders(place):
    _matrix(place, seed() or 1, (0, 2, 10) if LONG else (2,))


def test_start_in_the_same_order(place):
    _matrix(place, None, (0, 2, 10) if LONG else (2,))


if __name__ == '__main__':
    main(globals())
