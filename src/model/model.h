/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass over a ragged batch of sequences, and the memory of those sequences (KV pages, recurrent rows, pending ring).
 * Room: model/model.c (open, forward driver), model/mix_attn.c, model/mix_gdn.c, model/ffn.c, model/state.c. Thread: the engine thread.
 *
 * Bits: logits of a position depend only on the model file, the CPU level, act_f32, the KV type and the tokens before it; not on chunking,
 * batch companions, threads or hold. */
#ifndef M5_MODEL_MODEL_H
#define M5_MODEL_MODEL_H

#include "backend/cpu.h"
#include "model/weights.h"

typedef struct m5_model m5_model;
typedef struct m5_seq m5_seq;

typedef struct m5_model_options {
    m5_cpu_options cpu;
    m5_kv_type kv_type;     /* default M5_KV_I16; --f32 uses M5_KV_F32 */
    int page_tok;           /* 0 = 64 */
    int max_batch_tok;      /* rows in one forward; 0 = 512 */
    int max_draft;          /* rows of a run with hold; 0 = 16, at most 32 */
    uint64_t state_bytes;   /* budget for pages and rows; 0 = no limit but memory; m5_model_set_state_budget may change it */
    bool no_repack;
    bool mtp;               /* keep the next-token head's K and V beside the model's: model/mtp.h; ignored when the file has no such head */
    void (*progress)(void *ctx, double fraction, const char *what); /* may be NULL */
    void *progress_ctx;
} m5_model_options;

int m5_model_open(m5_model **out, const char *path, const m5_model_options *opt, m5_error *err);
void m5_model_close(m5_model *m); /* every sequence must be freed before */
const m5_config *m5_model_config(const m5_model *m);
const m5_weights *m5_model_weights(const m5_model *m);
m5_cpu *m5_model_cpu(m5_model *m);
/* For who plans memory once the sizes of the model are known. 0 = no limit but memory. */
void m5_model_set_state_budget(m5_model *m, uint64_t bytes);

/* A set of layers, for forwards that leave some out: the residual stream passes those unchanged. */
enum { M5_LAYER_WORDS = (M5_MAX_LAYERS + 63) / 64 };
typedef struct m5_layer_set {
    uint64_t bits[M5_LAYER_WORDS];
} m5_layer_set;
static inline bool m5_layer_in(const m5_layer_set *s, int layer)
{
    return s->bits[layer / 64] >> (layer % 64) & 1;
}
static inline void m5_layer_put(m5_layer_set *s, int layer, bool in)
{
    const uint64_t bit = (uint64_t)1 << (layer % 64);
    s->bits[layer / 64] = in ? s->bits[layer / 64] | bit : s->bits[layer / 64] & ~bit;
}
m5_layer_set m5_layers_first(int n); /* layers 0 .. n - 1 */
/* Whether a forward over these layers makes sense: at least one, all of them known, and for each the layer whose keys and values it reads. Errors:
 * M5_ERR_ARG with the layer. */
int m5_model_check_layers(const m5_model *m, const m5_layer_set *set, m5_error *err);
/* From now on every forward computes these layers alone (NULL = all): another model, whose state is worthless to the whole one. Only while there is
 * no sequence. Errors: as m5_model_check_layers. */
int m5_model_use_layers(m5_model *m, const m5_layer_set *set, m5_error *err);
const m5_layer_set *m5_model_layers(const m5_model *m);

/* A sequence: position, page table, recurrent row. Errors: M5_ERR_NOMEM when the state budget is used up. */
int m5_seq_new(m5_seq **out, m5_model *m, m5_error *err);
void m5_seq_free(m5_seq *s);
int m5_seq_pos(const m5_seq *s);          /* committed tokens */
/* Empties the sequence. */
void m5_seq_reset(m5_seq *s);
/* After a forward with hold: n of the held rows (0..n_held) are accepted; the others are forgotten. */
void m5_seq_commit(m5_seq *s, int n);
/* Copies the whole state (pages shared copy-on-write, recurrent row copied). */
int m5_seq_fork(m5_seq **out, const m5_seq *s, m5_error *err);

typedef struct m5_run {
    m5_seq *seq;
    const int32_t *ids;
    int n_tok;
    int n_out;       /* logits for the last n_out rows of this run (0..n_tok) */
    bool hold;       /* rows stay pending until m5_seq_commit */
} m5_run;

/* Appends the runs' tokens to their sequences and computes logits [sum n_out, n_vocab], run by run; logits NULL = hidden states only. Every run
 * has at least one token and a sequence of its own; sum n_tok <= max_batch_tok. Token ids must be in [0, n_vocab). Rows still held from before are
 * forgotten.
 * Errors: M5_ERR_ARG, M5_ERR_NOMEM (state budget; no sequence has changed then). */
int m5_model_forward(m5_model *m, const m5_run *runs, int n_run, float *logits, m5_error *err);

/* A guess from some of the layers: logits of ids below n_guess for the last n_out rows of each run, into rows of n_vocab. The sequences stay as they
 * were: the rows count as held, are forgotten by the next call and cannot be committed; a forward after it gives the bits it would have given
 * without. n_tok of a run is at most max_draft; `hold` is ignored. Errors: as m5_model_forward, and M5_ERR_ARG for a set that is no part of
 * m5_model_layers. */
int m5_model_guess(m5_model *m, const m5_run *runs, int n_run, const m5_layer_set *set, int n_guess, float *logits, m5_error *err);

/* The residual stream between layers, for who computes many models that differ in their last layers alone. */
typedef struct m5_stream {
    int first;         /* layers below are not computed; 0 = start with the ids */
    const float *from; /* [sum n_tok, n_embd] stream in front of layer first; may lie in kept */
    float *kept;       /* NULL, or gets the stream in front of every layer l >= first that is a multiple of every: [sum n_tok, n_embd] at */
    int every;         /* kept + l / every * step */
    size_t step;       /* floats */
} m5_stream;
/* The last layer, at most `at`, that a forward over these layers can begin with: no layer from there on reads the keys of one before it. */
int m5_model_restart(const m5_model *m, const m5_layer_set *set, int at);
/* m5_model_forward from layer s->first on, logits of ids below n_ids alone, in rows of n_vocab. The same bits as the whole forward, given its stream.
 * The state of lower layers is not written: such a sequence serves further calls with the same first (or a later one) only. `hold` is refused. Errors:
 * as m5_model_forward, and M5_ERR_ARG for a first that m5_model_restart would move. */
int m5_model_forward_from(m5_model *m, const m5_run *runs, int n_run, const m5_stream *s, int n_ids, float *logits, m5_error *err);
/* m5_model_guess likewise. An earlier guess at the same rows has been through the layers below. */
int m5_model_guess_from(m5_model *m, const m5_run *runs, int n_run, const m5_layer_set *set, const m5_stream *s, int n_guess, float *logits, m5_error *err);

/* Hidden state after the final norm of the rows of the last forward that had logits, [sum n_out, n_embd]. Borrowed until the next forward. */
const float *m5_model_hidden(const m5_model *m);
/* The same for all rows, [sum n_tok, n_embd], when opened with mtp, else NULL. */
const float *m5_model_hidden_all(const m5_model *m);

/* Bytes: one token of KV over all layers, one recurrent row. */
size_t m5_model_kv_bytes_per_tok(const m5_model *m);
size_t m5_model_row_bytes(const m5_model *m);

#endif
