/* SPDX-License-Identifier: Apache-2.0 */
/* Operators, attribute and item access with the sandbox's refusals, slices, argument binding, calls. */
#include "text/jinja_internal.h"

#include <math.h>

static const char *const op_names[] = {
    [OP_ADD] = "+", [OP_SUB] = "-", [OP_MUL] = "*", [OP_DIV] = "/", [OP_FLOORDIV] = "//", [OP_MOD] = "%", [OP_POW] = "**"};

double m5_jop_double(jrt *rt, jval v)
{
    if (v.t == J_FLOAT) return v.u.d;
    bool overflow;
    double d = m5_jint_double(v, &overflow);
    if (overflow) m5_jrt_fail(rt, "int too large to convert to float");
    return d;
}

static JNORETURN void unsupported(jrt *rt, jop op, jval a, jval b)
{
    if (a.t == J_UNDEF) m5_jv_undef_fail(rt, a);
    if (b.t == J_UNDEF) m5_jv_undef_fail(rt, b);
    if (op == OP_ADD && a.t == J_STR) m5_jrt_fail(rt, "can only concatenate str (not \"%s\") to str", m5_jv_type(b));
    m5_jrt_fail(rt, "unsupported operand type(s) for %s: '%s' and '%s'", op_names[op], m5_jv_type(a), m5_jv_type(b));
}

static jval concat_seq(jrt *rt, jval a, jval b)
{
    size_t n = a.u.seq->n + b.u.seq->n;
    jval r = m5_jv_seq(rt, a.t, n);
    if (a.u.seq->n) memcpy(r.u.seq->v, a.u.seq->v, a.u.seq->n * sizeof(jval));
    if (b.u.seq->n) memcpy(r.u.seq->v + a.u.seq->n, b.u.seq->v, b.u.seq->n * sizeof(jval));
    r.u.seq->n = n;
    m5_j_step(rt, n / 64);
    return r;
}

static jval repeat(jrt *rt, jval v, jval times)
{
    int64_t n = m5_jint_clamp(times);
    if (n < 0) n = 0;
    if (v.t == J_STR) {
        jmark m = m5_j_begin(rt);
        m5_j_fill(rt, v.u.s, (size_t)n);
        jstr *s = m5_j_end(rt, m);
        s->safe = v.u.s->safe;
        return m5_jv_str(s);
    }
    size_t len = v.u.seq->n, total;
    if (!m5_mul_size(len, (size_t)n, &total)) total = SIZE_MAX / sizeof(jval) / 2;
    jval r = m5_jv_seq(rt, v.t, total);
    m5_j_step(rt, total / 64);
    for (size_t i = 0; i < total; i++) r.u.seq->v[i] = v.u.seq->v[i % len];
    r.u.seq->n = total;
    return r;
}

static void float_divmod(jrt *rt, double x, double y, double *q, double *r)
{
    if (y == 0) m5_jrt_fail(rt, "float floor division or modulo by zero");
    double mod = fmod(x, y), div = (x - mod) / y;
    if (mod != 0) {
        if ((y < 0) != (mod < 0)) {
            mod += y;
            div -= 1;
        }
    } else {
        mod = copysign(0.0, y);
    }
    if (div != 0) {
        double whole = floor(div);
        if (div - whole > 0.5) whole += 1;
        *q = whole;
    } else {
        *q = copysign(0.0, x / y);
    }
    *r = mod;
}

static jval power(jrt *rt, jval a, jval b)
{
    if (m5_jint_is(a) && m5_jint_is(b) && m5_jint_sign(b) >= 0) {
        int64_t e;
        return m5_jint_pow(rt, a, m5_jint_fits(b, &e) ? (uint64_t)e : UINT64_MAX);
    }
    double x = m5_jop_double(rt, a), y = m5_jop_double(rt, b);
    if (x == 0 && y < 0) m5_jrt_fail(rt, "0.0 cannot be raised to a negative power");
    if (x < 0 && isfinite(x) && isfinite(y) && y != floor(y)) m5_jrt_fail(rt, "complex numbers are not supported");
    double r = pow(x, y);
    if (isinf(r) && isfinite(x) && isfinite(y)) m5_jrt_fail(rt, "numerical result out of range");
    return m5_jv_float(r);
}

static jval int_math(jrt *rt, jop op, jval a, jval b)
{
    jval q, r;
    switch (op) {
    case OP_ADD: return m5_jint_add(rt, a, b);
    case OP_SUB: return m5_jint_sub(rt, a, b);
    case OP_MUL: return m5_jint_mul(rt, a, b);
    case OP_FLOORDIV: m5_jint_divmod(rt, a, b, &q, &r); return q;
    default: m5_jint_divmod(rt, a, b, &q, &r); return r;
    }
}

static jval number_math(jrt *rt, jop op, jval a, jval b)
{
    if (op == OP_POW) return power(rt, a, b);
    if (op != OP_DIV && m5_jint_is(a) && m5_jint_is(b)) return int_math(rt, op, a, b);
    double x = m5_jop_double(rt, a), y = m5_jop_double(rt, b), q, r;
    if (op == OP_DIV && m5_jint_is(a) && m5_jint_is(b) && y != 0 && (fabs(x) > 9007199254740992.0 || fabs(y) > 9007199254740992.0)) {
        /* Both roundings would add up; an exact quotient is rounded once. */
        jval whole, rest;
        m5_jint_divmod(rt, a, b, &whole, &rest);
        if (m5_jint_sign(rest) == 0) return m5_jv_float(m5_jop_double(rt, whole));
    }
    switch (op) {
    case OP_ADD: return m5_jv_float(x + y);
    case OP_SUB: return m5_jv_float(x - y);
    case OP_MUL: return m5_jv_float(x * y);
    case OP_DIV:
        if (y == 0) m5_jrt_fail(rt, "division by zero");
        return m5_jv_float(x / y);
    case OP_FLOORDIV: float_divmod(rt, x, y, &q, &r); return m5_jv_float(q);
    default: float_divmod(rt, x, y, &q, &r); return m5_jv_float(r);
    }
}

jval m5_jop_binary(jrt *rt, jop op, jval a, jval b)
{
    if (m5_jv_num(a) && m5_jv_num(b)) return number_math(rt, op, a, b);
    if (op == OP_ADD) {
        if (a.t == J_STR && b.t == J_STR) {
            if (!a.u.s->safe && !b.u.s->safe) return m5_jv_str(m5_jstr_cat(rt, a.u.s, b.u.s));
            /* Markup meets text: the text is escaped, whichever side it stands on. */
            jstr *s = m5_jstr_cat(rt, m5_jstr_escape(rt, a.u.s), m5_jstr_escape(rt, b.u.s));
            return m5_jv_str(m5_jstr_with_safe(rt, s, true));
        }
        if ((a.t == J_LIST || a.t == J_TUPLE) && a.t == b.t) return concat_seq(rt, a, b);
    } else if (op == OP_MUL) {
        if ((a.t == J_STR || a.t == J_LIST || a.t == J_TUPLE) && m5_jint_is(b)) return repeat(rt, a, b);
        if ((b.t == J_STR || b.t == J_LIST || b.t == J_TUPLE) && m5_jint_is(a)) return repeat(rt, b, a);
    } else if (op == OP_MOD && a.t == J_STR) {
        return m5_jformat_percent(rt, a.u.s, b);
    }
    unsupported(rt, op, a, b);
}

bool m5_jop_compare(jrt *rt, jop op, jval a, jval b)
{
    switch (op) {
    case OP_EQ: return m5_jv_eq(rt, a, b);
    case OP_NE: return !m5_jv_eq(rt, a, b);
    case OP_IN: return m5_jv_contains(rt, b, a);
    case OP_NOT_IN: return !m5_jv_contains(rt, b, a);
    default: return m5_jv_order(rt, a, b, op);
    }
}

jval m5_jop_neg(jrt *rt, jval a)
{
    if (m5_jint_is(a)) return m5_jint_neg(rt, a);
    if (a.t == J_FLOAT) return m5_jv_float(-a.u.d);
    if (a.t == J_UNDEF) m5_jv_undef_fail(rt, a);
    m5_jrt_fail(rt, "bad operand type for unary -: '%s'", m5_jv_type(a));
}

jval m5_jop_pos(jrt *rt, jval a)
{
    if (m5_jint_is(a)) return m5_jint_add(rt, a, m5_jv_int(0));
    if (a.t == J_FLOAT) return a;
    if (a.t == J_UNDEF) m5_jv_undef_fail(rt, a);
    m5_jrt_fail(rt, "bad operand type for unary +: '%s'", m5_jv_type(a));
}

/* ---- attributes and items ---- */

static jval unsafe(jrt *rt, jval obj, const jstr *name)
{
    int n = name->n > 60 ? 60 : (int)name->n;
    return m5_jv_undef(rt, "access to attribute '%.*s' of '%s' object is unsafe", n, m5_jstr_flat(rt, name)->p, m5_jv_type(obj));
}

/* Python's own attributes: they exist on every value, Undefined too, and are refused. */
static bool is_dunder(const jstr *name)
{
    return name->n > 4 && name->p[0] == '_' && name->p[1] == '_' && name->p[name->n - 1] == '_' && name->p[name->n - 2] == '_';
}

static bool number_attr(jrt *rt, jval obj, const jstr *name, jval *out)
{
    bool real = m5_jstr_is(rt, name, "real"), imag = m5_jstr_is(rt, name, "imag");
    if (obj.t == J_FLOAT) {
        if (!real && !imag) return false;
        *out = real ? obj : m5_jv_float(0);
        return true;
    }
    if (real || m5_jstr_is(rt, name, "numerator"))
        *out = m5_jint_add(rt, obj, m5_jv_int(0));
    else if (imag)
        *out = m5_jv_int(0);
    else if (m5_jstr_is(rt, name, "denominator"))
        *out = m5_jv_int(1);
    else
        return false;
    return true;
}

static bool range_attr(jrt *rt, const jrange *r, const jstr *name, jval *out)
{
    if (m5_jstr_is(rt, name, "start"))
        *out = m5_jv_int(r->start);
    else if (m5_jstr_is(rt, name, "stop"))
        *out = m5_jv_int(r->stop);
    else if (m5_jstr_is(rt, name, "step"))
        *out = m5_jv_int(r->step);
    else
        return false;
    return true;
}

bool m5_jop_attr(jrt *rt, jval obj, const jstr *name, jval *out)
{
    name = m5_jstr_flat(rt, name);
    if (obj.t == J_NS) return m5_jdict_get_str(rt, obj.u.dict, name, out);
    if (name->n && name->p[0] == '_') {
        if (is_dunder(name)) *out = unsafe(rt, obj, name);
        return is_dunder(name);
    }
    bool found = false;
    switch (obj.t) {
    case J_LOOP: *out = m5_jloop_attr(rt, obj.u.loop, name, &found); return found;
    case J_MACRO:
    case J_CYCLER:
    case J_JOINER: return m5_jglobal_attr(rt, obj, name, out);
    case J_BOOL:
    case J_INT:
    case J_BIG:
    case J_FLOAT:
        if (number_attr(rt, obj, name, out)) return true;
        break;
    case J_RANGE:
        if (range_attr(rt, obj.u.range, name, out)) return true;
        break;
    case J_TUPLE:
        if (!obj.u.seq->group) break;
        if (m5_jstr_is(rt, name, "grouper") || m5_jstr_is(rt, name, "list")) {
            *out = obj.u.seq->v[name->p[0] == 'l'];
            return true;
        }
        break;
    default: break;
    }
    int id;
    const char *cname;
    bool refused;
    if (!m5_jmethod_find(obj, name, &id, &cname, &refused)) return false;
    *out = refused ? unsafe(rt, obj, name) : m5_jfunc_val(rt, id, cname, obj);
    return true;
}

jval m5_jop_getattr(jrt *rt, jval obj, const jstr *name)
{
    jval out;
    if (obj.t == J_UNDEF && !is_dunder(m5_jstr_flat(rt, name))) m5_jv_undef_fail(rt, obj);
    if (m5_jop_attr(rt, obj, name, &out)) return out;
    if (obj.t == J_DICT && m5_jdict_get_str(rt, obj.u.dict, name, &out)) return out;
    return m5_jv_undef_name(rt, name, m5_jv_describe(obj));
}

static bool index_in(int64_t i, int64_t n, int64_t *at)
{
    if (i < 0) i += n;
    *at = i;
    return i >= 0 && i < n;
}

/* obj[key] by the value's own rules; false where Python raises TypeError, KeyError or IndexError. */
static bool item_of(jrt *rt, jval obj, jval key, jval *out)
{
    int64_t i, at;
    if (obj.t == J_DICT) return m5_jv_hashable(rt, key) && m5_jdict_get(rt, obj.u.dict, key, out);
    if (!m5_jint_is(key) || !m5_jint_fits(key, &i)) return false;
    switch (obj.t) {
    case J_LIST:
    case J_TUPLE:
        if (!index_in(i, (int64_t)obj.u.seq->n, &at)) return false;
        *out = obj.u.seq->v[at];
        return true;
    case J_RANGE:
        if (!index_in(i, obj.u.range->n, &at)) return false;
        *out = m5_jv_int(obj.u.range->start + at * obj.u.range->step);
        return true;
    case J_STR: {
        if (!index_in(i, m5_jstr_len(rt, obj.u.s), &at)) return false;
        size_t begin = m5_jstr_offset(rt, obj.u.s, at), end = begin;
        m5_jstr_cp(obj.u.s, &end);
        *out = m5_jv_str(m5_jstr_with_safe(rt, m5_jstr_sub(rt, obj.u.s, begin, end), obj.u.s->safe));
        return true;
    }
    default: return false;
    }
}

jval m5_jop_getitem(jrt *rt, jval obj, jval key)
{
    jval out;
    if (obj.t == J_UNDEF) m5_jv_undef_fail(rt, obj);
    if (item_of(rt, obj, key, &out)) return out;
    if (key.t == J_STR) {
        if (m5_jop_attr(rt, obj, key.u.s, &out)) return out;
        return m5_jv_undef_name(rt, key.u.s, m5_jv_describe(obj));
    }
    jmark m = m5_j_begin(rt);
    m5_jv_put_repr(rt, key);
    jstr *text = m5_j_end(rt, m);
    int n = text->n > 60 ? 60 : (int)text->n;
    return m5_jv_undef(rt, "%s has no element %.*s", m5_jv_describe(obj), n, text->p);
}

static int64_t slice_bound(jrt *rt, jval v, int64_t missing)
{
    if (v.t == J_NONE || v.t == J_MISSING) return missing;
    if (!m5_jint_is(v)) {
        if (v.t == J_UNDEF) m5_jv_undef_fail(rt, v);
        m5_jrt_fail(rt, "slice indices must be integers or None");
    }
    return m5_jint_clamp(v);
}

typedef struct span {
    int64_t start, stop, step, n;
} span;

/* Python's slice.indices(), and the number of items. */
static span slice_span(jrt *rt, jval start, jval stop, jval step, int64_t len)
{
    span s;
    s.step = slice_bound(rt, step, 1);
    if (s.step == 0) m5_jrt_fail(rt, "slice step cannot be zero");
    if (s.step == INT64_MIN) s.step++;
    int64_t lo = s.step < 0 ? -1 : 0, hi = s.step < 0 ? len - 1 : len;
    int64_t from = slice_bound(rt, start, s.step < 0 ? INT64_MAX : 0), to = slice_bound(rt, stop, s.step < 0 ? INT64_MIN : INT64_MAX);
    bool open_end = s.step < 0 && (stop.t == J_NONE || stop.t == J_MISSING);
    if (from < 0) from = from < -len ? lo : from + len;
    if (from < lo) from = lo;
    if (from > hi) from = hi;
    if (open_end)
        to = lo;
    else if (to < 0)
        to = to < -len ? lo : to + len;
    if (to < lo) to = lo;
    if (to > hi) to = hi;
    s.start = from;
    s.stop = to;
    if (s.step > 0)
        s.n = from < to ? (to - from - 1) / s.step + 1 : 0;
    else
        s.n = from > to ? (from - to - 1) / -s.step + 1 : 0;
    return s;
}

static jval slice_str(jrt *rt, const jstr *s, span sp)
{
    jstr *r;
    if (sp.step == 1 || sp.n <= 1) {
        r = m5_jstr_sub(rt, s, m5_jstr_offset(rt, s, sp.start), sp.n ? m5_jstr_offset(rt, s, sp.start + sp.n) : 0);
    } else {
        s = m5_jstr_flat(rt, s);
        size_t *offsets = m5_j_array(rt, (size_t)m5_jstr_len(rt, s) + 1, sizeof *offsets);
        size_t k = 0;
        for (size_t i = 0; i < s->n; m5_jstr_cp(s, &i)) offsets[k++] = i;
        offsets[k] = s->n;
        m5_j_step(rt, k / 16);
        jmark m = m5_j_begin(rt);
        for (int64_t i = 0, at = sp.start; i < sp.n; i++, at += sp.step) m5_j_put_sub(rt, s, offsets[at], offsets[at + 1]);
        r = m5_j_end(rt, m);
    }
    return m5_jv_str(m5_jstr_with_safe(rt, r, s->safe));
}

jval m5_jop_slice(jrt *rt, jval obj, jval start, jval stop, jval step)
{
    int64_t len;
    if (obj.t == J_UNDEF) m5_jv_undef_fail(rt, obj);
    if (obj.t == J_DICT) m5_jrt_fail(rt, "unhashable type: 'slice'");
    if (obj.t != J_STR && obj.t != J_LIST && obj.t != J_TUPLE && obj.t != J_RANGE)
        m5_jrt_fail(rt, "'%s' object is not subscriptable", m5_jv_type(obj));
    m5_jv_len(rt, obj, &len);
    span sp = slice_span(rt, start, stop, step, len);
    if (obj.t == J_STR) return slice_str(rt, obj.u.s, sp);
    if (obj.t == J_RANGE) {
        const jrange *r = obj.u.range;
        jrange *x = m5_j_alloc(rt, sizeof *x);
        x->step = r->step * sp.step;
        x->start = r->start + sp.start * r->step;
        x->n = sp.n;
        x->stop = r->start + sp.stop * r->step;
        return (jval){.t = J_RANGE, .u.range = x};
    }
    jval out = m5_jv_seq(rt, obj.t, (size_t)sp.n);
    m5_j_step(rt, (uint64_t)sp.n / 64);
    for (int64_t i = 0, at = sp.start; i < sp.n; i++, at += sp.step) out.u.seq->v[i] = obj.u.seq->v[at];
    out.u.seq->n = (size_t)sp.n;
    return out;
}

/* ---- calls ---- */

void m5_j_bind(jrt *rt, const char *fname, const jcall *c, const char *spec, size_t n_required, jval *out)
{
    const char *names[8];
    size_t lens[8], n = 0, n_pos_only = 0;
    for (const char *s = spec; *s;) {
        size_t len = strcspn(s, " ");
        if (len == 1 && *s == '/') {
            n_pos_only = n;
        } else {
            names[n] = s;
            lens[n++] = len;
        }
        s += len;
        s += strspn(s, " ");
    }
    if (c->n > n) m5_jrt_fail(rt, "%s takes at most %zu argument%s (%zu given)", fname, n, n == 1 ? "" : "s", c->n);
    for (size_t i = 0; i < n; i++) out[i] = i < c->n ? c->pos[i] : m5_jv_missing();
    for (size_t k = 0; k < c->n_kw; k++) {
        const jstr *kw = m5_jstr_flat(rt, c->kw[k]);
        size_t i = n_pos_only;
        while (i < n && !(kw->n == lens[i] && memcmp(kw->p, names[i], kw->n) == 0)) i++;
        int len = kw->n > 60 ? 60 : (int)kw->n;
        if (i == n) m5_jrt_fail(rt, "%s got an unexpected keyword argument '%.*s'", fname, len, kw->p);
        if (out[i].t != J_MISSING) m5_jrt_fail(rt, "%s got multiple values for argument '%.*s'", fname, len, kw->p);
        out[i] = c->kwval[k];
    }
    for (size_t i = 0; i < n_required; i++) {
        if (out[i].t == J_MISSING) m5_jrt_fail(rt, "%s is missing its argument '%.*s'", fname, (int)lens[i], names[i]);
    }
}

int64_t m5_j_arg_int(jrt *rt, const char *fname, jval v)
{
    int64_t i;
    if (v.t == J_UNDEF) m5_jv_undef_fail(rt, v);
    if (!m5_jint_is(v)) m5_jrt_fail(rt, "%s wants an integer, not '%s'", fname, m5_jv_type(v));
    if (!m5_jint_fits(v, &i)) m5_jrt_fail(rt, "%s: integer too large", fname);
    return i;
}

bool m5_j_arg_flag(jrt *rt, const char *fname, jval v)
{
    if (v.t == J_MISSING) return false;
    int64_t i = m5_j_arg_int(rt, fname, v);
    if (i > INT32_MAX || i < INT32_MIN) m5_jrt_fail(rt, "%s: integer too large", fname);
    return i != 0;
}

const jstr *m5_j_arg_str(jrt *rt, const char *fname, jval v)
{
    if (v.t == J_UNDEF) m5_jrt_fail(rt, "%s wants a string, not Undefined", fname);
    if (v.t != J_STR) m5_jrt_fail(rt, "%s wants a string, not '%s'", fname, m5_jv_type(v));
    return m5_jstr_flat(rt, v.u.s);
}

jval m5_jop_call(jrt *rt, jval fn, jcall *c)
{
    switch (fn.t) {
    case J_FUNC: return fn.u.fn->self.t == J_MISSING ? m5_jglobal_call(rt, fn.u.fn, c) : m5_jmethod_call(rt, fn.u.fn, c);
    case J_MACRO: return m5_jeval_macro(rt, fn.u.macro, c);
    case J_UNDEF: m5_jv_undef_fail(rt, fn);
    case J_JOINER: m5_j_bind(rt, "joiner()", c, "", 0, NULL); return m5_jglobal_join(rt, fn.u.join);
    case J_LOOP: {
        jval items;
        m5_j_bind(rt, "loop()", c, "iterable", 1, &items);
        if (!fn.u.loop->recursive) m5_jrt_fail(rt, "the loop must have the 'recursive' marker to be called");
        return m5_jeval_recurse(rt, fn.u.loop, items);
    }
    default: m5_jrt_fail(rt, "'%s' object is not callable", m5_jv_type(fn));
    }
}
