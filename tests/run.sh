#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
#
# tests/run.sh                 everything that CI runs
# tests/run.sh --quick         the dev build and all of its tests
# tests/run.sh CTEST_ARGS…     the dev build, and ctest with these arguments: -L unit, -L e2e, -R name
#
# Environment: BUILD (preset of the last two forms, default dev), JOBS (default: processors),
# SKIP_DEPS=1 (do not install packages).
#
# shellcheck disable=SC2317 # check() calls functions by name
set -uo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 2
jobs=${JOBS:-$(nproc)}
export TSAN_OPTIONS="suppressions=$PWD/tests/tsan.supp${TSAN_OPTIONS:+:$TSAN_OPTIONS}"
passed=0 failed=0 skipped=0
failures=()
unstable=() # failed among others, passed alone

say() { printf '\n=== %s (%ds)\n' "$*" "$SECONDS"; }

# Run one check and count it.
check() {
    local name=$1
    shift
    say "$name"
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        failures+=("$name")
    fi
}

build() {
    cmake --preset "$1" >"build/$1.configure.log" 2>&1 &&
        cmake --build --preset "$1" -j "$jobs" | tail -n 20
}

build_or_tell() {
    mkdir -p build
    if ! build "$1"; then
        tail -n 20 "build/$1.configure.log"
        return 1
    fi
}

# Number of an attribute of the <testsuite> element.
attribute() { sed -n "s/.*<testsuite.*//;/^[[:space:]]*$1=\"/s/.*$1=\"\([0-9]*\)\".*/\1/p" "$2" | head -n 1; }

# Tests that failed among others are run once more, each alone: on a busy machine one can miss the time it has. What
# passes then is told at the end, and the output of both is above. More than a few are no accident.
judge_failed() {
    local preset=$1 names=() name
    mapfile -t names < <(sed 's/^[0-9]*://' "build/$preset/Testing/Temporary/LastTestsFailed.log")
    for name in "${names[@]}"; do
        if ((${#names[@]} <= 4)) && say "again and alone: $preset $name" &&
            ctest --test-dir "build/$preset" --output-on-failure -R "^$name\$"; then
            unstable+=("$preset $name")
            passed=$((passed + 1))
        else
            failures+=("$preset $name")
            failed=$((failed + 1))
        fi
    done
}

# Run the tests of one build and add up their results.
run_ctest() {
    local preset=$1 report=build/$1.junit.xml tests bad skip off
    shift
    rm -f "$report"
    say "ctest $preset $*"
    # Tests wait more than they compute.
    ctest --test-dir "build/$preset" --output-on-failure --output-junit "$PWD/$report" -j "$((2 * jobs))" "$@"
    if [[ ! -s $report ]]; then
        failed=$((failed + 1))
        failures+=("ctest $preset $* (no report)")
        return
    fi
    tests=$(attribute tests "$report")
    bad=$(attribute failures "$report")
    skip=$(attribute skipped "$report")
    off=$(attribute disabled "$report")
    skip=$((${skip:-0} + ${off:-0}))
    passed=$((passed + ${tests:-0} - ${bad:-0} - skip))
    skipped=$((skipped + skip))
    ((${bad:-0} == 0)) || judge_failed "$preset"
}

# Build, then test; nothing is tested when the build fails.
build_and_test() {
    local preset=$1 before=$failed
    shift
    check "build $preset" build_or_tell "$preset"
    ((failed == before)) && run_ctest "$preset" "$@"
}

# Formatting and lint are judged by one release of clang, Debian 12's: others want other things.
judge=14
judged_here() { "$1" --version | grep -q "version $judge\\."; }

# Run a check that only the judging release can make; elsewhere it is skipped, and said.
check_by_judge() {
    local name=$1 tool=$2
    shift 2
    if judged_here "$tool"; then
        check "$name" "$@"
    else
        say "$name: SKIPPED, $tool $judge judges and this is another"
        skipped=$((skipped + 1))
    fi
}

c_files() { git ls-files '*.c' '*.h'; }

check_format() { c_files | xargs clang-format --dry-run -Werror; }

check_tidy() {
    git ls-files 'base/*.c' 'cache/*.c' 'transport/*.c' 'cluster/*.c' 'fs/*.c' 'mount-tools/*.c' |
        xargs -P "$jobs" -n 4 clang-tidy --quiet -p build/fuzz 2>/dev/null
}

check_shell() {
    git ls-files '*.sh' '*.bash' .ci/run | while read -r file; do
        shellcheck -x -s bash "$file" || exit 1
    done
}

check_python() { git ls-files '*.py' | xargs -r python3 -m py_compile; }

check_man() {
    local page text
    for page in mount-tools/man/*; do
        text=$(mandoc -T lint -W error "$page") || {
            echo "$text"
            return 1
        }
    done
}

# Every file says its licence, and every C file that it may be included by folder.
check_headers() {
    local bad
    bad=$(c_files | xargs grep -L 'SPDX-License-Identifier: Apache-2.0')
    [[ -z $bad ]] || {
        echo "without a licence line: $bad"
        return 1
    }
    # An include may only point down: base <- cache, transport <- cluster <- fs <- mount-tools.
    bad=$(grep -n '#include "\(cache\|transport\|cluster\|fs\|mount-tools\)/' base/*.[ch]
        grep -n '#include "\(transport\|cluster\|fs\|mount-tools\)/' cache/*.[ch]
        grep -n '#include "\(cache\|cluster\|fs\|mount-tools\)/' transport/*.[ch]
        grep -n '#include "\(fs\|mount-tools\)/' cluster/*.[ch]
        grep -n '#include "mount-tools/' fs/*.[ch])
    [[ -z $bad ]] || {
        echo "includes that point up: $bad"
        return 1
    }
}

finish() {
    local failure
    say "done"
    for failure in "${failures[@]+"${failures[@]}"}"; do
        echo "FAILED: $failure"
    done
    for failure in "${unstable[@]+"${unstable[@]}"}"; do
        echo "UNSTABLE (failed among others, passed alone): $failure"
    done
    echo "$passed passed, $failed failed, $skipped skipped"
    ((failed == 0 && passed > 0))
    exit
}

if [[ ${SKIP_DEPS:-} != 1 ]] && ! scripts/deps.sh test >build.deps.log 2>&1; then
    tail -n 5 build.deps.log
    echo "tests/run.sh: packages are missing (SKIP_DEPS=1 goes on without)" >&2
    rm -f build.deps.log
    exit 1
fi
rm -f build.deps.log

if (($#)); then
    [[ $1 == --quick ]] && shift
    build_and_test "${BUILD:-dev}" "$@"
    finish
fi

check_by_judge "format" clang-format check_format
check "headers" check_headers
check "shell" check_shell
check "python" check_python
check "man pages" check_man
build_and_test dev
# clang's build, with AddressSanitizer, UndefinedBehaviorSanitizer and the fuzz targets.
build_and_test fuzz -L 'unit|e2e|fuzz' -LE plain
check_by_judge "clang-tidy" clang-tidy check_tidy
build_and_test tsan -L 'unit|e2e' -LE plain
check "quick start" env BUILD_DIR="$PWD/build/quickstart" examples/quickstart.sh
finish
