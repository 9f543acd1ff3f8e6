#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The tool `dctf`: what it says, what it fetches, its exit statuses, and that it never hangs."""

import json
import os
import signal
import subprocess

from dctf_e2e import *

MIB = 1 << 20
COMMANDS = ('status', 'heat', 'peers', 'warm', 'evict', 'sync', 'doctor', 'version')


def _run(place, *arguments, seconds=30, cwd=None):
    return subprocess.run([DCTF, *arguments], env=place.environ(), stdin=subprocess.DEVNULL, cwd=cwd,
                          capture_output=True, timeout=limit(seconds), check=False)


def _json(mount, *arguments, status=0):
    return json.loads(mount.dctf(*arguments, '--json', status=status))


def _source(place, count=12, size=2 * MIB):
    names = make_shards(place.source, count, size, 'a')
    make_tree(place.source, {'b/small': 5000, 'top': 70000})
    return names, count * size + 75000


def test_explain_usage(place):
    for command in COMMANDS:
        done = _run(place, command, '--help')
        assert done.returncode == 0 and b'Usage: dctf ' + command.encode() in done.stdout
        assert _run(place, command, '--nonsense').returncode == 2
    assert _run(place).returncode == 2
    done = _run(place, 'frobnicate')
    assert done.returncode == 2 and b'dctf: error 4005 USAGE: ' in done.stderr
    for arguments in (('evict',), ('heat', '-n', '-1'), ('warm', '--jobs', '0'), ('status', '--timeout', 'x')):
        assert _run(place, *arguments).returncode == 2, arguments


def test_refuse_other_filesystem(place):
    done = _run(place, 'status', '--json', place.source)
    assert done.returncode == 1
    assert b'dctf: error 3014 NOT_MOUNTED: ' in done.stderr and b'; remedy: ' in done.stderr
    answer = json.loads(done.stdout)
    assert answer['ok'] is False and answer['code'] == 3014 and answer['remedy']


def test_show_status(place):
    _source(place)
    with Mount(place) as mount:
        read_all(mount.path('top'))
        status = _json(mount, 'status', mount.point)
        assert status['mountpoint'] == mount.point and status['pid'] == mount.pid
        assert status['origin']['bytes'] >= 70000
        text = mount.dctf('status', mount.path('a'))
        for word in (mount.point, mount.source, 'cache', 'passthrough', 'source', 'opens', 'memory'):
            assert word in text, (word, text)
        assert f'pid {mount.pid}' in mount.dctf('version', mount.point)


def test_find_mount_from_inside(place):
    _source(place)
    link = place.path('link')
    os.symlink(place.path('mnt'), link)
    with Mount(place) as mount:
        for arguments, cwd in ((('status', '--json', '.'), mount.point), (('status', '--json', '../a'), mount.path('b')),
                               (('status', '--json', link + '/a'), None)):
            done = _run(place, *arguments, cwd=cwd)
            assert done.returncode == 0, (arguments, done.stderr)
            assert json.loads(done.stdout)['mountpoint'] == mount.point


def test_warm_then_read_nothing_from_source(place):
    names, total = _source(place)
    with Mount(place) as mount:
        first = _json(mount, 'warm', mount.point)
        assert first['ok'] and first['files'] == first['files_done'] == len(names) + 2
        assert first['bytes'] == first['fetched_bytes'] == total and first['failed'] == 0
        before = mount.origin_bytes()
        assert_same_tree(mount.point, place.source)
        again = _json(mount, 'warm', '--jobs', '2', mount.point)
        assert again['present_bytes'] == total and again['fetched_bytes'] == 0
        assert again['present_files'] == len(names) + 2
        one = _json(mount, 'warm', mount.path(names[0]))
        assert one['files'] == 1 and one['bytes'] == 2 * MIB
        assert mount.origin_bytes() == before
        text = mount.dctf('warm', mount.path('a'), mount.path('b'))
        assert f'{len(names) + 1} of {len(names) + 1} files' in text, text
        assert mount.dctf('warm', '-q', mount.point) == ''


def test_evict_what_was_named(place):
    _, total = _source(place)
    with Mount(place) as mount:
        mount.dctf('warm', '-q', mount.point)
        gone = _json(mount, 'evict', mount.path('a'))
        assert gone['shards'] == 12 and gone['bytes'] == 24 * MIB and gone['busy'] == 0
        left = _json(mount, 'warm', mount.point)
        assert left['fetched_bytes'] == 24 * MIB and left['present_bytes'] == 75000
        assert _json(mount, 'evict', mount.point)['bytes'] == total
        assert_same_tree(mount.point, place.source)


def test_warm_again_what_rotted(place):
    names, total = _source(place, count=3)
    with Mount(place, passthrough='off', scrub='off') as mount:
        mount.dctf('warm', '-q', mount.point)
        files = [os.path.join(base, name) for base, _, names_ in os.walk(place.cache) for name in names_
                 if os.path.getsize(os.path.join(base, name)) == 2 * MIB]
        assert files, 'no shard file in the cache'
        with open(files[0], 'r+b') as file:
            file.seek(300000)
            byte = file.read(1)
            file.seek(300000)
            file.write(bytes([byte[0] ^ 1]))
        # What was written since the mount began counts as verified; a new mount does not trust it.
    with Mount(place, passthrough='off', scrub='off') as mount:
        done = _run(place, 'warm', '--verify', '--json', mount.point)
        assert done.returncode == 0, done.stderr
        named = [name for name in names
                 if b'dctf: error 4007 VERIFY_FAILED: ' + mount.path(name).encode() + b': ' in done.stderr]
        assert len(named) == 1, done.stderr
        summary = json.loads(done.stdout)
        assert summary['bad_blocks'] == 1 and summary['fetched_bytes'] == MIB // 4, summary
        assert summary['bytes'] == total
        assert_same_tree(mount.point, place.source)


def test_warm_reports_failures(place):
    names, _ = _source(place)
    script = Script(place, place.source)
    with Mount(place, script.url, origin_retries='0') as mount:
        script.set({'op': 'get', 'key': names[3], 'error': 'ORIGIN_IO'})
        done = _run(place, 'warm', '--json', mount.point)
        assert done.returncode == 1
        assert b'dctf: error 2001 ORIGIN_IO: ' + mount.path(names[3]).encode() in done.stderr, done.stderr
        summary = json.loads(done.stdout)
        assert summary['failed'] == 1 and summary['files_done'] == len(names) + 2 and not summary['ok']
        script.set()
        assert _json(mount, 'warm', mount.point)['fetched_bytes'] == 2 * MIB


def test_warm_more_than_fits(place):
    make_shards(place.source, 40, 4 * MIB, 'a')
    with Mount(place, cache_size='80M') as mount:
        summary = _json(mount, 'warm', mount.point)
        assert summary['ok'] and summary['failed'] == 0 and summary['files_done'] == 40
        status = _json(mount, 'status', mount.point)
        assert status['cache']['file_bytes'] + status['cache']['index_bytes'] <= 80 * MIB
        assert_same_tree(mount.point, place.source)


def test_resume_interrupted_warm(place):
    names, total = _source(place, count=24)
    script = Script(place, place.source)
    with Mount(place, script.url) as mount:
        script.set({'op': 'get', 'key': names[20], 'stall': True})
        with subprocess.Popen([DCTF, 'warm', '--json', mount.point], stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, env=place.environ()) as run:
            wait_until(lambda: mount.tool_status()['cache']['file_bytes'] >= 40 * MIB, 30, 'most is here')
            run.send_signal(signal.SIGINT)
            with within(5, 'the end of an interrupted warm'):
                out, _ = run.communicate(timeout=limit(20))
        assert run.returncode == -signal.SIGINT
        summary = json.loads(out)
        assert summary['interrupted'] and not summary['ok'] and summary['files_done'] < len(names) + 2
        script.set()
        summary = _json(mount, 'warm', mount.point)
        assert summary['ok'] and summary['present_bytes'] >= 40 * MIB and summary['bytes'] == total


def test_see_changes_after_sync(place):
    _source(place)
    with Mount(place, metadata_ttl='inf') as mount:
        assert sorted(os.listdir(mount.path('b'))) == ['small']
        write_file(os.path.join(place.source, 'b/new'), b'new')
        assert not os.path.exists(mount.path('b/new'))
        assert _json(mount, 'sync', '--force', mount.path('b'))['directories'] == 1
        assert read_all(mount.path('b/new')) == b'new'


def test_show_heat(place):
    names, _ = _source(place)
    with Mount(place) as mount:
        for _ in range(3):
            read_all(mount.path(names[0]))
        read_all(mount.path('b/small'))
        heat = _json(mount, 'heat', '-n', '1', mount.point)
        assert heat['total'] == 2 and [row['feature'] for row in heat['features']] == ['a']
        assert heat['features'][0]['access_count'] == 3
        lines = mount.dctf('heat', mount.point).splitlines()
        assert lines[0].split() == ['CLASS', 'HEAT', 'OPENS', 'LAST', 'BYTES', 'FEATURE']
        assert [line.split()[-1] for line in lines[1:]] == ['a', 'b']


def test_pass_odd_names_through(place):
    odd = [b'not-utf8-\xff', b'new\nline', b'quote"\\', 'schön'.encode()]
    root = os.fsencode(place.source)
    for name in odd:
        os.mkdir(os.path.join(root, b'd-' + name))
        with open(os.path.join(root, b'd-' + name, name), 'wb') as file:
            file.write(name * 1000)
    with Mount(place) as mount:
        summary = _json(mount, 'warm', mount.point)
        assert summary['ok'] and summary['files'] == len(odd)
        assert summary['fetched_bytes'] == sum(len(name) * 1000 for name in odd)
        point = os.fsencode(mount.point)
        for name in odd:
            with open(os.path.join(point, b'd-' + name, name), 'rb') as file:
                assert file.read() == name * 1000
            done = _run(place, 'warm', '--json', os.path.join(point, b'd-' + name, name))
            assert json.loads(done.stdout)['present_files'] == 1
            done = _run(place, 'warm', os.path.join(point, name))
            assert done.returncode == 1 and b'1001 NOT_FOUND' in done.stderr
            assert b'\xff' not in done.stderr and done.stderr.count(b'\n') == 1, done.stderr
        text = mount.dctf('heat', mount.point)
        assert len(text.splitlines()) == 1 + len(odd), text


def test_examine_healthy_mount(place):
    _source(place)
    with Mount(place) as mount:
        read_all(mount.path('top'))
        report = _json(mount, 'doctor', mount.point)
        assert report['ok']
        results = {check['check']: check['result'] for check in report['checks']}
        for name in ('kernel', 'device', 'mount', 'daemon', 'socket', 'transfers', 'keeping', 'source', 'cache'):
            assert results[name] == 'ok', report
        assert all(check['remedy'] for check in report['checks'] if check['result'] == 'fail')
        assert ' FAILED' in mount.dctf('doctor', mount.point)


def test_examine_dead_daemon(place):
    _source(place)
    mount = Mount(place)
    try:
        mount.kill()
        with within(5, 'dctf doctor'):
            done = _run(place, 'doctor', mount.point)
        assert done.returncode == 1 and b'is gone' in done.stdout and b'remedy: ' in done.stdout, done.stdout
        with within(5, 'dctf status'):
            done = _run(place, 'status', mount.point)
        assert done.returncode == 1 and b'3015 DAEMON_UNRESPONSIVE' in done.stderr
    finally:
        mount.abandon()


def test_end_waits_for_frozen_daemon(place):
    _source(place)
    with Mount(place) as mount:
        mount.freeze()
        try:
            for command in ('status', 'heat', 'sync', 'version', 'evict', 'warm'):
                with within(8, command):
                    done = _run(place, command, '--timeout', '1', mount.point)
                assert done.returncode == 1 and b'3015' in done.stderr, (command, done)
        finally:
            mount.signal(signal.SIGCONT)


def test_examine_failing_source(place):
    _source(place)
    script = Script(place, place.source)
    with Mount(place, script.url, origin_retries='0') as mount:
        script.set({'op': 'get', 'error': 'ORIGIN_IO'})
        try:
            read_all(mount.path('top'))
        except OSError:
            pass
        done = _run(place, 'doctor', '--json', mount.point)
        assert done.returncode == 1
        failed = [check for check in json.loads(done.stdout)['checks'] if check['result'] == 'fail']
        assert [check['check'] for check in failed] == ['transfers'] and '2001' in failed[0]['text'], failed


if __name__ == '__main__':
    main(globals())
