/* SPDX-License-Identifier: Apache-2.0 */
/* Sampling; the contract and the order of filters are in sampler.h. Cost on a vocabulary of 250 000: a few passes over the logits; selection goes
 * through buckets of equal logit width, so only the bucket at the edge is ever ordered. */
#include "engine/sampler.h"

#include "base/mem.h"
#include "engine/row.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum {
    N_BUCKET = 4096,
    BUCKETS_PER_NAT = 64, /* 64 nats in all: e^-64 is below the resolution of a float sum */
    BLOCK = 64            /* candidates per partial sum of the draw */
};

struct m5_sampler {
    int n_row, n_vocab;
    float *logits;     /* [n_vocab] after bias and penalties */
    int32_t *count;    /* [n_vocab] zero between calls */
    /* candidates in order of id */
    int n_cand;
    int32_t *id;
    float *dist;       /* nats below the largest, >= 0, after temperature */
    float *weight;     /* exp(-dist) */
    float *key;        /* what a selection orders by */
    uint64_t *heap;    /* [n_vocab] */
    double *block;     /* [n_vocab / BLOCK + 1] */
    int bucket_n[N_BUCKET];
    double bucket_w[N_BUCKET];
    m5_token_prob top[M5_MAX_TOP_LOGPROBS];
};

void m5_sampling_default(m5_sampling *s)
{
    memset(s, 0, sizeof(*s));
    s->temperature = 1;
    s->top_p = 1;
    s->typical_p = 1;
    s->repetition_penalty = 1;
    s->n_top_logprobs = -1;
}

int m5_sampler_new(m5_sampler **out, int n_row, int n_vocab, m5_error *err)
{
    *out = NULL;
    if (n_row < 1 || n_vocab < 1 || n_vocab > n_row)
        return m5_error_set(err, M5_ERR_ARG, "sampler: %d of %d logits cannot be drawn from", n_vocab, n_row);
    m5_sampler *s = m5_calloc(M5_MEM_SCRATCH, 1, sizeof(*s));
    if (!s) return m5_error_set(err, M5_ERR_NOMEM, "sampler: out of memory");
    size_t n = (size_t)n_vocab;
    s->n_row = n_row;
    s->n_vocab = n_vocab;
    s->logits = m5_calloc(M5_MEM_SCRATCH, n, sizeof(float));
    s->count = m5_calloc(M5_MEM_SCRATCH, n, sizeof(int32_t));
    s->id = m5_calloc(M5_MEM_SCRATCH, n, sizeof(int32_t));
    s->dist = m5_calloc(M5_MEM_SCRATCH, n, sizeof(float));
    s->weight = m5_calloc(M5_MEM_SCRATCH, n, sizeof(float));
    s->key = m5_calloc(M5_MEM_SCRATCH, n, sizeof(float));
    s->heap = m5_calloc(M5_MEM_SCRATCH, n, sizeof(uint64_t));
    s->block = m5_calloc(M5_MEM_SCRATCH, n / BLOCK + 1, sizeof(double));
    if (!s->logits || !s->count || !s->id || !s->dist || !s->weight || !s->key || !s->heap || !s->block) {
        m5_sampler_free(s);
        return m5_error_set(err, M5_ERR_NOMEM, "sampler: out of memory for a vocabulary of %d", n_vocab);
    }
    *out = s;
    return 0;
}

void m5_sampler_free(m5_sampler *s)
{
    if (!s) return;
    m5_free(s->logits);
    m5_free(s->count);
    m5_free(s->id);
    m5_free(s->dist);
    m5_free(s->weight);
    m5_free(s->key);
    m5_free(s->heap);
    m5_free(s->block);
    m5_free(s);
}

int m5_sampling_check(const m5_sampling *p, int n_row, m5_error *err)
{
    const struct {
        const char *name;
        float value, low, high;
    } range[] = {
        {"temperature", p->temperature, 0, 1e6f},
        {"top_p", p->top_p, 0, 1e6f},
        {"min_p", p->min_p, 0, 1},
        {"typical_p", p->typical_p, 0, 1e6f},
        {"repetition_penalty", p->repetition_penalty, FLT_MIN, 1e6f},
        {"presence_penalty", p->presence_penalty, -1e6f, 1e6f},
        {"frequency_penalty", p->frequency_penalty, -1e6f, 1e6f},
    };
    for (size_t i = 0; i < sizeof(range) / sizeof(range[0]); i++)
        if (!(range[i].value >= range[i].low && range[i].value <= range[i].high))
            return m5_error_set(err, M5_ERR_ARG, "%s %g is out of range", range[i].name, (double)range[i].value);
    if (p->top_k < 0) return m5_error_set(err, M5_ERR_ARG, "top_k %d is negative", p->top_k);
    if (p->penalty_last_n < -1) return m5_error_set(err, M5_ERR_ARG, "penalty_last_n %d is below -1", p->penalty_last_n);
    if (p->n_top_logprobs > M5_MAX_TOP_LOGPROBS)
        return m5_error_set(err, M5_ERR_ARG, "top_logprobs %d is above the limit of %d", p->n_top_logprobs, M5_MAX_TOP_LOGPROBS);
    if (p->n_bias < 0 || (p->n_bias > 0 && !p->bias)) return m5_error_set(err, M5_ERR_ARG, "logit_bias list of %d entries is not valid", p->n_bias);
    for (int i = 0; i < p->n_bias; i++) {
        if (p->bias[i].id < 0 || p->bias[i].id >= n_row)
            return m5_error_set(err, M5_ERR_ARG, "logit_bias names token %d, the model has tokens 0 to %d", (int)p->bias[i].id, n_row - 1);
        if (isnan(p->bias[i].bias)) return m5_error_set(err, M5_ERR_ARG, "logit_bias of token %d is not a number", (int)p->bias[i].id);
    }
    return 0;
}

void m5_philox4x32(uint32_t c[4], const uint32_t key[2])
{
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c[0], p1 = (uint64_t)0xCD9E8D57u * c[2];
        uint32_t a = (uint32_t)(p1 >> 32) ^ c[1] ^ k0, b = (uint32_t)(p0 >> 32) ^ c[3] ^ k1;
        c[0] = a;
        c[1] = (uint32_t)p1;
        c[2] = b;
        c[3] = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

double m5_sampler_uniform(uint64_t seed, uint64_t position)
{
    uint32_t c[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    m5_philox4x32(c, key);
    uint64_t bits = ((uint64_t)(c[0] >> 5) << 26) | (c[1] >> 6);
    return (double)bits * 0x1p-53;
}

static bool above(float value, int32_t id, m5_token_prob than) { return value > than.logprob || (value == than.logprob && id < than.id); }

static void fill_logprobs(m5_sampler *s, const m5_sample_in *in, m5_sample_out *out)
{
    int want = in->params->n_top_logprobs;
    if (want < 0) return;
    const float *x = in->logits;
    float max = m5_row_max(x, s->n_row);
    double lz = m5_row_log_sum(x, s->n_row, max);
    out->logprob = (float)((double)(x[out->id] - max) - lz);
    if (want > s->n_vocab) want = s->n_vocab;
    int n = 0;
    for (int32_t i = 0; want > 0 && i < s->n_vocab; i++) {
        float v = isnan(x[i]) ? -INFINITY : x[i];
        if (n == want && !above(v, i, s->top[n - 1])) continue;
        int at = n < want ? n++ : n - 1;
        for (; at > 0 && above(v, i, s->top[at - 1]); at--) s->top[at] = s->top[at - 1];
        s->top[at] = (m5_token_prob){i, v};
    }
    for (int i = 0; i < n; i++) s->top[i].logprob = (float)((double)(s->top[i].logprob - max) - lz);
    out->top = s->top;
    out->n_top = n;
}

static void apply_mask(float *l, int n, const uint64_t *mask)
{
    for (int w = 0; w * 64 < n; w++) {
        if (mask[w] == UINT64_MAX) continue;
        int end = (w + 1) * 64 < n ? (w + 1) * 64 : n;
        for (int i = w * 64; i < end; i++)
            if (!(mask[w] >> (i & 63) & 1)) l[i] = -INFINITY;
    }
}

/* Logits after mask, bias and penalties: the caller's array itself when there is nothing to change. */
static const float *adjusted(m5_sampler *s, const m5_sample_in *in)
{
    const m5_sampling *p = in->params;
    bool repeat = p->repetition_penalty != 1 && p->penalty_last_n != 0;
    bool count = (p->presence_penalty != 0 || p->frequency_penalty != 0) && in->n_ids > in->n_prompt;
    if (!in->mask && !p->n_bias && !repeat && !count) return in->logits;
    float *l = s->logits;
    memcpy(l, in->logits, (size_t)s->n_vocab * sizeof(*l));
    if (in->mask) apply_mask(l, s->n_vocab, in->mask);
    for (int i = 0; i < p->n_bias; i++) {
        int32_t id = p->bias[i].id;
        if (id >= s->n_vocab) continue;
        l[id] = p->bias[i].bias <= -100 ? -INFINITY : l[id] + p->bias[i].bias;
    }
    if (repeat) {
        size_t from = p->penalty_last_n > 0 && (size_t)p->penalty_last_n < in->n_ids ? in->n_ids - (size_t)p->penalty_last_n : 0;
        for (size_t i = from; i < in->n_ids; i++) {
            int32_t id = in->ids[i];
            if (id < 0 || id >= s->n_vocab || s->count[id]) continue;
            s->count[id] = 1;
            l[id] = l[id] > 0 ? l[id] / p->repetition_penalty : l[id] * p->repetition_penalty;
        }
        for (size_t i = from; i < in->n_ids; i++)
            if (in->ids[i] >= 0 && in->ids[i] < s->n_vocab) s->count[in->ids[i]] = 0;
    }
    if (count) {
        for (size_t i = in->n_prompt; i < in->n_ids; i++)
            if (in->ids[i] >= 0 && in->ids[i] < s->n_vocab) s->count[in->ids[i]]++;
        for (size_t i = in->n_prompt; i < in->n_ids; i++) {
            int32_t id = in->ids[i];
            if (id < 0 || id >= s->n_vocab || !s->count[id]) continue;
            l[id] -= p->presence_penalty + (float)s->count[id] * p->frequency_penalty;
            s->count[id] = 0;
        }
    }
    return l;
}

static void sift_down(uint64_t *h, int n, int i)
{
    for (;;) {
        int c = 2 * i + 1;
        if (c >= n) return;
        if (c + 1 < n && h[c + 1] < h[c]) c++;
        if (h[i] <= h[c]) return;
        uint64_t t = h[i];
        h[i] = h[c];
        h[c] = t;
        i = c;
    }
}

static int bucket_of(float key)
{
    float b = key * BUCKETS_PER_NAT;
    return b < N_BUCKET - 1 ? (int)b : N_BUCKET - 1;
}

/* Order of candidate `index` in a selection: smaller key first, then lower index, which is lower id. Keys are >= 0, so their bits order like
 * integers. */
static uint64_t rank_of(float key, int index)
{
    union {
        float f;
        uint32_t u;
    } k = {key};
    return (uint64_t)k.u << 32 | (uint32_t)index;
}

/* Keeps the candidates of smallest key, in order, until n_keep of them or a share `mass` of the weight is reached; at least one. */
static void keep_best(m5_sampler *s, const float *key, int n_keep, double mass)
{
    memset(s->bucket_n, 0, sizeof(s->bucket_n));
    memset(s->bucket_w, 0, sizeof(s->bucket_w));
    for (int i = 0; i < s->n_cand; i++) {
        int b = bucket_of(key[i]);
        s->bucket_n[b]++;
        s->bucket_w[b] += (double)s->weight[i];
    }
    double total = 0, sum = 0;
    for (int b = 0; b < N_BUCKET; b++) total += s->bucket_w[b];
    double goal = mass * total;
    int edge = 0, n = 0;
    while (edge < N_BUCKET - 1 && n + s->bucket_n[edge] < n_keep && sum + s->bucket_w[edge] < goal) {
        n += s->bucket_n[edge];
        sum += s->bucket_w[edge++];
    }
    int n_heap = 0;
    for (int i = 0; i < s->n_cand; i++)
        if (bucket_of(key[i]) == edge) s->heap[n_heap++] = rank_of(key[i], i);
    for (int i = n_heap / 2 - 1; i >= 0; i--) sift_down(s->heap, n_heap, i);
    uint64_t last = n_heap ? s->heap[0] : UINT64_MAX;
    while (n_heap > 0) {
        last = s->heap[0];
        n++;
        sum += (double)s->weight[(uint32_t)last];
        s->heap[0] = s->heap[--n_heap];
        sift_down(s->heap, n_heap, 0);
        if (n >= n_keep || sum >= goal) break;
    }
    int m = 0;
    for (int i = 0; i < s->n_cand; i++)
        if (rank_of(key[i], i) <= last) {
            s->id[m] = s->id[i];
            s->dist[m] = s->dist[i];
            s->weight[m++] = s->weight[i];
        }
    s->n_cand = m;
}

static void keep_weight(m5_sampler *s, float least)
{
    int m = 0;
    for (int i = 0; i < s->n_cand; i++)
        if (s->weight[i] >= least) {
            s->id[m] = s->id[i];
            s->dist[m] = s->dist[i];
            s->weight[m++] = s->weight[i];
        }
    s->n_cand = m;
}

/* Locally typical sampling (Meister et al. 2022): nearest to the entropy first. -ln p_i - H = dist_i - sum(w dist) / sum(w): the normaliser
 * cancels, so no logarithm is needed. */
static void keep_typical(m5_sampler *s, double mass)
{
    double sum = 0, mean = 0;
    for (int i = 0; i < s->n_cand; i++) {
        sum += (double)s->weight[i];
        mean += (double)s->weight[i] * (double)s->dist[i];
    }
    mean /= sum;
    for (int i = 0; i < s->n_cand; i++) s->key[i] = (float)fabs((double)s->dist[i] - mean);
    keep_best(s, s->key, s->n_cand, mass);
}

static int32_t draw_from(m5_sampler *s, double u)
{
    int n_block = (s->n_cand + BLOCK - 1) / BLOCK;
    double total = 0;
    for (int b = 0; b < n_block; b++) {
        int end = (b + 1) * BLOCK < s->n_cand ? (b + 1) * BLOCK : s->n_cand;
        double sum = 0;
        for (int i = b * BLOCK; i < end; i++) sum += (double)s->weight[i];
        s->block[b] = sum;
        total += sum;
    }
    double goal = u * total, sum = 0;
    int b = 0;
    while (b < n_block - 1 && sum + s->block[b] <= goal) sum += s->block[b++];
    int32_t last = s->id[0];
    for (int i = b * BLOCK; i < s->n_cand; i++) {
        if (s->weight[i] <= 0) continue;
        last = s->id[i];
        sum += (double)s->weight[i];
        if (sum > goal) break;
    }
    return last;
}

static int32_t draw(m5_sampler *s, const m5_sampling *p, const float *l, float max, uint64_t position)
{
    /* Candidates with a weight of 0 are left out at once; dist is NaN for NaN logits, which the comparison leaves out too. */
    int n = 0;
    for (int i = 0; i < s->n_vocab; i++) {
        float d = (max - l[i]) / p->temperature;
        s->id[n] = i;
        s->dist[n] = d;
        n += d <= 87.0f;
    }
    for (int i = 0; i < n; i++) s->weight[i] = m5_row_exp_neg(-s->dist[i]);
    s->n_cand = n;
    if (p->top_k > 0 && p->top_k < s->n_cand) keep_best(s, s->dist, p->top_k, INFINITY);
    if (p->top_p < 1) keep_best(s, s->dist, s->n_cand, (double)p->top_p);
    if (p->min_p > 0) keep_weight(s, p->min_p);
    if (p->typical_p > 0 && p->typical_p < 1) keep_typical(s, (double)p->typical_p);
    return draw_from(s, m5_sampler_uniform(p->seed, position));
}

int m5_sampler_draw(m5_sampler *s, const m5_sample_in *in, m5_sample_out *out, m5_error *err)
{
    *out = (m5_sample_out){.id = -1};
    const m5_sampling *p = in->params;
    const float *l = adjusted(s, in);
    float max = m5_row_max(l, s->n_vocab);
    if (max == -INFINITY) {
        if (m5_row_max(in->logits, s->n_vocab) == -INFINITY) return m5_error_set(err, M5_ERR_INTERNAL, "the model gave no logit that is a number");
        return m5_error_set(err, M5_ERR_ARG, in->mask ? "the grammar and logit_bias together forbid every token" : "logit_bias forbids every token");
    }
    s->n_cand = 0;
    if (p->temperature == 0 || max == INFINITY)
        out->id = m5_row_first_at(l, s->n_vocab, max);
    else
        out->id = draw(s, p, l, max, in->n_ids);
    fill_logprobs(s, in, out);
    return 0;
}

int m5_sampler_candidates(const m5_sampler *s, const int32_t **ids, const float **weights)
{
    *ids = s->id;
    *weights = s->weight;
    return s->n_cand;
}
