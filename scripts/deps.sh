#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# scripts/deps.sh build|run|quickstart|test|bench
#
# Debian 12 and 13 packages that building, running, the quick start, the tests or the
# benchmarks need. As root, installs what is missing; otherwise prints the command and
# exits with 1 when something is.
set -euo pipefail

build=(gcc libc6-dev cmake ninja-build pkg-config libfuse3-dev librocksdb-dev libjansson-dev libinih-dev
    libxxhash-dev liblz4-dev libcurl4-openssl-dev libssl-dev libxml2-dev libs3-dev libmicrohttpd-dev libgnutls28-dev
    libhiredis-dev)
run=(fuse3)
quickstart=("${build[@]}" "${run[@]}" python3 python3-numpy)
test=("${quickstart[@]}" git curl openssl libcmocka-dev redis-server clang libclang-rt-dev clang-format clang-tidy shellcheck mandoc
    util-linux iproute2 e2fsprogs fio)
bench=("${quickstart[@]}" fio rclone s3fs curl libcmocka-dev redis-server iproute2 nginx-light)

case ${1:-} in
build) wanted=("${build[@]}") ;;
run) wanted=("${run[@]}") ;;
quickstart) wanted=("${quickstart[@]}") ;;
test) wanted=("${test[@]}") ;;
bench) wanted=("${bench[@]}") ;;
*)
    echo "Usage: scripts/deps.sh build|run|quickstart|test|bench" >&2
    exit 2
    ;;
esac

if ! command -v dpkg-query >/dev/null; then
    echo "deps.sh: not a Debian system; the packages would be: ${wanted[*]}" >&2
    exit 1
fi

missing=()
for package in "${wanted[@]}"; do
    status=$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null || true)
    [[ $status == "install ok installed" ]] || missing+=("$package")
done
((${#missing[@]})) || exit 0

install=(apt-get install -y --no-install-recommends "${missing[@]}")
if ((EUID != 0)); then
    echo "sudo ${install[*]}"
    exit 1
fi
export DEBIAN_FRONTEND=noninteractive
# The programs are wanted, not their services.
policy=/usr/sbin/policy-rc.d
if [[ ! -e $policy ]]; then
    trap 'rm -f "$policy"' EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
fi
apt-get update -qq
"${install[@]}"
