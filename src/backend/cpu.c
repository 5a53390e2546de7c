/* SPDX-License-Identifier: Apache-2.0 */
/* CPU backend: opening, closing, and the scratch that operators share. Products are in cpu_linear.c, everything else in cpu_mix*.c. */
#include "backend/cpu_internal.h"
#include "base/mem.h"

int m5_cpu_open(m5_cpu **out, const m5_cpu_options *opt, m5_error *err)
{
    *out = NULL;
    m5_cpu *c = m5_calloc(M5_MEM_MISC, 1, sizeof *c);
    if (!c) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for the CPU backend");
    m5_kernels_init(&c->k, opt->cpu_mask);
    c->act_f32 = opt->act_f32;
    c->n_threads = opt->n_threads > 0 ? opt->n_threads : m5_cpu_count();
    int rc = m5_pool_open(&c->pool, c->n_threads, err);
    if (rc == 0) rc = m5_cpu_linear_open(c, err);
    if (rc == 0) rc = m5_cpu_reserve(c, 1, 0, 0, err);
    if (rc < 0) {
        m5_cpu_close(c);
        return rc;
    }
    *out = c;
    return 0;
}

void m5_cpu_close(m5_cpu *c)
{
    if (!c) return;
    m5_cpu_linear_close(c);
    if (c->work) {
        for (int i = 0; i < c->n_threads; i++) m5_free(c->work[i]);
    }
    m5_free(c->work);
    m5_free(c->mix);
    m5_pool_close(c->pool);
    m5_free(c);
}

m5_pool *m5_cpu_pool(m5_cpu *c)
{
    return c->pool;
}

const char *m5_cpu_isa_name(const m5_cpu *c)
{
    return m5_isa_name(c->k.isa);
}

int m5_cpu_reserve(m5_cpu *c, int max_tok, int64_t max_in, int64_t max_out, m5_error *err)
{
    if (max_tok > c->max_tok) c->max_tok = max_tok;
    if (max_in > c->max_in) c->max_in = max_in;
    if (max_out > c->max_out) c->max_out = max_out;
    int64_t want = M5_CPU_WORK_MIN_FLOATS;
    /* A row and an F32 tile of it, for matrices that are not packed. */
    const int64_t tile = (c->max_in + 64) * (M5_TILE_ROWS + 1);
    if (tile > want) want = tile;
    if (!c->work) {
        c->work = m5_calloc(M5_MEM_SCRATCH, (size_t)c->n_threads, sizeof *c->work);
        if (!c->work) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for worker scratch");
    }
    if (want > c->cap_work) {
        for (int i = 0; i < c->n_threads; i++) {
            size_t bytes;
            float *p = m5_mul_size((size_t)want, sizeof(float), &bytes) ? m5_alloc(M5_MEM_SCRATCH, bytes) : NULL;
            if (!p) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for %lld floats of worker scratch", (long long)want);
            m5_free(c->work[i]);
            c->work[i] = p;
        }
        c->cap_work = want;
    }
    return m5_cpu_linear_reserve(c, err);
}
