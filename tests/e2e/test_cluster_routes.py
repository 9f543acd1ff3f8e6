#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where reads go: nodes in two zones, and one large shard that is read from many nodes at once."""

from dctf_e2e import *
from dctf_e2e.cluster import Cluster, Redis
from dctf_e2e.data import assert_same, bytes_of, read_all
from dctf_e2e.s3 import S3Server

MIB = 1024 * 1024
NODES = 4


def _read_in_two_zones(place, zone_fill):
    """All nodes read all of it; source / dataset, and bytes that crossed between zones and within them."""
    files = {f'f{i % 2}/{i}.bin': scaled(2 * MIB, MIB) + i for i in range(12)}
    with S3Server(place) as s3, Redis() as redis:
        for key, size in files.items():
            s3.put(key, bytes_of(key, size))
        with Cluster(place, s3, NODES, redis=redis.url, zone_fill=zone_fill) as cluster:
            for node in cluster.nodes:
                node.start(wait=False, zone='ab'[node.number % 2])
            for node in cluster.nodes:
                node.mount.wait_ready()
            cluster.wait_met()
            cluster.read_everywhere(files, order=seed())
            fetched = cluster.metric('dctf_origin_bytes_total')
            crossed, within, unknown = [cluster.metric('dctf_peer_zone_bytes_total', zone=zone)
                                        for zone in ('other', 'same', 'unknown')]
    total = sum(files.values())
    print(f'     zone_fill={zone_fill}: source/dataset {fetched / total:.3f}, between zones {crossed / total:.2f}, '
          f'within {within / total:.2f}', flush=True)
    assert unknown == 0
    return fetched / total, crossed / total, within / total


def test_zones_serve_each_other(place):
    fetched, crossed, within = _read_in_two_zones(place, 'peer')
    assert 1 <= fetched <= 1.2
    assert 1 <= crossed + within <= 3.2
    assert crossed > 0.5


def test_each_zone_fetches_once(place):
    fetched, crossed, within = _read_in_two_zones(place, 'origin')
    assert 2 <= fetched <= 2.3
    assert crossed == 0
    assert 1 <= within <= 2.2


def _read_one(point, key, size):
    assert_same(read_all(f'{point}/{key}'), bytes_of(key, size), key)


def test_one_large_shard_is_fetched_by_several_homes_at_once(place):
    """A reader in sequence has four extents on their way ahead of it (readahead), each at a home of its own."""
    key, size = 'large/one.bin', 96 * MIB + 12345
    most = 0
    with S3Server(place) as s3:
        s3.put(key, bytes_of(key, size))
        with Cluster(place, s3, 6).start().wait_met() as cluster:
            s3.fault('latency', op='get', ms=300)
            with Child(_read_one, cluster.nodes[0].mount.point, key, size) as reader:
                while reader.poll() is None:
                    most = max(most, sum(node.mount.metric('dctf_cluster_flights') > 0 for node in cluster.nodes))
                reader.result(60)
            fetched = cluster.metric('dctf_origin_bytes_total')
    print(f'     homes at work at once: {most} of 6', flush=True)
    assert most >= 3
    assert fetched <= 1.1 * size


if __name__ == '__main__':
    main(globals())
