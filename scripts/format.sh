#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formats every C file of the project in place.
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/deps.sh style
git ls-files -z -- '*.c' '*.h' | xargs -0 clang-format -i
