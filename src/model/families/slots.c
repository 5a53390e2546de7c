/* SPDX-License-Identifier: Apache-2.0 */
/* Weight slots shared by families: which field, which shape, under which names. Shapes are [rows, cols]; a name starts below the layer's prefix
 * ("model.layers.3." or "blk.3."). Alternatives are tried from left to right. Not here: how a slot is filled (model/bind*.c). */
#include "model/families/family.h"

#include <stddef.h>

#define L(field) offsetof(m5_layer_weights, field)
#define MAT(field, rows, cols, when, hf, gguf)                                                                                                       \
    {                                                                                                                                                \
        L(field), M5_SLOT_MATRIX, rows, cols, when, hf, gguf                                                                                         \
    }
#define VEC(field, rows, when, hf, gguf)                                                                                                             \
    {                                                                                                                                                \
        L(field), M5_SLOT_VECTOR, rows, M5_D_1, when, hf, gguf                                                                                       \
    }
#define NORM(field, rows, when, hf, gguf)                                                                                                            \
    {                                                                                                                                                \
        L(field), M5_SLOT_NORM, rows, M5_D_1, when, hf, gguf                                                                                         \
    }
#define END                                                                                                                                          \
    {                                                                                                                                                \
        0, 0, 0, 0, 0, NULL, NULL                                                                                                                    \
    }

const m5_slot m5_slots_norms[] = {
    NORM(attn_norm, M5_D_EMBD, 0, "input_layernorm.weight", "attn_norm.weight"),
    NORM(ffn_norm, M5_D_EMBD, 0, "post_attention_layernorm.weight", "ffn_norm.weight"),
    END,
};

const m5_slot m5_slots_norms_qwen35[] = {
    NORM(attn_norm, M5_D_EMBD, 0, "input_layernorm.weight", "attn_norm.weight"),
    NORM(ffn_norm, M5_D_EMBD, 0, "post_attention_layernorm.weight", "post_attention_norm.weight|ffn_norm.weight"),
    END,
};

/* The same Hugging Face name means another thing here: post_attention_layernorm is the norm of the attention's output. */
const m5_slot m5_slots_norms_gemma[] = {
    NORM(attn_norm, M5_D_EMBD, 0, "input_layernorm.weight", "attn_norm.weight"),
    NORM(attn_post_norm, M5_D_EMBD, 0, "post_attention_layernorm.weight", "post_attention_norm.weight"),
    NORM(ffn_norm, M5_D_EMBD, 0, "pre_feedforward_layernorm.weight", "ffn_norm.weight"),
    NORM(ffn_post_norm, M5_D_EMBD, 0, "post_feedforward_layernorm.weight", "post_ffw_norm.weight"),
    END,
};

const m5_slot m5_slots_attn[] = {
    MAT(q, M5_D_Q_GATED, M5_D_EMBD, M5_WHEN_ATTN, "self_attn.q_proj.weight", "attn_q.weight"),
    MAT(k, M5_D_KV, M5_D_EMBD, M5_WHEN_ATTN | M5_WHEN_OWN_KV, "self_attn.k_proj.weight", "attn_k.weight"),
    MAT(v, M5_D_KV, M5_D_EMBD, M5_WHEN_ATTN | M5_WHEN_OWN_KV | M5_WHEN_OWN_V, "self_attn.v_proj.weight", "attn_v.weight"),
    MAT(o, M5_D_EMBD, M5_D_Q, M5_WHEN_ATTN, "self_attn.o_proj.weight", "attn_output.weight"),
    VEC(q_bias, M5_D_Q_GATED, M5_WHEN_ATTN | M5_WHEN_OPTIONAL, "self_attn.q_proj.bias", "attn_q.bias"),
    VEC(k_bias, M5_D_KV, M5_WHEN_ATTN | M5_WHEN_OWN_KV | M5_WHEN_OPTIONAL, "self_attn.k_proj.bias", "attn_k.bias"),
    VEC(v_bias, M5_D_KV, M5_WHEN_ATTN | M5_WHEN_OWN_KV | M5_WHEN_OWN_V | M5_WHEN_OPTIONAL, "self_attn.v_proj.bias", "attn_v.bias"),
    VEC(o_bias, M5_D_EMBD, M5_WHEN_ATTN | M5_WHEN_OPTIONAL, "self_attn.o_proj.bias", "attn_output.bias"),
    END,
};

const m5_slot m5_slots_qk_norm[] = {
    NORM(q_norm, M5_D_HEAD_DIM, M5_WHEN_ATTN, "self_attn.q_norm.weight", "attn_q_norm.weight"),
    NORM(k_norm, M5_D_HEAD_DIM, M5_WHEN_ATTN | M5_WHEN_OWN_KV, "self_attn.k_norm.weight", "attn_k_norm.weight"),
    END,
};

const m5_slot m5_slots_ffn[] = {
    MAT(gate, M5_D_FFN, M5_D_EMBD, M5_WHEN_DENSE, "mlp.gate_proj.weight", "ffn_gate.weight"),
    MAT(up, M5_D_FFN, M5_D_EMBD, M5_WHEN_DENSE, "mlp.up_proj.weight", "ffn_up.weight"),
    MAT(down, M5_D_EMBD, M5_D_FFN, M5_WHEN_DENSE, "mlp.down_proj.weight", "ffn_down.weight"),
    VEC(gate_bias, M5_D_FFN, M5_WHEN_DENSE | M5_WHEN_OPTIONAL, "mlp.gate_proj.bias", "ffn_gate.bias"),
    VEC(up_bias, M5_D_FFN, M5_WHEN_DENSE | M5_WHEN_OPTIONAL, "mlp.up_proj.bias", "ffn_up.bias"),
    VEC(down_bias, M5_D_EMBD, M5_WHEN_DENSE | M5_WHEN_OPTIONAL, "mlp.down_proj.bias", "ffn_down.bias"),
    END,
};

const m5_slot m5_slots_moe_qwen[] = {
    MAT(router, M5_D_EXPERTS, M5_D_EMBD, M5_WHEN_MOE, "mlp.gate.weight", "ffn_gate_inp.weight"),
    {L(exp_gate), M5_SLOT_EXPERTS, M5_D_FFN_EXPERT, M5_D_EMBD, M5_WHEN_MOE, "mlp.experts|mlp.switch_mlp", "ffn"},
    MAT(shared_gate, M5_D_FFN_SHARED, M5_D_EMBD, M5_WHEN_MOE | M5_WHEN_SHARED, "mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"),
    MAT(shared_up, M5_D_FFN_SHARED, M5_D_EMBD, M5_WHEN_MOE | M5_WHEN_SHARED, "mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"),
    MAT(shared_down, M5_D_EMBD, M5_D_FFN_SHARED, M5_WHEN_MOE | M5_WHEN_SHARED, "mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"),
    MAT(shared_router, M5_D_1, M5_D_EMBD, M5_WHEN_MOE | M5_WHEN_SHARED, "mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"),
    END,
};

/* in_proj_qkv, z, b and a may also come fused and interleaved per key head; bind_gdn.c looks for that when the first name is missing. */
const m5_slot m5_slots_gdn[] = {
    MAT(gdn_qkv, M5_D_GDN_CHANNELS, M5_D_EMBD, M5_WHEN_GDN, "linear_attn.in_proj_qkv.weight", "attn_qkv.weight"),
    MAT(gdn_z, M5_D_GDN_V, M5_D_EMBD, M5_WHEN_GDN, "linear_attn.in_proj_z.weight", "attn_gate.weight"),
    MAT(gdn_b, M5_D_GDN_V_HEADS, M5_D_EMBD, M5_WHEN_GDN, "linear_attn.in_proj_b.weight", "ssm_beta.weight"),
    MAT(gdn_a, M5_D_GDN_V_HEADS, M5_D_EMBD, M5_WHEN_GDN, "linear_attn.in_proj_a.weight", "ssm_alpha.weight"),
    MAT(gdn_out, M5_D_EMBD, M5_D_GDN_V, M5_WHEN_GDN, "linear_attn.out_proj.weight", "ssm_out.weight"),
    {L(gdn_conv), M5_SLOT_CONV, M5_D_GDN_CHANNELS, M5_D_GDN_CONV, M5_WHEN_GDN, "linear_attn.conv1d.weight", "ssm_conv1d.weight"},
    {L(gdn_a_neg), M5_SLOT_DECAY, M5_D_GDN_V_HEADS, M5_D_1, M5_WHEN_GDN, "linear_attn.A_log", "ssm_a"},
    VEC(gdn_dt_bias, M5_D_GDN_V_HEADS, M5_WHEN_GDN, "linear_attn.dt_bias", "ssm_dt.bias"),
    VEC(gdn_norm, M5_D_GDN_V_DIM, M5_WHEN_GDN, "linear_attn.norm.weight", "ssm_norm.weight"),
    END,
};

const m5_slot m5_slots_moe_gemma4[] = {
    MAT(router, M5_D_EXPERTS, M5_D_EMBD, M5_WHEN_MOE, "router.proj.weight", "ffn_gate_inp.weight"),
    {L(router_scale), M5_SLOT_ROUTER_SCALE, M5_D_EMBD, M5_D_1, M5_WHEN_MOE, "router.scale", "ffn_gate_inp.scale"},
    VEC(expert_scale, M5_D_EXPERTS, M5_WHEN_MOE, "router.per_expert_scale", "ffn_down_exps.scale"),
    {L(exp_gate), M5_SLOT_EXPERTS, M5_D_FFN_EXPERT, M5_D_EMBD, M5_WHEN_MOE, "experts|experts.switch_glu", "ffn"},
    NORM(ffn_post_norm_1, M5_D_EMBD, M5_WHEN_MOE, "post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"),
    NORM(ffn_pre_norm_2, M5_D_EMBD, M5_WHEN_MOE, "pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"),
    NORM(ffn_post_norm_2, M5_D_EMBD, M5_WHEN_MOE, "post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"),
    END,
};

const m5_slot m5_slots_gemma4[] = {
    {L(layer_scalar), M5_SLOT_SCALAR, M5_D_1, M5_D_1, M5_WHEN_OPTIONAL, "layer_scalar", "layer_output_scale.weight"},
    MAT(ple_gate, M5_D_PLE, M5_D_EMBD, M5_WHEN_PLE, "per_layer_input_gate.weight", "inp_gate.weight"),
    MAT(ple_proj, M5_D_EMBD, M5_D_PLE, M5_WHEN_PLE, "per_layer_projection.weight", "proj.weight"),
    NORM(ple_post_norm, M5_D_EMBD, M5_WHEN_PLE, "post_per_layer_input_norm.weight", "post_norm.weight"),
    END,
};

#define W(field) offsetof(m5_weights, field)
const m5_slot m5_slots_model[] = {
    {W(embd), M5_SLOT_MATRIX, M5_D_VOCAB, M5_D_EMBD, 0, "embed_tokens.weight", "token_embd.weight"},
    {W(out_norm), M5_SLOT_NORM, M5_D_EMBD, M5_D_1, 0, "norm.weight", "output_norm.weight"},
    {W(ple_embd), M5_SLOT_MATRIX, M5_D_VOCAB_PLE, M5_D_PLE_ALL, M5_WHEN_PLE, "embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},
    {W(ple_model_proj), M5_SLOT_MATRIX, M5_D_PLE_ALL, M5_D_EMBD, M5_WHEN_PLE, "per_layer_model_projection.weight", "per_layer_model_proj.weight"},
    {W(ple_proj_norm), M5_SLOT_NORM, M5_D_PLE, M5_D_1, M5_WHEN_PLE, "per_layer_projection_norm.weight", "per_layer_proj_norm.weight"},
    END,
};

#define T(field) offsetof(m5_mtp_weights, field)
const m5_slot m5_slots_mtp[] = {
    {T(fc), M5_SLOT_MATRIX, M5_D_EMBD, M5_D_2EMBD, 0, "fc.weight", "nextn.eh_proj.weight"},
    {T(embd_norm), M5_SLOT_NORM, M5_D_EMBD, M5_D_1, 0, "pre_fc_norm_embedding.weight", "nextn.enorm.weight"},
    {T(hidden_norm), M5_SLOT_NORM, M5_D_EMBD, M5_D_1, 0, "pre_fc_norm_hidden.weight", "nextn.hnorm.weight"},
    {T(out_norm), M5_SLOT_NORM, M5_D_EMBD, M5_D_1, M5_WHEN_OPTIONAL, "norm.weight", "nextn.shared_head_norm.weight"},
    {T(embd), M5_SLOT_MATRIX, M5_D_VOCAB, M5_D_EMBD, M5_WHEN_OPTIONAL, "embed_tokens.weight", "nextn.embed_tokens.weight"},
    {T(head), M5_SLOT_MATRIX, M5_D_VOCAB, M5_D_EMBD, M5_WHEN_OPTIONAL, "lm_head.weight", "nextn.shared_head_head.weight"},
    END,
};
