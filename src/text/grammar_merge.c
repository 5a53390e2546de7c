/* SPDX-License-Identifier: Apache-2.0 */
/* References and the merging of schemas: $ref, allOf, and what stands beside anyOf become one flat schema. Merging keeps every member that both sides
 * allow; where two keywords cannot be joined, the first one stays and the other is noted. */
#include "text/grammar_schema.h"

#include <string.h>

enum { MAX_MERGE = 20000, MAX_MERGE_DEPTH = 40, MAX_CROSS = 64, MAX_ENUM_CROSS = 4000 };

/* ---- references ---- */

static bool is_annotation(m5_slice key)
{
    static const char *const names[] = {"title",
                                        "description",
                                        "default",
                                        "examples",
                                        "example",
                                        "$comment",
                                        "$schema",
                                        "$id",
                                        "id",
                                        "$defs",
                                        "definitions",
                                        "$anchor",
                                        "$dynamicAnchor",
                                        "$recursiveAnchor",
                                        "$vocabulary",
                                        "readOnly",
                                        "writeOnly",
                                        "deprecated",
                                        "discriminator",
                                        "externalDocs",
                                        "xml",
                                        "components",
                                        "contentEncoding",
                                        "contentMediaType",
                                        "contentSchema",
                                        "then",
                                        "else",
                                        "name"};
    if (key.n > 2 && key.p[0] == 'x' && key.p[1] == '-') return true;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (m5_slice_is(key, names[i])) return true;
    }
    return false;
}

/* One step of a JSON pointer: ~0, ~1 and percent escapes undone. */
static const m5_json *pointer_step(const m5_json *at, const char *p, size_t n)
{
    m5_buf key = {0};
    for (size_t i = 0; i < n; i++) {
        unsigned v = 0;
        int k = 1;
        for (; p[i] == '%' && k < 3 && i + 2 < n; k++) {
            char d = p[i + (size_t)k];
            int x = d >= '0' && d <= '9' ? d - '0' : (d | 0x20) >= 'a' && (d | 0x20) <= 'f' ? (d | 0x20) - 'a' + 10 : -1;
            if (x < 0) break;
            v = v * 16 + (unsigned)x;
        }
        char c = k == 3 ? (char)v : p[i];
        if (k == 3) i += 2;
        m5_buf_putc(&key, c);
    }
    size_t m = 0;
    for (size_t i = 0; !key.failed && i < key.n; i++, m++) {
        bool esc = key.p[i] == '~' && i + 1 < key.n && (key.p[i + 1] == '0' || key.p[i + 1] == '1');
        key.p[m] = esc ? (key.p[i + 1] == '0' ? '~' : '/') : key.p[i];
        if (esc) i++;
    }
    const m5_json *next = NULL;
    if (!key.failed && m5_json_typeof(at) == M5_JSON_OBJECT) {
        next = m5_json_getn(at, key.p ? key.p : "", m);
    } else if (!key.failed && m5_json_typeof(at) == M5_JSON_ARRAY && m > 0 && m < 8) {
        size_t i = 0;
        for (size_t k = 0; k < m; k++) i = key.p[k] >= '0' && key.p[k] <= '9' ? i * 10 + (size_t)(key.p[k] - '0') : SIZE_MAX / 20;
        next = m5_json_at(at, i);
    }
    m5_buf_free(&key);
    return next;
}

/* A schema that names itself: "$anchor": "x" for "#x", "$id" or "id" for the whole reference. */
static const m5_json *find_named(const m5_json *s, m5_slice ref, int depth, int *budget)
{
    if (depth > 60 || --*budget < 0) return NULL;
    if (m5_json_typeof(s) == M5_JSON_OBJECT) {
        static const char *const keys[] = {"$anchor", "$dynamicAnchor", "$id", "id"};
        for (int i = 0; i < 4; i++) {
            m5_slice name = m5_json_str(m5_json_get(s, keys[i]));
            if (!name.n) continue;
            if (i < 2 ? ref.p[0] == '#' && m5_slice_eq((m5_slice){ref.p + 1, ref.n - 1}, name) : m5_slice_eq(ref, name)) return s;
        }
        for (void *it = m5_json_iter(s); it; it = m5_json_iter_next(s, it)) {
            if (m5_slice_is(m5_json_iter_key(it), "enum") || m5_slice_is(m5_json_iter_key(it), "const")) continue;
            const m5_json *hit = find_named(m5_json_iter_value(it), ref, depth + 1, budget);
            if (hit) return hit;
        }
    }
    for (size_t i = 0; m5_json_typeof(s) == M5_JSON_ARRAY && i < m5_json_len(s); i++) {
        const m5_json *hit = find_named(m5_json_at(s, i), ref, depth + 1, budget);
        if (hit) return hit;
    }
    return NULL;
}

static const m5_json *resolve(const schema_ctx *c, m5_slice ref)
{
    if (m5_slice_is(ref, "#") || m5_slice_is(ref, "")) return c->root;
    m5_slice own = m5_json_str(m5_json_get(c->root, "$id"));
    if (own.n && m5_slice_starts(ref, own) && ref.n > own.n && ref.p[own.n] == '#') ref = (m5_slice){ref.p + own.n, ref.n - own.n};
    if (ref.n > 1 && ref.p[0] == '#' && ref.p[1] == '/') {
        const m5_json *at = c->root;
        for (size_t i = 2, j; at && i <= ref.n; i = j + 1) {
            j = i;
            while (j < ref.n && ref.p[j] != '/') j++;
            at = pointer_step(at, ref.p + i, j - i);
        }
        return at;
    }
    int budget = 20000;
    return ref.n ? find_named(c->root, ref, 0, &budget) : NULL;
}

static const m5_json *target_of(const schema_ctx *c, const m5_json *s)
{
    static const char *const keys[] = {"$ref", "$dynamicRef", "$recursiveRef"};
    for (int i = 0; i < 3; i++) {
        const m5_json *ref = m5_json_get(s, keys[i]);
        if (m5_json_typeof(ref) == M5_JSON_STRING) return resolve(c, m5_json_str(ref));
    }
    return NULL;
}

static bool is_ref_key(m5_slice k)
{
    return m5_slice_is(k, "$ref") || m5_slice_is(k, "$dynamicRef") || m5_slice_is(k, "$recursiveRef");
}

const m5_json *m5_g_schema_only_ref(schema_ctx *c, const m5_json *s)
{
    const m5_json *all = m5_json_get(s, "allOf");
    size_t n = 0;
    for (void *it = m5_json_iter(s); it; it = m5_json_iter_next(s, it)) n += !is_annotation(m5_json_iter_key(it));
    if (n != 1) return NULL;
    if (m5_json_typeof(all) == M5_JSON_ARRAY && m5_json_len(all) == 1) return m5_json_at(all, 0);
    for (void *it = m5_json_iter(s); it; it = m5_json_iter_next(s, it)) {
        if (is_ref_key(m5_json_iter_key(it))) return target_of(c, s);
    }
    return NULL;
}

int32_t m5_g_schema_ref(schema_ctx *c, const m5_json *s)
{
    if (c->b->err.code) return -1;
    if ((c->n_memo + 1) * 2 > c->cap_memo) {
        size_t cap = c->cap_memo ? c->cap_memo * 2 : 64;
        struct g_memo *memo = m5_calloc(M5_MEM_TEXT, cap, sizeof *memo);
        if (!memo) return m5_g_fail(c->b, M5_ERR_NOMEM, "out of memory for a grammar");
        for (size_t k = 0; k < c->cap_memo; k++) {
            if (!c->memo[k].schema) continue;
            size_t i = ((uintptr_t)c->memo[k].schema >> 4) & (cap - 1);
            while (memo[i].schema) i = (i + 1) & (cap - 1);
            memo[i] = c->memo[k];
        }
        m5_free(c->memo);
        c->memo = memo;
        c->cap_memo = cap;
    }
    size_t i = ((uintptr_t)s >> 4) & (c->cap_memo - 1);
    for (; c->memo[i].schema; i = (i + 1) & (c->cap_memo - 1)) {
        if (c->memo[i].schema == s) return m5_g_ref(c->b, c->memo[i].rule, 0);
    }
    int32_t rule = m5_g_rule_new(c->b);
    c->memo[i] = (struct g_memo){s, rule};
    c->n_memo++;
    m5_g_rule_set(c->b, rule, m5_g_schema_node(c, s));
    return m5_g_ref(c->b, rule, 0);
}

/* ---- merging ---- */

static m5_json *all_of(m5_json *x, m5_json *y) /* borrows both */
{
    m5_json *o = m5_json_new_object(), *list = m5_json_new_array();
    if (!o || !list || m5_json_push_take(list, m5_json_ref(x)) != 0 || m5_json_push_take(list, m5_json_ref(y)) != 0) {
        m5_json_unref(o);
        m5_json_unref(list);
        return NULL;
    }
    if (m5_json_set_take(o, "allOf", list) == 0) return o;
    m5_json_unref(o);
    return NULL;
}

static bool contains(const m5_json *list, const m5_json *v)
{
    for (size_t i = 0; i < m5_json_len(list); i++) {
        if (m5_json_equal(m5_json_at(list, i), v)) return true;
    }
    return false;
}

static m5_json *as_list(const m5_json *v) /* a type as a list; new */
{
    if (m5_json_typeof(v) == M5_JSON_ARRAY) return m5_json_dup(v);
    m5_json *l = m5_json_new_array();
    if (l && m5_json_push_take(l, m5_json_dup(v)) != 0) {
        m5_json_unref(l);
        return NULL;
    }
    return l;
}

static m5_json *meet_types(const m5_json *x, const m5_json *y)
{
    m5_json *a = as_list(x), *b = as_list(y), *out = m5_json_new_array(), *num = m5_json_new_str("number", 6), *in = m5_json_new_str("integer", 7);
    bool ok = a && b && out && num && in;
    for (size_t i = 0; ok && i < m5_json_len(a); i++) {
        m5_json *t = m5_json_at(a, i);
        if (contains(b, t) || (m5_json_equal(t, in) && contains(b, num))) {
            ok = m5_json_push_take(out, m5_json_ref(t)) == 0;
        } else if (m5_json_equal(t, num) && contains(b, in)) {
            ok = m5_json_push_take(out, m5_json_ref(in)) == 0;
        }
    }
    m5_json_unref(a);
    m5_json_unref(b);
    m5_json_unref(num);
    m5_json_unref(in);
    if (ok) return out;
    m5_json_unref(out);
    return NULL;
}

static m5_json *meet_lists(const m5_json *x, const m5_json *y, bool both)
{
    m5_json *out = both ? m5_json_new_array() : m5_json_dup(x);
    bool ok = out != NULL;
    for (size_t i = 0; ok && i < m5_json_len(both ? x : y); i++) {
        m5_json *v = m5_json_at(both ? x : y, i);
        if (both ? contains(y, v) : !contains(x, v)) ok = m5_json_push_take(out, m5_json_dup(v)) == 0;
    }
    if (ok) return out;
    m5_json_unref(out);
    return NULL;
}

static bool is_false(const m5_json *v)
{
    return m5_json_typeof(v) == M5_JSON_BOOL && !m5_json_bool(v);
}

/* Sets key of a copy of props to the join of both sides. */
static bool join_member(m5_json *props, m5_slice key, m5_json *other)
{
    m5_json *mine = m5_json_getn(props, key.p, key.n), *both = mine ? all_of(mine, other) : m5_json_ref(other);
    return both && strlen(key.p) == key.n ? m5_json_set_take(props, key.p, both) == 0 : (m5_json_unref(both), both != NULL);
}

static m5_json *shallow(const m5_json *o)
{
    m5_json *out = m5_json_new_object();
    bool ok = out != NULL;
    for (void *it = m5_json_iter(o); it && ok; it = m5_json_iter_next(o, it)) {
        m5_slice k = m5_json_iter_key(it);
        if (strlen(k.p) == k.n) ok = m5_json_set_take(out, k.p, m5_json_ref(m5_json_iter_value(it))) == 0;
    }
    if (ok) return out;
    m5_json_unref(out);
    return NULL;
}

/* properties of both sides; a side that is closed (additionalProperties false) forbids what only the other one names. */
static bool merge_members(m5_json *acc, const m5_json *s)
{
    const m5_json *px = m5_json_get(acc, "properties"), *py = m5_json_get(s, "properties");
    m5_json *ax = m5_json_get(acc, "additionalProperties"), *ay = m5_json_get(s, "additionalProperties");
    if (!px && !py) return true;
    m5_json *out = px ? shallow(px) : m5_json_new_object();
    bool ok = out != NULL;
    for (void *it = m5_json_iter(px); it && ok; it = m5_json_iter_next(px, it)) {
        m5_slice k = m5_json_iter_key(it);
        if (ay && !m5_json_getn(py, k.p, k.n) && !m5_json_get(s, "patternProperties")) ok = join_member(out, k, ay);
    }
    for (void *it = m5_json_iter(py); it && ok; it = m5_json_iter_next(py, it)) {
        m5_slice k = m5_json_iter_key(it);
        bool known = m5_json_getn(px, k.p, k.n) != NULL;
        ok = join_member(out, k, m5_json_iter_value(it));
        if (ok && !known && ax && !m5_json_get(acc, "patternProperties")) ok = join_member(out, k, ax);
    }
    if (ok) return m5_json_set_take(acc, "properties", out) == 0;
    m5_json_unref(out);
    return false;
}

static m5_json *cross(m5_json *x, m5_json *y)
{
    m5_json *out = m5_json_new_array();
    bool ok = out != NULL;
    for (size_t i = 0; ok && i < m5_json_len(x); i++) {
        for (size_t k = 0; ok && k < m5_json_len(y); k++) {
            m5_json *both = all_of(m5_json_at(x, i), m5_json_at(y, k));
            ok = both && m5_json_push_take(out, both) == 0;
        }
    }
    if (ok) return out;
    m5_json_unref(out);
    return NULL;
}

/* One keyword that both sides have. *noted: cannot be joined. Returns the new value or NULL for "keep the first". */
static m5_json *join_keyword(m5_slice k, m5_json *x, m5_json *y, bool *noted, bool *failed)
{
    static const char *const max_of[] = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"};
    static const char *const min_of[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"};
    m5_json *out = NULL;
    for (int i = 0; i < 5; i++) {
        bool lo = m5_slice_is(k, max_of[i]), hi = m5_slice_is(k, min_of[i]);
        if ((!lo && !hi) || !m5_json_is_number(x) || !m5_json_is_number(y)) continue;
        return (lo ? m5_json_real(y) > m5_json_real(x) : m5_json_real(y) < m5_json_real(x)) ? m5_json_ref(y) : NULL;
    }
    if (m5_json_equal(x, y)) return NULL;
    if (m5_slice_is(k, "type")) {
        out = meet_types(x, y);
    } else if (m5_slice_is(k, "required")) {
        out = meet_lists(x, y, false);
    } else if (m5_slice_is(k, "enum") && m5_json_len(x) <= MAX_ENUM_CROSS && m5_json_len(y) <= MAX_ENUM_CROSS) {
        out = meet_lists(x, y, true);
    } else if (m5_slice_is(k, "items") || m5_slice_is(k, "additionalProperties") || m5_slice_is(k, "propertyNames")) {
        if (m5_json_typeof(x) == M5_JSON_ARRAY || m5_json_typeof(y) == M5_JSON_ARRAY) {
            *noted = true;
            return NULL;
        }
        out = is_false(x) || is_false(y) ? m5_json_new_bool(false) : all_of(x, y);
    } else if ((m5_slice_is(k, "anyOf") || m5_slice_is(k, "oneOf")) && m5_json_len(x) * m5_json_len(y) <= MAX_CROSS) {
        out = cross(x, y);
    } else if (m5_slice_is(k, "nullable")) {
        out = m5_json_new_bool(m5_json_bool(x) && m5_json_bool(y));
    } else {
        *noted = true;
        return NULL;
    }
    *failed = !out;
    return out;
}

static bool flatten(schema_ctx *c, m5_json *acc, const m5_json *s, int depth);

static bool merge_own(schema_ctx *c, m5_json *acc, const m5_json *s)
{
    if (!merge_members(acc, s)) return false;
    for (void *it = m5_json_iter(s); it; it = m5_json_iter_next(s, it)) {
        m5_slice k = m5_json_iter_key(it);
        m5_json *y = m5_json_iter_value(it), *x = m5_json_getn(acc, k.p, k.n), *both = NULL;
        bool noted = false, failed = false;
        if (is_annotation(k) || is_ref_key(k) || m5_slice_is(k, "allOf") || m5_slice_is(k, "properties") || strlen(k.p) != k.n) continue;
        if (m5_slice_is(k, "const")) { /* joined as an enumeration of one */
            m5_json *one = m5_json_new_array();
            if (!one || m5_json_push_take(one, m5_json_dup(y)) != 0) {
                m5_json_unref(one);
                return false;
            }
            x = m5_json_get(acc, "enum");
            both = x ? meet_lists(one, x, true) : m5_json_ref(one);
            m5_json_unref(one);
            if (!both || m5_json_set_take(acc, "enum", both) != 0) return false;
            continue;
        }
        both = x ? join_keyword(k, x, y, &noted, &failed) : m5_json_ref(y);
        if (noted) m5_g_schema_note(c, k.p);
        if (failed || (both && m5_json_set_take(acc, k.p, both) != 0)) return false;
    }
    return true;
}

/* Adds what s demands to acc. */
static bool flatten(schema_ctx *c, m5_json *acc, const m5_json *s, int depth)
{
    if (m5_json_typeof(s) == M5_JSON_BOOL) {
        m5_json *no = m5_json_bool(s) ? NULL : m5_json_new_bool(true);
        return m5_json_bool(s) || m5_json_set_take(acc, "not", no) == 0;
    }
    if (m5_json_typeof(s) != M5_JSON_OBJECT) {
        m5_g_schema_note(c, "schema");
        return true;
    }
    if (depth > MAX_MERGE_DEPTH || ++c->n_merge > MAX_MERGE) {
        m5_g_schema_note(c, m5_json_get(s, "$ref") ? "$ref" : "allOf");
        return true;
    }
    const m5_json *target = target_of(c, s), *all = m5_json_get(s, "allOf");
    if (target) {
        if (!flatten(c, acc, target, depth + 1)) return false;
    } else if (m5_json_get(s, "$ref")) {
        m5_g_schema_note(c, "$ref");
    }
    for (size_t i = 0; i < m5_json_len(all); i++) {
        if (!flatten(c, acc, m5_json_at(all, i), depth + 1)) return false;
    }
    return merge_own(c, acc, s);
}

static const m5_json *keep(schema_ctx *c, m5_json *s)
{
    if (s && m5_json_push_take(c->owned, m5_json_ref(s)) == 0) {
        m5_json_unref(s); /* the list holds it */
        return s;
    }
    m5_json_unref(s);
    m5_g_fail(c->b, M5_ERR_NOMEM, "out of memory for a grammar");
    return NULL;
}

const m5_json *m5_g_schema_flat(schema_ctx *c, const m5_json *s)
{
    bool join = false;
    for (void *it = m5_json_iter(s); it; it = m5_json_iter_next(s, it))
        join |= is_ref_key(m5_json_iter_key(it)) || m5_slice_is(m5_json_iter_key(it), "allOf");
    if (!join) return s;
    m5_json *acc = m5_json_new_object();
    if (!acc || m5_json_set_bool(acc, G_SCHEMA_MERGED, true) != 0 || !flatten(c, acc, s, 0)) {
        m5_json_unref(acc);
        m5_g_fail(c->b, M5_ERR_NOMEM, "out of memory for a grammar");
        return NULL;
    }
    return keep(c, acc);
}

const m5_json *m5_g_schema_branch(schema_ctx *c, const m5_json *s, const char *key, const m5_json *branch)
{
    m5_json *base = NULL, *both = NULL;
    for (void *it = m5_json_iter(s); it; it = m5_json_iter_next(s, it)) {
        m5_slice k = m5_json_iter_key(it);
        if (is_annotation(k) || m5_slice_is(k, key) || m5_slice_is(k, G_SCHEMA_MERGED) || strlen(k.p) != k.n) continue;
        if (!base && !(base = m5_json_new_object())) break;
        if (m5_json_set_take(base, k.p, m5_json_ref(m5_json_iter_value(it))) != 0) break;
    }
    if (!base) return branch;
    both = all_of(base, (m5_json *)branch);
    m5_json_unref(base);
    return keep(c, both);
}
