#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds one preset and runs the whole test suite on it. Usage: scripts/test.sh release|debug|asan|tsan|clang|aarch64 [ctest options]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
shift || true
case $preset in clang | aarch64) scripts/deps.sh "$preset" ;; *) scripts/deps.sh test ;; esac
scripts/build.sh "$preset"
[ "$preset" = release ] && cp -f build/release/m5-infer build/m5-infer
export ASAN_OPTIONS=detect_leaks=1:abort_on_error=1 UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1 TSAN_OPTIONS=halt_on_error=1:second_deadlock_stack=1
export LSAN_OPTIONS=suppressions=$PWD/tests/lsan.supp:print_suppressions=0
ctest --preset "$preset" "$@"
