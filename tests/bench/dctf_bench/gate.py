# SPDX-License-Identifier: Apache-2.0
"""What copies of hot features cost those who read over the same link, and whether the gate finds its way out."""

import os
import random
import socket
import subprocess
import threading
import time

from . import host
from .measure import Row
from .net import DelayLine, Node, Redis, Switched, payload_rate, seen_by, wait_for

TITLE = 'gate: reading beside replication'
ABOUT = '''Three nodes in two network namespaces at a switch whose ports are shaped to 1 Gbit/s with a queue of 20 ms (tbf). Two
are near each other and have made a feature hot; the third is behind the link, starts empty, copies the feature (`replicate=on`, no
bound on the rate) and reads 256 KiB at random from what only the first has, waits 10 ms and reads again. "Without copies" is the same
with `replicate=off`. What demand leaves free is what TCP can carry over the link less what the reader got. bbr and cubic are set on
the route. With `gate=off` copies go as fast as they can: it shows what the gate is for.

Below: on a path with pings alone the gate is looked at twenty times a second (a delay line of our own, or none); a node that starts
while another's stream keeps the queue full has to find the true round trip when that is gone; and a route that becomes ten times as
long is taken for a queue at first, which must not stop copies.'''

BLOCK = 256 * 1024
PAUSE_S = 0.010
LINK_BITS, QUEUE_MS = 1e9, 20
PART = 64 * host.MIB
ROUND_TRIPS_US = (0, 100, 1000, 10000, 100000, 200000)  # 0: two namespaces and a switch

_READ_ON = '''n=1; while :; do
    for f in "$1"/*; do : <"$f"; done
    [ $((n % 4)) != 0 ] || dd if="$2" of=/dev/null bs=256k count=1 skip=$((n / 4 % 256)) 2>/dev/null
    n=$((n + 1)); sleep 1
done'''


def quantile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def copied(node):
    return node.metrics().get('dctf_replication_bytes_total{mode="copied"}', 0)


class Scene:
    """Two nodes near each other have a feature that is hot; a third one, `far`, begins anew in each measurement."""

    def __init__(self, work, net, hot_bytes, demand_bytes):
        self.work, self.net = work, net
        self.hot = [(f'hot/{i:02}.bin', PART) for i in range(hot_bytes // PART)]
        self.demand = [(f'demand/{i:02}.bin', PART) for i in range(demand_bytes // PART)]
        self.cold = [(f'cold{i:02}/a.bin', 4096) for i in range(20)]
        self.source = work.dataset('source', self.hot + self.demand + self.cold)
        self.redis = Redis(work, net.near, net.near_address)
        self.home = self._node('home', net.near, f'{net.near_address}:7001')
        self.other = self._node('other', net.near, f'{net.near_address}:7002', serve='off')
        for node in (self.home, self.other):
            node.start()
        self._make_hot()

    def _node(self, name, where, address, **options):
        return Node(self.work, self.source, name, where, address, redis=self.redis.url, cluster='bench',
                    policy_interval='1s', heartbeat_ms='500ms', settle_ms='300ms', metadata_ttl='1h',
                    replicate_rate='4G', **options)

    def _make_hot(self):
        for _ in range(2):  # from the source; then from the home's own files, which are in the page cache from here on
            for name, size in self.hot + self.demand + self.cold:
                self._read(self.home, name, size)
        for name, _ in self.hot + self.cold:
            self._read(self.other, name, 4096)
        # Each open of a whole shard is a read of it; the other one reads a block that it did not read before. They go
        # on, so that the feature stays hot.
        again = subprocess.Popen(['sh', '-c', _READ_ON, 'sh', self.home.path('hot'), self.other.path('hot', '00.bin')],
                                 stdin=subprocess.DEVNULL)
        self.work.on_exit(lambda: (again.kill(), again.wait()))
        wait_for(lambda: self._is_hot(self.home), 'the feature becomes hot')

    @staticmethod
    def _read(node, name, size):
        with open(node.path(name), 'rb', buffering=0) as file:
            while size > 0:
                size -= len(file.read(min(size, 4 * host.MIB))) or size

    @staticmethod
    def _is_hot(node):
        with open(node.path('.dctf', 'policy.tsv'), encoding='utf-8') as file:
            return any(line.split('\t')[1:2] == ['hot'] for line in file)

    def begin(self, **options):
        """A fresh node behind the link; when it is to copy, it has begun to."""
        self.work.remove('cache-far')
        node = self._node('far', self.net.far, f'{self.net.far_address}:7003', serve='off', **options)
        node.start()
        if options.get('replicate') == 'on':
            wait_for(lambda: copied(node), 'something is copied')
        return node

    def measure(self, seconds, **options):
        """Times of the reads in ms, bytes/s of reads, bytes/s of copies."""
        node = self.begin(**options)
        order = [(name, at) for name, size in self.demand for at in range(0, size, BLOCK)]
        random.Random(1).shuffle(order)
        files = {name: open(node.path(name), 'rb', buffering=0) for name, _ in self.demand}
        try:
            for file in files.values():
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            read_some(order, files, 1)
            before, begin = copied(node), time.monotonic()
            times = read_some(order, files, seconds)
            took = time.monotonic() - begin
            copies = copied(node) - before
        finally:
            for file in files.values():
                file.close()
        if options.get('replicate') == 'on' and copied(node) >= len(self.hot) * PART:
            raise RuntimeError('all was copied before the end: the feature is too small')
        node.stop()
        return times, len(times) * BLOCK / took, copies / took


def read_some(order, files, seconds):
    """Read blocks that were not read before, for so long."""
    times = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        name, at = order.pop()
        begin = time.monotonic()
        got = os.pread(files[name].fileno(), BLOCK, at)
        times.append((time.monotonic() - begin) * 1000)
        if len(got) != BLOCK:
            raise RuntimeError(f'{len(got)} bytes of {name} at {at}')
        time.sleep(PAUSE_S)
    return times


def beside(work, scene, results, notes):
    seconds = work.pick(5, 3)
    runs = min(work.settings.runs, 3)
    ways = {'none': {'replicate': 'off'}, 'on': {'replicate': 'on'}, 'off': {'replicate': 'on', 'gate': 'off'}}
    for sender in ('bbr', 'cubic'):
        scene.net.congestion(sender)
        p50, p95, p99, reads, copies = ({way: [] for way in ways} for _ in range(5))
        for turn in range(runs):
            for way in ('none', 'on', 'off') if turn == 0 else ('on', 'none') if turn % 2 else ('none', 'on'):
                work.say(f'{sender}, {way}')
                times, read, copy = scene.measure(seconds, **ways[way])
                for to, value in ((p50, quantile(times, 0.5)), (p95, quantile(times, 0.95)), (p99, quantile(times, 0.99)),
                                  (reads, read / 1e6), (copies, copy / 1e6)):
                    to[way].append(value)
        link = payload_rate(LINK_BITS) / 1e6
        for what, of, target in (('p50', p50, ''), ('p95', p95, '≤ 1.25'), ('p99', p99, '≤ 1.5')):
            results.append(Row(f'{sender}: {what} of reads', of['on'], of['none'], 'without copies', 'ms', target))
        results.append(Row(f'{sender}: copies', copies['on'], [link - read for read in reads['on']],
                           'what reads leave free', 'MB/s', '≥ 0.75'))
        for what, of in (('p95', p95), ('p99', p99)):
            results.append(Row(f'{sender}, gate=off: {what} of reads', of['off'], of['none'][:1], 'without copies', 'ms'))
        results.append(Row(f'{sender}, gate=off: copies', copies['off'], [link - read for read in reads['off']],
                           'what reads leave free', 'MB/s'))


class Stream:
    """As much as fits from near to far, by somebody else."""

    def __init__(self, net):
        with net.near.inside():
            listener = socket.create_server((net.near_address, 7100))
        with net.far.inside():
            self._taker = socket.create_connection((net.near_address, 7100))
        self._giver, _ = listener.accept()
        listener.close()
        self._threads = [threading.Thread(target=self._give, daemon=True), threading.Thread(target=self._take, daemon=True)]
        for thread in self._threads:
            thread.start()

    def _give(self):
        data = bytes(256 * 1024)
        try:
            while True:
                self._giver.sendall(data)
        except OSError:
            pass

    def _take(self):
        buffer = bytearray(256 * 1024)
        try:
            while self._taker.recv_into(buffer):
                pass
        except OSError:
            pass

    def stop(self):
        for end in (self._giver, self._taker):
            end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        self._giver.close()
        self._taker.close()


def rate_of(node, seconds):
    before, begin = copied(node), time.monotonic()
    time.sleep(seconds)
    return (copied(node) - before) / (time.monotonic() - begin) / 1e6


def latecomer(work, scene, results, notes):
    seconds = work.pick(3, 2)
    scene.net.congestion('cubic')
    node = scene.begin(replicate='on')
    time.sleep(3)
    usual = rate_of(node, seconds)
    node.stop()
    stream = Stream(scene.net)
    try:
        time.sleep(0.5)
        node = scene.begin(replicate='on')
        time.sleep(2)
        beside_it = rate_of(node, seconds)
        in_queue = seen_by(node, scene.home)
    finally:
        stream.stop()
    time.sleep(5)
    after = rate_of(node, seconds)
    free = seen_by(node, scene.home)
    node.stop()
    results.append(Row('latecomer: copies when the queue is gone', after, usual, 'one that started alone', 'MB/s', '≥ 0.9'))
    notes.append(f'Latecomer: smallest round trip {in_queue["min_rtt_us"]} µs and copies {beside_it:.1f} MB/s beside the '
                 f'stream, {free["min_rtt_us"]} µs after it.')


def route_change(work, results, notes):
    seconds = work.pick(3, 2)
    line = DelayLine(work, 500)
    scene = Scene(work, line, 24 * PART, PART)
    node = scene.begin(replicate='on')
    time.sleep(3)
    short = rate_of(node, seconds)
    line.delay(5000)
    time.sleep(3)
    changed = rate_of(node, seconds)
    state = seen_by(node, scene.home)
    node.stop()
    node = scene.begin(replicate='on')
    time.sleep(3)
    fresh = rate_of(node, seconds)
    node.stop()
    results.append(Row('round trip 1 → 10 ms: copies after three seconds', changed, fresh, 'one that started then', 'MB/s',
                       '≥ 0.5'))
    notes.append(f'Route change: {short:.1f} MB/s before; the gate is "{state["gate"]}" after it, which lasts until the '
                 'shorter round trip is ten minutes old.')


def idle(work, results, notes):
    """All of them side by side: they do nothing but ping."""
    source = work.dataset('source', [('a/a.bin', 4096)])
    paths = []
    for number, round_trip in enumerate(ROUND_TRIPS_US):
        net = DelayLine(work, round_trip // 2) if round_trip else Switched(work)
        addresses = f'{net.near_address}:7001', f'{net.far_address}:7002'
        nodes = [Node(work, source, f'{name}-{number}', where, address, peers=r'\,'.join(addresses))
                 for name, where, address in zip(('home', 'far'), (net.near, net.far), addresses)]
        for node in nodes:
            node.start()
        paths.append((f'idle, {round_trip / 1000:g} ms' if round_trip else 'idle, no delay', nodes, []))
    time.sleep(3)
    end = time.monotonic() + work.pick(8, 3)
    while time.monotonic() < end:
        for _, (home, far), states in paths:
            states.append(seen_by(far, home))
        time.sleep(0.05)
    for name, nodes, states in paths:
        for node in nodes:
            node.stop()
        results.append(Row(f'{name}: gate open', sum(state['gate'] == 'open' for state in states) / len(states),
                           unit='of looks', target='≥ 0.99'))
    notes.append('Smallest round trips seen: ' + ', '.join(f'{name} {states[-1]["min_rtt_us"]} µs' for name, _, states in paths)
                 + '.')


def bench(work):
    results, notes = [], []
    net = Switched(work)
    hot = work.pick(26, 16) * PART
    scene = Scene(work, net, host.fits(hot, work.dir), work.pick(8, 4) * PART)
    net.shape('1gbit', QUEUE_MS)
    beside(work, scene, results, notes)
    latecomer(work, scene, results, notes)
    work.clean()
    route_change(work, results, notes)
    work.clean()
    idle(work, results, notes)
    return results, notes
