/* SPDX-License-Identifier: Apache-2.0 */
/* Measures memory bandwidth and arithmetic peaks with loops from the kernel table. */
#include "backend/ceilings.h"
#include "backend/cpu_internal.h"
#include "base/mem.h"

#include <string.h>

enum { N_PASS = 7, PIECE_BYTES = 4 << 20 };

/* About 20 ms of work in a kernel slot on a slow core. */
static const int64_t peak_rounds = 4 << 20, peak_rounds_ref = 1 << 20;

typedef struct read_job {
    const m5_cpu *c;
    const uint8_t *p;
    size_t n;
    uint64_t sum[64]; /* of a worker: keeps the reads from being dropped */
} read_job;

static void read_range(void *ctx, int64_t begin, int64_t end, int worker)
{
    read_job *j = ctx;
    for (int64_t i = begin; i < end; i++) {
        const size_t at = (size_t)i * PIECE_BYTES, n = j->n - at < PIECE_BYTES ? j->n - at : PIECE_BYTES;
        j->sum[worker % 64] ^= j->c->k.read_sum(j->p + at, n);
    }
}

typedef struct peak_job {
    const m5_cpu *c;
    int64_t (*fn)(int64_t rounds);
    int64_t rounds, ops; /* ops: of worker 0; all do the same */
} peak_job;

static void peak_task(void *ctx, int worker, int n_workers)
{
    peak_job *j = ctx;
    (void)n_workers;
    const int64_t ops = j->fn(j->rounds);
    if (worker == 0) j->ops = ops;
}

static void read_all(read_job *j, bool all)
{
    const int64_t pieces = (int64_t)((j->n + PIECE_BYTES - 1) / PIECE_BYTES);
    if (all)
        m5_pool_for(j->c->pool, pieces, 1, read_range, j);
    else
        read_range(j, 0, pieces, 0);
}

static double best_read(m5_cpu *c, const uint8_t *p, size_t n, bool all)
{
    read_job j = {.c = c, .p = p, .n = n};
    double best = 0;
    for (int pass = 0; pass < N_PASS; pass++) {
        const uint64_t t0 = m5_time_us();
        read_all(&j, all);
        const double rate = (double)n * 1e6 / (double)(m5_time_us() - t0 + 1);
        if (rate > best) best = rate;
    }
    return best;
}

static double best_peak(m5_cpu *c, int64_t (*fn)(int64_t), bool all)
{
    peak_job j = {c, fn, c->k.isa ? peak_rounds : peak_rounds_ref, 0};
    double best = 0;
    for (int pass = 0; pass < N_PASS; pass++) {
        const uint64_t t0 = m5_time_us();
        if (all)
            m5_pool_run(c->pool, peak_task, &j);
        else
            peak_task(&j, 0, 1);
        const double rate = (double)j.ops * (all ? c->n_threads : 1) * 1e6 / (double)(m5_time_us() - t0 + 1);
        if (rate > best) best = rate;
    }
    return best;
}

/* Bytes for a buffer: buffer_bytes, 0 = 1 GiB, or a quarter of the machine's memory if that is less. NULL = no memory. */
static uint8_t *new_buffer(size_t *buffer_bytes, m5_error *err)
{
    if (*buffer_bytes == 0) {
        const uint64_t quarter = m5_memory_total_bytes() / 4;
        *buffer_bytes = quarter < (1u << 30) ? (size_t)quarter : 1u << 30;
    }
    uint8_t *p = m5_alloc(M5_MEM_SCRATCH, *buffer_bytes);
    if (!p) {
        m5_error_set(err, M5_ERR_NOMEM, "out of memory for a buffer of %zu bytes", *buffer_bytes);
        return NULL;
    }
    memset(p, 1, *buffer_bytes);   /* otherwise every page is the same zero page */
    m5_mem_huge(p, *buffer_bytes); /* as packed weights are */
    return p;
}

int m5_ceilings_measure(m5_cpu *c, m5_ceiling out[2], size_t buffer_bytes, m5_error *err)
{
    uint8_t *p = new_buffer(&buffer_bytes, err);
    if (!p) return M5_ERR_NOMEM;
    for (int i = 0; i < 2; i++) {
        out[i].n_threads = i ? c->n_threads : 1;
        out[i].read_bytes_s = best_read(c, p, buffer_bytes, i == 1);
        out[i].int_ops_s = best_peak(c, c->k.peak_int, i == 1);
        out[i].fma_flops_s = best_peak(c, c->k.peak_fma, i == 1);
    }
    m5_free(p);
    return 0;
}

typedef struct amount {
    double n; /* bytes or operations */
    uint64_t us;
} amount;

struct m5_ceiling_probe {
    m5_cpu *c;
    uint8_t *p;
    size_t n_bytes, at; /* the next read begins at p + at: what was read last is still in the caches */
    double read_rate;   /* bytes per microsecond of the last read */
    amount read, multiplied, fma;
};

int m5_ceiling_probe_new(m5_ceiling_probe **out, m5_cpu *c, size_t buffer_bytes, m5_error *err)
{
    m5_ceiling_probe *p = m5_calloc(M5_MEM_MISC, 1, sizeof(*p));
    if (!p) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for a measurement");
    *p = (m5_ceiling_probe){.c = c, .n_bytes = buffer_bytes};
    p->p = new_buffer(&p->n_bytes, err);
    if (!p->p) {
        m5_free(p);
        return M5_ERR_NOMEM;
    }
    *out = p;
    return 0;
}

void m5_ceiling_probe_free(m5_ceiling_probe *p)
{
    if (!p) return;
    m5_free(p->p);
    m5_free(p);
}

void m5_ceiling_probe_read(m5_ceiling_probe *p, uint64_t us)
{
    const uint64_t begin = m5_time_us();
    for (uint64_t now = begin; now - begin < us;) {
        if (p->at >= p->n_bytes) p->at = 0;
        size_t n = p->n_bytes - p->at;
        const double want = p->read_rate > 0 ? p->read_rate * (double)(us - (now - begin)) : 64e6;
        if (want < (double)n) n = (size_t)want + PIECE_BYTES;
        if (n > p->n_bytes - p->at) n = p->n_bytes - p->at;
        read_job j = {.c = p->c, .p = p->p + p->at, .n = n};
        read_all(&j, true);
        const uint64_t t = m5_time_us() - now;
        p->at += n;
        p->read.n += (double)n;
        p->read.us += t;
        p->read_rate = (double)n / (double)(t + 1);
        now += t;
    }
}

static void compute(m5_ceiling_probe *p, int64_t (*fn)(int64_t), amount *a, uint64_t us)
{
    peak_job j = {p->c, fn, p->c->k.isa ? peak_rounds / 4 : peak_rounds_ref / 4, 0};
    for (uint64_t spent = 0; spent < us;) {
        const uint64_t t0 = m5_time_us();
        m5_pool_run(p->c->pool, peak_task, &j);
        const uint64_t t = m5_time_us() - t0;
        a->n += (double)j.ops * p->c->n_threads;
        a->us += t;
        spent += t + 1;
    }
}

void m5_ceiling_probe_multiply(m5_ceiling_probe *p, uint64_t us)
{
    compute(p, p->c->k.peak_int, &p->multiplied, us);
}

void m5_ceiling_probe_fma(m5_ceiling_probe *p, uint64_t us)
{
    compute(p, p->c->k.peak_fma, &p->fma, us);
}

static double rate(amount a)
{
    return a.us ? a.n * 1e6 / (double)a.us : 0;
}

m5_ceiling m5_ceiling_probe_take(m5_ceiling_probe *p)
{
    const m5_ceiling c = {.n_threads = p->c->n_threads, .read_bytes_s = rate(p->read), .int_ops_s = rate(p->multiplied), .fma_flops_s = rate(p->fma)};
    p->read = p->multiplied = p->fma = (amount){0};
    return c;
}
