/* SPDX-License-Identifier: Apache-2.0 */
/* What the grammar*.c files share: the syntax tree that sources are turned into, the program made of it, the automaton that runs the program.
 * Included by nobody else.
 *
 *   source text --(schema, regex, gbnf, tools)--> tree of nodes and rules --(grammar.c)--> program --(grammar_auto.c)--> lazy automaton
 *
 * The program is a nondeterministic machine over bytes with a stack: instructions take a byte from a set, split, call a rule, or count repetitions.
 * A configuration is (instruction, stack); stacks are shared linked frames, so equal stacks have equal numbers. A state of the automaton is a set
 * of configurations that wait for a byte; it is made when it is first reached, and its transitions are remembered per class of bytes.
 *
 * Control tokens have no text. Where a wire format wants one, the tree holds its spelling between two bytes 0xFF, which no UTF-8 text contains. */
#ifndef M5_TEXT_GRAMMAR_INTERNAL_H
#define M5_TEXT_GRAMMAR_INTERNAL_H

#include "base/err.h"
#include "base/hash.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "text/grammar.h"

#include <stdatomic.h>

#define G_INF   UINT32_MAX /* no upper bound */
#define G_MARK  0xFF       /* stands around the spelling of a control token */
#define G_LEVEL 96         /* containers inside each other; base/json.h reads 128, tool formats add a few of their own */

/* ---- tree ---- */
typedef enum g_kind { G_FAIL, G_EMPTY, G_LIT, G_SET, G_SEQ, G_ALT, G_REP, G_REF, G_GUARD } g_kind;
enum {
    G_NODE_NEST = 1, /* REF: a level deeper; G_GUARD lets pass below G_LEVEL only */
    G_NODE_STR = 2,  /* REP: the characters of a JSON string */
    G_NODE_KEY = 4   /* REF: a member's name that is not declared, so that it must not come twice */
};
typedef struct g_node { /* children have smaller numbers than their parents */
    uint8_t kind, flags;
    uint16_t depth;
    uint32_t size;     /* instructions, about; saturating */
    uint32_t a, b;     /* LIT: offset, length; SET: set; SEQ, ALT: first kid, number; REP: child; REF: rule */
    uint32_t min, max; /* REP */
} g_node;
typedef struct g_set {
    uint64_t w[4];
} g_set;
typedef struct g_rule {
    int32_t body;   /* -1 = not defined yet */
    uint32_t block; /* rules of one block refer to each other and to earlier blocks alone, so their states are alike in all grammars; 0 = none */
} g_rule;

struct m5_gb {
    g_node *node;
    size_t n_node, cap_node;
    int32_t *kid;
    size_t n_kid, cap_kid;
    g_set *set;
    size_t n_set, cap_set;
    g_rule *rule;
    size_t n_rule, cap_rule;
    m5_buf text;
    uint32_t n_block, block; /* number of blocks; the one being filled */
    int32_t json[8];         /* rules of the JSON library, -1 until used (grammar_json.c) */
    struct g_str_rule {      /* string rules by their bounds */
        uint32_t min, max;
        int32_t rule;
    } * str_rule;
    size_t n_str_rule, cap_str_rule;
    struct g_until_rule {
        size_t off, n; /* the end, in text */
        int32_t rule;
    } * until;
    size_t n_until, cap_until;
    m5_json *notes;                                     /* array of strings: what was loosened */
    bool cut_left_cycles;                               /* schemas: a reference to itself without anything between adds nothing */
    const char *(*name)(const m5_gb *b, uint32_t rule); /* for messages, or NULL */
    void *name_ctx;
    m5_error err; /* the first failure */
};

/* Grows *p (elements of `size` bytes) so that n + more fit. */
bool m5_g_grow(void *p, size_t n, size_t *cap, size_t more, size_t size);

/* All return -1 after a failure. */
int32_t m5_g_fail(m5_gb *b, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
int32_t m5_g_none(m5_gb *b);  /* matches nothing */
int32_t m5_g_empty(m5_gb *b); /* matches the empty text */
int32_t m5_g_lit(m5_gb *b, const char *p, size_t n);
int32_t m5_g_cstr(m5_gb *b, const char *s);
int32_t m5_g_set(m5_gb *b, const g_set *s);
int32_t m5_g_range(m5_gb *b, uint8_t lo, uint8_t hi);
int32_t m5_g_rep(m5_gb *b, int32_t item, uint32_t min, uint32_t max, unsigned flags);
bool m5_g_rep_expands(const g_node *item, uint32_t min, uint32_t max); /* written out instead of counted */
int32_t m5_g_seq2(m5_gb *b, int32_t x, int32_t y);
int32_t m5_g_seq3(m5_gb *b, int32_t x, int32_t y, int32_t z);
int32_t m5_g_alt2(m5_gb *b, int32_t x, int32_t y);
int32_t m5_g_opt(m5_gb *b, int32_t item);
int32_t m5_g_guard(m5_gb *b);
int32_t m5_g_rule_new(m5_gb *b); /* a rule number */
int32_t m5_g_rule_set(m5_gb *b, int32_t rule, int32_t body);
int32_t m5_g_ref(m5_gb *b, int32_t rule, unsigned flags);
/* A rule around a node that would be copied at each use; small nodes stay as they are. */
int32_t m5_g_share(m5_gb *b, int32_t node);
void m5_g_block_begin(m5_gb *b);
void m5_g_block_end(m5_gb *b);
void m5_g_note(m5_gb *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static inline void m5_g_set_add(g_set *s, unsigned lo, unsigned hi)
{
    for (unsigned c = lo; c <= hi; c++) s->w[c >> 6] |= (uint64_t)1 << (c & 63);
}
static inline bool m5_g_set_has(const g_set *s, unsigned c)
{
    return s->w[c >> 6] >> (c & 63) & 1;
}

/* ---- sets of code points ---- */
typedef struct g_cps { /* ranges, sorted and apart after m5_g_cps_norm */
    struct g_cp_range {
        uint32_t lo, hi;
    } * p;
    size_t n, cap;
    bool failed;
} g_cps;
void m5_g_cps_add(g_cps *c, uint32_t lo, uint32_t hi);
void m5_g_cps_norm(g_cps *c);
void m5_g_cps_invert(g_cps *c); /* within the code points that UTF-8 can spell */
void m5_g_cps_free(g_cps *c);
/* One character of the set; json: as it stands inside a JSON string, where quotes, backslashes and controls are escaped. */
int32_t m5_g_chars(m5_gb *b, const g_cps *c, bool json);

/* ---- grammar_json.c: the pieces of JSON text ---- */
typedef enum g_json_rule {
    G_JSON_VALUE,
    G_JSON_OBJECT,
    G_JSON_ARRAY,
    G_JSON_NUMBER,
    G_JSON_INTEGER,
    G_JSON_WS,
    G_JSON_COLON,
    G_JSON_KEY
} g_json_rule;
int32_t m5_g_json(m5_gb *b, g_json_rule which);
int32_t m5_g_json_string(m5_gb *b, uint32_t min, uint32_t max);
int32_t m5_g_json_chars(m5_gb *b, uint32_t min, uint32_t max); /* the same without quotes */
/* The value as text, whitespace allowed between its tokens as anywhere. */
int32_t m5_g_json_const(m5_gb *b, const m5_json *v);
int32_t m5_g_json_str_lit(m5_gb *b, m5_slice s);
/* A string that is none of the names. */
int32_t m5_g_json_key_but(m5_gb *b, const m5_slice *names, size_t n);

/* ---- grammar_number.c ---- */
typedef struct g_bounds {
    bool has_lo, has_hi, open_lo, open_hi;
    double lo, hi;
    int digits; /* of the fraction at most; -1 = as usual */
} g_bounds;
/* Numbers within the bounds, without exponent. -1 with b->err unset: the bounds cannot be written out. */
bool m5_g_json_integer_in(m5_gb *b, const g_bounds *r, int32_t *out);
bool m5_g_json_number_in(m5_gb *b, const g_bounds *r, int32_t *out);

/* ---- grammar_regex.c ---- */
typedef struct g_regex_opts {
    bool json;         /* the text stands inside a JSON string */
    bool search;       /* the pattern may match anywhere unless anchored */
    uint32_t min, max; /* characters wanted beside the pattern; *len_done tells whether they are enforced */
} g_regex_opts;
/* On failure err is filled and -1 returned; b stays usable unless b->err is set. */
int32_t m5_g_regex(m5_gb *b, const char *p, size_t n, const g_regex_opts *o, bool *len_done, m5_error *err);

/* ---- grammar_schema.c ---- */
int32_t m5_g_schema(m5_gb *b, const m5_json *schema, const char *where);

/* ---- program ---- */
typedef enum g_op { G_OP_BYTE, G_OP_SET, G_OP_JMP, G_OP_SPLIT, G_OP_CALL, G_OP_REP, G_OP_RET, G_OP_GUARD } g_op;
enum { G_CALL_NEST = 1, G_CALL_KEY = 2 };
typedef struct g_inst {
    uint8_t op, flags, lo, hi; /* BYTE: a byte in lo..hi, then the next instruction */
    uint32_t a;                /* SET: set; JMP, CALL: target; SPLIT: index into split; REP: index into rep */
} g_inst;
typedef struct g_rep {
    uint32_t min, max, body, exit;
    bool nullable, str;
} g_rep;
typedef struct g_block {
    uint32_t begin, end;
    uint64_t hash; /* of what it does */
    uint64_t kind; /* the same without the bounds of strings */
} g_block;
typedef struct g_auto g_auto;

struct m5_grammar {
    atomic_int n_ref;
    g_inst *inst;
    uint32_t n_inst;
    uint32_t *split; /* at each index: number, then targets */
    uint32_t n_split;
    g_rep *rep;
    uint32_t n_rep;
    g_set *set;
    uint32_t n_set;
    g_block *block; /* in order of begin */
    uint32_t n_block;
    uint32_t start;
    uint8_t byte_class[256], class_byte[256]; /* bytes that no instruction tells apart; one byte of each class */
    uint32_t n_class;
    m5_json *notes;
    g_auto *run; /* made by the first matcher */
};

/* ---- automaton ---- */
enum { G_STATE_DEAD = 0, G_FRAME_ROOT = 0, G_FRAME_BOTTOM = 1 };
#define G_PC_ACCEPT 0xFFFFFFFFu /* the root rule has ended */
#define G_PC_ESCAPE 0xFFFFFFFEu /* the unknown caller of a local state goes on */
typedef struct g_frame {
    uint32_t parent, pc, count, level, next;
} g_frame;
typedef struct g_config {
    uint32_t pc, frame;
} g_config;
enum { G_ST_ACCEPT = 1, G_ST_ESCAPE = 2, G_ST_BYTES = 4, G_ST_KEY = 8 /* maybe in a free key or right before it */ };
enum { G_ST_LOOPS = 16, G_ST_LOOPS_NOT = 32 }; /* every plain character leads back here; neither: not yet known */
typedef struct g_state {
    uint32_t off, n; /* configurations */
    uint32_t trans;  /* row of transitions + 1, 0 = none yet */
    uint32_t next, hash, flags;
    struct g_recipe *recipe; /* what its mask is made of */
} g_state;

/* Tokens that a local state takes, whoever called it, and the places in the tries where its caller goes on. */
typedef struct g_local {
    m5_hash128 key;
    uint64_t *dense; /* [n_words] or NULL */
    int32_t *ids;    /* when not dense */
    uint32_t n_ids;
    size_t n_dense_bytes;
    uint32_t *escape; /* trie node; the top bit tells the trie */
    uint32_t n_escape;
} g_local;
typedef struct g_local_table {
    g_local **slot;
    size_t n, cap;
    size_t bytes;
} g_local_table;
g_local *m5_g_local_find(const g_local_table *t, m5_hash128 key);
bool m5_g_local_put(g_local_table *t, g_local *l);
void m5_g_local_free(g_local *l);
void m5_g_local_table_clear(g_local_table *t);

typedef struct g_resolved { /* tokens that go on in the caller */
    const g_local *local;
    uint32_t base;
    uint64_t *dense; /* [n_words] or NULL: then ids */
    int32_t *ids;
    uint32_t n_ids;
} g_resolved;
typedef struct g_part {
    const g_local *local;
    uint32_t plain; /* characters that a JSON string still takes; G_INF = any number, 0 = not inside one */
    const g_resolved *resolved;
} g_part;
typedef struct g_recipe {
    uint32_t n;
    bool exact; /* the one local part is owned */
    g_part part[];
} g_recipe;

struct g_auto {
    const m5_grammar *g;
    m5_grammar_vocab *vocab;
    g_frame *frame;
    size_t n_frame, cap_frame;
    uint32_t *frame_head;
    size_t n_frame_head;
    g_config *config;
    size_t n_config, cap_config;
    g_state *state;
    size_t n_state, cap_state;
    uint32_t *state_head;
    size_t n_state_head;
    uint32_t *trans;
    size_t n_trans, cap_trans;
    g_local_table locals;
    g_resolved **resolved;
    size_t n_resolved, cap_resolved;
    size_t extra_bytes; /* recipes, resolved lists */
    bool has_keys;      /* the program knows free keys */
    size_t soft_bytes;  /* of all tables; above, the next call collects */
    /* closure */
    g_config *work;
    size_t n_work, cap_work;
    g_config *out;
    size_t n_out, cap_out;
    g_config *seen; /* open addressing, stamped */
    uint32_t *seen_at;
    size_t n_seen, cap_seen;
    uint32_t stamp;
    m5_matcher *matchers; /* all that live */
    uint32_t start;
    int rc; /* of the current public call */
};

struct m5_matcher {
    m5_grammar *g;
    g_auto *a;
    uint32_t state;
    bool ended;
    /* The free keys of the objects that are open, each with its opening quote; the one being written (declared ones get in as well, which does no
     * harm). */
    m5_buf keys, key, scratch;
    struct g_key {
        uint32_t level, off, n;
    } * used;
    size_t n_used, cap_used;
    m5_matcher *prev, *next;
};

const g_block *m5_g_block_of(const m5_grammar *g, uint32_t pc); /* NULL outside blocks */

int m5_g_auto_new(g_auto **out, const m5_grammar *g, m5_grammar_vocab *v);
void m5_g_auto_free(g_auto *a);
/* The state after a byte; G_STATE_DEAD also on failure, which a->rc tells. */
uint32_t m5_g_step(g_auto *a, uint32_t state, uint8_t byte);
static inline uint32_t m5_g_step_fast(g_auto *a, uint32_t state, uint8_t byte)
{
    uint32_t row = a->state[state].trans, t = row ? a->trans[row - 1 + a->g->byte_class[byte]] : 0;
    return t ? t - 1 : m5_g_step(a, state, byte);
}
/* The state that waits at the given configurations (a->out is used up). */
uint32_t m5_g_close(g_auto *a, const g_config *start, size_t n);
uint32_t m5_g_intern(g_auto *a, g_config *c, size_t n);
uint32_t m5_g_frame_push(g_auto *a, uint32_t parent, uint32_t pc, uint32_t count);
/* The deepest level of a state's configurations. */
uint32_t m5_g_level(const g_auto *a, uint32_t state);
/* Drops every state that no matcher stands in once the tables are large. May renumber states: not during a walk. */
int m5_g_collect(g_auto *a);

/* ---- vocabulary ---- */
typedef struct g_trie_node { /* preorder */
    uint32_t skip;           /* the node after this subtree */
    uint32_t tok;            /* first token at or below; those that end here come first */
    uint16_t depth;
    uint8_t byte;
} g_trie_node;
typedef struct g_trie {
    g_trie_node *node; /* [n + 1], closed by a sentinel */
    uint32_t n;
    int32_t *ids; /* by bytes */
    uint32_t n_ids;
    uint32_t max_depth;
} g_trie;
enum { G_PLAIN_STEPS = 16 };
struct m5_grammar_vocab {
    int32_t n_vocab;
    size_t n_words;
    m5_buf bytes;  /* of all tokens; control tokens with G_MARK around */
    uint32_t *off; /* [n_vocab + 1] */
    /* "plain" tokens are whole characters that a JSON string takes as they are; all others are in `other` */
    g_trie plain, other;
    uint64_t *upto[G_PLAIN_STEPS + 2]; /* plain tokens of at most i characters; the last one holds all */
    struct g_long {
        uint32_t chars;
        int32_t id;
    } * longer; /* plain tokens of more, by characters */
    size_t n_longer;
    int32_t *quoted; /* tokens with two quotes or more */
    size_t n_quoted;
    uint32_t other_chars; /* most characters of a JSON string in one other token */
    uint32_t other_open;  /* most brackets in one token */
    uint32_t max_depth;
    int32_t *ends;
    int n_ends;
    g_local_table locals; /* of blocks, shared by all grammars */
};

#endif
