/* SPDX-License-Identifier: Apache-2.0 */
/* Python's text formatting: "%" with its conversions, str.format with its format specifications, strftime; and int() and float() of a string. */
#include "text/jinja_internal.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { MAX_PRECISION = 5000 };

/* A number ready to be padded: sign, prefix such as 0x, digits. */
typedef struct digits {
    const char *sign, *prefix;
    jstr *body;
} digits;

static JNORETURN void width_limit(jrt *rt)
{
    m5_jrt_fail_code(rt, M5_ERR_LIMIT, "a format wider than the limit");
}

/* |d| by a C conversion (e, f, g and upper case). */
static jstr *float_body(jrt *rt, double d, int64_t precision, char type, bool alt)
{
    char spec[] = "%#.*f";
    if (precision > MAX_PRECISION) width_limit(rt);
    spec[4] = type;
    const char *fmt = alt ? spec : (spec[1] = '%', spec + 1);
    size_t cap = (size_t)precision + 400;
    char *buf = m5_j_alloc(rt, cap);
    int n = snprintf(buf, cap, fmt, (int)precision, fabs(d));
    return m5_jstr_view(rt, buf, n > 0 ? (size_t)n : 0, true);
}

static jstr *int_body(jrt *rt, jval v, int base, bool upper)
{
    jmark m = m5_j_begin(rt);
    m5_jint_put(rt, m5_jint_sign(v) < 0 ? m5_jint_neg(rt, v) : v, base, upper);
    return m5_j_end(rt, m);
}

static double to_double(jrt *rt, jval v)
{
    if (v.t == J_UNDEF) m5_jv_undef_fail(rt, v);
    if (!m5_jv_num(v)) m5_jrt_fail(rt, "must be real number, not %s", m5_jv_type(v));
    return m5_jop_double(rt, v);
}

/* ---- percent ---- */

typedef struct percent {
    jrt *rt;
    const jstr *fmt;
    size_t i;
    jval args;
    bool mapping;
    size_t next;
    bool minus, plus, space, alt, zero;
    int64_t width, precision; /* -1 = none */
    jval arg;
} percent;

static jval next_arg(percent *p)
{
    const jval *items;
    size_t n;
    if (p->args.t == J_TUPLE && m5_jseq_view(p->args, &items, &n)) {
        if (p->next < n) return items[p->next++];
    } else if (p->next == 0) {
        p->next = 1;
        return p->args;
    }
    m5_jrt_fail(p->rt, "not enough arguments for format string");
}

static char look(const percent *p)
{
    if (p->i >= p->fmt->n) m5_jrt_fail(p->rt, "incomplete format");
    return p->fmt->p[p->i];
}

static int64_t star_or_number(percent *p)
{
    if (look(p) == '*') {
        p->i++;
        jval v = next_arg(p);
        int64_t n;
        if (!m5_jint_is(v)) m5_jrt_fail(p->rt, "* wants int");
        if (!m5_jint_fits(v, &n) || n > INT32_MAX || n < -INT32_MAX) width_limit(p->rt);
        return n;
    }
    int64_t n = 0;
    while (isdigit((unsigned char)look(p))) {
        n = n * 10 + (p->fmt->p[p->i++] - '0');
        if (n > INT32_MAX) width_limit(p->rt);
    }
    return n;
}

static void read_key(percent *p)
{
    size_t begin = ++p->i;
    for (int depth = 1; depth; p->i++) {
        char c = look(p);
        depth += (c == '(') - (c == ')');
    }
    if (!p->mapping) m5_jrt_fail(p->rt, "format requires a mapping");
    jstr *key = m5_jstr_sub(p->rt, p->fmt, begin, p->i - 1);
    if (p->args.t != J_DICT) {
        if (p->args.t == J_UNDEF) m5_jv_undef_fail(p->rt, p->args);
        m5_jrt_fail(p->rt, "'%s' has no keys to format with", m5_jv_type(p->args));
    }
    if (!m5_jdict_get_str(p->rt, p->args.u.dict, key, &p->arg)) {
        m5_jrt_fail(p->rt, "the format's key '%.*s' is missing", key->n > 60 ? 60 : (int)key->n, m5_jstr_flat(p->rt, key)->p);
    }
}

static void put_padded(jrt *rt, const jstr *body, int64_t width, bool left)
{
    if (width > (int64_t)rt->max_bytes) width_limit(rt);
    m5_j_put_str(rt, m5_jmethod_center(rt, body, width, m5_jstr_c(rt, " "), left ? 0 : 2));
}

static void put_number(percent *p, bool negative, const char *prefix, const jstr *body)
{
    jrt *rt = p->rt;
    const char *sign = negative ? "-" : p->plus ? "+" : p->space ? " " : "";
    int64_t fixed = (int64_t)(strlen(sign) + strlen(prefix)) + m5_jstr_len(rt, body), pad = p->width > fixed ? p->width - fixed : 0;
    if (pad > (int64_t)rt->max_bytes) width_limit(rt);
    jstr *space = m5_jstr_c(rt, " ");
    bool zeros = p->zero && !p->minus;
    if (!p->minus && !zeros) m5_j_fill(rt, space, (size_t)pad);
    m5_j_puts(rt, sign);
    m5_j_puts(rt, prefix);
    if (zeros) m5_j_fill(rt, m5_jstr_c(rt, "0"), (size_t)pad);
    m5_j_put_str(rt, body);
    if (p->minus) m5_j_fill(rt, space, (size_t)pad);
}

static void percent_int(percent *p, char type)
{
    jrt *rt = p->rt;
    jval v = p->arg;
    if (v.t == J_UNDEF) m5_jv_undef_fail(rt, v);
    bool decimal = type == 'd' || type == 'i' || type == 'u';
    if (p->fmt->safe && v.t == J_STR && !m5_jint_from_str(rt, v.u.s, 10, &v)) m5_jrt_fail(rt, "invalid literal for int()");
    if (decimal && v.t == J_FLOAT) {
        if (!isfinite(v.u.d)) m5_jrt_fail(rt, "cannot convert float infinity or NaN to integer");
        v = m5_jint_from_double(rt, v.u.d);
    }
    if (!m5_jint_is(v)) m5_jrt_fail(rt, "%%%c format: %s is required, not %s", type, decimal ? "a real number" : "an integer", m5_jv_type(v));
    int base = type == 'o' ? 8 : type == 'x' || type == 'X' ? 16 : 10;
    jstr *body = int_body(rt, v, base, type == 'X');
    if (p->precision > (int64_t)body->n) {
        if (p->precision > MAX_PRECISION) width_limit(rt);
        jmark m = m5_j_begin(rt);
        m5_j_fill(rt, m5_jstr_c(rt, "0"), (size_t)p->precision - body->n);
        m5_j_put_str(rt, body);
        body = m5_j_end(rt, m);
    }
    const char *prefix = !p->alt ? "" : type == 'o' ? "0o" : type == 'x' ? "0x" : type == 'X' ? "0X" : "";
    put_number(p, m5_jint_sign(v) < 0, prefix, body);
}

static void percent_text(percent *p, char type)
{
    jrt *rt = p->rt;
    jstr *s;
    if (type == 's') {
        s = m5_jv_to_str(rt, p->arg);
    } else {
        jmark m = m5_j_begin(rt);
        if (type == 'a' && p->arg.t == J_STR)
            m5_jv_put_repr_str(rt, p->arg.u.s, true);
        else
            m5_jv_put_repr(rt, p->arg);
        s = m5_j_end(rt, m);
    }
    if (p->fmt->safe && !(type == 's' && p->arg.t == J_STR && p->arg.u.s->safe)) s = m5_jstr_escape(rt, s);
    if (p->precision >= 0 && p->precision < m5_jstr_len(rt, s)) s = m5_jstr_sub(rt, s, 0, m5_jstr_offset(rt, s, p->precision));
    put_padded(rt, s, p->width, p->minus);
}

static void percent_char(percent *p)
{
    jrt *rt = p->rt;
    int64_t cp;
    if (p->arg.t == J_STR && m5_jstr_len(rt, p->arg.u.s) == 1) {
        put_padded(rt, p->arg.u.s, p->width, p->minus);
        return;
    }
    if (!m5_jint_is(p->arg) || !m5_jint_fits(p->arg, &cp) || cp < 0 || cp > 0x10FFFF) m5_jrt_fail(rt, "%%c requires int or char");
    jmark m = m5_j_begin(rt);
    m5_j_put_cp(rt, (uint32_t)cp, false); /* the number may be anyone's */
    put_padded(rt, m5_j_end(rt, m), p->width, p->minus);
}

static void percent_one(percent *p)
{
    p->minus = p->plus = p->space = p->alt = p->zero = false;
    p->width = p->precision = -1;
    p->arg = m5_jv_missing();
    if (look(p) == '(') read_key(p);
    for (;; p->i++) {
        char c = look(p);
        if (c == '-')
            p->minus = true;
        else if (c == '+')
            p->plus = true;
        else if (c == ' ')
            p->space = true;
        else if (c == '#')
            p->alt = true;
        else if (c == '0')
            p->zero = true;
        else
            break;
    }
    p->width = star_or_number(p);
    if (p->width < 0) {
        p->minus = true;
        p->width = -p->width;
    }
    if (look(p) == '.') {
        p->i++;
        p->precision = star_or_number(p);
        if (p->precision < 0) p->precision = 0;
    }
    if (look(p) == 'h' || look(p) == 'l' || look(p) == 'L') p->i++;
    char type = look(p);
    p->i++;
    if (type == '%') {
        m5_j_putc(p->rt, '%');
        return;
    }
    if (p->arg.t == J_MISSING) p->arg = next_arg(p);
    switch (type) {
    case 's':
    case 'r':
    case 'a': percent_text(p, type); break;
    case 'c': percent_char(p); break;
    case 'd':
    case 'i':
    case 'u':
    case 'o':
    case 'x':
    case 'X': percent_int(p, type); break;
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G': {
        jval v = p->arg;
        double d = 0;
        if (p->fmt->safe && v.t == J_STR && m5_jfloat_parse(p->rt, v.u.s, &d)) v = m5_jv_float(d);
        d = to_double(p->rt, v);
        put_number(p, signbit(d) && !isnan(d), "", float_body(p->rt, d, p->precision < 0 ? 6 : p->precision, type, p->alt));
        break;
    }
    default: m5_jrt_fail(p->rt, "unsupported format character '%c'", type > 32 && type < 127 ? type : '?');
    }
}

jval m5_jformat_percent(jrt *rt, const jstr *fmt, jval args)
{
    fmt = m5_jstr_flat(rt, fmt);
    percent p = {.rt = rt, .fmt = fmt, .args = args};
    p.mapping = args.t == J_DICT || args.t == J_LIST || args.t == J_RANGE || args.t == J_UNDEF;
    jmark m = m5_j_begin(rt);
    while (p.i < fmt->n) {
        const char *at = memchr(fmt->p + p.i, '%', fmt->n - p.i);
        size_t stop = at ? (size_t)(at - fmt->p) : fmt->n;
        m5_j_put_sub(rt, fmt, p.i, stop);
        p.i = stop + 1;
        m5_j_step(rt, 1);
        if (at) percent_one(&p);
    }
    size_t n_args = args.t == J_TUPLE ? args.u.seq->n : 1;
    if (p.next < n_args && !p.mapping) m5_jrt_fail(rt, "not all arguments converted during string formatting");
    jstr *s = m5_j_end(rt, m);
    s->safe = fmt->safe;
    return m5_jv_str(s);
}

/* ---- format() ---- */

typedef struct fspec {
    uint32_t fill;
    char align; /* 0 = default */
    char sign, grouping, type;
    bool alt;
    int64_t width, precision; /* -1 = none */
} fspec;

static int64_t spec_number(jrt *rt, const jstr *s, size_t *i)
{
    int64_t n = -1;
    while (*i < s->n && isdigit((unsigned char)s->p[*i])) {
        n = (n < 0 ? 0 : n) * 10 + (s->p[(*i)++] - '0');
        if (n > INT32_MAX) width_limit(rt);
    }
    return n;
}

static fspec read_spec(jrt *rt, const jstr *s, const char *type_name, char default_align)
{
    fspec f = {.fill = ' ', .width = -1, .precision = -1};
    size_t i = 0, after = 0;
    bool fill_given = false;
    if (s->n) {
        uint32_t first = m5_jstr_cp(s, &after);
        if (after < s->n && strchr("<>=^", s->p[after])) {
            fill_given = true;
            f.fill = first;
            f.align = s->p[after];
            i = after + 1;
        } else if (strchr("<>=^", s->p[0])) {
            f.align = s->p[0];
            i = 1;
        }
    }
    if (i < s->n && (s->p[i] == '+' || s->p[i] == '-' || s->p[i] == ' ')) f.sign = s->p[i++];
    if (i < s->n && s->p[i] == '#') {
        f.alt = true;
        i++;
    }
    /* A zero in front of the width is a fill, unless there is one; numbers then pad after the sign. */
    if (!fill_given && i < s->n && s->p[i] == '0') {
        f.fill = '0';
        if (!f.align && default_align == '>') f.align = '=';
        i++;
    }
    f.width = spec_number(rt, s, &i);
    if (i < s->n && (s->p[i] == ',' || s->p[i] == '_')) f.grouping = s->p[i++];
    if (i < s->n && s->p[i] == '.') {
        i++;
        f.precision = spec_number(rt, s, &i);
        if (f.precision < 0) m5_jrt_fail(rt, "format specifier missing precision");
    }
    if (i < s->n) f.type = s->p[i++];
    if (i < s->n) m5_jrt_fail(rt, "invalid format specifier for object of type '%s'", type_name);
    if (f.grouping && f.type && (strchr("ncs", f.type) || (f.grouping == ',' && strchr("box", f.type | 32)))) {
        m5_jrt_fail(rt, "cannot specify '%c' with '%c'", f.grouping, f.type);
    }
    return f;
}

static jstr *cp_str(jrt *rt, uint32_t cp)
{
    jmark m = m5_j_begin(rt);
    m5_j_put_cp(rt, cp, false); /* the number or fill may be anyone's */
    return m5_j_end(rt, m);
}

static void put_aligned(jrt *rt, const fspec *f, const char *sign, const char *prefix, const jstr *body, char default_align)
{
    int64_t len = (int64_t)(strlen(sign) + strlen(prefix)) + m5_jstr_len(rt, body), pad = f->width > len ? f->width - len : 0;
    if (pad > (int64_t)rt->max_bytes) width_limit(rt);
    char align = f->align ? f->align : default_align;
    jstr *fill = cp_str(rt, f->fill);
    int64_t left = align == '>' ? pad : align == '^' ? pad / 2 : 0;
    m5_j_fill(rt, fill, (size_t)left);
    m5_j_puts(rt, sign);
    m5_j_puts(rt, prefix);
    if (align == '=') m5_j_fill(rt, fill, (size_t)pad);
    m5_j_put_str(rt, body);
    if (align != '=') m5_j_fill(rt, fill, (size_t)(pad - left));
}

/* Separators into the run of digits at the front of a number; zero padding counts as digits. */
static jstr *group_digits(jrt *rt, const fspec *f, const jstr *body, int64_t sign_len, int every)
{
    size_t n = 0;
    while (n < body->n && isxdigit((unsigned char)body->p[n])) n++;
    if (every == 3) {
        n = 0;
        while (n < body->n && isdigit((unsigned char)body->p[n])) n++;
    }
    size_t rest = body->n - n, zeros = 0;
    if (f->align == '=' && f->fill == '0' && f->width > 0) {
        /* Pad until digits and separators fill the width. */
        if (f->width > MAX_PRECISION) width_limit(rt);
        while ((int64_t)(n + zeros + (n + zeros - 1) / (size_t)every + rest) + sign_len < f->width) zeros++;
    }
    jmark m = m5_j_begin(rt);
    for (size_t k = 0; k < n + zeros; k++) {
        if (k && (n + zeros - k) % (size_t)every == 0) m5_j_putc(rt, f->grouping);
        m5_j_putc(rt, k < zeros ? '0' : body->p[k - zeros]);
    }
    m5_j_put_sub(rt, body, n, body->n);
    return m5_j_end(rt, m);
}

static void format_int(jrt *rt, jval v, fspec *f)
{
    if (f->precision >= 0) m5_jrt_fail(rt, "precision not allowed in integer format specifier");
    if (f->type == 'c') {
        int64_t cp;
        if (f->sign || f->alt) m5_jrt_fail(rt, "sign or '#' not allowed with integer format specifier 'c'");
        if (!m5_jint_fits(v, &cp) || cp < 0 || cp > 0x10FFFF) m5_jrt_fail(rt, "%%c arg not in range(0x110000)");
        put_aligned(rt, f, "", "", cp_str(rt, (uint32_t)cp), '<');
        return;
    }
    int base = f->type == 'b' ? 2 : f->type == 'o' ? 8 : f->type == 'x' || f->type == 'X' ? 16 : 10;
    const char *prefix = !f->alt ? "" : base == 2 ? "0b" : base == 8 ? "0o" : f->type == 'x' ? "0x" : f->type == 'X' ? "0X" : "";
    const char *sign = m5_jint_sign(v) < 0 ? "-" : f->sign == '+' ? "+" : f->sign == ' ' ? " " : "";
    jstr *body = int_body(rt, v, base, f->type == 'X');
    if (f->grouping) body = group_digits(rt, f, body, (int64_t)(strlen(sign) + strlen(prefix)), base == 10 ? 3 : 4);
    put_aligned(rt, f, sign, prefix, body, '>');
}

/* Shortest digits, as repr, when neither type nor precision is given. */
static jstr *float_general(jrt *rt, double d, const fspec *f)
{
    if (f->precision < 0) {
        jmark m = m5_j_begin(rt);
        m5_jv_put_float(rt, fabs(d));
        return m5_j_end(rt, m);
    }
    int64_t n_digits = f->precision ? f->precision : 1;
    jstr *s = float_body(rt, d, n_digits, 'g', f->alt);
    if (!isfinite(d) || memchr(s->p, 'e', s->n) || memchr(s->p, '.', s->n)) return s;
    if ((int64_t)s->n < n_digits) return m5_jstr_cat(rt, s, m5_jstr_c(rt, ".0"));
    /* 'g' prints an integer of as many digits as the precision; format() prefers the exponent there. */
    jstr *e = float_body(rt, d, n_digits - 1, 'e', f->alt);
    size_t digits_end = (size_t)((const char *)memchr(e->p, 'e', e->n) - e->p), keep = digits_end;
    if (memchr(e->p, '.', e->n)) {
        while (e->p[keep - 1] == '0') keep--;
        if (e->p[keep - 1] == '.') keep--;
    }
    return m5_jstr_cat(rt, m5_jstr_sub(rt, e, 0, keep), m5_jstr_sub(rt, e, digits_end, e->n));
}

static void format_float(jrt *rt, double d, fspec *f)
{
    bool negative = signbit(d) && !isnan(d);
    const char *sign = negative ? "-" : f->sign == '+' ? "+" : f->sign == ' ' ? " " : "";
    jstr *body;
    if (!f->type) {
        body = float_general(rt, d, f);
    } else {
        char type = f->type == '%' ? 'f' : f->type == 'n' ? 'g' : f->type;
        body = float_body(rt, f->type == '%' ? d * 100 : d, f->precision < 0 ? 6 : f->precision, type, f->alt);
        if (f->type == '%') body = m5_jstr_cat(rt, body, m5_jstr_c(rt, "%"));
    }
    body = (jstr *)m5_jstr_flat(rt, body);
    if (f->grouping && isfinite(d)) body = group_digits(rt, f, body, (int64_t)strlen(sign), 3);
    put_aligned(rt, f, sign, "", body, '>');
}

/* format(v, spec) */
static void put_format(jrt *rt, jval v, const jstr *spec)
{
    spec = m5_jstr_flat(rt, spec);
    if (!spec->n) {
        m5_jv_put_str(rt, v);
        return;
    }
    if (v.t == J_STR) {
        fspec f = read_spec(rt, spec, "str", '<');
        if (f.type && f.type != 's') m5_jrt_fail(rt, "unknown format code '%c' for object of type 'str'", f.type);
        if (f.align == '=') m5_jrt_fail(rt, "'=' alignment not allowed in string format specifier");
        if (f.sign || f.alt || f.grouping) m5_jrt_fail(rt, "sign, '#' or separator not allowed in string format specifier");
        jstr *s = m5_jstr_with_safe(rt, v.u.s, false);
        if (f.precision >= 0 && f.precision < m5_jstr_len(rt, s)) s = m5_jstr_sub(rt, s, 0, m5_jstr_offset(rt, s, f.precision));
        put_aligned(rt, &f, "", "", s, '<');
        return;
    }
    if (!m5_jv_num(v)) m5_jrt_fail(rt, "unsupported format string passed to %s.__format__", m5_jv_type(v));
    fspec f = read_spec(rt, spec, m5_jv_type(v), '>');
    if (m5_jint_is(v) && (!f.type || strchr("bcdnoxX", f.type))) {
        format_int(rt, v, &f);
        return;
    }
    if (f.type && !strchr("eEfFgGn%", f.type))
        m5_jrt_fail(rt, "unknown format code '%c' for object of type '%s'", f.type > 32 && f.type < 127 ? f.type : '?', m5_jv_type(v));
    format_float(rt, m5_jop_double(rt, v), &f);
}

typedef struct braces {
    jrt *rt;
    const jcall *c;
    jval mapping;
    bool safe;
    int64_t auto_index; /* -1 = fields are numbered by hand */
    bool any_auto;
} braces;

static jval field_start(braces *b, const jstr *name)
{
    jrt *rt = b->rt;
    jval v, n;
    bool number = name->n > 0;
    for (size_t i = 0; i < name->n; i++) number = number && isdigit((unsigned char)name->p[i]);
    if (!name->n || number) {
        int64_t i;
        if (!name->n) {
            if (b->auto_index < 0) m5_jrt_fail(rt, "cannot switch from manual field specification to automatic field numbering");
            i = b->auto_index++;
            b->any_auto = true;
        } else {
            if (b->any_auto) m5_jrt_fail(rt, "cannot switch from automatic field numbering to manual field specification");
            b->auto_index = -1;
            if (!m5_jint_parse(rt, name->p, name->n, 10, &n) || !m5_jint_fits(n, &i)) m5_jrt_fail(rt, "too many decimal digits in format string");
        }
        if (!b->c || i >= (int64_t)b->c->n) m5_jrt_fail(rt, "replacement index %lld out of range for positional args tuple", (long long)i);
        return b->c->pos[i];
    }
    for (size_t i = 0; b->c && i < b->c->n_kw; i++) {
        if (m5_jstr_eq(rt, b->c->kw[i], name)) return b->c->kwval[i];
    }
    if (b->mapping.t == J_DICT && m5_jdict_get_str(rt, b->mapping.u.dict, name, &v)) return v;
    m5_jrt_fail(rt, "the format's field '%.*s' is missing", name->n > 60 ? 60 : (int)name->n, name->p);
}

/* name.attr[index]... */
static jval field_value(braces *b, const jstr *name)
{
    jrt *rt = b->rt;
    size_t i = 0;
    while (i < name->n && name->p[i] != '.' && name->p[i] != '[') i++;
    jval v = field_start(b, m5_jstr_sub(rt, name, 0, i));
    while (i < name->n) {
        char kind = name->p[i++];
        size_t begin = i;
        if (kind == '.') {
            while (i < name->n && name->p[i] != '.' && name->p[i] != '[') i++;
            if (i == begin) m5_jrt_fail(rt, "empty attribute in format string");
            v = m5_jop_getattr(rt, v, m5_jstr_sub(rt, name, begin, i));
            continue;
        }
        if (kind != '[') m5_jrt_fail(rt, "only '.' or '[' may follow ']' in format field specifier");
        while (i < name->n && name->p[i] != ']') i++;
        if (i >= name->n || i == begin) m5_jrt_fail(rt, "missing or empty ']' in format string");
        jstr *key = m5_jstr_sub(rt, name, begin, i);
        jval n;
        v = m5_jop_getitem(rt, v, m5_jint_parse(rt, key->p, key->n, 10, &n) ? n : m5_jv_str(key));
        i++;
    }
    return v;
}

static jstr *format_text(braces *b, const jstr *s, int depth);

static void put_field(braces *b, const jstr *s, size_t begin, size_t end, int depth)
{
    jrt *rt = b->rt;
    size_t i = begin, bracket = 0;
    while (i < end && (bracket || (s->p[i] != '!' && s->p[i] != ':'))) {
        if (s->p[i] == '[') bracket = 1;
        if (s->p[i] == ']') bracket = 0;
        i++;
    }
    jval v = field_value(b, m5_jstr_flat(rt, m5_jstr_sub(rt, s, begin, i)));
    if (i < end && s->p[i] == '!') {
        if (i + 1 >= end || (i + 2 < end && s->p[i + 2] != ':')) m5_jrt_fail(rt, "expected ':' after conversion specifier");
        char conv = s->p[i + 1];
        jmark m = m5_j_begin(rt);
        if (conv == 's')
            m5_jv_put_str(rt, v);
        else if (conv == 'a' && v.t == J_STR)
            m5_jv_put_repr_str(rt, v.u.s, true);
        else if (conv == 'r' || conv == 'a')
            m5_jv_put_repr(rt, v);
        else
            m5_jrt_fail(rt, "unknown conversion specifier in format string");
        v = m5_jv_str(m5_j_end(rt, m));
        i += 2;
    }
    const jstr *spec = i < end ? format_text(b, m5_jstr_sub(rt, s, i + 1, end), depth + 1) : rt->empty;
    if (!b->safe) {
        put_format(rt, v, spec);
        return;
    }
    if (v.t == J_STR && v.u.s->safe && spec->n) m5_jrt_fail(rt, "unsupported format specification for Markup");
    jmark m = m5_j_begin(rt);
    put_format(rt, v, spec);
    jstr *text = m5_j_end(rt, m);
    m5_j_put_str(rt, v.t == J_STR && v.u.s->safe ? text : m5_jstr_escape(rt, text));
}

static jstr *format_text(braces *b, const jstr *s, int depth)
{
    jrt *rt = b->rt;
    if (depth > 2) m5_jrt_fail(rt, "max string recursion exceeded");
    s = m5_jstr_flat(rt, s);
    jmark m = m5_j_begin(rt);
    for (size_t i = 0; i < s->n;) {
        size_t stop = i;
        while (stop < s->n && s->p[stop] != '{' && s->p[stop] != '}') stop++;
        m5_j_put_sub(rt, s, i, stop);
        i = stop;
        if (i >= s->n) break;
        if (i + 1 < s->n && s->p[i + 1] == s->p[i]) {
            m5_j_put_sub(rt, s, i, i + 1);
            i += 2;
            continue;
        }
        if (s->p[i] == '}') m5_jrt_fail(rt, "single '}' encountered in format string");
        size_t end = ++i;
        int nested = 1;
        for (; end < s->n; end++) {
            if (s->p[end] == '{') nested++;
            if (s->p[end] == '}' && --nested == 0) break;
        }
        if (end >= s->n) m5_jrt_fail(rt, "expected '}' before end of string");
        put_field(b, s, i, end, depth);
        i = end + 1;
        m5_j_step(rt, 1);
    }
    return m5_j_end(rt, m);
}

jval m5_jformat_braces(jrt *rt, const jstr *fmt, const jcall *c, jval mapping)
{
    braces b = {.rt = rt, .c = c, .mapping = mapping, .safe = fmt->safe};
    jstr *s = format_text(&b, fmt, 1);
    return m5_jv_str(m5_jstr_with_safe(rt, s, fmt->safe));
}

/* ---- numbers from text ---- */

/* Trimmed copy with decimal digits of any script made ASCII; NUL-terminated, NULL if it cannot be a number. */
static char *ascii_number(jrt *rt, const jstr *s, size_t *n)
{
    s = m5_jstr_flat(rt, m5_jmethod_strip(rt, s, NULL, true, true));
    char *p = m5_j_alloc(rt, s->n + 1);
    *n = 0;
    for (size_t i = 0; i < s->n;) {
        uint32_t c = m5_jstr_cp(s, &i);
        int d = m5_ju_decimal_value(c);
        if (d < 0 && (c >= 128 || c == 0)) return NULL;
        p[(*n)++] = d >= 0 ? (char)('0' + d) : (char)c;
    }
    return *n ? p : NULL;
}

/* Drops underscores that stand between digits; false at any other underscore. */
static bool drop_underscores(char *p, size_t *n, bool hex)
{
    size_t w = 0;
    for (size_t i = 0; i < *n; i++) {
        if (p[i] != '_') {
            p[w++] = p[i];
            continue;
        }
        bool before = i > 0 && (hex ? isalnum((unsigned char)p[i - 1]) : isdigit((unsigned char)p[i - 1]));
        bool after = i + 1 < *n && (hex ? isalnum((unsigned char)p[i + 1]) : isdigit((unsigned char)p[i + 1]));
        if (!before || !after) return false;
    }
    *n = w;
    p[w] = 0;
    return true;
}

bool m5_jfloat_parse(jrt *rt, const jstr *s, double *out)
{
    size_t n;
    char *p = ascii_number(rt, s, &n);
    if (!p || !drop_underscores(p, &n, false)) return false;
    size_t i = p[0] == '+' || p[0] == '-';
    size_t k = i, n_digits = 0;
    char lower[12] = "";
    for (size_t w = 0; w < sizeof lower - 1 && p[i + w]; w++) lower[w] = (char)tolower((unsigned char)p[i + w]);
    if (strcmp(lower, "inf") != 0 && strcmp(lower, "infinity") != 0 && strcmp(lower, "nan") != 0) {
        while (isdigit((unsigned char)p[k])) k++, n_digits++;
        if (p[k] == '.') k++;
        while (isdigit((unsigned char)p[k])) k++, n_digits++;
        if (!n_digits) return false;
        if (p[k] == 'e' || p[k] == 'E') {
            k++;
            if (p[k] == '+' || p[k] == '-') k++;
            if (!isdigit((unsigned char)p[k])) return false;
            while (isdigit((unsigned char)p[k])) k++;
        }
        if (k != n) return false;
    }
    *out = strtod(p, NULL);
    return true;
}

bool m5_jint_from_str(jrt *rt, const jstr *s, int base, jval *out)
{
    size_t n, i = 0;
    char *p = ascii_number(rt, s, &n);
    if (!p || base == 1 || base < 0 || base > 36) return false;
    bool negative = p[0] == '-';
    if (p[0] == '+' || p[0] == '-') i++;
    char c = p[i] == '0' && i + 1 < n ? (char)tolower((unsigned char)p[i + 1]) : 0;
    int prefix = c == 'x' ? 16 : c == 'o' ? 8 : c == 'b' ? 2 : 0;
    if (prefix && (base == 0 || base == prefix)) {
        base = prefix;
        i += 2;
        if (i < n && p[i] == '_') i++;
    } else if (base == 0) {
        base = 10;
        for (size_t k = i; p[i] == '0' && k < n; k++) {
            if (p[k] != '0' && p[k] != '_') return false;
        }
    }
    n -= i;
    p += i;
    if (!n || !drop_underscores(p, &n, true) || !m5_jint_parse(rt, p, n, base, out)) return false;
    if (negative) *out = m5_jint_neg(rt, *out);
    return true;
}

/* ---- time ---- */

jval m5_jformat_time(jrt *rt, const jstr *fmt)
{
    struct tm tm;
    time_t now = rt->now_unix < 0 ? time(NULL) : (time_t)rt->now_unix;
    if (!localtime_r(&now, &tm)) m5_jrt_fail(rt, "the time cannot be split");
    fmt = m5_jstr_flat(rt, fmt);
    jmark m = m5_j_begin(rt);
    for (size_t i = 0; i < fmt->n;) {
        size_t stop = i;
        while (stop < fmt->n && fmt->p[stop] != '%') stop++;
        m5_j_put_sub(rt, fmt, i, stop);
        i = stop;
        if (i >= fmt->n) break;
        /* %, flags, at most two digits of width, the letter: one directive at a time, so that the result has a bound. */
        char one[8] = "%", text[256];
        size_t n = 1, k = i + 1;
        while (k < fmt->n && n < 5 && strchr("-_0^#123456789EO", fmt->p[k]) && fmt->p[k]) one[n++] = fmt->p[k++];
        if (k >= fmt->n) {
            m5_j_put_sub(rt, fmt, i, fmt->n);
            break;
        }
        one[n] = fmt->p[k];
        char c = fmt->p[k];
        i = k + 1;
        if (c == 'f') {
            m5_j_puts(rt, "000000");
        } else if (c == 'Z' || c == 'z') {
            continue; /* a time without zone prints none */
        } else if (isalpha((unsigned char)c) || c == '%') {
            m5_j_put(rt, text, strftime(text, sizeof text, one, &tm), true);
        } else {
            m5_j_put_sub(rt, fmt, i - n - 1, i);
        }
    }
    return m5_jv_str(m5_j_end(rt, m));
}
