/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of Python's values as templates call them. What would change a list or dict in place is refused, as in Jinja's immutable sandbox. */
#include "text/jinja_internal.h"

#include <math.h>

typedef enum method {
    M_REFUSED,
    M_UNSUPPORTED,
    /* str */
    M_CAPITALIZE,
    M_CASEFOLD,
    M_CENTER,
    M_COUNT,
    M_ENDSWITH,
    M_EXPANDTABS,
    M_FIND,
    M_FORMAT,
    M_FORMAT_MAP,
    M_INDEX,
    M_ISALNUM,
    M_ISALPHA,
    M_ISASCII,
    M_ISDECIMAL,
    M_ISDIGIT,
    M_ISIDENTIFIER,
    M_ISLOWER,
    M_ISNUMERIC,
    M_ISPRINTABLE,
    M_ISSPACE,
    M_ISTITLE,
    M_ISUPPER,
    M_JOIN,
    M_LJUST,
    M_LOWER,
    M_LSTRIP,
    M_PARTITION,
    M_REMOVEPREFIX,
    M_REMOVESUFFIX,
    M_REPLACE,
    M_RFIND,
    M_RINDEX,
    M_RJUST,
    M_RPARTITION,
    M_RSPLIT,
    M_RSTRIP,
    M_SPLIT,
    M_SPLITLINES,
    M_STARTSWITH,
    M_STRIP,
    M_SWAPCASE,
    M_TITLE,
    M_UPPER,
    M_ZFILL,
    M_UNESCAPE,
    M_STRIPTAGS,
    /* list, tuple, range */
    M_SEQ_COPY,
    M_SEQ_COUNT,
    M_SEQ_INDEX,
    /* dict and views */
    M_DICT_COPY,
    M_FROMKEYS,
    M_GET,
    M_ITEMS,
    M_KEYS,
    M_VALUES,
    M_ISDISJOINT,
    /* numbers */
    M_BIT_LENGTH,
    M_BIT_COUNT,
    M_CONJUGATE,
    M_IS_INTEGER
} method;

typedef struct entry {
    const char *name;
    method id;
} entry;
static const entry str_methods[] = {{"split", M_SPLIT},
                                    {"strip", M_STRIP},
                                    {"lstrip", M_LSTRIP},
                                    {"rstrip", M_RSTRIP},
                                    {"startswith", M_STARTSWITH},
                                    {"endswith", M_ENDSWITH},
                                    {"replace", M_REPLACE},
                                    {"upper", M_UPPER},
                                    {"lower", M_LOWER},
                                    {"capitalize", M_CAPITALIZE},
                                    {"casefold", M_CASEFOLD},
                                    {"center", M_CENTER},
                                    {"count", M_COUNT},
                                    {"encode", M_UNSUPPORTED},
                                    {"expandtabs", M_EXPANDTABS},
                                    {"find", M_FIND},
                                    {"format", M_FORMAT},
                                    {"format_map", M_FORMAT_MAP},
                                    {"index", M_INDEX},
                                    {"isalnum", M_ISALNUM},
                                    {"isalpha", M_ISALPHA},
                                    {"isascii", M_ISASCII},
                                    {"isdecimal", M_ISDECIMAL},
                                    {"isdigit", M_ISDIGIT},
                                    {"isidentifier", M_ISIDENTIFIER},
                                    {"islower", M_ISLOWER},
                                    {"isnumeric", M_ISNUMERIC},
                                    {"isprintable", M_ISPRINTABLE},
                                    {"isspace", M_ISSPACE},
                                    {"istitle", M_ISTITLE},
                                    {"isupper", M_ISUPPER},
                                    {"join", M_JOIN},
                                    {"ljust", M_LJUST},
                                    {"maketrans", M_UNSUPPORTED},
                                    {"partition", M_PARTITION},
                                    {"removeprefix", M_REMOVEPREFIX},
                                    {"removesuffix", M_REMOVESUFFIX},
                                    {"rfind", M_RFIND},
                                    {"rindex", M_RINDEX},
                                    {"rjust", M_RJUST},
                                    {"rpartition", M_RPARTITION},
                                    {"rsplit", M_RSPLIT},
                                    {"splitlines", M_SPLITLINES},
                                    {"swapcase", M_SWAPCASE},
                                    {"title", M_TITLE},
                                    {"translate", M_UNSUPPORTED},
                                    {"zfill", M_ZFILL},
                                    {NULL, M_REFUSED}};
static const entry markup_methods[] = {{"escape", M_UNSUPPORTED}, {"striptags", M_STRIPTAGS}, {"unescape", M_UNESCAPE}, {NULL, M_REFUSED}};
static const entry list_methods[] = {{"append", M_REFUSED}, {"clear", M_REFUSED},   {"copy", M_SEQ_COPY},  {"count", M_SEQ_COUNT},
                                     {"extend", M_REFUSED}, {"index", M_SEQ_INDEX}, {"insert", M_REFUSED}, {"pop", M_REFUSED},
                                     {"remove", M_REFUSED}, {"reverse", M_REFUSED}, {"sort", M_REFUSED},   {NULL, M_REFUSED}};
static const entry tuple_methods[] = {{"count", M_SEQ_COUNT}, {"index", M_SEQ_INDEX}, {NULL, M_REFUSED}};
static const entry dict_methods[] = {{"get", M_GET},         {"items", M_ITEMS},        {"keys", M_KEYS},      {"values", M_VALUES},
                                     {"copy", M_DICT_COPY},  {"fromkeys", M_FROMKEYS},  {"clear", M_REFUSED},  {"pop", M_REFUSED},
                                     {"popitem", M_REFUSED}, {"setdefault", M_REFUSED}, {"update", M_REFUSED}, {NULL, M_REFUSED}};
static const entry view_methods[] = {{"isdisjoint", M_ISDISJOINT}, {"mapping", M_UNSUPPORTED}, {NULL, M_REFUSED}};
static const entry int_methods[] = {
    {"bit_length", M_BIT_LENGTH}, {"bit_count", M_BIT_COUNT},    {"conjugate", M_CONJUGATE}, {"as_integer_ratio", M_UNSUPPORTED},
    {"to_bytes", M_UNSUPPORTED},  {"from_bytes", M_UNSUPPORTED}, {NULL, M_REFUSED}};
static const entry float_methods[] = {{"is_integer", M_IS_INTEGER}, {"conjugate", M_CONJUGATE}, {"as_integer_ratio", M_UNSUPPORTED},
                                      {"hex", M_UNSUPPORTED},       {"fromhex", M_UNSUPPORTED}, {NULL, M_REFUSED}};

static const entry *find_in(const entry *e, const jstr *name)
{
    for (; e->name; e++) {
        if (e->name[0] == name->p[0] && strlen(e->name) == name->n && memcmp(e->name, name->p, name->n) == 0) return e;
    }
    return NULL;
}

bool m5_jmethod_find(jval obj, const jstr *name, int *id, const char **cname, bool *unsafe)
{
    if (!name->n) return false;
    const entry *e = NULL;
    switch (obj.t) {
    case J_STR:
        e = find_in(str_methods, name);
        if (!e && obj.u.s->safe) e = find_in(markup_methods, name);
        break;
    case J_LIST: e = find_in(list_methods, name); break;
    case J_TUPLE:
    case J_RANGE: e = find_in(tuple_methods, name); break;
    case J_DICT: e = find_in(dict_methods, name); break;
    case J_VIEW: e = find_in(view_methods, name); break;
    case J_BOOL:
    case J_INT:
    case J_BIG: e = find_in(int_methods, name); break;
    case J_FLOAT: e = find_in(float_methods, name); break;
    default: break;
    }
    if (!e) return false;
    *id = e->id;
    *cname = e->name;
    *unsafe = e->id == M_REFUSED;
    return true;
}

/* ---- pieces used by filters too ---- */

static bool in_set(const jstr *chars, uint32_t c)
{
    if (!chars) return m5_ju_space(c);
    for (size_t i = 0; i < chars->n;) {
        if (m5_jstr_cp(chars, &i) == c) return true;
    }
    return false;
}

jstr *m5_jmethod_strip(jrt *rt, const jstr *s, const jstr *chars, bool left, bool right)
{
    s = m5_jstr_flat(rt, s);
    if (chars) chars = m5_jstr_flat(rt, chars);
    size_t begin = 0, end = s->n;
    uint64_t cost = chars ? chars->n / 8 + 1 : 1;
    while (left && begin < end) {
        size_t at = begin;
        if (!in_set(chars, m5_jstr_cp(s, &at))) break;
        begin = at;
        m5_j_step(rt, cost);
    }
    while (right && end > begin) {
        size_t at = end;
        if (!in_set(chars, m5_jstr_cp_back(s, &at))) break;
        end = at;
        m5_j_step(rt, cost);
    }
    return m5_jstr_sub(rt, s, begin, end);
}

static void push_sub(jrt *rt, jval list, const jstr *s, size_t begin, size_t end)
{
    m5_jseq_push(rt, list.u.seq, m5_jv_str(m5_jstr_sub(rt, s, begin, end)));
}

static jval split_space(jrt *rt, const jstr *s, int64_t max)
{
    jval list = m5_jv_seq(rt, J_LIST, 0);
    size_t i = 0;
    for (;;) {
        size_t at = i;
        while (i < s->n && m5_ju_space(m5_jstr_cp(s, &at))) i = at;
        if (i >= s->n) break;
        if (max >= 0 && (int64_t)list.u.seq->n >= max) {
            push_sub(rt, list, s, i, s->n);
            break;
        }
        size_t begin = i;
        at = i;
        while (i < s->n && !m5_ju_space(m5_jstr_cp(s, &at))) i = at;
        push_sub(rt, list, s, begin, i);
    }
    return list;
}

jval m5_jmethod_split(jrt *rt, const jstr *s, const jstr *sep, int64_t max)
{
    s = m5_jstr_flat(rt, s);
    m5_j_step(rt, s->n / 64);
    if (!sep) return split_space(rt, s, max);
    if (!sep->n) m5_jrt_fail(rt, "empty separator");
    jval list = m5_jv_seq(rt, J_LIST, 0);
    size_t begin = 0;
    while (max < 0 || (int64_t)list.u.seq->n < max) {
        size_t at = m5_jstr_find(rt, s, sep, begin);
        if (at == SIZE_MAX) break;
        push_sub(rt, list, s, begin, at);
        begin = at + sep->n;
    }
    push_sub(rt, list, s, begin, s->n);
    return list;
}

static jval reversed_list(jval list)
{
    jseq *l = list.u.seq;
    for (size_t i = 0; i < l->n / 2; i++) {
        jval t = l->v[i];
        l->v[i] = l->v[l->n - 1 - i];
        l->v[l->n - 1 - i] = t;
    }
    return list;
}

static jval rsplit(jrt *rt, const jstr *s, const jstr *sep, int64_t max)
{
    s = m5_jstr_flat(rt, s);
    if (max < 0) return m5_jmethod_split(rt, s, sep, -1);
    jval list = m5_jv_seq(rt, J_LIST, 0);
    size_t end = s->n;
    if (sep && !sep->n) m5_jrt_fail(rt, "empty separator");
    while (sep && (int64_t)list.u.seq->n < max) {
        size_t at = m5_jstr_rfind(rt, s, sep, 0, end);
        if (at == SIZE_MAX) break;
        push_sub(rt, list, s, at + sep->n, end);
        end = at;
    }
    if (sep) {
        push_sub(rt, list, s, 0, end);
        return reversed_list(list);
    }
    for (;;) {
        size_t at = end;
        while (end > 0 && m5_ju_space(m5_jstr_cp_back(s, &at))) end = at;
        if (!end) break;
        if ((int64_t)list.u.seq->n >= max) {
            push_sub(rt, list, s, 0, end);
            break;
        }
        size_t stop = end;
        at = end;
        while (end > 0 && !m5_ju_space(m5_jstr_cp_back(s, &at))) end = at;
        push_sub(rt, list, s, end, stop);
    }
    return reversed_list(list);
}

static bool line_break(uint32_t c)
{
    return (c >= 10 && c <= 13) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

jval m5_jmethod_splitlines(jrt *rt, const jstr *s, bool keep)
{
    s = m5_jstr_flat(rt, s);
    m5_j_step(rt, s->n / 64);
    jval list = m5_jv_seq(rt, J_LIST, 0);
    size_t begin = 0;
    for (size_t i = 0; i < s->n;) {
        size_t at = i;
        uint32_t c = m5_jstr_cp(s, &i);
        if (!line_break(c)) continue;
        if (c == '\r' && i < s->n && s->p[i] == '\n') i++;
        push_sub(rt, list, s, begin, keep ? i : at);
        begin = i;
    }
    if (begin < s->n) push_sub(rt, list, s, begin, s->n);
    return list;
}

jstr *m5_jmethod_replace(jrt *rt, const jstr *s, const jstr *from, const jstr *to, int64_t count)
{
    s = m5_jstr_flat(rt, s);
    m5_j_step(rt, s->n / 64);
    if (count == 0 || (from->n && m5_jstr_find(rt, s, from, 0) == SIZE_MAX)) return m5_jstr_sub(rt, s, 0, s->n);
    jmark m = m5_j_begin(rt);
    size_t at = 0;
    if (!from->n) { /* an empty pattern matches around every character */
        for (; count != 0; count -= count > 0) {
            m5_j_put_str(rt, to);
            if (at >= s->n) break;
            size_t end = at;
            m5_jstr_cp(s, &end);
            m5_j_put_sub(rt, s, at, end);
            at = end;
            m5_j_step(rt, 1);
        }
    }
    while (from->n && count != 0) {
        size_t hit = m5_jstr_find(rt, s, from, at);
        if (hit == SIZE_MAX) break;
        m5_j_put_sub(rt, s, at, hit);
        m5_j_put_str(rt, to);
        at = hit + from->n;
        count -= count > 0;
    }
    m5_j_put_sub(rt, s, at, s->n);
    return m5_j_end(rt, m);
}

/* left_of_3: 0 = pad right, 1 = pad both, 2 = pad left */
jstr *m5_jmethod_center(jrt *rt, const jstr *s, int64_t width, const jstr *fill, int left_of_3)
{
    int64_t len = m5_jstr_len(rt, s);
    if (width <= len) return m5_jstr_sub(rt, s, 0, s->n);
    int64_t pad = width - len;
    int64_t left = left_of_3 == 0 ? 0 : left_of_3 == 2 ? pad : pad / 2 + (pad & width & 1);
    jmark m = m5_j_begin(rt);
    m5_j_fill(rt, fill, (size_t)left);
    m5_j_put_str(rt, s);
    m5_j_fill(rt, fill, (size_t)(pad - left));
    return m5_j_end(rt, m);
}

/* ---- str ---- */

/* start and end arguments (code points, negative from the end) as byte offsets; false if they cross. */
static bool bounds(jrt *rt, const jstr *s, jval start, jval end, size_t *b, size_t *e)
{
    int64_t len = m5_jstr_len(rt, s), from = 0, to = len;
    if (start.t != J_MISSING && start.t != J_NONE) from = m5_jint_is(start) ? m5_jint_clamp(start) : m5_j_arg_int(rt, "start", start);
    if (end.t != J_MISSING && end.t != J_NONE) to = m5_jint_is(end) ? m5_jint_clamp(end) : m5_j_arg_int(rt, "end", end);
    if (to > len) to = len;
    if (to < 0) to = to < -len ? 0 : to + len;
    if (from < 0) from = from < -len ? 0 : from + len;
    if (from > to) return false;
    *b = m5_jstr_offset(rt, s, from);
    *e = m5_jstr_offset(rt, s, to);
    return true;
}

static int64_t index_of_offset(jrt *rt, const jstr *s, size_t off)
{
    if (m5_jstr_len(rt, s) == (int64_t)s->n) return (int64_t)off;
    int64_t n = 0;
    for (size_t i = 0; i < off; i++) n += ((unsigned char)s->p[i] & 0xC0) != 0x80;
    m5_j_step(rt, off / 64);
    return n;
}

static jval find_method(jrt *rt, const jstr *s, method id, const char *name, const jcall *c)
{
    jval a[3];
    size_t b, e, at = SIZE_MAX;
    m5_j_bind(rt, name, c, "sub start end /", 1, a);
    const jstr *sub = m5_j_arg_str(rt, name, a[0]);
    bool ok = bounds(rt, s, a[1], a[2], &b, &e);
    if (id == M_COUNT) {
        if (!ok) return m5_jv_int(0);
        if (!sub->n) return m5_jv_int(index_of_offset(rt, s, e) - index_of_offset(rt, s, b) + 1);
        int64_t n = 0;
        for (at = b; (at = m5_jstr_find(rt, s, sub, at)) != SIZE_MAX && at + sub->n <= e; at += sub->n) n++;
        return m5_jv_int(n);
    }
    if (ok) {
        at = id == M_FIND || id == M_INDEX ? m5_jstr_find(rt, s, sub, b) : m5_jstr_rfind(rt, s, sub, b, e);
        if (at != SIZE_MAX && at + sub->n > e) at = SIZE_MAX;
    }
    if (at == SIZE_MAX) {
        if (id == M_INDEX || id == M_RINDEX) m5_jrt_fail(rt, "substring not found");
        return m5_jv_int(-1);
    }
    return m5_jv_int(index_of_offset(rt, s, at));
}

static jval affix_method(jrt *rt, const jstr *s, bool end, const char *name, const jcall *c)
{
    jval a[3];
    size_t b, e;
    m5_j_bind(rt, name, c, "prefix start end /", 1, a);
    bool ok = bounds(rt, s, a[1], a[2], &b, &e);
    const jval *list = &a[0];
    size_t n = 1;
    if (a[0].t == J_TUPLE)
        m5_jseq_view(a[0], &list, &n);
    else if (a[0].t != J_STR)
        m5_jrt_fail(rt, "%s first arg must be str or a tuple of str, not %s", name, m5_jv_type(a[0]));
    for (size_t i = 0; i < n; i++) {
        const jstr *x = m5_j_arg_str(rt, name, list[i]);
        if (!ok || x->n > e - b) continue;
        if (!x->n || memcmp(s->p + (end ? e - x->n : b), x->p, x->n) == 0) return m5_jv_bool(true);
    }
    return m5_jv_bool(false);
}

typedef bool (*char_test)(uint32_t c);

static bool is_ascii_char(uint32_t c)
{
    return c < 128;
}

static bool is_printable_char(uint32_t c)
{
    return c == ' ' || m5_ju_printable(c);
}

static bool is_alnum_char(uint32_t c)
{
    return m5_ju_alpha(c) || m5_ju_decimal(c) || m5_ju_digit(c) || m5_ju_numeric(c);
}

static bool all_chars(jrt *rt, const jstr *s, char_test test, bool when_empty)
{
    m5_j_step(rt, s->n / 32);
    for (size_t i = 0; i < s->n;) {
        if (!test(m5_jstr_cp(s, &i))) return false;
    }
    return s->n ? true : when_empty;
}

/* islower, isupper, istitle */
static bool case_test(jrt *rt, const jstr *s, method id)
{
    m5_j_step(rt, s->n / 32);
    bool cased = false, prev = false;
    for (size_t i = 0; i < s->n;) {
        uint32_t c = m5_jstr_cp(s, &i);
        bool up = m5_ju_upper(c) || m5_ju_titlecase(c), low = m5_ju_lower(c);
        if (id == M_ISLOWER && up) return false;
        if (id == M_ISUPPER && (low || m5_ju_titlecase(c))) return false;
        if (id == M_ISTITLE && ((up && prev) || (low && !prev))) return false;
        prev = up || low;
        cased = cased || (id == M_ISLOWER ? low : id == M_ISUPPER ? m5_ju_upper(c) : prev);
    }
    return cased;
}

static bool is_identifier(const jstr *s)
{
    for (size_t i = 0; i < s->n;) {
        bool first = i == 0;
        uint32_t c = m5_jstr_cp(s, &i);
        if (first ? !m5_ju_ident_start(c) : !m5_ju_ident_part(c)) return false;
    }
    return s->n > 0;
}

static bool class_method(jrt *rt, const jstr *s, method id)
{
    switch (id) {
    case M_ISALNUM: return all_chars(rt, s, is_alnum_char, false);
    case M_ISALPHA: return all_chars(rt, s, m5_ju_alpha, false);
    case M_ISASCII: return all_chars(rt, s, is_ascii_char, true);
    case M_ISDECIMAL: return all_chars(rt, s, m5_ju_decimal, false);
    case M_ISDIGIT: return all_chars(rt, s, m5_ju_digit, false);
    case M_ISIDENTIFIER: return is_identifier(s);
    case M_ISNUMERIC: return all_chars(rt, s, m5_ju_numeric, false);
    case M_ISPRINTABLE: return all_chars(rt, s, is_printable_char, true);
    case M_ISSPACE: return all_chars(rt, s, m5_ju_space, false);
    default: return case_test(rt, s, id);
    }
}

static jstr *join_method(jrt *rt, const jstr *s, jval items)
{
    jmark m = m5_j_begin(rt);
    jval item;
    if (!m5_jv_iterable(items)) m5_jrt_fail(rt, "can only join an iterable");
    jiter *it = m5_jv_iter_of(rt, items);
    for (size_t i = 0; m5_jiter_next(rt, it, &item); i++) {
        if (i) m5_j_put_str(rt, s);
        if (s->safe) { /* Markup escapes, and so takes anything */
            m5_j_put_str(rt, m5_jstr_escape(rt, m5_jv_soft_str(rt, item)));
            continue;
        }
        if (item.t != J_STR) m5_jrt_fail(rt, "sequence item %zu: expected str instance, %s found", i, m5_jv_type(item));
        m5_j_put_str(rt, item.u.s);
    }
    return m5_j_end(rt, m);
}

static jval partition(jrt *rt, const jstr *s, const jstr *sep, bool last)
{
    if (!sep->n) m5_jrt_fail(rt, "empty separator");
    jval t = m5_jv_seq(rt, J_TUPLE, 3);
    size_t at = last ? m5_jstr_rfind(rt, s, sep, 0, s->n) : m5_jstr_find(rt, s, sep, 0);
    size_t cut = at == SIZE_MAX ? (last ? 0 : s->n) : at, resume = at == SIZE_MAX ? cut : at + sep->n;
    push_sub(rt, t, s, 0, cut);
    push_sub(rt, t, s, cut, resume);
    push_sub(rt, t, s, resume, s->n);
    return t;
}

static jstr *expandtabs(jrt *rt, const jstr *s, int64_t size)
{
    jmark m = m5_j_begin(rt);
    jstr *space = m5_jstr_c(rt, " ");
    int64_t col = 0;
    for (size_t i = 0; i < s->n;) {
        size_t at = i;
        uint32_t c = m5_jstr_cp(s, &i);
        if (c == '\t') {
            int64_t n = size > 0 ? size - col % size : 0;
            m5_j_fill(rt, space, (size_t)n);
            col += n;
            continue;
        }
        m5_j_put_sub(rt, s, at, i);
        col = c == '\n' || c == '\r' ? 0 : col + 1;
    }
    return m5_j_end(rt, m);
}

static jstr *zfill(jrt *rt, const jstr *s, int64_t width)
{
    int64_t len = m5_jstr_len(rt, s);
    jmark m = m5_j_begin(rt);
    size_t sign = s->n && (s->p[0] == '+' || s->p[0] == '-');
    m5_j_put_sub(rt, s, 0, sign);
    if (width > len) m5_j_fill(rt, m5_jstr_c(rt, "0"), (size_t)(width - len));
    m5_j_put_sub(rt, s, sign, s->n);
    return m5_j_end(rt, m);
}

static jstr *justify(jrt *rt, const jstr *s, method id, const char *name, const jcall *c)
{
    jval a[2];
    m5_j_bind(rt, name, c, "width fillchar /", 1, a);
    const jstr *fill = a[1].t == J_MISSING ? m5_jstr_c(rt, " ") : m5_j_arg_str(rt, name, a[1]);
    if (s->safe) fill = m5_jstr_escape(rt, fill);
    if (m5_jstr_len(rt, fill) != 1) m5_jrt_fail(rt, "the fill character must be exactly one character long");
    return m5_jmethod_center(rt, s, m5_j_arg_int(rt, name, a[0]), fill, id == M_LJUST ? 0 : id == M_CENTER ? 1 : 2);
}

static jval split_method(jrt *rt, const jstr *s, method id, const char *name, const jcall *c)
{
    jval a[2];
    m5_j_bind(rt, name, c, "sep maxsplit", 0, a);
    const jstr *sep = a[0].t == J_MISSING || a[0].t == J_NONE ? NULL : m5_j_arg_str(rt, name, a[0]);
    int64_t max = a[1].t == J_MISSING ? -1 : m5_j_arg_int(rt, name, a[1]);
    return id == M_SPLIT ? m5_jmethod_split(rt, s, sep, max) : rsplit(rt, s, sep, max);
}

static const char *const entities[][2] = {{"amp", "&"}, {"lt", "<"}, {"gt", ">"}, {"quot", "\""}, {"apos", "'"}, {"nbsp", "\xC2\xA0"}};

/* One HTML entity at s->p[i] == '&'; returns its end, or 0. */
static size_t put_entity(jrt *rt, const jstr *s, size_t i, bool trusted)
{
    size_t end = i + 1;
    while (end < s->n && end - i < 12 && s->p[end] != ';' && s->p[end] != '&' && s->p[end] != ' ') end++;
    if (end >= s->n || s->p[end] != ';') return 0;
    const char *p = s->p + i + 1;
    size_t n = end - i - 1;
    if (n > 1 && p[0] == '#') {
        bool hex = p[1] == 'x' || p[1] == 'X';
        jval v;
        int64_t cp;
        if (!m5_jint_parse(rt, p + 1 + hex, n - 1 - hex, hex ? 16 : 10, &v) || !m5_jint_fits(v, &cp) || cp > 0x10FFFF) return 0;
        m5_j_put_cp(rt, (uint32_t)cp, trusted);
        return end + 1;
    }
    for (size_t k = 0; k < sizeof entities / sizeof *entities; k++) {
        if (strlen(entities[k][0]) != n || memcmp(entities[k][0], p, n) != 0) continue;
        m5_j_put(rt, entities[k][1], strlen(entities[k][1]), trusted);
        return end + 1;
    }
    return 0;
}

static jstr *unescape(jrt *rt, const jstr *s)
{
    jmark m = m5_j_begin(rt);
    size_t run = 0;
    for (size_t i = 0; i < s->n;) {
        size_t end = s->p[i] == '&' ? put_entity(rt, s, i, m5_jstr_trusted_at(s, i, &run)) : 0;
        if (!end) {
            end = i + 1;
            while (end < s->n && s->p[end] != '&') end++;
            m5_j_put_sub(rt, s, i, end);
        }
        i = end;
    }
    return m5_j_end(rt, m);
}

static jstr *striptags(jrt *rt, const jstr *s)
{
    jmark m = m5_j_begin(rt);
    jstr *lt = m5_jstr_c(rt, "<"), *gt = m5_jstr_c(rt, ">"), *open = m5_jstr_c(rt, "<!--"), *close = m5_jstr_c(rt, "-->");
    size_t pos = 0, start;
    while ((start = m5_jstr_find(rt, s, lt, pos)) != SIZE_MAX) {
        bool comment = m5_jstr_find(rt, m5_jstr_sub(rt, s, start, s->n), open, 0) == 0;
        size_t end = m5_jstr_find(rt, s, comment ? close : gt, comment ? start + 4 : start);
        if (end == SIZE_MAX) break;
        m5_j_put_sub(rt, s, pos, start);
        pos = end + (comment ? 3 : 1);
    }
    m5_j_put_sub(rt, s, pos, s->n);
    jval words = m5_jmethod_split(rt, m5_j_end(rt, m), NULL, -1);
    return unescape(rt, m5_jstr_flat(rt, join_method(rt, m5_jstr_c(rt, " "), words)));
}

/* Methods of text that take at most one argument of one kind. */
static jval simple_method(jrt *rt, const jstr *s, const jfunc *f, const jcall *c)
{
    jval a[3];
    switch ((method)f->id) {
    case M_JOIN: m5_j_bind(rt, f->name, c, "iterable /", 1, a); return m5_jv_str(join_method(rt, s, a[0]));
    case M_LSTRIP:
    case M_RSTRIP:
    case M_STRIP: {
        m5_j_bind(rt, f->name, c, "chars /", 0, a);
        const jstr *chars = a[0].t == J_MISSING || a[0].t == J_NONE ? NULL : m5_j_arg_str(rt, f->name, a[0]);
        return m5_jv_str(m5_jmethod_strip(rt, s, chars, f->id != M_RSTRIP, f->id != M_LSTRIP));
    }
    case M_PARTITION:
    case M_RPARTITION: m5_j_bind(rt, f->name, c, "sep /", 1, a); return partition(rt, s, m5_j_arg_str(rt, f->name, a[0]), f->id == M_RPARTITION);
    case M_REMOVEPREFIX:
    case M_REMOVESUFFIX: {
        m5_j_bind(rt, f->name, c, "affix /", 1, a);
        const jstr *x = m5_j_arg_str(rt, f->name, a[0]);
        bool front = f->id == M_REMOVEPREFIX;
        bool has = x->n && x->n <= s->n && memcmp(front ? s->p : s->p + s->n - x->n, x->p, x->n) == 0;
        return m5_jv_str(m5_jstr_sub(rt, s, has && front ? x->n : 0, s->n - (has && !front ? x->n : 0)));
    }
    case M_REPLACE: {
        m5_j_bind(rt, f->name, c, "old new count /", 2, a);
        const jstr *from = m5_j_arg_str(rt, f->name, a[0]), *to = m5_j_arg_str(rt, f->name, a[1]);
        int64_t count = a[2].t == J_MISSING ? -1 : m5_j_arg_int(rt, f->name, a[2]);
        return m5_jv_str(m5_jmethod_replace(rt, s, from, s->safe ? m5_jstr_escape(rt, to) : to, count));
    }
    case M_SPLITLINES: m5_j_bind(rt, f->name, c, "keepends", 0, a); return m5_jmethod_splitlines(rt, s, m5_j_arg_flag(rt, f->name, a[0]));
    case M_EXPANDTABS:
        m5_j_bind(rt, f->name, c, "tabsize", 0, a);
        return m5_jv_str(expandtabs(rt, s, a[0].t == J_MISSING ? 8 : m5_j_arg_int(rt, f->name, a[0])));
    case M_ZFILL: m5_j_bind(rt, f->name, c, "width /", 1, a); return m5_jv_str(zfill(rt, s, m5_j_arg_int(rt, f->name, a[0])));
    case M_FORMAT_MAP: m5_j_bind(rt, f->name, c, "mapping /", 1, a); return m5_jformat_braces(rt, s, NULL, a[0]);
    default: break;
    }
    m5_j_bind(rt, f->name, c, "", 0, a);
    switch ((method)f->id) {
    case M_CAPITALIZE: return m5_jv_str(m5_ju_str_capitalize(rt, s));
    case M_CASEFOLD: return m5_jv_str(m5_ju_str_fold(rt, s));
    case M_LOWER: return m5_jv_str(m5_ju_str_lower(rt, s));
    case M_SWAPCASE: return m5_jv_str(m5_ju_str_swapcase(rt, s));
    case M_TITLE: return m5_jv_str(m5_ju_str_title(rt, s));
    case M_UPPER: return m5_jv_str(m5_ju_str_upper(rt, s));
    case M_UNESCAPE: return m5_jv_str(unescape(rt, s));
    case M_STRIPTAGS: return m5_jv_str(striptags(rt, s));
    default: return m5_jv_bool(class_method(rt, s, (method)f->id));
    }
}

static jval str_method(jrt *rt, const jfunc *f, const jcall *c)
{
    const jstr *s = m5_jstr_flat(rt, f->self.u.s);
    jval r;
    switch ((method)f->id) {
    case M_CENTER:
    case M_LJUST:
    case M_RJUST: r = m5_jv_str(justify(rt, s, (method)f->id, f->name, c)); break;
    case M_COUNT:
    case M_FIND:
    case M_INDEX:
    case M_RFIND:
    case M_RINDEX: return find_method(rt, s, (method)f->id, f->name, c);
    case M_STARTSWITH:
    case M_ENDSWITH: return affix_method(rt, s, f->id == M_ENDSWITH, f->name, c);
    case M_FORMAT: return m5_jformat_braces(rt, s, c, m5_jv_missing());
    case M_SPLIT:
    case M_RSPLIT: r = split_method(rt, s, (method)f->id, f->name, c); break;
    default: r = simple_method(rt, s, f, c); break;
    }
    if (!s->safe || f->id == M_UNESCAPE || f->id == M_STRIPTAGS) return r;
    const jval *items;
    size_t n;
    if (r.t == J_STR) return m5_jv_str(m5_jstr_with_safe(rt, r.u.s, true));
    if (!m5_jseq_view(r, &items, &n)) return r;
    for (size_t i = 0; i < n; i++) r.u.seq->v[i] = m5_jv_str(m5_jstr_with_safe(rt, items[i].u.s, true));
    return r;
}

/* ---- the others ---- */

static jval seq_method(jrt *rt, const jfunc *f, const jcall *c)
{
    jval a[3], item;
    if (f->id == M_SEQ_COPY) {
        m5_j_bind(rt, f->name, c, "", 0, a);
        return m5_jv_list_of(rt, f->self, J_LIST);
    }
    m5_j_bind(rt, f->name, c, f->id == M_SEQ_INDEX && f->self.t != J_RANGE ? "value start stop /" : "value /", 1, a);
    int64_t len, n = 0, from = 0, to = INT64_MAX;
    m5_jv_len(rt, f->self, &len);
    if (f->id == M_SEQ_INDEX && f->self.t != J_RANGE) {
        if (a[1].t != J_MISSING) from = m5_j_arg_int(rt, f->name, a[1]);
        if (a[2].t != J_MISSING) to = m5_j_arg_int(rt, f->name, a[2]);
        if (from < 0) from = from < -len ? 0 : from + len;
        if (to < 0) to = to < -len ? 0 : to + len;
    }
    jiter *it = m5_jv_iter_of(rt, f->self);
    for (int64_t i = 0; m5_jiter_next(rt, it, &item); i++) {
        if (i < from || i >= to || !m5_jv_eq(rt, item, a[0])) continue;
        if (f->id == M_SEQ_INDEX) return m5_jv_int(i);
        n++;
    }
    if (f->id == M_SEQ_INDEX) m5_jrt_fail(rt, "the value is not in the %s", m5_jv_type(f->self));
    return m5_jv_int(n);
}

static jval make_view(jrt *rt, const jdict *d, jview_kind kind)
{
    jview *v = m5_j_alloc(rt, sizeof *v);
    *v = (jview){kind, d};
    return (jval){.t = J_VIEW, .u.view = v};
}

static jval dict_method(jrt *rt, const jfunc *f, const jcall *c)
{
    jval a[2], item;
    const jdict *d = f->self.t == J_VIEW ? f->self.u.view->dict : f->self.u.dict;
    if (f->id == M_GET) {
        m5_j_bind(rt, f->name, c, "key default /", 1, a);
        if (m5_jdict_get(rt, d, a[0], &item)) return item;
        return a[1].t == J_MISSING ? m5_jv_none() : a[1];
    }
    if (f->id == M_FROMKEYS) {
        m5_j_bind(rt, f->name, c, "iterable value /", 1, a);
        jdict *made = m5_jdict_new(rt, 0);
        jiter *it = m5_jv_iter_of(rt, a[0]);
        while (m5_jiter_next(rt, it, &item)) m5_jdict_set(rt, made, item, a[1].t == J_MISSING ? m5_jv_none() : a[1]);
        return (jval){.t = J_DICT, .u.dict = made};
    }
    if (f->id == M_ISDISJOINT) {
        m5_j_bind(rt, f->name, c, "other /", 1, a);
        jiter *it = m5_jv_iter_of(rt, a[0]);
        while (m5_jiter_next(rt, it, &item)) {
            if (m5_jv_contains(rt, f->self, item)) return m5_jv_bool(false);
        }
        return m5_jv_bool(true);
    }
    m5_j_bind(rt, f->name, c, "", 0, a);
    switch ((method)f->id) {
    case M_ITEMS: return make_view(rt, d, J_VIEW_ITEMS);
    case M_KEYS: return make_view(rt, d, J_VIEW_KEYS);
    case M_VALUES: return make_view(rt, d, J_VIEW_VALUES);
    default: {
        jdict *copy = m5_jdict_new(rt, d->n);
        for (size_t i = 0; i < d->n; i++) m5_jdict_set(rt, copy, d->e[i].k, d->e[i].v);
        return (jval){.t = J_DICT, .u.dict = copy};
    }
    }
}

static jval number_method(jrt *rt, const jfunc *f, const jcall *c)
{
    m5_j_bind(rt, f->name, c, "", 0, NULL);
    switch ((method)f->id) {
    case M_BIT_LENGTH: return m5_jv_int((int64_t)m5_jint_bits(f->self));
    case M_BIT_COUNT: {
        int64_t v, n = 0;
        if (!m5_jint_fits(f->self, &v)) {
            for (uint32_t i = 0; i < f->self.u.big->n; i++) {
                for (uint32_t x = f->self.u.big->limb[i]; x; x &= x - 1) n++;
            }
            return m5_jv_int(n);
        }
        for (uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v; u; u &= u - 1) n++;
        return m5_jv_int(n);
    }
    case M_IS_INTEGER: return m5_jv_bool(isfinite(f->self.u.d) && f->self.u.d == floor(f->self.u.d));
    default: return m5_jop_pos(rt, f->self);
    }
}

jval m5_jmethod_call(jrt *rt, const jfunc *f, jcall *c)
{
    if (f->id == M_UNSUPPORTED) m5_jrt_fail(rt, "the method '%s' of '%s' is not supported", f->name, m5_jv_type(f->self));
    switch (f->self.t) {
    case J_STR: return str_method(rt, f, c);
    case J_LIST:
    case J_TUPLE:
    case J_RANGE: return seq_method(rt, f, c);
    case J_DICT:
    case J_VIEW: return dict_method(rt, f, c);
    case J_CYCLER: return m5_jglobal_call(rt, f, c);
    case J_LOOP: return m5_jglobal_call(rt, f, c);
    default: return number_method(rt, f, c);
    }
}
