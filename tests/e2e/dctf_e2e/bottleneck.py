# SPDX-License-Identifier: Apache-2.0
"""Two hosts at a switch whose ports are shaped in both directions: a link that is thin, and a queue before it."""

import shutil
import subprocess

from .env import skip
from .netns import Namespace, bridge, link, need

_FRAME_BYTES, _SEGMENT_BYTES = 1514, 1448  # a full TCP segment with time stamps, as a shaper counts it and as we do

_NET = '10.78.0.0/24'


def payload_rate(bits_per_second):
    """Bytes per second that TCP can carry at most over a link of that rate."""
    return bits_per_second / 8 * _SEGMENT_BYTES / _FRAME_BYTES


class Bottleneck:
    """`near` and `far`, with nothing else on the network."""

    near_address, far_address = '10.78.0.1', '10.78.0.2'

    def __init__(self):
        need()
        if not shutil.which('tc'):
            skip('no tc here (package iproute2)')
        self.switch, self.near, self.far = Namespace(), Namespace(), Namespace()
        for port, host, address in (('p0', self.near, self.near_address), ('p1', self.far, self.far_address)):
            link(self.switch, port, host, 'eth0')
            host.ip('addr', 'add', f'{address}/24', 'dev', 'eth0')
        bridge(self.switch, 'switch', ['p0', 'p1'])

    def shape(self, rate, queue_ms):
        """`rate` as tc writes it (1gbit), and how many milliseconds of it may queue."""
        for port in ('p0', 'p1'):
            self.switch.run('tc', 'qdisc', 'replace', 'dev', port, 'root', 'tbf', 'rate', rate, 'burst', '128k',
                            'latency', f'{queue_ms}ms')

    def unshape(self):
        for port in ('p0', 'p1'):
            subprocess.run(['tc', 'qdisc', 'del', 'dev', port, 'root'], preexec_fn=self.switch.enter, check=False,
                           capture_output=True)

    def congestion(self, name):
        """What both hosts send with on connections that begin from now on (bbr, cubic, reno). By the route: the
        setting of a namespace takes no algorithm that the machine does not let everybody use."""
        for host, address in ((self.near, self.near_address), (self.far, self.far_address)):
            host.ip('route', 'replace', _NET, 'dev', 'eth0', 'scope', 'link', 'src', address, 'congctl', name)

    def close(self):
        for namespace in (self.switch, self.near, self.far):
            namespace.close()

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.close()
