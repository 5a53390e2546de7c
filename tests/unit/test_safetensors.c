/* SPDX-License-Identifier: Apache-2.0 */
/* Safetensors reader: tensors of one file and of shards, one case for each refusal, folders that try to leave themselves, and damage of every kind. */
#include "model/safetensors.h"

#include "container.h"

#include <stdio.h>
#include <unistd.h>

static m5_error err;

/* A file with this header and n_data bytes 0, 1, 2, ... behind it. */
static void make(m5_buf *b, const char *header, size_t n_data)
{
    m5_buf_clear(b);
    put(b, strlen(header), 8);
    m5_buf_puts(b, header);
    for (size_t i = 0; i < n_data; i++) m5_buf_putc(b, (char)i);
}

static int walk(const uint8_t *p, size_t n, m5_error *e)
{
    m5_st *s = NULL;
    int rc = m5_st_open_mem(&s, p, n, "mem.safetensors", e);
    uint64_t sum = 0;
    if (rc) return rc;
    for (size_t i = 0; i < m5_st_n_tensors(s); i++) {
        const m5_st_tensor *t = m5_st_tensor_at(s, i);
        T_CHECK(m5_st_find(s, t->name) == t, "%s", t->name);
        for (size_t j = 0; j < t->n_bytes; j++) sum += t->data[j];
    }
    sum += m5_st_metadata(s, "format").n;
    c_sink = sum;
    m5_st_close(s);
    return 0;
}

static const char valid[] = "{\"__metadata__\":{\"format\":\"pt\",\"n\":3},"
                            "\"w\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
                            "\"s\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[12,16]},"
                            "\"f8\":{\"dtype\":\"F8_E4M3\",\"shape\":[4],\"data_offsets\":[16,20]},"
                            "\"none\":{\"dtype\":\"I64\",\"shape\":[3,0],\"data_offsets\":[20,20]},"
                            "\"caf\\u00e9\":{\"dtype\":\"U32\",\"shape\":[1,1,1,1,1,1,1,2],\"data_offsets\":[24,32]}}   ";

static void check_valid(void)
{
    m5_buf b = {0};
    m5_st *s = NULL;
    make(&b, valid, 32);
    T_EQ_INT(m5_st_open_mem(&s, b.p, b.n, "mem.safetensors", &err), 0);
    if (!s) return;
    const uint8_t *data = (const uint8_t *)b.p + 8 + strlen(valid);
    const m5_st_tensor *t = m5_st_find(s, "w");
    T_CHECK(t && t->type == M5_BF16 && t->n_dims == 2 && t->shape[0] == 2 && t->shape[1] == 3 && t->shape[2] == 1 && t->n_elem == 6);
    T_CHECK(t && t->data == data && t->n_bytes == 12 && t->file == 0 && t == m5_st_tensor_at(s, 0));
    t = m5_st_find(s, "s");
    T_CHECK(t && t->type == M5_F32 && t->n_dims == 0 && t->n_elem == 1 && t->data == data + 12);
    t = m5_st_find(s, "f8");
    T_CHECK(t && t->type == M5_DTYPE_COUNT && strcmp(t->type_name, "F8_E4M3") == 0 && t->n_bytes == 4);
    t = m5_st_find(s, "none");
    T_CHECK(t && t->n_elem == 0 && t->n_bytes == 0);
    t = m5_st_find(s, "caf\xc3\xa9");
    T_CHECK(t && t->n_dims == 8 && t->shape[7] == 2 && t->data == data + 24);
    T_CHECK(!m5_st_find(s, "__metadata__") && !m5_st_find(s, "x") && m5_st_n_tensors(s) == 5 && m5_st_n_files(s) == 1);
    T_CHECK(m5_slice_is(m5_st_metadata(s, "format"), "pt") && m5_st_metadata(s, "n").n == 0 && m5_st_metadata(s, "x").n == 0);
    T_EQ_INT(m5_st_header_bytes(s, 0), 8 + strlen(valid));
    m5_st_close(s);
    m5_st_close(NULL);

    size_t n_ok = 0;
    T_EQ_INT(accepted_cuts(walk, (const uint8_t *)b.p, b.n), 0);
    T_EQ_INT(damage(walk, (const uint8_t *)b.p, b.n, b.n - 32, 20000, &n_ok), 0);
    T_CHECK(n_ok > 100 && n_ok < 19000, "%zu damaged files were accepted", n_ok);
    starve(walk, (const uint8_t *)b.p, b.n, false);
    m5_buf_free(&b);
}

static void refused(const char *header, int code, const char *part)
{
    m5_buf b = {0};
    make(&b, header, 32);
    int rc = run_exact(walk, (const uint8_t *)b.p, b.n, &err);
    T_CHECK(rc == code && strstr(err.text, part), "rc %d, \"%s\", expected %d and \"%s\"", rc, err.text, code, part);
    m5_buf_free(&b);
}

#define T1(dtype, shape, offsets) "{\"t\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void check_refusals(void)
{
    m5_buf b = {0};
    refused("[]", M5_ERR_FORMAT, "not a JSON object");
    refused("{", M5_ERR_FORMAT, "mem.safetensors: header");
    refused("{\"t\":1}", M5_ERR_FORMAT, "'t' has no shape");
    refused("{\"\":{}}", M5_ERR_FORMAT, "name of 0 bytes");
    refused("{\"a\\u0000b\":{}}", M5_ERR_FORMAT, "");
    refused(T1("F99", "[1]", "[0,4]"), M5_ERR_FORMAT, "unknown dtype 'F99'");
    refused(T1("F32", "[1]", "[4,0]"), M5_ERR_FORMAT, "'t' has no valid data_offsets");
    refused(T1("F32", "[1]", "[0]"), M5_ERR_FORMAT, "'t' has no valid data_offsets");
    refused(T1("F32", "[1]", "[-4,0]"), M5_ERR_FORMAT, "'t' has no valid data_offsets");
    refused(T1("F32", "[1]", "[0,4.0]"), M5_ERR_FORMAT, "'t' has no valid data_offsets");
    refused(T1("F32", "[9]", "[0,36]"), M5_ERR_FORMAT, "'t' ends at byte 36 of a data block of 32");
    refused(T1("F32", "[2]", "[0,4]"), M5_ERR_FORMAT, "4 bytes, which is not 2 elements of F32");
    refused(T1("F32", "[1.0]", "[0,4]"), M5_ERR_FORMAT, "dimension 0 of tensor 't' is not a size");
    refused(T1("F32", "[-1]", "[0,4]"), M5_ERR_FORMAT, "dimension 0 of tensor 't' is not a size");
    refused(T1("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), M5_ERR_FORMAT, "9 dimensions");
    refused(T1("F32", "[4294967296,4294967296]", "[0,4]"), M5_ERR_FORMAT, "overflow");
    refused(T1("F32", "[4611686018427387905]", "[0,4]"), M5_ERR_FORMAT, "is not 4611686018427387905 elements");
    refused(T1("F4", "[3]", "[0,1]"), M5_ERR_FORMAT, "is not 3 elements");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[3,7]}}", M5_ERR_FORMAT,
            "'a' and 'b' overlap");
    refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[4,8]}}", M5_ERR_FORMAT,
            "mem.safetensors: header");
    put(&b, (uint64_t)1 << 40, 8);
    int rc = run_exact(walk, (const uint8_t *)b.p, b.n, &err);
    T_CHECK(rc == M5_ERR_FORMAT && strstr(err.text, "cut off"), "%d %s", rc, err.text);
    m5_buf_clear(&b);
    put(&b, 40 << 20, 8);
    for (int i = 0; i < (40 << 20); i += 64) m5_buf_puts(&b, "                                                                ");
    rc = run_exact(walk, (const uint8_t *)b.p, b.n, &err);
    T_CHECK(rc == M5_ERR_LIMIT, "%d %s", rc, err.text);
    m5_buf_free(&b);
}

/* --- folders -------------------------------------------------------------------------------------------------------------------- */

static char dir[64];

static void write_file(const char *name, const void *p, size_t n)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    T_CHECK(m5_file_write_atomic(path, p, n, 0600, &err) == 0, "%s", err.text);
}

/* A shard with one F32 tensor. */
static void write_shard(const char *file, const char *tensor)
{
    m5_buf b = {0};
    char header[128];
    snprintf(header, sizeof header, "{\"%s\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", tensor);
    make(&b, header, 4);
    write_file(file, b.p, b.n);
    m5_buf_free(&b);
}

static void write_index(const char *text)
{
    write_file("model.safetensors.index.json", text, strlen(text));
}

static void empty_dir(void)
{
    char **names = NULL;
    size_t n = 0;
    T_EQ_INT(m5_dir_list(&names, &n, dir, &err), 0);
    for (size_t i = 0; i < n; i++) {
        char path[384];
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
        m5_free(names[i]);
    }
    m5_free(names);
}

static void open_dir(int code, const char *part, size_t n_tensors)
{
    m5_st *s = NULL;
    memset(&err, 0, sizeof err);
    int rc = m5_st_open(&s, dir, &err);
    T_CHECK(rc == code && (rc == 0) == (s != NULL), "%d %s, expected %d", rc, err.text, code);
    T_CHECK(strstr(err.text, part), "\"%s\" lacks \"%s\"", err.text, part);
    if (s) T_EQ_INT(m5_st_n_tensors(s), n_tensors);
    m5_st_close(s);
}

static void check_folders(void)
{
    static const char *const outside[] = {"../secret.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "", ".hidden.safetensors", "x.bin",
                                          "a\\\\b.safetensors"};
    snprintf(dir, sizeof dir, "/tmp/m5_test_st_%d", (int)getpid());
    T_CHECK(m5_dir_make(dir, 0700, &err) == 0, "%s", err.text);
    open_dir(M5_ERR_NOTFOUND, "no safetensors file", 0);
    write_shard("weights.safetensors", "a");
    open_dir(0, "", 1);
    write_shard("other.safetensors", "b");
    open_dir(M5_ERR_NOTFOUND, "2 safetensors files", 0);
    write_shard("model.safetensors", "c");
    open_dir(0, "", 1);
    write_index("{\"metadata\":{},\"weight_map\":{\"a\":\"weights.safetensors\",\"b\":\"other.safetensors\"}}");
    open_dir(0, "", 2);
    write_index("{\"weight_map\":{\"a\":\"weights.safetensors\",\"b\":\"weights.safetensors\"}}");
    open_dir(M5_ERR_FORMAT, "tensor 'b' is not in weights.safetensors", 0);
    write_index("{\"weight_map\":{\"a\":\"other.safetensors\",\"b\":\"weights.safetensors\"}}");
    open_dir(M5_ERR_FORMAT, "tensor 'a' is not in other.safetensors", 0);
    write_index("{\"weight_map\":{\"a\":\"weights.safetensors\",\"b\":\"gone.safetensors\"}}");
    open_dir(M5_ERR_NOTFOUND, "gone.safetensors", 0);
    write_shard("other.safetensors", "a");
    write_index("{\"weight_map\":{\"a\":\"weights.safetensors\",\"b\":\"other.safetensors\"}}");
    open_dir(M5_ERR_FORMAT, "tensor 'a' is both in", 0);
    for (size_t i = 0; i < sizeof outside / sizeof outside[0]; i++) {
        char text[128];
        snprintf(text, sizeof text, "{\"weight_map\":{\"a\":\"%s\"}}", outside[i]);
        write_index(text);
        open_dir(M5_ERR_FORMAT, "not the name of a shard", 0);
    }
    write_index("{\"weight_map\":{\"a\":5}}");
    open_dir(M5_ERR_FORMAT, "not the name of a shard", 0);
    write_index("{\"weight_map\":[]}");
    open_dir(M5_ERR_FORMAT, "no weight_map", 0);
    write_index("{");
    open_dir(M5_ERR_FORMAT, "index.json", 0);
    empty_dir();
    rmdir(dir);
}

/* The committed test models are files of another writer. */
static void check_foreign(void)
{
    m5_st *s = NULL;
    int rc = m5_st_open(&s, M5_TEST_DATA "/models/qwen3_5_mtp", &err);
    T_CHECK(rc == 0, "%s", err.text);
    if (!s) return;
    const m5_st_tensor *t = m5_st_find(s, "mtp.fc.weight");
    T_CHECK(t && t->type == M5_BF16 && t->n_dims == 2 && t->shape[0] == 32 && t->shape[1] == 64);
    T_CHECK(m5_slice_is(m5_st_metadata(s, "format"), "pt"));
    m5_st_close(s);
    rc = m5_st_open(&s, M5_TEST_DATA "/models/qwen3_5_mtp/expected.safetensors", &err);
    T_CHECK(rc == 0, "%s", err.text);
    t = s ? m5_st_find(s, "logits_long_last8") : NULL;
    T_CHECK(t && t->type == M5_F32 && t->shape[0] == 8);
    m5_st_close(s);
}

int main(void)
{
    check_valid();
    check_refusals();
    check_folders();
    check_foreign();
    return t_done();
}
