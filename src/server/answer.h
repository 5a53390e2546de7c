/* SPDX-License-Identifier: Apache-2.0 */
/* One answer on its way from tokens to deltas: thoughts are split off, bounded and closed, tool calls read, stop strings looked for in the content,
 * grammars enforced once thinking is over. Room: server/answer.c.
 *
 * It stands on both sides of the engine: as the control of the request (what may come next) and behind its events (what came). Thread: everything but
 * new and free is called on the engine thread. */
#ifndef M5_SERVER_ANSWER_H
#define M5_SERVER_ANSWER_H

#include "m5.h"
#include "server/wire.h"
#include "text/think.h"

/* Where thoughts go. */
typedef enum m5_reasoning {
    M5_REASONING_FIELD,  /* their own field (--reasoning-format deepseek, auto) */
    M5_REASONING_TEXT,   /* the content, between their tags (none) */
    M5_REASONING_BOTH,   /* both (deepseek-legacy) */
    M5_REASONING_HIDDEN, /* nowhere; they are counted all the same */
} m5_reasoning;
/* How that field is called. */
typedef enum m5_reasoning_field { M5_FIELD_REASONING_CONTENT = 1, M5_FIELD_REASONING = 2, M5_FIELD_BOTH = 3 } m5_reasoning_field;

/* What the answers of one turn go by; the same for all of its choices. Borrowed while they live. */
typedef struct m5_answer_plan {
    m5_wire *wire;
    int n_vocab;            /* of the model: size of masks */
    m5_think_options think; /* close NULL = no thoughts */
    m5_reasoning reasoning;
    bool think_known;     /* thinking is possible here: the report tells of it */
    bool needle;          /* turned on by the needle rule */
    int limit;            /* tokens of thought and answer together; < 0 = they do not count together */
    bool loops;           /* look for loops in the answer */
    const m5_json *tools; /* NULL = no calls */
    bool parallel_calls;
    m5_grammar *grammars[2]; /* owned; the answer matches one of them: the form asked for, calls */
    int n_grammar;           /* 0 = none */
    m5_grammar_vocab *vocab;
    const char *const *stop;
    int n_stop;
    bool logprobs;
    m5_ids hint;                       /* owned: tokens of a typed opening behind a thought that a rule closed */
    const char *hint_name; /* NULL: none */
} m5_answer_plan;

enum { M5_CALL_ID_BYTES = 32 };

/* What the rules did, for the response. */
typedef struct m5_answer_report {
    m5_think_stats think;
    const char *hint; /* form of the typed opening that was put, or NULL */
    int n_calls;
    int loop_period; /* of a loop that ended the answer */
} m5_answer_report;

/* One piece of an answer. Borrowed for the call. */
typedef enum m5_delta_kind { M5_DELTA_START, M5_DELTA_REASONING, M5_DELTA_TEXT, M5_DELTA_CALL, M5_DELTA_ARGUMENTS, M5_DELTA_FINISH } m5_delta_kind;
typedef struct m5_delta {
    m5_delta_kind kind;
    int choice;
    m5_slice text;                  /* REASONING, TEXT, ARGUMENTS: a piece; CALL: the function's name */
    int call;                       /* CALL, ARGUMENTS: index */
    const char *call_id;            /* CALL */
    const m5_event *token;          /* TEXT: the token behind it when logprobs are wanted, else NULL */
    m5_finish finish;               /* FINISH */
    const m5_error *error;          /* FINISH with M5_FINISH_ERROR */
    const m5_usage *usage;          /* FINISH: of this choice */
    const m5_answer_report *report; /* FINISH */
} m5_delta;
typedef void (*m5_delta_fn)(void *ctx, const m5_delta *d); /* d->choice is left 0 */

typedef struct m5_answer m5_answer;
int m5_answer_new(m5_answer **out, const m5_answer_plan *plan, m5_delta_fn fn, void *ctx, m5_error *err);
void m5_answer_free(m5_answer *a);
m5_control m5_answer_control(m5_answer *a);
/* Hands an event on as deltas; DONE gives FINISH with what was held back before it. An answer that failed on its own account finishes with
 * M5_FINISH_ERROR. */
void m5_answer_event(m5_answer *a, const m5_event *ev);

#endif
