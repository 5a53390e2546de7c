/* SPDX-License-Identifier: Apache-2.0 */
/* Runs a neutral turn: render, tokenise, submit, and turn engine events into deltas for the dialect's writer. May touch: base, text, m5.h, http.h.
 * Not here: any field name of any API. */
#include "server/turn.h"

#include "base/task.h"
#include "text/chat.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { AUTO_BEGIN_MS = 5000 };

int m5_api_fail(m5_api_error *e, int status, const char *param, const char *fmt, ...)
{
    e->status = status;
    e->type = status == 401   ? "authentication_error"
              : status == 404 ? "not_found_error"
              : status == 429 ? "rate_limit_error"
              : status >= 500 ? "server_error"
                              : "invalid_request_error";
    e->code = NULL;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    m5_error tmp;
    va_list ap;
    va_start(ap, fmt);
    m5_error_setv(&tmp, M5_ERR_ARG, fmt, ap);
    va_end(ap);
    memcpy(e->message, tmp.text, sizeof e->message);
    return -1;
}

int m5_api_fail_from(m5_api_error *e, const m5_error *err)
{
    int status = 500;
    const char *code = NULL, *param = "";
    switch (err->code) {
    case M5_ERR_ARG:
    case M5_ERR_FORMAT:
    case M5_ERR_UNSUPPORTED:
    case M5_ERR_LIMIT: status = 400; break;
    case M5_ERR_TEMPLATE:
        status = 400;
        code = "template_error";
        param = "messages";
        break;
    case M5_ERR_CONTEXT:
        status = 400;
        code = "context_length_exceeded";
        param = "messages";
        break;
    case M5_ERR_NOTFOUND: status = 404; break;
    case M5_ERR_BUSY:
        status = 429;
        code = "queue_full";
        break;
    case M5_ERR_NOMEM:
        status = 503;
        code = "out_of_memory";
        break;
    default: break;
    }
    m5_api_fail(e, status, param, "%s", err->text);
    e->code = code;
    return -1;
}

void m5_turn_free(m5_turn *t)
{
    if (!t) return;
    m5_json_unref(t->vars);
    m5_json_unref(t->tools);
    m5_json_unref(t->schema);
    m5_arena_deinit(&t->arena);
    m5_free(t);
}

void m5_turn_reply_error(m5_http_req *r, const m5_dialect *dialect, const m5_api_error *e)
{
    m5_buf b = {0};
    dialect->error(e, &b);
    if (e->status == 429) m5_http_header(r, "Retry-After", "1");
    if (!m5_http_reply(r, e->status, "application/json", b.p ? b.p : "{}", b.n)) {
        m5_buf ev = {0};
        m5_buf_printf(&ev, "data: %s\n\n", b.p ? b.p : "{}");
        m5_http_stream_write(r, ev.p ? ev.p : "", ev.n);
        m5_http_stream_end(r);
        m5_buf_free(&ev);
    }
    m5_buf_free(&b);
}

/* Whether the prompt ends inside a thought that the template opened; a tag in a message opens none. */
static bool ends_inside(const m5_wire *wire, m5_slice text, const m5_text_span *spans, size_t n_spans)
{
    const char *close = m5_chat_open_thought(text);
    if (!close || !wire->thought || strcmp(close, wire->thought->close) != 0) return false;
    size_t last = text.n;
    while (last > 0 && (text.p[last - 1] == '\n' || text.p[last - 1] == ' ')) last--;
    for (size_t i = 0; i < n_spans; i++)
        if (spans[i].begin < last && last <= spans[i].end) return spans[i].trusted;
    return false;
}

/* Renders and tokenises the turn's conversation or prompt i into ids (appended). */
static int tokenize(const m5_wire *wire, const m5_turn *t, int prompt, m5_ids *ids, bool *inside, m5_api_error *ae)
{
    m5_error err = {0};
    int rc;
    *inside = false;
    if (!t->chat) {
        const struct m5_prompt *p = &t->prompts[prompt];
        if (p->ids) {
            for (size_t i = 0; i < p->n_ids; i++) {
                if (m5_ids_push(ids, p->ids[i]) != 0) return m5_api_fail(ae, 503, "", "out of memory");
            }
            return 0;
        }
        /* The raw interface: whoever writes the whole prompt may write control tokens into it, as in other servers. */
        rc = m5_tokenize(wire->tok, ids, p->text, p->n_text, M5_SPECIAL_PARSE, true, &err);
        return rc ? m5_api_fail_from(ae, &err) : 0;
    }
    m5_buf text = {0};
    m5_text_span *spans = NULL;
    size_t n_spans = 0;
    rc = m5_chat_render(wire->chat, t->vars, -1, &text, &spans, &n_spans, &err);
    /* The template prints BOS where the model wants one. */
    if (rc == 0) rc = m5_tokenize_spans(wire->tok, ids, text.p ? text.p : "", text.n, spans, n_spans, false, &err);
    if (rc == 0 && ids->n == 0) rc = m5_error_set(&err, M5_ERR_ARG, "the conversation renders to an empty prompt");
    if (rc == 0) *inside = ends_inside(wire, m5_buf_view(&text), spans, n_spans);
    m5_free(spans);
    m5_buf_free(&text);
    return rc ? m5_api_fail_from(ae, &err) : 0;
}

/* One running turn. Events of its choices arrive on the engine thread; the run frees itself after the last one, when submitting is over too. */
typedef struct turn_run {
    m5_run_ctx ctx;
    m5_turn *turn;
    const m5_dialect *dialect;
    m5_http_req *http;
    m5_request **requests; /* [n_choices] */
    struct choice_ref {
        struct turn_run *run;
        int choice;
        m5_answer *answer;
    } * refs;
    m5_answer_plan plan;
    pthread_mutex_t mu;
    atomic_int holders; /* events not yet done + the submitting thread + the reply */
    atomic_bool cancelled;
    int n_left;  /* choices without DONE; under mu */
    bool failed; /* an error answer has gone out; under mu */
} turn_run;

static void free_choice(m5_choice *c)
{
    m5_buf_free(&c->text);
    m5_buf_free(&c->reasoning);
    for (int i = 0; i < c->n_calls; i++) {
        m5_buf_free(&c->calls[i].name);
        m5_buf_free(&c->calls[i].arguments);
    }
    m5_free(c->calls);
    m5_json_unref(c->logprobs);
}

static void run_unref(turn_run *run)
{
    if (atomic_fetch_sub(&run->holders, 1) != 1) return;
    for (int i = 0; i < run->ctx.n_choices; i++) {
        if (run->requests[i]) m5_request_free(run->requests[i]);
        free_choice(&run->ctx.choices[i]);
        m5_answer_free(run->refs[i].answer);
    }
    m5_answer_plan_deinit(&run->plan);
    m5_free(run->ctx.choices);
    m5_free(run->requests);
    m5_free(run->refs);
    m5_turn_free(run->turn);
    m5_http_req_unref(run->http);
    pthread_mutex_destroy(&run->mu);
    m5_free(run);
}

static void cancel_all(turn_run *run)
{
    atomic_store(&run->cancelled, true);
    pthread_mutex_lock(&run->mu);
    for (int i = 0; i < run->ctx.n_choices; i++)
        if (run->requests[i]) m5_request_cancel(run->requests[i]);
    pthread_mutex_unlock(&run->mu);
}

static void reply_over(void *arg, bool gone)
{
    turn_run *run = arg;
    if (gone) cancel_all(run);
    run_unref(run);
}

/* The answer is complete: send the whole body or close the stream. mu held. */
static void finish_run(turn_run *run)
{
    if (run->failed) return;
    m5_buf out = {0};
    if (run->turn->stream) {
        run->dialect->close(&run->ctx, &out);
        m5_http_stream_write(run->http, out.p ? out.p : "", out.n);
        m5_http_stream_end(run->http);
    } else {
        int rc = run->dialect->whole(&run->ctx, &out);
        if (rc || out.failed) {
            m5_api_error ae;
            m5_api_fail(&ae, 503, "", "out of memory while writing the answer");
            m5_turn_reply_error(run->http, run->dialect, &ae);
        } else {
            m5_http_reply(run->http, 200, "application/json", out.p, out.n);
        }
    }
    m5_buf_free(&out);
}

static void emit(turn_run *run, const m5_delta *d)
{
    m5_buf out = {0};
    if (run->dialect->delta(&run->ctx, d, &out) == 0 && run->turn->stream && !run->failed && out.n > 0) m5_http_stream_write(run->http, out.p, out.n);
    m5_buf_free(&out);
}

static void fail_run(turn_run *run, const m5_api_error *ae)
{
    if (run->failed) return;
    run->failed = true;
    m5_turn_reply_error(run->http, run->dialect, ae);
}

/* The end of one choice. mu held. */
static void finish_choice(turn_run *run, const m5_delta *d)
{
    m5_choice *c = &run->ctx.choices[d->choice];
    m5_usage *total = &run->ctx.total;
    c->finish = d->finish;
    c->usage = *d->usage;
    c->report = *d->report;
    total->n_generated += d->usage->n_generated;
    total->n_draft += d->usage->n_draft;
    total->n_draft_accepted += d->usage->n_draft_accepted;
    for (int s = 0; s < M5_SPEC_SOURCES; s++) {
        total->n_draft_by[s] += d->usage->n_draft_by[s];
        total->n_draft_accepted_by[s] += d->usage->n_draft_accepted_by[s];
    }
    run->ctx.n_reasoning += d->report->think.n_tok;
    if (d->choice % run->turn->n == 0) {
        total->n_prompt += d->usage->n_prompt;
        total->n_cached += d->usage->n_cached;
        total->n_replayed += d->usage->n_replayed;
    }
    if (d->usage->prompt_ms > total->prompt_ms) total->prompt_ms = d->usage->prompt_ms;
    if (d->usage->generate_ms > total->generate_ms) total->generate_ms = d->usage->generate_ms;
    m5_api_error ae;
    if (d->finish == M5_FINISH_ERROR) {
        m5_api_fail_from(&ae, d->error);
        fail_run(run, &ae);
    } else if (d->finish == M5_FINISH_CANCELLED && !atomic_load(&run->cancelled)) {
        m5_api_fail(&ae, 503, "", "the server is shutting down");
        fail_run(run, &ae);
    } else {
        emit(run, d);
    }
    if (--run->n_left == 0) finish_run(run);
}

/* Thread: engine. */
static void on_delta(void *arg, const m5_delta *given)
{
    struct choice_ref *ref = arg;
    turn_run *run = ref->run;
    m5_delta d = *given;
    d.choice = ref->choice;
    pthread_mutex_lock(&run->mu);
    if (d.kind == M5_DELTA_FINISH)
        finish_choice(run, &d);
    else
        emit(run, &d);
    pthread_mutex_unlock(&run->mu);
}

static void on_event(void *arg, const m5_event *ev)
{
    struct choice_ref *ref = arg;
    turn_run *run = ref->run;
    m5_answer_event(ref->answer, ev);
    if (ev->kind == M5_EVENT_DONE) run_unref(run);
}

static turn_run *run_new(m5_engine *e, m5_turn *t, const m5_dialect *dialect, m5_http_req *r)
{
    turn_run *run = m5_calloc(M5_MEM_REQUEST, 1, sizeof *run);
    if (!run) return NULL;
    int n = t->n * (t->chat ? 1 : t->n_prompts);
    m5_engine_info info;
    m5_engine_get_info(e, &info);
    run->ctx = (m5_run_ctx){.turn = t, .tok = m5_engine_tokenizer(e), .model_id = m5_engine_model_id(e), .plan = &run->plan, .lossy = info.lossy};
    run->ctx.choices = m5_calloc(M5_MEM_REQUEST, (size_t)n, sizeof *run->ctx.choices);
    run->requests = m5_calloc(M5_MEM_REQUEST, (size_t)n, sizeof(m5_request *));
    run->refs = m5_calloc(M5_MEM_REQUEST, (size_t)n, sizeof *run->refs);
    if (!run->ctx.choices || !run->requests || !run->refs) {
        m5_free(run->ctx.choices);
        m5_free(run->requests);
        m5_free(run->refs);
        m5_free(run);
        return NULL;
    }
    run->ctx.n_choices = n;
    run->n_left = n;
    run->turn = t;
    run->dialect = dialect;
    run->http = m5_http_req_ref(r);
    for (int i = 0; i < n; i++) run->refs[i] = (struct choice_ref){run, i, NULL};
    pthread_mutex_init(&run->mu, NULL);
    atomic_init(&run->holders, 1);
    atomic_init(&run->cancelled, false);
    return run;
}

/* Submits every choice. On an error the choices that already run are cancelled and the rest never starts. */
static void submit_all(m5_engine *e, turn_run *run, const m5_ids *ids)
{
    m5_turn *t = run->turn;
    for (int i = 0; i < run->ctx.n_choices; i++) {
        m5_gen_params p = t->gen;
        m5_control control = {0};
        p.replay = t->chat;
        p.stop = NULL; /* the answer looks for them itself */
        p.n_stop = 0;
        p.control = &control;
        p.ids = ids[i / t->n].p;
        p.n_ids = ids[i / t->n].n;
        /* Choices of one prompt differ by their seed and by nothing else. */
        p.sampling.seed = t->gen.sampling.seed + (uint64_t)(i % t->n);
        m5_error err = {0};
        atomic_fetch_add(&run->holders, 1);
        m5_request *req = NULL;
        int rc = m5_answer_new(&run->refs[i].answer, &run->plan, on_delta, &run->refs[i], &err);
        if (!rc) control = m5_answer_control(run->refs[i].answer);
        if (!rc) rc = m5_engine_submit(e, &p, on_event, &run->refs[i], &req, &err);
        if (rc) {
            run_unref(run);
            m5_api_error ae;
            m5_api_fail_from(&ae, &err);
            if (!t->chat && rc == M5_ERR_CONTEXT) snprintf(ae.param, sizeof ae.param, "prompt");
            pthread_mutex_lock(&run->mu);
            fail_run(run, &ae);
            run->n_left -= run->ctx.n_choices - i;
            pthread_mutex_unlock(&run->mu);
            cancel_all(run);
            return;
        }
        pthread_mutex_lock(&run->mu);
        run->requests[i] = req;
        pthread_mutex_unlock(&run->mu);
        if (atomic_load(&run->cancelled)) m5_request_cancel(req);
    }
}

void m5_turn_run(m5_engine *e, m5_wire *wire, m5_turn *t, const m5_dialect *dialect, m5_http_req *r)
{
    m5_api_error ae;
    int n_prompts = t->chat ? 1 : t->n_prompts;
    m5_ids *ids = m5_calloc(M5_MEM_REQUEST, (size_t)n_prompts, sizeof *ids);
    turn_run *run = NULL;
    m5_engine_info info;
    bool inside = false, needle = false;
    if (!ids) {
        m5_api_fail(&ae, 503, "", "out of memory");
        goto fail;
    }
    if (t->chat && m5_turn_shape(wire, t, &needle, &ae)) goto fail;
    for (int i = 0; i < n_prompts; i++)
        if (tokenize(wire, t, i, &ids[i], &inside, &ae) != 0) goto fail;
    m5_engine_get_info(e, &info);
    m5_answer_plan plan = {.n_vocab = info.n_vocab};
    m5_api_fail(&ae, 503, "", "out of memory");
    run = m5_turn_plan(wire, t, info.n_ctx, inside, needle, &plan, &ae) ? NULL : run_new(e, t, dialect, r);
    if (!run) {
        m5_answer_plan_deinit(&plan);
        goto fail;
    }
    run->plan = plan;
    for (int i = 0; i < run->ctx.n_choices && t->echo; i++)
        run->ctx.choices[i].prompt_text = (m5_slice){t->prompts[i / t->n].text, t->prompts[i / t->n].text ? t->prompts[i / t->n].n_text : 0};
    if (t->stream) m5_http_stream_auto_begin(r, AUTO_BEGIN_MS);
    submit_all(e, run, ids);
    atomic_fetch_add(&run->holders, 1);
    m5_http_on_over(r, reply_over, run);
    goto out;
fail:
    m5_turn_reply_error(r, dialect, &ae);
    m5_turn_free(t);
out:
    for (int i = 0; ids && i < n_prompts; i++) m5_ids_free(&ids[i]);
    m5_free(ids);
    if (run) run_unref(run);
}
