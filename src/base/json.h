/* SPDX-License-Identifier: Apache-2.0 */
/* JSON values, reader and writer: the home of jansson. Knows no API. Every other file works with m5_json through these calls.
 *
 * Values are jansson's reference-counted json_t under our name. Readers that borrow say so; new values are owned by the caller
 * until given away to a `_take` call. Object members keep their order of insertion (chat templates depend on it). */
#ifndef M5_BASE_JSON_H
#define M5_BASE_JSON_H

#include "base/err.h"
#include "base/str.h"

#include <stdint.h>

typedef struct json_t m5_json;

typedef enum m5_json_type { M5_JSON_NULL, M5_JSON_BOOL, M5_JSON_INT, M5_JSON_REAL, M5_JSON_STRING, M5_JSON_ARRAY, M5_JSON_OBJECT, M5_JSON_NONE } m5_json_type;

typedef struct m5_json_limits {
    size_t max_bytes; /* of the text; 0 = 64 MiB */
    int max_depth;    /* 0 = 128 */
    bool any_root;    /* also accept a scalar as the root */
    bool big_ints;    /* integers beyond int64 are read as reals instead of refused: model files have them ("model_max_length" is 1e30 written out) */
} m5_json_limits;

/* Parses strict JSON (RFC 8259, UTF-8). Owner: caller (m5_json_unref). Duplicate keys are an error, as are lone surrogates. Strings may
 * hold U+0000. Errors: M5_ERR_FORMAT with line and column, M5_ERR_LIMIT. */
int m5_json_parse(m5_json **out, const char *text, size_t n, const m5_json_limits *lim, m5_error *err);

m5_json *m5_json_ref(m5_json *v);
void m5_json_unref(m5_json *v); /* accepts NULL */
m5_json_type m5_json_typeof(const m5_json *v); /* M5_JSON_NONE for NULL */

/* Borrowed reads; a wrong type gives the neutral value, never a crash. */
bool m5_json_bool(const m5_json *v);
int64_t m5_json_int(const m5_json *v);  /* reals are truncated when they fit, else 0 */
double m5_json_real(const m5_json *v);  /* ints are widened */
bool m5_json_is_number(const m5_json *v);
m5_slice m5_json_str(const m5_json *v); /* empty slice when not a string; NUL-terminated */
size_t m5_json_len(const m5_json *v);   /* members of array or object, else 0 */
m5_json *m5_json_at(const m5_json *array, size_t i);                /* borrowed or NULL */
m5_json *m5_json_get(const m5_json *object, const char *key);       /* borrowed or NULL */
m5_json *m5_json_getn(const m5_json *object, const char *key, size_t n);
m5_json *m5_json_path(const m5_json *v, const char *dotted);        /* "a.b.c" through objects; borrowed or NULL */

/* Iteration in order: for (void *it = m5_json_iter(o); it; it = m5_json_iter_next(o, it)) */
void *m5_json_iter(const m5_json *object);
void *m5_json_iter_next(const m5_json *object, void *it);
m5_slice m5_json_iter_key(void *it);
m5_json *m5_json_iter_value(void *it); /* borrowed */

/* New values; NULL when out of memory. */
m5_json *m5_json_new_object(void);
m5_json *m5_json_new_array(void);
m5_json *m5_json_new_str(const char *s, size_t n); /* ill-formed UTF-8 is replaced by U+FFFD */
m5_json *m5_json_new_int(int64_t v);
m5_json *m5_json_new_real(double v); /* NaN and infinities become null */
m5_json *m5_json_new_bool(bool v);
m5_json *m5_json_new_null(void);
m5_json *m5_json_dup(const m5_json *v); /* deep copy */
/* Take ownership of value also on failure; value NULL is a failure. Return 0 or M5_ERR_NOMEM. */
int m5_json_set_take(m5_json *object, const char *key, m5_json *value);
int m5_json_push_take(m5_json *array, m5_json *value);
int m5_json_set_str(m5_json *object, const char *key, const char *s);
int m5_json_set_int(m5_json *object, const char *key, int64_t v);
int m5_json_set_bool(m5_json *object, const char *key, bool v);
int m5_json_set_real(m5_json *object, const char *key, double v);
bool m5_json_equal(const m5_json *a, const m5_json *b);

/* Appends compact JSON text. indent 0 = one line. A failed append shows in out->failed. */
void m5_json_write(m5_buf *out, const m5_json *v, int indent);
/* Appends one JSON string literal with its quotes; ill-formed UTF-8 is replaced by U+FFFD. */
void m5_json_write_str(m5_buf *out, const char *s, size_t n);
/* Shortest text that reads back as v, with ".0" when integral (Python repr spelling: 1.0, 1e-05, 1e+16). */
void m5_json_write_real(m5_buf *out, double v);

#endif
