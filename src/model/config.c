/* SPDX-License-Identifier: Apache-2.0 */
/* From a file's description to m5_config: picks the family, lets it read, then checks the result as a whole. Also the parts that many families share:
 * sizes, end tokens, layer kinds, experts. Room: model/config.h. Not here: what is special to a family (families/), rotary tables (rope.c). */
#include "model/config.h"

#include "base/mem.h"
#include "model/families/family.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

void m5_config_deinit(m5_config *c)
{
    if (!c) return;
    for (int i = 0; i < c->n_rope; i++) m5_free(c->ropes[i].inv_freq);
    memset(c, 0, sizeof *c);
}

void m5_config_add_eos(m5_config *c, int64_t id)
{
    if (id < 0 || id > INT32_MAX || c->n_eos >= M5_MAX_EOS) return;
    for (int i = 0; i < c->n_eos; i++) {
        if (c->eos[i] == id) return;
    }
    c->eos[c->n_eos++] = (int32_t)id;
}

int64_t m5_config_gdn_channels(const m5_config *c)
{
    return 2 * (int64_t)c->gdn_n_k_head * c->gdn_k_dim + (int64_t)c->gdn_n_v_head * c->gdn_v_dim;
}

int64_t m5_config_kv_values_per_tok(const m5_config *c)
{
    int64_t n = 0;
    for (int i = 0; i < c->n_layer; i++) {
        const m5_layer_config *l = &c->layers[i];
        if (l->mixer == M5_MIX_ATTN && l->kv_donor == i) n += 2 * (int64_t)l->n_head_kv * l->head_dim;
    }
    return n;
}

int64_t m5_config_row_values(const m5_config *c)
{
    int64_t n = 0, one = (int64_t)c->gdn_n_v_head * c->gdn_k_dim * c->gdn_v_dim + (c->gdn_conv - 1) * m5_config_gdn_channels(c);
    for (int i = 0; i < c->n_layer; i++) n += c->layers[i].mixer == M5_MIX_GDN ? one : 0;
    return n;
}

/* ---- shared parts, config.json ---- */

/* The key may sit beside text_config, inside it, or in both. When they differ the file decides (an output matrix that is there gets used). */
static bool read_tied(m5_source *s, bool absent)
{
    m5_source top = *s;
    top.json = s->top;
    top.path[0] = 0;
    bool outer = m5_src_has(&top, "tie_word_embeddings"), inner = m5_src_has(s, "tie_word_embeddings");
    if (outer && inner) return m5_src_bool(&top, "tie_word_embeddings", absent) && m5_src_bool(s, "tie_word_embeddings", absent);
    return m5_src_bool(outer ? &top : s, "tie_word_embeddings", absent);
}

static m5_act_kind read_act(m5_source *s, m5_act_kind absent)
{
    m5_slice a = m5_src_str(s, m5_src_has(s, "hidden_activation") ? "hidden_activation" : "hidden_act");
    if (a.n == 0) return absent;
    if (m5_slice_is(a, "gelu_pytorch_tanh") || m5_slice_is(a, "gelu_new")) return M5_ACT_GELU_TANH;
    if (m5_slice_is(a, "silu") || m5_slice_is(a, "swish")) return M5_ACT_SILU;
    /* Old gemma files say "gelu" and mean the tanh form. */
    if (m5_slice_is(a, "gelu") && absent == M5_ACT_GELU_TANH) return absent;
    m5_src_fail(s, M5_ERR_UNSUPPORTED, "%shidden_act \"%.*s\" is not supported (silu, gelu_pytorch_tanh)", s->path, (int)(a.n > 60 ? 60 : a.n), a.p);
    return absent;
}

/* An advised value outside its range is no advice. */
static float advised(bool given, double v, double lo, double hi)
{
    return given && v >= lo && v <= hi ? (float)v : -1;
}

static float advised_json(const m5_json *o, const char *key, double lo, double hi)
{
    const m5_json *v = m5_json_get(o, key);
    return advised(m5_json_is_number(v), m5_json_real(v), lo, hi);
}

/* o may be NULL. Without do_sample the numbers beside it are leftovers of a default, not advice. */
static void author_json(m5_config *c, const m5_json *o)
{
    const m5_json *on = o ? m5_json_get(o, "do_sample") : NULL;
    bool take = m5_json_typeof(on) == M5_JSON_BOOL && m5_json_bool(on);
    c->author.temperature = take ? advised_json(o, "temperature", 0, 100) : -1;
    c->author.top_p = take ? advised_json(o, "top_p", 0, 1) : -1;
    c->author.min_p = take ? advised_json(o, "min_p", 0, 1) : -1;
    c->author.repetition_penalty = take ? advised_json(o, "repetition_penalty", 0.001, 1000) : -1;
    c->author.top_k = take ? (int)advised_json(o, "top_k", 0, 1 << 20) : -1;
}

static float advised_gguf(const struct m5_gguf *g, const char *key, double lo, double hi)
{
    double v = 0;
    int64_t i = 0;
    bool given = m5_gguf_f64(g, key, &v);
    if (!given && m5_gguf_i64(g, key, &i)) {
        given = true;
        v = (double)i;
    }
    return advised(given, v, lo, hi);
}

static void author_gguf(m5_config *c, const struct m5_gguf *g)
{
    c->author.temperature = advised_gguf(g, "general.sampling.temp", 0, 100);
    c->author.top_p = advised_gguf(g, "general.sampling.top_p", 0, 1);
    c->author.min_p = advised_gguf(g, "general.sampling.min_p", 0, 1);
    c->author.repetition_penalty = advised_gguf(g, "general.sampling.penalty_repeat", 0.001, 1000);
    c->author.top_k = (int)advised_gguf(g, "general.sampling.top_k", 0, 1 << 20);
}

static void add_eos_json(m5_config *c, const m5_json *v)
{
    if (m5_json_typeof(v) == M5_JSON_INT) m5_config_add_eos(c, m5_json_int(v));
    for (size_t i = 0; m5_json_typeof(v) == M5_JSON_ARRAY && i < m5_json_len(v); i++) {
        if (m5_json_typeof(m5_json_at(v, i)) == M5_JSON_INT) m5_config_add_eos(c, m5_json_int(m5_json_at(v, i)));
    }
}

static void fill_layers(m5_config *c, const m5_layer_config *l)
{
    for (int i = 0; i < c->n_layer; i++) {
        c->layers[i] = *l;
        c->layers[i].kv_donor = i;
    }
}

void m5_hf_base(m5_config *c, m5_source *s, const m5_defaults *d)
{
    m5_layer_config l = {.mixer = M5_MIX_ATTN, .ffn = M5_FFN_DENSE};
    c->n_layer = m5_src_int(s, "num_hidden_layers", d->n_layer ? d->n_layer : M5_REQUIRED, 1, M5_MAX_LAYERS);
    c->n_embd = m5_src_int(s, "hidden_size", d->n_embd ? d->n_embd : M5_REQUIRED, 1, M5_MAX_EMBD);
    c->n_vocab = m5_src_int(s, "vocab_size", d->n_vocab ? d->n_vocab : M5_REQUIRED, 1, M5_MAX_VOCAB);
    c->n_ctx_train = m5_src_int(s, "max_position_embeddings", d->n_ctx_train, 1, M5_MAX_CTX);
    c->rms_eps = (float)m5_src_real(s, "rms_norm_eps", d->rms_eps, 0, 1);
    c->act = read_act(s, d->act);
    c->tied = read_tied(s, d->tied);
    c->embd_scale = 1;
    l.n_head = m5_src_int(s, "num_attention_heads", d->n_head ? d->n_head : M5_REQUIRED, 1, M5_MAX_HEADS);
    int kv_absent = m5_src_is_null(s, "num_key_value_heads") || !d->n_head_kv ? l.n_head : d->n_head_kv;
    l.n_head_kv = m5_src_int(s, "num_key_value_heads", kv_absent, 1, M5_MAX_HEADS);
    int hd_absent = m5_src_is_null(s, "head_dim") || !d->head_dim ? c->n_embd / l.n_head : d->head_dim;
    l.head_dim = m5_src_int(s, "head_dim", hd_absent, 1, M5_MAX_HEAD_DIM);
    l.n_ffn = m5_src_int(s, "intermediate_size", d->n_ffn ? d->n_ffn : d->ffn_optional ? 0 : M5_REQUIRED, d->ffn_optional ? 0 : 1, M5_MAX_FFN);
    if (!m5_src_ok(s)) return;
    fill_layers(c, &l);
    add_eos_json(c, s->json ? m5_json_get(s->json, "eos_token_id") : NULL);
    add_eos_json(c, m5_json_get(s->top, "eos_token_id"));
}

bool m5_hf_layer_types(m5_source *s, m5_layer_kind *kinds, int n_layer)
{
    static const char *const names[] = {"full_attention", "sliding_attention", "linear_attention"};
    const m5_json *list = s->json ? m5_json_get(s->json, "layer_types") : NULL;
    if (!list || m5_json_typeof(list) == M5_JSON_NULL) return false;
    if (m5_json_typeof(list) != M5_JSON_ARRAY || m5_json_len(list) != (size_t)n_layer) {
        m5_src_fail(s, M5_ERR_FORMAT, "%slayer_types has %zu elements, num_hidden_layers is %d", s->path, m5_json_len(list), n_layer);
        return false;
    }
    for (int i = 0; i < n_layer; i++) {
        m5_slice t = m5_json_str(m5_json_at(list, (size_t)i));
        int k = 0;
        while (k < 3 && !m5_slice_is(t, names[k])) k++;
        if (k == 3) {
            m5_src_fail(s, M5_ERR_UNSUPPORTED, "%slayer_types[%d] \"%.*s\" is not supported (full_attention, sliding_attention, linear_attention)",
                        s->path, i, (int)(t.n > 60 ? 60 : t.n), t.p);
            return false;
        }
        kinds[i] = (m5_layer_kind)k;
    }
    return true;
}

void m5_config_windows(m5_config *c, const m5_layer_kind *kinds, int window)
{
    for (int i = 0; i < c->n_layer; i++) c->layers[i].window = kinds[i] == M5_LAYER_SLIDING ? window : 0;
}

static bool in_list(const m5_json *list, int64_t v)
{
    for (size_t i = 0; i < m5_json_len(list); i++) {
        if (m5_json_typeof(m5_json_at(list, i)) == M5_JSON_INT && m5_json_int(m5_json_at(list, i)) == v) return true;
    }
    return false;
}

void m5_hf_moe(m5_config *c, m5_source *s, const m5_moe_defaults *d)
{
    const char *count = m5_src_has(s, "num_experts") ? "num_experts" : "num_local_experts";
    c->n_expert = m5_src_int(s, count, d->n_expert, 1, M5_MAX_EXPERTS);
    c->n_expert_used = m5_src_int(s, "num_experts_per_tok", d->n_used, 1, M5_MAX_EXPERTS);
    c->n_ffn_expert = m5_src_int(s, "moe_intermediate_size", d->n_ffn_expert, 1, M5_MAX_FFN);
    c->n_ffn_shared = d->n_ffn_shared ? m5_src_int(s, "shared_expert_intermediate_size", d->n_ffn_shared, 0, M5_MAX_FFN) : 0;
    c->expert_renorm = d->renorm_fixed ? d->renorm : m5_src_bool(s, "norm_topk_prob", d->renorm);
    int step = m5_src_int(s, "decoder_sparse_step", 1, 1, 1 << 20);
    const m5_json *dense = s->json ? m5_json_get(s->json, "mlp_only_layers") : NULL;
    for (int i = 0; i < c->n_layer; i++) {
        bool moe = !in_list(dense, i) && (i + 1) % step == 0;
        c->layers[i].ffn = moe ? M5_FFN_MOE : M5_FFN_DENSE;
    }
}

/* ---- shared parts, GGUF ---- */

void m5_gguf_base(m5_config *c, m5_source *s)
{
    const m5_gguf_tensor *embd = m5_gguf_find(s->gguf, "token_embd.weight");
    const m5_gguf_kv *tokens = m5_gguf_array(s->gguf, "tokenizer.ggml.tokens");
    int n_block = m5_src_int(s, "block_count", M5_REQUIRED, 1, M5_MAX_LAYERS + 8);
    c->n_mtp = m5_src_int(s, "nextn_predict_layers", 0, 0, 8);
    c->n_layer = n_block - c->n_mtp;
    c->n_embd = m5_src_int(s, "embedding_length", M5_REQUIRED, 1, M5_MAX_EMBD);
    c->n_ctx_train = m5_src_int(s, "context_length", 4096, 1, M5_MAX_CTX);
    c->rms_eps = (float)m5_src_real(s, "attention.layer_norm_rms_epsilon", 1e-6, 0, 1);
    c->embd_scale = 1;
    int64_t n_vocab = embd ? embd->dims[1] : tokens ? (int64_t)tokens->n : m5_src_int(s, "vocab_size", M5_REQUIRED, 1, M5_MAX_VOCAB);
    if (n_vocab < 1 || n_vocab > M5_MAX_VOCAB)
        m5_src_fail(s, M5_ERR_FORMAT, "the vocabulary has %" PRId64 " rows, expected 1 to %d", n_vocab, M5_MAX_VOCAB);
    if (c->n_layer < 1 || c->n_layer > M5_MAX_LAYERS) {
        m5_src_fail(s, M5_ERR_FORMAT, "%s.block_count %d with nextn_predict_layers %d leaves %d layers, expected 1 to %d", s->path, n_block, c->n_mtp,
                    c->n_layer, M5_MAX_LAYERS);
    }
    if (!m5_src_ok(s)) return;
    c->n_vocab = (int)n_vocab;
    for (int i = 0; i < c->n_layer && m5_src_ok(s); i++) {
        m5_layer_config *l = &c->layers[i];
        l->kv_donor = i;
        /* Hybrid files may hold 0 heads for blocks without attention; the check over the whole comes later. */
        l->n_head = m5_src_layer_int(s, "attention.head_count", i, c->n_layer, M5_REQUIRED, 0, M5_MAX_HEADS);
        l->n_head_kv = m5_src_layer_int(s, "attention.head_count_kv", i, c->n_layer, l->n_head, 0, M5_MAX_HEADS);
        l->head_dim = m5_src_int(s, "attention.key_length", l->n_head ? c->n_embd / l->n_head : 0, 1, M5_MAX_HEAD_DIM);
        l->n_ffn = m5_src_layer_int(s, "feed_forward_length", i, c->n_layer, 0, 0, M5_MAX_FFN);
        int v_dim = m5_src_int(s, "attention.value_length", l->head_dim, 1, M5_MAX_HEAD_DIM);
        if (v_dim != l->head_dim) {
            m5_src_fail(s, M5_ERR_UNSUPPORTED, "%s.attention.value_length %d differs from key_length %d, which is not supported", s->path, v_dim,
                        l->head_dim);
        }
    }
    static const char *const eos[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
    for (size_t i = 0; i < sizeof eos / sizeof *eos; i++) {
        int64_t id;
        if (m5_gguf_i64(s->gguf, eos[i], &id)) m5_config_add_eos(c, id);
    }
}

void m5_gguf_window_pattern(m5_source *s, m5_layer_kind *kinds, int n_layer, int default_period)
{
    char key[128];
    snprintf(key, sizeof key, "%s.attention.sliding_window_pattern", s->path);
    const m5_gguf_kv *list = m5_gguf_array(s->gguf, key);
    if (list) {
        if (list->n < (size_t)n_layer) m5_src_fail(s, M5_ERR_FORMAT, "%s has %zu elements for %d layers", key, list->n, n_layer);
        for (int i = 0; i < n_layer && m5_src_ok(s); i++) {
            bool b = false;
            int64_t v = 0;
            if (!m5_gguf_at_bool(list, (size_t)i, &b) && m5_gguf_at_i64(list, (size_t)i, &v)) b = v != 0;
            kinds[i] = b ? M5_LAYER_SLIDING : M5_LAYER_FULL;
        }
        return;
    }
    int period = m5_src_int(s, "attention.sliding_window_pattern", default_period, 0, M5_MAX_LAYERS);
    for (int i = 0; i < n_layer; i++) kinds[i] = period > 0 && (i + 1) % period != 0 ? M5_LAYER_SLIDING : M5_LAYER_FULL;
}

void m5_gguf_moe(m5_config *c, m5_source *s, bool renorm)
{
    c->n_expert = m5_src_int(s, "expert_count", M5_REQUIRED, 1, M5_MAX_EXPERTS);
    c->n_expert_used = m5_src_int(s, "expert_used_count", M5_REQUIRED, 1, M5_MAX_EXPERTS);
    c->n_ffn_expert = m5_src_int(s, "expert_feed_forward_length", c->layers[0].n_ffn / (c->n_expert_used ? c->n_expert_used : 1), 1, M5_MAX_FFN);
    c->n_ffn_shared = m5_src_int(s, "expert_shared_feed_forward_length", 0, 0, M5_MAX_FFN);
    c->expert_renorm = m5_src_bool(s, "expert_weights_norm", renorm);
    for (int i = 0; i < c->n_layer; i++) {
        char name[64];
        snprintf(name, sizeof name, "blk.%d.ffn_gate_inp.weight", i);
        c->layers[i].ffn = m5_gguf_find(s->gguf, name) ? M5_FFN_MOE : M5_FFN_DENSE;
    }
}

/* ---- checks over the whole ---- */

static void check_attn(m5_source *s, const m5_config *c, int i, const m5_layer_config *l)
{
    if (l->n_head < 1 || l->n_head_kv < 1 || l->n_head % l->n_head_kv) {
        m5_src_fail(s, M5_ERR_FORMAT, "layer %d: %d attention heads cannot share %d key/value heads", i, l->n_head, l->n_head_kv);
    } else if (l->head_dim < 1 || l->head_dim % 2) {
        m5_src_fail(s, M5_ERR_UNSUPPORTED, "layer %d: head_dim %d must be even", i, l->head_dim);
    } else if (l->rope >= c->n_rope || (l->rope >= 0 && c->ropes[l->rope].n_rot > l->head_dim)) {
        m5_src_fail(s, M5_ERR_INTERNAL, "layer %d: no rotary table", i);
    } else if (l->kv_donor != i) {
        const m5_layer_config *d = l->kv_donor >= 0 && l->kv_donor < i ? &c->layers[l->kv_donor] : NULL;
        if (!d || d->kv_donor != l->kv_donor || d->mixer != M5_MIX_ATTN || d->head_dim != l->head_dim || d->n_head_kv != l->n_head_kv) {
            m5_src_fail(s, M5_ERR_FORMAT, "layer %d cannot share keys and values of layer %d", i, l->kv_donor);
        }
    }
}

static void check_layer(m5_source *s, const m5_config *c, int i, const m5_layer_config *l)
{
    if (l->mixer == M5_MIX_ATTN) check_attn(s, c, i, l);
    if (l->ffn != M5_FFN_MOE && l->n_ffn < 1) m5_src_fail(s, M5_ERR_FORMAT, "layer %d: the feed-forward width is missing", i);
    if (l->ffn != M5_FFN_DENSE && (c->n_expert < 1 || c->n_ffn_expert < 1 || c->n_expert_used < 1 || c->n_expert_used > c->n_expert)) {
        m5_src_fail(s, M5_ERR_FORMAT, "layer %d: %d of %d experts of width %d make no mixture", i, c->n_expert_used, c->n_expert, c->n_ffn_expert);
    }
    if (l->mixer != M5_MIX_GDN) return;
    if (c->gdn_n_k_head < 1 || c->gdn_n_v_head < 1 || c->gdn_n_v_head % c->gdn_n_k_head || c->gdn_k_dim < 1 || c->gdn_v_dim < 1) {
        m5_src_fail(s, M5_ERR_FORMAT, "layer %d: linear attention with %d key heads of %d and %d value heads of %d is not possible", i,
                    c->gdn_n_k_head, c->gdn_k_dim, c->gdn_n_v_head, c->gdn_v_dim);
    } else if (c->gdn_conv != 4) {
        m5_src_fail(s, M5_ERR_UNSUPPORTED, "linear attention with a convolution over %d tokens is not supported (4)", c->gdn_conv);
    }
}

static void check_config(m5_source *s, m5_config *c)
{
    if (c->n_mtp > 1) {
        m5_log(M5_LOG_WARN, "the model has %d next-token blocks; only the first is used", c->n_mtp);
        c->n_mtp = 1;
    }
    for (int i = 0; i < c->n_layer && m5_src_ok(s); i++) check_layer(s, c, i, &c->layers[i]);
    if (!(c->rms_eps >= 0) || !isfinite(c->embd_scale)) m5_src_fail(s, M5_ERR_FORMAT, "rms_norm_eps is %g", (double)c->rms_eps);
    int n = 0;
    for (int i = 0; i < c->n_eos; i++) {
        if (c->eos[i] < c->n_vocab) c->eos[n++] = c->eos[i];
    }
    c->n_eos = n;
}

/* ---- entry points ---- */

static int unknown_family(m5_error *err, const char *key, m5_slice value, bool gguf)
{
    m5_buf list = {0};
    m5_family_list(&list, gguf);
    int rc = m5_error_set(err, M5_ERR_UNSUPPORTED, "%s \"%.*s\" is not supported; supported are %s", key, (int)(value.n > 60 ? 60 : value.n), value.p,
                          list.p ? list.p : "none");
    m5_buf_free(&list);
    return rc;
}

/* Other quantisations of Hugging Face checkpoints change tensor names; say so instead of reporting a missing tensor. fp8 keeps the names and is
 * reported with its tensor. */
static void check_quant_method(m5_source *s)
{
    m5_slice method = m5_json_str(m5_json_path(s->top, "quantization_config.quant_method"));
    if (method.n == 0) method = m5_json_str(m5_json_path(s->json, "quantization_config.quant_method"));
    if (method.n == 0 || m5_slice_is(method, "fp8")) return;
    m5_src_fail(s, M5_ERR_UNSUPPORTED, "quantization_config.quant_method \"%.*s\" is not supported (plain bf16, f16 and f32, MLX groups, GGUF)",
                (int)(method.n > 60 ? 60 : method.n), method.p);
}

int m5_config_from_hf(m5_config *c, const m5_json *config, const m5_json *generation, m5_error *err)
{
    int rc = 0;
    memset(c, 0, sizeof *c);
    if (m5_json_typeof(config) != M5_JSON_OBJECT) return m5_error_set(err, M5_ERR_FORMAT, "config.json is not an object");
    m5_source s = {.json = config, .top = config, .rc = &rc, .err = err};
    m5_source text = m5_src_sub(&s, "text_config");
    const m5_family *f = NULL;
    m5_slice outer = m5_src_str(&s, "model_type"), inner = m5_src_str(&text, "model_type");
    if (text.json) f = m5_family_of_hf(inner);
    if (!f) f = m5_family_of_hf(outer);
    if (!f && rc == 0) rc = unknown_family(err, "model_type", outer.n ? outer : inner, false);
    if (rc) return rc;
    if (text.json) s = text;
    snprintf(c->family, sizeof c->family, "%s", f->name);
    check_quant_method(&s);
    if (rc == 0) f->from_hf(c, &s);
    if (rc == 0) add_eos_json(c, generation ? m5_json_get(generation, "eos_token_id") : NULL);
    if (rc == 0) author_json(c, generation);
    if (rc == 0) check_config(&s, c);
    if (rc) {
        m5_config_deinit(c);
        m5_error_prefix(err, "config.json");
    }
    return rc;
}

int m5_config_from_gguf(m5_config *c, const struct m5_gguf *g, m5_error *err)
{
    int rc = 0;
    memset(c, 0, sizeof *c);
    m5_slice arch = {"", 0}, name = {"", 0};
    if (!m5_gguf_str(g, "general.architecture", &arch))
        return m5_error_set(err, M5_ERR_FORMAT, "%s: general.architecture is missing", m5_gguf_path(g, 0));
    const m5_family *f = m5_family_of_gguf(arch);
    if (!f) return unknown_family(err, "general.architecture", arch, true);
    m5_source s = {.gguf = g, .rc = &rc, .err = err};
    snprintf(s.path, sizeof s.path, "%.*s", (int)arch.n, arch.p);
    snprintf(c->family, sizeof c->family, "%s", f->name);
    if (m5_gguf_str(g, "general.name", &name)) snprintf(c->name, sizeof c->name, "%.*s", (int)(name.n > 120 ? 120 : name.n), name.p);
    f->from_gguf(c, &s);
    author_gguf(c, g);
    if (rc == 0) check_config(&s, c);
    if (rc) {
        m5_config_deinit(c);
        m5_error_prefix(err, "%s", m5_gguf_path(g, 0));
    }
    return rc;
}
