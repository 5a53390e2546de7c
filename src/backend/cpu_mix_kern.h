/* SPDX-License-Identifier: Apache-2.0 */
/* Inner loops of the sequence mixers, one table per instruction set. Room: backend/cpu_mix*.c. All levels give the same bits (cpu_mix_vec.h).
 *
 * Row order of additions: sums over a row keep 16 lanes, lane l taking the elements l mod 16 in order, folded at distance 8, 4, 2, 1. */
#ifndef M5_BACKEND_CPU_MIX_KERN_H
#define M5_BACKEND_CPU_MIX_KERN_H

#include "backend/cpu.h"

enum {
    M5_ATTN_BLOCK = 256,   /* keys whose softmax is taken as one; 256 * 32767 * 127 < 2^31 */
    M5_KV_TILE = 16,       /* keys of a Q8_0 tile */
    M5_KV_TILE_BLOCK = 544 /* bytes of 32 components of its keys: 16 factors (f16), then codes (cpu_mix.h) */
};

/* One column tile of S is walked per call, all steps at once, so that it stays in L1. */
typedef struct m5_gdn_steps {
    float *state;                   /* S [k_dim, v_dim] of one value head */
    int k_dim, v_dim, n;            /* n tokens */
    const float *q, *k, *v;         /* [n, k_dim], [n, k_dim], [n, v_dim]; q and k normalised, q scaled */
    const float *decay, *beta, *kq; /* [n]; kq = k . q */
    float *o;                       /* [n, v_dim] or NULL: only the state matters */
    bool keep;                      /* false: S is only read */
} m5_gdn_steps;

typedef struct m5_mix_kernels {
    /* y = x * (1 / sqrt(mean(x^2) + eps)) * w; w may be NULL. */
    void (*rmsnorm)(float *y, const float *x, const float *w, int n, float eps);
    void (*add)(float *x, const float *y, int n);
    void (*scale)(float *x, float a, int n);
    void (*gate)(float *x, const float *g, int n); /* x *= sigmoid(g) */
    void (*softcap)(float *x, float cap, int n);   /* cap * tanh(x / cap) */
    void (*exp)(float *x, float minus, int n);     /* e^(x - minus) */

    /* s[r, j] = softcap(scale * q[r] . k[j]); keys are k_bytes apart. One entry per m5_kv_type but Q8_0. ahead: the rows that will be read after
     * these, to be fetched meanwhile; NULL = unknown. */
    void (*attn_score[3])(float *s, int64_t lds, const float *q, int n_q, const void *k, int64_t k_bytes, int n_key, int head_dim, float scale,
                          float softcap, const void *ahead);
    /* o[r] += sum_j p[r, j] v[j], keys in order. */
    void (*attn_value[3])(float *o, const float *p, int64_t ldp, int n_q, const void *v, int64_t v_bytes, int n_key, int head_dim, const void *ahead);
    /* The same over tiles of 16 keys in Q8_0 (cpu_mix.h), in integers; c . codes and the sum over w are exact. ahead: as many tiles, or NULL.
     *
     *   query   c = round(q * 32767 / max|q|), factor = scale * max|q| / 32767
     *   score   s[r, 16 i + l] = softcap(qf[r] * sum over blocks of 32 components (factor of the key * (c[r] . codes)))
     *   value   o[r] = F / 32767 * sum over j (w[j] * codes[j]), w[j] = round(p[r, j] * f[j] * 32767 / F), for each block of 32 components
     *
     * f: factors of the values, F: the largest of those that row r sees, the keys j in [lo[r], hi[r]) of the tiles. p is 0 for all others. */
    void (*attn_query_q8)(int16_t *c, float *factor, const float *q, int n, float scale);
    void (*attn_score_q8)(float *s, int64_t lds, const int16_t *c, const float *qf, int n_q, const uint8_t *const *tiles, int n_tile, int head_dim,
                          float softcap, const uint8_t *const *ahead);
    void (*attn_value_q8)(float *o, const float *p, int64_t ldp, const int *lo, const int *hi, int n_q, const uint8_t *const *tiles, int n_tile,
                          int head_dim, const uint8_t *const *ahead);
    /* s[0..n) becomes e^(s - max); gives max and sum. May overwrite s[n..n+15]. */
    void (*attn_soft)(float *s, int n, float *max, float *sum);
    /* o = o * a + p * b */
    void (*attn_merge)(float *o, float a, const float *p, float b, int n);

    /* y[c] = silu(sum_j w[j * ldw + c] * x[j][c]) */
    void (*gdn_conv)(float *y, const float *const *x, const float *w, int64_t ldw, int conv, int n);
    /* x *= scale / sqrt(sum(x^2) + eps) */
    void (*gdn_l2norm)(float *x, int n, float eps, float scale);
    float (*dot)(const float *a, const float *b, int n);
    void (*gdn_steps)(const m5_gdn_steps *s);
    /* y = rmsnorm(o, w) * silu(z) */
    void (*gdn_out)(float *y, const float *o, const float *z, const float *w, int n, float eps);
} m5_mix_kernels;

extern const m5_mix_kernels m5_mix_kernels_ref;
extern const m5_mix_kernels m5_mix_kernels_avx2, m5_mix_kernels_avx512; /* x86-64 builds only */
extern const m5_mix_kernels m5_mix_kernels_neon;                        /* aarch64 builds only */

#endif
