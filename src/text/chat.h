/* SPDX-License-Identifier: Apache-2.0 */
/* Chat templates: text/jinja*.c is the language, text/chat.c joins it to messages and tools. */
#ifndef M5_TEXT_CHAT_H
#define M5_TEXT_CHAT_H

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "text/tokenizer.h"

/* ---- jinja: a template compiled once, rendered many times. Immutable, any thread. ---- */
typedef struct m5_jinja m5_jinja;
typedef struct m5_jinja_limits {
    uint64_t max_steps; /* evaluated nodes; 0 = 50 million */
    size_t max_bytes;   /* memory of one rendering incl. output; 0 = 256 MiB */
} m5_jinja_limits;
/* name is used in messages ("chat_template:12: ..."). Errors: M5_ERR_TEMPLATE with name and line. */
int m5_jinja_compile(m5_jinja **out, const char *name, const char *src, size_t n, m5_error *err);
void m5_jinja_free(m5_jinja *j);

/* Renders with the members of `vars` (object, borrowed) as top-level variables. strftime_now splits now_unix (< 0 = the clock) in local time.
 * spans (may be NULL): on success the caller gets an array (m5_free) that covers the output without gaps and tells which bytes come from the
 * template's own text (trusted) and which from string values of `vars` (untrusted). Entries of `trusted_keys` (NULL-terminated) count as template
 * text: "bos_token" names a variable, "messages[].role" a member of the objects in a list, there only when it is a plain word (letters, digits, - and
 * _). Errors: M5_ERR_TEMPLATE (message names template and line; raise_exception's text verbatim), M5_ERR_LIMIT, M5_ERR_NOMEM. */
typedef struct m5_jinja_render_args {
    const m5_json *vars;
    const char *const *trusted_keys;
    int64_t now_unix;
    const m5_jinja_limits *limits;
} m5_jinja_render_args;
int m5_jinja_render(const m5_jinja *j, const m5_jinja_render_args *args, m5_buf *out, m5_text_span **spans, size_t *n_spans, m5_error *err);

/* ---- chat: the model's template (or a ChatML fallback) plus what is known of its special tokens. Immutable, any thread. ---- */
typedef struct m5_chat m5_chat;
/* template NULL = built-in ChatML. tool_template (may be NULL) is used when tools are given. bos/eos texts may be NULL (empty). Owner: caller. */
int m5_chat_new(m5_chat **out, const char *template_text, const char *tool_template, const char *bos, const char *eos, m5_error *err);
void m5_chat_free(m5_chat *c);
/* vars: object with messages, and optionally tools, add_generation_prompt and other template variables (chat_template_kwargs). bos_token and
 * eos_token are added; tools and documents that are null or empty are left out. On success *text holds the prompt. Message contents are untrusted,
 * template text and roles that are plain words trusted. */
int m5_chat_render(const m5_chat *c, const m5_json *vars, int64_t now_unix, m5_buf *text, m5_text_span **spans, size_t *n_spans, m5_error *err);

/* What the template does with a conversation, found by rendering small ones when the chat is made. "Appears" = its text is in the prompt. */
typedef struct m5_chat_caps {
    bool system;           /* a system message in front appears */
    bool developer;        /* so does one of role developer */
    bool tools;            /* tools appear */
    bool tool_calls;       /* calls made by the assistant appear */
    bool tool_role;        /* results (role tool) appear */
    bool text_content;     /* content as a string appears */
    bool part_content;     /* content as a list of {"type": "text"} parts appears, as text */
    bool arguments_object; /* arguments of a call belong there as an object: as JSON text they fail, are quoted again or look different */
    bool arguments_text;   /* the opposite: an object is printed in Python's spelling */
    bool reasoning;        /* reasoning_content of the reply now in progress (tool round) appears */
    bool enable_thinking;  /* the prompt depends on the variable enable_thinking */
    bool opens_thought;    /* by default the generation prompt ends inside a thought */
    bool thinks_if_told;   /* enable_thinking = true changes the prompt: by default it does not think */
} m5_chat_caps;
const m5_chat_caps *m5_chat_get_caps(const m5_chat *c); /* borrowed */

/* How the template writes the thought of a reply. */
typedef struct m5_chat_thought {
    const char *open, *close; /* tags: "<think>", "</think>" */
    const char *before;       /* white space between a thought's last line and the closing tag, "" or "\n" */
    const char *after;        /* white space between that tag and the answer */
} m5_chat_thought;
/* NULL when the template knows no thoughts. Borrowed. */
const m5_chat_thought *m5_chat_get_thought(const m5_chat *c);

/* If the prompt ends inside an opened thought: the text that closes it ("</think>", "[/THINK]", ...), else NULL. */
const char *m5_chat_open_thought(m5_slice prompt);

#endif
