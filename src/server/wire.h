/* SPDX-License-Identifier: Apache-2.0 */
/* How the served model writes: the tags of its thoughts, its tool calls, and its vocabulary as grammars see it. Prepared once per model, shared by
 * all requests. Room: server/wire.c. */
#ifndef M5_SERVER_WIRE_H
#define M5_SERVER_WIRE_H

#include "text/chat.h"
#include "text/grammar.h"
#include "text/tokenizer.h"
#include "text/toolcall.h"

typedef struct m5_wire m5_wire;
struct m5_wire {
    const m5_tokenizer *tok;
    const m5_chat *chat;
    const m5_chat_thought *thought; /* NULL = the family has none */
    int32_t open_id, close_id;      /* the token each tag begins with (close: which it is), or -1 */
    m5_ids open_rest;               /* what follows open_id in the opening tag */
    m5_ids close_line, close_bare;  /* closing tag with the white space behind it; close_line puts that before it too */
    m5_ids after;                   /* the white space behind it alone */
    m5_toolcall_format *format;
    m5_ids marks; /* control tokens whose text the tool parser must see */
    struct m5_wire_lazy *lazy;
};

/* tok and chat are borrowed until free. Errors: M5_ERR_NOMEM. */
int m5_wire_new(m5_wire **out, const m5_tokenizer *tok, const m5_chat *chat, m5_error *err);
void m5_wire_free(m5_wire *w);
/* Whether the token's text belongs to the answer: control tokens do not, but for tags and marks. */
bool m5_wire_shows(const m5_wire *w, int32_t id);
/* Made at the first call. Thread: any for this call, the engine's for its use. */
int m5_wire_vocab(m5_wire *w, m5_grammar_vocab **out, m5_error *err);

#endif
