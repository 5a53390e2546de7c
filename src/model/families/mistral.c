/* SPDX-License-Identifier: Apache-2.0 */
/* Mistral (7B, Nemo, Small; also inside the mistral3 wrapper) and Ministral 3. Facts: docs/models/mistral.md. */
#include "model/families/family.h"

/* Absent means 4096, an explicit null means none. */
static void read_window(m5_config *c, m5_source *s, int absent)
{
    int window = m5_src_int(s, "sliding_window", m5_src_is_null(s, "sliding_window") ? 0 : absent, 0, M5_MAX_CTX);
    for (int i = 0; i < c->n_layer; i++) c->layers[i].window = window;
}

static void mistral_from_hf(m5_config *c, m5_source *s)
{
    m5_hf_base(c, s, &(m5_defaults){.n_head_kv = 8, .rms_eps = 1e-6, .n_ctx_train = 131072});
    if (!m5_src_ok(s)) return;
    read_window(c, s, 4096);
    m5_rope_spec rope = {.head_dim = c->layers[0].head_dim, .partial = 1, .theta = 1e4};
    m5_hf_rope(c, s, &rope);
}

static void no_gguf(m5_config *c, m5_source *s)
{
    (void)c;
    m5_src_fail(s, M5_ERR_UNSUPPORTED, "Mistral files use the architectures llama and mistral3");
}

static void ministral3_from_hf(m5_config *c, m5_source *s)
{
    m5_hf_base(c, s, &(m5_defaults){.n_head_kv = 8, .head_dim = 128, .rms_eps = 1e-5, .n_ctx_train = 262144});
    if (!m5_src_ok(s)) return;
    read_window(c, s, 0);
    m5_rope_spec rope = {.head_dim = c->layers[0].head_dim, .partial = 1, .theta = 1e4};
    m5_source dict = m5_src_sub(s, "rope_parameters");
    if (dict.json) {
        c->q_pos_scale_beta = (float)m5_src_real(&dict, "llama_4_scaling_beta", 0, 0, 100);
        c->q_pos_scale_len = m5_src_int(&dict, "original_max_position_embeddings", c->n_ctx_train, 1, M5_MAX_CTX);
    } else if (!m5_src_has(s, "rope_scaling")) { /* no dictionary at all: the published values */
        rope = (m5_rope_spec){.kind = M5_ROPE_YARN,
                              .head_dim = rope.head_dim,
                              .partial = 1,
                              .theta = 1e6,
                              .factor = 16,
                              .orig_ctx = 16384,
                              .beta_fast = 32,
                              .beta_slow = 1,
                              .mscale = 1,
                              .mscale_all_dim = 1};
        c->q_pos_scale_beta = 0.1f;
        c->q_pos_scale_len = 16384;
    }
    m5_hf_rope(c, s, &rope);
}

/* rope.scaling.yarn_log_multiplier holds mscale_all_dim; mscale is 1 whenever that is set. */
static void ministral3_from_gguf(m5_config *c, m5_source *s)
{
    m5_gguf_base(c, s);
    if (m5_src_int(s, "expert_count", 0, 0, 1 << 20) > 0)
        m5_src_fail(s, M5_ERR_UNSUPPORTED, "%s.expert_count: Mistral with experts is not supported", s->path);
    if (!m5_src_ok(s)) return;
    int window = m5_src_int(s, "attention.sliding_window", 0, 0, M5_MAX_CTX);
    for (int i = 0; i < c->n_layer; i++) c->layers[i].window = window;
    m5_rope_spec rope = {.head_dim = c->layers[0].head_dim, .partial = 1, .theta = 1e4, .pairs = true};
    rope.mscale_all_dim = m5_src_real(s, "rope.scaling.yarn_log_multiplier", 0, 0, 1e3);
    rope.mscale = rope.mscale_all_dim > 0 ? 1 : 0;
    c->q_pos_scale_beta = (float)m5_src_real(s, "attention.temperature_scale", 0, 0, 100);
    c->q_pos_scale_len = m5_src_int(s, "rope.scaling.original_context_length", c->n_ctx_train, 1, M5_MAX_CTX);
    m5_gguf_rope(c, s, &rope, true);
}

const m5_family m5_family_mistral = {
    .name = "mistral",
    .hf_types = (const char *const[]){"mistral", "mistral3", NULL},
    .gguf_archs = (const char *const[]){NULL},
    .from_hf = mistral_from_hf,
    .from_gguf = no_gguf,
    .slots = {m5_slots_norms, m5_slots_attn, m5_slots_ffn},
};

const m5_family m5_family_ministral3 = {
    .name = "ministral3",
    .hf_types = (const char *const[]){"ministral3", NULL},
    .gguf_archs = (const char *const[]){"mistral3", NULL},
    .from_hf = ministral3_from_hf,
    .from_gguf = ministral3_from_gguf,
    .slots = {m5_slots_norms, m5_slots_attn, m5_slots_ffn},
};
