/* SPDX-License-Identifier: Apache-2.0 */
/* The lazy automaton: stacks as shared frames, states as sets of configurations, transitions made when first taken. Not here: tokens and masks.
 *
 * A step moves every configuration that waits for the byte and closes the result: instructions that take no byte are followed until all
 * configurations wait again. The closure is finite since the program has no left recursion and empty rounds of a repetition are not counted. */
#include "text/grammar_internal.h"

#include <string.h>

enum {
    MAX_CONFIGS = 20000,    /* of one state */
    MAX_CLOSE = 400000,     /* instructions followed in one step */
    SOFT_BYTES = 48 << 20,  /* above, tables are collected between calls */
    HARD_BYTES = 256 << 20, /* above, a call fails */
    NO_TRANS = 0,
    DEAD_TRANS = 1 /* cells hold state + 1 */
};

static uint32_t fail(g_auto *a, int rc)
{
    if (!a->rc) a->rc = rc;
    return G_STATE_DEAD;
}

static uint32_t mix(uint32_t h, uint32_t v)
{
    h = (h ^ v) * 0x9E3779B1u; /* Fibonacci hashing, as in the tokenizer's tables */
    return h ^ h >> 15;
}

static size_t table_bytes(const g_auto *a)
{
    return a->n_frame * sizeof *a->frame + a->n_config * sizeof *a->config + a->n_state * sizeof *a->state + a->n_trans * sizeof *a->trans +
           a->locals.bytes + a->extra_bytes;
}

/* ---- frames ---- */

static bool grow_heads(uint32_t **head, size_t *n_head, size_t n)
{
    if (n < *n_head) return true;
    size_t want = *n_head ? *n_head * 4 : 256;
    uint32_t *h = m5_alloc(M5_MEM_TEXT, want * sizeof *h);
    if (!h) return false;
    m5_free(*head);
    *head = h;
    *n_head = want;
    memset(h, 0xFF, want * sizeof *h);
    return true;
}

static uint32_t frame_hash(uint32_t parent, uint32_t pc, uint32_t count)
{
    return mix(mix(mix(0x51ed270b, parent), pc), count);
}

uint32_t m5_g_frame_push(g_auto *a, uint32_t parent, uint32_t pc, uint32_t count)
{
    uint32_t h = frame_hash(parent, pc, count);
    for (uint32_t i = a->frame_head[h & (a->n_frame_head - 1)]; i != UINT32_MAX; i = a->frame[i].next) {
        if (a->frame[i].parent == parent && a->frame[i].pc == pc && a->frame[i].count == count) return i;
    }
    size_t old = a->n_frame_head;
    if (!m5_g_grow(&a->frame, a->n_frame, &a->cap_frame, 1, sizeof *a->frame) || !grow_heads(&a->frame_head, &a->n_frame_head, a->n_frame)) {
        return fail(a, M5_ERR_NOMEM);
    }
    if (a->n_frame_head != old) {
        for (uint32_t i = 2; i < a->n_frame; i++) {
            uint32_t *head = &a->frame_head[frame_hash(a->frame[i].parent, a->frame[i].pc, a->frame[i].count) & (a->n_frame_head - 1)];
            a->frame[i].next = *head;
            *head = i;
        }
    }
    const g_inst *in = &a->g->inst[pc];
    uint32_t *head = &a->frame_head[h & (a->n_frame_head - 1)];
    uint32_t level = a->frame[parent].level + (in->op == G_OP_CALL && (in->flags & G_CALL_NEST));
    a->frame[a->n_frame] = (g_frame){parent, pc, count, level, *head};
    *head = (uint32_t)a->n_frame;
    return (uint32_t)a->n_frame++;
}

/* ---- states ---- */

/* Inside a member's free name? Its call is the nearest one but for a few that the name itself makes. */
static bool in_key(const g_auto *a, uint32_t frame)
{
    for (int i = 0; i < 8 && frame > G_FRAME_BOTTOM; i++) {
        const g_inst *in = &a->g->inst[a->frame[frame].pc];
        if (in->op == G_OP_CALL && in->flags) return in->flags & G_CALL_KEY;
        frame = a->frame[frame].parent;
    }
    return false;
}

uint32_t m5_g_level(const g_auto *a, uint32_t state)
{
    uint32_t level = 0;
    for (uint32_t i = 0; i < a->state[state].n; i++) {
        uint32_t l = a->frame[a->config[a->state[state].off + i].frame].level;
        if (l > level) level = l;
    }
    return level;
}

uint32_t m5_g_intern(g_auto *a, g_config *c, size_t n)
{
    if (!n || a->rc) return G_STATE_DEAD;
    if (n > MAX_CONFIGS) return fail(a, M5_ERR_LIMIT);
    for (size_t i = 1; i < n; i++) { /* nearly sorted and short as a rule */
        g_config x = c[i];
        size_t lo = 0, hi = i;
        if (c[i - 1].frame < x.frame || (c[i - 1].frame == x.frame && c[i - 1].pc <= x.pc)) continue;
        while (lo < hi) {
            size_t mid = (lo + hi) / 2;
            if (c[mid].frame < x.frame || (c[mid].frame == x.frame && c[mid].pc <= x.pc)) {
                lo = mid + 1;
            } else {
                hi = mid;
            }
        }
        memmove(c + lo + 1, c + lo, (i - lo) * sizeof *c);
        c[lo] = x;
    }
    uint32_t h = (uint32_t)n, flags = 0, n_key = 0;
    for (size_t i = 0; i < n; i++) {
        h = mix(mix(h, c[i].pc), c[i].frame);
        flags |= c[i].pc == G_PC_ACCEPT ? G_ST_ACCEPT : c[i].pc == G_PC_ESCAPE ? G_ST_ESCAPE : G_ST_BYTES;
    }
    for (uint32_t i = a->state_head[h & (a->n_state_head - 1)]; i != UINT32_MAX; i = a->state[i].next) {
        const g_state *s = &a->state[i];
        if (s->hash == h && s->n == n && memcmp(a->config + s->off, c, n * sizeof *c) == 0) return i;
    }
    for (size_t i = 0; i < n; i++) n_key += in_key(a, c[i].frame);
    if (n_key) flags |= G_ST_KEY;
    size_t old = a->n_state_head;
    if (table_bytes(a) > HARD_BYTES) return fail(a, M5_ERR_LIMIT);
    if (!m5_g_grow(&a->state, a->n_state, &a->cap_state, 1, sizeof *a->state) || !grow_heads(&a->state_head, &a->n_state_head, a->n_state) ||
        !m5_g_grow(&a->config, a->n_config, &a->cap_config, n, sizeof *c)) {
        return fail(a, M5_ERR_NOMEM);
    }
    if (a->n_state_head != old) {
        for (uint32_t i = 1; i < a->n_state; i++) {
            uint32_t *head = &a->state_head[a->state[i].hash & (a->n_state_head - 1)];
            a->state[i].next = *head;
            *head = i;
        }
    }
    uint32_t *head = &a->state_head[h & (a->n_state_head - 1)];
    memcpy(a->config + a->n_config, c, n * sizeof *c);
    a->state[a->n_state] = (g_state){.off = (uint32_t)a->n_config, .n = (uint32_t)n, .next = *head, .hash = h, .flags = flags};
    a->n_config += n;
    *head = (uint32_t)a->n_state;
    return (uint32_t)a->n_state++;
}

/* ---- closure ---- */

/* Queues a configuration once per closure. */
static void visit(g_auto *a, uint32_t pc, uint32_t frame)
{
    if (a->n_seen * 2 >= a->cap_seen) {
        size_t cap = a->cap_seen ? a->cap_seen * 2 : 256;
        g_config *seen = m5_alloc(M5_MEM_TEXT, cap * sizeof *seen);
        uint32_t *at = m5_calloc(M5_MEM_TEXT, cap, sizeof *at);
        if (!seen || !at) {
            m5_free(seen);
            m5_free(at);
            fail(a, M5_ERR_NOMEM);
            return;
        }
        for (size_t i = 0; i < a->cap_seen; i++) {
            if (a->seen_at[i] != a->stamp) continue;
            size_t k = mix(mix(7, a->seen[i].pc), a->seen[i].frame) & (cap - 1);
            while (at[k] == a->stamp) k = (k + 1) & (cap - 1);
            at[k] = a->stamp;
            seen[k] = a->seen[i];
        }
        m5_free(a->seen);
        m5_free(a->seen_at);
        a->seen = seen;
        a->seen_at = at;
        a->cap_seen = cap;
    }
    size_t k = mix(mix(7, pc), frame) & (a->cap_seen - 1);
    for (; a->seen_at[k] == a->stamp; k = (k + 1) & (a->cap_seen - 1)) {
        if (a->seen[k].pc == pc && a->seen[k].frame == frame) return;
    }
    if (!m5_g_grow(&a->work, a->n_work, &a->cap_work, 1, sizeof *a->work)) {
        fail(a, M5_ERR_NOMEM);
        return;
    }
    a->seen[k] = (g_config){pc, frame};
    a->seen_at[k] = a->stamp;
    a->n_seen++;
    a->work[a->n_work++] = (g_config){pc, frame};
}

static bool visited(const g_auto *a, uint32_t pc, uint32_t frame)
{
    for (size_t k = mix(mix(7, pc), frame) & (a->cap_seen - 1); a->seen_at[k] == a->stamp; k = (k + 1) & (a->cap_seen - 1)) {
        if (a->seen[k].pc == pc && a->seen[k].frame == frame) return true;
    }
    return false;
}

/* A repetition with `count` rounds done: on with another and, once there were enough, with what follows. */
static void repeat(g_auto *a, uint32_t pc, uint32_t parent, uint32_t count)
{
    const g_rep *r = &a->g->rep[a->g->inst[pc].a];
    if (count > r->min && r->max == G_INF) count = r->min; /* no difference any more */
    if (count < r->max) {
        uint32_t f = m5_g_frame_push(a, parent, pc, count);
        if (!a->rc) visit(a, r->body, f);
    }
    if (count >= r->min) visit(a, r->exit, parent);
}

static void give_back(g_auto *a, uint32_t frame)
{
    if (frame == G_FRAME_ROOT) {
        visit(a, G_PC_ACCEPT, frame);
    } else if (frame == G_FRAME_BOTTOM) {
        visit(a, G_PC_ESCAPE, frame);
    } else {
        g_frame f = a->frame[frame];
        if (a->g->inst[f.pc].op == G_OP_CALL) {
            visit(a, f.pc + 1, f.parent);
            return;
        }
        const g_rep *r = &a->g->rep[a->g->inst[f.pc].a];
        if (r->nullable && visited(a, r->body, frame)) return; /* an empty round */
        repeat(a, f.pc, f.parent, f.count + 1);
    }
}

uint32_t m5_g_close(g_auto *a, const g_config *start, size_t n)
{
    const m5_grammar *g = a->g;
    if (++a->stamp == 0) { /* after 2^32 closures old stamps could look new */
        memset(a->seen_at, 0, a->cap_seen * sizeof *a->seen_at);
        a->stamp = 1;
    }
    a->n_seen = a->n_work = a->n_out = 0;
    for (size_t i = 0; i < n && !a->rc; i++) visit(a, start[i].pc, start[i].frame);
    for (size_t steps = 0; a->n_work && !a->rc; steps++) {
        if (steps > MAX_CLOSE) return fail(a, M5_ERR_LIMIT);
        g_config c = a->work[--a->n_work];
        const g_inst *in = c.pc < g->n_inst ? &g->inst[c.pc] : NULL;
        switch (in ? (g_op)in->op : G_OP_BYTE) {
        case G_OP_BYTE:
        case G_OP_SET:
            if (!m5_g_grow(&a->out, a->n_out, &a->cap_out, 1, sizeof c)) return fail(a, M5_ERR_NOMEM);
            a->out[a->n_out++] = c;
            break;
        case G_OP_JMP: visit(a, in->a, c.frame); break;
        case G_OP_SPLIT:
            for (uint32_t k = g->split[in->a]; k > 0; k--) visit(a, g->split[in->a + k], c.frame);
            break;
        case G_OP_CALL: {
            uint32_t f = m5_g_frame_push(a, c.frame, c.pc, 0);
            if (!a->rc) visit(a, in->a, f);
            break;
        }
        case G_OP_REP: repeat(a, c.pc, c.frame, 0); break;
        case G_OP_RET: give_back(a, c.frame); break;
        case G_OP_GUARD:
            if (a->frame[c.frame].level < G_LEVEL) visit(a, c.pc + 1, c.frame);
            break;
        }
    }
    return m5_g_intern(a, a->out, a->n_out);
}

uint32_t m5_g_step(g_auto *a, uint32_t s, uint8_t byte)
{
    const m5_grammar *g = a->g;
    uint32_t cls = g->byte_class[byte], row = a->state[s].trans;
    if (row) {
        uint32_t t = a->trans[row - 1 + cls];
        if (t != NO_TRANS) return t - 1;
    } else {
        if (!m5_g_grow(&a->trans, a->n_trans, &a->cap_trans, g->n_class, sizeof *a->trans)) return fail(a, M5_ERR_NOMEM);
        row = a->state[s].trans = (uint32_t)a->n_trans + 1;
        memset(a->trans + a->n_trans, 0, g->n_class * sizeof *a->trans);
        a->n_trans += g->n_class;
    }
    g_config moved[64], *m = moved;
    size_t n = 0;
    uint32_t n_from = a->state[s].n;
    if (n_from > sizeof moved / sizeof moved[0] && !(m = m5_alloc(M5_MEM_TEXT, n_from * sizeof *m))) return fail(a, M5_ERR_NOMEM);
    for (uint32_t i = 0; i < n_from; i++) {
        g_config c = a->config[a->state[s].off + i];
        if (c.pc >= G_PC_ESCAPE) continue;
        const g_inst *in = &g->inst[c.pc];
        if (in->op == G_OP_BYTE ? byte >= in->lo && byte <= in->hi : m5_g_set_has(&g->set[in->a], byte)) m[n++] = (g_config){c.pc + 1, c.frame};
    }
    uint32_t t = n ? m5_g_close(a, m, n) : G_STATE_DEAD;
    if (m != moved) m5_free(m);
    if (a->rc) return G_STATE_DEAD;
    a->trans[row - 1 + cls] = t + 1;
    return t;
}

/* ---- life ---- */

/* Frames ROOT and BOTTOM, the dead state, empty tables. */
static int tables_init(g_auto *a)
{
    if (!m5_g_grow(&a->frame, 0, &a->cap_frame, 2, sizeof *a->frame) || !m5_g_grow(&a->state, 0, &a->cap_state, 1, sizeof *a->state) ||
        !grow_heads(&a->frame_head, &a->n_frame_head, 0) || !grow_heads(&a->state_head, &a->n_state_head, 0)) {
        return M5_ERR_NOMEM;
    }
    memset(a->frame_head, 0xFF, a->n_frame_head * sizeof *a->frame_head);
    memset(a->state_head, 0xFF, a->n_state_head * sizeof *a->state_head);
    memset(a->frame, 0, 2 * sizeof *a->frame);
    memset(a->state, 0, sizeof *a->state);
    a->n_frame = 2;
    a->n_state = 1;
    a->n_config = a->n_trans = 0;
    return 0;
}

static void drop_recipes(g_auto *a)
{
    for (size_t i = 0; i < a->n_state; i++) {
        g_recipe *r = a->state[i].recipe;
        if (r && r->exact) m5_g_local_free((g_local *)r->part[0].local);
        m5_free(r);
    }
    for (size_t i = 0; i < a->cap_resolved; i++) {
        if (!a->resolved[i]) continue;
        m5_free(a->resolved[i]->ids);
        m5_free(a->resolved[i]->dense);
        m5_free(a->resolved[i]);
    }
    m5_free(a->resolved);
    a->resolved = NULL;
    a->n_resolved = a->cap_resolved = a->extra_bytes = 0;
}

static void tables_free(g_auto *a)
{
    drop_recipes(a);
    m5_free(a->frame);
    m5_free(a->frame_head);
    m5_free(a->config);
    m5_free(a->state);
    m5_free(a->state_head);
    m5_free(a->trans);
}

int m5_g_auto_new(g_auto **out, const m5_grammar *g, m5_grammar_vocab *v)
{
    g_auto *a = m5_calloc(M5_MEM_TEXT, 1, sizeof *a);
    if (!a) return M5_ERR_NOMEM;
    a->g = g;
    a->vocab = v;
    a->soft_bytes = SOFT_BYTES;
    for (uint32_t pc = 0; pc < g->n_inst; pc++) a->has_keys |= g->inst[pc].op == G_OP_CALL && (g->inst[pc].flags & G_CALL_KEY);
    int rc = tables_init(a);
    if (rc == 0) {
        a->start = m5_g_close(a, &(g_config){g->start, G_FRAME_ROOT}, 1);
        rc = a->rc;
    }
    if (rc) {
        m5_g_auto_free(a);
        return rc;
    }
    *out = a;
    return 0;
}

void m5_g_auto_free(g_auto *a)
{
    if (!a) return;
    tables_free(a);
    m5_g_local_table_clear(&a->locals);
    m5_free(a->locals.slot);
    m5_free(a->work);
    m5_free(a->out);
    m5_free(a->seen);
    m5_free(a->seen_at);
    m5_free(a);
}

/* Frames stand behind their parents, so one pass upwards copies those that live. map: old frame -> new; 0 = not marked. */
static void mark_frames(const g_auto *a, uint32_t *map, uint32_t s)
{
    for (uint32_t i = 0; i < a->state[s].n; i++) {
        for (uint32_t f = a->config[a->state[s].off + i].frame; f > G_FRAME_BOTTOM && !map[f]; f = a->frame[f].parent) map[f] = 1;
    }
}

static uint32_t copy_state(g_auto *a, const g_auto *old, const uint32_t *map, uint32_t s)
{
    const g_state *from = &old->state[s];
    if (s == G_STATE_DEAD) return s;
    g_config *c = m5_alloc(M5_MEM_TEXT, from->n * sizeof *c);
    if (!c) return fail(a, M5_ERR_NOMEM);
    for (uint32_t i = 0; i < from->n; i++) {
        c[i] = old->config[from->off + i];
        c[i].frame = map[c[i].frame];
    }
    uint32_t t = m5_g_intern(a, c, from->n);
    m5_free(c);
    return t;
}

int m5_g_collect(g_auto *a)
{
    if (table_bytes(a) < a->soft_bytes) return 0;
    g_auto fresh = *a;
    fresh.frame = NULL;
    fresh.frame_head = fresh.state_head = fresh.trans = NULL;
    fresh.config = NULL;
    fresh.state = NULL;
    fresh.resolved = NULL;
    fresh.n_frame = fresh.cap_frame = fresh.n_frame_head = fresh.n_config = fresh.cap_config = fresh.n_state = fresh.cap_state = 0;
    fresh.n_state_head = fresh.n_trans = fresh.cap_trans = fresh.n_resolved = fresh.cap_resolved = fresh.extra_bytes = 0;
    fresh.rc = 0;
    size_t n = 0;
    for (const m5_matcher *m = a->matchers; m; m = m->next) n++;
    uint32_t *map = m5_calloc(M5_MEM_TEXT, a->n_frame, sizeof *map), *to = m5_alloc(M5_MEM_TEXT, (n + 1) * sizeof *to);
    int rc = map && to ? tables_init(&fresh) : M5_ERR_NOMEM;
    if (rc == 0) {
        mark_frames(a, map, a->start);
        for (const m5_matcher *m = a->matchers; m; m = m->next) mark_frames(a, map, m->state);
        map[G_FRAME_BOTTOM] = G_FRAME_BOTTOM;
        for (uint32_t f = 2; f < a->n_frame && !fresh.rc; f++) {
            if (map[f]) map[f] = m5_g_frame_push(&fresh, map[a->frame[f].parent], a->frame[f].pc, a->frame[f].count);
        }
        fresh.start = copy_state(&fresh, a, map, a->start);
        n = 0;
        for (const m5_matcher *m = a->matchers; m && !fresh.rc; m = m->next) to[n++] = copy_state(&fresh, a, map, m->state);
        rc = fresh.rc;
    }
    if (rc) {
        tables_free(&fresh);
    } else {
        tables_free(a);
        m5_g_local_table_clear(&fresh.locals);
        *a = fresh;
        n = 0;
        for (m5_matcher *m = a->matchers; m; m = m->next) m->state = to[n++];
        size_t live = table_bytes(a);
        a->soft_bytes = live * 2 > SOFT_BYTES ? live * 2 : SOFT_BYTES;
    }
    m5_free(map);
    m5_free(to);
    return rc;
}
