/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels for 64-bit Arm with 8-bit matrix products (smmla): two tokens times two rows, eight columns deep, in one instruction, where sdot does four
 * rows of one token, four columns deep. Few tokens stay with neon.c: with one, half of each result would be thrown away, and with two or three the
 * codes cost more to bring into pairs of rows than the products save. Types whose products are floats stay there too, and Q2_K, whose four scales a
 * block do not fit the registers beside the codes of eight rows. The dot products are the same exact integers and what follows them is done value by
 * value in the order of tile.h: the bits are those of every other level.
 *
 * Sums stay in the order in which smmla leaves them, two rows of one token beside the same two rows of the next, until the tile is done; scales of
 * rows are spread to (r, r + 1, r, r + 1) once a block, those of tokens to (t, t, t + 1, t + 1) once for eight rows.
 *
 * Counts for one block, eight rows and two tokens: 16 smmla instead of 32 sdot, 4 shuffles to bring the activations of two tokens together; converts
 * and multiply-adds as many as with sdot. May touch: nothing.
 * Source: Arm Architecture Reference Manual for A-profile, SMMLA (vector). */
#include "kernels/neon_block.h"

enum { ROW_PAIRS = M5_TILE_ROWS / 2, SIDE_PAIRS = ROW_PAIRS / 2, TOK_PAIRS = M5_TILE_TOK / 2 };

/* Codes and scales of eight rows of a block, row pair by row pair. */
typedef struct side {
    int8x16_t w[SIDE_PAIRS][4]; /* columns 8i .. 8i + 7 of the two rows */
    float32x4_t d[SIDE_PAIRS], m[SIDE_PAIRS];
    int32x4_t sc[SIDE_PAIRS][2];
} side;

INLINE float32x4_t low_twice_f32(float32x4_t v)
{
    return vcombine_f32(vget_low_f32(v), vget_low_f32(v));
}
INLINE float32x4_t high_twice_f32(float32x4_t v)
{
    return vcombine_f32(vget_high_f32(v), vget_high_f32(v));
}
INLINE int32x4_t low_twice_s32(int32x4_t v)
{
    return vcombine_s32(vget_low_s32(v), vget_low_s32(v));
}
INLINE int32x4_t high_twice_s32(int32x4_t v)
{
    return vcombine_s32(vget_high_s32(v), vget_high_s32(v));
}

INLINE void load_side(m5_tile_kind kind, side *b, const m5_tile_shape *s, const uint8_t *group, int first, int blk)
{
    UNROLL
    for (int k = 0; k < 2; k++) {
        int8x16_t quad[8];
        unpack_block(kind, group + s->head_bytes + 16 * (first + k), blk, quad);
        for (int i = 0; i < 4; i++) {
            const int32x4_t even = vreinterpretq_s32_s8(quad[2 * i]), odd = vreinterpretq_s32_s8(quad[2 * i + 1]);
            b->w[2 * k][i] = vreinterpretq_s8_s32(vzip1q_s32(even, odd));
            b->w[2 * k + 1][i] = vreinterpretq_s8_s32(vzip2q_s32(even, odd));
        }
        const scales sc = load_scales(kind, group, first + k, blk);
        b->d[2 * k] = low_twice_f32(sc.d);
        b->d[2 * k + 1] = high_twice_f32(sc.d);
        b->m[2 * k] = low_twice_f32(sc.m);
        b->m[2 * k + 1] = high_twice_f32(sc.m);
        for (int i = 0; i < 2; i++) {
            b->sc[2 * k][i] = low_twice_s32(sc.sc[i]);
            b->sc[2 * k + 1][i] = high_twice_s32(sc.sc[i]);
        }
    }
}

/* (p[0], p[0], p[1], p[1]) */
INLINE float32x4_t spread_f32(const float *p)
{
    const float32x4_t v = vcombine_f32(vld1_f32(p), vdup_n_f32(0));
    return vzip1q_f32(v, v);
}
INLINE int32x4_t spread_s32(const int32_t *p)
{
    const int32x4_t v = vcombine_s32(vld1_s32(p), vdup_n_s32(0));
    return vzip1q_s32(v, v);
}

/* Eight rows of a block times the tokens of at and at + 1. sums: [SIDE_PAIRS][4]. */
INLINE void add_pair(m5_tile_kind kind, float *sums, const side *b, const m5_tile_x *x, int64_t at)
{
    const int8_t *q = x->q + at * M5_TILE_BLOCK;
    int8x16_t xs[4]; /* columns 8i .. 8i + 7 of the two tokens */
    for (int i = 0; i < 2; i++) {
        const int64x2_t one = vreinterpretq_s64_s8(vld1q_s8(q + 16 * i)), two = vreinterpretq_s64_s8(vld1q_s8(q + M5_TILE_BLOCK + 16 * i));
        xs[2 * i] = vreinterpretq_s8_s64(vzip1q_s64(one, two));
        xs[2 * i + 1] = vreinterpretq_s8_s64(vzip2q_s64(one, two));
    }
    const int bits = offset_bits(kind);
    int32x4_t start[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
    if (is_halves(kind)) {
        const int32x4_t v = vshlq_s32(vld1q_s32(x->nhalf + 2 * at), vdupq_n_s32(bits));
        start[0] = vtrn1q_s32(v, v);
        start[1] = vtrn2q_s32(v, v);
    } else if (bits >= 0) {
        start[0] = vshlq_s32(spread_s32(x->nsum + at), vdupq_n_s32(bits));
        if (is_mlx8(kind)) start[0] = vnegq_s32(start[0]);
    }
    const float32x4_t d = spread_f32(x->d + at), dsum = m5_tile_has_min(kind) ? spread_f32(x->dsum + at) : d;
    UNROLL
    for (int r = 0; r < SIDE_PAIRS; r++) {
        int32x4_t dot = vmmlaq_s32(vmmlaq_s32(start[0], xs[0], b->w[r][0]), xs[1], b->w[r][1]);
        if (is_halves(kind)) {
            const int32x4_t second = vmmlaq_s32(vmmlaq_s32(start[1], xs[2], b->w[r][2]), xs[3], b->w[r][3]);
            dot = vmlaq_s32(vmulq_s32(dot, b->sc[r][0]), second, b->sc[r][1]);
        } else {
            dot = vmmlaq_s32(vmmlaq_s32(dot, xs[2], b->w[r][2]), xs[3], b->w[r][3]);
        }
        float32x4_t a = vfmaq_f32(vld1q_f32(sums + 4 * r), vcvtq_f32_s32(dot), vmulq_f32(b->d[r], d));
        if (m5_tile_has_min(kind)) a = vfmaq_f32(a, b->m[r], dsum);
        vst1q_f32(sums + 4 * r, a);
    }
}

/* At least two tokens. With an odd number the last pair takes the token before it once more, which gives the same sums again. */
INLINE void tile_i8mm(m5_tile_kind kind, int group_blk, float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *xp)
{
    const m5_tile_x copy = *xp, *x = &copy; /* the stores to sums cannot change a local copy: its pointers stay in registers */
    const int n = x->n_tok, n_pair = (n + 1) / 2, last = n - 2;
    float sums[TOK_PAIRS][ROW_PAIRS][4];
    memset(sums, 0, sizeof sums[0] * (size_t)n_pair);
    int64_t at = 0;
    for (int64_t g = 0; g < s->n_group; g++, tile += s->group_bytes) {
        for (int blk = 0; blk < group_blk; blk++, at += n) {
            for (int k = 0; k < 2; k++) {
                side b;
                load_side(kind, &b, s, tile, 2 * k, blk);
                for (int p = 0; p < n_pair; p++) add_pair(kind, sums[p][SIDE_PAIRS * k], &b, x, at + (2 * p < last ? 2 * p : last));
            }
        }
    }
    for (int p = 0; p < n_pair; p++) {
        float *a = acc + M5_TILE_ROWS * (2 * p < last ? 2 * p : last);
        for (int r = 0; r < ROW_PAIRS; r++, a += 2) {
            const float32x4_t v = vld1q_f32(sums[p][r]);
            vst1_f32(a, vget_low_f32(v));
            vst1_f32(a + M5_TILE_ROWS, vget_high_f32(v));
        }
    }
}

/* From how many tokens on fewer instructions run than in neon.c; kinds with two scales a block unpack more. */
INLINE int min_tok(m5_tile_kind kind)
{
    return is_halves(kind) ? 8 : 4;
}

/* Kinds whose products are integers (not Q2_K), and the blocks of their groups. */
#define I8MM_KINDS(X)                                                                                                                                \
    X(Q4_0, 2)                                                                                                                                       \
    X(Q4_1, 2)                                                                                                                                       \
    X(Q5_0, 2)                                                                                                                                       \
    X(Q5_1, 2) X(Q8_0, 2) X(IQ4_NL, 2) X(MXFP4, 2) X(Q3_K, 8) X(Q4_K, 8) X(Q5_K, 8) X(Q6_K, 8) X(IQ4_XS, 8) X(MLX4_F16, s->group_blk)                \
        X(MLX4_BF16, s->group_blk) X(MLX8_F16, s->group_blk) X(MLX8_BF16, s->group_blk)

#define TILE_I8MM(kind, blocks)                                                                                                                      \
    static void tile_##kind(float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)                                             \
    {                                                                                                                                                \
        if (x->n_tok >= min_tok(M5_TILE_##kind))                                                                                                     \
            tile_i8mm(M5_TILE_##kind, blocks, acc, s, tile, x);                                                                                      \
        else                                                                                                                                         \
            m5_tiles_neon[M5_TILE_##kind](acc, s, tile, x);                                                                                          \
    }
I8MM_KINDS(TILE_I8MM)

static int64_t peak_int_i8mm(int64_t rounds)
{
    enum { N = 16 };
    int32x4_t s[N];
    const int8x16_t w = vdupq_n_s8(3);
    UNROLL
    for (int k = 0; k < N; k++) s[k] = vdupq_n_s32(0);
    for (int64_t i = 0; i < rounds; i++) {
        UNROLL
        for (int k = 0; k < N; k++) {
            s[k] = vmmlaq_s32(s[k], w, w);
            __asm__ volatile("" : "+w"(s[k]));
        }
    }
    return rounds * N * 64;
}

void m5_kernels_i8mm(m5_kernels *k)
{
#define TILE_SET(kind, blocks) k->tile[M5_TILE_##kind] = tile_##kind;
    I8MM_KINDS(TILE_SET)
#undef TILE_SET
    k->peak_int = peak_int_i8mm;
}
