/* SPDX-License-Identifier: Apache-2.0 */
/* The text between two tags -> the JSON value that the tool's schema wants. The schema decides: text stays text byte for byte, everything else is
 * read as JSON with Python's spellings understood, and what cannot be read so stays text. Not here: where the text begins and ends. */
#include "text/toolcall_internal.h"

#include <string.h>

enum { MAX_SCHEMA_DEPTH = 16 };

static int set_of_word(m5_slice w)
{
    static const struct {
        const char *word;
        int set;
    } words[] = {{"string", TC_STR},         {"integer", TC_INT}, {"number", TC_INT | TC_NUM},
                 {"boolean", TC_BOOL},       {"object", TC_OBJ},  {"array", TC_ARR},
                 {"null", TC_NULL},          {"str", TC_STR},     {"int", TC_INT},
                 {"float", TC_INT | TC_NUM}, {"bool", TC_BOOL},   {"dict", TC_OBJ},
                 {"list", TC_ARR},           {"any", TC_ANY}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (m5_slice_is(w, words[i].word)) return words[i].set;
    return 0;
}

static int set_of_value(const m5_json *v)
{
    switch (m5_json_typeof(v)) {
    case M5_JSON_NULL: return TC_NULL;
    case M5_JSON_BOOL: return TC_BOOL;
    case M5_JSON_INT: return TC_INT;
    case M5_JSON_REAL: return TC_INT | TC_NUM;
    case M5_JSON_STRING: return TC_STR;
    case M5_JSON_ARRAY: return TC_ARR;
    case M5_JSON_OBJECT: return TC_OBJ;
    default: return 0;
    }
}

/* "#/$defs/Name" within the function's parameters. */
static const m5_json *resolve(const m5_json *root, m5_slice ref)
{
    if (!m5_slice_starts(ref, M5_SLICE("#/"))) return NULL;
    const m5_json *v = root;
    for (size_t i = 2; v && i <= ref.n;) {
        size_t end = m5_slice_find(ref, M5_SLICE("/"), i);
        if (end == SIZE_MAX) end = ref.n;
        v = m5_json_getn(v, ref.p + i, end - i);
        i = end + 1;
    }
    return v;
}

static int set_of(const m5_json *root, const m5_json *schema, int depth)
{
    if (depth > MAX_SCHEMA_DEPTH || m5_json_typeof(schema) != M5_JSON_OBJECT) return 0;
    int set = 0;
    const m5_json *type = m5_json_get(schema, "type"), *v;
    if (m5_json_typeof(type) == M5_JSON_STRING) set = set_of_word(m5_json_str(type));
    for (size_t i = 0; i < m5_json_len(type) && m5_json_typeof(type) == M5_JSON_ARRAY; i++) set |= set_of_word(m5_json_str(m5_json_at(type, i)));
    if (!set) {
        v = m5_json_get(schema, "$ref");
        if (v) set = set_of(root, resolve(root, m5_json_str(v)), depth + 1);
    }
    static const char *const unions[] = {"anyOf", "oneOf"};
    for (int u = 0; u < 2 && !set; u++) {
        v = m5_json_get(schema, unions[u]);
        for (size_t i = 0; i < m5_json_len(v); i++) {
            int one = set_of(root, m5_json_at(v, i), depth + 1);
            set |= one ? one : TC_ANY; /* an alternative that says nothing allows everything */
        }
    }
    v = m5_json_get(schema, "allOf");
    for (size_t i = 0; i < m5_json_len(v) && !set; i++) set = set_of(root, m5_json_at(v, i), depth + 1);
    v = m5_json_get(schema, "enum");
    if (!set)
        for (size_t i = 0; i < m5_json_len(v); i++) set |= set_of_value(m5_json_at(v, i));
    v = m5_json_get(schema, "const");
    if (!set && v) set = set_of_value(v);
    if (!set && m5_json_get(schema, "properties")) set = TC_OBJ;
    if (!set && m5_json_get(schema, "items")) set = TC_ARR;
    if (set && m5_json_bool(m5_json_get(schema, "nullable"))) set |= TC_NULL;
    return set;
}

tc_type tc_type_of(const m5_json *params, m5_slice name)
{
    tc_type t = {.root = params};
    const m5_json *req = m5_json_get(params, "required");
    for (size_t i = 0; i < m5_json_len(req); i++) t.required = t.required || m5_slice_eq(m5_json_str(m5_json_at(req, i)), name);
    t.schema = m5_json_getn(m5_json_get(params, "properties"), name.p ? name.p : "", name.n);
    if (!t.schema) {
        const m5_json *more = m5_json_get(params, "additionalProperties");
        if (m5_json_typeof(more) == M5_JSON_OBJECT) t.schema = more;
    }
    if (!t.schema) {
        t.set = TC_STR;
        return t;
    }
    t.set = set_of(params, t.schema, 0);
    if (!t.set) t.set = TC_ANY;
    return t;
}

static m5_slice trim(m5_slice s)
{
    while (s.n && tc_space(s.p[0])) {
        s.p++;
        s.n--;
    }
    while (s.n && tc_space(s.p[s.n - 1])) s.n--;
    return s;
}

static bool same_word(m5_slice s, const char *lower)
{
    size_t n = strlen(lower);
    if (s.n != n) return false;
    for (size_t i = 0; i < n; i++)
        if ((s.p[i] | 32) != lower[i]) return false;
    return true;
}

static void put_text(m5_buf *out, m5_slice s)
{
    m5_buf_putc(out, '"');
    tj_escape(out, s.p, s.n);
    m5_buf_putc(out, '"');
}

static bool is_choice(const tc_type *t, m5_slice s)
{
    const m5_json *e = m5_json_get(t->schema, "enum"), *c = m5_json_get(t->schema, "const");
    if (m5_json_typeof(c) == M5_JSON_STRING && m5_slice_eq(m5_json_str(c), s)) return true;
    for (size_t i = 0; i < m5_json_len(e); i++) {
        const m5_json *v = m5_json_at(e, i);
        if (m5_json_typeof(v) == M5_JSON_STRING && m5_slice_eq(m5_json_str(v), s)) return true;
    }
    return false;
}

static bool convert_number(m5_buf *out, int set, m5_slice s)
{
    m5_buf b = {0};
    bool ok = tj_number(&b, s.p, s.n, !(set & TC_STR)) && !b.failed;
    out->failed = out->failed || b.failed;
    if (ok && !(set & TC_NUM)) {
        size_t n = b.n;
        while (n && b.p[n - 1] == '0') n--;
        if (n && b.p[n - 1] == '.' && !memchr(b.p, 'e', b.n) && !memchr(b.p, 'E', b.n)) b.n = n - 1; /* 3.0 is an integer */
        bool whole = !memchr(b.p, '.', b.n) && !memchr(b.p, 'e', b.n) && !memchr(b.p, 'E', b.n);
        ok = whole || !(set & TC_STR);
    }
    if (ok) m5_buf_append(out, b.p, b.n);
    m5_buf_free(&b);
    return ok;
}

/* Where text is allowed too, only what is a container without mending is one. */
static bool convert_container(m5_buf *out, m5_slice s)
{
    static const char *const none[] = {NULL};
    m5_buf b = {0};
    tj j = {0};
    tj_init(&j, TJ_PYTHON, none);
    j.out = &b;
    size_t used = 0;
    bool ok = tj_feed(&j, s.p, s.n, true, &used) == TJ_DONE && used == s.n && !j.repaired;
    out->failed = out->failed || b.failed || tj_failed(&j);
    if (ok && !out->failed) m5_buf_append(out, b.p, b.n);
    tj_deinit(&j);
    m5_buf_free(&b);
    return ok;
}

bool tc_is_container(const tc_type *t, const char *p, size_t n)
{
    size_t i = tc_skip_space(p, n, 0);
    if (i == n || t->set & TC_STR) return false;
    return (p[i] == '{' && t->set & TC_OBJ) || ((p[i] == '[' || p[i] == '(') && t->set & TC_ARR);
}

bool tc_convert(m5_buf *out, const tc_type *t, const char *p, size_t n)
{
    m5_slice s = {p ? p : "", n}, core = trim(s);
    if (t->set == TC_STR && !is_choice(t, core)) {
        put_text(out, s);
        return true;
    }
    if (t->set & TC_STR && is_choice(t, s)) {
        put_text(out, s);
        return true;
    }
    if (t->set & TC_STR && is_choice(t, core)) {
        put_text(out, core);
        return true;
    }
    if (!core.n && !(t->set & TC_STR)) {
        if (t->set & TC_NULL)
            m5_buf_puts(out, "null");
        else if (t->required)
            put_text(out, s);
        return t->required || (t->set & TC_NULL);
    }
    if (t->set & TC_NULL && (m5_slice_is(core, "null") || m5_slice_is(core, "None") || m5_slice_is(core, "NULL"))) {
        m5_buf_puts(out, "null");
        return true;
    }
    if (t->set & TC_BOOL && (same_word(core, "true") || same_word(core, "false"))) {
        m5_buf_puts(out, (core.p[0] | 32) == 't' ? "true" : "false");
        return true;
    }
    if (t->set & (TC_INT | TC_NUM) && convert_number(out, t->set, core)) return true;
    bool list = core.n && (core.p[0] == '[' || core.p[0] == '(') && t->set & TC_ARR;
    bool object = core.n && core.p[0] == '{' && t->set & TC_OBJ;
    if ((list || object) && convert_container(out, core)) return true;
    put_text(out, s);
    return true;
}
