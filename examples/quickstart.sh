#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# examples/quickstart.sh [DATASET_DIRECTORY]
#
# Builds dctffs, mounts a sample dataset (or a directory of yours) with a cache of its
# own, reads it with a plain loader for two epochs, checks every byte against the source,
# mounts again and shows that the third epoch reads nothing from the source. Leaves
# nothing behind but the build directory.
#
# Environment: BUILD_DIR (default build/quickstart), JOBS, TMPDIR.
set -euo pipefail
export PYTHONDONTWRITEBYTECODE=1

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=${BUILD_DIR:-$here/build/quickstart}
dataset=${1:-}
work=

say() { printf '\n== %s\n' "$*"; }
die() {
    printf 'quickstart: %s\n' "$*" >&2
    exit 1
}

# Looks at the kernel's table: the mount itself may hang.
is_mounted() { grep -qF " $work/mnt " /proc/self/mountinfo; }

daemon_pid() { "$build/mount-tools/dctf" version --json "$work/mnt" | sed -n 's/.*"pid":\([0-9]*\).*/\1/p'; }

# Unmount, and wait until the daemon has closed its cache.
unmount() {
    local pid
    pid=$(daemon_pid 2>/dev/null || true)
    umount "$work/mnt" 2>/dev/null || fusermount3 -u "$work/mnt" 2>/dev/null ||
        umount -l "$work/mnt" 2>/dev/null || fusermount3 -uz "$work/mnt" || return 1
    for _ in $(seq 150); do
        [[ -z $pid ]] || ! kill -0 "$pid" 2>/dev/null && return 0
        sleep 0.1
    done
    return 1
}

cleanup() {
    local status=$?
    trap - EXIT INT TERM
    if [[ -n $work ]]; then
        if ((status != 0)) && [[ -s $work/log ]]; then
            echo "quickstart: last lines of the log:" >&2
            tail -n 20 "$work/log" >&2
        fi
        if is_mounted && ! unmount; then
            echo "quickstart: the daemon of $work/mnt did not end; $work is kept" >&2
            exit 1
        fi
        rm -rf --one-file-system "$work"
    fi
    exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

mount_it() {
    "$build/mount-tools/dctffs" "file://$dataset" "$work/mnt" \
        -o "cache_dir=$work/cache,cache_size=$cache_size,log_file=$work/log"
}

# Value of one metric of the mount, 0 when it is not there.
metric() { awk -v name="$1" '$1 == name { value = $2 } END { printf "%.0f\n", value + 0 }' "$work/metrics"; }

# Read the dataset once and tell where the bytes came from. Sets origin_bytes.
epoch() {
    local names=('dctf_origin_bytes_total' 'dctf_read_bytes_total{from="origin"}'
        'dctf_read_bytes_total{from="memory"}' 'dctf_read_bytes_total{from="warm"}'
        'dctf_opens_total{tier="hot"}' 'dctf_opens_total{tier="warm"}' 'dctf_opens_total{tier="cold"}')
    local before=() delta=() result i
    cat "$work/mnt/.dctf/metrics" >"$work/metrics"
    for i in "${!names[@]}"; do before[i]=$(metric "${names[i]}"); done
    result=$("$python" "$here/examples/loader.py" "$work/mnt" --epoch "$1")
    cat "$work/mnt/.dctf/metrics" >"$work/metrics"
    for i in "${!names[@]}"; do delta[i]=$(($(metric "${names[i]}") - before[i])); done
    origin_bytes=${delta[0]}
    RESULT=$result "$python" - "$1" "${delta[@]}" <<'PYTHON'
import json, os, sys
result = json.loads(os.environ["RESULT"])
number, (source, *daemon, hot, warm, cold) = sys.argv[1], map(int, sys.argv[2:])
mib = 1 << 20
read = result["bytes"] / mib
print(f"epoch {number}: {read:.0f} MiB in {result['seconds']:.2f} s, {read / max(result['seconds'], 1e-3):.0f} MiB/s")
print(f"  from the source:        {source / mib:8.1f} MiB")
print(f"  answered by the daemon: {sum(daemon) / mib:8.1f} MiB (just fetched {daemon[0] / mib:.1f}, "
      f"its memory {daemon[1] / mib:.1f}, cache {daemon[2] / mib:.1f})")
print("  the rest came from the kernel: its page cache, or passthrough to the cache file")
print(f"  opens by tier:          hot {hot} (passthrough), warm {warm}, cold {cold}")
PYTHON
}

say "1. packages"
"$here/scripts/deps.sh" quickstart
python=
for candidate in python3 /usr/bin/python3; do
    if "$candidate" -c 'import numpy' 2>/dev/null; then
        python=$candidate
        break
    fi
done
[[ -n $python ]] || die "no python3 with numpy"
[[ -e /dev/fuse ]] || die "/dev/fuse is missing (in a container: --device /dev/fuse --cap-add SYS_ADMIN)"

say "2. build in $build"
(cd "$here" && cmake --preset release -B "$build" -DBUILD_TESTING=OFF -DDCTF_WERROR=OFF) >/dev/null
cmake --build "$build" -j "${JOBS:-$(nproc)}" --target dctffs dctf | tail -n 1

work=$(mktemp -d "${TMPDIR:-/tmp}/dctffs-quickstart.XXXXXX")
mkdir "$work/mnt" "$work/cache"
if [[ -n $dataset ]]; then
    dataset=$(cd "$dataset" && pwd) || die "no such directory"
    say "3. dataset: $dataset"
else
    say "3. sample dataset"
    dataset=$work/dataset
    "$python" "$here/examples/make_dataset.py" "$dataset"
fi
need=$(du -sb "$dataset" | cut -f1)
free=$(df --output=avail -B1 "$work" | tail -n 1)
# Data, index and head-room; never more than half of the free space.
cache_size=$((need + need / 8 + (512 << 20)))
whole=1
if ((cache_size > free / 2)); then
    cache_size=$((free / 2))
    whole=0
    echo "the dataset does not fit into half of the free space of $work: a part of it will be cached"
fi

say "4. mount"
mount_it
"$build/mount-tools/dctf" status "$work/mnt"

say "5. two epochs, each in an order of its own"
epoch 1
epoch 2

say "6. every byte against the source"
# What the source has alone are keys that cannot be shown (docs/keys.md).
diff -rq "$dataset" "$work/mnt" >"$work/diff" 2>&1 || true
if grep -v -e "^Only in $dataset" -e "^diff: $dataset" "$work/diff"; then
    die "the mount differs from the source"
fi
echo "the mount's files have the same bytes as the source's"
if [[ -s $work/diff ]]; then
    echo "$(wc -l <"$work/diff") entries of the source are not shown, for example:"
    head -n 3 "$work/diff"
fi

say "7. unmount, mount again: the cache is kept"
unmount || die "the daemon did not end"
mount_it
epoch 3
if ((whole && origin_bytes != 0)); then
    die "epoch 3 read $origin_bytes bytes from the source, expected none"
fi
((whole)) && echo "  nothing was read from the source"

say "8. unmount and clean up"
unmount || die "the daemon did not end"
echo "done"
