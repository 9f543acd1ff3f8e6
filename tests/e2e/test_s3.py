#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A bucket as a directory: names, bytes, versions, and how much is asked of the service."""

import errno
import json
import os
import random
import signal
import subprocess
import time

from dctf_e2e import *
from dctf_e2e.s3 import Key, S3Server

MIB = 1024 * 1024
BLOCK = 256 * 1024


def _mount(place, s3, prefix='', **options):
    source = f's3://{s3.bucket_name}' + ('/' + prefix if prefix else '')
    environ = {**s3.environ(), **options.pop('environ', {})}
    return Mount(place, source, environ=environ, **{'endpoint': s3.url, 'metadata_ttl': '1h', **options})


def _put_all(s3, files):
    """{key: size} → objects with bytes_of()."""
    for key, size in files.items():
        s3.put(key, bytes_of(key, size))


def _tree(mount):
    """{path: size} of every file below a mount, and the directories."""
    files, directories = {}, set()
    for directory, subdirectories, names in os.walk(mount.point):
        for name in names:
            path = os.path.join(directory, name)
            files[os.path.relpath(path, mount.point)] = os.lstat(path).st_size
        directories.update(os.path.relpath(os.path.join(directory, d), mount.point) for d in subdirectories)
    return files, directories


def _errno(function, *args):
    try:
        function(*args)
    except OSError as error:
        return error.errno
    return 0


# Names and bytes ---------------------------------------------------------------------------


def test_read_every_byte(place):
    dice = random.Random(seed())
    sizes = [0, 1, 4095, 4096, 5000, BLOCK - 1, BLOCK, BLOCK + 1, MIB, MIB + 1, 3 * MIB + 17]
    files = {f'{"/".join(f"d{dice.randrange(3)}" for _ in range(dice.randrange(4)))}/f{i:03}'.lstrip('/'):
             dice.choice(sizes) for i in range(80)}
    with S3Server(place) as s3:
        _put_all(s3, files)
        with _mount(place, s3) as mount:
            shown, _ = _tree(mount)
            assert shown == files
            for key, size in files.items():
                assert_same(read_all(mount.path(key)), bytes_of(key, size), key)
            mount.ask('evict', path='')
        with _mount(place, s3, 'd1', cache=place.path('cache-below')) as mount:
            below = {key[3:]: size for key, size in files.items() if key.startswith('d1/')}
            assert _tree(mount)[0] == below
            for key, size in below.items():
                assert_same(read_all(mount.path(key)), bytes_of('d1/' + key, size), key)
        assert s3.stats()['not_canonical'] == 0
        assert s3.stats()['requests']['head'] == 0


def test_read_odd_keys(place):
    odd = ['with space', 'plus+plus', '100%', '%2F', 'ä ö ü 漢字', "!*'()~", 'a=b&c;d', 'q?u#x', 'back\\slash',
           'quote"\'`', '<xml>&amp;', 'tab\tbed', 'line\nbreak', '-', '.hidden', '...', 'comma,comma', '$@:^|{}[]']
    long_name = 'x' * 255
    longest = '/'.join(['w' * 255] * 3 + ['y' * 250])
    longest += '/' + 'z' * (1024 - len(longest) - 1)
    assert len(longest) == 1024
    keys = odd + [f'sub {name}/{name}' for name in odd] + [long_name, longest]
    with S3Server(place) as s3:
        for key in keys:
            s3.put(key, bytes_of(key, 300))
        with _mount(place, s3) as mount:
            assert set(_tree(mount)[0]) == set(keys)
            for key in keys:
                assert_same(read_all(mount.path(key)), bytes_of(key, 300), key)
        assert s3.stats()['not_canonical'] == 0


def test_hide_what_is_no_file(place):
    """docs/keys.md: a directory goes before a file of its name; markers are directories; a name
    that no path can have is hidden, and nothing of it makes another one disappear."""
    with S3Server(place) as s3:
        s3.put('both', b'hidden by the directory')
        s3.put('both/inner', b'inner')
        s3.put('marker/', b'')
        s3.put('double//slash', b'?')
        s3.put('dots/../x', b'?')
        s3.put('dots/./y', b'?')
        s3.put('dots/z', b'z')
        with _mount(place, s3) as mount:
            assert sorted(os.listdir(mount.point)) == ['both', 'dots', 'double', 'marker']
            assert os.listdir(mount.path('both')) == ['inner'] and read_all(mount.path('both/inner')) == b'inner'
            assert os.listdir(mount.path('marker')) == []
            assert os.listdir(mount.path('double')) == []
            assert os.listdir(mount.path('dots')) == ['z']
            assert _errno(os.stat, mount.path('nothing')) == errno.ENOENT
            assert _errno(os.listdir, mount.path('nothing/at/all')) == errno.ENOENT


def test_mount_nothing(place):
    """An empty bucket is an empty directory, and so is a prefix that no key has yet."""
    with S3Server(place) as s3:
        with _mount(place, s3) as mount:
            assert os.listdir(mount.point) == []
            s3.put('later/x', b'here')
            mount.sync()
            assert wait_until(lambda: os.listdir(mount.point), 10, 'the new object shows') == ['later']
            assert read_all(mount.path('later/x')) == b'here'
        with _mount(place, s3, 'not/yet', cache=place.path('cache-2')) as mount:
            assert os.listdir(mount.point) == []


def test_list_many(place):
    """Three pages of a directory, and prefixes across pages."""
    with S3Server(place) as s3:
        s3.bulk(2500, 10, prefix='flat/f')
        for i in range(0, 1100):
            s3.put(f'wide/d{i:04}/x', b'x')
        with _mount(place, s3) as mount:
            assert sorted(os.listdir(mount.path('flat'))) == [f'f{i:08}' for i in range(2500)]
            assert sorted(os.listdir(mount.path('wide'))) == [f'd{i:04}' for i in range(1100)]


# Requests and bytes ------------------------------------------------------------------------


def test_ask_little(place):
    """A listing per directory and thousand keys, no HEAD ever, no LIST in a second epoch."""
    directories, each = 12, 30
    files = {f'f{d:02}/s{i:03}.bin': 3000 for d in range(directories) for i in range(each)}
    with S3Server(place) as s3:
        _put_all(s3, files)
        s3.bulk(1500, 10, prefix='many/')
        count = len(files) + 1500
        with _mount(place, s3) as mount:
            s3.reset()
            listed = in_child(60, subprocess.run, ['ls', '-lR', mount.point], -1, None, None,
                              subprocess.PIPE).stdout
            assert listed.count(b'\n-r') == count
            asked = s3.stats()['requests']
            allowed = -(-count // 1000) + directories + 2
            assert asked['list'] <= allowed, f'{asked["list"]} LISTs, allowed are {allowed}'
            assert asked['head'] == 0 and asked['get'] == 0, asked
            for epoch in range(2):
                s3.reset()
                for key, size in files.items():
                    assert_same(read_all(mount.path(key)), bytes_of(key, size), key)
                asked = s3.stats()['requests']
                assert asked['list'] == 0 and asked['head'] == 0, f'epoch {epoch}: {asked}'
                assert asked['get'] == (len(files) if epoch == 0 else 0), f'epoch {epoch}: {asked}'
            assert mount.metric('dctf_s3_requests_total', op='get') == len(files)


def test_read_no_more_than_needed(place):
    size = 48 * MIB
    dice = random.Random(seed())
    with S3Server(place) as s3:
        big = bytes_of('big', size)
        s3.put('random/big', big)
        s3.put('sequence/big', big)
        with _mount(place, s3, readahead=0, read_ahead_kb=4) as mount:
            path = mount.path('random/big')
            fd = os.open(path, os.O_RDONLY)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
            before, reads = mount.origin_bytes(), 60
            for _ in range(reads):
                at = dice.randrange(size // 4096) * 4096
                assert_same(os.pread(fd, 4096, at), big[at:at + 4096])
            os.close(fd)
            got = mount.origin_bytes() - before
            assert got <= reads * BLOCK, f'{got / 4096 / reads:.0f} times what was read'
        with _mount(place, s3, cache=place.path('cache-2')) as mount:
            assert_same(read_all(mount.path('sequence/big')), big)
            wait_until(lambda: mount.metric('dctf_origin_inflight') == 0, 10, 'nothing is under way')
            assert mount.origin_bytes() <= 1.02 * size, mount.origin_bytes()


# Versions ----------------------------------------------------------------------------------


def _versions(fd, size):
    data = read_fully(fd, size)
    assert len(data) == size, f'{len(data)} bytes of {size}'
    return stamps_of(data)


def _change_while_open(place, change, after):
    size = 4 * MIB
    with S3Server(place) as s3:
        s3.put('f/shard', stamp(1, size))
        with _mount(place, s3, readahead=0) as mount:
            path = mount.path('f/shard')
            fd = os.open(path, os.O_RDONLY)
            assert stamps_of(os.pread(fd, 65536, 0)) == {1}
            change(s3, size)
            assert _errno(os.pread, fd, 65536, 3 * MIB) == errno.ESTALE
            assert stamps_of(os.pread(fd, 65536, 0)) == {1}  # what is here stays
            assert mount.metric('dctf_errors_total', code='1003') > 0
            mount.dctf('sync', '--force', mount.point)
            after(path, size)
            os.close(fd)


def _shows(version):
    def check(path, size):
        def now():
            with open(path, 'rb') as file:
                return _versions(file.fileno(), size) == {version}
        wait_until(now, 10, f'version {version} shows')
    return check


def test_overwrite_while_open(place):
    _change_while_open(place, lambda s3, size: s3.put('f/shard', stamp(2, size)), _shows(2))


def test_delete_while_open(place):
    def gone(path, size):
        wait_until(lambda: not os.path.exists(path), 10, 'the name is gone')
    _change_while_open(place, lambda s3, size: s3.delete('f/shard'), gone)


def test_recreate_while_open(place):
    def again(s3, size):
        s3.delete('f/shard')
        s3.put('f/shard', stamp(3, size))
    _change_while_open(place, again, _shows(3))


def test_change_size_while_open(place):
    """Shorter, so that what was asked for lies past the end (416 or 412)."""
    _change_while_open(place, lambda s3, size: s3.put('f/shard', stamp(2, MIB)),
                       lambda path, size: _shows(2)(path, MIB))


def test_overwrite_storm(place):
    """Readers of a shard that is overwritten all the time see one version each, or 1003."""
    size, rounds = 3 * MIB, scaled(40, 10)
    with S3Server(place) as s3:
        s3.put('f/shard', stamp(1, size))
        with _mount(place, s3, metadata_ttl='100ms', readahead=0) as mount:
            path = mount.path('f/shard')

            def read_often(n):
                try:
                    with open(path, 'rb') as file:
                        seen = _versions(file.fileno(), os.fstat(file.fileno()).st_size)
                    assert len(seen) == 1, f'a mix of versions: {seen}'
                except OSError as error:
                    assert error.errno == errno.ESTALE, errno.errorcode[error.errno]
                drop_if_here(path)

            def drop_if_here(name):
                try:
                    drop_pages(name)
                except OSError as error:
                    assert error.errno == errno.ESTALE, errno.errorcode[error.errno]

            with Load(read_often, 3) as load:
                for version in range(2, rounds):
                    s3.put('f/shard', stamp(version, size))
                    load.check()
                    time.sleep(0.02)
            assert load.steps() > rounds // 4, load.steps()


# Who and where -----------------------------------------------------------------------------


def test_find_the_endpoint_as_aws_tools_do(place):
    """An option, the variable of S3, the one of all services, the profile: the first that is there."""
    nowhere = 'http://127.0.0.1:1'
    with S3Server(place) as s3:
        s3.put('x', b'bytes')
        profile = place.path('aws-config')
        with open(profile, 'w', encoding='ascii') as file:
            file.write(f'[default]\nendpoint_url = {s3.url}/\n[profile off]\nendpoint_url = {s3.url}\n'
                       'ignore_configured_endpoint_urls = true\n')

        def reads(more, **options):
            environ = {**s3.environ(), **more}
            with Mount(place, f's3://{s3.bucket_name}', environ=environ, **options) as mount:
                assert read_all(mount.path('x')) == b'bytes'
                return mount.log_text()

        for client in ('curl', 'libs3'):
            reads({'AWS_ENDPOINT_URL_S3': nowhere, 'AWS_ENDPOINT_URL': nowhere}, endpoint=s3.url, s3_client=client)
            reads({'AWS_ENDPOINT_URL_S3': s3.url, 'AWS_ENDPOINT_URL': nowhere}, s3_client=client)
            reads({'AWS_ENDPOINT_URL': s3.url, 'AWS_CONFIG_FILE': profile}, s3_client=client)
            reads({'AWS_CONFIG_FILE': profile}, s3_client=client)
        s3.bucket(s3.bucket_name, public=True)
        assert 'endpoint_url of the profile' in reads({'AWS_CONFIG_FILE': profile}, anonymous='on')
        # libs3 needs an endpoint, and says so when it is told to ignore them.
        for more in ({'AWS_CONFIG_FILE': profile, 'AWS_PROFILE': 'off'},
                     {'AWS_CONFIG_FILE': profile, 'AWS_IGNORE_CONFIGURED_ENDPOINT_URLS': 'true'}):
            mount = Mount(place, f's3://{s3.bucket_name}', environ={**s3.environ(), **more}, s3_client='libs3',
                          wait=False)
            mount.wait_end(status=1)
            assert 'error 2020 ' in mount.log_text(), mount.log_text()


def test_sign_with_a_long_token(place):
    """Session tokens of security services have up to 2,000 bytes; a configuration file holds them."""
    token = 'FwoGZXIvYXdzE' + 'x' * 1980 + '+/=='
    with S3Server(place) as s3:
        key = Key('ASIALONGTOKEN', 'a/secret+of+it', token)
        s3.add_key(key)
        s3.put('x', b'bytes')
        fd = os.open(place.empty_config, os.O_WRONLY | os.O_TRUNC)
        os.fchmod(fd, 0o600)
        os.write(fd, f'[global]\naccess_key_id = {key.access}\nsecret_access_key = {key.secret}\n'
                     f'session_token = {token}\n'.encode())
        os.close(fd)
        with Mount(place, f's3://{s3.bucket_name}', endpoint=s3.url) as mount:
            assert read_all(mount.path('x')) == b'bytes'
            assert s3.requests('get')[-1]['access_key'] == key.access


def test_learn_region(place):
    """A bucket in another region: the answers name it, and it is asked there from then on."""
    with S3Server(place) as s3:
        s3.bucket('elsewhere', region='eu-central-1')
        s3.put('x/y', bytes_of('y', 5000), bucket='elsewhere')
        with Mount(place, 's3://elsewhere', environ=s3.environ(), endpoint=s3.url, region='us-west-2') as mount:
            assert_same(read_all(mount.path('x/y')), bytes_of('y', 5000))
            assert 'region=eu-central-1' in mount.log_text()
            s3.reset()
            mount.sync()
            assert os.listdir(mount.path('x')) == ['y']
            assert set(s3.stats()['status']) == {'200'}, s3.stats()['status']


def test_renew_expired_token(place):
    """Instance credentials that the service calls expired in the middle of a read are renewed."""
    size = 24 * MIB
    with S3Server(place) as s3:
        s3.put('a/big', bytes_of('big', size))
        environ = {'AWS_EC2_METADATA_SERVICE_ENDPOINT': s3.url, 'AWS_REGION': s3.region,
                   'AWS_EC2_METADATA_DISABLED': 'false'}
        with Mount(place, f's3://{s3.bucket_name}', environ=environ, endpoint=s3.url, readahead=0) as mount:
            expected = bytes_of('big', size)
            with open(mount.path('a/big'), 'rb', buffering=0) as file:
                for at in range(0, size, MIB):
                    if at in (4 * MIB, 12 * MIB):
                        s3.expire()
                    assert_same(os.pread(file.fileno(), MIB, at), expected[at:at + MIB], f'at {at}')
            assert s3.stats()['requests']['imds'] >= 6
            assert s3.stats()['errors'].get('ExpiredToken', 0) + s3.stats()['errors'].get('InvalidToken', 0) > 0
            assert mount.metric('dctf_errors_total', code='2016') == 0


def test_follow_the_clock(place):
    """The service's clock is an hour ahead: requests are dated by it, and a warning says so."""
    with S3Server(place) as s3:
        s3.put('x', b'bytes')
        s3.settings(clock_offset=3600)
        with _mount(place, s3) as mount:
            assert read_all(mount.path('x')) == b'bytes'
            assert 'synchronise the clock' in mount.log_text()
            assert s3.stats()['errors'].get('RequestTimeTooSkewed') == 1, s3.stats()['errors']
            s3.settings(clock_offset=0)
            s3.put('y/z', b'more')
            mount.sync()
            assert read_all(mount.path('y/z')) == b'more'


def test_trust_own_authority(place):
    with S3Server(place, tls=True) as s3:
        s3.put('x', bytes_of('x', 2 * MIB))
        with _mount(place, s3, endpoint=s3.tls_url, ca_file=s3.ca_file) as mount:
            assert_same(read_all(mount.path('x')), bytes_of('x', 2 * MIB))
        code, text = _refused(place, s3, endpoint=s3.tls_url)
        assert code == 2013, text


def test_put_the_bucket_into_the_host_name(place):
    with S3Server(place) as s3:
        s3.put('a b/x+y', bytes_of('x', 300000))
        with _mount(place, s3, endpoint=f'http://localhost:{s3.port}', path_style='off') as mount:
            assert os.listdir(mount.path('a b')) == ['x+y']
            assert_same(read_all(mount.path('a b/x+y')), bytes_of('x', 300000))
        assert {r['host'] for r in s3.requests('get')} == {f'data.localhost:{s3.port}'}


def test_read_anonymously(place):
    with S3Server(place) as s3:
        s3.bucket('open', public=True)
        s3.bucket('pays', requester_pays=True)
        s3.put('x', b'public', bucket='open')
        s3.put('x', b'paid', bucket='pays')
        with Mount(place, 's3://open', endpoint=s3.url, anonymous=True) as mount:
            assert read_all(mount.path('x')) == b'public'
        assert s3.stats()['auth']['v4'] == 0
        assert _refused(place, s3, source='s3://pays')[0] == 2002
        with Mount(place, 's3://pays', environ=s3.environ(), endpoint=s3.url, requester_pays=True,
                   cache=place.path('cache-2')) as mount:
            assert read_all(mount.path('x')) == b'paid'


def _refused(place, s3, source=None, environ=None, **options):
    """A mount that must not come up: (code, the line that says why)."""
    options = {'endpoint': s3.url, 'cache_dir': place.path('cache-refused'), **options}
    text = ','.join(f'{key}={value}' for key, value in options.items())
    point = place.directory('refused')
    start = time.monotonic()
    done = subprocess.run([DCTFFS, '-c', place.empty_config, '-f', '-o', text, source or f's3://{s3.bucket_name}',
                           point], env={**place.environ(), **(s3.environ() if environ is None else environ)},
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit(60), check=False)
    assert done.returncode != 0, 'it came up'
    assert time.monotonic() - start < limit(20)
    line = [line for line in done.stderr.splitlines() if ': error ' in line][-1]
    assert s3.key.secret not in done.stderr
    return int(line.split(': error ')[1].split()[0]), line


def test_say_why_not(place):
    """Each way in which a mount fails has its own code, and one line that names the source."""
    with S3Server(place) as s3:
        def code(expected, *words, **how):
            got, line = _refused(place, s3, **how)
            assert got == expected, line
            for word in words:
                assert word in line, line
        environ = s3.environ()
        nobody = {'AWS_REGION': s3.region, 'AWS_EC2_METADATA_DISABLED': 'true', 'HOME': place.root,
                  'AWS_ACCESS_KEY_ID': '', 'AWS_SECRET_ACCESS_KEY': ''}
        code(2016, 'InvalidAccessKeyId', environ={**environ, 'AWS_ACCESS_KEY_ID': 'AKIDNOBODY'})
        code(2016, 'SignatureDoesNotMatch', environ={**environ, 'AWS_SECRET_ACCESS_KEY': 'wrong'})
        code(2014, environ=nobody)
        code(2019, 'NoSuchBucket', source='s3://missing')
        code(2003, endpoint='http://127.0.0.1:9')
        code(2003, endpoint='http://no-such-host.invalid:80', path_style='on')
        code(2012, endpoint=f'{s3.url}/-/health', path_style='on')
        s3.set_faults({'kind': 'denied', 'op': 'list'})
        code(2002, f's3://{s3.bucket_name}', 'AccessDenied')
        s3.set_faults({'kind': 'skewed', 'op': 'list'})
        code(2017, 'RequestTimeTooSkewed')
        s3.set_faults({'kind': 'redirect', 'endpoint': 'other.example:443', 'region': s3.region})
        code(2018, 'other.example')
        s3.set_faults({'kind': 'stall'})
        code(2004, mount_timeout='8s', read_deadline_ms='2s')


# Tools -------------------------------------------------------------------------------------


def test_sync_shows_new_objects(place):
    with S3Server(place) as s3:
        s3.put('f/a', b'1')
        with _mount(place, s3) as mount:
            assert os.listdir(mount.path('f')) == ['a']
            s3.put('f/b', b'2')
            assert os.listdir(mount.path('f')) == ['a']  # trusted for an hour
            mount.dctf('sync', mount.path('f'))
            assert wait_until(lambda: sorted(os.listdir(mount.path('f'))) == ['a', 'b'], 10, 'b shows')
            assert read_all(mount.path('f/b')) == b'2'


def _checks(mount, *arguments, status=0, environ=None):
    """{check: (result, text)} of `dctf doctor`."""
    done = subprocess.run([DCTF, 'doctor', '--json', '--timeout', f'{limit(2):.0f}s', *arguments],
                          env={**mount.place.environ(), **(environ or {})}, capture_output=True, text=True,
                          timeout=limit(30), check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return {c['check']: (c['result'], c['text']) for c in json.loads(done.stdout)['checks']}


def test_examine_a_source(place):
    """`dctf doctor` tells step by step how far it comes: through the daemon, beside a frozen one, and
    without a mount."""
    steps = ('dns', 'tcp', 'tls', 'clock', 'credentials', 'region', 'list', 'get', 'range')
    with S3Server(place) as s3:
        s3.put('d/x', bytes_of('x', 300000))
        environ = s3.environ()
        with _mount(place, s3) as mount:
            seen = _checks(mount, mount.point)  # with no credentials here: the daemon's count
            assert all(seen[step][0] == 'ok' for step in steps), seen
            assert 'd/x' in seen['get'][1] and 'If-Match' in seen['range'][1]
            assert s3.key.secret not in str(seen)
            mount.freeze()
            seen = _checks(mount, mount.point, status=1, environ=environ)
            assert seen['daemon'][0] == 'fail' and s3.url in seen['source'][1], seen
            assert all(seen[step][0] == 'ok' for step in steps), seen
            mount.signal(signal.SIGCONT)
        seen = _checks(mount, '-o', f'endpoint={s3.url}', 's3://data/d', environ=environ)
        assert all(seen[step][0] == 'ok' for step in steps), seen
        seen = _checks(mount, '-o', f'endpoint={s3.url}', 's3://missing', environ=environ, status=1)
        assert seen['list'][0] == 'fail' and 'NoSuchBucket' in seen['list'][1] and 'get' not in seen, seen
        seen = _checks(mount, '-o', 'endpoint=http://127.0.0.1:9', 's3://data', environ=environ, status=1)
        assert seen['tcp'][0] == 'fail' and 'list' not in seen, seen
        s3.settings(clock_offset=7200)
        seen = _checks(mount, '-o', f'endpoint={s3.url}', 's3://data', environ=environ, status=1)
        assert seen['clock'][0] == 'fail' and seen['list'][0] == 'ok', seen
        s3.settings(clock_offset=0)
        s3.freeze()
        with within(10, 'dctf doctor'):
            seen = _checks(mount, '-o', f'endpoint={s3.url}', 's3://data', environ=environ, status=1)
        assert seen['tcp'][0] == 'ok' and seen['tls'][0] == 'fail', seen
        s3.thaw()


if __name__ == '__main__':
    main(globals())
