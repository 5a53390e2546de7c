#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Installs what is missing, builds, and serves the default model or the one that is named. Usage: scripts/serve.sh [MODEL] [PORT] [m5-infer options]
# MODEL: a path, or "smollm2" (SmolLM2-135M-Instruct, fetched once). Default: the small hybrid that the repository carries.
set -euo pipefail
cd "$(dirname "$0")/.."
model=${1:-} port=${2:-}
shift $(($# < 2 ? $# : 2))
scripts/deps.sh build
scripts/build.sh release m5-infer
cp -f build/release/m5-infer build/m5-infer
case $model in
  "") model=models/nano/m5-nano.gguf ;;
  smollm2) model=$(scripts/get-model.sh) ;;
esac
exec build/m5-infer serve --model "$model" ${port:+--port "$port"} "$@"
