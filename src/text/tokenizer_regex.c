/* SPDX-License-Identifier: Apache-2.0 */
/* Home of PCRE2. tokenizer.json files carry patterns in Oniguruma's Ruby syntax; this file respells them for PCRE2 and matches them, with the
 * character classes of Unicode 16 as the Hugging Face library has them, whatever tables PCRE2 was built with. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/tokenizer_internal.h"

#include <pcre2.h>
#include <string.h>

#define MAX_PATTERN   (1 << 16)
#define MAX_NEST      64
#define MATCH_LIMIT   20000000u /* backtracking points of one match; a run of 1 MB that must be given back needs a few million */
#define HEAP_LIMIT_KB 65536u

struct tok_regex {
    pcre2_code *code;
    pcre2_general_context *general;
    pcre2_match_context *limits;
};

/* ---- Oniguruma -> PCRE2 ---- */

typedef struct trans {
    const char *p;
    size_t n, i;
    bool plain_names;
    int depth;
    m5_error *err;
} trans;

/* A character class on its way: what stands between the brackets, and alternatives that cannot be written there. */
typedef struct cls {
    m5_buf items, alts;
} cls;

static int unsupported(trans *t, const char *what)
{
    return m5_error_set(t->err, M5_ERR_UNSUPPORTED, "pattern \"%.*s\": %s at byte %zu", (int)(t->n > 120 ? 120 : t->n), t->p, what, t->i);
}

/* Property names: PCRE2 knows the short general categories, the binary properties of Unicode and scripts. Oniguruma's \p{Han} is the script alone,
 * PCRE2's includes the script extensions unless written sc:Han. */
static void property_items(trans *t, m5_buf *out, const char *name, size_t n, bool negated)
{
    static const struct {
        const char *name, *items;
    } known[] = {{"letter", "L"},
                 {"uppercaseletter", "Lu"},
                 {"lowercaseletter", "Ll"},
                 {"titlecaseletter", "Lt"},
                 {"modifierletter", "Lm"},
                 {"otherletter", "Lo"},
                 {"mark", "M"},
                 {"nonspacingmark", "Mn"},
                 {"spacingmark", "Mc"},
                 {"enclosingmark", "Me"},
                 {"number", "N"},
                 {"decimalnumber", "Nd"},
                 {"letternumber", "Nl"},
                 {"othernumber", "No"},
                 {"punctuation", "P"},
                 {"punct", "P"},
                 {"dashpunctuation", "Pd"},
                 {"openpunctuation", "Ps"},
                 {"closepunctuation", "Pe"},
                 {"initialpunctuation", "Pi"},
                 {"finalpunctuation", "Pf"},
                 {"connectorpunctuation", "Pc"},
                 {"otherpunctuation", "Po"},
                 {"symbol", "S"},
                 {"mathsymbol", "Sm"},
                 {"currencysymbol", "Sc"},
                 {"modifiersymbol", "Sk"},
                 {"othersymbol", "So"},
                 {"separator", "Z"},
                 {"spaceseparator", "Zs"},
                 {"lineseparator", "Zl"},
                 {"paragraphseparator", "Zp"},
                 {"other", "C"},
                 {"control", "Cc"},
                 {"cntrl", "Cc"},
                 {"format", "Cf"},
                 {"surrogate", "Cs"},
                 {"privateuse", "Co"},
                 {"unassigned", "Cn"},
                 {"digit", "Nd"},
                 {"alpha", "Alphabetic"},
                 {"alphabetic", "Alphabetic"},
                 {"space", "White_Space"},
                 {"whitespace", "White_Space"},
                 {"upper", "Uppercase"},
                 {"uppercase", "Uppercase"},
                 {"lower", "Lowercase"},
                 {"lowercase", "Lowercase"},
                 {"any", "Any"}};
    char low[64];
    size_t k = 0;
    for (size_t i = 0; i < n && k < sizeof low - 1; i++) {
        char c = name[i];
        if (c == ' ' || c == '_' || c == '-') continue;
        low[k++] = c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
    }
    low[k] = '\0';
    const char *items = NULL;
    for (size_t i = 0; i < sizeof known / sizeof known[0] && n > 2; i++) {
        if (strcmp(low, known[i].name) == 0) items = known[i].items;
    }
    m5_buf_printf(out, "\\%c{", negated ? 'P' : 'p');
    if (items)
        m5_buf_puts(out, items);
    else
        m5_buf_printf(out, "%s%.*s", n > 2 && !t->plain_names ? "sc:" : "", (int)n, name);
    m5_buf_putc(out, '}');
}

/* After "\p{" or "\P{". */
static int property(trans *t, m5_buf *out, bool negated)
{
    const char *begin = t->p + t->i, *end = memchr(begin, '}', t->n - t->i);
    if (!end || end == begin || end - begin > 60) return unsupported(t, "a property name is expected");
    t->i += (size_t)(end - begin) + 1;
    if (*begin == '^') {
        negated = !negated;
        begin++;
    }
    property_items(t, out, begin, (size_t)(end - begin), negated);
    return 0;
}

/* Classes by letter, as items of a bracket; NULL = not one of these. */
static const char *letter_class(char c)
{
    switch (c) {
    case 's':
    case 'S': return "\\p{White_Space}";
    case 'd':
    case 'D': return "\\p{Nd}";
    case 'w':
    case 'W': return "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
    case 'h':
    case 'H': return "0-9A-Fa-f";
    default: return NULL;
    }
}

/* One escape, t->i behind the backslash. in_class: out gets items, alts what only an alternative can say. */
static int escape(trans *t, m5_buf *out, m5_buf *alts)
{
    if (t->i >= t->n) return unsupported(t, "the pattern ends in a backslash");
    char c = t->p[t->i++];
    const char *items = letter_class(c);
    if (items) {
        bool negated = c >= 'A' && c <= 'Z', single = c == 's' || c == 'S' || c == 'd' || c == 'D';
        if (single)
            m5_buf_printf(out, "\\%c%s", negated ? 'P' : 'p', items + 2);
        else if (!alts)
            m5_buf_printf(out, "[%s%s]", negated ? "^" : "", items);
        else if (negated)
            m5_buf_printf(alts, "|[^%s]", items);
        else
            m5_buf_puts(out, items);
        return 0;
    }
    if ((c == 'p' || c == 'P') && t->i < t->n && t->p[t->i] == '{') {
        t->i++;
        return property(t, out, c == 'P');
    }
    if (c == 'u' && t->n - t->i >= 4) {
        m5_buf_printf(out, "\\x{%.4s}", t->p + t->i);
        t->i += 4;
        return 0;
    }
    m5_buf_putc(out, '\\');
    m5_buf_putc(out, c);
    return 0;
}

/* "[:name:]" at t->i inside a class. PCRE2 reads these names more narrowly than Oniguruma, so they are spelled as properties. */
static bool posix_class(trans *t, m5_buf *items)
{
    static const char *const names[][2] = {{"alpha", "\\p{Alphabetic}"},
                                           {"digit", "\\p{Nd}"},
                                           {"alnum", "\\p{Alphabetic}\\p{Nd}"},
                                           {"upper", "\\p{Uppercase}"},
                                           {"lower", "\\p{Lowercase}"},
                                           {"space", "\\p{White_Space}"},
                                           {"punct", "\\p{P}\\p{S}"},
                                           {"cntrl", "\\p{Cc}"},
                                           {"blank", "\\p{Zs}\\t"},
                                           {"xdigit", "0-9A-Fa-f"},
                                           {"word", "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"}};
    size_t at = m5_slice_find((m5_slice){t->p, t->n}, M5_SLICE(":]"), t->i);
    if (at == SIZE_MAX) return false;
    m5_slice name = {t->p + t->i + 2, at - t->i - 2};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (!m5_slice_is(name, names[i][0])) continue;
        m5_buf_puts(items, names[i][1]);
        t->i = at + 2;
        return true;
    }
    return false;
}

static int class_expr(trans *t, m5_buf *out);

/* Alternatives start with '|' each. */
static void union_expr(const cls *c, m5_buf *out)
{
    if (c->items.n && !c->alts.n)
        m5_buf_printf(out, "[%s]", c->items.p);
    else if (c->items.n)
        m5_buf_printf(out, "(?:[%s]%s)", c->items.p, c->alts.p);
    else if (c->alts.n)
        m5_buf_printf(out, "(?:%s)", c->alts.p + 1);
    else
        m5_buf_puts(out, "(?!)");
}

static int class_part(trans *t, cls *c, bool first)
{
    size_t begin = t->i;
    while (t->i < t->n) {
        char ch = t->p[t->i];
        if (ch == ']' && !(first && t->i == begin)) return 0;
        if (ch == '&' && t->i + 1 < t->n && t->p[t->i + 1] == '&') return 0;
        if (ch == '\\') {
            t->i++;
            int rc = escape(t, &c->items, &c->alts);
            if (rc) return rc;
            continue;
        }
        if (ch == '[' && t->i + 1 < t->n && t->p[t->i + 1] == ':' && posix_class(t, &c->items)) continue;
        if (ch == '[') {
            m5_buf inner = {0};
            int rc = class_expr(t, &inner);
            /* A plain union joins the items of the outer class. */
            if (!rc && inner.n > 2 && inner.p[0] == '[' && inner.p[1] != '^')
                m5_buf_append(&c->items, inner.p + 1, inner.n - 2);
            else if (!rc)
                m5_buf_printf(&c->alts, "|%s", inner.p);
            m5_buf_free(&inner);
            if (rc) return rc;
            continue;
        }
        if (ch == ']') m5_buf_putc(&c->items, '\\');
        m5_buf_putc(&c->items, ch);
        t->i++;
    }
    return unsupported(t, "a character class does not end");
}

/* A class from '[' to its ']': nested classes and && (intersection) become look-aheads, which PCRE2's classes lack. */
static int class_expr(trans *t, m5_buf *out)
{
    if (++t->depth > MAX_NEST) return unsupported(t, "classes are nested too deep");
    t->i++;
    bool negated = t->i < t->n && t->p[t->i] == '^';
    if (negated) t->i++;
    m5_buf before = {0}, last = {0};
    int rc = 0;
    bool simple = true;
    cls c;
    for (bool first = true;; first = false) {
        memset(&c, 0, sizeof c);
        rc = class_part(t, &c, first);
        m5_buf_clear(&last);
        if (!rc) union_expr(&c, &last);
        if (rc || t->p[t->i] == ']') break;
        simple = false;
        m5_buf_printf(&before, "(?=%s)", last.p ? last.p : "");
        m5_buf_free(&c.items);
        m5_buf_free(&c.alts);
        t->i += 2;
    }
    if (!rc) {
        t->i++;
        if (simple && !c.alts.n && c.items.n)
            m5_buf_printf(out, "[%s%s]", negated ? "^" : "", c.items.p);
        else if (negated)
            m5_buf_printf(out, "(?:(?!%s%s)(?s:.))", before.p ? before.p : "", last.p);
        else
            m5_buf_printf(out, "(?:%s%s)", before.p ? before.p : "", last.p);
        if (c.items.failed || c.alts.failed || before.failed || last.failed) out->failed = true;
    }
    m5_buf_free(&c.items);
    m5_buf_free(&c.alts);
    m5_buf_free(&before);
    m5_buf_free(&last);
    t->depth--;
    return rc;
}

/* "{n,m}" at t->i: length of the interval, 0 if it is none. */
static size_t interval(const trans *t)
{
    size_t i = t->i + 1, digits = 0;
    while (i < t->n && ((t->p[i] >= '0' && t->p[i] <= '9') || t->p[i] == ',')) digits += t->p[i++] != ',';
    return digits && i < t->n && t->p[i] == '}' ? i + 1 - t->i : 0;
}

/* Puts the interval behind the atom that starts at `atom` in out. In Ruby's syntax {n,m}+ repeats the interval (it is not possessive) and {n}? makes
 * it optional (it is not lazy). */
static void put_interval(trans *t, m5_buf *out, size_t atom, size_t len)
{
    bool comma = memchr(t->p + t->i, ',', len) != NULL;
    char next = t->i + len < t->n ? t->p[t->i + len] : '\0';
    bool wrap = next == '+' || (next == '?' && !comma);
    m5_buf copy = {0};
    if (wrap) {
        m5_buf_append(&copy, out->p + atom, out->n - atom);
        out->n = atom;
        m5_buf_printf(out, "(?:%s", copy.p ? copy.p : "");
    }
    m5_buf_puts(out, t->p[t->i + 1] == ',' ? "{0" : "{");
    m5_buf_append(out, t->p + t->i + 1, len - 1);
    if (wrap) m5_buf_putc(out, ')');
    if (copy.failed) out->failed = true;
    m5_buf_free(&copy);
    t->i += len;
}

/* "(?imx-imx" : Ruby's m is PCRE2's s. Everything else behind "(" is spelled alike. */
static void put_group(trans *t, m5_buf *out)
{
    m5_buf_putc(out, '(');
    t->i++;
    size_t k = t->i + 1;
    if (t->i >= t->n || t->p[t->i] != '?') return;
    while (k < t->n && t->p[k] && strchr("imx-", t->p[k])) k++;
    if (k == t->i + 1 || k >= t->n || (t->p[k] != ':' && t->p[k] != ')')) return;
    for (; t->i < k; t->i++) m5_buf_putc(out, t->p[t->i] == 'm' ? 's' : t->p[t->i]);
    if (t->p[k] == ')') { /* "(?i)" is no group */
        m5_buf_putc(out, ')');
        t->i++;
    }
}

int m5_tok_regex_translate(m5_buf *out, const char *pattern, size_t n, bool plain_names, m5_error *err)
{
    trans t = {pattern, n, 0, plain_names, 0, err};
    size_t open[MAX_NEST], n_open = 0, atom = 0;
    while (t.i < t.n) {
        char c = t.p[t.i];
        int rc = 0;
        size_t len;
        if (c == '\\') {
            atom = out->n;
            t.i++;
            rc = escape(&t, out, NULL);
        } else if (c == '[') {
            atom = out->n;
            rc = class_expr(&t, out);
        } else if (c == '(') {
            if (n_open == MAX_NEST) return unsupported(&t, "groups are nested too deep");
            open[n_open++] = out->n;
            put_group(&t, out);
            if (t.p[t.i - 1] == ')') n_open--;
        } else if (c == ')') {
            if (n_open == 0) return unsupported(&t, "a parenthesis closes nothing");
            atom = open[--n_open];
            m5_buf_putc(out, c);
            t.i++;
        } else if (c == '{' && (len = interval(&t)) != 0) {
            put_interval(&t, out, atom, len);
        } else {
            /* '*', '+' and '?' belong to the atom before them; the bytes inside one character do too. */
            if (!strchr("*+?", c) && ((unsigned char)c & 0xC0) != 0x80) atom = out->n;
            m5_buf_putc(out, c);
            t.i++;
        }
        if (rc) return rc;
    }
    return out->failed ? m5_error_set(err, M5_ERR_NOMEM, "out of memory while reading a pattern") : 0;
}

/* ---- compiling ---- */

static void *pcre_alloc(size_t n, void *data)
{
    (void)data;
    return m5_alloc(M5_MEM_TEXT, n);
}

static void pcre_free(void *p, void *data)
{
    (void)data;
    m5_free(p);
}

static pcre2_code *compile(const m5_buf *text, pcre2_compile_context *ctx, int *code, size_t *at)
{
    PCRE2_SIZE offset = 0;
    /* MULTILINE: in Ruby ^ and $ always match at line borders. */
    uint32_t options = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C;
    pcre2_code *re = pcre2_compile((PCRE2_SPTR)(text->p ? text->p : ""), text->n, options, code, &offset, ctx);
    *at = offset;
    return re;
}

int m5_tok_regex_compile(tok_regex **out, const char *pattern, size_t n, m5_error *err)
{
    int rc = 0, code = 0;
    size_t at = 0;
    m5_buf text = {0};
    pcre2_compile_context *ctx = NULL;
    tok_regex *rx = NULL;
    if (n > MAX_PATTERN) return m5_error_set(err, M5_ERR_LIMIT, "a pattern of %zu bytes is too long (limit %d)", n, MAX_PATTERN);
    if (!m5_utf8_valid(pattern, n) || memchr(pattern, 0, n)) return m5_error_set(err, M5_ERR_FORMAT, "a pattern is not UTF-8 text");
    rx = m5_calloc(M5_MEM_TEXT, 1, sizeof *rx);
    if (rx) rx->general = pcre2_general_context_create(pcre_alloc, pcre_free, NULL);
    if (rx && rx->general) {
        ctx = pcre2_compile_context_create(rx->general);
        rx->limits = pcre2_match_context_create(rx->general);
    }
    if (!ctx || !rx->limits) {
        rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory for a pattern");
        goto out;
    }
    pcre2_set_newline(ctx, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(ctx, MAX_NEST * 4);
    pcre2_set_match_limit(rx->limits, MATCH_LIMIT);
    pcre2_set_heap_limit(rx->limits, HEAP_LIMIT_KB);
    rc = m5_tok_regex_translate(&text, pattern, n, false, err);
    if (rc) goto out;
    rx->code = compile(&text, ctx, &code, &at);
    if (!rx->code && code == PCRE2_ERROR_UNKNOWN_UNICODE_PROPERTY) { /* not a script, then: \p{Emoji} and its like */
        m5_buf_clear(&text);
        rc = m5_tok_regex_translate(&text, pattern, n, true, err);
        if (rc) goto out;
        rx->code = compile(&text, ctx, &code, &at);
    }
    if (!rx->code) {
        char why[128] = "";
        pcre2_get_error_message(code, (PCRE2_UCHAR *)why, sizeof why);
        rc = m5_error_set(err, code == PCRE2_ERROR_HEAP_FAILED ? M5_ERR_NOMEM : M5_ERR_UNSUPPORTED,
                          "pattern \"%.*s\" cannot be used: %s (at byte %zu)", (int)(n > 120 ? 120 : n), pattern, why, at);
        goto out;
    }
    pcre2_jit_compile(rx->code, PCRE2_JIT_COMPLETE); /* without it the interpreter runs: slower, same matches */
    *out = rx;
    rx = NULL;
out:
    pcre2_compile_context_free(ctx);
    m5_buf_free(&text);
    m5_tok_regex_free(rx);
    return rc;
}

void m5_tok_regex_free(tok_regex *rx)
{
    if (!rx) return;
    pcre2_code_free(rx->code);
    pcre2_match_context_free(rx->limits);
    pcre2_general_context_free(rx->general);
    m5_free(rx);
}

void m5_tok_pattern_deinit(tok_pattern *pat)
{
    m5_tok_regex_free(pat->regex);
    m5_free(pat->literal);
}

void m5_tok_match_free(void *match)
{
    pcre2_match_data_free(match);
}

/* ---- matching ---- */

enum { R_LU, R_LL, R_LM, R_LO, R_HAN, R_M, R_ND, R_N, R_P, R_S };

/* Characters that Unicode 15 and 16 assigned, after PCRE2 10.42's tables (Unicode 14) were made. Before matching, each is replaced by an older
 * character of its category and of the same length in UTF-8, so offsets stay. Made by comparing Oniguruma's \p classes with PCRE2's. */
static const struct {
    uint32_t lo, hi;
    uint8_t kind;
} newer[] = {
    {0x897, 0x897, R_M},      {0xCF3, 0xCF3, R_M},      {0xECE, 0xECE, R_M},       {0x1B4E, 0x1B4F, R_P},     {0x1B7F, 0x1B7F, R_P},
    {0x1C89, 0x1C89, R_LU},   {0x1C8A, 0x1C8A, R_LL},   {0x2427, 0x2429, R_S},     {0x2FFC, 0x2FFF, R_S},     {0x31E4, 0x31E5, R_S},
    {0x31EF, 0x31EF, R_S},    {0xA7CB, 0xA7CC, R_LU},   {0xA7CD, 0xA7CD, R_LL},    {0xA7DA, 0xA7DA, R_LU},    {0xA7DB, 0xA7DB, R_LL},
    {0xA7DC, 0xA7DC, R_LU},   {0x105C0, 0x105F3, R_LO}, {0x10D40, 0x10D49, R_ND},  {0x10D4A, 0x10D4D, R_LO},  {0x10D4E, 0x10D4E, R_LM},
    {0x10D4F, 0x10D4F, R_LO}, {0x10D50, 0x10D65, R_LU}, {0x10D69, 0x10D6D, R_M},   {0x10D6E, 0x10D6E, R_P},   {0x10D6F, 0x10D6F, R_LM},
    {0x10D70, 0x10D85, R_LL}, {0x10D8E, 0x10D8F, R_S},  {0x10EC2, 0x10EC4, R_LO},  {0x10EFC, 0x10EFF, R_M},   {0x1123F, 0x11240, R_LO},
    {0x11241, 0x11241, R_M},  {0x11380, 0x11389, R_LO}, {0x1138B, 0x1138B, R_LO},  {0x1138E, 0x1138E, R_LO},  {0x11390, 0x113B5, R_LO},
    {0x113B7, 0x113B7, R_LO}, {0x113B8, 0x113C0, R_M},  {0x113C2, 0x113C2, R_M},   {0x113C5, 0x113C5, R_M},   {0x113C7, 0x113CA, R_M},
    {0x113CC, 0x113D0, R_M},  {0x113D1, 0x113D1, R_LO}, {0x113D2, 0x113D2, R_M},   {0x113D3, 0x113D3, R_LO},  {0x113D4, 0x113D5, R_P},
    {0x113D7, 0x113D8, R_P},  {0x113E1, 0x113E2, R_M},  {0x116D0, 0x116E3, R_ND},  {0x11B00, 0x11B09, R_P},   {0x11BC0, 0x11BE0, R_LO},
    {0x11BE1, 0x11BE1, R_P},  {0x11BF0, 0x11BF9, R_ND}, {0x11F00, 0x11F01, R_M},   {0x11F02, 0x11F02, R_LO},  {0x11F03, 0x11F03, R_M},
    {0x11F04, 0x11F10, R_LO}, {0x11F12, 0x11F33, R_LO}, {0x11F34, 0x11F3A, R_M},   {0x11F3E, 0x11F42, R_M},   {0x11F43, 0x11F4F, R_P},
    {0x11F50, 0x11F59, R_ND}, {0x11F5A, 0x11F5A, R_M},  {0x1342F, 0x1342F, R_LO},  {0x13440, 0x13440, R_M},   {0x13441, 0x13446, R_LO},
    {0x13447, 0x13455, R_M},  {0x13460, 0x143FA, R_LO}, {0x16100, 0x1611D, R_LO},  {0x1611E, 0x1612F, R_M},   {0x16130, 0x16139, R_ND},
    {0x16D40, 0x16D42, R_LM}, {0x16D43, 0x16D6A, R_LO}, {0x16D6B, 0x16D6C, R_LM},  {0x16D6D, 0x16D6F, R_P},   {0x16D70, 0x16D79, R_ND},
    {0x18CFF, 0x18CFF, R_LO}, {0x1B132, 0x1B132, R_LO}, {0x1B155, 0x1B155, R_LO},  {0x1CC00, 0x1CCEF, R_S},   {0x1CCF0, 0x1CCF9, R_ND},
    {0x1CD00, 0x1CEB3, R_S},  {0x1D2C0, 0x1D2D3, R_N},  {0x1DF25, 0x1DF2A, R_LL},  {0x1E030, 0x1E06D, R_LM},  {0x1E08F, 0x1E08F, R_M},
    {0x1E4D0, 0x1E4EA, R_LO}, {0x1E4EB, 0x1E4EB, R_LM}, {0x1E4EC, 0x1E4EF, R_M},   {0x1E4F0, 0x1E4F9, R_ND},  {0x1E5D0, 0x1E5ED, R_LO},
    {0x1E5EE, 0x1E5EF, R_M},  {0x1E5F0, 0x1E5F0, R_LO}, {0x1E5F1, 0x1E5FA, R_ND},  {0x1E5FF, 0x1E5FF, R_P},   {0x1F6DC, 0x1F6DC, R_S},
    {0x1F774, 0x1F776, R_S},  {0x1F77B, 0x1F77F, R_S},  {0x1F7D9, 0x1F7D9, R_S},   {0x1F8B2, 0x1F8BB, R_S},   {0x1F8C0, 0x1F8C1, R_S},
    {0x1FA75, 0x1FA77, R_S},  {0x1FA87, 0x1FA89, R_S},  {0x1FA8F, 0x1FA8F, R_S},   {0x1FAAD, 0x1FAAF, R_S},   {0x1FABB, 0x1FABF, R_S},
    {0x1FAC6, 0x1FAC6, R_S},  {0x1FACE, 0x1FACF, R_S},  {0x1FADA, 0x1FADC, R_S},   {0x1FADF, 0x1FADF, R_S},   {0x1FAE8, 0x1FAE9, R_S},
    {0x1FAF7, 0x1FAF8, R_S},  {0x1FBCB, 0x1FBEF, R_S},  {0x2B739, 0x2B739, R_HAN}, {0x2EBF0, 0x2EE5D, R_HAN}, {0x31350, 0x323AF, R_HAN},
};
static const uint32_t stand_in[][2] = {
    /* three bytes, four bytes */
    [R_LU] = {0x1E00, 0x10400}, [R_LL] = {0x1E01, 0x10428}, [R_LM] = {0x1D2C, 0x16B40}, [R_LO] = {0x0905, 0x10000}, [R_HAN] = {0x4E00, 0x20000},
    [R_M] = {0x0941, 0x10A01},  [R_ND] = {0x0966, 0x104A0}, [R_N] = {0x2160, 0x10107},  [R_P] = {0x2010, 0x10100},  [R_S] = {0x2190, 0x1F300},
};

uint32_t m5_tok_older_char(uint32_t cp)
{
    size_t lo = 0, hi = sizeof newer / sizeof newer[0];
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (cp > newer[mid].hi)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == sizeof newer / sizeof newer[0] || cp < newer[lo].lo) return cp;
    return stand_in[newer[lo].kind][cp >= 0x10000];
}

/* p itself, or a copy in w->subject when it holds newer characters; NULL when out of memory. */
static const char *subject(tok_work *w, const char *p, size_t n)
{
    bool copied = false;
    for (size_t i = 0; i < n;) {
        unsigned char c = (unsigned char)p[i];
        if (c < 0xE0) {
            i++;
            continue;
        }
        uint32_t cp, old;
        int len = m5_utf8_decode(p + i, n - i, &cp);
        if (len < 1) break;
        old = m5_tok_older_char(cp);
        if (old != cp) {
            if (!copied) {
                m5_buf_clear(&w->subject);
                m5_buf_append(&w->subject, p, n);
                if (w->subject.failed) return NULL;
                copied = true;
            }
            m5_utf8_encode(old, w->subject.p + i);
        }
        i += (size_t)len;
    }
    return copied ? w->subject.p : p;
}

static int find(tok_work *w, const tok_regex *rx, const char *p, size_t n, size_t from)
{
    int k = pcre2_match(rx->code, (PCRE2_SPTR)p, n, from, PCRE2_NO_UTF_CHECK, w->match, rx->limits);
    if (k == PCRE2_ERROR_JIT_STACKLIMIT) k = pcre2_match(rx->code, (PCRE2_SPTR)p, n, from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, w->match, rx->limits);
    if (k >= 0) return 1;
    if (k == PCRE2_ERROR_NOMATCH) return 0;
    if (k == PCRE2_ERROR_NOMEMORY) return m5_error_set(w->err, M5_ERR_NOMEM, "out of memory while matching a pattern");
    return m5_error_set(w->err, M5_ERR_LIMIT, "a pre-tokenizer pattern needs too many steps on this text (PCRE2 error %d)", k);
}

static int regex_matches(tok_work *w, const tok_regex *rx, const char *p, size_t n)
{
    if (!w->match) w->match = pcre2_match_data_create(1, rx->general);
    const char *s = subject(w, p, n);
    if (!w->match || !s) return m5_error_set(w->err, M5_ERR_NOMEM, "out of memory while matching a pattern");
    size_t from = 0, last = SIZE_MAX;
    while (from <= n) {
        int rc = find(w, rx, s, n, from);
        if (rc < 0) return rc;
        if (rc == 0) break;
        const PCRE2_SIZE *ov = pcre2_get_ovector_pointer(w->match);
        size_t b = ov[0], e = ov[1];
        if (e < b) e = b;          /* \K behind a look-ahead can end before it starts */
        if (b == e && last == e) { /* no empty match right behind a match */
            if (from >= n) break;
            from++;
            while (from < n && ((unsigned char)s[from] & 0xC0) == 0x80) from++;
            continue;
        }
        if (last != SIZE_MAX && b < last) b = last;
        if (e < b) e = b;
        rc = m5_tok_ranges_push(&w->matches, b, e);
        if (rc) return m5_error_set(w->err, rc, "out of memory while matching a pattern");
        from = last = e;
    }
    return 0;
}

int m5_tok_pattern_matches(tok_work *w, const tok_pattern *pat, const char *p, size_t n)
{
    w->matches.n = 0;
    if (pat->regex) return regex_matches(w, pat->regex, p, n);
    if (!pat->n_literal) return 0;
    for (size_t at = 0; (at = m5_slice_find((m5_slice){p, n}, (m5_slice){pat->literal, pat->n_literal}, at)) != SIZE_MAX; at += pat->n_literal) {
        int rc = m5_tok_ranges_push(&w->matches, at, at + pat->n_literal);
        if (rc) return m5_error_set(w->err, rc, "out of memory while matching a pattern");
    }
    return 0;
}
