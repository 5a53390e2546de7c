/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products of the CPU backend: linear, experts, rows, preparation. The arithmetic is in kernels/ (tile.h); here is who computes which tile.
 *
 * Work is handed out by tiles of 16 output rows. Up to 16 tokens go through a tile together; a longer batch goes in sets of 16 past a few tiles that
 * stay in the second-level cache. A row's bits depend neither on the set nor on the thread. Ways to a tile: "packed" = made once by m5_cpu_prepare;
 * "direct" = packed on the fly into the worker's scratch, the same bits; "slow" = rows unpacked to f32, with f32 activations. */
#include "backend/cpu_internal.h"
#include "base/mem.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum {
    MIN_PIECE_BYTES = 24 * 1024,  /* of weights read for one token: below this, waking a worker costs more than it saves */
    L2_PIECE_BYTES = 192 * 1024,  /* tiles that are kept while sets of tokens go past */
    DROP_STEP_BYTES = 8 << 20,    /* mapped pages given back at a time while packing */
    PAGE_ROUND_BYTES = 64 * 1024, /* at least a page on every system */
    SLAB_BYTES = 64 << 20,
    QUANT_PIECE_FLOATS = 16 * 1024,
    MIN_PAIRS = 64,
    SETTLE_DELAY_MS = 500
};

typedef struct packed {
    m5_tile_shape shape;
    uint8_t *tiles;      /* in a slab */
    const uint8_t *data; /* where it came from: a tied table is packed once */
    struct packed *next;
} packed;

/* Packed matrices lie side by side in slabs, so that those below 2 MiB get onto huge pages too. */
typedef struct slab {
    uint8_t *p;
    size_t used, cap;
    struct slab *next;
} slab;

/* Activations of n_tok tokens in the form that tiles want, in sets of M5_TILE_TOK. */
typedef struct x_rows {
    m5_tile_x base; /* of set 0 */
    int64_t n_blk;  /* per token, padded to whole groups */
    int n_tok;
} x_rows;

typedef struct product {
    const m5_matrix *w;
    const float *bias;
    float *y;
    int64_t ldy;
    const x_rows *x;
    m5_tile_shape shape;
    const uint8_t *tiles; /* NULL: made on the fly */
    bool slow;
    int64_t first_tile; /* in the numbering over all products of a call */
} product;

/* The tokens of a pass that use one expert. */
typedef struct expert_set {
    int64_t expert, first; /* first: in the sorted pairs */
    int n;
    x_rows x;
} expert_set;

struct m5_cpu_linear_state {
    packed *all;
    slab *slabs; /* newest first */
    m5_tile_x x; /* scratch for cap_blk token blocks */
    int64_t cap_blk;
    /* Experts: pairs (token, expert) of one pass. */
    int64_t cap_pair, cap_pair_floats;
    float *pair_gate, *pair_up, *pair_out; /* [cap_pair_floats] each, in the order of pair_key */
    int64_t *pair_key;                     /* expert and pair, sorted */
    int64_t *pair_row;                     /* token of a sorted pair */
    int32_t *pair_pos;                     /* place of a pair in that order */
    product *products;                     /* [2 * cap_pair] */
    expert_set *sets;                      /* [cap_pair] */
    /* The thread of m5_cpu_settle; it reads `slabs`, which do not change while it runs. */
    pthread_t settler;
    bool settling;
    atomic_bool stop_settling, settle_now;
};

/* --- memory --------------------------------------------------------------------------------------------------------------------- */

int m5_cpu_linear_open(m5_cpu *c, m5_error *err)
{
    c->linear = m5_calloc(M5_MEM_SCRATCH, 1, sizeof *c->linear);
    return c->linear ? 0 : m5_error_set(err, M5_ERR_NOMEM, "out of memory for the product state");
}

static void free_x(m5_tile_x *x)
{
    m5_free(x->q);
    m5_free(x->d);
    m5_free(x->dsum);
    m5_free(x->nsum);
    m5_free(x->nhalf);
    m5_free(x->f);
    memset(x, 0, sizeof *x);
}

static void free_pairs(struct m5_cpu_linear_state *s)
{
    m5_free(s->pair_gate);
    m5_free(s->pair_up);
    m5_free(s->pair_out);
    m5_free(s->pair_key);
    m5_free(s->pair_row);
    m5_free(s->pair_pos);
    m5_free(s->products);
    m5_free(s->sets);
    s->pair_gate = s->pair_up = s->pair_out = NULL;
    s->pair_key = s->pair_row = NULL;
    s->pair_pos = NULL;
    s->products = NULL;
    s->sets = NULL;
    s->cap_pair = s->cap_pair_floats = 0;
}

void m5_cpu_linear_close(m5_cpu *c)
{
    struct m5_cpu_linear_state *s = c->linear;
    if (!s) return;
    atomic_store(&s->stop_settling, true);
    m5_cpu_settle_wait(c);
    while (s->all) {
        packed *p = s->all;
        s->all = p->next;
        m5_free(p);
    }
    while (s->slabs) {
        slab *b = s->slabs;
        s->slabs = b->next;
        m5_free(b->p);
        m5_free(b);
    }
    free_x(&s->x);
    free_pairs(s);
    m5_free(s);
}

static int64_t blocks_of(int64_t n_in)
{
    return (n_in + 2 * M5_TILE_BLOCK - 1) / (2 * M5_TILE_BLOCK) * 2;
}

static void *scratch(int64_t n, size_t size)
{
    size_t bytes;
    return m5_mul_size((size_t)n, size, &bytes) ? m5_alloc(M5_MEM_SCRATCH, bytes) : NULL;
}

static int reserve_x(m5_cpu *c, int64_t n_tok, m5_error *err)
{
    struct m5_cpu_linear_state *s = c->linear;
    const int64_t want = n_tok * blocks_of(c->max_in);
    if (want <= s->cap_blk) return 0;
    free_x(&s->x);
    s->cap_blk = 0;
    s->x.q = scratch(want, M5_TILE_BLOCK);
    s->x.d = scratch(want, sizeof(float));
    s->x.dsum = scratch(want, sizeof(float));
    s->x.nsum = scratch(want, sizeof(int32_t));
    s->x.nhalf = scratch(want, 2 * sizeof(int32_t));
    s->x.f = scratch(want, M5_TILE_BLOCK * sizeof(float)); /* touched by float weights only, so mostly not resident */
    if (!s->x.q || !s->x.d || !s->x.dsum || !s->x.nsum || !s->x.nhalf || !s->x.f) {
        free_x(&s->x);
        return m5_error_set(err, M5_ERR_NOMEM, "out of memory for the activations of %lld tokens", (long long)n_tok);
    }
    s->cap_blk = want;
    return 0;
}

static int reserve_pairs(m5_cpu *c, int64_t pairs, m5_error *err)
{
    struct m5_cpu_linear_state *s = c->linear;
    const int64_t row = c->max_in > 1 ? c->max_in : 1; /* an expert's widths are inputs of some product */
    if (pairs <= s->cap_pair && pairs * row <= s->cap_pair_floats) return 0;
    free_pairs(s);
    s->pair_gate = scratch(pairs, (size_t)row * sizeof(float));
    s->pair_up = scratch(pairs, (size_t)row * sizeof(float));
    s->pair_out = scratch(pairs, (size_t)row * sizeof(float));
    s->pair_key = scratch(pairs, sizeof(int64_t));
    s->pair_row = scratch(pairs, sizeof(int64_t));
    s->pair_pos = scratch(pairs, sizeof(int32_t));
    s->products = scratch(2 * pairs, sizeof(product));
    s->sets = scratch(pairs, sizeof(expert_set));
    if (!s->pair_gate || !s->pair_up || !s->pair_out || !s->pair_key || !s->pair_row || !s->pair_pos || !s->products || !s->sets) {
        free_pairs(s);
        return m5_error_set(err, M5_ERR_NOMEM, "out of memory for %lld expert rows", (long long)pairs);
    }
    s->cap_pair = pairs;
    s->cap_pair_floats = pairs * row;
    return reserve_x(c, pairs, err);
}

int m5_cpu_linear_reserve(m5_cpu *c, m5_error *err)
{
    int rc = reserve_x(c, c->max_tok, err);
    return rc < 0 ? rc : reserve_pairs(c, c->linear->cap_pair > MIN_PAIRS ? c->linear->cap_pair : MIN_PAIRS, err);
}

int m5_cpu_reserve_experts(m5_cpu *c, int n_used, m5_error *err)
{
    const int64_t pairs = (int64_t)c->max_tok * n_used;
    return pairs > c->linear->cap_pair ? reserve_pairs(c, pairs, err) : 0;
}

/* --- preparation ---------------------------------------------------------------------------------------------------------------- */

typedef struct pack_job {
    const m5_matrix *m;
    packed *p;
    int64_t first; /* tile */
} pack_job;

static int rows_of_tile(const m5_matrix *m, int64_t tile)
{
    const int64_t left = m->n_out - tile * M5_TILE_ROWS;
    return left < M5_TILE_ROWS ? (int)left : M5_TILE_ROWS;
}

static void pack_range(void *ctx, int64_t begin, int64_t end, int worker)
{
    pack_job *j = ctx;
    const int64_t bytes = j->p->shape.tile_bytes;
    (void)worker;
    m5_mem_populate(j->p->tiles + (j->first + begin) * bytes, (size_t)((end - begin) * bytes));
    for (int64_t i = j->first + begin; i < j->first + end; i++) {
        m5_tile_pack(&j->p->shape, j->m, i * M5_TILE_ROWS, rows_of_tile(j->m, i), j->p->tiles + i * bytes);
    }
}

/* Gives the whole pages inside [p, p + n) of a file mapping back to the system. */
static void drop_pages(const uint8_t *p, size_t n)
{
    const size_t skip = (PAGE_ROUND_BYTES - (uintptr_t)p % PAGE_ROUND_BYTES) % PAGE_ROUND_BYTES;
    if (n <= skip + PAGE_ROUND_BYTES) return;
    const m5_map map = {p + skip, (n - skip) / PAGE_ROUND_BYTES * PAGE_ROUND_BYTES};
    m5_map_drop(&map, 0, map.n);
}

static void *settle_main(void *arg)
{
    struct m5_cpu_linear_state *s = arg;
    m5_thread_name("m5-settle");
    m5_thread_background();
    /* The first answer comes first: moving pages holds up everybody who touches new ones. */
    for (int i = 0; i < SETTLE_DELAY_MS && !atomic_load(&s->stop_settling) && !atomic_load(&s->settle_now); i += 10) m5_sleep_us(10000);
    for (const slab *b = s->slabs; b; b = b->next) {
        for (size_t at = 0; at < b->used; at += M5_MEM_HUGE_BYTES) {
            const size_t left = b->used - at;
            /* A step may cross a boundary of huge pages: twice the size covers every whole page that begins in it. */
            if (atomic_load(&s->stop_settling) || !m5_mem_huge(b->p + at, left < 2 * M5_MEM_HUGE_BYTES ? left : 2 * M5_MEM_HUGE_BYTES - 1))
                return NULL;
        }
    }
    return NULL;
}

void m5_cpu_settle(m5_cpu *c)
{
    struct m5_cpu_linear_state *s = c->linear;
    if (!s->settling && s->all) s->settling = pthread_create(&s->settler, NULL, settle_main, s) == 0;
}

void m5_cpu_settle_wait(m5_cpu *c)
{
    struct m5_cpu_linear_state *s = c->linear;
    atomic_store(&s->settle_now, true);
    if (s->settling) pthread_join(s->settler, NULL);
    s->settling = false;
    atomic_store(&s->settle_now, false);
}

static uint8_t *slab_alloc(struct m5_cpu_linear_state *s, size_t bytes)
{
    bytes = (bytes + M5_CHUNK_BYTES - 1) / M5_CHUNK_BYTES * M5_CHUNK_BYTES;
    slab *b = s->slabs;
    if (!b || b->cap - b->used < bytes) {
        b = m5_calloc(M5_MEM_WEIGHTS, 1, sizeof *b);
        if (!b) return NULL;
        b->cap = bytes > SLAB_BYTES ? bytes : SLAB_BYTES;
        b->p = m5_alloc(M5_MEM_WEIGHTS, b->cap);
        if (!b->p) {
            b->cap = bytes;
            b->p = m5_alloc(M5_MEM_WEIGHTS, b->cap);
        }
        if (!b->p) {
            m5_free(b);
            return NULL;
        }
        b->next = s->slabs;
        s->slabs = b;
    }
    b->used += bytes;
    return b->p + b->used - bytes;
}

void m5_cpu_prepare(m5_cpu *c, m5_matrix *m)
{
    m5_tile_shape shape;
    if (m->packed || !m->data || !m5_tile_shape_of(&shape, m) || (c->act_f32 && !shape.float_x)) return;
    for (packed *p = c->linear->all; p; p = p->next) {
        if (p->data == m->data && p->shape.kind == shape.kind && p->shape.n_group == shape.n_group) {
            m->packed = p;
            return;
        }
    }
    m5_cpu_settle_wait(c);
    const int64_t n_tile = (m->n_out + M5_TILE_ROWS - 1) / M5_TILE_ROWS;
    size_t bytes;
    packed *p = m5_calloc(M5_MEM_WEIGHTS, 1, sizeof *p);
    if (!p) return;
    *p = (packed){.shape = shape, .data = m->data};
    if (!m5_mul_size((size_t)n_tile, (size_t)shape.tile_bytes, &bytes) || !(p->tiles = slab_alloc(c->linear, bytes))) {
        m5_free(p);
        return;
    }
    const int64_t step = DROP_STEP_BYTES / shape.tile_bytes > 0 ? DROP_STEP_BYTES / shape.tile_bytes : 1;
    for (int64_t i = 0; i < n_tile; i += step) {
        const int64_t n = n_tile - i < step ? n_tile - i : step, row = i * M5_TILE_ROWS;
        pack_job j = {m, p, i};
        m5_pool_for(c->pool, n, 1, pack_range, &j);
        const int64_t rows = m->n_out - row < n * M5_TILE_ROWS ? m->n_out - row : n * M5_TILE_ROWS;
        drop_pages(m->data + row * m->row_bytes, (size_t)(rows * m->row_bytes));
    }
    p->next = c->linear->all;
    c->linear->all = p;
    m->packed = p;
}

const char *m5_cpu_path_name(const m5_cpu *c, const m5_matrix *m)
{
    m5_tile_shape shape;
    if (m->packed) return "packed";
    return m5_tile_shape_of(&shape, m) && (shape.float_x || !c->act_f32) ? "direct" : "slow";
}

void m5_cpu_row(const m5_cpu *c, const m5_matrix *m, int64_t row, float *dst)
{
    const packed *p = m->packed;
    (void)c;
    if (p)
        m5_tile_row_f32(&p->shape, m, p->tiles + row / M5_TILE_ROWS * p->shape.tile_bytes, (int)(row % M5_TILE_ROWS), dst);
    else
        m5_matrix_row_f32(m, row, dst);
}

/* --- activations ---------------------------------------------------------------------------------------------------------------- */

typedef struct quant_job {
    const m5_cpu *c;
    const x_rows *x;
    const float *src;
    const int64_t *rows; /* which rows of src; NULL: the first ones */
    int64_t ld, n_in;
    bool want_int, want_float;
} quant_job;

static m5_tile_x x_set(const x_rows *x, int64_t set)
{
    const int64_t first = set * M5_TILE_TOK, at = first * x->n_blk;
    m5_tile_x s = x->base;
    s.q += at * M5_TILE_BLOCK;
    s.d += at;
    s.dsum += at;
    s.nsum += at;
    s.nhalf += 2 * at;
    s.f += at * M5_TILE_BLOCK;
    s.n_tok = x->n_tok - first < M5_TILE_TOK ? (int)(x->n_tok - first) : M5_TILE_TOK;
    return s;
}

/* Token t of a set: blocks of 32 floats side by side with those of the other tokens, zero beyond n_in. */
static void copy_float_row(const m5_tile_x *x, int t, const float *src, int64_t n_in, int64_t n_blk)
{
    for (int64_t b = 0; b < n_blk; b++) {
        float *dst = x->f + (b * x->n_tok + t) * M5_TILE_BLOCK;
        int64_t n = n_in - b * M5_TILE_BLOCK;
        n = n < 0 ? 0 : n < M5_TILE_BLOCK ? n : M5_TILE_BLOCK;
        memcpy(dst, src + b * M5_TILE_BLOCK, (size_t)n * sizeof(float));
        memset(dst + n, 0, (size_t)(M5_TILE_BLOCK - n) * sizeof(float));
    }
}

static void quant_range(void *ctx, int64_t begin, int64_t end, int worker)
{
    quant_job *j = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const m5_tile_x x = x_set(j->x, i / M5_TILE_TOK);
        const int t = (int)(i % M5_TILE_TOK);
        const float *src = j->src + (j->rows ? j->rows[i] : i) * j->ld;
        if (j->want_float) copy_float_row(&x, t, src, j->n_in, j->x->n_blk);
        if (!j->want_int) continue;
        const int64_t n_blk = j->n_in / M5_TILE_BLOCK;
        j->c->k.quant_x(&x, t, src, n_blk);
        for (int64_t b = n_blk; b < j->x->n_blk; b++) {
            const int64_t at = b * x.n_tok + t;
            memset(x.q + at * M5_TILE_BLOCK, 0, M5_TILE_BLOCK);
            x.d[at] = x.dsum[at] = 0;
            x.nsum[at] = x.nhalf[2 * at] = x.nhalf[2 * at + 1] = 0;
        }
    }
}

/* n_tok rows in the activation scratch, from block `at` on. */
static x_rows rows_at(const m5_cpu *c, int64_t at, int64_t n_in, int n_tok)
{
    x_rows x = {.base = c->linear->x, .n_blk = blocks_of(n_in), .n_tok = n_tok};
    x.base.q += at * M5_TILE_BLOCK;
    x.base.d += at;
    x.base.dsum += at;
    x.base.nsum += at;
    x.base.nhalf += 2 * at;
    x.base.f += at * M5_TILE_BLOCK;
    return x;
}

/* --- products ------------------------------------------------------------------------------------------------------------------- */

static void bind_product(const m5_cpu *c, product *p)
{
    const packed *pk = p->w->packed;
    if (pk) {
        p->shape = pk->shape;
        p->tiles = pk->tiles;
        return;
    }
    p->slow = !m5_tile_shape_of(&p->shape, p->w) || (c->act_f32 && !p->shape.float_x);
    if (p->slow) m5_tile_shape_f32(&p->shape, p->w->n_in);
}

/* The tile in memory; made in the worker's scratch if it is not packed. */
static const uint8_t *tile_of(const m5_cpu *c, const product *p, int64_t tile, int worker)
{
    if (p->tiles) return p->tiles + tile * p->shape.tile_bytes;
    float *row = c->work[worker];
    uint8_t *dst = (uint8_t *)(void *)(row + blocks_of(p->w->n_in) * M5_TILE_BLOCK);
    const int n_row = rows_of_tile(p->w, tile);
    if (!p->slow) {
        m5_tile_pack(&p->shape, p->w, tile * M5_TILE_ROWS, n_row, dst);
        return dst;
    }
    if (n_row < M5_TILE_ROWS || p->w->n_in % M5_TILE_BLOCK != 0) memset(dst, 0, (size_t)p->shape.tile_bytes);
    for (int r = 0; r < n_row; r++) {
        m5_matrix_row_f32(p->w, tile * M5_TILE_ROWS + r, row);
        m5_tile_put_row_f32(row, p->w->n_in, r, dst);
    }
    return dst;
}

static void store(const product *p, int64_t tile, int64_t first_tok, int n_tok, const float *acc)
{
    const int n_row = rows_of_tile(p->w, tile);
    const float *bias = p->bias ? p->bias + tile * M5_TILE_ROWS : NULL;
    for (int t = 0; t < n_tok; t++, acc += M5_TILE_ROWS) {
        float *y = p->y + (first_tok + t) * p->ldy + tile * M5_TILE_ROWS;
        if (bias) {
            for (int r = 0; r < n_row; r++) y[r] = acc[r] + bias[r];
        } else if (n_row == M5_TILE_ROWS) {
            memcpy(y, acc, sizeof(float) * M5_TILE_ROWS); /* a constant size: no call */
        } else {
            memcpy(y, acc, (size_t)n_row * sizeof(float));
        }
    }
}

/* Tiles [begin, end) of one product against all its tokens. */
static void run_tiles(const m5_cpu *c, const product *p, int64_t begin, int64_t end, int worker)
{
    _Alignas(64) float acc[2 * M5_TILE_TOK * M5_TILE_ROWS];
    const m5_tile_fn fn = c->k.tile[p->shape.kind], pair = p->tiles ? c->k.pair[p->shape.kind] : NULL;
    const int64_t n_set = (p->x->n_tok + M5_TILE_TOK - 1) / M5_TILE_TOK;
    int64_t piece = n_set > 1 ? L2_PIECE_BYTES / p->shape.tile_bytes / 2 * 2 : 2;
    if (piece < 2) piece = 2;
    if (!p->tiles) piece = 1;
    for (int64_t i = begin; i < end; i += piece) {
        const int64_t stop = end - i < piece ? end : i + piece;
        const uint8_t *made = p->tiles ? NULL : tile_of(c, p, i, worker);
        for (int64_t set = 0; set < n_set; set++) {
            const m5_tile_x x = x_set(p->x, set);
            int64_t tile = i;
            for (; pair && x.n_tok == M5_TILE_TOK && tile + 2 <= stop; tile += 2) {
                pair(acc, &p->shape, tile_of(c, p, tile, worker), &x);
                store(p, tile, set * M5_TILE_TOK, x.n_tok, acc);
                store(p, tile + 1, set * M5_TILE_TOK, x.n_tok, acc + M5_TILE_TOK * M5_TILE_ROWS);
            }
            for (; tile < stop; tile++) {
                fn(acc, &p->shape, made ? made : tile_of(c, p, tile, worker), &x);
                store(p, tile, set * M5_TILE_TOK, x.n_tok, acc);
            }
        }
    }
}

typedef struct products_job {
    const m5_cpu *c;
    const product *p;
    int n;
} products_job;

static void product_range(void *ctx, int64_t begin, int64_t end, int worker)
{
    products_job *j = ctx;
    for (int i = 0; i < j->n; i++) {
        const product *p = &j->p[i];
        const int64_t n_tile = (p->w->n_out + M5_TILE_ROWS - 1) / M5_TILE_ROWS;
        int64_t b = begin - p->first_tile, e = end - p->first_tile;
        if (b < 0) b = 0;
        if (e > n_tile) e = n_tile;
        if (b < e) run_tiles(j->c, p, b, e, worker);
    }
}

/* All products as one list of tiles, so that small matrices side by side cost one hand-out. */
static void run_products(m5_cpu *c, product *p, int n)
{
    int64_t n_tile = 0, bytes = 0;
    for (int i = 0; i < n; i++) {
        const int64_t tiles = (p[i].w->n_out + M5_TILE_ROWS - 1) / M5_TILE_ROWS;
        p[i].first_tile = n_tile;
        n_tile += tiles;
        bytes += tiles * p[i].shape.tile_bytes * p[i].x->n_tok;
    }
    if (n_tile == 0) return;
    products_job j = {c, p, n};
    m5_pool_for(c->pool, n_tile, 1 + MIN_PIECE_BYTES * n_tile / (bytes + 1), product_range, &j);
}

void m5_cpu_linear(m5_cpu *c, const m5_linear *jobs, int n_jobs, const float *x, int64_t ldx, int n_tok)
{
    enum { AT_ONCE = 8 };
    for (; n_jobs > 0; jobs += AT_ONCE, n_jobs -= AT_ONCE) {
        const int n = n_jobs < AT_ONCE ? n_jobs : AT_ONCE;
        product p[AT_ONCE];
        bool want_int = false, want_float = false;
        for (int i = 0; i < n; i++) {
            p[i] = (product){.w = jobs[i].w, .bias = jobs[i].bias, .y = jobs[i].y, .ldy = jobs[i].ldy};
            bind_product(c, &p[i]);
            if (p[i].shape.float_x)
                want_float = true;
            else
                want_int = true;
        }
        /* As many tokens at a time as the scratch holds: all of them after a fitting m5_cpu_reserve. */
        const int64_t n_in = jobs[0].w->n_in;
        M5_ASSERT(n_in <= c->max_in);
        int64_t step = c->linear->cap_blk / blocks_of(n_in);
        if (step < 1) step = 1;
        for (int64_t t = 0; t < n_tok; t += step) {
            const x_rows rows = rows_at(c, 0, n_in, (int)(n_tok - t < step ? n_tok - t : step));
            quant_job j = {c, &rows, x + t * ldx, NULL, ldx, n_in, want_int, want_float};
            m5_pool_for(c->pool, rows.n_tok, 1 + QUANT_PIECE_FLOATS / n_in, quant_range, &j);
            for (int i = 0; i < n; i++) {
                p[i].x = &rows;
                p[i].y = jobs[i].y + t * jobs[i].ldy;
            }
            run_products(c, p, n);
        }
    }
}

/* --- experts -------------------------------------------------------------------------------------------------------------------- */

/* One pass: the pairs (token, i-th expert) of some tokens, sorted by expert so that each expert's weights are read once. */
typedef struct expert_pass {
    const m5_matrix *gate, *up, *down;
    int act;
    const float *x, *wts;
    float *y;
    const int32_t *ids;
    int n_used;        /* per token, in ids and wts */
    int64_t t0, n_tok; /* tokens of this pass */
    int i0, n_i;       /* experts of each token in this pass */
} expert_pass;

static int by_key(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Fills sets (one per used expert, its pairs consecutive) and pos (where a pair went); returns the number of sets. */
static int sort_pairs(struct m5_cpu_linear_state *s, const expert_pass *e)
{
    const int64_t n = e->n_tok * e->n_i;
    int n_set = 0;
    for (int64_t p = 0; p < n; p++) {
        const int64_t id = e->ids[(e->t0 + p / e->n_i) * e->n_used + e->i0 + p % e->n_i];
        s->pair_key[p] = id << 32 | p;
    }
    qsort(s->pair_key, (size_t)n, sizeof *s->pair_key, by_key);
    for (int64_t k = 0; k < n; k++) {
        const int64_t pair = s->pair_key[k] & 0xffffffff;
        s->pair_pos[pair] = (int32_t)k;
        s->pair_row[k] = e->t0 + pair / e->n_i;
        if (k == 0 || s->pair_key[k] >> 32 != s->pair_key[k - 1] >> 32) {
            s->sets[n_set++] = (expert_set){.expert = s->pair_key[k] >> 32, .first = k};
        }
        s->sets[n_set - 1].n++;
    }
    return n_set;
}

typedef struct gather_job {
    const expert_pass *e;
    const struct m5_cpu_linear_state *s;
} gather_job;

/* y[t] += wts * out, expert after expert in the order of the router. */
static void gather_range(void *ctx, int64_t begin, int64_t end, int worker)
{
    const gather_job *j = ctx;
    const expert_pass *e = j->e;
    const int64_t n = e->down->n_out;
    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        float *y = e->y + (e->t0 + t) * n;
        for (int i = 0; i < e->n_i; i++) {
            const float w = e->wts[(e->t0 + t) * e->n_used + e->i0 + i];
            const float *out = j->s->pair_out + j->s->pair_pos[t * e->n_i + i] * n;
            for (int64_t k = 0; k < n; k++) y[k] = y[k] + w * out[k];
        }
    }
}

typedef struct expert_quant {
    const m5_cpu *c;
    const float *src;
    const int64_t *rows; /* NULL: the rows are those of the sorted pairs */
    int64_t n_in;
    bool want_int, want_float;
} expert_quant;

static void expert_quant_range(void *ctx, int64_t begin, int64_t end, int worker)
{
    const expert_quant *e = ctx;
    for (int64_t i = begin; i < end; i++) {
        const expert_set *set = &e->c->linear->sets[i];
        const float *src = e->rows ? e->src : e->src + set->first * e->n_in;
        quant_job j = {e->c, &set->x, src, e->rows ? e->rows + set->first : NULL, e->n_in, e->n_in, e->want_int, e->want_float};
        quant_range(&j, 0, set->n, worker);
    }
}

static void expert_phase(m5_cpu *c, int n_set, const m5_matrix *a, float *ya, const m5_matrix *b, float *yb, const float *src, const int64_t *rows)
{
    struct m5_cpu_linear_state *s = c->linear;
    expert_quant q = {.c = c, .src = src, .rows = rows, .n_in = a->n_in};
    int n = 0;
    for (int i = 0; i < n_set; i++) {
        expert_set *set = &s->sets[i];
        set->x = rows_at(c, set->first * blocks_of(a->n_in), a->n_in, set->n);
        for (int k = 0; k < (b ? 2 : 1); k++, n++) {
            const m5_matrix *w = k ? &b[set->expert] : &a[set->expert];
            s->products[n] = (product){.w = w, .y = (k ? yb : ya) + set->first * w->n_out, .ldy = w->n_out, .x = &set->x};
            bind_product(c, &s->products[n]);
            if (s->products[n].shape.float_x)
                q.want_float = true;
            else
                q.want_int = true;
        }
    }
    m5_pool_for(c->pool, n_set, 1, expert_quant_range, &q);
    run_products(c, s->products, n);
}

static void run_expert_pass(m5_cpu *c, const expert_pass *e)
{
    struct m5_cpu_linear_state *s = c->linear;
    const int n_set = sort_pairs(s, e);
    expert_phase(c, n_set, e->gate, s->pair_gate, e->up, s->pair_up, e->x, s->pair_row);
    m5_cpu_glu(c, s->pair_gate, s->pair_gate, s->pair_up, e->n_tok * e->n_i, (int)e->gate->n_out, e->act);
    expert_phase(c, n_set, e->down, s->pair_out, NULL, NULL, s->pair_gate, NULL);
    gather_job j = {e, s};
    m5_pool_for(c->pool, e->n_tok, 4, gather_range, &j);
}

void m5_cpu_experts(m5_cpu *c, const m5_matrix *gate, const m5_matrix *up, const m5_matrix *down, int act, const float *x, float *y, int n_tok,
                    const int32_t *ids, const float *wts, int n_used)
{
    const int64_t cap = c->linear->cap_pair;
    expert_pass e = {.gate = gate, .up = up, .down = down, .act = act, .x = x, .y = y, .ids = ids, .wts = wts, .n_used = n_used};
    const int64_t tok_step = n_used <= cap ? cap / (n_used > 0 ? n_used : 1) : 1;
    const int i_step = n_used <= cap ? n_used : (int)cap;
    for (e.t0 = 0; e.t0 < n_tok; e.t0 += tok_step) {
        e.n_tok = n_tok - e.t0 < tok_step ? n_tok - e.t0 : tok_step;
        for (e.i0 = 0; e.i0 < n_used; e.i0 += i_step) {
            e.n_i = n_used - e.i0 < i_step ? n_used - e.i0 : i_step;
            run_expert_pass(c, &e);
        }
    }
}
