/* SPDX-License-Identifier: Apache-2.0 */
/* JSON schema -> nodes: types, objects, arrays, strings, enumerations. Merging of allOf and $ref is in grammar_merge.c, bounds of numbers in
 * grammar_number.c. What cannot be enforced is noted and left out, so the grammar only ever grows.
 *
 * Choices that narrow what the schema allows, never beyond it (docs/FORMATS.md): members come in the declared order, and members that are not
 * declared only where the schema says so (additionalProperties, patternProperties); a schema without a type has the type its keywords speak of. */
#include "text/grammar_schema.h"

#include <stdio.h>
#include <string.h>

enum { T_NULL = 1, T_BOOL = 2, T_INT = 4, T_NUM = 8, T_STR = 16, T_ARR = 32, T_OBJ = 64, T_ANY = 127 - T_INT };
enum { MAX_DEPTH = 120, MAX_SCHEMAS = 200000, MAX_BOUND = 1 << 20, MAX_RULES = 200000 };

void m5_g_schema_note(schema_ctx *c, const char *keyword)
{
    const char *at = c->path.p && c->path.n ? c->path.p : "";
    m5_g_note(c->b, "%s at %s%s", keyword, c->where, *at || *c->where ? at : "/");
}

size_t m5_g_schema_enter(schema_ctx *c, const char *key, size_t n)
{
    size_t back = c->path.n;
    m5_buf_putc(&c->path, '/');
    for (size_t i = 0; i < n; i++) {
        if (key[i] == '~' || key[i] == '/') {
            m5_buf_puts(&c->path, key[i] == '~' ? "~0" : "~1");
        } else {
            m5_buf_putc(&c->path, key[i]);
        }
    }
    return back;
}

void m5_g_schema_leave(schema_ctx *c, size_t back)
{
    if (!c->path.p || c->path.n < back) return;
    c->path.n = back;
    c->path.p[back] = 0;
}

static int32_t enter_key(schema_ctx *c, const m5_json *s, const char *outer, m5_slice key)
{
    size_t back = m5_g_schema_enter(c, outer, strlen(outer));
    if (key.p) m5_g_schema_enter(c, key.p, key.n);
    int32_t r = m5_g_schema_node(c, s);
    m5_g_schema_leave(c, back);
    return r;
}

/* ---- helpers ---- */

static int32_t any_value(schema_ctx *c)
{
    return m5_g_ref(c->b, m5_g_json(c->b, G_JSON_VALUE), 0);
}
static int32_t ws(schema_ctx *c)
{
    return m5_g_ref(c->b, m5_g_json(c->b, G_JSON_WS), 0);
}
static int32_t colon(schema_ctx *c)
{
    return m5_g_seq2(c->b, m5_g_lit(c->b, ":", 1), m5_g_opt(c->b, m5_g_lit(c->b, " ", 1)));
}

/* A value one level down, as a call. */
static int32_t nested(schema_ctx *c, int32_t node)
{
    if (c->b->err.code || node < 0) return -1;
    const g_node *n = &c->b->node[node];
    if (n->kind == G_REF) return m5_g_ref(c->b, (int32_t)n->a, n->flags | G_NODE_NEST);
    if (n->kind == G_LIT || n->kind == G_FAIL) return node;
    return m5_g_ref(c->b, m5_g_rule_set(c->b, m5_g_rule_new(c->b), node), G_NODE_NEST);
}

static int32_t free_key(schema_ctx *c, int32_t node)
{
    if (c->b->err.code || node < 0) return -1;
    const g_node *n = &c->b->node[node];
    return m5_g_ref(c->b, n->kind == G_REF ? (int32_t)n->a : m5_g_rule_set(c->b, m5_g_rule_new(c->b), node), G_NODE_KEY);
}

static int32_t guarded(schema_ctx *c, int32_t node)
{
    return m5_g_seq2(c->b, m5_g_guard(c->b), node);
}

/* A non-negative count; fallback when absent or nonsense. Counts beyond all sense are no bound. */
static uint32_t count_of(const m5_json *s, const char *key, uint32_t fallback)
{
    const m5_json *v = m5_json_get(s, key);
    if (!m5_json_is_number(v)) return fallback;
    double d = m5_json_real(v);
    if (!(d >= 0)) return 0;
    return d > MAX_BOUND ? (strncmp(key, "min", 3) == 0 ? MAX_BOUND : G_INF) : (uint32_t)d;
}

/* ---- objects ---- */

typedef struct member {
    m5_slice name;
    const m5_json *schema; /* NULL: any value */
    bool required;
    int32_t node; /* "name": value */
} member;

typedef struct object {
    member *m;
    size_t n, cap;
    int32_t extra; /* key and value beyond the declared ones, or -1 */
    bool extra_ok;
} object;

static bool add_member(schema_ctx *c, object *o, m5_slice name, const m5_json *schema, bool required)
{
    if (!m5_g_grow(&o->m, o->n, &o->cap, 1, sizeof *o->m)) {
        m5_g_fail(c->b, M5_ERR_NOMEM, "out of memory for a grammar");
        return false;
    }
    o->m[o->n++] = (member){name, schema, required, -1};
    return true;
}

static void collect_members(schema_ctx *c, const m5_json *s, object *o)
{
    const m5_json *props = m5_json_get(s, "properties"), *req = m5_json_get(s, "required"), *more = m5_json_get(s, "additionalProperties");
    for (void *it = m5_json_iter(props); it; it = m5_json_iter_next(props, it)) {
        if (!add_member(c, o, m5_json_iter_key(it), m5_json_iter_value(it), false)) return;
    }
    for (size_t i = 0; i < m5_json_len(req) && m5_json_typeof(req) == M5_JSON_ARRAY; i++) {
        if (m5_json_typeof(m5_json_at(req, i)) != M5_JSON_STRING) continue;
        m5_slice name = m5_json_str(m5_json_at(req, i));
        size_t k = 0;
        while (k < o->n && !m5_slice_eq(o->m[k].name, name)) k++;
        if (k < o->n) {
            o->m[k].required = true;
        } else if (!add_member(c, o, name, more, true)) {
            return;
        }
    }
    for (size_t i = 0; i < o->n && !c->b->err.code; i++) {
        int32_t value = o->m[i].schema ? enter_key(c, o->m[i].schema, "properties", o->m[i].name) : any_value(c);
        o->m[i].node = m5_g_seq3(c->b, m5_g_json_str_lit(c->b, o->m[i].name), colon(c), nested(c, value));
    }
}

/* Keys that propertyNames allows, as far as it can be said; -1 = any. */
static int32_t key_from_names(schema_ctx *c, const m5_json *s)
{
    const m5_json *names = m5_json_get(s, "propertyNames");
    if (!names || (m5_json_typeof(names) == M5_JSON_BOOL && m5_json_bool(names))) return -1;
    if (m5_json_typeof(names) == M5_JSON_BOOL) return m5_g_none(c->b);
    m5_json *str = m5_json_dup(names);
    if (!str || m5_json_typeof(str) != M5_JSON_OBJECT || m5_json_set_str(str, "type", "string") != 0 ||
        m5_json_push_take(c->owned, m5_json_ref(str)) != 0) {
        m5_json_unref(str);
        return -1;
    }
    int32_t r = enter_key(c, str, "propertyNames", (m5_slice){0});
    m5_json_unref(str);
    return r;
}

static int32_t pattern_key(schema_ctx *c, m5_slice pattern)
{
    g_regex_opts o = {.json = true, .search = true, .max = G_INF};
    m5_error err = {0};
    int32_t r = m5_g_regex(c->b, pattern.p, pattern.n, &o, NULL, &err);
    return r < 0 ? r : m5_g_seq3(c->b, m5_g_lit(c->b, "\"", 1), m5_g_share(c->b, r), m5_g_lit(c->b, "\"", 1));
}

/* What may come beyond the declared members. */
static void collect_extra(schema_ctx *c, const m5_json *s, object *o)
{
    m5_gb *b = c->b;
    const m5_json *more = m5_json_get(s, "additionalProperties"), *pats = m5_json_get(s, "patternProperties");
    int32_t all[64];
    size_t n = 0;
    bool closed = m5_json_typeof(more) == M5_JSON_BOOL && !m5_json_bool(more);
    for (void *it = m5_json_iter(pats); it; it = m5_json_iter_next(pats, it)) {
        m5_slice pattern = m5_json_iter_key(it);
        int32_t key = n < 63 && o->n == 0 ? pattern_key(c, pattern) : -1;
        if (key >= 0) {
            all[n++] = m5_g_seq3(b, key, colon(c), nested(c, enter_key(c, m5_json_iter_value(it), "patternProperties", pattern)));
        } else if (closed || o->n) { /* beside declared members other keys are left out, which is allowed */
            m5_g_schema_note(c, "patternProperties");
            closed = closed && o->n;
        }
    }
    bool want = more ? !closed : o->n == 0 && !m5_json_len(pats);
    if (want && !m5_json_len(pats)) {
        m5_slice *names = m5_alloc(M5_MEM_TEXT, (o->n + 1) * sizeof *names);
        for (size_t i = 0; names && i < o->n; i++) names[i] = o->m[i].name;
        int32_t key = key_from_names(c, s);
        if (key < 0) key = names ? free_key(c, m5_g_json_key_but(b, names, o->n)) : m5_g_fail(b, M5_ERR_NOMEM, "out of memory for a grammar");
        int32_t value = more && m5_json_typeof(more) == M5_JSON_OBJECT ? enter_key(c, more, "additionalProperties", (m5_slice){0}) : any_value(c);
        all[n++] = m5_g_seq3(b, key, colon(c), nested(c, value));
        m5_free(names);
    }
    o->extra_ok = n > 0;
    o->extra = n ? m5_g_share(b, m5_gb_alt(b, all, n)) : -1;
}

/* Members in order. rest[i]: what may follow once something stands and members i.. are open; next[i]: the next member is one of them.
 *   next[i] = m[i] rest[i + 1] | next[i + 1] when m[i] may be left out        rest[i] = "," ws next[i] | the end when nothing is missing */
static int32_t member_list(schema_ctx *c, const object *o, uint32_t min_extra, uint32_t max_extra, bool *can_be_empty)
{
    m5_gb *b = c->b;
    int32_t comma = m5_g_seq2(b, m5_g_lit(b, ",", 1), ws(c)), next = -1, rest = m5_g_empty(b);
    bool missing = min_extra > 0;
    if (o->extra_ok && max_extra > 0) {
        int32_t more = m5_g_seq3(b, m5_g_guard(b), comma, o->extra);
        uint32_t min_more = min_extra ? min_extra - 1 : 0, max_more = max_extra == G_INF ? G_INF : max_extra - 1;
        next = m5_g_seq2(b, o->extra, m5_g_rep(b, more, min_more, max_more, 0));
        rest = m5_g_share(b, missing ? m5_g_seq2(b, comma, next) : m5_g_opt(b, m5_g_seq3(b, m5_g_guard(b), comma, next)));
    }
    for (size_t i = o->n; i-- > 0 && !b->err.code;) {
        const member *m = &o->m[i];
        int32_t here = m5_g_seq2(b, m->required ? m->node : guarded(c, m->node), rest);
        next = m5_g_share(b, m->required || next < 0 ? here : m5_g_alt2(b, here, next));
        missing = missing || m->required;
        rest = m5_g_seq2(b, comma, next);
        rest = m5_g_share(b, missing ? rest : m5_g_opt(b, rest));
    }
    *can_be_empty = !missing;
    return next;
}

static int32_t object_node(schema_ctx *c, const m5_json *s)
{
    m5_gb *b = c->b;
    object o = {.extra = -1};
    static const char *const loose[] = {"dependentRequired", "dependentSchemas", "dependencies", "unevaluatedProperties"};
    collect_members(c, s, &o);
    collect_extra(c, s, &o);
    uint32_t min = count_of(s, "minProperties", 0), max = count_of(s, "maxProperties", G_INF), n_req = 0;
    for (size_t i = 0; i < o.n; i++) n_req += o.m[i].required;
    bool all_required = n_req == o.n; /* then the number of members is that of the extra ones, plus a constant */
    uint32_t min_extra = 0, max_extra = G_INF;
    if (all_required && (o.extra_ok || !m5_json_get(s, "minProperties"))) {
        min_extra = min > n_req ? min - n_req : 0;
        max_extra = max == G_INF ? G_INF : max > n_req ? max - n_req : 0;
    } else {
        if (min > n_req) m5_g_schema_note(c, "minProperties");
        if (max < o.n || (max != G_INF && o.extra_ok)) m5_g_schema_note(c, "maxProperties");
    }
    for (size_t i = 0; i < sizeof loose / sizeof loose[0]; i++) {
        const m5_json *v = m5_json_get(s, loose[i]);
        bool open = m5_json_typeof(v) == M5_JSON_BOOL && m5_json_bool(v);
        /* Which members other branches have seen is not followed; only where no member is left over does it not matter. */
        const m5_json *extra = m5_json_get(s, "additionalProperties");
        bool closed = m5_json_typeof(extra) == M5_JSON_BOOL && !m5_json_bool(extra);
        if (v && !open && !closed) m5_g_schema_note(c, loose[i]);
    }
    bool empty_ok = true;
    int32_t list = member_list(c, &o, min_extra, max_extra, &empty_ok);
    int32_t body = list < 0 ? m5_g_empty(b) : m5_g_seq2(b, list, ws(c));
    if (empty_ok) body = m5_g_opt(b, body);
    m5_free(o.m);
    return m5_gb_seq(b, (int32_t[]){m5_g_lit(b, "{", 1), ws(c), body, m5_g_lit(b, "}", 1)}, 4);
}

/* ---- arrays ---- */

static int32_t array_node(schema_ctx *c, const m5_json *s)
{
    m5_gb *b = c->b;
    const m5_json *prefix = m5_json_get(s, "prefixItems"), *items = m5_json_get(s, "items");
    static const char *const loose[] = {"contains", "unevaluatedItems"};
    if (m5_json_typeof(items) == M5_JSON_ARRAY) { /* drafts up to 2019-09 */
        prefix = items;
        items = m5_json_get(s, "additionalItems");
    }
    for (size_t i = 0; i < 2; i++) {
        const m5_json *v = m5_json_get(s, loose[i]);
        if (v && !(m5_json_typeof(v) == M5_JSON_BOOL && m5_json_bool(v) && i == 1)) m5_g_schema_note(c, loose[i]);
    }
    if (m5_json_bool(m5_json_get(s, "uniqueItems"))) m5_g_schema_note(c, "uniqueItems");
    uint32_t min = count_of(s, "minItems", 0), max = count_of(s, "maxItems", G_INF);
    size_t n = m5_json_typeof(prefix) == M5_JSON_ARRAY ? m5_json_len(prefix) : 0;
    if (n > max) n = max;
    bool closed = m5_json_typeof(items) == M5_JSON_BOOL && !m5_json_bool(items);
    uint32_t more_max = closed || max == n ? 0 : max == G_INF ? G_INF : max - (uint32_t)n, more_min = min > n ? min - (uint32_t)n : 0;
    int32_t comma = m5_g_seq2(b, m5_g_lit(b, ",", 1), ws(c)), rest = m5_g_empty(b), first = -1;
    if (more_max > 0) {
        int32_t item = nested(c, items ? enter_key(c, items, "items", (m5_slice){0}) : any_value(c));
        int32_t must = m5_g_rep(b, m5_g_seq2(b, comma, item), more_min, more_min, 0);
        int32_t may = m5_g_rep(b, m5_g_seq3(b, m5_g_guard(b), comma, item), 0,
                               more_max == G_INF     ? G_INF
                               : more_max > more_min ? more_max - more_min
                                                     : 0,
                               0);
        rest = more_min > more_max ? m5_g_none(b) : m5_g_seq2(b, must, may);
        if (n == 0) { /* the first item has no comma */
            must = m5_g_rep(b, m5_g_seq2(b, comma, item), more_min ? more_min - 1 : 0, more_min ? more_min - 1 : 0, 0);
            may = m5_g_rep(b, m5_g_seq3(b, m5_g_guard(b), comma, item), 0, more_max == G_INF ? G_INF : more_max - (more_min ? more_min : 1), 0);
            first = more_min > more_max ? m5_g_none(b) : m5_g_seq3(b, more_min ? item : guarded(c, item), must, may);
        }
    } else if (more_min > 0) {
        rest = m5_g_none(b);
        if (n == 0) first = rest;
    }
    for (size_t i = n; i-- > 0 && !b->err.code;) {
        char key[24];
        snprintf(key, sizeof key, "%zu", i);
        int32_t item = nested(c, enter_key(c, m5_json_at(prefix, i), prefix == m5_json_get(s, "items") ? "items" : "prefixItems", m5_slice_of(key)));
        first = m5_g_seq2(b, item, rest);
        rest = m5_g_seq2(b, comma, first);
        rest = m5_g_share(b, i < min ? rest : m5_g_opt(b, rest));
    }
    int32_t body = first < 0 ? m5_g_empty(b) : m5_g_seq2(b, m5_g_share(b, first), ws(c));
    if (min == 0) body = m5_g_opt(b, body);
    return m5_gb_seq(b, (int32_t[]){m5_g_lit(b, "[", 1), ws(c), body, m5_g_lit(b, "]", 1)}, 4);
}

/* ---- strings and numbers ---- */

#define DATE     "([0-9]{4}-(0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|[0-9]{4}-(0[469]|11)-(0[1-9]|[12][0-9]|30)|[0-9]{4}-02-(0[1-9]|1[0-9]|2[0-8]))"
#define CLOCK    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define BYTE     "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
#define LABEL    "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define HEX4     "[0-9a-fA-F]{1,4}"
#define URI_CHAR "([A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})"

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" CLOCK "$"},
    {"date-time", "^" DATE "T" CLOCK "$"},
    {"duration",
     "^P([0-9]{1,6}W|([0-9]{1,6}Y([0-9]{1,6}M([0-9]{1,6}D)?)?|[0-9]{1,6}M([0-9]{1,6}D)?|[0-9]{1,6}D)(T([0-9]{1,6}H([0-9]{1,6}M([0-9]{1,6}S)?)?"
     "|[0-9]{1,6}M([0-9]{1,6}S)?|[0-9]{1,6}S))?|T([0-9]{1,6}H([0-9]{1,6}M([0-9]{1,6}S)?)?|[0-9]{1,6}M([0-9]{1,6}S)?|[0-9]{1,6}S))$"},
    {"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"},
    {"email", "^[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@" LABEL "(\\." LABEL ")*$"},
    {"hostname", "^" LABEL "(\\." LABEL "){0,3}$"},
    {"ipv4", "^(" BYTE "\\.){3}" BYTE "$"},
    {"ipv6", "^((" HEX4 ":){7}" HEX4 "|(" HEX4 ":){1,6}:" HEX4 "|(" HEX4 ":){1,7}:|::(" HEX4 ":){0,5}" HEX4 "|::)$"},
    {"uri", "^[A-Za-z][A-Za-z0-9+.-]*:" URI_CHAR "+(#" URI_CHAR "*)?$"},
    {"uri-reference", "^" URI_CHAR "*(#" URI_CHAR "*)?$"},
    {"url", "^[A-Za-z][A-Za-z0-9+.-]*:" URI_CHAR "+(#" URI_CHAR "*)?$"},
    {"json-pointer", "^(/([^~/\"\\\\\\x00-\\x1f]|~[01])*)*$"},
};

static int32_t string_node(schema_ctx *c, const m5_json *s)
{
    m5_gb *b = c->b;
    const m5_json *pattern = m5_json_get(s, "pattern"), *format = m5_json_get(s, "format");
    uint32_t min = count_of(s, "minLength", 0), max = count_of(s, "maxLength", G_INF);
    m5_slice text = {0};
    const char *keyword = "pattern";
    if (m5_json_typeof(pattern) == M5_JSON_STRING) {
        text = m5_json_str(pattern);
        if (m5_json_typeof(format) == M5_JSON_STRING) m5_g_schema_note(c, "format");
    } else if (m5_json_typeof(format) == M5_JSON_STRING) {
        keyword = "format";
        for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
            if (m5_slice_is(m5_json_str(format), formats[i].name)) text = m5_slice_of(formats[i].pattern);
        }
        if (!text.p) m5_g_schema_note(c, "format");
    }
    if (min > max) return m5_g_none(b);
    if (!text.p) return m5_g_json_string(b, min, max);
    g_regex_opts o = {.json = true, .search = true, .min = min, .max = max};
    m5_error err = {0};
    bool len_done = false;
    m5_g_block_begin(b); /* the same pattern in another request finds its masks */
    int32_t r = m5_g_regex(b, text.p, text.n, &o, &len_done, &err);
    if (r >= 0) r = m5_g_rule_set(b, m5_g_rule_new(b), m5_g_seq3(b, m5_g_lit(b, "\"", 1), r, m5_g_lit(b, "\"", 1)));
    m5_g_block_end(b);
    if (r < 0) {
        if (b->err.code) return -1;
        m5_g_schema_note(c, keyword);
        return m5_g_json_string(b, min, max);
    }
    if (!len_done && min > 0) m5_g_schema_note(c, "minLength");
    if (!len_done && max != G_INF) m5_g_schema_note(c, "maxLength");
    return m5_g_ref(b, r, 0);
}

static int32_t number_node(schema_ctx *c, const m5_json *s, bool integer)
{
    m5_gb *b = c->b;
    g_bounds r = {.digits = -1};
    const m5_json *lo = m5_json_get(s, "minimum"), *hi = m5_json_get(s, "maximum");
    const m5_json *xlo = m5_json_get(s, "exclusiveMinimum"), *xhi = m5_json_get(s, "exclusiveMaximum"), *mul = m5_json_get(s, "multipleOf");
    if (m5_json_is_number(lo)) r.has_lo = true, r.lo = m5_json_real(lo), r.open_lo = m5_json_typeof(xlo) == M5_JSON_BOOL && m5_json_bool(xlo);
    if (m5_json_is_number(hi)) r.has_hi = true, r.hi = m5_json_real(hi), r.open_hi = m5_json_typeof(xhi) == M5_JSON_BOOL && m5_json_bool(xhi);
    if (m5_json_is_number(xlo) && (!r.has_lo || m5_json_real(xlo) >= r.lo)) r.has_lo = r.open_lo = true, r.lo = m5_json_real(xlo);
    if (m5_json_is_number(xhi) && (!r.has_hi || m5_json_real(xhi) <= r.hi)) r.has_hi = r.open_hi = true, r.hi = m5_json_real(xhi);
    if (m5_json_is_number(mul)) {
        double d = m5_json_real(mul), step = 1;
        int digits = 0;
        while (digits < 9 && d < step * 0.999999) step /= 10, digits++;
        if (d == 1 && !integer) integer = true;
        bool power = d > step * 0.999999 && d < step * 1.000001 && digits > 0;
        if (!power && d != 1) m5_g_schema_note(c, "multipleOf");
        if (power && !integer) r.digits = digits;
    }
    int32_t node = -1;
    if (!r.has_lo && !r.has_hi && r.digits < 0) return m5_g_ref(b, m5_g_json(b, integer ? G_JSON_INTEGER : G_JSON_NUMBER), 0);
    if (integer ? m5_g_json_integer_in(b, &r, &node) : m5_g_json_number_in(b, &r, &node)) return m5_g_share(b, node);
    if (b->err.code) return -1;
    if (r.has_lo) m5_g_schema_note(c, xlo ? "exclusiveMinimum" : "minimum");
    if (r.has_hi) m5_g_schema_note(c, xhi ? "exclusiveMaximum" : "maximum");
    return m5_g_ref(b, m5_g_json(b, integer ? G_JSON_INTEGER : G_JSON_NUMBER), 0);
}

/* ---- types, enumerations ---- */

static unsigned type_bit(m5_slice name)
{
    /* The last ones are Python's words, which tool lists made by hand have. */
    static const struct {
        const char *name;
        unsigned bit;
    } names[] = {{"null", T_NULL}, {"boolean", T_BOOL}, {"integer", T_INT}, {"number", T_NUM}, {"string", T_STR}, {"array", T_ARR}, {"object", T_OBJ},
                 {"any", T_ANY},   {"bool", T_BOOL},    {"int", T_INT},     {"float", T_NUM},  {"str", T_STR},    {"list", T_ARR},  {"dict", T_OBJ}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (m5_slice_is(name, names[i].name)) return names[i].bit;
    }
    return 0;
}

static bool has_any(const m5_json *s, const char *const *keys)
{
    for (; *keys; keys++) {
        if (m5_json_get(s, *keys)) return true;
    }
    return false;
}

static unsigned types_of(schema_ctx *c, const m5_json *s)
{
    static const char *const object_keys[] = {"properties",       "required",      "additionalProperties",  "patternProperties",
                                              "propertyNames",    "minProperties", "maxProperties",         "dependentRequired",
                                              "dependentSchemas", "dependencies",  "unevaluatedProperties", NULL};
    static const char *const array_keys[] = {"items",    "prefixItems",     "minItems",         "maxItems", "uniqueItems",
                                             "contains", "additionalItems", "unevaluatedItems", NULL};
    static const char *const string_keys[] = {"minLength", "maxLength", "pattern", "format", NULL};
    static const char *const number_keys[] = {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", NULL};
    const m5_json *type = m5_json_get(s, "type");
    unsigned t = 0;
    if (m5_json_typeof(type) == M5_JSON_STRING) {
        t = type_bit(m5_json_str(type));
    } else if (m5_json_typeof(type) == M5_JSON_ARRAY) {
        for (size_t i = 0; i < m5_json_len(type); i++) t |= type_bit(m5_json_str(m5_json_at(type, i)));
        if (!m5_json_len(type) && m5_json_get(s, G_SCHEMA_MERGED)) return 0;
    }
    if (type && !t) m5_g_schema_note(c, "type");
    if (!t) {
        if (has_any(s, object_keys)) t |= T_OBJ;
        if (has_any(s, array_keys)) t |= T_ARR;
        if (has_any(s, string_keys)) t |= T_STR;
        if (has_any(s, number_keys)) t |= T_NUM;
    }
    if (t & T_NUM) t &= ~(unsigned)T_INT;
    if (!t) return T_ANY;
    return m5_json_bool(m5_json_get(s, "nullable")) ? t | T_NULL : t;
}

static bool value_has_type(const m5_json *v, unsigned t)
{
    switch (m5_json_typeof(v)) {
    case M5_JSON_NULL: return t & T_NULL;
    case M5_JSON_BOOL: return t & T_BOOL;
    case M5_JSON_INT: return t & (T_INT | T_NUM);
    case M5_JSON_REAL: return (t & T_NUM) || ((t & T_INT) && m5_json_real(v) == (double)m5_json_int(v));
    case M5_JSON_STRING: return t & T_STR;
    case M5_JSON_ARRAY: return t & T_ARR;
    case M5_JSON_OBJECT: return t & T_OBJ;
    default: return false;
    }
}

/* Scalars as one tree of texts, containers one by one. */
static int32_t enum_node(schema_ctx *c, const m5_json *values, unsigned types)
{
    m5_gb *b = c->b;
    size_t n = m5_json_len(values), n_text = 0, n_big = 0;
    m5_slice *text = m5_calloc(M5_MEM_TEXT, n + 1, sizeof *text);
    int32_t *big = m5_alloc(M5_MEM_TEXT, (n + 2) * sizeof *big);
    m5_buf pool = {0};
    size_t *off = m5_alloc(M5_MEM_TEXT, (n + 1) * sizeof *off);
    for (size_t i = 0; text && big && off && i < n; i++) {
        const m5_json *v = m5_json_at(values, i);
        if (!value_has_type(v, types)) continue;
        if (m5_json_typeof(v) == M5_JSON_ARRAY || m5_json_typeof(v) == M5_JSON_OBJECT) {
            big[n_big++] = m5_g_json_const(b, v);
            continue;
        }
        off[n_text] = pool.n;
        m5_json_write(&pool, v, 0);
        text[n_text].n = pool.n - off[n_text];
        n_text++;
    }
    int32_t r = -1;
    if (!text || !big || !off || pool.failed) {
        m5_g_fail(b, M5_ERR_NOMEM, "out of memory for a grammar");
    } else {
        for (size_t i = 0; i < n_text; i++) text[i].p = pool.p + off[i];
        if (n_text) big[n_big++] = m5_gb_choices(b, text, n_text);
        r = m5_g_share(b, m5_gb_alt(b, big, n_big));
    }
    m5_free(text);
    m5_free(big);
    m5_free(off);
    m5_buf_free(&pool);
    return r;
}

static int32_t typed_node(schema_ctx *c, const m5_json *s)
{
    m5_gb *b = c->b;
    unsigned t = types_of(c, s);
    static const char *const loose[] = {"if", "$dynamicRef", NULL};
    const m5_json *konst = m5_json_get(s, "const"), *values = m5_json_get(s, "enum"), *not = m5_json_get(s, "not");
    for (int i = 0; loose[i]; i++) {
        if (m5_json_get(s, loose[i])) m5_g_schema_note(c, loose[i]);
    }
    if (not &&((m5_json_typeof(not ) == M5_JSON_BOOL && m5_json_bool(not )) || (m5_json_typeof(not ) == M5_JSON_OBJECT && !m5_json_len(not ))))
        return m5_g_none(b);
    if (not &&m5_json_typeof(not ) != M5_JSON_BOOL) m5_g_schema_note(c, "not");
    bool typed = m5_json_get(s, "type") != NULL;
    if (konst) return !typed || value_has_type(konst, t) ? m5_g_json_const(b, konst) : m5_g_none(b);
    if (m5_json_typeof(values) == M5_JSON_ARRAY) return enum_node(c, values, typed ? t : T_ANY | T_INT);
    int32_t all[8];
    size_t n = 0;
    if (t == T_ANY && !m5_json_get(s, "type")) return any_value(c);
    if (t & T_OBJ) all[n++] = object_node(c, s);
    if (t & T_ARR) all[n++] = array_node(c, s);
    if (t & T_STR) all[n++] = string_node(c, s);
    if (t & (T_NUM | T_INT)) all[n++] = number_node(c, s, !(t & T_NUM));
    if (t & T_BOOL) all[n++] = m5_g_alt2(b, m5_g_lit(b, "true", 4), m5_g_lit(b, "false", 5));
    if (t & T_NULL) all[n++] = m5_g_lit(b, "null", 4);
    return m5_gb_alt(b, all, n);
}

/* ---- choices, references ---- */

static bool told_apart(const m5_json *branches)
{
    unsigned seen = 0;
    for (size_t i = 0; i < m5_json_len(branches); i++) {
        const m5_json *v = m5_json_at(branches, i), *type = m5_json_get(v, "type");
        if (m5_json_get(v, "const")) continue;
        unsigned bit = m5_json_typeof(type) == M5_JSON_STRING ? type_bit(m5_json_str(type)) : 0;
        if (bit & (T_INT | T_NUM)) bit = T_NUM;
        if (!bit || (seen & bit)) return false;
        seen |= bit;
    }
    return true;
}

static int32_t choice_node(schema_ctx *c, const m5_json *s, const char *key)
{
    m5_gb *b = c->b;
    const m5_json *branches = m5_json_get(s, key);
    size_t n = m5_json_len(branches);
    int32_t *all = m5_alloc(M5_MEM_TEXT, (n + 1) * sizeof *all);
    if (!all) return m5_g_fail(b, M5_ERR_NOMEM, "out of memory for a grammar");
    if (strcmp(key, "oneOf") == 0 && !told_apart(branches)) m5_g_schema_note(c, key);
    for (size_t i = 0; i < n && !b->err.code; i++) {
        char at[24];
        snprintf(at, sizeof at, "%zu", i);
        size_t back = m5_g_schema_enter(c, key, strlen(key));
        m5_g_schema_enter(c, at, strlen(at));
        const m5_json *branch = m5_g_schema_branch(c, s, key, m5_json_at(branches, i));
        all[i] = branch ? m5_g_share(b, m5_g_schema_node(c, branch)) : -1;
        m5_g_schema_leave(c, back);
    }
    int32_t r = m5_gb_alt(b, all, n);
    m5_free(all);
    return r;
}

int32_t m5_g_schema_node(schema_ctx *c, const m5_json *s)
{
    if (c->b->err.code) return -1;
    if (m5_json_typeof(s) == M5_JSON_BOOL) return m5_json_bool(s) ? any_value(c) : m5_g_none(c->b);
    if (m5_json_typeof(s) != M5_JSON_OBJECT) {
        m5_g_schema_note(c, "schema");
        return any_value(c);
    }
    if (c->depth >= MAX_DEPTH || c->n_schema >= MAX_SCHEMAS || c->b->n_rule >= MAX_RULES) {
        m5_g_schema_note(c, c->depth >= MAX_DEPTH ? "depth" : "size");
        return any_value(c);
    }
    c->n_schema++;
    c->depth++;
    int32_t r = -1;
    const m5_json *target = m5_g_schema_only_ref(c, s);
    if (target) {
        r = m5_g_schema_ref(c, target);
    } else if ((s = m5_g_schema_flat(c, s)) != NULL) {
        if (m5_json_len(m5_json_get(s, "anyOf"))) {
            r = choice_node(c, s, "anyOf");
        } else if (m5_json_len(m5_json_get(s, "oneOf"))) {
            r = choice_node(c, s, "oneOf");
        } else {
            r = typed_node(c, s);
        }
    }
    c->depth--;
    return r;
}

bool m5_g_schema_init(schema_ctx *c)
{
    c->b->cut_left_cycles = true;
    c->owned = m5_json_new_array();
    return c->owned != NULL;
}

void m5_g_schema_deinit(schema_ctx *c)
{
    if (c->path.failed) m5_g_fail(c->b, M5_ERR_NOMEM, "out of memory for a grammar");
    m5_json_unref(c->owned);
    m5_free(c->memo);
    m5_buf_free(&c->path);
}

int32_t m5_g_schema(m5_gb *b, const m5_json *schema, const char *where)
{
    if (b->err.code) return -1;
    if (!schema) return m5_g_ref(b, m5_g_json(b, G_JSON_VALUE), 0);
    schema_ctx c = {.b = b, .root = schema, .where = where ? where : ""};
    /* The root may be referred to: it is a rule. */
    int32_t r = m5_g_schema_init(&c) ? m5_g_schema_ref(&c, schema) : m5_g_fail(b, M5_ERR_NOMEM, "out of memory for a grammar");
    m5_g_schema_deinit(&c);
    return b->err.code ? -1 : r;
}
