/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizer and template from what a model brings; the contract is in vocab.h. Knows the GGUF keys of the text side. */
#include "engine/vocab.h"

#include "base/mem.h"
#include "base/task.h"
#include "model/gguf.h"

#include <stdio.h>
#include <string.h>

static const size_t max_tokenizer_bytes = (size_t)512 << 20;

static int32_t id_key(const m5_gguf *g, const char *key)
{
    int64_t v;
    return m5_gguf_i64(g, key, &v) && v >= 0 && v <= INT32_MAX ? (int32_t)v : -1;
}

static int flag_key(const m5_gguf *g, const char *key)
{
    bool v;
    return m5_gguf_bool(g, key, &v) ? v : -1;
}

/* Array of strings as slices; NULL with *n = 0 when the key is absent. */
static int str_array(m5_slice **out, int64_t *n, const m5_gguf *g, const char *key, m5_error *err)
{
    const m5_gguf_kv *kv = m5_gguf_array(g, key);
    *out = NULL;
    *n = 0;
    if (!kv) return 0;
    m5_slice *a = m5_calloc(M5_MEM_TEXT, kv->n, sizeof(*a));
    if (!a) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for %s", key);
    for (size_t i = 0; i < kv->n; i++)
        if (!m5_gguf_at_str(kv, i, &a[i])) {
            m5_free(a);
            return m5_error_set(err, M5_ERR_FORMAT, "%s[%zu] is not a string", key, i);
        }
    *out = a;
    *n = (int64_t)kv->n;
    return 0;
}

static int from_gguf(m5_tokenizer **out, const m5_gguf *g, m5_error *err)
{
    int rc;
    m5_slice *tokens = NULL, *merges = NULL;
    float *scores = NULL;
    int32_t *types = NULL;
    m5_gguf_vocab v = {0};
    m5_gguf_str(g, "tokenizer.ggml.model", &v.model);
    m5_gguf_str(g, "tokenizer.ggml.pre", &v.pre);
    if ((rc = str_array(&tokens, &v.n_tokens, g, "tokenizer.ggml.tokens", err))) goto out;
    if ((rc = str_array(&merges, &v.n_merges, g, "tokenizer.ggml.merges", err))) goto out;
    if (!tokens) {
        rc = m5_error_set(err, M5_ERR_FORMAT, "the GGUF file has no tokenizer.ggml.tokens");
        goto out;
    }
    const m5_gguf_kv *kv = m5_gguf_array(g, "tokenizer.ggml.scores");
    if (kv && (int64_t)kv->n == v.n_tokens) {
        scores = m5_calloc(M5_MEM_TEXT, kv->n, sizeof(*scores));
        if (!scores) goto nomem;
        for (size_t i = 0; i < kv->n; i++) {
            double d = 0;
            m5_gguf_at_f64(kv, i, &d);
            scores[i] = (float)d;
        }
    }
    kv = m5_gguf_array(g, "tokenizer.ggml.token_type");
    if (kv && (int64_t)kv->n == v.n_tokens) {
        types = m5_calloc(M5_MEM_TEXT, kv->n, sizeof(*types));
        if (!types) goto nomem;
        for (size_t i = 0; i < kv->n; i++) {
            int64_t t = 0;
            m5_gguf_at_i64(kv, i, &t);
            types[i] = (int32_t)t;
        }
    }
    v.tokens = tokens;
    v.merges = merges;
    v.scores = scores;
    v.types = types;
    v.bos = id_key(g, "tokenizer.ggml.bos_token_id");
    v.eos = id_key(g, "tokenizer.ggml.eos_token_id");
    v.eot = id_key(g, "tokenizer.ggml.eot_token_id");
    v.eom = id_key(g, "tokenizer.ggml.eom_token_id");
    v.unk = id_key(g, "tokenizer.ggml.unknown_token_id");
    v.pad = id_key(g, "tokenizer.ggml.padding_token_id");
    v.add_bos = flag_key(g, "tokenizer.ggml.add_bos_token");
    v.add_eos = flag_key(g, "tokenizer.ggml.add_eos_token");
    v.add_space_prefix = flag_key(g, "tokenizer.ggml.add_space_prefix");
    rc = m5_tokenizer_from_gguf(out, &v, err);
    goto out;
nomem:
    rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory for a vocabulary of %lld tokens", (long long)v.n_tokens);
out:
    m5_free(tokens);
    m5_free(merges);
    m5_free(scores);
    m5_free(types);
    return rc;
}

int m5_vocab_tokenizer(m5_tokenizer **out, const m5_weights *w, m5_error *err)
{
    *out = NULL;
    if (w->tokenizer_json) return m5_tokenizer_from_json(out, w->tokenizer_json, w->n_tokenizer_json, w->tokenizer_config, err);
    if (w->gguf && m5_gguf_find_kv(w->gguf, "tokenizer.ggml.tokens")) return from_gguf(out, w->gguf, err);
    return 0;
}

/* A special token in tokenizer_config.json is a string or an object with its content. */
static m5_slice config_token(const m5_json *config, const char *key)
{
    const m5_json *v = m5_json_get(config, key);
    return m5_json_typeof(v) == M5_JSON_OBJECT ? m5_json_str(m5_json_get(v, "content")) : m5_json_str(v);
}

int m5_vocab_chat(m5_chat **out, const m5_weights *w, const m5_tokenizer *t, const char *template_text, m5_error *err)
{
    *out = NULL;
    m5_slice bos = config_token(w->tokenizer_config, "bos_token"), eos = config_token(w->tokenizer_config, "eos_token");
    if (t && !bos.n && m5_tokenizer_bos(t) >= 0) bos = m5_tokenizer_piece(t, m5_tokenizer_bos(t));
    if (t && !eos.n) {
        int32_t id = w->gguf ? id_key(w->gguf, "tokenizer.ggml.eos_token_id") : -1;
        if (id < 0 && w->config.n_eos > 0) id = w->config.eos[0];
        if (id >= 0 && id < m5_tokenizer_n_vocab(t)) eos = m5_tokenizer_piece(t, id);
    }
    char *bos_text = m5_strndup(M5_MEM_TEXT, bos.n ? bos.p : "", bos.n);
    char *eos_text = m5_strndup(M5_MEM_TEXT, eos.n ? eos.p : "", eos.n);
    int rc = !bos_text || !eos_text ? m5_error_set(err, M5_ERR_NOMEM, "out of memory for the chat template")
                                    : m5_chat_new(out, template_text ? template_text : w->chat_template, template_text ? NULL : w->tool_template, bos_text,
                                                  eos_text, err);
    m5_free(bos_text);
    m5_free(eos_text);
    return rc;
}

static int from_gguf_file(m5_tokenizer **out, const char *path, m5_error *err)
{
    m5_gguf *g = NULL;
    int rc = m5_gguf_open(&g, path, err);
    if (!rc) rc = from_gguf(out, g, err);
    m5_gguf_close(g);
    return rc;
}

static int from_json_file(m5_tokenizer **out, const char *path, m5_error *err)
{
    char *text = NULL, *config_text = NULL;
    size_t n = 0, n_config = 0;
    m5_json *config = NULL;
    m5_buf beside = {0};
    int rc = m5_file_read(&text, &n, path, max_tokenizer_bytes, err);
    if (rc) goto out;
    /* The rule for BOS may stand in tokenizer_config.json in the same folder. */
    const char *slash = strrchr(path, '/');
    m5_buf_append(&beside, path, slash ? (size_t)(slash - path) + 1 : 0);
    m5_buf_puts(&beside, "tokenizer_config.json");
    if (beside.failed) {
        rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory for a path");
        goto out;
    }
    if (m5_path_exists(beside.p)) {
        if ((rc = m5_file_read(&config_text, &n_config, beside.p, max_tokenizer_bytes, err))) goto out;
        if ((rc = m5_json_parse(&config, config_text, n_config, NULL, err))) {
            rc = m5_error_prefix(err, "%s", beside.p);
            goto out;
        }
    }
    rc = m5_tokenizer_from_json(out, text, n, config, err);
    if (rc) rc = m5_error_prefix(err, "%s", path);
out:
    m5_free(text);
    m5_free(config_text);
    m5_json_unref(config);
    m5_buf_free(&beside);
    return rc;
}

static bool ends_with(const char *s, const char *tail)
{
    size_t n = strlen(s), k = strlen(tail);
    return n >= k && strcmp(s + n - k, tail) == 0;
}

static int from_folder(m5_tokenizer **out, const char *path, m5_error *err)
{
    char **names = NULL;
    size_t n = 0;
    const char *pick = NULL;
    m5_buf full = {0};
    int rc = m5_dir_list(&names, &n, path, err);
    if (rc) return rc;
    for (size_t i = 0; i < n; i++)
        if (strcmp(names[i], "tokenizer.json") == 0) pick = names[i];
    for (size_t i = 0; i < n && !pick; i++)
        if (ends_with(names[i], ".gguf")) pick = names[i];
    if (!pick) {
        rc = m5_error_set(err, M5_ERR_NOTFOUND, "%s: no tokenizer.json and no .gguf file in this folder", path);
        goto out;
    }
    m5_buf_printf(&full, "%s/%s", path, pick);
    if (full.failed)
        rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory for a path");
    else
        rc = ends_with(pick, ".gguf") ? from_gguf_file(out, full.p, err) : from_json_file(out, full.p, err);
out:
    for (size_t i = 0; i < n; i++) m5_free(names[i]);
    m5_free(names);
    m5_buf_free(&full);
    return rc;
}

int m5_vocab_open_tokenizer(m5_tokenizer **out, const char *path, m5_error *err)
{
    *out = NULL;
    if (m5_path_is_dir(path)) return from_folder(out, path, err);
    return ends_with(path, ".gguf") ? from_gguf_file(out, path, err) : from_json_file(out, path, err);
}
