#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is hot is copied to every node, what is warm to three, the rest to nobody; and what Redis may do to it."""

import os
import time

from dctf_e2e import *
from dctf_e2e.cluster import Cluster, Redis
from dctf_e2e.s3 import S3Server

MIB = 1024 * 1024
FEATURES = 20
HOT = range(0, 2)  # 10 %
MID = range(2, 8)  # 30 %
FILES = {'a.bin': MIB + 300000, 'b.bin': 60000}


def _name(feature):
    return f'f{feature:02}'


def _dataset(s3):
    for feature in range(FEATURES):
        for name, size in FILES.items():
            key = f'{_name(feature)}/{name}'
            s3.put(key, bytes_of(key, size))


def _cluster(place, s3, redis, **options):
    return Cluster(place, s3, 4, redis=redis.url, **{
        'policy_interval': '1s', 'heartbeat_ms': '500ms', 'settle_ms': '300ms', 'replicate': 'on', **options})


def _read(node, feature):
    for name, size in FILES.items():
        key = f'{_name(feature)}/{name}'
        assert_same(read_all(node.mount.path(key)), bytes_of(key, size), key)


def _read_cold_once(cluster):
    for feature in range(FEATURES):
        if feature not in HOT and feature not in MID:
            _read(cluster.nodes[0], feature)


def _round(readers, hot=HOT, mid=MID):
    """About one interval of two nodes' reading."""
    end = time.monotonic() + 1
    for node in readers:
        for _ in range(4):
            for feature in hot:
                _read(node, feature)
        for feature in mid:
            _read(node, feature)
    time.sleep(max(0, end - time.monotonic()))


def _table(node):
    """{feature: class} as a node has it."""
    rows = read_all(node.mount.path('.dctf/policy.tsv')).decode().splitlines()[1:]
    return {row.split('\t')[3].strip('"'): row.split('\t')[1] for row in rows}


def _wanted(hot=HOT, mid=MID):
    return {**{_name(f): 'hot' for f in hot}, **{_name(f): 'mid' for f in mid}}


def _copies(node):
    return node.mount.ask('status')['status']['cluster']['copies']


def _read_until(cluster, condition, seconds, what, **sets):
    """Read as before until it holds."""
    end = time.monotonic() + limit(seconds)
    while not condition():
        assert time.monotonic() < end, f'{what}: {[_table(node) for node in cluster.alive]}'
        _round(cluster.nodes[:2], **sets)


def _is_judged(cluster, **sets):
    return all(_table(node) == _wanted(**sets) for node in cluster.alive)


def _here(node, feature):
    """Whether all of a feature lies on the node."""
    for name, size in FILES.items():
        present = os.getxattr(node.mount.path(f'{_name(feature)}/{name}'), 'user.dctf.present')
        if int(present) != size:
            return False
    return True


def _holders(cluster, feature, name):
    """Nodes that have all of a shard."""
    key = f'{_name(feature)}/{name}'
    return [node.number for node in cluster.alive
            if int(os.getxattr(node.mount.path(key), 'user.dctf.present')) == FILES[name]]


def test_copy_what_is_hot(place):
    """Two of four nodes read; the other two get all that is hot before they ask, and what is mid is on three."""
    with S3Server(place) as s3, Redis() as redis:
        _dataset(s3)
        with _cluster(place, s3, redis).start().wait_met() as cluster:
            _read_cold_once(cluster)
            begun = time.monotonic()
            _read_until(cluster, lambda: _is_judged(cluster), 60, 'the table settles')
            print(f'     table settled after {time.monotonic() - begun:.1f} s')
            begun = time.monotonic()
            wait_until(lambda: all(_here(node, f) for node in cluster.nodes for f in HOT), 30,
                       'hot features are everywhere')
            wait_until(lambda: all(len(_holders(cluster, f, name)) >= 3 for f in MID for name in FILES), 30,
                       'mid features are on three nodes')
            print(f'     copied after {time.monotonic() - begun:.1f} s')
            # Cold ones are where they were read, and at home; a home that was slow has had the next one asked as well.
            more = [f'{_name(feature)}/{name}' for feature in range(8, FEATURES) for name in FILES
                    if len(_holders(cluster, feature, name)) > 2]
            assert len(more) <= 3, more
            # What is here is read from here.
            s3.reset()
            fetched = cluster.metric('dctf_read_bytes_total', **{'from': 'origin'})
            for node in cluster.nodes:
                for feature in HOT:
                    _read(node, feature)
            assert s3.stats()['requests']['get'] == 0
            assert cluster.metric('dctf_read_bytes_total', **{'from': 'origin'}) == fetched
            assert cluster.metric('dctf_replication_bytes_total', mode='copied') > 0
            assert cluster.metric('dctf_replication_bytes_total', mode='shadow') == 0
            assert sum(_copies(node)['leads'] for node in cluster.nodes) == 1
            _change_and_evict(cluster, s3)


def _change_and_evict(cluster, s3):
    """Copies are of a version: when that is gone the listing is read again, and the new one is copied."""
    names = [f'{_name(HOT[0])}/{name}' for name in FILES]
    old = {name: cluster.nodes[0].mount.ask('stat', path=name)['etag'] for name in names}
    for name in names:
        s3.put(name, bytes_of('new ' + name, FILES[os.path.basename(name)]))
    for node in cluster.nodes:
        node.mount.ask('evict', path=_name(HOT[0]))
        node.mount.ask('evict', path=_name(HOT[1]))

    def is_new(node, name):
        stat = node.mount.ask('stat', path=name)
        return stat['etag'] != old[name] and stat['present_bytes'] == stat['size']
    # The readers had it by reading: it is missed there, and asked for.
    wait_until(lambda: any(all(is_new(node, name) for name in names) for node in cluster.nodes[:2]), 60,
               'the new version is copied')
    # Counted at the end of a walk, which may be after others have heard of it and copied.
    wait_until(lambda: cluster.metric('dctf_replication_jobs_total', result='dropped') > 0, 30, 'a walk is dropped')
    # The others had copied it: what was evicted there stays away for a while.
    wait_until(lambda: any(node.mount.metric('dctf_replication_refused_total', reason='evicted') > 0
                           for node in cluster.nodes[2:]), 60, 'eviction is seen')


def test_copies_keep_to_their_rate(place):
    """A hot set that moves on costs no more than replicate_rate, and a node that spares no room for copies gets
    none. In a long run it moves on every minute for ten minutes."""
    rate = MIB
    sets, (moves, rounds) = (range(0, 2), range(8, 10), range(14, 16)), ((10, 60) if LONG else (3, 5))
    with S3Server(place) as s3, Redis() as redis:
        _dataset(s3)
        with _cluster(place, s3, redis, replicate_rate='1M') as cluster:
            for node in cluster.nodes:
                node.start(wait=False, **({'replicate_share_pct': '0'} if node.number == 3 else {}))
            for node in cluster.nodes:
                node.mount.wait_ready()
            begun = time.monotonic()
            _read_cold_once(cluster)
            for move in range(moves):
                for _ in range(rounds):
                    _round(cluster.nodes[:2], hot=sets[move % len(sets)], mid=())
            for node in cluster.nodes:
                copied = node.mount.metric('dctf_replication_bytes_total', mode='copied')
                print(f'     node {node.number}: {copied / MIB:.1f} MiB in {time.monotonic() - begun:.0f} s')
                # A quarter of a second at once, and the request that was let through last.
                assert copied <= rate * (time.monotonic() - begun + 0.25) + MIB
            assert cluster.metric('dctf_replication_bytes_total', mode='copied') > 0
            assert _copies(cluster.nodes[3])['held_bytes'] == 0


def _leader(cluster):
    leaders = [node for node in cluster.alive if _copies(node)['leads']]
    return leaders[0] if len(leaders) == 1 else None


def _check_shadow(cluster, node):
    """It counts, each extent once however often it is looked at, and copies nothing."""
    wait_until(lambda: _copies(node)['shadow_bytes'] > 0, 30, 'shadow counts')
    _round(cluster.nodes[:2])
    told = _copies(node)['shadow_bytes']
    _round(cluster.nodes[:2])
    assert _copies(node)['shadow_bytes'] == told
    assert told <= sum(FILES.values()) * (len(HOT) + len(MID))
    # As a home it may still find at another what it was asked for.
    assert node.mount.metric('dctf_replication_bytes_total', mode='copied') == 0


def test_read_on_whatever_redis_does(place):
    with S3Server(place) as s3, Redis() as redis:
        _dataset(s3)
        with _cluster(place, s3, redis) as cluster:
            for node in cluster.nodes:
                node.start(wait=False, **({'replicate': 'shadow'} if node.number == 3 else {}))
            for node in cluster.nodes:
                node.mount.wait_ready()
            _read_cold_once(cluster)
            _read_until(cluster, lambda: _is_judged(cluster), 60, 'the table settles')
            _check_shadow(cluster, cluster.nodes[3])
            fences = [_copies(node)['fence'] for node in cluster.nodes]

            # Away: the table stays, reads go on.
            redis.stop()
            for _ in range(3):
                _round(cluster.nodes[:2])
            assert _is_judged(cluster)

            # Back, and empty: the table is written again, under a fence that is higher.
            redis.start()
            _read_until(cluster, lambda: all(_copies(node)['fence'] > fence
                                             for node, fence in zip(cluster.nodes, fences)), 60, 'a table after the loss')
            assert _is_judged(cluster)

            # Wiped while it runs.
            fences = [_copies(node)['fence'] for node in cluster.nodes]
            redis.call('FLUSHALL')
            _read_until(cluster, lambda: all(_copies(node)['fence'] > fence
                                             for node, fence in zip(cluster.nodes, fences)), 60, 'a table after FLUSHALL')
            assert _is_judged(cluster)

            # The leader dies: another one goes on from the same table.
            leader = wait_until(lambda: _leader(cluster), 30, 'one leads')
            fence = _copies(leader)['fence']
            leader.kill()
            umount(place.path(f'mnt-{leader.number}'))
            readers = cluster.alive[:2]
            end = time.monotonic() + limit(60)
            while not any(_copies(node)['fence'] > fence for node in cluster.alive):
                assert time.monotonic() < end, 'no other table'
                _round(readers)
            assert _is_judged(cluster)

            # A restart ignores what is older than what it knew.
            node = cluster.alive[0]
            known = _copies(node)['fence']
            node.stop()
            node.start()
            wait_until(lambda: _copies(node)['fence'] >= known, 30, 'the table is read again')


if __name__ == '__main__':
    main(globals())
