/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen3 dense and mixture of experts: a norm per head on q and k, no biases. Facts: docs/models/qwen.md. */
#include "model/families/family.h"

static void qwen3_from_hf(m5_config *c, m5_source *s)
{
    m5_layer_kind kinds[M5_MAX_LAYERS];
    m5_hf_base(c, s, &(m5_defaults){.n_head_kv = 32, .head_dim = 128, .rms_eps = 1e-6, .n_ctx_train = 32768});
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

static void qwen3_moe_from_hf(m5_config *c, m5_source *s)
{
    m5_hf_base(c, s, &(m5_defaults){.n_head_kv = 4, .rms_eps = 1e-6, .n_ctx_train = 32768, .ffn_optional = true});
    if (!m5_src_ok(s)) return;
    m5_rope_spec rope = {.head_dim = c->layers[0].head_dim, .partial = 1, .theta = 1e4};
    m5_hf_rope(c, s, &rope);
    m5_hf_moe(c, s, &(m5_moe_defaults){.n_expert = 128, .n_used = 8, .n_ffn_expert = 768});
    bool slides = m5_src_bool(s, "use_sliding_window", false); /* then all layers slide: this family has no layer_types */
    int window = slides ? m5_src_int(s, "sliding_window", m5_src_is_null(s, "sliding_window") ? 0 : 4096, 0, M5_MAX_CTX) : 0;
    for (int i = 0; i < c->n_layer; i++) c->layers[i].window = window;
}

static void qwen3_from_gguf(m5_config *c, m5_source *s)
{
    m5_gguf_base(c, s);
    if (!m5_src_ok(s)) return;
    m5_rope_spec rope = {.head_dim = c->layers[0].head_dim, .partial = 1, .theta = 1e4};
    m5_gguf_rope(c, s, &rope, true);
}

static void qwen3_moe_from_gguf(m5_config *c, m5_source *s)
{
    qwen3_from_gguf(c, s);
    if (m5_src_ok(s)) m5_gguf_moe(c, s, true); /* published models renormalise; the format has no key for the exception */
    c->n_ffn_shared = 0;
}

const m5_family m5_family_qwen3 = {
    .name = "qwen3",
    .hf_types = (const char *const[]){"qwen3", NULL},
    .gguf_archs = (const char *const[]){"qwen3", NULL},
    .from_hf = qwen3_from_hf,
    .from_gguf = qwen3_from_gguf,
    .slots = {m5_slots_norms, m5_slots_attn, m5_slots_qk_norm, m5_slots_ffn},
};

const m5_family m5_family_qwen3_moe = {
    .name = "qwen3_moe",
    .hf_types = (const char *const[]){"qwen3_moe", NULL},
    .gguf_archs = (const char *const[]){"qwen3moe", NULL},
    .from_hf = qwen3_moe_from_hf,
    .from_gguf = qwen3_moe_from_gguf,
    .slots = {m5_slots_norms, m5_slots_attn, m5_slots_qk_norm, m5_slots_ffn, m5_slots_moe_qwen},
};
