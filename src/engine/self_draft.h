/* SPDX-License-Identifier: Apache-2.0 */
/* The model as its own draft model: a forward over some of its layers with its own head guesses the next tokens. Room: engine/self_draft.c. Thread: the
 * engine thread. Not here: whether it pays (spec.c), what a calibration measured, whether guesses are right (sched.c).
 *
 * Two variants: `exit` leaves after the first layers, `skip` leaves out layers of the middle. Neither has a state of its own: keys, values and
 * recurrent states of the layers that guess are the model's, and guessed rows leave no trace there (m5_model_guess). */
#ifndef M5_ENGINE_SELF_DRAFT_H
#define M5_ENGINE_SELF_DRAFT_H

#include "engine/spec_cost.h"
#include "model/model.h"

typedef enum m5_self_variant { M5_SELF_EXIT, M5_SELF_SKIP, M5_SELF_VARIANTS } m5_self_variant;

typedef struct m5_self_draft {
    m5_layer_set layers; /* that guess; none = no such drafts */
    float confidence;    /* a chain of guesses stops before the first whose probability is less; 0 = never */
    double accept;       /* share of checked guesses that were right in a calibration, where choosing begins; 0 = unknown */
    bool known;          /* from a calibration */
    bool pays;           /* it said that such drafts pay: they belong to M5_SPEC_AUTO then */
} m5_self_draft;

/* Longest chain: each guess computes the rows before it again. */
enum { M5_SELF_MAX_K = 8 };

/* Layers without a calibration. exit: the first half. skip: all but every second layer of the middle half, from an even one on, so that the attention
 * layers of a three to one hybrid stay; nor is a layer left out whose keys others read. Empty when the model is too small for it. */
m5_layer_set m5_self_default(const m5_model *m, m5_self_variant v);
/* The same from what a user names: the first n of the layers in use; all of them but list[0..n). Errors: M5_ERR_ARG. */
int m5_self_exit_after(m5_layer_set *out, const m5_model *m, int n, m5_error *err);
int m5_self_skip_list(m5_layer_set *out, const m5_model *m, const int32_t *list, int n, m5_error *err);
/* Whether the model as it is used can guess with these layers. */
bool m5_self_usable(const m5_model *m, const m5_layer_set *set);
/* Share of the layers in use. */
double m5_self_share(const m5_model *m, const m5_layer_set *set);

/* One sequence's chain. */
typedef struct m5_self_ask {
    m5_seq *seq;
    int32_t *ids;  /* [n_certain + n_want]: the tokens behind the sequence's position; guesses are written behind them */
    int n_certain; /* >= 1 */
    int n_want;    /* guesses, at most M5_SELF_MAX_K; n_certain + n_want - 1 rows must fit a run with hold */
    int n;         /* out: guesses made */
    bool stopped;  /* out: the next one was too unlikely */
} m5_self_ask;
/* Chains of several sequences side by side, one forward for each length. runs: scratch [n]; logits: scratch [n, n_vocab]. *whole_us gets the time that
 * whole forwards of the same rows take, as far as it is known. On an error the chains are worthless. */
int m5_self_guess(m5_model *m, const m5_self_draft *d, m5_self_ask *asks, int n, m5_run *runs, float *logits, const m5_spec_cost *cost,
                  double *whole_us, m5_error *err);

#endif
