/* SPDX-License-Identifier: Apache-2.0 */
/* Bound weights: every pointer the forward pass needs, shape-checked, in one canonical form whatever the file's conventions.
 *
 * Canonical form: norm weights are f32 and already hold the +1 of zero-centred families (the forward multiplies, never adds 1);
 * conv is f32 [channels, kernel]; a is -exp(A_log); q/k rows stay as in the file (config.ropes[].pairs tells the rotation); fused
 * projections are split into row views or gathered once. Owner: the model, until m5_weights_close. */
#ifndef M5_MODEL_WEIGHTS_H
#define M5_MODEL_WEIGHTS_H

#include "base/err.h"
#include "base/json.h"
#include "kernels/quant.h"
#include "model/config.h"

typedef struct m5_layer_weights {
    const float *attn_norm;      /* input_layernorm [n_embd] */
    const float *attn_post_norm; /* gemma: norm of the attention output, else NULL */
    const float *ffn_norm;       /* pre-FFN norm */
    const float *ffn_post_norm;  /* gemma, else NULL */

    /* attention */
    m5_matrix q, k, v, o;                           /* v absent with k_eq_v: V is the raw k projection */
    const float *q_bias, *k_bias, *v_bias, *o_bias; /* NULL when absent */
    const float *q_norm, *k_norm;                   /* [head_dim] or NULL */

    /* gated delta net */
    m5_matrix gdn_qkv, gdn_z, gdn_b, gdn_a, gdn_out;
    const float *gdn_conv;    /* [2 * Kh*dk + Vh*dv, conv] */
    const float *gdn_a_neg;   /* [Vh] = -exp(A_log) */
    const float *gdn_dt_bias; /* [Vh] */
    const float *gdn_norm;    /* [dv], plain */

    /* dense FFN */
    m5_matrix gate, up, down;
    const float *gate_bias, *up_bias, *down_bias;

    /* mixture of experts */
    m5_matrix router;                        /* [n_expert, n_embd] */
    m5_matrix *exp_gate, *exp_up, *exp_down; /* [n_expert] each */
    m5_matrix shared_gate, shared_up, shared_down;
    m5_matrix shared_router; /* [1, n_embd]; sigmoid of it scales the shared expert; absent = 1 */

    /* gemma 4 */
    const float *router_scale; /* [n_embd], already times n_embd^-0.5 */
    const float *expert_scale; /* [n_expert] */
    const float *ffn_post_norm_1, *ffn_pre_norm_2, *ffn_post_norm_2;
    m5_matrix ple_gate, ple_proj;
    const float *ple_post_norm;
    float layer_scalar; /* 1 unless the file says otherwise */
} m5_layer_weights;

typedef struct m5_mtp_weights {
    m5_matrix fc; /* [n_embd, 2 * n_embd]: embedding half first */
    const float *embd_norm, *hidden_norm, *out_norm;
    m5_matrix embd, head; /* absent = the model's own */
    m5_layer_weights layer;
} m5_mtp_weights;

typedef struct m5_weights {
    m5_config config;
    m5_matrix embd; /* [n_vocab, n_embd] */
    m5_matrix head; /* the same matrix when tied */
    const float *out_norm;
    m5_matrix ple_embd;         /* [n_vocab_ple, n_layer * n_ple] */
    m5_matrix ple_model_proj;   /* [n_layer * n_ple, n_embd] */
    const float *ple_proj_norm; /* [n_ple] */
    m5_layer_weights *layers;   /* [n_layer] */
    m5_mtp_weights mtp;         /* valid when config.n_mtp > 0 */

    /* Text side of the file, for text/: exactly one of tokenizer_json and gguf_meta is set. */
    char *tokenizer_json; /* bytes of tokenizer.json, or NULL */
    size_t n_tokenizer_json;
    char *chat_template;        /* the model's own template, NUL-terminated, or NULL */
    char *tool_template;        /* a separate tool_use template, or NULL */
    m5_json *tokenizer_config;  /* tokenizer_config.json or NULL */
    const struct m5_gguf *gguf; /* the opened GGUF (first split), or NULL */

    uint64_t file_bytes; /* of all weight files */
    uint64_t n_params;
    char format[16];                /* "gguf", "safetensors", "mlx" */
    char fingerprint[65];           /* hex: changes when weights, config, tokenizer or template change; cheap (sizes, mtimes, headers, samples) */
    struct m5_weights_store *store; /* mappings and own memory */
} m5_weights;

/* Opens a .gguf file (also the first of a split), a folder with safetensors, or a folder with one GGUF. Errors name tensor and file;
 * on error *out is NULL. The weights are mapped, not read. */
int m5_weights_open(m5_weights **out, const char *path, m5_error *err);
void m5_weights_close(m5_weights *w);

/* Every matrix of the model, each once: "embd", "ple_embd" (both read row by row, never multiplied), "ple_model_proj", then per layer "layers.3.q",
 * "layers.3.experts.7.down" and so on, "head" (with tied weights a second view of the embedding), "mtp.fc", "mtp.layer.q", .... For repacking and
 * inspection. fn returns 0 to go on; anything else ends the walk and is returned. */
typedef int (*m5_matrix_fn)(void *ctx, const char *name, m5_matrix *m);
int m5_weights_each_matrix(m5_weights *w, m5_matrix_fn fn, void *ctx);

/* Every tensor of the files as they are, in file order, for inspection. */
typedef struct m5_tensor_info {
    const char *name, *type, *path; /* borrowed for the call */
    int n_dims;
    const int64_t *shape; /* outermost first, whatever the container */
    size_t n_bytes;
    bool bound; /* used by the model; false for vision towers and the like */
} m5_tensor_info;
typedef int (*m5_tensor_fn)(void *ctx, const m5_tensor_info *t);
int m5_weights_each_tensor(const m5_weights *w, m5_tensor_fn fn, void *ctx);

#endif
