/* SPDX-License-Identifier: Apache-2.0 */
/* Long answers with drafts against the same answers without, by hand and for any model:
 *
 *     checkspec MODEL [--prompts 50] [--tokens 512] [--max-k 8] [--parallel 8] [--draft-model D] [--spec LIST] [--part 1/15]
 *
 * Every prompt greedily and at temperature 0.8 with a seed; every source that the model has, every length of draft up to --max-k, as many drafts as
 * the source gives; then drafts made to order (--spec made: those alone): always right, always wrong, by chance, wrong at each place in turn.
 * Compared are token ids and the bits of their log-probabilities. Prints a line for each source and length; exit status 1 when anything differs.
 * --part I/N: every N-th of those lines, from the I-th on, so that N processes share the work of a large model (N odd, or lengths pile up). */
#include "m5.h"

#include "base/mem.h"
#include "base/task.h"
#include "model/config.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    struct check *c;
} answer;

typedef struct check {
    pthread_mutex_t mu;
    pthread_cond_t cv;
    m5_engine *e;
    int n_prompt, n_new, max_k, n_parallel;
    int part, n_part, n_line; /* --part, and lines counted so far */
    int32_t (*prompts)[64];
    int *n_ids;
    answer *plain[2], *got;  /* [n_prompt]; greedy, sampled */
    m5_spec_script *scripts; /* [n_prompt] */
    int32_t *ids;            /* [n_prompt, n_new] of plain answers, for drafts made to order */
    long n_answer, n_token, n_bad, n_draft, n_right;
} check;

static void on_event(void *ctx, const m5_event *ev)
{
    answer *a = ctx;
    pthread_mutex_lock(&a->c->mu);
    if (ev->kind == M5_EVENT_TOKEN && a->n < a->c->n_new) a->t[a->n++] = (token){ev->id, ev->logprob};
    if (ev->kind == M5_EVENT_DONE) {
        a->done = true;
        a->finish = ev->finish;
        a->usage = ev->usage;
        pthread_cond_signal(&a->c->cv);
    }
    pthread_mutex_unlock(&a->c->mu);
}

static int submit(check *c, answer *a, int prompt, bool sampled, const m5_spec_params *spec)
{
    m5_error err = {0};
    m5_gen_params p = {.ids = c->prompts[prompt], .n_ids = (size_t)c->n_ids[prompt], .max_tokens = c->n_new, .ignore_eos = true, .spec = *spec};
    m5_sampling_default(&p.sampling);
    p.sampling.temperature = sampled ? 0.8f : 0;
    p.sampling.seed = 4242 + (uint64_t)prompt;
    p.sampling.n_top_logprobs = 0;
    a->n = 0;
    a->done = false;
    int rc = m5_engine_submit(c->e, &p, on_event, a, &a->req, &err);
    if (rc) fprintf(stderr, "checkspec: %s\n", err.text);
    return rc;
}

/* All prompts, as many at once as the engine runs. script: drafts made to order, else NULL. */
static int answers(check *c, answer *out, bool sampled, const m5_spec_params *spec, const m5_spec_script *script)
{
    int rc = 0;
    for (int i = 0; i < c->n_prompt && rc == 0; i++) {
        m5_spec_params own = *spec;
        if (script) {
            c->scripts[i] = *script;
            c->scripts[i].ids = c->ids + (size_t)i * (size_t)c->n_new;
            c->scripts[i].n_ids = c->plain[sampled][i].n;
            own.script = &c->scripts[i];
        }
        if (i >= c->n_parallel) {
            pthread_mutex_lock(&c->mu);
            while (!out[i - c->n_parallel].done) pthread_cond_wait(&c->cv, &c->mu);
            pthread_mutex_unlock(&c->mu);
        }
        rc = submit(c, &out[i], i, sampled, &own);
        if (rc) out[i].done = true;
    }
    for (int i = 0; i < c->n_prompt && rc == 0; i++) {
        pthread_mutex_lock(&c->mu);
        while (!out[i].done) pthread_cond_wait(&c->cv, &c->mu);
        pthread_mutex_unlock(&c->mu);
        m5_request_free(out[i].req);
    }
    return rc;
}

static void compare(check *c, const char *what, int k, bool sampled)
{
    for (int i = 0; i < c->n_prompt; i++) {
        const answer *a = &c->plain[sampled][i], *b = &c->got[i];
        c->n_answer++;
        c->n_token += b->n;
        c->n_draft += b->usage.n_draft;
        c->n_right += b->usage.n_draft_accepted;
        if (a->n == b->n && a->finish == b->finish && memcmp(a->t, b->t, (size_t)a->n * sizeof *a->t) == 0) continue;
        if (c->n_bad++ < 20) {
            int at = 0;
            while (at < a->n && at < b->n && memcmp(&a->t[at], &b->t[at], sizeof *a->t) == 0) at++;
            fprintf(stderr, "checkspec: %s k %d %s prompt %d differs at token %d\n", what, k, sampled ? "sampled" : "greedy", i, at);
        }
    }
}

static int one(check *c, const char *what, m5_spec_params spec, const m5_spec_script *script)
{
    const long before[3] = {c->n_bad, c->n_draft, c->n_right};
    if (c->n_line++ % c->n_part != c->part - 1) return 0;
    for (int sampled = 0; sampled < 2; sampled++) {
        for (int i = 0; script && i < c->n_prompt; i++)
            for (int t = 0; t < c->plain[sampled][i].n; t++) c->ids[(size_t)i * (size_t)c->n_new + (size_t)t] = c->plain[sampled][i].t[t].id;
        if (answers(c, c->got, sampled, &spec, script)) return -1;
        compare(c, what, spec.k, sampled);
    }
    printf("  %-14s k %2d: %6ld drafted, %3.0f %% right, %ld answers differ\n", what, spec.k, c->n_draft - before[1],
           c->n_draft > before[1] ? 100.0 * (double)(c->n_right - before[2]) / (double)(c->n_draft - before[1]) : 0.0, c->n_bad - before[0]);
    fflush(stdout);
    return 0;
}

static int all(check *c, unsigned wanted)
{
    m5_engine_info info;
    m5_engine_get_info(c->e, &info);
    if (wanted & M5_SPEC_AUTO) wanted = (1u << M5_SPEC_SOURCES) - 1; /* also those that would not pay */
    for (int sampled = 0; sampled < 2; sampled++)
        if (answers(c, c->plain[sampled], sampled, &(m5_spec_params){.sources = M5_SPEC_OFF}, NULL)) return -1;
    for (int s = 0; s < M5_SPEC_SOURCES; s++) {
        if (s == M5_SPEC_SCRIPT || !((info.spec_sources & wanted) >> s & 1)) continue;
        for (int k = 1; k <= c->max_k; k++)
            if (one(c, m5_spec_source_name((m5_spec_source)s), (m5_spec_params){.sources = 1u << s, .k = k, .fixed = true}, NULL)) return -1;
    }
    if (!(wanted >> M5_SPEC_SCRIPT & 1)) return 0;
    static const struct {
        const char *name;
        double p;
    } made[] = {{"always right", 1}, {"always wrong", 0}, {"by chance", 0.6}};
    for (int k = 1; k <= c->max_k; k++) {
        const m5_spec_params spec = {.sources = 1u << M5_SPEC_SCRIPT, .k = k, .fixed = true};
        for (size_t m = 0; m < sizeof made / sizeof *made; m++)
            if (one(c, made[m].name, spec, &(m5_spec_script){.p_right = made[m].p, .wrong_at = -1, .seed = 99})) return -1;
    }
    for (int at = 0; at < c->max_k; at++) {
        char what[32];
        snprintf(what, sizeof what, "wrong at %d", at);
        const m5_spec_params spec = {.sources = 1u << M5_SPEC_SCRIPT, .k = c->max_k, .fixed = true};
        if (one(c, what, spec, &(m5_spec_script){.p_right = 1, .wrong_at = at, .seed = 5})) return -1;
    }
    return 0;
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

static answer *new_answers(check *c)
{
    answer *a = calloc((size_t)c->n_prompt, sizeof *a);
    token *t = calloc((size_t)c->n_prompt * (size_t)c->n_new, sizeof *t);
    if (!a || !t) exit(2);
    for (int i = 0; i < c->n_prompt; i++) a[i] = (answer){.t = t + (size_t)i * (size_t)c->n_new, .c = c};
    return a;
}

static void free_answers(answer *a)
{
    free(a[0].t);
    free(a);
}

static int usage(void)
{
    fprintf(stderr, "checkspec MODEL [--prompts 50] [--tokens 512] [--max-k 8] [--parallel 8] [--threads 1] [--draft-model D] [--spec LIST] "
                    "[--part 1/15]\n");
    return 2;
}

int main(int argc, char **argv)
{
    check c = {.n_prompt = 50, .n_new = 512, .max_k = 8, .n_parallel = 8, .part = 1, .n_part = 1};
    m5_engine_options o = {.n_threads = 1, .no_cache = true};
    m5_error err = {0};
    unsigned wanted = M5_SPEC_AUTO;
    if (argc < 2) return usage();
    o.model_path = argv[1];
    for (int i = 2; i + 1 < argc; i += 2) {
        const char *v = argv[i + 1];
        if (!strcmp(argv[i], "--prompts"))
            c.n_prompt = atoi(v);
        else if (!strcmp(argv[i], "--tokens"))
            c.n_new = atoi(v);
        else if (!strcmp(argv[i], "--max-k"))
            c.max_k = atoi(v);
        else if (!strcmp(argv[i], "--parallel"))
            c.n_parallel = atoi(v);
        else if (!strcmp(argv[i], "--threads"))
            o.n_threads = atoi(v);
        else if (!strcmp(argv[i], "--draft-model"))
            o.draft_model_path = v;
        else if (!strcmp(argv[i], "--part") && sscanf(v, "%d/%d", &c.part, &c.n_part) == 2)
            continue;
        else if (!strcmp(argv[i], "--spec") && !strcmp(v, "made"))
            wanted = 1u << M5_SPEC_SCRIPT;
        else if (strcmp(argv[i], "--spec") || m5_spec_parse(v, &wanted, &err))
            return usage();
    }
    if (argc % 2 || c.n_prompt < 1 || c.n_new < 1 || c.max_k < 1 || c.max_k > M5_SPEC_MAX_K || c.n_parallel < 1 || c.part < 1 || c.part > c.n_part) return usage();
    o.n_parallel = c.n_parallel;
    o.n_ctx = c.n_new + 64 + M5_SPEC_MAX_K;
    o.spec = (m5_spec_params){.sources = wanted, .k = c.max_k};
    m5_log_set_level(M5_LOG_ERROR);
    if (m5_engine_open(&c.e, &o, &err)) {
        fprintf(stderr, "checkspec: %s\n", err.text);
        return 2;
    }
    pthread_mutex_init(&c.mu, NULL);
    pthread_cond_init(&c.cv, NULL);
    c.prompts = calloc((size_t)c.n_prompt, sizeof *c.prompts);
    c.n_ids = calloc((size_t)c.n_prompt, sizeof *c.n_ids);
    c.scripts = calloc((size_t)c.n_prompt, sizeof *c.scripts);
    c.ids = calloc((size_t)c.n_prompt * (size_t)c.n_new, sizeof *c.ids);
    if (!c.prompts || !c.n_ids || !c.scripts || !c.ids) return 2;
    c.plain[0] = new_answers(&c), c.plain[1] = new_answers(&c), c.got = new_answers(&c);
    make_prompts(&c, m5_engine_config(c.e)->n_vocab);
    int rc = all(&c, wanted);
    printf("%s: %ld answers, %ld tokens, %ld drafted, %ld differ\n", o.model_path, c.n_answer, c.n_token, c.n_draft, c.n_bad);
    m5_engine_close(c.e);
    free_answers(c.plain[0]), free_answers(c.plain[1]), free_answers(c.got);
    free(c.prompts), free(c.n_ids), free(c.scripts), free(c.ids);
    return rc ? 2 : c.n_bad > 0;
}
