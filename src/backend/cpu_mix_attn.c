/* SPDX-License-Identifier: Apache-2.0 */
/* Attention over paged K and V. Room: backend/cpu_mix*.c.
 *
 * The keys a row sees are cut at absolute multiples of BLOCK. Each block gives, per row and head, (max m, sum l, weighted values o) of its own
 * softmax; blocks are folded into the running triple in order: M' = max(M, m)   a = e^(M - M')   b = e^(m - M')   L' = L a + l b   O' = O a + o b
 * result O / L Rows that share K and V (the query heads of a KV head, neighbouring tokens of one sequence) are computed together, so K and V are read
 * once per tile; with few rows the blocks are spread over threads and folded afterwards. Neither changes the arithmetic of a row.
 *
 * Cost per row, head and key: 2 fma per head component; bytes per tile, KV head and key: two rows of the cache. */
#include "backend/cpu_mix.h"

#include <math.h>
#include <string.h>

#include "base/mem.h"

enum {
    BLOCK = M5_ATTN_BLOCK,
    LD_SCORE = BLOCK + 16,
    TILE_ROWS = 64,      /* query rows x heads of a tile, at most */
    TILE_FLOATS = 16384, /* and their size: large, so that K and V pass by seldom, yet q stays in L2 */
    SPLIT_FLOATS = 1 << 20
};

_Static_assert(2 * TILE_FLOATS + TILE_ROWS * LD_SCORE <= M5_CPU_WORK_MIN_FLOATS, "a tile must fit the worker's scratch");
_Static_assert(TILE_ROWS * BLOCK <= TILE_FLOATS, "codes of weights must fit beside those of queries");

/* Memory of the split: per row and head (M, L), then the blocks' partial results. */
typedef struct mix_split {
    size_t n_float;
    float *ml, *parts;
    size_t cap_ml;
} mix_split;

int m5_cpu_reserve_attention(m5_cpu *c, int max_n_head, int max_head_dim, m5_error *err)
{
    /* Splitting pays below three tiles a thread. */
    const size_t n_row = (size_t)c->n_threads * 3 * TILE_ROWS, per_row = (size_t)max_head_dim + 2;
    size_t n_part = n_row * per_row, n_ml = n_row * (size_t)max_n_head * 2;
    if (n_part < SPLIT_FLOATS) n_part = SPLIT_FLOATS;
    const size_t bytes = sizeof(mix_split) + (n_part + n_ml) * sizeof(float);
    if (bytes <= c->mix_bytes) return 0;
    mix_split *s = m5_alloc(M5_MEM_SCRATCH, bytes);
    if (!s) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for %zu bytes of attention scratch", bytes);
    s->n_float = n_part;
    s->cap_ml = n_ml;
    s->ml = (float *)(void *)(s + 1);
    s->parts = s->ml + n_ml;
    m5_free(c->mix);
    c->mix = s;
    c->mix_bytes = bytes;
    return 0;
}

typedef struct attn_job {
    const m5_mix_kernels *k;
    const m5_attn_args *a;
    float **work;
    float *o;
    const float *q;
    int n_tok, group, tile_heads, n_sub, tile_tok; /* a unit: tile_tok rows x tile_heads of the n_sub parts of a KV head's group */
    int64_t n_tile;
    size_t head_bytes; /* one token of one head */
    int width;         /* head_dim padded with zeros as in the cache */
    /* split */
    mix_split *split;
    int block0, n_block;
} attn_job;

/* Keys [lo, hi) of a KV head, at most a block. */
typedef struct attn_keys {
    const uint8_t *const *pages;
    int kv_head, lo, hi;
} attn_keys;

/* Consecutive rows of one sequence x the heads [h0, h0 + n_head) that share a KV head. Row r of the tile = token r / n_head, head r % n_head. */
typedef struct attn_tile {
    int row0, n_tok, h0, n_head, kv_head;
    const uint8_t *const *pages;
    attn_keys next; /* read after this block's values, as far as known; hi <= lo: unknown */
    float *q, *s, *p; /* worker scratch: [n, width], [n, LD_SCORE], [n, width] */
    int16_t *codes;   /* keys in tiles: q as integers, times factor, in place of q; */
    int16_t *weights; /* then the softmax' weights, times weight_factor of their tile */
    float factor[TILE_ROWS], weight_factor[TILE_ROWS * BLOCK / M5_KV_TILE];
    float m[TILE_ROWS], l[TILE_ROWS];
    int lo[TILE_ROWS], hi[TILE_ROWS];         /* keys of the block that row r sees; hi <= lo: none */
    int see_lo[TILE_ROWS], see_hi[TILE_ROWS]; /* the same, counted from the first tile that is read */
} attn_tile;

static int first_key(const m5_attn_args *a, int row)
{
    return a->window > 0 && a->pos[row] >= a->window ? a->pos[row] - a->window + 1 : 0;
}

/* The rows from `row` on that may share a tile: same sequence, consecutive positions. */
static int run_length(const m5_attn_args *a, int row, int end)
{
    int n = 1;
    while (row + n < end && a->seq_of[row + n] == a->seq_of[row] && a->pos[row + n] == a->pos[row] + n) n++;
    return n;
}

static void tile_open(const attn_job *j, attn_tile *t, int worker, int row, int n_tok, int kv_head, int sub)
{
    const int hd = j->a->head_dim;
    t->row0 = row;
    t->n_tok = n_tok;
    t->kv_head = kv_head;
    t->h0 = kv_head * j->group + sub * j->tile_heads;
    t->n_head = j->group - sub * j->tile_heads < j->tile_heads ? j->group - sub * j->tile_heads : j->tile_heads;
    t->pages = (const uint8_t *const *)j->a->seqs[j->a->seq_of[row]].pages;
    t->q = j->work[worker];
    t->p = t->q + TILE_FLOATS;
    t->s = t->p + TILE_FLOATS;
    t->codes = (int16_t *)(void *)t->q;
    t->weights = t->codes + TILE_FLOATS;
    const m5_kv_code code = m5_kv_code_of(j->a->kv_type);
    for (int r = 0; r < n_tok * t->n_head; r++) {
        float *q = code.bytes ? t->p : t->q + (size_t)r * (size_t)j->width;
        const size_t from = (size_t)(row + r / t->n_head) * (size_t)j->a->n_head + (size_t)(t->h0 + r % t->n_head);
        memcpy(q, j->q + from * (size_t)hd, (size_t)hd * sizeof *q);
        for (int d = hd; d < j->width; d++) q[d] = 0;
        if (code.bytes)
            j->k->attn_query_codes(t->codes + (size_t)r * (size_t)j->width, &t->factor[r], q, j->width, j->a->scale, code.q_max);
    }
}

static const uint8_t *key_in(const attn_job *j, const uint8_t *const *pages, int kv_head, size_t offset, int pos)
{
    return pages[pos / j->a->page_tok] + offset + (size_t)(kv_head * j->a->page_tok + pos % j->a->page_tok) * j->head_bytes;
}

static const uint8_t *key_at(const attn_job *j, const attn_tile *t, size_t offset, int pos)
{
    return key_in(j, t->pages, t->kv_head, offset, pos);
}

/* What rows [row, row + n_tok) of one sequence see of block b. */
static attn_keys keys_of(const attn_job *j, int row, int n_tok, int kv_head, int b)
{
    const int lo = first_key(j->a, row), hi = j->a->pos[row + n_tok - 1] + 1, key0 = b * BLOCK;
    return (attn_keys){.pages = (const uint8_t *const *)j->a->seqs[j->a->seq_of[row]].pages,
                       .kv_head = kv_head,
                       .lo = lo > key0 ? lo : key0,
                       .hi = hi < key0 + BLOCK ? hi : key0 + BLOCK};
}

/* Weighted values of tile rows [r0, r0 + n) over keys [lo, hi), page by page. */
static void add_values(const attn_job *j, const attn_tile *t, int block_key0, int r0, int n, int lo, int hi)
{
    const int hd = j->width, page_tok = j->a->page_tok;
    while (lo < hi) {
        const int end = (lo / page_tok + 1) * page_tok < hi ? (lo / page_tok + 1) * page_tok : hi;
        const uint8_t *ahead = end < hi                  ? key_at(j, t, j->a->v_offset, end)
                               : t->next.hi > t->next.lo ? key_in(j, t->next.pages, t->next.kv_head, j->a->k_offset, t->next.lo)
                                                         : NULL;
        j->k->attn_value[j->a->kv_type - M5_KV_F16](t->p + (size_t)r0 * (size_t)hd, t->s + (size_t)r0 * LD_SCORE + (lo - block_key0), LD_SCORE, n,
                                        key_at(j, t, j->a->v_offset, lo), (int64_t)j->head_bytes, end - lo, hd, ahead);
        lo = end;
    }
}

/* The tiles that hold these keys. */
static int key_tiles(const attn_job *j, const uint8_t **tiles, size_t offset, const attn_keys *k)
{
    int n = 0;
    for (int pos = k->lo - k->lo % M5_KV_TILE; pos < k->hi; pos += M5_KV_TILE) tiles[n++] = key_in(j, k->pages, k->kv_head, offset, pos);
    return n;
}

/* Scores and values of a block of keys in tiles, [lo, hi) being those that any row sees. Whole tiles are computed: sums over codes are exact, so that
 * keys which weigh nothing leave no trace. */
static void tile_block_codes(const attn_job *j, attn_tile *t, int key0, int lo, int hi)
{
    const m5_attn_args *a = j->a;
    const uint8_t *k[BLOCK / M5_KV_TILE], *v[BLOCK / M5_KV_TILE];
    const int n = t->n_tok * t->n_head, hd = j->width, from = lo - lo % M5_KV_TILE;
    const attn_keys keys = {t->pages, t->kv_head, lo, hi};
    const int n_tile = key_tiles(j, k, a->k_offset, &keys), n_key = n_tile * M5_KV_TILE;
    key_tiles(j, v, a->v_offset, &keys);
    float *s = t->s + (from - key0);
    j->k->attn_score_codes(a->kv_type, s, LD_SCORE, t->codes, t->factor, n, k, n_tile, hd, a->softcap, v);
    for (int r = 0; r < n; r++) {
        float *row = s + (size_t)r * LD_SCORE;
        const bool any = t->hi[r] > t->lo[r];
        t->see_lo[r] = any ? t->lo[r] - from : 0;
        t->see_hi[r] = any ? t->hi[r] - from : 0;
        if (any) j->k->attn_soft(row + t->see_lo[r], t->see_hi[r] - t->see_lo[r], &t->m[r], &t->l[r]);
        for (int i = 0; i < t->see_lo[r]; i++) row[i] = 0;
        for (int i = t->see_hi[r]; i < n_key; i++) row[i] = 0;
        j->k->attn_weight_codes(t->weights + r * BLOCK, t->weight_factor + r * (BLOCK / M5_KV_TILE), row, n_key);
    }
    const bool more = t->next.hi > t->next.lo;
    for (int i = more ? key_tiles(j, k, a->k_offset, &t->next) : n_tile; i < n_tile; i++) k[i] = k[0];
    const m5_attn_values values = {.o = t->p,
                                   .w = t->weights,
                                   .factor = t->weight_factor,
                                   .lo = t->see_lo,
                                   .hi = t->see_hi,
                                   .tiles = v,
                                   .ahead = more ? k : NULL,
                                   .n_q = n,
                                   .n_tile = n_tile,
                                   .tile_bytes = (int)j->head_bytes * M5_KV_TILE,
                                   .head_dim = hd,
                                   .w_max = m5_kv_code_of(a->kv_type).w_max};
    j->k->attn_value_codes(a->kv_type, &values);
}

/* The triple (m, l, p) of every tile row for block b. Keys outside a row's range never enter its sums, not even as zeros. */
static void tile_block(const attn_job *j, attn_tile *t, int b)
{
    const m5_attn_args *a = j->a;
    const int hd = j->width, n = t->n_tok * t->n_head, key0 = b * BLOCK;
    int lo = key0 + BLOCK, hi = key0, all_lo = key0, all_hi = key0 + BLOCK;
    for (int r = 0; r < n; r++) {
        const int row = t->row0 + r / t->n_head, f = first_key(a, row);
        t->lo[r] = f > key0 ? f : key0;
        t->hi[r] = a->pos[row] + 1 < key0 + BLOCK ? a->pos[row] + 1 : key0 + BLOCK;
        if (t->lo[r] < lo) lo = t->lo[r];
        if (t->hi[r] > hi) hi = t->hi[r];
        if (t->lo[r] > all_lo) all_lo = t->lo[r];
        if (t->hi[r] < all_hi) all_hi = t->hi[r];
    }
    if (m5_kv_in_tiles(a->kv_type)) {
        tile_block_codes(j, t, key0, lo, hi);
        return;
    }
    for (int k = lo; k < hi;) {
        const int end = (k / a->page_tok + 1) * a->page_tok < hi ? (k / a->page_tok + 1) * a->page_tok : hi;
        j->k->attn_score[a->kv_type - M5_KV_F16](t->s + (k - key0), LD_SCORE, t->q, n, key_at(j, t, a->k_offset, k), (int64_t)j->head_bytes, end - k, hd,
                                     a->scale, a->softcap, end < hi ? key_at(j, t, a->k_offset, end) : key_at(j, t, a->v_offset, lo));
        k = end;
    }
    memset(t->p, 0, (size_t)n * (size_t)hd * sizeof(float));
    for (int r = 0; r < n; r++)
        if (t->hi[r] > t->lo[r]) j->k->attn_soft(t->s + (size_t)r * LD_SCORE + (t->lo[r] - key0), t->hi[r] - t->lo[r], &t->m[r], &t->l[r]);
    if (all_lo >= all_hi) {
        for (int r = 0; r < n; r++) add_values(j, t, key0, r, 1, t->lo[r], t->hi[r]);
        return;
    }
    for (int r = 0; r < n; r++) add_values(j, t, key0, r, 1, t->lo[r], all_lo);
    add_values(j, t, key0, 0, n, all_lo, all_hi);
    for (int r = 0; r < n; r++) add_values(j, t, key0, r, 1, all_hi, t->hi[r]);
}

/* Folds a block's triple into the running one; *big_l == 0 means that nothing came before. */
static void fold(const m5_mix_kernels *k, float *o, float *big_m, float *big_l, const float *p, float m, float l, int hd)
{
    if (*big_l == 0.0f) {
        memcpy(o, p, (size_t)hd * sizeof *o);
        *big_m = m;
        *big_l = l;
        return;
    }
    const float top = m > *big_m ? m : *big_m;
    float e[2] = {*big_m - top, m - top};
    k->exp(e, 0.0f, 2);
    k->attn_merge(o, e[0], p, e[1], hd);
    *big_l = *big_l * e[0] + l * e[1];
    *big_m = top;
}

static float *out_row(const attn_job *j, int row, int head)
{
    return j->o + ((size_t)row * (size_t)j->a->n_head + (size_t)head) * (size_t)j->a->head_dim;
}

/* ---- many rows: a unit walks its blocks in order ---- */

static void whole_tile(const attn_job *j, attn_tile *t)
{
    const int n = t->n_tok * t->n_head, hd = j->a->head_dim;
    const int last = j->a->pos[t->row0 + t->n_tok - 1] / BLOCK;
    float big_m[TILE_ROWS], big_l[TILE_ROWS] = {0};
    for (int b = first_key(j->a, t->row0) / BLOCK; b <= last; b++) {
        t->next = keys_of(j, t->row0, t->n_tok, t->kv_head, b + 1);
        tile_block(j, t, b);
        for (int r = 0; r < n; r++) {
            if (t->hi[r] <= t->lo[r]) continue;
            fold(j->k, out_row(j, t->row0 + r / t->n_head, t->h0 + r % t->n_head), &big_m[r], &big_l[r], t->p + (size_t)r * (size_t)j->width, t->m[r],
                 t->l[r], hd);
        }
    }
    for (int r = 0; r < n; r++) j->k->scale(out_row(j, t->row0 + r / t->n_head, t->h0 + r % t->n_head), 1.0f / big_l[r], hd);
}

static void whole_units(void *ctx, int64_t begin, int64_t end, int worker)
{
    const attn_job *j = ctx;
    const int per_tile = j->a->n_head_kv * j->n_sub;
    attn_tile t;
    for (int64_t u = begin; u < end; u++) {
        /* Late rows see the most keys: they go first, so that no thread is left alone with them. */
        const int row0 = (int)(j->n_tile - 1 - u / per_tile) * j->tile_tok, kv = (int)(u % per_tile) / j->n_sub, sub = (int)(u % per_tile) % j->n_sub;
        const int row_end = row0 + j->tile_tok < j->n_tok ? row0 + j->tile_tok : j->n_tok;
        for (int row = row0; row < row_end;) {
            const int n = run_length(j->a, row, row_end);
            tile_open(j, &t, worker, row, n, kv, sub);
            whole_tile(j, &t);
            row += n;
        }
    }
}

/* ---- few rows: a unit is one block of a tile ---- */

static float *part_at(const attn_job *j, int row, int head, int block)
{
    const size_t i = ((size_t)row * (size_t)j->a->n_head + (size_t)head) * (size_t)j->n_block + (size_t)(block - j->block0);
    return j->split->parts + i * (size_t)(j->a->head_dim + 2);
}

/* Unit u: rows [row0, row_end), part `sub` of a KV head's group, block b. The heads of a block follow one another, as they do in memory: what the
 * processor fetches of its own accord behind one of them is the next. */
typedef struct split_unit {
    int row0, row_end, kv, sub, b;
} split_unit;

static split_unit split_at(const attn_job *j, int64_t u)
{
    const int per_tile = j->a->n_head_kv * j->n_sub;
    const int64_t v = u % (j->n_tile * per_tile);
    const int row0 = (int)(v / per_tile) * j->tile_tok;
    return (split_unit){.row0 = row0,
                        .row_end = row0 + j->tile_tok < j->n_tok ? row0 + j->tile_tok : j->n_tok,
                        .kv = (int)(v % per_tile) / j->n_sub,
                        .sub = (int)(v % per_tile) % j->n_sub,
                        .b = j->block0 + (int)(u / (j->n_tile * per_tile))};
}

static void split_units(void *ctx, int64_t begin, int64_t end, int worker)
{
    const attn_job *j = ctx;
    const int hd = j->a->head_dim;
    attn_tile t;
    for (int64_t u = begin; u < end; u++) {
        const split_unit s = split_at(j, u), after = split_at(j, u + 1);
        for (int row = s.row0; row < s.row_end;) {
            const int n_tok = run_length(j->a, row, s.row_end), b = s.b;
            if (first_key(j->a, row) / BLOCK <= b && j->a->pos[row + n_tok - 1] / BLOCK >= b) {
                tile_open(j, &t, worker, row, n_tok, s.kv, s.sub);
                t.next = keys_of(j, after.row0, run_length(j->a, after.row0, after.row_end), after.kv, after.b);
                tile_block(j, &t, b);
                for (int r = 0; r < n_tok * t.n_head; r++) {
                    if (t.hi[r] <= t.lo[r]) continue;
                    float *part = part_at(j, row + r / t.n_head, t.h0 + r % t.n_head, b);
                    part[0] = t.m[r];
                    part[1] = t.l[r];
                    memcpy(part + 2, t.p + (size_t)r * (size_t)j->width, (size_t)hd * sizeof *part);
                }
            }
            row += n_tok;
        }
    }
}

/* Folds blocks [block0, block0 + n_block) into row and head u. */
static void split_fold(void *ctx, int64_t begin, int64_t end, int worker)
{
    const attn_job *j = ctx;
    (void)worker;
    for (int64_t u = begin; u < end; u++) {
        const int row = (int)(u / j->a->n_head), head = (int)(u % j->a->n_head), hd = j->a->head_dim;
        const int first = first_key(j->a, row) / BLOCK, last = j->a->pos[row] / BLOCK, stop = j->block0 + j->n_block - 1;
        float *ml = j->split->ml + 2 * u, *o = out_row(j, row, head);
        for (int b = first > j->block0 ? first : j->block0; b <= last && b <= stop; b++) {
            const float *part = part_at(j, row, head, b);
            fold(j->k, o, &ml[0], &ml[1], part + 2, part[0], part[1], hd);
        }
        if (last >= j->block0 && last <= stop) j->k->scale(o, 1.0f / ml[1], hd);
    }
}

/* Returns false when splitting is not worth it or does not fit. */
static bool attention_split(m5_cpu *c, attn_job *j)
{
    const int64_t n_unit = j->n_tile * j->a->n_head_kv * j->n_sub, n_out = (int64_t)j->n_tok * j->a->n_head;
    int first = INT32_MAX, last = 0;
    if (!j->split || c->n_threads == 1 || n_unit >= 3 * (int64_t)c->n_threads || (size_t)n_out * 2 > j->split->cap_ml) return false;
    for (int t = 0; t < j->n_tok; t++) {
        const int f = first_key(j->a, t) / BLOCK, l = j->a->pos[t] / BLOCK;
        if (f < first) first = f;
        if (l > last) last = l;
    }
    const size_t fit = j->split->n_float / ((size_t)n_out * (size_t)(j->a->head_dim + 2));
    if (last - first < 1 || fit < 1) return false;
    memset(j->split->ml, 0, (size_t)n_out * 2 * sizeof(float));
    for (int b = first; b <= last; b += j->n_block) {
        j->block0 = b;
        j->n_block = (size_t)(last - b + 1) < fit ? last - b + 1 : (int)fit;
        m5_pool_for(c->pool, n_unit * j->n_block, 1, split_units, j);
        m5_cpu_mix_for(c, n_out, 0.1 * j->a->head_dim * j->n_block, split_fold, j);
    }
    return true;
}

void m5_cpu_attention(m5_cpu *c, float *o, const float *q, const m5_attn_args *a, int n_tok)
{
    if (n_tok <= 0) return;
    const int group = a->n_head / a->n_head_kv;
    const int width = m5_kv_head_width(a->kv_type, a->head_dim);
    int rows = TILE_FLOATS / width;
    if (rows > TILE_ROWS) rows = TILE_ROWS;
    attn_job j = {.k = m5_cpu_mix_kernels(c), .a = a, .work = c->work, .o = o, .q = q, .n_tok = n_tok, .group = group, .split = c->mix};
    j.tile_heads = group < rows ? group : rows;
    j.n_sub = (group + j.tile_heads - 1) / j.tile_heads;
    j.tile_tok = rows / j.tile_heads;
    j.n_tile = (n_tok + j.tile_tok - 1) / j.tile_tok;
    j.width = width;
    j.head_bytes = m5_kv_row_bytes(a->kv_type, 1, a->head_dim);
    if (attention_split(c, &j)) return;
    const int64_t n_unit = j.n_tile * a->n_head_kv * j.n_sub;
    const double keys = a->pos[n_tok - 1] + 1.0, seen = a->window > 0 && keys > a->window ? a->window : keys;
    m5_cpu_mix_for(c, n_unit, seen * a->head_dim * rows * 0.05, whole_units, &j);
}
