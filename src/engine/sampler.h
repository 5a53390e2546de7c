/* SPDX-License-Identifier: Apache-2.0 */
/* Logits + history + seed -> token, and log-probabilities. Pure: no engine, no clock, no state between calls but scratch memory.
 * Room: engine/sampler.c. Not here: where masks come from, thinking control, stop rules.
 *
 * Order of one draw (the order of Hugging Face's processors and warpers; each filter works on what the one before left, renormalised):
 *   mask -> logit_bias -> repetition_penalty -> presence and frequency penalty -> [temperature 0: largest logit, lowest id on ties, end]
 *   -> temperature -> top_k -> top_p -> min_p -> typical_p -> draw
 * Ties at the edge of top_k, top_p and typical_p go to the lower id. Ids at or above n_vocab (rows that only pad the matrix) are never drawn.
 * NaN counts as minus infinity.
 *
 * The draw takes one uniform number of the stream (seed, position) and inverts the cumulative sum of the survivors in the order of their ids.
 * position = number of tokens before the drawn one, so nothing but the request itself decides the token. exp and all sums are computed here
 * in one fixed order: the same inputs give the same bits on every machine. */
#ifndef M5_ENGINE_SAMPLER_H
#define M5_ENGINE_SAMPLER_H

#include "m5.h"

enum { M5_MAX_TOP_LOGPROBS = 128 };

typedef struct m5_sampler m5_sampler; /* scratch; one per engine thread */

/* n_row: logits per position; n_vocab <= n_row: ids that may be drawn. Owner: caller. */
int m5_sampler_new(m5_sampler **out, int n_row, int n_vocab, m5_error *err);
void m5_sampler_free(m5_sampler *s);

/* Refuses values that have no meaning (NaN, negative penalties of the dividing kind, too many alternatives, bias ids outside [0, n_row)). */
int m5_sampling_check(const m5_sampling *p, int n_row, m5_error *err);

typedef struct m5_sample_in {
    const m5_sampling *params;
    const float *logits;   /* [n_row], left unchanged */
    const int32_t *ids;    /* every token before this position: prompt, then generated */
    size_t n_ids, n_prompt;
    const uint64_t *mask;  /* NULL, or a bit for each id below n_vocab: only ids with a set bit are drawn */
} m5_sample_in;

typedef struct m5_sample_out {
    int32_t id;
    float logprob;            /* of the unmodified distribution over all n_row logits; 0 when not asked for */
    const m5_token_prob *top; /* largest first, lower id first on ties; borrowed until the next call */
    int n_top;
} m5_sample_out;

/* Allocates nothing. Errors: M5_ERR_ARG when every token is forbidden, M5_ERR_INTERNAL when no logit is a number. */
int m5_sampler_draw(m5_sampler *s, const m5_sample_in *in, m5_sample_out *out, m5_error *err);

/* What the last draw chose from: ids in ascending order and weights proportional to their probability; 0 after a greedy choice. Borrowed until the
 * next call. */
int m5_sampler_candidates(const m5_sampler *s, const int32_t **ids, const float **weights);

/* Uniform in [0, 1), 53 bits, from Philox4x32-10 with key = seed and counter = (position, 0). */
double m5_sampler_uniform(uint64_t seed, uint64_t position);
/* The generator itself: counter[4], key[2] -> counter[4]. Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC'11. */
void m5_philox4x32(uint32_t ctr[4], const uint32_t key[2]);

#endif
