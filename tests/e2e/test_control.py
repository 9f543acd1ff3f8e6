#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The control socket: what it answers, to whom, and what it does with nonsense."""

import json
import os
import socket

from dctf_e2e import *

MIB = 1024 * 1024


def _refused(codes, control, cmd, **fields):
    try:
        control.ask(cmd, **fields)
    except ControlError as error:
        assert error.code in codes, f'{error}, not {codes}'
        return
    raise AssertionError(f'{cmd} {fields} was answered')


def test_answer_every_command(place):
    make_tree(place.source, {'a/one.bin': 3 * MIB, 'a/two.bin': 5000, 'top': 10})
    with Mount(place) as mount, mount.control() as control:
        assert control.ask('ping')['pid'] == mount.pid
        assert control.ask('status')['status']['mountpoint'] == mount.point
        assert control.ask('list', path='')['entries'] == [
            {'name': 'a', 'dir': True, 'size': 0}, {'name': 'top', 'dir': False, 'size': 10}]
        page = control.ask('list', path='a', limit=1)
        assert [e['name'] for e in page['entries']] == ['one.bin'] and page['more']
        page = control.ask('list', path='a', after='one.bin')
        assert [e['name'] for e in page['entries']] == ['two.bin'] and not page['more']
        assert control.ask('stat', path='a')['dir'] is True
        stat = control.ask('stat', path='a/one.bin')
        assert (stat['size'], stat['present_bytes'], stat['tier']) == (3 * MIB, 0, 'cold')
        warm = control.ask('warm', path='a/one.bin', verify=False)
        assert (warm['present_bytes'], warm['fetched_bytes'], warm['kept']) == (3 * MIB, 3 * MIB, True)
        warm = control.ask('warm', path='a/one.bin', verify=True)
        assert (warm['fetched_bytes'], warm['bad_blocks']) == (0, 0)
        assert control.ask('stat', path='a/one.bin')['present_bytes'] == 3 * MIB
        read_all(mount.path('a/two.bin'))
        # A reader is answered before its bytes are in a tier, and only what is there is dropped.
        wait_until(lambda: control.ask('stat', path='a/two.bin')['present_bytes'] == 5000, 10, 'what was read is kept')
        assert control.ask('heat', limit=10)['features'][0]['feature'] == 'a'
        assert control.ask('sync', path='', force=True)['directories'] >= 1
        assert 'dctf_opens_total' in control.ask('metrics')['text']
        assert 'cache_size' in control.ask('config')['text']
        for scope in ('cluster', 'all', 1):  # there is no cluster
            _refused((4008,), control, 'evict', path='a', scope=scope)
        evicted = control.ask('evict', path='a')
        assert (evicted['shards'], evicted['busy']) == (2, 0), evicted
        assert control.ask('stat', path='a/one.bin')['present_bytes'] == 0


def test_refuse_what_is_not_there(place):
    make_tree(place.source, {'a/one.bin': 100})
    with Mount(place) as mount, mount.control() as control:
        _refused((1001,), control, 'stat', path='absent')
        _refused((1001,), control, 'warm', path='a/absent')
        _refused((1005,), control, 'warm', path='a')
        _refused((1001, 1002), control, 'list', path='a/one.bin')
        _refused((4008,), control, 'frobnicate')
        assert control.ask('ping')['pid'] == mount.pid, 'the connection goes on'


def test_take_names_that_are_not_text(place):
    name = b'\xff\xfe name\n'
    with open(os.path.join(os.fsencode(place.source), name), 'wb') as file:
        file.write(b'bytes')
    with Mount(place) as mount, mount.control() as control:
        assert control.ask('list', path='')['entries'][0]['name_hex'] == name.hex()
        assert control.ask('stat', path_hex=name.hex())['size'] == 5
        assert control.ask('warm', path_hex=name.hex())['present_bytes'] == 5
        _refused((4008,), control, 'stat', path_hex='zz')


def test_survive_nonsense(place):
    make_tree(place.source, {'a': 100})
    with Mount(place) as mount:
        for line in (b'\n', b'{}\n', b'[]\n', b'nonsense\n', b'{"cmd":7}\n', b'{"cmd":"stat"}\n', b'\xff\xfe\n',
                     b'{"cmd":"stat","path":7}\n', b'{"cmd":"heat","limit":-1}\n', b'{"cmd":"list","path":"../.."}\n',
                     b'[' * 30000 + b'\n', b'{"cmd":"ping","x":"' + b'y' * 60000 + b'"}\n'):
            with mount.control() as control:
                try:
                    answer = control.ask_raw(line)
                except ConnectionResetError:
                    continue
                assert 'ok' in answer, (line[:50], answer)
        with mount.control() as control:
            try:
                answer = control.ask_raw(b'x' * 200000)
                assert not answer['ok'], 'a line of 200,000 bytes was taken'
            except (ConnectionResetError, BrokenPipeError):
                pass
        # Half a line, and many who say nothing.
        idle = []
        for _ in range(40):
            client = socket.socket(socket.AF_UNIX)
            client.settimeout(limit(5))
            try:
                client.connect(mount.runtime()['socket'])
                client.sendall(b'{"cmd":"pi')
            except OSError:
                pass
            idle.append(client)
        for client in idle:
            client.close()
        wait_until(lambda: _pings(mount), 10, 'it answers again')
        assert_same_tree(mount.point, place.source)


def _pings(mount):
    try:
        return mount.ask('ping', 2)['pid'] == mount.pid
    except OSError:
        return False


def test_answer_beside_those_who_say_nothing(place):
    """Clients that do not finish their line keep nobody else waiting for ever."""
    make_tree(place.source, {'a': 100})
    with Mount(place) as mount:
        idle = []
        for _ in range(8):
            client = socket.socket(socket.AF_UNIX)
            client.connect(mount.runtime()['socket'])
            client.sendall(b'{"cmd":')
            idle.append(client)
        wait_until(lambda: _pings(mount), 20, 'somebody else is answered')
        for client in idle:
            client.close()


def test_refuse_other_users(place):
    make_tree(place.source, {'a': 100})
    with Mount(place) as mount:
        path = mount.runtime()['socket']

        def ask():
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            with Control(path) as control:
                return control.ask_raw(json.dumps({'cmd': 'evict', 'path': ''}).encode() + b'\n')
        try:
            answer = in_child(20, ask)
            assert answer['ok'] is False and answer['code'] == 4009, answer
        except PermissionError:
            pass
        except ConnectionError:
            pass


def test_leave_while_clients_are_connected(place):
    make_tree(place.source, {'a': 100})
    with Mount(place) as mount:
        clients = [mount.control() for _ in range(4)]
        assert clients[0].ask('ping')
        with within(8, 'unmounting'):
            mount.unmount()
        for client in clients:
            client.socket.close()


if __name__ == '__main__':
    main(globals())
