#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A plain data loader: reads every shard below a directory once, in shuffled order.

    loader.py DIRECTORY [--epoch N] [--workers N]

It knows nothing of dctffs: .npy by np.load(mmap_mode="r"), .tar by tarfile, .tfrecord by
its framing (lengths checked), .arrow and .feather memory-mapped by arrow_ipc.py, anything
else by read(). Where pyarrow can be imported it reads .parquet, and checks that it finds in
Arrow files what arrow_ipc.py found. Prints one JSON object.
"""

import argparse
import json
import os
import random
import struct
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import arrow_ipc

try:
    import pyarrow
    import pyarrow.ipc
    import pyarrow.parquet
except ImportError:
    pyarrow = None


def read_npy(path):
    array = np.load(path, mmap_mode="r")
    array.reshape(-1).view(np.uint8).max(initial=0)  # touch every byte
    return array.nbytes


def read_tar(path):
    seen = 0
    with tarfile.open(path) as tar:
        for member in tar:
            if member.isfile():
                seen += len(tar.extractfile(member).read())
    return seen


def read_tfrecord(path):
    seen = 0
    with open(path, "rb") as file:
        while header := file.read(12):
            (length,) = struct.unpack("<Q", header[:8])
            record = file.read(length + 4)
            if len(record) != length + 4:
                raise ValueError(f"{path}: cut short")
            seen += length
    return seen


def read_plain(path):
    seen = 0
    with open(path, "rb", buffering=0) as file:
        while data := file.read(1 << 20):
            seen += len(data)
    return seen


def same_values(ours, theirs):
    """Whether a column of pyarrow has the same bytes; values may be NaN."""
    if isinstance(ours, arrow_ipc.Strings):
        buffers = [None, pyarrow.py_buffer(ours.offsets), pyarrow.py_buffer(ours.data)]
        return theirs.equals(pyarrow.Array.from_buffers(pyarrow.utf8(), len(ours), buffers))
    return np.array_equal(ours.view(np.uint8), theirs.to_numpy().view(np.uint8))


def check_with_pyarrow(path, batches):
    with pyarrow.memory_map(path) as file:
        theirs = pyarrow.ipc.open_file(file)
        if theirs.num_record_batches != len(batches):
            raise ValueError(f"{path}: pyarrow finds {theirs.num_record_batches} record batches, not {len(batches)}")
        for i, ours in enumerate(batches):
            batch = theirs.get_batch(i)
            batch.validate(full=True)
            if batch.schema.names != list(ours):
                raise ValueError(f"{path}: pyarrow finds other columns in record batch {i}")
            for name, column in zip(ours, batch.columns):
                if not same_values(ours[name], column):
                    raise ValueError(f"{path}: pyarrow finds other values in column {name} of record batch {i}")


def read_arrow(path):
    """Offsets and lengths within the file are checked, and every byte of its columns is touched."""
    try:
        batches = list(arrow_ipc.File(path))
    except arrow_ipc.Unsupported:
        return read_plain(path)
    seen = 0
    for column in (column for batch in batches for column in batch.values()):
        for array in (column.offsets, column.data) if isinstance(column, arrow_ipc.Strings) else (column,):
            array.view(np.uint8).max(initial=0)
            seen += array.nbytes
    if pyarrow:
        check_with_pyarrow(path, batches)
    return seen


def read_parquet(path):
    if not pyarrow:
        return read_plain(path)
    pyarrow.parquet.read_table(path).validate(full=True)
    return os.path.getsize(path)


READERS = {
    ".arrow": read_arrow,
    ".feather": read_arrow,
    ".npy": read_npy,
    ".parquet": read_parquet,
    ".tar": read_tar,
    ".tfrecord": read_tfrecord,
}


def read_shard(path):
    return READERS.get(os.path.splitext(path)[1], read_plain)(path)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory")
    parser.add_argument("--epoch", type=int, default=1, help="seed of the order")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    paths = sorted(os.path.join(base, name) for base, _, names in os.walk(args.directory) for name in names)
    random.Random(args.epoch).shuffle(paths)
    started = time.monotonic()
    with ThreadPoolExecutor(args.workers) as pool:
        total = sum(pool.map(read_shard, paths))
    seconds = time.monotonic() - started
    json.dump({"epoch": args.epoch, "shards": len(paths), "bytes": total, "seconds": round(seconds, 3)}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
