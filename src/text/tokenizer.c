/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls: lookups, and the cutting of a text at its added tokens under the rule of trust. The steps behind are in tokenizer_*.c. */
#include "text/tokenizer_internal.h"

#include <string.h>

/* <｜end▁of▁sentence｜> */
#define DEEPSEEK_END                                                                                                                                 \
    "<\xEF\xBD\x9C"                                                                                                                                  \
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>"
#define MAX_TEXT   ((size_t)1 << 30) /* offsets are 32 bits, and normalising may triple a text */
#define CACHE_FROM ((size_t)1 << 10) /* shorter texts do not repay clearing the cache */

void m5_tokenizer_free(m5_tokenizer *t)
{
    if (!t) return;
    m5_free(t->entry);
    m5_buf_free(&t->pool);
    m5_buf_free(&t->piece_pool);
    m5_free(t->find_slot);
    m5_free(t->merge);
    m5_free(t->prio);
    m5_free(t->added);
    m5_free(t->raw_trie.node);
    m5_free(t->norm_trie.node);
    for (size_t i = 0; i < t->n_norm; i++) {
        m5_tok_pattern_deinit(&t->norm[i].pattern);
        m5_free(t->norm[i].text);
    }
    m5_free(t->norm);
    for (size_t i = 0; i < t->n_pre; i++) {
        m5_tok_pattern_deinit(&t->pre[i].pattern);
        m5_free(t->pre[i].text);
    }
    m5_free(t->pre);
    for (size_t i = 0; i < t->n_dec; i++) {
        m5_free(t->dec[i].from);
        m5_free(t->dec[i].to);
    }
    m5_free(t->dec);
    m5_free((char *)t->sub_prefix.p);
    m5_free((char *)t->word_suffix.p);
    m5_free(t->prefix);
    m5_free(t);
}

void m5_tok_work_deinit(tok_work *w)
{
    for (int i = 0; i < 2; i++) {
        m5_buf_free(&w->norm[i]);
        m5_buf_free(&w->norm_map[i]);
        m5_buf_free(&w->pre_text[i]);
        m5_free(w->pre[i].p);
    }
    m5_free(w->matches.p);
    m5_buf_free(&w->subject);
    m5_buf_free(&w->scratch);
    m5_tok_match_free(w->match);
    m5_free(w->cps);
    m5_free(w->sym);
    m5_free(w->heap);
    m5_free(w->cache);
}

int32_t m5_tokenizer_n_vocab(const m5_tokenizer *t)
{
    return t->n_vocab;
}

int32_t m5_tokenizer_find(const m5_tokenizer *t, m5_slice content)
{
    return m5_tok_vocab_find(t, content.p, content.n);
}

int32_t m5_tokenizer_bos(const m5_tokenizer *t)
{
    return t->bos;
}

bool m5_tokenizer_adds_bos(const m5_tokenizer *t)
{
    return t->adds_bos;
}

bool m5_tokenizer_is_control(const m5_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->n_vocab && t->entry[id].flags & TOK_SPECIAL;
}

m5_slice m5_tokenizer_piece(const m5_tokenizer *t, int32_t id)
{
    if (id < 0 || id >= t->n_vocab) return (m5_slice){"", 0};
    return (m5_slice){t->piece_pool.p ? t->piece_pool.p + t->entry[id].poff : "", t->entry[id].pn};
}

int m5_tokenizer_stop_ids(const m5_tokenizer *t, int32_t *out, int cap)
{
    static const char *const names[] = {"<|eot_id|>",      "<|im_end|>",       "<|end|>",
                                        "<end_of_turn>",   "<|endoftext|>",    "</s>",
                                        "<|eom_id|>",      "<|end_of_text|>",  "<eos>",
                                        "<turn|>",         "<|tool_response>", "<|eot|>",
                                        "<|return|>",      "<|call|>",         "<|END_OF_TURN_TOKEN|>",
                                        "<|end_of_turn|>", DEEPSEEK_END};
    int n = 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0] + t->n_eos && n < cap; i++) {
        bool named = i >= t->n_eos;
        int32_t id = named ? m5_tokenizer_find(t, m5_slice_of(names[i - t->n_eos])) : t->eos[i];
        if (id < 0) continue;
        /* Gemma 3 has an HTML tag </s> that ends nothing: a name alone counts only where the token is control or a marker. */
        if (named && !(t->entry[id].flags & (TOK_SPECIAL | TOK_MARKER))) continue;
        bool known = false;
        for (int k = 0; k < n; k++) known |= out[k] == id;
        if (!known) out[n++] = id;
    }
    return n;
}

void m5_ids_free(m5_ids *ids)
{
    m5_free(ids->p);
    *ids = (m5_ids){0};
}

int m5_ids_push(m5_ids *ids, int32_t id)
{
    if (ids->n == ids->cap) {
        size_t cap = ids->cap ? ids->cap * 2 : 64;
        int32_t *p = m5_realloc(M5_MEM_REQUEST, ids->p, cap * sizeof *p);
        if (!p) return M5_ERR_NOMEM;
        ids->p = p;
        ids->cap = cap;
    }
    ids->p[ids->n++] = id;
    return 0;
}

/* ---- trust ---- */

/* The trusted stretches of the text, neighbours joined, and which tokens need trust. */
typedef struct trust {
    const m5_text_span *span;
    size_t n, at;    /* at: the stretch last asked for; questions come in order of position, mostly */
    uint8_t protect; /* entries with one of these flags need trust */
} trust;

static bool is_trusted(trust *tr, size_t begin, size_t end)
{
    while (tr->at > 0 && tr->span[tr->at - 1].end > begin) tr->at--;
    while (tr->at < tr->n && tr->span[tr->at].end <= begin) tr->at++;
    return tr->at < tr->n && tr->span[tr->at].begin <= begin && end <= tr->span[tr->at].end;
}

/* ---- added tokens ---- */

/* A text in which added tokens are looked for. map (NULL = identity) and base lead from its bytes to those of the whole text. */
typedef struct area {
    const char *p;
    size_t n, base;
    const tok_range *map;
} area;

static bool area_trusted(trust *tr, const area *a, size_t begin, size_t end)
{
    size_t b = a->map ? a->map[begin].begin : begin, e = a->map ? a->map[end - 1].end : end;
    return is_trusted(tr, a->base + b, a->base + e);
}

/* Longest added token at position i that trust allows, as an index into added[], or TOK_NONE. */
static uint32_t longest_at(const m5_tokenizer *t, const tok_trie *trie, trust *tr, const area *a, size_t i, size_t *len)
{
    uint32_t best = TOK_NONE, node = trie->root[(uint8_t)a->p[i]];
    for (size_t k = i + 1; node; k++) {
        uint32_t added = trie->node[node].added;
        if (added != TOK_NONE) {
            bool needs = t->entry[t->added[added].id].flags & tr->protect;
            if (!needs || area_trusted(tr, a, i, k)) {
                best = added;
                *len = k - i;
            }
        }
        if (k == a->n) break;
        node = trie->node[node].child;
        while (node && trie->node[node].byte != (uint8_t)a->p[k]) node = trie->node[node].sibling;
    }
    return best;
}

/* True when a token that needs no trust begins in untrusted text and runs into a control token of trusted text: it would swallow the template's
 * token. */
static bool swallows(const m5_tokenizer *t, const tok_trie *trie, trust *tr, const area *a, size_t i, size_t len)
{
    for (size_t k = i + 1; k < i + len; k++) {
        size_t n;
        uint32_t added = longest_at(t, trie, tr, a, k, &n);
        if (added != TOK_NONE && t->entry[t->added[added].id].flags & tr->protect) return true;
    }
    return false;
}

static size_t char_before(const char *p, size_t i, uint32_t *cp)
{
    size_t b = i - 1;
    while (b > 0 && i - b < 4 && ((unsigned char)p[b] & 0xC0) == 0x80) b--;
    m5_utf8_decode(p + b, i - b, cp);
    return b;
}

static bool word_beside(const area *a, size_t begin, size_t end)
{
    uint32_t cp;
    if (begin > 0) {
        char_before(a->p, begin, &cp);
        if (m5_tok_is_word(cp)) return true;
    }
    return end < a->n && m5_utf8_decode(a->p + end, a->n - end, &cp) > 0 && m5_tok_is_word(cp);
}

typedef int (*piece_fn)(tok_work *w, trust *tr, const area *a, size_t begin, size_t end);

/* Emits the added tokens of the area and calls piece() for what stands between them, in the order and with the border rules of the Hugging Face
 * library: lstrip never reaches behind the end of the token before, rstrip does not move the search. */
static int cut_at_added(tok_work *w, const tok_trie *trie, trust *tr, const area *a, piece_fn piece)
{
    const m5_tokenizer *t = w->t;
    size_t done = 0;
    int rc = 0;
    for (size_t i = 0; i < a->n && !rc;) {
        size_t len = 0;
        uint32_t added = trie->n && trie->root[(uint8_t)a->p[i]] ? longest_at(t, trie, tr, a, i, &len) : TOK_NONE;
        if (added == TOK_NONE) {
            i++;
            continue;
        }
        const tok_added *tok = &t->added[added];
        bool needs = t->entry[tok->id].flags & tr->protect;
        if (!needs && !area_trusted(tr, a, i, i + len) && swallows(t, trie, tr, a, i, len)) {
            i++;
            continue;
        }
        size_t begin = i, end = i + len;
        i = end;
        if (tok->single_word && word_beside(a, begin, end)) continue;
        uint32_t cp;
        while (tok->lstrip && begin > done) {
            size_t b = char_before(a->p, begin, &cp);
            if (!m5_tok_is_space(cp)) break;
            begin = b;
        }
        if (begin < done) begin = done;
        while (tok->rstrip && end < a->n) {
            int k = m5_utf8_decode(a->p + end, a->n - end, &cp);
            if (k < 1 || !m5_tok_is_space(cp)) break;
            end += (size_t)k;
        }
        if (done < begin) rc = piece(w, tr, a, done, begin);
        if (!rc && m5_ids_push(w->out, tok->id)) rc = m5_error_set(w->err, M5_ERR_NOMEM, "out of memory while tokenizing");
        done = end;
    }
    if (!rc && done < a->n) rc = piece(w, tr, a, done, a->n);
    return rc;
}

static int model_piece(tok_work *w, trust *tr, const area *a, size_t begin, size_t end)
{
    (void)tr;
    return m5_tok_pre_run(w, a->p + begin, end - begin, a->base == 0 && begin == 0);
}

/* A piece of the raw text: normalised, then cut at the added tokens that are matched in normalised text. */
static int raw_piece(tok_work *w, trust *tr, const area *a, size_t begin, size_t end)
{
    const m5_tokenizer *t = w->t;
    const tok_range *map = NULL;
    m5_slice s;
    int rc = m5_tok_normalize(w, a->p + begin, end - begin, &s, t->norm_protected ? &map : NULL);
    if (rc) return rc;
    area b = {s.p, s.n, a->base + begin, map};
    if (t->norm_trie.n) return cut_at_added(w, &t->norm_trie, tr, &b, model_piece);
    return s.n ? model_piece(w, tr, &b, 0, s.n) : 0;
}

/* ---- calls ---- */

/* Some tokenizers name their end-of-text token as the unknown one. It may stand for unknown characters only where everything is trusted. */
static int32_t unknown_for(const m5_tokenizer *t, bool all_trusted)
{
    static const char *const names[] = {"<unk>", "[UNK]", "<UNK>", "<|unk|>", "<|UNK|>", "UNK"};
    if (t->unk < 0 || all_trusted || !(t->entry[t->unk].flags & TOK_SPECIAL)) return t->unk;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (m5_slice_is(m5_tok_text(t, t->unk), names[i])) return t->unk;
    }
    return -1;
}

static int run(const m5_tokenizer *t, m5_ids *out, const char *text, size_t n, trust *tr, bool add_bos, m5_error *err)
{
    bool all_trusted = n == 0 || is_trusted(tr, 0, n);
    tok_work w = {.t = t, .out = out, .err = err, .unk = unknown_for(t, all_trusted)};
    size_t before = out->n;
    int rc = 0;
    if (add_bos && !before) {
        for (size_t i = 0; i < t->n_prefix && !rc; i++) rc = m5_ids_push(out, t->prefix[i]);
        if (rc) rc = m5_error_set(err, rc, "out of memory while tokenizing");
    }
    if (!rc && n >= CACHE_FROM) w.cache = m5_calloc(M5_MEM_SCRATCH, TOK_CACHE_SLOTS, sizeof *w.cache); /* without it: slower, same ids */
    area a = {text, n, 0, NULL};
    if (!rc) rc = cut_at_added(&w, &t->raw_trie, tr, &a, raw_piece);
    if (rc) out->n = before;
    m5_tok_work_deinit(&w);
    return rc;
}

static int check_size(size_t n, m5_error *err)
{
    return n > MAX_TEXT ? m5_error_set(err, M5_ERR_LIMIT, "a text of %zu bytes is too long to tokenize (limit %zu)", n, MAX_TEXT) : 0;
}

/* Copies text with every ill-formed part replaced by U+FFFD; the n_spans borders move along. */
static int repair(m5_buf *out, const char *text, size_t n, m5_text_span *span, size_t n_spans, m5_error *err)
{
    size_t sb = 0, se = 0;
    for (size_t i = 0; i <= n;) {
        uint32_t cp;
        /* A border inside a character moves to its start, which can only shrink the trusted bytes of that character. */
        int k = i < n ? m5_utf8_decode(text + i, n - i, &cp) : 1;
        size_t len = k > 0 ? (size_t)k : n - i;
        while (sb < n_spans && span[sb].begin < i + len) span[sb++].begin = out->n;
        while (se < n_spans && span[se].end < i + len) span[se++].end = out->n;
        if (i < n) m5_buf_codepoint(out, k > 0 ? cp : 0xFFFD);
        i += len;
    }
    return out->failed ? m5_error_set(err, M5_ERR_NOMEM, "out of memory while tokenizing") : 0;
}

int m5_tokenize(const m5_tokenizer *t, m5_ids *out, const char *text, size_t n, m5_special special, bool add_bos, m5_error *err)
{
    m5_text_span all = {0, n, true};
    /* No trusted stretch at all leaves the special tokens out; markers that are not special need no trust here. */
    trust tr = {&all, special == M5_SPECIAL_PARSE, 0, TOK_SPECIAL};
    m5_buf copy = {0};
    int rc = check_size(n, err);
    if (!rc && n && !m5_utf8_valid(text, n)) {
        rc = repair(&copy, text, n, NULL, 0, err);
        text = copy.p;
        n = all.end = copy.n;
    }
    if (!rc) rc = run(t, out, text, n, &tr, add_bos, err);
    m5_buf_free(&copy);
    return rc;
}

int m5_tokenize_spans(const m5_tokenizer *t, m5_ids *out, const char *text, size_t n, const m5_text_span *spans, size_t n_spans, bool add_bos,
                      m5_error *err)
{
    m5_buf copy = {0};
    m5_text_span *joined = NULL;
    size_t k = 0, at = 0;
    int rc = check_size(n, err);
    if (rc) return rc;
    joined = m5_calloc(M5_MEM_SCRATCH, n_spans, sizeof *joined);
    if (!joined) return m5_error_set(err, M5_ERR_NOMEM, "out of memory while tokenizing");
    for (size_t i = 0; i < n_spans; i++) {
        m5_text_span s = spans[i];
        if (s.begin < at || s.end < s.begin || s.end > n) {
            rc = m5_error_set(err, M5_ERR_ARG, "span %zu (%zu to %zu) is out of order or outside the text of %zu bytes", i, s.begin, s.end, n);
            goto out;
        }
        at = s.end;
        if (!s.trusted || s.begin == s.end) continue;
        if (k && joined[k - 1].end == s.begin)
            joined[k - 1].end = s.end;
        else
            joined[k++] = s;
    }
    if (n && !m5_utf8_valid(text, n)) {
        rc = repair(&copy, text, n, joined, k, err);
        if (rc) goto out;
        text = copy.p;
        n = copy.n;
    }
    trust tr = {joined, k, 0, TOK_SPECIAL | TOK_MARKER};
    rc = run(t, out, text, n, &tr, add_bos, err);
out:
    m5_free(joined);
    m5_buf_free(&copy);
    return rc;
}
