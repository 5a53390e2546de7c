/* SPDX-License-Identifier: Apache-2.0 */
/* Mixer operators against plain scalar formulas in double, on inputs chosen where a wrong eps, threshold, window edge or gelu form would hide; then
 * the same bits for every instruction set, thread count, batch split and page size.
 *
 *   test_mix --bench [ROWS [DEPTH [THREADS [SHAPE]]]]   attention of the last ROWS tokens at DEPTH keys, by turns with a plain read of memory,
 *       or from nine rows on with plain multiply-adds; SHAPE: a part of a shape's name */
#include "backend/ceilings.h"
#include "backend/cpu.h"
#include "base/mem.h"
#include "base/task.h"
#include "kernels/kernels.h"

#include "t.h"

#include <math.h>

static const uint32_t masks[] = {0, M5_ISA_AVX2, M5_ISA_ALL}; /* on other processors the middle one repeats the first */
enum { N_MASK = 3 };

static uint32_t seed = 1;
static float rnd(void)
{
    seed = seed * 1664525u + 1013904223u;
    return (float)(int32_t)seed / 2147483648.0f;
}

static float *randoms(size_t n, float scale)
{
    float *p = m5_alloc(M5_MEM_TEXT, n * sizeof *p);
    for (size_t i = 0; i < n; i++) p[i] = scale * rnd();
    return p;
}

static m5_cpu *open_cpu(int n_threads, uint32_t mask)
{
    m5_error err;
    m5_cpu *c = NULL;
    m5_cpu_options o = {n_threads, mask, true};
    int rc = m5_cpu_open(&c, &o, &err);
    if (rc == 0) rc = m5_cpu_reserve(c, 64, 1024, 1024, &err);
    if (rc == 0) rc = m5_cpu_reserve_attention(c, 16, 256, &err);
    T_CHECK(rc == 0, "%s", err.text);
    return c;
}

static void near(const char *what, double got, double want, double rel, double abs)
{
    T_CHECK(fabs(got - want) <= rel * fabs(want) + abs, "%s: %.9g, expected %.9g", what, got, want);
}

/* ---- rows ---- */

static void rows(m5_cpu *c)
{
    enum { N = 37 };
    float x[N], y[N], w[N], g[N], u[N];
    /* The mean of squares is as small as eps: an eps outside the root, or ten times as large, shows. */
    for (int i = 0; i < N; i++) {
        x[i] = 1e-3f * rnd();
        w[i] = rnd();
    }
    for (int k = 0; k < 2; k++) {
        const float eps = k ? 1e-5f : 1e-6f;
        double sum = 0;
        for (int i = 0; i < N; i++) sum += (double)x[i] * (double)x[i];
        m5_cpu_rmsnorm(c, y, N, x, N, k ? w : NULL, 1, N, eps);
        for (int i = 0; i < N; i++) near("rmsnorm", y[i], (double)x[i] / sqrt(sum / N + (double)eps) * (k ? (double)w[i] : 1.0), 3e-7, 1e-30);
    }
    const float probe[] = {-90, -30, -3.5f, -1, -0.25f, -1e-3f, 0, 1e-3f, 0.4f, 0.62f, 0.63f, 1, 2.7f, 9, 40, 88, 1e4f, -1e4f, 300, -300};
    const int n = (int)(sizeof probe / sizeof *probe);
    for (int i = 0; i < n; i++) {
        g[i] = probe[i];
        u[i] = 1.25f;
    }
    m5_cpu_glu(c, y, g, u, 1, n, 0);
    for (int i = 0; i < n; i++) near("silu", y[i], 1.25 * (double)g[i] / (1 + exp(-(double)g[i])), 1e-6, 1e-30);
    m5_cpu_glu(c, y, g, u, 1, n, 1);
    for (int i = 0; i < n; i++) {
        const double v = g[i], t = tanh(0.7978845608028654 * (v + 0.044715 * v * v * v));
        near("gelu", y[i], 1.25 * 0.5 * v * (1 + t), 2e-6, 1e-7);
    }
    /* tanh and erf forms differ by 4.7e-4 near 2.7: this bound tells them apart. */
    m5_cpu_glu(c, y, &probe[12], u, 1, 1, 1);
    T_CHECK(fabs((double)y[0] - 1.25 * 0.5 * 2.7 * (1 + erf(2.7 / sqrt(2.0)))) > 1e-4, "gelu is the erf form");
    for (int k = 0; k < 2; k++) {
        const float cap = k ? 50 : 30;
        memcpy(y, probe, sizeof probe);
        m5_cpu_softcap(c, y, cap, 1, n);
        for (int i = 0; i < n; i++) near("softcap", y[i], (double)cap * tanh((double)probe[i] / (double)cap), 4e-7, 1e-9);
    }
    memcpy(y, u, sizeof u);
    m5_cpu_gate(c, y, n, g, n, 1, n);
    for (int i = 0; i < n; i++) near("gate", y[i], 1.25 / (1 + exp(-(double)g[i])), 1e-6, 1e-37);
    memcpy(y, u, sizeof u);
    m5_cpu_gate_rows(c, y, &probe[12], 1, 5);
    near("gate_rows", y[4], 1.25 / (1 + exp(-2.7)), 1e-6, 0);
    near("gate_rows", y[5], 1.25, 0, 0);
}

static void rope(m5_cpu *c)
{
    enum { HD = 24, R = 16 };
    float x[2][HD], freq[R / 2];
    const int32_t pos[2] = {1, 131071};
    for (int i = 0; i < R / 2; i++) freq[i] = (float)pow(1e6, -2.0 * i / R);
    for (int pairs = 0; pairs < 2; pairs++) {
        float y[2][HD];
        for (int t = 0; t < 2; t++)
            for (int i = 0; i < HD; i++) y[t][i] = x[t][i] = rnd();
        m5_cpu_rope(c, &y[0][0], 2, 1, HD, pos, freq, R, pairs, 1.25f);
        for (int t = 0; t < 2; t++) {
            for (int j = 0; j < R / 2; j++) {
                const int a = pairs ? 2 * j : j, b = pairs ? 2 * j + 1 : j + R / 2;
                const double angle = (double)((float)pos[t] * freq[j]), cs = cos(angle) * 1.25, sn = sin(angle) * 1.25;
                near("rope", y[t][a], (double)x[t][a] * cs - (double)x[t][b] * sn, 0, 3e-7);
                near("rope", y[t][b], (double)x[t][b] * cs + (double)x[t][a] * sn, 0, 3e-7);
            }
            for (int i = R; i < HD; i++) T_CHECK(y[t][i] == x[t][i], "component %d beyond the rotary width changed", i);
        }
    }
}

static void router(m5_cpu *c)
{
    const float logits[2][6] = {{1, 3, 3, -2, 3, 0}, {-200, -201, -200, -500, -300, -1000}};
    int32_t ids[6];
    float w[6];
    m5_cpu_router(c, ids, w, logits[0], 2, 6, 3, true);
    T_CHECK(ids[0] == 1 && ids[1] == 2 && ids[2] == 4, "ties go to the lower index: %d %d %d", (int)ids[0], (int)ids[1], (int)ids[2]);
    near("renormalised", w[0], 1.0 / 3, 1e-6, 0);
    T_CHECK(ids[3] == 0 && ids[4] == 2 && ids[5] == 1, "%d %d %d", (int)ids[3], (int)ids[4], (int)ids[5]);
    near("renormalised", w[3], 1 / (2 + exp(-1.0)), 1e-6, 0);
    m5_cpu_router(c, ids, w, logits[0], 1, 6, 2, false);
    near("softmax over all", w[0], exp(3.0) / (3 * exp(3.0) + exp(1.0) + exp(-2.0) + 1), 1e-6, 0);
}

/* ---- attention ---- */

typedef struct attn_case {
    int n_head, n_head_kv, head_dim, page_tok, n_ctx, window;
    m5_kv_type kv;
    float softcap;
} attn_case;

typedef struct cache {
    uint8_t **pages;
    int n_page;
    float *k, *v; /* [n_ctx, n_head_kv, head_dim] as given */
} cache;

static void cache_fill(m5_cpu *c, const attn_case *a, cache *s)
{
    const size_t row = m5_kv_row_bytes(a->kv, a->n_head_kv, a->head_dim), n = (size_t)a->n_head_kv * (size_t)a->head_dim;
    s->n_page = (a->n_ctx + a->page_tok - 1) / a->page_tok;
    s->pages = m5_alloc(M5_MEM_TEXT, (size_t)s->n_page * sizeof *s->pages);
    for (int i = 0; i < s->n_page; i++) {
        s->pages[i] = m5_alloc(M5_MEM_TEXT, 2 * row * (size_t)a->page_tok);
        memset(s->pages[i], 0xff, 2 * row * (size_t)a->page_tok); /* NaN wherever nothing was stored */
    }
    s->k = randoms((size_t)a->n_ctx * n, 3);
    s->v = randoms((size_t)a->n_ctx * n, 1);
    const m5_kv_view view = {s->pages};
    for (int32_t p = 0, seq = 0; p < a->n_ctx; p++) {
        m5_attn_args g = {a->n_head, a->n_head_kv, a->head_dim, a->page_tok, a->kv, 0, row * (size_t)a->page_tok, 0, 1, 0, &view, &seq, &p};
        m5_cpu_kv_store(c, &g, s->k + (size_t)p * n, s->v + (size_t)p * n, 1);
    }
}

/* x as a cache of integers up to `top` keeps it: the least factor that reaches the largest. */
static void through_codes(float *x, size_t n_head, int hd, float top)
{
    for (size_t h = 0; h < n_head; h++)
        for (int b = 0; b < hd; b += 32) {
            float *p = x + h * (size_t)hd + b, max = 0;
            const int n = hd - b < 32 ? hd - b : 32;
            for (int i = 0; i < n; i++) max = fabsf(p[i]) > max ? fabsf(p[i]) : max;
            uint16_t d = m5_f32_to_f16(max / top);
            if (m5_f16_to_f32(d) * top < max) d++;
            for (int i = 0; i < n; i++) p[i] = max > 0 ? rintf(p[i] / m5_f16_to_f32(d)) * m5_f16_to_f32(d) : 0;
        }
}

static void cache_free(cache *s)
{
    for (int i = 0; i < s->n_page; i++) m5_free(s->pages[i]);
    m5_free(s->pages);
    m5_free(s->k);
    m5_free(s->v);
}

static void run_attention(m5_cpu *c, const attn_case *a, const m5_kv_view *views, const int32_t *seq, const int32_t *pos, const float *q, float *o,
                          int n)
{
    const size_t row = m5_kv_row_bytes(a->kv, a->n_head_kv, a->head_dim);
    m5_attn_args g = {a->n_head, a->n_head_kv, a->head_dim, a->page_tok, a->kv, 0,  row * (size_t)a->page_tok,
                      a->window, 0.25f,        a->softcap,  views,       seq,   pos};
    m5_cpu_attention(c, o, q, &g, n);
}

static void scalar_attention(const attn_case *a, const cache *s, const float *q, int pos, int head, double *o)
{
    const int kvh = head / (a->n_head / a->n_head_kv), hd = a->head_dim;
    double sum = 0, top = -1e300;
    for (int d = 0; d < hd; d++) o[d] = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int j = 0; j <= pos; j++) {
            if (a->window && !(pos - a->window < j)) continue;
            const float *k = s->k + ((size_t)j * (size_t)a->n_head_kv + (size_t)kvh) * (size_t)hd, *v = s->v + (k - s->k);
            double x = 0;
            for (int d = 0; d < hd; d++) x += (double)q[d] * (double)k[d];
            x *= 0.25;
            if (a->softcap > 0) x = (double)a->softcap * tanh(x / (double)a->softcap);
            if (pass == 0) {
                top = x > top ? x : top;
                continue;
            }
            sum += exp(x - top);
            for (int d = 0; d < hd; d++) o[d] += exp(x - top) * (double)v[d];
        }
    }
    for (int d = 0; d < hd; d++) o[d] /= sum;
}

/* One prefill of the last rows as reference bits; the same rows in other cuts, with a second sequence between them, on other threads and levels. */
static void attention(const attn_case *a)
{
    enum { ROWS = 40 };
    const size_t n = (size_t)a->n_head * (size_t)a->head_dim;
    const int p0 = a->n_ctx - ROWS;
    m5_cpu *c = open_cpu(1, 0);
    cache s, other;
    int32_t pos[2 * ROWS], seq[2 * ROWS];
    seed = 7;
    cache_fill(c, a, &s);
    cache_fill(c, a, &other);
    float *q = randoms(2 * ROWS * n, 1), *want = randoms(ROWS * n, 0), *got = randoms(2 * ROWS * n, 0), *mixed = randoms(2 * ROWS * n, 0);
    const m5_kv_view views[2] = {{s.pages}, {other.pages}};
    for (int i = 0; i < ROWS; i++) {
        pos[i] = p0 + i;
        seq[i] = 0;
    }
    run_attention(c, a, views, seq, pos, q, want, ROWS);
    m5_cpu_close(c);
    if (a->kv == M5_KV_Q8_0) { /* what the arithmetic adds, beside what the cache rounds */
        through_codes(s.k, (size_t)a->n_ctx * (size_t)a->n_head_kv, a->head_dim, 127);
        through_codes(s.v, (size_t)a->n_ctx * (size_t)a->n_head_kv, a->head_dim, 127);
    }
    const double tol = a->kv == M5_KV_F32 ? 3e-6 : a->kv == M5_KV_F16 ? 2e-3 : a->kv == M5_KV_I16 ? 1e-3 : a->kv == M5_KV_BF16 ? 1e-2 : 2e-4;
    double worst = 0, o[1024];
    for (int r = 0; r < ROWS; r += 3)
        for (int h = 0; h < a->n_head; h++) {
            scalar_attention(a, &s, q + (size_t)r * n + (size_t)(h * a->head_dim), p0 + r, h, o);
            for (int d = 0; d < a->head_dim; d++) {
                const double e = fabs(o[d] - (double)want[(size_t)r * n + (size_t)(h * a->head_dim + d)]);
                if (!(e <= worst)) worst = e;
            }
        }
    T_CHECK(worst < tol, "attention hd %d ctx %d window %d kv %d: off by %g", a->head_dim, a->n_ctx, a->window, (int)a->kv, worst);
    for (int lv = 0; lv < N_MASK; lv++)
        for (int threads = lv == 0 ? 3 : 1; threads <= 3; threads += 2) {
            c = open_cpu(threads, masks[lv]);
            /* The scalar level is slow, and its order of operations is the same text. */
            for (int chunk = lv == 0 ? ROWS / 3 : 1; chunk <= (lv == 0 ? ROWS / 3 : ROWS); chunk = chunk * 3 + 1) {
                for (int i = 0; i < ROWS; i += chunk) {
                    const int m = ROWS - i < chunk ? ROWS - i : chunk;
                    run_attention(c, a, views, seq + i, pos + i, q + (size_t)i * n, got + (size_t)i * n, m);
                }
                T_CHECK(memcmp(got, want, ROWS * n * sizeof *got) == 0,
                        "attention hd %d ctx %d window %d kv %d: chunk %d, %d threads, level %d differ", a->head_dim, a->n_ctx, a->window, (int)a->kv,
                        chunk, threads, lv);
            }
            /* Rows of two sequences in turn: no two neighbours share a tile. */
            int32_t pos2[2 * ROWS], seq2[2 * ROWS];
            for (int i = 0; i < 2 * ROWS; i++) {
                pos2[i] = i % 2 ? (i * 37) % a->n_ctx : p0 + i / 2;
                seq2[i] = i % 2;
                memcpy(mixed + (size_t)i * n, q + (size_t)(i % 2 ? ROWS + i / 2 : i / 2) * n, n * sizeof *q);
            }
            run_attention(c, a, views, seq2, pos2, mixed, got, 2 * ROWS);
            for (int i = 0; i < ROWS; i++)
                T_CHECK(memcmp(got + (size_t)(2 * i) * n, want + (size_t)i * n, n * sizeof *got) == 0, "row %d differs beside another sequence", i);
            m5_cpu_close(c);
        }
    cache_free(&s);
    cache_free(&other);
    m5_free(q);
    m5_free(want);
    m5_free(got);
    m5_free(mixed);
}

/* A key just outside the window is worth everything if it were seen; the one at the edge is. */
static void window_edge(void)
{
    enum { W = 5, P = 20, HD = 16 };
    const attn_case a = {1, 1, HD, 8, P + 1, W, M5_KV_F32, 0};
    m5_cpu *c = open_cpu(1, M5_ISA_ALL);
    cache s;
    float q[HD] = {0}, o[HD];
    const int32_t pos = P, seq = 0;
    cache_fill(c, &a, &s);
    float *page = (float *)(void *)s.pages[(P - W) / 8], *edge = (float *)(void *)s.pages[(P - W + 1) / 8];
    for (int i = 0; i < HD; i++) page[(8 + (P - W) % 8) * HD + i] = 1e9f; /* V lies behind the 8 rows of K */
    for (int i = 0; i < HD; i++) edge[(8 + (P - W + 1) % 8) * HD + i] = 1000;
    const m5_kv_view view = {s.pages};
    run_attention(c, &a, &view, &seq, &pos, q, o, 1);
    T_CHECK(o[0] > 190 && o[0] < 210, "W keys of equal weight, one of them 1000: %g", (double)o[0]);
    cache_free(&s);
    m5_cpu_close(c);
}

/* A number that is none, in a key or in a value, shows in the rows that see it and in no other. */
static void not_a_number(m5_kv_type kv)
{
    enum { N = 40, BAD = 21, HD = 64 };
    const attn_case a = {1, 1, HD, 64, N, 0, kv, 0};
    float q[HD], o[HD], row[HD];
    for (int value = 0; value < 2; value++)
        for (int lv = 0; lv < N_MASK; lv++) {
            m5_cpu *c = open_cpu(1, masks[lv]);
            cache s;
            cache_fill(c, &a, &s);
            const m5_kv_view view = {s.pages};
            const size_t part = m5_kv_row_bytes(kv, 1, HD) * 64;
            const int32_t seq[2] = {0, 0}, pos[2] = {BAD - 1, N - 1}, bad = BAD;
            memcpy(row, (value ? s.v : s.k) + BAD * HD, sizeof row);
            for (int k = 0; k < 2; k++) {
                row[5] = k ? INFINITY : NAN;
                m5_attn_args g = {1, 1, HD, 64, kv, 0, part, 0, 1, 0, &view, seq, &bad};
                m5_cpu_kv_store(c, &g, value ? s.k + BAD * HD : row, value ? row : s.v + BAD * HD, 1);
                for (int i = 0; i < HD; i++) q[i] = 0.1f;
                for (int r = 0; r < 2; r++) {
                    run_attention(c, &a, &view, seq, pos + r, q, o, 1);
                    T_CHECK(isfinite(o[5]) == (r == 0), "kv %d level %d: %s %g as %s gives %g", (int)kv, lv, r ? "after" : "before", (double)row[5],
                            value ? "a value" : "a key", (double)o[5]);
                }
            }
            cache_free(&s);
            m5_cpu_close(c);
        }
}

/* ---- gated delta net ---- */

typedef struct gdn_case {
    int n_k, n_v, dk, dv, conv;
    bool tiled;
    float in_scale; /* small: the l2 norm's eps counts */
    float dt;       /* added to a: beyond 20 softplus is the identity */
} gdn_case;

enum { GDN_TOK = 70 };
typedef struct gdn_data {
    gdn_case g;
    int channels, values;
    float *qkv, *z, *b, *a, *conv, *a_neg, *dt, *norm;
} gdn_data;

static void gdn_fill(gdn_data *d)
{
    const gdn_case *g = &d->g;
    d->channels = 2 * g->n_k * g->dk + g->n_v * g->dv;
    d->values = g->n_v * g->dv;
    d->qkv = randoms((size_t)GDN_TOK * (size_t)d->channels, g->in_scale);
    d->z = randoms((size_t)GDN_TOK * (size_t)d->values, 2);
    d->b = randoms((size_t)GDN_TOK * (size_t)g->n_v, 3);
    d->a = randoms((size_t)GDN_TOK * (size_t)g->n_v, 2);
    d->conv = randoms((size_t)d->channels * (size_t)g->conv, 1);
    d->a_neg = randoms((size_t)g->n_v, 0.2f);
    d->dt = randoms((size_t)g->n_v, 1);
    d->norm = randoms((size_t)g->dv, 1);
    for (int h = 0; h < g->n_v; h++) {
        d->a_neg[h] = -fabsf(d->a_neg[h]) - 0.01f;
        d->dt[h] += g->dt;
    }
}

static void gdn_drop(gdn_data *d)
{
    float *all[] = {d->qkv, d->z, d->b, d->a, d->conv, d->a_neg, d->dt, d->norm};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) m5_free(all[i]);
}

static double conv_silu(const gdn_data *d, int t, int ch)
{
    double y = 0;
    for (int j = 0; j < d->g.conv; j++) {
        const int from = t - d->g.conv + 1 + j;
        if (from >= 0) y += (double)d->conv[j * d->channels + ch] * (double)d->qkv[from * d->channels + ch];
    }
    return y / (1 + exp(-y));
}

/* Decay first, read after the update, exactly as the recurrence is defined. out [GDN_TOK, values] */
static void scalar_gdn(const gdn_data *d, double *out)
{
    const gdn_case *g = &d->g;
    const int kd = g->n_k * g->dk;
    for (int h = 0; h < g->n_v; h++) {
        static double s[64][64];
        const int kh = g->tiled ? h % g->n_k : h / (g->n_v / g->n_k);
        memset(s, 0, sizeof s);
        for (int t = 0; t < GDN_TOK; t++) {
            double q[64], k[64], qq = 0, kk = 0, o[64], mean = 0;
            for (int i = 0; i < g->dk; i++) {
                q[i] = conv_silu(d, t, kh * g->dk + i);
                k[i] = conv_silu(d, t, kd + kh * g->dk + i);
                qq += q[i] * q[i];
                kk += k[i] * k[i];
            }
            for (int i = 0; i < g->dk; i++) {
                q[i] /= sqrt(qq + 1e-6) * sqrt((double)g->dk);
                k[i] /= sqrt(kk + 1e-6);
            }
            const double x = (double)d->a[t * g->n_v + h] + (double)d->dt[h], soft = x > 20 ? x : log1p(exp(x));
            const double decay = exp((double)d->a_neg[h] * soft), beta = 1 / (1 + exp(-(double)d->b[t * g->n_v + h]));
            for (int j = 0; j < g->dv; j++) {
                double pred = 0;
                o[j] = 0;
                for (int i = 0; i < g->dk; i++) {
                    s[i][j] *= decay;
                    pred += s[i][j] * k[i];
                }
                const double delta = beta * (conv_silu(d, t, 2 * kd + h * g->dv + j) - pred);
                for (int i = 0; i < g->dk; i++) {
                    s[i][j] += k[i] * delta;
                    o[j] += s[i][j] * q[i];
                }
                mean += o[j] * o[j] / g->dv;
            }
            for (int j = 0; j < g->dv; j++) {
                const double z = d->z[t * d->values + h * g->dv + j];
                out[t * d->values + h * g->dv + j] = o[j] / sqrt(mean + 1e-6) * (double)d->norm[j] * z / (1 + exp(-z));
            }
        }
    }
}

/* chunk rows a call; hold > 0: every call holds `hold` rows, of which the next applies `keep`. */
static void run_gdn(m5_cpu *c, const gdn_data *d, int chunk, int hold, int keep, float *out)
{
    const gdn_case *g = &d->g;
    const size_t n_state = (size_t)g->n_v * (size_t)g->dk * (size_t)g->dv;
    m5_gdn_run runs[2];
    m5_gdn_args a = {g->n_k, g->n_v, g->dk, g->dv, g->conv, g->tiled, 1e-6f, d->conv, d->a_neg, d->dt, d->norm, runs, 1};
    float *state = randoms(n_state, 0), *tail = randoms((size_t)(g->conv - 1) * (size_t)d->channels, 0),
          *ring = randoms(32 * m5_gdn_ring_floats(&a), 1);
    float *state2 = randoms(n_state, 1), *tail2 = randoms((size_t)(g->conv - 1) * (size_t)d->channels, 1),
          *tmp = randoms((size_t)GDN_TOK * (size_t)d->values, 0);
    int pending = 0;
    for (int t = 0; t < GDN_TOK;) {
        const int n = hold ? (GDN_TOK - t < hold ? GDN_TOK - t : hold) : (GDN_TOK - t < chunk ? GDN_TOK - t : chunk);
        /* A second sequence shares the call: other rows of the same batch. */
        runs[0] = (m5_gdn_run){t, n, state, tail, ring, pending, hold > 0};
        runs[1] = (m5_gdn_run){t > 0 ? 0 : n, 1, state2, tail2, NULL, 0, false};
        a.n_run = t % 3 == 0 && n < GDN_TOK ? 2 : 1;
        m5_cpu_gdn(c, tmp, d->qkv, d->z, d->b, d->a, &a, GDN_TOK);
        memcpy(out + (size_t)t * (size_t)d->values, tmp + (size_t)t * (size_t)d->values, (size_t)n * (size_t)d->values * sizeof *out);
        pending = hold ? (keep < n ? keep : n) : 0;
        t += hold ? pending : n;
        if (hold && pending == 0) break;
    }
    m5_free(state);
    m5_free(tail);
    m5_free(ring);
    m5_free(state2);
    m5_free(tail2);
    m5_free(tmp);
}

static void gdn(const gdn_case *g)
{
    gdn_data d = {.g = *g};
    seed = 11;
    gdn_fill(&d);
    const size_t n = (size_t)GDN_TOK * (size_t)d.values;
    float *want = randoms(n, 0), *got = randoms(n, 0);
    double *ref = m5_alloc(M5_MEM_TEXT, n * sizeof *ref), worst = 0;
    m5_cpu *c = open_cpu(1, 0);
    run_gdn(c, &d, GDN_TOK, 0, 0, want);
    m5_cpu_close(c);
    scalar_gdn(&d, ref);
    for (size_t i = 0; i < n; i++)
        if (!(fabs(ref[i] - (double)want[i]) <= worst)) worst = fabs(ref[i] - (double)want[i]);
    T_CHECK(worst < 2e-5, "gdn %d/%d heads %dx%d conv %d scale %g dt %g: off by %g", g->n_k, g->n_v, g->dk, g->dv, g->conv, (double)g->in_scale,
            (double)g->dt, worst);
    for (int lv = 0; lv < N_MASK; lv++)
        for (int threads = 1; threads <= 2; threads++) {
            c = open_cpu(threads, masks[lv]);
            for (int chunk = 1; chunk <= GDN_TOK; chunk = chunk * 2 + 1) {
                run_gdn(c, &d, chunk, 0, 0, got);
                T_CHECK(memcmp(got, want, n * sizeof *got) == 0, "gdn: chunk %d, %d threads, level %d differ", chunk, threads, lv);
            }
            for (int keep = 1; keep <= 5; keep++) {
                run_gdn(c, &d, 0, 5, keep, got);
                T_CHECK(memcmp(got, want, n * sizeof *got) == 0, "gdn: hold 5 keep %d, %d threads, level %d differ", keep, threads, lv);
            }
            m5_cpu_close(c);
        }
    m5_free(want);
    m5_free(got);
    m5_free(ref);
    gdn_drop(&d);
}

/* Twelve layers' caches in one block, so that none of them is still in the processor's when its turn comes again. */
static void bench_attention(const char *name, const attn_case *a, int n_tok, int n_threads)
{
    enum { LAYERS = 12, REPS = 40, FEW = 9 };
    const size_t row = m5_kv_row_bytes(a->kv, a->n_head_kv, a->head_dim), part = row * (size_t)a->page_tok, page = 2 * LAYERS * part;
    const int n_page = (a->n_ctx + a->page_tok - 1) / a->page_tok;
    const size_t n_q = (size_t)n_tok * (size_t)a->n_head * (size_t)a->head_dim, n_kv = (size_t)a->n_head_kv * (size_t)a->head_dim;
    m5_cpu *c = open_cpu(n_threads, M5_ISA_ALL);
    m5_ceiling_probe *probe = NULL;
    T_CHECK(m5_ceiling_probe_new(&probe, c, 256 << 20, NULL) == 0, "no memory");
    uint8_t *block = m5_alloc(M5_MEM_TEXT, page * (size_t)n_page), **pages = m5_alloc(M5_MEM_TEXT, (size_t)n_page * sizeof *pages);
    m5_mem_huge_hint(block, page * (size_t)n_page);
    for (int i = 0; i < n_page; i++) pages[i] = block + page * (size_t)i;
    const m5_kv_view view = {pages};
    m5_attn_args g = {a->n_head, a->n_head_kv, a->head_dim, a->page_tok, a->kv, 0, 0, a->window, 0.0625f, a->softcap, &view, NULL, NULL};
    float *q = randoms(n_q, 1), *o = randoms(n_q, 0), *kv = randoms(n_kv, 1);
    int32_t *seq = m5_calloc(M5_MEM_TEXT, (size_t)n_tok, sizeof *seq), *pos = m5_calloc(M5_MEM_TEXT, (size_t)n_tok, sizeof *pos);
    for (int32_t p = 0; p < a->n_ctx; p++)
        for (int l = 0; l < LAYERS; l++) {
            g.seq_of = seq, g.pos = &p, g.k_offset = 2 * part * (size_t)l, g.v_offset = g.k_offset + part;
            m5_cpu_kv_store(c, &g, kv, kv, 1);
        }
    for (int i = 0; i < n_tok; i++) pos[i] = a->n_ctx - n_tok + i;
    g.pos = pos;
    uint64_t sum = 0, least = UINT64_MAX;
    for (int rep = 0; rep < REPS + 2; rep++) {
        const uint64_t t0 = m5_time_us();
        for (int l = 0; l < LAYERS; l++) {
            g.k_offset = 2 * part * (size_t)l, g.v_offset = g.k_offset + part;
            m5_cpu_attention(c, o, q, &g, n_tok);
        }
        const uint64_t t = m5_time_us() - t0;
        if (n_tok < FEW)
            m5_ceiling_probe_read(probe, t);
        else
            m5_ceiling_probe_fma(probe, t);
        if (rep == 1) m5_ceiling_probe_take(probe);
        if (rep > 1) sum += t;
        if (rep > 1 && t < least) least = t;
    }
    const double us = (double)sum / REPS / LAYERS;
    const m5_ceiling ceiling = m5_ceiling_probe_take(probe);
    printf("%-22s %2d rows at %d keys: %8.1f us a layer (least %8.1f), ", name, n_tok, a->n_ctx, us, (double)least / LAYERS);
    /* Per row and head: two multiply-adds for each component of the keys that it sees. */
    const double seen = a->n_ctx - (n_tok - 1) / 2.0, flops = 4.0 * n_tok * a->n_head * a->head_dim * seen;
    if (n_tok < FEW)
        printf("cache read at %5.2f GB/s beside %5.2f GB/s\n", 2 * (double)row * a->n_ctx / us / 1e3, ceiling.read_bytes_s / 1e9);
    else
        printf("%6.1f G operations/s beside %6.1f of f32\n", flops / us / 1e3, ceiling.fma_flops_s / 1e9);
    m5_ceiling_probe_free(probe);
    m5_cpu_close(c);
    m5_free(block), m5_free(pages), m5_free(q), m5_free(o), m5_free(kv), m5_free(seq), m5_free(pos);
}

static int bench(int argc, char **argv)
{
    const int n_tok = argc > 2 ? atoi(argv[2]) : 1, depth = argc > 3 ? atoi(argv[3]) : 4096, n_threads = argc > 4 ? atoi(argv[4]) : 2;
    static const struct {
        const char *name;
        attn_case a;
    } shapes[] = {
        {"Qwen3.5-0.8B F16", {8, 2, 256, 64, 0, 0, M5_KV_F16, 0}},
        {"Qwen3.5-0.8B Q8_0", {8, 2, 256, 64, 0, 0, M5_KV_Q8_0, 0}},
        {"Qwen3.5-0.8B I16", {8, 2, 256, 64, 0, 0, M5_KV_I16, 0}},
        {"SmolLM2-135M I16", {9, 3, 64, 64, 0, 0, M5_KV_I16, 0}},
        {"Llama-3.2-1B I16", {32, 8, 64, 64, 0, 0, M5_KV_I16, 0}},
        {"SmolLM2-135M F16", {9, 3, 64, 64, 0, 0, M5_KV_F16, 0}},
        {"Llama-3.2-1B F16", {32, 8, 64, 64, 0, 0, M5_KV_F16, 0}},
    };
    if (n_tok < 1 || depth < n_tok || n_threads < 1) return 2;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        attn_case a = shapes[i].a;
        if (argc > 5 && !strstr(shapes[i].name, argv[5])) continue;
        a.n_ctx = depth;
        bench_attention(shapes[i].name, &a, n_tok, n_threads);
    }
    return t_done();
}

int main(int argc, char **argv)
{
    if (argc > 1) return bench(argc, argv);
    static const attn_case attn[] = {
        {8, 2, 64, 64, 1100, 0, M5_KV_F32, 0},    {8, 2, 64, 16, 1100, 0, M5_KV_F16, 0},   {4, 4, 48, 32, 600, 100, M5_KV_F32, 50},
        {6, 1, 40, 64, 700, 0, M5_KV_F32, 0},     {4, 2, 24, 24, 300, 290, M5_KV_BF16, 0}, {16, 1, 128, 64, 530, 0, M5_KV_Q8_0, 0},
        {3, 1, 72, 48, 800, 257, M5_KV_F16, 30},  {40, 1, 96, 32, 560, 0, M5_KV_F32, 0},   {8, 2, 256, 64, 520, 0, M5_KV_F16, 0},
        {4, 2, 80, 32, 700, 150, M5_KV_Q8_0, 30}, {8, 2, 256, 64, 600, 0, M5_KV_Q8_0, 0},  {6, 2, 24, 96, 300, 290, M5_KV_Q8_0, 0},
        {1, 1, 640, 32, 330, 0, M5_KV_Q8_0, 0},   {8, 2, 256, 64, 600, 0, M5_KV_I16, 0},   {3, 1, 72, 96, 800, 257, M5_KV_I16, 30},
        {6, 2, 24, 32, 300, 290, M5_KV_I16, 0},   {9, 3, 64, 64, 560, 0, M5_KV_I16, 0},    {1, 1, 640, 32, 330, 0, M5_KV_I16, 0},
    };
    static const gdn_case nets[] = {
        {2, 4, 32, 48, 4, false, 1, 0}, {2, 6, 32, 32, 4, true, 1, 0},     {1, 1, 64, 64, 2, false, 1, 0},  {2, 2, 16, 32, 4, false, 2e-2f, 0},
        {3, 3, 48, 16, 4, true, 1, 25}, {1, 2, 16, 32, 4, false, 1, 4.5f}, {1, 2, 16, 16, 4, true, 1, 900},
    };
    for (int lv = 0; lv < N_MASK; lv++) {
        m5_cpu *c = open_cpu(2, masks[lv]);
        seed = 3;
        rows(c);
        rope(c);
        router(c);
        m5_cpu_close(c);
    }
    for (size_t i = 0; i < sizeof attn / sizeof *attn; i++) attention(&attn[i]);
    window_edge();
    not_a_number(M5_KV_F16);
    not_a_number(M5_KV_I16);
    not_a_number(M5_KV_Q8_0);
    for (size_t i = 0; i < sizeof nets / sizeof *nets; i++) gdn(&nets[i]);
    for (int i = 0; i < M5_MEM_KIND_COUNT; i++) T_EQ_INT(m5_mem_bytes((m5_mem_kind)i), 0);
    return t_done();
}
