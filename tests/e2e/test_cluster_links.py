#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Links that are cut while all nodes read: no byte is wrong, no read fails. Each node is in a network namespace of its own.
DCTF_LONG=1 has eight nodes instead of four."""

import concurrent.futures
import os

from dctf_e2e import *
from dctf_e2e.env import SANITIZER
from dctf_e2e.cluster_lab import NODES, Lab, id_of, peers_of, wait_breaker


# A source that is only slow must not be taken for one that is gone.
SECONDS = 3 if SANITIZER else 1
IMPATIENT = {'stall_timeout_min_ms': f'{SECONDS}s', 'stall_timeout_max_ms': f'{SECONDS}s',
             'connect_timeout_ms': f'{SECONDS}s', 'origin_retries': '1'}


def test_cut_a_link(place):
    """The node has the source and Redis, but not the others."""
    with Lab(place) as lab:
        victim, others = lab.cluster.nodes[1], [lab.cluster.nodes[i] for i in range(NODES) if i != 1]
        lab.readers.read_on(20)
        lab.network.cut(1)
        wait_breaker(others, [victim], False)
        wait_breaker([victim], others, False)
        lab.readers.read_on(20)
        lab.network.mend(1)
        wait_breaker(others, [victim], True)
        wait_breaker([victim], others, True)
        lab.readers.read_on(20)


def test_cut_all_links_of_a_node(place):
    """The others read on; it goes on when it is back."""
    with Lab(place) as lab:
        victim, others = lab.cluster.nodes[1], [lab.cluster.nodes[i] for i in range(NODES) if i != 1]
        lab.readers.read_on(20)
        lab.network.cut(1)
        lab.network.cut(1, 'source')
        lab.readers.drop(victim)
        lab.readers.read_on(20)
        wait_breaker(others, [victim], False)
        lab.network.mend(1)
        lab.network.mend(1, 'source')
        wait_until(lambda: all(id_of(victim) in peers_of(node) for node in others), 60, 'it is a member again')
        wait_breaker(others, [victim], True)
        lab.readers.begin(victim)
        lab.readers.read_on(20)


def test_cut_a_node_from_the_source(place):
    """It has the others, and they have it: what it is the home of is fetched by the next in rank, for its own readers
    too."""
    files = 6 if SANITIZER else 15
    with Lab(place, members='list', **IMPATIENT) as lab:
        nodes, victim = lab.cluster.nodes, lab.cluster.nodes[1]
        lab.readers.read_on(5)
        for node in nodes:
            lab.readers.leave(node)
        for node in nodes:
            node.mount.ask('evict', path='')
        lab.network.cut(1, 'source')
        fetched = victim.mount.origin_bytes()
        for node in nodes:
            lab.readers.begin(node)
        lab.readers.read_on(files)
        assert victim.mount.origin_bytes() == fetched
        assert victim.mount.metric('dctf_cluster_source_off') == 1
        lab.network.mend(1, 'source')

        def fetches_again():
            for node in nodes:
                node.mount.ask('evict', path='')
            lab.readers.read_on(2)
            return victim.mount.origin_bytes() > fetched
        wait_until(fetches_again, 60, 'it tries the source again')
        assert victim.mount.metric('dctf_cluster_source_off') == 0


def test_list_on_a_node_cut_from_the_source(place):
    """Directories that nobody has listed: those that the node lists for all, it has another list for it."""
    names = [f'{i:02}' for i in range(16)]
    with Lab(place, members='list', **IMPATIENT) as lab:
        victim = lab.cluster.nodes[1]
        lab.readers.leave(victim)
        for name in names:
            lab.s3.put(f'dirs/{name}/x', name.encode())
        for node in lab.cluster.nodes:
            node.mount.dctf('sync', node.mount.point)
        lab.network.cut(1, 'source')

        def look(name):
            assert os.listdir(victim.mount.path(f'dirs/{name}')) == ['x']
            return read_all(victim.mount.path(f'dirs/{name}/x'))

        assert sorted(os.listdir(victim.mount.path('dirs'))) == names
        with concurrent.futures.ThreadPoolExecutor(len(names)) as pool:
            assert list(pool.map(look, names)) == [name.encode() for name in names]
        lab.network.mend(1, 'source')


if __name__ == '__main__':
    main(globals())
