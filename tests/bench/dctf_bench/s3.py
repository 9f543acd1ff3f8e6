# SPDX-License-Identifier: Apache-2.0
"""First contact with a bucket: nothing is cached."""

import os
import subprocess
import time

from . import host
from .measure import Row, Samples, alternate, fio, reader, rows
from .net import Switched
from .s3_server import DctffsS3, RcloneS3, S3fs, S3Server

TITLE = 's3: the first read from a bucket'
ABOUT = '''Nothing is cached: before each run the mounts start with an empty cache and the page cache is dropped. The source is the S3
server of the tests (`tests/lib/s3_server.h`) on this machine, so server, client and reader share its processors and its disk; the
objects are in the page cache. "8 curls" are eight processes that fetch one eighth each by a ranged GET, to `/dev/null` or into
files. "Through a link": server and mount, or curls, are on two hosts (network namespaces) with a link of that rate between them, as a
node has to its store, so that it is the link that limits both. rclone run with `--vfs-cache-mode full`, s3fs with `use_cache` and 16 parallel requests. CPU is that of the mounting process
alone. "First byte" is from `open()` to the first 4 KiB of a shard that was never read, in a directory that was listed; against the time
of one `curl` for the same range. "10 ms": the server waits that long before each answer. Of the small
files rclone and s3fs read the first 2,000 only, since they take minutes for all; what is compared is files per second.'''

SHARD = 'shard.bin'
FILE_BYTES = 64 * 1024
FIRST = 40  # shards for the first byte
LINKS = ('2.5gbit', '5gbit', '10gbit')
OTHERS_FILES = 2000  # of the small ones: others take minutes for all of them


class Cold:
    """Mounts that forget everything before each run; a rate and the CPU per GiB of each."""

    def __init__(self, work, server):
        self.work, self.server = work, server
        self.mounts = {'dctffs': DctffsS3(work, server), 'rclone': RcloneS3(work, server), 's3fs': S3fs(work, server)}
        self.cpu = Samples((name, []) for name in self.mounts)
        self.fetched = []

    def run(self, name, read, size):
        """`read` gets a directory and returns a rate."""
        mount = self.mounts[name]
        self.work.remove(mount.cache)
        mount.start()
        host.drop_caches()
        warm(self.server)
        self.server.reset()
        before = host.cpu_seconds(mount.pid)
        rate = read(mount.mountpoint)
        self.cpu[name].append((host.cpu_seconds(mount.pid) - before) / (size / host.GIB))
        if name == 'dctffs':
            self.fetched.append(self.server.stats()['bytes_out'])
        mount.stop()
        self.work.remove(mount.cache)
        return rate


def warm(server):
    """The objects into the page cache: it is not the server's disk that is measured."""
    for where, _, names in os.walk(server.directory):
        for entry in names:
            with open(os.path.join(where, entry), 'rb', buffering=0) as file:
                while file.read(4 * host.MIB):
                    pass


def curls(work, server, size, directory=None, enter=()):
    """Bytes per second of eight ranged curls. `enter`: a command that takes them to another host."""
    host.drop_caches()
    warm(server)
    if directory:
        os.makedirs(directory, exist_ok=True)
    part = -(-size // 8)
    begin = time.monotonic()
    children = [subprocess.Popen([*enter, 'curl', '-sf', '-r', f'{i * part}-{min(size, (i + 1) * part) - 1}', '-o',
                                  f'{directory}/{i}' if directory else os.devnull, server.url_of(SHARD)])
                for i in range(8)]
    if any([child.wait() for child in children]):
        raise RuntimeError('a curl failed')
    seconds = time.monotonic() - begin
    if directory:
        work.remove(os.path.basename(directory))
    return size / seconds


def large(work, results):
    size = host.fits(work.pick(2 * host.GIB, 256 * host.MIB), work.dir, disk_copies=4)
    server = S3Server(work, work.dataset('large', [(SHARD, size)]))
    cold = Cold(work, server)

    def sequential(name):
        return cold.run(name, lambda place: fio(f'{place}/{SHARD}', 'read', '1M', size), size) / host.GIB

    contestants = {name: lambda name=name: sequential(name) for name in cold.mounts}
    contestants['8 curls'] = lambda: curls(work, server, size) / host.GIB
    contestants['8 curls into files'] = lambda: curls(work, server, size, work.path('curls')) / host.GIB
    work.say('sequential')
    samples = alternate(min(work.settings.runs, 3), contestants)
    what = f'{size / host.GIB:g} GiB shard, sequential 1 MiB'
    results += rows(samples, what, 'GiB/s', {'8 curls': '≥ 0.8', '8 curls into files': '≥ 0.8', 'rclone': '≥ 1', 's3fs': '≥ 1'})
    results += rows(cold.cpu, what + ': CPU', 's/GiB', {'rclone': '≤ 1', 's3fs': '≤ 1'})
    results.append(Row(what + ': bytes from the server', [n / host.GIB for n in cold.fetched],
                       [size / host.GIB] * len(cold.fetched), 'its size', 'GiB', '≤ 1.02'))
    server.stop()
    work.remove('large')


def through_link(work, results):
    size = host.fits(work.pick(2 * host.GIB, 128 * host.MIB), work.dir, disk_copies=4)
    net = Switched(work)
    dataset = work.dataset('large', [(SHARD, size)])
    with net.near.inside():
        server = S3Server(work, dataset, net.near_address)
    mount = DctffsS3(work, server, net.far)

    def through_mount():
        work.remove(mount.cache)
        mount.start()
        host.drop_caches()
        warm(server)
        rate = fio(mount.path(SHARD), 'read', '1M', size) / host.GIB
        mount.stop()
        return rate

    for rate in LINKS:
        net.shape(rate, 5)
        work.say(f'through a link of {rate}')
        samples = alternate(min(work.settings.runs, 3), {
            'dctffs': through_mount, '8 curls': lambda: curls(work, server, size, enter=mount.enter) / host.GIB})
        results += rows(samples, f'{size / host.GIB:g} GiB shard through a link of {rate}', 'GiB/s', {'8 curls': '≥ 0.8'})
    server.stop()
    net.close()
    work.remove('large')


def first_byte(work, results):
    names = [f'f{i:03}.bin' for i in range(FIRST)]
    server = S3Server(work, work.dataset('first', [(name, 8 * host.MIB) for name in names]))
    mount = DctffsS3(work, server, readahead_shards=0)
    for latency in (0, 10):
        server.latency(latency)
        work.remove(mount.cache)
        mount.start()
        host.drop_caches()
        warm(server)
        os.listdir(mount.mountpoint)
        ours, theirs = [], []
        for name in names:
            begin = time.monotonic()
            fd = os.open(mount.path(name), os.O_RDONLY)
            got = os.pread(fd, 4096, 0)
            ours.append((time.monotonic() - begin) * 1000)
            os.close(fd)
            if len(got) != 4096:
                raise RuntimeError(f'{len(got)} bytes of {name}')
            output = subprocess.run(['curl', '-sf', '-r', '0-4095', '-o', os.devnull, '-w', '%{time_total}',
                                     server.url_of(name)], check=True, capture_output=True, text=True).stdout
            theirs.append(float(output) * 1000)
        mount.stop()
        results.append(Row(f'first byte, {latency} ms', ours, theirs, 'one ranged curl', 'ms', '≤ 2'))
    server.stop()
    work.remove('first')


def small(work, results):
    count = work.pick(10000, 500)
    names = [f'f{i:06}.bin' for i in range(host.fits(count * FILE_BYTES, work.dir) // FILE_BYTES)]
    server = S3Server(work, work.dataset('small', [(name, FILE_BYTES) for name in names]))
    server.latency(10)
    cold = Cold(work, server)
    total = len(names) * FILE_BYTES

    def files(name):
        some = names if name == 'dctffs' else names[:OTHERS_FILES]
        listed = work.list_file('names', some)
        return cold.run(name, lambda place: len(some) / reader(work, 'files', place, listed, 16)[0],
                        len(some) * FILE_BYTES)

    work.say('small, 10 ms')
    samples = alternate(min(work.settings.runs, 2), {name: lambda name=name: files(name) for name in cold.mounts})
    what = f'{len(names)} × 64 KiB, 16 readers, 10 ms'
    results += rows(samples, what, 'files/s', {'rclone': '≥ 3', 's3fs': '≥ 3'})
    results.append(Row(what + ': bytes from the server', [n / host.MIB for n in cold.fetched],
                       [total / host.MIB] * len(cold.fetched), 'their size', 'MiB', '≤ 1.1'))
    server.stop()
    work.remove('small')


def bench(work):
    results = []
    for part in (large, through_link, first_byte, small):
        part(work, results)
    return results, []
