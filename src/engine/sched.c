/* SPDX-License-Identifier: Apache-2.0 */
/* The engine thread: admits requests in the order they came, packs every running sequence's next token and slices of waiting prompts into one
 * forward, draws, tells, finishes. The only caller of m5_model_forward in the engine. Asleep when there is nothing to do.
 *
 * One step: drop what was cancelled -> admit -> pack -> forward -> per sequence draw and events. While others decode, the prompt rows of a step are
 * bounded in time (about 100 ms), so nobody's stream stalls longer; alone, by half a second, so that a cancel takes effect soon. */
#include "engine/internal.h"

#include "base/mem.h"
#include "base/task.h"

#include <string.h>

enum { SLICE_BESIDE_US = 100000, SLICE_ALONE_US = 500000, MIN_SLICE = 16, FIRST_SLICE = 64 };

/* ---- telling ---- */

static void deliver(m5_request *r, const m5_event *ev)
{
    pthread_mutex_lock(&r->deliver);
    if (!r->detached && r->fn) r->fn(r->ctx, ev);
    pthread_mutex_unlock(&r->deliver);
}

static double ms_between(uint64_t from_us, uint64_t to_us) { return to_us > from_us ? (double)(to_us - from_us) / 1000 : 0; }

/* Ends a request: exactly one DONE, then the engine's reference goes. `why` is copied for M5_FINISH_ERROR. The text in r->certain goes out with it. */
static void finish(m5_request *r, m5_finish how, int32_t stop_id, const char *stop_string, const m5_error *why)
{
    uint64_t now = m5_time_us();
    m5_event ev = {.kind = M5_EVENT_DONE, .id = -1, .finish = how, .stop_id = stop_id, .stop_string = stop_string};
    ev.text = r->certain.p ? r->certain.p : "";
    ev.n_text = r->certain.n;
    if (why) ev.error = *why;
    ev.usage.n_prompt = r->n_prompt;
    ev.usage.n_cached = r->n_cached;
    ev.usage.n_generated = r->n_generated;
    ev.usage.queue_ms = ms_between(r->t_submit_us, r->t_admit_us ? r->t_admit_us : now);
    if (r->t_admit_us) ev.usage.prompt_ms = ms_between(r->t_admit_us, r->t_start_us ? r->t_start_us : now);
    if (r->t_start_us) ev.usage.generate_ms = ms_between(r->t_start_us, now);
    deliver(r, &ev);
    m5_request_unref(r);
}

/* Everything held back comes out: the decoder's open character, then the tail that might have become a stop string. Returns the stop match. */
static int flush_text(m5_request *r)
{
    m5_buf_clear(&r->certain);
    m5_buf_clear(&r->decoded);
    if (r->decoder) m5_decoder_flush(r->decoder, &r->decoded);
    int hit = m5_stop_push(r->stop, r->decoded.p, r->decoded.n, &r->certain);
    m5_stop_flush(r->stop, &r->certain);
    return hit;
}

static void leave_slot(m5_engine *e, m5_slot *s)
{
    s->req = NULL;
    pthread_mutex_lock(&e->lock);
    e->status.n_running--;
    pthread_mutex_unlock(&e->lock);
}

static void end_run(m5_engine *e, m5_slot *s, m5_finish how, int32_t stop_id)
{
    m5_request *r = s->req;
    int hit = flush_text(r);
    leave_slot(e, s);
    if (hit >= 0 && how != M5_FINISH_CANCELLED)
        finish(r, M5_FINISH_STOP, -1, m5_stop_string(r->stop, hit), NULL);
    else
        finish(r, how, stop_id, NULL, NULL);
}

/* The state may be half-changed after an error, so it is not kept for reuse. */
static void fail_run(m5_engine *e, m5_slot *s, const m5_error *why)
{
    m5_request *r = s->req;
    m5_seq_reset(s->seq);
    s->n_ids = 0;
    flush_text(r);
    leave_slot(e, s);
    m5_log(M5_LOG_WARN, "request failed: %s", why->text);
    finish(r, M5_FINISH_ERROR, -1, NULL, why);
}

/* ---- admission ---- */

/* Tokens of the prompt that the slot's kept state already covers, 0 when it does not fit. The last prompt token is always computed anew: its
 * logits are needed. */
static int reusable(const m5_slot *s, const m5_request *r)
{
    if (!s->seq) return 0;
    int n = m5_seq_pos(s->seq);
    if (n < 1 || n >= r->n_prompt || n > s->n_ids) return 0;
    return memcmp(s->ids, r->ids, (size_t)n * sizeof(*s->ids)) == 0 ? n : 0;
}

/* Longest reusable state first; else an empty slot; else the one unused longest. */
static m5_slot *choose_slot(m5_engine *e, const m5_request *r)
{
    m5_slot *best = NULL;
    int best_n = -1;
    for (int i = 0; i < e->n_parallel; i++) {
        m5_slot *s = &e->slots[i];
        if (s->req) continue;
        int n = reusable(s, r);
        if (!best || n > best_n || (n == best_n && s->last_used < best->last_used)) best = s, best_n = n;
    }
    return best;
}

static bool drop_idle(m5_engine *e)
{
    bool any = false;
    for (int i = 0; i < e->n_parallel; i++) {
        m5_slot *s = &e->slots[i];
        if (s->req || !s->seq) continue;
        m5_seq_free(s->seq);
        s->seq = NULL;
        s->n_ids = 0;
        s->last_used = 0;
        any = true;
    }
    return any;
}

static void admit(m5_engine *e, m5_slot *s, m5_request *r)
{
    m5_error why = {0};
    r->t_admit_us = m5_time_us();
    if (!s->seq && m5_seq_new(&s->seq, e->model, &why) && (!drop_idle(e) || m5_seq_new(&s->seq, e->model, &why))) {
        pthread_mutex_lock(&e->lock);
        e->status.n_running--;
        pthread_mutex_unlock(&e->lock);
        finish(r, M5_FINISH_ERROR, -1, NULL, &why);
        return;
    }
    r->n_cached = reusable(s, r);
    if (!r->n_cached) m5_seq_reset(s->seq);
    m5_free(s->ids);
    s->ids = r->ids;
    s->n_ids = r->n_prompt;
    s->cap_ids = r->cap_ids;
    r->ids = NULL;
    s->req = r;
    s->last_used = ++e->tick;
}

/* Unlinks the cancelled requests of the queue. */
static m5_request *take_cancelled(m5_engine *e)
{
    m5_request *gone = NULL, **at = &e->queue_head;
    e->queue_tail = NULL;
    while (*at) {
        m5_request *r = *at;
        if (atomic_load(&r->cancelled) || e->quit) {
            *at = r->next;
            r->next = gone;
            gone = r;
            e->status.n_waiting--;
        } else {
            e->queue_tail = r;
            at = &r->next;
        }
    }
    return gone;
}

static void admit_waiting(m5_engine *e)
{
    for (;;) {
        pthread_mutex_lock(&e->lock);
        m5_request *r = e->status.n_running < e->n_parallel ? e->queue_head : NULL;
        if (r) {
            e->queue_head = r->next;
            if (!e->queue_head) e->queue_tail = NULL;
            e->status.n_waiting--;
            e->status.n_running++;
        }
        pthread_mutex_unlock(&e->lock);
        if (!r) return;
        admit(e, choose_slot(e, r), r);
    }
}

/* ---- packing ---- */

static int pending(const m5_slot *s) { return s->n_ids - m5_seq_pos(s->seq); }

static void add_run(m5_engine *e, int *n_run, m5_slot *s, int n_tok)
{
    e->run_slot[*n_run] = s;
    e->runs[(*n_run)++] = (m5_run){.seq = s->seq, .ids = s->ids + m5_seq_pos(s->seq), .n_tok = n_tok, .n_out = n_tok == pending(s)};
}

/* Prompt rows for this step. */
static int slice_rows(const m5_engine *e, int n_decode)
{
    double target = n_decode ? SLICE_BESIDE_US : SLICE_ALONE_US;
    double n = e->us_per_row > 0 ? target / e->us_per_row : FIRST_SLICE;
    if (n < MIN_SLICE) n = MIN_SLICE;
    return n < e->prefill_chunk ? (int)n : e->prefill_chunk;
}

/* Decoding sequences first, one row each; then the prompts, oldest first, each with an equal share of the slice so that a short one is not stuck behind
 * a long one. What a share leaves over goes on to the next. Returns the number of runs. */
static int pack(m5_engine *e, int *n_prompt_rows)
{
    int n_run = 0, n_prefill = 0;
    for (int i = 0; i < e->n_parallel; i++) {
        m5_slot *s = &e->slots[i];
        if (!s->req) continue;
        if (s->req->started)
            add_run(e, &n_run, s, pending(s));
        else
            n_prefill++;
    }
    int rows = slice_rows(e, n_run), left = rows;
    uint64_t done = 0;
    for (int k = n_prefill; k > 0 && left > 0; k--) {
        m5_slot *next = NULL;
        for (int i = 0; i < e->n_parallel; i++) {
            m5_slot *s = &e->slots[i];
            if (s->req && !s->req->started && s->last_used > done && (!next || s->last_used < next->last_used)) next = s;
        }
        int share = (left + k - 1) / k, want = pending(next);
        add_run(e, &n_run, next, want < share ? want : share);
        left -= want < share ? want : share;
        done = next->last_used;
    }
    *n_prompt_rows = rows - left;
    return n_run;
}

/* One forward; when it fails, once more without idle states, and then run by run, so that only the requests that cannot go on fail. run_err says
 * which; a run's logits stand at its own row either way. */
static void forward(m5_engine *e, int n_run)
{
    m5_error why = {0};
    size_t n_vocab = (size_t)m5_model_config(e->model)->n_vocab;
    int rc = m5_model_forward(e->model, e->runs, n_run, e->logits, &why);
    if (rc == M5_ERR_NOMEM && drop_idle(e)) rc = m5_model_forward(e->model, e->runs, n_run, e->logits, &why);
    for (int i = 0; i < n_run; i++) e->run_err[i] = (m5_error){0};
    if (!rc) return;
    if (n_run == 1) {
        e->run_err[0] = why;
        e->run_err[0].code = rc;
        return;
    }
    size_t row = 0;
    for (int i = 0; i < n_run; i++) {
        rc = m5_model_forward(e->model, &e->runs[i], 1, e->logits + row * n_vocab, &e->run_err[i]);
        e->run_err[i].code = rc;
        row += (size_t)e->runs[i].n_out;
    }
}

/* ---- drawing ---- */

static bool is_end(const m5_engine *e, int32_t id)
{
    for (int i = 0; i < e->n_end_ids; i++)
        if (e->end_ids[i] == id) return true;
    return false;
}

static void start(m5_engine *e, m5_slot *s)
{
    m5_request *r = s->req;
    r->started = true;
    r->t_start_us = m5_time_us();
    pthread_mutex_lock(&e->lock);
    e->status.n_prompt_tokens += (uint64_t)(r->n_prompt - r->n_cached);
    pthread_mutex_unlock(&e->lock);
    deliver(r, &(m5_event){.kind = M5_EVENT_START, .id = -1, .text = "", .stop_id = -1});
}

/* Draws the next token of a sequence from its logits, tells it, and ends the run when it was the last. */
static void advance(m5_engine *e, m5_slot *s, const float *logits)
{
    m5_request *r = s->req;
    m5_error why = {0};
    if (!r->started) start(e, s);
    if (r->max_tokens == 0) {
        end_run(e, s, M5_FINISH_LENGTH, -1);
        return;
    }
    m5_sample_out drawn;
    m5_sample_in in = {.params = &r->sampling, .logits = logits, .ids = s->ids, .n_ids = (size_t)s->n_ids, .n_prompt = (size_t)r->n_prompt};
    if (m5_sampler_draw(e->sampler, &in, &drawn, &why)) {
        fail_run(e, s, &why);
        return;
    }
    r->n_generated++;
    pthread_mutex_lock(&e->lock);
    e->status.n_generated_tokens++;
    pthread_mutex_unlock(&e->lock);
    if (!r->ignore_eos && is_end(e, drawn.id)) {
        end_run(e, s, M5_FINISH_STOP, drawn.id);
        return;
    }
    s->ids[s->n_ids++] = drawn.id;
    m5_buf_clear(&r->decoded);
    m5_buf_clear(&r->certain);
    int rc = r->decoder ? m5_decoder_push(r->decoder, drawn.id, &r->decoded) : 0;
    int hit = rc ? -1 : m5_stop_push(r->stop, r->decoded.p, r->decoded.n, &r->certain);
    if (rc || r->decoded.failed || r->certain.failed) {
        m5_error_set(&why, rc ? rc : M5_ERR_NOMEM, "the text of token %d could not be made: %s", (int)drawn.id, m5_err_name(rc ? rc : M5_ERR_NOMEM));
        fail_run(e, s, &why);
        return;
    }
    m5_event ev = {.kind = M5_EVENT_TOKEN, .id = drawn.id, .text = r->certain.p ? r->certain.p : "", .n_text = r->certain.n, .stop_id = -1};
    ev.logprob = drawn.logprob;
    ev.top = drawn.top;
    ev.n_top = drawn.n_top;
    deliver(r, &ev);
    if (hit >= 0) {
        m5_buf_clear(&r->certain);
        leave_slot(e, s);
        finish(r, M5_FINISH_STOP, -1, m5_stop_string(r->stop, hit), NULL);
    } else if (r->n_generated >= r->max_tokens) {
        end_run(e, s, M5_FINISH_LENGTH, -1);
    }
}

/* ---- the loop ---- */

static void step(m5_engine *e)
{
    int n_prompt_rows = 0, n_run = pack(e, &n_prompt_rows);
    if (!n_run) return;
    uint64_t t0 = m5_time_us();
    forward(e, n_run);
    uint64_t t1 = m5_time_us();
    int n_rows = 0;
    for (int i = 0; i < n_run; i++) n_rows += e->runs[i].n_tok;
    if (n_prompt_rows >= MIN_SLICE) {
        double now = (double)(t1 - t0) / n_rows;
        e->us_per_row = e->us_per_row > 0 ? 0.7 * e->us_per_row + 0.3 * now : now;
    }
    size_t row = 0, n_vocab = (size_t)m5_model_config(e->model)->n_vocab;
    for (int i = 0; i < n_run; i++) {
        m5_slot *s = e->run_slot[i];
        if (e->run_err[i].code)
            fail_run(e, s, &e->run_err[i]);
        else if (e->runs[i].n_out)
            advance(e, s, e->logits + row * n_vocab);
        row += (size_t)e->runs[i].n_out;
    }
    pthread_mutex_lock(&e->lock);
    e->status.last_step_us = m5_time_us();
    pthread_mutex_unlock(&e->lock);
}

void *m5_engine_main(void *engine)
{
    m5_engine *e = engine;
    m5_thread_name("m5-engine");
    for (;;) {
        pthread_mutex_lock(&e->lock);
        while (!e->quit && !e->queue_head && e->status.n_running == 0) pthread_cond_wait(&e->wake, &e->lock);
        bool quit = e->quit;
        m5_request *gone = take_cancelled(e);
        pthread_mutex_unlock(&e->lock);
        while (gone) {
            m5_request *next = gone->next;
            finish(gone, M5_FINISH_CANCELLED, -1, NULL, NULL);
            gone = next;
        }
        for (int i = 0; i < e->n_parallel; i++)
            if (e->slots[i].req && (quit || atomic_load(&e->slots[i].req->cancelled))) end_run(e, &e->slots[i], M5_FINISH_CANCELLED, -1);
        if (quit) return NULL;
        admit_waiting(e);
        step(e);
    }
}
