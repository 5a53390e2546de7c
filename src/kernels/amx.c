/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels for AMX (8-bit tiles of Intel server processors): prefill only. A set of sixteen tokens times a block of sixteen rows is one tile product,
 * since the eight chunks of an unpacked block are just the layout that the instruction wants (four columns of each row in a word). The dot products
 * are the same exact integers, what follows them is avx512_block.h: the bits are those of every other level. Fewer tokens stay with AVX-512, float
 * types too, since the 16-bit float tiles would round differently, and types whose blocks have two scales: half products made them slower (Q6_K
 * 0.95).
 *
 * Counts for one block and sixteen tokens: 1 tile product instead of 128 vpdpbusd; unpacking through 512 bytes of the first-level cache, 16 results
 * stored and read again, and for every token the convert, multiply and fma that remain the bound. Two blocks are in flight. May touch: nothing.
 * Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18 (palette 1, configuration, TDPBSUD). */
#include "kernels/avx512_block.h"

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* Tiles 0, 1: sums [16 tokens][16 rows] i32; 2, 3: activations, 16 tokens of 32 bytes; 4, 5: codes, 8 chunks. */
static const tile_config config = {.palette = 1, .row_bytes = {64, 64, 32, 32, 64, 64}, .rows = {16, 16, 16, 16, 8, 8}};

/* The tile numbers are part of the instructions, hence a macro for what differs between the first and the second block of a pair. */
#define MULTIPLY(c, a, b, q, blk)                                                                                                                    \
    do {                                                                                                                                             \
        _tile_zero(c);                                                                                                                               \
        _tile_loadd(a, q, M5_TILE_BLOCK);                                                                                                            \
        _tile_loadd(b, (blk)->codes, M5_CHUNK_BYTES);                                                                                                \
        _tile_dpbsud(c, a, b);                                                                                                                       \
        _tile_stored(c, (blk)->sums, 64);                                                                                                            \
    } while (0)

typedef struct block {
    _Alignas(64) uint8_t codes[8 * M5_CHUNK_BYTES];
    _Alignas(64) int32_t sums[M5_TILE_TOK][M5_TILE_ROWS];
    scales sc;
} block;

INLINE void unpack(m5_tile_kind kind, block *b, const m5_tile_shape *s, const uint8_t *group, int blk)
{
    __m512i w[8];
    unpack_block(kind, group + s->head_bytes, blk, w);
    for (int i = 0; i < 8; i++) _mm512_store_si512(b->codes + i * M5_CHUNK_BYTES, w[i]);
    b->sc = load_scales(kind, group, blk);
}

INLINE __m512 take_sums(m5_tile_kind kind, __m512 a, const block *b, const m5_tile_x *x, int64_t at, int t)
{
    const int bits = offset_bits(kind);
    __m512i dot = _mm512_load_si512(b->sums[t]);
    if (bits >= 0) dot = _mm512_add_epi32(dot, _mm512_slli_epi32(bcast_i32(&x->nsum[at]), (unsigned)bits));
    return add_block(kind, a, dot, &b->sc, x, at);
}

/* m tiles (1 or 2) times sixteen tokens. Two products are in flight: of two tiles, or of two blocks. */
INLINE void tile_amx(m5_tile_kind kind, int m, int group_blk, float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *xp)
{
    enum { SECOND = M5_TILE_TOK * M5_TILE_ROWS };
    const m5_tile_x copy = *xp, *x = &copy;
    const int step = m == 2 || group_blk % 2 ? 1 : 2;
    block b[2];
    int64_t at = 0;
    _tile_loadconfig(&config);
    for (int t = 0; t < m * M5_TILE_TOK; t++) _mm512_storeu_ps(acc + 16 * t, _mm512_setzero_ps());
    for (int64_t g = 0; g < s->n_group; g++, tile += s->group_bytes) {
        for (int blk = 0; blk < group_blk; blk += step, at += step * M5_TILE_TOK) {
            const int8_t *q = x->q + at * M5_TILE_BLOCK;
            unpack(kind, &b[0], s, tile, blk);
            if (m == 2) unpack(kind, &b[1], s, tile + s->tile_bytes, blk);
            if (step == 2) unpack(kind, &b[1], s, tile, blk + 1);
            MULTIPLY(0, 2, 4, q, &b[0]);
            if (m == 2) MULTIPLY(1, 3, 5, q, &b[1]);
            if (step == 2) MULTIPLY(1, 3, 5, q + M5_TILE_TOK * M5_TILE_BLOCK, &b[1]);
            for (int t = 0; t < M5_TILE_TOK; t++) {
                __m512 a = take_sums(kind, _mm512_loadu_ps(acc + 16 * t), &b[0], x, at + t, t);
                if (step == 2) a = take_sums(kind, a, &b[1], x, at + M5_TILE_TOK + t, t);
                _mm512_storeu_ps(acc + 16 * t, a);
                if (m == 2) _mm512_storeu_ps(acc + SECOND + 16 * t, take_sums(kind, _mm512_loadu_ps(acc + SECOND + 16 * t), &b[1], x, at + t, t));
            }
        }
    }
    _tile_release();
}

/* Kinds with one scale a block, and the blocks of their groups. */
#define AMX_KINDS(X)                                                                                                                                 \
    X(Q4_0, 2)                                                                                                                                       \
    X(Q4_1, 2)                                                                                                                                       \
    X(Q5_0, 2) X(Q5_1, 2) X(Q8_0, 2) X(IQ4_NL, 2) X(MXFP4, 2) X(Q4_K, 8) X(Q5_K, 8) X(IQ4_XS, 8) X(MLX4_F16, s->group_blk)                           \
        X(MLX4_BF16, s->group_blk) X(MLX8_F16, s->group_blk) X(MLX8_BF16, s->group_blk)

#define TILE_AMX(kind, blocks)                                                                                                                       \
    static void tile_##kind(float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)                                             \
    {                                                                                                                                                \
        if (x->n_tok == M5_TILE_TOK)                                                                                                                 \
            tile_amx(M5_TILE_##kind, 1, blocks, acc, s, tile, x);                                                                                    \
        else                                                                                                                                         \
            m5_tiles_avx512[M5_TILE_##kind](acc, s, tile, x);                                                                                        \
    }                                                                                                                                                \
    static void pair_##kind(float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)                                             \
    {                                                                                                                                                \
        if (x->n_tok == M5_TILE_TOK)                                                                                                                 \
            tile_amx(M5_TILE_##kind, 2, blocks, acc, s, tile, x);                                                                                    \
        else                                                                                                                                         \
            m5_pairs_avx512[M5_TILE_##kind](acc, s, tile, x);                                                                                        \
    }
AMX_KINDS(TILE_AMX)

void m5_kernels_amx(m5_kernels *k)
{
#define TILE_SET(kind, blocks)                                                                                                                       \
    k->tile[M5_TILE_##kind] = tile_##kind;                                                                                                           \
    k->pair[M5_TILE_##kind] = pair_##kind;
    AMX_KINDS(TILE_SET)
#undef TILE_SET
}
