/* SPDX-License-Identifier: Apache-2.0 */
/* Filters over text and numbers. */
#include "text/jinja_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static bool flag(jrt *rt, jval v)
{
    return v.t != J_MISSING && jv_truth(rt, v);
}

/* Result of a str method: Markup stays Markup. */
static jval like(jrt *rt, const jstr *model, jstr *s)
{
    return jv_str(jstr_with_safe(rt, s, model->safe));
}

static jval f_upper(jrt *rt, jval v, jcall *c)
{
    j_bind(rt, "upper", c, "", 0, NULL);
    jstr *s = jv_soft_str(rt, v);
    return like(rt, s, ju_str_upper(rt, s));
}

static jval f_lower(jrt *rt, jval v, jcall *c)
{
    j_bind(rt, "lower", c, "", 0, NULL);
    jstr *s = jv_soft_str(rt, v);
    return like(rt, s, ju_str_lower(rt, s));
}

static jval f_capitalize(jrt *rt, jval v, jcall *c)
{
    j_bind(rt, "capitalize", c, "", 0, NULL);
    jstr *s = jv_soft_str(rt, v);
    return like(rt, s, ju_str_capitalize(rt, s));
}

static jval f_title(jrt *rt, jval v, jcall *c)
{
    j_bind(rt, "title", c, "", 0, NULL);
    return jv_str(ju_str_title_words(rt, jv_soft_str(rt, v)));
}

static jval f_trim(jrt *rt, jval v, jcall *c)
{
    jval a;
    j_bind(rt, "trim", c, "chars", 0, &a);
    jstr *s = jv_soft_str(rt, v);
    const jstr *chars = a.t == J_MISSING || a.t == J_NONE ? NULL : j_arg_str(rt, "trim", a);
    return like(rt, s, jmethod_strip(rt, s, chars, true, true));
}

static jval f_center(jrt *rt, jval v, jcall *c)
{
    jval a;
    j_bind(rt, "center", c, "width", 0, &a);
    jstr *s = jv_soft_str(rt, v);
    return like(rt, s, jmethod_center(rt, s, a.t == J_MISSING ? 80 : j_arg_int(rt, "center", a), jstr_c(rt, " "), 1));
}

static jval f_string(jrt *rt, jval v, jcall *c)
{
    j_bind(rt, "string", c, "", 0, NULL);
    return jv_str(jv_soft_str(rt, v));
}

static jval f_safe(jrt *rt, jval v, jcall *c)
{
    j_bind(rt, "safe", c, "", 0, NULL);
    return jv_str(jstr_with_safe(rt, jv_soft_str(rt, v), true));
}

static jval f_escape(jrt *rt, jval v, jcall *c)
{
    j_bind(rt, "escape", c, "", 0, NULL);
    return jv_str(jstr_escape(rt, jv_soft_str(rt, v)));
}

static jval f_forceescape(jrt *rt, jval v, jcall *c)
{
    j_bind(rt, "forceescape", c, "", 0, NULL);
    return jv_str(jstr_escape(rt, jv_to_str(rt, v)));
}

static jval f_replace(jrt *rt, jval v, jcall *c)
{
    jval a[3];
    j_bind(rt, "replace", c, "old new count", 2, a);
    int64_t count = a[2].t == J_MISSING || a[2].t == J_NONE ? -1 : j_arg_int(rt, "replace", a[2]);
    return jv_str(jmethod_replace(rt, jv_to_str(rt, v), jv_to_str(rt, a[0]), jv_to_str(rt, a[1]), count));
}

static jval f_indent(jrt *rt, jval v, jcall *c)
{
    jval a[3];
    j_bind(rt, "indent", c, "width first blank", 0, a);
    const jstr *s = j_arg_str(rt, "indent", v), *pad;
    if (a[0].t == J_STR) {
        pad = a[0].u.s;
    } else {
        int64_t n = a[0].t == J_MISSING ? 4 : j_arg_int(rt, "indent", a[0]);
        jmark m = j_begin(rt);
        j_fill(rt, jstr_c(rt, " "), n > 0 ? (size_t)n : 0);
        pad = j_end(rt, m);
    }
    if (s->safe) pad = jstr_escape(rt, pad);
    jstr *with_end = jstr_cat(rt, jstr_with_safe(rt, s, false), jstr_c(rt, "\n"));
    jval lines = jmethod_splitlines(rt, with_end, false);
    bool blank = flag(rt, a[2]);
    jmark m = j_begin(rt);
    if (flag(rt, a[1])) j_put_str(rt, pad);
    for (size_t i = 0; i < lines.u.seq->n; i++) {
        const jstr *line = lines.u.seq->v[i].u.s;
        if (i) j_putc(rt, '\n');
        if (i && (blank || line->n)) j_put_str(rt, pad);
        j_put_str(rt, line);
    }
    return like(rt, s, j_end(rt, m));
}

static jval f_truncate(jrt *rt, jval v, jcall *c)
{
    jval a[4];
    j_bind(rt, "truncate", c, "length killwords end leeway", 0, a);
    jval length = a[0].t == J_MISSING ? jv_int(255) : a[0], leeway = a[3].t == J_MISSING || a[3].t == J_NONE ? jv_int(5) : a[3];
    jval end = a[2].t == J_MISSING ? jv_str(jstr_c(rt, "...")) : a[2];
    int64_t len, end_len;
    if (!jv_len(rt, v, &len) || !jv_len(rt, end, &end_len)) jrt_fail(rt, "truncate wants text");
    if (!jv_order(rt, length, jv_int(end_len), OP_GE)) jrt_fail(rt, "truncate wants a length of at least its end text");
    if (!jv_order(rt, leeway, jv_int(0), OP_GE)) jrt_fail(rt, "truncate wants a leeway of at least 0");
    if (jv_order(rt, jv_int(len), jop_binary(rt, OP_ADD, length, leeway), OP_LE)) return v;
    const jstr *s = j_arg_str(rt, "truncate", v);
    jval cut = jop_slice(rt, v, jv_missing(), jop_binary(rt, OP_SUB, length, jv_int(end_len)), jv_missing());
    if (!flag(rt, a[1])) {
        const jstr *t = jstr_flat(rt, cut.u.s);
        size_t at = jstr_rfind(rt, t, jstr_c(rt, " "), 0, t->n);
        if (at != SIZE_MAX) cut = like(rt, s, jstr_sub(rt, t, 0, at));
    }
    return jop_binary(rt, OP_ADD, cut, end);
}

static jval f_format(jrt *rt, jval v, jcall *c)
{
    const jstr *s = jv_soft_str(rt, v);
    if (c->n && c->n_kw) jrt_fail(rt, "can't handle positional and keyword arguments at the same time");
    if (!c->n_kw) {
        jval args = jv_seq(rt, J_TUPLE, c->n);
        for (size_t i = 0; i < c->n; i++) jseq_push(rt, args.u.seq, c->pos[i]);
        return jformat_percent(rt, s, args);
    }
    jdict *d = jdict_new(rt, c->n_kw);
    for (size_t i = 0; i < c->n_kw; i++) jdict_set(rt, d, jv_str(c->kw[i]), c->kwval[i]);
    return jformat_percent(rt, s, (jval){.t = J_DICT, .u.dict = d});
}

static jval f_striptags(jrt *rt, jval v, jcall *c)
{
    j_bind(rt, "striptags", c, "", 0, NULL);
    jcall none = {0};
    jval markup = jv_str(jstr_with_safe(rt, jv_soft_str(rt, v), true));
    return jop_call(rt, jop_getattr(rt, markup, jstr_c(rt, "striptags")), &none);
}

static jval f_wordcount(jrt *rt, jval v, jcall *c)
{
    j_bind(rt, "wordcount", c, "", 0, NULL);
    const jstr *s = jstr_flat(rt, jv_soft_str(rt, v));
    int64_t n = 0;
    bool in = false;
    j_step(rt, s->n / 32);
    for (size_t i = 0; i < s->n;) {
        bool word = ju_word(jstr_cp(s, &i));
        n += word && !in;
        in = word;
    }
    return jv_int(n);
}

static void put_quoted(jrt *rt, const jstr *s, bool query)
{
    s = jstr_flat(rt, s);
    size_t run = 0;
    for (size_t i = 0; i < s->n; i++) {
        unsigned char b = (unsigned char)s->p[i];
        bool trusted = jstr_trusted_at(s, i, &run);
        bool plain = (b >= '0' && b <= '9') || ((b | 32) >= 'a' && (b | 32) <= 'z') || (b && strchr("_.-~", b)) || (b == '/' && !query);
        char esc[4];
        if (plain) {
            j_put(rt, s->p + i, 1, trusted);
        } else if (b == ' ' && query) {
            j_put(rt, "+", 1, trusted);
        } else {
            snprintf(esc, sizeof esc, "%%%02X", b);
            j_put(rt, esc, 3, trusted);
        }
    }
}

static jval f_urlencode(jrt *rt, jval v, jcall *c)
{
    j_bind(rt, "urlencode", c, "", 0, NULL);
    jmark m = j_begin(rt);
    if (v.t == J_STR || !jv_iterable(v)) {
        put_quoted(rt, jv_soft_str(rt, v), false);
        return jv_str(j_end(rt, m));
    }
    jcall none = {0};
    if (v.t == J_DICT) v = jop_call(rt, jop_getattr(rt, v, jstr_c(rt, "items")), &none);
    jiter *it = jv_iter_of(rt, v);
    jval pair;
    for (bool first = true; jiter_next(rt, it, &pair); first = false) {
        jval kv = jv_list_of(rt, pair, J_LIST);
        if (kv.u.seq->n != 2) jrt_fail(rt, "urlencode wants pairs");
        if (!first) j_putc(rt, '&');
        put_quoted(rt, jv_soft_str(rt, kv.u.seq->v[0]), true);
        j_putc(rt, '=');
        put_quoted(rt, jv_soft_str(rt, kv.u.seq->v[1]), true);
    }
    return jv_str(j_end(rt, m));
}

static jval f_xmlattr(jrt *rt, jval v, jcall *c)
{
    jval a;
    j_bind(rt, "xmlattr", c, "autospace", 0, &a);
    if (v.t == J_UNDEF) jv_undef_fail(rt, v);
    if (v.t != J_DICT) jrt_fail(rt, "'%s' object has no attribute 'items'", jv_type(v));
    jmark m = j_begin(rt);
    bool space = a.t == J_MISSING || jv_truth(rt, a);
    for (size_t i = 0; i < v.u.dict->n; i++) {
        const jentry *e = &v.u.dict->e[i];
        if (e->v.t == J_NONE || e->v.t == J_UNDEF) continue;
        const jstr *k = j_arg_str(rt, "xmlattr", e->k);
        for (size_t n = 0; n < k->n; n++) {
            if (strchr(" \t\n\r\f\v/>=", k->p[n]) && k->p[n]) jrt_fail(rt, "invalid character in attribute name");
        }
        if (space) j_putc(rt, ' ');
        space = true;
        j_put_str(rt, jstr_escape(rt, k));
        j_puts(rt, "=\"");
        j_put_str(rt, jstr_escape(rt, jv_soft_str(rt, e->v)));
        j_putc(rt, '"');
    }
    return jv_str(j_end(rt, m));
}

static jval f_tojson(jrt *rt, jval v, jcall *c)
{
    return jjson_dump(rt, v, c);
}

/* Short values print as repr with sorted keys; the layout of longer ones is not ours to know. */
static jval sorted_copy(jrt *rt, jval v)
{
    j_enter(rt);
    if (v.t == J_LIST || v.t == J_TUPLE) {
        jval r = jv_seq(rt, v.t, v.u.seq->n);
        for (size_t i = 0; i < v.u.seq->n; i++) jseq_push(rt, r.u.seq, sorted_copy(rt, v.u.seq->v[i]));
        v = r;
    } else if (v.t == J_DICT) {
        jstr *name = jstr_c(rt, "dictsort");
        jcall none = {0};
        jval pairs = jfilter_call(rt, jfilter_find(name), name, v, &none);
        jdict *d = jdict_new(rt, v.u.dict->n);
        for (size_t i = 0; i < pairs.u.seq->n; i++) {
            const jseq *kv = pairs.u.seq->v[i].u.seq;
            jdict_set(rt, d, kv->v[0], sorted_copy(rt, kv->v[1]));
        }
        v = (jval){.t = J_DICT, .u.dict = d};
    }
    j_leave(rt);
    return v;
}

static jval f_pprint(jrt *rt, jval v, jcall *c)
{
    j_bind(rt, "pprint", c, "", 0, NULL);
    jmark m = j_begin(rt);
    jv_put_repr(rt, sorted_copy(rt, v));
    jstr *s = j_end(rt, m);
    if (jstr_len(rt, s) > 80) jrt_fail(rt, "pprint of a value longer than one line is not supported");
    return jv_str(s);
}

static jval f_unsupported(jrt *rt, jval v, jcall *c)
{
    (void)v;
    (void)c;
    jrt_fail(rt, "the filters urlize and wordwrap are not supported");
}

/* ---- numbers ---- */

static jval f_abs(jrt *rt, jval v, jcall *c)
{
    j_bind(rt, "abs", c, "", 0, NULL);
    if (v.t == J_UNDEF) jrt_fail(rt, "bad operand type for abs(): 'Undefined'");
    if (!jv_num(v)) jrt_fail(rt, "bad operand type for abs(): '%s'", jv_type(v));
    if (v.t == J_FLOAT) return jv_float(fabs(v.u.d));
    return jint_sign(v) < 0 ? jint_neg(rt, v) : jop_pos(rt, v);
}

static jval f_float(jrt *rt, jval v, jcall *c)
{
    jval a;
    double d;
    j_bind(rt, "float", c, "default", 0, &a);
    if (v.t == J_UNDEF) jv_undef_fail(rt, v);
    if (jv_num(v)) return jv_float(jop_double(rt, v));
    if (v.t == J_STR && jfloat_parse(rt, v.u.s, &d)) return jv_float(d);
    return a.t == J_MISSING ? jv_float(0) : a;
}

static jval f_int(jrt *rt, jval v, jcall *c)
{
    jval a[2], out;
    double d;
    j_bind(rt, "int", c, "default base", 0, a);
    int64_t base = a[1].t == J_MISSING ? 10 : jint_is(a[1]) ? jint_clamp(a[1]) : 1;
    if (v.t == J_UNDEF) jv_undef_fail(rt, v);
    if (jint_is(v)) return jop_pos(rt, v);
    if (v.t == J_FLOAT) {
        if (isinf(v.u.d)) jrt_fail(rt, "cannot convert float infinity to integer");
        if (!isnan(v.u.d)) return jint_from_double(rt, v.u.d);
    }
    if (v.t == J_STR) {
        if (base >= 0 && base <= 36 && jint_from_str(rt, v.u.s, (int)base, &out)) return out;
        if (jfloat_parse(rt, v.u.s, &d) && isfinite(d)) return jint_from_double(rt, d);
    }
    return a[0].t == J_MISSING ? jv_int(0) : a[0];
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
    v = jop_pos(rt, v);
    if (digits >= 0) return v;
    if (digits < -J_MAX_INT_DIGITS) return jv_int(0);
    jval unit = jint_pow(rt, jv_int(10), (uint64_t)-digits), q, r, odd, dummy;
    jint_divmod(rt, v, unit, &q, &r);
    jint_divmod(rt, q, jv_int(2), &dummy, &odd);
    int c = jint_cmp(jint_add(rt, r, r), unit);
    if (c > 0 || (c == 0 && jint_sign(odd))) q = jint_add(rt, q, jv_int(1));
    return jint_mul(rt, q, unit);
}

static jval f_round(jrt *rt, jval v, jcall *c)
{
    jval a[2];
    j_bind(rt, "round", c, "precision method", 0, a);
    const char *method = "common";
    if (a[1].t != J_MISSING) {
        if (a[1].t == J_STR && jstr_is(rt, a[1].u.s, "ceil"))
            method = "ceil";
        else if (a[1].t == J_STR && jstr_is(rt, a[1].u.s, "floor"))
            method = "floor";
        else if (a[1].t != J_STR || !jstr_is(rt, a[1].u.s, "common"))
            jrt_fail(rt, "method must be common, ceil or floor");
    }
    if (v.t == J_UNDEF) jv_undef_fail(rt, v);
    if (!jv_num(v)) jrt_fail(rt, "type %s doesn't define __round__ method", jv_type(v));
    if (method[1] == 'o' && method[0] == 'c') {
        if (v.t == J_FLOAT && a[0].t == J_NONE) {
            if (!isfinite(v.u.d)) jrt_fail(rt, "cannot convert float infinity or NaN to integer");
            return jint_from_double(rt, nearbyint(v.u.d));
        }
        int64_t digits = a[0].t == J_MISSING || a[0].t == J_NONE ? 0 : j_arg_int(rt, "round", a[0]);
        return v.t == J_FLOAT ? jv_float(round_digits(v.u.d, digits)) : round_int(rt, v, digits);
    }
    jval unit = jop_binary(rt, OP_POW, jv_int(10), a[0].t == J_MISSING ? jv_int(0) : a[0]);
    jval scaled = jop_binary(rt, OP_MUL, v, unit);
    if (scaled.t == J_FLOAT) {
        if (!isfinite(scaled.u.d)) jrt_fail(rt, "cannot convert float infinity or NaN to integer");
        scaled = jint_from_double(rt, method[0] == 'c' ? ceil(scaled.u.d) : floor(scaled.u.d));
    }
    return jop_binary(rt, OP_DIV, scaled, unit);
}

static jval f_filesizeformat(jrt *rt, jval v, jcall *c)
{
    static const char *const names[2][8] = {{"kB", "MB", "GB", "TB", "PB", "EB", "ZB", "YB"},
                                            {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB"}};
    jval a;
    double bytes;
    j_bind(rt, "filesizeformat", c, "binary", 0, &a);
    if (v.t == J_UNDEF) jv_undef_fail(rt, v);
    if (jv_num(v))
        bytes = jop_double(rt, v);
    else if (v.t != J_STR || !jfloat_parse(rt, v.u.s, &bytes))
        jrt_fail(rt, "filesizeformat wants a number, not '%s'", jv_type(v));
    bool binary = flag(rt, a);
    double base = binary ? 1024 : 1000, unit = base;
    jmark m = j_begin(rt);
    if (bytes == 1) {
        j_puts(rt, "1 Byte");
    } else if (bytes < base) {
        j_printf(rt, "%.0f Bytes", trunc(bytes) + 0.0); /* no "-0" */
    } else {
        int i = 0;
        for (unit = base * base; i < 7 && bytes >= unit; i++) unit *= base;
        j_printf(rt, "%.1f %s", base * bytes / unit, names[binary][i]);
    }
    return jv_str(j_end(rt, m));
}

const jfilter jfilters_text[] = {{"tojson", f_tojson},
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
