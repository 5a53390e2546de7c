/* SPDX-License-Identifier: Apache-2.0 */
/* text/toolcall*.c: random tools and arguments, rendered in every wire format and parsed at random splits, give the same calls again. Also: formats
 * found from templates, learned marks, and memory that fails at any allocation. */
#include "t.h"
#include "text/toolcall.h"
#include "toolcall_random.h"

enum { N_TOOLS = 1000, MAX_CALLS = 3 };

#define SEP           "<\xEF\xBD\x9Ctool\xE2\x96\x81sep\xEF\xBD\x9C>"
#define DS(what, end) "<\xEF\xBD\x9Ctool\xE2\x96\x81" what "\xE2\x96\x81" end "\xEF\xBD\x9C>"

/* How calls are written; templates teach the learned ones. */
typedef struct wire {
    const char *name, *builtin; /* builtin NULL: from the template */
    enum { W_WRAPPER, W_NAMED, W_QWEN, W_GLM, W_INVOKE, W_DSML, W_GEMMA, W_PYTHON } how;
    const char *open, *call, *mid, *end, *between, *close; /* open (call NAME mid ARGS end) between .. close */
    const char *template_text;
    bool single;
} wire;

#define DSML                                                                                                                                         \
    "\xEF\xBD\x9C"                                                                                                                                   \
    "DSML"                                                                                                                                           \
    "\xEF\xBD\x9C"

#define TURN(call)                                                                                                                                   \
    "{% if tools %}Tools: {{ tools|tojson }}\n{% endif %}{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}{% for c in m.tool_calls or "   \
    "[] %}" call "{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"

static const wire wires[] = {
    {.name = "hermes",
     .builtin = "hermes",
     .how = W_WRAPPER,
     .call = "<tool_call>\n{\"name\": \"",
     .mid = "\", \"arguments\": ",
     .end = "}\n</tool_call>",
     .between = "\n"},
    {.name = "llama3", .builtin = "llama3", .how = W_WRAPPER, .call = "{\"name\": \"", .mid = "\", \"parameters\": ", .end = "}", .between = "; "},
    {.name = "mistral list",
     .builtin = "mistral",
     .how = W_WRAPPER,
     .open = "[TOOL_CALLS][",
     .call = "{\"name\": \"",
     .mid = "\", \"arguments\": ",
     .end = ", \"id\": \"abcdef123\"}",
     .between = ", ",
     .close = "]"},
    {.name = "mistral named", .builtin = "mistral", .how = W_NAMED, .call = "[TOOL_CALLS]", .mid = "[ARGS]", .end = "", .between = ""},
    {.name = "deepseek v3",
     .builtin = "deepseek",
     .how = W_NAMED,
     .open = DS("calls", "begin"),
     .call = DS("call", "begin"),
     .mid = SEP,
     .end = DS("call", "end"),
     .between = "",
     .close = DS("calls", "end")},
    {.name = "deepseek r1",
     .builtin = "deepseek",
     .how = W_NAMED,
     .open = DS("calls", "begin"),
     .call = DS("call", "begin") "function" SEP,
     .mid = "\n```json\n",
     .end = "\n```" DS("call", "end"),
     .between = "\n",
     .close = DS("calls", "end")},
    {.name = "qwen_xml",
     .builtin = "qwen_xml",
     .how = W_QWEN,
     .call = "<tool_call>\n<function=",
     .mid = ">\n",
     .end = "</function>\n</tool_call>",
     .between = "\n"},
    {.name = "glm", .builtin = "glm", .how = W_GLM, .call = "<tool_call>", .mid = "\n", .end = "</tool_call>", .between = "\n"},
    {.name = "invoke",
     .builtin = "invoke",
     .how = W_INVOKE,
     .open = "<minimax:tool_call>\n",
     .call = "<invoke name=\"",
     .mid = "\">\n",
     .end = "</invoke>",
     .between = "\n",
     .close = "\n</minimax:tool_call>"},
    {.name = "gemma4", .builtin = "gemma4", .how = W_GEMMA, .call = "<|tool_call>call:", .mid = "", .end = "<tool_call|>", .between = ""},
    {.name = "pythonic", .builtin = "pythonic", .how = W_PYTHON, .open = "[", .call = "", .mid = "(", .end = ")", .between = ", ", .close = "]"},
    {.name = "pythonic marked",
     .builtin = "pythonic",
     .how = W_PYTHON,
     .open = "<|tool_call_start|>[",
     .call = "",
     .mid = "(",
     .end = ")",
     .between = ", ",
     .close = "]<|tool_call_end|>"},
    {.name = "learned sections",
     .how = W_NAMED,
     .open = "<|calls|>",
     .call = "<|call|>functions.",
     .mid = ":0<|args|>",
     .end = "<|call_end|>",
     .between = "",
     .close = "<|calls_end|>",
     .template_text = TURN("{{ '<|calls|>' if loop.first }}<|call|>functions.{{ c.function.name }}:{{ loop.index0 }}<|args|>{{ "
                           "c.function.arguments|tojson }}<|call_end|>{{ '<|calls_end|>' if loop.last }}")},
    {.name = "learned list",
     .how = W_WRAPPER,
     .open = "\n<calls>[",
     .call = "{\"id\": \"0\", \"tool_name\": \"",
     .mid = "\", \"inputs\": ",
     .end = "}",
     .between = ", ",
     .close = "]</calls>",
     .template_text = TURN("{{ '\n<calls>[' if loop.first else ', ' }}{\"id\": \"0\", \"tool_name\": \"{{ c.function.name }}\", \"inputs\": {{ "
                           "c.function.arguments|tojson }}}{{ ']</calls>' if loop.last }}")},
    {.name = "learned typed tags",
     .how = W_DSML,
     .open = "<" DSML "tool_calls>\n",
     .call = "<" DSML "invoke name=\"",
     .mid = "\">\n",
     .end = "</" DSML "invoke>",
     .between = "\n",
     .close = "\n</" DSML "tool_calls>",
     .template_text =
         TURN("<" DSML "tool_calls>\n<" DSML "invoke name=\"{{ c.function.name }}\">\n{% for k, v in c.function.arguments|items %}<" DSML
              "parameter name=\"{{ k }}\" string=\"true\">{{ v }}</" DSML "parameter>\n{% endfor %}</" DSML "invoke>\n</" DSML "tool_calls>")},
    {.name = "learned function tag",
     .how = W_NAMED,
     .call = "<function=",
     .mid = ">",
     .end = "</function>",
     .between = "",
     .template_text = TURN("<function={{ c.function.name }}>{{ c.function.arguments|tojson }}</function>")},
    {.name = "learned from text",
     .how = W_WRAPPER,
     .call = "<tool_call>\n{\"name\": \"",
     .mid = "\", \"arguments\": ",
     .end = "}\n</tool_call>",
     .between = "\n",
     .template_text = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"},
};
enum { N_WIRES = sizeof wires / sizeof *wires };

static void put(m5_buf *b, const char *s)
{
    if (s) m5_buf_puts(b, s);
}

/* A tag's text: a string as it is, everything else as JSON or as Python would print it. */
static void write_plain(m5_buf *b, const m5_json *v)
{
    if (m5_json_typeof(v) == M5_JSON_STRING)
        m5_buf_slice(b, m5_json_str(v));
    else
        write_value(b, v, rnd(2) ? STYLE_PYTHON : STYLE_JSON, (int)rnd(3), 0);
}

static void write_args(m5_buf *b, const wire *w, const m5_json *args)
{
    if (w->how == W_WRAPPER || w->how == W_NAMED) {
        m5_buf t = {0};
        write_value(&t, args, STYLE_JSON, (int)rnd(3), 0);
        if (w->how == W_WRAPPER && rnd(4) == 0)
            write_text(b, m5_buf_view(&t), STYLE_JSON); /* arguments as a string */
        else
            m5_buf_slice(b, m5_buf_view(&t));
        m5_buf_free(&t);
        return;
    }
    if (w->how == W_GEMMA) {
        write_value(b, args, STYLE_GEMMA, 0, 0);
        return;
    }
    bool first = true;
    for (void *it = m5_json_iter(args); it; it = m5_json_iter_next(args, it), first = false) {
        m5_slice key = m5_json_iter_key(it);
        const m5_json *v = m5_json_iter_value(it);
        if (w->how == W_QWEN) {
            m5_buf_printf(b, "<parameter=%s>\n", key.p);
            write_plain(b, v);
            m5_buf_puts(b, "\n</parameter>\n");
        } else if (w->how == W_GLM) {
            m5_buf_printf(b, "<arg_key>%s</arg_key>\n<arg_value>", key.p);
            write_plain(b, v);
            m5_buf_puts(b, "</arg_value>\n");
        } else if (w->how == W_DSML) {
            bool text = m5_json_typeof(v) == M5_JSON_STRING;
            m5_buf_printf(b, "<" DSML "parameter name=\"%s\" string=\"%s\">", key.p, text ? "true" : "false");
            write_plain(b, v);
            m5_buf_puts(b, "</" DSML "parameter>\n");
        } else if (w->how == W_INVOKE) {
            m5_buf_printf(b, "<parameter name=\"%s\">", key.p);
            write_plain(b, v);
            m5_buf_puts(b, "</parameter>\n");
        } else {
            m5_buf_printf(b, "%s%s=", first ? "" : ", ", key.p);
            write_value(b, v, STYLE_PYTHON, 1, 0);
        }
    }
}

/* ---- what comes out ---- */

typedef struct got {
    m5_buf text, args[MAX_CALLS + 1], name[MAX_CALLS + 1];
    int n, n_unknown, n_incomplete;
} got;

static void on_event(void *arg, const m5_toolcall_event *ev)
{
    got *g = arg;
    int at = ev->index <= MAX_CALLS ? ev->index : MAX_CALLS;
    if (ev->kind == M5_TOOLCALL_TEXT) m5_buf_slice(&g->text, ev->text);
    if (ev->kind == M5_TOOLCALL_BEGIN) {
        g->n++;
        g->n_unknown += !ev->known;
        m5_buf_slice(&g->name[at], ev->text);
    }
    if (ev->kind == M5_TOOLCALL_ARGS) m5_buf_slice(&g->args[at], ev->text);
    if (ev->kind == M5_TOOLCALL_END) g->n_incomplete += !ev->complete;
}

static void got_free(got *g)
{
    m5_buf_free(&g->text);
    for (int i = 0; i <= MAX_CALLS; i++) {
        m5_buf_free(&g->args[i]);
        m5_buf_free(&g->name[i]);
    }
}

static int push_all(const m5_toolcall_format *f, const m5_json *tools, m5_slice text, got *g, bool split)
{
    m5_toolcall *p = NULL;
    m5_toolcall_args args = {.format = f, .tools = tools, .parallel = true, .fn = on_event, .arg = g};
    int rc = m5_toolcall_new(&p, &args, NULL);
    for (size_t at = 0; at < text.n && !rc;) {
        size_t n = split ? 1 + (size_t)rnd(12) : text.n;
        if (n > text.n - at) n = text.n - at;
        rc = m5_toolcall_push(p, text.p + at, n);
        at += n;
    }
    if (!rc) rc = m5_toolcall_finish(p);
    m5_toolcall_free(p);
    return rc;
}

static m5_toolcall_format *format_of(const wire *w)
{
    m5_toolcall_format *f = NULL;
    m5_error err = {0};
    if (w->builtin) {
        T_CHECK(m5_toolcall_format_named(&f, w->builtin, &err) == 0, "%s", err.text);
        return f;
    }
    m5_chat *c = NULL;
    T_CHECK(m5_chat_new(&c, w->template_text, NULL, "", "", &err) == 0, "%s: %s", w->name, err.text);
    T_CHECK(m5_toolcall_format_new(&f, c, &err) == 0, "%s", err.text);
    m5_chat_free(c);
    return f;
}

static bool same_call(const m5_json *want, const m5_buf *text)
{
    m5_json *v = NULL;
    m5_json_limits lim = {.big_ints = true};
    bool same = m5_json_parse(&v, text->p ? text->p : "", text->n, &lim, NULL) == 0 && m5_json_equal(want, v);
    m5_json_unref(v);
    return same;
}

/* One answer of one to three calls with content around; false when anything came back different. */
static bool round_trip(const wire *w, const m5_toolcall_format *f)
{
    static const char *const before[] = {"", "", "I will look.", "a\n\nb <i> c", "1 < 2"};
    static const char *const names[MAX_CALLS] = {"get_weather", "mcp__files-read", "edit.file"};
    m5_json *tools = m5_json_new_array(), *want[MAX_CALLS];
    int n = 1 + (int)rnd(MAX_CALLS);
    m5_buf text = {0};
    got g = {0};
    const char *lead = PICK(before), *tail = rnd(4) || w->how == W_PYTHON ? "" : "Done.";
    m5_buf_puts(&text, lead);
    if (*lead) m5_buf_puts(&text, "\n\n");
    put(&text, w->open);
    for (int i = 0; i < n; i++) {
        want[i] = random_tool(tools, names[i]);
        if (i) put(&text, w->between);
        put(&text, w->call);
        put(&text, names[i]);
        put(&text, w->mid);
        write_args(&text, w, want[i]);
        put(&text, w->end);
    }
    put(&text, w->close);
    if (*tail) m5_buf_printf(&text, "\n%s", tail);
    bool ok = push_all(f, tools, m5_buf_view(&text), &g, true) == 0 && g.n == n && !g.n_unknown && !g.n_incomplete;
    for (int i = 0; i < n && ok; i++) ok = m5_slice_is(m5_buf_view(&g.name[i]), names[i]) && same_call(want[i], &g.args[i]);
    m5_buf content = {0};
    m5_buf_printf(&content, "%s%s", lead, tail);
    ok = ok && m5_slice_eq(m5_buf_view(&content), m5_buf_view(&g.text));
    if (!ok) {
        fprintf(stderr, "%s: %s\n  %d of %d calls, %d unknown, %d incomplete, content '%s'\n", w->name, text.p, g.n, n, g.n_unknown, g.n_incomplete,
                g.text.p ? g.text.p : "");
        for (int i = 0; i < n; i++) {
            m5_buf v = {0};
            m5_json_write(&v, want[i], 0);
            fprintf(stderr, "  want %s\n  got  %s\n", v.p, g.args[i].p ? g.args[i].p : "");
            m5_buf_free(&v);
        }
    }
    m5_buf_free(&content);
    m5_buf_free(&text);
    got_free(&g);
    for (int i = 0; i < n; i++) m5_json_unref(want[i]);
    m5_json_unref(tools);
    return ok;
}

static void test_round_trips(void)
{
    for (int k = 0; k < N_WIRES; k++) {
        m5_toolcall_format *f = format_of(&wires[k]);
        int n_bad = 0;
        for (int i = 0; i < N_TOOLS && n_bad < 3; i++) n_bad += !round_trip(&wires[k], f);
        T_CHECK(n_bad == 0, "%s: %d of %d", wires[k].name, n_bad, N_TOOLS);
        m5_toolcall_format_free(f);
    }
}

/* ---- formats from templates ---- */

static void check_kind(const char *template_text, m5_toolcall_kind kind, const char *opening)
{
    m5_chat *c = NULL;
    m5_toolcall_format *f = NULL;
    m5_error err = {0};
    m5_buf b = {0};
    T_CHECK(m5_chat_new(&c, template_text, NULL, "<s>", "</s>", &err) == 0, "%s", err.text);
    T_EQ_INT(m5_toolcall_format_new(&f, c, &err), 0);
    T_EQ_STR(m5_toolcall_kind_name(m5_toolcall_format_kind(f)), m5_toolcall_kind_name(kind));
    m5_toolcall_opening(f, "F", &b);
    T_EQ_STR(b.p, opening);
    const char *mark;
    for (size_t i = 0; (mark = m5_toolcall_format_mark(f, i)) != NULL; i++) T_CHECK(strcmp(mark, "<|end|>") != 0); /* ends every turn */
    m5_buf_free(&b);
    m5_toolcall_format_free(f);
    m5_chat_free(c);
}

#define JSON_CALL(key) "{\"name\": \"{{ c.function.name }}\", \"" key "\": {{ c.function.arguments|tojson }}}"
#define THINKING       "{{ '<think>\n\n</think>\n\n' if m.role == 'assistant' }}"

static void test_detection(void)
{
    check_kind(NULL, M5_TOOLCALL_HERMES, "<tool_call>\n{\"name\": \"F\", \"arguments\": ");
    check_kind(TURN("\n<tool_call>" JSON_CALL("arguments") "</tool_call>"), M5_TOOLCALL_HERMES, "<tool_call>{\"name\": \"F\", \"arguments\": ");
    check_kind(TURN(JSON_CALL("parameters")), M5_TOOLCALL_LLAMA3, "{\"name\": \"F\", \"parameters\": ");
    check_kind(TURN("[TOOL_CALLS][" JSON_CALL("arguments") "]"), M5_TOOLCALL_MISTRAL, "[TOOL_CALLS][{\"name\": \"F\", \"arguments\": ");
    check_kind(TURN("[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]{{ c.function.arguments|tojson }}"), M5_TOOLCALL_MISTRAL,
               "[TOOL_CALLS]F[ARGS]");
    check_kind(TURN("<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in c.function.arguments|items %}<parameter={{ k }}>\n{{ v "
                    "}}\n</parameter>\n{% endfor %}</function>\n</tool_call>"),
               M5_TOOLCALL_QWEN_XML, "<tool_call>\n<function=F>\n");
    check_kind(TURN("<tool_call>{{ c.function.name }}\n{% for k, v in c.function.arguments|items %}<arg_key>{{ k }}</arg_key>\n<arg_value>{{ v "
                    "}}</arg_value>\n{% endfor %}</tool_call>"),
               M5_TOOLCALL_GLM, "<tool_call>F\n");
    check_kind(TURN("<|tool_call>call:{{ c.function.name }}{ {%- for k, v in c.function.arguments|items %}{{ k }}:<|\"|>{{ v }}<|\"|>{% endfor "
                    "%}}<tool_call|>"),
               M5_TOOLCALL_GEMMA4, "<|tool_call>call:F");
    check_kind(TURN(DS("calls", "begin") DS("call", "begin") "{{ c.function.name }}" SEP "{{ c.function.arguments|tojson }}" DS("call", "end")
                        DS("calls", "end")),
               M5_TOOLCALL_DEEPSEEK, DS("calls", "begin") DS("call", "begin") "F" SEP);
    check_kind(TURN("[{{ c.function.name }}({% for k, v in c.function.arguments|items %}{{ k }}={{ v|tojson }}{% endfor %})]"), M5_TOOLCALL_PYTHONIC,
               "[F");
    check_kind(TURN("<calls><invoke name=\"{{ c.function.name }}\">{% for k, v in c.function.arguments|items %}<parameter name=\"{{ k }}\">{{ v "
                    "}}</parameter>{% endfor %}</invoke></calls>"),
               M5_TOOLCALL_INVOKE, "<calls><invoke name=\"F\">");
    check_kind(TURN("<calls>[{\"tool_name\": \"{{ c.function.name }}\", \"inputs\": {{ c.function.arguments|tojson }}}]</calls>"),
               M5_TOOLCALL_GENERIC, "<calls>[{\"tool_name\": \"F\", \"inputs\": ");
    check_kind("{% if tools %}Write <|tool_call|> and a JSON list.{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}",
               M5_TOOLCALL_GENERIC, "<|tool_call|>[{\"name\": \"F\", \"arguments\": ");
    check_kind("{% for m in messages %}{{ raise_exception('no') if m.tool_calls }}{{ m.role }}: {{ m.content }}\n{% endfor %}", M5_TOOLCALL_HERMES,
               "<tool_call>\n{\"name\": \"F\", \"arguments\": ");
    /* The prompt opens a thought that the history does not have: both begin with "<t". */
    check_kind("{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}{% for c in m.tool_calls or [] %}<tool_call>" JSON_CALL(
                   "arguments") "</tool_call>{% endfor %}{% endfor %}"
                                "{% if add_generation_prompt %}<|assistant|><think>\n{% endif %}",
               M5_TOOLCALL_HERMES, "<tool_call>{\"name\": \"F\", \"arguments\": ");
    m5_toolcall_format *f = NULL;
    T_EQ_INT(m5_toolcall_format_named(&f, "generic", NULL), M5_ERR_NOTFOUND);
    T_CHECK(f == NULL);
    T_EQ_INT(m5_toolcall_format_named(&f, "gemma4", NULL), 0);
    size_t n = 0;
    while (m5_toolcall_format_mark(f, n)) n++;
    T_EQ_INT(n, 4);
    m5_toolcall_format_free(f);
    m5_toolcall_format_free(NULL);
    m5_toolcall_free(NULL);
}

/* ---- limits ---- */

static void test_deep(void)
{
    static const char *const names[] = {"hermes", "qwen_xml", "gemma4", "pythonic"};
    static const char *const head[] = {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": ", "<function=f><parameter=a>",
                                       "<|tool_call>call:f{a:", "[f(a="};
    m5_json *tools = m5_json_new_array();
    m5_json_unref(random_tool(tools, "f"));
    for (int k = 0; k < 4; k++) {
        m5_toolcall_format *f = NULL;
        T_EQ_INT(m5_toolcall_format_named(&f, names[k], NULL), 0);
        m5_buf b = {0};
        got g = {0};
        m5_buf_puts(&b, head[k]);
        for (int i = 0; i < 100000; i++) m5_buf_puts(&b, i % 2 && k != 2 ? "[" : "{\"a\":");
        T_EQ_INT(push_all(f, tools, m5_buf_view(&b), &g, true), 0);
        T_EQ_INT(g.n, 1);
        m5_json *v = NULL;
        T_CHECK(m5_json_parse(&v, g.args[0].p ? g.args[0].p : "", g.args[0].n, NULL, NULL) == 0, "%s", names[k]);
        m5_json_unref(v);
        got_free(&g);
        m5_buf_free(&b);
        m5_toolcall_format_free(f);
    }
    m5_json_unref(tools);
}

/* Every allocation fails once: an error or the whole result, never a crash. */
static void test_out_of_memory(void)
{
    for (int k = 0; k < N_WIRES; k++) {
        const wire *w = &wires[k];
        m5_toolcall_format *f = format_of(w);
        m5_json *tools = m5_json_new_array(), *args = random_tool(tools, "f");
        m5_buf b = {0};
        put(&b, w->open);
        put(&b, w->call);
        put(&b, "f");
        put(&b, w->mid);
        write_args(&b, w, args);
        put(&b, w->end);
        put(&b, w->close);
        for (uint64_t at = 1; at < 1000; at++) {
            got g = {0};
            uint64_t before = m5_mem_count();
            m5_mem_fail_at(at);
            int rc = push_all(f, tools, m5_buf_view(&b), &g, true);
            m5_mem_fail_at(0);
            bool over = m5_mem_count() - before < at;
            bool ours = g.args[0].failed || g.name[0].failed || g.text.failed; /* the test's own buffer was hit */
            bool right = rc == M5_ERR_NOMEM || (rc == 0 && (ours || (g.n == 1 && same_call(args, &g.args[0]))));
            T_CHECK(right, "%s at %d: %s", w->name, (int)at, g.args[0].p);
            got_free(&g);
            if (over) break;
        }
        m5_buf_free(&b);
        m5_json_unref(args);
        m5_json_unref(tools);
        m5_toolcall_format_free(f);
    }
}

int main(void)
{
    test_round_trips();
    test_detection();
    test_deep();
    test_out_of_memory();
    return t_done();
}
