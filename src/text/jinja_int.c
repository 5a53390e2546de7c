/* SPDX-License-Identifier: Apache-2.0 */
/* Python's unbounded integers, as far as a template can want them: sign and magnitude in 32-bit limbs, schoolbook algorithms (Knuth, TAOCP 2, 4.3.1),
 * up to J_MAX_INT_BITS. Values that fit 64 bits are always J_INT. */
#include "text/jinja_internal.h"

#include <math.h>

/* Magnitude being worked on. */
typedef struct mag {
    uint32_t *v;
    size_t n;
} mag;

bool m5_jint_is(jval v)
{
    return v.t == J_BOOL || v.t == J_INT || v.t == J_BIG;
}

bool m5_jint_fits(jval a, int64_t *out)
{
    if (a.t == J_BIG) return false;
    *out = a.t == J_BOOL ? a.u.b : a.u.i;
    return true;
}

int64_t m5_jint_clamp(jval a)
{
    int64_t i;
    if (m5_jint_fits(a, &i)) return i;
    return a.u.big->neg ? INT64_MIN : INT64_MAX;
}

int m5_jint_sign(jval a)
{
    int64_t i;
    if (m5_jint_fits(a, &i)) return (i > 0) - (i < 0);
    return a.u.big->neg ? -1 : 1;
}

static void trim(mag *m)
{
    while (m->n && m->v[m->n - 1] == 0) m->n--;
}

static mag mag_new(jrt *rt, size_t n)
{
    if (n > J_MAX_INT_BITS / 32 + 2) m5_jrt_fail_code(rt, M5_ERR_LIMIT, "an integer of more than %d bits", J_MAX_INT_BITS);
    return (mag){m5_j_array(rt, n ? n : 1, sizeof(uint32_t)), n};
}

/* Borrows the limbs of a big; small values are written into store. */
static mag mag_of(jval a, uint32_t store[2], bool *neg)
{
    int64_t i;
    if (!m5_jint_fits(a, &i)) {
        *neg = a.u.big->neg;
        return (mag){(uint32_t *)a.u.big->limb, a.u.big->n};
    }
    *neg = i < 0;
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    store[0] = (uint32_t)u;
    store[1] = (uint32_t)(u >> 32);
    mag m = {store, 2};
    trim(&m);
    return m;
}

static jval from_mag(jrt *rt, mag m, bool neg)
{
    trim(&m);
    if (m.n <= 2) {
        uint64_t u = (m.n > 0 ? m.v[0] : 0) | (uint64_t)(m.n > 1 ? m.v[1] : 0) << 32;
        if (u <= INT64_MAX) return m5_jv_int(neg ? -(int64_t)u : (int64_t)u);
        if (neg && u == (uint64_t)INT64_MAX + 1) return m5_jv_int(INT64_MIN);
    }
    if (m.n > J_MAX_INT_BITS / 32) m5_jrt_fail_code(rt, M5_ERR_LIMIT, "an integer of more than %d bits", J_MAX_INT_BITS);
    jbig *b = m5_j_alloc(rt, sizeof *b + m.n * sizeof(uint32_t));
    b->neg = neg;
    b->n = (uint32_t)m.n;
    memcpy(b->limb, m.v, m.n * sizeof(uint32_t));
    return (jval){.t = J_BIG, .u.big = b};
}

static int mag_cmp(mag a, mag b)
{
    if (a.n != b.n) return a.n < b.n ? -1 : 1;
    for (size_t i = a.n; i-- > 0;) {
        if (a.v[i] != b.v[i]) return a.v[i] < b.v[i] ? -1 : 1;
    }
    return 0;
}

static mag mag_add(jrt *rt, mag a, mag b)
{
    if (a.n < b.n) {
        mag t = a;
        a = b;
        b = t;
    }
    mag r = mag_new(rt, a.n + 1);
    uint64_t carry = 0;
    for (size_t i = 0; i < a.n; i++) {
        carry += (uint64_t)a.v[i] + (i < b.n ? b.v[i] : 0);
        r.v[i] = (uint32_t)carry;
        carry >>= 32;
    }
    r.v[a.n] = (uint32_t)carry;
    trim(&r);
    return r;
}

/* a >= b */
static mag mag_sub(jrt *rt, mag a, mag b)
{
    mag r = mag_new(rt, a.n);
    int64_t borrow = 0;
    for (size_t i = 0; i < a.n; i++) {
        int64_t d = (int64_t)a.v[i] - (i < b.n ? b.v[i] : 0) - borrow;
        borrow = d < 0;
        r.v[i] = (uint32_t)d;
    }
    trim(&r);
    return r;
}

static mag mag_mul(jrt *rt, mag a, mag b)
{
    m5_j_step(rt, (uint64_t)a.n * b.n / 16);
    mag r = mag_new(rt, a.n + b.n);
    memset(r.v, 0, r.n * sizeof *r.v);
    for (size_t i = 0; i < a.n; i++) {
        uint64_t carry = 0;
        for (size_t k = 0; k < b.n; k++) {
            carry += (uint64_t)a.v[i] * b.v[k] + r.v[i + k];
            r.v[i + k] = (uint32_t)carry;
            carry >>= 32;
        }
        r.v[i + b.n] = (uint32_t)carry;
    }
    trim(&r);
    return r;
}

static uint32_t mag_divmod_small(mag m, uint32_t d)
{
    uint64_t rem = 0;
    for (size_t i = m.n; i-- > 0;) {
        rem = rem << 32 | m.v[i];
        m.v[i] = (uint32_t)(rem / d);
        rem %= d;
    }
    return (uint32_t)rem;
}

/* Bit by bit: operands are small and rare. */
static void mag_divmod(jrt *rt, mag a, mag b, mag *q, mag *r)
{
    *q = mag_new(rt, a.n);
    *r = mag_new(rt, b.n + 1);
    memset(q->v, 0, q->n * sizeof *q->v);
    memset(r->v, 0, r->n * sizeof *r->v);
    m5_j_step(rt, (uint64_t)a.n * 32 * (b.n + 1) / 16);
    for (size_t i = a.n * 32; i-- > 0;) {
        uint32_t in = a.v[i / 32] >> (i % 32) & 1;
        for (size_t k = 0; k <= b.n; k++) {
            uint32_t out = r->v[k] >> 31;
            r->v[k] = r->v[k] << 1 | in;
            in = out;
        }
        mag cur = {r->v, b.n + 1};
        trim(&cur);
        if (mag_cmp(cur, b) < 0) continue;
        int64_t borrow = 0;
        for (size_t k = 0; k <= b.n; k++) {
            int64_t d = (int64_t)r->v[k] - (k < b.n ? b.v[k] : 0) - borrow;
            borrow = d < 0;
            r->v[k] = (uint32_t)d;
        }
        q->v[i / 32] |= (uint32_t)1 << (i % 32);
    }
    trim(q);
    trim(r);
}

static jval add_signed(jrt *rt, jval a, jval b, bool flip_b)
{
    uint32_t sa[2], sb[2];
    bool na, nb;
    mag ma = mag_of(a, sa, &na), mb = mag_of(b, sb, &nb);
    if (flip_b) nb = !nb;
    if (na == nb) return from_mag(rt, mag_add(rt, ma, mb), na);
    int c = mag_cmp(ma, mb);
    if (c == 0) return m5_jv_int(0);
    return c > 0 ? from_mag(rt, mag_sub(rt, ma, mb), na) : from_mag(rt, mag_sub(rt, mb, ma), nb);
}

jval m5_jint_add(jrt *rt, jval a, jval b)
{
    int64_t x, y;
    if (m5_jint_fits(a, &x) && m5_jint_fits(b, &y) && (y >= 0 ? x <= INT64_MAX - y : x >= INT64_MIN - y)) return m5_jv_int(x + y);
    return add_signed(rt, a, b, false);
}

jval m5_jint_sub(jrt *rt, jval a, jval b)
{
    int64_t x, y;
    if (m5_jint_fits(a, &x) && m5_jint_fits(b, &y) && (y >= 0 ? x >= INT64_MIN + y : x <= INT64_MAX + y)) return m5_jv_int(x - y);
    return add_signed(rt, a, b, true);
}

jval m5_jint_neg(jrt *rt, jval a)
{
    return m5_jint_sub(rt, m5_jv_int(0), a);
}

jval m5_jint_mul(jrt *rt, jval a, jval b)
{
    int64_t x, y;
    if (m5_jint_fits(a, &x) && m5_jint_fits(b, &y) && x > -2147483648LL && x < 2147483648LL && y > -2147483648LL && y < 2147483648LL)
        return m5_jv_int(x * y);
    uint32_t sa[2], sb[2];
    bool na, nb;
    mag ma = mag_of(a, sa, &na), mb = mag_of(b, sb, &nb);
    return from_mag(rt, mag_mul(rt, ma, mb), na != nb);
}

void m5_jint_divmod(jrt *rt, jval a, jval b, jval *q, jval *r)
{
    int64_t x, y;
    if (m5_jint_sign(b) == 0) m5_jrt_fail(rt, "integer division or modulo by zero");
    if (m5_jint_fits(a, &x) && m5_jint_fits(b, &y) && !(x == INT64_MIN && y == -1)) {
        int64_t d = x / y, m = x % y;
        if (m && (m < 0) != (y < 0)) {
            m += y;
            d--;
        }
        *q = m5_jv_int(d);
        *r = m5_jv_int(m);
        return;
    }
    uint32_t sa[2], sb[2];
    bool na, nb;
    mag ma = mag_of(a, sa, &na), mb = mag_of(b, sb, &nb), mq, mr;
    mag_divmod(rt, ma, mb, &mq, &mr);
    jval quot = from_mag(rt, mq, na != nb), rem = from_mag(rt, mr, na);
    if (m5_jint_sign(rem) && na != nb) {
        quot = m5_jint_sub(rt, quot, m5_jv_int(1));
        rem = m5_jint_add(rt, rem, b);
    }
    *q = quot;
    *r = rem;
}

jval m5_jint_pow(jrt *rt, jval a, uint64_t e)
{
    int64_t base;
    if (m5_jint_fits(a, &base) && (base == 0 || base == 1 || base == -1)) {
        if (e == 0 || base == 1) return m5_jv_int(1);
        return m5_jv_int(base == 0 ? 0 : e % 2 ? -1 : 1);
    }
    if (e && m5_jint_bits(a) > 1 && (e > J_MAX_INT_BITS || (m5_jint_bits(a) - 1) * e > J_MAX_INT_BITS)) {
        m5_jrt_fail_code(rt, M5_ERR_LIMIT, "an integer of more than %d bits", J_MAX_INT_BITS);
    }
    jval r = m5_jv_int(1);
    for (; e; e >>= 1) {
        if (e & 1) r = m5_jint_mul(rt, r, a);
        if (e > 1) a = m5_jint_mul(rt, a, a);
    }
    return r;
}

int m5_jint_cmp(jval a, jval b)
{
    int64_t x, y;
    bool small_a = m5_jint_fits(a, &x), small_b = m5_jint_fits(b, &y);
    if (small_a && small_b) return (x > y) - (x < y);
    if (small_a) return b.u.big->neg ? 1 : -1;
    if (small_b) return a.u.big->neg ? -1 : 1;
    if (a.u.big->neg != b.u.big->neg) return a.u.big->neg ? -1 : 1;
    mag ma = {(uint32_t *)a.u.big->limb, a.u.big->n}, mb = {(uint32_t *)b.u.big->limb, b.u.big->n};
    int c = mag_cmp(ma, mb);
    return a.u.big->neg ? -c : c;
}

uint64_t m5_jint_bits(jval a)
{
    uint32_t store[2];
    bool neg;
    mag m = mag_of(a, store, &neg);
    if (!m.n) return 0;
    uint64_t bits = (uint64_t)(m.n - 1) * 32;
    for (uint32_t top = m.v[m.n - 1]; top; top >>= 1) bits++;
    return bits;
}

/* Rounds half to even, as Python's float(int) does. */
double m5_jint_double(jval a, bool *overflow)
{
    int64_t i;
    *overflow = false;
    if (m5_jint_fits(a, &i)) return (double)i;
    const jbig *b = a.u.big;
    uint64_t bits = m5_jint_bits(a);
    if (bits > 1024) {
        *overflow = true;
        return 0;
    }
    /* The top 64 bits; what lies below them only matters as "something is there", kept in the last bit. */
    uint64_t top = 0;
    uint64_t shift = bits - 64;
    for (size_t k = 0; k < 64; k++) {
        uint64_t at = shift + k;
        if (b->limb[at / 32] >> (at % 32) & 1) top |= (uint64_t)1 << k;
    }
    for (uint64_t at = 0; at < shift; at++) {
        if (b->limb[at / 32] >> (at % 32) & 1) {
            top |= 1;
            break;
        }
    }
    uint64_t keep = top >> 11, rest = top & 0x7FF;
    if (rest > 0x400 || (rest == 0x400 && (keep & 1))) keep++;
    double d = ldexp((double)keep, (int)shift + 11);
    if (isinf(d)) *overflow = true;
    return b->neg ? -d : d;
}

jval m5_jint_from_double(jrt *rt, double d)
{
    if (fabs(d) < 9.2e18) return m5_jv_int((int64_t)d);
    int exp;
    double f = frexp(fabs(d), &exp); /* |d| = f * 2^exp, exp > 63 */
    uint64_t m = (uint64_t)ldexp(f, 53);
    mag r = mag_new(rt, (size_t)exp / 32 + 2);
    memset(r.v, 0, r.n * sizeof *r.v);
    for (int k = 0; k < 53; k++) {
        int at = exp - 53 + k;
        if (m >> k & 1) r.v[at / 32] |= (uint32_t)1 << (at % 32);
    }
    return from_mag(rt, r, d < 0);
}

void m5_jint_put(jrt *rt, jval a, int base, bool upper)
{
    uint32_t store[2];
    bool neg;
    mag src = mag_of(a, store, &neg);
    if (base == 10 && m5_jint_bits(a) > (uint64_t)(J_MAX_INT_DIGITS * 3.3219281)) {
        m5_jrt_fail(rt, "an integer of more than %d digits cannot be printed", J_MAX_INT_DIGITS);
    }
    mag m = mag_new(rt, src.n);
    memcpy(m.v, src.v, src.n * sizeof *m.v);
    size_t cap = src.n * 32 + 2, at = cap;
    char *buf = m5_j_alloc(rt, cap);
    m5_j_step(rt, (uint64_t)src.n * src.n);
    do buf[--at] = (upper ? "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ" : "0123456789abcdefghijklmnopqrstuvwxyz")[mag_divmod_small(m, (uint32_t)base)];
    while (trim(&m), m.n);
    if (neg) buf[--at] = '-';
    m5_j_put(rt, buf + at, cap - at, true);
}

bool m5_jint_parse(jrt *rt, const char *p, size_t n, int base, jval *out)
{
    if (!n) return false;
    if (base == 10 && n > J_MAX_INT_DIGITS) return false;
    mag m = mag_new(rt, n / 6 + 2);
    size_t used = 0;
    m5_j_step(rt, (uint64_t)n * n / 64);
    for (size_t i = 0; i < n; i++) {
        char c = p[i];
        int d = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10 : 99;
        if (d >= base) return false;
        uint64_t carry = (uint64_t)d;
        for (size_t k = 0; k < used; k++) {
            carry += (uint64_t)m.v[k] * (uint32_t)base;
            m.v[k] = (uint32_t)carry;
            carry >>= 32;
        }
        if (carry) m.v[used++] = (uint32_t)carry;
    }
    m.n = used;
    *out = from_mag(rt, m, false);
    return true;
}

uint64_t m5_jint_hash(jval a)
{
    /* Equal to the hash of the float of the same value, since 1 and 1.0 are one key. */
    bool overflow;
    double d = m5_jint_double(a, &overflow);
    if (overflow) return a.u.big->limb[0] * 0x9E3779B97F4A7C15u;
    uint64_t u;
    memcpy(&u, &d, sizeof u);
    if (d == 0) u = 0;
    return (u ^ u >> 32) * 0x9E3779B97F4A7C15u;
}
