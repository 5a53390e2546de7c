/* SPDX-License-Identifier: Apache-2.0 */
/* `inspect`: what a model file is, what it needs, and how it will run here. Opens the weights (mapped, not read), runs nothing. */
#include "cli/cli.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/task.h"
#include "backend/cpu.h"
#include "engine/vocab.h"
#include "model/weights.h"

#include <stdio.h>
#include <string.h>

typedef struct type_row {
    m5_dtype type;
    int n;
    uint64_t n_params, bytes;
    const char *path;
} type_row;

typedef struct inspection {
    m5_cpu *cpu;
    type_row rows[M5_DTYPE_COUNT];
    m5_json *tensors;        /* for --json */
    bool list;               /* print while going through */
} inspection;

static uint64_t matrix_bytes(const m5_matrix *m)
{
    uint64_t n = (uint64_t)m->n_out * (uint64_t)m->row_bytes;
    if (m->scales && m->group > 0) {
        uint64_t per = (uint64_t)m5_dtype_get(m->scale_type)->block_bytes * (m->biases ? 2 : 1);
        n += (uint64_t)m->n_out * (uint64_t)(m->n_in / m->group) * per;
    }
    return n;
}

/* Prepares a few rows as the engine would the whole, and asks what came of it. */
static const char *path_of(const inspection *in, const m5_matrix *m)
{
    m5_matrix few = m5_matrix_rows(m, 0, m->n_out < 64 ? m->n_out : 64);
    m5_cpu_prepare(in->cpu, &few);
    return m5_cpu_path_name(in->cpu, &few);
}

static int on_matrix(void *ctx, const char *name, m5_matrix *m)
{
    inspection *in = ctx;
    if (!m5_matrix_present(m)) return 0;
    type_row *r = &in->rows[m->type];
    if (!r->n) r->path = path_of(in, m);
    r->type = m->type;
    r->n++;
    r->n_params += (uint64_t)m->n_out * (uint64_t)m->n_in;
    r->bytes += matrix_bytes(m);
    if (in->list) printf("  %-44s %-6s %8lld x %lld\n", name, m5_dtype_get(m->type)->name, (long long)m->n_out, (long long)m->n_in);
    if (in->tensors) {
        m5_json *t = m5_json_new_object();
        m5_json *shape = m5_json_new_array();
        m5_json_push_take(shape, m5_json_new_int(m->n_out));
        m5_json_push_take(shape, m5_json_new_int(m->n_in));
        m5_json_set_str(t, "name", name);
        m5_json_set_str(t, "type", m5_dtype_get(m->type)->name);
        m5_json_set_take(t, "shape", shape);
        m5_json_set_int(t, "bytes", (int64_t)matrix_bytes(m));
        return m5_json_push_take(in->tensors, t);
    }
    return 0;
}

/* Bytes of keys and values a token adds, as the default type keeps them, and of the recurrent state of one sequence. */
static void state_need(const m5_config *c, uint64_t *per_tok, uint64_t *fixed)
{
    *per_tok = *fixed = 0;
    for (int i = 0; i < c->n_layer; i++) {
        const m5_layer_config *l = &c->layers[i];
        if (l->mixer == M5_MIX_GDN) {
            uint64_t channels = 2u * (uint64_t)c->gdn_n_k_head * (uint64_t)c->gdn_k_dim + (uint64_t)c->gdn_n_v_head * (uint64_t)c->gdn_v_dim;
            *fixed += 4 * ((uint64_t)c->gdn_n_v_head * (uint64_t)c->gdn_k_dim * (uint64_t)c->gdn_v_dim + channels * (uint64_t)(c->gdn_conv - 1));
        } else if (l->kv_donor == i) {
            *per_tok += 2 * m5_kv_row_bytes(M5_KV_I16, l->n_head_kv, l->head_dim);
        }
    }
}

static int count_mixer(const m5_config *c, m5_mixer_kind kind)
{
    int n = 0;
    for (int i = 0; i < c->n_layer; i++) n += c->layers[i].mixer == kind;
    return n;
}

static int max_window(const m5_config *c)
{
    int w = 0;
    for (int i = 0; i < c->n_layer; i++)
        if (c->layers[i].mixer == M5_MIX_ATTN && c->layers[i].window > w) w = c->layers[i].window;
    return w;
}

static const m5_layer_config *first_attention(const m5_config *c)
{
    for (int i = 0; i < c->n_layer; i++)
        if (c->layers[i].mixer == M5_MIX_ATTN) return &c->layers[i];
    return NULL;
}

static void print_text(const m5_weights *w, const m5_tokenizer *t, const char *tokenizer_error, const inspection *in)
{
    const m5_config *c = &w->config;
    const m5_layer_config *a = first_attention(c);
    char b1[32], b2[32], b3[32];
    uint64_t per_tok, fixed;
    state_need(c, &per_tok, &fixed);
    printf("\n%s\n", c->name[0] ? c->name : "(no name)");
    printf("  family        %s, from %s\n", c->family, w->format);
    printf("  parameters    %.3f billion, %s on disk\n", (double)w->n_params / 1e9, m5_cli_bytes(b1, w->file_bytes));
    printf("  layers        %d", c->n_layer);
    if (count_mixer(c, M5_MIX_GDN)) printf(" (%d attention, %d gated delta net)", count_mixer(c, M5_MIX_ATTN), count_mixer(c, M5_MIX_GDN));
    printf(", width %d\n", c->n_embd);
    if (a) printf("  attention     %d heads of %d, %d for keys and values%s\n", a->n_head, a->head_dim, a->n_head_kv, max_window(c) ? ", some layers see a window" : "");
    if (max_window(c)) printf("  window        %d tokens\n", max_window(c));
    if (c->n_expert) printf("  experts       %d, %d used for a token%s\n", c->n_expert, c->n_expert_used, c->n_ffn_shared ? ", and a shared one" : "");
    if (c->n_mtp) printf("  drafting      the model brings a next-token head\n");
    printf("  vocabulary    %d rows%s\n", c->n_vocab, c->tied ? ", shared with the output" : "");
    printf("  context       trained for %d tokens\n", c->n_ctx_train);
    if (t)
        printf("  tokenizer     %d tokens%s\n", (int)m5_tokenizer_n_vocab(t), m5_tokenizer_adds_bos(t) ? ", begins text with a begin token" : "");
    else
        printf("  tokenizer     %s\n", tokenizer_error[0] ? tokenizer_error : "none");
    printf("  template      %s%s\n", w->chat_template ? "the model's own" : "none (ChatML stands in)", w->tool_template ? ", and one for tools" : "");
    printf("  end tokens   ");
    for (int i = 0; i < c->n_eos; i++) printf(" %d", (int)c->eos[i]);
    printf("%s\n", c->n_eos ? "" : " none");
    printf("  memory        weights %s", m5_cli_bytes(b1, w->file_bytes));
    printf(" + %s for each token of context", m5_cli_bytes(b2, per_tok));
    if (fixed) printf(" + %s for each sequence", m5_cli_bytes(b3, fixed));
    printf("\n                = %s at 8192 tokens, of %s\n", m5_cli_bytes(b1, w->file_bytes + per_tok * 8192 + fixed), m5_cli_bytes(b2, m5_memory_total_bytes()));
    printf("  runs on       %s, %d threads\n\n", m5_cpu_isa_name(in->cpu), m5_pool_size(m5_cpu_pool(in->cpu)));
    printf("  %-8s %8s %14s %12s  %s\n", "type", "matrices", "parameters", "size", "runs");
    for (int i = 0; i < M5_DTYPE_COUNT; i++) {
        const type_row *r = &in->rows[i];
        if (r->n) printf("  %-8s %8d %14llu %12s  %s\n", m5_dtype_get(r->type)->name, r->n, (unsigned long long)r->n_params, m5_cli_bytes(b1, r->bytes), r->path);
    }
}

static m5_json *config_json(const m5_config *c)
{
    m5_json *j = m5_json_new_object(), *eos = m5_json_new_array();
    const m5_layer_config *a = first_attention(c);
    m5_json_set_int(j, "n_layer", c->n_layer);
    m5_json_set_int(j, "n_layer_attention", count_mixer(c, M5_MIX_ATTN));
    m5_json_set_int(j, "n_layer_gdn", count_mixer(c, M5_MIX_GDN));
    m5_json_set_int(j, "n_embd", c->n_embd);
    m5_json_set_int(j, "n_vocab", c->n_vocab);
    m5_json_set_int(j, "n_ctx_train", c->n_ctx_train);
    m5_json_set_int(j, "n_head", a ? a->n_head : 0);
    m5_json_set_int(j, "n_head_kv", a ? a->n_head_kv : 0);
    m5_json_set_int(j, "head_dim", a ? a->head_dim : 0);
    m5_json_set_int(j, "window", max_window(c));
    m5_json_set_int(j, "n_expert", c->n_expert);
    m5_json_set_int(j, "n_expert_used", c->n_expert_used);
    m5_json_set_int(j, "n_mtp", c->n_mtp);
    m5_json_set_bool(j, "tied", c->tied);
    for (int i = 0; i < c->n_eos; i++) m5_json_push_take(eos, m5_json_new_int(c->eos[i]));
    m5_json_set_take(j, "eos", eos);
    return j;
}

static void print_json(const m5_weights *w, const m5_tokenizer *t, inspection *in)
{
    m5_json *j = m5_json_new_object(), *types = m5_json_new_array(), *tok = t ? m5_json_new_object() : m5_json_new_null(), *memory = m5_json_new_object();
    uint64_t per_tok, fixed;
    m5_buf out = {0};
    state_need(&w->config, &per_tok, &fixed);
    m5_json_set_str(j, "name", w->config.name);
    m5_json_set_str(j, "family", w->config.family);
    m5_json_set_str(j, "format", w->format);
    m5_json_set_str(j, "fingerprint", w->fingerprint);
    m5_json_set_int(j, "n_params", (int64_t)w->n_params);
    m5_json_set_int(j, "file_bytes", (int64_t)w->file_bytes);
    m5_json_set_take(j, "config", config_json(&w->config));
    if (t) {
        m5_json_set_int(tok, "n_vocab", m5_tokenizer_n_vocab(t));
        m5_json_set_int(tok, "bos", m5_tokenizer_bos(t));
        m5_json_set_bool(tok, "adds_bos", m5_tokenizer_adds_bos(t));
    }
    m5_json_set_take(j, "tokenizer", tok);
    m5_json_set_take(j, "chat_template", w->chat_template ? m5_json_new_str(w->chat_template, strlen(w->chat_template)) : m5_json_new_null());
    m5_json_set_int(memory, "weight_bytes", (int64_t)w->file_bytes);
    m5_json_set_int(memory, "kv_bytes_per_token", (int64_t)per_tok);
    m5_json_set_int(memory, "row_bytes", (int64_t)fixed);
    m5_json_set_int(memory, "machine_bytes", (int64_t)m5_memory_total_bytes());
    m5_json_set_take(j, "memory", memory);
    m5_json_set_str(j, "isa", m5_cpu_isa_name(in->cpu));
    for (int i = 0; i < M5_DTYPE_COUNT; i++) {
        const type_row *r = &in->rows[i];
        if (!r->n) continue;
        m5_json *row = m5_json_new_object();
        m5_json_set_str(row, "type", m5_dtype_get(r->type)->name);
        m5_json_set_int(row, "n", r->n);
        m5_json_set_int(row, "n_params", (int64_t)r->n_params);
        m5_json_set_int(row, "bytes", (int64_t)r->bytes);
        m5_json_set_str(row, "runs", r->path);
        m5_json_push_take(types, row);
    }
    m5_json_set_take(j, "types", types);
    m5_json_set_take(j, "matrices", in->tensors);
    in->tensors = NULL;
    m5_json_write(&out, j, 2);
    puts(out.p ? out.p : "{}");
    m5_buf_free(&out);
    m5_json_unref(j);
}

int m5_cmd_inspect(const m5_cli_opts *o)
{
    m5_error err = {0}, tok_err = {0};
    m5_weights *w = NULL;
    m5_tokenizer *t = NULL;
    inspection in = {.list = o->tensors && !o->json};
    m5_engine_options eo;
    m5_cli_load load;
    const char *path = o->model ? o->model : o->args.items[0];
    if (!path || o->args.n > (o->model ? 0 : 1)) return m5_cli_usage("one model is needed: m5-infer inspect MODEL");
    int rc = m5_cli_engine_options(&eo, o, &load);
    m5_cli_load_deinit(&load);
    if (rc) return rc;
    m5_cpu_options co = {.n_threads = 0, .cpu_mask = eo.cpu_mask ? eo.cpu_mask : 0xffffffffu};
    int code = m5_weights_open(&w, path, &err);
    if (!code) code = m5_cpu_open(&in.cpu, &co, &err);
    if (code) {
        rc = m5_cli_fail(&err);
        goto out;
    }
    /* A model that cannot speak is still worth describing. */
    if (m5_vocab_tokenizer(&t, w, &tok_err)) t = NULL;
    if (o->json) in.tensors = m5_json_new_array();
    if ((code = m5_weights_each_matrix(w, on_matrix, &in))) {
        m5_error_set(&err, code, "out of memory for the list of matrices");
        rc = m5_cli_fail(&err);
    } else if (o->json) {
        print_json(w, t, &in);
    } else {
        print_text(w, t, tok_err.text, &in);
    }
out:
    m5_json_unref(in.tensors);
    m5_tokenizer_free(t);
    m5_cpu_close(in.cpu);
    m5_weights_close(w);
    return rc;
}
