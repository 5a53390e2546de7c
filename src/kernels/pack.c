/* SPDX-License-Identifier: Apache-2.0 */
/* Tiles: shapes, packing of a file's rows into tiles, and reading rows back. The layout is drawn in tile.h. May touch: nothing. */
#include "kernels/tile.h"
#include "kernels/tile_read.h"

#include <string.h>

static const char *const kind_names[M5_TILE_COUNT] = {
#define M5_TILE_NAME(name) #name,
    M5_TILE_KINDS(M5_TILE_NAME)
#undef M5_TILE_NAME
};

const char *m5_tile_kind_name(m5_tile_kind kind)
{
    return (unsigned)kind < M5_TILE_COUNT ? kind_names[kind] : "?";
}

/* Layout of one group: blocks, head bytes, chunks. */
static void set_shape(m5_tile_shape *s, m5_tile_kind kind, int64_t n_in, int group_blk, int head_bytes, int n_chunk)
{
    const int64_t n_blk = (n_in + M5_TILE_BLOCK - 1) / M5_TILE_BLOCK;
    *s = (m5_tile_shape){.kind = kind, .float_x = kind <= M5_TILE_BF16, .group_blk = group_blk, .head_bytes = head_bytes};
    s->group_bytes = head_bytes + n_chunk * M5_CHUNK_BYTES;
    s->n_group = (n_blk + group_blk - 1) / group_blk;
    s->tile_bytes = s->n_group * s->group_bytes;
}

void m5_tile_shape_f32(m5_tile_shape *s, int64_t n_in)
{
    set_shape(s, M5_TILE_F32, n_in, 1, 0, 32);
}

static bool set_shape_mlx(m5_tile_shape *s, const m5_matrix *m)
{
    if (m->group < M5_TILE_BLOCK || m->group % M5_TILE_BLOCK != 0 || (m->scale_type != M5_F16 && m->scale_type != M5_BF16)) return false;
    const bool half = m->scale_type == M5_F16;
    const int g = m->group / M5_TILE_BLOCK;
    if (m->type == M5_MLX4)
        set_shape(s, half ? M5_TILE_MLX4_F16 : M5_TILE_MLX4_BF16, m->n_in, g, 64, 4 * g);
    else
        set_shape(s, half ? M5_TILE_MLX8_F16 : M5_TILE_MLX8_BF16, m->n_in, g, 64, 8 * g);
    return true;
}

bool m5_tile_shape_of(m5_tile_shape *s, const m5_matrix *m)
{
    switch (m->type) {
    case M5_F32: m5_tile_shape_f32(s, m->n_in); return true;
    case M5_F16: set_shape(s, M5_TILE_F16, m->n_in, 1, 0, 16); return true;
    case M5_BF16: set_shape(s, M5_TILE_BF16, m->n_in, 1, 0, 16); return true;
    case M5_Q4_0: set_shape(s, M5_TILE_Q4_0, m->n_in, 2, 64, 8); return true;
    case M5_Q4_1: set_shape(s, M5_TILE_Q4_1, m->n_in, 2, 128, 8); return true;
    case M5_Q5_0: set_shape(s, M5_TILE_Q5_0, m->n_in, 2, 64, 10); return true;
    case M5_Q5_1: set_shape(s, M5_TILE_Q5_1, m->n_in, 2, 128, 10); return true;
    case M5_Q8_0: set_shape(s, M5_TILE_Q8_0, m->n_in, 2, 64, 16); return true;
    case M5_IQ4_NL: set_shape(s, M5_TILE_IQ4_NL, m->n_in, 2, 64, 8); return true;
    case M5_MXFP4: set_shape(s, M5_TILE_MXFP4, m->n_in, 2, 64, 8); return true;
    case M5_Q2_K: set_shape(s, M5_TILE_Q2_K, m->n_in, 8, 64 + 256, 16); return true;
    case M5_Q3_K: set_shape(s, M5_TILE_Q3_K, m->n_in, 8, 64 + 256, 24); return true;
    case M5_Q4_K: set_shape(s, M5_TILE_Q4_K, m->n_in, 8, 64 + 256, 32); return true;
    case M5_Q5_K: set_shape(s, M5_TILE_Q5_K, m->n_in, 8, 64 + 256, 40); return true;
    case M5_Q6_K: set_shape(s, M5_TILE_Q6_K, m->n_in, 8, 64 + 256, 48); return true;
    case M5_IQ4_XS: set_shape(s, M5_TILE_IQ4_XS, m->n_in, 8, 64 + 128, 32); return true;
    case M5_MLX4:
    case M5_MLX8: return set_shape_mlx(s, m);
    default: return false;
    }
}

/* --- packing -------------------------------------------------------------------------------------------------------------------- */

static inline uint32_t load32(const uint8_t *p)
{
    uint32_t v;
    memcpy(&v, p, 4);
    return v;
}

static inline void put_words(uint8_t *chunks, int r, const uint8_t *src, int n, uint32_t flip)
{
    for (int i = 0; i < n; i++) m5_tile_put_word(chunks, i, r, load32(src + 4 * i) ^ flip);
}

static inline void put_half(uint8_t *head, int i, const uint8_t *src)
{
    memcpy(head + 2 * i, src, 2);
}

/* Fifth bits of 32 columns: bit i = column i, to byte k of the word, bit q = column 4q + k. Its own inverse is the loop read backwards. */
static uint32_t spread_fifth_bits(uint32_t qh)
{
    uint32_t out = 0;
    for (int q = 0; q < 8; q++) {
        for (int k = 0; k < 4; k++) out |= (qh >> (4 * q + k) & 1u) << (8 * k + q);
    }
    return out;
}

/* One block of a 32-column type into block b of a group. */
static void pack_block32(const m5_tile_shape *s, uint8_t *group, int b, int r, const uint8_t *src)
{
    uint8_t *c = group + s->head_bytes;
    const int i = b * M5_TILE_ROWS + r;
    if (s->kind == M5_TILE_MXFP4) {
        const uint16_t e = src[0], d = e < 2 ? (uint16_t)(0x0020 << e) : (uint16_t)((e - 1) << 7);
        memcpy(group + 2 * i, &d, 2);
    } else {
        put_half(group, i, src);
    }
    switch (s->kind) {
    case M5_TILE_Q8_0: put_words(c + b * 8 * M5_CHUNK_BYTES, r, src + 2, 8, 0x80808080u); break;
    case M5_TILE_MXFP4: put_words(c + b * 4 * M5_CHUNK_BYTES, r, src + 1, 4, 0); break;
    case M5_TILE_Q4_1:
        put_half(group + 64, i, src + 2);
        put_words(c + b * 4 * M5_CHUNK_BYTES, r, src + 4, 4, 0);
        break;
    case M5_TILE_Q5_0:
        put_words(c + b * 5 * M5_CHUNK_BYTES, r, src + 6, 4, 0);
        m5_tile_put_word(c, b * 5 + 4, r, spread_fifth_bits(load32(src + 2)));
        break;
    case M5_TILE_Q5_1:
        put_half(group + 64, i, src + 2);
        put_words(c + b * 5 * M5_CHUNK_BYTES, r, src + 8, 4, 0);
        m5_tile_put_word(c, b * 5 + 4, r, spread_fifth_bits(load32(src + 4)));
        break;
    default: put_words(c + b * 4 * M5_CHUNK_BYTES, r, src + 2, 4, 0); break; /* Q4_0, IQ4_NL */
    }
}

/* 6-bit scales and minimums of Q4_K and Q5_K. */
static void pack_k4_scales(uint8_t *sc, int r, const uint8_t *p)
{
    for (int j = 0; j < 8; j++) {
        const uint8_t a = j < 4 ? p[j] & 63 : (uint8_t)((p[j + 4] & 15) | (p[j - 4] >> 6 << 4));
        const uint8_t m = j < 4 ? p[j + 4] & 63 : (uint8_t)(p[j + 4] >> 4 | (p[j] >> 6 << 4));
        sc[j * M5_TILE_ROWS + r] = a;
        sc[(8 + j) * M5_TILE_ROWS + r] = m;
    }
}

static void pack_q3_scales(uint8_t *sc, int r, const uint8_t *p)
{
    for (int b = 0; b < 16; b++) {
        const int low = b < 8 ? p[b] & 15 : p[b - 8] >> 4, high = p[8 + b % 4] >> (2 * (b / 4)) & 3;
        sc[b * M5_TILE_ROWS + r] = (uint8_t)(int8_t)((low | high << 4) - 32);
    }
}

/* One block of a 256-column type, a whole group. */
static void pack_block256(const m5_tile_shape *s, uint8_t *group, int r, const uint8_t *src)
{
    uint8_t *sc = group + 64, *c = group + s->head_bytes;
    switch (s->kind) {
    case M5_TILE_Q4_K:
    case M5_TILE_Q5_K:
        put_half(group, r, src);
        put_half(group, M5_TILE_ROWS + r, src + 2);
        pack_k4_scales(sc, r, src + 4);
        put_words(c, r, src + 16, s->kind == M5_TILE_Q4_K ? 32 : 40, 0); /* Q5_K: qh before qs, as in the file */
        break;
    case M5_TILE_Q6_K:
        put_half(group, r, src + 208);
        for (int b = 0; b < 16; b++) sc[b * M5_TILE_ROWS + r] = src[192 + b];
        for (int h = 0; h < 2; h++) {
            uint8_t *half = c + h * 24 * M5_CHUNK_BYTES;
            for (int q = 0; q < 8; q++) {
                m5_tile_put_word(half, 2 * q, r, load32(src + 64 * h + 4 * q));
                m5_tile_put_word(half, 2 * q + 1, r, load32(src + 128 + 32 * h + 4 * q));
                m5_tile_put_word(half, 16 + q, r, load32(src + 64 * h + 32 + 4 * q));
            }
        }
        break;
    case M5_TILE_Q2_K:
        put_half(group, r, src + 80);
        put_half(group, M5_TILE_ROWS + r, src + 82);
        for (int b = 0; b < 16; b++) sc[b * M5_TILE_ROWS + r] = src[b];
        put_words(c, r, src + 16, 16, 0);
        break;
    case M5_TILE_Q3_K:
        put_half(group, r, src + 108);
        pack_q3_scales(sc, r, src + 96);
        put_words(c, r, src, 24, 0); /* hmask, qs */
        break;
    default: /* IQ4_XS: d, scales_h, scales_l[4], qs */
        put_half(group, r, src);
        for (int b = 0; b < 8; b++) {
            const int low = src[4 + b / 2] >> (4 * (b % 2)) & 15, high = (src[2] | src[3] << 8) >> (2 * b) & 3;
            sc[b * M5_TILE_ROWS + r] = (uint8_t)(int8_t)((low | high << 4) - 32);
        }
        put_words(c, r, src + 8, 32, 0);
        break;
    }
}

/* MLX streams: 4-bit codes stand lowest first, so eight neighbours share a word; quads q and q + 4 are brought together. */
static void pack_mlx(const m5_tile_shape *s, const m5_matrix *m, int64_t row, int r, uint8_t *tile)
{
    const uint8_t *src = m->data + row * m->row_bytes;
    const int64_t n_scale = m->n_in / m->group;
    for (int64_t g = 0; g < s->n_group; g++, tile += s->group_bytes) {
        uint8_t *c = tile + s->head_bytes;
        put_half(tile, r, m->scales + 2 * (row * n_scale + g));
        put_half(tile, M5_TILE_ROWS + r, m->biases + 2 * (row * n_scale + g));
        for (int b = 0; b < s->group_blk; b++) {
            if (m->type == M5_MLX8) {
                put_words(c + b * 8 * M5_CHUNK_BYTES, r, src, 8, 0);
                src += 32;
                continue;
            }
            for (int q = 0; q < 4; q++) {
                uint32_t w = 0;
                for (int k = 0; k < 4; k++) {
                    const int lo = 4 * q + k, hi = lo + 16;
                    w |= (uint32_t)(src[lo / 2] >> (4 * (lo % 2)) & 15) << (8 * k) | (uint32_t)(src[hi / 2] >> (4 * (hi % 2)) & 15) << (8 * k + 4);
                }
                m5_tile_put_word(c, b * 4 + q, r, w);
            }
            src += 16;
        }
    }
}

static void pack_float_row(const m5_tile_shape *s, const uint8_t *src, int64_t n_in, int r, uint8_t *tile)
{
    if (s->kind == M5_TILE_F32) {
        for (int64_t k = 0; k < n_in; k++) memcpy(tile + (k * M5_TILE_ROWS + r) * 4, src + 4 * k, 4);
    } else if (s->kind == M5_TILE_F16) {
        for (int64_t k = 0; k < n_in; k++) memcpy(tile + (k * M5_TILE_ROWS + r) * 2, src + 2 * k, 2);
    } else {
        for (int64_t k = 0; k < n_in; k++) memcpy(tile + ((k / 2 * M5_TILE_ROWS + r) * 2 + k % 2) * 2, src + 2 * k, 2);
    }
}

void m5_tile_pack(const m5_tile_shape *s, const m5_matrix *m, int64_t row0, int n_row, uint8_t *dst)
{
    const m5_dtype_info *info = m5_dtype_get(m->type);
    const bool whole = n_row == M5_TILE_ROWS && m->n_in == s->n_group * s->group_blk * M5_TILE_BLOCK;
    if (!whole) memset(dst, 0, (size_t)s->tile_bytes);
    if (s->float_x || m->type == M5_MLX4 || m->type == M5_MLX8) {
        for (int r = 0; r < n_row; r++) {
            if (s->float_x)
                pack_float_row(s, m->data + (row0 + r) * m->row_bytes, m->n_in, r, dst);
            else
                pack_mlx(s, m, row0 + r, r, dst);
        }
        return;
    }
    /* Group by group over all rows, so that a group's lines are written while they are in the first-level cache. */
    const int64_t n_blk = m->n_in / info->block;
    const int per_group = s->group_blk * M5_TILE_BLOCK / info->block;
    for (int64_t g = 0; g < s->n_group; g++) {
        uint8_t *group = dst + g * s->group_bytes;
        for (int b = 0; b < per_group && g * per_group + b < n_blk; b++) {
            const uint8_t *src = m->data + row0 * m->row_bytes + (g * per_group + b) * info->block_bytes;
            for (int r = 0; r < n_row; r++, src += m->row_bytes) {
                if (info->block == M5_TILE_BLOCK)
                    pack_block32(s, group, b, r, src);
                else
                    pack_block256(s, group, r, src);
            }
        }
    }
}

void m5_tile_put_row_f32(const float *row, int64_t n_in, int r, uint8_t *tile)
{
    for (int64_t k = 0; k < n_in; k++) memcpy(tile + (k * M5_TILE_ROWS + r) * 4, row + k, 4);
}

/* --- reading back --------------------------------------------------------------------------------------------------------------- */

static void float_row(const m5_tile_shape *s, const uint8_t *tile, int r, int64_t n_in, float *dst)
{
    for (int64_t k = 0; k < n_in; k++) {
        if (s->kind == M5_TILE_F32)
            memcpy(&dst[k], tile + (k * M5_TILE_ROWS + r) * 4, 4);
        else if (s->kind == M5_TILE_F16)
            dst[k] = m5_tile_half(tile + 2 * k * M5_TILE_ROWS, r);
        else
            dst[k] = m5_tile_bf16(tile + 4 * (k / 2) * M5_TILE_ROWS, 2 * r + (int)(k % 2));
    }
}

void m5_tile_row_f32(const m5_tile_shape *s, const m5_matrix *m, const uint8_t *tile, int r, float *dst)
{
    if (s->float_x) {
        float_row(s, tile, r, m->n_in, dst);
        return;
    }
    const bool has_min = m5_tile_has_min(s->kind) || s->kind == M5_TILE_Q2_K;
    for (int64_t b = 0; b < m->n_in / M5_TILE_BLOCK; b++, dst += M5_TILE_BLOCK) {
        const uint8_t *group = tile + b / s->group_blk * s->group_bytes;
        const int blk = (int)(b % s->group_blk);
        int q[M5_TILE_BLOCK];
        m5_tile_scale w;
        m5_tile_codes(s, group, blk, r, q);
        m5_tile_scales(s, group, blk, r, &w);
        for (int h = 0; h < 2; h++) {
            const float d = w.d * (float)w.sc[h], min = s->kind == M5_TILE_Q2_K ? -(w.dmin * (float)w.mn[h]) : w.m;
            for (int i = 16 * h; i < 16 * h + 16; i++) dst[i] = has_min ? d * (float)q[i] + min : d * (float)q[i];
        }
    }
}
