/* SPDX-License-Identifier: Apache-2.0 */
/* Wire formats of tool calls, and which of them a chat template writes. A sample call is rendered through the template: what the model learned to
 * write is what stands between the prompt and that call's end. Known families are recognised by their marks, others are learned from the text around
 * the sample. */
#include "text/toolcall_internal.h"

#include "base/mem.h"

#include <string.h>

static const tc_tags qwen_tags = {"<function=", ">", "</function>", "<parameter=", ">", "</parameter>", NULL, true};
static const tc_tags glm_tags = {"", "", "</tool_call>", "<arg_key>", "</arg_key>", "</arg_value>", "<arg_value>", false};
static const tc_tags invoke_tags = {"<invoke name=\"", "\">", "</invoke>", "<parameter name=\"", "\"", "</parameter>", NULL, false};
static const tc_tags dsml_tags = {
    "<｜DSML｜invoke name=\"", "\">", "</｜DSML｜invoke>", "<｜DSML｜parameter name=\"", "\"", "</｜DSML｜parameter>", NULL, false};

#define SEP "<｜tool▁sep｜>"

static const m5_toolcall_format builtin[] = {
    {.kind = M5_TOOLCALL_HERMES,
     .tags = &qwen_tags,
     .open = {"<tool_call>"},
     .close = {"</tool_call>", "</tool_calls>", "</function>", "</parameter>"},
     .force = "<tool_call>\n{\"name\": \"",
     .force_rest = "\", \"arguments\": "},
    {.kind = M5_TOOLCALL_QWEN_XML,
     .tags = &qwen_tags,
     .open = {"<tool_call>"},
     .close = {"</tool_call>", "</tool_calls>", "</function>", "</parameter>"},
     .force = "<tool_call>\n<function=",
     .force_rest = ">\n"},
    {.kind = M5_TOOLCALL_LLAMA3,
     .bare = true,
     .mode = TJ_PYTHON,
     .open = {"<|python_tag|>"},
     .close = {"<|eom_id|>"},
     .force = "{\"name\": \"",
     .force_rest = "\", \"parameters\": "},
    {.kind = M5_TOOLCALL_MISTRAL,
     .named = true,
     .open = {"[TOOL_CALLS]"},
     .extra = {"[CALL_ID]", "[ARGS]"},
     .force = "[TOOL_CALLS]",
     .force_rest = "[ARGS]"},
    {.kind = M5_TOOLCALL_GEMMA4,
     .named = true,
     .mode = TJ_GEMMA,
     .open = {"<|tool_call>"},
     .close = {"<tool_call|>", "<|tool_response>"},
     .extra = {"<|\"|>"},
     .name_pre = "call:",
     .force = "<|tool_call>call:",
     .force_rest = ""},
    {.kind = M5_TOOLCALL_DEEPSEEK,
     .named = true,
     .open = {"<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"},
     .close = {"<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>", "```"},
     .extra = {SEP},
     .name_pre = "function" SEP,
     .force = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>",
     .force_rest = SEP},
    {.kind = M5_TOOLCALL_PYTHONIC,
     .bare = true,
     .mode = TJ_PYTHON,
     .open = {"<|tool_call_start|>", "<|python_start|>"},
     .close = {"<|tool_call_end|>", "<|python_end|>"},
     .force = "[",
     .force_rest = ""},
    {.kind = M5_TOOLCALL_GLM, .tags = &glm_tags, .open = {"<tool_call>"}, .close = {"</tool_call>"}, .force = "<tool_call>", .force_rest = "\n"},
    {.kind = M5_TOOLCALL_INVOKE,
     .tags = &invoke_tags,
     .open = {"<minimax:tool_call>", "<function_calls>", "<tool_call>"},
     .close = {"</minimax:tool_call>", "</function_calls>", "</tool_call>", "</invoke>", "</parameter>"},
     .force = "<minimax:tool_call>\n<invoke name=\"",
     .force_rest = "\">\n"},
};

const char *m5_toolcall_kind_name(m5_toolcall_kind kind)
{
    static const char *const names[M5_TOOLCALL_KIND_COUNT] = {"hermes",   "qwen_xml", "llama3", "mistral", "gemma4",
                                                              "deepseek", "pythonic", "glm",    "invoke",  "generic"};
    return kind >= 0 && kind < M5_TOOLCALL_KIND_COUNT ? names[kind] : "?";
}

m5_toolcall_kind m5_toolcall_format_kind(const m5_toolcall_format *f)
{
    return f->kind;
}

void m5_toolcall_format_free(m5_toolcall_format *f)
{
    if (!f) return;
    for (size_t i = 0; i < f->n_owned; i++) m5_free(f->owned[i]);
    m5_free(f);
}

/* The derived lists. */
static void complete(m5_toolcall_format *f)
{
    size_t n_start = 0, n_stop = 0;
    memset(f->starts, 0, sizeof f->starts);
    memset(f->stops, 0, sizeof f->stops);
    for (size_t i = 0; i + 1 < TC_MAX_MARKS && f->open[i]; i++) f->starts[n_start++] = f->stops[n_stop++] = f->open[i];
    for (size_t i = 0; i + 1 < TC_MAX_MARKS && f->close[i]; i++)
        if (f->close[i][0] != '`') f->stops[n_stop++] = f->close[i];
    if (f->tags && f->tags->fn_open[0] && n_start + 1 < TC_MAX_MARKS) f->starts[n_start] = f->tags->fn_open;
}

static m5_toolcall_format *copy_builtin(m5_toolcall_kind kind)
{
    m5_toolcall_format *f = m5_calloc(M5_MEM_TEXT, 1, sizeof *f);
    for (size_t i = 0; f && i < sizeof builtin / sizeof *builtin; i++)
        if (builtin[i].kind == kind) *f = builtin[i];
    if (f) complete(f);
    return f;
}

int m5_toolcall_format_named(m5_toolcall_format **out, const char *name, m5_error *err)
{
    *out = NULL;
    for (size_t i = 0; i < sizeof builtin / sizeof *builtin; i++) {
        if (strcmp(m5_toolcall_kind_name(builtin[i].kind), name) != 0) continue;
        *out = copy_builtin(builtin[i].kind);
        return *out ? M5_OK : m5_error_set(err, M5_ERR_NOMEM, "out of memory for the tool-call format");
    }
    return m5_error_set(err, M5_ERR_NOTFOUND, "no tool-call format is called '%s'", name);
}

const char *m5_toolcall_format_mark(const m5_toolcall_format *f, size_t i)
{
    const char *const *lists[] = {f->open, f->close, f->extra};
    const size_t caps[] = {TC_MAX_MARKS, TC_MAX_MARKS, sizeof f->extra / sizeof *f->extra};
    for (size_t l = 0; l < 3; l++)
        for (size_t k = 0; k < caps[l] && lists[l][k]; k++) {
            if (lists[l][k][0] == '`') continue;
            if (i-- == 0) return lists[l][k];
        }
    return NULL;
}

void m5_toolcall_opening(const m5_toolcall_format *f, const char *name, m5_buf *out)
{
    m5_buf_puts(out, f->force);
    if (!name) return;
    m5_buf_puts(out, name);
    m5_buf_puts(out, f->force_rest);
}

/* ---- rendering samples ---- */

#define NAME "m5toolname"
#define USER "{\"role\": \"user\", \"content\": \"m5user\"}"
#define TOOLS                                                                                                                                        \
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"" NAME "\", \"description\": \"m5tooltext\", \"parameters\": {\"type\": "       \
    "\"object\", \"properties\": {\"m5key\": {\"type\": \"string\", \"description\": \"a place\"}}, \"required\": [\"m5key\"]}}}]"
#define CALL_HEAD "{\"role\": \"assistant\", "
#define CALL_TAIL "\"tool_calls\": [{\"id\": \"abcdef123\", \"type\": \"function\", \"function\": {\"name\": \"" NAME "\", \"arguments\": "
#define RESULT    "{\"role\": \"tool\", \"tool_call_id\": \"abcdef123\", \"name\": \"m5other\", \"content\": \"m5result\"}"

/* *limit: a template that takes too long for one sample is not asked again. */
static bool render(const m5_chat *c, const char *text, m5_buf *out, bool *limit)
{
    m5_json *vars = NULL;
    m5_buf_clear(out);
    int rc = *limit ? M5_ERR_LIMIT : m5_json_parse(&vars, text, strlen(text), NULL, NULL);
    if (!rc) rc = m5_chat_render(c, vars, 0, out, NULL, NULL, NULL);
    *limit = rc == M5_ERR_LIMIT;
    m5_json_unref(vars);
    if (rc) m5_buf_clear(out);
    return !rc && !out->failed;
}

static size_t find_last(m5_slice s, m5_slice word)
{
    size_t found = SIZE_MAX;
    for (size_t at = 0; (at = m5_slice_find(s, word, at)) != SIZE_MAX; at++) found = at;
    return found;
}

/* Behind the last user text, where the answer's turn begins. */
static m5_slice behind_user(const m5_buf *b)
{
    m5_slice s = m5_buf_view(b);
    size_t at = find_last(s, M5_SLICE("m5user"));
    return at == SIZE_MAX ? (m5_slice){0} : (m5_slice){s.p + at + 6, s.n - at - 6};
}

/* Renders a call in the ways templates want it until it shows; the answer is what the prompt does not have. */
static bool sample_call(const m5_chat *c, m5_buf *b, m5_buf *prompt, bool *limit)
{
    static const char *const contents[] = {"\"content\": \"\", ", "\"content\": null, ", ""};
    static const char *const arguments[] = {"{\"m5key\": \"m5place\"}", "\"{\\\"m5key\\\": \\\"m5place\\\"}\""};
    bool text_first = m5_chat_get_caps(c)->arguments_text;
    render(c, "{\"messages\": [" USER "], " TOOLS ", \"add_generation_prompt\": true}", prompt, limit);
    m5_buf vars = {0};
    bool found = false;
    for (int i = 0; i < 12 && !found; i++) {
        bool result = i >= 6;
        m5_buf_clear(&vars);
        m5_buf_printf(&vars, "{\"messages\": [" USER ", " CALL_HEAD "%s" CALL_TAIL "%s}}]}%s], " TOOLS "}", contents[i % 3],
                      arguments[text_first != (i / 3 % 2 != 0)], result ? ", " RESULT : "");
        if (vars.failed || !render(c, vars.p, b, limit)) continue;
        m5_slice s = behind_user(b);
        found = m5_slice_find(s, M5_SLICE(NAME), 0) != SIZE_MAX && m5_slice_find(s, M5_SLICE("m5place"), 0) != SIZE_MAX;
    }
    m5_buf_free(&vars);
    return found;
}

/* The answer in a rendered conversation: behind what the prompt has too, and behind a thought. */
static m5_slice answer_of(const m5_buf *b, const m5_buf *prompt)
{
    static const char *const thoughts[] = {"</think>", "[/THINK]", "<|END_THINKING|>", "<channel|>", "</thinking>"};
    m5_slice s = behind_user(b), q = behind_user(prompt);
    size_t at = 0, name = m5_slice_find(s, M5_SLICE(NAME), 0);
    while (at < s.n && at < q.n && at < name && s.p[at] == q.p[at]) at++;
    /* Two marks may begin alike: back to the beginning of one. */
    for (size_t i = at; i > 0 && s.p[i - 1] != '>' && s.p[i - 1] != ']' && s.p[i - 1] != '\n'; i--)
        if (s.p[i - 1] == '<' || s.p[i - 1] == '[') at = i - 1;
    for (size_t t = 0; t < sizeof thoughts / sizeof *thoughts; t++) {
        size_t end = find_last((m5_slice){s.p, name}, m5_slice_of(thoughts[t]));
        if (end != SIZE_MAX && end + strlen(thoughts[t]) > at) at = end + strlen(thoughts[t]);
    }
    while (at < name && tc_space(s.p[at])) at++;
    return (m5_slice){s.p + at, s.n - at};
}

/* ---- learning ---- */

static const char *own(m5_toolcall_format *f, m5_slice s)
{
    if (f->n_owned == sizeof f->owned / sizeof *f->owned) return NULL;
    char *p = m5_strndup(M5_MEM_TEXT, s.p, s.n);
    if (p) f->owned[f->n_owned++] = p;
    return p;
}

static void add_mark(m5_toolcall_format *f, const char **list, size_t cap, m5_slice s)
{
    while (s.n && tc_space(s.p[0])) {
        s.p++;
        s.n--;
    }
    while (s.n && tc_space(s.p[s.n - 1])) s.n--;
    if (!s.n || s.n > 64) return;
    size_t i = 0;
    for (; i + 1 < cap && list[i]; i++)
        if (m5_slice_is(s, list[i])) return;
    if (i + 1 < cap) list[i] = own(f, s);
}

/* The length of a mark <..> or [..] at the slice's beginning, or 0. */
static size_t mark_at(m5_slice s)
{
    if (!s.n || (s.p[0] != '<' && s.p[0] != '[')) return 0;
    for (size_t i = 1; i < s.n && i < 64; i++) {
        if (s.p[i] == (s.p[0] == '<' ? '>' : ']')) return i > 1 ? i + 1 : 0;
        if (tc_space(s.p[i]) || s.p[i] == '{' || s.p[i] == '"') return 0;
    }
    return 0;
}

/* Adds each mark in s; returns what stands behind the last one. Without any: s. */
static m5_slice add_marks(m5_toolcall_format *f, const char **list, size_t cap, m5_slice s)
{
    size_t rest = 0;
    for (size_t i = 0; i < s.n;) {
        size_t len = mark_at((m5_slice){s.p + i, s.n - i});
        if (len) {
            add_mark(f, list, cap, (m5_slice){s.p + i, len});
            rest = i += len;
        } else {
            i++;
        }
    }
    return (m5_slice){s.p + rest, s.n - rest};
}

/* Marks directly behind a call, up to the first that ends a plain reply too. */
static void add_closers(m5_toolcall_format *f, m5_slice s, m5_slice reply)
{
    for (int k = 0; k < 3; k++) {
        while (s.n && (tc_space(s.p[0]) || s.p[0] == ']' || s.p[0] == '}')) {
            s.p++;
            s.n--;
        }
        size_t len = mark_at(s);
        if (!len || m5_slice_find(reply, (m5_slice){s.p, len}, 0) != SIZE_MAX) return;
        add_mark(f, f->close, TC_MAX_MARKS, (m5_slice){s.p, len});
        s = (m5_slice){s.p + len, s.n - len};
    }
}

static size_t object_end(m5_slice s, size_t at)
{
    int depth = 0;
    bool string = false;
    for (; at < s.n; at++) {
        char c = s.p[at];
        if (string && c == '\\')
            at++;
        else if (c == '"')
            string = !string;
        else if (!string && (c == '{' || c == '}') && (depth += c == '{' ? 1 : -1) == 0)
            return at + 1;
    }
    return s.n;
}

static m5_slice last_line(m5_slice s)
{
    size_t at = find_last(s, M5_SLICE("\n"));
    while (at != SIZE_MAX) {
        m5_slice line = {s.p + at + 1, s.n - at - 1};
        for (size_t i = 0; i < line.n; i++)
            if (!tc_space(line.p[i])) return line;
        s.n = at;
        at = find_last(s, M5_SLICE("\n"));
    }
    return s;
}

/* The JSON key whose value begins behind `at` bytes of s ("key": "), or an empty slice. */
static m5_slice key_before(m5_slice s, size_t at)
{
    while (at && (tc_space(s.p[at - 1]) || s.p[at - 1] == ':')) at--;
    if (!at || s.p[at - 1] != '"') return (m5_slice){0};
    size_t end = at - 1, from = end;
    while (from && s.p[from - 1] != '"') from--;
    return (m5_slice){s.p + from, end - from};
}

/* a: the answer; name, brace: where the name and the arguments' opening stand in it. */
static void learn(m5_toolcall_format *f, m5_slice a, size_t name, size_t brace, m5_slice reply)
{
    size_t end = name + sizeof NAME - 1;
    bool json = name > 0 && a.p[name - 1] == '"' && end < a.n && a.p[end] == '"';
    f->kind = M5_TOOLCALL_GENERIC;
    if (!json) {
        f->named = true;
        m5_slice pre = last_line((m5_slice){a.p, name});
        m5_slice rest = add_marks(f, f->open, TC_MAX_MARKS, pre);
        if (!f->open[0])
            add_mark(f, f->open, TC_MAX_MARKS, pre);
        else if (rest.n && !m5_slice_is(rest, "functions."))
            f->name_pre = own(f, rest);
        if (brace > end) add_marks(f, f->extra, sizeof f->extra / sizeof *f->extra, (m5_slice){a.p + end, brace - end});
        size_t over = object_end(a, brace);
        add_closers(f, (m5_slice){a.p + over, a.n - over}, reply);
        return;
    }
    size_t from = name;
    while (from && a.p[from] != '{') from--;
    m5_slice name_key = key_before(a, name - 1), args_key = key_before(a, brace);
    if (name_key.n) f->name_key = own(f, name_key);
    if (args_key.n) f->args_key = own(f, args_key);
    m5_slice pre = {a.p, from};
    while (pre.n && (tc_space(pre.p[pre.n - 1]) || pre.p[pre.n - 1] == '[')) pre.n--;
    pre = last_line(pre);
    while (pre.n && tc_space(pre.p[0])) {
        pre.p++;
        pre.n--;
    }
    if (mark_at(pre))
        add_marks(f, f->open, TC_MAX_MARKS, pre);
    else
        add_mark(f, f->open, TC_MAX_MARKS, pre); /* words */
    size_t over = object_end(a, from);
    add_closers(f, (m5_slice){a.p + over, a.n - over}, reply);
    f->bare = !f->open[0];
}

static bool has(m5_slice s, const char *word)
{
    return m5_slice_find(s, m5_slice_of(word), 0) != SIZE_MAX;
}

/* The family by its marks, or GENERIC. */
static m5_toolcall_kind family(m5_slice a)
{
    if (has(a, "[TOOL_CALLS]")) return M5_TOOLCALL_MISTRAL;
    if (has(a, "<function=") && has(a, "<parameter=")) return M5_TOOLCALL_QWEN_XML;
    if (has(a, "<arg_key>")) return M5_TOOLCALL_GLM;
    if (has(a, "invoke name=\"")) return M5_TOOLCALL_INVOKE;
    if (has(a, "<|tool_call>call:")) return M5_TOOLCALL_GEMMA4;
    if (has(a, "<｜tool▁call")) return M5_TOOLCALL_DEEPSEEK;
    if (has(a, NAME "(m5key=")) return M5_TOOLCALL_PYTHONIC;
    if (m5_slice_starts(a, M5_SLICE("<tool_call>")) && has(a, "\"name\"")) return M5_TOOLCALL_HERMES;
    if (has(a, "<|python_tag|>") || (a.n && a.p[0] == '{')) return M5_TOOLCALL_LLAMA3;
    return M5_TOOLCALL_GENERIC;
}

static m5_toolcall_format *from_sample(m5_slice a, m5_slice reply)
{
    m5_toolcall_kind kind = family(a);
    m5_toolcall_format *f = copy_builtin(kind);
    if (!f) return NULL;
    size_t name = m5_slice_find(a, M5_SLICE(NAME), 0), end = name + sizeof NAME - 1, key = m5_slice_find(a, M5_SLICE("m5key"), end);
    if (key == SIZE_MAX) key = end;
    size_t brace = key; /* back to where the arguments begin: their tag, brace or parenthesis */
    while (brace > end && a.p[brace] != '{' && a.p[brace] != '(' && a.p[brace] != '<') brace--;
    if (kind == M5_TOOLCALL_INVOKE || kind == M5_TOOLCALL_PYTHONIC) {
        bool dsml = has(a, "<｜DSML｜");
        if (dsml) {
            f->tags = &dsml_tags;
            memset(f->open, 0, sizeof f->open);
            memset(f->close, 0, sizeof f->close);
            f->close[0] = dsml_tags.fn_close;
            f->close[1] = dsml_tags.par_close;
        }
        m5_slice before = {a.p, name}, end_tag = m5_slice_of(f->tags ? f->tags->fn_close : ")");
        if (f->tags) before.n = find_last(before, M5_SLICE("<"));
        size_t over = find_last(a, end_tag);
        add_marks(f, f->open, TC_MAX_MARKS, before);
        if (over != SIZE_MAX) add_closers(f, (m5_slice){a.p + over + end_tag.n, a.n - over - end_tag.n}, reply);
    } else if (kind == M5_TOOLCALL_GENERIC && m5_slice_starts(a, M5_SLICE("<function="))) {
        f->kind = M5_TOOLCALL_GENERIC;
        f->tags = &qwen_tags;
        f->close[0] = "</function>";
    } else if (kind == M5_TOOLCALL_GENERIC || kind == M5_TOOLCALL_LLAMA3) {
        bool llama = kind == M5_TOOLCALL_LLAMA3;
        learn(f, a, name, brace, reply);
        if (llama) f->kind = kind;
        if (llama) f->bare = true;
    }
    bool by_name = kind == M5_TOOLCALL_MISTRAL && !has((m5_slice){a.p, name}, "{"); /* a call's id in the sample is nobody's */
    const char *force = own(f, (m5_slice){a.p, name}), *rest = own(f, (m5_slice){a.p + end, brace > end ? brace - end : 0});
    if (!force || !rest) {
        m5_toolcall_format_free(f);
        return NULL;
    }
    f->force = force;
    if (!by_name) f->force_rest = rest;
    complete(f);
    return f;
}

/* A template that shows no calls may still say in the prompt what a call looks like. */
static m5_toolcall_format *from_prompt(m5_slice prompt)
{
    m5_toolcall_kind kind = M5_TOOLCALL_HERMES;
    const char *mark = NULL, *close = NULL;
    if (has(prompt, "<function=") && has(prompt, "<parameter="))
        kind = M5_TOOLCALL_QWEN_XML;
    else if (has(prompt, "<tool_call>"))
        kind = M5_TOOLCALL_HERMES;
    else if (has(prompt, "<tool_calls>"))
        mark = "<tool_calls>", close = "</tool_calls>";
    else if (has(prompt, "<|tool_call|>"))
        mark = "<|tool_call|>";
    else if (has(prompt, "functools["))
        mark = "functools";
    else if (has(prompt, "<|tool_list_start|>") || has(prompt, "<|tool_call_start|>"))
        kind = M5_TOOLCALL_PYTHONIC;
    else if (has(prompt, "[TOOL_CALLS]") || has(prompt, "[AVAILABLE_TOOLS]"))
        kind = M5_TOOLCALL_MISTRAL;
    else if (has(prompt, "<｜tool▁"))
        kind = M5_TOOLCALL_DEEPSEEK;
    else if (has(prompt, "<|python_tag|>") || has(prompt, "\"parameters\": dictionary of argument"))
        kind = M5_TOOLCALL_LLAMA3;
    if (mark) kind = M5_TOOLCALL_GENERIC;
    m5_toolcall_format *f = copy_builtin(kind);
    if (!f) return NULL;
    f->kind = kind;
    if (kind == M5_TOOLCALL_PYTHONIC && has(prompt, "<|tool_")) f->force = "<|tool_call_start|>[";
    if (mark) {
        m5_buf b = {0};
        f->open[0] = mark;
        f->close[0] = close;
        m5_buf_printf(&b, "%s[{\"name\": \"", mark);
        f->force = b.failed ? NULL : own(f, m5_buf_view(&b));
        f->force_rest = "\", \"arguments\": ";
        m5_buf_free(&b);
        if (!f->force) {
            m5_toolcall_format_free(f);
            return NULL;
        }
    }
    complete(f);
    return f;
}

int m5_toolcall_format_new(m5_toolcall_format **out, const m5_chat *chat, m5_error *err)
{
    m5_buf b = {0}, prompt = {0}, plain = {0};
    bool limit = false;
    render(chat, "{\"messages\": [" USER ", {\"role\": \"assistant\", \"content\": \"m5said\"}]}", &plain, &limit);
    bool shown = sample_call(chat, &b, &prompt, &limit);
    *out = shown ? from_sample(answer_of(&b, &prompt), behind_user(&plain)) : from_prompt(m5_buf_view(&prompt));
    m5_buf_free(&plain);
    m5_buf_free(&b);
    m5_buf_free(&prompt);
    return *out ? M5_OK : m5_error_set(err, M5_ERR_NOMEM, "out of memory for the tool-call format");
}
