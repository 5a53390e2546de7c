/* SPDX-License-Identifier: Apache-2.0 */
/* Agent traffic in miniature on a tiny hybrid: many clients at once, conversations that grow and branch, cancels, kept state in memory and on disk
 * far too small for all of it, restarts. Every answer must have the bits it has alone (P1), and memory and disk must stay within their budgets. */
#include "m5.h"

#include "base/mem.h"
#include "base/task.h"
#include "engine/store.h"

#include <pthread.h>
#include <unistd.h>

#include "t.h"

enum { N_TALK = 12, MAX_IDS = 160, MAX_NEW = 12, N_CLIENT = 8, N_VOCAB = 100 };

static char dir[] = "/tmp/m5-traffic-XXXXXX";
static uint64_t rng_state = 0x853c49e6748fea9bu;
static uint32_t rng(uint32_t n)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 33) % n;
}

typedef struct job {
    pthread_mutex_t mu;
    pthread_cond_t cv;
    int32_t ids[MAX_IDS], got[MAX_NEW];
    int n_ids, n_want, n_got, cancel_at;
    m5_spec_params spec;
    m5_spec_script script;
    uint64_t seed;
    bool done;
    m5_finish finish;
    m5_usage usage;
    m5_error err;
    m5_request *req;
} job;

static void on_event(void *ctx, const m5_event *ev)
{
    job *j = ctx;
    pthread_mutex_lock(&j->mu);
    if (ev->kind == M5_EVENT_TOKEN && j->n_got < MAX_NEW) j->got[j->n_got++] = ev->id;
    if (ev->kind == M5_EVENT_TOKEN && j->n_got == j->cancel_at && j->req) m5_request_cancel(j->req);
    if (ev->kind == M5_EVENT_DONE) {
        j->done = true;
        j->finish = ev->finish;
        j->usage = ev->usage;
        j->err = ev->error;
        pthread_cond_signal(&j->cv);
    }
    pthread_mutex_unlock(&j->mu);
}

static void start(m5_engine *e, job *j)
{
    m5_error err = {0};
    m5_gen_params p = {.ids = j->ids, .n_ids = (size_t)j->n_ids, .max_tokens = j->n_want, .ignore_eos = true};
    m5_sampling_default(&p.sampling);
    p.sampling.temperature = j->seed % 2 ? 0.9f : 0;
    p.sampling.seed = j->seed;
    p.spec = j->spec;
    j->done = false;
    j->n_got = 0;
    m5_request *req = NULL;
    T_CHECK(m5_engine_submit(e, &p, on_event, j, &req, &err) == 0, "%s", err.text);
    pthread_mutex_lock(&j->mu);
    j->req = req;
    pthread_mutex_unlock(&j->mu);
}

static void finish(job *j)
{
    pthread_mutex_lock(&j->mu);
    while (!j->done) pthread_cond_wait(&j->cv, &j->mu);
    pthread_mutex_unlock(&j->mu);
    m5_request_free(j->req);
    j->req = NULL;
}

static m5_engine *open_engine(const char *family, bool cache, uint64_t ram, uint64_t disk, uint64_t memory, int n_parallel)
{
    m5_engine *e = NULL;
    m5_error err = {0};
    char path[512];
    snprintf(path, sizeof path, "%s/models/%s", M5_TEST_DATA, family);
    m5_engine_options o = {.model_path = path,
                           .n_threads = 2,
                           .n_ctx = 512,
                           .n_parallel = n_parallel,
                           .n_queue = 64,
                           .prefill_chunk = 48,
                           .no_cache = !cache,
                           .memory_bytes = memory,
                           .cache_ram_bytes = ram,
                           .cache_disk_bytes = disk,
                           .cache_dir = disk ? dir : NULL,
                           .checkpoint_every = 16};
    T_CHECK(m5_engine_open(&e, &o, &err) == 0, "%s", err.text);
    return e;
}

/* Drafts of every kind, some longer than the answer: own text, made to order, none. */
static void choose_drafts(job *j, const job *alone)
{
    j->script = (m5_spec_script){.ids = alone->got, .n_ids = alone->n_got, .p_right = rng(5) / 4.0, .wrong_at = (int)rng(9) - 1, .seed = j->seed};
    j->spec = (m5_spec_params){.k = (int)rng(M5_SPEC_MAX_K + 1), .fixed = rng(4) != 0, .script = rng(2) ? &j->script : NULL};
    if (rng(6) == 0) j->spec.sources = M5_SPEC_OFF;
}

/* Conversations: a few system prompts, then their own turns. */
static int32_t talk[N_TALK][MAX_IDS];
static int talk_len[N_TALK];

static void new_talk(int t, int keep)
{
    for (int i = keep; i < MAX_IDS; i++) talk[t][i] = i < 40 ? (t % 3) * 7 + i : (int32_t)rng(N_VOCAB);
    talk_len[t] = 42 + (int)rng(20);
}

static void ask(job *j, int t)
{
    memcpy(j->ids, talk[t], sizeof talk[t]);
    j->n_ids = talk_len[t];
    j->n_want = 1 + (int)rng(MAX_NEW);
    j->seed = rng(1000);
    j->cancel_at = rng(8) == 0 ? 1 + (int)rng(3) : -1;
    /* The conversation goes on, or turns back to an earlier point and differs from there. */
    talk_len[t] += 1 + (int)rng(20);
    if (talk_len[t] > MAX_IDS - MAX_NEW)
        new_talk(t, 40);
    else if (rng(6) == 0)
        new_talk(t, 41 + (int)rng((uint32_t)talk_len[t] - 41));
}

static void check(const job *j, const job *alone, int round)
{
    T_CHECK(j->finish == M5_FINISH_LENGTH || (j->finish == M5_FINISH_CANCELLED && j->cancel_at > 0), "round %d: finish %d (%s)", round,
            (int)j->finish, j->err.text);
    T_CHECK(j->n_got <= alone->n_got && (j->finish != M5_FINISH_LENGTH || j->n_got == alone->n_got) &&
                memcmp(j->got, alone->got, (size_t)j->n_got * sizeof j->got[0]) == 0,
            "round %d: other tokens than alone (%d of %d cached)", round, j->usage.n_cached, j->usage.n_prompt);
}

static void traffic(const char *family, int n_round)
{
    static job jobs[N_CLIENT], alone[N_CLIENT];
    enum { RAM = 3 << 20, DISK = 6 << 20, TIGHT_ROWS = 4, TIGHT_TOK = 448 };
    uint64_t n_draft = 0, n_right = 0, n_cached = 0, n_prompt = 0;
    m5_engine *ref = open_engine(family, false, 0, 0, 0, 1), *e = open_engine(family, true, RAM, DISK, 0, 5);
    if (!ref || !e) return;
    /* Every second life of the engine has memory for two or three of the five conversations that may run. */
    m5_engine_info info;
    m5_engine_get_info(ref, &info);
    uint64_t tight = info.weight_bytes + RAM + TIGHT_ROWS * info.row_bytes + TIGHT_TOK * info.kv_bytes_per_tok, n_preempted = 0;
    for (int i = 0; i < N_CLIENT; i++) {
        pthread_mutex_init(&jobs[i].mu, NULL);
        pthread_cond_init(&jobs[i].cv, NULL);
        pthread_mutex_init(&alone[i].mu, NULL);
        pthread_cond_init(&alone[i].cv, NULL);
    }
    for (int t = 0; t < N_TALK; t++) new_talk(t, 0);
    for (int round = 0; round < n_round; round++) {
        int n = 1 + (int)rng(N_CLIENT);
        for (int i = 0; i < n; i++) ask(&jobs[i], (int)rng(N_TALK));
        for (int i = 0; i < n; i++) { /* what each gets alone, without drafts */
            memcpy(alone[i].ids, jobs[i].ids, sizeof jobs[i].ids);
            alone[i].n_ids = jobs[i].n_ids;
            alone[i].n_want = jobs[i].n_want;
            alone[i].seed = jobs[i].seed;
            alone[i].cancel_at = -1;
            alone[i].spec.sources = M5_SPEC_OFF;
            start(ref, &alone[i]);
            finish(&alone[i]);
        }
        for (int i = 0; i < n; i++) {
            choose_drafts(&jobs[i], &alone[i]);
            start(e, &jobs[i]);
            if (rng(3) == 0) m5_sleep_us(rng(2000));
        }
        for (int i = 0; i < n; i++) {
            finish(&jobs[i]);
            n_cached += (uint64_t)jobs[i].usage.n_cached;
            n_prompt += (uint64_t)jobs[i].usage.n_prompt;
            n_draft += (uint64_t)jobs[i].usage.n_draft;
            n_right += (uint64_t)jobs[i].usage.n_draft_accepted;
            check(&jobs[i], &alone[i], round);
        }
        m5_engine_status st;
        m5_engine_get_status(e, &st);
        T_CHECK(st.cache_bytes <= RAM, "%llu bytes kept", (unsigned long long)st.cache_bytes);
        if (round % 50 == 49) { /* a restart: state comes back from files */
            n_preempted += st.n_preempted;
            m5_engine_close(e);
            m5_store_file *list = NULL;
            size_t n_file = 0;
            uint64_t bytes = 0;
            T_EQ_INT(m5_store_list(&list, &n_file, dir, NULL), 0);
            for (size_t i = 0; i < n_file; i++) bytes += list[i].n_bytes;
            m5_free(list);
            T_CHECK(bytes <= DISK, "%llu bytes on disk", (unsigned long long)bytes);
            e = open_engine(family, true, RAM, DISK, round % 100 == 49 ? tight : 0, 5);
            if (!e) return;
        }
    }
    printf("%s: %d rounds, %.0f %% of prompt tokens found, %d times memory was short, %llu of %llu drafts right\n", family, n_round,
           100.0 * (double)n_cached / (double)n_prompt, (int)n_preempted, (unsigned long long)n_right, (unsigned long long)n_draft);
    if (n_round >= 50)
        T_CHECK(n_right > 10 && n_draft > n_right + 10, "%llu of %llu drafts right", (unsigned long long)n_right, (unsigned long long)n_draft);
    if (n_round >= 200) T_CHECK(n_preempted > 0, "memory was never short");
    T_CHECK(n_cached * 4 > n_prompt, "%llu of %llu tokens found", (unsigned long long)n_cached, (unsigned long long)n_prompt);
    m5_engine_close(e);
    m5_engine_close(ref);
    T_EQ_INT(m5_mem_bytes(M5_MEM_STATE), 0);
}

int main(int argc, char **argv)
{
    int n_round = argc > 1 ? atoi(argv[1]) : 200;
    size_t n;
    T_CHECK(mkdtemp(dir) != NULL, "temporary folder");
    m5_log_set_level(M5_LOG_ERROR);
    traffic("qwen3_5", n_round);
    m5_store_clear(dir, true, &n, NULL);
    traffic("gemma3", n_round / 4);
    m5_store_clear(dir, true, &n, NULL);
    rmdir(dir);
    return t_done();
}
