#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cache's disk gets full, or its cap is reached: readers never notice, and the cap holds."""

import os
import random
import threading
import time

from dctf_e2e import *

MIB = 1024 * 1024


def _read_shuffled(mount, names, dice, check=None):
    names = list(names)
    dice.shuffle(names)
    for name in names:
        drop_pages(mount.path(name))
        assert_same(read_all(mount.path(name)), bytes_of(name, os.stat(mount.path(name)).st_size), name)
        if check:
            check()


def test_keep_cap(place):
    """du(1) of the cache never exceeds cache_size, garbage included."""
    dice = random.Random(seed())
    names = make_shards(place.source, 40, 3 * MIB + 5000, 'large') + \
        make_shards(place.source, 120, 200000, 'small')
    cap = 64 * MIB
    most = [0]
    with Mount(place, cache_size=cap) as mount:
        done = threading.Event()

        def watch():
            # A walk takes time and may see an old file and, later, the new one that took its
            # place: what two walks in a row saw was there.
            before = 0
            while not done.is_set():
                now = place.used_bytes(place.cache)
                most[0] = max(most[0], min(before, now))
                before = now
                time.sleep(0.005)
        watcher = threading.Thread(target=watch)
        watcher.start()
        try:
            for _ in range(3):
                _read_shuffled(mount, names, dice)
        finally:
            done.set()
            watcher.join()
        cache = mount.tool_status()['cache']
        assert cache['file_bytes'] + cache['index_bytes'] <= cap
        assert cache['file_bytes'] > cap / 4, f'most of the cache is used: {cache}'
    most[0] = max(most[0], place.used_bytes(place.cache))
    assert most[0] <= cap, f'{most[0]} bytes on disk, the cap is {cap}'


def test_keep_lower_cap_after_remount(place):
    names = make_shards(place.source, 20, 3 * MIB)
    with Mount(place, cache_size='200M') as mount:
        assert_same_tree(mount.point, place.source)
        wait_until(lambda: mount.tool_status()['cache']['file_bytes'] >= 60 * MIB, 10, 'it is filled')
    with Mount(place, cache_size='32M') as mount:
        wait_until(lambda: place.used_bytes(place.cache) <= 32 * MIB, 15, 'it shrinks')
        _read_shuffled(mount, names, random.Random(1))
        assert place.used_bytes(place.cache) <= 32 * MIB


def test_fill_disk_from_outside(place):
    """The disk is filled to the last byte by others while the mount is read."""
    dice = random.Random(seed())
    names = make_shards(place.source, 30, 2 * MIB, 'large') + make_shards(place.source, 60, 100000, 'small')
    cache = place.filesystem('disk', 'tmpfs', '96M')
    filler = os.path.join(cache, 'filler')
    with Mount(place, cache=os.path.join(cache, 'cache')) as mount:
        mount.expect('cache|kv')
        _read_shuffled(mount, names, dice)
        with open(filler, 'wb') as file:
            try:
                while True:
                    file.write(bytes(65536))
                    file.flush()
            except OSError:
                pass
            try:
                file.close()
            except OSError:
                pass
        for _ in range(2):
            _read_shuffled(mount, names, dice)
        os.truncate(filler, 40 * MIB)
        _read_shuffled(mount, names, dice)
        os.unlink(filler)

        def keeps():
            before = mount.origin_bytes()
            _read_shuffled(mount, names[:5], dice)
            return mount.origin_bytes() == before
        wait_until(keeps, 20, 'it keeps shards again')
        assert not mount.tool_status()['cache']['bypassing']
        assert_same_tree(mount.point, place.source)
    with Mount(place, cache=os.path.join(cache, 'cache')) as mount:
        assert_same_tree(mount.point, place.source)
        assert mount.metric('dctf_cache_bad_blocks_total') == 0


def test_run_out_of_inodes(place):
    dice = random.Random(seed())
    names = make_shards(place.source, 80, MIB + 4096)
    cache = place.filesystem('disk', 'tmpfs', '300M', 'nr_inodes=70')
    with Mount(place, cache=os.path.join(cache, 'cache')) as mount:
        mount.expect('cache|kv')
        for _ in range(2):
            _read_shuffled(mount, names, dice)
        # Others take what is left.
        taken = []
        try:
            for i in range(100):
                taken.append(os.path.join(cache, f'x{i}'))
                with open(taken[-1], 'w'):
                    pass
        except OSError:
            pass
        _read_shuffled(mount, names, dice)
        for path in taken:
            if os.path.exists(path):
                os.unlink(path)
        assert_same_tree(mount.point, place.source)


def test_accept_unknown_inode_count(place):
    """Some filesystems tell 0 inodes; that is no reason to keep nothing."""
    names = make_shards(place.source, 10, 2 * MIB)
    cache = place.filesystem('disk', 'tmpfs', '100M', 'nr_inodes=0')
    assert os.statvfs(cache).f_files == 0
    with Mount(place, cache=os.path.join(cache, 'cache')) as mount:
        assert_same_tree(mount.point, place.source)
        before = mount.origin_bytes()
        _read_shuffled(mount, names, random.Random(1))
        assert mount.origin_bytes() == before


def test_leave_reserve(place):
    """cache_reserve bytes stay free for others."""
    make_shards(place.source, 40, 2 * MIB)
    cache = place.filesystem('disk', 'tmpfs', '64M')
    with Mount(place, cache=os.path.join(cache, 'cache'), cache_reserve='24M') as mount:
        assert_same_tree(mount.point, place.source)
        vfs = os.statvfs(cache)
        assert vfs.f_bavail * vfs.f_frsize >= 22 * MIB, f'{vfs.f_bavail * vfs.f_frsize} bytes left'


def test_use_disk_of_its_own(place):
    """ext4 on a loop device, full: passthrough and eviction side by side."""
    dice = random.Random(seed())
    names = make_shards(place.source, 24, 4 * MIB)
    try:
        cache = place.filesystem('disk', 'ext4', '64M', '-m 0')
    except Exception as error:
        skip(f'no loop devices: {error}')
    with Mount(place, cache=os.path.join(cache, 'cache'), cache_size='1G') as mount:
        mount.expect('cache|kv')
        for _ in range(3):
            _read_shuffled(mount, names, dice)
        assert mount.metric('dctf_opens_total', tier='hot') > 0
    with Mount(place, cache=os.path.join(cache, 'cache')) as mount:
        assert_same_tree(mount.point, place.source)
        assert mount.metric('dctf_cache_bad_blocks_total') == 0


if __name__ == '__main__':
    main(globals())
