/* SPDX-License-Identifier: Apache-2.0 */
/* Thoughts: which tokens of an answer belong to one, what their text is, and when one must end. Room: text/think.c. Pure: tokens and their text go
 * in, pieces marked as reasoning or answer come out, the same for any way of cutting the text.
 *
 * A tag that is a token of the vocabulary counts as a tag only when it comes as that token; otherwise its letters count. It opens a thought where a
 * message could begin: before any answer text or at the start of a line, outside of code blocks; elsewhere it is text. Line breaks that frame a
 * thought belong to neither part. A closing tag in the answer at such a place is dropped, an opening one at the start of a thought too. */
#ifndef M5_TEXT_THINK_H
#define M5_TEXT_THINK_H

#include "base/err.h"
#include "base/str.h"

#include <stdint.h>

typedef enum m5_part { M5_PART_REASONING, M5_PART_ANSWER } m5_part;
typedef void (*m5_part_fn)(void *ctx, m5_part part, m5_slice text); /* text is never empty */

/* Why a thought ended. */
typedef enum m5_think_end {
    M5_THINK_OPEN,   /* it has not, or there was none */
    M5_THINK_MODEL,  /* the model closed it */
    M5_THINK_BUDGET, /* its tokens were spent */
    M5_THINK_LOOP,   /* it repeated itself */
    M5_THINK_ROOM,   /* the context, or the limit of the whole answer, came near */
    M5_THINK_STOP,   /* an end token came inside */
} m5_think_end;
const char *m5_think_end_name(m5_think_end e); /* "model", "budget", ...; NULL for M5_THINK_OPEN */

typedef struct m5_think_options {
    const char *open, *close;  /* borrowed while the machine lives; NULL = no thoughts, everything is answer */
    int32_t open_id, close_id; /* the token a tag begins with; -1 = spelled in ordinary ones */
    bool inside;               /* the prompt ends in an open thought */
    int budget;                /* tokens of all thoughts together; < 0 = no limit */
    int n_reserve;             /* places that closing a thought and answering need */
    bool loops;                /* look for loops in thoughts */
} m5_think_options;

typedef struct m5_think m5_think;
int m5_think_new(m5_think **out, const m5_think_options *o, m5_part_fn fn, void *ctx); /* 0 or M5_ERR_NOMEM */
void m5_think_free(m5_think *t);

/* Takes a token with its text; forced: put to close the thought. Calls fn for what became certain. False: it counts as answer; true: it is a part of
 * a thought, a tag or a frame. */
bool m5_think_push(m5_think *t, int32_t id, m5_slice text, bool forced);
/* End of the text: releases what was held back. Returns 0, or M5_ERR_NOMEM when some text was lost on the way. */
int m5_think_flush(m5_think *t);

/* Before a token is drawn: why the open thought must be closed now, or M5_THINK_OPEN. n_room: places left, the next token included. */
m5_think_end m5_think_due(const m5_think *t, int n_room);
/* The caller is about to force the closing tag, for that reason; no other thought may begin afterwards. */
void m5_think_close(m5_think *t, m5_think_end why);
/* The token that must not come next, because it would open a thought that may not be; -1 = none. */
int32_t m5_think_forbidden(const m5_think *t);

bool m5_think_inside(const m5_think *t);
bool m5_think_at_line_start(const m5_think *t); /* of the thought; an empty one is not */
/* Nothing of the answer after the last thought has come yet. */
bool m5_think_answer_empty(const m5_think *t);

typedef struct m5_think_stats {
    int n_tok; /* drawn inside thoughts, tags not counted */
    int n_block;
    m5_think_end end; /* of the first thought that a rule ended, else of the last one */
    int loop_period;  /* tokens, for M5_THINK_LOOP */
} m5_think_stats;
void m5_think_get_stats(const m5_think *t, m5_think_stats *out);

#endif
