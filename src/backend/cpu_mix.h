/* SPDX-License-Identifier: Apache-2.0 */
/* What the mixer operators share. Room: backend/cpu_mix*.c; nobody else includes it. */
#ifndef M5_BACKEND_CPU_MIX_H
#define M5_BACKEND_CPU_MIX_H

#include "backend/cpu_internal.h"
#include "backend/cpu_mix_kern.h"

/* K and V in Q8_0 and I16 lie in tiles of 32 keys, for a head of n blocks of 32 components:
 *
 *   f16 factor[n][32]                           of the keys
 *   code codes[2][n][16 pairs][16 keys][2]      K: components 2 p and 2 p + 1 of the keys of either half
 *   code codes[n][2][16 pairs][16 lanes][2]     V: keys 2 p and 2 p + 1, for the components of either half of a block
 *
 * so that both products of attention take pairs of codes, lanes being keys for scores and components for values, in the order in which they lie
 * (cpu_mix_kern.c). n: floats of x. */
void m5_kv_store_codes(m5_kv_type t, uint8_t *tile, int key, bool value, const float *x, int n);

/* The table for the instruction sets this backend may use. */
const m5_mix_kernels *m5_cpu_mix_kernels(const m5_cpu *c);

/* fn over [0, n) items of about cost_ns each; small work stays on the calling thread, since waking a worker costs about a microsecond. */
void m5_cpu_mix_for(m5_cpu *c, int64_t n, double cost_ns, m5_range_fn fn, void *ctx);

/* Scalar double functions from polynomials, so that a machine's C library has no say: relative error below 1e-12. */
double m5_mix_exp(double x);
double m5_mix_softplus(double x);                           /* log(1 + e^x), x itself above 20 */
void m5_mix_sincos(double x, double *sin_x, double *cos_x); /* |x| < 2^30 */

#endif
