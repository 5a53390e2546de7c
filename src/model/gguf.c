/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF reader: one pass over the header of each part, every length checked against what is left of the file before it is believed.
 *
 *   "GGUF" | u32 version | u64 n_tensors | u64 n_kv | n_kv x (key, u32 type, value) | n_tensors x (name, u32 n_dims, u64 dims[], u32 type,
 *   u64 offset) | zeroes up to general.alignment | tensor data, offsets counted from here
 *
 * Memory is bounded by a small multiple of the header: counts are compared with the least room that so many entries take before anything is
 * allocated. Meaning of keys and tensors is not here. */
#include "model/gguf.h"

#include "base/mem.h"
#include "model/names.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_KEY_BYTES = 65535, /* the specification's bound */
    MAX_NAME_BYTES = 1024, /* ggml itself stops at 64 */
    MAX_PARTS = 1024,
    MIN_KV_BYTES = 8 + 1 + 4 + 1,
    MIN_TENSOR_BYTES = 8 + 1 + 4 + 4 + 8,
    DEFAULT_ALIGNMENT = 32
};

typedef struct part_file {
    char *path;
    m5_map map;
    bool mapped; /* false: memory of the caller */
    size_t header_bytes;
} part_file;

typedef struct kv_list {
    m5_gguf_kv *kv;
    size_t n;
    m5_names names;
} kv_list;

struct m5_gguf {
    part_file *files;
    int n_files;
    kv_list meta; /* of the first part */
    m5_gguf_tensor *tensors;
    size_t n_tensors;
    m5_names names;
    m5_arena arena; /* keys, names, string indices */
};

/* Cursor over one part's header. */
typedef struct cursor {
    const uint8_t *p;
    size_t n, at;
    const char *path;
    m5_error *err;
} cursor;

/* --- ggml types ------------------------------------------------------------------------------------------------------------------- */

typedef struct ggml_type_row {
    uint32_t id;
    m5_dtype type; /* M5_DTYPE_COUNT: known by name only */
    const char *name;
} ggml_type_row;

static const ggml_type_row ggml_types[] = {
    {0, M5_F32, "F32"},
    {1, M5_F16, "F16"},
    {2, M5_Q4_0, "Q4_0"},
    {3, M5_Q4_1, "Q4_1"},
    {6, M5_Q5_0, "Q5_0"},
    {7, M5_Q5_1, "Q5_1"},
    {8, M5_Q8_0, "Q8_0"},
    {9, M5_DTYPE_COUNT, "Q8_1"},
    {10, M5_Q2_K, "Q2_K"},
    {11, M5_Q3_K, "Q3_K"},
    {12, M5_Q4_K, "Q4_K"},
    {13, M5_Q5_K, "Q5_K"},
    {14, M5_Q6_K, "Q6_K"},
    {15, M5_DTYPE_COUNT, "Q8_K"},
    {16, M5_DTYPE_COUNT, "IQ2_XXS"},
    {17, M5_DTYPE_COUNT, "IQ2_XS"},
    {18, M5_DTYPE_COUNT, "IQ3_XXS"},
    {19, M5_DTYPE_COUNT, "IQ1_S"},
    {20, M5_IQ4_NL, "IQ4_NL"},
    {21, M5_DTYPE_COUNT, "IQ3_S"},
    {22, M5_DTYPE_COUNT, "IQ2_S"},
    {23, M5_IQ4_XS, "IQ4_XS"},
    {24, M5_I8, "I8"},
    {25, M5_I16, "I16"},
    {26, M5_I32, "I32"},
    {27, M5_I64, "I64"},
    {28, M5_F64, "F64"},
    {29, M5_DTYPE_COUNT, "IQ1_M"},
    {30, M5_BF16, "BF16"},
    {31, M5_DTYPE_COUNT, "Q4_0_4_4"},
    {32, M5_DTYPE_COUNT, "Q4_0_4_8"},
    {33, M5_DTYPE_COUNT, "Q4_0_8_8"},
    {34, M5_DTYPE_COUNT, "TQ1_0"},
    {35, M5_DTYPE_COUNT, "TQ2_0"},
    {39, M5_MXFP4, "MXFP4"},
    {40, M5_DTYPE_COUNT, "NVFP4"},
    {41, M5_DTYPE_COUNT, "Q1_0"},
    {42, M5_DTYPE_COUNT, "Q2_0"},
};

static const ggml_type_row *ggml_type_find(uint32_t id)
{
    for (size_t i = 0; i < sizeof ggml_types / sizeof ggml_types[0]; i++) {
        if (ggml_types[i].id == id) return &ggml_types[i];
    }
    return NULL;
}

const char *m5_gguf_type_name(uint32_t ggml_type, char *buf, size_t cap)
{
    const ggml_type_row *row = ggml_type_find(ggml_type);
    if (row && row->type != M5_DTYPE_COUNT) return row->name;
    m5_buf b = {0};
    if (row) {
        m5_buf_printf(&b, "type %u (%s)", (unsigned)ggml_type, row->name);
    } else {
        m5_buf_printf(&b, "type %u", (unsigned)ggml_type);
    }
    if (cap) {
        size_t n = b.n < cap ? b.n : cap - 1;
        if (n) memcpy(buf, b.p, n);
        buf[n] = 0;
    }
    m5_buf_free(&b);
    return buf;
}

/* --- reading numbers ------------------------------------------------------------------------------------------------------------ */

static uint64_t le_u64(const uint8_t *p, int n_bytes)
{
    uint64_t v = 0;
    for (int i = n_bytes - 1; i >= 0; i--) v = v << 8 | p[i];
    return v;
}

static int type_bytes(uint32_t type)
{
    static const int8_t bytes[M5_GGUF_TYPE_COUNT] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return type < M5_GGUF_TYPE_COUNT ? bytes[type] : 0;
}

static size_t left(const cursor *c)
{
    return c->n - c->at;
}

static int truncated(const cursor *c, const char *what)
{
    return m5_error_set(c->err, M5_ERR_FORMAT, "%s: the file ends inside %s at byte %zu (incomplete download?)", c->path, what, c->at);
}

static int take(cursor *c, uint64_t *out, int n_bytes, const char *what)
{
    if (left(c) < (size_t)n_bytes) return truncated(c, what);
    *out = le_u64(c->p + c->at, n_bytes);
    c->at += (size_t)n_bytes;
    return M5_OK;
}

/* A name: non-empty, valid UTF-8, no NUL; copied so that it can be used as a C string. */
static int take_name(cursor *c, m5_arena *arena, size_t max_bytes, const char *what, const char **out)
{
    uint64_t n = 0;
    int rc = take(c, &n, 8, what);
    if (rc) return rc;
    if (n > left(c)) return truncated(c, what);
    const char *s = (const char *)c->p + c->at;
    if (n == 0 || n > max_bytes || memchr(s, 0, (size_t)n) || !m5_utf8_valid(s, (size_t)n)) {
        return m5_error_set(c->err, M5_ERR_FORMAT, "%s: %s at byte %zu is not a valid name (%" PRIu64 " bytes)", c->path, what, c->at, n);
    }
    *out = m5_arena_strndup(arena, s, (size_t)n);
    if (!*out) return m5_error_set(c->err, M5_ERR_NOMEM, "%s: out of memory while reading names", c->path);
    c->at += (size_t)n;
    return M5_OK;
}

/* --- metadata ------------------------------------------------------------------------------------------------------------------- */

static int skip_str(cursor *c, const char *key)
{
    uint64_t n = 0;
    if (left(c) < 8) return truncated(c, key);
    n = le_u64(c->p + c->at, 8);
    if (n > left(c) - 8) return truncated(c, key);
    c->at += 8 + (size_t)n;
    return M5_OK;
}

static int take_array(cursor *c, m5_arena *arena, m5_gguf_kv *kv)
{
    uint64_t elem = 0, n = 0;
    size_t bytes = 0;
    int rc = take(c, &elem, 4, kv->key);
    if (!rc) rc = take(c, &n, 8, kv->key);
    if (rc) return rc;
    if (elem >= M5_GGUF_TYPE_COUNT || elem == M5_GGUF_ARRAY) {
        return m5_error_set(c->err, M5_ERR_FORMAT, "%s: key '%s' is an array of type %" PRIu64 ", which cannot be read", c->path, kv->key, elem);
    }
    kv->elem = (m5_gguf_type)elem;
    kv->n = (size_t)n;
    kv->value = c->p + c->at;
    size_t least = elem == M5_GGUF_STR ? 8 : (size_t)type_bytes((uint32_t)elem);
    if (n > left(c) / least || !m5_mul_size((size_t)n, least, &bytes)) return truncated(c, kv->key);
    if (elem != M5_GGUF_STR) {
        c->at += bytes;
        return M5_OK;
    }
    size_t index_bytes = 0;
    if (!m5_mul_size((size_t)n + 1, sizeof(uint8_t *), &index_bytes)) return truncated(c, kv->key);
    const uint8_t **at = m5_arena_alloc(arena, index_bytes);
    if (!at) return m5_error_set(c->err, M5_ERR_NOMEM, "%s: out of memory while reading key '%s'", c->path, kv->key);
    for (size_t i = 0; i < kv->n; i++) {
        at[i] = c->p + c->at;
        if ((rc = skip_str(c, kv->key))) return rc;
    }
    kv->str_at = at;
    return M5_OK;
}

static int take_kv(cursor *c, m5_arena *arena, m5_gguf_kv *kv)
{
    uint64_t type = 0;
    int rc = take_name(c, arena, MAX_KEY_BYTES, "a metadata key", &kv->key);
    if (!rc) rc = take(c, &type, 4, kv->key);
    if (rc) return rc;
    if (type >= M5_GGUF_TYPE_COUNT) {
        return m5_error_set(c->err, M5_ERR_FORMAT, "%s: key '%s' has the unknown value type %" PRIu64, c->path, kv->key, type);
    }
    kv->type = kv->elem = (m5_gguf_type)type;
    kv->n = 1;
    kv->value = c->p + c->at;
    if (type == M5_GGUF_ARRAY) return take_array(c, arena, kv);
    if (type == M5_GGUF_STR) return skip_str(c, kv->key);
    if (left(c) < (size_t)type_bytes((uint32_t)type)) return truncated(c, kv->key);
    c->at += (size_t)type_bytes((uint32_t)type);
    return M5_OK;
}

static int take_meta(cursor *c, m5_arena *arena, uint64_t n_kv, kv_list *out)
{
    int rc = M5_OK;
    if (n_kv > left(c) / MIN_KV_BYTES) return truncated(c, "the metadata");
    out->kv = m5_calloc(M5_MEM_WEIGHTS, (size_t)n_kv + 1, sizeof *out->kv);
    if (!out->kv || m5_names_init(&out->names, (size_t)n_kv)) {
        return m5_error_set(c->err, M5_ERR_NOMEM, "%s: out of memory for %" PRIu64 " metadata keys", c->path, n_kv);
    }
    for (out->n = 0; out->n < n_kv; out->n++) {
        m5_gguf_kv *kv = &out->kv[out->n];
        if ((rc = take_kv(c, arena, kv))) return rc;
        if (!m5_names_add(&out->names, kv->key, out->n)) {
            return m5_error_set(c->err, M5_ERR_FORMAT, "%s: key '%s' occurs twice", c->path, kv->key);
        }
    }
    return rc;
}

static void kv_list_deinit(kv_list *l)
{
    m5_free(l->kv);
    m5_names_deinit(&l->names);
    l->kv = NULL;
    l->n = 0;
}

static const m5_gguf_kv *list_find(const kv_list *l, const char *key)
{
    size_t i = m5_names_find(&l->names, key);
    return i == SIZE_MAX ? NULL : &l->kv[i];
}

/* --- tensors -------------------------------------------------------------------------------------------------------------------- */

static int tensor_size(cursor *c, m5_gguf_tensor *t)
{
    const m5_dtype_info *info = m5_dtype_get(t->type);
    size_t n = 1;
    for (int i = 0; i < t->n_dims; i++) {
        if (!m5_mul_size(n, (size_t)t->dims[i], &n)) goto huge;
    }
    if (t->dims[0] % info->block) {
        return m5_error_set(c->err, M5_ERR_FORMAT, "%s: tensor '%s' has rows of %" PRId64 " elements, not a multiple of the %d of a %s block",
                            c->path, t->name, t->dims[0], info->block, info->name);
    }
    if (!m5_mul_size(n / (size_t)info->block, (size_t)info->block_bytes, &t->n_bytes)) goto huge;
    return M5_OK;
huge:
    return m5_error_set(c->err, M5_ERR_FORMAT, "%s: the dimensions of tensor '%s' overflow", c->path, t->name);
}

/* offset comes back relative to the data start; the data pointer is set once that is known. */
static int take_tensor(cursor *c, m5_arena *arena, m5_gguf_tensor *t, uint64_t *offset)
{
    uint64_t v = 0;
    int rc = take_name(c, arena, MAX_NAME_BYTES, "a tensor name", &t->name);
    if (!rc) rc = take(c, &v, 4, t->name);
    if (rc) return rc;
    if (v > M5_GGUF_MAX_DIMS) {
        return m5_error_set(c->err, M5_ERR_FORMAT, "%s: tensor '%s' has %" PRIu64 " dimensions, at most %d are possible", c->path, t->name, v,
                            M5_GGUF_MAX_DIMS);
    }
    t->n_dims = (int)v;
    for (int i = 0; i < M5_GGUF_MAX_DIMS; i++) {
        t->dims[i] = 1;
        if (i >= t->n_dims) continue;
        if ((rc = take(c, &v, 8, t->name))) return rc;
        if (v == 0 || v > INT64_MAX) {
            return m5_error_set(c->err, M5_ERR_FORMAT, "%s: dimension %d of tensor '%s' is %" PRIu64, c->path, i, t->name, v);
        }
        t->dims[i] = (int64_t)v;
    }
    if ((rc = take(c, &v, 4, t->name)) || (rc = take(c, offset, 8, t->name))) return rc;
    const ggml_type_row *row = ggml_type_find((uint32_t)v);
    t->ggml_type = (uint32_t)v;
    t->type = row ? row->type : M5_DTYPE_COUNT;
    return t->type == M5_DTYPE_COUNT ? M5_OK : tensor_size(c, t);
}

static int place_tensors(cursor *c, m5_gguf_tensor *t, const uint64_t *offsets, size_t n, uint64_t alignment)
{
    uint64_t start = c->at % alignment ? c->at + (alignment - c->at % alignment) : c->at;
    for (size_t i = 0; i < n; i++) {
        if (offsets[i] % alignment) {
            return m5_error_set(c->err, M5_ERR_FORMAT, "%s: tensor '%s' starts at %" PRIu64 ", which is not aligned to %" PRIu64, c->path, t[i].name,
                                offsets[i], alignment);
        }
        if (start > c->n || offsets[i] > c->n - start || t[i].n_bytes > c->n - start - offsets[i]) {
            return m5_error_set(c->err, M5_ERR_FORMAT,
                                "%s: tensor '%s' (%zu bytes at offset %" PRIu64 ") lies beyond the end of the file (incomplete download?)", c->path,
                                t[i].name, t[i].n_bytes, offsets[i]);
        }
        t[i].data = c->p + (size_t)start + (size_t)offsets[i];
    }
    return M5_OK;
}

static int by_data(const void *a, const void *b)
{
    const m5_gguf_tensor *x = *(const m5_gguf_tensor *const *)a, *y = *(const m5_gguf_tensor *const *)b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes);
}

/* Two tensors sharing bytes would let one rewrite of a mapped page change both. Tensors of unknown type have no known end. */
static int check_overlap(cursor *c, const m5_gguf_tensor *t, size_t n)
{
    int rc = M5_OK;
    const m5_gguf_tensor **order = m5_calloc(M5_MEM_SCRATCH, n + 1, sizeof *order);
    if (!order) return m5_error_set(c->err, M5_ERR_NOMEM, "%s: out of memory for %zu tensors", c->path, n);
    for (size_t i = 0; i < n; i++) order[i] = &t[i];
    if (n) qsort(order, n, sizeof *order, by_data);
    for (size_t i = 1; i < n && !rc; i++) {
        if (order[i]->data < order[i - 1]->data + order[i - 1]->n_bytes) {
            rc = m5_error_set(c->err, M5_ERR_FORMAT, "%s: tensors '%s' and '%s' overlap", c->path, order[i - 1]->name, order[i]->name);
        }
    }
    m5_free(order);
    return rc;
}

static bool scalar_i64(const m5_gguf_kv *kv, int64_t *out)
{
    return kv && kv->type != M5_GGUF_ARRAY && m5_gguf_at_i64(kv, 0, out);
}

static int take_tensors(m5_gguf *g, cursor *c, const kv_list *meta, uint64_t n, int file)
{
    int rc = M5_OK;
    int64_t alignment = DEFAULT_ALIGNMENT;
    uint64_t *offsets = NULL;
    const m5_gguf_kv *kv = list_find(meta, "general.alignment");
    if (kv && (!scalar_i64(kv, &alignment) || alignment <= 0 || alignment > (1 << 30) || (alignment & (alignment - 1)))) {
        return m5_error_set(c->err, M5_ERR_FORMAT, "%s: general.alignment is not a power of two", c->path);
    }
    if (n > left(c) / MIN_TENSOR_BYTES) return truncated(c, "the tensor list");
    m5_gguf_tensor *all = m5_realloc(M5_MEM_WEIGHTS, g->tensors, (g->n_tensors + (size_t)n + 1) * sizeof *all);
    if (all) g->tensors = all;
    offsets = m5_calloc(M5_MEM_SCRATCH, (size_t)n + 1, sizeof *offsets);
    if (!all || !offsets) {
        rc = m5_error_set(c->err, M5_ERR_NOMEM, "%s: out of memory for %" PRIu64 " tensors", c->path, n);
        goto out;
    }
    m5_gguf_tensor *t = all + g->n_tensors;
    memset(t, 0, (size_t)n * sizeof *t);
    for (size_t i = 0; i < n; i++) {
        t[i].file = file;
        if ((rc = take_tensor(c, &g->arena, &t[i], &offsets[i]))) goto out;
    }
    if ((rc = place_tensors(c, t, offsets, (size_t)n, (uint64_t)alignment)) || (rc = check_overlap(c, t, (size_t)n))) goto out;
    g->n_tensors += (size_t)n;
out:
    m5_free(offsets);
    return rc;
}

/* --- one part ------------------------------------------------------------------------------------------------------------------- */

/* Parses part `file`; its metadata go to *meta, its tensors behind those already there. */
static int parse_part(m5_gguf *g, int file, kv_list *meta, m5_error *err)
{
    part_file *f = &g->files[file];
    cursor c = {f->map.p, f->map.n, 0, f->path, err};
    uint64_t version = 0, n_tensors = 0, n_kv = 0;
    if (c.n < 4 || memcmp(c.p, "GGUF", 4) != 0) return m5_error_set(err, M5_ERR_FORMAT, "%s: not a GGUF file", f->path);
    c.at = 4;
    int rc = take(&c, &version, 4, "the header");
    if (rc) return rc;
    if (version & 0xffff0000u && !(version & 0xffffu)) {
        return m5_error_set(err, M5_ERR_UNSUPPORTED, "%s: big-endian GGUF files cannot be read", f->path);
    }
    if (version != 2 && version != 3) {
        return m5_error_set(err, M5_ERR_UNSUPPORTED, "%s: GGUF version %" PRIu64 " cannot be read, only 2 and 3", f->path, version);
    }
    if ((rc = take(&c, &n_tensors, 8, "the header")) || (rc = take(&c, &n_kv, 8, "the header"))) return rc;
    if ((rc = take_meta(&c, &g->arena, n_kv, meta)) || (rc = take_tensors(g, &c, meta, n_tensors, file))) return rc;
    f->header_bytes = c.at;
    return M5_OK;
}

static int finish(m5_gguf *g, m5_error *err)
{
    if (m5_names_init(&g->names, g->n_tensors)) return m5_error_set(err, M5_ERR_NOMEM, "%s: out of memory", g->files[0].path);
    for (size_t i = 0; i < g->n_tensors; i++) {
        const m5_gguf_tensor *t = &g->tensors[i];
        if (!m5_names_add(&g->names, t->name, i)) {
            return m5_error_set(err, M5_ERR_FORMAT, "%s: tensor '%s' occurs twice", g->files[t->file].path, t->name);
        }
    }
    return M5_OK;
}

static int new_gguf(m5_gguf **out, int n_files, m5_error *err)
{
    m5_gguf *g = m5_calloc(M5_MEM_WEIGHTS, 1, sizeof *g);
    if (g) g->files = m5_calloc(M5_MEM_WEIGHTS, (size_t)n_files, sizeof *g->files);
    if (!g || !g->files) {
        m5_free(g);
        return m5_error_set(err, M5_ERR_NOMEM, "out of memory for a GGUF file");
    }
    g->n_files = n_files;
    m5_arena_init(&g->arena, M5_MEM_WEIGHTS, 0);
    *out = g;
    return M5_OK;
}

static int map_part(m5_gguf *g, int file, const char *path, m5_error *err)
{
    part_file *f = &g->files[file];
    f->path = m5_strdup(M5_MEM_WEIGHTS, path);
    if (!f->path) return m5_error_set(err, M5_ERR_NOMEM, "%s: out of memory", path);
    int rc = m5_map_open(&f->map, path, err);
    f->mapped = rc == M5_OK;
    return rc;
}

/* --- split files ---------------------------------------------------------------------------------------------------------------- */

/* "-00002-of-00004.gguf" at the end of path: its offset, the part (1..) and the count. */
static bool split_name(const char *path, size_t *at, int *no, int *count)
{
    static const char shape[] = "-#####-of-#####.gguf";
    size_t n = strlen(path), k = sizeof shape - 1;
    int v[2] = {0, 0}, which = -1;
    if (n < k) return false;
    for (size_t i = 0; i < k; i++) {
        char ch = path[n - k + i];
        if (shape[i] != '#') {
            if (ch != shape[i]) return false;
            continue;
        }
        if (ch < '0' || ch > '9') return false;
        if (shape[i - 1] != '#') which++;
        v[which] = v[which] * 10 + (ch - '0');
    }
    *at = n - k;
    *no = v[0];
    *count = v[1];
    return true;
}

static int check_part(const m5_gguf *g, int file, int count, const kv_list *meta, m5_error *err)
{
    int64_t no = -1, n = -1;
    scalar_i64(list_find(meta, "split.no"), &no);
    scalar_i64(list_find(meta, "split.count"), &n);
    if (no == file && n == count) return M5_OK;
    return m5_error_set(err, M5_ERR_FORMAT, "%s: says it is part %" PRId64 " of %" PRId64 ", but its name says part %d of %d", g->files[file].path,
                        no + 1, n, file + 1, count);
}

static int open_split(m5_gguf **out, const char *path, int64_t count, m5_error *err)
{
    int rc = M5_OK, no = 0, n_name = 0;
    int64_t n_total = -1;
    size_t at = 0;
    m5_gguf *g = NULL;
    m5_buf name = {0};
    kv_list meta = {0};
    if (!split_name(path, &at, &no, &n_name) || n_name != count) {
        return m5_error_set(err, M5_ERR_FORMAT, "%s: part of a file split in %" PRId64 ", but not named like one (-00001-of-%05" PRId64 ".gguf)",
                            path, count, count);
    }
    if (count > MAX_PARTS) return m5_error_set(err, M5_ERR_LIMIT, "%s: split in %" PRId64 " parts, at most %d are read", path, count, MAX_PARTS);
    if ((rc = new_gguf(&g, (int)count, err))) return rc;
    for (int i = 0; i < (int)count; i++) {
        m5_buf_clear(&name);
        m5_buf_append(&name, path, at);
        m5_buf_printf(&name, "-%05d-of-%05d.gguf", i + 1, (int)count);
        if (name.failed) {
            rc = m5_error_set(err, M5_ERR_NOMEM, "%s: out of memory", path);
            goto out;
        }
        kv_list *to = i == 0 ? &g->meta : &meta;
        if ((rc = map_part(g, i, name.p, err)) || (rc = parse_part(g, i, to, err)) || (rc = check_part(g, i, (int)count, to, err))) goto out;
        kv_list_deinit(&meta);
    }
    if (scalar_i64(list_find(&g->meta, "split.tensors.count"), &n_total) && (n_total < 0 || (uint64_t)n_total != g->n_tensors)) {
        rc = m5_error_set(err, M5_ERR_FORMAT, "%s: the parts hold %zu tensors, split.tensors.count says %" PRId64, path, g->n_tensors, n_total);
        goto out;
    }
    rc = finish(g, err);
out:
    m5_buf_free(&name);
    kv_list_deinit(&meta);
    if (rc) {
        m5_gguf_close(g);
    } else {
        *out = g;
    }
    return rc;
}

/* --- open and close ------------------------------------------------------------------------------------------------------------- */

int m5_gguf_open(m5_gguf **out, const char *path, m5_error *err)
{
    m5_gguf *g = NULL;
    int64_t count = 1;
    *out = NULL;
    int rc = new_gguf(&g, 1, err);
    if (rc) return rc;
    if ((rc = map_part(g, 0, path, err)) || (rc = parse_part(g, 0, &g->meta, err))) goto out;
    if (scalar_i64(list_find(&g->meta, "split.count"), &count) && count > 1) {
        rc = open_split(out, path, count, err);
        m5_gguf_close(g);
        return rc;
    }
    rc = finish(g, err);
out:
    if (rc) {
        m5_gguf_close(g);
    } else {
        *out = g;
    }
    return rc;
}

int m5_gguf_open_mem(m5_gguf **out, const void *p, size_t n, const char *name, m5_error *err)
{
    m5_gguf *g = NULL;
    *out = NULL;
    int rc = new_gguf(&g, 1, err);
    if (rc) return rc;
    g->files[0].map = (m5_map){p, n};
    g->files[0].path = m5_strdup(M5_MEM_WEIGHTS, name);
    rc = g->files[0].path ? parse_part(g, 0, &g->meta, err) : m5_error_set(err, M5_ERR_NOMEM, "%s: out of memory", name);
    if (!rc) rc = finish(g, err);
    if (rc) {
        m5_gguf_close(g);
    } else {
        *out = g;
    }
    return rc;
}

void m5_gguf_close(m5_gguf *g)
{
    if (!g) return;
    for (int i = 0; i < g->n_files; i++) {
        if (g->files[i].mapped) m5_map_close(&g->files[i].map);
        m5_free(g->files[i].path);
    }
    m5_free(g->files);
    kv_list_deinit(&g->meta);
    m5_free(g->tensors);
    m5_names_deinit(&g->names);
    m5_arena_deinit(&g->arena);
    m5_free(g);
}

int m5_gguf_n_files(const m5_gguf *g)
{
    return g->n_files;
}

const char *m5_gguf_path(const m5_gguf *g, int file)
{
    return g->files[file].path;
}

const m5_map *m5_gguf_map(const m5_gguf *g, int file)
{
    return &g->files[file].map;
}

size_t m5_gguf_header_bytes(const m5_gguf *g, int file)
{
    return g->files[file].header_bytes;
}

/* --- reads ---------------------------------------------------------------------------------------------------------------------- */

size_t m5_gguf_n_kv(const m5_gguf *g)
{
    return g->meta.n;
}

const m5_gguf_kv *m5_gguf_kv_at(const m5_gguf *g, size_t i)
{
    return &g->meta.kv[i];
}

const m5_gguf_kv *m5_gguf_find_kv(const m5_gguf *g, const char *key)
{
    return list_find(&g->meta, key);
}

const m5_gguf_kv *m5_gguf_array(const m5_gguf *g, const char *key)
{
    const m5_gguf_kv *kv = list_find(&g->meta, key);
    return kv && kv->type == M5_GGUF_ARRAY ? kv : NULL;
}

/* An integer element as sign and magnitude, so that both u64 and i64 can be cut from it without loss. */
static bool at_int(const m5_gguf_kv *kv, size_t i, bool *negative, uint64_t *v)
{
    if (i >= kv->n) return false;
    int bytes = type_bytes(kv->elem);
    switch (kv->elem) {
    case M5_GGUF_U8:
    case M5_GGUF_U16:
    case M5_GGUF_U32:
    case M5_GGUF_U64:
        *v = le_u64(kv->value + i * (size_t)bytes, bytes);
        *negative = false;
        return true;
    case M5_GGUF_I8:
    case M5_GGUF_I16:
    case M5_GGUF_I32:
    case M5_GGUF_I64: {
        uint64_t u = le_u64(kv->value + i * (size_t)bytes, bytes), sign = (uint64_t)1 << (8 * bytes - 1);
        *negative = (u & sign) != 0;
        *v = *negative ? (~u + 1) & (sign | (sign - 1)) : u;
        return true;
    }
    default: return false;
    }
}

bool m5_gguf_at_i64(const m5_gguf_kv *kv, size_t i, int64_t *out)
{
    bool negative;
    uint64_t v;
    if (!at_int(kv, i, &negative, &v)) return false;
    if (negative) {
        *out = -(int64_t)(v - 1) - 1; /* also right for INT64_MIN */
        return true;
    }
    if (v > INT64_MAX) return false;
    *out = (int64_t)v;
    return true;
}

bool m5_gguf_at_f64(const m5_gguf_kv *kv, size_t i, double *out)
{
    bool negative;
    uint64_t v;
    if (at_int(kv, i, &negative, &v)) {
        *out = negative ? -(double)v : (double)v;
        return true;
    }
    if (i >= kv->n) return false;
    if (kv->elem == M5_GGUF_F32) {
        uint32_t bits = (uint32_t)le_u64(kv->value + i * 4, 4);
        float f;
        memcpy(&f, &bits, sizeof f);
        *out = (double)f;
        return true;
    }
    if (kv->elem == M5_GGUF_F64) {
        uint64_t bits = le_u64(kv->value + i * 8, 8);
        memcpy(out, &bits, sizeof *out);
        return true;
    }
    return false;
}

bool m5_gguf_at_bool(const m5_gguf_kv *kv, size_t i, bool *out)
{
    if (i >= kv->n || kv->elem != M5_GGUF_BOOL) return false;
    *out = kv->value[i] != 0;
    return true;
}

bool m5_gguf_at_str(const m5_gguf_kv *kv, size_t i, m5_slice *out)
{
    if (i >= kv->n || kv->elem != M5_GGUF_STR) return false;
    const uint8_t *p = kv->str_at ? kv->str_at[i] : kv->value;
    *out = (m5_slice){(const char *)p + 8, (size_t)le_u64(p, 8)};
    return true;
}

static const m5_gguf_kv *find_scalar(const m5_gguf *g, const char *key)
{
    const m5_gguf_kv *kv = list_find(&g->meta, key);
    return kv && kv->type != M5_GGUF_ARRAY ? kv : NULL;
}

bool m5_gguf_u64(const m5_gguf *g, const char *key, uint64_t *out)
{
    bool negative;
    uint64_t v;
    const m5_gguf_kv *kv = find_scalar(g, key);
    if (!kv || !at_int(kv, 0, &negative, &v) || negative) return false;
    *out = v;
    return true;
}

bool m5_gguf_i64(const m5_gguf *g, const char *key, int64_t *out)
{
    const m5_gguf_kv *kv = find_scalar(g, key);
    return kv && m5_gguf_at_i64(kv, 0, out);
}

bool m5_gguf_f64(const m5_gguf *g, const char *key, double *out)
{
    const m5_gguf_kv *kv = find_scalar(g, key);
    return kv && m5_gguf_at_f64(kv, 0, out);
}

bool m5_gguf_bool(const m5_gguf *g, const char *key, bool *out)
{
    const m5_gguf_kv *kv = find_scalar(g, key);
    return kv && m5_gguf_at_bool(kv, 0, out);
}

bool m5_gguf_str(const m5_gguf *g, const char *key, m5_slice *out)
{
    const m5_gguf_kv *kv = find_scalar(g, key);
    return kv && m5_gguf_at_str(kv, 0, out);
}

size_t m5_gguf_n_tensors(const m5_gguf *g)
{
    return g->n_tensors;
}

const m5_gguf_tensor *m5_gguf_tensor_at(const m5_gguf *g, size_t i)
{
    return &g->tensors[i];
}

const m5_gguf_tensor *m5_gguf_find(const m5_gguf *g, const char *name)
{
    size_t i = m5_names_find(&g->names, name);
    return i == SIZE_MAX ? NULL : &g->tensors[i];
}
