#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs the Debian packages a step needs, and only those that are missing. Usage: scripts/deps.sh build|test|asan|clang|style|aarch64|model ...
# On other systems it prints what is needed and goes on.
set -euo pipefail

build="gcc cmake ninja-build pkg-config libc6-dev libjansson-dev libevent-dev libpcre2-dev libutf8proc-dev libedit-dev libxxhash-dev"
declare -A sets=(
  [build]="$build make"
  [test]="$build python3 git"
  [asan]="$build python3 git"
  [tsan]="$build python3 git"
  [clang]="$build clang python3 git"
  [fuzz]="$build clang libclang-rt-14-dev"
  [style]="clang-format python3 git"
  [aarch64]="cmake ninja-build pkg-config gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user python3 git"
  [model]="python3 python3-pip"
)

want=()
for step in "$@"; do
  [ -n "${sets[$step]:-}" ] || { echo "scripts/deps.sh: unknown step '$step'" >&2; exit 2; }
  read -r -a more <<<"${sets[$step]}"
  want+=("${more[@]}")
done

if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  if [ "$(uname -s)" = Darwin ]; then
    echo "Not a Debian system. With Homebrew: brew install cmake ninja pkg-config jansson libevent pcre2 utf8proc libedit xxhash" >&2
  else
    echo "Not a Debian system; these packages (by their Debian names) are needed: ${want[*]}" >&2
  fi
  exit 0
fi

missing=()
for p in "${want[@]}"; do
  dpkg-query -W -f='${db:Status-Abbrev}\n' "$p" 2>/dev/null | grep -q '^ii' || missing+=("$p")
done
[ ${#missing[@]} -gt 0 ] || exit 0

sudo=""
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "These packages are missing: ${missing[*]}. Install them as root: apt-get install ${missing[*]}" >&2; exit 1; }
  sudo=sudo
fi
echo "Installing: ${missing[*]}"
$sudo apt-get update -q >/dev/null
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}" >/dev/null
