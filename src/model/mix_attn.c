/* SPDX-License-Identifier: Apache-2.0 */
/* Softmax attention of every family by traits. Room: model/mix_attn.c. Formulas: docs/models/<family>.md; the arithmetic is in
 * backend/cpu_mix_attn.c.
 *
 *   q = Wq h [+ b]   (attn_gate: per head query then gate)   k = Wk h   v = Wv h, or the raw k
 *   q, k: norm per head over head_dim, rotation;  v: weightless norm (gemma4);  q *= position scale (ministral3)
 *   o = attention(q, K, V) [* sigmoid(gate)];  y = Wo o */
#include <math.h>
#include <string.h>

#include "model/internal.h"

typedef struct attn_buf {
    float *q_raw, *q, *k, *v, *o;
} attn_buf;

static size_t layout(const m5_model *m, const m5_layer_config *lc, int n_tok, attn_buf *b, float *base)
{
    const size_t nq = (size_t)n_tok * (size_t)lc->n_head * (size_t)lc->head_dim, nkv = (size_t)n_tok * (size_t)lc->n_head_kv * (size_t)lc->head_dim;
    float *p = base;
    const size_t n_raw = m->cfg->attn_gate ? 2 * nq : 0;
    if (base) {
        b->q_raw = p;
        b->q = b->q_raw + n_raw;
        b->k = b->q + nq;
        b->v = b->k + nkv;
        b->o = b->v + nkv;
    }
    return n_raw + 2 * nq + 2 * nkv;
}

size_t m5_mix_attn_work(const m5_model *m, const m5_layer_config *lc, int n_tok)
{
    return layout(m, lc, n_tok, NULL, NULL);
}

/* The scores of far positions are sharpened: q *= 1 + beta ln(1 + floor(pos / len)). */
static void scale_by_position(m5_model *m, const m5_step *st, float *q, int n)
{
    for (int t = 0; t < st->n_tok; t++) {
        const int turn = st->pos[t] / m->cfg->q_pos_scale_len;
        if (turn > 0) m5_cpu_scale(m->cpu, q + (size_t)t * (size_t)n, (float)(1.0 + (double)m->cfg->q_pos_scale_beta * log(1.0 + turn)), 1, n);
    }
}

static void rotate(m5_model *m, const m5_step *st, const m5_layer_config *lc, float *x, int n_head)
{
    if (lc->rope < 0) return;
    const m5_rope *r = &m->cfg->ropes[lc->rope];
    m5_cpu_rope(m->cpu, x, st->n_tok, n_head, lc->head_dim, st->pos, r->inv_freq, r->n_rot, r->pairs, r->attn_factor);
}

static void project(m5_model *m, const m5_step *st, const m5_layer_config *lc, const m5_layer_weights *lw, const attn_buf *b, bool queries,
                    bool own_kv, const float *h)
{
    const int64_t nq = (int64_t)lc->n_head * lc->head_dim, nkv = (int64_t)lc->n_head_kv * lc->head_dim;
    m5_linear jobs[3];
    int n = 0;
    if (queries) jobs[n++] = m->cfg->attn_gate ? (m5_linear){&lw->q, lw->q_bias, b->q_raw, 2 * nq} : (m5_linear){&lw->q, lw->q_bias, b->q, nq};
    if (own_kv) {
        jobs[n++] = (m5_linear){&lw->k, lw->k_bias, b->k, nkv};
        if (!lc->k_is_v) jobs[n++] = (m5_linear){&lw->v, lw->v_bias, b->v, nkv};
    }
    m5_cpu_linear(m->cpu, jobs, n, h, m->cfg->n_embd, st->n_tok);
}

static void make_queries(m5_model *m, const m5_step *st, const m5_layer_config *lc, const m5_layer_weights *lw, const attn_buf *b)
{
    const m5_config *c = m->cfg;
    const int hd = lc->head_dim;
    const int64_t n_row = (int64_t)st->n_tok * lc->n_head;
    const float *src = c->attn_gate ? b->q_raw : b->q;
    const int64_t ld = c->attn_gate ? 2 * hd : hd;
    if (lw->q_norm) {
        m5_cpu_rmsnorm(m->cpu, b->q, hd, src, ld, lw->q_norm, n_row, hd, c->rms_eps);
    } else if (c->attn_gate) {
        for (int64_t r = 0; r < n_row; r++) memcpy(b->q + r * hd, src + r * ld, (size_t)hd * sizeof(float));
    }
    rotate(m, st, lc, b->q, lc->n_head);
    if (c->q_pos_scale_beta != 0) scale_by_position(m, st, b->q, lc->n_head * hd);
}

static void make_keys_values(m5_model *m, const m5_step *st, const m5_layer_config *lc, const m5_layer_weights *lw, const attn_buf *b)
{
    const m5_config *c = m->cfg;
    const int hd = lc->head_dim;
    const int64_t n_row = (int64_t)st->n_tok * lc->n_head_kv;
    if (lc->k_is_v) memcpy(b->v, b->k, (size_t)n_row * (size_t)hd * sizeof(float));
    if (c->v_norm) m5_cpu_rmsnorm(m->cpu, b->v, hd, b->v, hd, NULL, n_row, hd, c->rms_eps);
    if (lw->k_norm) m5_cpu_rmsnorm(m->cpu, b->k, hd, b->k, hd, lw->k_norm, n_row, hd, c->rms_eps);
    rotate(m, st, lc, b->k, lc->n_head_kv);
}

static m5_attn_args attn_args(const m5_model *m, const m5_step *st, const m5_layer_config *lc, const m5_layer_mem *mem)
{
    const m5_config *c = m->cfg;
    return (m5_attn_args){.n_head = lc->n_head,
                          .n_head_kv = lc->n_head_kv,
                          .head_dim = lc->head_dim,
                          .page_tok = m->page_tok,
                          .kv_type = m->kv_type,
                          .k_offset = mem->k_offset,
                          .v_offset = mem->v_offset,
                          .window = lc->window,
                          .scale = c->attn_scale > 0 ? c->attn_scale : 1.0f / sqrtf((float)lc->head_dim),
                          .softcap = c->attn_softcap,
                          .seqs = st->views,
                          .seq_of = st->seq_of,
                          .pos = st->pos};
}

void m5_mix_attn_fill(m5_model *m, const m5_step *st, const m5_layer_config *lc, const m5_layer_weights *lw, const m5_layer_mem *mem, const float *h)
{
    attn_buf b = {0};
    M5_ASSERT(layout(m, lc, st->n_tok, NULL, NULL) <= m->cap_work);
    layout(m, lc, st->n_tok, &b, m->work);
    m5_attn_args a = attn_args(m, st, lc, mem);
    project(m, st, lc, lw, &b, false, true, h);
    make_keys_values(m, st, lc, lw, &b);
    m5_cpu_kv_store(m->cpu, &a, b.k, b.v, st->n_tok);
}

void m5_mix_attn(m5_model *m, const m5_step *st, const m5_layer_config *lc, const m5_layer_weights *lw, const m5_layer_mem *mem, const float *h,
                 float *y)
{
    const m5_config *c = m->cfg;
    const int hd = lc->head_dim;
    const int64_t nq = (int64_t)lc->n_head * hd;
    const bool own_kv = lc == &c->mtp_layer || lc->kv_donor == (int)(lc - c->layers);
    attn_buf b = {0};
    M5_ASSERT(layout(m, lc, st->n_tok, NULL, NULL) <= m->cap_work);
    layout(m, lc, st->n_tok, &b, m->work);
    project(m, st, lc, lw, &b, true, own_kv, h);
    make_queries(m, st, lc, lw, &b);
    m5_attn_args a = attn_args(m, st, lc, mem);
    if (own_kv) {
        make_keys_values(m, st, lc, lw, &b);
        m5_cpu_kv_store(m->cpu, &a, b.k, b.v, st->n_tok);
    }
    m5_cpu_attention(m->cpu, b.o, b.q, &a, st->n_tok);
    if (c->attn_gate) m5_cpu_gate(m->cpu, b.o, hd, b.q_raw + hd, 2 * hd, (int64_t)st->n_tok * lc->n_head, hd);
    m5_cpu_linear(m->cpu, &(m5_linear){&lw->o, lw->o_bias, y, c->n_embd}, 1, b.o, nq, st->n_tok);
}
