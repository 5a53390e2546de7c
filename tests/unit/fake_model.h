/* SPDX-License-Identifier: Apache-2.0 */
/* A model layer of a few lines for tests of the engine: it defines the symbols of model/model.h, text/tokenizer.h and text/chat.h that the engine uses,
 * so that the scheduler runs without weights. Tokens 0..255 are bytes, 256 is the end token, up to 299 text-less.
 *
 * What it says depends on the first prompt token: FAKE_HASH: logits are a hash of the whole history (any mix-up of sequences shows);
 * FAKE_COUNT: the token after t is t + 1; FAKE_EURO: "\xC3\xA9\xE2\x82\xAC " over and over, by position; FAKE_END: the end token. */
#ifndef M5_TESTS_FAKE_MODEL_H
#define M5_TESTS_FAKE_MODEL_H

#include <stdatomic.h>

enum { FAKE_VOCAB = 300, FAKE_HASH = 1, FAKE_COUNT = 2, FAKE_EURO = 3, FAKE_END = 4, FAKE_END_ID = 256, FAKE_BAD_ID = 299 };

typedef struct fake_control {
    atomic_int row_delay_us, call_delay_us;
    atomic_int n_ctx_train;
    atomic_int max_tokens_in_state; /* NOMEM above this many tokens over all sequences; 0 = no limit */
    atomic_int fail_open;
    /* what happened */
    atomic_int n_calls, n_failed, max_rows, max_rows_beside; /* beside: in calls that also held a one-row run */
    atomic_int max_runs, n_seqs, n_state_tokens, n_commits;
} fake_control;
extern fake_control fake;

#endif
