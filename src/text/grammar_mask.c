/* SPDX-License-Identifier: Apache-2.0 */
/* Masks and matchers.
 *
 * The configurations of a state are grouped by the call frame they stand on. What a group takes before it returns to its caller depends on the group
 * alone (the "local" state, whose stack ends in an unknown caller), so the tokens found for it serve every state with such a group; where the local
 * state returns inside a token, the rest of the token is tried in the caller and remembered per caller. Local states of the JSON library and of free
 * text are alike in all grammars and kept with the vocabulary. Inside a JSON string, nearly all tokens are plain characters, whose bits are prepared
 * by length; only the others are looked at one by one. */
#include "text/grammar_internal.h"

#include <string.h>

enum {
    MAX_GROUPS = 32,  /* beyond, a state's tokens are found without sharing */
    MAX_SEGMENT = 32, /* repetition frames above a call */
    DENSE = 1500,     /* tokens from which on a list is kept as bits */
    MANY = 24,        /* tokens below a node from which on it pays to ask whether all suit */
    MAX_FORCED = 4096,
    MAX_KEYS = 4096,        /* remembered at a time */
    SHARED_BYTES = 64 << 20 /* of the vocabulary's own table */
};

/* ---- tables ---- */

g_local *m5_g_local_find(const g_local_table *t, m5_hash128 key)
{
    if (!t->cap) return NULL;
    for (size_t i = key.low & (t->cap - 1); t->slot[i]; i = (i + 1) & (t->cap - 1)) {
        if (t->slot[i]->key.low == key.low && t->slot[i]->key.high == key.high) return t->slot[i];
    }
    return NULL;
}

bool m5_g_local_put(g_local_table *t, g_local *l)
{
    if ((t->n + 1) * 2 > t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 64;
        g_local **slot = m5_calloc(M5_MEM_TEXT, cap, sizeof *slot);
        if (!slot) return false;
        for (size_t k = 0; k < t->cap; k++) {
            if (!t->slot[k]) continue;
            size_t i = t->slot[k]->key.low & (cap - 1);
            while (slot[i]) i = (i + 1) & (cap - 1);
            slot[i] = t->slot[k];
        }
        m5_free(t->slot);
        t->slot = slot;
        t->cap = cap;
    }
    size_t i = l->key.low & (t->cap - 1);
    while (t->slot[i]) i = (i + 1) & (t->cap - 1);
    t->slot[i] = l;
    t->n++;
    t->bytes += sizeof *l + (l->n_ids + l->n_escape) * 4 + l->n_dense_bytes;
    return true;
}

void m5_g_local_free(g_local *l)
{
    if (!l) return;
    m5_free(l->dense);
    m5_free(l->ids);
    m5_free(l->escape);
    m5_free(l);
}

void m5_g_local_table_clear(g_local_table *t)
{
    for (size_t i = 0; i < t->cap; i++) m5_g_local_free(t->slot[i]);
    m5_free(t->slot);
    *t = (g_local_table){0};
}

/* ---- walking the tries ---- */

typedef struct found {
    int32_t *ids;
    size_t n, cap;
    uint32_t *escape;
    size_t n_escape, cap_escape;
    uint32_t *path; /* states by depth */
    size_t cap_path;
} found;

static void found_deinit(found *f)
{
    m5_free(f->ids);
    m5_free(f->escape);
    m5_free(f->path);
}

/* Do all byte sequences of n more bytes, the first of them in lo..hi, lead from t to s? */
static bool all_lead(g_auto *a, uint32_t t, uint8_t lo, uint8_t hi, int n, uint32_t s)
{
    uint32_t last = UINT32_MAX;
    for (unsigned b = lo; b <= hi; b++) {
        uint32_t u = m5_g_step_fast(a, t, (uint8_t)b);
        if (a->rc || u == G_STATE_DEAD) return false;
        if (u == last) continue;
        if (n == 1 ? u != s : !all_lead(a, u, 0x80, 0xBF, n - 1, s)) return false;
        last = u;
    }
    return true;
}

/* Does every character that a JSON string takes as it is lead back to the state? Free text and the bodies of strings do: then their tokens need no
 * walk. */
static bool loops(g_auto *a, uint32_t s)
{
    static const uint8_t lead[][4] = {{0xC2, 0xDF, 0x80, 0xBF}, {0xE0, 0xE0, 0xA0, 0xBF}, {0xE1, 0xEC, 0x80, 0xBF}, {0xED, 0xED, 0x80, 0x9F},
                                      {0xEE, 0xEF, 0x80, 0xBF}, {0xF0, 0xF0, 0x90, 0xBF}, {0xF1, 0xF3, 0x80, 0xBF}, {0xF4, 0xF4, 0x80, 0x8F}};
    if (a->state[s].flags & (G_ST_LOOPS | G_ST_LOOPS_NOT)) return a->state[s].flags & G_ST_LOOPS;
    bool ok = all_lead(a, s, 0x20, 0x21, 1, s) && all_lead(a, s, 0x23, 0x5B, 1, s) && all_lead(a, s, 0x5D, 0x7E, 1, s);
    for (size_t i = 0; i < sizeof lead / sizeof lead[0] && ok; i++) {
        for (unsigned b = lead[i][0]; b <= lead[i][1] && ok; b++) {
            uint32_t t = m5_g_step_fast(a, s, (uint8_t)b);
            ok = t != G_STATE_DEAD && all_lead(a, t, lead[i][2], lead[i][3], b < 0xE0 ? 1 : b < 0xF0 ? 2 : 3, s);
        }
    }
    if (!a->rc) a->state[s].flags |= ok ? G_ST_LOOPS : G_ST_LOOPS_NOT;
    return ok;
}

static bool add_tokens(g_auto *a, found *f, const g_trie *t, uint32_t from, uint32_t to)
{
    if (!m5_g_grow(&f->ids, f->n, &f->cap, to - from, sizeof *f->ids)) {
        a->rc = M5_ERR_NOMEM;
        return false;
    }
    if (to > from) memcpy(f->ids + f->n, t->ids + from, (to - from) * sizeof *f->ids);
    f->n += to - from;
    return true;
}

/* Tokens of the subtrees [begin, end) that the automaton takes from the given state, in which it stands above them. */
static void walk(g_auto *a, const g_trie *t, uint32_t tag, uint32_t begin, uint32_t end, uint32_t state, bool escapes, found *f)
{
    if (begin >= end) return;
    uint32_t above = (uint32_t)t->node[begin].depth - 1;
    if (!m5_g_grow(&f->path, 0, &f->cap_path, (size_t)t->max_depth + 2, sizeof *f->path)) {
        a->rc = M5_ERR_NOMEM;
        return;
    }
    uint32_t *path = f->path;
    bool plain = t == &a->vocab->plain;
    path[0] = state;
    if (plain && t->node[end].tok - t->node[begin].tok > MANY && loops(a, state)) {
        add_tokens(a, f, t, t->node[begin].tok, t->node[end].tok);
        return;
    }
    for (uint32_t i = begin; i < end;) {
        const g_trie_node *n = &t->node[i];
        uint32_t d = n->depth - above, s = m5_g_step_fast(a, path[d - 1], n->byte);
        if (s == G_STATE_DEAD) {
            if (a->rc) return;
            i = n->skip;
            continue;
        }
        path[d] = s;
        bool whole = plain && t->node[n->skip].tok - n->tok > MANY && loops(a, s);
        if (a->rc || !add_tokens(a, f, t, n->tok, t->node[whole ? n->skip : i + 1].tok)) return;
        uint32_t flags = a->state[s].flags;
        if (escapes && (flags & G_ST_ESCAPE) && n->skip > i + 1) {
            if (!m5_g_grow(&f->escape, f->n_escape, &f->cap_escape, 1, sizeof *f->escape)) {
                a->rc = M5_ERR_NOMEM;
                return;
            }
            f->escape[f->n_escape++] = tag | i;
        }
        i = (flags & G_ST_BYTES) && !whole ? i + 1 : n->skip;
    }
}

#define TAG_OTHER 0x80000000u

static g_local *local_from(g_auto *a, m5_hash128 key, uint32_t state, bool plain)
{
    const m5_grammar_vocab *v = a->vocab;
    found f = {0};
    g_local *l = m5_calloc(M5_MEM_TEXT, 1, sizeof *l);
    if (!l) a->rc = M5_ERR_NOMEM;
    if (!a->rc && plain) walk(a, &v->plain, 0, 0, v->plain.n, state, true, &f);
    if (!a->rc) walk(a, &v->other, TAG_OTHER, 0, v->other.n, state, true, &f);
    if (!a->rc && f.n > DENSE) {
        l->n_dense_bytes = v->n_words * sizeof *l->dense;
        if (!(l->dense = m5_calloc(M5_MEM_TEXT, v->n_words, sizeof *l->dense))) a->rc = M5_ERR_NOMEM;
        for (size_t i = 0; i < f.n && l->dense; i++) l->dense[f.ids[i] >> 6] |= (uint64_t)1 << (f.ids[i] & 63);
    } else if (!a->rc) {
        l->ids = f.ids;
        l->n_ids = (uint32_t)f.n;
        f.ids = NULL;
    }
    if (a->rc) {
        found_deinit(&f);
        m5_g_local_free(l);
        return NULL;
    }
    l->key = key;
    l->escape = f.escape;
    l->n_escape = (uint32_t)f.n_escape;
    f.escape = NULL;
    found_deinit(&f);
    return l;
}

static const g_resolved *resolve(g_auto *a, const g_local *l, uint32_t base)
{
    const m5_grammar_vocab *v = a->vocab;
    uint64_t h = ((uint64_t)(uintptr_t)l >> 4 ^ base) * 0x9E3779B97F4A7C15u;
    if ((a->n_resolved + 1) * 2 > a->cap_resolved) {
        size_t cap = a->cap_resolved ? a->cap_resolved * 2 : 64;
        g_resolved **slot = m5_calloc(M5_MEM_TEXT, cap, sizeof *slot);
        if (!slot) {
            a->rc = M5_ERR_NOMEM;
            return NULL;
        }
        for (size_t k = 0; k < a->cap_resolved; k++) {
            if (!a->resolved[k]) continue;
            size_t i = (((uint64_t)(uintptr_t)a->resolved[k]->local >> 4 ^ a->resolved[k]->base) * 0x9E3779B97F4A7C15u >> 32) & (cap - 1);
            while (slot[i]) i = (i + 1) & (cap - 1);
            slot[i] = a->resolved[k];
        }
        m5_free(a->resolved);
        a->resolved = slot;
        a->cap_resolved = cap;
    }
    size_t at = (h >> 32) & (a->cap_resolved - 1);
    for (; a->resolved[at]; at = (at + 1) & (a->cap_resolved - 1)) {
        if (a->resolved[at]->local == l && a->resolved[at]->base == base) return a->resolved[at];
    }
    found f = {0};
    g_config after = {a->frame[base].pc + 1, a->frame[base].parent};
    uint32_t state = m5_g_close(a, &after, 1);
    for (uint32_t i = 0; i < l->n_escape && !a->rc; i++) {
        const g_trie *t = l->escape[i] & TAG_OTHER ? &v->other : &v->plain;
        uint32_t n = l->escape[i] & ~TAG_OTHER;
        walk(a, t, 0, n + 1, t->node[n].skip, state, false, &f);
    }
    g_resolved *r = a->rc ? NULL : m5_calloc(M5_MEM_TEXT, 1, sizeof *r);
    if (!r) {
        if (!a->rc) a->rc = M5_ERR_NOMEM;
        found_deinit(&f);
        return NULL;
    }
    *r = (g_resolved){.local = l, .base = base};
    if (f.n > DENSE && (r->dense = m5_calloc(M5_MEM_TEXT, v->n_words, sizeof *r->dense)) != NULL) {
        for (size_t i = 0; i < f.n; i++) r->dense[f.ids[i] >> 6] |= (uint64_t)1 << (f.ids[i] & 63);
        a->extra_bytes += v->n_words * sizeof *r->dense;
    } else {
        r->ids = f.ids;
        r->n_ids = (uint32_t)f.n;
        f.ids = NULL;
    }
    found_deinit(&f);
    a->resolved[at] = r;
    a->n_resolved++;
    a->extra_bytes += sizeof *r + r->n_ids * 4;
    return r;
}

/* ---- groups ---- */

typedef struct key_buf {
    m5_buf b;
    const g_block *block; /* that all instructions lie in, or NULL: then the key means something in this grammar alone */
} key_buf;

static void key_put(key_buf *k, uint32_t v)
{
    m5_buf_append(&k->b, &v, sizeof v);
}
static void key_pc(key_buf *k, uint32_t pc)
{
    key_put(k, k->block ? pc - k->block->begin : pc);
}

static const g_block *common_block(const g_auto *a, const g_config *c, size_t n, uint32_t base)
{
    const g_block *b = NULL;
    for (size_t i = 0; i < n; i++) {
        if (c[i].pc >= G_PC_ESCAPE) return NULL;
        if (i == 0) b = m5_g_block_of(a->g, c[i].pc);
        if (!b || c[i].pc < b->begin || c[i].pc >= b->end) return NULL;
        for (uint32_t f = c[i].frame; f != base; f = a->frame[f].parent) {
            if (a->frame[f].pc < b->begin || a->frame[f].pc >= b->end) return NULL;
        }
    }
    return b;
}

static uint32_t base_of(const g_auto *a, uint32_t frame)
{
    while (frame > G_FRAME_BOTTOM && a->g->inst[a->frame[frame].pc].op == G_OP_REP) frame = a->frame[frame].parent;
    return frame;
}

/* Characters that the group still takes when it stands at the border of two characters of a JSON string, and nowhere else; 0 otherwise. *str: the
 * frame that counts them. */
static uint32_t string_room(const g_auto *a, const g_config *c, size_t n, uint32_t *str)
{
    const m5_grammar *g = a->g;
    const g_rep *r = NULL;
    for (size_t i = 0; i < n && !r; i++) {
        if (c[i].frame <= G_FRAME_BOTTOM) continue;
        const g_inst *in = &g->inst[a->frame[c[i].frame].pc];
        if (in->op != G_OP_REP || !g->rep[in->a].str) continue;
        const g_inst *body = &g->inst[g->rep[in->a].body];
        if (body->op != G_OP_SPLIT || c[i].pc != g->split[body->a + 1]) continue;
        r = &g->rep[in->a];
        *str = c[i].frame;
    }
    if (!r) return 0;
    const uint32_t *first = &g->split[g->inst[r->body].a];
    for (size_t i = 0; i < n; i++) {
        if (c[i].pc >= G_PC_ESCAPE) continue;
        const g_inst *in = &g->inst[c[i].pc];
        bool ok = in->op == G_OP_BYTE && in->lo == '"' && in->hi == '"';
        for (uint32_t k = 1; c[i].frame == *str && k <= first[0] && !ok; k++) ok = c[i].pc == first[k];
        if (!ok) return 0;
    }
    return r->max == G_INF ? G_INF : r->max - a->frame[*str].count;
}

/* Turns the group into one over an unknown caller (or over the end of the text) and writes its key. M5_ERR_LIMIT: too many frames. */
static int make_local(g_auto *a, g_config *c, size_t n, uint32_t base, uint32_t str, key_buf *k)
{
    const m5_grammar *g = a->g;
    uint32_t bottom = base == G_FRAME_ROOT ? G_FRAME_ROOT : G_FRAME_BOTTOM;
    k->block = common_block(a, c, n, base);
    for (size_t i = 0; i < n; i++) {
        uint32_t chain[MAX_SEGMENT], m = 0;
        if (c[i].pc >= G_PC_ESCAPE) {
            key_put(k, c[i].pc);
            continue;
        }
        key_pc(k, c[i].pc);
        for (uint32_t f = c[i].frame; f != base; f = a->frame[f].parent) {
            if (m == MAX_SEGMENT) return M5_ERR_LIMIT;
            chain[m++] = f;
        }
        c[i].frame = bottom;
        while (m > 0) {
            g_frame f = a->frame[chain[--m]];
            const g_rep *r = &g->rep[g->inst[f.pc].a];
            c[i].frame = m5_g_frame_push(a, c[i].frame, f.pc, f.count);
            key_pc(k, f.pc);
            if (chain[m] == str && str) { /* far from its bounds a string's count makes no difference to any token that is looked at */
                uint32_t most = a->vocab->other_chars, room = r->max == G_INF ? most : r->max - f.count;
                uint32_t need = r->min > f.count ? r->min - f.count : 0;
                key_put(k, room < most ? room : most);
                key_put(k, need < most ? need : most);
            } else {
                key_put(k, f.count);
            }
        }
        key_put(k, UINT32_MAX);
    }
    key_put(k, bottom);
    key_put(k, str != 0);
    if (k->block) m5_buf_append(&k->b, str ? &k->block->kind : &k->block->hash, sizeof k->block->hash); /* str: the bounds are in the key */
    return k->b.failed ? M5_ERR_NOMEM : 0;
}

static const g_local *local_of(g_auto *a, g_config *c, size_t n, uint32_t base, uint32_t str)
{
    key_buf k = {0};
    const g_local *found_local = NULL;
    if (make_local(a, c, n, base, str, &k) == 0 && !a->rc) {
        m5_hash128 key = m5_hash128_of(k.b.p, k.b.n);
        bool shared = k.block != NULL;
        found_local = m5_g_local_find(shared ? &a->vocab->locals : &a->locals, key);
        if (!found_local && shared && a->vocab->locals.bytes > SHARED_BYTES) found_local = m5_g_local_find(&a->locals, key);
        if (!found_local) {
            uint32_t s = m5_g_intern(a, c, n);
            g_local *l = a->rc ? NULL : local_from(a, key, s, str == 0);
            g_local_table *t = shared && a->vocab->locals.bytes <= SHARED_BYTES ? &a->vocab->locals : &a->locals;
            if (l && !m5_g_local_put(t, l)) {
                m5_g_local_free(l);
                l = NULL;
                a->rc = M5_ERR_NOMEM;
            }
            found_local = l;
        }
    } else if (!a->rc && k.b.failed) {
        a->rc = M5_ERR_NOMEM;
    }
    m5_buf_free(&k.b);
    return found_local;
}

static g_recipe *new_recipe(g_auto *a, uint32_t n)
{
    g_recipe *r = m5_calloc(M5_MEM_TEXT, 1, sizeof *r + n * sizeof r->part[0]);
    if (!r) a->rc = M5_ERR_NOMEM;
    if (r) a->extra_bytes += sizeof *r + n * sizeof r->part[0];
    return r;
}

static g_recipe *exact_recipe(g_auto *a, uint32_t state)
{
    g_recipe *r = new_recipe(a, 1);
    g_local *l = r ? local_from(a, (m5_hash128){0, 0}, state, true) : NULL;
    if (!l) {
        m5_free(r);
        return NULL;
    }
    *r = (g_recipe){.n = 1, .exact = true};
    r->part[0] = (g_part){.local = l};
    a->extra_bytes += l->n_ids * 4 + l->n_dense_bytes;
    return r;
}

/* Bases of the groups; 0 when sharing is not worth it or not right: too many, or so deep that G_GUARD could bite inside a token. */
static uint32_t find_groups(const g_auto *a, const g_config *c, size_t n, uint32_t *base)
{
    uint32_t m = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t b = base_of(a, c[i].frame), k = 0;
        if (a->frame[b].level + a->vocab->other_open >= G_LEVEL) return 0;
        while (k < m && base[k] != b) k++;
        if (k < m) continue;
        if (m == MAX_GROUPS) return 0;
        base[m++] = b;
    }
    return m;
}

static g_recipe *make_recipe(g_auto *a, uint32_t state)
{
    uint32_t n = a->state[state].n, base[MAX_GROUPS], n_group;
    g_config *c = m5_alloc(M5_MEM_TEXT, 2 * (size_t)n * sizeof *c), *group = c + n;
    if (!c) {
        a->rc = M5_ERR_NOMEM;
        return NULL;
    }
    memcpy(c, a->config + a->state[state].off, n * sizeof *c);
    n_group = find_groups(a, c, n, base);
    g_recipe *r = n_group ? new_recipe(a, n_group) : NULL;
    for (uint32_t k = 0; r && k < n_group; k++) {
        size_t m = 0;
        uint32_t str = 0;
        for (uint32_t i = 0; i < n; i++) {
            if (base_of(a, c[i].frame) == base[k]) group[m++] = c[i];
        }
        uint32_t room = string_room(a, group, m, &str);
        if (!room) str = 0;
        const g_local *l = local_of(a, group, m, base[k], str);
        const g_resolved *res = l && l->n_escape ? resolve(a, l, base[k]) : NULL;
        if (!l || a->rc) {
            m5_free(r);
            r = NULL;
            break;
        }
        r->part[r->n++] = (g_part){l, room, res};
    }
    m5_free(c);
    return r || a->rc ? r : exact_recipe(a, state);
}

/* ---- matcher ---- */

int m5_matcher_new(m5_matcher **out, m5_grammar *g, m5_grammar_vocab *v, m5_error *err)
{
    if (g->run && g->run->vocab != v) {
        if (g->run->matchers) return m5_error_set(err, M5_ERR_ARG, "the grammar is in use with another vocabulary");
        m5_g_auto_free(g->run);
        g->run = NULL;
    }
    int rc = g->run ? 0 : m5_g_auto_new(&g->run, g, v);
    m5_matcher *m = rc ? NULL : m5_calloc(M5_MEM_TEXT, 1, sizeof *m);
    if (!m)
        return m5_error_set(err, rc ? rc : M5_ERR_NOMEM,
                            rc == M5_ERR_LIMIT ? "the grammar's first state is too large" : "out of memory for a matcher");
    *m = (m5_matcher){.g = m5_grammar_ref(g), .a = g->run, .state = g->run->start, .next = g->run->matchers};
    if (m->next) m->next->prev = m;
    g->run->matchers = m;
    *out = m;
    return 0;
}

int m5_matcher_copy(m5_matcher **out, const m5_matcher *m, m5_error *err)
{
    m5_matcher *c = NULL;
    int rc = m5_matcher_new(&c, m->g, m->a->vocab, err);
    if (rc) return rc;
    c->state = m->state;
    c->ended = m->ended;
    m5_buf_append(&c->keys, m->keys.p ? m->keys.p : "", m->keys.n);
    m5_buf_append(&c->key, m->key.p ? m->key.p : "", m->key.n);
    if (c->keys.failed || c->key.failed || !m5_g_grow(&c->used, 0, &c->cap_used, m->n_used, sizeof *c->used)) {
        m5_matcher_free(c);
        return m5_error_set(err, M5_ERR_NOMEM, "out of memory for a matcher");
    }
    if (m->n_used) memcpy(c->used, m->used, m->n_used * sizeof *c->used);
    c->n_used = m->n_used;
    *out = c;
    return 0;
}

void m5_matcher_free(m5_matcher *m)
{
    if (!m) return;
    if (m->prev) {
        m->prev->next = m->next;
    } else {
        m->a->matchers = m->next;
    }
    if (m->next) m->next->prev = m->prev;
    m5_grammar_unref(m->g);
    m5_buf_free(&m->keys);
    m5_buf_free(&m->key);
    m5_buf_free(&m->scratch);
    m5_free(m->used);
    m5_free(m);
}

void m5_matcher_reset(m5_matcher *m)
{
    m->state = m->a->start;
    m->ended = false;
    m5_buf_clear(&m->keys);
    m5_buf_clear(&m->key);
    m->n_used = 0;
}

static int begin(m5_matcher *m)
{
    m->a->rc = 0;
    return m5_g_collect(m->a);
}

static int report(const g_auto *a, m5_error *err)
{
    return a->rc == M5_ERR_LIMIT ? m5_error_set(err, a->rc, "the grammar is too ambiguous here: its state became too large")
                                 : m5_error_set(err, M5_ERR_NOMEM, "out of memory for a grammar's state");
}

static void or_words(uint64_t *bits, const uint64_t *w, size_t n)
{
    for (size_t i = 0; i < n; i++) bits[i] |= w[i];
}

static void or_ids(uint64_t *bits, size_t n_words, const int32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        size_t w = (size_t)ids[i] >> 6;
        if (w < n_words) bits[w] |= (uint64_t)1 << (ids[i] & 63);
    }
}

static void or_plain(const m5_grammar_vocab *v, uint64_t *bits, size_t n_words, size_t words, uint32_t room)
{
    bool all = !v->n_longer || room >= v->longer[v->n_longer - 1].chars;
    or_words(bits, v->upto[room <= G_PLAIN_STEPS ? room : all ? G_PLAIN_STEPS + 1 : G_PLAIN_STEPS], words);
    for (size_t i = 0; room > G_PLAIN_STEPS && !all && i < v->n_longer && v->longer[i].chars <= room; i++) or_ids(bits, n_words, &v->longer[i].id, 1);
}

/* ---- keys of free objects: each only once, since readers differ in what they make of a second one ---- */

/* One step was taken, to the state s. Where memory is short a key is forgotten. */
static void track_key(m5_matcher *m, uint32_t s, uint8_t byte)
{
    const g_auto *a = m->a;
    uint32_t flags = a->state[s].flags;
    if (flags & G_ST_KEY) {
        if (m->key.n || byte == '"') m5_buf_putc(&m->key, (char)byte);
        return;
    }
    if (!m->key.n && !m->n_used) return;
    uint32_t level = m5_g_level(a, s);
    while (m->n_used && m->used[m->n_used - 1].level > level) m->keys.n = m->used[--m->n_used].off;
    if (m->key.n && !m->key.failed && m->n_used < MAX_KEYS && m5_g_grow(&m->used, m->n_used, &m->cap_used, 1, sizeof *m->used)) {
        m->used[m->n_used] = (struct g_key){level, (uint32_t)m->keys.n, (uint32_t)m->key.n};
        m5_buf_append(&m->keys, m->key.p, m->key.n);
        m->n_used += !m->keys.failed;
    }
    m5_buf_clear(&m->key);
}

/* Would these bytes end a key that its object has? */
static bool repeats_key(m5_matcher *m, const char *p, size_t n)
{
    g_auto *a = m->a;
    size_t n_used = m->n_used;
    uint32_t s = m->state;
    if (!n_used) return false;
    m5_buf_clear(&m->scratch);
    m5_buf_append(&m->scratch, m->key.p ? m->key.p : "", m->key.n);
    for (size_t i = 0; i < n && (s = m5_g_step(a, s, (uint8_t)p[i])) != G_STATE_DEAD && !m->scratch.failed; i++) {
        if (a->state[s].flags & G_ST_KEY) {
            if (m->scratch.n || p[i] == '"') m5_buf_putc(&m->scratch, p[i]);
            continue;
        }
        uint32_t level = m5_g_level(a, s);
        while (n_used && m->used[n_used - 1].level > level) n_used--;
        for (size_t k = n_used; m->scratch.n && k-- > 0 && m->used[k].level == level;) {
            if (m->used[k].n == m->scratch.n && memcmp(m->keys.p + m->used[k].off, m->scratch.p, m->scratch.n) == 0) return true;
        }
        m5_buf_clear(&m->scratch);
    }
    return false;
}

static bool descend(const g_trie *t, const char *p, size_t n, uint32_t *node);

/* Takes the tokens out of the mask that would end a key which the object has: those that begin with the rest of such a key, and any with two quotes.
 */
static void drop_used_keys(m5_matcher *m, uint64_t *bits, size_t n_words)
{
    const m5_grammar_vocab *v = m->a->vocab;
    uint32_t level = m5_g_level(m->a, m->state), node;
    bool inside = m->a->state[m->state].flags & G_ST_KEY;
    for (size_t i = m->n_used; inside && i-- > 0 && m->used[i].level >= level;) {
        const char *k = m->keys.p + m->used[i].off;
        uint32_t n = m->used[i].n;
        if (m->used[i].level != level || n < m->key.n || memcmp(k, m->key.p ? m->key.p : "", m->key.n) != 0) continue;
        m5_buf_clear(&m->scratch);
        m5_buf_append(&m->scratch, k + m->key.n, n - m->key.n);
        m5_buf_putc(&m->scratch, '"');
        if (m->scratch.failed || !descend(&v->other, m->scratch.p, m->scratch.n, &node)) continue;
        for (uint32_t x = v->other.node[node].tok; x < v->other.node[v->other.node[node].skip].tok; x++) {
            int32_t id = v->other.ids[x];
            if ((size_t)id >> 6 < n_words) bits[id >> 6] &= ~((uint64_t)1 << (id & 63));
        }
    }
    for (size_t i = 0; i < v->n_quoted; i++) {
        int32_t id = v->quoted[i];
        if ((size_t)id >> 6 >= n_words || !(bits[id >> 6] >> (id & 63) & 1)) continue;
        if (repeats_key(m, v->bytes.p + v->off[id], v->off[id + 1] - v->off[id])) bits[id >> 6] &= ~((uint64_t)1 << (id & 63));
    }
}

int m5_matcher_mask(m5_matcher *m, uint64_t *bits, size_t n_words, m5_error *err)
{
    g_auto *a = m->a;
    const m5_grammar_vocab *v = a->vocab;
    memset(bits, 0, n_words * sizeof *bits);
    if (begin(m) != 0) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for a grammar's state");
    size_t words = n_words < v->n_words ? n_words : v->n_words;
    if (m->ended) {
        or_ids(bits, n_words, v->ends, (size_t)v->n_ends);
        return 0;
    }
    g_recipe *r = a->state[m->state].recipe;
    if (!r) {
        if (!(r = make_recipe(a, m->state))) return report(a, err);
        a->state[m->state].recipe = r;
    }
    for (uint32_t i = 0; i < r->n; i++) {
        const g_part *p = &r->part[i];
        if (p->local->dense) {
            or_words(bits, p->local->dense, words);
        } else {
            or_ids(bits, n_words, p->local->ids, p->local->n_ids);
        }
        if (p->plain) or_plain(v, bits, n_words, words, p->plain);
        if (p->resolved && p->resolved->dense) or_words(bits, p->resolved->dense, words);
        if (p->resolved) or_ids(bits, n_words, p->resolved->ids, p->resolved->n_ids);
    }
    bool can_end = a->state[m->state].flags & G_ST_ACCEPT;
    if (m->n_used) drop_used_keys(m, bits, n_words);
    if (can_end) or_ids(bits, n_words, v->ends, (size_t)v->n_ends);
    for (size_t i = 0; i < n_words; i++) {
        if (bits[i]) return 0;
    }
    return can_end ? 0 : m5_error_set(err, M5_ERR_UNSUPPORTED, "the vocabulary has no token for what the grammar wants next");
}

static int accept_bytes(m5_matcher *m, const char *p, size_t n, m5_error *err)
{
    g_auto *a = m->a;
    if (begin(m) != 0) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for a grammar's state");
    uint32_t s = m->state;
    for (size_t i = 0; i < n; i++) {
        s = m5_g_step_fast(a, s, (uint8_t)p[i]);
        if (a->rc) return report(a, err);
        if (s == G_STATE_DEAD) return m5_error_set(err, M5_ERR_ARG, "the grammar forbids byte 0x%02x here", (unsigned)(uint8_t)p[i]);
    }
    if (repeats_key(m, p, n)) return m5_error_set(err, M5_ERR_ARG, "a member that the object has already");
    for (size_t i = 0; i < n; i++) { /* the steps are known now */
        m->state = m5_g_step(a, m->state, (uint8_t)p[i]);
        if (a->has_keys) track_key(m, m->state, (uint8_t)p[i]);
    }
    return 0;
}

int m5_matcher_accept(m5_matcher *m, int32_t id, m5_error *err)
{
    const m5_grammar_vocab *v = m->a->vocab;
    if (id < 0 || id >= v->n_vocab) return m5_error_set(err, M5_ERR_ARG, "token %d is outside the vocabulary", (int)id);
    for (int i = 0; i < v->n_ends; i++) {
        if (v->ends[i] != id) continue;
        if (!m->ended && !m5_matcher_can_end(m)) return m5_error_set(err, M5_ERR_ARG, "the text may not end here");
        m->ended = true;
        return 0;
    }
    uint32_t n = v->off[id + 1] - v->off[id];
    if (!n || m->ended) return m5_error_set(err, M5_ERR_ARG, m->ended ? "the text has ended" : "token %d has no text", (int)id);
    return accept_bytes(m, v->bytes.p + v->off[id], n, err);
}

int m5_matcher_accept_bytes(m5_matcher *m, const char *p, size_t n, m5_error *err)
{
    if (m->ended && n) return m5_error_set(err, M5_ERR_ARG, "the text has ended");
    return accept_bytes(m, p, n, err);
}

size_t m5_matcher_peek(m5_matcher *m, const char *p, size_t n)
{
    size_t i = 0;
    if (m->ended || begin(m) != 0) return 0;
    for (uint32_t s = m->state; i < n && (s = m5_g_step(m->a, s, (uint8_t)p[i])) != G_STATE_DEAD; i++) {}
    return i;
}

bool m5_matcher_can_end(const m5_matcher *m)
{
    return m->ended || (m->a->state[m->state].flags & G_ST_ACCEPT);
}
bool m5_matcher_is_complete(m5_matcher *m)
{
    return m->ended || (m->a->state[m->state].flags & (G_ST_ACCEPT | G_ST_BYTES)) == G_ST_ACCEPT;
}
bool m5_matcher_ended(const m5_matcher *m)
{
    return m->ended;
}

/* ---- jump-ahead ---- */

/* The one byte that may follow, or -1. */
static int only_byte(const g_auto *a, uint32_t s)
{
    int b = -1;
    if ((a->state[s].flags & (G_ST_ACCEPT | G_ST_BYTES | G_ST_ESCAPE)) != G_ST_BYTES) return -1;
    for (uint32_t i = 0; i < a->state[s].n; i++) {
        const g_inst *in = &a->g->inst[a->config[a->state[s].off + i].pc];
        if (in->op != G_OP_BYTE || in->lo != in->hi || (b >= 0 && b != in->lo)) return -1;
        b = in->lo;
    }
    return b;
}

/* Appends forced bytes: text up to a control token, or (control) one control token with its marks. Returns the state behind them. */
static uint32_t follow(g_auto *a, uint32_t s, bool control, m5_buf *out)
{
    size_t begin_n = out->n;
    for (int b; out->n - begin_n < MAX_FORCED && (b = only_byte(a, s)) >= 0;) {
        if (b == G_MARK && !control) break;
        uint32_t t = m5_g_step(a, s, (uint8_t)b);
        if (a->rc) break;
        s = t;
        m5_buf_putc(out, (char)b);
        if (control && b == G_MARK && out->n - begin_n > 1) break;
    }
    if (out->failed) a->rc = M5_ERR_NOMEM;
    return s;
}

int m5_matcher_forced_bytes(m5_matcher *m, m5_buf *out, m5_error *err)
{
    if (m->ended) return 0;
    if (begin(m) != 0) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for a grammar's state");
    follow(m->a, m->state, false, out);
    return m->a->rc ? report(m->a, err) : 0;
}

/* The node of a byte string in a trie; false when no token begins with it. */
static bool descend(const g_trie *t, const char *p, size_t n, uint32_t *node)
{
    uint32_t i = 0, end = t->n;
    for (size_t d = 0; d < n; d++) {
        while (i < end && t->node[i].byte != (uint8_t)p[d]) i = t->node[i].skip;
        if (i >= end) return false;
        *node = i;
        end = t->node[i].skip;
        i++;
    }
    return n > 0;
}

/* Does some token begin with these bytes, go on, and suit the grammar, which stands behind them? */
static bool could_be_longer(g_auto *a, const char *p, size_t n, uint32_t state)
{
    const g_trie *tries[] = {&a->vocab->plain, &a->vocab->other};
    bool longer = false;
    for (int i = 0; i < 2 && !longer && !a->rc; i++) {
        uint32_t node;
        found f = {0};
        if (!descend(tries[i], p, n, &node)) continue;
        walk(a, tries[i], 0, node + 1, tries[i]->node[node].skip, state, false, &f);
        longer = f.n > 0;
        found_deinit(&f);
    }
    return longer;
}

int m5_matcher_forced(m5_matcher *m, const m5_tokenizer *t, int32_t *ids, int cap, m5_error *err)
{
    g_auto *a = m->a;
    const m5_grammar_vocab *v = a->vocab;
    if (m->ended || cap <= 0) return 0;
    if (begin(m) != 0) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for a grammar's state");
    m5_buf text = {0};
    m5_ids spelled = {0};
    int n = 0, rc = 0;
    if (only_byte(a, m->state) == G_MARK) {
        uint32_t node;
        follow(a, m->state, true, &text);
        if (!a->rc && descend(&v->other, text.p, text.n, &node) && v->other.node[node + 1].tok > v->other.node[node].tok) {
            ids[n++] = v->other.ids[v->other.node[node].tok];
        }
    } else {
        uint32_t after = follow(a, m->state, false, &text);
        if (!a->rc && text.n) rc = m5_tokenize(t, &spelled, text.p, text.n, M5_SPECIAL_NONE, false, err);
        size_t at = 0;
        for (size_t i = 0; i < spelled.n && n < cap && rc == 0 && !a->rc; i++) { /* a tokenizer may write a space in front: then nothing is forced */
            int32_t id = spelled.p[i];
            size_t len = id >= 0 && id < v->n_vocab ? v->off[id + 1] - v->off[id] : 0;
            if (!len || len > text.n - at || memcmp(text.p + at, v->bytes.p + v->off[id], len) != 0) break;
            if (at + len == text.n && could_be_longer(a, text.p + at, len, after)) break;
            ids[n++] = id;
            at += len;
        }
    }
    if (rc == 0 && a->rc) rc = report(a, err);
    m5_buf_free(&text);
    m5_ids_free(&spelled);
    return rc ? rc : n;
}
