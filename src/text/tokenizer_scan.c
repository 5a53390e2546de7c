/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the two large values of a tokenizer.json, model.vocab and model.merges, straight into the tables. Everything else of the file goes through
 * base/json.h: as a tree Gemma's 262 K tokens and 515 K merges take 1.2 s and 950 MB, this way 0.2 s and no memory beside the tables. */
#include "text/tokenizer_internal.h"

#include <string.h>

#define MAX_DEPTH 128

typedef struct scan {
    const char *p;
    size_t n, i;
    m5_error *err;
} scan;

static int bad(scan *s, const char *what)
{
    return m5_error_set(s->err, M5_ERR_FORMAT, "tokenizer.json: %s (near byte %zu of the value)", what, s->i);
}

static void skip_space(scan *s)
{
    while (s->i < s->n && (s->p[s->i] == ' ' || s->p[s->i] == '\n' || s->p[s->i] == '\r' || s->p[s->i] == '\t')) s->i++;
}

/* The next character that is no white space, or 0 at the end. */
static char peek(scan *s)
{
    skip_space(s);
    return s->i < s->n ? s->p[s->i] : '\0';
}

static bool take(scan *s, char c)
{
    if (peek(s) != c) return false;
    s->i++;
    return true;
}

static int hex4(scan *s, uint32_t *out)
{
    uint32_t v = 0;
    if (s->n - s->i < 4) return bad(s, "a \\u escape is cut short");
    for (int k = 0; k < 4; k++) {
        char c = s->p[s->i++];
        uint32_t d = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                     : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                     : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                            : 16;
        if (d == 16) return bad(s, "a \\u escape has a character that is no hexadecimal digit");
        v = v * 16 + d;
    }
    *out = v;
    return 0;
}

static int escape(scan *s, m5_buf *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    if (s->i >= s->n) return bad(s, "a string does not end");
    char c = s->p[s->i++];
    const char *at = c ? strchr(from, c) : NULL;
    if (at) {
        m5_buf_putc(out, to[at - from]);
        return 0;
    }
    if (c != 'u') return bad(s, "unknown escape in a string");
    uint32_t v, low;
    int rc = hex4(s, &v);
    if (rc) return rc;
    if (v >= 0xD800 && v < 0xE000) {
        if (v >= 0xDC00 || s->n - s->i < 2 || s->p[s->i] != '\\' || s->p[s->i + 1] != 'u') return bad(s, "lone surrogate in a string");
        s->i += 2;
        rc = hex4(s, &low);
        if (rc) return rc;
        if (low < 0xDC00 || low > 0xDFFF) return bad(s, "lone surrogate in a string");
        v = 0x10000 + ((v - 0xD800) << 10) + (low - 0xDC00);
    }
    m5_buf_codepoint(out, v);
    return 0;
}

/* Decodes a string into buf (replaced), or lets *out point into the text when it holds no escape. */
static int read_string(scan *s, m5_buf *buf, m5_slice *out)
{
    if (!take(s, '"')) return bad(s, "a string is expected");
    size_t begin = s->i;
    bool high = false;
    while (s->i < s->n && s->p[s->i] != '"' && s->p[s->i] != '\\') {
        if ((unsigned char)s->p[s->i] < 0x20) return bad(s, "control character in a string");
        high |= (unsigned char)s->p[s->i++] >= 0x80;
    }
    if (s->i >= s->n) return bad(s, "a string does not end");
    if (high && !m5_utf8_valid(s->p + begin, s->i - begin)) return bad(s, "a string is not UTF-8");
    *out = (m5_slice){s->p + begin, s->i - begin};
    if (s->p[s->i] == '"') {
        s->i++;
        return 0;
    }
    m5_buf_clear(buf);
    m5_buf_slice(buf, *out);
    while (s->i < s->n && s->p[s->i] != '"') {
        size_t from = s->i;
        if (s->p[s->i] == '\\') {
            s->i++;
            int rc = escape(s, buf);
            if (rc) return rc;
            continue;
        }
        while (s->i < s->n && s->p[s->i] != '"' && s->p[s->i] != '\\') {
            if ((unsigned char)s->p[s->i++] < 0x20) return bad(s, "control character in a string");
        }
        if (!m5_utf8_valid(s->p + from, s->i - from)) return bad(s, "a string is not UTF-8");
        m5_buf_append(buf, s->p + from, s->i - from);
    }
    if (s->i >= s->n) return bad(s, "a string does not end");
    s->i++;
    if (buf->failed) return m5_error_set(s->err, M5_ERR_NOMEM, "out of memory while reading tokenizer.json");
    *out = m5_buf_view(buf);
    return 0;
}

static void skip_string(scan *s)
{
    s->i++;
    while (s->i < s->n && s->p[s->i] != '"') s->i += s->p[s->i] == '\\' ? 2 : 1;
    if (s->i < s->n)
        s->i++;
    else
        s->i = s->n;
}

/* Steps over one value by its brackets alone; whether it is well formed is for its reader to say. */
static int skip_value(scan *s)
{
    int depth = 0;
    char c = peek(s);
    do {
        c = peek(s);
        if (!c) return bad(s, "the text ends inside a value");
        if (c == '"') {
            skip_string(s);
        } else if (c == '{' || c == '[') {
            if (++depth > MAX_DEPTH) return m5_error_set(s->err, M5_ERR_LIMIT, "tokenizer.json is nested deeper than %d levels", MAX_DEPTH);
            s->i++;
        } else if (c == '}' || c == ']') {
            if (depth-- == 0) return bad(s, "a value is missing");
            s->i++;
        } else if (depth && (c == ',' || c == ':')) {
            s->i++;
        } else {
            size_t from = s->i;
            while (s->i < s->n && !strchr(",:]}[{\" \n\r\t", s->p[s->i])) s->i++;
            if (s->i == from) return bad(s, "a value is missing");
        }
    } while (depth);
    return 0;
}

/* Calls itself at most once: for the member "model" of the root. */
static int scan_members(scan *s, tok_scan_model *out, bool in_model, size_t *copied)
{
    if (!take(s, '{')) return bad(s, "an object is expected");
    if (take(s, '}')) return 0;
    for (;;) {
        if (peek(s) != '"') return bad(s, "a member name is expected");
        size_t begin = s->i + 1;
        skip_string(s);
        m5_slice key = {s->p + begin, s->i > begin ? s->i - begin - 1 : 0};
        if (!take(s, ':')) return bad(s, "':' is expected");
        peek(s);
        size_t value = s->i;
        int rc;
        if (!in_model && m5_slice_is(key, "model") && peek(s) == '{') {
            rc = scan_members(s, out, true, copied);
        } else {
            rc = skip_value(s);
            m5_slice *dst = !in_model ? NULL : m5_slice_is(key, "vocab") ? &out->vocab : m5_slice_is(key, "merges") ? &out->merges : NULL;
            if (!rc && dst && !dst->p) {
                *dst = (m5_slice){s->p + value, s->i - value};
                m5_buf_append(&out->rest, s->p + *copied, value - *copied);
                m5_buf_putc(&out->rest, '0');
                *copied = s->i;
            }
        }
        if (rc) return rc;
        if (take(s, '}')) return 0;
        if (!take(s, ',')) return bad(s, "',' or '}' is expected");
    }
}

int m5_tok_scan_model(tok_scan_model *out, const char *json, size_t n, m5_error *err)
{
    scan s = {json, n, 0, err};
    size_t copied = 0;
    int rc = scan_members(&s, out, false, &copied);
    if (rc) return rc;
    m5_buf_append(&out->rest, json + copied, n - copied);
    return out->rest.failed ? m5_error_set(err, M5_ERR_NOMEM, "out of memory while reading tokenizer.json") : 0;
}

static int read_id(scan *s, int64_t *out)
{
    int64_t v = 0;
    peek(s);
    size_t from = s->i;
    while (s->i < s->n && s->p[s->i] >= '0' && s->p[s->i] <= '9' && v < INT64_C(1) << 40) v = v * 10 + (s->p[s->i++] - '0');
    if (s->i == from) return bad(s, "a token id is not a whole number");
    *out = v;
    return 0;
}

int m5_tok_scan_vocab(m5_tokenizer *t, m5_slice object, m5_error *err)
{
    scan s = {object.p, object.n, 0, err};
    m5_buf buf = {0};
    int rc = 0;
    if (!take(&s, '{')) return bad(&s, "model.vocab is not an object");
    /* Ids are nearly dense; this many bytes of text cannot hold more entries than that, so a huge id is an error and not an allocation. */
    int64_t limit = (int64_t)(object.n / 2) + 65536;
    bool end = take(&s, '}');
    while (!end) {
        m5_slice text;
        int64_t id = 0;
        rc = read_string(&s, &buf, &text);
        if (!rc && !take(&s, ':')) rc = bad(&s, "':' is expected in model.vocab");
        if (!rc) rc = read_id(&s, &id);
        if (!rc && id >= limit) rc = m5_error_set(err, M5_ERR_FORMAT, "token id %lld is out of range in model.vocab", (long long)id);
        if (!rc && m5_tok_vocab_find(t, text.p, text.n) >= 0) {
            rc = m5_error_set(err, M5_ERR_FORMAT, "token \"%.*s\" stands twice in model.vocab", (int)(text.n > 60 ? 60 : text.n), text.p);
        }
        if (!rc) rc = m5_tok_vocab_set(t, (int32_t)id, text, TOK_MODEL, err);
        if (rc) break;
        end = take(&s, '}');
        if (!end && !take(&s, ',')) {
            rc = bad(&s, "',' or '}' is expected in model.vocab");
            break;
        }
    }
    m5_buf_free(&buf);
    return rc;
}

/* "a b" or ["a", "b"] */
static int read_merge(scan *s, m5_buf *a, m5_buf *b, m5_slice *left, m5_slice *right)
{
    int rc;
    if (take(s, '[')) {
        rc = read_string(s, a, left);
        if (!rc && !take(s, ',')) rc = bad(s, "a merge is not a pair");
        if (!rc) rc = read_string(s, b, right);
        if (!rc && !take(s, ']')) rc = bad(s, "a merge is not a pair");
        return rc;
    }
    m5_slice both;
    rc = read_string(s, a, &both);
    if (rc) return rc;
    size_t at = m5_slice_find(both, M5_SLICE(" "), 0);
    if (at == SIZE_MAX || m5_slice_find(both, M5_SLICE(" "), at + 1) != SIZE_MAX) return bad(s, "a merge is not two texts with one space between");
    *left = (m5_slice){both.p, at};
    *right = (m5_slice){both.p + at + 1, both.n - at - 1};
    return 0;
}

int m5_tok_scan_merges(m5_tokenizer *t, m5_slice array, m5_error *err)
{
    scan s = {array.p, array.n, 0, err};
    m5_buf a = {0}, b = {0}, scratch = {0};
    int rc = 0;
    if (!take(&s, '[')) return bad(&s, "model.merges is not an array");
    bool end = take(&s, ']');
    for (uint32_t rank = 0; !end; rank++) {
        m5_slice left, right;
        rc = read_merge(&s, &a, &b, &left, &right);
        if (!rc) rc = m5_tok_merge_add(t, left, right, rank, &scratch, err);
        if (rc) break;
        end = take(&s, ']');
        if (!end && !take(&s, ',')) {
            rc = bad(&s, "',' or ']' is expected in model.merges");
            break;
        }
    }
    m5_buf_free(&a);
    m5_buf_free(&b);
    m5_buf_free(&scratch);
    return rc;
}
