/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the Jinja interpreter: what its files share. Not for other rooms (they use text/chat.h).
 *
 *   jinja_lex    source text -> tokens            jinja_rt      memory, errors, limits, the text under construction
 *   jinja_parse  tokens -> tree                   jinja_uni     Unicode classes and case of code points
 *   jinja_bind   names -> (frame, slot)           jinja_str     strings with their trust runs, UTF-8 positions
 *   jinja_eval   tree + variables -> text         jinja_int     integers beyond 64 bits
 *   jinja        public calls                     jinja_value   equality, order, repr, dicts, iteration
 *   jinja_ops    operators, attributes, slices    jinja_method  methods of strings, lists, dicts; jinja_global  range, namespace, loop ...
 *   jinja_filter*, jinja_test, jinja_format (%, format(), strftime), jinja_json (tojson)
 *
 * Errors: any function here may leave through m5_jrt_fail(), a longjmp to the public call that started the compilation or the
 * rendering. Nothing needs releasing on the way: all memory is the arena's or hangs on the jrt, and the public call frees both.
 * The semantics are those of Jinja2 3.1 in an immutable sandbox; comments name the rule where it surprises. */
#ifndef M5_TEXT_JINJA_INTERNAL_H
#define M5_TEXT_JINJA_INTERNAL_H

#include "base/mem.h"
#include "text/chat.h"

#include <setjmp.h>
#include <string.h>

#define JNORETURN __attribute__((noreturn))
/* For functions with large frames that a recursion passes by: inlining would put those frames on every level. */
#define JNOINLINE __attribute__((noinline))

enum {
    J_MAX_EXPR_DEPTH = 250,  /* of a template's expression tree */
    J_MAX_BLOCK_DEPTH = 90,  /* of nested statements */
    J_MAX_EVAL_DEPTH = 1200, /* nested evaluations over all macro calls */
    J_MAX_MACRO_DEPTH = 180, /* Python's own recursion limit stops the reference near here */
    J_MAX_VALUE_DEPTH = 320, /* nesting of a value that is printed, compared or hashed */
    J_MAX_INT_BITS = 65536,
    J_MAX_INT_DIGITS = 4300, /* Python refuses longer decimal texts */
    J_MAX_RANGE = 100000,    /* Jinja's sandbox: MAX_RANGE */
    J_MAX_SOURCE_BYTES = 4 << 20
};

/* ---- values ---- */
typedef enum jtype {
    J_MISSING, /* no value at all: an unset slot or argument; never visible to a template */
    J_UNDEF,
    J_NONE,
    J_BOOL,
    J_INT,
    J_BIG,
    J_FLOAT,
    J_STR,
    J_LIST,
    J_TUPLE,
    J_DICT,
    J_NS,
    J_RANGE,
    J_VIEW,
    J_ITER,
    J_FUNC,
    J_MACRO,
    J_LOOP,
    J_CYCLER,
    J_JOINER
} jtype;

typedef struct jstr jstr;
typedef struct jbig jbig;
typedef struct jseq jseq;
typedef struct jdict jdict;
typedef struct jundef jundef;
typedef struct jrange jrange;
typedef struct jview jview;
typedef struct jiter jiter;
typedef struct jfunc jfunc;
typedef struct jmacro jmacro;
typedef struct jloop jloop;
typedef struct jcycler jcycler;
typedef struct jjoiner jjoiner;

typedef struct jval {
    jtype t;
    union {
        bool b;
        int64_t i;
        double d;
        jstr *s;
        const jbig *big;
        jseq *seq;   /* list, tuple */
        jdict *dict; /* dict, namespace */
        const jundef *u;
        const jrange *range;
        const jview *view;
        jiter *it;
        const jfunc *fn;
        const jmacro *macro;
        jloop *loop;
        jcycler *cyc;
        jjoiner *join;
        const void *ptr; /* identity of whatever it is */
    } u;
} jval;

/* Where bytes come from. A run list covers the string; neighbours differ in trust. */
typedef enum jtrust { J_TRUSTED, J_UNTRUSTED, J_MIXED } jtrust;
typedef struct jrun {
    size_t end;
    bool trusted;
} jrun;

/* Text. A concatenation stays a pair (p NULL, l and r set) until its bytes are wanted, so that building a long prompt piece by piece costs its length
 * once, not its square. */
struct jstr {
    const char *p;
    size_t n;
    int64_t n_cp; /* code points; -1 = not counted yet */
    jtrust trust;
    bool safe; /* Markup */
    bool hashed;
    uint64_t hash;
    const jrun *runs; /* if J_MIXED and flat */
    size_t n_runs;
    const jstr *l, *r;
};
struct jseq {
    jval *v;
    size_t n, cap;
    bool group; /* a pair of groupby: .grouper and .list */
};
typedef struct jentry {
    jval k, v;
    uint64_t hash;
} jentry;
struct jdict {
    jentry *e; /* in order of insertion */
    size_t n, cap;
    uint32_t *index; /* entry + 1, 0 = free; NULL while small */
    size_t n_index;
};
struct jundef {
    const char *text; /* the whole message, or NULL: made of the other two */
    const jstr *name;
    const char *owner; /* NULL: a variable */
};
struct jrange {
    int64_t start, stop, step, n;
};
typedef enum jview_kind { J_VIEW_KEYS, J_VIEW_VALUES, J_VIEW_ITEMS } jview_kind;
struct jview {
    jview_kind kind;
    const jdict *dict;
};
struct jbig {
    bool neg;
    uint32_t n;      /* limbs, no leading zero */
    uint32_t limb[]; /* little endian; |value| >= 2^63 or it would be J_INT */
};
/* A builtin: a global or a method bound to self. */
struct jfunc {
    int id;
    const char *name;
    jval self;
};
struct jcycler {
    const jval *v;
    size_t n, pos;
};
struct jjoiner {
    jval sep;
    bool used;
};

/* ---- tree ---- */
typedef enum jkind {
    E_CONST,
    E_NAME,
    E_NSREF, /* ns.attr as an assignment target */
    E_LIST,
    E_TUPLE,
    E_DICT, /* items: key, value, key, value ... */
    E_GETATTR,
    E_GETITEM,
    E_SLICE, /* only inside E_GETITEM */
    E_CALL,
    E_FILTER,
    E_TEST,
    E_BIN,
    E_AND,
    E_OR,
    E_NOT,
    E_NEG,
    E_POS,
    E_CONCAT,
    E_COMPARE, /* a, then items[i] with ops[i] */
    E_COND,    /* a if b else c (c may be NULL) */
    S_DATA,
    S_PRINT, /* a */
    S_IF,    /* a, body, items = S_IF of the elifs, other */
    S_FOR,
    S_SET,
    S_SET_BLOCK,
    S_MACRO,
    S_CALL,
    S_FILTER,
    S_WITH,
    S_BLOCK,
    S_SCOPE,     /* body in its own scope: autoescape (a) and generation */
    S_NO_LOADER, /* include, import, extends: there is nothing to load from */
    S_BREAK,
    S_CONTINUE
} jkind;

typedef enum jop { OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD, OP_POW, OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE, OP_IN, OP_NOT_IN } jop;

typedef struct jnode jnode;
typedef struct jnodes {
    jnode **v;
    size_t n, cap;
} jnodes;
typedef struct jargs {
    jnodes pos;
    jstr **kw;
    jnodes kwval;
    jnode *dyn, *dynkw;
} jargs;

/* One assignment made when a scope is entered (see jinja_bind.c). */
typedef enum jload_kind { LOAD_PARAM, LOAD_RESOLVE, LOAD_ALIAS, LOAD_UNDEF } jload_kind;
typedef struct jslotref {
    uint16_t up; /* frames outward */
    uint16_t slot;
} jslotref;
typedef struct jload {
    jload_kind kind;
    uint16_t slot;
    jslotref from; /* alias */
    jstr *name;    /* resolve */
} jload;
typedef struct jloads {
    jload *v;
    size_t n;
} jloads;
/* Body of a function of its own: the template, a macro, a call block, a named block, a recursive loop, a loop's filter. */
typedef struct jfn {
    size_t n_slots;
    jloads loads;
} jfn;

struct jnode {
    uint8_t kind;
    uint8_t op;
    uint16_t depth;
    uint32_t line;
    jstr *name;   /* name, attribute, filter, test, macro, block */
    int id;       /* filter or test number, -1 = unknown */
    jslotref ref; /* E_NAME, E_NSREF, macro name */
    jval val;     /* E_CONST, S_DATA */
    jnode *a, *b, *c;
    jnodes items;
    const uint8_t *ops;
    jargs args;
    jnodes body, other; /* statements */
    bool store;         /* E_NAME, E_TUPLE: a target */
    bool top;           /* S_SET, S_SET_BLOCK, S_MACRO at top level: also a context variable */
    bool recursive, extended, scoped;
    jfn *fn;      /* S_MACRO, S_CALL, S_BLOCK, recursive S_FOR */
    jfn *test_fn; /* S_FOR with a filter */
    jloads loads, else_loads;
    jnodes params, defaults;                    /* S_MACRO, S_CALL */
    jslotref loop_ref;                          /* S_FOR */
    int caller_slot, kwargs_slot, varargs_slot; /* macro bodies; -1 = not used */
    const jload *exports;                       /* S_BLOCK scoped: visible variables */
    size_t n_exports;
};

typedef struct jframe jframe;
struct jframe {
    jframe *parent;
    jval *slots;
};
struct jmacro {
    const jnode *node; /* S_MACRO or S_CALL */
    jframe *frame;     /* where it was defined */
};
struct jloop {
    jiter *it;
    jval items;        /* what the loop runs over, if that has a length; else J_MISSING */
    int64_t known_len; /* -1 = not asked for yet */
    int64_t index0;
    jval before, current, after; /* after: J_MISSING = not peeked */
    jval changed;
    const jnode *recursive;
    jframe *frame;
    int64_t depth0;
};

struct m5_jinja {
    m5_arena arena;
    char *name;
    jnodes body;
    jfn *root;
    jnodes blocks;
};

/* ---- run time ---- */
typedef struct jrt {
    m5_arena arena;
    jmp_buf fail;
    m5_error *err;
    int code;
    const char *name;
    uint32_t line;
    uint64_t steps;
    size_t max_bytes;
    int eval_depth, macro_depth, value_depth;
    m5_buf out; /* text under construction; captures nest on top of each other */
    jrun *runs;
    size_t n_runs, cap_runs, run0;
    const m5_jinja *tmpl;
    const m5_json *vars_json;
    jdict *vars;    /* given variables */
    jdict *context; /* variables set at top level, for named blocks */
    jdict *overlay; /* what a scoped block sees */
    int64_t now_unix;
    jstr *empty;
} jrt;

/* jinja_rt.c */
void *m5_j_alloc(jrt *rt, size_t bytes);
void *m5_j_array(jrt *rt, size_t n, size_t size); /* checked n * size */
void m5_j_init(jrt *rt, m5_error *err, const char *name, size_t max_bytes, uint64_t max_steps);
void m5_j_deinit(jrt *rt);
void m5_jrt_fail(jrt *rt, const char *fmt, ...) __attribute__((format(printf, 2, 3))) JNORETURN;
void m5_jrt_fail_code(jrt *rt, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4))) JNORETURN;
void m5_jrt_fail_text(jrt *rt, m5_slice text) JNORETURN;
void m5_j_step(jrt *rt, uint64_t n);
void m5_j_deeper(jrt *rt); /* nesting of evaluation; undone by rt->eval_depth-- */
void m5_j_enter(jrt *rt);  /* value nesting */
void m5_j_leave(jrt *rt);

/* Text under construction. begin/end nest like brackets; what lies between goes to the innermost one. */
typedef struct jmark {
    size_t n, run0;
} jmark;
jmark m5_j_begin(jrt *rt);
jstr *m5_j_end(jrt *rt, jmark m);
void m5_j_put(jrt *rt, const char *p, size_t n, bool trusted);
void m5_j_puts(jrt *rt, const char *s); /* our own text: trusted */
void m5_j_putc(jrt *rt, char c);
void m5_j_printf(jrt *rt, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void m5_j_put_cp(jrt *rt, uint32_t cp, bool trusted);
void m5_j_put_str(jrt *rt, const jstr *s);
void m5_j_put_sub(jrt *rt, const jstr *s, size_t begin, size_t end);
void m5_j_fill(jrt *rt, const jstr *unit, size_t count);

/* jinja_str.c */
jstr *m5_jstr_new(jrt *rt, const char *p, size_t n, bool trusted);   /* copies */
jstr *m5_jstr_view(jrt *rt, const char *p, size_t n, bool trusted);  /* borrows */
jstr *m5_jstr_c(jrt *rt, const char *s);                             /* borrows a literal */
jstr *m5_jstr_sub(jrt *rt, const jstr *s, size_t begin, size_t end); /* bytes; keeps no Markup */
jstr *m5_jstr_cat(jrt *rt, const jstr *a, const jstr *b);
jstr *m5_jstr_with_safe(jrt *rt, const jstr *s, bool safe);
const jstr *m5_jstr_flat(jrt *rt, const jstr *s);
int64_t m5_jstr_len(jrt *rt, const jstr *s);                     /* code points */
size_t m5_jstr_offset(jrt *rt, const jstr *s, int64_t cp);       /* byte offset of code point cp (0..len) */
bool m5_jstr_trusted_at(const jstr *s, size_t off, size_t *run); /* *run: cursor, start with 0, offsets must not go back */
bool m5_jstr_eq(jrt *rt, const jstr *a, const jstr *b);
int m5_jstr_cmp(jrt *rt, const jstr *a, const jstr *b);
uint64_t m5_jstr_hash(jrt *rt, const jstr *s);
bool m5_jstr_is(jrt *rt, const jstr *s, const char *lit);
size_t m5_jstr_find(jrt *rt, const jstr *hay, const jstr *needle, size_t from); /* bytes; SIZE_MAX = none */
size_t m5_jstr_rfind(jrt *rt, const jstr *hay, const jstr *needle, size_t begin, size_t end);
jstr *m5_jstr_escape(jrt *rt, const jstr *s);         /* HTML; result is Markup; Markup stays as it is */
uint32_t m5_jstr_cp(const jstr *s, size_t *off);      /* decodes and steps */
uint32_t m5_jstr_cp_back(const jstr *s, size_t *off); /* steps back and decodes */

/* jinja_uni.c */
bool m5_ju_space(uint32_t c);
bool m5_ju_word(uint32_t c); /* letter, digit or underscore */
bool m5_ju_ident_start(uint32_t c);
bool m5_ju_ident_part(uint32_t c);
bool m5_ju_alpha(uint32_t c);
bool m5_ju_decimal(uint32_t c);
bool m5_ju_digit(uint32_t c);
bool m5_ju_numeric(uint32_t c);
bool m5_ju_alnum(uint32_t c);
bool m5_ju_upper(uint32_t c);
bool m5_ju_lower(uint32_t c);
bool m5_ju_titlecase(uint32_t c);
bool m5_ju_printable(uint32_t c);
bool m5_ju_cased(uint32_t c);
bool m5_ju_case_ignorable(uint32_t c);
int m5_ju_decimal_value(uint32_t c); /* -1 = none */
typedef enum ju_case { JU_UPPER, JU_LOWER, JU_TITLE, JU_FOLD } ju_case;
int m5_ju_map(uint32_t c, ju_case how, uint32_t out[4]); /* how many */
jstr *m5_ju_str_upper(jrt *rt, const jstr *s);
jstr *m5_ju_str_lower(jrt *rt, const jstr *s);
jstr *m5_ju_str_fold(jrt *rt, const jstr *s);
jstr *m5_ju_str_swapcase(jrt *rt, const jstr *s);
jstr *m5_ju_str_capitalize(jrt *rt, const jstr *s);
jstr *m5_ju_str_title(jrt *rt, const jstr *s);       /* Python's str.title */
jstr *m5_ju_str_title_words(jrt *rt, const jstr *s); /* Jinja's filter */

/* jinja_int.c: values are J_BOOL, J_INT or J_BIG in, J_INT or J_BIG out. */
bool m5_jint_is(jval v);
jval m5_jint_add(jrt *rt, jval a, jval b);
jval m5_jint_sub(jrt *rt, jval a, jval b);
jval m5_jint_mul(jrt *rt, jval a, jval b);
void m5_jint_divmod(jrt *rt, jval a, jval b, jval *q, jval *r); /* floor */
jval m5_jint_pow(jrt *rt, jval a, uint64_t e);
jval m5_jint_neg(jrt *rt, jval a);
int m5_jint_cmp(jval a, jval b);
int m5_jint_sign(jval a);
bool m5_jint_fits(jval a, int64_t *out);
int64_t m5_jint_clamp(jval a); /* to int64 */
double m5_jint_double(jval a, bool *overflow);
jval m5_jint_from_double(jrt *rt, double d);                               /* truncates; finite */
void m5_jint_put(jrt *rt, jval a, int base, bool upper);                   /* digits with sign, no prefix */
bool m5_jint_parse(jrt *rt, const char *p, size_t n, int base, jval *out); /* digits only, no sign; false on a bad digit or none */
uint64_t m5_jint_bits(jval a);
uint64_t m5_jint_hash(jval a);

/* jinja_value.c */
static inline jval m5_jv_none(void)
{
    return (jval){.t = J_NONE};
}
static inline jval m5_jv_missing(void)
{
    return (jval){.t = J_MISSING};
}
static inline jval m5_jv_bool(bool b)
{
    return (jval){.t = J_BOOL, .u.b = b};
}
static inline jval m5_jv_int(int64_t i)
{
    return (jval){.t = J_INT, .u.i = i};
}
static inline jval m5_jv_float(double d)
{
    return (jval){.t = J_FLOAT, .u.d = d};
}
static inline jval m5_jv_str(jstr *s)
{
    return (jval){.t = J_STR, .u.s = s};
}
static inline jval m5_jv_iter(jiter *it)
{
    return (jval){.t = J_ITER, .u.it = it};
}
jval m5_jv_undef(jrt *rt, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
jval m5_jv_undef_name(jrt *rt, const jstr *name, const char *owner);
void m5_jv_undef_fail(jrt *rt, jval u) JNORETURN;
jval m5_jv_seq(jrt *rt, jtype t, size_t cap);
void m5_jseq_push(jrt *rt, jseq *s, jval v);
jval m5_jv_tuple2(jrt *rt, jval a, jval b);
jdict *m5_jdict_new(jrt *rt, size_t cap);
bool m5_jdict_get(jrt *rt, const jdict *d, jval key, jval *out); /* fails on unhashable keys */
bool m5_jdict_get_str(jrt *rt, const jdict *d, const jstr *key, jval *out);
void m5_jdict_set(jrt *rt, jdict *d, jval key, jval v);
bool m5_jv_hashable(jrt *rt, jval v);
bool m5_jv_truth(jrt *rt, jval v);
const char *m5_jv_type(jval v);     /* Python's type name */
const char *m5_jv_describe(jval v); /* as Jinja's messages name it: "dict object", "None" */
bool m5_jv_eq(jrt *rt, jval a, jval b);
bool m5_jv_same(jval a, jval b);                   /* Python's `is` */
bool m5_jv_order(jrt *rt, jval a, jval b, jop op); /* < <= > >= ; fails on types without order */
bool m5_jv_num(jval v);                            /* bool, int, float */
bool m5_jv_contains(jrt *rt, jval container, jval v);
void m5_jv_put_str(jrt *rt, jval v);  /* Python str() */
void m5_jv_put_repr(jrt *rt, jval v); /* Python repr() */
void m5_jv_put_repr_str(jrt *rt, const jstr *s, bool ascii_only);
void m5_jv_put_float(jrt *rt, double d);
jstr *m5_jv_to_str(jrt *rt, jval v);   /* str(): plain text */
jstr *m5_jv_soft_str(jrt *rt, jval v); /* keeps Markup */
jval m5_jv_from_json(jrt *rt, const m5_json *j, bool trusted);
bool m5_jv_len(jrt *rt, jval v, int64_t *out); /* false: has no len() */
bool m5_jv_iterable(jval v);
bool m5_jv_callable(jval v);
/* Iteration. m5_jv_iter_of fails on values that are not iterable. */
typedef bool (*jiter_fn)(jrt *rt, jiter *it, jval *out);
struct jiter {
    jiter_fn next;
    const char *label; /* for printing */
    jval src;
    size_t i, n;
    int64_t step;
    void *ctx;
    bool done;
};
jiter *m5_jv_iter_of(jrt *rt, jval v);
jiter *m5_jiter_new(jrt *rt, jiter_fn fn, jval src, void *ctx, const char *label);
bool m5_jiter_next(jrt *rt, jiter *it, jval *out);
jval m5_jv_list_of(jrt *rt, jval v, jtype t);
bool m5_jseq_view(jval v, const jval **items, size_t *n);                  /* list or tuple */
void m5_jv_sort(jrt *rt, jval *keys, jval *items, size_t n, bool reverse); /* stable, by keys */
bool m5_jv_reversed(jrt *rt, jval v, jiter **out);                         /* false: not reversible */

/* jinja_ops.c */
jval m5_jop_binary(jrt *rt, jop op, jval a, jval b);
bool m5_jop_compare(jrt *rt, jop op, jval a, jval b);
jval m5_jop_neg(jrt *rt, jval a);
jval m5_jop_pos(jrt *rt, jval a);
jval m5_jop_getattr(jrt *rt, jval obj, const jstr *name);
jval m5_jop_getitem(jrt *rt, jval obj, jval key);
jval m5_jop_slice(jrt *rt, jval obj, jval start, jval stop, jval step);
bool m5_jop_attr(jrt *rt, jval obj, const jstr *name, jval *out); /* the attribute alone; *out may be an unsafe Undefined */
double m5_jop_double(jrt *rt, jval v);                            /* of a number */

/* Calls. */
typedef struct jcall {
    jval *pos;
    size_t n;
    jstr **kw;
    jval *kwval;
    size_t n_kw;
} jcall;
jval m5_jop_call(jrt *rt, jval fn, jcall *c);
/* Sorts positional and named arguments into out[] by spec "a b c" (n names; missing ones stay J_MISSING). The first n_required must be there; names
 * before a '/' in the spec cannot be given by name. */
void m5_j_bind(jrt *rt, const char *fname, const jcall *c, const char *spec, size_t n_required, jval *out);
int64_t m5_j_arg_int(jrt *rt, const char *fname, jval v);
bool m5_j_arg_flag(jrt *rt, const char *fname, jval v); /* Python's C functions take a flag as a C int; missing = false */
const jstr *m5_j_arg_str(jrt *rt, const char *fname, jval v);

/* jinja_method.c */
bool m5_jmethod_find(jval obj, const jstr *name, int *id, const char **cname, bool *unsafe);
jval m5_jmethod_call(jrt *rt, const jfunc *f, jcall *c);
jval m5_jmethod_split(jrt *rt, const jstr *s, const jstr *sep, int64_t max);
jval m5_jmethod_splitlines(jrt *rt, const jstr *s, bool keep);
jstr *m5_jmethod_strip(jrt *rt, const jstr *s, const jstr *chars, bool left, bool right);
jstr *m5_jmethod_replace(jrt *rt, const jstr *s, const jstr *from, const jstr *to, int64_t count);
jstr *m5_jmethod_center(jrt *rt, const jstr *s, int64_t width, const jstr *fill, int left_of_3);

/* jinja_eval.c */
void m5_jeval_template(jrt *rt, const m5_jinja *t);
jval m5_jeval_macro(jrt *rt, const jmacro *m, jcall *c);
jval m5_jeval_recurse(jrt *rt, const jloop *loop, jval items);

/* jinja_global.c: what templates find without being given it, and the objects those make. */
jval m5_jloop_attr(jrt *rt, jloop *loop, const jstr *name, bool *found);
bool m5_jloop_next(jrt *rt, jloop *loop, jval *item);                 /* starts the next pass */
bool m5_jglobal_attr(jrt *rt, jval obj, const jstr *name, jval *out); /* of macros, cyclers, joiners */
bool m5_jglobal_find(jrt *rt, const jstr *name, jval *out);
jval m5_jglobal_call(jrt *rt, const jfunc *f, jcall *c);
jval m5_jglobal_join(jrt *rt, jjoiner *j);
jval m5_jfunc_val(jrt *rt, int id, const char *name, jval self);

/* jinja_filter*.c, jinja_test.c */
typedef jval (*jfilter_fn)(jrt *rt, jval v, jcall *c);
typedef struct jfilter {
    const char *name;
    jfilter_fn fn;
} jfilter;
extern const jfilter m5_jfilters_seq[], m5_jfilters_text[];
int m5_jfilter_find(const jstr *name); /* -1 */
jval m5_jfilter_call(jrt *rt, int id, const jstr *name, jval v, jcall *c);
int m5_jtest_find(const jstr *name);
jval m5_jtest_call(jrt *rt, int id, const jstr *name, jval v, jcall *c);

/* jinja_format.c */
jval m5_jformat_percent(jrt *rt, const jstr *fmt, jval args);
jval m5_jformat_braces(jrt *rt, const jstr *fmt, const jcall *c, jval mapping); /* mapping: of format_map, else J_MISSING */
jval m5_jformat_time(jrt *rt, const jstr *fmt);
bool m5_jfloat_parse(jrt *rt, const jstr *s, double *out);          /* Python float(str) */
bool m5_jint_from_str(jrt *rt, const jstr *s, int base, jval *out); /* Python int(str, base) */

/* jinja_json.c */
jval m5_jjson_dump(jrt *rt, jval v, jcall *c);

/* jinja_lex.c */
typedef enum jtok_kind {
    T_EOF,
    T_DATA,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_VAR_BEGIN,
    T_VAR_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_FLOAT,
    T_ADD,
    T_SUB,
    T_DIV,
    T_FLOORDIV,
    T_MUL,
    T_MOD,
    T_POW,
    T_TILDE,
    T_LBRACKET,
    T_RBRACKET,
    T_LPAREN,
    T_RPAREN,
    T_LBRACE,
    T_RBRACE,
    T_EQ,
    T_NE,
    T_GT,
    T_GE,
    T_LT,
    T_LE,
    T_ASSIGN,
    T_DOT,
    T_COLON,
    T_PIPE,
    T_COMMA,
    T_SEMICOLON
} jtok_kind;
typedef struct jtok {
    jtok_kind kind;
    uint32_t line;
    jstr *s;  /* data, name, string; operators: their text */
    jval val; /* numbers */
} jtok;
typedef struct jtoks {
    jtok *v;
    size_t n, cap;
} jtoks;
void m5_jlex(jrt *rt, const char *src, size_t n, jtoks *out);

/* jinja_parse.c, jinja_bind.c */
void m5_jparse(jrt *rt, const jtoks *toks, jnodes *body);
void m5_jbind(jrt *rt, m5_jinja *t);
void m5_jnodes_push(jrt *rt, jnodes *l, jnode *n);

#endif
