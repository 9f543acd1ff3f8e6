#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An S3 service that throttles, breaks off, stalls and lies: no wrong byte, nothing that exists is
absent, nobody waits past the deadline. DCTF_LONG=1 makes ten thousand reads under all of it at once."""

import errno
import mmap
import multiprocessing
import os
import random
import time

from dctf_e2e import *
from dctf_e2e.data import PAGE
from dctf_e2e.s3 import S3Server

MIB = 1024 * 1024
BLOCK = 256 * 1024
SIZES = [0, 1, 5000, BLOCK, BLOCK + 1, MIB, 1500000, 3 * MIB]
FILES = {f'd{i % 6}/shard-{i:03}.bin': SIZES[i % len(SIZES)] for i in range(48)}
# Short bounds, so that a test of stalls is short.
BOUNDS = {'stall_timeout_min_ms': f'{int(300 * FACTOR)}ms', 'stall_timeout_max_ms': f'{int(1200 * FACTOR)}ms',
          'read_deadline_ms': f'{int(6000 * FACTOR)}ms', 'list_deadline_ms': f'{int(6000 * FACTOR)}ms'}
DEADLINE = 6 * FACTOR
SLACK = 2 + FACTOR  # what a busy machine may add


def _mount(place, s3, **options):
    return Mount(place, f's3://{s3.bucket_name}', environ=options.pop('environ', None) or s3.environ(),
                 **{'endpoint': s3.url, 'metadata_ttl': '1h', 'origin_retries': 6, **BOUNDS, **options})


def _drop(path):
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def _read_again(path):
    """All of it, once the second is over for which what has missed its deadline is refused."""
    def attempt():
        try:
            return [read_all(path)]
        except OSError as error:
            assert error.errno in (errno.ETIMEDOUT, errno.EIO), errno.errorcode[error.errno]
            return None
    return wait_until(attempt, 5, f'{path} is read again')[0]


def _storm(place, *rules, allowed=(errno.EIO,), seconds=3, reads=0, mischief=None, environ=None, **options):
    """Read at random under the rules for a while, and until so many reads are done, with the cache
    emptied and listings forgotten all the time; `mischief(s3, round)` is called beside. Returns (reads,
    failures, metrics)."""
    dice_seed = seed()
    contents = {name: bytes_of(name, size) for name, size in FILES.items()}
    with S3Server(place) as s3:
        for name, data in contents.items():
            s3.put(name, data)
        with _mount(place, s3, environ=environ and environ(s3), **options) as mount:
            for name in FILES:  # how fast it is as a rule
                assert_same(read_all(mount.path(name)), contents[name], name)
            s3.settings(seed=dice_seed & 0x7fffffff)
            s3.set_faults(*rules)

            def read(n):
                took = _read_at_random(random.Random(n ^ dice_seed), mount, contents, allowed, failures)
                if took > longest.value:  # a race with another reader loses little
                    longest.value = took

            failures, longest = _Counter(), multiprocessing.Value('d', 0, lock=False)
            end = time.monotonic() + seconds
            with Load(read, 6) as load:
                rounds = 0
                while time.monotonic() < end or load.steps() < reads:
                    load.check()
                    mount.ask('evict', path='')
                    mount.sync(force=rounds % 3 == 0)
                    if mischief:
                        mischief(s3, rounds)
                    rounds += 1
                    time.sleep(0.1)
            stats, metrics = s3.stats(), mount.metrics()
            s3.clear()
            for name in FILES:
                assert_same(_read_again(mount.path(name)), contents[name], name)
            assert sum(len(names) for _, _, names in os.walk(mount.point)) == len(FILES)
            wait_until(lambda: mount.metric('dctf_reads_waiting') == 0, 10, 'no read waits')
            wait_until(lambda: mount.metric('dctf_origin_inflight') == 0, 10, 'nothing is under way')
            assert stats['faults'] > 0, 'no fault came to pass'
            print(f'     {load.steps()} reads, {failures.count()} failed, {stats["requests"]["get"]} gets, '
                  f'{stats["requests"]["list"]} lists, {stats["faults"]} faults, errors {stats["errors"]}, '
                  f'stalls {metrics["dctf_origin_stalls_total"]:.0f}, longest {longest.value:.2f} s')
            return load.steps(), failures.count(), metrics


def _read_at_random(dice, mount, contents, allowed, failures):
    """One open and one read, in seconds. Half of the reads go past the page cache: each is one request
    to the daemon, and takes no longer than its deadline."""
    name = dice.choice(list(contents))
    direct = dice.random() < 0.5
    at = dice.randrange(len(contents[name]) + 1)
    length = dice.choice([4096, 100000, MIB])
    if direct:  # what disks want, since a whole shard is read from one
        at, length = at // PAGE * PAGE, min(length, MIB // 2) // PAGE * PAGE
    begun = time.monotonic()
    try:
        fd = os.open(mount.path(name), os.O_RDONLY | (os.O_DIRECT if direct else 0))
        opened = time.monotonic() - begun
        assert opened < DEADLINE + SLACK, f'{name}: opened after {opened:.1f} s'
        begun = time.monotonic()
        try:
            if not direct:
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            with mmap.mmap(-1, length) as buffer:
                data = buffer[:os.preadv(fd, [buffer], at)]
        finally:
            os.close(fd)
        expected = contents[name][at:at + length]
        # A read that fails after some bytes is short.
        assert_same(data, expected[:len(data)], f'{name} at {at}')
        assert data or not expected, f'{name} at {at}: nothing'
    except OSError as error:
        assert error.errno in allowed, f'{name}: {errno.errorcode[error.errno]}'
        failures.add()
    took = time.monotonic() - begun
    # Through the page cache it may be several, one after the other.
    assert took < (1 if direct else 2) * DEADLINE + SLACK, f'{name}: waited {took:.1f} s'
    return took


class _Counter:
    """Counts over processes."""

    def __init__(self):
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.total = 0

    def add(self):
        os.write(self.writer, b'.')

    def count(self):
        try:
            while (data := os.read(self.reader, 65536)):
                self.total += len(data)
        except BlockingIOError:
            pass
        return self.total


def test_survive_throttling(place):
    """One request in ten: 503 SlowDown, 500, 429."""
    reads, failures, _ = _storm(place, {'kind': 'slowdown', 'p': 0.05}, {'kind': 'internal', 'p': 0.03},
                                {'kind': 'throttle', 'p': 0.02})
    assert reads > scaled(50), reads
    assert failures <= reads * 0.01, failures


def test_survive_resets_and_cuts(place):
    reads, failures, _ = _storm(
        place, {'kind': 'reset', 'p': 0.03}, {'kind': 'reset', 'op': 'get', 'after': 1000, 'p': 0.03},
        {'kind': 'cut', 'op': 'get', 'after': 3000, 'p': 0.03}, {'kind': 'garbage', 'p': 0.02})
    assert failures <= reads * 0.01, failures


def test_survive_lies(place):
    """Wrong ETags, ranges and totals, whole bodies for ranges, listings that are none or only half."""
    reads, failures, _ = _storm(
        place, {'kind': 'wrong_etag', 'op': 'get', 'p': 0.03}, {'kind': 'wrong_range', 'op': 'get', 'p': 0.03},
        {'kind': 'wrong_range', 'op': 'get', 'total': True, 'p': 0.03},
        {'kind': 'ignore_range', 'op': 'get', 'p': 0.03}, {'kind': 'empty', 'p': 0.02},
        {'kind': 'error_200', 'op': 'list', 'p': 0.05}, {'kind': 'truncated_xml', 'op': 'list', 'p': 0.05},
        {'kind': 'invalid_xml', 'op': 'list', 'p': 0.05}, allowed=(errno.EIO, errno.ESTALE))
    assert failures <= reads * 0.02, failures


def test_survive_stalls(place):
    """Silence before the head and inside the body: given up in time and asked for again."""
    reads, failures, metrics = _storm(
        place, {'kind': 'stall', 'p': 0.03}, {'kind': 'stall', 'op': 'get', 'after': 2000, 'p': 0.03},
        allowed=(errno.EIO, errno.ETIMEDOUT))
    assert metrics['dctf_origin_stalls_total'] > 0
    assert failures <= max(2, reads * 0.02), failures


def test_survive_slowness(place):
    """A service that is slow as a whole, slower than the least stall time-out, still gets through."""
    reads, failures, metrics = _storm(place, {'kind': 'latency', 'ms': int(450 * FACTOR)},
                                      {'kind': 'slow', 'op': 'get', 'rate': 4 * MIB},
                                      allowed=(errno.EIO, errno.ETIMEDOUT), seconds=6)
    assert metrics['dctf_origin_stalls_total'] > 0
    assert metrics['dctf_origin_stall_timeout_milliseconds'] > 450 * FACTOR
    assert failures <= max(2, reads * 0.02), failures


def _instance(s3):
    return {'AWS_EC2_METADATA_SERVICE_ENDPOINT': s3.url, 'AWS_REGION': s3.region,
            'AWS_EC2_METADATA_DISABLED': 'false'}


def _expire_and_move(s3, rounds):
    """Now and then every token expires, and the bucket moves to another region: first a 301 says so."""
    if rounds % 10 == 3:
        s3.expire()
    if rounds % 10 == 8:
        region = ('us-east-1', 'eu-west-1')[rounds // 10 % 2]
        s3.fault('redirect', op='get', endpoint=f'127.0.0.1:{s3.port}', region=region, count=2)
        s3.bucket(s3.bucket_name, region=region)


def test_survive_everything(place):
    """One request in ten is throttled, one in twenty reset; bodies are cut, slow, of another version or
    range, or stall; tokens expire between the requests of a read, and the bucket moves."""
    s3 = {'op': ['get', 'list']}
    reads, failures, _ = _storm(
        place, {'kind': 'latency', 'ms': 50, 'p': 0.1, **s3}, {'kind': 'slow', 'op': 'get', 'rate': 2 * MIB, 'p': 0.1},
        {'kind': 'slowdown', 'p': 0.1, **s3}, {'kind': 'reset', 'p': 0.025, **s3},
        {'kind': 'reset', 'op': 'get', 'after': 2000, 'p': 0.025}, {'kind': 'cut', 'op': 'get', 'after': 100, 'p': 0.02},
        {'kind': 'stall', 'op': 'get', 'p': 0.005}, {'kind': 'stall', 'op': 'get', 'after': 3000, 'p': 0.005},
        {'kind': 'wrong_etag', 'op': 'get', 'p': 0.02}, {'kind': 'ignore_range', 'op': 'get', 'p': 0.01},
        {'kind': 'truncated_xml', 'op': 'list', 'p': 0.03}, {'kind': 'expired_token', 'p': 0.01, **s3},
        {'kind': 'skewed', 'p': 0.005, **s3}, environ=_instance, mischief=_expire_and_move,
        allowed=(errno.EIO, errno.ETIMEDOUT, errno.ESTALE, errno.EACCES), reads=10000 if LONG else 0, memory='64M')
    assert reads >= (10000 if LONG else 1), reads
    assert failures <= max(5, reads * 0.05), failures


def test_never_mix_pages_of_a_listing(place):
    """A listing of many pages under faults: whole, or an error; its later pages are asked for again."""
    with S3Server(place) as s3:
        s3.bulk(12000, 10, prefix='many/f')
        expected = [f'f{i:08}' for i in range(12000)]
        with _mount(place, s3) as mount:
            s3.set_faults({'kind': 'slowdown', 'op': 'list', 'p': 0.1}, {'kind': 'reset', 'op': 'list', 'p': 0.05},
                          {'kind': 'truncated_xml', 'op': 'list', 'p': 0.1},
                          {'kind': 'error_200', 'op': 'list', 'p': 0.05})
            whole = 0
            for _ in range(scaled(6, 2)):
                try:
                    assert sorted(os.listdir(mount.path('many'))) == expected
                    whole += 1
                except OSError as error:
                    assert error.errno == errno.EIO, errno.errorcode[error.errno]
                mount.sync()
            assert whole > 0


def test_answer_within_the_deadline(place):
    """A service that is frozen: a read ends at its deadline, and what is cached is served meanwhile."""
    with S3Server(place) as s3:
        s3.put('f/cold', bytes_of('cold', 3 * MIB))
        s3.put('f/warm', bytes_of('warm', MIB))
        with _mount(place, s3, read_deadline_ms=f'{int(1000 + 1000 * FACTOR)}ms', readahead_shards=0) as mount:
            assert_same(read_all(mount.path('f/warm')), bytes_of('warm', MIB))
            s3.freeze()
            with Child(read_at, mount.path('f/cold'), 0, 4096) as child:
                with within(1, 'a read from the cache'):
                    _drop(mount.path('f/warm'))
                    assert_same(read_all(mount.path('f/warm')), bytes_of('warm', MIB))
                begun = time.monotonic()
                try:
                    child.result(6)
                    raise AssertionError('bytes from a frozen server')
                except OSError as error:
                    assert error.errno in (errno.ETIMEDOUT, errno.EIO), errno.errorcode[error.errno]
                assert time.monotonic() - begun < limit(4)
            s3.thaw()
            assert_same(_read_again(mount.path('f/cold')), bytes_of('cold', 3 * MIB))


def test_wait_as_long_as_it_asks_for(place):
    """Retry-After of a 503 and a 429: not sooner, but within the deadline."""
    with S3Server(place) as s3:
        for name in ('f/a', 'f/b', 'f/c', 'g/d'):
            s3.put(name, bytes_of(name, 1000))
        deadline = 1.5 + FACTOR
        with _mount(place, s3, readahead_shards=0, read_deadline_ms=f'{int(1000 * deadline)}ms') as mount:
            os.listdir(mount.path('f'))
            for name, kind in (('f/a', 'slowdown'), ('f/b', 'throttle')):
                s3.set_faults({'kind': kind, 'op': 'get', 'retry_after': 1, 'count': 1})
                begun = time.monotonic()
                assert read_all(mount.path(name)) == bytes_of(name, 1000)
                assert time.monotonic() - begun >= 1, name
            s3.set_faults({'kind': 'slowdown', 'op': 'get', 'retry_after': 3600, 'count': 1})
            begun = time.monotonic()
            assert read_all(mount.path('f/c')) == bytes_of('f/c', 1000)
            assert time.monotonic() - begun < deadline + SLACK
            s3.set_faults({'kind': 'slowdown', 'op': 'list', 'retry_after': 1, 'count': 1})
            begun = time.monotonic()
            assert os.listdir(mount.path('g')) == ['d']
            assert time.monotonic() - begun >= 1


def test_come_back_after_a_restart(place):
    """The server dies and comes back: kept connections are replaced, nothing is lost."""
    with S3Server(place) as s3:
        for name, size in FILES.items():
            s3.put(name, bytes_of(name, size))
        with _mount(place, s3) as mount:
            names = list(FILES)
            for name in names[:10]:
                assert_same(read_all(mount.path(name)), bytes_of(name, FILES[name]), name)
            s3.kill()
            cold = mount.path(names[15])
            try:
                read_all(cold)
                raise AssertionError('bytes without a server')
            except OSError as error:
                assert error.errno in (errno.EIO, errno.ETIMEDOUT), errno.errorcode[error.errno]
            s3.start()
            for name in names:
                assert_same(read_all(mount.path(name)), bytes_of(name, FILES[name]), name)


if __name__ == '__main__':
    main(globals())
