/* SPDX-License-Identifier: Apache-2.0 */
/* What a model family is made of: the names it goes by, two functions that read its configuration (one per container), and lists of weight slots.
 * A family is one file here plus one row in families.c; binding, forward pass and tools know no family by name.
 * Room: model/families/. May touch: base, kernels/quant.h, model/config.h, model/weights.h, model/gguf.h. See docs/models/adding-a-family.md. */
#ifndef M5_MODEL_FAMILIES_FAMILY_H
#define M5_MODEL_FAMILIES_FAMILY_H

#include "base/err.h"
#include "base/json.h"
#include "model/config.h"
#include "model/gguf.h"
#include "model/weights.h"

/* ---- reading a configuration ------------------------------------------------------------------------------------------------------------- */

/* Where values come from: json (an object of config.json) or gguf (keys get "<arch>." in front). The first error sticks in *rc and *err and every
 * later read returns its default, so a family reads freely and the caller checks once. */
typedef struct m5_source {
    const m5_json *json; /* the text part of config.json, or a nested object of it */
    const m5_json *top;  /* config.json itself */
    const struct m5_gguf *gguf;
    char path[64]; /* GGUF: architecture; JSON: names of the objects above, "text_config.rope_parameters." */
    int *rc;
    m5_error *err;
} m5_source;

#define M5_REQUIRED INT64_MIN /* as the default of m5_src_int: the key must be there */

bool m5_src_has(const m5_source *s, const char *key);     /* present and not null */
bool m5_src_is_null(const m5_source *s, const char *key); /* present as an explicit null */
/* A value outside [min, max] or of another type is an error; null counts as absent. The default is not checked. */
int m5_src_int(m5_source *s, const char *key, int64_t absent, int64_t min, int64_t max);
double m5_src_real(m5_source *s, const char *key, double absent, double min, double max);
bool m5_src_bool(m5_source *s, const char *key, bool absent);
m5_slice m5_src_str(m5_source *s, const char *key); /* empty when absent */
/* A scalar for all layers, or element `layer` of a list that must have at least n_layer elements. */
int m5_src_layer_int(m5_source *s, const char *key, int layer, int n_layer, int64_t absent, int64_t min, int64_t max);
/* A nested object; json NULL in the result when absent. */
m5_source m5_src_sub(m5_source *s, const char *key);
/* Records an error once; returns the error in force. */
int m5_src_fail(m5_source *s, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static inline bool m5_src_ok(const m5_source *s)
{
    return *s->rc == 0;
}

/* Bounds shared by all families: far above every published model, far below anything whose products could overflow int64. */
enum {
    M5_MAX_EMBD = 1 << 17,
    M5_MAX_HEADS = 1024,
    M5_MAX_HEAD_DIM = 1024,
    M5_MAX_FFN = 1 << 20,
    M5_MAX_VOCAB = 1 << 22,
    M5_MAX_EXPERTS = 2048,
    M5_MAX_CTX = 1 << 28
};

/* ---- rotary embedding -------------------------------------------------------------------------------------------------------------------- */

typedef enum m5_rope_kind { M5_ROPE_DEFAULT, M5_ROPE_LINEAR, M5_ROPE_LLAMA3, M5_ROPE_YARN, M5_ROPE_PROPORTIONAL } m5_rope_kind;

typedef struct m5_rope_spec {
    m5_rope_kind kind;
    int head_dim;
    double partial; /* rotary share of head_dim */
    int n_rot;      /* 0: int(head_dim * partial); proportional rotates the whole head with zero frequencies beyond the share */
    double theta, factor;
    bool pairs;
    double low_freq, high_freq;                          /* llama3 */
    double orig_ctx;                                     /* llama3, yarn */
    double beta_fast, beta_slow, mscale, mscale_all_dim; /* yarn; 0 = not given */
    bool no_truncate;                                    /* yarn: ramp borders are not rounded to whole indices */
    double attn_factor;                                  /* 0 = from the formula */
} m5_rope_spec;

/* Computes the table (in double, rounded once to f32) and appends it, or finds an equal one. Returns its index, or a negative error. */
int m5_rope_add(m5_config *c, const m5_rope_spec *spec, m5_error *err);
/* ministral3's "mscale" and yarn's attention factor: 0.1 m ln f + 1, or 1 when f <= 1. */
double m5_rope_mscale(double factor, double m);

/* Reads a rope dictionary of config.json. dict is rope_parameters, rope_scaling, one entry of a per-layer-type dictionary, or absent. theta_flat < 0:
 * no flat key to fill in. spec holds the family's defaults on entry. */
void m5_hf_rope_dict(m5_source *dict, m5_rope_spec *spec, double n_ctx_train);
/* The usual case: rope_scaling (when not null) or rope_parameters, with rope_theta and partial_rotary_factor beside it. Returns the table's index. */
int m5_hf_rope(m5_config *c, m5_source *s, m5_rope_spec *spec);
/* rope.* keys of a GGUF file; divides by rope_freqs.weight when the file has it and use_freqs is set. Returns the table's index. */
int m5_gguf_rope(m5_config *c, m5_source *s, m5_rope_spec *spec, bool use_freqs);

/* ---- parts of a configuration that many families share ----------------------------------------------------------------------------------- */

/* Values that apply when a key is absent; see the comment at each number's use for what "0" means. */
typedef struct m5_defaults {
    int n_head, n_head_kv;      /* n_head 0: required; n_head_kv 0: n_head */
    int head_dim;               /* 0: n_embd / n_head */
    int n_vocab;                /* 0: required */
    int n_embd, n_ffn, n_layer; /* 0: required (n_ffn: unless every layer is MoE) */
    int n_ctx_train;
    double rms_eps;
    m5_act_kind act;
    bool tied;
    bool ffn_optional; /* all layers are MoE: intermediate_size may be absent */
} m5_defaults;

/* Reads sizes, eps, activation, tying and end tokens, and fills every layer alike: attention, dense FFN, no window, rope 0. */
void m5_hf_base(m5_config *c, m5_source *s, const m5_defaults *d);
void m5_gguf_base(m5_config *c, m5_source *s);

typedef enum m5_layer_kind { M5_LAYER_FULL, M5_LAYER_SLIDING, M5_LAYER_LINEAR } m5_layer_kind;
/* layer_types of config.json: false when the key is absent or null (then kinds is untouched). */
bool m5_hf_layer_types(m5_source *s, m5_layer_kind *kinds, int n_layer);
/* attention.sliding_window_pattern: list of bools, or an integer P (the last of every P layers is full); default_period 0 = all full. */
void m5_gguf_window_pattern(m5_source *s, m5_layer_kind *kinds, int n_layer, int default_period);

void m5_config_windows(m5_config *c, const m5_layer_kind *kinds, int window);

/* Mixture of experts with Qwen's key names. Layers named by mlp_only_layers or skipped by decoder_sparse_step stay dense. */
typedef struct m5_moe_defaults {
    int n_expert, n_used, n_ffn_expert, n_ffn_shared;
    bool renorm;
    bool renorm_fixed; /* norm_topk_prob is not a key of this family */
} m5_moe_defaults;
void m5_hf_moe(m5_config *c, m5_source *s, const m5_moe_defaults *d);
void m5_gguf_moe(m5_config *c, m5_source *s, bool renorm);

/* ---- weight slots ------------------------------------------------------------------------------------------------------------------------ */

/* Sizes by name; the binder evaluates them for a layer. */
typedef enum m5_dim {
    M5_D_1,
    M5_D_EMBD,
    M5_D_2EMBD,
    M5_D_VOCAB,
    M5_D_Q,
    M5_D_Q_GATED /* twice M5_D_Q when attn_gate */,
    M5_D_KV,
    M5_D_HEAD_DIM,
    M5_D_FFN,
    M5_D_EXPERTS,
    M5_D_FFN_EXPERT,
    M5_D_FFN_SHARED,
    M5_D_GDN_CHANNELS,
    M5_D_GDN_V,
    M5_D_GDN_V_HEADS,
    M5_D_GDN_V_DIM,
    M5_D_GDN_CONV,
    M5_D_PLE,
    M5_D_PLE_ALL,
    M5_D_VOCAB_PLE
} m5_dim;

typedef enum m5_slot_kind {
    M5_SLOT_MATRIX,       /* m5_matrix [rows, cols] */
    M5_SLOT_VECTOR,       /* const float * [rows], as stored */
    M5_SLOT_NORM,         /* the same; +1 where the file keeps the family's zero-centred form */
    M5_SLOT_SCALAR,       /* float */
    M5_SLOT_DECAY,        /* [rows]: HF A_log becomes -exp(A_log); GGUF holds that already */
    M5_SLOT_CONV,         /* [rows, cols] f32 from [C,1,4], [C,4,1] or [C,4] */
    M5_SLOT_ROUTER_SCALE, /* [rows] times n_embd^-0.5 */
    M5_SLOT_EXPERTS       /* gate, up and down of all experts; hf and gguf name the folder, see bind_moe.c */
} m5_slot_kind;

/* A slot exists in a layer when every bit of `when` holds there. */
enum {
    M5_WHEN_ATTN = 1,
    M5_WHEN_GDN = 2,
    M5_WHEN_OWN_KV = 4,
    M5_WHEN_OWN_V = 8,
    M5_WHEN_DENSE = 16,
    M5_WHEN_MOE = 32,
    M5_WHEN_SHARED = 64,
    M5_WHEN_PLE = 128,
    M5_WHEN_OPTIONAL = 256 /* may be missing in the file */
};

typedef struct m5_slot {
    uint16_t at;        /* offset of the field in m5_layer_weights, m5_weights or m5_mtp_weights */
    uint8_t kind;       /* m5_slot_kind */
    uint8_t rows, cols; /* m5_dim */
    uint16_t when;
    const char *hf; /* names below the layer's prefix; alternatives separated by '|' */
    const char *gguf;
} m5_slot;

enum { M5_MAX_SLOT_GROUPS = 10 };

typedef struct m5_family {
    const char *name;
    const char *const *hf_types;   /* model_type values, NULL-terminated */
    const char *const *gguf_archs; /* general.architecture values, NULL-terminated */
    void (*from_hf)(m5_config *c, m5_source *s);
    void (*from_gguf)(m5_config *c, m5_source *s);
    bool norms_zero_centred;                  /* HF files hold w of (1 + w) */
    bool mlx_shifts_norms;                    /* MLX conversion adds the 1 (seen from the conv weight's layout) */
    bool mtp;                                 /* may have a next-token head */
    const m5_slot *slots[M5_MAX_SLOT_GROUPS]; /* lists of layer slots, each ended by a row with hf NULL; NULL-terminated */
} m5_family;

/* Families in the order of the table. */
extern const m5_family *const m5_families[];
const m5_family *m5_family_of_hf(m5_slice model_type); /* NULL when unknown */
const m5_family *m5_family_of_gguf(m5_slice arch);
const m5_family *m5_family_named(const char *name);
/* Appends "a, b, c": all model types, or all architectures. */
void m5_family_list(m5_buf *out, bool gguf);

/* Slot lists (families/slots.c). */
extern const m5_slot m5_slots_norms[];        /* llama, mistral, qwen2, qwen3 */
extern const m5_slot m5_slots_norms_qwen35[]; /* the pre-FFN norm has another GGUF name */
extern const m5_slot m5_slots_norms_gemma[];
extern const m5_slot m5_slots_attn[];
extern const m5_slot m5_slots_qk_norm[];
extern const m5_slot m5_slots_ffn[];
extern const m5_slot m5_slots_moe_qwen[];
extern const m5_slot m5_slots_gdn[];
extern const m5_slot m5_slots_moe_gemma4[];
extern const m5_slot m5_slots_gemma4[];
/* Model level and MTP level, the same for every family. */
extern const m5_slot m5_slots_model[];
extern const m5_slot m5_slots_mtp[];

extern const m5_family m5_family_llama, m5_family_mistral, m5_family_ministral3, m5_family_smollm3, m5_family_qwen2, m5_family_qwen3,
    m5_family_qwen3_moe, m5_family_qwen3_next, m5_family_qwen3_5, m5_family_qwen3_5_moe, m5_family_gemma2, m5_family_gemma3, m5_family_gemma4;

#endif
