#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The commands of docs/cluster.md, as they stand: in namespaces of their own, so that the ports are free,
/etc/hosts may be changed, and everything they start ends with them."""

import os
import re
import shutil
import subprocess

from dctf_e2e import *

DOC = os.path.join(os.path.dirname(os.path.abspath(__file__)), '../../docs/cluster.md')

_PROLOGUE = '''set -eu -o pipefail
ip link set lo up
cp /etc/hosts {root}/hosts
mount --bind {root}/hosts /etc/hosts
mount -t tmpfs tmpfs /run
mkdir /run/dctf
export PATH={tools}:$PATH
'''


def _section(title):
    with open(DOC) as file:
        text = file.read()
    found = re.search(rf'^(##+) {re.escape(title)}\n(.*?)(?=^\1? ?##|\Z)', text, re.M | re.S)
    assert found, f'no section {title!r}'
    return found.group(2)


def _blocks(title):
    """Commands of one section, without those of its subsections."""
    body = re.split(r'^### ', _section(title), flags=re.M)[0]
    return re.findall(r'^```sh\n(.*?)^```$', body, re.M | re.S)


def _run(place, *blocks):
    if not os.path.exists('/etc/hosts'):
        skip('no /etc/hosts to put a copy over')  # installers make it, debootstrap does not
    root = place.directory('demo')
    script = LET_GO + _PROLOGUE.format(root=place.root, tools=os.path.dirname(DCTFFS))
    for number, block in enumerate(blocks):
        script += f'echo "=== {number}"\n' + block.replace('/tmp/dctf-demo', root)
    done = subprocess.run(
        ['unshare', '--mount', '--net', '--pid', '--fork', '--kill-child', '--mount-proc', 'bash', '-c', script],
        env=place.environ(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=limit(150), check=False)
    assert done.returncode == 0, f'status {done.returncode}:\n{done.stdout}'
    return re.split(r'^=== \d+\n', done.stdout, flags=re.M)[1:]


def test_three_nodes_in_five_minutes(place):
    peers, read, without = _run(place, *_blocks('Three nodes in five minutes'))
    for n in (1, 2, 3):
        assert f'127.0.0.1:710{n}' in peers
    fetched = int(read.splitlines()[0])
    assert 40e6 <= fetched <= 1.05 * 40e6, fetched
    assert '3 members' in read, read
    assert '127.0.0.1:7103' in without and 'FAIL' in without, without


def test_members_by_a_dns_name(place):
    first = _blocks('Three nodes in five minutes')[0].split('peers=')[0]
    _, peers = _run(place, first, *_blocks('Members by a DNS name'))
    for n in (1, 2, 3):
        assert re.search(rf'{"self" if n == 1 else "closed"} .*127\.0\.0\.{n}:7100', peers), peers


def test_members_by_redis(place):
    if not shutil.which('redis-server'):
        skip('no redis-server')
    first = _blocks('Three nodes in five minutes')[0].split('peers=')[0]
    _, peers = _run(place, first, *_blocks('Members by Redis'))
    for n in (1, 2, 3):
        assert re.search(rf'{"self" if n == 1 else "closed"} +node-{n} +127\.0\.0\.1:710{n}', peers), peers


if __name__ == '__main__':
    main(globals())
