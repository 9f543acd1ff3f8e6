#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Shards change while they are read: a reader sees the old bytes or the new, never both."""

import errno
import mmap
import os
import random
import signal
import time

from dctf_e2e import *

MIB = 1024 * 1024
SIZE = 4 * MIB
NAME = 'feature/shard.bin'


def _put(place, version, size=SIZE, in_place=False):
    path = os.path.join(place.source, NAME)
    if in_place:
        fd = os.open(path, os.O_WRONLY)
        os.pwrite(fd, stamp(version, size), 0)
        os.ftruncate(fd, size)
        os.close(fd)
    else:
        write_file(path, stamp(version, size))


def _mount(place, **options):
    return Mount(place, readahead=0, **options)


def _read_versions(path):
    """The versions and the length that one open, fstat and read of everything show."""
    fd = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(fd).st_size
        data = read_fully(fd, size)
        assert os.pread(fd, 10, size) == b''
    finally:
        os.close(fd)
    assert len(data) == size, f'{len(data)} bytes, fstat said {size}'
    return stamps_of(data), size


def _reads_stale(fd, offset):
    try:
        data = os.pread(fd, 65536, offset)
    except OSError as error:
        assert error.errno == errno.ESTALE, errno.errorcode[error.errno]
        return True
    raise AssertionError(f'read versions {stamps_of(data, offset)} instead of ESTALE')


def _replaced_while_open(place, replace, new_size):
    _put(place, 1)
    with _mount(place) as mount:
        path = mount.path(NAME)
        fd = os.open(path, os.O_RDONLY)
        assert stamps_of(os.pread(fd, 65536, 0)) == {1}
        replace()
        # The pinned version: what is here is still served, what is not is gone for good.
        assert stamps_of(os.pread(fd, 65536, 0)) == {1}
        assert _reads_stale(fd, 3 * MIB)
        assert os.fstat(fd).st_size == SIZE
        mount.sync()
        assert stamps_of(os.pread(fd, 65536, 0)) == {1}
        assert _reads_stale(fd, 3 * MIB)
        wait_until(lambda: os.stat(path).st_size == new_size, 10, 'the new size shows')
        assert _read_versions(path) == ({2}, new_size)
        assert _reads_stale(fd, 3 * MIB)
        os.close(fd)
        assert _read_versions(path) == ({2}, new_size)
        assert mount.metric('dctf_errors_total', code='1003') > 0


def test_overwrite_same_size(place):
    _replaced_while_open(place, lambda: _put(place, 2), SIZE)


def test_overwrite_other_size(place):
    _replaced_while_open(place, lambda: _put(place, 2, SIZE + 12345), SIZE + 12345)


def test_overwrite_shorter(place):
    _replaced_while_open(place, lambda: _put(place, 2, MIB), MIB)


def test_overwrite_in_place(place):
    _replaced_while_open(place, lambda: _put(place, 2, in_place=True), SIZE)


def test_recreate_file(place):
    def recreate():
        os.unlink(os.path.join(place.source, NAME))
        _put(place, 2)
    _replaced_while_open(place, recreate, SIZE)


def test_delete_file(place):
    _put(place, 1)
    with _mount(place) as mount:
        fd = os.open(mount.path(NAME), os.O_RDONLY)
        assert stamps_of(os.pread(fd, 65536, 0)) == {1}
        os.unlink(os.path.join(place.source, NAME))
        assert stamps_of(os.pread(fd, 65536, 0)) == {1}
        assert _reads_stale(fd, 3 * MIB)
        mount.sync()
        wait_until(lambda: not os.path.exists(mount.path(NAME)), 10, 'the name is gone')
        assert os.listdir(mount.path('feature')) == []
        assert _reads_stale(fd, 3 * MIB)
        os.close(fd)


def test_read_cached_version_whole(place):
    """A version that is wholly here is read to its end after the source went on."""
    _put(place, 1)
    with _mount(place) as mount:
        fd = os.open(mount.path(NAME), os.O_RDONLY)
        assert _read_versions(mount.path(NAME)) == ({1}, SIZE)
        wait_until(lambda: os.getxattr(mount.path(NAME), 'user.dctf.present') == str(SIZE).encode(), 10,
                   'all of it is in the cache')
        _put(place, 2)
        mount.sync()
        wait_until(lambda: _read_versions(mount.path(NAME)) == ({2}, SIZE), 10, 'the new version shows')
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert stamps_of(os.pread(fd, SIZE, 0)) == {1}
        os.close(fd)


def test_see_new_version_when_trust_is_over(place):
    _put(place, 1)
    with _mount(place, metadata_ttl='1s') as mount:
        assert _read_versions(mount.path(NAME)) == ({1}, SIZE)
        _put(place, 2)
        wait_until(lambda: _read_versions(mount.path(NAME)) == ({2}, SIZE), 10, 'the new version shows')


def test_see_new_version_after_remount(place):
    """Listings outlive the mount, but are not trusted for longer than their time."""
    _put(place, 1)
    with _mount(place) as mount:
        assert _read_versions(mount.path(NAME)) == ({1}, SIZE)
    _put(place, 2)
    with _mount(place, metadata_ttl='0') as mount:
        assert _read_versions(mount.path(NAME)) == ({2}, SIZE)
    _put(place, 3)
    with _mount(place) as mount:
        mount.sync()
        assert _read_versions(mount.path(NAME)) == ({3}, SIZE)


def test_map_while_overwritten(place):
    """A mapping shows its version or SIGBUS, never another one."""
    _put(place, 1)
    with _mount(place) as mount:
        ready, go = os.pipe(), os.pipe()

        def look():
            with open(mount.path(NAME), 'rb') as file:
                with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                    assert stamps_of(mapped[:65536]) == {1}
                    os.write(ready[1], b'.')
                    os.read(go[0], 1)
                    assert stamps_of(mapped[:65536]) == {1}
                    assert stamps_of(mapped[:]) == {1}
        with Child(look) as child:
            os.read(ready[0], 1)
            _put(place, 2)
            mount.sync()
            os.write(go[1], b'.')
            assert child.gone(20)
            assert os.WIFSIGNALED(child.status) and os.WTERMSIG(child.status) == signal.SIGBUS
        assert _read_versions(mount.path(NAME)) == ({2}, SIZE)
        for fd in (*ready, *go):
            os.close(fd)


def _storm(place, change, seconds, first=SIZE, **options):
    """Change the shard all the time while it is read; every open shows one version."""
    _put(place, 0, first)
    last = 0

    def read(n):
        try:
            versions, _ = _read_versions(mount.path(NAME))
        except OSError as error:
            assert error.errno in (errno.ESTALE, errno.ENOENT), errno.errorcode[error.errno]
            return
        assert len(versions) == 1, f'versions mixed: {versions}'
    with _mount(place, metadata_ttl='200ms', **options) as mount:
        end = time.monotonic() + seconds
        with Load(read, 3) as load:
            while time.monotonic() < end:
                load.check()
                last += 1
                change(last)
                if last % 3 == 0:
                    mount.sync()
                time.sleep(0.03)
            assert load.steps() > 3
        mount.sync()
        wait_until(lambda: _read_versions(mount.path(NAME))[0] == {last}, 10, 'the last version shows')
        assert mount.metric('dctf_reads_waiting') == 0


def test_storm_of_replacements(place):
    _storm(place, lambda v: _put(place, v), 5)


def test_storm_of_sizes(place):
    dice = random.Random(seed())
    _storm(place, lambda v: _put(place, v, dice.randrange(1, 6 * MIB)), 5)


def test_storm_of_changes_in_place(place):
    """Writers that do not replace. The kernel sets the time of a write before it copies the bytes, so the
    shard is small: while a large one is written nobody can tell how far it got (docs/keys.md)."""
    _storm(place, lambda v: _put(place, v, 16384, in_place=True), 5, first=16384)


if __name__ == '__main__':
    main(globals())
