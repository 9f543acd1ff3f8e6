# SPDX-License-Identifier: Apache-2.0
"""A client of the control socket (docs/control-protocol.md), independent of `dctf`."""

import json
import socket

from .env import limit


class ControlError(Exception):
    def __init__(self, answer):
        super().__init__(f"{answer.get('code')} {answer.get('name')}: {answer.get('error')}")
        self.code = answer.get('code')


class Control:
    def __init__(self, path, seconds=10):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(limit(seconds))
        self.socket.connect(path)
        self._data = b''

    def __enter__(self):
        return self

    def __exit__(self, *unused):
        self.socket.close()

    def ask_raw(self, line):
        """Send bytes, return the answer as it is."""
        self.socket.sendall(line)
        while b'\n' not in self._data:
            data = self.socket.recv(65536)
            if not data:
                raise ConnectionResetError('the daemon closed the connection')
            self._data += data
        answer, self._data = self._data.split(b'\n', 1)
        return json.loads(answer)

    def ask(self, cmd, **fields):
        answer = self.ask_raw(json.dumps({'cmd': cmd, **fields}).encode() + b'\n')
        if not answer.get('ok'):
            raise ControlError(answer)
        return answer
