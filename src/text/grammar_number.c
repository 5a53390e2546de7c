/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers between bounds as decimal digits. A bound is followed digit by digit; as long as the digits so far equal the bound's ("tight"), the next
 * one may not pass the bound's digit, afterwards all are free. */
#include "text/grammar_internal.h"

#include <math.h>
#include <string.h>

enum { MAX_DIGITS = 18, MAX_FRACTION = 17 };
#define MOST 999999999999999999u /* 18 nines: every shorter number fits int64 */

typedef struct decimal { /* of a bound: |value| */
    uint64_t whole;
    char frac[32]; /* digits as characters */
    int n_frac;
} decimal;

static int32_t digits(m5_gb *b, uint32_t min, uint32_t max)
{
    return m5_g_rep(b, m5_g_range(b, '0', '9'), min, max, 0);
}

/* ---- whole numbers ---- */

/* Digit strings of equal length n between lo and hi, from position `at` on. */
static int32_t fixed(m5_gb *b, const char *lo, const char *hi, int at, int n, bool tight_lo, bool tight_hi)
{
    if (!tight_lo && !tight_hi) return digits(b, (uint32_t)(n - at), (uint32_t)(n - at));
    if (at == n) return m5_g_empty(b);
    char from = tight_lo ? lo[at] : '0', to = tight_hi ? hi[at] : '9';
    int32_t all[3];
    size_t m = 0;
    if (from == to) {
        all[m++] = m5_g_seq2(b, m5_g_lit(b, &from, 1), fixed(b, lo, hi, at + 1, n, tight_lo, tight_hi));
    } else {
        char first = (char)(from + tight_lo), last = (char)(to - tight_hi);
        if (tight_lo) all[m++] = m5_g_seq2(b, m5_g_lit(b, &from, 1), fixed(b, lo, hi, at + 1, n, true, false));
        if (first <= last) {
            int32_t free = digits(b, (uint32_t)(n - at - 1), (uint32_t)(n - at - 1));
            all[m++] = m5_g_seq2(b, m5_g_range(b, (uint8_t)first, (uint8_t)last), free);
        }
        if (tight_hi) all[m++] = m5_g_seq2(b, m5_g_lit(b, &to, 1), fixed(b, lo, hi, at + 1, n, false, true));
    }
    return m5_gb_alt(b, all, m);
}

static int write_digits(char *out, uint64_t v)
{
    char back[24];
    int n = 0;
    do {
        back[n++] = (char)('0' + v % 10);
    } while (v /= 10);
    for (int i = 0; i < n; i++) out[i] = back[n - 1 - i];
    return n;
}

/* Whole numbers from lo to hi without leading zeros. */
static int32_t whole_in(m5_gb *b, uint64_t lo, uint64_t hi)
{
    char x[24], y[24];
    int32_t all[24];
    size_t m = 0;
    if (lo > hi) return m5_g_none(b);
    int from = write_digits(x, lo), to = write_digits(y, hi);
    for (int n = from; n <= to; n++) {
        char least[24], most[24];
        memset(most, '9', sizeof most);
        memset(least, '0', sizeof least);
        if (n > 1) least[0] = '1';
        all[m++] = fixed(b, n == from ? x : least, n == to ? y : most, 0, n, true, true);
    }
    return m5_gb_alt(b, all, m);
}

static int32_t minus(m5_gb *b, int32_t node)
{
    return m5_g_seq2(b, m5_g_lit(b, "-", 1), node);
}

bool m5_g_json_integer_in(m5_gb *b, const g_bounds *r, int32_t *out)
{
    double lo = r->has_lo ? ceil(r->lo) : -(double)MOST, hi = r->has_hi ? floor(r->hi) : (double)MOST;
    if (r->has_lo && r->open_lo && lo == r->lo) lo += 1;
    if (r->has_hi && r->open_hi && hi == r->hi) hi -= 1;
    if (lo < -(double)MOST) lo = -(double)MOST;
    if (hi > (double)MOST) hi = (double)MOST;
    if (!(lo <= hi)) {
        *out = m5_g_none(b);
        return !b->err.code && lo == lo && hi == hi && fabs(lo) <= (double)MOST && fabs(hi) <= (double)MOST;
    }
    uint64_t most_lo = lo <= -(double)MOST ? MOST : (uint64_t)fabs(lo), most_hi = hi >= (double)MOST ? MOST : (uint64_t)fabs(hi);
    int32_t all[2];
    size_t n = 0;
    if (lo < 0) all[n++] = minus(b, whole_in(b, hi < 0 ? most_hi : 1, most_lo));
    if (hi >= 0) all[n++] = whole_in(b, lo > 0 ? most_lo : 0, most_hi);
    *out = m5_gb_alt(b, all, n);
    return !b->err.code;
}

/* ---- fractions ---- */

typedef struct frac_in {
    m5_gb *b;
    const decimal *lo, *hi; /* NULL = no bound on this side */
    bool open_lo, open_hi;
    int most; /* digits */
} frac_in;

static bool zeros_from(const decimal *d, int at)
{
    for (int i = at; i < d->n_frac; i++) {
        if (d->frac[i] != '0') return false;
    }
    return true;
}

static bool may_end(const frac_in *f, int at, bool tight_lo, bool tight_hi)
{
    if (tight_lo && (!zeros_from(f->lo, at) || f->open_lo)) return false;
    return !(tight_hi && f->open_hi && zeros_from(f->hi, at));
}

static int32_t frac_digits(const frac_in *f, int at, bool tight_lo, bool tight_hi, bool can_end)
{
    m5_gb *b = f->b;
    if (tight_lo && !f->open_lo && zeros_from(f->lo, at)) tight_lo = false;
    if (!tight_lo && !tight_hi) return digits(b, can_end ? 0 : 1, (uint32_t)(f->most - at));
    int32_t all[4];
    size_t m = 0;
    if (can_end && may_end(f, at, tight_lo, tight_hi)) all[m++] = m5_g_empty(b);
    if (at < f->most) {
        char from = tight_lo && at < f->lo->n_frac ? f->lo->frac[at] : '0', to = tight_hi ? (at < f->hi->n_frac ? f->hi->frac[at] : '0') : '9';
        if (from == to) {
            all[m++] = m5_g_seq2(b, m5_g_lit(b, &from, 1), frac_digits(f, at + 1, tight_lo, tight_hi, true));
        } else if (from < to) {
            char first = (char)(from + tight_lo), last = (char)(to - tight_hi);
            if (tight_lo) all[m++] = m5_g_seq2(b, m5_g_lit(b, &from, 1), frac_digits(f, at + 1, true, false, true));
            if (first <= last) all[m++] = m5_g_seq2(b, m5_g_range(b, (uint8_t)first, (uint8_t)last), digits(b, 0, (uint32_t)(f->most - at - 1)));
            if (tight_hi) all[m++] = m5_g_seq2(b, m5_g_lit(b, &to, 1), frac_digits(f, at + 1, false, true, true));
        }
    }
    return m5_gb_alt(b, all, m);
}

/* What may stand behind a whole part that equals the bounds' (those not NULL). */
static int32_t fraction(m5_gb *b, const decimal *lo, bool open_lo, const decimal *hi, bool open_hi, int most)
{
    frac_in f = {b, lo, hi, open_lo, open_hi, most};
    int32_t all[2];
    size_t n = 0;
    if (may_end(&f, 0, lo != NULL, hi != NULL)) all[n++] = m5_g_empty(b);
    if (most > 0) all[n++] = m5_g_seq2(b, m5_g_lit(b, ".", 1), frac_digits(&f, 0, lo != NULL, hi != NULL, false));
    return m5_gb_alt(b, all, n);
}

/* Numbers >= 0 from lo to hi; hi NULL = no bound. */
static int32_t positive_in(m5_gb *b, const decimal *lo, bool open_lo, const decimal *hi, bool open_hi, int most)
{
    char text[24];
    int32_t all[3];
    size_t n = 0;
    if (hi && lo->whole > hi->whole) return m5_g_none(b);
    int32_t start = m5_g_lit(b, text, (size_t)write_digits(text, lo->whole));
    if (hi && lo->whole == hi->whole) return m5_g_seq2(b, start, fraction(b, lo, open_lo, hi, open_hi, most));
    all[n++] = m5_g_seq2(b, start, fraction(b, lo, open_lo, NULL, false, most));
    uint64_t last = hi ? hi->whole - 1 : MOST;
    if (lo->whole + 1 <= last) all[n++] = m5_g_seq2(b, whole_in(b, lo->whole + 1, last), fraction(b, NULL, false, NULL, false, most));
    if (hi) all[n++] = m5_g_seq2(b, m5_g_lit(b, text, (size_t)write_digits(text, hi->whole)), fraction(b, NULL, false, hi, open_hi, most));
    return m5_gb_alt(b, all, n);
}

/* |v| in the shortest spelling that reads back as v; false when that has an exponent. */
static bool spell(double v, decimal *d)
{
    m5_buf text = {0};
    *d = (decimal){0};
    m5_json_write_real(&text, fabs(v));
    bool ok = !text.failed && text.n < 40 && !memchr(text.p, 'e', text.n) && fabs(v) < (double)MOST;
    const char *dot = ok ? memchr(text.p, '.', text.n) : NULL;
    for (const char *p = text.p; ok && p < (dot ? dot : text.p + text.n); p++) d->whole = d->whole * 10 + (uint64_t)(*p - '0');
    for (const char *p = dot ? dot + 1 : NULL; p && p < text.p + text.n && d->n_frac < 31; p++) d->frac[d->n_frac++] = *p;
    while (d->n_frac && d->frac[d->n_frac - 1] == '0') d->n_frac--;
    m5_buf_free(&text);
    return ok;
}

bool m5_g_json_number_in(m5_gb *b, const g_bounds *r, int32_t *out)
{
    static const decimal zero = {0};
    decimal lo = {0}, hi = {0};
    int most = r->digits >= 0 ? r->digits : MAX_FRACTION;
    char text[24];
    if ((r->has_lo && !spell(r->lo, &lo)) || (r->has_hi && !spell(r->hi, &hi))) return false;
    /* More digits than a double holds could round to an excluded bound. */
    int whole = write_digits(text, lo.whole > hi.whole ? lo.whole : hi.whole), exact = whole < 15 ? 15 - whole : 0;
    if ((r->open_lo || r->open_hi) && most > exact) most = exact;
    bool below = !r->has_lo || r->lo < 0, above = !r->has_hi || r->hi > 0 || (r->hi == 0 && !r->open_hi);
    int32_t all[2];
    size_t n = 0;
    if (below) { /* mirrored: the lower bound limits the size from above */
        const decimal *least = r->has_hi && r->hi < 0 ? &hi : &zero;
        bool open = r->has_hi && r->hi <= 0 && r->open_hi;
        all[n++] = minus(b, positive_in(b, least, open, r->has_lo ? &lo : NULL, r->open_lo, most));
    }
    if (above) {
        bool from_lo = r->has_lo && r->lo >= 0;
        all[n++] = positive_in(b, from_lo ? &lo : &zero, from_lo && r->open_lo, r->has_hi ? &hi : NULL, r->open_hi, most);
    }
    *out = m5_gb_alt(b, all, n);
    return !b->err.code;
}
