/* SPDX-License-Identifier: Apache-2.0 */
/* Engine and scheduler over the fake model layer: events, limits, stops, cancels, queue, errors, reuse, and that what a request gets does not depend on
 * its company. */
#include "m5.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/task.h"
#include "fake_model.h"
#include "t.h"

#include <pthread.h>
#include <time.h>

enum { MAX_IDS = 4096 };

typedef struct job {
    m5_request *req;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int32_t ids[MAX_IDS];
    int n_ids, n_start, n_done;
    char text[16384];
    size_t n_text;
    m5_event done;
    char stop_string[64];
    int cancel_after;   /* cancels itself after this many tokens; 0 = never */
    uint64_t start_us;
    uint64_t allocs[2]; /* m5_mem_count at tokens 10 and 50 */
} job;

static void on_event(void *ctx, const m5_event *ev)
{
    job *j = ctx;
    pthread_mutex_lock(&j->lock);
    if (j->n_done) j->n_done = 1000; /* anything after DONE */
    if (ev->kind == M5_EVENT_START) j->n_start++, j->start_us = m5_time_us();
    if (ev->kind == M5_EVENT_TOKEN) {
        if (j->n_ids == 10) j->allocs[0] = m5_mem_count();
        if (j->n_ids == 50) j->allocs[1] = m5_mem_count();
        if (j->n_ids < MAX_IDS) j->ids[j->n_ids++] = ev->id;
        if (j->cancel_after && j->n_ids == j->cancel_after) m5_request_cancel(j->req);
    }
    if (ev->kind != M5_EVENT_START && j->n_text + ev->n_text < sizeof(j->text)) {
        memcpy(j->text + j->n_text, ev->text, ev->n_text);
        j->n_text += ev->n_text;
        if (!m5_utf8_valid(ev->text, ev->n_text)) j->n_done = 2000;
    }
    if (ev->kind == M5_EVENT_DONE) {
        j->n_done++;
        j->done = *ev;
        snprintf(j->stop_string, sizeof(j->stop_string), "%s", ev->stop_string ? ev->stop_string : "");
    }
    pthread_cond_broadcast(&j->changed);
    pthread_mutex_unlock(&j->lock);
}

static void job_init(job *j)
{
    memset(j, 0, sizeof(*j));
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->changed, NULL);
}

static void job_wait(job *j, int n_tokens) /* until that many tokens or the end */
{
    pthread_mutex_lock(&j->lock);
    while (!j->n_done && (n_tokens < 0 || j->n_ids < n_tokens)) pthread_cond_wait(&j->changed, &j->lock);
    pthread_mutex_unlock(&j->lock);
}

static m5_engine *open_engine(int n_ctx, int n_parallel, int n_queue, int chunk)
{
    m5_engine *e = NULL;
    m5_error err = {0};
    m5_engine_options o = {.model_path = "a/b/tiny.gguf", .n_ctx = n_ctx, .n_parallel = n_parallel, .n_queue = n_queue, .prefill_chunk = chunk};
    int rc = m5_engine_open(&e, &o, &err);
    T_CHECK(rc == 0 && e, "%s", err.text);
    return e;
}

static m5_gen_params params(const int32_t *ids, size_t n, int max_tokens)
{
    m5_gen_params p = {.ids = ids, .n_ids = n, .max_tokens = max_tokens};
    m5_sampling_default(&p.sampling);
    p.sampling.temperature = 0;
    return p;
}

static int submit(m5_engine *e, job *j, const m5_gen_params *p, m5_error *err)
{
    job_init(j);
    return m5_engine_submit(e, p, on_event, j, &j->req, err);
}

static void run_job(m5_engine *e, job *j, const m5_gen_params *p)
{
    m5_error err = {0};
    int rc = submit(e, j, p, &err);
    T_CHECK(rc == 0, "%s", err.text);
    if (rc) return;
    job_wait(j, -1);
    m5_request_free(j->req);
}

static job J[64];

/* Idleness is no stall: a request that ends it does not inherit the time of the last step. */
static void test_wake(void)
{
    m5_engine *e = open_engine(100, 1, 0, 0);
    m5_engine_status st;
    const int32_t ids[] = {FAKE_COUNT, 'a'};
    m5_gen_params p = params(ids, 2, 3);
    run_job(e, J, &p);
    fake.call_delay_us = 20000;
    uint64_t before = m5_time_us();
    T_EQ_INT(submit(e, J, &p, NULL), 0);
    m5_engine_get_status(e, &st);
    T_CHECK(st.last_step_us >= before);
    job_wait(J, -1);
    m5_request_free(J->req);
    fake.call_delay_us = 0;
    m5_engine_close(e);
}

/* The user's value, else the author's, else the other. */
static void test_fill_sampling(void)
{
    m5_engine *e = open_engine(100, 1, 0, 0);
    m5_sampling s, other;
    m5_sampling_default(&other);
    other.top_p = 0.5f;
    s = other;
    s.temperature = s.top_p = s.min_p = s.repetition_penalty = -1;
    s.top_k = -1;
    m5_engine_fill_sampling(e, &s, &other);
    T_CHECK(s.temperature == 0.25f && s.top_k == 7 && s.top_p == 0.5f && s.min_p == 0 && s.repetition_penalty == 1);
    s.temperature = 0, s.top_k = 0;
    m5_engine_fill_sampling(e, &s, &other);
    T_CHECK(s.temperature == 0 && s.top_k == 0); /* 0 is a choice */
    m5_engine_close(e);
}

static void test_plain(void)
{
    m5_engine *e = open_engine(100, 1, 0, 0);
    const int32_t ids[] = {FAKE_COUNT, 'a' - 1};
    T_EQ_STR(m5_engine_model_id(e), "tiny");
    m5_gen_params p = params(ids, 2, 5);
    p.sampling.n_top_logprobs = 3;
    run_job(e, J, &p);
    T_CHECK(J->n_text == 5 && memcmp(J->text, "abcde", 5) == 0, "%.*s", (int)J->n_text, J->text);
    T_CHECK(J->n_start == 1 && J->n_done == 1 && J->n_ids == 5);
    T_EQ_INT(J->done.finish, M5_FINISH_LENGTH);
    T_CHECK(J->done.usage.n_prompt == 2 && J->done.usage.n_generated == 5 && J->done.usage.n_cached == 0);
    T_EQ_INT(J->done.stop_id, -1);
    p = params(ids, 2, 0);
    run_job(e, J, &p);
    T_CHECK(J->n_ids == 0 && J->n_start == 1 && J->done.finish == M5_FINISH_LENGTH && J->done.usage.n_generated == 0);
    const int32_t end[] = {FAKE_END, 7};
    p = params(end, 2, 5);
    run_job(e, J, &p);
    T_CHECK(J->n_ids == 0 && J->done.finish == M5_FINISH_STOP && J->done.stop_id == FAKE_END_ID && J->done.usage.n_generated == 1);
    p.ignore_eos = true;
    run_job(e, J, &p);
    T_CHECK(J->n_ids == 5 && J->done.finish == M5_FINISH_LENGTH);
    m5_engine_status st;
    m5_engine_get_status(e, &st);
    T_CHECK(st.n_requests == 4 && st.n_generated_tokens == 11 && !st.busy);
    m5_engine_close(e);
}

static void test_text(void)
{
    m5_engine *e = open_engine(100, 1, 0, 0);
    const int32_t count[] = {FAKE_COUNT, 'a' - 1}, euro[] = {FAKE_EURO, 1, 1, 1, 1, 1};
    const char *stops[] = {"xyz", "efg", "ef!"};
    m5_gen_params p = params(count, 2, 50);
    p.stop = stops, p.n_stop = 3;
    run_job(e, J, &p);
    T_CHECK(J->n_text == 4 && memcmp(J->text, "abcd", 4) == 0, "%.*s", (int)J->n_text, J->text);
    T_CHECK(J->done.finish == M5_FINISH_STOP && strcmp(J->stop_string, "efg") == 0 && J->n_ids == 7);
    p.max_tokens = 6; /* ends inside a possible stop string: what was held back comes with DONE */
    run_job(e, J, &p);
    T_CHECK(J->n_text == 6 && memcmp(J->text, "abcdef", 6) == 0 && J->done.finish == M5_FINISH_LENGTH);
    p = params(euro, 6, 5);
    run_job(e, J, &p);
    T_CHECK(J->n_done == 1 && J->n_text == 5 && memcmp(J->text, "\xC3\xA9\xE2\x82\xAC", 5) == 0);
    p.max_tokens = 4; /* cut inside a character */
    run_job(e, J, &p);
    T_CHECK(J->n_done == 1 && J->n_text == 5 && memcmp(J->text, "\xC3\xA9\xEF\xBF\xBD", 5) == 0);
    const char *euro_stop[] = {"\xE2\x82\xAC"};
    p.max_tokens = 50, p.stop = euro_stop, p.n_stop = 1;
    run_job(e, J, &p);
    T_CHECK(J->n_text == 2 && memcmp(J->text, "\xC3\xA9", 2) == 0 && J->done.finish == M5_FINISH_STOP);
    m5_engine_close(e);
}

/* A rule that plays a script: for each position 'f' forces the next letter of `put`, 'm' allows that letter alone, '.' leaves the choice, 'e' ends, 'l' ends as a
 * loop; past its end everything is free. The first n_uncounted tokens do not count and are not searched for stops. */
typedef struct script {
    const char *say, *put;
    int n_next, n_accept, n_uncounted, n_end, n_put;
    int rooms[64];
    bool go_on;
} script;

static m5_control_say script_next(void *ctx, int n_room, uint64_t *mask, int32_t *forced)
{
    script *c = ctx;
    char how = (size_t)c->n_next < strlen(c->say) ? c->say[c->n_next] : '.';
    if (c->n_next < 64) c->rooms[c->n_next] = n_room;
    c->n_next++;
    switch (how) {
    case 'f': *forced = c->put[c->n_put++]; return M5_CONTROL_FORCE;
    case 'm':
        memset(mask, 0, (FAKE_VOCAB + 63) / 64 * sizeof *mask);
        mask[c->put[c->n_put] / 64] |= (uint64_t)1 << (c->put[c->n_put] % 64);
        c->n_put++;
        return M5_CONTROL_MASK;
    case 'e': *forced = 0; return M5_CONTROL_END;
    case 'l': *forced = -1; return M5_CONTROL_END;
    default: return M5_CONTROL_FREE;
    }
}

static unsigned script_accept(void *ctx, int32_t id, bool is_end)
{
    script *c = ctx;
    c->n_end += is_end;
    if (is_end) return c->go_on ? M5_ACCEPT_GO_ON | M5_ACCEPT_UNCOUNTED : 0;
    return c->n_accept++ < c->n_uncounted && id >= 0 ? M5_ACCEPT_UNCOUNTED | M5_ACCEPT_NO_STOP : 0;
}

static void run_script(m5_engine *e, const char *say, const char *put, script c, m5_gen_params p)
{
    c.say = say;
    c.put = put;
    m5_control control = {.ctx = &c, .next = script_next, .accept = script_accept};
    p.control = &control;
    run_job(e, J, &p);
    /* `next` is asked once a position, with the room that is left there: dropped end tokens take none. */
    for (int i = 1; i < c.n_next && i < 64; i++) T_CHECK(c.rooms[i] == c.rooms[i - 1] - 1 || (c.n_end && c.rooms[i] == c.rooms[i - 1]), "%s", say);
}

static bool said(const char *text) { return J->n_text == strlen(text) && memcmp(J->text, text, J->n_text) == 0; }

static void test_control(void)
{
    m5_engine *e = open_engine(100, 2, 0, 8);
    const int32_t count[] = {FAKE_COUNT, 'a' - 1}, end[] = {FAKE_END, 7};
    m5_gen_params p = params(count, 2, 5);
    p.sampling.n_top_logprobs = 0;
    run_script(e, "....", "", (script){0}, p);
    T_CHECK(said("abcde") && J->done.finish == M5_FINISH_LENGTH, "%.*s", (int)J->n_text, J->text);
    run_script(e, "ff..m", "xyQ", (script){0}, p); /* the count goes on from what was forced */
    T_CHECK(said("xyz{Q"), "%.*s", (int)J->n_text, J->text);
    run_script(e, "..fffffffffffffffffffffff", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", (script){.n_uncounted = 20}, p); /* more forced rows than one forward takes */
    T_CHECK(said("abABCDEFGHIJKLMNOPQRSTUVW"), "%.*s", (int)J->n_text, J->text);
    T_EQ_INT(J->done.usage.n_generated, 25);
    run_script(e, "..e", "", (script){0}, p);
    T_CHECK(said("ab") && J->done.finish == M5_FINISH_STOP && J->done.stop_id == -1);
    run_script(e, "..l", "", (script){0}, p);
    T_CHECK(said("ab") && J->done.finish == M5_FINISH_LOOP);
    const char *stop[] = {"cd", "fgh"};
    p.stop = stop, p.n_stop = 2, p.max_tokens = 50;
    run_script(e, "", "", (script){.n_uncounted = 4}, p); /* "cd" lies where stops are not looked for */
    T_CHECK(said("abcde") && J->done.finish == M5_FINISH_STOP && strcmp(J->stop_string, "fgh") == 0);
    /* To the end of the context: uncounted tokens have room, nothing is written past it. */
    p = params(count, 2, 5);
    run_script(e, "", "", (script){.n_uncounted = 1000}, p);
    T_CHECK(J->n_ids == 98 && J->done.finish == M5_FINISH_LENGTH);
    /* An end token that is dropped: something forced must come instead, or it is the end after all. */
    p = params(end, 2, 5);
    run_script(e, ".f.", "k", (script){.go_on = true}, p);
    T_CHECK(said("k") && J->done.finish == M5_FINISH_STOP && J->done.stop_id == FAKE_END_ID && J->done.usage.n_generated == 3);
    m5_engine_close(e);
}

static void test_limits(void)
{
    m5_engine *e = open_engine(20, 1, 0, 0);
    m5_error err = {0};
    int32_t ids[32];
    for (int i = 0; i < 32; i++) ids[i] = i ? 'a' : FAKE_COUNT;
    m5_gen_params p = params(ids, 20, 5);
    T_EQ_INT(submit(e, J, &p, &err), M5_ERR_CONTEXT);
    T_CHECK(J->req == NULL && strstr(err.text, "20"));
    p.n_ids = 0;
    T_EQ_INT(submit(e, J, &p, &err), M5_ERR_ARG);
    p.n_ids = 3, ids[1] = FAKE_VOCAB;
    T_EQ_INT(submit(e, J, &p, &err), M5_ERR_ARG);
    ids[1] = -1;
    T_EQ_INT(submit(e, J, &p, &err), M5_ERR_ARG);
    ids[1] = 'a', p.sampling.top_k = -3;
    T_EQ_INT(submit(e, J, &p, &err), M5_ERR_ARG);
    const char *empty[] = {""};
    p = params(ids, 3, 5), p.stop = empty, p.n_stop = 1;
    T_EQ_INT(submit(e, J, &p, &err), M5_ERR_ARG);
    p = params(ids, 15, -1);
    run_job(e, J, &p);
    T_CHECK(J->n_ids == 5 && J->done.finish == M5_FINISH_LENGTH);
    p = params(ids, 19, 1000000000);
    run_job(e, J, &p);
    T_CHECK(J->n_ids == 1 && J->done.finish == M5_FINISH_LENGTH);
    for (int n = 1; n <= 12; n++) {
        p = params(ids, 3, 5);
        m5_mem_fail_at((uint64_t)n);
        int rc = submit(e, J, &p, &err);
        m5_mem_fail_at(0);
        if (!rc) {
            job_wait(J, -1);
            m5_request_free(J->req);
            T_CHECK(J->n_done == 1 && (J->done.finish == M5_FINISH_LENGTH || (J->done.finish == M5_FINISH_ERROR && J->done.error.code == M5_ERR_NOMEM)));
        } else {
            T_EQ_INT(rc, M5_ERR_NOMEM);
        }
    }
    run_job(e, J, &p);
    T_CHECK(J->n_ids == 5);
    m5_engine_close(e);
}

/* The same requests alone, one after another, and all at once with other chunks: the same tokens. */
static void test_company(void)
{
    enum { N = 12 };
    static int32_t want[N][64];
    int32_t ids[N][200];
    int n_ids[N];
    for (int i = 0; i < N; i++) {
        n_ids[i] = 3 + i * 5 % N * 16; /* longer ones before shorter ones too */
        for (int k = 0; k < n_ids[i]; k++) ids[i][k] = k ? (i * 31 + k * 7) % 256 : FAKE_HASH;
    }
    for (int mode = 0; mode < 3; mode++) {
        m5_engine *e = mode == 0 ? open_engine(300, 1, 0, 512) : open_engine(300, mode == 1 ? 4 : 16, 0, mode == 1 ? 20 : 64);
        fake.call_delay_us = 200;
        fake.max_runs = 0;
        for (int i = 0; i < N; i++) {
            m5_gen_params p = params(ids[i], (size_t)n_ids[i], 40);
            p.sampling.temperature = i % 2 ? 1.0f : 0;
            p.sampling.seed = (uint64_t)i * 77;
            p.sampling.repetition_penalty = i % 3 ? 1.0f : 1.3f;
            p.sampling.penalty_last_n = -1;
            m5_error err = {0};
            T_EQ_INT(submit(e, &J[i], &p, &err), 0);
            if (mode == 0) job_wait(&J[i], -1);
        }
        for (int i = 0; i < N; i++) {
            job_wait(&J[i], -1);
            T_EQ_INT(J[i].n_ids, 40);
            if (mode == 0) memcpy(want[i], J[i].ids, sizeof(want[i]));
            T_CHECK(memcmp(want[i], J[i].ids, 40 * sizeof(int32_t)) == 0, "request %d, mode %d", i, mode);
            m5_request_free(J[i].req);
        }
        T_CHECK(mode == 0 || fake.max_runs >= 3, "%d runs at once", (int)fake.max_runs);
        fake.call_delay_us = 0;
        m5_engine_close(e);
    }
}

static void test_queue(void)
{
    m5_engine *e = open_engine(1000, 2, 3, 0);
    m5_error err = {0};
    const int32_t ids[] = {FAKE_HASH, 5};
    m5_gen_params p = params(ids, 2, 30);
    fake.call_delay_us = 2000;
    for (int i = 0; i < 5; i++) T_EQ_INT(submit(e, &J[i], &p, &err), 0);
    T_EQ_INT(submit(e, &J[5], &p, &err), M5_ERR_BUSY);
    T_CHECK(J[5].req == NULL && J[5].n_start == 0 && J[5].n_done == 0);
    m5_engine_status st;
    m5_engine_get_status(e, &st);
    T_CHECK(st.busy && st.n_running + st.n_waiting == 5 && st.n_running <= 2, "%d %d", st.n_running, st.n_waiting);
    m5_request_cancel(J[3].req); /* while it waits: it must end now, not when its turn comes */
    job_wait(&J[3], -1);
    T_CHECK(J[3].done.finish == M5_FINISH_CANCELLED && J[3].n_start == 0 && !J[0].n_done);
    T_EQ_INT(submit(e, &J[5], &p, &err), 0);
    for (int i = 0; i < 6; i++) job_wait(&J[i], -1);
    T_CHECK(J[0].start_us <= J[2].start_us && J[1].start_us <= J[2].start_us && J[2].start_us <= J[4].start_us && J[4].start_us <= J[5].start_us);
    for (int i = 0; i < 6; i++) {
        T_EQ_INT(J[i].n_done, 1);
        m5_request_free(J[i].req);
    }
    fake.call_delay_us = 0;
    m5_engine_close(e);
}

static void test_cancel_and_free(void)
{
    m5_engine *e = open_engine(3000, 2, 0, 0);
    m5_error err = {0};
    const int32_t ids[] = {FAKE_HASH, 9};
    m5_gen_params p = params(ids, 2, -1);
    fake.call_delay_us = 500;
    T_EQ_INT(submit(e, &J[0], &p, &err), 0);
    T_EQ_INT(submit(e, &J[1], &p, &err), 0);
    job_wait(&J[0], 5);
    m5_request_free(J[0].req); /* before DONE: no event after this returns */
    int seen = J[0].n_ids, n_done = J[0].n_done; /* the cancel that free implies may have been told before free returned */
    job_wait(&J[1], 100);
    T_CHECK(J[0].n_ids == seen && J[0].n_done == n_done);
    m5_request_cancel(J[1].req);
    job_wait(&J[1], -1);
    T_CHECK(J[1].n_done == 1 && J[1].done.finish == M5_FINISH_CANCELLED && J[1].done.usage.n_generated == J[1].n_ids);
    m5_request_free(J[1].req);
    p.sampling.seed = 1;
    job_init(&J[2]);
    J[2].cancel_after = 7; /* from inside its own event */
    T_EQ_INT(m5_engine_submit(e, &p, on_event, &J[2], &J[2].req, &err), 0);
    job_wait(&J[2], -1);
    T_CHECK(J[2].n_ids == 7 && J[2].done.finish == M5_FINISH_CANCELLED, "%d", J[2].n_ids);
    m5_request_free(J[2].req);
    /* in the middle of a long prompt */
    static int32_t longp[2500];
    for (int i = 0; i < 2500; i++) longp[i] = i ? i % 256 : FAKE_HASH;
    fake.row_delay_us = 500;
    p = params(longp, 2500, 10);
    T_EQ_INT(submit(e, &J[3], &p, &err), 0);
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    uint64_t t0 = m5_time_us();
    m5_request_cancel(J[3].req);
    job_wait(&J[3], -1);
    T_CHECK(J[3].n_start == 0 && J[3].done.finish == M5_FINISH_CANCELLED && m5_time_us() - t0 < 900000, "%llu us", (unsigned long long)(m5_time_us() - t0));
    m5_request_free(J[3].req);
    fake.row_delay_us = fake.call_delay_us = 0;
    m5_engine_close(e);
    m5_request_free(NULL);
    m5_request_cancel(NULL);
}

static void test_errors(void)
{
    m5_engine *e = open_engine(1000, 4, 0, 0);
    m5_error err = {0};
    const int32_t good[] = {FAKE_HASH, 9}, bad[] = {FAKE_HASH, FAKE_BAD_ID};
    m5_gen_params p = params(good, 2, 50), q = params(bad, 2, 50);
    run_job(e, &J[9], &p);
    fake.call_delay_us = 300;
    T_EQ_INT(submit(e, &J[0], &p, &err), 0);
    T_EQ_INT(submit(e, &J[1], &q, &err), 0);
    T_EQ_INT(submit(e, &J[2], &p, &err), 0);
    for (int i = 0; i < 3; i++) job_wait(&J[i], -1);
    T_CHECK(J[1].done.finish == M5_FINISH_ERROR && J[1].done.error.code == M5_ERR_INTERNAL && strstr(J[1].done.error.text, "bad token"));
    for (int i = 0; i < 3; i += 2) {
        T_EQ_INT(J[i].done.finish, M5_FINISH_LENGTH);
        T_CHECK(J[i].n_ids == 50 && memcmp(J[i].ids, J[9].ids, 50 * sizeof(int32_t)) == 0, "request %d", i);
    }
    for (int i = 0; i < 3; i++) m5_request_free(J[i].req);
    fake.call_delay_us = 0;
    /* a full state: only the request that does not fit fails */
    fake.max_tokens_in_state = 200;
    static int32_t longp[300];
    for (int i = 0; i < 300; i++) longp[i] = i ? i % 256 : FAKE_HASH;
    m5_gen_params big = params(longp, 180, 5), too_big = params(longp, 260, 5);
    run_job(e, &J[0], &big);
    T_EQ_INT(J[0].done.finish, M5_FINISH_LENGTH);
    run_job(e, &J[0], &too_big);
    T_CHECK(J[0].done.finish == M5_FINISH_ERROR && J[0].done.error.code == M5_ERR_NOMEM);
    run_job(e, &J[0], &p);
    T_CHECK(J[0].done.finish == M5_FINISH_LENGTH && memcmp(J[0].ids, J[9].ids, 50 * sizeof(int32_t)) == 0);
    fake.max_tokens_in_state = 0;
    m5_engine_close(e);
    T_EQ_INT(fake.n_seqs, 0);
}

/* Answers that do not fit together: the later one waits with its state and goes on, and both are what they are alone. */
static void test_preempt(void)
{
    m5_engine *e = open_engine(1000, 4, 8, 16);
    m5_error err = {0};
    m5_engine_status st;
    static int32_t prompt[4][60];
    m5_gen_params p[4];
    for (int k = 0; k < 4; k++) {
        for (int i = 0; i < 60; i++) prompt[k][i] = i ? (i * 7 + k) % 256 : FAKE_HASH;
        p[k] = params(prompt[k], 60, 80);
        run_job(e, &J[10 + k], &p[k]);
    }
    fake.max_tokens_in_state = 300;
    for (int k = 0; k < 4; k++) T_EQ_INT(submit(e, &J[k], &p[k], &err), 0);
    for (int k = 0; k < 4; k++) job_wait(&J[k], -1);
    for (int k = 0; k < 4; k++) {
        T_EQ_INT(J[k].done.finish, M5_FINISH_LENGTH);
        T_CHECK(J[k].n_start == 1 && J[k].n_done == 1 && J[k].n_ids == 80 && memcmp(J[k].ids, J[10 + k].ids, 80 * sizeof(int32_t)) == 0, "request %d", k);
        T_EQ_INT(J[k].done.usage.n_prompt, 60);
        m5_request_free(J[k].req);
    }
    m5_engine_get_status(e, &st);
    T_CHECK(st.n_preempted > 0 && st.n_running == 0 && st.n_waiting == 0, "%d preempted", (int)st.n_preempted);
    /* one that is waiting for memory can be cancelled */
    fake.call_delay_us = 500;
    for (int k = 0; k < 3; k++) T_EQ_INT(submit(e, &J[k], &p[k], &err), 0);
    uint64_t before = st.n_preempted;
    for (int i = 0; i < 2000 && st.n_preempted == before; i++) {
        nanosleep(&(struct timespec){0, 1000000}, NULL);
        m5_engine_get_status(e, &st);
    }
    T_CHECK(st.n_preempted > before);
    m5_request_cancel(J[2].req);
    for (int k = 0; k < 3; k++) job_wait(&J[k], -1);
    for (int k = 0; k < 2; k++) T_CHECK(J[k].n_ids == 80 && memcmp(J[k].ids, J[10 + k].ids, 80 * sizeof(int32_t)) == 0, "request %d", k);
    T_CHECK(J[2].n_done == 1);
    for (int k = 0; k < 3; k++) m5_request_free(J[k].req);
    fake.call_delay_us = 0;
    fake.max_tokens_in_state = 0;
    m5_engine_close(e);
    T_EQ_INT(fake.n_seqs, 0);
}

static void test_reuse(void)
{
    m5_engine *e = open_engine(1000, 2, 0, 0);
    int32_t ids[100] = {FAKE_HASH, 3, 4, 5};
    m5_gen_params p = params(ids, 4, 10);
    run_job(e, &J[0], &p);
    memcpy(ids + 4, J[0].ids, 10 * sizeof(int32_t));
    ids[14] = 77;
    p = params(ids, 15, 20);
    run_job(e, &J[1], &p);
    T_EQ_INT(J[1].done.usage.n_cached, 13); /* the last drawn token was never computed */
    ids[13] ^= 1; /* inside what was kept */
    p = params(ids, 15, 20);
    run_job(e, &J[2], &p);
    T_EQ_INT(J[2].done.usage.n_cached, 13); /* up to where it differs */
    ids[13] ^= 1;
    m5_engine_close(e);
    e = open_engine(1000, 1, 0, 0);
    p = params(ids, 15, 20);
    run_job(e, &J[3], &p);
    T_CHECK(J[3].done.usage.n_cached == 0 && memcmp(J[1].ids, J[3].ids, 20 * sizeof(int32_t)) == 0);
    run_job(e, &J[4], &p); /* its own prompt again: all but the last token */
    T_CHECK(J[4].done.usage.n_cached == 14 && memcmp(J[1].ids, J[4].ids, 20 * sizeof(int32_t)) == 0);
    m5_engine_close(e);
}

static void test_slices_beside_decoding(void)
{
    m5_engine *e = open_engine(3500, 2, 0, 512);
    m5_error err = {0};
    static int32_t longp[1500];
    for (int i = 0; i < 1500; i++) longp[i] = i ? i % 256 : FAKE_HASH;
    const int32_t small[] = {FAKE_HASH, 9};
    m5_gen_params p = params(small, 2, -1), q = params(longp, 1500, 3);
    fake.row_delay_us = 1000;
    fake.max_rows_beside = 0;
    T_EQ_INT(submit(e, &J[0], &p, &err), 0);
    job_wait(&J[0], 3);
    T_EQ_INT(submit(e, &J[1], &q, &err), 0);
    job_wait(&J[1], -1);
    m5_request_free(J[0].req);
    m5_request_free(J[1].req);
    T_CHECK(fake.max_rows_beside > 60 && fake.max_rows_beside < 150, "%d rows at a millisecond each", (int)fake.max_rows_beside);
    fake.row_delay_us = 0;
    m5_engine_close(e);
}

/* Drafts made to order under prices of the test's making: taken where they pay, given up where they do not, tried again when they would pay now. */
static void test_draft_choice(void)
{
    enum { N = 200 };
    m5_engine *e = open_engine(1000, 4, 0, 0);
    fake.call_delay_us = 1000; /* as where memory is the bound */
    fake.row_delay_us = 100;
    const int32_t ids[] = {FAKE_HASH, 9};
    static int32_t truth[N];
    m5_gen_params p = params(ids, 2, N);
    p.spec.sources = M5_SPEC_OFF;
    run_job(e, J, &p);
    memcpy(truth, J->ids, sizeof truth);
    m5_spec_script made = {.ids = truth, .n_ids = N, .p_right = 1, .wrong_at = -1};
    p.spec = (m5_spec_params){.sources = 1u << M5_SPEC_SCRIPT, .script = &made};
    int calls = fake.n_calls;
    run_job(e, J, &p);
    const m5_usage *u = &J->done.usage;
    T_CHECK(memcmp(truth, J->ids, sizeof truth) == 0 && u->n_draft_accepted > N / 2 && fake.n_calls - calls < N / 2,
            "right drafts: %d calls, %d drafted", fake.n_calls - calls, u->n_draft);
    made.p_right = 0;
    calls = fake.n_calls;
    run_job(e, J, &p);
    T_CHECK(memcmp(truth, J->ids, sizeof truth) == 0 && u->n_draft_accepted == 0 && u->n_draft > 0 && u->n_draft < 4 * N, "wrong drafts: %d",
            u->n_draft);
    made.p_right = 1;
    run_job(e, J, &p);
    T_CHECK(u->n_draft_accepted > N / 5, "drafts that are right again: %d", u->n_draft_accepted);
    fake.call_delay_us = 0;
    fake.row_delay_us = 1000; /* a row costs as much as a step: even right drafts bring nothing, wrong ones lose */
    made.p_right = 0.3;
    m5_error err = {0};
    for (int i = 0; i < 4; i++) T_EQ_INT(submit(e, &J[i], &p, &err), 0);
    int drafted = 0;
    for (int i = 0; i < 4; i++) {
        job_wait(&J[i], -1);
        drafted += J[i].done.usage.n_draft;
        T_CHECK(memcmp(truth, J[i].ids, sizeof truth) == 0, "request %d", i);
        m5_request_free(J[i].req);
    }
    T_CHECK(drafted < 4 * N, "%d drafts that cost more than they bring", drafted);
    fake.row_delay_us = 0;
    m5_engine_close(e);
}

static void test_quiet(void)
{
    m5_engine *e = open_engine(1000, 2, 0, 0);
    const int32_t ids[] = {FAKE_HASH, 9};
    m5_gen_params p = params(ids, 2, 80);
    p.sampling.temperature = 1, p.sampling.top_p = 0.9f, p.sampling.n_top_logprobs = 4;
    run_job(e, J, &p);
    T_CHECK(J->allocs[1] == J->allocs[0], "%llu allocations in 40 steps", (unsigned long long)(J->allocs[1] - J->allocs[0]));
    clock_t c0 = clock();
    int calls = fake.n_calls;
    nanosleep(&(struct timespec){0, 300000000}, NULL);
    T_CHECK(clock() - c0 < CLOCKS_PER_SEC / 20 && fake.n_calls == calls, "an idle engine used %ld ticks", (long)(clock() - c0));
    m5_engine_close(e);
}

static void test_close(void)
{
    m5_engine *e = open_engine(1000, 2, 0, 0);
    m5_error err = {0};
    const int32_t ids[] = {FAKE_HASH, 9};
    m5_gen_params p = params(ids, 2, -1);
    fake.call_delay_us = 1000;
    for (int i = 0; i < 5; i++) T_EQ_INT(submit(e, &J[i], &p, &err), 0);
    job_wait(&J[0], 3);
    m5_engine_close(e);
    for (int i = 0; i < 5; i++) {
        T_CHECK(J[i].n_done == 1 && J[i].done.finish == M5_FINISH_CANCELLED, "request %d", i);
        m5_request_cancel(J[i].req);
        m5_request_free(J[i].req);
    }
    fake.call_delay_us = 0;
    T_EQ_INT(m5_mem_bytes(M5_MEM_REQUEST), 0);
    T_EQ_INT(m5_mem_bytes(M5_MEM_STATE), 0);
}

static void test_open(void)
{
    m5_engine *e = NULL;
    m5_error err = {0};
    m5_engine_options o = {.model_path = "x", .n_ctx = 64};
    fake.fail_open = 1;
    T_EQ_INT(m5_engine_open(&e, &o, &err), M5_ERR_FORMAT);
    fake.fail_open = 0;
    T_EQ_INT(m5_engine_open(&e, &(m5_engine_options){.model_path = "x", .n_parallel = -1}, &err), M5_ERR_ARG);
    T_EQ_INT(m5_engine_open(&e, &(m5_engine_options){.n_ctx = 3}, &err), M5_ERR_ARG);
    int n = 0;
    for (n = 1; n < 100; n++) {
        m5_mem_fail_at((uint64_t)n);
        int rc = m5_engine_open(&e, &o, &err);
        m5_mem_fail_at(0);
        if (!rc) break;
        T_CHECK(rc == M5_ERR_NOMEM && e == NULL, "allocation %d: %s", n, err.text);
    }
    T_CHECK(n > 10 && n < 100, "%d", n);
    m5_engine_info info;
    m5_engine_get_info(e, &info);
    T_CHECK(info.n_ctx == 64 && info.state_bytes == 4 * (64 * 1024 + 4096) && info.n_parallel == 4 && !info.own_template);
    m5_engine_close(e);
    fake.n_ctx_train = 2000;
    o.n_ctx = 0;
    T_EQ_INT(m5_engine_open(&e, &o, &err), 0);
    T_EQ_INT(m5_engine_n_ctx(e), 2000);
    m5_engine_close(e);
    fake.n_ctx_train = 2000000000; /* more than memory holds */
    T_EQ_INT(m5_engine_open(&e, &o, &err), 0);
    T_CHECK(m5_engine_n_ctx(e) < 2000000000 && m5_engine_n_ctx(e) % 256 == 0);
    m5_engine_close(e);
    fake.n_ctx_train = 0;
    m5_engine_close(NULL);
}

int main(void)
{
    m5_log_set_level(M5_LOG_ERROR);
    test_open();
    test_fill_sampling();
    test_plain();
    test_wake();
    test_text();
    test_control();
    test_limits();
    test_company();
    test_queue();
    test_cancel_and_free();
    test_errors();
    test_preempt();
    test_reuse();
    test_slices_beside_decoding();
    test_draft_choice();
    test_quiet();
    test_close();
    return t_done();
}
