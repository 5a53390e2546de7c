#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Configures and builds one CMake preset. Usage: scripts/build.sh PRESET [TARGET...]
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release}
shift || true
case $preset in
  clang) scripts/deps.sh clang ;;
  fuzz) scripts/deps.sh fuzz ;;
  aarch64) scripts/deps.sh aarch64 && scripts/sysroot.sh >/dev/null ;;
  *) scripts/deps.sh build ;;
esac
mkdir -p build
cmake --preset "$preset" >"build/configure-$preset.log" 2>&1 || { cat "build/configure-$preset.log" >&2; exit 1; }
targets=()
for t in "$@"; do targets+=(--target "$t"); done
cmake --build --preset "$preset" "${targets[@]}"
