/* SPDX-License-Identifier: Apache-2.0 */
/* Vector slots for AVX2 + FMA + F16C: activation quantiser, narrowing, activations. The tile products are in avx2_tile.c. May touch: nothing. */
#include "kernels/kernels.h"
#include "kernels/exp.h"

#include <immintrin.h>
#include <string.h>

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

static inline float max_of(__m256 v)
{
    __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    m = _mm_max_ps(m, _mm_movehl_ps(m, m));
    m = _mm_max_ss(m, _mm_shuffle_ps(m, m, 1));
    return _mm_cvtss_f32(m);
}

/* Sum of the 16 signed bytes. */
static inline int32_t sum_bytes(__m128i q)
{
    const __m128i pairs = _mm_maddubs_epi16(_mm_set1_epi8(1), q);
    __m128i s = _mm_madd_epi16(pairs, _mm_set1_epi16(1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

static void quant_x_avx2(const m5_tile_x *x, int t, const float *src, int64_t n_blk)
{
    const __m256 no_sign = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (int64_t b = 0; b < n_blk; b++, src += M5_TILE_BLOCK) {
        const int64_t at = b * x->n_tok + t;
        __m256 v[4], m = _mm256_setzero_ps();
        for (int i = 0; i < 4; i++) {
            v[i] = _mm256_loadu_ps(src + 8 * i);
            m = _mm256_max_ps(_mm256_and_ps(v[i], no_sign), m);
        }
        const float max = max_of(m);
        const bool tiny = max < M5_QUANT_MIN;
        const __m256 inv = _mm256_set1_ps(tiny ? 0 : 127.0f / max);
        __m256i q[4];
        for (int i = 0; i < 4; i++) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inv));
        /* Packs work per 128 bits: the permutation puts the bytes back in order. */
        const __m256i packed = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])), order);
        _mm256_storeu_si256((__m256i *)(void *)(x->q + at * M5_TILE_BLOCK), packed);
        const int32_t h0 = -sum_bytes(_mm256_castsi256_si128(packed)), h1 = -sum_bytes(_mm256_extracti128_si256(packed, 1));
        x->d[at] = tiny ? 0 : max / 127.0f;
        x->nhalf[2 * at] = h0;
        x->nhalf[2 * at + 1] = h1;
        x->nsum[at] = h0 + h1;
        x->dsum[at] = x->d[at] * (float)-(h0 + h1);
    }
}

static void f32_f16_avx2(uint16_t *y, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) _mm_storeu_si128((__m128i *)(void *)(y + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
    for (; i < n; i++) y[i] = m5_f32_to_f16(x[i]);
}

static void f32_bf16_avx2(uint16_t *y, const float *x, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_loadu_ps(x + i);
        const __m256i u = _mm256_castps_si256(v), odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
        __m256i r = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
        const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
        r = _mm256_blendv_epi8(r, _mm256_or_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(0x40)), nan);
        r = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0x08);
        _mm_storeu_si128((__m128i *)(void *)(y + i), _mm256_castsi256_si128(r));
    }
    for (; i < n; i++) y[i] = m5_f32_to_bf16(x[i]);
}

/* exp.h, eight at a time. */
static inline __m256 exp_8(__m256 x)
{
    x = _mm256_min_ps(_mm256_set1_ps(M5_EXP_MAX), x);
    x = _mm256_max_ps(_mm256_set1_ps(M5_EXP_MIN), x);
    const __m256 z = _mm256_fmadd_ps(x, _mm256_set1_ps(M5_EXP_LOG2E), _mm256_set1_ps(M5_EXP_ROUND)),
                 n = _mm256_sub_ps(z, _mm256_set1_ps(M5_EXP_ROUND));
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-M5_EXP_LN2_HI), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-M5_EXP_LN2_LO), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(M5_EXP_C7), r, _mm256_set1_ps(M5_EXP_C6));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(M5_EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(M5_EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(M5_EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(M5_EXP_C2));
    p = _mm256_fmadd_ps(_mm256_mul_ps(p, r), r, r);
    p = _mm256_add_ps(p, _mm256_set1_ps(1));
    const __m256i k = _mm256_sub_epi32(_mm256_castps_si256(z), _mm256_set1_epi32((int)M5_EXP_ROUND_BITS)), k1 = _mm256_srai_epi32(k, 1);
    const __m256i bias = _mm256_set1_epi32(127);
    const __m256 s1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(k1, bias), 23));
    const __m256 s2 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(k, k1), bias), 23));
    return _mm256_mul_ps(_mm256_mul_ps(p, s1), s2);
}

static inline __m256 sigmoid_mul(__m256 g, __m256 arg, __m256 u)
{
    const __m256 e = exp_8(_mm256_xor_ps(arg, _mm256_set1_ps(-0.0f)));
    return _mm256_mul_ps(_mm256_div_ps(g, _mm256_add_ps(_mm256_set1_ps(1), e)), u);
}

static void silu_mul_avx2(float *y, const float *g, const float *u, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_loadu_ps(g + i);
        _mm256_storeu_ps(y + i, sigmoid_mul(v, v, _mm256_loadu_ps(u + i)));
    }
    for (; i < n; i++) y[i] = g[i] / (1.0f + m5_exp(-g[i])) * u[i];
}

static void gelu_mul_avx2(float *y, const float *g, const float *u, int64_t n)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        const __m256 v = _mm256_loadu_ps(g + i), v2 = _mm256_mul_ps(v, v);
        const __m256 arg = _mm256_mul_ps(_mm256_set1_ps(M5_GELU_A), _mm256_fmadd_ps(_mm256_mul_ps(_mm256_set1_ps(M5_GELU_B), v2), v, v));
        _mm256_storeu_ps(y + i, sigmoid_mul(v, arg, _mm256_loadu_ps(u + i)));
    }
    for (; i < n; i++) y[i] = g[i] / (1.0f + m5_exp(-m5_gelu_arg(g[i]))) * u[i];
}

static uint64_t read_sum_avx2(const uint8_t *p, size_t n)
{
    __m256i s[4] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256()};
    size_t i = 0;
    for (; i + 128 <= n; i += 128) {
        for (int k = 0; k < 4; k++) s[k] = _mm256_xor_si256(s[k], _mm256_loadu_si256((const __m256i *)(const void *)(p + i + 32 * (size_t)k)));
    }
    uint64_t w[4], v, sum = 0;
    _mm256_storeu_si256((__m256i *)(void *)w, _mm256_xor_si256(_mm256_xor_si256(s[0], s[1]), _mm256_xor_si256(s[2], s[3])));
    for (int k = 0; k < 4; k++) sum ^= w[k];
    for (; i + 8 <= n; i += 8) {
        memcpy(&v, p + i, 8);
        sum ^= v;
    }
    return sum;
}

/* The pair of instructions that the 4-bit kernels are made of. The empty assembly keeps the compiler from computing one product for all. */
static int64_t peak_int_avx2(int64_t rounds)
{
    enum { N = 8 };
    __m256i s[N], w = _mm256_set1_epi8(3);
    const __m256i x = _mm256_set1_epi8(1);
    UNROLL
    for (int k = 0; k < N; k++) s[k] = _mm256_setzero_si256();
    for (int64_t i = 0; i < rounds; i++) {
        UNROLL
        for (int k = 0; k < N; k++) {
            __asm__ volatile("" : "+x"(w));
            __m256i p = _mm256_maddubs_epi16(w, x);
            __asm__ volatile("" : "+x"(p));
            s[k] = _mm256_add_epi16(s[k], p);
        }
    }
    UNROLL
    for (int k = 0; k < N; k++) __asm__ volatile("" : : "x"(s[k]));
    return rounds * N * 64;
}

static int64_t peak_fma_avx2(int64_t rounds)
{
    enum { N = 10 };
    __m256 s[N];
    const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(1.0f);
    UNROLL
    for (int k = 0; k < N; k++) s[k] = _mm256_setzero_ps();
    for (int64_t i = 0; i < rounds; i++) {
        UNROLL
        for (int k = 0; k < N; k++) {
            s[k] = _mm256_fmadd_ps(s[k], a, b);
            __asm__ volatile("" : "+x"(s[k]));
        }
    }
    return rounds * N * 16;
}

void m5_kernels_avx2(m5_kernels *k)
{
    k->quant_x = quant_x_avx2;
    k->f32_f16 = f32_f16_avx2;
    k->f32_bf16 = f32_bf16_avx2;
    k->silu_mul = silu_mul_avx2;
    k->gelu_mul = gelu_mul_avx2;
    k->read_sum = read_sum_avx2;
    k->peak_int = peak_int_avx2;
    k->peak_fma = peak_fma_avx2;
    m5_kernels_avx2_tile(k);
}
