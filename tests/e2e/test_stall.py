#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The source hangs: what is here is served as ever, what is not ends in bounded time."""

import errno
import json
import mmap
import os
import signal
import subprocess
import time

from dctf_e2e import *

MIB = 1024 * 1024
PROMPT = 2.0  # seconds: what does not need the source


def _mount(place, **options):
    """A mount with warm/ in the cache and cold/ not, and the script of its source."""
    warm = make_shards(place.source, 4, 300000, 'warm') + make_shards(place.source, 1, 3 * MIB, 'warm/big')
    cold = make_shards(place.source, 100, 20000, 'cold') + make_shards(place.source, 1, 8 * MIB, 'cold/big')
    for i in range(100):
        write_file(os.path.join(place.source, f'holes/shard-{i:02}.bin'), b'')
        os.truncate(os.path.join(place.source, f'holes/shard-{i:02}.bin'), 8 * MIB)
    os.mkdir(os.path.join(place.source, 'unlisted'))
    script = Script(place, place.source)
    options = {'readahead_shards': 0, 'read_deadline_ms': '60s', 'list_deadline_ms': '60s', **options}
    mount = Mount(place, script.url, **options)
    for name in warm:
        read_all(mount.path(name))
    for directory in ('', 'cold', 'cold/big', 'holes'):
        os.listdir(mount.path(directory))
    wait_until(lambda: mount.metric('dctf_cache_written_bytes_total') >= 3 * MIB, 10, 'warm/ is kept')
    return mount, script, warm, cold


def _parked(mount, count):
    wait_until(lambda: mount.metric('dctf_reads_waiting') >= count, 10, f'{count} reads wait')


def _look(mount, warm):
    """What must work whatever the source does."""
    for name in warm:
        drop_pages(mount.path(name))
        assert_same(read_all(mount.path(name)), bytes_of(name, os.stat(mount.path(name)).st_size))
    for directory in ('', 'warm', 'cold', 'warm/big'):
        assert os.listdir(mount.path(directory))
    os.stat(mount.path('cold/shard-00050.bin'))
    os.statvfs(mount.point)
    read_all(mount.path('.dctf/status.json'))
    read_all(mount.path('.dctf/metrics'))


def _prompt_look(mount, warm):
    with within(PROMPT, 'what does not need the source'):
        in_child(20, _look, mount, warm)


def _gauges_rest(mount):
    wait_until(lambda: mount.metric('dctf_reads_waiting') == 0, 10, 'no read waits')
    wait_until(lambda: mount.metric('dctf_origin_inflight') == 0, 10, 'no request is under way')
    wait_until(lambda: mount.metric('dctf_fs_handles') == 0, 10, 'no handle is open')


def test_serve_hits_while_source_stalls(place):
    mount, script, warm, cold = _mount(place)
    with mount:
        script.set({'stall': True})
        # More of them than the daemon has threads, and libfuse background requests by default.
        readers = [Child(read_all, mount.path(name)) for name in cold[:100]]
        try:
            _parked(mount, 100)
            for _ in range(5):
                _prompt_look(mount, warm)
            script.set()
            for name, reader in zip(cold, readers):
                assert_same(reader.result(20), bytes_of(name, 20000), name)
        finally:
            for reader in readers:
                reader.__exit__()
        _gauges_rest(mount)


def test_serve_hits_while_read_ahead_stalls(place):
    """The kernel's read-ahead waits in numbers: it has a limit for such requests."""
    mount, script, warm, cold = _mount(place)
    with mount:
        script.set({'stall': True})
        readers = [Child(read_at, mount.path(f'holes/shard-{i:02}.bin'), 0, MIB) for i in range(100)]
        try:
            _parked(mount, 40)
            time.sleep(0.3)
            _prompt_look(mount, warm)
            script.set()
            for reader in readers:
                assert_same(reader.result(20), bytes(MIB))
        finally:
            for reader in readers:
                reader.__exit__()
        _gauges_rest(mount)


def test_serve_hits_while_body_stalls(place):
    mount, script, warm, cold = _mount(place)
    big = cold[-1]
    with mount:
        script.set({'op': 'get', 'key': big, 'n': 2, 'delay_ms': 0}, {'op': 'get', 'key': big, 'stall': True})
        with Child(read_all, mount.path(big)) as reader:
            _parked(mount, 1)
            assert script.gets(big)['bytes'] > 0, 'the body began'
            _prompt_look(mount, warm)
            # The beginning came; it is served to others too.
            with within(PROMPT, 'the part of the body that is here'):
                assert_same(in_child(20, read_at, mount.path(big), 0, 1000), bytes_of(big, 8 * MIB)[:1000])
            script.set()
            assert_same(reader.result(20), bytes_of(big, 8 * MIB))
        _gauges_rest(mount)


def test_list_what_is_known_when_trust_is_over(place):
    """A listing that is too old is asked for again, but not for longer than about a second."""
    mount, script, warm, cold = _mount(place, metadata_ttl='1s')
    with mount:
        script.set({'stall': True})
        time.sleep(1.2)
        for _ in range(2):
            with within(3 * PROMPT, 'names that are known'):
                assert len(in_child(20, os.listdir, mount.path('cold'))) == 101
        with within(3 * PROMPT, 'a shard that is here'):
            in_child(20, read_all, mount.path(warm[0]))
        script.set()


def _read_direct(path):
    buffer = mmap.mmap(-1, 4096)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    return os.preadv(fd, [buffer], 0)


def _interrupt(mount, function, *args):
    """SIGINT and SIGKILL end a waiting process at once."""
    for sig in (signal.SIGINT, signal.SIGKILL):
        with Child(function, *args) as child:
            time.sleep(0.3)
            assert child.poll() is None, 'it should wait'
            start = time.monotonic()
            child.kill(sig)
            assert child.gone(5), f'still there after {sig.name}'
            took = time.monotonic() - start
            assert took < limit(PROMPT), f'{sig.name} took {took:.2f} s'
            assert os.WTERMSIG(child.status) == sig


def test_interrupt_read(place):
    mount, script, warm, cold = _mount(place)
    with mount:
        script.set({'stall': True})
        _interrupt(mount, read_all, mount.path(cold[0]))
        _interrupt(mount, read_all, mount.path(cold[-1]))
        # The kernel gives up on pages by itself; of direct reads it tells the daemon.
        _interrupt(mount, _read_direct, mount.path(cold[1]))
        wait_until(lambda: mount.metric('dctf_reads_interrupted_total') >= 2, 10, 'they are counted')
        script.set()
        assert_same(in_child(20, read_all, mount.path(cold[0])), bytes_of(cold[0], 20000))
        _gauges_rest(mount)


def test_interrupt_handled_signal(place):
    """A program that handles SIGINT goes on at once after a direct read."""
    mount, script, warm, cold = _mount(place)

    def read():
        def handler(*unused):
            raise KeyboardInterrupt
        signal.signal(signal.SIGINT, handler)
        try:
            _read_direct(mount.path(cold[0]))
        except KeyboardInterrupt:
            return 'interrupted'
    with mount:
        script.set({'stall': True})
        with Child(read) as child:
            time.sleep(0.3)
            child.kill(signal.SIGINT)
            with within(PROMPT, 'a handled SIGINT'):
                assert child.result(20) == 'interrupted'
        script.set()


def test_interrupt_read_on_deaf_source(place):
    """As stuck in the kernel: the request cannot be called back."""
    mount, script, warm, cold = _mount(place)
    with mount:
        script.set({'stall': True, 'hard': True})
        _interrupt(mount, read_all, mount.path(cold[0]))
        _prompt_look(mount, warm)
        script.set()
        assert_same(in_child(20, read_all, mount.path(cold[0])), bytes_of(cold[0], 20000))
        _gauges_rest(mount)


def test_interrupt_look_up(place):
    mount, script, warm, cold = _mount(place)
    with mount:
        script.set({'op': 'list', 'stall': True})
        _interrupt(mount, os.listdir, mount.path('unlisted'))
        _interrupt(mount, os.stat, mount.path('unlisted/x'))
        _prompt_look(mount, warm)
        script.set()
        assert in_child(20, os.listdir, mount.path('unlisted')) == []
        _gauges_rest(mount)


def _fails(number, function, *args):
    try:
        function(*args)
    except OSError as error:
        assert error.errno == number, f'{errno.errorcode.get(error.errno)}, not {errno.errorcode[number]}'
        return
    raise AssertionError(f'no {errno.errorcode[number]}')


def _reads(mount, name):
    try:
        in_child(20, read_all, mount.path(name))
    except OSError as error:
        assert error.errno == errno.ETIMEDOUT, error
        return False
    return True


def _deadline(place, hard):
    mount, script, warm, cold = _mount(place, read_deadline_ms='1500', list_deadline_ms='1500')
    with mount:
        script.set({'stall': True, 'hard': hard})
        for path in (cold[0], cold[-1]):
            start = time.monotonic()
            _fails(errno.ETIMEDOUT, in_child, 20, read_all, mount.path(path))
            took = time.monotonic() - start
            # The kernel asks once more for a page whose read-ahead failed: that must not wait again.
            assert 1.0 < took < limit(2.8), f'{took:.2f} s for a deadline of 1.5 s'
        start = time.monotonic()
        _fails(errno.ETIMEDOUT, in_child, 20, os.listdir, mount.path('unlisted'))
        assert time.monotonic() - start < limit(4)
        _prompt_look(mount, warm)
        if hard:
            assert mount.metric('dctf_origin_abandoned_total') > 0
        assert mount.metric('dctf_errors_total', code='2004') > 0
        script.set()
        for name in (cold[0], cold[-1]):
            # A missed deadline is remembered for a second.
            wait_until(lambda: _reads(mount, name), limit(5), f'{name} can be read again')
            assert_same(in_child(20, read_all, mount.path(name)),
                        bytes_of(name, os.stat(mount.path(name)).st_size))
        assert in_child(20, os.listdir, mount.path('unlisted')) == []
        _gauges_rest(mount)
        assert mount.tool_status()['origin']['abandoned'] == 0


def test_fail_at_deadline(place):
    _deadline(place, hard=False)


def test_fail_at_deadline_on_deaf_source(place):
    _deadline(place, hard=True)


def test_read_others_while_some_keys_hang(place):
    """Requests that never come back do not use up the ways to the source."""
    mount, script, warm, cold = _mount(place, read_deadline_ms='1s', origin_concurrency=4, origin_retries=0)
    with mount:
        script.set({'op': 'get', 'key': 'cold/shard-0000*', 'stall': True})
        for _ in range(3):
            readers = [Child(read_all, mount.path(name)) for name in cold[:10]]
            for reader in readers:
                _fails(errno.ETIMEDOUT, reader.result, 20)
        with within(3, 'a key that does not hang'):
            assert_same(in_child(20, read_all, mount.path(cold[20])), bytes_of(cold[20], 20000))
        script.set()
        _gauges_rest(mount)


def test_leave_while_source_stalls(place):
    """SIGTERM ends the daemon although a reader waits for a source that will never answer."""
    mount, script, warm, cold = _mount(place, unmount_timeout='1s')
    script.set({'stall': True, 'hard': True})
    with mount, Child(read_all, mount.path(cold[0])) as reader:
        _parked(mount, 1)
        start = time.monotonic()
        mount.signal(signal.SIGTERM)
        mount.wait_end(15)
        assert time.monotonic() - start < limit(8)
        mount.check_clean()
        assert reader.gone(5)


def test_mount_while_source_stalls(place):
    """The start is bounded too, and says why."""
    make_shards(place.source, 1, 1000)
    script = Script(place, place.source)
    script.set({'stall': True, 'hard': True})
    mount = Mount(place, script.url, wait=False, read_deadline_ms='1s', mount_timeout='5s')
    try:
        start = time.monotonic()
        mount.wait_end(20, status=1)
        assert time.monotonic() - start < limit(12)
        assert 'error 20' in mount.log_text() or 'error 3016' in mount.log_text()
        assert not mounted_below(mount.point)
    finally:
        mount.abandon()


def test_diagnose_frozen_daemon(place):
    """`dctf doctor` and `dctf status` answer while the daemon does not run at all."""
    mount, script, warm, cold = _mount(place)
    with mount:
        mount.freeze()
        try:
            with within(10, 'dctf doctor'):
                done = subprocess.run([DCTF, 'doctor', '--json', '--timeout=1s', mount.point],
                                      capture_output=True, timeout=limit(30), check=False,
                                      env=place.environ())
            assert done.returncode == 1, (done.returncode, done.stdout, done.stderr)
            report = json.loads(done.stdout)
            text = json.dumps(report)
            assert 'stopped' in text or 'does not answer' in text, text
            with within(5, 'dctf status'):
                done = subprocess.run([DCTF, 'status', '--timeout=1s', mount.point], capture_output=True,
                                      text=True, timeout=limit(30), check=False, env=place.environ())
            assert done.returncode == 1 and '3015' in done.stderr, (done.returncode, done.stderr)
        finally:
            mount.signal(signal.SIGCONT)
        _prompt_look(mount, warm)
        mount.dctf('status', mount.point)


if __name__ == '__main__':
    main(globals())
