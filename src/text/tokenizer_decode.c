/* SPDX-License-Identifier: Apache-2.0 */
/* Ids -> text. One streaming machine serves whole texts too, so both agree by construction. It follows the decoder list of tokenizer.json: up to
 * "Fuse" (or ByteLevel, which fuses) steps see one token at a time, behind it they see the text as it grows. */
#include "text/tokenizer_internal.h"

#include <string.h>

#define MAX_STEPS 16

typedef struct dec_state {
    m5_buf held;    /* bytes waiting: a byte run, half a character, a possible match, trailing characters */
    int64_t n_seen; /* METASPACE, SUFFIX: tokens so far; STRIP behind Fuse: characters cut at the start, -1 = done */
} dec_state;

struct m5_decoder {
    const m5_tokenizer *t;
    bool skip_special, any_token, failed;
    m5_buf tmp[MAX_STEPS];
    dec_state state[MAX_STEPS];
};

static void feed_token(m5_decoder *d, size_t step, m5_slice token, m5_buf *out);
static void feed_text(m5_decoder *d, size_t step, const char *p, size_t n, m5_buf *out);

/* Everything below Fuse ends here: text without further steps is output. */
static void put_text(m5_decoder *d, size_t step, const char *p, size_t n, m5_buf *out)
{
    if (n) feed_text(d, step, p, n, out);
}

/* ---- steps on the growing text ---- */

/* Appends p to the held bytes and passes on what is decided: whole characters, U+FFFD for each ill-formed part. */
static void text_utf8(m5_decoder *d, size_t step, const char *p, size_t n, bool last, m5_buf *out)
{
    m5_buf *held = &d->state[step].held, *done = &d->tmp[step];
    m5_buf_append(held, p, n);
    m5_buf_clear(done);
    size_t i = 0;
    while (i < held->n) {
        uint32_t cp;
        int k = m5_utf8_decode(held->p + i, held->n - i, &cp);
        if (k < 0) {
            if (!last) break;
            m5_buf_codepoint(done, 0xFFFD); /* one for the unfinished rest */
            i = held->n;
            break;
        }
        m5_buf_codepoint(done, cp);
        i += (size_t)k;
    }
    m5_buf_erase_front(held, i);
    put_text(d, step + 1, done->p, done->n, out);
}

static void text_replace(m5_decoder *d, size_t step, const char *p, size_t n, bool last, m5_buf *out)
{
    const tok_dec *s = &d->t->dec[step];
    m5_buf *held = &d->state[step].held, *done = &d->tmp[step];
    m5_slice from = {s->from, s->n_from};
    m5_buf_append(held, p, n);
    m5_buf_clear(done);
    size_t i = 0, at;
    while ((at = m5_slice_find(m5_buf_view(held), from, i)) != SIZE_MAX) {
        m5_buf_append(done, held->p + i, at - i);
        m5_buf_append(done, s->to, s->n_to);
        i = at + from.n;
    }
    size_t keep = 0; /* the longest end that may still become a match */
    for (size_t k = from.n - 1; k > 0 && !last && !keep; k--) {
        if (held->n - i >= k && memcmp(held->p + held->n - k, from.p, k) == 0) keep = k;
    }
    m5_buf_append(done, held->p ? held->p + i : "", held->n - i - keep);
    m5_buf_erase_front(held, held->n - keep);
    put_text(d, step + 1, done->p, done->n, out);
}

static void text_strip(m5_decoder *d, size_t step, const char *p, size_t n, bool last, m5_buf *out)
{
    const tok_dec *s = &d->t->dec[step];
    dec_state *st = &d->state[step];
    m5_slice c = {s->from, s->n_from};
    while (st->n_seen >= 0 && n) {
        if (st->n_seen >= s->start || !m5_slice_starts((m5_slice){p, n}, c)) {
            st->n_seen = -1;
            break;
        }
        st->n_seen++;
        p += c.n;
        n -= c.n;
    }
    if (s->stop <= 0) {
        put_text(d, step + 1, p, n, out);
        return;
    }
    m5_buf *held = &st->held, *done = &d->tmp[step];
    m5_buf_append(held, p, n);
    size_t tail = 0; /* up to stop characters at the end that go if the text ends here */
    for (int64_t k = 0; k < s->stop && m5_slice_ends((m5_slice){held->p ? held->p : "", held->n - tail}, c); k++) tail += c.n;
    m5_buf_clear(done);
    m5_buf_append(done, held->p ? held->p : "", held->n - tail);
    m5_buf_erase_front(held, last ? held->n : held->n - tail);
    put_text(d, step + 1, done->p, done->n, out);
}

static void text_step(m5_decoder *d, size_t step, const char *p, size_t n, bool last, m5_buf *out)
{
    switch (d->t->dec[step].kind) {
    case TOK_DEC_BYTE_LEVEL: text_utf8(d, step, p, n, last, out); break;
    case TOK_DEC_REPLACE: text_replace(d, step, p, n, last, out); break;
    case TOK_DEC_STRIP: text_strip(d, step, p, n, last, out); break;
    default: put_text(d, step + 1, p, n, out); break; /* Fuse */
    }
}

static void feed_text(m5_decoder *d, size_t step, const char *p, size_t n, m5_buf *out)
{
    if (step == d->t->n_dec)
        m5_buf_append(out, p, n);
    else
        text_step(d, step, p, n, false, out);
}

/* ---- steps on single tokens ---- */

static void replace_all(m5_buf *out, m5_slice text, m5_slice from, const char *to, size_t n_to)
{
    size_t i = 0, at;
    while ((at = m5_slice_find(text, from, i)) != SIZE_MAX) {
        m5_buf_append(out, text.p + i, at - i);
        m5_buf_append(out, to, n_to);
        i = at + from.n;
    }
    m5_buf_append(out, text.p + i, text.n - i);
}

static m5_slice strip_token(const tok_dec *s, m5_slice text)
{
    m5_slice c = {s->from, s->n_from};
    for (int64_t k = 0; k < s->start && text.n && m5_slice_starts(text, c); k++) text = (m5_slice){text.p + c.n, text.n - c.n};
    for (int64_t k = 0; k < s->stop && text.n && m5_slice_ends(text, c); k++) text.n -= c.n;
    return text;
}

/* The run of byte tokens is over: its text if it is UTF-8 as a whole, else one U+FFFD for every byte. */
static void end_byte_run(m5_decoder *d, size_t step, m5_buf *out)
{
    m5_buf *held = &d->state[step].held;
    if (!held->n) return;
    if (m5_utf8_valid(held->p, held->n)) {
        feed_token(d, step + 1, m5_buf_view(held), out);
    } else {
        for (size_t i = 0; i < held->n; i++) feed_token(d, step + 1, M5_SLICE("\xEF\xBF\xBD"), out);
    }
    m5_buf_clear(held);
}

static void feed_token(m5_decoder *d, size_t step, m5_slice token, m5_buf *out)
{
    if (step == d->t->n_dec) {
        m5_buf_slice(out, token);
        return;
    }
    const tok_dec *s = &d->t->dec[step];
    m5_buf *tmp = &d->tmp[step];
    dec_state *st = &d->state[step];
    uint8_t byte;
    switch (s->kind) {
    case TOK_DEC_REPLACE:
        m5_buf_clear(tmp);
        replace_all(tmp, token, (m5_slice){s->from, s->n_from}, s->to, s->n_to);
        feed_token(d, step + 1, m5_buf_view(tmp), out);
        break;
    case TOK_DEC_METASPACE:
        m5_buf_clear(tmp);
        replace_all(tmp, token, (m5_slice){s->from, s->n_from}, " ", st->n_seen++ == 0 && s->drop_first ? 0 : 1);
        feed_token(d, step + 1, m5_buf_view(tmp), out);
        break;
    case TOK_DEC_SUFFIX: /* a token's suffix is a space only if another token follows, so it waits */
        m5_buf_clear(tmp);
        if (st->n_seen++) {
            replace_all(tmp, m5_buf_view(&st->held), (m5_slice){s->from, s->n_from}, " ", 1);
            feed_token(d, step + 1, m5_buf_view(tmp), out);
        }
        m5_buf_clear(&st->held);
        m5_buf_slice(&st->held, token);
        break;
    case TOK_DEC_STRIP: feed_token(d, step + 1, strip_token(s, token), out); break;
    case TOK_DEC_BYTE_FALLBACK:
        if (m5_tok_parse_byte_token(token, &byte)) {
            m5_buf_putc(&st->held, (char)byte);
        } else {
            end_byte_run(d, step, out);
            feed_token(d, step + 1, token, out);
        }
        break;
    default: feed_text(d, step, token.p, token.n, out); break; /* Fuse, ByteLevel */
    }
}

/* ---- the public machine ---- */

int m5_decoder_new(m5_decoder **out, const m5_tokenizer *t, bool skip_special, m5_error *err)
{
    m5_decoder *d = m5_calloc(M5_MEM_REQUEST, 1, sizeof *d);
    if (!d) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for a decoder");
    d->t = t;
    d->skip_special = skip_special;
    *out = d;
    return 0;
}

void m5_decoder_free(m5_decoder *d)
{
    if (!d) return;
    for (size_t i = 0; i < MAX_STEPS; i++) {
        m5_buf_free(&d->tmp[i]);
        m5_buf_free(&d->state[i].held);
    }
    m5_free(d);
}

static int check(m5_decoder *d, const m5_buf *out)
{
    for (size_t i = 0; i < d->t->n_dec; i++) d->failed |= d->tmp[i].failed || d->state[i].held.failed;
    return d->failed || out->failed ? M5_ERR_NOMEM : 0;
}

int m5_decoder_push(m5_decoder *d, int32_t id, m5_buf *out)
{
    const m5_tokenizer *t = d->t;
    if (id < 0 || id >= t->n_vocab || !(t->entry[id].flags & TOK_USED)) return 0;
    if (d->skip_special && t->entry[id].flags & TOK_SPECIAL) return 0;
    m5_slice text = m5_tok_text(t, id);
    if (!t->has_decoder && d->any_token) m5_buf_putc(out, ' ');
    d->any_token = true;
    /* ByteLevel is always the first step; its bytes were made when the tokenizer was opened. */
    if (t->n_dec && t->dec[0].kind == TOK_DEC_BYTE_LEVEL) text = m5_tokenizer_piece(t, id);
    feed_token(d, 0, text, out);
    return check(d, out);
}

int m5_decoder_flush(m5_decoder *d, m5_buf *out)
{
    bool text_phase = false;
    for (size_t i = 0; i < d->t->n_dec; i++) {
        tok_dec_kind kind = d->t->dec[i].kind;
        text_phase |= kind == TOK_DEC_FUSE || kind == TOK_DEC_BYTE_LEVEL;
        if (text_phase) {
            text_step(d, i, "", 0, true, out);
        } else if (kind == TOK_DEC_BYTE_FALLBACK) {
            end_byte_run(d, i, out);
        } else if (kind == TOK_DEC_SUFFIX && d->state[i].n_seen) {
            const tok_dec *s = &d->t->dec[i];
            m5_buf_clear(&d->tmp[i]);
            replace_all(&d->tmp[i], m5_buf_view(&d->state[i].held), (m5_slice){s->from, s->n_from}, "", 0);
            feed_token(d, i + 1, m5_buf_view(&d->tmp[i]), out);
            d->state[i].n_seen = 0;
        }
    }
    return check(d, out);
}

int m5_detokenize(const m5_tokenizer *t, m5_buf *out, const int32_t *ids, size_t n, bool skip_special, m5_error *err)
{
    m5_decoder *d = NULL;
    int rc = m5_decoder_new(&d, t, skip_special, err);
    if (rc) return rc;
    for (size_t i = 0; i < n && !rc; i++) rc = m5_decoder_push(d, ids[i], out);
    if (!rc) rc = m5_decoder_flush(d, out);
    m5_decoder_free(d);
    return rc ? m5_error_set(err, rc, "out of memory while decoding") : 0;
}

int m5_tok_check_decoder(const m5_tokenizer *t, m5_error *err)
{
    bool text_phase = false;
    if (t->n_dec > MAX_STEPS) return m5_error_set(err, M5_ERR_UNSUPPORTED, "the decoder has more than %d steps", MAX_STEPS);
    for (size_t i = 0; i < t->n_dec; i++) {
        tok_dec_kind kind = t->dec[i].kind;
        bool only_tokens = kind == TOK_DEC_BYTE_FALLBACK || kind == TOK_DEC_METASPACE || kind == TOK_DEC_SUFFIX;
        if ((text_phase && only_tokens) || (i && kind == TOK_DEC_BYTE_LEVEL)) {
            return m5_error_set(err, M5_ERR_UNSUPPORTED, "decoder step %zu cannot stand behind the steps before it", i);
        }
        text_phase |= kind == TOK_DEC_FUSE || kind == TOK_DEC_BYTE_LEVEL;
    }
    return 0;
}

/* ---- pieces: each token decoded alone ---- */

/* A text wholly in the byte alphabet gives its bytes; anything else (an added token with a space, say) stands for itself. */
static void bytes_of(m5_buf *out, m5_slice s)
{
    size_t before = out->n;
    for (size_t i = 0; i < s.n;) {
        uint32_t cp;
        int k = m5_utf8_decode(s.p + i, s.n - i, &cp), b = k > 0 ? m5_tok_cp_to_byte(cp) : -1;
        if (b < 0) {
            out->n = before;
            m5_buf_slice(out, s);
            return;
        }
        m5_buf_putc(out, (char)b);
        i += (size_t)k;
    }
}

static void piece_of(const m5_tokenizer *t, m5_buf *out, m5_buf tmp[2], m5_slice text)
{
    int side = 0;
    for (size_t i = 0; i < t->n_dec; i++) {
        const tok_dec *s = &t->dec[i];
        uint8_t byte;
        if (s->kind == TOK_DEC_BYTE_LEVEL) {
            bytes_of(out, text);
            return;
        }
        if (s->kind == TOK_DEC_BYTE_FALLBACK && m5_tok_parse_byte_token(text, &byte)) {
            m5_buf_putc(out, (char)byte);
            return;
        }
        bool space = s->kind == TOK_DEC_METASPACE || s->kind == TOK_DEC_SUFFIX;
        if (s->kind != TOK_DEC_REPLACE && !space) continue; /* the strip at the start of a text is no property of a token */
        m5_buf_clear(&tmp[side]);
        replace_all(&tmp[side], text, (m5_slice){s->from, s->n_from}, space ? " " : s->to, space ? 1 : s->n_to);
        text = m5_buf_view(&tmp[side]);
        side = !side;
    }
    m5_buf_slice(out, text);
}

int m5_tok_make_pieces(m5_tokenizer *t, m5_error *err)
{
    m5_buf *out = &t->piece_pool, tmp[2] = {{0}, {0}};
    for (int32_t i = 0; i < t->n_vocab; i++) {
        tok_entry *e = &t->entry[i];
        size_t before = out->n;
        if (e->flags & TOK_VERBATIM)
            m5_buf_slice(out, m5_tok_text(t, i));
        else
            piece_of(t, out, tmp, m5_tok_text(t, i));
        if (out->n > UINT32_MAX / 2) out->failed = true;
        e->poff = (uint32_t)before;
        e->pn = (uint32_t)(out->n - before);
    }
    bool failed = out->failed || tmp[0].failed || tmp[1].failed;
    m5_buf_free(&tmp[0]);
    m5_buf_free(&tmp[1]);
    return failed ? m5_error_set(err, M5_ERR_NOMEM, "out of memory for the decoded vocabulary") : 0;
}
