/* SPDX-License-Identifier: Apache-2.0 */
/* Text <-> token ids, from a tokenizer.json or from GGUF metadata. Room: text/tokenizer*.c; the home of PCRE2 and utf8proc. */
#ifndef M5_TEXT_TOKENIZER_H
#define M5_TEXT_TOKENIZER_H

#include "base/err.h"
#include "base/json.h"
#include "base/str.h"

#include <stdint.h>

typedef struct m5_tokenizer m5_tokenizer;

/* Immutable after opening, so any thread may use it. Owner: caller. tokenizer_config may be NULL (borrowed for the call): add_bos_token, bos/eos.
 * Errors: M5_ERR_FORMAT and M5_ERR_LIMIT for a file that contradicts itself, M5_ERR_UNSUPPORTED for models other than BPE and for pipeline steps
 * or patterns that this build cannot run; the message names them. On error *out is unchanged. */
int m5_tokenizer_from_json(m5_tokenizer **out, const char *json, size_t n, const m5_json *tokenizer_config, m5_error *err);

/* What a GGUF file says; arrays borrowed for the call. Strings are slices into the mapping. An unknown `pre` falls back to GPT-2's pattern with a
 * warning in the log. Token types 3 (control) and 2 (unknown) are special, type 4 (user-defined) is matched everywhere. */
typedef struct m5_gguf_vocab {
    m5_slice model, pre; /* tokenizer.ggml.model, .pre */
    const m5_slice *tokens;
    int64_t n_tokens;
    const float *scores;  /* [n_tokens] or NULL; may be unaligned in the file, so the caller copies */
    const int32_t *types; /* [n_tokens] or NULL */
    const m5_slice *merges;
    int64_t n_merges;
    int32_t bos, eos, eot, eom, unk, pad;   /* -1 = absent */
    int add_bos, add_eos, add_space_prefix; /* -1 = key absent */
} m5_gguf_vocab;
int m5_tokenizer_from_gguf(m5_tokenizer **out, const m5_gguf_vocab *v, m5_error *err);
void m5_tokenizer_free(m5_tokenizer *t);

int32_t m5_tokenizer_n_vocab(const m5_tokenizer *t);
/* Id of a token by its exact content as the vocabulary spells it (byte alphabet, U+2581; added tokens included), or -1. */
int32_t m5_tokenizer_find(const m5_tokenizer *t, m5_slice content);
int32_t m5_tokenizer_bos(const m5_tokenizer *t); /* -1 = none */
bool m5_tokenizer_adds_bos(const m5_tokenizer *t);
bool m5_tokenizer_is_control(const m5_tokenizer *t, int32_t id); /* special added token: never produced from user text, but for a plain <unk> */
/* Bytes of a token for people, logprobs and grammars: decoded alone, so maybe an incomplete UTF-8 sequence; the space that some decoders strip
 * from the start of a whole text stays. Borrowed, valid until free. */
m5_slice m5_tokenizer_piece(const m5_tokenizer *t, int32_t id);
/* End tokens: those the file names, then well-known names that are special tokens or markers of this vocabulary; at most cap ids. */
int m5_tokenizer_stop_ids(const m5_tokenizer *t, int32_t *out, int cap);

typedef enum m5_special { M5_SPECIAL_NONE, M5_SPECIAL_PARSE } m5_special;
typedef struct m5_ids {
    int32_t *p;
    size_t n, cap;
} m5_ids;
void m5_ids_free(m5_ids *ids);
int m5_ids_push(m5_ids *ids, int32_t id);

/* Appends the ids of text. M5_SPECIAL_PARSE recognises all added tokens; M5_SPECIAL_NONE recognises only non-special added tokens: control
 * tokens in the text come out as ordinary characters, also where merges of their letters would lead to the token. add_bos puts BOS (or whatever
 * the file's rule puts in front of a text; never what it puts behind) in front if the tokenizer has that rule and *out is empty. Ill-formed
 * UTF-8 is read as U+FFFD. On error *out keeps its length. */
int m5_tokenize(const m5_tokenizer *t, m5_ids *out, const char *text, size_t n, m5_special special, bool add_bos, m5_error *err);

/* A prompt made of pieces of different trust: only trusted spans may form control tokens. Text between control tokens is tokenised as one unit
 * across span borders, so an honest prompt gives the ids of the plain text with M5_SPECIAL_PARSE.
 *
 * The rule covers chat markers too: added tokens that are not `special` but structure a chat (<think>, <tool_call>, <|fim_prefix|>, [INST] ...; see
 * m5_tok_is_chat_marker). Hugging Face and llama.cpp would turn a user's literal "<tool_call>" into the token; here it stays letters, since a user
 * could otherwise forge calls and tool results. Other added tokens (Gemma's <h1>, runs of newlines) are text and matched everywhere.
 * Spans are in order and do not overlap; bytes in none are untrusted; trusted spans that touch count as one. */
typedef struct m5_text_span {
    size_t begin, end; /* bytes of text */
    bool trusted;      /* template text: control tokens are recognised when they lie wholly inside trusted text */
} m5_text_span;
int m5_tokenize_spans(const m5_tokenizer *t, m5_ids *out, const char *text, size_t n, const m5_text_span *spans, size_t n_spans, bool add_bos,
                      m5_error *err);

/* Whole-text decode as Hugging Face's decoder does; skip_special leaves control tokens out. */
int m5_detokenize(const m5_tokenizer *t, m5_buf *out, const int32_t *ids, size_t n, bool skip_special, m5_error *err);

/* Streaming decode: push tokens, take complete characters. Never emits part of a character; ill-formed bytes become U+FFFD exactly as the whole
 * decode would give. The concatenation of all outputs plus flush equals m5_detokenize of all ids. */
typedef struct m5_decoder m5_decoder;
int m5_decoder_new(m5_decoder **out, const m5_tokenizer *t, bool skip_special, m5_error *err);
void m5_decoder_free(m5_decoder *d);
int m5_decoder_push(m5_decoder *d, int32_t id, m5_buf *out); /* appends what is now certain */
int m5_decoder_flush(m5_decoder *d, m5_buf *out);            /* end of stream */

#endif
