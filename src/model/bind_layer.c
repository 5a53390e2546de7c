/* SPDX-License-Identifier: Apache-2.0 */
/* Walks the slot lists of a family: evaluates shapes and conditions for a layer and brings each tensor to the canonical form of weights.h.
 * Room: model/bind.h. Not here: experts (bind_moe.c), fused projections (bind_fused.c). */
#include "model/bind.h"

#include <math.h>
#include <string.h>

int64_t m5_bind_dim(const m5_config *c, const m5_layer_config *l, m5_dim d)
{
    switch (d) {
    case M5_D_1: return 1;
    case M5_D_EMBD: return c->n_embd;
    case M5_D_2EMBD: return 2 * (int64_t)c->n_embd;
    case M5_D_VOCAB: return c->n_vocab;
    case M5_D_Q: return (int64_t)l->n_head * l->head_dim;
    case M5_D_Q_GATED: return (int64_t)l->n_head * l->head_dim * (c->attn_gate ? 2 : 1);
    case M5_D_KV: return (int64_t)l->n_head_kv * l->head_dim;
    case M5_D_HEAD_DIM: return l->head_dim;
    case M5_D_FFN: return l->n_ffn;
    case M5_D_EXPERTS: return c->n_expert;
    case M5_D_FFN_EXPERT: return c->n_ffn_expert;
    case M5_D_FFN_SHARED: return c->n_ffn_shared;
    case M5_D_GDN_CHANNELS: return m5_config_gdn_channels(c);
    case M5_D_GDN_V: return (int64_t)c->gdn_n_v_head * c->gdn_v_dim;
    case M5_D_GDN_V_HEADS: return c->gdn_n_v_head;
    case M5_D_GDN_V_DIM: return c->gdn_v_dim;
    case M5_D_GDN_CONV: return c->gdn_conv;
    case M5_D_PLE: return c->n_ple;
    case M5_D_PLE_ALL: return (int64_t)c->n_layer * c->n_ple;
    case M5_D_VOCAB_PLE: return c->n_vocab_ple;
    }
    return 0;
}

/* Vector kinds: the stored numbers become the ones that the forward pass uses. */
static void canonical(const m5_binder *b, m5_slot_kind kind, float *v, int64_t n)
{
    const float scale = 1.0f / sqrtf((float)b->w->config.n_embd);
    for (int64_t i = 0; i < n; i++) {
        if (kind == M5_SLOT_NORM && b->add_one) v[i] += 1.0f;
        if (kind == M5_SLOT_DECAY && !b->store->gguf) v[i] = -expf(v[i]);
        if (kind == M5_SLOT_ROUTER_SCALE) v[i] *= scale;
    }
}

static int bind_slot(m5_binder *b, const m5_slot *s, const char *prefix, const m5_layer_config *l, void *base)
{
    const m5_config *c = &b->w->config;
    const char *names = b->store->gguf ? s->gguf : s->hf;
    const int64_t rows = m5_bind_dim(c, l, (m5_dim)s->rows), cols = m5_bind_dim(c, l, (m5_dim)s->cols);
    const bool optional = s->when & M5_WHEN_OPTIONAL;
    void *field = (char *)base + s->at;
    float *v = NULL;
    int rc;
    switch ((m5_slot_kind)s->kind) {
    case M5_SLOT_MATRIX:
        if (m5_matrix_present(field)) return 0; /* came out of a fused projection */
        return m5_bind_matrix(b, prefix, names, 1, rows, cols, optional, field);
    case M5_SLOT_EXPERTS: return m5_bind_experts(b, prefix, s, base);
    case M5_SLOT_SCALAR:
        rc = m5_bind_vector(b, prefix, names, 1, 1, optional, &v);
        if (rc == 0 && v) memcpy(field, v, sizeof *v);
        return rc;
    case M5_SLOT_VECTOR:
    case M5_SLOT_NORM:
    case M5_SLOT_DECAY:
    case M5_SLOT_CONV:
    case M5_SLOT_ROUTER_SCALE:
        memcpy(&v, field, sizeof v);
        if (v) return 0;
        rc = m5_bind_vector(b, prefix, names, rows, cols, optional, &v);
        if (v) canonical(b, (m5_slot_kind)s->kind, v, rows * cols);
        memcpy(field, &v, sizeof v);
        return rc;
    }
    return 0;
}

int m5_bind_slots(m5_binder *b, const m5_slot *slots, const char *prefix, const m5_layer_config *l, unsigned when, void *base)
{
    int rc = 0;
    for (const m5_slot *s = slots; s->hf && rc == 0; s++) {
        if ((s->when & ~(unsigned)M5_WHEN_OPTIONAL & ~when) == 0) rc = bind_slot(b, s, prefix, l, base);
    }
    return rc;
}

int m5_bind_layer(m5_binder *b, const char *prefix, const m5_layer_config *l, int index, m5_layer_weights *out)
{
    const m5_config *c = &b->w->config;
    unsigned when = l->mixer == M5_MIX_ATTN ? M5_WHEN_ATTN : M5_WHEN_GDN;
    int rc = 0;
    if (l->kv_donor == index) when |= M5_WHEN_OWN_KV;
    if (!l->k_is_v) when |= M5_WHEN_OWN_V;
    if (l->ffn != M5_FFN_MOE) when |= M5_WHEN_DENSE;
    if (l->ffn != M5_FFN_DENSE) when |= M5_WHEN_MOE;
    if (c->n_ffn_shared > 0) when |= M5_WHEN_SHARED;
    if (c->n_ple > 0) when |= M5_WHEN_PLE;
    out->layer_scalar = 1;
    rc = l->mixer == M5_MIX_ATTN ? m5_bind_fused_qkv(b, prefix, l, out) : m5_bind_fused_gdn(b, prefix, out);
    for (int i = 0; i < M5_MAX_SLOT_GROUPS && b->family->slots[i] && rc == 0; i++) rc = m5_bind_slots(b, b->family->slots[i], prefix, l, when, out);
    return rc;
}
