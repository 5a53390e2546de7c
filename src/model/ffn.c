/* SPDX-License-Identifier: Apache-2.0 */
/* Feed-forward halves: gated dense, mixture of experts with a shared expert, gemma 4's dense plus experts, and its per-layer embeddings.
 * Room: model/ffn.c. Formulas: docs/models/<family>.md. */
#include <math.h>
#include <string.h>

#include "base/task.h"
#include "model/internal.h"

typedef struct ffn_buf {
    float *gate, *up;    /* [n_tok, widest of dense and shared] */
    float *logits, *wts; /* [n_tok, n_expert], [n_tok, n_expert_used] */
    float *shared, *sel; /* [n_tok, n_embd], [n_tok] */
    float *h2, *y2;      /* gemma4: [n_tok, n_embd] each */
    int32_t *ids;        /* [n_tok, n_expert_used] */
} ffn_buf;

static size_t layout(const m5_model *m, const m5_layer_config *lc, int n_tok, ffn_buf *b, float *base)
{
    const m5_config *c = m->cfg;
    const bool moe = lc->ffn != M5_FFN_DENSE, both = lc->ffn == M5_FFN_DENSE_AND_MOE;
    const size_t t = (size_t)n_tok, embd = (size_t)c->n_embd;
    size_t width = lc->ffn == M5_FFN_MOE ? 0 : (size_t)lc->n_ffn;
    if (moe && (size_t)c->n_ffn_shared > width) width = (size_t)c->n_ffn_shared;
    const size_t n[8] = {t * width,
                         t * width,
                         moe ? t * (size_t)c->n_expert : 0,
                         moe ? t * (size_t)c->n_expert_used : 0,
                         moe && c->n_ffn_shared ? t * embd : 0,
                         moe && c->n_ffn_shared ? t : 0,
                         both ? t * embd : 0,
                         both ? t * embd : 0};
    size_t sum = 0;
    float **p[8] = {&b->gate, &b->up, &b->logits, &b->wts, &b->shared, &b->sel, &b->h2, &b->y2};
    for (int i = 0; i < 8; i++) {
        if (base) *p[i] = base + sum;
        sum += n[i];
    }
    if (base) b->ids = (int32_t *)(void *)(base + sum);
    return sum + n[3];
}

size_t m5_ffn_work(const m5_model *m, const m5_layer_config *lc, int n_tok)
{
    ffn_buf b = {0};
    return layout(m, lc, n_tok, &b, NULL);
}

static int act_of(const m5_model *m)
{
    return m->cfg->act == M5_ACT_SILU ? 0 : 1;
}

static void gated(m5_model *m, const m5_matrix *gate, const float *gate_bias, const m5_matrix *up, const float *up_bias, const m5_matrix *down,
                  const float *down_bias, int n, const ffn_buf *b, int n_tok, const float *h, float *y)
{
    const m5_linear in[2] = {{gate, gate_bias, b->gate, n}, {up, up_bias, b->up, n}};
    m5_cpu_linear(m->cpu, in, 2, h, m->cfg->n_embd, n_tok);
    m5_cpu_glu(m->cpu, b->gate, b->gate, b->up, n_tok, n, act_of(m));
    m5_cpu_linear(m->cpu, &(m5_linear){down, down_bias, y, m->cfg->n_embd}, 1, b->gate, n, n_tok);
}

static void dense(m5_model *m, const m5_layer_config *lc, const m5_layer_weights *lw, const ffn_buf *b, int n_tok, const float *h, float *y)
{
    gated(m, &lw->gate, lw->gate_bias, &lw->up, lw->up_bias, &lw->down, lw->down_bias, lc->n_ffn, b, n_tok, h, y);
}

/* y = sum over the chosen experts of weight * expert(h); router_in is what the router reads. */
static void experts(m5_model *m, const m5_layer_weights *lw, const ffn_buf *b, int n_tok, const float *router_in, const float *h, float *y)
{
    const m5_config *c = m->cfg;
    const size_t n_chosen = (size_t)n_tok * (size_t)c->n_expert_used;
    m5_cpu_linear(m->cpu, &(m5_linear){&lw->router, NULL, b->logits, c->n_expert}, 1, router_in, c->n_embd, n_tok);
    m5_cpu_router(m->cpu, b->ids, b->wts, b->logits, n_tok, c->n_expert, c->n_expert_used, c->expert_renorm);
    if (lw->expert_scale)
        for (size_t i = 0; i < n_chosen; i++) b->wts[i] *= lw->expert_scale[b->ids[i]];
    memset(y, 0, (size_t)n_tok * (size_t)c->n_embd * sizeof(float));
    m5_cpu_experts(m->cpu, lw->exp_gate, lw->exp_up, lw->exp_down, act_of(m), h, y, n_tok, b->ids, b->wts, c->n_expert_used);
}

static void moe(m5_model *m, const m5_layer_weights *lw, const ffn_buf *b, int n_tok, const float *h, float *y)
{
    const m5_config *c = m->cfg;
    experts(m, lw, b, n_tok, h, h, y);
    if (c->n_ffn_shared == 0) return;
    gated(m, &lw->shared_gate, NULL, &lw->shared_up, NULL, &lw->shared_down, NULL, c->n_ffn_shared, b, n_tok, h, b->shared);
    if (m5_matrix_present(&lw->shared_router)) {
        m5_cpu_linear(m->cpu, &(m5_linear){&lw->shared_router, NULL, b->sel, 1}, 1, h, c->n_embd, n_tok);
        m5_cpu_gate_rows(m->cpu, b->shared, b->sel, n_tok, c->n_embd);
    }
    m5_cpu_add(m->cpu, y, b->shared, n_tok, c->n_embd);
}

/* gemma 4: h1 = post1(mlp(h)), h2 = post2(experts(pre2(x))) routed by the weightless norm of x times router_scale; y = h1 + h2. */
static void dense_and_moe(m5_model *m, const m5_layer_config *lc, const m5_layer_weights *lw, const ffn_buf *b, int n_tok, const float *h,
                          const float *x, float *y)
{
    const int n = m->cfg->n_embd;
    const float eps = m->cfg->rms_eps;
    dense(m, lc, lw, b, n_tok, h, y);
    m5_cpu_rmsnorm(m->cpu, y, n, y, n, lw->ffn_post_norm_1, n_tok, n, eps);
    float *router_in = b->y2; /* read before the experts write there */
    m5_cpu_rmsnorm(m->cpu, router_in, n, x, n, lw->router_scale, n_tok, n, eps);
    m5_cpu_rmsnorm(m->cpu, b->h2, n, x, n, lw->ffn_pre_norm_2, n_tok, n, eps);
    experts(m, lw, b, n_tok, router_in, b->h2, b->y2);
    m5_cpu_rmsnorm(m->cpu, b->y2, n, b->y2, n, lw->ffn_post_norm_2, n_tok, n, eps);
    m5_cpu_add(m->cpu, y, b->y2, n_tok, n);
}

void m5_ffn(m5_model *m, const m5_layer_config *lc, const m5_layer_weights *lw, int n_tok, const float *h, const float *x, float *y)
{
    ffn_buf b = {0};
    M5_ASSERT(layout(m, lc, n_tok, &b, NULL) <= m->cap_work);
    layout(m, lc, n_tok, &b, m->work);
    switch (lc->ffn) {
    case M5_FFN_DENSE: dense(m, lc, lw, &b, n_tok, h, y); return;
    case M5_FFN_MOE: moe(m, lw, &b, n_tok, h, y); return;
    case M5_FFN_DENSE_AND_MOE: dense_and_moe(m, lc, lw, &b, n_tok, h, x, y); return;
    }
}

/* ---- per-layer embeddings ---- */

size_t m5_ple_work(const m5_model *m, int n_tok)
{
    return m->cfg->n_ple ? 2 * (size_t)n_tok * (size_t)m->cfg->n_layer * (size_t)m->cfg->n_ple : 0;
}

typedef struct ple_job {
    m5_model *m;
    const int32_t *ids;
    float *a, *b; /* [n_tok, n_layer * n_ple]: looked up, projected */
} ple_job;

/* m->ple[l, t] = (table[id] sqrt(P) + b) / sqrt(2) */
static void ple_rows(void *ctx, int64_t begin, int64_t end, int worker)
{
    const ple_job *j = ctx;
    const m5_config *c = j->m->cfg;
    const int p = c->n_ple, n = c->n_layer * p;
    const float scale = sqrtf((float)p), half = sqrtf(0.5f);
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        float *a = j->a + t * n;
        const float *b = j->b + t * n;
        m5_cpu_row(j->m->cpu, &j->m->w->ple_embd, j->ids[t], a);
        for (int l = 0; l < c->n_layer; l++) {
            float *dst = j->m->ple + ((size_t)l * (size_t)j->m->max_tok + (size_t)t) * (size_t)p;
            for (int i = 0; i < p; i++) dst[i] = (a[l * p + i] * scale + b[l * p + i]) * half;
        }
    }
}

void m5_ple_open(m5_model *m, int n_tok, const int32_t *ids)
{
    const m5_config *c = m->cfg;
    const int n = c->n_layer * c->n_ple;
    ple_job j = {m, ids, m->work, m->work + (size_t)n_tok * (size_t)n};
    m5_cpu_linear(m->cpu, &(m5_linear){&m->w->ple_model_proj, NULL, j.b, n}, 1, m->x, c->n_embd, n_tok);
    m5_cpu_scale(m->cpu, j.b, 1.0f / sqrtf((float)c->n_embd), n_tok, n);
    m5_cpu_rmsnorm(m->cpu, j.b, c->n_ple, j.b, c->n_ple, m->w->ple_proj_norm, (int64_t)n_tok * c->n_layer, c->n_ple, c->rms_eps);
    m5_pool_for(m5_cpu_pool(m->cpu), n_tok, 4, ple_rows, &j);
}

void m5_ple_add(m5_model *m, int layer, int n_tok)
{
    const m5_config *c = m->cfg;
    const m5_layer_weights *lw = &m->w->layers[layer];
    const float *ple = m->ple + (size_t)layer * (size_t)m->max_tok * (size_t)c->n_ple;
    m5_cpu_linear(m->cpu, &(m5_linear){&lw->ple_gate, NULL, m->work, c->n_ple}, 1, m->x, c->n_embd, n_tok);
    m5_cpu_glu(m->cpu, m->work, m->work, ple, n_tok, c->n_ple, 1);
    m5_cpu_linear(m->cpu, &(m5_linear){&lw->ple_proj, NULL, m->y, c->n_embd}, 1, m->work, c->n_ple, n_tok);
    m5_cpu_rmsnorm(m->cpu, m->y, c->n_embd, m->y, c->n_embd, lw->ple_post_norm, n_tok, c->n_embd, c->rms_eps);
    m5_cpu_add(m->cpu, m->x, m->y, n_tok, c->n_embd);
}
