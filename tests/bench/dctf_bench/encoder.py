# SPDX-License-Identifier: Apache-2.0
"""Whether the encoder's own choice is as good as the better of the two fixed ones."""

import os
import random
import struct

from . import host
from .measure import Row, alternate, fio
from .net import Node, Redis, Switched, seen_by, wait_for

TITLE = 'encoder: plain or LZ4 between nodes'
ABOUT = '''One node has a shard, wholly cached; another one with an empty cache reads it, 1 MiB at a time, from its first byte to its last
(`fio`). With `encoder=auto` nodes choose for each block, against the better of `encoder=off` and `encoder=lz4` in the same run. The
link is 1 Gbit/s with a queue of 20 ms (tbf), or loopback. "Features" are 32-bit floats of 16 significant bits around slowly moving
means, "random" is what does not shrink. The rates are those of the reader, so they hold everything: finding, sending, checking,
keeping.'''

CHOICES = ('auto', 'off', 'lz4')


def make_features(work, name, size):
    """Floats as models keep them: few significant bits, neighbours alike."""
    random_ = random.Random(2)
    chunk = bytearray()
    for row in range(64 * 1024 // 64):
        mean = random_.uniform(-1, 1)
        for _ in range(64):
            bits = struct.pack('<f', random_.gauss(mean, 0.05))
            chunk += b'\0\0' + bits[2:]
    path = work.path(name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, 'wb') as file:
        for part in range(size // len(chunk)):
            file.write(struct.pack('<f', part) + chunk[4:])
    return path


class Pair:
    """A node that has everything, and one that has nothing yet."""

    def __init__(self, work, source, home, far):
        self.work = work
        (where, address), (far_where, far_address) = home, far
        # By Redis, and not a list, they tell each other that only one of them serves.
        redis = Redis(work, where, address.split(':')[0])
        options = {'redis': redis.url, 'cluster': 'bench', 'settle_ms': '300ms', 'nodes': '2', 'metadata_ttl': '1h',
                   'replicate': 'off'}
        self.home = Node(work, source, 'home', where, address, **options)
        self.far = Node(work, source, 'far', far_where, far_address, serve='off', **options)

    def read(self, name, size, **options):
        """Bytes per second of the first read of a shard by the one from the other."""
        self.work.remove('cache-far')
        for node in (self.home, self.far):
            node.options.update(options)
            node.start()
        with open(self.home.path(name), 'rb', buffering=0) as file:  # checked, and from its own file from here on
            while file.read(4 * host.MIB):
                pass
        os.listdir(self.far.mountpoint)
        wait_for(lambda: int(seen_by(self.far, self.home)['rtt_us']), 'they meet')
        rate = fio(self.far.path(name), 'read', '1M', size)
        status = self.far.status()['cluster']
        if status['peer_bytes_in'] == 0 or status['origin_bytes'] > 0:
            raise RuntimeError(f'it did not come from the peer: {status}')
        self.wire = status['peer_bytes_in'] / size
        for node in (self.far, self.home):
            node.stop()
        return rate


def bench(work):
    results, notes = [], []
    size = work.pick(256, 64) * host.MIB
    source = work.dataset('source', [('random.bin', size)])
    make_features(work, 'source/features.bin', size)
    net = Switched(work)
    net.congestion('cubic')
    pairs = {'1 Gbit/s': Pair(work, source, (net.near, f'{net.near_address}:7001'), (net.far, f'{net.far_address}:7002')),
             'loopback': Pair(work, source, (net.near, '127.0.0.1:7001'), (net.near, '127.0.0.1:7002'))}
    net.shape('1gbit', 20)
    for link, pair in pairs.items():
        for kind in ('features', 'random'):
            work.say(f'{link}, {kind}')
            wire = {}

            def read(choice, pair=pair, kind=kind, wire=wire):
                rate = pair.read(f'{kind}.bin', size, encoder=choice)
                wire[choice] = pair.wire
                return rate / host.MIB

            pair.read(f'{kind}.bin', size, encoder='off')  # the home fetches it, all pages are warm
            samples = alternate(min(work.settings.runs, 3), {choice: lambda choice=choice: read(choice) for choice in CHOICES})
            best = max(('off', 'lz4'), key=samples.median)
            results.append(Row(f'{link}, {kind}', samples['auto'], samples[best], f'encoder={best}', 'MiB/s', '≥ 0.95'))
            other = 'off' if best == 'lz4' else 'lz4'
            notes.append(f'{link}, {kind}: encoder={other} {samples.median(other):.0f} MiB/s; bytes on the wire ÷ bytes read: '
                         + ', '.join(f'{choice} {wire[choice]:.2f}' for choice in CHOICES) + '.')
    return results, notes
