/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls of the Jinja interpreter: compile once, render many times. The language itself is in the other jinja_*.c files. */
#include "text/jinja_internal.h"

enum { COMPILE_STEPS = 20000000, COMPILE_BYTES = 512 << 20 };

static void start_strings(jrt *rt)
{
    rt->empty = m5_jstr_c(rt, "");
    rt->empty->n_cp = 0;
    m5_jstr_hash(rt, rt->empty);
}

/* Runs fn; a m5_jrt_fail inside it ends here. Alone in its function, so that no variable of a caller lives across the jump. */
static int guard(jrt *rt, void (*fn)(jrt *rt, void *ctx), void *ctx)
{
    if (setjmp(rt->fail)) return rt->code;
    start_strings(rt);
    fn(rt, ctx);
    return M5_OK;
}

typedef struct compile_job {
    m5_slice src;
    m5_jinja *t;
} compile_job;

static void compile(jrt *rt, void *ctx)
{
    compile_job *job = ctx;
    m5_jinja *t = m5_j_alloc(rt, sizeof *t);
    jtoks toks = {0};
    m5_jlex(rt, job->src.p, job->src.n, &toks);
    m5_jparse(rt, &toks, &t->body);
    m5_jbind(rt, t);
    size_t len = strlen(rt->name);
    t->name = m5_j_alloc(rt, len + 1);
    memcpy(t->name, rt->name, len);
    job->t = t;
}

int m5_jinja_compile(m5_jinja **out, const char *name, const char *src, size_t n, m5_error *err)
{
    *out = NULL;
    if (!name) name = "template";
    if (n > J_MAX_SOURCE_BYTES) return m5_error_set(err, M5_ERR_LIMIT, "%s: a template of %zu bytes; the limit is %d", name, n, J_MAX_SOURCE_BYTES);
    if (!m5_utf8_valid(src, n)) return m5_error_set(err, M5_ERR_TEMPLATE, "%s: the template is not valid UTF-8", name);
    jrt rt;
    compile_job job = {{src, n}, NULL};
    m5_j_init(&rt, err, name, COMPILE_BYTES, COMPILE_STEPS);
    rt.arena.kind = M5_MEM_TEXT;
    int rc = guard(&rt, compile, &job);
    if (rc == M5_OK) {
        job.t->arena = rt.arena;
        rt.arena = (m5_arena){0};
        *out = job.t;
    }
    m5_j_deinit(&rt);
    return rc;
}

void m5_jinja_free(m5_jinja *j)
{
    if (!j) return;
    m5_arena a = j->arena; /* it holds j itself */
    m5_arena_deinit(&a);
}

static bool plain_word(const jstr *s)
{
    for (size_t i = 0; i < s->n; i++) {
        char c = s->p[i];
        if (!(c >= '0' && c <= '9') && !((c | 32) >= 'a' && (c | 32) <= 'z') && c != '_' && c != '-') return false;
    }
    return s->n > 0 && s->n <= 64;
}

/* "messages[].role": member `role` of each object in the list `messages`, if it is a plain word. */
static void trust_members(jrt *rt, const jstr *key, jval v, const char *entry)
{
    const char *mark = strstr(entry, "[].");
    if (!mark || (size_t)(mark - entry) != key->n || memcmp(entry, key->p, key->n) != 0 || v.t != J_LIST) return;
    jstr *member = m5_jstr_c(rt, mark + 3);
    for (size_t i = 0; i < v.u.seq->n; i++) {
        jval item = v.u.seq->v[i], s;
        if (item.t != J_DICT || !m5_jdict_get_str(rt, item.u.dict, member, &s) || s.t != J_STR) continue;
        if (plain_word(s.u.s)) s.u.s->trust = J_TRUSTED;
    }
}

static void load_vars(jrt *rt, const m5_json *vars, const char *const *trusted)
{
    rt->vars = m5_jdict_new(rt, m5_json_len(vars));
    for (void *it = m5_json_iter(vars); it; it = m5_json_iter_next(vars, it)) {
        m5_slice k = m5_json_iter_key(it);
        bool trust = false;
        for (size_t i = 0; trusted && trusted[i]; i++) trust = trust || m5_slice_is(k, trusted[i]);
        jstr *key = m5_jstr_view(rt, k.p, k.n, false);
        jval v = m5_jv_from_json(rt, m5_json_iter_value(it), trust);
        for (size_t i = 0; trusted && trusted[i]; i++) trust_members(rt, key, v, trusted[i]);
        m5_jdict_set(rt, rt->vars, m5_jv_str(key), v);
    }
}

/* Runs of the whole text as spans. */
static int take_spans(const jrt *rt, size_t base, m5_text_span **spans, size_t *n_spans)
{
    m5_text_span *s = m5_calloc(M5_MEM_REQUEST, rt->n_runs ? rt->n_runs : 1, sizeof *s);
    if (!s) return M5_ERR_NOMEM;
    for (size_t i = 0; i < rt->n_runs; i++) {
        s[i] = (m5_text_span){base + (i ? rt->runs[i - 1].end : 0), base + rt->runs[i].end, rt->runs[i].trusted};
    }
    *spans = s;
    *n_spans = rt->n_runs;
    return M5_OK;
}

static void render(jrt *rt, void *ctx)
{
    const m5_jinja_render_args *args = ctx;
    load_vars(rt, args->vars, args->trusted_keys);
    m5_jeval_template(rt, rt->tmpl);
}

int m5_jinja_render(const m5_jinja *j, const m5_jinja_render_args *args, m5_buf *out, m5_text_span **spans, size_t *n_spans, m5_error *err)
{
    uint64_t steps = args->limits && args->limits->max_steps ? args->limits->max_steps : 50000000;
    size_t bytes = args->limits && args->limits->max_bytes ? args->limits->max_bytes : (size_t)256 << 20;
    if (spans) *spans = NULL;
    if (n_spans) *n_spans = 0;
    jrt rt;
    m5_j_init(&rt, err, j->name, bytes, steps);
    rt.tmpl = j;
    rt.now_unix = args->now_unix;
    int rc = guard(&rt, render, (void *)args);
    if (rc == M5_OK) {
        size_t base = out->n;
        m5_buf_append(out, rt.out.p ? rt.out.p : "", rt.out.n);
        if (out->failed || (spans && take_spans(&rt, base, spans, n_spans) < 0)) rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory");
    }
    m5_j_deinit(&rt);
    return rc;
}
