/* SPDX-License-Identifier: Apache-2.0 */
/* The prefix tree in memory. May touch: base, model/state. Not here: files (store.c), when to save (sched.c).
 *
 * Eviction is by value per byte: tokens that would have to be computed again over the bytes it takes to keep them, divided by the time since last
 * use. Checkpoints and leaves are the only things that can go; inner nodes become leaves when their children have gone. With recurrent layers a leaf
 * without checkpoint is worth nothing, since nobody can resume there. */
#include "engine/prefix.h"

#include "base/mem.h"

#include <string.h>

typedef struct checkpoint {
    struct checkpoint *next; /* descending position */
    int pos;                 /* absolute: tokens before it */
    uint64_t last_used;
    m5_row *row;
} checkpoint;

typedef struct node {
    struct node *parent, *child, *next; /* child: first; next: sibling */
    m5_page *page;
    checkpoint *points;
    uint64_t last_used;
    int depth;    /* page index */
    int n_tok;    /* 1..page_tok; < page_tok only in leaves */
    int32_t *ids; /* [page_tok], right behind the node; NULL in the root */
} node;

struct m5_prefix {
    m5_model *m;
    node root; /* no page; depth -1 */
    int page_tok;
    bool recurrent;
    size_t page_bytes, row_bytes;
    uint64_t tick;
    m5_prefix_stats st;
    m5_page **pages; /* scratch of resume */
    int cap_pages;
};

m5_row *m5_row_new(size_t n_bytes)
{
    m5_row *r = m5_alloc(M5_MEM_STATE, sizeof *r + n_bytes);
    if (!r) return NULL;
    r->n_owner = 1;
    r->n_bytes = n_bytes;
    return r;
}

m5_row *m5_row_ref(m5_row *r)
{
    if (r) r->n_owner++;
    return r;
}

void m5_row_unref(m5_row *r)
{
    if (r && --r->n_owner == 0) m5_free(r);
}

int m5_prefix_open(m5_prefix **out, m5_model *m, uint64_t budget_bytes, m5_error *err)
{
    m5_prefix *p = m5_calloc(M5_MEM_STATE, 1, sizeof *p);
    if (!p) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for the prefix tree");
    p->m = m;
    p->root.depth = -1;
    p->page_tok = m5_model_page_tok(m);
    p->recurrent = m5_model_recurrent(m);
    p->page_bytes = m5_model_page_bytes(m);
    p->row_bytes = m5_model_row_bytes(m);
    p->st.budget_bytes = budget_bytes;
    *out = p;
    return 0;
}

/* ---- removing ---- */

static void drop_point(m5_prefix *p, checkpoint **at)
{
    checkpoint *c = *at;
    *at = c->next;
    m5_row_unref(c->row);
    m5_free(c);
    p->st.n_checkpoint--;
    p->st.bytes -= p->row_bytes;
}

static void unlink_node(m5_prefix *p, node *n)
{
    node **at = &n->parent->child;
    while (*at != n) at = &(*at)->next;
    *at = n->next;
    while (n->points) drop_point(p, &n->points);
    m5_page_unref(p->m, n->page);
    m5_free(n);
    p->st.n_node--;
    p->st.bytes -= p->page_bytes;
}

/* Next node in an order that visits children before their parent; NULL after the last. Start with first_leaf(root). */
static node *first_leaf(node *n)
{
    while (n->child) n = n->child;
    return n;
}

static node *next_postorder(const m5_prefix *p, node *n)
{
    if (n == &p->root) return NULL;
    return n->next ? first_leaf(n->next) : n->parent;
}

void m5_prefix_clear(m5_prefix *p)
{
    if (!p) return;
    for (node *n = first_leaf(&p->root), *next; n != &p->root; n = next) {
        next = next_postorder(p, n);
        unlink_node(p, n);
    }
}

void m5_prefix_close(m5_prefix *p)
{
    if (!p) return;
    m5_prefix_clear(p);
    m5_free(p->pages);
    m5_free(p);
}

/* Position of the nearest checkpoint before `pos` on the way to the root, 0 if none. */
static int previous_point(const node *n, int pos)
{
    for (; n->depth >= 0; n = n->parent)
        for (const checkpoint *c = n->points; c; c = c->next)
            if (c->pos < pos) return c->pos;
    return 0;
}

/* Tokens saved per byte, aged. */
static double worth(const m5_prefix *p, double n_tok, size_t bytes, uint64_t last_used)
{
    return n_tok / (double)bytes / (double)(p->tick - last_used + 1);
}

typedef struct victim {
    node *n;
    checkpoint **point; /* NULL: the leaf itself */
    double worth;
} victim;

static victim find_victim(m5_prefix *p)
{
    victim v = {0};
    for (node *n = first_leaf(&p->root); n && n != &p->root; n = next_postorder(p, n)) {
        for (checkpoint **at = &n->points; *at; at = &(*at)->next) {
            if ((*at)->last_used == p->tick) continue;
            double w = worth(p, (*at)->pos - previous_point(n, (*at)->pos), p->row_bytes, (*at)->last_used);
            if (!v.n || w < v.worth) v = (victim){n, at, w};
        }
        /* A leaf that still has a checkpoint goes after it. */
        if (n->child || n->points || n->last_used == p->tick) continue;
        double w = p->recurrent ? 0 : worth(p, n->n_tok, p->page_bytes, n->last_used);
        if (!v.n || w < v.worth) v = (victim){n, NULL, w};
    }
    return v;
}

/* What the running operation has marked with the current tick stays. */
static bool evict(m5_prefix *p, uint64_t n_bytes)
{
    uint64_t before = p->st.bytes;
    while (before - p->st.bytes < n_bytes) {
        victim v = find_victim(p);
        if (!v.n) break;
        if (v.point)
            drop_point(p, v.point);
        else
            unlink_node(p, v.n);
    }
    p->st.n_evicted_bytes += before - p->st.bytes;
    return p->st.bytes < before;
}

bool m5_prefix_evict(m5_prefix *p, uint64_t n_bytes)
{
    if (!p) return false;
    p->tick++;
    return evict(p, n_bytes);
}

/* Makes room for n_bytes under the budget. False when the budget cannot hold them at all. */
static bool make_room(m5_prefix *p, uint64_t n_bytes)
{
    if (n_bytes > p->st.budget_bytes) return false;
    uint64_t limit = p->st.budget_bytes - n_bytes;
    if (p->st.bytes > limit) evict(p, p->st.bytes - limit);
    return p->st.bytes <= limit;
}

/* ---- finding ---- */

static int common(const int32_t *a, const int32_t *b, int n)
{
    int i = 0;
    while (i < n && a[i] == b[i]) i++;
    return i;
}

typedef struct lookup {
    const node *at;       /* node that holds the resume position, NULL = nothing */
    const checkpoint *cp; /* its checkpoint with recurrent layers */
    int pos;              /* tokens to resume */
    int n_common;
    int32_t stored;
} lookup;

/* Best resume position in node n when c of its tokens agree and at most `limit` tokens may be resumed. */
static void consider(const m5_prefix *p, const node *n, int c, int limit, lookup *best)
{
    int base = n->depth * p->page_tok;
    if (base + c > best->n_common) {
        best->n_common = base + c;
        best->stored = c < n->n_tok ? n->ids[c] : -1;
    }
    if (!p->recurrent) {
        int pos = base + c < limit ? base + c : limit;
        if (pos > best->pos) *best = (lookup){n, NULL, pos, best->n_common, best->stored};
        return;
    }
    for (const checkpoint *k = n->points; k; k = k->next) {
        if (k->pos > base + c || k->pos > limit) continue;
        if (k->pos > best->pos) *best = (lookup){n, k, k->pos, best->n_common, best->stored};
        break;
    }
}

static lookup find(const m5_prefix *p, const int32_t *ids, int n)
{
    lookup best = {.stored = -1};
    const node *at = &p->root;
    int limit = n - 1;
    while (at) {
        int base = (at->depth + 1) * p->page_tok, left = n - base;
        const node *down = NULL;
        for (const node *c = at->child; c && left > 0; c = c->next) {
            int k = common(c->ids, ids + base, c->n_tok < left ? c->n_tok : left);
            if (k == 0) {
                if (base == best.n_common && best.stored < 0) best.stored = c->ids[0];
                continue;
            }
            consider(p, c, k, limit, &best);
            if (k == p->page_tok) down = c;
        }
        at = down;
    }
    return best;
}

int m5_prefix_common(const m5_prefix *p, const int32_t *ids, int n)
{
    return p ? find(p, ids, n + 1).n_common : 0;
}

int m5_prefix_follow(const m5_prefix *p, const int32_t *ids, int n, int branch, int32_t *out, int cap)
{
    const node *at = p ? &p->root : NULL;
    int base = 0, k = 0;
    for (; at && n - base >= p->page_tok; base += p->page_tok) {
        const node *c = at->child;
        while (c && (c->n_tok < p->page_tok || common(c->ids, ids + base, p->page_tok) < p->page_tok)) c = c->next;
        at = c;
    }
    if (!at) return 0;
    const node *c = at->child;
    for (; c; c = c->next)
        if (c->n_tok > n - base && common(c->ids, ids + base, n - base) == n - base && branch-- == 0) break;
    for (int skip = n - base; c && k < cap; skip = 0) {
        for (int i = skip; i < c->n_tok && k < cap; i++) out[k++] = c->ids[i];
        const node *best = NULL;
        for (const node *d = c->child; d; d = d->next)
            if (!best || d->last_used > best->last_used) best = d;
        c = best;
    }
    return k;
}

int m5_prefix_probe(const m5_prefix *p, const int32_t *ids, int n)
{
    return p ? find(p, ids, n).pos : 0;
}

/* Fills p->pages with the pages from the root to n and marks the nodes as used. */
static bool path_pages(m5_prefix *p, node *n)
{
    int n_page = n->depth + 1;
    if (n_page > p->cap_pages) {
        m5_page **more = m5_realloc(M5_MEM_STATE, p->pages, (size_t)n_page * 2 * sizeof(m5_page *));
        if (!more) return false;
        p->pages = more;
        p->cap_pages = 2 * n_page;
    }
    for (; n->depth >= 0; n = n->parent) {
        p->pages[n->depth] = n->page;
        n->last_used = p->tick;
    }
    return true;
}

void m5_prefix_resume(m5_prefix *p, m5_seq *s, const int32_t *ids, int n, m5_prefix_match *match)
{
    *match = (m5_prefix_match){.stored = -1};
    m5_seq_reset(s);
    if (!p || p->st.budget_bytes == 0) return;
    lookup best = find(p, ids, n);
    match->n_common = best.n_common;
    match->stored = best.stored;
    p->st.n_lookup++;
    p->st.n_prompt_tokens += (uint64_t)n;
    if (!best.at) return;
    p->tick++;
    if (!path_pages(p, (node *)best.at)) return;
    if (best.cp) ((checkpoint *)best.cp)->last_used = p->tick;
    if (m5_seq_restore(s, p->pages, best.pos, best.cp ? best.cp->row->data : NULL, NULL) != 0) return;
    match->n_resumed = best.pos;
    p->st.n_hit++;
    p->st.n_hit_tokens += (uint64_t)best.pos;
}

/* ---- keeping ---- */

/* A page to keep, with an owner more: the given one, or page `depth` of s. */
static m5_page *page_for(const m5_seq *s, m5_page *given, int depth)
{
    if (!given) return m5_seq_page_ref(s, depth);
    m5_page_ref(given);
    return given;
}

/* The child of `at` that holds ids[0..n_tok) of the next page: one that has these tokens already, or a tail that they extend (its page is replaced by
 * the longer one, which has the same bits up to there), or a new one. NULL when there is no room. */
static node *child_for(m5_prefix *p, node *at, const m5_seq *s, m5_page *given, const int32_t *ids, int n_tok)
{
    node *tail = NULL;
    for (node *c = at->child; c; c = c->next) {
        int k = common(c->ids, ids, c->n_tok < n_tok ? c->n_tok : n_tok);
        if (k == n_tok) return c;
        if (k == c->n_tok && (!tail || c->n_tok > tail->n_tok)) tail = c;
    }
    int depth = at->depth + 1;
    if (tail) {
        m5_page_unref(p->m, tail->page);
        tail->page = page_for(s, given, depth);
        memcpy(tail->ids, ids, (size_t)n_tok * sizeof *ids);
        tail->n_tok = n_tok;
        return tail;
    }
    node *c = m5_alloc(M5_MEM_STATE, sizeof *c + (size_t)p->page_tok * sizeof(int32_t));
    if (!c) return NULL;
    *c = (node){.parent = at, .next = at->child, .depth = depth, .n_tok = n_tok, .last_used = p->tick};
    c->ids = (int32_t *)(c + 1);
    memcpy(c->ids, ids, (size_t)n_tok * sizeof *ids);
    c->page = page_for(s, given, depth);
    at->child = c;
    p->st.n_node++;
    p->st.bytes += p->page_bytes;
    return c;
}

/* Adds or refreshes the checkpoint at pos in n: a copy of the row of s, or the given row (one owner more). */
static bool put_point(m5_prefix *p, node *n, m5_seq *s, m5_row *given, int pos)
{
    checkpoint **at = &n->points;
    while (*at && (*at)->pos > pos) at = &(*at)->next;
    if (*at && (*at)->pos == pos) {
        (*at)->last_used = p->tick;
        return true;
    }
    checkpoint *c = m5_alloc(M5_MEM_STATE, sizeof *c);
    m5_row *row = given ? m5_row_ref(given) : m5_row_new(p->row_bytes);
    if (!c || !row) {
        m5_free(c);
        m5_row_unref(row);
        return false;
    }
    if (!given) m5_seq_row_save(s, row->data);
    *c = (checkpoint){.next = *at, .pos = pos, .last_used = p->tick, .row = row};
    *at = c;
    p->st.n_checkpoint++;
    p->st.bytes += p->row_bytes;
    return true;
}

void m5_prefix_save(m5_prefix *p, m5_seq *s, const int32_t *ids, bool checkpoint_too)
{
    int pos = m5_seq_pos(s);
    if (!p || p->st.budget_bytes == 0 || pos == 0) return;
    bool row = checkpoint_too && p->recurrent;
    /* What is missing, at most; the rest of the path is there already or becomes shared. A path that alone exceeds the budget is not kept. */
    int n_page = (pos + p->page_tok - 1) / p->page_tok, have = find(p, ids, pos + 1).n_common / p->page_tok;
    uint64_t need = (uint64_t)(n_page - have) * p->page_bytes + (row ? p->row_bytes : 0);
    if ((uint64_t)n_page * p->page_bytes + (row ? p->row_bytes : 0) > p->st.budget_bytes) return;
    p->tick++;
    /* The existing part of the path is marked as just used before anything is evicted. */
    node *at = &p->root;
    for (int i = 0; i < have; i++) {
        for (at = at->child; at && common(at->ids, ids + i * p->page_tok, p->page_tok) != p->page_tok;) at = at->next;
        if (!at) return;
        at->last_used = p->tick;
    }
    if (!make_room(p, need)) return;
    at = &p->root;
    for (int i = 0; i < n_page; i++) {
        int n_tok = pos - i * p->page_tok < p->page_tok ? pos - i * p->page_tok : p->page_tok;
        at = child_for(p, at, s, NULL, ids + (size_t)i * (size_t)p->page_tok, n_tok);
        if (!at) return;
        at->last_used = p->tick;
    }
    if (row) put_point(p, at, s, NULL, pos);
}

/* The child of `at` whose first n_tok tokens are ids. */
static node *exact_child(const node *at, const int32_t *ids, int n_tok)
{
    for (node *c = at->child; c; c = c->next)
        if (c->n_tok >= n_tok && common(c->ids, ids, n_tok) == n_tok) return c;
    return NULL;
}

/* The node that holds position n_tok of ids, NULL when the path is not complete. Marks it as used. */
static node *exact_path(m5_prefix *p, const int32_t *ids, int n_tok)
{
    node *at = &p->root;
    for (int base = 0; at && base < n_tok; base += p->page_tok) {
        at = exact_child(at, ids + base, n_tok - base < p->page_tok ? n_tok - base : p->page_tok);
        if (at) at->last_used = p->tick;
    }
    return at;
}

bool m5_prefix_export(m5_prefix *p, const int32_t *ids, int n_tok, m5_page *const **pages, m5_row **row)
{
    *row = NULL;
    if (!p || n_tok < 1) return false;
    p->tick++;
    node *n = exact_path(p, ids, n_tok);
    if (!n) return false;
    if (p->recurrent) {
        const checkpoint *c = n->points;
        while (c && c->pos != n_tok) c = c->next;
        if (!c) return false;
        *row = c->row;
    }
    if (!path_pages(p, n)) return false;
    *pages = p->pages;
    return true;
}

bool m5_prefix_import(m5_prefix *p, const int32_t *ids, int n_tok, int first_page, m5_page **pages, int n_page, m5_row *row)
{
    bool ok = false;
    p->tick++;
    node *at = exact_path(p, ids, first_page * p->page_tok);
    if (at && make_room(p, (uint64_t)n_page * p->page_bytes + (row ? p->row_bytes : 0))) {
        for (int i = 0; i < n_page && at; i++) {
            int base = (first_page + i) * p->page_tok, k = n_tok - base < p->page_tok ? n_tok - base : p->page_tok;
            at = child_for(p, at, NULL, pages[i], ids + base, k);
            if (at) at->last_used = p->tick;
        }
        ok = at && (!row || put_point(p, at, NULL, row, n_tok));
    }
    for (int i = 0; i < n_page; i++) m5_page_unref(p->m, pages[i]);
    m5_row_unref(row);
    return ok;
}

void m5_prefix_get_stats(const m5_prefix *p, m5_prefix_stats *out)
{
    *out = p ? p->st : (m5_prefix_stats){0};
}
