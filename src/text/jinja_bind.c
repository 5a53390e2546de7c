/* SPDX-License-Identifier: Apache-2.0 */
/* Settles at compile time where each name of a template lives, by Jinja's own scoping rules (those of its identifier tracking, which differ from what
 * one would guess: a name read before it is set in a loop body is the outer one in every pass, a name set in only one branch of an `if` is looked up
 * when the scope is entered, a macro sees the variables of the scopes around its definition as they are when it is called).
 *
 * A *scope* maps names to *slots* and lists the assignments made when it is entered: from an outer slot (alias), from the render variables (resolve),
 * or to nothing. Scopes nest; slots belong to the enclosing *function* (template, macro, call block, block, recursive loop, loop filter), which has
 * one frame per call at run time. A slot is named by scope level and name, so that scopes side by side share it. */
#include "text/jinja_internal.h"

typedef struct func func;
typedef struct slot {
    func *fn;
    jstr *name;
    int level;
    uint16_t no;
} slot;
struct func {
    func *parent;
    slot **slots;
    size_t n, cap;
};

typedef struct ref {
    jstr *name;
    slot *s;
} ref;
typedef struct load {
    slot *target, *from;
    jload_kind kind;
    jstr *name;
} load;
typedef struct scope scope;
struct scope {
    scope *parent;
    func *fn;
    int level;
    ref *refs;
    size_t n_refs, cap_refs;
    load *loads;
    size_t n_loads, cap_loads;
    jstr **stores;
    size_t n_stores, cap_stores;
};

typedef struct binder {
    jrt *rt;
    m5_jinja *t;
} binder;

/* What binding a node depends on besides its scope. */
typedef struct place {
    scope *sc;
    bool top;     /* template level, `if` included */
    bool soft;    /* in an if or inline if: unknown filters fail only when used */
    bool in_loop; /* break and continue have a loop of the same function around them */
} place;

static void *grow(jrt *rt, void *p, size_t n, size_t *cap, size_t size)
{
    if (n < *cap) return p;
    size_t want = *cap ? *cap * 2 : 8;
    void *more = m5_j_array(rt, want, size);
    if (n) memcpy(more, p, n * size);
    *cap = want;
    return more;
}

static func *func_new(binder *b, func *parent)
{
    func *f = m5_j_alloc(b->rt, sizeof *f);
    f->parent = parent;
    return f;
}

static scope *scope_new(binder *b, scope *parent, func *fn)
{
    scope *s = m5_j_alloc(b->rt, sizeof *s);
    s->parent = parent;
    s->fn = fn;
    s->level = parent ? parent->level + 1 : 0;
    return s;
}

static slot *slot_of(binder *b, scope *sc, jstr *name)
{
    func *f = sc->fn;
    m5_j_step(b->rt, f->n / 8 + 1);
    for (size_t i = 0; i < f->n; i++) {
        if (f->slots[i]->level == sc->level && m5_jstr_eq(b->rt, f->slots[i]->name, name)) return f->slots[i];
    }
    if (f->n >= UINT16_MAX) m5_jrt_fail_code(b->rt, M5_ERR_LIMIT, "too many variables");
    slot *s = m5_j_alloc(b->rt, sizeof *s);
    *s = (slot){f, name, sc->level, (uint16_t)f->n};
    f->slots = grow(b->rt, f->slots, f->n, &f->cap, sizeof *f->slots);
    f->slots[f->n++] = s;
    return s;
}

static slot *find_own(binder *b, const scope *sc, const jstr *name)
{
    m5_j_step(b->rt, sc->n_refs / 8 + 1);
    for (size_t i = 0; i < sc->n_refs; i++) {
        if (m5_jstr_eq(b->rt, sc->refs[i].name, name)) return sc->refs[i].s;
    }
    return NULL;
}

static slot *find(binder *b, const scope *sc, const jstr *name)
{
    for (; sc; sc = sc->parent) {
        slot *s = find_own(b, sc, name);
        if (s) return s;
    }
    return NULL;
}

static void set_ref(binder *b, scope *sc, jstr *name, slot *s)
{
    for (size_t i = 0; i < sc->n_refs; i++) {
        if (m5_jstr_eq(b->rt, sc->refs[i].name, name)) {
            sc->refs[i].s = s;
            return;
        }
    }
    sc->refs = grow(b->rt, sc->refs, sc->n_refs, &sc->cap_refs, sizeof *sc->refs);
    sc->refs[sc->n_refs++] = (ref){name, s};
}

static void set_load(binder *b, scope *sc, load l)
{
    m5_j_step(b->rt, sc->n_loads / 8 + 1);
    for (size_t i = 0; i < sc->n_loads; i++) {
        if (sc->loads[i].target == l.target) {
            sc->loads[i] = l;
            return;
        }
    }
    sc->loads = grow(b->rt, sc->loads, sc->n_loads, &sc->cap_loads, sizeof *sc->loads);
    sc->loads[sc->n_loads++] = l;
}

static bool stores_name(binder *b, const scope *sc, const jstr *name)
{
    m5_j_step(b->rt, sc->n_stores / 8 + 1);
    for (size_t i = 0; i < sc->n_stores; i++) {
        if (m5_jstr_eq(b->rt, sc->stores[i], name)) return true;
    }
    return false;
}

static void add_store(binder *b, scope *sc, jstr *name)
{
    if (stores_name(b, sc, name)) return;
    sc->stores = grow(b->rt, sc->stores, sc->n_stores, &sc->cap_stores, sizeof *sc->stores);
    sc->stores[sc->n_stores++] = name;
}

static slot *define(binder *b, scope *sc, jstr *name, jload_kind kind, slot *from)
{
    slot *s = slot_of(b, sc, name);
    set_ref(b, sc, name, s);
    set_load(b, sc, (load){s, from, kind, name});
    return s;
}

static slot *declare(binder *b, scope *sc, jstr *name)
{
    add_store(b, sc, name);
    return define(b, sc, name, LOAD_PARAM, NULL);
}

static void note_load(binder *b, scope *sc, jstr *name)
{
    if (!find(b, sc, name)) define(b, sc, name, LOAD_RESOLVE, NULL);
}

static void note_store(binder *b, scope *sc, jstr *name)
{
    add_store(b, sc, name);
    if (find_own(b, sc, name)) return;
    slot *outer = sc->parent ? find(b, sc->parent, name) : NULL;
    define(b, sc, name, outer ? LOAD_ALIAS : LOAD_UNDEF, outer);
}

static scope *scope_copy(binder *b, const scope *sc)
{
    scope *c = m5_j_alloc(b->rt, sizeof *c);
    *c = *sc;
    m5_j_step(b->rt, (sc->n_refs + sc->n_loads + sc->n_stores) / 8 + 1);
    c->cap_refs = sc->n_refs;
    c->cap_loads = sc->n_loads;
    c->cap_stores = sc->n_stores;
    c->refs = m5_j_array(b->rt, sc->n_refs, sizeof *c->refs);
    c->loads = m5_j_array(b->rt, sc->n_loads, sizeof *c->loads);
    c->stores = m5_j_array(b->rt, sc->n_stores, sizeof *c->stores);
    if (sc->n_refs) memcpy(c->refs, sc->refs, sc->n_refs * sizeof *c->refs);
    if (sc->n_loads) memcpy(c->loads, sc->loads, sc->n_loads * sizeof *c->loads);
    if (sc->n_stores) memcpy(c->stores, sc->stores, sc->n_stores * sizeof *c->stores);
    return c;
}

/* Joins the three arms of an if. A name first set in one of them may be unset afterwards: it starts as what it is outside. */
static void merge_branches(binder *b, scope *sc, scope *const arms[3])
{
    scope before = *sc;
    before.stores = m5_j_array(b->rt, sc->n_stores, sizeof *before.stores);
    if (sc->n_stores) memcpy(before.stores, sc->stores, sc->n_stores * sizeof *before.stores);
    for (int i = 0; i < 3; i++) {
        for (size_t k = 0; k < arms[i]->n_refs; k++) set_ref(b, sc, arms[i]->refs[k].name, arms[i]->refs[k].s);
        for (size_t k = 0; k < arms[i]->n_loads; k++) set_load(b, sc, arms[i]->loads[k]);
        for (size_t k = 0; k < arms[i]->n_stores; k++) add_store(b, sc, arms[i]->stores[k]);
    }
    for (int i = 0; i < 3; i++) {
        for (size_t k = 0; k < arms[i]->n_stores; k++) {
            jstr *name = arms[i]->stores[k];
            if (stores_name(b, &before, name)) continue;
            slot *outer = sc->parent ? find(b, sc->parent, name) : NULL;
            set_load(b, sc, (load){find(b, sc, name), outer, outer ? LOAD_ALIAS : LOAD_RESOLVE, name});
        }
    }
}

/* ---- first walk: which names a scope reads and sets ---- */

static void scan_stmts(binder *b, scope *sc, const jnodes *body);

static void scan_args(binder *b, scope *sc, const jargs *a);

static void scan_expr(binder *b, scope *sc, const jnode *n)
{
    if (!n) return;
    if (n->kind == E_NAME) {
        if (n->store)
            note_store(b, sc, n->name);
        else
            note_load(b, sc, n->name);
        return;
    }
    if (n->kind == E_NSREF) {
        note_load(b, sc, n->name);
        return;
    }
    scan_expr(b, sc, n->a);
    scan_expr(b, sc, n->b);
    scan_expr(b, sc, n->c);
    for (size_t i = 0; i < n->items.n; i++) scan_expr(b, sc, n->items.v[i]);
    scan_args(b, sc, &n->args);
}

static void scan_args(binder *b, scope *sc, const jargs *a)
{
    for (size_t i = 0; i < a->pos.n; i++) scan_expr(b, sc, a->pos.v[i]);
    for (size_t i = 0; i < a->kwval.n; i++) scan_expr(b, sc, a->kwval.v[i]);
    scan_expr(b, sc, a->dyn);
    scan_expr(b, sc, a->dynkw);
}

static void scan_params(binder *b, scope *sc, const jnode *target)
{
    if (target->kind == E_NAME) declare(b, sc, target->name);
    for (size_t i = 0; i < target->items.n; i++) scan_params(b, sc, target->items.v[i]);
}

static void scan_stmt(binder *b, scope *sc, const jnode *n);

static void scan_if(binder *b, scope *sc, const jnode *n)
{
    scan_expr(b, sc, n->a);
    scope *arms[3] = {scope_copy(b, sc), scope_copy(b, sc), scope_copy(b, sc)};
    scan_stmts(b, arms[0], &n->body);
    for (size_t i = 0; i < n->items.n; i++) scan_stmt(b, arms[1], n->items.v[i]);
    scan_stmts(b, arms[2], &n->other);
    merge_branches(b, sc, arms);
}

static void scan_stmt(binder *b, scope *sc, const jnode *n)
{
    switch (n->kind) {
    case S_PRINT: scan_expr(b, sc, n->a); break;
    case S_IF: scan_if(b, sc, n); break;
    case S_FOR: scan_expr(b, sc, n->b); break;
    case S_SET:
        scan_expr(b, sc, n->b);
        scan_expr(b, sc, n->a);
        break;
    case S_SET_BLOCK: scan_expr(b, sc, n->a); break;
    case S_MACRO: note_store(b, sc, n->name); break;
    case S_CALL:
    case S_FILTER: scan_expr(b, sc, n->a); break;
    case S_WITH:
        for (size_t i = 0; i < n->defaults.n; i++) scan_expr(b, sc, n->defaults.v[i]);
        break;
    case S_NO_LOADER:
        scan_expr(b, sc, n->a);
        for (size_t i = 0; i < n->params.n; i++) note_store(b, sc, n->params.v[i]->name);
        break;
    default: break;
    }
}

static void scan_stmts(binder *b, scope *sc, const jnodes *body)
{
    for (size_t i = 0; i < body->n; i++) scan_stmt(b, sc, body->v[i]);
}

/* Is `name` read in these nodes before anything sets it? 0 = not mentioned, 1 = read, 2 = set first. Looks into every scope, as Jinja does. */
static int probe_list(binder *b, const jnodes *l, const char *name);

static int probe(binder *b, const jnode *n, const char *name)
{
    if (!n || n->kind == S_BLOCK) return 0;
    m5_j_step(b->rt, 1);
    if (n->kind == E_NAME) return m5_jstr_is(b->rt, n->name, name) ? (n->store ? 2 : 1) : 0;
    int r = 0;
    bool filter_last = n->kind == S_FILTER, is_for = n->kind == S_FOR;
    if (!r && !filter_last) r = probe(b, n->a, name);
    if (!r) r = probe(b, n->b, name);
    if (!r && !is_for) r = probe(b, n->c, name);
    if (!r && n->kind != S_IF) r = probe_list(b, &n->items, name);
    if (!r) r = probe_list(b, &n->args.pos, name);
    if (!r) r = probe_list(b, &n->args.kwval, name);
    if (!r) r = probe(b, n->args.dyn, name);
    if (!r) r = probe(b, n->args.dynkw, name);
    if (!r && n->kind != S_NO_LOADER) r = probe_list(b, &n->params, name);
    if (!r) r = probe_list(b, &n->defaults, name);
    if (!r) r = probe_list(b, &n->body, name);
    if (!r && n->kind == S_IF) r = probe_list(b, &n->items, name);
    if (!r) r = probe_list(b, &n->other, name);
    if (!r && is_for) r = probe(b, n->c, name);
    if (!r && filter_last) r = probe(b, n->a, name);
    return r;
}

static int probe_list(binder *b, const jnodes *l, const char *name)
{
    for (size_t i = 0; i < l->n; i++) {
        int r = probe(b, l->v[i], name);
        if (r) return r;
    }
    return 0;
}

/* ---- second walk: slots into the tree ---- */

static void bind_stmts(binder *b, place p, const jnodes *body);

static jslotref to_ref(binder *b, const func *from, const slot *s)
{
    jslotref r = {0, s->no};
    for (; from && from != s->fn; from = from->parent) r.up++;
    if (!from) m5_jrt_fail_code(b->rt, M5_ERR_INTERNAL, "a name lost its scope");
    return r;
}

static jslotref name_ref(binder *b, scope *sc, jstr *name)
{
    note_load(b, sc, name); /* only names of a block set's filter can be new here */
    return to_ref(b, sc->fn, find(b, sc, name));
}

static jloads export_loads(binder *b, const scope *sc)
{
    jloads l = {m5_j_array(b->rt, sc->n_loads, sizeof(jload)), sc->n_loads};
    for (size_t i = 0; i < sc->n_loads; i++) {
        const load *x = &sc->loads[i];
        l.v[i] = (jload){.kind = x->kind, .slot = x->target->no, .name = x->name};
        if (x->kind == LOAD_ALIAS) l.v[i].from = to_ref(b, sc->fn, x->from);
    }
    return l;
}

static jfn *export_fn(binder *b, const scope *sc)
{
    jfn *fn = m5_j_alloc(b->rt, sizeof *fn);
    fn->n_slots = sc->fn->n;
    fn->loads = export_loads(b, sc);
    return fn;
}

static void bind_expr(binder *b, place p, jnode *n)
{
    if (!n) return;
    b->rt->line = n->line;
    if (n->kind == E_NAME || n->kind == E_NSREF) {
        n->ref = name_ref(b, p.sc, n->name);
        return;
    }
    if ((n->kind == E_FILTER || n->kind == E_TEST) && n->id < 0 && !p.soft) {
        int len = n->name->n > 60 ? 60 : (int)n->name->n;
        m5_jrt_fail(b->rt, "no %s named '%.*s'", n->kind == E_FILTER ? "filter" : "test", len, n->name->p);
    }
    if (n->kind == E_COND) p.soft = true;
    bind_expr(b, p, n->a);
    /* Jinja folds `constant or x` before it looks at x. */
    if ((n->kind == E_OR || n->kind == E_AND) && n->a->kind == E_CONST && m5_jv_truth(b->rt, n->a->val) == (n->kind == E_OR)) p.soft = true;
    bind_expr(b, p, n->b);
    bind_expr(b, p, n->c);
    for (size_t i = 0; i < n->items.n; i++) bind_expr(b, p, n->items.v[i]);
    for (size_t i = 0; i < n->args.pos.n; i++) bind_expr(b, p, n->args.pos.v[i]);
    for (size_t i = 0; i < n->args.kwval.n; i++) bind_expr(b, p, n->args.kwval.v[i]);
    bind_expr(b, p, n->args.dyn);
    bind_expr(b, p, n->args.dynkw);
}

static jnode *clone_target(binder *b, const jnode *t)
{
    jnode *c = m5_j_alloc(b->rt, sizeof *c);
    *c = *t;
    c->items = (jnodes){0};
    for (size_t i = 0; i < t->items.n; i++) m5_jnodes_push(b->rt, &c->items, clone_target(b, t->items.v[i]));
    return c;
}

static void refuse_loop_store(binder *b, const jnode *n);

static void refuse_loop_list(binder *b, const jnodes *l)
{
    for (size_t i = 0; i < l->n; i++) refuse_loop_store(b, l->v[i]);
}

static void refuse_loop_store(binder *b, const jnode *n)
{
    if (!n) return;
    m5_j_step(b->rt, 1);
    if (n->kind == E_NAME && n->store && m5_jstr_is(b->rt, n->name, "loop")) {
        b->rt->line = n->line;
        m5_jrt_fail(b->rt, "cannot assign to the special variable 'loop' in a for loop");
    }
    if (n->kind <= E_COND && n->kind != E_TUPLE) return;
    refuse_loop_store(b, n->a);
    refuse_loop_list(b, &n->items);
    refuse_loop_list(b, &n->body);
    refuse_loop_list(b, &n->other);
}

static bool has_scoped_block(binder *b, const jnodes *l)
{
    for (size_t i = 0; i < l->n; i++) {
        const jnode *n = l->v[i];
        m5_j_step(b->rt, 1);
        if (n->kind == S_BLOCK && n->scoped) return true;
        if (has_scoped_block(b, &n->body) || has_scoped_block(b, &n->other)) return true;
        if (n->kind == S_IF && has_scoped_block(b, &n->items)) return true;
    }
    return false;
}

static void bind_for(binder *b, place p, jnode *n)
{
    func *fn = n->recursive ? func_new(b, p.sc->fn) : p.sc->fn;
    scope *body = scope_new(b, p.sc, fn), *other = scope_new(b, p.sc, fn);
    jstr *loop = m5_jstr_c(b->rt, "loop");
    m5_jstr_hash(b->rt, loop);
    n->extended = n->recursive || probe_list(b, &n->body, "loop") == 1 || has_scoped_block(b, &n->body) || has_scoped_block(b, &n->other);
    slot *loop_slot = n->extended ? declare(b, body, loop) : NULL;
    scan_params(b, body, n->a);
    scan_stmts(b, body, &n->body);
    scan_stmts(b, other, &n->other);
    if (loop_slot) n->loop_ref = (jslotref){0, loop_slot->no};
    refuse_loop_store(b, n);
    bind_expr(b, p, n->b);
    if (n->c) {
        scope *test = scope_new(b, p.sc, func_new(b, p.sc->fn));
        jnode *target = clone_target(b, n->a);
        scan_params(b, test, target);
        scan_expr(b, test, n->c);
        place tp = {.sc = test};
        bind_expr(b, tp, target);
        bind_expr(b, tp, n->c);
        m5_jnodes_push(b->rt, &n->defaults, target);
        n->test_fn = export_fn(b, test);
    }
    place bp = {.sc = body, .in_loop = true}, op = {.sc = other, .in_loop = !n->recursive && p.in_loop};
    bind_expr(b, bp, n->a);
    bind_stmts(b, bp, &n->body);
    bind_stmts(b, op, &n->other);
    n->loads = export_loads(b, body);
    n->else_loads = export_loads(b, other);
    if (n->recursive) {
        n->fn = m5_j_alloc(b->rt, sizeof *n->fn);
        n->fn->n_slots = fn->n;
    }
}

/* A special parameter of a macro body: its slot if the body reads it, else -1. */
static int special_param(binder *b, scope *sc, const jnode *n, const char *name, bool is_param)
{
    if (is_param || probe_list(b, &n->body, name) != 1) return -1;
    jstr *s = m5_jstr_c(b->rt, name);
    m5_jstr_hash(b->rt, s);
    return declare(b, sc, s)->no;
}

static int param_index(binder *b, const jnode *n, const char *name)
{
    for (size_t i = 0; i < n->params.n; i++) {
        if (m5_jstr_is(b->rt, n->params.v[i]->name, name)) return (int)i;
    }
    return -1;
}

static void bind_macro(binder *b, place p, jnode *n)
{
    scope *sc = scope_new(b, p.sc, func_new(b, p.sc->fn));
    for (size_t i = 0; i < n->params.n; i++) declare(b, sc, n->params.v[i]->name);
    for (size_t i = 0; i < n->defaults.n; i++) scan_expr(b, sc, n->defaults.v[i]);
    scan_stmts(b, sc, &n->body);
    int caller = param_index(b, n, "caller");
    if (caller >= 0 && probe_list(b, &n->body, "caller") == 1 && (size_t)caller + n->defaults.n < n->params.n) {
        b->rt->line = n->line;
        m5_jrt_fail(b->rt, "the special parameter 'caller' must be left out or have a default");
    }
    n->caller_slot = special_param(b, sc, n, "caller", caller >= 0);
    n->kwargs_slot = special_param(b, sc, n, "kwargs", param_index(b, n, "kwargs") >= 0);
    n->varargs_slot = special_param(b, sc, n, "varargs", param_index(b, n, "varargs") >= 0);
    place mp = {.sc = sc};
    for (size_t i = 0; i < n->params.n; i++) bind_expr(b, mp, n->params.v[i]);
    for (size_t i = 0; i < n->defaults.n; i++) bind_expr(b, mp, n->defaults.v[i]);
    bind_stmts(b, mp, &n->body);
    n->fn = export_fn(b, sc);
}

static void bind_block(binder *b, place p, jnode *n)
{
    for (size_t i = 0; i < b->t->blocks.n; i++) {
        if (m5_jstr_eq(b->rt, b->t->blocks.v[i]->name, n->name)) m5_jrt_fail(b->rt, "block '%s' is defined twice", n->name->p);
    }
    m5_jnodes_push(b->rt, &b->t->blocks, n);
    if (n->scoped) {
        size_t cap = 0;
        jload *list = NULL;
        for (scope *s = p.sc; s; s = s->parent) {
            for (size_t i = 0; i < s->n_stores; i++) {
                bool seen = false;
                for (size_t k = 0; k < n->n_exports; k++) seen = seen || m5_jstr_eq(b->rt, list[k].name, s->stores[i]);
                if (seen) continue;
                list = grow(b->rt, list, n->n_exports, &cap, sizeof *list);
                list[n->n_exports++] = (jload){.name = s->stores[i], .from = name_ref(b, p.sc, s->stores[i])};
            }
        }
        n->exports = list;
    }
    scope *sc = scope_new(b, NULL, func_new(b, NULL));
    scan_stmts(b, sc, &n->body);
    bind_stmts(b, (place){.sc = sc}, &n->body);
    n->fn = export_fn(b, sc);
}

/* with, filter, block set and plain scopes: a scope inside the same function. */
static void bind_inner(binder *b, place p, jnode *n)
{
    scope *sc = scope_new(b, p.sc, p.sc->fn);
    place ip = {.sc = sc, .in_loop = p.in_loop};
    for (size_t i = 0; i < n->params.n; i++) scan_params(b, sc, n->params.v[i]);
    if (n->kind == S_SCOPE) scan_expr(b, sc, n->a);
    scan_stmts(b, sc, &n->body);
    if (n->kind == S_FILTER) scan_expr(b, sc, n->a);
    if (n->kind == S_SET_BLOCK) {
        bind_expr(b, p, n->a);
        scan_expr(b, sc, n->b);
        bind_expr(b, ip, n->b);
    } else {
        bind_expr(b, ip, n->a);
    }
    for (size_t i = 0; i < n->defaults.n; i++) bind_expr(b, p, n->defaults.v[i]);
    for (size_t i = 0; i < n->params.n; i++) bind_expr(b, ip, n->params.v[i]);
    bind_stmts(b, ip, &n->body);
    n->loads = export_loads(b, sc);
}

static void bind_if(binder *b, place p, jnode *n)
{
    p.soft = true;
    bind_expr(b, p, n->a);
    bind_stmts(b, p, &n->body);
    for (size_t i = 0; i < n->items.n; i++) bind_if(b, p, n->items.v[i]);
    bind_stmts(b, p, &n->other);
}

static void bind_stmt(binder *b, place p, jnode *n)
{
    b->rt->line = n->line;
    n->top = p.top;
    switch (n->kind) {
    case S_PRINT: bind_expr(b, p, n->a); break;
    case S_IF: bind_if(b, p, n); break;
    case S_FOR: bind_for(b, p, n); break;
    case S_SET:
        bind_expr(b, p, n->b);
        bind_expr(b, p, n->a);
        break;
    case S_MACRO:
        bind_macro(b, p, n);
        n->ref = name_ref(b, p.sc, n->name);
        break;
    case S_CALL:
        bind_macro(b, p, n);
        bind_expr(b, p, n->a);
        break;
    case S_SET_BLOCK:
    case S_FILTER:
    case S_WITH:
    case S_SCOPE: bind_inner(b, p, n); break;
    case S_BLOCK: bind_block(b, p, n); break;
    case S_NO_LOADER: bind_expr(b, p, n->a); break;
    case S_BREAK:
    case S_CONTINUE:
        if (!p.in_loop) m5_jrt_fail(b->rt, "'%s' outside a loop", n->kind == S_BREAK ? "break" : "continue");
        break;
    default: break;
    }
}

static void bind_stmts(binder *b, place p, const jnodes *body)
{
    for (size_t i = 0; i < body->n; i++) bind_stmt(b, p, body->v[i]);
}

void m5_jbind(jrt *rt, m5_jinja *t)
{
    binder b = {rt, t};
    scope *sc = scope_new(&b, NULL, func_new(&b, NULL));
    scan_stmts(&b, sc, &t->body);
    bind_stmts(&b, (place){.sc = sc, .top = true}, &t->body);
    t->root = export_fn(&b, sc);
}
