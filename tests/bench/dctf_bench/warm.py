# SPDX-License-Identifier: Apache-2.0
"""The daemon path against the least a FUSE daemon can do."""

from . import host
from .measure import Row, Samples, alternate, fio
from .mounts import Dctffs, Fuse
from .work import same_bytes

TITLE = 'warm: the daemon path'
ABOUT = '''`passthrough=off`; one shard, wholly cached. The other side is `tests/bench/bench_fuse.c --memory`: a FUSE server that
answers straight from a copy of the file in memory, with the same request size, read-ahead and `keep_cache`. Before each run the
pages of the mount are dropped; the bytes behind it stay in the page cache (dctffs) or in memory (the other).'''

SHARD = 'shard.bin'


def bench(work):
    size = host.fits(work.pick(host.GIB, 256 * host.MIB), work.dir, disk_copies=2, memory_copies=5)
    source = work.dataset('source', [(SHARD, size)])
    ours = Dctffs(work, source, passthrough='off')
    theirs = Fuse(work, source, memory=True)
    mounts = {'dctffs': ours, 'a bare server': theirs}
    for mount in mounts.values():
        mount.start()
        same_bytes(source, mount.mountpoint, [SHARD])
    ahead = {name: host.read_ahead(mount.mountpoint) for name, mount in mounts.items()}
    if len(set(ahead.values())) != 1:
        raise RuntimeError(f'read-ahead differs: {ahead}')
    host.wait_for(lambda: ours.present(SHARD) == size, 60, 'the shard is not kept')
    host.drop_pages(ours.path(SHARD))
    fio(ours.path(SHARD), 'read', '1M', size)  # its pages are verified, and behind it everything is in the page cache
    before = ours.metrics()
    results = []
    for what, pattern, target in (
            ('sequential 1 MiB', {'kind': 'read', 'block': '1M', 'size': size}, '≥ 0.8'),
            ('random 128 KiB × 4 readers', {'kind': 'randread', 'block': '128k', 'size': size, 'jobs': 4}, '')):
        work.say(what)
        cpu = Samples((name, []) for name in mounts)

        def one(name, pattern=pattern, cpu=cpu):
            mount = mounts[name]
            host.drop_pages(mount.path(SHARD))
            start = host.cpu_seconds(mount.pid)
            rate = fio(mount.path(SHARD), invalidate=True, **pattern)
            cpu[name].append((host.cpu_seconds(mount.pid) - start) / size * host.GIB)
            return rate / host.GIB

        samples = alternate(work.settings.runs, {name: lambda name=name: one(name) for name in mounts})
        results.append(Row(what, samples['dctffs'], samples['a bare server'], 'a bare server', 'GiB/s', target))
        results.append(Row(f'{what}: CPU of the daemon', cpu['dctffs'], cpu['a bare server'], 'a bare server', 's/GiB'))
    after = ours.metrics()
    answered = (after['dctf_read_bytes_total{from="warm"}'] - before['dctf_read_bytes_total{from="warm"}']) / size
    fetched = after['dctf_origin_bytes_total'] - before['dctf_origin_bytes_total']
    return results, [f'{size / host.GIB:g} GiB, read_ahead_kb {ahead["dctffs"]}; the daemon answered {answered:.2f} times the '
                     f'shard from the cache in {2 * work.settings.runs} runs, and fetched {fetched:.0f} bytes.']
