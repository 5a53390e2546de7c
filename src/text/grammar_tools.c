/* SPDX-License-Identifier: Apache-2.0 */
/* Tool calls as a grammar: the wire formats of text/toolcall*, written forwards. Arguments are JSON under the function's schema; formats of tags hold
 * one value per tag, strings as they are; Gemma and Python have spellings of their own. Members come in the declared order. */
#include "text/grammar_schema.h"
#include "text/toolcall_internal.h"

#include <string.h>

typedef struct gt {
    m5_gb *b;
    const m5_grammar_tool_args *a;
    const m5_toolcall_format *f;
    int32_t gemma[3]; /* rules: value, object, array; -1 until used */
} gt;

/* ---- text with marks ---- */

/* The text; marks of the format that are control tokens of the vocabulary stand for those. */
static int32_t marked(gt *g, m5_slice s)
{
    int32_t all = m5_g_empty(g->b);
    for (size_t i = 0, from = 0; i <= s.n && !g->b->err.code;) {
        size_t best = 0;
        const char *mark;
        for (size_t k = 0; i < s.n && (mark = m5_toolcall_format_mark(g->f, k)) != NULL; k++) {
            size_t n = strlen(mark);
            if (n > best && n <= s.n - i && memcmp(s.p + i, mark, n) == 0) best = n;
        }
        if (best || i == s.n) {
            if (i > from) all = m5_g_seq2(g->b, all, m5_g_lit(g->b, s.p + from, i - from));
            if (best) all = m5_g_seq2(g->b, all, m5_gb_marker(g->b, g->a->vocab, (m5_slice){s.p + i, best}));
            from = i + best;
        }
        i += best ? best : 1;
    }
    return all;
}

static int32_t text(gt *g, const char *s)
{
    return marked(g, m5_slice_of(s));
}

static bool is_control(const gt *g, const char *s)
{
    int32_t id = g->a->vocab ? m5_tokenizer_find(g->a->vocab, m5_slice_of(s)) : -1;
    return id >= 0 && m5_tokenizer_is_control(g->a->vocab, id);
}

/* Any text up to `end` (a control token or plain text, after the plain text `before`), and that. */
static int32_t raw_until(gt *g, const char *before, const char *end)
{
    m5_gb *b = g->b;
    m5_buf plain = {0};
    if (is_control(g, end)) { /* text never holds one, so nothing needs to be looked out for */
        g_cps any = {0};
        m5_g_cps_add(&any, 0, 0x10FFFF);
        int32_t chars = m5_g_share(b, m5_g_chars(b, &any, false));
        m5_g_cps_free(&any);
        return m5_g_seq3(b, m5_g_rep(b, chars, 0, G_INF, 0), text(g, before), text(g, end));
    }
    m5_buf_puts(&plain, before);
    m5_buf_puts(&plain, end);
    int32_t r = plain.failed ? m5_g_fail(b, M5_ERR_NOMEM, "out of memory for a grammar") : m5_gb_text_until(b, m5_buf_view(&plain));
    m5_buf_free(&plain);
    return r;
}

/* ---- parameters ---- */

typedef struct params {
    schema_ctx c;
    const m5_json *schema; /* flat */
    const m5_json *props, *required;
} params;

static bool params_init(gt *g, params *p, const m5_json *schema, const char *where)
{
    *p = (params){.c = {.b = g->b, .root = schema, .where = where}};
    if (!m5_g_schema_init(&p->c)) return false;
    p->schema = m5_json_typeof(schema) == M5_JSON_OBJECT ? m5_g_schema_flat(&p->c, schema) : NULL;
    if (m5_json_get(p->schema, "$ref")) p->schema = NULL;
    p->props = m5_json_get(p->schema, "properties");
    p->required = m5_json_get(p->schema, "required");
    return true;
}

static bool is_required(const params *p, m5_slice name)
{
    for (size_t i = 0; i < m5_json_len(p->required); i++) {
        if (m5_slice_eq(m5_json_str(m5_json_at(p->required, i)), name)) return true;
    }
    return false;
}

static int32_t value_node(params *p, m5_slice name, const m5_json *schema)
{
    size_t back = m5_g_schema_enter(&p->c, "properties", 10);
    m5_g_schema_enter(&p->c, name.p, name.n);
    int32_t r = m5_g_share(p->c.b, m5_g_schema_node(&p->c, schema));
    m5_g_schema_leave(&p->c, back);
    return r;
}

/* Members in the declared order, those not required optional, with `sep` between. */
static int32_t in_order(gt *g, const int32_t *member, const bool *required, size_t n, const char *sep)
{
    m5_gb *b = g->b;
    int32_t next = -1, rest = m5_g_empty(b), comma = m5_g_cstr(b, sep);
    bool missing = false;
    for (size_t i = n; i-- > 0 && !b->err.code;) {
        int32_t here = m5_g_seq2(b, member[i], rest);
        next = m5_g_share(b, required[i] || next < 0 ? here : m5_g_alt2(b, here, next));
        missing = missing || required[i];
        rest = m5_g_seq2(b, comma, next);
        rest = m5_g_share(b, missing ? rest : m5_g_opt(b, rest));
    }
    if (next < 0) return m5_g_empty(b);
    return missing ? next : m5_g_opt(b, next);
}

typedef int32_t (*member_fn)(gt *g, params *p, m5_slice name, const m5_json *schema);

static int32_t members(gt *g, params *p, member_fn make, const char *sep)
{
    size_t n = m5_json_len(p->props), i = 0;
    int32_t *node = m5_alloc(M5_MEM_TEXT, (n + 1) * sizeof *node), r = -1;
    bool *required = m5_calloc(M5_MEM_TEXT, n + 1, sizeof *required);
    if (!node || !required) {
        m5_g_fail(g->b, M5_ERR_NOMEM, "out of memory for a grammar");
    } else {
        for (void *it = m5_json_iter(p->props); it && i < n; it = m5_json_iter_next(p->props, it), i++) {
            m5_slice name = m5_json_iter_key(it);
            required[i] = is_required(p, name);
            node[i] = make(g, p, name, m5_json_iter_value(it));
        }
        r = in_order(g, node, required, i, sep);
    }
    m5_free(node);
    m5_free(required);
    return r;
}

/* ---- tags ---- */

/* The values of a string enumeration as they are; -1: it is none. */
static int32_t raw_choices(gt *g, const m5_json *schema)
{
    const m5_json *values = m5_json_get(schema, "enum"), *konst = m5_json_get(schema, "const");
    size_t n = konst ? 1 : m5_json_len(values);
    m5_slice *s = m5_alloc(M5_MEM_TEXT, (n + 1) * sizeof *s);
    size_t m = 0;
    for (size_t i = 0; s && i < n; i++) {
        const m5_json *v = konst ? konst : m5_json_at(values, i);
        if (m5_json_typeof(v) == M5_JSON_STRING) s[m++] = m5_json_str(v);
    }
    int32_t r = m && m == n ? m5_gb_choices(g->b, s, m) : -1;
    m5_free(s);
    return r;
}

static int32_t tag_value(gt *g, params *p, m5_slice name, const m5_json *schema, const char *frame)
{
    m5_gb *b = g->b;
    const tc_tags *t = g->f->tags;
    tc_type type = tc_type_of(p->c.root, name);
    if (type.set & TC_STR) { /* a union with text is text: the parser finds the type */
        int32_t choice = type.set == TC_STR ? raw_choices(g, schema) : -1;
        if (choice < 0) return m5_g_seq2(b, m5_g_cstr(b, frame), raw_until(g, frame, t->par_close));
        return m5_gb_seq(b, (int32_t[]){m5_g_cstr(b, frame), choice, m5_g_cstr(b, frame), text(g, t->par_close)}, 4);
    }
    return m5_gb_seq(b, (int32_t[]){m5_g_cstr(b, frame), value_node(p, name, schema), m5_g_cstr(b, frame), text(g, t->par_close)}, 4);
}

static const char *newline(const gt *g)
{
    return g->f->force_rest && strchr(g->f->force_rest, '\n') ? "\n" : "";
}

static int32_t tag_member(gt *g, params *p, m5_slice name, const m5_json *schema)
{
    m5_gb *b = g->b;
    const tc_tags *t = g->f->tags;
    const char *nl = newline(g);
    bool attr = strstr(t->fn_open, "DSML") != NULL; /* the tag tells whether its text is a string */
    int32_t head = m5_g_seq3(b, text(g, t->par_open), m5_g_lit(b, name.p, name.n), text(g, t->par_mid));
    if (attr) {
        head = m5_g_seq2(b, head, m5_g_cstr(b, tc_type_of(p->c.root, name).set & TC_STR ? " string=\"true\">" : " string=\"false\">"));
    } else if (t->par_mid[strlen(t->par_mid) - 1] == '"') {
        head = m5_g_seq2(b, head, m5_g_cstr(b, ">"));
    }
    if (t->value_open) head = m5_g_seq3(b, head, m5_g_cstr(b, nl), text(g, t->value_open));
    return m5_g_seq3(b, head, tag_value(g, p, name, schema, t->framed ? "\n" : ""), m5_g_cstr(b, nl));
}

/* A function that declares no parameters and does not say that it takes none may get any, as text. */
static int32_t free_tags(gt *g, params *p)
{
    m5_gb *b = g->b;
    const m5_json *more = m5_json_get(p->schema, "additionalProperties");
    if (!p->schema || (m5_json_get(p->schema, "properties") && !more) || (m5_json_typeof(more) == M5_JSON_BOOL && !m5_json_bool(more))) {
        return m5_g_empty(b);
    }
    const tc_tags *t = g->f->tags;
    const char *frame = t->framed ? "\n" : "";
    int32_t mid = text(g, t->par_mid);
    if (t->par_mid[strlen(t->par_mid) - 1] == '"') mid = m5_g_seq2(b, mid, m5_g_cstr(b, strstr(t->fn_open, "DSML") ? " string=\"true\">" : ">"));
    if (t->value_open) mid = m5_g_seq3(b, mid, m5_g_cstr(b, newline(g)), text(g, t->value_open));
    int32_t key = m5_gb_regex(b, M5_SLICE("[A-Za-z_][A-Za-z0-9_.-]{0,63}"));
    int32_t all[] = {text(g, t->par_open), key, mid, m5_g_cstr(b, frame), raw_until(g, frame, t->par_close), m5_g_cstr(b, newline(g))};
    return m5_g_rep(b, m5_gb_seq(b, all, 6), 0, G_INF, 0);
}

static int32_t tag_args(gt *g, params *p)
{
    return m5_json_len(p->props) ? members(g, p, tag_member, "") : free_tags(g, p);
}

/* ---- Gemma: keys bare, strings between marks ---- */

#define GEMMA_QUOTE "<|\"|>"

static int32_t gemma_rule(gt *g, int which);

static int32_t gemma_key(gt *g)
{
    return m5_g_seq2(g->b, m5_gb_regex(g->b, M5_SLICE("[A-Za-z_$][A-Za-z0-9_.$-]{0,63}")), m5_g_cstr(g->b, ":"));
}

static int32_t gemma_string(gt *g)
{
    return m5_g_seq2(g->b, text(g, GEMMA_QUOTE), raw_until(g, "", GEMMA_QUOTE));
}

static int32_t gemma_list(gt *g, const char *open, int32_t item, const char *close)
{
    m5_gb *b = g->b;
    int32_t more = m5_g_rep(b, m5_g_seq2(b, m5_g_cstr(b, ","), item), 0, G_INF, 0);
    return m5_g_seq3(b, m5_g_cstr(b, open), m5_g_opt(b, m5_g_seq2(b, item, more)), m5_g_cstr(b, close));
}

static int32_t gemma_value(gt *g, int set, const m5_json *schema)
{
    m5_gb *b = g->b;
    int32_t all[8];
    size_t n = 0;
    if (set & TC_STR) {
        int32_t choice = raw_choices(g, schema);
        all[n++] = choice < 0 ? gemma_string(g) : m5_g_seq3(b, text(g, GEMMA_QUOTE), choice, text(g, GEMMA_QUOTE));
    }
    if (set & (TC_INT | TC_NUM)) all[n++] = m5_g_ref(b, m5_g_json(b, set & TC_NUM ? G_JSON_NUMBER : G_JSON_INTEGER), 0);
    if (set & TC_BOOL) all[n++] = m5_g_alt2(b, m5_g_cstr(b, "true"), m5_g_cstr(b, "false"));
    if (set & TC_NULL) all[n++] = m5_g_cstr(b, "null");
    if (set & TC_OBJ) all[n++] = m5_g_seq2(b, m5_g_guard(b), m5_g_ref(b, gemma_rule(g, 1), G_NODE_NEST));
    if (set & TC_ARR) all[n++] = m5_g_seq2(b, m5_g_guard(b), m5_g_ref(b, gemma_rule(g, 2), G_NODE_NEST));
    return m5_gb_alt(b, all, n);
}

static int32_t gemma_rule(gt *g, int which)
{
    if (g->gemma[which] >= 0 || g->b->err.code) return g->gemma[which];
    int32_t rule = g->gemma[which] = m5_g_rule_new(g->b);
    if (which == 0) {
        m5_g_rule_set(g->b, rule, gemma_value(g, TC_ANY, NULL));
    } else {
        int32_t value = m5_g_ref(g->b, gemma_rule(g, 0), 0);
        m5_g_rule_set(g->b, rule, which == 1 ? gemma_list(g, "{", m5_g_seq2(g->b, gemma_key(g), value), "}") : gemma_list(g, "[", value, "]"));
    }
    return rule;
}

static int32_t gemma_member(gt *g, params *p, m5_slice name, const m5_json *schema)
{
    tc_type type = tc_type_of(p->c.root, name);
    bool same = !(type.set & (TC_STR | TC_OBJ | TC_ARR)); /* spelled as in JSON */
    if (type.set & (TC_OBJ | TC_ARR)) m5_g_schema_note(&p->c, "properties");
    int32_t value = same ? value_node(p, name, schema) : m5_g_share(g->b, gemma_value(g, type.set, schema));
    return m5_g_seq3(g->b, m5_g_lit(g->b, name.p, name.n), m5_g_cstr(g->b, ":"), value);
}

/* ---- Python: f(a=1, b="x") ---- */

static int32_t python_member(gt *g, params *p, m5_slice name, const m5_json *schema)
{
    m5_gb *b = g->b;
    tc_type type = tc_type_of(p->c.root, name);
    int32_t all[3];
    size_t n = 0;
    if (type.set & TC_BOOL) all[n++] = m5_g_alt2(b, m5_g_cstr(b, "True"), m5_g_cstr(b, "False"));
    if (type.set & TC_NULL) all[n++] = m5_g_cstr(b, "None");
    if (type.set & ~(TC_BOOL | TC_NULL)) all[n++] = value_node(p, name, schema);
    return m5_g_seq3(b, m5_g_lit(b, name.p, name.n), m5_g_cstr(b, "="), m5_gb_alt(b, all, n));
}

/* ---- calls ---- */

static int32_t arguments(gt *g, const m5_json *schema, const char *where)
{
    m5_gb *b = g->b;
    params p;
    int32_t r = -1;
    if (!g->f->tags || g->f->kind == M5_TOOLCALL_HERMES) {
        bool any = m5_json_typeof(schema) == M5_JSON_OBJECT && !m5_json_len(schema);
        if (g->f->kind != M5_TOOLCALL_GEMMA4 && g->f->kind != M5_TOOLCALL_PYTHONIC) {
            if (any) return m5_g_ref(b, m5_g_json(b, G_JSON_OBJECT), 0);
            /* An empty list of properties is how a function without parameters is declared. */
            const m5_json *props = m5_json_get(schema, "properties");
            bool none = m5_json_typeof(props) == M5_JSON_OBJECT && !m5_json_len(props) && !m5_json_get(schema, "additionalProperties") &&
                        !m5_json_get(schema, "patternProperties") && !m5_json_get(schema, "allOf") && !m5_json_get(schema, "$ref");
            if (none) return m5_g_cstr(b, "{}");
            return m5_json_typeof(schema) == M5_JSON_OBJECT ? m5_g_schema(b, schema, where) : m5_g_cstr(b, "{}");
        }
    }
    if (!params_init(g, &p, schema, where)) return m5_g_fail(b, M5_ERR_NOMEM, "out of memory for a grammar");
    if (g->f->kind == M5_TOOLCALL_GEMMA4) {
        bool known = m5_json_len(p.props) || !p.schema || m5_json_get(p.schema, "properties");
        r = known ? m5_g_seq3(b, m5_g_cstr(b, "{"), members(g, &p, gemma_member, ","), m5_g_cstr(b, "}")) : m5_g_ref(b, gemma_rule(g, 1), 0);
    } else if (g->f->kind == M5_TOOLCALL_PYTHONIC) {
        r = m5_g_seq3(b, m5_g_cstr(b, "("), members(g, &p, python_member, ", "), m5_g_cstr(b, ")"));
    } else {
        r = tag_args(g, &p);
    }
    m5_g_schema_deinit(&p.c);
    return r;
}

/* What closes the brackets that the text before the arguments left open (strings skipped). */
static void closers(m5_buf *out, const char *head, const char *rest)
{
    char open[16];
    size_t n = 0;
    bool string = false;
    const char *parts[] = {head, "x", rest};
    for (int i = 0; i < 3; i++) {
        for (const char *p = parts[i]; *p; p++) {
            if (*p == '"') string = !string;
            if (string) continue;
            if ((*p == '{' || *p == '[') && n < sizeof open) open[n++] = *p == '{' ? '}' : ']';
            if ((*p == '}' || *p == ']') && n > 0 && open[n - 1] == *p) n--;
        }
    }
    while (n > 0) m5_buf_putc(out, open[--n]);
}

/* head NAME rest ARGS tail, and what stands between two calls and behind the last: (open) call (between call)* (close) */
typedef struct frame {
    m5_buf head, tail, between, close;
} frame;

static void make_frame(const m5_toolcall_format *f, frame *r)
{
    const char *nl = f->force_rest && strchr(f->force_rest, '\n') ? "\n" : "";
    m5_buf_puts(&r->head, f->force);
    switch (f->kind) {
    case M5_TOOLCALL_QWEN_XML:
        m5_buf_printf(&r->tail, "</function>%s", f->open[0] ? "\n</tool_call>" : "");
        m5_buf_printf(&r->between, "\n%s", f->force);
        break;
    case M5_TOOLCALL_GLM:
        m5_buf_puts(&r->tail, "</tool_call>");
        m5_buf_printf(&r->between, "\n%s", f->force);
        break;
    case M5_TOOLCALL_INVOKE:
        m5_buf_puts(&r->tail, f->tags->fn_close);
        m5_buf_printf(&r->between, "\n%s", f->tags->fn_open);
        m5_buf_printf(&r->close, "\n%s", f->close[0]);
        break;
    case M5_TOOLCALL_GEMMA4:
        m5_buf_puts(&r->tail, f->close[0]);
        m5_buf_puts(&r->between, f->force);
        break;
    case M5_TOOLCALL_DEEPSEEK:
        if (f->force_rest && strstr(f->force_rest, "```")) m5_buf_puts(&r->tail, "\n```");
        m5_buf_puts(&r->tail, "<｜tool▁call▁end｜>");
        m5_buf_printf(&r->between, "%s%s", nl, strstr(f->force, "<｜tool▁call▁begin｜>") ? strstr(f->force, "<｜tool▁call▁begin｜>") : f->force);
        m5_buf_puts(&r->close, "<｜tool▁calls▁end｜>");
        break;
    case M5_TOOLCALL_PYTHONIC: {
        const char *end = strstr(f->force, "<|tool_call_start|>") ? "<|tool_call_end|>"
                          : strstr(f->force, "<|python_start|>")  ? "<|python_end|>"
                                                                  : "";
        m5_buf_puts(&r->between, ", ");
        m5_buf_printf(&r->close, "]%s", end);
        break;
    }
    default: {
        m5_buf_puts(&r->tail, "");
        closers(&r->tail, f->force, f->force_rest ? f->force_rest : "");
        if (f->tags && f->kind != M5_TOOLCALL_HERMES) m5_buf_puts(&r->tail, f->tags->fn_close);
        const char *list = strstr(f->force, "[{");
        if (list && r->tail.n && r->tail.p[r->tail.n - 1] == ']') { /* one list of all calls */
            r->tail.p[--r->tail.n] = 0;
            m5_buf_printf(&r->between, ", %s", list + 1);
            m5_buf_puts(&r->close, "]");
            if (f->close[0]) m5_buf_puts(&r->close, f->close[0]);
            break;
        }
        if (f->close[0] && f->open[0] && f->kind != M5_TOOLCALL_LLAMA3 && f->close[0][0] != '`') {
            m5_buf_printf(&r->tail, "%s%s", strchr(f->force, '\n') ? "\n" : "", f->close[0]);
        }
        if (f->kind != M5_TOOLCALL_LLAMA3) m5_buf_printf(&r->between, "%s%s", f->kind == M5_TOOLCALL_MISTRAL ? "" : "\n", f->force);
        break;
    }
    }
}

static int32_t one_call(gt *g, const frame *r)
{
    m5_gb *b = g->b;
    size_t n = m5_json_len(g->a->tools), m = 0;
    int32_t *all = m5_alloc(M5_MEM_TEXT, (n + 1) * sizeof *all), node = -1;
    if (!all) return m5_g_fail(b, M5_ERR_NOMEM, "out of memory for a grammar");
    for (size_t i = 0; i < n && !b->err.code; i++) {
        const m5_json *tool = m5_json_at(g->a->tools, i), *fn = m5_json_get(tool, "function"), *schema = NULL;
        if (m5_json_typeof(fn) != M5_JSON_OBJECT) fn = tool;
        m5_slice name = m5_json_str(m5_json_get(fn, "name"));
        if (!name.n || (g->a->name && !m5_slice_is(name, g->a->name))) continue;
        m5_buf where = {0};
        m5_buf_printf(&where, "%.*s:", (int)(name.n > 200 ? 200 : name.n), name.p);
        if (!(schema = m5_json_get(fn, "parameters"))) schema = m5_json_get(fn, "input_schema");
        int32_t rest = g->f->kind == M5_TOOLCALL_PYTHONIC ? m5_g_empty(b) : text(g, g->f->force_rest ? g->f->force_rest : "");
        all[m++] = m5_g_seq3(b, m5_g_lit(b, name.p, name.n), rest, arguments(g, schema, where.failed ? "" : where.p));
        m5_buf_free(&where);
    }
    if (!m && !b->err.code) {
        if (g->a->name) m5_g_fail(b, M5_ERR_NOTFOUND, "no tool is called \"%.200s\"", g->a->name);
        m5_g_fail(b, M5_ERR_FORMAT, "there is no tool to call");
    }
    node = b->err.code ? -1 : m5_gb_alt(b, all, m);
    m5_free(all);
    return m5_g_share(b, m5_g_seq2(b, node, marked(g, m5_buf_view(&r->tail))));
}

int m5_grammar_from_tool_calls(m5_grammar **out, const m5_grammar_tool_args *args, m5_error *err)
{
    gt g = {.a = args, .f = args->format, .gemma = {-1, -1, -1}};
    frame r = {0};
    int rc = m5_gb_new(&g.b, err);
    if (rc) return rc;
    make_frame(g.f, &r);
    if (r.head.failed || r.tail.failed || r.between.failed || r.close.failed) m5_g_fail(g.b, M5_ERR_NOMEM, "out of memory for a grammar");
    int32_t call = one_call(&g, &r), all = m5_g_seq2(g.b, marked(&g, m5_buf_view(&r.head)), call);
    if (args->parallel && r.between.n)
        all = m5_g_seq2(g.b, all, m5_g_rep(g.b, m5_g_seq2(g.b, marked(&g, m5_buf_view(&r.between)), call), 0, G_INF, 0));
    rc = m5_gb_finish(g.b, m5_g_seq2(g.b, all, marked(&g, m5_buf_view(&r.close))), out, err);
    m5_gb_free(g.b);
    m5_buf_free(&r.head);
    m5_buf_free(&r.tail);
    m5_buf_free(&r.between);
    m5_buf_free(&r.close);
    return rc;
}
