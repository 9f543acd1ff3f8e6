#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# A Ceph object gateway on loopback, the independent judge of the S3 clients: one monitor, one OSD
# in memory, one gateway, in a private directory, on free ports. Debian 12 and 13.
#
#   tests/rgw/rgw.sh install [SECONDS]   the Debian packages, within so long (default 300); as root
#   tests/rgw/rgw.sh start DIR           prints {"endpoint": …, "access_key": …, "secret_key": …, "version": …}
#   tests/rgw/rgw.sh status DIR          prints the same while it answers, else exits with 1
#   tests/rgw/rgw.sh stop DIR            ends what start began, and removes DIR
#
# It takes some 15 s to start and 0.8 GB of memory. Nobody is authenticated within the cluster: it
# listens on 127.0.0.1 only, and holds what tests put there.
set -euo pipefail
export LC_ALL=C

packages=(radosgw ceph-mon ceph-osd ceph-common)
access_key=DCTFRGWTESTKEY000001
secret_key=dctf-rgw-test-secret-0000000000000000001

fail() {
    echo "rgw.sh: $*" >&2
    exit 1
}

installed() {
    local program
    for program in radosgw radosgw-admin ceph ceph-mon ceph-osd monmaptool; do
        command -v "$program" >/dev/null || return 1
    done
}

install_packages() {
    local seconds=$1 policy=/usr/sbin/policy-rc.d ours=0 rc=0
    local apt=(apt-get -y -qq --no-install-recommends -o DPkg::Lock::Timeout=60)
    installed && return
    if ((EUID != 0)) || ! command -v apt-get >/dev/null; then
        fail "packages are missing: ${packages[*]}"
    fi
    export DEBIAN_FRONTEND=noninteractive
    if [[ ! -e $policy ]]; then # no service of these packages is to start
        printf '#!/bin/sh\nexit 101\n' >"$policy"
        chmod 755 "$policy"
        ours=1
    fi
    # The package lists that are there first: most machines have them.
    timeout "$seconds" "${apt[@]}" install "${packages[@]}" >/dev/null 2>&1 ||
        { timeout "$seconds" "${apt[@]}" update >/dev/null 2>&1 &&
            timeout "$seconds" "${apt[@]}" install "${packages[@]}" >/dev/null 2>&1; } ||
        rc=1
    ((ours == 0)) || rm -f "$policy"
    if ((rc != 0)) || ! installed; then
        fail "the packages cannot be installed: ${packages[*]}"
    fi
}

# So many free ports of 127.0.0.1.
free_ports() {
    python3 - "$1" <<'PYTHON'
import socket, sys
held = [socket.socket() for _ in range(int(sys.argv[1]))]
for one in held:
    one.bind(('127.0.0.1', 0))
print(*(one.getsockname()[1] for one in held))
PYTHON
}

# Where the OSD's plugins lie: the packages of Debian 13 look below the working directory.
classes_dir() { find /usr/lib -maxdepth 2 -type d -name rados-classes -print -quit; }

write_conf() {
    local fsid=$1 mon2=$2 mon1=$3 port=$4
    cat >"$dir/ceph.conf" <<CONF
[global]
fsid = $fsid
auth cluster required = none
auth service required = none
auth client required = none
mon host = [v2:127.0.0.1:$mon2,v1:127.0.0.1:$mon1]
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms mon client mode = crc
ms mon cluster mode = crc
ms mon service mode = crc
ms client mode = crc
ms cluster mode = crc
ms service mode = crc
ms bind port min = 16800
ms bind port max = 17300
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 4
osd pool default pgp num = 4
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
mon allow pool size one = true
mon max pg per osd = 2000
run dir = $dir/run
admin socket = $dir/run/\$name.asok
log file = $dir/run/\$name.log
pid file = $dir/run/\$name.pid
[mon.a]
mon data = $dir/mon
mon data avail crit = 1
mon data avail warn = 2
[osd.0]
osd data = $dir/osd
osd objectstore = memstore
osd class dir = $(classes_dir)
memstore device bytes = 4294967296
[client.rgw]
rgw frontends = beast endpoint=127.0.0.1:$port tcp_nodelay=1
rgw dns name = localhost
rgw data = $dir/rgw
rgw dynamic resharding = false
rgw enable usage log = false
rgw thread pool size = 64
CONF
}

# ceph COMMAND ARGUMENTS…, bounded.
ceph_do() {
    local program=$1
    shift
    timeout 60 "$program" -c "$dir/ceph.conf" "$@" >>"$dir/start.log" 2>&1
}

await() {
    local seconds=$1
    shift
    local end=$((SECONDS + seconds))
    until "$@"; do
        ((SECONDS < end)) || return 1
        sleep 0.1
    done
}

osd_is_up() { timeout 30 ceph -c "$dir/ceph.conf" osd stat 2>/dev/null | grep -q '1 up'; }
answers() { curl -s -o /dev/null --max-time 5 --noproxy '*' "http://127.0.0.1:$1/"; }

launch() {
    local fsid uuid id mon2 mon1 port
    fsid=$(</proc/sys/kernel/random/uuid)
    uuid=$(</proc/sys/kernel/random/uuid)
    read -r mon2 mon1 port < <(free_ports 3)
    mkdir -p "$dir"/{mon,osd,run,rgw}
    write_conf "$fsid" "$mon2" "$mon1" "$port"
    monmaptool --create --clobber --fsid "$fsid" --addv a "[v2:127.0.0.1:$mon2,v1:127.0.0.1:$mon1]" \
        "$dir/monmap" >>"$dir/start.log" 2>&1 || return 1
    ceph_do ceph-mon --mkfs -i a --monmap "$dir/monmap" --mon-data "$dir/mon" || return 1
    ceph_do ceph-mon -i a --mon-data "$dir/mon" || return 1
    # The OSD's own identity must be the one the monitor was told.
    id=$(timeout 60 ceph -c "$dir/ceph.conf" osd new "$uuid" 2>>"$dir/start.log") || return 1
    ceph_do ceph-osd -i "$id" --mkfs --osd-uuid "$uuid" --osd-data "$dir/osd" || return 1
    ceph_do ceph-osd -i "$id" --osd-data "$dir/osd" || return 1
    await 60 osd_is_up || return 1
    ceph_do radosgw -n client.rgw || return 1
    await 90 answers "$port" || return 1
    ceph_do radosgw-admin -n client.rgw user create --uid dctf --display-name dctf \
        --access-key "$access_key" --secret "$secret_key" || return 1
    printf '{"endpoint": "http://127.0.0.1:%s", "access_key": "%s", "secret_key": "%s", "version": "%s"}\n' \
        "$port" "$access_key" "$secret_key" "$(ceph --version | awk '{print $3}')" >"$dir/ready.json"
}

# The daemons of this directory that run, as pids.
ours() {
    local file pid
    for file in "$dir"/run/*.pid; do
        [[ -s $file ]] || continue
        pid=$(<"$file")
        if [[ -r /proc/$pid/cmdline ]] && tr '\0' ' ' <"/proc/$pid/cmdline" | grep -qF "$dir/ceph.conf"; then
            echo "$pid"
        fi
    done
}

none_left() { [[ -z $(ours) ]]; }

stop_all() {
    local pids
    mapfile -t pids < <(ours)
    ((${#pids[@]} == 0)) || kill "${pids[@]}" 2>/dev/null || true
    await 10 none_left && return
    mapfile -t pids < <(ours)
    ((${#pids[@]} == 0)) || kill -9 "${pids[@]}" 2>/dev/null || true
    await 5 none_left
}

start() {
    local try
    installed || fail "packages are missing: ${packages[*]}"
    [[ ! -e $dir ]] || [[ -z $(ls -A "$dir") ]] || fail "$dir is not empty"
    for try in 1 2; do # a port that was free may be taken a moment later
        if launch; then
            cat "$dir/ready.json"
            return
        fi
        stop_all || true
        ((try == 2)) || rm -rf "${dir:?}"/{mon,osd,run,rgw,monmap}
    done
    tail -n 20 "$dir/start.log" >&2 || true
    fail "the gateway did not start; see $dir"
}

status() {
    local port
    [[ -s $dir/ready.json ]] || fail "no gateway in $dir"
    port=$(sed 's/.*127\.0\.0\.1:\([0-9]*\)".*/\1/' "$dir/ready.json")
    if [[ $(ours | wc -l) != 3 ]] || ! answers "$port"; then
        fail "the gateway in $dir does not answer"
    fi
    cat "$dir/ready.json"
}

usage() {
    echo "Usage: rgw.sh install [SECONDS] | start DIR | status DIR | stop DIR" >&2
    exit 2
}

case ${1:-} in
install) install_packages "${2:-300}" ;;
start | status | stop)
    [[ -n ${2:-} ]] || usage
    dir=$(realpath -m "$2")
    case $1 in
    start) start ;;
    status) status ;;
    stop)
        [[ -e $dir/ceph.conf ]] || fail "no gateway in $dir"
        stop_all || fail "the daemons in $dir do not end"
        rm -rf "$dir"
        ;;
    esac
    ;;
*) usage ;;
esac
