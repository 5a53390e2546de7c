/* SPDX-License-Identifier: Apache-2.0 */
/* e^x in single precision: the scalar form, and the constants that the vector forms share so that all give the same bits.
 *
 * x = n ln2 + r with |r| <= ln2 / 2, e^x = 2^n e^r. n comes from adding 1.5 * 2^23, which rounds to an integer in the low mantissa bits without a
 * float-to-int conversion (undefined for NaN in C). e^r is the Taylor polynomial of degree 7 (its error at ln2 / 2 is below 2^-27; in all 1.04 ulp);
 * 2^n is applied in two halves so that results down to the denormals and up to infinity come out of plain multiplications. */
#ifndef M5_KERNELS_EXP_H
#define M5_KERNELS_EXP_H

#include <math.h>
#include <stdint.h>

#define M5_EXP_MAX 89.0f
#define M5_EXP_MIN (-104.0f)
#define M5_EXP_LOG2E 0x1.715476p+0f
#define M5_EXP_ROUND 0x1.8p23f
#define M5_EXP_ROUND_BITS 0x4b400000u
#define M5_EXP_LN2_HI 0x1.62e4p-1f /* few bits: n * LN2_HI is exact */
#define M5_EXP_LN2_LO 0x1.7f7d1cp-20f
#define M5_EXP_C2 0x1.000000p-1f
#define M5_EXP_C3 0x1.555556p-3f
#define M5_EXP_C4 0x1.555556p-5f
#define M5_EXP_C5 0x1.111112p-7f
#define M5_EXP_C6 0x1.6c16c2p-10f
#define M5_EXP_C7 0x1.a01a02p-13f

/* gelu (tanh form) is g * sigmoid(2 sqrt(2/pi) (g + 0.044715 g^3)). */
#define M5_GELU_A 0x1.988454p+0f
#define M5_GELU_B 0.044715f

static inline float m5_exp(float x)
{
    union { float f; uint32_t u; } z, s1, s2;
    x = x > M5_EXP_MAX ? M5_EXP_MAX : x;
    x = x < M5_EXP_MIN ? M5_EXP_MIN : x;
    z.f = fmaf(x, M5_EXP_LOG2E, M5_EXP_ROUND);
    float n = z.f - M5_EXP_ROUND;
    float r = fmaf(n, -M5_EXP_LN2_HI, x);
    r = fmaf(n, -M5_EXP_LN2_LO, r);
    float p = fmaf(M5_EXP_C7, r, M5_EXP_C6);
    p = fmaf(p, r, M5_EXP_C5);
    p = fmaf(p, r, M5_EXP_C4);
    p = fmaf(p, r, M5_EXP_C3);
    p = fmaf(p, r, M5_EXP_C2);
    p = fmaf(p * r, r, r);
    p = p + 1.0f;
    int32_t k = (int32_t)(z.u - M5_EXP_ROUND_BITS);
    int32_t k1 = k >> 1, k2 = k - k1;
    s1.u = (uint32_t)(k1 + 127) << 23;
    s2.u = (uint32_t)(k2 + 127) << 23;
    return p * s1.f * s2.f;
}

static inline float m5_gelu_arg(float g)
{
    float g2 = g * g;
    return M5_GELU_A * fmaf(M5_GELU_B * g2, g, g);
}

#endif
