/* SPDX-License-Identifier: Apache-2.0 */
/* Inner loops of the sequence mixers, one table per instruction set. Room: backend/cpu_mix*.c. All levels give the same bits (cpu_mix_vec.h).
 *
 * Row order of additions: sums over a row keep 16 lanes, lane l taking the elements l mod 16 in order, folded at distance 8, 4, 2, 1. */
#ifndef M5_BACKEND_CPU_MIX_KERN_H
#define M5_BACKEND_CPU_MIX_KERN_H

#include "backend/cpu.h"

enum {
    M5_ATTN_BLOCK = 256, /* keys whose softmax is taken as one */
    M5_KV_TILE = 32,     /* keys of a tile of codes (cpu_mix.h); their weights have one scale, their weighted values are one exact sum */
    M5_KV_UNIT = 512     /* codes of 16 pairs and 16 lanes, half of what 32 keys have in 32 components */
};

/* How the integers of a type of cache are made. Every exact sum has 32 products, 32 * k_max * q_max and 32 * v_max * w_max are below 2^31. */
typedef struct m5_kv_code {
    int bytes;        /* of a code in the cache; 0: floats */
    int k_max, v_max; /* largest code of keys and of values */
    int q_max, w_max; /* of queries, and of softmax weights times the values' factors */
} m5_kv_code;
m5_kv_code m5_kv_code_of(m5_kv_type t);

/* Weighted values of a block: see attn_value_codes. */
typedef struct m5_attn_values {
    float *o;                            /* [n_q, head_dim] */
    const int16_t *w;                    /* [n_q, M5_ATTN_BLOCK] codes of the weights, and per tile what they have to be multiplied by: */
    const float *factor;                 /* [n_q, M5_ATTN_BLOCK / M5_KV_TILE] */
    const int *lo, *hi;                  /* [n_q] keys that a row sees, counted from the first tile; the others weigh 0 */
    const uint8_t *const *tiles, *const *ahead; /* n_tile of them; ahead: fetched meanwhile, or NULL */
    int n_q, n_tile, tile_bytes, head_dim, w_max;
} m5_attn_values;

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

    /* s[r, j] = softcap(scale * q[r] . k[j]); keys are k_bytes apart. One entry per m5_kv_type of floats, from M5_KV_F16 on. ahead: the rows that will be read after
     * these, to be fetched meanwhile; NULL = unknown. */
    void (*attn_score[3])(float *s, int64_t lds, const float *q, int n_q, const void *k, int64_t k_bytes, int n_key, int head_dim, float scale,
                          float softcap, const void *ahead);
    /* o[r] += sum_j p[r, j] v[j], keys in order. */
    void (*attn_value[3])(float *o, const float *p, int64_t ldp, int n_q, const void *v, int64_t v_bytes, int n_key, int head_dim, const void *ahead);
    /* The same over tiles of 32 keys in codes (cpu_mix.h), in integers.
     *
     *   query   c = round(q * q_max / max|q|), factor = scale * max|q| / q_max
     *   score   s[r, 32 i + l] = softcap(qf[r] * sum over blocks of 32 components (factor of the key * (c[r] . codes)))
     *   weight  w = round(p * 32767 / P), factor = P / 32767, P the largest p of a tile's keys; n of them, whole tiles
     *   value   o[r] = sum over tiles (factor[r, tile] * F / w_max * 2^15 * sum over its keys (u[j] * codes[j])), for each block of 32 components
     *           u[j] = (w[r, j] * round(f[j] * w_max / F) + 2^14) >> 15
     *
     * f: factors of the values, F: the largest of those in the tile that row r sees. p is 0 for keys that it does not see. */
    void (*attn_query_codes)(int16_t *c, float *factor, const float *q, int n, float scale, int q_max);
    void (*attn_score_codes)(m5_kv_type t, float *s, int64_t lds, const int16_t *c, const float *qf, int n_q, const uint8_t *const *tiles, int n_tile,
                             int head_dim, float softcap, const uint8_t *const *ahead);
    void (*attn_weight_codes)(int16_t *w, float *factor, const float *p, int n);
    void (*attn_value_codes)(m5_kv_type t, const m5_attn_values *a);
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
