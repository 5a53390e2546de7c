/* SPDX-License-Identifier: Apache-2.0 */
/* The neutral turn: what every API dialect is parsed into, and what every dialect's answer is made from. Room: server/turn.c.
 *
 * A dialect file is pure: bytes -> turn, deltas -> bytes. The turn runs one or more generations ("choices") on the engine and hands their events on
 * as deltas; streamed and whole answers are made from the same deltas, so they cannot differ. */
#ifndef M5_SERVER_TURN_H
#define M5_SERVER_TURN_H

#include "base/json.h"
#include "base/mem.h"
#include "m5.h"
#include "server/http.h"
#include "text/tokenizer.h"

/* An error as clients see it. */
typedef struct m5_api_error {
    int status;       /* HTTP */
    const char *type; /* "invalid_request_error", ... static */
    const char *code; /* "context_length_exceeded", ... static or NULL */
    char param[96];   /* offending field or "" */
    char message[M5_ERROR_TEXT_BYTES];
} m5_api_error;
/* Fills e and returns -1, so that parsers can `return m5_api_fail(...)`. */
int m5_api_fail(m5_api_error *e, int status, const char *param, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
/* Maps an engine or text error to HTTP status, type and code. */
int m5_api_fail_from(m5_api_error *e, const m5_error *err);

enum { M5_MAX_CHOICES = 128, M5_MAX_STOPS = 64, M5_MAX_BIAS = 4096, M5_MAX_TOP_LOGPROBS = 20 };

/* Parsed request. Memory lives in the arena; JSON members are owned references. */
typedef struct m5_turn {
    m5_arena arena;
    char id[40];     /* "chatcmpl-..." */
    int64_t created; /* unix seconds */
    bool chat;       /* false: plain completion */
    bool stream, include_usage;
    bool continuous_usage;
    char *model; /* as the client wrote it, or NULL */

    m5_json *vars; /* chat: messages, tools and template variables */

    struct m5_prompt {
        char *text;
        size_t n_text;
        int32_t *ids;
        size_t n_ids;
    } * prompts; /* completion: text or ids */
    int n_prompts;
    bool echo;

    int n;             /* choices per prompt */
    m5_gen_params gen; /* ids unset; stop strings, bias and seed filled */
    bool seed_given;
    bool logprobs;
    int top_logprobs;
} m5_turn;

void m5_turn_free(m5_turn *t);

/* Server-wide settings a dialect parser needs. */
typedef struct m5_turn_defaults {
    m5_sampling sampling; /* what the operator or the model's author chose */
    int max_tokens;       /* < 0: to the end of the context */
    int32_t n_vocab;
} m5_turn_defaults;

/* One piece of an answer. Borrowed for the call. */
typedef enum m5_delta_kind { M5_DELTA_START, M5_DELTA_TEXT, M5_DELTA_FINISH } m5_delta_kind;
typedef struct m5_delta {
    m5_delta_kind kind;
    int choice;
    m5_slice text;         /* TEXT; on FINISH the last text, often empty */
    const m5_event *token; /* TEXT: the token behind it when logprobs are wanted, else NULL */
    m5_finish finish;      /* FINISH */
    const m5_error *error; /* FINISH with M5_FINISH_ERROR */
    const m5_usage *usage; /* FINISH: of this choice */
    int32_t stop_id;
    const char *stop_string;
} m5_delta;

/* The dialect's writer: knows how deltas become bytes. Calls come one at a time per run. */
typedef struct m5_run_ctx m5_run_ctx;
typedef struct m5_dialect {
    int (*delta)(m5_run_ctx *run, const m5_delta *d, m5_buf *out); /* streamed: appends SSE bytes */
    int (*close)(m5_run_ctx *run, m5_buf *out);                    /* streamed: after the last FINISH */
    int (*whole)(m5_run_ctx *run, m5_buf *out);                    /* the whole answer at the end */
    void (*error)(const m5_api_error *e, m5_buf *out);             /* error object */
} m5_dialect;

/* What a whole answer is made of, kept per choice while the turn runs. */
typedef struct m5_choice {
    m5_buf text;
    m5_json *logprobs; /* dialect's own form, appended per token, or NULL */
    m5_finish finish;
    m5_usage usage;
    m5_slice prompt_text; /* completion with echo */
    size_t n_text_offset; /* completion logprobs: characters so far */
} m5_choice;

struct m5_run_ctx {
    const m5_turn *turn;
    const struct m5_tokenizer *tok;
    const char *model_id;
    m5_choice *choices;
    int n_choices;
    m5_usage total; /* prompt tokens counted once per prompt, generated summed */
};

/* Runs t (takes ownership, also on error) and answers r through the dialect. Returns at once; the answer comes from the engine's events. */
void m5_turn_run(m5_engine *e, m5_turn *t, const m5_dialect *dialect, m5_http_req *r);

/* Answers r with an error object. */
void m5_turn_reply_error(m5_http_req *r, const m5_dialect *dialect, const m5_api_error *e);

/* Renders and tokenises the turn's conversation or prompt i into ids (appended). */
int m5_turn_tokenize(m5_engine *e, const m5_turn *t, int prompt, m5_ids *ids, m5_api_error *ae);

#endif
