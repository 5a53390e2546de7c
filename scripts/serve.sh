#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds, gets the default model unless one is named, and serves it. Usage: scripts/serve.sh [MODEL] [PORT] [m5-infer options]
set -euo pipefail
cd "$(dirname "$0")/.."
model=${1:-} port=${2:-}
shift $(($# < 2 ? $# : 2))
scripts/deps.sh build
scripts/build.sh release m5-infer
cp -f build/release/m5-infer build/m5-infer
[ -n "$model" ] || model=$(scripts/get-model.sh)
exec build/m5-infer serve --model "$model" ${port:+--port "$port"} "$@"
