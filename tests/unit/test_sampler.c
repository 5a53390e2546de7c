/* SPDX-License-Identifier: Apache-2.0 */
/* Sampler: known answers of the generator, each filter against a plain sorted version in double, penalties, log-probabilities, determinism. */
#include "engine/sampler.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/task.h"
#include "t.h"

#include <math.h>

static uint64_t rng = 88172645463325252u;
static double frand(void)
{
    rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
    return (double)(rng >> 11) * 0x1p-53;
}

/* ---- plain version: candidates sorted by probability, everything in double ---- */
typedef struct ref_cand {
    int id;
    double d, w, key;
} ref_cand;

static int by_key(const void *a, const void *b)
{
    const ref_cand *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return x->id - y->id;
}

static int by_id(const void *a, const void *b) { return ((const ref_cand *)a)->id - ((const ref_cand *)b)->id; }

static double weight_sum(const ref_cand *c, int n)
{
    double t = 0;
    for (int i = 0; i < n; i++) t += c[i].w;
    return t;
}

static int cut_mass(ref_cand *c, int n, double share)
{
    double goal = share * weight_sum(c, n), sum = 0;
    int k = 0;
    while (k < n) {
        sum += c[k++].w;
        if (sum >= goal) break;
    }
    return k;
}

static int ref_filter(ref_cand *c, int n, const m5_sampling *p, const float *logits)
{
    double max = -INFINITY;
    for (int i = 0; i < n; i++)
        if ((double)logits[i] > max) max = (double)logits[i];
    for (int i = 0; i < n; i++) {
        double d = (double)(((float)max - logits[i]) / p->temperature); /* in float like the sampler, so that ties are the same ties */
        c[i] = (ref_cand){i, d, exp(-d), d};
    }
    qsort(c, (size_t)n, sizeof(*c), by_key);
    while (n > 0 && c[n - 1].d > 87) n--;
    if (p->top_k > 0 && p->top_k < n) n = p->top_k;
    if (p->top_p < 1) n = cut_mass(c, n, (double)p->top_p);
    if (p->min_p > 0)
        while (c[n - 1].w < (double)p->min_p) n--;
    if (p->typical_p < 1) {
        double h = 0, z = weight_sum(c, n);
        for (int i = 0; i < n; i++) h += c[i].w / z * c[i].d;
        for (int i = 0; i < n; i++) c[i].key = fabs(c[i].d - h);
        qsort(c, (size_t)n, sizeof(*c), by_key);
        n = cut_mass(c, n, (double)p->typical_p);
    }
    qsort(c, (size_t)n, sizeof(*c), by_id);
    return n;
}

static int draw(m5_sampler *s, const m5_sampling *p, const float *logits, uint64_t position, m5_sample_out *out)
{
    static int32_t ids[70000];
    m5_sample_out tmp;
    m5_error err = {0};
    m5_sample_in in = {p, logits, ids, (size_t)position, (size_t)position, NULL};
    int rc = m5_sampler_draw(s, &in, out ? out : &tmp, &err);
    return rc ? rc : (out ? out : &tmp)->id;
}

static void test_generator(void)
{
    uint32_t a[4] = {0}, k[2] = {0};
    m5_philox4x32(a, k); /* known answers published with Random123 */
    T_CHECK(a[0] == 0x6627e8d5 && a[1] == 0xe169c58d && a[2] == 0xbc57ac4c && a[3] == 0x9b00dbd8);
    uint32_t b[4] = {~0u, ~0u, ~0u, ~0u}, kb[2] = {~0u, ~0u};
    m5_philox4x32(b, kb);
    T_CHECK(b[0] == 0x408f276d && b[1] == 0x41c83b0e && b[2] == 0xa20bc7c6 && b[3] == 0x6d5451fd);
    T_CHECK(m5_sampler_uniform(1, 2) == m5_sampler_uniform(1, 2) && m5_sampler_uniform(1, 2) != m5_sampler_uniform(1, 3) &&
            m5_sampler_uniform(1, 2) != m5_sampler_uniform(2, 2) && m5_sampler_uniform(0, 1) != m5_sampler_uniform(0, 1ull << 32));
}

static void test_filters(void)
{
    enum { N = 3000 };
    static float logits[N];
    static ref_cand c[N];
    m5_sampler *s;
    T_EQ_INT(m5_sampler_new(&s, N, N, NULL), 0);
    for (int trial = 0; trial < 400; trial++) {
        double spread = trial % 4 == 0 ? 0.5 : trial % 4 == 1 ? 3 : trial % 4 == 2 ? 12 : 60;
        for (int i = 0; i < N; i++) logits[i] = (float)(spread * (frand() + frand() + frand() - 1.5) * 2);
        if (trial % 5 == 0)
            for (int i = 0; i < N; i++) logits[i] = roundf(logits[i]); /* many ties */
        m5_sampling p;
        m5_sampling_default(&p);
        p.temperature = trial % 3 ? (float)(0.3 + frand()) : 1;
        if (trial & 1) p.top_k = 1 + (int)(frand() * (trial & 16 ? 40 : 2500));
        if (trial & 2) p.top_p = (float)(0.3 + 0.69 * frand());
        if (trial & 4) p.min_p = (float)(0.1 * frand());
        if (trial & 8) p.typical_p = (float)(0.3 + 0.69 * frand());
        p.seed = (uint64_t)trial;
        int n_want = ref_filter(c, N, &p, logits);
        int got = draw(s, &p, logits, (uint64_t)trial, NULL);
        const int32_t *ids;
        const float *w;
        int n_got = m5_sampler_candidates(s, &ids, &w);
        bool same = n_got == n_want;
        double z = weight_sum(c, n_want), zg = 0;
        for (int i = 0; i < n_got; i++) zg += (double)w[i];
        for (int i = 0; same && i < n_want; i++) same = ids[i] == c[i].id && fabs((double)w[i] / zg - c[i].w / z) < 1e-6 * (c[i].w / z) + 1e-30;
        T_CHECK(same, "trial %d: %d candidates, want %d (k %d p %g min %g typ %g)", trial, n_got, n_want, p.top_k, (double)p.top_p, (double)p.min_p,
                (double)p.typical_p);
        double goal = m5_sampler_uniform(p.seed, (uint64_t)trial) * z, sum = 0;
        int want = c[0].id;
        for (int i = 0; i < n_want && sum <= goal; i++) sum += c[i].w, want = c[i].id;
        T_EQ_INT(got, want);
    }
    m5_sampler_free(s);
}

/* What transformers leaves of the same distribution: the order and the meaning of the filters. */
static void test_against_transformers(void)
{
    char *text = NULL;
    size_t n = 0;
    m5_json *j = NULL;
    m5_error err = {0};
    if (m5_file_read(&text, &n, M5_TEST_DATA "/sampler.json", 1 << 22, &err) || m5_json_parse(&j, text, n, NULL, &err)) {
        T_CHECK(false, "%s", err.text);
        m5_free(text);
        return;
    }
    const m5_json *rows = m5_json_get(j, "rows");
    T_CHECK(m5_json_len(rows) > 20);
    for (size_t r = 0; r < m5_json_len(rows); r++) {
        enum { MAX = 64 };
        const m5_json *row = m5_json_at(rows, r), *par = m5_json_get(row, "params"), *probs = m5_json_get(row, "probs");
        const m5_json *lj = m5_json_get(row, "logits"), *ij = m5_json_get(row, "ids"), *pj = m5_json_get(row, "logprobs");
        float logits[MAX];
        int32_t hist[MAX];
        int n_vocab = (int)m5_json_len(lj), n_hist = (int)m5_json_len(ij);
        for (int i = 0; i < n_vocab; i++) logits[i] = (float)m5_json_real(m5_json_at(lj, (size_t)i));
        for (int i = 0; i < n_hist; i++) hist[i] = (int32_t)m5_json_int(m5_json_at(ij, (size_t)i));
        m5_sampling p;
        m5_sampling_default(&p);
        if (m5_json_get(par, "temperature")) p.temperature = (float)m5_json_real(m5_json_get(par, "temperature"));
        if (m5_json_get(par, "top_p")) p.top_p = (float)m5_json_real(m5_json_get(par, "top_p"));
        if (m5_json_get(par, "min_p")) p.min_p = (float)m5_json_real(m5_json_get(par, "min_p"));
        if (m5_json_get(par, "typical_p")) p.typical_p = (float)m5_json_real(m5_json_get(par, "typical_p"));
        if (m5_json_get(par, "repetition_penalty")) p.repetition_penalty = (float)m5_json_real(m5_json_get(par, "repetition_penalty"));
        p.top_k = (int)m5_json_int(m5_json_get(par, "top_k"));
        p.penalty_last_n = -1;
        p.n_top_logprobs = 3;
        m5_sampler *s = NULL;
        m5_sample_out out = {0};
        T_EQ_INT(m5_sampler_new(&s, n_vocab, n_vocab, NULL), 0);
        m5_sample_in in = {&p, logits, hist, (size_t)n_hist, (size_t)n_hist, NULL};
        T_EQ_INT(m5_sampler_draw(s, &in, &out, &err), 0);
        const int32_t *id;
        const float *w;
        int n_cand = m5_sampler_candidates(s, &id, &w);
        double z = 0;
        for (int i = 0; i < n_cand; i++) z += (double)w[i];
        T_CHECK((size_t)n_cand == m5_json_len(probs), "row %zu: %d candidates, transformers %zu", r, n_cand, m5_json_len(probs));
        for (int i = 0; i < n_cand; i++) {
            char key[16];
            snprintf(key, sizeof(key), "%d", (int)id[i]);
            double want = m5_json_real(m5_json_get(probs, key));
            T_CHECK(fabs((double)w[i] / z - want) < 2e-6, "row %zu token %s: %g, transformers %g", r, key, (double)w[i] / z, want);
        }
        T_CHECK(fabs((double)out.logprob - m5_json_real(m5_json_at(pj, (size_t)out.id))) < 2e-6, "row %zu", r);
        m5_sampler_free(s);
    }
    m5_json_unref(j);
    m5_free(text);
}

static void test_greedy_and_pads(void)
{
    float logits[10] = {0, 3, 1, 3, -1, 2, NAN, -INFINITY, 9, 9};
    m5_sampler *s;
    m5_sampling p;
    m5_sampling_default(&p);
    T_EQ_INT(m5_sampler_new(&s, 10, 8, NULL), 0);
    p.temperature = 0;
    T_EQ_INT(draw(s, &p, logits, 0, NULL), 1); /* the lowest id of the tie; 8 and 9 are padding */
    p.temperature = 5;
    for (int i = 0; i < 2000; i++) {
        int id = draw(s, &p, logits, (uint64_t)i, NULL);
        T_CHECK(id >= 0 && id < 6, "%d", id);
    }
    p.top_p = 0;
    T_EQ_INT(draw(s, &p, logits, 5, NULL), 1);
    p.top_p = 1;
    p.temperature = 1e-9f;
    int id = draw(s, &p, logits, 5, NULL);
    T_CHECK(id == 1 || id == 3);
    float none[10] = {NAN, NAN, NAN, NAN, NAN, NAN, NAN, -INFINITY, 1, 1};
    T_EQ_INT(draw(s, &p, none, 0, NULL), M5_ERR_INTERNAL);
    logits[4] = INFINITY;
    T_EQ_INT(draw(s, &p, logits, 0, NULL), 4);
    m5_sampler_free(s);
}

static void test_frequencies(void)
{
    float logits[5] = {logf(0.5f), logf(0.25f), logf(0.125f), logf(0.1f), logf(0.025f)};
    const double prob[5] = {0.5, 0.25, 0.125, 0.1, 0.025};
    enum { N = 60000 };
    int count[5] = {0};
    m5_sampler *s;
    m5_sampling p;
    m5_sampling_default(&p);
    p.seed = 12345;
    T_EQ_INT(m5_sampler_new(&s, 5, 5, NULL), 0);
    for (int i = 0; i < N; i++) count[draw(s, &p, logits, (uint64_t)i, NULL)]++;
    for (int i = 0; i < 5; i++) {
        double sigma = sqrt(N * prob[i] * (1 - prob[i]));
        T_CHECK(fabs(count[i] - N * prob[i]) < 4 * sigma, "token %d: %d of %d", i, count[i], N);
    }
    m5_sampler_free(s);
}

static void test_mask(void)
{
    enum { N = 70 };
    float logits[N];
    for (int i = 0; i < N; i++) logits[i] = (float)(i % 7);
    m5_sampler *s;
    m5_sampling p;
    m5_error err = {0};
    m5_sample_out out;
    m5_sampling_default(&p);
    T_EQ_INT(m5_sampler_new(&s, N, N, NULL), 0);
    const int32_t ids[] = {1, 2};
    uint64_t mask[2] = {(uint64_t)1 << 3 | (uint64_t)1 << 10, (uint64_t)1 << 4}; /* 3, 10 and 68 */
    m5_sample_in in = {&p, logits, ids, 2, 2, mask};
    bool seen[N] = {0};
    for (uint64_t seed = 0; seed < 200; seed++) {
        p.seed = seed;
        T_EQ_INT(m5_sampler_draw(s, &in, &out, &err), 0);
        seen[out.id] = true;
    }
    for (int i = 0; i < N; i++) T_CHECK(seen[i] == (i == 3 || i == 10 || i == 68), "id %d", i);
    /* Log-probabilities stay those of the model: the mask bounds the choice, not what is told about it. */
    p.temperature = 0, p.n_top_logprobs = 1;
    T_EQ_INT(m5_sampler_draw(s, &in, &out, &err), 0);
    T_EQ_INT(out.id, 68); /* 68 mod 7 = 5, the largest of the three */
    T_CHECK(out.n_top == 1 && out.top[0].id == 6 && out.logprob < out.top[0].logprob);
    mask[0] = mask[1] = 0;
    T_EQ_INT(m5_sampler_draw(s, &in, &out, &err), M5_ERR_ARG);
    m5_sampler_free(s);
}

static void test_penalties(void)
{
    enum { N = 8 };
    float logits[N] = {4, 3.9f, -1, 2, 1, 0, -2, -3};
    int32_t ids[] = {0, 0, 3, 7, 1, 1, 100000}; /* prompt 0 0 3 7, generated 1 1 and an id out of range */
    m5_sampler *s;
    m5_sampling p;
    m5_error err;
    m5_sample_out out;
    m5_sampling_default(&p);
    T_EQ_INT(m5_sampler_new(&s, N, N, NULL), 0);
    m5_sample_in in = {&p, logits, ids, 7, 4, NULL};
    const int32_t *id;
    const float *w;
    struct {
        float rep, pres, freq;
        int last_n;
        float want[N];
    } rows[] = {
        {2, 0, 0, -1, {2, 1.95f, -1, 1, 1, 0, -2, -6}},
        {2, 0, 0, 3, {4, 1.95f, -1, 2, 1, 0, -2, -3}},
        {2, 0, 0, 0, {4, 3.9f, -1, 2, 1, 0, -2, -3}},
        {1, 0.5f, 0.25f, 0, {4, 2.9f, -1, 2, 1, 0, -2, -3}},
        {2, 0.5f, 0.25f, -1, {2, 0.95f, -1, 1, 1, 0, -2, -6}},
    };
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++)
        for (int again = 0; again < 2; again++) { /* the second time shows that nothing is left behind */
            p.repetition_penalty = rows[r].rep, p.presence_penalty = rows[r].pres, p.frequency_penalty = rows[r].freq, p.penalty_last_n = rows[r].last_n;
            T_EQ_INT(m5_sampler_draw(s, &in, &out, &err), 0);
            T_EQ_INT(m5_sampler_candidates(s, &id, &w), N);
            for (int i = 1; i < N; i++)
                T_CHECK(fabs(log((double)w[i] / (double)w[0]) - (double)(rows[r].want[i] - rows[r].want[0])) < 1e-5, "row %zu token %d", r, i);
        }
    m5_sampling_default(&p);
    m5_logit_bias bias[] = {{0, -100}, {2, 6}, {1, -0.5f}};
    p.bias = bias, p.n_bias = 3, p.n_top_logprobs = 2;
    T_EQ_INT(m5_sampler_draw(s, &in, &out, &err), 0);
    T_EQ_INT(m5_sampler_candidates(s, &id, &w), N - 1);
    T_CHECK(id[0] == 1 && id[1] == 2 && fabs(log((double)w[1] / (double)w[0]) - (5 - 3.4)) < 1e-5);
    T_CHECK(out.n_top == 2 && out.top[0].id == 0 && out.top[1].id == 1); /* log-probabilities know no bias */
    p.temperature = 0;
    T_EQ_INT(m5_sampler_draw(s, &in, &out, &err), 0);
    T_EQ_INT(out.id, 2);
    m5_logit_bias all[N];
    for (int i = 0; i < N; i++) all[i] = (m5_logit_bias){i, -200};
    p.bias = all, p.n_bias = N;
    T_EQ_INT(m5_sampler_draw(s, &in, &out, &err), M5_ERR_ARG);
    m5_sampler_free(s);
}

static void test_logprobs(void)
{
    enum { N = 1001, REAL = 990 };
    static float logits[N];
    m5_sampler *s;
    m5_sampling p;
    m5_sample_out out = {0};
    m5_sampling_default(&p);
    p.temperature = 0.7f, p.top_k = 5, p.n_top_logprobs = 20;
    T_EQ_INT(m5_sampler_new(&s, N, REAL, NULL), 0);
    for (int i = 0; i < N; i++) logits[i] = (float)(8 * frand());
    logits[995] = 20;
    logits[30] = logits[20];
    double z = 0;
    for (int i = 0; i < N; i++) z += exp((double)logits[i]);
    int id = draw(s, &p, logits, 3, &out);
    T_CHECK(fabs((double)out.logprob - ((double)logits[id] - log(z))) < 2e-6);
    T_EQ_INT(out.n_top, 20);
    bool used[N] = {false};
    for (int k = 0; k < 20; k++) {
        int best = -1;
        for (int i = 0; i < REAL; i++)
            if (!used[i] && (best < 0 || logits[i] > logits[best])) best = i;
        used[best] = true;
        T_EQ_INT(out.top[k].id, best);
        T_CHECK(fabs((double)out.top[k].logprob - ((double)logits[best] - log(z))) < 2e-6);
    }
    p.n_top_logprobs = 0;
    draw(s, &p, logits, 3, &out);
    T_CHECK(out.n_top == 0 && out.logprob < 0);
    p.n_top_logprobs = -1;
    draw(s, &p, logits, 3, &out);
    T_CHECK(out.n_top == 0 && out.logprob == 0);
    m5_sampler_free(s);
}

static void test_allocates_nothing_and_leaves_logits(void)
{
    enum { N = 20000 };
    static float logits[N], copy[N];
    for (int i = 0; i < N; i++) copy[i] = logits[i] = (float)(6 * frand());
    m5_sampler *s;
    m5_sampling p;
    m5_sampling_default(&p);
    T_EQ_INT(m5_sampler_new(&s, N, N, NULL), 0);
    p.top_p = 0.9f, p.typical_p = 0.9f, p.min_p = 0.01f, p.top_k = 15000, p.n_top_logprobs = 5, p.repetition_penalty = 1.1f, p.penalty_last_n = -1;
    uint64_t before = m5_mem_count();
    for (int i = 0; i < 20; i++) draw(s, &p, logits, 60000 + (uint64_t)i, NULL);
    T_EQ_INT(m5_mem_count() - before, 0);
    T_CHECK(memcmp(logits, copy, sizeof(logits)) == 0);
    m5_sampler_free(s);
    for (uint64_t n = 1; n <= 9; n++) {
        m5_mem_fail_at(n);
        T_EQ_INT(m5_sampler_new(&s, N, N, NULL), M5_ERR_NOMEM);
        m5_mem_fail_at(0);
        T_CHECK(s == NULL);
    }
}

static void test_check(void)
{
    m5_sampling p;
    m5_error err;
    m5_sampling_default(&p);
    T_EQ_INT(m5_sampling_check(&p, 10, &err), 0);
    p.temperature = NAN;
    T_EQ_INT(m5_sampling_check(&p, 10, &err), M5_ERR_ARG);
    m5_sampling_default(&p);
    p.repetition_penalty = 0;
    T_EQ_INT(m5_sampling_check(&p, 10, &err), M5_ERR_ARG);
    m5_sampling_default(&p);
    p.temperature = -1;
    T_EQ_INT(m5_sampling_check(&p, 10, &err), M5_ERR_ARG);
    m5_sampling_default(&p);
    p.n_top_logprobs = M5_MAX_TOP_LOGPROBS + 1;
    T_EQ_INT(m5_sampling_check(&p, 10, &err), M5_ERR_ARG);
    m5_sampling_default(&p);
    m5_logit_bias b = {10, 1};
    p.bias = &b, p.n_bias = 1;
    T_EQ_INT(m5_sampling_check(&p, 10, &err), M5_ERR_ARG);
    T_CHECK(strstr(err.text, "10") != NULL);
}

int main(void)
{
    test_generator();
    test_filters();
    test_against_transformers();
    test_greedy_and_pads();
    test_frequencies();
    test_mask();
    test_penalties();
    test_logprobs();
    test_allocates_nothing_and_leaves_logits();
    test_check();
    return t_done();
}
