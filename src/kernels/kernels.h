/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel table: every inner loop of the CPU backend, filled with the scalar reference and overwritten by what the processor has.
 * Room: kernels/dispatch.c (flags, filling), ref.c (meaning of every slot), avx2.c, avx512.c, amx.c, neon.c, neon_i8mm.c (faster versions). May
 * touch: nothing.
 *
 * Every slot has one fixed order of float operations (fused multiply-adds where it says fma), and every version follows it, so all
 * versions give the same bits. The table belongs to a backend; tests build several. */
#ifndef M5_KERNELS_KERNELS_H
#define M5_KERNELS_KERNELS_H

#include "kernels/tile.h"

/* Instruction sets, lowest to highest; bits of m5_cpu_options.cpu_mask. */
enum {
    M5_ISA_AVX2 = 1u << 0,       /* AVX2 + FMA + F16C */
    M5_ISA_AVX512 = 1u << 1,     /* AVX-512 F, BW, VL, DQ and VNNI */
    M5_ISA_AMX = 1u << 2,        /* 8-bit tiles: products of sixteen tokens; the rest is AVX-512 */
    M5_ISA_NEON = 1u << 8,       /* Advanced SIMD with dot product */
    M5_ISA_I8MM = 1u << 9,       /* 8-bit matrix products: of several tokens; the rest is NEON */
    M5_ISA_ALL = 0xffffffffu
};

/* Slots: name, return, arguments.
 *   quant_x(x, t, src, n)   token t of x from n blocks of 32 floats, see tile.h; blocks with max |x| < M5_QUANT_MIN become zero
 *   f32_f16 / f32_bf16      narrowing, nearest even
 *   silu_mul(y, g, u, n)    g / (1 + e^-g) * u, e^x as in exp.h
 *   gelu_mul(y, g, u, n)    0.5 g (1 + tanh(sqrt(2/pi) (g + 0.044715 g^3))) * u, as g / (1 + e^-2z) * u
 *   read_sum(p, n)          exclusive or of n bytes taken as little-endian 64-bit words (the rest of n / 8 not): reads memory at full speed
 *   peak_int(rounds), peak_fma(rounds)   runs independent multiply-adds in registers and returns how many operations (2 each) that was */
#define M5_KERNELS(X) \
    X(quant_x, void, (const m5_tile_x *x, int t, const float *src, int64_t n_blk)) \
    X(f32_f16, void, (uint16_t *y, const float *x, int64_t n)) \
    X(f32_bf16, void, (uint16_t *y, const float *x, int64_t n)) \
    X(silu_mul, void, (float *y, const float *g, const float *u, int64_t n)) \
    X(gelu_mul, void, (float *y, const float *g, const float *u, int64_t n)) \
    X(read_sum, uint64_t, (const uint8_t *p, size_t n)) \
    X(peak_int, int64_t, (int64_t rounds)) \
    X(peak_fma, int64_t, (int64_t rounds))

/* Below this 127 / max overflows. */
#define M5_QUANT_MIN 1e-30f

typedef struct m5_kernels {
#define M5_SLOT(name, ret, args) ret(*name) args;
    M5_KERNELS(M5_SLOT)
#undef M5_SLOT
    m5_tile_fn tile[M5_TILE_COUNT]; /* products, by tile kind: tile.h */
    /* The same for two tiles that follow each other in memory, the second's sums M5_TILE_TOK * M5_TILE_ROWS floats after the first's. For whole
     * sets of tokens: with fewer, weights come from memory and want the single tile's prefetch. NULL: one by one is as fast. */
    m5_tile_fn pair[M5_TILE_COUNT];
    uint32_t isa; /* levels that contributed */
} m5_kernels;

/* What this processor and operating system offer. */
uint32_t m5_isa_detect(void);
/* "ref", "avx2", "avx512-vnni", "amx-int8", "neon-dotprod", "neon-i8mm": the highest level in isa. */
const char *m5_isa_name(uint32_t isa);
/* Fills k with the best versions for isa & mask. */
void m5_kernels_init(m5_kernels *k, uint32_t mask);

/* One per source file: overwrites what it has. */
void m5_kernels_ref(m5_kernels *k);
void m5_kernels_avx2(m5_kernels *k);
void m5_kernels_avx2_tile(m5_kernels *k);
void m5_kernels_avx512(m5_kernels *k, bool far); /* far: prefetch of weights for Intel's processors, see there */
void m5_kernels_amx(m5_kernels *k);
void m5_kernels_neon(m5_kernels *k);
void m5_kernels_i8mm(m5_kernels *k);

#endif
