#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random trees and random operations: the mount and a model of docs/keys.md give the same
answers. The model knows nothing but the source directory and the rules."""

import errno
import mmap
import os
import random
import shutil
import socket
import stat

from dctf_e2e import *

NAME_MAX, KEY_MAX = 255, 1024
ROUNDS = 20 if LONG else scaled(4, 2)
OPERATIONS = 400
ODD = (b' ', b'%', b'%2F', b'+', b'&', b'?', b'#', b'"', b"'", b'\\', b'\n', b'\t', b'\r', b'\x01', b'\x7f', b':',
       b';', b'*', b'[', b'{', b'~', b'\xc3\xa4', b'e\xcc\x81', b'\xe6\xbc\xa2', b'\xf0\x9f\x98\x80', b'\xff',
       b'\xc3', b'\xed\xa0\x80', b'.', b'..', b'-', b'A', b'a')


class Model:
    """What docs/keys.md says the mount shows of a source, bytes for bytes."""

    def __init__(self, root):
        self.root = root
        self.real_root = os.path.realpath(root)

    def _inside(self, path):
        real = os.path.realpath(path)
        return real == self.real_root or real.startswith(self.real_root + b'/')

    def _entry(self, directory, name):
        """The stat of a shown entry, None for a hidden one."""
        key = os.path.join(directory, name) if directory else name
        if len(name) > NAME_MAX or len(key) > KEY_MAX or (not directory and name == b'.dctf'):
            return None
        path = os.path.join(self.root, key)
        try:
            st = os.lstat(path)
            if stat.S_ISLNK(st.st_mode):
                st = os.stat(path)
                if not stat.S_ISREG(st.st_mode) or not self._inside(path):
                    return None
        except OSError:
            return None
        return st if stat.S_ISREG(st.st_mode) or stat.S_ISDIR(st.st_mode) else None

    def list(self, directory):
        """Names in byte order; raises OSError."""
        if directory:
            self.stat(directory, must_be_dir=True)
        return sorted(name for name in os.listdir(os.path.join(self.root, directory))
                      if self._entry(directory, name))

    def stat(self, key, must_be_dir=False):
        """(is a directory, size, mtime) as the mount shows it; raises OSError."""
        if not key:
            return True, 0, 0
        parts = key.split(b'/')
        directory = b''
        for i, name in enumerate(parts):
            st = self._entry(directory, name)
            last = i == len(parts) - 1
            if st is None:
                raise OSError(errno.ENOENT, 'hidden or absent')
            if not stat.S_ISDIR(st.st_mode) and (must_be_dir or not last):
                raise OSError(errno.ENOTDIR, 'a file')
            directory = os.path.join(directory, name) if directory else name
        is_dir = stat.S_ISDIR(st.st_mode)
        return is_dir, 0 if is_dir else st.st_size, st.st_mtime_ns

    def read(self, key):
        if self.stat(key)[0]:
            raise OSError(errno.EISDIR, 'a directory')
        with open(os.path.join(self.root, key), 'rb') as file:
            return file.read()


def _name(dice):
    kind = dice.random()
    if kind < 0.5:
        name = b'n%d' % dice.randrange(40)
    elif kind < 0.9:
        name = b''.join(dice.choice(ODD + (b'x', b'y7')) for _ in range(dice.randrange(1, 5)))
    elif kind < 0.97:
        name = b'L' * dice.choice((254, 255)) if dice.random() < 0.5 else b'm' * dice.randrange(1, 255)
    else:
        name = b'.dctf'
    return b'dots' if name in (b'.', b'..') else name[:NAME_MAX]


def _directories(root):
    found = [b'']
    for directory, subdirectories, _ in os.walk(root):
        found += [os.path.relpath(os.path.join(directory, name), root) for name in subdirectories]
    return found


def _write(path, dice):
    size = dice.choice((0, 1, 100, 4096, 70000, 262144, 262145, 1048576, 1048577, 1700000))
    with open(path, 'wb') as file:
        file.write(dice.randbytes(size))
    now = dice.randrange(10 ** 18, 2 * 10 ** 18)
    os.utime(path, ns=(now, now))


def _make_entry(root, directory, dice):
    path = os.path.join(root, directory, _name(dice))
    if os.path.lexists(path) or len(path) > 4000:
        return
    kind = dice.random()
    if kind < 0.5:
        _write(path, dice)
    elif kind < 0.75:
        os.mkdir(path)
    elif kind < 0.95:
        _make_link(root, path, dice)
    elif kind < 0.975:
        os.mkfifo(path)
    else:
        # A socket's address is short: bind it where the path is.
        fd = os.open(os.path.dirname(path), os.O_PATH)
        try:
            with socket.socket(socket.AF_UNIX) as sock:
                sock.bind(b'/proc/self/fd/%d/' % fd + os.path.basename(path))
        except OSError:
            pass
        os.close(fd)


def _make_link(root, path, dice):
    inside = [os.path.join(directory, name) for directory, _, names in os.walk(root) for name in names]
    kind = dice.randrange(6)
    if kind == 0:
        target = b'/etc/hostname'
    elif kind == 1:
        target = b'dangling-%d' % dice.randrange(9)
    elif kind == 2:
        target = os.path.join(root, dice.choice(_directories(root)))
    elif kind == 3 or not inside:
        target = os.path.basename(path)  # itself
    elif kind == 4:
        target = os.path.relpath(dice.choice(inside), os.path.dirname(path))
    else:
        target = dice.choice(inside)
    os.symlink(target, path)


def _make_tree(root, dice):
    for _ in range(120):
        _make_entry(root, dice.choice(_directories(root)), dice)
    # A key of 1024 bytes is seen, one of 1025 is hidden, their neighbours are seen.
    deep = root
    for part in (b'd' * NAME_MAX, b'e' * NAME_MAX, b'f' * NAME_MAX, b'h'):
        deep = os.path.join(deep, part)
        os.mkdir(deep)
    left = KEY_MAX - len(os.path.relpath(deep, root)) - 1
    for name in (b'i' * left, b'j' * (left + 1), b'ok'):
        _write(os.path.join(deep, name), dice)


def _change_source(root, dice):
    directory = dice.choice(_directories(root))
    where = os.path.realpath(os.path.join(root, directory))  # a link on the way may be what is removed
    names = os.listdir(where)
    kind = dice.randrange(5)
    if kind < 2 or not names:
        _make_entry(root, directory, dice)
        return
    path = os.path.join(where, dice.choice(names))
    if kind == 2:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    elif kind == 3:
        other = os.path.join(root, dice.choice(_directories(root)), _name(dice))
        try:
            if not os.path.lexists(other):
                os.rename(path, other)
        except OSError as error:
            assert error.errno == errno.EINVAL, error  # into itself
    elif os.path.isfile(path) and not os.path.islink(path):
        os.unlink(path)
        _write(path, dice)


def _outcome(function, *args):
    try:
        return 'ok', function(*args)
    except OSError as error:
        return 'errno', errno.errorcode.get(error.errno, error.errno)


def _mount_stat(path):
    st = os.lstat(path)
    is_dir = stat.S_ISDIR(st.st_mode)
    assert is_dir or stat.S_ISREG(st.st_mode)
    return is_dir, 0 if is_dir else st.st_size, st.st_mtime_ns


def _read_parts(path, size, dice):
    """All of a file in pieces of any size and order, by pread and mmap."""
    data = bytearray(size)
    fd = os.open(path, os.O_RDONLY)
    try:
        assert os.fstat(fd).st_size == size
        cuts = sorted({0, size, *(dice.randrange(size + 1) for _ in range(6))})
        pieces = list(zip(cuts, cuts[1:]))
        dice.shuffle(pieces)
        for start, end in pieces:
            if dice.random() < 0.3:
                with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as mapped:
                    data[start:end] = mapped[start:end]
            else:
                while start < end:
                    part = os.pread(fd, end - start, start)
                    assert part, 'a read came to an early end'
                    data[start:start + len(part)] = part
                    start += len(part)
        assert os.pread(fd, 1, size) == b''
    finally:
        os.close(fd)
    return bytes(data)


def _some_key(model, dice):
    """A key that exists, or nearly so."""
    directory = dice.choice(_directories(model.root))
    names = os.listdir(os.path.join(model.root, directory))
    kind = dice.random()
    if kind < 0.1:
        return directory
    name = dice.choice(names) if names and kind < 0.85 else _name(dice)
    key = os.path.join(directory, name) if directory else name
    return os.path.join(key, _name(dice)) if kind > 0.95 else key


def _compare_one(mount_root, model, dice):
    key = _some_key(model, dice)
    path = os.path.join(mount_root, key)
    if key == b'.dctf' or key.startswith(b'.dctf/'):
        return  # the mount's own
    wanted = _outcome(model.stat, key)
    got = _outcome(_mount_stat, path)
    if wanted[0] == 'ok' and wanted[1][0]:  # of directories the time is free
        assert got[0] == 'ok' and got[1][0], (key, wanted, got)
        wanted = _outcome(model.list, key)
        names = _outcome(os.listdir, path)
        assert names[0] == 'ok' and sorted(names[1]) == wanted[1], (key, wanted, names)
        return
    assert got == wanted, (key, wanted, got)
    if wanted[0] == 'ok':
        assert_same(_read_parts(path, wanted[1][1], dice), model.read(key), repr(key))


def _compare_all(mount_root, model):
    """Everything shown, and nothing else."""
    files = 0
    pending = [b'']
    while pending:
        directory = pending.pop()
        wanted = model.list(directory)
        got = os.listdir(os.path.join(mount_root, directory))
        assert len(got) == len(set(got)), (directory, 'a name twice')
        assert sorted(got) == wanted, (directory, set(got) ^ set(wanted))
        for name in wanted:
            key = os.path.join(directory, name) if directory else name
            shown = model.stat(key)
            if shown[0]:
                pending.append(key)
                continue
            assert _mount_stat(os.path.join(mount_root, key)) == shown, key
            assert_same(read_all(os.path.join(mount_root, key)), model.read(key), repr(key))
            files += 1
    return files


def _play(place, dice, name):
    root = os.fsencode(place.directory(name))
    _make_tree(root, dice)
    model = Model(root)
    url = 'file://' + os.fsdecode(root)
    cache = place.path(name + '-cache')
    with Mount(place, url, cache=cache, cache_size=dice.choice(('20M', '1G')),
               passthrough=dice.choice(('auto', 'off'))) as mount:
        point = os.fsencode(mount.point)
        files = _compare_all(point, model)
        for _ in range(OPERATIONS):
            if dice.random() < 0.05:
                for _ in range(dice.randrange(1, 5)):
                    _change_source(root, dice)
                mount.sync()
                settle(mount)
            elif dice.random() < 0.02:
                mount.ask('evict', path='')
            else:
                _compare_one(point, model, dice)
        _compare_all(point, model)
    with Mount(place, url, cache=cache) as mount:
        mount.sync()
        _compare_all(os.fsencode(mount.point), model)
    return files


def settle(mount):
    """Invalidations go to the kernel from a thread of their own: wait until it has sent them."""
    last = [-1]

    def quiet():
        now = mount.metric('dctf_fs_notifications_total')
        same, last[0] = now == last[0], now
        return same
    wait_until(quiet, 10, 'the notifications are sent')


def test_compare_with_model(place):
    value = seed()
    for n in range(ROUNDS):
        files = _play(place, random.Random(f'{value}:{n}'), f'tree-{n}')
        assert files > 10


if __name__ == '__main__':
    main(globals())
