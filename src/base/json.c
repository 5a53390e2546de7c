/* SPDX-License-Identifier: Apache-2.0 */
/* Home of jansson: strict reading with limits, values, writing. May touch: libc, base. Not here: any API's fields. */
#include "base/json.h"

#include "base/mem.h"

#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* jansson often reports a failed allocation as a fault of the text. */
static _Thread_local bool alloc_failed;

static void *json_alloc(size_t n)
{
    void *p = m5_alloc(M5_MEM_REQUEST, n);
    if (!p) alloc_failed = true;
    return p;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

static void setup(void)
{
    json_set_alloc_funcs(json_alloc, m5_free);
    /* A fixed seed would let a client choose colliding keys; 0 takes one from the system. */
    json_object_seed(0);
}

/* jansson counts nesting itself but only up to its own constant; a scan before the parse also bounds the memory a hostile text can ask for. */
static int check_depth(const char *text, size_t n, int max_depth, m5_error *err)
{
    int depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < n; i++) {
        char c = text[i];
        if (in_string) {
            if (c == '\\')
                i++;
            else if (c == '"')
                in_string = false;
        } else if (c == '"') {
            in_string = true;
        } else if (c == '[' || c == '{') {
            if (++depth > max_depth) return m5_error_set(err, M5_ERR_LIMIT, "JSON is nested deeper than %d levels (at byte %zu)", max_depth, i);
        } else if (c == ']' || c == '}') {
            depth--;
        }
    }
    return 0;
}

static bool fits_int64(const char *p, size_t n)
{
    const bool negative = p[0] == '-';
    p += negative;
    n -= negative;
    return n < 19 || (n == 19 && memcmp(p, negative ? "9223372036854775808" : "9223372036854775807", 19) <= 0);
}

/* jansson refuses integers that a long long cannot hold. With big_ints such an integer gets an exponent of zero, so that it and nothing else becomes
 * a real. */
static void mark_big_ints(m5_buf *out, const char *text, size_t n)
{
    bool in_string = false;
    for (size_t i = 0; i < n;) {
        size_t len = 1;
        if (in_string) {
            if (text[i] == '\\' && i + 1 < n)
                len = 2;
            else if (text[i] == '"')
                in_string = false;
        } else if (text[i] == '"') {
            in_string = true;
        } else if (text[i] == '-' || (text[i] >= '0' && text[i] <= '9')) {
            bool whole = true;
            for (; i + len < n && text[i + len] && strchr("0123456789+-.eE", text[i + len]); len++)
                whole = whole && text[i + len] >= '0' && text[i + len] <= '9';
            m5_buf_append(out, text + i, len);
            if (whole && !fits_int64(text + i, len)) m5_buf_puts(out, "e0");
            i += len;
            continue;
        }
        m5_buf_append(out, text + i, len);
        i += len;
    }
}

int m5_json_parse(m5_json **out, const char *text, size_t n, const m5_json_limits *lim, m5_error *err)
{
    pthread_once(&once, setup);
    size_t max_bytes = lim && lim->max_bytes ? lim->max_bytes : (size_t)64 << 20;
    int max_depth = lim && lim->max_depth ? lim->max_depth : 128;
    if (n > max_bytes) return m5_error_set(err, M5_ERR_LIMIT, "JSON text of %zu bytes is larger than the limit of %zu", n, max_bytes);
    int rc = check_depth(text, n, max_depth, err);
    if (rc) return rc;
    size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL;
    if (lim && lim->any_root) flags |= JSON_DECODE_ANY;
    alloc_failed = false;
    json_error_t je;
    json_t *v = json_loadb(text ? text : "", n, flags, &je);
    if (!v && lim && lim->big_ints && json_error_code(&je) == json_error_numeric_overflow) {
        m5_buf marked = {0};
        mark_big_ints(&marked, text, n);
        if (marked.failed) return m5_error_set(err, M5_ERR_NOMEM, "out of memory while reading JSON");
        v = json_loadb(marked.p, marked.n, flags, &je);
        m5_buf_free(&marked);
    }
    if (!v) {
        if (alloc_failed || json_error_code(&je) == json_error_out_of_memory)
            return m5_error_set(err, M5_ERR_NOMEM, "out of memory while reading JSON");
        return m5_error_set(err, M5_ERR_FORMAT, "invalid JSON at line %d column %d: %s", je.line, je.column, je.text);
    }
    *out = v;
    return 0;
}

m5_json *m5_json_ref(m5_json *v)
{
    return json_incref(v);
}

void m5_json_unref(m5_json *v)
{
    json_decref(v);
}

m5_json_type m5_json_typeof(const m5_json *v)
{
    if (!v) return M5_JSON_NONE;
    switch (json_typeof(v)) {
    case JSON_OBJECT: return M5_JSON_OBJECT;
    case JSON_ARRAY: return M5_JSON_ARRAY;
    case JSON_STRING: return M5_JSON_STRING;
    case JSON_INTEGER: return M5_JSON_INT;
    case JSON_REAL: return M5_JSON_REAL;
    case JSON_TRUE:
    case JSON_FALSE: return M5_JSON_BOOL;
    default: return M5_JSON_NULL;
    }
}

bool m5_json_bool(const m5_json *v)
{
    return json_is_true(v);
}

int64_t m5_json_int(const m5_json *v)
{
    if (json_is_integer(v)) return (int64_t)json_integer_value(v);
    if (json_is_real(v)) {
        double d = json_real_value(v);
        if (d >= -9.2e18 && d <= 9.2e18) return (int64_t)d;
    }
    return 0;
}

double m5_json_real(const m5_json *v)
{
    return json_number_value(v);
}

bool m5_json_is_number(const m5_json *v)
{
    return json_is_number(v);
}

m5_slice m5_json_str(const m5_json *v)
{
    if (!json_is_string(v)) return (m5_slice){"", 0};
    return (m5_slice){json_string_value(v), json_string_length(v)};
}

size_t m5_json_len(const m5_json *v)
{
    return json_is_array(v) ? json_array_size(v) : json_is_object(v) ? json_object_size(v) : 0;
}

m5_json *m5_json_at(const m5_json *array, size_t i)
{
    return json_array_get(array, i);
}

m5_json *m5_json_get(const m5_json *object, const char *key)
{
    return json_object_get(object, key);
}

m5_json *m5_json_getn(const m5_json *object, const char *key, size_t n)
{
    return json_object_getn(object, key, n);
}

m5_json *m5_json_path(const m5_json *v, const char *dotted)
{
    m5_json *at = (m5_json *)v;
    while (at && *dotted) {
        size_t n = strcspn(dotted, ".");
        at = json_object_getn(at, dotted, n);
        dotted += n + (dotted[n] == '.');
    }
    return at;
}

void *m5_json_iter(const m5_json *object)
{
    return json_object_iter((json_t *)object);
}

void *m5_json_iter_next(const m5_json *object, void *it)
{
    return json_object_iter_next((json_t *)object, it);
}

m5_slice m5_json_iter_key(void *it)
{
    return (m5_slice){json_object_iter_key(it), json_object_iter_key_len(it)};
}

m5_json *m5_json_iter_value(void *it)
{
    return json_object_iter_value(it);
}

m5_json *m5_json_new_object(void)
{
    pthread_once(&once, setup);
    return json_object();
}

m5_json *m5_json_new_array(void)
{
    pthread_once(&once, setup);
    return json_array();
}

/* Appends s with every ill-formed part replaced by U+FFFD. */
static void append_valid(m5_buf *out, const char *s, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint32_t cp;
        int k = m5_utf8_decode(s + i, n - i, &cp);
        if (k < 0) {
            m5_buf_codepoint(out, 0xFFFD);
            return;
        }
        m5_buf_codepoint(out, cp);
        i += (size_t)k;
    }
}

m5_json *m5_json_new_str(const char *s, size_t n)
{
    pthread_once(&once, setup);
    if (m5_utf8_valid(s, n)) return json_stringn_nocheck(s ? s : "", n);
    m5_buf b = {0};
    append_valid(&b, s, n);
    json_t *v = b.failed ? NULL : json_stringn_nocheck(b.p, b.n);
    m5_buf_free(&b);
    return v;
}

m5_json *m5_json_new_int(int64_t v)
{
    pthread_once(&once, setup);
    return json_integer(v);
}

m5_json *m5_json_new_real(double v)
{
    pthread_once(&once, setup);
    return isfinite(v) ? json_real(v) : json_null();
}

m5_json *m5_json_new_bool(bool v)
{
    return json_boolean(v);
}

m5_json *m5_json_new_null(void)
{
    return json_null();
}

m5_json *m5_json_dup(const m5_json *v)
{
    return json_deep_copy(v);
}

int m5_json_set_take(m5_json *object, const char *key, m5_json *value)
{
    return json_object_set_new(object, key, value) == 0 ? 0 : M5_ERR_NOMEM;
}

int m5_json_push_take(m5_json *array, m5_json *value)
{
    return json_array_append_new(array, value) == 0 ? 0 : M5_ERR_NOMEM;
}

int m5_json_set_str(m5_json *object, const char *key, const char *s)
{
    return m5_json_set_take(object, key, s ? m5_json_new_str(s, strlen(s)) : json_null());
}

int m5_json_set_int(m5_json *object, const char *key, int64_t v)
{
    return m5_json_set_take(object, key, json_integer(v));
}

int m5_json_set_bool(m5_json *object, const char *key, bool v)
{
    return m5_json_set_take(object, key, json_boolean(v));
}

int m5_json_set_real(m5_json *object, const char *key, double v)
{
    return m5_json_set_take(object, key, m5_json_new_real(v));
}

bool m5_json_equal(const m5_json *a, const m5_json *b)
{
    return json_equal(a, b);
}

void m5_json_write_str(m5_buf *out, const char *s, size_t n)
{
    static const char hex[] = "0123456789abcdef";
    m5_buf_putc(out, '"');
    size_t i = 0, plain = 0;
    while (i < n) {
        unsigned char c = (unsigned char)s[i];
        if (c >= 0x20 && c < 0x80 && c != '"' && c != '\\') {
            i++;
            continue;
        }
        uint32_t cp = c;
        int k = 1;
        if (c >= 0x80) {
            k = m5_utf8_decode(s + i, n - i, &cp);
            if (k > 1 && (cp != 0xFFFD || (k == 3 && c == 0xEF))) {
                i += (size_t)k;
                continue;
            }
        }
        m5_buf_append(out, s + plain, i - plain);
        if (c >= 0x80) {
            m5_buf_codepoint(out, 0xFFFD);
            i = k < 0 ? n : i + (size_t)k;
        } else {
            const char *esc = c == '"'    ? "\\\""
                              : c == '\\' ? "\\\\"
                              : c == '\n' ? "\\n"
                              : c == '\r' ? "\\r"
                              : c == '\t' ? "\\t"
                              : c == '\b' ? "\\b"
                              : c == '\f' ? "\\f"
                                          : NULL;
            if (esc) {
                m5_buf_puts(out, esc);
            } else {
                char u[6] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};
                m5_buf_append(out, u, sizeof u);
            }
            i++;
        }
        plain = i;
    }
    m5_buf_append(out, s + plain, n - plain);
    m5_buf_putc(out, '"');
}

void m5_json_write_real(m5_buf *out, double v)
{
    if (!isfinite(v)) {
        m5_buf_puts(out, isnan(v) ? "NaN" : v > 0 ? "Infinity" : "-Infinity");
        return;
    }
    /* Shortest digits that read back, then Python's choice of notation: exponent below 1e-4 or from 1e16. */
    char digits[40];
    int prec = 1;
    for (; prec <= 17; prec++) {
        snprintf(digits, sizeof digits, "%.*e", prec - 1, v);
        double back = 0;
        if (sscanf(digits, "%lf", &back) == 1 && back == v) break;
    }
    char *e = strchr(digits, 'e');
    int exp10 = 0;
    if (e) sscanf(e + 1, "%d", &exp10);
    if (v == 0 || (exp10 >= -4 && exp10 < 16)) {
        int decimals = prec - 1 - exp10;
        m5_buf_printf(out, "%.*f", decimals > 1 ? decimals : 1, v);
    } else {
        *e = '\0';
        m5_buf_printf(out, "%se%c%02d", digits, exp10 < 0 ? '-' : '+', exp10 < 0 ? -exp10 : exp10);
    }
}

static void newline(m5_buf *out, int indent, int level)
{
    if (indent <= 0) return;
    m5_buf_putc(out, '\n');
    for (int i = 0; i < indent * level; i++) m5_buf_putc(out, ' ');
}

static void write_value(m5_buf *out, const m5_json *v, int indent, int level)
{
    switch (m5_json_typeof(v)) {
    case M5_JSON_OBJECT: {
        m5_buf_putc(out, '{');
        bool first = true;
        for (void *it = m5_json_iter(v); it; it = m5_json_iter_next(v, it)) {
            if (!first) m5_buf_putc(out, ',');
            first = false;
            newline(out, indent, level + 1);
            m5_slice key = m5_json_iter_key(it);
            m5_json_write_str(out, key.p, key.n);
            m5_buf_puts(out, indent > 0 ? ": " : ":");
            write_value(out, m5_json_iter_value(it), indent, level + 1);
        }
        if (!first) newline(out, indent, level);
        m5_buf_putc(out, '}');
        break;
    }
    case M5_JSON_ARRAY:
        m5_buf_putc(out, '[');
        for (size_t i = 0; i < m5_json_len(v); i++) {
            if (i) m5_buf_putc(out, ',');
            newline(out, indent, level + 1);
            write_value(out, m5_json_at(v, i), indent, level + 1);
        }
        if (m5_json_len(v)) newline(out, indent, level);
        m5_buf_putc(out, ']');
        break;
    case M5_JSON_STRING: {
        m5_slice s = m5_json_str(v);
        m5_json_write_str(out, s.p, s.n);
        break;
    }
    case M5_JSON_INT: m5_buf_printf(out, "%lld", (long long)m5_json_int(v)); break;
    case M5_JSON_REAL: m5_json_write_real(out, m5_json_real(v)); break;
    case M5_JSON_BOOL: m5_buf_puts(out, m5_json_bool(v) ? "true" : "false"); break;
    default: m5_buf_puts(out, "null"); break;
    }
}

void m5_json_write(m5_buf *out, const m5_json *v, int indent)
{
    write_value(out, v, indent, 0);
}
