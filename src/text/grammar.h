/* SPDX-License-Identifier: Apache-2.0 */
/* Structured output: a JSON schema, a GBNF grammar, a regular expression or a list of choices becomes one grammar over bytes; a matcher tells for a
 * sequence of tokens which may come next. Room: text/grammar*.c. Not here: when a grammar starts (after thinking), sampling, forced drawing.
 *
 * Reading order: grammar_internal.h (the syntax tree, the program), grammar.c (tree -> program), grammar_auto.c (the lazy automaton),
 * grammar_mask.c (vocabulary, masks, matchers); grammar_schema.c, grammar_number.c, grammar_regex.c, grammar_gbnf.c and grammar_tools.c fill trees.
 *
 * What is supported and what is loosened stands in docs/FORMATS.md, "Structured output".
 *
 * Thread: grammars are compiled on any thread and never change as far as callers can see. Matchers and everything they do (also with a shared
 * grammar or vocabulary, which keep caches) belong to one thread, the engine's. */
#ifndef M5_TEXT_GRAMMAR_H
#define M5_TEXT_GRAMMAR_H

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"
#include "text/tokenizer.h"

#include <stdint.h>

/* ---- grammars ---- */
typedef struct m5_grammar m5_grammar;

/* Reference counted; the last unref frees (NULL allowed). Thread: any. A matcher holds its own reference. */
m5_grammar *m5_grammar_ref(m5_grammar *g);
void m5_grammar_unref(m5_grammar *g);

/* All constructors: owner is the caller; on error *out is unchanged. Errors: M5_ERR_FORMAT for text that is wrong (the message names the place),
 * M5_ERR_UNSUPPORTED for a construct of a regular expression outside the subset, M5_ERR_LIMIT for size, depth or work, M5_ERR_NOMEM. */

/* JSON text valid under the schema. A keyword that cannot be enforced is left out and listed (m5_grammar_loosened), never refused.
 * Errors: M5_ERR_FORMAT when no text at all is valid (schema `false`, contradictions), M5_ERR_LIMIT. */
int m5_grammar_from_schema(m5_grammar **out, const m5_json *schema, m5_error *err);
/* Any JSON object (object_only: response_format json_object) or any JSON value. */
int m5_grammar_any_json(m5_grammar **out, bool object_only, m5_error *err);
/* llama.cpp's GBNF; the start rule is `root`. */
int m5_grammar_from_gbnf(m5_grammar **out, const char *text, size_t n, m5_error *err);
/* The whole text must match. */
int m5_grammar_from_regex(m5_grammar **out, const char *pattern, size_t n, m5_error *err);
/* One of the strings, verbatim. n >= 1. */
int m5_grammar_from_choices(m5_grammar **out, const m5_slice *choices, size_t n, m5_error *err);

/* What a schema asked for and the grammar does not enforce: "pattern at /properties/name". Borrowed until the grammar goes. */
size_t m5_grammar_n_loosened(const m5_grammar *g);
const char *m5_grammar_loosened(const m5_grammar *g, size_t i);

/* ---- builder: grammars out of pieces ----
 * Nodes are numbers; a node may be used many times. A failed call returns -1, remembers the first error and makes later calls return -1, so that
 * code may build freely and check once in m5_gb_finish. */
typedef struct m5_gb m5_gb;
int m5_gb_new(m5_gb **out, m5_error *err);
void m5_gb_free(m5_gb *b); /* accepts NULL */
int32_t m5_gb_literal(m5_gb *b, m5_slice text);
/* A marker of a wire format: the control token of that spelling where the vocabulary has one (t may be NULL), else the text. */
int32_t m5_gb_marker(m5_gb *b, const m5_tokenizer *t, m5_slice text);
int32_t m5_gb_seq(m5_gb *b, const int32_t *items, size_t n);
int32_t m5_gb_alt(m5_gb *b, const int32_t *items, size_t n);
int32_t m5_gb_choices(m5_gb *b, const m5_slice *texts, size_t n);
int32_t m5_gb_repeat(m5_gb *b, int32_t item, int64_t min, int64_t max); /* max < 0: no bound */
int32_t m5_gb_optional(m5_gb *b, int32_t item);
/* JSON under a schema (borrowed for the call; NULL: any value). where is put in front of the places in the list of loosened keywords. */
int32_t m5_gb_schema(m5_gb *b, const m5_json *schema, const char *where);
int32_t m5_gb_regex(m5_gb *b, m5_slice pattern);
/* Any UTF-8 text in which `end` (ASCII) does not occur before its end, then `end` itself. */
int32_t m5_gb_text_until(m5_gb *b, m5_slice end);
/* Takes the nodes reachable from root; the builder may only be freed afterwards. */
int m5_gb_finish(m5_gb *b, int32_t root, m5_grammar **out, m5_error *err);

/* ---- tool calls ---- */
struct m5_toolcall_format; /* text/toolcall.h */
typedef struct m5_grammar_tool_args {
    const struct m5_toolcall_format *format;
    const m5_json *tools;      /* the request's list, its items wrapped as {"type": "function", "function": {..}} or bare */
    const char *name;          /* only this function may be called; NULL: any of the list */
    bool parallel;             /* more calls may follow the first */
    const m5_tokenizer *vocab; /* whose control tokens spell the format's marks; may be NULL */
} m5_grammar_tool_args;
/* An answer that is a call (or calls) of the tools, with arguments under their schemas, in the wire format; nothing before and nothing behind. The
 * list of loosened keywords names function and place. Errors: as above; M5_ERR_NOTFOUND for a name that is not in the list, M5_ERR_FORMAT for no
 * tools. */
int m5_grammar_from_tool_calls(m5_grammar **out, const m5_grammar_tool_args *args, m5_error *err);

/* ---- vocabulary: every token's bytes, prepared once per tokenizer ---- */
typedef struct m5_grammar_vocab m5_grammar_vocab;
/* Owner: caller; outlives its matchers. Control tokens and tokens without bytes never match text; end tokens (m5_tokenizer_stop_ids) are allowed
 * exactly where the grammar may end. Takes some 100 ms for 150 000 tokens. */
int m5_grammar_vocab_new(m5_grammar_vocab **out, const m5_tokenizer *t, m5_error *err);
/* For tests: pieces[id]; an empty piece never matches. */
int m5_grammar_vocab_of(m5_grammar_vocab **out, const m5_slice *pieces, int32_t n, const int32_t *end_ids, int n_end, m5_error *err);
void m5_grammar_vocab_free(m5_grammar_vocab *v); /* accepts NULL */

/* ---- matcher: one sequence ---- */
typedef struct m5_matcher m5_matcher;
/* A grammar serves one vocabulary: M5_ERR_ARG when live matchers use it with another. Owner: caller. */
int m5_matcher_new(m5_matcher **out, m5_grammar *g, m5_grammar_vocab *v, m5_error *err);
int m5_matcher_copy(m5_matcher **out, const m5_matcher *m, m5_error *err);
void m5_matcher_free(m5_matcher *m); /* accepts NULL */
void m5_matcher_reset(m5_matcher *m);

/* Writes n_words words, bit id % 64 of word id / 64; ids beyond the vocabulary stay 0. Errors: M5_ERR_LIMIT (the state became too large),
 * M5_ERR_NOMEM, M5_ERR_UNSUPPORTED when the vocabulary has no token to go on with (it lacks single bytes); bits are all 0 then. */
int m5_matcher_mask(m5_matcher *m, uint64_t *bits, size_t n_words, m5_error *err);
/* Takes a token. Errors: M5_ERR_ARG when the grammar forbids it (the state stays), M5_ERR_LIMIT, M5_ERR_NOMEM. */
int m5_matcher_accept(m5_matcher *m, int32_t id, m5_error *err);
/* Takes text that somebody else put (a typed opening); all or nothing. Errors as accept. */
int m5_matcher_accept_bytes(m5_matcher *m, const char *p, size_t n, m5_error *err);
/* How many of the n bytes the grammar would take; changes nothing. */
size_t m5_matcher_peek(m5_matcher *m, const char *p, size_t n);
/* May the text end here? Is there nothing else that could follow? Was an end token accepted? */
bool m5_matcher_can_end(const m5_matcher *m);
bool m5_matcher_is_complete(m5_matcher *m);
bool m5_matcher_ended(const m5_matcher *m);
/* Jump-ahead. Appends the bytes that must come next; they end where there is a choice, where a control token is due and where the text may end. */
int m5_matcher_forced_bytes(m5_matcher *m, m5_buf *out, m5_error *err);
/* The same as tokens, at most cap: t's own spelling of those bytes, without the last one where it could be part of a longer token that the
 * grammar allows; a control token that is due counts as one. Returns the number of ids or a negative error. The state stays: accept them. */
int m5_matcher_forced(m5_matcher *m, const m5_tokenizer *t, int32_t *ids, int cap, m5_error *err);

#endif
