/* SPDX-License-Identifier: Apache-2.0 */
/* Growable byte buffer, borrowed slice, UTF-8 stepping. Room: base/str.c. */
#ifndef M5_BASE_STR_H
#define M5_BASE_STR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Borrowed bytes; not NUL-terminated. */
typedef struct m5_slice {
    const char *p;
    size_t n;
} m5_slice;

#define M5_SLICE(lit) ((m5_slice){(lit), sizeof(lit) - 1})
m5_slice m5_slice_of(const char *s); /* NULL gives an empty slice */
bool m5_slice_eq(m5_slice a, m5_slice b);
bool m5_slice_is(m5_slice a, const char *s);
bool m5_slice_starts(m5_slice a, m5_slice prefix);
bool m5_slice_ends(m5_slice a, m5_slice suffix);
/* Offset of the first occurrence of needle at or after from, or SIZE_MAX. */
size_t m5_slice_find(m5_slice hay, m5_slice needle, size_t from);

/* Growable buffer. Zero-initialise it: `m5_buf b = {0};`. A failed append sets `failed`, drops the text and makes every later
 * append a no-op, so that code may append freely and check once. `p` is NUL-terminated whenever it is not NULL. */
typedef struct m5_buf {
    char *p;
    size_t n, cap;
    bool failed;
} m5_buf;
void m5_buf_append(m5_buf *b, const void *p, size_t n);
void m5_buf_puts(m5_buf *b, const char *s);
void m5_buf_putc(m5_buf *b, char c);
void m5_buf_slice(m5_buf *b, m5_slice s);
void m5_buf_printf(m5_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void m5_buf_vprintf(m5_buf *b, const char *fmt, va_list ap);
void m5_buf_codepoint(m5_buf *b, uint32_t cp); /* UTF-8; surrogates and > 0x10FFFF become U+FFFD */
void m5_buf_clear(m5_buf *b);                  /* keeps the capacity */
void m5_buf_erase_front(m5_buf *b, size_t n);
char *m5_buf_take(m5_buf *b);                  /* moves the string out (never NULL unless failed); caller frees with m5_free */
void m5_buf_free(m5_buf *b);
m5_slice m5_buf_view(const m5_buf *b);

/* Decodes one code point at p[0..n). Returns its length 1..4; 0 if n == 0; -1 if the bytes so far are a proper prefix of a
 * well-formed sequence (more input needed). On ill-formed input *cp = 0xFFFD and the return value is the length of the
 * maximal ill-formed part (Unicode 3.9, U+FFFD substitution of maximal subparts). */
int m5_utf8_decode(const char *p, size_t n, uint32_t *cp);
int m5_utf8_encode(uint32_t cp, char out[4]); /* length 1..4 */
bool m5_utf8_valid(const char *p, size_t n);

#endif
