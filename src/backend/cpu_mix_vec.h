/* SPDX-License-Identifier: Apache-2.0 */
/* Sixteen lanes of floats (vf) or of integers (vi: 16 x 32 bits, or as factors 16 pairs of 16 bits) for the mixer kernels, the same on every
 * instruction set: one 512-bit register, two of 256, four of 128, or an array.
 * Room: backend/cpu_mix*.c. Included only by cpu_mix_kern.c, which is compiled once per instruction set.
 *
 * Every operation is exactly rounded and every multiply-add is fused, so all levels give the same bits. vf_sum adds lanes at distance
 * 8, 4, 2, 1. Elementary functions are polynomials made of these operations; nothing here calls the C library's. */
#ifndef M5_BACKEND_CPU_MIX_VEC_H
#define M5_BACKEND_CPU_MIX_VEC_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "kernels/quant.h"

enum { VF = 16 };
/* VF_WIDE: a vector is one register. VF_HALVES: it is two, and kernels that need more sums than registers take the halves one after the other. */
#define VF_INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define VF_UNROLL _Pragma("unroll")
#define VF_UNROLL_4 _Pragma("unroll 4")
#elif defined(__AVX2__) || defined(__ARM_NEON)
#define VF_UNROLL _Pragma("GCC unroll 16")
#define VF_UNROLL_4 _Pragma("GCC unroll 4") /* without it gcc copies every accumulator once a round */
#else
#define VF_UNROLL _Pragma("GCC unroll 16")
#define VF_UNROLL_4
#endif

/* The sixteen pairs of vi_dot_block as assembly; each instruction set has its own VI_SET and VI_ADD (one row), VI_ROWS, VI_LOAD and VI_FETCH. */
#define VI_FETCH_0(i) ""
#define VI_PAIR(rows, bytes, fetch, set, i) VI_LOAD_##bytes(i) VI_FETCH_##fetch(i) VI_ROWS_##rows(set, i)
#define VI_PAIRS(rows, bytes, fetch, i, j, k) \
    VI_PAIR(rows, bytes, fetch, VI_ADD, i) VI_PAIR(rows, bytes, fetch, VI_ADD, j) VI_PAIR(rows, bytes, fetch, VI_ADD, k)
#define VI_BLOCK(rows, bytes, fetch) \
    VI_PAIR(rows, bytes, fetch, VI_SET, 0) VI_PAIRS(rows, bytes, fetch, 1, 2, 3) VI_PAIRS(rows, bytes, fetch, 4, 5, 6) \
        VI_PAIRS(rows, bytes, fetch, 7, 8, 9) VI_PAIRS(rows, bytes, fetch, 10, 11, 12) VI_PAIRS(rows, bytes, fetch, 13, 14, 15)

#if defined(__AVX512F__) && defined(__AVX512DQ__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)
#include <immintrin.h>
#define VF_WIDE 1
#define VF_HALVES 0
typedef __m512 vf;
VF_INLINE vf vf_set(float x) { return _mm512_set1_ps(x); }
VF_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
VF_INLINE void vf_store(float *p, vf a) { _mm512_storeu_ps(p, a); }
VF_INLINE vf vf_add(vf a, vf b) { return _mm512_add_ps(a, b); }
VF_INLINE vf vf_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
VF_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
VF_INLINE vf vf_div(vf a, vf b) { return _mm512_div_ps(a, b); }
VF_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
VF_INLINE vf vf_max(vf a, vf b) { return _mm512_max_ps(a, b); } /* a > b ? a : b */
VF_INLINE vf vf_min(vf a, vf b) { return _mm512_min_ps(a, b); } /* a < b ? a : b */
VF_INLINE vf vf_sel_lt(vf x, vf c, vf a, vf b) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(x, c, _CMP_LT_OQ), b, a); }
VF_INLINE vf vf_abs(vf a) { return _mm512_abs_ps(a); }
VF_INLINE vf vf_sign_of(vf a, vf s) { return _mm512_or_ps(a, _mm512_and_ps(s, _mm512_set1_ps(-0.0f))); } /* a >= 0 */
/* p with its exponent raised by the integer in the low mantissa bits of t. */
VF_INLINE vf vf_add_exponent(vf p, vf t)
{
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(t), 23)));
}
VF_INLINE __m128 vf_quarter(vf a) /* lanes l + (l + 8), then + 4 */
{
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}
VF_INLINE vf vf_load_f16(const void *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
VF_INLINE vf vf_load_bf16(const void *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
typedef __m512i vi;
VF_INLINE vi vi_load(const int16_t *p) { return _mm512_loadu_si512(p); }
VF_INLINE void vi_store(int16_t *p, vi a) { _mm512_storeu_si512(p, a); }
VF_INLINE vi vi_load_i8(const void *p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)p)); }
/* acc[2 r + c] = sum of 16 products of pairs of x[r] (ldx numbers apart) with the vectors of y + c * ldy, for 8, 4, 2 or 1 rows. All of it is
 * written out: in loops over arrays of sums gcc copies all of them in every round and keeps some in memory. y: numbers of `bytes` bytes. fetch: as
 * many from `next` on are asked for on the way. The first product needs no sum to start from: vpmaddwd. */
#define VI_ADD(at, sum) "vpbroadcastd " at ", %[f]\n\tvpdpwssd %[y0], %[f], %[" sum "0]\n\tvpdpwssd %[y1], %[f], %[" sum "1]\n\t"
#define VI_SET(at, sum) "vpbroadcastd " at ", %[f]\n\tvpmaddwd %[y0], %[f], %[" sum "0]\n\tvpmaddwd %[y1], %[f], %[" sum "1]\n\t"
#define VI_ROWS_1(set, i) set("4*" #i "(%[x])", "a")
#define VI_ROWS_2(set, i) VI_ROWS_1(set, i) set("4*" #i "(%[x],%[ld])", "b")
#define VI_ROWS_4(set, i) VI_ROWS_2(set, i) set("4*" #i "(%[x],%[ld],2)", "c") set("4*" #i "(%[x],%[ld3])", "d")
#define VI_ROWS_8(set, i) \
    VI_ROWS_4(set, i) set("4*" #i "(%[z])", "e") set("4*" #i "(%[z],%[ld])", "g") set("4*" #i "(%[z],%[ld],2)", "h") set("4*" #i "(%[z],%[ld3])", "i")
#define VI_LOAD_1(i) "vpmovsxbw 32*" #i "(%[y]), %[y0]\n\tvpmovsxbw 32*" #i "(%[y],%[ldy]), %[y1]\n\t"
#define VI_LOAD_2(i) "vmovdqu64 64*" #i "(%[y]), %[y0]\n\tvmovdqu64 64*" #i "(%[y],%[ldy]), %[y1]\n\t"
#define VI_FETCH_1(i) "prefetcht0 64*" #i "(%[n])\n\t"
#define VI_FETCH_2(i) "prefetcht0 128*" #i "(%[n])\n\tprefetcht0 128*" #i "+64(%[n])\n\t"
#define VI_DOT_BLOCK(rows, bytes, fetch) \
    __asm__(VI_BLOCK(rows, bytes, fetch) \
            : [a0] "=&v"(s[0]), [a1] "=&v"(s[1]), [b0] "=&v"(s[2]), [b1] "=&v"(s[3]), [c0] "=&v"(s[4]), [c1] "=&v"(s[5]), [d0] "=&v"(s[6]), \
              [d1] "=&v"(s[7]), [e0] "=&v"(s[8]), [e1] "=&v"(s[9]), [g0] "=&v"(s[10]), [g1] "=&v"(s[11]), [h0] "=&v"(s[12]), [h1] "=&v"(s[13]), \
              [i0] "=&v"(s[14]), [i1] "=&v"(s[15]), [y0] "=&v"(y0), [y1] "=&v"(y1), [f] "=&v"(f) \
            : [x] "r"(x), [z] "r"(x + 4 * ldx), [ld] "r"(ldx * 2), [ld3] "r"(ldx * 6), [y] "r"(y), [ldy] "r"(ldy), [n] "r"(next) \
            : "memory")
#define VI_DOT_BLOCKS(bytes, fetch) \
    do { \
        if (rows == 8) \
            VI_DOT_BLOCK(8, bytes, fetch); \
        else if (rows == 4) \
            VI_DOT_BLOCK(4, bytes, fetch); \
        else if (rows == 2) \
            VI_DOT_BLOCK(2, bytes, fetch); \
        else \
            VI_DOT_BLOCK(1, bytes, fetch); \
    } while (0)
VF_INLINE void vi_dot_block(int bytes, int rows, bool fetch, vi *acc, const int16_t *x, int64_t ldx, const uint8_t *y, int64_t ldy,
                            const uint8_t *next)
{
    vi s[16], y0, y1, f;
    if (bytes == 2 && fetch)
        VI_DOT_BLOCKS(2, 2);
    else if (bytes == 2)
        VI_DOT_BLOCKS(2, 0);
    else if (fetch)
        VI_DOT_BLOCKS(1, 1);
    else
        VI_DOT_BLOCKS(1, 0);
    VF_UNROLL for (int i = 0; i < 2 * rows; i++) acc[i] = s[i];
}
VF_INLINE vi vi_mul_shift(vi a, vi b) { return _mm512_mulhrs_epi16(a, b); }
VF_INLINE vf vi_float(vi a) { return _mm512_cvtepi32_ps(a); }
VF_INLINE void vf_round_i16(int16_t *p, vf a) { _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_cvtps_epi32(a))); }

#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include <immintrin.h>
#define VF_WIDE 0
#define VF_HALVES 1
typedef struct vf {
    __m256 a, b;
} vf;
VF_INLINE vf vf_set(float x) { return (vf){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
VF_INLINE vf vf_load(const float *p) { return (vf){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
VF_INLINE void vf_store(float *p, vf x)
{
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
VF_INLINE vf vf_add(vf x, vf y) { return (vf){_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
VF_INLINE vf vf_sub(vf x, vf y) { return (vf){_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
VF_INLINE vf vf_mul(vf x, vf y) { return (vf){_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
VF_INLINE vf vf_div(vf x, vf y) { return (vf){_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
VF_INLINE vf vf_fma(vf x, vf y, vf z) { return (vf){_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
VF_INLINE vf vf_max(vf x, vf y) { return (vf){_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
VF_INLINE vf vf_min(vf x, vf y) { return (vf){_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
VF_INLINE vf vf_sel_lt(vf x, vf c, vf a, vf b)
{
    return (vf){_mm256_blendv_ps(b.a, a.a, _mm256_cmp_ps(x.a, c.a, _CMP_LT_OQ)), _mm256_blendv_ps(b.b, a.b, _mm256_cmp_ps(x.b, c.b, _CMP_LT_OQ))};
}
VF_INLINE vf vf_abs(vf x)
{
    const __m256 s = _mm256_set1_ps(-0.0f);
    return (vf){_mm256_andnot_ps(s, x.a), _mm256_andnot_ps(s, x.b)};
}
VF_INLINE vf vf_sign_of(vf x, vf y)
{
    const __m256 s = _mm256_set1_ps(-0.0f);
    return (vf){_mm256_or_ps(x.a, _mm256_and_ps(y.a, s)), _mm256_or_ps(x.b, _mm256_and_ps(y.b, s))};
}
VF_INLINE __m256 vf_add_exponent_half(__m256 p, __m256 t)
{
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(t), 23)));
}
VF_INLINE vf vf_add_exponent(vf p, vf t) { return (vf){vf_add_exponent_half(p.a, t.a), vf_add_exponent_half(p.b, t.b)}; }
VF_INLINE __m128 vf_quarter(vf x)
{
    __m256 h = _mm256_add_ps(x.a, x.b);
    return _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
}
VF_INLINE vf vf_load_f16(const void *p)
{
    const __m128i *q = (const __m128i *)p;
    return (vf){_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
VF_INLINE vf vf_load_bf16(const void *p)
{
    const __m128i *q = (const __m128i *)p;
    return (vf){_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), 16)),
                _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1)), 16))};
}
typedef struct vi {
    __m256i a, b;
} vi;
/* Kept in a register: gcc would read the factor that several products share again from memory for each of them, and loads are what binds. */
#define VF_KEEP(x) __asm__("" : "+x"(x))
VF_INLINE vi vi_load(const int16_t *p)
{
    vi r = {_mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 16))};
    VF_KEEP(r.a);
    VF_KEEP(r.b);
    return r;
}
VF_INLINE void vi_store(int16_t *p, vi x)
{
    _mm256_storeu_si256((__m256i *)p, x.a);
    _mm256_storeu_si256((__m256i *)(p + 16), x.b);
}
VF_INLINE vi vi_load_i8(const void *p)
{
    const __m128i *q = (const __m128i *)p;
    return (vi){_mm256_cvtepi8_epi16(_mm_loadu_si128(q)), _mm256_cvtepi8_epi16(_mm_loadu_si128(q + 1))};
}
/* acc[r] = sum of 16 vi_dot: pairs of x[r] (ldx numbers apart) with the vectors of y, for one to four rows. All of it is written out: in loops over arrays
 * of sums gcc moves them about, some of them through memory. y: numbers of `bytes` bytes. fetch: as many from `next` on are asked for on the way. */
#define VI_ADD(at, sum) \
    "vpbroadcastd " at ", %[f]\n\tvpmaddwd %[y0], %[f], %[p]\n\tvpmaddwd %[y1], %[f], %[f]\n\t" \
    "vpaddd %[p], %[" sum "0], %[" sum "0]\n\tvpaddd %[f], %[" sum "1], %[" sum "1]\n\t"
#define VI_SET(at, sum) "vpbroadcastd " at ", %[f]\n\tvpmaddwd %[y0], %[f], %[" sum "0]\n\tvpmaddwd %[y1], %[f], %[" sum "1]\n\t"
#define VI_ROWS_1(set, i) set("4*" #i "(%[x])", "a")
#define VI_ROWS_2(set, i) VI_ROWS_1(set, i) set("4*" #i "(%[x],%[ld])", "b")
#define VI_ROWS_3(set, i) VI_ROWS_2(set, i) set("4*" #i "(%[x],%[ld],2)", "c")
#define VI_ROWS_4(set, i) VI_ROWS_3(set, i) set("4*" #i "(%[x],%[ld3])", "d")
#define VI_LOAD_1(i) "vpmovsxbw 32*" #i "(%[y]), %[y0]\n\tvpmovsxbw 32*" #i "+16(%[y]), %[y1]\n\t"
#define VI_LOAD_2(i) "vmovdqu 64*" #i "(%[y]), %[y0]\n\tvmovdqu 64*" #i "+32(%[y]), %[y1]\n\t"
#define VI_FETCH_1(i) "prefetcht0 32*" #i "(%[n])\n\t"
#define VI_FETCH_2(i) "prefetcht0 64*" #i "(%[n])\n\t"
#define VI_DOT_BLOCK(rows, bytes, fetch) \
    __asm__(VI_BLOCK(rows, bytes, fetch) \
            : [a0] "=&x"(s[0].a), [a1] "=&x"(s[0].b), [b0] "=&x"(s[1].a), [b1] "=&x"(s[1].b), [c0] "=&x"(s[2].a), [c1] "=&x"(s[2].b), \
              [d0] "=&x"(s[3].a), [d1] "=&x"(s[3].b), [y0] "=&x"(y0), [y1] "=&x"(y1), [f] "=&x"(f), [p] "=&x"(p) \
            : [x] "r"(x), [ld] "r"(ldx * 2), [ld3] "r"(ldx * 6), [y] "r"(y), [n] "r"(next) \
            : "memory")
#define VI_DOT_BLOCKS(bytes, fetch) \
    do { \
        if (rows == 4) \
            VI_DOT_BLOCK(4, bytes, fetch); \
        else if (rows == 3) \
            VI_DOT_BLOCK(3, bytes, fetch); \
        else if (rows == 2) \
            VI_DOT_BLOCK(2, bytes, fetch); \
        else \
            VI_DOT_BLOCK(1, bytes, fetch); \
    } while (0)
VF_INLINE void vi_dot_block(int bytes, int rows, bool fetch, vi *acc, const int16_t *x, int64_t ldx, const uint8_t *y, int64_t ldy,
                            const uint8_t *next)
{
    (void)ldy;
    vi s[4];
    __m256i y0, y1, f, p;
    if (bytes == 2 && fetch)
        VI_DOT_BLOCKS(2, 2);
    else if (bytes == 2)
        VI_DOT_BLOCKS(2, 0);
    else if (fetch)
        VI_DOT_BLOCKS(1, 1);
    else
        VI_DOT_BLOCKS(1, 0);
    VF_UNROLL for (int r = 0; r < rows; r++) acc[r] = s[r];
}
VF_INLINE vi vi_mul_shift(vi x, vi y) { return (vi){_mm256_mulhrs_epi16(x.a, y.a), _mm256_mulhrs_epi16(x.b, y.b)}; }
VF_INLINE vf vi_float(vi x) { return (vf){_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
VF_INLINE void vf_round_i16(int16_t *p, vf x)
{
    const __m256i t = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
    _mm256_storeu_si256((__m256i *)p, _mm256_permute4x64_epi64(t, 0xd8));
}

#elif defined(__ARM_NEON) && defined(__aarch64__)
#include <arm_neon.h>
#define VF_WIDE 0
#define VF_HALVES 0
typedef struct vf {
    float32x4_t q[4];
} vf;
#define VF_EACH(expr) \
    vf r; \
    VF_UNROLL for (int i = 0; i < 4; i++) r.q[i] = (expr); \
    return r
VF_INLINE vf vf_set(float x) { VF_EACH(vdupq_n_f32(x)); }
VF_INLINE vf vf_load(const float *p) { VF_EACH(vld1q_f32(p + 4 * i)); }
VF_INLINE void vf_store(float *p, vf x) { VF_UNROLL for (int i = 0; i < 4; i++) vst1q_f32(p + 4 * i, x.q[i]); }
VF_INLINE vf vf_add(vf x, vf y) { VF_EACH(vaddq_f32(x.q[i], y.q[i])); }
VF_INLINE vf vf_sub(vf x, vf y) { VF_EACH(vsubq_f32(x.q[i], y.q[i])); }
VF_INLINE vf vf_mul(vf x, vf y) { VF_EACH(vmulq_f32(x.q[i], y.q[i])); }
VF_INLINE vf vf_div(vf x, vf y) { VF_EACH(vdivq_f32(x.q[i], y.q[i])); }
VF_INLINE vf vf_fma(vf x, vf y, vf z) { VF_EACH(vfmaq_f32(z.q[i], x.q[i], y.q[i])); }
VF_INLINE vf vf_max(vf x, vf y) { VF_EACH(vbslq_f32(vcgtq_f32(x.q[i], y.q[i]), x.q[i], y.q[i])); }
VF_INLINE vf vf_min(vf x, vf y) { VF_EACH(vbslq_f32(vcltq_f32(x.q[i], y.q[i]), x.q[i], y.q[i])); }
VF_INLINE vf vf_sel_lt(vf x, vf c, vf a, vf b) { VF_EACH(vbslq_f32(vcltq_f32(x.q[i], c.q[i]), a.q[i], b.q[i])); }
VF_INLINE vf vf_abs(vf x) { VF_EACH(vabsq_f32(x.q[i])); }
VF_INLINE vf vf_sign_of(vf x, vf y) { VF_EACH(vbslq_f32(vdupq_n_u32(0x80000000u), y.q[i], x.q[i])); }
VF_INLINE vf vf_add_exponent(vf p, vf t)
{
    VF_EACH(vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p.q[i]), vshlq_n_s32(vreinterpretq_s32_f32(t.q[i]), 23))));
}
VF_INLINE float32x4_t vf_quarter(vf x) { return vaddq_f32(vaddq_f32(x.q[0], x.q[2]), vaddq_f32(x.q[1], x.q[3])); }
VF_INLINE vf vf_load_f16(const void *p) { VF_EACH(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const uint16_t *)p + 4 * i)))); }
VF_INLINE vf vf_load_bf16(const void *p) { VF_EACH(vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const uint16_t *)p + 4 * i), 16))); }
typedef struct vi {
    int32x4_t q[4];
} vi;
#define VI_EACH(expr) \
    vi r; \
    VF_UNROLL for (int i = 0; i < 4; i++) r.q[i] = (expr); \
    return r
VF_INLINE vi vi_zero(void) { VI_EACH(vdupq_n_s32(0)); }
VF_INLINE vi vi_load(const int16_t *p) { VI_EACH(vreinterpretq_s32_s16(vld1q_s16(p + 8 * i))); }
VF_INLINE void vi_store(int16_t *p, vi x) { VF_UNROLL for (int i = 0; i < 4; i++) vst1q_s16(p + 8 * i, vreinterpretq_s16_s32(x.q[i])); }
VF_INLINE vi vi_load_i8(const void *p) { VI_EACH(vreinterpretq_s32_s16(vmovl_s8(vld1_s8((const int8_t *)p + 8 * i)))); }
VF_INLINE vi vi_pair(const int16_t *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    VI_EACH(vdupq_n_s32(x));
}
VF_INLINE int32x4_t vi_dot_quarter(int32x4_t acc, int32x4_t x, int32x4_t y)
{
    const int16x8_t a = vreinterpretq_s16_s32(x), b = vreinterpretq_s16_s32(y);
    return vaddq_s32(acc, vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b)));
}
VF_INLINE vi vi_dot(vi acc, vi x, vi y) { VI_EACH(vi_dot_quarter(acc.q[i], x.q[i], y.q[i])); }
VF_INLINE vi vi_mul_shift(vi x, vi y)
{
    VI_EACH(vreinterpretq_s32_s16(vqrdmulhq_s16(vreinterpretq_s16_s32(x.q[i]), vreinterpretq_s16_s32(y.q[i]))));
}
VF_INLINE vf vi_float(vi x) { VF_EACH(vcvtq_f32_s32(x.q[i])); }
VF_INLINE void vf_round_i16(int16_t *p, vf x) { VF_UNROLL for (int i = 0; i < 4; i++) vst1_s16(p + 4 * i, vmovn_s32(vcvtnq_s32_f32(x.q[i]))); }

#else
#include <math.h>
#define VF_WIDE 0
#define VF_HALVES 0
typedef struct vf {
    float v[VF];
} vf;
#define VF_EACH(expr) \
    vf r; \
    for (int i = 0; i < VF; i++) r.v[i] = (expr); \
    return r
VF_INLINE vf vf_set(float x) { VF_EACH(x); }
VF_INLINE vf vf_load(const float *p) { VF_EACH(p[i]); }
VF_INLINE void vf_store(float *p, vf x) { memcpy(p, x.v, sizeof x.v); }
VF_INLINE vf vf_add(vf x, vf y) { VF_EACH(x.v[i] + y.v[i]); }
VF_INLINE vf vf_sub(vf x, vf y) { VF_EACH(x.v[i] - y.v[i]); }
VF_INLINE vf vf_mul(vf x, vf y) { VF_EACH(x.v[i] * y.v[i]); }
VF_INLINE vf vf_div(vf x, vf y) { VF_EACH(x.v[i] / y.v[i]); }
VF_INLINE vf vf_fma(vf x, vf y, vf z) { VF_EACH(fmaf(x.v[i], y.v[i], z.v[i])); }
VF_INLINE vf vf_max(vf x, vf y) { VF_EACH(x.v[i] > y.v[i] ? x.v[i] : y.v[i]); }
VF_INLINE vf vf_min(vf x, vf y) { VF_EACH(x.v[i] < y.v[i] ? x.v[i] : y.v[i]); }
VF_INLINE vf vf_sel_lt(vf x, vf c, vf a, vf b) { VF_EACH(x.v[i] < c.v[i] ? a.v[i] : b.v[i]); }
VF_INLINE vf vf_abs(vf x) { VF_EACH(fabsf(x.v[i])); }
VF_INLINE vf vf_sign_of(vf x, vf y) { VF_EACH(copysignf(x.v[i], y.v[i])); }
VF_INLINE vf vf_add_exponent(vf p, vf t)
{
    uint32_t a[VF], b[VF];
    memcpy(a, p.v, sizeof a);
    memcpy(b, t.v, sizeof b);
    for (int i = 0; i < VF; i++) a[i] += b[i] << 23;
    memcpy(p.v, a, sizeof a);
    return p;
}
VF_INLINE vf vf_load_f16(const void *p)
{
    uint16_t h[VF];
    memcpy(h, p, sizeof h);
    VF_EACH(m5_f16_to_f32(h[i]));
}
VF_INLINE vf vf_load_bf16(const void *p)
{
    uint16_t h[VF];
    memcpy(h, p, sizeof h);
    VF_EACH(m5_bf16_to_f32(h[i]));
}
typedef struct vi {
    int32_t v[VF];
} vi;
#define VI_EACH(expr) \
    vi r; \
    for (int i = 0; i < VF; i++) r.v[i] = (expr); \
    return r
VF_INLINE vi vi_zero(void) { VI_EACH(0); }
VF_INLINE vi vi_load(const int16_t *p)
{
    vi r;
    memcpy(r.v, p, sizeof r.v);
    return r;
}
VF_INLINE void vi_store(int16_t *p, vi x) { memcpy(p, x.v, sizeof x.v); }
VF_INLINE vi vi_load_i8(const void *p)
{
    int16_t t[2 * VF];
    for (int i = 0; i < 2 * VF; i++) t[i] = ((const int8_t *)p)[i];
    return vi_load(t);
}
VF_INLINE vi vi_pair(const int16_t *p)
{
    int32_t x;
    memcpy(&x, p, sizeof x);
    VI_EACH(x);
}
VF_INLINE vi vi_dot(vi acc, vi x, vi y)
{
    int16_t a[2 * VF], b[2 * VF];
    vi_store(a, x);
    vi_store(b, y);
    VI_EACH(acc.v[i] + a[2 * i] * b[2 * i] + a[2 * i + 1] * b[2 * i + 1]);
}
VF_INLINE vi vi_mul_shift(vi x, vi y)
{
    int16_t a[2 * VF], b[2 * VF];
    vi_store(a, x);
    vi_store(b, y);
    for (int i = 0; i < 2 * VF; i++) a[i] = (int16_t)((a[i] * b[i] + (1 << 14)) >> 15);
    return vi_load(a);
}
VF_INLINE vf vi_float(vi x) { VF_EACH((float)x.v[i]); }
VF_INLINE void vf_round_i16(int16_t *p, vf x)
{
    for (int i = 0; i < VF; i++) {
        const float t = x.v[i] + 12582912.0f; /* the integer in the low bits, ties to even */
        uint32_t u;
        memcpy(&u, &t, sizeof u);
        p[i] = (int16_t)(uint16_t)u;
    }
}
#endif
/* vi_load: 32 numbers of 16 bits; vi_load_i8: of 8 bits, widened; vi_pair: two of them in every lane; vi_dot: acc[l] + x[2l] y[2l] + x[2l+1] y[2l+1],
 * exact in 32 bits, as far as the callers' bounds go; vi_mul_shift: (x y + 2^14) >> 15 of 16 bits each, x, y >= 0; vf_round_i16: lanes to the nearest
 * integer (ties to even), |x| <= 32767. */

/* Sums of one and of four vectors. */
#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
VF_INLINE float vf_sum(vf a)
{
    __m128 q = vf_quarter(a);
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
}
VF_INLINE void vf_sum4(float *out, vf a, vf b, vf c, vf d)
{
    __m128 qa = vf_quarter(a), qb = vf_quarter(b), qc = vf_quarter(c), qd = vf_quarter(d);
    __m128 ab = _mm_add_ps(_mm_movelh_ps(qa, qb), _mm_movehl_ps(qb, qa)); /* a0+a2 a1+a3 b0+b2 b1+b3 */
    __m128 cd = _mm_add_ps(_mm_movelh_ps(qc, qd), _mm_movehl_ps(qd, qc));
    _mm_storeu_ps(out, _mm_add_ps(_mm_shuffle_ps(ab, cd, 0x88), _mm_shuffle_ps(ab, cd, 0xdd)));
}
#else
VF_INLINE float vf_sum(vf a)
{
    float t[VF];
    vf_store(t, a);
    for (int w = VF / 2; w; w /= 2)
        for (int i = 0; i < w; i++) t[i] += t[i + w];
    return t[0];
}
VF_INLINE void vf_sum4(float *out, vf a, vf b, vf c, vf d)
{
    out[0] = vf_sum(a);
    out[1] = vf_sum(b);
    out[2] = vf_sum(c);
    out[3] = vf_sum(d);
}
#endif

#if VF_WIDE
/* Sums of sixteen vectors [4][4], row r at out + r * ld. */
VF_INLINE vf vf_fold8(vf a, vf b) /* a: lanes l + (l + 8) of eight, then b's */
{
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
}
VF_INLINE vf vf_fold4(vf a, vf b, vf c, vf d) /* four lanes of each */
{
    vf x = vf_fold8(a, b), y = vf_fold8(c, d);
    return _mm512_add_ps(_mm512_shuffle_f32x4(x, y, 0x88), _mm512_shuffle_f32x4(x, y, 0xdd));
}
VF_INLINE void vf_sum16(float *out, int64_t ld, const vf a[16])
{
    /* Vector k holds column k of all four rows, one row in each quarter. */
    vf c0 = vf_fold4(a[0], a[4], a[8], a[12]), c1 = vf_fold4(a[1], a[5], a[9], a[13]);
    vf c2 = vf_fold4(a[2], a[6], a[10], a[14]), c3 = vf_fold4(a[3], a[7], a[11], a[15]);
    vf x = _mm512_add_ps(_mm512_shuffle_ps(c0, c1, 0x44), _mm512_shuffle_ps(c0, c1, 0xee));
    vf y = _mm512_add_ps(_mm512_shuffle_ps(c2, c3, 0x44), _mm512_shuffle_ps(c2, c3, 0xee));
    vf s = _mm512_add_ps(_mm512_shuffle_ps(x, y, 0x88), _mm512_shuffle_ps(x, y, 0xdd));
    _mm_storeu_ps(out, _mm512_castps512_ps128(s));
    _mm_storeu_ps(out + ld, _mm512_extractf32x4_ps(s, 1));
    _mm_storeu_ps(out + 2 * ld, _mm512_extractf32x4_ps(s, 2));
    _mm_storeu_ps(out + 3 * ld, _mm512_extractf32x4_ps(s, 3));
}
#endif

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
VF_INLINE float vf_max_lane(vf x)
{
#if VF_WIDE
    const __m256 h = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
#else
    const __m256 h = _mm256_max_ps(x.a, x.b);
#endif
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
}
#else
VF_INLINE float vf_max_lane(vf a)
{
    float t[VF];
    vf_store(t, a);
    for (int w = VF / 2; w; w /= 2)
        for (int i = 0; i < w; i++) t[i] = t[i] > t[i + w] ? t[i] : t[i + w];
    return t[0];
}
#endif

/* The first n (1..16) floats at p, the other lanes 0. */
VF_INLINE vf vf_load_n(const float *p, int n)
{
    float t[VF] = {0};
    memcpy(t, p, (size_t)n * sizeof t[0]);
    return vf_load(t);
}
VF_INLINE void vf_store_n(float *p, vf a, int n)
{
    float t[VF];
    vf_store(t, a);
    memcpy(p, t, (size_t)n * sizeof t[0]);
}

/* e^x within 2 ulp; 0 below -87, finite above 88.37, NaN stays NaN. x = n ln 2 + r, e^r by a polynomial of degree 7 (Cephes expf coefficients). */
VF_INLINE vf vf_exp(vf x)
{
    vf c = vf_max(vf_set(-87.0f), vf_min(vf_set(88.37626f), x));
    vf t = vf_fma(c, vf_set(1.44269504f), vf_set(12582912.0f));
    vf n = vf_sub(t, vf_set(12582912.0f));
    vf r = vf_fma(n, vf_set(-0.693359375f), c);
    r = vf_fma(n, vf_set(2.12194440e-4f), r);
    vf p = vf_set(1.9875691500e-4f);
    p = vf_fma(p, r, vf_set(1.3981999507e-3f));
    p = vf_fma(p, r, vf_set(8.3334519073e-3f));
    p = vf_fma(p, r, vf_set(4.1665795894e-2f));
    p = vf_fma(p, r, vf_set(1.6666665459e-1f));
    p = vf_fma(p, r, vf_set(5.0000001201e-1f));
    p = vf_fma(vf_mul(r, r), p, vf_add(r, vf_set(1.0f)));
    return vf_sel_lt(x, vf_set(-87.0f), vf_set(0.0f), vf_add_exponent(p, t));
}

VF_INLINE vf vf_sigmoid(vf x) { return vf_div(vf_set(1.0f), vf_add(vf_set(1.0f), vf_exp(vf_sub(vf_set(0.0f), x)))); }
VF_INLINE vf vf_silu(vf x) { return vf_div(x, vf_add(vf_set(1.0f), vf_exp(vf_sub(vf_set(0.0f), x)))); }

/* tanh within 2 ulp: odd polynomial below 0.625 (Cephes tanhf), else 1 - 2 / (e^2|x| + 1). */
VF_INLINE vf vf_tanh(vf x)
{
    vf a = vf_abs(x), z = vf_mul(x, x);
    vf p = vf_set(-5.70498872745e-3f);
    p = vf_fma(p, z, vf_set(2.06390887954e-2f));
    p = vf_fma(p, z, vf_set(-5.37397155531e-2f));
    p = vf_fma(p, z, vf_set(1.33314422036e-1f));
    p = vf_fma(p, z, vf_set(-3.33332819422e-1f));
    vf small = vf_fma(vf_mul(p, z), x, x);
    vf big = vf_sub(vf_set(1.0f), vf_div(vf_set(2.0f), vf_add(vf_exp(vf_add(a, a)), vf_set(1.0f))));
    return vf_sel_lt(a, vf_set(0.625f), small, vf_sign_of(big, x));
}

#endif
