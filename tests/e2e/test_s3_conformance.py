#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The same cases for each S3 client on each server: the test server, which knows every fault, and a
Ceph object gateway, which knows nothing of this project. Cases are case_*(bench); they become
test_<server>_<client>_<case>. The gateway: DCTF_TEST_RGW=0 does without, 1 demands it."""

import email.utils
import errno
import os
import random
import time

from dctf_e2e import *
from dctf_e2e.rgw import Rgw, S3Client
from dctf_e2e.s3 import S3Server

KIB, MIB = 1024, 1024 * 1024
CLIENTS = ('curl', 'libs3')
SERVERS = ('server', 'rgw')


class Bench:
    """One case: a bucket on one server, and mounts of it through one client."""

    def __init__(self, place, server, client, name):
        self.place, self.client = place, client
        self.bucket = f'{client}-{name}'.replace('_', '-')
        self.s3 = None
        if server == 'rgw':
            self.store = _gateway(place)
        else:
            self.s3 = S3Server(place)
            self.store = S3Client(self.s3.url, self.s3.key)
            # Its own way, because requests to make a bucket are not what it is for.
            self.store.make_bucket = self.s3.bucket
        self.store.make_bucket(self.bucket)

    def put(self, key, body):
        return self.store.put(key, body, self.bucket)

    def mount(self, prefix='', *, key=None, bucket=None, wait=True, **options):
        """A mount with a cache of its own; the keys are in its configuration file."""
        access, secret, _ = key or self.store.key
        write_config(self.place, f'access_key_id = {access}', f'secret_access_key = {secret}')
        options = {'endpoint': self.store.url, 's3_client': self.client, 'metadata_ttl': '1h', **options}
        return Mount(self.place, f's3://{bucket or self.bucket}{prefix}', wait=wait,
                     cache=self.place.path(f'cache-{len(self.place.mounts)}'), **options)

    def refused(self, code, **options):
        """dctffs does not start, and says why."""
        mount = self.mount(wait=False, **options)
        mount.wait_end(status=1)
        assert f'error {code} ' in mount.log_text(), mount.log_text()

    def end(self):
        if self.s3:
            self.store.close()
            self.s3.stop()


def write_config(place, *lines):
    fd = os.open(place.empty_config, os.O_WRONLY | os.O_TRUNC)
    os.fchmod(fd, 0o600)
    os.write(fd, '\n'.join(('[global]', *lines, '')).encode())
    os.close(fd)


_rgw = None


def _gateway(place):
    """One for all cases; it starts in some 15 s. The runner ends it with everything else."""
    global _rgw
    if _rgw is None:
        try:
            _rgw = Rgw(place)
        except (Skip, AssertionError) as error:
            _rgw = error
    if isinstance(_rgw, Exception):
        raise _rgw
    return _rgw


def _tree(top):
    """Every file and directory below, relative, as bytes; directories end with a slash."""
    top = os.fsencode(top)
    found = set()
    for directory, directories, files in os.walk(top):
        below = os.path.relpath(directory, top)
        below = b'' if below == b'.' else below + b'/'
        found |= {below + name + b'/' for name in directories} | {below + name for name in files}
    return found


def _read(mount, key):
    key = key.encode() if isinstance(key, str) else key
    with open(os.path.join(os.fsencode(mount.point), key), 'rb') as file:
        return file.read()


def _fails(number, fn, *args):
    try:
        value = fn(*args)
    except OSError as error:
        assert error.errno == number, f'{errno.errorcode[error.errno]} instead of {errno.errorcode[number]}'
        return
    raise AssertionError(f'{value!r} instead of {errno.errorcode[number]}')


# --- names ---

PLAIN = ['plain', 'UPPER', 'upper', '...', '.hidden', '-dash', '~tilde', "!*'()~", 'sp ace', ' lead', 'trail ',
         'two  spaces', 'pl+us', 'plus+ space', 'per%cent', 'pc%20enc', 'pc%2Fenc', 'pc%', 'a&b', 'a=b', 'q?r',
         'h#h', 'semi;colon', 'co:lon', 'at@', 'com,ma', 'dol$lar', 'back\\slash', '"quoted"', "'quoted'", '<tag>',
         'a&amp;b', ']]>', '{brace}', '[bracket]', '^caret', '`tick`', '|pipe', 'tab\tx', 'nl\n', 'cr\rx',
         'ctl\x01x', 'del\x7f', 'été', '数据', 'emoji-😀', 'e\u0301', 'x' * 255]
NESTED = ['a/b', 'données/été/shard.bin', 'x&y/1', 'x&y/2', '<d>/1', 'sp dir/in side', 'pl+dir/1', 'pc%20/1', 'q?/1',
          'very/deep/' + 'd/' * 40 + 'file', '.dctf-no/x', 'below/.dctf/x', 'é&è/' + 'ü' * 100 + '/x',
          '/'.join(['sp ' * 85] * 3 + ['é ' * 42, 'ab ' * 43]), '/'.join(['z' * 255] * 3 + ['z' * 127, 'z' * 128]), '/'.join(['é' * 127] * 3 + ['é' * 120, 'y' * 18])]
# Shown as nothing: an empty component, dots, and a file that a directory of its name hides.
HIDDEN = ['a', 'e//f', 'dots/./x', 'dots/../x', 'y' * 256, '.dctf']
MARKERS = ['d/', 'a/', 'only/markers/']


def _body(key):
    return b'content of ' + (key if isinstance(key, bytes) else key.encode())


def _expected(keys):
    tree = set()
    for key in keys:
        key = key.encode() if isinstance(key, str) else key
        parts = key.split(b'/')
        tree |= {b'/'.join(parts[:i]) + b'/' for i in range(1, len(parts))}
        tree |= {key} if parts[-1] else set()
    return tree


def case_keys(bench):
    """Every key of the published rules is shown under its name and reads back as it is."""
    shown = list(PLAIN + NESTED)
    if bench.s3:
        shown += ['dir\x01ctl/x', 'cr\r/x']  # below such names the gateway makes listings that are no XML
    for key in shown + HIDDEN:
        bench.put(key, _body(key))
    for key in MARKERS:
        bench.put(key, b'')
    with bench.mount() as mount:
        # What is hidden below a directory shows the directory.
        tree = _tree(mount.point) - {b'e/', b'dots/'}
        expected = _expected(shown + MARKERS)
        assert tree == expected, f'missing {expected - tree}, too many {tree - expected}'
        for key in shown:
            assert _read(mount, key) == _body(key), key
        assert os.listdir(mount.path('e')) == [] and os.listdir(mount.path('d')) == []


def case_plus_and_space(bench):
    """`a b` and `a+b` are two objects: none is read for the other, not even one that looks the
    same from outside."""
    same, other = b'x' * 1000, b'y' * 1000
    for key, body in (('a b', same), ('a+b', other), ('c d', same), ('c+d', same), ('e f', same)):
        bench.put(key, body)
    with bench.mount() as mount:
        assert _read(mount, 'a+b') == other
        assert _read(mount, 'c+d') == same
        for key in ('a b', 'c d', 'e f'):
            assert _read(mount, key) == same


def case_prefix(bench):
    for key in ('pre/fix/a', 'pre/fix/sub/b', 'pre/fixture/c', 'pre/d', 'e', 'pr+e/f', 'é&/g'):
        bench.put(key, _body(key))
    bench.put('pre/fix/', b'')
    for prefix, tree in (('/pre/fix', {b'a', b'sub/', b'sub/b'}), ('/pre/fix/', {b'a', b'sub/', b'sub/b'}),
                         ('/pre', {b'd', b'fix/', b'fix/a', b'fix/sub/', b'fix/sub/b', b'fixture/', b'fixture/c'}),
                         ('/pr+e', {b'f'}), ('/é&', {b'g'}), ('/nothing/here', set())):
        with bench.mount(prefix) as mount:
            assert _tree(mount.point) == tree, prefix
            for name in tree:
                if not name.endswith(b'/'):
                    assert _read(mount, name) == _body(f'{prefix.strip("/")}/'.encode() + name)


# --- listings ---

_filled = set()


def _fill_many(bench, bucket, files, directories):
    """2,500 keys; on the gateway once for all clients."""
    if not bench.s3 and bench.store.url in _filled:  # a server of ours may get the port of one before it
        return
    bench.store.make_bucket(bucket)
    for name in files:
        bench.store.put(name, b'x' * 100, bucket)
    for name in directories:
        bench.store.put(name + '/x', b'x', bucket)
    _filled.add(bench.store.url)


def case_many(bench):
    """Files and directories over several pages, each once."""
    files = {f'f{i:04d}' for i in range(1300)}
    directories = {f'd{i:04d}' for i in range(1200)}
    _fill_many(bench, 'many', files, directories)
    with bench.mount(bucket='many') as mount:
        names = os.listdir(mount.point)
        assert len(names) == 2500 and set(names) == files | directories
        assert sum(entry.is_dir() for entry in os.scandir(mount.point)) == 1200
        assert os.listdir(mount.path('d0777')) == ['x']
        assert os.stat(mount.path('f1299')).st_size == 100


def case_nothing(bench):
    """What is not there."""
    bench.put('dir/file', b'1')
    with bench.mount() as mount:
        for name in ('no', 'dir/no', 'dir/no/no', 'di', 'dir/fil'):
            _fails(errno.ENOENT, os.stat, mount.path(name))
        _fails(errno.ENOTDIR, os.stat, mount.path('dir/file/no'))
        _fails(errno.ENOENT, os.listdir, mount.path('nodir'))


def case_empty_bucket(bench):
    with bench.mount() as mount:
        assert os.listdir(mount.point) == []


# --- bytes ---

def case_ranges(bench):
    size = 3 * MIB + 12345
    data = random.Random(1).randbytes(size)
    bench.put('dir/object', data)
    block = 256 * KIB
    with bench.mount(readahead=0, passthrough='off') as mount:
        fd = os.open(mount.path('dir/object'), os.O_RDONLY)
        for offset, length in ((0, 1), (size - 1, 1), (size - 1, 100), (block - 1, 2), (2 * block - 100, block + 200),
                               (size - 12345, 12345), (size, 10), (size + 10, 10), (MIB, MIB), (0, size)):
            assert os.pread(fd, length, offset) == data[offset:offset + length], (offset, length)
        os.close(fd)
        assert mount.origin_bytes() < 1.5 * size


def case_sizes(bench):
    """Whole objects around the borders of blocks, and the empty one."""
    sizes = [0, 1, 255, 4095, 4096, 4097, 256 * KIB - 1, 256 * KIB, 256 * KIB + 1, MIB, MIB + 1]
    dice = random.Random(2)
    bodies = {f's{size}': dice.randbytes(size) for size in sizes}
    for key, body in bodies.items():
        bench.put(key, body)
    with bench.mount() as mount:
        for key, body in bodies.items():
            assert os.stat(mount.path(key)).st_size == len(body)
            assert _read(mount, key) == body, key


def case_stat(bench):
    """Size, time and ETag are those of the object."""
    etag = bench.put('dir/object', b'z' * 1234)
    headers, _ = bench.store.request('HEAD', bench.bucket, 'dir/object')
    told = email.utils.parsedate_to_datetime(headers['Last-Modified']).timestamp()
    with bench.mount() as mount:
        stat = os.stat(mount.path('dir/object'))
        assert stat.st_size == 1234
        assert int(stat.st_mtime) == told, f'{stat.st_mtime} for {told}'
        assert os.getxattr(mount.path('dir/object'), 'user.dctf.etag').decode() == etag


# --- versions ---

def _changed_while_open(bench, change, then):
    old = stamp(1, 4 * MIB)
    bench.put('dir/object', old)
    with bench.mount(readahead=0, passthrough='off') as mount:
        path = mount.path('dir/object')
        fd = os.open(path, os.O_RDONLY)
        assert os.pread(fd, 64 * KIB, 0) == old[:64 * KIB]
        change()
        assert os.pread(fd, 64 * KIB, 0) == old[:64 * KIB]
        _fails(errno.ESTALE, os.pread, fd, 64 * KIB, 3 * MIB)
        mount.sync()
        then(mount, path)
        _fails(errno.ESTALE, os.pread, fd, 64 * KIB, 2 * MIB)
        os.close(fd)


def _overwrite(bench, size):
    new = stamp(2, size)

    def shows(mount, path):
        wait_until(lambda: _read(mount, 'dir/object') == new, 10, 'the new version shows')
        assert os.stat(path).st_size == size
    _changed_while_open(bench, lambda: bench.put('dir/object', new), shows)


def case_overwrite_same_size(bench):
    _overwrite(bench, 4 * MIB)


def case_overwrite_shorter(bench):
    _overwrite(bench, MIB)


def case_delete(bench):
    def gone(mount, path):
        wait_until(lambda: not os.path.exists(path), 10, 'the name is gone')
    bench.put('other', b'1')
    _changed_while_open(bench, lambda: bench.store.delete('dir/object', bench.bucket), gone)


# --- access ---

def case_wrong_secret(bench):
    bench.put('x', b'1')
    bench.refused(2016, key=(bench.store.key.access, 'not-the-secret', None))


def case_unknown_key(bench):
    bench.refused(2016, key=('NOSUCHKEY00000000001', 'not-the-secret', None))


def case_missing_bucket(bench):
    bench.refused(2019, bucket='there-is-no-such-bucket')


def case_virtual_host(bench):
    """The bucket in the host name: curl takes every name below localhost for this machine."""
    keys = ('dir/pl+us', 'dir/été', 'sp dir/sp ace+été', 'sp dir/sp+ace+été')
    for key in keys:
        bench.put(key, _body(key))
    endpoint = bench.store.url.replace('127.0.0.1', 'localhost')
    with bench.mount(endpoint=endpoint, path_style='off') as mount:
        assert _tree(mount.point) == _expected(keys)
        for key in keys:
            assert _read(mount, key) == _body(key)


# --- what only the test server can do ---

def test_server_curl_key_withdrawn(place):
    _key_withdrawn(place, 'curl')


def test_server_libs3_key_withdrawn(place):
    _key_withdrawn(place, 'libs3')


def _key_withdrawn(place, client):
    """Access is lost while mounted: EACCES with its code, and reads go on when it is back."""
    bench = Bench(place, 'server', client, 'withdrawn')
    for i in range(3):
        bench.put(f'dir/{i}', b'x' * 1000)
    with bench.mount(readahead_shards=0) as mount:
        assert _read(mount, 'dir/0') == b'x' * 1000
        bench.s3.remove_key(bench.s3.key.access)
        _fails(errno.EACCES, _read, mount, 'dir/1')
        assert mount.metric('dctf_errors_total', code='2016') > 0
        assert _read(mount, 'dir/0') == b'x' * 1000
        bench.s3.add_key(bench.s3.key)
        wait_until(lambda: _try(_read, mount, 'dir/1') == b'x' * 1000, 20, 'access is back')
    bench.end()


def _try(fn, *args):
    try:
        return fn(*args)
    except OSError:
        return None


def test_server_libs3_faults(place):
    """Answers that libs3 takes for good ones."""
    bench = Bench(place, 'server', 'libs3', 'faults')
    data = random.Random(3).randbytes(MIB)
    names = {f'f{i:03d}' for i in range(200)}
    for name in names:
        bench.put(f'dir/{name}', b'1')

    def read_through(number, *rules):
        """A new object is read while the rules hold: all of it, or the error."""
        key = f'object-{time.monotonic_ns()}'
        bench.put(key, data)
        mount.sync()
        bench.s3.set_faults(*rules)
        try:
            if number:
                _fails(number, _read, mount, key)
            else:
                assert _read(mount, key) == data
        finally:
            bench.s3.clear()

    with bench.mount(origin_retries=3, read_deadline_ms=20000) as mount:
        read_through(0, {'kind': 'cut', 'op': 'get', 'after': 1000, 'count': 2})
        read_through(0, {'kind': 'cut', 'op': 'get', 'after': 0, 'count': 2})
        read_through(0, {'kind': 'reset', 'op': 'get', 'after': 5000, 'count': 2})
        read_through(0, {'kind': 'status', 'status': 503, 'code': 'SlowDown', 'op': 'get', 'count': 2})
        read_through(0, {'kind': 'status', 'status': 502, 'op': 'get', 'count': 2})
        read_through(0, {'kind': 'garbage', 'op': 'get', 'count': 1})
        read_through(0, {'kind': 'empty', 'op': 'get', 'count': 1})
        read_through(errno.EIO, {'kind': 'cut', 'op': 'get', 'after': 1000})
        read_through(errno.ESTALE, {'kind': 'wrong_etag', 'op': 'get'})
        read_through(errno.ESTALE, {'kind': 'overwrite', 'op': 'get', 'count': 1})
        # A listing that is not whole is no listing.
        for kind in ({'kind': 'cut', 'after': 5000}, {'kind': 'cut', 'after': 0}, {'kind': 'truncated_xml'},
                     {'kind': 'invalid_xml'}, {'kind': 'error_200'}, {'kind': 'empty'}):
            bench.s3.set_faults({**kind, 'op': 'list', 'count': 2})
            mount.sync('dir')
            assert set(os.listdir(mount.path('dir'))) == names, kind
            bench.s3.clear()
    bench.end()


def test_server_libs3_stall(place):
    """Stalled transfers cost threads of the library's pool, not the readers of other files, and
    the readers of theirs no longer than the deadline."""
    bench = Bench(place, 'server', 'libs3', 'stall')
    for i in range(40):
        bench.put(f'stuck/{i}', b'x' * 100000)
    bench.put('free/file', b'y')
    with bench.mount(read_deadline_ms=2000, origin_concurrency=4, origin_retries=0, readahead_shards=0) as mount:
        assert len(os.listdir(mount.path('stuck'))) == 40 and os.listdir(mount.path('free')) == ['file']
        bench.s3.set_faults({'kind': 'stall', 'op': 'get', 'prefix': 'stuck/', 'after': 1000})
        children = [Child(_read, mount, f'stuck/{i}') for i in range(4)]
        for child in children:
            with within(8, 'a stalled read'):
                _fails(errno.ETIMEDOUT, child.result, 20)
        with within(5, 'a read beside stalled ones'):
            assert _read(mount, 'free/file') == b'y'
        bench.s3.clear()
        assert _read(mount, 'stuck/7') == b'x' * 100000
    bench.end()


def test_libs3_refusals(place):
    """What libs3 cannot do safely is told before anything is mounted."""
    bench = Bench(place, 'server', 'libs3', 'refusals')
    bench.put('x', b'1')
    bench.refused(2020, endpoint='https://localhost:1')
    bench.refused(2020, endpoint=None)
    bench.refused(2020, endpoint=bench.store.url + '/base')
    bench.refused(2020, requester_pays='on')
    access, secret, _ = bench.store.key
    for lines in (['anonymous = on'],
                  [f'access_key_id = {access}', f'secret_access_key = {secret}', 'session_token = token']):
        write_config(place, *lines)
        mount = Mount(place, f's3://{bench.bucket}', wait=False, s3_client='libs3', endpoint=bench.store.url)
        mount.wait_end(status=1)
        assert 'error 2020 ' in mount.log_text(), mount.log_text()
    # Temporary keys that come from elsewhere than the options.
    write_config(place)
    environ = {**bench.s3.environ(), 'AWS_SESSION_TOKEN': 'token'}
    mount = Mount(place, f's3://{bench.bucket}', wait=False, s3_client='libs3', endpoint=bench.store.url,
                  environ=environ)
    mount.wait_end(status=1)
    assert 'error 2020 ' in mount.log_text(), mount.log_text()
    bench.end()


def _make_test(server, client, case, name):
    def test(place):
        bench = Bench(place, server, client, name)
        case(bench)
        bench.end()
    test.__doc__ = case.__doc__
    return test


for _server in SERVERS:
    for _client in CLIENTS:
        for _name, _case in [(n[5:], f) for n, f in globals().items() if n.startswith('case_')]:
            globals()[f'test_{_server}_{_client}_{_name}'] = _make_test(_server, _client, _case, _name)


if __name__ == '__main__':
    main(globals())
