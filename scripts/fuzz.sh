#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs every libFuzzer target for some seconds from its corpus. New inputs stay in build/fuzz/corpus; a crash stops with its input's name.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-}
[ -n "$seconds" ] || seconds=60
scripts/build.sh fuzz
for target in build/fuzz/tests/fuzz_*; do
  room=${target##*/fuzz_}
  mkdir -p "build/fuzz/corpus/$room"
  echo "== $room"
  "$target" -max_total_time="$seconds" -rss_limit_mb=2048 -timeout=20 -print_final_stats=0 "build/fuzz/corpus/$room" "tests/fuzz/corpus/$room"
done
