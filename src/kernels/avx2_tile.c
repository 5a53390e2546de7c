/* SPDX-License-Identifier: Apache-2.0 */
/* Tile products for AVX2: half a chunk (8 rows x 4 columns) is one register. May touch: nothing.
 *
 * vpmaddubsw multiplies unsigned codes by signed activations and adds pairs into 16 bits. Codes of 4 bits stay exact in 16 bits over a whole block
 * (8 quads x 2 x 15 x 127 = 30 480), so a block costs 8 multiplies, 8 adds and one widening; 5 bits over 4 quads (31 496), 6 bits over 2 (32 004).
 * Codes of 8 bits and table values are signed: |w| times the activation with w's sign, widened at once (2 x 128 x 127 = 32 512). The two halves of
 * a block are done one after the other for all tokens, so that eight registers hold the codes of all 16 rows and a broadcast of activations
 * serves both row halves: with one broadcast for each product the load ports were the limit (186 Gop/s against 247 for Q4_0). */
#include "kernels/kernels.h"
#include "kernels/tile_read.h"

#include <immintrin.h>

#define INLINE static inline __attribute__((always_inline))

INLINE __m256i bcast_i32(const void *p)
{
    int32_t v;
    memcpy(&v, p, 4);
    return _mm256_set1_epi32(v);
}

/* c points at the half's bytes of chunk 0. */
INLINE __m256i chunk(const uint8_t *c, int i)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)(c + i * M5_CHUNK_BYTES));
}
INLINE __m256 halves(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
INLINE __m256i bytes_u(const uint8_t *p)
{
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}
INLINE __m256i bytes_s(const uint8_t *p)
{
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}

INLINE __m256 bf16s(const uint8_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)), 16));
}

INLINE __m256i bits_up(__m256i v, int left)
{
    return left >= 0 ? _mm256_slli_epi32(v, left) : _mm256_srli_epi32(v, -left);
}

INLINE bool is_signed(m5_tile_kind kind)
{
    return kind == M5_TILE_Q8_0 || kind == M5_TILE_MLX8_F16 || kind == M5_TILE_MLX8_BF16 || kind == M5_TILE_IQ4_NL || kind == M5_TILE_IQ4_XS;
}

/* Quads that may be added in 16 bits. */
INLINE int quads_in_16(m5_tile_kind kind)
{
    switch (kind) {
    case M5_TILE_Q5_0:
    case M5_TILE_Q5_1:
    case M5_TILE_Q5_K:
    case M5_TILE_MXFP4:
    case M5_TILE_Q2_K: /* scales differ between the halves of a block */
    case M5_TILE_Q3_K: return 4;
    case M5_TILE_Q6_K: return 2;
    default: return 8;
    }
}

/* Codes of quads 4p .. 4p + 3 of one block and eight rows: unsigned, or signed for is_signed kinds. */
INLINE void unpack_quads(m5_tile_kind kind, const uint8_t *c, int blk, int p, __m256i w[4])
{
    const __m256i low = _mm256_set1_epi8(15), two = _mm256_set1_epi8(3);
    const int half = blk / 4, pos = blk % 4;
    for (int i = 0; i < 4; i++) {
        const int q = 4 * p + i;
        switch (kind) {
        case M5_TILE_Q8_0:
        case M5_TILE_MLX8_F16:
        case M5_TILE_MLX8_BF16: w[i] = _mm256_xor_si256(chunk(c, blk * 8 + q), _mm256_set1_epi8(-128)); break;
        case M5_TILE_Q5_0:
        case M5_TILE_Q5_1:
            w[i] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(chunk(c, blk * 5 + i), 4 * p), low),
                                   _mm256_and_si256(bits_up(chunk(c, blk * 5 + 4), 4 - q), _mm256_set1_epi8(16)));
            break;
        case M5_TILE_Q4_K: w[i] = _mm256_and_si256(_mm256_srli_epi32(chunk(c, blk / 2 * 8 + q), blk % 2 * 4), low); break;
        case M5_TILE_Q5_K:
            w[i] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(chunk(c, 8 + blk / 2 * 8 + q), blk % 2 * 4), low),
                                   _mm256_and_si256(bits_up(chunk(c, q), 4 - blk), _mm256_set1_epi8(16)));
            break;
        case M5_TILE_Q6_K:
            w[i] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(chunk(c, half * 24 + (pos % 2 ? 16 + q : 2 * q)), pos / 2 * 4), low),
                                   _mm256_and_si256(bits_up(chunk(c, half * 24 + 2 * q + 1), 4 - 2 * pos), _mm256_set1_epi8(48)));
            break;
        case M5_TILE_Q2_K: w[i] = _mm256_and_si256(_mm256_srli_epi32(chunk(c, half * 8 + q), 2 * pos), two); break;
        case M5_TILE_Q3_K:
            w[i] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(chunk(c, 8 + half * 8 + q), 2 * pos), two),
                                   _mm256_and_si256(bits_up(chunk(c, q), 2 - blk), _mm256_set1_epi8(4)));
            break;
        default: w[i] = _mm256_and_si256(_mm256_srli_epi32(chunk(c, blk * 4 + i), 4 * p), low); break;
        }
        if (kind == M5_TILE_IQ4_NL || kind == M5_TILE_IQ4_XS || kind == M5_TILE_MXFP4) {
            const int8_t *values = kind == M5_TILE_MXFP4 ? m5_mxfp4_values : m5_iq4_values;
            const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)values));
            w[i] = _mm256_shuffle_epi8(kind == M5_TILE_MXFP4 ? _mm256_add_epi8(table, _mm256_set1_epi8(16)) : table, w[i]);
        }
    }
}

/* The sum of codes times activations lacks this many (log2) times nsum; -1: nothing. MLX8: its codes came out 128 too low. */
INLINE int offset_bits(m5_tile_kind kind)
{
    switch (kind) {
    case M5_TILE_Q4_0: return 3;
    case M5_TILE_Q5_0:
    case M5_TILE_MXFP4: return 4;
    case M5_TILE_Q6_K: return 5;
    case M5_TILE_Q3_K: return 2;
    case M5_TILE_MLX8_F16:
    case M5_TILE_MLX8_BF16: return 7;
    default: return -1;
    }
}

typedef struct scales {
    __m256 d, m, dmin;
    __m256i sc[2], mn[2]; /* sc: the scale in both 16-bit halves of a lane, for vpmaddwd; mn: 32 bits */
} scales;

INLINE __m256i twice(__m256i v)
{
    return _mm256_or_si256(_mm256_and_si256(v, _mm256_set1_epi32(0xffff)), _mm256_slli_epi32(v, 16));
}

/* head points at the half's first row. */
INLINE scales load_scales(m5_tile_kind kind, const uint8_t *head, int h, int blk)
{
    scales s;
    s.d = s.m = s.dmin = _mm256_setzero_ps();
    s.sc[0] = s.sc[1] = s.mn[0] = s.mn[1] = _mm256_setzero_si256();
    const uint8_t *byte = head + 64 + 16 * blk + 8 * h, *pair = head + 64 + 32 * blk + 8 * h;
    head += 16 * h;
    switch (kind) {
    case M5_TILE_MXFP4: s.d = bf16s(head + 32 * blk); break;
    case M5_TILE_Q4_1:
    case M5_TILE_Q5_1:
        s.d = halves(head + 32 * blk);
        s.m = halves(head + 64 + 32 * blk);
        break;
    case M5_TILE_MLX4_F16:
    case M5_TILE_MLX8_F16:
        s.d = halves(head);
        s.m = halves(head + 32);
        break;
    case M5_TILE_MLX4_BF16:
    case M5_TILE_MLX8_BF16:
        s.d = bf16s(head);
        s.m = bf16s(head + 32);
        break;
    case M5_TILE_Q4_K:
    case M5_TILE_Q5_K:
        s.d = _mm256_mul_ps(halves(head), _mm256_cvtepi32_ps(bytes_u(byte)));
        s.m = _mm256_mul_ps(_mm256_sub_ps(_mm256_setzero_ps(), halves(head + 32)), _mm256_cvtepi32_ps(bytes_u(byte + 128)));
        break;
    case M5_TILE_IQ4_XS: s.d = _mm256_mul_ps(halves(head), _mm256_cvtepi32_ps(bytes_s(byte))); break;
    case M5_TILE_Q6_K:
    case M5_TILE_Q3_K:
        s.d = halves(head);
        s.sc[0] = twice(bytes_s(pair));
        s.sc[1] = twice(bytes_s(pair + 16));
        break;
    case M5_TILE_Q2_K:
        s.d = halves(head);
        s.dmin = halves(head + 32);
        for (int i = 0; i < 2; i++) {
            const __m256i v = bytes_u(pair + 16 * i);
            s.sc[i] = twice(_mm256_and_si256(v, _mm256_set1_epi32(15)));
            s.mn[i] = _mm256_srli_epi32(v, 4);
        }
        break;
    default: s.d = halves(head + 32 * blk); break;
    }
    return s;
}

INLINE bool is_halves(m5_tile_kind kind)
{
    return kind == M5_TILE_Q6_K || kind == M5_TILE_Q3_K || kind == M5_TILE_Q2_K;
}

/* Half p of a block (four quads) of both row halves times one token: 16-bit sums where a whole block fits, else 32-bit sums. The broadcasts are
 * shared by the row halves: loads, not arithmetic, are what the processor runs out of. */
INLINE void dot_quads(m5_tile_kind kind, const __m256i w[2][4], const scales s[2], const m5_tile_x *x, int64_t at, int p, __m256i dot[2])
{
    const int8_t *q = x->q + at * M5_TILE_BLOCK + 16 * p;
    const __m256i one = _mm256_set1_epi16(1);
    const int per_16 = quads_in_16(kind) < 4 ? quads_in_16(kind) : 4;
    __m256i wide[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()}, sum[2] = {wide[0], wide[1]};
    for (int i = 0; i < 4; i++) {
        const __m256i b = bcast_i32(q + 4 * i);
        for (int h = 0; h < 2; h++) {
            if (is_signed(kind)) {
                const __m256i m = _mm256_maddubs_epi16(_mm256_abs_epi8(w[h][i]), _mm256_sign_epi8(b, w[h][i]));
                wide[h] = _mm256_add_epi32(wide[h], _mm256_madd_epi16(m, one));
                continue;
            }
            const __m256i m = _mm256_maddubs_epi16(w[h][i], b);
            sum[h] = i % per_16 == 0 ? m : _mm256_add_epi16(sum[h], m);
            if (quads_in_16(kind) < 8 && (i + 1) % per_16 == 0) {
                wide[h] = _mm256_add_epi32(wide[h], _mm256_madd_epi16(sum[h], is_halves(kind) ? s[h].sc[p] : one));
            }
        }
    }
    for (int h = 0; h < 2; h++) {
        dot[h] = !is_signed(kind) && quads_in_16(kind) == 8 ? sum[h] : wide[h];
        if (is_halves(kind) && offset_bits(kind) >= 0) {
            /* |nhalf| <= 2032: half the offset times it fits 16 bits, and both halves of the lane add up to the offset. */
            const __m256i off = _mm256_set1_epi16((int16_t)(x->nhalf[2 * at + p] * (1 << offset_bits(kind)) / 2));
            dot[h] = _mm256_add_epi32(dot[h], _mm256_madd_epi16(off, s[h].sc[p]));
        }
    }
}

/* Both halves of a block together, added to the sum of eight rows. */
INLINE __m256 add_block(m5_tile_kind kind, __m256 a, __m256i dot0, __m256i dot1, const scales *s, const m5_tile_x *x, int64_t at)
{
    const int bits = offset_bits(kind);
    const __m256 d = _mm256_mul_ps(s->d, _mm256_set1_ps(x->d[at]));
    __m256i dot = !is_signed(kind) && quads_in_16(kind) == 8 ? _mm256_madd_epi16(_mm256_add_epi16(dot0, dot1), _mm256_set1_epi16(1))
                                                             : _mm256_add_epi32(dot0, dot1);
    if (bits >= 0 && !is_halves(kind)) {
        const __m256i off = _mm256_slli_epi32(bcast_i32(&x->nsum[at]), bits);
        dot = kind == M5_TILE_MLX8_F16 || kind == M5_TILE_MLX8_BF16 ? _mm256_sub_epi32(dot, off) : _mm256_add_epi32(dot, off);
    }
    a = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), d, a);
    if (m5_tile_has_min(kind)) a = _mm256_fmadd_ps(s->m, _mm256_set1_ps(x->dsum[at]), a);
    if (kind == M5_TILE_Q2_K) {
        const __m256i min = _mm256_add_epi32(_mm256_mullo_epi32(s->mn[0], bcast_i32(&x->nhalf[2 * at])),
                                             _mm256_mullo_epi32(s->mn[1], bcast_i32(&x->nhalf[2 * at + 1])));
        a = _mm256_fmadd_ps(_mm256_cvtepi32_ps(min), _mm256_mul_ps(s->dmin, _mm256_set1_ps(x->d[at])), a);
    }
    return a;
}

/* A few tokens read each tile once, and their activations again for every tile. Where both do not fit the first-level cache the weights push the
 * activations out: five tokens of n_in 2560 then run at 215 Gop/s instead of 290 (Q4_0, AVX-512). A non-temporal prefetch confines the weights to a
 * part of the cache. It costs more than it gives when there is little arithmetic for a byte, and sixteen tokens are part of a longer batch, whose
 * next set wants the tile in the second-level cache. Measured with checkkern --bench. */
enum { AHEAD_BYTES = 2048, L1_SHARE_BYTES = 24 * 1024, BYTES_PER_TOK = 90, X_BLOCK_BYTES = 44 };

INLINE bool reads_once(const m5_tile_shape *s, int n)
{
    return n < M5_TILE_TOK && n * BYTES_PER_TOK >= s->group_bytes / s->group_blk &&
           s->tile_bytes + n * s->n_group * s->group_blk * X_BLOCK_BYTES > L1_SHARE_BYTES;
}

/* The share of block blk in the lines of the group some groups ahead. */
INLINE void prefetch_once(const uint8_t *group, int group_bytes, int blk, int group_blk)
{
    const int step = (group_bytes / group_blk + M5_CHUNK_BYTES - 1) / M5_CHUNK_BYTES * M5_CHUNK_BYTES;
    for (int i = 0; i < step; i += M5_CHUNK_BYTES) _mm_prefetch((const char *)group + AHEAD_BYTES + blk * step + i, _MM_HINT_NTA);
}

/* n_tok is 1 (sums in registers) or 0 (any number; sums in memory, which the first-level cache holds). */
INLINE void tile_int(m5_tile_kind kind, int group_blk, int n_tok, float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *xp)
{
    const m5_tile_x copy = *xp, *x = &copy; /* the stores to acc cannot change a local copy: its pointers stay in registers */
    const int n = n_tok ? n_tok : x->n_tok;
    const bool once = n_tok != 1 && reads_once(s, n);
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    __m256i first[M5_TILE_TOK][2]; /* of the first half of a block, while the second is computed */
    for (int i = 0; i < 2 * n; i++) _mm256_storeu_ps(acc + 8 * i, sum[0]);
    int64_t at = 0;
    for (int64_t g = 0; g < s->n_group; g++, tile += s->group_bytes) {
        for (int blk = 0; blk < group_blk; blk++, at += n) {
            if (once) prefetch_once(tile, s->group_bytes, blk, group_blk);
            const scales sc[2] = {load_scales(kind, tile, 0, blk), load_scales(kind, tile, 1, blk)};
            __m256i w[2][4];
            for (int h = 0; h < 2; h++) unpack_quads(kind, tile + s->head_bytes + 32 * h, blk, 0, w[h]);
            for (int t = 0; t < n; t++) dot_quads(kind, w, sc, x, at + t, 0, first[t]);
            for (int h = 0; h < 2; h++) unpack_quads(kind, tile + s->head_bytes + 32 * h, blk, 1, w[h]);
            for (int t = 0; t < n; t++) {
                __m256i second[2];
                dot_quads(kind, w, sc, x, at + t, 1, second);
                for (int h = 0; h < 2; h++) {
                    float *a = acc + M5_TILE_ROWS * t + 8 * h;
                    if (n_tok == 1)
                        sum[h] = add_block(kind, sum[h], first[0][h], second[h], &sc[h], x, at);
                    else
                        _mm256_storeu_ps(a, add_block(kind, _mm256_loadu_ps(a), first[t][h], second[h], &sc[h], x, at + t));
                }
            }
        }
    }
    if (n_tok == 1) {
        _mm256_storeu_ps(acc, sum[0]);
        _mm256_storeu_ps(acc + 8, sum[1]);
    }
}

INLINE void column(m5_tile_kind kind, const uint8_t *g, int h, int k, __m256 w[2])
{
    if (kind == M5_TILE_F32) {
        w[0] = _mm256_loadu_ps((const float *)(const void *)(g + k * 64 + 32 * h));
        w[1] = _mm256_loadu_ps((const float *)(const void *)(g + k * 64 + 64 + 32 * h));
    } else if (kind == M5_TILE_F16) {
        w[0] = halves(g + k * 32 + 16 * h);
        w[1] = halves(g + k * 32 + 32 + 16 * h);
    } else {
        const __m256i v = chunk(g + 32 * h, k / 2);
        w[0] = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
        w[1] = _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32((int)0xffff0000u)));
    }
}

/* Tokens [t0, t0 + n) with n a constant: two partial sums a token in registers. Both row halves go together: two chains of additions instead
 * of one for a single token, and one broadcast for two products. */
INLINE void tile_float_n(m5_tile_kind kind, int n, int t0, float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)
{
    __m256 sum[4][2];
    for (int t = 0; t < n; t++) sum[t][0] = sum[t][1] = _mm256_setzero_ps();
    for (int64_t b = 0; b < s->n_group; b++, tile += s->group_bytes) {
        const float *f = x->f + (b * x->n_tok + t0) * M5_TILE_BLOCK;
        __m256 part[4][2], w[2][2];
        for (int h = 0; h < 2; h++) {
            column(kind, tile, h, 0, w[h]);
            for (int t = 0; t < n; t++) part[t][h] = _mm256_mul_ps(w[h][0], _mm256_set1_ps(f[t * M5_TILE_BLOCK]));
            for (int t = 0; t < n; t++) part[t][h] = _mm256_fmadd_ps(w[h][1], _mm256_set1_ps(f[t * M5_TILE_BLOCK + 1]), part[t][h]);
        }
        for (int k = 2; k < M5_TILE_BLOCK; k += 2) {
            column(kind, tile, 0, k, w[0]);
            column(kind, tile, 1, k, w[1]);
            for (int i = 0; i < 2; i++) {
                for (int t = 0; t < n; t++) {
                    const __m256 v = _mm256_set1_ps(f[t * M5_TILE_BLOCK + k + i]);
                    for (int h = 0; h < 2; h++) part[t][h] = _mm256_fmadd_ps(w[h][i], v, part[t][h]);
                }
            }
        }
        for (int t = 0; t < n; t++) {
            for (int h = 0; h < 2; h++) sum[t][h] = _mm256_add_ps(sum[t][h], part[t][h]);
        }
    }
    for (int t = 0; t < n; t++) {
        for (int h = 0; h < 2; h++) _mm256_storeu_ps(acc + M5_TILE_ROWS * (t0 + t) + 8 * h, sum[t][h]);
    }
}

INLINE void tile_float(m5_tile_kind kind, float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)
{
    int t = 0;
    for (; t + 4 <= x->n_tok; t += 4) tile_float_n(kind, 4, t, acc, s, tile, x);
    if (x->n_tok - t >= 2) {
        tile_float_n(kind, 2, t, acc, s, tile, x);
        t += 2;
    }
    if (x->n_tok > t) tile_float_n(kind, 1, t, acc, s, tile, x);
}

/* One function per kind: constants fold, so each has only its own unpacking. */
#define TILE_INT(kind, blocks)                                                                                                                       \
    static void tile_##kind(float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)                                             \
    {                                                                                                                                                \
        if (x->n_tok == 1)                                                                                                                           \
            tile_int(M5_TILE_##kind, blocks, 1, acc, s, tile, x);                                                                                    \
        else                                                                                                                                         \
            tile_int(M5_TILE_##kind, blocks, 0, acc, s, tile, x);                                                                                    \
    }
#define TILE_FLOAT(kind)                                                                                                                             \
    static void tile_##kind(float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)                                             \
    {                                                                                                                                                \
        tile_float(M5_TILE_##kind, acc, s, tile, x);                                                                                                 \
    }

TILE_FLOAT(F32)
TILE_FLOAT(F16)
TILE_FLOAT(BF16)
TILE_INT(Q4_0, 2)
TILE_INT(Q4_1, 2)
TILE_INT(Q5_0, 2)
TILE_INT(Q5_1, 2)
TILE_INT(Q8_0, 2)
TILE_INT(IQ4_NL, 2)
TILE_INT(MXFP4, 2)
TILE_INT(Q2_K, 8)
TILE_INT(Q3_K, 8)
TILE_INT(Q4_K, 8)
TILE_INT(Q5_K, 8)
TILE_INT(Q6_K, 8)
TILE_INT(IQ4_XS, 8)
TILE_INT(MLX4_F16, s->group_blk)
TILE_INT(MLX4_BF16, s->group_blk)
TILE_INT(MLX8_F16, s->group_blk)
TILE_INT(MLX8_BF16, s->group_blk)

void m5_kernels_avx2_tile(m5_kernels *k)
{
#define M5_TILE_SET(kind) k->tile[M5_TILE_##kind] = tile_##kind;
    M5_TILE_KINDS(M5_TILE_SET)
#undef M5_TILE_SET
}
