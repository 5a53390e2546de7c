/* SPDX-License-Identifier: Apache-2.0 */
/* Loops over a row of logits that sampler and calibration share. Written out so that every compiler vectorises them, always in the same order of additions. */
#ifndef M5_ENGINE_ROW_H
#define M5_ENGINE_ROW_H

#include <math.h>
#include <stdint.h>

/* exp(x) for x <= 0, relative error below 3e-7, 0 below -87 (where a float would turn denormal). Written out so that it vectorises and does not
 * depend on the C library: 2^n * p(r) with r = x - n ln 2 in [-0.35, 0.35] and the Taylor polynomial of degree 7. */
static inline float m5_row_exp_neg(float x)
{
    float n = (x * 1.44269504f + 12582912.0f) - 12582912.0f; /* round to nearest through the mantissa */
    float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    union {
        int32_t i;
        float f;
    } scale = {((int32_t)(n < -126.0f ? -126.0f : n) + 127) << 23};
    return x < -87.0f ? 0.0f : p * scale.f;
}

/* Eight running maxima keep the loop vectorisable without licensing the compiler to reorder; NaN never wins a comparison. */
static inline float m5_row_max(const float *x, int n)
{
    float m[8];
    for (int j = 0; j < 8; j++) m[j] = -INFINITY;
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) m[j] = x[i + j] > m[j] ? x[i + j] : m[j];
    for (; i < n; i++) m[0] = x[i] > m[0] ? x[i] : m[0];
    for (int j = 1; j < 8; j++) m[0] = m[j] > m[0] ? m[j] : m[0];
    return m[0];
}

static inline int32_t m5_row_first_at(const float *x, int n, float value)
{
    for (int i = 0; i < n; i++)
        if (x[i] == value) return i;
    return 0;
}

/* Natural log of sum exp(x - max) in eight lanes of double, merged in order. */
static inline double m5_row_log_sum(const float *x, int n, float max)
{
    double sum[8] = {0};
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int j = 0; j < 8; j++) {
            float d = x[i + j] - max;
            sum[j] += (double)m5_row_exp_neg(d <= 0 ? d : -INFINITY);
        }
    for (; i < n; i++) {
        float d = x[i] - max;
        sum[0] += (double)m5_row_exp_neg(d <= 0 ? d : -INFINITY);
    }
    double t = 0;
    for (int j = 0; j < 8; j++) t += sum[j];
    return log(t);
}

#endif
