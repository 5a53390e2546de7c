/* SPDX-License-Identifier: Apache-2.0 */
/* Loops: a text that repeats itself word for word, found while it is written. Room: text/loop.c. Pure; a fixed amount of memory and of work per
 * token.
 *
 * A loop is exact: the last tokens equal those one period before, over at least two periods (three copies in all), for any period up to 4095 tokens.
 * What differs in one place a period (a counter, a table's cells, an enumeration of cases) never adds up. How much must have been repeated depends on
 * what it is: 48 tokens of prose (at least three different words a period), 512 of anything else: rows of zeros, table lines, separators, and all
 * code between fences repeat for good reasons. */
#ifndef M5_TEXT_LOOP_H
#define M5_TEXT_LOOP_H

#include "base/err.h"
#include "base/str.h"

#include <stdint.h>

typedef struct m5_loop m5_loop;
int m5_loop_new(m5_loop **out); /* 0 or M5_ERR_NOMEM */
void m5_loop_free(m5_loop *l);
/* Takes the next token with its text. Returns the period in tokens when the text has come to loop, else 0. */
int m5_loop_push(m5_loop *l, int32_t id, m5_slice text);

#endif
