/* SPDX-License-Identifier: Apache-2.0 */
/* Scalar reference of the vector slots: the meaning of each slot, in the exact order of operations that faster versions keep. Written to be
 * read, not to be fast. The tile slots' reference is in ref_tile.c. May touch: nothing. */
#include "kernels/kernels.h"
#include "kernels/exp.h"

#include <math.h>

enum { LANES = 32 };

/* Sum of 32 partial sums: halves are added until one is left. */
static float fold(float *s)
{
    for (int w = LANES / 2; w >= 1; w /= 2) {
        for (int i = 0; i < w; i++) s[i] = s[i] + s[i + w];
    }
    return s[0];
}

static float dot_f32_ref(const float *a, const float *b, int64_t n)
{
    float s[LANES] = {0};
    for (int64_t i = 0; i < n; i++) s[i % LANES] = fmaf(a[i], b[i], s[i % LANES]);
    return fold(s);
}

static float dot_f16_ref(const float *a, const uint16_t *b, int64_t n)
{
    float s[LANES] = {0};
    for (int64_t i = 0; i < n; i++) s[i % LANES] = fmaf(a[i], m5_f16_to_f32(b[i]), s[i % LANES]);
    return fold(s);
}

static float dot_bf16_ref(const float *a, const uint16_t *b, int64_t n)
{
    float s[LANES] = {0};
    for (int64_t i = 0; i < n; i++) s[i % LANES] = fmaf(a[i], m5_bf16_to_f32(b[i]), s[i % LANES]);
    return fold(s);
}

static void axpy_f32_ref(float *y, float a, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = fmaf(a, x[i], y[i]);
}

static void axpy_f16_ref(float *y, float a, const uint16_t *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = fmaf(a, m5_f16_to_f32(x[i]), y[i]);
}

static void axpy_bf16_ref(float *y, float a, const uint16_t *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = fmaf(a, m5_bf16_to_f32(x[i]), y[i]);
}

static void scale_f32_ref(float *y, float a, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = a * x[i];
}

static void mul_f32_ref(float *y, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = a[i] * b[i];
}

static void f16_f32_ref(float *y, const uint16_t *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = m5_f16_to_f32(x[i]);
}

static void bf16_f32_ref(float *y, const uint16_t *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = m5_bf16_to_f32(x[i]);
}

static void f32_f16_ref(uint16_t *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = m5_f32_to_f16(x[i]);
}

static void f32_bf16_ref(uint16_t *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = m5_f32_to_bf16(x[i]);
}

static void exp_f32_ref(float *y, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = m5_exp(x[i]);
}

static void silu_mul_ref(float *y, const float *g, const float *u, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = g[i] / (1.0f + m5_exp(-g[i])) * u[i];
}

static void gelu_mul_ref(float *y, const float *g, const float *u, int64_t n)
{
    for (int64_t i = 0; i < n; i++) y[i] = g[i] / (1.0f + m5_exp(-m5_gelu_arg(g[i]))) * u[i];
}

void m5_kernels_ref(m5_kernels *k)
{
    k->dot_f32 = dot_f32_ref;
    k->dot_f16 = dot_f16_ref;
    k->dot_bf16 = dot_bf16_ref;
    k->axpy_f32 = axpy_f32_ref;
    k->axpy_f16 = axpy_f16_ref;
    k->axpy_bf16 = axpy_bf16_ref;
    k->scale_f32 = scale_f32_ref;
    k->mul_f32 = mul_f32_ref;
    k->f16_f32 = f16_f32_ref;
    k->bf16_f32 = bf16_f32_ref;
    k->f32_f16 = f32_f16_ref;
    k->f32_bf16 = f32_bf16_ref;
    k->exp_f32 = exp_f32_ref;
    k->silu_mul = silu_mul_ref;
    k->gelu_mul = gelu_mul_ref;
}
