/* SPDX-License-Identifier: Apache-2.0 */
/* OpenAI dialect, reading side: everything clients say about thinking. Each server gave these switches other names, and clients send what theirs
 * understood: all are read, they must agree, and none is ignored. May touch: base, turn.h. */
#include "server/api_openai_internal.h"

#include <stdio.h>
#include <string.h>

/* What has been said, and in which field. */
typedef struct said {
    m5_turn *t;
    m5_api_error *ae;
    const char *on, *budget, *effort;
} said;

static bool absent(const m5_json *v)
{
    return m5_json_typeof(v) == M5_JSON_NONE || m5_json_typeof(v) == M5_JSON_NULL;
}

static int conflict(const said *s, const char *a, const char *b)
{
    return m5_api_fail(s->ae, 400, b, "'%s' and '%s' contradict each other", a, b);
}

static int say_on(said *s, const char *field, bool on)
{
    if (s->on && s->t->think.on != (int)on) return conflict(s, s->on, field);
    s->on = field;
    s->t->think.on = on;
    return 0;
}

static int say_budget(said *s, const char *field, const m5_json *v)
{
    if (absent(v)) return 0;
    int64_t n = m5_json_int(v);
    if (m5_json_typeof(v) != M5_JSON_INT || n < -1 || n > INT32_MAX)
        return m5_api_fail(s->ae, 400, field, "'%s' must be a number of tokens, 0 for no thinking or -1 for no limit", field);
    if (s->budget && s->t->think.budget != n) return conflict(s, s->budget, field);
    s->budget = field;
    s->t->think.budget = n;
    return 0;
}

static int say_effort(said *s, const char *field, const m5_json *v)
{
    static const char *const known[] = {"none", "minimal", "low", "medium", "high", "xhigh", "max"};
    m5_slice word = m5_json_str(v);
    size_t i = 0;
    if (absent(v)) return 0;
    while (i < sizeof known / sizeof *known && !m5_slice_is(word, known[i])) i++;
    if (m5_json_typeof(v) != M5_JSON_STRING || i == sizeof known / sizeof *known)
        return m5_api_fail(s->ae, 400, field, "'%s' must be none, minimal, low, medium, high, xhigh or max", field);
    if (s->effort && strcmp(s->t->think.effort, i ? known[i] : "") != 0) return conflict(s, s->effort, field);
    s->effort = field;
    snprintf(s->t->think.effort, sizeof s->t->think.effort, "%s", i ? known[i] : "");
    return say_on(s, field, i > 0);
}

/* true, false, or a degree. */
static int say_switch(said *s, const char *field, const m5_json *v)
{
    if (absent(v)) return 0;
    if (m5_json_typeof(v) == M5_JSON_BOOL) return say_on(s, field, m5_json_bool(v));
    if (m5_json_typeof(v) == M5_JSON_STRING) return say_effort(s, field, v);
    return m5_api_fail(s->ae, 400, field, "'%s' must be true or false", field);
}

/* Anthropic's object, which others took over; some send a plain boolean. */
static int say_thinking(said *s, const m5_json *v)
{
    if (m5_json_typeof(v) != M5_JSON_OBJECT) return say_switch(s, "thinking", v);
    m5_slice type = m5_json_str(m5_json_get(v, "type"));
    if (m5_slice_is(type, "enabled") || m5_slice_is(type, "disabled")) {
        if (say_on(s, "thinking", m5_slice_is(type, "enabled"))) return -1;
    } else if (type.n && !m5_slice_is(type, "adaptive")) {
        return m5_api_fail(s->ae, 400, "thinking", "'thinking.type' must be enabled, disabled or adaptive");
    }
    return say_budget(s, "thinking.budget_tokens", m5_json_get(v, "budget_tokens"));
}

/* OpenRouter's and the Responses API's object. */
static int say_reasoning(said *s, const m5_json *v)
{
    if (absent(v)) return 0;
    if (m5_json_typeof(v) != M5_JSON_OBJECT) return say_switch(s, "reasoning", v);
    bool exclude = false, enabled = true;
    if (say_effort(s, "reasoning.effort", m5_json_get(v, "effort")) || say_budget(s, "reasoning.max_tokens", m5_json_get(v, "max_tokens")) ||
        m5_openai_get_bool(v, "exclude", &exclude, s->ae) || m5_openai_get_bool(v, "enabled", &enabled, s->ae))
        return -1;
    if (exclude) s->t->reasoning = M5_REASONING_HIDDEN;
    return absent(m5_json_get(v, "enabled")) ? 0 : say_on(s, "reasoning.enabled", enabled);
}

typedef struct word {
    const char *name;
    int value;
} word;

static int get_word(const m5_json *o, const char *key, const word *words, size_t n, int *out, m5_api_error *ae)
{
    const m5_json *v = m5_json_get(o, key);
    if (absent(v)) return 0;
    for (size_t i = 0; i < n; i++) {
        if (!m5_slice_is(m5_json_str(v), words[i].name)) continue;
        *out = words[i].value;
        return 0;
    }
    m5_buf list = {0};
    for (size_t i = 0; i < n; i++) m5_buf_printf(&list, "%s%s", i == 0 ? "" : i + 1 == n ? " or " : ", ", words[i].name);
    m5_api_fail(ae, 400, key, "'%s' must be %s", key, list.p ? list.p : "another word");
    m5_buf_free(&list);
    return -1;
}

/* How thoughts are shown, and the rules that may act on them. */
static int get_display(m5_turn *t, const m5_json *o, m5_api_error *ae)
{
    static const word formats[] = {{"auto", M5_REASONING_FIELD},
                                   {"deepseek", M5_REASONING_FIELD},
                                   {"deepseek-legacy", M5_REASONING_BOTH},
                                   {"none", M5_REASONING_TEXT},
                                   {"hidden", M5_REASONING_HIDDEN}};
    static const word guards[] = {{"off", M5_LOOPS_OFF}, {"thought", M5_LOOPS_THOUGHT}, {"all", M5_LOOPS_ALL}};
    static const word hints[] = {{"off", M5_HINTS_OFF}, {"format", M5_HINTS_FORMAT}, {"auto", M5_HINTS_AUTO}};
    static const word needles[] = {{"off", 0}, {"needle", 1}};
    int format = t->reasoning, guard = t->loops, hint = t->hints, needle = t->needle;
    bool include = true, separate = true;
    if (m5_openai_get_bool(o, "include_reasoning", &include, ae) || m5_openai_get_bool(o, "separate_reasoning", &separate, ae) ||
        get_word(o, "reasoning_format", formats, sizeof formats / sizeof *formats, &format, ae) ||
        get_word(o, "loop_guard", guards, sizeof guards / sizeof *guards, &guard, ae) ||
        get_word(o, "escape_hints", hints, sizeof hints / sizeof *hints, &hint, ae) ||
        get_word(o, "auto_think", needles, sizeof needles / sizeof *needles, &needle, ae))
        return -1;
    t->reasoning = (m5_reasoning)format;
    if (!separate) t->reasoning = M5_REASONING_TEXT;
    if (!include) t->reasoning = M5_REASONING_HIDDEN;
    t->loops = (m5_loop_guard)guard;
    t->hints = (m5_hints)hint;
    t->needle = needle;
    /* vLLM's switch for loops anywhere: an object of thresholds, which are ours here. */
    const m5_json *rd = m5_json_get(o, "repetition_detection");
    if (m5_json_bool(rd) || m5_json_typeof(rd) == M5_JSON_OBJECT) t->loops = M5_LOOPS_ALL;
    return 0;
}

int m5_openai_thinking(m5_turn *t, const m5_json *o, m5_api_error *ae)
{
    static const char *const budgets[] = {"reasoning_budget",        "thinking_budget",       "thinking_budget_tokens",
                                          "reasoning_budget_tokens", "thinking_token_budget", "reasoning_max_tokens"};
    said s = {.t = t, .ae = ae};
    if (get_display(t, o, ae)) return -1;
    const m5_json *kw = m5_json_get(o, "chat_template_kwargs");
    if (say_switch(&s, "enable_thinking", m5_json_get(o, "enable_thinking")) || say_switch(&s, "think", m5_json_get(o, "think")) ||
        say_switch(&s, "chat_template_kwargs.enable_thinking", m5_json_get(kw, "enable_thinking")) ||
        say_switch(&s, "chat_template_kwargs.thinking", m5_json_get(kw, "thinking")) || say_thinking(&s, m5_json_get(o, "thinking")) ||
        say_effort(&s, "reasoning_effort", m5_json_get(o, "reasoning_effort")) ||
        say_effort(&s, "chat_template_kwargs.reasoning_effort", m5_json_get(kw, "reasoning_effort")) ||
        say_reasoning(&s, m5_json_get(o, "reasoning")) ||
        say_effort(&s, "output_config.effort", m5_json_get(m5_json_get(o, "output_config"), "effort")))
        return -1;
    for (size_t i = 0; i < sizeof budgets / sizeof *budgets; i++)
        if (say_budget(&s, budgets[i], m5_json_get(o, budgets[i]))) return -1;
    if (say_budget(&s, "chat_template_kwargs.thinking_budget", m5_json_get(kw, "thinking_budget")) ||
        say_budget(&s, "custom_params.thinking_budget", m5_json_get(m5_json_get(o, "custom_params"), "thinking_budget")))
        return -1;
    if (s.on && s.budget && (t->think.on > 0) != (t->think.budget != 0)) return conflict(&s, s.on, s.budget);
    return 0;
}
