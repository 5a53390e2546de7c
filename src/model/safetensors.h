/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors container: the tensors of one file or of all shards of a folder, mapped and checked. Room: model/safetensors.c.
 * Knows layouts, not meanings. May touch: base, kernels/quant.h. Thread: one thread opens and closes; reads from any thread.
 *
 * Everything handed out is borrowed and valid until m5_st_close. Data may be unaligned for its element type: read it with memcpy or through
 * kernels/quant.h. Source: the safetensors format description (u64 header length, JSON header, one data block). */
#ifndef M5_MODEL_SAFETENSORS_H
#define M5_MODEL_SAFETENSORS_H

#include "base/err.h"
#include "base/str.h"
#include "base/task.h"
#include "kernels/quant.h"

typedef struct m5_st m5_st;

enum { M5_ST_MAX_DIMS = 8 };

typedef struct m5_st_tensor {
    const char *name;      /* NUL-terminated */
    m5_dtype type;         /* M5_DTYPE_COUNT: an element type that this build cannot read (F8_E4M3, BOOL, ...); report type_name when binding */
    const char *type_name; /* as spelled in the file, for example "BF16" */
    int n_dims;            /* 0..8; 0 = scalar */
    int64_t shape[M5_ST_MAX_DIMS]; /* row-major: shape[n_dims - 1] is the contiguous axis; unused ones are 1 */
    int64_t n_elem;
    const uint8_t *data;
    size_t n_bytes;
    int file;              /* index for m5_st_path and m5_st_map */
} m5_st_tensor;

/* Opens a *.safetensors file; or a folder: the shards named by model.safetensors.index.json, else model.safetensors, else the only
 * *.safetensors file in it. Shards must exist, lie in the folder itself, and hold the tensors that the index promises; a name may occur once.
 * Errors: M5_ERR_NOTFOUND (no such file, no weights in the folder), M5_ERR_IO, M5_ERR_FORMAT (names file and tensor), M5_ERR_LIMIT, M5_ERR_NOMEM; *out is
 * NULL then. */
int m5_st_open(m5_st **out, const char *path, m5_error *err);
/* The same for a single file held in memory, which must outlive the object. `name` is used in errors. */
int m5_st_open_mem(m5_st **out, const void *p, size_t n, const char *name, m5_error *err);
void m5_st_close(m5_st *s);

int m5_st_n_files(const m5_st *s);
const char *m5_st_path(const m5_st *s, int file);
const m5_map *m5_st_map(const m5_st *s, int file);
size_t m5_st_header_bytes(const m5_st *s, int file); /* length field and JSON header, for fingerprints */

size_t m5_st_n_tensors(const m5_st *s);
const m5_st_tensor *m5_st_tensor_at(const m5_st *s, size_t i); /* file by file, in the order of the header */
const m5_st_tensor *m5_st_find(const m5_st *s, const char *name); /* NULL when absent */
/* A text of the "__metadata__" object, first file that has the key; empty slice when absent. */
m5_slice m5_st_metadata(const m5_st *s, const char *key);

#endif
