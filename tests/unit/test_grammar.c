/* SPDX-License-Identifier: Apache-2.0 */
/* text/grammar*: which texts a grammar takes, whole and cut; masks against trying every token; forced bytes; errors by place. */
#include "base/json.h"
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

static m5_grammar *schema_grammar(const char *schema)
{
    m5_json *s = NULL;
    m5_grammar *g = NULL;
    m5_error err = {0};
    m5_json_limits lim = {.any_root = true, .big_ints = true};
    if (m5_json_parse(&s, schema, strlen(schema), &lim, &err) != 0 || m5_grammar_from_schema(&g, s, &err) != 0) {
        fprintf(stderr, "%s: %s\n", schema, err.text);
    }
    m5_json_unref(s);
    return g;
}

/* A mask equals trying each token on a copy. */
static void check_mask(m5_matcher *m, const char *what)
{
    uint64_t bits[N_BITS] = {0};
    m5_error err = {0};
    int bad = m5_matcher_mask(m, bits, N_BITS, &err), first = -1, wrong = 0;
    for (int32_t id = 0; id < N_PIECES; id++) {
        m5_matcher *c = NULL;
        if (m5_matcher_copy(&c, m, NULL) != 0) return;
        bool can = m5_matcher_accept(c, id, NULL) == 0, said = bits[id >> 6] >> (id & 63) & 1;
        m5_matcher_free(c);
        if (can != said && !wrong++) first = id;
    }
    T_CHECK(!bad && !wrong, "%s: %d tokens differ, first %d \"%.*s\" %s", what, wrong, first, first < 0 ? 0 : (int)pieces[first].n,
            first < 0 ? "" : pieces[first].p, err.text);
}

static void walk(m5_grammar *g, const char *what, int n_walk, int n_step)
{
    for (int w = 0; w < n_walk; w++) {
        m5_matcher *m = NULL;
        if (m5_matcher_new(&m, g, vocab, NULL) != 0) return;
        for (int i = 0; i < n_step && !m5_matcher_ended(m); i++) {
            uint64_t bits[N_BITS];
            int32_t ids[N_PIECES], n = 0;
            if (w < 2 && i < 40) check_mask(m, what);
            if (m5_matcher_mask(m, bits, N_BITS, NULL) != 0) break;
            for (int32_t id = 0; id < N_PIECES; id++) {
                if (bits[id >> 6] >> (id & 63) & 1) ids[n++] = id;
            }
            if (!n || m5_matcher_accept(m, ids[rng() % (uint64_t)n], NULL) != 0) {
                T_CHECK(false, "%s: stuck", what);
                break;
            }
        }
        m5_matcher_free(m);
    }
}

/* yes and no: NULL-terminated lists. */
static void check_schema(const char *schema, const char *const *yes, const char *const *no)
{
    m5_grammar *g = schema_grammar(schema);
    T_CHECK(g != NULL, "%s", schema);
    if (!g) return;
    for (; *yes; yes++) {
        size_t n = strlen(*yes);
        T_CHECK(takes(g, *yes, n) == 1, "%s refuses %s", schema, *yes);
        for (size_t i = 0; i < n; i++) T_CHECK(takes(g, *yes, i) >= 0, "%s refuses the first %zu bytes of %s", schema, i, *yes);
    }
    for (; *no; no++) T_CHECK(takes(g, *no, strlen(*no)) != 1, "%s takes %s", schema, *no);
    walk(g, schema, 4, 60);
    m5_grammar_unref(g);
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})

static void test_any_json(void)
{
    m5_grammar *g = NULL;
    T_EQ_INT(m5_grammar_any_json(&g, true, NULL), 0);
    static const char *const yes[] = {"{}",
                                      "{ }",
                                      "{\"a\":1}",
                                      "{\"a\": [1, 2, {\"b\": null}], \"c\": \"\\u00e9\\n\"}",
                                      "{\n  \"a\": true,\n  \"b\": -0.5e-3\n}",
                                      "{\"\xF0\x9F\x98\x80\":\"\\ud83d\\ude00\"}"};
    static const char *const no[] = {"",
                                     "[]",
                                     "1",
                                     "{\"a\"}",
                                     "{\"a\":1,}",
                                     "{a:1}",
                                     "{\"a\":01}",
                                     "{\"a\":\"\n\"}",
                                     "{\"a\":\"\\ud83d\"}",
                                     "{\"a\":\"\xC3\"}",
                                     "{} ",
                                     " {}",
                                     "{\"a\" :1}",
                                     "{\"a\":.5}",
                                     "{\"a\":\"\xED\xA0\x80\"}"};
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) T_CHECK(takes(g, yes[i], strlen(yes[i])) == 1, "%s", yes[i]);
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) T_CHECK(takes(g, no[i], strlen(no[i])) != 1, "%s", no[i]);
    char deep[600];
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"a\":", 5);
    m5_matcher *m = NULL;
    T_EQ_INT(m5_matcher_new(&m, g, vocab, NULL), 0);
    size_t n = m5_matcher_peek(m, deep, sizeof deep);
    T_CHECK(n > 60 && n < 128, "nesting is taken to %zu", n);
    T_EQ_INT(m5_matcher_accept_bytes(m, deep, n, NULL), 0);
    check_mask(m, "at the deepest level");
    m5_matcher_free(m);
    walk(g, "any object", 20, 200);
    m5_grammar_unref(g);
    g = NULL;
    T_EQ_INT(m5_grammar_any_json(&g, false, NULL), 0);
    T_EQ_INT(takes(g, "[1]", 3), 1);
    T_EQ_INT(takes(g, "\"x\"", 3), 1);
    T_EQ_INT(takes(g, "-12", 3), 1);
    walk(g, "any value", 20, 100);
    m5_grammar_unref(g);
}

static void test_objects(void)
{
    check_schema("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"},\"b\":{\"type\":\"string\"}},\"required\":[\"a\"]}",
                 LIST("{\"a\":1}", "{\"a\": -3, \"b\": \"x\"}", "{\n  \"a\": 1,\n  \"b\": \"\"\n}"),
                 LIST("{}", "{\"b\":\"x\"}", "{\"a\":1,\"c\":2}", "{\"a\":1.5}", "{\"a\":\"1\"}", "{\"b\":\"x\",\"a\":1}", "{\"a\":1,\"a\":1}"));
    check_schema("{\"properties\":{\"a\":{},\"b\":{},\"c\":{}},\"required\":[\"b\"]}",
                 LIST("{\"b\":null}", "{\"a\":[],\"b\":{}}", "{\"b\":1,\"c\":2}", "{\"a\":1,\"b\":1,\"c\":1}"),
                 LIST("{}", "{\"a\":1}", "{\"a\":1,\"c\":1}", "{\"c\":1,\"b\":1}"));
    check_schema("{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"integer\"},\"na\":{}},\"additionalProperties\":{\"type\":\"boolean\"}}",
                 LIST("{}", "{\"x\":true}", "{\"name\":1,\"na\":2,\"n\":true,\"names\":false,\"\":true}", "{\"nam\":true}", "{\"x\\u0041\":true}",
                      "{\"n\xC3\xA9\":true}"),
                 LIST("{\"name\":true}", "{\"x\":1}", "{\"\\u006eame\":true}", "{\"n\\u0061me\":true}", "{\"na\":1,\"name\":true}"));
    check_schema("{\"type\":\"object\",\"additionalProperties\":{\"type\":\"integer\"},\"minProperties\":1,\"maxProperties\":2}",
                 LIST("{\"a\":1}", "{\"a\":1,\"b\":2}"), LIST("{}", "{\"a\":1,\"b\":2,\"c\":3}", "{\"a\":\"\"}"));
    check_schema("{\"type\":\"object\",\"patternProperties\":{\"^x-\":{\"type\":\"string\"},\"^n[0-9]$\":{\"type\":\"integer\"}},"
                 "\"additionalProperties\":false}",
                 LIST("{}", "{\"x-a\":\"b\"}", "{\"n1\":1,\"x-\":\"\"}"), LIST("{\"a\":1}", "{\"x-a\":1}", "{\"n12\":1}"));
    check_schema("{\"type\":\"object\",\"propertyNames\":{\"enum\":[\"red\",\"green\"]},\"additionalProperties\":{\"type\":\"null\"}}",
                 LIST("{}", "{\"red\":null}"), LIST("{\"blue\":null}"));
    check_schema("{\"type\":\"object\",\"properties\":{},\"additionalProperties\":false}", LIST("{}", "{ }"), LIST("{\"a\":1}"));
    check_schema("{\"type\":\"object\",\"properties\":{\"a\":false,\"b\":true},\"additionalProperties\":false}", LIST("{}", "{\"b\":[1]}"),
                 LIST("{\"a\":1}"));
    check_schema("{\"type\":\"object\",\"required\":[\"z\"]}", LIST("{\"z\":1}"), LIST("{}", "{\"y\":1}"));
    check_schema("{\"type\":\"object\",\"properties\":{\"a\\\"b\":{\"type\":\"null\"},\"\xC3\xA9\":{\"type\":\"null\"}}}",
                 LIST("{\"a\\\"b\":null}", "{\"\xC3\xA9\":null}"), LIST("{\"a\":null}"));
}

static void test_arrays(void)
{
    check_schema("{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":1,\"maxItems\":3}",
                 LIST("[1]", "[1, 2]", "[1,2,3]", "[\n  1,\n  2\n]"), LIST("[]", "[1,2,3,4]", "[1,]", "[\"a\"]"));
    check_schema("{\"type\":\"array\",\"items\":{\"type\":\"boolean\"},\"minItems\":40,\"maxItems\":60}", ((const char *const[]){NULL}),
                 LIST("[]", "[true]"));
    check_schema("{\"type\":\"array\",\"prefixItems\":[{\"type\":\"integer\"},{\"type\":\"string\"}],\"items\":{\"type\":\"null\"}}",
                 LIST("[]", "[1]", "[1,\"a\"]", "[1,\"a\",null,null]"), LIST("[\"a\"]", "[1,2]", "[1,\"a\",1]"));
    check_schema("{\"type\":\"array\",\"items\":[{\"type\":\"integer\"}],\"additionalItems\":false,\"minItems\":1}", LIST("[1]"),
                 LIST("[]", "[1,1]"));
    check_schema("{\"type\":\"array\",\"items\":false}", LIST("[]"), LIST("[1]"));
    check_schema("{\"type\":\"array\",\"maxItems\":0}", LIST("[]"), LIST("[1]"));
    check_schema("{\"type\":\"array\",\"items\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":2},\"minItems\":1}}",
                 LIST("[]", "[[\"a\"],[\"ab\",\"\"]]"), LIST("[[]]", "[[\"abc\"]]"));
}

static void test_scalars(void)
{
    check_schema("{\"type\":\"string\",\"minLength\":2,\"maxLength\":4}",
                 LIST("\"ab\"", "\"abcd\"", "\"\xC3\xA9\xE4\xB8\xAD\xF0\x9F\x98\x80.\"", "\"\\n\\u0041\"", "\"\\ud83d\\ude00x\""),
                 LIST("\"a\"", "\"abcde\"", "\"\\n\""));
    check_schema("{\"type\":\"string\",\"minLength\":100,\"maxLength\":100000}", ((const char *const[]){NULL}), LIST("\"\"", "\"abc\""));
    check_schema("{\"type\":\"string\",\"pattern\":\"^[a-z]+$\",\"minLength\":2,\"maxLength\":3}", LIST("\"ab\"", "\"abc\""),
                 LIST("\"a\"", "\"abcd\"", "\"AB\""));
    check_schema("{\"type\":\"string\",\"pattern\":\"b+\"}", LIST("\"b\"", "\"abba\"", "\"\\nb\""), LIST("\"\"", "\"a\""));
    check_schema("{\"type\":\"string\",\"pattern\":\"^\\\\d{3}-\\\\d{4}$|^x\"}", LIST("\"123-4567\"", "\"x\"", "\"xyz\""),
                 LIST("\"123-456\"", "\"yx\""));
    check_schema("{\"type\":\"string\",\"pattern\":\"^a[\\\"\\\\\\\\\\\\n]b$\"}", LIST("\"a\\\"b\"", "\"a\\\\b\"", "\"a\\nb\""),
                 LIST("\"a\"b\"", "\"ab\""));
    check_schema("{\"type\":\"string\",\"format\":\"date-time\"}", LIST("\"2024-02-28T10:00:00Z\"", "\"2024-12-31T23:59:59.123+01:00\""),
                 LIST("\"2024-13-01T00:00:00Z\"", "\"2024-02-30T00:00:00Z\"", "\"2024-01-01\""));
    check_schema("{\"type\":\"string\",\"format\":\"uuid\"}", LIST("\"123e4567-e89b-12d3-a456-426614174000\""), LIST("\"123e4567\""));
    check_schema("{\"type\":\"string\",\"format\":\"email\"}", LIST("\"a.b@x.com\""), LIST("\"a\"", "\"@x.com\""));
    check_schema("{\"type\":\"string\",\"format\":\"ipv4\"}", LIST("\"1.2.3.255\""), LIST("\"1.2.3.256\"", "\"1.2.3\""));
    check_schema("{\"type\":\"integer\",\"minimum\":-12,\"maximum\":345}", LIST("-12", "-1", "0", "9", "99", "345"),
                 LIST("-13", "346", "1000", "00", "1.0"));
    check_schema("{\"type\":\"integer\",\"exclusiveMinimum\":0}", LIST("1", "10", "999999"), LIST("0", "-1", "01"));
    check_schema("{\"type\":\"integer\",\"maximum\":-7}", LIST("-7", "-10", "-99"), LIST("-6", "0", "7"));
    check_schema("{\"type\":\"number\",\"minimum\":0,\"maximum\":1}", LIST("0", "0.5", "1", "1.0", "0.0"), LIST("-0.1", "1.1", "2", "1.01"));
    check_schema("{\"type\":\"number\",\"minimum\":-1.5,\"exclusiveMaximum\":2.25}", LIST("-1.5", "-1.49", "0", "2.2", "2.249", "1.9", "-0.3"),
                 LIST("-1.51", "2.25", "2.3", "-2", "3"));
    check_schema("{\"type\":\"number\",\"exclusiveMinimum\":0.5,\"maximum\":0.75}", LIST("0.51", "0.75", "0.7", "0.500001", "0.750"),
                 LIST("0.5", "0.50", "0.76", "0", "1", "0.751"));
    check_schema("{\"type\":\"number\"}", LIST("0", "-1.5e10", "1E+2", "0.1"), LIST("1.", ".5", "1e", "+1", "Infinity"));
    check_schema("{\"type\":[\"string\",\"null\"]}", LIST("\"a\"", "null"), LIST("1"));
    check_schema("{\"type\":\"string\",\"nullable\":true}", LIST("\"a\"", "null"), LIST("1"));
    check_schema("true", LIST("1", "{}", "[null]"), LIST("x"));
    check_schema("{}", LIST("1", "{}", "[null]"), LIST("x"));
}

static void test_choices(void)
{
    check_schema("{\"enum\":[\"red\",\"re\",\"green\",1,null,[1,\"a\"],{\"k\":true}]}",
                 LIST("\"red\"", "\"re\"", "\"green\"", "1", "null", "[1,\"a\"]", "[1, \"a\"]", "{\"k\": true}"),
                 LIST("\"r\"", "\"blue\"", "2", "[1]"));
    check_schema("{\"type\":\"string\",\"enum\":[\"a\",1]}", LIST("\"a\""), LIST("1"));
    check_schema("{\"const\":\"x\\ny\"}", LIST("\"x\\ny\""), LIST("\"x\""));
    check_schema("{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\",\"maxLength\":1}]}", LIST("1", "\"a\""), LIST("\"ab\"", "null"));
    check_schema("{\"type\":\"object\",\"properties\":{\"t\":{}},\"oneOf\":[{\"properties\":{\"t\":{\"const\":\"a\"},\"x\":{\"type\":\"integer\"}},"
                 "\"required\":[\"t\",\"x\"]},{\"properties\":{\"t\":{\"const\":\"b\"}},\"required\":[\"t\"]}]}",
                 LIST("{\"t\":\"a\",\"x\":1}", "{\"t\":\"b\"}"), LIST("{\"t\":\"a\"}", "{\"t\":\"b\",\"x\":1}", "{\"t\":\"c\"}"));
    check_schema("{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":[\"a\"]},{\"properties\":{\"b\":{"
                 "\"type\":\"null\"},\"a\":{\"minimum\":5}}}]}",
                 LIST("{\"a\":5}", "{\"a\":7,\"b\":null}"), LIST("{\"a\":4}", "{\"b\":null}"));
    check_schema("{\"$defs\":{\"p\":{\"type\":\"integer\"}},\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/p\"}}", LIST("[1,2]"), LIST("[\"a\"]"));
    check_schema("{\"type\":\"object\",\"properties\":{\"v\":{\"type\":\"integer\"},\"next\":{\"anyOf\":[{\"$ref\":\"#\"},{\"type\":\"null\"}]}},"
                 "\"required\":[\"v\"]}",
                 LIST("{\"v\":1}", "{\"v\":1,\"next\":{\"v\":2,\"next\":null}}"), LIST("{\"next\":null}", "{\"v\":1,\"next\":1}"));
    check_schema("{\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"kids\":{\"type\":\"array\",\"items\":{\"$ref\":\"#/$defs/"
                 "t\"}}}}},\"$ref\":\"#/$defs/t\"}",
                 LIST("{}", "{\"kids\":[{},{\"kids\":[{\"kids\":[]}]}]}"), LIST("{\"kids\":[1]}"));
    check_schema("{\"$defs\":{\"a\":{\"anyOf\":[{\"$ref\":\"#/$defs/a\"},{\"type\":\"null\"}]}},\"$ref\":\"#/$defs/a\"}", LIST("null"), LIST("1"));
    check_schema("{\"$ref\":\"#/$defs/a~1b%25\",\"$defs\":{\"a/b%\":{\"type\":\"null\"}}}", LIST("null"), LIST("1"));
    check_schema("{\"$defs\":{\"a\":{\"type\":\"string\"}},\"$ref\":\"#/$defs/a\",\"maxLength\":1}", LIST("\"a\""), LIST("\"ab\"", "1"));
}

int main(void)
{
    make_vocab();
    test_any_json();
    test_objects();
    test_arrays();
    test_scalars();
    test_choices();
    m5_grammar_vocab_free(vocab);
    return t_done();
}
