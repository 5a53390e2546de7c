/* SPDX-License-Identifier: Apache-2.0 */
/* What the tokenizer*.c files share: tables, pipeline steps, working memory of one call. Included by nobody else.
 *
 * Reading order: tokenizer_json.c / tokenizer_gguf.c fill an m5_tokenizer (tokenizer_scan.c reads the large arrays, tokenizer_vocab.c owns the
 * tables); tokenizer.c cuts a text at added tokens; each piece goes through tokenizer_norm.c, tokenizer_pre.c (tokenizer_regex.c) and
 * tokenizer_bpe.c; tokenizer_decode.c goes the other way. */
#ifndef M5_TEXT_TOKENIZER_INTERNAL_H
#define M5_TEXT_TOKENIZER_INTERNAL_H

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"
#include "text/tokenizer.h"

#define TOK_NONE UINT32_MAX

/* ---- tables ---- */
enum {
    TOK_MODEL = 1,     /* the merge model may produce it */
    TOK_ADDED = 2,     /* matched in the text before the model sees it */
    TOK_SPECIAL = 4,   /* control token: hidden by skip_special, never formed from untrusted text */
    TOK_MARKER = 8,    /* added token that structures a chat without being special (<tool_call>): not formed from untrusted spans */
    TOK_VERBATIM = 16, /* decoding copies the text, whatever the decoder does to others */
    TOK_USED = 32      /* the id exists; ids between entries are holes */
};

typedef struct tok_entry {
    uint32_t off, n;   /* text in pool */
    uint32_t poff, pn; /* decoded bytes in piece_pool */
    uint8_t flags;
} tok_entry;

typedef struct tok_merge {
    uint64_t key; /* left id << 32 | right id; UINT64_MAX = empty slot */
    uint32_t rank;
    int32_t id;
} tok_merge;

typedef struct tok_added {
    m5_slice content; /* owned by the pool of the tokenizer; normalised for the second pass */
    int32_t id;
    bool single_word, lstrip, rstrip, normalized;
    bool spaced; /* U+2581 in the text also matches a space: GGUF spells Gemma's space runs so */
} tok_added;

/* Byte trie, children as linked siblings; root[b] is the node of first byte b, 0 = none. */
typedef struct tok_trie_node {
    uint32_t child, sibling;
    uint32_t added; /* index into added[] or TOK_NONE */
    uint8_t byte;
} tok_trie_node;
typedef struct tok_trie {
    tok_trie_node *node;
    size_t n, cap;
    uint32_t root[256];
} tok_trie;

/* ---- pipeline steps ---- */
typedef struct tok_regex tok_regex;

typedef struct tok_pattern { /* exactly one is set */
    tok_regex *regex;
    char *literal;
    size_t n_literal;
} tok_pattern;

typedef enum tok_norm_kind { TOK_NORM_FORM, TOK_NORM_REPLACE, TOK_NORM_PREPEND } tok_norm_kind;
typedef struct tok_norm {
    tok_norm_kind kind;
    bool compose, compat; /* FORM: NFC = compose, NFKD = compat ... */
    tok_pattern pattern;  /* REPLACE */
    char *text;           /* REPLACE: new text; PREPEND */
    size_t n_text;
} tok_norm;

typedef enum tok_split { TOK_ISOLATED, TOK_REMOVED, TOK_CONTIGUOUS, TOK_WITH_PREVIOUS, TOK_WITH_NEXT } tok_split;
typedef enum tok_pre_kind { TOK_PRE_SPLIT, TOK_PRE_PREFIX_SPACE, TOK_PRE_BYTES, TOK_PRE_METASPACE } tok_pre_kind;
typedef enum tok_prepend { TOK_PREPEND_ALWAYS, TOK_PREPEND_FIRST, TOK_PREPEND_NEVER } tok_prepend;
typedef struct tok_pre {
    tok_pre_kind kind;
    tok_pattern pattern; /* SPLIT */
    tok_split behavior;
    bool invert;
    tok_prepend prepend; /* METASPACE */
    char *text;          /* METASPACE: the replacement character */
    size_t n_text;
} tok_pre;

typedef enum tok_dec_kind {
    TOK_DEC_BYTE_LEVEL,
    TOK_DEC_REPLACE,
    TOK_DEC_BYTE_FALLBACK,
    TOK_DEC_FUSE,
    TOK_DEC_STRIP,
    TOK_DEC_METASPACE,
    TOK_DEC_SUFFIX /* end_of_word_suffix of each token becomes a space, nothing on the last */
} tok_dec_kind;
typedef struct tok_dec {
    tok_dec_kind kind;
    char *from, *to; /* REPLACE; STRIP and METASPACE use from */
    size_t n_from, n_to;
    int64_t start, stop; /* STRIP, in characters */
    bool drop_first;     /* METASPACE: replacement characters of the first token vanish */
} tok_dec;

struct m5_tokenizer {
    int32_t n_vocab;
    size_t cap_entry;
    tok_entry *entry; /* [n_vocab] */
    m5_buf pool, piece_pool;
    uint64_t *find_slot; /* hash of the text << 32 | id + 1, by that hash; 0 = empty */
    size_t n_find, cap_find;
    size_t max_token_bytes;

    bool by_score;  /* SentencePiece scores instead of ranked merges */
    bool byte_mode; /* units are raw bytes, vocabulary texts are in the byte alphabet */
    bool ignore_merges, byte_fallback, fuse_unk;
    int32_t unk;                      /* -1 = none */
    m5_slice sub_prefix, word_suffix; /* usually empty */
    int32_t byte_id[256];             /* byte_mode: the token of one byte, or -1 */
    int32_t fallback_id[256];         /* <0xXX>, or -1 */
    tok_merge *merge;
    size_t n_merge, cap_merge;
    uint32_t *prio;     /* by_score: [n_vocab], smaller = merged earlier */
    bool cut_words;     /* a unit may be cut in front of U+2581 ... */
    uint8_t bridge[32]; /* ... unless the byte before is set here: some token joins the two */

    tok_added *added;
    size_t n_added, cap_added;
    tok_trie raw_trie, norm_trie;
    bool norm_protected; /* norm_trie holds a special or marker token */

    tok_norm *norm;
    size_t n_norm;
    tok_pre *pre;
    size_t n_pre;
    tok_dec *dec;
    size_t n_dec;
    bool has_decoder; /* false: tokens are joined by a space */

    int32_t bos;
    bool adds_bos;
    int32_t *prefix; /* what add_bos puts in front */
    size_t n_prefix;
    int32_t eos[8];
    size_t n_eos;
};

/* ---- working memory of one call ---- */
typedef struct tok_range {
    uint32_t begin, end;
} tok_range;
typedef struct tok_ranges {
    tok_range *p;
    size_t n, cap;
} tok_ranges;

typedef struct tok_sym {
    int32_t id, prev, next;
    uint32_t prio; /* of merging this symbol with the next; TOK_NONE = cannot */
    int32_t merged;
    uint32_t begin, n; /* bytes of the unit; n == 0: merged away */
} tok_sym;
typedef struct tok_heap_item {
    uint32_t prio;
    int32_t pos, merged;
} tok_heap_item;

#define TOK_CACHE_KEY   15
#define TOK_CACHE_IDS   7
#define TOK_CACHE_SLOTS 2048
typedef struct tok_cache {
    char key[TOK_CACHE_KEY];
    uint8_t n_key; /* 0 = empty */
    int32_t ids[TOK_CACHE_IDS];
    uint8_t n_ids;
} tok_cache;

typedef struct tok_work {
    const m5_tokenizer *t;
    m5_ids *out;
    m5_error *err;
    int32_t unk;                 /* the tokenizer's, or -1 where it would let untrusted text form a control token */
    m5_buf norm[2], norm_map[2]; /* normalised text; for each byte the tok_range of the piece it came from */
    m5_buf pre_text[2];
    tok_ranges pre[2], matches;
    m5_buf subject, scratch;
    void *match;  /* pcre2_match_data */
    int32_t *cps; /* normalisation */
    size_t cap_cps;
    tok_sym *sym;
    size_t cap_sym;
    tok_heap_item *heap;
    size_t n_heap, cap_heap;
    tok_cache *cache;
} tok_work;
void m5_tok_work_deinit(tok_work *w);

/* ---- tokenizer_vocab.c ---- */
/* Makes room for ids below n; new entries are holes. */
int m5_tok_vocab_reserve(m5_tokenizer *t, int64_t n, m5_error *err);
/* Sets the text of an id that is a hole. find keeps the first id of equal texts. */
int m5_tok_vocab_set(m5_tokenizer *t, int32_t id, m5_slice text, uint8_t flags, m5_error *err);
int32_t m5_tok_vocab_find(const m5_tokenizer *t, const char *p, size_t n);
m5_slice m5_tok_text(const m5_tokenizer *t, int32_t id);
int m5_tok_merges_reserve(m5_tokenizer *t, size_t n, m5_error *err);
/* Adds the rule (left, right) -> their concatenation; a later rule for the same pair replaces the earlier one. */
int m5_tok_merge_add(m5_tokenizer *t, m5_slice left, m5_slice right, uint32_t rank, m5_buf *scratch, m5_error *err);
/* Adds or redefines an added token; id < 0 = the next free one. */
int m5_tok_added_put(m5_tokenizer *t, m5_slice content, tok_added how, bool special, int32_t id, m5_error *err);
/* After all entries, merges and steps are known: tries, byte tokens, word cuts, pieces, end tokens. */
int m5_tok_finish(m5_tokenizer *t, m5_error *err);
bool m5_tok_is_chat_marker(m5_slice text);
/* Byte alphabet of byte-level BPE: code point of a byte, and back (-1 = not in the alphabet). */
uint32_t m5_tok_byte_to_cp(uint8_t b);
int m5_tok_cp_to_byte(uint32_t cp);
bool m5_tok_parse_byte_token(m5_slice text, uint8_t *byte);
uint32_t m5_tok_hash(const char *p, size_t n);
static inline uint32_t m5_tok_pair_hash(uint64_t key)
{
    return (uint32_t)((key * 0x9E3779B97F4A7C15u) >> 32); /* Fibonacci hashing; the high half mixes both ids */
}

/* ---- tokenizer_scan.c: the vocabulary and merges of a tokenizer.json without a JSON tree ---- */
typedef struct tok_scan_model {
    m5_slice vocab, merges; /* the two values as they stand in the text; empty when absent */
    m5_buf rest;            /* the text with both replaced by 0 */
} tok_scan_model;
int m5_tok_scan_model(tok_scan_model *out, const char *json, size_t n, m5_error *err);
int m5_tok_scan_vocab(m5_tokenizer *t, m5_slice object, m5_error *err);
int m5_tok_scan_merges(m5_tokenizer *t, m5_slice array, m5_error *err);

/* ---- tokenizer_regex.c ---- */
int m5_tok_regex_compile(tok_regex **out, const char *pattern, size_t n, m5_error *err);
void m5_tok_regex_free(tok_regex *rx);
/* The pattern in PCRE2's spelling; plain_names leaves property names as they are. For tests. */
int m5_tok_regex_translate(m5_buf *out, const char *pattern, size_t n, bool plain_names, m5_error *err);
/* All matches of the pattern in p[0..n) into w->matches, in order, empty ones as Oniguruma's iterator gives them. */
int m5_tok_pattern_matches(tok_work *w, const tok_pattern *pat, const char *p, size_t n);
void m5_tok_pattern_deinit(tok_pattern *pat);
/* A character of the same category from Unicode 14 for one of Unicode 15 or 16; cp itself otherwise. */
uint32_t m5_tok_older_char(uint32_t cp);
void m5_tok_match_free(void *match); /* accepts NULL */

/* ---- tokenizer_norm.c ---- */
/* Normalises p[0..n); *out borrows the input or w->norm. map (may be NULL) receives for each byte of *out the range it came from, or NULL when
 * the text is unchanged. */
int m5_tok_normalize(tok_work *w, const char *p, size_t n, m5_slice *out, const tok_range **map);
bool m5_tok_is_space(uint32_t cp); /* White_Space */
bool m5_tok_is_word(uint32_t cp);

/* ---- tokenizer_pre.c: pre-tokenizes one piece and hands the units to the model ---- */
int m5_tok_pre_run(tok_work *w, const char *p, size_t n, bool at_start);
int m5_tok_ranges_push(tok_ranges *r, size_t begin, size_t end);

/* ---- tokenizer_bpe.c ---- */
int m5_tok_bpe(tok_work *w, const char *p, size_t n);

/* ---- tokenizer_decode.c ---- */
/* Fills the decoded bytes of every entry. */
int m5_tok_make_pieces(m5_tokenizer *t, m5_error *err);
int m5_tok_check_decoder(const m5_tokenizer *t, m5_error *err);

#endif
