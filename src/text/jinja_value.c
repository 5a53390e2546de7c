/* SPDX-License-Identifier: Apache-2.0 */
/* Values: truth, equality, order, hashing, printing, dicts, iteration; and the way in from JSON. Operators are in jinja_ops.c. */
#include "text/jinja_internal.h"

#include <math.h>
#include <stdio.h>

enum { DICT_INDEX_MIN = 9 };

/* ---- Undefined ---- */

jval m5_jv_undef(jrt *rt, const char *fmt, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    size_t n = strlen(text);
    char *copy = m5_j_alloc(rt, n + 1);
    memcpy(copy, text, n);
    jundef *u = m5_j_alloc(rt, sizeof *u);
    u->text = copy;
    return (jval){.t = J_UNDEF, .u.u = u};
}

jval m5_jv_undef_name(jrt *rt, const jstr *name, const char *owner)
{
    jundef *u = m5_j_alloc(rt, sizeof *u);
    u->name = name;
    u->owner = owner;
    return (jval){.t = J_UNDEF, .u.u = u};
}

void m5_jv_undef_fail(jrt *rt, jval v)
{
    const jundef *u = v.u.u;
    if (u->text) m5_jrt_fail(rt, "%s", u->text);
    const jstr *name = m5_jstr_flat(rt, u->name);
    int n = name->n > 100 ? 100 : (int)name->n;
    if (u->owner) m5_jrt_fail(rt, "%s has no attribute '%.*s'", u->owner, n, name->p);
    m5_jrt_fail(rt, "'%.*s' is undefined", n, name->p);
}

/* ---- types ---- */

const char *m5_jv_type(jval v)
{
    switch (v.t) {
    case J_UNDEF: return "Undefined";
    case J_NONE: return "NoneType";
    case J_BOOL: return "bool";
    case J_INT:
    case J_BIG: return "int";
    case J_FLOAT: return "float";
    case J_STR: return v.u.s->safe ? "Markup" : "str";
    case J_LIST: return "list";
    case J_TUPLE: return "tuple";
    case J_DICT: return "dict";
    case J_NS: return "Namespace";
    case J_RANGE: return "range";
    case J_VIEW: return v.u.view->kind == J_VIEW_KEYS ? "dict_keys" : v.u.view->kind == J_VIEW_VALUES ? "dict_values" : "dict_items";
    case J_ITER: return "generator";
    case J_FUNC: return "function";
    case J_MACRO: return "Macro";
    case J_LOOP: return "LoopContext";
    case J_CYCLER: return "Cycler";
    case J_JOINER: return "Joiner";
    default: return "object";
    }
}

const char *m5_jv_describe(jval v)
{
    switch (v.t) {
    case J_NONE: return "'None'";
    case J_DICT: return "'dict object'";
    case J_LIST: return "'list object'";
    case J_TUPLE: return "'tuple object'";
    case J_STR: return "'str object'";
    case J_INT:
    case J_BIG: return "'int object'";
    case J_BOOL: return "'bool object'";
    case J_FLOAT: return "'float object'";
    case J_NS: return "the namespace";
    case J_LOOP: return "'loop'";
    default: return m5_jv_type(v);
    }
}

bool m5_jv_num(jval v)
{
    return m5_jint_is(v) || v.t == J_FLOAT;
}

bool m5_jseq_view(jval v, const jval **items, size_t *n)
{
    if (v.t != J_LIST && v.t != J_TUPLE) return false;
    *items = v.u.seq->v;
    *n = v.u.seq->n;
    return true;
}

bool m5_jv_truth(jrt *rt, jval v)
{
    int64_t n;
    switch (v.t) {
    case J_BOOL: return v.u.b;
    case J_INT: return v.u.i != 0;
    case J_FLOAT: return v.u.d != 0;
    case J_STR: return v.u.s->n != 0;
    case J_NONE:
    case J_UNDEF:
    case J_MISSING: return false;
    default: return !m5_jv_len(rt, v, &n) || n != 0;
    }
}

bool m5_jv_len(jrt *rt, jval v, int64_t *out)
{
    switch (v.t) {
    case J_STR: *out = m5_jstr_len(rt, v.u.s); return true;
    case J_LIST:
    case J_TUPLE: *out = (int64_t)v.u.seq->n; return true;
    case J_DICT: *out = (int64_t)v.u.dict->n; return true;
    case J_RANGE: *out = v.u.range->n; return true;
    case J_VIEW: *out = (int64_t)v.u.view->dict->n; return true;
    case J_UNDEF: *out = 0; return true;
    case J_LOOP: {
        bool found;
        jval len = m5_jloop_attr(rt, v.u.loop, m5_jstr_c(rt, "length"), &found);
        *out = len.u.i;
        return true;
    }
    default: return false;
    }
}

bool m5_jv_callable(jval v)
{
    return v.t == J_FUNC || v.t == J_MACRO || v.t == J_UNDEF || v.t == J_JOINER || v.t == J_LOOP;
}

/* ---- sequences ---- */

jval m5_jv_seq(jrt *rt, jtype t, size_t cap)
{
    jseq *s = m5_j_alloc(rt, sizeof *s);
    s->v = cap ? m5_j_array(rt, cap, sizeof *s->v) : NULL;
    s->cap = cap;
    return (jval){.t = t, .u.seq = s};
}

void m5_jseq_push(jrt *rt, jseq *s, jval v)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 4;
        jval *p = m5_j_array(rt, cap, sizeof *p);
        if (s->n) memcpy(p, s->v, s->n * sizeof *p);
        s->v = p;
        s->cap = cap;
    }
    s->v[s->n++] = v;
}

jval m5_jv_tuple2(jrt *rt, jval a, jval b)
{
    jval t = m5_jv_seq(rt, J_TUPLE, 2);
    t.u.seq->v[0] = a;
    t.u.seq->v[1] = b;
    t.u.seq->n = 2;
    return t;
}

/* ---- hashing and dicts ---- */

bool m5_jv_hashable(jrt *rt, jval v)
{
    if (v.t == J_LIST || v.t == J_DICT) return false;
    if (v.t == J_VIEW) return v.u.view->kind == J_VIEW_VALUES;
    if (v.t != J_TUPLE) return true;
    m5_j_enter(rt);
    bool ok = true;
    for (size_t i = 0; i < v.u.seq->n && ok; i++) ok = m5_jv_hashable(rt, v.u.seq->v[i]);
    m5_j_leave(rt);
    return ok;
}

static uint64_t hash_of(jrt *rt, jval v)
{
    switch (v.t) {
    case J_STR: return m5_jstr_hash(rt, v.u.s);
    case J_BOOL:
    case J_INT:
    case J_BIG: return m5_jint_hash(v);
    case J_FLOAT: {
        if (isfinite(v.u.d) && v.u.d == floor(v.u.d)) return m5_jint_hash(m5_jint_from_double(rt, v.u.d));
        uint64_t u;
        memcpy(&u, &v.u.d, sizeof u);
        return (u ^ u >> 32) * 0x9E3779B97F4A7C15u;
    }
    case J_TUPLE: {
        m5_j_enter(rt);
        m5_j_step(rt, v.u.seq->n / 8 + 1);
        uint64_t h = 0x345678;
        for (size_t i = 0; i < v.u.seq->n; i++) h = (h ^ hash_of(rt, v.u.seq->v[i])) * 0x100000001b3u;
        m5_j_leave(rt);
        return h;
    }
    case J_NONE: return 17;
    case J_UNDEF: return 19;
    case J_LIST:
    case J_DICT: m5_jrt_fail(rt, "unhashable type: '%s'", m5_jv_type(v));
    default: return (uint64_t)(uintptr_t)v.u.ptr * 0x9E3779B97F4A7C15u;
    }
}

jdict *m5_jdict_new(jrt *rt, size_t cap)
{
    jdict *d = m5_j_alloc(rt, sizeof *d);
    d->e = cap ? m5_j_array(rt, cap, sizeof *d->e) : NULL;
    d->cap = cap;
    return d;
}

static void index_add(jdict *d, size_t entry)
{
    size_t mask = d->n_index - 1, at = (size_t)(d->e[entry].hash ^ d->e[entry].hash >> 32) & mask;
    while (d->index[at]) at = (at + 1) & mask;
    d->index[at] = (uint32_t)entry + 1;
}

static bool same_key(jrt *rt, const jentry *e, jval key, uint64_t hash)
{
    if (e->hash != hash) return false;
    if (e->k.t == J_STR && key.t == J_STR) return m5_jstr_eq(rt, e->k.u.s, key.u.s);
    return m5_jv_eq(rt, e->k, key);
}

/* Entry number or SIZE_MAX. */
static size_t lookup(jrt *rt, const jdict *d, jval key, uint64_t hash)
{
    if (!d->index) {
        for (size_t i = 0; i < d->n; i++) {
            if (same_key(rt, &d->e[i], key, hash)) return i;
        }
        return SIZE_MAX;
    }
    size_t mask = d->n_index - 1, at = (size_t)(hash ^ hash >> 32) & mask, tried = 0;
    for (; d->index[at]; at = (at + 1) & mask) {
        if (same_key(rt, &d->e[d->index[at] - 1], key, hash)) return d->index[at] - 1;
        if (++tried % 16 == 0) m5_j_step(rt, 1);
    }
    return SIZE_MAX;
}

bool m5_jdict_get(jrt *rt, const jdict *d, jval key, jval *out)
{
    size_t i = lookup(rt, d, key, hash_of(rt, key));
    if (i == SIZE_MAX) return false;
    *out = d->e[i].v;
    return true;
}

bool m5_jdict_get_str(jrt *rt, const jdict *d, const jstr *key, jval *out)
{
    return m5_jdict_get(rt, d, m5_jv_str((jstr *)key), out);
}

void m5_jdict_set(jrt *rt, jdict *d, jval key, jval v)
{
    uint64_t hash = hash_of(rt, key);
    size_t i = lookup(rt, d, key, hash);
    if (i != SIZE_MAX) {
        d->e[i].v = v;
        return;
    }
    if (d->n == d->cap) {
        size_t cap = d->cap ? d->cap * 2 : 4;
        jentry *p = m5_j_array(rt, cap, sizeof *p);
        if (d->n) memcpy(p, d->e, d->n * sizeof *p);
        d->e = p;
        d->cap = cap;
    }
    d->e[d->n++] = (jentry){key, v, hash};
    if (d->n < DICT_INDEX_MIN) return;
    if (!d->index || d->n * 2 > d->n_index) {
        d->n_index = d->index ? d->n_index * 2 : 32;
        while (d->n_index < d->n * 2) d->n_index *= 2;
        d->index = m5_j_array(rt, d->n_index, sizeof *d->index);
        for (size_t k = 0; k < d->n; k++) index_add(d, k);
    } else {
        index_add(d, d->n - 1);
    }
}

/* ---- equality and order ---- */

/* -1, 0, 1; 2 = not comparable (NaN). Exact also between big integers and floats. */
static int num_cmp(jrt *rt, jval a, jval b)
{
    if (m5_jint_is(a) && m5_jint_is(b)) return m5_jint_cmp(a, b);
    if (a.t == J_FLOAT && b.t == J_FLOAT) {
        if (isnan(a.u.d) || isnan(b.u.d)) return 2;
        return (a.u.d > b.u.d) - (a.u.d < b.u.d);
    }
    if (b.t == J_FLOAT) {
        int c = num_cmp(rt, b, a);
        return c == 2 ? 2 : -c;
    }
    if (isnan(a.u.d)) return 2;
    if (isinf(a.u.d)) return a.u.d > 0 ? 1 : -1;
    double whole = trunc(a.u.d);
    int c = m5_jint_cmp(m5_jint_from_double(rt, whole), b);
    if (c) return c;
    return (a.u.d > whole) - (a.u.d < whole);
}

static bool seq_eq(jrt *rt, const jseq *a, const jseq *b)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        if (!m5_jv_eq(rt, a->v[i], b->v[i])) return false;
    }
    return true;
}

static bool dict_eq(jrt *rt, const jdict *a, const jdict *b, bool values)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        size_t k = lookup(rt, b, a->e[i].k, a->e[i].hash);
        if (k == SIZE_MAX || (values && !m5_jv_eq(rt, a->e[i].v, b->e[k].v))) return false;
    }
    return true;
}

bool m5_jv_eq(jrt *rt, jval a, jval b)
{
    if (m5_jv_num(a) && m5_jv_num(b)) return num_cmp(rt, a, b) == 0;
    if (a.t != b.t) return false;
    if (a.t == J_STR) return m5_jstr_eq(rt, a.u.s, b.u.s);
    if (a.t == J_NONE || a.t == J_UNDEF) return true;
    if (a.u.ptr == b.u.ptr) return true;
    m5_j_step(rt, 1);
    m5_j_enter(rt);
    bool r = false;
    switch (a.t) {
    case J_LIST:
    case J_TUPLE: r = seq_eq(rt, a.u.seq, b.u.seq); break;
    case J_DICT: r = dict_eq(rt, a.u.dict, b.u.dict, true); break;
    case J_VIEW:
        r = a.u.view->kind == b.u.view->kind && a.u.view->kind != J_VIEW_VALUES &&
            dict_eq(rt, a.u.view->dict, b.u.view->dict, a.u.view->kind == J_VIEW_ITEMS);
        break;
    case J_RANGE: {
        const jrange *x = a.u.range, *y = b.u.range;
        r = x->n == y->n && (x->n == 0 || (x->start == y->start && (x->n == 1 || x->step == y->step)));
        break;
    }
    case J_FUNC: r = a.u.fn->id == b.u.fn->id && a.u.fn->self.t == b.u.fn->self.t && a.u.fn->self.u.ptr == b.u.fn->self.u.ptr; break;
    default: break;
    }
    m5_j_leave(rt);
    return r;
}

bool m5_jv_same(jval a, jval b)
{
    if (a.t != b.t) return false;
    switch (a.t) {
    case J_NONE: return true;
    case J_BOOL: return a.u.b == b.u.b;
    case J_INT: return a.u.i == b.u.i;
    case J_FLOAT: return a.u.d == b.u.d;
    case J_STR: return a.u.s == b.u.s || (a.u.s->p && b.u.s->p && a.u.s->n == b.u.s->n && memcmp(a.u.s->p, b.u.s->p, a.u.s->n) == 0);
    default: return a.u.ptr == b.u.ptr;
    }
}

static bool decide(int c, jop op)
{
    switch (op) {
    case OP_LT: return c < 0;
    case OP_LE: return c <= 0;
    case OP_GT: return c == 1;
    default: return c == 0 || c == 1;
    }
}

bool m5_jv_order(jrt *rt, jval a, jval b, jop op)
{
    static const char *const names[] = {[OP_LT] = "<", [OP_LE] = "<=", [OP_GT] = ">", [OP_GE] = ">="};
    if (a.t == J_UNDEF) m5_jv_undef_fail(rt, a);
    if (b.t == J_UNDEF) m5_jv_undef_fail(rt, b);
    if (m5_jv_num(a) && m5_jv_num(b)) {
        int c = num_cmp(rt, a, b);
        return c != 2 && decide(c, op);
    }
    if (a.t == J_STR && b.t == J_STR) return decide(m5_jstr_cmp(rt, a.u.s, b.u.s), op);
    if ((a.t == J_LIST || a.t == J_TUPLE) && a.t == b.t) {
        const jseq *x = a.u.seq, *y = b.u.seq;
        m5_j_step(rt, 1);
        m5_j_enter(rt);
        size_t i = 0;
        while (i < x->n && i < y->n && m5_jv_eq(rt, x->v[i], y->v[i])) i++;
        bool r = i < x->n && i < y->n ? m5_jv_order(rt, x->v[i], y->v[i], op) : decide((x->n > y->n) - (x->n < y->n), op);
        m5_j_leave(rt);
        return r;
    }
    m5_jrt_fail(rt, "'%s' not supported between instances of '%s' and '%s'", names[op], m5_jv_type(a), m5_jv_type(b));
}

bool m5_jv_contains(jrt *rt, jval c, jval v)
{
    jval item;
    switch (c.t) {
    case J_STR:
        if (v.t != J_STR) m5_jrt_fail(rt, "'in <string>' requires string as left operand, not %s", m5_jv_type(v));
        return m5_jstr_find(rt, c.u.s, v.u.s, 0) != SIZE_MAX;
    case J_DICT: return m5_jdict_get(rt, c.u.dict, v, &item);
    case J_VIEW:
        if (c.u.view->kind == J_VIEW_KEYS) return m5_jdict_get(rt, c.u.view->dict, v, &item);
        break;
    case J_RANGE: {
        int64_t i;
        if (!m5_jint_is(v)) break;
        const jrange *r = c.u.range;
        if (!m5_jint_fits(v, &i) || !r->n) return false;
        int64_t last = r->start + (r->n - 1) * r->step;
        return (r->step > 0 ? i >= r->start && i <= last : i <= r->start && i >= last) && (i - r->start) % r->step == 0;
    }
    default:
        if (!m5_jv_iterable(c)) m5_jrt_fail(rt, "argument of type '%s' is not iterable", m5_jv_type(c));
        break;
    }
    jiter *it = m5_jv_iter_of(rt, c);
    while (m5_jiter_next(rt, it, &item)) {
        if (m5_jv_eq(rt, item, v)) return true;
    }
    return false;
}

/* ---- printing ---- */

void m5_jv_put_float(jrt *rt, double d)
{
    if (!isfinite(d)) {
        m5_j_puts(rt, isnan(d) ? "nan" : d > 0 ? "inf" : "-inf");
        return;
    }
    m5_buf b = {0};
    char text[64];
    m5_json_write_real(&b, d);
    bool failed = b.failed;
    snprintf(text, sizeof text, "%s", b.p ? b.p : "");
    m5_buf_free(&b);
    if (failed) m5_jrt_fail_code(rt, M5_ERR_NOMEM, "out of memory");
    m5_j_puts(rt, text);
}

void m5_jv_put_repr_str(jrt *rt, const jstr *s, bool ascii_only)
{
    s = m5_jstr_flat(rt, s);
    m5_j_step(rt, s->n / 64);
    char quote = s->n && memchr(s->p, '\'', s->n) && !memchr(s->p, '"', s->n) ? '"' : '\'';
    m5_j_putc(rt, quote);
    size_t done = 0, run = 0;
    for (size_t i = 0; i < s->n;) {
        size_t at = i;
        uint32_t c = m5_jstr_cp(s, &i);
        char esc[16];
        if (c == '\\' || c == (unsigned char)quote)
            snprintf(esc, sizeof esc, "\\%c", (char)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            snprintf(esc, sizeof esc, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (c < 128 ? c >= 32 && c != 127 : !ascii_only && m5_ju_printable(c))
            continue;
        else
            snprintf(esc, sizeof esc, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", (unsigned)c);
        m5_j_put_sub(rt, s, done, at);
        m5_j_put(rt, esc, strlen(esc), m5_jstr_trusted_at(s, at, &run));
        done = i;
    }
    m5_j_put_sub(rt, s, done, s->n);
    m5_j_putc(rt, quote);
}

static void put_items(jrt *rt, const jval *v, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (i) m5_j_puts(rt, ", ");
        m5_jv_put_repr(rt, v[i]);
    }
}

static void put_dict(jrt *rt, const jdict *d)
{
    m5_j_putc(rt, '{');
    for (size_t i = 0; i < d->n; i++) {
        if (i) m5_j_puts(rt, ", ");
        m5_jv_put_repr(rt, d->e[i].k);
        m5_j_puts(rt, ": ");
        m5_jv_put_repr(rt, d->e[i].v);
    }
    m5_j_putc(rt, '}');
}

static void put_view(jrt *rt, const jview *v)
{
    static const char *const names[] = {"dict_keys([", "dict_values([", "dict_items(["};
    m5_j_puts(rt, names[v->kind]);
    for (size_t i = 0; i < v->dict->n; i++) {
        const jentry *e = &v->dict->e[i];
        if (i) m5_j_puts(rt, ", ");
        if (v->kind == J_VIEW_ITEMS) {
            m5_j_putc(rt, '(');
            m5_jv_put_repr(rt, e->k);
            m5_j_puts(rt, ", ");
            m5_jv_put_repr(rt, e->v);
            m5_j_putc(rt, ')');
        } else {
            m5_jv_put_repr(rt, v->kind == J_VIEW_KEYS ? e->k : e->v);
        }
    }
    m5_j_puts(rt, "])");
}

static void put_object(jrt *rt, jval v)
{
    switch (v.t) {
    case J_MACRO:
        if (v.u.macro->node->kind == S_CALL) {
            m5_j_puts(rt, "<Macro anonymous>");
            return;
        }
        m5_j_puts(rt, "<Macro ");
        m5_jv_put_repr_str(rt, v.u.macro->node->name, false);
        m5_j_putc(rt, '>');
        return;
    case J_LOOP: {
        int64_t n = 0;
        m5_jv_len(rt, v, &n);
        m5_j_printf(rt, "<LoopContext %lld/%lld>", (long long)v.u.loop->index0 + 1, (long long)n);
        return;
    }
    case J_FUNC: m5_j_printf(rt, "<function %s>", v.u.fn->name); return;
    case J_ITER: m5_j_printf(rt, "<%s object>", v.u.it->label); return;
    default: m5_j_printf(rt, "<%s object>", m5_jv_type(v)); return;
    }
}

void m5_jv_put_repr(jrt *rt, jval v)
{
    m5_j_step(rt, 1);
    m5_j_enter(rt);
    switch (v.t) {
    case J_UNDEF: m5_j_puts(rt, "Undefined"); break;
    case J_NONE: m5_j_puts(rt, "None"); break;
    case J_BOOL: m5_j_puts(rt, v.u.b ? "True" : "False"); break;
    case J_INT: m5_j_printf(rt, "%lld", (long long)v.u.i); break;
    case J_BIG: m5_jint_put(rt, v, 10, false); break;
    case J_FLOAT: m5_jv_put_float(rt, v.u.d); break;
    case J_STR:
        if (v.u.s->safe) m5_j_puts(rt, "Markup(");
        m5_jv_put_repr_str(rt, v.u.s, false);
        if (v.u.s->safe) m5_j_putc(rt, ')');
        break;
    case J_LIST:
        m5_j_putc(rt, '[');
        put_items(rt, v.u.seq->v, v.u.seq->n);
        m5_j_putc(rt, ']');
        break;
    case J_TUPLE:
        m5_j_putc(rt, '(');
        put_items(rt, v.u.seq->v, v.u.seq->n);
        m5_j_puts(rt, v.u.seq->n == 1 ? ",)" : ")");
        break;
    case J_DICT: put_dict(rt, v.u.dict); break;
    case J_NS:
        m5_j_puts(rt, "<Namespace ");
        put_dict(rt, v.u.dict);
        m5_j_putc(rt, '>');
        break;
    case J_RANGE:
        m5_j_printf(rt, "range(%lld, %lld", (long long)v.u.range->start, (long long)v.u.range->stop);
        if (v.u.range->step != 1) m5_j_printf(rt, ", %lld", (long long)v.u.range->step);
        m5_j_putc(rt, ')');
        break;
    case J_VIEW: put_view(rt, v.u.view); break;
    default: put_object(rt, v); break;
    }
    m5_j_leave(rt);
}

void m5_jv_put_str(jrt *rt, jval v)
{
    if (v.t == J_STR)
        m5_j_put_str(rt, v.u.s);
    else if (v.t != J_UNDEF)
        m5_jv_put_repr(rt, v);
}

jstr *m5_jv_to_str(jrt *rt, jval v)
{
    if (v.t == J_STR) return m5_jstr_with_safe(rt, v.u.s, false);
    if (v.t == J_UNDEF) return rt->empty;
    jmark m = m5_j_begin(rt);
    m5_jv_put_repr(rt, v);
    return m5_j_end(rt, m);
}

jstr *m5_jv_soft_str(jrt *rt, jval v)
{
    return v.t == J_STR ? v.u.s : m5_jv_to_str(rt, v);
}

/* ---- from JSON ---- */

jval m5_jv_from_json(jrt *rt, const m5_json *j, bool trusted)
{
    switch (m5_json_typeof(j)) {
    case M5_JSON_BOOL: return m5_jv_bool(m5_json_bool(j));
    case M5_JSON_INT: return m5_jv_int(m5_json_int(j));
    case M5_JSON_REAL: return m5_jv_float(m5_json_real(j));
    case M5_JSON_STRING: {
        m5_slice s = m5_json_str(j);
        return m5_jv_str(m5_jstr_view(rt, s.p, s.n, trusted));
    }
    case M5_JSON_ARRAY: {
        m5_j_enter(rt);
        size_t n = m5_json_len(j);
        jval l = m5_jv_seq(rt, J_LIST, n);
        for (size_t i = 0; i < n; i++) m5_jseq_push(rt, l.u.seq, m5_jv_from_json(rt, m5_json_at(j, i), trusted));
        m5_j_leave(rt);
        return l;
    }
    case M5_JSON_OBJECT: {
        m5_j_enter(rt);
        jdict *d = m5_jdict_new(rt, m5_json_len(j));
        for (void *it = m5_json_iter(j); it; it = m5_json_iter_next(j, it)) {
            m5_slice k = m5_json_iter_key(it);
            m5_jdict_set(rt, d, m5_jv_str(m5_jstr_view(rt, k.p, k.n, trusted)), m5_jv_from_json(rt, m5_json_iter_value(it), trusted));
        }
        m5_j_leave(rt);
        return (jval){.t = J_DICT, .u.dict = d};
    }
    default: return m5_jv_none();
    }
}

/* ---- iteration ---- */

jiter *m5_jiter_new(jrt *rt, jiter_fn fn, jval src, void *ctx, const char *label)
{
    jiter *it = m5_j_alloc(rt, sizeof *it);
    it->next = fn;
    it->src = src;
    it->ctx = ctx;
    it->label = label;
    return it;
}

bool m5_jiter_next(jrt *rt, jiter *it, jval *out)
{
    if (it->done) return false;
    m5_j_step(rt, 1);
    m5_j_deeper(rt); /* iterators over iterators may be stacked without end */
    bool more = it->next(rt, it, out);
    rt->eval_depth--;
    it->done = !more;
    return more;
}

static bool next_seq(jrt *rt, jiter *it, jval *out)
{
    (void)rt;
    if (it->i >= it->src.u.seq->n) return false;
    *out = it->src.u.seq->v[it->i++];
    return true;
}

static bool next_char(jrt *rt, jiter *it, jval *out)
{
    const jstr *s = it->src.u.s;
    if (it->i >= s->n) return false;
    size_t begin = it->i;
    m5_jstr_cp(s, &it->i);
    *out = m5_jv_str(m5_jstr_with_safe(rt, m5_jstr_sub(rt, s, begin, it->i), false));
    return true;
}

static bool next_entry(jrt *rt, jiter *it, jval *out)
{
    const jdict *d = it->src.t == J_VIEW ? it->src.u.view->dict : it->src.u.dict;
    jview_kind kind = it->src.t == J_VIEW ? it->src.u.view->kind : J_VIEW_KEYS;
    if (it->i >= it->n) return false;
    const jentry *e = &d->e[it->step < 0 ? it->n - 1 - it->i : it->i];
    it->i++;
    *out = kind == J_VIEW_KEYS ? e->k : kind == J_VIEW_VALUES ? e->v : m5_jv_tuple2(rt, e->k, e->v);
    return true;
}

static bool next_range(jrt *rt, jiter *it, jval *out)
{
    (void)rt;
    const jrange *r = it->src.u.range;
    if ((int64_t)it->i >= r->n) return false;
    int64_t k = it->step < 0 ? r->n - 1 - (int64_t)it->i : (int64_t)it->i;
    it->i++;
    *out = m5_jv_int(r->start + k * r->step);
    return true;
}

static bool next_nothing(jrt *rt, jiter *it, jval *out)
{
    (void)rt;
    (void)it;
    (void)out;
    return false;
}

/* A loop inside reads on in the loop outside, which gives pairs of item and loop. */
static bool next_loop(jrt *rt, jiter *it, jval *out)
{
    jval item;
    if (!m5_jloop_next(rt, it->src.u.loop, &item)) return false;
    *out = m5_jv_tuple2(rt, item, it->src);
    return true;
}

bool m5_jv_iterable(jval v)
{
    switch (v.t) {
    case J_STR:
    case J_LIST:
    case J_TUPLE:
    case J_DICT:
    case J_RANGE:
    case J_VIEW:
    case J_ITER:
    case J_UNDEF:
    case J_LOOP: return true;
    default: return false;
    }
}

jiter *m5_jv_iter_of(jrt *rt, jval v)
{
    jiter *it;
    switch (v.t) {
    case J_ITER: return v.u.it;
    case J_LIST: return m5_jiter_new(rt, next_seq, v, NULL, "list_iterator");
    case J_TUPLE: return m5_jiter_new(rt, next_seq, v, NULL, "tuple_iterator");
    case J_STR: m5_jstr_flat(rt, v.u.s); return m5_jiter_new(rt, next_char, v, NULL, "str_iterator");
    case J_RANGE: return m5_jiter_new(rt, next_range, v, NULL, "range_iterator");
    case J_DICT:
    case J_VIEW:
        it = m5_jiter_new(rt, next_entry, v, NULL, "dict_iterator");
        it->n = v.t == J_VIEW ? v.u.view->dict->n : v.u.dict->n;
        return it;
    case J_UNDEF: return m5_jiter_new(rt, next_nothing, v, NULL, "generator");
    case J_LOOP: return m5_jiter_new(rt, next_loop, v, NULL, "generator");
    default: m5_jrt_fail(rt, "'%s' object is not iterable", m5_jv_type(v));
    }
}

static bool next_seq_back(jrt *rt, jiter *it, jval *out)
{
    (void)rt;
    if (it->i >= it->src.u.seq->n) return false;
    *out = it->src.u.seq->v[it->src.u.seq->n - 1 - it->i++];
    return true;
}

static bool next_char_back(jrt *rt, jiter *it, jval *out)
{
    const jstr *s = it->src.u.s;
    if (!it->n) return false;
    size_t end = it->n;
    m5_jstr_cp_back(s, &it->n);
    jstr *c = m5_jstr_sub(rt, s, it->n, end);
    *out = m5_jv_str(s->safe ? m5_jstr_with_safe(rt, c, true) : c);
    return true;
}

bool m5_jv_reversed(jrt *rt, jval v, jiter **out)
{
    switch (v.t) {
    case J_LIST: *out = m5_jiter_new(rt, next_seq_back, v, NULL, "list_reverseiterator"); return true;
    case J_TUPLE: *out = m5_jiter_new(rt, next_seq_back, v, NULL, "reversed"); return true;
    case J_STR:
        *out = m5_jiter_new(rt, next_char_back, v, NULL, "reversed");
        (*out)->n = m5_jstr_flat(rt, v.u.s)->n;
        return true;
    case J_RANGE:
    case J_DICT:
    case J_VIEW:
        *out = v.t == J_RANGE ? m5_jiter_new(rt, next_range, v, NULL, "range_iterator") : m5_jv_iter_of(rt, v);
        (*out)->step = -1;
        return true;
    case J_UNDEF: *out = m5_jv_iter_of(rt, v); return true;
    default: return false;
    }
}

jval m5_jv_list_of(jrt *rt, jval v, jtype t)
{
    int64_t n = 0;
    jiter *it = m5_jv_iter_of(rt, v);
    if (v.t != J_ITER && v.t != J_STR && v.t != J_LOOP) m5_jv_len(rt, v, &n);
    jval l = m5_jv_seq(rt, t, (size_t)n);
    jval item;
    while (m5_jiter_next(rt, it, &item)) m5_jseq_push(rt, l.u.seq, item);
    return l;
}

/* ---- sorting ---- */

static void merge_sort(jrt *rt, jval *keys, jval *items, jval *tmp, size_t n, bool reverse)
{
    if (n < 2) return;
    size_t half = n / 2;
    merge_sort(rt, keys, items, tmp, half, reverse);
    merge_sort(rt, keys + half, items + half, tmp, n - half, reverse);
    memcpy(tmp, keys, half * sizeof *tmp);
    memcpy(tmp + half, items, half * sizeof *tmp);
    size_t a = 0, b = half, w = 0;
    while (a < half && b < n) {
        m5_j_step(rt, 1);
        bool right = reverse ? m5_jv_order(rt, tmp[a], keys[b], OP_LT) : m5_jv_order(rt, keys[b], tmp[a], OP_LT);
        if (right) {
            keys[w] = keys[b];
            items[w++] = items[b++];
        } else {
            keys[w] = tmp[a];
            items[w++] = tmp[half + a++];
        }
    }
    while (a < half) {
        keys[w] = tmp[a];
        items[w++] = tmp[half + a++];
    }
}

void m5_jv_sort(jrt *rt, jval *keys, jval *items, size_t n, bool reverse)
{
    jval *tmp = m5_j_array(rt, n + 1, sizeof *tmp);
    merge_sort(rt, keys, items, tmp, n, reverse);
}
