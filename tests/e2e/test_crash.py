#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""kill -9 at any moment: every byte stays right, and what was cached stays cached."""

import errno
import os
import random
import time

from dctf_e2e import *

KIB, MIB = 1024, 1024 * 1024
ROUNDS = int(os.environ.get('DCTF_CRASH_ROUNDS') or (100 if LONG else scaled(8, 3)))
FILES = {f'small-{i % 4}/shard-{i:03}.bin': 1000 * i + 1 for i in range(160)}
FILES.update({f'large/shard-{i:02}.bin': MIB + 700 * KIB * (i % 4) + 1 for i in range(20)})


def test_survive_kills_under_load(place):
    make_tree(place.source, FILES)
    dice = random.Random(seed())
    names = list(FILES)
    originals = {name: bytes_of(name, size) for name, size in FILES.items()}
    point = place.path('mnt')

    def read(n):
        name = names[random.Random(n).randrange(len(names))]
        path = os.path.join(point, name)
        try:
            drop_pages(path)
            data = read_all(path)
        except OSError as error:
            # The mount is dead, or the next one is not there yet.
            assert error.errno in (errno.ENOTCONN, errno.ECONNABORTED, errno.ENOENT), errno.errorcode[error.errno]
            return
        assert_same(data, originals[name], name)
    with Load(read, 3) as load:
        for _ in range(ROUNDS):
            mount = Mount(place)
            time.sleep(dice.uniform(0.05, 0.8))
            load.check()
            mount.kill()
        assert load.steps() > ROUNDS, 'the readers got nothing done'
    with Mount(place) as mount:
        assert assert_same_tree(mount.point, place.source) == len(FILES)
        assert mount.metric('dctf_cache_bad_blocks_total') == 0


def _kept_over_kill(place, files, wait=0):
    make_tree(place.source, files)
    total = sum(files.values())
    mount = Mount(place)
    assert_same_tree(mount.point, place.source)
    wait_until(lambda: mount.metric('dctf_cache_written_bytes_total') >= total, 20, 'all of it is written')
    time.sleep(wait)
    mount.kill()
    start = time.monotonic()
    with Mount(place) as mount:
        took = time.monotonic() - start
        assert took < limit(3), f'{took:.1f} s to start'
        assert_same_tree(mount.point, place.source)
        again = mount.origin_bytes()
        assert again <= 0.02 * total, f'{again:.0f} of {total} bytes fetched again'
        assert mount.metric('dctf_cache_bad_blocks_total') == 0
        assert mount.tool_status()['opens']['shard_hit_rate'] > 0.95


def test_keep_large_shards_over_kill(place):
    """Nothing that the cache had told of is fetched again."""
    _kept_over_kill(place, {name: size for name, size in FILES.items() if size > MIB})


def test_keep_small_shards_over_kill(place):
    """Their bytes are not logged, but written out after a while."""
    _kept_over_kill(place, {name: size for name, size in FILES.items() if size <= MIB}, wait=8)


def test_keep_cap_over_kill(place):
    """Space is counted anew after a kill: the cap holds."""
    make_shards(place.source, 30, 2 * MIB)
    cap = 40 * MIB
    for _ in range(3):
        mount = Mount(place, cache_size=cap)
        for name in os.listdir(mount.path('feature')):
            read_all(mount.path('feature', name))
        mount.kill()
        used = place.used_bytes(place.cache)
        assert used <= cap, f'{used} bytes on disk, the cap is {cap}'
    with Mount(place, cache_size=cap) as mount:
        assert_same_tree(mount.point, place.source)
        wait_until(lambda: not mount.tool_status()['cache']['counting'], 20, 'the recount is over')
        cache = mount.tool_status()['cache']
        real = place.used_bytes(place.cache)
        assert real <= cap
        assert abs(cache['file_bytes'] - place.used_bytes(place.path('cache/shards'))) < 4 * MIB, (cache, real)


def test_start_over_dead_mount(place):
    """Nobody needs to unmount by hand: a dead mount of ours is detached; twice is fine too."""
    make_shards(place.source, 2, 1000)
    mount = Mount(place)
    mount.kill()
    try:
        os.listdir(mount.point)
        raise AssertionError('the mount should be dead')
    except OSError as error:
        assert error.errno in (errno.ENOTCONN, errno.ECONNABORTED)
    for background in (False, True, False):
        mount = Mount(place, background=background)
        assert_same_tree(mount.point, place.source)
        mount.kill()
    with Mount(place) as mount:
        assert_same_tree(mount.point, place.source)
        assert len(mounted_below(mount.point)) == 1, 'dead mounts pile up'


def test_start_with_many_shards(place):
    """The start does not look at what is cached."""
    count = 20000 if LONG else scaled(3000, 500)
    for i in range(count):
        write_file(os.path.join(place.source, f'many-{i % 10}/shard-{i:06}'), b'%06d' % i * 50)
    with Mount(place) as mount:
        assert_same_tree(mount.point, place.source)
    for _ in range(2):
        start = time.monotonic()
        mount = Mount(place)
        took = time.monotonic() - start
        assert took < limit(2), f'{took:.1f} s to start'
        assert_same_tree(mount.point, place.source)
        assert mount.origin_bytes() == 0
        mount.kill()


if __name__ == '__main__':
    main(globals())
