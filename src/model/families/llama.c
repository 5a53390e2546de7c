/* SPDX-License-Identifier: Apache-2.0 */
/* Llama 3.x, and SmolLM2 and the Llama-based distillations, which are the same architecture. Facts: docs/models/llama.md. */
#include "model/families/family.h"

static void from_hf(m5_config *c, m5_source *s)
{
    m5_hf_base(c, s, &(m5_defaults){.rms_eps = 1e-6, .n_ctx_train = 2048});
    if (!m5_src_ok(s)) return;
    m5_rope_spec rope = {.head_dim = c->layers[0].head_dim, .partial = 1, .theta = 1e4};
    m5_hf_rope(c, s, &rope);
}

/* Converted files hold the rows of q and k interleaved, so pairs (2j, 2j+1) rotate; llama3 scaling is a tensor of divisors. Mistral 7B, Nemo and
 * Small are this architecture too; v0.1 may carry a window. */
static void from_gguf(m5_config *c, m5_source *s)
{
    m5_gguf_base(c, s);
    if (m5_src_int(s, "expert_count", 0, 0, 1 << 20) > 0)
        m5_src_fail(s, M5_ERR_UNSUPPORTED, "%s.expert_count: Llama with experts is not supported", s->path);
    if (!m5_src_ok(s)) return;
    int window = m5_src_int(s, "attention.sliding_window", 0, 0, M5_MAX_CTX);
    for (int i = 0; i < c->n_layer; i++) c->layers[i].window = window;
    m5_rope_spec rope = {.head_dim = c->layers[0].head_dim, .partial = 1, .theta = 1e4, .pairs = true};
    m5_gguf_rope(c, s, &rope, true);
}

const m5_family m5_family_llama = {
    .name = "llama",
    .hf_types = (const char *const[]){"llama", NULL},
    .gguf_archs = (const char *const[]){"llama", NULL},
    .from_hf = from_hf,
    .from_gguf = from_gguf,
    .slots = {m5_slots_norms, m5_slots_attn, m5_slots_ffn},
};
