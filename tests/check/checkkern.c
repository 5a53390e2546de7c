/* SPDX-License-Identifier: Apache-2.0 */
/* checkkern: packing against the formats' definition, the reference against double arithmetic, and every pointer that an instruction set changes
 * against the reference, bit for bit. Lists the levels that ran; with no level beyond the reference it still checks packing and reference.
 *   checkkern            all checks
 *   checkkern --bench [TYPE]   bytes per second and operations per second of every tile kind at every level
 *   checkkern --tile TYPE LEVEL N_IN N_TOK TIMES   one product, so many times, for counting instructions (tools/arm_count.py) */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "check/wmat.h"
#include "kernels/kernels.h"
#include "t.h"

#include <math.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { GUARD = 64, MAX_BLK = 512 };

static const uint32_t levels[] = {
    0, M5_ISA_AVX2, M5_ISA_AVX2 | M5_ISA_AVX512, M5_ISA_AVX2 | M5_ISA_AVX512 | M5_ISA_AMX, M5_ISA_NEON, M5_ISA_NEON | M5_ISA_I8MM};
enum { N_LEVEL = sizeof levels / sizeof *levels };

/* --- activations ---------------------------------------------------------------------------------------------------------------- */

typedef struct xbuf {
    m5_tile_x x;
    int64_t n_blk;
} xbuf;

static void x_alloc(xbuf *b, int64_t n_blk, int n_tok)
{
    const size_t n = (size_t)(n_blk * n_tok);
    b->n_blk = n_blk;
    b->x = (m5_tile_x){.q = calloc(n + 1, 32),
                       .d = calloc(n + 1, 4),
                       .dsum = calloc(n + 1, 4),
                       .nsum = calloc(n + 1, 4),
                       .nhalf = calloc(n + 1, 8),
                       .f = calloc(n + 1, 128),
                       .n_tok = n_tok};
}

static void x_free(xbuf *b)
{
    free(b->x.q);
    free(b->x.d);
    free(b->x.dsum);
    free(b->x.nsum);
    free(b->x.nhalf);
    free(b->x.f);
}

/* mode 0: random; 1: every value +-1 (all codes +-127); 2: zero and tiny; 3: huge */
static void x_fill(float *src, int64_t n, int mode, uint64_t *seed)
{
    for (int64_t i = 0; i < n; i++) {
        const float u = w_unit(seed);
        src[i] = mode == 0 ? 3 * u : mode == 1 ? (w_next(seed) & 1 ? 1.0f : -1.0f) : mode == 2 ? (i / 32 % 2 ? 0 : u * 1e-37f) : u * 1e30f;
    }
}

static void x_set(const m5_kernels *k, xbuf *b, const float *src, int64_t n_in, bool as_float)
{
    for (int t = 0; t < b->x.n_tok; t++, src += n_in) {
        if (!as_float) {
            k->quant_x(&b->x, t, src, n_in / 32);
        } else {
            for (int64_t i = 0; i < n_in; i++) b->x.f[((i / 32) * b->x.n_tok + t) * 32 + i % 32] = src[i];
        }
    }
}

/* --- slots ---------------------------------------------------------------------------------------------------------------------- */

static void check_quant_x(const m5_kernels *ref, const m5_kernels *k, const char *level)
{
    uint64_t seed = 7;
    for (int n_blk = 0; n_blk <= 9; n_blk++) {
        for (int n_tok = 1; n_tok <= 3; n_tok++) {
            for (int mode = 0; mode < 4; mode++) {
                xbuf a, b;
                float src[32 * 9 * 3];
                x_fill(src, 32 * n_blk * n_tok, mode, &seed);
                x_alloc(&a, n_blk, n_tok);
                x_alloc(&b, n_blk, n_tok);
                x_set(ref, &a, src, 32 * n_blk, false);
                x_set(k, &b, src, 32 * n_blk, false);
                const size_t n = (size_t)(n_blk * n_tok + 1); /* one more: nothing may be written there */
                const bool same = memcmp(a.x.q, b.x.q, 32 * n) == 0 && memcmp(a.x.d, b.x.d, 4 * n) == 0 && memcmp(a.x.dsum, b.x.dsum, 4 * n) == 0 &&
                                  memcmp(a.x.nsum, b.x.nsum, 4 * n) == 0 && memcmp(a.x.nhalf, b.x.nhalf, 8 * n) == 0;
                T_CHECK(same, "quant_x %s: %d blocks, %d tokens, mode %d", level, n_blk, n_tok, mode);
                x_free(&a);
                x_free(&b);
            }
        }
    }
}

static const int lengths[] = {0, 1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 1000};
enum { N_LENGTH = sizeof lengths / sizeof *lengths };

static float special(int64_t i, uint64_t *seed)
{
    static const float v[] = {0,   -0.0f, 1e-40f, -1e-40f, 65504,    65519.9f,  65520, 1e9f,  -1e9f,  88,
                              -88, 90,    -110,   0.5f,    INFINITY, -INFINITY, 6e-8f, 3e-8f, 2.9e-8f};
    return i % 3 == 0 ? v[w_next(seed) % (sizeof v / sizeof *v)] : 20 * w_unit(seed);
}

static void check_narrow(void (*ref)(uint16_t *, const float *, int64_t), void (*fn)(uint16_t *, const float *, int64_t), const char *name,
                         const char *level)
{
    uint64_t seed = 11;
    for (int i = 0; i < N_LENGTH; i++) {
        float x[1001];
        uint16_t a[1000 + GUARD], b[1000 + GUARD];
        for (int k = 0; k < 1001; k++) x[k] = special(k, &seed);
        memset(a, 0x5a, sizeof a);
        memset(b, 0x5a, sizeof b);
        ref(a, x + 1, lengths[i]);
        fn(b, x + 1, lengths[i]);
        T_CHECK(memcmp(a, b, sizeof a) == 0, "%s %s: length %d", name, level, lengths[i]);
    }
}

static void check_f32_f16(const m5_kernels *ref, const m5_kernels *k, const char *level)
{
    check_narrow(ref->f32_f16, k->f32_f16, "f32_f16", level);
}
static void check_f32_bf16(const m5_kernels *ref, const m5_kernels *k, const char *level)
{
    check_narrow(ref->f32_bf16, k->f32_bf16, "f32_bf16", level);
}

static void check_act(void (*ref)(float *, const float *, const float *, int64_t), void (*fn)(float *, const float *, const float *, int64_t),
                      const char *name, const char *level, double (*exact)(double), double tol)
{
    uint64_t seed = 13;
    for (int i = 0; i < N_LENGTH; i++) {
        float g[1001], u[1001], a[1000 + GUARD], b[1000 + GUARD];
        for (int k = 0; k < 1001; k++) {
            g[k] = special(k, &seed);
            if (isinf(g[k])) g[k] = 0; /* inf / inf: NaN, whose bits are the processor's choice */
            if (fabsf(g[k]) > 1e6f) g[k] = 3;
            u[k] = w_unit(&seed);
        }
        memset(a, 0x5a, sizeof a);
        memset(b, 0x5a, sizeof b);
        ref(a, g + 1, u + 1, lengths[i]);
        fn(b, g + 1, u + 1, lengths[i]);
        T_CHECK(memcmp(a, b, sizeof a) == 0, "%s %s: length %d", name, level, lengths[i]);
        for (int k = 0; k < lengths[i]; k++) {
            const double want = exact(g[k + 1]) * u[k + 1];
            T_CHECK(fabs(a[k] - want) <= tol * fabs(want) + 1e-36, "%s(%g) = %g, not %g", name, g[k + 1], a[k], want);
        }
        memcpy(b, g, sizeof g);
        fn(b, b, u, lengths[i]);
        ref(a, g, u, lengths[i]);
        T_CHECK(memcmp(a, b, sizeof(float) * (size_t)lengths[i]) == 0, "%s %s: in place, length %d", name, level, lengths[i]);
    }
}

static double silu(double g)
{
    return g / (1 + exp(-g));
}
static double gelu(double g)
{
    return g / (1 + exp(-2 * sqrt(2 / acos(-1.0)) * (g + 0.044715 * g * g * g)));
}
static void check_silu_mul(const m5_kernels *ref, const m5_kernels *k, const char *level)
{
    check_act(ref->silu_mul, k->silu_mul, "silu_mul", level, silu, 5e-7);
}
/* The rounded argument of e^x is up to 80 here, and an error of 1 ulp in it is one of 80 in the result. */
static void check_gelu_mul(const m5_kernels *ref, const m5_kernels *k, const char *level)
{
    check_act(ref->gelu_mul, k->gelu_mul, "gelu_mul", level, gelu, 2e-5);
}

static void check_read_sum(const m5_kernels *ref, const m5_kernels *k, const char *level)
{
    uint8_t p[2000];
    uint64_t seed = 19;
    for (size_t i = 0; i < sizeof p; i++) p[i] = (uint8_t)w_next(&seed);
    for (size_t n = 0; n <= 1000; n++) T_CHECK(ref->read_sum(p + 3, n) == k->read_sum(p + 3, n), "read_sum %s: %zu bytes", level, n);
}

static void check_peak(int64_t (*fn)(int64_t), const char *name, const char *level)
{
    T_CHECK(fn(0) == 0 && fn(2000) == 2 * fn(1000) && fn(1000) > 0, "%s %s counts wrong", name, level);
}

static void check_peak_int(const m5_kernels *ref, const m5_kernels *k, const char *level)
{
    (void)ref;
    check_peak(k->peak_int, "peak_int", level);
}

static void check_peak_fma(const m5_kernels *ref, const m5_kernels *k, const char *level)
{
    (void)ref;
    check_peak(k->peak_fma, "peak_fma", level);
}

/* --- tiles ---------------------------------------------------------------------------------------------------------------------- */

typedef struct type_case {
    m5_dtype type;
    int group;
    m5_dtype scale_type;
} type_case;

static const type_case cases[] = {
    {M5_F32, 0, M5_F32},     {M5_F16, 0, M5_F32},    {M5_BF16, 0, M5_F32},    {M5_Q4_0, 0, M5_F32},   {M5_Q4_1, 0, M5_F32},   {M5_Q5_0, 0, M5_F32},
    {M5_Q5_1, 0, M5_F32},    {M5_Q8_0, 0, M5_F32},   {M5_Q2_K, 0, M5_F32},    {M5_Q3_K, 0, M5_F32},   {M5_Q4_K, 0, M5_F32},   {M5_Q5_K, 0, M5_F32},
    {M5_Q6_K, 0, M5_F32},    {M5_IQ4_NL, 0, M5_F32}, {M5_IQ4_XS, 0, M5_F32},  {M5_MXFP4, 0, M5_F32},  {M5_MLX4, 64, M5_BF16}, {M5_MLX4, 32, M5_F16},
    {M5_MLX4, 128, M5_BF16}, {M5_MLX8, 64, M5_F16},  {M5_MLX8, 128, M5_BF16}, {M5_MLX8, 32, M5_BF16},
};
enum { N_CASE = sizeof cases / sizeof *cases };

static int64_t unit_of(const type_case *c)
{
    return c->group ? c->group : m5_dtype_get(c->type)->block;
}

/* Rows read back from tiles are bit for bit those of the file. */
static void check_pack(const type_case *c, int64_t n_out, int64_t n_in, bool extreme)
{
    wmat w;
    m5_tile_shape s;
    w_make(&w, c->type, n_out, n_in, c->group, c->scale_type, 3, extreme);
    const char *name = m5_dtype_get(c->type)->name;
    T_CHECK(m5_tile_shape_of(&s, &w.m), "%s has no tile", name);
    uint8_t *tile = malloc((size_t)s.tile_bytes + GUARD);
    float *a = malloc((size_t)n_in * 4 + 4), *b = malloc((size_t)n_in * 4 + 4);
    for (int64_t row0 = 0; row0 < n_out; row0 += 16) {
        const int n_row = n_out - row0 < 16 ? (int)(n_out - row0) : 16;
        memset(tile, 0x5a, (size_t)s.tile_bytes + GUARD);
        m5_tile_pack(&s, &w.m, row0, n_row, tile);
        for (int i = 0; i < GUARD; i++) T_CHECK(tile[s.tile_bytes + i] == 0x5a, "%s: packing wrote beyond the tile", name);
        for (int r = 0; r < n_row; r++) {
            m5_matrix_row_f32(&w.m, row0 + r, a);
            m5_tile_row_f32(&s, &w.m, tile, r, b);
            T_CHECK(memcmp(a, b, (size_t)n_in * 4) == 0, "%s %lld x %lld: row %lld differs after packing", name, (long long)n_out, (long long)n_in,
                    (long long)row0 + r);
        }
    }
    free(tile);
    free(a);
    free(b);
    w_free(&w);
}

/* The reference against doubles over the unpacked rows and the quantised activations. */
static void check_meaning(const m5_matrix *m, const m5_tile_shape *s, const xbuf *x, const float *acc, int n_row)
{
    const m5_dtype d = m->type;
    const bool with_min = d == M5_Q4_1 || d == M5_Q5_1 || d == M5_Q2_K || d == M5_Q4_K || d == M5_Q5_K || w_is_mlx(d);
    float *row = malloc((size_t)m->n_in * 4 + 4);
    for (int r = 0; r < n_row; r++) {
        m5_matrix_row_f32(m, r, row);
        for (int t = 0; t < x->x.n_tok; t++) {
            double sum = 0, mag = 0;
            for (int64_t i = 0; i < m->n_in; i++) {
                const int64_t at = i / 32 * x->x.n_tok + t;
                const double v = row[i] * (s->float_x ? (double)x->x.f[at * 32 + i % 32] : (double)x->x.q[at * 32 + i % 32] * (double)x->x.d[at]);
                sum += v;
                /* Kinds with a minimum add two large sums that may cancel; w_fill_block's minimums times 63 are below 3.2. */
                mag += fabs(v) + (with_min ? 3.2 * fabs(s->float_x ? 0 : (double)x->x.q[at * 32 + i % 32] * (double)x->x.d[at]) : 0);
            }
            T_CHECK(fabs(acc[t * 16 + r] - sum) <= 32 * 6e-8 * mag + 1e-30, "%s: row %d token %d: %g, not %g (magnitude %g)",
                    m5_tile_kind_name(s->kind), r, t, acc[t * 16 + r], sum, mag);
        }
    }
    free(row);
}

typedef struct tables {
    m5_kernels k[N_LEVEL];
    bool have[N_LEVEL];
} tables;

/* Memory for tiles that ends where a page begins which nobody may touch, so that a kernel that reads past its tile is killed, also where the sanitizers do
 * not look. Good until the next call. */
static uint8_t *guarded(size_t bytes)
{
    enum { CAP = 4 << 20 };
    static uint8_t *end;
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (!end) {
        uint8_t *p = mmap(NULL, CAP + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED || mprotect(p + CAP, page, PROT_NONE) != 0) abort();
        end = p + CAP;
    }
    T_CHECK(bytes <= CAP && bytes % 64 == 0, "%zu bytes of tiles", bytes);
    return end - bytes;
}

/* Two different tiles at once give what each gives alone. */
static void check_pair(const m5_kernels *k, const m5_tile_shape *s, const m5_matrix *m, int n_row, const m5_tile_x *x)
{
    enum { ONE = M5_TILE_TOK * M5_TILE_ROWS };
    if (!k->pair[s->kind]) return;
    uint8_t *tiles = guarded((size_t)s->tile_bytes * 2);
    float both[2 * ONE + GUARD], alone[2 * ONE + GUARD];
    memset(both, 0x5a, sizeof both);
    memset(alone, 0x5a, sizeof alone);
    for (int i = 0; i < 2; i++) {
        m5_tile_pack(s, m, i * (n_row / 2), n_row - i * (n_row / 2), tiles + i * s->tile_bytes);
        k->tile[s->kind](alone + i * ONE, s, tiles + i * s->tile_bytes, x);
    }
    k->pair[s->kind](both, s, tiles, x);
    T_CHECK(memcmp(both, alone, sizeof both) == 0, "pair of tiles %s %s: %d tokens", m5_tile_kind_name(s->kind), m5_isa_name(k->isa), x->n_tok);
}

static void check_tile_case(const tables *tab, const type_case *c, int64_t n_in, int n_row, int n_tok, int mode, bool extreme)
{
    wmat w;
    m5_tile_shape s;
    xbuf x;
    uint64_t seed = 17;
    w_make(&w, c->type, n_row, n_in, c->group, c->scale_type, 5, extreme);
    m5_tile_shape_of(&s, &w.m);
    x_alloc(&x, s.n_group * s.group_blk, n_tok);
    float *src = malloc((size_t)(n_in * n_tok) * 4 + 4), acc[N_LEVEL][16 * 16 + GUARD];
    x_fill(src, n_in * n_tok, mode, &seed);
    x_set(&tab->k[0], &x, src, n_in, s.float_x);
    for (int l = 0; l < N_LEVEL; l++) {
        if (!tab->have[l]) continue;
        check_pair(&tab->k[l], &s, &w.m, n_row, &x.x);
        uint8_t *tile = guarded((size_t)s.tile_bytes);
        m5_tile_pack(&s, &w.m, 0, n_row, tile);
        memset(acc[l], 0x5a, sizeof acc[l]);
        tab->k[l].tile[s.kind](acc[l], &s, tile, &x.x);
        T_CHECK(memcmp(acc[0], acc[l], sizeof acc[l]) == 0, "tile %s %s: n_in %lld, %d rows, %d tokens, mode %d", m5_tile_kind_name(s.kind),
                m5_isa_name(tab->k[l].isa), (long long)n_in, n_row, n_tok, mode);
    }
    if (mode != 2) check_meaning(&w.m, &s, &x, acc[0], n_row);
    free(src);
    x_free(&x);
    w_free(&w);
}

static void check_tiles(const tables *tab)
{
    for (int i = 0; i < N_CASE; i++) {
        const int64_t unit = unit_of(&cases[i]);
        const int64_t sizes[] = {0, unit, 2 * unit, 3 * unit, 5 * unit, unit < 64 ? 33 * unit : 9 * unit};
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            for (int extreme = 0; extreme < 2; extreme++) {
                check_pack(&cases[i], 33, sizes[k], extreme);
                for (int mode = 0; mode < 4; mode++) {
                    check_tile_case(tab, &cases[i], sizes[k], 16, 1, mode, extreme);
                    check_tile_case(tab, &cases[i], sizes[k], 5, 3, mode, extreme);
                }
                check_tile_case(tab, &cases[i], sizes[k], 16, 16, 0, extreme);
                for (int n_tok = 2; n_tok <= M5_TILE_TOK; n_tok += 1 + n_tok / 6) check_tile_case(tab, &cases[i], sizes[k], 16, n_tok, 1, extreme);
            }
        }
        for (int n_tok = 1; n_tok <= 16; n_tok++) check_tile_case(tab, &cases[i], 2 * unit, 16, n_tok, 0, false);
    }
}

/* --- timing --------------------------------------------------------------------------------------------------------------------- */

/* Time of this thread: on a shared machine, time in which it did not run says nothing about the kernel. */
static double now_s(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

/* n_tile tiles in a row, so that weights come from memory for the sizes given there. */
static void bench_case(const m5_kernels *k, const type_case *c, int64_t n_in, int64_t n_tile, int n_tok)
{
    wmat w;
    m5_tile_shape s;
    xbuf x;
    uint64_t seed = 1;
    w_make(&w, c->type, 16, n_in, c->group, c->scale_type, 5, false);
    m5_tile_shape_of(&s, &w.m);
    const size_t huge = 2 << 20, n_bytes = ((size_t)(s.tile_bytes * n_tile) + huge - 1) / huge * huge;
    uint8_t *tiles = aligned_alloc(huge, n_bytes);
#ifdef MADV_HUGEPAGE
    madvise(tiles, n_bytes, MADV_HUGEPAGE); /* as the backend keeps them */
#endif
    for (int64_t i = 0; i < n_tile; i++) m5_tile_pack(&s, &w.m, 0, 16, tiles + i * s.tile_bytes);
    x_alloc(&x, s.n_group * s.group_blk, n_tok);
    float *src = malloc((size_t)(n_in * n_tok) * 4), acc[512];
    x_fill(src, n_in * n_tok, 0, &seed);
    x_set(k, &x, src, n_in, s.float_x);
    double best = 1e9;
    for (int round = 0; round < 15; round++) {
        const double t0 = now_s();
        const m5_tile_fn pair = n_tok == M5_TILE_TOK ? k->pair[s.kind] : NULL; /* as the backend does */
        for (int64_t i = 0; i < n_tile; i += pair ? 2 : 1) (pair ? pair : k->tile[s.kind])(acc, &s, tiles + i * s.tile_bytes, &x.x);
        const double t = now_s() - t0;
        if (t < best) best = t;
    }
    printf("%-10s %-12s n_in %5lld tok %2d: %7.2f GB/s %8.1f Gop/s\n", m5_tile_kind_name(s.kind), m5_isa_name(k->isa), (long long)n_in, n_tok,
           (double)(s.tile_bytes * n_tile) / best * 1e-9, 2e-9 * 16 * (double)(n_in * n_tile * n_tok) / best);
    free(src);
    free(tiles);
    x_free(&x);
    w_free(&w);
}

static void bench_peaks(const tables *tab)
{
    for (int l = 0; l < N_LEVEL; l++) {
        if (!tab->have[l]) continue;
        double best[2] = {0, 0};
        for (int round = 0; round < 10; round++) {
            for (int i = 0; i < 2; i++) {
                const double t0 = now_s(), ops = (double)(i ? tab->k[l].peak_fma : tab->k[l].peak_int)(1 << 18), rate = ops / (now_s() - t0);
                if (rate > best[i]) best[i] = rate;
            }
        }
        printf("%-23s integer peak %8.1f Gop/s, f32 peak %8.1f Gflop/s\n", m5_isa_name(tab->k[l].isa), best[0] * 1e-9, best[1] * 1e-9);
    }
}

static void bench(const tables *tab, const char *only)
{
    for (int i = 0; i < N_CASE; i++) {
        if (only && strcmp(only, m5_dtype_get(cases[i].type)->name) != 0) continue;
        for (int l = 1; l < N_LEVEL; l++) {
            if (!tab->have[l]) continue;
            bench_case(&tab->k[l], &cases[i], 1024, 16, 1);   /* from the second-level cache */
            bench_case(&tab->k[l], &cases[i], 1024, 8192, 1); /* from memory */
            bench_case(&tab->k[l], &cases[i], 1024, 8192, 5);
            bench_case(&tab->k[l], &cases[i], 1024, 16, 5);
            bench_case(&tab->k[l], &cases[i], 1024, 16, 16);
            bench_case(&tab->k[l], &cases[i], 3584, 16, 16);
        }
    }
}

/* LEVEL as m5_isa_name has it. */
static int run_tile(const tables *tab, char **arg)
{
    for (int i = 0; i < N_CASE; i++) {
        for (int l = 0; l < N_LEVEL; l++) {
            const int64_t n_in = atoll(arg[2]);
            if (!tab->have[l] || strcmp(arg[0], m5_dtype_get(cases[i].type)->name) != 0 || strcmp(arg[1], m5_isa_name(tab->k[l].isa)) != 0) continue;
            if (n_in < 1 || n_in > 1 << 16 || n_in % unit_of(&cases[i]) != 0 || atoi(arg[3]) < 1 || atoi(arg[3]) > M5_TILE_TOK) return 2;
            wmat w;
            m5_tile_shape s;
            xbuf x;
            float acc[M5_TILE_TOK * M5_TILE_ROWS];
            w_make(&w, cases[i].type, M5_TILE_ROWS, n_in, cases[i].group, cases[i].scale_type, 5, false);
            m5_tile_shape_of(&s, &w.m);
            uint8_t *tile = aligned_alloc(64, (size_t)(s.tile_bytes + 63) / 64 * 64);
            m5_tile_pack(&s, &w.m, 0, M5_TILE_ROWS, tile);
            x_alloc(&x, s.n_group * s.group_blk, atoi(arg[3]));
            for (int k = atoi(arg[4]); k > 0; k--) tab->k[l].tile[s.kind](acc, &s, tile, &x.x);
            free(tile);
            x_free(&x);
            w_free(&w);
            return 0;
        }
    }
    return 2;
}

int main(int argc, char **argv)
{
    tables tab;
    for (int l = 0; l < N_LEVEL; l++) {
        m5_kernels_init(&tab.k[l], levels[l]);
        tab.have[l] = l == 0 || tab.k[l].isa == levels[l];
        if (tab.have[l]) printf("level %s\n", m5_isa_name(tab.k[l].isa));
    }
    if (argc > 1 && strcmp(argv[1], "--bench") == 0) {
        bench_peaks(&tab);
        bench(&tab, argc > 2 ? argv[2] : NULL);
        return 0;
    }
    if (argc == 7 && strcmp(argv[1], "--tile") == 0) return run_tile(&tab, argv + 2);
    for (int l = 0; l < N_LEVEL; l++) {
        if (!tab.have[l]) continue;
        const char *level = m5_isa_name(tab.k[l].isa);
#define CHECK_SLOT(name, ret, args)                                                                                                                  \
    if (l == 0 || tab.k[l].name != tab.k[0].name) check_##name(&tab.k[0], &tab.k[l], level);
        M5_KERNELS(CHECK_SLOT)
#undef CHECK_SLOT
    }
    check_tiles(&tab);
    return t_done();
}
