/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions: the subset that ECMA 262, Python and RE2 agree on, as nodes. Not here: look-around, back references, properties of characters,
 * word borders, anchors other than at the ends: they are refused by name. */
#include "text/grammar_internal.h"

#include <string.h>

enum { MAX_GROUPS = 100, MAX_PATTERN = 1 << 16, MAX_COUNT = 1000000 };

typedef struct rx {
    m5_gb *b;
    const char *p;
    size_t n, at;
    const g_regex_opts *o;
    int depth;
    m5_error *err;
} rx;

typedef struct piece {  /* node -1: failed */
    int32_t node, unit; /* unit: the one character set that is repeated lo..hi times, or -1 */
    uint32_t lo, hi;    /* characters it matches */
} piece;

static const piece failed = {-1, -1, 0, 0};

static piece bad(rx *r, int code, const char *what)
{
    m5_error_set(r->err, code, "regular expression, offset %zu: %s", r->at, what);
    return failed;
}
static piece wrong(rx *r, const char *what)
{
    return bad(r, M5_ERR_FORMAT, what);
}
static piece refuse(rx *r, const char *what)
{
    return bad(r, M5_ERR_UNSUPPORTED, what);
}

static bool look(const rx *r, char c)
{
    return r->at < r->n && r->p[r->at] == c;
}
static bool eat(rx *r, char c)
{
    if (!look(r, c)) return false;
    r->at++;
    return true;
}

static uint32_t sat(uint64_t v)
{
    return v >= G_INF ? G_INF : (uint32_t)v;
}
static uint32_t sum(uint32_t x, uint32_t y)
{
    return x == G_INF || y == G_INF ? G_INF : sat((uint64_t)x + y);
}
static uint32_t times(uint32_t x, uint32_t y)
{
    return x == 0 || y == 0 ? 0 : x == G_INF || y == G_INF ? G_INF : sat((uint64_t)x * y);
}

static uint32_t next_cp(rx *r)
{
    uint32_t cp = 0xFFFD;
    int len = m5_utf8_decode(r->p + r->at, r->n - r->at, &cp);
    r->at += len > 0 ? (size_t)len : 1;
    return cp;
}

/* ---- characters ---- */

static bool hex_digits(rx *r, int n, uint32_t *out)
{
    uint32_t v = 0;
    for (int i = 0; i < n; i++) {
        char c = r->at + (size_t)i < r->n ? r->p[r->at + (size_t)i] : 0;
        uint32_t d = c >= '0' && c <= '9'   ? (uint32_t)(c - '0')
                     : c >= 'a' && c <= 'f' ? (uint32_t)(c - 'a' + 10)
                     : c >= 'A' && c <= 'F' ? (uint32_t)(c - 'A' + 10)
                                            : 16;
        if (d == 16) return false;
        v = v * 16 + d;
    }
    r->at += (size_t)n;
    *out = v;
    return true;
}

/* \xHH, \x{...}, \uHHHH (pairs of surrogates too), \u{...}; r stands behind the letter. */
static bool hex_escape(rx *r, char letter, uint32_t *cp)
{
    if (eat(r, '{')) {
        uint32_t v = 0, d, n = 0;
        while (!look(r, '}') && hex_digits(r, 1, &d) && n++ < 6) v = v * 16 + d;
        *cp = v;
        return n > 0 && eat(r, '}') && v <= 0x10FFFF;
    }
    if (!hex_digits(r, letter == 'x' ? 2 : 4, cp)) return false;
    if (*cp >= 0xD800 && *cp < 0xDC00 && r->at + 1 < r->n && r->p[r->at] == '\\' && r->p[r->at + 1] == 'u') {
        size_t back = r->at;
        uint32_t low;
        r->at += 2;
        if (hex_digits(r, 4, &low) && low >= 0xDC00 && low < 0xE000) {
            *cp = 0x10000 + ((*cp - 0xD800) << 10) + (low - 0xDC00);
        } else {
            r->at = back;
        }
    }
    return true;
}

static void class_of(g_cps *c, char letter)
{
    g_cps in = {0};
    switch (letter | 0x20) {
    case 'd': m5_g_cps_add(&in, '0', '9'); break;
    case 'w':
        m5_g_cps_add(&in, '0', '9');
        m5_g_cps_add(&in, 'A', 'Z');
        m5_g_cps_add(&in, '_', '_');
        m5_g_cps_add(&in, 'a', 'z');
        break;
    default: { /* s, as ECMA 262 has it */
        static const uint32_t space[][2] = {{9, 13},          {0x20, 0x20},     {0xA0, 0xA0},     {0x1680, 0x1680}, {0x2000, 0x200A},
                                            {0x2028, 0x2029}, {0x202F, 0x202F}, {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
        for (size_t i = 0; i < sizeof space / sizeof space[0]; i++) m5_g_cps_add(&in, space[i][0], space[i][1]);
        break;
    }
    }
    if (letter >= 'A' && letter <= 'Z') m5_g_cps_invert(&in);
    for (size_t i = 0; i < in.n; i++) m5_g_cps_add(c, in.p[i].lo, in.p[i].hi);
    if (in.failed) c->failed = true;
    m5_g_cps_free(&in);
}

/* After a backslash: one character in *cp, or a class added to c (*cp = UINT32_MAX). False: error reported. */
static bool escaped(rx *r, g_cps *c, uint32_t *cp, bool in_class)
{
    static const char from[] = "tnrfvae0", to[] = {'\t', '\n', '\r', '\f', '\v', 7, 27, 0};
    if (r->at >= r->n) return wrong(r, "a backslash at the end"), false;
    char e = r->p[r->at];
    const char *simple = strchr(from, e);
    *cp = UINT32_MAX;
    if (strchr("dDwWsS", e)) {
        r->at++;
        class_of(c, e);
        return true;
    }
    if (e == 'b' && in_class) {
        r->at++;
        *cp = 8;
        return true;
    }
    if (e == '0' && r->at + 1 < r->n && r->p[r->at + 1] >= '0' && r->p[r->at + 1] <= '9') return refuse(r, "octal escapes are not supported"), false;
    if (simple && e) {
        r->at++;
        *cp = (uint8_t)to[simple - from];
        return true;
    }
    if (e == 'x' || e == 'u') {
        r->at++;
        return hex_escape(r, e, cp) ? true : (wrong(r, "a hexadecimal escape without its digits"), false);
    }
    if (e == 'p' || e == 'P') return refuse(r, "properties of characters (\\p) are not supported"), false;
    if (e == 'b' || e == 'B') return refuse(r, "word borders (\\b) are not supported"), false;
    if (e >= '1' && e <= '9') return refuse(r, "back references are not supported"), false;
    if ((e >= 'a' && e <= 'z') || (e >= 'A' && e <= 'Z')) return refuse(r, "this escape is not supported"), false;
    *cp = next_cp(r);
    return true;
}

static bool posix_class(rx *r, g_cps *c)
{
    static const struct {
        const char *name, *ranges;
    } names[] = {{"alpha", "AZaz"},    {"digit", "09"},       {"alnum", "09AZaz"},  {"upper", "AZ"},     {"lower", "az"}, {"space", "\t\r  "},
                 {"xdigit", "09AFaf"}, {"punct", "!/:@[`{~"}, {"word", "09AZ__az"}, {"blank", "\t\t  "}, {"print", " ~"}, {"graph", "!~"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        size_t n = strlen(names[i].name);
        if (r->n - r->at < n + 4 || memcmp(r->p + r->at + 2, names[i].name, n) != 0 || memcmp(r->p + r->at + 2 + n, ":]", 2) != 0) continue;
        for (const char *p = names[i].ranges; *p; p += 2) m5_g_cps_add(c, (uint8_t)p[0], (uint8_t)p[1]);
        r->at += n + 4;
        return true;
    }
    return false;
}

static bool class_body(rx *r, g_cps *c)
{
    bool invert = eat(r, '^');
    for (bool first = true; first || !look(r, ']'); first = false) {
        uint32_t lo, hi;
        if (r->at >= r->n) return wrong(r, "a character class without its end"), false;
        if (first && look(r, ']')) { /* ECMA: the empty class; elsewhere: a bracket. Nobody means the first. */
            size_t k = r->at + 1;
            while (k < r->n && r->p[k] != ']') k++;
            if (k >= r->n) break;
        }
        if (look(r, '[') && r->at + 1 < r->n && r->p[r->at + 1] == ':' && posix_class(r, c)) continue;
        if (eat(r, '\\')) {
            if (!escaped(r, c, &lo, true)) return false;
            if (lo == UINT32_MAX) continue;
        } else {
            lo = next_cp(r);
        }
        hi = lo;
        if (look(r, '-') && r->at + 1 < r->n && r->p[r->at + 1] != ']') {
            r->at++;
            if (eat(r, '\\')) {
                if (!escaped(r, c, &hi, true)) return false;
                if (hi == UINT32_MAX) { /* [a-\d]: three members */
                    m5_g_cps_add(c, '-', '-');
                    hi = lo;
                }
            } else {
                hi = next_cp(r);
            }
            if (hi < lo) return wrong(r, "a range of characters runs backwards"), false;
        }
        m5_g_cps_add(c, lo, hi);
    }
    r->at++;
    if (invert) m5_g_cps_invert(c);
    m5_g_cps_norm(c);
    return true;
}

static piece chars(rx *r, g_cps *c)
{
    m5_g_cps_norm(c);
    int32_t node = m5_g_chars(r->b, c, r->o->json);
    m5_g_cps_free(c);
    if (node < 0) return m5_error_set(r->err, r->b->err.code, "%s", r->b->err.text), failed;
    node = m5_g_share(r->b, node);
    return (piece){node, node, 1, 1};
}

/* ---- structure ---- */

static piece parse_alt(rx *r, bool top);

static piece atom(rx *r)
{
    g_cps c = {0};
    if (eat(r, '(')) {
        if (eat(r, '?')) {
            if (r->at + 1 < r->n && (r->p[r->at] == 'P' || r->p[r->at] == '<') && r->p[r->at + 1] != '=' && r->p[r->at + 1] != '!') {
                eat(r, 'P');
                if (!eat(r, '<')) return refuse(r, "this kind of group is not supported");
                while (r->at < r->n && !look(r, '>')) r->at++;
                if (!eat(r, '>')) return wrong(r, "a group's name without its end");
            } else if (look(r, '=') || look(r, '!') || look(r, '<')) {
                return refuse(r, "look-around is not supported");
            } else if (!eat(r, ':')) {
                return refuse(r, "this kind of group is not supported");
            }
        }
        if (++r->depth > MAX_GROUPS) return bad(r, M5_ERR_LIMIT, "groups are nested too deeply");
        piece p = parse_alt(r, false);
        r->depth--;
        if (p.node >= 0 && !eat(r, ')')) return wrong(r, "a group without its end");
        return p;
    }
    if (eat(r, '[')) {
        if (class_body(r, &c)) return chars(r, &c);
        m5_g_cps_free(&c);
        return failed;
    }
    if (eat(r, '.')) {
        m5_g_cps_add(&c, '\n', '\n');
        m5_g_cps_add(&c, '\r', '\r');
        m5_g_cps_add(&c, 0x2028, 0x2029);
        m5_g_cps_invert(&c);
        return chars(r, &c);
    }
    uint32_t cp;
    if (look(r, '*') || look(r, '+') || look(r, '?')) return wrong(r, "nothing to repeat");
    if (look(r, '^') || look(r, '$')) return refuse(r, "an anchor inside the pattern");
    if (eat(r, '\\')) {
        if (!escaped(r, &c, &cp, false)) {
            m5_g_cps_free(&c);
            return failed;
        }
        if (cp == UINT32_MAX) return chars(r, &c);
    } else {
        cp = next_cp(r);
    }
    m5_g_cps_add(&c, cp, cp);
    return chars(r, &c);
}

/* {m}, {m,}, {m,n}; anything else in braces is text. */
static bool braces(rx *r, uint32_t *lo, uint32_t *hi)
{
    size_t back = r->at;
    uint64_t v[2] = {0, 0};
    int n = 0;
    bool digits = false;
    r->at++;
    for (;; r->at++) {
        char c = r->at < r->n ? r->p[r->at] : 0;
        if (c >= '0' && c <= '9') {
            v[n] = v[n] * 10 + (uint64_t)(c - '0');
            if (v[n] > G_INF - 1) v[n] = G_INF - 1;
            digits = true;
        } else if (c == ',' && n == 0 && digits) {
            n = 1;
            digits = false;
        } else if (c == '}' && (digits || n == 1)) {
            r->at++;
            *lo = (uint32_t)v[0];
            *hi = n == 0 ? *lo : digits ? (uint32_t)v[1] : G_INF;
            return true;
        } else {
            r->at = back;
            return false;
        }
    }
}

static piece quantified(rx *r)
{
    piece p = atom(r);
    while (p.node >= 0 && r->at < r->n) {
        uint32_t lo = 0, hi = G_INF;
        if (eat(r, '*')) {
            lo = 0;
        } else if (eat(r, '+')) {
            lo = 1;
        } else if (eat(r, '?')) {
            hi = 1;
        } else if (!look(r, '{') || !braces(r, &lo, &hi)) {
            return p;
        }
        if (lo > hi) return wrong(r, "a repetition whose bounds run backwards");
        if (lo > MAX_COUNT || (hi != G_INF && hi > MAX_COUNT)) return bad(r, M5_ERR_LIMIT, "a repetition of more than a million");
        if (look(r, '+')) return refuse(r, "possessive repetition is not supported");
        eat(r, '?'); /* lazy or greedy, the language is the same */
        bool unit = p.unit >= 0 && p.unit == p.node;
        p = (piece){m5_g_rep(r->b, p.node, lo, hi, 0), unit ? p.unit : -1, times(p.lo, lo), times(p.hi, hi)};
        if (p.node < 0) return m5_error_set(r->err, r->b->err.code, "%s", r->b->err.text), failed;
    }
    return p;
}

static int32_t anything(rx *r)
{
    if (r->o->json) return m5_g_json_chars(r->b, 0, G_INF);
    g_cps c = {0};
    m5_g_cps_add(&c, 0, 0x10FFFF);
    int32_t node = m5_g_rep(r->b, m5_g_chars(r->b, &c, false), 0, G_INF, 0);
    m5_g_cps_free(&c);
    return node;
}

/* One branch; in search mode a top branch may begin and end anywhere unless anchored. */
static piece branch(rx *r, bool top)
{
    int32_t seq = m5_g_empty(r->b);
    piece all = {seq, -1, 0, 0};
    bool start = false, end = false;
    int n = 0;
    while (top && (eat(r, '^') || (r->at + 1 < r->n && memcmp(r->p + r->at, "\\A", 2) == 0 && (r->at += 2)))) start = true;
    while (r->at < r->n && !look(r, '|') && !look(r, ')')) {
        bool z = r->at + 1 < r->n && r->p[r->at] == '\\' && (r->p[r->at + 1] == 'z' || r->p[r->at + 1] == 'Z');
        if (top && (look(r, '$') || z)) {
            r->at += z ? 2 : 1;
            end = true;
            if (r->at < r->n && !look(r, '|') && !look(r, ')') && !look(r, '$')) return refuse(r, "an anchor inside the pattern");
            continue;
        }
        piece p = quantified(r);
        if (p.node < 0) return p;
        all.unit = n++ == 0 ? p.unit : -1;
        all.node = n == 1 ? p.node : m5_g_seq2(r->b, all.node, p.node);
        all.lo = sum(all.lo, p.lo);
        all.hi = sum(all.hi, p.hi);
        if (r->b->node[all.node].depth > 300) all.node = m5_g_share(r->b, all.node);
    }
    if (top && r->o->search && (!start || !end)) {
        if (!start) all.node = m5_g_seq2(r->b, anything(r), all.node);
        if (!end) all.node = m5_g_seq2(r->b, all.node, anything(r));
        all.hi = G_INF;
        all.unit = -1;
    }
    if (r->b->err.code) return m5_error_set(r->err, r->b->err.code, "%s", r->b->err.text), failed;
    return all;
}

static piece parse_alt(rx *r, bool top)
{
    piece all = branch(r, top);
    while (all.node >= 0 && eat(r, '|')) {
        piece p = branch(r, top);
        if (p.node < 0) return p;
        all = (piece){m5_g_alt2(r->b, all.node, p.node), -1, all.lo < p.lo ? all.lo : p.lo, all.hi > p.hi ? all.hi : p.hi};
        if (all.node >= 0 && r->b->node[all.node].depth > 300) all.node = m5_g_share(r->b, all.node);
        if (all.node < 0) return m5_error_set(r->err, r->b->err.code, "%s", r->b->err.text), failed;
    }
    return all;
}

/* A pattern that is one group, such as (^a$|^b$): its branches are the pattern's. */
static bool strip_group(rx *r)
{
    size_t depth = 0, skip = r->n > 2 && memcmp(r->p, "(?:", 3) == 0 ? 3 : 1;
    if (r->n < 2 || r->p[0] != '(' || (skip == 1 && r->p[1] == '?')) return false;
    bool in_class = false;
    for (size_t i = 0; i < r->n; i++) {
        char c = r->p[i];
        if (c == '\\') {
            i++;
        } else if (in_class) {
            in_class = c != ']';
        } else if (c == '[') {
            in_class = true;
        } else if (c == '(') {
            depth++;
        } else if (c == ')' && --depth == 0 && i + 1 < r->n) {
            return false;
        }
    }
    if (depth || in_class || r->p[r->n - 1] != ')' || (r->n > 1 && r->p[r->n - 2] == '\\')) return false;
    r->at = skip;
    r->n--;
    return true;
}

int32_t m5_g_regex(m5_gb *b, const char *p, size_t n, const g_regex_opts *o, bool *len_done, m5_error *err)
{
    rx r = {.b = b, .p = p, .n = n, .o = o, .err = err};
    if (b->err.code) return m5_error_set(err, b->err.code, "%s", b->err.text), -1;
    if (n > MAX_PATTERN) return m5_error_set(err, M5_ERR_LIMIT, "a regular expression of %zu bytes (limit %d)", n, MAX_PATTERN), -1;
    if (!m5_utf8_valid(p, n)) return m5_error_set(err, M5_ERR_FORMAT, "a regular expression that is not UTF-8"), -1;
    strip_group(&r);
    piece all = parse_alt(&r, true);
    if (all.node >= 0 && r.at < r.n) all = wrong(&r, "a closing parenthesis without its group");
    if (all.node < 0) return -1;
    bool done = o->min <= all.lo && all.hi <= o->max;
    if (!done && all.unit >= 0 && all.unit != all.node) { /* one set of characters, repeated: the bounds narrow the count */
        uint32_t lo = all.lo > o->min ? all.lo : o->min, hi = all.hi < o->max ? all.hi : o->max;
        all.node = m5_g_rep(b, all.unit, lo, hi, 0);
        done = true;
    }
    if (len_done) *len_done = done;
    return all.node;
}
