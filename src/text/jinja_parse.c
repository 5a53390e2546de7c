/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens to tree, with Jinja's grammar: "~" binds tighter than "+", filters bind tighter than "**", unary minus tighter than filters. Meaning of
 * names is settled afterwards in jinja_bind.c. */
#include "text/jinja_internal.h"

#include <stdio.h>

typedef struct parser {
    jrt *rt;
    const jtok *t;
    size_t i;
    int depth;       /* of the recursion through expressions */
    int block_depth; /* of open statements */
    const char *tag; /* innermost open tag and its line, for messages */
    uint32_t tag_line;
} parser;

static jnode *expression(parser *p);
static jnode *or_expression(parser *p);
static jnode *unary(parser *p, bool with_filter);
static void statements(parser *p, const char *const *end, jnodes *body);

static const jtok *cur(const parser *p)
{
    return &p->t[p->i];
}

static const jtok *next(parser *p)
{
    const jtok *t = cur(p);
    if (t->kind != T_EOF) p->i++;
    return t;
}

static const char *describe(const jtok *t, char *buf, size_t n)
{
    switch (t->kind) {
    case T_EOF: return "end of template";
    case T_DATA: return "template text";
    case T_BLOCK_BEGIN: return "'{%'";
    case T_BLOCK_END: return "end of statement block";
    case T_VAR_BEGIN: return "'{{'";
    case T_VAR_END: return "end of print statement";
    case T_INT: return "an integer";
    case T_FLOAT: return "a number";
    case T_STRING: return "a string";
    default: break;
    }
    int len = t->s->n > 40 ? 40 : (int)t->s->n;
    snprintf(buf, n, "'%.*s'", len, t->s->p);
    return buf;
}

static JNORETURN void fail_at(parser *p, const jtok *t, const char *what)
{
    char buf[64];
    p->rt->line = t->line;
    m5_jrt_fail(p->rt, "%s, got %s", what, describe(t, buf, sizeof buf));
}

static JNORETURN void fail(parser *p, uint32_t line, const char *what)
{
    p->rt->line = line;
    m5_jrt_fail(p->rt, "%s", what);
}

static bool is_word(const parser *p, const jtok *t, const char *word)
{
    return t->kind == T_NAME && m5_jstr_is(p->rt, t->s, word);
}

static bool skip_word(parser *p, const char *word)
{
    if (!is_word(p, cur(p), word)) return false;
    p->i++;
    return true;
}

static bool skip_kind(parser *p, jtok_kind kind)
{
    if (cur(p)->kind != kind) return false;
    p->i++;
    return true;
}

static const jtok *expect(parser *p, jtok_kind kind, const char *what)
{
    if (cur(p)->kind != kind) {
        char text[96];
        snprintf(text, sizeof text, "expected %s", what);
        fail_at(p, cur(p), text);
    }
    return next(p);
}

void m5_jnodes_push(jrt *rt, jnodes *l, jnode *n)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? l->cap * 2 : 4;
        jnode **v = m5_j_array(rt, cap, sizeof *v);
        if (l->n) memcpy(v, l->v, l->n * sizeof *v);
        l->v = v;
        l->cap = cap;
    }
    l->v[l->n++] = n;
}

static jnode *node(parser *p, jkind kind, uint32_t line)
{
    jnode *n = m5_j_alloc(p->rt, sizeof *n);
    n->kind = (uint8_t)kind;
    n->line = line;
    n->id = -1;
    n->depth = 1;
    n->val = m5_jv_missing();
    n->caller_slot = n->kwargs_slot = n->varargs_slot = -1;
    return n;
}

/* Keeps every later walk over the tree within a known stack. */
static void deepen(parser *p, jnode *n, const jnode *child)
{
    if (!child || child->depth < n->depth) return;
    n->depth = (uint16_t)(child->depth + 1);
    if (n->depth > J_MAX_EXPR_DEPTH) {
        p->rt->line = n->line;
        m5_jrt_fail_code(p->rt, M5_ERR_LIMIT, "an expression nested more than %d deep", J_MAX_EXPR_DEPTH);
    }
}

static void add_item(parser *p, jnode *n, jnode *item)
{
    m5_jnodes_push(p->rt, &n->items, item);
    deepen(p, n, item);
}

static jnode *binary(parser *p, jkind kind, jop op, jnode *a, jnode *b, uint32_t line)
{
    jnode *n = node(p, kind, line);
    n->op = (uint8_t)op;
    n->a = a;
    n->b = b;
    deepen(p, n, a);
    deepen(p, n, b);
    return n;
}

static jnode *constant(parser *p, jval v, uint32_t line)
{
    jnode *n = node(p, E_CONST, line);
    n->val = v;
    return n;
}

static bool tuple_end(parser *p, const char *extra)
{
    jtok_kind k = cur(p)->kind;
    return k == T_VAR_END || k == T_BLOCK_END || k == T_RPAREN || (extra && is_word(p, cur(p), extra));
}

static jnode *primary(parser *p, bool with_namespace);

typedef enum tuple_mode { TUPLE_FULL, TUPLE_NO_COND, TUPLE_TARGET, TUPLE_TARGET_NS } tuple_mode;

/* One expression, or several with commas between: then a tuple. */
static jnode *tuple(parser *p, tuple_mode mode, const char *extra_end, bool parens)
{
    uint32_t line = cur(p)->line;
    jnode *t = node(p, E_TUPLE, line);
    bool is_tuple = false;
    for (;;) {
        if (t->items.n) expect(p, T_COMMA, "','");
        if (tuple_end(p, extra_end)) break;
        jnode *n = mode == TUPLE_FULL ? expression(p) : mode == TUPLE_NO_COND ? or_expression(p) : primary(p, mode == TUPLE_TARGET_NS);
        add_item(p, t, n);
        if (cur(p)->kind != T_COMMA) break;
        is_tuple = true;
    }
    if (is_tuple) return t;
    if (t->items.n) return t->items.v[0];
    if (!parens) fail_at(p, cur(p), "expected an expression");
    return t;
}

static jnode *list_literal(parser *p)
{
    jnode *n = node(p, E_LIST, next(p)->line);
    while (cur(p)->kind != T_RBRACKET) {
        if (n->items.n) expect(p, T_COMMA, "','");
        if (cur(p)->kind == T_RBRACKET) break;
        add_item(p, n, expression(p));
    }
    next(p);
    return n;
}

static jnode *dict_literal(parser *p)
{
    jnode *n = node(p, E_DICT, next(p)->line);
    while (cur(p)->kind != T_RBRACE) {
        if (n->items.n) expect(p, T_COMMA, "','");
        if (cur(p)->kind == T_RBRACE) break;
        add_item(p, n, expression(p));
        expect(p, T_COLON, "':'");
        add_item(p, n, expression(p));
    }
    next(p);
    return n;
}

static jnode *name_or_literal(parser *p, bool with_namespace)
{
    const jtok *t = next(p);
    static const struct {
        const char *word;
        jtype t;
        bool b;
    } words[] = {{"true", J_BOOL, true},   {"True", J_BOOL, true},  {"false", J_BOOL, false},
                 {"False", J_BOOL, false}, {"none", J_NONE, false}, {"None", J_NONE, false}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        if (!m5_jstr_is(p->rt, t->s, words[i].word)) continue;
        return constant(p, words[i].t == J_NONE ? m5_jv_none() : m5_jv_bool(words[i].b), t->line);
    }
    jnode *n = node(p, E_NAME, t->line);
    n->name = t->s;
    if (with_namespace && skip_kind(p, T_DOT)) {
        n->kind = E_NSREF;
        n->val = m5_jv_str(expect(p, T_NAME, "a name")->s);
    }
    return n;
}

static jnode *primary(parser *p, bool with_namespace)
{
    const jtok *t = cur(p);
    switch (t->kind) {
    case T_NAME: return name_or_literal(p, with_namespace);
    case T_STRING: {
        jstr *s = next(p)->s;
        if (cur(p)->kind == T_STRING) { /* neighbours are one string */
            jmark m = m5_j_begin(p->rt);
            m5_j_put_str(p->rt, s);
            while (cur(p)->kind == T_STRING) m5_j_put_str(p->rt, next(p)->s);
            s = m5_j_end(p->rt, m);
            m5_jstr_len(p->rt, s);
            m5_jstr_hash(p->rt, s);
        }
        return constant(p, m5_jv_str(s), t->line);
    }
    case T_INT:
    case T_FLOAT: return constant(p, next(p)->val, t->line);
    case T_LPAREN: {
        next(p);
        jnode *n = tuple(p, TUPLE_FULL, NULL, true);
        expect(p, T_RPAREN, "')'");
        return n;
    }
    case T_LBRACKET: return list_literal(p);
    case T_LBRACE: return dict_literal(p);
    default: fail_at(p, t, "expected an expression");
    }
}

static jnode *subscribed(parser *p)
{
    uint32_t line = cur(p)->line;
    jnode *first = NULL;
    if (cur(p)->kind != T_COLON) {
        first = expression(p);
        if (cur(p)->kind != T_COLON) return first;
    }
    next(p);
    jnode *n = node(p, E_SLICE, line);
    n->a = first;
    if (cur(p)->kind != T_COLON && cur(p)->kind != T_RBRACKET && cur(p)->kind != T_COMMA) n->b = expression(p);
    if (skip_kind(p, T_COLON) && cur(p)->kind != T_RBRACKET && cur(p)->kind != T_COMMA) n->c = expression(p);
    deepen(p, n, n->a);
    deepen(p, n, n->b);
    deepen(p, n, n->c);
    return n;
}

static jnode *subscript(parser *p, jnode *of)
{
    const jtok *t = next(p);
    jnode *n = node(p, E_GETITEM, t->line);
    n->a = of;
    deepen(p, n, of);
    if (t->kind == T_DOT) {
        const jtok *attr = next(p);
        if (attr->kind == T_NAME) {
            n->kind = E_GETATTR;
            n->name = attr->s;
        } else if (attr->kind == T_INT) {
            n->b = constant(p, attr->val, attr->line);
        } else {
            fail_at(p, attr, "expected a name or number");
        }
        return n;
    }
    jnode *index = node(p, E_TUPLE, t->line);
    while (cur(p)->kind != T_RBRACKET) {
        if (index->items.n) expect(p, T_COMMA, "','");
        add_item(p, index, subscribed(p));
    }
    next(p);
    n->b = index->items.n == 1 ? index->items.v[0] : index;
    for (size_t i = 0; i < index->items.n && index->items.n > 1; i++) {
        if (index->items.v[i]->kind == E_SLICE) fail(p, t->line, "a slice inside a tuple subscript");
    }
    deepen(p, n, n->b);
    return n;
}

static void call_args(parser *p, jnode *n)
{
    jargs *a = &n->args;
    uint32_t line = expect(p, T_LPAREN, "'('")->line;
    size_t cap_kw = 0;
    bool ok = true;
    for (bool first = true; cur(p)->kind != T_RPAREN; first = false) {
        if (!first) {
            expect(p, T_COMMA, "','");
            if (cur(p)->kind == T_RPAREN) break;
        }
        jnode *arg;
        if (skip_kind(p, T_MUL)) {
            ok = ok && !a->dyn && !a->dynkw;
            arg = a->dyn = expression(p);
        } else if (skip_kind(p, T_POW)) {
            ok = ok && !a->dynkw;
            arg = a->dynkw = expression(p);
        } else if (cur(p)->kind == T_NAME && p->t[p->i + 1].kind == T_ASSIGN) {
            ok = ok && !a->dynkw;
            jstr *key = next(p)->s;
            next(p);
            arg = expression(p);
            for (size_t i = 0; i < a->kwval.n; i++) {
                if (m5_jstr_eq(p->rt, a->kw[i], key)) fail(p, line, "a keyword argument is repeated");
            }
            if (a->kwval.n == cap_kw) {
                cap_kw = cap_kw ? cap_kw * 2 : 4;
                jstr **kw = m5_j_array(p->rt, cap_kw, sizeof *kw);
                if (a->kwval.n) memcpy(kw, a->kw, a->kwval.n * sizeof *kw);
                a->kw = kw;
            }
            a->kw[a->kwval.n] = key;
            m5_jnodes_push(p->rt, &a->kwval, arg);
        } else {
            ok = ok && !a->dyn && !a->dynkw && !a->kwval.n;
            arg = expression(p);
            m5_jnodes_push(p->rt, &a->pos, arg);
        }
        deepen(p, n, arg);
        if (!ok) fail(p, line, "invalid syntax for function call expression");
    }
    next(p);
}

static jnode *call(parser *p, jnode *callee)
{
    jnode *n = node(p, E_CALL, cur(p)->line);
    n->a = callee;
    deepen(p, n, callee);
    call_args(p, n);
    return n;
}

static jnode *postfix(parser *p, jnode *n)
{
    for (;;) {
        jtok_kind k = cur(p)->kind;
        if (k == T_DOT || k == T_LBRACKET)
            n = subscript(p, n);
        else if (k == T_LPAREN)
            n = call(p, n);
        else
            return n;
    }
}

/* name or dotted.name of a filter or test */
static jstr *dotted_name(parser *p)
{
    jstr *s = expect(p, T_NAME, "a name")->s;
    while (skip_kind(p, T_DOT)) {
        s = m5_jstr_cat(p->rt, m5_jstr_cat(p->rt, s, m5_jstr_c(p->rt, ".")), expect(p, T_NAME, "a name")->s);
        s = (jstr *)m5_jstr_flat(p->rt, s);
    }
    return s;
}

static jnode *filter(parser *p, jnode *of)
{
    jnode *n = node(p, E_FILTER, cur(p)->line);
    n->name = dotted_name(p);
    n->id = m5_jfilter_find(n->name);
    n->a = of;
    deepen(p, n, of);
    if (cur(p)->kind == T_LPAREN) call_args(p, n);
    return n;
}

static jnode *filters(parser *p, jnode *of)
{
    while (skip_kind(p, T_PIPE)) of = filter(p, of);
    return of;
}

static jnode *test(parser *p, jnode *of)
{
    uint32_t line = next(p)->line;
    bool negated = skip_word(p, "not");
    jnode *n = node(p, E_TEST, line);
    n->name = dotted_name(p);
    n->id = m5_jtest_find(n->name);
    n->a = of;
    deepen(p, n, of);
    const jtok *t = cur(p);
    if (t->kind == T_LPAREN) {
        call_args(p, n);
    } else if ((t->kind == T_NAME && !is_word(p, t, "else") && !is_word(p, t, "or") && !is_word(p, t, "and")) || t->kind == T_STRING ||
               t->kind == T_INT || t->kind == T_FLOAT || t->kind == T_LBRACKET || t->kind == T_LBRACE) {
        if (is_word(p, t, "is")) fail(p, t->line, "tests cannot be chained with 'is'");
        jnode *arg = postfix(p, primary(p, false));
        m5_jnodes_push(p->rt, &n->args.pos, arg);
        deepen(p, n, arg);
    }
    return negated ? binary(p, E_NOT, OP_ADD, n, NULL, line) : n;
}

static jnode *filter_expression(parser *p, jnode *n)
{
    for (;;) {
        const jtok *t = cur(p);
        if (t->kind == T_PIPE)
            n = filters(p, n);
        else if (is_word(p, t, "is"))
            n = test(p, n);
        else if (t->kind == T_LPAREN)
            n = call(p, n);
        else
            return n;
    }
}

static void enter(parser *p)
{
    if (++p->depth > J_MAX_EXPR_DEPTH) {
        p->rt->line = cur(p)->line;
        m5_jrt_fail_code(p->rt, M5_ERR_LIMIT, "an expression nested more than %d deep", J_MAX_EXPR_DEPTH);
    }
}

static jnode *unary(parser *p, bool with_filter)
{
    enter(p);
    const jtok *t = cur(p);
    jnode *n;
    if (t->kind == T_SUB || t->kind == T_ADD) {
        next(p);
        n = binary(p, t->kind == T_SUB ? E_NEG : E_POS, OP_ADD, unary(p, false), NULL, t->line);
    } else {
        n = primary(p, false);
    }
    n = postfix(p, n);
    if (with_filter) n = filter_expression(p, n);
    p->depth--;
    return n;
}

static jnode *power(parser *p)
{
    jnode *left = unary(p, true);
    while (cur(p)->kind == T_POW) {
        uint32_t line = next(p)->line;
        left = binary(p, E_BIN, OP_POW, left, unary(p, true), line);
    }
    return left;
}

static jnode *product(parser *p)
{
    jnode *left = power(p);
    for (;;) {
        jop op;
        switch (cur(p)->kind) {
        case T_MUL: op = OP_MUL; break;
        case T_DIV: op = OP_DIV; break;
        case T_FLOORDIV: op = OP_FLOORDIV; break;
        case T_MOD: op = OP_MOD; break;
        default: return left;
        }
        uint32_t line = next(p)->line;
        left = binary(p, E_BIN, op, left, power(p), line);
    }
}

static jnode *concat(parser *p)
{
    jnode *first = product(p);
    if (cur(p)->kind != T_TILDE) return first;
    jnode *n = node(p, E_CONCAT, first->line);
    add_item(p, n, first);
    while (skip_kind(p, T_TILDE)) add_item(p, n, product(p));
    return n;
}

static jnode *sum(parser *p)
{
    jnode *left = concat(p);
    while (cur(p)->kind == T_ADD || cur(p)->kind == T_SUB) {
        const jtok *t = next(p);
        left = binary(p, E_BIN, t->kind == T_ADD ? OP_ADD : OP_SUB, left, concat(p), t->line);
    }
    return left;
}

static bool compare_op(parser *p, jop *op)
{
    switch (cur(p)->kind) {
    case T_EQ: *op = OP_EQ; break;
    case T_NE: *op = OP_NE; break;
    case T_LT: *op = OP_LT; break;
    case T_LE: *op = OP_LE; break;
    case T_GT: *op = OP_GT; break;
    case T_GE: *op = OP_GE; break;
    default:
        if (skip_word(p, "in")) {
            *op = OP_IN;
            return true;
        }
        if (is_word(p, cur(p), "not") && is_word(p, &p->t[p->i + 1], "in")) {
            p->i += 2;
            *op = OP_NOT_IN;
            return true;
        }
        return false;
    }
    next(p);
    return true;
}

static jnode *comparison(parser *p)
{
    jnode *first = sum(p);
    jop op;
    if (!compare_op(p, &op)) return first;
    jnode *n = node(p, E_COMPARE, first->line);
    n->a = first;
    deepen(p, n, first);
    uint8_t *ops = NULL;
    size_t cap = 0;
    do {
        if (n->items.n == cap) {
            cap = cap ? cap * 2 : 4;
            uint8_t *more = m5_j_alloc(p->rt, cap);
            if (ops) memcpy(more, ops, n->items.n);
            ops = more;
        }
        ops[n->items.n] = (uint8_t)op;
        add_item(p, n, sum(p));
    } while (compare_op(p, &op));
    n->ops = ops;
    return n;
}

static jnode *not_expression(parser *p)
{
    if (!is_word(p, cur(p), "not")) return comparison(p);
    enter(p);
    uint32_t line = next(p)->line;
    jnode *n = binary(p, E_NOT, OP_ADD, not_expression(p), NULL, line);
    p->depth--;
    return n;
}

static jnode *and_expression(parser *p)
{
    jnode *left = not_expression(p);
    while (is_word(p, cur(p), "and")) {
        uint32_t line = next(p)->line;
        left = binary(p, E_AND, OP_ADD, left, not_expression(p), line);
    }
    return left;
}

static jnode *or_expression(parser *p)
{
    enter(p);
    jnode *left = and_expression(p);
    while (is_word(p, cur(p), "or")) {
        uint32_t line = next(p)->line;
        left = binary(p, E_OR, OP_ADD, left, and_expression(p), line);
    }
    p->depth--;
    return left;
}

static jnode *expression(parser *p)
{
    enter(p);
    jnode *n = or_expression(p);
    while (is_word(p, cur(p), "if")) {
        uint32_t line = next(p)->line;
        jnode *cond = node(p, E_COND, line);
        cond->a = n;
        cond->b = or_expression(p);
        if (skip_word(p, "else")) cond->c = expression(p);
        deepen(p, cond, cond->a);
        deepen(p, cond, cond->b);
        deepen(p, cond, cond->c);
        n = cond;
    }
    p->depth--;
    return n;
}

/* ---- statements ---- */

static void make_target(parser *p, jnode *n)
{
    if (n->kind == E_TUPLE) {
        for (size_t i = 0; i < n->items.n; i++) make_target(p, n->items.v[i]);
    } else if (n->kind != E_NAME && n->kind != E_NSREF) {
        fail(p, n->line, "cannot assign to this expression");
    }
    n->store = true;
}

static jnode *assign_target(parser *p, bool with_namespace, const char *extra_end)
{
    jnode *n = tuple(p, with_namespace ? TUPLE_TARGET_NS : TUPLE_TARGET, extra_end, false);
    make_target(p, n);
    return n;
}

static jnode *name_target(parser *p)
{
    const jtok *t = expect(p, T_NAME, "a name");
    static const char *const reserved[] = {"true", "false", "none", "True", "False", "None"};
    for (size_t i = 0; i < sizeof reserved / sizeof *reserved; i++) {
        if (m5_jstr_is(p->rt, t->s, reserved[i])) fail_at(p, t, "cannot assign to a constant");
    }
    jnode *n = node(p, E_NAME, t->line);
    n->name = t->s;
    n->store = true;
    return n;
}

/* Body up to one of the end words, whose token becomes the current one; drop takes it as well. */
static void block_body(parser *p, const char *const *end, jnodes *body, bool drop)
{
    skip_kind(p, T_COLON);
    expect(p, T_BLOCK_END, "end of statement block");
    statements(p, end, body);
    if (drop) next(p);
}

static jnode *parse_set(parser *p)
{
    jnode *n = node(p, S_SET, next(p)->line);
    n->a = assign_target(p, true, NULL);
    if (skip_kind(p, T_ASSIGN)) {
        n->b = tuple(p, TUPLE_FULL, NULL, false);
        return n;
    }
    n->kind = S_SET_BLOCK;
    n->b = filters(p, NULL);
    block_body(p, (const char *const[]){"endset", NULL}, &n->body, true);
    return n;
}

static jnode *parse_for(parser *p)
{
    jnode *n = node(p, S_FOR, next(p)->line);
    n->a = assign_target(p, false, "in");
    if (!skip_word(p, "in")) fail_at(p, cur(p), "expected 'in'");
    n->b = tuple(p, TUPLE_NO_COND, "recursive", false);
    if (skip_word(p, "if")) n->c = expression(p);
    n->recursive = skip_word(p, "recursive");
    block_body(p, (const char *const[]){"endfor", "else", NULL}, &n->body, false);
    if (is_word(p, next(p), "else")) block_body(p, (const char *const[]){"endfor", NULL}, &n->other, true);
    return n;
}

static jnode *parse_if(parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    jnode *n = node(p, S_IF, next(p)->line), *arm = n;
    for (;;) {
        arm->a = tuple(p, TUPLE_NO_COND, NULL, false);
        block_body(p, ends, &arm->body, false);
        const jtok *t = next(p);
        if (is_word(p, t, "elif")) {
            arm = node(p, S_IF, t->line);
            m5_jnodes_push(p->rt, &n->items, arm);
            continue;
        }
        if (is_word(p, t, "else")) block_body(p, (const char *const[]){"endif", NULL}, &n->other, true);
        return n;
    }
}

static jnode *parse_with(parser *p)
{
    jnode *n = node(p, S_WITH, next(p)->line);
    while (cur(p)->kind != T_BLOCK_END) {
        if (n->params.n) expect(p, T_COMMA, "','");
        m5_jnodes_push(p->rt, &n->params, assign_target(p, false, NULL));
        expect(p, T_ASSIGN, "'='");
        m5_jnodes_push(p->rt, &n->defaults, expression(p));
    }
    block_body(p, (const char *const[]){"endwith", NULL}, &n->body, true);
    return n;
}

static void signature(parser *p, jnode *n)
{
    expect(p, T_LPAREN, "'('");
    while (cur(p)->kind != T_RPAREN) {
        if (n->params.n) expect(p, T_COMMA, "','");
        jnode *arg = name_target(p);
        for (size_t i = 0; i < n->params.n; i++) {
            if (m5_jstr_eq(p->rt, n->params.v[i]->name, arg->name)) fail(p, arg->line, "a parameter name is repeated");
        }
        if (skip_kind(p, T_ASSIGN))
            m5_jnodes_push(p->rt, &n->defaults, expression(p));
        else if (n->defaults.n)
            fail(p, arg->line, "a parameter without default after one with a default");
        m5_jnodes_push(p->rt, &n->params, arg);
    }
    next(p);
}

static jnode *parse_macro(parser *p)
{
    jnode *n = node(p, S_MACRO, next(p)->line);
    n->name = name_target(p)->name;
    signature(p, n);
    block_body(p, (const char *const[]){"endmacro", NULL}, &n->body, true);
    return n;
}

static jnode *parse_call(parser *p)
{
    jnode *n = node(p, S_CALL, next(p)->line);
    if (cur(p)->kind == T_LPAREN) signature(p, n);
    n->a = expression(p);
    if (n->a->kind != E_CALL) fail(p, n->line, "expected a call");
    block_body(p, (const char *const[]){"endcall", NULL}, &n->body, true);
    return n;
}

static jnode *parse_filter_block(parser *p)
{
    jnode *n = node(p, S_FILTER, next(p)->line);
    n->a = filters(p, filter(p, NULL));
    block_body(p, (const char *const[]){"endfilter", NULL}, &n->body, true);
    return n;
}

static jnode *parse_block(parser *p)
{
    jnode *n = node(p, S_BLOCK, next(p)->line);
    n->name = expect(p, T_NAME, "a block name")->s;
    n->scoped = skip_word(p, "scoped");
    if (skip_word(p, "required")) fail(p, n->line, "a required block has no one to fill it");
    block_body(p, (const char *const[]){"endblock", NULL}, &n->body, true);
    if (cur(p)->kind == T_NAME && m5_jstr_eq(p->rt, cur(p)->s, n->name)) next(p);
    return n;
}

static jnode *parse_scope(parser *p, bool autoescape)
{
    jnode *n = node(p, S_SCOPE, next(p)->line);
    if (autoescape) {
        n->a = expression(p);
        block_body(p, (const char *const[]){"endautoescape", NULL}, &n->body, true);
    } else {
        n->kind = S_CALL; /* the generation extension calls a function with the body as its caller */
        block_body(p, (const char *const[]){"endgeneration", NULL}, &n->body, true);
    }
    return n;
}

/* include, import, from: parsed for the sake of templates that never reach them. */
static jnode *parse_no_loader(parser *p)
{
    jnode *n = node(p, S_NO_LOADER, cur(p)->line);
    n->name = next(p)->s;
    n->a = expression(p);
    if (m5_jstr_is(p->rt, n->name, "import")) {
        if (!skip_word(p, "as")) fail_at(p, cur(p), "expected 'as'");
        m5_jnodes_push(p->rt, &n->params, name_target(p));
    } else if (m5_jstr_is(p->rt, n->name, "from")) {
        if (!skip_word(p, "import")) fail_at(p, cur(p), "expected 'import'");
        do {
            if (n->params.n && (is_word(p, cur(p), "with") || is_word(p, cur(p), "without"))) break;
            jnode *target = name_target(p);
            if (skip_word(p, "as")) target = name_target(p);
            m5_jnodes_push(p->rt, &n->params, target);
        } while (skip_kind(p, T_COMMA));
    } else if (is_word(p, cur(p), "ignore")) {
        next(p);
        if (!skip_word(p, "missing")) fail_at(p, cur(p), "expected 'missing'");
    }
    if (is_word(p, cur(p), "with") || is_word(p, cur(p), "without")) {
        next(p);
        if (!skip_word(p, "context")) fail_at(p, cur(p), "expected 'context'");
    }
    return n;
}

static void parse_print(parser *p, jnodes *body)
{
    uint32_t line = next(p)->line;
    for (bool first = true; cur(p)->kind != T_BLOCK_END; first = false) {
        if (!first) expect(p, T_COMMA, "','");
        jnode *n = node(p, S_PRINT, line);
        n->a = expression(p);
        m5_jnodes_push(p->rt, body, n);
    }
}

static void statement(parser *p, const char *const *end, jnodes *body)
{
    const jtok *t = cur(p);
    if (t->kind != T_NAME) fail_at(p, t, "expected a tag name");
    static const char *const names[] = {"set",   "for",      "if",         "macro",      "call",    "filter", "with", "block",   "print",
                                        "break", "continue", "generation", "autoescape", "include", "import", "from", "extends", NULL};
    int k = 0;
    while (names[k] && !m5_jstr_is(p->rt, t->s, names[k])) k++;
    const char *outer = p->tag;
    uint32_t outer_line = p->tag_line;
    if (names[k]) {
        p->tag = names[k];
        p->tag_line = t->line;
    }
    jnode *n = NULL;
    switch (k) {
    case 0: n = parse_set(p); break;
    case 1: n = parse_for(p); break;
    case 2: n = parse_if(p); break;
    case 3: n = parse_macro(p); break;
    case 4: n = parse_call(p); break;
    case 5: n = parse_filter_block(p); break;
    case 6: n = parse_with(p); break;
    case 7: n = parse_block(p); break;
    case 8: parse_print(p, body); break;
    case 9:
    case 10: n = node(p, k == 9 ? S_BREAK : S_CONTINUE, next(p)->line); break;
    case 11: n = parse_scope(p, false); break;
    case 12: n = parse_scope(p, true); break;
    case 13:
    case 14:
    case 15:
    case 16: n = parse_no_loader(p); break;
    default: {
        char text[160];
        int len = t->s->n > 40 ? 40 : (int)t->s->n;
        int w = snprintf(text, sizeof text, "unknown tag '%.*s'", len, t->s->p);
        if (end && w > 0 && (size_t)w < sizeof text) {
            snprintf(text + w, sizeof text - (size_t)w, "; '%s' is open since line %u", outer ? outer : "?", (unsigned)outer_line);
        }
        fail(p, t->line, text);
    }
    }
    p->tag = outer;
    p->tag_line = outer_line;
    if (n) m5_jnodes_push(p->rt, body, n);
}

static bool at_end_word(const parser *p, const char *const *end)
{
    for (size_t i = 0; end && end[i]; i++) {
        if (is_word(p, cur(p), end[i])) return true;
    }
    return false;
}

static void statements(parser *p, const char *const *end, jnodes *body)
{
    if (++p->block_depth > J_MAX_BLOCK_DEPTH) {
        p->rt->line = cur(p)->line;
        m5_jrt_fail_code(p->rt, M5_ERR_LIMIT, "statements nested more than %d deep", J_MAX_BLOCK_DEPTH);
    }
    for (;;) {
        const jtok *t = cur(p);
        if (t->kind == T_EOF) break;
        next(p);
        if (t->kind == T_DATA) {
            jnode *n = node(p, S_DATA, t->line);
            n->val = m5_jv_str(t->s);
            m5_jnodes_push(p->rt, body, n);
        } else if (t->kind == T_VAR_BEGIN) {
            jnode *n = node(p, S_PRINT, t->line);
            n->a = tuple(p, TUPLE_FULL, NULL, false);
            expect(p, T_VAR_END, "end of print statement");
            m5_jnodes_push(p->rt, body, n);
        } else {
            if (at_end_word(p, end)) {
                p->block_depth--;
                return;
            }
            statement(p, end, body);
            expect(p, T_BLOCK_END, "end of statement block");
        }
    }
    if (end) {
        p->rt->line = cur(p)->line;
        m5_jrt_fail(p->rt, "unexpected end of template; '%s' is open since line %u", p->tag ? p->tag : "?", (unsigned)p->tag_line);
    }
    p->block_depth--;
}

void m5_jparse(jrt *rt, const jtoks *toks, jnodes *body)
{
    parser p = {.rt = rt, .t = toks->v};
    statements(&p, NULL, body);
}
