/* SPDX-License-Identifier: Apache-2.0 */
/* SmolLM3: the Llama block with every fourth layer left without rotation. Facts: docs/models/llama.md. */
#include "model/families/family.h"

static void from_hf(m5_config *c, m5_source *s)
{
    m5_hf_base(c, s,
               &(m5_defaults){.n_head = 16,
                              .n_head_kv = 4,
                              .n_vocab = 128256,
                              .n_embd = 2048,
                              .n_ffn = 11008,
                              .n_layer = 36,
                              .rms_eps = 1e-6,
                              .n_ctx_train = 32768,
                              .tied = true});
    if (!m5_src_ok(s)) return;
    m5_rope_spec rope = {.head_dim = c->layers[0].head_dim, .partial = 1, .theta = 2e6};
    m5_layer_kind kinds[M5_MAX_LAYERS];
    int interval = m5_src_int(s, "no_rope_layer_interval", 4, 1, M5_MAX_LAYERS);
    bool listed = m5_src_has(s, "no_rope_layers"), slides = m5_src_bool(s, "use_sliding_window", false);
    m5_hf_rope(c, s, &rope);
    for (int i = 0; i < c->n_layer; i++) { /* the list holds 1 for a layer that rotates */
        bool rotates = listed ? m5_src_layer_int(s, "no_rope_layers", i, c->n_layer, 1, 0, 1) != 0 : (i + 1) % interval != 0;
        c->layers[i].rope = rotates ? 0 : -1;
        kinds[i] = slides && rotates ? M5_LAYER_SLIDING : M5_LAYER_FULL;
    }
    m5_hf_layer_types(s, kinds, c->n_layer);
    m5_config_windows(c, kinds, slides ? m5_src_int(s, "sliding_window", 0, 0, M5_MAX_CTX) : 0);
}

static void from_gguf(m5_config *c, m5_source *s)
{
    m5_gguf_base(c, s);
    if (!m5_src_ok(s)) return;
    m5_rope_spec rope = {.head_dim = c->layers[0].head_dim, .partial = 1, .theta = 2e6};
    m5_gguf_rope(c, s, &rope, true);
    for (int i = 0; i < c->n_layer; i++) c->layers[i].rope = (i + 1) % 4 == 0 ? -1 : 0;
}

const m5_family m5_family_smollm3 = {
    .name = "smollm3",
    .hf_types = (const char *const[]){"smollm3", NULL},
    .gguf_archs = (const char *const[]){"smollm3", NULL},
    .from_hf = from_hf,
    .from_gguf = from_gguf,
    .slots = {m5_slots_norms, m5_slots_attn, m5_slots_ffn},
};
