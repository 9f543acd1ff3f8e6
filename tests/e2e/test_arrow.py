#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Arrow files, written by examples/arrow_ipc.py, read memory-mapped through the mount."""

import base64
import io
import os
import sys
import zlib

from dctf_e2e import *

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), '../../examples'))
try:
    import arrow_ipc
    import numpy as np
except ImportError:
    np = None

NAMES = [f'arrow/part-{i:04}.arrow' for i in range(6)]
# 40,000 rows are several blocks of the cache, and 0 and 1 are where offsets of strings go wrong.
ROWS = (40000, 0, 1, 777)
# A file of pyarrow 26.0: record batches of 3 and 2 rows of int64, float32 and utf8.
OF_PYARROW = (
    'eNrVVLFKA0EQnbvbyx1hhUMOSWFhaRnB3kt+wJBGsVJiIAdiEVRipR/gL9iIpY2tWAj+gJ9gIakt7eLbvVmzNyCJpQNzs29uduft273r9Pu7e1tE'
    'M9g7EWVkrEmaGhRTihEsUMAElOKp+EkUwSfwbcb3WAPFsVljnXPEcVCeXVZjZfFbVRvJ2hh+cXRyPkT/FN6w2QC8cosTyyRjnkEo54fw8thw1fDE'
    'cjWFBb83+/xCzBlrWuOdarsyRYpaCCNy1gTWdtdGixvWKKK5JfS7bYoo845HId47nHHscVz1aiLBg5bAiafDzJ5BvX08L90hur5CfDns3q2gpPDX'
    'MI4kHbw+j8vBaHr7+PH00B2OTyd/07m9QOdwSZ0zEWWe74Ht6Vvrh1/9XGKhYSjmLcJST19D5eWdZO4sMsslt7dfA2n+gnp8SIp7fboGQRXcfd0P'
    '6/m24PPfv+EN7Ktj/1nf481WQQ==')


def _batches(name):
    """Record batches that depend on nothing but the name."""
    if not np:
        skip('NumPy is not installed')
    dice = np.random.default_rng(zlib.crc32(name.encode()))
    words = ('', 'Bern', 'Zürich', '東京', 'København')
    return [{'id': dice.integers(-2**63, 2**63 - 1, rows),
             'value': dice.standard_normal(rows, dtype=np.float32),
             'city': [words[i] for i in dice.integers(0, len(words), rows)]} for rows in ROWS]


def _bytes(name):
    batches, out = _batches(name), io.BytesIO()
    arrow_ipc.write(out, batches)
    return out.getvalue()


def _make(place):
    for name in NAMES:
        write_file(os.path.join(place.source, name), _bytes(name))


def _check(path, name):
    file = arrow_ipc.File(path)
    assert file.schema == {'id': np.dtype('<i8'), 'value': np.dtype('<f4'), 'city': str}, file.schema
    expected = _batches(name)
    assert len(file) == len(expected)
    for ours, batch in zip(file, expected):
        assert list(ours) == list(batch)
        for column in ('id', 'value'):
            assert np.array_equal(ours[column], batch[column]), f'{name}: {column} differs'
            assert ours[column].ctypes.data % 64 == 0 and not ours[column].flags.owndata, 'a view of the mapped file'
        assert list(ours['city']) == batch['city'], f'{name}: city differs'


def test_read_mapped_on_every_tier(place):
    _make(place)
    with Mount(place) as mount:
        for name in NAMES:
            _check(mount.path(name), name)
        fetched = mount.origin_bytes()
        total = sum(os.path.getsize(os.path.join(place.source, name)) for name in NAMES)
        assert total <= fetched <= total * 1.02, f'{fetched} bytes from the source for {total}'
        for name in NAMES:
            drop_pages(mount.path(name))
            _check(mount.path(name), name)
        assert mount.origin_bytes() == fetched
        assert_same_tree(mount.point, place.source)
    with Mount(place) as mount:
        for _ in range(2):
            for name in NAMES:
                _check(mount.path(name), name)
        assert mount.origin_bytes() == 0


def test_keep_columns_while_evicted(place):
    """Columns are views of the mapped file: they keep it, though it was closed long ago."""
    _make(place)
    with Mount(place) as mount:
        held = [batch for name in NAMES for batch in arrow_ipc.File(mount.path(name))]
        mount.ask('evict', path='')
        expected = [batch for name in NAMES for batch in _batches(name)]
        for ours, batch in zip(held, expected, strict=True):
            assert np.array_equal(ours['id'], batch['id']) and np.array_equal(ours['value'], batch['value'])
            assert list(ours['city']) == batch['city']
        del held, ours


def test_read_file_of_pyarrow(place):
    _batches('')
    write_file(os.path.join(place.source, 'theirs.arrow'), zlib.decompress(base64.b64decode(OF_PYARROW)))
    with Mount(place) as mount:
        first, second = arrow_ipc.File(mount.path('theirs.arrow'))
        assert first['id'].tolist() == [7, -1, 1 << 62] and second['id'].tolist() == [0, 5]
        assert first['value'].tolist() == [0.5, float('inf'), -2.0]
        assert second['value'].tolist() == [float(np.float32(1e-30)), 3.0]
        assert list(first['city']) == ['Zürich', '', '東京'] and list(second['city']) == ['Bern', 'x']
        del first, second


def test_refuse_what_is_cut_short(place):
    data = _bytes('whole')
    sizes = [6, 8, 15, 200, len(data) // 2, len(data) - 1]
    for size in sizes:
        write_file(os.path.join(place.source, f'{size}.arrow'), data[:size])
    write_file(os.path.join(place.source, 'other.arrow'), b'ARROW2' + data[6:])
    with Mount(place) as mount:
        for name in [f'{size}.arrow' for size in sizes] + ['other.arrow']:
            try:
                list(arrow_ipc.File(mount.path(name)))
            except arrow_ipc.ArrowError:
                continue
            raise AssertionError(f'{name} passed')


def test_agree_with_pyarrow(place):
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        skip('pyarrow is not installed')
    _make(place)
    with Mount(place) as mount:
        for name in NAMES:
            with pyarrow.memory_map(mount.path(name)) as mapped:
                file = pyarrow.ipc.open_file(mapped)
                assert file.schema == pyarrow.schema([('id', pyarrow.int64()), ('value', pyarrow.float32()),
                                                      ('city', pyarrow.utf8())]), file.schema
                expected = _batches(name)
                assert file.num_record_batches == len(expected)
                for i, batch in enumerate(expected):
                    theirs = file.get_batch(i)
                    theirs.validate(full=True)
                    assert theirs.to_pydict() == {k: list(v) if isinstance(v, list) else v.tolist()
                                                  for k, v in batch.items()}
                del theirs, file


if __name__ == '__main__':
    main(globals())
