#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A directory of shards as files: the same tree, read-only, from the cache the second time."""

import ctypes
import errno
import json
import mmap
import os
import stat
import subprocess

from dctf_e2e import *

KIB, MIB = 1024, 1024 * 1024
# Around the sizes where something changes: pages, blocks of 256 KiB, small shards of 1 MiB.
SIZES = (0, 1, 4095, 4096, 4097, 256 * KIB - 1, 256 * KIB, 256 * KIB + 1, MIB - 1, MIB, MIB + 1,
         3 * MIB + 12345, 9 * MIB + 1)
FILES = {f'sizes/shard-{size}.bin': size for size in SIZES}
FILES.update({'top.bin': 100, 'a/b/c/deep.bin': 70000, 'a/b/other.bin': 5})


def _make(place):
    make_tree(place.source, FILES)
    os.mkdir(os.path.join(place.source, 'empty'))
    return sum(FILES.values())


def _raises(number, function, *args, **more):
    try:
        function(*args, **more)
    except OSError as error:
        assert error.errno == number, f'{errno.errorcode.get(error.errno)}, not {errno.errorcode[number]}'
        return
    raise AssertionError(f'no {errno.errorcode[number]}')


def test_read_whole_tree(place):
    _make(place)
    with Mount(place) as mount:
        assert assert_same_tree(mount.point, place.source) == len(FILES)
        for directory in ('', 'sizes', 'empty', 'a/b'):
            st = os.stat(mount.path(directory))
            assert stat.S_IMODE(st.st_mode) == 0o555
        st = os.stat(mount.path('top.bin'))
        assert stat.S_IMODE(st.st_mode) == 0o444
        assert (st.st_uid, st.st_gid) == (0, 0)
        _raises(errno.ENOENT, os.stat, mount.path('absent'))
        _raises(errno.ENOENT, os.stat, mount.path('sizes/absent'))
        _raises(errno.ENOTDIR, os.stat, mount.path('top.bin/x'))


def test_times_are_those_of_the_source(place):
    _make(place)
    times = {'top.bin': -1_500_000_000, 'a/b/other.bin': -2_000_000_000, 'a/b/c/deep.bin': 1_999_999_999}
    for name, mtime in times.items():
        os.utime(os.path.join(place.source, name), ns=(mtime, mtime))
    with Mount(place) as mount:
        for name, mtime in times.items():
            assert os.stat(mount.path(name)).st_mtime_ns == mtime, name


def test_read_again_without_origin(place):
    size = _make(place)
    with Mount(place) as mount:
        assert_same_tree(mount.point, place.source)
        before = mount.origin_bytes()
        assert size <= before <= size * 1.02, f'{before} bytes from the source for {size}'
        for name in FILES:
            drop_pages(mount.path(name))
        assert_same_tree(mount.point, place.source)
        assert mount.origin_bytes() == before
        assert mount.metric('dctf_reads_waiting') == 0


def test_remount_keeps_cache(place):
    _make(place)
    with Mount(place) as mount:
        assert_same_tree(mount.point, place.source)
    with Mount(place) as mount:
        assert_same_tree(mount.point, place.source)
        assert mount.origin_bytes() == 0
        assert mount.metric('dctf_cache_shard_opens_total', result='miss') == 0


def test_read_in_background(place):
    _make(place)
    with Mount(place, background=True) as mount:
        assert_same_tree(mount.point, place.source)
    with Mount(place, background=True) as mount:
        assert_same_tree(mount.point, place.source)
        assert mount.origin_bytes() == 0
        mount.terminate()


def test_refuse_writes(place):
    _make(place)
    with Mount(place) as mount:
        file, absent = mount.path('top.bin'), mount.path('new')
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_APPEND):
            _raises(errno.EROFS, os.open, file, flags)
        _raises(errno.EROFS, os.open, absent, os.O_CREAT | os.O_WRONLY)
        _raises(errno.EROFS, os.open, mount.point, os.O_TMPFILE | os.O_RDWR)
        _raises(errno.EROFS, os.mkdir, absent)
        _raises(errno.EROFS, os.mkfifo, absent)
        _raises(errno.EROFS, os.symlink, 'x', absent)
        _raises(errno.EROFS, os.link, file, absent)
        _raises(errno.EROFS, os.unlink, file)
        _raises(errno.EROFS, os.rmdir, mount.path('empty'))
        _raises(errno.EROFS, os.rename, file, absent)
        _raises(errno.EROFS, os.chmod, file, 0o600)
        _raises(errno.EROFS, os.chown, file, 1, 1)
        _raises(errno.EROFS, os.utime, file)
        _raises(errno.EROFS, os.truncate, file, 0)
        _raises(errno.EROFS, os.setxattr, file, 'user.x', b'1')
        _raises(errno.EROFS, os.removexattr, file, 'user.dctf.etag')
        assert not os.access(file, os.W_OK)
        assert_same(read_all(file), bytes_of('top.bin', 100))


def test_tell_space(place):
    _make(place)
    with Mount(place, cache_size='512M') as mount:
        before = os.statvfs(mount.point)
        assert before.f_blocks * before.f_frsize <= 512 * MIB
        assert before.f_flag & os.ST_RDONLY
        assert before.f_namemax == 255
        read_all(mount.path(f'sizes/shard-{9 * MIB + 1}.bin'))
        used = wait_until(lambda: os.statvfs(mount.point).f_bfree < before.f_bfree - 2000, 10,
                          'statfs shows what the cache holds')
        assert used
        done = subprocess.run(['df', '-B1', mount.point], capture_output=True, check=True, timeout=limit(10))
        assert mount.point.encode() in done.stdout


def test_seek_directory(place):
    """telldir() and seekdir() while entries are read in pieces."""
    names = {f'entry-{i:05}' for i in range(3000)}
    for name in names:
        write_file(os.path.join(place.source, 'big', name), b'x')
    with Mount(place) as mount:
        libc = ctypes.CDLL(None, use_errno=True)

        class Dirent(ctypes.Structure):
            _fields_ = [('ino', ctypes.c_uint64), ('off', ctypes.c_int64), ('reclen', ctypes.c_uint16),
                        ('type', ctypes.c_uint8), ('name', ctypes.c_char * 256)]
        libc.opendir.restype = ctypes.c_void_p
        libc.readdir.argtypes, libc.readdir.restype = [ctypes.c_void_p], ctypes.POINTER(Dirent)
        libc.telldir.argtypes, libc.telldir.restype = [ctypes.c_void_p], ctypes.c_long
        libc.seekdir.argtypes, libc.seekdir.restype = [ctypes.c_void_p, ctypes.c_long], None
        libc.closedir.argtypes = [ctypes.c_void_p]
        directory = libc.opendir(os.fsencode(mount.path('big')))
        assert directory
        order, place_of = [], []
        while True:
            place_of.append(libc.telldir(directory))
            entry = libc.readdir(directory)
            if not entry:
                break
            order.append(entry.contents.name.decode())
        assert set(order) == names | {'.', '..'} and len(order) == len(names) + 2
        for at in (0, 1, 2, 3, 1500, 2999, 3001, 700):
            libc.seekdir(directory, place_of[at])
            assert libc.readdir(directory).contents.name.decode() == order[at]
        libc.seekdir(directory, place_of[-1])
        assert not libc.readdir(directory)
        # Stable while the directory changes: this handle goes on with what it began.
        libc.seekdir(directory, place_of[1000])
        write_file(os.path.join(place.source, 'big', 'aaa-first'), b'x')
        os.unlink(os.path.join(place.source, 'big', 'entry-01500'))
        mount.sync()
        assert 'aaa-first' in os.listdir(mount.path('big'))
        assert 'entry-01500' not in os.listdir(mount.path('big'))
        rest = []
        while (entry := libc.readdir(directory)):
            rest.append(entry.contents.name.decode())
        assert rest == order[1000:]
        libc.closedir(directory)


def test_read_attributes(place):
    _make(place)
    name = f'sizes/shard-{3 * MIB + 12345}.bin'
    with Mount(place) as mount:
        path = mount.path(name)

        def get(attribute):
            return os.getxattr(path, 'user.dctf.' + attribute).decode()
        assert sorted(os.listxattr(path)) == sorted(
            'user.dctf.' + a for a in ('etag', 'tier', 'present', 'feature', 'heat'))
        assert get('tier') == 'cold' and get('present') == '0'
        assert get('feature') == 'sizes'
        assert get('etag')
        read_all(path)
        wait_until(lambda: get('present') == str(3 * MIB + 12345), 10, 'all blocks are in the cache')
        assert get('tier') in ('warm', 'hot')
        assert float(get('heat')) > 0
        _raises(errno.ENODATA, os.getxattr, path, 'user.dctf.nonsense')
        _raises(errno.ENODATA, os.getxattr, path, 'user.other')
        _raises(errno.ENODATA, os.getxattr, mount.path('sizes'), 'user.dctf.etag')
        assert os.listxattr(mount.path('sizes')) == []


def test_show_own_directory(place):
    _make(place)
    os.mkdir(os.path.join(place.source, '.dctf'))
    write_file(os.path.join(place.source, '.dctf/hidden'), b'x')
    write_file(os.path.join(place.source, 'a/.dctf/seen'), b'seen')
    with Mount(place) as mount:
        assert '.dctf' not in os.listdir(mount.point)
        assert {'config', 'heat.tsv', 'metrics', 'peers.tsv', 'status.json'} <= set(os.listdir(mount.path('.dctf')))
        read_all(mount.path('top.bin'))
        for name in os.listdir(mount.path('.dctf')):
            assert len(read_all(mount.path('.dctf', name))) > 20, name
        status = json.loads(read_all(mount.path('.dctf/status.json')))
        assert status['pid'] == mount.pid
        assert status['source'] == mount.source and status['mountpoint'] == mount.point
        assert b'cache_size' in read_all(mount.path('.dctf/config'))
        metrics = read_all(mount.path('.dctf/metrics')).decode()
        for name in ('dctf_transfer_latency_seconds', 'dctf_shard_hit_rate', 'dctf_opens_total{tier="cold"} 1',
                     'dctf_origin_requests_total{op="list"}', 'dctf_cache_bytes{tier="index"}'):
            assert name in metrics, name
        _raises(errno.ENOENT, os.stat, mount.path('.dctf/hidden'))
        _raises(errno.EROFS, os.open, mount.path('.dctf/metrics'), os.O_WRONLY)
        assert read_all(mount.path('a/.dctf/seen')) == b'seen'
        assert mount.metric('dctf_namespace_hidden_keys_total') == 1


def test_map_file(place):
    _make(place)
    name = f'sizes/shard-{9 * MIB + 1}.bin'
    expected = bytes_of(name, 9 * MIB + 1)

    def read_mapped():
        with open(mount.path(name), 'rb') as file:
            with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                for at in (0, 5 * MIB, 9 * MIB, 123456):
                    assert mapped[at:at + 100] == expected[at:at + 100]
                # A child goes on with its parent's mapping.
                if (pid := os.fork()) == 0:
                    os._exit(0 if mapped[:] == expected else 1)
                assert mapped[:] == expected
                assert os.waitpid(pid, 0)[1] == 0
    with Mount(place) as mount:  # from the source, from the page cache, from the cache
        in_child(60, read_mapped)
        in_child(60, read_mapped)
        drop_pages(mount.path(name))
        in_child(60, read_mapped)
    with Mount(place) as mount:
        in_child(60, read_mapped)
        assert mount.origin_bytes() == 0


def test_map_array(place):
    try:
        import numpy
    except ImportError:
        skip('no numpy')
    array = numpy.arange(1 << 19, dtype=numpy.float64).reshape(512, 1024)
    numpy.save(place.path('array.npy'), array)
    write_file(os.path.join(place.source, 'array.npy'), read_all(place.path('array.npy')))

    def compare():
        mapped = numpy.load(mount.path('array.npy'), mmap_mode='r')
        assert (mapped[100:110] == array[100:110]).all()
        assert mapped.sum() == array.sum()
    with Mount(place) as mount:
        in_child(60, compare)
    with Mount(place) as mount:
        in_child(60, compare)


def test_read_direct(place):
    _make(place)
    name = f'sizes/shard-{3 * MIB + 12345}.bin'
    expected = bytes_of(name, 3 * MIB + 12345)
    buffer = mmap.mmap(-1, MIB)
    with Mount(place) as mount:
        for _ in range(2):
            fd = os.open(mount.path(name), os.O_RDONLY | os.O_DIRECT)
            got = b''
            while True:
                n = os.preadv(fd, [buffer], len(got))
                if n == 0:
                    break
                got += buffer[:n]
            os.close(fd)
            assert_same(got, expected)


def test_read_past_end(place):
    _make(place)
    with Mount(place) as mount:
        path = mount.path('top.bin')
        assert read_at(path, 100, 10) == b''
        assert read_at(path, 1 << 40, 10) == b''
        assert read_at(path, 95, 10) == bytes_of('top.bin', 100)[95:]
        assert read_all(mount.path('sizes/shard-0.bin')) == b''


def _as_nobody(function, *args):
    def run():
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
        return function(*args)
    return in_child(20, run)


def test_read_as_another_user(place):
    _make(place)
    with Mount(place) as mount:
        _raises(errno.EACCES, _as_nobody, os.listdir, mount.point)
    with Mount(place, allow_other=True) as mount:
        assert _as_nobody(read_all, mount.path('top.bin')) == bytes_of('top.bin', 100)
        assert '.dctf' not in _as_nobody(os.listdir, mount.point)
    with Mount(place, allow_other=True, uid=12, gid=34, umask='027') as mount:
        st = os.stat(mount.path('top.bin'))
        assert (st.st_uid, st.st_gid, stat.S_IMODE(st.st_mode)) == (12, 34, 0o440)
        assert stat.S_IMODE(os.stat(mount.path('sizes')).st_mode) == 0o550
        _raises(errno.EACCES, _as_nobody, read_all, mount.path('top.bin'))


def test_keep_inode_numbers(place):
    _make(place)

    def numbers():
        return {name: os.stat(mount.path(name)).st_ino for name in (*FILES, 'a', 'a/b', 'empty', '.')}
    with Mount(place) as mount:
        first = numbers()
        for entry in os.scandir(mount.path('sizes')):
            assert entry.inode() == first['sizes/' + entry.name]
    assert len(set(first.values())) == len(first)
    with Mount(place) as mount:
        assert numbers() == first


if __name__ == '__main__':
    main(globals())
