/* SPDX-License-Identifier: Apache-2.0 */
/* OpenAI dialect, reading side: tools, and the form that the answer must have. May touch: base, turn.h. */
#include "server/api_openai_internal.h"

#include <string.h>

static bool absent(const m5_json *v)
{
    return m5_json_typeof(v) == M5_JSON_NONE || m5_json_typeof(v) == M5_JSON_NULL;
}

/* ---- tools ---- */

/* {"type": "function", "function": fn}; takes a reference of fn. */
static m5_json *wrapped(const m5_json *fn)
{
    m5_json *tool = m5_json_new_object();
    if (!tool || m5_json_set_str(tool, "type", "function") || m5_json_set_take(tool, "function", m5_json_ref((m5_json *)fn))) {
        m5_json_unref(tool);
        return NULL;
    }
    return tool;
}

/* Adds one entry in the wrapped form. Kinds of tools that run elsewhere (web_search, custom ...) are left out: the model cannot call them here. */
static int add_tool(m5_turn *t, const m5_json *tool, size_t i, m5_api_error *ae)
{
    const m5_json *type = m5_json_get(tool, "type"), *fn = m5_json_get(tool, "function");
    if (m5_json_typeof(type) == M5_JSON_STRING && !m5_slice_is(m5_json_str(type), "function")) return 0;
    bool flat = m5_json_typeof(fn) != M5_JSON_OBJECT; /* the Responses API's form */
    m5_slice name = m5_json_str(m5_json_get(flat ? tool : fn, "name"));
    if (name.n == 0) return m5_api_fail(ae, 400, "tools", "tools[%zu].function.name is missing", i);
    for (size_t k = 0; k < m5_json_len(t->tools); k++)
        if (m5_slice_eq(name, m5_json_str(m5_json_path(m5_json_at(t->tools, k), "function.name"))))
            return m5_api_fail(ae, 400, "tools", "tools[%zu]: the name '%.*s' is there twice", i, (int)(name.n > 60 ? 60 : name.n), name.p);
    return m5_json_push_take(t->tools, flat ? wrapped(tool) : m5_json_ref((m5_json *)tool)) ? m5_openai_oom(ae) : 0;
}

static int get_tools(m5_turn *t, const m5_json *o, m5_api_error *ae)
{
    const m5_json *tools = m5_json_get(o, "tools"), *functions = m5_json_get(o, "functions");
    if (!absent(tools) && m5_json_typeof(tools) != M5_JSON_ARRAY) return m5_api_fail(ae, 400, "tools", "'tools' must be a list");
    if (!absent(functions) && m5_json_typeof(functions) != M5_JSON_ARRAY) return m5_api_fail(ae, 400, "functions", "'functions' must be a list");
    t->legacy_functions = m5_json_len(tools) == 0 && m5_json_len(functions) > 0;
    t->tools = m5_json_new_array();
    if (!t->tools) return m5_openai_oom(ae);
    for (size_t i = 0; i < m5_json_len(tools); i++)
        if (add_tool(t, m5_json_at(tools, i), i, ae)) return -1;
    for (size_t i = 0; t->legacy_functions && i < m5_json_len(functions); i++) {
        m5_json *tool = wrapped(m5_json_at(functions, i));
        int rc = tool ? add_tool(t, tool, i, ae) : m5_openai_oom(ae);
        m5_json_unref(tool);
        if (rc) return -1;
    }
    return 0;
}

static int choose_named(m5_turn *t, const char *field, m5_slice name, m5_api_error *ae)
{
    for (size_t i = 0; i < m5_json_len(t->tools); i++) {
        if (!m5_slice_eq(name, m5_json_str(m5_json_path(m5_json_at(t->tools, i), "function.name")))) continue;
        t->choice = M5_TOOLS_NAMED;
        t->tool_name = m5_arena_strndup(&t->arena, name.p, name.n);
        return t->tool_name ? 0 : m5_openai_oom(ae);
    }
    return m5_api_fail(ae, 400, field, "'%s' names '%.*s', which is not among the tools", field, (int)(name.n > 60 ? 60 : name.n), name.p);
}

static int choose(m5_turn *t, const char *field, const m5_json *v, m5_api_error *ae)
{
    if (absent(v)) return 0;
    m5_slice word = m5_json_str(v), name = m5_json_str(m5_json_path(v, "function.name"));
    if (m5_json_typeof(v) == M5_JSON_OBJECT) {
        word = m5_json_str(m5_json_get(v, "type"));
        if (name.n == 0) name = m5_json_str(m5_json_get(v, "name"));
        if (name.n) return choose_named(t, field, name, ae);
    }
    if (m5_slice_is(word, "auto")) return 0;
    if (m5_slice_is(word, "none")) {
        t->choice = M5_TOOLS_NONE;
        return 0;
    }
    if (!m5_slice_is(word, "required") && !m5_slice_is(word, "any"))
        return m5_api_fail(ae, 400, field, "'%s' must be auto, none, required or name a function", field);
    if (m5_json_len(t->tools) == 0) return m5_api_fail(ae, 400, field, "'%s' requires a call, but there are no tools", field);
    t->choice = M5_TOOLS_REQUIRED;
    return 0;
}

int m5_openai_tools(m5_turn *t, const m5_json *o, m5_api_error *ae)
{
    t->parallel_calls = true;
    if (get_tools(t, o, ae) || m5_openai_get_bool(o, "parallel_tool_calls", &t->parallel_calls, ae)) return -1;
    if (t->legacy_functions) t->parallel_calls = false;
    if (choose(t, t->legacy_functions ? "function_call" : "tool_choice", m5_json_get(o, t->legacy_functions ? "function_call" : "tool_choice"), ae))
        return -1;
    if (m5_json_len(t->tools) == 0 || t->choice == M5_TOOLS_NONE) {
        m5_json_unref(t->tools);
        t->tools = NULL;
        return 0;
    }
    return m5_json_set_take(t->vars, "tools", m5_json_ref(t->tools)) ? m5_openai_oom(ae) : 0;
}

/* ---- the form of the answer ---- */

/* Takes a demand; two in one request cannot both be met. */
static int demand(m5_turn *t, m5_structure kind, const char *field, const m5_json *v, m5_api_error *ae)
{
    if (t->structure != M5_STRUCTURE_NONE)
        return m5_api_fail(ae, 400, field, "'%s' and '%s' both say what the answer must look like", t->structure_param, field);
    t->structure = kind;
    t->structure_param = field;
    if (kind == M5_STRUCTURE_SCHEMA || kind == M5_STRUCTURE_CHOICE) {
        t->schema = m5_json_ref((m5_json *)v);
    } else if (kind != M5_STRUCTURE_OBJECT) {
        m5_slice text = m5_json_str(v);
        char *copy = m5_arena_strndup(&t->arena, text.p, text.n);
        if (!copy) return m5_openai_oom(ae);
        t->structure_text = (m5_slice){copy, text.n};
    }
    return 0;
}

/* A schema: an object, true, or either written as a string. */
static int demand_schema(m5_turn *t, const char *field, const m5_json *v, m5_api_error *ae)
{
    m5_json *parsed = NULL;
    m5_error err = {0};
    if (m5_json_typeof(v) == M5_JSON_STRING) {
        m5_slice s = m5_json_str(v);
        if (m5_json_parse(&parsed, s.p, s.n, &(m5_json_limits){.any_root = true}, &err))
            return m5_api_fail(ae, 400, field, "'%s' is not JSON: %s", field, err.text);
        v = parsed;
    }
    int rc;
    if (m5_json_typeof(v) != M5_JSON_OBJECT && m5_json_typeof(v) != M5_JSON_BOOL)
        rc = m5_api_fail(ae, 400, field, "'%s' must be a JSON schema", field);
    else
        rc = demand(t, M5_STRUCTURE_SCHEMA, field, v, ae);
    m5_json_unref(parsed);
    return rc;
}

static int demand_text(m5_turn *t, m5_structure kind, const char *field, const m5_json *v, m5_api_error *ae)
{
    if (m5_json_typeof(v) != M5_JSON_STRING) return m5_api_fail(ae, 400, field, "'%s' must be a string", field);
    return m5_json_str(v).n ? demand(t, kind, field, v, ae) : 0;
}

static int demand_choice(m5_turn *t, const char *field, const m5_json *v, m5_api_error *ae)
{
    bool ok = m5_json_typeof(v) == M5_JSON_ARRAY && m5_json_len(v) > 0;
    for (size_t i = 0; ok && i < m5_json_len(v); i++) ok = m5_json_typeof(m5_json_at(v, i)) == M5_JSON_STRING;
    return ok ? demand(t, M5_STRUCTURE_CHOICE, field, v, ae) : m5_api_fail(ae, 400, field, "'%s' must be a list of strings", field);
}

static int get_response_format(m5_turn *t, const m5_json *rf, m5_api_error *ae)
{
    static const char field[] = "response_format";
    if (absent(rf)) return 0;
    if (m5_json_typeof(rf) != M5_JSON_OBJECT) return m5_api_fail(ae, 400, field, "'response_format' must be an object");
    m5_slice type = m5_json_str(m5_json_get(rf, "type"));
    const m5_json *schema = m5_json_get(rf, "schema"), *inner = m5_json_get(rf, "json_schema");
    if (m5_slice_is(type, "text")) return 0;
    if (m5_slice_is(type, "json_object") && absent(schema)) return demand(t, M5_STRUCTURE_OBJECT, field, NULL, ae);
    if (m5_slice_is(type, "json_object")) return demand_schema(t, field, schema, ae);
    if (!m5_slice_is(type, "json_schema"))
        return m5_api_fail(ae, 400, field, "'response_format.type' must be text, json_object or json_schema, not '%.*s'",
                           (int)(type.n > 40 ? 40 : type.n), type.p);
    if (!absent(m5_json_get(inner, "schema"))) schema = m5_json_get(inner, "schema");
    if (absent(schema)) return m5_api_fail(ae, 400, "response_format.json_schema", "'response_format.json_schema.schema' is missing");
    return demand_schema(t, field, schema, ae);
}

/* vLLM's object; its members by their own names. */
static int get_structured_outputs(m5_turn *t, const m5_json *so, m5_api_error *ae)
{
    if (absent(so)) return 0;
    if (m5_json_typeof(so) != M5_JSON_OBJECT) return m5_api_fail(ae, 400, "structured_outputs", "'structured_outputs' must be an object");
    const m5_json *v;
    if (!absent(v = m5_json_get(so, "json")) && demand_schema(t, "structured_outputs.json", v, ae)) return -1;
    if (!absent(v = m5_json_get(so, "regex")) && demand_text(t, M5_STRUCTURE_REGEX, "structured_outputs.regex", v, ae)) return -1;
    if (!absent(v = m5_json_get(so, "choice")) && demand_choice(t, "structured_outputs.choice", v, ae)) return -1;
    if (!absent(v = m5_json_get(so, "grammar")) && demand_text(t, M5_STRUCTURE_GBNF, "structured_outputs.grammar", v, ae)) return -1;
    if (m5_json_bool(m5_json_get(so, "json_object")) && demand(t, M5_STRUCTURE_OBJECT, "structured_outputs.json_object", NULL, ae)) return -1;
    if (!absent(m5_json_get(so, "structural_tag")))
        return m5_api_fail(ae, 400, "structured_outputs.structural_tag", "'structural_tag' is not supported by this server");
    return 0;
}

int m5_openai_structure(m5_turn *t, const m5_json *o, m5_api_error *ae)
{
    static const struct {
        const char *field;
        m5_structure kind;
    } fields[] = {{"json_schema", M5_STRUCTURE_SCHEMA}, {"guided_json", M5_STRUCTURE_SCHEMA},
                  {"grammar", M5_STRUCTURE_GBNF},       {"guided_grammar", M5_STRUCTURE_GBNF},
                  {"ebnf", M5_STRUCTURE_GBNF},          {"regex", M5_STRUCTURE_REGEX},
                  {"guided_regex", M5_STRUCTURE_REGEX}, {"guided_choice", M5_STRUCTURE_CHOICE},
                  {"choice", M5_STRUCTURE_CHOICE}};
    if (get_response_format(t, m5_json_get(o, "response_format"), ae) || get_structured_outputs(t, m5_json_get(o, "structured_outputs"), ae))
        return -1;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const m5_json *v = m5_json_get(o, fields[i].field);
        int rc;
        if (absent(v)) continue;
        if (fields[i].kind == M5_STRUCTURE_SCHEMA)
            rc = demand_schema(t, fields[i].field, v, ae);
        else if (fields[i].kind == M5_STRUCTURE_CHOICE)
            rc = demand_choice(t, fields[i].field, v, ae);
        else
            rc = demand_text(t, fields[i].kind, fields[i].field, v, ae);
        if (rc) return rc;
    }
    return 0;
}
