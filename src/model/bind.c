/* SPDX-License-Identifier: Apache-2.0 */
/* Tensor look-up over both containers, and the primitives: checked matrix views (plain, GGUF blocks, MLX groups) and f32 vectors. Room: model/bind.h.
 * Not here: which tensors a layer needs (bind_layer.c). */
#include "model/bind.h"

#include "base/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- store ---- */

size_t m5_store_n_tensors(const struct m5_weights_store *st)
{
    return st->gguf ? m5_gguf_n_tensors(st->gguf) : m5_st_n_tensors(st->st);
}

const char *m5_store_path(const struct m5_weights_store *st, int file)
{
    return st->gguf ? m5_gguf_path(st->gguf, file) : m5_st_path(st->st, file);
}

static void from_gguf(const m5_gguf_tensor *g, m5_tensor *t)
{
    memset(t, 0, sizeof *t);
    t->name = g->name;
    t->type = g->type;
    char buf[40];
    snprintf(t->type_name, sizeof t->type_name, "%s", m5_gguf_type_name(g->ggml_type, buf, sizeof buf));
    t->n_dims = g->n_dims;
    for (int i = 0; i < g->n_dims; i++) t->shape[i] = g->dims[g->n_dims - 1 - i];
    t->data = g->data;
    t->n_bytes = g->n_bytes;
    t->file = g->file;
    t->entry = g;
}

static void from_st(const m5_st_tensor *s, m5_tensor *t)
{
    memset(t, 0, sizeof *t);
    t->name = s->name;
    t->type = s->type;
    snprintf(t->type_name, sizeof t->type_name, "%s", s->type_name);
    t->n_dims = s->n_dims;
    memcpy(t->shape, s->shape, sizeof s->shape);
    t->data = s->data;
    t->n_bytes = s->n_bytes;
    t->file = s->file;
    t->entry = s;
}

void m5_store_tensor_at(const struct m5_weights_store *st, size_t i, m5_tensor *out)
{
    if (st->gguf)
        from_gguf(m5_gguf_tensor_at(st->gguf, i), out);
    else
        from_st(m5_st_tensor_at(st->st, i), out);
}

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t) * (const void *const *)a, y = (uintptr_t) * (const void *const *)b;
    return (x > y) - (x < y);
}

bool m5_store_is_used(const struct m5_weights_store *st, const void *entry)
{
    return st->n_used && bsearch(&entry, st->used, st->n_used, sizeof *st->used, by_address) != NULL;
}

/* Room for one more pointer in a growing list. */
static bool grow(void ***list, size_t n, size_t *cap)
{
    if (n < *cap) return true;
    size_t want = *cap ? 2 * *cap : 256;
    void **p = m5_realloc(M5_MEM_WEIGHTS, *list, want * sizeof *p);
    if (!p) return false;
    *list = p;
    *cap = want;
    return true;
}

void *m5_bind_alloc(m5_binder *b, size_t n, size_t size)
{
    struct m5_weights_store *st = b->store;
    void *p = NULL;
    if (grow(&st->own, st->n_own, &st->cap_own)) p = m5_calloc(M5_MEM_WEIGHTS, n, size);
    if (p)
        st->own[st->n_own++] = p;
    else
        m5_error_set(b->err, M5_ERR_NOMEM, "no memory for %zu converted weights", n);
    return p;
}

/* ---- look-up ---- */

static bool find_one(m5_binder *b, const char *name, m5_tensor *t)
{
    if (b->store->gguf) {
        const m5_gguf_tensor *g = m5_gguf_find(b->store->gguf, name);
        if (g) from_gguf(g, t);
        return g != NULL;
    }
    const m5_st_tensor *s = m5_st_find(b->store->st, name);
    if (s) from_st(s, t);
    return s != NULL;
}

bool m5_bind_find(m5_binder *b, const char *prefix, const char *names, char full[M5_BIND_NAME_BYTES], m5_tensor *t)
{
    char first[M5_BIND_NAME_BYTES] = "";
    while (*names) {
        size_t n = strcspn(names, "|");
        snprintf(full, M5_BIND_NAME_BYTES, "%s%.*s", prefix, (int)n, names);
        if (find_one(b, full, t)) return true;
        if (!first[0]) memcpy(first, full, M5_BIND_NAME_BYTES);
        names += n + (names[n] == '|');
    }
    memcpy(full, first, M5_BIND_NAME_BYTES);
    return false;
}

bool m5_bind_exists(m5_binder *b, const char *prefix, const char *names)
{
    char full[M5_BIND_NAME_BYTES];
    m5_tensor t;
    return m5_bind_find(b, prefix, names, full, &t);
}

/* Leaves of a list that could not grow are only missing in the listing of unbound tensors. */
void m5_bind_mark(m5_binder *b, const m5_tensor *t)
{
    struct m5_weights_store *st = b->store;
    void **list = (void **)(uintptr_t)st->used;
    if (!grow(&list, st->n_used, &st->cap_used)) return;
    st->used = (const void **)list;
    st->used[st->n_used++] = t->entry;
}

static int missing(m5_binder *b, const char *full)
{
    return m5_error_set(b->err, M5_ERR_FORMAT, "%s: tensor %s is missing", m5_store_path(b->store, 0), full);
}

static int wrong_shape(m5_binder *b, const m5_tensor *t, const char *expected)
{
    char got[128] = "[";
    for (int i = 0; i < t->n_dims; i++) {
        size_t n = strlen(got);
        snprintf(got + n, sizeof got - n, "%s%" PRId64, i ? ", " : "", t->shape[i]);
    }
    return m5_error_set(b->err, M5_ERR_FORMAT, "%s: tensor %s has shape %s], expected %s", m5_store_path(b->store, t->file), t->name, got, expected);
}

static int wrong_type(m5_binder *b, const m5_tensor *t, const char *what)
{
    return m5_error_set(b->err, M5_ERR_UNSUPPORTED, "%s: tensor %s is stored as %s, which is not supported for a %s",
                        m5_store_path(b->store, t->file), t->name, t->type_name, what);
}

/* [n_slice, rows, cols] with leading ones dropped on both sides, so that [1, H] and [H] are the same. */
static bool shape_is(const m5_tensor *t, int64_t n_slice, int64_t rows, int64_t cols)
{
    const int64_t want[3] = {n_slice, rows, cols};
    int i = 0, k = 0;
    while (i < t->n_dims - 1 && t->shape[i] == 1) i++;
    while (k < 2 && want[k] == 1) k++;
    if (t->n_dims - i != 3 - k) return false;
    for (; k < 3; k++, i++) {
        if (t->shape[i] != want[k]) return false;
    }
    return true;
}

/* ---- matrices ---- */

static m5_dtype mlx_type(int64_t bits)
{
    switch (bits) {
    case 2: return M5_MLX2;
    case 3: return M5_MLX3;
    case 4: return M5_MLX4;
    case 5: return M5_MLX5;
    case 6: return M5_MLX6;
    case 8: return M5_MLX8;
    default: return M5_DTYPE_COUNT;
    }
}

/* What config.json declares for a module: its own entry, else the general one. A declaration is only checked; the shapes decide. */
static int check_declared(m5_binder *b, const m5_tensor *t, const char *module, int64_t bits, int64_t group)
{
    const m5_json *own = b->quant ? m5_json_get(b->quant, module) : NULL, *q = m5_json_typeof(own) == M5_JSON_OBJECT ? own : b->quant;
    m5_slice mode = m5_json_str(m5_json_get(q, "mode"));
    if (mode.n == 0) mode = m5_json_str(m5_json_get(b->quant, "mode"));
    if (mode.n && !m5_slice_is(mode, "affine")) {
        return m5_error_set(b->err, M5_ERR_UNSUPPORTED, "%s: tensor %s uses the quantization mode \"%.*s\", which is not supported (affine)",
                            m5_store_path(b->store, t->file), t->name, (int)(mode.n > 40 ? 40 : mode.n), mode.p);
    }
    const m5_json *qb = m5_json_get(q, "bits"), *qg = m5_json_get(q, "group_size");
    if ((m5_json_typeof(qb) == M5_JSON_INT && m5_json_int(qb) != bits) || (m5_json_typeof(qg) == M5_JSON_INT && m5_json_int(qg) != group)) {
        return m5_error_set(b->err, M5_ERR_FORMAT,
                            "%s: tensor %s has %" PRId64 " bits in groups of %" PRId64 ", config.json declares %" PRId64 " in %" PRId64,
                            m5_store_path(b->store, t->file), t->name, bits, group, m5_json_int(qb), m5_json_int(qg));
    }
    return 0;
}

/* M.weight u32 [.., rows, cols * bits / 32], M.scales and M.biases [.., rows, cols / group]. */
static int mlx_matrix(m5_binder *b, const m5_tensor *t, const char *module, int64_t n_slice, int64_t rows, int64_t cols, m5_matrix *out)
{
    char full[M5_BIND_NAME_BYTES], expected[96];
    m5_tensor scales, biases;
    if (t->type != M5_U32) return wrong_type(b, t, "quantised matrix");
    if (!m5_bind_find(b, module, ".scales", full, &scales) || !m5_bind_find(b, module, ".biases", full, &biases)) return missing(b, full);
    if (scales.type != M5_F32 && scales.type != M5_F16 && scales.type != M5_BF16) return wrong_type(b, &scales, "scale");
    if (biases.type != scales.type) return wrong_type(b, &biases, "bias beside scales of another type");
    int64_t n_group = scales.n_dims ? scales.shape[scales.n_dims - 1] : 0, words = t->n_dims ? t->shape[t->n_dims - 1] : 0;
    int64_t group = n_group > 0 ? cols / n_group : 0, bits = words * 32 / cols;
    snprintf(expected, sizeof expected, "[%" PRId64 ", %" PRId64 ", %" PRId64 "] packed", n_slice, rows, cols);
    if (group < 1 || group * n_group != cols || bits * cols != words * 32 || !shape_is(t, n_slice, rows, words)) return wrong_shape(b, t, expected);
    if (!shape_is(&scales, n_slice, rows, n_group)) return wrong_shape(b, &scales, expected);
    if (!shape_is(&biases, n_slice, rows, n_group)) return wrong_shape(b, &biases, expected);
    if (mlx_type(bits) == M5_DTYPE_COUNT || (group != 32 && group != 64 && group != 128)) {
        return m5_error_set(b->err, M5_ERR_UNSUPPORTED,
                            "%s: tensor %s has %" PRId64 " bits in groups of %" PRId64 "; supported are 2, 3, 4, 5, 6 and 8 bits in 32, 64, 128",
                            m5_store_path(b->store, t->file), t->name, bits, group);
    }
    int rc = check_declared(b, t, module, bits, group);
    if (rc) return rc;
    *out = (m5_matrix){.type = mlx_type(bits),
                       .n_out = n_slice * rows,
                       .n_in = cols,
                       .data = t->data,
                       .row_bytes = cols * bits / 8,
                       .scales = scales.data,
                       .biases = biases.data,
                       .group = (int)group,
                       .scale_type = scales.type};
    m5_bind_mark(b, &scales);
    m5_bind_mark(b, &biases);
    return 0;
}

int m5_bind_matrix(m5_binder *b, const char *prefix, const char *names, int64_t n_slice, int64_t rows, int64_t cols, bool optional, m5_matrix *out)
{
    char full[M5_BIND_NAME_BYTES], module[M5_BIND_NAME_BYTES], expected[96];
    m5_tensor t;
    int rc = 0;
    if (!m5_bind_find(b, prefix, names, full, &t)) return optional ? 0 : missing(b, full);
    size_t n = strlen(full);
    snprintf(module, sizeof module, "%.*s", (int)(n > 7 && strcmp(full + n - 7, ".weight") == 0 ? n - 7 : n), full);
    if (!b->store->gguf && m5_bind_exists(b, module, ".scales")) {
        rc = mlx_matrix(b, &t, module, n_slice, rows, cols, out);
    } else {
        const m5_dtype_info *info = m5_dtype_get(t.type);
        if (t.type == M5_DTYPE_COUNT || !info->matrix) return wrong_type(b, &t, "matrix");
        size_t at = n_slice > 1 ? (size_t)snprintf(expected, sizeof expected, "[%" PRId64 ", ", n_slice) : 1;
        expected[0] = '[';
        snprintf(expected + at, sizeof expected - at, "%" PRId64 ", %" PRId64 "]", rows, cols);
        if (!shape_is(&t, n_slice, rows, cols)) return wrong_shape(b, &t, expected);
        *out =
            (m5_matrix){.type = t.type, .n_out = n_slice * rows, .n_in = cols, .data = t.data, .row_bytes = cols / info->block * info->block_bytes};
        if (cols % info->block || (uint64_t)out->row_bytes * (uint64_t)out->n_out != t.n_bytes) {
            return m5_error_set(b->err, M5_ERR_FORMAT, "%s: tensor %s of type %s cannot hold rows of %" PRId64 " elements",
                                m5_store_path(b->store, t.file), t.name, t.type_name, cols);
        }
    }
    if (rc) return rc;
    m5_bind_mark(b, &t);
    b->w->n_params += (uint64_t)(n_slice * rows * cols);
    return 0;
}

/* ---- vectors ---- */

/* The shape without its ones is [rows, cols] without its ones. */
static bool squeezed_is(const m5_tensor *t, int64_t rows, int64_t cols)
{
    int64_t got[2] = {1, 1}, want[2] = {rows == 1 ? cols : rows, rows == 1 ? 1 : cols};
    int n = 0;
    for (int i = 0; i < t->n_dims; i++) {
        if (t->shape[i] == 1) continue;
        if (n == 2) return false;
        got[n++] = t->shape[i];
    }
    return got[0] == want[0] && got[1] == want[1];
}

int m5_bind_vector(m5_binder *b, const char *prefix, const char *names, int64_t rows, int64_t cols, bool optional, float **out)
{
    char full[M5_BIND_NAME_BYTES], expected[64];
    m5_tensor t;
    *out = NULL;
    if (!m5_bind_find(b, prefix, names, full, &t)) return optional ? 0 : missing(b, full);
    snprintf(expected, sizeof expected, cols > 1 ? "[%" PRId64 ", %" PRId64 "]" : "[%" PRId64 "]", rows, cols);
    if (!squeezed_is(&t, rows, cols)) return wrong_shape(b, &t, expected);
    if (t.type != M5_F32 && t.type != M5_F16 && t.type != M5_BF16) return wrong_type(b, &t, "vector");
    float *v = m5_bind_alloc(b, (size_t)(rows * cols), sizeof *v);
    if (!v) return M5_ERR_NOMEM;
    m5_unpack_f32(t.type, t.data, v, rows * cols);
    m5_bind_mark(b, &t);
    b->w->n_params += (uint64_t)(rows * cols);
    *out = v;
    return 0;
}
