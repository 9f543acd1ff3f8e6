#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What nodes agree on through Redis, while all of them read: who is left out of placement because the others do not reach it,
and what happens when Redis stops or the leader dies. No byte is wrong, no read fails.
DCTF_LONG=1 has eight nodes instead of four."""

import os
import time

from dctf_e2e import *
from dctf_e2e.cluster_lab import HEARTBEAT_S, NODES, Lab, id_of, peers_of, wait_breaker


def _excluded(node):
    """Ids of those that are left out, as a node has it."""
    return {peer['id'] for peer in node.mount.ask('peers')['peers'] if peer['excluded']}


def _homes(node, files):
    """Who is the home of some extent, as a node has it."""
    return {os.getxattr(node.mount.path(key), 'user.dctf.homes').decode().split(',')[0].split(':')[-1]
            for key in files}


def test_leave_a_node_out_of_placement(place):
    """One that sees Redis but that the others do not reach is nobody's home after a while, and is again when they do."""
    with Lab(place, exclude_after_ms='3s') as lab:
        nodes, victim = lab.cluster.nodes, lab.cluster.nodes[1]
        everybody = {id_of(node) for node in nodes}
        small = [key for key in lab.files if key.startswith('small/')]
        assert _homes(nodes[0], small) == everybody and not _excluded(nodes[0])
        lab.network.cut(1)
        begun = time.monotonic()
        _wait_excluded(nodes, {id_of(victim)})
        print(f'     left out after {time.monotonic() - begun:.1f} s')
        assert time.monotonic() - begun >= 3
        assert _homes(nodes[0], small) == everybody - {id_of(victim)}
        assert nodes[0].mount.metric('dctf_cluster_excluded') == 1
        assert 'do not reach this node' in victim.mount.dctf('doctor', victim.mount.point, status=1)
        lab.readers.read_on(10)
        # It stays so whoever leads.
        leader = wait_until(lambda: _leader(lab.cluster), 60, 'one leads')
        if leader is not victim:
            lab.readers.leave(leader)
            leader.stop()
            leader.start()
            lab.readers.begin(leader)
        wait_until(lambda: _leader(lab.cluster), 60, 'one leads again')
        _wait_excluded(nodes, {id_of(victim)})
        lab.network.mend(1)
        begun = time.monotonic()
        _wait_excluded(nodes, set(), 90)
        print(f'     taken back after {time.monotonic() - begun:.1f} s')
        assert _homes(nodes[0], small) == everybody
        lab.readers.read_on(10)


def _wait_excluded(nodes, ids, seconds=60):
    for node in nodes:
        wait_until(lambda node=node: _excluded(node) == ids, seconds, f'{ids} are left out at {id_of(node)}')


def test_leave_no_half_out(place):
    """Half of the nodes are cut off, each by itself: nobody can say who is right, and nobody is left out."""
    with Lab(place, exclude_after_ms=f'{int(6 * HEARTBEAT_S)}s') as lab:
        for i in range(NODES // 2):
            lab.network.cut(i)
        wait_breaker(lab.cluster.nodes[:NODES // 2], lab.cluster.nodes[NODES // 2:], False)
        end = time.monotonic() + 14 * HEARTBEAT_S  # several judgements
        while time.monotonic() < end:
            assert not any(_excluded(node) for node in lab.cluster.nodes)
            time.sleep(0.2)
        lab.readers.read_on(5)


def test_stop_redis(place):
    with Lab(place) as lab:
        lab.readers.read_on(20)
        lab.redis.stop()
        time.sleep(5 * HEARTBEAT_S)  # leases are four
        lab.readers.read_on(20)
        lab.redis.start()
        for node in lab.cluster.nodes:
            wait_until(lambda node=node: node.mount.tool_status()['cluster']['view_age_ms'] < 1000, 60,
                       'the members are heard of again')
            assert len(peers_of(node)) == NODES - 1
        lab.readers.read_on(20)


def _leader(cluster):
    leaders = [node for node in cluster.alive if node.mount.ask('status')['status']['cluster']['copies']['leads']]
    return leaders[0] if len(leaders) == 1 else None


def test_kill_the_leader(place):
    with Lab(place) as lab:
        lab.readers.read_on(20)
        leader = wait_until(lambda: _leader(lab.cluster), 60, 'one leads')
        leader.kill()
        lab.readers.drop(leader)
        umount(place.path(f'mnt-{leader.number}'))
        wait_until(lambda: _leader(lab.cluster), 60, 'another leads')
        lab.readers.read_on(20)


if __name__ == '__main__':
    main(globals())
