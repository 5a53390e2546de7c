/* SPDX-License-Identifier: Apache-2.0 */
/* Row operators of the CPU backend: norms, gates, rotary embedding, router, K/V store. Room: backend/cpu_mix*.c. Splitting only; the loops over lanes
 * are in cpu_mix_kern.c. */
#include "backend/cpu_mix.h"

#include <math.h>
#include <string.h>

const m5_mix_kernels *m5_cpu_mix_kernels(const m5_cpu *c)
{
#if defined(__x86_64__)
    if (c->k.isa & M5_ISA_AVX512) return &m5_mix_kernels_avx512;
    if (c->k.isa & M5_ISA_AVX2) return &m5_mix_kernels_avx2;
#elif defined(__aarch64__)
    if (c->k.isa & M5_ISA_NEON) return &m5_mix_kernels_neon;
#else
    (void)c;
#endif
    return &m5_mix_kernels_ref;
}

void m5_cpu_mix_for(m5_cpu *c, int64_t n, double cost_ns, m5_range_fn fn, void *ctx)
{
    const double min_ns = 4000;
    if (n <= 0) return;
    if ((double)n * cost_ns < 2 * min_ns || c->n_threads == 1) {
        fn(ctx, 0, n, 0);
        return;
    }
    m5_pool_for(c->pool, n, (int64_t)(min_ns / cost_ns / 4) + 1, fn, ctx);
}

/* ---- scalar functions ---- */

double m5_mix_exp(double x)
{
    if (!(x < 700)) return x != x ? x : 1e304;
    if (x < -700) return 0;
    const double t = x * 1.4426950408889634;
    const int64_t n = (int64_t)(t < 0 ? t - 0.5 : t + 0.5);
    const double r = (x - (double)n * 0.693147180369123816490) - (double)n * 1.90821492927058770002e-10; /* ln 2 in two parts */
    double p = 1;
    for (int i = 13; i > 0; i--) p = 1 + p * r / i;
    union {
        uint64_t u;
        double d;
    } s = {(uint64_t)(n + 1023) << 52};
    return p * s.d;
}

double m5_mix_softplus(double x)
{
    if (x > 20) return x;
    /* log(1 + u) = 2 atanh(s), s = u / (2 + u) <= 1/3 for u <= 1 */
    const double u = m5_mix_exp(x > 0 ? -x : x), s = u / (2 + u), z = s * s;
    double p = 0;
    for (int i = 27; i > 0; i -= 2) p = p * z + 1.0 / i;
    return (x > 0 ? x : 0) + 2 * s * p;
}

void m5_mix_sincos(double x, double *sin_x, double *cos_x)
{
    const double t = x * 0.63661977236758134308;
    const int64_t n = (int64_t)(t < 0 ? t - 0.5 : t + 0.5);
    /* pi/2 in two parts of 33 and 53 bits: exact product for n below 2^20, error below 1e-14 beyond */
    const double r = (x - (double)n * 1.57079632673412561417) - (double)n * 6.07710050650619224932e-11, z = r * r;
    const double s = r + r * z * (-1.0 / 6 + z * (1.0 / 120 + z * (-1.0 / 5040 + z * (1.0 / 362880 + z * (-1.0 / 39916800 + z / 6227020800.0)))));
    const double k = 1 + z * (-0.5 + z * (1.0 / 24 + z * (-1.0 / 720 + z * (1.0 / 40320 + z * (-1.0 / 3628800 + z / 479001600.0)))));
    const double a = n & 1 ? k : s, b = n & 1 ? s : k;
    *sin_x = n & 2 ? -a : a;
    *cos_x = (n + 1) & 2 ? -b : b;
}

/* ---- rows ---- */

typedef struct row_job {
    const m5_mix_kernels *k;
    const m5_kernels *base;
    float *y, *x;
    const float *a, *b;
    int64_t ldy, lda, ldb;
    int n, act;
    float eps;
} row_job;

static void rmsnorm_rows(void *ctx, int64_t begin, int64_t end, int worker)
{
    const row_job *j = ctx;
    (void)worker;
    for (int64_t t = begin; t < end; t++) j->k->rmsnorm(j->y + t * j->ldy, j->a + t * j->lda, j->b, j->n, j->eps);
}

void m5_cpu_rmsnorm(m5_cpu *c, float *y, int64_t ldy, const float *x, int64_t ldx, const float *w, int64_t n_row, int n, float eps)
{
    row_job j = {.k = m5_cpu_mix_kernels(c), .y = y, .ldy = ldy, .a = x, .lda = ldx, .b = w, .n = n, .eps = eps};
    m5_cpu_mix_for(c, n_row, 0.1 * n, rmsnorm_rows, &j);
}

static void add_rmsnorm_rows(void *ctx, int64_t begin, int64_t end, int worker)
{
    const row_job *j = ctx;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        if (j->a) j->k->add(j->x + t * j->n, j->a + t * j->n, j->n);
        if (j->y) j->k->rmsnorm(j->y + t * j->n, j->x + t * j->n, j->b, j->n, j->eps);
    }
}

void m5_cpu_add_rmsnorm(m5_cpu *c, float *y, float *x, const float *add, const float *w, int64_t n_row, int n, float eps)
{
    row_job j = {.k = m5_cpu_mix_kernels(c), .y = y, .x = x, .a = add, .b = w, .n = n, .eps = eps};
    m5_cpu_mix_for(c, n_row, 0.2 * n, add_rmsnorm_rows, &j);
}

void m5_cpu_add(m5_cpu *c, float *x, const float *y, int64_t n_row, int n)
{
    m5_cpu_add_rmsnorm(c, NULL, x, y, NULL, n_row, n, 0);
}

static void scale_rows(void *ctx, int64_t begin, int64_t end, int worker)
{
    const row_job *j = ctx;
    (void)worker;
    for (int64_t t = begin; t < end; t++) j->k->scale(j->x + t * j->n, j->eps, j->n);
}

void m5_cpu_scale(m5_cpu *c, float *x, float a, int64_t n_row, int n)
{
    row_job j = {.k = m5_cpu_mix_kernels(c), .x = x, .n = n, .eps = a};
    if (a == 1.0f) return;
    m5_cpu_mix_for(c, n_row, 0.1 * n, scale_rows, &j);
}

static void gate_rows(void *ctx, int64_t begin, int64_t end, int worker)
{
    const row_job *j = ctx;
    (void)worker;
    for (int64_t t = begin; t < end; t++) j->k->gate(j->x + t * j->ldy, j->a + t * j->lda, j->n);
}

void m5_cpu_gate(m5_cpu *c, float *x, int64_t ldx, const float *g, int64_t ldg, int64_t n_row, int n)
{
    row_job j = {.k = m5_cpu_mix_kernels(c), .x = x, .ldy = ldx, .a = g, .lda = ldg, .n = n};
    m5_cpu_mix_for(c, n_row, 0.6 * n, gate_rows, &j);
}

static void gate_by_scalar(void *ctx, int64_t begin, int64_t end, int worker)
{
    const row_job *j = ctx;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        float s = 1.0f;
        j->k->gate(&s, j->a + t, 1);
        j->k->scale(j->x + t * j->n, s, j->n);
    }
}

void m5_cpu_gate_rows(m5_cpu *c, float *x, const float *g, int64_t n_row, int n)
{
    row_job j = {.k = m5_cpu_mix_kernels(c), .x = x, .a = g, .n = n};
    m5_cpu_mix_for(c, n_row, 0.1 * n, gate_by_scalar, &j);
}

/* The rows are contiguous: cut into pieces of 1024 so that one long row of logits still spreads over threads. */
enum { CAP_PIECE = 1024 };
typedef struct cap_job {
    const m5_mix_kernels *k;
    float *x;
    int64_t n;
    float cap;
} cap_job;

static void softcap_pieces(void *ctx, int64_t begin, int64_t end, int worker)
{
    const cap_job *j = ctx;
    (void)worker;
    int64_t i = begin * CAP_PIECE, last = end * CAP_PIECE < j->n ? end * CAP_PIECE : j->n;
    for (; i < last; i += CAP_PIECE) j->k->softcap(j->x + i, j->cap, (int)(last - i < CAP_PIECE ? last - i : CAP_PIECE));
}

void m5_cpu_softcap(m5_cpu *c, float *x, float cap, int64_t n_row, int64_t n)
{
    cap_job j = {m5_cpu_mix_kernels(c), x, n_row * n, cap};
    m5_cpu_mix_for(c, (j.n + CAP_PIECE - 1) / CAP_PIECE, 1.0 * CAP_PIECE, softcap_pieces, &j);
}

static void glu_rows(void *ctx, int64_t begin, int64_t end, int worker)
{
    const row_job *j = ctx;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const int64_t o = t * j->n;
        if (j->act == 0) {
            j->base->silu_mul(j->y + o, j->a + o, j->b + o, j->n);
        } else {
            j->base->gelu_mul(j->y + o, j->a + o, j->b + o, j->n);
        }
    }
}

void m5_cpu_glu(m5_cpu *c, float *y, const float *gate, const float *up, int64_t n_row, int n, int act)
{
    row_job j = {.base = &c->k, .y = y, .a = gate, .b = up, .n = n, .act = act};
    m5_cpu_mix_for(c, n_row, 0.7 * n, glu_rows, &j);
}

/* ---- router ---- */

typedef struct router_job {
    const m5_mix_kernels *k;
    float **work;
    int32_t *ids;
    float *wts;
    const float *logits;
    int n_expert, n_used;
    bool renorm;
} router_job;

static void router_rows(void *ctx, int64_t begin, int64_t end, int worker)
{
    const router_job *j = ctx;
    float *p = j->work[worker];
    for (int64_t t = begin; t < end; t++) {
        const float *l = j->logits + t * j->n_expert;
        int32_t *ids = j->ids + t * j->n_used;
        float *wts = j->wts + t * j->n_used;
        float max = l[0], sum = 0, chosen = 0;
        for (int e = 1; e < j->n_expert; e++) max = l[e] > max ? l[e] : max;
        memcpy(p, l, (size_t)j->n_expert * sizeof *p);
        j->k->exp(p, max, j->n_expert);
        for (int e = 0; e < j->n_expert; e++) sum += p[e];
        for (int i = 0; i < j->n_used; i++) {
            int best = 0;
            for (int e = 1; e < j->n_expert; e++)
                if (p[e] > p[best]) best = e;
            ids[i] = best;
            wts[i] = p[best] / sum;
            chosen += wts[i];
            p[best] = -1;
        }
        if (!j->renorm) continue;
        for (int i = 0; i < j->n_used; i++) wts[i] /= chosen;
    }
}

void m5_cpu_router(m5_cpu *c, int32_t *ids, float *wts, const float *logits, int n_tok, int n_expert, int n_used, bool renorm)
{
    router_job j = {m5_cpu_mix_kernels(c), c->work, ids, wts, logits, n_expert, n_used, renorm};
    m5_cpu_mix_for(c, n_tok, 2.0 * n_expert * (n_used + 1), router_rows, &j);
}

/* ---- rotary embedding ---- */

typedef struct rope_job {
    float *x;
    float **work;
    const int32_t *pos;
    const float *inv_freq;
    int n_head, head_dim, n_rot;
    bool pairs;
    float attn_factor;
} rope_job;

static void rope_rows(void *ctx, int64_t begin, int64_t end, int worker)
{
    const rope_job *j = ctx;
    const int half = j->n_rot / 2;
    float *cs = j->work[worker], *sn = cs + half;
    for (int64_t t = begin; t < end; t++) {
        for (int i = 0; i < half; i++) {
            double s, k;
            m5_mix_sincos((double)((float)j->pos[t] * j->inv_freq[i]), &s, &k);
            cs[i] = (float)k * j->attn_factor;
            sn[i] = (float)s * j->attn_factor;
        }
        for (int h = 0; h < j->n_head; h++) {
            float *x = j->x + (t * j->n_head + h) * j->head_dim;
            for (int i = 0; i < half; i++) {
                float *pa = j->pairs ? x + 2 * i : x + i, *pb = j->pairs ? x + 2 * i + 1 : x + i + half;
                const float a = *pa, b = *pb;
                *pa = a * cs[i] - b * sn[i];
                *pb = b * cs[i] + a * sn[i];
            }
        }
    }
}

void m5_cpu_rope(m5_cpu *c, float *x, int n_tok, int n_head, int head_dim, const int32_t *pos, const float *inv_freq, int n_rot, bool pairs,
                 float attn_factor)
{
    rope_job j = {x, c->work, pos, inv_freq, n_head, head_dim, n_rot, pairs, attn_factor};
    m5_cpu_mix_for(c, n_tok, n_rot * (10 + 0.5 * n_head), rope_rows, &j);
}

/* ---- K/V store ---- */

/* I16: 32 products of two numbers of 13 bits just fit. Weights have a bit more and values a bit less, since errors of values average out over the keys
 * while weights that round to 0 are missing. */
m5_kv_code m5_kv_code_of(m5_kv_type t)
{
    switch (t) {
    case M5_KV_Q8_0: return (m5_kv_code){.bytes = 1, .k_max = 127, .v_max = 127, .q_max = 32767, .w_max = 32767};
    case M5_KV_I16: return (m5_kv_code){.bytes = 2, .k_max = 8191, .v_max = 4095, .q_max = 8191, .w_max = 16383};
    default: return (m5_kv_code){0};
    }
}

bool m5_kv_in_tiles(m5_kv_type t)
{
    return m5_kv_code_of(t).bytes > 0;
}

int m5_kv_head_width(m5_kv_type t, int head_dim)
{
    const int unit = m5_kv_in_tiles(t) ? 32 : 16;
    return (head_dim + unit - 1) / unit * unit;
}

size_t m5_kv_row_bytes(m5_kv_type t, int n_head_kv, int head_dim)
{
    const size_t n = (size_t)n_head_kv * (size_t)m5_kv_head_width(t, head_dim);
    switch (t) {
    case M5_KV_F16:
    case M5_KV_BF16: return n * 2;
    case M5_KV_F32: return n * 4;
    case M5_KV_Q8_0: return n / 32 * 34;
    case M5_KV_I16: return n / 32 * 66;
    }
    return 0;
}

/* The least f16 whose product with `top` reaches max. */
static uint16_t code_factor(float max, float top)
{
    uint16_t h = m5_f32_to_f16(max / top);
    while (h < 0x7bff && m5_f16_to_f32(h) * top < max) h++;
    return h < 0x7bff ? h : 0x7bff;
}

/* Codes are taken of the factor as it is kept, to the nearest (ties to even). A block with a NaN or an infinity has NaN for its factor, so that it shows in
 * whatever reads it. */
void m5_kv_store_codes(m5_kv_type t, uint8_t *tile, int key, bool value, const float *x, int n)
{
    const m5_kv_code c = m5_kv_code_of(t);
    const float top = (float)(value ? c.v_max : c.k_max);
    for (int b = 0; b < n / 32; b++, x += 32) {
        float max = 0, zero = 0;
        for (int i = 0; i < 32; i++) {
            max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
            zero += x[i] * 0.0f;
        }
        const bool finite = zero == 0;
        const uint16_t h = finite ? code_factor(max, top) : 0x7e00;
        const float inv = finite && h ? 1.0f / m5_f16_to_f32(h) : 0.0f;
        uint8_t *codes = tile + 2 * n;
        memcpy(tile + (b * M5_KV_TILE + key) * 2, &h, 2);
        int16_t code[32];
        for (int i = 0; i < 32; i++) {
            const float scaled = finite ? x[i] * inv : 0.0f, near = scaled > top ? top : scaled < -top ? -top : scaled;
            code[i] = (int16_t)((near + 12582912.0f) - 12582912.0f);
        }
        for (int i = 0; i < 32; i++) {
            const int unit = value ? 2 * b + i / 16 : key / 16 * (n / 32) + b, pair = value ? key : i, lane = (value ? i : key) % 16;
            const int at = unit * M5_KV_UNIT + (pair / 2 * 16 + lane) * 2 + pair % 2;
            if (c.bytes == 1)
                codes[at] = (uint8_t)(int8_t)code[i];
            else
                memcpy(codes + at * 2, &code[i], 2);
        }
    }
}

typedef struct store_job {
    const m5_kernels *base;
    const m5_attn_args *a;
    const float *k, *v;
    size_t head_bytes;
    float **work;
    int width;
} store_job;

/* Token `tok` of the rows of one head. */
static void store_one(const store_job *j, int worker, uint8_t *rows, int tok, bool value, const float *x)
{
    const int n = j->width;
    uint8_t *dst = rows + (size_t)tok * j->head_bytes;
    if (n > j->a->head_dim) {
        float *padded = j->work[worker];
        memcpy(padded, x, (size_t)j->a->head_dim * sizeof *x);
        for (int i = j->a->head_dim; i < n; i++) padded[i] = 0;
        x = padded;
    }
    switch (j->a->kv_type) {
    case M5_KV_F16: j->base->f32_f16((uint16_t *)(void *)dst, x, n); return;
    case M5_KV_BF16: j->base->f32_bf16((uint16_t *)(void *)dst, x, n); return;
    case M5_KV_F32: memcpy(dst, x, (size_t)n * sizeof *x); return;
    case M5_KV_Q8_0:
    case M5_KV_I16:
        m5_kv_store_codes(j->a->kv_type, rows + (size_t)(tok - tok % M5_KV_TILE) * j->head_bytes, tok % M5_KV_TILE, value, x, n);
        return;
    }
}

static void store_rows(void *ctx, int64_t begin, int64_t end, int worker)
{
    const store_job *j = ctx;
    const m5_attn_args *a = j->a;
    for (int64_t t = begin; t < end; t++) {
        uint8_t *page = a->seqs[a->seq_of[t]].pages[a->pos[t] / a->page_tok];
        for (int h = 0; h < a->n_head_kv; h++) {
            const size_t at = (size_t)(h * a->page_tok) * j->head_bytes;
            const int64_t from = (t * a->n_head_kv + h) * a->head_dim;
            store_one(j, worker, page + a->k_offset + at, a->pos[t] % a->page_tok, false, j->k + from);
            store_one(j, worker, page + a->v_offset + at, a->pos[t] % a->page_tok, true, j->v + from);
        }
    }
}

void m5_cpu_kv_store(m5_cpu *c, const m5_attn_args *a, const float *k, const float *v, int n_tok)
{
    store_job j = {&c->k, a, k, v, m5_kv_row_bytes(a->kv_type, 1, a->head_dim), c->work, m5_kv_head_width(a->kv_type, a->head_dim)};
    m5_cpu_mix_for(c, n_tok, 0.4 * a->n_head_kv * a->head_dim, store_rows, &j);
}
