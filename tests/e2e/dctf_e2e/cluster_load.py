# SPDX-License-Identifier: Apache-2.0
"""Readers of a cluster: one process per node that reads in an order of its own and compares all it reads."""

import os
import random
import select
import time
import zlib

from .child import Child
from .env import LONG, limit

MIB = 1024 * 1024
CHUNK = 256 * 1024
# Between two files of who reads over and over: other tests want the processors too.
PAUSE_S = 0 if LONG else 0.02
# Bytes of objects are parts of this, so that many readers on one machine can compare all they read.
_PLENTY = random.Random(1).randbytes(26 * MIB)


def plenty_of(key, size):
    """Bytes that depend on nothing but key and size, at most 24 MiB."""
    at = zlib.crc32(key.encode()) % (len(_PLENTY) - size)
    return memoryview(_PLENTY)[at:at + size]


def make_dataset(s3, mib):
    """About so many MiB: half of them in shards of several extents, most of the rest in some of a few MiB, and small
    ones; returns {key: size}."""
    files = {f'large/{i}.bin': 12 * MIB + 12345 * i for i in range(max(1, mib // 24))}
    files.update({f'mid/{i:03}.bin': 3 * MIB + i * 1000 for i in range(mib // 7)})
    files.update({f'small/{i:03}.bin': 50000 + i for i in range(mib)})
    for key, size in files.items():
        s3.put(key, plenty_of(key, size))
    return files


def read_and_compare(point, key, size, took=None):
    """Read a file whole, past what the kernel has of it. `took` gets the seconds of each read."""
    expected = plenty_of(key, size)
    fd = os.open(f'{point}/{key}', os.O_RDONLY)
    try:
        at = 0
        while True:
            begun = time.monotonic()
            data = os.read(fd, CHUNK)
            if took is not None:
                took.append(time.monotonic() - begun)
            if not data:
                break
            assert data == expected[at:at + len(data)], f'{key}: other bytes at {at} of {point}'
            at += len(data)
        assert at == size, f'{key}: {at} bytes, not {size}'
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


class Reader:
    """Reads `files` ({key: size}) of a mount in orders drawn from `order`: once, or over and over until it is stopped.
    With order None as they are."""

    def __init__(self, point, files, order, again=False):
        self._stop_reader, self._stop_writer = os.pipe()
        self._count_reader, self._count_writer = os.pipe()
        os.set_blocking(self._count_reader, False)
        self._done = 0
        self.child = Child(self._work, point, files, order, again)

    def _work(self, point, files, order, again):
        os.close(self._stop_writer)
        names, took = sorted(files), []
        rng = None if order is None else random.Random(order)
        while True:
            if rng:
                rng.shuffle(names)
            for name in names:
                if select.select([self._stop_reader], [], [], 0)[0]:
                    return took
                read_and_compare(point, name, files[name], took)
                os.write(self._count_writer, b'.')
                if again:
                    time.sleep(PAUSE_S)
            if not again:
                return took

    def done(self):
        """Files read so far."""
        try:
            while data := os.read(self._count_reader, 65536):
                self._done += len(data)
        except BlockingIOError:
            pass
        return self._done

    def check(self):
        """Fails when it did."""
        if self.child.poll() is not None:
            self.child.result(1)

    def finish(self, seconds=60):
        """Wait for its end; the seconds of all its reads."""
        return self.child.result(seconds)

    def stop(self, seconds=60):
        """Before the next file."""
        os.write(self._stop_writer, b'.')
        return self.finish(seconds)

    def close(self):
        """At once."""
        self.child.__exit__()
        for fd in (self._stop_reader, self._stop_writer, self._count_reader, self._count_writer):
            os.close(fd)


class Readers:
    """A Reader for each node that lives. As a context manager all of them are stopped at the end, and must not have
    failed."""

    def __init__(self, cluster, files, order, again=False):
        self.files, self.order, self.again, self._lives = files, order, again, 0
        self.readers = {}
        for node in cluster.alive:
            self.begin(node)

    def begin(self, node):
        self._lives += 1
        order = None if self.order is None else self.order + node.number + 1000 * self._lives
        self.readers[node] = Reader(node.mount.point, self.files, order, self.again)

    def leave(self, node):
        """Its reader ends before the next file."""
        reader = self.readers.pop(node)
        try:
            return reader.stop()
        finally:
            reader.close()

    def drop(self, node):
        """Its reader is killed."""
        self.readers.pop(node).close()

    def done(self):
        return {node: reader.done() for node, reader in self.readers.items()}

    def check(self):
        for reader in self.readers.values():
            reader.check()

    def read_on(self, files=3, seconds=60, but=()):
        """Until each has read so many more."""
        before = self.done()
        end = time.monotonic() + limit(seconds)
        while any(count - before[node] < files for node, count in self.done().items()
                  if node not in but and node in before):
            self.check()
            assert time.monotonic() < end, f'in {limit(seconds):.0f} s no more was read: {before} {self.done()}'
            time.sleep(0.02)

    def finish(self, seconds=120):
        return {node: reader.finish(seconds) for node, reader in self.readers.items()}

    def __enter__(self):
        return self

    def __exit__(self, kind, *unused):
        try:
            if kind is None and self.again:
                for reader in self.readers.values():
                    reader.stop()
        finally:
            for node in list(self.readers):
                self.drop(node)
