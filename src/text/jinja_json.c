/* SPDX-License-Identifier: Apache-2.0 */
/* The tojson filter as transformers defines it: json.dumps(x, ensure_ascii, indent, separators, sort_keys) with ensure_ascii off unless asked for,
 * and no HTML escaping. */
#include "text/jinja_internal.h"

#include <math.h>
#include <stdio.h>

typedef struct dump {
    jrt *rt;
    bool ascii, sort, pretty;
    const jstr *indent, *item_sep, *key_sep;
} dump;

static void put_text(dump *d, const jstr *s)
{
    jrt *rt = d->rt;
    s = m5_jstr_flat(rt, s);
    m5_j_putc(rt, '"');
    size_t done = 0, run = 0;
    for (size_t i = 0; i < s->n;) {
        unsigned char b = (unsigned char)s->p[i];
        if (b >= 0x20 && b < 0x7F && b != '"' && b != '\\') {
            i++;
            continue;
        }
        if (b >= 0x7F && !d->ascii) {
            i++;
            continue;
        }
        size_t at = i;
        uint32_t c = m5_jstr_cp(s, &i);
        char esc[16];
        static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
        const char *simple = c && c < 128 ? strchr(from, (int)c) : NULL;
        if (simple)
            snprintf(esc, sizeof esc, "\\%c", to[simple - from]);
        else if (c < 0x10000)
            snprintf(esc, sizeof esc, "\\u%04x", (unsigned)c);
        else
            snprintf(esc, sizeof esc, "\\u%04x\\u%04x", (unsigned)(0xD800 + ((c - 0x10000) >> 10)), (unsigned)(0xDC00 + ((c - 0x10000) & 0x3FF)));
        m5_j_put_sub(rt, s, done, at);
        m5_j_put(rt, esc, strlen(esc), m5_jstr_trusted_at(s, at, &run));
        done = i;
    }
    m5_j_put_sub(rt, s, done, s->n);
    m5_j_putc(rt, '"');
    m5_j_step(rt, s->n / 64);
}

static void put_scalar(dump *d, jval v)
{
    jrt *rt = d->rt;
    switch (v.t) {
    case J_NONE: m5_j_puts(rt, "null"); break;
    case J_BOOL: m5_j_puts(rt, v.u.b ? "true" : "false"); break;
    case J_FLOAT:
        if (isnan(v.u.d))
            m5_j_puts(rt, "NaN");
        else if (isinf(v.u.d))
            m5_j_puts(rt, v.u.d > 0 ? "Infinity" : "-Infinity");
        else
            m5_jv_put_float(rt, v.u.d);
        break;
    default: m5_jv_put_repr(rt, v); break;
    }
}

static void new_line(dump *d, int level)
{
    if (!d->pretty) return;
    m5_j_putc(d->rt, '\n');
    m5_j_fill(d->rt, d->indent, (size_t)level);
}

static void put_value(dump *d, jval v, int level);

static void put_key(dump *d, jval k)
{
    if (k.t == J_STR) {
        put_text(d, k.u.s);
    } else if (k.t == J_NONE || m5_jv_num(k)) {
        m5_j_putc(d->rt, '"');
        put_scalar(d, k);
        m5_j_putc(d->rt, '"');
    } else {
        m5_jrt_fail(d->rt, "keys must be str, int, float, bool or None, not %s", m5_jv_type(k));
    }
}

static void put_dict(dump *d, const jdict *dict, int level)
{
    jrt *rt = d->rt;
    if (!dict->n) {
        m5_j_puts(rt, "{}");
        return;
    }
    jval *order = m5_j_array(rt, dict->n, sizeof *order);
    for (size_t i = 0; i < dict->n; i++) order[i] = m5_jv_int((int64_t)i);
    if (d->sort) {
        jval *keys = m5_j_array(rt, dict->n, sizeof *keys);
        for (size_t i = 0; i < dict->n; i++) keys[i] = dict->e[i].k;
        m5_jv_sort(rt, keys, order, dict->n, false);
    }
    m5_j_putc(rt, '{');
    for (size_t i = 0; i < dict->n; i++) {
        if (i) m5_j_put_str(rt, d->item_sep);
        new_line(d, level + 1);
        const jentry *e = &dict->e[order[i].u.i];
        put_key(d, e->k);
        m5_j_put_str(rt, d->key_sep);
        put_value(d, e->v, level + 1);
    }
    new_line(d, level);
    m5_j_putc(rt, '}');
}

static void put_value(dump *d, jval v, int level)
{
    jrt *rt = d->rt;
    m5_j_step(rt, 1);
    m5_j_enter(rt);
    switch (v.t) {
    case J_STR: put_text(d, v.u.s); break;
    case J_NONE:
    case J_BOOL:
    case J_INT:
    case J_BIG:
    case J_FLOAT: put_scalar(d, v); break;
    case J_LIST:
    case J_TUPLE:
        if (!v.u.seq->n) {
            m5_j_puts(rt, "[]");
            break;
        }
        m5_j_putc(rt, '[');
        for (size_t i = 0; i < v.u.seq->n; i++) {
            if (i) m5_j_put_str(rt, d->item_sep);
            new_line(d, level + 1);
            put_value(d, v.u.seq->v[i], level + 1);
        }
        new_line(d, level);
        m5_j_putc(rt, ']');
        break;
    case J_DICT: put_dict(d, v.u.dict, level); break;
    default: m5_jrt_fail(rt, "object of type %s is not JSON serializable", m5_jv_type(v));
    }
    m5_j_leave(rt);
}

jval m5_jjson_dump(jrt *rt, jval v, jcall *c)
{
    jval a[4];
    m5_j_bind(rt, "tojson", c, "ensure_ascii indent separators sort_keys", 0, a);
    dump d = {.rt = rt};
    d.ascii = a[0].t != J_MISSING && m5_jv_truth(rt, a[0]);
    d.sort = a[3].t != J_MISSING && m5_jv_truth(rt, a[3]);
    d.pretty = a[1].t != J_MISSING && a[1].t != J_NONE;
    d.item_sep = m5_jstr_c(rt, d.pretty ? "," : ", ");
    d.key_sep = m5_jstr_c(rt, ": ");
    d.indent = rt->empty;
    if (d.pretty && a[1].t == J_STR) {
        d.indent = a[1].u.s;
    } else if (d.pretty && v.t != J_STR) { /* a lone string is written before the indent is looked at */
        int64_t n = m5_j_arg_int(rt, "tojson indent", a[1]);
        jmark m = m5_j_begin(rt);
        m5_j_fill(rt, m5_jstr_c(rt, " "), n > 0 ? (size_t)n : 0);
        d.indent = m5_j_end(rt, m);
    }
    if (a[2].t != J_MISSING && a[2].t != J_NONE) {
        const jval *items;
        size_t n;
        if (!m5_jseq_view(a[2], &items, &n) || n != 2) m5_jrt_fail(rt, "tojson wants two separators");
        d.item_sep = m5_j_arg_str(rt, "tojson separators", items[0]);
        d.key_sep = m5_j_arg_str(rt, "tojson separators", items[1]);
    }
    jmark m = m5_j_begin(rt);
    put_value(&d, v, 0);
    return m5_jv_str(m5_j_end(rt, m));
}
