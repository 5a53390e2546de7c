/* SPDX-License-Identifier: Apache-2.0 */
/* CPU backend: operators = split over threads x kernel slot. Room: backend/cpu*.c.
 *
 * Promise P1 at this level: every output row is a function of its own input row (and its own sequence's state) alone. It has the same bits
 * whatever n_tok is, wherever the row stands in the batch, and for any number of threads. Each operator keeps one fixed order of float
 * additions per output element.
 *
 * Conventions: row-major, last index contiguous; y[n_tok, n_out] = x[n_tok, n_in] * W[n_out, n_in]^T. All float arrays are f32.
 * Operators never fail: memory is sized at open / reserve, shapes are checked at bind. Thread: the engine thread. */
#ifndef M5_BACKEND_CPU_H
#define M5_BACKEND_CPU_H

#include "base/err.h"
#include "base/task.h"
#include "kernels/quant.h"

typedef struct m5_cpu m5_cpu;

typedef struct m5_cpu_options {
    int n_threads;     /* 0 = m5_cpu_count() */
    uint32_t cpu_mask; /* instruction sets that may be used, kernels/kernels.h; 0xffffffff = all found */
    bool act_f32;      /* activations stay f32 against unpacked weights (reference arithmetic); false = int8 blocks for quantised types */
} m5_cpu_options;

int m5_cpu_open(m5_cpu **out, const m5_cpu_options *opt, m5_error *err);
void m5_cpu_close(m5_cpu *c);
m5_pool *m5_cpu_pool(m5_cpu *c);
const char *m5_cpu_isa_name(const m5_cpu *c); /* "avx512-vnni", ... what is in use */

/* Grows the scratch that operators use, once, at open: no operator allocates. */
int m5_cpu_reserve(m5_cpu *c, int max_tok, int64_t max_in, int64_t max_out, m5_error *err);
/* Optional, after m5_cpu_reserve: with it m5_cpu_experts takes max_tok tokens in one pass; without, it makes passes of a few tokens. */
int m5_cpu_reserve_experts(m5_cpu *c, int n_used, m5_error *err);

/* Prepares m for fast products (may repack into memory owned by c and set m->packed). Optional: an unprepared matrix works, slower.
 * Out of memory is not an error: the matrix stays as it is. After packing the pages of m->data are given back, so read rows with
 * m5_cpu_row only; a second matrix over the same data (a tied head) shares the packed form once it is prepared too. */
void m5_cpu_prepare(m5_cpu *c, m5_matrix *m);
/* After the last m5_cpu_prepare: moves packed weights onto huge pages from a background thread, while products go on. Packing itself writes
 * ordinary pages, since a fresh huge page can cost five times as much in a virtual machine and loading must be quick. */
void m5_cpu_settle(m5_cpu *c);
/* Waits until that is done: for benchmarks. */
void m5_cpu_settle_wait(m5_cpu *c);
/* "packed", "direct" or "slow": how products with m run. */
const char *m5_cpu_path_name(const m5_cpu *c, const m5_matrix *m);
/* One row of m as f32, also when packed: embedding lookup. */
void m5_cpu_row(const m5_cpu *c, const m5_matrix *m, int64_t row, float *dst);

/* One or more products that share the input: quantises x once. bias may be NULL. */
typedef struct m5_linear {
    const m5_matrix *w;
    const float *bias; /* [n_out] or NULL */
    float *y;          /* [n_tok, ldy] */
    int64_t ldy;       /* floats between rows of y, >= n_out */
} m5_linear;
void m5_cpu_linear(m5_cpu *c, const m5_linear *jobs, int n_jobs, const float *x, int64_t ldx, int n_tok);

/* Experts: token t goes through n_used experts ids[t * n_used + i] with weight wts[...]; y[t] += sum_i wts * down(act(gate x) * up x), added in
 * the order i = 0.. for every token, so the row bits do not depend on the batch. Each used expert's weights are read once per call.
 * act: 0 = silu, 1 = gelu tanh. */
void m5_cpu_experts(m5_cpu *c, const m5_matrix *gate, const m5_matrix *up, const m5_matrix *down, int act, const float *x, float *y, int n_tok,
                    const int32_t *ids, const float *wts, int n_used);

/* y = x * rsqrt(mean(x^2) + eps) * w over rows of n (w NULL = 1). In place allowed. n_row rows, ldx apart. */
void m5_cpu_rmsnorm(m5_cpu *c, float *y, int64_t ldy, const float *x, int64_t ldx, const float *w, int64_t n_row, int n, float eps);
/* x += add, then y = rmsnorm(x): the residual step fused. y may be NULL (only add). */
void m5_cpu_add_rmsnorm(m5_cpu *c, float *y, float *x, const float *add, const float *w, int64_t n_row, int n, float eps);
/* y[t, i] = act(gate[t, i]) * up[t, i]; act 0 = silu, 1 = gelu tanh. In place on gate allowed. */
void m5_cpu_glu(m5_cpu *c, float *y, const float *gate, const float *up, int64_t n_row, int n, int act);
/* Router: softmax over all n_expert logits, the n_used largest (ties: lower index first), renormalised if asked. */
void m5_cpu_router(m5_cpu *c, int32_t *ids, float *wts, const float *logits, int n_tok, int n_expert, int n_used, bool renorm);

/* Attention over a paged cache. Row t (of n_tok rows of one ragged batch) belongs to sequence view seqs[seq_of[t]] at position pos[t] and sees keys
 * j with pos - window < j <= pos (window 0: all). K and V of the rows themselves must already be in the pages. The softmax goes block by block of a
 * fixed number of keys in order, merged in a fixed order, so neither the split over threads nor the batch changes the bits.
 * q [n_tok, n_head, head_dim] in, o likewise. */
typedef struct m5_kv_view {
    uint8_t *const *pages; /* page table: page i holds positions [i * page_tok, (i + 1) * page_tok) of every layer */
} m5_kv_view;
/* I16, the default, and Q8_0: integers of 16 and of 8 bits, with a factor (f16) for 32 of them. */
typedef enum m5_kv_type { M5_KV_I16, M5_KV_F16, M5_KV_BF16, M5_KV_F32, M5_KV_Q8_0 } m5_kv_type;
typedef struct m5_attn_args {
    int n_head, n_head_kv, head_dim, page_tok;
    m5_kv_type kv_type;
    size_t k_offset, v_offset; /* bytes from the start of a page to this layer's K and V */
    int window;
    float scale, softcap;
    const m5_kv_view *seqs;
    const int32_t *seq_of, *pos;
} m5_attn_args;
/* Page layout, per layer: K and V each [n_head_kv, page_tok, width] of kv_type (Q8_0, I16: blocks of 32 along width), so that the keys of a head are
 * one stream; width = head_dim padded with zeros to 16, to 32 for Q8_0 and I16. row_bytes: of one token. Q8_0 and I16 interleave 32 tokens (cpu_mix.h)
 * and need page_tok to be a multiple of 32. */
bool m5_kv_in_tiles(m5_kv_type t);
int m5_kv_head_width(m5_kv_type t, int head_dim);
size_t m5_kv_row_bytes(m5_kv_type t, int n_head_kv, int head_dim);
void m5_cpu_kv_store(m5_cpu *c, const m5_attn_args *a, const float *k, const float *v, int n_tok); /* k, v [n_tok, n_head_kv, head_dim] */
void m5_cpu_attention(m5_cpu *c, float *o, const float *q, const m5_attn_args *a, int n_tok);

/* Rotates x [n_tok, n_head, head_dim] in place with angle pos[t] * inv_freq[j]; cos and sin are multiplied by attn_factor. */
void m5_cpu_rope(m5_cpu *c, float *x, int n_tok, int n_head, int head_dim, const int32_t *pos, const float *inv_freq, int n_rot, bool pairs,
                 float attn_factor);

/* Makes room, once, at open, to split the attention of few rows over many threads along the keys; without it such rows use fewer threads. */
int m5_cpu_reserve_attention(m5_cpu *c, int max_n_head, int max_head_dim, m5_error *err);

/* Elementwise over rows of n floats: x += y; x *= a; x *= sigmoid(g); x = cap * tanh(x / cap). ld = floats between rows. */
void m5_cpu_add(m5_cpu *c, float *x, const float *y, int64_t n_row, int n);
void m5_cpu_scale(m5_cpu *c, float *x, float a, int64_t n_row, int n);
void m5_cpu_gate(m5_cpu *c, float *x, int64_t ldx, const float *g, int64_t ldg, int64_t n_row, int n);
void m5_cpu_softcap(m5_cpu *c, float *x, float cap, int64_t n_row, int64_t n);
/* x[t] *= sigmoid(g[t]), one gate per row. */
void m5_cpu_gate_rows(m5_cpu *c, float *x, const float *g, int64_t n_row, int n);

/* Gated delta net over a ragged batch. Rows of one run are consecutive tokens of one sequence. For each run: first the `n_pending` committed
 * steps of an earlier forward are applied to the state (pending ring), then the new rows are computed. With hold the state is left as it was
 * after the pending steps and the new rows' inputs are written to the ring; without hold the state advances over all rows.
 * The arithmetic of one token is the same in both cases. All pointers f32; state S [v_heads, k_dim, v_dim] per run (layout free to the backend,
 * consistent across calls), conv tail [conv - 1, channels] = the last inputs before conv. */
typedef struct m5_gdn_run {
    int row0, n_row;        /* rows of the batch */
    float *state;           /* S */
    float *conv_tail;
    float *ring;            /* pending inputs, [cap_pending, m5_gdn_ring_floats()] */
    int n_pending;          /* rows of the ring to apply first; they are consumed */
    bool hold;              /* keep the state; write the new rows to the ring instead; n_row <= M5_GDN_MAX_HOLD */
} m5_gdn_run;
enum { M5_GDN_MAX_HOLD = 32, M5_GDN_MAX_CONV = 8 };
typedef struct m5_gdn_args {
    int n_k_head, n_v_head, k_dim, v_dim, conv; /* k_dim and v_dim multiples of 16, at most 256 */
    bool tiled;
    float eps;                 /* of the gated norm */
    const float *conv_w; /* [conv, channels]: transposed, so that a tap is contiguous over channels */
    const float *a_neg, *dt_bias, *norm;
    const m5_gdn_run *runs;
    int n_run;
} m5_gdn_args;
size_t m5_gdn_ring_floats(const m5_gdn_args *a); /* per pending token */
/* qkv [n_tok, 2*Kh*dk + Vh*dv] raw projections, z [n_tok, Vh*dv], b and a [n_tok, Vh]; out [n_tok, Vh*dv] gated and normed, ready for out_proj. */
void m5_cpu_gdn(m5_cpu *c, float *out, const float *qkv, const float *z, const float *b, const float *a, const m5_gdn_args *g, int n_tok);

#endif
