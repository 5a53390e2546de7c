/* SPDX-License-Identifier: Apache-2.0 */
/* Forward of the next-token head. Room: model/mtp.c.
 *
 *   m = fc [ norm(embd[token t + 1]) | norm(hidden of token t) ];   m = decoder block(m);   logits = head(norm(m)) */
#include "model/mtp.h"

#include <string.h>

#include "model/internal.h"

bool m5_mtp_present(const m5_model *m)
{
    return m->mtp;
}

static int check(m5_model *m, const m5_mtp_run *runs, int n_run, m5_error *err)
{
    int64_t n_tok = 0;
    if (!m->mtp) return m5_error_set(err, M5_ERR_UNSUPPORTED, "the model has no next-token head");
    for (int i = 0; i < n_run; i++) {
        const m5_mtp_run *r = &runs[i];
        if (r->n_tok < 1 || r->n_out < 0 || r->n_out > r->n_tok) return m5_error_set(err, M5_ERR_ARG, "%d outputs of %d pairs", r->n_out, r->n_tok);
        if (r->pos < 0 || r->pos / m->page_tok > r->seq->n_page)
            return m5_error_set(err, M5_ERR_ARG, "a pair at slot %d of a sequence of %d tokens", r->pos, r->seq->pos);
        for (int t = 0; t < r->n_tok; t++)
            if (r->ids[t] < 0 || r->ids[t] >= m->cfg->n_vocab)
                return m5_error_set(err, M5_ERR_ARG, "token id %d is outside [0, %d)", (int)r->ids[t], m->cfg->n_vocab);
        n_tok += r->n_tok;
    }
    if (n_tok < 1 || n_tok > m->max_tok)
        return m5_error_set(err, M5_ERR_ARG, "a batch of %lld pairs, between 1 and %d allowed", (long long)n_tok, m->max_tok);
    return 0;
}

/* The joined input of every pair, [n_tok, 2 n_embd], in m->work. */
static void join(m5_model *m, const m5_mtp_run *runs, int n_run)
{
    const m5_mtp_weights *w = &m->w->mtp;
    const int n = m->cfg->n_embd;
    const m5_matrix *embd = m5_matrix_present(&w->embd) ? &w->embd : &m->w->embd;
    for (int i = 0, row = 0; i < n_run; row += runs[i++].n_tok) {
        float *cat = m->work + (size_t)row * 2 * (size_t)n;
        for (int t = 0; t < runs[i].n_tok; t++) m5_cpu_row(m->cpu, embd, runs[i].ids[t], m->y + (size_t)(row + t) * (size_t)n);
        m5_cpu_rmsnorm(m->cpu, cat, 2 * n, m->y + (size_t)row * (size_t)n, n, w->embd_norm, runs[i].n_tok, n, m->cfg->rms_eps);
        m5_cpu_rmsnorm(m->cpu, cat + n, 2 * n, runs[i].hidden, n, w->hidden_norm, runs[i].n_tok, n, m->cfg->rms_eps);
    }
}

static void block(m5_model *m, const m5_step *st)
{
    const m5_config *c = m->cfg;
    const m5_layer_weights *lw = &m->w->mtp.layer;
    const int n = c->n_embd;
    m5_cpu_rmsnorm(m->cpu, m->h, n, m->x, n, lw->attn_norm, st->n_tok, n, c->rms_eps);
    m5_mix_attn(m, st, &c->mtp_layer, lw, &m->mem[c->n_layer], m->h, m->y);
    m5_cpu_add_rmsnorm(m->cpu, m->h, m->x, m->y, lw->ffn_norm, st->n_tok, n, c->rms_eps);
    m5_ffn(m, &c->mtp_layer, lw, st->n_tok, m->h, m->x, m->y);
    m5_cpu_add(m->cpu, m->x, m->y, st->n_tok, n);
}

/* n_guess: logits of ids below it. */
static int forward(m5_model *m, const m5_mtp_run *runs, int n_run, int n_guess, float *logits, m5_error *err)
{
    const int n = m->cfg->n_embd;
    int rc = check(m, runs, n_run, err), n_tok = 0, n_out = 0;
    for (int i = 0; i < n_run && rc == 0; i++) rc = m5_seq_reserve(runs[i].seq, runs[i].pos, runs[i].pos + runs[i].n_tok, false, err);
    if (rc < 0) return rc;
    for (int i = 0; i < n_run; i++) {
        m->views[i].pages = runs[i].seq->pages;
        for (int t = 0; t < runs[i].n_tok; t++, n_tok++) {
            m->pos[n_tok] = runs[i].pos + t;
            m->seq_of[n_tok] = i;
        }
    }
    const m5_step st = {.n_tok = n_tok, .n_run = n_run, .pos = m->pos, .seq_of = m->seq_of, .views = m->views};
    join(m, runs, n_run);
    m5_cpu_linear(m->cpu, &(m5_linear){&m->w->mtp.fc, NULL, m->x, n}, 1, m->work, 2 * n, n_tok);
    for (int i = 0; i < n_run; i++) n_out += runs[i].n_out;
    if (n_out == 0) { /* only the slots */
        m5_cpu_rmsnorm(m->cpu, m->h, n, m->x, n, m->w->mtp.layer.attn_norm, n_tok, n, m->cfg->rms_eps);
        m5_mix_attn_fill(m, &st, &m->cfg->mtp_layer, &m->w->mtp.layer, &m->mem[m->cfg->n_layer], m->h);
        return 0;
    }
    n_out = 0;
    block(m, &st);
    for (int i = 0, row = 0; i < n_run; row += runs[i++].n_tok) {
        const int first = row + runs[i].n_tok - runs[i].n_out;
        m5_cpu_rmsnorm(m->cpu, m->hidden + (size_t)n_out * (size_t)n, n, m->x + (size_t)first * (size_t)n, n, m->w->mtp.out_norm, runs[i].n_out, n,
                       m->cfg->rms_eps);
        n_out += runs[i].n_out;
    }
    if (!logits) return 0;
    m5_matrix head = m5_matrix_present(&m->w->mtp.head) ? m->w->mtp.head : m->w->head;
    if (head.n_out > n_guess) head.n_out = n_guess; /* tiles and rows lie in order, so the first ones are a matrix of their own */
    m5_cpu_linear(m->cpu, &(m5_linear){&head, NULL, logits, m->cfg->n_vocab}, 1, m->hidden, n, n_out);
    return 0;
}

int m5_mtp_forward(m5_model *m, const m5_mtp_run *runs, int n_run, float *logits, m5_error *err)
{
    return forward(m, runs, n_run, m->cfg->n_vocab, logits, err);
}

static int32_t largest(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

int m5_mtp_draft(m5_model *m, const m5_mtp_run *runs, int n_run, int n_draft, int32_t *drafts, float *logits, m5_error *err)
{
    const int n_vocab = m->cfg->n_vocab, n_guess = n_vocab > 2 * M5_MTP_SHORTLIST ? M5_MTP_SHORTLIST : n_vocab;
    if (n_draft < 1) return 0;
    int rc = forward(m, runs, n_run, n_guess, logits, err);
    for (int d = 0; d < n_draft && rc == 0; d++) {
        for (int i = 0; i < n_run; i++) {
            drafts[i * n_draft + d] = largest(logits + (size_t)i * (size_t)n_vocab, n_guess);
            /* The output row is read into the joined input before the next output is written over it. */
            m->mtp_runs[i] = (m5_mtp_run){.seq = runs[i].seq,
                                          .pos = runs[i].pos + runs[i].n_tok + d,
                                          .hidden = m->hidden + (size_t)i * (size_t)m->cfg->n_embd,
                                          .ids = &drafts[i * n_draft + d],
                                          .n_tok = 1,
                                          .n_out = 1};
        }
        if (d + 1 < n_draft) rc = forward(m, m->mtp_runs, n_run, n_guess, logits, err);
    }
    return rc;
}
