/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels for AMX (8-bit tiles of Intel server processors): prefill only. A set of sixteen tokens times a block of sixteen rows is one tile product,
 * since the eight chunks of an unpacked block are just the layout that the instruction wants (four columns of each row in a word). The dot products
 * are the same exact integers, what follows them has the order of every other level: so have the bits. Fewer tokens stay with AVX-512, float types
 * too, since the 16-bit float tiles would round differently.
 *
 * What a tile product leaves to do is the bound: 256 dot products to convert, scale and add for each block. Hence sixteen sums stay in registers over
 * the whole tile, and codes with an offset are made signed before the product (8 operations) instead of after it (48). Blocks with two scales stay
 * with AVX-512: half products gain nothing (Q6_K 0.96 to 1.01, Q3_K 0.96 to 1.03).
 *
 * Counts for one block and sixteen tokens: 1 tile product instead of 128 vpdpbusd; 512 bytes of codes and 1 KB of results through the first-level
 * cache; for every token a convert, a multiply and an fma, and one fma more for minimums. May touch: nothing. Source: Intel 64 and IA-32
 * Architectures Software Developer's Manual, volume 1, chapter 18 (palette 1, configuration, TDPBSSD, TDPBSUD). */
#include "kernels/avx512_block.h"

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* Tile registers, whose numbers are part of the instructions: sums [16 tokens][16 rows] i32; activations, 16 tokens of 32 bytes; codes, 8 chunks. */
#define SUMS   0
#define TOKENS 1
#define CODES  2
static const tile_config config = {.palette = 1, .row_bytes = {64, 32, 64}, .rows = {16, 16, 8}};

/* A tile load does not see what still waits to be written to the cache, and a load of what a tile has stored waits too. So three steps of three
 * blocks go side by side: the codes of one are unpacked, those of the one before are multiplied, the sums of the one before that are taken. */
typedef struct block {
    _Alignas(64) uint8_t codes[8 * M5_CHUNK_BYTES];
    _Alignas(64) int32_t sums[M5_TILE_TOK][M5_TILE_ROWS];
    scales sc;
} block;
enum { RING = 4 };

/* Codes into the first-level cache: signed where the kind has an offset, else unsigned. */
INLINE void unpack(m5_tile_kind kind, block *b, const m5_tile_shape *s, const uint8_t *group, int blk)
{
    const int bits = offset_bits(kind);
    __m512i w[8];
    unpack_block(kind, group + s->head_bytes, blk, w);
    UNROLL
    for (int i = 0; i < 8; i++)
        _mm512_store_si512(b->codes + i * M5_CHUNK_BYTES, bits >= 0 ? _mm512_sub_epi8(w[i], _mm512_set1_epi8((char)(1 << bits))) : w[i]);
    b->sc = load_scales(kind, group, blk);
}

INLINE void multiply(m5_tile_kind kind, block *b, const int8_t *q)
{
    _tile_zero(SUMS);
    _tile_loadd(TOKENS, q, M5_TILE_BLOCK);
    _tile_loadd(CODES, b->codes, M5_CHUNK_BYTES);
    if (offset_bits(kind) >= 0)
        _tile_dpbssd(SUMS, TOKENS, CODES);
    else
        _tile_dpbsud(SUMS, TOKENS, CODES);
    _tile_stored(SUMS, b->sums, 64);
}

/* The sums of a block's dot products, for sixteen tokens. */
INLINE void take_sums(m5_tile_kind kind, __m512 sum[M5_TILE_TOK], const block *b, const m5_tile_x *x, int64_t at)
{
    UNROLL
    for (int t = 0; t < M5_TILE_TOK; t++) {
        const __m512 dot = _mm512_cvtepi32_ps(_mm512_load_si512(b->sums[t]));
        sum[t] = _mm512_fmadd_ps(dot, _mm512_mul_ps(b->sc.d, _mm512_set1_ps(x->d[at + t])), sum[t]);
        if (m5_tile_has_min(kind)) sum[t] = _mm512_fmadd_ps(b->sc.m, _mm512_set1_ps(x->dsum[at + t]), sum[t]);
    }
}

/* One tile times sixteen tokens; the tile registers are configured. */
INLINE void tile_amx(m5_tile_kind kind, int group_blk, float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)
{
    const int64_t n = s->n_group * group_blk;
    __m512 sum[M5_TILE_TOK];
    block ring[RING];
    int blk = 0;
    UNROLL
    for (int t = 0; t < M5_TILE_TOK; t++) sum[t] = _mm512_setzero_ps();
    for (int64_t i = 0; i < n + 2; i++) {
        if (i < n) unpack(kind, &ring[i % RING], s, tile, blk);
        if (i >= 1 && i <= n) multiply(kind, &ring[(i - 1) % RING], x->q + (i - 1) * M5_TILE_TOK * M5_TILE_BLOCK);
        if (i >= 2) take_sums(kind, sum, &ring[(i - 2) % RING], x, (i - 2) * M5_TILE_TOK);
        if (++blk == group_blk) {
            blk = 0;
            tile += s->group_bytes;
        }
    }
    UNROLL
    for (int t = 0; t < M5_TILE_TOK; t++) _mm512_storeu_ps(acc + M5_TILE_ROWS * t, sum[t]);
}

/* Kinds with one scale a block, and the blocks of their groups. */
#define AMX_KINDS(X)                                                                                                                                 \
    X(Q4_0, 2)                                                                                                                                       \
    X(Q4_1, 2)                                                                                                                                       \
    X(Q5_0, 2)                                                                                                                                       \
    X(Q5_1, 2) X(Q8_0, 2) X(IQ4_NL, 2) X(MXFP4, 2) X(Q4_K, 8) X(Q5_K, 8) X(IQ4_XS, 8) X(MLX4_F16, s->group_blk) X(MLX4_BF16, s->group_blk)           \
        X(MLX8_F16, s->group_blk) X(MLX8_BF16, s->group_blk)

#define TILE_AMX(kind, blocks)                                                                                                                       \
    static void tiles_##kind(int m, float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)                                     \
    {                                                                                                                                                \
        const m5_tile_x copy = *x; /* the stores cannot change a local copy: its pointers stay in registers */                                       \
        _tile_loadconfig(&config);                                                                                                                   \
        for (int i = 0; i < m; i++) tile_amx(M5_TILE_##kind, blocks, acc + i * M5_TILE_TOK * M5_TILE_ROWS, s, tile + i * s->tile_bytes, &copy);      \
        _tile_release();                                                                                                                             \
    }                                                                                                                                                \
    static void tile_##kind(float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)                                             \
    {                                                                                                                                                \
        if (x->n_tok == M5_TILE_TOK)                                                                                                                 \
            tiles_##kind(1, acc, s, tile, x);                                                                                                        \
        else                                                                                                                                         \
            m5_far_tiles_avx512[M5_TILE_##kind](acc, s, tile, x);                                                                                        \
    }                                                                                                                                                \
    static void pair_##kind(float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)                                             \
    {                                                                                                                                                \
        if (x->n_tok == M5_TILE_TOK)                                                                                                                 \
            tiles_##kind(2, acc, s, tile, x);                                                                                                        \
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
