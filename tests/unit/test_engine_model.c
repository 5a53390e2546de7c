/* SPDX-License-Identifier: Apache-2.0 */
/* Engine over real (tiny, random) models of several families: what a request gets has the same bits alone and in company, for any slice size and number of
 * threads, and after its beginning was found in a kept sequence. */
#include "m5.h"
#include "base/task.h"
#include "model/config.h"
#include "t.h"

#include <pthread.h>

enum { N = 6, N_TOKENS = 24, MAX_PROMPT = 150 };

typedef struct job {
    m5_request *req;
    pthread_mutex_t lock;
    pthread_cond_t ended;
    int32_t ids[N_TOKENS + 1];
    float logprobs[N_TOKENS + 1];
    int n, n_cached;
    bool done;
    m5_finish finish;
    char error[200];
} job;

static void on_event(void *ctx, const m5_event *ev)
{
    job *j = ctx;
    pthread_mutex_lock(&j->lock);
    if (ev->kind == M5_EVENT_TOKEN && j->n <= N_TOKENS) {
        j->logprobs[j->n] = ev->logprob;
        j->ids[j->n++] = ev->id;
    }
    if (ev->kind == M5_EVENT_DONE) {
        j->done = true;
        j->finish = ev->finish;
        j->n_cached = ev->usage.n_cached;
        snprintf(j->error, sizeof(j->error), "%.199s", ev->error.text);
        pthread_cond_signal(&j->ended);
    }
    pthread_mutex_unlock(&j->lock);
}

static void start(m5_engine *e, job *j, const int32_t *ids, int n_ids, int which)
{
    m5_error err = {0};
    memset(j, 0, sizeof(*j));
    pthread_mutex_init(&j->lock, NULL);
    pthread_cond_init(&j->ended, NULL);
    m5_gen_params p = {.ids = ids, .n_ids = (size_t)n_ids, .max_tokens = N_TOKENS, .ignore_eos = true};
    m5_sampling_default(&p.sampling);
    p.sampling.temperature = which % 3 == 0 ? 0 : 1;
    p.sampling.top_p = which % 3 == 1 ? 0.8f : 1;
    p.sampling.seed = (uint64_t)which;
    p.sampling.n_top_logprobs = 0;
    int rc = m5_engine_submit(e, &p, on_event, j, &j->req, &err);
    T_CHECK(rc == 0, "%s", err.text);
    if (rc) j->done = true;
}

static void wait_for(job *j)
{
    pthread_mutex_lock(&j->lock);
    while (!j->done) pthread_cond_wait(&j->ended, &j->lock);
    pthread_mutex_unlock(&j->lock);
    m5_request_free(j->req);
    T_CHECK(j->finish == M5_FINISH_LENGTH && j->n == N_TOKENS, "finish %d after %d tokens: %s", (int)j->finish, j->n, j->error);
}

static bool same(const job *a, const job *b) { return memcmp(a->ids, b->ids, sizeof(a->ids)) == 0 && memcmp(a->logprobs, b->logprobs, sizeof(a->logprobs)) == 0; }

static m5_engine *open_model(const char *path, int n_parallel, int n_threads, int chunk)
{
    m5_engine *e = NULL;
    m5_error err = {0};
    m5_engine_options o = {.model_path = path, .n_ctx = 512, .n_parallel = n_parallel, .n_threads = n_threads, .prefill_chunk = chunk};
    int rc = m5_engine_open(&e, &o, &err);
    T_CHECK(rc == 0, "%s: %s", path, err.text);
    return e;
}

static void test_family(const char *path)
{
    static job want[N], got[N], again;
    static int32_t ids[N][MAX_PROMPT + N_TOKENS + 1];
    int n_ids[N];
    m5_engine *e = open_model(path, 1, 1, 512);
    if (!e) return;
    int n_vocab = m5_engine_config(e)->n_vocab;
    for (int i = 0; i < N; i++) {
        n_ids[i] = 4 + i * 5 % N * 29;
        for (int k = 0; k < n_ids[i]; k++) ids[i][k] = (i * 37 + k * 11) % n_vocab;
        start(e, &want[i], ids[i], n_ids[i], i);
        wait_for(&want[i]);
        T_EQ_INT(want[i].n_cached, 0);
    }
    /* the conversation goes on: prompt, answer and one more token, with the kept state of the last request */
    memcpy(ids[N - 1] + n_ids[N - 1], want[N - 1].ids, N_TOKENS * sizeof(int32_t));
    ids[N - 1][n_ids[N - 1] + N_TOKENS] = 3;
    start(e, &again, ids[N - 1], n_ids[N - 1] + N_TOKENS + 1, 1);
    wait_for(&again);
    T_EQ_INT(again.n_cached, n_ids[N - 1] + N_TOKENS - 1);
    m5_engine_close(e);

    e = open_model(path, 4, 2, 33);
    for (int i = 0; e && i < N; i++) start(e, &got[i], ids[i], n_ids[i], i);
    for (int i = 0; e && i < N; i++) {
        wait_for(&got[i]);
        T_CHECK(same(&got[i], &want[i]), "%s: request %d differs in company", path, i);
    }
    m5_engine_close(e);

    e = open_model(path, 1, 2, 64);
    if (e) start(e, &got[0], ids[N - 1], n_ids[N - 1] + N_TOKENS + 1, 1);
    if (e) wait_for(&got[0]);
    T_CHECK(got[0].n_cached == 0 && same(&got[0], &again), "%s: a reused beginning changes the answer", path);
    m5_engine_close(e);
}

/* Prompts that part at a place no checkpoint was taken at: the second pays up to that place, from the third on only the own tokens are computed. */
static void test_branches(const char *path)
{
    enum { COMMON = 100, OWN = 20 };
    static job j;
    int32_t ids[COMMON + OWN];
    m5_engine *e = open_model(path, 1, 1, 512);
    if (!e) return;
    int n_vocab = m5_engine_config(e)->n_vocab;
    for (int turn = 0; turn < 4; turn++) {
        for (int k = 0; k < COMMON + OWN; k++) ids[k] = (k < COMMON ? k * 13 + 1 : k * 7 + turn) % n_vocab;
        start(e, &j, ids, COMMON + OWN, 0);
        wait_for(&j);
        if (turn >= 2) T_EQ_INT(j.n_cached, COMMON);
    }
    m5_engine_close(e);
}

int main(void)
{
    static const char *const families[] = {"qwen3_5", "llama3", "gemma3", "qwen3_next", "gemma4", "smollm2"};
    m5_log_set_level(M5_LOG_ERROR);
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]); i++) {
        char path[512];
        snprintf(path, sizeof(path), "%s/models/%s", M5_TEST_DATA, families[i]);
        if (m5_path_exists(path)) test_family(path), test_branches(path);
    }
    return t_done();
}
