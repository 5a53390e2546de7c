/* SPDX-License-Identifier: Apache-2.0 */
/* Drafts change nothing but speed: tiny random models of all families, every kind of request, every source, lengths 1 to 8, drafts always right,
 * always wrong, wrong at each place in turn and by chance, alone and in a batch with kept state. Compared are all events: ids, log-probabilities,
 * alternatives, forced tokens, text cuts, finish. Then what the choice does with hostile text, and that a step with drafts allocates and copies
 * nothing. */
#include "m5.h"

#include "base/mem.h"
#include "base/task.h"
#include "engine/ngram.h"
#include "engine/spec.h"
#include "engine/spec_cost.h"
#include "model/config.h"
#include "model/state.h"

#include <pthread.h>
#include <stdlib.h>

#include "t.h"

enum { N_KIND = 7, MAX_NEW = 48, N_TOP = 3, MAX_PROMPT = 90 };

/* What one token's event said. */
typedef struct said {
    int32_t id;
    bool forced;
    float logprob;
    m5_token_prob top[N_TOP];
    int n_top;
} said;

/* A rule that is not the same at every position: masks, forced runs, uncounted tokens; it depends on accepted tokens alone. */
typedef struct rule {
    int n_vocab, n_accept;
    uint32_t state;
} rule;

typedef struct job {
    pthread_mutex_t mu;
    pthread_cond_t cv;
    said got[MAX_NEW + 40];
    int n, n_start;
    bool done;
    m5_event end;
    rule rule;
    m5_request *req;
    uint64_t allocs[2];
    int cancel_at;
} job;

static m5_control_say rule_next(void *ctx, int n_room, uint64_t *mask, int32_t *forced)
{
    rule *r = ctx;
    (void)n_room;
    if (r->n_accept >= 40) return M5_CONTROL_END;
    switch (r->state / 7 % 5) {
    case 0: *forced = (int32_t)(r->state % (uint32_t)r->n_vocab); return M5_CONTROL_FORCE;
    case 1:
        for (int i = 0; i < (r->n_vocab + 63) / 64; i++) mask[i] = 0x5555555555555555u;
        return M5_CONTROL_MASK;
    default: return M5_CONTROL_FREE;
    }
}

static unsigned rule_accept(void *ctx, int32_t id, bool is_end)
{
    rule *r = ctx;
    (void)is_end;
    r->n_accept++;
    r->state = r->state * 31 + (uint32_t)id + 1;
    return r->state % 4 == 0 ? M5_ACCEPT_UNCOUNTED : 0;
}

static void on_event(void *ctx, const m5_event *ev)
{
    job *j = ctx;
    pthread_mutex_lock(&j->mu);
    if (ev->kind == M5_EVENT_START) j->n_start++;
    if (ev->kind == M5_EVENT_TOKEN && j->n < MAX_NEW + 40) {
        said *s = &j->got[j->n++];
        memset(s, 0, sizeof *s);
        s->id = ev->id;
        s->forced = ev->forced;
        s->logprob = ev->logprob;
        s->n_top = ev->n_top;
        for (int i = 0; i < ev->n_top && i < N_TOP; i++) s->top[i] = ev->top[i];
        if (j->n == 10) j->allocs[0] = m5_mem_count();
        if (j->n == 40) j->allocs[1] = m5_mem_count();
        if (j->n == j->cancel_at) m5_request_cancel(j->req);
    }
    if (ev->kind == M5_EVENT_DONE) {
        j->done = true;
        j->end = *ev;
        pthread_cond_signal(&j->cv);
    }
    pthread_mutex_unlock(&j->mu);
}

static int32_t prompts[N_KIND][MAX_PROMPT];
static int n_prompt[N_KIND];
static const m5_logit_bias bias[] = {{7, 3.5f}, {11, -100}, {40, 1.25f}};

/* Texts that repeat, so that n-grams find something, with a place in them that differs. */
static void make_prompts(int n_vocab)
{
    for (int i = 0; i < N_KIND; i++) {
        n_prompt[i] = 20 + i * 11;
        for (int k = 0; k < n_prompt[i]; k++) prompts[i][k] = (k % (5 + i) * 13 + i * 3 + (k == 17 ? 1 : 0)) % n_vocab;
    }
}

static void start(m5_engine *e, job *j, int kind, const m5_spec_params *spec, int cancel_at)
{
    m5_error err = {0};
    memset(j, 0, sizeof *j);
    pthread_mutex_init(&j->mu, NULL);
    pthread_cond_init(&j->cv, NULL);
    j->cancel_at = cancel_at;
    m5_gen_params p = {.ids = prompts[kind], .n_ids = (size_t)n_prompt[kind], .max_tokens = MAX_NEW, .ignore_eos = kind != 5, .spec = *spec};
    m5_sampling_default(&p.sampling);
    p.sampling.temperature = kind == 0 || kind == 6 ? 0 : 0.8f;
    p.sampling.seed = (uint64_t)kind * 977;
    if (kind == 2) p.sampling.repetition_penalty = 1.3f, p.sampling.penalty_last_n = -1;
    if (kind == 2) p.sampling.presence_penalty = 0.4f, p.sampling.frequency_penalty = 0.2f;
    if (kind == 3) p.sampling.bias = bias, p.sampling.n_bias = 3;
    if (kind == 3) p.sampling.top_k = 20, p.sampling.top_p = 0.9f, p.sampling.min_p = 0.01f;
    if (kind == 1 || kind == 4 || kind == 6) p.sampling.n_top_logprobs = N_TOP;
    j->rule = (rule){.n_vocab = m5_engine_config(e)->n_vocab, .state = (uint32_t)kind};
    m5_control control = {.ctx = &j->rule, .next = rule_next, .accept = rule_accept};
    if (kind == 4) p.control = &control;
    pthread_mutex_lock(&j->mu);
    int rc = m5_engine_submit(e, &p, on_event, j, &j->req, &err);
    pthread_mutex_unlock(&j->mu);
    T_CHECK(rc == 0, "%s", err.text);
    if (rc) j->done = true;
}

static void wait_for(job *j)
{
    pthread_mutex_lock(&j->mu);
    while (!j->done) pthread_cond_wait(&j->cv, &j->mu);
    pthread_mutex_unlock(&j->mu);
    m5_request_free(j->req);
}

/* Of the engines that are opened. */
static const char *draft_path;
static int exit_layer, n_skip;
static int32_t skip_layers[2];
static double draft_confidence;

static m5_engine *open_engine(const char *path, int n_parallel, bool cache, const char *spec)
{
    m5_engine *e = NULL;
    m5_error err = {0};
    m5_engine_options o = {.model_path = path, .n_ctx = 256, .n_parallel = n_parallel, .n_threads = 2, .prefill_chunk = 32, .no_cache = !cache};
    int rc = m5_spec_parse(spec, &o.spec.sources, &err);
    o.spec.k = M5_SPEC_MAX_K;
    o.draft_model_path = draft_path;
    o.exit_layer = exit_layer;
    o.skip_layers = skip_layers;
    o.n_skip_layers = n_skip;
    o.draft_confidence = draft_confidence;
    if (!rc) rc = m5_engine_open(&e, &o, &err);
    T_CHECK(rc == 0, "%s: %s", path, err.text);
    return e;
}

static long n_compared, n_drafted, n_right;

static void compare(const job *got, const job *want, const char *what, int kind, int k)
{
    bool same = got->n == want->n && memcmp(got->got, want->got, (size_t)want->n * sizeof want->got[0]) == 0;
    T_CHECK(same, "%s, request %d, drafts of %d: other events (%d and %d tokens)", what, kind, k, got->n, want->n);
    T_CHECK(got->end.finish == want->end.finish && got->end.stop_id == want->end.stop_id && got->n_start == want->n_start &&
                got->end.usage.n_generated == want->end.usage.n_generated,
            "%s, request %d, drafts of %d: finish %d and %d", what, kind, k, (int)got->end.finish, (int)want->end.finish);
    n_compared++;
    n_drafted += got->end.usage.n_draft;
    n_right += got->end.usage.n_draft_accepted;
}

static job want[N_KIND], got[N_KIND];

/* Every request at once, with the same drafts. */
static void run_all(m5_engine *e, m5_spec_params spec, const m5_spec_script *script, const char *what)
{
    static m5_spec_script own[N_KIND];
    static int32_t truth[N_KIND][MAX_NEW + 40];
    for (int i = 0; i < N_KIND; i++) {
        if (script) {
            own[i] = *script;
            for (int k = 0; k < want[i].n; k++) truth[i][k] = want[i].got[k].id;
            own[i].ids = truth[i];
            own[i].n_ids = want[i].n;
            spec.script = &own[i];
        }
        start(e, &got[i], i, &spec, 0);
    }
    for (int i = 0; i < N_KIND; i++) {
        wait_for(&got[i]);
        compare(&got[i], &want[i], what, i, spec.k);
        if (script && script->p_right >= 1 && script->wrong_at < 0 && i == 0)
            T_CHECK(got[i].end.usage.n_draft_accepted == got[i].end.usage.n_draft &&
                        got[i].end.usage.n_draft >= MAX_NEW * spec.k / (spec.k + 1) - spec.k,
                    "%s: %d of %d right", what, got[i].end.usage.n_draft_accepted, got[i].end.usage.n_draft);
    }
}

/* Chains of guesses compute their rows again and again: one of exit and skip for each length, and beside others (turn 1) the other; the long ones only
 * for the first families. */
static void test_sources(m5_engine *e, const char *what, int turn, int self_k)
{
    for (int k = 1; k <= 8; k++) {
        for (int s = 0; s < M5_SPEC_SCRIPT; s++) {
            bool self = s == M5_SPEC_EXIT || s == M5_SPEC_SKIP;
            if (self && ((s + k + turn) % 2 || k > self_k)) continue;
            run_all(e, (m5_spec_params){.sources = 1u << s, .k = k, .fixed = true}, NULL, what);
        }
        const m5_spec_params script = {.sources = 1u << M5_SPEC_SCRIPT, .k = k, .fixed = true};
        run_all(e, script, &(m5_spec_script){.p_right = 1, .wrong_at = -1}, what);
        run_all(e, script, &(m5_spec_script){.p_right = 0, .wrong_at = -1}, what);
        run_all(e, script, &(m5_spec_script){.p_right = 0.6, .wrong_at = -1, .seed = (uint64_t)k}, what);
        run_all(e, script, &(m5_spec_script){.p_right = 1, .wrong_at = k - 1}, what);
    }
    run_all(e, (m5_spec_params){.k = 24}, &(m5_spec_script){.p_right = 0.9, .wrong_at = -1}, what);
    run_all(e, (m5_spec_params){0}, NULL, what);
}

static void test_family(const char *path, const char *name, int self_k)
{
    m5_engine *e = open_engine(path, 1, false, "off");
    if (!e) return;
    make_prompts(m5_engine_config(e)->n_vocab);
    for (int i = 0; i < N_KIND; i++) {
        start(e, &want[i], i, &(m5_spec_params){.sources = 0}, 0);
        wait_for(&want[i]);
        T_EQ_INT(want[i].end.usage.n_draft, 0);
        T_CHECK(i == 4 || i == 5 || want[i].n == MAX_NEW, "%s: request %d says %d tokens", name, i, want[i].n);
    }
    T_CHECK(want[4].n > 20, "%s: rules leave %d tokens", name, want[4].n);
    const int n_layer = m5_engine_config(e)->n_layer;
    m5_engine_close(e);
    for (int n = 1; n <= 4; n += 3) {
        char what[80];
        snprintf(what, sizeof what, "%s, %d at once", name, n);
        /* Alone all but the last layer, beside others the usual half; most of the models are too small for the usual list of layers to leave out. */
        exit_layer = n == 1 ? n_layer - 1 : 0;
        n_skip = n_layer < 5;
        skip_layers[0] = n_layer == 2 ? 0 : 1;
        e = open_engine(path, n, n > 1, "auto");
        if (e) test_sources(e, what, n > 1, self_k);
        m5_engine_close(e);
    }
    exit_layer = n_skip = 0;
}

/* Drafts from some of the model's layers belong to "auto" only when a calibration says so, and to a request that names them always. A chain of
 * guesses stops before an unlikely one. */
static void test_self(const char *path)
{
    int n_draft[4], n_all = 0;
    for (int i = 0; i < 4; i++) { /* never stop, at last always */
        draft_confidence = i == 3 ? 1 : i * 0.04;
        m5_engine *e = open_engine(path, 2, true, "auto");
        if (!e) return;
        m5_engine_info info;
        m5_engine_get_info(e, &info);
        const unsigned both = 1u << M5_SPEC_EXIT | 1u << M5_SPEC_SKIP;
        T_CHECK((info.spec_sources & both) == both && !(info.spec_auto & both) && info.spec_auto & 1u << M5_SPEC_NGRAM, "%x, %x", info.spec_sources,
                info.spec_auto);
        n_draft[i] = 0;
        for (int s = M5_SPEC_EXIT; s <= M5_SPEC_SKIP; s++) {
            start(e, &got[0], 0, &(m5_spec_params){.sources = 1u << s, .k = 6, .fixed = true}, 0);
            wait_for(&got[0]);
            compare(&got[0], &want[0], "self", 0, 6);
            T_EQ_INT(got[0].end.usage.n_draft_by[s], got[0].end.usage.n_draft);
            n_draft[i] += got[0].end.usage.n_draft;
        }
        start(e, &got[0], 0, &(m5_spec_params){.fixed = true}, 0);
        wait_for(&got[0]);
        n_all += got[0].end.usage.n_draft_by[M5_SPEC_EXIT] + got[0].end.usage.n_draft_by[M5_SPEC_SKIP];
        m5_engine_close(e);
    }
    T_CHECK(n_draft[0] > 300 && n_draft[0] >= n_draft[1] && n_draft[1] >= n_draft[2] && n_draft[2] < n_draft[0] && n_draft[3] == 0,
            "%d, %d, %d and %d guesses", n_draft[0], n_draft[1], n_draft[2], n_draft[3]);
    T_EQ_INT(n_all, 0);
    draft_confidence = 0;
}

/* The parts of an engine that choose between drafts, with times of our own. */
static void test_self_choice(const char *path)
{
    enum { N = 12 };
    m5_model *m = NULL;
    m5_seq *seq = NULL;
    m5_error err = {0};
    m5_spec sp;
    m5_spec_seq q = {0};
    m5_spec_open(&sp, &(m5_spec_params){.k = 12}, 1);
    int rc = m5_model_open(&m, path, &(m5_model_options){.cpu = {.n_threads = 1, .cpu_mask = 0xffffffffu}, .max_draft = sp.max_hold}, &err);
    T_CHECK(rc == 0, "%s", err.text);
    if (rc) return;
    m5_self_draft self[M5_SELF_VARIANTS] = {{.layers = m5_self_default(m, M5_SELF_EXIT), .accept = 0.99, .known = true, .pays = true}};
    T_EQ_INT(m5_spec_attach(&sp, m, NULL, self, 1, &err), 0);
    T_CHECK(sp.sources >> M5_SPEC_EXIT & 1 && sp.automatic >> M5_SPEC_EXIT & 1 && !(sp.sources >> M5_SPEC_SKIP & 1), "%x, %x", sp.sources, sp.automatic);
    int32_t ids[N + 8];
    for (int i = 0; i < N; i++) ids[i] = i * i % 50; /* nothing for n-grams */
    float *logits = m5_calloc(M5_MEM_SCRATCH, (size_t)m5_model_config(m)->n_vocab, sizeof *logits);
    rc = m5_seq_new(&seq, m, &err);
    m5_run r = {.seq = seq, .ids = ids, .n_tok = N - 1};
    if (!rc) rc = m5_model_forward(m, &r, 1, NULL, &err);
    if (!rc) rc = m5_seq_ready_hold(seq, &err);
    T_CHECK(rc == 0 && logits, "%s", err.text);
    for (int i = 0; i < 5 && !rc; i++) {
        const m5_spec_ask ask = {.q = &q, .seq = seq, .ids = ids, .n_ids = N, .n_rows = 1, .room = 12};
        m5_spec_cost_init(&sp.cost);
        for (int n = 1; n <= 16; n++) m5_spec_cost_add(&sp.cost, n, 1e6 * (1 + (i == 1 ? 1.5 : 0.05) * (n - 1)));
        memset(sp.seen, 0, sizeof sp.seen);
        memset(sp.sure, 0, sizeof sp.sure);
        sp.n_step = 1; /* not one of those that measure plain decoding */
        sp.self_share[M5_SELF_EXIT] = i == 4 ? 1.1 : 0.3;
        sp.self[M5_SELF_EXIT].accept = i == 2 ? 0.1 : 0.99;
        sp.self[M5_SELF_EXIT].confidence = i == 3 ? 1 : 0;
        m5_spec_begin(&sp, &q, &(m5_spec_params){.sources = i % 2 ? 1u << M5_SPEC_EXIT : 0}, ids, N, N, N + 8);
        m5_spec_propose(&sp, &ask, 1, 0, 0, logits);
        if (i == 0)
            T_CHECK(q.n_draft > 2 && q.n_draft <= M5_SELF_MAX_K && q.source == M5_SPEC_EXIT, "%d drafts of %d", q.n_draft, (int)q.source);
        else
            T_CHECK(q.n_draft == 0, "%d: %d drafts", i, q.n_draft); /* dear rows, wrong guesses, a chain that stopped, dear guesses */
        m5_spec_checked(&sp, &q, 0);
        m5_spec_stepped(&sp, &ask, 1, 1 + q.n_draft, 1e6, false);
        T_CHECK((q.ledger_us < 0) == (i == 0 || i == 3), "%d: a ledger of %g", i, q.ledger_us); /* a chain that stopped took time too */
    }
    m5_spec_free(&q);
    m5_seq_free(seq);
    m5_free(logits);
    m5_spec_close(&sp);
    /* Without its last layer the model has other sets, and layers that it does not use cannot guess. */
    const int n_layer = m5_model_config(m)->n_layer;
    self[M5_SELF_SKIP].layers = m5_layers_first(n_layer);
    self[M5_SELF_EXIT].layers = m5_layers_first(1);
    const m5_layer_set most = m5_layers_first(n_layer - 1);
    T_EQ_INT(m5_model_use_layers(m, &most, &err), 0);
    m5_spec_open(&sp, &(m5_spec_params){.k = 12}, 1);
    T_EQ_INT(m5_spec_attach(&sp, m, NULL, self, 1, &err), 0);
    T_CHECK(sp.sources >> M5_SPEC_EXIT & 1 && !(sp.sources >> M5_SPEC_SKIP & 1), "%x", sp.sources);
    T_CHECK(m5_self_share(m, &self[M5_SELF_EXIT].layers) == 1.0 / (n_layer - 1));
    T_CHECK(m5_self_exit_after(&self[0].layers, m, n_layer - 1, &err) == M5_ERR_ARG && m5_self_exit_after(&self[0].layers, m, 0, &err) == M5_ERR_ARG);
    T_CHECK(m5_self_skip_list(&self[0].layers, m, &n_layer, 1, &err) == M5_ERR_ARG && strstr(err.text, "cannot be left out"), "%s", err.text);
    m5_spec_close(&sp);
    m5_model_close(m);
}

/* A request that stops itself hears nothing more, also when the step had more tokens for it; what is kept of it is right. */
static void test_cancel(const char *path)
{
    m5_engine *e = open_engine(path, 2, true, "auto");
    if (!e) return;
    for (int at = 1; at < 20; at++) {
        static int32_t truth[MAX_NEW];
        for (int k = 0; k < MAX_NEW; k++) truth[k] = want[0].got[k].id;
        m5_spec_script script = {.ids = truth, .n_ids = MAX_NEW, .p_right = 1, .wrong_at = -1};
        start(e, &got[0], 0, &(m5_spec_params){.k = 5, .fixed = true, .script = &script}, at);
        wait_for(&got[0]);
        T_CHECK(got[0].n == at && got[0].end.finish == M5_FINISH_CANCELLED, "%d tokens after a cancel at %d", got[0].n, at);
        start(e, &got[1], 0, &(m5_spec_params){.k = 3, .fixed = true, .script = &script}, 0);
        wait_for(&got[1]);
        compare(&got[1], &want[0], "after a cancel", 0, 3);
    }
    m5_engine_close(e);
}

/* One model drafts for another, and for itself: then every greedy guess is right. A model of another vocabulary is refused. */
static void test_draft_model(const char *self, const char *other, const char *foreign)
{
    m5_error err = {0};
    m5_engine *e = NULL;
    m5_engine_options o = {.model_path = self, .n_ctx = 256, .draft_model_path = foreign};
    int rc = m5_engine_open(&e, &o, &err);
    T_CHECK(rc == M5_ERR_UNSUPPORTED && !e && strstr(err.text, "cannot draft"), "%d: %s", rc, err.text);
    draft_path = other;
    test_family(self, "with a draft model", 1);
    draft_path = self;
    e = open_engine(self, 2, true, "auto");
    for (int k = 1; e && k <= 8; k++)
        for (int i = 0; i < 2; i++) { /* the second finds a sequence that holds its text */
            start(e, &got[0], 0, &(m5_spec_params){.sources = 1u << M5_SPEC_MODEL, .k = k, .fixed = true}, 0);
            wait_for(&got[0]);
            compare(&got[0], &want[0], "itself", 0, k);
            const m5_usage *u = &got[0].end.usage;
            T_CHECK(u->n_draft_by[M5_SPEC_MODEL] > 20 && u->n_draft_accepted == u->n_draft, "%d of %d right", u->n_draft_accepted, u->n_draft);
        }
    m5_engine_close(e);
    draft_path = NULL;
}

static void test_quiet(const char *path)
{
    m5_engine *e = open_engine(path, 1, false, "auto");
    if (!e) return;
    static int32_t truth[MAX_NEW];
    for (int k = 0; k < MAX_NEW; k++) truth[k] = want[1].got[k].id;
    m5_spec_script script = {.ids = truth, .n_ids = MAX_NEW, .p_right = 0.5, .wrong_at = -1};
    m5_engine_status before, after;
    m5_engine_get_status(e, &before);
    for (int round = 0; round < 2; round++) /* the first fills what is kept for reuse */
        for (int s = 0; s < M5_SPEC_SOURCES; s++) {
            start(e, &got[1], 1, &(m5_spec_params){.sources = 1u << s, .k = 4, .fixed = true, .script = &script}, 0);
            wait_for(&got[1]);
            T_CHECK(round == 0 || got[1].allocs[0] == got[1].allocs[1], "%s: %llu allocations in 30 tokens with drafts",
                    m5_spec_source_name((m5_spec_source)s), (unsigned long long)(got[1].allocs[1] - got[1].allocs[0]));
        }
    m5_engine_get_status(e, &after);
    T_CHECK(after.n_state_copies == before.n_state_copies && after.n_draft > before.n_draft + 100, "%llu copies of state with %llu drafts",
            (unsigned long long)(after.n_state_copies - before.n_state_copies), (unsigned long long)(after.n_draft - before.n_draft));
    m5_engine_close(e);
}

static void test_ngram(void)
{
    m5_ngram g = {.source = -1};
    int32_t ids[4096] = {0}, draft[8], n = 0;
    T_EQ_INT(m5_ngram_draft(&g, ids, 0, draft, 4), 0);
    T_EQ_INT(m5_ngram_begin(&g, 4096), 0);
    const int32_t text[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4, 50, 51, 7, 2, 3, 4};
    for (n = 0; n < 18; n++) ids[n] = text[n];
    T_EQ_INT(m5_ngram_draft(&g, ids, 12, draft, 3), 3); /* 2 3 4 -> 5 6 7 */
    T_CHECK(draft[0] == 5 && draft[1] == 6 && draft[2] == 7);
    T_EQ_INT(m5_ngram_draft(&g, ids, 15, draft, 2), 1); /* 50 51 instead of 5 6, then 7 again: its place */
    T_CHECK(draft[0] == 8 && draft[1] == 9);
    T_EQ_INT(m5_ngram_draft(&g, ids, 18, draft, 3), 3); /* the most recent among equals */
    T_CHECK(draft[0] == 50 && draft[1] == 51 && draft[2] == 7);
    T_EQ_INT(m5_ngram_begin(&g, 4096), 0);
    for (n = 0; n < 40; n++) ids[n] = n % 4;
    T_CHECK(m5_ngram_draft(&g, ids, 40, draft, 8) == 32 && draft[0] == 0 && draft[3] == 3 && draft[7] == 3); /* past the end of the text */
    for (n = 0; n < 4096; n++) ids[n] = (n * 7919) % 4093; /* the last three are the first three again */
    T_EQ_INT(m5_ngram_begin(&g, 4096), 0);
    T_EQ_INT(m5_ngram_draft(&g, ids, 40, draft, 8), 0);
    T_EQ_INT(m5_ngram_draft(&g, ids, 4096, draft, 8) > 2, 1);
    T_EQ_INT(m5_ngram_draft(&g, ids, 4097, draft, 8), 0);
    m5_ngram_free(&g);
}

static void test_cost(void)
{
    m5_spec_cost c;
    m5_spec_cost_init(&c);
    T_CHECK(m5_spec_cost_of(&c, 3) == 0);
    m5_spec_cost_add(&c, 1, 1000);
    T_CHECK(m5_spec_cost_of(&c, 1) == 1000 && m5_spec_cost_of(&c, 5) > 1200 && m5_spec_cost_of(&c, 5) < 2000);
    m5_spec_cost_add(&c, 5, 1800);
    T_CHECK(m5_spec_cost_of(&c, 3) == 1400 && m5_spec_cost_of(&c, 9) > 1800 && m5_spec_cost_of(&c, 200) > m5_spec_cost_of(&c, 96));
    for (int i = 0; i < 200; i++) m5_spec_cost_add(&c, 1, 500);
    T_CHECK(m5_spec_cost_of(&c, 1) < 510 && m5_spec_cost_of(&c, 5) < 1799);
    m5_spec_cost_add(&c, 1, 1e9);
    T_CHECK(m5_spec_cost_of(&c, 1) < 700);
}

static void test_names(void)
{
    unsigned s = 0;
    m5_error err = {0};
    T_CHECK(m5_spec_parse("auto", &s, &err) == 0 && s == M5_SPEC_AUTO);
    T_CHECK(m5_spec_parse("off", &s, &err) == 0 && s == M5_SPEC_OFF);
    T_CHECK(m5_spec_parse("auto,skip", &s, &err) == 0 && s == (M5_SPEC_AUTO | 1u << M5_SPEC_SKIP));
    for (int i = 0; i < M5_SPEC_SCRIPT; i++) T_CHECK(m5_spec_parse(m5_spec_source_name((m5_spec_source)i), &s, &err) == 0 && s == 1u << i);
    T_CHECK(m5_spec_parse("mtp,ngram", &s, &err) == 0 && s == (1u << M5_SPEC_MTP | 1u << M5_SPEC_NGRAM));
    T_CHECK(m5_spec_parse("", &s, &err) && m5_spec_parse("off,mtp", &s, &err) && m5_spec_parse("script", &s, &err) &&
            m5_spec_parse("ngramm", &s, &err));
    T_CHECK(strstr(err.text, "ngramm") != NULL, "%s", err.text);
}

int main(int argc, char **argv)
{
    static const char *const families[] = {"qwen3_5_mtp", "qwen3_5",    "qwen3_next", "qwen3_5_moe", "llama3", "gemma3",
                                           "gemma4",      "gemma4_moe", "qwen3_moe",  "ministral3",  "smollm2"};
    m5_log_set_level(M5_LOG_ERROR);
    test_names();
    test_cost();
    test_ngram();
    for (int i = 1; i < argc && strchr(argv[i], '/'); i++) test_family(argv[i], argv[i], 8); /* by hand: any model */
    int n = argc > 1 ? atoi(argv[1]) : (int)(sizeof families / sizeof families[0]);
    for (int i = 0; i < n; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/models/%s", M5_TEST_DATA, families[i]);
        test_family(path, families[i], i < 4 ? 8 : 4);
        if (i < 2) test_cancel(path);
        if (i < 2) test_quiet(path);
        if (i < 2) test_self(path);
        if (i < 2) test_self_choice(path);
        if (i > 1) continue;
        char other[512], foreign[512];
        snprintf(other, sizeof other, "%s/models/%s", M5_TEST_DATA, i ? "qwen3_5_mtp" : "qwen3_5");
        snprintf(foreign, sizeof foreign, "%s/tokenizer/llama3.json", M5_TEST_DATA);
        test_draft_model(path, other, foreign);
    }
    printf("%ld answers compared; %ld of %ld drafted tokens right\n", n_compared, n_right, n_drafted);
    T_CHECK(n_right > 200 && n_drafted > n_right + 1000, "%ld of %ld drafts right", n_right, n_drafted);
    return t_done();
}
