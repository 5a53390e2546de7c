/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts out of the text itself: where the last tokens stood before, what followed them there is likely to follow again (files that are edited,
 * schemas that are filled in, names). Room: engine/ngram.c. Pure: no engine, no clock.
 *
 * Every run of M5_NGRAM_ORDER tokens is linked to the one before with the same hash, so the candidates come most recent first; the longest match
 * wins, the most recent among equals. After a draft that went wrong, the place it was copied from is looked at first: an edit is mostly followed by
 * more of the same text. */
#ifndef M5_ENGINE_NGRAM_H
#define M5_ENGINE_NGRAM_H

#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { M5_NGRAM_ORDER = 3, M5_NGRAM_MAX_MATCH = 32 };

typedef struct m5_ngram {
    int32_t *head; /* [1 << bits] last position + 1 of a run with that hash, 0 = none */
    int32_t *prev; /* [cap] the same for the run before the one that ends at a position */
    int cap, bits;
    int n;      /* runs that end before this position are linked */
    int source; /* where the last draft came from; -1 = no draft */
    int at;     /* length of the text when it was made */
} m5_ngram;

/* Room for a text of cap tokens, empty; allocates only when there was less room before. Errors: M5_ERR_NOMEM, then it is empty and finds nothing. */
int m5_ngram_begin(m5_ngram *g, int cap);
void m5_ngram_free(m5_ngram *g);

/* Guesses what follows ids[0..n): fills draft[0..n_want) and returns how many tokens match in front of the source (0 = nothing found, no draft).
 * Earlier tokens must not change between calls, n only grows and stays <= cap. Allocates nothing. */
int m5_ngram_draft(m5_ngram *g, const int32_t *ids, int n, int32_t *draft, int n_want);

#endif
