/* SPDX-License-Identifier: Apache-2.0 */
/* OpenAI dialect, writing side: deltas -> server-sent events or one JSON body. May touch: base, text/tokenizer, turn.h. */
#include "server/api_openai.h"

#include "server/metrics.h"

#include <string.h>

/* "repetition" is vLLM's word for an answer that was ended because it looped; OpenAI has none. */
static const char *finish_name(const m5_run_ctx *run, m5_finish f, int n_calls)
{
    if (f == M5_FINISH_LENGTH) return "length";
    if (f == M5_FINISH_LOOP) return "repetition";
    if (f == M5_FINISH_STOP && n_calls > 0) return run->turn->legacy_functions ? "function_call" : "tool_calls";
    return "stop";
}

static void write_usage(m5_buf *out, const m5_usage *u, int n_reasoning)
{
    m5_buf_printf(out,
                  "{\"prompt_tokens\":%d,\"completion_tokens\":%d,\"total_tokens\":%d,\"prompt_tokens_details\":{\"cached_tokens\":%d},"
                  "\"completion_tokens_details\":{\"reasoning_tokens\":%d}}",
                  u->n_prompt, u->n_generated, u->n_prompt + u->n_generated, u->n_cached, n_reasoning);
}

/* What the rules did to this choice: members of the choice object. */
static void write_report(const m5_run_ctx *run, m5_buf *out, const m5_answer_report *r)
{
    const m5_answer_plan *p = run->plan;
    if (p->think_known) {
        const char *end = m5_think_end_name(r->think.end);
        m5_buf_printf(out, ",\"thinking\":{\"tokens\":%d,\"budget\":%d,\"ended_by\":", r->think.n_tok, p->think.budget);
        m5_buf_printf(out, end ? "\"%s\"" : "null", end);
        if (r->think.end == M5_THINK_LOOP) m5_buf_printf(out, ",\"loop_period\":%d", r->think.loop_period);
        if (r->hint) m5_buf_printf(out, ",\"escape_hint\":\"%s\"", r->hint);
        if (p->needle) m5_buf_puts(out, ",\"auto_think\":\"needle\"");
        m5_buf_putc(out, '}');
    }
    if (r->loop_period) m5_buf_printf(out, ",\"loop_period\":%d", r->loop_period);
    size_t n = 0;
    for (int g = 0; g < p->n_grammar; g++) {
        for (size_t i = 0; i < m5_grammar_n_loosened(p->grammars[g]); i++, n++) {
            const char *what = m5_grammar_loosened(p->grammars[g], i);
            m5_buf_puts(out, n ? "," : ",\"loosened\":[");
            m5_json_write_str(out, what, strlen(what));
        }
    }
    if (n) m5_buf_putc(out, ']');
}

/* llama-server's object of the same name, which local tools read. */
static void write_timings(m5_buf *out, const m5_usage *u)
{
    int n_new = u->n_prompt - u->n_cached;
    m5_buf_printf(
        out,
        "{\"cache_n\":%d,\"replayed_n\":%d,\"prompt_n\":%d,\"prompt_ms\":%.3f,\"prompt_per_second\":%.3f,\"predicted_n\":%d,\"predicted_ms\":%.3f,"
        "\"predicted_per_second\":%.3f,\"draft_n\":%d,\"draft_n_accepted\":%d",
        u->n_cached, u->n_replayed, n_new, u->prompt_ms, u->prompt_ms > 0 ? n_new * 1000.0 / u->prompt_ms : 0.0, u->n_generated, u->generate_ms,
        u->generate_ms > 0 ? u->n_generated * 1000.0 / u->generate_ms : 0.0, u->n_draft, u->n_draft_accepted);
    for (int s = 0, n = 0; s < M5_SPEC_SOURCES; s++) {
        if (!u->n_draft_by[s]) continue;
        m5_buf_printf(out, "%s\"%s\":{\"draft_n\":%d,\"draft_n_accepted\":%d}", n++ ? "," : ",\"draft_by_source\":{",
                      m5_spec_source_name((m5_spec_source)s), u->n_draft_by[s], u->n_draft_accepted_by[s]);
    }
    m5_buf_puts(out, u->n_draft ? "}}" : "}");
}

/* Members at the end of an answer: how long it took, and whether it is the model's own. */
static void write_measures(const m5_run_ctx *run, m5_buf *out, const m5_usage *u)
{
    m5_buf_puts(out, ",\"timings\":");
    write_timings(out, u);
    if (!run->lossy) return;
    m5_buf_puts(out, ",\"lossy_layer_skip\":");
    m5_lossy_write(out, run->lossy);
}

/* "token":"..","logprob":..,"bytes":[..] of one id. Bytes are exact where the text cannot be (half a character). */
static void write_token_prob(const m5_run_ctx *run, m5_buf *out, int32_t id, float logprob)
{
    m5_slice piece = m5_tokenizer_piece(run->tok, id);
    m5_buf_puts(out, "\"token\":");
    m5_json_write_str(out, piece.p, piece.n);
    m5_buf_puts(out, ",\"logprob\":");
    /* JSON has no infinity; -9999 is OpenAI's own spelling of an impossible token. */
    m5_json_write_real(out, logprob > -9999.0f ? logprob : -9999.0);
    m5_buf_puts(out, ",\"bytes\":[");
    for (size_t i = 0; i < piece.n; i++) m5_buf_printf(out, "%s%d", i ? "," : "", (unsigned char)piece.p[i]);
    m5_buf_putc(out, ']');
}

static void write_chat_logprob(const m5_run_ctx *run, m5_buf *out, const m5_event *ev)
{
    m5_buf_putc(out, '{');
    write_token_prob(run, out, ev->id, ev->logprob);
    m5_buf_puts(out, ",\"top_logprobs\":[");
    for (int i = 0; i < ev->n_top; i++) {
        m5_buf_puts(out, i ? ",{" : "{");
        write_token_prob(run, out, ev->top[i].id, ev->top[i].logprob);
        m5_buf_putc(out, '}');
    }
    m5_buf_puts(out, "]}");
}

static size_t n_codepoints(m5_slice s)
{
    size_t n = 0;
    for (size_t i = 0; i < s.n; i++) n += ((unsigned char)s.p[i] & 0xC0) != 0x80;
    return n;
}

/* Members of the completions form for one token, brackets left to the caller: each goes into its own list. */
static void write_text_logprob(const m5_run_ctx *run, m5_choice *c, const m5_event *ev, m5_buf *tokens, m5_buf *probs, m5_buf *tops, m5_buf *offsets)
{
    m5_slice piece = m5_tokenizer_piece(run->tok, ev->id);
    m5_json_write_str(tokens, piece.p, piece.n);
    m5_json_write_real(probs, ev->logprob > -9999.0f ? ev->logprob : -9999.0);
    m5_buf_putc(tops, '{');
    for (int i = 0; i < ev->n_top; i++) {
        m5_slice p = m5_tokenizer_piece(run->tok, ev->top[i].id);
        if (i) m5_buf_putc(tops, ',');
        m5_json_write_str(tops, p.p, p.n);
        m5_buf_putc(tops, ':');
        m5_json_write_real(tops, ev->top[i].logprob > -9999.0f ? ev->top[i].logprob : -9999.0);
    }
    m5_buf_putc(tops, '}');
    m5_buf_printf(offsets, "%zu", c->n_text_offset);
    c->n_text_offset += n_codepoints(piece);
}

static void write_head(const m5_run_ctx *run, m5_buf *out, const char *object)
{
    m5_buf_puts(out, "{\"id\":");
    m5_json_write_str(out, run->turn->id, strlen(run->turn->id));
    m5_buf_printf(out, ",\"object\":\"%s\",\"created\":%lld,\"model\":", object, (long long)run->turn->created);
    m5_json_write_str(out, run->model_id, strlen(run->model_id));
    m5_buf_puts(out, ",\"system_fingerprint\":\"m5-" M5_VERSION "\"");
}

static void write_chunk_usage(const m5_run_ctx *run, m5_buf *out, const m5_usage *u, int n_reasoning)
{
    if (run->turn->continuous_usage && u) {
        m5_buf_puts(out, ",\"usage\":");
        write_usage(out, u, n_reasoning);
    } else if (run->turn->include_usage) {
        m5_buf_puts(out, ",\"usage\":null");
    }
}

/* "reasoning_content":".." under the name or names asked for. */
static void write_reasoning(const m5_run_ctx *run, m5_buf *out, m5_slice text)
{
    if (run->turn->field & M5_FIELD_REASONING_CONTENT) {
        m5_buf_puts(out, "\"reasoning_content\":");
        m5_json_write_str(out, text.p, text.n);
    }
    if (run->turn->field == M5_FIELD_BOTH) m5_buf_putc(out, ',');
    if (run->turn->field & M5_FIELD_REASONING) {
        m5_buf_puts(out, "\"reasoning\":");
        m5_json_write_str(out, text.p, text.n);
    }
}

/* The members of `delta`. */
static void write_delta(const m5_run_ctx *run, m5_buf *out, const m5_delta *d)
{
    bool legacy = run->turn->legacy_functions;
    switch (d->kind) {
    case M5_DELTA_START: m5_buf_puts(out, "\"role\":\"assistant\",\"content\":\"\""); break;
    case M5_DELTA_REASONING: write_reasoning(run, out, d->text); break;
    case M5_DELTA_TEXT:
        m5_buf_puts(out, "\"content\":");
        m5_json_write_str(out, d->text.p, d->text.n);
        break;
    case M5_DELTA_CALL:
        if (legacy)
            m5_buf_puts(out, "\"function_call\":{\"name\":");
        else
            m5_buf_printf(out, "\"tool_calls\":[{\"index\":%d,\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":", d->call, d->call_id);
        m5_json_write_str(out, d->text.p, d->text.n);
        m5_buf_puts(out, legacy ? ",\"arguments\":\"\"}" : ",\"arguments\":\"\"}}]");
        break;
    case M5_DELTA_ARGUMENTS:
        if (legacy)
            m5_buf_puts(out, "\"function_call\":{\"arguments\":");
        else
            m5_buf_printf(out, "\"tool_calls\":[{\"index\":%d,\"function\":{\"arguments\":", d->call);
        m5_json_write_str(out, d->text.p, d->text.n);
        m5_buf_puts(out, legacy ? "}" : "}}]");
        break;
    case M5_DELTA_FINISH: break;
    }
}

static void chat_chunk(m5_run_ctx *run, m5_buf *out, const m5_delta *d)
{
    bool last = d->kind == M5_DELTA_FINISH;
    m5_buf_puts(out, "data: ");
    write_head(run, out, "chat.completion.chunk");
    m5_buf_printf(out, ",\"choices\":[{\"index\":%d,\"delta\":{", d->choice);
    write_delta(run, out, d);
    m5_buf_puts(out, "},\"logprobs\":");
    if (d->token) {
        m5_buf_puts(out, "{\"content\":[");
        write_chat_logprob(run, out, d->token);
        m5_buf_puts(out, "],\"refusal\":null}");
    } else {
        m5_buf_puts(out, "null");
    }
    if (last) {
        m5_buf_printf(out, ",\"finish_reason\":\"%s\"", finish_name(run, d->finish, d->report->n_calls));
        write_report(run, out, d->report);
        m5_buf_puts(out, "}]");
        write_measures(run, out, d->usage);
    } else {
        m5_buf_puts(out, ",\"finish_reason\":null}]");
    }
    write_chunk_usage(run, out, last ? d->usage : NULL, last ? d->report->think.n_tok : 0);
    m5_buf_puts(out, "}\n\n");
}

/* A call begins: its place in the choice's list. */
static int remember_call(m5_choice *c, const m5_delta *d)
{
    struct m5_choice_call *p = m5_realloc(M5_MEM_REQUEST, c->calls, (size_t)(c->n_calls + 1) * sizeof *p);
    if (!p) return M5_ERR_NOMEM;
    c->calls = p;
    p = &c->calls[c->n_calls++];
    *p = (struct m5_choice_call){0};
    memcpy(p->id, d->call_id, strlen(d->call_id) + 1);
    m5_buf_slice(&p->name, d->text);
    return p->name.failed ? M5_ERR_NOMEM : 0;
}

/* Keeps what a whole answer needs. */
static int remember(m5_run_ctx *run, const m5_delta *d)
{
    m5_choice *c = &run->choices[d->choice];
    switch (d->kind) {
    case M5_DELTA_REASONING: m5_buf_slice(&c->reasoning, d->text); break;
    case M5_DELTA_TEXT: m5_buf_slice(&c->text, d->text); break;
    case M5_DELTA_CALL: return remember_call(c, d);
    case M5_DELTA_ARGUMENTS:
        if (c->n_calls == 0) return M5_ERR_NOMEM; /* there was no memory for its beginning */
        m5_buf_slice(&c->calls[c->n_calls - 1].arguments, d->text);
        break;
    default: break;
    }
    if (!d->token) return c->text.failed || c->reasoning.failed ? M5_ERR_NOMEM : 0;
    if (!c->logprobs) c->logprobs = m5_json_new_array();
    m5_buf b = {0};
    m5_json *v = NULL;
    if (run->turn->chat) {
        write_chat_logprob(run, &b, d->token);
    } else {
        m5_buf tok = {0}, pr = {0}, top = {0}, off = {0};
        write_text_logprob(run, c, d->token, &tok, &pr, &top, &off);
        if (!tok.failed && !pr.failed && !top.failed && !off.failed) m5_buf_printf(&b, "[%s,%s,%s,%s]", tok.p, pr.p, top.p, off.p);
        m5_buf_free(&tok);
        m5_buf_free(&pr);
        m5_buf_free(&top);
        m5_buf_free(&off);
    }
    /* Two alternatives may have the same text (and then the same key); that is no reason to lose the answer. */
    if (!b.failed && b.p && m5_json_parse(&v, b.p, b.n, NULL, NULL) != 0) v = m5_json_new_null();
    m5_buf_free(&b);
    if (!c->logprobs || m5_json_push_take(c->logprobs, v)) return M5_ERR_NOMEM;
    return 0;
}

static int chat_delta(m5_run_ctx *run, const m5_delta *d, m5_buf *out)
{
    if (!run->turn->stream) return d->kind == M5_DELTA_START ? 0 : remember(run, d);
    chat_chunk(run, out, d);
    return out->failed ? M5_ERR_NOMEM : 0;
}

static int close_stream(m5_run_ctx *run, m5_buf *out)
{
    if (run->turn->include_usage) {
        m5_buf_puts(out, "data: ");
        write_head(run, out, run->turn->chat ? "chat.completion.chunk" : "text_completion");
        m5_buf_puts(out, ",\"choices\":[],\"usage\":");
        write_usage(out, &run->total, run->n_reasoning);
        write_measures(run, out, &run->total);
        m5_buf_puts(out, "}\n\n");
    }
    m5_buf_puts(out, "data: [DONE]\n\n");
    return 0;
}

static void write_tail(m5_run_ctx *run, m5_buf *out)
{
    m5_buf_puts(out, "],\"usage\":");
    write_usage(out, &run->total, run->n_reasoning);
    write_measures(run, out, &run->total);
    m5_buf_putc(out, '}');
}

static int write_calls(const m5_run_ctx *run, m5_buf *out, const m5_choice *c)
{
    bool legacy = run->turn->legacy_functions;
    for (int i = 0; i < c->n_calls; i++) {
        const struct m5_choice_call *call = &c->calls[i];
        if (call->name.failed || call->arguments.failed) return M5_ERR_NOMEM;
        m5_buf_puts(out, i ? "," : legacy ? ",\"function_call\":" : ",\"tool_calls\":[");
        if (!legacy) m5_buf_printf(out, "{\"id\":\"%s\",\"type\":\"function\",\"function\":", call->id);
        m5_buf_puts(out, "{\"name\":");
        m5_json_write_str(out, call->name.p ? call->name.p : "", call->name.n);
        m5_buf_puts(out, ",\"arguments\":");
        m5_json_write_str(out, call->arguments.p ? call->arguments.p : "", call->arguments.n);
        m5_buf_puts(out, legacy ? "}" : "}}");
    }
    if (c->n_calls && !legacy) m5_buf_putc(out, ']');
    return 0;
}

static int chat_whole(m5_run_ctx *run, m5_buf *out)
{
    write_head(run, out, "chat.completion");
    m5_buf_puts(out, ",\"choices\":[");
    for (int i = 0; i < run->n_choices; i++) {
        m5_choice *c = &run->choices[i];
        if (c->text.failed) return M5_ERR_NOMEM;
        m5_buf_printf(out, "%s{\"index\":%d,\"message\":{\"role\":\"assistant\",\"content\":", i ? "," : "", i);
        if (c->n_calls > 0 && c->text.n == 0)
            m5_buf_puts(out, "null");
        else
            m5_json_write_str(out, c->text.p ? c->text.p : "", c->text.n);
        if (c->reasoning.n) {
            m5_buf_putc(out, ',');
            write_reasoning(run, out, m5_buf_view(&c->reasoning));
        }
        if (write_calls(run, out, c)) return M5_ERR_NOMEM;
        m5_buf_puts(out, ",\"refusal\":null},\"logprobs\":");
        if (c->logprobs) {
            m5_buf_puts(out, "{\"content\":");
            m5_json_write(out, c->logprobs, 0);
            m5_buf_puts(out, ",\"refusal\":null}");
        } else {
            m5_buf_puts(out, "null");
        }
        m5_buf_printf(out, ",\"finish_reason\":\"%s\"", finish_name(run, c->finish, c->n_calls));
        write_report(run, out, &c->report);
        m5_buf_putc(out, '}');
    }
    write_tail(run, out);
    return 0;
}

static void text_chunk(m5_run_ctx *run, m5_buf *out, int choice, m5_slice text, const m5_event *token, const m5_delta *end)
{
    m5_buf_puts(out, "data: ");
    write_head(run, out, "text_completion");
    m5_buf_printf(out, ",\"choices\":[{\"index\":%d,\"text\":", choice);
    m5_json_write_str(out, text.p, text.n);
    m5_buf_puts(out, ",\"logprobs\":");
    if (token) {
        m5_buf tok = {0}, pr = {0}, top = {0}, off = {0};
        write_text_logprob(run, &run->choices[choice], token, &tok, &pr, &top, &off);
        m5_buf_printf(out, "{\"tokens\":[%s],\"token_logprobs\":[%s],\"top_logprobs\":[%s],\"text_offset\":[%s]}", tok.p ? tok.p : "",
                      pr.p ? pr.p : "", top.p ? top.p : "", off.p ? off.p : "");
        m5_buf_free(&tok);
        m5_buf_free(&pr);
        m5_buf_free(&top);
        m5_buf_free(&off);
    } else {
        m5_buf_puts(out, "null");
    }
    if (end) {
        m5_buf_printf(out, ",\"finish_reason\":\"%s\"", finish_name(run, end->finish, 0));
        write_report(run, out, end->report);
        m5_buf_puts(out, "}]");
        write_measures(run, out, end->usage);
    } else {
        m5_buf_puts(out, ",\"finish_reason\":null}]");
    }
    write_chunk_usage(run, out, end ? end->usage : NULL, 0);
    m5_buf_puts(out, "}\n\n");
}

static int text_delta(m5_run_ctx *run, const m5_delta *d, m5_buf *out)
{
    m5_choice *c = &run->choices[d->choice];
    if (!run->turn->stream) return d->kind == M5_DELTA_START ? 0 : remember(run, d);
    switch (d->kind) {
    case M5_DELTA_START:
        if (c->prompt_text.n) text_chunk(run, out, d->choice, c->prompt_text, NULL, NULL);
        break;
    case M5_DELTA_TEXT: text_chunk(run, out, d->choice, d->text, d->token, NULL); break;
    case M5_DELTA_FINISH: text_chunk(run, out, d->choice, d->text, NULL, d); break;
    default: break; /* plain completions have no thoughts and no calls */
    }
    return out->failed ? M5_ERR_NOMEM : 0;
}

/* Column k of the remembered [token, logprob, top, offset] rows. */
static void write_column(m5_buf *out, const char *key, const m5_json *rows, size_t k)
{
    m5_buf_printf(out, "\"%s\":[", key);
    for (size_t i = 0; i < m5_json_len(rows); i++) {
        if (i) m5_buf_putc(out, ',');
        m5_json_write(out, m5_json_at(m5_json_at(rows, i), k), 0);
    }
    m5_buf_putc(out, ']');
}

static int text_whole(m5_run_ctx *run, m5_buf *out)
{
    write_head(run, out, "text_completion");
    m5_buf_puts(out, ",\"choices\":[");
    for (int i = 0; i < run->n_choices; i++) {
        m5_choice *c = &run->choices[i];
        if (c->text.failed) return M5_ERR_NOMEM;
        m5_buf all = {0};
        m5_buf_slice(&all, c->prompt_text);
        m5_buf_append(&all, c->text.p ? c->text.p : "", c->text.n);
        m5_buf_printf(out, "%s{\"index\":%d,\"text\":", i ? "," : "", i);
        m5_json_write_str(out, all.p ? all.p : "", all.n);
        m5_buf_free(&all);
        m5_buf_puts(out, ",\"logprobs\":");
        if (c->logprobs) {
            static const char *const keys[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
            for (size_t k = 0; k < 4; k++) {
                m5_buf_putc(out, k ? ',' : '{');
                write_column(out, keys[k], c->logprobs, k);
            }
            m5_buf_putc(out, '}');
        } else {
            m5_buf_puts(out, "null");
        }
        m5_buf_printf(out, ",\"finish_reason\":\"%s\"", finish_name(run, c->finish, 0));
        write_report(run, out, &c->report);
        m5_buf_putc(out, '}');
    }
    write_tail(run, out);
    return 0;
}

void m5_openai_error(const m5_api_error *e, m5_buf *out)
{
    m5_buf_puts(out, "{\"error\":{\"message\":");
    m5_json_write_str(out, e->message, strlen(e->message));
    m5_buf_printf(out, ",\"type\":\"%s\",\"param\":", e->type);
    if (e->param[0])
        m5_json_write_str(out, e->param, strlen(e->param));
    else
        m5_buf_puts(out, "null");
    if (e->code)
        m5_buf_printf(out, ",\"code\":\"%s\"}}", e->code);
    else
        m5_buf_puts(out, ",\"code\":null}}");
}

void m5_openai_model(m5_buf *out, const char *id, int64_t created, int n_ctx)
{
    m5_buf_puts(out, "{\"id\":");
    m5_json_write_str(out, id, strlen(id));
    m5_buf_printf(out, ",\"object\":\"model\",\"created\":%lld,\"owned_by\":\"m5-infer\",\"max_model_len\":%d}", (long long)created, n_ctx);
}

const m5_dialect m5_openai_chat = {chat_delta, close_stream, chat_whole, m5_openai_error};
const m5_dialect m5_openai_completion = {text_delta, close_stream, text_whole, m5_openai_error};
