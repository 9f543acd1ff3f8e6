# SPDX-License-Identifier: Apache-2.0
"""Network namespaces without names: they are gone when nobody is in them any more, whoever was killed.

A process that enters one by Namespace.enter() keeps its mounts (`ip netns exec` would give it mounts of its own,
and what it mounts would be seen by nobody else). /sys stays that of the machine.

    hub = Namespace()
    node = Namespace()
    link(hub, 'port', node, 'eth0')
    node.ip('addr', 'add', '10.1.0.2/24', 'dev', 'eth0')
    subprocess.Popen(command, preexec_fn=node.enter)
"""

import contextlib
import ctypes
import os
import shutil
import subprocess

from .env import skip

_libc = ctypes.CDLL(None, use_errno=True)
_NEWNET = 0x40000000
_OWN = '/proc/thread-self/ns/net'


def _check(result, what):
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f'{what}: {os.strerror(number)}')


def need():
    """Skips the test where namespaces cannot be made."""
    if not shutil.which('ip'):
        skip('no ip here (package iproute2)')
    try:
        Namespace().close()
    except OSError as error:
        skip(f'no network namespaces here: {error}')


class Namespace:
    """One network stack; its loopback is up."""

    def __init__(self):
        before = os.open(_OWN, os.O_RDONLY)
        try:
            _check(_libc.unshare(_NEWNET), 'unshare')
            try:
                self.fd = os.open(_OWN, os.O_RDONLY)
            finally:
                _check(_libc.setns(before, _NEWNET), 'setns')
        finally:
            os.close(before)
        self.ip('link', 'set', 'lo', 'up')

    def enter(self):
        """The calling thread is in it from here on; as preexec_fn, the program that is started."""
        _check(_libc.setns(self.fd, _NEWNET), 'setns')

    @contextlib.contextmanager
    def inside(self):
        """The calling thread, and what it starts, is in it for as long as the body lasts."""
        before = os.open(_OWN, os.O_RDONLY)
        try:
            self.enter()
            try:
                yield self
            finally:
                _check(_libc.setns(before, _NEWNET), 'setns')
        finally:
            os.close(before)

    def run(self, *command):
        """A program in it; returns what it printed."""
        return subprocess.run(command, preexec_fn=self.enter, check=True, capture_output=True, text=True,
                              timeout=60).stdout

    def ip(self, *arguments):
        return self.run('ip', *arguments)

    def close(self):
        """It lives on while somebody is in it."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    @property
    def path(self):
        """For `ip link ... netns`."""
        return f'/proc/{os.getpid()}/fd/{self.fd}'


def link(one, name, other, other_name):
    """A wire between two namespaces; both ends are up."""
    one.ip('link', 'add', name, 'type', 'veth', 'peer', 'name', other_name, 'netns', other.path)
    one.ip('link', 'set', name, 'up')
    other.ip('link', 'set', other_name, 'up')


def bridge(namespace, name, ports=()):
    """A switch with these ends of wires."""
    namespace.ip('link', 'add', name, 'type', 'bridge')
    for port in ports:
        namespace.ip('link', 'set', port, 'master', name)
    namespace.ip('link', 'set', name, 'up')


class Network:
    """Nodes that each have a link to the other nodes and one to the hub, where the source and Redis are, so that
    each can be cut by itself. As a context manager the caller is in the hub, and so is what it starts there.

    network.address(i)       of a node, among the nodes
    network.hub_address      what nodes call the hub
    network.cut(i)           nodes do not reach it, nor it them; it still has the source
    network.cut(i, 'source') it has the nodes alone
    """

    hub_address = '10.77.1.1'

    def __init__(self, count):
        need()
        self.hub = Namespace()
        self.nodes = [Namespace() for _ in range(count)]
        for i, node in enumerate(self.nodes):
            for kind, address in (('peers', self.address(i)), ('source', f'10.77.1.{i + 10}')):
                link(self.hub, f'{kind}-{i}', node, kind)
                node.ip('addr', 'add', f'{address}/24', 'dev', kind)
        for kind in ('peers', 'source'):
            bridge(self.hub, kind, [f'{kind}-{i}' for i in range(count)])
        self.hub.ip('addr', 'add', f'{self.hub_address}/24', 'dev', 'source')
        self._inside = None

    @staticmethod
    def address(i):
        return f'10.77.0.{i + 10}'

    def cut(self, i, kind='peers'):
        """Pull the wire out, on the hub's side: the node sees its end without a carrier."""
        self.hub.ip('link', 'set', f'{kind}-{i}', 'down')

    def mend(self, i, kind='peers'):
        self.hub.ip('link', 'set', f'{kind}-{i}', 'up')

    def __enter__(self):
        self._inside = self.hub.inside()
        self._inside.__enter__()
        return self

    def __exit__(self, *unused):
        self._inside.__exit__(None, None, None)
        for namespace in [self.hub, *self.nodes]:
            namespace.close()
