#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# House style that a machine can check: tabs, trailing blanks, line and file length, licence lines, banned calls, stray switches, invisible characters.
set -uo pipefail
cd "$(dirname "$0")/.."
bad=0
complain() { [ -n "$2" ] && { echo "$1:"; echo "$2" | head -20; bad=1; }; return 0; }

code=$(git ls-files -- '*.c' '*.h' '*.cu' | grep -v '^tests/vectors/')
text=$(git ls-files -- '*.c' '*.h' '*.cu' '*.py' '*.sh' '*.cmake' '*.md' '*.txt' | grep -vE '^(tests/vectors/|tests/fuzz/corpus/)')
complain "tab" "$(grep -nP '\t' $code)"
complain "trailing blank" "$(grep -nP '[ \t]+$' $text)"
complain "line over 170 columns" "$(awk 'length($0) > 170 {print FILENAME ":" FNR}' $code)"
complain "file over 2,000 lines" "$(wc -l $code | awk '$1 > 2000 && $2 != "total" {print $2 ": " $1}')"
complain "no SPDX line" "$(grep -L 'SPDX-License-Identifier: Apache-2.0' $code $(git ls-files -- '*.py' '*.sh' '*.cmake' '*CMakeLists.txt'))"
complain "banned call" "$(grep -nE '\b(sprintf|vsprintf|strcat|strcpy|strtok|gets|alloca|system|popen)\(' $(echo "$code" | grep '^src/'))"
complain "exit below cli" "$(grep -nE '\b(exit|_exit|abort)\(' $(echo "$code" | grep '^src/' | grep -v '^src/cli/') | grep -v '^src/base/err.c')"
complain "getenv below cli" "$(grep -nE '\bgetenv\(' $(echo "$code" | grep '^src/' | grep -v '^src/cli/'))"
complain "printing below cli" "$(grep -nE '\b(printf|puts|putchar)\(' $(echo "$code" | grep '^src/' | grep -v '^src/cli/'))"
complain "malloc outside base/mem.c" "$(grep -nE '[^_a-z0-9](malloc|calloc|realloc)\(' $(echo "$code" | grep '^src/' | grep -v '^src/base/mem.c'))"
complain "unfinished work" "$(grep -nE '\b(TODO|FIXME|XXX|HACK)\b' $(echo "$code" | grep '^src/'))"
complain "invisible character" "$(grep -nP '[\x{200B}-\x{200F}\x{202A}-\x{202E}\x{2060}\x{FEFF}]' $code)"
[ $bad -eq 0 ] && echo "style: 1 passed, 0 failed"
exit $bad
