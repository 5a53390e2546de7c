/* SPDX-License-Identifier: Apache-2.0 */
/* The pipeline of one answer; see answer.h. May touch: base, text, m5.h.
 *
 * The engine tells of a token twice: `accept` before anything else, and the event. All work is done in accept, because what may come next depends on
 * it; what came out waits in a queue for the event, which brings the logprobs. The engine's own text is not used: it does not know what is thought
 * and what is answer. */
#include "server/answer.h"

#include "base/mem.h"
#include "base/task.h"
#include "text/loop.h"
#include "text/stop.h"

#include <string.h>

typedef struct piece {
    m5_delta_kind kind;
    int call;
    size_t at, n; /* in text */
} piece;

struct m5_answer {
    const m5_answer_plan *plan;
    m5_delta_fn fn;
    void *ctx;

    m5_decoder *decoder;
    m5_think *think;
    m5_toolcall *calls; /* NULL = none */
    m5_stop *stop;
    m5_loop *loop;           /* NULL = not looked for */
    m5_matcher *matchers[2]; /* those the answer still fits; made when the grammar begins */
    int n_matcher;
    uint64_t *other_mask; /* of the second one */
    bool matched;         /* they were made */
    m5_buf decoded;       /* text of one token */
    m5_buf thought;       /* the open thought, kept where calls may hide in it */

    m5_ids queue; /* tokens to be put next */
    size_t n_put;
    bool queue_matched;     /* the grammar wants them */
    bool forcing, matching; /* the next accepted token was put by the queue; belongs to the grammar */

    int n_tok; /* accepted */
    int n_call;
    int last_part;  /* of the text so far: m5_part, -1 = none */
    bool in_answer; /* the last token counts as answer */
    bool cut;       /* an end token came inside a thought */
    bool stopped;   /* a stop string was found */
    bool hinted;
    int loop_period;
    m5_error error;

    piece *pieces; /* [cap_piece] waiting for the event */
    int n_piece, cap_piece;
    m5_buf text; /* of the pieces */
};

/* ---- pieces ---- */

static void fail(m5_answer *a, int code, const char *what)
{
    if (!a->error.code) m5_error_set(&a->error, code, "%s", what);
}

static void put(m5_answer *a, m5_delta_kind kind, int call, m5_slice text)
{
    if (text.n == 0 && kind != M5_DELTA_CALL) return;
    /* A piece that goes on where the last one ended becomes a part of it. */
    piece *last = a->n_piece ? &a->pieces[a->n_piece - 1] : NULL;
    if (last && last->kind == kind && last->call == call && kind != M5_DELTA_CALL) {
        m5_buf_slice(&a->text, text);
        last->n += text.n;
    } else {
        if (a->n_piece == a->cap_piece) {
            int cap = a->cap_piece ? 2 * a->cap_piece : 8;
            piece *p = m5_realloc(M5_MEM_REQUEST, a->pieces, (size_t)cap * sizeof *p);
            if (!p) {
                fail(a, M5_ERR_NOMEM, "out of memory for an answer");
                return;
            }
            a->pieces = p;
            a->cap_piece = cap;
        }
        a->pieces[a->n_piece++] = (piece){kind, call, a->text.n, text.n};
        m5_buf_slice(&a->text, text);
    }
    if (a->text.failed) fail(a, M5_ERR_NOMEM, "out of memory for an answer");
}

static void put_content(m5_answer *a, m5_slice text)
{
    if (a->stopped || text.n == 0) return;
    m5_buf certain = {0};
    a->stopped = m5_stop_push(a->stop, text.p, text.n, &certain) >= 0;
    if (certain.n) put(a, M5_DELTA_TEXT, 0, m5_buf_view(&certain));
    if (certain.failed) fail(a, M5_ERR_NOMEM, "out of memory for an answer");
    m5_buf_free(&certain);
}

static void on_call(void *ctx, const m5_toolcall_event *ev)
{
    m5_answer *a = ctx;
    switch (ev->kind) {
    case M5_TOOLCALL_TEXT: put_content(a, ev->text); break;
    case M5_TOOLCALL_BEGIN:
        a->n_call++;
        put(a, M5_DELTA_CALL, ev->index, ev->text);
        break;
    case M5_TOOLCALL_ARGS: put(a, M5_DELTA_ARGUMENTS, ev->index, ev->text); break;
    case M5_TOOLCALL_END: break;
    }
}

/* Tags around a thought that is told in the content. */
static void put_tags(m5_answer *a, m5_part part)
{
    const m5_chat_thought *t = a->plan->wire->thought;
    bool reasoning = part == M5_PART_REASONING;
    if (a->last_part == (int)part || !t) return;
    if (reasoning) {
        bool prompt_has_it = a->last_part < 0 && a->plan->think.inside;
        if (!prompt_has_it) {
            put(a, M5_DELTA_TEXT, 0, m5_slice_of(t->open));
            put(a, M5_DELTA_TEXT, 0, m5_slice_of("\n"));
        }
    } else if (a->last_part == M5_PART_REASONING) {
        put(a, M5_DELTA_TEXT, 0, m5_slice_of(t->before));
        put(a, M5_DELTA_TEXT, 0, m5_slice_of(t->close));
        put(a, M5_DELTA_TEXT, 0, m5_slice_of(t->after));
    }
}

static void on_part(void *ctx, m5_part part, m5_slice text)
{
    m5_answer *a = ctx;
    m5_reasoning how = a->plan->reasoning;
    if (how == M5_REASONING_TEXT || how == M5_REASONING_BOTH) put_tags(a, part);
    a->last_part = (int)part;
    if (part == M5_PART_REASONING) {
        if (a->calls) m5_buf_slice(&a->thought, text);
        if (how == M5_REASONING_FIELD || how == M5_REASONING_BOTH) put(a, M5_DELTA_REASONING, 0, text);
        if (how == M5_REASONING_TEXT || how == M5_REASONING_BOTH) put(a, M5_DELTA_TEXT, 0, text);
        return;
    }
    m5_buf_clear(&a->thought);
    if (!a->calls)
        put_content(a, text);
    else if (m5_toolcall_push(a->calls, text.p, text.n))
        fail(a, M5_ERR_NOMEM, "out of memory for a tool call");
}

/* ---- calls that were left in a thought ---- */

typedef struct hidden_calls {
    m5_answer *a;
    int n, first; /* calls seen; the first one behind the last text */
    bool replay;  /* second reading: hand them on */
} hidden_calls;

static void on_hidden(void *ctx, const m5_toolcall_event *ev)
{
    hidden_calls *h = ctx;
    if (ev->kind == M5_TOOLCALL_BEGIN) h->n++;
    if (!h->replay) {
        bool blank = true;
        for (size_t i = 0; i < ev->text.n; i++) blank &= ev->text.p[i] == ' ' || ev->text.p[i] == '\n';
        if ((ev->kind == M5_TOOLCALL_TEXT && !blank) || (ev->kind == M5_TOOLCALL_END && !ev->complete)) h->first = h->n;
    } else if (ev->kind != M5_TOOLCALL_TEXT && ev->index >= h->first) {
        m5_toolcall_event moved = *ev;
        moved.index += h->a->n_call - (ev->kind == M5_TOOLCALL_BEGIN ? 0 : 1) - ev->index;
        on_call(h->a, &moved);
    }
}

static int read_hidden(m5_answer *a, hidden_calls *h)
{
    m5_toolcall *p = NULL;
    m5_toolcall_args args = {
        .format = a->plan->wire->format, .tools = a->plan->tools, .parallel = a->plan->parallel_calls, .fn = on_hidden, .arg = h};
    h->n = 0;
    int rc = m5_toolcall_new(&p, &args, NULL);
    if (!rc) rc = m5_toolcall_push(p, a->thought.p, a->thought.n);
    if (!rc) rc = m5_toolcall_finish(p);
    m5_toolcall_free(p);
    return rc;
}

/* Some models call a tool without closing their thought, and end. Whole calls at the very end of such a thought are real ones. */
static bool take_hidden_calls(m5_answer *a)
{
    hidden_calls h = {.a = a};
    if (!a->calls || a->thought.n == 0 || a->n_call > 0 || read_hidden(a, &h) || h.first >= h.n) return false;
    h.replay = true;
    if (read_hidden(a, &h)) fail(a, M5_ERR_NOMEM, "out of memory for a tool call");
    return true;
}

/* ---- what came ---- */

/* Text that became certain with the token. A tag's token may come out behind the rest of a broken character; that rest belongs to what stands before
 * the tag. */
static m5_slice decode(m5_answer *a, int32_t id)
{
    const m5_wire *w = a->plan->wire;
    m5_buf_clear(&a->decoded);
    if (!m5_wire_shows(w, id)) return (m5_slice){"", 0};
    if (m5_decoder_push(a->decoder, id, &a->decoded) || a->decoded.failed) fail(a, M5_ERR_NOMEM, "the text of a token could not be made");
    m5_slice all = m5_buf_view(&a->decoded), own = m5_tokenizer_piece(w->tok, id);
    bool tag = id >= 0 && (id == w->open_id || id == w->close_id);
    if (!tag || all.n <= own.n || !m5_slice_ends(all, own)) return all;
    m5_think_push(a->think, -1, (m5_slice){all.p, all.n - own.n}, true);
    return (m5_slice){all.p + all.n - own.n, own.n};
}

static void queue_ids(m5_answer *a, const m5_ids *ids)
{
    if (a->n_put == a->queue.n) a->queue.n = a->n_put = 0;
    a->queue_matched = false;
    for (size_t i = 0; i < ids->n; i++)
        if (m5_ids_push(&a->queue, ids->p[i])) fail(a, M5_ERR_NOMEM, "out of memory for an answer");
}

static void drop_matcher(m5_answer *a, int i)
{
    m5_matcher_free(a->matchers[i]);
    a->n_matcher--;
    if (i < a->n_matcher) a->matchers[i] = a->matchers[a->n_matcher];
    a->matchers[a->n_matcher] = NULL;
}

/* Of several forms those that the token does not fit are out. */
static void match(m5_answer *a, int32_t id)
{
    m5_error why = {0};
    for (int i = a->n_matcher - 1; i >= 0; i--) {
        int rc = m5_matcher_accept(a->matchers[i], id, &why);
        if (rc && (rc != M5_ERR_ARG || a->n_matcher == 1)) fail(a, rc, why.text);
        if (rc) drop_matcher(a, i);
    }
}

static unsigned accept(void *ctx, int32_t id, bool is_end)
{
    m5_answer *a = ctx;
    const m5_wire *w = a->plan->wire;
    const unsigned free_of_charge = a->plan->limit < 0 ? M5_ACCEPT_UNCOUNTED : 0;
    bool was_inside = m5_think_inside(a->think), forced = a->forcing, matching = a->matching;
    a->n_tok++;
    a->forcing = a->matching = a->in_answer = false;
    if (is_end) {
        if (!was_inside || take_hidden_calls(a)) return 0;
        a->cut = true;
        return M5_ACCEPT_GO_ON | free_of_charge;
    }
    m5_slice text = decode(a, id);
    bool aside = m5_think_push(a->think, id, text, forced && was_inside);
    bool inside = m5_think_inside(a->think);
    a->in_answer = !aside && !inside;
    if (id == w->open_id && aside && !inside && w->open_rest.n && a->plan->n_grammar) {
        queue_ids(a, &w->open_rest); /* a grammar waits behind the thought; no other kind of block may come before it */
    } else if (matching && !inside) {
        match(a, id);
    }
    if (was_inside && !inside && !forced && a->plan->n_grammar && id == w->close_id) queue_ids(a, &w->after);
    if (a->in_answer && a->loop && !a->loop_period) a->loop_period = m5_loop_push(a->loop, id, text);
    return aside ? free_of_charge : 0;
}

/* ---- what may come ---- */

static int room(const m5_answer *a, int n_room)
{
    int left = a->plan->limit < 0 ? n_room : a->plan->limit - a->n_tok;
    return left < n_room ? left : n_room;
}

/* The thought ends now: its closing tag is put, and a typed opening of the answer where one is wanted and nothing forbids it. */
static void close_thought(m5_answer *a, m5_think_end why, int n_room)
{
    const m5_answer_plan *p = a->plan;
    const m5_ids *ids = m5_think_at_line_start(a->think) ? &p->wire->close_bare : &p->wire->close_line;
    a->queue.n = a->n_put = 0;
    m5_think_close(a->think, why);
    queue_ids(a, ids);
    a->cut = false;
    bool room_for_it = (size_t)room(a, n_room) > ids->n + 4 * p->hint.n;
    if (p->hint.n == 0 || (why != M5_THINK_LOOP && why != M5_THINK_BUDGET) || a->hinted || !room_for_it) return;
    queue_ids(a, &p->hint);
    a->hinted = true;
}

static m5_control_say mask_one(const m5_answer *a, uint64_t *mask, int32_t id, bool only)
{
    size_t n_words = ((size_t)a->plan->n_vocab + 63) / 64;
    memset(mask, only ? 0 : 0xFF, n_words * sizeof *mask);
    mask[id / 64] ^= (uint64_t)1 << (id % 64);
    return M5_CONTROL_MASK;
}

/* The head of the queue. Where its logprob is asked for, it is drawn from a mask that holds nothing else: the same token either way. */
static m5_control_say put_queued(m5_answer *a, uint64_t *mask, int32_t *forced)
{
    int32_t id = a->queue.p[a->n_put++];
    a->forcing = true;
    a->matching = a->queue_matched;
    if (a->plan->logprobs && a->queue_matched) return mask_one(a, mask, id, true);
    *forced = id;
    return M5_CONTROL_FORCE;
}

static int begin_matching(m5_answer *a, m5_error *err)
{
    const m5_answer_plan *p = a->plan;
    a->matched = true;
    for (int i = 0; i < p->n_grammar; i++) {
        int rc = m5_matcher_new(&a->matchers[i], p->grammars[i], p->vocab, err);
        if (rc) return rc;
        a->n_matcher++;
    }
    return 0;
}

/* What any of the matchers allows. */
static int union_mask(m5_answer *a, uint64_t *mask, m5_error *err)
{
    size_t n_words = ((size_t)a->plan->n_vocab + 63) / 64;
    int rc = m5_matcher_mask(a->matchers[0], mask, n_words, err);
    if (rc || a->n_matcher < 2) return rc;
    if (!a->other_mask) a->other_mask = m5_calloc(M5_MEM_REQUEST, n_words, sizeof *mask);
    if (!a->other_mask) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for a token mask");
    rc = m5_matcher_mask(a->matchers[1], a->other_mask, n_words, err);
    for (size_t i = 0; i < n_words && !rc; i++) mask[i] |= a->other_mask[i];
    return rc;
}

/* The tokens that must come next go into the queue. Returns how many, or an error. */
static int jump(m5_answer *a, m5_error *err)
{
    enum { CAP_JUMP = 256 };
    int32_t ids[CAP_JUMP];
    if (a->n_matcher != 1) return 0;
    int n = m5_matcher_forced(a->matchers[0], a->plan->wire->tok, ids, CAP_JUMP, err);
    if (n <= 0) return n;
    queue_ids(a, &(m5_ids){ids, (size_t)n, (size_t)n});
    a->queue_matched = true;
    return n;
}

/* Before its answer begins, a model that opens its thoughts itself may do so. */
static bool may_open(const m5_answer *a)
{
    m5_think_stats st;
    m5_think_get_stats(a->think, &st);
    return a->plan->think.close && a->plan->think.open_id >= 0 && st.n_block == 0 && m5_think_answer_empty(a->think) &&
           m5_think_forbidden(a->think) < 0;
}

static m5_control_say next_by_grammar(m5_answer *a, uint64_t *mask, int32_t *forced)
{
    m5_error why = {0};
    bool complete = true, open = may_open(a);
    int rc = a->matched ? 0 : begin_matching(a, &why);
    *forced = 0;
    for (int i = 0; i < a->n_matcher && !rc; i++) complete &= m5_matcher_is_complete(a->matchers[i]);
    if (!rc && complete) return M5_CONTROL_END;
    int n = rc || open ? 0 : jump(a, &why);
    if (n > 0) return put_queued(a, mask, forced);
    if (!rc) rc = n < 0 ? n : union_mask(a, mask, &why);
    if (rc) {
        fail(a, rc, why.text);
        return M5_CONTROL_END;
    }
    int32_t id = a->plan->think.open_id;
    if (open) mask[id / 64] |= (uint64_t)1 << (id % 64);
    a->matching = true;
    return M5_CONTROL_MASK;
}

static m5_control_say next(void *ctx, int n_room, uint64_t *mask, int32_t *forced)
{
    m5_answer *a = ctx;
    *forced = 0;
    if (a->error.code) return M5_CONTROL_END;
    if (a->n_put < a->queue.n) return put_queued(a, mask, forced);
    if (a->stopped || (a->calls && m5_toolcall_done(a->calls))) return M5_CONTROL_END;
    if (a->loop_period) {
        *forced = -1;
        return M5_CONTROL_END;
    }
    if (m5_think_inside(a->think)) {
        m5_think_end why = a->cut ? M5_THINK_STOP : m5_think_due(a->think, room(a, n_room));
        if (why == M5_THINK_OPEN) return M5_CONTROL_FREE;
        close_thought(a, why, n_room);
        return put_queued(a, mask, forced);
    }
    if (a->plan->n_grammar) return next_by_grammar(a, mask, forced);
    int32_t not_this = m5_think_forbidden(a->think);
    return not_this >= 0 ? mask_one(a, mask, not_this, false) : M5_CONTROL_FREE;
}

/* ---- events ---- */

/* Hands the waiting pieces on. token: the one behind them, when its logprobs are wanted. */
static void deliver(m5_answer *a, const m5_event *token)
{
    for (int i = 0; i < a->n_piece; i++) {
        const piece *p = &a->pieces[i];
        char id[M5_CALL_ID_BYTES];
        m5_delta d = {.kind = p->kind, .call = p->call, .text = {a->text.p ? a->text.p + p->at : "", p->n}};
        if (p->kind == M5_DELTA_CALL) {
            /* Mistral's templates take exactly nine letters and digits. */
            static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789ab";
            bool nine = m5_toolcall_format_kind(a->plan->wire->format) == M5_TOOLCALL_MISTRAL;
            unsigned char r[24];
            size_t n = nine ? 9 : sizeof r, at = nine ? 0 : 5;
            m5_random_bytes(r, sizeof r);
            if (!nine) memcpy(id, "call_", 5);
            for (size_t k = 0; k < n; k++) id[at + k] = letters[r[k] % 64];
            id[at + n] = 0;
            d.call_id = id;
        }
        if (p->kind == M5_DELTA_TEXT) {
            d.token = token;
            token = NULL;
        }
        a->fn(a->ctx, &d);
    }
    if (token) a->fn(a->ctx, &(m5_delta){.kind = M5_DELTA_TEXT, .text = {"", 0}, .token = token});
    a->n_piece = 0;
    m5_buf_clear(&a->text);
}

static void finish(m5_answer *a, const m5_event *ev)
{
    m5_buf tail = {0};
    m5_error late = {0};
    while (a->n_matcher > 0) drop_matcher(a, a->n_matcher - 1);
    m5_buf_clear(&a->decoded);
    m5_decoder_flush(a->decoder, &a->decoded);
    if (a->decoded.n) m5_think_push(a->think, -1, m5_buf_view(&a->decoded), true);
    if (m5_think_flush(a->think) || (a->calls && m5_toolcall_finish(a->calls))) fail(a, M5_ERR_NOMEM, "out of memory for an answer");
    if (!a->stopped) m5_stop_flush(a->stop, &tail);
    if (tail.n) put(a, M5_DELTA_TEXT, 0, m5_buf_view(&tail));
    m5_buf_free(&tail);
    deliver(a, NULL);
    m5_answer_report report = {.hint = a->hinted ? a->plan->hint_name : NULL, .n_calls = a->n_call, .loop_period = a->loop_period};
    m5_think_get_stats(a->think, &report.think);
    m5_delta d = {.kind = M5_DELTA_FINISH, .text = {"", 0}, .finish = ev->finish, .error = &ev->error, .usage = &ev->usage, .report = &report};
    if (ev->finish == M5_FINISH_LENGTH && a->stopped) d.finish = M5_FINISH_STOP;
    if (a->error.code && ev->finish != M5_FINISH_CANCELLED && ev->finish != M5_FINISH_ERROR) {
        late = a->error;
        d.finish = M5_FINISH_ERROR;
        d.error = &late;
    }
    a->fn(a->ctx, &d);
}

void m5_answer_event(m5_answer *a, const m5_event *ev)
{
    switch (ev->kind) {
    case M5_EVENT_START: a->fn(a->ctx, &(m5_delta){.kind = M5_DELTA_START}); break;
    case M5_EVENT_TOKEN: deliver(a, a->plan->logprobs && a->in_answer ? ev : NULL); break;
    case M5_EVENT_DONE: finish(a, ev); break;
    }
}

m5_control m5_answer_control(m5_answer *a)
{
    return (m5_control){a, next, accept};
}

int m5_answer_new(m5_answer **out, const m5_answer_plan *plan, m5_delta_fn fn, void *ctx, m5_error *err)
{
    m5_answer *a = m5_calloc(M5_MEM_REQUEST, 1, sizeof *a);
    *out = NULL;
    if (!a) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for an answer");
    a->plan = plan;
    a->fn = fn;
    a->ctx = ctx;
    a->last_part = -1;
    m5_toolcall_args args = {.format = plan->wire->format, .tools = plan->tools, .parallel = plan->parallel_calls, .fn = on_call, .arg = a};
    int rc = m5_decoder_new(&a->decoder, plan->wire->tok, false, err);
    if (!rc && m5_think_new(&a->think, &plan->think, on_part, a)) rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory for an answer");
    if (!rc && m5_json_len(plan->tools) > 0) rc = m5_toolcall_new(&a->calls, &args, err);
    if (!rc) rc = m5_stop_new(&a->stop, plan->stop, plan->n_stop, err);
    if (!rc && plan->loops && m5_loop_new(&a->loop)) rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory for an answer");
    if (rc) {
        m5_answer_free(a);
        return rc;
    }
    *out = a;
    return 0;
}

void m5_answer_free(m5_answer *a)
{
    if (!a) return;
    m5_decoder_free(a->decoder);
    m5_think_free(a->think);
    m5_toolcall_free(a->calls);
    m5_stop_free(a->stop);
    m5_loop_free(a->loop);
    while (a->n_matcher > 0) drop_matcher(a, a->n_matcher - 1);
    m5_free(a->other_mask);
    m5_ids_free(&a->queue);
    m5_buf_free(&a->decoded);
    m5_buf_free(&a->thought);
    m5_buf_free(&a->text);
    m5_free(a->pieces);
    m5_free(a);
}
