# SPDX-License-Identifier: Apache-2.0
"""What the caches of eight nodes hold together, when each has room for an eighth of the dataset."""

import csv
import multiprocessing
import os
import random

from dctf_e2e.cluster import free_ports

from . import host
from .measure import Row
from .s3_server import DctffsS3, S3Server

TITLE = 'share: eight caches of an eighth each'
ABOUT = '''Eight nodes on this machine read all of a dataset in a bucket, once in each epoch, each in a fresh order of its own. Each
has a cache of an eighth of the dataset: the cap on everything on disk, data, index and garbage. The figure is the share of the bytes
read that did not leave the source; the first epoch, which fetches everything, is not counted. "The same nodes alone" have the same
caches and no peers. "All of it placed at best" is the share of the dataset that fits when the same extents are laid by chance into
caches without index and garbage: each at its home, else at the first of the next three in rank that has room. Pages are dropped from
the page cache after each read.'''

NODES = 8
RANKS = 4  # that may hold an extent; DCTF_SPARE_RANKS of cluster/spare.h
EXTENT = 8 * host.MIB


def _sizes(total):
    """{name: bytes}: of three parts alike one is small shards, one some MiB, and one of many extents."""
    dice = random.Random(11)
    sizes = {}

    def fill(kind, least, most):
        left = total // 3
        while left > 0:
            size = dice.randrange(least, most)
            sizes[f'{kind}-{len(sizes) % 8}/{len(sizes):06}.bin'] = size
            left -= size

    fill('small', 64 * 1024, 512 * 1024)
    fill('medium', host.MIB, 16 * host.MIB)
    fill('large', 32 * host.MIB, 96 * host.MIB)
    return sizes


def _extents(sizes):
    for size in sizes.values():
        while size > 0:
            yield min(size, EXTENT)
            size -= EXTENT


def _placed(sizes, cache_bytes, rounds=20):
    """Share that finds a place, by chance as rendezvous hashing has it."""
    dice = random.Random(12)
    total = sum(sizes.values())
    extents = list(_extents(sizes))
    kept = 0
    for _ in range(rounds):
        room = [cache_bytes] * NODES
        dice.shuffle(extents)
        homeless = []
        for size in extents:
            ranks = dice.sample(range(NODES), RANKS)
            if room[ranks[0]] < size:
                homeless.append((size, ranks))
            else:
                room[ranks[0]] -= size
                kept += size
        for size, ranks in homeless:
            place = next((node for node in ranks if room[node] >= size), None)
            if place is not None:
                room[place] -= size
                kept += size
    return kept / (total * rounds)


def _read_all(point, names, order):
    names = list(names)
    random.Random(order).shuffle(names)
    for name in names:
        fd = os.open(os.path.join(point, name), os.O_RDONLY)
        while os.read(fd, host.MIB):
            pass
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)  # the kernel's copy is not what is looked at
        os.close(fd)


class Nodes:
    """Eight mounts, alone or as a cluster, and what an epoch costs the source."""

    def __init__(self, work, server, sizes, cache_bytes, together):
        self.work, self.server, self.sizes = work, server, sizes
        self.total = sum(sizes.values())
        ports = free_ports(NODES)
        peers = r'\,'.join(f'127.0.0.1:{port}' for port in ports)
        self.mounts = []
        for i, port in enumerate(ports):
            options = {'listen': f'127.0.0.1:{port}', 'peers': peers} if together else {}
            work.remove(f'cache-{i}')
            self.mounts.append(DctffsS3(work, server, name=f'node-{i}', cache=f'cache-{i}', cache_size=cache_bytes,
                                        memory='128M', metadata_ttl='1h', **options))
        for mount in self.mounts:
            mount.start()
        if together:
            host.wait_for(self.have_met, 30, 'the members have not met')

    def have_met(self):
        """Each has pinged all others."""
        for mount in self.mounts:
            with open(mount.path('.dctf', 'peers.tsv'), encoding='utf-8') as file:
                peers = list(csv.DictReader(file, delimiter='\t'))
            if len(peers) < NODES or sum(int(peer['rtt_us']) > 0 for peer in peers) < NODES - 1:
                return False
        return True

    def epoch(self, number):
        """Share of the bytes read that did not come from the source."""
        self.server.reset()
        readers = [multiprocessing.Process(target=_read_all, args=(mount.mountpoint, self.sizes, 100 * number + i))
                   for i, mount in enumerate(self.mounts)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        if any(reader.exitcode for reader in readers):
            raise RuntimeError('a reader failed')
        return 1 - self.server.stats()['bytes_out'] / (NODES * self.total)

    def overhead(self):
        """Index and garbage now, as a share of the caps; what lies on disk, likewise."""
        caches = [mount.status()['cache'] for mount in self.mounts]
        cap = sum(cache['limit_bytes'] for cache in caches)
        index = sum(cache['index_bytes'] - cache['small_bytes'] for cache in caches)
        return index / cap, sum(cache['index_bytes'] + cache['file_bytes'] for cache in caches) / cap

    def end(self):
        for i, mount in enumerate(self.mounts):
            mount.stop()
            self.work.remove(f'cache-{i}')


def bench(work):
    total = host.fits(work.pick(2 * host.GIB, 256 * host.MIB, 4 * host.GIB), work.dir)
    sizes = _sizes(total)
    total = sum(sizes.values())
    cache_bytes = total // NODES
    server = S3Server(work, work.dataset('source', sizes.items()))
    shares, overheads, firsts = {}, {}, {}
    for kind, epochs in (('together', work.settings.epochs), ('alone', 1)):
        work.say(kind)
        nodes = Nodes(work, server, sizes, cache_bytes, kind == 'together')
        firsts[kind] = nodes.epoch(0)
        shares[kind] = [nodes.epoch(1 + epoch) for epoch in range(epochs)]
        overheads[kind] = nodes.overhead()
        nodes.end()
    placed = _placed(sizes, cache_bytes)
    what = f'{NODES} caches of {cache_bytes // host.MIB} MiB, {total // host.MIB} MiB'
    rows = [Row(what, min(shares['together']), placed, 'all of it placed at best', 'from caches', '≥ 0.95 from caches'),
            Row(what, min(shares['together']), shares['alone'][0], 'the same nodes alone', 'from caches')]
    notes = [f'{len(sizes)} shards from 64 KiB to 96 MiB. The lowest of the epochs stands in the table.']
    notes += [f'{kind}: first epoch {firsts[kind]:.4f}, then ' + ', '.join(f'{share:.4f}' for share in shares[kind])
              + f'; index and garbage {100 * overheads[kind][0]:.1f} % of the caps, on disk {100 * overheads[kind][1]:.1f} %.'
              for kind in ('together', 'alone')]
    return rows, notes
