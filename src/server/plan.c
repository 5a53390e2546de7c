/* SPDX-License-Identifier: Apache-2.0 */
/* From a parsed turn to what its answers go by: the conversation in the shape that the template wants, whether it thinks and for how long, what the
 * answer must match. May touch: base, text. Not here: running (turn.c), the pipeline (answer.c), field names of any API. */
#include "server/turn.h"

#include "text/ask.h"

#include <stdio.h>
#include <string.h>

enum { DEFAULT_BUDGET = 32768, MAX_RESERVE = 1024 };

void m5_turn_policy_default(m5_turn_policy *p)
{
    *p = (m5_turn_policy){.thinking = -1, .budget = DEFAULT_BUDGET, .loops = M5_LOOPS_THOUGHT, .field = M5_FIELD_REASONING_CONTENT};
}

static int oom(m5_api_error *ae)
{
    return m5_api_fail(ae, 503, "", "out of memory");
}

/* ---- the conversation ---- */

/* Arguments of calls as JSON text, for templates that print them as they are. */
static int arguments_to_text(m5_json *message)
{
    m5_json *calls = m5_json_get(message, "tool_calls");
    for (size_t i = 0; i < m5_json_len(calls); i++) {
        m5_json *fn = m5_json_get(m5_json_at(calls, i), "function"), *args = m5_json_get(fn, "arguments");
        if (m5_json_typeof(args) != M5_JSON_OBJECT) continue;
        m5_buf b = {0};
        m5_json_write(&b, args, 0);
        int rc = b.failed ? M5_ERR_NOMEM : m5_json_set_take(fn, "arguments", m5_json_new_str(b.p, b.n));
        m5_buf_free(&b);
        if (rc) return rc;
    }
    return 0;
}

static int content_to_parts(m5_json *message)
{
    const m5_json *content = m5_json_get(message, "content");
    if (m5_json_typeof(content) != M5_JSON_STRING) return 0;
    m5_json *list = m5_json_new_array(), *part = m5_json_new_object();
    int rc = !list || !part || m5_json_set_str(part, "type", "text") || m5_json_set_take(part, "text", m5_json_ref((m5_json *)content));
    if (rc)
        m5_json_unref(part);
    else
        rc = m5_json_push_take(list, part);
    if (rc) {
        m5_json_unref(list);
        return M5_ERR_NOMEM;
    }
    return m5_json_set_take(message, "content", list);
}

static int set_unless_there(m5_json *vars, const char *key, m5_json *value)
{
    if (!m5_json_get(vars, key)) return m5_json_set_take(vars, key, value);
    m5_json_unref(value);
    return 0;
}

int m5_turn_shape(const m5_wire *wire, m5_turn *t, bool *needle, m5_api_error *ae)
{
    const m5_chat_caps *caps = m5_chat_get_caps(wire->chat);
    m5_json *messages = m5_json_get(t->vars, "messages");
    m5_turn_think *think = &t->think;
    *needle = false;
    if (think->budget == 0) think->on = 0;
    if (think->on < 0) {
        think->on = t->policy->thinking;
        bool off = think->on == 0 || (think->on < 0 && caps->thinks_if_told);
        if (off && t->needle && caps->enable_thinking && wire->thought && m5_ask_is_needle(messages, NULL)) {
            *needle = true;
            think->on = 1;
        }
    }
    /* The second name is DeepSeek's. */
    if (think->on >= 0 && (set_unless_there(t->vars, "enable_thinking", m5_json_new_bool(think->on)) ||
                           set_unless_there(t->vars, "thinking", m5_json_new_bool(think->on))))
        return oom(ae);
    if (think->effort[0] && set_unless_there(t->vars, "reasoning_effort", m5_json_new_str(think->effort, strlen(think->effort)))) return oom(ae);
    for (size_t i = 0; i < m5_json_len(messages); i++) {
        m5_json *m = m5_json_at(messages, i);
        if (caps->arguments_text && arguments_to_text(m)) return oom(ae);
        if (!caps->text_content && caps->part_content && content_to_parts(m)) return oom(ae);
    }
    return 0;
}

/* ---- thinking ---- */

/* Tokens of thought, of the budget the operator set where the client named a degree. */
static int think_budget(const m5_turn *t)
{
    static const struct {
        const char *effort;
        int share; /* one in so many */
    } efforts[] = {{"minimal", 32}, {"low", 8}, {"medium", 2}, {"high", 1}, {"xhigh", 1}, {"max", 1}};
    int whole = t->policy->budget;
    if (t->think.on == 0) return 0;
    if (t->think.budget != M5_BUDGET_OPEN) return (int)t->think.budget;
    for (size_t i = 0; i < sizeof efforts / sizeof *efforts; i++)
        if (strcmp(t->think.effort, efforts[i].effort) == 0 && efforts[i].share > 1) return (whole < 0 ? DEFAULT_BUDGET : whole) / efforts[i].share;
    return whole;
}

static void plan_thought(const m5_wire *wire, const m5_turn *t, int n_ctx, bool inside, m5_answer_plan *out)
{
    m5_think_options *o = &out->think;
    *o = (m5_think_options){.open_id = -1, .close_id = -1, .budget = -1};
    if (!t->chat || !wire->thought) return;
    /* What an answer gets at least: as much as it may be long, of what is left an eighth or a quarter. */
    int reserve = n_ctx / 8 < MAX_RESERVE ? n_ctx / 8 : MAX_RESERVE;
    if (out->limit >= 0 && out->limit / 4 < reserve) reserve = out->limit / 4;
    if (out->limit < 0 && t->gen.max_tokens >= 0 && t->gen.max_tokens < reserve) reserve = t->gen.max_tokens;
    if (reserve < 1) reserve = 1;
    o->open = wire->thought->open;
    o->close = wire->thought->close;
    o->open_id = wire->open_id;
    o->close_id = wire->close_id;
    o->inside = inside;
    o->budget = think_budget(t);
    o->n_reserve = (int)wire->close_line.n + reserve;
    o->loops = t->loops != M5_LOOPS_OFF;
    out->think_known = true;
}

/* ---- the form of the answer ---- */

static int structure_grammar(const m5_turn *t, m5_grammar **out, m5_error *err)
{
    switch (t->structure) {
    case M5_STRUCTURE_NONE: return 0;
    case M5_STRUCTURE_OBJECT: return m5_grammar_any_json(out, true, err);
    case M5_STRUCTURE_SCHEMA: return m5_grammar_from_schema(out, t->schema, err);
    case M5_STRUCTURE_GBNF: return m5_grammar_from_gbnf(out, t->structure_text.p, t->structure_text.n, err);
    case M5_STRUCTURE_REGEX: return m5_grammar_from_regex(out, t->structure_text.p, t->structure_text.n, err);
    case M5_STRUCTURE_CHOICE: break;
    }
    size_t n = m5_json_len(t->schema);
    m5_slice *list = m5_calloc(M5_MEM_REQUEST, n + 1, sizeof *list);
    if (!list) return m5_error_set(err, M5_ERR_NOMEM, "out of memory");
    for (size_t i = 0; i < n; i++) list[i] = m5_json_str(m5_json_at(t->schema, i));
    int rc = m5_grammar_from_choices(out, list, n, err);
    m5_free(list);
    return rc;
}

/* The forms that the answer may have: a call where one is required; the form asked for, or a call, where tools may be called; else the form asked
 * for. */
static int plan_form(m5_wire *wire, const m5_turn *t, m5_answer_plan *out, m5_api_error *ae)
{
    m5_error err = {0};
    bool required = t->choice == M5_TOOLS_REQUIRED || t->choice == M5_TOOLS_NAMED;
    const char *param = t->structure_param ? t->structure_param : "";
    int rc = 0;
    if (!required && t->structure != M5_STRUCTURE_NONE) {
        rc = structure_grammar(t, &out->grammars[0], &err);
        if (!rc) out->n_grammar++;
    }
    if (!rc && out->tools && (required || out->n_grammar)) {
        m5_grammar_tool_args args = {.format = wire->format, .tools = t->tools, .name = t->tool_name, .vocab = wire->tok};
        args.parallel = t->parallel_calls && t->choice != M5_TOOLS_NAMED;
        rc = m5_grammar_from_tool_calls(&out->grammars[out->n_grammar], &args, &err);
        if (!rc) out->n_grammar++;
        if (rc) param = "tools";
    }
    if (!rc && out->n_grammar) rc = m5_wire_vocab(wire, &out->vocab, &err);
    if (!rc) return 0;
    m5_api_fail_from(ae, &err);
    snprintf(ae->param, sizeof ae->param, "%s", param);
    return -1;
}

/* A typed opening for an answer whose thought is cut short. Where a grammar rules there is nothing to say, and where tools are it might keep one from
 * being called. */
static int plan_hint(const m5_wire *wire, const m5_turn *t, m5_answer_plan *out, m5_api_error *ae)
{
    m5_error err = {0};
    const char *text = "";
    if (t->hints != M5_HINTS_AUTO || !out->think_known || out->n_grammar || out->tools) return 0;
    m5_ask_form form = m5_ask_find_form(m5_ask_last_user(m5_json_get(t->vars, "messages")), &text);
    if (form == M5_ASK_NONE || !*text) return 0;
    if (m5_tokenize(wire->tok, &out->hint, text, strlen(text), M5_SPECIAL_NONE, false, &err)) return m5_api_fail_from(ae, &err);
    if (t->gen.max_tokens >= 0 && (size_t)t->gen.max_tokens < 4 * out->hint.n) { /* it would be most of the answer */
        m5_ids_free(&out->hint);
        return 0;
    }
    out->hint_name = m5_ask_form_name(form);
    return 0;
}

int m5_turn_plan(m5_wire *wire, const m5_turn *t, int n_ctx, bool inside, bool needle, m5_answer_plan *out, m5_api_error *ae)
{
    out->wire = wire;
    out->reasoning = t->reasoning;
    out->needle = needle;
    out->limit = t->common_limit && t->gen.max_tokens >= 0 ? t->gen.max_tokens : -1;
    out->loops = t->loops == M5_LOOPS_ALL;
    out->tools = t->chat && m5_json_len(t->tools) > 0 ? t->tools : NULL;
    out->parallel_calls = t->parallel_calls;
    out->stop = t->gen.stop;
    out->n_stop = t->gen.n_stop;
    out->logprobs = t->logprobs;
    plan_thought(wire, t, n_ctx, inside, out);
    return plan_form(wire, t, out, ae) || plan_hint(wire, t, out, ae) ? -1 : 0;
}

void m5_answer_plan_deinit(m5_answer_plan *plan)
{
    for (int i = 0; i < plan->n_grammar; i++) m5_grammar_unref(plan->grammars[i]);
    m5_ids_free(&plan->hint);
}
