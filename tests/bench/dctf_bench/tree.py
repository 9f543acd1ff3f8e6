# SPDX-License-Identifier: Apache-2.0
"""Names by the million."""

import os
import subprocess
import time

from . import host
from .measure import Row, Samples
from .mounts import Dctffs

TITLE = 'tree: many names'
ABOUT = '''`find` and `ls -lR` over the mount and over the source, dentries and inodes dropped before each; `metadata_ttl=1h`. "First"
is the first look of a fresh mount with an empty cache, listing the source; then from the listings kept. Memory: growth of the
daemon's resident memory over all of it, per file, three seconds after `echo 2 > /proc/sys/vm/drop_caches`. Listings: requests to the source per
directory, over all runs.'''

PER_DIR = 1000
FILE_BYTES = 4096
SETTLE_S = 3  # for the daemon to give memory back at its leisure


def make(work, name, count, per_dir):
    """Files of a size but without bytes: they are looked at, not read."""
    root = work.path(name)
    for i in range(count):
        folder = os.path.join(root, f'd{i // per_dir:04}') if per_dir else root
        if i == 0 or (per_dir and i % per_dir == 0):
            os.makedirs(folder, exist_ok=True)
        fd = os.open(os.path.join(folder, f's{i:07}.bin'), os.O_WRONLY | os.O_CREAT, 0o644)
        os.ftruncate(fd, FILE_BYTES)
        os.close(fd)
    return root


def timed(command, place, lines):
    """Seconds; the output must have so many lines at least."""
    host.drop_caches()
    begin = time.monotonic()
    got = subprocess.run(command, cwd=place, stdout=subprocess.PIPE, check=True,
                         env={**os.environ, 'LC_ALL': 'C'}).stdout.count(b'\n')
    took = time.monotonic() - begin
    if got < lines:
        raise RuntimeError(f'{command[0]} in {place} printed {got} lines, not {lines}')
    return took


def forgotten(mount):
    """Wait until the kernel has given its names back; what the daemon still knows."""
    host.drop_caches(2)
    left = mount.metrics()['dctf_fs_inodes']
    for _ in range(100):
        time.sleep(0.1)
        now = mount.metrics()['dctf_fs_inodes']
        if now == left:
            break
        left = now
    time.sleep(SETTLE_S)
    return left


def bench_shape(work, label, count, per_dir):
    work.say(f'{label}: {count} files')
    source = make(work, 'source', count, per_dir)
    directories = 1 + ((count + per_dir - 1) // per_dir if per_dir else 0)
    mount = Dctffs(work, source, metadata_ttl='1h')
    work.remove('cache')
    mount.start()
    places = {'dctffs': mount.mountpoint, 'native': source}
    before = host.status_kib(mount.pid, 'VmRSS')
    commands = {'find -type f': ['find', '.', '-type', 'f'], 'ls -lR': ['ls', '-lR']}
    first, native = [timed(commands['find -type f'], place, count) for place in places.values()]
    results = [Row(f'{label}: first find', first, native, 'native', 's')]
    for what, command in commands.items():
        work.say(what)
        samples = Samples(dctffs=[], native=[])
        for turn in range(work.settings.runs):
            for name in (('dctffs', 'native') if turn % 2 == 0 else ('native', 'dctffs')):
                samples[name].append(timed(command, places[name], count))
        results.append(Row(f'{label}: {what}', samples['dctffs'], samples['native'], 'native', 's'))
    peak = host.status_kib(mount.pid, 'VmHWM')
    left = forgotten(mount)
    grown = host.status_kib(mount.pid, 'VmRSS') - before
    lists = mount.metrics()['dctf_origin_requests_total{op="list"}']
    results.append(Row(f'{label}: memory per file', grown / count, unit='bytes', target='≤ 200'))
    results.append(Row(f'{label}: listings of the source', lists, directories, 'directories', '', '≤ 1'))
    mount.stop()
    work.remove('cache')
    work.remove('source')
    return results, (f'{label}: {count} files in {directories} directories; resident {before / host.MIB:.0f} MiB before, '
                     f'{peak / host.MIB:.0f} at most, {(before + grown) / host.MIB:.0f} after; {left:.0f} inodes left.')


def bench(work):
    count = host.inodes_fit(work.pick(200_000, 20_000, 1_000_000), work.dir)
    results, notes = [], []
    for label, per_dir in (('one directory', 0), ('tree', PER_DIR)):
        rows, note = bench_shape(work, label, count, per_dir)
        results += rows
        notes.append(note)
    return results, notes
