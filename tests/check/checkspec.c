/* SPDX-License-Identifier: Apache-2.0 */
/* Long answers with drafts against the same answers without, by hand and for any model:
 *
 *     checkspec MODEL [--prompts 50] [--tokens 512] [--min-k 1] [--max-k 8] [--parallel 8] [--jobs 1] [--draft-model D] [--spec LIST]
 *
 * Every prompt greedily and at temperature 0.8 with a seed; every source that the model has, every length of draft from --min-k to --max-k, as many
 * drafts as the source gives; then drafts made to order (--spec made: those alone): always right, always wrong, by chance, wrong at each place in
 * turn. Compared are token ids and the bits of their log-probabilities. Prints a line for each source and length; exit status 1 when anything
 * differs.
 * --jobs N: N engines of --threads (1) share the work, --parallel prompts of one line at a time each; for models that take hours of one core. */
#include "m5.h"

#include "base/mem.h"
#include "base/task.h"
#include "model/config.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LINES = 256 };

typedef struct token {
    int32_t id;
    float logprob;
} token;

typedef struct answer {
    token *t;
    int n;
    bool done;
    m5_finish finish;
    m5_usage usage;
    m5_request *req;
    struct job *job;
} answer;

/* One source with one length of draft, over all prompts. */
typedef struct line {
    char what[32];
    m5_spec_params spec;
    m5_spec_script script; /* ids, n_ids: filled in for each prompt */
    int n_left;            /* units not compared yet */
    long n_draft, n_right, n_bad;
} line;

typedef struct check {
    pthread_mutex_t mu; /* lines, the next unit, sums */
    m5_engine_options o;
    int n_prompt, n_new, min_k, max_k, n_chunk, n_job; /* a chunk: n_parallel prompts of one line, greedy or sampled */
    int32_t (*prompts)[64];
    int *n_ids;
    answer *plain[2]; /* [n_prompt]; greedy, sampled */
    int32_t *ids[2];  /* [n_prompt, n_new] of those, for drafts made to order */
    line lines[MAX_LINES];
    int n_line, next_unit;
    bool failed;
    long n_answer, n_token, n_bad, n_draft;
} check;

/* An engine and the prompts it has in hand. */
typedef struct job {
    check *c;
    m5_engine *e;
    pthread_t thread;
    pthread_mutex_t mu;
    pthread_cond_t cv;
    answer *got;             /* [n_parallel] */
    m5_spec_script *scripts; /* [n_parallel] */
} job;

static void on_event(void *ctx, const m5_event *ev)
{
    answer *a = ctx;
    pthread_mutex_lock(&a->job->mu);
    if (ev->kind == M5_EVENT_TOKEN && a->n < a->job->c->n_new) a->t[a->n++] = (token){ev->id, ev->logprob};
    if (ev->kind == M5_EVENT_DONE) {
        a->done = true;
        a->finish = ev->finish;
        a->usage = ev->usage;
        pthread_cond_signal(&a->job->cv);
    }
    pthread_mutex_unlock(&a->job->mu);
}

static int submit(job *j, answer *a, int prompt, bool sampled, const m5_spec_params *spec)
{
    m5_error err = {0};
    check *c = j->c;
    m5_gen_params p = {.ids = c->prompts[prompt], .n_ids = (size_t)c->n_ids[prompt], .max_tokens = c->n_new, .ignore_eos = true, .spec = *spec};
    m5_sampling_default(&p.sampling);
    p.sampling.temperature = sampled ? 0.8f : 0;
    p.sampling.seed = 4242 + (uint64_t)prompt;
    p.sampling.n_top_logprobs = 0;
    a->n = 0;
    a->done = false;
    a->job = j;
    int rc = m5_engine_submit(j->e, &p, on_event, a, &a->req, &err);
    if (rc) fprintf(stderr, "checkspec: %s\n", err.text);
    return rc;
}

/* out[n]: answers to the prompts from first on, together. l: with its drafts, else without. */
static int answers(job *j, answer *out, int first, int n, bool sampled, const line *l)
{
    int rc = 0, n_sent = 0;
    for (; n_sent < n && rc == 0; n_sent += rc == 0) {
        m5_spec_params own = l ? l->spec : (m5_spec_params){.sources = M5_SPEC_OFF};
        const int prompt = first + n_sent;
        if (l && own.sources >> M5_SPEC_SCRIPT & 1) {
            own.script = &j->scripts[n_sent];
            j->scripts[n_sent] = l->script;
            j->scripts[n_sent].ids = j->c->ids[sampled] + (size_t)prompt * (size_t)j->c->n_new;
            j->scripts[n_sent].n_ids = j->c->plain[sampled][prompt].n;
        }
        rc = submit(j, &out[n_sent], prompt, sampled, &own);
    }
    for (int i = 0; i < n_sent; i++) {
        pthread_mutex_lock(&j->mu);
        while (!out[i].done) pthread_cond_wait(&j->cv, &j->mu);
        pthread_mutex_unlock(&j->mu);
        m5_request_free(out[i].req);
    }
    return rc;
}

static void compare(check *c, line *l, const answer *a, const answer *b, bool sampled, int prompt)
{
    c->n_answer++;
    c->n_token += b->n;
    c->n_draft += b->usage.n_draft;
    l->n_draft += b->usage.n_draft;
    l->n_right += b->usage.n_draft_accepted;
    if (a->n == b->n && a->finish == b->finish && memcmp(a->t, b->t, (size_t)a->n * sizeof *a->t) == 0) return;
    l->n_bad++;
    if (c->n_bad++ < 20) {
        int at = 0;
        while (at < a->n && at < b->n && memcmp(&a->t[at], &b->t[at], sizeof *a->t) == 0) at++;
        fprintf(stderr, "checkspec: %s k %d %s prompt %d differs at token %d\n", l->what, l->spec.k, sampled ? "sampled" : "greedy", prompt, at);
    }
}

/* Units are numbered line by line; within one, greedy chunks first. With no lines yet: the plain answers. */
static void *work(void *arg)
{
    job *j = arg;
    check *c = j->c;
    const int per_line = 2 * c->n_chunk, n_unit = (c->n_line ? c->n_line : 1) * per_line;
    for (;;) {
        pthread_mutex_lock(&c->mu);
        const int u = c->failed ? n_unit : c->next_unit++;
        pthread_mutex_unlock(&c->mu);
        if (u >= n_unit) return NULL;
        line *l = c->n_line ? &c->lines[u / per_line] : NULL;
        const bool sampled = u % per_line >= c->n_chunk;
        const int first = u % c->n_chunk * c->o.n_parallel, left = c->n_prompt - first, n = left < c->o.n_parallel ? left : c->o.n_parallel;
        answer *out = l ? j->got : c->plain[sampled] + first;
        const int rc = answers(j, out, first, n, sampled, l);
        pthread_mutex_lock(&c->mu);
        if (rc) c->failed = true;
        for (int i = 0; l && !c->failed && i < n; i++) compare(c, l, &c->plain[sampled][first + i], &out[i], sampled, first + i);
        if (l && --l->n_left == 0 && !c->failed) {
            printf("  %-14s k %2d: %6ld drafted, %3.0f %% right, %ld answers differ\n", l->what, l->spec.k, l->n_draft,
                   l->n_draft ? 100.0 * (double)l->n_right / (double)l->n_draft : 0.0, l->n_bad);
            fflush(stdout);
        }
        pthread_mutex_unlock(&c->mu);
    }
}

static void *open_engine(void *arg)
{
    job *j = arg;
    m5_error err = {0};
    if (m5_engine_open(&j->e, &j->c->o, &err) == 0) return NULL;
    fprintf(stderr, "checkspec: %s\n", err.text);
    exit(2);
}

static int run(check *c, job *jobs, void *(*fn)(void *))
{
    c->next_unit = 0;
    for (int i = 0; i < c->n_job; i++)
        if (pthread_create(&jobs[i].thread, NULL, fn, &jobs[i])) exit(2);
    for (int i = 0; i < c->n_job; i++) pthread_join(jobs[i].thread, NULL);
    return c->failed ? -1 : 0;
}

static line *add(check *c, const char *what, unsigned sources, int k)
{
    if (c->n_line == MAX_LINES) abort();
    line *l = &c->lines[c->n_line++];
    *l = (line){.spec = {.sources = sources, .k = k, .fixed = true}, .n_left = 2 * c->n_chunk};
    snprintf(l->what, sizeof l->what, "%s", what);
    return l;
}

static int all(check *c, job *jobs, unsigned wanted)
{
    m5_engine_info info;
    m5_engine_get_info(jobs[0].e, &info);
    if (wanted & M5_SPEC_AUTO) wanted = (1u << M5_SPEC_SOURCES) - 1; /* also those that would not pay */
    if (run(c, jobs, work)) return -1;
    for (int sampled = 0; sampled < 2; sampled++)
        for (int i = 0; i < c->n_prompt; i++) {
            if (c->plain[sampled][i].n != c->n_new) { /* two answers cut short by the same error would be equal */
                fprintf(stderr, "checkspec: the plain answer to prompt %d has %d tokens\n", i, c->plain[sampled][i].n);
                return -1;
            }
            for (int t = 0; t < c->plain[sampled][i].n; t++) c->ids[sampled][(size_t)i * (size_t)c->n_new + (size_t)t] = c->plain[sampled][i].t[t].id;
        }
    for (int s = 0; s < M5_SPEC_SOURCES; s++)
        for (int k = c->min_k; s != M5_SPEC_SCRIPT && (info.spec_sources & wanted) >> s & 1 && k <= c->max_k; k++)
            add(c, m5_spec_source_name((m5_spec_source)s), 1u << s, k);
    static const struct {
        const char *name;
        double p;
    } made[] = {{"always right", 1}, {"always wrong", 0}, {"by chance", 0.6}};
    const bool to_order = wanted >> M5_SPEC_SCRIPT & 1;
    for (int k = c->min_k; to_order && k <= c->max_k; k++)
        for (size_t m = 0; m < sizeof made / sizeof *made; m++)
            add(c, made[m].name, 1u << M5_SPEC_SCRIPT, k)->script = (m5_spec_script){.p_right = made[m].p, .wrong_at = -1, .seed = 99};
    for (int at = 0; to_order && at < c->max_k; at++) {
        char what[32];
        snprintf(what, sizeof what, "wrong at %d", at);
        add(c, what, 1u << M5_SPEC_SCRIPT, c->max_k)->script = (m5_spec_script){.p_right = 1, .wrong_at = at, .seed = 5};
    }
    if (c->n_line) return run(c, jobs, work);
    fprintf(stderr, "checkspec: the model has none of these sources\n");
    return -1;
}

/* Every second prompt repeats itself, so that n-grams find something; the others are noise. */
static void make_prompts(check *c, int n_vocab)
{
    uint64_t h = 88172645463325252u;
    for (int i = 0; i < c->n_prompt; i++) {
        c->n_ids[i] = 8 + i * 7 % 56;
        for (int k = 0; k < c->n_ids[i]; k++) {
            h ^= h << 13, h ^= h >> 7, h ^= h << 17;
            const int period = 4 + i % 9;
            c->prompts[i][k] = i % 2 == 0 && k >= period ? c->prompts[i][k - period] : (int32_t)(h % (uint64_t)n_vocab);
        }
    }
}

static answer *new_answers(int n, int n_new)
{
    answer *a = calloc((size_t)n, sizeof *a);
    token *t = calloc((size_t)n * (size_t)n_new, sizeof *t);
    if (!a || !t) exit(2);
    for (int i = 0; i < n; i++) a[i].t = t + (size_t)i * (size_t)n_new;
    return a;
}

static void free_answers(answer *a)
{
    free(a[0].t);
    free(a);
}

static job *open_jobs(check *c)
{
    job *jobs = calloc((size_t)c->n_job, sizeof *jobs);
    if (!jobs) exit(2);
    for (int i = 0; i < c->n_job; i++) {
        job *j = &jobs[i];
        j->c = c;
        pthread_mutex_init(&j->mu, NULL);
        pthread_cond_init(&j->cv, NULL);
        j->got = new_answers(c->o.n_parallel, c->n_new);
        j->scripts = calloc((size_t)c->o.n_parallel, sizeof *j->scripts);
        if (!j->scripts) exit(2);
    }
    run(c, jobs, open_engine);
    return jobs;
}

static void close_jobs(check *c, job *jobs)
{
    for (int i = 0; i < c->n_job; i++) {
        m5_engine_close(jobs[i].e);
        free_answers(jobs[i].got);
        free(jobs[i].scripts);
    }
    free(jobs);
}

static int usage(void)
{
    fprintf(stderr, "checkspec MODEL [--prompts 50] [--tokens 512] [--min-k 1] [--max-k 8] [--parallel 8] [--jobs 1] [--threads 1] [--draft-model D] "
                    "[--spec LIST]\n");
    return 2;
}

int main(int argc, char **argv)
{
    static check c = {.mu = PTHREAD_MUTEX_INITIALIZER, .n_prompt = 50, .n_new = 512, .min_k = 1, .max_k = 8, .n_job = 1};
    m5_error err = {0};
    unsigned wanted = M5_SPEC_AUTO;
    c.o = (m5_engine_options){.n_threads = 1, .no_cache = true, .n_parallel = 8};
    if (argc < 2) return usage();
    c.o.model_path = argv[1];
    for (int i = 2; i + 1 < argc; i += 2) {
        const char *v = argv[i + 1];
        if (!strcmp(argv[i], "--prompts"))
            c.n_prompt = atoi(v);
        else if (!strcmp(argv[i], "--tokens"))
            c.n_new = atoi(v);
        else if (!strcmp(argv[i], "--min-k"))
            c.min_k = atoi(v);
        else if (!strcmp(argv[i], "--max-k"))
            c.max_k = atoi(v);
        else if (!strcmp(argv[i], "--parallel"))
            c.o.n_parallel = atoi(v);
        else if (!strcmp(argv[i], "--jobs"))
            c.n_job = atoi(v);
        else if (!strcmp(argv[i], "--threads"))
            c.o.n_threads = atoi(v);
        else if (!strcmp(argv[i], "--draft-model"))
            c.o.draft_model_path = v;
        else if (!strcmp(argv[i], "--spec") && !strcmp(v, "made"))
            wanted = 1u << M5_SPEC_SCRIPT;
        else if (strcmp(argv[i], "--spec") || m5_spec_parse(v, &wanted, &err))
            return usage();
    }
    if (argc % 2 || c.n_prompt < 1 || c.n_new < 1 || c.min_k < 1 || c.max_k < c.min_k || c.max_k > M5_SPEC_MAX_K || c.o.n_parallel < 1 || c.n_job < 1)
        return usage();
    c.o.n_ctx = c.n_new + 64 + M5_SPEC_MAX_K;
    c.o.spec = (m5_spec_params){.sources = wanted, .k = c.max_k};
    c.n_chunk = (c.n_prompt + c.o.n_parallel - 1) / c.o.n_parallel;
    m5_log_set_level(M5_LOG_ERROR);
    c.prompts = calloc((size_t)c.n_prompt, sizeof *c.prompts);
    c.n_ids = calloc((size_t)c.n_prompt, sizeof *c.n_ids);
    for (int s = 0; s < 2; s++)
        c.plain[s] = new_answers(c.n_prompt, c.n_new), c.ids[s] = calloc((size_t)c.n_prompt * (size_t)c.n_new, sizeof *c.ids[s]);
    if (!c.prompts || !c.n_ids || !c.ids[0] || !c.ids[1]) return 2;
    job *jobs = open_jobs(&c);
    make_prompts(&c, m5_engine_config(jobs[0].e)->n_vocab);
    const int rc = all(&c, jobs, wanted);
    printf("%s: %ld answers, %ld tokens, %ld drafted, %ld differ\n", c.o.model_path, c.n_answer, c.n_token, c.n_draft, c.n_bad);
    close_jobs(&c, jobs);
    for (int s = 0; s < 2; s++) free_answers(c.plain[s]), free(c.ids[s]);
    free(c.prompts), free(c.n_ids);
    return rc ? 2 : c.n_bad > 0;
}
