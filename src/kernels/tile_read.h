/* SPDX-License-Identifier: Apache-2.0 */
/* Reads single rows out of a tile: codes and scales of one block. Shared by pack.c (rows for the embedding) and ref.c; not for fast kernels. */
#ifndef M5_KERNELS_TILE_READ_H
#define M5_KERNELS_TILE_READ_H

#include "kernels/tile.h"

#include <string.h>

/* IQ4_NL and IQ4_XS: value of a code. MXFP4: twice the value, see tile.h. */
static const int8_t m5_iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
static const int8_t m5_mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

static inline uint32_t m5_tile_word(const uint8_t *chunks, int chunk, int row)
{
    uint32_t v;
    memcpy(&v, chunks + chunk * M5_CHUNK_BYTES + row * 4, 4);
    return v;
}

static inline void m5_tile_put_word(uint8_t *chunks, int chunk, int row, uint32_t v)
{
    memcpy(chunks + chunk * M5_CHUNK_BYTES + row * 4, &v, 4);
}

static inline uint16_t m5_tile_u16(const uint8_t *p, int i)
{
    uint16_t v;
    memcpy(&v, p + 2 * i, 2);
    return v;
}

static inline float m5_tile_half(const uint8_t *p, int i)
{
    return m5_f16_to_f32(m5_tile_u16(p, i));
}
static inline float m5_tile_bf16(const uint8_t *p, int i)
{
    return m5_bf16_to_f32(m5_tile_u16(p, i));
}

/* Four codes of the bytes of w, each (byte >> shift) & mask. */
static inline void m5_tile_spread(int *q, uint32_t w, int shift, uint32_t mask)
{
    for (int i = 0; i < 4; i++) q[i] = (int)(w >> (8 * i + shift) & mask);
}

/* Codes of block blk (within its group) of row r, as signed integers after the kind's offset or table. */
static inline void m5_tile_codes(const m5_tile_shape *s, const uint8_t *group, int blk, int r, int q[32])
{
    const uint8_t *c = group + s->head_bytes;
    const int half = blk / 4, pos = blk % 4;
    for (int g = 0; g < 8; g++) {
        int *out = q + 4 * g, extra[4] = {0};
        switch (s->kind) {
        case M5_TILE_Q8_0:
        case M5_TILE_MLX8_F16:
        case M5_TILE_MLX8_BF16: m5_tile_spread(out, m5_tile_word(c, blk * 8 + g, r), 0, 255); break;
        case M5_TILE_Q5_0:
        case M5_TILE_Q5_1:
            m5_tile_spread(out, m5_tile_word(c, blk * 5 + g % 4, r), g < 4 ? 0 : 4, 15);
            m5_tile_spread(extra, m5_tile_word(c, blk * 5 + 4, r), g, 1);
            for (int i = 0; i < 4; i++) out[i] += 16 * extra[i];
            break;
        case M5_TILE_Q4_K: m5_tile_spread(out, m5_tile_word(c, blk / 2 * 8 + g, r), blk % 2 * 4, 15); break;
        case M5_TILE_Q5_K:
            m5_tile_spread(out, m5_tile_word(c, 8 + blk / 2 * 8 + g, r), blk % 2 * 4, 15);
            m5_tile_spread(extra, m5_tile_word(c, g, r), blk, 1);
            for (int i = 0; i < 4; i++) out[i] += 16 * extra[i];
            break;
        case M5_TILE_Q6_K:
            m5_tile_spread(out, m5_tile_word(c, half * 24 + (pos % 2 ? 16 + g : 2 * g), r), pos / 2 * 4, 15);
            m5_tile_spread(extra, m5_tile_word(c, half * 24 + 2 * g + 1, r), 2 * pos, 3);
            for (int i = 0; i < 4; i++) out[i] += 16 * extra[i];
            break;
        case M5_TILE_Q2_K: m5_tile_spread(out, m5_tile_word(c, half * 8 + g, r), 2 * pos, 3); break;
        case M5_TILE_Q3_K:
            m5_tile_spread(out, m5_tile_word(c, 8 + half * 8 + g, r), 2 * pos, 3);
            m5_tile_spread(extra, m5_tile_word(c, g, r), blk, 1);
            for (int i = 0; i < 4; i++) out[i] += 4 * extra[i];
            break;
        default: m5_tile_spread(out, m5_tile_word(c, blk * 4 + g % 4, r), g < 4 ? 0 : 4, 15); break;
        }
        for (int i = 0; i < 4; i++) {
            switch (s->kind) {
            case M5_TILE_Q4_0: out[i] -= 8; break;
            case M5_TILE_Q5_0: out[i] -= 16; break;
            case M5_TILE_Q8_0: out[i] -= 128; break;
            case M5_TILE_Q6_K: out[i] -= 32; break;
            case M5_TILE_Q3_K: out[i] -= 4; break;
            case M5_TILE_IQ4_NL:
            case M5_TILE_IQ4_XS: out[i] = m5_iq4_values[out[i]]; break;
            case M5_TILE_MXFP4: out[i] = m5_mxfp4_values[out[i]]; break;
            default: break;
            }
        }
    }
}

/* Kinds whose values are scale * code + minimum. */
static inline bool m5_tile_has_min(m5_tile_kind kind)
{
    switch (kind) {
    case M5_TILE_Q4_1:
    case M5_TILE_Q5_1:
    case M5_TILE_Q4_K:
    case M5_TILE_Q5_K:
    case M5_TILE_MLX4_F16:
    case M5_TILE_MLX4_BF16:
    case M5_TILE_MLX8_F16:
    case M5_TILE_MLX8_BF16: return true;
    default: return false;
    }
}

/* Scales of one block of one row. Value of a code q of half h: d * sc[h] * q + (m, or -(dmin * mn[h])). */
typedef struct m5_tile_scale {
    float d;    /* with the block's integer scale multiplied in where that is per block (Q4_K, Q5_K, IQ4_XS) */
    float m;    /* addend of the minimum; 0 when the kind has none */
    int sc[2];  /* integer scales of the halves: Q6_K, Q3_K, Q2_K; 1 otherwise */
    float dmin; /* Q2_K */
    int mn[2];
} m5_tile_scale;

static inline void m5_tile_scales(const m5_tile_shape *s, const uint8_t *head, int blk, int r, m5_tile_scale *out)
{
    const int i = blk * M5_TILE_ROWS + r, byte = 64 + i, pair = 64 + 2 * blk * M5_TILE_ROWS + r;
    *out = (m5_tile_scale){.sc = {1, 1}};
    switch (s->kind) {
    case M5_TILE_MXFP4: out->d = m5_tile_bf16(head, i); break;
    case M5_TILE_Q4_1:
    case M5_TILE_Q5_1:
        out->d = m5_tile_half(head, i);
        out->m = m5_tile_half(head + 64, i);
        break;
    case M5_TILE_MLX4_F16:
    case M5_TILE_MLX8_F16:
        out->d = m5_tile_half(head, r);
        out->m = m5_tile_half(head, M5_TILE_ROWS + r);
        break;
    case M5_TILE_MLX4_BF16:
    case M5_TILE_MLX8_BF16:
        out->d = m5_tile_bf16(head, r);
        out->m = m5_tile_bf16(head, M5_TILE_ROWS + r);
        break;
    case M5_TILE_Q4_K:
    case M5_TILE_Q5_K:
        out->d = m5_tile_half(head, r) * (float)head[byte];
        out->m = -(m5_tile_half(head, M5_TILE_ROWS + r) * (float)head[byte + 8 * M5_TILE_ROWS]);
        break;
    case M5_TILE_IQ4_XS: out->d = m5_tile_half(head, r) * (float)(int8_t)head[byte]; break;
    case M5_TILE_Q6_K:
    case M5_TILE_Q3_K:
        out->d = m5_tile_half(head, r);
        for (int h = 0; h < 2; h++) out->sc[h] = (int8_t)head[pair + h * M5_TILE_ROWS];
        break;
    case M5_TILE_Q2_K:
        out->d = m5_tile_half(head, r);
        out->dmin = m5_tile_half(head, M5_TILE_ROWS + r);
        for (int h = 0; h < 2; h++) {
            out->sc[h] = head[pair + h * M5_TILE_ROWS] & 15;
            out->mn[h] = head[pair + h * M5_TILE_ROWS] >> 4;
        }
        break;
    default: out->d = m5_tile_half(head, i); break;
    }
}

#endif
