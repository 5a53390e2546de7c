/* SPDX-License-Identifier: Apache-2.0 */
/* Stop strings: against a plain search of the whole text, under every way to cut the text into pieces. */
#include "text/stop.h"
#include "base/mem.h"
#include "t.h"

/* The definition: the match that ends first, the longest of those. Returns the index or -1; *cut = bytes before the match. */
static int whole_text(const char *text, const char *const *stops, int n, size_t *cut)
{
    size_t len = strlen(text);
    for (size_t end = 1; end <= len; end++) {
        int best = -1;
        for (int i = 0; i < n; i++) {
            size_t k = strlen(stops[i]);
            if (k <= end && memcmp(text + end - k, stops[i], k) == 0 && (best < 0 || k > strlen(stops[best]))) best = i;
        }
        if (best >= 0) {
            *cut = end - strlen(stops[best]);
            return best;
        }
    }
    *cut = len;
    return -1;
}

static void check(const char *text, const char *const *stops, int n)
{
    size_t cut, len = strlen(text);
    int want = whole_text(text, stops, n, &cut);
    unsigned n_cuts = len > 11 ? 1u << 10 : 1u << (len ? len - 1 : 0);
    for (unsigned mask = 0; mask < n_cuts; mask++) {
        m5_stop *s;
        T_EQ_INT(m5_stop_new(&s, stops, n, NULL), 0);
        m5_buf out = {0};
        int got = -1;
        size_t from = 0;
        for (size_t i = 1; i <= len && got < 0; i++) {
            if (i < len && !(mask >> ((i - 1) % 10) & 1)) continue;
            got = m5_stop_push(s, text + from, i - from, &out);
            from = i;
        }
        m5_stop_flush(s, &out);
        T_CHECK(got == want && out.n == cut && (cut == 0 || memcmp(out.p, text, cut) == 0), "\"%s\" mask %x: match %d, want %d; \"%s\"", text, mask, got, want,
                out.p ? out.p : "");
        T_CHECK(got < 0 || (m5_stop_string(s, got) && strcmp(m5_stop_string(s, got), stops[got]) == 0));
        m5_buf_free(&out);
        m5_stop_free(s);
    }
}

static void test_hold_back(void)
{
    const char *stops[] = {"\n\nUser:"};
    m5_stop *s;
    m5_buf out = {0};
    T_EQ_INT(m5_stop_new(&s, stops, 1, NULL), 0);
    T_EQ_INT(m5_stop_push(s, "hello\n", 6, &out), -1);
    T_EQ_STR(out.p, "hello"); /* the newline may begin the stop string; nothing else waits */
    T_EQ_INT(m5_stop_push(s, "x", 1, &out), -1);
    T_EQ_STR(out.p, "hello\nx");
    T_EQ_INT(m5_stop_push(s, "\n\nUser", 6, &out), -1);
    T_EQ_STR(out.p, "hello\nx");
    T_EQ_INT(m5_stop_push(s, ": hi", 4, &out), 0);
    T_EQ_STR(out.p, "hello\nx");
    T_EQ_INT(m5_stop_push(s, "more", 4, &out), 0);
    m5_stop_flush(s, &out);
    T_EQ_STR(out.p, "hello\nx");
    m5_buf_free(&out);
    m5_stop_free(s);
}

static void test_refused(void)
{
    m5_error err;
    m5_stop *s;
    const char *empty[] = {"a", ""};
    const char *bad[] = {"\xC3"};
    T_EQ_INT(m5_stop_new(&s, empty, 2, &err), M5_ERR_ARG);
    T_CHECK(s == NULL);
    T_EQ_INT(m5_stop_new(&s, bad, 1, &err), M5_ERR_ARG);
    char long_text[M5_MAX_STOP_BYTES + 1];
    memset(long_text, 'x', M5_MAX_STOP_BYTES);
    long_text[M5_MAX_STOP_BYTES] = 0;
    const char *overlong[] = {long_text};
    T_EQ_INT(m5_stop_new(&s, overlong, 1, &err), M5_ERR_ARG);
    long_text[M5_MAX_STOP_BYTES - 1] = 0;
    T_EQ_INT(m5_stop_new(&s, overlong, 1, &err), 0);
    m5_buf out = {0};
    T_EQ_INT(m5_stop_push(s, long_text, M5_MAX_STOP_BYTES - 2, &out), -1);
    T_EQ_INT(out.n, 0);
    T_EQ_INT(m5_stop_push(s, "y", 1, &out), -1);
    T_EQ_INT(out.n, M5_MAX_STOP_BYTES - 1);
    m5_buf_free(&out);
    m5_stop_free(s);
    for (uint64_t n = 1; n <= 6; n++) {
        const char *two[] = {"ab", "b"};
        m5_mem_fail_at(n);
        int rc = m5_stop_new(&s, two, 2, &err);
        m5_mem_fail_at(0);
        T_EQ_INT(rc, M5_ERR_NOMEM);
        T_CHECK(s == NULL);
    }
}

int main(void)
{
    const char *one[] = {"END"};
    const char *nested[] = {"abcd", "bc"};
    const char *same_end[] = {"c", "bc", "abc"};
    const char *border[] = {"aab", "abab"};
    const char *borders[] = {"aabaaac"};
    const char *utf8[] = {"\xC3\xA9t\xC3\xA9", "\xE2\x82\xAC"};
    check("", one, 1);
    check("no stop", one, 1);
    check("abcEND", one, 1);
    check("ENEND", one, 1);
    check("EN", one, 1);
    check("abcd", nested, 2);
    check("xabc", same_end, 3);
    check("aaaab", border, 2);
    check("abaabab", border, 2);
    check("abababab", border, 1);
    check("aabaaabaaac", borders, 1);
    check("l'\xC3\xA9t\xC3\xA9", utf8, 2);
    check("\xC3\xA9t\xC3\xA8 5\xE2\x82\xAC", utf8, 2);
    check("anything", NULL, 0);
    test_hold_back();
    test_refused();
    return t_done();
}
