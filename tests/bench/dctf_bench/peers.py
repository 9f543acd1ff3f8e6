# SPDX-License-Identifier: Apache-2.0
"""A shard that is hot on a peer, against a web server that serves the same file."""

import ctypes
import hashlib
import hmac
import os
import secrets
import shutil
import subprocess
import time

from . import host
from .encoder import Pair
from .measure import Samples, alternate, rows
from .net import SECRET, Switched

TITLE = 'peers: reading what a peer has'
ABOUT = '''Two network namespaces and a switch between them, not shaped (cubic). In one a node has the shard, wholly cached and verified, and
nginx (`sendfile`, one process) serves the very same file; all of it is in the page cache. From the other, in turn:

"Peer server": `curl` fetches it from the node's peer server as nodes do, in requests of 1 MiB, four at once, each signed; against one
`curl` of the whole file from nginx; both to `/dev/null`. "Mount": a node with an empty cache reads it through its mount (`fio`,
1 MiB), which also checks each block, hands it to the kernel and the reader, and writes it to its disk; against `curl` from nginx to
`/dev/null`, and into a file.'''

CONFIG = '''daemon off; master_process off; pid {dir}/pid; error_log {dir}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log off; sendfile on; tcp_nopush on;
    client_body_temp_path {dir}/1; proxy_temp_path {dir}/2; fastcgi_temp_path {dir}/3; uwsgi_temp_path {dir}/4;
    scgi_temp_path {dir}/5;
    server {{ listen {address}:{port}; root {root}; }}
}}
'''
PORT = 8080
SHARD = 'shard.bin'
REQUEST_BLOCKS = 4  # of 256 KiB


class Nginx:
    """One process that serves a directory, on a host."""

    def __init__(self, work, net, root):
        program = shutil.which('nginx') or '/usr/sbin/nginx'
        directory = work.path('nginx')
        os.makedirs(directory)
        for place in (work.dir, directory):
            os.chmod(place, 0o755)  # it gives root up
        with open(f'{directory}/nginx.conf', 'w', encoding='utf-8') as file:
            file.write(CONFIG.format(dir=directory, address=net.near_address, port=PORT, root=root))
        self._process = subprocess.Popen([program, '-p', directory, '-c', f'{directory}/nginx.conf'],
                                         preexec_fn=net.near.enter, stdin=subprocess.DEVNULL)
        work.on_exit(self.stop)
        self.url = f'http://{net.near_address}:{PORT}/{SHARD}'

    def stop(self):
        if self._process.poll() is None:
            self._process.terminate()
            self._process.wait()


def hash64(text):
    """XXH3, by which nodes name datasets."""
    library = ctypes.CDLL('libxxhash.so.0')
    library.XXH3_64bits.restype = ctypes.c_uint64
    library.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    return library.XXH3_64bits(text, len(text))


def signed_requests(node, size):
    """A configuration of curl: the whole shard, in requests as a peer makes them (transport/peer_wire.h)."""
    dataset = hash64(f'file://{node.source}'.encode())
    etag = os.getxattr(node.path(SHARD), 'user.dctf.etag').decode()
    blocks = size // (256 * 1024)
    lines = ['fail', 'silent', 'show-error']
    for first in range(0, blocks, REQUEST_BLOCKS):
        target = (f'/v1/blocks/{SHARD}?ds={dataset:016x}&size={size}&etag={etag}&first={first}'
                  f'&count={min(REQUEST_BLOCKS, blocks - first)}')
        headers = {'Dctf-Class': 'demand', 'Dctf-Deadline': '30000', 'Dctf-Hop': '1', 'Dctf-Node': 'curl',
                   'Dctf-View': '0' * 16}
        now, nonce = str(int(time.time() * 1000)), secrets.token_hex(16)
        text = '\n'.join(['dctf1', 'GET', target, headers['Dctf-Node'], now, nonce]
                         + [f'{name.lower()}:{value}' for name, value in sorted(headers.items())]) + '\n'
        headers['Dctf-Auth'] = f'{now} {nonce} ' + hmac.new(SECRET.encode(), text.encode(), hashlib.sha256).hexdigest()
        lines += [f'url = "http://{node.options["listen"]}{target}"', 'output = "/dev/null"']
        lines += [f'header = "{name}: {value}"' for name, value in headers.items()] + ['next', 'fail', 'silent', 'show-error']
    return '\n'.join(lines[:-4]) + '\n'


def read_pages(path):
    with open(path, 'rb', buffering=0) as file:
        while file.read(4 * host.MIB):
            pass


class Contest:
    def __init__(self, work, size):
        self.work, self.size = work, size
        self.source = work.dataset('source', [(SHARD, size)])
        self.net = Switched(work)
        self.net.congestion('cubic')
        self.pair = Pair(work, self.source, (self.net.near, f'{self.net.near_address}:7001'),
                         (self.net.far, f'{self.net.far_address}:7002'))
        self.nginx = Nginx(work, self.net, self.source)

    def _rate(self, begin):
        return self.size / (time.monotonic() - begin) / host.MIB

    def curl(self, to=os.devnull):
        read_pages(f'{self.source}/{SHARD}')
        begin = time.monotonic()
        self.net.far.run('curl', '-sf', '-o', to, self.nginx.url)
        rate = self._rate(begin)
        if to != os.devnull:
            os.unlink(to)
        return rate

    def curl_peer(self):
        home = self.pair.home
        home.start()
        for _ in range(2):  # checked, then from its own file: hot
            read_pages(home.path(SHARD))
        with open(self.work.path('requests'), 'w', encoding='ascii') as file:
            file.write(signed_requests(home, self.size))
        begin = time.monotonic()
        self.net.far.run('curl', '-Z', '--parallel-max', '4', '-K', file.name)
        rate = self._rate(begin)
        out = home.status()['cluster']['peer_bytes_out']
        if out != self.size:
            raise RuntimeError(f'the peer server sent {out} bytes, not {self.size}')
        home.stop()
        return rate

    def mount(self):
        return self.pair.read(SHARD, self.size) / host.MIB


def bench(work):
    size = work.pick(1024, 256) * host.MIB
    contest = Contest(work, size)
    contest.mount()  # the home fetches it
    samples = alternate(work.settings.runs, {
        'peer server': contest.curl_peer, 'mount': contest.mount, 'curl from nginx': contest.curl,
        'curl from nginx into a file': lambda: contest.curl(work.path('copy'))})
    what = f'{size / host.GIB:g} GiB shard'
    nginx = 'curl from nginx'
    results = rows(Samples({name: samples[name] for name in ('peer server', nginx)}), f'{what}, peer server, curl', 'MiB/s',
                   {nginx: '≥ 0.7'}, 'peer server')
    results += rows(Samples({name: samples[name] for name in ('mount', nginx, nginx + ' into a file')}), f'{what}, mount',
                    'MiB/s', {}, 'mount')
    return results, []
