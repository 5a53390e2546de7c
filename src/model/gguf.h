/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF container: metadata keys and tensors of one file or of all parts of a split file, mapped and checked. Room: model/gguf.c.
 * Knows layouts, not meanings: which key or tensor a model needs is decided by config and weights.
 * May touch: base, kernels/quant.h. Thread: one thread opens and closes; reads from any thread.
 *
 * Everything handed out is borrowed from the mapping or from the object and valid until m5_gguf_close. Numbers in the file may be unaligned:
 * read arrays through the calls below, never through a cast. Source: the GGUF specification, version 2 and 3, little endian. */
#ifndef M5_MODEL_GGUF_H
#define M5_MODEL_GGUF_H

#include "base/err.h"
#include "base/str.h"
#include "base/task.h"
#include "kernels/quant.h"

typedef struct m5_gguf m5_gguf;

typedef enum m5_gguf_type {
    M5_GGUF_U8, M5_GGUF_I8, M5_GGUF_U16, M5_GGUF_I16, M5_GGUF_U32, M5_GGUF_I32, M5_GGUF_F32, M5_GGUF_BOOL, M5_GGUF_STR, M5_GGUF_ARRAY,
    M5_GGUF_U64, M5_GGUF_I64, M5_GGUF_F64, M5_GGUF_TYPE_COUNT
} m5_gguf_type;

typedef struct m5_gguf_kv {
    const char *key;      /* NUL-terminated */
    m5_gguf_type type;
    m5_gguf_type elem;    /* type of the elements when type is M5_GGUF_ARRAY, else type */
    size_t n;             /* elements of an array, else 1 */
    const uint8_t *value; /* raw bytes of the scalar or of the first element; a string starts with its u64 length */
    const uint8_t *const *str_at; /* array of strings: [n] start of each element, else NULL */
} m5_gguf_kv;

enum { M5_GGUF_MAX_DIMS = 4 };

typedef struct m5_gguf_tensor {
    const char *name;       /* NUL-terminated */
    m5_dtype type;          /* M5_DTYPE_COUNT: a ggml type that this build cannot read; report it with m5_gguf_type_name when binding */
    uint32_t ggml_type;     /* the id in the file */
    int n_dims;             /* 0..4 */
    int64_t dims[M5_GGUF_MAX_DIMS]; /* dims[0] is the contiguous axis (columns); unused ones are 1 */
    const uint8_t *data;
    size_t n_bytes;         /* 0 when the type is unknown */
    int file;               /* index for m5_gguf_path and m5_gguf_map */
} m5_gguf_tensor;

/* Opens a file, or all parts of a split given any one of them ("<name>-00002-of-00004.gguf"); the parts must be there and agree on count
 * and tensors. Metadata are those of the first part. Errors: M5_ERR_NOTFOUND, M5_ERR_IO, M5_ERR_FORMAT (names file and key or
 * tensor), M5_ERR_UNSUPPORTED (version, byte order), M5_ERR_LIMIT, M5_ERR_NOMEM; *out is NULL then. */
int m5_gguf_open(m5_gguf **out, const char *path, m5_error *err);
/* The same for a single file held in memory, which must outlive the object. `name` is used in errors. */
int m5_gguf_open_mem(m5_gguf **out, const void *p, size_t n, const char *name, m5_error *err);
void m5_gguf_close(m5_gguf *g);

int m5_gguf_n_files(const m5_gguf *g);
const char *m5_gguf_path(const m5_gguf *g, int file);
const m5_map *m5_gguf_map(const m5_gguf *g, int file);
/* Bytes of the file before its tensor data: everything that describes the model, for fingerprints. */
size_t m5_gguf_header_bytes(const m5_gguf *g, int file);

/* Metadata. A getter returns false, and leaves *out alone, when the key is absent or its value is of another kind or does not fit:
 * integers of any width convert to u64 and i64 where the value fits, any number converts to f64, bool only to bool. */
size_t m5_gguf_n_kv(const m5_gguf *g);
const m5_gguf_kv *m5_gguf_kv_at(const m5_gguf *g, size_t i);
const m5_gguf_kv *m5_gguf_find_kv(const m5_gguf *g, const char *key); /* NULL when absent */
bool m5_gguf_u64(const m5_gguf *g, const char *key, uint64_t *out);
bool m5_gguf_i64(const m5_gguf *g, const char *key, int64_t *out);
bool m5_gguf_f64(const m5_gguf *g, const char *key, double *out);
bool m5_gguf_bool(const m5_gguf *g, const char *key, bool *out);
bool m5_gguf_str(const m5_gguf *g, const char *key, m5_slice *out); /* may hold any bytes, also NUL */

/* Elements of an array key; the same rules. m5_gguf_array gives NULL when absent or not an array. Constant time, nothing is copied. */
const m5_gguf_kv *m5_gguf_array(const m5_gguf *g, const char *key);
bool m5_gguf_at_i64(const m5_gguf_kv *kv, size_t i, int64_t *out);
bool m5_gguf_at_f64(const m5_gguf_kv *kv, size_t i, double *out);
bool m5_gguf_at_bool(const m5_gguf_kv *kv, size_t i, bool *out);
bool m5_gguf_at_str(const m5_gguf_kv *kv, size_t i, m5_slice *out);

/* Tensors of all parts, in file order. */
size_t m5_gguf_n_tensors(const m5_gguf *g);
const m5_gguf_tensor *m5_gguf_tensor_at(const m5_gguf *g, size_t i);
const m5_gguf_tensor *m5_gguf_find(const m5_gguf *g, const char *name); /* NULL when absent */
/* "Q4_K", or "type 16 (IQ2_XXS)" and "type 99" for what cannot be read; buf of at least 32 bytes is used for the latter. */
const char *m5_gguf_type_name(uint32_t ggml_type, char *buf, size_t cap);

#endif
