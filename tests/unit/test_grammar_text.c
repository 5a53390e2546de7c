/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar: GBNF, regular expressions and choices. Which texts each takes whole, which prefixes it lets go on, and where an error is said to be. */
#include "base/mem.h"
#include "grammar_words.h"
#include "t.h"
#include "text/grammar.h"

/* 1: the text is taken whole and may end; 0: it could go on; -1: refused. */
static int takes(m5_grammar *g, const char *text, size_t n)
{
    m5_matcher *m = NULL;
    if (m5_matcher_new(&m, g, vocab, NULL) != 0) return -2;
    int r = m5_matcher_accept_bytes(m, text, n, NULL) != 0 ? -1 : m5_matcher_can_end(m);
    m5_matcher_free(m);
    return r;
}

/* `yes` are taken and so is each of their beginnings; `no` are not taken whole. Lists end with NULL. */
static void check(m5_grammar *g, const char *what, const char *const *yes, const char *const *no)
{
    for (; g && *yes; yes++) {
        size_t n = strlen(*yes);
        T_CHECK(takes(g, *yes, n) == 1, "%s refuses '%s'", what, *yes);
        for (size_t i = 0; i < n; i++) T_CHECK(takes(g, *yes, i) >= 0, "%s refuses the first %zu bytes of '%s'", what, i, *yes);
    }
    for (; g && *no; no++) T_CHECK(takes(g, *no, strlen(*no)) != 1, "%s takes '%s'", what, *no);
    m5_grammar_unref(g);
}

static void test_regex(void)
{
    static const struct {
        const char *pattern, *yes[6], *no[6];
    } rows[] = {
        {"abc", {"abc"}, {"", "ab", "abcd", "ABC"}},
        {"a|bc|", {"a", "bc", ""}, {"b", "abc"}},
        {"(ab)+c?", {"ab", "abab", "ababc"}, {"", "abc" "c", "c", "aab"}},
        {"a{2,4}", {"aa", "aaaa"}, {"a", "aaaaa"}},
        {"a{3}", {"aaa"}, {"aa", "aaaa"}},
        {"a{2,}", {"aa", "aaaaaaa"}, {"a"}},
        {"[a-cx]*", {"", "abcx"}, {"d", "abd"}},
        {"[^0-9]+", {"ab", "\xC3\xA9"}, {"", "a1"}},
        {"\\d{3}-\\d{4}", {"555-1234"}, {"555-123", "5551234", "abc-defg"}},
        {"\\w+@\\w+\\.(com|org)", {"me@here.org"}, {"me@here.net", "@here.org"}},
        {"^start.*end$", {"startend", "start and end"}, {"start", "astartend"}},
        {"a.c", {"abc", "a\xE2\x82\xAC" "c"}, {"ac", "a\nc"}},
        {"\\\\\\.\\*", {"\\.*"}, {".*", "\\x*"}},
        {"(?:x|y)z", {"xz", "yz"}, {"z", "xyz"}},
        {"[\\u4e00-\\u9fff]{2}", {"\xE4\xB8\xAD\xE6\x96\x87"}, {"\xE4\xB8\xAD", "ab"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        m5_grammar *g = NULL;
        m5_error err = {0};
        T_CHECK(m5_grammar_from_regex(&g, rows[i].pattern, strlen(rows[i].pattern), &err) == 0, "%s: %s", rows[i].pattern, err.text);
        check(g, rows[i].pattern, rows[i].yes, rows[i].no);
    }
    static const char *const bad[] = {"a(b", "a)b", "[a", "a{3,1}", "*a", "a{99999999}", "\\"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        m5_grammar *g = NULL;
        m5_error err = {0};
        T_CHECK(m5_grammar_from_regex(&g, bad[i], strlen(bad[i]), &err) != 0 && !g && err.text[0], "%s is taken", bad[i]);
        m5_grammar_unref(g);
    }
}

static void test_gbnf(void)
{
    static const struct {
        const char *text, *yes[6], *no[6];
    } rows[] = {
        {"root ::= \"yes\" | \"no\"", {"yes", "no"}, {"maybe", "ye", "yesno"}},
        {"# a comment\nroot ::= item (\", \" item)*\nitem ::= [a-z]+ # more\n", {"a", "ab, c, def"}, {"", "a,b", "a, "}},
        {"root ::= \"(\" root \")\" | \"x\"", {"x", "(x)", "(((x)))"}, {"(x", "()", "x)"}},
        {"root ::= [0-9]{2,3} \"-\" [^a-z]? \"!\"", {"12-!", "123-A!"}, {"1-!", "12-a!", "1234-!"}},
        {"root ::= a b?\na ::= \"\\x41\" | \"\\n\"\nb ::= \"\\\"q\\\"\"", {"A", "\n", "A\"q\""}, {"B", "Aq"}},
        {"root ::=\n  \"one\"\n  | \"two\"\n", {"one", "two"}, {"three"}},
        {"root ::= (\"a\" | \"b\")+ \"\\u20AC\"", {"ab\xE2\x82\xAC"}, {"\xE2\x82\xAC", "ab"}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        m5_grammar *g = NULL;
        m5_error err = {0};
        T_CHECK(m5_grammar_from_gbnf(&g, rows[i].text, strlen(rows[i].text), &err) == 0, "%s: %s", rows[i].text, err.text);
        check(g, rows[i].text, rows[i].yes, rows[i].no);
    }
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"start ::= \"a\"", "root"}, {"root ::= missing", "missing"}, {"root ::= \"a", ""}, {"root ::= [a", ""}, {"root ::= (\"a\"", ""},
        {"root = \"a\"", ""},        {"root ::= root \"a\"", ""},     {"", "root"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        m5_grammar *g = NULL;
        m5_error err = {0};
        T_CHECK(m5_grammar_from_gbnf(&g, bad[i].text, strlen(bad[i].text), &err) != 0 && !g, "%s is taken", bad[i].text);
        T_CHECK(err.text[0] && strstr(err.text, bad[i].says), "%s: says '%s'", bad[i].text, err.text);
        m5_grammar_unref(g);
    }
}

static void test_choices(void)
{
    enum { N_LARGE = 5000 };
    static char names[N_LARGE][16];
    static m5_slice list[N_LARGE];
    const m5_slice few[] = {m5_slice_of("red"), m5_slice_of("green"), m5_slice_of("greenish"), m5_slice_of("a \"b\"\n")};
    static const char *const yes[] = {"red", "green", "greenish", "a \"b\"\n", NULL}, *const no[] = {"", "gree", "greens", "redgreen", NULL};
    m5_grammar *g = NULL;
    m5_error err = {0};
    T_CHECK(m5_grammar_from_choices(&g, few, 4, &err) == 0, "%s", err.text);
    check(g, "choices", yes, no);
    for (int i = 0; i < N_LARGE; i++) {
        snprintf(names[i], sizeof names[i], "item-%d", i * 7);
        list[i] = m5_slice_of(names[i]);
    }
    g = NULL;
    T_CHECK(m5_grammar_from_choices(&g, list, N_LARGE, &err) == 0, "%s", err.text);
    for (int k = 0; g && k < 60; k++) {
        size_t i = (size_t)(rng() % N_LARGE);
        T_CHECK(takes(g, names[i], strlen(names[i])) == 1, "%s", names[i]);
    }
    T_CHECK(g && takes(g, "item-8", 6) != 1 && takes(g, "item-x", 6) == -1);
    m5_grammar_unref(g);
}

/* A text that can only go on in one way is known ahead, up to where there is a choice. */
static void test_forced(void)
{
    m5_grammar *g = NULL;
    m5_matcher *m = NULL;
    m5_buf b = {0};
    static const char text[] = "root ::= \"{\\\"key\\\": \" (\"true\" | \"false\") \"}\"";
    T_CHECK(m5_grammar_from_gbnf(&g, text, sizeof text - 1, NULL) == 0 && m5_matcher_new(&m, g, vocab, NULL) == 0, "grammar");
    T_EQ_INT(m5_matcher_forced_bytes(m, &b, NULL), 0);
    T_CHECK(b.n == 8 && memcmp(b.p, "{\"key\": ", 8) == 0, "'%.*s'", (int)b.n, b.p);
    m5_buf_clear(&b);
    T_CHECK(m5_matcher_accept_bytes(m, "{\"key\": t", 9, NULL) == 0 && m5_matcher_forced_bytes(m, &b, NULL) == 0, "after the choice");
    T_CHECK(b.n == 4 && memcmp(b.p, "rue}", 4) == 0 && !m5_matcher_is_complete(m), "'%.*s'", (int)b.n, b.p);
    T_CHECK(m5_matcher_accept_bytes(m, "rue}", 4, NULL) == 0 && m5_matcher_is_complete(m), "the end");
    m5_buf_free(&b);
    m5_matcher_free(m);
    m5_grammar_unref(g);
}

int main(void)
{
    make_vocab();
    test_regex();
    test_gbnf();
    test_choices();
    test_forced();
    m5_grammar_vocab_free(vocab);
    return t_done();
}
