/* SPDX-License-Identifier: Apache-2.0 */
/* What the mixer operators share. Room: backend/cpu_mix*.c; nobody else includes it. */
#ifndef M5_BACKEND_CPU_MIX_H
#define M5_BACKEND_CPU_MIX_H

#include "backend/cpu_internal.h"
#include "backend/cpu_mix_kern.h"

/* K and V in Q8_0 lie in tiles of 16 keys, for each block of 32 components (M5_KV_TILE_BLOCK bytes):
 *
 *   f16 factor[16]                        of the keys
 *   int8 codes[16 pairs][16 keys][2]      K: components 2 p and 2 p + 1 of each key
 *   int8 codes[8 pairs][32][2]            V: keys 2 p and 2 p + 1 of each component
 *
 * so that both products of attention take pairs of codes, lanes being keys for scores and components for values (cpu_mix_kern.c). */
void m5_kv_store_q8(uint8_t *tile, int key, bool value, const float *x, int n);

/* The table for the instruction sets this backend may use. */
const m5_mix_kernels *m5_cpu_mix_kernels(const m5_cpu *c);

/* fn over [0, n) items of about cost_ns each; small work stays on the calling thread, since waking a worker costs about a microsecond. */
void m5_cpu_mix_for(m5_cpu *c, int64_t n, double cost_ns, m5_range_fn fn, void *ctx);

/* Scalar double functions from polynomials, so that a machine's C library has no say: relative error below 1e-12. */
double m5_mix_exp(double x);
double m5_mix_softplus(double x);                           /* log(1 + e^x), x itself above 20 */
void m5_mix_sincos(double x, double *sin_x, double *cos_x); /* |x| < 2^30 */

#endif
