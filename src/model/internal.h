/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of m5_model, shared by model.c, state.c, mix_attn.c, mix_gdn.c, ffn.c and mtp.c; nobody else includes it. */
#ifndef M5_MODEL_INTERNAL_H
#define M5_MODEL_INTERNAL_H

#include "model/model.h"
#include "model/mtp.h"
#include "model/state.h"

/* Where a layer's share of a sequence's memory lies. */
typedef struct m5_layer_mem {
    size_t k_offset, v_offset; /* bytes in a page (the donor's, when the layer reads another's) */
    size_t state, tail;        /* floats in a recurrent row */
    size_t ring;               /* floats in a ring */
    float *conv_t;             /* [conv, channels], transposed weights */
} m5_layer_mem;

/* Pages, recurrent rows and rings: blocks of one size each, kept for reuse when freed; live and kept memory together stays within the budget. Pages
 * are cut from slabs, so that huge memory pages hold them. */
typedef enum m5_block_kind { M5_BLOCK_PAGE, M5_BLOCK_ROW, M5_BLOCK_RING, M5_BLOCK_KINDS } m5_block_kind;
typedef struct m5_block_pool {
    size_t bytes[M5_BLOCK_KINDS]; /* of one block */
    void *kept[M5_BLOCK_KINDS];   /* freed rows and rings, through the first pointer of a block */
    int64_t n_live[M5_BLOCK_KINDS];
    struct m5_page_slab *slabs;
    uint64_t budget_bytes, used_bytes; /* used: live + kept */
} m5_block_pool;

struct m5_seq {
    m5_model *m;
    int pos;       /* committed tokens */
    int n_held;    /* rows of the last forward with hold, behind pos */
    int n_pending; /* of the pos tokens, those still in the ring and not in the row */
    m5_layer_set settled; /* layers whose part of the row has the pending tokens already, because a guess passed there */
    int cap_page, n_page;
    uint8_t **pages; /* data pointers; the count of owners lies in front (state.c) */
    float *row;      /* recurrent row or NULL */
    float *ring;     /* pending inputs, made when first held */
    uint64_t stamp;  /* last forward, to refuse a sequence twice in one batch */
};

/* One forward's rows. */
typedef struct m5_step {
    int n_tok, n_run;
    const m5_run *runs; /* NULL in the next-token head */
    const m5_layer_set *layers;
    const m5_stream *stream; /* NULL = the whole forward */
    bool guess; /* all rows are held, nothing can be committed */
    const int32_t *pos, *seq_of;
    const m5_kv_view *views; /* [n_run] */
} m5_step;

struct m5_model {
    m5_weights *w;
    const m5_config *cfg;
    m5_cpu *cpu;
    m5_kv_type kv_type;
    int page_tok, max_tok, max_draft;
    bool has_gdn, mtp;
    m5_layer_set layers; /* that forwards compute */
    m5_layer_mem *mem; /* [n_layer + 1], the last for the next-token head */
    m5_block_pool pool;
    uint64_t n_forward;
    uint64_t n_copy; /* of pages and rows */
    int n_seq;

    /* Step scratch, sized at open for max_tok rows. */
    void *scratch;
    float *x, *h, *y;  /* residual stream, normed input, sublayer output: [max_tok, n_embd] */
    float *hidden;     /* rows with logits after the final norm, [max_tok, n_embd] */
    float *hidden_all; /* all rows, only with mtp */
    float *ple;        /* [n_layer, max_tok, n_ple] */
    float *work;       /* of one sublayer */
    size_t cap_work;
    int32_t *ids, *pos, *seq_of;
    m5_kv_view *views;
    m5_gdn_run *gdn_runs;
    m5_mtp_run *mtp_runs;
};

static inline int m5_gdn_channels(const m5_config *c)
{
    return 2 * c->gdn_n_k_head * c->gdn_k_dim + c->gdn_n_v_head * c->gdn_v_dim;
}

/* Sublayers: h is the normed input (x the residual stream, where a family's router reads it), y [n_tok, n_embd] the output before any post norm.
 * *_work: floats of m->work that n_tok rows need. */
size_t m5_mix_attn_work(const m5_model *m, const m5_layer_config *lc, int n_tok);
void m5_mix_attn(m5_model *m, const m5_step *st, const m5_layer_config *lc, const m5_layer_weights *lw, const m5_layer_mem *mem, const float *h,
                 float *y);
/* Only K and V of the rows, for a layer whose output nobody reads. */
void m5_mix_attn_fill(m5_model *m, const m5_step *st, const m5_layer_config *lc, const m5_layer_weights *lw, const m5_layer_mem *mem, const float *h);
size_t m5_mix_gdn_work(const m5_model *m, int n_tok);
void m5_mix_gdn(m5_model *m, const m5_step *st, int layer, const float *h, float *y);
/* Applies a sequence's accepted rows to the recurrent state of one layer. */
void m5_mix_gdn_settle(m5_model *m, m5_seq *s, int layer);
size_t m5_ffn_work(const m5_model *m, const m5_layer_config *lc, int n_tok);
void m5_ffn(m5_model *m, const m5_layer_config *lc, const m5_layer_weights *lw, int n_tok, const float *h, const float *x, float *y);
/* Per-layer embeddings (gemma 4): the table for all layers from ids and the scaled embeddings, and one layer's contribution added to x. */
size_t m5_ple_work(const m5_model *m, int n_tok);
void m5_ple_open(m5_model *m, int n_tok, const int32_t *ids);
void m5_ple_add(m5_model *m, int layer, int n_tok);

/* state.c: sizes and offsets; then per forward: room for tokens [from, to) of s, pages not shared with anybody; on error s is as it was but
 * may own more pages, which m5_seq_trim gives back. */
int m5_state_open(m5_model *m, uint64_t budget_bytes, m5_error *err);
void m5_state_close(m5_model *m);
int m5_seq_reserve(m5_seq *s, int from, int to, bool ring, m5_error *err);
void m5_seq_trim(m5_seq *s);

#endif
