/* SPDX-License-Identifier: Apache-2.0 */
/* What a forward of n rows takes on this machine, measured while running. Room: engine/spec_cost.c. Pure: times come from the caller. */
#ifndef M5_ENGINE_SPEC_COST_H
#define M5_ENGINE_SPEC_COST_H

#include <stdbool.h>

enum { M5_COST_ROWS = 96 };

typedef struct m5_spec_cost {
    double us[M5_COST_ROWS + 1]; /* running mean; 0 = not measured */
    double slope;                /* a further row over one row, where nothing is measured */
} m5_spec_cost;

void m5_spec_cost_init(m5_spec_cost *c);
/* A forward of n rows took us. Contexts grow, so a measurement moves its neighbours a little too. */
void m5_spec_cost_add(m5_spec_cost *c, int n, double us);
/* 0 while nothing at all is measured. */
double m5_spec_cost_of(const m5_spec_cost *c, int n);

#endif
