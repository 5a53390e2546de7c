/* SPDX-License-Identifier: Apache-2.0 */
/* Storage formats of weights: their sizes and their exact unpacking to f32. Each unpacker is the definition of its format in this program:
 * kernels are checked against it, and it is the slow path of products whose type has no kernel. Plain loops over whole blocks, so that the
 * compiler can vectorise them. Packing, repacking and products are not here. May touch: nothing.
 *
 * All files are little endian and blocks have no alignment, hence reads byte by byte (compilers merge them). d, m and dmin are IEEE half. */
#include "kernels/quant.h"

#include <string.h>

static const m5_dtype_info infos[M5_DTYPE_COUNT + 1] = {
    [M5_F32] = {"F32", 1, 4, true},       [M5_F16] = {"F16", 1, 2, true},         [M5_BF16] = {"BF16", 1, 2, true},
    [M5_Q4_0] = {"Q4_0", 32, 18, true},   [M5_Q4_1] = {"Q4_1", 32, 20, true},     [M5_Q5_0] = {"Q5_0", 32, 22, true},
    [M5_Q5_1] = {"Q5_1", 32, 24, true},   [M5_Q8_0] = {"Q8_0", 32, 34, true},     [M5_Q2_K] = {"Q2_K", 256, 84, true},
    [M5_Q3_K] = {"Q3_K", 256, 110, true}, [M5_Q4_K] = {"Q4_K", 256, 144, true},   [M5_Q5_K] = {"Q5_K", 256, 176, true},
    [M5_Q6_K] = {"Q6_K", 256, 210, true}, [M5_IQ4_NL] = {"IQ4_NL", 32, 18, true}, [M5_IQ4_XS] = {"IQ4_XS", 256, 136, true},
    [M5_MXFP4] = {"MXFP4", 32, 17, true}, [M5_MLX2] = {"MLX2", 32, 8, true},      [M5_MLX3] = {"MLX3", 32, 12, true},
    [M5_MLX4] = {"MLX4", 32, 16, true},   [M5_MLX5] = {"MLX5", 32, 20, true},     [M5_MLX6] = {"MLX6", 32, 24, true},
    [M5_MLX8] = {"MLX8", 32, 32, true},   [M5_U8] = {"U8", 1, 1, false},          [M5_I8] = {"I8", 1, 1, false},
    [M5_I16] = {"I16", 1, 2, false},      [M5_I32] = {"I32", 1, 4, false},        [M5_I64] = {"I64", 1, 8, false},
    [M5_U32] = {"U32", 1, 4, false},      [M5_F64] = {"F64", 1, 8, false},        [M5_DTYPE_COUNT] = {"unknown", 1, 0, false},
};

const m5_dtype_info *m5_dtype_get(m5_dtype t)
{
    return &infos[(unsigned)t < M5_DTYPE_COUNT ? (unsigned)t : M5_DTYPE_COUNT];
}

/* --- 16-bit floats -------------------------------------------------------------------------------------------------------------- */

static inline float f32_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static inline uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

/* Without branches, so that loops over it vectorise. Normal: the exponent bias grows by 127 - 15 = 112; infinity and NaN: the exponent goes to
 * its new maximum, another 112; zero and subnormal: an integer times 2^-24. */
static inline float half_to_f32(uint16_t h)
{
    uint32_t a = h & 0x7fffu, sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t normal = (a << 13) + (112u << 23) + (a >= 0x7c00u ? 112u << 23 : 0u);
    uint32_t small = bits_of((float)(int32_t)a * 0x1p-24f);
    return f32_of(sign | (a < 0x0400u ? small : normal));
}

float m5_f16_to_f32(uint16_t h)
{
    return half_to_f32(h);
}

uint16_t m5_f32_to_f16(float f)
{
    uint32_t u = bits_of(f), a = u & 0x7fffffffu, sign = u >> 16 & 0x8000u;
    if (a > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (a >> 13 & 0x01ffu)); /* NaN, made quiet */
    if (a >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u);                      /* from 65520 on: infinity */
    if (a < 0x38800000u) {
        /* below 2^-14: the last bit of half is worth 2^-24, as is that of a float in [0.5, 1), so this addition does the rounding */
        return (uint16_t)(sign | (bits_of(f32_of(a) + 0.5f) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((a - (112u << 23) + 0x0fffu + (a >> 13 & 1u)) >> 13));
}

uint16_t m5_f32_to_bf16(float f)
{
    uint32_t u = bits_of(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(u >> 16 | 0x0040u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

static inline uint16_t le16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t le32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline float le_half(const uint8_t *p)
{
    return half_to_f32(le16(p));
}

/* --- blocks of 32 --------------------------------------------------------------------------------------------------------------- */

static void unpack_f16(const uint8_t *restrict src, float *restrict dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) dst[i] = half_to_f32(le16(src + 2 * i));
}

static void unpack_bf16(const uint8_t *restrict src, float *restrict dst, int64_t n)
{
    for (int64_t i = 0; i < n; i++) dst[i] = m5_bf16_to_f32(le16(src + 2 * i));
}

/* 18 bytes: d, 16 x (low nibble = element j, high = element j + 16); (q - 8) * d */
static void unpack_q4_0(const uint8_t *restrict src, float *restrict dst, int64_t n)
{
    for (int64_t b = 0; b < n / 32; b++, src += 18, dst += 32) {
        const float d = le_half(src);
        for (int j = 0; j < 16; j++) dst[j] = (float)((src[2 + j] & 15) - 8) * d;
        for (int j = 0; j < 16; j++) dst[j + 16] = (float)((src[2 + j] >> 4) - 8) * d;
    }
}

/* 20 bytes: d, m, nibbles as in Q4_0; q * d + m */
static void unpack_q4_1(const uint8_t *restrict src, float *restrict dst, int64_t n)
{
    for (int64_t b = 0; b < n / 32; b++, src += 20, dst += 32) {
        const float d = le_half(src), m = le_half(src + 2);
        for (int j = 0; j < 16; j++) dst[j] = (float)(src[4 + j] & 15) * d + m;
        for (int j = 0; j < 16; j++) dst[j + 16] = (float)(src[4 + j] >> 4) * d + m;
    }
}

/* 22 bytes: d, qh (bit i = fifth bit of element i), nibbles; (q - 16) * d */
static void unpack_q5_0(const uint8_t *restrict src, float *restrict dst, int64_t n)
{
    for (int64_t b = 0; b < n / 32; b++, src += 22, dst += 32) {
        const float d = le_half(src);
        const uint32_t qh = le32(src + 2);
        for (int j = 0; j < 16; j++) {
            dst[j] = (float)((int)((src[6 + j] & 15u) | (qh >> j << 4 & 16u)) - 16) * d;
            dst[j + 16] = (float)((int)((uint32_t)(src[6 + j] >> 4) | (qh >> (j + 16) << 4 & 16u)) - 16) * d;
        }
    }
}

/* 24 bytes: d, m, qh, nibbles; q * d + m */
static void unpack_q5_1(const uint8_t *restrict src, float *restrict dst, int64_t n)
{
    for (int64_t b = 0; b < n / 32; b++, src += 24, dst += 32) {
        const float d = le_half(src), m = le_half(src + 2);
        const uint32_t qh = le32(src + 4);
        for (int j = 0; j < 16; j++) {
            dst[j] = (float)(int)((src[8 + j] & 15u) | (qh >> j << 4 & 16u)) * d + m;
            dst[j + 16] = (float)(int)((uint32_t)(src[8 + j] >> 4) | (qh >> (j + 16) << 4 & 16u)) * d + m;
        }
    }
}

/* 34 bytes: d, 32 x int8 */
static void unpack_q8_0(const uint8_t *restrict src, float *restrict dst, int64_t n)
{
    for (int64_t b = 0; b < n / 32; b++, src += 34, dst += 32) {
        const float d = le_half(src);
        for (int j = 0; j < 32; j++) dst[j] = (float)(int8_t)src[2 + j] * d;
    }
}

static const int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

/* One 32-element group of IQ4_NL and IQ4_XS. */
static inline void unpack_iq4_group(const uint8_t *qs, float d, float *dst)
{
    for (int j = 0; j < 16; j++) {
        dst[j] = d * (float)iq4_values[qs[j] & 15];
        dst[j + 16] = d * (float)iq4_values[qs[j] >> 4];
    }
}

static void unpack_iq4_nl(const uint8_t *src, float *dst, int64_t n)
{
    for (int64_t b = 0; b < n / 32; b++, src += 18, dst += 32) unpack_iq4_group(src + 2, le_half(src), dst);
}

/* 17 bytes: exponent e, nibbles of E2M1 codes; 2^(e - 127) * code. The table is doubled, the scale halved: 2^(e - 128), which for e = 0 and 1
 * is a subnormal float. */
static void unpack_mxfp4(const uint8_t *src, float *dst, int64_t n)
{
    static const int8_t doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    for (int64_t b = 0; b < n / 32; b++, src += 17, dst += 32) {
        const uint32_t e = src[0];
        const float d = f32_of(e < 2 ? 0x00200000u << e : (e - 1) << 23);
        for (int j = 0; j < 16; j++) {
            dst[j] = d * (float)doubled[src[1 + j] & 15];
            dst[j + 16] = d * (float)doubled[src[1 + j] >> 4];
        }
    }
}

/* --- super-blocks of 256 -------------------------------------------------------------------------------------------------------- */

/* 84 bytes: scales[16] (low nibble scale, high nibble minimum), qs[64], d, dmin; sub-blocks of 16: d * sc * q - dmin * mn.
 * Half h of 128 elements uses qs[32h..]; shift 2s gives elements 128h + 32s + l. */
static void unpack_q2_k(const uint8_t *restrict src, float *restrict dst, int64_t n)
{
    for (int64_t b = 0; b < n / 256; b++, src += 84) {
        const float d = le_half(src + 80), dmin = le_half(src + 82);
        for (int sub = 0; sub < 16; sub++, dst += 16) {
            const float scale = d * (float)(src[sub] & 15), min = dmin * (float)(src[sub] >> 4);
            const uint8_t *q = src + 16 + 32 * (sub / 8) + 16 * (sub % 2);
            const int shift = 2 * (sub / 2 % 4);
            for (int l = 0; l < 16; l++) dst[l] = scale * (float)(q[l] >> shift & 3) - min;
        }
    }
}

/* 110 bytes: hmask[32], qs[64] as in Q2_K, scales[12] (16 x 6 bits), d; q - 4 unless the bit of hmask is set, d * (sc - 32) * q */
static void unpack_q3_k(const uint8_t *restrict src, float *restrict dst, int64_t n)
{
    for (int64_t b = 0; b < n / 256; b++, src += 110) {
        const float d = le_half(src + 108);
        const uint8_t *s = src + 96;
        for (int sub = 0; sub < 16; sub++, dst += 16) {
            const int low = sub < 8 ? s[sub] & 15 : s[sub - 8] >> 4, high = s[8 + sub % 4] >> 2 * (sub / 4) & 3;
            const float scale = d * (float)((low | high << 4) - 32);
            const uint8_t *q = src + 32 + 32 * (sub / 8) + 16 * (sub % 2), *mask = src + 16 * (sub % 2);
            const int shift = 2 * (sub / 2 % 4), bit = sub / 2;
            for (int l = 0; l < 16; l++) dst[l] = scale * (float)((q[l] >> shift & 3) + 4 * (mask[l] >> bit & 1) - 4);
        }
    }
}

/* The 6-bit scale and minimum of sub-block j in the 12 bytes of Q4_K and Q5_K. */
static inline void k_scale_min(const uint8_t *s, int j, float *scale, float *min)
{
    if (j < 4) {
        *scale = (float)(s[j] & 63);
        *min = (float)(s[j + 4] & 63);
    } else {
        *scale = (float)((s[j + 4] & 15) | s[j - 4] >> 6 << 4);
        *min = (float)(s[j + 4] >> 4 | s[j] >> 6 << 4);
    }
}

/* 144 bytes: d, dmin, scales[12], qs[128]; sub-blocks of 32, pair i in qs[32i..]: low nibbles = 2i, high = 2i + 1; d * sc * q - dmin * mn */
static void unpack_q4_k(const uint8_t *restrict src, float *restrict dst, int64_t n)
{
    for (int64_t b = 0; b < n / 256; b++, src += 144) {
        const float d = le_half(src), dmin = le_half(src + 2);
        for (int sub = 0; sub < 8; sub++, dst += 32) {
            float scale, min;
            k_scale_min(src + 4, sub, &scale, &min);
            scale *= d;
            min *= dmin;
            const uint8_t *q = src + 16 + 32 * (sub / 2);
            const int shift = 4 * (sub % 2);
            for (int l = 0; l < 32; l++) dst[l] = scale * (float)(q[l] >> shift & 15) - min;
        }
    }
}

/* 176 bytes: d, dmin, scales[12], qh[32], qs[128]; as Q4_K with bit `sub` of qh[l] as fifth bit */
static void unpack_q5_k(const uint8_t *restrict src, float *restrict dst, int64_t n)
{
    for (int64_t b = 0; b < n / 256; b++, src += 176) {
        const float d = le_half(src), dmin = le_half(src + 2);
        for (int sub = 0; sub < 8; sub++, dst += 32) {
            float scale, min;
            k_scale_min(src + 4, sub, &scale, &min);
            scale *= d;
            min *= dmin;
            const uint8_t *qh = src + 16, *q = src + 48 + 32 * (sub / 2);
            const int shift = 4 * (sub % 2);
            for (int l = 0; l < 32; l++) dst[l] = scale * (float)((q[l] >> shift & 15) + 16 * (qh[l] >> sub & 1)) - min;
        }
    }
}

/* 210 bytes: ql[128], qh[64], int8 scales[16], d; (q - 32) * d * sc. Half h of 128 elements uses ql + 64h and qh + 32h; its group of 32 number g
 * takes the low (g < 2) or high nibbles of ql[32 * (g % 2)..] and bits 2g, 2g + 1 of qh. */
static void unpack_q6_k(const uint8_t *restrict src, float *restrict dst, int64_t n)
{
    for (int64_t b = 0; b < n / 256; b++, src += 210) {
        const float d = le_half(src + 208);
        for (int sub = 0; sub < 16; sub++, dst += 16) {
            const int g = sub / 2 % 4, at = 16 * (sub % 2);
            const uint8_t *ql = src + 64 * (sub / 8) + 32 * (g % 2) + at, *qh = src + 128 + 32 * (sub / 8) + at;
            const int shift = 4 * (g / 2);
            const float scale = d * (float)(int8_t)src[192 + sub];
            for (int l = 0; l < 16; l++) dst[l] = scale * (float)(((ql[l] >> shift & 15) | (qh[l] >> 2 * g & 3) << 4) - 32);
        }
    }
}

/* 136 bytes: d, scales_h (u16), scales_l[4], qs[128]; sub-blocks of 32 with 6-bit scales: d * (ls - 32) * table[q] */
static void unpack_iq4_xs(const uint8_t *src, float *dst, int64_t n)
{
    for (int64_t b = 0; b < n / 256; b++, src += 136) {
        const float d = le_half(src);
        const int high = le16(src + 2);
        for (int sub = 0; sub < 8; sub++, dst += 32) {
            const int ls = (src[4 + sub / 2] >> 4 * (sub % 2) & 15) | (high >> 2 * sub & 3) << 4;
            unpack_iq4_group(src + 8 + 16 * sub, d * (float)(ls - 32), dst);
        }
    }
}

void m5_unpack_f32(m5_dtype t, const void *src, float *dst, int64_t n)
{
    switch (t) {
    case M5_F32: memcpy(dst, src, (size_t)n * sizeof(float)); break;
    case M5_F16: unpack_f16(src, dst, n); break;
    case M5_BF16: unpack_bf16(src, dst, n); break;
    case M5_Q4_0: unpack_q4_0(src, dst, n); break;
    case M5_Q4_1: unpack_q4_1(src, dst, n); break;
    case M5_Q5_0: unpack_q5_0(src, dst, n); break;
    case M5_Q5_1: unpack_q5_1(src, dst, n); break;
    case M5_Q8_0: unpack_q8_0(src, dst, n); break;
    case M5_Q2_K: unpack_q2_k(src, dst, n); break;
    case M5_Q3_K: unpack_q3_k(src, dst, n); break;
    case M5_Q4_K: unpack_q4_k(src, dst, n); break;
    case M5_Q5_K: unpack_q5_k(src, dst, n); break;
    case M5_Q6_K: unpack_q6_k(src, dst, n); break;
    case M5_IQ4_NL: unpack_iq4_nl(src, dst, n); break;
    case M5_IQ4_XS: unpack_iq4_xs(src, dst, n); break;
    case M5_MXFP4: unpack_mxfp4(src, dst, n); break;
    default: memset(dst, 0, (size_t)n * sizeof(float)); break; /* not a plain matrix type: the caller's mistake, made visible as zeroes */
    }
}

/* --- MLX affine groups ---------------------------------------------------------------------------------------------------------- */

/* A row is one stream of unsigned codes, lowest bits first; groups of 32 codes end at byte boundaries for every width. */
static void mlx_codes_32(m5_dtype t, const uint8_t *p, uint8_t q[32])
{
    switch (t) {
    case M5_MLX2:
        for (int i = 0; i < 8; i++) {
            for (int k = 0; k < 4; k++) q[4 * i + k] = p[i] >> 2 * k & 3;
        }
        break;
    case M5_MLX4:
        for (int i = 0; i < 16; i++) {
            q[2 * i] = p[i] & 15;
            q[2 * i + 1] = p[i] >> 4;
        }
        break;
    case M5_MLX8: memcpy(q, p, 32); break;
    default: { /* 3, 5, 6 bits: eight codes fill as many bytes as they have bits */
        const int bits = infos[t].block_bytes / 4;
        for (int i = 0; i < 4; i++, p += bits) {
            uint64_t v = 0;
            for (int k = 0; k < bits; k++) v |= (uint64_t)p[k] << 8 * k;
            for (int k = 0; k < 8; k++) q[8 * i + k] = (uint8_t)(v >> bits * k & ((1u << bits) - 1));
        }
    }
    }
}

static float scalar_f32(m5_dtype t, const uint8_t *p, int64_t i)
{
    if (t == M5_F32) return f32_of(le32(p + 4 * i));
    return t == M5_F16 ? le_half(p + 2 * i) : m5_bf16_to_f32(le16(p + 2 * i));
}

/* Value = scale * q + bias, product and sum in f32. MLX itself rounds both to the type of the scales; f32 is what the codes mean. */
static void mlx_row(const m5_matrix *m, int64_t row, float *dst)
{
    const int64_t n_group = m->n_in / m->group;
    const uint8_t *p = m->data + row * m->row_bytes;
    for (int64_t g = 0; g < n_group; g++) {
        const float scale = scalar_f32(m->scale_type, m->scales, row * n_group + g), bias = scalar_f32(m->scale_type, m->biases, row * n_group + g);
        for (int k = 0; k < m->group; k += 32, p += infos[m->type].block_bytes, dst += 32) {
            uint8_t q[32];
            mlx_codes_32(m->type, p, q);
            for (int l = 0; l < 32; l++) dst[l] = scale * (float)q[l] + bias;
        }
    }
}

static bool is_mlx(m5_dtype t)
{
    return t >= M5_MLX2 && t <= M5_MLX8;
}

void m5_matrix_row_f32(const m5_matrix *m, int64_t row, float *dst)
{
    if (is_mlx(m->type)) {
        mlx_row(m, row, dst);
    } else {
        m5_unpack_f32(m->type, m->data + row * m->row_bytes, dst, m->n_in);
    }
}

m5_matrix m5_matrix_rows(const m5_matrix *m, int64_t first, int64_t n)
{
    m5_matrix v = *m;
    v.n_out = n;
    if (v.data) v.data += first * m->row_bytes;
    if (is_mlx(m->type)) {
        const int64_t scale_row_bytes = m->n_in / m->group * infos[m->scale_type].block_bytes;
        v.scales += first * scale_row_bytes;
        v.biases += first * scale_row_bytes;
    }
    v.packed = NULL; /* belongs to the whole matrix */
    return v;
}
