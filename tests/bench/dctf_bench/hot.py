# SPDX-License-Identifier: Apache-2.0
"""Passthrough: a whole, verified shard, read by the kernel."""

from . import host
from .measure import Row, alternate, fio
from .mounts import Dctffs
from .work import same_bytes

TITLE = 'hot: passthrough'
ABOUT = '''One shard, wholly cached and verified, is read through the mount and, in turn, straight from the very file in the
cache that lies behind it. Passthrough is checked: every open was counted as hot and the daemon answered no read. "From disk"
drops the page cache before each run.'''

SHARD = 'shard.bin'


def make_hot(mount, source):
    same_bytes(source, mount.mountpoint, [SHARD])
    if not mount.status()['passthrough']['active']:
        raise RuntimeError('passthrough is ' + mount.status()['passthrough']['reason'])
    host.wait_for(lambda: mount.tier(SHARD) == 'hot', 60, 'the shard does not become hot')


def bench(work):
    size = host.fits(work.pick(host.GIB, 256 * host.MIB), work.dir, disk_copies=2, memory_copies=2)
    source = work.dataset('source', [(SHARD, size)])
    mount = Dctffs(work, source)
    mount.start()
    make_hot(mount, source)
    places = {'dctffs': mount.path(SHARD), 'the backing file': mount.backing_file()}
    before = mount.metrics()
    sequential = {'kind': 'read', 'block': '1M', 'size': size}
    at_random = {'kind': 'randread', 'block': '128k', 'size': size, 'jobs': 4}
    patterns = [
        ('sequential 1 MiB, from disk', True, sequential),
        ('random 128 KiB × 4 readers, from disk', True, at_random),
        ('sequential 1 MiB, from page cache', False, {**sequential, 'loops': 4}),
        ('random 128 KiB × 4 readers, from page cache', False, {**at_random, 'loops': 4}),
    ]
    results = []
    for what, cold, pattern in patterns:
        work.say(what)

        def one(path, cold=cold, pattern=pattern):
            if cold:
                host.drop_caches()
            return fio(path, **pattern) / host.GIB

        if not cold:
            fio(places['dctffs'], **sequential)
        samples = alternate(work.settings.runs, {name: lambda path=path: one(path) for name, path in places.items()})
        results.append(Row(what, samples['dctffs'], samples['the backing file'], 'the backing file', 'GiB/s', '≥ 0.9'))
    after = mount.metrics()
    served = after['dctf_read_bytes_total'] - before['dctf_read_bytes_total']
    opens = {tier: after[f'dctf_opens_total{{tier="{tier}"}}'] - before[f'dctf_opens_total{{tier="{tier}"}}']
             for tier in ('hot', 'warm', 'cold')}
    if served or not opens['hot'] or opens['warm'] or opens['cold']:
        raise RuntimeError(f'not passed through: opens {opens}, {served:.0f} bytes by the daemon')
    return results, [f'{size / host.GIB:g} GiB; {opens["hot"]:.0f} opens hot, none otherwise; 0 bytes answered by the '
                     'daemon.']
