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
#include "server/answer.h"
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

/* What the client left open (-1, M5_BUDGET_OPEN) and what not. */
enum { M5_BUDGET_OPEN = -2 };
typedef struct m5_turn_think {
    int on;          /* 1, 0; -1 = left open */
    int64_t budget;  /* tokens; -1 = no limit; M5_BUDGET_OPEN */
    char effort[12]; /* "low", ...: passed to the template, and a share of the server's budget; "" = not said */
} m5_turn_think;

typedef enum m5_tool_choice { M5_TOOLS_AUTO, M5_TOOLS_NONE, M5_TOOLS_REQUIRED, M5_TOOLS_NAMED } m5_tool_choice;

/* What the answer's content must match. */
typedef enum m5_structure {
    M5_STRUCTURE_NONE,
    M5_STRUCTURE_OBJECT,
    M5_STRUCTURE_SCHEMA,
    M5_STRUCTURE_GBNF,
    M5_STRUCTURE_REGEX,
    M5_STRUCTURE_CHOICE
} m5_structure;

typedef enum m5_loop_guard { M5_LOOPS_OFF, M5_LOOPS_THOUGHT, M5_LOOPS_ALL } m5_loop_guard;
typedef enum m5_hints { M5_HINTS_OFF, M5_HINTS_FORMAT, M5_HINTS_AUTO } m5_hints;

/* What the operator decided; a request overrides most of it. */
typedef struct m5_turn_policy {
    int thinking;      /* 1, 0; -1 = as the template does */
    int budget;        /* tokens of thought; -1 = no limit */
    bool common_limit; /* max_tokens limits thought and answer together */
    m5_loop_guard loops;
    m5_hints hints;
    bool needle; /* short questions about long texts think when nobody said otherwise */
    m5_reasoning reasoning;
    m5_reasoning_field field;
} m5_turn_policy;
void m5_turn_policy_default(m5_turn_policy *p);

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

    const m5_turn_policy *policy; /* of the server; outlives the turn */
    m5_turn_think think;
    bool common_limit; /* gen.max_tokens limits thought and answer together */
    m5_reasoning reasoning;
    m5_reasoning_field field;
    m5_loop_guard loops;
    m5_hints hints;
    bool needle;

    m5_json *tools; /* what may be called; NULL = nothing */
    m5_tool_choice choice;
    char *tool_name; /* M5_TOOLS_NAMED */
    bool parallel_calls;
    bool legacy_functions; /* asked for in the `functions` form: answers take the `function_call` form */

    m5_structure structure;
    m5_json *schema;             /* SCHEMA: it; CHOICE: a list of strings */
    m5_slice structure_text;     /* GBNF, REGEX */
    const char *structure_param; /* the field it came from, for messages */

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
    const m5_turn_policy *policy;
} m5_turn_defaults;

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
    m5_buf text, reasoning;
    struct m5_choice_call {
        char id[M5_CALL_ID_BYTES];
        m5_buf name, arguments;
    } * calls;
    int n_calls;
    m5_answer_report report;
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
    m5_usage total;  /* prompt tokens counted once per prompt, generated summed */
    int n_reasoning; /* of all choices */
    const m5_answer_plan *plan;
    const m5_lossy_info *lossy; /* NULL = the whole model */
};

/* Runs t (takes ownership, also on error) and answers r through the dialect. Returns at once; the answer comes from the engine's events. */
void m5_turn_run(m5_engine *e, m5_wire *wire, m5_turn *t, const m5_dialect *dialect, m5_http_req *r);

/* Answers r with an error object. */
void m5_turn_reply_error(m5_http_req *r, const m5_dialect *dialect, const m5_api_error *e);

/* plan.c: brings the conversation into the shape that the template wants and decides whether it thinks; must come before rendering. *needle: the
 * needle rule turned thinking on. */
int m5_turn_shape(const m5_wire *wire, m5_turn *t, bool *needle, m5_api_error *ae);
/* plan.c: what every answer of the turn goes by. inside: the prompt ends in an open thought. */
int m5_turn_plan(m5_wire *wire, const m5_turn *t, int n_ctx, bool inside, bool needle, m5_answer_plan *out, m5_api_error *ae);
void m5_answer_plan_deinit(m5_answer_plan *plan);

#endif
