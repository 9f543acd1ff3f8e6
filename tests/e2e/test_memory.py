#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One budget of memory for all handles, however many there are and whatever they do."""

import os
import random
import resource
import time

from dctf_e2e import *

MIB = 1024 * 1024
# What is not the budget: code, threads, the database's own, the heap's waste.
BESIDE = 64 * MIB


def _files(place, count, size):
    """Large shards of zeros and a stamp per page, made without writing all of it."""
    names = []
    for i in range(count):
        name = f'feature-{i % 10}/shard-{i:04}.bin'
        path = os.path.join(place.source, name)
        write_file(path, b'')
        with open(path, 'r+b') as file:
            file.truncate(size)
            for at in range(0, size, MIB):
                file.seek(at)
                file.write(f'{name}@{at}'.encode())
        names.append(name)
    return names


def _check_rss(mount, memory, what):
    peak = mount.peak_rss()
    print(f'     {what}: peak RSS {peak / MIB:.0f} MiB with memory={memory // MIB}M')
    if not SANITIZER:
        assert peak <= memory + BESIDE, f'{peak / MIB:.0f} MiB'


def _read_at_random(mount, names, size, handles, seconds, seed_value):
    """Random reads on many open handles, every one compared."""
    dice = random.Random(seed_value)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
    fds = [(names[i % len(names)], os.open(mount.path(names[i % len(names)]), os.O_RDONLY))
           for i in range(handles)]
    end = time.monotonic() + seconds
    reads = 0
    while time.monotonic() < end:
        name, fd = dice.choice(fds)
        at = dice.randrange(size // MIB) * MIB
        expected = f'{name}@{at}'.encode()
        assert os.pread(fd, 65536, at)[:len(expected)] == expected
        os.posix_fadvise(fd, at, 65536, os.POSIX_FADV_DONTNEED)
        reads += 1
    for _, fd in fds:
        os.close(fd)
    return reads


def _bound(place, memory, handles, processes, cache_size):
    size = 16 * MIB
    names = _files(place, 100, size)
    with Mount(place, memory=memory, cache_size=cache_size) as mount:
        children = [Child(_read_at_random, mount, names, size, handles // processes, 4, i)
                    for i in range(processes)]
        reads = sum(child.result(60) for child in children)
        assert reads > handles / 4 / FACTOR, f'{reads} reads only'
        status = mount.tool_status()['memory']
        assert status['buffers_used_bytes'] <= status['buffers_limit_bytes'] <= memory
        _check_rss(mount, memory, f'{handles} handles, {reads} random reads')
        wait_until(lambda: mount.metric('dctf_fs_handles') == 0, 10, 'no handle is open')
        assert mount.metric('dctf_reads_waiting') == 0


def test_bound_random_reads_in_little_memory(place):
    _bound(place, 64 * MIB, 400, 4, '100M')


def test_bound_random_reads_on_many_handles(place):
    _bound(place, 512 * MIB, 1000, 4, '2G')


def test_bound_sequential_readers(place):
    """More sequential readers than there are read-ahead windows in the budget."""
    size, memory = 12 * MIB, 64 * MIB
    names = _files(place, 40, size)

    def read(name):
        with open(mount.path(name), 'rb', buffering=0) as file:
            at = 0
            while data := file.read(MIB):
                expected = f'{name}@{at}'.encode()
                assert data[:len(expected)] == expected
                at += len(data)
        return at
    with Mount(place, memory=memory, cache_size='32M') as mount:
        children = [Child(read, name) for name in names]
        for child in children:
            assert child.result(60) == size
        _check_rss(mount, memory, f'{len(names)} sequential readers')
        wait_until(lambda: mount.metric('dctf_fs_handles') == 0, 10, 'no handle is open')


def test_hold_nothing_while_idle(place):
    """Open handles that do not read cost next to nothing."""
    names = _files(place, 100, 8 * MIB)

    def hold(reader, writer):
        resource.setrlimit(resource.RLIMIT_NOFILE, (4096, 4096))
        fds = [os.open(mount.path(names[i % 100]), os.O_RDONLY) for i in range(1000)]
        for fd in fds[:50]:
            os.pread(fd, 4096, 5 * MIB)
        os.write(writer, b'.')
        os.read(reader, 1)
        return len(fds)
    with Mount(place, memory='64M', cache_size='200M') as mount:
        ready, go = os.pipe(), os.pipe()
        with Child(hold, go[0], ready[1]) as child:
            os.read(ready[0], 1)
            assert mount.metric('dctf_fs_handles') == 1000
            wait_until(lambda: mount.tool_status()['memory']['buffers_used_bytes'] <= 16 * MIB, 10,
                       'idle handles hold no buffers')
            os.write(go[1], b'.')
            assert child.result(20) == 1000
        for fd in (*ready, *go):
            os.close(fd)
        wait_until(lambda: mount.metric('dctf_fs_handles') == 0, 10, 'no handle is open')


def test_protect_daemon(place):
    """Of all processes the daemon is not the one that the kernel kills first."""
    def lower():
        with open('/proc/self/oom_score_adj', 'w') as file:
            file.write('-100')
    try:
        in_child(10, lower)
    except OSError:
        skip('this needs CAP_SYS_RESOURCE')
    make_shards(place.source, 1, 10)
    with Mount(place) as mount:
        with open(f'/proc/{mount.pid}/oom_score_adj') as file:
            assert int(file.read()) < 0


if __name__ == '__main__':
    main(globals())
