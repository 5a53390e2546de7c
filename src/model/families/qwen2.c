/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen2 and Qwen2.5: the Llama block with biases on q, k and v. Facts: docs/models/qwen.md. */
#include "model/families/family.h"

static void from_hf(m5_config *c, m5_source *s)
{
    m5_layer_kind kinds[M5_MAX_LAYERS];
    m5_hf_base(c, s, &(m5_defaults){.n_head_kv = 32, .rms_eps = 1e-6, .n_ctx_train = 32768});
    if (!m5_src_ok(s)) return;
    m5_rope_spec rope = {.head_dim = c->layers[0].head_dim, .partial = 1, .theta = 1e4};
    m5_hf_rope(c, s, &rope);
    bool slides = m5_src_bool(s, "use_sliding_window", false);
    int window = slides ? m5_src_int(s, "sliding_window", m5_src_is_null(s, "sliding_window") ? 0 : 4096, 0, M5_MAX_CTX) : 0;
    int from = m5_src_int(s, "max_window_layers", 28, 0, M5_MAX_CTX);
    for (int i = 0; i < c->n_layer; i++) kinds[i] = slides && i >= from ? M5_LAYER_SLIDING : M5_LAYER_FULL;
    m5_hf_layer_types(s, kinds, c->n_layer);
    m5_config_windows(c, kinds, window);
}

static void from_gguf(m5_config *c, m5_source *s)
{
    m5_gguf_base(c, s);
    if (!m5_src_ok(s)) return;
    m5_rope_spec rope = {.head_dim = c->layers[0].head_dim, .partial = 1, .theta = 1e4};
    m5_gguf_rope(c, s, &rope, true);
}

const m5_family m5_family_qwen2 = {
    .name = "qwen2",
    .hf_types = (const char *const[]){"qwen2", NULL},
    .gguf_archs = (const char *const[]){"qwen2", NULL},
    .from_hf = from_hf,
    .from_gguf = from_gguf,
    .slots = {m5_slots_norms, m5_slots_attn, m5_slots_ffn},
};
