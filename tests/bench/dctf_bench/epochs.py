# SPDX-License-Identifier: Apache-2.0
"""What a cache smaller than the dataset keeps."""

import os
import random
import statistics
from collections import OrderedDict

from . import host
from .measure import Row
from .mounts import Dctffs

TITLE = 'epochs: hits of a cache that is too small'
ABOUT = '''Shuffled epochs: every shard is read once per epoch, whole, in a fresh order. The hit ratio counts bytes, from the second
epoch on: 1 − (bytes fetched from the source + bytes found in transfer buffers) / (bytes read); what the memory budget happens to
hold (`memory=64M` here) is told below, but is not the cache's merit. (Bytes read ahead and then found in a buffer count twice,
so the figure is on the low side.) Without look-ahead the best there is equals the share of the dataset
that fits, so the ratio is against cache_size / dataset, where cache_size is the cap on everything on disk: data, index and
garbage. Zipf: independent draws with popularity 1/rank^0.9, against an LRU of cache_size bytes of data simulated on the same trace;
both are counted over the second half. Pages are dropped from the page cache after each read, so that every read reaches the mount.'''

SHARES = (10, 25, 50, 75)


class Epochs:
    """A mount with a fresh cache of a share of the dataset, and a count of its hits."""

    def __init__(self, work, source, sizes, share):
        self.work, self.sizes = work, sizes
        self.total = sum(sizes.values())
        self.cache_bytes = self.total * share // 100
        work.remove('cache')
        self.mount = Dctffs(work, source, cache_size=self.cache_bytes, memory='64M')
        self.mount.start()
        host.drop_caches()

    def read(self, name):
        fd = os.open(self.mount.path(name), os.O_RDONLY)
        got = 0
        while True:
            size = len(os.read(fd, host.MIB))
            got += size
            if size == 0:
                break
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
        if got != self.sizes[name]:
            raise RuntimeError(f'{name}: {got} bytes, not {self.sizes[name]}')
        return got

    def hits(self, trace):
        """Shares of the bytes of a trace that came from the cache, and from buffers in memory."""
        before = self.mount.metrics()
        got = sum(self.read(name) for name in trace)
        after = self.mount.metrics()
        fetched, memory = [after[name] - before[name]
                           for name in ('dctf_origin_bytes_total', 'dctf_read_bytes_total{from="memory"}')]
        return 1 - (fetched + memory) / got, memory / got

    def overhead(self):
        """Index and garbage now, as a share of the cap."""
        cache = self.mount.status()['cache']
        return (cache['index_bytes'] - cache['small_bytes']) / self.cache_bytes

    def disk_bytes(self):
        """What the cache directory takes on disk."""
        blocks = 0
        for where, _, names in os.walk(self.mount.cache):
            for name in names:
                try:
                    blocks += os.stat(os.path.join(where, name)).st_blocks
                except FileNotFoundError:
                    pass
        return 512 * blocks

    def end(self):
        self.mount.stop()
        self.work.remove('cache')


def shuffles(names, count, seed):
    order = list(names)
    dice = random.Random(seed)
    for _ in range(count):
        dice.shuffle(order)
        yield list(order)


def zipf(names, count, seed, alpha=0.9):
    dice = random.Random(seed)
    ranked = list(names)
    dice.shuffle(ranked)
    return dice.choices(ranked, weights=[1 / (i + 1) ** alpha for i in range(len(ranked))], k=count)


def simulate_lru(trace, sizes, capacity, counted_from):
    """Byte hit ratio of an LRU of `capacity` bytes, counted from one read of the trace on."""
    kept, used, hits, total = OrderedDict(), 0, 0, 0
    for i, name in enumerate(trace):
        size = sizes[name]
        if i >= counted_from:
            total += size
            hits += size if name in kept else 0
        if name in kept:
            kept.move_to_end(name)
            continue
        kept[name] = True
        used += size
        while used > capacity:
            used -= sizes[kept.popitem(last=False)[0]]
    return hits / total


def bench_shuffled(work, label, source, sizes, notes):
    results = []
    for share in SHARES:
        work.say(f'{label}, cache {share} %')
        epochs = Epochs(work, source, sizes, share)
        order = shuffles(sizes, 1 + work.settings.epochs, seed=share)
        first, _ = epochs.hits(next(order))
        ratios, memory = zip(*[epochs.hits(trace) for trace in order])
        expected = epochs.cache_bytes / epochs.total
        results.append(Row(f'{label}, cache {share} %', statistics.mean(ratios), expected, 'cache / dataset', 'hits',
                           '≥ 0.95'))
        notes.append(f'{label}, {share} %: first epoch {first:.3f}, then ' + ', '.join(f'{r:.3f}' for r in ratios)
                     + f' and {statistics.mean(memory):.3f} in memory; index and garbage '
                     f'{100 * epochs.overhead():.1f} % of the cap; on disk '
                     f'{100 * epochs.disk_bytes() / epochs.cache_bytes:.1f} % of the cap.')
        epochs.end()
    return results


def bench_zipf(work, label, source, sizes):
    results = []
    for share in (5, 20):
        work.say(f'{label} zipf, cache {share} %')
        epochs = Epochs(work, source, sizes, share)
        trace = zipf(sizes, work.pick(10, 6) * len(sizes), seed=share)
        half = len(trace) // 2
        epochs.hits(trace[:half])
        measured, _ = epochs.hits(trace[half:])
        lru = simulate_lru(trace, sizes, epochs.cache_bytes, half)
        results.append(Row(f'{label}, zipf, cache {share} %', measured, lru, 'simulated LRU', 'hits', '≥ 1'))
        epochs.end()
    return results


def bench(work):
    notes, results = [], []
    for label, count, size in (('2 MiB shards', work.pick(400, 120, 2000), 2 * host.MIB),
                               ('64 KiB shards', work.pick(8000, 2000, 40000), 64 * 1024)):
        count = host.fits(count * size, work.dir) // size
        sizes = {f'feature{i % 8}/s{i:06}.bin': size for i in range(count)}
        source = work.dataset('source', sizes.items())
        notes.append(f'{label}: {count} in 8 directories, {count * size / host.MIB:.0f} MiB.')
        results += bench_shuffled(work, label, source, sizes, notes)
        results += bench_zipf(work, label, source, sizes)
        work.remove('source')
    return results, notes
