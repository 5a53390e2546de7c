/* SPDX-License-Identifier: Apache-2.0 */
/* What stands behind an opening mark, decided by looking ahead without reading anything away: which body, which name. */
#include "text/toolcall_internal.h"

#include <string.h>

enum { MAX_HEAD = 512 };

tc_match tc_starts(const char *p, size_t n, const char *word, bool final)
{
    size_t len = strlen(word), m = n < len ? n : len;
    if (memcmp(p, word, m) != 0) return TC_NO;
    return m == len ? TC_YES : final ? TC_NO : TC_WAIT;
}

tc_match tc_starts_any(const char *p, size_t n, const char *const *words, bool final, size_t *len)
{
    bool wait = false;
    *len = 0;
    for (; *words; words++) {
        if ((*words)[0] != *p) continue;
        tc_match m = tc_starts(p, n, *words, final);
        wait = wait || m == TC_WAIT;
        if (m == TC_YES && strlen(*words) > *len) *len = strlen(*words);
    }
    return wait ? TC_WAIT : *len ? TC_YES : TC_NO;
}

size_t tc_skip_space(const char *p, size_t n, size_t at)
{
    while (at < n && tc_space(p[at])) at++;
    return at;
}

static bool name_char(char c)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_' || c == '-' || c == '.' || c == ':' || c == '/' || c == '$' ||
           c == '@' || (unsigned char)c >= 0x80;
}

static size_t name_end(const char *p, size_t n, size_t at)
{
    while (at < n && name_char(p[at])) at++;
    return at;
}

static bool has_name_char(const char *p, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (name_char(p[i])) return true;
    return false;
}

/* <function=NAME> */
static tc_match head_tags(const tc_tags *t, const char *p, size_t n, size_t at, bool final, tc_head *h)
{
    size_t mid = strlen(t->fn_mid);
    at += strlen(t->fn_open);
    h->name_at = at;
    h->body = TC_BODY_TAGS;
    for (size_t i = at; i < n && i - at <= TC_MAX_NAME; i++) {
        tc_match m = mid ? tc_starts(p + i, n - i, t->fn_mid, final) : TC_NO;
        if (m == TC_WAIT) return m;
        if (m == TC_YES) {
            h->n_name = i - at;
            h->len = i + mid;
            return has_name_char(p + at, i - at) ? TC_YES : TC_NO;
        }
        bool bad = p[i] == '\n' || p[i] == '<' || p[i] == '{';
        if (!mid && bad) {
            h->n_name = i - at;
            h->len = i;
            return p[i] != '{' && has_name_char(p + at, i - at) ? TC_YES : TC_NO;
        }
        if (bad) return TC_NO;
    }
    return final || n - at > TC_MAX_NAME ? TC_NO : TC_WAIT;
}

/* NAME, then anything that is no prose, then the arguments' brace. */
static tc_match head_named(const m5_toolcall *p, const char *w, size_t n, size_t at, tc_head *h)
{
    h->body = TC_BODY_ARGS;
    h->name_at = at;
    size_t end = name_end(w, n, at);
    if (end - at > TC_MAX_NAME || (end == at && n > at)) return TC_NO;
    if (end == n && !p->final) return TC_WAIT;
    h->n_name = end - at;
    size_t i = tc_skip_space(w, n, end);
    if (i < n && w[i] != '{' && w[i] != '[' && w[i] != '<' && w[i] != '`' && !memchr(w + end, '\n', i - end)) return TC_NO;
    for (; i < n && i - at < MAX_HEAD; i++) {
        size_t len;
        tc_match m = tc_starts_any(w + i, n - i, p->f->stops, p->final, &len);
        if (m == TC_WAIT) return TC_WAIT;
        if (w[i] != '{' && m == TC_NO) continue;
        h->len = i;
        return TC_YES;
    }
    if (i < n) return TC_NO;
    if (!p->final) return TC_WAIT;
    bool known; /* the answer ends behind the name */
    tc_find(p, (m5_slice){w + at, h->n_name}, &known);
    h->len = n;
    return known ? TC_YES : TC_NO;
}

/* f( with a declared f, or with any behind a mark. */
static tc_match head_python(const m5_toolcall *p, const char *w, size_t n, size_t at, tc_head *h)
{
    size_t end = name_end(w, n, at);
    if (end == at || end - at > TC_MAX_NAME) return TC_NO;
    if (end == n) return p->final ? TC_NO : TC_WAIT;
    if (w[end] != '(') return TC_NO;
    bool known;
    m5_slice name = {w + at, end - at};
    if (m5_slice_ends(name, M5_SLICE(".call"))) name.n -= 5;
    tc_find(p, name, &known);
    if (!h->mark && !h->list) return TC_NO; /* prose may begin with a function's name */
    if (!known && !(h->mark && p->f->kind == M5_TOOLCALL_PYTHONIC)) return TC_NO;
    h->body = TC_BODY_ARGS;
    h->name_at = at;
    h->n_name = name.n;
    h->len = end;
    return TC_YES;
}

static tc_match head_body(const m5_toolcall *p, const char *w, size_t n, size_t at, tc_head *h)
{
    const m5_toolcall_format *f = p->f;
    if (at == n) return p->final ? TC_NO : TC_WAIT;
    if (f->name_pre) {
        tc_match m = tc_starts(w + at, n - at, f->name_pre, p->final);
        if (m == TC_WAIT) return m;
        if (m == TC_YES)
            at += strlen(f->name_pre);
        else if (f->mode == TJ_GEMMA)
            return TC_NO;
    }
    if (at < n && w[at] == '[' && f->mode != TJ_GEMMA) {
        size_t i = tc_skip_space(w, n, at + 1);
        if (i - at > TC_MAX_LOOK) return TC_NO;
        if (i == n) return p->final ? TC_NO : TC_WAIT;
        h->list = true;
        at = i;
    }
    if (at < n && w[at] == '{' && f->mode != TJ_GEMMA) {
        h->body = TC_BODY_JSON;
        h->len = at;
        return TC_YES;
    }
    if (f->mode == TJ_PYTHON) return head_python(p, w, n, at, h);
    if (at < n && h->list && !h->mark) return TC_NO;
    if (f->tags) {
        tc_match m = tc_starts(w + at, n - at, f->tags->fn_open, p->final);
        if (m == TC_WAIT) return m;
        if (m == TC_YES && (f->tags->fn_open[0] || h->mark)) return head_tags(f->tags, w, n, at, p->final, h);
    }
    return f->named && h->mark ? head_named(p, w, n, at, h) : TC_NO;
}

static tc_match head(const m5_toolcall *p, tc_head *h, bool mark, bool list)
{
    const char *w = p->in.p + p->at;
    size_t n = p->in.n - p->at, at = 0;
    *h = (tc_head){.mark = mark, .list = list};
    while (at < n) {
        size_t len;
        tc_match m = tc_starts_any(w + at, n - at, p->f->open, p->final, &len);
        if (m == TC_WAIT) return m;
        if (m == TC_NO) break;
        h->mark = true;
        at = tc_skip_space(w, n, at + len);
        if (at > 8 * TC_MAX_LOOK) return TC_NO;
    }
    return head_body(p, w, n, at, h);
}

tc_match tc_head_read(const m5_toolcall *p, tc_head *h)
{
    return head(p, h, false, false);
}

tc_match tc_head_next(const m5_toolcall *p, tc_head *h)
{
    char c = p->in.p[p->at];
    bool start = c == '{' || (p->f->mode == TJ_PYTHON && name_char(c)) || (p->f->tags && p->f->tags->fn_open[0] && c == p->f->tags->fn_open[0]);
    return start ? head(p, h, p->inside, p->list) : TC_NO;
}
