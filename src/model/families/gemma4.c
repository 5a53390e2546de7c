/* SPDX-License-Identifier: Apache-2.0 */
/* Gemma 4 text: plain norms, two head sizes, shared keys and values, per-layer embeddings, dense plus expert FFN. Facts: docs/models/gemma4.md. */
#include "model/families/family.h"

#include <math.h>
#include <stdio.h>

/* One entry of per_layer_config: what differs from the flat keys in layer i. */
static void read_override(m5_source *s, m5_layer_config *l, const m5_json *entry, int i)
{
    m5_source e = *s;
    e.json = entry;
    snprintf(e.path, sizeof e.path, "per_layer_config.%d.", i);
    for (void *it = m5_json_iter(entry); it; it = m5_json_iter_next(entry, it)) {
        m5_slice k = m5_json_iter_key(it);
        if (m5_slice_is(k, "head_dim"))
            l->head_dim = m5_src_int(&e, "head_dim", l->head_dim, 1, M5_MAX_HEAD_DIM);
        else if (m5_slice_is(k, "num_key_value_heads"))
            l->n_head_kv = m5_src_int(&e, "num_key_value_heads", l->n_head_kv, 1, M5_MAX_HEADS);
        else if (m5_slice_is(k, "num_attention_heads"))
            l->n_head = m5_src_int(&e, "num_attention_heads", l->n_head, 1, M5_MAX_HEADS);
        else if (m5_slice_is(k, "intermediate_size"))
            l->n_ffn = m5_src_int(&e, "intermediate_size", l->n_ffn, 1, M5_MAX_FFN);
        else
            m5_src_fail(s, M5_ERR_UNSUPPORTED, "per_layer_config.%d.%.*s is not supported", i, (int)(k.n > 60 ? 60 : k.n), k.p);
    }
}

/* Keys are layer numbers as text, zero-padded to equal width ("05"). */
static void read_per_layer(m5_config *c, m5_source *s)
{
    m5_source dict = m5_src_sub(s, "per_layer_config");
    for (void *it = m5_json_iter(dict.json); it; it = m5_json_iter_next(dict.json, it)) {
        m5_slice k = m5_json_iter_key(it);
        int i = 0;
        size_t n = 0;
        while (n < k.n && n < 6 && k.p[n] >= '0' && k.p[n] <= '9') i = i * 10 + (k.p[n++] - '0');
        if (n == 0 || n != k.n || i >= c->n_layer || m5_json_typeof(m5_json_iter_value(it)) != M5_JSON_OBJECT) {
            m5_src_fail(s, M5_ERR_FORMAT, "per_layer_config has the key \"%.*s\", expected a layer number below %d and an object",
                        (int)(k.n > 60 ? 60 : k.n), k.p, c->n_layer);
            return;
        }
        read_override(s, &c->layers[i], m5_json_iter_value(it), i);
    }
}

/* Older spelling: full layers have their own head size, and with k_eq_v their own number of key/value heads. */
static void read_global_sizes(m5_config *c, m5_source *s, const m5_layer_kind *kinds, bool k_eq_v)
{
    int hd = m5_src_int(s, "global_head_dim", 512, 1, M5_MAX_HEAD_DIM);
    int n_kv = m5_src_int(s, "num_global_key_value_heads", 0, 1, M5_MAX_HEADS);
    for (int i = 0; i < c->n_layer; i++) {
        if (kinds[i] != M5_LAYER_FULL) continue;
        c->layers[i].head_dim = hd;
        if (k_eq_v && n_kv) c->layers[i].n_head_kv = n_kv;
    }
}

/* The last n_shared layers read keys and values of the last own-KV layer of their kind. */
static void share_kv(m5_config *c, m5_source *s, const m5_layer_kind *kinds, int n_shared)
{
    int first = c->n_layer - n_shared;
    for (int i = first; i < c->n_layer && m5_src_ok(s); i++) {
        int d = first - 1;
        while (d >= 0 && kinds[d] != kinds[i]) d--;
        if (d < 0) m5_src_fail(s, M5_ERR_FORMAT, "num_kv_shared_layers %d leaves no layer that layer %d could share with", n_shared, i);
        c->layers[i].kv_donor = d;
        c->layers[i].k_is_v = false;
    }
}

/* Two tables; full layers turn a quarter of the head ("proportional"). head_dim of a kind is that of its first layer. */
static void add_ropes(m5_config *c, m5_source *s, const m5_layer_kind *kinds, m5_rope_spec *full, m5_rope_spec *sliding, bool gguf)
{
    for (int i = c->n_layer - 1; i >= 0; i--) {
        if (kinds[i] == M5_LAYER_FULL)
            full->head_dim = c->layers[i].head_dim;
        else
            sliding->head_dim = c->layers[i].head_dim;
    }
    int f = 0, l = 0;
    if (full->head_dim) f = gguf ? m5_gguf_rope(c, s, full, true) : m5_rope_add(c, full, s->err);
    if (m5_src_ok(s) && f >= 0 && sliding->head_dim) l = m5_rope_add(c, sliding, s->err);
    if (f < 0 || l < 0) *s->rc = f < 0 ? f : l;
    for (int i = 0; i < c->n_layer; i++) c->layers[i].rope = kinds[i] == M5_LAYER_SLIDING ? l : f;
}

static void set_traits(m5_config *c)
{
    c->act = M5_ACT_GELU_TANH;
    c->embd_scale = sqrtf((float)c->n_embd);
    c->attn_scale = 1;
    c->v_norm = true;
    c->expert_renorm = true;
}

static void read_moe(m5_config *c, m5_source *s)
{
    if (!m5_src_bool(s, "enable_moe_block", false)) return;
    c->n_expert = m5_src_int(s, "num_experts", M5_REQUIRED, 1, M5_MAX_EXPERTS);
    c->n_expert_used = m5_src_int(s, "top_k_experts", M5_REQUIRED, 1, M5_MAX_EXPERTS);
    c->n_ffn_expert = m5_src_int(s, "moe_intermediate_size", M5_REQUIRED, 1, M5_MAX_FFN);
    for (int i = 0; i < c->n_layer; i++) c->layers[i].ffn = M5_FFN_DENSE_AND_MOE;
}

static void read_kinds(m5_config *c, m5_source *s, m5_layer_kind *kinds)
{
    for (int i = 0; i < c->n_layer; i++) kinds[i] = (i + 1) % 6 == 0 || i == c->n_layer - 1 ? M5_LAYER_FULL : M5_LAYER_SLIDING;
    m5_hf_layer_types(s, kinds, c->n_layer);
    for (int i = 0; i < c->n_layer; i++) {
        if (kinds[i] == M5_LAYER_LINEAR) m5_src_fail(s, M5_ERR_UNSUPPORTED, "layer_types[%d]: linear_attention is not part of this family", i);
    }
}

static void from_hf(m5_config *c, m5_source *s)
{
    m5_layer_kind kinds[M5_MAX_LAYERS];
    m5_hf_base(c, s,
               &(m5_defaults){.n_head = 8,
                              .n_head_kv = 4,
                              .head_dim = 256,
                              .n_vocab = 262144,
                              .n_embd = 2304,
                              .n_ffn = 9216,
                              .n_layer = 30,
                              .rms_eps = 1e-6,
                              .n_ctx_train = 131072,
                              .tied = true,
                              .act = M5_ACT_GELU_TANH});
    if (!m5_src_ok(s)) return;
    set_traits(c);
    read_kinds(c, s, kinds);
    c->final_softcap = (float)(m5_src_is_null(s, "final_logit_softcapping") ? 0 : m5_src_real(s, "final_logit_softcapping", 0, 0, 1e6));
    c->n_ple = m5_src_int(s, "hidden_size_per_layer_input", m5_src_is_null(s, "hidden_size_per_layer_input") ? 0 : 256, 0, M5_MAX_EMBD);
    c->n_vocab_ple = c->n_ple ? m5_src_int(s, "vocab_size_per_layer_input", 262144, 1, M5_MAX_VOCAB) : 0;
    m5_config_windows(c, kinds, m5_src_int(s, "sliding_window", 512, 1, M5_MAX_CTX));
    bool k_eq_v = m5_src_bool(s, "attention_k_eq_v", false), wide = m5_src_bool(s, "use_double_wide_mlp", false);
    int n_shared = m5_src_int(s, "num_kv_shared_layers", 0, 0, c->n_layer - 1);
    for (int i = 0; i < c->n_layer; i++) {
        c->layers[i].k_is_v = k_eq_v && kinds[i] == M5_LAYER_FULL;
        if (wide && i >= c->n_layer - n_shared) c->layers[i].n_ffn *= 2;
    }
    if (m5_src_has(s, "per_layer_config"))
        read_per_layer(c, s);
    else
        read_global_sizes(c, s, kinds, k_eq_v);
    share_kv(c, s, kinds, n_shared);
    read_moe(c, s);
    m5_rope_spec full = {.kind = M5_ROPE_PROPORTIONAL, .partial = 0.25, .theta = 1e6, .factor = 1}, sliding = {.partial = 1, .theta = 1e4};
    m5_source dicts = m5_src_sub(s, "rope_parameters"), f = m5_src_sub(&dicts, "full_attention"), l = m5_src_sub(&dicts, "sliding_attention");
    if (f.json) full = (m5_rope_spec){.partial = 1, .theta = 1e6};
    m5_hf_rope_dict(&f, &full, c->n_ctx_train);
    m5_hf_rope_dict(&l, &sliding, c->n_ctx_train);
    if (m5_src_ok(s)) add_ropes(c, s, kinds, &full, &sliding, false);
}

/* Head sizes of both kinds, key/value heads and widths per layer are in the metadata; whether V exists is seen from the tensors. */
static void from_gguf(m5_config *c, m5_source *s)
{
    m5_layer_kind kinds[M5_MAX_LAYERS];
    m5_gguf_base(c, s);
    if (!m5_src_ok(s)) return;
    set_traits(c);
    c->final_softcap = (float)m5_src_real(s, "final_logit_softcapping", 0, 0, 1e6);
    c->n_ple = m5_src_int(s, "embedding_length_per_layer_input", 0, 0, M5_MAX_EMBD);
    const m5_gguf_tensor *ple = m5_gguf_find(s->gguf, "per_layer_token_embd.weight");
    c->n_vocab_ple = c->n_ple && ple && ple->dims[1] <= M5_MAX_VOCAB ? (int)ple->dims[1] : c->n_ple ? c->n_vocab : 0;
    m5_gguf_window_pattern(s, kinds, c->n_layer, 6);
    m5_config_windows(c, kinds, m5_src_int(s, "attention.sliding_window", 512, 1, M5_MAX_CTX));
    for (int i = 0; i < c->n_layer; i++) {
        char name[64];
        m5_layer_config *l = &c->layers[i];
        if (kinds[i] == M5_LAYER_SLIDING) l->head_dim = m5_src_int(s, "attention.key_length_swa", l->head_dim, 1, M5_MAX_HEAD_DIM);
        snprintf(name, sizeof name, "blk.%d.attn_v.weight", i);
        l->k_is_v = kinds[i] == M5_LAYER_FULL && !m5_gguf_find(s->gguf, name);
    }
    share_kv(c, s, kinds, m5_src_int(s, "attention.shared_kv_layers", 0, 0, c->n_layer - 1));
    if (m5_src_int(s, "expert_count", 0, 0, M5_MAX_EXPERTS) > 0) {
        m5_gguf_moe(c, s, true);
        c->n_ffn_shared = 0;
        for (int i = 0; i < c->n_layer; i++) c->layers[i].ffn = c->layers[i].ffn == M5_FFN_MOE ? M5_FFN_DENSE_AND_MOE : M5_FFN_DENSE;
    }
    m5_rope_spec full = {.kind = M5_ROPE_PROPORTIONAL, .partial = 0.25, .theta = 1e6, .factor = 1};
    m5_rope_spec sliding = {.partial = 1, .theta = m5_src_real(s, "rope.freq_base_swa", 1e4, 1e-3, 1e15)};
    sliding.n_rot = m5_src_int(s, "rope.dimension_count_swa", 0, 1, M5_MAX_HEAD_DIM);
    if (m5_src_ok(s)) add_ropes(c, s, kinds, &full, &sliding, true);
}

const m5_family m5_family_gemma4 = {
    .name = "gemma4",
    .hf_types = (const char *const[]){"gemma4_text", "gemma4", "gemma4_unified", "gemma4_unified_text", NULL},
    .gguf_archs = (const char *const[]){"gemma4", NULL},
    .from_hf = from_hf,
    .from_gguf = from_gguf,
    .slots = {m5_slots_norms_gemma, m5_slots_attn, m5_slots_qk_norm, m5_slots_ffn, m5_slots_moe_gemma4, m5_slots_gemma4},
};
