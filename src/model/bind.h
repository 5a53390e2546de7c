/* SPDX-License-Identifier: Apache-2.0 */
/* Internal to the weight room (weights.c, bind*.c): one view of tensors whatever the container, and the primitives that turn a named tensor into a
 * checked matrix or f32 vector. Not here: names and shapes of families (families/), files and texts of a model folder (weights.c). */
#ifndef M5_MODEL_BIND_H
#define M5_MODEL_BIND_H

#include "model/families/family.h"
#include "model/gguf.h"
#include "model/safetensors.h"
#include "model/weights.h"

/* Mappings and memory of the model; freed by m5_weights_close. */
struct m5_weights_store {
    m5_gguf *gguf; /* exactly one of the two */
    m5_st *st;
    void **own; /* memory of converted vectors, gathered matrices, expert lists */
    size_t n_own, cap_own;
    const void **used; /* container entries that were bound, sorted once binding is done */
    size_t n_used, cap_used;
};

typedef struct m5_binder {
    m5_weights *w;
    struct m5_weights_store *store;
    const m5_family *family;
    const m5_json *quant; /* "quantization" of config.json (MLX), or NULL */
    bool add_one;         /* norms are stored zero-centred */
    char prefix[64];      /* HF: in front of "embed_tokens.weight" */
    m5_error *err;
} m5_binder;

enum { M5_BIND_NAME_BYTES = 256 };

/* A tensor as either container describes it. */
typedef struct m5_tensor {
    const char *name;
    m5_dtype type;
    char type_name[40];
    int n_dims;
    int64_t shape[M5_ST_MAX_DIMS]; /* outermost first */
    const uint8_t *data;
    size_t n_bytes;
    int file;
    const void *entry;
} m5_tensor;

size_t m5_store_n_tensors(const struct m5_weights_store *st);
void m5_store_tensor_at(const struct m5_weights_store *st, size_t i, m5_tensor *out);
const char *m5_store_path(const struct m5_weights_store *st, int file);
bool m5_store_is_used(const struct m5_weights_store *st, const void *entry);
/* Memory owned by the model, zeroed; NULL with the error set. */
void *m5_bind_alloc(m5_binder *b, size_t n, size_t size);

/* Finds prefix + name for the first of the alternatives in names ("a|b"). full gets the name found, or the first one tried. */
bool m5_bind_find(m5_binder *b, const char *prefix, const char *names, char full[M5_BIND_NAME_BYTES], m5_tensor *t);
/* Remembers that the model uses a tensor. */
void m5_bind_mark(m5_binder *b, const m5_tensor *t);
bool m5_bind_exists(m5_binder *b, const char *prefix, const char *names);

/* A matrix [n_slice * rows, cols] from a tensor [n_slice, rows, cols] (n_slice 1: [rows, cols], or [cols] when rows is 1), in any type that can be
 * multiplied, MLX groups included. Absent and optional leaves *out absent. n_params is counted. */
int m5_bind_matrix(m5_binder *b, const char *prefix, const char *names, int64_t n_slice, int64_t rows, int64_t cols, bool optional, m5_matrix *out);
/* Own f32 copy of [rows, cols], ones anywhere in the shape not counted: [n] with cols 1, and [C, 1, K] or [C, K, 1] for [C, K]. NULL when absent and
 * optional. */
int m5_bind_vector(m5_binder *b, const char *prefix, const char *names, int64_t rows, int64_t cols, bool optional, float **out);

/* Evaluates a dimension for a layer. */
int64_t m5_bind_dim(const m5_config *c, const m5_layer_config *l, m5_dim d);
/* Fills `base` (an m5_layer_weights, m5_weights or m5_mtp_weights) from one list of slots. when holds the conditions true here. */
int m5_bind_slots(m5_binder *b, const m5_slot *slots, const char *prefix, const m5_layer_config *l, unsigned when, void *base);
/* One decoder layer with all lists of its family; index is the layer's own number for kv_donor. */
int m5_bind_layer(m5_binder *b, const char *prefix, const m5_layer_config *l, int index, m5_layer_weights *out);

/* bind_moe.c: gate, up and down of every expert in any of the layouts in use. */
int m5_bind_experts(m5_binder *b, const char *prefix, const m5_slot *slot, m5_layer_weights *out);
/* bind_fused.c: projections that a file keeps in one matrix; fills what it finds and leaves the rest for the ordinary slots. */
int m5_bind_fused_gdn(m5_binder *b, const char *prefix, m5_layer_weights *out);
int m5_bind_fused_qkv(m5_binder *b, const char *prefix, const m5_layer_config *l, m5_layer_weights *out);

/* bind_model.c: everything, after w->config is there. */
int m5_bind_model(m5_binder *b);

#endif
