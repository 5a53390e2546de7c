/* SPDX-License-Identifier: Apache-2.0 */
/* The vocabulary as the matcher wants it: tries over all tokens' bytes, and the tokens that a JSON string takes as they are, by length. */
#include "text/grammar_internal.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_TOKEN_BYTES = 1000 };

typedef struct sort_key { /* a token and its bytes, so that the comparison needs no context */
    const char *p;
    uint32_t n;
    int32_t id;
} sort_key;

static int cmp_key(const void *x, const void *y)
{
    const sort_key *a = x, *c = y;
    int d = memcmp(a->p, c->p, a->n < c->n ? a->n : c->n);
    if (d) return d;
    if (a->n != c->n) return a->n < c->n ? -1 : 1;
    return (a->id > c->id) - (a->id < c->id);
}

/* Characters of a token that a JSON string takes as they are, when it is made of nothing else; 0 otherwise. */
static uint32_t plain_chars(const char *p, size_t n)
{
    uint32_t chars = 0;
    for (size_t i = 0; i < n; chars++) {
        uint32_t cp;
        uint8_t c = (uint8_t)p[i];
        if (c < 0x20 || c == 0x7F || c == '"' || c == '\\') return 0; /* DEL may stand there, but common grammars leave it out */
        int len = m5_utf8_decode(p + i, n - i, &cp);
        if (len <= 0 || (cp == 0xFFFD && memcmp(p + i, "\xEF\xBF\xBD", len == 3 ? 3 : 1) != 0)) return 0;
        i += (size_t)len;
    }
    return chars;
}

/* An upper bound on the characters of a JSON string in a token that may also leave the string. */
static uint32_t string_chars(const char *p, size_t n)
{
    uint32_t chars = 0;
    for (size_t i = 0; i < n && p[i] != '"' && (uint8_t)p[i] >= 0x20; chars++) {
        i += p[i] == '\\' && i + 1 < n ? 2 : 1;
        while (i < n && ((uint8_t)p[i] & 0xC0) == 0x80) i++;
    }
    return chars + 1; /* the end of a character begun before */
}

static int build_trie(g_trie *t, sort_key *key, size_t n)
{
    size_t nodes = 1;
    if (n) qsort(key, n, sizeof *key, cmp_key);
    t->ids = m5_alloc(M5_MEM_TEXT, n * sizeof *t->ids + 4);
    uint32_t *open = m5_alloc(M5_MEM_TEXT, (MAX_TOKEN_BYTES + 1) * sizeof *open); /* nodes on the way to the last token */
    for (size_t i = 0; i < n; i++) {
        size_t same = 0;
        while (i && same < key[i].n && same < key[i - 1].n && key[i].p[same] == key[i - 1].p[same]) same++;
        nodes += key[i].n - same;
    }
    t->node = nodes < UINT32_MAX ? m5_alloc(M5_MEM_TEXT, nodes * sizeof *t->node) : NULL;
    int rc = t->ids && open && t->node ? 0 : M5_ERR_NOMEM;
    for (size_t i = 0; i < n && rc == 0; i++) {
        size_t same = 0, depth = i ? key[i - 1].n : 0;
        while (i && same < key[i].n && same < key[i - 1].n && key[i].p[same] == key[i - 1].p[same]) same++;
        for (size_t d = same; d < depth; d++) t->node[open[d]].skip = t->n;
        for (size_t d = same; d < key[i].n; d++) {
            open[d] = t->n;
            t->node[t->n++] = (g_trie_node){.tok = (uint32_t)i, .depth = (uint16_t)(d + 1), .byte = (uint8_t)key[i].p[d]};
        }
        if (key[i].n > t->max_depth) t->max_depth = key[i].n;
        t->ids[i] = key[i].id;
    }
    if (rc == 0) {
        for (size_t d = 0; n && d < key[n - 1].n; d++) t->node[open[d]].skip = t->n;
        t->node[t->n] = (g_trie_node){.skip = t->n, .tok = (uint32_t)n};
        t->n_ids = (uint32_t)n;
    }
    m5_free(open);
    return rc;
}

static int cmp_long(const void *x, const void *y)
{
    const struct g_long *a = x, *c = y;
    return a->chars != c->chars ? (a->chars > c->chars) - (a->chars < c->chars) : (a->id > c->id) - (a->id < c->id);
}

static int build(m5_grammar_vocab *v)
{
    sort_key *plain = m5_alloc(M5_MEM_TEXT, (size_t)v->n_vocab * sizeof *plain + 1),
             *other = m5_alloc(M5_MEM_TEXT, (size_t)v->n_vocab * sizeof *other + 1);
    size_t n_plain = 0, n_other = 0;
    v->longer = m5_alloc(M5_MEM_TEXT, (size_t)v->n_vocab * sizeof *v->longer + 1);
    v->quoted = m5_alloc(M5_MEM_TEXT, (size_t)v->n_vocab * sizeof *v->quoted + 1);
    int rc = plain && other && v->longer && v->quoted ? 0 : M5_ERR_NOMEM;
    for (int i = 0; i <= G_PLAIN_STEPS + 1 && rc == 0; i++) {
        if (!(v->upto[i] = m5_calloc(M5_MEM_TEXT, v->n_words + 1, sizeof *v->upto[i]))) rc = M5_ERR_NOMEM;
    }
    for (int32_t id = 0; id < v->n_vocab && rc == 0; id++) {
        sort_key k = {v->bytes.p + v->off[id], v->off[id + 1] - v->off[id], id};
        if (!k.n || k.n > MAX_TOKEN_BYTES) continue;
        if (k.n > v->max_depth) v->max_depth = k.n;
        uint32_t open = 0, quotes = 0, chars = plain_chars(k.p, k.n);
        for (size_t i = 0; i < k.n; i++) {
            open += k.p[i] == '{' || k.p[i] == '[';
            quotes += k.p[i] == '"';
        }
        if (quotes > 1) v->quoted[v->n_quoted++] = id;
        if (open > v->other_open) v->other_open = open;
        if (!chars) {
            uint32_t c = string_chars(k.p, k.n);
            if (c > v->other_chars) v->other_chars = c;
            other[n_other++] = k;
            continue;
        }
        plain[n_plain++] = k;
        if (chars > G_PLAIN_STEPS) v->longer[v->n_longer++] = (struct g_long){chars, id};
        for (uint32_t i = 0; i <= G_PLAIN_STEPS + 1; i++) {
            if (chars <= i || i > G_PLAIN_STEPS) v->upto[i][id >> 6] |= (uint64_t)1 << (id & 63);
        }
    }
    if (rc == 0) {
        if (v->n_longer) qsort(v->longer, v->n_longer, sizeof *v->longer, cmp_long);
        rc = build_trie(&v->plain, plain, n_plain);
    }
    if (rc == 0) rc = build_trie(&v->other, other, n_other);
    m5_free(plain);
    m5_free(other);
    return rc;
}

static m5_grammar_vocab *new_vocab(int32_t n, int n_end, const int32_t *end_ids)
{
    m5_grammar_vocab *v = m5_calloc(M5_MEM_TEXT, 1, sizeof *v);
    if (!v) return NULL;
    v->n_vocab = n;
    v->n_words = ((size_t)n + 63) / 64;
    v->off = m5_calloc(M5_MEM_TEXT, (size_t)n + 1, sizeof *v->off);
    v->ends = m5_alloc(M5_MEM_TEXT, (size_t)n_end * sizeof *v->ends + 4);
    if (!v->off || !v->ends) {
        m5_grammar_vocab_free(v);
        return NULL;
    }
    for (int i = 0; i < n_end; i++) {
        if (end_ids[i] >= 0 && end_ids[i] < n) v->ends[v->n_ends++] = end_ids[i];
    }
    return v;
}

static bool is_end(const m5_grammar_vocab *v, int32_t id)
{
    for (int i = 0; i < v->n_ends; i++) {
        if (v->ends[i] == id) return true;
    }
    return false;
}

static int finish(m5_grammar_vocab **out, m5_grammar_vocab *v, m5_error *err)
{
    int rc = v->bytes.failed ? M5_ERR_NOMEM : build(v);
    if (rc) {
        m5_grammar_vocab_free(v);
        return m5_error_set(err, rc, "out of memory for the vocabulary of grammars");
    }
    *out = v;
    return 0;
}

int m5_grammar_vocab_new(m5_grammar_vocab **out, const m5_tokenizer *t, m5_error *err)
{
    int32_t ends[64], n = m5_tokenizer_n_vocab(t);
    m5_grammar_vocab *v = new_vocab(n, m5_tokenizer_stop_ids(t, ends, 64), ends);
    if (!v) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for the vocabulary of grammars");
    for (int32_t id = 0; id < n; id++) {
        m5_slice piece = m5_tokenizer_piece(t, id);
        bool control = m5_tokenizer_is_control(t, id);
        if (!is_end(v, id) && piece.n) {
            if (control) m5_buf_putc(&v->bytes, (char)G_MARK);
            m5_buf_slice(&v->bytes, piece);
            if (control) m5_buf_putc(&v->bytes, (char)G_MARK);
        }
        v->off[id + 1] = (uint32_t)v->bytes.n;
    }
    return finish(out, v, err);
}

int m5_grammar_vocab_of(m5_grammar_vocab **out, const m5_slice *pieces, int32_t n, const int32_t *end_ids, int n_end, m5_error *err)
{
    m5_grammar_vocab *v = new_vocab(n, n_end, end_ids);
    if (!v) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for the vocabulary of grammars");
    for (int32_t id = 0; id < n; id++) {
        if (!is_end(v, id)) m5_buf_slice(&v->bytes, pieces[id]);
        v->off[id + 1] = (uint32_t)v->bytes.n;
    }
    return finish(out, v, err);
}

void m5_grammar_vocab_free(m5_grammar_vocab *v)
{
    if (!v) return;
    m5_buf_free(&v->bytes);
    m5_free(v->off);
    m5_free(v->plain.node);
    m5_free(v->plain.ids);
    m5_free(v->other.node);
    m5_free(v->other.ids);
    for (int i = 0; i <= G_PLAIN_STEPS + 1; i++) m5_free(v->upto[i]);
    m5_free(v->longer);
    m5_free(v->quoted);
    m5_free(v->ends);
    m5_g_local_table_clear(&v->locals);
    m5_free(v->locals.slot);
    m5_free(v);
}
