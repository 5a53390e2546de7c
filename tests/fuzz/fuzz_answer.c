/* SPDX-License-Identifier: Apache-2.0 */
/* server/answer: the first bytes are settings, the rest is what the model draws. Whatever it is, deltas are valid text in a sane order, calls have
 * JSON arguments, limits hold, and an answer that ends by itself under a schema is valid. */
#define SOURCE_CHECK(condition)                                                                                                                      \
    do {                                                                                                                                             \
        if (!(condition)) abort();                                                                                                                   \
    } while (0)
#include "../unit/answer_source.h"

typedef struct sink {
    m5_buf content, arguments;
    int n_call, n_finish;
    bool started, in_call;
    m5_answer_report report;
    m5_finish finish;
} sink;

static void end_call(sink *s)
{
    m5_json *v = NULL;
    if (s->in_call)
        SOURCE_CHECK(m5_json_parse(&v, s->arguments.p ? s->arguments.p : "", s->arguments.n, &(m5_json_limits){.any_root = true, .max_depth = 2000},
                                   NULL) == 0);
    m5_json_unref(v);
    m5_buf_clear(&s->arguments);
    s->in_call = false;
}

static void take(void *ctx, const m5_delta *d)
{
    sink *s = ctx;
    SOURCE_CHECK(s->started == (d->kind != M5_DELTA_START) && s->n_finish == 0 && m5_utf8_valid(d->text.p ? d->text.p : "", d->text.n));
    s->started = true;
    if (d->kind == M5_DELTA_TEXT && d->text.n == 0) { /* carries a logprob, also while a call is written */
        SOURCE_CHECK(d->token);
        return;
    }
    if (d->kind == M5_DELTA_ARGUMENTS) {
        SOURCE_CHECK(s->in_call && d->call == s->n_call - 1);
        m5_buf_slice(&s->arguments, d->text);
        return;
    }
    end_call(s);
    if (d->kind == M5_DELTA_TEXT) m5_buf_slice(&s->content, d->text);
    if (d->kind == M5_DELTA_CALL) {
        SOURCE_CHECK(d->call == s->n_call && d->call_id && d->text.n);
        s->n_call++;
        s->in_call = true;
    }
    if (d->kind != M5_DELTA_FINISH) return;
    s->n_finish++;
    s->finish = d->finish;
    s->report = *d->report;
    SOURCE_CHECK(d->finish != M5_FINISH_ERROR);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static m5_grammar *grammar;
    static m5_grammar_vocab *vocab;
    m5_error err = {0};
    if (n < 4 || n > 3000) return 0;
    if (!wire) {
        open_source(template_text);
        grammar = grammar_of("{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"},\"b\":{\"type\":\"integer\"}},\"required\":[\"a\"]}");
        SOURCE_CHECK(m5_wire_vocab(wire, &vocab, &err) == 0);
    }
    static const char *const stop[] = {"ab", "}"};
    m5_answer_plan p = plan_of(data[0] & 1, data[1] & 0x80 ? -1 : data[1]);
    if (data[0] & 2) p.tools = tools;
    p.parallel_calls = data[0] & 4;
    p.logprobs = data[0] & 8;
    p.loops = data[0] & 16;
    bool held = data[0] & 32;
    if (held) {
        p.n_grammar = 1;
        p.grammars[0] = grammar;
        p.vocab = vocab;
    } else if (data[0] & 64) {
        p.stop = stop;
        p.n_stop = 2;
    }
    p.reasoning = (m5_reasoning)(data[3] % 4);
    run r = {.max_tokens = 1 + data[2] * 4, .n_ctx = 60 + data[3] * 8};
    if (data[0] & 128) p.limit = r.max_tokens;
    char *script = calloc(1, n - 3);
    if (!script) return 0;
    memcpy(script, data + 4, n - 4);
    sink s = {0};
    m5_answer *a = NULL;
    SOURCE_CHECK(m5_answer_new(&a, &p, take, &s, &err) == 0);
    m5_event done = {.kind = M5_EVENT_DONE, .text = ""};
    done.finish = drive(a, &r, script);
    m5_answer_event(a, &done);
    m5_answer_free(a);
    SOURCE_CHECK(s.n_finish == 1 && r.n_counted <= r.max_tokens && (p.think.budget < 0 || s.report.think.n_tok <= p.think.budget));
    SOURCE_CHECK(s.n_call == s.report.n_calls && (p.tools || s.n_call == 0) && (p.parallel_calls || s.n_call <= 1));
    if (held && !p.tools && s.finish == M5_FINISH_STOP && (p.reasoning == M5_REASONING_FIELD || p.reasoning == M5_REASONING_HIDDEN)) {
        m5_json *v = NULL;
        SOURCE_CHECK(m5_json_parse(&v, s.content.p ? s.content.p : "", s.content.n, NULL, NULL) == 0);
        m5_json_unref(v);
    }
    m5_buf_free(&s.content);
    m5_buf_free(&s.arguments);
    free(script);
    return 0;
}
