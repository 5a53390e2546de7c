/* SPDX-License-Identifier: Apache-2.0 */
/* Stop strings over a stream of text pieces. Room: text/stop.c. Pure.
 *
 * Text goes in as it becomes known and comes out as soon as it cannot belong to a stop string any more: only the longest tail that is the
 * beginning of some stop string is held back. The match that ends first wins (the longest of those ending together), so the result does not depend
 * on how the text was cut into pieces. Held text begins where a stop string begins, hence on a character border when stop strings are UTF-8. */
#ifndef M5_ENGINE_STOP_H
#define M5_ENGINE_STOP_H

#include "base/err.h"
#include "base/str.h"

enum { M5_MAX_STOP_STRINGS = 64, M5_MAX_STOP_BYTES = 1024 };

typedef struct m5_stop m5_stop;

/* Copies the strings. n may be 0: everything passes. Errors: M5_ERR_ARG for an empty, overlong or ill-formed string or too many of them. */
int m5_stop_new(m5_stop **out, const char *const *strings, int n, m5_error *err);
void m5_stop_free(m5_stop *s);

/* Takes n bytes, appends to out what became certain. Returns the index of the matched string (out then ends right before it, the rest is dropped
 * and so is all later text), or -1. Out of memory shows in out->failed. */
int m5_stop_push(m5_stop *s, const char *p, size_t n, m5_buf *out);
/* End of text without a match: appends what was held back. */
void m5_stop_flush(m5_stop *s, m5_buf *out);
const char *m5_stop_string(const m5_stop *s, int index); /* borrowed until free; NULL for -1 */

#endif
