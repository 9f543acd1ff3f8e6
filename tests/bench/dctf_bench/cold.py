# SPDX-License-Identifier: Apache-2.0
"""First contact: nothing is cached."""

from . import host, small
from .measure import Row, alternate, fio, reader, rows
from .mounts import Dctffs, Fuse, Rclone

TITLE = 'cold: the first read'
ABOUT = '''Nothing is cached: before each run the mounts start with an empty cache and the page cache is dropped. The source is a
directory on the same disk, so these are the costs of fetching, checking and keeping, not of a network. The plain FUSE server
keeps nothing. "Source bytes" are what dctffs fetched, against the size of what was read.'''

SHARD = 'shard.bin'


class Cold:
    """Contestants that forget everything before each run."""

    def __init__(self, work, source):
        self.work, self.source = work, source
        self.mounts = {'dctffs': Dctffs(work, source), 'rclone': Rclone(work, source),
                       'plain FUSE': Fuse(work, source)}
        self.fetched = []

    def run(self, name, read):
        """`read` gets a directory and returns a rate."""
        mount = self.mounts.get(name)
        if not mount:
            host.drop_caches()
            return read(self.source)
        if name != 'plain FUSE':
            self.work.remove(mount.cache)
        mount.start()
        host.drop_caches()
        rate = read(mount.mountpoint)
        if name == 'dctffs':
            self.fetched.append(mount.metrics()['dctf_origin_bytes_total'])
        mount.stop()
        return rate

    def compare(self, read):
        self.fetched = []
        names = ['dctffs', 'native', 'rclone', 'plain FUSE']
        return alternate(self.work.settings.runs, {name: lambda name=name: self.run(name, read) for name in names})


def bench(work):
    size = host.fits(work.pick(host.GIB, 256 * host.MIB), work.dir)
    cold = Cold(work, work.dataset('large', [(SHARD, size)]))
    work.say('sequential')
    samples = cold.compare(lambda place: fio(f'{place}/{SHARD}', 'read', '1M', size) / host.GIB)
    what = f'{size / host.GIB:g} GiB shard, sequential 1 MiB'
    results = rows(samples, what, 'GiB/s', {'rclone': '≥ 1'})
    results.append(Row(f'{what}: source bytes', [n / host.GIB for n in cold.fetched],
                       [size / host.GIB] * len(cold.fetched), 'its size', 'GiB', '≤ 1.1'))
    work.remove('large')

    count = work.pick(10000, 1000)
    names = [f'f{i:06}.bin' for i in range(host.fits(count * small.FILE_BYTES, work.dir) // small.FILE_BYTES)]
    cold = Cold(work, work.dataset('small', [(name, small.FILE_BYTES) for name in names]))
    total = len(names) * small.FILE_BYTES
    for order, ordered in small.orders(names).items():
        work.say(f'small {order}')
        listed = work.list_file('names.' + order, ordered)
        samples = cold.compare(lambda place, listed=listed: len(names) / reader(work, 'files', place, listed, 1)[0])
        what = f'{len(names)} × 64 KiB, {order}'
        results += rows(samples, what, 'files/s', {'rclone': '≥ 1'})
        results.append(Row(f'{what}: source bytes', [n / host.MIB for n in cold.fetched],
                           [total / host.MIB] * len(cold.fetched), 'their size', 'MiB', '≤ 1.1'))
    return results, []
