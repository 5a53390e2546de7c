/* SPDX-License-Identifier: Apache-2.0 */
/* Storage formats of weights: sizes, exact unpacking, and the matrix view that binds a file's bytes to a shape.
 * May touch: nothing (not even base). Source of the block layouts: ggml's quantised block definitions, MLX affine groups; docs/FORMATS.md. */
#ifndef M5_KERNELS_QUANT_H
#define M5_KERNELS_QUANT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum m5_dtype {
    M5_F32, M5_F16, M5_BF16,
    M5_Q4_0, M5_Q4_1, M5_Q5_0, M5_Q5_1, M5_Q8_0,
    M5_Q2_K, M5_Q3_K, M5_Q4_K, M5_Q5_K, M5_Q6_K,
    M5_IQ4_NL, M5_IQ4_XS, M5_MXFP4,
    M5_MLX2, M5_MLX3, M5_MLX4, M5_MLX5, M5_MLX6, M5_MLX8, /* affine groups: u32 stream + scales + biases beside it */
    M5_U8, M5_I8, M5_I16, M5_I32, M5_I64, M5_U32, M5_F64,    /* plain data, never a matrix to multiply with */
    M5_DTYPE_COUNT
} m5_dtype;

typedef struct m5_dtype_info {
    const char *name;   /* "Q4_0" */
    int block;          /* elements per block along the contiguous axis (1 for plain types; MLX: 32, the bytes of 32 codes) */
    int block_bytes;    /* bytes of one block, without MLX scales and biases */
    bool matrix;        /* can be the weight of a matrix product */
} m5_dtype_info;
const m5_dtype_info *m5_dtype_get(m5_dtype t);

/* A weight matrix W[n_out, n_in] as stored. Rows are contiguous blocks along n_in, row_bytes apart. Plain data, borrowed from the mapping
 * or from the model's own memory. A view of some rows is the same struct with moved pointers. */
typedef struct m5_matrix {
    m5_dtype type;
    int64_t n_out, n_in;
    const uint8_t *data;      /* NULL: absent */
    int64_t row_bytes;
    /* MLX only: [n_out, n_in / group] each, of scale_type (F32, F16 or BF16) */
    const uint8_t *scales, *biases;
    int group;
    m5_dtype scale_type;
    /* Filled by the backend when it repacks the matrix; opaque here. When set, `data` may no longer be mapped in. */
    void *packed;
} m5_matrix;

static inline bool m5_matrix_present(const m5_matrix *m) { return m->data != NULL || m->packed != NULL; }

/* Unpacks n elements (a multiple of the block) of one plain block stream to f32, exactly as the format defines. Not for MLX types. */
void m5_unpack_f32(m5_dtype t, const void *src, float *dst, int64_t n);
/* Unpacks row `row` of m (any matrix type, also MLX) from m->data: dst[n_in]. */
void m5_matrix_row_f32(const m5_matrix *m, int64_t row, float *dst);
/* Rows [first, first + n) of m. */
m5_matrix m5_matrix_rows(const m5_matrix *m, int64_t first, int64_t n);

float m5_f16_to_f32(uint16_t h);
uint16_t m5_f32_to_f16(float f); /* round to nearest even */
static inline float m5_bf16_to_f32(uint16_t h)
{
    union { uint32_t u; float f; } v = {(uint32_t)h << 16};
    return v.f;
}
uint16_t m5_f32_to_bf16(float f); /* round to nearest even, NaN stays NaN */

#endif
