#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What people type: the command, its mistakes, fstab, signals."""

import errno
import os
import re
import signal
import subprocess
import time

from dctf_e2e import *

MIB = 1024 * 1024


def _run(place, *arguments, environ=None, user=None, seconds=60, program=DCTFFS):
    return subprocess.run([program, *arguments], env={**place.environ(), **(environ or {})}, user=user,
                          group=user, extra_groups=[] if user else None,
                          capture_output=True, text=True, timeout=limit(seconds), check=False,
                          stdin=subprocess.DEVNULL)


def _refused(place, code, *arguments, words=(), status=1, **more):
    """One line with the code, the words and a remedy; nothing is mounted."""
    done = _run(place, *arguments, **more)
    lines = done.stderr.strip().splitlines()
    assert done.returncode == status, f'status {done.returncode}: {done.stderr}'
    assert len(lines) == 1 and re.match(rf'(mount\.)?dctffs: error {code} [A-Z_]+: .*; remedy: ', lines[0]), done.stderr
    for word in words:
        assert word in lines[0], f'{word!r} is not in: {lines[0]}'
    assert not mounted_below(place.root)
    return lines[0]


def _options(place, *options):
    return ('-c', place.empty_config, '-o', ','.join((f'cache_dir={place.cache}', 'cache_size=100M', *options)))


def test_refuse_bad_options(place):
    make_shards(place.source, 1, 1000)
    ends = (place.source, place.directory('mnt'))

    def refused(code, *options, words=()):
        _refused(place, code, *_options(place, *options), *ends, words=words)
    refused(4001, 'cache_sise=1G', words=('cache_sise', 'cache_size'))
    refused(4001, 'frobnicate', words=('frobnicate',))
    refused(4002, 'memory=1M', words=('memory', '64M'))
    refused(4002, 'memory=lots', words=('memory', 'lots'))
    refused(4002, 'read_deadline_ms=0', words=('read_deadline_ms',))
    refused(4002, 'fetch_max=3M', words=('fetch_max', 'power of two'))
    refused(4002, 'passthrough=maybe', words=('passthrough', 'maybe'))
    refused(4002, 'umask=999', words=('umask',))
    refused(4002, 'log_file=/nonexistent/dir/log', words=('log_file',))
    for arguments in ((), (place.source,), (place.source, 'a', 'b'), ('-x', *ends), ('-o',)):
        _refused(place, 4005, *arguments)
    _refused(place, 4002, '-c', place.empty_config, *ends, environ={'DCTF_MEMORY': '1M'}, words=('DCTF_MEMORY',))


def test_refuse_bad_config(place):
    make_shards(place.source, 1, 1000)
    config, point = place.path('dctf.conf'), place.directory('mnt')
    for text, code, words in (
            ('[global]\ncache_sise = 1G\n', 4001, (config + ':2', 'cache_sise', 'cache_size')),
            ('[global]\nmemory = 1\n', 4002, (config + ':2', 'memory')),
            ('[global\nmemory = 1G\n', 4003, (config,)),
            ('[nonsense]\nmemory = 1G\n', 4003, (config, 'nonsense')),
            ('[dataset a]\nsource = file:///a\nmemory = x\n', 4002, (config + ':3',))):
        write_file(config, text.encode())
        _refused(place, code, '-c', config, place.source if 'dataset' not in text else 'a', point, words=words)
    _refused(place, 4004, '-c', place.path('absent.conf'), place.source, point, words=('absent.conf',))
    write_file(config, b'[global]\n')
    _refused(place, 4006, '-c', config, 'features', point, words=('features',))


def test_mount_by_name(place):
    """A dataset of the configuration file, with layers: file, environment, command line."""
    make_shards(place.source, 2, 1000)
    point, config = place.directory('mnt'), place.path('dctf.conf')
    write_file(config, f'[global]\ncache_size = 300M\nmemory = 80M\n[dataset features]\n'
                       f'source = file://{place.source}\ncache_dir = {place.cache}\nzone = z1\n'
                       f'log_file = {place.path("log-0")}\n'.encode())
    done = _run(place, '-c', config, '-o', 'memory=96M', 'features', point, environ={'DCTF_ZONE': 'z2'})
    assert done.returncode == 0, done.stderr
    try:
        text = read_all(os.path.join(point, '.dctf/config')).decode()
        for line in ('cache_size = 300M', 'memory = 96M', 'zone = z2'):
            assert line in text, f'{line} is not in:\n{text}'
        assert_same_tree(point, place.source)
    finally:
        umount(point)
    _wait_gone(place)


def test_refuse_bad_source(place):
    point = place.directory('mnt')
    for source, code in ((place.path('absent'), 4006), ('file://' + place.path('absent'), 4006),
                         ('ftp://host/prefix', 2010), ('relative/dir', 4006)):
        _refused(place, code, *_options(place), source, point, words=(source.split('://')[-1],))
    write_file(place.path('file'), b'x')
    _refused(place, 4006, *_options(place), place.path('file'), point)


def test_tell_help_and_version(place):
    for argument in ('-h', '--help'):
        done = _run(place, argument)
        assert done.returncode == 0 and not done.stderr
        for word in ('SOURCE', 'MOUNTPOINT', 'cache_size', 'memory', 'passthrough'):
            assert word in done.stdout
    for argument in ('-V', '--version'):
        done = _run(place, argument)
        assert done.returncode == 0 and re.match(r'dctffs \d+\.\d+\.\d+\n$', done.stdout), done.stdout


def test_return_when_ready(place):
    """In the background the command returns when the mount answers, and not before."""
    make_shards(place.source, 3, 1000)
    with Mount(place, background=True) as mount:
        assert len(os.listdir(mount.path('feature'))) == 3
        # Nothing ties it to whoever started it.
        assert os.getsid(mount.pid) != os.getsid(0)
        assert os.readlink(f'/proc/{mount.pid}/cwd') == '/'
        for fd in (0, 1, 2):
            assert os.readlink(f'/proc/{mount.pid}/fd/{fd}') in ('/dev/null', mount.log), fd
        mount.unmount()


def test_log_to_file_anew(place):
    """SIGHUP opens the log anew, as logrotate wants it."""
    make_shards(place.source, 1, 1000)
    with Mount(place, background=True) as mount:
        os.rename(mount.log, mount.log + '.1')
        mount.signal(signal.SIGHUP)
        wait_until(lambda: os.path.exists(mount.log), 10, 'the log is opened anew')


def _fstab(place, options, kind='dctffs'):
    fstab = place.path('fstab')
    write_file(fstab, f'file://{place.source} {place.directory("mnt")} {kind} {options},'
                      f'cache_dir={place.cache},cache_size=100M,log_file={place.path("log-0")} 0 0\n'.encode())
    return fstab


def _own_namespace():
    """The command that runs another in a mount namespace of its own."""
    command = ['unshare', '--mount', '--propagation', 'private']
    done = subprocess.run([*command, 'true'], capture_output=True, text=True, check=False)
    if done.returncode:
        # In a plain chroot the root is no mount point, and its propagation cannot be changed.
        skip('no mount namespace of its own: ' + done.stderr.strip())
    return [*command, 'bash', '-c', LET_GO + 'exec "$@"', 'bash']


def _with_helper(place, script):
    """Run a shell script in a mount namespace of its own where the helper is installed."""
    helpers = place.directory('helpers')
    for name in ('dctffs', 'mount.dctffs'):
        if not os.path.lexists(os.path.join(helpers, name)):
            os.symlink(DCTFFS, os.path.join(helpers, name))
    setup = f'mount -t overlay overlay -o lowerdir={helpers}:/usr/sbin /usr/sbin || exit 99\n'
    done = subprocess.run([*_own_namespace(), 'bash', '-c', setup + script],
                          env=place.environ(), capture_output=True, text=True, timeout=limit(60),
                          check=False, stdin=subprocess.DEVNULL)
    if done.returncode == 99:
        skip('no overlay mounts')
    return done


def _wait_gone(place):
    wait_until(lambda: subprocess.run(['pgrep', '-f', f'dctffs.*{place.root}'], check=False,
                                      capture_output=True).returncode == 1, 20, 'the daemon is gone')


def test_mount_from_fstab(place):
    """`mount -a` with what people write there."""
    make_shards(place.source, 3, 1000)
    for options in ('ro,_netdev,nofail,allow_other',
                    'defaults,noatime,nodev,nosuid,x-systemd.requires-mounts-for=/tmp,x-systemd.automount,auto',
                    'ro,relatime,nouser,exec,nofail,comment=x'):
        fstab = _fstab(place, options)
        done = _with_helper(place, f'''
            mount -a -T {fstab} || exit 1
            findmnt -n -o FSTYPE,OPTIONS {place.path('mnt')} || exit 2
            cmp {place.source}/feature/shard-00001.bin {place.path('mnt')}/feature/shard-00001.bin || exit 3
            mount -a -T {fstab} || exit 4
            umount {place.path('mnt')} || exit 5
            ''')
        assert done.returncode == 0, (options, done.returncode, done.stdout, done.stderr)
        assert done.stdout.startswith('fuse.dctffs ro,nosuid,nodev'), done.stdout
        _wait_gone(place)


def test_mount_by_helper(place):
    make_shards(place.source, 3, 1000)
    options = f'cache_dir={place.cache},cache_size=100M,log_file={place.path("log-0")}'
    point, source = place.directory('mnt'), 'file://' + place.source
    done = _with_helper(place, f'''
        PATH=$PATH:/usr/sbin
        mount -t dctffs -o {options} {source} {point} && umount {point} || exit 1
        sleep 0.5
        mount -t fuse.dctffs -o {options} {source} {point} && umount {point} || exit 2
        sleep 0.5
        mount -f -t dctffs -o {options} {source} {point} || exit 3
        mountpoint -q {point} && exit 4
        mount -s -t dctffs -o {options},cache_sise=7 {source} {point} && umount {point} || exit 5
        mount -t dctffs -o {options},cache_sise=7 {source} {point} && exit 6
        mount -t dctffs -o {options} {source}/absent {point}; test $? = 32 || exit 7
        exit 0
        ''')
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    assert 'mount.dctffs: error 4001' in done.stderr and 'mount.dctffs: error 4006' in done.stderr
    _wait_gone(place)


def test_leave_while_files_are_open(place):
    """SIGTERM waits for open files, bounded; they can be read meanwhile."""
    make_shards(place.source, 3, 300000)
    with Mount(place, unmount_timeout='20s') as mount:
        name = mount.path('feature/shard-00000.bin')
        file = open(name, 'rb')
        try:
            os.rmdir(mount.point)
        except OSError as error:
            assert error.errno == errno.EBUSY
        mount.signal(signal.SIGTERM)
        time.sleep(0.5)
        assert mount.is_alive()
        assert_same(file.read(), bytes_of('feature/shard-00000.bin', 300000))
        start = time.monotonic()
        file.close()
        mount.wait_end(10)
        assert time.monotonic() - start < limit(3)
        mount.check_clean()


def test_leave_at_deadline(place):
    make_shards(place.source, 3, 300000)
    with Mount(place, unmount_timeout='1s') as mount:
        file = open(mount.path('feature/shard-00000.bin'), 'rb')
        status = open(mount.path('.dctf/status.json'), 'rb')
        start = time.monotonic()
        mount.signal(signal.SIGTERM)
        mount.wait_end(15)
        assert 0.8 < time.monotonic() - start < limit(5)
        mount.check_clean()
        try:
            file.read()
        except OSError as error:
            assert error.errno in (errno.ENOTCONN, errno.ECONNABORTED), errno.errorcode[error.errno]
        file.close()
        status.close()
    with Mount(place) as mount:
        assert_same_tree(mount.point, place.source)


def test_leave_at_once_when_told_twice(place):
    make_shards(place.source, 3, 300000)
    with Mount(place, unmount_timeout='60s') as mount:
        file = open(mount.path('feature/shard-00000.bin'), 'rb')
        mount.signal(signal.SIGTERM)
        time.sleep(0.3)
        assert mount.is_alive()
        start = time.monotonic()
        mount.signal(signal.SIGTERM)
        mount.wait_end(10)
        assert time.monotonic() - start < limit(4)
        mount.check_clean()
        file.close()


def test_unmount_busy(place):
    make_shards(place.source, 3, 300000)
    with Mount(place) as mount:
        file = open(mount.path('feature/shard-00000.bin'), 'rb')
        try:
            umount(mount.point)
            raise AssertionError('unmounted although a file is open')
        except OSError as error:
            assert error.errno == errno.EBUSY
        assert_same(file.read(), bytes_of('feature/shard-00000.bin', 300000))
        file.close()


def test_interrupt_in_foreground(place):
    """Ctrl-C."""
    make_shards(place.source, 3, 1000)
    with Mount(place) as mount:
        os.listdir(mount.point)
        mount.signal(signal.SIGINT)
        mount.wait_end(10)
        mount.check_clean()


def test_mount_as_another_user(place):
    """Without root: fusermount3 mounts, nobody else may look, the tools work."""
    if 'address' in SANITIZER:
        skip("libfuse's child allocates before it runs fusermount3, and clang 14's allocator does not survive a fork")
    if not os.path.exists('/etc/mtab'):
        skip('no /etc/mtab, which fusermount3 reads')  # installers make it, debootstrap does not
    make_shards(place.source, 3, 1000)
    point, runtime = place.directory('mnt'), place.directory('runtime')
    for path in (point, runtime, place.directory('cache')):
        os.chown(path, 65534, 65534)
    os.chmod(runtime, 0o700)
    write_file(place.path('as-nobody'), f'''
        export XDG_RUNTIME_DIR={runtime}
        {DCTFFS} -c {place.empty_config} -o cache_dir={place.cache},log_file=/nonexistent/x {place.source} {point} && exit 1
        options=cache_dir={place.cache},log_file={runtime}/log
        {DCTFFS} -c {place.empty_config} -o $options {place.source} {point} || exit 2
        cmp {point}/feature/shard-00001.bin {place.source}/feature/shard-00001.bin || exit 3
        {DCTF} status {point} || exit 4
        {DCTF} warm {point} || exit 5
        {DCTF} sync --force {point} || exit 6
        ls {point} >/dev/null || exit 7
        '''.encode())
    # Some machines keep the device to root: in a mount namespace of its own it is for all.
    done = subprocess.run([*_own_namespace(), 'bash', '-c', f'''
        mknod {place.path('fuse')} c 10 229 && chmod 666 {place.path('fuse')} || exit 98
        mount --bind {place.path('fuse')} /dev/fuse || exit 98
        nobody="setpriv --reuid 65534 --regid 65534 --clear-groups"
        $nobody bash {place.path('as-nobody')}; status=$?
        ls {point} >/dev/null && status=20
        $nobody fusermount3 -u {point} || status=21
        exit $status
        '''], env=place.environ(), capture_output=True, text=True, timeout=limit(60), check=False,
        stdin=subprocess.DEVNULL)
    if done.returncode == 98:
        skip('no device of its own: ' + done.stderr)
    assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)
    assert 'needs root' in read_all(os.path.join(runtime, 'log')).decode()
    assert 'passthrough' in done.stdout
    _wait_gone(place)
    assert os.listdir(os.path.join(runtime, 'dctf')) == [], 'left by the daemon'


def test_refuse_allow_other(place):
    """Where /etc/fuse.conf forbids it, the message says so."""
    make_shards(place.source, 3, 1000)
    with open('/etc/fuse.conf') as conf:
        if any(line.strip() == 'user_allow_other' for line in conf):
            skip('/etc/fuse.conf allows it')
    point = place.directory('mnt')
    os.mkdir(place.cache)
    os.chown(point, 65534, 65534)
    os.chown(place.cache, 65534, 65534)
    _refused(place, 3013, *_options(place, 'allow_other'), place.source, point, user=65534,
             words=('/etc/fuse.conf', 'user_allow_other'))


if __name__ == '__main__':
    main(globals())
