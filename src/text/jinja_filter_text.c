/* SPDX-License-Identifier: Apache-2.0 */
/* Filters over text and numbers. */
#include "text/jinja_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static bool flag(jrt *rt, jval v)
{
    return v.t != J_MISSING && m5_jv_truth(rt, v);
}

/* Result of a str method: Markup stays Markup. */
static jval like(jrt *rt, const jstr *model, jstr *s)
{
    return m5_jv_str(m5_jstr_with_safe(rt, s, model->safe));
}

static jval f_upper(jrt *rt, jval v, jcall *c)
{
    m5_j_bind(rt, "upper", c, "", 0, NULL);
    jstr *s = m5_jv_soft_str(rt, v);
    return like(rt, s, m5_ju_str_upper(rt, s));
}

static jval f_lower(jrt *rt, jval v, jcall *c)
{
    m5_j_bind(rt, "lower", c, "", 0, NULL);
    jstr *s = m5_jv_soft_str(rt, v);
    return like(rt, s, m5_ju_str_lower(rt, s));
}

static jval f_capitalize(jrt *rt, jval v, jcall *c)
{
    m5_j_bind(rt, "capitalize", c, "", 0, NULL);
    jstr *s = m5_jv_soft_str(rt, v);
    return like(rt, s, m5_ju_str_capitalize(rt, s));
}

static jval f_title(jrt *rt, jval v, jcall *c)
{
    m5_j_bind(rt, "title", c, "", 0, NULL);
    return m5_jv_str(m5_ju_str_title_words(rt, m5_jv_soft_str(rt, v)));
}

static jval f_trim(jrt *rt, jval v, jcall *c)
{
    jval a;
    m5_j_bind(rt, "trim", c, "chars", 0, &a);
    jstr *s = m5_jv_soft_str(rt, v);
    const jstr *chars = a.t == J_MISSING || a.t == J_NONE ? NULL : m5_j_arg_str(rt, "trim", a);
    return like(rt, s, m5_jmethod_strip(rt, s, chars, true, true));
}

static jval f_center(jrt *rt, jval v, jcall *c)
{
    jval a;
    m5_j_bind(rt, "center", c, "width", 0, &a);
    jstr *s = m5_jv_soft_str(rt, v);
    return like(rt, s, m5_jmethod_center(rt, s, a.t == J_MISSING ? 80 : m5_j_arg_int(rt, "center", a), m5_jstr_c(rt, " "), 1));
}

static jval f_string(jrt *rt, jval v, jcall *c)
{
    m5_j_bind(rt, "string", c, "", 0, NULL);
    return m5_jv_str(m5_jv_soft_str(rt, v));
}

static jval f_safe(jrt *rt, jval v, jcall *c)
{
    m5_j_bind(rt, "safe", c, "", 0, NULL);
    return m5_jv_str(m5_jstr_with_safe(rt, m5_jv_soft_str(rt, v), true));
}

static jval f_escape(jrt *rt, jval v, jcall *c)
{
    m5_j_bind(rt, "escape", c, "", 0, NULL);
    return m5_jv_str(m5_jstr_escape(rt, m5_jv_soft_str(rt, v)));
}

static jval f_forceescape(jrt *rt, jval v, jcall *c)
{
    m5_j_bind(rt, "forceescape", c, "", 0, NULL);
    return m5_jv_str(m5_jstr_escape(rt, m5_jv_to_str(rt, v)));
}

static jval f_replace(jrt *rt, jval v, jcall *c)
{
    jval a[3];
    m5_j_bind(rt, "replace", c, "old new count", 2, a);
    int64_t count = a[2].t == J_MISSING || a[2].t == J_NONE ? -1 : m5_j_arg_int(rt, "replace", a[2]);
    return m5_jv_str(m5_jmethod_replace(rt, m5_jv_to_str(rt, v), m5_jv_to_str(rt, a[0]), m5_jv_to_str(rt, a[1]), count));
}

static jval f_indent(jrt *rt, jval v, jcall *c)
{
    jval a[3];
    m5_j_bind(rt, "indent", c, "width first blank", 0, a);
    const jstr *s = m5_j_arg_str(rt, "indent", v), *pad;
    if (a[0].t == J_STR) {
        pad = a[0].u.s;
    } else {
        int64_t n = a[0].t == J_MISSING ? 4 : m5_j_arg_int(rt, "indent", a[0]);
        jmark m = m5_j_begin(rt);
        m5_j_fill(rt, m5_jstr_c(rt, " "), n > 0 ? (size_t)n : 0);
        pad = m5_j_end(rt, m);
    }
    if (s->safe) pad = m5_jstr_escape(rt, pad);
    jstr *with_end = m5_jstr_cat(rt, m5_jstr_with_safe(rt, s, false), m5_jstr_c(rt, "\n"));
    jval lines = m5_jmethod_splitlines(rt, with_end, false);
    bool blank = flag(rt, a[2]);
    jmark m = m5_j_begin(rt);
    if (flag(rt, a[1])) m5_j_put_str(rt, pad);
    for (size_t i = 0; i < lines.u.seq->n; i++) {
        const jstr *line = lines.u.seq->v[i].u.s;
        if (i) m5_j_putc(rt, '\n');
        if (i && (blank || line->n)) m5_j_put_str(rt, pad);
        m5_j_put_str(rt, line);
    }
    return like(rt, s, m5_j_end(rt, m));
}

static jval f_truncate(jrt *rt, jval v, jcall *c)
{
    jval a[4];
    m5_j_bind(rt, "truncate", c, "length killwords end leeway", 0, a);
    jval length = a[0].t == J_MISSING ? m5_jv_int(255) : a[0], leeway = a[3].t == J_MISSING || a[3].t == J_NONE ? m5_jv_int(5) : a[3];
    jval end = a[2].t == J_MISSING ? m5_jv_str(m5_jstr_c(rt, "...")) : a[2];
    int64_t len, end_len;
    if (!m5_jv_len(rt, v, &len) || !m5_jv_len(rt, end, &end_len)) m5_jrt_fail(rt, "truncate wants text");
    if (!m5_jv_order(rt, length, m5_jv_int(end_len), OP_GE)) m5_jrt_fail(rt, "truncate wants a length of at least its end text");
    if (!m5_jv_order(rt, leeway, m5_jv_int(0), OP_GE)) m5_jrt_fail(rt, "truncate wants a leeway of at least 0");
    if (m5_jv_order(rt, m5_jv_int(len), m5_jop_binary(rt, OP_ADD, length, leeway), OP_LE)) return v;
    const jstr *s = m5_j_arg_str(rt, "truncate", v);
    jval cut = m5_jop_slice(rt, v, m5_jv_missing(), m5_jop_binary(rt, OP_SUB, length, m5_jv_int(end_len)), m5_jv_missing());
    if (!flag(rt, a[1])) {
        const jstr *t = m5_jstr_flat(rt, cut.u.s);
        size_t at = m5_jstr_rfind(rt, t, m5_jstr_c(rt, " "), 0, t->n);
        if (at != SIZE_MAX) cut = like(rt, s, m5_jstr_sub(rt, t, 0, at));
    }
    return m5_jop_binary(rt, OP_ADD, cut, end);
}

static jval f_format(jrt *rt, jval v, jcall *c)
{
    const jstr *s = m5_jv_soft_str(rt, v);
    if (c->n && c->n_kw) m5_jrt_fail(rt, "can't handle positional and keyword arguments at the same time");
    if (!c->n_kw) {
        jval args = m5_jv_seq(rt, J_TUPLE, c->n);
        for (size_t i = 0; i < c->n; i++) m5_jseq_push(rt, args.u.seq, c->pos[i]);
        return m5_jformat_percent(rt, s, args);
    }
    jdict *d = m5_jdict_new(rt, c->n_kw);
    for (size_t i = 0; i < c->n_kw; i++) m5_jdict_set(rt, d, m5_jv_str(c->kw[i]), c->kwval[i]);
    return m5_jformat_percent(rt, s, (jval){.t = J_DICT, .u.dict = d});
}

static jval f_striptags(jrt *rt, jval v, jcall *c)
{
    m5_j_bind(rt, "striptags", c, "", 0, NULL);
    jcall none = {0};
    jval markup = m5_jv_str(m5_jstr_with_safe(rt, m5_jv_soft_str(rt, v), true));
    return m5_jop_call(rt, m5_jop_getattr(rt, markup, m5_jstr_c(rt, "striptags")), &none);
}

static jval f_wordcount(jrt *rt, jval v, jcall *c)
{
    m5_j_bind(rt, "wordcount", c, "", 0, NULL);
    const jstr *s = m5_jstr_flat(rt, m5_jv_soft_str(rt, v));
    int64_t n = 0;
    bool in = false;
    m5_j_step(rt, s->n / 32);
    for (size_t i = 0; i < s->n;) {
        bool word = m5_ju_word(m5_jstr_cp(s, &i));
        n += word && !in;
        in = word;
    }
    return m5_jv_int(n);
}

static void put_quoted(jrt *rt, const jstr *s, bool query)
{
    s = m5_jstr_flat(rt, s);
    size_t run = 0;
    for (size_t i = 0; i < s->n; i++) {
        unsigned char b = (unsigned char)s->p[i];
        bool trusted = m5_jstr_trusted_at(s, i, &run);
        bool plain = (b >= '0' && b <= '9') || ((b | 32) >= 'a' && (b | 32) <= 'z') || (b && strchr("_.-~", b)) || (b == '/' && !query);
        char esc[4];
        if (plain) {
            m5_j_put(rt, s->p + i, 1, trusted);
        } else if (b == ' ' && query) {
            m5_j_put(rt, "+", 1, trusted);
        } else {
            snprintf(esc, sizeof esc, "%%%02X", b);
            m5_j_put(rt, esc, 3, trusted);
        }
    }
}

static jval f_urlencode(jrt *rt, jval v, jcall *c)
{
    m5_j_bind(rt, "urlencode", c, "", 0, NULL);
    jmark m = m5_j_begin(rt);
    if (v.t == J_STR || !m5_jv_iterable(v)) {
        put_quoted(rt, m5_jv_soft_str(rt, v), false);
        return m5_jv_str(m5_j_end(rt, m));
    }
    jcall none = {0};
    if (v.t == J_DICT) v = m5_jop_call(rt, m5_jop_getattr(rt, v, m5_jstr_c(rt, "items")), &none);
    jiter *it = m5_jv_iter_of(rt, v);
    jval pair;
    for (bool first = true; m5_jiter_next(rt, it, &pair); first = false) {
        jval kv = m5_jv_list_of(rt, pair, J_LIST);
        if (kv.u.seq->n != 2) m5_jrt_fail(rt, "urlencode wants pairs");
        if (!first) m5_j_putc(rt, '&');
        put_quoted(rt, m5_jv_soft_str(rt, kv.u.seq->v[0]), true);
        m5_j_putc(rt, '=');
        put_quoted(rt, m5_jv_soft_str(rt, kv.u.seq->v[1]), true);
    }
    return m5_jv_str(m5_j_end(rt, m));
}

static jval f_xmlattr(jrt *rt, jval v, jcall *c)
{
    jval a;
    m5_j_bind(rt, "xmlattr", c, "autospace", 0, &a);
    if (v.t == J_UNDEF) m5_jv_undef_fail(rt, v);
    if (v.t != J_DICT) m5_jrt_fail(rt, "'%s' object has no attribute 'items'", m5_jv_type(v));
    jmark m = m5_j_begin(rt);
    bool space = a.t == J_MISSING || m5_jv_truth(rt, a);
    for (size_t i = 0; i < v.u.dict->n; i++) {
        const jentry *e = &v.u.dict->e[i];
        if (e->v.t == J_NONE || e->v.t == J_UNDEF) continue;
        const jstr *k = m5_j_arg_str(rt, "xmlattr", e->k);
        for (size_t n = 0; n < k->n; n++) {
            if (strchr(" \t\n\r\f\v/>=", k->p[n]) && k->p[n]) m5_jrt_fail(rt, "invalid character in attribute name");
        }
        if (space) m5_j_putc(rt, ' ');
        space = true;
        m5_j_put_str(rt, m5_jstr_escape(rt, k));
        m5_j_puts(rt, "=\"");
        m5_j_put_str(rt, m5_jstr_escape(rt, m5_jv_soft_str(rt, e->v)));
        m5_j_putc(rt, '"');
    }
    return m5_jv_str(m5_j_end(rt, m));
}

static jval f_tojson(jrt *rt, jval v, jcall *c)
{
    return m5_jjson_dump(rt, v, c);
}

/* Short values print as repr with sorted keys; the layout of longer ones is not ours to know. */
static jval sorted_copy(jrt *rt, jval v)
{
    m5_j_enter(rt);
    if (v.t == J_LIST || v.t == J_TUPLE) {
        jval r = m5_jv_seq(rt, v.t, v.u.seq->n);
        for (size_t i = 0; i < v.u.seq->n; i++) m5_jseq_push(rt, r.u.seq, sorted_copy(rt, v.u.seq->v[i]));
        v = r;
    } else if (v.t == J_DICT) {
        jstr *name = m5_jstr_c(rt, "dictsort");
        jcall none = {0};
        jval pairs = m5_jfilter_call(rt, m5_jfilter_find(name), name, v, &none);
        jdict *d = m5_jdict_new(rt, v.u.dict->n);
        for (size_t i = 0; i < pairs.u.seq->n; i++) {
            const jseq *kv = pairs.u.seq->v[i].u.seq;
            m5_jdict_set(rt, d, kv->v[0], sorted_copy(rt, kv->v[1]));
        }
        v = (jval){.t = J_DICT, .u.dict = d};
    }
    m5_j_leave(rt);
    return v;
}

static jval f_pprint(jrt *rt, jval v, jcall *c)
{
    m5_j_bind(rt, "pprint", c, "", 0, NULL);
    jmark m = m5_j_begin(rt);
    m5_jv_put_repr(rt, sorted_copy(rt, v));
    jstr *s = m5_j_end(rt, m);
    if (m5_jstr_len(rt, s) > 80) m5_jrt_fail(rt, "pprint of a value longer than one line is not supported");
    return m5_jv_str(s);
}

static jval f_unsupported(jrt *rt, jval v, jcall *c)
{
    (void)v;
    (void)c;
    m5_jrt_fail(rt, "the filters urlize and wordwrap are not supported");
}

/* ---- numbers ---- */

static jval f_abs(jrt *rt, jval v, jcall *c)
{
    m5_j_bind(rt, "abs", c, "", 0, NULL);
    if (v.t == J_UNDEF) m5_jrt_fail(rt, "bad operand type for abs(): 'Undefined'");
    if (!m5_jv_num(v)) m5_jrt_fail(rt, "bad operand type for abs(): '%s'", m5_jv_type(v));
    if (v.t == J_FLOAT) return m5_jv_float(fabs(v.u.d));
    return m5_jint_sign(v) < 0 ? m5_jint_neg(rt, v) : m5_jop_pos(rt, v);
}

static jval f_float(jrt *rt, jval v, jcall *c)
{
    jval a;
    double d;
    m5_j_bind(rt, "float", c, "default", 0, &a);
    if (v.t == J_UNDEF) m5_jv_undef_fail(rt, v);
    if (m5_jv_num(v)) return m5_jv_float(m5_jop_double(rt, v));
    if (v.t == J_STR && m5_jfloat_parse(rt, v.u.s, &d)) return m5_jv_float(d);
    return a.t == J_MISSING ? m5_jv_float(0) : a;
}

static jval f_int(jrt *rt, jval v, jcall *c)
{
    jval a[2], out;
    double d;
    m5_j_bind(rt, "int", c, "default base", 0, a);
    int64_t base = a[1].t == J_MISSING ? 10 : m5_jint_is(a[1]) ? m5_jint_clamp(a[1]) : 1;
    if (v.t == J_UNDEF) m5_jv_undef_fail(rt, v);
    if (m5_jint_is(v)) return m5_jop_pos(rt, v);
    if (v.t == J_FLOAT) {
        if (isinf(v.u.d)) m5_jrt_fail(rt, "cannot convert float infinity to integer");
        if (!isnan(v.u.d)) return m5_jint_from_double(rt, v.u.d);
    }
    if (v.t == J_STR) {
        if (base >= 0 && base <= 36 && m5_jint_from_str(rt, v.u.s, (int)base, &out)) return out;
        if (m5_jfloat_parse(rt, v.u.s, &d) && isfinite(d)) return m5_jint_from_double(rt, d);
    }
    return a[0].t == J_MISSING ? m5_jv_int(0) : a[0];
}

/* Python's round() of a float: half to even on the exact decimal value. */
static double round_digits(double d, int64_t digits)
{
    char text[800];
    if (!isfinite(d) || digits > 330) return d;
    if (digits < -330) return copysign(0.0, d);
    if (digits >= 0) {
        snprintf(text, sizeof text, "%.*f", (int)digits, d);
        return strtod(text, NULL);
    }
    double unit = pow(10, (double)-digits);
    return nearbyint(d / unit) * unit;
}

static jval round_int(jrt *rt, jval v, int64_t digits)
{
    v = m5_jop_pos(rt, v);
    if (digits >= 0) return v;
    if (digits < -J_MAX_INT_DIGITS) return m5_jv_int(0);
    jval unit = m5_jint_pow(rt, m5_jv_int(10), (uint64_t)-digits), q, r, odd, dummy;
    m5_jint_divmod(rt, v, unit, &q, &r);
    m5_jint_divmod(rt, q, m5_jv_int(2), &dummy, &odd);
    int c = m5_jint_cmp(m5_jint_add(rt, r, r), unit);
    if (c > 0 || (c == 0 && m5_jint_sign(odd))) q = m5_jint_add(rt, q, m5_jv_int(1));
    return m5_jint_mul(rt, q, unit);
}

static jval f_round(jrt *rt, jval v, jcall *c)
{
    jval a[2];
    m5_j_bind(rt, "round", c, "precision method", 0, a);
    const char *method = "common";
    if (a[1].t != J_MISSING) {
        if (a[1].t == J_STR && m5_jstr_is(rt, a[1].u.s, "ceil"))
            method = "ceil";
        else if (a[1].t == J_STR && m5_jstr_is(rt, a[1].u.s, "floor"))
            method = "floor";
        else if (a[1].t != J_STR || !m5_jstr_is(rt, a[1].u.s, "common"))
            m5_jrt_fail(rt, "method must be common, ceil or floor");
    }
    if (v.t == J_UNDEF) m5_jv_undef_fail(rt, v);
    if (!m5_jv_num(v)) m5_jrt_fail(rt, "type %s doesn't define __round__ method", m5_jv_type(v));
    if (method[1] == 'o' && method[0] == 'c') {
        if (v.t == J_FLOAT && a[0].t == J_NONE) {
            if (!isfinite(v.u.d)) m5_jrt_fail(rt, "cannot convert float infinity or NaN to integer");
            return m5_jint_from_double(rt, nearbyint(v.u.d));
        }
        int64_t digits = a[0].t == J_MISSING || a[0].t == J_NONE ? 0 : m5_j_arg_int(rt, "round", a[0]);
        return v.t == J_FLOAT ? m5_jv_float(round_digits(v.u.d, digits)) : round_int(rt, v, digits);
    }
    jval unit = m5_jop_binary(rt, OP_POW, m5_jv_int(10), a[0].t == J_MISSING ? m5_jv_int(0) : a[0]);
    jval scaled = m5_jop_binary(rt, OP_MUL, v, unit);
    if (scaled.t == J_FLOAT) {
        if (!isfinite(scaled.u.d)) m5_jrt_fail(rt, "cannot convert float infinity or NaN to integer");
        scaled = m5_jint_from_double(rt, method[0] == 'c' ? ceil(scaled.u.d) : floor(scaled.u.d));
    }
    return m5_jop_binary(rt, OP_DIV, scaled, unit);
}

static jval f_filesizeformat(jrt *rt, jval v, jcall *c)
{
    static const char *const names[2][8] = {{"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"},
                                            {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"}};
    jval a;
    double bytes;
    m5_j_bind(rt, "filesizeformat", c, "binary", 0, &a);
    if (v.t == J_UNDEF) m5_jv_undef_fail(rt, v);
    if (m5_jv_num(v))
        bytes = m5_jop_double(rt, v);
    else if (v.t != J_STR || !m5_jfloat_parse(rt, v.u.s, &bytes))
        m5_jrt_fail(rt, "filesizeformat wants a number, not '%s'", m5_jv_type(v));
    bool binary = flag(rt, a);
    double base = binary ? 1024 : 1000, unit = base;
    jmark m = m5_j_begin(rt);
    if (bytes == 1) {
        m5_j_puts(rt, "1 Byte");
    } else if (bytes < base) {
        m5_j_printf(rt, "%.0f Bytes", trunc(bytes) + 0.0); /* no "-0" */
    } else {
        int i = 0;
        for (unit = base * base; i < 7 && bytes >= unit; i++) unit *= base;
        m5_j_printf(rt, "%.1f %s", base * bytes / unit, names[binary][i]);
    }
    return m5_jv_str(m5_j_end(rt, m));
}

const jfilter m5_jfilters_text[] = {{"tojson", f_tojson},
                                    {"trim", f_trim},
                                    {"string", f_string},
                                    {"safe", f_safe},
                                    {"upper", f_upper},
                                    {"lower", f_lower},
                                    {"indent", f_indent},
                                    {"replace", f_replace},
                                    {"int", f_int},
                                    {"abs", f_abs},
                                    {"capitalize", f_capitalize},
                                    {"center", f_center},
                                    {"e", f_escape},
                                    {"escape", f_escape},
                                    {"filesizeformat", f_filesizeformat},
                                    {"float", f_float},
                                    {"forceescape", f_forceescape},
                                    {"format", f_format},
                                    {"pprint", f_pprint},
                                    {"round", f_round},
                                    {"striptags", f_striptags},
                                    {"title", f_title},
                                    {"truncate", f_truncate},
                                    {"urlencode", f_urlencode},
                                    {"urlize", f_unsupported},
                                    {"wordcount", f_wordcount},
                                    {"wordwrap", f_unsupported},
                                    {"xmlattr", f_xmlattr},
                                    {NULL, NULL}};
