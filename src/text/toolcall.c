/* SPDX-License-Identifier: Apache-2.0 */
/* The tool-call parser: content and its marks, where calls begin and end, calls written as JSON objects, events. May touch: base, text. Not here: the
 * formats (toolcall_format.c), JSON itself (toolcall_json.c), tags (toolcall_tags.c). */
#include "text/toolcall_internal.h"

#include "base/mem.h"

#include <string.h>

enum { ROUTE_NONE, ROUTE_NAME, ROUTE_FUNCTION, ROUTE_ARGS };
/* ---- events ---- */

static void emit(m5_toolcall *p, m5_toolcall_event_kind kind, m5_slice text, bool flag)
{
    m5_toolcall_event ev = {.kind = kind, .index = p->count - 1, .text = text};
    if (kind == M5_TOOLCALL_BEGIN) ev.known = flag;
    if (kind == M5_TOOLCALL_END) ev.complete = flag;
    if (kind == M5_TOOLCALL_TEXT) ev.index = 0;
    p->fn(p->arg, &ev);
}

static void flush_text(m5_toolcall *p)
{
    if (p->text.n) emit(p, M5_TOOLCALL_TEXT, m5_buf_view(&p->text), false);
    m5_buf_clear(&p->text);
}

static void flush_args(m5_toolcall *p)
{
    if (!p->args.n) return;
    p->n_args++;
    if (!p->muted) emit(p, M5_TOOLCALL_ARGS, m5_buf_view(&p->args), false);
    m5_buf_clear(&p->args);
}

void tc_take(m5_toolcall *p, size_t n)
{
    if (p->in_call && !p->begun) m5_buf_append(&p->raw, p->in.p + p->at, n);
    p->at += n;
}

/* ---- tools ---- */

static const m5_json *function_of(const m5_json *tool)
{
    const m5_json *f = m5_json_get(tool, "function");
    return m5_json_typeof(f) == M5_JSON_OBJECT ? f : tool;
}

const m5_json *tc_find(const m5_toolcall *p, m5_slice name, bool *known)
{
    *known = false;
    for (size_t i = 0; i < m5_json_len(p->tools); i++) {
        const m5_json *f = function_of(m5_json_at(p->tools, i));
        if (!m5_slice_eq(m5_json_str(m5_json_get(f, "name")), name) || !name.n) continue;
        *known = true;
        const m5_json *params = m5_json_get(f, "parameters");
        if (!params) params = m5_json_get(f, "input_schema");
        return params;
    }
    return NULL;
}

void tc_clean_name(const m5_toolcall *p, m5_buf *name)
{
    m5_slice s = m5_buf_view(name);
    while (s.n && (tc_space(s.p[0]) || s.p[0] == '"' || s.p[0] == '\'')) {
        s.p++;
        s.n--;
    }
    while (s.n && (tc_space(s.p[s.n - 1]) || s.p[s.n - 1] == '"' || s.p[s.n - 1] == '\'')) s.n--;
    bool known;
    tc_find(p, s, &known);
    if (!known) {
        m5_slice t = s;
        if (m5_slice_starts(t, M5_SLICE("functions."))) t = (m5_slice){t.p + 10, t.n - 10};
        size_t n = t.n;
        while (n && t.p[n - 1] >= '0' && t.p[n - 1] <= '9') n--;
        if (n > 1 && n < t.n && t.p[n - 1] == ':') t.n = n - 1;
        if (t.n) s = t;
    }
    char *copy = m5_strndup(M5_MEM_REQUEST, s.p ? s.p : "", s.n);
    m5_buf_clear(name);
    if (copy)
        m5_buf_append(name, copy, s.n);
    else
        name->failed = true;
    m5_free(copy);
}

/* ---- a call's beginning and end ---- */

void tc_begin(m5_toolcall *p)
{
    tc_clean_name(p, &p->name);
    bool known;
    p->params = tc_find(p, m5_buf_view(&p->name), &known);
    p->begun = true;
    p->muted = !p->parallel && p->count > 0;
    m5_buf_clear(&p->raw);
    m5_buf_clear(&p->space);
    if (p->muted) return;
    flush_text(p);
    p->count++;
    emit(p, M5_TOOLCALL_BEGIN, m5_buf_view(&p->name), known);
}

static void reset_call(m5_toolcall *p)
{
    p->in_call = p->begun = p->muted = p->have_name = p->seen_args = p->root_used = false;
    p->route = ROUTE_NONE;
    p->n_args = 0;
    p->params = NULL;
    m5_buf_clear(&p->raw);
    m5_buf_clear(&p->name);
    m5_buf_clear(&p->args);
    m5_buf_clear(&p->spill);
    m5_buf_clear(&p->inner);
}

void tc_end(m5_toolcall *p, bool complete)
{
    flush_args(p);
    if (!p->muted) {
        if (!p->n_args) emit(p, M5_TOOLCALL_ARGS, M5_SLICE("{}"), false);
        emit(p, M5_TOOLCALL_END, (m5_slice){0}, complete);
    }
    p->state = TC_AFTER;
    p->bol = p->fence_bol = true;
    m5_slice spill = m5_buf_view(&p->spill);
    if (spill.n && !p->muted) tc_content(p, spill.p, spill.n);
    reset_call(p);
}

/* What was read since the mark is no call. */
static void abandon(m5_toolcall *p)
{
    m5_buf raw = p->raw;
    p->raw = (m5_buf){0};
    reset_call(p);
    p->state = TC_TEXT;
    p->inside = p->list = false;
    tc_content(p, raw.p ? raw.p : "", raw.n);
    p->failed = p->failed || raw.failed;
    m5_buf_free(&raw);
}

static void start(m5_toolcall *p, const tc_head *h)
{
    p->in_call = true;
    p->is_bare = !h->mark || p->f->open[0][0] == '`'; /* a fence alone says little */
    p->inside = p->inside || h->mark;
    p->list = p->list || h->list;
    if (h->body == TC_BODY_JSON) {
        p->state = TC_JSON;
        tj_init(&p->outer, TJ_JSON, p->f->stops);
        tj_init(&p->root, TJ_JSON, p->f->stops);
        p->outer.level = 1;
        p->outer.want_object = true;
        p->root.want_object = true;
        p->root.out = &p->args;
        tc_take(p, h->len);
        return;
    }
    m5_buf_append(&p->name, p->in.p + p->at + h->name_at, h->n_name);
    tc_take(p, h->len);
    tc_begin(p);
    if (h->body == TC_BODY_TAGS) {
        p->state = TC_TAGS;
        tc_tags_start(p);
        return;
    }
    p->state = TC_ARGS;
    tj_init(&p->root, p->f->mode, p->f->stops);
    p->root.positions = m5_json_get(p->params, "properties");
    p->root.want_object = true;
    p->root.out = &p->args;
}

/* ---- calls as JSON objects: {"name": .., "arguments": {..}} in any order and spelling ---- */

static bool key_is(m5_slice key, const char *learned, const char *const *words)
{
    if (learned && m5_slice_is(key, learned)) return true;
    for (; *words; words++)
        if (m5_slice_is(key, *words)) return true;
    return false;
}

static bool declared(const m5_toolcall *p, m5_slice name)
{
    bool known;
    tc_find(p, name, &known);
    return known;
}

/* The name and the arguments' key are there: a call, unless it stands without a mark and is nobody's. */
static bool try_begin(m5_toolcall *p)
{
    if (p->begun) return true;
    tc_clean_name(p, &p->name);
    if (!p->name.n || p->name.n > TC_MAX_NAME || (p->is_bare && !declared(p, m5_buf_view(&p->name)))) return false;
    tc_begin(p);
    return true;
}

/* Decides where the value of the wrapper's key goes; false: this is no call. */
static bool route_key(m5_toolcall *p)
{
    static const char *const names[] = {"name", "tool_name", "function_name", "tool", NULL};
    static const char *const args[] = {"arguments", "parameters", "args", "input", "tool_input", "kwargs", NULL};
    static const char *const others[] = {"id", "type", "call_id", "tool_call_id", "index", NULL};
    m5_slice key = m5_buf_view(&p->outer.key);
    p->outer.out = p->outer.raw = NULL;
    p->route = ROUTE_NONE;
    bool function = m5_slice_is(key, "function");
    if (!p->have_name && (function || key_is(key, p->f->name_key, names))) {
        p->route = function ? ROUTE_FUNCTION : ROUTE_NAME;
        if (function) p->outer.level = 2;
        m5_buf_clear(&p->name);
        p->outer.raw = &p->name;
        return true;
    }
    bool short_form = !p->have_name && !p->seen_args && declared(p, key);
    if (!p->seen_args && (short_form || key_is(key, p->f->args_key, args))) {
        if (short_form) {
            p->have_name = true;
            m5_buf_append(&p->name, key.p, key.n);
        }
        p->seen_args = true;
        p->route = ROUTE_ARGS;
        p->outer.out = &p->args;
        p->outer.raw = &p->inner;
        return !p->have_name || try_begin(p);
    }
    return !p->is_bare || p->begun || function || key_is(key, p->f->name_key, names) || key_is(key, p->f->args_key, args) ||
           key_is(key, NULL, others);
}

/* Arguments that came as a string: their text is JSON in turn, or else is kept as text. */
static void feed_inner(m5_toolcall *p, bool over)
{
    m5_slice s = m5_buf_view(&p->inner);
    size_t used = 0, first = tc_skip_space(s.p ? s.p : "", s.n, 0);
    if (!p->root_used && first < s.n) p->root_used = s.p[first] == '{' || s.p[first] == '[';
    if (p->root_used) {
        tj_feed(&p->root, s.p ? s.p : "", s.n, over, &used);
        m5_buf_erase_front(&p->inner, used);
        if (over) tj_close(&p->root);
    } else if (over && first < s.n && !m5_slice_is(s, "null") && !m5_slice_is(s, "None")) {
        m5_buf_puts(&p->args, "{\"value\": \"");
        tj_escape(&p->args, s.p, s.n);
        m5_buf_puts(&p->args, "\"}");
    }
    if (!over) return;
    p->root_used = false;
    m5_buf_clear(&p->inner);
}

static bool value_over(m5_toolcall *p)
{
    int route = p->route;
    if (p->outer.depth == 1) p->outer.level = 1;
    if (route == ROUTE_ARGS) feed_inner(p, true);
    p->outer.out = p->outer.raw = NULL;
    p->route = ROUTE_NONE;
    if ((route == ROUTE_NAME || route == ROUTE_FUNCTION) && p->name.n) {
        p->have_name = true;
        if (p->seen_args) return try_begin(p);
    }
    return true;
}

/* The object is over or broken off. */
static void close_json(m5_toolcall *p, bool complete)
{
    if (!complete) tj_close(&p->outer);
    if (p->route == ROUTE_ARGS) feed_inner(p, true);
    bool named = p->have_name || (p->name.n && (p->route == ROUTE_NAME || p->route == ROUTE_FUNCTION) && complete);
    if (p->begun || (named && !p->is_bare && try_begin(p)))
        tc_end(p, complete && !p->outer.repaired);
    else
        abandon(p);
}

static bool step_json(m5_toolcall *p)
{
    size_t used = 0, before = p->args.n + p->inner.n;
    int state = p->outer.state, depth = p->outer.depth;
    tj_status s = tj_feed(&p->outer, p->in.p + p->at, p->in.n - p->at, p->final, &used);
    tc_take(p, used);
    if (p->route == ROUTE_ARGS && p->inner.n) feed_inner(p, false);
    bool ok = true;
    switch (s) {
    case TJ_KEY: ok = route_key(p); break;
    case TJ_VALUE_END: ok = value_over(p); break;
    case TJ_DONE: close_json(p, true); return true;
    case TJ_STOP: close_json(p, false); return true;
    case TJ_MORE: break;
    }
    if (!ok || (!p->begun && p->raw.n > TC_MAX_RAW_BYTES)) {
        abandon(p);
        return true;
    }
    return used || s != TJ_MORE || before != p->args.n + p->inner.n || state != p->outer.state || depth != p->outer.depth;
}

static bool step_args(m5_toolcall *p)
{
    size_t used = 0;
    tj_status s = tj_feed(&p->root, p->in.p + p->at, p->in.n - p->at, p->final, &used);
    tc_take(p, used);
    if (s == TJ_MORE) return used > 0;
    if (s == TJ_STOP && p->root.state == 0 && !p->root.depth)
        tc_end(p, true); /* no arguments at all */
    else {
        if (s == TJ_STOP) tj_close(&p->root);
        tc_end(p, s == TJ_DONE && !p->root.repaired);
    }
    return true;
}

/* ---- between calls ---- */

static bool step_after(m5_toolcall *p)
{
    const char *w = p->in.p + p->at;
    size_t n = p->in.n - p->at, len;
    if (!n) return false;
    if (tc_space(w[0])) {
        p->at++;
        return true;
    }
    tc_match m = tc_starts_any(w, n, p->f->starts, p->final, &len);
    if (m == TC_WAIT) return false;
    if (m == TC_NO) {
        m = tc_starts_any(w, n, p->f->close, p->final, &len);
        if (m == TC_WAIT) return false;
        if (m == TC_YES) {
            p->at += len;
            p->inside = p->list = false;
            return true;
        }
        bool chain = p->inside || p->list || p->f->bare;
        if (chain && strchr(",;)]}", w[0]) && w[0]) {
            if (w[0] == ']') p->list = false;
            p->at++;
            return true;
        }
        tc_head h;
        m = chain ? tc_head_next(p, &h) : TC_NO;
        if (m == TC_WAIT) return false;
        if (m == TC_YES) {
            start(p, &h);
            return true;
        }
    }
    p->state = TC_TEXT;
    p->inside = p->list = false;
    return true;
}

static bool step_text(m5_toolcall *p)
{
    while (p->at < p->in.n) {
        const char *w = p->in.p + p->at;
        size_t n = p->in.n - p->at, len = 0;
        tc_match m = TC_NO;
        bool calls = p->tools && !p->tick;
        if (calls) m = tc_starts_any(w, n, p->f->starts, p->final, &len);
        if (m == TC_YES && p->fence) {
            tc_hold(p);
            m = TC_NO;
        }
        bool bare = calls && m == TC_NO && !len && p->f->bare && p->bol && !p->fence && !tc_space(w[0]);
        if (m == TC_YES || bare) {
            tc_head h;
            tc_match is = tc_head_read(p, &h);
            if (is == TC_WAIT) return false;
            if (is == TC_YES) {
                start(p, &h);
                return true;
            }
            if (m == TC_NO) len = 0;
        }
        if (m == TC_WAIT) return false;
        if (!len && p->fence_bol && (w[0] == '`' || w[0] == '~')) {
            len = tc_fence(p, w, n, &m);
            if (m == TC_WAIT) return false;
            if (m == TC_YES) {
                p->at += len;
                continue;
            }
        }
        if (!len) len = 1;
        tc_content(p, w, len);
        p->at += len;
    }
    return false;
}

static bool step(m5_toolcall *p)
{
    switch (p->state) {
    case TC_JSON: return step_json(p);
    case TC_ARGS: return step_args(p);
    case TC_TAGS: return tc_tags_step(p);
    case TC_AFTER: return step_after(p);
    default: return step_text(p);
    }
}

static bool out_of_memory(const m5_toolcall *p)
{
    return p->failed || p->in.failed || p->text.failed || p->space.failed || p->raw.failed || p->name.failed || p->args.failed || p->spill.failed ||
           p->inner.failed || p->held.failed || p->par.failed || p->value.failed || tj_failed(&p->outer) || tj_failed(&p->root);
}

static int run(m5_toolcall *p)
{
    while (!out_of_memory(p) && step(p)) continue;
    if (out_of_memory(p)) {
        p->failed = true;
        return M5_ERR_NOMEM;
    }
    m5_buf_erase_front(&p->in, p->at);
    p->at = 0;
    if (p->begun) {
        flush_args(p);
    } else {
        flush_text(p);
    }
    return M5_OK;
}

/* ---- public ---- */

int m5_toolcall_new(m5_toolcall **out, const m5_toolcall_args *args, m5_error *err)
{
    *out = NULL;
    m5_toolcall *p = m5_calloc(M5_MEM_REQUEST, 1, sizeof *p);
    if (!p) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for the tool-call parser");
    p->f = args->format;
    if (m5_json_typeof(args->tools) == M5_JSON_ARRAY && m5_json_len(args->tools))
        p->tools = m5_json_ref((m5_json *)args->tools); /* counting a reference changes no value */
    p->parallel = args->parallel;
    p->fn = args->fn;
    p->arg = args->arg;
    p->bol = p->fence_bol = true;
    int rc = args->prefix.n ? m5_toolcall_push(p, args->prefix.p, args->prefix.n) : 0;
    if (rc) {
        m5_toolcall_free(p);
        return m5_error_set(err, rc, "out of memory for the tool-call parser");
    }
    *out = p;
    return M5_OK;
}

void m5_toolcall_free(m5_toolcall *p)
{
    if (!p) return;
    m5_buf *const all[] = {&p->in, &p->text, &p->space, &p->raw, &p->name, &p->args, &p->spill, &p->inner, &p->held, &p->par, &p->value};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) m5_buf_free(all[i]);
    tj_deinit(&p->outer);
    tj_deinit(&p->root);
    tc_tags_deinit(p);
    m5_json_unref(p->tools);
    m5_free(p);
}

/* Whole code points alone go into the window; ill-formed bytes become U+FFFD. */
static void append_text(m5_toolcall *p, const char *s, size_t n)
{
    while (n) {
        if (p->n_tail) {
            char b[5];
            uint32_t cp;
            memcpy(b, p->tail, p->n_tail);
            b[p->n_tail] = *s;
            int k = m5_utf8_decode(b, p->n_tail + 1, &cp);
            if (k < 0) {
                p->tail[p->n_tail++] = *s++;
                n--;
                continue;
            }
            bool whole = (size_t)k == p->n_tail + 1;
            if (whole && !(cp == 0xFFFD && (unsigned char)b[0] != 0xEF)) {
                m5_buf_append(&p->in, b, (size_t)k);
                s++;
                n--;
            } else {
                m5_buf_puts(&p->in, "\xEF\xBF\xBD"); /* the byte is looked at again */
            }
            p->n_tail = 0;
            continue;
        }
        uint32_t cp;
        int k = m5_utf8_decode(s, n, &cp);
        if (k < 0) {
            memcpy(p->tail, s, n);
            p->n_tail = n;
            return;
        }
        if (cp == 0xFFFD && !(k == 3 && (unsigned char)s[0] == 0xEF && (unsigned char)s[1] == 0xBF && (unsigned char)s[2] == 0xBD))
            m5_buf_puts(&p->in, "\xEF\xBF\xBD");
        else
            m5_buf_append(&p->in, s, (size_t)k);
        s += k;
        n -= (size_t)k;
    }
}

int m5_toolcall_push(m5_toolcall *p, const char *text, size_t n)
{
    if (p->failed) return M5_ERR_NOMEM;
    if (p->finished || !n) return M5_OK;
    append_text(p, text, n);
    return run(p);
}

int m5_toolcall_finish(m5_toolcall *p)
{
    if (p->failed) return M5_ERR_NOMEM;
    if (p->finished) return M5_OK;
    p->final = true;
    if (p->n_tail) m5_buf_puts(&p->in, "\xEF\xBF\xBD");
    p->n_tail = 0;
    int rc = run(p);
    if (!rc && tc_unhold(p)) rc = run(p);
    while (!rc && (p->in_call || p->in.n)) {
        switch (p->state) {
        case TC_JSON: close_json(p, false); break;
        case TC_ARGS:
            if (p->root.state || p->root.depth) tj_close(&p->root);
            tc_end(p, false);
            break;
        case TC_TAGS: tc_tags_close(p); break;
        default: break;
        }
        if (p->in_call) break;
        rc = run(p);
        if (p->state == TC_TEXT && p->in.n == p->at) break;
    }
    p->finished = true;
    if (rc) return rc;
    m5_buf_append(&p->text, p->space.p ? p->space.p : "", p->space.n);
    flush_text(p);
    return out_of_memory(p) ? M5_ERR_NOMEM : M5_OK;
}

int m5_toolcall_count(const m5_toolcall *p)
{
    return p->count;
}

bool m5_toolcall_open(const m5_toolcall *p)
{
    return p->in_call || (p->in.n && p->state == TC_TEXT);
}

bool m5_toolcall_done(const m5_toolcall *p)
{
    return !p->parallel && p->count > 0 && (!p->begun || p->muted);
}
