/* SPDX-License-Identifier: Apache-2.0 */
/* Opens a model: finds out what a path is, maps its files, reads configuration and texts, binds the weights, computes the fingerprint.
 * Room: model/weights.h. Not here: containers (gguf.c, safetensors.c), meaning of keys (config.c, families/), binding (bind*.c).
 */
#include "model/weights.h"

#include "base/hash.h"
#include "base/mem.h"
#include "base/task.h"
#include "model/bind.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_PATH_BYTES = 4096, MAX_JSON_BYTES = 64 << 20, MAX_TOKENIZER_BYTES = 256 << 20, N_SAMPLES = 1024, SAMPLE_BYTES = 256 };

/* Fingerprint so far. Parts are chained, hash of (previous, hash of part), so no state object is needed. */
typedef struct print_hash {
    m5_hash128 h;
} print_hash;

static void add_hash(print_hash *p, const void *data, size_t n)
{
    uint64_t chain[4] = {p->h.low, p->h.high, 0, 0};
    m5_hash128 part = m5_hash128_of(data, n);
    chain[2] = part.low;
    chain[3] = part.high;
    p->h = m5_hash128_of(chain, sizeof chain);
}

/* ---- texts of a folder ---- */

static int join(char out[MAX_PATH_BYTES], const char *dir, const char *name, m5_error *err)
{
    size_t n = strlen(dir);
    const char *slash = n && dir[n - 1] == '/' ? "" : "/";
    int k = snprintf(out, MAX_PATH_BYTES, "%s%s%s", dir, slash, name);
    return k > 0 && k < MAX_PATH_BYTES ? 0 : m5_error_set(err, M5_ERR_ARG, "the path %.200s... is too long", dir);
}

static bool is_lfs_pointer(const char *p, size_t n)
{
    static const char mark[] = "version https://git-lfs.github.com/spec/";
    return n < 1024 && n >= sizeof mark - 1 && memcmp(p, mark, sizeof mark - 1) == 0;
}

static int lfs_error(const char *path, m5_error *err)
{
    return m5_error_set(err, M5_ERR_FORMAT, "%s is a Git LFS pointer, not the file itself; fetch it with \"git lfs pull\"", path);
}

/* A text file of the folder; *out NULL when it does not exist. */
static int read_text(const char *dir, const char *name, size_t max_bytes, char **out, size_t *n, m5_error *err)
{
    char path[MAX_PATH_BYTES];
    *out = NULL;
    *n = 0;
    int rc = join(path, dir, name, err);
    if (rc || !m5_path_exists(path) || m5_path_is_dir(path)) return rc;
    rc = m5_file_read(out, n, path, max_bytes, err);
    if (rc == 0 && is_lfs_pointer(*out, *n)) rc = lfs_error(path, err);
    if (rc) {
        m5_free(*out);
        *out = NULL;
    }
    return rc;
}

/* A JSON file of the folder; its bytes go into the fingerprint. */
static int read_json(const char *dir, const char *name, m5_json **out, print_hash *hash, m5_error *err)
{
    char *text = NULL;
    size_t n = 0;
    int rc = read_text(dir, name, MAX_JSON_BYTES, &text, &n, err);
    if (rc == 0 && text) {
        add_hash(hash, text, n);
        rc = m5_json_parse(out, text, n, &(m5_json_limits){.max_bytes = MAX_JSON_BYTES, .big_ints = true}, err);
        if (rc) m5_error_prefix(err, "%s/%s", dir, name);
    }
    m5_free(text);
    return rc;
}

static int keep_str(char **out, m5_slice s, m5_error *err)
{
    m5_free(*out);
    *out = m5_strndup(M5_MEM_TEXT, s.p, s.n);
    return *out ? 0 : m5_error_set(err, M5_ERR_NOMEM, "no memory for a chat template");
}

/* A string, or a list of {name, template} with "default" and "tool_use". */
static int templates_from_json(m5_weights *w, const m5_json *v, m5_error *err)
{
    int rc = 0;
    if (m5_json_typeof(v) == M5_JSON_STRING && !w->chat_template) return keep_str(&w->chat_template, m5_json_str(v), err);
    for (size_t i = 0; m5_json_typeof(v) == M5_JSON_ARRAY && i < m5_json_len(v) && rc == 0; i++) {
        const m5_json *e = m5_json_at(v, i), *t = m5_json_get(e, "template");
        m5_slice name = m5_json_str(m5_json_get(e, "name"));
        if (m5_json_typeof(t) != M5_JSON_STRING) continue;
        if (m5_slice_is(name, "default") && !w->chat_template) rc = keep_str(&w->chat_template, m5_json_str(t), err);
        if (m5_slice_is(name, "tool_use") && !w->tool_template) rc = keep_str(&w->tool_template, m5_json_str(t), err);
    }
    return rc;
}

/* chat_template.jinja wins over tokenizer_config.json, which wins over chat_template.json. */
static int read_templates(m5_weights *w, const char *dir, print_hash *hash, m5_error *err)
{
    size_t n = 0;
    m5_json *old = NULL;
    int rc = read_text(dir, "chat_template.jinja", MAX_JSON_BYTES, &w->chat_template, &n, err);
    if (rc == 0) rc = read_text(dir, "additional_chat_templates/tool_use.jinja", MAX_JSON_BYTES, &w->tool_template, &n, err);
    if (rc == 0) rc = templates_from_json(w, m5_json_get(w->tokenizer_config, "chat_template"), err);
    if (rc == 0 && !w->chat_template) rc = read_json(dir, "chat_template.json", &old, hash, err);
    if (rc == 0 && old) rc = templates_from_json(w, m5_json_get(old, "chat_template"), err);
    m5_json_unref(old);
    if (w->chat_template) add_hash(hash, w->chat_template, strlen(w->chat_template));
    if (w->tool_template) add_hash(hash, w->tool_template, strlen(w->tool_template));
    return rc;
}

static int gguf_template(const m5_gguf *g, const char *key, char **out, m5_error *err)
{
    m5_slice s;
    return m5_gguf_str(g, key, &s) ? keep_str(out, s, err) : 0;
}

/* ---- fingerprint ---- */

/* Headers describe everything but the numbers; those are sampled, a few hundred bytes from the middle of up to N_SAMPLES tensors. */
static void hash_weights(const m5_weights *w, print_hash *hash)
{
    const struct m5_weights_store *st = w->store;
    int n_files = st->gguf ? m5_gguf_n_files(st->gguf) : m5_st_n_files(st->st);
    for (int f = 0; f < n_files; f++) {
        const m5_map *map = st->gguf ? m5_gguf_map(st->gguf, f) : m5_st_map(st->st, f);
        size_t header = st->gguf ? m5_gguf_header_bytes(st->gguf, f) : m5_st_header_bytes(st->st, f);
        uint64_t size = map->n;
        add_hash(hash, &size, sizeof size);
        add_hash(hash, map->p, header);
    }
    size_t n = m5_store_n_tensors(st), step = n > N_SAMPLES ? n / N_SAMPLES : 1;
    for (size_t i = 0; i < n; i += step) {
        m5_tensor t;
        m5_store_tensor_at(st, i, &t);
        size_t len = t.n_bytes < SAMPLE_BYTES ? t.n_bytes : SAMPLE_BYTES;
        add_hash(hash, t.data + (t.n_bytes - len) / 2, len);
    }
}

/* ---- opening ---- */

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

/* Tensors of towers that a text model has no use for, and leftovers of old savers. */
static bool is_foreign(const char *name)
{
    static const char *const parts[] = {
        "visual.", "vision_", "embed_vision", "audio_tower", "embed_audio", "multi_modal_projector", "mm_projector", "rotary_emb.inv_freq",
        "lm_head."};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (strstr(name, parts[i])) return true;
    }
    return strncmp(name, "v.", 2) == 0 || strncmp(name, "mm.", 3) == 0;
}

static void log_unbound(const m5_weights *w)
{
    for (size_t i = 0; m5_log_get_level() >= M5_LOG_DEBUG && i < m5_store_n_tensors(w->store); i++) {
        m5_tensor t;
        m5_store_tensor_at(w->store, i, &t);
        if (!m5_store_is_used(w->store, t.entry) && !is_foreign(t.name)) m5_log(M5_LOG_DEBUG, "tensor %s is not used", t.name);
    }
}

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t) * (const void *const *)a, y = (uintptr_t) * (const void *const *)b;
    return (x > y) - (x < y);
}

/* Files are mapped and w->config is there: the rest is the same for both containers. */
static int bind_all(m5_weights *w, const m5_json *quant, m5_error *err)
{
    struct m5_weights_store *st = w->store;
    m5_binder b = {.w = w, .store = st, .family = m5_family_named(w->config.family), .quant = quant, .err = err};
    int n_files = st->gguf ? m5_gguf_n_files(st->gguf) : m5_st_n_files(st->st);
    for (int f = 0; f < n_files; f++) w->file_bytes += (st->gguf ? m5_gguf_map(st->gguf, f) : m5_st_map(st->st, f))->n;
    int rc = m5_bind_model(&b);
    if (rc) return rc;
    if (st->n_used) qsort(st->used, st->n_used, sizeof *st->used, by_address);
    log_unbound(w);
    return 0;
}

static int open_gguf(m5_weights *w, const char *path, print_hash *hash, m5_error *err)
{
    int rc = m5_gguf_open(&w->store->gguf, path, err);
    if (rc) return rc;
    w->gguf = w->store->gguf;
    snprintf(w->format, sizeof w->format, "gguf");
    rc = m5_config_from_gguf(&w->config, w->gguf, err);
    if (rc == 0) rc = gguf_template(w->gguf, "tokenizer.chat_template", &w->chat_template, err);
    if (rc == 0) rc = gguf_template(w->gguf, "tokenizer.chat_template.tool_use", &w->tool_template, err);
    if (rc == 0) rc = bind_all(w, NULL, err);
    if (rc == 0) hash_weights(w, hash);
    return rc;
}

static void name_from_path(m5_weights *w, const char *path)
{
    size_t n = strlen(path), begin;
    while (n > 1 && path[n - 1] == '/') n--;
    for (begin = n; begin > 0 && path[begin - 1] != '/'; begin--) {}
    snprintf(w->config.name, sizeof w->config.name, "%.*s", (int)(n - begin > 120 ? 120 : n - begin), path + begin);
}

static int open_folder(m5_weights *w, const char *dir, print_hash *hash, m5_error *err)
{
    m5_json *config = NULL, *generation = NULL;
    int rc = read_json(dir, "config.json", &config, hash, err);
    if (rc == 0 && !config) rc = m5_error_set(err, M5_ERR_NOTFOUND, "%s has weights but no config.json", dir);
    if (rc == 0) rc = read_json(dir, "generation_config.json", &generation, hash, err);
    if (rc == 0) rc = read_json(dir, "tokenizer_config.json", &w->tokenizer_config, hash, err);
    if (rc == 0) rc = m5_config_from_hf(&w->config, config, generation, err);
    if (rc) goto out;
    name_from_path(w, dir);
    rc = m5_st_open(&w->store->st, dir, err);
    if (rc == 0) rc = read_text(dir, "tokenizer.json", MAX_TOKENIZER_BYTES, &w->tokenizer_json, &w->n_tokenizer_json, err);
    if (rc == 0) rc = read_templates(w, dir, hash, err);
    if (rc) goto out;
    const m5_json *quant = m5_json_get(config, "quantization");
    bool mlx = m5_json_typeof(quant) == M5_JSON_OBJECT || m5_slice_is(m5_st_metadata(w->store->st, "format"), "mlx");
    snprintf(w->format, sizeof w->format, "%s", mlx ? "mlx" : "safetensors");
    rc = bind_all(w, quant, err);
    if (rc == 0) hash_weights(w, hash);
    if (rc == 0 && w->tokenizer_json) add_hash(hash, w->tokenizer_json, w->n_tokenizer_json);
out:
    m5_json_unref(config);
    m5_json_unref(generation);
    return rc;
}

/* ---- what a path is ---- */

typedef struct folder_view {
    int n_gguf, n_safetensors, n_pickle, n_names;
    bool has_config;
    char gguf[MAX_PATH_BYTES];    /* the first model file */
    char pointer[MAX_PATH_BYTES]; /* a Git LFS pointer among the weights, or "" */
} folder_view;

static bool file_is_pointer(const char *path)
{
    char *text = NULL;
    size_t n = 0;
    m5_map map = {0};
    if (m5_map_open(&map, path, NULL) || map.n >= 1024) {
        m5_map_close(&map);
        return false;
    }
    m5_map_close(&map);
    bool is = m5_file_read(&text, &n, path, 1024, NULL) == 0 && is_lfs_pointer(text, n);
    m5_free(text);
    return is;
}

/* "-00002-of-00004.gguf" and later parts of a split, which open with their first one. */
static bool is_later_part(const char *name)
{
    size_t n = strlen(name), digits = 0;
    if (n < 20 || strncmp(name + n - 14, "-of-", 4) != 0 || name[n - 20] != '-') return false;
    for (size_t i = n - 19; i < n - 14; i++) digits += name[i] >= '0' && name[i] <= '9';
    for (size_t i = n - 10; i < n - 5; i++) digits += name[i] >= '0' && name[i] <= '9';
    return digits == 10 && strncmp(name + n - 19, "00001", 5) != 0;
}

/* Vision projectors are not models of their own. */
static bool is_model_gguf(const char *name)
{
    return ends_with(name, ".gguf") && !strstr(name, "mmproj") && !is_later_part(name);
}

static int look_into(const char *dir, folder_view *v, m5_error *err)
{
    char **names = NULL;
    size_t n = 0;
    int rc = m5_dir_list(&names, &n, dir, err);
    for (size_t i = 0; i < n; i++) {
        const char *name = names[i];
        char path[MAX_PATH_BYTES];
        bool st = ends_with(name, ".safetensors"), gguf = is_model_gguf(name);
        v->n_names++;
        v->has_config |= strcmp(name, "config.json") == 0;
        v->n_safetensors += st;
        v->n_pickle += ends_with(name, ".bin") || ends_with(name, ".pt") || ends_with(name, ".pth");
        if ((st || gguf) && rc == 0) rc = join(path, dir, name, err);
        if ((st || gguf) && rc == 0 && !v->pointer[0] && file_is_pointer(path)) memcpy(v->pointer, path, sizeof path);
        if (gguf && rc == 0 && v->n_gguf++ == 0) memcpy(v->gguf, path, sizeof path);
        m5_free(names[i]);
    }
    m5_free(names);
    return rc;
}

static int open_path(m5_weights *w, const char *path, print_hash *hash, m5_error *err)
{
    if (!m5_path_exists(path)) return m5_error_set(err, M5_ERR_NOTFOUND, "there is no file or folder %s", path);
    if (!m5_path_is_dir(path)) {
        if (file_is_pointer(path)) return lfs_error(path, err);
        if (ends_with(path, ".safetensors")) return m5_error_set(err, M5_ERR_ARG, "%s is only part of a model; give the folder that holds it", path);
        return open_gguf(w, path, hash, err);
    }
    folder_view *v = m5_calloc(M5_MEM_MISC, 1, sizeof *v);
    if (!v) return m5_error_set(err, M5_ERR_NOMEM, "no memory to look into %s", path);
    int rc = look_into(path, v, err);
    if (rc == 0) {
        if (v->pointer[0])
            rc = lfs_error(v->pointer, err);
        else if (v->n_safetensors && (v->has_config || v->n_gguf == 0))
            rc = open_folder(w, path, hash, err);
        else if (v->n_gguf == 1)
            rc = open_gguf(w, v->gguf, hash, err);
        else if (v->n_gguf)
            rc = m5_error_set(err, M5_ERR_ARG, "%s holds %d GGUF models; give the file itself, for example %s", path, v->n_gguf, v->gguf);
        else if (v->n_pickle)
            rc = m5_error_set(err, M5_ERR_UNSUPPORTED, "%s holds only PyTorch files (.bin, .pt), which are not supported; use safetensors or GGUF",
                              path);
        else if (v->n_names == 0)
            rc = m5_error_set(err, M5_ERR_NOTFOUND, "the folder %s is empty", path);
        else
            rc = m5_error_set(err, M5_ERR_NOTFOUND, "%s holds no model (no .safetensors or .gguf file)", path);
    }
    m5_free(v);
    return rc;
}

int m5_weights_open(m5_weights **out, const char *path, m5_error *err)
{
    *out = NULL;
    m5_weights *w = m5_calloc(M5_MEM_WEIGHTS, 1, sizeof *w);
    print_hash hash = {{0, 0}};
    if (w) w->store = m5_calloc(M5_MEM_WEIGHTS, 1, sizeof *w->store);
    int rc = w && w->store ? 0 : m5_error_set(err, M5_ERR_NOMEM, "no memory to open %s", path);
    if (rc == 0) rc = open_path(w, path, &hash, err);
    if (rc == 0) {
        snprintf(w->fingerprint, sizeof w->fingerprint, "%016" PRIx64 "%016" PRIx64, (uint64_t)hash.h.high, (uint64_t)hash.h.low);
        *out = w;
        w = NULL;
    }
    m5_weights_close(w);
    return rc;
}

void m5_weights_close(m5_weights *w)
{
    if (!w) return;
    struct m5_weights_store *st = w->store;
    if (st) {
        for (size_t i = 0; i < st->n_own; i++) m5_free(st->own[i]);
        m5_free(st->own);
        m5_free(st->used);
        m5_gguf_close(st->gguf);
        m5_st_close(st->st);
        m5_free(st);
    }
    m5_config_deinit(&w->config);
    m5_free(w->tokenizer_json);
    m5_free(w->chat_template);
    m5_free(w->tool_template);
    m5_json_unref(w->tokenizer_config);
    m5_free(w);
}

int m5_weights_each_tensor(const m5_weights *w, m5_tensor_fn fn, void *ctx)
{
    int rc = 0;
    for (size_t i = 0; i < m5_store_n_tensors(w->store) && rc == 0; i++) {
        m5_tensor t;
        m5_store_tensor_at(w->store, i, &t);
        rc = fn(ctx, &(m5_tensor_info){t.name, t.type_name, m5_store_path(w->store, t.file), t.n_dims, t.shape, t.n_bytes,
                                       m5_store_is_used(w->store, t.entry)});
    }
    return rc;
}
