/* SPDX-License-Identifier: Apache-2.0 */
/* Strings of the interpreter: UTF-8 bytes, counted by code point, with the trust runs of their bytes. Case and classes are in jinja_uni.c. */
#include "text/jinja_internal.h"

/* Below this size copying is cheaper than keeping a pair. */
enum { ROPE_MIN_BYTES = 128 };

static jstr *make(jrt *rt, const char *p, size_t n, jtrust trust)
{
    jstr *s = m5_j_alloc(rt, sizeof *s);
    s->p = p;
    s->n = n;
    s->n_cp = -1;
    s->trust = trust;
    return s;
}

jstr *m5_jstr_new(jrt *rt, const char *p, size_t n, bool trusted)
{
    char *copy = m5_j_alloc(rt, n + 1);
    if (n) memcpy(copy, p, n);
    return make(rt, copy, n, trusted ? J_TRUSTED : J_UNTRUSTED);
}

jstr *m5_jstr_view(jrt *rt, const char *p, size_t n, bool trusted)
{
    return make(rt, n ? p : "", n, trusted ? J_TRUSTED : J_UNTRUSTED);
}

jstr *m5_jstr_c(jrt *rt, const char *s)
{
    return make(rt, s, strlen(s), J_TRUSTED);
}

/* Copies a pair's bytes and runs from right to left: a chain built by appending then needs a stack of two. */
static void flatten(jrt *rt, jstr *s)
{
    char *p = m5_j_alloc(rt, s->n + 1);
    size_t pos = s->n, n_runs = 0, cap_runs = 0, n_stack = 0, cap_stack = 16;
    jrun *runs = NULL;
    const jstr **stack = m5_j_array(rt, cap_stack, sizeof *stack);
    stack[n_stack++] = s;
    while (n_stack) {
        const jstr *x = stack[--n_stack];
        if (!x->p) {
            if (n_stack + 2 > cap_stack) {
                const jstr **more = m5_j_array(rt, cap_stack * 2, sizeof *more);
                memcpy(more, stack, n_stack * sizeof *more);
                stack = more;
                cap_stack *= 2;
            }
            stack[n_stack++] = x->l;
            stack[n_stack++] = x->r;
            continue;
        }
        if (!x->n) continue;
        memcpy(p + pos - x->n, x->p, x->n);
        size_t n_parts = x->trust == J_MIXED ? x->n_runs : 1;
        for (size_t i = n_parts; s->trust == J_MIXED && i-- > 0;) {
            bool trusted = x->trust == J_MIXED ? x->runs[i].trusted : x->trust == J_TRUSTED;
            size_t end = pos - x->n + (x->trust == J_MIXED ? x->runs[i].end : x->n);
            if (n_runs && runs[n_runs - 1].trusted == trusted) continue;
            if (n_runs == cap_runs) {
                size_t cap = cap_runs ? cap_runs * 2 : 8;
                jrun *more = m5_j_array(rt, cap, sizeof *more);
                if (n_runs) memcpy(more, runs, n_runs * sizeof *more);
                runs = more;
                cap_runs = cap;
            }
            runs[n_runs++] = (jrun){end, trusted};
        }
        pos -= x->n;
    }
    for (size_t i = 0; i < n_runs / 2; i++) {
        jrun t = runs[i];
        runs[i] = runs[n_runs - 1 - i];
        runs[n_runs - 1 - i] = t;
    }
    s->runs = runs;
    s->n_runs = n_runs;
    s->p = p;
    s->l = s->r = NULL;
}

const jstr *m5_jstr_flat(jrt *rt, const jstr *s)
{
    if (!s->p) flatten(rt, (jstr *)s);
    return s;
}

jstr *m5_jstr_cat(jrt *rt, const jstr *a, const jstr *b)
{
    if (!a->n && !b->safe) return (jstr *)b;
    if (!b->n && !a->safe) return (jstr *)a;
    if (b->n > SIZE_MAX / 4 || a->n > SIZE_MAX / 4 || a->n + b->n > rt->max_bytes) {
        m5_jrt_fail_code(rt, M5_ERR_LIMIT, "a string longer than %zu bytes", rt->max_bytes);
    }
    jtrust trust = !a->n ? b->trust : !b->n || a->trust == b->trust ? a->trust : J_MIXED;
    jstr *s = make(rt, NULL, a->n + b->n, trust);
    s->l = a;
    s->r = b;
    if (a->n_cp >= 0 && b->n_cp >= 0) s->n_cp = a->n_cp + b->n_cp;
    if (s->n < ROPE_MIN_BYTES) flatten(rt, s);
    return s;
}

jstr *m5_jstr_sub(jrt *rt, const jstr *s, size_t begin, size_t end)
{
    s = m5_jstr_flat(rt, s);
    if (begin >= end) return rt->empty;
    if (begin == 0 && end == s->n && !s->safe) return (jstr *)s;
    jstr *r = make(rt, s->p + begin, end - begin, s->trust);
    if (s->n_cp == (int64_t)s->n) r->n_cp = (int64_t)r->n;
    if (s->trust != J_MIXED) return r;
    size_t lo = 0, hi = s->n_runs;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (s->runs[mid].end <= begin)
            lo = mid + 1;
        else
            hi = mid;
    }
    size_t last = lo;
    while (s->runs[last].end < end) last++;
    if (last == lo) {
        r->trust = s->runs[lo].trusted ? J_TRUSTED : J_UNTRUSTED;
        return r;
    }
    r->n_runs = last - lo + 1;
    jrun *runs = m5_j_array(rt, r->n_runs, sizeof *runs);
    for (size_t i = 0; i < r->n_runs; i++) {
        runs[i] = s->runs[lo + i];
        runs[i].end = (runs[i].end < end ? runs[i].end : end) - begin;
    }
    r->runs = runs;
    return r;
}

jstr *m5_jstr_with_safe(jrt *rt, const jstr *s, bool safe)
{
    if (s->safe == safe) return (jstr *)s;
    jstr *r = m5_j_alloc(rt, sizeof *r);
    *r = *m5_jstr_flat(rt, s);
    r->safe = safe;
    return r;
}

int64_t m5_jstr_len(jrt *rt, const jstr *s)
{
    if (s->n_cp >= 0) return s->n_cp;
    s = m5_jstr_flat(rt, s);
    m5_j_step(rt, s->n / 64);
    int64_t n = 0;
    for (size_t i = 0; i < s->n; i++) n += ((unsigned char)s->p[i] & 0xC0) != 0x80;
    ((jstr *)s)->n_cp = n;
    return n;
}

size_t m5_jstr_offset(jrt *rt, const jstr *s, int64_t cp)
{
    s = m5_jstr_flat(rt, s);
    int64_t len = m5_jstr_len(rt, s);
    if (cp <= 0) return 0;
    if (cp >= len) return s->n;
    if (len == (int64_t)s->n) return (size_t)cp;
    size_t i = 0;
    if (cp > len / 2) {
        for (i = s->n; cp < len; len--) {
            do i--;
            while (((unsigned char)s->p[i] & 0xC0) == 0x80);
        }
        m5_j_step(rt, (s->n - i) / 64);
        return i;
    }
    for (; cp > 0; cp--) {
        do i++;
        while (i < s->n && ((unsigned char)s->p[i] & 0xC0) == 0x80);
    }
    m5_j_step(rt, i / 64);
    return i;
}

bool m5_jstr_trusted_at(const jstr *s, size_t off, size_t *run)
{
    if (s->trust != J_MIXED) return s->trust == J_TRUSTED;
    while (*run + 1 < s->n_runs && s->runs[*run].end <= off) ++*run;
    return s->runs[*run].trusted;
}

bool m5_jstr_eq(jrt *rt, const jstr *a, const jstr *b)
{
    if (a == b) return true;
    if (a->n != b->n) return false;
    if (a->hashed && b->hashed && a->hash != b->hash) return false;
    m5_j_step(rt, a->n / 256);
    return !a->n || memcmp(m5_jstr_flat(rt, a)->p, m5_jstr_flat(rt, b)->p, a->n) == 0;
}

int m5_jstr_cmp(jrt *rt, const jstr *a, const jstr *b)
{
    /* The order of UTF-8 bytes is the order of code points. */
    size_t n = a->n < b->n ? a->n : b->n;
    m5_j_step(rt, n / 256);
    int c = n ? memcmp(m5_jstr_flat(rt, a)->p, m5_jstr_flat(rt, b)->p, n) : 0;
    return c ? (c < 0 ? -1 : 1) : (a->n > b->n) - (a->n < b->n);
}

uint64_t m5_jstr_hash(jrt *rt, const jstr *s)
{
    if (s->hashed) return s->hash;
    s = m5_jstr_flat(rt, s);
    m5_j_step(rt, s->n / 64);
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < s->n; i++) h = (h ^ (unsigned char)s->p[i]) * 0x100000001b3u;
    h ^= h >> 29;
    ((jstr *)s)->hash = h;
    ((jstr *)s)->hashed = true;
    return h;
}

bool m5_jstr_is(jrt *rt, const jstr *s, const char *lit)
{
    size_t n = strlen(lit);
    return s->n == n && memcmp(m5_jstr_flat(rt, s)->p, lit, n) == 0;
}

size_t m5_jstr_find(jrt *rt, const jstr *hay, const jstr *needle, size_t from)
{
    hay = m5_jstr_flat(rt, hay);
    needle = m5_jstr_flat(rt, needle);
    if (!needle->n) return from <= hay->n ? from : SIZE_MAX;
    while (from <= hay->n && hay->n - from >= needle->n) {
        const char *p = memchr(hay->p + from, needle->p[0], hay->n - from - needle->n + 1);
        size_t at = p ? (size_t)(p - hay->p) : hay->n;
        /* The comparison counts too: a long needle of one letter in a long text of that letter is quadratic. */
        m5_j_step(rt, (at - from) / 512 + needle->n / 256);
        if (!p) break;
        if (memcmp(p, needle->p, needle->n) == 0) return at;
        from = at + 1;
    }
    return SIZE_MAX;
}

size_t m5_jstr_rfind(jrt *rt, const jstr *hay, const jstr *needle, size_t begin, size_t end)
{
    hay = m5_jstr_flat(rt, hay);
    needle = m5_jstr_flat(rt, needle);
    if (end - begin < needle->n) return SIZE_MAX;
    m5_j_step(rt, (end - begin) / 64);
    for (size_t at = end - needle->n + 1; at-- > begin;) {
        if (memcmp(hay->p + at, needle->p, needle->n) == 0) return at;
        m5_j_step(rt, needle->n / 256);
    }
    return SIZE_MAX;
}

jstr *m5_jstr_escape(jrt *rt, const jstr *s)
{
    if (s->safe) return (jstr *)s;
    s = m5_jstr_flat(rt, s);
    jmark m = m5_j_begin(rt);
    size_t done = 0;
    for (size_t i = 0; i < s->n; i++) {
        const char *rep = NULL;
        switch (s->p[i]) {
        case '&': rep = "&amp;"; break;
        case '<': rep = "&lt;"; break;
        case '>': rep = "&gt;"; break;
        case '\'': rep = "&#39;"; break;
        case '"': rep = "&#34;"; break;
        default: break;
        }
        if (!rep) continue;
        m5_j_put_sub(rt, s, done, i);
        m5_j_puts(rt, rep);
        done = i + 1;
    }
    m5_j_put_sub(rt, s, done, s->n);
    jstr *r = m5_j_end(rt, m);
    r->safe = true;
    return r;
}

uint32_t m5_jstr_cp(const jstr *s, size_t *off)
{
    uint32_t cp = 0;
    int n = m5_utf8_decode(s->p + *off, s->n - *off, &cp);
    *off += n > 0 ? (size_t)n : 1;
    return cp;
}

uint32_t m5_jstr_cp_back(const jstr *s, size_t *off)
{
    do --*off;
    while (*off > 0 && ((unsigned char)s->p[*off] & 0xC0) == 0x80);
    size_t at = *off;
    return m5_jstr_cp(s, &at);
}
