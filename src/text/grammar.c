/* SPDX-License-Identifier: Apache-2.0 */
/* The syntax tree of grammars and its translation into a program. Not here: sources (schema, regex, gbnf), running (grammar_auto.c). */
#include "text/grammar_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_NODES = 4 << 20,
    MAX_SIZE = 4 << 20,
    MAX_TEXT = 32 << 20,
    MAX_DEPTH = 1000, /* of the tree: the walk over it is recursive */
    EXPAND = 48       /* repetitions up to that many instructions are written out instead of counted */
};

bool m5_g_grow(void *p, size_t n, size_t *cap, size_t more, size_t size)
{
    if (n + more <= *cap) return true;
    size_t want = *cap ? *cap * 2 : 16, bytes;
    if (want < n + more) want = n + more;
    void *old, *grown;
    memcpy(&old, p, sizeof old);
    if (!m5_mul_size(want, size, &bytes) || !(grown = m5_realloc(M5_MEM_TEXT, old, bytes))) return false;
    memcpy(p, &grown, sizeof grown);
    *cap = want;
    return true;
}

/* ---- builder ---- */

int m5_gb_new(m5_gb **out, m5_error *err)
{
    m5_gb *b = m5_calloc(M5_MEM_TEXT, 1, sizeof *b);
    if (b) b->notes = m5_json_new_array();
    if (!b || !b->notes) {
        m5_free(b);
        return m5_error_set(err, M5_ERR_NOMEM, "out of memory for a grammar");
    }
    for (size_t i = 0; i < sizeof b->json / sizeof b->json[0]; i++) b->json[i] = -1;
    *out = b;
    return 0;
}

void m5_gb_free(m5_gb *b)
{
    if (!b) return;
    m5_free(b->node);
    m5_free(b->kid);
    m5_free(b->set);
    m5_free(b->rule);
    m5_free(b->str_rule);
    m5_free(b->until);
    m5_buf_free(&b->text);
    m5_json_unref(b->notes);
    m5_free(b);
}

int32_t m5_g_fail(m5_gb *b, int code, const char *fmt, ...)
{
    if (!b->err.code) {
        va_list ap;
        va_start(ap, fmt);
        m5_error_setv(&b->err, code, fmt, ap);
        va_end(ap);
    }
    return -1;
}

static int32_t no_memory(m5_gb *b)
{
    return m5_g_fail(b, M5_ERR_NOMEM, "out of memory for a grammar");
}

void m5_g_note(m5_gb *b, const char *fmt, ...)
{
    m5_buf text = {0};
    va_list ap;
    va_start(ap, fmt);
    m5_buf_vprintf(&text, fmt, ap);
    va_end(ap);
    enum { MAX_NOTES = 1000 };
    if (text.failed || (m5_json_len(b->notes) < MAX_NOTES && m5_json_push_take(b->notes, m5_json_new_str(text.p, text.n)) != 0)) no_memory(b);
    m5_buf_free(&text);
}

static int32_t add(m5_gb *b, g_node n)
{
    if (b->err.code) return -1;
    if (b->n_node >= MAX_NODES) return m5_g_fail(b, M5_ERR_LIMIT, "the grammar has more than %d parts", MAX_NODES);
    if (n.size > MAX_SIZE) return m5_g_fail(b, M5_ERR_LIMIT, "the grammar needs more than %d instructions", MAX_SIZE);
    if (n.depth > MAX_DEPTH) return m5_g_fail(b, M5_ERR_LIMIT, "the grammar is nested deeper than %d", MAX_DEPTH);
    if (!m5_g_grow(&b->node, b->n_node, &b->cap_node, 1, sizeof n)) return no_memory(b);
    b->node[b->n_node] = n;
    return (int32_t)b->n_node++;
}

static uint32_t sat_add(uint32_t x, uint32_t y)
{
    return x > UINT32_MAX - y ? UINT32_MAX : x + y;
}

int32_t m5_g_none(m5_gb *b)
{
    return add(b, (g_node){.kind = G_FAIL});
}
int32_t m5_g_empty(m5_gb *b)
{
    return add(b, (g_node){.kind = G_EMPTY});
}
int32_t m5_g_guard(m5_gb *b)
{
    return add(b, (g_node){.kind = G_GUARD, .size = 1});
}

int32_t m5_g_lit(m5_gb *b, const char *p, size_t n)
{
    if (b->err.code) return -1;
    if (!n) return m5_g_empty(b);
    if (n > MAX_TEXT - b->text.n) return m5_g_fail(b, M5_ERR_LIMIT, "the grammar has more than %d bytes of text", MAX_TEXT);
    size_t off = b->text.n;
    m5_buf_append(&b->text, p, n);
    if (b->text.failed) return no_memory(b);
    return add(b, (g_node){.kind = G_LIT, .a = (uint32_t)off, .b = (uint32_t)n, .size = (uint32_t)n});
}

int32_t m5_g_cstr(m5_gb *b, const char *s)
{
    return m5_g_lit(b, s, strlen(s));
}

int32_t m5_g_set(m5_gb *b, const g_set *s)
{
    if (b->err.code) return -1;
    if (!(s->w[0] | s->w[1] | s->w[2] | s->w[3])) return m5_g_none(b);
    for (size_t i = b->n_set > 64 ? b->n_set - 64 : 0; i < b->n_set; i++) {
        if (memcmp(&b->set[i], s, sizeof *s) == 0) return add(b, (g_node){.kind = G_SET, .a = (uint32_t)i, .size = 1});
    }
    if (!m5_g_grow(&b->set, b->n_set, &b->cap_set, 1, sizeof *s)) return no_memory(b);
    b->set[b->n_set] = *s;
    return add(b, (g_node){.kind = G_SET, .a = (uint32_t)b->n_set++, .size = 1});
}

int32_t m5_g_range(m5_gb *b, uint8_t lo, uint8_t hi)
{
    g_set s = {{0}};
    m5_g_set_add(&s, lo, hi);
    return m5_g_set(b, &s);
}

static int32_t add_list(m5_gb *b, g_kind kind, const int32_t *items, size_t n)
{
    if (b->err.code) return -1;
    g_node node = {.kind = (uint8_t)kind, .a = (uint32_t)b->n_kid, .b = (uint32_t)n, .size = kind == G_ALT ? 1 : 0};
    if (n > MAX_NODES || b->n_kid + n > 2 * (size_t)MAX_NODES) return m5_g_fail(b, M5_ERR_LIMIT, "the grammar has more than %d parts", MAX_NODES);
    for (size_t i = 0; i < n; i++) {
        if (items[i] < 0 || (size_t)items[i] >= b->n_node) return m5_g_fail(b, M5_ERR_ARG, "no such part of a grammar: %d", (int)items[i]);
        const g_node *k = &b->node[items[i]];
        if (k->depth + 1 > node.depth) node.depth = (uint16_t)(k->depth + 1);
        node.size = sat_add(node.size, sat_add(k->size, kind == G_ALT ? 1 : 0));
    }
    if (!m5_g_grow(&b->kid, b->n_kid, &b->cap_kid, n, sizeof *b->kid)) return no_memory(b);
    if (n) memcpy(b->kid + b->n_kid, items, n * sizeof *items);
    b->n_kid += n;
    return add(b, node);
}

int32_t m5_gb_seq(m5_gb *b, const int32_t *items, size_t n)
{
    if (n == 1 && !b->err.code) return items[0];
    return n ? add_list(b, G_SEQ, items, n) : m5_g_empty(b);
}

int32_t m5_gb_alt(m5_gb *b, const int32_t *items, size_t n)
{
    if (n == 1 && !b->err.code) return items[0];
    return n ? add_list(b, G_ALT, items, n) : m5_g_none(b);
}

int32_t m5_g_seq2(m5_gb *b, int32_t x, int32_t y)
{
    return m5_gb_seq(b, (int32_t[]){x, y}, 2);
}
int32_t m5_g_seq3(m5_gb *b, int32_t x, int32_t y, int32_t z)
{
    return m5_gb_seq(b, (int32_t[]){x, y, z}, 3);
}
int32_t m5_g_alt2(m5_gb *b, int32_t x, int32_t y)
{
    return m5_gb_alt(b, (int32_t[]){x, y}, 2);
}
int32_t m5_g_opt(m5_gb *b, int32_t item)
{
    return m5_g_rep(b, item, 0, 1, 0);
}

bool m5_g_rep_expands(const g_node *item, uint32_t min, uint32_t max)
{
    if (min == 0 && (max == 1 || max == G_INF)) return true;
    return ((uint64_t)item->size + 1) * (max == G_INF ? (uint64_t)min + 1 : max) <= EXPAND;
}

int32_t m5_g_rep(m5_gb *b, int32_t item, uint32_t min, uint32_t max, unsigned flags)
{
    if (b->err.code) return -1;
    if (item < 0 || (size_t)item >= b->n_node) return m5_g_fail(b, M5_ERR_ARG, "no such part of a grammar: %d", (int)item);
    if (min > max) return m5_g_none(b);
    if (max == 0) return m5_g_empty(b);
    if (min == 1 && max == 1 && !flags) return item;
    const g_node *k = &b->node[item];
    uint32_t size = sat_add(k->size, 4);
    if (m5_g_rep_expands(k, min, max) && (min > 0 || max != G_INF)) size = (k->size + 2) * (max == G_INF ? min + 1 : max);
    g_node n = {.kind = G_REP, .flags = (uint8_t)flags, .depth = (uint16_t)(k->depth + 1), .size = size, .a = (uint32_t)item};
    n.min = min;
    n.max = max;
    return add(b, n);
}

int32_t m5_g_rule_new(m5_gb *b)
{
    if (b->err.code) return -1;
    if (!m5_g_grow(&b->rule, b->n_rule, &b->cap_rule, 1, sizeof *b->rule)) return no_memory(b);
    b->rule[b->n_rule] = (g_rule){.body = -1, .block = b->block};
    return (int32_t)b->n_rule++;
}

int32_t m5_g_rule_set(m5_gb *b, int32_t rule, int32_t body)
{
    if (b->err.code || rule < 0 || body < 0) return -1;
    b->rule[rule].body = body;
    return rule;
}

int32_t m5_g_ref(m5_gb *b, int32_t rule, unsigned flags)
{
    if (b->err.code) return -1;
    if (rule < 0 || (size_t)rule >= b->n_rule) return m5_g_fail(b, M5_ERR_ARG, "no such rule of a grammar: %d", (int)rule);
    return add(b, (g_node){.kind = G_REF, .flags = (uint8_t)flags, .size = 1, .a = (uint32_t)rule});
}

int32_t m5_g_share(m5_gb *b, int32_t node)
{
    if (b->err.code || node < 0) return -1;
    if (b->node[node].size <= 2 && b->node[node].depth <= 1) return node;
    return m5_g_ref(b, m5_g_rule_set(b, m5_g_rule_new(b), node), 0);
}

void m5_g_block_begin(m5_gb *b)
{
    b->block = ++b->n_block;
}
void m5_g_block_end(m5_gb *b)
{
    b->block = 0;
}

int32_t m5_gb_literal(m5_gb *b, m5_slice text)
{
    return m5_g_lit(b, text.p, text.n);
}

int32_t m5_gb_marker(m5_gb *b, const m5_tokenizer *t, m5_slice text)
{
    int32_t id = t ? m5_tokenizer_find(t, text) : -1;
    if (id < 0 || !m5_tokenizer_is_control(t, id)) return m5_g_lit(b, text.p, text.n);
    static const char mark[] = {(char)G_MARK};
    return m5_g_seq3(b, m5_g_lit(b, mark, 1), m5_g_lit(b, text.p, text.n), m5_g_lit(b, mark, 1));
}

int32_t m5_gb_repeat(m5_gb *b, int32_t item, int64_t min, int64_t max)
{
    if (min < 0) min = 0;
    if (min > INT32_MAX || max > INT32_MAX) return m5_g_fail(b, M5_ERR_LIMIT, "a repetition of more than %d", INT32_MAX);
    return m5_g_rep(b, item, (uint32_t)min, max < 0 ? G_INF : (uint32_t)max, 0);
}

int32_t m5_gb_optional(m5_gb *b, int32_t item)
{
    return m5_g_opt(b, item);
}

static int cmp_slice(const void *x, const void *y)
{
    const m5_slice *a = x, *c = y;
    int d = memcmp(a->p, c->p, a->n < c->n ? a->n : c->n);
    return d ? d : (a->n > c->n) - (a->n < c->n);
}

/* Sorted texts that agree in their first `at` bytes, as a tree without common beginnings: thousands of choices stay one state wide. */
static int32_t choice_tree(m5_gb *b, const m5_slice *s, size_t n, size_t at)
{
    size_t same = at, ends = 0;
    while (same < s[0].n && same < s[n - 1].n && s[0].p[same] == s[n - 1].p[same]) same++;
    int32_t head = m5_g_lit(b, s[0].p + at, same - at), rest;
    int32_t *kids = NULL;
    size_t n_kid = 0, cap = 0;
    for (size_t i = 0; i < n && !b->err.code;) {
        if (!m5_g_grow(&kids, n_kid, &cap, 1, sizeof *kids)) {
            no_memory(b);
            break;
        }
        if (s[i].n == same) {
            if (!ends++) kids[n_kid++] = m5_g_empty(b);
            i++;
            continue;
        }
        size_t j = i + 1;
        while (j < n && s[j].n > same && s[j].p[same] == s[i].p[same]) j++;
        /* A single text needs no deeper look: the recursion is as deep as texts branch, not as long as they are. */
        kids[n_kid++] = j == i + 1 ? m5_g_lit(b, s[i].p + same, s[i].n - same) : choice_tree(b, s + i, j - i, same);
        i = j;
    }
    rest = b->err.code ? -1 : m5_gb_alt(b, kids, n_kid);
    m5_free(kids);
    return m5_g_seq2(b, head, rest);
}

int32_t m5_gb_choices(m5_gb *b, const m5_slice *texts, size_t n)
{
    if (b->err.code) return -1;
    if (!n) return m5_g_none(b);
    m5_slice *s = m5_alloc(M5_MEM_TEXT, n * sizeof *s);
    if (!s) return no_memory(b);
    for (size_t i = 0; i < n; i++) s[i] = (m5_slice){texts[i].p ? texts[i].p : "", texts[i].n};
    qsort(s, n, sizeof *s, cmp_slice);
    int32_t r = choice_tree(b, s, n, 0);
    m5_free(s);
    return r;
}

int32_t m5_gb_schema(m5_gb *b, const m5_json *schema, const char *where)
{
    return m5_g_schema(b, schema, where);
}

int32_t m5_gb_regex(m5_gb *b, m5_slice pattern)
{
    g_regex_opts o = {.max = G_INF};
    m5_error err = {0};
    int32_t r = m5_g_regex(b, pattern.p, pattern.n, &o, NULL, &err);
    return r >= 0 ? r : m5_g_fail(b, err.code ? err.code : M5_ERR_FORMAT, "%s", err.text);
}

/* The machine of Knuth, Morris and Pratt as rules: rule i stands for "the last i bytes begin the end". The rules call each other last, so no stack
 * grows. Characters beyond ASCII are whole and lead back to rule 0. */
static int32_t until_rule(m5_gb *b, m5_slice end)
{
    enum { MAX_END = 255 };
    uint8_t back[MAX_END + 1] = {0};
    if (!end.n || end.n > MAX_END) return m5_g_fail(b, M5_ERR_ARG, "the end of a text has %zu bytes (1 to %d are possible)", end.n, MAX_END);
    for (size_t i = 0; i < end.n; i++) {
        if ((uint8_t)end.p[i] >= 0x80) return m5_g_fail(b, M5_ERR_UNSUPPORTED, "the end of a text is not ASCII");
    }
    for (size_t i = 1, k = 0; i < end.n; i++) { /* back[i]: longest proper border of end[0..i) */
        while (k && end.p[i] != end.p[k]) k = back[k];
        if (end.p[i] == end.p[k]) k++;
        back[i + 1] = (uint8_t)k;
    }
    m5_g_block_begin(b);
    int32_t first = m5_g_rule_new(b);
    for (size_t i = 1; i <= end.n; i++) m5_g_rule_new(b);
    g_cps wide = {0};
    m5_g_cps_add(&wide, 0x80, 0x10FFFF);
    m5_g_cps_norm(&wide);
    for (size_t i = 0; i < end.n && !b->err.code; i++) {
        g_set to[MAX_END + 1];
        memset(to, 0, (end.n + 1) * sizeof to[0]);
        for (unsigned c = 0; c < 0x80; c++) {
            size_t k = i;
            while (k && (uint8_t)end.p[k] != c) k = back[k];
            if ((uint8_t)end.p[k] == c) k++;
            m5_g_set_add(&to[k], c, c);
        }
        int32_t kids[MAX_END + 2];
        size_t n = 0;
        for (size_t k = 0; k <= end.n; k++) {
            int32_t set = m5_g_set(b, &to[k]);
            if (set >= 0 && b->node[set].kind == G_SET) kids[n++] = m5_g_seq2(b, set, m5_g_ref(b, first + (int32_t)k, 0));
        }
        kids[n++] = m5_g_seq2(b, m5_g_chars(b, &wide, false), m5_g_ref(b, first, 0));
        m5_g_rule_set(b, first + (int32_t)i, m5_gb_alt(b, kids, n));
    }
    m5_g_rule_set(b, first + (int32_t)end.n, m5_g_empty(b));
    m5_g_block_end(b);
    m5_g_cps_free(&wide);
    return b->err.code ? -1 : first;
}

int32_t m5_gb_text_until(m5_gb *b, m5_slice end)
{
    if (b->err.code) return -1;
    for (size_t i = 0; i < b->n_until; i++) {
        if (m5_slice_eq((m5_slice){b->text.p + b->until[i].off, b->until[i].n}, end)) return m5_g_ref(b, b->until[i].rule, 0);
    }
    int32_t rule = until_rule(b, end);
    if (rule < 0 || !m5_g_grow(&b->until, b->n_until, &b->cap_until, 1, sizeof *b->until)) return rule < 0 ? -1 : no_memory(b);
    size_t off = b->text.n;
    m5_buf_append(&b->text, end.p, end.n);
    if (b->text.failed) return no_memory(b);
    b->until[b->n_until++] = (struct g_until_rule){off, end.n, rule};
    return m5_g_ref(b, rule, 0);
}
