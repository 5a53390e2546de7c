/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of m5_cpu, shared by cpu.c, cpu_linear.c and cpu_mix*.c; nobody else includes it. */
#ifndef M5_BACKEND_CPU_INTERNAL_H
#define M5_BACKEND_CPU_INTERNAL_H

#include "backend/cpu.h"
#include "kernels/kernels.h"

enum { M5_CPU_WORK_MIN_FLOATS = 64 * 1024 };

struct m5_cpu {
    m5_pool *pool;
    int n_threads;
    bool act_f32;
    m5_kernels k; /* filled at open for this processor and mask */

    /* Sized by m5_cpu_reserve. */
    int max_tok;
    int64_t max_in, max_out;
    float **work;        /* [n_threads] scratch of one worker inside one operator, at least cap_work floats each */
    int64_t cap_work;    /* >= M5_CPU_WORK_MIN_FLOATS and 17 * max_in */

    struct m5_cpu_linear_state *linear; /* cpu_linear.c */
    void *mix;                          /* cpu_mix*.c: own scratch, released with m5_free at close */
    size_t mix_bytes;
};

/* cpu_linear.c */
int m5_cpu_linear_open(m5_cpu *c, m5_error *err);
int m5_cpu_linear_reserve(m5_cpu *c, m5_error *err);
void m5_cpu_linear_close(m5_cpu *c);

#endif
