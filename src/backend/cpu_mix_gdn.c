/* SPDX-License-Identifier: Apache-2.0 */
/* Gated delta net over a ragged batch. Room: backend/cpu_mix*.c. Formulas: Gated Delta Networks (Yang et al. 2024), recurrent form, as in the
 * reference implementations of Qwen3.5: conv over time, silu, l2 norm of q and k (eps 1e-6 inside the root), decay e^(a softplus(a_t + dt)), delta
 * rule, RMS norm of the output, gate silu(z).
 *
 * A unit is one key head of one run with the value heads that use it. It walks the run's tokens in chunks: conv and norms of the chunk into worker
 * scratch, then the state column tile by column tile, so that a tile meets all tokens of the chunk in L1. Bytes per run and chunk: the state twice;
 * operations per token: 8 k_dim v_dim a value head. */
#include "backend/cpu_mix.h"

#include <math.h>
#include <string.h>

enum { CHUNK = M5_GDN_MAX_HOLD };

typedef struct gdn_job {
    const m5_mix_kernels *k;
    const m5_gdn_args *g;
    float **work;
    float *out;
    const float *qkv, *z, *b, *a;
    int n_channel, ring;
} gdn_job;

size_t m5_gdn_ring_floats(const m5_gdn_args *a)
{
    return (size_t)(2 * a->n_k_head * a->k_dim + a->n_v_head * a->v_dim) + 2 * (size_t)a->n_v_head;
}

/* The raw conv inputs of stream token i: negative = tail, then the pending ring rows, then the rows of the batch. */
static const float *stream_row(const gdn_job *j, const m5_gdn_run *r, int i)
{
    if (i < 0) return r->conv_tail + (size_t)(j->g->conv - 1 + i) * (size_t)j->n_channel;
    if (i < r->n_pending) return r->ring + (size_t)i * (size_t)j->ring;
    return j->qkv + (size_t)(r->row0 + i - r->n_pending) * (size_t)j->n_channel;
}

static void conv_at(const gdn_job *j, const m5_gdn_run *r, int i, int channel, int n, float *y)
{
    const float *x[M5_GDN_MAX_CONV];
    const int conv = j->g->conv;
    for (int t = 0; t < conv; t++) x[t] = stream_row(j, r, i - conv + 1 + t) + channel;
    j->k->gdn_conv(y, x, j->g->conv_w + channel, j->n_channel, conv, n);
}

/* Decay and write strength of stream token i, value head h. */
static void gates_at(const gdn_job *j, const m5_gdn_run *r, int i, int h, float *decay, float *beta)
{
    const int n_v = j->g->n_v_head;
    float b, a;
    if (i < r->n_pending) {
        const float *p = r->ring + (size_t)i * (size_t)j->ring + j->n_channel;
        b = p[h];
        a = p[n_v + h];
    } else {
        const size_t row = (size_t)(r->row0 + i - r->n_pending) * (size_t)n_v;
        b = j->b[row + (size_t)h];
        a = j->a[row + (size_t)h];
    }
    *decay = (float)m5_mix_exp((double)j->g->a_neg[h] * m5_mix_softplus((double)(a + j->g->dt_bias[h])));
    *beta = (float)(1.0 / (1.0 + m5_mix_exp(-(double)b)));
}

/* Stream tokens [i0, i0 + n) of key head kh. new_rows: outputs are wanted; keep: the state advances. */
static void chunk(const gdn_job *j, const m5_gdn_run *r, int kh, int i0, int n, bool new_rows, bool keep, float *w)
{
    const m5_gdn_args *g = j->g;
    const int dk = g->k_dim, dv = g->v_dim, key_floats = g->n_k_head * dk, group = g->n_v_head / g->n_k_head;
    float *q = w, *k = q + CHUNK * dk, *v = k + CHUNK * dk, *o = v + CHUNK * dv, *kq = o + CHUNK * dv, *decay = kq + CHUNK, *beta = decay + CHUNK;
    const float q_scale = 1.0f / sqrtf((float)dk);
    for (int t = 0; t < n; t++) {
        float *qt = q + (size_t)t * (size_t)dk, *kt = k + (size_t)t * (size_t)dk;
        conv_at(j, r, i0 + t, kh * dk, dk, qt);
        conv_at(j, r, i0 + t, key_floats + kh * dk, dk, kt);
        j->k->gdn_l2norm(qt, dk, 1e-6f, q_scale);
        j->k->gdn_l2norm(kt, dk, 1e-6f, 1.0f);
        kq[t] = j->k->dot(kt, qt, dk);
    }
    for (int s = 0; s < group; s++) {
        const int h = g->tiled ? s * g->n_k_head + kh : kh * group + s;
        for (int t = 0; t < n; t++) {
            conv_at(j, r, i0 + t, 2 * key_floats + h * dv, dv, v + (size_t)t * (size_t)dv);
            gates_at(j, r, i0 + t, h, &decay[t], &beta[t]);
        }
        m5_gdn_steps steps = {r->state + (size_t)h * (size_t)dk * (size_t)dv, dk, dv, n, q, k, v, decay, beta, kq, new_rows ? o : NULL, keep};
        j->k->gdn_steps(&steps);
        if (!new_rows) continue;
        for (int t = 0; t < n; t++) {
            const size_t at = (size_t)(r->row0 + i0 + t - r->n_pending) * (size_t)(g->n_v_head * dv) + (size_t)(h * dv);
            j->k->gdn_out(j->out + at, o + (size_t)t * (size_t)dv, j->z + at, g->norm, dv, g->eps);
        }
    }
}

/* Channels [channel, channel + n): the tail becomes the last conv - 1 inputs before stream token `end`, and held rows go to the ring. */
static void move_inputs(const gdn_job *j, const m5_gdn_run *r, int end, int channel, int n, float *tmp)
{
    const int keep = j->g->conv - 1;
    for (int t = 0; t < keep; t++) memcpy(tmp + (size_t)t * (size_t)n, stream_row(j, r, end - keep + t) + channel, (size_t)n * sizeof *tmp);
    for (int t = 0; t < keep; t++)
        memcpy(r->conv_tail + (size_t)t * (size_t)j->n_channel + channel, tmp + (size_t)t * (size_t)n, (size_t)n * sizeof *tmp);
    if (!r->hold) return;
    for (int t = 0; t < r->n_row; t++)
        memcpy(r->ring + (size_t)t * (size_t)j->ring + channel, j->qkv + (size_t)(r->row0 + t) * (size_t)j->n_channel + channel,
               (size_t)n * sizeof(float));
}

static void unit(const gdn_job *j, const m5_gdn_run *r, int kh, float *w)
{
    const m5_gdn_args *g = j->g;
    const int dk = g->k_dim, dv = g->v_dim, key_floats = g->n_k_head * dk, group = g->n_v_head / g->n_k_head;
    const int n_stream = r->n_pending + r->n_row, end = r->hold ? r->n_pending : n_stream;
    for (int i = 0; i < r->n_pending; i += CHUNK) chunk(j, r, kh, i, r->n_pending - i < CHUNK ? r->n_pending - i : CHUNK, false, true, w);
    for (int i = r->n_pending; i < n_stream; i += CHUNK) chunk(j, r, kh, i, n_stream - i < CHUNK ? n_stream - i : CHUNK, true, !r->hold, w);
    move_inputs(j, r, end, kh * dk, dk, w);
    move_inputs(j, r, end, key_floats + kh * dk, dk, w);
    for (int s = 0; s < group; s++) {
        const int h = g->tiled ? s * g->n_k_head + kh : kh * group + s;
        move_inputs(j, r, end, 2 * key_floats + h * dv, dv, w);
        if (!r->hold) continue;
        for (int t = 0; t < r->n_row; t++) {
            float *p = r->ring + (size_t)t * (size_t)j->ring + j->n_channel;
            p[h] = j->b[(size_t)(r->row0 + t) * (size_t)g->n_v_head + (size_t)h];
            p[g->n_v_head + h] = j->a[(size_t)(r->row0 + t) * (size_t)g->n_v_head + (size_t)h];
        }
    }
}

static void units(void *ctx, int64_t begin, int64_t end, int worker)
{
    const gdn_job *j = ctx;
    for (int64_t u = begin; u < end; u++) unit(j, &j->g->runs[u / j->g->n_k_head], (int)(u % j->g->n_k_head), j->work[worker]);
}

void m5_cpu_gdn(m5_cpu *c, float *out, const float *qkv, const float *z, const float *b, const float *a, const m5_gdn_args *g, int n_tok)
{
    (void)n_tok;
    gdn_job j = {m5_cpu_mix_kernels(c),     g, c->work, out, qkv, z, b, a, 2 * g->n_k_head * g->k_dim + g->n_v_head * g->v_dim,
                 (int)m5_gdn_ring_floats(g)};
    m5_cpu_mix_for(c, (int64_t)g->n_run * g->n_k_head, 8000, units, &j);
}
