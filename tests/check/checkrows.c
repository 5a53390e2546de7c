/* SPDX-License-Identifier: Apache-2.0 */
/* checkrows: products of the CPU backend give a row the same bits alone, in a batch and anywhere in it, for 1 and 2 threads, packed or not, at every
 * instruction level; and those bits are close to double arithmetic. For every matrix type, and for experts. */
#include "backend/ceilings.h"
#include "backend/cpu.h"
#include "base/mem.h"
#include "check/wmat.h"
#include "kernels/kernels.h"
#include "t.h"

#include <math.h>

enum { N_TOK = 37, N_OUT = 45 };

typedef struct type_case {
    m5_dtype type;
    int group;
    m5_dtype scale_type;
} type_case;

static const type_case cases[] = {
    {M5_F32, 0, M5_F32},   {M5_F16, 0, M5_F32},    {M5_BF16, 0, M5_F32},   {M5_Q4_0, 0, M5_F32},    {M5_Q4_1, 0, M5_F32},   {M5_Q5_0, 0, M5_F32},
    {M5_Q5_1, 0, M5_F32},  {M5_Q8_0, 0, M5_F32},   {M5_Q2_K, 0, M5_F32},   {M5_Q3_K, 0, M5_F32},    {M5_Q4_K, 0, M5_F32},   {M5_Q5_K, 0, M5_F32},
    {M5_Q6_K, 0, M5_F32},  {M5_IQ4_NL, 0, M5_F32}, {M5_IQ4_XS, 0, M5_F32}, {M5_MXFP4, 0, M5_F32},   {M5_MLX4, 64, M5_BF16}, {M5_MLX8, 64, M5_F16},
    {M5_MLX4, 64, M5_F32}, {M5_MLX3, 64, M5_BF16}, {M5_MLX6, 32, M5_F16},  {M5_MLX2, 128, M5_BF16},
};
enum { N_CASE = sizeof cases / sizeof *cases };

static m5_cpu *open_cpu(int n_threads, uint32_t mask, bool act_f32)
{
    m5_cpu *c = NULL;
    m5_error err = {0};
    const m5_cpu_options opt = {.n_threads = n_threads, .cpu_mask = mask, .act_f32 = act_f32};
    T_CHECK(m5_cpu_open(&c, &opt, &err) == 0, "%s", err.text);
    T_CHECK(m5_cpu_reserve(c, N_TOK, 768, 768, &err) == 0, "%s", err.text);
    return c;
}

/* Largest error in units of the sum of magnitudes. */
static void check_close(const m5_matrix *m, const float *bias, const float *x, const float *y, double bound, const char *what)
{
    float *row = malloc((size_t)m->n_in * 4);
    double worst = 0;
    for (int64_t r = 0; r < m->n_out; r++) {
        m5_matrix_row_f32(m, r, row);
        for (int t = 0; t < N_TOK; t++) {
            double sum = bias[r], mag = fabs(bias[r]);
            for (int64_t i = 0; i < m->n_in; i++) {
                sum += (double)row[i] * x[t * m->n_in + i];
                mag += fabs((double)row[i] * x[t * m->n_in + i]);
            }
            const double e = fabs(y[t * N_OUT + r] - sum) / (mag + 1e-30);
            if (!(e <= worst)) worst = e;
        }
    }
    T_CHECK(worst <= bound, "%s: error %g of the magnitude", what, worst);
    free(row);
}

static void run(m5_cpu *c, const m5_matrix *m, const float *bias, const float *x, float *y, int step)
{
    for (int t = 0; t < N_TOK; t += step) {
        const m5_linear job = {m, bias, y + t * N_OUT, N_OUT};
        m5_cpu_linear(c, &job, 1, x + t * m->n_in, m->n_in, N_TOK - t < step ? N_TOK - t : step);
    }
}

static void check_type(const type_case *k, uint32_t mask, bool act_f32)
{
    static const int steps[] = {1, 2, 3, 5, 8, 15, 16, 17, 32};
    wmat w;
    uint64_t seed = 23;
    const int64_t n_in = k->type == M5_F16 ? 123 : m5_dtype_get(k->type)->block == 256 ? 768 : k->group ? 3 * 128 : 160;
    w_make(&w, k->type, N_OUT, n_in, k->group, k->scale_type, 9, false);
    float *x = malloc((size_t)n_in * N_TOK * 4), bias[N_OUT], want[N_TOK * N_OUT], got[N_TOK * N_OUT];
    for (int64_t i = 0; i < n_in * N_TOK; i++) x[i] = w_unit(&seed);
    for (int i = 0; i < N_OUT; i++) bias[i] = w_unit(&seed);
    const char *name = m5_dtype_get(k->type)->name;
    bool first = true;
    for (int n_threads = 1; n_threads <= 2; n_threads++) {
        m5_cpu *c = open_cpu(n_threads, mask, act_f32);
        for (int prepared = 0; prepared < 2; prepared++) {
            m5_matrix m = w.m;
            if (prepared) m5_cpu_prepare(c, &m);
            if (first) run(c, &m, bias, x, want, N_TOK);
            for (size_t s = 0; s < sizeof steps / sizeof *steps; s++) {
                memset(got, 0x5a, sizeof got);
                run(c, &m, bias, x, got, steps[s]);
                T_CHECK(memcmp(want, got, sizeof want) == 0, "%s %s %s: %d threads, %d rows at a time differ", name, m5_cpu_isa_name(c),
                        m5_cpu_path_name(c, &m), n_threads, steps[s]);
            }
            first = false;
            /* rows of the table, as the embedding reads them */
            float a[768], b[768];
            for (int r = 0; r < N_OUT; r += 11) {
                m5_matrix_row_f32(&w.m, r, a);
                m5_cpu_row(c, &m, r, b);
                T_CHECK(memcmp(a, b, (size_t)n_in * 4) == 0, "%s: row %d", name, r);
            }
        }
        const bool slow = strcmp(m5_cpu_path_name(c, &w.m), "slow") == 0;
        check_close(&w.m, bias, x, want, act_f32 || slow || k->type <= M5_BF16 ? 1e-6 : 1e-2, name);
        m5_cpu_close(c);
    }
    free(x);
    w_free(&w);
}

/* Several products in one call, more than are taken at once, of different types: the same as one by one. */
static void check_jobs(uint32_t mask)
{
    enum { N = 11, IN = 256 };
    static const m5_dtype types[N] = {M5_Q4_0, M5_F32, M5_Q4_K, M5_Q6_K, M5_BF16, M5_Q8_0, M5_Q4_0, M5_Q5_K, M5_F16, M5_Q4_1, M5_IQ4_NL};
    wmat w[N];
    uint64_t seed = 29;
    static float x[N_TOK * IN], want[N][N_TOK * N_OUT], got[N][N_TOK * N_OUT];
    m5_linear jobs[N];
    m5_cpu *c = open_cpu(2, mask, false);
    for (int i = 0; i < N_TOK * IN; i++) x[i] = w_unit(&seed);
    for (int i = 0; i < N; i++) {
        w_make(&w[i], types[i], 5 + 4 * i, IN, 0, M5_F32, (uint64_t)i, false);
        if (i % 2) m5_cpu_prepare(c, &w[i].m);
        const m5_linear one = {&w[i].m, NULL, want[i], N_OUT};
        jobs[i] = (m5_linear){&w[i].m, NULL, got[i], N_OUT};
        m5_cpu_linear(c, &one, 1, x, IN, N_TOK);
    }
    m5_cpu_linear(c, jobs, N, x, IN, N_TOK);
    T_CHECK(memcmp(want, got, sizeof want) == 0, "products in one call differ from single ones");
    m5_cpu_close(c);
    for (int i = 0; i < N; i++) w_free(&w[i]);
}

/* Experts: tokens alone, together, in one pass or several; against the composition of single products. */
static void check_experts(uint32_t mask, int n_used, bool reserved)
{
    enum { N_EXPERT = 7, EMB = 64, FF = 96 };
    wmat g[N_EXPERT], u[N_EXPERT], d[N_EXPERT];
    m5_matrix gm[N_EXPERT], um[N_EXPERT], dm[N_EXPERT];
    uint64_t seed = 31;
    static float x[N_TOK * EMB], want[N_TOK * EMB], got[N_TOK * EMB];
    static int32_t ids[N_TOK * 128];
    static float wts[N_TOK * 128];
    m5_cpu *c = open_cpu(2, mask, false);
    if (reserved) T_CHECK(m5_cpu_reserve_experts(c, n_used, NULL) == 0, "reserve");
    for (int i = 0; i < N_EXPERT; i++) {
        w_make(&g[i], M5_Q4_0, FF, EMB, 0, M5_F32, (uint64_t)i, false);
        w_make(&u[i], M5_Q8_0, FF, EMB, 0, M5_F32, (uint64_t)i, false);
        w_make(&d[i], M5_Q4_1, EMB, FF, 0, M5_F32, (uint64_t)i, false);
        gm[i] = g[i].m;
        um[i] = u[i].m;
        dm[i] = d[i].m;
        if (i % 2) m5_cpu_prepare(c, &gm[i]);
    }
    for (int i = 0; i < N_TOK * EMB; i++) x[i] = w_unit(&seed);
    for (int i = 0; i < N_TOK * n_used; i++) {
        ids[i] = (int32_t)(w_next(&seed) % N_EXPERT);
        wts[i] = w_unit(&seed);
    }
    for (int t = 0; t < N_TOK; t++) {
        float a[FF], b[FF], o[EMB], *y = want + t * EMB;
        memset(y, 0, EMB * sizeof *y);
        for (int i = 0; i < n_used; i++) {
            const int e = ids[t * n_used + i];
            const m5_linear in[2] = {{&gm[e], NULL, a, FF}, {&um[e], NULL, b, FF}}, out = {&dm[e], NULL, o, EMB};
            m5_cpu_linear(c, in, 2, x + t * EMB, EMB, 1);
            m5_cpu_glu(c, a, a, b, 1, FF, 0);
            m5_cpu_linear(c, &out, 1, a, FF, 1);
            for (int k = 0; k < EMB; k++) y[k] = y[k] + wts[t * n_used + i] * o[k];
        }
    }
    for (int step = 1; step <= N_TOK; step += 9) {
        memset(got, 0, sizeof got);
        for (int t = 0; t < N_TOK; t += step) {
            m5_cpu_experts(c, gm, um, dm, 0, x + t * EMB, got + t * EMB, N_TOK - t < step ? N_TOK - t : step, ids + t * n_used, wts + t * n_used,
                           n_used);
        }
        T_CHECK(memcmp(want, got, sizeof want) == 0, "experts: %d used, %d tokens at a time", n_used, step);
    }
    m5_cpu_close(c);
    for (int i = 0; i < N_EXPERT; i++) {
        w_free(&g[i]);
        w_free(&u[i]);
        w_free(&d[i]);
    }
}

/* A tied table is packed once, and no product allocates. */
static void check_memory(void)
{
    wmat w;
    w_make(&w, M5_Q4_0, N_OUT, 160, 0, M5_F32, 3, false);
    m5_cpu *c = open_cpu(2, M5_ISA_ALL, false);
    m5_matrix a = w.m, b = w.m;
    static float x[N_TOK * 160], y[N_TOK * N_OUT];
    m5_cpu_prepare(c, &a);
    const size_t bytes = m5_mem_bytes(M5_MEM_WEIGHTS);
    m5_cpu_prepare(c, &b);
    T_CHECK(a.packed && a.packed == b.packed && m5_mem_bytes(M5_MEM_WEIGHTS) == bytes, "the second use of the same data was packed again");
    const m5_linear job = {&a, NULL, y, N_OUT};
    const uint64_t n = m5_mem_count();
    m5_cpu_linear(c, &job, 1, x, 160, N_TOK);
    T_CHECK(m5_mem_count() == n, "a product allocated");
    m5_matrix e = w.m;
    m5_cpu *d = open_cpu(1, M5_ISA_ALL, false);
    for (uint64_t nth = 1; nth <= 2; nth++) {
        m5_mem_fail_at(nth);
        m5_cpu_prepare(d, &e);
        m5_mem_fail_at(0);
        T_CHECK(!e.packed && strcmp(m5_cpu_path_name(d, &e), "direct") == 0, "out of memory must leave the matrix as it is");
    }
    m5_mem_fail_at(3); /* the slab: the matrix then gets memory of its own size */
    m5_cpu_prepare(d, &e);
    m5_mem_fail_at(0);
    T_CHECK(e.packed != NULL, "a matrix that fits must be packed");
    m5_cpu_settle(d);
    m5_cpu_settle(d);
    m5_cpu_settle_wait(d);
    m5_cpu_close(c);
    m5_cpu_close(d);
    w_free(&w);
}

static void check_ceilings(void)
{
    m5_ceiling ceil[2];
    m5_cpu *c = open_cpu(2, M5_ISA_ALL, false);
    T_CHECK(m5_ceilings_measure(c, ceil, 8 << 20, NULL) == 0, "measure");
    for (int i = 0; i < 2; i++) {
        T_EQ_INT(ceil[i].n_threads, i + 1);
        T_CHECK(ceil[i].read_bytes_s > 1e8 && ceil[i].int_ops_s > 1e8 && ceil[i].fma_flops_s > 1e8, "%g B/s, %g op/s, %g flop/s",
                ceil[i].read_bytes_s, ceil[i].int_ops_s, ceil[i].fma_flops_s);
    }
    m5_error err = {0};
    m5_ceiling_probe *p = NULL;
    for (int64_t fail = 1; fail <= 2; fail++) {
        m5_mem_fail_at(fail);
        if (fail == 1) T_EQ_INT(m5_ceilings_measure(c, ceil, 8 << 20, &err), M5_ERR_NOMEM);
        m5_mem_fail_at(fail);
        T_EQ_INT(m5_ceiling_probe_new(&p, c, 8 << 20, &err), M5_ERR_NOMEM);
        m5_mem_fail_at(0);
    }
    T_CHECK(m5_ceiling_probe_new(&p, c, 5 << 20, &err) == 0, "%s", err.text); /* not a whole number of pieces */
    m5_ceiling_probe_read(p, 3000);
    const uint64_t t0 = m5_time_us();
    m5_ceiling_probe_read(p, 20000);
    const uint64_t t1 = m5_time_us();
    T_CHECK(t1 - t0 >= 20000, "%d us", (int)(t1 - t0));
    const m5_ceiling read = m5_ceiling_probe_take(p);
    T_CHECK(read.read_bytes_s > 1e8 && read.int_ops_s == 0 && read.n_threads == 2, "%g B/s, %g op/s", read.read_bytes_s, read.int_ops_s);
    m5_ceiling_probe_multiply(p, 1000);
    const m5_ceiling product = m5_ceiling_probe_take(p);
    T_CHECK(product.int_ops_s > 1e8 && product.read_bytes_s == 0, "%g op/s, %g B/s", product.int_ops_s, product.read_bytes_s);
    m5_ceiling_probe_fma(p, 1000);
    const m5_ceiling fma = m5_ceiling_probe_take(p);
    T_CHECK(fma.fma_flops_s > 1e8 && fma.int_ops_s == 0, "%g flop/s, %g op/s", fma.fma_flops_s, fma.int_ops_s);
    m5_ceiling_probe_free(p);
    m5_cpu_close(c);
}

int main(void)
{
    static const uint32_t masks[] = {
        0, M5_ISA_AVX2, M5_ISA_AVX2 | M5_ISA_AVX512, M5_ISA_AVX2 | M5_ISA_AVX512 | M5_ISA_AMX, M5_ISA_NEON, M5_ISA_NEON | M5_ISA_I8MM};
    for (size_t m = 0; m < sizeof masks / sizeof *masks; m++) {
        if (masks[m] && (m5_isa_detect() & masks[m]) != masks[m]) continue;
        /* i8mm runs NEON for few tokens and checkkern compares the rest; under emulation one more level takes minutes. */
        if (masks[m] == M5_ISA_NEON && m5_isa_detect() & M5_ISA_I8MM) continue;
        printf("level %s\n", m5_isa_name(masks[m]));
        for (int i = 0; i < N_CASE; i++) {
            check_type(&cases[i], masks[m], false);
            check_type(&cases[i], masks[m], true);
        }
        check_jobs(masks[m]);
        check_experts(masks[m], 3, false);
        check_experts(masks[m], 3, true);
        check_experts(masks[m], 100, false); /* more pairs per token than a pass holds */
    }
    check_memory();
    check_ceilings();
    return t_done();
}
