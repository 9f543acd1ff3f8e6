# SPDX-License-Identifier: Apache-2.0
"""Files to mount, and ways to compare what is mounted with them."""

import os
import random
import stat as stat_module
import struct

PAGE = 4096


def bytes_of(name, size):
    """Bytes that depend on nothing but name and size."""
    return random.Random(f'{name}:{size}').randbytes(size)


def write_file(path, data, mtime_ns=None):
    """Make the file anew, as writers do that replace by rename."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + '.new', 'wb') as file:
        file.write(data)
    if mtime_ns is not None:
        os.utime(path + '.new', ns=(mtime_ns, mtime_ns))
    os.rename(path + '.new', path)


def make_tree(root, files):
    """{relative path: size} → files with bytes_of()."""
    for name, size in files.items():
        write_file(os.path.join(root, name), bytes_of(name, size))


def make_shards(root, count, size, directory='feature'):
    """`count` shards of `size` bytes in one directory; returns their relative paths."""
    names = [f'{directory}/shard-{i:05}.bin' for i in range(count)]
    make_tree(root, {name: size for name in names})
    return names


def read_all(path):
    with open(path, 'rb') as file:
        return file.read()


def read_at(path, offset, length):
    fd = os.open(path, os.O_RDONLY)
    try:
        return os.pread(fd, length, offset)
    finally:
        os.close(fd)


def read_fully(fd, size):
    """The first `size` bytes, or fewer where the file ends. A pread() that meets an error after
    some bytes returns these: the error comes with the next."""
    data = b''
    while len(data) < size:
        more = os.pread(fd, min(size - len(data), 1 << 20), len(data))
        if not more:
            break
        data += more
    return data


def drop_pages(path):
    """Let the kernel forget the pages of a file, so that reads reach the daemon."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def assert_same(got, expected, what=''):
    """Equal bytes; the message is short."""
    if got == expected:
        return
    at = next((i for i, (a, b) in enumerate(zip(got, expected)) if a != b),
              min(len(got), len(expected)))
    raise AssertionError(f'{what}: {len(got)} bytes, expected {len(expected)}; they differ at {at}')


def assert_same_tree(mount, source, contents=True):
    """The same names, kinds, sizes, times and bytes on both sides; files counted."""
    count = 0
    source, mount = os.fsencode(source), os.fsencode(mount)
    for directory, subdirectories, names in os.walk(source):
        relative = os.path.relpath(directory, source)
        there = os.path.normpath(os.path.join(mount, relative))
        assert sorted(os.listdir(there)) == sorted(subdirectories + names), \
            f'{there!r}: {sorted(os.listdir(there))[:20]} != {sorted(subdirectories + names)[:20]}'
        for name in names:
            _compare_file(os.path.join(there, name), os.path.join(directory, name), contents)
            count += 1
        for name in subdirectories:
            assert stat_module.S_ISDIR(os.lstat(os.path.join(there, name)).st_mode)
    return count


def _compare_file(mounted, original, contents):
    a, b = os.lstat(mounted), os.stat(original)
    assert stat_module.S_ISREG(a.st_mode), f'{mounted!r}: mode {a.st_mode:o}'
    assert a.st_size == b.st_size, f'{mounted!r}: {a.st_size} bytes, not {b.st_size}'
    assert a.st_mtime_ns == b.st_mtime_ns, f'{mounted!r}: another time'
    if contents:
        assert_same(read_all(mounted), read_all(original), os.fsdecode(mounted))


def stamp(version, size):
    """Bytes in which each page tells its version and place, so that a mix of versions shows."""
    pages = b''.join(struct.pack('<QQ', version, i) * (PAGE // 16) for i in range(-(-size // PAGE)))
    return pages[:size]


def stamps_of(data, offset=0):
    """The versions found in bytes of stamp(); fails when a page is torn or misplaced.
    `offset` is a multiple of the page."""
    versions = set()
    for at in range(0, len(data), PAGE):
        page = data[at:at + PAGE]
        if len(page) < 16:  # a tail too short to tell its version
            continue
        version, place = struct.unpack_from('<QQ', page)
        assert place == (offset + at) // PAGE, f'page {place} at {offset + at}'
        assert page == (struct.pack('<QQ', version, place) * (PAGE // 16))[:len(page)], 'torn page'
        versions.add(version)
    return versions
