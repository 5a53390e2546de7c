/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a bound tree: statements write to the text under construction, expressions give values. */
#include "text/jinja_internal.h"

#include <stdio.h>

typedef enum status { RUN_ON, RUN_BREAK, RUN_CONTINUE } status;

static jval eval(jrt *rt, jframe *f, const jnode *n);
static status run(jrt *rt, jframe *f, const jnodes *body);

/* ---- names ---- */

static jval *slot_at(jframe *f, jslotref r)
{
    for (; r.up; r.up--) f = f->parent;
    return &f->slots[r.slot];
}

static jval resolve(jrt *rt, const jstr *name)
{
    jval v;
    if (rt->overlay && m5_jdict_get_str(rt, rt->overlay, name, &v)) return v;
    if (rt->context && m5_jdict_get_str(rt, rt->context, name, &v)) return v;
    if (m5_jdict_get_str(rt, rt->vars, name, &v) || m5_jglobal_find(rt, name, &v)) return v;
    return m5_jv_missing();
}

static void enter_scope(jrt *rt, jframe *f, const jloads *loads)
{
    for (size_t i = 0; i < loads->n; i++) {
        const jload *l = &loads->v[i];
        switch (l->kind) {
        case LOAD_PARAM: break;
        case LOAD_RESOLVE: f->slots[l->slot] = resolve(rt, l->name); break;
        case LOAD_ALIAS: f->slots[l->slot] = *slot_at(f, l->from); break;
        case LOAD_UNDEF: f->slots[l->slot] = m5_jv_missing(); break;
        }
    }
}

static void leave_scope(jframe *f, const jloads *loads)
{
    for (size_t i = 0; i < loads->n; i++) f->slots[loads->v[i].slot] = m5_jv_missing();
}

static jframe *frame_new(jrt *rt, jframe *parent, const jfn *fn)
{
    jframe *f = m5_j_alloc(rt, sizeof *f);
    f->parent = parent;
    f->slots = m5_j_array(rt, fn->n_slots, sizeof *f->slots); /* zeroed: J_MISSING */
    return f;
}

/* Top-level variables are also visible to named blocks, which see no frame. */
static void set_context(jrt *rt, const jstr *name, jval v)
{
    if (!rt->tmpl->blocks.n) return;
    if (!rt->context) rt->context = m5_jdict_new(rt, 8);
    m5_jdict_set(rt, rt->context, m5_jv_str((jstr *)name), v);
}

JNOINLINE static void assign(jrt *rt, jframe *f, const jnode *target, jval v, bool top)
{
    if (target->kind == E_NAME) {
        *slot_at(f, target->ref) = v;
        if (top) set_context(rt, target->name, v);
        return;
    }
    if (target->kind == E_NSREF) {
        jval *ns = slot_at(f, target->ref);
        if (ns->t != J_NS) m5_jrt_fail(rt, "cannot assign attribute on non-namespace object");
        m5_jdict_set(rt, ns->u.dict, target->val, v);
        return;
    }
    jiter *it = m5_jv_iter_of(rt, v);
    jval item;
    size_t n = target->items.n;
    for (size_t i = 0; i < n; i++) {
        if (!m5_jiter_next(rt, it, &item)) m5_jrt_fail(rt, "not enough values to unpack (expected %zu, got %zu)", n, i);
        assign(rt, f, target->items.v[i], item, top);
    }
    if (m5_jiter_next(rt, it, &item)) m5_jrt_fail(rt, "too many values to unpack (expected %zu)", n);
}

/* ---- calls ---- */

enum { N_SMALL_ARGS = 5 };
typedef struct args {
    jcall c;
    jval pos[N_SMALL_ARGS], kwval[N_SMALL_ARGS];
    jstr *kw[N_SMALL_ARGS];
} args;

static void add_pos(jrt *rt, jcall *c, size_t *cap, jval v)
{
    if (c->n == *cap) {
        jval *p = m5_j_array(rt, *cap * 2, sizeof *p);
        memcpy(p, c->pos, c->n * sizeof *p);
        c->pos = p;
        *cap *= 2;
    }
    c->pos[c->n++] = v;
}

static void add_kw(jrt *rt, jcall *c, size_t *cap, jstr *name, jval v)
{
    for (size_t i = 0; i < c->n_kw; i++) {
        if (m5_jstr_eq(rt, c->kw[i], name))
            m5_jrt_fail(rt, "got multiple values for keyword argument '%.*s'", name->n > 60 ? 60 : (int)name->n, m5_jstr_flat(rt, name)->p);
    }
    if (c->n_kw == *cap) {
        jval *p = m5_j_array(rt, *cap * 2, sizeof *p);
        jstr **k = m5_j_array(rt, *cap * 2, sizeof *k);
        memcpy(p, c->kwval, c->n_kw * sizeof *p);
        memcpy(k, c->kw, c->n_kw * sizeof *k);
        c->kwval = p;
        c->kw = k;
        *cap *= 2;
    }
    c->kw[c->n_kw] = name;
    c->kwval[c->n_kw++] = v;
}

static void eval_args(jrt *rt, jframe *f, const jargs *src, args *a, const jval *caller)
{
    size_t cap = N_SMALL_ARGS, cap_kw = N_SMALL_ARGS;
    a->c = (jcall){.pos = a->pos, .kw = a->kw, .kwval = a->kwval};
    for (size_t i = 0; i < src->pos.n; i++) add_pos(rt, &a->c, &cap, eval(rt, f, src->pos.v[i]));
    for (size_t i = 0; i < src->kwval.n; i++) add_kw(rt, &a->c, &cap_kw, src->kw[i], eval(rt, f, src->kwval.v[i]));
    if (caller) add_kw(rt, &a->c, &cap_kw, m5_jstr_c(rt, "caller"), *caller);
    if (src->dyn) {
        jval v = eval(rt, f, src->dyn), item;
        jiter *it = m5_jv_iter_of(rt, v);
        while (m5_jiter_next(rt, it, &item)) add_pos(rt, &a->c, &cap, item);
    }
    if (src->dynkw) {
        jval v = eval(rt, f, src->dynkw);
        if (v.t != J_DICT) m5_jrt_fail(rt, "argument after ** must be a mapping, not %s", m5_jv_type(v));
        for (size_t i = 0; i < v.u.dict->n; i++) {
            const jentry *e = &v.u.dict->e[i];
            if (e->k.t != J_STR) m5_jrt_fail(rt, "keywords must be strings");
            add_kw(rt, &a->c, &cap_kw, e->k.u.s, e->v);
        }
    }
}

JNOINLINE static jval eval_call(jrt *rt, jframe *f, const jnode *n, const jval *caller)
{
    args a;
    jval fn = eval(rt, f, n->a);
    eval_args(rt, f, &n->args, &a, caller);
    rt->line = n->line;
    return m5_jop_call(rt, fn, &a.c);
}

/* Takes a named argument out of the call's remaining ones. */
static bool take_kw(jrt *rt, jcall *c, bool *used, const char *name, size_t n, jval *out)
{
    for (size_t i = 0; i < c->n_kw; i++) {
        const jstr *k = m5_jstr_flat(rt, c->kw[i]);
        if (used[i] || k->n != n || memcmp(k->p, name, n) != 0) continue;
        used[i] = true;
        *out = c->kwval[i];
        return true;
    }
    return false;
}

JNOINLINE static void bind_macro_args(jrt *rt, const jmacro *m, jcall *c, jframe *f)
{
    const jnode *n = m->node;
    size_t n_params = n->params.n, n_pos = c->n < n_params ? c->n : n_params;
    bool *used = m5_j_array(rt, c->n_kw, sizeof *used);
    const char *title = n->kind == S_MACRO ? n->name->p : "caller";
    int title_n = n->kind == S_MACRO ? (n->name->n > 60 ? 60 : (int)n->name->n) : 6;
    for (size_t i = 0; i < n_pos; i++) f->slots[n->params.v[i]->ref.slot] = c->pos[i];
    for (size_t i = n_pos; i < n_params; i++) {
        const jnode *p = n->params.v[i];
        take_kw(rt, c, used, p->name->p, p->name->n, &f->slots[p->ref.slot]);
    }
    if (n->caller_slot >= 0) {
        jval v = m5_jv_none();
        take_kw(rt, c, used, "caller", 6, &v);
        f->slots[n->caller_slot] = v.t == J_NONE ? m5_jv_undef(rt, "no caller defined") : v;
    }
    jdict *rest = n->kwargs_slot >= 0 ? m5_jdict_new(rt, c->n_kw) : NULL;
    for (size_t i = 0; i < c->n_kw; i++) {
        if (used[i]) continue;
        const jstr *k = m5_jstr_flat(rt, c->kw[i]);
        if (!rest) m5_jrt_fail(rt, "macro '%.*s' takes no keyword argument '%.*s'", title_n, title, k->n > 60 ? 60 : (int)k->n, k->p);
        m5_jdict_set(rt, rest, m5_jv_str(c->kw[i]), c->kwval[i]);
    }
    if (rest) f->slots[n->kwargs_slot] = (jval){.t = J_DICT, .u.dict = rest};
    if (n->varargs_slot >= 0) {
        jval t = m5_jv_seq(rt, J_TUPLE, c->n - n_pos);
        for (size_t i = n_pos; i < c->n; i++) m5_jseq_push(rt, t.u.seq, c->pos[i]);
        f->slots[n->varargs_slot] = t;
    } else if (c->n > n_params) {
        m5_jrt_fail(rt, "macro '%.*s' takes not more than %zu argument(s)", title_n, title, n_params);
    }
}

jval m5_jeval_macro(jrt *rt, const jmacro *m, jcall *c)
{
    const jnode *n = m->node;
    if (++rt->macro_depth > J_MAX_MACRO_DEPTH) m5_jrt_fail_code(rt, M5_ERR_LIMIT, "macros call each other more than %d deep", J_MAX_MACRO_DEPTH);
    jframe *f = frame_new(rt, m->frame, n->fn);
    bind_macro_args(rt, m, c, f);
    jmark mark = m5_j_begin(rt);
    enter_scope(rt, f, &n->fn->loads);
    size_t first_default = n->params.n - n->defaults.n;
    for (size_t i = 0; i < n->params.n; i++) {
        jval *v = &f->slots[n->params.v[i]->ref.slot];
        if (v->t != J_MISSING) continue;
        if (i >= first_default)
            *v = eval(rt, f, n->defaults.v[i - first_default]);
        else
            *v = m5_jv_undef(rt, "parameter '%.*s' was not provided", n->params.v[i]->name->n > 60 ? 60 : (int)n->params.v[i]->name->n,
                             n->params.v[i]->name->p);
    }
    run(rt, f, &n->body);
    rt->macro_depth--;
    return m5_jv_str(m5_j_end(rt, mark));
}

/* ---- expressions ---- */

JNOINLINE static jval apply_filter(jrt *rt, jframe *f, const jnode *n, jval v)
{
    args a;
    eval_args(rt, f, &n->args, &a, NULL);
    rt->line = n->line;
    return m5_jfilter_call(rt, n->id, n->name, v, &a.c);
}

JNOINLINE static jval apply_test(jrt *rt, jframe *f, const jnode *n)
{
    args a;
    jval v = eval(rt, f, n->a);
    eval_args(rt, f, &n->args, &a, NULL);
    rt->line = n->line;
    return m5_jv_bool(m5_jv_truth(rt, m5_jtest_call(rt, n->id, n->name, v, &a.c)));
}

/* Filters of a block: the innermost gets the block's text. */
JNOINLINE static jval filter_text(jrt *rt, jframe *f, const jnode *n, jval text)
{
    m5_j_deeper(rt);
    jval v = apply_filter(rt, f, n, n->a ? filter_text(rt, f, n->a, text) : text);
    rt->eval_depth--;
    return v;
}

JNOINLINE static jval eval_compare(jrt *rt, jframe *f, const jnode *n)
{
    jval left = eval(rt, f, n->a);
    for (size_t i = 0; i < n->items.n; i++) {
        jval right = eval(rt, f, n->items.v[i]);
        rt->line = n->line;
        if (!m5_jop_compare(rt, (jop)n->ops[i], left, right)) return m5_jv_bool(false);
        left = right;
    }
    return m5_jv_bool(true);
}

JNOINLINE static jval eval_concat(jrt *rt, jframe *f, const jnode *n)
{
    jstr *s = rt->empty;
    for (size_t i = 0; i < n->items.n; i++) s = m5_jstr_cat(rt, s, m5_jv_to_str(rt, eval(rt, f, n->items.v[i])));
    return m5_jv_str(s);
}

JNOINLINE static jval eval_getitem(jrt *rt, jframe *f, const jnode *n)
{
    jval obj = eval(rt, f, n->a);
    const jnode *k = n->b;
    if (k->kind == E_SLICE) {
        jval start = k->a ? eval(rt, f, k->a) : m5_jv_missing(), stop = k->b ? eval(rt, f, k->b) : m5_jv_missing();
        jval step = k->c ? eval(rt, f, k->c) : m5_jv_missing();
        rt->line = n->line;
        return m5_jop_slice(rt, obj, start, stop, step);
    }
    jval key = eval(rt, f, k);
    rt->line = n->line;
    return m5_jop_getitem(rt, obj, key);
}

JNOINLINE static jval eval_items(jrt *rt, jframe *f, const jnode *n)
{
    if (n->kind == E_DICT) {
        jdict *d = m5_jdict_new(rt, n->items.n / 2);
        for (size_t i = 0; i + 1 < n->items.n; i += 2) {
            jval k = eval(rt, f, n->items.v[i]);
            m5_jdict_set(rt, d, k, eval(rt, f, n->items.v[i + 1]));
        }
        return (jval){.t = J_DICT, .u.dict = d};
    }
    jval l = m5_jv_seq(rt, n->kind == E_LIST ? J_LIST : J_TUPLE, n->items.n);
    for (size_t i = 0; i < n->items.n; i++) m5_jseq_push(rt, l.u.seq, eval(rt, f, n->items.v[i]));
    return l;
}

static jval eval_inner(jrt *rt, jframe *f, const jnode *n)
{
    jval v, w;
    switch (n->kind) {
    case E_GETATTR:
        v = eval(rt, f, n->a);
        rt->line = n->line;
        return m5_jop_getattr(rt, v, n->name);
    case E_GETITEM: return eval_getitem(rt, f, n);
    case E_CALL: return eval_call(rt, f, n, NULL);
    case E_FILTER: return apply_filter(rt, f, n, eval(rt, f, n->a));
    case E_TEST: return apply_test(rt, f, n);
    case E_BIN:
        v = eval(rt, f, n->a);
        w = eval(rt, f, n->b);
        rt->line = n->line;
        return m5_jop_binary(rt, (jop)n->op, v, w);
    case E_AND: v = eval(rt, f, n->a); return m5_jv_truth(rt, v) ? eval(rt, f, n->b) : v;
    case E_OR: v = eval(rt, f, n->a); return m5_jv_truth(rt, v) ? v : eval(rt, f, n->b);
    case E_NOT: return m5_jv_bool(!m5_jv_truth(rt, eval(rt, f, n->a)));
    case E_NEG: return m5_jop_neg(rt, eval(rt, f, n->a));
    case E_POS: return m5_jop_pos(rt, eval(rt, f, n->a));
    case E_CONCAT: return eval_concat(rt, f, n);
    case E_COMPARE: return eval_compare(rt, f, n);
    case E_COND:
        if (m5_jv_truth(rt, eval(rt, f, n->b))) return eval(rt, f, n->a);
        if (n->c) return eval(rt, f, n->c);
        return m5_jv_undef(rt, "the inline if-expression on line %u evaluated to false and no else section was defined", (unsigned)n->line);
    case E_LIST:
    case E_TUPLE:
    case E_DICT: return eval_items(rt, f, n);
    default: m5_jrt_fail_code(rt, M5_ERR_INTERNAL, "an expression of unknown kind");
    }
}

static jval eval(jrt *rt, jframe *f, const jnode *n)
{
    m5_j_step(rt, 1);
    if (n->kind == E_CONST) return n->val;
    if (n->kind == E_NAME) {
        jval v = *slot_at(f, n->ref);
        return v.t == J_MISSING ? m5_jv_undef_name(rt, n->name, NULL) : v;
    }
    m5_j_deeper(rt);
    jval v = eval_inner(rt, f, n);
    rt->eval_depth--;
    return v;
}

/* ---- loops ---- */

typedef struct loop_filter {
    jiter *src;
    jframe *frame;
    const jnode *n;
} loop_filter;

static bool next_filtered(jrt *rt, jiter *it, jval *out)
{
    loop_filter *lf = it->ctx;
    while (m5_jiter_next(rt, lf->src, out)) {
        assign(rt, lf->frame, lf->n->defaults.v[0], *out, false);
        if (m5_jv_truth(rt, eval(rt, lf->frame, lf->n->c))) return true;
    }
    return false;
}

/* outer: the frame around the loop; f: the frame of its body (the same unless the loop is recursive). */
JNOINLINE static status run_loop(jrt *rt, jframe *outer, jframe *f, const jnode *n, jval items, int64_t depth0)
{
    rt->line = n->line;
    jiter *it = m5_jv_iter_of(rt, items);
    if (n->test_fn) {
        loop_filter *lf = m5_j_alloc(rt, sizeof *lf);
        *lf = (loop_filter){it, frame_new(rt, outer, n->test_fn), n};
        enter_scope(rt, lf->frame, &n->test_fn->loads);
        it = m5_jiter_new(rt, next_filtered, items, lf, "generator");
    }
    jloop *loop = NULL;
    if (n->extended) {
        loop = m5_j_alloc(rt, sizeof *loop);
        loop->it = it;
        loop->index0 = -1;
        loop->depth0 = depth0;
        loop->recursive = n->recursive ? n : NULL;
        loop->frame = outer;
        loop->known_len = -1;
        loop->items = n->test_fn ? m5_jv_missing() : items;
    }
    bool completed = false;
    jval item;
    while (loop ? m5_jloop_next(rt, loop, &item) : m5_jiter_next(rt, it, &item)) {
        assign(rt, f, n->a, item, false);
        if (loop) *slot_at(f, n->loop_ref) = (jval){.t = J_LOOP, .u.loop = loop};
        enter_scope(rt, f, &n->loads);
        status s = run(rt, f, &n->body);
        if (s == RUN_BREAK) break;
        if (s == RUN_ON) completed = true;
    }
    leave_scope(f, &n->loads);
    if (completed || !n->other.n) return RUN_ON;
    enter_scope(rt, f, &n->else_loads);
    status s = run(rt, f, &n->other);
    leave_scope(f, &n->else_loads);
    return s;
}

JNOINLINE static status run_for(jrt *rt, jframe *f, const jnode *n)
{
    jval items = eval(rt, f, n->b);
    return run_loop(rt, f, n->recursive ? frame_new(rt, f, n->fn) : f, n, items, 0);
}

jval m5_jeval_recurse(jrt *rt, const jloop *loop, jval items)
{
    const jnode *n = loop->recursive;
    if (++rt->macro_depth > J_MAX_MACRO_DEPTH) m5_jrt_fail_code(rt, M5_ERR_LIMIT, "a loop recurses more than %d deep", J_MAX_MACRO_DEPTH);
    jmark m = m5_j_begin(rt);
    run_loop(rt, loop->frame, frame_new(rt, loop->frame, n->fn), n, items, loop->depth0 + 1);
    rt->macro_depth--;
    return m5_jv_str(m5_j_end(rt, m));
}

/* ---- statements ---- */

JNOINLINE static status run_if(jrt *rt, jframe *f, const jnode *n)
{
    if (m5_jv_truth(rt, eval(rt, f, n->a))) return run(rt, f, &n->body);
    for (size_t i = 0; i < n->items.n; i++) {
        const jnode *arm = n->items.v[i];
        if (m5_jv_truth(rt, eval(rt, f, arm->a))) return run(rt, f, &arm->body);
    }
    return run(rt, f, &n->other);
}

JNOINLINE static void check_namespaces(jrt *rt, jframe *f, const jnode *target)
{
    if (target->kind == E_NSREF && slot_at(f, target->ref)->t != J_NS) m5_jrt_fail(rt, "cannot assign attribute on non-namespace object");
    for (size_t i = 0; i < target->items.n; i++) check_namespaces(rt, f, target->items.v[i]);
}

/* What a filter or call block puts out must be text already. */
static void put_text(jrt *rt, jval v)
{
    if (v.t != J_STR) m5_jrt_fail(rt, "expected text from the block, got '%s'", m5_jv_type(v));
    m5_j_put_str(rt, v.u.s);
}

JNOINLINE static status run_capture(jrt *rt, jframe *f, const jnode *n)
{
    enter_scope(rt, f, &n->loads);
    jmark m = m5_j_begin(rt);
    status s = run(rt, f, &n->body);
    jval text = m5_jv_str(m5_j_end(rt, m));
    if (s == RUN_ON && n->kind == S_FILTER) put_text(rt, filter_text(rt, f, n->a, text));
    if (s == RUN_ON && n->kind == S_SET_BLOCK) {
        if (n->b) text = filter_text(rt, f, n->b, text);
        assign(rt, f, n->a, text, n->top);
    }
    leave_scope(f, &n->loads);
    return s;
}

JNOINLINE static status run_with(jrt *rt, jframe *f, const jnode *n)
{
    enter_scope(rt, f, &n->loads);
    for (size_t i = 0; i < n->params.n; i++) assign(rt, f, n->params.v[i], eval(rt, f, n->defaults.v[i]), false);
    status s = run(rt, f, &n->body);
    leave_scope(f, &n->loads);
    return s;
}

JNOINLINE static status run_scope(jrt *rt, jframe *f, const jnode *n)
{
    enter_scope(rt, f, &n->loads);
    if (n->a && m5_jv_truth(rt, eval(rt, f, n->a))) m5_jrt_fail(rt, "autoescape is not supported");
    status s = run(rt, f, &n->body);
    leave_scope(f, &n->loads);
    return s;
}

JNOINLINE static void run_call_block(jrt *rt, jframe *f, const jnode *n)
{
    jmacro *m = m5_j_alloc(rt, sizeof *m);
    *m = (jmacro){n, f};
    jval caller = {.t = J_MACRO, .u.macro = m};
    jcall none = {0};
    put_text(rt, n->a ? eval_call(rt, f, n->a, &caller) : m5_jeval_macro(rt, m, &none));
}

JNOINLINE static void run_block(jrt *rt, jframe *f, const jnode *n)
{
    jdict *outer = rt->overlay;
    if (n->scoped) {
        rt->overlay = m5_jdict_new(rt, n->n_exports);
        for (size_t i = 0; outer && i < outer->n; i++) m5_jdict_set(rt, rt->overlay, outer->e[i].k, outer->e[i].v);
        for (size_t i = 0; i < n->n_exports; i++) {
            jval v = *slot_at(f, n->exports[i].from);
            if (v.t != J_MISSING) m5_jdict_set(rt, rt->overlay, m5_jv_str(n->exports[i].name), v);
        }
    }
    jframe *own = frame_new(rt, NULL, n->fn);
    enter_scope(rt, own, &n->fn->loads);
    run(rt, own, &n->body);
    rt->overlay = outer;
}

JNOINLINE static void run_macro_def(jrt *rt, jframe *f, const jnode *n)
{
    jmacro *m = m5_j_alloc(rt, sizeof *m);
    *m = (jmacro){n, f};
    jval v = {.t = J_MACRO, .u.macro = m};
    *slot_at(f, n->ref) = v;
    if (n->top) set_context(rt, n->name, v);
}

static status run_one(jrt *rt, jframe *f, const jnode *n)
{
    m5_j_step(rt, 1);
    rt->line = n->line;
    switch (n->kind) {
    case S_DATA: m5_j_put_str(rt, n->val.u.s); return RUN_ON;
    case S_PRINT: m5_jv_put_str(rt, eval(rt, f, n->a)); return RUN_ON;
    case S_IF: return run_if(rt, f, n);
    case S_FOR: return run_for(rt, f, n);
    case S_SET:
        if (n->a->kind != E_NAME) check_namespaces(rt, f, n->a);
        assign(rt, f, n->a, eval(rt, f, n->b), n->top);
        return RUN_ON;
    case S_SET_BLOCK: check_namespaces(rt, f, n->a); return run_capture(rt, f, n);
    case S_FILTER: return run_capture(rt, f, n);
    case S_MACRO: run_macro_def(rt, f, n); return RUN_ON;
    case S_CALL: run_call_block(rt, f, n); return RUN_ON;
    case S_WITH: return run_with(rt, f, n);
    case S_BLOCK: run_block(rt, f, n); return RUN_ON;
    case S_SCOPE: return run_scope(rt, f, n);
    case S_BREAK: return RUN_BREAK;
    case S_CONTINUE: return RUN_CONTINUE;
    default: m5_jrt_fail(rt, "'%.*s': there is no loader for other templates", n->name->n > 20 ? 20 : (int)n->name->n, n->name->p);
    }
}

static status run(jrt *rt, jframe *f, const jnodes *body)
{
    status s = RUN_ON;
    m5_j_deeper(rt);
    for (size_t i = 0; i < body->n && s == RUN_ON; i++) s = run_one(rt, f, body->v[i]);
    rt->eval_depth--;
    return s;
}

void m5_jeval_template(jrt *rt, const m5_jinja *t)
{
    jframe *f = frame_new(rt, NULL, t->root);
    enter_scope(rt, f, &t->root->loads);
    run(rt, f, &t->body);
}
