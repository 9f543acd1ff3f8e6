# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end tests share: a runner, private places, mounts, and children that may hang.

A test file is a program: functions test_<verb>_<case>(place), and at its end `main(globals())`.
Everything a test makes lies below one private directory, and is gone when the program ends,
also when a test hangs or crashes.

    tests/e2e/test_stall.py interrupt        only the tests with this word in their name

Environment: DCTF_BUILD_DIR (where the programs are), DCTF_SANITIZE (what they were built with),
DCTF_TIME_FACTOR (how much slower they may be), DCTF_SEED (repeat a run), DCTF_LONG=1 (more rounds,
a million entries), DCTF_CRASH_ROUNDS, DCTF_E2E_LIMIT (seconds per file), DCTF_KEEP=1 (leave the
directory of a failed test).
"""

from .child import Child, Load, in_child
from .control import Control, ControlError
from .data import (assert_same, assert_same_tree, bytes_of, drop_pages, make_shards, make_tree,
                   read_all, read_at, read_fully, stamp, stamps_of, write_file)
from .env import (DCTF, DCTFFS, DCTFFS_TEST, FACTOR, LONG, SANITIZER, Skip, limit, seed, skip,
                  scaled, wait_until, within)
from .mount import Mount, Script
from .mounts import LET_GO, mounted_below, umount
from .place import Place
from .runner import main

__all__ = [name for name in dir() if not name.startswith('_')]
