/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels for neon; see kernels.h for what each slot means. */
#include "kernels/kernels.h"

void m5_kernels_neon(m5_kernels *k) { (void)k; }
