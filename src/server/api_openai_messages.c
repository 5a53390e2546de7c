/* SPDX-License-Identifier: Apache-2.0 */
/* OpenAI dialect, reading side: the list of messages in one shape, whatever the client made of it. May touch: base, turn.h. */
#include "server/api_openai_internal.h"

#include <stdio.h>
#include <string.h>

/* Text of a content value: string, null, or a list of text parts joined by newlines. */
static int content_text(const m5_json *content, size_t i_msg, m5_json **out, m5_api_error *ae)
{
    char where[96];
    snprintf(where, sizeof where, "messages[%zu].content", i_msg);
    m5_json_type type = m5_json_typeof(content);
    if (type == M5_JSON_NONE || type == M5_JSON_NULL) {
        *out = m5_json_new_str("", 0);
    } else if (type == M5_JSON_STRING) {
        *out = m5_json_ref((m5_json *)content);
    } else if (type == M5_JSON_ARRAY) {
        m5_buf b = {0};
        for (size_t i = 0; i < m5_json_len(content); i++) {
            const m5_json *part = m5_json_at(content, i), *text = m5_json_get(part, "text");
            m5_slice kind = m5_json_str(m5_json_get(part, "type"));
            bool is_text = m5_json_typeof(part) == M5_JSON_STRING ||
                           (m5_json_typeof(text) == M5_JSON_STRING &&
                            (m5_slice_is(kind, "text") || m5_slice_is(kind, "input_text") || m5_slice_is(kind, "output_text")));
            if (!is_text) {
                m5_buf_free(&b);
                snprintf(where, sizeof where, "messages[%zu].content[%zu]", i_msg, i);
                return m5_api_fail(ae, 400, where, "%s: only text parts are supported, not '%.*s'", where, (int)(kind.n > 40 ? 40 : kind.n), kind.p);
            }
            if (i) m5_buf_putc(&b, '\n');
            m5_buf_slice(&b, m5_json_typeof(part) == M5_JSON_STRING ? m5_json_str(part) : m5_json_str(text));
        }
        *out = b.failed ? NULL : m5_json_new_str(b.p ? b.p : "", b.n);
        m5_buf_free(&b);
    } else {
        return m5_api_fail(ae, 400, where, "%s must be a string or a list of parts", where);
    }
    return *out ? 0 : m5_openai_oom(ae);
}

/* Arguments of a call: templates of some families iterate over them, so a JSON string that holds an object becomes the object. */
static int normalise_calls(const m5_json *calls, size_t i_msg, m5_json **out, m5_api_error *ae)
{
    char where[96];
    snprintf(where, sizeof where, "messages[%zu].tool_calls", i_msg);
    if (m5_json_typeof(calls) != M5_JSON_ARRAY) return m5_api_fail(ae, 400, where, "%s must be a list", where);
    m5_json *list = m5_json_dup(calls);
    if (!list) return m5_openai_oom(ae);
    for (size_t i = 0; i < m5_json_len(list); i++) {
        m5_json *fn = m5_json_get(m5_json_at(list, i), "function"), *args = m5_json_get(fn, "arguments");
        if (m5_json_typeof(m5_json_get(fn, "name")) != M5_JSON_STRING) {
            m5_json_unref(list);
            return m5_api_fail(ae, 400, where, "%s[%zu].function.name is missing", where, i);
        }
        m5_slice s = m5_json_str(args);
        m5_json *obj = NULL;
        if (m5_json_typeof(args) == M5_JSON_STRING && s.n > 0 && m5_json_parse(&obj, s.p, s.n, NULL, NULL) == 0) {
            if (m5_json_typeof(obj) == M5_JSON_OBJECT)
                m5_json_set_take(fn, "arguments", obj);
            else
                m5_json_unref(obj);
        } else if (m5_json_typeof(args) == M5_JSON_NONE || m5_json_typeof(args) == M5_JSON_NULL ||
                   (m5_json_typeof(args) == M5_JSON_STRING && s.n == 0)) {
            m5_json_set_take(fn, "arguments", m5_json_new_object());
        }
    }
    *out = list;
    return 0;
}

/* The one call of an old-style message, as a list of one. */
static int legacy_call(const m5_json *call, size_t i_msg, m5_json **out, m5_api_error *ae)
{
    m5_json *list = m5_json_new_array(), *item = m5_json_new_object();
    int rc = !list || !item || m5_json_set_str(item, "id", "call_0") || m5_json_set_str(item, "type", "function") ||
             m5_json_set_take(item, "function", m5_json_ref((m5_json *)call));
    if (rc)
        m5_json_unref(item);
    else
        rc = m5_json_push_take(list, item);
    rc = rc ? m5_openai_oom(ae) : normalise_calls(list, i_msg, out, ae);
    m5_json_unref(list);
    return rc;
}

static int normalise_message(const m5_json *in, size_t i, m5_json **out, m5_api_error *ae)
{
    static const char *const roles[] = {"system", "developer", "user", "assistant", "tool", "function"};
    char where[96];
    snprintf(where, sizeof where, "messages[%zu]", i);
    if (m5_json_typeof(in) != M5_JSON_OBJECT) return m5_api_fail(ae, 400, where, "%s must be an object", where);
    m5_slice role = m5_json_str(m5_json_get(in, "role"));
    size_t k = 0;
    while (k < sizeof roles / sizeof roles[0] && !m5_slice_is(role, roles[k])) k++;
    if (k == sizeof roles / sizeof roles[0]) {
        snprintf(where, sizeof where, "messages[%zu].role", i);
        return m5_api_fail(ae, 400, where, "%s must be one of system, developer, user, assistant, tool", where);
    }
    m5_json *content = NULL, *calls = NULL, *m = NULL;
    int rc = content_text(m5_json_get(in, "content"), i, &content, ae);
    const m5_json *tc = m5_json_get(in, "tool_calls"), *legacy = m5_json_get(in, "function_call");
    if (rc == 0 && m5_json_typeof(tc) != M5_JSON_NONE && m5_json_typeof(tc) != M5_JSON_NULL)
        rc = normalise_calls(tc, i, &calls, ae);
    else if (rc == 0 && m5_json_typeof(legacy) == M5_JSON_OBJECT)
        rc = legacy_call(legacy, i, &calls, ae);
    if (rc) goto out;
    m = m5_json_new_object();
    if (!m) {
        rc = m5_openai_oom(ae);
        goto out;
    }
    m5_json_set_str(m, "role", k == 1 ? "system" : k == 5 ? "tool" : roles[k]);
    m5_json_set_take(m, "content", content);
    content = NULL;
    if (calls) m5_json_set_take(m, "tool_calls", calls);
    calls = NULL;
    static const char *const keep[] = {"name", "tool_call_id"};
    for (size_t j = 0; j < 2; j++) {
        m5_json *v = m5_json_get(in, keep[j]);
        if (m5_json_typeof(v) == M5_JSON_STRING) m5_json_set_take(m, keep[j], m5_json_ref(v));
    }
    static const char *const thought[] = {"reasoning_content", "reasoning", "thinking"};
    for (size_t j = 0; j < 3; j++) {
        m5_json *v = m5_json_get(in, thought[j]);
        if (m5_json_typeof(v) == M5_JSON_STRING && !m5_json_get(m, "reasoning_content")) m5_json_set_take(m, "reasoning_content", m5_json_ref(v));
    }
    *out = m;
out:
    m5_json_unref(content);
    m5_json_unref(calls);
    return rc;
}

int m5_openai_messages(m5_turn *t, const m5_json *o, m5_api_error *ae)
{
    const m5_json *messages = m5_json_get(o, "messages");
    if (m5_json_typeof(messages) != M5_JSON_ARRAY) return m5_api_fail(ae, 400, "messages", "'messages' must be a list");
    if (m5_json_len(messages) == 0) return m5_api_fail(ae, 400, "messages", "'messages' is empty");
    m5_json *list = m5_json_new_array();
    if (!list || m5_json_set_take(t->vars, "messages", list)) return m5_openai_oom(ae);
    for (size_t i = 0; i < m5_json_len(messages); i++) {
        m5_json *m = NULL;
        if (normalise_message(m5_json_at(messages, i), i, &m, ae)) return -1;
        if (m5_json_push_take(list, m)) return m5_openai_oom(ae);
    }
    return 0;
}
