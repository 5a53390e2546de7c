#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Unpacks the 64-bit Arm libraries that the cross build links and qemu runs into build/sysroot-arm64. Unpacked, not installed: several of these packages
# push out their native twins when installed. Prints the folder.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD/build/sysroot-arm64
packages="libc6 libgcc-s1 libjansson4 libjansson-dev libevent-2.1-7 libevent-core-2.1-7 libevent-extra-2.1-7 libevent-pthreads-2.1-7 libevent-openssl-2.1-7 libevent-dev
  libpcre2-8-0 libpcre2-16-0 libpcre2-32-0 libpcre2-posix3 libpcre2-dev libutf8proc2 libutf8proc-dev libedit2 libedit-dev libbsd0 libbsd-dev libmd0 libmd-dev
  libtinfo6 libncurses6 libncurses-dev libxxhash0 libxxhash-dev"
stamp=$root/.packages
if [ "$(cat "$stamp" 2>/dev/null || true)" != "$packages" ]; then
  rm -rf "$root"
  mkdir -p "$root/.lists/partial" "$root/.debs"
  options=(-qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o "Dir::State::Lists=$root/.lists" -o Dir::Cache::pkgcache= -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=root)
  apt-get "${options[@]}" update >&2
  # shellcheck disable=SC2086
  (cd "$root/.debs" && apt-get "${options[@]}" download $packages >&2)
  for deb in "$root"/.debs/*.deb; do dpkg-deb -x "$deb" "$root"; done
  rm -rf "$root/.lists" "$root/.debs"
  echo "$packages" >"$stamp"
fi
echo "$root"
