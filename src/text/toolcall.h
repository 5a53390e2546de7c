/* SPDX-License-Identifier: Apache-2.0 */
/* Tool calls in a model's answer: the wire format that its chat template teaches, and an incremental parser from text to calls. Room:
 * text/toolcall*.c. Pure: no engine, no server, no clock. Not here: ids of calls (the caller makes them) and the split of thinking (the caller pushes
 * what is the answer).
 *
 * Rules of the parser
 * - Streamed = whole: the concatenated events depend on the bytes alone, never on how they were cut into pushes. Every event is well-formed UTF-8.
 * - The arguments of a call are JSON in total, whatever the wire format and however it ended: keys keep their order, separators are ", " and ": ",
 *   a key that comes twice in one object keeps its first value (an event that went out cannot be taken back), strings are unescaped and escaped anew.
 * - Nothing fails and nothing is lost: a broken call becomes the best valid one (quotes, commas, closers and Python spellings are repaired, missing
 * ends supplied), text that is no call stays content, and text in the middle of a call that belongs to nothing follows the call as content.
 * - White space between content and a call, and between calls, is dropped; so are stray closing marks after a call. All other content is kept.
 * - In a fenced code block, or right behind the backtick that opens a code span, an opening mark is content. A block that is not closed is none:
 * whole calls of declared functions at its end are calls when the answer is over.
 * - A call of an undeclared function is reported with known = false. Formats without marks take an object or f(...) for a call only at the beginning
 * of a line and only with a declared name. With no tools at all everything is content.
 * - With parallel = false only the first call is reported; later ones are read over, without events. */
#ifndef M5_TEXT_TOOLCALL_H
#define M5_TEXT_TOOLCALL_H

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "text/chat.h"

typedef enum m5_toolcall_kind {
    M5_TOOLCALL_HERMES,   /* <tool_call>{"name": .., "arguments": {..}}</tool_call>: Hermes, Qwen 2.5 and 3, and models without a known format */
    M5_TOOLCALL_QWEN_XML, /* <tool_call><function=F><parameter=K>text</parameter></function></tool_call>: Qwen3-Coder, Qwen 3.5, Nemotron 3 */
    M5_TOOLCALL_LLAMA3,   /* {"name": .., "parameters": {..}}, also behind <|python_tag|> */
    M5_TOOLCALL_MISTRAL,  /* [TOOL_CALLS][{"name": .., "arguments": {..}}] and [TOOL_CALLS]F[ARGS]{..} */
    M5_TOOLCALL_GEMMA4,   /* <|tool_call>call:F{k:<|"|>text<|"|>}<tool_call|> */
    M5_TOOLCALL_DEEPSEEK, /* <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>F<｜tool▁sep｜>{..}<｜tool▁call▁end｜><｜tool▁calls▁end｜>, also
                             function<｜tool▁sep｜>F and fenced */
    M5_TOOLCALL_PYTHONIC, /* [f(a=1, b="x"), g()], also between <|tool_call_start|> or <|python_start|> and their ends */
    M5_TOOLCALL_GLM,      /* <tool_call>F<arg_key>k</arg_key><arg_value>v</arg_value></tool_call> */
    M5_TOOLCALL_INVOKE,   /* <invoke name="F"><parameter name="k">v</parameter></invoke> between marks */
    M5_TOOLCALL_GENERIC,  /* learned: marks around JSON objects, or around a name and its JSON arguments */
    M5_TOOLCALL_KIND_COUNT
} m5_toolcall_kind;

/* A wire format. Immutable, any thread; must outlive its parsers. */
typedef struct m5_toolcall_format m5_toolcall_format;
/* Finds the format by rendering sample calls through the template. A template that shows no calls is judged by what it tells the model about tools,
 * else HERMES is taken. Owner: caller. Errors: M5_ERR_NOMEM alone. */
int m5_toolcall_format_new(m5_toolcall_format **out, const m5_chat *chat, m5_error *err);
/* A built-in format by its name ("hermes", "qwen_xml", ...; not "generic"). Errors: M5_ERR_NOTFOUND, M5_ERR_NOMEM. */
int m5_toolcall_format_named(m5_toolcall_format **out, const char *name, m5_error *err);
void m5_toolcall_format_free(m5_toolcall_format *f);
m5_toolcall_kind m5_toolcall_format_kind(const m5_toolcall_format *f);
const char *m5_toolcall_kind_name(m5_toolcall_kind kind);
/* The marks of the format one by one, NULL after the last; borrowed. Some are control tokens of the vocabulary: the parser must see them as text
 * (m5_gen_params.keep_special), and the caller takes the other control tokens out. */
const char *m5_toolcall_format_mark(const m5_toolcall_format *f, size_t i);
/* Appends the text by which an answer is forced into a call: of the named function up to its arguments (JSON: before the brace), or with name NULL up
 * to where a name goes. Give the same text to the parser, as `prefix` or by a push. */
void m5_toolcall_opening(const m5_toolcall_format *f, const char *name, m5_buf *out);

typedef enum m5_toolcall_event_kind { M5_TOOLCALL_TEXT, M5_TOOLCALL_BEGIN, M5_TOOLCALL_ARGS, M5_TOOLCALL_END } m5_toolcall_event_kind;
typedef struct m5_toolcall_event {
    m5_toolcall_event_kind kind;
    int index;     /* of the call, from 0; not for TEXT */
    m5_slice text; /* TEXT: content. BEGIN: the function's name. ARGS: a piece of the arguments' JSON. Borrowed for the call */
    bool known;    /* BEGIN: the name is among the tools */
    bool complete; /* END: the call ended by itself; false when its end had to be supplied */
} m5_toolcall_event;
/* Events of one call come together: BEGIN, ARGS (one or more), END; no TEXT between them. */
typedef void (*m5_toolcall_fn)(void *arg, const m5_toolcall_event *ev);

typedef struct m5_toolcall_args {
    const m5_toolcall_format *format;
    const m5_json *tools; /* the request's list, its items wrapped as {"type": "function", "function": {..}} or bare; NULL or empty: no calls */
    bool parallel;        /* more than one call may be reported */
    m5_slice prefix;      /* text of the answer that the prompt already holds, such as a forced opening; read before the first push */
    m5_toolcall_fn fn;
    void *arg;
} m5_toolcall_args;

/* One answer's parser. Not thread-safe. Owner: caller. */
typedef struct m5_toolcall m5_toolcall;
int m5_toolcall_new(m5_toolcall **out, const m5_toolcall_args *args, m5_error *err); /* Errors: M5_ERR_NOMEM */
void m5_toolcall_free(m5_toolcall *p);
/* Return 0 or M5_ERR_NOMEM, after which the parser is silent. Nothing comes out of a push after finish. */
int m5_toolcall_push(m5_toolcall *p, const char *text, size_t n);
int m5_toolcall_finish(m5_toolcall *p);      /* the answer is over: gives out what was held back, ends an open call */
int m5_toolcall_count(const m5_toolcall *p); /* calls reported so far (BEGIN) */
bool m5_toolcall_open(const m5_toolcall *p); /* inside a call or behind the mark of one: an answer that ends now ends in the middle */
/* With parallel = false: the first call is over, so what follows can bring no further call and generation may end. */
bool m5_toolcall_done(const m5_toolcall *p);

#endif
