/* SPDX-License-Identifier: Apache-2.0 */
/* Growable buffer, slices, UTF-8. May touch: libc, base/mem. */
#include "base/str.h"

#include "base/mem.h"

#include <stdio.h>
#include <string.h>

m5_slice m5_slice_of(const char *s)
{
    return s ? (m5_slice){s, strlen(s)} : (m5_slice){"", 0};
}

bool m5_slice_eq(m5_slice a, m5_slice b)
{
    return a.n == b.n && (a.n == 0 || memcmp(a.p, b.p, a.n) == 0);
}

bool m5_slice_is(m5_slice a, const char *s)
{
    return m5_slice_eq(a, m5_slice_of(s));
}

bool m5_slice_starts(m5_slice a, m5_slice prefix)
{
    return a.n >= prefix.n && (prefix.n == 0 || memcmp(a.p, prefix.p, prefix.n) == 0);
}

bool m5_slice_ends(m5_slice a, m5_slice suffix)
{
    return a.n >= suffix.n && (suffix.n == 0 || memcmp(a.p + a.n - suffix.n, suffix.p, suffix.n) == 0);
}

size_t m5_slice_find(m5_slice hay, m5_slice needle, size_t from)
{
    if (from > hay.n || needle.n > hay.n - from) return SIZE_MAX;
    if (needle.n == 0) return from;
    const char *p = hay.p + from, *end = hay.p + hay.n - needle.n + 1;
    while (p < end) {
        p = memchr(p, needle.p[0], (size_t)(end - p));
        if (!p) return SIZE_MAX;
        if (memcmp(p, needle.p, needle.n) == 0) return (size_t)(p - hay.p);
        p++;
    }
    return SIZE_MAX;
}

/* Makes room for n more bytes and the NUL. */
static bool reserve(m5_buf *b, size_t n)
{
    if (b->failed) return false;
    if (b->cap > b->n && b->cap - b->n > n) return true;
    size_t need, cap = b->cap ? b->cap : 64;
    if (!m5_add_size(b->n, n, &need) || !m5_add_size(need, 1, &need)) need = SIZE_MAX;
    while (cap < need && cap <= SIZE_MAX / 2) cap *= 2;
    char *p = cap >= need ? m5_realloc(M5_MEM_TEXT, b->p, cap) : NULL;
    if (!p) {
        m5_free(b->p);
        *b = (m5_buf){.failed = true};
        return false;
    }
    b->p = p;
    b->cap = cap;
    return true;
}

void m5_buf_append(m5_buf *b, const void *p, size_t n)
{
    if (!reserve(b, n)) return;
    if (n) memcpy(b->p + b->n, p, n);
    b->n += n;
    b->p[b->n] = '\0';
}

void m5_buf_puts(m5_buf *b, const char *s)
{
    m5_buf_append(b, s, strlen(s));
}

void m5_buf_putc(m5_buf *b, char c)
{
    m5_buf_append(b, &c, 1);
}

void m5_buf_slice(m5_buf *b, m5_slice s)
{
    m5_buf_append(b, s.p, s.n);
}

void m5_buf_vprintf(m5_buf *b, const char *fmt, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    char small[256];
    int n = vsnprintf(small, sizeof small, fmt, ap);
    if (n >= 0 && (size_t)n < sizeof small) {
        m5_buf_append(b, small, (size_t)n);
    } else if (n >= 0 && reserve(b, (size_t)n)) {
        vsnprintf(b->p + b->n, (size_t)n + 1, fmt, again);
        b->n += (size_t)n;
    }
    va_end(again);
}

void m5_buf_printf(m5_buf *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    m5_buf_vprintf(b, fmt, ap);
    va_end(ap);
}

void m5_buf_codepoint(m5_buf *b, uint32_t cp)
{
    char out[4];
    m5_buf_append(b, out, (size_t)m5_utf8_encode(cp, out));
}

void m5_buf_clear(m5_buf *b)
{
    b->n = 0;
    if (b->p) b->p[0] = '\0';
}

void m5_buf_erase_front(m5_buf *b, size_t n)
{
    if (n == 0) return;
    if (n >= b->n) {
        m5_buf_clear(b);
        return;
    }
    memmove(b->p, b->p + n, b->n - n);
    b->n -= n;
    b->p[b->n] = '\0';
}

char *m5_buf_take(m5_buf *b)
{
    if (!b->p) m5_buf_append(b, "", 0);
    char *p = b->p;
    *b = (m5_buf){0};
    return p;
}

void m5_buf_free(m5_buf *b)
{
    m5_free(b->p);
    *b = (m5_buf){0};
}

m5_slice m5_buf_view(const m5_buf *b)
{
    return (m5_slice){b->p ? b->p : "", b->n};
}

/* Range of the second byte for each lead byte: Unicode 15, table 3-7. */
static bool second_byte_ok(unsigned char lead, unsigned char c)
{
    switch (lead) {
    case 0xE0: return c >= 0xA0 && c <= 0xBF;
    case 0xED: return c >= 0x80 && c <= 0x9F;
    case 0xF0: return c >= 0x90 && c <= 0xBF;
    case 0xF4: return c >= 0x80 && c <= 0x8F;
    default: return c >= 0x80 && c <= 0xBF;
    }
}

int m5_utf8_decode(const char *s, size_t n, uint32_t *cp)
{
    if (n == 0) return 0;
    const unsigned char *p = (const unsigned char *)s;
    unsigned char lead = p[0];
    if (lead < 0x80) {
        *cp = lead;
        return 1;
    }
    int len = lead >= 0xC2 && lead <= 0xDF ? 2 : lead >= 0xE0 && lead <= 0xEF ? 3 : lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
    *cp = 0xFFFD;
    if (len == 0) return 1;
    uint32_t v = lead & (0xFFu >> (len + 1));
    for (int i = 1; i < len; i++) {
        if ((size_t)i >= n) return -1;
        bool ok = i == 1 ? second_byte_ok(lead, p[1]) : (p[i] & 0xC0) == 0x80;
        if (!ok) return i;
        v = v << 6 | (p[i] & 0x3Fu);
    }
    *cp = v;
    return len;
}

int m5_utf8_encode(uint32_t cp, char out[4])
{
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF)) cp = 0xFFFD;
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (char)(0xC0 | cp >> 6);
        out[1] = (char)(0x80 | (cp & 0x3F));
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (char)(0xE0 | cp >> 12);
        out[1] = (char)(0x80 | (cp >> 6 & 0x3F));
        out[2] = (char)(0x80 | (cp & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | cp >> 18);
    out[1] = (char)(0x80 | (cp >> 12 & 0x3F));
    out[2] = (char)(0x80 | (cp >> 6 & 0x3F));
    out[3] = (char)(0x80 | (cp & 0x3F));
    return 4;
}

bool m5_utf8_valid(const char *p, size_t n)
{
    size_t i = 0;
    while (i < n) {
        uint32_t cp;
        int k = m5_utf8_decode(p + i, n - i, &cp);
        if (k < 0) return false;
        /* A well-formed U+FFFD is EF BF BD; any other 0xFFFD is a replacement. */
        if (cp == 0xFFFD && !(k == 3 && (unsigned char)p[i] == 0xEF)) return false;
        i += (size_t)k;
    }
    return true;
}
