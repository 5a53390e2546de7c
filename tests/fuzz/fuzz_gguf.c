/* SPDX-License-Identifier: Apache-2.0 */
/* model/gguf: any bytes as a file; everything that a successful open hands out must be readable and found under its own name. */
#include "model/gguf.h"

#include <stdlib.h>

static volatile uint64_t sink; /* what was read goes here, so that reading is not optimised away */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    m5_gguf *g = NULL;
    m5_error err = {0};
    uint64_t sum = 0;
    if (m5_gguf_open_mem(&g, data, n, "fuzz.gguf", &err) != 0) {
        if (g || !err.code || !err.text[0]) abort();
        return 0;
    }
    for (size_t i = 0; i < m5_gguf_n_kv(g); i++) {
        const m5_gguf_kv *kv = m5_gguf_kv_at(g, i);
        if (m5_gguf_find_kv(g, kv->key) != kv) abort();
        for (size_t k = 0; k < kv->n; k++) {
            int64_t v = 0;
            double d = 0;
            bool t = false;
            m5_slice s = {0};
            sum += (uint64_t)m5_gguf_at_i64(kv, k, &v) + (uint64_t)m5_gguf_at_f64(kv, k, &d) + (uint64_t)m5_gguf_at_bool(kv, k, &t);
            if (!m5_gguf_at_str(kv, k, &s)) continue;
            for (size_t j = 0; j < s.n; j++) sum += (uint8_t)s.p[j];
        }
    }
    for (size_t i = 0; i < m5_gguf_n_tensors(g); i++) {
        const m5_gguf_tensor *t = m5_gguf_tensor_at(g, i);
        if (m5_gguf_find(g, t->name) != t) abort();
        for (size_t j = 0; j < t->n_bytes; j++) sum += t->data[j];
    }
    m5_gguf_close(g);
    sink = sum;
    return 0;
}
