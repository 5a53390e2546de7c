/* SPDX-License-Identifier: Apache-2.0 */
/* text/toolcall: any text in any format. The first byte chooses the format, the second the flags and the cut. Events must be well formed in order and
 * text, arguments must be JSON objects, and a cut text must give what the whole one gives. */
#include "base/json.h"
#include "base/mem.h"
#include "text/toolcall.h"

#include <stdlib.h>
#include <string.h>

static const char tools_text[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {\"a\": {\"type\": "
    "\"string\"}, \"b\": "
    "{\"type\": \"integer\"}, \"c\": {\"type\": [\"object\", \"array\"]}, \"d\": {}, \"e\": {\"type\": [\"string\", \"null\"]}, \"g\": {\"enum\": "
    "[\"x\", 1, "
    "null]}, \"h\": {\"$ref\": \"#/properties/h\"}}, \"required\": [\"b\"]}}}, {\"name\": \"get_weather\", \"parameters\": true}]";

static const char learned_template[] =
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content or '' }}{% for c in m.tool_calls or [] %}<|calls|><|call|>functions.{{ c.function.name "
    "}}:0<|args|>"
    "{{ c.function.arguments|tojson }}<|call_end|><|calls_end|>{% endfor %}<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}";

typedef struct sink {
    m5_buf log, args;
    int open, n;
    bool had_args;
} sink;

static void on_event(void *arg, const m5_toolcall_event *ev)
{
    sink *s = arg;
    if (!m5_utf8_valid(ev->text.p ? ev->text.p : "", ev->text.n)) abort();
    switch (ev->kind) {
    case M5_TOOLCALL_TEXT:
        if (s->open >= 0 || !ev->text.n) abort();
        m5_buf_slice(&s->log, ev->text);
        break;
    case M5_TOOLCALL_BEGIN:
        if (s->open >= 0 || ev->index != s->n || !ev->text.n) abort();
        s->open = s->n++;
        s->had_args = false;
        m5_buf_clear(&s->args);
        m5_buf_printf(&s->log, "\x01%d", ev->known);
        m5_buf_slice(&s->log, ev->text);
        break;
    case M5_TOOLCALL_ARGS:
        if (s->open != ev->index || !ev->text.n) abort();
        s->had_args = true;
        m5_buf_slice(&s->args, ev->text);
        break;
    case M5_TOOLCALL_END: {
        m5_json *v = NULL;
        m5_json_limits lim = {.big_ints = true};
        if (s->open != ev->index || !s->had_args) abort();
        if (m5_json_parse(&v, s->args.p, s->args.n, &lim, NULL) != 0 || m5_json_typeof(v) != M5_JSON_OBJECT) abort();
        m5_json_unref(v);
        m5_buf_printf(&s->log, "\x02%d", ev->complete);
        m5_buf_slice(&s->log, m5_buf_view(&s->args));
        s->open = -1;
        break;
    }
    }
}

static void run(sink *s, const m5_toolcall_format *f, const m5_json *tools, int flags, const char *text, size_t n, size_t step)
{
    m5_toolcall *p = NULL;
    *s = (sink){.open = -1};
    m5_toolcall_args args = {.format = f, .tools = tools, .parallel = flags & 1, .fn = on_event, .arg = s};
    if (m5_toolcall_new(&p, &args, NULL) != 0) abort();
    for (size_t at = 0; at < n; at += step)
        if (m5_toolcall_push(p, text + at, n - at < step ? n - at : step) != 0) abort();
    if (m5_toolcall_finish(p) != 0 || s->open >= 0 || m5_toolcall_count(p) != s->n || m5_toolcall_open(p)) abort();
    if (!(flags & 1) && s->n > 1) abort();
    m5_toolcall_free(p);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2) return 0;
    m5_toolcall_format *f = NULL;
    m5_json *tools = NULL;
    int kind = data[0] % M5_TOOLCALL_KIND_COUNT;
    if (kind == M5_TOOLCALL_GENERIC) {
        m5_chat *c = NULL;
        if (m5_chat_new(&c, learned_template, NULL, "", "", NULL) != 0 || m5_toolcall_format_new(&f, c, NULL) != 0) abort();
        m5_chat_free(c);
    } else if (m5_toolcall_format_named(&f, m5_toolcall_kind_name((m5_toolcall_kind)kind), NULL) != 0) {
        abort();
    }
    if (m5_json_parse(&tools, tools_text, sizeof tools_text - 1, NULL, NULL) != 0) abort();
    sink whole, cut;
    const char *text = (const char *)data + 2;
    run(&whole, f, tools, data[1], text, n - 2, n);
    run(&cut, f, tools, data[1], text, n - 2, 1 + (data[1] >> 1) % 16);
    if (!m5_slice_eq(m5_buf_view(&whole.log), m5_buf_view(&cut.log))) abort();
    m5_buf_free(&whole.log);
    m5_buf_free(&whole.args);
    m5_buf_free(&cut.log);
    m5_buf_free(&cut.args);
    m5_json_unref(tools);
    m5_toolcall_format_free(f);
    return 0;
}
