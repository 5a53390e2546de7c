/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products of the CPU backend: linear, experts, rows, preparation. */
#include "backend/cpu_internal.h"
#include "base/mem.h"

#include <string.h>

struct m5_cpu_linear_state {
    float *gate, *up, *down; /* one expert's values for one token */
    int64_t cap_row;
};

int m5_cpu_linear_open(m5_cpu *c, m5_error *err)
{
    c->linear = m5_calloc(M5_MEM_SCRATCH, 1, sizeof *c->linear);
    return c->linear ? 0 : m5_error_set(err, M5_ERR_NOMEM, "out of memory for the product state");
}

static void free_rows(struct m5_cpu_linear_state *s)
{
    m5_free(s->gate);
    m5_free(s->up);
    m5_free(s->down);
    s->gate = s->up = s->down = NULL;
    s->cap_row = 0;
}

void m5_cpu_linear_close(m5_cpu *c)
{
    if (!c->linear) return;
    free_rows(c->linear);
    m5_free(c->linear);
}

int m5_cpu_linear_reserve(m5_cpu *c, m5_error *err)
{
    struct m5_cpu_linear_state *s = c->linear;
    int64_t want = c->max_in > c->max_out ? c->max_in : c->max_out;
    if (want <= s->cap_row) return 0;
    free_rows(s);
    s->gate = m5_calloc(M5_MEM_SCRATCH, (size_t)want, sizeof(float));
    s->up = m5_calloc(M5_MEM_SCRATCH, (size_t)want, sizeof(float));
    s->down = m5_calloc(M5_MEM_SCRATCH, (size_t)want, sizeof(float));
    if (!s->gate || !s->up || !s->down) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for rows of %lld floats", (long long)want);
    s->cap_row = want;
    return 0;
}

void m5_cpu_prepare(m5_cpu *c, m5_matrix *m)
{
    (void)c;
    (void)m;
}

const char *m5_cpu_path_name(const m5_cpu *c, const m5_matrix *m)
{
    (void)c;
    (void)m;
    return "slow";
}

void m5_cpu_row(const m5_cpu *c, const m5_matrix *m, int64_t row, float *dst)
{
    (void)c;
    m5_matrix_row_f32(m, row, dst);
}

typedef struct slow_ctx {
    m5_cpu *c;
    const m5_linear *job;
    const float *x;
    int64_t ldx;
    int n_tok;
} slow_ctx;

static void slow_rows(void *arg, int64_t begin, int64_t end, int worker)
{
    slow_ctx *s = arg;
    const m5_matrix *w = s->job->w;
    float *row = s->c->work[worker];
    for (int64_t r = begin; r < end; r++) {
        m5_matrix_row_f32(w, r, row);
        for (int t = 0; t < s->n_tok; t++) {
            float v = s->c->k.dot_f32(row, s->x + t * s->ldx, w->n_in);
            s->job->y[t * s->job->ldy + r] = s->job->bias ? v + s->job->bias[r] : v;
        }
    }
}

void m5_cpu_linear(m5_cpu *c, const m5_linear *jobs, int n_jobs, const float *x, int64_t ldx, int n_tok)
{
    for (int i = 0; i < n_jobs; i++) {
        slow_ctx s = {c, &jobs[i], x, ldx, n_tok};
        m5_pool_for(c->pool, jobs[i].w->n_out, 8, slow_rows, &s);
    }
}

void m5_cpu_experts(m5_cpu *c, const m5_matrix *gate, const m5_matrix *up, const m5_matrix *down, int act, const float *x, float *y, int n_tok,
                    const int32_t *ids, const float *wts, int n_used)
{
    struct m5_cpu_linear_state *s = c->linear;
    for (int t = 0; t < n_tok; t++) {
        for (int i = 0; i < n_used; i++) {
            int32_t e = ids[t * n_used + i];
            m5_linear in[2] = {{&gate[e], NULL, s->gate, gate[e].n_out}, {&up[e], NULL, s->up, up[e].n_out}};
            m5_linear out = {&down[e], NULL, s->down, down[e].n_out};
            m5_cpu_linear(c, in, 2, x + t * gate[e].n_in, gate[e].n_in, 1);
            (act == 1 ? c->k.gelu_mul : c->k.silu_mul)(s->gate, s->gate, s->up, gate[e].n_out);
            m5_cpu_linear(c, &out, 1, s->gate, down[e].n_in, 1);
            c->k.axpy_f32(y + t * down[e].n_out, wts[t * n_used + i], s->down, down[e].n_out);
        }
    }
}
