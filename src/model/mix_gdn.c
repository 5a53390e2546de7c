/* SPDX-License-Identifier: Apache-2.0 */
/* Gated delta net layers: projections around the backend's operator, and where each sequence's state, tail and ring lie. Room: model/mix_gdn.c. */
#include "model/internal.h"

typedef struct gdn_buf {
    float *qkv, *z, *b, *a, *o;
} gdn_buf;

static size_t layout(const m5_model *m, int n_tok, gdn_buf *b, float *base)
{
    const m5_config *c = m->cfg;
    const size_t t = (size_t)n_tok, channels = (size_t)m5_gdn_channels(c), n_v = (size_t)c->gdn_n_v_head, values = n_v * (size_t)c->gdn_v_dim;
    if (base) {
        b->qkv = base;
        b->z = b->qkv + t * channels;
        b->o = b->z + t * values;
        b->b = b->o + t * values;
        b->a = b->b + t * n_v;
    }
    return t * (channels + 2 * values + 2 * n_v);
}

size_t m5_mix_gdn_work(const m5_model *m, int n_tok)
{
    return m->has_gdn ? layout(m, n_tok, NULL, NULL) : 0;
}

static m5_gdn_args gdn_args(const m5_model *m, int layer, const m5_gdn_run *runs, int n_run)
{
    const m5_config *c = m->cfg;
    const m5_layer_weights *lw = &m->w->layers[layer];
    return (m5_gdn_args){.n_k_head = c->gdn_n_k_head,
                         .n_v_head = c->gdn_n_v_head,
                         .k_dim = c->gdn_k_dim,
                         .v_dim = c->gdn_v_dim,
                         .conv = c->gdn_conv,
                         .tiled = c->gdn_tiled,
                         .eps = c->rms_eps,
                         .conv_w = m->mem[layer].conv_t,
                         .a_neg = lw->gdn_a_neg,
                         .dt_bias = lw->gdn_dt_bias,
                         .norm = lw->gdn_norm,
                         .runs = runs,
                         .n_run = n_run};
}

static m5_gdn_run gdn_run(const m5_model *m, const m5_seq *s, int layer)
{
    const m5_layer_mem *mem = &m->mem[layer];
    return (m5_gdn_run){.state = s->row + mem->state,
                        .conv_tail = s->row + mem->tail,
                        .ring = s->ring ? s->ring + mem->ring : NULL,
                        .n_pending = m5_layer_in(&s->settled, layer) ? 0 : s->n_pending};
}

void m5_mix_gdn(m5_model *m, const m5_step *st, int layer, const float *h, float *y)
{
    const m5_config *c = m->cfg;
    const m5_layer_weights *lw = &m->w->layers[layer];
    const int64_t channels = m5_gdn_channels(c), n_v = c->gdn_n_v_head, values = n_v * c->gdn_v_dim;
    gdn_buf b = {0};
    M5_ASSERT(layout(m, st->n_tok, NULL, NULL) <= m->cap_work);
    layout(m, st->n_tok, &b, m->work);
    const m5_linear in[4] = {
        {&lw->gdn_qkv, NULL, b.qkv, channels}, {&lw->gdn_z, NULL, b.z, values}, {&lw->gdn_b, NULL, b.b, n_v}, {&lw->gdn_a, NULL, b.a, n_v}};
    m5_cpu_linear(m->cpu, in, 4, h, c->n_embd, st->n_tok);
    for (int i = 0, row = 0; i < st->n_run; row += st->runs[i++].n_tok) {
        m->gdn_runs[i] = gdn_run(m, st->runs[i].seq, layer);
        m->gdn_runs[i].row0 = row;
        m->gdn_runs[i].n_row = st->runs[i].n_tok;
        m->gdn_runs[i].hold = st->runs[i].hold || st->guess;
    }
    m5_gdn_args g = gdn_args(m, layer, m->gdn_runs, st->n_run);
    m5_cpu_gdn(m->cpu, b.o, b.qkv, b.z, b.b, b.a, &g, st->n_tok);
    m5_cpu_linear(m->cpu, &(m5_linear){&lw->gdn_out, NULL, y, c->n_embd}, 1, b.o, values, st->n_tok);
}

void m5_mix_gdn_settle(m5_model *m, m5_seq *s, int layer)
{
    m5_gdn_run r = gdn_run(m, s, layer);
    m5_gdn_args g = gdn_args(m, layer, &r, 1);
    m5_cpu_gdn(m->cpu, NULL, NULL, NULL, NULL, NULL, &g, 0);
}
