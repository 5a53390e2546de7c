/* SPDX-License-Identifier: Apache-2.0 */
/* Weight tiles: the layout in which products read weights, and the arithmetic of one product. Room: kernels/pack.c (layout), ref.c (meaning).
 *
 * A tile holds 16 output rows, so that vector lanes are rows: each lane accumulates its own row, no sum ever crosses lanes, and the order of
 * float operations of a row is the same for every vector width, every number of tokens and every thread. Along n_in a tile is a sequence
 * of groups, each a head (scales of the 16 rows) followed by 64-byte chunks. A chunk holds one 32-bit word of each of the 16 rows: four codes of
 * 8 bits, or two times four of 4 bits, for the same four columns of all rows:
 *
 *     tile    = group 0 | group 1 | ...                       group = head | chunk 0 | chunk 1 | ...
 *     chunk   = row 0: 4 bytes | row 1: 4 bytes | ... | row 15: 4 bytes
 *
 * Words are those of the file's own blocks wherever those keep four neighbouring columns in four bytes, so packing is a transposition and the
 * size is that of the file (to 3 %). "Block" below is 32 columns, "quad" q of a block its columns 4q .. 4q+3.
 *
 *   kind                 group   head                                   chunks
 *   Q4_0 IQ4_NL MXFP4    2 blk   d[2][16]                               4 a block: low nibbles quad q, high nibbles quad q + 4
 *   Q4_1                 2       d[2][16] m[2][16]                      as Q4_0
 *   Q5_0                 2       d[2][16]                               5 a block: 4 as Q4_0, then bit q of byte k = fifth bit of column 4q + k
 *   Q5_1                 2       d[2][16] m[2][16]                      as Q5_0
 *   Q8_0                 2       d[2][16]                               8 a block, code + 128
 *   Q4_K                 8       d[16] dmin[16] sc[8][16] mn[8][16]     8 a pair of blocks: low nibbles block 2i, high block 2i + 1
 *   Q5_K                 8       as Q4_K                                8 of fifth bits (bit b: block b), then as Q4_K
 *   Q6_K                 8       d[16] pad[16] sc[16][16]               per half (4 blocks): 8 times nibbles of blocks 0 and 2, then bit pairs;
 *                                                                        then 8 of nibbles of blocks 1 and 3
 *   Q2_K                 8       d[16] dmin[16] scmn[16][16]            per half: 8 of bit pairs (pair b: block b)
 *   Q3_K                 8       d[16] pad[16] sc[16][16]               8 of third bits (bit b: block b), then as Q2_K
 *   IQ4_XS               8       d[16] pad[16] sc[8][16]                4 a block, as Q4_0
 *   MLX4_* MLX8_*        g / 32  scale[16] bias[16]                     4 a block as Q4_0; 8 a block
 *   F32 F16              1       none                                   column by column, 16 values
 *   BF16                 1       none                                   a word = columns 2j, 2j + 1
 *
 * d, m, dmin are f16 (MXFP4: bf16, half of the shared scale, codes doubled to integers; MLX: as in the name); sc, mn one byte. Columns beyond n_in
 * and rows beyond n_out are zero. */
#ifndef M5_KERNELS_TILE_H
#define M5_KERNELS_TILE_H

#include "kernels/quant.h"

#define M5_TILE_KINDS(X) \
    X(F32) X(F16) X(BF16) \
    X(Q4_0) X(Q4_1) X(Q5_0) X(Q5_1) X(Q8_0) X(IQ4_NL) X(MXFP4) \
    X(Q2_K) X(Q3_K) X(Q4_K) X(Q5_K) X(Q6_K) X(IQ4_XS) \
    X(MLX4_F16) X(MLX4_BF16) X(MLX8_F16) X(MLX8_BF16)

typedef enum m5_tile_kind {
#define M5_TILE_ENUM(name) M5_TILE_##name,
    M5_TILE_KINDS(M5_TILE_ENUM)
#undef M5_TILE_ENUM
    M5_TILE_COUNT
} m5_tile_kind;

enum { M5_TILE_ROWS = 16, M5_TILE_TOK = 16, M5_TILE_BLOCK = 32, M5_CHUNK_BYTES = 64 };

typedef struct m5_tile_shape {
    m5_tile_kind kind;
    bool float_x;        /* the product takes f32 activations; otherwise int8 blocks */
    int group_blk;       /* blocks of 32 columns in a group */
    int head_bytes;      /* of one group */
    int group_bytes;     /* head and chunks */
    int64_t n_group;     /* groups in a tile */
    int64_t tile_bytes;
} m5_tile_shape;

/* False when m's type has no tile kind: its rows are unpacked to an F32 tile instead (m5_tile_shape_f32). */
bool m5_tile_shape_of(m5_tile_shape *s, const m5_matrix *m);
void m5_tile_shape_f32(m5_tile_shape *s, int64_t n_in);
const char *m5_tile_kind_name(m5_tile_kind kind);

/* Rows [row0, row0 + n_row) of m, n_row <= 16, as one tile of tile_bytes at dst. */
void m5_tile_pack(const m5_tile_shape *s, const m5_matrix *m, int64_t row0, int n_row, uint8_t *dst);
/* Row r of an F32 tile of n_in columns; the columns beyond and the missing rows are the caller's to clear. */
void m5_tile_put_row_f32(const float *row, int64_t n_in, int r, uint8_t *tile);
/* Row r of a tile of matrix m as f32, bit for bit what m5_matrix_row_f32 gives. */
void m5_tile_row_f32(const m5_tile_shape *s, const m5_matrix *m, const uint8_t *tile, int r, float *dst);

/* Activations of n_tok (1 .. 16) tokens, block by block: element (b, t) of an array stands at b * n_tok + t. One block of a token has
 *     d = max |x| / 127, q = x / d rounded to nearest even, dsum = d * sum q, nhalf = -sum of q over each half, nsum = nhalf[0] + nhalf[1].
 * Only the arrays that a kind needs are set: f for float kinds, the others for the rest. */
typedef struct m5_tile_x {
    int8_t *q;               /* [n_blk, n_tok, 32] */
    float *d, *dsum;         /* [n_blk, n_tok] */
    int32_t *nsum, *nhalf;   /* [n_blk, n_tok], [n_blk, n_tok, 2] */
    float *f;                /* [n_blk, n_tok, 32] */
    int n_tok;
} m5_tile_x;

/* acc[n_tok, 16] = the tile's 16 rows times the tokens. With w(b) = scale of block b and row, i = exact integer dot of codes and q:
 *     scale only     acc = fma(i, w * d, acc)                    w = d_file, or d_file * sc (exact in f32)
 *     with minimum   acc = fma(i, w * d, acc), then acc = fma(m, dsum, acc), m = m_file, bias or -(dmin * mn) (exact)
 *     Q6_K, Q3_K     i = sc0 * i0 + sc1 * i1 over the halves, w = d_file
 *     Q2_K           so too; then acc = fma(-(mn0 * sum0 + mn1 * sum1), dmin * d, acc)
 *     float kinds    p = w0 * x0, p = fma(w, x, p) over the block's other 31 columns, acc = acc + p
 * block after block. The integer parts are signed codes times q (offset types: after subtracting the offset). */
typedef void (*m5_tile_fn)(float *acc, const m5_tile_shape *s, const uint8_t *tile, const m5_tile_x *x);

#endif
