/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table: every inner loop of the CPU backend, filled with the scalar reference and overwritten by what the processor has.
 * Room: kernels/dispatch.c (flags, filling), ref.c (meaning of every slot), avx2.c, avx512.c, neon.c (faster versions). May touch: nothing.
 *
 * Every slot has one fixed order of float operations (fused multiply-adds where it says fma), and every version follows it, so all
 * versions give the same bits. The table belongs to a backend; tests build several. */
#ifndef M5_KERNELS_KERNELS_H
#define M5_KERNELS_KERNELS_H

#include "kernels/quant.h"

/* Instruction sets, lowest to highest; bits of m5_cpu_options.cpu_mask. */
enum {
    M5_ISA_AVX2 = 1u << 0,       /* AVX2 + FMA + F16C */
    M5_ISA_AVX512 = 1u << 1,     /* AVX-512 F, BW, VL, DQ and VNNI */
    M5_ISA_NEON = 1u << 8,       /* Advanced SIMD with dot product */
    M5_ISA_ALL = 0xffffffffu
};

/* Vector slots. Reductions use 32 partial sums, lane i taking the elements i mod 32 in order with fma, folded 16, 8, 4, 2, 1.
 *   dot_f32(a, b, n)        sum a*b
 *   dot_f16 / dot_bf16      the same with b in 16 bits
 *   axpy_f32(y, a, x, n)    y = fma(a, x, y), elementwise; axpy_f16 / axpy_bf16 with x in 16 bits
 *   scale_f32(y, a, x, n)   y = a * x
 *   mul_f32(y, a, b, n)     y = a * b
 *   f16_f32 / bf16_f32      exact widening; f32_f16 / f32_bf16 narrowing, nearest even
 *   exp_f32(y, x, n)        e^x within 2 ulp for x in [-87, 88]; below it goes to 0, above to infinity, NaN stays NaN
 *   silu_mul(y, g, u, n)    g / (1 + e^-g) * u
 *   gelu_mul(y, g, u, n)    0.5 g (1 + tanh(sqrt(2/pi) (g + 0.044715 g^3))) * u */
#define M5_KERNELS_VECTOR(X) \
    X(dot_f32, float, (const float *a, const float *b, int64_t n)) \
    X(dot_f16, float, (const float *a, const uint16_t *b, int64_t n)) \
    X(dot_bf16, float, (const float *a, const uint16_t *b, int64_t n)) \
    X(axpy_f32, void, (float *y, float a, const float *x, int64_t n)) \
    X(axpy_f16, void, (float *y, float a, const uint16_t *x, int64_t n)) \
    X(axpy_bf16, void, (float *y, float a, const uint16_t *x, int64_t n)) \
    X(scale_f32, void, (float *y, float a, const float *x, int64_t n)) \
    X(mul_f32, void, (float *y, const float *a, const float *b, int64_t n)) \
    X(f16_f32, void, (float *y, const uint16_t *x, int64_t n)) \
    X(bf16_f32, void, (float *y, const uint16_t *x, int64_t n)) \
    X(f32_f16, void, (uint16_t *y, const float *x, int64_t n)) \
    X(f32_bf16, void, (uint16_t *y, const float *x, int64_t n)) \
    X(exp_f32, void, (float *y, const float *x, int64_t n)) \
    X(silu_mul, void, (float *y, const float *g, const float *u, int64_t n)) \
    X(gelu_mul, void, (float *y, const float *g, const float *u, int64_t n))

#define M5_KERNELS(X) M5_KERNELS_VECTOR(X)

typedef struct m5_kernels {
#define M5_SLOT(name, ret, args) ret(*name) args;
    M5_KERNELS(M5_SLOT)
#undef M5_SLOT
    uint32_t isa; /* levels that contributed */
} m5_kernels;

/* What this processor and operating system offer. */
uint32_t m5_isa_detect(void);
/* "ref", "avx2", "avx512-vnni", "neon-dotprod": the highest level in isa. */
const char *m5_isa_name(uint32_t isa);
/* Fills k with the best versions for isa & mask. */
void m5_kernels_init(m5_kernels *k, uint32_t mask);

/* One per source file: overwrites what it has. */
void m5_kernels_ref(m5_kernels *k);
void m5_kernels_avx2(m5_kernels *k);
void m5_kernels_avx512(m5_kernels *k);
void m5_kernels_neon(m5_kernels *k);

#endif
