/* SPDX-License-Identifier: Apache-2.0 */
/* base/: errors, memory accounting and failure injection, buffers, UTF-8, JSON, files. */
#include "base/err.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/task.h"

#include <math.h>
#include <unistd.h>

#include "t.h"

static void test_err(void)
{
    m5_error e = {0};
    T_EQ_INT(m5_error_set(&e, M5_ERR_IO, "a\nb %d", 7), M5_ERR_IO);
    T_EQ_STR(e.text, "a b 7");
    m5_error_prefix(&e, "file %s", "x");
    T_EQ_STR(e.text, "file x: a b 7");
    T_EQ_INT(e.code, M5_ERR_IO);
    T_EQ_INT(m5_error_set(NULL, M5_ERR_ARG, "x"), M5_ERR_ARG);
    T_EQ_STR(m5_err_name(M5_ERR_CONTEXT), "M5_ERR_CONTEXT");
    T_EQ_STR(m5_err_name(-99), "M5_ERR_UNKNOWN");
    /* A long text of three-byte characters is cut between characters whatever the offset. */
    for (int pad = 0; pad < 3; pad++) {
        char longer[900] = {0};
        memset(longer, 'a', (size_t)pad);
        for (int i = pad; i + 3 < 890; i += 3) memcpy(longer + i, "\xE2\x82\xAC", 3);
        m5_error_set(&e, M5_ERR_ARG, "%s", longer);
        T_CHECK(m5_utf8_valid(e.text, strlen(e.text)), "pad %d", pad);
        T_CHECK(strlen(e.text) > M5_ERROR_TEXT_BYTES - 8, "pad %d", pad);
    }
}

static void test_mem(void)
{
    size_t before = m5_mem_bytes(M5_MEM_STATE);
    char *p = m5_alloc(M5_MEM_STATE, 100);
    T_CHECK(((uintptr_t)p & 63) == 0, "aligned");
    T_EQ_INT(m5_mem_bytes(M5_MEM_STATE) - before, 100);
    p = m5_realloc(M5_MEM_STATE, p, 300);
    T_EQ_INT(m5_mem_bytes(M5_MEM_STATE) - before, 300);
    m5_free(p);
    T_EQ_INT(m5_mem_bytes(M5_MEM_STATE), before);
    T_CHECK(m5_calloc(M5_MEM_MISC, SIZE_MAX / 2, 3) == NULL, "overflow");
    T_CHECK(m5_alloc(M5_MEM_MISC, SIZE_MAX - 5) == NULL, "absurd");
    m5_mem_fail_at(2);
    void *a = m5_alloc(M5_MEM_MISC, 1), *b = m5_alloc(M5_MEM_MISC, 1), *c = m5_alloc(M5_MEM_MISC, 1);
    T_CHECK(a && !b && c, "second allocation fails");
    m5_free(a);
    m5_free(c);
    m5_arena ar;
    m5_arena_init(&ar, M5_MEM_REQUEST, 200000);
    size_t n = 0;
    while (m5_arena_alloc(&ar, 1000)) n++;
    T_EQ_INT(n, 200000 / 1008);
    T_CHECK(m5_arena_alloc(&ar, 199000) == NULL, "limit");
    m5_arena_deinit(&ar);
    m5_arena_init(&ar, M5_MEM_REQUEST, 0);
    char *big = m5_arena_alloc(&ar, 300000), *small = m5_arena_strndup(&ar, "hello", 3);
    T_CHECK(big && small, "both");
    T_EQ_STR(small, "hel");
    m5_arena_deinit(&ar);
    T_EQ_INT(m5_mem_bytes(M5_MEM_REQUEST), 0);
}

static void test_str(void)
{
    m5_buf b = {0};
    for (int i = 0; i < 1000; i++) m5_buf_printf(&b, "%d,", i);
    T_EQ_INT(b.n, 3890);
    m5_buf_erase_front(&b, 2);
    T_CHECK(m5_slice_starts(m5_buf_view(&b), M5_SLICE("1,2,")), "%.8s", b.p);
    T_CHECK(m5_slice_ends(m5_buf_view(&b), M5_SLICE(",999,")), "end");
    T_EQ_INT(m5_slice_find(m5_buf_view(&b), M5_SLICE("999,"), 0), b.n - 4);
    T_CHECK(m5_slice_find(M5_SLICE("ab"), M5_SLICE("abc"), 0) == SIZE_MAX, "longer needle");
    m5_buf_free(&b);
    m5_mem_fail_at(1);
    m5_buf_puts(&b, "x");
    m5_buf_puts(&b, "y");
    T_CHECK(b.failed && b.p == NULL, "stays failed");
    m5_buf_free(&b);
    static const struct {
        const char *s;
        size_t n;
        int len;
        uint32_t cp;
    } u[] = {
        {"a", 1, 1, 'a'},
        {"\xC3\xA9", 2, 2, 0xE9},
        {"\xC3", 1, -1, 0xFFFD},
        {"\xF0\x9F\x99\x82", 4, 4, 0x1F642},
        {"\xF0\x9F\x99", 3, -1, 0xFFFD},
        {"\xF0\x9F\x99"
         "a",
         4, 3, 0xFFFD},
        {"\xE2\x82\xE2", 3, 2, 0xFFFD},
        {"\xED\xA0\x80", 3, 1, 0xFFFD},
        {"\xC0\x80", 2, 1, 0xFFFD},
        {"\x80", 1, 1, 0xFFFD},
        {"\xF4\x90\x80\x80", 4, 1, 0xFFFD},
        {"\xEF\xBF\xBD", 3, 3, 0xFFFD},
        {"", 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof u / sizeof u[0]; i++) {
        uint32_t cp = 0;
        T_CHECK(m5_utf8_decode(u[i].s, u[i].n, &cp) == u[i].len, "case %zu", i);
        if (u[i].n) T_CHECK(cp == u[i].cp, "case %zu: %x", i, cp);
    }
    T_CHECK(m5_utf8_valid("\xEF\xBF\xBD", 3) && !m5_utf8_valid("\xEF\xBF"
                                                               "a",
                                                               3),
            "U+FFFD itself is valid");
    for (uint32_t cp = 0; cp < 0x110000; cp += 7) {
        char out[4];
        uint32_t back;
        int k = m5_utf8_encode(cp, out);
        if (cp >= 0xD800 && cp < 0xE000) continue;
        if (m5_utf8_decode(out, (size_t)k, &back) != k || back != cp) T_CHECK(false, "U+%04X", cp);
    }
}

/* Parses and writes back. */
static void check_round(const char *in, const char *want)
{
    m5_json *v = NULL;
    m5_error e = {0};
    m5_json_limits lim = {.any_root = true};
    int rc = m5_json_parse(&v, in, strlen(in), &lim, &e);
    T_CHECK(rc == 0, "%s: %s", in, e.text);
    m5_buf b = {0};
    m5_json_write(&b, v, 0);
    T_EQ_STR(b.p, want);
    m5_buf_free(&b);
    m5_json_unref(v);
}

static void test_json(void)
{
    check_round("{\"b\":1,\"a\":[true,null,-0.0,1e300,1e16,1e-5,0.1,123456789012]}",
                "{\"b\":1,\"a\":[true,null,-0.0,1e+300,1e+16,1e-05,0.1,123456789012]}");
    check_round("\"\\u00e9\\ud83d\\ude42\\u0001\\\"\\\\/\\n\\u007f\"", "\"\xC3\xA9\xF0\x9F\x99\x82\\u0001\\\"\\\\/\\n\x7F\"");
    check_round(" 1.0 ", "1.0");
    static const char *const bad[] = {"",      "{",     "[1,]",    "{\"a\":1,\"a\":2}", "\"\\ud800\"",         "\"\xFF\"", "nul", "01",
                                      "1e999", "[1] x", "{'a':1}", "\"a\nb\"",          "99999999999999999999"};
    m5_json_limits lim = {.any_root = true};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        m5_json *v = NULL;
        m5_error e = {0};
        T_CHECK(m5_json_parse(&v, bad[i], strlen(bad[i]), &lim, &e) == M5_ERR_FORMAT && v == NULL && e.text[0], "%s", bad[i]);
    }
    m5_json *v = NULL;
    /* On request, integers beyond int64 become reals; their neighbours, and digits in strings, stay. */
    const char *big = "{\"a\":[9223372036854775807,9223372036854775808,-9223372036854775808,-9223372036854775809,7],\"99999999999999999999\":"
                      "1000000000000000019884624838656}";
    m5_json_limits files = {.big_ints = true};
    T_EQ_INT(m5_json_parse(&v, big, strlen(big), &files, NULL), 0);
    const m5_json_type types[] = {M5_JSON_INT, M5_JSON_REAL, M5_JSON_INT, M5_JSON_REAL, M5_JSON_INT};
    for (size_t i = 0; i < 5; i++) T_CHECK(m5_json_typeof(m5_json_at(m5_json_get(v, "a"), i)) == types[i], "element %zu", i);
    T_CHECK(m5_json_real(m5_json_get(v, "99999999999999999999")) == 1e30, "a key made of digits");
    m5_json_unref(v);
    v = NULL;
    T_EQ_INT(m5_json_parse(&v, "[1e999]", 7, &files, NULL), M5_ERR_FORMAT);
    char deep[400];
    memset(deep, '[', 200);
    memset(deep + 200, ']', 200);
    T_EQ_INT(m5_json_parse(&v, deep, 400, NULL, NULL), M5_ERR_LIMIT);
    lim.max_depth = 200;
    T_EQ_INT(m5_json_parse(&v, deep, 400, &lim, NULL), 0);
    m5_json_unref(v);
    lim.max_bytes = 399;
    T_EQ_INT(m5_json_parse(&v, deep, 400, &lim, NULL), M5_ERR_LIMIT);
    /* Brackets inside strings do not count. */
    const char *s = "[\"[[[[[[[[\\\"[[[[\"]";
    m5_json_limits two = {.max_depth = 1};
    T_EQ_INT(m5_json_parse(&v, s, strlen(s), &two, NULL), 0);
    m5_json_unref(v);

    for (int n = 1; n < 4; n++) { /* later ones may meet an assertion inside jansson 2.14 */
        m5_mem_fail_at((uint64_t)n);
        T_EQ_INT(m5_json_parse(&v, "{\"a\":[1,2]}", 11, NULL, NULL), M5_ERR_NOMEM);
        m5_mem_fail_at(0);
    }

    m5_json *o = m5_json_new_object();
    m5_json_set_take(o, "x", m5_json_new_str("a\xFF\xF0\x9F", 4));
    m5_json_set_int(o, "n", 5);
    T_EQ_STR(m5_json_str(m5_json_get(o, "x")).p, "a\xEF\xBF\xBD\xEF\xBF\xBD");
    T_EQ_INT(m5_json_int(m5_json_path(o, "n")), 5);
    T_CHECK(m5_json_path(o, "n.q") == NULL && m5_json_path(NULL, "a") == NULL, "paths through nothing");
    T_EQ_INT(m5_json_typeof(NULL), M5_JSON_NONE);
    m5_json_unref(o);
    m5_buf b = {0};
    m5_json_write_str(&b,
                      "\xEF\xBF"
                      "a\xC3",
                      4);
    T_EQ_STR(b.p, "\"\xEF\xBF\xBD"
                  "a\xEF\xBF\xBD\"");
    m5_buf_clear(&b);
    m5_json_write_real(&b, 123456.789);
    m5_buf_putc(&b, ' ');
    m5_json_write_real(&b, 1e15);
    m5_buf_putc(&b, ' ');
    m5_json_write_real(&b, 5e-324);
    m5_buf_putc(&b, ' ');
    m5_json_write_real(&b, 0.30000000000000004);
    T_EQ_STR(b.p, "123456.789 1000000000000000.0 5e-324 0.30000000000000004");
    m5_buf_free(&b);
}

static void test_file(void)
{
    char dir[] = "/tmp/m5-test-XXXXXX";
    T_CHECK(mkdtemp(dir) != NULL, "temporary folder");
    char path[128], sub[128];
    snprintf(sub, sizeof sub, "%s/a/b", dir);
    snprintf(path, sizeof path, "%s/a/b/f", dir);
    m5_error e = {0};
    T_EQ_INT(m5_dir_make(sub, 0700, &e), 0);
    T_EQ_INT(m5_dir_make(sub, 0700, &e), 0);
    T_EQ_INT(m5_file_write_atomic(path, "hello", 5, 0600, &e), 0);
    T_EQ_INT(m5_file_write_atomic(path, "worlds", 6, 0600, &e), 0);
    char *text = NULL;
    size_t n = 0;
    T_EQ_INT(m5_file_read(&text, &n, path, 100, &e), 0);
    T_EQ_STR(text, "worlds");
    m5_free(text);
    T_EQ_INT(m5_file_read(&text, &n, path, 5, &e), M5_ERR_LIMIT);
    T_EQ_INT(m5_file_read(&text, &n, sub, 5, &e), M5_ERR_IO);
    T_EQ_INT(m5_file_read(&text, &n, "/nonexistent/x", 5, &e), M5_ERR_NOTFOUND);
    T_EQ_INT(m5_dir_make("/proc/nope/x", 0700, &e), M5_ERR_IO);
    m5_map m = {0};
    T_EQ_INT(m5_map_open(&m, path, &e), 0);
    T_CHECK(m.n == 6 && memcmp(m.p, "worlds", 6) == 0, "mapped");
    m5_map_prefetch(&m, 0, 100);
    m5_map_drop(&m, 0, 100);
    T_CHECK(m.p[0] == 'w', "dropped pages come back");
    m5_map_close(&m);
    char **names = NULL;
    T_EQ_INT(m5_dir_list(&names, &n, sub, &e), 0);
    T_EQ_INT(n, 1);
    T_EQ_STR(names[0], "f");
    m5_free(names[0]);
    m5_free(names);
    unlink(path);
    rmdir(sub);
    snprintf(sub, sizeof sub, "%s/a", dir);
    rmdir(sub);
    rmdir(dir);
}

static void test_hash(void)
{
    /* XXH3's published value for the empty input, and an incremental hash that is read on the way. */
    T_CHECK(m5_hash64("", 0) == 0x2D06800538D394C2u, "%llx", (unsigned long long)m5_hash64("", 0));
    m5_hasher *h = m5_hasher_new();
    char text[1000];
    for (int i = 0; i < 1000; i++) text[i] = (char)(i * 7);
    for (int i = 0; i < 1000; i += 10) {
        m5_hash128 a = m5_hasher_value(h), b = m5_hash128_of(text, (size_t)i);
        T_CHECK(a.low == b.low && a.high == b.high, "%d", i);
        m5_hasher_update(h, text + i, 10);
    }
    m5_hasher_free(h);
}

static void test_system(void)
{
    T_CHECK(m5_cpu_count() >= 1, "cores");
    T_CHECK(m5_memory_total_bytes() > (1u << 20), "memory");
    uint64_t a = m5_time_us(), x[2] = {0}, y[2] = {0};
    m5_random_bytes(x, sizeof x);
    m5_random_bytes(y, sizeof y);
    T_CHECK(x[0] != y[0] || x[1] != y[1], "random");
    T_CHECK(m5_time_us() >= a, "monotonic");
}

int main(void)
{
    test_err();
    test_mem();
    test_str();
    test_json();
    test_file();
    test_hash();
    test_system();
    return t_done();
}
