/* SPDX-License-Identifier: Apache-2.0 */
/* The shape and the traits of a model, after everything a file may leave out has been filled in. One struct serves every family; the
 * forward pass reads only this and the bound weights, never a file's keys. Room: model/config.c and model/families/<family>.c. */
#ifndef M5_MODEL_CONFIG_H
#define M5_MODEL_CONFIG_H

#include "base/err.h"
#include "base/json.h"

#include <stdbool.h>
#include <stdint.h>

struct m5_gguf;

enum { M5_MAX_LAYERS = 512, M5_MAX_EOS = 16, M5_MAX_ROPES = 4 };

typedef enum m5_mixer_kind { M5_MIX_ATTN, M5_MIX_GDN } m5_mixer_kind;
typedef enum m5_act_kind { M5_ACT_SILU, M5_ACT_GELU_TANH } m5_act_kind;
typedef enum m5_ffn_kind { M5_FFN_DENSE, M5_FFN_MOE, M5_FFN_DENSE_AND_MOE /* gemma4 */ } m5_ffn_kind;

/* Rotary embedding in its final form: scaling (linear, llama3, yarn, proportional) is already in inv_freq and attn_factor. */
typedef struct m5_rope {
    int n_rot;         /* rotary width r: components [0, r) rotate, the rest passes through */
    bool pairs;        /* true: adjacent pairs (2j, 2j+1), GGUF llama; false: half-split (j, j + r/2) */
    float *inv_freq;   /* [n_rot / 2] */
    float attn_factor; /* multiplied into cos and sin */
} m5_rope;

typedef struct m5_layer_config {
    m5_mixer_kind mixer;
    m5_ffn_kind ffn;
    int n_head, n_head_kv, head_dim; /* attention layers */
    int window;                      /* keys visible incl. the token itself; 0 = all */
    int rope;                        /* index into ropes, -1 = no rotation */
    int kv_donor;                    /* layer whose K and V this one reads; own index normally; < own index: no k/v weights */
    bool k_is_v;                     /* no v projection: V is the raw k projection (gemma4 attention_k_eq_v) */
    int n_ffn;                       /* dense width */
} m5_layer_config;

typedef struct m5_config {
    char family[32]; /* row name in the family table: "qwen3_5", "gemma3", ... */
    char name[128];  /* general.name or folder name, for people */
    int n_layer;     /* without MTP blocks */
    int n_embd, n_vocab;
    int n_ctx_train; /* max_position_embeddings */
    float rms_eps;
    m5_act_kind act;
    float embd_scale;    /* 1, or sqrt(n_embd) for gemma */
    float final_softcap; /* 0 = none */
    bool tied;           /* head = embedding table */
    m5_rope ropes[M5_MAX_ROPES];
    int n_rope;
    m5_layer_config layers[M5_MAX_LAYERS];

    /* attention traits */
    float attn_scale;       /* <= 0: head_dim^-0.5 of the layer */
    float attn_softcap;     /* 0 = none */
    bool attn_gate;         /* q projection is [n_head, 2 * head_dim] = query then gate per head (Qwen3.5, Qwen3-Next) */
    bool v_norm;            /* weightless RMSNorm on v (gemma4) */
    float q_pos_scale_beta; /* ministral3: q *= 1 + beta * ln(1 + floor(pos / q_pos_scale_len)) after rope; 0 = off */
    int q_pos_scale_len;

    /* gated delta net */
    int gdn_n_k_head, gdn_n_v_head, gdn_k_dim, gdn_v_dim, gdn_conv; /* conv = kernel width, 4 */
    bool gdn_tiled; /* true: value head h uses key head h % n_k_head (GGUF qwen35); false: h / (n_v / n_k) */

    /* mixture of experts */
    int n_expert, n_expert_used, n_ffn_expert, n_ffn_shared; /* n_ffn_shared 0 = no shared expert */
    bool expert_renorm;                                      /* divide the chosen weights by their sum */

    /* gemma 4 */
    int n_ple; /* width of per-layer embeddings, 0 = none */
    int n_vocab_ple;

    /* next-token head (Qwen3.5 mtp): number of extra blocks, 0 or 1 */
    int n_mtp;
    m5_layer_config mtp_layer;

    /* What the model's author advises; a field below 0 is not given. From generation_config.json or general.sampling.* of GGUF. */
    struct m5_author_sampling {
        float temperature, top_p, min_p, repetition_penalty;
        int top_k;
    } author;

    int32_t eos[M5_MAX_EOS]; /* union of every place that names end tokens */
    int n_eos;
} m5_config;

/* Fill *c, which must be uninitialised or zeroed; everything is checked: sizes positive and bounded, heads divisible, list lengths right, and every
 * value that this build cannot honour is an error that names the key and the value. Owner: caller, m5_config_deinit (also after an error, when *c
 * is zeroed). Errors: M5_ERR_FORMAT, M5_ERR_UNSUPPORTED, M5_ERR_NOMEM.
 *
 * From a folder: config is config.json; generation is generation_config.json or NULL (end tokens and the author's sampling). */
int m5_config_from_hf(m5_config *c, const m5_json *config, const m5_json *generation, m5_error *err);
/* From GGUF metadata; also looks at a few tensors (rope_freqs, which kind of mixer a block has). */
int m5_config_from_gguf(m5_config *c, const struct m5_gguf *g, m5_error *err);
void m5_config_deinit(m5_config *c);
/* Adds an end token unless it is known, negative or beyond the room for them. */
void m5_config_add_eos(m5_config *c, int64_t id);

/* Sizes that follow from the shape, in elements. gdn_channels = 2 * Kh * dk + Vh * dv. */
int64_t m5_config_gdn_channels(const m5_config *c);
/* KV values (K and V together) that one token adds over all layers, without the MTP block; shared layers add none. */
int64_t m5_config_kv_values_per_tok(const m5_config *c);
/* f32 values of one sequence's recurrent state: S and conv tail of all GDN layers. */
int64_t m5_config_row_values(const m5_config *c);

#endif
