/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzz target: bytes as config.json. Whatever they say, reading them gives a checked configuration or an error, and nothing leaks. */
#include "model/config.h"

#include <stdlib.h>
#include <string.h>

static m5_config config;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    m5_json *json = NULL;
    m5_error err = {0};
    if (m5_json_parse(&json, (const char *)data, size, &(m5_json_limits){.max_bytes = 1 << 20, .max_depth = 32, .any_root = true}, &err)) return 0;
    if (m5_config_from_hf(&config, json, json, &err) == 0) {
        /* Sizes that later code multiplies and allocates must be sane. */
        if (config.n_layer < 1 || config.n_layer > M5_MAX_LAYERS || config.n_embd < 1 || config.n_vocab < 1) abort();
        if (m5_config_kv_values_per_tok(&config) < 0 || m5_config_row_values(&config) < 0) abort();
        for (int i = 0; i < config.n_layer; i++) {
            const m5_layer_config *l = &config.layers[i];
            if (l->mixer == M5_MIX_ATTN && (l->n_head < 1 || l->n_head % l->n_head_kv || l->rope >= config.n_rope || l->kv_donor > i)) abort();
        }
    } else if (err.code == 0 || err.text[0] == 0) {
        abort();
    }
    m5_config_deinit(&config);
    m5_json_unref(json);
    return 0;
}
