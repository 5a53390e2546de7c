/* SPDX-License-Identifier: Apache-2.0 */
/* Random tools, arguments and their text in each wire format, for the tests of text/toolcall*.c. What no reader could tell apart is not made: a text
 * that is also a number where both are allowed, a closing tag with the structure of a call right behind it. */
#ifndef M5_TESTS_TOOLCALL_RANDOM_H
#define M5_TESTS_TOOLCALL_RANDOM_H

#include "base/json.h"
#include "base/mem.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

static uint64_t rng_state = 0x9E3779B97F4A7C15u;

static inline uint64_t rnd(uint64_t n)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (rng_state >> 11) % n;
}

static inline const char *pick(const char *const *list, size_t n)
{
    return list[rnd(n)];
}
#define PICK(list) pick(list, sizeof(list) / sizeof *(list))

/* ---- values ---- */

/* Text with whatever breaks naive readers, each piece followed by a word. */
static inline m5_json *random_text(void)
{
    static const char *const bad[] = {"</parameter>",
                                      "<parameter=zz>",
                                      "</function>",
                                      "<tool_call>",
                                      "</tool_call>",
                                      "\"",
                                      "'",
                                      "\\",
                                      "\n",
                                      "\n\n  ",
                                      "\t",
                                      "{\"name\": \"x\", \"arguments\": {}}",
                                      "[TOOL_CALLS]",
                                      "<arg_value>",
                                      "</arg_value>",
                                      "```",
                                      "}",
                                      "]",
                                      "),",
                                      "\",",
                                      ": ",
                                      "\x01",
                                      "\xC3\xBC",
                                      "\xF0\x9F\x99\x82",
                                      "\xE4\xBD\xA0",
                                      "\\n",
                                      "\\u0041",
                                      "${x}",
                                      "<|im_end|>",
                                      "`",
                                      "</invoke>",
                                      "<invoke name=\"a\">",
                                      "\r\n",
                                      "<tool_call|>",
                                      "#",
                                      "%s",
                                      "\xC2\xA0"};
    static const char *const words[] = {"a", "Zoe", "if (x < y)", "42", "true", "the end", "b c", "x1", "-", "null", "\xC3\xA9t\xC3\xA9"};
    m5_buf b = {0};
    m5_buf_puts(&b, "");
    for (uint64_t k = rnd(6); k > 0; k--) {
        m5_buf_puts(&b, PICK(bad));
        if (rnd(2)) m5_buf_puts(&b, " ");
        m5_buf_puts(&b, PICK(words));
    }
    if (rnd(6) == 0 && b.n) m5_buf_puts(&b, "\n");
    m5_json *v = m5_json_new_str(b.p ? b.p : "", b.n);
    m5_buf_free(&b);
    return v;
}

static inline m5_json *random_real(void)
{
    static const double v[] = {0.5, -1.25, 3.0, 1e-7, 6.02e23, 0.1, -0.0, 12345.678, 1e16, 2.5e-300};
    return m5_json_new_real(rnd(3) ? v[rnd(sizeof v / sizeof *v)] : (double)(int64_t)rnd(1u << 30) / (double)(1 + rnd(1000)));
}

static inline m5_json *random_int(void)
{
    static const int64_t v[] = {0, -1, 7, 2134, INT64_MAX, INT64_MIN, 1000000007};
    return m5_json_new_int(rnd(3) ? v[rnd(sizeof v / sizeof *v)] : (int64_t)rnd(100000) - 50000);
}

typedef struct random_name {
    char text[32];
} random_name;

static inline random_name random_key(int i)
{
    random_name k;
    static const char *const stems[] = {"city", "file-path", "x", "max_count", "a.b", "men\xC3\xBC", "Key", "n1"};
    snprintf(k.text, sizeof k.text, "%s%d", PICK(stems), i);
    return k;
}

static inline m5_json *random_any(int depth)
{
    switch (rnd(depth > 3 ? 5 : 7)) {
    case 0: return m5_json_new_null();
    case 1: return m5_json_new_bool(rnd(2));
    case 2: return random_int();
    case 3: return random_real();
    case 4: return random_text();
    case 5: {
        m5_json *a = m5_json_new_array();
        for (uint64_t k = rnd(4); k > 0; k--) m5_json_push_take(a, random_any(depth + 1));
        return a;
    }
    default: {
        m5_json *o = m5_json_new_object();
        int n = (int)rnd(4);
        for (int i = 0; i < n; i++) {
            random_name k = random_key(i);
            m5_json_set_take(o, k.text, random_any(depth + 1));
        }
        return o;
    }
    }
}

static inline m5_json *random_object(void)
{
    m5_json *v;
    while (m5_json_typeof(v = random_any(0)) != M5_JSON_OBJECT) m5_json_unref(v);
    return v;
}

static inline m5_json *random_array(void)
{
    m5_json *v;
    while (m5_json_typeof(v = random_any(0)) != M5_JSON_ARRAY) m5_json_unref(v);
    return v;
}

/* ---- schemas, each with a value that fits ---- */

enum { N_SCHEMA = 15 };

/* Puts a schema for one kind of parameter and returns a value of it; *schema NULL: undeclared. */
static inline m5_json *random_pair(m5_json **schema, m5_json *defs)
{
    static const char *const text[N_SCHEMA] = {"{\"type\": \"string\"}",
                                               "{\"type\": \"integer\", \"minimum\": -9}",
                                               "{\"type\": \"number\"}",
                                               "{\"type\": \"boolean\"}",
                                               "{\"type\": \"object\"}",
                                               "{\"type\": \"array\", \"items\": {}}",
                                               "{\"type\": [\"string\", \"null\"]}",
                                               "{\"anyOf\": [{\"type\": \"string\"}, {\"type\": \"integer\"}, {\"type\": \"null\"}]}",
                                               "{\"enum\": [\"celsius\", \"1\", \"null\", \"a b\"]}",
                                               "{\"description\": \"anything\"}",
                                               NULL,
                                               "{\"$ref\": \"#/$defs/Thing\"}",
                                               "{\"oneOf\": [{\"type\": \"array\"}, {\"type\": \"boolean\"}]}",
                                               "{\"type\": \"integer\", \"nullable\": true}",
                                               "{\"allOf\": [{\"properties\": {\"a\": {\"type\": \"integer\"}}}]}"};
    static const char *const words[] = {"Bern", "02134", "nullable", "x: 1", "[draft", "{name} said", "v1.2.3", "trueish", "12 km", "'q'"};
    static const char *const choices[] = {"celsius", "1", "null", "a b"};
    uint64_t k = rnd(N_SCHEMA);
    *schema = NULL;
    if (text[k]) m5_json_parse(schema, text[k], strlen(text[k]), NULL, NULL);
    const char *word = PICK(words);
    switch (k) {
    case 0:
    case 10: return random_text();
    case 1: return random_int();
    case 2: return rnd(2) ? random_real() : random_int();
    case 3: return m5_json_new_bool(rnd(2));
    case 4: return random_object();
    case 5: return random_array();
    case 6: return rnd(3) ? m5_json_new_str(word, strlen(word)) : m5_json_new_null();
    case 7: return rnd(3) == 0 ? random_int() : rnd(2) ? m5_json_new_null() : m5_json_new_str(word, strlen(word));
    case 8: word = PICK(choices); return m5_json_new_str(word, strlen(word));
    case 9: {
        uint64_t c = rnd(6);
        return c == 0   ? m5_json_new_str(word, strlen(word))
               : c == 1 ? random_int()
               : c == 2 ? m5_json_new_bool(rnd(2))
               : c == 3 ? random_array()
               : c == 4 ? random_object()
                        : m5_json_new_null();
    }
    case 11: {
        static const char thing[] = "{\"type\": \"object\", \"properties\": {\"x\": {\"$ref\": \"#/$defs/Thing\"}}}";
        m5_json *t = NULL;
        m5_json_parse(&t, thing, sizeof thing - 1, NULL, NULL);
        m5_json_set_take(defs, "Thing", t);
        return random_object();
    }
    case 12: return rnd(2) ? random_array() : m5_json_new_bool(rnd(2));
    case 13: return rnd(2) ? random_int() : m5_json_new_null();
    default: return random_object();
    }
}

/* A tool, appended to the list, and arguments for it. */
static inline m5_json *random_tool(m5_json *tools, const char *name)
{
    m5_json *props = m5_json_new_object(), *args = m5_json_new_object(), *defs = m5_json_new_object(), *params = m5_json_new_object();
    m5_json *fn = m5_json_new_object(), *tool = m5_json_new_object(), *required = m5_json_new_array();
    int n = (int)rnd(7);
    for (int i = 0; i < n; i++) {
        random_name k = random_key(i);
        m5_json *schema, *value = random_pair(&schema, defs);
        if (schema) m5_json_set_take(props, k.text, schema);
        if (schema && rnd(2)) m5_json_push_take(required, m5_json_new_str(k.text, strlen(k.text)));
        m5_json_set_take(args, k.text, value);
    }
    m5_json_set_str(params, "type", "object");
    m5_json_set_take(params, "properties", props);
    m5_json_set_take(params, "required", required);
    m5_json_set_take(params, "$defs", defs);
    m5_json_set_str(fn, "name", name);
    m5_json_set_str(fn, "description", "A tool.");
    m5_json_set_take(fn, "parameters", params);
    m5_json_set_str(tool, "type", "function");
    m5_json_set_take(tool, "function", fn);
    m5_json_push_take(tools, tool);
    return args;
}

/* ---- rendering ---- */

typedef enum style { STYLE_JSON, STYLE_PYTHON, STYLE_GEMMA } style;

static inline void write_text(m5_buf *out, m5_slice s, style st)
{
    if (st == STYLE_GEMMA) {
        m5_buf_puts(out, "<|\"|>");
        m5_buf_slice(out, s);
        m5_buf_puts(out, "<|\"|>");
        return;
    }
    char quote = st == STYLE_PYTHON && rnd(2) ? '\'' : '"';
    m5_buf_putc(out, quote);
    for (size_t i = 0; i < s.n;) {
        uint32_t cp;
        int k = m5_utf8_decode(s.p + i, s.n - i, &cp);
        i += (size_t)k;
        if (cp == (uint32_t)quote || cp == '\\')
            m5_buf_printf(out, "\\%c", (char)cp);
        else if (cp == '\n')
            m5_buf_puts(out, "\\n");
        else if (cp < 32 && st == STYLE_PYTHON)
            m5_buf_printf(out, "\\x%02x", (unsigned)cp);
        else if (cp < 32)
            m5_buf_printf(out, "\\u%04x", (unsigned)cp);
        else if (cp > 0xFFFF && rnd(3) == 0 && st == STYLE_JSON)
            m5_buf_printf(out, "\\u%04x\\u%04x", (unsigned)(0xD800 + ((cp - 0x10000) >> 10)), (unsigned)(0xDC00 + ((cp - 0x10000) & 0x3FF)));
        else if (cp > 126 && cp < 0x10000 && rnd(3) == 0)
            m5_buf_printf(out, "\\u%04x", (unsigned)cp);
        else
            m5_buf_codepoint(out, cp);
    }
    m5_buf_putc(out, quote);
}

static inline void write_gap(m5_buf *out, int spacing, int depth)
{
    if (spacing == 1) m5_buf_putc(out, ' ');
    if (spacing == 2) m5_buf_printf(out, "\n%*s", 2 * depth, "");
}

static inline void write_value(m5_buf *out, const m5_json *v, style st, int spacing, int depth)
{
    bool first = true;
    switch (m5_json_typeof(v)) {
    case M5_JSON_NULL: m5_buf_puts(out, st == STYLE_JSON ? "null" : "None"); break;
    case M5_JSON_BOOL: m5_buf_puts(out, st == STYLE_PYTHON ? (m5_json_bool(v) ? "True" : "False") : (m5_json_bool(v) ? "true" : "false")); break;
    case M5_JSON_STRING: write_text(out, m5_json_str(v), st); break;
    case M5_JSON_ARRAY:
        m5_buf_putc(out, '[');
        for (size_t i = 0; i < m5_json_len(v); i++) {
            if (!first) m5_buf_putc(out, ',');
            if (!first || spacing == 2) write_gap(out, spacing, depth + 1);
            first = false;
            write_value(out, m5_json_at(v, i), st, spacing, depth + 1);
        }
        if (spacing == 2) write_gap(out, spacing, depth);
        m5_buf_putc(out, ']');
        break;
    case M5_JSON_OBJECT:
        m5_buf_putc(out, '{');
        for (void *it = m5_json_iter(v); it; it = m5_json_iter_next(v, it)) {
            if (!first) m5_buf_putc(out, ',');
            if (!first || spacing == 2) write_gap(out, spacing, depth + 1);
            first = false;
            if (st == STYLE_GEMMA)
                m5_buf_slice(out, m5_json_iter_key(it));
            else
                write_text(out, m5_json_iter_key(it), st);
            m5_buf_putc(out, ':');
            if (spacing) m5_buf_putc(out, ' ');
            write_value(out, m5_json_iter_value(it), st, spacing, depth + 1);
        }
        if (spacing == 2) write_gap(out, spacing, depth);
        m5_buf_putc(out, '}');
        break;
    default: m5_json_write(out, v, 0); break;
    }
}

#endif
