/* SPDX-License-Identifier: Apache-2.0 */
/* Projections that some files keep in one matrix. Rows that lie together become views; interleaved ones are gathered into own memory once, whole rows
 * with their scales, whatever their type. Room: model/bind.h.
 *
 * Qwen3-Next, per key head g with r = Vh / Kh value heads (in_proj_qkvz; GGUF ssm_in in old files):
 *   [ q dk | k dk | v r*dv | z r*dv ]  x Kh        ->  qkv = [ q Kh*dk | k Kh*dk | v Vh*dv ],  z = [ Vh*dv ]
 * and in_proj_ba (GGUF ssm_ba):
 *   [ b r | a r ]  x Kh                            ->  b = [ Vh ],  a = [ Vh ] */
#include "model/bind.h"

#include <string.h>

/* An own matrix of n_out rows in the form of src. */
static int new_like(m5_binder *b, const m5_matrix *src, int64_t n_out, m5_matrix *out)
{
    *out = *src;
    out->n_out = n_out;
    out->data = m5_bind_alloc(b, (size_t)n_out, (size_t)src->row_bytes);
    if (!out->data) return M5_ERR_NOMEM;
    if (!src->scales) return 0;
    size_t scale_row = (size_t)(src->n_in / src->group) * (size_t)m5_dtype_get(src->scale_type)->block_bytes;
    out->scales = m5_bind_alloc(b, (size_t)n_out, scale_row);
    out->biases = m5_bind_alloc(b, (size_t)n_out, scale_row);
    return out->scales && out->biases ? 0 : M5_ERR_NOMEM;
}

/* dst[at .. at + n) = src[from .. from + n); dst is own memory. */
static void copy_rows(const m5_matrix *dst, int64_t at, const m5_matrix *src, int64_t from, int64_t n)
{
    m5_matrix d = m5_matrix_rows(dst, at, n), s = m5_matrix_rows(src, from, n);
    memcpy((uint8_t *)(uintptr_t)d.data, s.data, (size_t)(n * s.row_bytes));
    if (!s.scales) return;
    size_t bytes = (size_t)(n * (s.n_in / s.group)) * (size_t)m5_dtype_get(s.scale_type)->block_bytes;
    memcpy((uint8_t *)(uintptr_t)d.scales, s.scales, bytes);
    memcpy((uint8_t *)(uintptr_t)d.biases, s.biases, bytes);
}

static int split_qkvz(m5_binder *b, const m5_matrix *src, m5_layer_weights *out)
{
    const m5_config *c = &b->w->config;
    const int64_t kd = c->gdn_k_dim, vd = (int64_t)c->gdn_n_v_head / c->gdn_n_k_head * c->gdn_v_dim, group = 2 * kd + 2 * vd, n_k = c->gdn_n_k_head;
    int rc = new_like(b, src, m5_config_gdn_channels(c), &out->gdn_qkv);
    if (rc == 0) rc = new_like(b, src, n_k * vd, &out->gdn_z);
    for (int64_t g = 0; g < n_k && rc == 0; g++) {
        copy_rows(&out->gdn_qkv, g * kd, src, g * group, kd);
        copy_rows(&out->gdn_qkv, (n_k + g) * kd, src, g * group + kd, kd);
        copy_rows(&out->gdn_qkv, 2 * n_k * kd + g * vd, src, g * group + 2 * kd, vd);
        copy_rows(&out->gdn_z, g * vd, src, g * group + 2 * kd + vd, vd);
    }
    return rc;
}

static int split_ba(m5_binder *b, const m5_matrix *src, m5_layer_weights *out)
{
    const m5_config *c = &b->w->config;
    const int64_t r = c->gdn_n_v_head / c->gdn_n_k_head;
    int rc = new_like(b, src, c->gdn_n_v_head, &out->gdn_b);
    if (rc == 0) rc = new_like(b, src, c->gdn_n_v_head, &out->gdn_a);
    for (int64_t g = 0; g < c->gdn_n_k_head && rc == 0; g++) {
        copy_rows(&out->gdn_b, g * r, src, g * 2 * r, r);
        copy_rows(&out->gdn_a, g * r, src, g * 2 * r + r, r);
    }
    return rc;
}

int m5_bind_fused_gdn(m5_binder *b, const char *prefix, m5_layer_weights *out)
{
    const m5_config *c = &b->w->config;
    const char *qkvz = b->store->gguf ? "ssm_in.weight" : "linear_attn.in_proj_qkvz.weight",
               *ba = b->store->gguf ? "ssm_ba.weight" : "linear_attn.in_proj_ba.weight";
    m5_matrix src = {0};
    int rc = m5_bind_matrix(b, prefix, qkvz, 1, m5_config_gdn_channels(c) + (int64_t)c->gdn_n_v_head * c->gdn_v_dim, c->n_embd, true, &src);
    if (rc == 0 && m5_matrix_present(&src)) rc = split_qkvz(b, &src, out);
    memset(&src, 0, sizeof src);
    if (rc == 0) rc = m5_bind_matrix(b, prefix, ba, 1, 2 * (int64_t)c->gdn_n_v_head, c->n_embd, true, &src);
    if (rc == 0 && m5_matrix_present(&src)) rc = split_ba(b, &src, out);
    return rc;
}

/* GGUF converters can join q, k and v of an attention block: rows [q | k | v]. */
int m5_bind_fused_qkv(m5_binder *b, const char *prefix, const m5_layer_config *l, m5_layer_weights *out)
{
    const m5_config *c = &b->w->config;
    const int64_t n_q = m5_bind_dim(c, l, M5_D_Q_GATED), n_kv = m5_bind_dim(c, l, M5_D_KV);
    if (!b->store->gguf || m5_bind_exists(b, prefix, "attn_q.weight") || !m5_bind_exists(b, prefix, "attn_qkv.weight")) return 0;
    m5_matrix all = {0};
    float *bias = NULL;
    int rc = m5_bind_matrix(b, prefix, "attn_qkv.weight", 1, n_q + 2 * n_kv, c->n_embd, false, &all);
    if (rc == 0) rc = m5_bind_vector(b, prefix, "attn_qkv.bias", n_q + 2 * n_kv, 1, true, &bias);
    if (rc) return rc;
    out->q = m5_matrix_rows(&all, 0, n_q);
    out->k = m5_matrix_rows(&all, n_q, n_kv);
    out->v = m5_matrix_rows(&all, n_q + n_kv, n_kv);
    if (bias) {
        out->q_bias = bias;
        out->k_bias = bias + n_q;
        out->v_bias = bias + n_q + n_kv;
    }
    return 0;
}
