/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels for avx2; see kernels.h for what each slot means. */
#include "kernels/kernels.h"

void m5_kernels_avx2(m5_kernels *k) { (void)k; }
