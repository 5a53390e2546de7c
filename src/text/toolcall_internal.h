/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the tool-call parser: what its files share. Not for other rooms (they use text/toolcall.h).
 *
 *   toolcall        the parser: content, marks, beginning and end of calls, calls written as JSON objects, events
 *   toolcall_content  content: white space, code blocks
 *   toolcall_head   what stands behind an opening mark: which body, which name
 *   toolcall_tags   bodies of tags: <function=..><parameter=..> and kin
 *   toolcall_json   any JSON-like text -> valid JSON, as a stream: also Python literals and Gemma's form
 *   toolcall_type   text of a tag -> JSON value of the type that the tool's schema wants
 *   toolcall_format formats and how they are found
 *
 * Every reader works on the bytes that have come and not been read (the window). It reads on as far as these bytes decide, and otherwise waits; it
 * never decides by the end of the window but when the answer is over (final). So the result does not depend on how the text was cut. */
#ifndef M5_TEXT_TOOLCALL_INTERNAL_H
#define M5_TEXT_TOOLCALL_INTERNAL_H

#include "text/toolcall.h"

enum {
    TC_MAX_DEPTH = 100,         /* nesting of arguments that is kept: below the 128 that base/json.h reads */
    TC_MAX_KEYS = 4096,         /* keys of one object that are compared for doubles */
    TC_MAX_NAME = 256,          /* bytes of a function's or parameter's name */
    TC_MAX_BARE = 4096,         /* bytes of an unquoted value that may still be a number */
    TC_MAX_LOOK = 256,          /* white space that a decision looks beyond */
    TC_MAX_RAW_BYTES = 1 << 20, /* of what may still turn out to be no call */
    TC_MAX_MARKS = 8
};

typedef enum tc_match { TC_NO, TC_YES, TC_WAIT } tc_match;
/* Does the window begin with word? TC_WAIT: so far, and it is too short to tell. */
tc_match tc_starts(const char *p, size_t n, const char *word, bool final);
/* The same for a NULL-terminated list; *len is the length of the longest word that fits. Waits while a longer one may still fit. */
tc_match tc_starts_any(const char *p, size_t n, const char *const *words, bool final, size_t *len);
static inline bool tc_space(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}
size_t tc_skip_space(const char *p, size_t n, size_t at);

/* ---- JSON-like text to JSON ---- */
typedef enum tj_mode { TJ_JSON, TJ_PYTHON, TJ_GEMMA } tj_mode;
typedef enum tj_status {
    TJ_MORE,      /* all that the window decides has been read */
    TJ_KEY,       /* a key of the wrapper has been read (key); the caller sets out and raw */
    TJ_VALUE_END, /* a value of the wrapper is over */
    TJ_DONE,      /* the root value is over */
    TJ_STOP       /* what follows belongs to no value; the root is still open */
} tj_status;

typedef struct tj {
    tj_mode mode;
    const char *const *stops; /* marks that end the text where they stand outside of strings */
    const m5_json *positions; /* Python: an object whose keys name positional arguments, or NULL */
    int level;                /* objects down to this depth are a wrapper: their keys are reported, their own text is not written */
    bool want_object;         /* the outermost written value becomes an object if it is none: {"value": ..}, null {} */
    m5_buf *out;              /* written text; NULL: dropped */
    m5_buf *raw;              /* a wrapper's value that is a string goes here, decoded; NULL: it is written like others */
    m5_buf key;               /* decoded; valid at TJ_KEY */
    char first;               /* of the last wrapper value: { [ " or b (bare) */
    bool repaired;            /* something had to be mended */

    int state, depth, n_skip, n_position;
    int muted; /* depth + 1 of the value that is dropped because its key came before */
    bool wrapped, has_key, in_key, to_raw, skip_string;
    char quote;
    char stack[TC_MAX_DEPTH + 1];
    bool filled[TC_MAX_DEPTH + 1];
    uint32_t first_key[TC_MAX_DEPTH + 1];
    uint64_t *keys;
    size_t n_keys, cap_keys;
    m5_buf bare;
} tj;
void tj_init(tj *j, tj_mode mode, const char *const *stops);
void tj_deinit(tj *j);
bool tj_failed(const tj *j); /* out of memory */
/* Reads [p, p + n) and sets *used. */
tj_status tj_feed(tj *j, const char *p, size_t n, bool final, size_t *used);
/* The text ended early: completes the token and closes what is open. */
void tj_close(tj *j);
/* Appends the content of a JSON string literal, without quotes. */
void tj_escape(m5_buf *out, const char *p, size_t n);
/* Appends a number in JSON's spelling, from JSON or Python; false if it is none or too large for a double. zeros: leading zeros are dropped, not
 * refused. */
bool tj_number(m5_buf *out, const char *p, size_t n, bool zeros);

/* ---- types ---- */
enum { TC_NULL = 1, TC_BOOL = 2, TC_INT = 4, TC_NUM = 8, TC_STR = 16, TC_ARR = 32, TC_OBJ = 64, TC_ANY = 127 };
typedef struct tc_type {
    int set; /* TC_STR alone: text as it stands */
    bool required;
    const m5_json *schema; /* borrowed or NULL */
    const m5_json *root;
} tc_type;
/* The type of a parameter; an undeclared one is text. params: the function's parameters or NULL. */
tc_type tc_type_of(const m5_json *params, m5_slice name);
/* Does text that begins so become a container whatever follows? It is then given out while it comes. */
bool tc_is_container(const tc_type *t, const char *p, size_t n);
/* Appends the value of other text; false: there is none (an empty optional value that is not text). */
bool tc_convert(m5_buf *out, const tc_type *t, const char *p, size_t n);

/* ---- formats ---- */
typedef enum tc_body { TC_BODY_JSON, TC_BODY_ARGS, TC_BODY_TAGS } tc_body; /* wrapper object | arguments behind a name | tags */

/* How a family of tags is spelled. */
typedef struct tc_tags {
    const char *fn_open, *fn_mid, *fn_close; /* fn_open NAME fn_mid .. fn_close; fn_open may be "" (the name follows the mark) */
    const char *par_open, *par_mid, *par_close;
    const char *value_open; /* between key and value, NULL: par_mid ends the tag */
    bool framed;            /* one newline on each side of a value is no part of it */
} tc_tags;

struct m5_toolcall_format {
    m5_toolcall_kind kind;
    bool named;                                           /* a name and its arguments, no wrapper object */
    bool bare;                                            /* calls need no mark */
    tj_mode mode;                                         /* of arguments behind a name */
    const tc_tags *tags;                                  /* or NULL */
    const char *open[TC_MAX_MARKS], *close[TC_MAX_MARKS]; /* NULL-terminated */
    const char *starts[TC_MAX_MARKS];                     /* open, and what begins a call without being a mark */
    const char *stops[2 * TC_MAX_MARKS];                  /* open and close, but for a code fence */
    const char *extra[4];                                 /* what the reader needs not know but must be able to see */
    const char *name_key, *args_key;                      /* of the wrapper, learned; or NULL */
    const char *name_pre;                                 /* text between mark and name */
    const char *force, *force_rest;                       /* m5_toolcall_opening: force NAME force_rest */
    char *owned[2 * TC_MAX_MARKS + 8];
    size_t n_owned;
};

/* ---- the parser ---- */
enum tc_state { TC_TEXT, TC_JSON, TC_ARGS, TC_TAGS, TC_AFTER };

struct m5_toolcall {
    const m5_toolcall_format *f;
    m5_json *tools;
    bool parallel, failed, finished;
    m5_toolcall_fn fn;
    void *arg;

    m5_buf in; /* the window is in[at..n) */
    size_t at;
    char tail[4]; /* an unfinished code point */
    size_t n_tail;

    int state;
    bool final;
    m5_buf text, space;  /* content to go out; white space that goes out only with content behind it */
    bool bol, fence_bol; /* at the beginning of a line; a fence may stand here */
    bool tick;           /* right behind the backtick that opens a code span */
    int n_tick;          /* backticks on this line */
    char fence;          /* inside a fenced block: its character */
    size_t n_fence;
    bool fence_info; /* on the opening line */
    bool holding;    /* behind a mark inside a fenced block, */
    m5_buf held;     /* which is kept: a block that is never closed was none, and the call is real */

    /* the call being read */
    bool begun, muted, is_bare, inside, list; /* inside: behind an opening mark without its end yet */
    bool in_call;
    m5_buf raw; /* read since the mark, while it may turn out to be no call */
    m5_buf name, args, spill, inner;
    const m5_json *params;
    int count, n_args;

    /* wrapper object */
    tj outer, root; /* root reads the arguments themselves where they are no part of outer */
    bool have_name, seen_args, root_used;
    int route;

    /* tags */
    int tag_state;
    m5_buf par, value;
    tc_type type;
    bool first_par, value_begun;
    bool open_string, piped; /* the value is going out: as text, as a container read by root */
    int attr;                /* string="true" 1, "false" 0, absent -1 */
    uint64_t *seen;
    size_t n_seen, cap_seen;
    bool drop; /* a parameter that came before */
};

/* Reads n bytes of the window away, into raw while the call has not begun. */
void tc_take(m5_toolcall *p, size_t n);
void tc_content(m5_toolcall *p, const char *s, size_t n);
/* Where a fence may stand: a run of three or more opens or closes a block. TC_YES: it was read. Else the bytes that are content, 0 while undecided.
 */
size_t tc_fence(m5_toolcall *p, const char *w, size_t n, tc_match *m);
void tc_hold(m5_toolcall *p);   /* a mark inside a block */
bool tc_unhold(m5_toolcall *p); /* the answer is over inside a block: true when the held text is read again, as calls */
void tc_begin(m5_toolcall *p);  /* name is set */
void tc_end(m5_toolcall *p, bool complete);
const m5_json *tc_find(const m5_toolcall *p, m5_slice name, bool *known); /* parameters of a declared function */
/* Brings a name as written into the form it is declared in: trims, and drops "functions." and ":0" unless declared with them. */
void tc_clean_name(const m5_toolcall *p, m5_buf *name);

/* What stands at the window's beginning, where a start has been seen. */
typedef struct tc_head {
    tc_body body;
    size_t len; /* bytes up to the body */
    bool mark;  /* there was an opening mark */
    bool list;
    size_t name_at, n_name;
} tc_head;
tc_match tc_head_read(const m5_toolcall *p, tc_head *h);
/* Behind a call: does another follow without a mark? */
tc_match tc_head_next(const m5_toolcall *p, tc_head *h);

/* Reads on inside tags; false: more is needed. */
void tc_tags_start(m5_toolcall *p);
bool tc_tags_step(m5_toolcall *p);
void tc_tags_close(m5_toolcall *p);
void tc_tags_deinit(m5_toolcall *p);

#endif
