/* SPDX-License-Identifier: Apache-2.0 */
/* text/jinja*.c: against Jinja2's own answers (tests/vectors/jinja.jsonl, made by tools/vectors_jinja.py), and what no other implementation has:
 * trust of each output byte, limits, messages with place, failing memory. */
#include "base/json.h"
#include "base/mem.h"
#include "base/task.h"
#include "t.h"
#include "text/chat.h"

#include <pthread.h>
#include <time.h>

static const int64_t now_2026 = 1785067200; /* 2026-07-26T12:00:00Z */

static int render(const char *t, size_t n, const m5_json *vars, const m5_jinja_limits *lim, m5_buf *out, m5_text_span **spans, size_t *n_spans,
                  m5_error *err)
{
    static const char *const trusted[] = {"bos_token", "messages[].role", NULL};
    m5_jinja *j = NULL;
    int rc = m5_jinja_compile(&j, "test", t, n, err);
    m5_jinja_render_args args = {vars, trusted, now_2026, lim};
    if (!rc) rc = m5_jinja_render(j, &args, out, spans, n_spans, err);
    m5_jinja_free(j);
    return rc;
}

/* ---- the reference's answers ---- */

static void check_case(const m5_json *sets, const m5_json *c, int line)
{
    m5_slice t = m5_json_str(m5_json_get(c, "t")), want = m5_json_str(m5_json_get(c, "text"));
    const m5_json *vars = m5_json_get(sets, m5_json_str(m5_json_get(c, "v")).p);
    bool fails = m5_json_bool(m5_json_get(c, "error"));
    m5_buf out = {0};
    m5_error err = {0};
    m5_text_span *spans = NULL;
    size_t n_spans = 0, at = 0;
    int rc = render(t.p, t.n, vars, NULL, &out, &spans, &n_spans, &err);
    if (fails) {
        T_CHECK(rc == M5_ERR_TEMPLATE || rc == M5_ERR_LIMIT, "line %d: '%s' gave '%s', wanted an error", line, t.p, out.p ? out.p : "");
        T_CHECK(strncmp(err.text, "test:", 5) == 0, "line %d: message '%s' has no place", line, err.text);
    } else {
        T_CHECK(rc == 0 && m5_slice_eq(m5_buf_view(&out), want), "line %d: '%s' gave '%s' %s, wanted '%s'", line, t.p, out.p ? out.p : "", err.text,
                want.p);
        /* Spans cover the text without gaps and alternate. */
        bool whole = true;
        for (size_t i = 0; i < n_spans; i++) {
            whole = whole && spans[i].begin == at && spans[i].end > at && (i == 0 || spans[i].trusted != spans[i - 1].trusted);
            at = spans[i].end;
        }
        T_CHECK(whole && at == out.n, "line %d: spans do not cover the text", line);
    }
    m5_free(spans);
    m5_buf_free(&out);
}

static void test_vectors(void)
{
    char path[512], *text = NULL;
    size_t n = 0;
    m5_error err = {0};
    snprintf(path, sizeof path, "%s/jinja.jsonl", M5_TEST_DATA);
    T_CHECK(m5_file_read(&text, &n, path, 1 << 24, &err) == 0, "%s", err.text);
    m5_json *head = NULL;
    int line = 0;
    for (size_t at = 0; at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t len = end ? (size_t)(end - text) - at : n - at;
        m5_json *c = NULL;
        line++;
        T_CHECK(m5_json_parse(&c, text + at, len, NULL, &err) == 0, "line %d: %s", line, err.text);
        if (!head)
            head = c;
        else {
            check_case(m5_json_get(head, "sets"), c, line);
            m5_json_unref(c);
        }
        at += len + 1;
    }
    T_CHECK(line > 300, "only %d cases", line);
    m5_json_unref(head);
    m5_free(text);
}

/* ---- trust ---- */

/* want: one letter a byte, T trusted, u untrusted. */
static void check_trust(const char *t, const char *want_text, const char *want)
{
    static const char vars_text[] =
        "{\"bos_token\": \"<s>\", \"x\": \"<X>\", \"messages\": [{\"role\": \"user\", \"content\": \" <C> \"}, {\"role\": \"<|evil|>\", "
        "\"content\": [1, \"a\"]}], \"d\": {\"k\": \"v\"}, \"n\": 12}";
    m5_json *vars = NULL;
    m5_buf out = {0};
    m5_error err = {0};
    m5_text_span *spans = NULL;
    size_t n_spans = 0;
    char got[256] = "";
    T_CHECK(m5_json_parse(&vars, vars_text, sizeof vars_text - 1, NULL, NULL) == 0);
    T_CHECK(render(t, strlen(t), vars, NULL, &out, &spans, &n_spans, &err) == 0, "%s", err.text);
    for (size_t i = 0; i < n_spans; i++) {
        for (size_t k = spans[i].begin; k < spans[i].end && k < sizeof got - 1; k++) got[k] = spans[i].trusted ? 'T' : 'u';
    }
    T_EQ_STR(out.p ? out.p : "", want_text);
    T_CHECK(strcmp(got, want) == 0, "'%s': trust %s, wanted %s", t, got, want);
    m5_free(spans);
    m5_buf_free(&out);
    m5_json_unref(vars);
}

static void test_trust(void)
{
    check_trust("ab", "ab", "TT");
    check_trust("<{{ x }}>", "<<X>>", "TuuuT");
    check_trust("{{ bos_token }}{{ x }}", "<s><X>", "TTTuuu");
    check_trust("{{ '<|' + messages[0].role + '|>' }}", "<|user|>", "TTTTTTTT");
    check_trust("{{ '<|' ~ messages[1].role ~ '|>' }}", "<|<|evil|>|>", "TTuuuuuuuuTT");
    check_trust("{{ messages[0].content|trim + x }}", "<C><X>", "uuuuuu");
    check_trust("{{ ('a' ~ x ~ 'b')[1:-1] }}", "<X>", "uuu");
    check_trust("{{ ('a' ~ x ~ 'b')[::-1] }}", "b>X<a", "TuuuT");
    check_trust("{{ ('a' ~ x ~ 'b')|upper }}", "A<X>B", "TuuuT");
    check_trust("{{ ('a' ~ x ~ 'b')|title }}{{ ('ä' ~ x)|upper }}", "A<X>bÄ<X>", "TuuuTTTuuu");
    check_trust("{{ (x ~ '-' ~ x)|replace('-', '<->') }}", "<X><-><X>", "uuuTTTuuu");
    check_trust("{{ 'a-b'|replace('-', x) }}", "a<X>b", "TuuuT");
    check_trust("{{ ['a', x, 'b']|join(', ') }}", "a, <X>, b", "TTTuuuTTT");
    check_trust("{{ ('a,' ~ x ~ ',b').split(',')[1] }}", "<X>", "uuu");
    check_trust("{{ [x, 'a']|tojson }}", "[\"<X>\", \"a\"]", "TTuuuTTTTTTT");
    check_trust("{{ d|tojson }}", "{\"k\": \"v\"}", "TTuTTTTuTT");
    check_trust("{{ d }}{{ n }}", "{'k': 'v'}12", "TTuTTTTuTTTT");
    check_trust("{{ '%s!' % x }}{{ '{}?'.format(x) }}", "<X>!<X>?", "uuuTuuuT");
    check_trust("{{ x|indent(2, true) }}{{ x|e }}", "  <X>&lt;X&gt;", "TTuuuTTTTuTTTT");
    check_trust("{% macro f(v) %}[{{ v }}]{% endmacro %}{{ f(x) }}{% set y %}({{ x }}){% endset %}{{ y }}", "[<X>](<X>)", "TuuuTTuuuT");
    check_trust("{% for c in x %}{{ c }}.{% endfor %}", "<.X.>.", "uTuTuT");
    check_trust("{{ x * 2 }}{{ x.center(5, '-') }}", "<X><X>-<X>-", "uuuuuuTuuuT");
    check_trust("{% filter upper %}a{{ x }}{% endfilter %}", "A<X>", "Tuuu");
    check_trust("{{ '<X>' }}{{ x if x == '<X>' }}", "<X><X>", "TTTuuu");
}

/* ---- limits: every bomb ends in an error, quickly ---- */

static void check_bomb(const char *t, int want)
{
    m5_json *vars = m5_json_new_object();
    m5_buf out = {0};
    m5_error err = {0};
    m5_jinja_limits lim = {.max_steps = 2000000, .max_bytes = 16 << 20};
    uint64_t start = m5_time_us();
    int rc = render(t, strlen(t), vars, &lim, &out, NULL, NULL, &err);
    T_CHECK(rc == want || (want == 0 && rc < 0), "'%.60s' gave %s (%s), wanted %s", t, m5_err_name(rc), err.text, m5_err_name(want));
    T_CHECK(m5_time_us() - start < 20000000, "'%.60s' took too long", t);
    m5_buf_free(&out);
    m5_json_unref(vars);
}

static void check_deep(const char *head, const char *open, const char *mid, const char *close, int n)
{
    m5_buf t = {0};
    m5_buf_puts(&t, head);
    for (int i = 0; i < n; i++) m5_buf_puts(&t, open);
    m5_buf_puts(&t, mid);
    for (int i = 0; i < n; i++) m5_buf_puts(&t, close);
    check_bomb(t.p, M5_ERR_LIMIT);
    m5_buf_free(&t);
}

static void test_limits(void)
{
    check_bomb("{{ 'a' * 1000000000 }}", M5_ERR_LIMIT);
    check_bomb("{{ 'a' * 10**18 }}", M5_ERR_LIMIT);
    check_bomb("{{ ('a' * 1000)|replace('a', 'b' * 100000) }}", M5_ERR_LIMIT);
    check_bomb("{{ [0] * 1000000000 }}", M5_ERR_LIMIT);
    check_bomb("{% for i in range(1000000000) %}{% endfor %}", M5_ERR_LIMIT);
    check_bomb("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", M5_ERR_LIMIT);
    check_bomb("{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}", M5_ERR_LIMIT);
    check_bomb("{{ '%1000000000d' % 1 }}", M5_ERR_LIMIT);
    check_bomb("{{ '%.1000000000f' % 1 }}", M5_ERR_LIMIT);
    check_bomb("{{ '{:1000000000}'.format(1) }}", M5_ERR_LIMIT);
    check_bomb("{{ 'a'|center(1000000000) }}{{ 'a'.ljust(10**18) }}", M5_ERR_LIMIT);
    check_bomb("{{ 'a'|indent(1000000000, true) }}", M5_ERR_LIMIT);
    check_bomb("{{ [1]|tojson(indent=1000000000) }}", M5_ERR_LIMIT);
    check_bomb("{{ 2**1000000000 }}", M5_ERR_LIMIT);
    check_bomb("{{ 10**10000 }}", M5_ERR_TEMPLATE);
    check_bomb("{% set ns = namespace(x=3) %}{% for i in range(100) %}{% set ns.x = ns.x * ns.x %}{% endfor %}", M5_ERR_LIMIT);
    check_bomb("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", M5_ERR_LIMIT);
    check_bomb("{% macro f() %}{% for i in [1] %}{% if 1 %}{{ (f() ~ 1)|upper }}{% endif %}{% endfor %}{% endmacro %}{{ f() }}", M5_ERR_LIMIT);
    check_bomb("{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}", M5_ERR_LIMIT);
    check_bomb("{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}", M5_ERR_LIMIT);
    check_bomb("{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x|tojson }}", M5_ERR_LIMIT);
    check_bomb(
        "{% set ns = namespace(x=[], y=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% set ns.y = [ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
        M5_ERR_LIMIT);
    check_bomb("{% set ns = namespace(x=1, y=1) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, ns.y] %}{% endfor %}{{ "
               "ns.x == ns.y }}",
               M5_ERR_LIMIT);
    check_bomb("{% set ns = namespace(x=1) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}", M5_ERR_LIMIT);
    check_bomb("{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}", M5_ERR_LIMIT);
    check_bomb("{% set a = 'a' * 100000 %}{% for i in range(100000) %}{% if ('a' * 50000 ~ 'b') in a %}{% endif %}{% endfor %}", M5_ERR_LIMIT);
    check_bomb("{% set a = 'ab' * 100000 %}{% for i in range(100000) %}{% if a == 'x' ~ a[1:] %}{% endif %}{% endfor %}", M5_ERR_LIMIT);
    check_bomb("{% set ns = namespace(g=[1]) %}{% for i in range(20000) %}{% set ns.g = ns.g|select %}{% endfor %}{{ ns.g|list }}", M5_ERR_LIMIT);
    check_bomb("{% macro f(x) %}{{ '{}'.format('{}'.format('{}'.format(f(x)))) }}{% endmacro %}{{ f(1) }}", M5_ERR_LIMIT);
    check_bomb("{{ range(1, 100000)|map('string')|join|int }}{{ 'x'.join(range(100000)|map('string')) * 100 }}", M5_ERR_LIMIT);
    check_bomb("{{ strftime_now('%99999999d') * 10000000 }}", M5_ERR_LIMIT);
    check_deep("{{ ", "(", "1", ")", 5000);
    check_deep("{{ ", "[", "1", "]", 5000);
    check_deep("{{ ", "-", "1", "", 5000);
    check_deep("{{ ", "not ", "1", "", 5000);
    check_deep("{{ 1", "|abs", "", "", 5000);
    check_deep("{{ 1", " + 1", "", "", 5000);
    check_deep("{{ x", ".y", "", "", 5000);
    check_deep("{{ x", " if x else x", "", "", 5000);
    check_deep("", "{% if 1 %}", "", "{% endif %}", 5000);
    check_deep("", "{% for x in [1] %}", "", "{% endfor %}", 5000);
}

/* Appending to a namespace attribute must not cost the square of the length. */
static void test_long_append(void)
{
    static const char t[] =
        "{% set ns = namespace(s='') %}{% for i in range(20000) %}{% set ns.s = ns.s + '0123456789' %}{% endfor %}{{ ns.s|length }}";
    m5_json *vars = m5_json_new_object();
    m5_buf out = {0};
    m5_error err = {0};
    m5_jinja_limits lim = {.max_bytes = 32 << 20};
    T_CHECK(render(t, sizeof t - 1, vars, &lim, &out, NULL, NULL, &err) == 0, "%s", err.text);
    T_EQ_STR(out.p, "200000");
    m5_buf_free(&out);
    m5_json_unref(vars);
}

/* ---- messages ---- */

static void check_message(const char *t, const char *want)
{
    m5_json *vars = m5_json_new_object();
    m5_buf out = {0};
    m5_error err = {0};
    T_CHECK(render(t, strlen(t), vars, NULL, &out, NULL, NULL, &err) == M5_ERR_TEMPLATE);
    T_EQ_STR(err.text, want);
    m5_buf_free(&out);
    m5_json_unref(vars);
}

static void test_messages(void)
{
    check_message("a\n\n{{ raise_exception('Roles must alternate') }}", "test:3: Roles must alternate");
    check_message("{% if 1 %}\n{{ x.y }}{% endif %}", "test:2: 'x' is undefined");
    check_message("{{ {}.a.b }}", "test:1: 'dict object' has no attribute 'a'");
    check_message("\n{{ 'a' + [] }}", "test:2: can only concatenate str (not \"list\") to str");
    check_message("\n{% for x in l %}\n{% endif %}", "test:3: unknown tag 'endif'; 'for' is open since line 2");
    check_message("\n{% if x %}", "test:2: unexpected end of template; 'if' is open since line 2");
    check_message("{{ 1|foo }}", "test:1: no filter named 'foo'");
    check_message("{{ [].append(1) }}", "test:1: access to attribute 'append' of 'list' object is unsafe");
}

/* ---- one compiled template in several threads ---- */

typedef struct shared {
    const m5_jinja *j;
    const m5_json *vars;
    bool ok;
} shared;

static void *render_many(void *arg)
{
    shared *s = arg;
    s->ok = true;
    for (int i = 0; i < 200; i++) {
        m5_buf out = {0};
        m5_jinja_render_args args = {s->vars, NULL, now_2026, NULL};
        s->ok = s->ok && m5_jinja_render(s->j, &args, &out, NULL, NULL, NULL) == 0 && strcmp(out.p, "ABC|abc-é|{'k': 'abc'}") == 0;
        m5_buf_free(&out);
    }
    return NULL;
}

static void test_threads(void)
{
    static const char t[] = "{{ 'abc'|upper }}|{{ 'abc' ~ '-é' }}|{{ {'k': 'abc'} }}";
    m5_jinja *j = NULL;
    m5_json *vars = m5_json_new_object();
    T_CHECK(m5_jinja_compile(&j, "test", t, sizeof t - 1, NULL) == 0);
    pthread_t threads[4];
    shared s[4];
    for (int i = 0; i < 4; i++) {
        s[i] = (shared){j, vars, false};
        T_CHECK(pthread_create(&threads[i], NULL, render_many, &s[i]) == 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        T_CHECK(s[i].ok);
    }
    m5_jinja_free(j);
    m5_json_unref(vars);
}

/* ---- the n-th allocation fails ---- */

static void test_failing_memory(void)
{
    static const char t[] =
        "{% macro f(x) %}{{ x|upper }}{% endmacro %}{% for i in range(50) %}{{ f('a' ~ i) }}{{ [i, {'a': i}]|tojson }}{% endfor %}{{ y * 3000 }}";
    m5_json *vars = m5_json_new_object();
    T_CHECK(m5_json_set_str(vars, "y", "some text") == 0);
    bool done = false;
    for (uint64_t n = 1; n < 500 && !done; n++) {
        m5_buf out = {0};
        m5_error err = {0};
        m5_text_span *spans = NULL;
        size_t n_spans;
        m5_mem_fail_at(n);
        int rc = render(t, sizeof t - 1, vars, NULL, &out, &spans, &n_spans, &err);
        m5_mem_fail_at(0);
        T_CHECK(rc == 0 || (rc == M5_ERR_NOMEM && err.code == M5_ERR_NOMEM), "allocation %d: %s", (int)n, err.text);
        done = rc == 0;
        m5_free(spans);
        m5_buf_free(&out);
    }
    T_CHECK(done, "the rendering never came through");
    m5_json_unref(vars);
}

int main(void)
{
    setenv("TZ", "UTC0", 1);
    tzset();
    test_vectors();
    test_trust();
    test_limits();
    test_long_append();
    test_messages();
    test_threads();
    test_failing_memory();
    return t_done();
}
