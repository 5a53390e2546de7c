/* SPDX-License-Identifier: Apache-2.0 */
/* Reading weight tiles with 128-bit Arm registers: codes and scales of a block, four rows at a time. Shared by neon.c and neon_i8mm.c, which differ
 * in how the dot product is made. May touch: nothing. */
#ifndef M5_KERNELS_NEON_BLOCK_H
#define M5_KERNELS_NEON_BLOCK_H

#include "kernels/kernels.h"
#include "kernels/tile_read.h"

#include <arm_neon.h>

#define INLINE static inline __attribute__((always_inline))

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

INLINE float32x4_t halves(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}
INLINE float32x4_t bf16s(const uint8_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}

INLINE int32x4_t bytes_u(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(vcreate_u8(v)))));
}

INLINE int32x4_t bytes_s(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(v))));
}

INLINE bool is_mlx8(m5_tile_kind kind)
{
    return kind == M5_TILE_MLX8_F16 || kind == M5_TILE_MLX8_BF16;
}
INLINE bool is_halves(m5_tile_kind kind)
{
    return kind == M5_TILE_Q6_K || kind == M5_TILE_Q3_K || kind == M5_TILE_Q2_K;
}

/* Bits (v >> right) & mask; negative: to the left. */
INLINE uint8x16_t field(uint8x16_t v, int right, uint8_t mask)
{
    return vandq_u8(vshlq_u8(v, vdupq_n_s8((int8_t)-right)), vdupq_n_u8(mask));
}

/* c points at the four rows' bytes of chunk 0. */
INLINE uint8x16_t chunk(const uint8_t *c, int i)
{
    return vld1q_u8(c + i * M5_CHUNK_BYTES);
}

INLINE void unpack_block(m5_tile_kind kind, const uint8_t *c, int blk, int8x16_t w[8])
{
    const int half = blk / 4, pos = blk % 4;
    uint8x16_t u[8];
    switch (kind) {
    case M5_TILE_Q8_0:
    case M5_TILE_MLX8_F16:
    case M5_TILE_MLX8_BF16:
        for (int i = 0; i < 8; i++) u[i] = veorq_u8(chunk(c, blk * 8 + i), vdupq_n_u8(128));
        break;
    case M5_TILE_Q5_0:
    case M5_TILE_Q5_1:
        for (int i = 0; i < 4; i++) {
            const uint8x16_t v = chunk(c, blk * 5 + i), high = chunk(c, blk * 5 + 4);
            u[i] = vorrq_u8(field(v, 0, 15), field(high, i - 4, 16));
            u[i + 4] = vorrq_u8(field(v, 4, 15), field(high, i, 16));
        }
        break;
    case M5_TILE_Q4_K:
        for (int i = 0; i < 8; i++) u[i] = field(chunk(c, blk / 2 * 8 + i), blk % 2 * 4, 15);
        break;
    case M5_TILE_Q5_K:
        for (int i = 0; i < 8; i++) u[i] = vorrq_u8(field(chunk(c, 8 + blk / 2 * 8 + i), blk % 2 * 4, 15), field(chunk(c, i), blk - 4, 16));
        break;
    case M5_TILE_Q6_K:
        for (int i = 0; i < 8; i++) {
            const uint8x16_t v = chunk(c, half * 24 + (pos % 2 ? 16 + i : 2 * i)), high = chunk(c, half * 24 + 2 * i + 1);
            u[i] = vorrq_u8(field(v, pos / 2 * 4, 15), field(high, 2 * pos - 4, 48));
        }
        break;
    case M5_TILE_Q2_K:
        for (int i = 0; i < 8; i++) u[i] = field(chunk(c, half * 8 + i), 2 * pos, 3);
        break;
    case M5_TILE_Q3_K:
        for (int i = 0; i < 8; i++) u[i] = vorrq_u8(field(chunk(c, 8 + half * 8 + i), 2 * pos, 3), field(chunk(c, i), blk - 2, 4));
        break;
    default:
        for (int i = 0; i < 4; i++) {
            const uint8x16_t v = chunk(c, blk * 4 + i);
            u[i] = field(v, 0, 15);
            u[i + 4] = field(v, 4, 15);
        }
    }
    const bool table = kind == M5_TILE_IQ4_NL || kind == M5_TILE_IQ4_XS || kind == M5_TILE_MXFP4;
    const int8x16_t values = vld1q_s8(kind == M5_TILE_MXFP4 ? m5_mxfp4_values : m5_iq4_values);
    for (int i = 0; i < 8; i++) w[i] = table ? vqtbl1q_s8(values, u[i]) : vreinterpretq_s8_u8(u[i]);
}

/* The sum of codes times activations lacks this many (log2) times nsum; -1: nothing. MLX8: its codes came out 128 too low. */
INLINE int offset_bits(m5_tile_kind kind)
{
    switch (kind) {
    case M5_TILE_Q4_0: return 3;
    case M5_TILE_Q5_0: return 4;
    case M5_TILE_Q6_K: return 5;
    case M5_TILE_Q3_K: return 2;
    case M5_TILE_MLX8_F16:
    case M5_TILE_MLX8_BF16: return 7;
    default: return -1;
    }
}

typedef struct scales {
    float32x4_t d, m, dmin;
    int32x4_t sc[2], mn[2];
} scales;

/* Rows 4h .. 4h + 3. */
INLINE scales load_scales(m5_tile_kind kind, const uint8_t *head, int h, int blk)
{
    scales s;
    s.d = s.m = s.dmin = vdupq_n_f32(0);
    s.sc[0] = s.sc[1] = s.mn[0] = s.mn[1] = vdupq_n_s32(0);
    const uint8_t *byte = head + 64 + 16 * blk + 4 * h, *pair = head + 64 + 32 * blk + 4 * h;
    head += 8 * h;
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
        s.d = vmulq_f32(halves(head), vcvtq_f32_s32(bytes_u(byte)));
        s.m = vmulq_f32(vnegq_f32(halves(head + 32)), vcvtq_f32_s32(bytes_u(byte + 128)));
        break;
    case M5_TILE_IQ4_XS: s.d = vmulq_f32(halves(head), vcvtq_f32_s32(bytes_s(byte))); break;
    case M5_TILE_Q6_K:
    case M5_TILE_Q3_K:
        s.d = halves(head);
        s.sc[0] = bytes_s(pair);
        s.sc[1] = bytes_s(pair + 16);
        break;
    case M5_TILE_Q2_K:
        s.d = halves(head);
        s.dmin = halves(head + 32);
        for (int i = 0; i < 2; i++) {
            const int32x4_t v = bytes_u(pair + 16 * i);
            s.sc[i] = vandq_s32(v, vdupq_n_s32(15));
            s.mn[i] = vshrq_n_s32(v, 4);
        }
        break;
    default: s.d = halves(head + 32 * blk); break;
    }
    return s;
}

/* Every kind for any number of tokens, by sdot: neon.c. */
extern const m5_tile_fn m5_tiles_neon[M5_TILE_COUNT];

#endif
