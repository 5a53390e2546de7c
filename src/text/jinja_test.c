/* SPDX-License-Identifier: Apache-2.0 */
/* The tests of `is`, and of select and reject by name. */
#include "text/jinja_internal.h"

typedef enum test_id {
    TEST_BOOLEAN,
    TEST_CALLABLE,
    TEST_DEFINED,
    TEST_DIVISIBLEBY,
    TEST_EQ,
    TEST_ESCAPED,
    TEST_EVEN,
    TEST_FALSE,
    TEST_FILTER,
    TEST_FLOAT,
    TEST_GE,
    TEST_GT,
    TEST_IN,
    TEST_INTEGER,
    TEST_ITERABLE,
    TEST_LE,
    TEST_LOWER,
    TEST_LT,
    TEST_MAPPING,
    TEST_NE,
    TEST_NONE,
    TEST_NUMBER,
    TEST_ODD,
    TEST_SAMEAS,
    TEST_SEQUENCE,
    TEST_STRING,
    TEST_TEST,
    TEST_TRUE,
    TEST_UNDEFINED,
    TEST_UPPER
} test_id;

static const struct {
    const char *name;
    test_id id;
} tests[] = {{"defined", TEST_DEFINED},
             {"string", TEST_STRING},
             {"none", TEST_NONE},
             {"mapping", TEST_MAPPING},
             {"iterable", TEST_ITERABLE},
             {"sequence", TEST_SEQUENCE},
             {"undefined", TEST_UNDEFINED},
             {"boolean", TEST_BOOLEAN},
             {"true", TEST_TRUE},
             {"false", TEST_FALSE},
             {"callable", TEST_CALLABLE},
             {"divisibleby", TEST_DIVISIBLEBY},
             {"eq", TEST_EQ},
             {"equalto", TEST_EQ},
             {"==", TEST_EQ},
             {"escaped", TEST_ESCAPED},
             {"even", TEST_EVEN},
             {"odd", TEST_ODD},
             {"filter", TEST_FILTER},
             {"float", TEST_FLOAT},
             {"ge", TEST_GE},
             {">=", TEST_GE},
             {"gt", TEST_GT},
             {"greaterthan", TEST_GT},
             {">", TEST_GT},
             {"in", TEST_IN},
             {"integer", TEST_INTEGER},
             {"le", TEST_LE},
             {"<=", TEST_LE},
             {"lower", TEST_LOWER},
             {"lt", TEST_LT},
             {"lessthan", TEST_LT},
             {"<", TEST_LT},
             {"ne", TEST_NE},
             {"!=", TEST_NE},
             {"number", TEST_NUMBER},
             {"sameas", TEST_SAMEAS},
             {"test", TEST_TEST},
             {"upper", TEST_UPPER}};

int m5_jtest_find(const jstr *name)
{
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
        if (strlen(tests[i].name) == name->n && memcmp(tests[i].name, name->p, name->n) == 0) return (int)i;
    }
    return -1;
}

static bool remainder_is(jrt *rt, jval v, jval by, int64_t want)
{
    return m5_jv_eq(rt, m5_jop_binary(rt, OP_MOD, v, by), m5_jv_int(want));
}

/* islower / isupper of str(v) */
static bool case_is(jrt *rt, jval v, bool upper)
{
    static const char *const names[] = {"islower", "isupper"};
    jval method = m5_jop_getattr(rt, m5_jv_str(m5_jv_to_str(rt, v)), m5_jstr_c(rt, names[upper]));
    jcall none = {0};
    return m5_jop_call(rt, method, &none).u.b;
}

static bool unary(jrt *rt, test_id id, jval v)
{
    switch (id) {
    case TEST_BOOLEAN: return v.t == J_BOOL;
    case TEST_CALLABLE: return m5_jv_callable(v);
    case TEST_DEFINED: return v.t != J_UNDEF;
    case TEST_ESCAPED: return v.t == J_STR && v.u.s->safe;
    case TEST_EVEN: return remainder_is(rt, v, m5_jv_int(2), 0);
    case TEST_FALSE: return v.t == J_BOOL && !v.u.b;
    case TEST_FILTER:
    case TEST_TEST:
        if (!m5_jv_hashable(rt, v)) m5_jrt_fail(rt, "unhashable type: '%s'", m5_jv_type(v));
        if (v.t != J_STR) return false;
        m5_jstr_flat(rt, v.u.s);
        return (id == TEST_FILTER ? m5_jfilter_find(v.u.s) : m5_jtest_find(v.u.s)) >= 0;
    case TEST_FLOAT: return v.t == J_FLOAT;
    case TEST_INTEGER: return v.t == J_INT || v.t == J_BIG;
    case TEST_ITERABLE: return m5_jv_iterable(v);
    case TEST_LOWER:
    case TEST_UPPER: return case_is(rt, v, id == TEST_UPPER);
    case TEST_MAPPING: return v.t == J_DICT;
    case TEST_NONE: return v.t == J_NONE;
    case TEST_NUMBER: return m5_jv_num(v);
    case TEST_ODD: return remainder_is(rt, v, m5_jv_int(2), 1);
    case TEST_SEQUENCE: return v.t == J_STR || v.t == J_LIST || v.t == J_TUPLE || v.t == J_DICT || v.t == J_RANGE || v.t == J_UNDEF;
    case TEST_STRING: return v.t == J_STR;
    case TEST_TRUE: return v.t == J_BOOL && v.u.b;
    default: return v.t == J_UNDEF;
    }
}

jval m5_jtest_call(jrt *rt, int id, const jstr *name, jval v, jcall *c)
{
    if (id < 0) m5_jrt_fail(rt, "no test named '%.*s'", name->n > 60 ? 60 : (int)name->n, m5_jstr_flat(rt, name)->p);
    test_id t = tests[id].id;
    jval a;
    switch (t) {
    case TEST_EQ:
    case TEST_NE:
    case TEST_LT:
    case TEST_LE:
    case TEST_GT:
    case TEST_GE: {
        static const jop ops[] = {[TEST_EQ] = OP_EQ, [TEST_NE] = OP_NE, [TEST_LT] = OP_LT, [TEST_LE] = OP_LE, [TEST_GT] = OP_GT, [TEST_GE] = OP_GE};
        m5_j_bind(rt, tests[id].name, c, "other /", 1, &a);
        return m5_jv_bool(m5_jop_compare(rt, ops[t], v, a));
    }
    case TEST_IN: m5_j_bind(rt, "in", c, "seq", 1, &a); return m5_jv_bool(m5_jv_contains(rt, a, v));
    case TEST_SAMEAS: m5_j_bind(rt, "sameas", c, "other", 1, &a); return m5_jv_bool(m5_jv_same(v, a));
    case TEST_DIVISIBLEBY: m5_j_bind(rt, "divisibleby", c, "num", 1, &a); return m5_jv_bool(remainder_is(rt, v, a, 0));
    default: m5_j_bind(rt, tests[id].name, c, "", 0, NULL); return m5_jv_bool(unary(rt, t, v));
    }
}
