#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fio writes shards with a checksum in every block, and verifies them through the mount: cold,
warm and passed through, in sequence and at random, by several jobs."""

import os
import shutil
import subprocess

from dctf_e2e import *

MIB = 1024 * 1024


def _fio(directory, *options):
    if not shutil.which('fio'):
        skip('fio is not installed')
    # The state of a job's blocks lies beside its files; the mount has no room for it.
    command = ['fio', '--name=shard', '--numjobs=3', '--size=24m', '--bs=64k', '--ioengine=psync',
               '--verify=crc32c', '--verify_fatal=1', '--verify_state_save=0', '--verify_pattern=0xdeadbeef',
               '--group_reporting', f'--directory={directory}', *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit(120))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_notice_one_wrong_byte(place):
    """That what follows can fail."""
    _fio(place.source, '--rw=write', '--do_verify=0')
    victim = os.path.join(place.source, sorted(os.listdir(place.source))[0])
    with open(victim, 'r+b') as file:
        file.seek(5 * MIB + 1000)
        byte = file.read(1)
        file.seek(5 * MIB + 1000)
        file.write(bytes([byte[0] ^ 1]))
    with Mount(place) as mount:
        try:
            _verify(mount)
        except AssertionError:
            return
    raise AssertionError('a flipped bit passed')


def _verify(mount, *options):
    _fio(mount.path(), '--rw=read', '--verify_only=1', '--openfiles=3', *options)


def test_verify_on_every_tier(place):
    _fio(place.source, '--rw=write', '--do_verify=0', '--end_fsync=1')
    total = sum(os.path.getsize(os.path.join(place.source, n)) for n in os.listdir(place.source))
    with Mount(place) as mount:
        _verify(mount)
        assert mount.origin_bytes() <= total * 1.02, 'each byte leaves the source once'
        wait_until(lambda: mount.tool_status()['cache']['shards'] == 3, 20, 'the shards are kept')
        fetched = mount.origin_bytes()
        _verify(mount)
        assert mount.origin_bytes() == fetched
    with Mount(place) as mount:  # from the disk, each block verified
        _verify(mount, '--direct=0')
        _verify(mount)
        assert mount.origin_bytes() == 0


def test_verify_at_random_with_a_full_cache(place):
    _fio(place.source, '--rw=write', '--do_verify=0', '--end_fsync=1')
    with Mount(place, cache_size='40M', memory='64M') as mount:
        for _ in range(2):
            _fio(mount.path(), '--rw=randread', '--verify_only=1', '--randrepeat=1')


if __name__ == '__main__':
    main(globals())
