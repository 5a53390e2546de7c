/* SPDX-License-Identifier: Apache-2.0 */
/* What a template finds without being given it: range, namespace, dict, cycler, joiner, lipsum, raise_exception, strftime_now; and the attributes of
 * the loop variable, of macros, cyclers and joiners. */
#include "text/jinja_internal.h"

enum {
    G_RANGE = 1000,
    G_NAMESPACE,
    G_DICT,
    G_CYCLER,
    G_JOINER,
    G_LIPSUM,
    G_RAISE,
    G_STRFTIME,
    G_LOOP_CYCLE,
    G_LOOP_CHANGED,
    G_CYCLER_NEXT,
    G_CYCLER_RESET
};

static const struct {
    const char *name;
    int id;
} globals[] = {{"namespace", G_NAMESPACE}, {"raise_exception", G_RAISE}, {"strftime_now", G_STRFTIME}, {"range", G_RANGE},
               {"dict", G_DICT},           {"cycler", G_CYCLER},         {"joiner", G_JOINER},         {"lipsum", G_LIPSUM}};

jval m5_jfunc_val(jrt *rt, int id, const char *name, jval self)
{
    jfunc *f = m5_j_alloc(rt, sizeof *f);
    *f = (jfunc){id, name, self};
    return (jval){.t = J_FUNC, .u.fn = f};
}

bool m5_jglobal_find(jrt *rt, const jstr *name, jval *out)
{
    for (size_t i = 0; i < sizeof globals / sizeof *globals; i++) {
        if (!m5_jstr_is(rt, name, globals[i].name)) continue;
        *out = m5_jfunc_val(rt, globals[i].id, globals[i].name, m5_jv_missing());
        return true;
    }
    return false;
}

static jval make_range(jrt *rt, const jcall *c)
{
    jval a[3];
    m5_j_bind(rt, "range", c, "start stop step /", 1, a);
    jrange *r = m5_j_alloc(rt, sizeof *r);
    bool one = a[1].t == J_MISSING;
    r->start = one ? 0 : m5_j_arg_int(rt, "range", a[0]);
    r->stop = m5_j_arg_int(rt, "range", one ? a[0] : a[1]);
    r->step = a[2].t == J_MISSING ? 1 : m5_j_arg_int(rt, "range", a[2]);
    if (r->step == 0) m5_jrt_fail(rt, "range() arg 3 must not be zero");
    uint64_t n = 0, step = r->step > 0 ? (uint64_t)r->step : 0 - (uint64_t)r->step;
    if (r->step > 0 && r->start < r->stop) n = ((uint64_t)r->stop - (uint64_t)r->start - 1) / step + 1;
    if (r->step < 0 && r->start > r->stop) n = ((uint64_t)r->start - (uint64_t)r->stop - 1) / step + 1;
    if (n > J_MAX_RANGE) m5_jrt_fail_code(rt, M5_ERR_LIMIT, "range too big: the limit is %d items", J_MAX_RANGE);
    r->n = (int64_t)n;
    return (jval){.t = J_RANGE, .u.range = r};
}

/* dict(mapping or pairs, name=value ...) */
static jdict *make_dict(jrt *rt, const char *fname, const jcall *c)
{
    jdict *d = m5_jdict_new(rt, c->n_kw);
    if (c->n > 1) m5_jrt_fail(rt, "%s expected at most 1 argument, got %zu", fname, c->n);
    if (c->n == 1 && c->pos[0].t == J_DICT) {
        const jdict *src = c->pos[0].u.dict;
        for (size_t i = 0; i < src->n; i++) m5_jdict_set(rt, d, src->e[i].k, src->e[i].v);
    } else if (c->n == 1) {
        if (c->pos[0].t == J_UNDEF) m5_jv_undef_fail(rt, c->pos[0]);
        jiter *it = m5_jv_iter_of(rt, c->pos[0]);
        jval pair;
        while (m5_jiter_next(rt, it, &pair)) {
            jval kv = m5_jv_list_of(rt, pair, J_LIST);
            if (kv.u.seq->n != 2) m5_jrt_fail(rt, "%s wants pairs", fname);
            m5_jdict_set(rt, d, kv.u.seq->v[0], kv.u.seq->v[1]);
        }
    }
    for (size_t i = 0; i < c->n_kw; i++) m5_jdict_set(rt, d, m5_jv_str(c->kw[i]), c->kwval[i]);
    return d;
}

static jval make_cycler(jrt *rt, const jcall *c)
{
    if (c->n_kw) m5_jrt_fail(rt, "cycler() takes no keyword arguments");
    if (!c->n) m5_jrt_fail(rt, "at least one item has to be provided");
    jcycler *y = m5_j_alloc(rt, sizeof *y);
    jval *v = m5_j_array(rt, c->n, sizeof *v);
    memcpy(v, c->pos, c->n * sizeof *v);
    *y = (jcycler){v, c->n, 0};
    return (jval){.t = J_CYCLER, .u.cyc = y};
}

static jval make_joiner(jrt *rt, const jcall *c)
{
    jval a;
    m5_j_bind(rt, "joiner", c, "sep", 0, &a);
    jjoiner *j = m5_j_alloc(rt, sizeof *j);
    j->sep = a.t == J_MISSING ? m5_jv_str(m5_jstr_c(rt, ", ")) : a;
    return (jval){.t = J_JOINER, .u.join = j};
}

jval m5_jglobal_join(jrt *rt, jjoiner *j)
{
    if (j->used) return j->sep;
    j->used = true;
    return m5_jv_str(rt->empty);
}

/* Filler text for template authors; the reference draws it at random. */
static jval lipsum(jrt *rt, const jcall *c)
{
    static const char *const words[] = {"lorem", "ipsum", "dolor", "sit", "amet", "consectetur", "adipiscing", "elit"};
    jval a[4];
    m5_j_bind(rt, "lipsum", c, "n html min max", 0, a);
    int64_t n = a[0].t == J_MISSING ? 5 : m5_j_arg_int(rt, "lipsum", a[0]);
    bool html = a[1].t == J_MISSING || m5_jv_truth(rt, a[1]);
    jmark m = m5_j_begin(rt);
    for (int64_t i = 0; i < n; i++) {
        m5_j_step(rt, 1);
        if (i) m5_j_puts(rt, html ? "\n" : "\n\n");
        if (html) m5_j_puts(rt, "<p>");
        for (size_t k = 0; k < sizeof words / sizeof *words; k++) m5_j_printf(rt, k ? " %s" : "%s", words[k]);
        m5_j_puts(rt, html ? ".</p>" : ".");
    }
    jstr *s = m5_j_end(rt, m);
    s->safe = html;
    return m5_jv_str(s);
}

static jval loop_changed(jrt *rt, jloop *loop, const jcall *c)
{
    jval now = m5_jv_seq(rt, J_TUPLE, c->n);
    if (c->n_kw) m5_jrt_fail(rt, "changed() takes no keyword arguments");
    for (size_t i = 0; i < c->n; i++) m5_jseq_push(rt, now.u.seq, c->pos[i]);
    if (loop->changed.t != J_MISSING && m5_jv_eq(rt, loop->changed, now)) return m5_jv_bool(false);
    loop->changed = now;
    return m5_jv_bool(true);
}

jval m5_jglobal_call(jrt *rt, const jfunc *f, jcall *c)
{
    jval a;
    switch (f->id) {
    case G_RANGE: return make_range(rt, c);
    case G_NAMESPACE: return (jval){.t = J_NS, .u.dict = make_dict(rt, "namespace", c)};
    case G_DICT: return (jval){.t = J_DICT, .u.dict = make_dict(rt, "dict", c)};
    case G_CYCLER: return make_cycler(rt, c);
    case G_JOINER: return make_joiner(rt, c);
    case G_LIPSUM: return lipsum(rt, c);
    case G_RAISE: {
        m5_j_bind(rt, f->name, c, "message", 1, &a);
        const jstr *text = m5_jstr_flat(rt, m5_jv_to_str(rt, a));
        m5_jrt_fail_text(rt, (m5_slice){text->p, text->n});
    }
    case G_STRFTIME: m5_j_bind(rt, f->name, c, "format", 1, &a); return m5_jformat_time(rt, m5_j_arg_str(rt, f->name, a));
    case G_LOOP_CYCLE:
        if (c->n_kw) m5_jrt_fail(rt, "cycle() takes no keyword arguments");
        if (!c->n) m5_jrt_fail(rt, "no items for cycling given");
        return c->pos[(size_t)f->self.u.loop->index0 % c->n];
    case G_LOOP_CHANGED: return loop_changed(rt, f->self.u.loop, c);
    case G_CYCLER_NEXT: {
        jcycler *y = f->self.u.cyc;
        m5_j_bind(rt, f->name, c, "", 0, NULL);
        jval v = y->v[y->pos];
        y->pos = (y->pos + 1) % y->n;
        return v;
    }
    default:
        m5_j_bind(rt, f->name, c, "", 0, NULL);
        f->self.u.cyc->pos = 0;
        return m5_jv_none();
    }
}

/* ---- attributes ---- */

static int64_t loop_length(jrt *rt, jloop *l)
{
    if (l->known_len < 0 && (l->items.t == J_MISSING || !m5_jv_len(rt, l->items, &l->known_len))) { /* an iterator: read the rest */
        jval rest = m5_jv_list_of(rt, m5_jv_iter(l->it), J_LIST);
        l->known_len = (int64_t)rest.u.seq->n + l->index0 + 1 + (l->after.t != J_MISSING);
        l->it = m5_jv_iter_of(rt, rest);
    }
    return l->known_len;
}

static bool peek(jrt *rt, jloop *l)
{
    if (l->after.t == J_MISSING && !m5_jiter_next(rt, l->it, &l->after)) l->after = m5_jv_missing();
    return l->after.t != J_MISSING;
}

bool m5_jloop_next(jrt *rt, jloop *l, jval *item)
{
    if (l->after.t != J_MISSING) {
        *item = l->after;
        l->after = m5_jv_missing();
    } else if (!m5_jiter_next(rt, l->it, item)) {
        return false;
    }
    l->index0++;
    l->before = l->current;
    l->current = *item;
    return true;
}

jval m5_jloop_attr(jrt *rt, jloop *l, const jstr *name, bool *found)
{
    static const char *const names[] = {"last",     "first",     "index0", "index",  "length", "previtem", "nextitem",
                                        "revindex", "revindex0", "depth",  "depth0", "cycle",  "changed",  NULL};
    int k = 0;
    while (names[k] && !m5_jstr_is(rt, name, names[k])) k++;
    *found = names[k] != NULL;
    jval self = {.t = J_LOOP, .u.loop = l};
    switch (k) {
    case 0: return m5_jv_bool(!peek(rt, l));
    case 1: return m5_jv_bool(l->index0 == 0);
    case 2: return m5_jv_int(l->index0);
    case 3: return m5_jv_int(l->index0 + 1);
    case 4: return m5_jv_int(loop_length(rt, l));
    case 5: return l->index0 == 0 ? m5_jv_undef(rt, "there is no previous item") : l->before;
    case 6: return peek(rt, l) ? l->after : m5_jv_undef(rt, "there is no next item");
    case 7: return m5_jv_int(loop_length(rt, l) - l->index0);
    case 8: return m5_jv_int(loop_length(rt, l) - l->index0 - 1);
    case 9: return m5_jv_int(l->depth0 + 1);
    case 10: return m5_jv_int(l->depth0);
    case 11: return m5_jfunc_val(rt, G_LOOP_CYCLE, "cycle", self);
    case 12: return m5_jfunc_val(rt, G_LOOP_CHANGED, "changed", self);
    default: return m5_jv_missing();
    }
}

static bool macro_attr(jrt *rt, const jnode *n, const jstr *name, jval *out)
{
    if (m5_jstr_is(rt, name, "name")) {
        *out = n->kind == S_MACRO ? m5_jv_str(n->name) : m5_jv_none();
    } else if (m5_jstr_is(rt, name, "arguments")) {
        *out = m5_jv_seq(rt, J_TUPLE, n->params.n);
        for (size_t i = 0; i < n->params.n; i++) m5_jseq_push(rt, out->u.seq, m5_jv_str(n->params.v[i]->name));
    } else if (m5_jstr_is(rt, name, "catch_kwargs")) {
        *out = m5_jv_bool(n->kwargs_slot >= 0);
    } else if (m5_jstr_is(rt, name, "catch_varargs")) {
        *out = m5_jv_bool(n->varargs_slot >= 0);
    } else if (m5_jstr_is(rt, name, "caller")) {
        *out = m5_jv_bool(n->caller_slot >= 0);
    } else {
        return false;
    }
    return true;
}

bool m5_jglobal_attr(jrt *rt, jval obj, const jstr *name, jval *out)
{
    if (obj.t == J_MACRO) return macro_attr(rt, obj.u.macro->node, name, out);
    if (obj.t == J_JOINER) {
        if (m5_jstr_is(rt, name, "sep"))
            *out = obj.u.join->sep;
        else if (m5_jstr_is(rt, name, "used"))
            *out = m5_jv_bool(obj.u.join->used);
        else
            return false;
        return true;
    }
    const jcycler *y = obj.u.cyc;
    if (m5_jstr_is(rt, name, "current"))
        *out = y->v[y->pos];
    else if (m5_jstr_is(rt, name, "next"))
        *out = m5_jfunc_val(rt, G_CYCLER_NEXT, "next", obj);
    else if (m5_jstr_is(rt, name, "reset"))
        *out = m5_jfunc_val(rt, G_CYCLER_RESET, "reset", obj);
    else if (m5_jstr_is(rt, name, "pos"))
        *out = m5_jv_int((int64_t)y->pos);
    else
        return false;
    return true;
}
