/* SPDX-License-Identifier: Apache-2.0 */
/* `bench --accept`: what drafts cost and bring on this machine. Answers are computed through the whole engine with drafts made to order from the
 * plain answer, each token of a draft right with the given probability (if those before it are); a plain run stands in front of every group. */
#include "cli/cli.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/task.h"
#include "model/config.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { MAX_SEQ = 64, PROMPT = 32 };

typedef struct answer {
    struct spec_bench *bench;
    m5_ids ids;
    m5_usage usage;
    m5_request *req;
    m5_spec_script script;
    uint64_t first_us, last_us; /* when its first and last token came */
    bool failed;
} answer;

typedef struct spec_bench {
    const m5_cli_opts *o;
    m5_engine *engine;
    pthread_mutex_t mu;
    pthread_cond_t cv;
    int n_seq, n_gen, n_prompt, n_left;
    int32_t *prompts; /* [n_seq, n_prompt] */
    m5_ids truth[MAX_SEQ];
    answer answers[MAX_SEQ];
    m5_json *rows;
    double plain; /* tokens per second of the last plain run */
} spec_bench;

static void on_event(void *ctx, const m5_event *ev)
{
    answer *a = ctx;
    spec_bench *b = a->bench;
    if (ev->kind == M5_EVENT_TOKEN) {
        a->last_us = m5_time_us();
        if (!a->ids.n) a->first_us = a->last_us;
        a->failed |= m5_ids_push(&a->ids, ev->id) != 0;
    }
    if (ev->kind != M5_EVENT_DONE) return;
    pthread_mutex_lock(&b->mu);
    a->usage = ev->usage;
    a->failed |= ev->finish != M5_FINISH_LENGTH;
    b->n_left--;
    pthread_cond_signal(&b->cv);
    pthread_mutex_unlock(&b->mu);
}

/* All sequences once; *speed: tokens per second over them, from the moment when all were decoding. */
static int run_once(spec_bench *b, m5_spec_params spec, double accept, double *speed, double *share, m5_error *err)
{
    int rc = 0, n_draft = 0, n_right = 0;
    uint64_t from = 0, to = 0;
    size_t n = 0;
    b->n_left = 0;
    for (int i = 0; i < b->n_seq && !rc; i++) {
        answer *a = &b->answers[i];
        a->ids.n = 0;
        a->failed = false;
        a->script = (m5_spec_script){.ids = b->truth[i].p, .n_ids = (int)b->truth[i].n, .p_right = accept, .wrong_at = -1, .seed = (uint64_t)i + 1};
        m5_gen_params p = {.ids = b->prompts + (size_t)i * (size_t)b->n_prompt,
                           .n_ids = (size_t)b->n_prompt,
                           .max_tokens = b->n_gen,
                           .ignore_eos = true,
                           .spec = spec};
        p.spec.script = &a->script;
        m5_sampling_default(&p.sampling);
        p.sampling.temperature = 0;
        pthread_mutex_lock(&b->mu);
        rc = m5_engine_submit(b->engine, &p, on_event, a, &a->req, err);
        if (!rc) b->n_left++;
        pthread_mutex_unlock(&b->mu);
    }
    pthread_mutex_lock(&b->mu);
    while (b->n_left > 0) pthread_cond_wait(&b->cv, &b->mu);
    pthread_mutex_unlock(&b->mu);
    for (int i = 0; i < b->n_seq; i++) {
        answer *a = &b->answers[i];
        m5_request_free(a->req);
        a->req = NULL;
        if (a->failed && !rc) rc = m5_error_set(err, M5_ERR_INTERNAL, "an answer ended early");
        if (a->first_us > from) from = a->first_us;
        if (a->last_us > to) to = a->last_us;
        n += a->ids.n - 1;
        n_draft += a->usage.n_draft;
        n_right += a->usage.n_draft_accepted;
        if (!rc && b->truth[i].n && (a->ids.n != b->truth[i].n || memcmp(a->ids.p, b->truth[i].p, a->ids.n * sizeof *a->ids.p) != 0))
            rc = m5_error_set(err, M5_ERR_INTERNAL, "drafts changed the answer");
    }
    *speed = to > from ? (double)n * 1e6 / (double)(to - from) : 0;
    *share = n_draft ? (double)n_right / n_draft : 0;
    return rc;
}

static void report(spec_bench *b, const char *kind, int k, double accept, double speed, double share)
{
    if (b->rows) {
        m5_json *r = m5_json_new_object();
        m5_json_set_str(r, "test", kind);
        m5_json_set_int(r, "k", k);
        m5_json_set_real(r, "accept", accept);
        m5_json_set_real(r, "accepted_share", share);
        m5_json_set_real(r, "tokens_per_s", speed);
        m5_json_set_real(r, "ratio", b->plain > 0 ? speed / b->plain : 0);
        m5_json_set_int(r, "parallel", b->n_seq);
        m5_json_push_take(b->rows, r);
    } else if (b->o->csv) {
        printf("%s,%d,%.3f,%d,%.2f,%.3f,%.3f\n", kind, k, accept, b->n_seq, speed, b->plain > 0 ? speed / b->plain : 0, share);
    } else if (k) {
        printf("%-8s %4d %8.0f %% %12.2f %8.2f x %8.0f %%\n", kind, k, accept * 100, speed, b->plain > 0 ? speed / b->plain : 0, share * 100);
    } else {
        printf("%-8s %4s %10s %12.2f\n", kind, "", "", speed);
    }
    fflush(stdout);
}

/* One kind of run. */
typedef struct test {
    const char *kind;
    m5_spec_params spec;
    double best, share;
} test;

/* The best of the repetitions, which go round by turns: other programs only ever take time away, and not from one kind alone. */
static int measure(spec_bench *b, test *tests, int n, double accept, m5_error *err)
{
    int rc = 0;
    for (int i = 0; i < b->o->reps && !rc; i++)
        for (int t = 0; t < n && !rc; t++) {
            double speed = 0;
            rc = run_once(b, tests[t].spec, accept, &speed, &tests[t].share, err);
            if (speed > tests[t].best) tests[t].best = speed;
        }
    b->plain = tests[0].best;
    for (int t = 0; t < n && !rc; t++) report(b, tests[t].kind, tests[t].spec.k, accept, tests[t].best, tests[t].share);
    return rc;
}

static int run_all(spec_bench *b, const m5_ids *ks, const m5_ids *accepts, m5_error *err)
{
    test tests[M5_SPEC_MAX_K + 2];
    double speed, share;
    const m5_spec_params off = {.sources = M5_SPEC_OFF}, chosen = {.sources = 1u << M5_SPEC_SCRIPT, .k = M5_SPEC_DEFAULT_K};
    int rc = run_once(b, off, 0, &speed, &share, err); /* warm-up, and what the drafts are made of */
    for (int i = 0; i < b->n_seq && !rc; i++) {
        m5_ids swap = b->truth[i];
        b->truth[i] = b->answers[i].ids;
        b->answers[i].ids = swap;
    }
    if (!b->rows && b->o->csv) puts("test,k,accept,parallel,tokens_per_s,ratio,accepted_share");
    if (!b->rows && !b->o->csv) printf("%-8s %4s %10s %12s %10s %10s\n", "drafts", "k", "right", "tokens/s", "plain", "accepted");
    for (size_t a = 0; a < accepts->n && !rc; a++) {
        int n = 0;
        tests[n++] = (test){.kind = "plain", .spec = off};
        for (size_t k = 0; k < ks->n && n <= M5_SPEC_MAX_K; k++) {
            tests[n] = (test){.kind = "fixed", .spec = chosen};
            tests[n].spec.k = ks->p[k];
            tests[n++].spec.fixed = true;
        }
        tests[n++] = (test){.kind = "chosen", .spec = chosen};
        rc = measure(b, tests, n, accepts->p[a] / 100.0, err);
    }
    return rc;
}

static void print_json(spec_bench *b)
{
    m5_json *j = m5_json_new_object();
    m5_buf out = {0};
    m5_engine_info info;
    m5_engine_get_info(b->engine, &info);
    m5_json_set_str(j, "model", m5_engine_model_id(b->engine));
    m5_json_set_str(j, "isa", info.isa);
    m5_json_set_int(j, "threads", info.n_threads);
    m5_json_set_take(j, "results", b->rows);
    b->rows = NULL;
    m5_json_write(&out, j, 2);
    puts(out.p ? out.p : "{}");
    m5_buf_free(&out);
    m5_json_unref(j);
}

static int fill_prompts(spec_bench *b, int depth)
{
    const int n_vocab = m5_engine_config(b->engine)->n_vocab;
    uint32_t x = 12345;
    b->n_prompt = depth > PROMPT ? depth : PROMPT;
    b->prompts = m5_calloc(M5_MEM_MISC, (size_t)b->n_seq * (size_t)b->n_prompt, sizeof *b->prompts);
    if (!b->prompts) return M5_ERR_NOMEM;
    for (int i = 0; i < b->n_seq * b->n_prompt; i++) {
        x = x * 1664525u + 1013904223u;
        b->prompts[i] = (int32_t)((x >> 8) % (uint32_t)n_vocab);
    }
    return 0;
}

int m5_cli_bench_spec(const m5_cli_opts *o, const m5_engine_options *eo)
{
    static spec_bench b; /* too large for the stack; the command runs once */
    m5_error err = {0};
    m5_ids ks = {0}, accepts = {0}, gens = {0}, depths = {0};
    b = (spec_bench){.o = o, .n_seq = o->parallel ? o->parallel : 1};
    if (b.n_seq > MAX_SEQ) return m5_cli_usage("--parallel: at most %d with --accept", MAX_SEQ);
    int rc = m5_cli_ints(&ks, "spec-k", o->spec_ks ? o->spec_ks : "1,2,3,4,8", 1, M5_SPEC_MAX_K);
    if (!rc) rc = m5_cli_ints(&accepts, "accept", o->accepts, 0, 100);
    if (!rc) rc = m5_cli_ints(&gens, "gen", o->gen_lengths, 2, 1 << 20);
    if (!rc) rc = m5_cli_ints(&depths, "depth", o->depths, 0, 1 << 20);
    if (rc) goto out;
    b.n_gen = gens.p[0];
    pthread_mutex_init(&b.mu, NULL);
    pthread_cond_init(&b.cv, NULL);
    for (int i = 0; i < MAX_SEQ; i++) b.answers[i].bench = &b;
    m5_engine_options mine = *eo;
    mine.n_parallel = b.n_seq;
    mine.n_ctx = (depths.p[0] > PROMPT ? depths.p[0] : PROMPT) + b.n_gen + M5_SPEC_MAX_K;
    mine.no_cache = true;
    mine.spec = (m5_spec_params){.k = M5_SPEC_MAX_K};
    int code = m5_engine_open(&b.engine, &mine, &err);
    m5_cli_clear_line();
    if (!code) code = fill_prompts(&b, depths.p[0]);
    if (!code) {
        m5_engine_settle_wait(b.engine);
        b.rows = o->json ? m5_json_new_array() : NULL;
        code = run_all(&b, &ks, &accepts, &err);
    }
    if (!code && b.rows) print_json(&b);
    if (code) rc = m5_cli_fail(&err);
    m5_engine_close(b.engine);
    pthread_mutex_destroy(&b.mu);
    pthread_cond_destroy(&b.cv);
    for (int i = 0; i < MAX_SEQ; i++) {
        m5_ids_free(&b.truth[i]);
        m5_ids_free(&b.answers[i].ids);
    }
    m5_json_unref(b.rows);
    m5_free(b.prompts);
out:
    m5_ids_free(&ks);
    m5_ids_free(&accepts);
    m5_ids_free(&gens);
    m5_ids_free(&depths);
    return rc;
}
