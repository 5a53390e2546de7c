/* SPDX-License-Identifier: Apache-2.0 */
/* Where in a prompt a later one is likely to part from it: message boundaries, found in the ids alone. Pure. Room: engine/marks.c. Thread: any. */
#ifndef M5_ENGINE_MARKS_H
#define M5_ENGINE_MARKS_H

#include "text/tokenizer.h"

enum { M5_MAX_MARKS = 5 };

/* Fills out with ascending positions (token counts, each > 0 and < n) worth a checkpoint, and returns how many. The first control token of the prompt
 * (after BOS) is taken as the one that opens messages; marks are its second place (end of the system text and tools) and its last three (before the
 * last exchange, the last user turn and the answer). When none of them lies close to the end, n - 1 is one too, so that the same prompt again costs
 * one token; the last token itself is always computed. t may be NULL. */
int m5_marks_find(const m5_tokenizer *t, const int32_t *ids, int n, int out[M5_MAX_MARKS]);

#endif
