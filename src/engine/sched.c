/* SPDX-License-Identifier: Apache-2.0 */
/* The engine thread: admits requests in the order they came, packs every running sequence's next tokens and slices of waiting prompts into one
 * forward, draws, tells, finishes. Asleep when there is nothing to do.
 *
 * One step: drop what was cancelled -> admit -> drafts (spec.c) -> pack -> forward -> per sequence draw and events. Drafted rows are held: at each
 * position the token is drawn as without drafts, and while it is the drafted one, the next row's logits are those of the next position. What stands
 * is committed, the rest was never there. While others decode, the prompt rows of a step are bounded in time (about 100 ms), so nobody's stream
 * stalls longer; alone, by half a second, so that a cancel takes effect soon. */
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

static double ms_between(uint64_t from_us, uint64_t to_us)
{
    return to_us > from_us ? (double)(to_us - from_us) / 1000 : 0;
}

/* Ends a request: exactly one DONE, then the engine's reference goes. `why` is copied for M5_FINISH_ERROR. The text in r->certain goes out with it.
 */
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
    ev.usage.n_replayed = r->n_replayed;
    for (int k = 0; k < M5_SPEC_SOURCES; k++) {
        ev.usage.n_draft += ev.usage.n_draft_by[k] = r->n_draft[k];
        ev.usage.n_draft_accepted += ev.usage.n_draft_accepted_by[k] = r->n_draft_accepted[k];
    }
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

/* Short prefixes are computed faster than they are kept. */
enum { MIN_KEEP_ON_DISK = 192 };

/* Writes behind what the tree has at exactly ids[0..pos), unless a file has it. */
static void keep_on_disk(m5_engine *e, const int32_t *ids, int pos)
{
    m5_page *const *pages;
    m5_row *row;
    if (!e->store || pos < MIN_KEEP_ON_DISK) return;
    if (m5_prefix_export(e->prefix, ids, pos, &pages, &row)) m5_store_put(e->store, ids, pos, pages, row);
}

/* Keeps the state of a slot in the tree, and on disk when it is a place that a later process will want: message boundaries, the end of an answer, and
 * every fourth of the checkpoints in between. */
static void keep_state(m5_engine *e, m5_slot *s, bool on_disk)
{
    m5_prefix_save(e->prefix, s->seq, s->ids, true);
    if (on_disk) keep_on_disk(e, s->ids, m5_seq_pos(s->seq));
}

/* Held rows that stand become part of the sequence, the others are forgotten. */
static void commit_rows(m5_slot *s)
{
    if (s->held) m5_seq_commit(s->seq, s->n_stand);
    s->held = false;
}

/* The slot becomes idle. keep: its state goes to the prefix tree, also that of a cancelled prompt, whose work need not be done again. */
static void leave_slot(m5_engine *e, m5_slot *s, bool keep)
{
    s->req = NULL;
    commit_rows(s);
    m5_spec_end(&s->spec);
    if (keep) keep_state(e, s, true);
    m5_seq_reset(s->seq);
    s->n_ids = 0;
    e->n_left++;
    pthread_mutex_lock(&e->lock);
    e->status.n_running--;
    pthread_mutex_unlock(&e->lock);
}

static void end_run(m5_engine *e, m5_slot *s, m5_finish how, int32_t stop_id)
{
    m5_request *r = s->req;
    int hit = flush_text(r);
    leave_slot(e, s, true);
    if (hit >= 0 && how != M5_FINISH_CANCELLED)
        finish(r, M5_FINISH_STOP, -1, m5_stop_string(r->stop, hit), NULL);
    else
        finish(r, how, stop_id, NULL, NULL);
}

/* The state may be half-changed after an error, so it is not kept. */
static void fail_run(m5_engine *e, m5_slot *s, const m5_error *why)
{
    m5_request *r = s->req;
    flush_text(r);
    leave_slot(e, s, false);
    m5_log(M5_LOG_WARN, "request failed: %s", why->text);
    finish(r, M5_FINISH_ERROR, -1, NULL, why);
}

/* ---- admission ---- */

/* Frees a part of the prefix tree when sequences need the memory; false when it has nothing left. */
static bool make_room(m5_engine *e)
{
    m5_prefix_stats st;
    m5_prefix_get_stats(e->prefix, &st);
    return m5_prefix_evict(e->prefix, st.bytes / 4 + 1);
}

static m5_slot *idle_slot(m5_engine *e)
{
    for (int i = 0; i < e->n_parallel; i++)
        if (!e->slots[i].req) return &e->slots[i];
    return NULL;
}

/* Text of a few tokens for the log, control characters made visible. */
static void describe(const m5_engine *e, const int32_t *ids, int n, m5_buf *out)
{
    m5_buf raw = {0};
    for (int i = 0; i < n && e->tokenizer; i++) m5_buf_slice(&raw, m5_tokenizer_piece(e->tokenizer, ids[i]));
    bool text = m5_utf8_valid(raw.p ? raw.p : "", raw.n);
    for (size_t i = 0; i < raw.n; i++) {
        unsigned char c = (unsigned char)raw.p[i];
        if (c == '\n')
            m5_buf_puts(out, "\\n");
        else if (c < 0x20 || c == 0x7F || (c >= 0x80 && !text))
            m5_buf_printf(out, "\\x%02x", c);
        else
            m5_buf_putc(out, raw.p[i]);
    }
    m5_buf_free(&raw);
}

/* Says where and why the kept state ended, for people who wonder about a slow second call. */
static void log_match(const m5_engine *e, const m5_slot *s, const m5_prefix_match *m)
{
    enum { AROUND = 6 };
    int n = s->n_ids, at = m->n_common;
    if (at >= n - 1 || at == 0 || m5_log_get_level() < M5_LOG_INFO) return;
    m5_buf before = {0}, now = {0}, then = {0};
    describe(e, s->ids + (at > AROUND ? at - AROUND : 0), at > AROUND ? AROUND : at, &before);
    describe(e, s->ids + at, n - at < AROUND ? n - at : AROUND, &now);
    if (m->stored >= 0) describe(e, &m->stored, 1, &then);
    m5_log(M5_LOG_INFO, "prompt cache: %d of %d tokens reused; what was kept %s token %d, after \"%s\": now \"%s\"%s%s%s", m->n_resumed, n,
           m->stored >= 0 ? "differs from" : "ends at", at, before.p ? before.p : "", now.p ? now.p : "", m->stored >= 0 ? ", kept \"" : "",
           then.p ? then.p : "", m->stored >= 0 ? "\"" : "");
    m5_buf_free(&before);
    m5_buf_free(&now);
    m5_buf_free(&then);
}

/* Brings what files know of a prompt into the tree, when that is worth more than what the tree has. A bad file is gone after the attempt, so the next
 * try takes the one before it. */
static void restore_files(m5_engine *e, m5_slot *s)
{
    enum { MIN_GAIN = 64, MAX_TRY = 8 };
    for (int i = 0; e->store && i < MAX_TRY; i++) {
        int have = m5_prefix_probe(e->prefix, s->ids, s->n_ids), at = m5_store_find(e->store, s->ids, s->n_ids, have + MIN_GAIN);
        m5_error err = {0};
        if (at == 0) return;
        int rc = m5_store_load(e->store, e->prefix, s->ids, at, &err);
        if (rc == 0) return;
        if (rc == M5_ERR_NOMEM && !make_room(e)) return;
    }
}

/* Earlier answers take their own tokens. The prompt changes its length with them, and so do its room and its marks; the answer keeps the room that
 * was asked for, as far as the context allows. */
static void replay_answers(m5_engine *e, m5_slot *s, m5_request *r)
{
    int n = s->n_ids, cap = e->n_ctx - 1;
    if (m5_prefix_common(e->prefix, s->ids, n) >= n) return;
    int32_t *ids = m5_alloc(M5_MEM_REQUEST, ((size_t)e->n_ctx + (size_t)n) * sizeof *ids);
    if (!ids) return;
    memcpy(ids, s->ids, (size_t)n * sizeof *ids);
    r->n_replayed = m5_replay(e->prefix, e->tokenizer, ids, &n, cap, ids + e->n_ctx, r->n_prompt);
    if (r->n_replayed == 0) {
        m5_free(ids);
        return;
    }
    m5_log(M5_LOG_DEBUG, "prompt of %d tokens: %d as they were sampled, now %d", r->n_prompt, r->n_replayed, n);
    m5_free(s->ids);
    s->ids = ids;
    s->n_ids = r->n_prompt = n;
    s->cap_ids = e->n_ctx;
    if (r->max_tokens > e->n_ctx - n) r->max_tokens = e->n_ctx - n;
    r->n_marks = m5_marks_find(e->tokenizer, s->ids, n, r->marks);
    restore_files(e, s);
}

/* Two prompts have parted here, so a third may: the place gets a checkpoint too, and from then on a branch costs its own tokens alone. */
static void add_branch_mark(m5_request *r, const m5_prefix_match *m)
{
    if (m->n_common - m->n_resumed >= MIN_SLICE && m->n_common < r->n_prompt) r->marks[r->n_marks++] = m->n_common;
}

/* To the head of the line, until another request has ended; false when no other runs. */
static bool put_back(m5_engine *e, m5_request *r)
{
    pthread_mutex_lock(&e->lock);
    bool others = e->status.n_running > 1;
    if (others) {
        r->wait_left = e->n_left;
        r->next = e->queue_head;
        e->queue_head = r;
        if (!e->queue_tail) e->queue_tail = r;
        e->status.n_waiting++;
        e->status.n_running--;
    }
    pthread_mutex_unlock(&e->lock);
    return others;
}

static void admit(m5_engine *e, m5_slot *s, m5_request *r)
{
    m5_error why = {0};
    m5_prefix_match match;
    bool again = r->t_admit_us > 0; /* it had to make room once */
    while (!s->seq && m5_seq_new(&s->seq, e->model, &why) && make_room(e)) {}
    if (s->seq && e->spec.max_k > 0) m5_seq_ready_hold(s->seq, NULL); /* else it goes without drafts */
    if (!s->seq) {
        if (put_back(e, r)) return;
        pthread_mutex_lock(&e->lock);
        e->status.n_running--;
        pthread_mutex_unlock(&e->lock);
        finish(r, M5_FINISH_ERROR, -1, NULL, &why);
        return;
    }
    if (!again) r->t_admit_us = m5_time_us();
    m5_free(s->ids);
    s->ids = r->ids;
    s->n_ids = r->n_ids;
    s->cap_ids = r->cap_ids;
    r->ids = NULL;
    s->req = r;
    s->admitted = ++e->tick;
    restore_files(e, s);
    if (r->replay && !again) replay_answers(e, s, r);
    m5_prefix_resume(e->prefix, s->seq, s->ids, s->n_ids, &match);
    m5_spec_begin(&e->spec, &s->spec, &r->spec, s->ids, s->n_ids, r->n_prompt, s->cap_ids);
    if (again) return;
    r->n_cached = match.n_resumed;
    log_match(e, s, &match);
    keep_on_disk(e, s->ids, match.n_resumed); /* what was of use once is worth having after a restart */
    add_branch_mark(r, &match);
}

/* First place behind pos where a slot's prompt keeps a checkpoint: a message boundary or a multiple of checkpoint_every. */
static int next_checkpoint(const m5_engine *e, const m5_request *r, int pos)
{
    int next = (pos / e->checkpoint_every + 1) * e->checkpoint_every;
    for (int i = 0; i < r->n_marks; i++)
        if (r->marks[i] > pos && r->marks[i] < next) next = r->marks[i];
    return next;
}

/* True when a running prompt is about to compute a long piece that r needs too: r waits for it instead of computing it a second time. */
static bool better_wait(const m5_engine *e, const m5_request *r)
{
    enum { MIN_GAIN = 64 };
    int have = -1;
    for (int i = 0; i < e->n_parallel; i++) {
        const m5_slot *s = &e->slots[i];
        if (!s->req || s->req->started) continue;
        int n = s->n_ids < r->n_prompt - 1 ? s->n_ids : r->n_prompt - 1, c = 0, gain = 0;
        while (c < n && s->ids[c] == r->ids[c]) c++;
        for (int at = m5_seq_pos(s->seq), next; at < c; at = next) {
            next = next_checkpoint(e, s->req, at);
            if (next <= c) gain = next;
        }
        if (gain == 0) continue;
        if (have < 0) have = m5_prefix_probe(e->prefix, r->ids, r->n_prompt);
        if (gain - have >= MIN_GAIN) return true;
    }
    return false;
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
        if (r && r->wait_left == e->n_left && e->status.n_running > 0) r = NULL;
        if (r && better_wait(e, r)) r = NULL;
        if (r) {
            e->queue_head = r->next;
            if (!e->queue_head) e->queue_tail = NULL;
            e->status.n_waiting--;
            e->status.n_running++;
        }
        pthread_mutex_unlock(&e->lock);
        if (!r) return;
        admit(e, idle_slot(e), r);
    }
}

/* The request that came last gives its memory to the others: its state goes to the prompt cache, to disk too where there is one, and it waits in
 * line. False when there is no other. */
static bool preempt(m5_engine *e)
{
    m5_slot *last = NULL;
    for (int i = 0; i < e->n_parallel; i++)
        if (e->slots[i].req && (!last || e->slots[i].admitted > last->admitted)) last = &e->slots[i];
    m5_request *r = last->req;
    if (!put_back(e, r)) return false;
    m5_log(M5_LOG_WARN, "memory for sequences is used up: a request of %d tokens waits for another to end", last->n_ids);
    keep_state(e, last, true);
    m5_store_flush(e->store); /* the pages are free only when they are written */
    m5_store_reap(e->store);
    m5_seq_reset(last->seq);
    m5_buf_clear(&r->certain); /* told already */
    r->ids = last->ids;
    r->n_ids = last->n_ids;
    r->cap_ids = last->cap_ids;
    m5_spec_end(&last->spec);
    *last = (m5_slot){.seq = last->seq, .spec = last->spec};
    pthread_mutex_lock(&e->lock);
    e->status.n_preempted++;
    pthread_mutex_unlock(&e->lock);
    return true;
}

/* ---- packing ---- */

static int pending(const m5_slot *s)
{
    return s->n_ids - m5_seq_pos(s->seq);
}

static void add_run(m5_engine *e, int *n_run, m5_slot *s, int n_tok)
{
    m5_run r = {.seq = s->seq, .ids = s->ids + m5_seq_pos(s->seq), .n_tok = n_tok, .n_out = n_tok == pending(s)};
    if (s->spec.n_draft > 0) { /* behind the tokens that are certain, where the drawn ones go later */
        memcpy(s->ids + s->n_ids, s->spec.draft, (size_t)s->spec.n_draft * sizeof *s->ids);
        r.n_tok += s->spec.n_draft;
        r.n_out += s->spec.n_draft;
        r.hold = true;
    }
    e->run_slot[*n_run] = s;
    e->runs[(*n_run)++] = r;
}

/* Rows of one answer in a step, at most: its drawn token, or many that its rules forced. */
static int most_rows(const m5_engine *e)
{
    return 1 + e->prefill_chunk / e->n_parallel;
}

/* Asks for drafts for every answer whose next token is drawn in this step. Returns how many answers there are. */
static int draft(m5_engine *e)
{
    int n = 0;
    bool prompts = false;
    for (int i = 0; i < e->n_parallel; i++) {
        m5_slot *s = &e->slots[i];
        s->spec.n_draft = 0;
        prompts |= s->req && !s->req->started;
        if (!s->req || !s->req->started) continue;
        const m5_request *r = s->req;
        int rows = pending(s), room = s->cap_ids - s->n_ids, hold = e->spec.max_hold - rows;
        int of_use = r->control.next ? e->n_ctx - s->n_ids - 1 : r->max_tokens - r->n_counted - 1; /* uncounted tokens do not end at max_tokens */
        if (room > of_use) room = of_use;
        if (room > hold) room = hold;
        if (rows > most_rows(e) || !m5_seq_holds(s->seq)) room = 0; /* nothing is drawn behind a part of them */
        e->asks[n++] = (m5_spec_ask){.q = &s->spec, .seq = s->seq, .ids = s->ids, .n_ids = s->n_ids, .n_rows = rows, .room = room};
    }
    if (n) m5_spec_propose(&e->spec, e->asks, n, prompts ? SLICE_BESIDE_US : 0, e->us_per_row, e->logits);
    return n;
}

/* Memory is short: requests that run go on without drafts, and what drafts needed is free. False when there was nothing to free. */
static bool drop_drafts(m5_engine *e)
{
    bool any = false;
    for (int i = 0; i < e->n_parallel; i++) {
        m5_slot *s = &e->slots[i];
        any |= s->spec.n_draft > 0;
        s->spec.n_draft = 0;
        if (s->seq) any |= m5_seq_drop_hold(s->seq);
    }
    return any;
}

/* Prompt rows for this step. */
static int slice_rows(const m5_engine *e, int n_decode)
{
    double target = n_decode ? SLICE_BESIDE_US : SLICE_ALONE_US;
    double n = e->us_per_row > 0 ? target / e->us_per_row : FIRST_SLICE;
    if (n < MIN_SLICE) n = MIN_SLICE;
    return n < e->prefill_chunk ? (int)n : e->prefill_chunk;
}

/* Decoding sequences first; then the prompts, oldest first, each with an equal share of the slice so that a short one is not stuck behind
 * a long one. What a share leaves over goes on to the next. Returns the number of runs. */
static int pack(m5_engine *e, int *n_prompt_rows)
{
    int n_run = 0, n_prefill = 0, n_beside = 0;
    int most = most_rows(e);
    for (int i = 0; i < e->n_parallel; i++) {
        m5_slot *s = &e->slots[i];
        if (!s->req) continue;
        if (s->req->started) {
            int n = pending(s) < most ? pending(s) : most;
            add_run(e, &n_run, s, n);
            n_beside += n - 1;
        } else {
            n_prefill++;
        }
    }
    int rows = slice_rows(e, n_run);
    if (rows > e->prefill_chunk - n_beside) rows = e->prefill_chunk - n_beside;
    int left = rows;
    uint64_t done = 0;
    for (int k = n_prefill; k > 0 && left > 0; k--) {
        m5_slot *next = NULL;
        for (int i = 0; i < e->n_parallel; i++) {
            m5_slot *s = &e->slots[i];
            if (s->req && !s->req->started && s->admitted > done && (!next || s->admitted < next->admitted)) next = s;
        }
        int share = (left + k - 1) / k, want = pending(next), pos = m5_seq_pos(next->seq), stop = next_checkpoint(e, next->req, pos) - pos;
        if (stop < want) want = stop; /* the recurrent row can only be copied where a forward ends */
        add_run(e, &n_run, next, want < share ? want : share);
        left -= want < share ? want : share;
        done = next->admitted;
    }
    *n_prompt_rows = rows - left;
    return n_run;
}

/* One forward; when memory is short, again with less kept state. run_err says which runs failed; the logits stand at each run's own row. Returns
 * M5_ERR_NOMEM when the memory of sequences does not hold all runs together; nothing has happened then. */
static int forward(m5_engine *e, int n_run)
{
    m5_error why = {0};
    size_t n_vocab = (size_t)m5_model_config(e->model)->n_vocab;
    e->hidden_valid = true;
    int rc = m5_model_forward(e->model, e->runs, n_run, e->logits, &why);
    while (rc == M5_ERR_NOMEM && make_room(e)) rc = m5_model_forward(e->model, e->runs, n_run, e->logits, &why);
    for (int i = 0; i < n_run; i++) e->run_err[i] = (m5_error){0};
    if (!rc || (rc == M5_ERR_NOMEM && n_run > 1)) return rc;
    if (n_run == 1) {
        e->run_err[0] = why;
        e->run_err[0].code = rc;
        return rc;
    }
    e->hidden_valid = false;
    /* One by one, so that only the requests that cannot go on fail. */
    size_t row = 0;
    for (int i = 0; i < n_run; i++) {
        rc = m5_model_forward(e->model, &e->runs[i], 1, e->logits + row * n_vocab, &e->run_err[i]);
        e->run_err[i].code = rc;
        row += (size_t)e->runs[i].n_out;
    }
    return 0;
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

/* Ends a run whose held-back text went out already with its last token. */
static void end_at_stop(m5_engine *e, m5_slot *s, int hit)
{
    m5_request *r = s->req;
    m5_buf_clear(&r->certain);
    leave_slot(e, s, true);
    finish(r, M5_FINISH_STOP, -1, m5_stop_string(r->stop, hit), NULL);
}

/* The next token of a sequence, drawn or forced: counted, told, and the run ended when it was the last. False when the run has ended. *dropped: it
 * was an end token that the request's rules do not take for the end. */
static bool settle(m5_engine *e, m5_slot *s, const m5_sample_out *tok, bool forced, bool *dropped)
{
    m5_request *r = s->req;
    m5_error why = {0};
    bool end = !r->ignore_eos && is_end(e, tok->id);
    *dropped = end;
    unsigned how = r->control.accept ? r->control.accept(r->control.ctx, tok->id, end) : 0;
    r->n_generated++;
    if (!(how & M5_ACCEPT_UNCOUNTED)) r->n_counted++;
    pthread_mutex_lock(&e->lock);
    e->status.n_generated_tokens++;
    pthread_mutex_unlock(&e->lock);
    if (end && !(how & M5_ACCEPT_GO_ON)) {
        end_run(e, s, M5_FINISH_STOP, tok->id);
        return false;
    }
    if (!end) {
        s->ids[s->n_ids++] = tok->id;
        m5_buf_clear(&r->decoded);
        m5_buf_clear(&r->certain);
        int rc = r->decoder ? m5_decoder_push(r->decoder, tok->id, &r->decoded) : 0, hit = -1;
        if (!rc && how & M5_ACCEPT_NO_STOP)
            m5_buf_append(&r->certain, r->decoded.p, r->decoded.n);
        else if (!rc)
            hit = m5_stop_push(r->stop, r->decoded.p, r->decoded.n, &r->certain);
        if (rc || r->decoded.failed || r->certain.failed) {
            m5_error_set(&why, rc ? rc : M5_ERR_NOMEM, "the text of token %d could not be made: %s", (int)tok->id,
                         m5_err_name(rc ? rc : M5_ERR_NOMEM));
            fail_run(e, s, &why);
            return false;
        }
        m5_event ev = {
            .kind = M5_EVENT_TOKEN, .id = tok->id, .forced = forced, .text = r->certain.p ? r->certain.p : "", .n_text = r->certain.n, .stop_id = -1};
        ev.logprob = tok->logprob;
        ev.top = tok->top;
        ev.n_top = tok->n_top;
        deliver(r, &ev);
        if (hit >= 0) {
            end_at_stop(e, s, hit);
            return false;
        }
    }
    if (r->n_counted >= r->max_tokens || s->n_ids >= e->n_ctx) {
        end_run(e, s, M5_FINISH_LENGTH, -1);
        return false;
    }
    return true;
}

/* Asks the request's rules what the next position may hold, and puts what they force. Afterwards r->masked says whether r->mask bounds the next draw.
 * Sets *n_forced to the tokens put. False when the run has ended. */
static bool consult(m5_engine *e, m5_slot *s, int *n_forced)
{
    m5_request *r = s->req;
    bool dropped;
    *n_forced = 0;
    r->masked = false;
    while (r->control.next) {
        m5_sample_out tok = {.id = -1};
        m5_control_say say = r->control.next(r->control.ctx, e->n_ctx - s->n_ids, r->mask, &tok.id);
        if (say == M5_CONTROL_END) {
            end_run(e, s, tok.id < 0 ? M5_FINISH_LOOP : M5_FINISH_STOP, -1);
            return false;
        }
        r->masked = say == M5_CONTROL_MASK;
        if (say != M5_CONTROL_FORCE) break;
        if (!settle(e, s, &tok, true, &dropped)) return false;
        if (!dropped) ++*n_forced;
    }
    return true;
}

/* Draws the next token of a sequence from its logits and tells it. False when it was the last: the run has ended. */
static bool advance_one(m5_engine *e, m5_slot *s, const float *logits)
{
    m5_request *r = s->req;
    m5_error why = {0};
    int n_forced;
    bool dropped;
    m5_sample_out drawn;
    m5_sample_in in = {.params = &r->sampling, .logits = logits, .ids = s->ids, .n_ids = (size_t)s->n_ids, .n_prompt = (size_t)r->n_prompt};
    if (r->masked) in.mask = r->mask;
    if (m5_sampler_draw(e->sampler, &in, &drawn, &why)) {
        fail_run(e, s, &why);
        return false;
    }
    if (!settle(e, s, &drawn, false, &dropped) || !consult(e, s, &n_forced)) return false;
    if (dropped && n_forced == 0) { /* nothing came instead */
        end_run(e, s, M5_FINISH_STOP, drawn.id);
        return false;
    }
    return true;
}

/* Tokens are drawn and forced as long as those before them are the drafted ones; row j of the logits stands behind j drafts. */
static void check_drafts(m5_engine *e, m5_slot *s, const float *logits)
{
    m5_spec_seq *q = &s->spec;
    m5_request *r = s->req; /* read below only while the run lives */
    const size_t n_vocab = (size_t)m5_model_config(e->model)->n_vocab;
    const int first = s->n_ids, n_certain = first - m5_seq_pos(s->seq);
    int n_draft = q->n_draft, source = (int)q->source, n = 0;
    s->held = n_draft > 0;
    r->n_draft[source] += n_draft;
    e->n_draft_by[source] += (uint64_t)n_draft;
    for (;;) {
        s->n_stand = n_certain + n;
        if (!advance_one(e, s, logits + (size_t)n * n_vocab)) break;
        if (atomic_load(&r->cancelled)) break; /* it has asked for no more */
        int now = n;
        while (now < n_draft && first + now < s->n_ids && s->ids[first + now] == q->draft[now]) now++;
        r->n_draft_accepted[source] += now - n;
        e->n_draft_accepted_by[source] += (uint64_t)(now - n);
        n = now;
        if (first + n < s->n_ids) break;
    }
    if (!s->req) return;
    s->n_stand = n_certain + n;
    commit_rows(s);
    m5_spec_checked(&e->spec, q, n);
}

/* Goes on with a sequence from the logits of its last rows: one, and one for each draft. */
static void advance(m5_engine *e, m5_slot *s, const float *logits)
{
    m5_request *r = s->req;
    int n_forced;
    if (!r->started) {
        start(e, s);
        if (r->max_tokens == 0) {
            end_run(e, s, M5_FINISH_LENGTH, -1);
            return;
        }
        if (!consult(e, s, &n_forced) || n_forced) return;
    }
    check_drafts(e, s, logits);
}

/* ---- the loop ---- */

/* After a forward: a prompt that stands at one of its places keeps a checkpoint. */
static void keep_checkpoint(m5_engine *e, m5_slot *s)
{
    int pos = m5_seq_pos(s->seq), coarse = 4 * e->checkpoint_every;
    if (s->req->started || pos >= s->n_ids || next_checkpoint(e, s->req, pos - 1) != pos) return;
    bool mark = pos % coarse == 0;
    for (int i = 0; i < s->req->n_marks; i++) mark |= s->req->marks[i] == pos;
    keep_state(e, s, mark);
}

static void publish(m5_engine *e)
{
    m5_prefix_stats st;
    m5_store_stats disk;
    m5_store_reap(e->store);
    m5_prefix_get_stats(e->prefix, &st);
    m5_store_get_stats(e->store, &disk);
    pthread_mutex_lock(&e->lock);
    m5_engine_status *out = &e->status;
    out->disk_bytes = disk.bytes;
    out->n_disk_files = disk.n_files;
    out->n_disk_written_bytes = disk.n_written_bytes;
    out->n_disk_loaded = disk.n_loaded;
    out->n_disk_loaded_bytes = disk.n_loaded_bytes;
    out->n_disk_bad = disk.n_bad;
    out->n_disk_evicted = disk.n_evicted;
    out->n_disk_skipped = disk.n_skipped;
    out->last_step_us = m5_time_us();
    out->n_steps++;
    out->n_state_copies = m5_model_state_copies(e->model);
    for (int k = 0; k < M5_SPEC_SOURCES; k++) {
        out->n_draft += e->n_draft_by[k] - out->n_draft_by[k];
        out->n_draft_accepted += e->n_draft_accepted_by[k] - out->n_draft_accepted_by[k];
        out->n_draft_by[k] = e->n_draft_by[k];
        out->n_draft_accepted_by[k] = e->n_draft_accepted_by[k];
    }
    out->cache_bytes = st.bytes;
    out->n_cache_nodes = st.n_node;
    out->n_cache_checkpoints = st.n_checkpoint;
    out->n_cache_lookups = st.n_lookup;
    out->n_cache_hits = st.n_hit;
    out->n_cache_hit_tokens = st.n_hit_tokens;
    out->n_cache_evicted_bytes = st.n_evicted_bytes;
    pthread_mutex_unlock(&e->lock);
}

/* What follows from run i of the forward: its logits and hidden states, those only if the forward was one for all runs. */
static void go_on(m5_engine *e, int i, const float *logits, const float *hidden)
{
    m5_slot *s = e->run_slot[i];
    const m5_run *r = &e->runs[i];
    const int pos = (int)(r->ids - s->ids); /* before the forward */
    if (e->run_err[i].code) {
        fail_run(e, s, &e->run_err[i]);
        return;
    }
    bool prompt = !s->req->started;
    if (prompt) m5_spec_saw(&e->spec, &s->spec, s->seq, s->ids, s->n_ids, pos, r->n_tok, hidden, true);
    keep_checkpoint(e, s);
    if (r->n_out) advance(e, s, logits);
    if (!prompt && s->req) m5_spec_saw(&e->spec, &s->spec, s->seq, s->ids, s->n_ids, pos, m5_seq_pos(s->seq) - pos, hidden, false);
}

static void step(m5_engine *e)
{
    int n_prompt_rows = 0, n_decode = draft(e), n_run = pack(e, &n_prompt_rows);
    if (!n_run) return;
    bool whole = n_prompt_rows == 0; /* the step's time is that of its answers */
    uint64_t t0 = m5_time_us();
    while (forward(e, n_run) == M5_ERR_NOMEM && (drop_drafts(e) || preempt(e))) {
        n_run = pack(e, &n_prompt_rows);
        whole = false;
    }
    uint64_t t1 = m5_time_us();
    int n_rows = 0;
    for (int i = 0; i < n_run; i++) n_rows += e->runs[i].n_tok;
    if (n_prompt_rows >= MIN_SLICE) {
        double now = (double)(t1 - t0) / n_rows;
        e->us_per_row = e->us_per_row > 0 ? 0.7 * e->us_per_row + 0.3 * now : now;
    }
    const float *logits = e->logits, *hidden = e->hidden_valid ? m5_model_hidden_all(e->model) : NULL;
    for (int i = 0; i < n_run; i++) {
        go_on(e, i, logits, hidden);
        logits += (size_t)e->runs[i].n_out * (size_t)m5_model_config(e->model)->n_vocab;
        if (hidden) hidden += (size_t)e->runs[i].n_tok * (size_t)m5_model_config(e->model)->n_embd;
    }
    if (n_decode) m5_spec_stepped(&e->spec, e->asks, n_decode, n_rows, (double)(t1 - t0), !whole);
    publish(e);
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
