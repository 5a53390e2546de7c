/* SPDX-License-Identifier: Apache-2.0 */
/* Sequence memory from outside the forward pass: sharing pages between sequences, saving and restoring recurrent rows, cutting back.
 * Room: model/state.c. Thread: the engine thread.
 *
 * A page holds K and V of page_tok consecutive tokens for every attention layer and is shared by reference count; a page with several owners is
 * copied before it is written. A recurrent row holds the state of every gated delta net layer at one position. A prefix is restored from its pages
 * and, when the model has recurrent layers, the row saved at exactly that position. */
#ifndef M5_MODEL_STATE_H
#define M5_MODEL_STATE_H

#include "model/model.h"

typedef struct m5_page m5_page;

int m5_model_page_tok(const m5_model *m);
size_t m5_model_page_bytes(const m5_model *m);
bool m5_model_recurrent(const m5_model *m);      /* has recurrent rows */
uint64_t m5_model_state_used(const m5_model *m); /* bytes of pages, rows and rings in use */
uint64_t m5_model_state_copies(const m5_model *m); /* pages and rows that were copied so far */

/* Page i of s (tokens [i * page_tok, ...)), with one more owner. Owner: caller, m5_page_unref. */
m5_page *m5_seq_page_ref(const m5_seq *s, int i);
/* A page with one owner and undefined content, to be filled from a file. NULL when the budget is used up. */
m5_page *m5_page_new(m5_model *m);
void m5_page_ref(m5_page *p);
void m5_page_unref(m5_model *m, m5_page *p); /* NULL allowed */
void *m5_page_data(m5_page *p);              /* [m5_model_page_bytes] */

/* Takes the memory that a run with hold needs now instead of in its forward. Errors: M5_ERR_NOMEM. */
int m5_seq_ready_hold(m5_seq *s, m5_error *err);
bool m5_seq_holds(const m5_seq *s); /* that memory is there */
/* Gives it back, after accepted rows have entered the recurrent state; nothing held may be outstanding. True when there was any. */
bool m5_seq_drop_hold(m5_seq *s);
size_t m5_model_hold_bytes(const m5_model *m); /* of one sequence */
/* Accepted held rows enter the recurrent state now instead of with the next forward. */
void m5_seq_settle(m5_seq *s);
/* The recurrent row at m5_seq_pos, m5_model_row_bytes long; settles first. Nothing held may be outstanding. */
void m5_seq_row_save(m5_seq *s, void *dst);
/* s becomes a sequence of n_tok tokens whose K and V are in pages (ceil(n_tok / page_tok) of them, each gets one more owner). row: saved at n_tok,
 * NULL for models without recurrent layers. Errors: M5_ERR_NOMEM, then s is as it was. */
int m5_seq_restore(m5_seq *s, m5_page *const *pages, int n_tok, const void *row, m5_error *err);
/* Forgets the tokens from n_tok on. Errors: M5_ERR_UNSUPPORTED for models with recurrent layers unless n_tok is 0 or the current position. */
int m5_seq_truncate(m5_seq *s, int n_tok, m5_error *err);

#endif
