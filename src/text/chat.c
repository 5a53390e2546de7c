/* SPDX-License-Identifier: Apache-2.0 */
/* Joins a model's chat template to messages and tools: which template, which variables, which bytes are trusted, and what the template can do. The
 * language is in jinja*.c; bringing a request's messages into the shape a template wants is the server's work, guided by the capabilities found here.
 */
#include "text/chat.h"

#include "base/mem.h"

#include <string.h>

struct m5_chat {
    m5_jinja *main, *tool;
    char *bos, *eos;
    m5_chat_caps caps;
    m5_chat_thought thought; /* open NULL = none */
    char before[8], after[8];
};

/* For models without a template: ChatML, with tools and calls as the Hermes family writes them. */
static const char fallback[] =
    "{%- macro text(c) -%}"
    "{%- if c is string %}{{ c }}{% elif c is iterable and c is not mapping %}{% for p in c %}{{ p.text if p is mapping and p.text is string }}{% "
    "endfor %}{% endif -%}"
    "{%- endmacro -%}"
    "{%- set rest = messages -%}"
    "{%- set first = text(messages[0].content) if messages and messages[0].role == 'system' else '' -%}"
    "{%- if messages and messages[0].role == 'system' %}{% set rest = messages[1:] %}{% endif -%}"
    "{%- if tools or first -%}"
    "{{- '<|im_start|>system\\n' + first -}}"
    "{%- if tools -%}"
    "{{- ('\\n\\n' if first else '') + 'You may call these functions:\\n<tools>\\n' -}}"
    "{%- for t in tools %}{{ t|tojson + '\\n' }}{% endfor -%}"
    "{{- '</tools>\\nFor each call write a JSON object with the function name and its arguments:\\n<tool_call>\\n"
    "{\"name\": \"...\", \"arguments\": {...}}\\n</tool_call>' -}}"
    "{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endif -%}"
    "{%- for m in rest -%}"
    "{%- if m.role == 'tool' -%}"
    "{{- '' if loop.previtem and loop.previtem.role == 'tool' else '<|im_start|>user' -}}"
    "{{- '\\n<tool_response>\\n' + text(m.content) + '\\n</tool_response>' -}}"
    "{{- '' if loop.nextitem and loop.nextitem.role == 'tool' else '<|im_end|>\\n' -}}"
    "{%- else -%}"
    "{{- '<|im_start|>' + m.role + '\\n' + text(m.content) -}}"
    "{%- for c in m.tool_calls or [] -%}"
    "{%- set f = c.function or c -%}"
    "{{- ('\\n' if text(m.content) or not loop.first else '') + '<tool_call>\\n{\"name\": ' + f.name|tojson + ', \"arguments\": ' -}}"
    "{{- (f.arguments if f.arguments is string else f.arguments|tojson) + '}\\n</tool_call>' -}}"
    "{%- endfor -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endif -%}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}";

static const char *const thoughts[][2] = {{"<think>", "</think>"},
                                          {"[THINK]", "[/THINK]"},
                                          {"<|channel>thought", "<channel|>"},
                                          {"<seed:think>", "</seed:think>"},
                                          {"<thinking>", "</thinking>"},
                                          {"<|START_THINKING|>", "<|END_THINKING|>"}};

const char *m5_chat_open_thought(m5_slice prompt)
{
    while (prompt.n && (prompt.p[prompt.n - 1] == '\n' || prompt.p[prompt.n - 1] == ' ')) prompt.n--;
    for (size_t i = 0; i < sizeof thoughts / sizeof *thoughts; i++) {
        if (m5_slice_ends(prompt, m5_slice_of(thoughts[i][0]))) return thoughts[i][1];
    }
    return NULL;
}

/* Which pair of tags the text shows, closing tag included; -1 = none. */
static int shown_thought(m5_slice text)
{
    for (size_t i = 0; i < sizeof thoughts / sizeof *thoughts; i++)
        if (m5_slice_find(text, m5_slice_of(thoughts[i][0]), 0) != SIZE_MAX && m5_slice_find(text, m5_slice_of(thoughts[i][1]), 0) != SIZE_MAX)
            return (int)i;
    return -1;
}

static bool has_items(const m5_json *vars, const char *key)
{
    const m5_json *v = m5_json_get(vars, key);
    return m5_json_typeof(v) == M5_JSON_ARRAY && m5_json_len(v) > 0;
}

/* The request's variables without empty lists, and with the model's own tokens, which no request may replace. */
static m5_json *full_vars(const m5_chat *c, const m5_json *vars)
{
    m5_json *all = m5_json_new_object();
    int rc = all ? 0 : M5_ERR_NOMEM;
    for (void *it = m5_json_iter(vars); it && !rc; it = m5_json_iter_next(vars, it)) {
        m5_slice k = m5_json_iter_key(it);
        bool optional = m5_slice_is(k, "tools") || m5_slice_is(k, "documents");
        if (optional && !has_items(vars, k.p)) continue;
        rc = m5_json_set_take(all, k.p, m5_json_ref(m5_json_iter_value(it)));
    }
    if (!rc) rc = m5_json_set_str(all, "bos_token", c->bos);
    if (!rc) rc = m5_json_set_str(all, "eos_token", c->eos);
    if (!rc) return all;
    m5_json_unref(all);
    return NULL;
}

static int render(const m5_chat *c, const m5_json *vars, int64_t now_unix, const m5_jinja_limits *lim, m5_buf *text, m5_text_span **spans,
                  size_t *n_spans, m5_error *err)
{
    static const char *const trusted[] = {"bos_token", "eos_token", "messages[].role", NULL};
    m5_json *all = full_vars(c, vars);
    if (!all) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for the chat template");
    m5_jinja_render_args args = {.vars = all, .trusted_keys = trusted, .now_unix = now_unix, .limits = lim};
    int rc = m5_jinja_render(c->tool && has_items(vars, "tools") ? c->tool : c->main, &args, text, spans, n_spans, err);
    m5_json_unref(all);
    return rc;
}

int m5_chat_render(const m5_chat *c, const m5_json *vars, int64_t now_unix, m5_buf *text, m5_text_span **spans, size_t *n_spans, m5_error *err)
{
    if (spans) *spans = NULL;
    if (n_spans) *n_spans = 0;
    if (m5_json_typeof(vars) != M5_JSON_OBJECT) return m5_error_set(err, M5_ERR_ARG, "the variables of a chat template must be an object");
    return render(c, vars, now_unix, NULL, text, spans, n_spans, err);
}

/* ---- what the template can do ---- */

#define TOOLS                                                                                                                                        \
    "\"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"m5toolname\", \"description\": \"m5tooltext\", \"parameters\": {\"type\": "     \
    "\"object\", "                                                                                                                                   \
    "\"properties\": {\"city\": {\"type\": \"string\", \"description\": \"a place\"}}, \"required\": [\"city\"]}}}]"
#define CALL(arguments, content)                                                                                                                     \
    "{\"role\": \"assistant\", \"content\": " content ", \"reasoning_content\": \"m5thought\", \"tool_calls\": [{\"id\": \"abcdef123\", "            \
    "\"type\": \"function\", \"function\": {\"name\": \"m5toolname\", \"arguments\": " arguments "}}]}"
#define USER                      "{\"role\": \"user\", \"content\": \"m5user\"}"
#define RESULT                    "{\"role\": \"tool\", \"tool_call_id\": \"abcdef123\", \"name\": \"m5toolname\", \"content\": \"m5result\"}"
#define ROUND(arguments, content) "{\"messages\": [" USER ", " CALL(arguments, content) ", " RESULT "], " TOOLS ", \"add_generation_prompt\": true}"
#define OBJECT                    "{\"m5key\": \"m5place\"}"
#define TEXT                      "\"{\\\"m5key\\\": \\\"m5place\\\"}\""

/* Renders one probe; false if the template refuses it. The text replaces what *out held. */
static bool probe(const m5_chat *c, const char *json, m5_buf *out)
{
    /* A template that needs more than this for two messages is not probed: loading a model must not hang on it. */
    static const m5_jinja_limits lim = {.max_steps = 1000000, .max_bytes = 16 << 20};
    m5_json *vars = NULL;
    m5_buf_clear(out);
    bool ok = m5_json_parse(&vars, json, strlen(json), NULL, NULL) == 0 && render(c, vars, 0, &lim, out, NULL, NULL, NULL) == 0;
    m5_json_unref(vars);
    return ok && !out->failed;
}

static bool has(const m5_buf *text, const char *word)
{
    return m5_slice_find(m5_buf_view(text), m5_slice_of(word), 0) != SIZE_MAX;
}

static void probe_tools(m5_chat *c, m5_buf *b)
{
    m5_chat_caps *k = &c->caps;
    k->tools = probe(c, "{\"messages\": [" USER "], " TOOLS ", \"add_generation_prompt\": true}", b) && has(b, "m5toolname");
    /* Some templates want an empty content beside calls, some none at all. */
    m5_buf t = {0};
    bool object = probe(c, ROUND(OBJECT, "\"\""), b) || probe(c, ROUND(OBJECT, "null"), b);
    bool text = probe(c, ROUND(TEXT, "\"\""), &t) || probe(c, ROUND(TEXT, "null"), &t);
    bool object_shown = object && has(b, "m5place"), text_shown = text && has(&t, "m5place");
    bool object_ok = object_shown && !has(b, "'m5key'"), text_ok = text_shown && !has(&t, "\\\"m5key\\\"");
    k->tool_role = (object && has(b, "m5result")) || (text && has(&t, "m5result"));
    k->reasoning = object && has(b, "m5thought");
    k->tool_calls = object_shown || text_shown;
    k->arguments_object = object_ok && !(text_ok && m5_slice_eq(m5_buf_view(b), m5_buf_view(&t)));
    k->arguments_text = text_ok && !object_ok;
    m5_buf_free(&t);
}

static void probe_all(m5_chat *c)
{
    m5_chat_caps *k = &c->caps;
    m5_buf b = {0}, off = {0};
    k->system = probe(c, "{\"messages\": [{\"role\": \"system\", \"content\": \"m5system\"}, " USER "], \"add_generation_prompt\": true}", &b) &&
                has(&b, "m5system");
    k->developer =
        probe(c, "{\"messages\": [{\"role\": \"developer\", \"content\": \"m5system\"}, " USER "], \"add_generation_prompt\": true}", &b) &&
        has(&b, "m5system");
    k->part_content =
        probe(c, "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"m5part\"}]}], \"add_generation_prompt\": true}",
              &b) &&
        has(&b, "m5part") && !has(&b, "'m5part'") && !has(&b, "\"m5part\"");
    probe_tools(c, &b);
    bool on_ok = probe(c, "{\"messages\": [" USER "], \"add_generation_prompt\": true, \"enable_thinking\": true}", &b);
    bool off_ok = probe(c, "{\"messages\": [" USER "], \"add_generation_prompt\": true, \"enable_thinking\": false}", &off);
    k->enable_thinking = on_ok && off_ok && !m5_slice_eq(m5_buf_view(&b), m5_buf_view(&off));
    bool plain_ok = probe(c, "{\"messages\": [" USER "], \"add_generation_prompt\": true}", &b);
    k->text_content = plain_ok && has(&b, "m5user");
    bool told_ok = probe(c, "{\"messages\": [" USER "], \"add_generation_prompt\": true, \"enable_thinking\": true}", &off);
    k->thinks_if_told = plain_ok && told_ok && !m5_slice_eq(m5_buf_view(&b), m5_buf_view(&off));
    k->opens_thought = plain_ok && m5_chat_open_thought(m5_buf_view(&b)) != NULL;
    m5_buf_free(&b);
    m5_buf_free(&off);
}

/* Copies the white space that s begins with, if it is short. */
static void copy_blank(char out[8], m5_slice s)
{
    size_t n = 0;
    while (n < s.n && (s.p[n] == '\n' || s.p[n] == ' ')) n++;
    if (n >= 8) n = 0;
    if (n) memcpy(out, s.p, n);
    out[n] = 0;
}

static m5_slice behind(m5_slice s, size_t at)
{
    return at < s.n ? (m5_slice){s.p + at, s.n - at} : (m5_slice){"", 0};
}

/* Finds the tags in what the template renders, else in its source, and the white space around the closing one where it is rendered. */
static void probe_thought(m5_chat *c, const char *source)
{
    m5_buf b = {0};
    const char *word = "m5thought";
    int tags = -1;
    if (probe(c, ROUND(OBJECT, "\"m5said\""), &b) && has(&b, word)) tags = shown_thought(m5_buf_view(&b));
    if (tags < 0) { /* the closed thought of a prompt without thinking */
        word = NULL;
        if (probe(c, "{\"messages\": [" USER "], \"add_generation_prompt\": true, \"enable_thinking\": false}", &b))
            tags = shown_thought(m5_buf_view(&b));
    }
    bool rendered = tags >= 0;
    if (!rendered) tags = shown_thought(m5_slice_of(source));
    if (tags >= 0) {
        m5_slice text = m5_buf_view(&b), close = m5_slice_of(thoughts[tags][1]);
        c->thought = (m5_chat_thought){thoughts[tags][0], thoughts[tags][1], c->before, c->after};
        memcpy(c->before, "\n", 2);
        memcpy(c->after, "\n\n", 3);
        if (rendered) {
            size_t at = word ? m5_slice_find(text, m5_slice_of(word), 0) + strlen(word) : 0;
            at = m5_slice_find(text, close, at);
            size_t from = at;
            while (from != SIZE_MAX && from > 0 && (text.p[from - 1] == '\n' || text.p[from - 1] == ' ')) from--;
            if (at != SIZE_MAX && word) copy_blank(c->before, (m5_slice){text.p + from, at - from});
            if (at != SIZE_MAX) copy_blank(c->after, behind(text, at + close.n));
        }
    }
    m5_buf_free(&b);
}

const m5_chat_thought *m5_chat_get_thought(const m5_chat *c)
{
    return c->thought.open ? &c->thought : NULL;
}

const m5_chat_caps *m5_chat_get_caps(const m5_chat *c)
{
    return &c->caps;
}

int m5_chat_new(m5_chat **out, const char *template_text, const char *tool_template, const char *bos, const char *eos, m5_error *err)
{
    *out = NULL;
    int rc = M5_ERR_NOMEM;
    m5_chat *c = m5_calloc(M5_MEM_TEXT, 1, sizeof *c);
    if (!c) return m5_error_set(err, rc, "out of memory for the chat template");
    c->bos = m5_strdup(M5_MEM_TEXT, bos ? bos : "");
    c->eos = m5_strdup(M5_MEM_TEXT, eos ? eos : "");
    if (!c->bos || !c->eos) {
        m5_error_set(err, rc, "out of memory for the chat template");
        goto out;
    }
    const char *text = template_text ? template_text : fallback;
    rc = m5_jinja_compile(&c->main, template_text ? "chat_template" : "built-in template", text, strlen(text), err);
    if (!rc && template_text && tool_template) rc = m5_jinja_compile(&c->tool, "tool_template", tool_template, strlen(tool_template), err);
    if (!rc) probe_all(c);
    if (!rc) probe_thought(c, text);
out:
    if (rc) {
        m5_chat_free(c);
        return rc;
    }
    *out = c;
    return M5_OK;
}

void m5_chat_free(m5_chat *c)
{
    if (!c) return;
    m5_jinja_free(c->main);
    m5_jinja_free(c->tool);
    m5_free(c->bos);
    m5_free(c->eos);
    m5_free(c);
}
