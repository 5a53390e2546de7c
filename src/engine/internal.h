/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the engine: what engine.c (callers' threads) and sched.c (the engine thread) share. Nobody else includes this.
 *
 * Who may touch what: fields under "engine thread" belong to it alone after open; the queue, the counters and `quit` are under `lock`; a request's
 * own fields belong to the engine thread from submit to DONE, except the three that say otherwise. Lock order: lock, then a request's deliver. */
#ifndef M5_ENGINE_INTERNAL_H
#define M5_ENGINE_INTERNAL_H

#include "m5.h"

#include "engine/calib.h"
#include "engine/marks.h"
#include "engine/prefix.h"
#include "engine/replay.h"
#include "engine/sampler.h"
#include "engine/spec.h"
#include "text/stop.h"
#include "engine/store.h"
#include "model/model.h"
#include "text/chat.h"
#include "text/tokenizer.h"

#include <pthread.h>
#include <stdatomic.h>

enum { M5_ENGINE_MAX_END = 64 };

struct m5_request {
    atomic_int refs;            /* caller and engine */
    atomic_bool cancelled;
    pthread_mutex_t deliver;    /* held while fn runs; guards `detached` */
    bool detached;              /* the caller has freed it: fn is not called any more */
    m5_event_fn fn;
    void *ctx;
    pthread_t engine_thread;
    struct m5_request *next;    /* in the queue; under the engine's lock */

    m5_sampling sampling;
    m5_logit_bias *bias;
    m5_stop *stop;
    m5_decoder *decoder;        /* NULL without a tokenizer */
    bool ignore_eos, replay;
    int n_replayed;
    m5_control control;         /* control.next NULL = none */
    uint64_t *mask;             /* what control said of the position to be drawn next; NULL without control */
    bool masked;
    m5_spec_params spec;
    int n_draft[M5_SPEC_SOURCES], n_draft_accepted[M5_SPEC_SOURCES];
    int n_counted;              /* generated tokens that count against max_tokens */
    int max_tokens;             /* already bounded by the context */
    int32_t *ids;               /* prompt with room for max_tokens; moves to the slot at admission and comes back when it has to make room */
    int n_prompt, n_ids, cap_ids; /* n_ids: prompt and what was generated before it had to make room */
    uint64_t wait_left;         /* goes on when e->n_left is another number, or nothing else runs; set when it had to make room */

    int marks[M5_MAX_MARKS + 1]; /* message boundaries of the prompt, and where it parts from a kept one */
    int n_marks;

    m5_buf decoded, certain;    /* scratch of one token's text */
    bool started;               /* START was delivered */
    int n_cached, n_generated;
    uint64_t t_submit_us, t_admit_us, t_start_us;
};

/* A place for one running sequence. An idle slot's sequence is empty: what is worth keeping is in the prefix tree. */
typedef struct m5_slot {
    m5_seq *seq;                /* NULL before first use */
    int32_t *ids;               /* the first m5_seq_pos(seq) are in the state */
    int n_ids, cap_ids;
    struct m5_request *req;     /* NULL = idle */
    uint64_t admitted;          /* tick of admission: who came first */
    m5_spec_seq spec;
    bool held;   /* within a step: the forward's rows wait for m5_seq_commit */
    int n_stand; /* of them, those that will be committed */
} m5_slot;

struct m5_engine {
    m5_model *model;
    m5_tokenizer *tokenizer;
    m5_chat *chat;
    char *model_id;
    m5_engine_info info;
    m5_calib *calib;            /* NULL = none */
    m5_lossy_info lossy;
    int lossy_layers[M5_MAX_LAYERS];
    int n_ctx, n_parallel, n_queue, prefill_chunk;
    int32_t end_ids[M5_ENGINE_MAX_END];
    int n_end_ids;
    pthread_t thread;
    bool thread_started;

    /* engine thread */
    m5_sampler *sampler;
    m5_prefix *prefix;
    m5_store *store;            /* NULL = no files */
    int checkpoint_every;
    m5_slot *slots;             /* [n_parallel] */
    m5_run *runs;               /* [n_parallel] */
    m5_slot **run_slot;         /* [n_parallel] */
    m5_error *run_err;          /* [n_parallel] */
    float *logits;              /* [n_parallel + spec.max_rows, n_vocab] */
    bool hidden_valid;          /* m5_model_hidden_all has the rows of all of the step's runs */
    m5_draft_model *draft;      /* NULL = none */
    m5_spec spec;
    m5_spec_ask *asks; /* [n_parallel] who decodes in this step */
    uint64_t n_draft_by[M5_SPEC_SOURCES], n_draft_accepted_by[M5_SPEC_SOURCES];
    uint64_t tick;              /* admissions so far: orders slots by use */
    uint64_t n_left;            /* requests that have left their slot for good, from 1 on */
    double us_per_row;          /* measured cost of a prompt row; 0 = not known yet */

    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct m5_request *queue_head, *queue_tail;
    bool quit;
    m5_engine_status status;
};

/* sched.c */
void *m5_engine_main(void *engine);
/* engine.c */
void m5_request_unref(m5_request *r);

#endif
