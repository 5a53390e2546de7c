/* SPDX-License-Identifier: Apache-2.0 */
/* Random walks through the masks of many schemas: what ends by itself must be JSON and valid under the schema, by a validator that shares no code
 * with the grammar; what is cut must be a beginning. Schemas are of the kind that tools declare: written ones, and random ones from a fixed seed. */
#include "base/json.h"
#include "base/mem.h"
#include "grammar_words.h"
#include "t.h"
#include "text/grammar.h"

#include <math.h>

/* ---- the validator ---- */

static const m5_json *target(const m5_json *root, m5_slice ref)
{
    const m5_json *at = root;
    for (size_t i = 2, j; at && i <= ref.n && ref.n > 1; i = j + 1) {
        for (j = i; j < ref.n && ref.p[j] != '/';) j++;
        at = m5_json_getn(at, ref.p + i, j - i);
    }
    return at;
}

static bool is_type(const m5_json *v, m5_slice t)
{
    m5_json_type k = m5_json_typeof(v);
    if (m5_slice_is(t, "integer")) return k == M5_JSON_INT || (k == M5_JSON_REAL && m5_json_real(v) == floor(m5_json_real(v)));
    if (m5_slice_is(t, "number")) return k == M5_JSON_INT || k == M5_JSON_REAL;
    return m5_slice_is(t, "null")      ? k == M5_JSON_NULL
           : m5_slice_is(t, "boolean") ? k == M5_JSON_BOOL
           : m5_slice_is(t, "string")  ? k == M5_JSON_STRING
           : m5_slice_is(t, "array")   ? k == M5_JSON_ARRAY
                                       : m5_slice_is(t, "object") && k == M5_JSON_OBJECT;
}

static bool valid(const m5_json *root, const m5_json *s, const m5_json *v);

static bool valid_object(const m5_json *root, const m5_json *s, const m5_json *v)
{
    const m5_json *props = m5_json_get(s, "properties"), *more = m5_json_get(s, "additionalProperties"), *req = m5_json_get(s, "required"), *x;
    for (void *it = m5_json_iter(v); it; it = m5_json_iter_next(v, it)) {
        m5_slice k = m5_json_iter_key(it);
        const m5_json *p = m5_json_getn(props, k.p, k.n);
        if (p ? !valid(root, p, m5_json_iter_value(it)) : more && !valid(root, more, m5_json_iter_value(it))) return false;
    }
    for (size_t i = 0; i < m5_json_len(req); i++) {
        m5_slice k = m5_json_str(m5_json_at(req, i));
        if (!m5_json_getn(v, k.p, k.n)) return false;
    }
    if ((x = m5_json_get(s, "minProperties")) != NULL && m5_json_len(v) < (size_t)m5_json_int(x)) return false;
    return !((x = m5_json_get(s, "maxProperties")) != NULL && m5_json_len(v) > (size_t)m5_json_int(x));
}

static bool valid_array(const m5_json *root, const m5_json *s, const m5_json *v)
{
    const m5_json *items = m5_json_get(s, "items"), *prefix = m5_json_get(s, "prefixItems"), *x;
    size_t n = m5_json_len(v);
    for (size_t i = 0; i < n; i++) {
        const m5_json *p = i < m5_json_len(prefix) ? m5_json_at(prefix, i) : items;
        if (p && !valid(root, p, m5_json_at(v, i))) return false;
    }
    if ((x = m5_json_get(s, "minItems")) != NULL && n < (size_t)m5_json_int(x)) return false;
    return !((x = m5_json_get(s, "maxItems")) != NULL && n > (size_t)m5_json_int(x));
}

static bool valid_string(const m5_json *s, const m5_json *v)
{
    const m5_json *x, *format = m5_json_get(s, "format");
    m5_slice text = m5_json_str(v);
    size_t n = 0;
    for (size_t i = 0; i < text.n; i++) n += ((uint8_t)text.p[i] & 0xC0) != 0x80;
    if ((x = m5_json_get(s, "minLength")) != NULL && n < (size_t)m5_json_int(x)) return false;
    if ((x = m5_json_get(s, "maxLength")) != NULL && n > (size_t)m5_json_int(x)) return false;
    if (m5_slice_is(m5_json_str(format), "date")) {
        int y, m, d, used = 0;
        return text.n == 10 && sscanf(text.p, "%4d-%2d-%2d%n", &y, &m, &d, &used) == 3 && used == 10 && m >= 1 && m <= 12 && d >= 1 && d <= 31;
    }
    if (m5_slice_is(m5_json_str(m5_json_get(s, "pattern")), "^[a-z]{2,5}(-[A-Z]{2})?$")) {
        size_t i = 0;
        while (i < text.n && text.p[i] >= 'a' && text.p[i] <= 'z') i++;
        if (i < 2 || i > 5) return false;
        return i == text.n ||
               (text.n == i + 3 && text.p[i] == '-' && text.p[i + 1] >= 'A' && text.p[i + 1] <= 'Z' && text.p[i + 2] >= 'A' && text.p[i + 2] <= 'Z');
    }
    return true;
}

static bool valid_number(const m5_json *s, double v)
{
    const m5_json *x;
    if ((x = m5_json_get(s, "minimum")) != NULL && v < m5_json_real(x)) return false;
    if ((x = m5_json_get(s, "maximum")) != NULL && v > m5_json_real(x)) return false;
    if ((x = m5_json_get(s, "exclusiveMinimum")) != NULL && v <= m5_json_real(x)) return false;
    return !((x = m5_json_get(s, "exclusiveMaximum")) != NULL && v >= m5_json_real(x));
}

static bool valid(const m5_json *root, const m5_json *s, const m5_json *v)
{
    const m5_json *x;
    bool ok = true;
    if (m5_json_typeof(s) == M5_JSON_BOOL) return m5_json_bool(s);
    if ((x = m5_json_get(s, "$ref")) != NULL && !valid(root, target(root, m5_json_str(x)), v)) return false;
    for (size_t i = 0; i < m5_json_len(m5_json_get(s, "allOf")); i++) ok = ok && valid(root, m5_json_at(m5_json_get(s, "allOf"), i), v);
    if (!ok) return false;
    static const char *const any[] = {"anyOf", "oneOf"};
    for (int k = 0; k < 2; k++) {
        x = m5_json_get(s, any[k]);
        for (size_t i = 0; i < m5_json_len(x) && (ok = valid(root, m5_json_at(x, i), v), !ok);) i++;
        if (!ok) return false;
    }
    if ((x = m5_json_get(s, "const")) != NULL && !m5_json_equal(x, v)) return false;
    if ((x = m5_json_get(s, "enum")) != NULL) {
        ok = false;
        for (size_t i = 0; i < m5_json_len(x); i++) ok = ok || m5_json_equal(m5_json_at(x, i), v);
        if (!ok) return false;
    }
    x = m5_json_get(s, "type");
    if (m5_json_typeof(x) == M5_JSON_STRING && !is_type(v, m5_json_str(x))) return false;
    if (m5_json_typeof(x) == M5_JSON_ARRAY) {
        ok = false;
        for (size_t i = 0; i < m5_json_len(x); i++) ok = ok || is_type(v, m5_json_str(m5_json_at(x, i)));
        if (!ok) return false;
    }
    switch (m5_json_typeof(v)) {
    case M5_JSON_OBJECT: return valid_object(root, s, v);
    case M5_JSON_ARRAY: return valid_array(root, s, v);
    case M5_JSON_STRING: return valid_string(s, v);
    case M5_JSON_INT:
    case M5_JSON_REAL: return valid_number(s, m5_json_real(v));
    default: return true;
    }
}

/* ---- schemas ---- */

static const char *const written[] = {
#include "grammar_schemas.h"
};

static void put(m5_buf *b, const char *s)
{
    m5_buf_puts(b, s);
}
static unsigned upto(unsigned n)
{
    return (unsigned)(rng() % n);
}

static void random_schema(m5_buf *b, int depth);

static void random_scalar(m5_buf *b)
{
    unsigned lo = upto(50), span = upto(200);
    switch (upto(12)) {
    case 0: put(b, "{\"type\":\"string\"}"); break;
    case 1: m5_buf_printf(b, "{\"type\":\"string\",\"minLength\":%u,\"maxLength\":%u}", upto(4), 4 + upto(30)); break;
    case 2: put(b, "{\"type\":\"string\",\"format\":\"date\",\"description\":\"a day\"}"); break;
    case 3: put(b, "{\"type\":\"string\",\"pattern\":\"^[a-z]{2,5}(-[A-Z]{2})?$\"}"); break;
    case 4: m5_buf_printf(b, "{\"type\":\"integer\",\"minimum\":%d,\"maximum\":%d}", (int)lo - 25, (int)(lo + span) - 25); break;
    case 5:
        m5_buf_printf(b, "{\"type\":\"number\",\"exclusiveMinimum\":%d.%u,\"maximum\":%u.%02u}", -(int)upto(3), upto(10), 1 + upto(4), upto(100));
        break;
    case 6: put(b, "{\"type\":[\"boolean\",\"null\"],\"default\":null}"); break;
    case 7: put(b, "{\"type\":\"string\",\"enum\":[\"red\",\"green\",\"blue\",\"red and \\u00e9\",\"a\\\"b\\\\\"]}"); break;
    case 8: put(b, "{\"enum\":[1,2.5,\"x\",null,true]}"); break;
    case 9: put(b, "{\"const\":\"value\"}"); break;
    case 10: put(b, "{\"type\":\"integer\"}"); break;
    default: put(b, "{\"type\":\"number\"}"); break;
    }
}

static void random_object(m5_buf *b, int depth)
{
    static const char *const names[] = {"name", "path", "query", "limit", "na", "a", "b", "file path", "\xC3\xA9t\xC3\xA9", "k\\\"q", "x-y", "id"};
    unsigned n = upto(6), first = upto(12), mask = upto(64);
    put(b, "{\"type\":\"object\",\"properties\":{");
    for (unsigned i = 0; i < n; i++) {
        m5_buf_printf(b, "%s\"%s\":", i ? "," : "", names[(first + i) % 12]);
        random_schema(b, depth + 1);
    }
    put(b, "},\"required\":[");
    bool comma = false;
    for (unsigned i = 0; i < n; i++) {
        if (!(mask >> i & 1)) continue;
        m5_buf_printf(b, "%s\"%s\"", comma ? "," : "", names[(first + i) % 12]);
        comma = true;
    }
    put(b, "]");
    unsigned more = upto(6);
    if (more < 2) put(b, ",\"additionalProperties\":false");
    if (more == 2) put(b, ",\"additionalProperties\":{\"type\":\"integer\"}");
    put(b, "}");
}

static void random_schema(m5_buf *b, int depth)
{
    unsigned kind = depth > 3 ? 0 : upto(10);
    if (kind < 5) {
        random_scalar(b);
    } else if (kind < 7) {
        random_object(b, depth);
    } else if (kind == 7) {
        unsigned min = upto(3);
        put(b, "{\"type\":\"array\",\"items\":");
        random_schema(b, depth + 1);
        m5_buf_printf(b, ",\"minItems\":%u,\"maxItems\":%u}", min, min + upto(4));
    } else if (kind == 8) {
        put(b, "{\"anyOf\":[");
        random_schema(b, depth + 1);
        put(b, ",");
        random_schema(b, depth + 1);
        put(b, ",{\"type\":\"null\"}]}");
    } else {
        put(b, "{\"allOf\":[{\"type\":\"object\",\"properties\":{\"a\":");
        random_schema(b, depth + 1);
        put(b, "}},{\"properties\":{\"n\":{\"type\":\"integer\",\"minimum\":0}},\"required\":[\"n\"]}]}");
    }
}

/* ---- walks ---- */

static long n_ended, n_cut;

/* Whether to believe an end of the text: an own little reader of how deep a text is and where. The text with all open things closed must be JSON as
 * far as that can be said: the grammar promises it, so a copy of the matcher is led to the end by the shortest way and the result parsed. */
static bool lead_out(m5_matcher *m, m5_buf *text)
{
    static const char closing[] = "\"]}0123456789e:,nulltrfasm-.T ZP@abcdefghijklmnopqrstuvwxyzAB\\{[";
    for (int i = 0; i < 3000 && !m5_matcher_can_end(m); i++) {
        m5_buf forced = {0};
        size_t k = 0;
        if (m5_matcher_forced_bytes(m, &forced, NULL) == 0 && forced.n) {
            m5_buf_append(text, forced.p, forced.n);
            m5_matcher_accept_bytes(m, forced.p, forced.n, NULL);
            m5_buf_free(&forced);
            continue;
        }
        m5_buf_free(&forced);
        uint64_t bits[N_BITS];
        if (m5_matcher_mask(m, bits, N_BITS, NULL) != 0) return false;
        while (closing[k] && !(bits[closing[k] >> 6] >> (closing[k] & 63) & 1)) k++;
        char c = closing[k];
        for (int b = 0x80; !c && b < 0x100; b++) {
            if (bits[b >> 6] >> (b & 63) & 1) c = (char)b;
        }
        if (!c || m5_matcher_accept_bytes(m, &c, 1, NULL) != 0) return false;
        m5_buf_putc(text, c);
    }
    return m5_matcher_can_end(m);
}

static void judge(const m5_json *schema, const char *what, const m5_buf *text)
{
    m5_json *v = NULL;
    m5_error err = {0};
    m5_json_limits lim = {.any_root = true};
    int rc = m5_json_parse(&v, text->p ? text->p : "", text->n, &lim, &err);
    T_CHECK(rc == 0, "%s: not JSON: %s: %.300s", what, err.text, text->p ? text->p : "");
    if (rc == 0) T_CHECK(valid(schema, schema, v), "%s: not valid: %.300s", what, text->p);
    m5_json_unref(v);
}

static void walk(const m5_json *schema, m5_grammar *g, const char *what, int n_step)
{
    m5_matcher *m = NULL;
    m5_buf text = {0};
    T_EQ_INT(m5_matcher_new(&m, g, vocab, NULL), 0);
    for (int i = 0; m && i < n_step && !m5_matcher_ended(m); i++) {
        uint64_t bits[N_BITS];
        int32_t ids[N_PIECES], n = 0;
        m5_error err = {0};
        if (m5_matcher_mask(m, bits, N_BITS, &err) != 0) {
            T_CHECK(false, "%s: %s after %s", what, err.text, text.p ? text.p : "");
            break;
        }
        for (int32_t id = 0; id < N_PIECES; id++) {
            if (bits[id >> 6] >> (id & 63) & 1) ids[n++] = id;
        }
        int32_t id = ids[rng() % (uint64_t)n];
        if (bits['"' >> 6] >> ('"' & 63) & 1 && rng() % 4 == 0) id = '"'; /* noise alone would rarely close a string */
        T_CHECK(m5_matcher_accept(m, id, NULL) == 0, "%s: token %d of the mask is refused", what, (int)id);
        if (id != END) m5_buf_slice(&text, pieces[id]);
    }
    if (m && m5_matcher_ended(m)) {
        n_ended++;
    } else if (m) {
        n_cut++;
        T_CHECK(lead_out(m, &text), "%s: no way out of %.300s", what, text.p ? text.p : "");
    }
    judge(schema, what, &text);
    m5_buf_free(&text);
    m5_matcher_free(m);
}

static void try_schema(const char *text)
{
    m5_json *s = NULL;
    m5_grammar *g = NULL;
    m5_error err = {0};
    T_CHECK(m5_json_parse(&s, text, strlen(text), NULL, &err) == 0 && m5_grammar_from_schema(&g, s, &err) == 0, "%s: %s", text, err.text);
    for (int i = 0; g && i < 12; i++) walk(s, g, text, 4 << i % 6);
    m5_grammar_unref(g);
    m5_json_unref(s);
}

int main(void)
{
    make_vocab();
    for (size_t i = 0; i < sizeof written / sizeof written[0]; i++) try_schema(written[i]);
    for (int i = 0; i < 400; i++) {
        m5_buf b = {0};
        if (i % 4) {
            random_object(&b, 0);
        } else {
            random_schema(&b, 0);
        }
        try_schema(b.p);
        m5_buf_free(&b);
    }
    printf("%ld texts ended, %ld were cut\n", n_ended, n_cut);
    T_CHECK(n_ended > 200 && n_cut > 200, "walks end both ways");
    m5_grammar_vocab_free(vocab);
    return t_done();
}
