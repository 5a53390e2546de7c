/* SPDX-License-Identifier: Apache-2.0 */
/* m5: the narrow waist. Open a model, submit requests made of token ids, receive events. The server, the command line, benchmarks and tests of
 * behaviour need only this header (plus base/ and text/ for their own work). One engine thread owns every model, page and state row; all calls below
 * are safe from any thread unless they say otherwise. */
#ifndef M5_H
#define M5_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"

typedef struct m5_engine m5_engine;
typedef struct m5_request m5_request;

/* Speculative decoding: cheap guesses ("drafts") for the next tokens are checked together in one forward, and exactly those are kept that would have
 * been drawn anyway. It changes speed, never output: tokens, log-probabilities, events and finish are the same with any of this. */
typedef enum m5_spec_source {
    M5_SPEC_NGRAM,  /* what followed the last tokens where they stood before, in prompt or answer */
    M5_SPEC_MTP,    /* the model's own next-token head */
    M5_SPEC_MODEL,  /* a smaller model of the same vocabulary */
    M5_SPEC_EXIT,   /* the model itself, left early: its first layers and its head */
    M5_SPEC_SKIP,   /* the model itself without some layers of the middle */
    M5_SPEC_SCRIPT, /* m5_spec_script: for tests and measurements */
    M5_SPEC_SOURCES
} m5_spec_source;
enum {
    M5_SPEC_OFF = 1 << 30,  /* no drafts */
    M5_SPEC_AUTO = 1 << 29, /* what the engine was told to use; if nothing: every source there is, of exit and skip only what a calibration found to pay */
    M5_SPEC_MAX_K = 24,
    M5_SPEC_DEFAULT_K = 12
};
/* "off", "auto", or names of sources joined by commas: bits for m5_spec_params.sources. Errors: M5_ERR_ARG. */
int m5_spec_parse(const char *text, unsigned *sources, m5_error *err);
const char *m5_spec_source_name(m5_spec_source s);

/* Drafts made to order: the token at place i of the answer is ids[i]; each draft token is right with probability p_right, decided by its place and
 * the seed alone. Past n_ids nothing is drafted. */
typedef struct m5_spec_script {
    const int32_t *ids;
    int n_ids;
    double p_right;
    int wrong_at; /* from this token of each draft on all are wrong; -1 = none */
    uint64_t seed;
} m5_spec_script;

typedef struct m5_spec_params {
    unsigned sources; /* bits 1 << m5_spec_source, or M5_SPEC_OFF; 0 = the engine's */
    int k;            /* drafted tokens a step, at most; 0 = the engine's */
    bool fixed;       /* as many drafts as the source gives, always. Otherwise sources and lengths follow what is measured, and losing means none */
    const m5_spec_script *script; /* must live until DONE or m5_request_free; NULL = none */
} m5_spec_params;

typedef struct m5_engine_options {
    const char *model_path;
    int n_threads;         /* 0 = usable cores */
    uint32_t cpu_mask;     /* 0 = everything found */
    int n_ctx;             /* tokens per sequence; 0 = the model's own, bounded by memory */
    int n_parallel;        /* running sequences; 0 = 4 */
    int n_queue;           /* waiting requests; 0 = 64 */
    int prefill_chunk;     /* rows per forward; 0 = 512 */
    bool act_f32;          /* reference arithmetic */
    bool no_repack;
    int kv_type;           /* m5_kv_type, backend/cpu.h */
    void (*progress)(void *ctx, double fraction, const char *what);
    void *progress_ctx;
    uint64_t memory_bytes;    /* budget of weights, sequences and prompt cache together; 0 = 85 % of the machine's memory */
    uint64_t cache_ram_bytes; /* kept prompt state; 0 = a quarter of what is free beside the weights, at most 8 GiB */
    bool no_cache;            /* keep no prompt state between requests */
    const char *cache_dir;    /* folder for prompt state that survives the process; NULL = none */
    uint64_t cache_disk_bytes; /* budget of that folder; 0 = a tenth of what is free there, at most 16 GiB */
    int checkpoint_every;     /* tokens between checkpoints of a long prompt; 0 = 512 */
    const char *chat_template; /* text used instead of the model's own template; NULL = the model's */
    const char *draft_model_path; /* a smaller model of the same vocabulary, for M5_SPEC_MODEL; NULL = none */
    int exit_layer;            /* M5_SPEC_EXIT guesses after so many layers; 0 = as calibrated, else half of them */
    const int32_t *skip_layers;    /* [n_skip_layers] M5_SPEC_SKIP leaves these out; none = as calibrated, else every second of the middle half */
    int n_skip_layers;
    double draft_confidence;   /* both stop before a guess of less probability; 0 = as calibrated, else never */
    const char *calibration_path; /* what `calibrate` measured of the model; NULL = look into calibration_dir */
    const char *calibration_dir;  /* NULL = none */
    double lossy_layer_skip;      /* leave out as many layers as that record has with a mean KL of at most this; 0 = none. Needs the record */
    m5_spec_params spec; /* for requests that say nothing; sources 0 = M5_SPEC_AUTO. Requests cannot exceed its k nor use what it turns off */
} m5_engine_options;

int m5_engine_open(m5_engine **out, const m5_engine_options *opt, m5_error *err);
/* Refuses new requests (M5_ERR_BUSY) and cancels everything that runs or waits; returns at once, the final events follow. */
void m5_engine_shutdown(m5_engine *e);
/* m5_engine_shutdown, then waits for the final events and joins the engine thread. */
void m5_engine_close(m5_engine *e);

/* Waits until background work after opening is over; for measurements. */
void m5_engine_settle_wait(m5_engine *e);

/* What server and cli need to know of the model; borrowed until close. */
const struct m5_tokenizer *m5_engine_tokenizer(const m5_engine *e); /* NULL when the model brings none: ids work, text does not */
const struct m5_chat *m5_engine_chat(const m5_engine *e);
const struct m5_config *m5_engine_config(const m5_engine *e);
int m5_engine_n_ctx(const m5_engine *e);
const char *m5_engine_model_id(const m5_engine *e); /* short name for /v1/models */

/* Layers left out by wish: the output is not the model's own. Figures as calibrated, over the whole model's; with nothing left out 0, 0, 1, 1. */
typedef struct m5_lossy_info {
    double wanted_kl, kl, kl_p99; /* allowed mean KL; KL(whole || without) in nats, mean and 99th percentile of the tokens */
    double top1, speed;           /* share of tokens with the same likeliest one; of plain decoding */
    const int *layers;            /* [n_layers] left out */
    int n_layers;
} m5_lossy_info;

/* The effective configuration, for people and for status pages. Strings are borrowed until close. */
typedef struct m5_engine_info {
    const char *family, *format, *isa;
    int n_threads, n_ctx, n_ctx_train, n_parallel, n_queue, prefill_chunk;
    int n_vocab;                           /* of the model: logits, masks of m5_control */
    uint64_t n_params, weight_bytes;
    uint64_t kv_bytes_per_tok, row_bytes;  /* of one sequence */
    uint64_t state_bytes;                  /* all sequences at full length */
    uint64_t memory_bytes;                 /* of the machine or its limit */
    uint64_t cache_ram_bytes;              /* budget of kept prompt state */
    uint64_t cache_disk_bytes;             /* budget of its files; 0 = none are used */
    int checkpoint_every;
    bool own_template;                     /* false: the built-in ChatML stands in */
    unsigned spec_sources;                 /* sources of drafts that requests may name, as bits; 0 = none */
    unsigned spec_auto;                    /* those of them that M5_SPEC_AUTO means */
    int spec_k;                            /* longest draft */
    int spec_rows;                         /* drafted tokens in one step, over all sequences */
    uint64_t spec_bytes;                   /* memory for them */
    const m5_lossy_info *lossy;            /* NULL = the whole model */
} m5_engine_info;
void m5_engine_get_info(const m5_engine *e, m5_engine_info *out);

typedef struct m5_logit_bias {
    int32_t id;
    float bias; /* added to the logit; -100 or less forbids */
} m5_logit_bias;

/* Sampling. The draw at absolute position p of a sequence uses the stream (seed, p) alone, so the same request gives the same tokens whatever shares
 * the batch (design: RNG per position). temperature 0 = greedy (largest logit, lowest id on ties). */
typedef struct m5_sampling {
    float temperature, top_p, min_p, typical_p;
    int top_k;                 /* 0 = off */
    float repetition_penalty;  /* 1 = off; divides positive and multiplies negative logits of tokens seen */
    float presence_penalty, frequency_penalty; /* 0 = off; over generated tokens, OpenAI's definition */
    int penalty_last_n;        /* tokens looked back for repetition_penalty; -1 = all, 0 = off */
    uint64_t seed;
    const m5_logit_bias *bias; /* copied at submit */
    int n_bias;
    int n_top_logprobs;        /* -1 = no logprobs, 0.. = that many alternatives per token (of the unmodified distribution) */
} m5_sampling;
void m5_sampling_default(m5_sampling *s); /* temperature 1, top_p 1, everything else off, logprobs off, seed 0 */
/* Fields that are below 0 (temperature, top_p, min_p, repetition_penalty, top_k) take what the model's author advises, else what `other` says. */
void m5_engine_fill_sampling(const m5_engine *e, m5_sampling *s, const m5_sampling *other);

/* Rules over the tokens of one request: what may come next and what must (thinking budgets, grammars, typed openings). The engine asks `next` exactly once for
 * each position, after every token before it was accepted and never for drafts that fall, so a rule needs no way back. What it says may depend on the
 * accepted tokens and n_room alone; then P1 holds with it. Both run on the engine thread; ctx must live until DONE or m5_request_free. */
typedef enum m5_control_say {
    M5_CONTROL_FREE,  /* any token */
    M5_CONTROL_MASK,  /* one of the tokens whose bit is set in mask (at least one is) */
    M5_CONTROL_FORCE, /* *forced; no draw and no forward before it. Its logprob is 0 */
    M5_CONTROL_END,   /* the answer ends before this position: M5_FINISH_STOP, or M5_FINISH_LOOP when *forced < 0 */
} m5_control_say;
enum {
    M5_ACCEPT_UNCOUNTED = 1, /* does not count against max_tokens */
    M5_ACCEPT_NO_STOP = 2,   /* its text is told at once and not searched for stop strings */
    M5_ACCEPT_GO_ON = 4,     /* an end token only: it is dropped and the answer goes on with `next` */
};
typedef struct m5_control {
    void *ctx;
    /* n_room: tokens that the context still holds, this one included (>= 1). mask: (n_vocab + 63) / 64 words, to be written in full for MASK. */
    m5_control_say (*next)(void *ctx, int n_room, uint64_t *mask, int32_t *forced);
    /* A drawn or forced token, before its TOKEN event; end tokens (is_end) too. Returns M5_ACCEPT_ flags. */
    unsigned (*accept)(void *ctx, int32_t id, bool is_end);
} m5_control;

typedef struct m5_gen_params {
    const int32_t *ids;        /* prompt, copied at submit; at least one token */
    size_t n_ids;
    int max_tokens;            /* < 0 = to the end of the context */
    m5_sampling sampling;
    const char *const *stop;   /* stop strings, copied; the text stops right before the first match */
    int n_stop;
    bool ignore_eos;
    bool keep_special;         /* control tokens appear in the text */
    const m5_control *control; /* copied; NULL = none */
    m5_spec_params spec;       /* copied; zero = as the engine */
    bool replay;               /* earlier answers in the prompt may take the tokens that were sampled, where the text is the same (chat turns) */
} m5_gen_params;

typedef enum m5_finish { M5_FINISH_NONE, M5_FINISH_STOP, M5_FINISH_LENGTH, M5_FINISH_LOOP, M5_FINISH_CANCELLED, M5_FINISH_ERROR } m5_finish;

typedef struct m5_token_prob {
    int32_t id;
    float logprob;
} m5_token_prob;

typedef struct m5_usage {
    int n_prompt, n_cached, n_generated;
    int n_replayed;            /* prompt tokens taken from the record of what the model wrote */
    double prompt_ms, generate_ms, queue_ms;
    int n_draft, n_draft_accepted; /* drafted tokens that were checked, and those that were right */
    int n_draft_by[M5_SPEC_SOURCES], n_draft_accepted_by[M5_SPEC_SOURCES];
} m5_usage;

typedef enum m5_event_kind { M5_EVENT_START /* prompt done */, M5_EVENT_TOKEN, M5_EVENT_DONE } m5_event_kind;
typedef struct m5_event {
    m5_event_kind kind;
    int32_t id;                /* TOKEN: the sampled or forced id */
    bool forced;               /* TOKEN: put by a rule, not drawn */
    const char *text;          /* TOKEN and DONE: bytes that became certain (whole characters, stop strings held back), may be empty */
    size_t n_text;
    float logprob;             /* when asked for */
    const m5_token_prob *top;  /* [n_top] */
    int n_top;
    m5_finish finish;          /* DONE */
    int32_t stop_id;           /* DONE by an end token: its id, else -1 */
    const char *stop_string;   /* DONE by a stop string: it, else NULL */
    m5_error error;            /* DONE with M5_FINISH_ERROR */
    m5_usage usage;            /* DONE */
} m5_event;

/* Thread: called on the engine thread; must not block and must not call back into the engine except m5_request_cancel. Borrowed pointers end with the
 * call. Exactly one DONE ends every accepted request. */
typedef void (*m5_event_fn)(void *ctx, const m5_event *ev);

/* Errors before anything is delivered: M5_ERR_ARG, M5_ERR_CONTEXT (prompt + 1 > n_ctx), M5_ERR_BUSY (queue full), M5_ERR_NOMEM; then fn is never called.
 * Owner: caller frees *out with m5_request_free. Before DONE that cancels it, and fn is not called after free returns; from inside fn it is allowed while
 * handling DONE, and never waits there. */
int m5_engine_submit(m5_engine *e, const m5_gen_params *p, m5_event_fn fn, void *ctx, m5_request **out, m5_error *err);
void m5_request_cancel(m5_request *r); /* at once: the next step drops it */
void m5_request_free(m5_request *r);

typedef struct m5_engine_status {
    int n_running, n_waiting;
    uint64_t n_prompt_tokens, n_generated_tokens, n_requests;
    uint64_t n_preempted;       /* times that a request gave its memory to others and went on later */
    uint64_t last_step_us;      /* m5_time_us() of the last finished step, or of the end of idleness */
    bool busy;
    uint64_t n_draft, n_draft_accepted, n_draft_by[M5_SPEC_SOURCES], n_draft_accepted_by[M5_SPEC_SOURCES];
    uint64_t n_steps;        /* forwards */
    int n_layers_left_out;
    uint64_t n_state_copies; /* pages and recurrent rows that were copied */
    /* kept prompt state */
    uint64_t cache_bytes, n_cache_nodes, n_cache_checkpoints, n_cache_lookups, n_cache_hits, n_cache_hit_tokens, n_cache_evicted_bytes;
    uint64_t disk_bytes, n_disk_files, n_disk_written_bytes, n_disk_loaded, n_disk_loaded_bytes, n_disk_bad, n_disk_evicted, n_disk_skipped;
} m5_engine_status;
void m5_engine_get_status(const m5_engine *e, m5_engine_status *out);

#endif
