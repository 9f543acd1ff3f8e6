#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Nodes with a cache each that holds a part of the dataset hold all of it together."""

import os
import random
import time
import zlib

from dctf_e2e import *
from dctf_e2e.cluster import Cluster
from dctf_e2e.env import LONG, SANITIZER
from dctf_e2e.s3 import S3Server

KIB, MIB = 1024, 1024 * 1024
# A reader goes to the source when a home is late, and on a machine busy with other tests homes are: the first epochs
# after the first one that hold the bound count, of so many.
EPOCHS_MOST = 6
# Bytes of objects are parts of this, so that many readers on one machine can compare all they read.
_PLENTY = random.Random(1).randbytes(26 * MIB)


def _bytes(key, size):
    at = zlib.crc32(key.encode()) % (len(_PLENTY) - size)
    return memoryview(_PLENTY)[at:at + size]


def _dataset(s3, smalls, larges):
    """Small shards in ten directories, and some of a few extents; returns {key: size}."""
    rng = random.Random(7)
    files = {f'small/{i % 10}/{i:05}.bin': rng.randrange(64 * KIB, 300 * KIB) for i in range(smalls)}
    files.update({f'large/{i:03}.bin': rng.randrange(10 * MIB, 20 * MIB) for i in range(larges)})
    for key, size in files.items():
        s3.put(key, _bytes(key, size))
    return files


def _read_epoch(point, files, order):
    names = sorted(files)
    random.Random(order).shuffle(names)
    for name in names:
        fd = os.open(f'{point}/{name}', os.O_RDONLY)
        at = 0
        while data := os.read(fd, MIB):
            assert data == _bytes(name, files[name])[at:at + len(data)], f'{name}: other bytes at {at}'
            at += len(data)
        assert at == files[name], f'{name}: {at} bytes, not {files[name]}'
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # the kernel's copy is not what is looked at
        os.close(fd)


def _epoch(cluster, s3, files, order):
    """All nodes read all of it, each in an order of its own; bytes that left the source."""
    s3.reset()
    children = [Child(_read_epoch, node.mount.point, files, order * 1000 + node.number) for node in cluster.nodes]
    try:
        for child in children:
            child.result(240)
    finally:
        for child in children:
            child.__exit__()
    return s3.stats()['bytes_out']


def _share_of_caches(place, nodes, part, smalls, larges, bounds):
    """Of what is read from the second epoch on, what comes from the nodes' caches, each of which holds 1/part, is at
    least `bounds`, epoch by epoch."""
    order = seed()
    with S3Server(place) as s3:
        files = _dataset(s3, smalls, larges)
        total = sum(files.values())
        # Little memory: an epoch takes seconds, and so long buffers keep what the cache does not.
        with Cluster(place, s3, nodes, cache_size=total // part, memory='128M').start() as cluster:
            cluster.wait_met()
            begun = time.monotonic()
            left = [_epoch(cluster, s3, files, order)]
            shares = [1 - left[0] / (nodes * total)]
            held = 0
            while held < len(bounds) and len(left) < EPOCHS_MOST:
                left.append(_epoch(cluster, s3, files, order + len(left)))
                shares.append(1 - left[-1] / (nodes * total))
                held += shares[-1] >= bounds[held]
            took = time.monotonic() - begun
    print(f'     {nodes} nodes, caches of 1/{part} of {total // MIB} MiB, {took:.0f} s: from caches by epoch '
          + ', '.join(f'{share:.4f}' for share in shares) + '; source/dataset '
          + ', '.join(f'{bytes_out / total:.3f}' for bytes_out in left), flush=True)
    assert held == len(bounds), f'{held} of the bounds {bounds} held'


def _bound(share):
    """Slow builds have a dataset so small that what a cache needs for itself counts, and collections that come late:
    they look for races and wrong bytes."""
    return 0.5 if SANITIZER else share


def test_eight_nodes_with_a_quarter_each(place):
    """Twice the dataset in all: nothing leaves the source a second time but by accident."""
    _share_of_caches(place, 8, 4, scaled(500, 200), scaled(3, 1), [_bound(0.95)] * 2)


def test_four_nodes_with_a_quarter_each(place):
    """Just the dataset in all, less what small caches need for themselves, about a twentieth; homes are uneven,
    so what has no room at one goes to another, mostly in the first epoch."""
    _share_of_caches(place, 4, 4, scaled(700, 200), scaled(4, 1), [_bound(0.75), _bound(0.8)])


def test_eight_nodes_with_an_eighth_each(place):
    """The same with caches of 64 MiB, which need a sixteenth for themselves; larger ones need less."""
    if not LONG:
        skip('takes minutes: DCTF_LONG')
    _share_of_caches(place, 8, 8, 2000, 12, [0.9] * 2)


if __name__ == '__main__':
    main(globals())
