/* SPDX-License-Identifier: Apache-2.0 */
/* What every part of the interpreter stands on: arena memory under a limit, errors that leave through longjmp, the step budget, and the text under
 * construction with its trust runs. No language rule is here. */
#include "text/jinja_internal.h"

#include <stdio.h>

void m5_j_init(jrt *rt, m5_error *err, const char *name, size_t max_bytes, uint64_t max_steps)
{
    memset(rt, 0, sizeof *rt);
    rt->err = err;
    rt->name = name;
    rt->line = 1;
    rt->max_bytes = max_bytes;
    rt->steps = max_steps;
    m5_arena_init(&rt->arena, M5_MEM_REQUEST, 0);
}

void m5_j_deinit(jrt *rt)
{
    m5_arena_deinit(&rt->arena);
    m5_buf_free(&rt->out);
    m5_free(rt->runs);
    rt->runs = NULL;
}

static JNORETURN void leave(jrt *rt, int code)
{
    rt->code = code;
    longjmp(rt->fail, 1);
}

void m5_jrt_fail(jrt *rt, const char *fmt, ...)
{
    char text[M5_ERROR_TEXT_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    m5_error_set(rt->err, M5_ERR_TEMPLATE, "%s:%u: %s", rt->name, (unsigned)rt->line, text);
    leave(rt, M5_ERR_TEMPLATE);
}

void m5_jrt_fail_code(jrt *rt, int code, const char *fmt, ...)
{
    char text[M5_ERROR_TEXT_BYTES];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    m5_error_set(rt->err, code, "%s:%u: %s", rt->name, (unsigned)rt->line, text);
    leave(rt, code);
}

void m5_jrt_fail_text(jrt *rt, m5_slice text)
{
    int n = text.n > M5_ERROR_TEXT_BYTES ? M5_ERROR_TEXT_BYTES : (int)text.n;
    m5_error_set(rt->err, M5_ERR_TEMPLATE, "%s:%u: %.*s", rt->name, (unsigned)rt->line, n, n ? text.p : "");
    leave(rt, M5_ERR_TEMPLATE);
}

static void check_bytes(jrt *rt, size_t more)
{
    size_t used = rt->arena.used_bytes + rt->out.n;
    if (more > rt->max_bytes || used > rt->max_bytes - more) {
        m5_jrt_fail_code(rt, M5_ERR_LIMIT, "the template needs more than %zu bytes of memory", rt->max_bytes);
    }
}

void *m5_j_alloc(jrt *rt, size_t bytes)
{
    check_bytes(rt, bytes);
    void *p = m5_arena_alloc(&rt->arena, bytes);
    if (!p) m5_jrt_fail_code(rt, M5_ERR_NOMEM, "out of memory");
    return p;
}

void *m5_j_array(jrt *rt, size_t n, size_t size)
{
    size_t bytes;
    if (!m5_mul_size(n, size, &bytes)) m5_jrt_fail_code(rt, M5_ERR_LIMIT, "the template needs more than %zu bytes of memory", rt->max_bytes);
    return m5_j_alloc(rt, bytes);
}

void m5_j_step(jrt *rt, uint64_t n)
{
    if (rt->steps < n) {
        rt->steps = 0;
        m5_jrt_fail_code(rt, M5_ERR_LIMIT, "the template takes too many steps");
    }
    rt->steps -= n;
}

void m5_j_deeper(jrt *rt)
{
    if (++rt->eval_depth > J_MAX_EVAL_DEPTH) m5_jrt_fail_code(rt, M5_ERR_LIMIT, "the template recurses too deep");
}

void m5_j_enter(jrt *rt)
{
    if (++rt->value_depth > J_MAX_VALUE_DEPTH) m5_jrt_fail_code(rt, M5_ERR_LIMIT, "a value is nested more than %d deep", J_MAX_VALUE_DEPTH);
}

void m5_j_leave(jrt *rt)
{
    rt->value_depth--;
}

jmark m5_j_begin(jrt *rt)
{
    jmark m = {rt->out.n, rt->run0};
    rt->run0 = rt->n_runs;
    return m;
}

jstr *m5_j_end(jrt *rt, jmark m)
{
    size_t n = rt->out.n - m.n, n_runs = rt->n_runs - rt->run0;
    jstr *s = m5_j_alloc(rt, sizeof *s);
    char *p = m5_j_alloc(rt, n + 1);
    if (n) memcpy(p, rt->out.p + m.n, n);
    s->p = p;
    s->n = n;
    s->n_cp = -1;
    const jrun *runs = n_runs ? rt->runs + rt->run0 : NULL;
    if (n_runs > 1) {
        jrun *copy = m5_j_array(rt, n_runs, sizeof *copy);
        for (size_t i = 0; i < n_runs; i++) copy[i] = (jrun){runs[i].end - m.n, runs[i].trusted};
        s->trust = J_MIXED;
        s->runs = copy;
        s->n_runs = n_runs;
    } else {
        s->trust = n_runs == 0 || runs[0].trusted ? J_TRUSTED : J_UNTRUSTED;
    }
    rt->out.n = m.n;
    if (rt->out.p) rt->out.p[m.n] = 0;
    rt->n_runs = rt->run0;
    rt->run0 = m.run0;
    return s;
}

static void add_run(jrt *rt, bool trusted)
{
    if (rt->n_runs > rt->run0 && rt->runs[rt->n_runs - 1].trusted == trusted) {
        rt->runs[rt->n_runs - 1].end = rt->out.n;
        return;
    }
    if (rt->n_runs == rt->cap_runs) {
        size_t cap = rt->cap_runs ? rt->cap_runs * 2 : 64;
        jrun *p = m5_realloc(M5_MEM_REQUEST, rt->runs, cap * sizeof *p);
        if (!p) m5_jrt_fail_code(rt, M5_ERR_NOMEM, "out of memory");
        rt->runs = p;
        rt->cap_runs = cap;
    }
    rt->runs[rt->n_runs++] = (jrun){rt->out.n, trusted};
}

void m5_j_put(jrt *rt, const char *p, size_t n, bool trusted)
{
    if (!n) return;
    check_bytes(rt, n);
    m5_buf_append(&rt->out, p, n);
    if (rt->out.failed) m5_jrt_fail_code(rt, M5_ERR_NOMEM, "out of memory");
    add_run(rt, trusted);
}

void m5_j_puts(jrt *rt, const char *s)
{
    m5_j_put(rt, s, strlen(s), true);
}

void m5_j_putc(jrt *rt, char c)
{
    m5_j_put(rt, &c, 1, true);
}

void m5_j_printf(jrt *rt, const char *fmt, ...)
{
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n > 0) m5_j_put(rt, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1, true);
}

void m5_j_put_cp(jrt *rt, uint32_t cp, bool trusted)
{
    char b[4];
    m5_j_put(rt, b, (size_t)m5_utf8_encode(cp, b), trusted);
}

void m5_j_put_sub(jrt *rt, const jstr *s, size_t begin, size_t end)
{
    s = m5_jstr_flat(rt, s);
    if (s->trust != J_MIXED) {
        m5_j_put(rt, s->p + begin, end - begin, s->trust == J_TRUSTED);
        return;
    }
    for (size_t i = 0; i < s->n_runs && begin < end; i++) {
        if (s->runs[i].end <= begin) continue;
        size_t stop = s->runs[i].end < end ? s->runs[i].end : end;
        m5_j_put(rt, s->p + begin, stop - begin, s->runs[i].trusted);
        begin = stop;
    }
}

void m5_j_put_str(jrt *rt, const jstr *s)
{
    m5_j_put_sub(rt, s, 0, s->n);
}

void m5_j_fill(jrt *rt, const jstr *unit, size_t count)
{
    size_t total;
    if (!m5_mul_size(unit->n, count, &total)) total = SIZE_MAX / 2;
    check_bytes(rt, total);
    if (!unit->n) return;
    for (size_t i = 0; i < count; i++) m5_j_put_str(rt, unit);
}
