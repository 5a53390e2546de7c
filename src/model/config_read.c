/* SPDX-License-Identifier: Apache-2.0 */
/* Typed, bounded reads from config.json objects and GGUF metadata with one sticky error. Room: model/families/family.h, "reading a configuration".
 * Not here: what a key means. */
#include "model/families/family.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

int m5_src_fail(m5_source *s, int code, const char *fmt, ...)
{
    if (*s->rc) return *s->rc;
    va_list ap;
    va_start(ap, fmt);
    *s->rc = m5_error_setv(s->err, code, fmt, ap);
    va_end(ap);
    return *s->rc;
}

/* The full name of a key, for messages and for GGUF lookups. */
static const char *full_key(const m5_source *s, const char *key, char buf[160])
{
    snprintf(buf, 160, s->gguf ? "%s.%s" : "%s%s", s->path, key);
    return buf;
}

static const char *json_type_name(const m5_json *v)
{
    static const char *const names[] = {"null", "a bool", "an integer", "a real number", "a string", "a list", "an object", "nothing"};
    return names[m5_json_typeof(v)];
}

bool m5_src_has(const m5_source *s, const char *key)
{
    char buf[160];
    if (s->gguf) return m5_gguf_find_kv(s->gguf, full_key(s, key, buf)) != NULL;
    const m5_json *v = s->json ? m5_json_get(s->json, key) : NULL;
    return v && m5_json_typeof(v) != M5_JSON_NULL;
}

bool m5_src_is_null(const m5_source *s, const char *key)
{
    const m5_json *v = s->json ? m5_json_get(s->json, key) : NULL;
    return v && m5_json_typeof(v) == M5_JSON_NULL;
}

/* An integer, also when written as 4096.0. */
static bool json_int(const m5_json *v, int64_t *out)
{
    if (m5_json_typeof(v) == M5_JSON_INT) {
        *out = m5_json_int(v);
        return true;
    }
    if (m5_json_typeof(v) != M5_JSON_REAL) return false;
    double d = m5_json_real(v);
    if (!(d >= -9e15 && d <= 9e15) || d != floor(d)) return false;
    *out = (int64_t)d;
    return true;
}

static int check_int(m5_source *s, const char *key, int64_t v, int64_t min, int64_t max)
{
    char buf[160];
    if (v >= min && v <= max) return (int)v;
    m5_src_fail(s, M5_ERR_FORMAT, "%s is %" PRId64 ", expected %" PRId64 " to %" PRId64, full_key(s, key, buf), v, min, max);
    return (int)min;
}

static int missing_int(m5_source *s, const char *key, int64_t absent, int64_t min)
{
    char buf[160];
    if (absent != M5_REQUIRED) return (int)absent;
    m5_src_fail(s, M5_ERR_FORMAT, "%s is missing", full_key(s, key, buf));
    return (int)min;
}

int m5_src_int(m5_source *s, const char *key, int64_t absent, int64_t min, int64_t max)
{
    char buf[160];
    int64_t v = 0;
    if (!m5_src_has(s, key)) return missing_int(s, key, absent, min);
    if (s->gguf) {
        if (!m5_gguf_i64(s->gguf, full_key(s, key, buf), &v)) {
            m5_src_fail(s, M5_ERR_FORMAT, "%s is not an integer", full_key(s, key, buf));
            return (int)min;
        }
    } else if (!json_int(m5_json_get(s->json, key), &v)) {
        m5_src_fail(s, M5_ERR_FORMAT, "%s is %s, expected an integer", full_key(s, key, buf), json_type_name(m5_json_get(s->json, key)));
        return (int)min;
    }
    return check_int(s, key, v, min, max);
}

double m5_src_real(m5_source *s, const char *key, double absent, double min, double max)
{
    char buf[160];
    double v = 0;
    if (!m5_src_has(s, key)) return absent;
    if (s->gguf) {
        if (!m5_gguf_f64(s->gguf, full_key(s, key, buf), &v)) {
            m5_src_fail(s, M5_ERR_FORMAT, "%s is not a number", full_key(s, key, buf));
            return absent;
        }
    } else {
        const m5_json *j = m5_json_get(s->json, key);
        if (!m5_json_is_number(j)) {
            m5_src_fail(s, M5_ERR_FORMAT, "%s is %s, expected a number", full_key(s, key, buf), json_type_name(j));
            return absent;
        }
        v = m5_json_real(j);
    }
    if (v >= min && v <= max) return v;
    m5_src_fail(s, M5_ERR_FORMAT, "%s is %g, expected %g to %g", full_key(s, key, buf), v, min, max);
    return absent;
}

bool m5_src_bool(m5_source *s, const char *key, bool absent)
{
    char buf[160];
    bool v = absent;
    if (!m5_src_has(s, key)) return absent;
    if (s->gguf) {
        if (!m5_gguf_bool(s->gguf, full_key(s, key, buf), &v)) m5_src_fail(s, M5_ERR_FORMAT, "%s is not a bool", full_key(s, key, buf));
        return v;
    }
    const m5_json *j = m5_json_get(s->json, key);
    if (m5_json_typeof(j) != M5_JSON_BOOL) {
        m5_src_fail(s, M5_ERR_FORMAT, "%s is %s, expected a bool", full_key(s, key, buf), json_type_name(j));
        return absent;
    }
    return m5_json_bool(j);
}

m5_slice m5_src_str(m5_source *s, const char *key)
{
    char buf[160];
    m5_slice v = {"", 0};
    if (!m5_src_has(s, key)) return v;
    if (s->gguf) {
        if (!m5_gguf_str(s->gguf, full_key(s, key, buf), &v)) m5_src_fail(s, M5_ERR_FORMAT, "%s is not a string", full_key(s, key, buf));
        return v;
    }
    const m5_json *j = m5_json_get(s->json, key);
    if (m5_json_typeof(j) != M5_JSON_STRING) {
        m5_src_fail(s, M5_ERR_FORMAT, "%s is %s, expected a string", full_key(s, key, buf), json_type_name(j));
        return v;
    }
    return m5_json_str(j);
}

int m5_src_layer_int(m5_source *s, const char *key, int layer, int n_layer, int64_t absent, int64_t min, int64_t max)
{
    char buf[160];
    int64_t v = 0;
    size_t n = 0;
    bool found = false;
    if (s->gguf) {
        const m5_gguf_kv *kv = m5_gguf_array(s->gguf, full_key(s, key, buf));
        if (!kv) return m5_src_int(s, key, absent, min, max);
        n = kv->n;
        found = (size_t)layer < n && m5_gguf_at_i64(kv, (size_t)layer, &v);
    } else {
        const m5_json *j = s->json ? m5_json_get(s->json, key) : NULL;
        if (m5_json_typeof(j) != M5_JSON_ARRAY) return m5_src_int(s, key, absent, min, max);
        n = m5_json_len(j);
        found = (size_t)layer < n && json_int(m5_json_at(j, (size_t)layer), &v);
    }
    if (n < (size_t)n_layer) {
        m5_src_fail(s, M5_ERR_FORMAT, "%s has %zu elements for %d layers", full_key(s, key, buf), n, n_layer);
        return (int)min;
    }
    if (!found) {
        m5_src_fail(s, M5_ERR_FORMAT, "%s[%d] is not an integer", full_key(s, key, buf), layer);
        return (int)min;
    }
    return check_int(s, key, v, min, max);
}

m5_source m5_src_sub(m5_source *s, const char *key)
{
    char buf[160];
    m5_source sub = *s;
    sub.json = NULL;
    if (s->gguf || !m5_src_has(s, key)) return sub;
    m5_json *j = m5_json_get(s->json, key);
    if (m5_json_typeof(j) != M5_JSON_OBJECT) {
        m5_src_fail(s, M5_ERR_FORMAT, "%s is %s, expected an object", full_key(s, key, buf), json_type_name(j));
        return sub;
    }
    sub.json = j;
    size_t n = strlen(sub.path);
    snprintf(sub.path + n, sizeof sub.path - n, "%s.", key);
    return sub;
}
