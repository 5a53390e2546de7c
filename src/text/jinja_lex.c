/* SPDX-License-Identifier: Apache-2.0 */
/* Template source to tokens, with Jinja's whitespace rules as chat templates have them: trim_blocks and lstrip_blocks on, one final newline dropped.
 */
#include "text/jinja_internal.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct lex {
    jrt *rt;
    const char *p; /* newlines already made LF */
    size_t n, i;
    uint32_t line;
    bool line_start; /* what was matched last ended in a newline */
    jtoks *out;
    char *brackets;
    size_t n_brackets, cap_brackets;
} lex;

static void push(lex *x, jtok_kind kind, uint32_t line, jstr *s, jval v)
{
    jtoks *t = x->out;
    if (t->n == t->cap) {
        size_t cap = t->cap ? t->cap * 2 : 256;
        jtok *p = m5_j_array(x->rt, cap, sizeof *p);
        if (t->n) memcpy(p, t->v, t->n * sizeof *p);
        t->v = p;
        t->cap = cap;
    }
    t->v[t->n++] = (jtok){kind, line, s, v};
}

static JNORETURN void syntax(lex *x, const char *what)
{
    x->rt->line = x->line;
    m5_jrt_fail(x->rt, "%s", what);
}

/* Constants are shared by threads at run time, so whatever is cached in a string is computed now. */
static jstr *constant(lex *x, const char *p, size_t n)
{
    jstr *s = m5_jstr_new(x->rt, p, n, true);
    m5_jstr_len(x->rt, s);
    m5_jstr_hash(x->rt, s);
    return s;
}

static uint32_t peek_cp(const lex *x, size_t at, size_t *len)
{
    uint32_t cp = 0;
    int n = m5_utf8_decode(x->p + at, x->n - at, &cp);
    *len = n > 0 ? (size_t)n : 1;
    return cp;
}

static bool is_at(const lex *x, size_t at, const char *s)
{
    size_t n = strlen(s);
    return x->n - at >= n && memcmp(x->p + at, s, n) == 0;
}

static size_t skip_space(const lex *x, size_t at)
{
    while (at < x->n) {
        size_t len;
        if (!m5_ju_space(peek_cp(x, at, &len))) break;
        at += len;
    }
    return at;
}

/* Moves to `to`, counting lines. */
static void advance(lex *x, size_t to)
{
    for (size_t k = x->i; k < to; k++) x->line += x->p[k] == '\n';
    if (to > x->i) x->line_start = x->p[to - 1] == '\n';
    x->i = to;
}

static size_t rstrip(const lex *x, size_t begin, size_t end)
{
    while (end > begin) {
        size_t at = end;
        do at--;
        while (at > begin && ((unsigned char)x->p[at] & 0xC0) == 0x80);
        size_t len;
        if (!m5_ju_space(peek_cp(x, at, &len))) break;
        end = at;
    }
    return end;
}

/* Literal text [x->i, end) before a tag; sign is the character after the tag's opener. */
static void put_data(lex *x, size_t end, char sign, bool is_variable)
{
    size_t begin = x->i, stop = end;
    if (sign == '-') {
        stop = rstrip(x, begin, end);
    } else if (sign != '+' && !is_variable) {
        size_t line = end;
        while (line > begin && x->p[line - 1] != '\n') line--;
        if ((line > begin || x->line_start) && skip_space(x, line) >= end) stop = line;
    }
    if (stop > begin) push(x, T_DATA, x->line, constant(x, x->p + begin, stop - begin), m5_jv_missing());
}

/* End of a tag at x->i: its closer, then what the closer swallows. 0 = no closer here. */
static size_t match_end(const lex *x, const char *close, bool block)
{
    size_t at = x->i;
    if (is_at(x, at, "-") && is_at(x, at + 1, close)) return skip_space(x, at + 3);
    if (block && is_at(x, at, "+") && is_at(x, at + 1, close)) return at + 3;
    if (!is_at(x, at, close)) return 0;
    return at + 2 + (block && is_at(x, at + 2, "\n"));
}

static char sign_at(const lex *x, size_t at)
{
    return at < x->n && (x->p[at] == '-' || x->p[at] == '+') ? x->p[at] : 0;
}

static void comment(lex *x, size_t open)
{
    char sign = sign_at(x, open + 2);
    put_data(x, open, sign, false);
    advance(x, open + 2 + (sign != 0));
    size_t from = x->i;
    for (size_t at = from; at + 1 < x->n; at++) {
        if (x->p[at] != '#' || x->p[at + 1] != '}') continue;
        /* The sign belongs to the closer if the comment has room for it. */
        size_t stop = at > from && (x->p[at - 1] == '-' || x->p[at - 1] == '+') ? at - 1 : at;
        advance(x, stop);
        advance(x, match_end(x, "#}", true));
        return;
    }
    syntax(x, "missing end of comment tag");
}

/* {% raw %} at `open`? Returns the offset after it, or 0. */
static size_t match_raw(const lex *x, size_t open, const char *word)
{
    size_t at = open + 2;
    if (sign_at(x, at)) at++;
    at = skip_space(x, at);
    if (!is_at(x, at, word)) return 0;
    return skip_space(x, at + strlen(word));
}

static bool raw(lex *x, size_t open)
{
    size_t at = match_raw(x, open, "raw");
    if (!at) return false;
    if (is_at(x, at, "-%}"))
        at = skip_space(x, at + 3);
    else if (is_at(x, at, "%}"))
        at += 2;
    else
        return false;
    put_data(x, open, sign_at(x, open + 2), false);
    advance(x, at);
    for (size_t k = x->i; k + 1 < x->n; k++) {
        if (x->p[k] != '{' || x->p[k + 1] != '%') continue;
        size_t end = match_raw(x, k, "endraw");
        if (!end) continue;
        lex probe = *x;
        probe.i = end;
        end = match_end(&probe, "%}", true);
        if (!end) continue;
        put_data(x, k, sign_at(x, k + 2), false);
        advance(x, end);
        return true;
    }
    syntax(x, "missing end of raw directive");
}

static int hex_digits(lex *x, const char *p, size_t n, int want, uint32_t *cp)
{
    uint32_t v = 0;
    for (int i = 0; i < want; i++) {
        char c = (size_t)i < n ? p[i] : 0;
        int d = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (d < 0) syntax(x, "truncated escape in string");
        v = v << 4 | (uint32_t)d;
    }
    if (v > 0x10FFFF) syntax(x, "illegal character in string escape");
    *cp = v;
    return want;
}

/* One escape after a backslash; returns how many bytes it took. */
static size_t escape(lex *x, const char *p, size_t n)
{
    jrt *rt = x->rt;
    uint32_t cp = 0;
    static const char from[] = "\\'\"abfnrtv", to[] = "\\'\"\a\b\f\n\r\t\v";
    const char *simple = *p ? strchr(from, *p) : NULL;
    if (simple) {
        m5_j_putc(rt, to[simple - from]);
        return 1;
    }
    if (*p == '\n') return 1;
    if (*p >= '0' && *p <= '7') {
        size_t k = 0;
        for (; k < 3 && k < n && p[k] >= '0' && p[k] <= '7'; k++) cp = cp * 8 + (uint32_t)(p[k] - '0');
        m5_j_put_cp(rt, cp, true);
        return k;
    }
    if (*p == 'x' || *p == 'u' || *p == 'U') {
        size_t k = 1 + (size_t)hex_digits(x, p + 1, n - 1, *p == 'x' ? 2 : *p == 'u' ? 4 : 8, &cp);
        uint32_t low = 0;
        if (cp >= 0xD800 && cp < 0xDC00 && n - k >= 6 && p[k] == '\\' && p[k + 1] == 'u') {
            hex_digits(x, p + k + 2, n - k - 2, 4, &low);
            if (low >= 0xDC00 && low < 0xE000) {
                cp = 0x10000 + ((cp - 0xD800) << 10) + (low - 0xDC00);
                k += 6;
            }
        }
        m5_j_put_cp(rt, cp, true);
        return k;
    }
    if (*p == 'N') syntax(x, "named characters are not supported in string escapes");
    m5_j_putc(rt, '\\');
    if ((unsigned char)*p < 128) {
        m5_j_putc(rt, *p);
        return 1;
    }
    /* Jinja decodes through ASCII with backslash escapes, so the character's own escape becomes visible. */
    int len = m5_utf8_decode(p, n, &cp);
    m5_j_printf(rt, cp < 0x100 ? "x%02x" : cp < 0x10000 ? "u%04x" : "U%08x", (unsigned)cp);
    return len > 0 ? (size_t)len : 1;
}

static bool string(lex *x)
{
    char quote = x->p[x->i];
    size_t end = x->i + 1;
    while (end < x->n && x->p[end] != quote) end += x->p[end] == '\\' ? 2 : 1;
    if (end >= x->n) return false;
    jmark m = m5_j_begin(x->rt);
    for (size_t k = x->i + 1; k < end;) {
        const char *stop = memchr(x->p + k, '\\', end - k);
        size_t plain = stop ? (size_t)(stop - x->p) : end;
        m5_j_put(x->rt, x->p + k, plain - k, true);
        k = plain;
        if (k < end) k += 1 + escape(x, x->p + k + 1, end - k - 1);
    }
    jstr *s = m5_j_end(x->rt, m);
    m5_jstr_len(x->rt, s);
    m5_jstr_hash(x->rt, s);
    push(x, T_STRING, x->line, s, m5_jv_missing());
    advance(x, end + 1);
    return true;
}

/* (\d+_)*\d+ from `at`; returns the end, `at` if nothing. */
static size_t digits(const lex *x, size_t at)
{
    size_t end = at;
    for (;;) {
        size_t k = end > at && end < x->n && x->p[end] == '_' ? end + 1 : end;
        size_t start = k;
        while (k < x->n && x->p[k] >= '0' && x->p[k] <= '9') k++;
        if (k == start) return end;
        end = k;
    }
}

static size_t radix_digits(const lex *x, size_t at, int base)
{
    size_t end = at;
    for (;;) {
        size_t k = end < x->n && x->p[end] == '_' ? end + 1 : end;
        if (k >= x->n) return end;
        char c = x->p[k];
        int d = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : 99;
        if (d >= base) return end;
        end = k + 1;
    }
}

/* Digits without underscores, NUL-terminated. */
static char *squeeze(lex *x, size_t begin, size_t end, size_t *n)
{
    char *p = m5_j_alloc(x->rt, end - begin + 1);
    *n = 0;
    for (size_t k = begin; k < end; k++) {
        if (x->p[k] != '_') p[(*n)++] = x->p[k];
    }
    return p;
}

static bool number(lex *x)
{
    size_t end = digits(x, x->i), n;
    if (end == x->i) return false;
    bool real = false;
    if (x->i == 0 || x->p[x->i - 1] != '.') {
        size_t frac = end < x->n && x->p[end] == '.' ? digits(x, end + 1) : end;
        if (frac > end + 1) {
            end = frac;
            real = true;
        }
        if (end < x->n && (x->p[end] | 32) == 'e') {
            size_t k = end + 1;
            if (k < x->n && (x->p[k] == '+' || x->p[k] == '-')) k++;
            size_t exp = digits(x, k);
            if (exp > k) {
                end = exp;
                real = true;
            }
        }
    }
    if (real) {
        char *text = squeeze(x, x->i, end, &n);
        push(x, T_FLOAT, x->line, NULL, m5_jv_float(strtod(text, NULL)));
        advance(x, end);
        return true;
    }
    int base = 10;
    size_t begin = x->i;
    if (x->p[begin] == '0' && begin + 1 < x->n) {
        char c = (char)(x->p[begin + 1] | 32);
        int other = c == 'b' ? 2 : c == 'o' ? 8 : c == 'x' ? 16 : 0;
        if (other && radix_digits(x, begin + 2, other) > begin + 2) {
            base = other;
            begin += 2;
            end = radix_digits(x, begin, base);
        } else {
            /* A leading zero is a number of zeros; digits after it start another token. */
            end = begin + 1;
            while (end < x->n && (x->p[end] == '0' || (x->p[end] == '_' && end + 1 < x->n && x->p[end + 1] == '0'))) end++;
        }
    }
    char *text = squeeze(x, begin, end, &n);
    jval v;
    if (!m5_jint_parse(x->rt, text, n, base, &v)) syntax(x, "integer literal too long");
    push(x, T_INT, x->line, NULL, v);
    advance(x, end);
    return true;
}

static bool name(lex *x)
{
    size_t end = x->i;
    bool valid = true;
    while (end < x->n) {
        size_t len;
        uint32_t c = peek_cp(x, end, &len);
        if (!m5_ju_word(c) && !m5_ju_ident_part(c)) break;
        if (end == x->i ? !m5_ju_ident_start(c) : !m5_ju_ident_part(c)) valid = false;
        end += len;
    }
    if (end == x->i) return false;
    if (!valid) syntax(x, "invalid character in identifier");
    push(x, T_NAME, x->line, constant(x, x->p + x->i, end - x->i), m5_jv_missing());
    advance(x, end);
    return true;
}

static const struct {
    const char *text;
    jtok_kind kind;
} operators[] = {{"//", T_FLOORDIV}, {"**", T_POW},   {"==", T_EQ},    {"!=", T_NE},    {">=", T_GE},      {"<=", T_LE},      {"+", T_ADD},
                 {"-", T_SUB},       {"/", T_DIV},    {"*", T_MUL},    {"%", T_MOD},    {"~", T_TILDE},    {"[", T_LBRACKET}, {"]", T_RBRACKET},
                 {"(", T_LPAREN},    {")", T_RPAREN}, {"{", T_LBRACE}, {"}", T_RBRACE}, {">", T_GT},       {"<", T_LT},       {"=", T_ASSIGN},
                 {".", T_DOT},       {":", T_COLON},  {"|", T_PIPE},   {",", T_COMMA},  {";", T_SEMICOLON}};

static void bracket(lex *x, char c)
{
    const char *open = strchr("([{", c);
    if (open) {
        if (x->n_brackets == x->cap_brackets) {
            size_t cap = x->cap_brackets ? x->cap_brackets * 2 : 32;
            char *p = m5_j_alloc(x->rt, cap);
            if (x->n_brackets) memcpy(p, x->brackets, x->n_brackets);
            x->brackets = p;
            x->cap_brackets = cap;
        }
        x->brackets[x->n_brackets++] = ")]}"[open - "([{"];
    } else if (strchr(")]}", c)) {
        char text[48];
        if (!x->n_brackets) {
            snprintf(text, sizeof text, "unexpected '%c'", c);
            syntax(x, text);
        }
        char want = x->brackets[--x->n_brackets];
        if (want != c) {
            snprintf(text, sizeof text, "unexpected '%c', expected '%c'", c, want);
            syntax(x, text);
        }
    }
}

static bool operator(lex *x)
{
    for (size_t k = 0; k < sizeof operators / sizeof *operators; k++) {
        if (!is_at(x, x->i, operators[k].text)) continue;
        if (!operators[k].text[1]) bracket(x, operators[k].text[0]);
        push(x, operators[k].kind, x->line, m5_jstr_c(x->rt, operators[k].text), m5_jv_missing());
        advance(x, x->i + strlen(operators[k].text));
        return true;
    }
    return false;
}

/* Inside a tag, up to its closer. */
static void tag(lex *x, bool block)
{
    const char *close = block ? "%}" : "}}";
    while (x->i < x->n) {
        size_t end = x->n_brackets ? 0 : match_end(x, close, block);
        if (end) {
            push(x, block ? T_BLOCK_END : T_VAR_END, x->line, NULL, m5_jv_missing());
            advance(x, end);
            return;
        }
        size_t after = skip_space(x, x->i);
        if (after > x->i) {
            advance(x, after);
            continue;
        }
        char c = x->p[x->i];
        if (c >= '0' && c <= '9' && number(x)) continue;
        if (name(x)) continue;
        if ((c == '\'' || c == '"') && string(x)) continue;
        if (operator(x)) continue;
        size_t len;
        peek_cp(x, x->i, &len);
        char text[64];
        snprintf(text, sizeof text, "unexpected character '%.*s'", (int)len, x->p + x->i);
        syntax(x, text);
    }
}

void m5_jlex(jrt *rt, const char *src, size_t n, jtoks *out)
{
    char *p = m5_j_alloc(rt, n + 1);
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        if (src[i] == '\r') {
            p[len++] = '\n';
            if (i + 1 < n && src[i + 1] == '\n') i++;
        } else {
            p[len++] = src[i];
        }
    }
    if (len && p[len - 1] == '\n') len--;
    p[len] = 0;
    lex x = {.rt = rt, .p = p, .n = len, .line = 1, .line_start = true, .out = out};
    while (x.i < x.n) {
        size_t at = x.i;
        for (;; at++) {
            const char *open = memchr(p + at, '{', len - at);
            at = open ? (size_t)(open - p) : len;
            if (at + 1 >= len || p[at + 1] == '{' || p[at + 1] == '%' || p[at + 1] == '#') break;
        }
        if (at + 1 >= len) {
            push(&x, T_DATA, x.line, constant(&x, p + x.i, len - x.i), m5_jv_missing());
            advance(&x, len);
            break;
        }
        if (p[at + 1] == '#') {
            comment(&x, at);
            continue;
        }
        bool block = p[at + 1] == '%';
        if (block && raw(&x, at)) continue;
        char sign = sign_at(&x, at + 2);
        put_data(&x, at, sign, !block);
        advance(&x, at);
        push(&x, block ? T_BLOCK_BEGIN : T_VAR_BEGIN, x.line, NULL, m5_jv_missing());
        advance(&x, at + 2 + (sign != 0));
        tag(&x, block);
    }
    push(&x, T_EOF, x.line, NULL, m5_jv_missing());
}
