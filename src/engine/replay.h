/* SPDX-License-Identifier: Apache-2.0 */
/* What the model wrote comes back as text, and text does not say how it was cut into tokens: the next turn's prompt may spell an earlier answer with
 * other tokens than were sampled. Where the kept state holds tokens with the very same text, the prompt takes those. Room: engine/replay.c. Thread:
 * the engine thread.
 *
 * Only whole pieces between control tokens are exchanged, and only for equal bytes. It is asked for per request (chat turns), counted, and reported.
 */
#ifndef M5_ENGINE_REPLAY_H
#define M5_ENGINE_REPLAY_H

#include "engine/prefix.h"
#include "text/tokenizer.h"

/* Rewrites ids in place; *n changes with it and stays <= cap. scratch [n_scratch]: the longest answer that can be replayed. Returns how many tokens
 * of the result are replayed ones. */
int m5_replay(const m5_prefix *p, const m5_tokenizer *t, int32_t *ids, int *n, int cap, int32_t *scratch, int n_scratch);

#endif
