/* SPDX-License-Identifier: Apache-2.0 */
/* Tile products for AVX2: half a chunk (8 rows x 4 columns) is one register. May touch: nothing.
 *
 * vpmaddubsw multiplies unsigned codes by signed activations and adds pairs into 16 bits. Codes of 4 bits stay exact in 16 bits over a whole block
 * (8 quads x 2 x 15 x 127 = 30 480), so a block costs 8 multiplies, 8 adds and one widening; 5 bits over 4 quads (31 496), 6 bits over 2 (32 004).
 * Codes of 8 bits and table values are signed: |w| times the activation with w's sign, widened at once (2 x 128 x 127 = 32 512).
 *
 * What the processor runs out of is room: four vector operations and six instructions a cycle. So up to five tokens go through a block together, with
 * both row halves of each in registers: a broadcast of activations serves two products, a register of codes two to five, and nothing else moves. */
#include "kernels/kernels.h"
#include "kernels/tile_read.h"

#include <immintrin.h>

#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif
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

/* Groups of 8 blocks (neighbours in M5_TILE_KINDS), whose shifts depend on the block: each place that unpacks them has a case for each block, which
 * makes the shifts constants. */
INLINE bool by_8(m5_tile_kind kind)
{
    return kind >= M5_TILE_Q2_K && kind <= M5_TILE_IQ4_XS;
}

/* Codes of quad q of one block and eight rows: unsigned, or signed for is_signed kinds. */
INLINE __m256i unpack_quad(m5_tile_kind kind, const uint8_t *c, int blk, int q)
{
    const __m256i low = _mm256_set1_epi8(15), two = _mm256_set1_epi8(3);
    const int half = blk / 4, pos = blk % 4, p = q / 4;
    __m256i w;
    switch (kind) {
    case M5_TILE_Q8_0:
    case M5_TILE_MLX8_F16:
    case M5_TILE_MLX8_BF16: return _mm256_xor_si256(chunk(c, blk * 8 + q), _mm256_set1_epi8(-128));
    case M5_TILE_Q5_0:
    case M5_TILE_Q5_1:
        return _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(chunk(c, blk * 5 + q % 4), 4 * p), low),
                               _mm256_and_si256(bits_up(chunk(c, blk * 5 + 4), 4 - q), _mm256_set1_epi8(16)));
    case M5_TILE_Q4_K: return _mm256_and_si256(_mm256_srli_epi32(chunk(c, blk / 2 * 8 + q), blk % 2 * 4), low);
    case M5_TILE_Q5_K:
        return _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(chunk(c, 8 + blk / 2 * 8 + q), blk % 2 * 4), low),
                               _mm256_and_si256(bits_up(chunk(c, q), 4 - blk), _mm256_set1_epi8(16)));
    case M5_TILE_Q6_K:
        return _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(chunk(c, half * 24 + (pos % 2 ? 16 + q : 2 * q)), pos / 2 * 4), low),
                               _mm256_and_si256(bits_up(chunk(c, half * 24 + 2 * q + 1), 4 - 2 * pos), _mm256_set1_epi8(48)));
    case M5_TILE_Q2_K: return _mm256_and_si256(_mm256_srli_epi32(chunk(c, half * 8 + q), 2 * pos), two);
    case M5_TILE_Q3_K:
        return _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(chunk(c, 8 + half * 8 + q), 2 * pos), two),
                               _mm256_and_si256(bits_up(chunk(c, q), 2 - blk), _mm256_set1_epi8(4)));
    default: w = _mm256_and_si256(_mm256_srli_epi32(chunk(c, blk * 4 + q % 4), 4 * p), low); break;
    }
    if (kind == M5_TILE_IQ4_NL || kind == M5_TILE_IQ4_XS || kind == M5_TILE_MXFP4) {
        const int8_t *values = kind == M5_TILE_MXFP4 ? m5_mxfp4_values : m5_iq4_values;
        const __m256i table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)values));
        w = _mm256_shuffle_epi8(kind == M5_TILE_MXFP4 ? _mm256_add_epi8(table, _mm256_set1_epi8(16)) : table, w);
    }
    return w;
}

/* The i-th quad to take: where one chunk holds quads q and q + 4 they follow each other. */
INLINE int quad_at(m5_tile_kind kind, int i)
{
    switch (kind) {
    case M5_TILE_Q4_0:
    case M5_TILE_Q4_1:
    case M5_TILE_Q5_0:
    case M5_TILE_Q5_1:
    case M5_TILE_IQ4_NL:
    case M5_TILE_IQ4_XS:
    case M5_TILE_MXFP4:
    case M5_TILE_MLX4_F16:
    case M5_TILE_MLX4_BF16: return i % 2 * 4 + i / 2;
    default: return i;
    }
}

/* All codes of a block. */
INLINE void unpack_block(m5_tile_kind kind, const uint8_t *c, int blk, __m256i u[8][2])
{
#define UNPACK(b)                                                                                                                                    \
    UNROLL for (int i = 0; i < 8; i++)                                                                                                               \
    {                                                                                                                                                \
        u[i][0] = unpack_quad(kind, c, b, quad_at(kind, i));                                                                                         \
        u[i][1] = unpack_quad(kind, c + 32, b, quad_at(kind, i));                                                                                    \
    }
    if (!by_8(kind)) {
        UNPACK(blk)
        return;
    }
    switch (blk) {
    case 0: UNPACK(0) break;
    case 1: UNPACK(1) break;
    case 2: UNPACK(2) break;
    case 3: UNPACK(3) break;
    case 4: UNPACK(4) break;
    case 5: UNPACK(5) break;
    case 6: UNPACK(6) break;
    default: UNPACK(7) break;
    }
#undef UNPACK
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
    __m256i sc[2];   /* the scale in both 16-bit halves of a lane, for vpmaddwd */
    __m256i off, mn; /* in the halves of a lane those of the halves of a block: scales times the offset of the codes; minimums */
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
    s.sc[0] = s.sc[1] = s.mn = s.off = _mm256_setzero_si256();
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
        s.off = _mm256_slli_epi16(_mm256_blend_epi16(s.sc[0], s.sc[1], 0xaa), offset_bits(kind));
        break;
    case M5_TILE_Q2_K:
        s.d = halves(head);
        s.dmin = halves(head + 32);
        for (int i = 0; i < 2; i++) {
            const __m256i v = bytes_u(pair + 16 * i), min = _mm256_srli_epi32(v, 4);
            s.sc[i] = twice(_mm256_and_si256(v, _mm256_set1_epi32(15)));
            s.mn = i ? _mm256_or_si256(s.mn, _mm256_slli_epi32(min, 16)) : min;
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

/* A block's integer dot products, added to the sums of sixteen rows. */
INLINE void add_block(m5_tile_kind kind, __m256 r[2], __m256i dot[2], const scales s[2], const m5_tile_x *x, int64_t at)
{
    const int bits = offset_bits(kind);
    const __m256 d = _mm256_set1_ps(x->d[at]), dsum = m5_tile_has_min(kind) ? _mm256_set1_ps(x->dsum[at]) : d;
    __m256i off = _mm256_setzero_si256();
    if (is_halves(kind)) {
        /* Both sums of a token, 16 bits each, in one lane: the low half of one word and of the next. */
        const uint8_t *n = (const uint8_t *)&x->nhalf[2 * at];
        off = _mm256_blend_epi16(bcast_i32(n), bcast_i32(n + 2), 0xaa);
    } else if (bits >= 0) {
        off = _mm256_slli_epi32(bcast_i32(&x->nsum[at]), bits);
    }
    UNROLL
    for (int h = 0; h < 2; h++) {
        if (is_halves(kind) && bits >= 0)
            dot[h] = _mm256_add_epi32(dot[h], _mm256_madd_epi16(off, s[h].off));
        else if (kind == M5_TILE_MLX8_F16 || kind == M5_TILE_MLX8_BF16)
            dot[h] = _mm256_sub_epi32(dot[h], off);
        else if (bits >= 0)
            dot[h] = _mm256_add_epi32(dot[h], off);
        r[h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[h]), _mm256_mul_ps(s[h].d, d), r[h]);
        if (m5_tile_has_min(kind)) r[h] = _mm256_fmadd_ps(s[h].m, dsum, r[h]);
        if (kind == M5_TILE_Q2_K) r[h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(_mm256_madd_epi16(off, s[h].mn)), _mm256_mul_ps(s[h].dmin, d), r[h]);
    }
}

/* sum += codes times four activations, for both row halves of one token. In assembly, because a compiler that sees the additions reorders them into
 * trees, which hold all products of a block at once, in more registers than there are. */
INLINE void mul_add(__m256i sum[2], const __m256i w[2], const int8_t *x)
{
    __m256i b, t;
    __asm__("vpbroadcastd %6, %2\n\t"
            "vpmaddubsw %2, %4, %3\n\t"
            "vpmaddubsw %2, %5, %2\n\t"
            "vpaddw %3, %0, %0\n\t"
            "vpaddw %2, %1, %1"
            : "+x"(sum[0]), "+x"(sum[1]), "=&x"(b), "=&x"(t)
            : "x"(w[0]), "x"(w[1]), "m"(*(const int8_t(*)[4])x));
}
/* The same for signed codes w = +-a: 32-bit sums. */
INLINE void mul_add_signed(__m256i sum[2], const __m256i w[2], const __m256i a[2], const int8_t *x)
{
    const __m256i one = _mm256_set1_epi16(1);
    __m256i b, t;
    __asm__("vpbroadcastd %6, %2\n\t"
            "vpsignb %4, %2, %3\n\t"
            "vpsignb %5, %2, %2\n\t"
            "vpmaddubsw %3, %7, %3\n\t"
            "vpmaddubsw %2, %8, %2\n\t"
            "vpmaddwd %9, %3, %3\n\t"
            "vpmaddwd %9, %2, %2\n\t"
            "vpaddd %3, %0, %0\n\t"
            "vpaddd %2, %1, %1"
            : "+x"(sum[0]), "+x"(sum[1]), "=&x"(b), "=&x"(t)
            : "x"(w[0]), "x"(w[1]), "m"(*(const int8_t(*)[4])x), "x"(a[0]), "x"(a[1]), "x"(one));
}

/* How many tokens together: more sums than registers would be put down and picked up again. Of five tokens, kinds with 4 here take all at once. */
INLINE int group_of(m5_tile_kind kind)
{
    return !is_signed(kind) && quads_in_16(kind) == 2 ? 3 : 4;
}

/* One block of n tokens (a constant, 1 .. 5) from token block `at` on, added to acc. Codes come from u (in the order of quad_at), or straight from
 * the tile's chunks at c where no other group wants them. one_sum: of a single token, kept in registers by the caller; then acc is not used. */
INLINE void add_group(m5_tile_kind kind, int n, __m256 *one_sum, float *acc, const uint8_t *c, int blk, const __m256i (*u)[2], const scales sc[2],
                      const m5_tile_x *x, int64_t at)
{
    const __m256i one = _mm256_set1_epi16(1);
    const int per_16 = quads_in_16(kind);
    __m256i sum[5][2], wide[5][2];
    const int8_t *xq = x->q + at * M5_TILE_BLOCK;
    UNROLL
    for (int i = 0; i < 8; i++) {
        const int q = quad_at(kind, i);
        __m256i w[2], a[2];
        UNROLL
        for (int h = 0; h < 2; h++) {
            w[h] = u ? u[i][h] : unpack_quad(kind, c + 32 * h, blk, q);
            a[h] = is_signed(kind) ? _mm256_abs_epi8(w[h]) : w[h];
        }
        UNROLL
        for (int t = 0; t < n; t++) {
            const int8_t *p = xq + t * M5_TILE_BLOCK + 4 * q;
            if (is_signed(kind)) {
                if (i == 0) wide[t][0] = wide[t][1] = _mm256_setzero_si256();
                mul_add_signed(wide[t], w, a, p);
                continue;
            }
            if (i % per_16 == 0) {
                const __m256i b = bcast_i32(p);
                sum[t][0] = _mm256_maddubs_epi16(w[0], b);
                sum[t][1] = _mm256_maddubs_epi16(w[1], b);
            } else {
                mul_add(sum[t], w, p);
            }
            UNROLL
            for (int h = 0; h < 2; h++) {
                if ((i + 1) % per_16 != 0) continue;
                const __m256i m = _mm256_madd_epi16(sum[t][h], is_halves(kind) ? sc[h].sc[i / 4] : one);
                wide[t][h] = i < per_16 ? m : _mm256_add_epi32(wide[t][h], m);
            }
        }
    }
    UNROLL
    for (int t = 0; t < n; t++) {
        if (one_sum) {
            add_block(kind, one_sum, wide[t], sc, x, at);
            continue;
        }
        float *a = acc + M5_TILE_ROWS * t;
        __m256 r[2] = {_mm256_loadu_ps(a), _mm256_loadu_ps(a + 8)};
        add_block(kind, r, wide[t], sc, x, at + t);
        _mm256_storeu_ps(a, r[0]);
        _mm256_storeu_ps(a + 8, r[1]);
    }
}

/* Up to fifteen tokens read each tile once and from memory: sixteen are part of a longer batch, whose next set wants the tile in the second-level
 * cache. The hardware's own prefetch does not run far enough ahead of that much arithmetic, and what it brings pushes the activations out of the
 * first level; a non-temporal prefetch confines the weights to a part of it. The lines are asked for evenly, a block's share with each block: in
 * one burst for a group of 3 KiB they overflow the list of misses. Distance and hint measured with checkkern --bench (docs/SPEED.md). */
enum { AHEAD_BYTES = 4096 };

INLINE void prefetch_at(const uint8_t *p, int n)
{
    for (int i = 0; i < n; i += M5_CHUNK_BYTES) _mm_prefetch((const char *)p + AHEAD_BYTES + i, _MM_HINT_NTA);
}

/* The share of a block in the lines of a group, in bytes. */
INLINE int share_of(const m5_tile_shape *s, int group_blk)
{
    return (s->group_bytes / group_blk + M5_CHUNK_BYTES - 1) / M5_CHUNK_BYTES * M5_CHUNK_BYTES;
}

INLINE void add_one(m5_tile_kind kind, __m256 sum[2], int head_bytes, int share, const uint8_t *tile, int blk, const m5_tile_x *x, int64_t at)
{
    prefetch_at(tile + blk * share, share);
    const scales sc[2] = {load_scales(kind, tile, 0, blk), load_scales(kind, tile, 1, blk)};
    add_group(kind, 1, sum, NULL, tile + head_bytes, blk, NULL, sc, x, at);
}

/* One token. */
INLINE void tile_one(m5_tile_kind kind, int group_blk, float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *xp)
{
    const m5_tile_x copy = *xp, *x = &copy;
    const int head_bytes = s->head_bytes, group_bytes = s->group_bytes, share = share_of(s, group_blk);
    __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (int64_t g = 0, at = 0; g < s->n_group; g++, tile += group_bytes, at += group_blk) {
        if (!by_8(kind)) {
            for (int blk = 0; blk < group_blk; blk++) add_one(kind, sum, head_bytes, share, tile, blk, x, at + blk);
            continue;
        }
        UNROLL
        for (int blk = 0; blk < 8; blk++) add_one(kind, sum, head_bytes, share, tile, blk, x, at + blk);
    }
    _mm256_storeu_ps(acc, sum[0]);
    _mm256_storeu_ps(acc + 8, sum[1]);
}

/* Two tokens and more: sums in memory, which the first-level cache holds. few: the number of tokens where it is a constant, one group. */
INLINE void tile_some(m5_tile_kind kind, int group_blk, int few, float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *xp)
{
    const m5_tile_x copy = *xp, *x = &copy; /* the stores to acc cannot change a local copy: its pointers stay in registers */
    const int n = few ? few : x->n_tok;
    const bool once = n < M5_TILE_TOK;
    const int head_bytes = s->head_bytes, group_bytes = s->group_bytes, share = share_of(s, group_blk);
    for (int i = 0; i < 2 * n; i++) _mm256_storeu_ps(acc + 8 * i, _mm256_setzero_ps());
    int64_t at = 0;
    for (int64_t g = 0; g < s->n_group; g++, tile += group_bytes) {
        for (int blk = 0; blk < group_blk; blk++, at += n) {
            if (once) prefetch_at(tile + blk * share, share);
            const scales sc[2] = {load_scales(kind, tile, 0, blk), load_scales(kind, tile, 1, blk)};
            const uint8_t *c = tile + head_bytes;
            __asm__("" : : : "memory"); /* the sums are read where the last block put them: the compiler would keep them in a second place too */
            if (few && !by_8(kind)) {
                add_group(kind, few, NULL, acc, c, blk, NULL, sc, x, at);
                continue;
            }
            /* Signed codes are unpacked again for each group: as fast, and their magnitudes need not be kept. */
            __m256i codes[8][2];
            const __m256i(*u)[2] = NULL;
            if (!is_signed(kind) || by_8(kind)) {
                unpack_block(kind, c, blk, codes);
                u = (const __m256i(*)[2])codes;
            }
            if (few) {
                add_group(kind, few, NULL, acc, c, blk, u, sc, x, at);
                continue;
            }
            int t = 0;
            if (group_of(kind) == 3) {
                for (; n - t == 3 || n - t > 4; t += 3) add_group(kind, 3, NULL, acc + M5_TILE_ROWS * t, c, blk, u, sc, x, at + t);
            } else {
                for (; n - t >= 4; t += 4) add_group(kind, 4, NULL, acc + M5_TILE_ROWS * t, c, blk, u, sc, x, at + t);
            }
            for (; n - t >= 2; t += 2) add_group(kind, 2, NULL, acc + M5_TILE_ROWS * t, c, blk, u, sc, x, at + t);
            if (t < n) add_group(kind, 1, NULL, acc + M5_TILE_ROWS * t, c, blk, u, sc, x, at + t);
        }
    }
}

INLINE void tile_int(m5_tile_kind kind, int group_blk, float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)
{
    const int n = x->n_tok;
    if (n == 1)
        tile_one(kind, group_blk, acc, s, tile, x);
    else if (n == 2 && !by_8(kind))
        tile_some(kind, group_blk, 2, acc, s, tile, x);
    else if (n == 3 && !by_8(kind))
        tile_some(kind, group_blk, 3, acc, s, tile, x);
    else if (n == 4 && !by_8(kind))
        tile_some(kind, group_blk, 4, acc, s, tile, x);
    else if (n == 5 && group_of(kind) == 4)
        tile_some(kind, group_blk, 5, acc, s, tile, x);
    else
        tile_some(kind, group_blk, 0, acc, s, tile, x);
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

/* Tokens [t0, t0 + n) with n a constant, the tile from memory if once: two partial sums a token in registers. Both row halves go together: two
 * chains of additions instead of one for a single token, and one broadcast for two products. */
INLINE void tile_float_n(m5_tile_kind kind, int n, int t0, bool once, float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)
{
    __m256 sum[4][2];
    for (int t = 0; t < n; t++) sum[t][0] = sum[t][1] = _mm256_setzero_ps();
    for (int64_t b = 0; b < s->n_group; b++, tile += s->group_bytes) {
        const float *f = x->f + (b * x->n_tok + t0) * M5_TILE_BLOCK;
        const int pair_bytes = s->group_bytes / (M5_TILE_BLOCK / 2);
        __m256 part[4][2], w[2][2];
        if (once) prefetch_at(tile, pair_bytes);
        for (int h = 0; h < 2; h++) {
            column(kind, tile, h, 0, w[h]);
            for (int t = 0; t < n; t++) part[t][h] = _mm256_mul_ps(w[h][0], _mm256_set1_ps(f[t * M5_TILE_BLOCK]));
            for (int t = 0; t < n; t++) part[t][h] = _mm256_fmadd_ps(w[h][1], _mm256_set1_ps(f[t * M5_TILE_BLOCK + 1]), part[t][h]);
        }
        for (int k = 2; k < M5_TILE_BLOCK; k += 2) {
            if (once) prefetch_at(tile + k / 2 * pair_bytes, pair_bytes);
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
    bool once = x->n_tok < M5_TILE_TOK && kind != M5_TILE_F32; /* so little arithmetic for a byte needs no help */
    for (; t + 4 <= x->n_tok; t += 4, once = false) tile_float_n(kind, 4, t, once, acc, s, tile, x);
    if (x->n_tok - t >= 2) {
        tile_float_n(kind, 2, t, once, acc, s, tile, x);
        t += 2, once = false;
    }
    if (x->n_tok > t) tile_float_n(kind, 1, t, once, acc, s, tile, x);
}

/* One function per kind: constants fold, so each has only its own unpacking. */
#define TILE_INT(kind, blocks)                                                                                                                       \
    static void tile_##kind(float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x)                                             \
    {                                                                                                                                                \
        tile_int(M5_TILE_##kind, blocks, acc, s, tile, x);                                                                                           \
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
