# SPDX-License-Identifier: Apache-2.0
"""A start takes as long with a full cache as with an empty one."""

import time

from . import host
from .measure import Row, Samples, reader
from .mounts import Dctffs

TITLE = 'remount: start with a full cache'
ABOUT = '''Many small shards are cached. From the exec of `dctffs` until a cached shard has been read through the new mount: after a
clean stop, and after `kill -9` in the middle of reading; against the same start with an empty cache. The page cache is dropped
before each start, as after a reboot. The first read is checked to be right, and to come from the cache.'''

FILE_BYTES = 4096
PER_DIR = 1000


def first_read(mount, source, name):
    """Seconds from exec to the bytes; and how many bytes the source had to give for it."""
    with open(f'{source}/{name}', 'rb') as file:
        right = file.read()
    host.drop_caches()
    begin = time.monotonic()
    mount.start()
    with open(mount.path(name), 'rb') as file:
        got = file.read()
    took = time.monotonic() - begin
    if got != right:
        raise RuntimeError(f'wrong bytes in {name}')
    return took, mount.metrics()['dctf_origin_bytes_total']


def bench(work):
    wanted = work.pick(100_000, 10_000, 1_000_000)
    count = min(host.fits(wanted * 2 * FILE_BYTES, work.dir) // (2 * FILE_BYTES), host.inodes_fit(wanted, work.dir))
    names = [f'd{i // PER_DIR:04}/s{i:07}.bin' for i in range(count)]
    work.say(f'{count} files')
    source = work.dataset('source', [(name, FILE_BYTES) for name in names])
    mount = Dctffs(work, source, metadata_ttl='1h')
    empty = Dctffs(work, source, cache='cache-empty', name='dctffs-empty', metadata_ttl='1h')
    mount.start()
    work.say('fill')
    listed = work.list_file('names', names)
    filled, _ = reader(work, 'files', mount.mountpoint, listed, 8)
    cached = mount.status()['cache']
    times = Samples(clean=[], killed=[], empty=[], stop=[])
    fetched = 0
    busy = work.list_file('busy', names[:2000])
    for turn in range(work.settings.runs):
        name = names[(turn * 7919) % count]
        work.say(f'round {turn + 1}')
        times['stop'].append(mount.stop())
        took, origin = first_read(mount, source, name)
        times['clean'].append(took)
        fetched += origin
        reader(work, 'files', mount.mountpoint, busy, 4)
        mount.kill()
        took, origin = first_read(mount, source, name)
        times['killed'].append(took)
        fetched += origin
        work.remove('cache-empty')
        times['empty'].append(first_read(empty, source, name)[0])
        empty.stop()
    again = mount.metrics()['dctf_origin_bytes_total']
    reader(work, 'files', mount.mountpoint, listed, 8)
    lost = (mount.metrics()['dctf_origin_bytes_total'] - again) / (count * FILE_BYTES)
    return [
        Row('after a clean stop', times['clean'], times['empty'], 'an empty cache', 's', '< 2 s'),
        Row('after kill -9', times['killed'], times['empty'], 'an empty cache', 's', '< 5 s'),
        Row('clean stop itself', times['stop'], unit='s'),
    ], [f'{count} shards of 4 KiB in {(count + PER_DIR - 1) // PER_DIR} directories; {cached["shards"]} were in the cache, '
        f'{cached["index_bytes"] / host.MIB:.0f} MiB on disk; filled at {count / filled:.0f} shards/s.',
        f'The first reads took {fetched:.0f} bytes from the source. After the last kill {100 * (1 - lost):.2f} % of all bytes '
        'still came from the cache.']
