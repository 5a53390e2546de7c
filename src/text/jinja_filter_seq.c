/* SPDX-License-Identifier: Apache-2.0 */
/* Filters over sequences and mappings, and the table of all filters. Those that Python writes as generators are lazy and can be read once. */
#include "text/jinja_internal.h"

/* ---- attribute paths: "a.b.0" ---- */

typedef struct path {
    jval *parts;
    size_t n;
} path;

static path path_of(jrt *rt, jval attr)
{
    path p = {NULL, 0};
    if (attr.t == J_MISSING || attr.t == J_NONE) return p;
    if (attr.t != J_STR) {
        p.parts = m5_j_alloc(rt, sizeof *p.parts);
        p.parts[p.n++] = attr;
        return p;
    }
    jval list = m5_jmethod_split(rt, attr.u.s, m5_jstr_c(rt, "."), -1);
    p.parts = list.u.seq->v;
    p.n = list.u.seq->n;
    for (size_t i = 0; i < p.n; i++) {
        const jstr *s = m5_jstr_flat(rt, p.parts[i].u.s);
        jval n;
        bool digits = s->n > 0;
        for (size_t k = 0; k < s->n; k++) digits = digits && s->p[k] >= '0' && s->p[k] <= '9';
        if (digits && m5_jint_parse(rt, s->p, s->n, 10, &n)) p.parts[i] = n;
    }
    return p;
}

static jval path_get(jrt *rt, path p, jval item, jval dflt)
{
    for (size_t i = 0; i < p.n; i++) {
        item = m5_jop_getitem(rt, item, p.parts[i]);
        if (item.t == J_UNDEF && dflt.t != J_MISSING && dflt.t != J_NONE) item = dflt;
    }
    return item;
}

static jval fold_case(jrt *rt, jval v, bool case_sensitive)
{
    return v.t == J_STR && !case_sensitive ? m5_jv_str(m5_ju_str_lower(rt, v.u.s)) : v;
}

static bool flag(jrt *rt, jval v)
{
    return v.t != J_MISSING && m5_jv_truth(rt, v);
}

/* ---- lazy ones ---- */

typedef struct apply {
    jiter *src;
    path path;
    jval dflt;
    bool by_path, negate, by_test, ready;
    int id;
    const jstr *name;
    jcall call;
    jval value;
} apply;

static jcall copy_call(jrt *rt, const jcall *c, size_t skip)
{
    jcall r = {.n = c->n > skip ? c->n - skip : 0, .n_kw = c->n_kw};
    r.pos = m5_j_array(rt, r.n, sizeof *r.pos);
    r.kw = m5_j_array(rt, r.n_kw, sizeof *r.kw);
    r.kwval = m5_j_array(rt, r.n_kw, sizeof *r.kwval);
    if (r.n) memcpy(r.pos, c->pos + skip, r.n * sizeof *r.pos);
    if (r.n_kw) {
        memcpy(r.kw, c->kw, r.n_kw * sizeof *r.kw);
        memcpy(r.kwval, c->kwval, r.n_kw * sizeof *r.kwval);
    }
    return r;
}

static const jstr *name_arg(jrt *rt, jval v, const char *what)
{
    if (v.t != J_STR) m5_jrt_fail(rt, "no %s named like a value of type '%s'", what, m5_jv_type(v));
    return m5_jstr_flat(rt, v.u.s);
}

static void map_prepare(jrt *rt, apply *a)
{
    jcall *c = &a->call;
    if (!c->n && c->n_kw) {
        jval v[2];
        bool has_attr = false;
        for (size_t i = 0; i < c->n_kw; i++) has_attr = has_attr || m5_jstr_is(rt, c->kw[i], "attribute");
        if (has_attr) {
            m5_j_bind(rt, "map", c, "attribute default", 1, v);
            a->path = path_of(rt, v[0]);
            a->dflt = v[1];
            a->by_path = true;
            return;
        }
    }
    if (!c->n) m5_jrt_fail(rt, "map requires a filter argument");
    a->name = name_arg(rt, c->pos[0], "filter");
    a->id = m5_jfilter_find(a->name);
    a->call = copy_call(rt, c, 1);
}

static bool next_map(jrt *rt, jiter *it, jval *out)
{
    apply *a = it->ctx;
    if (!a->ready) {
        if (!m5_jv_truth(rt, a->value)) return false;
        map_prepare(rt, a);
        a->src = m5_jv_iter_of(rt, a->value);
        a->ready = true;
    }
    jval item;
    if (!m5_jiter_next(rt, a->src, &item)) return false;
    jcall c = copy_call(rt, &a->call, 0);
    *out = a->by_path ? path_get(rt, a->path, item, a->dflt) : m5_jfilter_call(rt, a->id, a->name, item, &c);
    return true;
}

static jval f_map(jrt *rt, jval v, jcall *c)
{
    apply *a = m5_j_alloc(rt, sizeof *a);
    a->value = v;
    a->dflt = m5_jv_missing();
    a->call = copy_call(rt, c, 0);
    return m5_jv_iter(m5_jiter_new(rt, next_map, v, a, "generator"));
}

static bool next_select(jrt *rt, jiter *it, jval *out)
{
    apply *a = it->ctx;
    if (!a->ready) {
        if (!m5_jv_truth(rt, a->value)) return false;
        size_t off = 0;
        if (a->by_path) {
            if (!a->call.n) m5_jrt_fail(rt, "missing parameter for attribute name");
            a->path = path_of(rt, a->call.pos[off++]);
        }
        if (a->call.n > off) {
            a->by_test = true;
            a->name = name_arg(rt, a->call.pos[off++], "test");
            a->id = m5_jtest_find(a->name);
        }
        a->call = copy_call(rt, &a->call, off);
        a->src = m5_jv_iter_of(rt, a->value);
        a->ready = true;
    }
    jval item;
    while (m5_jiter_next(rt, a->src, &item)) {
        jval probe = a->by_path ? path_get(rt, a->path, item, m5_jv_missing()) : item;
        jcall c = a->call;
        bool yes = m5_jv_truth(rt, a->by_test ? m5_jtest_call(rt, a->id, a->name, probe, &c) : probe);
        if (yes == a->negate) continue;
        *out = item;
        return true;
    }
    return false;
}

static jval make_select(jrt *rt, jval v, jcall *c, bool negate, bool by_path)
{
    apply *a = m5_j_alloc(rt, sizeof *a);
    a->value = v;
    a->negate = negate;
    a->by_path = by_path;
    a->call = copy_call(rt, c, 0);
    return m5_jv_iter(m5_jiter_new(rt, next_select, v, a, "generator"));
}

static jval f_select(jrt *rt, jval v, jcall *c)
{
    return make_select(rt, v, c, false, false);
}

static jval f_reject(jrt *rt, jval v, jcall *c)
{
    return make_select(rt, v, c, true, false);
}

static jval f_selectattr(jrt *rt, jval v, jcall *c)
{
    return make_select(rt, v, c, false, true);
}

static jval f_rejectattr(jrt *rt, jval v, jcall *c)
{
    return make_select(rt, v, c, true, true);
}

typedef struct unique {
    jiter *src;
    path path;
    bool case_sensitive;
    jdict *seen;
} unique;

static bool next_unique(jrt *rt, jiter *it, jval *out)
{
    unique *u = it->ctx;
    if (!u->src) u->src = m5_jv_iter_of(rt, it->src);
    jval item, dummy;
    while (m5_jiter_next(rt, u->src, &item)) {
        jval key = fold_case(rt, path_get(rt, u->path, item, m5_jv_missing()), u->case_sensitive);
        if (m5_jdict_get(rt, u->seen, key, &dummy)) continue;
        m5_jdict_set(rt, u->seen, key, m5_jv_none());
        *out = item;
        return true;
    }
    return false;
}

static jval f_unique(jrt *rt, jval v, jcall *c)
{
    jval a[2];
    m5_j_bind(rt, "unique", c, "case_sensitive attribute", 0, a);
    unique *u = m5_j_alloc(rt, sizeof *u);
    u->case_sensitive = flag(rt, a[0]);
    u->path = path_of(rt, a[1]);
    u->seen = m5_jdict_new(rt, 0);
    return m5_jv_iter(m5_jiter_new(rt, next_unique, v, u, "generator"));
}

typedef struct batch {
    jiter *src;
    jval fill, held;
    jval size;
    jval list; /* slice: the whole input */
    int64_t n, at, offset;
} batch;

static bool next_batch(jrt *rt, jiter *it, jval *out)
{
    batch *b = it->ctx;
    jval tmp = m5_jv_seq(rt, J_LIST, 0), item;
    if (!b->src) b->src = m5_jv_iter_of(rt, it->src);
    if (b->held.t != J_MISSING) m5_jseq_push(rt, tmp.u.seq, b->held);
    b->held = m5_jv_missing();
    while (m5_jiter_next(rt, b->src, &item)) {
        if (m5_jv_eq(rt, m5_jv_int((int64_t)tmp.u.seq->n), b->size)) {
            b->held = item;
            *out = tmp;
            return true;
        }
        m5_jseq_push(rt, tmp.u.seq, item);
    }
    if (!tmp.u.seq->n) return false;
    bool fill = b->fill.t != J_MISSING && b->fill.t != J_NONE;
    while (fill && m5_jv_order(rt, m5_jv_int((int64_t)tmp.u.seq->n), b->size, OP_LT)) m5_jseq_push(rt, tmp.u.seq, b->fill);
    *out = tmp;
    return true;
}

static bool next_slice(jrt *rt, jiter *it, jval *out)
{
    batch *b = it->ctx;
    if (b->list.t == J_MISSING) {
        b->list = m5_jv_list_of(rt, it->src, J_LIST);
        b->n = m5_j_arg_int(rt, "slice", b->size);
        if (b->n == 0) m5_jrt_fail(rt, "integer division or modulo by zero");
    }
    if (b->at >= b->n) return false;
    int64_t n = (int64_t)b->list.u.seq->n, per = n / b->n, extra = n % b->n, k = b->at++;
    int64_t start = b->offset + k * per;
    if (k < extra) b->offset++;
    int64_t end = b->offset + (k + 1) * per;
    jval tmp = m5_jv_seq(rt, J_LIST, (size_t)(end - start) + 1);
    for (int64_t i = start; i < end; i++) m5_jseq_push(rt, tmp.u.seq, b->list.u.seq->v[i]);
    if (b->fill.t != J_MISSING && b->fill.t != J_NONE && k >= extra) m5_jseq_push(rt, tmp.u.seq, b->fill);
    *out = tmp;
    return true;
}

static jval make_batch(jrt *rt, jval v, jcall *c, const char *name, const char *spec, jiter_fn fn)
{
    jval a[2];
    m5_j_bind(rt, name, c, spec, 1, a);
    batch *b = m5_j_alloc(rt, sizeof *b);
    b->size = a[0];
    b->fill = a[1];
    b->held = b->list = m5_jv_missing();
    return m5_jv_iter(m5_jiter_new(rt, fn, v, b, "generator"));
}

static jval f_batch(jrt *rt, jval v, jcall *c)
{
    return make_batch(rt, v, c, "batch", "linecount fill_with", next_batch);
}

static jval f_slice(jrt *rt, jval v, jcall *c)
{
    return make_batch(rt, v, c, "slice", "slices fill_with", next_slice);
}

static bool next_items(jrt *rt, jiter *it, jval *out)
{
    if (it->src.t == J_UNDEF) return false;
    if (it->src.t != J_DICT) m5_jrt_fail(rt, "can only get item pairs from a mapping, not '%s'", m5_jv_type(it->src));
    const jdict *d = it->src.u.dict;
    if (it->i >= d->n) return false;
    const jentry *e = &d->e[it->i++];
    *out = m5_jv_tuple2(rt, e->k, e->v);
    return true;
}

static jval f_items(jrt *rt, jval v, jcall *c)
{
    m5_j_bind(rt, "items", c, "", 0, NULL);
    return m5_jv_iter(m5_jiter_new(rt, next_items, v, NULL, "generator"));
}

/* ---- eager ones ---- */

static jval f_reverse(jrt *rt, jval v, jcall *c)
{
    jiter *it;
    m5_j_bind(rt, "reverse", c, "", 0, NULL);
    if (v.t == J_STR) return m5_jop_slice(rt, v, m5_jv_missing(), m5_jv_missing(), m5_jv_int(-1));
    if (m5_jv_reversed(rt, v, &it)) return m5_jv_iter(it);
    jval list = m5_jv_list_of(rt, v, J_LIST);
    return m5_jop_slice(rt, list, m5_jv_missing(), m5_jv_missing(), m5_jv_int(-1));
}

static jval f_first(jrt *rt, jval v, jcall *c)
{
    jval item;
    m5_j_bind(rt, "first", c, "", 0, NULL);
    if (m5_jiter_next(rt, m5_jv_iter_of(rt, v), &item)) return item;
    return m5_jv_undef(rt, "no first item, sequence was empty");
}

static jval f_last(jrt *rt, jval v, jcall *c)
{
    jval item;
    jiter *it;
    m5_j_bind(rt, "last", c, "", 0, NULL);
    if (!m5_jv_reversed(rt, v, &it)) m5_jrt_fail(rt, "'%s' object is not reversible", m5_jv_type(v));
    if (m5_jiter_next(rt, it, &item)) return item;
    return m5_jv_undef(rt, "no last item, sequence was empty");
}

static jval f_random(jrt *rt, jval v, jcall *c)
{
    int64_t n;
    m5_j_bind(rt, "random", c, "", 0, NULL);
    if (!m5_jv_len(rt, v, &n) || v.t == J_DICT) m5_jrt_fail(rt, "'%s' object has no random item", m5_jv_type(v));
    if (!n) return m5_jv_undef(rt, "no random item, sequence was empty");
    return m5_jop_getitem(rt, v, m5_jv_int((int64_t)(rt->steps * 0x9E3779B97F4A7C15u >> 33) % n));
}

static jval f_length(jrt *rt, jval v, jcall *c)
{
    int64_t n;
    m5_j_bind(rt, "length", c, "", 0, NULL);
    if (!m5_jv_len(rt, v, &n)) m5_jrt_fail(rt, "object of type '%s' has no len()", m5_jv_type(v));
    return m5_jv_int(n);
}

static jval f_list(jrt *rt, jval v, jcall *c)
{
    m5_j_bind(rt, "list", c, "", 0, NULL);
    return m5_jv_list_of(rt, v, J_LIST);
}

static jval f_join(jrt *rt, jval v, jcall *c)
{
    jval a[2], item;
    m5_j_bind(rt, "join", c, "d attribute", 0, a);
    const jstr *sep = a[0].t == J_MISSING ? rt->empty : m5_jv_to_str(rt, a[0]);
    path p = path_of(rt, a[1]);
    jiter *it = m5_jv_iter_of(rt, v);
    jmark m = m5_j_begin(rt);
    for (bool first = true; m5_jiter_next(rt, it, &item); first = false) {
        if (!first) m5_j_put_str(rt, sep);
        m5_jv_put_str(rt, path_get(rt, p, item, m5_jv_missing()));
    }
    return m5_jv_str(m5_j_end(rt, m));
}

static jval f_default(jrt *rt, jval v, jcall *c)
{
    jval a[2];
    m5_j_bind(rt, "default", c, "default_value boolean", 0, a);
    if (v.t != J_UNDEF && !(flag(rt, a[1]) && !m5_jv_truth(rt, v))) return v;
    return a[0].t == J_MISSING ? m5_jv_str(rt->empty) : a[0];
}

static jval f_attr(jrt *rt, jval v, jcall *c)
{
    jval a, out;
    m5_j_bind(rt, "attr", c, "name", 1, &a);
    const jstr *name = m5_j_arg_str(rt, "attr", a);
    if (v.t == J_UNDEF) m5_jv_undef_fail(rt, v);
    return m5_jop_attr(rt, v, name, &out) ? out : m5_jv_undef_name(rt, name, m5_jv_describe(v));
}

static jval f_dictsort(jrt *rt, jval v, jcall *c)
{
    jval a[3];
    m5_j_bind(rt, "dictsort", c, "case_sensitive by reverse", 0, a);
    bool by_value = a[1].t == J_STR && m5_jstr_is(rt, a[1].u.s, "value");
    if (a[1].t != J_MISSING && !by_value && !(a[1].t == J_STR && m5_jstr_is(rt, a[1].u.s, "key"))) {
        m5_jrt_fail(rt, "you can only sort by either \"key\" or \"value\"");
    }
    if (v.t == J_UNDEF) m5_jv_undef_fail(rt, v);
    if (v.t != J_DICT) m5_jrt_fail(rt, "'%s' object has no attribute 'items'", m5_jv_type(v));
    const jdict *d = v.u.dict;
    jval list = m5_jv_seq(rt, J_LIST, d->n);
    jval *keys = m5_j_array(rt, d->n, sizeof *keys);
    for (size_t i = 0; i < d->n; i++) {
        keys[i] = fold_case(rt, by_value ? d->e[i].v : d->e[i].k, flag(rt, a[0]));
        m5_jseq_push(rt, list.u.seq, m5_jv_tuple2(rt, d->e[i].k, d->e[i].v));
    }
    m5_jv_sort(rt, keys, list.u.seq->v, d->n, m5_j_arg_flag(rt, "reverse", a[2]));
    return list;
}

static jval f_sort(jrt *rt, jval v, jcall *c)
{
    jval a[3];
    m5_j_bind(rt, "sort", c, "reverse case_sensitive attribute", 0, a);
    jval list = m5_jv_list_of(rt, v, J_LIST);
    size_t n = list.u.seq->n, n_paths = 1;
    path *paths;
    if (a[2].t == J_STR) {
        jval names = m5_jmethod_split(rt, a[2].u.s, m5_jstr_c(rt, ","), -1);
        n_paths = names.u.seq->n;
        paths = m5_j_array(rt, n_paths, sizeof *paths);
        for (size_t i = 0; i < n_paths; i++) paths[i] = path_of(rt, names.u.seq->v[i]);
    } else {
        paths = m5_j_alloc(rt, sizeof *paths);
        paths[0] = path_of(rt, a[2]);
    }
    jval *keys = m5_j_array(rt, n, sizeof *keys);
    for (size_t i = 0; i < n; i++) {
        /* Keys are lists even for one attribute: equal values without order, such as two nones, then do not fail. */
        keys[i] = m5_jv_seq(rt, J_LIST, n_paths);
        for (size_t k = 0; k < n_paths; k++) {
            jval key = path_get(rt, paths[k], list.u.seq->v[i], m5_jv_missing());
            m5_jseq_push(rt, keys[i].u.seq, fold_case(rt, key, flag(rt, a[1])));
        }
    }
    m5_jv_sort(rt, keys, list.u.seq->v, n, m5_j_arg_flag(rt, "reverse", a[0]));
    return list;
}

static jval f_groupby(jrt *rt, jval v, jcall *c)
{
    jval a[3];
    m5_j_bind(rt, "groupby", c, "attribute default case_sensitive", 1, a);
    path p = path_of(rt, a[0]);
    jval list = m5_jv_list_of(rt, v, J_LIST), out = m5_jv_seq(rt, J_LIST, 0);
    size_t n = list.u.seq->n;
    jval *keys = m5_j_array(rt, n, sizeof *keys);
    for (size_t i = 0; i < n; i++) keys[i] = fold_case(rt, path_get(rt, p, list.u.seq->v[i], a[1]), flag(rt, a[2]));
    m5_jv_sort(rt, keys, list.u.seq->v, n, false);
    for (size_t i = 0; i < n;) {
        jval group = m5_jv_seq(rt, J_LIST, 0);
        size_t k = i;
        do m5_jseq_push(rt, group.u.seq, list.u.seq->v[k++]);
        while (k < n && m5_jv_eq(rt, keys[i], keys[k]));
        jval pair = m5_jv_tuple2(rt, path_get(rt, p, list.u.seq->v[i], a[1]), group);
        pair.u.seq->group = true;
        m5_jseq_push(rt, out.u.seq, pair);
        i = k;
    }
    return out;
}

static jval extreme(jrt *rt, jval v, jcall *c, const char *name, jop better)
{
    jval a[2], item, best, best_key;
    m5_j_bind(rt, name, c, "case_sensitive attribute", 0, a);
    path p = path_of(rt, a[1]);
    jiter *it = m5_jv_iter_of(rt, v);
    if (!m5_jiter_next(rt, it, &best)) return m5_jv_undef(rt, "no aggregated item, sequence was empty");
    best_key = fold_case(rt, path_get(rt, p, best, m5_jv_missing()), flag(rt, a[0]));
    while (m5_jiter_next(rt, it, &item)) {
        jval key = fold_case(rt, path_get(rt, p, item, m5_jv_missing()), flag(rt, a[0]));
        if (!m5_jv_order(rt, key, best_key, better)) continue;
        best = item;
        best_key = key;
    }
    return best;
}

static jval f_min(jrt *rt, jval v, jcall *c)
{
    return extreme(rt, v, c, "min", OP_LT);
}

static jval f_max(jrt *rt, jval v, jcall *c)
{
    return extreme(rt, v, c, "max", OP_GT);
}

static jval f_sum(jrt *rt, jval v, jcall *c)
{
    jval a[2], item;
    m5_j_bind(rt, "sum", c, "attribute start", 0, a);
    path p = path_of(rt, a[0]);
    jval total = a[1].t == J_MISSING ? m5_jv_int(0) : a[1];
    if (total.t == J_STR) m5_jrt_fail(rt, "sum() can't sum strings");
    jiter *it = m5_jv_iter_of(rt, v);
    while (m5_jiter_next(rt, it, &item)) total = m5_jop_binary(rt, OP_ADD, total, path_get(rt, p, item, m5_jv_missing()));
    return total;
}

const jfilter m5_jfilters_seq[] = {{"length", f_length},
                                   {"default", f_default},
                                   {"items", f_items},
                                   {"join", f_join},
                                   {"list", f_list},
                                   {"map", f_map},
                                   {"select", f_select},
                                   {"reject", f_reject},
                                   {"selectattr", f_selectattr},
                                   {"rejectattr", f_rejectattr},
                                   {"attr", f_attr},
                                   {"batch", f_batch},
                                   {"count", f_length},
                                   {"d", f_default},
                                   {"dictsort", f_dictsort},
                                   {"first", f_first},
                                   {"groupby", f_groupby},
                                   {"last", f_last},
                                   {"max", f_max},
                                   {"min", f_min},
                                   {"random", f_random},
                                   {"reverse", f_reverse},
                                   {"slice", f_slice},
                                   {"sort", f_sort},
                                   {"sum", f_sum},
                                   {"unique", f_unique},
                                   {NULL, NULL}};

/* ---- all filters: numbers count through the two tables ---- */

static const jfilter *by_number(int id)
{
    for (const jfilter *f = m5_jfilters_seq; f->name; f++) {
        if (id-- == 0) return f;
    }
    return &m5_jfilters_text[id];
}

int m5_jfilter_find(const jstr *name)
{
    int id = 0;
    for (int table = 0; table < 2; table++) {
        for (const jfilter *f = table ? m5_jfilters_text : m5_jfilters_seq; f->name; f++, id++) {
            if (strlen(f->name) == name->n && memcmp(f->name, name->p, name->n) == 0) return id;
        }
    }
    return -1;
}

jval m5_jfilter_call(jrt *rt, int id, const jstr *name, jval v, jcall *c)
{
    if (id < 0) m5_jrt_fail(rt, "no filter named '%.*s'", name->n > 60 ? 60 : (int)name->n, m5_jstr_flat(rt, name)->p);
    return by_number(id)->fn(rt, v, c);
}
