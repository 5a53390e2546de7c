/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target: bytes as a calibration record, as a whole file and as its JSON alone. What is accepted is in range and is written and read back as it
 * is. */
#include "engine/calib.h"

#include <stdlib.h>
#include <string.h>

static m5_calib first, second;

static void check_cuts(const m5_calib_cut *c, int n, int n_layer)
{
    for (int i = 0; i < n; i++, c++) {
        int n_out = 0;
        for (int l = 0; l < M5_MAX_LAYERS; l++) {
            n_out += m5_layer_in(&c->out, l);
            if (l >= n_layer && m5_layer_in(&c->out, l)) abort();
        }
        if (n_out != c->n_out || !(c->kl_mean >= 0 && c->top1 >= 0 && c->top1 <= 1)) abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    m5_error err = {0};
    const char *s = (const char *)data, *line = size ? memchr(s, '\n', size) : NULL;
    if (m5_calib_read(&first, s, size, "0123", &err) && !err.text[0]) abort();
    const size_t skip = size > 7 && memcmp(s, "M5CALIB", 7) == 0 && line ? (size_t)(line - s) + 1 : 0; /* damaged or not */
    if (m5_calib_parse(&first, s + skip, size - skip, &err)) return 0;
    if (first.n_layer < 1 || first.n_layer > M5_MAX_LAYERS || first.n_cost > M5_CALIB_MAX_COSTS || first.n_exit > M5_CALIB_MAX_SETS) abort();
    check_cuts(first.singles, first.n_single, first.n_layer);
    check_cuts(first.cuts, first.n_cut, first.n_layer);
    m5_buf b = {0};
    m5_calib_write(&b, &first, "0123");
    if (!b.failed && (m5_calib_read(&second, b.p, b.n, "0123", &err) || memcmp(&first, &second, sizeof first) != 0)) abort();
    m5_buf_free(&b);
    return 0;
}
