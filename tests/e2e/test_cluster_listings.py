#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Listings that nodes share: a directory is listed about once at the source, however many nodes look at it."""

import errno
import os
import signal
import time

from dctf_e2e import *
from dctf_e2e.child import Child
from dctf_e2e.cluster import Cluster, Redis
from dctf_e2e.s3 import S3Server

PAGE = 1000  # keys in one answer to LIST


def _tree(s3, directories, keys):
    """So many directories side by side, with so many keys each; returns what `ls -R` is to show."""
    for i in range(directories):
        s3.bulk(keys, 100, prefix=f'train/d{i:03}/', suffix='.bin')
    return {f'train/d{i:03}': keys for i in range(directories)}


def _lists(s3):
    return s3.stats()['requests']['list']


def _walk(point):
    """{directory: number of files} of everything below, with the attributes of each, as `ls -lR` does."""
    found = {}
    for directory, _, names in os.walk(point):
        for name in names:
            os.lstat(os.path.join(directory, name))
        if names and '.dctf' not in directory:
            found[os.path.relpath(directory, point)] = len(names)
    return found


def _walk_everywhere(cluster, wanted, seconds=60, nodes=None):
    children = [Child(_walk, node.mount.point) for node in nodes or cluster.alive]
    try:
        for child in children:
            assert child.result(seconds) == wanted
    finally:
        for child in children:
            child.__exit__()


def _one_nodes_worth(wanted):
    return sum((keys + PAGE - 1) // PAGE for keys in wanted.values()) + 2  # and those above


def test_list_once_for_all(place):
    with S3Server(place) as s3:
        wanted = _tree(s3, scaled(30, 8), 300)
        wanted.update(_tree_of_one(s3, 'large', scaled(12000, 4000)))
        with Cluster(place, s3, 4).start().wait_met() as cluster:
            s3.reset()
            _walk_everywhere(cluster, wanted)
            lists = _lists(s3)
            print(f'     {lists} LISTs of {_one_nodes_worth(wanted)}')
            assert lists <= 1.1 * _one_nodes_worth(wanted) + 8, lists


def _tree_of_one(s3, name, keys):
    s3.bulk(keys, 100, prefix=f'{name}/', suffix='.bin')
    return {name: keys}


def test_start_at_once_without_having_met(place):
    """A cluster that starts waits a moment until its members have found each other; also a listing does."""
    with S3Server(place) as s3:
        wanted = _tree(s3, scaled(20, 6), 300)
        with Cluster(place, s3, 4).start() as cluster:
            _start_at_once(s3, cluster, wanted)


def test_start_at_once_by_redis(place):
    with S3Server(place) as s3, Redis() as redis:
        wanted = _tree(s3, scaled(20, 6), 300)
        with Cluster(place, s3, 4, redis=redis.url).start() as cluster:
            _start_at_once(s3, cluster, wanted)


def _start_at_once(s3, cluster, wanted):
    s3.reset()
    _walk_everywhere(cluster, wanted)
    lists = _lists(s3)
    print(f'     {lists} LISTs of {_one_nodes_worth(wanted)}')
    assert lists <= 1.1 * _one_nodes_worth(wanted) + 8, lists
    assert cluster.metric('dctf_cluster_listings_total', **{'from': 'home'}) >= 2 * len(wanted)


def test_nodes_that_take_each_other_for_the_home(place):
    """Whatever their views are, no node waits for one that waits for it: who is asked by a peer asks the source."""
    with S3Server(place) as s3:
        wanted = _tree(s3, scaled(12, 4), 50)
        with Cluster(place, s3, 2, metadata_ttl='1h') as cluster:
            for node, other in zip(cluster.nodes, reversed(cluster.nodes)):
                node.start(wait=False, peers=other.addr)
            for node in cluster.nodes:
                node.mount.wait_ready()
            s3.reset()
            begun = time.monotonic()
            _walk_everywhere(cluster, wanted)
            assert time.monotonic() - begun < limit(15)
            assert _lists(s3) <= 2 * _one_nodes_worth(wanted), _lists(s3)
            assert cluster.metric('dctf_cluster_listings_total', **{'from': 'home'}) > 0


def test_read_again_once_when_time_is_up(place):
    """Times to live do not add up, and who is late does not list again."""
    with S3Server(place) as s3:
        wanted = _tree_of_one(s3, 'feature', 300)
        with Cluster(place, s3, 3, metadata_ttl='4s').start().wait_met() as cluster:
            _walk_everywhere(cluster, wanted)
            s3.put('feature/new.bin', b'x')
            wanted['feature'] += 1
            begun = time.monotonic()
            s3.reset()
            for node in cluster.nodes:
                wait_until(lambda node=node: _walk(node.mount.point) == wanted, 30, 'the new name is seen')
            took = time.monotonic() - begun
            # The first has waited for its own time, the others had it then: of one listing, not of their own.
            assert took < limit(4.0 + 4.0), took
            rounds = took / 4.0 + 2
            assert _lists(s3) <= 2 * rounds + 4, (_lists(s3), took)


def test_age_comes_with_the_listing(place):
    """Who gets a listing from another node that has had it for a while does not keep it for its own time on top."""
    ttl, kept = 8, 6
    with S3Server(place) as s3:
        wanted = _tree_of_one(s3, 'feature', 20)
        with Cluster(place, s3, 3, metadata_ttl=f'{ttl}s').start().wait_met() as cluster:
            assert _walk(cluster.nodes[0].mount.point) == wanted  # its home has it now, whichever that is
            time.sleep(kept)
            for node in cluster.nodes[1:]:
                assert _walk(node.mount.point) == wanted
            got = time.monotonic()
            s3.put('feature/new.bin', b'x')
            wanted['feature'] += 1
            for node in cluster.nodes[1:]:
                wait_until(lambda node=node: _walk(node.mount.point) == wanted, 30, 'the new name is seen')
            took = time.monotonic() - got
            print(f'     {took:.1f} s')
            assert took < ttl - 2, took


def test_names_of_all_kinds(place):
    """What crosses the network is what the source has: bytes that are no UTF-8, sizes, times."""
    names = ['a b', 'ü', 'x%41', '"q"', 'a&b=c', 'z' * 255, '...', '~', '+']
    with S3Server(place) as s3:
        for i, name in enumerate(names):
            s3.put(f'd/{name}/{name}', b'x' * (i + 1))
            s3.put(f'd/f-{name[:250]}', b'y' * (i + 7))
        with Cluster(place, s3, 3).start().wait_met() as cluster:
            seen = []
            for node in cluster.nodes:
                found = {}
                for directory, below, files in os.walk(os.fsencode(node.mount.path('d'))):
                    for name in files + below:
                        info = os.lstat(os.path.join(directory, name))
                        found[os.path.relpath(os.path.join(directory, name), os.fsencode(node.mount.point))] = \
                            (info.st_mode, info.st_size, info.st_mtime_ns, info.st_ino)
                seen.append(found)
            assert len(seen[0]) == 3 * len(names) and seen[0] == seen[1] == seen[2]


def test_home_that_is_frozen(place):
    """A listing waits for it for a moment, then the source tells."""
    with S3Server(place) as s3:
        wanted = _tree(s3, scaled(30, 8), 50)
        with Cluster(place, s3, 4).start().wait_met() as cluster:
            cluster.nodes[3].mount.freeze()
            try:
                for node in cluster.nodes[:3]:
                    begun = time.monotonic()
                    assert _walk(node.mount.point) == wanted
                    took = time.monotonic() - begun
                    print(f'     {took:.1f} s')
                    assert took < limit(10), took
            finally:
                cluster.nodes[3].mount.signal(signal.SIGCONT)


def test_home_that_is_killed(place):
    with S3Server(place) as s3:
        wanted = _tree(s3, scaled(30, 8), 50)
        with Cluster(place, s3, 4).start().wait_met() as cluster:
            victim = cluster.nodes[3]
            children = [Child(_walk, node.mount.point) for node in cluster.nodes[:3]]
            victim.kill()
            umount(place.path(f'mnt-{victim.number}'))
            for child in children:
                assert child.result(60) == wanted
            s3.reset()
            cluster.nodes[0].mount.sync()
            _walk_everywhere(cluster, wanted, nodes=cluster.nodes[:3])
            assert _lists(s3) <= 1.3 * _one_nodes_worth(wanted) + 8, _lists(s3)


def test_sync_of_one_node_reads_the_source(place):
    """What others keep for an hour is not what it is told."""
    with S3Server(place) as s3:
        wanted = _tree_of_one(s3, 'feature', 20)
        with Cluster(place, s3, 3).start().wait_met() as cluster:
            _walk_everywhere(cluster, wanted)
            for round_ in range(3):
                node = cluster.nodes[round_]
                s3.put('feature/overwritten', b'x' * (round_ + 10))
                node.mount.sync()
                assert os.stat(node.mount.path('feature/overwritten')).st_size == round_ + 10
            # One that nobody told anything has what it had, or what it was told meanwhile.
            assert os.stat(cluster.nodes[2].mount.path('feature/overwritten')).st_size == 12


def test_sync_of_the_cluster(place):
    with S3Server(place) as s3:
        s3.put('f/a.bin', bytes_of('one', 100))
        with Cluster(place, s3, 3).start().wait_met() as cluster:
            for node in cluster.nodes:
                assert_same(read_all(node.mount.path('f/a.bin')), bytes_of('one', 100))
            s3.put('f/a.bin', bytes_of('two', 101))
            text = cluster.nodes[1].mount.dctf('sync', '--force', '--cluster', cluster.nodes[1].mount.point)
            assert all(node.addr in text for node in cluster.nodes if node is not cluster.nodes[1]), text
            s3.reset()
            for node in cluster.nodes:
                assert_same(read_all(node.mount.path('f/a.bin')), bytes_of('two', 101))
            assert _lists(s3) <= 6, _lists(s3)  # two directories; others may have been told a moment later


def test_version_that_is_gone_is_told(place):
    """Who finds it out forgets the listing, and so do the others: nobody opens the old version again."""
    with S3Server(place) as s3:
        s3.put('f/a.bin', bytes_of('one', 2 << 20))
        with Cluster(place, s3, 3).start().wait_met() as cluster:
            for node in cluster.nodes:
                assert os.stat(node.mount.path('f/a.bin')).st_size == 2 << 20
            s3.put('f/a.bin', bytes_of('two', (2 << 20) + 1))
            try:
                read_all(cluster.nodes[0].mount.path('f/a.bin'))
                raise AssertionError('bytes of a version that is gone')
            except OSError as error:
                assert error.errno == errno.ESTALE
            for node in cluster.nodes:
                wait_until(lambda node=node: os.stat(node.mount.path('f/a.bin')).st_size == (2 << 20) + 1, 20,
                           'the new version is seen')
                assert_same(read_all(node.mount.path('f/a.bin')), bytes_of('two', (2 << 20) + 1))
            assert cluster.metric('dctf_cluster_hints_total', dir='news') >= 1


def test_version_that_is_gone_without_a_cluster(place):
    """The listing that named it is forgotten: who opens the file again has the new one, long before its time is up."""
    with S3Server(place) as s3:
        s3.put('f/a.bin', bytes_of('one', 2 << 20))
        with Mount(place, f's3://{s3.bucket_name}', endpoint=s3.url, metadata_ttl='1h', environ=s3.environ()) as mount:
            assert os.stat(mount.path('f/a.bin')).st_size == 2 << 20
            s3.put('f/a.bin', bytes_of('two', (2 << 20) + 1))
            try:
                read_all(mount.path('f/a.bin'))
                raise AssertionError('bytes of a version that is gone')
            except OSError as error:
                assert error.errno == errno.ESTALE
            wait_until(lambda: os.stat(mount.path('f/a.bin')).st_size == (2 << 20) + 1, 20, 'the new version is seen')
            assert_same(read_all(mount.path('f/a.bin')), bytes_of('two', (2 << 20) + 1))


def test_large_directory_while_it_is_read(place):
    """The home takes long, and says so: the others wait for it instead of asking the source as well."""
    keys = scaled(10000, 4000)
    with S3Server(place) as s3:
        wanted = _tree_of_one(s3, 'large', keys)
        s3.fault('latency', op='list', ms=int(3000 / (keys / PAGE)))
        with Cluster(place, s3, 3).start().wait_met() as cluster:
            s3.reset()
            _walk_everywhere(cluster, wanted)
            assert _lists(s3) <= 1.1 * _one_nodes_worth(wanted) + 8, _lists(s3)


if __name__ == '__main__':
    main(globals())
