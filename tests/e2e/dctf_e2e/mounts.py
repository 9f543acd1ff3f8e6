# SPDX-License-Identifier: Apache-2.0
"""The mount table, and ways out of it that cannot hang."""

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)
_DETACH = 2


def _unescape(field):
    out, i = bytearray(), 0
    while i < len(field):
        if field[i:i + 1] == b'\\':
            out.append(int(field[i + 1:i + 4], 8))
            i += 4
        else:
            out += field[i:i + 1]
            i += 1
    return os.fsdecode(bytes(out))


def mounts():
    """(mount point, type, minor device number) of every mount, in the order of the table."""
    found = []
    with open('/proc/self/mountinfo', 'rb') as table:
        for line in table:
            fields = line.split()
            kind = fields[fields.index(b'-') + 1]
            found.append((_unescape(fields[4]), kind.decode(), int(fields[2].split(b':')[1])))
    return found


def mounted_below(path):
    return [m for m in mounts() if m[0] == path or m[0].startswith(path + '/')]


def umount(path, lazy=False):
    if _libc.umount2(os.fsencode(path), _DETACH if lazy else 0) != 0:
        errno = ctypes.get_errno()
        raise OSError(errno, os.strerror(errno), path)


def abort(minor):
    """Tell the kernel to give up on a FUSE daemon: whoever waits for it gets an error."""
    try:
        with open(f'/sys/fs/fuse/connections/{minor}/abort', 'w') as file:
            file.write('1')
    except OSError:
        pass


def clear(path):
    """Detach everything at or below `path`; returns what was there."""
    left = mounted_below(path)
    for where, kind, minor in reversed(left):
        if kind.startswith('fuse'):
            abort(minor)
        try:
            umount(where, lazy=True)
        except OSError:
            pass
    return left


# For a shell in a mount namespace of its own: let go of the mounts of tests that run at the same time. Their
# daemons would not end before this namespace does.
LET_GO = "awk '$3 ~ /^fuse/ {print $2}' /proc/self/mounts | xargs -r -n 1 umount -l 2>/dev/null || true\n"
