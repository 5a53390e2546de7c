/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels for AVX-512 with VNNI: a 64-byte chunk is one register, vpdpbusd adds a quad of codes times activations to each row. The vector slots of
 * AVX2 are fast enough and stay. May touch: nothing.
 *
 * Counts for one block (16 rows x 32 columns) of Q4_0: 288 bytes; 4 loads, 8 masks, then for every token 8 vpdpbusd with the activations broadcast
 * from memory, 1 convert, 1 multiply, 1 fma: 8 of 10 operations on the multiplier ports are useful ones, and 73 % of the peak is reached. One token
 * reads 32 to 34 GB/s from memory on huge pages, all that one Zen 4 core can read. */
#include "kernels/avx512_block.h"

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

/* Exact dot products of one block of one token with m tiles (1 or 2), which share the broadcasts. */
INLINE void block_dots(m5_tile_kind kind, int m, __m512i *dot, const __m512i (*w)[8], const scales *s, const m5_tile_x *x, int64_t at)
{
    const int8_t *q = x->q + at * M5_TILE_BLOCK;
    const int bits = offset_bits(kind);
    if (kind == M5_TILE_Q6_K || kind == M5_TILE_Q3_K || kind == M5_TILE_Q2_K) {
        __m512i h0 = _mm512_setzero_si512(), h1 = h0, d0[2], d1[2];
        if (bits >= 0) {
            h0 = _mm512_slli_epi32(bcast_i32(&x->nhalf[2 * at]), (unsigned)bits);
            h1 = _mm512_slli_epi32(bcast_i32(&x->nhalf[2 * at + 1]), (unsigned)bits);
        }
        for (int k = 0; k < m; k++) {
            d0[k] = h0;
            d1[k] = h1;
        }
        for (int i = 0; i < 4; i++) {
            const __m512i x0 = bcast_i32(q + 4 * i), x1 = bcast_i32(q + 4 * i + 16);
            for (int k = 0; k < m; k++) {
                d0[k] = _mm512_dpbusd_epi32(d0[k], w[k][i], x0);
                d1[k] = _mm512_dpbusd_epi32(d1[k], w[k][i + 4], x1);
            }
        }
        for (int k = 0; k < m; k++) dot[k] = _mm512_add_epi32(_mm512_mullo_epi32(d0[k], s[k].sc[0]), _mm512_mullo_epi32(d1[k], s[k].sc[1]));
        return;
    }
    const __m512i start = bits >= 0 ? _mm512_slli_epi32(bcast_i32(&x->nsum[at]), (unsigned)bits) : _mm512_setzero_si512();
    for (int k = 0; k < m; k++) dot[k] = start;
    for (int i = 0; i < 8; i++) {
        const __m512i v = bcast_i32(q + 4 * i);
        for (int k = 0; k < m; k++) dot[k] = _mm512_dpbusd_epi32(dot[k], w[k][i], v);
    }
}

/* Fewer tokens than a set read each tile once, from memory, and the hardware's own prefetch is not enough (checkkern --bench and decode of whole
 * models, docs/SPEED.md): on Zen 5 one token of Q4_K read 17 GB/s without help and reads 52 with it. The lines are asked for evenly, a block's share
 * with each block. What suits whom (`far`):
 * AMD: a non-temporal prefetch, which confines the weights to a part of the first-level cache, so that they do not push the activations out.
 * Intel: into the ordinary levels, since a non-temporal one keeps the weights out of the second. */
enum { NEAR_BYTES = 8192, FAR_BYTES = 4096, FAR_ONE_BYTES = 8192 };

/* n bytes of tiles, for one token or several. */
INLINE void prefetch_at(bool far, bool one, const uint8_t *p, int n)
{
    for (int i = 0; i < n; i += M5_CHUNK_BYTES) {
        const char *line = (const char *)p + i;
        if (!far)
            _mm_prefetch(line + NEAR_BYTES, _MM_HINT_NTA);
        else if (one)
            _mm_prefetch(line + FAR_ONE_BYTES, _MM_HINT_T1);
        else
            _mm_prefetch(line + FAR_BYTES, _MM_HINT_T0);
    }
}

/* The share of block blk in the lines of the group some groups ahead. */
INLINE void prefetch_once(bool far, bool one, const uint8_t *group, int group_bytes, int blk, int group_blk)
{
    const int step = (group_bytes / group_blk + M5_CHUNK_BYTES - 1) / M5_CHUNK_BYTES * M5_CHUNK_BYTES;
    prefetch_at(far, one, group + blk * step, step);
}

enum { FEW = 5 };

/* n_tok is 1 to FEW (the sums stay in registers) or 0 (any number; sums in memory, which the first-level cache holds). */
INLINE void tile_int(m5_tile_kind kind, int group_blk, int n_tok, bool far, float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *xp)
{
    const m5_tile_x copy = *xp, *x = &copy; /* the stores to acc cannot change a local copy: its pointers stay in registers */
    const int n = n_tok ? n_tok : x->n_tok;
    const bool once = n < M5_TILE_TOK;
    __m512 sum[FEW];
    for (int t = 0; t < n_tok; t++) sum[t] = _mm512_setzero_ps();
    for (int t = 0; !n_tok && t < n; t++) _mm512_storeu_ps(acc + 16 * t, _mm512_setzero_ps());
    int64_t at = 0;
    for (int64_t g = 0; g < s->n_group; g++, tile += s->group_bytes) {
        for (int blk = 0; blk < group_blk; blk++) {
            if (once) prefetch_once(far, n_tok == 1, tile, s->group_bytes, blk, group_blk);
            __m512i w[1][8], dot[1];
            unpack_block(kind, tile + s->head_bytes, blk, w[0]);
            const scales sc = load_scales(kind, tile, blk);
            if (n_tok) {
                UNROLL for (int t = 0; t < n_tok; t++)
                {
                    block_dots(kind, 1, dot, (const __m512i(*)[8])w, &sc, x, at + t);
                    sum[t] = add_block(kind, sum[t], dot[0], &sc, x, at + t);
                }
                at += n_tok;
                continue;
            }
            for (int t = 0; t < n; t++, at++) {
                block_dots(kind, 1, dot, (const __m512i(*)[8])w, &sc, x, at);
                _mm512_storeu_ps(acc + 16 * t, add_block(kind, _mm512_loadu_ps(acc + 16 * t), dot[0], &sc, x, at));
            }
        }
    }
    UNROLL for (int t = 0; t < n_tok; t++) _mm512_storeu_ps(acc + 16 * t, sum[t]);
}

/* Two tiles: a broadcast serves both, so that the load ports are no bound. */
INLINE void pair_int(m5_tile_kind kind, int group_blk, float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *xp)
{
    enum { SECOND = M5_TILE_TOK * M5_TILE_ROWS };
    const m5_tile_x copy = *xp, *x = &copy;
    const int n = x->n_tok;
    for (int t = 0; t < n; t++) {
        _mm512_storeu_ps(acc + 16 * t, _mm512_setzero_ps());
        _mm512_storeu_ps(acc + SECOND + 16 * t, _mm512_setzero_ps());
    }
    int64_t at = 0;
    for (int64_t g = 0; g < s->n_group; g++, tile += s->group_bytes) {
        for (int blk = 0; blk < group_blk; blk++) {
            __m512i w[2][8], dot[2];
            unpack_block(kind, tile + s->head_bytes, blk, w[0]);
            unpack_block(kind, tile + s->tile_bytes + s->head_bytes, blk, w[1]);
            const scales sc[2] = {load_scales(kind, tile, blk), load_scales(kind, tile + s->tile_bytes, blk)};
            for (int t = 0; t < n; t++, at++) {
                block_dots(kind, 2, dot, (const __m512i(*)[8])w, sc, x, at);
                const __m512 a = add_block(kind, _mm512_loadu_ps(acc + 16 * t), dot[0], &sc[0], x, at);
                const __m512 b = add_block(kind, _mm512_loadu_ps(acc + SECOND + 16 * t), dot[1], &sc[1], x, at);
                _mm512_storeu_ps(acc + 16 * t, a);
                _mm512_storeu_ps(acc + SECOND + 16 * t, b);
            }
        }
    }
}

INLINE void column(m5_tile_kind kind, const uint8_t *g, int k, __m512 w[2])
{
    if (kind == M5_TILE_F32) {
        w[0] = _mm512_loadu_ps((const float *)(const void *)(g + k * 64));
        w[1] = _mm512_loadu_ps((const float *)(const void *)(g + k * 64 + 64));
    } else if (kind == M5_TILE_F16) {
        w[0] = halves(g + k * 32);
        w[1] = halves(g + k * 32 + 32);
    } else {
        const __m512i v = chunk(g, k / 2);
        w[0] = _mm512_castsi512_ps(_mm512_slli_epi32(v, 16));
        w[1] = _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32((int)0xffff0000u)));
    }
}

/* Tokens [t0, t0 + n) with n a constant: n partial sums in registers. */
INLINE void tile_float_n(m5_tile_kind kind, int n, int t0, float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)
{
    __m512 sum[16];
    for (int t = 0; t < n; t++) sum[t] = _mm512_setzero_ps();
    for (int64_t b = 0; b < s->n_group; b++, tile += s->group_bytes) {
        const float *f = x->f + (b * x->n_tok + t0) * M5_TILE_BLOCK;
        __m512 part[16], w[2];
        column(kind, tile, 0, w);
        for (int t = 0; t < n; t++) {
            part[t] = _mm512_mul_ps(w[0], _mm512_set1_ps(f[t * M5_TILE_BLOCK]));
            part[t] = _mm512_fmadd_ps(w[1], _mm512_set1_ps(f[t * M5_TILE_BLOCK + 1]), part[t]);
        }
        for (int k = 2; k < M5_TILE_BLOCK; k += 2) {
            column(kind, tile, k, w);
            for (int t = 0; t < n; t++) {
                part[t] = _mm512_fmadd_ps(w[0], _mm512_set1_ps(f[t * M5_TILE_BLOCK + k]), part[t]);
                part[t] = _mm512_fmadd_ps(w[1], _mm512_set1_ps(f[t * M5_TILE_BLOCK + k + 1]), part[t]);
            }
        }
        for (int t = 0; t < n; t++) sum[t] = _mm512_add_ps(sum[t], part[t]);
    }
    for (int t = 0; t < n; t++) _mm512_storeu_ps(acc + 16 * (t0 + t), sum[t]);
}

INLINE void tile_float(m5_tile_kind kind, float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)
{
    int t = 0;
    for (; t + 8 <= x->n_tok; t += 8) tile_float_n(kind, 8, t, acc, s, tile, x);
    if (x->n_tok - t >= 4) {
        tile_float_n(kind, 4, t, acc, s, tile, x);
        t += 4;
    }
    if (x->n_tok - t >= 2) {
        tile_float_n(kind, 2, t, acc, s, tile, x);
        t += 2;
    }
    if (x->n_tok > t) tile_float_n(kind, 1, t, acc, s, tile, x);
}

/* One function per kind, of those with integer products two, near and far: constants fold, so each has only its own unpacking. */
#define TILE_INT_AT(name, kind, blocks, far)                                                                                                         \
    static void name##_##kind(float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)                                           \
    {                                                                                                                                                \
        switch (x->n_tok) {                                                                                                                          \
        case 1: tile_int(M5_TILE_##kind, blocks, 1, far, acc, s, tile, x); break;                                                                    \
        case 2: tile_int(M5_TILE_##kind, blocks, 2, far, acc, s, tile, x); break;                                                                    \
        case 3: tile_int(M5_TILE_##kind, blocks, 3, far, acc, s, tile, x); break;                                                                    \
        case 4: tile_int(M5_TILE_##kind, blocks, 4, far, acc, s, tile, x); break;                                                                    \
        case 5: tile_int(M5_TILE_##kind, blocks, 5, far, acc, s, tile, x); break;                                                                    \
        default: tile_int(M5_TILE_##kind, blocks, 0, far, acc, s, tile, x);                                                                          \
        }                                                                                                                                            \
    }
#define TILE_INT(kind, blocks)                                                                                                                       \
    TILE_INT_AT(tile, kind, blocks, false)                                                                                                           \
    TILE_INT_AT(far, kind, blocks, true)                                                                                                             \
    static void pair_##kind(float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)                                             \
    {                                                                                                                                                \
        pair_int(M5_TILE_##kind, blocks, acc, s, tile, x);                                                                                           \
    }
#define TILE_FLOAT(kind)                                                                                                                             \
    static void tile_##kind(float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)                                             \
    {                                                                                                                                                \
        tile_float(M5_TILE_##kind, acc, s, tile, x);                                                                                                 \
    }

TILE_FLOAT(F32)
TILE_FLOAT(F16)
TILE_FLOAT(BF16)
/* The kinds with integer products, and the blocks of their groups. */
#define INT_KINDS(X)                                                                                                                                 \
    X(Q4_0, 2)                                                                                                                                       \
    X(Q4_1, 2) X(Q5_0, 2) X(Q5_1, 2) X(Q8_0, 2) X(IQ4_NL, 2) X(MXFP4, 2) X(Q2_K, 8) X(Q3_K, 8) X(Q4_K, 8) X(Q5_K, 8) X(Q6_K, 8) X(IQ4_XS, 8)         \
        X(MLX4_F16, s->group_blk) X(MLX4_BF16, s->group_blk) X(MLX8_F16, s->group_blk) X(MLX8_BF16, s->group_blk)
INT_KINDS(TILE_INT)

static int64_t peak_int_avx512(int64_t rounds)
{
    enum { N = 16 };
    __m512i s[N];
    const __m512i w = _mm512_set1_epi8(3), x = _mm512_set1_epi8(1);
    UNROLL
    for (int k = 0; k < N; k++) s[k] = _mm512_setzero_si512();
    for (int64_t i = 0; i < rounds; i++) {
        UNROLL
        for (int k = 0; k < N; k++) {
            s[k] = _mm512_dpbusd_epi32(s[k], w, x);
            __asm__ volatile("" : "+v"(s[k]));
        }
    }
    return rounds * N * 128;
}

static int64_t peak_fma_avx512(int64_t rounds)
{
    enum { N = 12 };
    __m512 s[N];
    const __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(1.0f);
    UNROLL
    for (int k = 0; k < N; k++) s[k] = _mm512_setzero_ps();
    for (int64_t i = 0; i < rounds; i++) {
        UNROLL
        for (int k = 0; k < N; k++) {
            s[k] = _mm512_fmadd_ps(s[k], a, b);
            __asm__ volatile("" : "+v"(s[k]));
        }
    }
    return rounds * N * 32;
}

const m5_tile_fn m5_pairs_avx512[M5_TILE_COUNT] = {
#define M5_PAIR_ENTRY(kind, blocks) [M5_TILE_##kind] = pair_##kind,
    INT_KINDS(M5_PAIR_ENTRY)
#undef M5_PAIR_ENTRY
};

static const m5_tile_fn near_tiles[M5_TILE_COUNT] = {
#define M5_TILE_ENTRY(kind) [M5_TILE_##kind] = tile_##kind,
    M5_TILE_KINDS(M5_TILE_ENTRY)
#undef M5_TILE_ENTRY
};

/* Where there is nothing, the near ones stay: float types, whose many bytes for little arithmetic the hardware fetches better by itself. */
const m5_tile_fn m5_far_tiles_avx512[M5_TILE_COUNT] = {
#define M5_FAR_ENTRY(kind, blocks) [M5_TILE_##kind] = far_##kind,
    INT_KINDS(M5_FAR_ENTRY)
#undef M5_FAR_ENTRY
};

void m5_kernels_avx512(m5_kernels *k, bool far)
{
    k->peak_int = peak_int_avx512;
    k->peak_fma = peak_fma_avx512;
    memcpy(k->tile, near_tiles, sizeof k->tile);
    for (int i = 0; far && i < M5_TILE_COUNT; i++)
        if (m5_far_tiles_avx512[i]) k->tile[i] = m5_far_tiles_avx512[i];
    memcpy(k->pair, m5_pairs_avx512, sizeof k->pair);
}
