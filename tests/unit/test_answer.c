/* SPDX-License-Identifier: Apache-2.0 */
/* server/answer.c with a scripted source of tokens in the engine's place: thoughts, budgets, calls, stop strings and grammars on their way to deltas.
 * A token is a byte or one of a few tags; the script says what the model would draw, the control says what it may. */
#include "base/mem.h"
#include "t.h"

#define SOURCE_CHECK(condition) T_CHECK(condition, "source")
#include "answer_source.h"

/* What came out, in one line: {reasoning}content<call name arguments>!finish. */
typedef struct sink {
    m5_buf out;
    m5_delta_kind last;
    int n_logprob, n_finish;
    m5_answer_report report;
    m5_error error;
} sink;

static void take(void *ctx, const m5_delta *d)
{
    sink *s = ctx;
    if (d->kind == M5_DELTA_TEXT && d->text.n == 0) {
        s->n_logprob += d->token != NULL;
        return;
    }
    if (s->last == M5_DELTA_REASONING && d->kind != M5_DELTA_REASONING) m5_buf_putc(&s->out, '}');
    if ((s->last == M5_DELTA_ARGUMENTS || s->last == M5_DELTA_CALL) && d->kind != M5_DELTA_ARGUMENTS) m5_buf_putc(&s->out, '>');
    if (d->kind == M5_DELTA_REASONING && s->last != M5_DELTA_REASONING) m5_buf_putc(&s->out, '{');
    if (d->kind == M5_DELTA_CALL) {
        m5_buf_printf(&s->out, "<%d ", d->call);
        T_CHECK(strncmp(d->call_id, "call_", 5) == 0 && strlen(d->call_id) == 29, "%s", d->call_id);
    }
    m5_buf_slice(&s->out, d->text);
    if (d->kind == M5_DELTA_CALL) m5_buf_putc(&s->out, ' ');
    s->n_logprob += d->token != NULL;
    s->last = d->kind;
    if (d->kind != M5_DELTA_FINISH) return;
    static const char *const names[] = {"none", "stop", "length", "loop", "cancelled", "error"};
    m5_buf_printf(&s->out, "!%s", names[d->finish]);
    s->n_finish++;
    s->report = *d->report;
    if (d->finish == M5_FINISH_ERROR) s->error = *d->error;
}

static void go(const m5_answer_plan *p, run *r, const char *script, sink *s)
{
    m5_answer *a = NULL;
    m5_error err = {0};
    *s = (sink){.last = M5_DELTA_START};
    T_CHECK(m5_answer_new(&a, p, take, s, &err) == 0, "%s", err.text);
    m5_event done = {.kind = M5_EVENT_DONE, .text = ""};
    done.finish = drive(a, r, script);
    m5_answer_event(a, &done);
    m5_answer_free(a);
    T_EQ_INT(s->n_finish, 1);
}

static void check(const m5_answer_plan *p, int max_tokens, const char *script, const char *want, int n_counted)
{
    sink s;
    run r = {.max_tokens = max_tokens, .n_ctx = 4000};
    go(p, &r, script, &s);
    T_EQ_STR(s.out.p, want);
    if (n_counted >= 0) T_CHECK(r.n_counted == n_counted, "%s: counted %d of %d, not %d", want, r.n_counted, r.n_gen, n_counted);
    m5_buf_free(&s.out);
}

static void test_thoughts(void)
{
    m5_answer_plan p = plan_of(true, -1);
    check(&p, 100, "why\n\2\n\nyes\5", "{why}yes!stop", 4); /* three letters and the end token */
    check(&p, 3, "why\n\2\n\nyes and no\5", "{why}yes!length", 3);
    check(&p, 1, "why\n\2\n\nyes\5", "{why}y!length", 1); /* the frame takes nothing of the answer's room */
    check(&p, 100, "why\5", "{why}!stop", -1);            /* ends inside: closed, then the model ends at once */
    p = plan_of(true, 3);
    check(&p, 100, "whyever\5", "{why}ever!stop", 5);
    check(&p, 2, "whyever\5", "{why}ev!length", 2);
    p = plan_of(true, 0);
    check(&p, 100, "yes\5", "yes!stop", 4);
    p = plan_of(false, -1);
    check(&p, 100, "\1\nwhy\n\2\n\nyes\5", "{why}yes!stop", 4);
    check(&p, 100, "plain\5", "plain!stop", 6);
    p = plan_of(false, 0); /* may not think: the opening tag is kept from it */
    check(&p, 100, "\1yes\5", "!<think>yes!stop", -1);
    p = plan_of(true, 3);
    check(&p, 100, "why\1so\5", "{why}!<think>so!stop", -1); /* nor open a second one */
    static const char *const formats[] = {"{why}yes!stop", "why\n</think>\n\nyes!stop", "{why}why\n</think>\n\nyes!stop", "yes!stop"};
    for (int f = 0; f < 4; f++) {
        p = plan_of(true, -1);
        p.reasoning = (m5_reasoning)f;
        if (f == 2) continue; /* both at once: order checked below */
        check(&p, 100, "why\n\2\n\nyes\5", formats[f], 4);
    }
    p = plan_of(false, -1);
    p.reasoning = M5_REASONING_TEXT;
    check(&p, 100, "\1why\2yes\5", "<think>\nwhy\n</think>\n\nyes!stop", 4);
}

/* Every split of thought and answer: the sums are exact. */
static void test_budget_sums(void)
{
    for (int budget = 0; budget <= 8; budget++)
        for (int n = 0; n <= 8; n++)
            for (int max = 1; max <= 6; max++) {
                m5_answer_plan p = plan_of(true, budget);
                char script[32] = {0};
                memset(script, 't', (size_t)n);
                script[n] = 2;
                memcpy(script + n + 1, "abcd\5", 6);
                sink s;
                run r = {.max_tokens = max, .n_ctx = 4000};
                go(&p, &r, script, &s);
                int n_thought = n < budget ? n : budget;
                T_CHECK(s.report.think.n_tok == n_thought, "budget %d, %d tokens: %d", budget, n, s.report.think.n_tok);
                T_CHECK(s.report.think.end == (n < budget ? M5_THINK_MODEL : M5_THINK_BUDGET));
                T_CHECK(r.n_counted <= max);
                /* All tokens are thought, tags and frames, or counted. */
                int tags = 0;
                for (int i = 0; i < r.n_gen; i++) tags += r.ids[i] == 2 || r.ids[i] == '\n';
                if (n <= budget)
                    T_EQ_INT(r.n_gen - (n < budget ? 1 : 0),
                             n_thought + r.n_counted + (n < budget ? 0 : tags - (max > 0 && n == budget && r.n_counted ? 1 : 0)));
                m5_buf_free(&s.out);
            }
}

static void test_room(void)
{
    /* The context ends: the thought is closed in time and the answer has its reserve. */
    m5_answer_plan p = plan_of(true, -1);
    char script[2000];
    memset(script, 't', sizeof script);
    for (size_t i = 0; i < sizeof script; i++) script[i] = (char)('a' + i * i % 23);
    script[sizeof script - 1] = 0;
    sink s;
    run r = {.max_tokens = 1000, .n_ctx = 200};
    go(&p, &r, script, &s);
    T_CHECK(s.report.think.end == M5_THINK_ROOM && r.n_counted == 20 - 4 && s.report.think.n_tok == 190 - 20, "%d %d", r.n_counted,
            s.report.think.n_tok);
    m5_buf_free(&s.out);
    /* One limit for both. */
    p.limit = 50;
    r = (run){.max_tokens = 50, .n_ctx = 4000};
    go(&p, &r, script, &s);
    T_CHECK(s.report.think.end == M5_THINK_ROOM && r.n_gen == 50 && r.n_counted == 50 && s.report.think.n_tok == 30, "%d %d %d", r.n_gen, r.n_counted,
            s.report.think.n_tok);
    m5_buf_free(&s.out);
}

static void test_loops(void)
{
    m5_answer_plan p = plan_of(true, -1);
    m5_buf script = {0};
    for (int i = 0; i < 40; i++) m5_buf_puts(&script, "\xC3\xA9\xC3\xA8\xC3\xA0 ");
    m5_buf_puts(&script, "x");
    sink s;
    run r = {.max_tokens = 20, .n_ctx = 4000};
    static const int32_t hint[] = {'`', '`', '`', 'j', '\n'};
    p.hint = (m5_ids){(int32_t *)hint, 5, 5};
    p.hint_name = "json";
    go(&p, &r, script.p, &s);
    T_CHECK(s.report.think.end == M5_THINK_LOOP && s.report.think.loop_period == 7, "%d", s.report.think.loop_period);
    T_CHECK(s.report.hint && strcmp(s.report.hint, "json") == 0 && strstr(s.out.p, "}```j\n"), "%s", s.out.p);
    T_EQ_INT(r.n_counted, 20);
    m5_buf_free(&s.out);
    check(&p, 20, "why\2yes\5", "{why}yes!stop", 4); /* closed by the model: nothing is put */
    p.think.budget = 3;
    check(&p, 60, "why yes\5", "{why}```j\n yes!stop", -1);
    /* In the answer, when asked for. */
    p = plan_of(false, -1);
    p.loops = true;
    r = (run){.max_tokens = 1000, .n_ctx = 4000};
    go(&p, &r, script.p, &s);
    T_CHECK(strstr(s.out.p, "!loop") && s.report.loop_period == 7 && s.report.think.n_tok == 0, "%s", s.out.p);
    m5_buf_free(&s.out);
    p.loops = false;
    r = (run){.max_tokens = 1000, .n_ctx = 4000};
    go(&p, &r, script.p, &s);
    T_CHECK(strstr(s.out.p, "x!stop"), "%s", s.out.p);
    m5_buf_free(&s.out);
    m5_buf_free(&script);
}

#define CALL_F "\3\n{\"name\": \"f\", \"arguments\": {\"a\": \"x </tool_call> y\"}}\n\4"

static void test_calls(void)
{
    m5_answer_plan p = plan_of(false, -1);
    p.tools = tools;
    check(&p, 500, "sure\n" CALL_F "\5", "sure<0 f {\"a\": \"x </tool_call> y\"}>!stop", -1);
    check(&p, 500, "\1why\2\n\n" CALL_F "\n" CALL_F "\5", "{why}<0 f {\"a\": \"x </tool_call> y\"}><1 f {\"a\": \"x </tool_call> y\"}>!stop", -1);
    p.parallel_calls = false;
    check(&p, 500, CALL_F "\n" CALL_F "\5", "<0 f {\"a\": \"x </tool_call> y\"}>!stop", -1);
    p.parallel_calls = true;
    /* Left in the thought by a model that then ends: a call. Drafted there and followed by other text: none. */
    p = plan_of(true, -1);
    p.tools = tools;
    check(&p, 500, "I call\n" CALL_F "\5",
          "{I call\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x </tool_call> y\"}}\n</tool_call>}<0 f {\"a\": \"x </tool_call> "
          "y\"}>!stop",
          -1);
    check(&p, 500, "maybe\n" CALL_F "\nor not\2no\5",
          "{maybe\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x </tool_call> y\"}}\n</tool_call>\nor not}no!stop", -1);
    check(&p, 500, "maybe\n" CALL_F "\nor not\5",
          "{maybe\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x </tool_call> y\"}}\n</tool_call>\nor not}!stop", -1);
    /* No tools: text. */
    p = plan_of(false, -1);
    check(&p, 500, "\3{\"name\": \"f\"}\4\5", "<tool_call>{\"name\": \"f\"}</tool_call>!stop", -1);
    /* Cut by the limit: what there is. */
    p.tools = tools;
    check(&p, 40, CALL_F "\5", "<0 f {\"a\": \"x </\"}>!length", 40);
}

static void test_stops(void)
{
    static const char *const stop[] = {"END", "x"};
    m5_answer_plan p = plan_of(true, -1);
    p.stop = stop;
    p.n_stop = 2;
    check(&p, 100, "an END and x\2yes EN EXT END no\5", "{an END and x}yes EN EXT !stop", -1);
    check(&p, 100, "w\2yes EN\5", "{w}yes EN!stop", -1);
    check(&p, 4, "w\2yesx\5", "{w}yes!stop", 4); /* found with the last token that may be */
    p.tools = tools;
    check(&p, 500, "w\2" CALL_F "\5", "{w}<0 f {\"a\": \"x </tool_call> y\"}>!stop", -1); /* never inside a call */
}

static void test_characters(void)
{
    m5_answer_plan p = plan_of(true, -1);
    check(&p, 100, "\xC3\xA9\2\xE2\x82\xAC\5", "{\xC3\xA9}\xE2\x82\xAC!stop", -1);
    check(&p, 100, "\xE2\x82\2ok\5", "{\xEF\xBF\xBD}ok!stop", -1); /* a broken character stays in front of the tag */
    check(&p, 100, "a\2\xE2\x82\5", "{a}\xEF\xBF\xBD!stop", -1);
}

static void test_grammars(void)
{
    m5_error err = {0};
    m5_answer_plan p = plan_of(true, -1);
    p.n_grammar = 1;
    p.grammars[0] =
        grammar_of("{\"type\":\"object\",\"properties\":{\"ab\":{\"type\":\"integer\"}},\"required\":[\"ab\"],\"additionalProperties\":false}");
    T_CHECK(m5_wire_vocab(wire, &p.vocab, &err) == 0, "%s", err.text);
    for (int logprobs = 0; logprobs < 2; logprobs++) {
        sink s;
        p.logprobs = logprobs;
        /* The same tokens, whether they are forced or drawn from a mask of one. */
        run r = {.max_tokens = 100, .n_ctx = 4000};
        go(&p, &r, "why\n\0027}\5", &s);
        T_CHECK(strcmp(s.out.p, "{why}{\"ab\": 7}!stop") == 0 || strcmp(s.out.p, "{why}{\"ab\":7}!stop") == 0, "%s", s.out.p);
        T_CHECK(logprobs ? r.n_forced <= 2 && s.n_logprob >= 7 : r.n_forced >= 7, "%d forced, %d logprobs", r.n_forced, s.n_logprob);
        m5_buf_free(&s.out);
    }
    p.logprobs = false;
    /* A model that opens its thoughts itself still may; one that does not is held at once. */
    p.think.inside = false;
    sink s;
    run r = {.max_tokens = 100, .n_ctx = 4000};
    go(&p, &r, "\1why\0027}\5", &s);
    T_CHECK(strncmp(s.out.p, "{why}{\"ab\":", 11) == 0 && strstr(s.out.p, "7}!stop"), "%s", s.out.p);
    m5_buf_free(&s.out);
    r = (run){.max_tokens = 100, .n_ctx = 4000};
    go(&p, &r, "{7}\5", &s);
    T_CHECK(strncmp(s.out.p, "{\"ab\":", 6) == 0 && strstr(s.out.p, "7}!stop") && s.report.think.n_block == 0, "%s", s.out.p);
    m5_buf_free(&s.out);
    /* A budget ends the thought, and the form still holds. */
    p.think.inside = true;
    p.think.budget = 2;
    r = (run){.max_tokens = 100, .n_ctx = 4000};
    go(&p, &r, "why never} 7\5", &s);
    T_CHECK(strncmp(s.out.p, "{wh}{\"ab\":", 10) == 0, "%s", s.out.p);
    m5_buf_free(&s.out);
    m5_grammar_unref(p.grammars[0]);
}

/* Any sequence of tokens gives deltas in a sane order, whatever the rules are. */
static void test_noise(void)
{
    uint64_t rng = 7;
    for (int round = 0; round < 3000; round++) {
        char script[200];
        for (size_t i = 0; i < sizeof script - 1; i++) {
            rng = rng * 6364136223846793005u + 1442695040888963407u;
            unsigned x = (unsigned)(rng >> 40);
            static const char often[] = "\1\2\3\4\5\n\n`{}\":,fa <>";
            script[i] = x % 3 ? often[x / 3 % (sizeof often - 1)] : (char)(1 + x / 3 % 255);
        }
        script[sizeof script - 1] = 0;
        m5_answer_plan p = plan_of(round & 1, round % 7 == 0 ? -1 : round % 30);
        if (round & 2) p.tools = tools;
        p.reasoning = (m5_reasoning)(round / 4 % 4);
        if (round % 5 == 0) p.limit = 60;
        p.logprobs = round % 3 == 0;
        sink s;
        run r = {.max_tokens = p.limit < 0 ? 1 + round % 150 : 60, .n_ctx = 100 + round % 200};
        go(&p, &r, script, &s);
        T_CHECK(m5_utf8_valid(s.out.p, s.out.n) && r.n_counted <= r.max_tokens && !s.error.code);
        T_CHECK(p.think.budget < 0 || s.report.think.n_tok <= p.think.budget, "%d of %d", s.report.think.n_tok, p.think.budget);
        m5_buf_free(&s.out);
    }
}

static void test_failing_memory(void)
{
    m5_answer_plan p = plan_of(true, -1);
    p.tools = tools;
    for (uint64_t n = 1; n < 200; n++) {
        sink s = {.last = M5_DELTA_START};
        m5_answer *a = NULL;
        m5_error err = {0};
        run r = {.max_tokens = 500, .n_ctx = 4000};
        m5_mem_fail_at(n);
        int rc = m5_answer_new(&a, &p, take, &s, &err);
        if (!rc) {
            m5_event done = {.kind = M5_EVENT_DONE, .text = ""};
            done.finish = drive(a, &r, "why\2sure\n" CALL_F "\5");
            m5_answer_event(a, &done);
        }
        m5_mem_fail_at(0);
        T_CHECK(rc == M5_ERR_NOMEM ? a == NULL : s.n_finish == 1);
        m5_answer_free(a);
        m5_buf_free(&s.out);
    }
}

/* A tag of several tokens, Gemma 4's: under a grammar its first token leads into a thought and nowhere else. */
static void test_channel(void)
{
    specials[0] = "<|channel>";
    specials[1] = "<channel|>";
    open_source("{% for m in messages %}{% if m.reasoning_content %}{{ '<|channel>thought\n' + m.reasoning_content + '<channel|>' }}{% endif %}{{ "
                "m.content }}"
                "{% endfor %}");
    T_CHECK(wire->open_rest.n == 7 && wire->close_bare.n == 1 && wire->after.n == 0);
    m5_answer_plan p = plan_of(false, -1);
    m5_error err = {0};
    p.think.open = wire->thought->open;
    p.think.close = wire->thought->close;
    check(&p, 100, "\1thought\nwhy\n\2yes\5", "{why}yes!stop", 4);
    check(&p, 100, "\1final\2yes\5", "<|channel>final<channel|>yes!stop", -1);
    p.n_grammar = 1;
    p.grammars[0] = grammar_of("{\"type\":\"integer\",\"minimum\":10,\"maximum\":99}");
    T_CHECK(m5_wire_vocab(wire, &p.vocab, &err) == 0, "%s", err.text);
    check(&p, 100, "\1\nwhy\00242\5", "{why}42!stop", -1);
    check(&p, 100, "42\5", "42!stop", -1);
    p.think.budget = 2;
    check(&p, 100, "\1\nwhy\00242\5", "{w}10!stop", -1);
    m5_grammar_unref(p.grammars[0]);
    close_source();
}

int main(void)
{
    open_source(template_text);
    test_thoughts();
    test_budget_sums();
    test_room();
    test_loops();
    test_calls();
    test_stops();
    test_characters();
    test_grammars();
    test_noise();
    test_failing_memory();
    close_source();
    test_channel();
    return t_done();
}
