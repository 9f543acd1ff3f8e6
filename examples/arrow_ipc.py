# SPDX-License-Identifier: Apache-2.0
"""Arrow IPC files (also called Feather V2), written and read with Python and NumPy alone.

    with open(path, "wb") as out:
        write(out, [{"id": np.arange(3), "city": ["Bern", "Genf", "Zürich"]}])  # a dict per record batch
    for batch in File(path):
        batch["id"], batch["city"][2]

A column is an array of integers or floats, or a sequence of str. What is read are views of the
memory-mapped file, which stays mapped as long as they live. Files of other writers are read as
well; compression, nulls, dictionaries and other types are Unsupported.

    file     "ARROW1\\0\\0", schema message, record batch messages, end mark, footer, its length, "ARROW1"
    message  -1, length of metadata, metadata, body: the buffers of all columns one after the other

Metadata and footer are flatbuffers: a table begins with the distance back to its vtable, which has
the place of each field; tables, vectors and strings are referred to by the distance ahead. Fields
are numbered in the order of Schema.fbs, Message.fbs and File.fbs of the format (https://arrow.apache.org/
docs/format/Columnar.html). Buffers begin at multiples of 64 bytes, as it recommends; 8 are required.
"""

import mmap
import struct

import numpy as np

MAGIC = b"ARROW1"
CONTINUATION = 0xFFFFFFFF
VERSION_5 = struct.pack("<h", 4)
SCHEMA, RECORD_BATCH = 1, 3  # Message.header
BLOCK = "<qi4xq"  # offset, length of the message without its body, length of the body

INT, FLOAT, UTF8 = 2, 3, 5  # Field.type
TYPE_NAMES = ("none null int float binary utf8 bool decimal date time timestamp interval list struct union "
              "fixed_size_binary fixed_size_list map duration large_binary large_utf8").split()
TYPE_FIELDS = {INT: ("<i", "<B"), FLOAT: ("<h",), UTF8: ()}  # bits and sign; precision
KINDS = {(INT, 8 * size, sign): np.dtype(f"<{'ui'[sign]}{size}") for size in (1, 2, 4, 8) for sign in (0, 1)}
KINDS.update({(FLOAT, precision): np.dtype(f"<f{2 << precision}") for precision in range(3)})
KINDS[(UTF8,)] = str
TYPES = {kind: numbers for numbers, kind in KINDS.items()}


class ArrowError(ValueError):
    """The file is damaged or cut short."""


class Unsupported(ArrowError):
    """There may be nothing wrong, but this module cannot do it."""


# Writing. A node of a flatbuffer is its bytes and the place in them that is referred to. It can be
# put to any multiple of 8 bytes.


def _link(data, start, links):
    """Append nodes, and refer to each from the place given with it."""
    for place, (node, entry) in links:
        data += bytes(-len(data) % 8)
        struct.pack_into("<I", data, place, len(data) + entry - place)
        data += node
    return data, start


def _table(*fields):
    """Fields in the order of their numbers: None (absent), a scalar's bytes, or a node."""
    places, size = [], 4
    for field in fields:
        width = 4 if isinstance(field, tuple) else len(field or b"")
        size += -size % max(width, 1)
        places.append(size if width else 0)
        size += width
    vtable = struct.pack(f"<{2 + len(fields)}H", 4 + 2 * len(fields), size, *places)
    data = bytearray(-len(vtable) % 8) + vtable
    start = len(data)
    data += struct.pack("<i", len(vtable)) + bytes(size - 4)
    for field, place in zip(fields, places):
        if isinstance(field, bytes):
            data[start + place : start + place + len(field)] = field
    return _link(data, start, [(start + at, field) for field, at in zip(fields, places) if isinstance(field, tuple)])


def _structs(layout, rows):
    """A vector of structs; of single bytes, also a string, which has a zero byte behind it."""
    items = b"".join(struct.pack(layout, *row) for row in rows)
    return bytearray(4) + struct.pack("<I", len(items) // struct.calcsize(layout)) + items + b"\0", 4


def _vector(nodes):
    data, start = _structs("<I", [(0,)] * len(nodes))
    return _link(data, start, [(start + 4 + 4 * i, node) for i, node in enumerate(nodes)])


def _flatbuffer(root):
    data, _ = _link(bytearray(4), 0, [(0, root)])
    return bytes(data) + bytes(-len(data) % 8)


def _kind_of(name, values):
    """The NumPy type of a column to write, or str."""
    kind = values.dtype.newbyteorder("<") if isinstance(values, np.ndarray) else str
    if kind not in TYPES or np.ndim(values) != 1:
        raise Unsupported(f"column {name!r}: arrays of {np.ndim(values)} dimensions of {kind} are not written")
    return kind


def _schema_node(schema):
    fields = []
    for name, kind in schema.items():
        number, *details = TYPES[kind]
        label, detail = _structs("<B", zip(name.encode())), _table(*map(struct.pack, TYPE_FIELDS[number], details))
        # Nullable, as everybody writes it, though there are no nulls; not a dictionary; no children.
        fields.append(_table(label, b"\1", struct.pack("<B", number), detail, None, _vector([])))
    return _table(None, _vector(fields))  # little-endian by default


def _message(number, header, body_length, at):
    """A message that begins at `at`, up to its body, padded so that the body is aligned."""
    metadata = _flatbuffer(_table(VERSION_5, struct.pack("<B", number), header, struct.pack("<q", body_length)))
    metadata += bytes(-(at + 8 + len(metadata)) % 64)
    return struct.pack("<II", CONTINUATION, len(metadata)) + metadata


def _buffers(name, kind, values):
    """The buffers of a column; the first, a bitmap of what is not null, may be left out."""
    if kind is not str:
        return [b"", np.ascontiguousarray(values, kind).tobytes()]
    encoded = [value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    if offsets[-1] > np.iinfo(np.int32).max:
        raise Unsupported(f"column {name!r}: more than 2 GiB of text in one record batch")
    return [b"", offsets.astype("<i4").tobytes(), b"".join(encoded)]


def _record_batch(schema, batch, at):
    """The message of a batch that begins at `at`, and its body."""
    lengths = {len(values) for values in batch.values()}
    if len(lengths) != 1 or {name: _kind_of(name, values) for name, values in batch.items()} != schema:
        raise ValueError("record batches have columns of one length, and all have the same columns")
    (rows,) = lengths
    body, places = bytearray(), []
    for name, kind in schema.items():
        for data in _buffers(name, kind, batch[name]):
            places.append((len(body), len(data)))
            body += data + bytes(-len(data) % 64)
    header = _table(struct.pack("<q", rows), _structs("<qq", [(rows, 0)] * len(schema)), _structs("<qq", places))
    return _message(RECORD_BATCH, header, len(body), at), body


def write(out, batches):
    """Write a whole file to the empty binary file `out`. A batch is {name of column: values}."""
    schema, blocks, at = None, [], 0
    for batch in batches:
        if schema is None:
            schema = {name: _kind_of(name, values) for name, values in batch.items()}
            head = MAGIC + b"\0\0"
            head += _message(SCHEMA, _schema_node(schema), 0, len(head))
            at += out.write(head)
        message, body = _record_batch(schema, batch, at)
        blocks.append((at, len(message), len(body)))
        at += out.write(message) + out.write(body)
    if schema is None:
        raise ValueError("a file needs a record batch, to know the columns")
    footer = _flatbuffer(_table(VERSION_5, _schema_node(schema), _structs(BLOCK, []), _structs(BLOCK, blocks)))
    out.write(struct.pack("<II", CONTINUATION, 0) + footer + struct.pack("<i", len(footer)) + MAGIC)


# Reading. Nothing in the file is trusted.


def _part(data, at, size, alignment=8):
    if at < 0 or size < 0 or at + size > len(data) or at % alignment:
        raise ArrowError("the file is cut short, or an offset is wrong")
    return data[at : at + size]


def _unpack(layout, data, at):
    if not 0 <= at <= len(data) - struct.calcsize(layout):
        raise ArrowError("an offset points out of the metadata")
    return struct.unpack_from(layout, data, at)


class _Table:
    """A table of a flatbuffer that is read, the root if not told where; fields are numbered."""

    def __init__(self, data, at=None):
        self.data, self.at = data, _unpack("<I", data, 0)[0] if at is None else at
        vtable = self.at - _unpack("<i", data, self.at)[0]
        self.places = _unpack(f"<{max(_unpack('<H', data, vtable)[0] - 4, 0) // 2}H", data, vtable + 4)

    def has(self, number):
        return number < len(self.places) and self.places[number] != 0

    def scalar(self, number, layout):
        return _unpack(layout, self.data, self.at + self.places[number])[0] if self.has(number) else 0

    def target(self, number):
        if not self.has(number):
            raise ArrowError("the metadata lacks a field")
        at = self.at + self.places[number]
        return at + _unpack("<I", self.data, at)[0]

    def table(self, number):
        return _Table(self.data, self.target(number))

    def structs(self, number, layout):
        at, size = self.target(number), struct.calcsize(layout)
        items = _unpack(f"{_unpack('<I', self.data, at)[0] * size}s", self.data, at + 4)[0]
        return list(struct.iter_unpack(layout, items))

    def string(self, number):
        return bytes(byte for byte, in self.structs(number, "<B")).decode(errors="replace")

    def tables(self, number):
        at = self.target(number) + 4
        return [_Table(self.data, at + 4 * i + ahead) for i, (ahead,) in enumerate(self.structs(number, "<I"))]


def _read_kind(name, field):
    number = field.scalar(2, "<B")
    details = [field.table(3).scalar(i, layout) for i, layout in enumerate(TYPE_FIELDS.get(number, ()))]
    kind = KINDS.get((number, *details))
    if field.has(4) or not kind:
        what = TYPE_NAMES[number] if number < len(TYPE_NAMES) else f"number {number}"
        raise Unsupported(f"column {name!r} is of type {what}{', dictionary-encoded' if field.has(4) else ''}")
    return kind


def _read_column(kind, rows, body, places):
    """A column from its buffers, which are taken from an iterator."""
    count, dtype = (rows + 1, np.dtype("<i4")) if kind is str else (rows, kind)
    next(places)  # which values are null
    values = _part(body, *next(places))[: count * dtype.itemsize]
    if kind is str and rows == 0:  # may lack its only offset
        values = np.zeros(4, np.uint8)
    if len(values) < count * dtype.itemsize:
        raise ArrowError("a buffer is too short for its column")
    if kind is not str:
        return values.view(dtype)
    offsets, text = values.view(dtype), _part(body, *next(places))
    if offsets[0] < 0 or offsets[-1] > len(text) or (offsets[1:] < offsets[:-1]).any():
        raise ArrowError("offsets of strings are out of order")
    return Strings(offsets, text)


class Strings:
    """A column of text: string i is data[offsets[i]:offsets[i + 1]], UTF-8."""

    def __init__(self, offsets, data):
        self.offsets, self.data = offsets, data

    def __len__(self):
        return len(self.offsets) - 1

    def __getitem__(self, i):
        i = range(len(self))[i]
        return self.data[self.offsets[i] : self.offsets[i + 1]].tobytes().decode()


class File:
    """A sequence of record batches {name of column: array or Strings}; `schema` is {name of
    column: NumPy type or str}."""

    def __init__(self, path):
        with open(path, "rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise Unsupported("not an Arrow IPC file")
            self._data = np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)
        size, magic = _unpack("<i6s", self._data[-10:].tobytes(), 0)
        if magic != MAGIC:
            raise ArrowError("the end of the file is missing")
        footer = _Table(_part(self._data, len(self._data) - 10 - size, size, 1).tobytes())
        schema = footer.table(1)
        if footer.scalar(0, "<2s") != VERSION_5 or schema.scalar(0, "<H") != 0:
            raise Unsupported("the file is big-endian, or of another version of the format")
        fields = {field.string(0): field for field in schema.tables(1)}
        if len(fields) != len(schema.tables(1)):
            raise Unsupported("two columns have the same name")
        self.schema = {name: _read_kind(name, field) for name, field in fields.items()}
        self._blocks = footer.structs(3, BLOCK)

    def __len__(self):
        return len(self._blocks)

    def __getitem__(self, i):
        at, head, size = self._blocks[i]
        metadata, body = _part(self._data, at, head).tobytes(), _part(self._data, at + head, size)
        message = _Table(metadata[8:])
        if _unpack("<I", metadata, 0)[0] != CONTINUATION or message.scalar(1, "<B") != RECORD_BATCH:
            raise ArrowError("no record batch is where the footer says")
        batch = message.table(2)
        rows, nodes, places = batch.scalar(0, "<q"), batch.structs(1, "<qq"), batch.structs(2, "<qq")
        if message.scalar(0, "<2s") != VERSION_5 or batch.has(3) or any(nulls for _, nulls in nodes):
            raise Unsupported("the file has nulls, is compressed, or is of another version of the format")
        buffers = sum(3 if kind is str else 2 for kind in self.schema.values())
        if rows < 0 or [length for length, _ in nodes] != [rows] * len(self.schema) or len(places) != buffers:
            raise ArrowError("a record batch does not fit the schema")
        places = iter(places)
        return {name: _read_column(kind, rows, body, places) for name, kind in self.schema.items()}

