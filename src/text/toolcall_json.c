/* SPDX-License-Identifier: Apache-2.0 */
/* Text that is meant to be JSON, a Python literal or Gemma's notation -> valid JSON, written while it is read. Not here: what the text means.
 *
 * A stack machine over containers. Separators are written when the next member begins, keys when their value begins, so that a trailing comma or a
 * key without a value leaves no trace. Mended: single and missing quotes, quotes inside strings, raw control characters, unknown escapes, Python's
 * spellings, doubled, missing and trailing commas, wrong or missing closers, numbers such as .5 and 0x1f. */
#include "text/toolcall_internal.h"

#include "base/hash.h"
#include "base/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { VALUE, KEY, COLON, AFTER, STRING, BARE, BARE_STRING, BARE_KEY, SKIP, DONE };

/* Quotes: their own character, or one of these. */
enum { Q_GEMMA = 'g', Q_TRIPLE_DOUBLE = 'D', Q_TRIPLE_SINGLE = 'S' };
#define GEMMA_QUOTE "<|\"|>"

void tj_init(tj *j, tj_mode mode, const char *const *stops)
{
    tj_deinit(j);
    *j = (tj){.mode = mode, .stops = stops, .state = VALUE};
}

void tj_deinit(tj *j)
{
    m5_free(j->keys);
    m5_buf_free(&j->key);
    m5_buf_free(&j->bare);
    *j = (tj){0};
}

bool tj_failed(const tj *j)
{
    return j->key.failed || j->bare.failed || (j->out && j->out->failed) || (j->raw && j->raw->failed);
}

/* ---- writing ---- */

static void put(tj *j, const char *s)
{
    if (j->out && !j->muted) m5_buf_puts(j->out, s);
}

void tj_escape(m5_buf *out, const char *p, size_t n)
{
    size_t from = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)p[i];
        if (c >= 0x20 && c != '"' && c != '\\') continue;
        m5_buf_append(out, p + from, i - from);
        from = i + 1;
        switch (c) {
        case '"': m5_buf_puts(out, "\\\""); break;
        case '\\': m5_buf_puts(out, "\\\\"); break;
        case '\n': m5_buf_puts(out, "\\n"); break;
        case '\r': m5_buf_puts(out, "\\r"); break;
        case '\t': m5_buf_puts(out, "\\t"); break;
        case '\b': m5_buf_puts(out, "\\b"); break;
        case '\f': m5_buf_puts(out, "\\f"); break;
        default: m5_buf_printf(out, "\\u%04x", c); break;
        }
    }
    m5_buf_append(out, p + from, n - from);
}

/* True once per new key of the object; the first of equal keys wins. */
static bool key_is_new(tj *j, int depth)
{
    uint64_t h = m5_hash64(j->key.p ? j->key.p : "", j->key.n);
    size_t from = j->first_key[depth];
    if (j->n_keys - from >= TC_MAX_KEYS) return true;
    for (size_t i = from; i < j->n_keys; i++)
        if (j->keys[i] == h) return false;
    if (j->n_keys == j->cap_keys) {
        size_t cap = j->cap_keys ? 2 * j->cap_keys : 32;
        uint64_t *grown = m5_realloc(M5_MEM_REQUEST, j->keys, cap * sizeof *grown);
        if (!grown) {
            j->key.failed = true;
            return true;
        }
        j->keys = grown;
        j->cap_keys = cap;
    }
    j->keys[j->n_keys++] = h;
    return true;
}

/* A value begins at this depth: what separates it from the last one, its key, and for the outermost the object it needs. */
static void begin_value(tj *j, char first)
{
    if (j->depth <= j->level) {
        j->first = first;
        j->to_raw = j->raw && (first == '"' || first == 'b');
        j->wrapped = j->want_object && first != '{' && !j->to_raw;
        if (j->wrapped) put(j, "{\"value\": ");
        return;
    }
    j->to_raw = false;
    bool object = j->stack[j->depth] != '[' && j->stack[j->depth] != 't';
    if (object && !j->muted && !key_is_new(j, j->depth)) {
        j->muted = j->depth + 1;
        j->repaired = true;
        return;
    }
    if (j->muted) return;
    if (j->filled[j->depth]) put(j, ", ");
    j->filled[j->depth] = true;
    if (!object) return;
    put(j, "\"");
    if (j->out) tj_escape(j->out, j->key.p ? j->key.p : "", j->key.n);
    put(j, "\": ");
}

/* The value that began at this depth is over. Returns TJ_MORE when there is nothing to report. */
static tj_status end_value(tj *j)
{
    if (j->muted == j->depth + 1) j->muted = 0;
    if (j->depth <= j->level && j->wrapped) {
        put(j, "}");
        j->wrapped = false;
    }
    j->has_key = false;
    j->to_raw = false;
    j->state = j->depth ? AFTER : DONE;
    if (!j->depth) return TJ_DONE;
    return j->depth <= j->level ? TJ_VALUE_END : TJ_MORE;
}

static void push(tj *j, char kind)
{
    begin_value(j, kind == '[' || kind == 't' ? '[' : '{');
    j->depth++;
    j->stack[j->depth] = kind;
    j->filled[j->depth] = false;
    j->first_key[j->depth] = (uint32_t)j->n_keys;
    if (j->depth > j->level) put(j, kind == '[' || kind == 't' ? "[" : "{");
    j->state = kind == '[' || kind == 't' ? VALUE : KEY;
}

static tj_status pop(tj *j)
{
    char kind = j->stack[j->depth];
    if (j->depth > j->level) put(j, kind == '[' || kind == 't' ? "]" : "}");
    j->n_keys = j->first_key[j->depth];
    j->depth--;
    return end_value(j);
}

static void put_null(tj *j)
{
    j->repaired = true;
    if (j->depth <= j->level && j->want_object) {
        j->first = 'b';
        if (!j->raw) put(j, "{}");
        return;
    }
    begin_value(j, 'b');
    if (!j->to_raw) put(j, "null");
}

static char closer(char kind)
{
    return kind == '[' ? ']' : kind == '{' ? '}' : ')';
}

/* One container per call; the character is read when its own one closes. */
static tj_status close_by(tj *j, char c, size_t *i)
{
    int at = j->depth;
    while (at > 0 && closer(j->stack[at]) != c) at--;
    if (at == 0) { /* nothing that it could close */
        (*i)++;
        j->repaired = true;
        return TJ_MORE;
    }
    bool member = j->stack[j->depth] != '[' && j->stack[j->depth] != 't' && j->has_key;
    if (member && (j->state == VALUE || j->state == COLON)) {
        put_null(j);
        tj_status s = end_value(j);
        if (s != TJ_MORE) return s;
    }
    if (at == j->depth)
        (*i)++;
    else
        j->repaired = true;
    return pop(j);
}

/* ---- bare tokens ---- */

bool tj_number(m5_buf *out, const char *p, size_t n, bool zeros)
{
    char t[512];
    size_t m = 0, i = 0;
    bool negative = n && p[0] == '-', digits = false, point = false, exponent = false;
    if (n && (p[0] == '-' || p[0] == '+')) i++;
    if (negative) t[m++] = '-';
    if (n - i > 2 && n - i <= 18 && p[i] == '0' && (p[i + 1] | 32) == 'x') {
        char *end;
        char hex[20];
        memcpy(hex, p + i + 2, n - i - 2);
        hex[n - i - 2] = 0;
        if (!strchr("0123456789abcdefABCDEF", hex[0])) return false;
        unsigned long long v = strtoull(hex, &end, 16);
        if (*end || v > INT64_MAX) return false;
        m5_buf_printf(out, "%s%llu", negative ? "-" : "", v);
        return true;
    }
    size_t first = i;
    for (; i < n; i++) {
        char c = p[i];
        if (m + 4 > sizeof t) return false;
        if (c >= '0' && c <= '9') {
            digits = true;
            t[m++] = c;
        } else if (c == '_' && i > first && i + 1 < n && p[i - 1] >= '0' && p[i - 1] <= '9' && p[i + 1] >= '0' && p[i + 1] <= '9') {
            continue;
        } else if (c == '.' && !point && !exponent) {
            if (!digits) t[m++] = '0';
            t[m++] = '.';
            if (i + 1 == n || p[i + 1] < '0' || p[i + 1] > '9') {
                if (!digits) return false;
                t[m++] = '0';
            }
            point = digits = true;
        } else if ((c | 32) == 'e' && digits && !exponent) {
            exponent = true;
            t[m++] = c;
            if (i + 1 < n && (p[i + 1] == '+' || p[i + 1] == '-')) t[m++] = p[++i];
            digits = false;
        } else {
            return false;
        }
    }
    if (!digits) return false;
    size_t s = negative ? 1 : 0, z = s;
    while (z + 1 < m && t[z] == '0' && t[z + 1] >= '0' && t[z + 1] <= '9') z++;
    if (z > s && !zeros) return false;
    memmove(t + s, t + z, m - z);
    m -= z - s;
    t[m] = 0;
    if (!isfinite(strtod(t, NULL))) return false;
    m5_buf_append(out, t, m);
    return true;
}

static bool one_of(m5_slice s, const char *const *words)
{
    for (; *words; words++)
        if (m5_slice_is(s, *words)) return true;
    return false;
}

/* The JSON spelling of a constant, or NULL. cut: the token may have lost its end. */
static const char *constant(m5_slice s, bool cut)
{
    static const char *const yes[] = {"true", "True", "TRUE", NULL}, *const no[] = {"false", "False", "FALSE", NULL};
    static const char *const none[] = {"null", "None", "NULL", "Null", "none", "nil", "undefined", "NaN", "nan", "Infinity", "-Infinity", NULL};
    if (one_of(s, yes)) return "true";
    if (one_of(s, no)) return "false";
    if (one_of(s, none)) return "null";
    if (!cut || !s.n) return NULL;
    if (m5_slice_starts(M5_SLICE("true"), s) || m5_slice_starts(M5_SLICE("True"), s)) return "true";
    if (m5_slice_starts(M5_SLICE("false"), s) || m5_slice_starts(M5_SLICE("False"), s)) return "false";
    if (m5_slice_starts(M5_SLICE("null"), s) || m5_slice_starts(M5_SLICE("None"), s)) return "null";
    return NULL;
}

static tj_status end_bare(tj *j, bool cut)
{
    m5_slice s = m5_buf_view(&j->bare);
    while (s.n && tc_space(s.p[s.n - 1])) s.n--;
    const char *word = constant(s, cut);
    bool outer = j->depth <= j->level;
    if (outer && j->want_object && !j->raw && (!s.n || (word && strcmp(word, "null") == 0))) {
        j->first = 'b';
        put(j, "{}");
        j->bare.n = 0;
        return end_value(j);
    }
    m5_buf number = {0};
    bool is_number = !word && tj_number(&number, s.p, s.n, false);
    if (!word && !is_number && cut && s.n && (s.p[0] == '-' || (s.p[0] >= '0' && s.p[0] <= '9')))
        for (size_t n = s.n; n > 0 && !is_number && s.n - n < 3; n--) is_number = tj_number(&number, s.p, n, false);
    begin_value(j, 'b');
    if (j->to_raw) {
        if (!word) m5_buf_append(j->raw, s.p, s.n);
    } else if (word) {
        put(j, word);
    } else if (is_number) {
        put(j, number.p ? number.p : "0");
    } else {
        put(j, "\"");
        if (j->out && !j->muted) tj_escape(j->out, s.p, s.n);
        put(j, "\"");
        j->repaired = true;
    }
    j->key.failed = j->key.failed || number.failed;
    m5_buf_free(&number);
    m5_buf_clear(&j->bare);
    return end_value(j);
}

static bool ends_bare(const tj *j, char c)
{
    return c == ',' || c == '}' || c == ']' || c == '\n' || (c == ')' && j->mode == TJ_PYTHON);
}

static tj_status read_bare(tj *j, const char *p, size_t n, bool final, size_t *i)
{
    for (; *i < n; (*i)++) {
        if (ends_bare(j, p[*i])) return end_bare(j, false);
        size_t len;
        tc_match m = tc_starts_any(p + *i, n - *i, j->stops, final, &len);
        if (m == TC_WAIT) return TJ_MORE;
        if (m == TC_YES) return end_bare(j, false);
        m5_buf_putc(&j->bare, p[*i]);
        if (j->bare.n < TC_MAX_BARE) continue;
        begin_value(j, 'b');
        if (!j->to_raw) put(j, "\"");
        j->state = BARE_STRING;
        (*i)++;
        return TJ_MORE;
    }
    return TJ_MORE;
}

/* A bare value so long that it can only be text. */
static tj_status read_bare_string(tj *j, const char *p, size_t n, bool final, size_t *i)
{
    tj_status s = TJ_MORE;
    for (bool over = false; *i < n && !over;) {
        size_t len;
        tc_match m = tc_starts_any(p + *i, n - *i, j->stops, final, &len);
        if (m == TC_WAIT) break;
        over = m == TC_YES || ends_bare(j, p[*i]);
        if (!over) m5_buf_putc(&j->bare, p[(*i)++]);
        if (!over && j->bare.n < TC_MAX_BARE && *i < n) continue;
        if (j->to_raw)
            m5_buf_append(j->raw, j->bare.p, j->bare.n);
        else if (j->out && !j->muted)
            tj_escape(j->out, j->bare.p ? j->bare.p : "", j->bare.n);
        m5_buf_clear(&j->bare);
        if (!over) continue;
        if (!j->to_raw) put(j, "\"");
        s = end_value(j);
    }
    return s;
}

/* ---- strings ---- */

/* The JSON reader refuses U+0000 in keys. */
static void key_put(tj *j, const char *p, size_t n)
{
    for (size_t k = 0; k < n; k++)
        if (p[k])
            m5_buf_putc(&j->key, p[k]);
        else
            m5_buf_puts(&j->key, "\xEF\xBF\xBD");
}

static void str_put(tj *j, const char *p, size_t n)
{
    if (!n) return;
    if (j->in_key) {
        key_put(j, p, n);
    } else if (j->to_raw) {
        m5_buf_append(j->raw, p, n);
    } else if (j->out && !j->muted) {
        tj_escape(j->out, p, n);
    }
}

static void str_put_cp(tj *j, uint32_t cp)
{
    char b[4];
    str_put(j, b, (size_t)m5_utf8_encode(cp, b));
}

static void begin_string(tj *j, char quote, bool in_key)
{
    j->quote = quote;
    j->in_key = in_key;
    j->state = STRING;
    if (in_key) {
        m5_buf_clear(&j->key);
        return;
    }
    begin_value(j, '"');
    if (!j->to_raw) put(j, "\"");
}

static tj_status key_read(tj *j)
{
    j->in_key = false;
    j->has_key = true;
    j->state = COLON;
    return j->depth <= j->level ? TJ_KEY : TJ_MORE;
}

static tj_status end_string(tj *j)
{
    if (j->in_key) return key_read(j);
    if (!j->to_raw) put(j, "\"");
    return end_value(j);
}

static const char *quote_text(char q)
{
    return q == Q_GEMMA ? GEMMA_QUOTE : q == Q_TRIPLE_DOUBLE ? "\"\"\"" : q == Q_TRIPLE_SINGLE ? "'''" : q == '\'' ? "'" : "\"";
}

/* A quote has been read up to i: does it end the string, or did the model forget to escape it? Behind a string stands structure. */
static tc_match ends_here(const tj *j, const char *p, size_t n, size_t i, bool final)
{
    if (!j->in_key && j->depth == 0) return TC_YES;
    size_t from = i;
    bool newline = false;
    for (; i < n && tc_space(p[i]) && i - from < TC_MAX_LOOK; i++) newline = newline || p[i] == '\n';
    if (i == n) return final ? TC_YES : TC_WAIT;
    if (tc_space(p[i]) || strchr(":,}])", p[i])) return TC_YES;
    if (p[i] == '=' && j->mode == TJ_PYTHON) return TC_YES;
    if (j->in_key && (p[i] == '"' || p[i] == '=')) return TC_YES;
    if (newline && (p[i] == '"' || p[i] == '\'' || p[i] == '{')) return TC_YES;
    size_t len;
    return tc_starts_any(p + i, n - i, j->stops, final, &len);
}

/* Four hexadecimal digits, or -1. */
static int32_t hex_at(const char *p, int digits)
{
    int32_t v = 0;
    for (int k = 0; k < digits; k++) {
        char c = p[k];
        int d = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
        if (d < 0 || v > 0xFFFFFF) return -1;
        v = v << 4 | d;
    }
    return v;
}

/* An escape at p (a backslash). Returns its length, 0 while it is incomplete. */
static size_t read_escape(tj *j, const char *p, size_t n, bool final)
{
    if (n < 2) return 0;
    static const char plain[][2] = {{'n', '\n'}, {'t', '\t'},  {'r', '\r'}, {'b', '\b'}, {'f', '\f'},
                                    {'"', '"'},  {'\\', '\\'}, {'/', '/'},  {'\'', '\''}};
    for (size_t k = 0; k < sizeof plain / sizeof *plain; k++) {
        if (p[1] != plain[k][0]) continue;
        str_put(j, &plain[k][1], 1);
        return 2;
    }
    int digits = p[1] == 'u' ? 4 : p[1] == 'x' ? 2 : p[1] == 'U' && j->mode == TJ_PYTHON ? 8 : 0;
    if (p[1] == '\n') return 2; /* a continued line */
    if (!digits) {              /* no escape of JSON: the backslash was meant as one */
        str_put(j, p, 1);
        j->repaired = true;
        return 1;
    }
    size_t len = 2 + (size_t)digits, have = 2;
    while (have < n && have < len && hex_at(p + have, 1) >= 0) have++;
    if (have < len && have == n && !final) return 0;
    int32_t cp = have == len ? hex_at(p + 2, digits) : -1;
    if (cp < 0) {
        str_put(j, p, 1);
        j->repaired = true;
        return 1;
    }
    if (cp >= 0xD800 && cp < 0xDC00 && digits == 4) {
        size_t k = len;
        bool pair = (k == n || p[k] == '\\') && (k + 1 >= n || p[k + 1] == 'u');
        for (size_t d = k + 2; pair && d < k + 6 && d < n; d++) pair = hex_at(p + d, 1) >= 0;
        if (pair && n < k + 6 && !final) return 0;
        int32_t low = pair && n >= k + 6 ? hex_at(p + k + 2, 4) : -1;
        if (low >= 0xDC00 && low < 0xE000) {
            str_put_cp(j, 0x10000 + (((uint32_t)cp & 0x3FF) << 10) + ((uint32_t)low & 0x3FF));
            return k + 6;
        }
    }
    str_put_cp(j, (uint32_t)cp); /* a lone surrogate becomes U+FFFD */
    return len;
}

static tj_status read_string(tj *j, const char *p, size_t n, bool final, size_t *i)
{
    const char *end = quote_text(j->quote);
    bool escapes = j->quote != Q_GEMMA;
    size_t from = *i;
    while (*i < n) {
        char c = p[*i];
        if (c == '\\' && escapes) {
            str_put(j, p + from, *i - from);
            size_t len = read_escape(j, p + *i, n - *i, final);
            from = *i += len;
            if (len) continue;
            if (final) *i = n; /* half an escape at the end of all */
            return TJ_MORE;
        }
        if (c != end[0]) {
            (*i)++;
            continue;
        }
        tc_match m = tc_starts(p + *i, n - *i, end, final);
        size_t len = strlen(end);
        if (m == TC_YES && len == 1) {
            m = ends_here(j, p, n, *i + 1, final);
            j->repaired = j->repaired || m == TC_NO;
        }
        if (m == TC_NO) {
            (*i)++;
            continue;
        }
        str_put(j, p + from, *i - from);
        if (m == TC_WAIT) return TJ_MORE;
        *i += len;
        return end_string(j);
    }
    str_put(j, p + from, *i - from);
    return TJ_MORE;
}

/* Is there a string's opening quote? TC_YES sets *quote and *len. */
static tc_match quote_at(const tj *j, const char *p, size_t n, bool final, char *quote, size_t *len)
{
    if (j->mode == TJ_GEMMA) {
        tc_match m = tc_starts(p, n, GEMMA_QUOTE, final);
        *quote = Q_GEMMA;
        *len = sizeof GEMMA_QUOTE - 1;
        if (m != TC_NO) return m;
    }
    if (*p != '"' && *p != '\'') return TC_NO;
    *quote = *p;
    *len = 1;
    if (j->mode != TJ_PYTHON) return TC_YES;
    tc_match m = tc_starts(p, n, *p == '"' ? "\"\"\"" : "'''", final);
    if (m != TC_YES) return m == TC_NO ? TC_YES : m;
    *quote = *p == '"' ? Q_TRIPLE_DOUBLE : Q_TRIPLE_SINGLE;
    *len = 3;
    return TC_YES;
}

/* ---- structure ---- */

static bool word_char(char c)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || c == '_' || c == '$' || c == '-' || c == '.' || (unsigned char)c >= 0x80;
}

static tj_status read_bare_key(tj *j, const char *p, size_t n, size_t *i)
{
    for (; *i < n; (*i)++) {
        char c = p[*i];
        bool inside = j->mode == TJ_GEMMA ? !strchr(":,}\n", c) || !c : word_char(c);
        if (!inside) return key_read(j);
        key_put(j, &c, 1);
    }
    return TJ_MORE;
}

/* f(x, key=y): the key of an argument without one is the name of the parameter at its place. */
static tj_status read_argument(tj *j, const char *p, size_t n, bool final, size_t *i)
{
    size_t k = *i;
    while (k < n && word_char(p[k]) && k - *i < TC_MAX_NAME) k++;
    size_t word = k;
    while (k < n && tc_space(p[k]) && k - word < TC_MAX_LOOK) k++;
    if (k == n && !final) return TJ_MORE;
    if (word > *i && k < n && p[k] == '=') {
        m5_buf_clear(&j->key);
        m5_buf_append(&j->key, p + *i, word - *i);
        *i = k;
        return key_read(j);
    }
    void *it = m5_json_iter(j->positions);
    for (int at = 0; it && at < j->n_position; at++) it = m5_json_iter_next(j->positions, it);
    m5_buf_clear(&j->key);
    if (it) {
        m5_slice name = m5_json_iter_key(it);
        m5_buf_append(&j->key, name.p, name.n);
    } else {
        m5_buf_printf(&j->key, "arg%d", j->n_position);
    }
    j->n_position++;
    j->has_key = true;
    j->state = VALUE;
    return TJ_MORE;
}

static tj_status at_key(tj *j, const char *p, size_t n, bool final, size_t *i)
{
    char c = p[*i], quote;
    size_t len;
    if (c == ',' || c == '{') {
        (*i)++;
        j->repaired = true;
        return TJ_MORE;
    }
    if (c == '}' || c == ']' || c == ')') return close_by(j, c, i);
    if (j->stack[j->depth] == '(') return read_argument(j, p, n, final, i);
    tc_match m = quote_at(j, p + *i, n - *i, final, &quote, &len);
    if (m == TC_WAIT) return TJ_MORE;
    if (m == TC_YES) {
        *i += len;
        begin_string(j, quote, true);
        return TJ_MORE;
    }
    if (j->mode != TJ_GEMMA && !word_char(c)) return TJ_STOP;
    m5_buf_clear(&j->key);
    j->state = BARE_KEY;
    return TJ_MORE;
}

static tj_status at_colon(tj *j, char c, size_t *i)
{
    if (c == ':' || c == '=') {
        (*i)++;
        j->state = VALUE;
    } else if (c == ',') {
        put_null(j);
        return end_value(j);
    } else if (c == '}' || c == ']' || c == ')') {
        return close_by(j, c, i);
    } else {
        j->state = VALUE;
        j->repaired = true;
    }
    return TJ_MORE;
}

static tj_status at_value(tj *j, const char *p, size_t n, bool final, size_t *i)
{
    char c = p[*i], quote;
    size_t len;
    if (c == '{' || c == '[' || (c == '(' && j->mode == TJ_PYTHON)) {
        (*i)++;
        if (j->depth == TC_MAX_DEPTH) {
            put_null(j);
            j->n_skip = 1;
            j->skip_string = false;
            j->state = SKIP;
        } else {
            push(j, c == '(' && j->depth ? 't' : c);
        }
        return TJ_MORE;
    }
    if (c == '}' || c == ']' || c == ')') {
        if (j->depth) return close_by(j, c, i);
        return TJ_STOP;
    }
    bool member = j->depth && j->stack[j->depth] != '[' && j->stack[j->depth] != 't';
    if (c == ',' && member) {
        put_null(j);
        return end_value(j);
    }
    if (c == ',' || c == ':' || c == '=') {
        (*i)++;
        j->repaired = true;
        return TJ_MORE;
    }
    tc_match m = quote_at(j, p + *i, n - *i, final, &quote, &len);
    if (m == TC_WAIT) return TJ_MORE;
    if (m == TC_YES) {
        *i += len;
        begin_string(j, quote, false);
        return TJ_MORE;
    }
    if (j->mode == TJ_PYTHON && strchr("rRbBfFuU", c) && c) { /* a string's prefix */
        if (*i + 1 == n && !final) return TJ_MORE;
        if (*i + 1 < n && (p[*i + 1] == '"' || p[*i + 1] == '\'')) {
            (*i)++;
            return TJ_MORE;
        }
    }
    m5_buf_clear(&j->bare);
    j->state = BARE;
    return TJ_MORE;
}

static tj_status at_after(tj *j, const char *p, size_t n, bool final, size_t *i)
{
    char c = p[*i], quote;
    size_t len;
    bool list = j->stack[j->depth] == '[' || j->stack[j->depth] == 't';
    if (c == ',' || c == ';') {
        (*i)++;
        j->state = list ? VALUE : KEY;
        return TJ_MORE;
    }
    if (c == '}' || c == ']' || c == ')') return close_by(j, c, i);
    tc_match m = quote_at(j, p + *i, n - *i, final, &quote, &len);
    if (m == TC_WAIT) return TJ_MORE;
    bool next = m == TC_YES || (list && (c == '{' || c == '[')) || (!list && j->mode != TJ_JSON && word_char(c));
    if (!next) return TJ_STOP;
    j->repaired = true; /* a missing comma */
    j->state = list ? VALUE : KEY;
    return TJ_MORE;
}

/* Below the deepest level that is kept. */
static tj_status skip_deep(tj *j, const char *p, size_t n, size_t *i)
{
    while (*i < n && j->n_skip) {
        char c = p[*i];
        if (j->skip_string && c == '\\') {
            if (*i + 1 == n) return TJ_MORE;
            (*i)++;
        } else if (c == '"') {
            j->skip_string = !j->skip_string;
        } else if (!j->skip_string) {
            j->n_skip += (c == '{' || c == '[') - (c == '}' || c == ']');
        }
        (*i)++;
    }
    return j->n_skip ? TJ_MORE : end_value(j);
}

static tj_status step(tj *j, const char *p, size_t n, bool final, size_t *i)
{
    if (j->state == STRING) return read_string(j, p, n, final, i);
    if (j->state == BARE) return read_bare(j, p, n, final, i);
    if (j->state == BARE_STRING) return read_bare_string(j, p, n, final, i);
    if (j->state == BARE_KEY) return read_bare_key(j, p, n, i);
    if (j->state == SKIP) return skip_deep(j, p, n, i);
    if (tc_space(p[*i])) {
        (*i)++;
        return TJ_MORE;
    }
    size_t len;
    tc_match m = tc_starts_any(p + *i, n - *i, j->stops, final, &len);
    if (m == TC_YES) return TJ_STOP;
    if (m == TC_WAIT) return TJ_MORE;
    switch (j->state) {
    case KEY: return at_key(j, p, n, final, i);
    case COLON: return at_colon(j, p[*i], i);
    case AFTER: return at_after(j, p, n, final, i);
    default: return at_value(j, p, n, final, i);
    }
}

tj_status tj_feed(tj *j, const char *p, size_t n, bool final, size_t *used)
{
    size_t i = 0;
    tj_status s = TJ_MORE;
    while (i < n && s == TJ_MORE && j->state != DONE) {
        size_t before = i;
        int state = j->state, depth = j->depth;
        s = step(j, p, n, final, &i);
        if (s == TJ_MORE && i == before && j->state == state && j->depth == depth) break; /* undecided */
    }
    *used = i;
    return j->state == DONE && s == TJ_MORE ? TJ_DONE : s;
}

void tj_close(tj *j)
{
    if (j->state == DONE) return;
    j->repaired = true;
    switch (j->state) {
    case STRING:
        if (!j->in_key) end_string(j);
        break;
    case BARE: end_bare(j, true); break;
    case BARE_STRING:
        if (j->to_raw)
            m5_buf_append(j->raw, j->bare.p, j->bare.n);
        else if (j->out && !j->muted)
            tj_escape(j->out, j->bare.p ? j->bare.p : "", j->bare.n);
        if (!j->to_raw) put(j, "\"");
        end_value(j);
        break;
    case SKIP: end_value(j); break;
    default: break;
    }
    while (j->depth) pop(j);
    j->state = DONE;
}
