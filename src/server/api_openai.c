/* SPDX-License-Identifier: Apache-2.0 */
/* OpenAI dialect, reading side: request body -> neutral turn. Field names: OpenAI's API reference, and the spellings that llama.cpp's and vLLM's
 * servers made customary. May touch: base, turn.h. Not here: running or writing (api_openai_write.c). */
#include "server/api_openai_internal.h"

#include "base/task.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Reads obj[key] as a number in [lo, hi]. Absent or null leaves *out. */
int m5_openai_get_real(const m5_json *o, const char *key, double lo, double hi, float *out, m5_api_error *ae)
{
    const m5_json *v = m5_json_get(o, key);
    if (!v || m5_json_typeof(v) == M5_JSON_NULL) return 0;
    double d = m5_json_real(v);
    if (!m5_json_is_number(v) || !(d >= lo && d <= hi)) return m5_api_fail(ae, 400, key, "'%s' must be a number between %g and %g", key, lo, hi);
    *out = (float)d;
    return 0;
}

int m5_openai_get_int(const m5_json *o, const char *key, int64_t lo, int64_t hi, int64_t *out, m5_api_error *ae)
{
    const m5_json *v = m5_json_get(o, key);
    if (!v || m5_json_typeof(v) == M5_JSON_NULL) return 0;
    int64_t i = m5_json_int(v);
    /* Some clients send 5.0 for 5. */
    bool whole = m5_json_typeof(v) == M5_JSON_INT || (m5_json_typeof(v) == M5_JSON_REAL && m5_json_real(v) == (double)i);
    if (!whole || i < lo || i > hi)
        return m5_api_fail(ae, 400, key, "'%s' must be an integer between %lld and %lld", key, (long long)lo, (long long)hi);
    *out = i;
    return 0;
}

int m5_openai_get_bool(const m5_json *o, const char *key, bool *out, m5_api_error *ae)
{
    const m5_json *v = m5_json_get(o, key);
    if (!v || m5_json_typeof(v) == M5_JSON_NULL) return 0;
    if (m5_json_typeof(v) != M5_JSON_BOOL) return m5_api_fail(ae, 400, key, "'%s' must be true or false", key);
    *out = m5_json_bool(v);
    return 0;
}

int m5_openai_oom(m5_api_error *ae)
{
    return m5_api_fail(ae, 503, "", "out of memory");
}

/* Fields that would change the answer but are not built here. Their neutral values pass; anything else is an error: ignoring them would answer
 * another question than the one asked. */
static int check_unsupported(const m5_json *o, m5_api_error *ae)
{
    static const char *const keys[] = {
        "dry_multiplier",
        "mirostat",
        "xtc_probability",
        "dynatemp_range",
        "top_n_sigma",
        "best_of",
        "suffix",
        "min_tokens",
        "min_new_tokens",
        "bad_words",
        "allowed_token_ids",
        "prompt_logprobs",
        "audio",
        "prediction",
        "web_search_options",
        "use_beam_search",
        "lora",
        "truncate_prompt_tokens",
        "stop_token_ids",
        "include_stop_str_in_output",
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const m5_json *v = m5_json_get(o, keys[i]);
        switch (m5_json_typeof(v)) {
        case M5_JSON_NONE:
        case M5_JSON_NULL: continue;
        case M5_JSON_BOOL:
            if (!m5_json_bool(v)) continue;
            break;
        case M5_JSON_INT:
        case M5_JSON_REAL:
            if (m5_json_real(v) == 0 || (strcmp(keys[i], "best_of") == 0 && m5_json_real(v) == 1)) continue;
            break;
        case M5_JSON_STRING:
            if (m5_json_str(v).n == 0) continue;
            break;
        default:
            if (m5_json_len(v) == 0) continue;
            break;
        }
        return m5_api_fail(ae, 400, keys[i], "'%s' is not supported by this server; leave it out", keys[i]);
    }
    return 0;
}

static int parse_stop(m5_turn *t, const m5_json *o, m5_api_error *ae)
{
    const m5_json *v = m5_json_get(o, "stop");
    m5_json_type type = m5_json_typeof(v);
    if (type == M5_JSON_NONE || type == M5_JSON_NULL) return 0;
    if (type != M5_JSON_STRING && type != M5_JSON_ARRAY) return m5_api_fail(ae, 400, "stop", "'stop' must be a string or a list of strings");
    size_t n = type == M5_JSON_STRING ? 1 : m5_json_len(v);
    if (n > M5_MAX_STOPS) return m5_api_fail(ae, 400, "stop", "'stop' holds %zu strings; at most %d are accepted", n, M5_MAX_STOPS);
    const char **list = m5_arena_alloc(&t->arena, (n + 1) * sizeof *list);
    if (!list) return m5_openai_oom(ae);
    int k = 0;
    for (size_t i = 0; i < n; i++) {
        const m5_json *item = type == M5_JSON_STRING ? v : m5_json_at(v, i);
        m5_slice s = m5_json_str(item);
        if (m5_json_typeof(item) != M5_JSON_STRING || memchr(s.p, 0, s.n))
            return m5_api_fail(ae, 400, "stop", "'stop' must hold strings without NUL");
        if (s.n == 0) continue;
        list[k] = m5_arena_strndup(&t->arena, s.p, s.n);
        if (!list[k++]) return m5_openai_oom(ae);
    }
    t->gen.stop = list;
    t->gen.n_stop = k;
    return 0;
}

static int parse_bias(m5_turn *t, const m5_json *o, const m5_turn_defaults *def, m5_api_error *ae)
{
    const m5_json *v = m5_json_get(o, "logit_bias");
    m5_json_type type = m5_json_typeof(v);
    if (type == M5_JSON_NONE || type == M5_JSON_NULL) return 0;
    if (type != M5_JSON_OBJECT) return m5_api_fail(ae, 400, "logit_bias", "'logit_bias' must be an object of token id to number");
    size_t n = m5_json_len(v);
    if (n > M5_MAX_BIAS) return m5_api_fail(ae, 400, "logit_bias", "'logit_bias' holds %zu entries; at most %d are accepted", n, M5_MAX_BIAS);
    m5_logit_bias *list = m5_arena_alloc(&t->arena, (n + 1) * sizeof *list);
    if (!list) return m5_openai_oom(ae);
    int k = 0;
    for (void *it = m5_json_iter(v); it; it = m5_json_iter_next(v, it)) {
        m5_slice key = m5_json_iter_key(it);
        const m5_json *val = m5_json_iter_value(it);
        long long id = -1;
        char rest;
        if (key.n == 0 || key.n > 12 || sscanf(key.p, "%lld%c", &id, &rest) != 1 || id < 0 || id >= def->n_vocab)
            return m5_api_fail(ae, 400, "logit_bias", "'logit_bias' key '%.*s' is not a token id of this model", (int)(key.n > 40 ? 40 : key.n),
                               key.p);
        /* llama.cpp's `false` forbids a token. */
        bool ban = m5_json_typeof(val) == M5_JSON_BOOL && !m5_json_bool(val);
        double b = ban ? -100 : m5_json_real(val);
        if (!ban && (!m5_json_is_number(val) || !(b >= -100 && b <= 100)))
            return m5_api_fail(ae, 400, "logit_bias", "'logit_bias' values must be numbers between -100 and 100");
        list[k++] = (m5_logit_bias){(int32_t)id, (float)b};
    }
    t->gen.sampling.bias = list;
    t->gen.sampling.n_bias = k;
    return 0;
}

static int parse_stream(m5_turn *t, const m5_json *o, m5_api_error *ae)
{
    if (m5_openai_get_bool(o, "stream", &t->stream, ae)) return -1;
    const m5_json *so = m5_json_get(o, "stream_options");
    if (m5_json_typeof(so) == M5_JSON_NONE || m5_json_typeof(so) == M5_JSON_NULL) return 0;
    if (m5_json_typeof(so) != M5_JSON_OBJECT) return m5_api_fail(ae, 400, "stream_options", "'stream_options' must be an object");
    if (m5_openai_get_bool(so, "include_usage", &t->include_usage, ae) || m5_openai_get_bool(so, "continuous_usage_stats", &t->continuous_usage, ae))
        return -1;
    return 0;
}

/* "speculative": false, true, "off", "auto", a list such as "ngram,mtp", or {"mode": one of these, "n_max": N}; and llama-server's
 * "speculative.n_max" (0 = off). It changes speed, never the answer. */
static int parse_spec(m5_turn *t, const m5_json *o, m5_api_error *ae)
{
    const m5_json *v = m5_json_get(o, "speculative"), *mode = m5_json_typeof(v) == M5_JSON_OBJECT ? m5_json_get(v, "mode") : v;
    int64_t k = -1;
    m5_error err = {0};
    char text[64];
    if (m5_openai_get_int(o, "speculative.n_max", 0, INT32_MAX, &k, ae)) return -1;
    if (m5_json_typeof(v) == M5_JSON_OBJECT && m5_openai_get_int(v, "n_max", 0, INT32_MAX, &k, ae)) return -1;
    if (m5_json_typeof(mode) == M5_JSON_STRING) {
        m5_slice s = m5_json_str(mode);
        snprintf(text, sizeof text, "%.*s", (int)(s.n < 63 ? s.n : 63), s.p);
        if (m5_spec_parse(text, &t->gen.spec.sources, &err)) return m5_api_fail(ae, 400, "speculative", "'speculative': %s", err.text);
    } else if (m5_json_typeof(mode) == M5_JSON_BOOL) {
        t->gen.spec.sources = m5_json_bool(mode) ? M5_SPEC_AUTO : M5_SPEC_OFF;
    } else if (m5_json_typeof(mode) != M5_JSON_NONE && m5_json_typeof(mode) != M5_JSON_NULL) {
        return m5_api_fail(ae, 400, "speculative", "'speculative' must be true, false, a string or an object with 'mode' and 'n_max'");
    }
    if (k == 0) t->gen.spec.sources = M5_SPEC_OFF;
    if (k > 0) t->gen.spec.k = k < M5_SPEC_MAX_K ? (int)k : M5_SPEC_MAX_K;
    return 0;
}

/* Everything that chat and plain completions share. */
static int parse_common(m5_turn *t, const m5_json *o, const m5_turn_defaults *def, m5_api_error *ae)
{
    m5_sampling *s = &t->gen.sampling;
    *s = def->sampling;
    s->n_top_logprobs = -1;
    t->gen.max_tokens = def->max_tokens;
    t->n = 1;
    t->policy = def->policy;
    t->reasoning = def->policy->reasoning;
    t->field = def->policy->field;
    t->loops = def->policy->loops;
    t->hints = def->policy->hints;
    t->needle = def->policy->needle;
    t->think = (m5_turn_think){.on = -1, .budget = M5_BUDGET_OPEN};
    if (check_unsupported(o, ae)) return -1;
    const m5_json *model = m5_json_get(o, "model");
    if (m5_json_typeof(model) == M5_JSON_STRING) {
        t->model = m5_arena_strndup(&t->arena, m5_json_str(model).p, m5_json_str(model).n);
    } else if (m5_json_typeof(model) != M5_JSON_NONE && m5_json_typeof(model) != M5_JSON_NULL) {
        return m5_api_fail(ae, 400, "model", "'model' must be a string");
    }
    int64_t top_k = s->top_k, last_n = s->penalty_last_n, n = 1, max = -2, seed = 0;
    if (m5_openai_get_real(o, "temperature", 0, 100, &s->temperature, ae) || m5_openai_get_real(o, "top_p", 0, 1, &s->top_p, ae) ||
        m5_openai_get_real(o, "min_p", 0, 1, &s->min_p, ae) || m5_openai_get_real(o, "typical_p", 0, 1, &s->typical_p, ae) ||
        m5_openai_get_int(o, "top_k", -1, INT32_MAX, &top_k, ae) || m5_openai_get_real(o, "repeat_penalty", 0.01, 100, &s->repetition_penalty, ae) ||
        m5_openai_get_real(o, "repetition_penalty", 0.01, 100, &s->repetition_penalty, ae) ||
        m5_openai_get_real(o, "presence_penalty", -2, 2, &s->presence_penalty, ae) ||
        m5_openai_get_real(o, "frequency_penalty", -2, 2, &s->frequency_penalty, ae) ||
        m5_openai_get_int(o, "repeat_last_n", -1, INT32_MAX, &last_n, ae) || m5_openai_get_int(o, "n", 1, M5_MAX_CHOICES, &n, ae) ||
        m5_openai_get_bool(o, "ignore_eos", &t->gen.ignore_eos, ae))
        return -1;
    s->top_k = top_k < 0 ? 0 : (int)top_k;
    s->penalty_last_n = (int)last_n;
    t->n = (int)n;
    static const char *const max_keys[] = {"n_predict", "max_tokens", "max_completion_tokens"};
    for (size_t i = 0; i < 3; i++)
        if (m5_openai_get_int(o, max_keys[i], i == 0 ? -1 : 0, INT32_MAX, &max, ae)) return -1;
    if (max >= -1) t->gen.max_tokens = (int)max;
    /* OpenAI defines the newer field as a limit of thought and answer together. */
    m5_json_type newer = m5_json_typeof(m5_json_get(o, "max_completion_tokens"));
    t->common_limit = def->policy->common_limit || (newer != M5_JSON_NONE && newer != M5_JSON_NULL);
    const m5_json *sv = m5_json_get(o, "seed");
    t->seed_given = sv && m5_json_typeof(sv) != M5_JSON_NULL;
    if (m5_openai_get_int(o, "seed", INT64_MIN, INT64_MAX, &seed, ae)) return -1;
    if (t->seed_given && seed >= 0)
        s->seed = (uint64_t)seed;
    else
        m5_random_bytes(&s->seed, sizeof s->seed);
    return parse_spec(t, o, ae) || parse_stop(t, o, ae) || parse_bias(t, o, def, ae) || parse_stream(t, o, ae) ? -1 : 0;
}

static m5_turn *turn_new(bool chat)
{
    m5_turn *t = m5_calloc(M5_MEM_REQUEST, 1, sizeof *t);
    if (!t) return NULL;
    m5_arena_init(&t->arena, M5_MEM_REQUEST, (size_t)256 << 20);
    t->chat = chat;
    t->created = m5_time_unix_ms() / 1000;
    uint64_t id[2];
    m5_random_bytes(id, sizeof id);
    snprintf(t->id, sizeof t->id, "%s-%012llx%08llx", chat ? "chatcmpl" : "cmpl", (unsigned long long)(id[0] & 0xffffffffffffull),
             (unsigned long long)(id[1] & 0xffffffffull));
    return t;
}

static int parse_body(m5_json **out, const char *body, size_t n, m5_api_error *ae)
{
    m5_error err = {0};
    int rc = m5_json_parse(out, body, n, NULL, &err);
    if (rc) return m5_api_fail(ae, rc == M5_ERR_NOMEM ? 503 : 400, "", "the request body is not valid JSON: %s", err.text);
    if (m5_json_typeof(*out) != M5_JSON_OBJECT) return m5_api_fail(ae, 400, "", "the request body must be a JSON object");
    return 0;
}

/* chat_template_kwargs become template variables; they may not replace what the server itself fills in. */
static int parse_kwargs(m5_turn *t, const m5_json *o, m5_api_error *ae)
{
    const m5_json *kw = m5_json_get(o, "chat_template_kwargs");
    m5_json_type type = m5_json_typeof(kw);
    if (type == M5_JSON_NONE || type == M5_JSON_NULL) return 0;
    if (type != M5_JSON_OBJECT) return m5_api_fail(ae, 400, "chat_template_kwargs", "'chat_template_kwargs' must be an object");
    for (void *it = m5_json_iter(kw); it; it = m5_json_iter_next(kw, it)) {
        m5_slice key = m5_json_iter_key(it);
        static const char *const own[] = {"messages", "tools", "bos_token", "eos_token", "add_generation_prompt"};
        for (size_t i = 0; i < sizeof own / sizeof own[0]; i++)
            if (m5_slice_is(key, own[i])) return m5_api_fail(ae, 400, "chat_template_kwargs", "chat_template_kwargs may not set '%s'", own[i]);
        if (m5_json_set_take(t->vars, key.p, m5_json_ref(m5_json_iter_value(it)))) return m5_openai_oom(ae);
    }
    return 0;
}

static int parse_chat_logprobs(m5_turn *t, const m5_json *o, m5_api_error *ae)
{
    int64_t top = 0;
    if (m5_openai_get_bool(o, "logprobs", &t->logprobs, ae) || m5_openai_get_int(o, "top_logprobs", 0, M5_MAX_TOP_LOGPROBS, &top, ae)) return -1;
    if (top > 0 && !t->logprobs) return m5_api_fail(ae, 400, "top_logprobs", "'top_logprobs' needs 'logprobs': true");
    t->top_logprobs = (int)top;
    if (t->logprobs) t->gen.sampling.n_top_logprobs = t->top_logprobs;
    return 0;
}

static int fill_chat(m5_turn *t, const m5_json *o, const m5_turn_defaults *def, m5_api_error *ae)
{
    if (parse_common(t, o, def, ae) || parse_chat_logprobs(t, o, ae)) return -1;
    t->vars = m5_json_new_object();
    if (!t->vars) return m5_openai_oom(ae);
    if (m5_openai_messages(t, o, ae)) return -1;
    bool add = true;
    if (m5_openai_get_bool(o, "add_generation_prompt", &add, ae)) return -1;
    if (m5_json_set_bool(t->vars, "add_generation_prompt", add)) return m5_openai_oom(ae);
    return m5_openai_tools(t, o, ae) || m5_openai_structure(t, o, ae) || parse_kwargs(t, o, ae) || m5_openai_thinking(t, o, ae) ? -1 : 0;
}

int m5_openai_parse_chat(m5_turn **out, const char *body, size_t n, const m5_turn_defaults *def, m5_api_error *ae)
{
    m5_json *o = NULL;
    m5_turn *t = turn_new(true);
    if (!t) return m5_openai_oom(ae);
    int rc = parse_body(&o, body, n, ae);
    if (rc == 0) rc = fill_chat(t, o, def, ae);
    m5_json_unref(o);
    if (rc)
        m5_turn_free(t);
    else
        *out = t;
    return rc;
}

/* A list of token ids. */
static int prompt_ids(m5_turn *t, struct m5_prompt *p, const m5_json *list, const m5_turn_defaults *def, m5_api_error *ae)
{
    p->n_ids = m5_json_len(list);
    if (p->n_ids == 0) return m5_api_fail(ae, 400, "prompt", "'prompt' holds no tokens");
    p->ids = m5_arena_alloc(&t->arena, p->n_ids * sizeof *p->ids);
    if (!p->ids) return m5_openai_oom(ae);
    for (size_t i = 0; i < p->n_ids; i++) {
        const m5_json *v = m5_json_at(list, i);
        int64_t id = m5_json_int(v);
        if (m5_json_typeof(v) != M5_JSON_INT || id < 0 || id >= def->n_vocab)
            return m5_api_fail(ae, 400, "prompt", "'prompt' must hold token ids of this model");
        p->ids[i] = (int32_t)id;
    }
    return 0;
}

static int prompt_text(m5_turn *t, struct m5_prompt *p, const m5_json *v, m5_api_error *ae)
{
    m5_slice s = m5_json_str(v);
    p->text = m5_arena_strndup(&t->arena, s.p, s.n);
    p->n_text = s.n;
    return p->text ? 0 : m5_openai_oom(ae);
}

static int fill_completion(m5_turn *t, const m5_json *o, const m5_turn_defaults *def, m5_api_error *ae)
{
    if (parse_common(t, o, def, ae) || m5_openai_get_bool(o, "echo", &t->echo, ae) || m5_openai_structure(t, o, ae)) return -1;
    int64_t top = -1;
    if (m5_openai_get_int(o, "logprobs", 0, M5_MAX_TOP_LOGPROBS, &top, ae)) return -1;
    t->logprobs = top >= 0;
    t->top_logprobs = top < 0 ? 0 : (int)top;
    t->gen.sampling.n_top_logprobs = (int)top;
    if (t->echo && t->logprobs) return m5_api_fail(ae, 400, "echo", "'echo' together with 'logprobs' is not supported by this server");
    const m5_json *p = m5_json_get(o, "prompt"), *first = m5_json_at(p, 0);
    bool many = m5_json_typeof(p) == M5_JSON_ARRAY && (m5_json_typeof(first) == M5_JSON_STRING || m5_json_typeof(first) == M5_JSON_ARRAY);
    t->n_prompts = many ? (m5_json_len(p) > M5_MAX_CHOICES ? M5_MAX_CHOICES + 1 : (int)m5_json_len(p)) : 1;
    if (t->n_prompts * t->n > M5_MAX_CHOICES) return m5_api_fail(ae, 400, "prompt", "at most %d answers per request", M5_MAX_CHOICES);
    t->prompts = m5_arena_alloc(&t->arena, (size_t)t->n_prompts * sizeof *t->prompts);
    if (!t->prompts) return m5_openai_oom(ae);
    for (int i = 0; i < t->n_prompts; i++) {
        const m5_json *v = many ? m5_json_at(p, (size_t)i) : p;
        int rc;
        if (m5_json_typeof(v) == M5_JSON_STRING)
            rc = prompt_text(t, &t->prompts[i], v, ae);
        else if (m5_json_typeof(v) == M5_JSON_ARRAY)
            rc = prompt_ids(t, &t->prompts[i], v, def, ae);
        else
            rc = m5_api_fail(ae, 400, "prompt", "'prompt' must be a string, a list of strings, a list of token ids or a list of such lists");
        if (rc) return rc;
    }
    return 0;
}

int m5_openai_parse_completion(m5_turn **out, const char *body, size_t n, const m5_turn_defaults *def, m5_api_error *ae)
{
    /* OpenAI's documented default for plain completions. */
    enum { DEFAULT_MAX_TOKENS = 16 };
    m5_turn_defaults mine = *def;
    if (mine.max_tokens < 0) mine.max_tokens = DEFAULT_MAX_TOKENS;
    m5_json *o = NULL;
    m5_turn *t = turn_new(false);
    if (!t) return m5_openai_oom(ae);
    int rc = parse_body(&o, body, n, ae);
    if (rc == 0) rc = fill_completion(t, o, &mine, ae);
    m5_json_unref(o);
    if (rc)
        m5_turn_free(t);
    else
        *out = t;
    return rc;
}
