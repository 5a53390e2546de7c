/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF reader: every kind of value and its conversions, tensors and their places, split files, one case for each refusal, and damage of every kind. */
#include "model/gguf.h"

#include "container.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

enum { U8, I8, U16, I16, U32, I32, F32, BOOL, STR, ARRAY, U64, I64, F64 };

static m5_error err;

/* --- building ------------------------------------------------------------------------------------------------------------------- */

static void key(m5_buf *b, const char *name, int type)
{
    put_str(b, name);
    put(b, (uint64_t)type, 4);
}

static void array(m5_buf *b, const char *name, int elem, uint64_t n)
{
    key(b, name, ARRAY);
    put(b, (uint64_t)elem, 4);
    put(b, n, 8);
}

static void tensor(m5_buf *b, const char *name, int n_dims, const uint64_t *dims, uint32_t type, uint64_t offset)
{
    put_str(b, name);
    put(b, (uint64_t)n_dims, 4);
    for (int i = 0; i < n_dims; i++) put(b, dims[i], 8);
    put(b, type, 4);
    put(b, offset, 8);
}

static void head(m5_buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    m5_buf_puts(b, "GGUF");
    put(b, version, 4);
    put(b, n_tensors, 8);
    put(b, n_kv, 8);
}

/* One file with every value type and five tensors; alignment 64. Returns the bytes of its header. */
static size_t build(m5_buf *b)
{
    head(b, 3, 5, 20);
    key(b, "u8", U8), put(b, 200, 1);
    key(b, "i8", I8), put(b, (uint64_t)-5, 1);
    key(b, "u16", U16), put(b, 65535, 2);
    key(b, "i16", I16), put(b, (uint64_t)-32768, 2);
    key(b, "u32", U32), put(b, 4000000000u, 4);
    key(b, "i32", I32), put(b, (uint64_t)-7, 4);
    key(b, "f32", F32), put(b, 0x3fc00000, 4); /* 1.5 */
    key(b, "true", BOOL), put(b, 1, 1);
    key(b, "false", BOOL), put(b, 0, 1);
    key(b, "u64", U64), put(b, 0xfedcba9876543210u, 8);
    key(b, "i64", I64), put(b, (uint64_t)INT64_MIN, 8);
    key(b, "f64", F64), put(b, 0xc004000000000000u, 8); /* -2.5 */
    key(b, "text", STR), put_str(b, "h\xc3\xa9llo");
    key(b, "empty", STR), put_str(b, "");
    array(b, "ints", I32, 3), put(b, 1, 4), put(b, (uint64_t)-2, 4), put(b, 3, 4);
    array(b, "floats", F32, 2), put(b, 0x3f800000, 4), put(b, 0xbf000000, 4);
    array(b, "bools", BOOL, 2), put(b, 1, 1), put(b, 0, 1);
    array(b, "none", STR, 0);
    array(b, "words", STR, 300);
    for (int i = 0; i < 300; i++) {
        char w[16];
        snprintf(w, sizeof w, "w%d", i);
        put_str(b, i == 7 ? "" : w);
    }
    key(b, "general.alignment", U32), put(b, 64, 4);
    tensor(b, "a.weight", 2, (uint64_t[]){64, 3}, 8, 0);     /* Q8_0: 6 blocks of 34 = 204 */
    tensor(b, "scalar", 0, NULL, 0, 256);                    /* F32, 4 bytes */
    tensor(b, "odd", 1, (uint64_t[]){256}, 16, 320);         /* IQ2_XXS: not readable here */
    tensor(b, "deep", 4, (uint64_t[]){2, 2, 2, 2}, 1, 384);  /* F16, 32 bytes */
    tensor(b, "future", 1, (uint64_t[]){5}, 777, 320);
    size_t n_header = b->n;
    pad_to(b, 64);
    for (int i = 0; i < 384 + 32; i++) m5_buf_putc(b, (char)i);
    return n_header;
}

/* --- reading everything --------------------------------------------------------------------------------------------------------- */

static int walk(const uint8_t *p, size_t n, m5_error *e)
{
    m5_gguf *g = NULL;
    int rc = m5_gguf_open_mem(&g, p, n, "mem.gguf", e);
    uint64_t sum = 0;
    if (rc) return rc;
    for (size_t i = 0; i < m5_gguf_n_kv(g); i++) {
        const m5_gguf_kv *kv = m5_gguf_kv_at(g, i);
        T_CHECK(m5_gguf_find_kv(g, kv->key) == kv, "%s", kv->key);
        for (size_t k = 0; k < kv->n; k++) {
            int64_t v = 0;
            double d = 0;
            bool t = false;
            m5_slice s = {0};
            sum += (m5_gguf_at_i64(kv, k, &v) ? (uint64_t)v : 0) + (m5_gguf_at_f64(kv, k, &d) ? d > 0 : 0) + (m5_gguf_at_bool(kv, k, &t) ? t : 0);
            if (m5_gguf_at_str(kv, k, &s)) {
                for (size_t j = 0; j < s.n; j++) sum += (uint8_t)s.p[j];
            }
        }
    }
    for (size_t i = 0; i < m5_gguf_n_tensors(g); i++) {
        const m5_gguf_tensor *t = m5_gguf_tensor_at(g, i);
        T_CHECK(m5_gguf_find(g, t->name) == t, "%s", t->name);
        for (size_t j = 0; j < t->n_bytes; j++) sum += t->data[j];
    }
    c_sink = sum;
    m5_gguf_close(g);
    return 0;
}

static void check_values(const m5_gguf *g)
{
    uint64_t u = 9;
    int64_t i = 9;
    double d = 9;
    bool b = false;
    m5_slice s = {0};
    T_CHECK(m5_gguf_u64(g, "u8", &u) && u == 200);
    T_CHECK(m5_gguf_u64(g, "u64", &u) && u == 0xfedcba9876543210u);
    u = 9;
    T_CHECK(!m5_gguf_u64(g, "i8", &u) && !m5_gguf_u64(g, "f32", &u) && !m5_gguf_u64(g, "true", &u) && !m5_gguf_u64(g, "ints", &u) && u == 9);
    T_CHECK(!m5_gguf_u64(g, "absent", &u) && !m5_gguf_u64(g, "text", &u) && u == 9);
    T_CHECK(!m5_gguf_i64(g, "u64", &i) && i == 9);
    T_CHECK(m5_gguf_i64(g, "i8", &i) && i == -5);
    T_CHECK(m5_gguf_i64(g, "i16", &i) && i == -32768);
    T_CHECK(m5_gguf_i64(g, "i32", &i) && i == -7);
    T_CHECK(m5_gguf_i64(g, "i64", &i) && i == INT64_MIN);
    T_CHECK(m5_gguf_i64(g, "u16", &i) && i == 65535);
    T_CHECK(m5_gguf_f64(g, "f32", &d) && d == 1.5);
    T_CHECK(m5_gguf_f64(g, "f64", &d) && d == -2.5);
    T_CHECK(m5_gguf_f64(g, "u32", &d) && d == 4e9);
    T_CHECK(m5_gguf_f64(g, "i8", &d) && d == -5);
    T_CHECK(!m5_gguf_f64(g, "true", &d) && !m5_gguf_f64(g, "floats", &d) && d == -5);
    T_CHECK(m5_gguf_bool(g, "true", &b) && b && m5_gguf_bool(g, "false", &b) && !b && !m5_gguf_bool(g, "u8", &b));
    T_CHECK(m5_gguf_str(g, "text", &s) && m5_slice_is(s, "h\xc3\xa9llo") && m5_gguf_str(g, "empty", &s) && s.n == 0);
    T_CHECK(!m5_gguf_str(g, "words", &s) && !m5_gguf_array(g, "text") && !m5_gguf_array(g, "absent"));

    const m5_gguf_kv *a = m5_gguf_array(g, "ints");
    T_CHECK(a && a->n == 3 && m5_gguf_at_i64(a, 1, &i) && i == -2 && m5_gguf_at_f64(a, 2, &d) && d == 3 && !m5_gguf_at_i64(a, 3, &i));
    a = m5_gguf_array(g, "floats");
    T_CHECK(a && m5_gguf_at_f64(a, 1, &d) && d == -0.5 && !m5_gguf_at_i64(a, 0, &i) && !m5_gguf_at_bool(a, 0, &b));
    a = m5_gguf_array(g, "bools");
    T_CHECK(a && m5_gguf_at_bool(a, 0, &b) && b && m5_gguf_at_bool(a, 1, &b) && !b && !m5_gguf_at_bool(a, 2, &b));
    a = m5_gguf_array(g, "words");
    T_CHECK(a && a->n == 300 && m5_gguf_at_str(a, 299, &s) && m5_slice_is(s, "w299") && m5_gguf_at_str(a, 7, &s) && s.n == 0);
    T_CHECK(a && !m5_gguf_at_str(a, 300, &s) && m5_gguf_array(g, "none")->n == 0);
}

static void check_tensors(const m5_gguf *g, size_t n_header)
{
    char buf[32];
    const uint8_t *data = m5_gguf_map(g, 0)->p + (n_header + 63) / 64 * 64;
    const m5_gguf_tensor *t = m5_gguf_find(g, "a.weight");
    T_CHECK(t && t->type == M5_Q8_0 && t->n_dims == 2 && t->dims[0] == 64 && t->dims[1] == 3 && t->dims[2] == 1 && t->n_bytes == 204);
    T_CHECK(t && t->data == data && t == m5_gguf_tensor_at(g, 0) && t->file == 0);
    t = m5_gguf_find(g, "scalar");
    T_CHECK(t && t->type == M5_F32 && t->n_dims == 0 && t->n_bytes == 4 && t->data == data + 256);
    t = m5_gguf_find(g, "deep");
    T_CHECK(t && t->n_dims == 4 && t->n_bytes == 32 && t->data == data + 384);
    t = m5_gguf_find(g, "odd");
    T_CHECK(t && t->type == M5_DTYPE_COUNT && t->ggml_type == 16 && t->n_bytes == 0);
    T_EQ_STR(m5_gguf_type_name(16, buf, sizeof buf), "type 16 (IQ2_XXS)");
    T_EQ_STR(m5_gguf_type_name(777, buf, sizeof buf), "type 777");
    T_EQ_STR(m5_gguf_type_name(12, buf, sizeof buf), "Q4_K");
    T_EQ_STR(m5_gguf_type_name(16, buf, 5), "type");
    T_CHECK(!m5_gguf_find(g, "nothing") && m5_gguf_n_tensors(g) == 5 && m5_gguf_n_kv(g) == 20 && m5_gguf_n_files(g) == 1);
    T_EQ_INT(m5_gguf_header_bytes(g, 0), n_header);
    T_EQ_STR(m5_gguf_path(g, 0), "mem.gguf");
}

/* --- refusals ------------------------------------------------------------------------------------------------------------------- */

/* Closes the file under construction with its data and expects a refusal that mentions `part`. */
static void refused(m5_buf *b, int code, const char *part)
{
    pad_to(b, 32);
    for (int i = 0; i < 64; i++) m5_buf_putc(b, 0);
    int rc = run_exact(walk, (const uint8_t *)b->p, b->n, &err);
    T_CHECK(rc == code && strstr(err.text, part), "rc %d, \"%s\", expected %d and \"%s\"", rc, err.text, code, part);
    m5_buf_clear(b);
}

static void check_refusals(void)
{
    m5_buf b = {0};
    m5_buf_puts(&b, "GGML0123456789012345678"), refused(&b, M5_ERR_FORMAT, "not a GGUF file");
    head(&b, 1, 0, 0), refused(&b, M5_ERR_UNSUPPORTED, "version 1");
    head(&b, 4, 0, 0), refused(&b, M5_ERR_UNSUPPORTED, "version 4");
    head(&b, 0x03000000, 0, 0), refused(&b, M5_ERR_UNSUPPORTED, "big-endian");
    head(&b, 3, 0, (uint64_t)1 << 60), refused(&b, M5_ERR_FORMAT, "ends inside the metadata");
    head(&b, 3, (uint64_t)1 << 60, 0), refused(&b, M5_ERR_FORMAT, "ends inside the tensor list");
    head(&b, 3, 0, 1), key(&b, "", U8), put(&b, 0, 1), refused(&b, M5_ERR_FORMAT, "not a valid name");
    head(&b, 3, 0, 1), key(&b, "\xff", U8), put(&b, 0, 1), refused(&b, M5_ERR_FORMAT, "not a valid name");
    head(&b, 3, 0, 1), key(&b, "k", 13), put(&b, 0, 1), refused(&b, M5_ERR_FORMAT, "'k' has the unknown value type 13");
    head(&b, 3, 0, 2), key(&b, "k", U8), put(&b, 0, 1), key(&b, "k", U8), put(&b, 0, 1), refused(&b, M5_ERR_FORMAT, "'k' occurs twice");
    head(&b, 3, 0, 1), array(&b, "k", ARRAY, 1), refused(&b, M5_ERR_FORMAT, "'k' is an array of type 9");
    head(&b, 3, 0, 1), array(&b, "k", U64, (uint64_t)1 << 61), refused(&b, M5_ERR_FORMAT, "ends inside k");
    head(&b, 3, 0, 1), array(&b, "k", STR, (uint64_t)1 << 62), refused(&b, M5_ERR_FORMAT, "ends inside k");
    head(&b, 3, 0, 1), key(&b, "k", STR), put(&b, UINT64_MAX, 8), refused(&b, M5_ERR_FORMAT, "ends inside k");
    head(&b, 3, 0, 1), key(&b, "general.alignment", U32), put(&b, 24, 4), refused(&b, M5_ERR_FORMAT, "power of two");
    head(&b, 3, 0, 1), key(&b, "general.alignment", U32), put(&b, 0, 4), refused(&b, M5_ERR_FORMAT, "power of two");
    head(&b, 3, 1, 0), tensor(&b, "t", 5, (uint64_t[]){1, 1, 1, 1, 1}, 0, 0), refused(&b, M5_ERR_FORMAT, "'t' has 5 dimensions");
    head(&b, 3, 1, 0), tensor(&b, "t", 1, (uint64_t[]){0}, 0, 0), refused(&b, M5_ERR_FORMAT, "dimension 0 of tensor 't' is 0");
    head(&b, 3, 1, 0), tensor(&b, "t", 1, (uint64_t[]){UINT64_MAX}, 0, 0), refused(&b, M5_ERR_FORMAT, "dimension 0");
    head(&b, 3, 1, 0), tensor(&b, "t", 2, (uint64_t[]){(uint64_t)1 << 40, (uint64_t)1 << 40}, 0, 0), refused(&b, M5_ERR_FORMAT, "overflow");
    head(&b, 3, 1, 0), tensor(&b, "t", 1, (uint64_t[]){(uint64_t)1 << 62}, 0, 0), refused(&b, M5_ERR_FORMAT, "overflow");
    head(&b, 3, 1, 0), tensor(&b, "t", 1, (uint64_t[]){48}, 8, 0), refused(&b, M5_ERR_FORMAT, "rows of 48 elements");
    head(&b, 3, 1, 0), tensor(&b, "t", 1, (uint64_t[]){4}, 0, 8), refused(&b, M5_ERR_FORMAT, "not aligned");
    head(&b, 3, 1, 0), tensor(&b, "t", 1, (uint64_t[]){40}, 0, 0), refused(&b, M5_ERR_FORMAT, "beyond the end");
    head(&b, 3, 1, 0), tensor(&b, "t", 1, (uint64_t[]){4}, 0, (uint64_t)1 << 63), refused(&b, M5_ERR_FORMAT, "beyond the end");
    head(&b, 3, 2, 0), tensor(&b, "t", 1, (uint64_t[]){12}, 0, 0), tensor(&b, "u", 1, (uint64_t[]){4}, 0, 32);
    refused(&b, M5_ERR_FORMAT, "'t' and 'u' overlap");
    head(&b, 3, 2, 0), tensor(&b, "t", 1, (uint64_t[]){4}, 0, 0), tensor(&b, "t", 1, (uint64_t[]){4}, 0, 32);
    refused(&b, M5_ERR_FORMAT, "'t' occurs twice");
    m5_buf_free(&b);
}

/* --- files ---------------------------------------------------------------------------------------------------------------------- */

static char dir[64];

static void write_file(const char *name, const m5_buf *b)
{
    char path[160];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    T_CHECK(m5_file_write_atomic(path, b->p, b->n, 0600, &err) == 0, "%s", err.text);
}

/* Part no (0..) of count with one tensor; total < 0 leaves split.tensors.count out. */
static void write_part(const char *name, int no, int count, int total)
{
    m5_buf b = {0};
    char t[16];
    snprintf(t, sizeof t, "t%d", no);
    head(&b, 3, 1, (total >= 0 ? 3 : 2) + (no == 0 ? 1 : 0));
    if (no == 0) key(&b, "general.name", STR), put_str(&b, "split");
    key(&b, "split.no", U16), put(&b, (uint64_t)no, 2);
    key(&b, "split.count", U16), put(&b, (uint64_t)count, 2);
    if (total >= 0) key(&b, "split.tensors.count", I32), put(&b, (uint64_t)total, 4);
    tensor(&b, t, 1, (uint64_t[]){4}, 0, 0);
    pad_to(&b, 32);
    for (int i = 0; i < 16; i++) m5_buf_putc(&b, (char)(no + 1));
    write_file(name, &b);
    m5_buf_free(&b);
}

static void open_file(const char *name, int code, const char *part, int n_files)
{
    char path[160];
    m5_gguf *g = NULL;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    memset(&err, 0, sizeof err);
    int rc = m5_gguf_open(&g, path, &err);
    T_CHECK(rc == code && (rc == 0) == (g != NULL), "%s: %d %s", name, rc, err.text);
    if (rc) T_CHECK(strstr(err.text, part), "\"%s\" lacks \"%s\"", err.text, part);
    if (g) {
        m5_slice s = {0};
        T_EQ_INT(m5_gguf_n_files(g), n_files);
        T_CHECK(m5_gguf_str(g, "general.name", &s) && m5_slice_is(s, "split"));
        for (int i = 0; i < n_files; i++) {
            char t[16];
            snprintf(t, sizeof t, "t%d", i);
            const m5_gguf_tensor *x = m5_gguf_find(g, t);
            T_CHECK(x && x->file == i && x->data[0] == i + 1, "%s", t);
        }
    }
    m5_gguf_close(g);
}

static void check_files(void)
{
    m5_buf empty = {0}, junk = {0};
    snprintf(dir, sizeof dir, "/tmp/m5_test_gguf_%d", (int)getpid());
    T_CHECK(m5_dir_make(dir, 0700, &err) == 0, "%s", err.text);
    for (int i = 0; i < 3; i++) {
        char name[64];
        snprintf(name, sizeof name, "m-%05d-of-00003.gguf", i + 1);
        write_part(name, i, 3, 3);
    }
    open_file("m-00001-of-00003.gguf", 0, "", 3);
    open_file("m-00003-of-00003.gguf", 0, "", 3);
    write_part("m-00002-of-00003.gguf", 0, 3, 3);
    open_file("m-00001-of-00003.gguf", M5_ERR_FORMAT, "part 1 of 3, but its name says part 2 of 3", 0);
    write_part("m-00002-of-00003.gguf", 1, 3, 3);
    write_part("m-00001-of-00003.gguf", 0, 3, 7);
    open_file("m-00003-of-00003.gguf", M5_ERR_FORMAT, "split.tensors.count says 7", 0);
    write_part("lone.gguf", 0, 2, 2);
    open_file("lone.gguf", M5_ERR_FORMAT, "not named like one", 0);
    write_part("gone-00001-of-00002.gguf", 0, 2, 2);
    open_file("gone-00001-of-00002.gguf", M5_ERR_NOTFOUND, "gone-00002-of-00002.gguf", 0);
    write_part("one.gguf", 0, 1, -1);
    open_file("one.gguf", 0, "", 1);
    m5_buf_puts(&junk, "GG");
    m5_buf_putc(&empty, 0), m5_buf_clear(&empty);
    write_file("junk.gguf", &junk), open_file("junk.gguf", M5_ERR_FORMAT, "junk.gguf: not a GGUF file", 0);
    write_file("empty.gguf", &empty), open_file("empty.gguf", M5_ERR_FORMAT, "not a GGUF file", 0);
    open_file("absent.gguf", M5_ERR_NOTFOUND, "absent.gguf", 0);
    m5_buf_free(&junk);
    m5_buf_free(&empty);
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
    rmdir(dir);
}

int main(void)
{
    m5_buf b = {0};
    size_t n_header = build(&b), n_ok = 0;
    m5_gguf *g = NULL;
    T_EQ_INT(m5_gguf_open_mem(&g, b.p, b.n, "mem.gguf", &err), 0);
    if (g) {
        check_values(g);
        check_tensors(g, n_header);
    }
    m5_gguf_close(g);
    m5_gguf_close(NULL);
    T_EQ_INT(accepted_cuts(walk, (const uint8_t *)b.p, b.n), 0);
    T_EQ_INT(damage(walk, (const uint8_t *)b.p, b.n, n_header, 20000, &n_ok), 0);
    T_CHECK(n_ok > 100 && n_ok < 19000, "%zu damaged files were accepted", n_ok);
    starve(walk, (const uint8_t *)b.p, b.n, true);
    m5_buf_free(&b);
    check_refusals();
    check_files();
    return t_done();
}
