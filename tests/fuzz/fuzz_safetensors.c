/* SPDX-License-Identifier: Apache-2.0 */
/* model/safetensors: any bytes as a file; everything that a successful open hands out must be readable and found under its own name. */
#include "model/safetensors.h"

#include <stdlib.h>

static volatile uint64_t sink; /* what was read goes here, so that reading is not optimised away */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    m5_st *s = NULL;
    m5_error err = {0};
    uint64_t sum = 0;
    if (m5_st_open_mem(&s, data, n, "fuzz.safetensors", &err) != 0) {
        if (s || !err.code || !err.text[0]) abort();
        return 0;
    }
    for (size_t i = 0; i < m5_st_n_tensors(s); i++) {
        const m5_st_tensor *t = m5_st_tensor_at(s, i);
        int64_t n_elem = 1;
        for (int d = 0; d < t->n_dims; d++) n_elem *= t->shape[d];
        if (m5_st_find(s, t->name) != t || n_elem != t->n_elem) abort();
        for (size_t j = 0; j < t->n_bytes; j++) sum += t->data[j];
    }
    sum += m5_st_metadata(s, "format").n;
    m5_st_close(s);
    sink = sum;
    return 0;
}
