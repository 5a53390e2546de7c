/* SPDX-License-Identifier: Apache-2.0 */
/* Formats: every block type against foreign decoders, bit for bit (tests/vectors/quant.vec); 16-bit floats exhaustively against arithmetic that
 * shares nothing with the code; views of rows; the type table. */
#include "kernels/quant.h"

#include "t.h"

#include <math.h>

enum { MAX_BYTES = 4096, MAX_ELEMS = 2048 };

static int hex_digit(int c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* One word of hex into out; returns its bytes, or 0. */
static size_t take_hex(char **p, uint8_t *out, size_t cap)
{
    size_t n = 0;
    while (**p == ' ') (*p)++;
    for (; hex_digit((*p)[0]) >= 0 && hex_digit((*p)[1]) >= 0 && n < cap; *p += 2) out[n++] = (uint8_t)(hex_digit((*p)[0]) << 4 | hex_digit((*p)[1]));
    return n;
}

static m5_dtype type_named(const char *name)
{
    for (int t = 0; t < M5_DTYPE_COUNT; t++) {
        if (strcmp(m5_dtype_get((m5_dtype)t)->name, name) == 0) return (m5_dtype)t;
    }
    return M5_DTYPE_COUNT;
}

/* Compares bits; the element after the end must be untouched. */
static void same_bits(const char *what, const float *got, const uint8_t *want, size_t n, float guard)
{
    size_t bad = 0, first = 0;
    for (size_t i = 0; i < n; i++) {
        if (memcmp(&got[i], want + 4 * i, 4) != 0 && bad++ == 0) first = i;
    }
    T_CHECK(bad == 0, "%s: %zu of %zu elements differ, first %zu: %a", what, bad, n, first, (double)got[first]);
    T_CHECK(got[n] == guard, "%s: wrote beyond its end", what);
}

static void check_gguf(const char *name, char *p)
{
    static uint8_t src[MAX_BYTES + 1], want[MAX_ELEMS * 4];
    static float out[MAX_ELEMS + 1];
    m5_dtype t = type_named(name);
    T_CHECK(t != M5_DTYPE_COUNT, "%s", name);
    if (t == M5_DTYPE_COUNT) return;
    const m5_dtype_info *info = m5_dtype_get(t);
    size_t n_src = take_hex(&p, src + 1, MAX_BYTES), n = take_hex(&p, want, sizeof want) / 4;
    T_CHECK(n > 0 && n_src / (size_t)info->block_bytes * (size_t)info->block == n && info->matrix, "%s: %zu bytes, %zu elements", name, n_src, n);
    out[n] = 12345.0f;
    m5_unpack_f32(t, src + 1, out, (int64_t)n); /* odd address on purpose */
    same_bits(name, out, want, n, 12345.0f);

    /* the same bytes as a matrix with two rows and a view of the second */
    int64_t n_row = (int64_t)(n_src / (size_t)info->block_bytes / 2);
    m5_matrix m = {.type = t, .n_out = 2, .n_in = n_row * info->block, .data = src + 1, .row_bytes = n_row * info->block_bytes};
    m5_matrix v = m5_matrix_rows(&m, 1, 1);
    out[m.n_in] = 12345.0f;
    m5_matrix_row_f32(&v, 0, out);
    T_EQ_INT(v.n_out, 1);
    same_bits(name, out, want + 4 * m.n_in, (size_t)m.n_in, 12345.0f);
}

static void check_mlx(char *p)
{
    static uint8_t codes[MAX_BYTES], scales[64], biases[64], want[MAX_ELEMS * 4];
    static float out[MAX_ELEMS + 1];
    char what[64], kind[8] = "";
    int bits = (int)strtol(p, &p, 10), group = (int)strtol(p, &p, 10), n_kind = 0;
    while (*p == ' ') p++;
    for (; *p != ' ' && n_kind < 7; p++) kind[n_kind++] = *p;
    snprintf(what, sizeof what, "MLX%d", bits);
    m5_dtype t = type_named(what);
    snprintf(what, sizeof what, "MLX%d group %d %s", bits, group, kind);
    size_t n_codes = take_hex(&p, codes, MAX_BYTES);
    take_hex(&p, scales, sizeof scales);
    take_hex(&p, biases, sizeof biases);
    size_t n = take_hex(&p, want, sizeof want) / 4;
    T_CHECK(t != M5_DTYPE_COUNT && n > 0 && n_codes == n * (size_t)bits / 8, "%s", what);
    m5_matrix m = {.type = t,
                   .n_out = 1,
                   .n_in = (int64_t)n,
                   .data = codes,
                   .row_bytes = (int64_t)n_codes,
                   .scales = scales,
                   .biases = biases,
                   .group = group,
                   .scale_type = type_named(kind)};
    out[n] = 12345.0f;
    m5_matrix_row_f32(&m, 0, out);
    same_bits(what, out, want, n, 12345.0f);

    /* as rows of one group each: row r of the view must use the scales of group r */
    m5_matrix rows = m;
    rows.n_in = group;
    rows.n_out = (int64_t)n / group;
    rows.row_bytes = (int64_t)group * bits / 8;
    for (int64_t r = 0; r < rows.n_out; r++) {
        m5_matrix v = m5_matrix_rows(&rows, r, 1);
        out[group] = 12345.0f;
        m5_matrix_row_f32(&v, 0, out);
        same_bits(what, out, want + 4 * r * group, (size_t)group, 12345.0f);
    }
}

static int check_vectors(void)
{
    FILE *f = fopen(M5_TEST_DATA "/quant.vec", "r");
    static char line[65536];
    int n = 0;
    T_CHECK(f != NULL, M5_TEST_DATA "/quant.vec");
    while (f && fgets(line, sizeof line, f)) {
        char name[16];
        int at = 0;
        if (sscanf(line, "gguf %15s%n", name, &at) == 1) {
            check_gguf(name, line + at);
            n++;
        } else if (strncmp(line, "mlx ", 4) == 0) {
            check_mlx(line + 4);
            n++;
        }
    }
    if (f) fclose(f);
    return n;
}

/* The value of a half by the definition of the format. */
static double half_value(unsigned h)
{
    int e = (int)(h >> 10 & 31), man = (int)(h & 1023);
    double v = e == 31 ? (man ? (double)NAN : (double)INFINITY) : e ? ldexp(1024 + man, e - 25) : ldexp(man, -24);
    return h & 0x8000 ? -v : v;
}

static void check_f16(void)
{
    size_t bad = 0, bad_round = 0;
    for (unsigned h = 0; h < 65536; h++) {
        double want = half_value(h);
        float got = m5_f16_to_f32((uint16_t)h);
        if (isnan(want) ? !isnan(got) : (double)got != want || !signbit(got) != !signbit(want)) bad++;
        uint16_t back = m5_f32_to_f16(got);
        if (isnan(want) ? !isnan(half_value(back)) : back != h) bad_round++;
    }
    T_CHECK(bad == 0, "%zu of 65536 halves widen wrongly", bad);
    T_CHECK(bad_round == 0, "%zu of 65536 halves do not come back", bad_round);
    bad = 0;
    for (unsigned h = 0; h < 0x7bff; h++) { /* between two neighbours: the even one on the tie, else the nearer */
        float mid = (float)((half_value(h) + half_value(h + 1)) / 2);
        uint16_t even = (uint16_t)(h & 1 ? h + 1 : h);
        if (m5_f32_to_f16(mid) != even || m5_f32_to_f16(nextafterf(mid, 0)) != h || m5_f32_to_f16(nextafterf(mid, 1e9f)) != h + 1) bad++;
        if (m5_f32_to_f16(-mid) != (even | 0x8000)) bad++;
    }
    T_CHECK(bad == 0, "%zu roundings are wrong", bad);
    T_EQ_INT(m5_f32_to_f16(65519.996f), 0x7bff);
    T_EQ_INT(m5_f32_to_f16(65520.0f), 0x7c00);
    T_EQ_INT(m5_f32_to_f16(3e38f), 0x7c00);
    T_EQ_INT(m5_f32_to_f16(-INFINITY), 0xfc00);
    T_EQ_INT(m5_f32_to_f16(0x1p-25f), 0);
    T_EQ_INT(m5_f32_to_f16(0x1.000002p-25f), 1);
    T_CHECK(isnan(half_value(m5_f32_to_f16(NAN))));
}

static void check_bf16(void)
{
    size_t bad = 0;
    for (unsigned h = 0; h < 65536; h++) {
        float v = m5_bf16_to_f32((uint16_t)h);
        if (isnan(v)) {
            if (!isnan(m5_bf16_to_f32(m5_f32_to_bf16(v)))) bad++;
            continue;
        }
        if (m5_f32_to_bf16(v) != h) bad++;
        if ((h & 0x7fff) >= 0x7f7f) continue;
        uint32_t mid = h << 16 | 0x8000u, below = mid - 1, above = mid + 1;
        float f[3];
        memcpy(&f[0], &below, 4);
        memcpy(&f[1], &mid, 4);
        memcpy(&f[2], &above, 4);
        if (m5_f32_to_bf16(f[0]) != h || m5_f32_to_bf16(f[1]) != (h & 1 ? h + 1 : h) || m5_f32_to_bf16(f[2]) != h + 1) bad++;
    }
    T_CHECK(bad == 0, "%zu roundings are wrong", bad);
    T_EQ_INT(m5_f32_to_bf16(3.4e38f), 0x7f80);
}

static void check_table(void)
{
    for (int t = 0; t < M5_DTYPE_COUNT; t++) {
        const m5_dtype_info *i = m5_dtype_get((m5_dtype)t);
        T_CHECK(i->name && i->block >= 1 && i->block_bytes >= 1, "type %d", t);
        T_CHECK(type_named(i->name) == (m5_dtype)t, "%s is used twice", i->name);
    }
    T_EQ_STR(m5_dtype_get(M5_DTYPE_COUNT)->name, "unknown");
    T_CHECK(!m5_dtype_get(M5_DTYPE_COUNT)->matrix && !m5_dtype_get(M5_U8)->matrix && m5_dtype_get(M5_MLX3)->matrix);
    m5_matrix none = {0};
    T_CHECK(!m5_matrix_present(&none));
}

int main(void)
{
    T_EQ_INT(check_vectors(), 16 + 18);
    check_f16();
    check_bf16();
    check_table();
    return t_done();
}
