/* SPDX-License-Identifier: Apache-2.0 */
/* Binds a whole model: where its names begin, whether its norms still lack the 1, the head, all layers, the next-token head. Also the walk over all
 * matrices. Room: model/bind.h. Not here: files and texts (weights.c). */
#include "model/bind.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

/* The embedding tells the prefix: flat, wrapped in a multimodal model (new and old spelling), or bare. */
static int find_prefix(m5_binder *b)
{
    static const char *const prefixes[] = {"model.", "model.language_model.", "language_model.model.", "language_model.", ""};
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++) {
        if (!m5_bind_exists(b, prefixes[i], "embed_tokens.weight")) continue;
        snprintf(b->prefix, sizeof b->prefix, "%s", prefixes[i]);
        return 0;
    }
    return m5_error_set(b->err, M5_ERR_FORMAT, "%s: tensor model.embed_tokens.weight is missing", m5_store_path(b->store, 0));
}

static void layer_prefix(const m5_binder *b, int i, char out[96])
{
    if (b->store->gguf)
        snprintf(out, 96, "blk.%d.", i);
    else
        snprintf(out, 96, "%slayers.%d.", b->prefix, i);
}

/* Whether norms hold w of (1 + w). GGUF never does. An MLX conversion of this family has added the 1 exactly when it has also turned the convolution
 * weight from [C, 1, K] to [C, K, 1]. */
static bool norms_lack_one(m5_binder *b)
{
    if (b->store->gguf || !b->family->norms_zero_centred) return false;
    for (int i = 0; i < b->w->config.n_layer && b->family->mlx_shifts_norms; i++) {
        char prefix[96], full[M5_BIND_NAME_BYTES];
        m5_tensor t;
        layer_prefix(b, i, prefix);
        if (b->w->config.layers[i].mixer != M5_MIX_GDN || !m5_bind_find(b, prefix, "linear_attn.conv1d.weight", full, &t)) continue;
        return !(t.n_dims == 3 && t.shape[2] == 1 && t.shape[1] != 1);
    }
    return true;
}

static int bind_head(m5_binder *b)
{
    m5_weights *w = b->w;
    const m5_config *c = &w->config;
    int rc = 0;
    if (!c->tied) {
        rc = b->store->gguf
                 ? m5_bind_matrix(b, "", "output.weight", 1, c->n_vocab, c->n_embd, true, &w->head)
                 : m5_bind_matrix(b, "", "lm_head.weight|language_model.lm_head.weight|model.lm_head.weight|model.language_model.lm_head.weight", 1,
                                  c->n_vocab, c->n_embd, true, &w->head);
    }
    if (rc == 0 && !m5_matrix_present(&w->head)) {
        w->head = w->embd;
        w->config.tied = true;
    }
    return rc;
}

static int bind_mtp(m5_binder *b)
{
    static const char *const prefixes[] = {"mtp.", "model.mtp.", "language_model.mtp.", "model.language_model.mtp."};
    m5_weights *w = b->w;
    char top[96] = "", layer[128];
    if (b->store->gguf) {
        layer_prefix(b, w->config.n_layer, top);
        snprintf(layer, sizeof layer, "%s", top);
    } else {
        for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes && !top[0]; i++) {
            if (m5_bind_exists(b, prefixes[i], "fc.weight")) snprintf(top, sizeof top, "%s", prefixes[i]);
        }
        snprintf(layer, sizeof layer, "%slayers.0.", top);
    }
    if (!top[0] || !m5_bind_exists(b, top, b->store->gguf ? "nextn.eh_proj.weight" : "fc.weight")) {
        w->config.n_mtp = 0;
        return 0;
    }
    int rc = m5_bind_slots(b, m5_slots_mtp, top, &w->config.mtp_layer, 0, &w->mtp);
    if (rc == 0) rc = m5_bind_layer(b, layer, &w->config.mtp_layer, w->config.mtp_layer.kv_donor, &w->mtp.layer);
    if (rc == 0 && !w->mtp.out_norm) w->mtp.out_norm = w->out_norm;
    w->config.n_mtp = rc == 0;
    return rc;
}

/* The next-token head only saves time: a file whose head is incomplete still runs without it. */
static int bind_mtp_or_drop(m5_binder *b)
{
    m5_error why = {0}, *kept = b->err;
    b->err = &why;
    int rc = b->family->mtp ? bind_mtp(b) : 0;
    b->err = kept;
    if (rc == M5_ERR_NOMEM) return m5_error_set(kept, rc, "%s", why.text);
    if (rc) {
        m5_log(M5_LOG_WARN, "the next-token head is left out: %s", why.text);
        memset(&b->w->mtp, 0, sizeof b->w->mtp);
        b->w->config.n_mtp = 0;
    }
    if (!b->family->mtp) b->w->config.n_mtp = 0;
    return 0;
}

int m5_bind_model(m5_binder *b)
{
    m5_weights *w = b->w;
    const m5_config *c = &w->config;
    char full[M5_BIND_NAME_BYTES];
    m5_tensor freqs;
    int rc = b->store->gguf ? 0 : find_prefix(b);
    if (rc) return rc;
    if (b->store->gguf && m5_bind_find(b, "", "rope_freqs.weight", full, &freqs)) m5_bind_mark(b, &freqs); /* went into the rotary tables */
    b->add_one = norms_lack_one(b);
    rc = m5_bind_slots(b, m5_slots_model, b->prefix, &c->layers[0], c->n_ple > 0 ? M5_WHEN_PLE : 0, w);
    if (rc == 0) rc = bind_head(b);
    if (rc) return rc;
    w->layers = m5_bind_alloc(b, (size_t)c->n_layer, sizeof *w->layers);
    if (!w->layers) return M5_ERR_NOMEM;
    for (int i = 0; i < c->n_layer && rc == 0; i++) {
        char prefix[96];
        layer_prefix(b, i, prefix);
        rc = m5_bind_layer(b, prefix, &c->layers[i], i, &w->layers[i]);
    }
    return rc ? rc : bind_mtp_or_drop(b);
}

/* ---- all matrices ---- */

typedef struct matrix_field {
    const char *name;
    size_t at;
} matrix_field;

static const matrix_field layer_fields[] = {
#define F(name)                                                                                                                                      \
    {                                                                                                                                                \
#name, offsetof(m5_layer_weights, name)                                                                                                      \
    }
    F(q),  F(k),    F(v),      F(o),           F(gdn_qkv),   F(gdn_z),       F(gdn_b),         F(gdn_a),    F(gdn_out),  F(gate),
    F(up), F(down), F(router), F(shared_gate), F(shared_up), F(shared_down), F(shared_router), F(ple_gate), F(ple_proj),
#undef F
};

static int visit(m5_matrix_fn fn, void *ctx, const char *prefix, const char *name, m5_matrix *m)
{
    char full[96];
    if (!m5_matrix_present(m)) return 0;
    snprintf(full, sizeof full, "%s%s", prefix, name);
    return fn(ctx, full, m);
}

static int visit_layer(const m5_config *c, m5_matrix_fn fn, void *ctx, const char *prefix, m5_layer_weights *l)
{
    int rc = 0;
    for (size_t i = 0; i < sizeof layer_fields / sizeof *layer_fields && rc == 0; i++) {
        rc = visit(fn, ctx, prefix, layer_fields[i].name, (m5_matrix *)((char *)l + layer_fields[i].at));
    }
    for (int e = 0; l->exp_gate && e < c->n_expert && rc == 0; e++) {
        char name[64];
        snprintf(name, sizeof name, "experts.%d.gate", e);
        rc = visit(fn, ctx, prefix, name, &l->exp_gate[e]);
        snprintf(name, sizeof name, "experts.%d.up", e);
        if (rc == 0) rc = visit(fn, ctx, prefix, name, &l->exp_up[e]);
        snprintf(name, sizeof name, "experts.%d.down", e);
        if (rc == 0) rc = visit(fn, ctx, prefix, name, &l->exp_down[e]);
    }
    return rc;
}

int m5_weights_each_matrix(m5_weights *w, m5_matrix_fn fn, void *ctx)
{
    int rc = visit(fn, ctx, "", "embd", &w->embd);
    if (rc == 0) rc = visit(fn, ctx, "", "ple_embd", &w->ple_embd);
    if (rc == 0) rc = visit(fn, ctx, "", "ple_model_proj", &w->ple_model_proj);
    for (int i = 0; i < w->config.n_layer && rc == 0; i++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "layers.%d.", i);
        rc = visit_layer(&w->config, fn, ctx, prefix, &w->layers[i]);
    }
    if (rc == 0) rc = visit(fn, ctx, "", "head", &w->head);
    if (rc || w->config.n_mtp == 0) return rc;
    rc = visit(fn, ctx, "mtp.", "fc", &w->mtp.fc);
    if (rc == 0) rc = visit(fn, ctx, "mtp.", "embd", &w->mtp.embd);
    if (rc == 0) rc = visit(fn, ctx, "mtp.", "head", &w->mtp.head);
    return rc ? rc : visit_layer(&w->config, fn, ctx, "mtp.layer.", &w->mtp.layer);
}
