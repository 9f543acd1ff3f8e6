# SPDX-License-Identifier: Apache-2.0
"""The machine: what it is, how much of it may be used, what a process has used of it."""

import os
import re
import shutil
import subprocess
import time

MIB = 1 << 20
GIB = 1 << 30
_TICKS = os.sysconf('SC_CLK_TCK')


def _first(pattern, path):
    with open(path, encoding='utf-8', errors='replace') as file:
        found = re.search(pattern, file.read(), re.M)
    return found.group(1).strip() if found else '?'


def _output(*command):
    try:
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ''


def drop_caches(what=3):
    """1: pages, 2: dentries and inodes, 3: both. Dirty pages would stay, hence the sync."""
    os.sync()
    with open('/proc/sys/vm/drop_caches', 'w', encoding='ascii') as file:
        file.write(str(what))


def memory_available():
    return int(_first(r'^MemAvailable:\s+(\d+)', '/proc/meminfo')) * 1024


def filesystem(path):
    return _output('findmnt', '-no', 'FSTYPE', '-T', path) or '?'


def describe(work_dir):
    """Facts to print with every figure: (what, value) pairs."""
    packages = {}
    for line in _output('dpkg-query', '-W', '-f', '${Package} ${Version}\n', 'fio', 'rclone', 's3fs', 'curl', 'nginx-light', 'libfuse3-3',
                        'librocksdb7.8', 'librocksdb9.10').splitlines():
        name, _, version = line.partition(' ')
        if version:
            packages[name] = version
    cpu = _first(r'^model name\s*:\s*(.*)$', '/proc/cpuinfo')
    total = int(_first(r'^MemTotal:\s+(\d+)', '/proc/meminfo')) * 1024
    return [
        ('machine', f'{os.cpu_count()} × {cpu}, {total / GIB:.0f} GiB memory'),
        ('kernel', os.uname().release),
        ('filesystem of source and cache', filesystem(work_dir)),
        ('versions', ', '.join(f'{name} {version}' for name, version in sorted(packages.items()))),
    ]


def revision(root):
    commit = _output('git', '-C', root, 'rev-parse', '--short', 'HEAD') or '?'
    changed = _output('git', '-C', root, 'status', '--porcelain', '--untracked-files=no', '--', 'base', 'cache',
                      'transport', 'fs', 'mount-tools')
    return commit + ('+' if changed else '')


def load():
    return os.getloadavg()[0]


def fits(wanted, disk_dir, disk_copies=3, memory_copies=0):
    """`wanted` bytes of data, or as much as disk and memory can hold that many times over."""
    limit = wanted
    limit = min(limit, shutil.disk_usage(disk_dir).free // 2 // disk_copies)
    if memory_copies:
        limit = min(limit, memory_available() * 3 // 4 // memory_copies)
    return limit


def inodes_fit(wanted, disk_dir):
    st = os.statvfs(disk_dir)
    return wanted if st.f_files == 0 else min(wanted, st.f_favail // 2)


def cpu_seconds(pid):
    """User and system time of a process, threads that ended included."""
    with open(f'/proc/{pid}/stat', encoding='ascii', errors='replace') as file:
        fields = file.read().rpartition(')')[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def status_kib(pid, field):
    return int(_first(rf'^{field}:\s+(\d+)', f'/proc/{pid}/status')) * 1024


def set_read_ahead(mountpoint, kib):
    dev = os.stat(mountpoint).st_dev
    path = f'/sys/class/bdi/{os.major(dev)}:{os.minor(dev)}/read_ahead_kb'
    with open(path, 'w', encoding='ascii') as file:
        file.write(str(kib))
    return read_ahead(mountpoint)


def read_ahead(mountpoint):
    dev = os.stat(mountpoint).st_dev
    with open(f'/sys/class/bdi/{os.major(dev)}:{os.minor(dev)}/read_ahead_kb', encoding='ascii') as file:
        return int(file.read())


def drop_pages(path):
    """Take the clean pages of one file out of the page cache."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def wait_for(condition, seconds, what):
    """Poll for something that has no event to wait on."""
    until = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > until:
            raise RuntimeError(f'{what}: not within {seconds} s')
        time.sleep(0.02)
