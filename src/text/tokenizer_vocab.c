/* SPDX-License-Identifier: Apache-2.0 */
/* Tables of a tokenizer: id <-> text, merges, added tokens and their tries. Knows no file format. */
#include "text/tokenizer_internal.h"

#include <string.h>

#define MAX_ID        (1 << 24)         /* far above any vocabulary; bounds what a hostile id can allocate */
#define MAX_POOL      ((size_t)1 << 30) /* offsets are 32 bits */
#define MAX_TOKEN     ((size_t)1 << 16)
#define MAX_TRIE_NODE ((size_t)1 << 24)

uint32_t m5_tok_hash(const char *p, size_t n)
{
    uint64_t h = 0xCBF29CE484222325u ^ n;
    while (n >= 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        h = (h ^ v) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
        p += 8;
        n -= 8;
    }
    uint64_t v = 0;
    if (n) memcpy(&v, p, n);
    h = (h ^ v) * 0x9E3779B97F4A7C15u;
    h ^= h >> 32;
    return (uint32_t)h;
}

m5_slice m5_tok_text(const m5_tokenizer *t, int32_t id)
{
    if (id < 0 || id >= t->n_vocab) return (m5_slice){"", 0};
    return (m5_slice){t->pool.p ? t->pool.p + t->entry[id].off : "", t->entry[id].n};
}

int m5_tok_vocab_reserve(m5_tokenizer *t, int64_t n, m5_error *err)
{
    if (n > MAX_ID) return m5_error_set(err, M5_ERR_LIMIT, "token id %lld is out of range (limit %d)", (long long)n - 1, MAX_ID);
    if (n <= t->n_vocab) return 0;
    if ((size_t)n > t->cap_entry) {
        size_t cap = (size_t)n > t->cap_entry * 2 ? (size_t)n : t->cap_entry * 2;
        tok_entry *e = m5_realloc(M5_MEM_TEXT, t->entry, cap * sizeof *e);
        if (!e) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for a vocabulary of %lld tokens", (long long)n);
        memset(e + t->cap_entry, 0, (cap - t->cap_entry) * sizeof *e);
        t->entry = e;
        t->cap_entry = cap;
    }
    t->n_vocab = (int32_t)n;
    return 0;
}

static void put_slot(uint64_t *slot, size_t cap, uint64_t value)
{
    size_t at = (value >> 32) & (cap - 1);
    while (slot[at]) at = (at + 1) & (cap - 1);
    slot[at] = value;
}

static int grow_find(m5_tokenizer *t, m5_error *err)
{
    size_t cap = t->cap_find ? t->cap_find * 2 : 1024;
    uint64_t *slot = m5_calloc(M5_MEM_TEXT, cap, sizeof *slot);
    if (!slot) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for the table of tokens");
    for (size_t i = 0; i < t->cap_find; i++) {
        if (t->find_slot[i]) put_slot(slot, cap, t->find_slot[i]);
    }
    m5_free(t->find_slot);
    t->find_slot = slot;
    t->cap_find = cap;
    return 0;
}

int32_t m5_tok_vocab_find(const m5_tokenizer *t, const char *p, size_t n)
{
    if (!t->cap_find || n > t->max_token_bytes) return -1;
    uint32_t hash = m5_tok_hash(p, n);
    for (size_t at = hash & (t->cap_find - 1); t->find_slot[at]; at = (at + 1) & (t->cap_find - 1)) {
        if (t->find_slot[at] >> 32 != hash) continue;
        int32_t id = (int32_t)((uint32_t)t->find_slot[at] - 1);
        const tok_entry *e = &t->entry[id];
        if (e->n == n && (n == 0 || memcmp(t->pool.p + e->off, p, n) == 0)) return id;
    }
    return -1;
}

int m5_tok_vocab_set(m5_tokenizer *t, int32_t id, m5_slice text, uint8_t flags, m5_error *err)
{
    if (id < 0) return m5_error_set(err, M5_ERR_FORMAT, "token id %d is negative", id);
    if (text.n > MAX_TOKEN) return m5_error_set(err, M5_ERR_LIMIT, "token %d is %zu bytes long (limit %zu)", id, text.n, MAX_TOKEN);
    if (t->pool.n + text.n > MAX_POOL) return m5_error_set(err, M5_ERR_LIMIT, "the texts of the vocabulary are larger than %zu bytes", MAX_POOL);
    int rc = m5_tok_vocab_reserve(t, (int64_t)id + 1, err);
    if (rc) return rc;
    tok_entry *e = &t->entry[id];
    if (e->flags & TOK_USED) {
        return m5_error_set(err, M5_ERR_FORMAT, "token id %d is given to two texts (\"%.*s\" and \"%.*s\")", id, (int)(e->n > 60 ? 60 : e->n),
                            t->pool.p + e->off, (int)(text.n > 60 ? 60 : text.n), text.p);
    }
    if ((t->n_find + 1) * 2 > t->cap_find && (rc = grow_find(t, err)) != 0) return rc;
    e->off = (uint32_t)t->pool.n;
    e->n = (uint32_t)text.n;
    e->flags = flags | TOK_USED;
    m5_buf_append(&t->pool, text.p, text.n);
    m5_buf_append(&t->pool, "", 0);
    if (t->pool.failed) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for the texts of the vocabulary");
    if (m5_tok_vocab_find(t, text.p, text.n) >= 0) return 0;
    if (text.n > t->max_token_bytes) t->max_token_bytes = text.n;
    put_slot(t->find_slot, t->cap_find, (uint64_t)m5_tok_hash(text.p, text.n) << 32 | ((uint32_t)id + 1));
    t->n_find++;
    return 0;
}

int m5_tok_merges_reserve(m5_tokenizer *t, size_t n, m5_error *err)
{
    if (n > (size_t)1 << 28) return m5_error_set(err, M5_ERR_LIMIT, "%zu merges are more than any vocabulary has", n);
    size_t cap = 16;
    while (cap < n + n / 2) cap *= 2;
    if (cap <= t->cap_merge) return 0;
    tok_merge *m = m5_alloc(M5_MEM_TEXT, cap * sizeof *m);
    if (!m) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for %zu merges", n);
    for (size_t i = 0; i < cap; i++) m[i].key = UINT64_MAX;
    for (size_t i = 0; i < t->cap_merge; i++) {
        if (t->merge[i].key == UINT64_MAX) continue;
        size_t at = m5_tok_pair_hash(t->merge[i].key) & (cap - 1);
        while (m[at].key != UINT64_MAX) at = (at + 1) & (cap - 1);
        m[at] = t->merge[i];
    }
    m5_free(t->merge);
    t->merge = m;
    t->cap_merge = cap;
    return 0;
}

int m5_tok_merge_add(m5_tokenizer *t, m5_slice left, m5_slice right, uint32_t rank, m5_buf *scratch, m5_error *err)
{
    int32_t a = m5_tok_vocab_find(t, left.p, left.n), b = m5_tok_vocab_find(t, right.p, right.n);
    if (a < 0 || b < 0) {
        m5_slice s = a < 0 ? left : right;
        return m5_error_set(err, M5_ERR_FORMAT, "merge %u names \"%.*s\", which is not in the vocabulary", rank, (int)(s.n > 60 ? 60 : s.n), s.p);
    }
    if (right.n < t->sub_prefix.n)
        return m5_error_set(err, M5_ERR_FORMAT, "merge %u: the right side is shorter than continuing_subword_prefix", rank);
    m5_buf_clear(scratch);
    m5_buf_slice(scratch, left);
    m5_buf_append(scratch, right.p + t->sub_prefix.n, right.n - t->sub_prefix.n);
    if (scratch->failed) return m5_error_set(err, M5_ERR_NOMEM, "out of memory while reading merges");
    int32_t id = m5_tok_vocab_find(t, scratch->p, scratch->n);
    if (id < 0) {
        return m5_error_set(err, M5_ERR_FORMAT, "merge %u builds \"%.*s\", which is not in the vocabulary", rank,
                            (int)(scratch->n > 60 ? 60 : scratch->n), scratch->p);
    }
    /* Text spelling a control token must never merge into it. Where control tokens are wanted they are cut out before the model runs. */
    if (t->entry[id].flags & TOK_SPECIAL) return 0;
    int rc = (t->n_merge + 1) * 3 > t->cap_merge * 2 ? m5_tok_merges_reserve(t, t->cap_merge + 1, err) : 0;
    if (rc) return rc;
    uint64_t key = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
    size_t at = m5_tok_pair_hash(key) & (t->cap_merge - 1);
    while (t->merge[at].key != UINT64_MAX && t->merge[at].key != key) at = (at + 1) & (t->cap_merge - 1);
    if (t->merge[at].key == UINT64_MAX) t->n_merge++;
    t->merge[at] = (tok_merge){key, rank, id};
    return 0;
}

/* ---- added tokens ---- */

/* Non-special tokens that still structure a chat: <|name|> of any kind and the names that tool and thinking dialects use. Tags such as <table> or
 * </s> in Gemma's vocabulary are ordinary text and not meant. */
bool m5_tok_is_chat_marker(m5_slice s)
{
    static const char *const names[] = {
        "think",           "thinking",      "reasoning",   "answer",      "tool_call",    "tool_calls",    "tool_response",
        "tool_responses",  "tools",         "tool",        "tool_result", "tool_results", "function_call", "function_calls",
        "available_tools", "start_of_turn", "end_of_turn", "eos",         "bos"};
    if (s.n < 3) return false;
    if (s.n > 4 && s.p[0] == '<' && s.p[s.n - 1] == '>') {
        if (s.p[1] == '|' || s.p[s.n - 2] == '|') return true;
        m5_slice bar = M5_SLICE("\xEF\xBD\x9C"); /* U+FF5C, DeepSeek's bar */
        if (m5_slice_starts((m5_slice){s.p + 1, s.n - 2}, bar) || m5_slice_ends((m5_slice){s.p, s.n - 1}, bar)) return true;
    }
    bool angle = s.p[0] == '<' && s.p[s.n - 1] == '>', square = s.p[0] == '[' && s.p[s.n - 1] == ']';
    if (!angle && !square) return false;
    m5_slice in = {s.p + 1, s.n - 2};
    if (in.n && in.p[0] == '/') in = (m5_slice){in.p + 1, in.n - 1};
    if (square) {
        for (size_t i = 0; i < in.n; i++) {
            if (!((in.p[i] >= 'A' && in.p[i] <= 'Z') || in.p[i] == '_')) return false;
        }
        return in.n > 2; /* [INST], [TOOL_CALLS], [THINK] */
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (m5_slice_is(in, names[i])) return true;
    }
    return false;
}

int m5_tok_added_put(m5_tokenizer *t, m5_slice content, tok_added how, bool special, int32_t id, m5_error *err)
{
    if (!content.n) return 0;
    if (t->n_added >= (size_t)MAX_ID) return m5_error_set(err, M5_ERR_LIMIT, "too many added tokens");
    uint8_t flags = (uint8_t)(TOK_ADDED | (special ? TOK_SPECIAL : m5_tok_is_chat_marker(content) ? TOK_MARKER : 0));
    int rc = 0;
    int32_t known = id >= 0 ? id : m5_tok_vocab_find(t, content.p, content.n);
    if (known < 0 || known >= t->n_vocab || !(t->entry[known].flags & TOK_USED)) {
        known = known < 0 ? t->n_vocab : known;
        rc = m5_tok_vocab_set(t, known, content, 0, err);
        if (rc) return rc;
    }
    t->entry[known].flags |= flags;
    if (t->n_added == t->cap_added) {
        size_t cap = t->cap_added ? t->cap_added * 2 : 64;
        tok_added *a = m5_realloc(M5_MEM_TEXT, t->added, cap * sizeof *a);
        if (!a) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for the added tokens");
        t->added = a;
        t->cap_added = cap;
    }
    how.id = known;
    t->added[t->n_added++] = how;
    return 0;
}

static uint32_t trie_node(tok_trie *trie, uint8_t byte)
{
    if (trie->n == trie->cap) {
        size_t cap = trie->cap ? trie->cap * 2 : 256;
        if (cap > MAX_TRIE_NODE) return 0;
        tok_trie_node *p = m5_realloc(M5_MEM_TEXT, trie->node, cap * sizeof *p);
        if (!p) return 0;
        trie->node = p;
        trie->cap = cap;
        if (!trie->n) trie->n = 1; /* node 0 stands for "none" */
    }
    trie->node[trie->n] = (tok_trie_node){0, 0, TOK_NONE, byte};
    return (uint32_t)trie->n++;
}

static int trie_full(const tok_trie *trie, m5_error *err)
{
    if (trie->cap * 2 > MAX_TRIE_NODE) return m5_error_set(err, M5_ERR_LIMIT, "the added tokens are too large");
    return m5_error_set(err, M5_ERR_NOMEM, "out of memory for the added tokens");
}

static int trie_add(tok_trie *trie, m5_slice s, uint32_t added, m5_error *err)
{
    uint32_t at = trie->root[(uint8_t)s.p[0]];
    if (!at) at = trie->root[(uint8_t)s.p[0]] = trie_node(trie, (uint8_t)s.p[0]);
    for (size_t i = 1; i < s.n && at; i++) {
        uint32_t next = trie->node[at].child;
        while (next && trie->node[next].byte != (uint8_t)s.p[i]) next = trie->node[next].sibling;
        if (!next) {
            next = trie_node(trie, (uint8_t)s.p[i]);
            if (!next) return trie_full(trie, err);
            trie->node[next].sibling = trie->node[at].child;
            trie->node[at].child = next;
        }
        at = next;
    }
    if (!at) return trie_full(trie, err);
    trie->node[at].added = added;
    return 0;
}

static int trie_add_spaced(m5_tokenizer *t, m5_slice s, uint32_t added, m5_error *err)
{
    m5_buf b = {0};
    for (size_t i = 0; i < s.n; i++) {
        bool bar = s.n - i >= 3 && memcmp(s.p + i, "\xE2\x96\x81", 3) == 0;
        m5_buf_putc(&b, bar ? ' ' : s.p[i]);
        if (bar) i += 2;
    }
    int rc = b.failed ? m5_error_set(err, M5_ERR_NOMEM, "out of memory for the added tokens") : trie_add(&t->raw_trie, m5_buf_view(&b), added, err);
    m5_buf_free(&b);
    return rc;
}

static int make_tries(m5_tokenizer *t, m5_error *err)
{
    tok_work w = {.t = t, .err = err};
    int rc = 0;
    for (size_t i = 0; i < t->n_added && !rc; i++) {
        tok_added *a = &t->added[i];
        const tok_entry *e = &t->entry[a->id];
        a->content = m5_tok_text(t, a->id);
        if (!a->normalized) {
            rc = trie_add(&t->raw_trie, a->content, (uint32_t)i, err);
            if (!rc && a->spaced) rc = trie_add_spaced(t, a->content, (uint32_t)i, err);
            continue;
        }
        m5_slice s;
        rc = m5_tok_normalize(&w, a->content.p, a->content.n, &s, NULL);
        if (rc || !s.n) continue;
        if (e->flags & (TOK_SPECIAL | TOK_MARKER)) t->norm_protected = true;
        rc = trie_add(&t->norm_trie, s, (uint32_t)i, err);
    }
    m5_tok_work_deinit(&w);
    return rc;
}

/* ---- byte tokens, word cuts ---- */

uint32_t m5_tok_byte_to_cp(uint8_t b)
{
    if ((b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174) return b;
    if (b <= 32) return 256u + b;
    if (b <= 160) return 256u + 33u + (b - 127u);
    return 256u + 67u; /* 173 */
}

int m5_tok_cp_to_byte(uint32_t cp)
{
    if (cp < 256) return m5_tok_byte_to_cp((uint8_t)cp) == cp ? (int)cp : -1;
    if (cp <= 288) return (int)(cp - 256);
    if (cp <= 322) return (int)(cp - 289 + 127);
    return cp == 323 ? 173 : -1;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool m5_tok_parse_byte_token(m5_slice s, uint8_t *byte)
{
    if (s.n != 6 || memcmp(s.p, "<0x", 3) != 0 || s.p[5] != '>') return false;
    int hi = hex_digit(s.p[3]), lo = hex_digit(s.p[4]);
    if (hi < 0 || lo < 0) return false;
    *byte = (uint8_t)(hi * 16 + lo);
    return true;
}

static void fill_byte_ids(m5_tokenizer *t)
{
    static const char hex[] = "0123456789ABCDEF";
    for (int b = 0; b < 256; b++) {
        char cp[4], name[6] = {'<', '0', 'x', hex[b >> 4], hex[b & 15], '>'};
        int n = m5_utf8_encode(m5_tok_byte_to_cp((uint8_t)b), cp);
        t->byte_id[b] = m5_tok_vocab_find(t, cp, (size_t)n);
        if (t->byte_id[b] >= 0 && !(t->entry[t->byte_id[b]].flags & TOK_MODEL)) t->byte_id[b] = -1;
        t->fallback_id[b] = m5_tok_vocab_find(t, name, 6);
        if (t->fallback_id[b] >= 0 && (t->entry[t->fallback_id[b]].flags & TOK_SPECIAL)) t->fallback_id[b] = -1;
    }
}

/* A merge across the border x|U+2581 makes a token that holds both, so where no token has byte x before U+2581 the unit can be cut with the same
 * result. Gemma 3 has one such token, Llama 2 only runs of U+2581. */
static void find_word_cuts(m5_tokenizer *t)
{
    static const char bar[3] = {'\xE2', '\x96', '\x81'};
    int32_t id = m5_tok_vocab_find(t, bar, 3);
    t->cut_words = !t->byte_mode && !t->ignore_merges && !t->sub_prefix.n && !t->word_suffix.n && id >= 0 && (t->entry[id].flags & TOK_MODEL);
    if (!t->cut_words) return;
    for (int32_t i = 0; i < t->n_vocab; i++) {
        m5_slice s = m5_tok_text(t, i);
        for (size_t k = 1; k + 3 <= s.n; k++) {
            if (s.p[k] == bar[0] && s.p[k + 1] == bar[1] && s.p[k + 2] == bar[2])
                t->bridge[(uint8_t)s.p[k - 1] >> 3] |= (uint8_t)(1 << (s.p[k - 1] & 7));
        }
    }
}

int m5_tok_finish(m5_tokenizer *t, m5_error *err)
{
    if (!t->n_vocab) return m5_error_set(err, M5_ERR_FORMAT, "the tokenizer has no vocabulary");
    for (int32_t i = 0; i < t->n_vocab; i++) {
        if (t->entry[i].flags & TOK_SPECIAL) t->entry[i].flags &= (uint8_t) ~(TOK_MODEL | TOK_MARKER);
    }
    if (t->cap_merge == 0) {
        int rc = m5_tok_merges_reserve(t, 0, err);
        if (rc) return rc;
    }
    fill_byte_ids(t);
    find_word_cuts(t);
    int rc = make_tries(t, err);
    if (!rc) rc = m5_tok_check_decoder(t, err);
    if (!rc) rc = m5_tok_make_pieces(t, err);
    return rc;
}
