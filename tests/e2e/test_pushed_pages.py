#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pages of small warm shards come with the answer to the open, without a read request, or are read
before that comes: right bytes, also while the shard changes and while many open it at once."""

import os

from dctf_e2e import *

SIZES = (1, 4095, 4096, 4097, 65536, 100000, 131072)


def _names(place):
    names = []
    for i, size in enumerate(SIZES):
        name = f'feature/shard-{i}.bin'
        write_file(os.path.join(place.source, name), bytes_of(name, size))
        names.append(name)
    return names


def _forget(mount):
    """Make the kernel let go of names, inodes and pages."""
    os.sync()
    with open('/proc/sys/vm/drop_caches', 'w') as file:
        file.write('3')
    wait_until(lambda: mount.metric('dctf_fs_inodes') <= 2, 20, 'the kernel forgets')


def _read_all(mount, names):
    for name in names:
        size = os.stat(mount.path(name)).st_size
        assert_same(read_all(mount.path(name)), bytes_of(name, size), name)


def test_read_without_a_request(place):
    names = _names(place)
    with Mount(place) as mount:
        _read_all(mount, names)
        wait_until(lambda: mount.tool_status()['cache']['shards'] == len(names), 20, 'all are kept')
        _forget(mount)
        before = mount.metric('dctf_reads_total')
        for name in names:  # all at once: opened each after its look-up they would be read early
            os.stat(mount.path(name))
        _read_all(mount, names)
        asked = mount.metric('dctf_reads_total') - before
        assert asked <= 1, f'{asked} read requests'  # an inode may outlive its forget by a moment
        _read_all(mount, names)
        assert mount.origin_bytes() == sum(SIZES)


def test_read_early_what_is_opened_in_turn(place):
    """Looked up, opened and read one after the other: answered from what was read meanwhile, in pieces too."""
    names = [f'feature/turn-{i:02}.bin' for i in range(40)]
    for name in names:
        write_file(os.path.join(place.source, name), bytes_of(name, 100000))
    with Mount(place) as mount:
        for piece in (100000, 5000):
            for name in names:
                with open(mount.path(name), 'rb', buffering=0) as file:
                    data = b''.join(iter(lambda file=file: file.read(piece), b''))
                assert_same(data, bytes_of(name, 100000), name)
            wait_until(lambda: mount.tool_status()['cache']['shards'] == len(names), 20, 'all are kept')
            _forget(mount)
        before = mount.metric('dctf_read_bytes_total', **{'from': 'warm'})
        for name in names:
            assert_same(read_all(mount.path(name)), bytes_of(name, 100000), name)
        read = mount.metric('dctf_read_bytes_total', **{'from': 'warm'}) - before
        assert read == len(names) * 100000, read  # each once
        for name in names:  # the kernel has them: nothing is read again
            assert_same(read_all(mount.path(name)), bytes_of(name, 100000), name)
        assert mount.metric('dctf_read_bytes_total', **{'from': 'warm'}) - before == read
        assert mount.origin_bytes() == len(names) * 100000


def test_ask_again_when_pages_were_dropped(place):
    names = _names(place)
    with Mount(place) as mount:
        _read_all(mount, names)
        for _ in range(3):
            for name in names:
                drop_pages(mount.path(name))
            _read_all(mount, names)


def test_open_from_many_at_once(place):
    names = _names(place)

    def read(n):
        name = names[n % len(names)]
        size = SIZES[n % len(names)]
        assert_same(read_all(mount.path(name)), bytes_of(name, size), name)
    with Mount(place) as mount:
        _read_all(mount, names)
        with Load(read, 6) as load:
            for _ in range(5):
                with open('/proc/sys/vm/drop_caches', 'w') as file:
                    file.write('3')
                load.check()
            wait_until(lambda: load.steps() > 200 / FACTOR, 60, 'readers get on')
        assert mount.metric('dctf_reads_waiting') == 0


def test_open_in_turn_while_evicted(place):
    """Shards opened one after the other are read before their open arrives; they may be gone by then."""
    names = [f'feature/turn-{i:02}.bin' for i in range(40)]
    for name in names:
        write_file(os.path.join(place.source, name), bytes_of(name, 65536))

    def read(n):
        name = names[n % len(names)]
        assert_same(read_all(mount.path(name)), bytes_of(name, 65536), name)
    with Mount(place) as mount:
        with Load(read, 1) as load:
            for n in range(20):
                steps = load.steps()
                wait_until(lambda: load.steps() > steps + len(names), 60, 'the reader gets on')
                if n % 4 == 3:
                    mount.ask('evict', path='')
                with open('/proc/sys/vm/drop_caches', 'w') as file:
                    file.write('3')
                load.check()
        assert mount.metric('dctf_reads_waiting') == 0


def test_show_new_version(place):
    name = 'feature/shard.bin'
    path = os.path.join(place.source, name)
    with Mount(place) as mount:
        for version in range(1, 6):
            write_file(path, stamp(version, 65536))
            mount.sync()
            for _ in range(3):
                assert stamps_of(read_all(mount.path(name))) == {version}


if __name__ == '__main__':
    main(globals())
