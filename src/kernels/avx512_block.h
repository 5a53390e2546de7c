/* SPDX-License-Identifier: Apache-2.0 */
/* Reading weight tiles with 512-bit registers: codes and scales of a block, and what is done with its dot product. Shared by avx512.c and amx.c,
 * which differ in how the dot product is made. May touch: nothing. */
#ifndef M5_KERNELS_AVX512_BLOCK_H
#define M5_KERNELS_AVX512_BLOCK_H

#include "kernels/kernels.h"
#include "kernels/tile_read.h"

#include <immintrin.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

INLINE __m512i bcast_i32(const void *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm512_set1_epi32(v);
}

INLINE __m512i chunk(const uint8_t *c, int i)
{
    return _mm512_loadu_si512(c + i * M5_CHUNK_BYTES);
}
INLINE __m512 halves(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
INLINE __m512i bytes_u(const uint8_t *p)
{
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}
INLINE __m512i bytes_s(const uint8_t *p)
{
    return _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}

INLINE __m512 bf16s(const uint8_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p)), 16));
}

/* (a & mask) | (b & ~mask) in one operation. */
INLINE __m512i select_bits(__m512i mask, __m512i a, __m512i b)
{
    return _mm512_ternarylogic_epi32(mask, a, b, 0xca);
}

/* Unsigned codes of the eight quads of one block; the offset is taken off through the sums of the activations. */
INLINE void unpack_block(m5_tile_kind kind, const uint8_t *c, int blk, __m512i w[8])
{
    const __m512i low = _mm512_set1_epi8(15);
    const int half = blk / 4, pos = blk % 4;
    switch (kind) {
    case M5_TILE_Q8_0:
    case M5_TILE_MLX8_F16:
    case M5_TILE_MLX8_BF16:
        for (int i = 0; i < 8; i++) w[i] = chunk(c, blk * 8 + i);
        break;
    case M5_TILE_Q5_0:
    case M5_TILE_Q5_1: {
        const __m512i high = chunk(c, blk * 5 + 4), bit = _mm512_set1_epi8(16);
        for (int i = 0; i < 4; i++) {
            const __m512i v = chunk(c, blk * 5 + i);
            w[i] = select_bits(low, v, _mm512_and_si512(_mm512_slli_epi32(high, 4 - i), bit));
            w[i + 4] = select_bits(low, _mm512_srli_epi32(v, 4), _mm512_and_si512(_mm512_srli_epi32(high, i), bit));
        }
        break;
    }
    case M5_TILE_Q4_K:
        for (int i = 0; i < 8; i++) w[i] = _mm512_and_si512(_mm512_srli_epi32(chunk(c, blk / 2 * 8 + i), blk % 2 * 4), low);
        break;
    case M5_TILE_Q5_K: {
        const __m512i bit = _mm512_set1_epi8(16);
        for (int i = 0; i < 8; i++) {
            const __m512i h = blk < 4 ? _mm512_slli_epi32(chunk(c, i), 4 - blk) : _mm512_srli_epi32(chunk(c, i), blk - 4);
            w[i] = select_bits(low, _mm512_srli_epi32(chunk(c, 8 + blk / 2 * 8 + i), blk % 2 * 4), _mm512_and_si512(h, bit));
        }
        break;
    }
    case M5_TILE_Q6_K: {
        const __m512i bits = _mm512_set1_epi8(48);
        for (int i = 0; i < 8; i++) {
            const __m512i v = chunk(c, half * 24 + 2 * i + 1), h = pos < 2 ? _mm512_slli_epi32(v, 4 - 2 * pos) : _mm512_srli_epi32(v, 2 * pos - 4);
            w[i] = select_bits(low, _mm512_srli_epi32(chunk(c, half * 24 + (pos % 2 ? 16 + i : 2 * i)), pos / 2 * 4), _mm512_and_si512(h, bits));
        }
        break;
    }
    case M5_TILE_Q2_K:
        for (int i = 0; i < 8; i++) w[i] = _mm512_and_si512(_mm512_srli_epi32(chunk(c, half * 8 + i), 2 * pos), _mm512_set1_epi8(3));
        break;
    case M5_TILE_Q3_K: {
        const __m512i bit = _mm512_set1_epi8(4);
        for (int i = 0; i < 8; i++) {
            const __m512i h = blk < 2 ? _mm512_slli_epi32(chunk(c, i), 2 - blk) : _mm512_srli_epi32(chunk(c, i), blk - 2);
            w[i] = select_bits(_mm512_set1_epi8(3), _mm512_srli_epi32(chunk(c, 8 + half * 8 + i), 2 * pos), _mm512_and_si512(h, bit));
        }
        break;
    }
    default:
        for (int i = 0; i < 4; i++) {
            const __m512i v = chunk(c, blk * 4 + i);
            w[i] = _mm512_and_si512(v, low);
            w[i + 4] = _mm512_and_si512(_mm512_srli_epi32(v, 4), low);
        }
    }
    if (kind == M5_TILE_IQ4_NL || kind == M5_TILE_IQ4_XS || kind == M5_TILE_MXFP4) {
        const int8_t *values = kind == M5_TILE_MXFP4 ? m5_mxfp4_values : m5_iq4_values;
        const __m512i table = _mm512_add_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)values)),
                                              _mm512_set1_epi8(kind == M5_TILE_MXFP4 ? 16 : -128));
        for (int i = 0; i < 8; i++) w[i] = _mm512_shuffle_epi8(table, w[i]);
    }
}

/* log2 of what unpack_block adds to a code, -1 for nothing. */
INLINE int offset_bits(m5_tile_kind kind)
{
    switch (kind) {
    case M5_TILE_Q4_0: return 3;
    case M5_TILE_Q5_0:
    case M5_TILE_MXFP4: return 4;
    case M5_TILE_Q8_0:
    case M5_TILE_IQ4_NL:
    case M5_TILE_IQ4_XS: return 7;
    case M5_TILE_Q6_K: return 5;
    case M5_TILE_Q3_K: return 2;
    default: return -1;
    }
}

typedef struct scales {
    __m512 d, m, dmin;
    __m512i sc[2], mn[2];
} scales;

INLINE scales load_scales(m5_tile_kind kind, const uint8_t *head, int blk)
{
    scales s;
    s.d = s.m = s.dmin = _mm512_setzero_ps();
    s.sc[0] = s.sc[1] = s.mn[0] = s.mn[1] = _mm512_setzero_si512();
    const uint8_t *byte = head + 64 + 16 * blk, *pair = head + 64 + 32 * blk;
    switch (kind) {
    case M5_TILE_MXFP4: s.d = bf16s(head + 32 * blk); break;
    case M5_TILE_Q4_1:
    case M5_TILE_Q5_1:
        s.d = halves(head + 32 * blk);
        s.m = halves(head + 64 + 32 * blk);
        break;
    case M5_TILE_MLX4_F16:
    case M5_TILE_MLX8_F16:
        s.d = halves(head);
        s.m = halves(head + 32);
        break;
    case M5_TILE_MLX4_BF16:
    case M5_TILE_MLX8_BF16:
        s.d = bf16s(head);
        s.m = bf16s(head + 32);
        break;
    case M5_TILE_Q4_K:
    case M5_TILE_Q5_K:
        s.d = _mm512_mul_ps(halves(head), _mm512_cvtepi32_ps(bytes_u(byte)));
        s.m = _mm512_mul_ps(_mm512_sub_ps(_mm512_setzero_ps(), halves(head + 32)), _mm512_cvtepi32_ps(bytes_u(byte + 128)));
        break;
    case M5_TILE_IQ4_XS: s.d = _mm512_mul_ps(halves(head), _mm512_cvtepi32_ps(bytes_s(byte))); break;
    case M5_TILE_Q6_K:
    case M5_TILE_Q3_K:
        s.d = halves(head);
        s.sc[0] = bytes_s(pair);
        s.sc[1] = bytes_s(pair + 16);
        break;
    case M5_TILE_Q2_K:
        s.d = halves(head);
        s.dmin = halves(head + 32);
        for (int h = 0; h < 2; h++) {
            const __m512i v = bytes_u(pair + 16 * h);
            s.sc[h] = _mm512_and_si512(v, _mm512_set1_epi32(15));
            s.mn[h] = _mm512_srli_epi32(v, 4);
        }
        break;
    default: s.d = halves(head + 32 * blk); break;
    }
    return s;
}

/* a and a block's dot product with its scales. */
INLINE __m512 add_block(m5_tile_kind kind, __m512 a, __m512i dot, const scales *s, const m5_tile_x *x, int64_t at)
{
    a = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), _mm512_mul_ps(s->d, _mm512_set1_ps(x->d[at])), a);
    if (m5_tile_has_min(kind)) a = _mm512_fmadd_ps(s->m, _mm512_set1_ps(x->dsum[at]), a);
    if (kind == M5_TILE_Q2_K) {
        const __m512i min = _mm512_add_epi32(_mm512_mullo_epi32(s->mn[0], bcast_i32(&x->nhalf[2 * at])),
                                             _mm512_mullo_epi32(s->mn[1], bcast_i32(&x->nhalf[2 * at + 1])));
        a = _mm512_fmadd_ps(_mm512_cvtepi32_ps(min), _mm512_mul_ps(s->dmin, _mm512_set1_ps(x->d[at])), a);
    }
    return a;
}

/* Products of avx512.c, by tile kind: amx.c leaves what it does not do better to them (far: only Intel makes processors with AMX). */
extern const m5_tile_fn m5_far_tiles_avx512[M5_TILE_COUNT], m5_pairs_avx512[M5_TILE_COUNT];

#endif
