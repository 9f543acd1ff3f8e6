#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How the S3 server that other tests rely on misbehaves when it is told to."""

import hashlib
import socket
import time
import xml.etree.ElementTree as ElementTree

from dctf_e2e import *
from dctf_e2e.s3 import S3Server, epoch_of, error_of, text_of


def test_answer_with_errors(place):
    with S3Server(place) as s3:
        s3.put('k', b'data')
        for kind, status, code in (('slowdown', 503, 'SlowDown'), ('internal', 500, 'InternalError'),
                                   ('throttle', 429, 'TooManyRequests'), ('denied', 403, 'AccessDenied'),
                                   ('missing', 404, 'NoSuchKey'), ('timeout', 400, 'RequestTimeout'),
                                   ('expired_token', 400, 'ExpiredToken'), ('skewed', 403, 'RequestTimeTooSkewed'),
                                   ('wrong_region', 400, 'AuthorizationHeaderMalformed'),
                                   ('redirect', 301, 'PermanentRedirect')):
            rule = s3.fault(kind, op='get', count=1, region='eu-west-1', endpoint='there:1')
            got = s3.ask('GET', '/data/k')
            assert error_of(got) == (status, code), got
            assert s3.ask('GET', '/data/k').body == b'data' and s3.fired(rule) == 1
            if kind == 'redirect':
                assert got.headers['x-amz-bucket-region'] == 'eu-west-1' and text_of(got, 'Endpoint') == 'there:1'
            if kind == 'skewed':
                assert abs(epoch_of(text_of(got, 'ServerTime')) - time.time()) < 30
            assert s3.requests('get')[-2]['faults'] == [rule]
            s3.clear(rule)
        s3.fault('status', status=502, code='BadGateway', retry_after=7)
        got = s3.ask('HEAD', '/data/k')
        assert (got.status, got.headers['Retry-After']) == (502, '7')
        s3.set_faults({'kind': 'empty'})
        assert s3.ask('GET', '/data/k').body == b''
        s3.clear()
        assert s3.control('GET', 'faults') == {'rules': []}


def test_choose_requests(place):
    with S3Server(place) as s3:
        for key in ('a/1', 'b/1'):
            s3.put(key, b'x')

        def statuses(method, path, count, query=()):
            return [s3.ask(method, path, query).status for _ in range(count)]
        s3.set_faults({'kind': 'slowdown', 'op': ['get', 'list'], 'prefix': 'a/', 'skip': 1, 'count': 2})
        assert statuses('GET', '/data/b/1', 3) == [200] * 3 and statuses('HEAD', '/data/a/1', 3) == [200] * 3
        assert statuses('GET', '/data/a/1', 2) == [200, 503]
        assert statuses('GET', '/data', 2, {'prefix': 'a/'}) == [503, 200]
        s3.set_faults({'kind': 'internal', 'bucket': 'other'})
        assert statuses('GET', '/data/a/1', 2) == [200] * 2
        runs = []
        for _ in range(2):
            s3.settings(seed=7)
            s3.set_faults({'kind': 'slowdown', 'op': 'get', 'p': 0.3})
            runs.append(statuses('GET', '/data/a/1', 100))
        assert runs[0] == runs[1] and 10 <= runs[0].count(503) <= 50, runs
        for wrong in ({'kind': 'nonsense'}, {'kind': 'stall', 'op': 'fetch'}, {'kind': 'slow'}, {'kind': 'cut', 'aftre': 1},
                      {'kind': 'status', 'status': 99}, {}):
            try:
                s3.set_faults(wrong)
            except Exception:
                continue
            raise AssertionError(f'{wrong} was taken')


def _drain(sock):
    """(headers, body) until the connection ends, and whether it was reset."""
    data, reset = b'', False
    try:
        while block := sock.recv(1 << 16):
            data += block
    except ConnectionResetError:
        reset = True
    head, _, body = data.partition(b'\r\n\r\n')
    return head, body, reset


def test_break_connections(place):
    with S3Server(place) as s3:
        data = bytes_of('k', 3000000)
        s3.put('k', data)
        s3.set_faults({'kind': 'reset'})
        with s3.begin() as sock:
            assert _drain(sock) == (b'', b'', True)
        for after in (0, 1000, 2000000):
            s3.set_faults({'kind': 'reset', 'after': after})
            with s3.begin() as sock:
                head, body, reset = _drain(sock)
                assert reset and len(body) <= after and data.startswith(body), (after, len(body), reset)
            s3.set_faults({'kind': 'cut', 'after': after})
            with s3.begin() as sock:
                head, body, reset = _drain(sock)
                assert b'Content-Length: 3000000' in head and not reset, head
                assert body == data[:after], (after, len(body))
        s3.set_faults({'kind': 'garbage'})
        with s3.begin() as sock:
            head, body, reset = _drain(sock)
            assert len(head + body) > 100 and b'HTTP' not in head, (head, body)
        s3.clear()
        wait_until(lambda: s3.stats()['connections']['open'] == 0, 10, 'all connections are gone')
        assert s3.stats()['in_flight'] == 0


def test_stall_until_cleared(place):
    with S3Server(place) as s3:
        data = bytes_of('k', 100000)
        s3.put('k', data)
        for after in (None, 0, 5000):
            rule = s3.fault('stall', op='get', **({} if after is None else {'after': after}))
            with s3.begin() as sock:
                sock.settimeout(limit(20))
                got = b''
                if after is not None:  # the headers come, and what was promised of the body
                    while len(got.partition(b'\r\n\r\n')[2]) < after or b'\r\n\r\n' not in got:
                        got += sock.recv(65536)
                    assert len(got.partition(b'\r\n\r\n')[2]) == after
                sock.settimeout(0.2)
                try:
                    raise AssertionError(f'something came: {sock.recv(100)!r}')
                except socket.timeout:
                    pass
                assert s3.stats()['in_flight'] == 1
                sock.settimeout(limit(20))
                s3.clear(rule)
                while len(got.partition(b'\r\n\r\n')[2]) < len(data):
                    got += sock.recv(65536)
                assert_same(got.partition(b'\r\n\r\n')[2], data)
        s3.fault('stall')
        with s3.begin():
            wait_until(lambda: s3.stats()['in_flight'] == 1, 10, 'a request stalls')
        wait_until(lambda: s3.stats()['in_flight'] == 0, 10, 'the stalled request of a client that left ends')
        s3.set_faults({'kind': 'stall', 'ms': 300})
        start = time.monotonic()
        assert s3.ask('GET', '/data/k').body == data and time.monotonic() - start >= 0.29
        s3.set_faults({'kind': 'stall', 'after': 10})
        with s3.begin():  # and the server ends although one waits
            wait_until(lambda: s3.stats()['in_flight'] == 1, 10, 'a request stalls')
            s3.stop()


def test_slow_down_bodies(place):
    with S3Server(place) as s3:
        s3.put('k', bytes(30000))
        for rules, least in (([{'kind': 'slow', 'rate': 60000}], 0.3), ([{'kind': 'latency', 'ms': 300}], 0.29),
                             ([{'kind': 'latency', 'ms': 200}, {'kind': 'slow', 'rate': 60000},
                               {'kind': 'ignore_range'}], 0.5)):
            s3.set_faults(*rules)
            start = time.monotonic()
            got = s3.ask('GET', '/data/k', headers={'Range': 'bytes=0-'})
            took = time.monotonic() - start
            assert len(got.body) == 30000 and took >= least, (rules, took)
        assert got.status == 200


def test_lie_about_objects(place):
    with S3Server(place) as s3:
        data = bytes_of('k', 1000)
        tag = s3.put('k', data)

        def get(kind, **fields):
            s3.set_faults({'kind': kind, **fields})
            return s3.ask('GET', '/data/k', headers={'Range': 'bytes=100-199', 'If-Match': f'"{tag}"'})
        got = get('wrong_etag')
        assert got.headers['ETag'] != f'"{tag}"' and got.body == data[100:200]
        assert get('wrong_etag', etag='"mine"').headers['ETag'] == '"mine"'
        got = get('wrong_range')
        assert (got.headers['Content-Range'], got.body) == ('bytes 101-200/1000', data[101:201])
        got = get('wrong_range', total=True)
        assert (got.headers['Content-Range'], got.body) == ('bytes 100-199/1001', data[100:200])
        got = get('ignore_range')
        assert (got.status, got.body, got.headers['Content-Range']) == (200, data, None)
        assert error_of(get('overwrite', count=1)) == (412, 'PreconditionFailed')
        s3.clear()
        now = s3.ask('GET', '/data/k')
        assert len(now.body) == 1000 and now.body != data
        assert now.headers['ETag'] == f'"{hashlib.md5(now.body).hexdigest()}"'


def test_break_listings(place):
    with S3Server(place) as s3:
        s3.bulk(50, 10)

        def broken(kind):
            s3.set_faults({'kind': kind, 'op': 'list'})
            got = s3.ask('GET', '/data', {'list-type': 2})
            assert got.status == 200
            return got
        assert text_of(broken('error_200'), 'Code') == 'InternalError'
        for kind in ('truncated_xml', 'invalid_xml', 'empty'):
            try:
                ElementTree.fromstring(broken(kind).body)
            except ElementTree.ParseError:
                continue
            raise AssertionError(f'{kind}: a good document')
        s3.set_faults({'kind': 'cut', 'op': 'list', 'after': 100})
        with s3.begin('/data') as sock:
            assert len(_drain(sock)[1]) == 100


if __name__ == '__main__':
    main(globals())
