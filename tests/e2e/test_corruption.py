#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The cache directory is damaged, foreign or taken: never a wrong byte, and a clear word."""

import glob
import os
import random
import shutil
import subprocess

from dctf_e2e import *

KIB, MIB = 1024, 1024 * 1024
FILES = {f'large/shard-{i}.bin': 2 * MIB + i for i in range(6)}
FILES.update({f'small/shard-{i}.bin': 70000 + i for i in range(30)})


def _fill(place):
    """A cache that holds everything, closed cleanly."""
    make_tree(place.source, FILES)
    with Mount(place) as mount:
        assert_same_tree(mount.point, place.source)
        wait_until(lambda: mount.metric('dctf_cache_written_bytes_total') >= sum(FILES.values()), 20,
                   'all of it is written')


def _shard_files(place):
    return sorted(glob.glob(place.path('cache/shards/*/*')))


def _flip(path, offset, count=1):
    with open(path, 'r+b') as file:
        file.seek(offset)
        data = file.read(count)
        file.seek(offset)
        file.write(bytes(byte ^ 0xff for byte in data))


def _compare_twice(place, mount):
    """Right bytes, and soon none of them from the source."""
    def kept():
        before = mount.origin_bytes()
        for name in FILES:
            drop_pages(mount.path(name))
        assert_same_tree(mount.point, place.source)
        return mount.origin_bytes() == before
    wait_until(kept, 10, 'what was bad has been kept anew')


def test_detect_flipped_bytes(place):
    _fill(place)
    files = _shard_files(place)
    assert len(files) == 6
    dice = random.Random(seed())
    for path in files:
        _flip(path, dice.randrange(2 * MIB))
    with Mount(place, scrub='off') as mount:
        assert_same_tree(mount.point, place.source)
        bad = mount.metric('dctf_cache_bad_blocks_total')
        assert bad == len(files), f'{bad} bad blocks told'
        assert mount.metric('dctf_errors_total', code='3007') > 0
        assert mount.origin_bytes() <= len(files) * 1.5 * MIB
        _compare_twice(place, mount)


def test_detect_flipped_bytes_while_idle(place):
    """The scrubber finds them before anybody reads, and before the kernel may."""
    _fill(place)
    for path in _shard_files(place)[:3]:
        _flip(path, MIB)
    with Mount(place, scrub='on') as mount:
        wait_until(lambda: mount.metric('dctf_cache_bad_blocks_total') == 3, 30, 'the scrubber finds them')
        _compare_twice(place, mount)


def test_detect_cut_and_grown_files(place):
    _fill(place)
    files = _shard_files(place)
    os.truncate(files[0], 0)
    os.truncate(files[1], MIB + 17)
    with open(files[2], 'ab') as file:
        file.write(b'more')
    os.unlink(files[3])
    with open(files[4], 'wb') as file:
        file.write(os.urandom(100))
    shutil.copyfile(files[0], files[5])
    with Mount(place) as mount:
        _compare_twice(place, mount)


def test_detect_exchanged_files(place):
    """Two shards' files take each other's place: same size, wrong bytes."""
    sizes = {'d/a.bin': 2 * MIB, 'd/b.bin': 2 * MIB}
    make_tree(place.source, sizes)
    with Mount(place) as mount:
        assert_same_tree(mount.point, place.source)
    a, b = _shard_files(place)
    os.rename(a, a + '.x')
    os.rename(b, a)
    os.rename(a + '.x', b)
    with Mount(place) as mount:
        assert_same_tree(mount.point, place.source)
        assert mount.metric('dctf_cache_bad_blocks_total') > 0


def _serves_or_refuses(place, what):
    """True: the mount came, and every byte was right. False: it did not, and one line said why, with its code."""
    mount = Mount(place, wait=False)
    mount.expect('')
    try:
        mount.wait_ready()
    except AssertionError:
        text = mount.log_text()
        mount.abandon()
        assert 'error 300' in text, f'{what}: status {mount.status_now()}: {text}'
        assert not mounted_below(mount.point)
        return False
    with mount:
        assert_same_tree(mount.point, place.source)
    return True


def test_survive_damaged_database(place):
    """Every file of the database in turn: the mount refuses with a word, or serves right bytes."""
    _fill(place)
    shutil.copytree(place.cache, place.path('good'))
    names = [n for n in sorted(os.listdir(place.path('good/db'))) if not n.startswith(('LOG', 'LOCK', 'IDENTITY'))]
    dice = random.Random(seed())
    refused = 0
    for name in names:
        for damage in ('flip', 'cut', 'gone'):
            shutil.rmtree(place.cache)
            shutil.copytree(place.path('good'), place.cache)
            victim = os.path.join(place.cache, 'db', name)
            size = os.path.getsize(victim)
            if damage == 'gone':
                os.unlink(victim)
            elif size == 0:
                continue
            elif damage == 'cut':
                os.truncate(victim, size // 2)
            else:
                for _ in range(5):
                    _flip(victim, dice.randrange(size), 8)
            refused += not _serves_or_refuses(place, f'{name} {damage}')
    print(f'     {len(names)} files damaged; refused {refused} times')


def test_survive_damaged_table_ends(place):
    """RocksDB 7 reads the properties of a table, near its end, before their sum, and may end the process there."""
    _fill(place)
    shutil.copytree(place.cache, place.path('good'))
    dice = random.Random(seed())
    refused = rounds = 0
    for name in sorted(os.listdir(place.path('good/db'))):
        if not name.endswith('.sst'):
            continue
        for _ in range(scaled(6, 2)):
            shutil.rmtree(place.cache)
            shutil.copytree(place.path('good'), place.cache)
            victim = os.path.join(place.cache, 'db', name)
            size = os.path.getsize(victim)
            for _ in range(6):
                _flip(victim, max(0, size - dice.randrange(54, 1200)), 8)
            rounds += 1
            refused += not _serves_or_refuses(place, f'the end of {name}')
    print(f'     {rounds} tables damaged; refused {refused} times')
    assert rounds


def test_delete_files_under_mount(place):
    """Cache files vanish while the mount runs: they are fetched again, and kept again."""
    _fill(place)
    with Mount(place, passthrough='off') as mount:
        assert_same_tree(mount.point, place.source)
        for path in _shard_files(place):
            os.unlink(path)
        for name in FILES:
            drop_pages(mount.path(name))
        assert_same_tree(mount.point, place.source)
        wait_until(lambda: len(_shard_files(place)) == 6, 10, 'they are kept anew')
        _compare_twice(place, mount)


def test_delete_files_under_passthrough(place):
    _fill(place)
    with Mount(place) as mount:
        assert_same_tree(mount.point, place.source)
        handles = [open(mount.path(name), 'rb') for name in FILES if name.startswith('large')]
        shutil.rmtree(place.path('cache/shards'))
        for name, handle in zip(FILES, handles):
            drop_pages(mount.path(name))
            assert_same(handle.read(), bytes_of(name, FILES[name]))
            handle.close()
        assert_same_tree(mount.point, place.source)
        assert_same_tree(mount.point, place.source)
        mount.expect('cache')


def _refused(place, code, *command, environ=None):
    """The command fails with one line that carries the code."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit(30), check=False,
                          env=environ or place.environ(), stdin=subprocess.DEVNULL)
    lines = done.stderr.strip().splitlines()
    assert done.returncode != 0 and len(lines) == 1 and f'error {code} ' in lines[0], \
        f'status {done.returncode}: {done.stderr}{done.stdout}'
    assert 'remedy: ' in lines[0]
    return lines[0]


def _dctffs(place, point, *options, cache=None):
    return (DCTFFS, '-c', place.empty_config, '-o',
            ','.join(('cache_size=100M', f'cache_dir={cache or place.cache}', *options)), place.source, point)


def test_refuse_foreign_directory(place):
    make_shards(place.source, 1, 1000)
    write_file(os.path.join(place.cache, 'thesis.tex'), b'precious')
    line = _refused(place, 3003, *_dctffs(place, place.directory('mnt')))
    assert place.cache in line or 'thesis.tex' in line
    assert os.listdir(place.cache) == ['thesis.tex']


def test_refuse_unknown_format(place):
    _fill(place)
    write_file(os.path.join(place.cache, 'FORMAT'), b'dctffs-cache 99\n')
    before = sorted(os.listdir(place.cache))
    _refused(place, 3004, *_dctffs(place, place.directory('mnt')))
    write_file(os.path.join(place.cache, 'FORMAT'), b'junk\n')
    done = subprocess.run(_dctffs(place, place.path('mnt')), capture_output=True, text=True, check=False,
                          timeout=limit(30), env=place.environ())
    assert done.returncode != 0 and ('3003' in done.stderr or '3004' in done.stderr), done.stderr
    assert sorted(os.listdir(place.cache)) == before


def test_refuse_shared_cache(place):
    make_shards(place.source, 1, 1000)
    with Mount(place) as mount:
        line = _refused(place, 3002, *_dctffs(place, place.directory('other')))
        assert str(mount.pid) in line, line
        assert_same_tree(mount.point, place.source)
    with Mount(place, name='other') as mount:
        assert_same_tree(mount.point, place.source)


def test_refuse_busy_mount_point(place):
    make_shards(place.source, 1, 1000)
    with Mount(place) as mount:
        _refused(place, 3011, *_dctffs(place, mount.point, cache=place.path('cache2')))
        assert_same_tree(mount.point, place.source)
    point = place.filesystem('tmp')
    _refused(place, 3011, *_dctffs(place, point))
    umount(point)
    _refused(place, 3012, *_dctffs(place, place.path('absent')))
    write_file(place.path('file'), b'x')
    _refused(place, 3012, *_dctffs(place, place.path('file')))


def test_refuse_nested_places(place):
    make_shards(place.source, 1, 1000)
    point = place.directory('mnt')
    _refused(place, 3017, *_dctffs(place, point, cache=os.path.join(point, 'cache')))
    _refused(place, 3017, *_dctffs(place, place.directory('source/inner')))


if __name__ == '__main__':
    main(globals())
