/* SPDX-License-Identifier: Apache-2.0 */
/* The pieces of JSON text as rules: strings, numbers, whitespace, any value; sets of code points as bytes. Not here: schemas.
 *
 * Numbers stay within what base/json.h reads as int64 and double: at most 18 digits before the point, 17 behind it, exponents of two digits. */
#include "text/grammar_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- code points ---- */

void m5_g_cps_add(g_cps *c, uint32_t lo, uint32_t hi)
{
    if (c->failed || lo > hi) return;
    if (!m5_g_grow(&c->p, c->n, &c->cap, 1, sizeof *c->p)) {
        c->failed = true;
        return;
    }
    c->p[c->n++] = (struct g_cp_range){lo, hi};
}

static int cmp_range(const void *x, const void *y)
{
    const struct g_cp_range *a = x, *b = y;
    return (a->lo > b->lo) - (a->lo < b->lo);
}

void m5_g_cps_norm(g_cps *c)
{
    size_t m = 0;
    if (c->n) qsort(c->p, c->n, sizeof *c->p, cmp_range);
    for (size_t i = 0; i < c->n; i++) {
        if (m && c->p[i].lo <= c->p[m - 1].hi + 1) {
            if (c->p[i].hi > c->p[m - 1].hi) c->p[m - 1].hi = c->p[i].hi;
        } else {
            c->p[m++] = c->p[i];
        }
    }
    c->n = m;
}

void m5_g_cps_invert(g_cps *c)
{
    g_cps out = {.failed = c->failed};
    uint32_t next = 0;
    m5_g_cps_norm(c);
    for (size_t i = 0; i < c->n; i++) {
        if (c->p[i].lo > next) m5_g_cps_add(&out, next, c->p[i].lo - 1);
        next = c->p[i].hi + 1;
    }
    if (next <= 0x10FFFF) m5_g_cps_add(&out, next, 0x10FFFF);
    m5_g_cps_free(c);
    *c = out;
}

void m5_g_cps_free(g_cps *c)
{
    m5_free(c->p);
    *c = (g_cps){0};
}

typedef struct kid_list {
    int32_t *p;
    size_t n, cap;
} kid_list;

static void push(m5_gb *b, kid_list *l, int32_t node)
{
    if (node < 0) return;
    if (!m5_g_grow(&l->p, l->n, &l->cap, 1, sizeof *l->p)) {
        m5_g_fail(b, M5_ERR_NOMEM, "out of memory for a grammar");
        return;
    }
    l->p[l->n++] = node;
}

static int32_t finish_alt(m5_gb *b, kid_list *l)
{
    int32_t r = m5_gb_alt(b, l->p, l->n);
    m5_free(l->p);
    return r;
}

/* [lo, hi] of code points with equally long encodings as sequences of byte ranges: cut where a trailing byte would not run over its whole range. */
static void utf8_range(m5_gb *b, kid_list *out, uint32_t lo, uint32_t hi)
{
    char x[4], y[4];
    int n = m5_utf8_encode(lo, x);
    for (int i = 1; i < n; i++) {
        uint32_t m = (1u << 6 * i) - 1;
        if ((lo & ~m) == (hi & ~m)) continue;
        if (lo & m) {
            utf8_range(b, out, lo, lo | m);
            utf8_range(b, out, (lo | m) + 1, hi);
            return;
        }
        if ((hi & m) != m) {
            utf8_range(b, out, lo, (hi & ~m) - 1);
            utf8_range(b, out, hi & ~m, hi);
            return;
        }
    }
    int32_t seq[4];
    m5_utf8_encode(hi, y);
    for (int i = 0; i < n; i++) seq[i] = m5_g_range(b, (uint8_t)x[i], (uint8_t)y[i]);
    push(b, out, m5_gb_seq(b, seq, (size_t)n));
}

/* The characters as alternatives, ASCII first in one set. In JSON, quotes, backslashes and controls come as escapes. */
static void chars_into(m5_gb *b, const g_cps *c, bool json, kid_list *out)
{
    static const uint32_t edge[][2] = {{0x80, 0x7FF}, {0x800, 0xD7FF}, {0xE000, 0xFFFF}, {0x10000, 0x10FFFF}};
    static const char letters[] = "bfnrt", controls[] = "\b\f\n\r\t";
    g_set ascii = {{0}}, named = {{0}}, low[2] = {{{0}}, {{0}}};
    if (c->failed) m5_g_fail(b, M5_ERR_NOMEM, "out of memory for a grammar");
    for (size_t i = 0; i < c->n; i++) {
        for (uint32_t ch = c->p[i].lo; ch <= c->p[i].hi && ch < 0x80; ch++) {
            const char *at = ch ? memchr(controls, (int)ch, 5) : NULL;
            if (!json || (ch >= 0x20 && ch != '"' && ch != '\\')) {
                m5_g_set_add(&ascii, ch, ch);
            } else if (ch >= 0x20) {
                m5_g_set_add(&named, ch, ch);
            } else if (at) {
                m5_g_set_add(&named, (uint8_t)letters[at - controls], (uint8_t)letters[at - controls]);
            } else {
                unsigned d = ch & 15;
                m5_g_set_add(&low[ch >> 4], d < 10 ? '0' + d : 'a' + d - 10, d < 10 ? '0' + d : 'a' + d - 10);
            }
        }
    }
    int32_t set = m5_g_set(b, &ascii);
    if (set >= 0 && b->node[set].kind == G_SET) push(b, out, set);
    for (size_t i = 0; i < c->n && !b->err.code; i++) {
        for (int e = 0; e < 4; e++) {
            uint32_t lo = c->p[i].lo > edge[e][0] ? c->p[i].lo : edge[e][0], hi = c->p[i].hi < edge[e][1] ? c->p[i].hi : edge[e][1];
            if (lo <= hi) utf8_range(b, out, lo, hi);
        }
    }
    if (!json) return;
    int32_t esc = m5_g_set(b, &named);
    if (esc >= 0 && b->node[esc].kind == G_SET) push(b, out, m5_g_seq2(b, m5_g_lit(b, "\\", 1), esc));
    for (int k = 0; k < 2; k++) {
        esc = m5_g_set(b, &low[k]);
        if (esc >= 0 && b->node[esc].kind == G_SET) push(b, out, m5_g_seq2(b, m5_g_lit(b, k ? "\\u001" : "\\u000", 5), esc));
    }
}

int32_t m5_g_chars(m5_gb *b, const g_cps *c, bool json)
{
    kid_list l = {0};
    chars_into(b, c, json, &l);
    return finish_alt(b, &l);
}

/* ---- strings ---- */

static int32_t hex(m5_gb *b, const char *ranges)
{
    g_set s = {{0}};
    for (; ranges[0]; ranges += 2) m5_g_set_add(&s, (uint8_t)ranges[0], (uint8_t)ranges[1]);
    return m5_g_set(b, &s);
}

/* What may follow a backslash: no lone surrogates, since such a text is not JSON for strict readers, and no U+0000, which many cannot take. */
static int32_t escape(m5_gb *b)
{
    int32_t x = hex(b, "09afAF"), x2 = m5_g_seq2(b, x, x), d = hex(b, "ddDD");
    int32_t some = hex(b, "19afAF"), zero = m5_g_lit(b, "0", 1),
            low = m5_g_seq2(b, zero, m5_g_alt2(b, m5_g_seq2(b, zero, some), m5_g_seq2(b, some, x)));
    int32_t basic = m5_g_alt2(b, m5_g_seq3(b, hex(b, "19acefACEF"), x, x2), m5_g_seq2(b, zero, m5_g_alt2(b, low, m5_g_seq2(b, some, x2))));
    int32_t below = m5_g_seq3(b, d, hex(b, "07"), x2);
    int32_t pair[] = {d, hex(b, "89abAB"), x2, m5_g_lit(b, "\\u", 2), d, hex(b, "cfCF"), x2};
    int32_t all[] = {basic, below, m5_gb_seq(b, pair, 7)};
    return m5_g_alt2(b, hex(b, "\"\"\\\\//bbffnnrrtt"), m5_g_seq2(b, m5_g_lit(b, "u", 1), m5_gb_alt(b, all, 3)));
}

static void plain_cps(g_cps *c)
{
    m5_g_cps_add(c, 0x20, 0x21);
    m5_g_cps_add(c, 0x23, 0x5B);
    m5_g_cps_add(c, 0x5D, 0x10FFFF);
}

int32_t m5_g_json_chars(m5_gb *b, uint32_t min, uint32_t max)
{
    g_cps c = {0};
    kid_list l = {0};
    plain_cps(&c);
    chars_into(b, &c, false, &l);
    m5_g_cps_free(&c);
    push(b, &l, m5_g_seq2(b, m5_g_lit(b, "\\", 1), escape(b)));
    return m5_g_rep(b, finish_alt(b, &l), min, max, G_NODE_STR);
}

int32_t m5_g_json_string(m5_gb *b, uint32_t min, uint32_t max)
{
    if (b->err.code) return -1;
    if (min > max) return m5_g_none(b);
    for (size_t i = 0; i < b->n_str_rule; i++) {
        if (b->str_rule[i].min == min && b->str_rule[i].max == max) return m5_g_ref(b, b->str_rule[i].rule, 0);
    }
    if (!m5_g_grow(&b->str_rule, b->n_str_rule, &b->cap_str_rule, 1, sizeof *b->str_rule)) {
        return m5_g_fail(b, M5_ERR_NOMEM, "out of memory for a grammar");
    }
    m5_g_block_begin(b);
    int32_t quote = m5_g_lit(b, "\"", 1), rule = m5_g_rule_new(b);
    m5_g_rule_set(b, rule, m5_g_seq3(b, quote, m5_g_json_chars(b, min, max), quote));
    m5_g_block_end(b);
    if (b->err.code) return -1;
    b->str_rule[b->n_str_rule++] = (struct g_str_rule){min, max, rule};
    return m5_g_ref(b, rule, 0);
}

int32_t m5_g_json_str_lit(m5_gb *b, m5_slice s)
{
    m5_buf text = {0};
    m5_json_write_str(&text, s.p, s.n);
    int32_t r = text.failed ? m5_g_fail(b, M5_ERR_NOMEM, "out of memory for a grammar") : m5_g_lit(b, text.p, text.n);
    m5_buf_free(&text);
    return r;
}

/* ---- values ---- */

static int32_t ref(m5_gb *b, g_json_rule which, unsigned flags)
{
    return m5_g_ref(b, m5_g_json(b, which), flags);
}
static int32_t ws(m5_gb *b)
{
    return ref(b, G_JSON_WS, 0);
}

/* open ws (item ("," ws item)* ws)? close */
static int32_t list_of(m5_gb *b, const char *open, int32_t item, const char *close)
{
    int32_t more = m5_g_rep(b, m5_g_seq3(b, m5_g_lit(b, ",", 1), ws(b), item), 0, G_INF, 0);
    int32_t seq[] = {m5_g_lit(b, open, 1), ws(b), m5_g_opt(b, m5_gb_seq(b, (int32_t[]){item, more, ws(b)}, 3)), m5_g_lit(b, close, 1)};
    return m5_gb_seq(b, seq, 4);
}

static int32_t digits(m5_gb *b, uint32_t min, uint32_t max)
{
    return m5_g_rep(b, m5_g_range(b, '0', '9'), min, max, 0);
}

static int32_t integer_body(m5_gb *b)
{
    int32_t free = m5_g_seq2(b, m5_g_range(b, '1', '9'), digits(b, 0, 17));
    return m5_g_seq2(b, m5_g_opt(b, m5_g_lit(b, "-", 1)), m5_g_alt2(b, m5_g_lit(b, "0", 1), free));
}

static int32_t number_body(m5_gb *b)
{
    int32_t fraction = m5_g_seq2(b, m5_g_lit(b, ".", 1), digits(b, 1, 17));
    int32_t exponent = m5_g_seq3(b, hex(b, "eeEE"), m5_g_opt(b, hex(b, "++--")), digits(b, 1, 2));
    return m5_g_seq3(b, integer_body(b), m5_g_opt(b, fraction), m5_g_opt(b, exponent));
}

static int32_t ws_body(m5_gb *b)
{
    int32_t indent = m5_g_alt2(b, m5_g_rep(b, m5_g_lit(b, " ", 1), 0, 32, 0), m5_g_rep(b, m5_g_lit(b, "\t", 1), 1, 16, 0));
    int32_t all[] = {m5_g_empty(b), m5_g_lit(b, " ", 1), m5_g_seq2(b, m5_g_lit(b, "\n", 1), indent)};
    return m5_gb_alt(b, all, 3);
}

/* Value, object and array refer to each other: one block. */
static void value_rules(m5_gb *b)
{
    int32_t string = m5_g_json_string(b, 0, G_INF), number = ref(b, G_JSON_NUMBER, 0);
    ws(b);
    m5_g_block_begin(b);
    int32_t value = b->json[G_JSON_VALUE] = m5_g_rule_new(b);
    int32_t object = b->json[G_JSON_OBJECT] = m5_g_rule_new(b);
    int32_t array = b->json[G_JSON_ARRAY] = m5_g_rule_new(b);
    int32_t inner = m5_g_ref(b, value, G_NODE_NEST), colon = m5_g_seq2(b, m5_g_lit(b, ":", 1), m5_g_opt(b, m5_g_lit(b, " ", 1)));
    int32_t key = string < 0 ? -1 : m5_g_ref(b, (int32_t)b->node[string].a, G_NODE_KEY);
    int32_t nested = m5_g_seq2(b, m5_g_guard(b), m5_g_alt2(b, m5_g_ref(b, object, 0), m5_g_ref(b, array, 0)));
    int32_t all[] = {nested, string, number, m5_g_lit(b, "true", 4), m5_g_lit(b, "false", 5), m5_g_lit(b, "null", 4)};
    m5_g_rule_set(b, value, m5_gb_alt(b, all, 6));
    m5_g_rule_set(b, object, list_of(b, "{", m5_g_seq3(b, key, colon, inner), "}"));
    m5_g_rule_set(b, array, list_of(b, "[", inner, "]"));
    m5_g_block_end(b);
}

int32_t m5_g_json(m5_gb *b, g_json_rule which)
{
    if (b->err.code) return -1;
    if (b->json[which] >= 0) return b->json[which];
    if (which <= G_JSON_ARRAY) {
        value_rules(b);
        return b->err.code ? -1 : b->json[which];
    }
    m5_g_block_begin(b);
    int32_t rule = m5_g_rule_new(b);
    m5_g_rule_set(b, rule, which == G_JSON_NUMBER ? number_body(b) : which == G_JSON_INTEGER ? integer_body(b) : ws_body(b));
    m5_g_block_end(b);
    return b->err.code ? -1 : (b->json[which] = rule);
}

int32_t m5_g_json_const(m5_gb *b, const m5_json *v)
{
    m5_json_type type = m5_json_typeof(v);
    if (type == M5_JSON_STRING) return m5_g_json_str_lit(b, m5_json_str(v));
    if (type != M5_JSON_ARRAY && type != M5_JSON_OBJECT) {
        m5_buf text = {0};
        m5_json_write(&text, v, 0);
        int32_t r = text.failed ? m5_g_fail(b, M5_ERR_NOMEM, "out of memory for a grammar") : m5_g_lit(b, text.p, text.n);
        m5_buf_free(&text);
        return r;
    }
    kid_list l = {0};
    bool object = type == M5_JSON_OBJECT;
    size_t n = m5_json_len(v), i = 0;
    push(b, &l, m5_g_seq2(b, m5_g_lit(b, object ? "{" : "[", 1), ws(b)));
    for (void *it = object ? m5_json_iter(v) : NULL; i < n && (it || !object) && !b->err.code; i++) {
        if (i) push(b, &l, m5_g_seq2(b, m5_g_lit(b, ",", 1), ws(b)));
        if (object) {
            push(b, &l, m5_g_json_str_lit(b, m5_json_iter_key(it)));
            push(b, &l, m5_g_seq2(b, m5_g_lit(b, ":", 1), m5_g_opt(b, m5_g_lit(b, " ", 1))));
        }
        push(b, &l, m5_g_json_const(b, object ? m5_json_iter_value(it) : m5_json_at(v, i)));
        if (object) it = m5_json_iter_next(v, it);
    }
    if (n) push(b, &l, ws(b));
    push(b, &l, m5_g_lit(b, object ? "}" : "]", 1));
    int32_t r = m5_gb_seq(b, l.p, l.n);
    m5_free(l.p);
    return r;
}

/* ---- keys that are none of some names ---- */

typedef struct name_tree {
    m5_gb *b;
    int32_t rest; /* a rule: the rest of a string that can be no name any more */
    int depth;
} name_tree;

/* names[0..n) share their first `at` bytes. Beyond them the string goes on differently, or with a character that some name goes on with. A character
 * may stand plain; escaped ones only where no name goes on with them, and \u, which can spell anything, not before the string differs. */
static int32_t name_node(name_tree *t, const m5_slice *names, size_t n, size_t at)
{
    enum { MAX_NAME = 120 };
    m5_gb *b = t->b;
    kid_list l = {0};
    g_cps next = {0};
    bool is_name = false;
    static const char escaped[] = "\"\\/\b\f\n\r\t", letters[] = "\"\\/bfnrt";
    g_set esc = {{0}};
    m5_g_set_add(&esc, '/', '/');
    for (int i = 0; i < 8; i++) m5_g_set_add(&esc, (uint8_t)letters[i], (uint8_t)letters[i]);
    for (size_t i = 0; i < n && !b->err.code;) {
        uint32_t cp;
        int len = m5_utf8_decode(names[i].p + at, names[i].n - at, &cp);
        if (len <= 0) {
            is_name = true;
            i++;
            continue;
        }
        size_t j = i;
        while (j < n && names[j].n >= at + (size_t)len && memcmp(names[j].p + at, names[i].p + at, (size_t)len) == 0) j++;
        m5_g_cps_add(&next, cp, cp);
        const char *e = cp && cp < 0x80 ? strchr(escaped, (int)cp) : NULL;
        if (e) esc.w[(uint8_t)letters[e - escaped] >> 6] &= ~((uint64_t)1 << ((uint8_t)letters[e - escaped] & 63));
        if (cp >= 0x20 && cp != '"' && cp != '\\' && t->depth < MAX_NAME) {
            t->depth++;
            int32_t deeper = name_node(t, names + i, j - i, at + (size_t)len);
            t->depth--;
            push(b, &l, m5_g_seq2(b, m5_g_lit(b, names[i].p + at, (size_t)len), m5_g_share(b, deeper)));
        }
        i = j;
    }
    m5_g_cps_add(&next, 0, 0x1F);
    m5_g_cps_add(&next, '"', '"');
    m5_g_cps_add(&next, '\\', '\\');
    m5_g_cps_invert(&next);
    int32_t rest = m5_g_ref(b, t->rest, 0);
    push(b, &l, m5_g_seq2(b, m5_g_chars(b, &next, false), rest));
    push(b, &l, m5_g_seq3(b, m5_g_lit(b, "\\", 1), m5_g_set(b, &esc), rest));
    if (!is_name) push(b, &l, m5_g_lit(b, "\"", 1));
    m5_g_cps_free(&next);
    return finish_alt(b, &l);
}

static int cmp_name(const void *x, const void *y)
{
    const m5_slice *a = x, *c = y;
    int d = memcmp(a->p, c->p, a->n < c->n ? a->n : c->n);
    return d ? d : (a->n > c->n) - (a->n < c->n);
}

int32_t m5_g_json_key_but(m5_gb *b, const m5_slice *names, size_t n)
{
    if (!n) return m5_g_json_string(b, 0, G_INF);
    if (b->err.code) return -1;
    m5_slice *s = m5_alloc(M5_MEM_TEXT, n * sizeof *s);
    if (!s) return m5_g_fail(b, M5_ERR_NOMEM, "out of memory for a grammar");
    memcpy(s, names, n * sizeof *s);
    qsort(s, n, sizeof *s, cmp_name);
    m5_g_block_begin(b);
    name_tree t = {.b = b, .rest = m5_g_rule_new(b)};
    m5_g_rule_set(b, t.rest, m5_g_seq2(b, m5_g_json_chars(b, 0, G_INF), m5_g_lit(b, "\"", 1)));
    m5_g_block_end(b);
    int32_t body = name_node(&t, s, n, 0);
    m5_free(s);
    return m5_g_share(b, m5_g_seq2(b, m5_g_lit(b, "\"", 1), body));
}
