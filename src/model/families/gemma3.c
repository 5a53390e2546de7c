/* SPDX-License-Identifier: Apache-2.0 */
/* Gemma 3 text: Gemma 2 without soft caps, with norms on q and k, five window layers to one global, two rotary tables. Facts: docs/models/gemma.md.
 */
#include "model/families/family.h"

#include <math.h>

/* Configurations also carry attn_logit_softcapping, which the reference does not read: attention has no cap here. */
static double cap(m5_source *s, const char *key)
{
    return m5_src_is_null(s, key) ? 0 : m5_src_real(s, key, 0, 0, 1e6);
}

/* New files have one dictionary per kind of layer. In old ones rope_theta and rope_scaling belong to the global layers alone. */
static void read_ropes(m5_config *c, m5_source *s, const m5_layer_kind *kinds)
{
    int hd = c->layers[0].head_dim, full, sliding;
    m5_rope_spec global = {.head_dim = hd, .partial = 1, .theta = 1e6}, local = {.head_dim = hd, .partial = 1, .theta = 1e4};
    m5_source dicts = m5_src_sub(s, "rope_parameters");
    if (m5_src_has(&dicts, "full_attention") || m5_src_has(&dicts, "sliding_attention")) {
        m5_source f = m5_src_sub(&dicts, "full_attention"), l = m5_src_sub(&dicts, "sliding_attention");
        m5_hf_rope_dict(&f, &global, c->n_ctx_train);
        m5_hf_rope_dict(&l, &local, c->n_ctx_train);
        if (!m5_src_ok(s)) return;
        full = m5_rope_add(c, &global, s->err);
    } else {
        local.theta = m5_src_real(s, "rope_local_base_freq", 1e4, 1e-3, 1e15);
        full = m5_hf_rope(c, s, &global);
    }
    if (!m5_src_ok(s)) return;
    sliding = full < 0 ? full : m5_rope_add(c, &local, s->err);
    if (sliding < 0) *s->rc = sliding;
    for (int i = 0; i < c->n_layer; i++) c->layers[i].rope = kinds[i] == M5_LAYER_SLIDING ? sliding : full;
}

static void from_hf(m5_config *c, m5_source *s)
{
    m5_layer_kind kinds[M5_MAX_LAYERS];
    /* Multimodal files leave out what equals the defaults of their class. */
    m5_hf_base(c, s,
               &(m5_defaults){.n_head = 8,
                              .n_head_kv = 4,
                              .head_dim = 256,
                              .n_vocab = 262208,
                              .n_embd = 2304,
                              .n_ffn = 9216,
                              .n_layer = 26,
                              .rms_eps = 1e-6,
                              .n_ctx_train = 131072,
                              .tied = true,
                              .act = M5_ACT_GELU_TANH});
    if (!m5_src_ok(s)) return;
    int period = m5_src_int(s, m5_src_has(s, "sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern", 6, 1, M5_MAX_LAYERS);
    int window = m5_src_int(s, "sliding_window", m5_src_is_null(s, "sliding_window") ? 0 : 4096, 0, M5_MAX_CTX);
    c->embd_scale = sqrtf((float)c->n_embd);
    c->attn_scale = (float)pow(m5_src_real(s, "query_pre_attn_scalar", 256, 1e-6, 1e6), -0.5);
    c->final_softcap = (float)cap(s, "final_logit_softcapping");
    for (int i = 0; i < c->n_layer; i++) kinds[i] = (i + 1) % period == 0 ? M5_LAYER_FULL : M5_LAYER_SLIDING;
    m5_hf_layer_types(s, kinds, c->n_layer);
    m5_config_windows(c, kinds, window);
    read_ropes(c, s, kinds);
}

/* Not in the file: the local base (1e4 unless a newer converter wrote it), the pattern of six, the query scale (usually). A scaling factor belongs to the
 * global layers. The 27B (62 layers) scales by n_embd / n_head, the others by head_dim. */
static void from_gguf(m5_config *c, m5_source *s)
{
    m5_layer_kind kinds[M5_MAX_LAYERS];
    m5_gguf_base(c, s);
    if (!m5_src_ok(s)) return;
    const m5_layer_config *l = &c->layers[0];
    int window = m5_src_int(s, "attention.sliding_window", 0, 0, M5_MAX_CTX);
    c->act = M5_ACT_GELU_TANH;
    c->embd_scale = sqrtf((float)c->n_embd);
    const double derived = pow(c->n_layer == 62 ? (double)c->n_embd / l->n_head : l->head_dim, -0.5);
    c->attn_scale = (float)m5_src_real(s, "attention.scale", derived, 1e-6, 1e6);
    c->final_softcap = (float)m5_src_real(s, "final_logit_softcapping", 0, 0, 1e6);
    m5_gguf_window_pattern(s, kinds, c->n_layer, window ? 6 : 0);
    m5_config_windows(c, kinds, window);
    m5_rope_spec global = {.head_dim = l->head_dim, .partial = 1, .theta = 1e6};
    m5_rope_spec local = {.head_dim = l->head_dim, .partial = 1, .theta = m5_src_real(s, "rope.freq_base_swa", 1e4, 1e-3, 1e15)};
    int full = m5_gguf_rope(c, s, &global, true), sliding = m5_src_ok(s) ? m5_rope_add(c, &local, s->err) : 0;
    if (sliding < 0) *s->rc = sliding;
    for (int i = 0; i < c->n_layer; i++) c->layers[i].rope = kinds[i] == M5_LAYER_SLIDING ? sliding : full;
}

const m5_family m5_family_gemma3 = {
    .name = "gemma3",
    .hf_types = (const char *const[]){"gemma3_text", "gemma3", NULL},
    .gguf_archs = (const char *const[]){"gemma3", NULL},
    .from_hf = from_hf,
    .from_gguf = from_gguf,
    .norms_zero_centred = true,
    .slots = {m5_slots_norms_gemma, m5_slots_attn, m5_slots_qk_norm, m5_slots_ffn},
};
