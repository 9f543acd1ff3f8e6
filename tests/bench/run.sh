#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# tests/bench/run.sh [OPTIONS] [NAME…]    see --help
#
# Installs what is missing, builds a release into build/bench, runs all benchmarks or the
# named ones, prints their tables and writes docs/benchmarks.md. As root.
#
# Environment: JOBS (default: processors), SKIP_DEPS=1, SKIP_BUILD=1 (with --build: that
# directory as it is).
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$root/build/bench

for argument in "$@"; do
    case $argument in
    -h | --help) SKIP_DEPS=1 SKIP_BUILD=1 ;;
    esac
done

if [[ ${SKIP_DEPS:-} != 1 ]]; then
    "$root/scripts/deps.sh" bench
fi
if [[ ${SKIP_BUILD:-} != 1 ]]; then
    mkdir -p "$build"
    (cd "$root" && cmake --preset release -B "$build" -DDCTF_BENCH=ON) >"$build/configure.log" 2>&1 || {
        tail -n 20 "$build/configure.log" >&2
        exit 1
    }
    cmake --build "$build" -j "${JOBS:-$(nproc)}" --target dctffs dctf bench_reader bench_fuse bench_delay dctf-s3-server | tail -n 3
fi

# The S3 server of the end-to-end tests is that of the benchmarks too.
export PYTHONPATH=$root/tests/bench:$root/tests/e2e PYTHONDONTWRITEBYTECODE=1
exec python3 -m dctf_bench "$@"
