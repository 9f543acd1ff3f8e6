#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whole, verified shards are read by the kernel itself; what is not sure is not."""

import mmap
import os
import random
import time

from dctf_e2e import *

MIB = 1024 * 1024
SIZE = 3 * MIB + 777


def _require(mount):
    status = mount.tool_status()['passthrough']
    if not status['active']:
        mount.unmount()
        skip('no passthrough here: ' + status['reason'])


def _hot(mount):
    return mount.metric('dctf_opens_total', tier='hot')


def _complete(mount, names):
    for name in names:
        wait_until(lambda: os.getxattr(mount.path(name), 'user.dctf.present') == b'%d' % SIZE, 10,
                   f'{name} is whole')


def test_pass_through_what_is_verified(place):
    names = make_shards(place.source, 4, SIZE)
    with Mount(place, scrub='off', readahead_shards=0) as mount:
        _require(mount)
        for name in names:
            assert_same(read_all(mount.path(name)), bytes_of(name, SIZE))
        assert _hot(mount) == 0
        _complete(mount, names)
        reads = mount.metric('dctf_reads_total')
        for name in names:
            drop_pages(mount.path(name))  # an open, too
            assert os.getxattr(mount.path(name), 'user.dctf.tier') == b'hot'
            assert_same(read_all(mount.path(name)), bytes_of(name, SIZE))
        assert _hot(mount) == 2 * len(names)
        assert mount.metric('dctf_reads_total') == reads, 'the daemon has no part in it'
        assert mount.tool_status()['cache']['verified_shards'] == len(names)


def test_verify_first_after_remount(place):
    """What lay on disk while nobody looked is read by the daemon first."""
    names = make_shards(place.source, 4, SIZE)
    with Mount(place, scrub='off') as mount:
        _require(mount)
        for name in names:
            read_all(mount.path(name))
        _complete(mount, names)
    with Mount(place, scrub='off') as mount:
        for name in names:
            assert os.getxattr(mount.path(name), 'user.dctf.tier') == b'warm'
            assert_same(read_all(mount.path(name)), bytes_of(name, SIZE))
        assert _hot(mount) == 0 and mount.metric('dctf_opens_total', tier='warm') == len(names)
        for name in names:
            assert_same(read_all(mount.path(name)), bytes_of(name, SIZE))
        assert _hot(mount) == len(names)
        assert mount.origin_bytes() == 0
    with Mount(place, scrub='on') as mount:
        wait_until(lambda: mount.tool_status()['cache']['verified_shards'] == len(names), 30, 'all are scrubbed')
        for name in names:
            assert_same(read_all(mount.path(name)), bytes_of(name, SIZE))
        assert _hot(mount) == len(names)


def test_serve_without_passthrough(place):
    names = make_shards(place.source, 3, SIZE)
    with Mount(place, passthrough='off') as mount:
        for _ in range(3):
            for name in names:
                drop_pages(mount.path(name))
                assert_same(read_all(mount.path(name)), bytes_of(name, SIZE))
        assert _hot(mount) == 0
        status = mount.tool_status()['passthrough']
        assert not status['active'] and 'off' in status['reason']
        assert 'off' in mount.dctf('status', mount.point)


def test_tell_that_it_is_on(place):
    make_shards(place.source, 1, SIZE)
    with Mount(place) as mount:
        _require(mount)
        assert mount.tool_status()['passthrough'] == {'active': True, 'reason': 'on'}
        assert 'passthrough' in mount.dctf('status', mount.point)


def test_evict_while_passed_through(place):
    """An open shard stays; everything else may go."""
    names = make_shards(place.source, 4, SIZE)
    with Mount(place) as mount:
        _require(mount)
        for name in names:
            read_all(mount.path(name))
        _complete(mount, names)
        with open(mount.path(names[0]), 'rb') as file:
            evicted = mount.ask('evict', path='')
            assert evicted['busy'] == 1 and evicted['shards'] == 3, evicted
            drop_pages(mount.path(names[0]))
            assert_same(file.read(), bytes_of(names[0], SIZE))
        wait_until(lambda: mount.metric('dctf_fs_handles') == 0, 10, 'the daemon was told of the close')
        assert mount.ask('evict', path='')['busy'] == 0
        assert_same_tree(mount.point, place.source)


def test_keep_cap_while_passed_through(place):
    """A cache full of open shards: others are served without being kept."""
    names = make_shards(place.source, 20, SIZE)
    with Mount(place, cache_size='24M') as mount:
        _require(mount)
        held = []
        for name in names:
            read_all(mount.path(name))
            if os.getxattr(mount.path(name), 'user.dctf.tier') == b'hot':
                held.append((name, open(mount.path(name), 'rb')))
        for _ in range(2):
            for name in names:
                assert_same(read_all(mount.path(name)), bytes_of(name, SIZE))
        for name, file in held:
            assert_same(file.read(), bytes_of(name, SIZE))
            file.close()
        assert place.used_bytes(place.cache) <= 24 * MIB


def test_change_tier_between_opens(place):
    """From the source, through the daemon and by passthrough, with opens that overlap in every
    order: the kernel refuses to mix them on one inode (EIO), so nobody may try."""
    names = make_shards(place.source, 3, SIZE)
    dice_seed = seed()
    with Mount(place) as mount:
        _require(mount)

        def step(n):
            dice = random.Random(f'{dice_seed}:{n}')
            name = dice.choice(names)
            data = bytes_of(name, SIZE)
            path = mount.path(name)
            files = []
            for _ in range(dice.randrange(1, 6)):
                files.append(open(path, 'rb', buffering=0))
                at = dice.randrange(SIZE)
                length = dice.choice((1, 4096, 300000))
                kind = dice.randrange(3)
                if kind == 0:
                    got = os.pread(files[-1].fileno(), length, at)
                elif kind == 1:
                    with mmap.mmap(files[-1].fileno(), 0, prot=mmap.PROT_READ) as mapped:
                        got = mapped[at:at + length]
                else:
                    got = os.pread(dice.choice(files).fileno(), length, at)
                assert_same(got, data[at:at + length], name)
                if dice.random() < 0.4:
                    files.pop(dice.randrange(len(files))).close()
            for file in files:
                file.close()
        end = time.monotonic() + 6
        with Load(step, 4) as load:
            while time.monotonic() < end:
                load.check()
                time.sleep(random.choice((0.02, 0.2, 0.5)))
                mount.ask('evict', path='')
            assert load.steps() > 20
        hot, cold = _hot(mount), mount.metric('dctf_opens_total', tier='cold')
        print(f'     {load.steps()} steps; {hot:.0f} opens hot, {cold:.0f} cold')
        assert cold > 0
        wait_until(lambda: mount.metric('dctf_fs_handles') == 0, 10, 'no handle is open')
        assert mount.ask('evict', path='')['busy'] == 0, 'nothing stays pinned'


def test_read_first_open_to_its_end(place):
    """An inode opened while its shard came in stays with the daemon until its last close; then it
    is passed through."""
    name = make_shards(place.source, 1, SIZE)[0]
    with Mount(place) as mount:
        _require(mount)
        first = open(mount.path(name), 'rb')
        assert_same(first.read(1000), bytes_of(name, SIZE)[:1000])
        assert_same(read_all(mount.path(name)), bytes_of(name, SIZE))
        _complete(mount, [name])
        with open(mount.path(name), 'rb') as second:
            assert_same(second.read(), bytes_of(name, SIZE))
        assert _hot(mount) == 0
        assert_same(first.read(), bytes_of(name, SIZE)[1000:])
        first.close()
        wait_until(lambda: mount.metric('dctf_fs_handles') == 0, 10, 'no handle is open')
        assert_same(read_all(mount.path(name)), bytes_of(name, SIZE))
        assert _hot(mount) == 1


if __name__ == '__main__':
    main(globals())
