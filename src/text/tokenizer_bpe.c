/* SPDX-License-Identifier: Apache-2.0 */
/* The merge model: one unit of text -> ids. Ranked merges (BPE) and SentencePiece scores share the machinery: the pair of smallest
 * (priority, position) is merged first, until none is left. Short units scan for the minimum, long ones keep a heap: O(n log n). */
#include "text/tokenizer_internal.h"

#include <string.h>

#define SCAN_MAX 24 /* symbols up to which the scan beats the heap */

static void best_pair(const tok_work *w, const char *p, tok_sym *a)
{
    const m5_tokenizer *t = w->t;
    a->prio = TOK_NONE;
    if (a->next < 0) return;
    const tok_sym *b = &w->sym[a->next];
    if (t->by_score) {
        int32_t id = m5_tok_vocab_find(t, p + a->begin, (size_t)a->n + b->n);
        if (id < 0 || !(t->entry[id].flags & TOK_MODEL)) return;
        a->prio = t->prio[id];
        a->merged = id;
        return;
    }
    if (a->id < 0 || b->id < 0) return;
    uint64_t key = (uint64_t)(uint32_t)a->id << 32 | (uint32_t)b->id;
    for (size_t at = m5_tok_pair_hash(key) & (t->cap_merge - 1); t->merge[at].key != UINT64_MAX; at = (at + 1) & (t->cap_merge - 1)) {
        if (t->merge[at].key != key) continue;
        a->prio = t->merge[at].rank;
        a->merged = t->merge[at].id;
        return;
    }
}

static bool item_less(tok_heap_item a, tok_heap_item b)
{
    return a.prio != b.prio ? a.prio < b.prio : a.pos < b.pos;
}

static int heap_push(tok_work *w, int32_t pos)
{
    const tok_sym *s = &w->sym[pos];
    if (s->prio == TOK_NONE) return 0;
    if (w->n_heap == w->cap_heap) {
        size_t cap = w->cap_heap ? w->cap_heap * 2 : 256;
        tok_heap_item *h = m5_realloc(M5_MEM_SCRATCH, w->heap, cap * sizeof *h);
        if (!h) return m5_error_set(w->err, M5_ERR_NOMEM, "out of memory while tokenizing");
        w->heap = h;
        w->cap_heap = cap;
    }
    tok_heap_item item = {s->prio, pos, s->merged};
    size_t i = w->n_heap++;
    while (i && item_less(item, w->heap[(i - 1) / 2])) {
        w->heap[i] = w->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    w->heap[i] = item;
    return 0;
}

static tok_heap_item heap_pop(tok_work *w)
{
    tok_heap_item top = w->heap[0], last = w->heap[--w->n_heap];
    size_t i = 0;
    for (;;) {
        size_t c = 2 * i + 1;
        if (c >= w->n_heap) break;
        if (c + 1 < w->n_heap && item_less(w->heap[c + 1], w->heap[c])) c++;
        if (!item_less(w->heap[c], last)) break;
        w->heap[i] = w->heap[c];
        i = c;
    }
    w->heap[i] = last;
    return top;
}

/* Joins the symbol with the next one and looks up the two pairs that changed. */
static void merge_at(tok_work *w, const char *p, int32_t pos)
{
    tok_sym *a = &w->sym[pos], *b = &w->sym[a->next];
    a->id = a->merged;
    a->n += b->n;
    a->next = b->next;
    b->n = 0;
    b->prio = TOK_NONE;
    if (a->next >= 0) w->sym[a->next].prev = pos;
    best_pair(w, p, a);
    if (a->prev >= 0) best_pair(w, p, &w->sym[a->prev]);
}

static int merge_all(tok_work *w, const char *p, size_t n_sym)
{
    for (size_t i = 0; i < n_sym; i++) best_pair(w, p, &w->sym[i]);
    if (n_sym <= SCAN_MAX) {
        for (;;) {
            uint32_t best = TOK_NONE;
            int32_t at = -1;
            for (int32_t i = 0; i >= 0; i = w->sym[i].next) {
                if (w->sym[i].prio < best) {
                    best = w->sym[i].prio;
                    at = i;
                }
            }
            if (at < 0) return 0;
            merge_at(w, p, at);
        }
    }
    w->n_heap = 0;
    int rc = 0;
    for (size_t i = 0; i < n_sym && !rc; i++) rc = heap_push(w, (int32_t)i);
    while (w->n_heap && !rc) {
        tok_heap_item top = heap_pop(w);
        const tok_sym *s = &w->sym[top.pos];
        if (s->prio != top.prio || s->merged != top.merged) continue; /* the pair has changed since */
        merge_at(w, p, top.pos);
        rc = heap_push(w, top.pos);
        if (!rc && s->prev >= 0) rc = heap_push(w, s->prev);
    }
    return rc;
}

static void add_sym(tok_work *w, size_t *n_sym, int32_t id, size_t begin, size_t n)
{
    tok_sym *s = &w->sym[*n_sym];
    *s = (tok_sym){.id = id, .prev = (int32_t)*n_sym - 1, .next = -1, .prio = TOK_NONE, .begin = (uint32_t)begin, .n = (uint32_t)n};
    if (*n_sym) w->sym[*n_sym - 1].next = (int32_t)*n_sym;
    ++*n_sym;
}

/* Id of the character p[i..i+k) as the vocabulary spells it: byte alphabet, prefix inside a unit, suffix at its end. */
static int32_t char_id(tok_work *w, const char *p, size_t n, size_t i, size_t k, m5_slice *spelled)
{
    const m5_tokenizer *t = w->t;
    if (!t->sub_prefix.n && !t->word_suffix.n) {
        *spelled = (m5_slice){p + i, k};
        if (t->byte_mode) return t->byte_id[(uint8_t)p[i]];
        int32_t id = m5_tok_vocab_find(t, p + i, k);
        return id >= 0 && t->entry[id].flags & TOK_MODEL ? id : -1;
    }
    m5_buf_clear(&w->scratch);
    if (i) m5_buf_slice(&w->scratch, t->sub_prefix);
    if (t->byte_mode)
        m5_buf_codepoint(&w->scratch, m5_tok_byte_to_cp((uint8_t)p[i]));
    else
        m5_buf_append(&w->scratch, p + i, k);
    if (i + k == n) m5_buf_slice(&w->scratch, t->word_suffix);
    *spelled = m5_buf_view(&w->scratch);
    int32_t id = m5_tok_vocab_find(t, spelled->p, spelled->n);
    return id >= 0 && t->entry[id].flags & TOK_MODEL ? id : -1;
}

static bool has_fallback(const m5_tokenizer *t, m5_slice s)
{
    if (!t->byte_fallback) return false;
    for (size_t i = 0; i < s.n; i++) {
        if (t->fallback_id[(uint8_t)s.p[i]] < 0) return false;
    }
    return s.n > 0;
}

/* First symbols of a unit. Ranked merges replace unknown characters here, so that an unknown token or a run of byte tokens stands between its
 * neighbours; with scores unknown characters stay (id -1) and may still become part of a longer piece. */
static int first_symbols(tok_work *w, const char *p, size_t n, size_t *n_sym)
{
    const m5_tokenizer *t = w->t;
    size_t unk_begin = 0, unk_n = 0;
    bool unk = false;
    for (size_t i = 0, k; i < n; i += k) {
        uint32_t cp;
        int len = t->byte_mode ? 1 : m5_utf8_decode(p + i, n - i, &cp);
        k = len > 0 ? (size_t)len : 1;
        m5_slice spelled;
        int32_t id = char_id(w, p, n, i, k, &spelled);
        if (id >= 0 || t->by_score) {
            if (unk) add_sym(w, n_sym, w->unk, unk_begin, unk_n);
            unk = false;
            add_sym(w, n_sym, id, i, k);
            continue;
        }
        char cp_text[4];
        if (t->byte_mode && spelled.n == 1) spelled = (m5_slice){cp_text, (size_t)m5_utf8_encode(m5_tok_byte_to_cp((uint8_t)p[i]), cp_text)};
        if (has_fallback(t, spelled)) {
            /* A pending unknown token stays pending, so it comes after these bytes: Hugging Face's order. */
            for (size_t b = 0; b < spelled.n; b++) add_sym(w, n_sym, t->fallback_id[(uint8_t)spelled.p[b]], i, b ? 0 : k);
        } else if (w->unk >= 0) {
            if (unk && !t->fuse_unk) add_sym(w, n_sym, w->unk, unk_begin, unk_n);
            unk_begin = unk && t->fuse_unk ? unk_begin : i;
            unk_n = unk && t->fuse_unk ? unk_n + k : k;
            unk = true;
        }
    }
    if (unk) add_sym(w, n_sym, w->unk, unk_begin, unk_n);
    return w->scratch.failed ? m5_error_set(w->err, M5_ERR_NOMEM, "out of memory while tokenizing") : 0;
}

static int emit(tok_work *w, const char *p, const tok_sym *s)
{
    const m5_tokenizer *t = w->t;
    int rc = 0;
    if (s->id >= 0) {
        rc = m5_ids_push(w->out, s->id);
    } else if (has_fallback(t, (m5_slice){p + s->begin, s->n})) {
        for (uint32_t i = 0; i < s->n && !rc; i++) rc = m5_ids_push(w->out, t->fallback_id[(uint8_t)p[s->begin + i]]);
    } else if (w->unk >= 0) {
        rc = m5_ids_push(w->out, w->unk);
    }
    return rc ? m5_error_set(w->err, rc, "out of memory while tokenizing") : 0;
}

/* ignore_merges: the token whose text is the whole unit. */
static int32_t whole_id(tok_work *w, const char *p, size_t n)
{
    const m5_tokenizer *t = w->t;
    if (n > t->max_token_bytes) return -1;
    int32_t id;
    if (t->byte_mode) {
        m5_buf_clear(&w->scratch);
        for (size_t i = 0; i < n; i++) m5_buf_codepoint(&w->scratch, m5_tok_byte_to_cp((uint8_t)p[i]));
        id = w->scratch.failed ? -1 : m5_tok_vocab_find(t, w->scratch.p, w->scratch.n);
    } else {
        id = m5_tok_vocab_find(t, p, n);
    }
    return id >= 0 && t->entry[id].flags & TOK_MODEL ? id : -1;
}

static int run_unit(tok_work *w, const char *p, size_t n)
{
    if (w->t->ignore_merges) {
        int32_t id = whole_id(w, p, n);
        if (id >= 0) return m5_ids_push(w->out, id) ? m5_error_set(w->err, M5_ERR_NOMEM, "out of memory while tokenizing") : 0;
    }
    /* A character gives one symbol or, by fallback, one for each of its bytes; an affix adds its own. */
    size_t need = n * (w->t->byte_mode ? 2 : 1) + (n + 1) * (w->t->sub_prefix.n + w->t->word_suffix.n) + 1;
    if (need > (size_t)INT32_MAX) return m5_error_set(w->err, M5_ERR_LIMIT, "a text of %zu bytes is too long to tokenize", n);
    if (need > w->cap_sym) {
        size_t cap = need > w->cap_sym * 2 ? need : w->cap_sym * 2;
        tok_sym *s = m5_realloc(M5_MEM_SCRATCH, w->sym, cap * sizeof *s);
        if (!s) return m5_error_set(w->err, M5_ERR_NOMEM, "out of memory while tokenizing");
        w->sym = s;
        w->cap_sym = cap;
    }
    size_t n_sym = 0;
    int rc = first_symbols(w, p, n, &n_sym);
    if (rc || !n_sym) return rc;
    rc = merge_all(w, p, n_sym);
    for (int32_t i = 0; i >= 0 && !rc; i = w->sym[i].next) rc = emit(w, p, &w->sym[i]);
    return rc;
}

/* Words repeat: the ids of short units are remembered for the length of the call. */
static int cached_unit(tok_work *w, const char *p, size_t n)
{
    if (!w->cache || n > TOK_CACHE_KEY) return run_unit(w, p, n);
    tok_cache *c = &w->cache[m5_tok_hash(p, n) & (TOK_CACHE_SLOTS - 1)];
    if (c->n_key == n && memcmp(c->key, p, n) == 0) {
        for (int i = 0; i < c->n_ids; i++) {
            if (m5_ids_push(w->out, c->ids[i])) return m5_error_set(w->err, M5_ERR_NOMEM, "out of memory while tokenizing");
        }
        return 0;
    }
    size_t before = w->out->n;
    int rc = run_unit(w, p, n);
    size_t n_ids = w->out->n - before;
    if (rc || n_ids > TOK_CACHE_IDS) return rc;
    memcpy(c->key, p, n);
    c->n_key = (uint8_t)n;
    c->n_ids = (uint8_t)n_ids;
    if (n_ids) memcpy(c->ids, w->out->p + before, n_ids * sizeof *c->ids);
    return 0;
}

int m5_tok_bpe(tok_work *w, const char *p, size_t n)
{
    const m5_tokenizer *t = w->t;
    if (!n) return 0;
    if (!t->cut_words) return cached_unit(w, p, n);
    size_t from = 0;
    for (size_t i = 1; i + 3 <= n; i++) {
        if (p[i] != '\xE2' || p[i + 1] != '\x96' || p[i + 2] != '\x81') continue;
        uint8_t before = (uint8_t)p[i - 1];
        if (t->bridge[before >> 3] >> (before & 7) & 1) continue;
        int rc = cached_unit(w, p + from, i - from);
        if (rc) return rc;
        from = i;
    }
    return cached_unit(w, p + from, n - from);
}
