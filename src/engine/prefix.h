/* SPDX-License-Identifier: Apache-2.0 */
/* Prompt state that outlives its request: a tree over token ids whose nodes share KV pages with sequences, and, for models with recurrent layers,
 * copies of the recurrent row ("checkpoints") at chosen positions. Room: engine/prefix.c. Thread: the engine thread.
 *
 *     root --[ids 0..63, page]-- [64..127, page] --[128..150, page, tail]        checkpoints hang on the node whose tokens they follow:
 *                          \\-- [64..127', page] ...                             position 64 k + i lies in the node of depth k
 *
 * A node holds one page: page_tok tokens, or fewer in a leaf (a tail). Branches that part inside a page keep a page each; everything before is
 * shared. A prefix can be resumed where its pages are there and, with recurrent layers, a checkpoint: at the deepest one within the common prefix. */
#ifndef M5_ENGINE_PREFIX_H
#define M5_ENGINE_PREFIX_H

#include "model/state.h"

typedef struct m5_prefix m5_prefix;

/* A recurrent row that tree, writer and reader may share; counted by the engine thread alone. */
typedef struct m5_row {
    int n_owner;
    size_t n_bytes;
    _Alignas(64) unsigned char data[];
} m5_row;
m5_row *m5_row_new(size_t n_bytes); /* one owner, content undefined; NULL when out of memory */
m5_row *m5_row_ref(m5_row *r);
void m5_row_unref(m5_row *r);

typedef struct m5_prefix_stats {
    uint64_t bytes, budget_bytes; /* pages (counted once each) and checkpoints held by the tree */
    uint64_t n_node, n_checkpoint;
    uint64_t n_lookup, n_hit, n_hit_tokens, n_prompt_tokens;
    uint64_t n_evicted_bytes;
} m5_prefix_stats;

/* budget_bytes 0 = keep nothing (every call is a no-op). */
int m5_prefix_open(m5_prefix **out, m5_model *m, uint64_t budget_bytes, m5_error *err);
void m5_prefix_close(m5_prefix *p); /* before the model closes; NULL allowed */

/* Where a lookup ended and why. */
typedef struct m5_prefix_match {
    int n_resumed;  /* tokens of state now in the sequence */
    int n_common;   /* tokens the tree has in common with the prompt, >= n_resumed */
    int32_t stored; /* first token in which the nearest stored branch differs from the prompt, -1 = the branch ends there */
} m5_prefix_match;

/* Puts into s the longest usable state of ids[0..n), at most n - 1 tokens (the last token's logits are always computed). s is empty or replaced.
 * Nothing usable: n_resumed 0 and s is empty. Out of memory counts as nothing usable. */
void m5_prefix_resume(m5_prefix *p, m5_seq *s, const int32_t *ids, int n, m5_prefix_match *match);

/* Tokens m5_prefix_resume would restore, without doing it: lets a scheduler compare. */
int m5_prefix_probe(const m5_prefix *p, const int32_t *ids, int n);

/* Tokens at the start of ids[0..n) that some stored branch has too. */
int m5_prefix_common(const m5_prefix *p, const int32_t *ids, int n);
/* What stored branches hold after exactly ids[0..n): branch 0, 1, .. one after the other, each followed down its most recently used child. Copies at
 * most cap tokens and returns how many; 0 = no such branch. */
int m5_prefix_follow(const m5_prefix *p, const int32_t *ids, int n, int branch, int32_t *out, int cap);

/* Keeps the state of s, whose m5_seq_pos tokens are ids[0..pos). checkpoint: also the recurrent row at pos (ignored without recurrent layers).
 * Nothing held may be outstanding in s. Failing to find room is not an error. */
void m5_prefix_save(m5_prefix *p, m5_seq *s, const int32_t *ids, bool checkpoint);

/* The kept state at exactly ids[0..n_tok), borrowed until the next call that changes the tree: *pages has ceil(n_tok / page_tok) entries. False when
 * it is not there. */
bool m5_prefix_export(m5_prefix *p, const int32_t *ids, int n_tok, m5_page *const **pages, m5_row **row);
/* Adds pages [first_page, first_page + n_page) of ids[0..n_tok) and (row not NULL) a checkpoint at n_tok. Takes the pages and the row, also on
 * failure. The pages before first_page must be in the tree. False when there was no room or something before is missing. */
bool m5_prefix_import(m5_prefix *p, const int32_t *ids, int n_tok, int first_page, m5_page **pages, int n_page, m5_row *row);

/* Gives back at least n bytes of state memory if the tree has them; true when anything was freed. */
bool m5_prefix_evict(m5_prefix *p, uint64_t n_bytes);
void m5_prefix_clear(m5_prefix *p);
void m5_prefix_get_stats(const m5_prefix *p, m5_prefix_stats *out);

#endif
