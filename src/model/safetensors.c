/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors reader. One file is
 *
 *   u64 n (little endian) | n bytes of JSON {"name": {"dtype", "shape", "data_offsets": [begin, end]}, "__metadata__": {...}} | data block
 *
 * with offsets counted from the data block. Everything is checked before a pointer is handed out: header within the file and the limit, each
 * tensor within the data block, size equal to shape times element size, no two tensors sharing bytes, no name twice. Holes between tensors are
 * tolerated, since they harm nothing. */
#include "model/safetensors.h"

#include "base/json.h"
#include "base/mem.h"
#include "model/names.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    MAX_HEADER_BYTES = 32 << 20, /* a shard with 100,000 tensors needs about 12 MB */
    MAX_INDEX_BYTES = 64 << 20,
    MAX_SHARDS = 4096,
    MAX_NAME_BYTES = 1024
};

typedef struct shard {
    char *path;
    m5_map map;
    bool mapped; /* false: memory of the caller */
    size_t header_bytes;
    m5_json *metadata; /* "__metadata__" or NULL */
} shard;

struct m5_st {
    shard *files;
    int n_files;
    m5_st_tensor *tensors;
    size_t n_tensors;
    m5_names names;
    m5_arena arena; /* tensor names */
};

typedef struct st_type_row {
    const char *name;
    m5_dtype type; /* M5_DTYPE_COUNT: size known, content not readable */
    int bits;
} st_type_row;

static const st_type_row st_types[] = {
    {"F32", M5_F32, 32},
    {"F16", M5_F16, 16},
    {"BF16", M5_BF16, 16},
    {"F64", M5_F64, 64},
    {"U8", M5_U8, 8},
    {"I8", M5_I8, 8},
    {"I16", M5_I16, 16},
    {"I32", M5_I32, 32},
    {"I64", M5_I64, 64},
    {"U32", M5_U32, 32},
    {"BOOL", M5_DTYPE_COUNT, 8},
    {"U16", M5_DTYPE_COUNT, 16},
    {"U64", M5_DTYPE_COUNT, 64},
    {"F8_E4M3", M5_DTYPE_COUNT, 8},
    {"F8_E5M2", M5_DTYPE_COUNT, 8},
    {"F8_E8M0", M5_DTYPE_COUNT, 8},
    {"F8_E4M3FNUZ", M5_DTYPE_COUNT, 8},
    {"F8_E5M2FNUZ", M5_DTYPE_COUNT, 8},
    {"F4", M5_DTYPE_COUNT, 4},
    {"F6_E2M3", M5_DTYPE_COUNT, 6},
    {"F6_E3M2", M5_DTYPE_COUNT, 6},
    {"C64", M5_DTYPE_COUNT, 64},
};

static const st_type_row *st_type_find(m5_slice name)
{
    for (size_t i = 0; i < sizeof st_types / sizeof st_types[0]; i++) {
        if (m5_slice_is(name, st_types[i].name)) return &st_types[i];
    }
    return NULL;
}

/* --- one tensor ----------------------------------------------------------------------------------------------------------------- */

static bool json_size(const m5_json *v, int64_t *out)
{
    if (m5_json_typeof(v) != M5_JSON_INT || m5_json_int(v) < 0) return false;
    *out = m5_json_int(v);
    return true;
}

static int take_shape(m5_st_tensor *t, const m5_json *shape, const char *path, m5_error *err)
{
    size_t n = 1;
    if (m5_json_typeof(shape) != M5_JSON_ARRAY) return m5_error_set(err, M5_ERR_FORMAT, "%s: tensor '%s' has no shape", path, t->name);
    if (m5_json_len(shape) > M5_ST_MAX_DIMS) {
        return m5_error_set(err, M5_ERR_FORMAT, "%s: tensor '%s' has %zu dimensions, at most %d are possible", path, t->name, m5_json_len(shape),
                            M5_ST_MAX_DIMS);
    }
    t->n_dims = (int)m5_json_len(shape);
    for (int i = 0; i < M5_ST_MAX_DIMS; i++) {
        t->shape[i] = 1;
        if (i >= t->n_dims) continue;
        if (!json_size(m5_json_at(shape, (size_t)i), &t->shape[i])) {
            return m5_error_set(err, M5_ERR_FORMAT, "%s: dimension %d of tensor '%s' is not a size", path, i, t->name);
        }
        if (!m5_mul_size(n, (size_t)t->shape[i], &n) || n > INT64_MAX) {
            return m5_error_set(err, M5_ERR_FORMAT, "%s: the dimensions of tensor '%s' overflow", path, t->name);
        }
    }
    t->n_elem = (int64_t)n;
    return M5_OK;
}

static int take_tensor(m5_st_tensor *t, const m5_json *v, const shard *f, m5_error *err)
{
    int64_t begin = 0, end = 0;
    size_t bits = 0, n_block = f->map.n - f->header_bytes;
    const m5_json *offsets = m5_json_get(v, "data_offsets");
    int rc = take_shape(t, m5_json_get(v, "shape"), f->path, err);
    if (rc) return rc;
    m5_slice dtype = m5_json_str(m5_json_get(v, "dtype"));
    const st_type_row *row = st_type_find(dtype);
    if (!row) return m5_error_set(err, M5_ERR_FORMAT, "%s: tensor '%s' has the unknown dtype '%.32s'", f->path, t->name, dtype.p ? dtype.p : "");
    t->type = row->type;
    t->type_name = row->name;
    if (m5_json_len(offsets) != 2 || !json_size(m5_json_at(offsets, 0), &begin) || !json_size(m5_json_at(offsets, 1), &end) || begin > end) {
        return m5_error_set(err, M5_ERR_FORMAT, "%s: tensor '%s' has no valid data_offsets", f->path, t->name);
    }
    if ((uint64_t)end > n_block) {
        return m5_error_set(err, M5_ERR_FORMAT, "%s: tensor '%s' ends at byte %" PRId64 " of a data block of %zu (incomplete download?)", f->path,
                            t->name, end, n_block);
    }
    t->n_bytes = (size_t)(end - begin);
    t->data = f->map.p + f->header_bytes + (size_t)begin;
    if (!m5_mul_size((size_t)t->n_elem, (size_t)row->bits, &bits) || bits % 8 || bits / 8 != t->n_bytes) {
        return m5_error_set(err, M5_ERR_FORMAT, "%s: tensor '%s' has %zu bytes, which is not %" PRId64 " elements of %s", f->path, t->name,
                            t->n_bytes, t->n_elem, row->name);
    }
    return M5_OK;
}

/* --- one file ------------------------------------------------------------------------------------------------------------------- */

static int by_data(const void *a, const void *b)
{
    const m5_st_tensor *x = *(const m5_st_tensor *const *)a, *y = *(const m5_st_tensor *const *)b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->n_bytes > y->n_bytes) - (x->n_bytes < y->n_bytes);
}

static int check_overlap(const m5_st_tensor *t, size_t n, const char *path, m5_error *err)
{
    int rc = M5_OK;
    const m5_st_tensor **order = m5_calloc(M5_MEM_SCRATCH, n + 1, sizeof *order);
    if (!order) return m5_error_set(err, M5_ERR_NOMEM, "%s: out of memory for %zu tensors", path, n);
    for (size_t i = 0; i < n; i++) order[i] = &t[i];
    if (n) qsort(order, n, sizeof *order, by_data);
    for (size_t i = 1; i < n && !rc; i++) {
        if (order[i]->data < order[i - 1]->data + order[i - 1]->n_bytes) {
            rc = m5_error_set(err, M5_ERR_FORMAT, "%s: tensors '%s' and '%s' overlap", path, order[i - 1]->name, order[i]->name);
        }
    }
    m5_free(order);
    return rc;
}

static int take_name(m5_st *s, m5_slice key, const char *path, const char **out, m5_error *err)
{
    if (key.n == 0 || key.n > MAX_NAME_BYTES || memchr(key.p, 0, key.n)) {
        return m5_error_set(err, M5_ERR_FORMAT, "%s: a tensor name of %zu bytes is not valid", path, key.n);
    }
    *out = m5_arena_strndup(&s->arena, key.p, key.n);
    return *out ? M5_OK : m5_error_set(err, M5_ERR_NOMEM, "%s: out of memory while reading names", path);
}

static int take_header(m5_st *s, int file, const m5_json *header, m5_error *err)
{
    shard *f = &s->files[file];
    size_t n = m5_json_len(header), first = s->n_tensors;
    m5_st_tensor *all = m5_realloc(M5_MEM_WEIGHTS, s->tensors, (first + n + 1) * sizeof *all);
    if (!all) return m5_error_set(err, M5_ERR_NOMEM, "%s: out of memory for %zu tensors", f->path, n);
    s->tensors = all;
    for (void *it = m5_json_iter(header); it; it = m5_json_iter_next(header, it)) {
        m5_slice key = m5_json_iter_key(it);
        m5_json *v = m5_json_iter_value(it);
        if (m5_slice_is(key, "__metadata__")) {
            f->metadata = m5_json_ref(v);
            continue;
        }
        m5_st_tensor *t = &all[s->n_tensors];
        memset(t, 0, sizeof *t);
        t->file = file;
        int rc = take_name(s, key, f->path, &t->name, err);
        if (!rc) rc = take_tensor(t, v, f, err);
        if (rc) return rc;
        s->n_tensors++;
    }
    return check_overlap(all + first, s->n_tensors - first, f->path, err);
}

static int parse_file(m5_st *s, int file, m5_error *err)
{
    shard *f = &s->files[file];
    uint64_t n = 0;
    m5_json *header = NULL;
    if (f->map.n < 8) return m5_error_set(err, M5_ERR_FORMAT, "%s: too short for a safetensors file (%zu bytes)", f->path, f->map.n);
    for (int i = 7; i >= 0; i--) n = n << 8 | f->map.p[i];
    if (n > f->map.n - 8) {
        return m5_error_set(err, M5_ERR_FORMAT, "%s: not a safetensors file, or cut off: its header is %" PRIu64 " bytes, the file %zu", f->path, n,
                            f->map.n);
    }
    if (n > MAX_HEADER_BYTES)
        return m5_error_set(err, M5_ERR_LIMIT, "%s: the header of %" PRIu64 " bytes exceeds %d", f->path, n, (int)MAX_HEADER_BYTES);
    f->header_bytes = 8 + (size_t)n;
    m5_json_limits lim = {.max_bytes = MAX_HEADER_BYTES, .max_depth = 8};
    int rc = m5_json_parse(&header, (const char *)f->map.p + 8, (size_t)n, &lim, err);
    if (rc) {
        m5_error_prefix(err, "%s: header", f->path);
        return rc;
    }
    if (m5_json_typeof(header) != M5_JSON_OBJECT) {
        rc = m5_error_set(err, M5_ERR_FORMAT, "%s: the header is not a JSON object", f->path);
    } else {
        rc = take_header(s, file, header, err);
    }
    m5_json_unref(header);
    return rc;
}

/* --- open ----------------------------------------------------------------------------------------------------------------------- */

static int new_st(m5_st **out, size_t n_files, m5_error *err)
{
    m5_st *s = m5_calloc(M5_MEM_WEIGHTS, 1, sizeof *s);
    if (s) s->files = m5_calloc(M5_MEM_WEIGHTS, n_files + 1, sizeof *s->files);
    if (!s || !s->files) {
        m5_free(s);
        return m5_error_set(err, M5_ERR_NOMEM, "out of memory for safetensors files");
    }
    m5_arena_init(&s->arena, M5_MEM_WEIGHTS, 0);
    *out = s;
    return M5_OK;
}

/* Maps and parses one more file; dir may be NULL. */
static int add_file(m5_st *s, const char *dir, const char *name, m5_error *err)
{
    shard *f = &s->files[s->n_files];
    m5_buf path = {0};
    if (dir) m5_buf_printf(&path, "%s/", dir);
    m5_buf_puts(&path, name);
    f->path = m5_buf_take(&path);
    if (!f->path) return m5_error_set(err, M5_ERR_NOMEM, "%s: out of memory", name);
    s->n_files++;
    int rc = m5_map_open(&f->map, f->path, err);
    f->mapped = rc == M5_OK;
    return rc ? rc : parse_file(s, s->n_files - 1, err);
}

static int finish(m5_st *s, m5_error *err)
{
    if (m5_names_init(&s->names, s->n_tensors)) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for %zu tensors", s->n_tensors);
    for (size_t i = 0; i < s->n_tensors; i++) {
        const m5_st_tensor *t = &s->tensors[i];
        if (!m5_names_add(&s->names, t->name, i)) {
            const m5_st_tensor *other = &s->tensors[m5_names_find(&s->names, t->name)];
            return m5_error_set(err, M5_ERR_FORMAT, "tensor '%s' is both in %s and in %s", t->name, s->files[other->file].path,
                                s->files[t->file].path);
        }
    }
    return M5_OK;
}

/* A shard name comes from a file that anybody may have written: it must stay in the folder. */
static bool shard_name_ok(m5_slice name)
{
    return name.n > 0 && name.n < 256 && name.p[0] != '.' && !memchr(name.p, '/', name.n) && !memchr(name.p, '\\', name.n) &&
           !memchr(name.p, 0, name.n) && m5_slice_ends(name, M5_SLICE(".safetensors"));
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Distinct shard names of a weight map, sorted; borrowed from it. */
static int shard_names(const m5_json *map, const char *index_path, const char ***out, size_t *n_out, m5_error *err)
{
    size_t n = 0, k = 0;
    const char **names = m5_calloc(M5_MEM_SCRATCH, m5_json_len(map) + 1, sizeof *names);
    if (!names) return m5_error_set(err, M5_ERR_NOMEM, "%s: out of memory", index_path);
    for (void *it = m5_json_iter(map); it; it = m5_json_iter_next(map, it)) {
        m5_slice name = m5_json_str(m5_json_iter_value(it));
        if (!shard_name_ok(name)) {
            m5_free(names);
            return m5_error_set(err, M5_ERR_FORMAT, "%s: '%.200s' is not the name of a shard in this folder", index_path, name.p ? name.p : "");
        }
        names[n++] = name.p;
    }
    if (n) qsort(names, n, sizeof *names, by_text);
    for (size_t i = 0; i < n; i++) {
        if (k == 0 || strcmp(names[k - 1], names[i]) != 0) names[k++] = names[i];
    }
    *out = names;
    *n_out = k;
    return M5_OK;
}

static int check_index(const m5_st *s, const m5_json *map, const char *index_path, m5_error *err)
{
    for (void *it = m5_json_iter(map); it; it = m5_json_iter_next(map, it)) {
        m5_slice key = m5_json_iter_key(it), file = m5_json_str(m5_json_iter_value(it));
        const m5_st_tensor *t = memchr(key.p, 0, key.n) ? NULL : m5_st_find(s, key.p);
        if (!t || !m5_slice_ends(m5_slice_of(s->files[t->file].path), file)) {
            return m5_error_set(err, M5_ERR_FORMAT, "%s: tensor '%.200s' is not in %.200s", index_path, key.p, file.p);
        }
    }
    return M5_OK;
}

static int open_index(m5_st **out, const char *dir, const char *index_path, m5_error *err)
{
    char *text = NULL;
    size_t n_text = 0, n = 0;
    m5_json *index = NULL;
    const char **names = NULL;
    m5_st *s = NULL;
    int rc = m5_file_read(&text, &n_text, index_path, MAX_INDEX_BYTES, err);
    if (rc) goto out;
    m5_json_limits lim = {.max_bytes = MAX_INDEX_BYTES, .max_depth = 8};
    if ((rc = m5_json_parse(&index, text, n_text, &lim, err))) {
        m5_error_prefix(err, "%s", index_path);
        goto out;
    }
    const m5_json *map = m5_json_get(index, "weight_map");
    if (m5_json_typeof(map) != M5_JSON_OBJECT) {
        rc = m5_error_set(err, M5_ERR_FORMAT, "%s: no weight_map", index_path);
        goto out;
    }
    if ((rc = shard_names(map, index_path, &names, &n, err))) goto out;
    if (n > MAX_SHARDS) {
        rc = m5_error_set(err, M5_ERR_LIMIT, "%s: %zu shards, at most %d are read", index_path, n, (int)MAX_SHARDS);
        goto out;
    }
    if ((rc = new_st(&s, n, err))) goto out;
    for (size_t i = 0; i < n; i++) {
        if ((rc = add_file(s, dir, names[i], err))) goto out;
    }
    if ((rc = finish(s, err)) || (rc = check_index(s, map, index_path, err))) goto out;
    *out = s;
    s = NULL;
out:
    m5_st_close(s);
    m5_free(names);
    m5_json_unref(index);
    m5_free(text);
    return rc;
}

static int open_one(m5_st **out, const char *dir, const char *name, m5_error *err)
{
    m5_st *s = NULL;
    int rc = new_st(&s, 1, err);
    if (rc) return rc;
    rc = add_file(s, dir, name, err);
    if (!rc) rc = finish(s, err);
    if (rc) {
        m5_st_close(s);
    } else {
        *out = s;
    }
    return rc;
}

/* A folder without index and without model.safetensors: exactly one file of any name. */
static int open_only(m5_st **out, const char *dir, m5_error *err)
{
    char **names = NULL;
    size_t n = 0, n_found = 0, found = 0;
    int rc = m5_dir_list(&names, &n, dir, err);
    if (rc) return rc;
    for (size_t i = 0; i < n; i++) {
        if (!m5_slice_ends(m5_slice_of(names[i]), M5_SLICE(".safetensors"))) continue;
        found = i;
        n_found++;
    }
    if (n_found == 1) {
        rc = open_one(out, dir, names[found], err);
    } else if (n_found == 0) {
        rc = m5_error_set(err, M5_ERR_NOTFOUND, "%s: no safetensors file in this folder", dir);
    } else {
        rc = m5_error_set(err, M5_ERR_NOTFOUND, "%s: %zu safetensors files, but no model.safetensors and no index", dir, n_found);
    }
    for (size_t i = 0; i < n; i++) m5_free(names[i]);
    m5_free(names);
    return rc;
}

int m5_st_open(m5_st **out, const char *path, m5_error *err)
{
    int rc = M5_OK;
    m5_buf index = {0}, whole = {0};
    *out = NULL;
    if (!m5_path_is_dir(path)) return open_one(out, NULL, path, err);
    m5_buf_printf(&index, "%s/model.safetensors.index.json", path);
    m5_buf_printf(&whole, "%s/model.safetensors", path);
    if (index.failed || whole.failed) {
        rc = m5_error_set(err, M5_ERR_NOMEM, "%s: out of memory", path);
    } else if (m5_path_exists(index.p)) {
        rc = open_index(out, path, index.p, err);
    } else if (m5_path_exists(whole.p)) {
        rc = open_one(out, path, "model.safetensors", err);
    } else {
        rc = open_only(out, path, err);
    }
    m5_buf_free(&index);
    m5_buf_free(&whole);
    return rc;
}

int m5_st_open_mem(m5_st **out, const void *p, size_t n, const char *name, m5_error *err)
{
    m5_st *s = NULL;
    *out = NULL;
    int rc = new_st(&s, 1, err);
    if (rc) return rc;
    s->n_files = 1;
    s->files[0].map = (m5_map){p, n};
    s->files[0].path = m5_strdup(M5_MEM_WEIGHTS, name);
    rc = s->files[0].path ? parse_file(s, 0, err) : m5_error_set(err, M5_ERR_NOMEM, "%s: out of memory", name);
    if (!rc) rc = finish(s, err);
    if (rc) {
        m5_st_close(s);
    } else {
        *out = s;
    }
    return rc;
}

void m5_st_close(m5_st *s)
{
    if (!s) return;
    for (int i = 0; i < s->n_files; i++) {
        if (s->files[i].mapped) m5_map_close(&s->files[i].map);
        m5_json_unref(s->files[i].metadata);
        m5_free(s->files[i].path);
    }
    m5_free(s->files);
    m5_free(s->tensors);
    m5_names_deinit(&s->names);
    m5_arena_deinit(&s->arena);
    m5_free(s);
}

/* --- reads ---------------------------------------------------------------------------------------------------------------------- */

int m5_st_n_files(const m5_st *s)
{
    return s->n_files;
}

const char *m5_st_path(const m5_st *s, int file)
{
    return s->files[file].path;
}

const m5_map *m5_st_map(const m5_st *s, int file)
{
    return &s->files[file].map;
}

size_t m5_st_header_bytes(const m5_st *s, int file)
{
    return s->files[file].header_bytes;
}

size_t m5_st_n_tensors(const m5_st *s)
{
    return s->n_tensors;
}

const m5_st_tensor *m5_st_tensor_at(const m5_st *s, size_t i)
{
    return &s->tensors[i];
}

const m5_st_tensor *m5_st_find(const m5_st *s, const char *name)
{
    size_t i = m5_names_find(&s->names, name);
    return i == SIZE_MAX ? NULL : &s->tensors[i];
}

m5_slice m5_st_metadata(const m5_st *s, const char *key)
{
    for (int i = 0; i < s->n_files; i++) {
        const m5_json *v = m5_json_get(s->files[i].metadata, key);
        if (m5_json_typeof(v) == M5_JSON_STRING) return m5_json_str(v);
    }
    return (m5_slice){0};
}
