/* SPDX-License-Identifier: Apache-2.0 */
/* Gemma 2: four norms per layer, soft caps, every second layer in a window. Facts: docs/models/gemma.md. */
#include "model/families/family.h"

#include <math.h>

static double cap(m5_source *s, const char *key, double absent)
{
    return m5_src_is_null(s, key) ? 0 : m5_src_real(s, key, absent, 0, 1e6);
}

static void from_hf(m5_config *c, m5_source *s)
{
    m5_layer_kind kinds[M5_MAX_LAYERS];
    m5_hf_base(c, s,
               &(m5_defaults){.n_head = 8,
                              .n_head_kv = 4,
                              .head_dim = 256,
                              .n_vocab = 256000,
                              .rms_eps = 1e-6,
                              .n_ctx_train = 8192,
                              .tied = true,
                              .act = M5_ACT_GELU_TANH});
    if (!m5_src_ok(s)) return;
    m5_rope_spec rope = {.head_dim = c->layers[0].head_dim, .partial = 1, .theta = 1e4};
    m5_hf_rope(c, s, &rope);
    c->embd_scale = sqrtf((float)c->n_embd);
    c->attn_scale = (float)pow(m5_src_real(s, "query_pre_attn_scalar", 256, 1e-6, 1e6), -0.5);
    c->attn_softcap = (float)cap(s, "attn_logit_softcapping", 50);
    c->final_softcap = (float)cap(s, "final_logit_softcapping", 30);
    int window = m5_src_int(s, "sliding_window", m5_src_is_null(s, "sliding_window") ? 0 : 4096, 0, M5_MAX_CTX);
    for (int i = 0; i < c->n_layer; i++) kinds[i] = i % 2 == 0 ? M5_LAYER_SLIDING : M5_LAYER_FULL;
    m5_hf_layer_types(s, kinds, c->n_layer);
    m5_config_windows(c, kinds, window);
}

/* The query scale is not in the usual file: the 27B (46 layers) uses n_embd / n_head, the others head_dim. */
static void from_gguf(m5_config *c, m5_source *s)
{
    m5_layer_kind kinds[M5_MAX_LAYERS];
    m5_gguf_base(c, s);
    if (!m5_src_ok(s)) return;
    const m5_layer_config *l = &c->layers[0];
    m5_rope_spec rope = {.head_dim = l->head_dim, .partial = 1, .theta = 1e4};
    m5_gguf_rope(c, s, &rope, true);
    c->act = M5_ACT_GELU_TANH;
    c->embd_scale = sqrtf((float)c->n_embd);
    const double derived = pow(c->n_layer == 46 ? (double)c->n_embd / l->n_head : l->head_dim, -0.5);
    c->attn_scale = (float)m5_src_real(s, "attention.scale", derived, 1e-6, 1e6);
    c->attn_softcap = (float)m5_src_real(s, "attn_logit_softcapping", 50, 0, 1e6);
    c->final_softcap = (float)m5_src_real(s, "final_logit_softcapping", 30, 0, 1e6);
    m5_gguf_window_pattern(s, kinds, c->n_layer, 2);
    m5_config_windows(c, kinds, m5_src_int(s, "attention.sliding_window", 4096, 0, M5_MAX_CTX));
}

const m5_family m5_family_gemma2 = {
    .name = "gemma2",
    .hf_types = (const char *const[]){"gemma2", NULL},
    .gguf_archs = (const char *const[]){"gemma2", NULL},
    .from_hf = from_hf,
    .from_gguf = from_gguf,
    .norms_zero_centred = true,
    .slots = {m5_slots_norms_gemma, m5_slots_attn, m5_slots_ffn},
};
