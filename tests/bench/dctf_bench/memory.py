# SPDX-License-Identifier: Apache-2.0
"""Memory stays inside of its budget, whatever the number of handles."""

from . import host
from .measure import Row, Samples, reader
from .mounts import Dctffs, Rclone

TITLE = 'memory: many handles'
ABOUT = '''`memory=512M`, `passthrough=off`; a thousand shards are open at once while 32 threads read 128 KiB at random places of
random handles: first with nothing cached, then again. The figure is the peak resident memory of the daemon (VmHWM). rclone gets
the same reads.'''

LIMIT = 512 * host.MIB
BLOCK = 128 * 1024
THREADS = 32


def bench(work):
    handles = 1000
    total = host.fits(work.pick(9 * host.GIB // 4, 5 * host.GIB // 4), work.dir, disk_copies=4)
    size = total // handles // 4096 * 4096
    names = [f'd{i % 10}/s{i:04}.bin' for i in range(handles)]
    source = work.dataset('source', [(name, size) for name in names])
    listed = work.list_file('names', names)
    reads = 2 * total // BLOCK
    samples = Samples((what, []) for what in ('dctffs', 'rclone', 'dctffs again', 'rclone again'))
    rates = Samples((name, []) for name in samples)
    runs = min(work.settings.runs, 3)
    for _ in range(runs):
        for name in ('dctffs', 'rclone'):
            work.say(name)
            mount = Dctffs(work, source, memory='512M', passthrough='off') if name == 'dctffs' else Rclone(work, source)
            work.remove(mount.cache)
            mount.start()
            for what in (name, name + ' again'):
                host.drop_caches()
                seconds, got = reader(work, 'handles', mount.mountpoint, listed, THREADS, reads, BLOCK)
                samples[what].append(host.status_kib(mount.pid, 'VmHWM') / host.MIB)
                rates[what].append(got / seconds / host.MIB)
            mount.stop()
            work.remove(mount.cache)
    results = []
    for suffix, what in (('', 'nothing cached'), (' again', 'after reading again')):
        results.append(Row(f'peak memory, {what}', samples['dctffs' + suffix], samples['rclone' + suffix], 'rclone',
                           'MiB', '≤ 576 MiB'))
        results.append(Row(f'rate, {what}', rates['dctffs' + suffix], rates['rclone' + suffix], 'rclone', 'MiB/s'))
    return results, [f'{handles} shards of {size / host.MIB:.2f} MiB ({total / host.GIB:.2f} GiB), {reads} reads of 128 KiB '
                     f'per phase, {runs} runs.']
