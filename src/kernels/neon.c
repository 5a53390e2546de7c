/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels for 64-bit Arm with the dot product: a chunk is four registers of four rows, sdot adds a quad of codes times a lane of activations to each
 * row. May touch: nothing. */
#include "kernels/exp.h"
#include "kernels/neon_block.h"

/* --- tiles ---------------------------------------------------------------------------------------------------------------------- */

INLINE int32x4_t dot_half(int32x4_t a, const int8x16_t w[4], int8x16_t x)
{
    a = vdotq_laneq_s32(a, w[0], x, 0);
    a = vdotq_laneq_s32(a, w[1], x, 1);
    a = vdotq_laneq_s32(a, w[2], x, 2);
    return vdotq_laneq_s32(a, w[3], x, 3);
}

INLINE float32x4_t add_block(m5_tile_kind kind, float32x4_t a, const int8x16_t w[8], const scales *s, const m5_tile_x *x, int64_t at)
{
    const int8x16_t x0 = vld1q_s8(x->q + at * M5_TILE_BLOCK), x1 = vld1q_s8(x->q + at * M5_TILE_BLOCK + 16);
    const int bits = offset_bits(kind);
    int32x4_t dot;
    if (is_halves(kind)) {
        const int32x4_t start0 = vdupq_n_s32(bits >= 0 ? x->nhalf[2 * at] * (1 << bits) : 0);
        const int32x4_t start1 = vdupq_n_s32(bits >= 0 ? x->nhalf[2 * at + 1] * (1 << bits) : 0);
        dot = vmulq_s32(dot_half(start0, w, x0), s->sc[0]);
        dot = vmlaq_s32(dot, dot_half(start1, w + 4, x1), s->sc[1]);
    } else {
        const int32_t start = bits >= 0 ? x->nsum[at] * (1 << bits) : 0;
        dot = dot_half(dot_half(vdupq_n_s32(is_mlx8(kind) ? -start : start), w, x0), w + 4, x1);
    }
    a = vfmaq_f32(a, vcvtq_f32_s32(dot), vmulq_n_f32(s->d, x->d[at]));
    if (m5_tile_has_min(kind)) a = vfmaq_n_f32(a, s->m, x->dsum[at]);
    if (kind == M5_TILE_Q2_K) {
        const int32x4_t min = vmlaq_n_s32(vmulq_n_s32(s->mn[0], x->nhalf[2 * at]), s->mn[1], x->nhalf[2 * at + 1]);
        a = vfmaq_f32(a, vcvtq_f32_s32(min), vmulq_n_f32(s->dmin, x->d[at]));
    }
    return a;
}

/* n_tok is 1 (sums in registers) or 0 (any number; sums in memory, which the first-level cache holds). */
INLINE void tile_int(m5_tile_kind kind, int group_blk, int n_tok, float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *xp)
{
    const m5_tile_x copy = *xp, *x = &copy; /* the stores to acc cannot change a local copy: its pointers stay in registers */
    const int n = n_tok ? n_tok : x->n_tok;
    float32x4_t sum[4] = {vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0), vdupq_n_f32(0)};
    for (int i = 0; i < 4 * n; i++) vst1q_f32(acc + 4 * i, sum[0]);
    int64_t at = 0;
    for (int64_t g = 0; g < s->n_group; g++, tile += s->group_bytes) {
        for (int blk = 0; blk < group_blk; blk++, at += n) {
            UNROLL
            for (int h = 0; h < 4; h++) {
                int8x16_t w[8];
                unpack_block(kind, tile + s->head_bytes + 16 * h, blk, w);
                const scales sc = load_scales(kind, tile, h, blk);
                if (n_tok == 1) {
                    sum[h] = add_block(kind, sum[h], w, &sc, x, at);
                    continue;
                }
                float *a = acc + 4 * h;
                for (int t = 0; t < n; t++, a += M5_TILE_ROWS) vst1q_f32(a, add_block(kind, vld1q_f32(a), w, &sc, x, at + t));
            }
        }
    }
    if (n_tok != 1) return;
    for (int h = 0; h < 4; h++) vst1q_f32(acc + 4 * h, sum[h]);
}

INLINE void column(m5_tile_kind kind, const uint8_t *g, int h, int k, float32x4_t w[2])
{
    if (kind == M5_TILE_F32) {
        w[0] = vreinterpretq_f32_u8(vld1q_u8(g + k * 64 + 16 * h));
        w[1] = vreinterpretq_f32_u8(vld1q_u8(g + k * 64 + 64 + 16 * h));
    } else if (kind == M5_TILE_F16) {
        w[0] = halves(g + k * 32 + 8 * h);
        w[1] = halves(g + k * 32 + 32 + 8 * h);
    } else {
        const uint32x4_t v = vreinterpretq_u32_u8(vld1q_u8(g + k * 32 + 16 * h));
        w[0] = vreinterpretq_f32_u32(vshlq_n_u32(v, 16));
        w[1] = vreinterpretq_f32_u32(vandq_u32(v, vdupq_n_u32(0xffff0000u)));
    }
}

/* Tokens [t0, t0 + n) with n a constant: the sixteen rows of n tokens in registers. */
INLINE void tile_float_n(m5_tile_kind kind, int n, int t0, float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)
{
    float32x4_t sum[4][4];
    for (int t = 0; t < n; t++) {
        for (int h = 0; h < 4; h++) sum[t][h] = vdupq_n_f32(0);
    }
    for (int64_t b = 0; b < s->n_group; b++, tile += s->group_bytes) {
        const float *f = x->f + (b * x->n_tok + t0) * M5_TILE_BLOCK;
        for (int h = 0; h < 4; h++) {
            float32x4_t part[4], w[2];
            column(kind, tile, h, 0, w);
            for (int t = 0; t < n; t++) part[t] = vfmaq_n_f32(vmulq_n_f32(w[0], f[t * M5_TILE_BLOCK]), w[1], f[t * M5_TILE_BLOCK + 1]);
            for (int k = 2; k < M5_TILE_BLOCK; k += 2) {
                column(kind, tile, h, k, w);
                for (int t = 0; t < n; t++) {
                    part[t] = vfmaq_n_f32(part[t], w[0], f[t * M5_TILE_BLOCK + k]);
                    part[t] = vfmaq_n_f32(part[t], w[1], f[t * M5_TILE_BLOCK + k + 1]);
                }
            }
            for (int t = 0; t < n; t++) sum[t][h] = vaddq_f32(sum[t][h], part[t]);
        }
    }
    for (int t = 0; t < n; t++) {
        for (int h = 0; h < 4; h++) vst1q_f32(acc + M5_TILE_ROWS * (t0 + t) + 4 * h, sum[t][h]);
    }
}

INLINE void tile_float(m5_tile_kind kind, float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)
{
    int t = 0;
    for (; t + 4 <= x->n_tok; t += 4) tile_float_n(kind, 4, t, acc, s, tile, x);
    if (x->n_tok - t >= 2) {
        tile_float_n(kind, 2, t, acc, s, tile, x);
        t += 2;
    }
    if (x->n_tok > t) tile_float_n(kind, 1, t, acc, s, tile, x);
}

/* One function per kind: constants fold, so each has only its own unpacking. */
#define TILE_INT(kind, blocks)                                                                                                                       \
    static void tile_##kind(float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)                                             \
    {                                                                                                                                                \
        if (x->n_tok == 1)                                                                                                                           \
            tile_int(M5_TILE_##kind, blocks, 1, acc, s, tile, x);                                                                                    \
        else                                                                                                                                         \
            tile_int(M5_TILE_##kind, blocks, 0, acc, s, tile, x);                                                                                    \
    }
#define TILE_FLOAT(kind)                                                                                                                             \
    static void tile_##kind(float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)                                             \
    {                                                                                                                                                \
        tile_float(M5_TILE_##kind, acc, s, tile, x);                                                                                                 \
    }

TILE_FLOAT(F32)
TILE_FLOAT(F16)
TILE_FLOAT(BF16)
TILE_INT(Q4_0, 2)
TILE_INT(Q4_1, 2)
TILE_INT(Q5_0, 2)
TILE_INT(Q5_1, 2)
TILE_INT(Q8_0, 2)
TILE_INT(IQ4_NL, 2)
TILE_INT(MXFP4, 2)
TILE_INT(Q2_K, 8)
TILE_INT(Q3_K, 8)
TILE_INT(Q4_K, 8)
TILE_INT(Q5_K, 8)
TILE_INT(Q6_K, 8)
TILE_INT(IQ4_XS, 8)
TILE_INT(MLX4_F16, s->group_blk)
TILE_INT(MLX4_BF16, s->group_blk)
TILE_INT(MLX8_F16, s->group_blk)
TILE_INT(MLX8_BF16, s->group_blk)

const m5_tile_fn m5_tiles_neon[M5_TILE_COUNT] = {
#define M5_TILE_ENTRY(kind) [M5_TILE_##kind] = tile_##kind,
    M5_TILE_KINDS(M5_TILE_ENTRY)
#undef M5_TILE_ENTRY
};

/* --- vectors -------------------------------------------------------------------------------------------------------------------- */

static void quant_x_neon(const m5_tile_x *x, int t, const float *src, int64_t n_blk)
{
    for (int64_t b = 0; b < n_blk; b++, src += M5_TILE_BLOCK) {
        const int64_t at = b * x->n_tok + t;
        float32x4_t v[8], m = vdupq_n_f32(0);
        for (int i = 0; i < 8; i++) {
            v[i] = vld1q_f32(src + 4 * i);
            m = vmaxnmq_f32(m, vabsq_f32(v[i]));
        }
        const float max = vmaxnmvq_f32(m);
        const bool tiny = max < M5_QUANT_MIN;
        const float inv = tiny ? 0 : 127.0f / max;
        int8_t *q = x->q + at * M5_TILE_BLOCK;
        int32_t half[2];
        for (int h = 0; h < 2; h++) {
            int16x4_t n[4];
            for (int i = 0; i < 4; i++) n[i] = vqmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(v[4 * h + i], inv)));
            const int8x16_t bytes = vcombine_s8(vqmovn_s16(vcombine_s16(n[0], n[1])), vqmovn_s16(vcombine_s16(n[2], n[3])));
            vst1q_s8(q + 16 * h, bytes);
            half[h] = -vaddlvq_s8(bytes);
        }
        x->d[at] = tiny ? 0 : max / 127.0f;
        x->nhalf[2 * at] = half[0];
        x->nhalf[2 * at + 1] = half[1];
        x->nsum[at] = half[0] + half[1];
        x->dsum[at] = x->d[at] * (float)-(half[0] + half[1]);
    }
}

static void f32_f16_neon(uint16_t *y, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) vst1_u16(y + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
    for (; i < n; i++) y[i] = m5_f32_to_f16(x[i]);
}

/* exp.h, four at a time. */
INLINE float32x4_t exp_4(float32x4_t x)
{
    x = vmaxq_f32(vminq_f32(x, vdupq_n_f32(M5_EXP_MAX)), vdupq_n_f32(M5_EXP_MIN));
    const float32x4_t z = vfmaq_n_f32(vdupq_n_f32(M5_EXP_ROUND), x, M5_EXP_LOG2E), n = vsubq_f32(z, vdupq_n_f32(M5_EXP_ROUND));
    float32x4_t r = vfmaq_n_f32(x, n, -M5_EXP_LN2_HI);
    r = vfmaq_n_f32(r, n, -M5_EXP_LN2_LO);
    float32x4_t p = vfmaq_n_f32(vdupq_n_f32(M5_EXP_C6), r, M5_EXP_C7);
    p = vfmaq_f32(vdupq_n_f32(M5_EXP_C5), p, r);
    p = vfmaq_f32(vdupq_n_f32(M5_EXP_C4), p, r);
    p = vfmaq_f32(vdupq_n_f32(M5_EXP_C3), p, r);
    p = vfmaq_f32(vdupq_n_f32(M5_EXP_C2), p, r);
    p = vaddq_f32(vfmaq_f32(r, vmulq_f32(p, r), r), vdupq_n_f32(1));
    const int32x4_t k = vsubq_s32(vreinterpretq_s32_f32(z), vdupq_n_s32((int32_t)M5_EXP_ROUND_BITS)), k1 = vshrq_n_s32(k, 1), bias = vdupq_n_s32(127);
    p = vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(k1, bias), 23)));
    return vmulq_f32(p, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vsubq_s32(k, k1), bias), 23)));
}

INLINE float32x4_t sigmoid_mul(float32x4_t g, float32x4_t arg, float32x4_t u)
{
    return vmulq_f32(vdivq_f32(g, vaddq_f32(vdupq_n_f32(1), exp_4(vnegq_f32(arg)))), u);
}

static void silu_mul_neon(float *y, const float *g, const float *u, int64_t n)
{
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) vst1q_f32(y + i, sigmoid_mul(vld1q_f32(g + i), vld1q_f32(g + i), vld1q_f32(u + i)));
    for (; i < n; i++) y[i] = g[i] / (1.0f + m5_exp(-g[i])) * u[i];
}

static void gelu_mul_neon(float *y, const float *g, const float *u, int64_t n)
{
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
        const float32x4_t v = vld1q_f32(g + i), v2 = vmulq_f32(v, v);
        const float32x4_t arg = vmulq_n_f32(vfmaq_f32(v, vmulq_n_f32(v2, M5_GELU_B), v), M5_GELU_A);
        vst1q_f32(y + i, sigmoid_mul(v, arg, vld1q_f32(u + i)));
    }
    for (; i < n; i++) y[i] = g[i] / (1.0f + m5_exp(-m5_gelu_arg(g[i]))) * u[i];
}

static uint64_t read_sum_neon(const uint8_t *p, size_t n)
{
    uint8x16_t s[4] = {vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0), vdupq_n_u8(0)};
    size_t i = 0;
    for (; i + 64 <= n; i += 64) {
        UNROLL
        for (int k = 0; k < 4; k++) s[k] = veorq_u8(s[k], vld1q_u8(p + i + 16 * (size_t)k));
    }
    const uint64x2_t v = vreinterpretq_u64_u8(veorq_u8(veorq_u8(s[0], s[1]), veorq_u8(s[2], s[3])));
    uint64_t sum = vgetq_lane_u64(v, 0) ^ vgetq_lane_u64(v, 1), w;
    for (; i + 8 <= n; i += 8) {
        memcpy(&w, p + i, 8);
        sum ^= w;
    }
    return sum;
}

static int64_t peak_int_neon(int64_t rounds)
{
    enum { N = 16 };
    int32x4_t s[N];
    const int8x16_t w = vdupq_n_s8(3);
    UNROLL
    for (int k = 0; k < N; k++) s[k] = vdupq_n_s32(0);
    for (int64_t i = 0; i < rounds; i++) {
        UNROLL
        for (int k = 0; k < N; k++) {
            s[k] = vdotq_laneq_s32(s[k], w, w, 0);
            __asm__ volatile("" : "+w"(s[k]));
        }
    }
    return rounds * N * 32;
}

static int64_t peak_fma_neon(int64_t rounds)
{
    enum { N = 16 };
    float32x4_t s[N];
    const float32x4_t a = vdupq_n_f32(0.5f);
    UNROLL
    for (int k = 0; k < N; k++) s[k] = vdupq_n_f32(0);
    for (int64_t i = 0; i < rounds; i++) {
        UNROLL
        for (int k = 0; k < N; k++) {
            s[k] = vfmaq_f32(s[k], a, a);
            __asm__ volatile("" : "+w"(s[k]));
        }
    }
    return rounds * N * 8;
}

void m5_kernels_neon(m5_kernels *k)
{
    memcpy(k->tile, m5_tiles_neon, sizeof k->tile);
    k->quant_x = quant_x_neon;
    k->f32_f16 = f32_f16_neon;
    k->silu_mul = silu_mul_neon;
    k->gelu_mul = gelu_mul_neon;
    k->read_sum = read_sum_neon;
    k->peak_int = peak_int_neon;
    k->peak_fma = peak_fma_neon;
}
