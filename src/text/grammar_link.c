/* SPDX-License-Identifier: Apache-2.0 */
/* Tree -> program: which parts can match nothing or only nothing, left recursion, instructions, classes of bytes, the hashes of blocks. */
#include "text/grammar_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_INST = 4 << 20,
    MAX_PASS_WORK = 1 << 28 /* node visits of a fixed point */
};

typedef struct linker {
    m5_gb *b;
    m5_grammar *g;
    bool *nullable, *alive; /* by node: matches the empty text; matches anything */
    bool *rule_nullable, *rule_alive;
    uint32_t *entry; /* by rule, UINT32_MAX = not reached */
    uint32_t *patch; /* instructions whose `a` is a rule */
    size_t n_patch, cap_patch;
    size_t cap_inst, cap_split, cap_rep, cap_block;
    m5_error *err;
} linker;

static int no_memory(m5_error *err)
{
    return m5_error_set(err, M5_ERR_NOMEM, "out of memory for a grammar");
}

/* ---- what can match ---- */

static bool node_value(const linker *l, size_t i, bool nullable)
{
    const g_node *n = &l->b->node[i];
    const bool *v = nullable ? l->nullable : l->alive;
    switch ((g_kind)n->kind) {
    case G_FAIL: return false;
    case G_EMPTY:
    case G_GUARD: return true;
    case G_LIT:
    case G_SET: return !nullable;
    case G_SEQ:
        for (uint32_t k = 0; k < n->b; k++) {
            if (!v[l->b->kid[n->a + k]]) return false;
        }
        return true;
    case G_ALT:
        for (uint32_t k = 0; k < n->b; k++) {
            if (v[l->b->kid[n->a + k]]) return true;
        }
        return false;
    case G_REP: return n->min == 0 || v[n->a];
    case G_REF: return nullable ? l->rule_nullable[n->a] : l->rule_alive[n->a];
    }
    return false;
}

/* Least fixed point. Children come before parents, so only references cost further passes. */
static int solve(linker *l, bool nullable)
{
    bool *v = nullable ? l->nullable : l->alive, *r = nullable ? l->rule_nullable : l->rule_alive;
    uint64_t work = 0;
    for (bool changed = true; changed;) {
        changed = false;
        if ((work += l->b->n_node) > MAX_PASS_WORK) return m5_error_set(l->err, M5_ERR_LIMIT, "the rules of the grammar hang together too deeply");
        for (size_t i = 0; i < l->b->n_node; i++) v[i] = node_value(l, i, nullable);
        for (size_t i = l->b->n_rule; i-- > 0;) {
            if (!r[i] && l->b->rule[i].body >= 0 && v[l->b->rule[i].body]) changed = r[i] = true;
        }
    }
    return 0;
}

/* ---- left recursion ---- */

/* The i-th node that may come first in node n (its body for a reference), or -1. */
static int32_t leftmost(const linker *l, const g_node *n, uint32_t i)
{
    switch ((g_kind)n->kind) {
    case G_SEQ:
        if (i >= n->b || (i > 0 && !l->nullable[l->b->kid[n->a + i - 1]])) return -1;
        return l->b->kid[n->a + i];
    case G_ALT: return i < n->b ? l->b->kid[n->a + i] : -1;
    case G_REP: return i == 0 ? (int32_t)n->a : -1;
    case G_REF: return i == 0 ? l->b->rule[n->a].body : -1;
    default: return -1;
    }
}

/* Depth first over "may come first". A reference into the path is left recursion: refused, or for schemas, where it says nothing new, cut. */
static int check_left(linker *l, int32_t root)
{
    enum { NEW, OPEN, DONE };
    typedef struct step {
        int32_t node;
        uint32_t next;
    } step;
    uint8_t *color = m5_calloc(M5_MEM_TEXT, l->b->n_node + 1, 1);
    step *path = NULL;
    size_t n = 0, cap = 0;
    int rc = color ? 0 : no_memory(l->err);
    for (size_t r = 0; r <= l->b->n_rule && rc == 0; r++) {
        int32_t at = r == l->b->n_rule ? root : l->b->rule[r].body;
        while (rc == 0) {
            if (at >= 0 && color[at] == NEW) {
                if (!m5_g_grow(&path, n, &cap, 1, sizeof *path)) {
                    rc = no_memory(l->err);
                    break;
                }
                color[at] = OPEN;
                path[n++] = (step){at, 0};
            } else if (at >= 0 && color[at] == OPEN) { /* every cycle passes through a reference; the last one is cut */
                while (l->b->node[path[n - 1].node].kind != G_REF) color[path[--n].node] = NEW;
                uint32_t rule = l->b->node[path[n - 1].node].a;
                if (!l->b->cut_left_cycles) {
                    rc = m5_error_set(l->err, M5_ERR_FORMAT, "left recursion: rule %s begins with itself", l->b->name ? l->b->name(l->b, rule) : "?");
                    break;
                }
                l->b->node[path[n - 1].node] = (g_node){.kind = G_FAIL};
            }
            if (!n) break;
            at = leftmost(l, &l->b->node[path[n - 1].node], path[n - 1].next++);
            if (at < 0) {
                color[path[--n].node] = DONE;
                if (!n) break;
                at = -1;
            }
        }
    }
    m5_free(path);
    m5_free(color);
    return rc;
}

/* ---- instructions ---- */

static int emit(linker *l, g_inst in)
{
    m5_grammar *g = l->g;
    if (g->n_inst >= MAX_INST) return m5_error_set(l->err, M5_ERR_LIMIT, "the grammar needs more than %d instructions", MAX_INST);
    if (!m5_g_grow(&g->inst, g->n_inst, &l->cap_inst, 1, sizeof in)) return no_memory(l->err);
    g->inst[g->n_inst++] = in;
    return 0;
}

static int emit_node(linker *l, int32_t i);

static int emit_alt(linker *l, const int32_t *kids, uint32_t n)
{
    m5_grammar *g = l->g;
    uint32_t live = 0, last = 0, at = g->n_split;
    for (uint32_t k = 0; k < n; k++) {
        if (l->alive[kids[k]]) live++, last = k;
    }
    if (live == 1) return emit_node(l, kids[last]);
    if (!m5_g_grow(&g->split, g->n_split, &l->cap_split, 2 * (size_t)live + 1, sizeof *g->split)) return no_memory(l->err);
    g->n_split += live + 1;
    g->split[at] = live;
    int rc = emit(l, (g_inst){.op = G_OP_SPLIT, .a = at});
    uint32_t jumps = UINT32_MAX; /* chain of the branches' closing jumps through their targets */
    for (uint32_t k = 0, i = 1; k < n && rc == 0; k++) {
        if (!l->alive[kids[k]]) continue;
        g->split[at + i++] = g->n_inst;
        rc = emit_node(l, kids[k]);
        if (k == last || rc) break;
        rc = emit(l, (g_inst){.op = G_OP_JMP, .a = jumps});
        jumps = g->n_inst - 1;
    }
    while (rc == 0 && jumps != UINT32_MAX) {
        uint32_t next = g->inst[jumps].a;
        g->inst[jumps].a = g->n_inst;
        jumps = next;
    }
    return rc;
}

/* A split of two whose second target is the end of what `body` emits; loop: the body leads back to the split. */
static int emit_branch(linker *l, int32_t item, bool loop)
{
    m5_grammar *g = l->g;
    uint32_t at = g->n_split, pc = g->n_inst;
    if (!m5_g_grow(&g->split, g->n_split, &l->cap_split, 3, sizeof *g->split)) return no_memory(l->err);
    g->n_split += 3;
    g->split[at] = 2;
    int rc = emit(l, (g_inst){.op = G_OP_SPLIT, .a = at});
    g->split[at + 1] = g->n_inst;
    if (rc == 0) rc = emit_node(l, item);
    if (rc == 0 && loop) rc = emit(l, (g_inst){.op = G_OP_JMP, .a = pc});
    g->split[at + 2] = g->n_inst;
    return rc;
}

static int emit_rep(linker *l, const g_node *n)
{
    m5_grammar *g = l->g;
    const g_node *item = &l->b->node[n->a];
    int rc = 0;
    if (!l->alive[n->a]) return 0; /* min is 0, or the node would be dead */
    if (!(n->flags & G_NODE_STR) && m5_g_rep_expands(item, n->min, n->max)) {
        for (uint32_t k = 0; k < n->min && rc == 0; k++) rc = emit_node(l, (int32_t)n->a);
        if (n->max == G_INF) return rc ? rc : emit_branch(l, (int32_t)n->a, true);
        for (uint32_t k = n->min; k < n->max && rc == 0; k++) rc = emit_branch(l, (int32_t)n->a, false);
        return rc;
    }
    if (!m5_g_grow(&g->rep, g->n_rep, &l->cap_rep, 1, sizeof *g->rep)) return no_memory(l->err);
    uint32_t r = g->n_rep++;
    bool nullable = l->nullable[n->a]; /* then any number below min is reached by empty rounds */
    g->rep[r] = (g_rep){nullable ? 0 : n->min, n->max, 0, 0, nullable, n->flags & G_NODE_STR};
    if ((rc = emit(l, (g_inst){.op = G_OP_REP, .a = r})) != 0) return rc;
    g->rep[r].body = g->n_inst;
    if ((rc = emit_node(l, (int32_t)n->a)) != 0 || (rc = emit(l, (g_inst){.op = G_OP_RET})) != 0) return rc;
    g->rep[r].exit = g->n_inst;
    return 0;
}

static int emit_node(linker *l, int32_t i)
{
    const g_node *n = &l->b->node[i];
    const m5_gb *b = l->b;
    int rc = 0;
    switch ((g_kind)n->kind) {
    case G_FAIL:
    case G_EMPTY: return 0;
    case G_GUARD: return emit(l, (g_inst){.op = G_OP_GUARD});
    case G_LIT:
        for (uint32_t k = 0; k < n->b && rc == 0; k++) {
            uint8_t c = (uint8_t)b->text.p[n->a + k];
            rc = emit(l, (g_inst){.op = G_OP_BYTE, .lo = c, .hi = c});
        }
        return rc;
    case G_SET: {
        const g_set *s = &b->set[n->a];
        unsigned lo = 0, hi = 255;
        while (!m5_g_set_has(s, lo)) lo++;
        while (!m5_g_set_has(s, hi)) hi--;
        for (unsigned c = lo; c <= hi; c++) {
            if (!m5_g_set_has(s, c)) return emit(l, (g_inst){.op = G_OP_SET, .a = n->a});
        }
        return emit(l, (g_inst){.op = G_OP_BYTE, .lo = (uint8_t)lo, .hi = (uint8_t)hi});
    }
    case G_SEQ:
        for (uint32_t k = 0; k < n->b && rc == 0; k++) rc = emit_node(l, b->kid[n->a + k]);
        return rc;
    case G_ALT: return emit_alt(l, b->kid + n->a, n->b);
    case G_REP: return emit_rep(l, n);
    case G_REF:
        if (!m5_g_grow(&l->patch, l->n_patch, &l->cap_patch, 1, sizeof *l->patch)) return no_memory(l->err);
        l->patch[l->n_patch++] = l->g->n_inst;
        return emit(l, (g_inst){.op = G_OP_CALL,
                                .flags = (uint8_t)((n->flags & G_NODE_NEST ? G_CALL_NEST : 0) | (n->flags & G_NODE_KEY ? G_CALL_KEY : 0)),
                                .a = n->a});
    }
    return 0;
}

/* Marks the rules that living parts of the root reach. */
static int reach(linker *l, int32_t root)
{
    int32_t *todo = NULL;
    size_t n = 0, cap = 0;
    bool *seen = m5_calloc(M5_MEM_TEXT, l->b->n_node + 1, 1);
    int rc = seen && m5_g_grow(&todo, 0, &cap, 1, sizeof *todo) ? 0 : no_memory(l->err);
    if (rc == 0) todo[n++] = root;
    while (rc == 0 && n) {
        int32_t i = todo[--n];
        if (seen[i] || !l->alive[i]) continue;
        seen[i] = true;
        const g_node *node = &l->b->node[i];
        size_t more = node->kind == G_SEQ || node->kind == G_ALT ? node->b : 1;
        if (!m5_g_grow(&todo, n, &cap, more, sizeof *todo)) {
            rc = no_memory(l->err);
        } else if (node->kind == G_SEQ || node->kind == G_ALT) {
            for (uint32_t k = 0; k < node->b; k++) todo[n++] = l->b->kid[node->a + k];
        } else if (node->kind == G_REP) {
            todo[n++] = (int32_t)node->a;
        } else if (node->kind == G_REF) {
            l->entry[node->a] = 0;
            todo[n++] = l->b->rule[node->a].body;
        }
    }
    m5_free(todo);
    m5_free(seen);
    return rc;
}

static int emit_rules(linker *l, int32_t root)
{
    m5_grammar *g = l->g;
    g->start = 0;
    int rc = emit_node(l, root);
    if (rc == 0) rc = emit(l, (g_inst){.op = G_OP_RET});
    for (size_t r = 0; r < l->b->n_rule && rc == 0; r++) {
        if (l->entry[r] == UINT32_MAX) continue;
        uint32_t id = l->b->rule[r].block;
        if (id && (!g->n_block || g->block[g->n_block - 1].hash != id)) { /* until hash_blocks the field holds the number */
            if (!m5_g_grow(&g->block, g->n_block, &l->cap_block, 1, sizeof *g->block)) return no_memory(l->err);
            g->block[g->n_block++] = (g_block){g->n_inst, g->n_inst, id, 0};
        }
        l->entry[r] = g->n_inst;
        rc = emit_node(l, l->b->rule[r].body);
        if (rc == 0) rc = emit(l, (g_inst){.op = G_OP_RET});
        if (id && rc == 0) g->block[g->n_block - 1].end = g->n_inst;
    }
    for (size_t i = 0; i < l->n_patch && rc == 0; i++) g->inst[l->patch[i]].a = l->entry[g->inst[l->patch[i]].a];
    return rc;
}

const g_block *m5_g_block_of(const m5_grammar *g, uint32_t pc)
{
    uint32_t lo = 0, hi = g->n_block;
    while (lo < hi) {
        uint32_t mid = (lo + hi) / 2;
        if (pc >= g->block[mid].end) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo < g->n_block && pc >= g->block[lo].begin ? &g->block[lo] : NULL;
}

/* A call in last place becomes a jump: right recursion then needs no stack. Calls of a block from outside stay, so that the states inside a block
 * stand on a frame of their own and are alike in all grammars. */
static void tail_calls(m5_grammar *g)
{
    for (uint32_t pc = 0; pc < g->n_inst; pc++) {
        g_inst *in = &g->inst[pc];
        if (in->op != G_OP_CALL || in->flags) continue;
        uint32_t next = pc + 1, hops = 0;
        while (g->inst[next].op == G_OP_JMP && hops++ < 64) next = g->inst[next].a;
        const g_block *to = m5_g_block_of(g, in->a);
        if (g->inst[next].op == G_OP_RET && (!to || to == m5_g_block_of(g, pc))) in->op = G_OP_JMP;
    }
}

/* What a block does, whatever stands around it: instructions with targets counted from its begin; calls of earlier blocks by their hash. */
static void write_block(const m5_grammar *g, const g_block *k, bool bounds, m5_buf *code)
{
    m5_buf_clear(code);
    for (uint32_t pc = k->begin; pc < k->end; pc++) {
        const g_inst *in = &g->inst[pc];
        m5_buf_append(code, in, 4);
        if (in->op == G_OP_SET) {
            m5_buf_append(code, &g->set[in->a], sizeof(g_set));
        } else if (in->op == G_OP_SPLIT) {
            for (uint32_t t = 1; t <= g->split[in->a]; t++) {
                uint32_t rel = g->split[in->a + t] - k->begin;
                m5_buf_append(code, &rel, sizeof rel);
            }
        } else if (in->op == G_OP_REP) {
            const g_rep *r = &g->rep[in->a];
            bool drop = r->str && !bounds;
            uint32_t v[] = {drop ? 0 : r->min, drop ? 0 : r->max, r->body - k->begin, r->exit - k->begin, r->nullable, r->str};
            m5_buf_append(code, v, sizeof v);
        } else if (in->op == G_OP_JMP || in->op == G_OP_CALL) {
            const g_block *to = m5_g_block_of(g, in->a);
            uint64_t v[2] = {to && to != k ? to->hash : 0, in->a - (to ? to->begin : 0)};
            m5_buf_append(code, v, sizeof v);
        }
    }
}

static int hash_blocks(linker *l)
{
    m5_buf code = {0};
    for (uint32_t i = 0; i < l->g->n_block && !code.failed; i++) {
        g_block *k = &l->g->block[i];
        write_block(l->g, k, false, &code);
        k->kind = m5_hash64(code.p ? code.p : "", code.n);
        write_block(l->g, k, true, &code);
        k->hash = m5_hash64(code.p ? code.p : "", code.n);
    }
    int rc = code.failed ? no_memory(l->err) : 0;
    m5_buf_free(&code);
    return rc;
}

/* Two bytes are of one class when every set holds both or neither. */
static void byte_classes(m5_grammar *g)
{
    uint16_t cls[256] = {0};
    uint32_t n = 1;
    bool cut[257] = {false};
    for (uint32_t pc = 0; pc < g->n_inst; pc++) {
        if (g->inst[pc].op == G_OP_BYTE) cut[g->inst[pc].lo] = cut[g->inst[pc].hi + 1] = true;
    }
    for (unsigned c = 1; c < 256; c++) {
        if (cut[c]) n++;
        cls[c] = (uint16_t)(n - 1);
    }
    for (uint32_t s = 0; s < g->n_set && n < 256; s++) { /* splits every class into its members inside and outside the set */
        uint16_t to[256][2];
        memset(to, 0xFF, sizeof to);
        uint32_t m = 0;
        for (unsigned c = 0; c < 256; c++) {
            uint16_t *t = &to[cls[c]][m5_g_set_has(&g->set[s], c)];
            if (*t == 0xFFFF) *t = (uint16_t)m++;
            cls[c] = *t;
        }
        n = m;
    }
    for (unsigned c = 256; c-- > 0;) {
        g->byte_class[c] = (uint8_t)cls[c];
        g->class_byte[cls[c]] = (uint8_t)c;
    }
    g->n_class = n;
}

static int link_all(linker *l, int32_t root)
{
    m5_gb *b = l->b;
    size_t n = b->n_node + 1, r = b->n_rule + 1;
    l->nullable = m5_calloc(M5_MEM_TEXT, n, 1);
    l->alive = m5_calloc(M5_MEM_TEXT, n, 1);
    l->rule_nullable = m5_calloc(M5_MEM_TEXT, r, 1);
    l->rule_alive = m5_calloc(M5_MEM_TEXT, r, 1);
    l->entry = m5_alloc(M5_MEM_TEXT, r * sizeof *l->entry);
    if (!l->nullable || !l->alive || !l->rule_nullable || !l->rule_alive || !l->entry) return no_memory(l->err);
    memset(l->entry, 0xFF, r * sizeof *l->entry);
    int rc = solve(l, true);
    if (rc == 0) rc = check_left(l, root);
    if (rc == 0) rc = solve(l, false);
    if (rc == 0 && !l->alive[root]) rc = m5_error_set(l->err, M5_ERR_FORMAT, "no text at all satisfies the grammar");
    if (rc == 0) rc = reach(l, root);
    if (rc == 0) rc = emit_rules(l, root);
    if (rc) return rc;
    l->g->set = b->set;
    l->g->n_set = (uint32_t)b->n_set;
    b->set = NULL;
    b->n_set = b->cap_set = 0;
    tail_calls(l->g);
    byte_classes(l->g);
    return hash_blocks(l);
}

int m5_gb_finish(m5_gb *b, int32_t root, m5_grammar **out, m5_error *err)
{
    if (!b->err.code && (root < 0 || (size_t)root >= b->n_node)) m5_g_fail(b, M5_ERR_ARG, "no such part of a grammar: %d", (int)root);
    if (b->err.code) return m5_error_set(err, b->err.code, "%s", b->err.text);
    m5_grammar *g = m5_calloc(M5_MEM_TEXT, 1, sizeof *g);
    if (!g) return no_memory(err);
    atomic_init(&g->n_ref, 1);
    linker l = {.b = b, .g = g, .err = err};
    int rc = link_all(&l, root);
    g->notes = b->notes;
    b->notes = NULL;
    m5_free(l.nullable);
    m5_free(l.alive);
    m5_free(l.rule_nullable);
    m5_free(l.rule_alive);
    m5_free(l.entry);
    m5_free(l.patch);
    m5_g_fail(b, M5_ERR_ARG, "the builder was finished before");
    if (rc) {
        m5_grammar_unref(g);
        return rc;
    }
    *out = g;
    return 0;
}

/* ---- grammars ---- */

m5_grammar *m5_grammar_ref(m5_grammar *g)
{
    atomic_fetch_add(&g->n_ref, 1);
    return g;
}

void m5_grammar_unref(m5_grammar *g)
{
    if (!g || atomic_fetch_sub(&g->n_ref, 1) != 1) return;
    m5_g_auto_free(g->run);
    m5_free(g->inst);
    m5_free(g->split);
    m5_free(g->rep);
    m5_free(g->set);
    m5_free(g->block);
    m5_json_unref(g->notes);
    m5_free(g);
}

size_t m5_grammar_n_loosened(const m5_grammar *g)
{
    return m5_json_len(g->notes);
}
const char *m5_grammar_loosened(const m5_grammar *g, size_t i)
{
    return m5_json_str(m5_json_at(g->notes, i)).p;
}

int m5_grammar_from_choices(m5_grammar **out, const m5_slice *choices, size_t n, m5_error *err)
{
    m5_gb *b = NULL;
    int rc = m5_gb_new(&b, err);
    if (rc) return rc;
    if (!n) m5_g_fail(b, M5_ERR_FORMAT, "the list of choices is empty");
    for (size_t i = 0; i < n; i++) {
        if (!m5_utf8_valid(choices[i].p, choices[i].n)) m5_g_fail(b, M5_ERR_FORMAT, "choice %zu is not UTF-8", i);
    }
    rc = m5_gb_finish(b, m5_gb_choices(b, choices, n), out, err);
    m5_gb_free(b);
    return rc;
}

int m5_grammar_from_regex(m5_grammar **out, const char *pattern, size_t n, m5_error *err)
{
    m5_gb *b = NULL;
    int rc = m5_gb_new(&b, err);
    if (rc) return rc;
    rc = m5_gb_finish(b, m5_gb_regex(b, (m5_slice){pattern, n}), out, err);
    m5_gb_free(b);
    return rc;
}

int m5_grammar_from_schema(m5_grammar **out, const m5_json *schema, m5_error *err)
{
    m5_gb *b = NULL;
    int rc = m5_gb_new(&b, err);
    if (rc) return rc;
    rc = m5_gb_finish(b, m5_g_schema(b, schema, ""), out, err);
    m5_gb_free(b);
    return rc;
}

int m5_grammar_any_json(m5_grammar **out, bool object_only, m5_error *err)
{
    m5_gb *b = NULL;
    int rc = m5_gb_new(&b, err);
    if (rc) return rc;
    rc = m5_gb_finish(b, m5_g_ref(b, m5_g_json(b, object_only ? G_JSON_OBJECT : G_JSON_VALUE), 0), out, err);
    m5_gb_free(b);
    return rc;
}
