/* SPDX-License-Identifier: Apache-2.0 */
/* GBNF, the grammar notation of llama.cpp: rules, alternatives, groups, literals, character classes, repetition, comments. Not here: its references
 * to single tokens (<[17]>, <think>), which are refused. A line that begins with | continues the rule above. */
#include "text/grammar_internal.h"

#include <string.h>

enum { MAX_NEST = 200, MAX_TEXT = 4 << 20, MAX_COUNT = 1000000, MAX_NAME = 200 };

typedef struct gp {
    m5_gb *b;
    const char *p;
    size_t n, at;
    m5_json *names; /* name -> rule */
    int depth;
    m5_error *err;
} gp;

static int32_t wrong(gp *g, const char *what)
{
    size_t line = 1, col = 1;
    for (size_t i = 0; i < g->at && i < g->n; i++) {
        col = g->p[i] == '\n' ? 1 : col + 1;
        line += g->p[i] == '\n';
    }
    m5_error_set(g->err, M5_ERR_FORMAT, "grammar, line %zu, column %zu: %s", line, col, what);
    return -1;
}

static int32_t checked(gp *g, int32_t node)
{
    if (node < 0 && g->b->err.code) m5_error_set(g->err, g->b->err.code, "%s", g->b->err.text);
    return node;
}

static bool look(const gp *g, char c)
{
    return g->at < g->n && g->p[g->at] == c;
}

static void space(gp *g, bool newline)
{
    for (; g->at < g->n; g->at++) {
        char c = g->p[g->at];
        if (c == '#') {
            while (g->at < g->n && g->p[g->at] != '\n') g->at++;
            if (!newline || g->at >= g->n) return;
        } else if (c != ' ' && c != '\t' && !(newline && (c == '\n' || c == '\r'))) {
            return;
        }
    }
}

static bool name_char(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* The rule of a name; made when first seen. */
static int32_t named(gp *g)
{
    char name[MAX_NAME + 1];
    size_t n = 0;
    while (g->at + n < g->n && name_char(g->p[g->at + n])) n++;
    if (!n) return wrong(g, "a name was expected");
    if (n > MAX_NAME) return wrong(g, "a name that is too long");
    memcpy(name, g->p + g->at, n);
    name[n] = 0;
    g->at += n;
    const m5_json *known = m5_json_get(g->names, name);
    if (known) return (int32_t)m5_json_int(known);
    int32_t rule = checked(g, m5_g_rule_new(g->b));
    if (rule >= 0 && m5_json_set_int(g->names, name, rule) != 0) return m5_error_set(g->err, M5_ERR_NOMEM, "out of memory for a grammar"), -1;
    return rule;
}

/* One character of a literal or class, escapes undone. */
static bool character(gp *g, uint32_t *cp)
{
    static const char from[] = "trn\\\"[]^-/'", to[] = "\t\r\n\\\"[]^-/'";
    if (g->at >= g->n) return wrong(g, "the text ends in the middle"), false;
    if (!look(g, '\\')) {
        int len = m5_utf8_decode(g->p + g->at, g->n - g->at, cp);
        g->at += len > 0 ? (size_t)len : 1;
        return true;
    }
    char e = g->at + 1 < g->n ? g->p[g->at + 1] : 0;
    const char *simple = e ? strchr(from, e) : NULL;
    int digits = e == 'x' ? 2 : e == 'u' ? 4 : e == 'U' ? 8 : 0;
    if (!simple && !digits) return wrong(g, "an unknown escape"), false;
    g->at += 2;
    *cp = simple ? (uint8_t)to[simple - from] : 0;
    for (; digits > 0; digits--, g->at++) {
        char c = g->at < g->n ? g->p[g->at] : 0;
        int d = c >= '0' && c <= '9' ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
        if (d < 0) return wrong(g, "an escape without its hexadecimal digits"), false;
        *cp = *cp * 16 + (uint32_t)d;
    }
    return *cp > 0x10FFFF || (*cp >= 0xD800 && *cp < 0xE000) ? (wrong(g, "an escape that is no character"), false) : true;
}

static int32_t literal(gp *g)
{
    m5_buf text = {0};
    uint32_t cp;
    int32_t node = -1;
    for (g->at++; !look(g, '"');) {
        if (look(g, '\n')) {
            wrong(g, "a literal without its end");
            goto out;
        }
        if (!character(g, &cp)) goto out;
        m5_buf_codepoint(&text, cp);
    }
    g->at++;
    node = text.failed ? m5_g_fail(g->b, M5_ERR_NOMEM, "out of memory for a grammar") : m5_g_lit(g->b, text.p ? text.p : "", text.n);
    checked(g, node);
out:
    m5_buf_free(&text);
    return node;
}

static int32_t class_node(gp *g)
{
    g_cps c = {0};
    int32_t node = -1;
    bool invert = false;
    g->at++;
    if (look(g, '^')) {
        invert = true;
        g->at++;
    }
    while (!look(g, ']')) {
        uint32_t lo, hi;
        if (!character(g, &lo)) goto out;
        hi = lo;
        if (look(g, '-') && g->at + 1 < g->n && g->p[g->at + 1] != ']') {
            g->at++;
            if (!character(g, &hi)) goto out;
            if (hi < lo) {
                wrong(g, "a range of characters runs backwards");
                goto out;
            }
        }
        m5_g_cps_add(&c, lo, hi);
    }
    g->at++;
    if (invert) m5_g_cps_invert(&c);
    m5_g_cps_norm(&c);
    node = checked(g, m5_g_share(g->b, m5_g_chars(g->b, &c, false)));
out:
    m5_g_cps_free(&c);
    return node;
}

static int32_t any_char(gp *g)
{
    g_cps c = {0};
    m5_g_cps_add(&c, 0, 0x10FFFF);
    int32_t node = checked(g, m5_g_share(g->b, m5_g_chars(g->b, &c, false)));
    m5_g_cps_free(&c);
    return node;
}

static int32_t alternatives(gp *g, bool nested);

static int32_t primary(gp *g)
{
    char c = g->p[g->at];
    if (c == '"') return literal(g);
    if (c == '[') return class_node(g);
    if (c == '<' || c == '!') return wrong(g, "references to tokens are not supported");
    if (c == '.') {
        g->at++;
        return any_char(g);
    }
    if (c == '(') {
        if (++g->depth > MAX_NEST) return wrong(g, "groups are nested too deeply");
        g->at++;
        int32_t node = alternatives(g, true);
        g->depth--;
        if (node < 0) return node;
        if (!look(g, ')')) return wrong(g, "a group without its end");
        g->at++;
        return node;
    }
    int32_t rule = named(g);
    return rule < 0 ? rule : checked(g, m5_g_ref(g->b, rule, 0));
}

static bool number(gp *g, uint32_t *out)
{
    size_t from = g->at;
    uint64_t v = 0;
    for (; g->at < g->n && g->p[g->at] >= '0' && g->p[g->at] <= '9'; g->at++) v = v > MAX_COUNT ? v : v * 10 + (uint64_t)(g->p[g->at] - '0');
    if (v > MAX_COUNT) {
        wrong(g, "a repetition of more than a million");
        return false;
    }
    if (g->at > from) *out = (uint32_t)v;
    return true;
}

static int32_t repeated(gp *g)
{
    int32_t node = primary(g);
    while (node >= 0 && g->at < g->n) {
        uint32_t lo = 0, hi = G_INF;
        char c = g->p[g->at];
        if (c == '{') {
            g->at++;
            space(g, false);
            size_t from = g->at;
            if (!number(g, &lo)) return -1;
            bool given = g->at > from;
            hi = lo;
            space(g, false);
            if (look(g, ',')) {
                g->at++;
                hi = G_INF;
                space(g, false);
                if (!number(g, &hi)) return -1;
                space(g, false);
            } else if (!given) {
                return wrong(g, "a number was expected");
            }
            if (!look(g, '}')) return wrong(g, "a repetition without its end");
            if (lo > hi) return wrong(g, "a repetition whose bounds run backwards");
        } else if (c == '+' || c == '?') {
            lo = c == '+';
            hi = c == '?' ? 1 : G_INF;
        } else if (c != '*') {
            return node;
        }
        g->at++;
        node = checked(g, m5_g_rep(g->b, node, lo, hi, 0));
    }
    return node;
}

/* Ends in front of | ) and the end of the line (in groups lines do not matter). */
static int32_t sequence(gp *g, bool nested)
{
    int32_t all = checked(g, m5_g_empty(g->b));
    for (space(g, nested); all >= 0 && g->at < g->n; space(g, nested)) {
        char c = g->p[g->at];
        if (c == '|' || c == ')' || c == '\n' || c == '\r') break;
        int32_t node = repeated(g);
        if (node < 0) return node;
        all = checked(g, g->b->node[all].kind == G_EMPTY ? node : m5_g_seq2(g->b, all, node));
        if (all >= 0 && g->b->node[all].depth > 300) all = checked(g, m5_g_share(g->b, all));
    }
    return all;
}

static int32_t alternatives(gp *g, bool nested)
{
    int32_t all = sequence(g, nested);
    while (all >= 0) {
        size_t back = g->at;
        if (!nested) space(g, true);
        if (!look(g, '|')) {
            g->at = back;
            return all;
        }
        g->at++;
        space(g, true);
        int32_t node = sequence(g, nested);
        if (node < 0) return node;
        all = checked(g, m5_g_alt2(g->b, all, node));
        if (all >= 0 && g->b->node[all].depth > 300) all = checked(g, m5_g_share(g->b, all));
    }
    return all;
}

static int parse(gp *g)
{
    for (space(g, true); g->at < g->n; space(g, true)) {
        int32_t rule = named(g);
        if (rule < 0) return -1;
        space(g, false);
        if (g->n - g->at < 3 || memcmp(g->p + g->at, "::=", 3) != 0) return wrong(g, "::= was expected");
        g->at += 3;
        space(g, true);
        if (g->b->rule[rule].body >= 0) return wrong(g, "this rule is defined a second time");
        int32_t body = alternatives(g, false);
        if (body < 0) return -1;
        m5_g_rule_set(g->b, rule, body);
        space(g, false);
        if (g->at < g->n && !look(g, '\n') && !look(g, '\r')) return wrong(g, "the end of the line was expected");
    }
    for (void *it = m5_json_iter(g->names); it; it = m5_json_iter_next(g->names, it)) {
        if (g->b->rule[m5_json_int(m5_json_iter_value(it))].body >= 0) continue;
        m5_error_set(g->err, M5_ERR_FORMAT, "grammar: rule \"%.200s\" is used but not defined", m5_json_iter_key(it).p);
        return -1;
    }
    if (m5_json_get(g->names, "root")) return 0;
    m5_error_set(g->err, M5_ERR_FORMAT, "grammar: there is no rule \"root\"");
    return -1;
}

static const char *rule_name(const m5_gb *b, uint32_t rule)
{
    const m5_json *names = b->name_ctx;
    for (void *it = m5_json_iter(names); it; it = m5_json_iter_next(names, it)) {
        if (m5_json_int(m5_json_iter_value(it)) == (int64_t)rule) return m5_json_iter_key(it).p;
    }
    return "of a group";
}

int m5_grammar_from_gbnf(m5_grammar **out, const char *text, size_t n, m5_error *err)
{
    m5_error local = {0};
    gp g = {.p = text, .n = n, .err = err ? err : &local};
    int rc = m5_gb_new(&g.b, err);
    if (rc) return rc;
    if (n > MAX_TEXT) {
        rc = m5_error_set(err, M5_ERR_LIMIT, "a grammar of %zu bytes (limit %d)", n, MAX_TEXT);
    } else if (!m5_utf8_valid(text, n)) {
        rc = m5_error_set(err, M5_ERR_FORMAT, "the grammar is not UTF-8");
    } else if (!(g.names = m5_json_new_object())) {
        rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory for a grammar");
    } else if (parse(&g) != 0) {
        rc = g.err->code;
    } else {
        g.b->name = rule_name;
        g.b->name_ctx = g.names;
        rc = m5_gb_finish(g.b, m5_g_ref(g.b, (int32_t)m5_json_int(m5_json_get(g.names, "root")), 0), out, err);
    }
    m5_gb_free(g.b);
    m5_json_unref(g.names);
    return rc;
}
