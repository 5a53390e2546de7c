/* SPDX-License-Identifier: Apache-2.0 */
/* Opening a model for computation, and the forward pass: checks, memory, the list of layers, logits. Room: model/model.c. The sublayers are in
 * mix_attn.c, mix_gdn.c and ffn.c, sequence memory in state.c.
 *
 *   x = embd[id] * embd_scale
 *   each layer: x += [post](mixer(norm(x)));  x += [post](ffn(norm(x)));  [x += per-layer embedding];  x *= layer_scalar
 *   logits = [softcap](head(norm(x)))                                       only for the rows asked for
 * Here the addition of one sublayer and the norm before the next are one operator. */
#include "model/model.h"

#include <string.h>

#include "base/mem.h"
#include "model/internal.h"

/* ---- open ---- */

typedef struct prepare_job {
    m5_model *m;
    const m5_model_options *opt;
    uint64_t n_done, n_all;
    int64_t max_in, max_out;
} prepare_job;

static int measure_matrix(void *ctx, const char *name, m5_matrix *w)
{
    prepare_job *j = ctx;
    (void)name;
    if (w->n_in > j->max_in) j->max_in = w->n_in;
    if (w->n_out > j->max_out) j->max_out = w->n_out;
    j->n_all += (uint64_t)w->n_out * (uint64_t)w->n_in;
    return 0;
}

static int prepare_matrix(void *ctx, const char *name, m5_matrix *w)
{
    prepare_job *j = ctx;
    /* Tables are read by rows, from the file. */
    const bool table = w == &j->m->w->embd || w == &j->m->w->ple_embd || w == &j->m->w->mtp.embd;
    if (!table && !j->opt->no_repack) m5_cpu_prepare(j->m->cpu, w);
    j->n_done += (uint64_t)w->n_out * (uint64_t)w->n_in;
    if (j->opt->progress) j->opt->progress(j->opt->progress_ctx, (double)j->n_done / (double)j->n_all, name);
    return 0;
}

static int check_shapes(const m5_model *m, m5_error *err)
{
    const m5_config *c = m->cfg;
    for (int l = 0; l < c->n_layer + (m->mtp ? 1 : 0); l++) {
        const m5_layer_config *lc = l < c->n_layer ? &c->layers[l] : &c->mtp_layer;
        if (lc->mixer != M5_MIX_ATTN) continue;
        if (lc->head_dim > 1024) return m5_error_set(err, M5_ERR_UNSUPPORTED, "layer %d: head size %d, at most 1024 supported", l, lc->head_dim);
    }
    if (!m->has_gdn) return 0;
    if (c->gdn_k_dim % 16 != 0 || c->gdn_v_dim % 16 != 0 || c->gdn_k_dim > 256 || c->gdn_v_dim > 256)
        return m5_error_set(err, M5_ERR_UNSUPPORTED, "linear attention head sizes %d and %d are not multiples of 16 up to 256", c->gdn_k_dim,
                            c->gdn_v_dim);
    if (c->gdn_conv < 1 || c->gdn_conv > M5_GDN_MAX_CONV || c->gdn_n_v_head % c->gdn_n_k_head != 0)
        return m5_error_set(err, M5_ERR_UNSUPPORTED, "linear attention with convolution width %d and %d value heads for %d key heads", c->gdn_conv,
                            c->gdn_n_v_head, c->gdn_n_k_head);
    return 0;
}

static int transpose_conv(m5_model *m, m5_error *err)
{
    const m5_config *c = m->cfg;
    const size_t channels = m->has_gdn ? (size_t)m5_gdn_channels(c) : 0, conv = (size_t)c->gdn_conv;
    for (int l = 0; l < c->n_layer; l++) {
        if (c->layers[l].mixer != M5_MIX_GDN) continue;
        float *t = m5_alloc(M5_MEM_WEIGHTS, channels * conv * sizeof *t);
        if (!t) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for convolution weights");
        for (size_t i = 0; i < channels; i++)
            for (size_t j = 0; j < conv; j++) t[j * channels + i] = m->w->layers[l].gdn_conv[i * conv + j];
        m->mem[l].conv_t = t;
    }
    return 0;
}

static size_t work_floats(const m5_model *m)
{
    const m5_config *c = m->cfg;
    size_t max = m5_mix_gdn_work(m, m->max_tok), n = m5_ple_work(m, m->max_tok);
    if (n > max) max = n;
    for (int l = 0; l < c->n_layer + (m->mtp ? 1 : 0); l++) {
        const m5_layer_config *lc = l < c->n_layer ? &c->layers[l] : &c->mtp_layer;
        n = lc->mixer == M5_MIX_ATTN ? m5_mix_attn_work(m, lc, m->max_tok) : 0;
        if (n > max) max = n;
        n = m5_ffn_work(m, lc, m->max_tok);
        if (n > max) max = n;
    }
    n = m->mtp ? 2 * (size_t)m->max_tok * (size_t)c->n_embd : 0; /* mtp.c joins embedding and hidden state there */
    return n > max ? n : max;
}

/* The next part of the scratch block; without a base only the size counts. */
static void *part(uint8_t *base, size_t *at, size_t n, size_t size)
{
    void *p = base && n ? base + *at : NULL;
    *at += (n * size + 63) / 64 * 64;
    return p;
}

/* Everything a step writes. Returns the bytes. */
static size_t place_scratch(m5_model *m, uint8_t *base)
{
    const size_t t = (size_t)m->max_tok, rows = t * (size_t)m->cfg->n_embd;
    size_t at = 0;
    m->x = part(base, &at, rows, sizeof *m->x);
    m->h = part(base, &at, rows, sizeof *m->h);
    m->y = part(base, &at, rows, sizeof *m->y);
    m->hidden = part(base, &at, rows, sizeof *m->hidden);
    m->hidden_all = part(base, &at, m->mtp ? rows : 0, sizeof *m->hidden_all);
    m->ple = part(base, &at, (size_t)m->cfg->n_layer * t * (size_t)m->cfg->n_ple, sizeof *m->ple);
    m->work = part(base, &at, m->cap_work, sizeof *m->work);
    m->ids = part(base, &at, t, sizeof *m->ids);
    m->pos = part(base, &at, t, sizeof *m->pos);
    m->seq_of = part(base, &at, t, sizeof *m->seq_of);
    m->views = part(base, &at, t, sizeof *m->views);
    m->gdn_runs = part(base, &at, t, sizeof *m->gdn_runs);
    m->mtp_runs = part(base, &at, m->mtp ? t : 0, sizeof *m->mtp_runs);
    return at;
}

static int open_scratch(m5_model *m, m5_error *err)
{
    m->cap_work = work_floats(m);
    const size_t bytes = place_scratch(m, NULL);
    m->scratch = m5_alloc(M5_MEM_SCRATCH, bytes);
    if (!m->scratch) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for %zu bytes of step scratch", bytes);
    place_scratch(m, m->scratch);
    return 0;
}

static int open_backend(m5_model *m, const m5_model_options *opt, m5_error *err)
{
    const m5_config *c = m->cfg;
    prepare_job j = {.m = m, .opt = opt};
    int n_head = 1, head_dim = 16;
    int rc = m5_cpu_open(&m->cpu, &opt->cpu, err);
    if (rc < 0) return rc;
    m5_weights_each_matrix(m->w, measure_matrix, &j);
    if (c->n_expert > j.max_in) j.max_in = c->n_expert;
    for (int l = 0; l < c->n_layer; l++) {
        if (c->layers[l].mixer != M5_MIX_ATTN) continue;
        if (c->layers[l].n_head > n_head) n_head = c->layers[l].n_head;
        if (c->layers[l].head_dim > head_dim) head_dim = c->layers[l].head_dim;
    }
    rc = m5_cpu_reserve(m->cpu, m->max_tok, j.max_in, j.max_out, err);
    if (rc == 0) rc = m5_cpu_reserve_attention(m->cpu, n_head, head_dim, err);
    if (rc == 0 && c->n_expert_used > 0) rc = m5_cpu_reserve_experts(m->cpu, c->n_expert_used, err);
    if (rc == 0) m5_weights_each_matrix(m->w, prepare_matrix, &j);
    if (rc == 0) m5_cpu_settle(m->cpu);
    return rc;
}

int m5_model_open(m5_model **out, const char *path, const m5_model_options *opt, m5_error *err)
{
    *out = NULL;
    m5_model *m = m5_calloc(M5_MEM_MISC, 1, sizeof *m);
    if (!m) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for a model");
    m->kv_type = opt->kv_type;
    m->page_tok = opt->page_tok > 0 ? opt->page_tok : 64;
    M5_ASSERT(!m5_kv_in_tiles(m->kv_type) || m->page_tok % 32 == 0);
    m->max_tok = opt->max_batch_tok > 0 ? opt->max_batch_tok : 512;
    m->max_draft = opt->max_draft > 0 ? opt->max_draft : 16;
    if (m->max_draft > M5_GDN_MAX_HOLD) m->max_draft = M5_GDN_MAX_HOLD;
    int rc = m5_weights_open(&m->w, path, err);
    if (rc < 0) goto out;
    m->cfg = &m->w->config;
    m->mtp = opt->mtp && m->cfg->n_mtp > 0;
    m->layers = m5_layers_first(m->cfg->n_layer);
    for (int l = 0; l < m->cfg->n_layer; l++) m->has_gdn |= m->cfg->layers[l].mixer == M5_MIX_GDN;
    if ((rc = check_shapes(m, err)) < 0) goto out;
    m->mem = m5_calloc(M5_MEM_MISC, (size_t)m->cfg->n_layer + 1, sizeof *m->mem);
    if (!m->mem) {
        rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory for a model");
        goto out;
    }
    if ((rc = m5_state_open(m, opt->state_bytes, err)) < 0) goto out;
    if ((rc = transpose_conv(m, err)) < 0) goto out;
    if ((rc = open_scratch(m, err)) < 0) goto out;
    if ((rc = open_backend(m, opt, err)) < 0) goto out;
    *out = m;
    m = NULL;
out:
    m5_model_close(m);
    return rc;
}

void m5_model_close(m5_model *m)
{
    if (!m) return;
    M5_ASSERT(m->n_seq == 0);
    m5_cpu_close(m->cpu);
    m5_state_close(m);
    for (int l = 0; m->mem && l < m->cfg->n_layer; l++)
        if (m->cfg->layers[l].mixer == M5_MIX_GDN) m5_free(m->mem[l].conv_t);
    m5_free(m->mem);
    m5_free(m->scratch);
    m5_weights_close(m->w);
    m5_free(m);
}

const m5_config *m5_model_config(const m5_model *m)
{
    return m->cfg;
}
const m5_weights *m5_model_weights(const m5_model *m)
{
    return m->w;
}
m5_cpu *m5_model_cpu(m5_model *m)
{
    return m->cpu;
}
void m5_model_set_state_budget(m5_model *m, uint64_t bytes)
{
    m->pool.budget_bytes = bytes;
}
const float *m5_model_hidden(const m5_model *m)
{
    return m->hidden;
}
const float *m5_model_hidden_all(const m5_model *m)
{
    return m->hidden_all;
}

/* ---- forward ---- */

m5_layer_set m5_layers_first(int n)
{
    m5_layer_set s = {0};
    for (int l = 0; l < n && l < M5_MAX_LAYERS; l++) m5_layer_put(&s, l, true);
    return s;
}

int m5_model_check_layers(const m5_model *m, const m5_layer_set *set, m5_error *err)
{
    int n = 0;
    for (int l = 0; l < M5_MAX_LAYERS; l++) {
        if (!m5_layer_in(set, l)) continue;
        n++;
        if (l >= m->cfg->n_layer) return m5_error_set(err, M5_ERR_ARG, "layer %d of %d", l, m->cfg->n_layer);
        const m5_layer_config *lc = &m->cfg->layers[l];
        if (lc->mixer == M5_MIX_ATTN && !m5_layer_in(set, lc->kv_donor))
            return m5_error_set(err, M5_ERR_ARG, "layer %d reads the keys of layer %d, which is left out", l, lc->kv_donor);
    }
    return n > 0 ? 0 : m5_error_set(err, M5_ERR_ARG, "no layer is left");
}

int m5_model_use_layers(m5_model *m, const m5_layer_set *set, m5_error *err)
{
    const m5_layer_set all = m5_layers_first(m->cfg->n_layer);
    M5_ASSERT(m->n_seq == 0);
    int rc = m5_model_check_layers(m, set ? set : &all, err);
    if (rc == 0) m->layers = set ? *set : all;
    return rc;
}

const m5_layer_set *m5_model_layers(const m5_model *m)
{
    return &m->layers;
}

static int check_runs(m5_model *m, const m5_run *runs, int n_run, bool guess, m5_error *err)
{
    int64_t n_tok = 0;
    m->n_forward++;
    if (n_run < 1 || n_run > m->max_tok) return m5_error_set(err, M5_ERR_ARG, "%d runs in one batch, between 1 and %d allowed", n_run, m->max_tok);
    for (int i = 0; i < n_run; i++) {
        const m5_run *r = &runs[i];
        const int limit = r->hold || guess ? m->max_draft : m->max_tok;
        if (r->n_tok < 1 || r->n_tok > limit) return m5_error_set(err, M5_ERR_ARG, "a run of %d tokens, between 1 and %d allowed", r->n_tok, limit);
        if (r->n_out < 0 || r->n_out > r->n_tok) return m5_error_set(err, M5_ERR_ARG, "%d outputs of %d tokens", r->n_out, r->n_tok);
        if (r->seq->stamp == m->n_forward) return m5_error_set(err, M5_ERR_ARG, "a sequence stands twice in one batch");
        if (r->seq->pos > INT32_MAX - r->n_tok - m->page_tok)
            return m5_error_set(err, M5_ERR_ARG, "a sequence of %d tokens cannot grow", r->seq->pos);
        r->seq->stamp = m->n_forward;
        n_tok += r->n_tok;
        for (int t = 0; t < r->n_tok; t++)
            if (r->ids[t] < 0 || r->ids[t] >= m->cfg->n_vocab)
                return m5_error_set(err, M5_ERR_ARG, "token id %d is outside [0, %d)", (int)r->ids[t], m->cfg->n_vocab);
    }
    if (n_tok > m->max_tok) return m5_error_set(err, M5_ERR_ARG, "a batch of %lld tokens, at most %d allowed", (long long)n_tok, m->max_tok);
    return 0;
}

static int reserve_runs(const m5_run *runs, int n_run, bool guess, m5_error *err)
{
    int rc = 0;
    for (int i = 0; i < n_run && rc == 0; i++)
        rc = m5_seq_reserve(runs[i].seq, runs[i].seq->pos, runs[i].seq->pos + runs[i].n_tok, runs[i].hold || guess, err);
    for (int i = 0; i < n_run && rc < 0; i++) m5_seq_trim(runs[i].seq);
    return rc;
}

static void lay_out_rows(m5_model *m, const m5_run *runs, int n_run, const m5_layer_set *set, m5_step *st)
{
    int row = 0;
    for (int i = 0; i < n_run; i++) {
        m->views[i].pages = runs[i].seq->pages;
        for (int t = 0; t < runs[i].n_tok; t++, row++) {
            m->ids[row] = runs[i].ids[t];
            m->pos[row] = runs[i].seq->pos + t;
            m->seq_of[row] = i;
        }
    }
    *st = (m5_step){.n_tok = row, .n_run = n_run, .runs = runs, .layers = set, .pos = m->pos, .seq_of = m->seq_of, .views = m->views};
}

static void embed_rows(void *ctx, int64_t begin, int64_t end, int worker)
{
    m5_model *m = ctx;
    (void)worker;
    for (int64_t t = begin; t < end; t++) m5_cpu_row(m->cpu, &m->w->embd, m->ids[t], m->x + t * m->cfg->n_embd);
}

static int next_layer(const m5_model *m, const m5_step *st, int l)
{
    while (l < m->cfg->n_layer && !m5_layer_in(st->layers, l)) l++;
    return l;
}

/* What stands in front of the layers from .. to goes where the caller wants it. */
static void keep_stream(const m5_model *m, const m5_step *st, int from, int to)
{
    const m5_stream *s = st->stream;
    if (!s || !s->kept) return;
    for (int l = (from + s->every - 1) / s->every * s->every; l <= to && l < m->cfg->n_layer; l += s->every) {
        float *dst = s->kept + (size_t)(l / s->every) * s->step;
        if (dst != s->from || l != s->first) memcpy(dst, m->x, (size_t)st->n_tok * (size_t)m->cfg->n_embd * sizeof *dst);
    }
}

static void layers(m5_model *m, const m5_step *st)
{
    const m5_config *c = m->cfg;
    const int n = c->n_embd, n_tok = st->n_tok;
    int l = next_layer(m, st, 0);
    keep_stream(m, st, st->stream ? st->stream->first : 0, l);
    if (l == c->n_layer) return;
    m5_cpu_rmsnorm(m->cpu, m->h, n, m->x, n, m->w->layers[l].attn_norm, n_tok, n, c->rms_eps);
    for (int after; l < c->n_layer; l = after) {
        after = next_layer(m, st, l + 1);
        const m5_layer_config *lc = &c->layers[l];
        const m5_layer_weights *lw = &m->w->layers[l];
        if (lc->mixer == M5_MIX_GDN) {
            m5_mix_gdn(m, st, l, m->h, m->y);
        } else {
            m5_mix_attn(m, st, lc, lw, &m->mem[l], m->h, m->y);
        }
        if (lw->attn_post_norm) m5_cpu_rmsnorm(m->cpu, m->y, n, m->y, n, lw->attn_post_norm, n_tok, n, c->rms_eps);
        m5_cpu_add_rmsnorm(m->cpu, m->h, m->x, m->y, lw->ffn_norm, n_tok, n, c->rms_eps);
        m5_ffn(m, lc, lw, n_tok, m->h, m->x, m->y);
        if (lw->ffn_post_norm) m5_cpu_rmsnorm(m->cpu, m->y, n, m->y, n, lw->ffn_post_norm, n_tok, n, c->rms_eps);
        const float *next = after < c->n_layer ? m->w->layers[after].attn_norm : NULL;
        if (c->n_ple == 0 && lw->layer_scalar == 1.0f) {
            m5_cpu_add_rmsnorm(m->cpu, next ? m->h : NULL, m->x, m->y, next, n_tok, n, c->rms_eps);
            keep_stream(m, st, l + 1, after);
            continue;
        }
        m5_cpu_add(m->cpu, m->x, m->y, n_tok, n);
        if (c->n_ple > 0) m5_ple_add(m, l, n_tok);
        m5_cpu_scale(m->cpu, m->x, lw->layer_scalar, n_tok, n);
        if (next) m5_cpu_rmsnorm(m->cpu, m->h, n, m->x, n, next, n_tok, n, c->rms_eps);
        keep_stream(m, st, l + 1, after);
    }
}

/* Final norm of the rows asked for, packed, then the head. */
static void outputs(m5_model *m, const m5_step *st, int n_guess, float *logits)
{
    const m5_config *c = m->cfg;
    const int n = c->n_embd;
    int n_out = 0;
    for (int i = 0, row = 0; i < st->n_run; row += st->runs[i++].n_tok) {
        const int first = row + st->runs[i].n_tok - st->runs[i].n_out;
        m5_cpu_rmsnorm(m->cpu, m->hidden + (size_t)n_out * (size_t)n, n, m->x + (size_t)first * (size_t)n, n, m->w->out_norm, st->runs[i].n_out, n,
                       c->rms_eps);
        n_out += st->runs[i].n_out;
    }
    if (m->hidden_all && !st->guess) m5_cpu_rmsnorm(m->cpu, m->hidden_all, n, m->x, n, m->w->out_norm, st->n_tok, n, c->rms_eps);
    if (n_out == 0 || !logits) return;
    m5_matrix head = m->w->head;
    if (head.n_out > n_guess) head.n_out = n_guess; /* tiles and rows lie in order, so the first ones are a matrix of their own */
    m5_cpu_linear(m->cpu, &(m5_linear){&head, NULL, logits, c->n_vocab}, 1, m->hidden, n, n_out);
    if (c->final_softcap > 0) m5_cpu_softcap(m->cpu, logits, c->final_softcap, n_out, c->n_vocab);
}

static void compute(m5_model *m, const m5_step *st, int n_guess, float *logits)
{
    const bool later = st->stream && st->stream->first > 0;
    if (!later || m->cfg->n_ple > 0) { /* embeddings of every layer are made from those of the ids */
        m5_pool_for(m5_cpu_pool(m->cpu), st->n_tok, 16, embed_rows, m);
        m5_cpu_scale(m->cpu, m->x, m->cfg->embd_scale, st->n_tok, m->cfg->n_embd);
        if (m->cfg->n_ple > 0) m5_ple_open(m, st->n_tok, m->ids);
    }
    if (later) memcpy(m->x, st->stream->from, (size_t)st->n_tok * (size_t)m->cfg->n_embd * sizeof *m->x);
    layers(m, st);
    outputs(m, st, n_guess, logits);
}

/* The rows are computed: they are held, or belong to their sequences. */
static void advance(const m5_run *runs, int n_run)
{
    for (int i = 0; i < n_run; i++) {
        m5_seq *s = runs[i].seq;
        s->n_pending = 0;
        s->settled = (m5_layer_set){0};
        s->n_held = runs[i].hold ? runs[i].n_tok : 0;
        if (!runs[i].hold) s->pos += runs[i].n_tok;
    }
}

int m5_model_forward(m5_model *m, const m5_run *runs, int n_run, float *logits, m5_error *err)
{
    m5_step st;
    int rc = check_runs(m, runs, n_run, false, err);
    if (rc == 0) rc = reserve_runs(runs, n_run, false, err);
    if (rc < 0) return rc;
    lay_out_rows(m, runs, n_run, &m->layers, &st);
    compute(m, &st, m->cfg->n_vocab, logits);
    advance(runs, n_run);
    return 0;
}

int m5_model_restart(const m5_model *m, const m5_layer_set *set, int at)
{
    for (int l = at; l < m->cfg->n_layer; l++) {
        const m5_layer_config *lc = &m->cfg->layers[l];
        if (!m5_layer_in(set, l) || lc->mixer != M5_MIX_ATTN || lc->kv_donor >= at) continue;
        at = lc->kv_donor;
        l = at - 1; /* what lies between must find its keys too */
    }
    return at;
}

/* Of a set, the layers that a forward from a stream computes. */
static int keep_upper(const m5_model *m, m5_layer_set *set, const m5_stream *s, m5_error *err)
{
    if (s->first < 0 || s->first > m->cfg->n_layer || m5_model_restart(m, set, s->first) != s->first)
        return m5_error_set(err, M5_ERR_ARG, "a forward cannot begin with layer %d", s->first);
    const m5_layer_set below = m5_layers_first(s->first);
    for (int w = 0; w < M5_LAYER_WORDS; w++) set->bits[w] &= ~below.bits[w];
    return 0;
}

int m5_model_forward_from(m5_model *m, const m5_run *runs, int n_run, const m5_stream *s, int n_ids, float *logits, m5_error *err)
{
    m5_step st;
    m5_layer_set set = m->layers;
    for (int i = 0; i < n_run; i++)
        if (runs[i].hold) return m5_error_set(err, M5_ERR_ARG, "rows of a part of the layers cannot be held");
    int rc = check_runs(m, runs, n_run, false, err);
    if (rc == 0) rc = keep_upper(m, &set, s, err);
    if (rc == 0) rc = reserve_runs(runs, n_run, false, err);
    if (rc < 0) return rc;
    lay_out_rows(m, runs, n_run, &set, &st);
    st.stream = s;
    compute(m, &st, n_ids, logits);
    advance(runs, n_run);
    return 0;
}

int m5_model_guess(m5_model *m, const m5_run *runs, int n_run, const m5_layer_set *set, int n_guess, float *logits, m5_error *err)
{
    return m5_model_guess_from(m, runs, n_run, set, NULL, n_guess, logits, err);
}

int m5_model_guess_from(m5_model *m, const m5_run *runs, int n_run, const m5_layer_set *set, const m5_stream *stream, int n_guess, float *logits, m5_error *err)
{
    m5_step st;
    m5_layer_set part = *set;
    int rc = check_runs(m, runs, n_run, true, err);
    if (rc == 0) rc = m5_model_check_layers(m, set, err);
    if (rc == 0 && stream) rc = keep_upper(m, &part, stream, err);
    for (int w = 0; w < M5_LAYER_WORDS && rc == 0; w++)
        if (set->bits[w] & ~m->layers.bits[w]) rc = m5_error_set(err, M5_ERR_ARG, "a guess from layers that the model does not use");
    if (rc == 0) rc = reserve_runs(runs, n_run, true, err);
    if (rc < 0) return rc;
    lay_out_rows(m, runs, n_run, &part, &st);
    st.guess = true;
    st.stream = stream;
    compute(m, &st, n_guess, logits);
    for (int i = 0; i < n_run; i++) {
        m5_seq *s = runs[i].seq;
        s->n_held = 0;
        for (int w = 0; w < M5_LAYER_WORDS; w++) s->settled.bits[w] |= part.bits[w];
    }
    return 0;
}
