/* SPDX-License-Identifier: Apache-2.0 */
/* A second, smaller model that guesses what the first will say. Room: engine/draft_model.c. Thread: the engine thread. Not here: whether it pays
 * (spec.c) and whether its guesses are right (sched.c).
 *
 * Each slot has a sequence of it, which holds the certain text of the slot. Guesses are appended with held rows: the ones that turn out right are
 * committed, the others were never there, also in a recurrent state. */
#ifndef M5_ENGINE_DRAFT_MODEL_H
#define M5_ENGINE_DRAFT_MODEL_H

#include "model/model.h"
#include "text/tokenizer.h"

typedef struct m5_draft_model m5_draft_model;

/* Of one slot; zero at first. */
typedef struct m5_draft_seq {
    m5_seq *seq;
    int32_t *ids; /* [cap] the text in seq */
    int cap;
    int n_held; /* guesses in seq that wait for m5_draft_seq_checked */
} m5_draft_seq;

/* like: how the first model was opened; vocab: its tokenizer, NULL when it has none. Errors: M5_ERR_UNSUPPORTED when the two do not share one
 * vocabulary, with the first difference. */
int m5_draft_model_open(m5_draft_model **out, const char *path, const m5_model_options *like, const m5_tokenizer *vocab, int n_parallel, int max_k,
                        m5_error *err);
void m5_draft_model_close(m5_draft_model *d); /* after every m5_draft_seq_free; NULL allowed */
const m5_model *m5_draft_model_model(const m5_draft_model *d);

/* A text of up to cap tokens that begins with ids[0..n): the sequence keeps what it has of it. Errors: M5_ERR_NOMEM. */
int m5_draft_seq_begin(m5_draft_model *d, m5_draft_seq *s, const int32_t *ids, int n, int cap);
void m5_draft_seq_free(m5_draft_seq *s);

/* Appends up to max_rows tokens of ids[0..n) that the sequence does not hold yet. Returns how many are still missing, or an error. */
int m5_draft_seq_feed(m5_draft_model *d, m5_draft_seq *s, const int32_t *ids, int n, int max_rows);
int m5_draft_seq_missing(const m5_draft_seq *s, int n);

typedef struct m5_draft_ask {
    m5_draft_seq *s;
    const int32_t *ids;
    int n_ids;
} m5_draft_ask;
/* The k likeliest next tokens of each, one after the other, into out [n, k]. At most M5_DRAFT_MAX_MISSING tokens may be missing. */
enum { M5_DRAFT_MAX_MISSING = 32 };
int m5_draft_model_draft(m5_draft_model *d, const m5_draft_ask *asks, int n, int k, int32_t *out, m5_error *err);
/* n_right of the last guesses stand. */
void m5_draft_seq_checked(m5_draft_seq *s, int n_right);

#endif
