#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The direction of includes between folders, and the one home of every outside library. Runs as a test.
set -uo pipefail
cd "$(dirname "$0")/.."
bad=0
declare -A may=(
  [base]="base"
  [kernels]="kernels"
  [backend]="backend base kernels"
  [model]="model base backend kernels"
  [text]="text base"
  [engine]="engine base backend model text kernels m5.h"
  [server]="server base text m5.h"
  [cli]="cli base text server m5.h engine model backend kernels"
)
n=0
for dir in "${!may[@]}"; do
  while IFS= read -r file; do
    while IFS= read -r inc; do
      top=${inc%%/*}
      [ -f "src/$inc" ] || [ -f "include/$inc" ] || continue
      n=$((n + 1))
      case " ${may[$dir]} " in
        *" $top "*) ;;
        *) echo "$file includes $inc: $dir may touch only: ${may[$dir]}"; bad=1 ;;
      esac
    done < <(sed -nE 's/^#include "([^"]+)".*/\1/p' "$file")
  done < <(git ls-files -- "src/$dir/*.c" "src/$dir/*.h" "src/$dir/**/*.c" "src/$dir/**/*.h")
done

home() { # library header pattern, allowed files
  local hits
  hits=$(git grep -lE "#include <($1)" -- src | grep -vE "^($2)$")
  [ -z "$hits" ] || { echo "<$1> belongs to $2, not to:" $hits; bad=1; }
}
home 'jansson\.h' 'src/base/json\.c'
home 'event2/' 'src/server/http\.c'
home 'pcre2\.h' 'src/text/tokenizer_?[a-z]*\.c'
home 'utf8proc\.h' 'src/text/(tokenizer|jinja)_?[a-z_]*\.[ch]'
home 'editline/|histedit' 'src/cli/[a-z_]*\.c'
home 'xxhash\.h' 'src/base/hash\.c'
home 'sys/mman\.h' 'src/base/(file|mem)\.c'
home 'immintrin\.h|arm_neon\.h|cpuid\.h' 'src/(kernels/[a-z0-9_]*\.[ch]|backend/cpu_mix[a-z_]*\.[ch]|backend/ceilings\.c)'
[ $n -gt 0 ] || exit 77
[ $bad -eq 0 ] && echo "layers: $n passed, 0 failed"
exit $bad
