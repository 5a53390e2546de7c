/* SPDX-License-Identifier: Apache-2.0 */
/* Content: white space that may turn out to stand beside a call, and code in which an opening mark is no call. */
#include "text/toolcall_internal.h"

#include <string.h>

enum { MAX_SPACE_BYTES = 4096 };

static void put(m5_toolcall *p, char c)
{
    if (tc_space(c)) {
        if (p->space.n >= MAX_SPACE_BYTES) {
            m5_buf_append(&p->text, p->space.p, p->space.n);
            m5_buf_clear(&p->space);
        }
        m5_buf_putc(&p->space, c);
    } else {
        m5_buf_append(&p->text, p->space.p ? p->space.p : "", p->space.n);
        m5_buf_clear(&p->space);
        m5_buf_putc(&p->text, c);
    }
}

/* Held text is content. */
static void release(m5_toolcall *p)
{
    for (size_t i = 0; i < p->held.n; i++) put(p, p->held.p[i]);
    m5_buf_clear(&p->held);
    p->holding = false;
}

void tc_content(m5_toolcall *p, const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        char c = s[i];
        if (p->holding)
            m5_buf_putc(&p->held, c);
        else
            put(p, c);
        if (c == '\n') {
            p->bol = p->fence_bol = true;
            p->fence_info = false;
            p->n_tick = 0;
        } else if (c != ' ' && c != '\t') {
            p->bol = false;
            p->fence_bol = p->fence_bol && c && strchr(">-*+.)0123456789", c); /* a quote's or a list's */
        }
        if (p->fence_info && c == '`') p->fence = 0; /* a code span on one line, no block */
        p->n_tick += c == '`';
        p->tick = c == '`' && p->n_tick % 2;
    }
    if (p->holding && p->held.n > TC_MAX_RAW_BYTES) release(p);
}

size_t tc_fence(m5_toolcall *p, const char *w, size_t n, tc_match *m)
{
    size_t run = 0;
    *m = TC_NO;
    while (run < n && w[run] == w[0]) run++;
    if (run == n && !p->final) {
        *m = TC_WAIT;
        return 0;
    }
    if (run < 3) return 1;
    if (!p->fence) {
        p->fence = w[0];
        p->n_fence = run;
        tc_content(p, w, run);
        p->fence_info = w[0] == '`';
        *m = TC_YES;
    } else if (p->fence == w[0] && run >= p->n_fence && (run == n || tc_space(w[run]))) {
        p->fence = 0;
        release(p);
        tc_content(p, w, run);
        *m = TC_YES;
    }
    return run;
}

void tc_hold(m5_toolcall *p)
{
    p->holding = true;
}

/* What the held text would be: calls alone, whole ones of declared functions? */
typedef struct trial {
    int n_call;
    bool other;
} trial;

static void on_trial(void *arg, const m5_toolcall_event *ev)
{
    trial *t = arg;
    t->n_call += ev->kind == M5_TOOLCALL_BEGIN;
    if ((ev->kind == M5_TOOLCALL_BEGIN && !ev->known) || (ev->kind == M5_TOOLCALL_END && !ev->complete)) t->other = true;
    for (size_t i = 0; ev->kind == M5_TOOLCALL_TEXT && i < ev->text.n; i++) t->other = t->other || !tc_space(ev->text.p[i]);
}

bool tc_unhold(m5_toolcall *p)
{
    if (!p->holding) return false;
    trial t = {0};
    m5_toolcall *q = NULL;
    m5_toolcall_args args = {.format = p->f, .tools = p->tools, .parallel = true, .fn = on_trial, .arg = &t};
    int rc = m5_toolcall_new(&q, &args, NULL);
    if (!rc) rc = m5_toolcall_push(q, p->held.p ? p->held.p : "", p->held.n);
    if (!rc) rc = m5_toolcall_finish(q);
    m5_toolcall_free(q);
    p->failed = p->failed || rc;
    if (rc || t.other || !t.n_call) {
        release(p);
        return false;
    }
    m5_buf_append(&p->in, p->held.p, p->held.n);
    m5_buf_clear(&p->held);
    p->holding = false;
    p->fence = 0;
    p->bol = true;
    return true;
}
