/* SPDX-License-Identifier: Apache-2.0 */
/* Binding: the same small models written as Hugging Face, MLX and GGUF files must give the same canonical weights; gathered rows come from where they
 * should; errors name tensor and file; odd folders get a helpful answer; nothing leaks when memory runs out. */
#include "model/weights.h"

#include "model_build.h"
#include "t.h"

#include <math.h>

static m5_error err;

static m5_weights *open_ok(const char *path)
{
    m5_weights *w = NULL;
    memset(&err, 0, sizeof err);
    int rc = m5_weights_open(&w, path, &err);
    T_CHECK(rc == 0 && w, "%s: %s", path, err.text);
    return w;
}

static void open_fails(const char *path, int code, const char *part)
{
    m5_weights *w = NULL;
    memset(&err, 0, sizeof err);
    int rc = m5_weights_open(&w, path, &err);
    T_CHECK(rc == code && !w && strstr(err.text, part), "rc %d, \"%s\", expected %d and \"%s\"", rc, err.text, code, part);
    m5_weights_close(w);
}

static bool row_is(const m5_matrix *m, int64_t row, const char *source, uint64_t first)
{
    float v[256];
    if (!m->data || m->n_in > 256 || row >= m->n_out) return false;
    m5_matrix_row_f32(m, row, v);
    for (int64_t i = 0; i < m->n_in; i++) {
        if (v[i] != tb_value(source, first + (uint64_t)i)) return false;
    }
    return true;
}

static bool matrix_is(const m5_matrix *m, const char *source)
{
    for (int64_t r = 0; r < m->n_out; r++) {
        if (!row_is(m, r, source, (uint64_t)(r * m->n_in))) return false;
    }
    return m->data != NULL;
}

static bool vector_is(const float *v, int64_t n, const char *source, float add)
{
    for (int64_t i = 0; v && i < n; i++) {
        if (v[i] != tb_value(source, (uint64_t)i) + add) return false;
    }
    return v != NULL;
}

/* ---- Qwen3.5: one linear and one attention layer, next-token head; three containers ---- */

#define QWEN35_TEXT                                                                                                                                  \
    "\"num_hidden_layers\":2,\"hidden_size\":32,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":8,\"vocab_size\":20,"               \
    "\"intermediate_size\":12,\"linear_num_key_heads\":1,"                                                                                           \
    "\"linear_num_value_heads\":2,\"linear_key_head_dim\":4,\"linear_value_head_dim\":6,\"layer_types\":[\"linear_attention\",\"full_attention\"],"  \
    "\"mtp_num_hidden_layers\":1"

typedef struct entry {
    const char *hf, *gguf, *shape, *dims; /* shape as safetensors, dims as GGUF */
    char kind;                            /* n: zero-centred norm, c: convolution, a: A_log, v: vector, m: matrix */
} entry;

static const entry qwen35_mlp[] = {
    {"input_layernorm.weight", "attn_norm.weight", "32", "32", 'n'},
    {"post_attention_layernorm.weight", "post_attention_norm.weight", "32", "32", 'n'},
    {"mlp.gate_proj.weight", "ffn_gate.weight", "12,32", "32,12", 'm'},
    {"mlp.up_proj.weight", "ffn_up.weight", "12,32", "32,12", 'm'},
    {"mlp.down_proj.weight", "ffn_down.weight", "32,12", "12,32", 'm'},
    {NULL, NULL, NULL, NULL, 0},
};
static const entry qwen35_gdn[] = {
    {"linear_attn.in_proj_qkv.weight", "attn_qkv.weight", "20,32", "32,20", 'm'},
    {"linear_attn.in_proj_z.weight", "attn_gate.weight", "12,32", "32,12", 'm'},
    {"linear_attn.in_proj_b.weight", "ssm_beta.weight", "2,32", "32,2", 'm'},
    {"linear_attn.in_proj_a.weight", "ssm_alpha.weight", "2,32", "32,2", 'm'},
    {"linear_attn.out_proj.weight", "ssm_out.weight", "32,12", "12,32", 'm'},
    {"linear_attn.conv1d.weight", "ssm_conv1d.weight", "20,1,4", "4,20", 'c'},
    {"linear_attn.A_log", "ssm_a", "2", "2", 'a'},
    {"linear_attn.dt_bias", "ssm_dt.bias", "2", "2", 'v'},
    {"linear_attn.norm.weight", "ssm_norm.weight", "6", "6", 'v'},
    {NULL, NULL, NULL, NULL, 0},
};
static const entry qwen35_attn[] = {
    {"self_attn.q_proj.weight", "attn_q.weight", "32,32", "32,32", 'm'},
    {"self_attn.k_proj.weight", "attn_k.weight", "8,32", "32,8", 'm'},
    {"self_attn.v_proj.weight", "attn_v.weight", "8,32", "32,8", 'm'},
    {"self_attn.o_proj.weight", "attn_output.weight", "32,16", "16,32", 'm'},
    {"self_attn.q_norm.weight", "attn_q_norm.weight", "8", "8", 'n'},
    {"self_attn.k_norm.weight", "attn_k_norm.weight", "8", "8", 'n'},
    {NULL, NULL, NULL, NULL, 0},
};
static const entry qwen35_top[] = {
    {"model.embed_tokens.weight", "token_embd.weight", "20,32", "32,20", 'm'},
    {"model.norm.weight", "output_norm.weight", "32", "32", 'n'},
    {"lm_head.weight", "output.weight", "20,32", "32,20", 'm'},
    {NULL, NULL, NULL, NULL, 0},
};
static const entry qwen35_mtp[] = {
    {"mtp.fc.weight", "blk.2.nextn.eh_proj.weight", "32,64", "64,32", 'm'},
    {"mtp.pre_fc_norm_embedding.weight", "blk.2.nextn.enorm.weight", "32", "32", 'n'},
    {"mtp.pre_fc_norm_hidden.weight", "blk.2.nextn.hnorm.weight", "32", "32", 'n'},
    {"mtp.norm.weight", "blk.2.nextn.shared_head_norm.weight", "32", "32", 'n'},
    {NULL, NULL, NULL, NULL, 0},
};

/* How a file of the test departs from a plain one. */
typedef struct variant {
    const char *skip, *reshape, *shape; /* leave out a tensor; give one another shape */
    const char *type;                   /* dtype of the reshaped tensor, NULL = F32 */
    bool mlx;
} variant;

static float *numbers(const char *source, size_t n, char kind, bool final)
{
    float *v = malloc(n * sizeof *v + 1);
    for (size_t i = 0; v && i < n; i++) {
        v[i] = tb_value(source, i) + (kind == 'n' && final ? 1.0f : 0.0f);
        if (kind == 'a' && final) v[i] = -expf(v[i]);
    }
    return v;
}

static void add_hf(tb_st *f, const entry *list, const char *prefix, const variant *x)
{
    for (; list->hf; list++) {
        char name[128], out[160];
        const char *shape = list->kind == 'c' && x->mlx ? "20,4,1" : list->shape, *type = "F32";
        snprintf(name, sizeof name, "%s%s", prefix, list->hf);
        snprintf(out, sizeof out, "%s%s", x->mlx ? "language_model." : "", name);
        if (x->skip && strcmp(name, x->skip) == 0) continue;
        if (x->reshape && strcmp(name, x->reshape) == 0) {
            shape = x->shape;
            type = x->type ? x->type : type;
        }
        size_t n = tb_count(shape), bytes = strncmp(type, "F8", 2) == 0 ? 1 : 4;
        float *v = numbers(name, n, list->kind == 'n' ? 'n' : 'm', x->mlx);
        tb_st_add(f, out, type, shape, v, n * bytes);
        free(v);
    }
}

static void write_qwen35(const char *dir, const variant *x, const char *config)
{
    tb_st f = {{0}, {0}};
    add_hf(&f, qwen35_top, "", x);
    add_hf(&f, qwen35_mlp, "model.layers.0.", x);
    add_hf(&f, qwen35_gdn, "model.layers.0.", x);
    add_hf(&f, qwen35_mlp, "model.layers.1.", x);
    add_hf(&f, qwen35_attn, "model.layers.1.", x);
    add_hf(&f, qwen35_mtp, "", x);
    add_hf(&f, qwen35_mlp, "mtp.layers.0.", x);
    add_hf(&f, qwen35_attn, "mtp.layers.0.", x);
    tb_st_f32(&f, "model.visual.patch_embed.weight", "4,4");
    tb_st_write(&f, dir);
    tb_write(dir, "config.json", config, strlen(config));
}

static void add_gguf(tb_gguf *g, const entry *list, const char *prefix, const char *source_prefix)
{
    for (; list->hf; list++) {
        char name[128], source[128];
        snprintf(name, sizeof name, "%s%s", prefix, list->gguf);
        snprintf(source, sizeof source, "%s%s", source_prefix, list->hf);
        size_t n = tb_count(list->dims);
        float *v = numbers(source, n, list->kind, true);
        tb_gtensor(g, name, 0, list->dims, v, n * sizeof *v);
        free(v);
    }
}

static void write_qwen35_gguf(const char *dir, const char *file)
{
    tb_gguf g;
    m5_buf all = {0};
    memset(&g, 0, sizeof g);
    tb_gtext(&g, "general.architecture", "qwen35");
    tb_gtext(&g, "general.name", "tiny");
    tb_gtext(&g, "tokenizer.chat_template", "plain");
    tb_gtext(&g, "tokenizer.chat_template.tool_use", "tools");
    static const struct {
        const char *key;
        uint32_t v;
    } keys[] = {{"block_count", 3},          {"nextn_predict_layers", 1},    {"embedding_length", 32},      {"feed_forward_length", 12},
                {"attention.head_count", 2}, {"attention.head_count_kv", 1}, {"attention.key_length", 8},   {"attention.value_length", 8},
                {"rope.dimension_count", 2}, {"ssm.conv_kernel", 4},         {"ssm.state_size", 4},         {"ssm.group_count", 1},
                {"ssm.time_step_rank", 2},   {"ssm.inner_size", 12},         {"full_attention_interval", 2}};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char key[64];
        snprintf(key, sizeof key, "qwen35.%s", keys[i].key);
        tb_gu32(&g, key, keys[i].v);
    }
    add_gguf(&g, qwen35_top, "", "");
    add_gguf(&g, qwen35_mlp, "blk.0.", "model.layers.0.");
    add_gguf(&g, qwen35_gdn, "blk.0.", "model.layers.0.");
    add_gguf(&g, qwen35_mlp, "blk.1.", "model.layers.1.");
    add_gguf(&g, qwen35_attn, "blk.1.", "model.layers.1.");
    add_gguf(&g, qwen35_mtp, "", "");
    add_gguf(&g, qwen35_mlp, "blk.2.", "mtp.layers.0.");
    add_gguf(&g, qwen35_attn, "blk.2.", "mtp.layers.0.");
    tb_gfinish(&g, &all);
    tb_write(dir, file, all.p, all.n);
    m5_buf_free(&all);
}

static const char qwen35_config[] = "{\"model_type\":\"qwen3_5_text\"," QWEN35_TEXT "}";
static const char qwen35_wrapped[] = "{\"model_type\":\"qwen3_5\",\"text_config\":{" QWEN35_TEXT "}}";

static int count_bound(void *ctx, const m5_tensor_info *t)
{
    int *n = ctx;
    n[0]++;
    if (!t->bound) n[1]++;
    return 0;
}

static int count_matrix(void *ctx, const char *name, m5_matrix *m)
{
    (void)m;
    int *n = ctx;
    n[0]++;
    if (strcmp(name, "layers.0.gdn_qkv") == 0 || strcmp(name, "mtp.layer.q") == 0 || strcmp(name, "head") == 0) n[1]++;
    return 0;
}

/* The whole canonical form, whatever the container. */
static void check_qwen35(m5_weights *w, int n_foreign)
{
    const m5_layer_weights *l0 = &w->layers[0], *l1 = &w->layers[1];
    T_CHECK(vector_is(w->out_norm, 32, "model.norm.weight", 1));
    T_CHECK(vector_is(l0->attn_norm, 32, "model.layers.0.input_layernorm.weight", 1));
    T_CHECK(vector_is(l0->ffn_norm, 32, "model.layers.0.post_attention_layernorm.weight", 1));
    T_CHECK(vector_is(l1->q_norm, 8, "model.layers.1.self_attn.q_norm.weight", 1) &&
            vector_is(l1->k_norm, 8, "model.layers.1.self_attn.k_norm.weight", 1));
    T_CHECK(vector_is(l0->gdn_norm, 6, "model.layers.0.linear_attn.norm.weight", 0), "the gated norm has no +1");
    T_CHECK(vector_is(l0->gdn_conv, 80, "model.layers.0.linear_attn.conv1d.weight", 0));
    T_CHECK(vector_is(l0->gdn_dt_bias, 2, "model.layers.0.linear_attn.dt_bias", 0));
    for (int h = 0; h < 2; h++) T_CHECK(l0->gdn_a_neg[h] == -expf(tb_value("model.layers.0.linear_attn.A_log", (uint64_t)h)));
    T_CHECK(matrix_is(&l0->gdn_qkv, "model.layers.0.linear_attn.in_proj_qkv.weight") &&
            matrix_is(&l0->gdn_out, "model.layers.0.linear_attn.out_proj.weight"));
    T_CHECK(matrix_is(&l0->gdn_b, "model.layers.0.linear_attn.in_proj_b.weight") &&
            matrix_is(&l0->gdn_a, "model.layers.0.linear_attn.in_proj_a.weight"));
    T_CHECK(matrix_is(&l1->q, "model.layers.1.self_attn.q_proj.weight") && l1->q.n_out == 32 && !l1->q_bias && !m5_matrix_present(&l1->gdn_qkv));
    T_CHECK(matrix_is(&w->embd, "model.embed_tokens.weight") && matrix_is(&w->head, "lm_head.weight") && !w->config.tied);
    T_EQ_INT(w->config.n_mtp, 1);
    T_CHECK(matrix_is(&w->mtp.fc, "mtp.fc.weight") && vector_is(w->mtp.out_norm, 32, "mtp.norm.weight", 1) &&
            vector_is(w->mtp.embd_norm, 32, "mtp.pre_fc_norm_embedding.weight", 1));
    T_CHECK(matrix_is(&w->mtp.layer.k, "mtp.layers.0.self_attn.k_proj.weight") &&
            vector_is(w->mtp.layer.q_norm, 8, "mtp.layers.0.self_attn.q_norm.weight", 1));
    int bound[2] = {0, 0}, mats[2] = {0, 0};
    T_CHECK(m5_weights_each_tensor(w, count_bound, bound) == 0 && bound[1] == n_foreign && bound[0] == 43 + n_foreign, "%d tensors, %d not bound",
            bound[0], bound[1]);
    T_CHECK(m5_weights_each_matrix(w, count_matrix, mats) == 0 && mats[1] == 3 && mats[0] == 25, "%d matrices", mats[0]);
    T_EQ_INT(w->n_params, 2 * 640 + 32 + 2 * (64 + 3 * 384) + (640 + 384 + 64 + 64 + 384 + 80 + 2 + 2 + 6) + 2 * (1024 + 256 + 256 + 512 + 16) +
                              (64 + 3 * 384) + 2048 + 96);
}

static void test_containers(void)
{
    char dir[64], path[128];
    tb_dir(dir);
    write_qwen35(dir, &(variant){0}, qwen35_config);
    m5_weights *w = open_ok(dir);
    if (w) {
        check_qwen35(w, 1);
        T_CHECK(w->config.gdn_tiled == false && strcmp(w->format, "safetensors") == 0 && !w->gguf &&
                strcmp(w->config.name, strrchr(dir, '/') + 1) == 0);
    }
    m5_weights_close(w);
    /* An MLX conversion: prefix, turned convolution, norms with the 1 added. */
    const char mlx[] = "{\"model_type\":\"qwen3_5\",\"quantization\":{\"group_size\":64,\"bits\":4},\"text_config\":{" QWEN35_TEXT "}}";
    write_qwen35(dir, &(variant){.mlx = true}, mlx);
    w = open_ok(dir);
    if (w) {
        check_qwen35(w, 1);
        T_EQ_STR(w->format, "mlx");
    }
    m5_weights_close(w);
    tb_dir_remove(dir);
    tb_dir(dir);
    write_qwen35_gguf(dir, "tiny.gguf");
    w = open_ok(dir); /* a folder with one GGUF */
    if (w) {
        check_qwen35(w, 0);
        T_CHECK(w->config.gdn_tiled && strcmp(w->format, "gguf") == 0 && w->gguf && !w->tokenizer_json);
        T_EQ_STR(w->config.name, "tiny");
        T_EQ_STR(w->chat_template, "plain");
        T_EQ_STR(w->tool_template, "tools");
    }
    m5_weights_close(w);
    snprintf(path, sizeof path, "%s/tiny.gguf", dir);
    w = open_ok(path);
    m5_weights_close(w);
    write_qwen35_gguf(dir, "mmproj-tiny.gguf"); /* a vision projector beside it does not count */
    w = open_ok(dir);
    m5_weights_close(w);
    write_qwen35_gguf(dir, "tiny-00002-of-00002.gguf"); /* nor does a later part of a split */
    tb_write(dir, "adapter.safetensors", "{}", 2);      /* nor weights without a config.json */
    w = open_ok(dir);
    m5_weights_close(w);
    write_qwen35_gguf(dir, "best-of-all.gguf");
    open_fails(dir, M5_ERR_ARG, "holds 2 GGUF models");
    tb_dir_remove(dir);
}

/* ---- what may be missing, and what not ---- */

static void test_errors(void)
{
    char dir[64];
    tb_dir(dir);
    write_qwen35(dir, &(variant){.skip = "model.layers.1.self_attn.k_proj.weight"}, qwen35_config);
    open_fails(dir, M5_ERR_FORMAT, "model.safetensors: tensor model.layers.1.self_attn.k_proj.weight is missing");
    write_qwen35(dir, &(variant){.skip = "model.layers.0.linear_attn.A_log"}, qwen35_config);
    open_fails(dir, M5_ERR_FORMAT, "linear_attn.A_log is missing");
    write_qwen35(dir, &(variant){.skip = "model.embed_tokens.weight"}, qwen35_config);
    open_fails(dir, M5_ERR_FORMAT, "model.embed_tokens.weight is missing");
    write_qwen35(dir, &(variant){.reshape = "model.layers.1.mlp.up_proj.weight", .shape = "32,12"}, qwen35_config);
    open_fails(dir, M5_ERR_FORMAT, "model.safetensors: tensor model.layers.1.mlp.up_proj.weight has shape [32, 12], expected [12, 32]");
    write_qwen35(dir, &(variant){.reshape = "model.norm.weight", .shape = "31"}, qwen35_config);
    open_fails(dir, M5_ERR_FORMAT, "model.norm.weight has shape [31], expected [32]");
    write_qwen35(dir, &(variant){.reshape = "model.layers.0.linear_attn.conv1d.weight", .shape = "4,20"}, qwen35_config);
    open_fails(dir, M5_ERR_FORMAT, "conv1d.weight has shape [4, 20], expected [20, 4]");
    write_qwen35(dir, &(variant){.reshape = "model.layers.1.mlp.up_proj.weight", .shape = "12,32", .type = "F8_E4M3"}, qwen35_config);
    open_fails(dir, M5_ERR_UNSUPPORTED, "model.layers.1.mlp.up_proj.weight is stored as F8_E4M3");
    write_qwen35(dir, &(variant){.reshape = "model.norm.weight", .shape = "32", .type = "I32"}, qwen35_config);
    open_fails(dir, M5_ERR_UNSUPPORTED, "model.norm.weight is stored as I32");
    /* The next-token head may be broken: the model runs without it. */
    m5_log_level level = m5_log_get_level();
    m5_log_set_level(M5_LOG_ERROR);
    write_qwen35(dir, &(variant){.skip = "mtp.layers.0.mlp.down_proj.weight"}, qwen35_config);
    m5_weights *w = open_ok(dir);
    T_CHECK(w && w->config.n_mtp == 0 && !m5_matrix_present(&w->mtp.fc) && err.code == 0);
    m5_weights_close(w);
    m5_log_set_level(level);
    write_qwen35(dir, &(variant){.skip = "mtp.fc.weight"}, qwen35_config);
    w = open_ok(dir);
    T_CHECK(w && w->config.n_mtp == 0);
    m5_weights_close(w);
    /* No output matrix: the embedding serves, whatever the config says. Tied: an output matrix that is there is not used. */
    write_qwen35(dir, &(variant){.skip = "lm_head.weight"}, qwen35_config);
    w = open_ok(dir);
    T_CHECK(w && w->config.tied && w->head.data == w->embd.data);
    m5_weights_close(w);
    write_qwen35(dir, &(variant){0}, "{\"model_type\":\"qwen3_5_text\",\"tie_word_embeddings\":true," QWEN35_TEXT "}");
    w = open_ok(dir);
    T_CHECK(w && w->config.tied && w->head.data == w->embd.data);
    m5_weights_close(w);
    tb_dir_remove(dir);
}

static void test_paths(void)
{
    char dir[64], path[128];
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n";
    open_fails("/nonexistent/model", M5_ERR_NOTFOUND, "there is no file or folder /nonexistent/model");
    tb_dir(dir);
    open_fails(dir, M5_ERR_NOTFOUND, "is empty");
    tb_write(dir, "README.md", "x", 1);
    open_fails(dir, M5_ERR_NOTFOUND, "holds no model");
    tb_write(dir, "pytorch_model.bin", "x", 1);
    open_fails(dir, M5_ERR_UNSUPPORTED, "only PyTorch files");
    tb_write(dir, "model.safetensors", pointer, sizeof pointer - 1);
    open_fails(dir, M5_ERR_FORMAT, "model.safetensors is a Git LFS pointer");
    tb_write(dir, "x.gguf", pointer, sizeof pointer - 1);
    snprintf(path, sizeof path, "%s/x.gguf", dir);
    open_fails(path, M5_ERR_FORMAT, "Git LFS pointer");
    unlink(path);
    write_qwen35(dir, &(variant){0}, qwen35_config);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    open_fails(path, M5_ERR_ARG, "give the folder");
    tb_write(dir, "config.json", "{\"model_type\":", 14);
    open_fails(dir, M5_ERR_FORMAT, "/config.json: ");
    snprintf(path, sizeof path, "%s/config.json", dir);
    unlink(path);
    open_fails(dir, M5_ERR_NOTFOUND, "has weights but no config.json");
    tb_write(dir, "y.gguf", "GGUF", 4);
    snprintf(path, sizeof path, "%s/y.gguf", dir);
    open_fails(path, M5_ERR_FORMAT, "y.gguf");
    tb_dir_remove(dir);
}

/* ---- texts and fingerprint ---- */

static void fingerprint(const char *dir, char out[65])
{
    m5_weights *w = open_ok(dir);
    snprintf(out, 65, "%s", w ? w->fingerprint : "");
    m5_weights_close(w);
}

static void test_texts(void)
{
    char dir[64], a[65], b[65];
    static const char list[] = "{\"chat_template\":[{\"name\":\"default\",\"template\":\"D\"},{\"name\":\"tool_use\",\"template\":\"T\"},{\"name\":"
                               "\"rag\",\"template\":\"R\"}],\"bos_token\":\"<s>\",\"model_max_length\":1000000000000000019884624838656}";
    tb_dir(dir);
    write_qwen35(dir, &(variant){0}, qwen35_wrapped);
    fingerprint(dir, a);
    fingerprint(dir, b);
    T_EQ_STR(a, b);
    T_EQ_INT(strlen(a), 32);
    tb_write(dir, "tokenizer_config.json", list, sizeof list - 1);
    m5_weights *w = open_ok(dir);
    if (w) {
        T_EQ_STR(w->chat_template, "D");
        T_EQ_STR(w->tool_template, "T");
        T_CHECK(m5_slice_is(m5_json_str(m5_json_get(w->tokenizer_config, "bos_token")), "<s>"));
        T_CHECK(strcmp(w->fingerprint, a) != 0);
    }
    m5_weights_close(w);
    fingerprint(dir, a);
    tb_write(dir, "chat_template.jinja", "J", 1);
    tb_write(dir, "tokenizer.json", "{}", 2);
    tb_write(dir, "generation_config.json", "{\"eos_token_id\":[1,2]}", 22);
    w = open_ok(dir);
    if (w) {
        T_EQ_STR(w->chat_template, "J"); /* the file wins over the config */
        T_EQ_STR(w->tool_template, "T");
        T_CHECK(w->n_tokenizer_json == 2 && strcmp(w->tokenizer_json, "{}") == 0 && w->config.n_eos == 2);
        T_CHECK(strcmp(w->fingerprint, a) != 0);
    }
    m5_weights_close(w);
    fingerprint(dir, a);
    tb_write(dir, "tokenizer.json", "[]", 2);
    fingerprint(dir, b);
    T_CHECK(strcmp(a, b) != 0, "another tokenizer of the same length");
    /* Same sizes, other numbers in one tensor. */
    write_qwen35(dir, &(variant){.reshape = "model.layers.0.mlp.gate_proj.weight", .shape = "12,32", .type = "F32", .skip = NULL}, qwen35_wrapped);
    fingerprint(dir, a);
    T_EQ_STR(a, b);
    char path[128];
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    FILE *f = fopen(path, "r+b");
    T_CHECK(f != NULL);
    if (f) {
        uint64_t n = 0;
        T_CHECK(fread(&n, 8, 1, f) == 1);
        T_CHECK(fseek(f, (long)(8 + n + 20 * 32 * 2), SEEK_SET) == 0 && fputc(0x7f, f) == 0x7f); /* the middle of the embedding */
        fclose(f);
    }
    fingerprint(dir, b);
    T_CHECK(strcmp(a, b) != 0, "changed numbers");
    tb_dir_remove(dir);
}

/* ---- experts in four layouts ---- */

#define MOE_TEXT                                                                                                                                     \
    "\"num_hidden_layers\":1,\"hidden_size\":32,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":8,\"vocab_size\":20,\"num_"         \
    "experts\":3,\"num_experts_per_tok\":2,"                                                                                                         \
    "\"moe_intermediate_size\":4"

static void add_moe_common(tb_st *f)
{
    tb_st_f32(f, "model.embed_tokens.weight", "20,32");
    tb_st_f32(f, "model.norm.weight", "32");
    tb_st_f32(f, "model.layers.0.input_layernorm.weight", "32");
    tb_st_f32(f, "model.layers.0.post_attention_layernorm.weight", "32");
    tb_st_f32(f, "model.layers.0.self_attn.q_proj.weight", "16,32");
    tb_st_f32(f, "model.layers.0.self_attn.k_proj.weight", "8,32");
    tb_st_f32(f, "model.layers.0.self_attn.v_proj.weight", "8,32");
    tb_st_f32(f, "model.layers.0.self_attn.o_proj.weight", "32,16");
    tb_st_f32(f, "model.layers.0.self_attn.q_norm.weight", "8");
    tb_st_f32(f, "model.layers.0.self_attn.k_norm.weight", "8");
    tb_st_f32(f, "model.layers.0.mlp.gate.weight", "3,32");
}

/* Expert e: gate rows are elements [e * 256, +128) of "gu", up rows the next 128, down rows [e * 128, ..) of "d". */
static void check_experts(const char *dir, const char *what)
{
    m5_weights *w = open_ok(dir);
    for (uint64_t e = 0; w && e < 3; e++) {
        const m5_layer_weights *l = &w->layers[0];
        for (uint64_t r = 0; r < 4; r++) {
            T_CHECK(row_is(&l->exp_gate[e], (int64_t)r, "gu", e * 256 + r * 32), "%s gate %d", what, (int)e);
            T_CHECK(row_is(&l->exp_up[e], (int64_t)r, "gu", e * 256 + 128 + r * 32), "%s up %d", what, (int)e);
        }
        for (uint64_t r = 0; r < 32; r++) T_CHECK(row_is(&l->exp_down[e], (int64_t)r, "d", e * 128 + r * 4), "%s down %d", what, (int)e);
        T_CHECK(l->exp_gate[e].n_out == 4 && l->exp_down[e].n_out == 32 && !m5_matrix_present(&l->shared_gate) && !m5_matrix_present(&l->gate));
    }
    m5_weights_close(w);
}

static void test_experts(void)
{
    char dir[64];
    const char config[] = "{\"model_type\":\"qwen3_moe\"," MOE_TEXT "}";
    float gate[3 * 128], up[3 * 128];
    for (int e = 0; e < 3; e++) {
        for (int i = 0; i < 128; i++) {
            gate[e * 128 + i] = tb_value("gu", (uint64_t)(e * 256 + i));
            up[e * 128 + i] = tb_value("gu", (uint64_t)(e * 256 + 128 + i));
        }
    }
    tb_dir(dir);
    tb_write(dir, "config.json", config, sizeof config - 1);
    tb_st f = {{0}, {0}};
    add_moe_common(&f);
    tb_st_from(&f, "model.layers.0.mlp.experts.gate_up_proj", "3,8,32", "gu", 0);
    tb_st_from(&f, "model.layers.0.mlp.experts.down_proj", "3,32,4", "d", 0);
    tb_st_write(&f, dir);
    check_experts(dir, "fused");
    memset(&f, 0, sizeof f);
    add_moe_common(&f);
    for (int e = 0; e < 3; e++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.gate_proj.weight", e);
        tb_st_from(&f, name, "4,32", "gu", (uint64_t)e * 256);
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.up_proj.weight", e);
        tb_st_from(&f, name, "4,32", "gu", (uint64_t)e * 256 + 128);
        snprintf(name, sizeof name, "model.layers.0.mlp.experts.%d.down_proj.weight", e);
        tb_st_from(&f, name, "32,4", "d", (uint64_t)e * 128);
    }
    tb_st_write(&f, dir);
    check_experts(dir, "single");
    memset(&f, 0, sizeof f);
    add_moe_common(&f);
    tb_st_add(&f, "model.layers.0.mlp.switch_mlp.gate_proj.weight", "F32", "3,4,32", gate, sizeof gate);
    tb_st_add(&f, "model.layers.0.mlp.switch_mlp.up_proj.weight", "F32", "3,4,32", up, sizeof up);
    tb_st_from(&f, "model.layers.0.mlp.switch_mlp.down_proj.weight", "3,32,4", "d", 0);
    tb_st_write(&f, dir);
    check_experts(dir, "switch");
    memset(&f, 0, sizeof f);
    add_moe_common(&f);
    tb_st_write(&f, dir);
    open_fails(dir, M5_ERR_FORMAT, "model.layers.0.mlp.experts.0.gate_proj.weight is missing");
    tb_dir_remove(dir);
}

/* ---- Qwen3-Next: fused, interleaved projections; rows move whole in any type ---- */

/* Kh 2, Vh 4, dk 4, dv 6: a group is q 4 | k 4 | v 12 | z 12 rows, and b 2 | a 2. */
static void check_gather(const m5_layer_weights *l, bool (*is)(const m5_matrix *m, int64_t row, int source_row, bool ba))
{
    for (int g = 0; g < 2; g++) {
        for (int i = 0; i < 4; i++) {
            T_CHECK(is(&l->gdn_qkv, g * 4 + i, g * 32 + i, false), "q %d %d", g, i);
            T_CHECK(is(&l->gdn_qkv, 8 + g * 4 + i, g * 32 + 4 + i, false), "k %d %d", g, i);
        }
        for (int i = 0; i < 12; i++) {
            T_CHECK(is(&l->gdn_qkv, 16 + g * 12 + i, g * 32 + 8 + i, false), "v %d %d", g, i);
            T_CHECK(is(&l->gdn_z, g * 12 + i, g * 32 + 20 + i, false), "z %d %d", g, i);
        }
        for (int i = 0; i < 2; i++) {
            T_CHECK(is(&l->gdn_b, g * 2 + i, g * 4 + i, true), "b %d %d", g, i);
            T_CHECK(is(&l->gdn_a, g * 2 + i, g * 4 + 2 + i, true), "a %d %d", g, i);
        }
    }
    T_CHECK(l->gdn_qkv.n_out == 40 && l->gdn_z.n_out == 24 && l->gdn_b.n_out == 4 && l->gdn_a.n_out == 4);
}

static bool plain_row(const m5_matrix *m, int64_t row, int from, bool ba)
{
    return row_is(m, row, ba ? "ba" : "qkvz", (uint64_t)from * 32);
}

/* Four-bit codes of a row: all its own number modulo 16; scale and bias tell the row, too. */
static bool mlx_row(const m5_matrix *m, int64_t row, int from, bool ba)
{
    float v[32], expected = (float)(from % 16) * (ba ? -0.5f : 0.25f) + (float)from;
    m5_matrix_row_f32(m, row, v);
    for (int i = 0; i < 32; i++) {
        if (v[i] != expected) return false;
    }
    return m->type == M5_MLX4 && m->group == 32;
}

static void add_mlx_rows(tb_st *f, const char *module, int n, float scale)
{
    char name[128], shape[32];
    uint32_t codes[64 * 4];
    float scales[64], biases[64];
    for (int r = 0; r < n; r++) {
        for (int i = 0; i < 4; i++) codes[r * 4 + i] = 0x11111111u * (uint32_t)(r % 16);
        scales[r] = scale;
        biases[r] = (float)r;
    }
    snprintf(shape, sizeof shape, "%d,4", n);
    snprintf(name, sizeof name, "%s.weight", module);
    tb_st_add(f, name, "U32", shape, codes, (size_t)n * 16);
    snprintf(shape, sizeof shape, "%d,1", n);
    snprintf(name, sizeof name, "%s.scales", module);
    tb_st_add(f, name, "F32", shape, scales, (size_t)n * 4);
    snprintf(name, sizeof name, "%s.biases", module);
    tb_st_add(f, name, "F32", shape, biases, (size_t)n * 4);
}

static void add_next_common(tb_st *f)
{
#define P "model.layers.0."
    tb_st_f32(f, "model.embed_tokens.weight", "20,32");
    tb_st_f32(f, "model.norm.weight", "32");
    tb_st_f32(f, P "input_layernorm.weight", "32");
    tb_st_f32(f, P "post_attention_layernorm.weight", "32");
    tb_st_f32(f, P "linear_attn.conv1d.weight", "40,1,4");
    tb_st_f32(f, P "linear_attn.A_log", "4");
    tb_st_f32(f, P "linear_attn.dt_bias", "4");
    tb_st_f32(f, P "linear_attn.norm.weight", "6");
    tb_st_f32(f, P "linear_attn.out_proj.weight", "32,24");
    tb_st_f32(f, P "mlp.gate_proj.weight", "12,32");
    tb_st_f32(f, P "mlp.up_proj.weight", "12,32");
    tb_st_f32(f, P "mlp.down_proj.weight", "32,12");
}

static void test_fused(void)
{
    char dir[64];
    const char config[] = "{\"model_type\":\"qwen3_next\",\"num_hidden_layers\":1,\"hidden_size\":32,\"num_attention_heads\":2,\"num_key_value_"
                          "heads\":1,\"head_dim\":8,\"vocab_size\":20,"
                          "\"intermediate_size\":12,\"mlp_only_layers\":[0],\"linear_num_key_heads\":2,\"linear_num_value_heads\":4,\"linear_key_"
                          "head_dim\":4,\"linear_value_head_dim\":6}";
    tb_dir(dir);
    tb_write(dir, "config.json", config, sizeof config - 1);
    tb_st f = {{0}, {0}};
    add_next_common(&f);
    tb_st_from(&f, P "linear_attn.in_proj_qkvz.weight", "64,32", "qkvz", 0);
    tb_st_from(&f, P "linear_attn.in_proj_ba.weight", "8,32", "ba", 0);
    tb_st_write(&f, dir);
    m5_weights *w = open_ok(dir);
    if (w) check_gather(&w->layers[0], plain_row);
    m5_weights_close(w);
    memset(&f, 0, sizeof f);
    add_next_common(&f);
    add_mlx_rows(&f, P "linear_attn.in_proj_qkvz", 64, 0.25f);
    add_mlx_rows(&f, P "linear_attn.in_proj_ba", 8, -0.5f);
    tb_st_write(&f, dir);
    w = open_ok(dir);
    if (w) check_gather(&w->layers[0], mlx_row);
    m5_weights_close(w);
    tb_dir_remove(dir);
}

/* ---- MLX groups: widths from the shapes, config only checked ---- */

static const char *mlx_config(const char *quant, char buf[512])
{
    snprintf(buf, 512,
             "{\"model_type\":\"llama\",\"num_hidden_layers\":1,\"hidden_size\":64,\"num_attention_heads\":2,\"vocab_size\":4,\"intermediate_size\":"
             "64,%s}",
             quant);
    return buf;
}

static void write_mlx(const char *dir, const char *config, int bits, int group)
{
    static const char *const modules[] = {"model.embed_tokens",
                                          "model.layers.0.self_attn.q_proj",
                                          "model.layers.0.self_attn.k_proj",
                                          "model.layers.0.self_attn.v_proj",
                                          "model.layers.0.self_attn.o_proj",
                                          "model.layers.0.mlp.gate_proj",
                                          "model.layers.0.mlp.up_proj",
                                          "model.layers.0.mlp.down_proj"};
    tb_st f = {{0}, {0}};
    uint8_t codes[64 * 64];
    float scales[64 * 2], biases[64 * 2];
    memset(codes, 0xff, sizeof codes); /* every code is the largest: scale * (2^bits - 1) + bias */
    for (int i = 0; i < 128; i++) {
        scales[i] = i % 2 && group == 32 ? -2.0f : 1.0f;
        biases[i] = 0.5f;
    }
    tb_st_f32(&f, "model.norm.weight", "64");
    tb_st_f32(&f, "model.layers.0.input_layernorm.weight", "64");
    tb_st_f32(&f, "model.layers.0.post_attention_layernorm.weight", "64");
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
        char name[96], shape[32];
        int rows = i == 0 ? 4 : 64;
        snprintf(name, sizeof name, "%s.weight", modules[i]);
        snprintf(shape, sizeof shape, "%d,%d", rows, 64 * bits / 32);
        tb_st_add(&f, name, "U32", shape, codes, (size_t)(rows * 64 * bits / 8));
        snprintf(shape, sizeof shape, "%d,%d", rows, 64 / group);
        snprintf(name, sizeof name, "%s.scales", modules[i]);
        tb_st_add(&f, name, "F32", shape, scales, (size_t)(rows * 64 / group) * 4);
        snprintf(name, sizeof name, "%s.biases", modules[i]);
        tb_st_add(&f, name, "F32", shape, biases, (size_t)(rows * 64 / group) * 4);
    }
    tb_st_write(&f, dir);
    tb_write(dir, "config.json", config, strlen(config));
}

static void test_mlx(void)
{
    static const int widths[] = {2, 3, 4, 5, 6, 8};
    char dir[64], buf[512], quant[256];
    tb_dir(dir);
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++) {
        for (int group = 32; group <= 64; group *= 2) {
            snprintf(quant, sizeof quant, "\"quantization\":{\"group_size\":%d,\"bits\":%d,\"mode\":\"affine\"}", group, widths[i]);
            write_mlx(dir, mlx_config(quant, buf), widths[i], group);
            m5_weights *w = open_ok(dir);
            if (w) {
                float v[64], top = (float)((1 << widths[i]) - 1);
                m5_matrix_row_f32(&w->layers[0].down, 63, v);
                T_CHECK(v[0] == top + 0.5f && v[63] == (group == 32 ? -2 * top + 0.5f : top + 0.5f), "%d bits, groups of %d: %g %g", widths[i], group,
                        (double)v[0], (double)v[63]);
                T_CHECK(w->config.tied && w->head.scales == w->embd.scales && w->embd.group == group && w->embd.n_in == 64);
            }
            m5_weights_close(w);
        }
    }
    write_mlx(dir, mlx_config("\"quantization\":{\"group_size\":64,\"bits\":4,\"model.layers.0.mlp.up_proj\":{\"group_size\":64,\"bits\":6}}", buf),
              4, 64);
    open_fails(dir, M5_ERR_FORMAT, "model.layers.0.mlp.up_proj.weight has 4 bits in groups of 64, config.json declares 6 in 64");
    write_mlx(dir, mlx_config("\"quantization\":{\"group_size\":64,\"bits\":4,\"mode\":\"mxfp4\"}", buf), 4, 64);
    open_fails(dir, M5_ERR_UNSUPPORTED, "quantization mode \"mxfp4\"");
    write_mlx(dir, mlx_config("\"tie_word_embeddings\":true", buf), 8, 32); /* nothing declared: scales in the file are enough */
    m5_weights *w = open_ok(dir);
    m5_weights_close(w);
    tb_dir_remove(dir);
}

/* ---- Gemma 4: what no other family has ---- */

static const entry gemma4_layer[] = {
    {"input_layernorm.weight", "attn_norm.weight", "32", "32", 'v'},
    {"post_attention_layernorm.weight", "post_attention_norm.weight", "32", "32", 'v'},
    {"pre_feedforward_layernorm.weight", "ffn_norm.weight", "32", "32", 'v'},
    {"post_feedforward_layernorm.weight", "post_ffw_norm.weight", "32", "32", 'v'},
    {"mlp.gate_proj.weight", "ffn_gate.weight", "12,32", "32,12", 'm'},
    {"mlp.up_proj.weight", "ffn_up.weight", "12,32", "32,12", 'm'},
    {"mlp.down_proj.weight", "ffn_down.weight", "32,12", "12,32", 'm'},
    {"layer_scalar", "layer_output_scale.weight", "1", "1", 'v'},
    {"per_layer_input_gate.weight", "inp_gate.weight", "6,32", "32,6", 'm'},
    {"per_layer_projection.weight", "proj.weight", "32,6", "6,32", 'm'},
    {"post_per_layer_input_norm.weight", "post_norm.weight", "32", "32", 'v'},
    {"router.proj.weight", "ffn_gate_inp.weight", "3,32", "32,3", 'm'},
    {"router.scale", "ffn_gate_inp.scale", "32", "32", 'v'},
    {"router.per_expert_scale", "ffn_down_exps.scale", "3", "3", 'v'},
    {"experts.gate_up_proj", "ffn_gate_up_exps.weight", "3,8,32", "32,8,3", 'm'},
    {"experts.down_proj", "ffn_down_exps.weight", "3,32,4", "4,32,3", 'm'},
    {"post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight", "32", "32", 'v'},
    {"pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight", "32", "32", 'v'},
    {"post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight", "32", "32", 'v'},
    {"self_attn.q_norm.weight", "attn_q_norm.weight", "8", "8", 'v'},
    {"self_attn.q_proj.weight", "attn_q.weight", "16,32", "32,16", 'm'},
    {"self_attn.o_proj.weight", "attn_output.weight", "32,16", "16,32", 'm'},
    {NULL, NULL, NULL, NULL, 0},
};
static const entry gemma4_kv[] = {
    {"self_attn.k_norm.weight", "attn_k_norm.weight", "8", "8", 'v'},
    {"self_attn.k_proj.weight", "attn_k.weight", "8,32", "32,8", 'm'},
    {NULL, NULL, NULL, NULL, 0},
};
static const entry gemma4_v[] = {{"self_attn.v_proj.weight", "attn_v.weight", "8,32", "32,8", 'm'}, {NULL, NULL, NULL, NULL, 0}};
static const entry gemma4_top[] = {
    {"model.embed_tokens.weight", "token_embd.weight", "20,32", "32,20", 'm'},
    {"model.norm.weight", "output_norm.weight", "32", "32", 'v'},
    {"model.embed_tokens_per_layer.weight", "per_layer_token_embd.weight", "20,18", "18,20", 'm'},
    {"model.per_layer_model_projection.weight", "per_layer_model_proj.weight", "18,32", "32,18", 'm'},
    {"model.per_layer_projection_norm.weight", "per_layer_proj_norm.weight", "6", "6", 'v'},
    {NULL, NULL, NULL, NULL, 0},
};

/* Layer 0 slides, layer 1 is full without a v projection, layer 2 is full and shares with layer 1. */
static void check_gemma4(m5_weights *w)
{
    const m5_layer_weights *l = w->layers;
    T_CHECK(m5_matrix_present(&l[0].v) && m5_matrix_present(&l[1].k) && !m5_matrix_present(&l[1].v) && w->config.layers[1].k_is_v);
    T_CHECK(!m5_matrix_present(&l[2].k) && !l[2].k_norm && l[2].q_norm && w->config.layers[2].kv_donor == 1);
    T_CHECK(vector_is(l[0].attn_norm, 32, "model.layers.0.input_layernorm.weight", 0), "no +1 in this family");
    T_CHECK(vector_is(l[1].attn_post_norm, 32, "model.layers.1.post_attention_layernorm.weight", 0) &&
            vector_is(l[1].ffn_post_norm_2, 32, "model.layers.1.post_feedforward_layernorm_2.weight", 0));
    for (int i = 0; i < 32; i++) T_CHECK(l[1].router_scale[i] == tb_value("model.layers.1.router.scale", (uint64_t)i) * (1.0f / sqrtf(32.0f)));
    T_CHECK(vector_is(l[2].expert_scale, 3, "model.layers.2.router.per_expert_scale", 0));
    T_CHECK(l[2].layer_scalar == tb_value("model.layers.2.layer_scalar", 0));
    T_CHECK(matrix_is(&w->ple_embd, "model.embed_tokens_per_layer.weight") &&
            matrix_is(&w->ple_model_proj, "model.per_layer_model_projection.weight"));
    T_CHECK(row_is(&l[1].exp_up[2], 3, "model.layers.1.experts.gate_up_proj", 2 * 256 + 128 + 96) &&
            row_is(&l[1].exp_down[2], 5, "model.layers.1.experts.down_proj", 2 * 128 + 20));
    T_CHECK(matrix_is(&l[0].ple_gate, "model.layers.0.per_layer_input_gate.weight") && w->config.tied && w->config.n_vocab_ple == 20);
    int bound[2] = {0, 0};
    T_CHECK(m5_weights_each_tensor(w, count_bound, bound) == 0 && bound[1] == 0, "%d not bound", bound[1]);
}

static void test_gemma4(void)
{
    char dir[64];
    const char config[] = "{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":3,\"hidden_size\":32,\"num_attention_heads\":2,\"num_key_value_"
                          "heads\":1,\"head_dim\":8,\"global_head_dim\":8,"
                          "\"vocab_size\":20,\"intermediate_size\":12,\"layer_types\":[\"sliding_attention\",\"full_attention\",\"full_attention\"],"
                          "\"num_kv_shared_layers\":1,"
                          "\"attention_k_eq_v\":true,\"enable_moe_block\":true,\"num_experts\":3,\"top_k_experts\":2,\"moe_intermediate_size\":4,"
                          "\"hidden_size_per_layer_input\":6,"
                          "\"vocab_size_per_layer_input\":20}";
    static const int sliding[3] = {1, 0, 0};
    static const struct {
        const char *key;
        uint32_t v;
    } keys[] = {{"block_count", 3},
                {"embedding_length", 32},
                {"feed_forward_length", 12},
                {"attention.head_count", 2},
                {"attention.head_count_kv", 1},
                {"attention.key_length", 8},
                {"attention.value_length", 8},
                {"attention.key_length_swa", 8},
                {"attention.sliding_window", 16},
                {"attention.shared_kv_layers", 1},
                {"embedding_length_per_layer_input", 6},
                {"expert_count", 3},
                {"expert_used_count", 2},
                {"expert_feed_forward_length", 4}};
    tb_st f = {{0}, {0}};
    tb_gguf g;
    m5_buf all = {0};
    memset(&g, 0, sizeof g);
    tb_gtext(&g, "general.architecture", "gemma4");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char key[64];
        snprintf(key, sizeof key, "gemma4.%s", keys[i].key);
        tb_gu32(&g, key, keys[i].v);
    }
    tb_glist(&g, "gemma4.attention.sliding_window_pattern", 7, sliding, 3);
    add_hf(&f, gemma4_top, "", &(variant){0});
    add_gguf(&g, gemma4_top, "", "");
    for (int i = 0; i < 3; i++) {
        char hf[32], blk[32];
        snprintf(hf, sizeof hf, "model.layers.%d.", i);
        snprintf(blk, sizeof blk, "blk.%d.", i);
        add_hf(&f, gemma4_layer, hf, &(variant){0});
        add_gguf(&g, gemma4_layer, blk, hf);
        if (i < 2) add_hf(&f, gemma4_kv, hf, &(variant){0});
        if (i < 2) add_gguf(&g, gemma4_kv, blk, hf);
        if (i < 1) add_hf(&f, gemma4_v, hf, &(variant){0});
        if (i < 1) add_gguf(&g, gemma4_v, blk, hf);
    }
    tb_dir(dir);
    tb_st_write(&f, dir);
    tb_write(dir, "config.json", config, sizeof config - 1);
    m5_weights *w = open_ok(dir);
    if (w) check_gemma4(w);
    m5_weights_close(w);
    tb_dir_remove(dir);
    tb_dir(dir);
    tb_gfinish(&g, &all);
    tb_write(dir, "g.gguf", all.p, all.n);
    m5_buf_free(&all);
    w = open_ok(dir);
    if (w) check_gemma4(w);
    m5_weights_close(w);
    tb_dir_remove(dir);
}

/* ---- GGUF: joined q, k, v; old fused ssm_in ---- */

static void write_qwen2(const char *dir, uint32_t gate_type)
{
    tb_gguf g;
    m5_buf all = {0};
    memset(&g, 0, sizeof g);
    tb_gtext(&g, "general.architecture", "qwen2");
    tb_gu32(&g, "qwen2.block_count", 1);
    tb_gu32(&g, "qwen2.embedding_length", 32);
    tb_gu32(&g, "qwen2.feed_forward_length", 12);
    tb_gu32(&g, "qwen2.attention.head_count", 2);
    tb_gu32(&g, "qwen2.attention.head_count_kv", 1);
    tb_gfrom(&g, "token_embd.weight", "32,20", "e", 0);
    tb_gfrom(&g, "output_norm.weight", "32", "n", 0);
    tb_gfrom(&g, "blk.0.attn_norm.weight", "32", "n", 0);
    tb_gfrom(&g, "blk.0.ffn_norm.weight", "32", "n", 0);
    tb_gfrom(&g, "blk.0.attn_qkv.weight", "32,64", "qkv", 0);
    tb_gfrom(&g, "blk.0.attn_qkv.bias", "64", "qkvb", 0);
    tb_gfrom(&g, "blk.0.attn_output.weight", "32,32", "o", 0);
    tb_gfrom(&g, "blk.0.ffn_up.weight", "32,12", "u", 0);
    tb_gfrom(&g, "blk.0.ffn_down.weight", "12,32", "d", 0);
    if (gate_type == 0)
        tb_gfrom(&g, "blk.0.ffn_gate.weight", "32,12", "g", 0);
    else
        tb_gtensor(&g, "blk.0.ffn_gate.weight", gate_type, "32,12", "", 0);
    /* Nothing is known of the size of such a tensor; it is in nobody's way unless the model needs it. */
    tb_gtensor(&g, "blk.0.odd", 99, "4294967296,4294967296,4294967296", "", 0);
    tb_gfinish(&g, &all);
    tb_write(dir, "g.gguf", all.p, all.n);
    m5_buf_free(&all);
}

static void test_gguf_joined(void)
{
    char dir[64];
    tb_dir(dir);
    write_qwen2(dir, 0);
    m5_weights *w = open_ok(dir);
    if (w) {
        const m5_layer_weights *l = &w->layers[0];
        T_CHECK(l->q.n_out == 32 && row_is(&l->k, 0, "qkv", 32 * 32) && row_is(&l->v, 15, "qkv", 63 * 32));
        T_CHECK(l->v_bias && l->v_bias[15] == tb_value("qkvb", 63));
    }
    m5_weights_close(w);
    write_qwen2(dir, 16);
    open_fails(dir, M5_ERR_UNSUPPORTED, "g.gguf: tensor blk.0.ffn_gate.weight is stored as type 16 (IQ2_XXS), which is not supported for a matrix");
    tb_dir_remove(dir);
}

/* Old Qwen3-Next conversions keep the interleaved projections under their own names. */
static void test_gguf_fused(void)
{
    static const struct {
        const char *key;
        uint32_t v;
    } keys[] = {
        {"block_count", 1},     {"embedding_length", 32}, {"feed_forward_length", 12}, {"attention.head_count", 2},  {"attention.head_count_kv", 1},
        {"ssm.conv_kernel", 4}, {"ssm.state_size", 4},    {"ssm.group_count", 2},      {"ssm.time_step_rank", 4},    {"ssm.inner_size", 24},
        {"expert_count", 3},    {"expert_used_count", 2}, {"attention.key_length", 8}, {"attention.value_length", 8}};
    static const struct {
        const char *name, *dims, *source;
    } tensors[] = {{"token_embd.weight", "32,20", "e"},      {"output_norm.weight", "32", "n"},
                   {"blk.0.attn_norm.weight", "32", "n"},    {"blk.0.post_attention_norm.weight", "32", "n"},
                   {"blk.0.ssm_in.weight", "32,64", "qkvz"}, {"blk.0.ssm_ba.weight", "32,8", "ba"},
                   {"blk.0.ssm_conv1d.weight", "4,40", "c"}, {"blk.0.ssm_a", "4", "a"},
                   {"blk.0.ssm_dt.bias", "4", "t"},          {"blk.0.ssm_norm.weight", "6", "s"},
                   {"blk.0.ssm_out.weight", "24,32", "o"},   {"blk.0.ffn_gate.weight", "32,12", "g"},
                   {"blk.0.ffn_up.weight", "32,12", "u"},    {"blk.0.ffn_down.weight", "12,32", "d"}};
    char dir[64];
    tb_gguf g;
    m5_buf all = {0};
    memset(&g, 0, sizeof g);
    tb_gtext(&g, "general.architecture", "qwen3next");
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        char key[64];
        snprintf(key, sizeof key, "qwen3next.%s", keys[i].key);
        tb_gu32(&g, key, keys[i].v);
    }
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) tb_gfrom(&g, tensors[i].name, tensors[i].dims, tensors[i].source, 0);
    tb_gfinish(&g, &all);
    tb_dir(dir);
    tb_write(dir, "g.gguf", all.p, all.n);
    m5_buf_free(&all);
    m5_weights *w = open_ok(dir);
    if (w) {
        check_gather(&w->layers[0], plain_row);
        T_CHECK(!w->config.gdn_tiled && w->layers[0].gdn_a_neg[0] == tb_value("a", 0), "this family is not re-ordered, and a is final");
    }
    m5_weights_close(w);
    tb_dir_remove(dir);
}

/* Every allocation of an opening fails once: an error each time, and all memory comes back. */
static void test_no_memory(void)
{
    char dir[64];
    tb_dir(dir);
    write_qwen35(dir, &(variant){0}, qwen35_config);
    tb_write(dir, "tokenizer.json", "{}", 2);
    tb_write(dir, "chat_template.jinja", "J", 1);
    size_t before = 0;
    for (int k = 0; k < M5_MEM_KIND_COUNT; k++) before += m5_mem_bytes((m5_mem_kind)k);
    int rc = M5_ERR_NOMEM, n_failed = 0;
    for (uint64_t n = 1; n < 5000; n++) {
        m5_weights *w = NULL;
        m5_mem_fail_at(n);
        rc = m5_weights_open(&w, dir, &err);
        m5_mem_fail_at(0);
        bool whole = rc == 0 && w->layers && w->fingerprint[0];
        T_CHECK((rc != 0 && !w) || whole, "allocation %d: rc %d", (int)n, rc);
        n_failed += rc != 0;
        m5_weights_close(w);
        size_t after = 0;
        for (int k = 0; k < M5_MEM_KIND_COUNT; k++) after += m5_mem_bytes((m5_mem_kind)k);
        if (after != before) {
            T_CHECK(after == before, "allocation %d leaks %d bytes", (int)n, (int)(after - before));
            break;
        }
        if (rc == 0 && n > 400) break;
    }
    T_CHECK(rc == 0 && n_failed > 50, "%d failures", n_failed);
    tb_dir_remove(dir);
}

int main(void)
{
    test_containers();
    test_errors();
    test_paths();
    test_texts();
    test_experts();
    test_fused();
    test_mlx();
    test_gemma4();
    test_gguf_joined();
    test_gguf_fused();
    test_no_memory();
    return t_done();
}
