#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How much the source is asked for: small shards, random reads, sequential reads, read-ahead."""

import mmap
import os
import random
import time

from dctf_e2e import *

KIB, MIB = 1024, 1024 * 1024
BLOCK = 256 * KIB


def test_read_many_small_shards(place):
    """Small shards travel whole and once, and those that follow come ahead."""
    count, size = (10000 if LONG else scaled(1500, 300)), 64 * KIB
    names = [f'part-{i % 4}/shard-{i:05}' for i in range(count)]
    for name in names:
        write_file(os.path.join(place.source, name), bytes_of(name, 100) + bytes(size - 100))
    script = Script(place, place.source)
    with Mount(place, script.url) as mount:
        start = time.monotonic()
        for part in range(4):
            for name in names[part::4]:
                data = read_all(mount.path(name))
                assert data[:100] == bytes_of(name, 100) and len(data) == size
        took = time.monotonic() - start
        print(f'     {count} shards in {took:.1f} s')
        stats = script.stats()
        assert stats['bytes'] <= 1.02 * count * size, f"{stats['bytes']} bytes for {count * size}"
        assert stats['get'] <= 1.02 * count
        assert mount.metric('dctf_prefetch_bytes_total') > 0.5 * count * size, 'they come ahead'
    with Mount(place, script.url) as mount:
        for name in names:
            assert read_all(mount.path(name))[:100] == bytes_of(name, 100)
        assert script.stats()['bytes'] == 0


def test_fetch_small_shards_ahead_of_slow_source(place):
    """With a source that takes its time, reading in order overlaps the waits."""
    count = 100
    names = make_shards(place.source, count, 20000)
    script = Script(place, place.source)
    script.set({'op': 'get', 'delay_ms': 30})
    with Mount(place, script.url) as mount:
        start = time.monotonic()
        for name in names:
            assert_same(read_all(mount.path(name)), bytes_of(name, 20000))
        took = time.monotonic() - start
        print(f'     {took:.1f} s for {count} shards at 30 ms each')
        assert took < limit(count * 0.030 * 0.6), 'one after the other would take 3 s'


def test_read_randomly(place):
    """A random 4 KiB read costs its block, and that once."""
    size, reads = 64 * MIB, 150
    write_file(os.path.join(place.source, 'big.bin'), stamp(1, size))
    script = Script(place, place.source)
    dice = random.Random(seed())
    with Mount(place, script.url, read_ahead_kb=4) as mount:
        fd = os.open(mount.path('big.bin'), os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        blocks = set()
        for _ in range(reads):
            at = dice.randrange(size // 4096) * 4096
            blocks.add(at // BLOCK)
            stamps_of(os.pread(fd, 4096, at), at)
        stats = script.gets('big.bin')
        assert stats['bytes'] <= len(blocks) * BLOCK, f"{stats['bytes'] / BLOCK} blocks for {len(blocks)}"
        assert stats['gets'] <= len(blocks)
        os.close(fd)


def test_map_randomly(place):
    """The same through a mapping, as memory-mapped arrays are read."""
    size, reads = 64 * MIB, 100
    write_file(os.path.join(place.source, 'big.bin'), stamp(1, size))
    script = Script(place, place.source)
    dice = random.Random(seed())
    with Mount(place, script.url) as mount:
        def look():
            blocks = set()
            with open(mount.path('big.bin'), 'rb') as file:
                with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                    mapped.madvise(mmap.MADV_RANDOM)
                    for _ in range(reads):
                        at = dice.randrange(size // 4096) * 4096
                        blocks.add(at // BLOCK)
                        stamps_of(mapped[at:at + 4096], at)
            return len(blocks)
        blocks = in_child(60, look)
        stats = script.gets('big.bin')
        assert stats['bytes'] <= 1.1 * blocks * BLOCK, f"{stats['bytes'] / BLOCK} blocks for {blocks}"


def test_read_sequentially(place):
    """Every byte leaves the source once, in few requests."""
    size = 96 * MIB
    write_file(os.path.join(place.source, 'big.bin'), stamp(1, size))
    script = Script(place, place.source)
    for chunk in (4 * KIB + 1, 128 * KIB, 5 * MIB):
        with Mount(place, script.url, cache=place.path(f'cache-{chunk}')) as mount:
            with open(mount.path('big.bin'), 'rb', buffering=0) as file:
                at, parts = 0, []
                while data := file.read(chunk):
                    at += len(data)
                    parts.append(data)
            assert at == size
            assert stamps_of(b''.join(parts)) == {1}
            stats = script.gets('big.bin')
            assert size <= stats['bytes'] <= 1.02 * size, f"{stats['bytes']} bytes for {size}"
            assert stats['gets'] <= 60, f"{stats['gets']} requests"


def test_read_in_whole_megabytes(place):
    """The kernel asks the daemon for large pieces; pages of 4 KiB would be 4,096 requests."""
    size = 16 * MIB
    write_file(os.path.join(place.source, 'big.bin'), stamp(1, size))
    with Mount(place, passthrough='off') as mount:
        for _ in range(2):
            drop_pages(mount.path('big.bin'))
            before = mount.metric('dctf_reads_total')
            assert stamps_of(read_all(mount.path('big.bin'))) == {1}
            requests = mount.metric('dctf_reads_total') - before
            assert requests <= 64, f'{requests:.0f} requests for 16 MiB'


def test_read_once_for_many(place):
    """Single flight: many readers of one shard fetch it once."""
    size = 24 * MIB
    write_file(os.path.join(place.source, 'big.bin'), stamp(1, size))
    script = Script(place, place.source)
    script.set({'op': 'get', 'delay_ms': 20})
    with Mount(place, script.url) as mount:
        children = [Child(lambda: stamps_of(read_all(mount.path('big.bin')))) for _ in range(8)]
        for child in children:
            assert child.result(60) == {1}
        bytes_read = script.gets('big.bin')['bytes']
        assert bytes_read <= 1.02 * size, f'{bytes_read} bytes for {size}'
        wait_until(lambda: mount.metric('dctf_reads_waiting') == 0, 10, 'no read waits')


def test_read_backwards_and_strided(place):
    size = 32 * MIB
    write_file(os.path.join(place.source, 'big.bin'), stamp(1, size))
    script = Script(place, place.source)
    with Mount(place, script.url) as mount:
        fd = os.open(mount.path('big.bin'), os.O_RDONLY)
        for at in range(size - 64 * KIB, -1, -64 * KIB):
            assert stamps_of(os.pread(fd, 64 * KIB, at), at) == {1}
        for at in range(0, size - 4096, 3 * MIB):
            assert stamps_of(os.pread(fd, 4096, at), at) == {1}
        os.close(fd)
        bytes_read = script.gets('big.bin')['bytes']
        assert bytes_read <= 1.02 * size, f'{bytes_read} bytes for {size}'


def test_fetch_shards_ahead(place):
    """Shards of a directory that is read in order are fetched ahead; read in any other order they
    are not."""
    names = make_shards(place.source, 24, MIB + 4096)
    script = Script(place, place.source)
    with Mount(place, script.url) as mount:
        for name in names[:12]:
            read_all(mount.path(name))
        wait_until(lambda: script.gets(names[12])['gets'] > 0, 10, 'the next one comes ahead')
        for name in names[12:]:
            assert_same(read_all(mount.path(name)), bytes_of(name, MIB + 4096))
        assert script.stats()['bytes'] <= 1.02 * 24 * (MIB + 4096)
    other = make_shards(place.source, 24, MIB + 4096, 'other')
    with Mount(place, script.url, cache=place.path('cache2')) as mount:
        for i in (3, 17, 9, 21, 0, 12):
            read_all(mount.path(other[i]))
        time.sleep(0.3)
        keys = [key for key in script.stats()['keys'] if key.startswith('other/')]
        assert len(keys) == 6, f'fetched without being asked: {keys}'


def test_do_not_fetch_ahead_when_told(place):
    names = make_shards(place.source, 10, 30 * KIB) + ['big.bin']
    write_file(os.path.join(place.source, 'big.bin'), stamp(1, 16 * MIB))
    script = Script(place, place.source)
    with Mount(place, script.url, readahead=0, readahead_shards=0, read_ahead_kb=4) as mount:
        for name in names[:5]:
            read_all(mount.path(name))
        read_at(mount.path('big.bin'), 0, 4096)
        time.sleep(0.3)
        stats = script.stats()
        assert stats['bytes'] == 5 * 30 * KIB + BLOCK, stats['bytes']


def test_count_heat(place):
    """What is read often is hot; the table survives a remount."""
    make_shards(place.source, 3, 1000, 'often')
    make_shards(place.source, 3, 1000, 'seldom')
    with Mount(place) as mount:
        for _ in range(20):
            read_all(mount.path('often/shard-00000.bin'))
        read_all(mount.path('seldom/shard-00000.bin'))
        features = mount.ask('heat', limit=0)['features']
        assert [f['feature'] for f in features] == ['often', 'seldom']
        assert features[0]['access_count'] == 20 and features[1]['access_count'] == 1
        assert features[0]['heat'] > features[1]['heat'] > 0
        assert b'often' in read_all(mount.path('.dctf/heat.tsv'))
    with Mount(place) as mount:
        features = mount.ask('heat', limit=0)['features']
        assert [(f['feature'], f['access_count']) for f in features] == [('often', 20), ('seldom', 1)]


def test_open_large_shards_in_order_reads_little(place):
    """A look into each of many large shards, in order, does not pull them in whole."""
    size, count = 8 * 1024 * 1024, 40
    names = make_shards(place.source, count, size, 'large')
    with Mount(place, cache_size='1G') as mount:
        for name in names:
            assert_same(read_at(mount.path(name), 4 * 1024 * 1024, 4096),
                        bytes_of(name, size)[4 * 1024 * 1024:4 * 1024 * 1024 + 4096], name)
        fetched = mount.origin_bytes()
        # A block or two for the read, and at most a megabyte ahead of it.
        assert fetched <= count * (1024 + 512) * 1024, f'{fetched / count / 1024:.0f} KiB per shard'


if __name__ == '__main__':
    main(globals())
