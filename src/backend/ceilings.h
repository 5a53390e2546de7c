/* SPDX-License-Identifier: Apache-2.0 */
/* What the machine could do at best: the denominators of every share of a ceiling. Room: backend/ceilings.c. Thread: the engine thread. */
#ifndef M5_BACKEND_CEILINGS_H
#define M5_BACKEND_CEILINGS_H

#include "backend/cpu.h"

typedef struct m5_ceiling {
    int n_threads;
    double read_bytes_s; /* memory read, a buffer far larger than the caches */
    double int_ops_s;    /* 8-bit multiply and add, by the instructions that the tile kernels use; a multiply-add counts 2 */
    double fma_flops_s;  /* f32 fused multiply-add, counts 2 */
} m5_ceiling;

/* Measures with one thread and with all threads of c: out[0], out[1]. Best of several passes each, about two seconds in all.
 * buffer_bytes 0 = 1 GiB, or a quarter of the machine's memory if that is less. Errors: M5_ERR_NOMEM. */
int m5_ceilings_measure(m5_cpu *c, m5_ceiling out[2], size_t buffer_bytes, m5_error *err);

/* The same beside other work: by turns with what is timed, so that both meet the same clock and the same neighbours of a virtual machine. The best of
 * some passes says what the machine can do in a quiet moment; a share of that says as much about the other moments as about the program. */
typedef struct m5_ceiling_probe m5_ceiling_probe;

/* buffer_bytes as above. c: borrowed. Owner: caller, m5_ceiling_probe_free. Errors: M5_ERR_NOMEM. */
int m5_ceiling_probe_new(m5_ceiling_probe **out, m5_cpu *c, size_t buffer_bytes, m5_error *err);
void m5_ceiling_probe_free(m5_ceiling_probe *p); /* NULL is allowed */

/* Read memory, multiply 8-bit integers, or f32 numbers, with all threads for about so many microseconds. */
void m5_ceiling_probe_read(m5_ceiling_probe *p, uint64_t us);
void m5_ceiling_probe_multiply(m5_ceiling_probe *p, uint64_t us);
void m5_ceiling_probe_fma(m5_ceiling_probe *p, uint64_t us);

/* Means since the last call, all threads; 0 = not run since then. */
m5_ceiling m5_ceiling_probe_take(m5_ceiling_probe *p);

#endif
