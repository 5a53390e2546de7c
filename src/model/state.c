/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of sequences: pages of K and V, recurrent rows, rings of pending inputs; their budget, sharing, copying and rollback. Room: model/state.c,
 * the only owner of sequence memory. Not here: what is written into it (mix_attn.c, mix_gdn.c).
 *
 *   page   [ owners | layer 0: K rows, V rows | layer 1 ... ]        K rows = page_tok x one token of n_head_kv x head_dim
 *   row    [ layer 0: S, conv tail | layer 1 ... ]                   gated delta net layers only, f32
 *   ring   [ layer 0: max_draft x (conv input, b, a) | layer 1 ... ] rows held by the last forward or accepted since */
#include "model/state.h"

#include <string.h>

#include "base/mem.h"
#include "model/internal.h"

enum { PAGE_HEAD_BYTES = 64, SLAB_BYTES = 16 << 20 };

/* Pages of one allocation: the first n_cut have been handed out at least once, the freed ones among them wait in the list. */
typedef struct m5_page_slab {
    struct m5_page_slab *next;
    uint8_t *base;
    m5_page *kept;
    int n_page, n_cut, n_live;
} page_slab;

struct m5_page {
    int64_t n_owner;
    page_slab *slab;
    m5_page *next_kept;
};

static m5_page *page_of(uint8_t *data)
{
    return (m5_page *)(void *)(data - PAGE_HEAD_BYTES);
}

/* ---- blocks ---- */

static bool drop_slab(m5_block_pool *p)
{
    for (page_slab **at = &p->slabs; *at; at = &(*at)->next) {
        page_slab *s = *at;
        if (s->n_live > 0) continue;
        *at = s->next;
        p->used_bytes -= (uint64_t)s->n_page * p->bytes[M5_BLOCK_PAGE];
        m5_free(s->base);
        m5_free(s);
        return true;
    }
    return false;
}

/* Gives memory that nobody uses back to the system. */
static bool drop_kept(m5_block_pool *p)
{
    for (int k = M5_BLOCK_ROW; k < M5_BLOCK_KINDS; k++) {
        void *b = p->kept[k];
        if (!b) continue;
        memcpy(&p->kept[k], b, sizeof(void *));
        p->used_bytes -= p->bytes[k];
        m5_free(b);
        return true;
    }
    return drop_slab(p);
}

/* Memory within the budget, new from the system; kept blocks make way. */
static void *budget_alloc(m5_block_pool *p, size_t bytes)
{
    void *b = NULL;
    while (p->budget_bytes && p->used_bytes + bytes > p->budget_bytes)
        if (!drop_kept(p)) return NULL;
    while (!(b = m5_alloc(M5_MEM_STATE, bytes)))
        if (!drop_kept(p)) return NULL;
    m5_mem_huge_hint(b, bytes);
    p->used_bytes += bytes;
    return b;
}

static void *block_new(m5_block_pool *p, m5_block_kind k)
{
    void *b = p->kept[k];
    if (b) {
        memcpy(&p->kept[k], b, sizeof(void *));
    } else if (!(b = budget_alloc(p, p->bytes[k]))) {
        return NULL;
    }
    p->n_live[k]++;
    return b;
}

static void block_free(m5_block_pool *p, m5_block_kind k, void *b)
{
    if (!b) return;
    memcpy(b, &p->kept[k], sizeof(void *));
    p->kept[k] = b;
    p->n_live[k]--;
}

/* A slab takes at most a sixteenth of the budget, and less when that is left. */
static page_slab *slab_new(m5_block_pool *p)
{
    const size_t page = p->bytes[M5_BLOCK_PAGE];
    uint64_t want = SLAB_BYTES;
    if (p->budget_bytes && want > p->budget_bytes / 16) want = p->budget_bytes / 16;
    const int n = want > page ? (int)(want / page) : 1;
    page_slab *s = m5_calloc(M5_MEM_STATE, 1, sizeof *s);
    if (!s) return NULL;
    s->n_page = n;
    s->base = budget_alloc(p, (size_t)n * page);
    if (!s->base && n > 1) {
        s->n_page = 1;
        s->base = budget_alloc(p, page);
    }
    if (!s->base) {
        m5_free(s);
        return NULL;
    }
    s->next = p->slabs;
    p->slabs = s;
    return s;
}

static m5_page *page_new(m5_block_pool *p)
{
    page_slab *s = p->slabs;
    while (s && s->n_live == s->n_page) s = s->next;
    if (!s && !(s = slab_new(p))) return NULL;
    m5_page *page = s->kept;
    if (page) {
        s->kept = page->next_kept;
    } else {
        page = (m5_page *)(void *)(s->base + (size_t)s->n_cut++ * p->bytes[M5_BLOCK_PAGE]);
    }
    page->slab = s;
    page->n_owner = 1;
    s->n_live++;
    p->n_live[M5_BLOCK_PAGE]++;
    return page;
}

static void page_free(m5_block_pool *p, m5_page *page)
{
    page->next_kept = page->slab->kept;
    page->slab->kept = page;
    page->slab->n_live--;
    p->n_live[M5_BLOCK_PAGE]--;
}

static size_t round64(size_t n)
{
    return (n + 63) / 64 * 64;
}

int m5_state_open(m5_model *m, uint64_t budget_bytes, m5_error *err)
{
    const m5_config *c = m->cfg;
    m5_gdn_args g = {.n_k_head = c->gdn_n_k_head, .n_v_head = c->gdn_n_v_head, .k_dim = c->gdn_k_dim, .v_dim = c->gdn_v_dim};
    size_t page = PAGE_HEAD_BYTES, row = 0, ring = 0;
    for (int l = 0; l < c->n_layer + (m->mtp ? 1 : 0); l++) {
        const m5_layer_config *lc = l < c->n_layer ? &c->layers[l] : &c->mtp_layer;
        m5_layer_mem *mem = &m->mem[l];
        if (lc->mixer == M5_MIX_GDN) {
            mem->state = row;
            mem->tail = row + (size_t)c->gdn_n_v_head * (size_t)c->gdn_k_dim * (size_t)c->gdn_v_dim;
            row = round64(mem->tail + (size_t)(c->gdn_conv - 1) * (size_t)m5_gdn_channels(c));
            mem->ring = ring;
            ring = round64(ring + (size_t)m->max_draft * m5_gdn_ring_floats(&g));
        } else if (l < c->n_layer && lc->kv_donor != l) {
            *mem = m->mem[lc->kv_donor];
        } else {
            const size_t bytes = round64((size_t)m->page_tok * m5_kv_row_bytes(m->kv_type, lc->n_head_kv, lc->head_dim));
            mem->k_offset = page - PAGE_HEAD_BYTES;
            mem->v_offset = mem->k_offset + bytes;
            page += 2 * bytes;
        }
    }
    m->pool.budget_bytes = budget_bytes;
    m->pool.bytes[M5_BLOCK_PAGE] = page;
    m->pool.bytes[M5_BLOCK_ROW] = row * sizeof(float);
    m->pool.bytes[M5_BLOCK_RING] = ring * sizeof(float);
    if (budget_bytes && budget_bytes < page + (row + ring) * sizeof(float))
        return m5_error_set(err, M5_ERR_ARG, "a state budget of %llu bytes cannot hold one sequence (%zu bytes)", (unsigned long long)budget_bytes,
                            page + (row + ring) * sizeof(float));
    return 0;
}

void m5_state_close(m5_model *m)
{
    while (drop_kept(&m->pool)) {}
}

size_t m5_model_page_bytes(const m5_model *m)
{
    return m->pool.bytes[M5_BLOCK_PAGE] - PAGE_HEAD_BYTES;
}
int m5_model_page_tok(const m5_model *m)
{
    return m->page_tok;
}
bool m5_model_recurrent(const m5_model *m)
{
    return m->has_gdn;
}
size_t m5_model_kv_bytes_per_tok(const m5_model *m)
{
    return m5_model_page_bytes(m) / (size_t)m->page_tok;
}
size_t m5_model_row_bytes(const m5_model *m)
{
    return m->pool.bytes[M5_BLOCK_ROW];
}

uint64_t m5_model_state_used(const m5_model *m)
{
    uint64_t n = 0;
    for (int k = 0; k < M5_BLOCK_KINDS; k++) n += (uint64_t)m->pool.n_live[k] * m->pool.bytes[k];
    return n;
}

uint64_t m5_model_state_copies(const m5_model *m)
{
    return m->n_copy;
}

/* ---- pages ---- */

m5_page *m5_page_new(m5_model *m)
{
    m5_page *p = page_new(&m->pool);
    if (!p) return NULL;
    /* The next-token head may skip tokens; their keys must then be harmless. */
    if (m->mtp) memset(m5_page_data(p), 0, m5_model_page_bytes(m));
    return p;
}

void m5_page_ref(m5_page *p)
{
    p->n_owner++;
}

void m5_page_unref(m5_model *m, m5_page *p)
{
    if (p && --p->n_owner == 0) page_free(&m->pool, p);
}

void *m5_page_data(m5_page *p)
{
    return (uint8_t *)(void *)p + PAGE_HEAD_BYTES;
}

m5_page *m5_seq_page_ref(const m5_seq *s, int i)
{
    m5_page *p = page_of(s->pages[i]);
    p->n_owner++;
    return p;
}

static int pages_for(const m5_model *m, int n_tok)
{
    return (int)(((int64_t)n_tok + m->page_tok - 1) / m->page_tok);
}

static void cut_pages(m5_seq *s, int n_page)
{
    while (s->n_page > n_page) m5_page_unref(s->m, page_of(s->pages[--s->n_page]));
}

void m5_seq_trim(m5_seq *s)
{
    cut_pages(s, pages_for(s->m, s->pos));
}

static int grow_table(m5_seq *s, int n_page)
{
    if (n_page <= s->cap_page) return 0;
    int cap = s->cap_page ? s->cap_page : 16;
    while (cap < n_page) cap *= 2;
    uint8_t **p = m5_realloc(M5_MEM_STATE, s->pages, (size_t)cap * sizeof *p);
    if (!p) return M5_ERR_NOMEM;
    s->pages = p;
    s->cap_page = cap;
    return 0;
}

static int out_of_state(const m5_model *m, m5_error *err)
{
    return m5_error_set(err, M5_ERR_NOMEM, "sequence memory is used up (%llu of %llu bytes)", (unsigned long long)m->pool.used_bytes,
                        (unsigned long long)m->pool.budget_bytes);
}

int m5_seq_reserve(m5_seq *s, int from, int to, bool ring, m5_error *err)
{
    m5_model *m = s->m;
    const int n_page = pages_for(m, to);
    if (grow_table(s, n_page) < 0) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for a table of %d pages", n_page);
    for (int i = from / m->page_tok; i < n_page; i++) {
        if (i < s->n_page && page_of(s->pages[i])->n_owner == 1) continue;
        m5_page *p = m5_page_new(m);
        if (!p) return out_of_state(m, err);
        if (i < s->n_page) {
            memcpy(m5_page_data(p), s->pages[i], m5_model_page_bytes(m));
            m->n_copy++;
            m5_page_unref(m, page_of(s->pages[i]));
        } else {
            s->n_page = i + 1;
        }
        s->pages[i] = m5_page_data(p);
    }
    if (ring && m->has_gdn && !s->ring && !(s->ring = block_new(&m->pool, M5_BLOCK_RING))) return out_of_state(m, err);
    return 0;
}

int m5_seq_ready_hold(m5_seq *s, m5_error *err)
{
    return m5_seq_reserve(s, s->pos, s->pos, true, err);
}

bool m5_seq_holds(const m5_seq *s)
{
    return !s->m->has_gdn || s->ring;
}

bool m5_seq_drop_hold(m5_seq *s)
{
    if (!s->ring) return false;
    m5_seq_settle(s);
    block_free(&s->m->pool, M5_BLOCK_RING, s->ring);
    s->ring = NULL;
    return true;
}

size_t m5_model_hold_bytes(const m5_model *m)
{
    return m->pool.bytes[M5_BLOCK_RING];
}

/* ---- sequences ---- */

int m5_seq_new(m5_seq **out, m5_model *m, m5_error *err)
{
    *out = NULL;
    m5_seq *s = m5_calloc(M5_MEM_STATE, 1, sizeof *s);
    if (!s) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for a sequence");
    s->m = m;
    if (m->has_gdn && !(s->row = block_new(&m->pool, M5_BLOCK_ROW))) {
        m5_free(s);
        return out_of_state(m, err);
    }
    m->n_seq++;
    m5_seq_reset(s);
    *out = s;
    return 0;
}

void m5_seq_free(m5_seq *s)
{
    if (!s) return;
    cut_pages(s, 0);
    block_free(&s->m->pool, M5_BLOCK_ROW, s->row);
    block_free(&s->m->pool, M5_BLOCK_RING, s->ring);
    s->m->n_seq--;
    m5_free(s->pages);
    m5_free(s);
}

int m5_seq_pos(const m5_seq *s)
{
    return s->pos;
}

void m5_seq_reset(m5_seq *s)
{
    cut_pages(s, 0);
    s->pos = s->n_held = s->n_pending = 0;
    s->settled = (m5_layer_set){0};
    if (s->row) memset(s->row, 0, s->m->pool.bytes[M5_BLOCK_ROW]);
}

void m5_seq_commit(m5_seq *s, int n)
{
    M5_ASSERT(n >= 0 && n <= s->n_held);
    s->pos += n;
    s->n_pending = s->m->has_gdn ? n : 0;
    s->settled = (m5_layer_set){0};
    s->n_held = 0;
}

int m5_seq_fork(m5_seq **out, const m5_seq *s, m5_error *err)
{
    m5_model *m = s->m;
    int rc = m5_seq_new(out, m, err);
    if (rc < 0) return rc;
    m5_seq *f = *out;
    const int n_page = pages_for(m, s->pos);
    if (grow_table(f, n_page) < 0 || (s->n_pending && !(f->ring = block_new(&m->pool, M5_BLOCK_RING)))) {
        m5_seq_free(f);
        *out = NULL;
        return out_of_state(m, err);
    }
    for (int i = 0; i < n_page; i++) {
        page_of(s->pages[i])->n_owner++;
        f->pages[i] = s->pages[i];
    }
    f->n_page = n_page;
    f->pos = s->pos;
    f->n_pending = s->n_pending;
    f->settled = s->settled;
    m->n_copy++;
    if (f->row) memcpy(f->row, s->row, m->pool.bytes[M5_BLOCK_ROW]);
    if (f->ring) memcpy(f->ring, s->ring, m->pool.bytes[M5_BLOCK_RING]);
    return 0;
}

void m5_seq_settle(m5_seq *s)
{
    M5_ASSERT(s->n_held == 0);
    if (!s->n_pending) return;
    for (int l = 0; l < s->m->cfg->n_layer; l++)
        if (s->m->cfg->layers[l].mixer == M5_MIX_GDN && m5_layer_in(&s->m->layers, l) && !m5_layer_in(&s->settled, l))
            m5_mix_gdn_settle(s->m, s, l);
    s->n_pending = 0;
    s->settled = (m5_layer_set){0};
}

void m5_seq_row_save(m5_seq *s, void *dst)
{
    m5_seq_settle(s);
    if (s->row) memcpy(dst, s->row, s->m->pool.bytes[M5_BLOCK_ROW]);
    s->m->n_copy++;
}

int m5_seq_restore(m5_seq *s, m5_page *const *pages, int n_tok, const void *row, m5_error *err)
{
    const int n_page = pages_for(s->m, n_tok);
    M5_ASSERT(!s->row == !row || n_tok == 0);
    if (grow_table(s, n_page) < 0) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for a table of %d pages", n_page);
    for (int i = 0; i < n_page; i++) pages[i]->n_owner++;
    m5_seq_reset(s);
    for (int i = 0; i < n_page; i++) s->pages[i] = m5_page_data(pages[i]);
    s->n_page = n_page;
    s->pos = n_tok;
    if (s->row && row) memcpy(s->row, row, s->m->pool.bytes[M5_BLOCK_ROW]);
    s->m->n_copy++;
    return 0;
}

int m5_seq_truncate(m5_seq *s, int n_tok, m5_error *err)
{
    if (n_tok < 0 || n_tok > s->pos) return m5_error_set(err, M5_ERR_ARG, "cannot cut a sequence of %d tokens at %d", s->pos, n_tok);
    s->n_held = 0;
    if (n_tok == s->pos) return 0;
    if (n_tok == 0) {
        m5_seq_reset(s);
        return 0;
    }
    if (s->m->has_gdn)
        return m5_error_set(err, M5_ERR_UNSUPPORTED, "a recurrent state at token %d cannot be cut back to %d; restore a saved row", s->pos, n_tok);
    s->pos = n_tok;
    m5_seq_trim(s);
    return 0;
}
