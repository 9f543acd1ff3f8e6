#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The source fails now and then: no wrong byte, and nothing that exists is told to be absent."""

import errno
import os
import random
import time

from dctf_e2e import *

FILES = {f'd{i % 5}/shard-{i:03}.bin': size
         for i, size in enumerate([0, 10, 5000, 262144, 300000, 1 << 20, 1500000, 3000000] * 5)}


def _mount(place, **options):
    make_tree(place.source, FILES)
    script = Script(place, place.source)
    return Mount(place, script.url, **{'metadata_ttl': '60s', **options}), script


def _code(function, *args):
    """The errno of a call, 0 when it went well."""
    try:
        function(*args)
    except OSError as error:
        return error.errno
    return 0


def _storm(place, *rules, allowed=(errno.EIO,), **options):
    """Read everything several times under the rules; returns how often it failed."""
    mount, script = _mount(place, **options)
    dice = random.Random(seed())
    failures = 0
    with mount:
        script.set(*rules, seed=dice.randrange(1 << 30))
        for _ in range(3):
            names = list(FILES)
            dice.shuffle(names)
            for name in names:
                try:
                    assert_same(read_all(mount.path(name)), bytes_of(name, FILES[name]), name)
                except OSError as error:
                    assert error.errno in allowed, errno.errorcode[error.errno]
                    failures += 1
            mount.ask('evict', path='')
            mount.sync()
            for name in names:
                drop_pages_if_here(mount.path(name))
        script.set()
        assert_same_tree(mount.point, place.source)
        wait_until(lambda: mount.metric('dctf_reads_waiting') == 0, 10, 'no read waits')
    return failures


def drop_pages_if_here(path):
    try:
        drop_pages(path)
    except OSError as error:
        assert error.errno == errno.EIO


def test_survive_one_error_in_ten(place):
    failures = _storm(place, {'op': 'get', 'p': 0.1, 'error': 'ORIGIN_IO'},
                      {'op': 'list', 'p': 0.1, 'error': 'ORIGIN_IO'})
    assert failures <= 2, f'{failures} reads failed although requests are tried again'


def test_survive_throttling(place):
    failures = _storm(place, {'p': 0.1, 'error': 'ORIGIN_THROTTLED'})
    assert failures <= 2, f'{failures} reads failed'


def test_survive_short_bodies(place):
    failures = _storm(place, {'op': 'get', 'p': 0.1, 'short': 1000}, {'op': 'get', 'p': 0.1, 'short': 0})
    assert failures <= 4, f'{failures} reads failed'


def test_fail_without_retries(place):
    failures = _storm(place, {'op': 'get', 'p': 0.3, 'error': 'ORIGIN_UNREACHABLE'}, origin_retries=0)
    assert failures > 0


def test_fail_small_shards_whole(place):
    """A small shard is fetched whole or not at all, also when read-ahead finds the fetch failed."""
    names = make_shards(place.source, 4, 1 << 20)
    originals = {name: bytes_of(name, 1 << 20) for name in names}
    script = Script(place, place.source)

    def read(n):
        name = names[n % 4]
        try:
            fd = os.open(mount.path(name), os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            for at in range(0, 1 << 20, 1 << 17):
                try:
                    data = os.pread(fd, 1 << 17, at)  # short when an error comes after some bytes
                    assert_same(data, originals[name][at:at + len(data)], name)
                except OSError as error:
                    assert error.errno == errno.EIO, errno.errorcode[error.errno]
        finally:
            os.close(fd)
    with Mount(place, script.url, origin_retries=0, read_ahead_kb=4) as mount:
        script.set({'op': 'get', 'p': 0.5, 'error': 'ORIGIN_IO'})
        end = time.monotonic() + 3
        with Load(read, 4) as load:
            while time.monotonic() < end:
                load.check()
                mount.ask('evict', path='')
        script.set()
        assert_same_tree(mount.point, place.source)


def test_survive_everything_at_once(place):
    """Errors, delays, stalls, eviction, overwriting and forced syncs, in little memory and a little
    cache: right bytes or an error."""
    dice_seed = seed()
    sizes = {f'd{i % 3}/shard-{i:02}.bin': (5000, 300000, 1 << 20, 5 << 20)[i % 4] for i in range(24)}
    for name, size in sizes.items():
        write_file(os.path.join(place.source, name), stamp(1, size // 4096 * 4096))
    names = list(sizes)
    script = Script(place, place.source)

    def read(n):
        dice = random.Random(f'{dice_seed}:{n}')
        try:
            fd = os.open(mount.path(dice.choice(names)), os.O_RDONLY)
        except OSError as error:
            assert error.errno in (errno.EIO, errno.ETIMEDOUT), errno.errorcode[error.errno]
            return
        size = os.fstat(fd).st_size
        versions = set()
        for _ in range(dice.randrange(1, 12)):
            at = dice.randrange(max(1, size // 4096)) * 4096
            if dice.random() < 0.2:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            try:
                data = os.pread(fd, dice.choice((4096, 1 << 17, 1 << 20)), at)
            except OSError as error:
                assert error.errno in (errno.EIO, errno.ETIMEDOUT, errno.ESTALE), errno.errorcode[error.errno]
                continue
            versions |= stamps_of(data[:len(data) // 4096 * 4096], at)
        os.close(fd)
        assert len(versions) <= 1, f'versions mixed: {versions}'
    with Mount(place, script.url, memory='64M', cache_size='24M', origin_retries=1, metadata_ttl='1s',
               read_deadline_ms='1s', list_deadline_ms='1s') as mount:
        dice = random.Random(dice_seed)
        end = time.monotonic() + (60 if LONG else 8)
        with Load(read, 6) as load:
            while time.monotonic() < end:
                load.check()
                script.set(*dice.sample([{'op': 'get', 'p': 0.2, 'error': 'ORIGIN_IO'}, {'p': 0.2, 'delay_ms': 20},
                                         {'op': 'get', 'p': 0.05, 'stall': True}, {'op': 'get', 'p': 0.2, 'short': 9},
                                         {'op': 'list', 'p': 0.2, 'error': 'ORIGIN_IO'}], dice.randrange(6)))
                if dice.random() < 0.5:
                    mount.ask('evict', path='')
                if dice.random() < 0.5:
                    mount.sync()
                name = dice.choice(names)
                write_file(os.path.join(place.source, name), stamp(dice.randrange(1 << 30), sizes[name] // 4096 * 4096))
                time.sleep(dice.choice((0, 0.02, 0.2)))
            steps = load.steps()
            script.set()
        print(f'     {steps} steps')
        mount.sync()
        assert_same_tree(mount.point, place.source)
        wait_until(lambda: mount.metric('dctf_reads_waiting') == 0, 10, 'no read waits')
        wait_until(lambda: mount.metric('dctf_fs_handles') == 0, 10, 'no handle is open')


def test_survive_slow_answers(place):
    assert _storm(place, {'p': 0.3, 'delay_ms': 40}, {'p': 0.1, 'delay_ms': 5, 'error': 'ORIGIN_IO'}) <= 2


def test_tell_error_not_absence(place):
    """A source that fails altogether: EIO for what exists and for what nobody can know."""
    mount, script = _mount(place)
    with mount:
        os.listdir(mount.path('d0'))
        script.set({'error': 'ORIGIN_IO'})
        assert _code(read_all, mount.path('d0/shard-005.bin')) == errno.EIO
        assert _code(os.stat, mount.path('d1/shard-001.bin')) == errno.EIO
        assert _code(os.stat, mount.path('d1/absent')) == errno.EIO
        assert _code(os.listdir, mount.path('d1')) == errno.EIO
        assert _code(os.stat, mount.path('d0/absent')) == errno.ENOENT
        assert mount.metric('dctf_errors_total', code='2001') > 0
        script.set()
        assert_same_tree(mount.point, place.source)


def test_tell_refused_access(place):
    mount, script = _mount(place)
    with mount:
        script.set({'op': 'get', 'error': 'ORIGIN_ACCESS'})
        assert _code(read_all, mount.path('d0/shard-005.bin')) == errno.EACCES
        assert mount.metric('dctf_origin_retries_total') == 0, 'it is of no use to try again'
        script.set()
        assert_same_tree(mount.point, place.source)


def test_tell_gone_version(place):
    mount, script = _mount(place)
    with mount:
        script.set({'op': 'get', 'key': 'd1/*', 'wrong_version': True})
        assert _code(read_all, mount.path('d1/shard-001.bin')) == errno.ESTALE
        script.set()
        assert_same_tree(mount.point, place.source)


def test_list_whole_or_not_at_all(place):
    """A listing that breaks off is never shown as if it were all."""
    for i in range(200):
        write_file(os.path.join(place.source, f'many/file-{i:03}'), b'x')
    mount, script = _mount(place)
    with mount:
        script.set({'op': 'list', 'key': 'many', 'short': 50})
        assert _code(os.listdir, mount.path('many')) == errno.EIO
        assert _code(os.stat, mount.path('many/file-199')) == errno.EIO
        script.set({'op': 'list', 'key': 'many', 'short': 0, 'n': 1})
        assert len(os.listdir(mount.path('many'))) == 200
        # What is known stays known while a new listing fails.
        script.set({'op': 'list', 'error': 'ORIGIN_IO'})
        assert len(os.listdir(mount.path('many'))) == 200
        script.set()


def test_keep_names_when_refresh_fails(place):
    """Listings past their time stay when the source cannot be asked."""
    mount, script = _mount(place, metadata_ttl='300ms')
    with mount:
        assert_same_tree(mount.point, place.source)
        script.set({'error': 'ORIGIN_UNREACHABLE'})
        time.sleep(0.5)
        assert_same_tree(mount.point, place.source)
        script.set()


if __name__ == '__main__':
    main(globals())
