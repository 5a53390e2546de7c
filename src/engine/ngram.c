/* SPDX-License-Identifier: Apache-2.0 */
/* Hash chains over the runs of a text, as in LZ77; see ngram.h. Memory: 4 to 12 bytes a token; a lookup visits at most MAX_CANDIDATES places. */
#include "engine/ngram.h"

#include "base/mem.h"

#include <string.h>

enum { MIN_BITS = 8, MAX_BITS = 18, MAX_CANDIDATES = 64, NEAR = 12, STALE = 24 };

int m5_ngram_begin(m5_ngram *g, int cap)
{
    int bits = MIN_BITS;
    while (bits < MAX_BITS && (1 << bits) < cap) bits++;
    if (cap > g->cap || bits > g->bits) {
        m5_ngram_free(g);
        g->head = m5_alloc(M5_MEM_REQUEST, sizeof *g->head << bits);
        g->prev = m5_alloc(M5_MEM_REQUEST, (size_t)cap * sizeof *g->prev);
        if (!g->head || !g->prev) {
            m5_ngram_free(g);
            return M5_ERR_NOMEM;
        }
        g->cap = cap;
        g->bits = bits;
    }
    memset(g->head, 0, sizeof *g->head << g->bits);
    g->n = 0;
    g->source = -1;
    return 0;
}

void m5_ngram_free(m5_ngram *g)
{
    m5_free(g->head);
    m5_free(g->prev);
    *g = (m5_ngram){.source = -1};
}

/* Of the run that ends at position i. */
static uint32_t hash(const m5_ngram *g, const int32_t *ids, int i)
{
    uint32_t h = 0;
    for (int k = 0; k < M5_NGRAM_ORDER; k++) h = (h ^ (uint32_t)ids[i - k]) * 0x9E3779B1u;
    return (h ^ h >> 15) * 0x85EBCA77u >> (32 - g->bits);
}

/* Tokens before i (inclusive) that equal the last ones of the text. */
static int match(const int32_t *ids, int n, int i)
{
    int m = 0;
    while (m < M5_NGRAM_MAX_MATCH && m <= i && ids[i - m] == ids[n - 1 - m]) m++;
    return m;
}

/* The last draft went wrong a few tokens ago: the text may go on behind the place where it left its source. */
static int near_source(const m5_ngram *g, const int32_t *ids, int n)
{
    if (g->source < 0 || n - g->at > STALE) return -1;
    const int from = g->source + (n - g->at) - 1; /* the source's own token for the last position */
    for (int d = 0; d <= NEAR; d++) {
        if (from + d >= 0 && from + d < n - 1 && ids[from + d] == ids[n - 1]) return from + d;
        if (d > 0 && from - d >= 0 && from - d < n - 1 && ids[from - d] == ids[n - 1]) return from - d;
    }
    return -1;
}

int m5_ngram_draft(m5_ngram *g, const int32_t *ids, int n, int32_t *draft, int n_want)
{
    int best = -1, best_match = 0;
    if (!g->head || n < 2 || n > g->cap || n_want < 1) return 0;
    for (int i = g->n < M5_NGRAM_ORDER - 1 ? M5_NGRAM_ORDER - 1 : g->n; i < n - 1; i++) {
        int32_t *h = &g->head[hash(g, ids, i)];
        g->prev[i] = *h;
        *h = i + 1;
    }
    if (n - 1 > g->n) g->n = n - 1;
    if (n >= M5_NGRAM_ORDER) {
        int i = g->head[hash(g, ids, n - 1)] - 1;
        for (int k = 0; i >= 0 && k < MAX_CANDIDATES && best_match < M5_NGRAM_MAX_MATCH; k++, i = g->prev[i] - 1) {
            int m = match(ids, n, i);
            if (m > best_match && m >= M5_NGRAM_ORDER) {
                best = i;
                best_match = m;
            }
        }
    }
    if (best < 0 && (best = near_source(g, ids, n)) >= 0) best_match = match(ids, n, best);
    if (best < 0) return 0;
    /* Behind the end of the text the draft itself goes on: a text that repeats. */
    for (int k = 0; k < n_want; k++) draft[k] = best + 1 + k < n ? ids[best + 1 + k] : draft[best + 1 + k - n];
    g->source = best + 1;
    g->at = n;
    return best_match;
}
