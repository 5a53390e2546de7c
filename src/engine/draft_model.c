/* SPDX-License-Identifier: Apache-2.0 */
/* The draft model: opening, the test of its vocabulary, guessing; see draft_model.h. */
#include "engine/draft_model.h"

#include "base/mem.h"
#include "engine/vocab.h"
#include "model/state.h"

#include <string.h>

enum { FEED_ROWS = 512 };

struct m5_draft_model {
    m5_model *model;
    m5_run *runs;  /* [n_parallel] */
    float *logits; /* [n_parallel, n_vocab] */
    int n_guess;   /* ids below it may be guessed */
    int n_ctx;     /* tokens that it was trained for */
};

/* Every id must mean the same text, or guesses and checks would speak of different things. */
static int check_vocab(const m5_tokenizer *own, const m5_tokenizer *vocab, const char *path, m5_error *err)
{
    if (!own || !vocab)
        return m5_error_set(err, M5_ERR_UNSUPPORTED, "%s cannot draft: %s brings no tokenizer to compare", path, own ? "the model" : "it");
    int n = m5_tokenizer_n_vocab(own), m = m5_tokenizer_n_vocab(vocab);
    for (int32_t i = 0; i < (n < m ? n : m); i++) {
        m5_slice a = m5_tokenizer_piece(own, i), b = m5_tokenizer_piece(vocab, i);
        if (a.n != b.n || (a.n && memcmp(a.p, b.p, a.n) != 0))
            return m5_error_set(err, M5_ERR_UNSUPPORTED, "%s cannot draft: its token %d is \"%.*s\", the model's is \"%.*s\"", path, (int)i,
                                (int)(a.n < 40 ? a.n : 40), a.p, (int)(b.n < 40 ? b.n : 40), b.p);
    }
    if (n != m) return m5_error_set(err, M5_ERR_UNSUPPORTED, "%s cannot draft: it has %d tokens, the model %d", path, n, m);
    return 0;
}

int m5_draft_model_open(m5_draft_model **out, const char *path, const m5_model_options *like, const m5_tokenizer *vocab, int n_parallel, int max_k,
                        m5_error *err)
{
    m5_tokenizer *own = NULL;
    m5_model_options mo = {
        .cpu = like->cpu, .kv_type = like->kv_type, .no_repack = like->no_repack, .progress = like->progress, .progress_ctx = like->progress_ctx};
    mo.max_batch_tok = FEED_ROWS > n_parallel * (max_k + M5_DRAFT_MAX_MISSING) ? FEED_ROWS : n_parallel * (max_k + M5_DRAFT_MAX_MISSING);
    mo.max_draft = max_k;
    m5_draft_model *d = m5_calloc(M5_MEM_MISC, 1, sizeof *d);
    *out = NULL;
    if (!d) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for a draft model");
    int rc = m5_vocab_open_tokenizer(&own, path, err);
    if (!rc) rc = check_vocab(own, vocab, path, err);
    if (!rc) rc = m5_model_open(&d->model, path, &mo, err);
    if (rc) goto out;
    const m5_config *c = m5_model_config(d->model);
    d->n_guess = m5_tokenizer_n_vocab(own) < c->n_vocab ? m5_tokenizer_n_vocab(own) : c->n_vocab;
    d->n_ctx = c->n_ctx_train > 0 ? c->n_ctx_train : 1 << 30;
    d->runs = m5_calloc(M5_MEM_SCRATCH, (size_t)n_parallel, sizeof *d->runs);
    d->logits = m5_calloc(M5_MEM_SCRATCH, (size_t)n_parallel * (size_t)c->n_vocab, sizeof *d->logits);
    if (!d->runs || !d->logits) {
        rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory for a draft model");
        goto out;
    }
    *out = d;
    d = NULL;
out:
    m5_tokenizer_free(own);
    m5_draft_model_close(d);
    return rc;
}

void m5_draft_model_close(m5_draft_model *d)
{
    if (!d) return;
    m5_free(d->runs);
    m5_free(d->logits);
    m5_model_close(d->model);
    m5_free(d);
}

const m5_model *m5_draft_model_model(const m5_draft_model *d)
{
    return d->model;
}

int m5_draft_seq_begin(m5_draft_model *d, m5_draft_seq *s, const int32_t *ids, int n, int cap)
{
    if (!s->seq && m5_seq_new(&s->seq, d->model, NULL)) return M5_ERR_NOMEM;
    if (m5_seq_ready_hold(s->seq, NULL)) return M5_ERR_NOMEM;
    if (cap > s->cap) {
        int32_t *p = m5_realloc(M5_MEM_REQUEST, s->ids, (size_t)cap * sizeof *p);
        if (!p) return M5_ERR_NOMEM;
        s->ids = p;
        s->cap = cap;
    }
    int have = m5_seq_pos(s->seq), same = 0;
    s->n_held = 0;
    while (same < have && same < n - 1 && s->ids[same] == ids[same]) same++;
    if (m5_seq_truncate(s->seq, same, NULL)) m5_seq_reset(s->seq); /* a recurrent state cannot go back */
    return 0;
}

void m5_draft_seq_free(m5_draft_seq *s)
{
    m5_seq_free(s->seq);
    m5_free(s->ids);
    *s = (m5_draft_seq){0};
}

int m5_draft_seq_missing(const m5_draft_seq *s, int n)
{
    return n - m5_seq_pos(s->seq);
}

/* The next run of certain tokens, remembered as part of the sequence. */
static m5_run next_run(m5_draft_seq *s, const int32_t *ids, int n_tok, bool want_logits)
{
    const int pos = m5_seq_pos(s->seq);
    memcpy(s->ids + pos, ids + pos, (size_t)n_tok * sizeof *ids);
    return (m5_run){.seq = s->seq, .ids = ids + pos, .n_tok = n_tok, .n_out = want_logits};
}

int m5_draft_seq_feed(m5_draft_model *d, m5_draft_seq *s, const int32_t *ids, int n, int max_rows)
{
    if (n > s->cap || n > d->n_ctx) return M5_ERR_CONTEXT;
    s->n_held = 0;
    int left = m5_draft_seq_missing(s, n);
    while (left > 0 && max_rows > 0) {
        int rows = left < max_rows ? left : max_rows;
        if (rows > FEED_ROWS) rows = FEED_ROWS;
        m5_run r = next_run(s, ids, rows, false);
        int rc = m5_model_forward(d->model, &r, 1, NULL, NULL);
        if (rc) return rc;
        left -= rows;
        max_rows -= rows;
    }
    return left;
}

static int32_t largest(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

int m5_draft_model_draft(m5_draft_model *d, const m5_draft_ask *asks, int n, int k, int32_t *out, m5_error *err)
{
    const size_t n_vocab = (size_t)m5_model_config(d->model)->n_vocab;
    for (int i = 0; i < n; i++) {
        const m5_draft_ask *a = &asks[i];
        const int left = m5_draft_seq_missing(a->s, a->n_ids);
        if (a->n_ids + k > a->s->cap || a->n_ids + k > d->n_ctx) return m5_error_set(err, M5_ERR_CONTEXT, "the draft model's context is full");
        if (left < 1 || left > M5_DRAFT_MAX_MISSING) return m5_error_set(err, M5_ERR_ARG, "%d tokens are missing", left);
    }
    for (int i = 0; i < n; i++) asks[i].s->n_held = 0;
    for (int i = 0; i < n; i++) d->runs[i] = next_run(asks[i].s, asks[i].ids, m5_draft_seq_missing(asks[i].s, asks[i].n_ids), true);
    for (int j = 0;; j++) {
        int rc = m5_model_forward(d->model, d->runs, n, d->logits, err);
        if (rc) return rc;
        for (int i = 0; i < n; i++) out[i * k + j] = largest(d->logits + (size_t)i * n_vocab, d->n_guess);
        if (j + 1 == k) break;
        /* Held rows are forgotten by the next forward, so it computes them again together with the new one: rows beside each other cost little. */
        for (int i = 0; i < n; i++) d->runs[i] = (m5_run){.seq = asks[i].s->seq, .ids = out + i * k, .n_tok = j + 1, .n_out = 1, .hold = true};
    }
    for (int i = 0; i < n; i++) {
        memcpy(asks[i].s->ids + asks[i].n_ids, out + i * k, (size_t)(k - 1) * sizeof *out);
        asks[i].s->n_held = k - 1;
    }
    return 0;
}

void m5_draft_seq_checked(m5_draft_seq *s, int n_right)
{
    m5_seq_commit(s->seq, n_right < s->n_held ? n_right : s->n_held);
    s->n_held = 0;
}
