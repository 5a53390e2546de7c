/* SPDX-License-Identifier: Apache-2.0 */
/* Inner loops of norms, attention and gated delta net, written once over sixteen lanes and compiled once per instruction set with
 * M5_MIX_TABLE naming the table it exports. Room: backend/cpu_mix*.c. No splitting over threads here. */
#include "backend/cpu_mix_kern.h"

#include <math.h>

#include "backend/cpu_mix_vec.h"

/* Tile sizes: rows x keys of scores, rows x column vectors of values, column vectors of S. They change speed, never bits. */
#if VF_WIDE
enum { SCORE_ROWS = 4, SCORE_KEYS = 4, VALUE_ROWS = 4, VALUE_COLS = 4, GDN_COLS = 2 };
#elif VF_HALVES
enum { SCORE_ROWS = 4, SCORE_KEYS = 2, VALUE_ROWS = 4, VALUE_COLS = 1, GDN_COLS = 1 };
#else
enum { SCORE_ROWS = 2, SCORE_KEYS = 2, VALUE_ROWS = 4, VALUE_COLS = 1, GDN_COLS = 1 };
#endif

/* ---- rows ---- */

static float sum_squares(const float *x, int n)
{
    vf s = vf_set(0.0f);
    int i = 0;
    for (; i + VF <= n; i += VF) {
        vf a = vf_load(x + i);
        s = vf_fma(a, a, s);
    }
    if (i < n) {
        vf a = vf_load_n(x + i, n - i);
        s = vf_fma(a, a, s);
    }
    return vf_sum(s);
}

static float dot(const float *a, const float *b, int n)
{
    vf s = vf_set(0.0f);
    int i = 0;
    for (; i + VF <= n; i += VF) s = vf_fma(vf_load(a + i), vf_load(b + i), s);
    if (i < n) s = vf_fma(vf_load_n(a + i, n - i), vf_load_n(b + i, n - i), s);
    return vf_sum(s);
}

static void rmsnorm(float *y, const float *x, const float *w, int n, float eps)
{
    const float inv = 1.0f / sqrtf(sum_squares(x, n) / (float)n + eps);
    if (!w) {
        for (int i = 0; i < n; i++) y[i] = x[i] * inv;
        return;
    }
    for (int i = 0; i < n; i++) y[i] = x[i] * inv * w[i];
}

static void add(float *x, const float *y, int n)
{
    for (int i = 0; i < n; i++) x[i] += y[i];
}

static void scale(float *x, float a, int n)
{
    for (int i = 0; i < n; i++) x[i] *= a;
}

static void gate(float *x, const float *g, int n)
{
    int i = 0;
    for (; i + VF <= n; i += VF) vf_store(x + i, vf_mul(vf_load(x + i), vf_sigmoid(vf_load(g + i))));
    if (i < n) vf_store_n(x + i, vf_mul(vf_load_n(x + i, n - i), vf_sigmoid(vf_load_n(g + i, n - i))), n - i);
}

VF_INLINE vf cap_one(vf x, float cap)
{
    return vf_mul(vf_set(cap), vf_tanh(vf_div(x, vf_set(cap))));
}

static void softcap(float *x, float cap, int n)
{
    int i = 0;
    for (; i + VF <= n; i += VF) vf_store(x + i, cap_one(vf_load(x + i), cap));
    if (i < n) vf_store_n(x + i, cap_one(vf_load_n(x + i, n - i), cap), n - i);
}

static void exp_row(float *x, float minus, int n)
{
    const vf m = vf_set(minus);
    int i = 0;
    for (; i + VF <= n; i += VF) vf_store(x + i, vf_exp(vf_sub(vf_load(x + i), m)));
    if (i < n) vf_store_n(x + i, vf_exp(vf_sub(vf_load_n(x + i, n - i), m)), n - i);
}

/* ---- attention: head_dim is the padded width of a row, a multiple of 16 ---- */

/* Lanes [d, d + 16) of one head's K or V row. */
VF_INLINE vf kv_load(m5_kv_type t, const uint8_t *p, int d)
{
    switch (t) {
    case M5_KV_F16: return vf_load_f16(p + (size_t)d * 2);
    case M5_KV_BF16: return vf_load_bf16(p + (size_t)d * 2);
    default: return vf_load((const float *)(const void *)p + d);
    }
}

/* Rows of the cache come from memory once per tile. Each step asks for its counterpart in the piece that is read next, into the second-level cache,
 * so that memory works evenly while the arithmetic goes on; the hardware's own prefetch stops at page ends. */
VF_INLINE void kv_prefetch(const uint8_t *p, int64_t n_bytes)
{
    for (int64_t i = 0; i < n_bytes; i += 64) __builtin_prefetch(p + i, 0, 1);
}

/* The i-th of n_part shares of these bytes, in whole lines. */
VF_INLINE void kv_prefetch_share(const uint8_t *p, int64_t n_bytes, int i, int n_part)
{
    const int64_t from = n_bytes * i / n_part / 64 * 64, end = n_bytes * (i + 1) / n_part / 64 * 64;
    kv_prefetch(p + from, end - from);
}

#if VF_HALVES || VF_WIDE
/* With few rows a core takes as long for the arithmetic of a piece as memory for the next one, and waits for both if each row of the cache comes from
 * the second level: here lines are asked for into the first level, as far ahead as it can spare room. Distance measured (docs/SPEED.md). */
enum { KV_AHEAD_BYTES = VF_WIDE ? 10240 : 4096 };
#endif

#if VF_HALVES
/* Bytes [at, at + n) of a piece of n_piece bytes at p are in hand; `ahead` is the piece after it. */
VF_INLINE void kv_prefetch_near(const uint8_t *p, int64_t n_piece, int64_t at, int64_t n, const uint8_t *ahead)
{
    at += KV_AHEAD_BYTES;
    const uint8_t *from = at < n_piece ? p + at : ahead + (at - n_piece);
    for (int64_t i = 0; i < n; i += 64) __builtin_prefetch(from + i, 0, 3);
}
#endif

/* Many rows share K and V: a piece is widened to floats once, in the first-level cache, instead of once per set of rows. Exact, so the bits stay. */
enum { STAGE_FLOATS = 4096, STAGE_ROWS = 2 * SCORE_ROWS + 1 };

VF_INLINE void stage(m5_kv_type t, float *dst, const uint8_t *src, int64_t bytes, int n, int d0, int width)
{
    for (int j = 0; j < n; j++)
        for (int d = 0; d < width; d += VF) vf_store(dst + j * width + d, kv_load(t, src + j * bytes, d0 + d));
}

#if VF_HALVES
VF_INLINE __m256 kv_load_half(m5_kv_type t, const uint8_t *p, int d)
{
    switch (t) {
    case M5_KV_F16: return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(p + (size_t)d * 2)));
    case M5_KV_BF16:
        return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + (size_t)d * 2))), 16));
    default: return _mm256_loadu_ps((const float *)(const void *)p + d);
    }
}

/* Lanes [8 half, 8 half + 8) of the sums of four rows and two keys, [row][key]. Loads for eight products: four of q, two of k. */
VF_INLINE void score_half(m5_kv_type t, int half, __m256 *acc, const float *q, const uint8_t *k, int64_t k_bytes, int hd)
{
    VF_UNROLL for (int i = 0; i < 8; i++) acc[i] = _mm256_setzero_ps();
    for (int d = 8 * half; d < hd; d += VF) {
        __m256 k0 = kv_load_half(t, k, d), k1 = kv_load_half(t, k + k_bytes, d);
        VF_KEEP(k0);
        VF_KEEP(k1);
        VF_UNROLL for (int r = 0; r < 4; r++)
        {
            __m256 x = _mm256_loadu_ps(q + (size_t)r * (size_t)hd + d);
            VF_KEEP(x);
            acc[2 * r] = _mm256_fmadd_ps(x, k0, acc[2 * r]);
            acc[2 * r + 1] = _mm256_fmadd_ps(x, k1, acc[2 * r + 1]);
        }
    }
}

VF_INLINE void score_4x2(m5_kv_type t, float *s, int64_t lds, const float *q, const uint8_t *k, int64_t k_bytes, int hd)
{
    vf acc[8];
    __m256 lower[8], upper[8];
    score_half(t, 0, lower, q, k, k_bytes, hd);
    score_half(t, 1, upper, q, k, k_bytes, hd);
    VF_UNROLL for (int i = 0; i < 8; i++) acc[i] = (vf){lower[i], upper[i]};
    VF_UNROLL for (int r = 0; r < 4; r += 2)
    {
        float two[4];
        vf_sum4(two, acc[2 * r], acc[2 * r + 1], acc[2 * r + 2], acc[2 * r + 3]);
        memcpy(s + r * lds, two, 2 * sizeof(float));
        memcpy(s + (r + 1) * lds, two + 2, 2 * sizeof(float));
    }
}
#endif

VF_INLINE void score_tile(m5_kv_type t, int rows, int keys, float *s, int64_t lds, const float *q, const uint8_t *k, int64_t k_bytes, int hd)
{
#if VF_HALVES
    if (rows == 4 && keys == 2) {
        score_4x2(t, s, lds, q, k, k_bytes, hd);
        return;
    }
#endif
    vf acc[SCORE_ROWS * SCORE_KEYS]; /* [row][key] */
    VF_UNROLL for (int r = 0; r < rows; r++) VF_UNROLL for (int j = 0; j < keys; j++) acc[r * SCORE_KEYS + j] = vf_set(0.0f);
    for (int d = 0; d < hd; d += VF) {
        vf qv[SCORE_ROWS];
        VF_UNROLL for (int r = 0; r < rows; r++) qv[r] = vf_load(q + (size_t)r * (size_t)hd + d);
        VF_UNROLL for (int j = 0; j < keys; j++)
        {
            vf kv = kv_load(t, k + j * k_bytes, d);
            VF_UNROLL for (int r = 0; r < rows; r++) acc[r * SCORE_KEYS + j] = vf_fma(qv[r], kv, acc[r * SCORE_KEYS + j]);
        }
    }
#if VF_WIDE
    if (rows == 4 && keys == 4) {
        vf_sum16(s, lds, acc);
        return;
    }
#endif
    VF_UNROLL for (int r = 0; r < rows; r++)
    {
        const vf *a = acc + r * SCORE_KEYS;
        if (keys == 4) {
            vf_sum4(s + r * lds, a[0], a[1 % SCORE_KEYS], a[2 % SCORE_KEYS], a[3 % SCORE_KEYS]);
        } else {
            VF_UNROLL for (int j = 0; j < keys; j++) s[r * lds + j] = vf_sum(a[j]);
        }
    }
}

VF_INLINE void score_rows(m5_kv_type t, int keys, float *s, int64_t lds, const float *q, int n_q, const uint8_t *k, int64_t k_bytes, int hd)
{
    int r = 0;
    for (; r + SCORE_ROWS <= n_q; r += SCORE_ROWS) score_tile(t, SCORE_ROWS, keys, s + r * lds, lds, q + (size_t)r * (size_t)hd, k, k_bytes, hd);
    for (; SCORE_ROWS > 2 && r + 2 <= n_q; r += 2) score_tile(t, 2, keys, s + r * lds, lds, q + (size_t)r * (size_t)hd, k, k_bytes, hd);
    for (; r < n_q; r++) score_tile(t, 1, keys, s + r * lds, lds, q + (size_t)r * (size_t)hd, k, k_bytes, hd);
}

VF_INLINE void score_keys(m5_kv_type t, float *s, int64_t lds, const float *q, int n_q, const uint8_t *k, int64_t k_bytes, int n_key, int hd,
                          const uint8_t *ahead)
{
    int j = 0;
    for (; j + SCORE_KEYS <= n_key; j += SCORE_KEYS) {
#if VF_HALVES
        if (ahead) kv_prefetch_near(k, n_key * k_bytes, j * k_bytes, SCORE_KEYS * k_bytes, ahead);
#else
        if (ahead) kv_prefetch(ahead + j * k_bytes, SCORE_KEYS * k_bytes);
#endif
        score_rows(t, SCORE_KEYS, s + j, lds, q, n_q, k + j * k_bytes, k_bytes, hd);
    }
    for (; j < n_key; j++) score_rows(t, 1, s + j, lds, q, n_q, k + j * k_bytes, k_bytes, hd);
}

VF_INLINE void attn_score(m5_kv_type t, float *s, int64_t lds, const float *q, int n_q, const void *k, int64_t k_bytes, int n_key, int hd, float sc,
                          float cap, const uint8_t *ahead)
{
    const uint8_t *p = k;
    const int step = STAGE_FLOATS / hd / SCORE_KEYS * SCORE_KEYS;
    if (n_q < STAGE_ROWS || step == 0) {
        score_keys(t, s, lds, q, n_q, p, k_bytes, n_key, hd, VF_HALVES && !ahead ? p : ahead);
    } else {
        _Alignas(64) float wide[STAGE_FLOATS];
        for (int j = 0; j < n_key; j += step) {
            const int n = n_key - j < step ? n_key - j : step;
            stage(t, wide, p + j * k_bytes, k_bytes, n, 0, hd);
            /* A few rows meet all staged keys in turn: q, too large for the first-level cache, passes by once for all of them. */
            const int n_set = (n_q + SCORE_ROWS - 1) / SCORE_ROWS;
            for (int i = 0; i < n_set; i++) {
                const int r = i * SCORE_ROWS;
                if (ahead) kv_prefetch_share(ahead + j * k_bytes, n * k_bytes, i, n_set);
                score_keys(M5_KV_F32, s + r * lds + j, lds, q + (size_t)r * (size_t)hd, n_q - r < SCORE_ROWS ? n_q - r : SCORE_ROWS,
                           (const uint8_t *)wide, hd * (int64_t)sizeof(float), n, hd, NULL);
            }
        }
    }
    for (int r = 0; r < n_q; r++) {
        scale(s + r * lds, sc, n_key);
        if (cap > 0) softcap(s + r * lds, cap, n_key);
    }
}

/* Output lanes [d, d + cols * 16), whose values stand at lane dv of v. */
VF_INLINE void value_tile(m5_kv_type t, int rows, int cols, float *o, int hd, int d, const float *p, int64_t ldp, const uint8_t *v, int64_t v_bytes,
                          int n_key, int dv, const uint8_t *ahead)
{
    vf acc[VALUE_ROWS][VALUE_COLS];
    VF_UNROLL for (int r = 0; r < rows; r++) VF_UNROLL for (int c = 0; c < cols; c++) acc[r][c] = vf_load(o + (size_t)r * (size_t)hd + d + c * VF);
    for (int j = 0; j < n_key; j++) {
        if (ahead) kv_prefetch(ahead + j * v_bytes + d * v_bytes / hd, cols * VF * v_bytes / hd);
        vf vv[VALUE_COLS];
        VF_UNROLL for (int c = 0; c < cols; c++) vv[c] = kv_load(t, v + j * v_bytes, dv + c * VF);
        VF_UNROLL for (int r = 0; r < rows; r++)
        {
            vf pv = vf_set(p[r * ldp + j]);
            VF_UNROLL for (int c = 0; c < cols; c++) acc[r][c] = vf_fma(pv, vv[c], acc[r][c]);
        }
    }
    VF_UNROLL for (int r = 0; r < rows; r++) VF_UNROLL for (int c = 0; c < cols; c++) vf_store(o + (size_t)r * (size_t)hd + d + c * VF, acc[r][c]);
}

/* 64 lanes at a time of as many keys as fit. */
VF_INLINE void value_staged(m5_kv_type t, float *o, const float *p, int64_t ldp, int n_q, const uint8_t *v, int64_t v_bytes, int n_key, int hd,
                            const uint8_t *ahead)
{
    enum { WIDTH = 4 * VF, KEYS = STAGE_FLOATS / WIDTH };
    _Alignas(64) float wide[STAGE_FLOATS];
    for (int j = 0; j < n_key; j += KEYS) {
        const int n = n_key - j < KEYS ? n_key - j : KEYS;
        for (int d = 0; d < hd; d += WIDTH) {
            const int w = hd - d < WIDTH ? hd - d : WIDTH, cols = w == WIDTH ? VALUE_COLS : 1;
            stage(t, wide, v + j * v_bytes, v_bytes, n, d, w);
            const int n_call = w / (cols * VF) * (n_q / VALUE_ROWS);
            int call = 0, done = 0;
            for (int c = 0; c < w; c += cols * VF) {
                const uint8_t *from = (const uint8_t *)wide;
                const int64_t bytes = w * (int64_t)sizeof(float);
                int r = 0;
                for (; r + VALUE_ROWS <= n_q; r += VALUE_ROWS) {
                    for (call++; ahead && done < n * call / n_call; done++)
                        kv_prefetch(ahead + (j + done) * v_bytes + d * v_bytes / hd, w * v_bytes / hd);
                    float *to = o + (size_t)r * (size_t)hd;
                    const float *pr = p + r * ldp + j;
                    if (cols == VALUE_COLS)
                        value_tile(M5_KV_F32, VALUE_ROWS, VALUE_COLS, to, hd, d + c, pr, ldp, from, bytes, n, c, NULL);
                    else
                        value_tile(M5_KV_F32, VALUE_ROWS, 1, to, hd, d + c, pr, ldp, from, bytes, n, c, NULL);
                }
                for (; r < n_q; r++)
                    for (int i = 0; i < cols; i++)
                        value_tile(M5_KV_F32, 1, 1, o + (size_t)r * (size_t)hd, hd, d + c + i * VF, p + r * ldp + j, ldp, from, bytes, n, c + i * VF,
                                   NULL);
            }
        }
    }
}

#if VF_HALVES
/* Few rows: some keys at a time, in the order in which they lie in memory, instead of a column of them all. The sums wait in o between two times. */
VF_INLINE void value_rows(m5_kv_type t, int rows, float *o, const float *p, int64_t ldp, const uint8_t *v, int64_t v_bytes, int n_key, int hd,
                          const uint8_t *ahead)
{
    enum { KEYS = 8 };
    for (int j = 0; j < n_key; j += KEYS) {
        const int n = n_key - j < KEYS ? n_key - j : KEYS;
        const int64_t share = n * v_bytes * VF / hd;
        for (int d = 0; d < hd; d += VF) {
            if (ahead) kv_prefetch_near(v, n_key * v_bytes, j * v_bytes + d / VF * share, share, ahead);
            value_tile(t, rows, 1, o, hd, d, p + j, ldp, v + j * v_bytes, v_bytes, n, d, NULL);
        }
    }
}
#else
VF_INLINE void value_rows(m5_kv_type t, int rows, float *o, const float *p, int64_t ldp, const uint8_t *v, int64_t v_bytes, int n_key, int hd,
                          const uint8_t *ahead)
{
    int d = 0;
    for (; d + VALUE_COLS * VF <= hd; d += VALUE_COLS * VF) value_tile(t, rows, VALUE_COLS, o, hd, d, p, ldp, v, v_bytes, n_key, d, ahead);
    for (; d < hd; d += VF) value_tile(t, rows, 1, o, hd, d, p, ldp, v, v_bytes, n_key, d, ahead);
}
#endif

VF_INLINE void attn_value(m5_kv_type t, float *o, const float *p, int64_t ldp, int n_q, const void *v, int64_t v_bytes, int n_key, int hd,
                          const uint8_t *ahead)
{
    if (n_q >= STAGE_ROWS) {
        value_staged(t, o, p, ldp, n_q, v, v_bytes, n_key, hd, ahead);
        return;
    }
    if (VF_HALVES && !ahead) ahead = v; /* unknown: the rest of this piece at least */
    for (int r = 0, rows; r < n_q; r += rows, ahead = NULL) {
        const int left = n_q - r;
        float *to = o + (size_t)r * (size_t)hd;
        const float *pr = p + r * ldp;
        rows = left >= VALUE_ROWS ? VALUE_ROWS : VF_HALVES ? left : 1;
        if (rows == VALUE_ROWS)
            value_rows(t, VALUE_ROWS, to, pr, ldp, v, v_bytes, n_key, hd, ahead);
        else if (VF_HALVES && rows == 3)
            value_rows(t, 3, to, pr, ldp, v, v_bytes, n_key, hd, ahead);
        else if (VF_HALVES && rows == 2)
            value_rows(t, 2, to, pr, ldp, v, v_bytes, n_key, hd, ahead);
        else
            value_rows(t, 1, to, pr, ldp, v, v_bytes, n_key, hd, ahead);
    }
}

#define KV_KERNELS(suffix, type)                                                                                                                     \
    static void attn_score_##suffix(float *s, int64_t lds, const float *q, int n_q, const void *k, int64_t k_bytes, int n_key, int hd, float sc,     \
                                    float cap, const void *ahead)                                                                                    \
    {                                                                                                                                                \
        attn_score(type, s, lds, q, n_q, k, k_bytes, n_key, hd, sc, cap, ahead);                                                                     \
    }                                                                                                                                                \
    static void attn_value_##suffix(float *o, const float *p, int64_t ldp, int n_q, const void *v, int64_t v_bytes, int n_key, int hd,               \
                                    const void *ahead)                                                                                               \
    {                                                                                                                                                \
        attn_value(type, o, p, ldp, n_q, v, v_bytes, n_key, hd, ahead);                                                                              \
    }
KV_KERNELS(f16, M5_KV_F16)
KV_KERNELS(bf16, M5_KV_BF16)
KV_KERNELS(f32, M5_KV_F32)

static void attn_soft(float *s, int n, float *max, float *sum)
{
    const int n_pad = (n + VF - 1) / VF * VF;
    for (int i = n; i < n_pad; i++) s[i] = -INFINITY;
    vf m = vf_load(s);
    for (int i = VF; i < n_pad; i += VF) m = vf_max(m, vf_load(s + i));
    *max = vf_max_lane(m);
    m = vf_set(*max);
    vf l = vf_set(0.0f);
    for (int i = 0; i < n_pad; i += VF) {
        vf e = vf_exp(vf_sub(vf_load(s + i), m));
        vf_store(s + i, e);
        l = vf_add(l, e);
    }
    *sum = vf_sum(l);
}

static void attn_merge(float *o, float a, const float *p, float b, int n)
{
    const vf va = vf_set(a), vb = vf_set(b);
    int i = 0;
    for (; i + VF <= n; i += VF) vf_store(o + i, vf_fma(vf_load(p + i), vb, vf_mul(vf_load(o + i), va)));
    if (i < n) vf_store_n(o + i, vf_fma(vf_load_n(p + i, n - i), vb, vf_mul(vf_load_n(o + i, n - i), va)), n - i);
}

/* ---- attention over codes: tiles of 32 keys (cpu_mix.h), products of 16-bit integers, exact in 32 bits ----
 *
 * Both products have the same shape: a few rows of 16-bit codes, taken pair by pair, times the 16 x 32 pairs of a block of 32 keys and 32 components.
 * For scores the lanes are keys and the pairs run along the head; for values the lanes are components and the pairs run along the keys. Per 16
 * products and row: one multiply-add of pairs and one addition (or both in one instruction), half of what float products need. The exact sum of a
 * block becomes a float, and these are added in order. */

enum {
    CODE_ROWS = VF_WIDE ? 8 : 4,
    CODE_COLS = VF_WIDE ? 2 : 1, /* vectors of 16 lanes, of two in a block */
    CODE_STAGE = 8192,
    CODE_STAGE_ROWS = 2 * CODE_ROWS + 1,
    TILE = M5_KV_TILE,
    TILES = M5_ATTN_BLOCK / TILE
};

/* acc[r][c] = sum over the 16 pairs of x[r] times lanes of the unit of codes at y + c * ldy, `bytes` bytes each. next: a unit that will be read soon,
 * or NULL. */
VF_INLINE void code_dot(int bytes, int rows, vi *acc, const int16_t *x, int64_t ldx, const uint8_t *y, int64_t ldy, const uint8_t *next)
{
#if VF_HALVES || VF_WIDE
    if (next)
        vi_dot_block(bytes, rows, true, acc, x, ldx, y, ldy, next);
    else
        vi_dot_block(bytes, rows, false, acc, x, ldx, y, ldy, y);
#else
    (void)ldy;
    for (int64_t k = 0; next && k < M5_KV_UNIT * bytes; k += 64) __builtin_prefetch(next + k, 0, 1);
    VF_UNROLL for (int r = 0; r < rows; r++) acc[r] = vi_zero();
    VF_UNROLL_4 for (int i = 0; i < TILE / 2; i++)
    {
        const uint8_t *p = y + i * 2 * VF * bytes;
        const vi v = bytes == 2 ? vi_load((const int16_t *)(const void *)p) : vi_load_i8(p);
        VF_UNROLL for (int r = 0; r < rows; r++) acc[r] = vi_dot(acc[r], vi_pair(x + r * ldx + 2 * i), v);
    }
#endif
}

static void attn_query_codes(int16_t *c, float *factor, const float *q, int n, float sc, int q_max)
{
    vf m = vf_set(0.0f);
    for (int i = 0; i < n; i += VF) m = vf_max(m, vf_abs(vf_load(q + i)));
    const float max = vf_max_lane(m), limit = (float)q_max;
    const vf inv = vf_set(max > 1e-30f ? limit / max : 0.0f), top = vf_set(limit);
    for (int i = 0; i < n; i += VF) vf_round_i16(c + i, vf_max(vf_sub(vf_set(0.0f), top), vf_min(vf_mul(vf_load(q + i), inv), top)));
    *factor = max / limit * sc;
}

/* Tiles in the order in which few rows read them, and as many that are read afterwards (NULL: unknown). */
typedef struct code_stream {
    const uint8_t *const *tiles, *const *ahead;
    int n_tile, bytes, hd;
} code_stream;

/* The unit to ask for while step `step` of tile i is in hand, CODE_COLS units: shortly before it is read, into the first-level cache
 * (KV_AHEAD_BYTES), elsewhere the counterpart in `ahead`. The factors of its tile are asked for here. Where it is not known: one that is there
 * already. Units are asked for in the order in which they lie, not in that of their use: the processor's own fetching follows it. */
VF_INLINE const uint8_t *code_next(const code_stream *s, int i, int step)
{
    const int unit = M5_KV_UNIT * s->bytes, n_step = s->hd / (16 * CODE_COLS);
#if VF_HALVES || VF_WIDE
    step += KV_AHEAD_BYTES / (unit * CODE_COLS);
    i += step / n_step;
    step %= n_step;
    const uint8_t *p = i < s->n_tile ? s->tiles[i] : s->ahead && i < 2 * s->n_tile ? s->ahead[i - s->n_tile] : NULL;
#else
    (void)n_step;
    const uint8_t *p = s->ahead ? s->ahead[i] : NULL;
#endif
    if (!p) return s->tiles[0] + 2 * s->hd;
    for (int64_t k = 0; step == 0 && k < 2 * s->hd; k += 64) __builtin_prefetch(p + k, 0, 3);
    return p + 2 * s->hd + step * CODE_COLS * unit;
}

/* Scores of `rows` rows and keys [16 g, 16 (g + CODE_COLS)) of a tile. codes: of the tile, `bytes` wide there. in: the stream whose tile `at` this
 * is, or NULL: nothing to be fetched. */
VF_INLINE void score_codes(int bytes, int rows, int g, float *s, int64_t lds, const int16_t *q, const float *qf, const uint8_t *tile,
                           const uint8_t *codes, int hd, const code_stream *in, int at)
{
    vf sum[CODE_ROWS * CODE_COLS];
    VF_UNROLL for (int i = 0; i < rows * CODE_COLS; i++) sum[i] = vf_set(0.0f);
    for (int b = 0; b < hd / 32; b++) {
        vi acc[CODE_ROWS * CODE_COLS];
        const int u = g * (hd / 32) + b;
        code_dot(bytes, rows, acc, q + b * 32, hd, codes + u * M5_KV_UNIT * bytes, hd / 32 * M5_KV_UNIT * bytes,
                 in ? code_next(in, at, u) : NULL);
        VF_UNROLL for (int c = 0; c < CODE_COLS; c++)
        {
            const vf f = vf_load_f16(tile + (b * TILE + (g + c) * VF) * 2);
            VF_UNROLL for (int r = 0; r < rows; r++)
                sum[r * CODE_COLS + c] = vf_fma(f, vi_float(acc[r * CODE_COLS + c]), sum[r * CODE_COLS + c]);
        }
    }
    VF_UNROLL for (int r = 0; r < rows; r++) VF_UNROLL for (int c = 0; c < CODE_COLS; c++)
        vf_store(s + r * lds + (g + c) * VF, vf_mul(sum[r * CODE_COLS + c], vf_set(qf[r])));
}

/* The number of rows that go together where `left` are left. */
VF_INLINE int code_rows(int left)
{
    return left >= CODE_ROWS ? CODE_ROWS : left >= 4 ? 4 : left == 3 && VF_HALVES ? 3 : left >= 2 ? 2 : 1;
}

VF_INLINE void score_code_rows(int bytes, float *s, int64_t lds, const int16_t *q, const float *qf, int n_q, const uint8_t *tile,
                               const uint8_t *codes, int hd, const code_stream *in, int at)
{
    for (int r = 0, rows; r < n_q; r += rows, in = NULL) {
        float *to = s + r * lds;
        const int16_t *from = q + (size_t)r * (size_t)hd;
        rows = code_rows(n_q - r);
        for (int g = 0; g < TILE / VF; g += CODE_COLS) {
            if (rows == CODE_ROWS)
                score_codes(bytes, CODE_ROWS, g, to, lds, from, qf + r, tile, codes, hd, in, at);
            else if (CODE_ROWS > 4 && rows == 4)
                score_codes(bytes, 4, g, to, lds, from, qf + r, tile, codes, hd, in, at);
            else if (VF_HALVES && rows == 3)
                score_codes(bytes, 3, g, to, lds, from, qf + r, tile, codes, hd, in, at);
            else if (rows == 2)
                score_codes(bytes, 2, g, to, lds, from, qf + r, tile, codes, hd, in, at);
            else
                score_codes(bytes, 1, g, to, lds, from, qf + r, tile, codes, hd, in, at);
        }
    }
}

/* Few rows: tile after tile. */
VF_INLINE void score_few(const code_stream *in, float *s, int64_t lds, const int16_t *q, const float *qf, int n_q)
{
    for (int i = 0; i < in->n_tile; i++) {
        if (in->bytes == 2)
            score_code_rows(2, s + i * TILE, lds, q, qf, n_q, in->tiles[i], in->tiles[i] + 2 * in->hd, in->hd, in, i);
        else
            score_code_rows(1, s + i * TILE, lds, q, qf, n_q, in->tiles[i], in->tiles[i] + 2 * in->hd, in->hd, in, i);
    }
}

/* Many rows: a few of them meet a tile, widened to 16 bits, while it is in the first-level cache. */
static void score_many(const code_stream *in, float *s, int64_t lds, const int16_t *q, const float *qf, int n_q)
{
    _Alignas(64) int16_t wide[CODE_STAGE];
    const int tile_codes = in->hd * TILE, n_set = (n_q + CODE_ROWS - 1) / CODE_ROWS;
    const bool fits = tile_codes <= CODE_STAGE;
    for (int i = 0; i < in->n_tile; i++) {
        const uint8_t *codes = in->tiles[i] + 2 * in->hd;
        if (in->bytes == 1 && fits) {
            for (int k = 0; k < tile_codes; k += 2 * VF) vi_store(wide + k, vi_load_i8(codes + k));
            codes = (const uint8_t *)wide;
        }
        for (int set = 0; set < n_set; set++) {
            const int r = set * CODE_ROWS, rows = n_q - r < CODE_ROWS ? n_q - r : CODE_ROWS;
            if (in->ahead) kv_prefetch_share(in->ahead[i], 2 * in->hd + tile_codes * in->bytes, set, n_set);
            if (in->bytes == 2 || fits)
                score_code_rows(2, s + r * lds + i * TILE, lds, q + (size_t)r * (size_t)in->hd, qf + r, rows, in->tiles[i], codes, in->hd, NULL, 0);
            else
                score_code_rows(1, s + r * lds + i * TILE, lds, q + (size_t)r * (size_t)in->hd, qf + r, rows, in->tiles[i], codes, in->hd, NULL, 0);
        }
    }
}

static void attn_score_codes(m5_kv_type t, float *s, int64_t lds, const int16_t *q, const float *qf, int n_q, const uint8_t *const *tiles, int n_tile,
                             int hd, float cap, const uint8_t *const *ahead)
{
    const code_stream in = {tiles, ahead, n_tile, t == M5_KV_Q8_0 ? 1 : 2, hd};
    if (n_q >= CODE_STAGE_ROWS)
        score_many(&in, s, lds, q, qf, n_q);
    else
        score_few(&in, s, lds, q, qf, n_q);
    for (int r = 0; cap > 0 && r < n_q; r++) softcap(s + r * lds, cap, n_tile * TILE);
}

static void attn_weight_codes(int16_t *w, float *factor, const float *p, int n)
{
    for (int i = 0; i < n; i += TILE, factor++) {
        const vf lower = vf_load(p + i), upper = vf_load(p + i + VF), top = vf_set(32767.0f);
        const float max = vf_max_lane(vf_max(lower, upper));
        const vf inv = vf_set(max > 1e-30f ? 32767.0f / max : 0.0f);
        vf_round_i16(w + i, vf_min(vf_mul(lower, inv), top));
        vf_round_i16(w + i + VF, vf_min(vf_mul(upper, inv), top));
        *factor = max / 32767.0f;
    }
}

/* The factors of the values of a tile and block of components against the largest of them: codes up to w_max. Keys outside [lo, hi) of the tile count
 * as 0; what lies there may be anything. Returns what products with these codes have to be multiplied by, NaN if a factor is (m5_kv_store_codes). */
VF_INLINE float value_factors(int16_t *codes, const uint8_t *tile, int b, int lo, int hi, float w_max)
{
    vf lower = vf_load_f16(tile + b * TILE * 2), upper = vf_load_f16(tile + (b * TILE + VF) * 2);
    if (lo > 0 || hi < TILE) {
        float f[TILE];
        vf_store(f, lower);
        vf_store(f + VF, upper);
        for (int j = 0; j < lo && j < TILE; j++) f[j] = 0;
        for (int j = hi > 0 ? hi : 0; j < TILE; j++) f[j] = 0;
        lower = vf_load(f);
        upper = vf_load(f + VF);
    }
    const float max = vf_max_lane(vf_max(lower, upper)), sum = vf_sum(vf_add(lower, upper));
    const bool number = sum == sum;
    const vf inv = vf_set(number && max > 1e-30f ? w_max / max : 0.0f), top = vf_set(w_max);
    vf_round_i16(codes, vf_min(vf_mul(lower, inv), top));
    vf_round_i16(codes + VF, vf_min(vf_mul(upper, inv), top));
    if (!number) return sum;
    /* Weights and factors are both below 2^15, their product is shifted by 15. */
    return max > 1e-30f ? max / w_max * 32768.0f : 0.0f;
}

/* What value_codes adds up: n sums of 32 keys and 32 components each. */
typedef struct value_sums {
    const int16_t *codes;    /* of the weights, [row][M5_ATTN_BLOCK], 32 for each sum */
    const float *factor;     /* [row][TILES] */
    const uint8_t *const *y; /* codes of the values */
    int n;
    bool more; /* they are added to what is there */
} value_sums;

/* The sums of `rows` rows, lanes [16 g, 16 (g + CODE_COLS)) of a block of components at o. in: the stream whose tile t and block b the only sum is,
 * or NULL: nothing to be fetched. */
VF_INLINE void value_codes(int bytes, int rows, int g, float *o, int hd, const value_sums *v, const code_stream *in, int t, int b)
{
    vf sum[CODE_ROWS * CODE_COLS];
    VF_UNROLL for (int r = 0; r < rows; r++) VF_UNROLL for (int c = 0; c < CODE_COLS; c++)
        sum[r * CODE_COLS + c] = v->more ? vf_load(o + (size_t)r * (size_t)hd + (g + c) * VF) : vf_set(0.0f);
    for (int i = 0; i < v->n; i++) {
        vi acc[CODE_ROWS * CODE_COLS];
        code_dot(bytes, rows, acc, v->codes + i * TILE, M5_ATTN_BLOCK, v->y[i] + g * M5_KV_UNIT * bytes, M5_KV_UNIT * bytes,
                 in ? code_next(in, t, (2 * b + g) / CODE_COLS) : NULL);
        VF_UNROLL for (int r = 0; r < rows; r++)
        {
            const vf f = vf_set(v->factor[r * TILES + i]);
            VF_UNROLL for (int c = 0; c < CODE_COLS; c++)
                sum[r * CODE_COLS + c] = vf_fma(f, vi_float(acc[r * CODE_COLS + c]), sum[r * CODE_COLS + c]);
        }
    }
    VF_UNROLL for (int r = 0; r < rows; r++) VF_UNROLL for (int c = 0; c < CODE_COLS; c++)
        vf_store(o + (size_t)r * (size_t)hd + (g + c) * VF, sum[r * CODE_COLS + c]);
}

VF_INLINE void value_code_rows(int bytes, int n_row, float *o, int hd, const value_sums *v, const code_stream *in, int t, int b)
{
    for (int r = 0, rows; r < n_row; r += rows, in = NULL) {
        rows = code_rows(n_row - r);
        const value_sums from = {v->codes + r * M5_ATTN_BLOCK, v->factor + r * TILES, v->y, v->n, v->more};
        for (int g = 0; g < TILE / VF; g += CODE_COLS) {
            float *to = o + (size_t)r * (size_t)hd;
            if (rows == CODE_ROWS)
                value_codes(bytes, CODE_ROWS, g, to, hd, &from, in, t, b);
            else if (CODE_ROWS > 4 && rows == 4)
                value_codes(bytes, 4, g, to, hd, &from, in, t, b);
            else if (VF_HALVES && rows == 3)
                value_codes(bytes, 3, g, to, hd, &from, in, t, b);
            else if (rows == 2)
                value_codes(bytes, 2, g, to, hd, &from, in, t, b);
            else
                value_codes(bytes, 1, g, to, hd, &from, in, t, b);
        }
    }
}

/* Codes of the weights of a set of rows, for n tiles and one block of components or for one tile and n blocks: w the rows' first weights, w_step from
 * one of the n to the next (codes; w_factor then goes on by f_step), f_codes and f from value_factors. */
VF_INLINE void weigh(int16_t *codes, float *factor, const int16_t *w, int w_step, const float *w_factor, int f_step, const int16_t *f_codes,
                     const float *f, int n)
{
    for (int i = 0; i < n; i++) vi_store(codes + i * TILE, vi_mul_shift(vi_load(w + i * w_step), vi_load(f_codes + i * TILE)));
    for (int i = 0; i < n; i++) factor[i] = w_factor[i * f_step] * f[i];
}

/* Few rows: tile after tile, in the order in which they lie, TILES blocks of components at a time. */
VF_INLINE void value_few(int bytes, const m5_attn_values *a)
{
    _Alignas(64) int16_t codes[CODE_ROWS * M5_ATTN_BLOCK], f_codes[M5_ATTN_BLOCK];
    float f[TILES], factor[CODE_ROWS * TILES];
    const int n_block = a->head_dim / 32;
    const code_stream in = {a->tiles, a->ahead, a->n_tile, bytes, a->head_dim};
    for (int t = 0; t < a->n_tile; t++) {
        for (int b0 = 0; b0 < n_block; b0 += TILES) {
            const int n = n_block - b0 < TILES ? n_block - b0 : TILES;
            int f_lo = -1, f_hi = -1;
            for (int r = 0, rows; r < a->n_q; r += rows) {
                rows = a->n_q - r < CODE_ROWS ? a->n_q - r : CODE_ROWS;
                for (int k = 0; k < rows; k++) {
                    if (a->lo[r + k] != f_lo || a->hi[r + k] != f_hi) {
                        f_lo = a->lo[r + k];
                        f_hi = a->hi[r + k];
                        for (int i = 0; i < n; i++)
                            f[i] = value_factors(f_codes + i * TILE, a->tiles[t], b0 + i, f_lo - t * TILE, f_hi - t * TILE, (float)a->w_max);
                    }
                    weigh(codes + k * M5_ATTN_BLOCK, factor + k * TILES, a->w + (r + k) * M5_ATTN_BLOCK + t * TILE, 0,
                          a->factor + (r + k) * TILES + t, 0, f_codes, f, n);
                }
                for (int i = 0; i < n; i++) {
                    const uint8_t *y = a->tiles[t] + 2 * a->head_dim + (b0 + i) * 2 * M5_KV_UNIT * bytes;
                    const value_sums v = {codes + i * TILE, factor + i, &y, 1, t > 0};
                    value_code_rows(bytes, rows, a->o + (size_t)r * (size_t)a->head_dim + (b0 + i) * 32, a->head_dim, &v, r ? NULL : &in, t, b0 + i);
                }
            }
        }
    }
}

/* Many rows: a column of components of all keys at a time, in the first-level cache, widened to 16 bits. */
static void value_many(int bytes, const m5_attn_values *a)
{
    _Alignas(64) int16_t wide[32 * M5_ATTN_BLOCK], codes[CODE_ROWS * M5_ATTN_BLOCK], f_codes[M5_ATTN_BLOCK];
    const uint8_t *y[TILES];
    float f[TILES], factor[CODE_ROWS * TILES];
    const int share = a->tile_bytes / (a->head_dim / 32), n_set = (a->n_q + CODE_ROWS - 1) / CODE_ROWS;
    for (int b = 0; b < a->head_dim / 32; b++) {
        for (int t = 0; t < a->n_tile; t++) {
            y[t] = a->tiles[t] + 2 * a->head_dim + b * 2 * M5_KV_UNIT * bytes;
            if (bytes == 2) continue;
            int16_t *to = wide + t * 2 * M5_KV_UNIT;
            for (int k = 0; k < 2 * M5_KV_UNIT; k += 2 * VF) vi_store(to + k, vi_load_i8(y[t] + k));
            y[t] = (const uint8_t *)to;
        }
        int f_lo = -1, f_hi = -1;
        for (int set = 0; set < n_set; set++) {
            const int r = set * CODE_ROWS, rows = a->n_q - r < CODE_ROWS ? a->n_q - r : CODE_ROWS;
            for (int t = 0; a->ahead && t < a->n_tile; t++) kv_prefetch_share(a->ahead[t] + b * share, share, set, n_set);
            for (int k = 0; k < rows; k++) {
                if (a->lo[r + k] != f_lo || a->hi[r + k] != f_hi) {
                    f_lo = a->lo[r + k];
                    f_hi = a->hi[r + k];
                    for (int t = 0; t < a->n_tile; t++)
                        f[t] = value_factors(f_codes + t * TILE, a->tiles[t], b, f_lo - t * TILE, f_hi - t * TILE, (float)a->w_max);
                }
                weigh(codes + k * M5_ATTN_BLOCK, factor + k * TILES, a->w + (r + k) * M5_ATTN_BLOCK, TILE, a->factor + (r + k) * TILES, 1, f_codes, f,
                      a->n_tile);
            }
            const value_sums v = {codes, factor, y, a->n_tile, false};
            value_code_rows(2, rows, a->o + (size_t)r * (size_t)a->head_dim + b * 32, a->head_dim, &v, NULL, 0, b);
        }
    }
}

static void attn_value_codes(m5_kv_type t, const m5_attn_values *a)
{
    const int bytes = t == M5_KV_Q8_0 ? 1 : 2;
    if (a->n_q >= CODE_STAGE_ROWS)
        value_many(bytes, a);
    else if (bytes == 1)
        value_few(1, a);
    else
        value_few(2, a);
}

/* ---- gated delta net ---- */

static void gdn_conv(float *y, const float *const *x, const float *w, int64_t ldw, int conv, int n)
{
    for (int i = 0; i < n; i += VF) {
        vf s = vf_set(0.0f);
        for (int j = 0; j < conv; j++) s = vf_fma(vf_load(w + j * ldw + i), vf_load(x[j] + i), s);
        vf_store(y + i, vf_silu(s));
    }
}

static void gdn_l2norm(float *x, int n, float eps, float sc)
{
    scale(x, sc / sqrtf(sum_squares(x, n) + eps), n);
}

/* S as it is before token t: with the write of token t - 1 applied (decay, k outer delta) when `write`. Gathers S^T k and S^T q of token t on the
 * way, even and odd rows apart. Per element and token: load, store, mul, 3 fma. */
VF_INLINE void gdn_pass(int cols, bool write, bool store, float *dst, const float *src, int64_t ld_dst, int64_t ld_src, int dk, float decay,
                        const float *kw, const vf *delta, const float *k, const float *q, vf *sk, vf *sq)
{
    vf ak[2][GDN_COLS], aq[2][GDN_COLS];
    const vf vd = vf_set(decay);
    VF_UNROLL for (int p = 0; p < 2; p++) VF_UNROLL for (int c = 0; c < cols; c++) ak[p][c] = aq[p][c] = vf_set(0.0f);
    for (int i = 0; i < dk; i += 2) {
        VF_UNROLL for (int p = 0; p < 2; p++)
        {
            const vf vk = vf_set(k[i + p]), vq = vf_set(q[i + p]);
            VF_UNROLL for (int c = 0; c < cols; c++)
            {
                vf s = vf_load(src + (i + p) * ld_src + c * VF);
                if (write) s = vf_fma(vf_set(kw[i + p]), delta[c], vf_mul(s, vd));
                if (store) vf_store(dst + (i + p) * ld_dst + c * VF, s);
                ak[p][c] = vf_fma(vk, s, ak[p][c]);
                aq[p][c] = vf_fma(vq, s, aq[p][c]);
            }
        }
    }
    VF_UNROLL for (int c = 0; c < cols; c++)
    {
        sk[c] = vf_add(ak[0][c], ak[1][c]);
        sq[c] = vf_add(aq[0][c], aq[1][c]);
    }
}

VF_INLINE void gdn_write(int cols, float *s, int64_t ld, int dk, float decay, const float *k, const vf *delta)
{
    const vf vd = vf_set(decay);
    for (int i = 0; i < dk; i++) {
        const vf vk = vf_set(k[i]);
        VF_UNROLL for (int c = 0; c < cols; c++)
        {
            float *p = s + i * ld + c * VF;
            vf_store(p, vf_fma(vk, delta[c], vf_mul(vf_load(p), vd)));
        }
    }
}

/* Columns [j, j + cols * 16) over all tokens. Decayed S enters the sums as decay * (S^T k), which saves a multiplication per element:
 *   delta = beta (v - decay S^T k),  o = decay S^T q + (k . q) delta,  S = decay S + k outer delta.
 * The write of a token waits for the next token's pass. Without keep it goes to a copy in L1, the state is only read. */
enum { GDN_COPY_FLOATS = 256 * GDN_COLS * VF };
VF_INLINE void gdn_tile(int cols, const m5_gdn_steps *g, int j, float *copy)
{
    const int dk = g->k_dim;
    const int64_t ld = g->v_dim;
    float *s = g->state + j;
    vf sk[GDN_COLS], sq[GDN_COLS], delta[GDN_COLS];
    for (int t = 0; t < g->n; t++) {
        const float *k = g->k + (size_t)t * (size_t)dk, *q = g->q + (size_t)t * (size_t)dk;
        if (t == 0) {
            gdn_pass(cols, false, false, NULL, s, 0, ld, dk, 1.0f, NULL, delta, k, q, sk, sq);
        } else if (g->keep) {
            gdn_pass(cols, true, true, s, s, ld, ld, dk, g->decay[t - 1], k - dk, delta, k, q, sk, sq);
        } else {
            const bool first = t == 1;
            gdn_pass(cols, true, true, copy, first ? s : copy, cols * VF, first ? ld : cols * VF, dk, g->decay[t - 1], k - dk, delta, k, q, sk, sq);
        }
        const vf d = vf_set(g->decay[t]), b = vf_set(g->beta[t]), kq = vf_set(g->kq[t]);
        VF_UNROLL for (int c = 0; c < cols; c++)
        {
            vf v = vf_load(g->v + (size_t)t * (size_t)ld + j + c * VF);
            delta[c] = vf_mul(b, vf_sub(v, vf_mul(d, sk[c])));
            if (g->o) vf_store(g->o + (size_t)t * (size_t)ld + j + c * VF, vf_fma(kq, delta[c], vf_mul(d, sq[c])));
        }
    }
    if (g->keep && g->n > 0) gdn_write(cols, s, ld, dk, g->decay[g->n - 1], g->k + (size_t)(g->n - 1) * (size_t)dk, delta);
}

static void gdn_steps(const m5_gdn_steps *g)
{
    float copy[GDN_COPY_FLOATS];
    int j = 0;
    for (; j + GDN_COLS * VF <= g->v_dim; j += GDN_COLS * VF) gdn_tile(GDN_COLS, g, j, copy);
    for (; j < g->v_dim; j += VF) gdn_tile(1, g, j, copy);
}

static void gdn_out(float *y, const float *o, const float *z, const float *w, int n, float eps)
{
    const vf inv = vf_set(1.0f / sqrtf(sum_squares(o, n) / (float)n + eps));
    for (int i = 0; i < n; i += VF) vf_store(y + i, vf_mul(vf_mul(vf_mul(vf_load(o + i), inv), vf_load(w + i)), vf_silu(vf_load(z + i))));
}

const m5_mix_kernels M5_MIX_TABLE = {
    .rmsnorm = rmsnorm,
    .add = add,
    .scale = scale,
    .gate = gate,
    .softcap = softcap,
    .exp = exp_row,
    .attn_score = {attn_score_f16, attn_score_bf16, attn_score_f32},
    .attn_value = {attn_value_f16, attn_value_bf16, attn_value_f32},
    .attn_query_codes = attn_query_codes,
    .attn_score_codes = attn_score_codes,
    .attn_weight_codes = attn_weight_codes,
    .attn_value_codes = attn_value_codes,
    .attn_soft = attn_soft,
    .attn_merge = attn_merge,
    .gdn_conv = gdn_conv,
    .gdn_l2norm = gdn_l2norm,
    .dot = dot,
    .gdn_steps = gdn_steps,
    .gdn_out = gdn_out,
};
