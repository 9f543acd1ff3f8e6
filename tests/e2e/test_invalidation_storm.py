#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`dctf sync --force` over and over while everything is read and listed: nothing stands still."""

import errno
import mmap
import os
import random
import time

from dctf_e2e import *

KIB, MIB = 1024, 1024 * 1024
SECONDS = 60 if LONG else 8


def _raise(error):
    raise error


def _walk(n, mount, names, mapping):
    dice = random.Random(n)
    kind = dice.randrange(6)
    name = dice.choice(names)
    path = mount.path(name)
    try:
        if kind == 0:
            found = [name for _, _, part in os.walk(mount.point, onerror=_raise) for name in part]
            assert len([name for name in found if not name.endswith('.new')]) == len(names)
        elif kind == 1:
            assert len(os.listdir(mount.path('d0'))) >= 10
        elif kind == 2:
            os.stat(path)
        elif kind == 3 and mapping:
            with open(path, 'rb') as file:
                with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                    stamps_of(mapped[:8192])
        else:
            with open(path, 'rb') as file:
                versions = stamps_of(file.read())
                assert len(versions) == 1, versions
    except OSError as error:
        assert error.errno == errno.ESTALE, errno.errorcode[error.errno]


def _storm(place, change, mapping, files=40):
    names = [f'd{i % 4}/shard-{i:02}.bin' for i in range(files)]
    for name in names:
        write_file(os.path.join(place.source, name), stamp(1, 200 * KIB + 4096))
    with Mount(place) as mount:
        pulse, steps, syncs = time.monotonic(), 0, 0
        end = pulse + SECONDS
        with Load(lambda n: _walk(n, mount, names, mapping), 4) as load:
            while time.monotonic() < end:
                load.check()
                change(names, syncs)
                mount.ask('sync', 10, path='', force=True)
                syncs += 1
                # The watchdog: somebody gets something done every moment.
                now = load.steps()
                if now > steps:
                    steps, pulse = now, time.monotonic()
                assert time.monotonic() - pulse < limit(5), 'nobody gets anything done'
        print(f'     {syncs} syncs, {load.steps()} steps')
        assert syncs > 10
        assert mount.metric('dctf_fs_notifications_total') > 0
        wait_until(lambda: mount.metric('dctf_reads_waiting') == 0, 10, 'no read waits')
        assert_same_tree(mount.point, place.source)


def test_survive_sync_storm(place):
    _storm(place, lambda names, n: None, mapping=True)


def test_survive_overwrite_storm(place):
    """The same while shards are replaced."""
    dice = random.Random(seed())

    def change(names, n):
        name = dice.choice(names)
        write_file(os.path.join(place.source, name), stamp(n + 2, 200 * KIB + 4096))
    _storm(place, change, mapping=False)  # a mapping of a gone version is SIGBUS


def test_leave_during_sync_storm(place):
    """Unmounting while notifications are under way does not hang."""
    names = make_shards(place.source, 500, 100)
    for background in (False, True, False):
        with Mount(place, background=background) as mount:
            for name in names:
                os.stat(mount.path(name))
            for _ in range(20):
                mount.sync()
            with within(10, 'unmounting'):
                mount.terminate()


if __name__ == '__main__':
    main(globals())
