/* SPDX-License-Identifier: Apache-2.0 */
/* Qwen3.5 and Qwen3.6 (dense and mixture of experts) and Qwen3-Next: three gated-delta-net layers, then one of gated full attention.
 * Facts: docs/models/qwen3_5.md. */
#include "model/families/family.h"

#include <stdio.h>

/* layer_types wins (pruned checkpoints break the rhythm); without it every full_attention_interval-th layer attends. */
static void read_mixers(m5_config *c, m5_source *s)
{
    m5_layer_kind kinds[M5_MAX_LAYERS];
    int interval = m5_src_int(s, "full_attention_interval", 4, 1, M5_MAX_LAYERS);
    if (!m5_hf_layer_types(s, kinds, c->n_layer)) {
        for (int i = 0; i < c->n_layer; i++) kinds[i] = (i + 1) % interval == 0 ? M5_LAYER_FULL : M5_LAYER_LINEAR;
    }
    for (int i = 0; i < c->n_layer && m5_src_ok(s); i++) {
        if (kinds[i] == M5_LAYER_SLIDING)
            m5_src_fail(s, M5_ERR_UNSUPPORTED, "%slayer_types[%d]: sliding_attention is not part of this family", s->path, i);
        c->layers[i].mixer = kinds[i] == M5_LAYER_LINEAR ? M5_MIX_GDN : M5_MIX_ATTN;
    }
}

static void read_gdn(m5_config *c, m5_source *s)
{
    c->gdn_n_k_head = m5_src_int(s, "linear_num_key_heads", 16, 1, M5_MAX_HEADS);
    c->gdn_n_v_head = m5_src_int(s, "linear_num_value_heads", 32, 1, M5_MAX_HEADS);
    c->gdn_k_dim = m5_src_int(s, "linear_key_head_dim", 128, 1, M5_MAX_HEAD_DIM);
    c->gdn_v_dim = m5_src_int(s, "linear_value_head_dim", 128, 1, M5_MAX_HEAD_DIM);
    c->gdn_conv = m5_src_int(s, "linear_conv_kernel_dim", 4, 1, 64);
}

static void hybrid_from_hf(m5_config *c, m5_source *s, int n_head_kv, bool moe)
{
    m5_hf_base(c, s, &(m5_defaults){.n_head_kv = n_head_kv, .head_dim = 256, .rms_eps = 1e-6, .n_ctx_train = 32768, .ffn_optional = moe});
    if (!m5_src_ok(s)) return;
    m5_rope_spec rope = {.head_dim = c->layers[0].head_dim, .partial = 0.25, .theta = 1e4};
    m5_hf_rope(c, s, &rope); /* mrope sections only matter for images: with text all three positions are the token's */
    c->attn_gate = true;
    read_mixers(c, s);
    read_gdn(c, s);
    c->n_mtp = m5_src_int(s, "mtp_num_hidden_layers", 0, 0, 8);
    c->mtp_layer = c->layers[0];
    c->mtp_layer.mixer = M5_MIX_ATTN;
    c->mtp_layer.kv_donor = c->n_layer;
}

static void qwen3_5_from_hf(m5_config *c, m5_source *s)
{
    hybrid_from_hf(c, s, 4, false);
}

static void qwen3_5_moe_from_hf(m5_config *c, m5_source *s)
{
    hybrid_from_hf(c, s, 2, true);
    if (!m5_src_ok(s)) return;
    m5_hf_moe(c, s, &(m5_moe_defaults){.n_expert = 256, .n_used = 8, .n_ffn_expert = 512, .n_ffn_shared = 512, .renorm = true, .renorm_fixed = true});
    for (int i = 0; i < c->n_layer; i++) c->layers[i].ffn = M5_FFN_MOE; /* mlp_only_layers and decoder_sparse_step are no keys of this family */
    c->mtp_layer.ffn = M5_FFN_MOE;
}

static void qwen3_next_from_hf(m5_config *c, m5_source *s)
{
    hybrid_from_hf(c, s, 2, true);
    if (!m5_src_ok(s)) return;
    m5_hf_moe(c, s, &(m5_moe_defaults){.n_expert = 512, .n_used = 10, .n_ffn_expert = 512, .n_ffn_shared = 512, .renorm = true});
    c->mtp_layer.ffn = M5_FFN_MOE;
}

static bool has_tensor(m5_source *s, const char *fmt, int layer)
{
    char name[64];
    snprintf(name, sizeof name, fmt, layer);
    return m5_gguf_find(s->gguf, name) != NULL;
}

/* The tensors tell which mixer a block has; the interval only serves a file where neither is there, so that the binder reports the missing one. */
static void read_mixers_gguf(m5_config *c, m5_source *s)
{
    int interval = m5_src_int(s, "full_attention_interval", 4, 1, M5_MAX_LAYERS);
    for (int i = 0; i < c->n_layer; i++) {
        bool gdn = has_tensor(s, "blk.%d.ssm_conv1d.weight", i), attn = has_tensor(s, "blk.%d.attn_q.weight", i);
        if (!gdn && !attn) gdn = (i + 1) % interval != 0;
        c->layers[i].mixer = gdn ? M5_MIX_GDN : M5_MIX_ATTN;
    }
}

static void hybrid_from_gguf(m5_config *c, m5_source *s, bool tiled)
{
    m5_gguf_base(c, s);
    if (!m5_src_ok(s)) return;
    read_mixers_gguf(c, s);
    int inner = m5_src_int(s, "ssm.inner_size", M5_REQUIRED, 1, M5_MAX_HEADS * M5_MAX_HEAD_DIM);
    c->gdn_n_k_head = m5_src_int(s, "ssm.group_count", M5_REQUIRED, 1, M5_MAX_HEADS);
    c->gdn_n_v_head = m5_src_int(s, "ssm.time_step_rank", M5_REQUIRED, 1, M5_MAX_HEADS);
    c->gdn_k_dim = m5_src_int(s, "ssm.state_size", M5_REQUIRED, 1, M5_MAX_HEAD_DIM);
    c->gdn_conv = m5_src_int(s, "ssm.conv_kernel", 4, 1, 64);
    if (!m5_src_ok(s)) return;
    c->gdn_v_dim = inner / c->gdn_n_v_head;
    if (inner % c->gdn_n_v_head)
        m5_src_fail(s, M5_ERR_FORMAT, "%s.ssm.inner_size %d is no multiple of ssm.time_step_rank %d", s->path, inner, c->gdn_n_v_head);
    c->gdn_tiled = tiled;
    c->attn_gate = true;
    const m5_layer_config *attn = &c->layers[0]; /* a per-layer list of heads may hold 0 where nothing attends */
    for (int i = 0; i < c->n_layer && attn->mixer != M5_MIX_ATTN; i++) attn = &c->layers[i];
    m5_rope_spec rope = {.head_dim = attn->head_dim, .partial = 0.25, .theta = 1e4};
    m5_gguf_rope(c, s, &rope, true);
    c->mtp_layer = *attn;
    c->mtp_layer.mixer = M5_MIX_ATTN;
    c->mtp_layer.kv_donor = c->n_layer;
    c->mtp_layer.ffn = has_tensor(s, "blk.%d.ffn_gate_inp.weight", c->n_layer) ? M5_FFN_MOE : M5_FFN_DENSE;
}

static void qwen3_5_from_gguf(m5_config *c, m5_source *s)
{
    hybrid_from_gguf(c, s, true);
}

static void qwen3_5_moe_from_gguf(m5_config *c, m5_source *s)
{
    hybrid_from_gguf(c, s, true);
    if (m5_src_ok(s)) m5_gguf_moe(c, s, true);
}

static void qwen3_next_from_gguf(m5_config *c, m5_source *s)
{
    hybrid_from_gguf(c, s, false); /* value heads keep their grouped order in these files */
    if (m5_src_ok(s)) m5_gguf_moe(c, s, true);
}

const m5_family m5_family_qwen3_5 = {
    .name = "qwen3_5",
    .hf_types = (const char *const[]){"qwen3_5", "qwen3_5_text", NULL},
    .gguf_archs = (const char *const[]){"qwen35", NULL},
    .from_hf = qwen3_5_from_hf,
    .from_gguf = qwen3_5_from_gguf,
    .norms_zero_centred = true,
    .mlx_shifts_norms = true,
    .mtp = true,
    .slots = {m5_slots_norms_qwen35, m5_slots_attn, m5_slots_qk_norm, m5_slots_gdn, m5_slots_ffn},
};

const m5_family m5_family_qwen3_5_moe = {
    .name = "qwen3_5_moe",
    .hf_types = (const char *const[]){"qwen3_5_moe", "qwen3_5_moe_text", NULL},
    .gguf_archs = (const char *const[]){"qwen35moe", NULL},
    .from_hf = qwen3_5_moe_from_hf,
    .from_gguf = qwen3_5_moe_from_gguf,
    .norms_zero_centred = true,
    .mlx_shifts_norms = true,
    .mtp = true,
    .slots = {m5_slots_norms_qwen35, m5_slots_attn, m5_slots_qk_norm, m5_slots_gdn, m5_slots_ffn, m5_slots_moe_qwen},
};

const m5_family m5_family_qwen3_next = {
    .name = "qwen3_next",
    .hf_types = (const char *const[]){"qwen3_next", NULL},
    .gguf_archs = (const char *const[]){"qwen3next", NULL},
    .from_hf = qwen3_next_from_hf,
    .from_gguf = qwen3_next_from_gguf,
    .norms_zero_centred = true,
    .mlx_shifts_norms = true,
    .mtp = true,
    .slots = {m5_slots_norms_qwen35, m5_slots_attn, m5_slots_qk_norm, m5_slots_gdn, m5_slots_ffn, m5_slots_moe_qwen},
};
