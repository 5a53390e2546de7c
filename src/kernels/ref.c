/* SPDX-License-Identifier: Apache-2.0 */
/* Scalar reference of every slot: its meaning, in the order of operations that faster versions keep (tile.h). Written to be read, not to be fast. */
#include "kernels/exp.h"
#include "kernels/kernels.h"
#include "kernels/tile_read.h"

#include <math.h>

static void quant_x_ref(const m5_tile_x *x, int t, const float *src, int64_t n_blk)
{
    for (int64_t b = 0; b < n_blk; b++, src += M5_TILE_BLOCK) {
        const int64_t at = b * x->n_tok + t;
        int8_t *q = x->q + at * M5_TILE_BLOCK;
        float max = 0;
        for (int i = 0; i < M5_TILE_BLOCK; i++) max = fabsf(src[i]) > max ? fabsf(src[i]) : max;
        const bool tiny = max < M5_QUANT_MIN;
        const float inv = tiny ? 0 : 127.0f / max;
        int32_t half[2] = {0, 0};
        for (int i = 0; i < M5_TILE_BLOCK; i++) {
            const float v = rintf(src[i] * inv);
            q[i] = v >= -127.0f && v <= 127.0f ? (int8_t)v : 0;
            half[i / 16] -= q[i];
        }
        x->d[at] = tiny ? 0 : max / 127.0f;
        x->nhalf[2 * at] = half[0];
        x->nhalf[2 * at + 1] = half[1];
        x->nsum[at] = half[0] + half[1];
        x->dsum[at] = x->d[at] * (float)-x->nsum[at];
    }
}

static void tile_float(float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)
{
    for (int t = 0; t < x->n_tok; t++) {
        for (int r = 0; r < M5_TILE_ROWS; r++) {
            float sum = 0;
            for (int64_t b = 0; b < s->n_group; b++) {
                const uint8_t *g = tile + b * s->group_bytes;
                const float *f = x->f + (b * x->n_tok + t) * M5_TILE_BLOCK;
                float part = 0;
                for (int k = 0; k < M5_TILE_BLOCK; k++) {
                    float w;
                    if (s->kind == M5_TILE_F32)
                        memcpy(&w, g + (k * M5_TILE_ROWS + r) * 4, 4);
                    else if (s->kind == M5_TILE_F16)
                        w = m5_tile_half(g, k * M5_TILE_ROWS + r);
                    else
                        w = m5_tile_bf16(g, (k / 2 * M5_TILE_ROWS + r) * 2 + k % 2);
                    part = k == 0 ? w * f[0] : fmaf(w, f[k], part);
                }
                sum = sum + part;
            }
            acc[t * M5_TILE_ROWS + r] = sum;
        }
    }
}

static void tile_int(float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)
{
    memset(acc, 0, sizeof(float) * M5_TILE_ROWS * (size_t)x->n_tok);
    for (int64_t b = 0; b < s->n_group * s->group_blk; b++) {
        const uint8_t *group = tile + b / s->group_blk * s->group_bytes;
        const int blk = (int)(b % s->group_blk);
        for (int r = 0; r < M5_TILE_ROWS; r++) {
            int codes[M5_TILE_BLOCK];
            m5_tile_scale w;
            m5_tile_codes(s, group, blk, r, codes);
            m5_tile_scales(s, group, blk, r, &w);
            for (int t = 0; t < x->n_tok; t++) {
                const int64_t at = b * x->n_tok + t;
                const int8_t *q = x->q + at * M5_TILE_BLOCK;
                int32_t dot[2] = {0, 0};
                for (int k = 0; k < M5_TILE_BLOCK; k++) dot[k / 16] += codes[k] * q[k];
                float *a = &acc[t * M5_TILE_ROWS + r];
                *a = fmaf((float)(w.sc[0] * dot[0] + w.sc[1] * dot[1]), w.d * x->d[at], *a);
                if (m5_tile_has_min(s->kind)) *a = fmaf(w.m, x->dsum[at], *a);
                if (s->kind == M5_TILE_Q2_K) {
                    *a = fmaf((float)(w.mn[0] * x->nhalf[2 * at] + w.mn[1] * x->nhalf[2 * at + 1]), w.dmin * x->d[at], *a);
                }
            }
        }
    }
}

static void tile_ref(float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)
{
    (s->float_x ? tile_float : tile_int)(acc, s, tile, x);
}

static void f32_f16_ref(uint16_t *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = m5_f32_to_f16(x[i]);
}

static void f32_bf16_ref(uint16_t *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = m5_f32_to_bf16(x[i]);
}

static void silu_mul_ref(float *y, const float *g, const float *u, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = g[i] / (1.0f + m5_exp(-g[i])) * u[i];
}

static void gelu_mul_ref(float *y, const float *g, const float *u, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = g[i] / (1.0f + m5_exp(-m5_gelu_arg(g[i]))) * u[i];
}

static uint64_t read_sum_ref(const uint8_t *p, size_t n)
{
    uint64_t s = 0, v;
    for (size_t i = 0; i + 8 <= n; i += 8) {
        memcpy(&v, p + i, 8);
        s ^= v;
    }
    return s;
}

static int64_t peak_int_ref(int64_t rounds)
{
    uint32_t s[8] = {0};
    for (int64_t i = 0; i < rounds; i++) {
        for (int k = 0; k < 8; k++) {
            s[k] += (uint32_t)(uint8_t)s[k] * 3u;
            __asm__ volatile("" : "+r"(s[k]));
        }
    }
    return rounds * 8 * 2;
}

static int64_t peak_fma_ref(int64_t rounds)
{
    float s[8] = {0};
    for (int64_t i = 0; i < rounds; i++) {
        for (int k = 0; k < 8; k++) s[k] = fmaf(s[k], 0.5f, 1.0f);
        __asm__ volatile("" : : "r"(s) : "memory");
    }
    return rounds * 8 * 2;
}

void m5_kernels_ref(m5_kernels *k)
{
    k->quant_x = quant_x_ref;
    k->f32_f16 = f32_f16_ref;
    k->f32_bf16 = f32_bf16_ref;
    k->silu_mul = silu_mul_ref;
    k->gelu_mul = gelu_mul_ref;
    k->read_sum = read_sum_ref;
    k->peak_int = peak_int_ref;
    k->peak_fma = peak_fma_ref;
    for (int i = 0; i < M5_TILE_COUNT; i++) k->tile[i] = tile_ref;
}
