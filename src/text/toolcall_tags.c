/* SPDX-License-Identifier: Apache-2.0 */
/* Calls written as tags around plain text: <function=F><parameter=K>text</parameter></function> and its kin. The text has no escapes, so that a value
 * may hold anything, closing tags too: a value ends where what follows is the structure of a call. Not here: types (toolcall_type.c). */
#include "text/toolcall_internal.h"

#include "base/hash.h"
#include "base/mem.h"

#include <string.h>

enum { T_FN, T_VALUE_OPEN, T_VALUE_BEGIN, T_VALUE };

static const char *win(const m5_toolcall *p, size_t *n)
{
    *n = p->in.n - p->at;
    return p->in.p + p->at;
}

void tc_tags_start(m5_toolcall *p)
{
    p->tag_state = T_FN;
    p->first_par = true;
    p->n_seen = 0;
}

static void end_call(m5_toolcall *p, bool complete)
{
    if (!p->first_par) m5_buf_puts(&p->args, "}");
    tc_end(p, complete);
}

void tc_tags_deinit(m5_toolcall *p)
{
    m5_free(p->seen);
}

static bool seen(const m5_toolcall *p, m5_slice name)
{
    uint64_t h = m5_hash64(name.p, name.n);
    for (size_t i = 0; i < p->n_seen; i++)
        if (p->seen[i] == h) return true;
    return false;
}

static void remember(m5_toolcall *p, m5_slice name)
{
    if (p->n_seen >= TC_MAX_KEYS) return;
    if (p->n_seen == p->cap_seen) {
        size_t cap = p->cap_seen ? 2 * p->cap_seen : 16;
        uint64_t *grown = m5_realloc(M5_MEM_REQUEST, p->seen, cap * sizeof *grown);
        if (!grown) {
            p->failed = true;
            return;
        }
        p->seen = grown;
        p->cap_seen = cap;
    }
    p->seen[p->n_seen++] = m5_hash64(name.p, name.n);
}

/* ---- values ---- */

static void put_key(m5_toolcall *p)
{
    m5_buf_puts(&p->args, p->first_par ? "{" : ", ");
    p->first_par = false;
    m5_buf_putc(&p->args, '"');
    tj_escape(&p->args, p->par.p ? p->par.p : "", p->par.n);
    m5_buf_puts(&p->args, "\": ");
}

/* Could the text so far still be a null? */
static bool maybe_null(const m5_buf *b)
{
    m5_slice s = m5_buf_view(b);
    while (s.n && tc_space(s.p[0])) {
        s.p++;
        s.n--;
    }
    while (s.n && tc_space(s.p[s.n - 1])) s.n--;
    return b->n < 64 && (m5_slice_starts(M5_SLICE("null"), s) || m5_slice_starts(M5_SLICE("None"), s) || m5_slice_starts(M5_SLICE("NULL"), s));
}

/* A value that its type makes a container: true when it is one. It is mended where it must be, and what stands behind it follows the call. */
static bool pipe_value(m5_toolcall *p, bool over)
{
    static const char *const none[] = {NULL};
    if (!p->piped) {
        if (p->open_string || !tc_is_container(&p->type, p->value.p ? p->value.p : "", p->value.n)) return false;
        put_key(p);
        tj_init(&p->root, TJ_PYTHON, none);
        p->root.out = &p->args;
        p->piped = true;
    }
    size_t used = 0;
    tj_status s = tj_feed(&p->root, p->value.p ? p->value.p : "", p->value.n, over, &used);
    m5_buf_erase_front(&p->value, used);
    if (!over) return true;
    if (s != TJ_DONE) tj_close(&p->root);
    for (size_t i = 0; i < p->value.n; i++)
        if (p->spill.n || !(tc_space(p->value.p[i]) || strchr("}])", p->value.p[i]))) m5_buf_putc(&p->spill, p->value.p[i]);
    p->piped = false;
    return true;
}

/* Nothing but text, whatever else its type allows: decided alike when it streams and when it is over. */
static bool is_text(const m5_toolcall *p)
{
    bool choice = m5_json_get(p->type.schema, "enum") || m5_json_get(p->type.schema, "const");
    bool text = p->type.set == TC_STR || (p->type.set == (TC_STR | TC_NULL) && !maybe_null(&p->value));
    return p->value.n >= TC_MAX_RAW_BYTES || (text && !choice);
}

/* Gives out what is certain. */
static void stream_value(m5_toolcall *p)
{
    if (p->drop) {
        m5_buf_clear(&p->value);
        return;
    }
    if (pipe_value(p, false)) return;
    if (!p->open_string) {
        if (!p->value.n || !is_text(p)) return;
        put_key(p);
        m5_buf_putc(&p->args, '"');
        p->open_string = true;
    }
    tj_escape(&p->args, p->value.p ? p->value.p : "", p->value.n);
    m5_buf_clear(&p->value);
}

static void end_value(m5_toolcall *p)
{
    p->tag_state = T_FN;
    if (p->open_string) {
        stream_value(p);
        m5_buf_putc(&p->args, '"');
        p->open_string = false;
    } else if (!p->drop && !pipe_value(p, true)) {
        m5_buf b = {0};
        if (is_text(p)) p->type = (tc_type){.set = TC_STR};
        if (tc_convert(&b, &p->type, p->value.p, p->value.n)) {
            put_key(p);
            m5_buf_append(&p->args, b.p ? b.p : "", b.n);
        }
        p->failed = p->failed || b.failed;
        m5_buf_free(&b);
    }
    m5_buf_clear(&p->value);
}

static void begin_value(m5_toolcall *p)
{
    m5_slice name = m5_buf_view(&p->par);
    p->drop = seen(p, name);
    if (!p->drop) remember(p, name);
    p->type = tc_type_of(p->params, name);
    if (p->attr >= 0) p->type = (tc_type){.set = p->attr ? TC_STR : TC_ANY & ~TC_STR, .required = true};
    p->open_string = p->piped = p->value_begun = false;
    m5_buf_clear(&p->value);
    p->tag_state = p->f->tags->value_open ? T_VALUE_OPEN : T_VALUE_BEGIN;
}

/* ---- where a value ends ---- */

/* Behind a closing tag at i: does the structure of a call follow? */
static tc_match structure_at(const m5_toolcall *p, const char *w, size_t n, size_t i, bool parameter)
{
    const tc_tags *t = p->f->tags;
    const char *const follow[] = {t->fn_close, t->fn_open[0] ? t->fn_open : t->fn_close, parameter ? t->par_open : t->fn_close, NULL};
    size_t len, from = i;
    for (;;) {
        while (i < n && tc_space(w[i]) && i - from < TC_MAX_LOOK) i++;
        if (i == n) return p->final ? TC_YES : TC_WAIT;
        tc_match again = parameter ? tc_starts(w + i, n - i, t->par_close, false) : TC_NO;
        if (again == TC_WAIT) return p->final ? TC_YES : TC_WAIT;
        if (again == TC_NO) break;
        i += strlen(t->par_close); /* a doubled tag */
        from = i;
    }
    tc_match a = tc_starts_any(w + i, n - i, follow, false, &len), b = tc_starts_any(w + i, n - i, p->f->stops, false, &len);
    if (a == TC_YES || b == TC_YES) return TC_YES;
    if (a == TC_WAIT || b == TC_WAIT) return p->final ? TC_YES : TC_WAIT;
    return TC_NO;
}

/* A parameter's opening tag at i, at the beginning of a line, with a declared name that has not come yet: the tag before it was forgotten. */
static tc_match next_parameter(const m5_toolcall *p, const char *w, size_t n, size_t i)
{
    const tc_tags *t = p->f->tags;
    tc_match m = tc_starts(w + i, n - i, t->par_open, p->final);
    if (m != TC_YES) return m;
    size_t from = i += strlen(t->par_open);
    for (; i < n && i - from < TC_MAX_NAME; i++) {
        m = tc_starts(w + i, n - i, t->par_mid, p->final);
        if (m == TC_WAIT) return m;
        if (m == TC_YES) break;
        if (w[i] == '\n' || w[i] == '<') return TC_NO;
    }
    if (i == n) return p->final ? TC_NO : TC_WAIT;
    m5_slice name = {w + from, i - from};
    bool declared = m5_json_getn(m5_json_get(p->params, "properties"), name.p, name.n) != NULL;
    return declared && !seen(p, name) ? TC_YES : TC_NO;
}

/* Does the value end at i? *next is where the rest begins. */
static tc_match ends_at(const m5_toolcall *p, const char *w, size_t n, size_t i, bool bol, size_t *next)
{
    const tc_tags *t = p->f->tags;
    tc_match m = tc_starts(w + i, n - i, t->par_close, false);
    if (m == TC_WAIT) {
        *next = n; /* the answer was cut inside the tag */
        return p->final && n - i > 1 ? TC_YES : p->final ? TC_NO : TC_WAIT;
    }
    if (m == TC_YES) {
        *next = i + strlen(t->par_close);
        return structure_at(p, w, n, *next, true);
    }
    *next = i;
    if (!bol) return TC_NO;
    m = next_parameter(p, w, n, i);
    if (m != TC_NO) return m;
    size_t len;
    m = tc_starts_any(w + i, n - i, p->f->close, p->final, &len); /* the function's closing tag is among them */
    if (m != TC_YES) return m;
    return structure_at(p, w, n, i + len, false);
}

/* Takes what belongs to the value; false: more is needed. */
static bool read_value(m5_toolcall *p)
{
    size_t n, i = 0, next = 0;
    const char *w = win(p, &n);
    const tc_tags *t = p->f->tags;
    bool bol = !p->value_begun;
    tc_match m = TC_NO;
    for (; i < n; i++) {
        if (w[i] == '\n' && t->framed) {
            if (i + 1 == n && !p->final) m = TC_WAIT;
            if (i + 1 < n && w[i + 1] == '<') m = ends_at(p, w, n, i + 1, true, &next);
            if (i + 1 == n && p->final) {
                m = TC_YES;
                next = n;
            }
        } else if (w[i] == '<') {
            m = ends_at(p, w, n, i, !t->framed || (i ? w[i - 1] == '\n' : bol), &next);
        }
        if (m != TC_NO) break;
    }
    bool any = i > 0;
    m5_buf_append(&p->value, w, i);
    p->value_begun = p->value_begun || any;
    if (m == TC_YES) {
        tc_take(p, next);
        end_value(p);
        return true;
    }
    tc_take(p, i);
    stream_value(p);
    return false;
}

/* ---- between the values ---- */

/* A parameter's opening tag is at the window's beginning. */
static bool read_parameter(m5_toolcall *p)
{
    const tc_tags *t = p->f->tags;
    size_t n, from = strlen(t->par_open), i = from;
    const char *w = win(p, &n);
    tc_match m = TC_NO;
    for (; i < n && i - from <= TC_MAX_NAME; i++) {
        m = tc_starts(w + i, n - i, t->par_mid, p->final);
        if (m != TC_NO || w[i] == '\n') break;
    }
    if (m == TC_WAIT || (i == n && !p->final)) return false;
    if (m == TC_NO) { /* no tag after all */
        m5_buf_append(&p->spill, w, from);
        tc_take(p, from);
        return true;
    }
    size_t len = i + strlen(t->par_mid);
    p->attr = -1;
    if (t->par_mid[0] == '"') { /* attributes may follow the name */
        size_t look = n - len < TC_MAX_LOOK ? n - len : TC_MAX_LOOK;
        const char *end = memchr(w + len, '>', look);
        if (!end && look < TC_MAX_LOOK && !p->final) return false;
        m5_slice attrs = {w + len, end ? (size_t)(end - w) - len : 0};
        if (m5_slice_find(attrs, M5_SLICE("string=\"true\""), 0) != SIZE_MAX) p->attr = 1;
        if (m5_slice_find(attrs, M5_SLICE("string=\"false\""), 0) != SIZE_MAX) p->attr = 0;
        if (end) len = (size_t)(end - w) + 1;
    }
    m5_buf_clear(&p->par);
    while (from < i && (tc_space(w[from]) || w[from] == '"')) from++;
    while (i > from && (tc_space(w[i - 1]) || w[i - 1] == '"')) i--;
    for (; from < i; from++)
        if (w[from]) m5_buf_putc(&p->par, w[from]);
    tc_take(p, len);
    begin_value(p);
    return true;
}

static bool between(m5_toolcall *p)
{
    const tc_tags *t = p->f->tags;
    size_t n, len;
    const char *w = win(p, &n);
    if (n && tc_space(w[0])) {
        if (p->spill.n && !tc_space(p->spill.p[p->spill.n - 1])) m5_buf_putc(&p->spill, w[0]);
        tc_take(p, 1);
        return true;
    }
    if (!n) return false;
    if (w[0] == '{' && p->first_par && !p->spill.n && t->fn_open[0]) { /* <function=F>{..}</function> */
        tj_init(&p->root, TJ_JSON, p->f->stops);
        p->root.out = &p->args;
        p->root.want_object = true;
        p->state = TC_ARGS;
        return true;
    }
    tc_match m = tc_starts(w, n, t->par_open, p->final);
    if (m == TC_YES) return read_parameter(p);
    if (m == TC_WAIT) return false;
    m = tc_starts(w, n, t->par_close, p->final);
    if (m == TC_WAIT) return false;
    if (m == TC_YES) {
        tc_take(p, strlen(t->par_close));
        return true;
    }
    m = tc_starts(w, n, t->fn_close, p->final);
    if (m == TC_WAIT) return false;
    if (m == TC_YES) {
        tc_take(p, strlen(t->fn_close));
        if (!t->fn_open[0]) p->inside = false; /* one tag closes both */
        end_call(p, true);
        return true;
    }
    const char *const again[] = {t->fn_open[0] ? t->fn_open : t->fn_close, NULL};
    m = tc_starts_any(w, n, p->f->stops, p->final, &len);
    if (m == TC_NO) m = tc_starts_any(w, n, again, p->final, &len);
    if (m == TC_WAIT) return false;
    if (m == TC_YES) {
        end_call(p, false);
        return true;
    }
    size_t i = 1;
    while (i < n && w[i] != '<' && !tc_space(w[i])) i++;
    m5_buf_append(&p->spill, w, i);
    tc_take(p, i);
    return true;
}

bool tc_tags_step(m5_toolcall *p)
{
    const tc_tags *t = p->f->tags;
    size_t n;
    const char *w = win(p, &n);
    switch (p->tag_state) {
    case T_FN: return between(p);
    case T_VALUE_OPEN: {
        if (!n) return false;
        if (tc_space(w[0])) {
            tc_take(p, tc_skip_space(w, n, 0));
            return true;
        }
        tc_match m = tc_starts(w, n, t->value_open, p->final);
        if (m == TC_WAIT) return false;
        if (m == TC_YES) tc_take(p, strlen(t->value_open));
        p->tag_state = m == TC_YES ? T_VALUE_BEGIN : T_FN; /* a key without a value leaves no trace */
        return true;
    }
    case T_VALUE_BEGIN:
        if (!n) return false;
        p->tag_state = T_VALUE;
        if (t->framed && w[0] == '\n') tc_take(p, 1);
        return true;
    default: return n > 0 && read_value(p);
    }
}

void tc_tags_close(m5_toolcall *p)
{
    if (p->tag_state == T_VALUE || p->tag_state == T_VALUE_BEGIN) end_value(p);
    end_call(p, false);
}
