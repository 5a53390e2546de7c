/* SPDX-License-Identifier: Apache-2.0 */
/* The next-token head of Qwen3.5 (tensors mtp.*): one more block that guesses the token after the next from the model's final hidden state of token t
 * and the known token t + 1. Guesses never change output: whoever uses them verifies them with m5_model_forward. Room: model/mtp.c. Thread: engine.
 *
 * The head has K and V of its own, kept in the pages of the sequence: slot t belongs to the pair (hidden of token t, token t + 1). A slot may be
 * written again, which replaces a pair made from a guess by the one made from the model's hidden state; slots never written read as zeros. Rolling
 * the sequence back needs nothing here. */
#ifndef M5_MODEL_MTP_H
#define M5_MODEL_MTP_H

#include "model/model.h"

/* True when the file has the head and the model was opened with mtp. */
bool m5_mtp_present(const m5_model *m);

typedef struct m5_mtp_run {
    m5_seq *seq;
    int pos;             /* slot of the first pair, at most the sequence's position plus guesses already appended */
    const float *hidden; /* [n_tok, n_embd] of tokens pos, pos + 1, ...: rows of m5_model_hidden_all, or the head's own m5_model_hidden when it
                          * feeds itself */
    const int32_t *ids;  /* [n_tok]: tokens pos + 1, pos + 2, ... */
    int n_tok, n_out;    /* logits for the last n_out pairs */
} m5_mtp_run;

/* logits [sum n_out, n_vocab] of the token after each pair (NULL: no logits; no n_out at all: only K and V, which costs little). The head's normed
 * outputs of the same rows are in m5_model_hidden afterwards; m5_model_hidden_all stays. Errors: M5_ERR_ARG, M5_ERR_NOMEM, M5_ERR_UNSUPPORTED without
 * a head. */
int m5_mtp_forward(m5_model *m, const m5_mtp_run *runs, int n_run, float *logits, m5_error *err);

/* Guesses of a large vocabulary are made among its first ids alone: merges of byte pairs are numbered by frequency, and the whole head of a small
 * model is a third of its bytes. */
enum { M5_MTP_SHORTLIST = 65536 };

/* Greedy guesses: each run's last pair gives drafts[run][0], then the head feeds itself, appending slots. runs as for m5_mtp_forward with n_out 1;
 * drafts [n_run, n_draft]; logits is scratch [n_run, n_vocab]. */
int m5_mtp_draft(m5_model *m, const m5_mtp_run *runs, int n_run, int n_draft, int32_t *drafts, float *logits, m5_error *err);

#endif
