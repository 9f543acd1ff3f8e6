#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write a sample dataset of feature shards in the formats that training jobs read.

    make_dataset.py DIRECTORY [--mib N] [--seed N]

NumPy arrays (.npy), TFRecord files with checked framing, WebDataset tars, Arrow files and
many small arrays; Parquet too when pyarrow can be imported. The same seed gives the same
bytes.
"""

import argparse
import importlib.util
import io
import json
import os
import struct
import sys
import tarfile

import numpy as np

import arrow_ipc

MIB = 1 << 20
TFRECORD_PAYLOAD = 4000  # bytes; all records are alike, so that their checksums are made in one go
CITIES = ("Bern", "Zürich", "Genf", "Reykjavík", "København", "東京", "São Paulo", "Λευκωσία")


def crc32c_table():
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1).astype(np.uint32)
    return table


CRC32C = crc32c_table()


def masked_crc32c(rows):
    """TFRecord's checksum of each row of a matrix of bytes, all rows at once."""
    crc = np.full(len(rows), 0xFFFFFFFF, dtype=np.uint32)
    for column in rows.T:
        crc = CRC32C[(crc ^ column) & 0xFF] ^ (crc >> 8)
    crc ^= np.uint32(0xFFFFFFFF)
    return ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)


def write_whole(path, write):
    """Write under another name first: an interrupted run leaves no half shard."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path + ".part", "wb") as out:
        write(out)
    os.replace(path + ".part", path)


def write_npy(path, rng, size):
    array = rng.standard_normal((size // 256, 64), dtype=np.float32)
    write_whole(path, lambda out: np.save(out, array))


def write_tfrecord(path, rng, size):
    count = max(1, size // (TFRECORD_PAYLOAD + 16))
    payload = rng.integers(0, 256, (count, TFRECORD_PAYLOAD), dtype=np.uint8)
    length = np.frombuffer(struct.pack("<Q", TFRECORD_PAYLOAD), dtype=np.uint8)
    length_crc = struct.pack("<I", int(masked_crc32c(length[np.newaxis, :])[0]))
    crcs = masked_crc32c(payload)

    def write(out):
        for row, crc in zip(payload, crcs):
            out.write(length.tobytes() + length_crc + row.tobytes() + struct.pack("<I", int(crc)))

    write_whole(path, write)


def write_tar(path, rng, size):
    """A WebDataset shard: members KEY.npy and KEY.json belong together."""

    def write(out):
        with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for i in range(max(1, size // (64 * 1024))):
                array = io.BytesIO()
                np.save(array, rng.integers(0, 256, (120, 120, 4), dtype=np.uint8))
                label = json.dumps({"label": int(rng.integers(0, 1000))}).encode()
                for name, data in ((f"{i:06d}.npy", array.getvalue()), (f"{i:06d}.json", label)):
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))

    write_whole(path, write)


def write_arrow(path, rng, size):
    """Four record batches of features of users."""
    rows = max(1, size // 4 // 60)

    def batch(number):
        features = {f"feature_{i}": rng.standard_normal(rows, dtype=np.float32) for i in range(8)}
        visits = rng.integers(0, 1 << 40, rows)
        city = [CITIES[i] for i in rng.integers(0, len(CITIES), rows)]
        return {"user_id": np.arange(number * rows, (number + 1) * rows), "visits": visits, **features, "city": city}

    write_whole(path, lambda out: arrow_ipc.write(out, map(batch, range(4))))


def write_parquet(path, rng, size):
    import pyarrow
    import pyarrow.parquet

    rows = max(1, size // 16)
    table = pyarrow.table({"id": np.arange(rows), "value": rng.standard_normal(rows)})
    write_whole(path, lambda out: pyarrow.parquet.write_table(table, out))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directory")
    parser.add_argument("--mib", type=int, default=96, help="size, about (default 96)")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    marker = os.path.join(args.directory, ".made-by-make_dataset")
    wanted = f"mib={args.mib} seed={args.seed} version=2\n"
    if os.path.exists(marker) and open(marker, encoding="ascii").read() == wanted:
        print(f"{args.directory}: already there")
        return
    if os.path.isdir(args.directory) and os.listdir(args.directory) and not os.path.exists(marker):
        sys.exit(f"{args.directory} is not empty and was not made by this program")

    rng = np.random.default_rng(args.seed)
    total = args.mib * MIB
    root = args.directory
    for feature in ("user_age", "item_embedding"):
        for day in range(1, 9):
            write_npy(f"{root}/{feature}/day={day:02d}.npy", rng, total // 60)
    for i in range(4):
        write_tfrecord(f"{root}/tfrecord/train-{i:05d}-of-00004.tfrecord", rng, total // 16)
    for i in range(8):
        write_tar(f"{root}/webdataset/shard-{i:06d}.tar", rng, total // 32)
    for i in range(128):
        write_npy(f"{root}/small/user={i:04d}.npy", rng, max(4096, total // 1024))
    for i in range(4):
        write_arrow(f"{root}/arrow/part-{i:04d}.arrow", rng, total // 32)
    if importlib.util.find_spec("pyarrow"):
        write_parquet(f"{root}/parquet/part-0000.parquet", rng, total // 32)
    else:
        print("pyarrow is not installed: no Parquet shard")
    with open(marker, "w", encoding="ascii") as out:
        out.write(wanted)
    files = [os.path.join(base, name) for base, _, names in os.walk(root) for name in names]
    print(f"{root}: {len(files) - 1} shards, {sum(map(os.path.getsize, files)) / MIB:.0f} MiB")


if __name__ == "__main__":
    main()
