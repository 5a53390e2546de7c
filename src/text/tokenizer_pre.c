/* SPDX-License-Identifier: Apache-2.0 */
/* Pre-tokenizers: cut one normalised piece into units and hand them to the model. Every step maps a list of ranges to a finer one; steps that change
 * the text (byte alphabet, prefix space, Metaspace) write a new text and new ranges. */
#include "text/tokenizer_internal.h"

int m5_tok_ranges_push(tok_ranges *r, size_t begin, size_t end)
{
    if (r->n == r->cap) {
        size_t cap = r->cap ? r->cap * 2 : 64;
        tok_range *p = m5_realloc(M5_MEM_SCRATCH, r->p, cap * sizeof *p);
        if (!p) return M5_ERR_NOMEM;
        r->p = p;
        r->cap = cap;
    }
    r->p[r->n++] = (tok_range){(uint32_t)begin, (uint32_t)end};
    return 0;
}

/* Appends a piece to the list unless it is empty. */
static int put(tok_work *w, tok_ranges *out, size_t begin, size_t end)
{
    if (begin >= end) return 0;
    int rc = m5_tok_ranges_push(out, begin, end);
    return rc ? m5_error_set(w->err, rc, "out of memory while splitting text") : 0;
}

/* A walk over a text as alternating gaps and matches. */
typedef struct cut {
    size_t begin, end;
    bool match;
} cut;

static size_t n_cuts(const tok_ranges *m)
{
    return m->n * 2 + 1;
}

/* Cut i of a text of n bytes: even = the gap before match i / 2 (maybe empty), odd = the match. */
static cut cut_at(const tok_ranges *m, size_t n, size_t i, bool invert)
{
    cut c;
    if (i & 1) {
        c = (cut){m->p[i / 2].begin, m->p[i / 2].end, true};
    } else {
        c.begin = i ? m->p[i / 2 - 1].end : 0;
        c.end = i / 2 < m->n ? m->p[i / 2].begin : n;
        c.match = false;
    }
    if (invert) c.match = !c.match;
    return c;
}

/* A gap between adjacent matches is no cut at all; an empty match is one (it separates). */
static bool is_real(cut c, size_t i)
{
    return (i & 1) || c.end > c.begin;
}

static int split_merge_next(tok_work *w, const tok_pre *s, size_t base, size_t n, tok_ranges *out)
{
    const tok_ranges *m = &w->matches;
    size_t first = out->n, begin = 0, end = 0;
    bool open = false, previous = false;
    int rc = 0;
    for (size_t i = n_cuts(m); i-- > 0 && !rc;) {
        cut c = cut_at(m, n, i, s->invert);
        if (!is_real(c, i)) continue;
        if (c.match && !previous && open) {
            begin = c.begin;
        } else {
            if (open) rc = put(w, out, base + begin, base + end);
            begin = c.begin;
            end = c.end;
            open = true;
        }
        previous = c.match;
    }
    if (open && !rc) rc = put(w, out, base + begin, base + end);
    for (size_t a = first, b = out->n; a + 1 < b; a++, b--) {
        tok_range x = out->p[a];
        out->p[a] = out->p[b - 1];
        out->p[b - 1] = x;
    }
    return rc;
}

/* Splits the n bytes at text + base by the matches in w->matches. */
static int split_piece(tok_work *w, const tok_pre *s, size_t base, size_t n, tok_ranges *out)
{
    const tok_ranges *m = &w->matches;
    if (s->behavior == TOK_WITH_NEXT) return split_merge_next(w, s, base, n, out);
    size_t begin = 0, end = 0;
    bool open = false, previous = false;
    int rc = 0;
    for (size_t i = 0; i < n_cuts(m) && !rc; i++) {
        cut c = cut_at(m, n, i, s->invert);
        if (!is_real(c, i)) continue;
        bool join = open && ((s->behavior == TOK_WITH_PREVIOUS && c.match && !previous) || (s->behavior == TOK_CONTIGUOUS && c.match == previous));
        if (join) {
            end = c.end;
        } else {
            if (open) rc = put(w, out, base + begin, base + end);
            open = !(s->behavior == TOK_REMOVED && c.match);
            begin = c.begin;
            end = c.end;
        }
        previous = c.match;
    }
    if (open && !rc) rc = put(w, out, base + begin, base + end);
    return rc;
}

static int step_split(tok_work *w, const tok_pre *s, const char *text, const tok_ranges *in, tok_ranges *out)
{
    for (size_t i = 0; i < in->n; i++) {
        size_t begin = in->p[i].begin, n = in->p[i].end - begin;
        int rc = m5_tok_pattern_matches(w, &s->pattern, text + begin, n);
        if (!rc) rc = split_piece(w, s, begin, n, out);
        if (rc) return rc;
    }
    return 0;
}

/* GPT-2's byte alphabet as text, for the rare chain in which a step follows it. */
static void map_bytes(m5_buf *to, const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) m5_buf_codepoint(to, m5_tok_byte_to_cp((uint8_t)p[i]));
}

static void map_metaspace(m5_buf *to, const tok_pre *s, const char *p, size_t n, bool at_start)
{
    bool has = (n && p[0] == ' ') || m5_slice_starts((m5_slice){p, n}, (m5_slice){s->text, s->n_text});
    if (!has && (s->prepend == TOK_PREPEND_ALWAYS || (s->prepend == TOK_PREPEND_FIRST && at_start))) m5_buf_append(to, s->text, s->n_text);
    for (size_t i = 0; i < n; i++) {
        if (p[i] == ' ')
            m5_buf_append(to, s->text, s->n_text);
        else
            m5_buf_putc(to, p[i]);
    }
}

static int step_rewrite(tok_work *w, const tok_pre *s, const char *text, const tok_ranges *in, tok_ranges *out, m5_buf *to, bool at_start)
{
    m5_buf_clear(to);
    for (size_t i = 0; i < in->n; i++) {
        const char *p = text + in->p[i].begin;
        size_t n = in->p[i].end - in->p[i].begin, from = to->n;
        if (s->kind == TOK_PRE_BYTES) {
            map_bytes(to, p, n);
        } else if (s->kind == TOK_PRE_METASPACE) {
            map_metaspace(to, s, p, n, at_start && in->p[i].begin == 0);
        } else {
            if (n && p[0] != ' ') m5_buf_putc(to, ' ');
            m5_buf_append(to, p, n);
        }
        if (to->failed) return m5_error_set(w->err, M5_ERR_NOMEM, "out of memory while splitting text");
        if (to->n > (size_t)INT32_MAX) return m5_error_set(w->err, M5_ERR_LIMIT, "a text is too long to tokenize");
        int rc = put(w, out, from, to->n);
        if (rc) return rc;
    }
    return 0;
}

int m5_tok_pre_run(tok_work *w, const char *p, size_t n, bool at_start)
{
    const m5_tokenizer *t = w->t;
    int side = 0, rc;
    const char *text = p;
    if (!n) return 0;
    w->pre[0].n = 0;
    rc = put(w, &w->pre[0], 0, n);
    for (size_t i = 0; i < t->n_pre && !rc; i++) {
        const tok_pre *s = &t->pre[i];
        tok_ranges *in = &w->pre[side], *out = &w->pre[!side];
        out->n = 0;
        if (s->kind == TOK_PRE_SPLIT) {
            rc = step_split(w, s, text, in, out);
        } else {
            m5_buf *to = &w->pre_text[text == w->pre_text[0].p];
            rc = step_rewrite(w, s, text, in, out, to, at_start);
            text = to->p ? to->p : "";
        }
        side = !side;
    }
    for (size_t i = 0; i < w->pre[side].n && !rc; i++) {
        tok_range r = w->pre[side].p[i];
        rc = m5_tok_bpe(w, text + r.begin, r.end - r.begin);
    }
    return rc;
}
