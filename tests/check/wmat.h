/* SPDX-License-Identifier: Apache-2.0 */
/* Random weight matrices of every type, and a small random generator, for the checks of kernels and products. */
#ifndef M5_TESTS_CHECK_WMAT_H
#define M5_TESTS_CHECK_WMAT_H

#include "kernels/quant.h"

#include <stdlib.h>
#include <string.h>

typedef struct wmat {
    m5_matrix m;
    uint8_t *data, *scales, *biases;
} wmat;

static inline uint64_t w_next(uint64_t *s)
{
    uint64_t z = *s += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* In (-1, 1), coarse near-normal. */
static inline float w_unit(uint64_t *s)
{
    float v = 0;
    for (int i = 0; i < 3; i++) v += (float)(int32_t)w_next(s) * (1.0f / 3 / 2147483648.0f);
    return v;
}

static inline void w_put_half(uint8_t *p, float f)
{
    const uint16_t h = m5_f32_to_f16(f);
    memcpy(p, &h, 2);
}

/* Random bytes everywhere, then scales of a sane size; extreme: every code byte 0xff, scale bytes too. */
static inline void w_fill_block(m5_dtype t, uint8_t *p, uint64_t *s, bool extreme)
{
    const m5_dtype_info *info = m5_dtype_get(t);
    for (int i = 0; i < info->block_bytes; i++) p[i] = extreme ? 0xff : (uint8_t)w_next(s);
    const float d = extreme ? -0.0123f : 0.02f * w_unit(s), m = 0.05f * w_unit(s);
    switch (t) {
    case M5_F32: {
        const float f = w_unit(s);
        memcpy(p, &f, 4);
        break;
    }
    case M5_F16: w_put_half(p, w_unit(s)); break;
    case M5_BF16: {
        const uint16_t h = m5_f32_to_bf16(w_unit(s));
        memcpy(p, &h, 2);
        break;
    }
    case M5_Q4_1:
    case M5_Q5_1:
    case M5_Q4_K:
    case M5_Q5_K:
        w_put_half(p, d);
        w_put_half(p + 2, m);
        break;
    case M5_Q4_0:
    case M5_Q5_0:
    case M5_Q8_0:
    case M5_IQ4_NL:
    case M5_IQ4_XS: w_put_half(p, d); break;
    case M5_MXFP4: p[0] = (uint8_t)(118 + w_next(s) % 6); break;
    case M5_Q2_K:
        w_put_half(p + 80, d);
        w_put_half(p + 82, m);
        break;
    case M5_Q3_K: w_put_half(p + 108, d); break;
    case M5_Q6_K: w_put_half(p + 208, d); break;
    default: break;
    }
}

static inline bool w_is_mlx(m5_dtype t)
{
    return t >= M5_MLX2 && t <= M5_MLX8;
}

/* group and scale_type for MLX types only. n_in is a multiple of the block (MLX: of the group). */
static inline void w_make(wmat *w, m5_dtype t, int64_t n_out, int64_t n_in, int group, m5_dtype scale_type, uint64_t seed, bool extreme)
{
    const m5_dtype_info *info = m5_dtype_get(t);
    uint64_t s = seed * 1000003 + (uint64_t)t;
    memset(w, 0, sizeof *w);
    const int64_t row_bytes = n_in / info->block * info->block_bytes;
    w->data = malloc((size_t)(row_bytes * n_out) + 1);
    w->m = (m5_matrix){.type = t, .n_out = n_out, .n_in = n_in, .data = w->data, .row_bytes = row_bytes};
    for (int64_t i = 0; i < n_out * (n_in / info->block); i++) w_fill_block(t, w->data + i * info->block_bytes, &s, extreme);
    if (!w_is_mlx(t)) return;
    const int64_t n_scale = n_out * (n_in / group), size = m5_dtype_get(scale_type)->block_bytes;
    w->scales = malloc((size_t)(n_scale * size) + 1);
    w->biases = malloc((size_t)(n_scale * size) + 1);
    for (int64_t i = 0; i < n_scale; i++) {
        const float v[2] = {0.01f * w_unit(&s), 0.1f * w_unit(&s)};
        for (int k = 0; k < 2; k++) {
            uint8_t *p = (k ? w->biases : w->scales) + i * size;
            const uint16_t h = scale_type == M5_F16 ? m5_f32_to_f16(v[k]) : m5_f32_to_bf16(v[k]);
            memcpy(p, scale_type == M5_F32 ? (const void *)&v[k] : (const void *)&h, (size_t)size);
        }
    }
    w->m.scales = w->scales;
    w->m.biases = w->biases;
    w->m.group = group;
    w->m.scale_type = scale_type;
}

static inline void w_free(wmat *w)
{
    free(w->data);
    free(w->scales);
    free(w->biases);
}

#endif
