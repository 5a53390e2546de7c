/* SPDX-License-Identifier: Apache-2.0 */
/* Builds model files in memory or in a folder for the tests of config and weights: a safetensors writer, a GGUF writer, and deterministic numbers.
 * Independent of the readers under test: it knows only the two formats. */
#ifndef M5_TESTS_MODEL_BUILD_H
#define M5_TESTS_MODEL_BUILD_H

#include "base/mem.h"
#include "base/str.h"
#include "base/task.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A number of tensor `name`: between -1 and 1, exact in bf16 (six bits and a sign), the same for every container. */
static inline float tb_value(const char *name, uint64_t i)
{
    uint64_t h = 1469598103934665603u;
    for (; *name; name++) h = (h ^ (uint8_t)*name) * 1099511628211u;
    h = (h ^ i) * 0x9E3779B97F4A7C15u;
    h ^= h >> 29;
    h *= 0xBF58476D1CE4E5B9u;
    return (float)((int)(h >> 40 & 127) - 63) / 64.0f;
}

/* ---- safetensors ---- */

typedef struct tb_st {
    m5_buf header, data;
} tb_st;

static inline void tb_st_add(tb_st *f, const char *name, const char *dtype, const char *shape, const void *p, size_t n)
{
    m5_buf_printf(&f->header, "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}", f->header.n ? "," : "{", name, dtype, shape,
                  f->data.n, f->data.n + n);
    m5_buf_append(&f->data, p, n);
}

/* Elements of a shape such as "4, 1, 8"; "" is one. */
static inline size_t tb_count(const char *shape)
{
    size_t n = 1;
    for (const char *p = shape; *p;) {
        n *= strtoul(p, NULL, 10);
        p += strcspn(p, ",");
        p += *p == ',';
    }
    return n;
}

/* f32 numbers of `source` (usually the tensor's own name), starting at element `first`. */
static inline void tb_st_from(tb_st *f, const char *name, const char *shape, const char *source, uint64_t first)
{
    size_t n = tb_count(shape);
    float *v = malloc(n * sizeof *v + 1);
    for (size_t i = 0; v && i < n; i++) v[i] = tb_value(source, first + i);
    tb_st_add(f, name, "F32", shape, v, n * sizeof *v);
    free(v);
}

static inline void tb_st_f32(tb_st *f, const char *name, const char *shape)
{
    tb_st_from(f, name, shape, name, 0);
}

static inline void tb_write(const char *dir, const char *name, const void *p, size_t n)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *out = fopen(path, "wb");
    if (!out) return;
    if (fwrite(p, 1, n, out) != n) fprintf(stderr, "%s: short write\n", path);
    fclose(out);
}

static inline void tb_st_write(tb_st *f, const char *dir)
{
    m5_buf all = {0};
    if (f->header.n)
        m5_buf_putc(&f->header, '}');
    else
        m5_buf_puts(&f->header, "{}");
    while (f->header.n % 8) m5_buf_putc(&f->header, ' ');
    for (int i = 0; i < 8; i++) m5_buf_putc(&all, (char)(f->header.n >> 8 * i & 255));
    m5_buf_append(&all, f->header.p, f->header.n);
    m5_buf_append(&all, f->data.p, f->data.n);
    tb_write(dir, "model.safetensors", all.p, all.n);
    m5_buf_free(&all);
    m5_buf_free(&f->header);
    m5_buf_free(&f->data);
}

/* ---- GGUF ---- */

typedef struct tb_gguf {
    m5_buf kv, infos, data;
    int n_kv, n_tensors;
} tb_gguf;

static inline void tb_le(m5_buf *b, uint64_t v, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++) m5_buf_putc(b, (char)(v >> 8 * i & 255));
}

static inline void tb_gstr(m5_buf *b, const char *s)
{
    tb_le(b, strlen(s), 8);
    m5_buf_puts(b, s);
}

static inline void tb_gkey(tb_gguf *g, const char *key, uint32_t type)
{
    tb_gstr(&g->kv, key);
    tb_le(&g->kv, type, 4);
    g->n_kv++;
}

static inline void tb_gu32(tb_gguf *g, const char *key, uint32_t v)
{
    tb_gkey(g, key, 4);
    tb_le(&g->kv, v, 4);
}

static inline void tb_gf32(tb_gguf *g, const char *key, float v)
{
    uint32_t u;
    memcpy(&u, &v, 4);
    tb_gkey(g, key, 6);
    tb_le(&g->kv, u, 4);
}

static inline void tb_gtext(tb_gguf *g, const char *key, const char *v)
{
    tb_gkey(g, key, 8);
    tb_gstr(&g->kv, v);
}

/* Lists: type 5 = i32, 7 = bool. */
static inline void tb_glist(tb_gguf *g, const char *key, uint32_t type, const int *v, int n)
{
    tb_gkey(g, key, 9);
    tb_le(&g->kv, type, 4);
    tb_le(&g->kv, (uint64_t)n, 8);
    for (int i = 0; i < n; i++) tb_le(&g->kv, (uint64_t)(int64_t)v[i], type == 7 ? 1 : 4);
}

/* dims with the contiguous axis first, as the format wants it: "8, 4" is 4 rows of 8. */
static inline void tb_gtensor(tb_gguf *g, const char *name, uint32_t type, const char *dims, const void *p, size_t n)
{
    uint64_t d[4], k = 0;
    for (const char *q = dims; *q && k < 4;) {
        d[k++] = strtoul(q, NULL, 10);
        q += strcspn(q, ",");
        q += *q == ',';
    }
    while (g->data.n % 32) m5_buf_putc(&g->data, 0);
    tb_gstr(&g->infos, name);
    tb_le(&g->infos, k, 4);
    for (uint64_t i = 0; i < k; i++) tb_le(&g->infos, d[i], 8);
    tb_le(&g->infos, type, 4);
    tb_le(&g->infos, g->data.n, 8);
    m5_buf_append(&g->data, p, n);
    g->n_tensors++;
}

/* f32 numbers of `source` plus `add`. */
static inline void tb_gfrom(tb_gguf *g, const char *name, const char *dims, const char *source, float add)
{
    size_t n = tb_count(dims);
    float *v = malloc(n * sizeof *v + 1);
    for (size_t i = 0; v && i < n; i++) v[i] = tb_value(source, i) + add;
    tb_gtensor(g, name, 0, dims, v, n * sizeof *v);
    free(v);
}

/* The whole file; the caller frees *all. */
static inline void tb_gfinish(tb_gguf *g, m5_buf *all)
{
    m5_buf_puts(all, "GGUF");
    tb_le(all, 3, 4);
    tb_le(all, (uint64_t)g->n_tensors, 8);
    tb_le(all, (uint64_t)g->n_kv, 8);
    m5_buf_append(all, g->kv.p, g->kv.n);
    m5_buf_append(all, g->infos.p, g->infos.n);
    while (all->n % 32) m5_buf_putc(all, 0);
    m5_buf_append(all, g->data.p, g->data.n);
    m5_buf_free(&g->kv);
    m5_buf_free(&g->infos);
    m5_buf_free(&g->data);
}

/* ---- folders ---- */

/* A fresh folder below the current one's temporary place; dir needs 64 bytes. */
static inline void tb_dir(char dir[64])
{
    snprintf(dir, 64, "/tmp/m5-test-XXXXXX");
    if (!mkdtemp(dir)) dir[0] = 0;
}

static inline void tb_dir_remove(const char *dir)
{
    char **names = NULL;
    size_t n = 0;
    if (!dir[0] || m5_dir_list(&names, &n, dir, NULL)) return;
    for (size_t i = 0; i < n; i++) {
        char path[512];
        snprintf(path, sizeof path, "%.255s/%.255s", dir, names[i]);
        if (m5_path_is_dir(path))
            tb_dir_remove(path);
        else
            unlink(path);
        m5_free(names[i]);
    }
    m5_free(names);
    rmdir(dir);
}

#endif
