#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `dctf` and the virtual files tell of a cluster, and bringing a dataset into it."""

import json
import os

from dctf_e2e import *
from dctf_e2e.cluster import Cluster, Redis
from dctf_e2e.s3 import S3Server

MIB = 1024 * 1024
EXTENT = 8 * MIB


def _dataset(s3, count=8):
    files = {'large/a.bin': 3 * EXTENT + 12345, 'large/b.bin': 2 * EXTENT}
    files.update({f'mid/{i}.bin': 2 * MIB + i for i in range(count)})
    files.update({f'small/{i}.bin': 30000 + i for i in range(count)})
    for key, size in files.items():
        s3.put(key, bytes_of(key, size))
    return files


def _json(node, *arguments, status=0):
    return json.loads(node.mount.dctf(*arguments, '--json', node.mount.point, status=status))


def _fetched(s3):
    return sum(request['bytes'] for request in s3.requests('get'))


def _assert_nothing_more(s3, cluster):
    """A node that a busy machine kept from answering a ping in time is read around: then the source is asked."""
    fetched = _fetched(s3)
    assert fetched == 0 or any('does not answer' in node.mount.log_text() for node in cluster.nodes), fetched


def _homes(node, name):
    return os.getxattr(node.mount.path(name), 'user.dctf.homes').decode()


def test_tell_of_peers(place):
    with S3Server(place) as s3:
        files = _dataset(s3)
        with Cluster(place, s3, 3, zone='a').start().wait_met() as cluster:
            cluster.read_everywhere(files)
            ids = [node.addr for node in cluster.nodes]
            for node in cluster.nodes:
                answer = _json(node, 'peers')
                assert [peer['id'] for peer in answer['peers']] == sorted(ids)
                for peer in answer['peers']:
                    assert peer['address'] == peer['id'] and peer['breaker'] == 'closed'
                    assert peer['self'] == (peer['id'] == node.addr)
                    if not peer['self']:
                        assert peer['requests'] > 0 and peer['bytes_in'] > 0 and peer['bytes_out'] > 0
                cluster_part = node.mount.tool_status()['cluster']
                assert cluster_part['members'] == 3 and cluster_part['settled'] and cluster_part['port'] == node.port
                assert cluster_part['peer_bytes_in'] == sum(peer['bytes_in'] for peer in answer['peers']) > 0
                assert cluster_part['view_age_ms'] == 0  # of a list
                assert node.mount.metric('dctf_cluster_members') == 3
                text = node.mount.dctf('peers', node.mount.point)
                assert all(name in text for name in ids) and 'self' in text and 'closed' in text
                assert '3 members' in node.mount.dctf('status', node.mount.point)
                with open(node.mount.path('.dctf/peers.tsv')) as file:
                    lines = [line.rstrip('\n').split('\t') for line in file]
                assert len({len(line) for line in lines}) == 1 and lines[0][:2] == ['id', 'address']
                assert [line[0] for line in lines[1:]] == sorted(ids)
            hashes = {node.mount.tool_status()['cluster']['view_hash'] for node in cluster.nodes}
            assert len(hashes) == 1
            sums = [sum(peer[way] for node in cluster.nodes for peer in node.mount.ask('peers')['peers'])
                    for way in ('bytes_in', 'bytes_out')]
            assert 0 < sums[0] <= sums[1], sums  # less by what came second in a race of two


def test_tell_homes(place):
    """The same on every node, one part for each extent; the home is who fetched it."""
    with S3Server(place) as s3:
        _dataset(s3)
        with Cluster(place, s3, 3).start().wait_met() as cluster:
            ids = {node.addr for node in cluster.nodes}
            told = {_homes(node, 'large/a.bin') for node in cluster.nodes}
            assert len(told) == 1
            parts = told.pop().split(' ')
            assert [part.split(':', 1)[0] for part in parts] == ['0', '1', '2', '3']
            for part in parts:
                homes = part.split(':', 1)[1].split(',')
                assert len(set(homes)) == 2 and set(homes) <= ids
            for name in ('mid/0.bin', 'mid/1.bin', 'small/0.bin'):
                homes = _homes(cluster.nodes[0], name).split(',')
                before = {node.addr: node.mount.origin_bytes() for node in cluster.nodes}
                cluster.nodes[1].mount.dctf('warm', '--cluster', cluster.nodes[1].mount.path(name))
                fetched = [node.addr for node in cluster.nodes if node.mount.origin_bytes() > before[node.addr]]
                assert fetched == homes[:1], (name, fetched, homes)
            assert 'user.dctf.homes' in os.listxattr(cluster.nodes[0].mount.path('mid/0.bin'))
            assert len(os.getxattr(cluster.nodes[0].mount.path('mid/0.bin'), 'user.dctf.homes')) > 0


def test_tell_of_no_cluster(place):
    make_tree(place.source, {'a/x': 100})
    with Mount(place) as mount:
        assert mount.ask('peers')['peers'] == [] and mount.tool_status()['cluster'] is None
        assert 'no cluster' in mount.dctf('peers', mount.point)
        assert 'user.dctf.homes' not in os.listxattr(mount.path('a/x'))
        with open(mount.path('.dctf/peers.tsv')) as file:
            assert len(file.readlines()) == 1
        mount.dctf('warm', '--cluster', mount.point, status=1)
        mount.dctf('warm', '--cluster', '--share', mount.point, status=2)


def _checks(node, name, status=0):
    checks = json.loads(node.mount.dctf('doctor', '--json', node.mount.point, status=status))['checks']
    return [check for check in checks if check['check'] == name]


def test_doctor_looks_at_peers(place):
    with S3Server(place) as s3:
        _dataset(s3)
        with Cluster(place, s3, 3).start().wait_met() as cluster:
            first, second, third = cluster.nodes
            checks = _checks(first, 'peers')
            assert [check['result'] for check in checks] == ['ok'] and '2 answer' in checks[0]['text'], checks
            second.stop()
            third.stop()
            cluster.environ = {'DCTF_CLUSTER_SECRET': 'quite another secret'}
            third.start()
            checks = {check['text'].split(' ')[0]: check for check in _checks(first, 'peer', status=1)}
            assert set(checks) == {second.addr, third.addr}, checks
            assert '2023' in checks[second.addr]['text'] and 'firewall' in checks[second.addr]['remedy']
            assert 'cluster_secret' in checks[third.addr]['text'] and checks[third.addr]['result'] == 'fail'


def test_doctor_finds_another_dataset(place):
    with S3Server(place) as s3:
        _dataset(s3)
        s3.put('elsewhere/x', b'x')
        with Cluster(place, s3, 2).start() as cluster:
            cluster.nodes[1].stop()
            cluster.source += '/elsewhere'
            cluster.nodes[1].start()
            checks = _checks(cluster.nodes[0], 'peer', status=1)
            assert len(checks) == 1 and 'another dataset' in checks[0]['text'], checks


def test_warm_the_cluster_from_one_node(place):
    """Each byte leaves the source once, and is at its home then."""
    with S3Server(place) as s3:
        files = _dataset(s3)
        total = sum(files.values())
        with Cluster(place, s3, 3).start().wait_met() as cluster:
            s3.reset()
            summary = _json(cluster.nodes[0], 'warm', '--cluster')
            assert summary['ok'] and summary['failed'] == 0 and summary['away_files'] == 0
            assert summary['fetched_bytes'] == total and summary['not_kept_bytes'] == 0, summary
            assert _fetched(s3) == total, _fetched(s3) / total
            # A home has its extents; little else went over the network than that.
            held = [sum(node.mount.ask('stat', path=name)['present_bytes'] for name in files)
                    for node in cluster.nodes]
            assert sum(held) == total, (held, total)
            s3.reset()
            assert _json(cluster.nodes[1], 'warm', '--cluster')['fetched_bytes'] == 0
            cluster.read_everywhere(files, order=seed())
            _assert_nothing_more(s3, cluster)


def test_warm_what_has_holes(place):
    """Blocks here and there were read before: each hole is filled, and nothing is fetched twice."""
    with S3Server(place) as s3:
        s3.put('a.bin', bytes_of('a', 6 * EXTENT))
        with Cluster(place, s3, 3, hedge='off').start().wait_met() as cluster:
            with open(cluster.nodes[1].mount.path('a.bin'), 'rb', buffering=0) as file:
                for block in (3, 9, 31, 32 + 1, 64, 65, 3 * 32 + 31, 4 * 32 + 7, 4 * 32 + 20):
                    os.pread(file.fileno(), 1000, block * 256 * 1024)
            assert 0 < _fetched(s3) < 4 * EXTENT
            s3.reset()
            summary = _json(cluster.nodes[0], 'warm', '--cluster')
            assert summary['ok'] and summary['not_kept_bytes'] == 0, summary
            assert 0 < _fetched(s3) < 6 * EXTENT, _fetched(s3) / EXTENT
            # In holes only: no range overlaps another.
            ranges = sorted(tuple(int(at) for at in request['range'][len('bytes='):].split('-'))
                            for request in s3.requests('get'))
            assert all(one[1] < other[0] for one, other in zip(ranges, ranges[1:])), ranges
            s3.reset()
            assert _json(cluster.nodes[2], 'warm', '--cluster')['fetched_bytes'] == 0 == _fetched(s3)
            for node in cluster.nodes:
                assert_same(read_all(node.mount.path('a.bin')), bytes_of('a', 6 * EXTENT))
            _assert_nothing_more(s3, cluster)


def test_warm_shares_on_all_nodes(place):
    with S3Server(place) as s3:
        files = _dataset(s3)
        total = sum(files.values())
        with Cluster(place, s3, 3).start().wait_met() as cluster:
            s3.reset()
            summaries = [_json(node, 'warm', '--share') for node in cluster.nodes]
            assert all(summary['ok'] for summary in summaries)
            assert sum(summary['fetched_bytes'] for summary in summaries) == total == _fetched(s3)
            assert cluster.metric('dctf_peer_bytes_total', dir='in') == 0


def test_warm_goes_on_without_a_node(place):
    """What the dead one is the home of is counted, and the exit status says so."""
    with S3Server(place) as s3:
        files = _dataset(s3, 24)
        total = sum(files.values())
        with Cluster(place, s3, 3).start().wait_met() as cluster:
            cluster.nodes[2].stop()
            s3.reset()
            summary = _json(cluster.nodes[0], 'warm', '--cluster', status=1)
            assert summary['away_bytes'] > 0 and summary['failed'] == 0 and not summary['ok'], summary
            assert summary['fetched_bytes'] + summary['away_bytes'] == total
            assert _fetched(s3) == summary['fetched_bytes']


def test_evict_and_sync_on_all_members(place):
    """Each says what it did; one that is away is named, and the exit status tells."""
    with S3Server(place) as s3:
        files = {f'small/{i}.bin': 30000 + i for i in range(8)}
        for key, size in files.items():
            s3.put(key, bytes_of(key, size))
        with Cluster(place, s3, 3, passthrough='off').start().wait_met() as cluster:
            first = cluster.nodes[0]
            cluster.read_everywhere(files)
            for node in cluster.nodes:  # a reader is answered before its bytes are in a tier
                wait_until(lambda node=node: _present(node, files) == sum(files.values()), 20, 'what was read is kept')
            answer = _json(first, 'evict', '--cluster')
            assert answer['unreached'] == 0 and len(answer['members']) == 2, answer
            assert {member['id'] for member in answer['members']} == {node.addr for node in cluster.nodes[1:]}
            assert all(member['shards'] > 0 and member['bytes'] > 0 for member in answer['members'])
            for node in cluster.nodes:
                assert _present(node, files) == 0
            answer = _json(first, 'sync', '--force', '--cluster')
            assert answer['unreached'] == 0 and answer['directories'] > 0
            cluster.nodes[2].stop()
            answer = _json(first, 'sync', '--cluster', status=1)
            assert answer['unreached'] == 1
            away = [member for member in answer['members'] if member['code']]
            assert [member['id'] for member in away] == [_addr_of(answer, away)] and away[0]['code'] == 2023, answer
            text = first.mount.dctf('evict', '--cluster', first.mount.path('small'), status=1)
            assert cluster.nodes[1].addr in text, text
    with Mount(place) as mount:
        for command in (['evict'], ['sync'], ['heat']):
            mount.dctf(*command, '--cluster', mount.point, status=1)


def _present(node, files):
    return sum(node.mount.ask('stat', path=name)['present_bytes'] for name in files)


def _addr_of(answer, away):
    reached = {member['id'] for member in answer['members'] if not member['code']}
    return next(member['id'] for member in away if member['id'] not in reached)


def test_heat_of_the_cluster(place):
    """What all nodes read, told on each of them, whoever leads."""
    with S3Server(place) as s3, Redis() as redis:
        files = {f'{feature}/{i}.bin': 30000 + i for feature in ('much', 'little') for i in range(4)}
        for key, size in files.items():
            s3.put(key, bytes_of(key, size))
        with Cluster(place, s3, 3, redis=redis.url, policy_interval='1s', passthrough='off').start().wait_met() as cluster:
            for node in cluster.nodes:
                for _ in range(3):
                    for key in files:
                        if key.startswith('much') or node is cluster.nodes[0]:
                            read_all(node.mount.path(key))
                            drop_pages(node.mount.path(key))

            def told(node):
                answer = node.mount.ask('heat', scope='cluster')
                rows = {row.get('feature'): row for row in answer['features']}
                return answer if answer['judged'] and {'much', 'little'} <= set(rows) and \
                    rows['much']['nodes'] == 3 else None
            answers = [wait_until(lambda node=node: told(node), 30, 'the leader has judged') for node in cluster.nodes]
            assert len({answer['leader'] for answer in answers}) == 1
            for answer in answers:
                assert answer['coordinated'] and answer['total'] == 2 and answer['half_life_ms'] == 30000
                assert [row['feature'] for row in answer['features']] == ['much', 'little'], answer
                much, little = answer['features']
                assert much['passes'] > little['passes'] > 0 and (much['nodes'], little['nodes']) == (3, 1)
                assert much['bytes'] == sum(size for key, size in files.items() if key.startswith('much'))
            text = cluster.nodes[0].mount.dctf('heat', '--cluster', cluster.nodes[0].mount.point)
            assert 'much' in text and 'judged' in text
            assert len(_json(cluster.nodes[1], 'heat', '--cluster', '-n', '1')['features']) == 1


def test_heat_of_a_cluster_without_redis(place):
    with S3Server(place) as s3:
        s3.put('f/a', b'x')
        with Cluster(place, s3, 2).start() as cluster:
            answer = _json(cluster.nodes[0], 'heat', '--cluster', status=1)
            assert answer['ok'] and not answer['coordinated'] and answer['features'] == []
            cluster.nodes[0].mount.dctf('heat', '--cluster', cluster.nodes[0].mount.point, status=1)


if __name__ == '__main__':
    main(globals())
