/* SPDX-License-Identifier: Apache-2.0 */
/* Normalizers: Unicode forms with utf8proc's data, replacement, prefix. Canonical ordering is our own, since utf8proc's is quadratic in the number
 * of marks on one letter, and the marks of the Unicode versions after 9 are left alone, as the Hugging Face library leaves them. */
#include "text/tokenizer_internal.h"

#include <string.h>
#include <utf8proc.h>

typedef struct cp_range {
    uint32_t lo, hi;
} cp_range;

/* Marks that got a combining class after Unicode 9, and U+11930 and U+11938, whose composition is younger too: class 0 and inert for us. Found by
 * asking the Hugging Face library to order each mark. */
static const cp_range verbatim[] = {
    {0x7FD, 0x7FD},     {0x898, 0x89F},     {0x8CA, 0x8D3},     {0x9FE, 0x9FE},     {0xC3C, 0xC3C},     {0xD3B, 0xD3C},     {0xEBA, 0xEBA},
    {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},   {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF},
    {0x10F46, 0x10F50}, {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A}, {0x11930, 0x11930},
    {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943}, {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99},
    {0x11D42, 0x11D42}, {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F}, {0x1E130, 0x1E136},
    {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
};

/* Starters that compose with the character before them (Hangul vowels and finals, Indic vowel signs). */
static const cp_range second_starter[] = {
    {0x9BE, 0x9BE},     {0x9D7, 0x9D7},     {0xB3E, 0xB3E},     {0xB56, 0xB57},     {0xBBE, 0xBBE},     {0xBD7, 0xBD7},
    {0xCC2, 0xCC2},     {0xCD5, 0xCD6},     {0xD3E, 0xD3E},     {0xD57, 0xD57},     {0xDCF, 0xDCF},     {0xDDF, 0xDDF},
    {0x102E, 0x102E},   {0x1161, 0x1175},   {0x11A8, 0x11C2},   {0x1B35, 0x1B35},   {0x11127, 0x11127}, {0x1133E, 0x1133E},
    {0x11357, 0x11357}, {0x114B0, 0x114B0}, {0x114BA, 0x114BA}, {0x114BD, 0x114BD}, {0x115AF, 0x115AF},
};

/* Compatibility decompositions younger than Unicode 9, which that library does not know either. */
static const cp_range young_compat[] = {
    {0x32FF, 0x32FF}, {0xA7F2, 0xA7F4}, {0xAB69, 0xAB69}, {0x10781, 0x107BA}, {0x1E030, 0x1E06D}, {0x1F16C, 0x1F16C}, {0x1FBF0, 0x1FBF9},
};

static bool in_ranges(const cp_range *r, size_t n, uint32_t cp)
{
    size_t lo = 0, hi = n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > r[mid].hi)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < n && cp >= r[lo].lo;
}

static bool is_verbatim(const tok_norm *f, uint32_t cp)
{
    if (cp < verbatim[0].lo) return false;
    if (f->compat && in_ranges(young_compat, sizeof young_compat / sizeof young_compat[0], cp)) return true;
    return in_ranges(verbatim, sizeof verbatim / sizeof verbatim[0], cp);
}

/* True when nothing before cp can change it and it does not change by itself; what follows may still compose with it. */
static bool is_inert(const tok_norm *f, uint32_t cp)
{
    if (cp < 0x80) return true;
    bool nfc = f->compose && !f->compat;
    if (nfc && (cp < 0x300 || (cp >= 0x4E00 && cp <= 0x9FFF) || (cp >= 0xAC00 && cp <= 0xD7A3))) return true;
    if (cp >= 0xAC00 && cp <= 0xD7A3) return false;
    const utf8proc_property_t *p = utf8proc_get_property((utf8proc_int32_t)cp);
    return p->combining_class == 0 && p->decomp_seqindex == UINT16_MAX &&
           !in_ranges(second_starter, sizeof second_starter / sizeof second_starter[0], cp);
}

bool m5_tok_is_space(uint32_t cp)
{
    return (cp >= 9 && cp <= 13) || cp == 0x20 || cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 ||
           cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool m5_tok_is_word(uint32_t cp)
{
    if (cp < 0x80) return (cp >= '0' && cp <= '9') || (cp >= 'A' && cp <= 'Z') || (cp >= 'a' && cp <= 'z') || cp == '_';
    if (cp == 0x200C || cp == 0x200D || (cp >= 0x24B6 && cp <= 0x24E9)) return true; /* Join_Control; circled letters are Alphabetic */
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)m5_tok_older_char(cp));
    return (c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_NL) || c == UTF8PROC_CATEGORY_PC;
}

/* One step's output: text, and for each byte where in the original text it came from. */
typedef struct sink {
    m5_buf *text, *map;      /* map NULL = not wanted */
    const tok_range *in_map; /* of the step's input; NULL = the input is the original */
} sink;

static void put_map(sink *s, size_t begin, size_t end)
{
    tok_range r = {(uint32_t)begin, (uint32_t)end};
    if (s->in_map) r = (tok_range){s->in_map[begin].begin, s->in_map[end - 1].end};
    m5_buf_append(s->map, &r, sizeof r);
}

/* Bytes copied from the input, each from its own place. */
static void put_copy(sink *s, const char *in, size_t begin, size_t end)
{
    m5_buf_append(s->text, in + begin, end - begin);
    for (size_t i = begin; s->map && i < end; i++) put_map(s, i, i + 1);
}

/* New bytes that stand for input [begin, end), end > begin. */
static void put_new(sink *s, const char *text, size_t n, size_t begin, size_t end)
{
    m5_buf_append(s->text, text, n);
    for (size_t i = 0; s->map && i < n; i++) put_map(s, begin, end);
}

/* ---- Unicode forms ---- */

/* Stable order by combining class of one run of marks; tmp has room for n. */
static void order_marks(int32_t *cp, size_t n, int32_t *tmp)
{
    if (n <= 24) {
        for (size_t i = 1; i < n; i++) {
            int32_t v = cp[i];
            int c = utf8proc_get_property(v)->combining_class;
            size_t k = i;
            while (k && utf8proc_get_property(cp[k - 1])->combining_class > c) {
                cp[k] = cp[k - 1];
                k--;
            }
            cp[k] = v;
        }
        return;
    }
    size_t count[257] = {0};
    for (size_t i = 0; i < n; i++) count[(utf8proc_get_property(cp[i])->combining_class & 255) + 1]++;
    for (int c = 0; c < 256; c++) count[c + 1] += count[c];
    for (size_t i = 0; i < n; i++) tmp[count[utf8proc_get_property(cp[i])->combining_class & 255]++] = cp[i];
    memcpy(cp, tmp, n * sizeof *cp);
}

/* w->cps holds at least n code points afterwards (twice that: the second half is for sorting). */
static int reserve_cps(tok_work *w, size_t n)
{
    if (n * 2 <= w->cap_cps) return 0;
    size_t cap = n * 4;
    int32_t *p = m5_realloc(M5_MEM_SCRATCH, w->cps, cap * sizeof *p);
    if (!p) return m5_error_set(w->err, M5_ERR_NOMEM, "out of memory while normalising");
    w->cps = p;
    w->cap_cps = cap;
    return 0;
}

/* Normalises in[begin..end); the result is w->cps[0..*n). */
static int form_segment(tok_work *w, const tok_norm *f, const char *in, size_t begin, size_t end, size_t *n)
{
    int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (f->compat ? UTF8PROC_COMPAT : 0);
    size_t k = 0;
    for (size_t i = begin; i < end;) {
        uint32_t cp;
        int len = m5_utf8_decode(in + i, end - i, &cp), boundary = 0;
        i += len > 0 ? (size_t)len : 1;
        int rc = reserve_cps(w, k + 32); /* the longest decomposition has 18 */
        if (rc) return rc;
        utf8proc_ssize_t m = utf8proc_decompose_char((utf8proc_int32_t)cp, w->cps + k, 32, (utf8proc_option_t)options, &boundary);
        if (m < 0 || m > 32) {
            w->cps[k] = (int32_t)cp;
            m = 1;
        }
        k += (size_t)m;
    }
    for (size_t i = 0; i < k; i++) {
        size_t from = i;
        while (i < k && utf8proc_get_property(w->cps[i])->combining_class) i++;
        if (i - from > 1) order_marks(w->cps + from, i - from, w->cps + w->cap_cps / 2);
    }
    if (f->compose) {
        utf8proc_ssize_t m = utf8proc_normalize_utf32(w->cps, (utf8proc_ssize_t)k, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        if (m >= 0) k = (size_t)m;
    }
    *n = k;
    return 0;
}

static int put_segment(tok_work *w, sink *s, const tok_norm *f, const char *in, size_t begin, size_t end)
{
    size_t n;
    int rc = form_segment(w, f, in, begin, end, &n);
    if (rc) return rc;
    for (size_t i = 0; i < n; i++) {
        char utf8[4];
        int k = m5_utf8_encode((uint32_t)w->cps[i], utf8);
        put_new(s, utf8, (size_t)k, begin, end);
    }
    return 0;
}

/* Only stretches around characters that can change are looked at: an inert character, then everything up to the next inert one. */
static int apply_form(tok_work *w, sink *s, const tok_norm *f, const char *in, size_t n, bool *changed)
{
    size_t copied = 0, base = SIZE_MAX;
    for (size_t i = 0; i < n;) {
        if ((unsigned char)in[i] < 0x80) {
            base = i++;
            continue;
        }
        uint32_t cp;
        int len = m5_utf8_decode(in + i, n - i, &cp);
        size_t k = len > 0 ? (size_t)len : 1;
        if (is_verbatim(f, cp)) {
            base = SIZE_MAX;
            i += k;
            continue;
        }
        if (is_inert(f, cp)) {
            base = i;
            i += k;
            continue;
        }
        size_t begin = base != SIZE_MAX ? base : i, end = i + k;
        while (end < n) {
            len = m5_utf8_decode(in + end, n - end, &cp);
            if (is_verbatim(f, cp) || is_inert(f, cp)) break;
            end += len > 0 ? (size_t)len : 1;
        }
        put_copy(s, in, copied, begin);
        int rc = put_segment(w, s, f, in, begin, end);
        if (rc) return rc;
        copied = i = end;
        base = SIZE_MAX;
    }
    if (!copied) return 0;
    put_copy(s, in, copied, n);
    *changed = true;
    return 0;
}

static int apply_replace(tok_work *w, sink *s, const tok_norm *f, const char *in, size_t n, bool *changed)
{
    int rc = m5_tok_pattern_matches(w, &f->pattern, in, n);
    if (rc || !w->matches.n) return rc;
    size_t copied = 0;
    for (size_t i = 0; i < w->matches.n; i++) {
        tok_range m = w->matches.p[i];
        put_copy(s, in, copied, m.begin);
        size_t from = m.begin < n ? m.begin : n - 1;
        put_new(s, f->text, f->n_text, from, m.end > from ? m.end : from + 1);
        copied = m.end;
    }
    put_copy(s, in, copied, n);
    *changed = true;
    return 0;
}

int m5_tok_normalize(tok_work *w, const char *p, size_t n, m5_slice *out, const tok_range **map)
{
    const m5_tokenizer *t = w->t;
    m5_slice cur = {p, n};
    const tok_range *cur_map = NULL;
    int side = 0;
    for (size_t i = 0; i < t->n_norm && cur.n; i++) {
        const tok_norm *f = &t->norm[i];
        m5_buf *text = &w->norm[side], *bytes = &w->norm_map[side];
        sink s = {text, map ? bytes : NULL, cur_map};
        bool changed = false;
        int rc = 0;
        m5_buf_clear(text);
        m5_buf_clear(bytes);
        if (f->kind == TOK_NORM_FORM) {
            rc = apply_form(w, &s, f, cur.p, cur.n, &changed);
        } else if (f->kind == TOK_NORM_REPLACE) {
            rc = apply_replace(w, &s, f, cur.p, cur.n, &changed);
        } else {
            put_new(&s, f->text, f->n_text, 0, 1);
            put_copy(&s, cur.p, 0, cur.n);
            changed = true;
        }
        if (text->failed || bytes->failed) rc = m5_error_set(w->err, M5_ERR_NOMEM, "out of memory while normalising");
        if (rc) return rc;
        if (!changed) continue;
        cur = (m5_slice){text->p ? text->p : "", text->n};
        cur_map = map ? (const tok_range *)(const void *)bytes->p : NULL;
        side = !side;
    }
    *out = cur;
    if (map) *map = cur_map;
    return 0;
}
