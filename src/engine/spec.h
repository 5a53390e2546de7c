/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts: where guesses for the next tokens come from, and whether they pay. Room: engine/spec.c. Thread: the engine thread. Not here: checking them
 * (sched.c), so nothing in this room can change what is said.
 *
 * Choice. A forward of n rows costs what spec_cost.h measured. A draft of k tokens, each right with probability p if those before it are, is worth
 * p + p^2 + .. + p^k tokens. Of all sources and lengths the one with the most tokens per time is taken; none, when no draft beats plain decoding.
 * p is counted for each source (n-gram: and length of match) and request, starting from what earlier requests saw, and fades back to that
 * while unused, so that a source which lost is tried again. Whatever the estimates say, a ledger of the time that drafts really took and saved stops
 * them when a request has lost LOSS_SHARE of its time. */
#ifndef M5_ENGINE_SPEC_H
#define M5_ENGINE_SPEC_H

#include "engine/draft_model.h"
#include "engine/ngram.h"
#include "engine/self_draft.h"
#include "engine/spec_cost.h"
#include "m5.h"
#include "model/model.h"
#include "model/mtp.h"

/* What acceptance is counted for. */
typedef enum m5_spec_class {
    M5_CLASS_NGRAM_NEAR,  /* only by its place: m5_ngram's nearness to the last source */
    M5_CLASS_NGRAM_SHORT, /* 3 to 5 tokens match */
    M5_CLASS_NGRAM_MID,   /* 6 to 11 */
    M5_CLASS_NGRAM_LONG,  /* 12 and more */
    M5_CLASS_MTP,
    M5_CLASS_MODEL,
    M5_CLASS_EXIT,
    M5_CLASS_SKIP,
    M5_CLASS_SCRIPT,
    M5_SPEC_CLASSES
} m5_spec_class;

typedef struct m5_spec_count {
    float right, wrong;
} m5_spec_count;

/* Of one slot. */
typedef struct m5_spec_seq {
    m5_spec_params params; /* resolved against the engine's; sources 0 = never drafts */
    int n_prompt;
    m5_ngram ngram;
    bool ngram_ready;
    m5_spec_count seen[M5_SPEC_CLASSES];
    m5_spec_count sure[M5_SELF_VARIANTS]; /* guesses that were likely enough, chains that stopped */
    double ledger_us; /* time saved by drafts, minus what they took */
    double plain_us;  /* time that plain decoding would have taken so far */
    /* the draft that is being checked */
    int32_t draft[M5_SPEC_MAX_K];
    int n_draft, n_right;
    m5_spec_source source;
    m5_spec_class cls;
    double draft_us; /* what making it took */
    /* next-token head: final hidden states of the last tokens, wanted when its slots are filled */
    float *hidden; /* [2 * M5_SPEC_HIDDEN, n_embd] of tokens hidden_from .. hidden_from + n_hidden */
    int hidden_from, n_hidden;
    m5_draft_seq model; /* the draft model's sequence */
    int mtp_filled; /* slots before this one hold pairs made from the model's hidden states, as far as they were kept */
} m5_spec_seq;
enum { M5_SPEC_HIDDEN = 32 };

/* A sequence that decodes in the coming step. */
typedef struct m5_spec_ask {
    m5_spec_seq *q;
    m5_seq *seq;
    const int32_t *ids;
    int n_ids;
    int n_rows; /* its rows without drafts */
    int room;   /* drafts that can be of use, <= 0 = none */
} m5_spec_ask;

typedef struct m5_spec {
    unsigned sources;    /* that exist here */
    unsigned named;      /* of them, those that the options name */
    unsigned automatic;  /* of them, those that M5_SPEC_AUTO means */
    int max_k, max_rows; /* drafted tokens of one sequence, of all together */
    int max_hold;        /* rows of one sequence that can be taken back: drafts and the certain ones before them */
    bool fixed;
    m5_model *model;
    int n_parallel;
    int n_vocab, n_embd;
    m5_spec_cost cost;
    double mtp_us;                /* a token of the next-token head, over the time of a plain step; running mean */
    m5_mtp_run *mtp_runs;         /* [n_parallel] */
    const m5_spec_ask **mtp_asks; /* [n_parallel] whose drafts they are */
    m5_draft_model *draft;        /* NULL = none */
    double model_us;              /* a token of the draft model, as mtp_us */
    m5_draft_ask *model_asks;     /* [n_parallel] */
    m5_spec_seq **model_seqs;     /* [n_parallel] */
    int32_t *mtp_drafts;          /* [n_parallel, max_k] */
    m5_self_draft self[M5_SELF_VARIANTS];
    double self_share[M5_SELF_VARIANTS];        /* a guess over a forward of as many rows; running mean */
    m5_self_ask *self_asks[M5_SELF_VARIANTS];   /* [n_parallel] */
    m5_spec_seq **self_seqs[M5_SELF_VARIANTS];  /* [n_parallel] whose drafts they are */
    m5_run *self_runs;                          /* [n_parallel] */
    int32_t *self_ids;                          /* [M5_SELF_VARIANTS, n_parallel, max_hold] */
    uint64_t n_step;
    m5_spec_count seen[M5_SPEC_CLASSES]; /* over requests, fading */
    m5_spec_count sure[M5_SELF_VARIANTS];
} m5_spec;

/* What the options allow, before the model is opened; then what the model has, self [M5_SELF_VARIANTS]. Errors: M5_ERR_NOMEM. */
void m5_spec_open(m5_spec *sp, const m5_spec_params *p, int n_parallel);
int m5_spec_attach(m5_spec *sp, m5_model *m, m5_draft_model *draft, const m5_self_draft *self, int n_parallel, m5_error *err);
void m5_spec_close(m5_spec *sp); /* not the draft model */

/* A request with the text ids[0..n_ids) enters or leaves a slot; cap_ids: tokens its text may have. Memory that is missing costs drafts, not the
 * request. */
void m5_spec_begin(const m5_spec *sp, m5_spec_seq *q, const m5_spec_params *p, const int32_t *ids, int n_ids, int n_prompt, int cap_ids);
void m5_spec_end(m5_spec_seq *q);
void m5_spec_free(m5_spec_seq *q);

/* Fills q->draft and q->n_draft of each. us_beside, us_per_row: what prompts in the same step take, and a row there; 0 when there are none. logits:
 * scratch [n, n_vocab]. */
void m5_spec_propose(m5_spec *sp, const m5_spec_ask *asks, int n, double us_beside, double us_per_row, float *logits);

/* Rows of a forward that stand: tokens pos .. pos + n of a sequence whose text is ids[0..n_ids), with their hidden states (NULL when the model keeps
 * none). A prompt's rows fill the next-token head's slots at once, before its pages are shared. */
void m5_spec_saw(m5_spec *sp, m5_spec_seq *q, m5_seq *seq, const int32_t *ids, int n_ids, int pos, int n, const float *hidden, bool prompt);

/* After the step: n_right of q->n_draft were right. Then once for the step: its n_rows rows took us; beside: prompts were in it. */
void m5_spec_checked(m5_spec *sp, m5_spec_seq *q, int n_right);
void m5_spec_stepped(m5_spec *sp, const m5_spec_ask *asks, int n, int n_rows, double us, bool beside);

#endif
