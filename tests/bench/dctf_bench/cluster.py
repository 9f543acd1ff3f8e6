# SPDX-License-Identifier: Apache-2.0
"""Eight nodes, one cache: what leaves the source when they start, and what a frozen or killed node costs readers."""

import concurrent.futures
import csv
import multiprocessing
import os
import random
import signal
import statistics
import time

from dctf_e2e.cluster import Redis, free_ports

from . import host
from .measure import Row
from .s3_server import DctffsS3, S3Server

TITLE = 'cluster: eight nodes start, and lose one'
ABOUT = '''Eight nodes on this machine mount a bucket, members by Redis, with caches that hold all of it. *Cold start*: each node reads
the whole dataset once, from the moment it has mounted, in the same order as the others or in one of its own; the figure is the bytes that
left the source, listings included, against the size of the dataset. The starts are spread evenly over so many seconds; readers read at a
pace that takes longer than that, so that nodes join while others read. "Wiped restart": all end, lose their caches and start at once;
"kept restart": they keep them. *Reads*: seven nodes read shards that nobody has yet, in whole, 256 KiB at a time, while the eighth is
well, frozen (SIGSTOP) or killed (SIGKILL) as they begin; the figure is the time of one `read()`, against that with all of them well, in
the same round. The time until the node is found to be gone is in it. Pages are dropped from the page cache after each file.'''

NODES = 8
CHUNK = 256 * 1024


def _sizes(total, kind):
    """{name: bytes}: half in shards of several extents, the rest some MiB, and small ones."""
    sizes, left = {}, total // 2
    dice = random.Random(kind)
    for name, least, most in (('large', 9 * host.MIB, 24 * host.MIB), ('mid', host.MIB, 6 * host.MIB),
                              ('small', 32 * 1024, 256 * 1024)):
        while left > 0:
            size = min(dice.randrange(least, most), total)
            sizes[f'{kind}/{name}/{len(sizes):05}.bin'] = size
            left -= size
        left = total // 16 if name == 'mid' else total * 7 // 16
    return sizes


def _read_all(point, names, order, rate, begin, out):
    """Read whole files one after the other; sends the seconds of each read(). `rate`: bytes per second at most."""
    names, took, done = list(names), [], 0
    if order is not None:
        random.Random(order).shuffle(names)
    time.sleep(max(0, begin - time.monotonic()))
    begun = time.monotonic()
    for name in names:
        fd = os.open(os.path.join(point, name), os.O_RDONLY)
        while True:
            before = time.monotonic()
            got = len(os.read(fd, CHUNK))
            if not got:
                break
            took.append(time.monotonic() - before)
            done += got
            if rate:
                time.sleep(max(0, begun + done / rate - time.monotonic()))
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)
    out.send(took)


class Readers:
    """One process per node; `take` waits for all and returns the seconds of their reads."""

    def __init__(self):
        self.readers = []

    def add(self, mount, names, order, rate=0, begin=0):
        reader, writer = multiprocessing.Pipe(False)
        process = multiprocessing.Process(target=_read_all, args=(mount.mountpoint, names, order, rate, begin, writer))
        process.start()
        writer.close()
        self.readers.append((process, reader))

    def take(self):
        took = []
        for process, reader in self.readers:
            try:
                took += reader.recv()
            except EOFError:
                raise RuntimeError('a reader failed') from None
            process.join()
        return took


def each(mounts, do):
    """At once; the first error of any is raised."""
    with concurrent.futures.ThreadPoolExecutor(len(mounts)) as pool:
        list(pool.map(do, mounts))


class Nodes:
    def __init__(self, work, server, redis):
        self.work, self.server = work, server
        self.mounts = [DctffsS3(work, server, name=f'node-{i}', cache=f'cache-{i}', memory='256M', metadata_ttl='1h',
                                listen=f'127.0.0.1:{port}', redis=redis.url, cluster='bench', node=f'node-{i}')
                       for i, port in enumerate(free_ports(NODES))]

    def start_all(self):
        each(self.mounts, lambda mount: mount.start())
        host.wait_for(self.have_met, 60, 'the members have not met')

    def stop_all(self, wipe):
        each(self.mounts, lambda mount: mount.stop())
        if wipe:
            self.wipe()

    def wipe(self):
        for i in range(NODES):
            self.work.remove(f'cache-{i}')

    def peers(self, mount):
        with open(mount.path('.dctf', 'peers.tsv'), encoding='utf-8') as file:
            return list(csv.DictReader(file, delimiter='\t'))

    def have_met(self):
        """Each hears all others."""
        return all([peer['state'] for peer in self.peers(mount)].count('closed') == NODES - 1
                   and sum(int(peer['rtt_us']) > 0 for peer in self.peers(mount)) == NODES - 1 for mount in self.mounts)


# Starts ------------------------------------------------------------------------------------------

def _start_and_read(nodes, sizes, shuffled, spread, seconds):
    """Bytes that left the source ÷ those of the dataset. `seconds`: that each reader takes, at least."""
    total = sum(sizes.values())
    readers, begun = Readers(), time.monotonic()
    nodes.server.reset()

    def start(i):
        time.sleep(max(0, begun + i * spread / (NODES - 1) - time.monotonic()))
        nodes.mounts[i].start()
        readers.add(nodes.mounts[i], sorted(sizes), 7 * i + 1 if shuffled else None, total / seconds if seconds else 0)

    each(range(NODES), start)
    readers.take()
    return nodes.server.stats()['bytes_out'] / total


def starts(work, nodes, rows):
    sizes = nodes.sizes['start']
    spreads = work.pick((0, 2, 10), (0, 1, 3))
    bound = '≤ 1.05'
    for shuffled in (False, True):
        order = 'own orders' if shuffled else 'same order'
        for spread in spreads:
            work.say(f'cold start over {spread} s, {order}')
            nodes.wipe()
            fetched = _start_and_read(nodes, sizes, shuffled, spread, spread * 1.2)
            rows.append(Row(f'cold start over {spread} s, {order}', fetched, 1.0, 'the dataset once', 'of it', bound))
            if spread != spreads[-1]:
                nodes.stop_all(True)
        for wipe in (True, False):
            kind = 'wiped' if wipe else 'kept'
            work.say(f'{kind} restart, {order}')
            nodes.stop_all(wipe)
            fetched = _start_and_read(nodes, sizes, shuffled, 0, 0)
            rows.append(Row(f'{kind} restart, {order}', fetched, 1.0, 'the dataset once', 'of it',
                            bound if wipe else '≤ 0.01'))
        nodes.stop_all(True)


# Losses ------------------------------------------------------------------------------------------

def _quantile(took, part):
    return sorted(took)[min(len(took) - 1, int(part * len(took)))] * 1000


def _begin_part(nodes, part, seconds):
    """Readers of the first seven nodes, which begin now."""
    sizes = nodes.sizes[part]
    readers, begin = Readers(), time.monotonic() + 0.5  # all of them have begun by then
    for i, mount in enumerate(nodes.mounts[:-1]):
        readers.add(mount, sorted(sizes), 13 * i + 5, sum(sizes.values()) / seconds, begin)
    time.sleep(max(0, begin - time.monotonic()))
    return readers


def _times(readers):
    """Milliseconds of their reads: (p50, p99, longest)."""
    took = readers.take()
    return _quantile(took, 0.5), _quantile(took, 0.99), max(took) * 1000


def losses(work, nodes, rows, notes):
    victim = nodes.mounts[-1]
    seconds = work.pick(4, 2)
    times = {'well': [], 'frozen': [], 'killed': []}
    nodes.wipe()
    nodes.start_all()
    for turn in range(nodes.rounds):
        for kind in times:
            work.say(f'reads, one node {kind}')
            readers = _begin_part(nodes, f'{kind}-{turn}', seconds)
            if kind == 'frozen':
                os.kill(victim.pid, signal.SIGSTOP)
            elif kind == 'killed':
                victim.kill()
            try:
                times[kind].append(_times(readers))
            finally:
                if kind == 'frozen':
                    os.kill(victim.pid, signal.SIGCONT)
                elif kind == 'killed':
                    victim.start()
            host.wait_for(nodes.have_met, 90, 'the node was not found again')
    nodes.stop_all(True)
    for kind, what in (('frozen', 'one node frozen'), ('killed', 'one node killed')):
        for at, part in enumerate(('p50', 'p99')):
            rows.append(Row(f'read of 256 KiB, {what}: {part}', [t[at] for t in times[kind]],
                            [t[at] for t in times['well']], 'all well', 'ms', '≤ 2' if part == 'p99' else ''))
    notes.append('Longest read, ms (median of the rounds): ' + ', '.join(
        f'{kind} {statistics.median(t[2] for t in times[kind]):.0f}' for kind in times) + '.')


def bench(work):
    rows, notes = [], []
    start_bytes = host.fits(work.pick(256 * host.MIB, 64 * host.MIB), work.dir, disk_copies=10)
    part_bytes = host.fits(work.pick(96 * host.MIB, 32 * host.MIB), work.dir, disk_copies=20)
    rounds = work.pick(4, 2)
    kinds = {'start': start_bytes,
             **{f'{kind}-{turn}': part_bytes for kind in ('well', 'frozen', 'killed') for turn in range(rounds)}}
    sizes = {kind: _sizes(total, kind) for kind, total in kinds.items()}
    server = S3Server(work, work.dataset('source', [file for part in sizes.values() for file in part.items()]))
    redis = Redis().start()
    work.on_exit(redis.stop)
    nodes = Nodes(work, server, redis)
    nodes.sizes, nodes.rounds = sizes, rounds
    starts(work, nodes, rows)
    losses(work, nodes, rows, notes)
    redis.stop()
    notes.append(f'{start_bytes // host.MIB} MiB in {len(sizes["start"])} shards for the starts, {part_bytes // host.MIB} MiB '
                 f'for each part of the reads, at a pace of {work.pick(4, 2)} s for a part.')
    return rows, notes
