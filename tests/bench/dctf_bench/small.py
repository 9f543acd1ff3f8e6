# SPDX-License-Identifier: Apache-2.0
"""Many small files, one after the other."""

import random

from . import host
from .measure import alternate, reader, rows
from .mounts import Dctffs, Fuse, Rclone
from .work import same_bytes

TITLE = 'small: many small shards'
ABOUT = '''Shards of 64 KiB in one directory, all cached. One thread opens, reads and closes each (`tests/bench/bench_reader.c`),
in the order of their names or shuffled; the page cache, dentries and inodes are dropped before each run. Against the same on the
source directory itself, on `rclone mount --vfs-cache-mode full` with all files in its cache, and on a plain FUSE server that
answers with `pread()` from the source directory (`tests/bench/bench_fuse.c`).'''

FILE_BYTES = 64 * 1024


def orders(names):
    shuffled = list(names)
    random.Random(5).shuffle(shuffled)
    return {'sorted': sorted(names), 'shuffled': shuffled}


def bench(work):
    wanted = work.pick(10000, 2000) * FILE_BYTES
    names = [f'f{i:06}.bin' for i in range(host.fits(wanted, work.dir, disk_copies=4) // FILE_BYTES)]
    source = work.dataset('source', [(name, FILE_BYTES) for name in names])
    ours = Dctffs(work, source)
    mounts = {'dctffs': ours, 'rclone': Rclone(work, source), 'plain FUSE': Fuse(work, source)}
    for name, mount in mounts.items():
        work.say(f'warm {name}')
        mount.start()
        same_bytes(source, mount.mountpoint, names)
    places = {'dctffs': ours.mountpoint, 'native': source,
              **{name: mount.mountpoint for name, mount in mounts.items() if mount is not ours}}
    before = ours.metrics()
    results = []
    for order, ordered in orders(names).items():
        work.say(order)
        listed = work.list_file('names.' + order, ordered)

        def one(place, listed=listed):
            host.drop_caches()
            seconds, _ = reader(work, 'files', place, listed, 1)
            return len(names) / seconds

        samples = alternate(work.settings.runs, {name: lambda place=place: one(place)
                                                 for name, place in places.items()})
        results += rows(samples, order, 'files/s', {'native': '≥ 0.5', 'rclone': '≥ 1', 'plain FUSE': '≥ 1'})
    fetched = ours.metrics()['dctf_origin_bytes_total'] - before['dctf_origin_bytes_total']
    return results, [f'{len(names)} shards of 64 KiB; dctffs fetched {fetched:.0f} bytes from the source meanwhile.']
