/* SPDX-License-Identifier: Apache-2.0 */
/* Running means per number of rows, straight lines between them; see spec_cost.h. */
#include "engine/spec_cost.h"

#include <math.h>
#include <string.h>

/* Share of a new measurement in its mean, and of its surprise in the others. The slope is that of a model bound by memory (docs/SPEED.md). */
static const double SHARE = 0.25, DRIFT = 0.1, FIRST_SLOPE = 0.13;

void m5_spec_cost_init(m5_spec_cost *c)
{
    memset(c, 0, sizeof *c);
    c->slope = FIRST_SLOPE;
}

double m5_spec_cost_of(const m5_spec_cost *c, int n)
{
    if (n < 1) n = 1;
    if (n > M5_COST_ROWS) return m5_spec_cost_of(c, M5_COST_ROWS) * n / M5_COST_ROWS;
    int lo = n, hi = n;
    while (lo > 0 && c->us[lo] <= 0) lo--;
    while (hi <= M5_COST_ROWS && c->us[hi] <= 0) hi++;
    if (lo == n) return c->us[n];
    if (lo > 0 && hi <= M5_COST_ROWS) {
        double between = c->us[lo] + (c->us[hi] - c->us[lo]) * (n - lo) / (hi - lo);
        return between > c->us[lo] ? between : c->us[lo];
    }
    if (lo > 0) return c->us[lo] * (1 + c->slope * (n - 1)) / (1 + c->slope * (lo - 1));
    if (hi <= M5_COST_ROWS) return c->us[hi] * (1 + c->slope * (n - 1)) / (1 + c->slope * (hi - 1));
    return 0;
}

void m5_spec_cost_add(m5_spec_cost *c, int n, double us)
{
    if (n < 1 || n > M5_COST_ROWS || !(us > 0)) return;
    double old = c->us[n];
    if (old <= 0) {
        c->us[n] = us;
        return;
    }
    /* Another program's moment on the processor must not look like a change of cost. */
    if (us > 2 * old) us = 2 * old;
    c->us[n] = old + SHARE * (us - old);
    double others = pow(us / old, DRIFT * SHARE);
    for (int i = 1; i <= M5_COST_ROWS; i++)
        if (i != n) c->us[i] *= others;
}
