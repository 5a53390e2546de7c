/* SPDX-License-Identifier: Apache-2.0 */
/* Measures what a model loses and gains without some of its layers: as its own draft model, and for good. Room: engine/calibrate.c. Thread: the one
 * that owns the model; nothing else may use it meanwhile.
 *
 * Text: continuations that the model writes itself, or one that is given; only places behind a prompt are measured. The whole model's logits of all
 * places are kept, then come
 *   exits    the first layers with the model's own head: is their likeliest token the model's? (several depths, then those around the best,
 *            over half of the places)
 *   singles  each layer left out alone, over a quarter of the places (half of every second text) and, of a large vocabulary, over the first ids
 *   cuts     layers left out one after the other, each time the one that hurts least of the next few in the order of singles, tried like them; then over
 *            all ids and all places, or half of them where that tells the mean KL to a thousandth of a nat (n_tok says which)
 *   skips    the same sets for guesses only, with the state of the whole model behind them, over a quarter of the places
 * and the time of everything that drafting or decoding would do. */
#ifndef M5_ENGINE_CALIBRATE_H
#define M5_ENGINE_CALIBRATE_H

#include "engine/calib.h"

enum { M5_CALIBRATE_ROWS = 64, M5_CALIBRATE_HOLD = 16, M5_CALIBRATE_TOK = 512 };

typedef struct m5_calibrate_options {
    int n_tok;        /* places to measure; 0 = M5_CALIBRATE_TOK. Fewer, when their logits would take an eighth of the memory */
    const char *text; /* NULL and no ids = the model's own */
    size_t n_text;
    const int32_t *ids; /* [n_ids], instead of text */
    size_t n_ids;
    uint64_t stream_bytes; /* for what stands between layers, so that cuts start where they differ; 0 = an eighth of the memory. Changes the time alone */
    double sure_kl;     /* half of the places are enough for a cut whose mean KL has a standard error of at most so many nats; 0 = 0.001 */
    void (*progress)(void *ctx, double fraction, const char *what); /* may be NULL, as the next */
    void (*estimate)(void *ctx, double seconds);                    /* once, when the speed is known */
    void *ctx;
} m5_calibrate_options;

/* m: opened with max_batch_tok of at least M5_CALIBRATE_ROWS and max_draft of at least M5_CALIBRATE_HOLD, all layers, no sequence; it is left so.
 * Owner: caller, m5_free. */
int m5_calibrate(m5_calib **out, m5_model *m, const m5_calibrate_options *o, m5_error *err);

/* KL(p || q) in nats of softmax(x) and softmax(y). Exactly 0 for equal logits. */
double m5_calib_kl(const float *x, const float *y, int n);

/* Expected speed over plain decoding of chains of at most k guesses that stop before one that is less probable than threshold t: a chain goes on with
 * probability share and each of its guesses stands, if those before it do, with probability right. cost[n]: time of a forward of n rows, n up to
 * k + 1. */
double m5_calib_expect(const m5_calib_guess *g, int t, int k, const double *cost);

#endif
