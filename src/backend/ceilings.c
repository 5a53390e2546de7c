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

static double best_read(m5_cpu *c, const uint8_t *p, size_t n, bool all)
{
    read_job j = {.c = c, .p = p, .n = n};
    const int64_t pieces = (int64_t)((n + PIECE_BYTES - 1) / PIECE_BYTES);
    double best = 0;
    for (int pass = 0; pass < N_PASS; pass++) {
        const uint64_t t0 = m5_time_us();
        if (all)
            m5_pool_for(c->pool, pieces, 1, read_range, &j);
        else
            read_range(&j, 0, pieces, 0);
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

int m5_ceilings_measure(m5_cpu *c, m5_ceiling out[2], size_t buffer_bytes, m5_error *err)
{
    if (buffer_bytes == 0) {
        const uint64_t quarter = m5_memory_total_bytes() / 4;
        buffer_bytes = quarter < (1u << 30) ? (size_t)quarter : 1u << 30;
    }
    uint8_t *p = m5_alloc(M5_MEM_SCRATCH, buffer_bytes);
    if (!p) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for a buffer of %zu bytes", buffer_bytes);
    memset(p, 1, buffer_bytes);   /* otherwise every page is the same zero page */
    m5_mem_huge(p, buffer_bytes); /* as packed weights are */
    for (int i = 0; i < 2; i++) {
        out[i].n_threads = i ? c->n_threads : 1;
        out[i].read_bytes_s = best_read(c, p, buffer_bytes, i == 1);
        out[i].int_ops_s = best_peak(c, c->k.peak_int, i == 1);
        out[i].fma_flops_s = best_peak(c, c->k.peak_fma, i == 1);
    }
    m5_free(p);
    return 0;
}
