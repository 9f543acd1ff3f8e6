#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Large directories and large trees: quick, listed once, and not held in memory."""

import ctypes
import os
import subprocess
import time

from dctf_e2e import *

MIB = 1024 * 1024
COUNT = 1_000_000 if LONG else scaled(100_000, 20_000)


def _fill(path, count, prefix='entry'):
    """Empty files, quickly: hard links to a few, as many as a filesystem allows."""
    os.makedirs(path)
    at = os.open(path, os.O_DIRECTORY)
    first = None
    for i in range(count):
        name = f'{prefix}-{i:07}.bin'
        if i % 50000 == 0:
            first = name
            os.close(os.open(name, os.O_CREAT | os.O_WRONLY, dir_fd=at))
        else:
            os.link(first, name, src_dir_fd=at, dst_dir_fd=at)
    os.close(at)


def _lists(mount):
    return mount.metric('dctf_origin_requests_total', op='list')


def _forget_names():
    """The kernel lets go of names and inodes that nobody uses."""
    with open('/proc/sys/vm/drop_caches', 'w') as file:
        file.write('2')


def test_list_large_directory(place):
    _fill(os.path.join(place.source, 'big'), COUNT)
    with Mount(place) as mount:
        start = time.monotonic()
        names = [entry.name for entry in os.scandir(mount.path('big'))]
        took = time.monotonic() - start
        print(f'     {took:.1f} s to list {COUNT} entries')
        assert len(names) == COUNT and len(set(names)) == COUNT
        assert names == sorted(names), 'in byte order'
        assert took < limit(COUNT / 10_000), f'{took:.1f} s for {COUNT} entries'
        assert _lists(mount) <= 2
        # From the listing that is here now, with attributes, and one by one.
        start = time.monotonic()
        done = subprocess.run(['ls', '-lU', mount.path('big')], capture_output=True, check=True,
                              timeout=limit(COUNT / 2000))
        took = time.monotonic() - start
        print(f'     {took:.1f} s for ls -l')
        assert done.stdout.count(b'\n') == COUNT + 1
        assert took < limit(COUNT / 5000), f'ls -l: {took:.1f} s for {COUNT} entries'
        for i in range(0, COUNT, COUNT // 100):
            os.stat(mount.path(f'big/entry-{i:07}.bin'))
        assert _lists(mount) <= 2, 'one listing for all'


def test_seek_in_large_directory(place):
    """Any place of a large directory is reached at once."""
    count = COUNT // 4
    _fill(os.path.join(place.source, 'big'), count)
    with Mount(place) as mount:
        assert len(os.listdir(mount.path('big'))) == count
        fd = os.open(mount.path('big'), os.O_DIRECTORY)
        libc = ctypes.CDLL(None, use_errno=True)
        libc.syscall.restype = ctypes.c_long
        buffer = ctypes.create_string_buffer(4096)

        def first_at(offset):
            """d_off, name of the first entry from an offset on (getdents64)."""
            os.lseek(fd, offset, os.SEEK_SET)
            n = libc.syscall(217, fd, buffer, 4096)
            assert n >= 0, os.strerror(ctypes.get_errno())
            return n, buffer.raw[19:buffer.raw.index(b'\0', 19)].decode() if n else ''
        offsets = [2 + i for i in range(0, count, max(1, count // 200))]
        with within(3, 'seeking'):
            for offset in offsets[::-1] + offsets[::7]:
                n, name = first_at(offset)
                assert n > 0 and name == f'entry-{offset - 2:07}.bin', (offset, name)
        assert first_at(count + 2)[0] == 0
        assert first_at(count + 1000)[0] == 0
        os.close(fd)


def test_walk_tree_with_one_listing_each(place):
    """`ls -lR` and `find`: as many listings as directories, no other request."""
    directories = 1
    for i in range(20):
        for j in range(5):
            make_tree(place.source, {f'd{i}/e{j}/f{k}': 100 for k in range(20)})
        directories += 6
    script = Script(place, place.source)
    with Mount(place, script.url) as mount:
        for command in (['ls', '-lR', mount.point], ['find', mount.point, '-type', 'f', '-size', '+0'],
                        ['du', '-s', mount.point]):
            done = subprocess.run(command, capture_output=True, check=True, timeout=limit(30))
            assert done.stdout.count(b'f19') == 100 or command[0] == 'du'
            stats = script.stats()
            # The check at the start may list the root, too.
            assert directories <= stats['list'] <= directories + 1, (command, stats['list'], directories)
            assert stats['head'] == 0 and stats['get'] == 0
        _forget_names()
        subprocess.run(['ls', '-lR', mount.point], capture_output=True, check=True, timeout=limit(30))
        assert script.stats()['list'] <= directories + 1
    with Mount(place, script.url) as mount:
        subprocess.run(['ls', '-lR', mount.point], capture_output=True, check=True, timeout=limit(30))
        assert script.stats()['list'] <= 1, 'listings outlive the mount while they are trusted'


def test_look_up_absent_names_without_origin(place):
    make_shards(place.source, 10, 100)
    script = Script(place, place.source)
    with Mount(place, script.url) as mount:
        os.listdir(mount.path('feature'))
        before = script.stats()
        for i in range(200):
            assert not os.path.exists(mount.path(f'feature/absent-{i}'))
            assert not os.path.exists(mount.path(f'absent-{i}/x'))
        after = script.stats()
        assert (before['list'], before['head']) == (after['list'], after['head'])


def test_list_once_for_many(place):
    """Everybody waits for the same listing."""
    _fill(os.path.join(place.source, 'dir'), 1000)
    script = Script(place, place.source)
    with Mount(place, script.url) as mount:
        os.listdir(mount.point)
        before = script.stats()['list']
        script.set({'op': 'list', 'delay_ms': 300})
        children = [Child(lambda: len(os.listdir(mount.path('dir')))) for _ in range(20)]
        for child in children:
            assert child.result(20) == 1000
        assert script.stats()['list'] == before + 1


def test_forget_what_was_walked(place):
    """Memory after a walk over many names is that of before: they are in the database."""
    count = COUNT // 2
    for i in range(10):
        _fill(os.path.join(place.source, f'part-{i}'), count // 10)
    with Mount(place, memory='64M') as mount:
        os.listdir(mount.path('part-0'))
        _forget_names()
        before = mount.rss()
        for _ in range(2):
            done = subprocess.run(['find', mount.point, '-type', 'f', '-newer', '/proc/1', '-o', '-size', '+9'],
                                  capture_output=True, timeout=limit(count / 1000), check=True)
            assert not done.stderr
            subprocess.run(['ls', '-lRU', mount.point], stdout=subprocess.DEVNULL, check=True,
                           timeout=limit(count / 1000))
        walked = mount.metric('dctf_fs_inodes')

        def forgotten():
            _forget_names()
            return mount.metric('dctf_fs_inodes') < 1000
        wait_until(forgotten, 20, 'the kernel lets go of the inodes')
        after = mount.rss()
        print(f'     RSS before {before / MIB:.0f} MiB, after {after / MIB:.0f} MiB, {walked:.0f} inodes held')
        if not SANITIZER:
            assert after < before + 48 * MIB + count * 40, f'{after / MIB:.0f} MiB, before {before / MIB:.0f}'


if __name__ == '__main__':
    main(globals())
