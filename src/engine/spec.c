/* SPDX-License-Identifier: Apache-2.0 */
/* Sources of drafts behind one choice; see spec.h. */
#include "engine/spec.h"

#include "base/mem.h"
#include "base/str.h"
#include "base/task.h"

#include <string.h>

enum {
    MAX_ROWS = 64,     /* drafted tokens of one step, over all sequences: beyond, rows cost what they bring */
    EXTRA_HOLD = 4,    /* certain rows that may stand before a full draft; their number is seldom above one */
    MODEL_BESIDE = 4,  /* rows of the draft model for a row of a prompt, where it is behind */
    MODEL_SLICE = 64,  /* and in a step that decodes */
    MEASURE_EVERY = 64 /* steps; then one without drafts, so that the cost of plain decoding stays known */
};
/* Weight of a new draft against older ones, of one step without use, of what earlier requests saw (in tokens). */
static const float KEEP = 0.93f, FADE = 0.985f, KEEP_ALL = 0.99f, FADE_ALL = 0.9995f, PRIOR = 3, PRIOR_ALL = 4;
/* Acceptance of each class before anything was seen. */
static const float FIRST[M5_SPEC_CLASSES] = {0.4f, 0.5f, 0.75f, 0.9f, 0.6f, 0.6f, 0.75f, 0.75f, 0.6f};
/* Share of guesses that do not stop a chain, before any was seen. */
static const float FIRST_SURE = 0.8f;
/* A token of the next-token head before it was measured, in plain steps: a layer and a part of the output matrix. */
static const double FIRST_MTP = 0.2, MTP_SHARE = 0.2;
static const double LOSS_SHARE = 0.015, LOSS_STEPS = 0.5, LEAST_GAIN = 1.02;

/* ---- names ---- */

const char *m5_spec_source_name(m5_spec_source s)
{
    static const char *const names[M5_SPEC_SOURCES] = {"ngram", "mtp", "model", "exit", "skip", "script"};
    return (unsigned)s < M5_SPEC_SOURCES ? names[s] : "";
}

int m5_spec_parse(const char *text, unsigned *sources, m5_error *err)
{
    *sources = 0;
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, ",");
        m5_slice word = {p, n};
        if (m5_slice_is(word, "off") || m5_slice_is(word, "none")) {
            *sources |= M5_SPEC_OFF;
        } else if (m5_slice_is(word, "auto")) {
            *sources |= M5_SPEC_AUTO;
        } else {
            int s = 0;
            while (s < M5_SPEC_SCRIPT && !m5_slice_is(word, m5_spec_source_name((m5_spec_source)s))) s++;
            if (s == M5_SPEC_SCRIPT)
                return m5_error_set(err, M5_ERR_ARG, "'%.*s' is not a source of drafts; off, auto, ngram, mtp, model, exit and skip are",
                                    (int)(n < 40 ? n : 40), p);
            *sources |= 1u << s;
        }
        p += n + (p[n] == ',');
    }
    if (!*sources) return m5_error_set(err, M5_ERR_ARG, "no source of drafts is named; off, auto, ngram, mtp, model, exit and skip are");
    if (*sources & M5_SPEC_OFF && *sources != M5_SPEC_OFF) return m5_error_set(err, M5_ERR_ARG, "'off' stands alone");
    return 0;
}

/* ---- requests ---- */

static bool has(const m5_spec_seq *q, m5_spec_source s)
{
    return q->params.sources >> s & 1;
}

void m5_spec_open(m5_spec *sp, const m5_spec_params *p, int n_parallel)
{
    *sp = (m5_spec){.fixed = p->fixed};
    const unsigned all = (1u << M5_SPEC_SOURCES) - 1;
    sp->named = p->sources & all;
    sp->automatic = sp->sources = p->sources & M5_SPEC_OFF ? 0 : !p->sources || p->sources & M5_SPEC_AUTO ? all : sp->named;
    sp->max_k = !sp->sources ? 0 : p->k <= 0 ? M5_SPEC_DEFAULT_K : p->k < M5_SPEC_MAX_K ? p->k : M5_SPEC_MAX_K;
    sp->max_rows = sp->max_k * n_parallel < MAX_ROWS ? sp->max_k * n_parallel : MAX_ROWS;
    sp->max_hold = sp->max_k ? sp->max_k + EXTRA_HOLD : 0;
    m5_spec_cost_init(&sp->cost);
}

static unsigned self_bit(int v)
{
    return 1u << (M5_SPEC_EXIT + v);
}

static int attach_self(m5_spec *sp, const m5_self_draft *self, size_t n, m5_error *err)
{
    const size_t hold = (size_t)sp->max_hold;
    unsigned exist = 0;
    for (int v = 0; v < M5_SELF_VARIANTS; v++) {
        sp->self[v] = self[v];
        if (!(sp->sources & self_bit(v)) || !m5_self_usable(sp->model, &self[v].layers)) continue;
        exist |= self_bit(v);
        if (!self[v].pays) sp->automatic &= ~self_bit(v) | sp->named;
        sp->self_share[v] = m5_self_share(sp->model, &self[v].layers);
        sp->self_asks[v] = m5_calloc(M5_MEM_SCRATCH, n, sizeof *sp->self_asks[v]);
        sp->self_seqs[v] = m5_calloc(M5_MEM_SCRATCH, n, sizeof *sp->self_seqs[v]);
        if (!sp->self_asks[v] || !sp->self_seqs[v]) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for drafts");
    }
    sp->sources &= exist | ~(self_bit(M5_SELF_EXIT) | self_bit(M5_SELF_SKIP));
    if (!exist) return 0;
    sp->self_runs = m5_calloc(M5_MEM_SCRATCH, n, sizeof *sp->self_runs);
    sp->self_ids = m5_calloc(M5_MEM_SCRATCH, M5_SELF_VARIANTS * n * hold, sizeof *sp->self_ids);
    if (!sp->self_runs || !sp->self_ids) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for drafts");
    return 0;
}

int m5_spec_attach(m5_spec *sp, m5_model *m, m5_draft_model *draft, const m5_self_draft *self, int n_parallel, m5_error *err)
{
    const size_t n = (size_t)n_parallel;
    sp->draft = draft;
    sp->model = m;
    sp->n_parallel = n_parallel;
    sp->n_vocab = m5_model_config(m)->n_vocab;
    sp->n_embd = m5_model_config(m)->n_embd;
    if (!m5_mtp_present(m)) sp->sources &= ~(1u << M5_SPEC_MTP);
    if (!draft) sp->sources &= ~(1u << M5_SPEC_MODEL);
    int rc = attach_self(sp, self, n, err);
    sp->automatic &= sp->sources;
    if (rc || !(sp->sources & (1u << M5_SPEC_MTP | 1u << M5_SPEC_MODEL))) return rc;
    sp->mtp_us = sp->model_us = FIRST_MTP;
    sp->model_asks = m5_calloc(M5_MEM_SCRATCH, n, sizeof *sp->model_asks);
    sp->model_seqs = m5_calloc(M5_MEM_SCRATCH, n, sizeof *sp->model_seqs);
    sp->mtp_runs = m5_calloc(M5_MEM_SCRATCH, n, sizeof *sp->mtp_runs);
    sp->mtp_asks = m5_calloc(M5_MEM_SCRATCH, n, sizeof *sp->mtp_asks);
    sp->mtp_drafts = m5_calloc(M5_MEM_SCRATCH, n * (size_t)sp->max_k, sizeof *sp->mtp_drafts);
    if (!sp->mtp_runs || !sp->mtp_asks || !sp->mtp_drafts || !sp->model_asks || !sp->model_seqs)
        return m5_error_set(err, M5_ERR_NOMEM, "out of memory for drafts");
    return 0;
}

void m5_spec_close(m5_spec *sp)
{
    m5_free(sp->mtp_runs);
    m5_free(sp->mtp_asks);
    m5_free(sp->mtp_drafts);
    m5_free(sp->model_asks);
    m5_free(sp->model_seqs);
    for (int v = 0; v < M5_SELF_VARIANTS; v++) {
        m5_free(sp->self_asks[v]);
        m5_free(sp->self_seqs[v]);
    }
    m5_free(sp->self_runs);
    m5_free(sp->self_ids);
}

/* What a request may use of what it asks for. */
static unsigned resolve(const m5_spec *sp, unsigned sources)
{
    if (sources & M5_SPEC_OFF) return 0;
    if (!sources || sources & M5_SPEC_AUTO) sources |= sp->automatic;
    return sources & sp->sources;
}

void m5_spec_begin(const m5_spec *sp, m5_spec_seq *q, const m5_spec_params *p, const int32_t *ids, int n_ids, int n_prompt, int cap_ids)
{
    q->params = *p;
    q->params.sources = resolve(sp, p->sources);
    if (!p->script) q->params.sources &= ~(1u << M5_SPEC_SCRIPT);
    if (p->k <= 0 || p->k > sp->max_k) q->params.k = sp->max_k;
    if (!p->sources) q->params.fixed |= sp->fixed;
    q->n_prompt = n_prompt;
    q->ngram_ready = q->params.sources & 1u << M5_SPEC_NGRAM && m5_ngram_begin(&q->ngram, cap_ids) == 0;
    if (has(q, M5_SPEC_MTP) && !q->hidden) q->hidden = m5_alloc(M5_MEM_SCRATCH, 2 * M5_SPEC_HIDDEN * (size_t)sp->n_embd * sizeof(float));
    if (!q->hidden) q->params.sources &= ~(1u << M5_SPEC_MTP);
    if (has(q, M5_SPEC_MODEL) && m5_draft_seq_begin(sp->draft, &q->model, ids, n_ids, cap_ids + sp->max_k))
        q->params.sources &= ~(1u << M5_SPEC_MODEL);
    q->n_hidden = q->mtp_filled = 0;
    memset(q->seen, 0, sizeof q->seen);
    memset(q->sure, 0, sizeof q->sure);
    q->ledger_us = q->plain_us = q->draft_us = 0;
    q->n_draft = q->n_right = 0;
}

void m5_spec_end(m5_spec_seq *q)
{
    q->params = (m5_spec_params){0};
    q->ngram_ready = false;
    q->n_draft = q->n_right = 0;
}

void m5_spec_free(m5_spec_seq *q)
{
    m5_ngram_free(&q->ngram);
    m5_free(q->hidden);
    q->hidden = NULL;
    m5_draft_seq_free(&q->model);
}

/* ---- sources ---- */

/* One number in [0, 1) for a place. */
static double chance(uint64_t seed, uint64_t place)
{
    uint64_t h = (seed ^ place * 0x9E3779B97F4A7C15u) + 0x632BE59BD9B4E019u;
    h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9u;
    h = (h ^ h >> 27) * 0x94D049BB133111EBu;
    return (double)((h ^ h >> 31) >> 11) * 0x1p-53;
}

static int draft_script(const m5_spec *sp, const m5_spec_script *c, int place, int32_t *draft, int n_want)
{
    int n = 0;
    for (; n < n_want && place + n < c->n_ids; n++) {
        bool right = (c->wrong_at < 0 || n < c->wrong_at) && chance(c->seed, (uint64_t)(place + n)) < c->p_right;
        draft[n] = right ? c->ids[place + n] : (c->ids[place + n] + 1) % sp->n_vocab;
    }
    return n;
}

static m5_spec_class ngram_class(int match)
{
    return match < M5_NGRAM_ORDER ? M5_CLASS_NGRAM_NEAR : match < 6 ? M5_CLASS_NGRAM_SHORT : match < 12 ? M5_CLASS_NGRAM_MID : M5_CLASS_NGRAM_LONG;
}

/* Drafts that need no forward: into q->draft. Sets source and class. */
static int draft_free(const m5_spec *sp, const m5_spec_ask *a, int n_want)
{
    m5_spec_seq *q = a->q;
    if (has(q, M5_SPEC_SCRIPT)) {
        q->source = M5_SPEC_SCRIPT;
        q->cls = M5_CLASS_SCRIPT;
        return draft_script(sp, q->params.script, a->n_ids - q->n_prompt, q->draft, n_want);
    }
    if (!q->ngram_ready) return 0;
    int match = m5_ngram_draft(&q->ngram, a->ids, a->n_ids, q->draft, n_want);
    q->source = M5_SPEC_NGRAM;
    q->cls = ngram_class(match);
    return match > 0 ? n_want : 0;
}

/* ---- the next-token head ---- */

/* Hidden states of tokens pos .. pos + n follow those that are kept, or replace them. */
static void keep_hidden(const m5_spec *sp, m5_spec_seq *q, int pos, int n, const float *hidden)
{
    const size_t row = (size_t)sp->n_embd;
    if (pos != q->hidden_from + q->n_hidden) q->n_hidden = 0;
    if (n > M5_SPEC_HIDDEN) {
        hidden += (size_t)(n - M5_SPEC_HIDDEN) * row;
        pos += n - M5_SPEC_HIDDEN;
        n = M5_SPEC_HIDDEN;
        q->n_hidden = 0;
    }
    if (q->n_hidden == 0) q->hidden_from = pos;
    if (q->n_hidden + n > 2 * M5_SPEC_HIDDEN) { /* the newer half moves to the front */
        int drop = q->n_hidden - M5_SPEC_HIDDEN;
        memmove(q->hidden, q->hidden + (size_t)drop * row, M5_SPEC_HIDDEN * row * sizeof *q->hidden);
        q->hidden_from += drop;
        q->n_hidden = M5_SPEC_HIDDEN;
    }
    memcpy(q->hidden + (size_t)q->n_hidden * row, hidden, (size_t)n * row * sizeof *q->hidden);
    q->n_hidden += n;
}

void m5_spec_saw(m5_spec *sp, m5_spec_seq *q, m5_seq *seq, const int32_t *ids, int n_ids, int pos, int n, const float *hidden, bool prompt)
{
    if (prompt && has(q, M5_SPEC_MODEL)) m5_draft_seq_feed(sp->draft, &q->model, ids, pos + n, MODEL_BESIDE * n);
    if (!has(q, M5_SPEC_MTP) || !hidden || n < 1) return;
    int n_pair = pos + n < n_ids ? n : n - 1; /* the last token's successor may be unknown yet */
    if (prompt && n_pair > 0) {
        m5_mtp_run r = {.seq = seq, .pos = pos, .hidden = hidden, .ids = ids + pos + 1, .n_tok = n_pair};
        if (m5_mtp_forward(sp->model, &r, 1, NULL, NULL) == 0) q->mtp_filled = pos + n_pair;
    }
    keep_hidden(sp, q, pos, n, hidden);
}

/* Whether the pair before the next token can be made. */
static bool mtp_ready(const m5_spec_seq *q, int n_ids)
{
    return has(q, M5_SPEC_MTP) && q->n_hidden > 0 && q->hidden_from + q->n_hidden == n_ids - 1;
}

/* Drafts of the first n of sp->mtp_asks in one chain of forwards, each as long as the longest. Failing costs the drafts. */
static void draft_mtp(m5_spec *sp, int n, float *logits)
{
    int longest = 0, n_pair = 0;
    for (int i = 0; i < n; i++) {
        const m5_spec_ask *a = sp->mtp_asks[i];
        m5_spec_seq *q = a->q;
        int from = q->mtp_filled > q->hidden_from ? q->mtp_filled : q->hidden_from;
        if (from > a->n_ids - 2) from = a->n_ids - 2;
        sp->mtp_runs[i] = (m5_mtp_run){.seq = a->seq,
                                       .pos = from,
                                       .hidden = q->hidden + (size_t)(from - q->hidden_from) * (size_t)sp->n_embd,
                                       .ids = a->ids + from + 1,
                                       .n_tok = a->n_ids - 1 - from,
                                       .n_out = 1};
        n_pair += sp->mtp_runs[i].n_tok;
        if (q->n_draft > longest) longest = q->n_draft;
    }
    uint64_t t0 = m5_time_us();
    int rc = m5_mtp_draft(sp->model, sp->mtp_runs, n, longest, sp->mtp_drafts, logits, NULL);
    double us = (double)(m5_time_us() - t0), plain = m5_spec_cost_of(&sp->cost, 1);
    if (!rc && plain > 0 && n_pair <= 4 * n) sp->mtp_us += MTP_SHARE * (us / longest / plain - sp->mtp_us);
    for (int i = 0; i < n; i++) {
        m5_spec_seq *q = sp->mtp_asks[i]->q;
        if (rc)
            q->n_draft = 0;
        else
            q->mtp_filled = sp->mtp_asks[i]->n_ids - 1;
        memcpy(q->draft, sp->mtp_drafts + (size_t)i * (size_t)longest, (size_t)q->n_draft * sizeof *q->draft);
        q->draft_us = us / n;
    }
}

/* ---- the draft model ---- */

/* Whether it has the text; what is missing is fed in slices beside decoding. */
static bool model_ready(m5_spec *sp, m5_spec_seq *q, const int32_t *ids, int n_ids)
{
    if (!has(q, M5_SPEC_MODEL)) return false;
    int missing = m5_draft_seq_missing(&q->model, n_ids);
    if (missing > M5_DRAFT_MAX_MISSING) missing = m5_draft_seq_feed(sp->draft, &q->model, ids, n_ids - 1, MODEL_SLICE) + 1;
    return missing > 0 && missing <= M5_DRAFT_MAX_MISSING;
}

static void draft_model(m5_spec *sp, int n)
{
    int longest = 0;
    for (int i = 0; i < n; i++)
        if (sp->model_seqs[i]->n_draft > longest) longest = sp->model_seqs[i]->n_draft;
    uint64_t t0 = m5_time_us();
    int rc = m5_draft_model_draft(sp->draft, sp->model_asks, n, longest, sp->mtp_drafts, NULL);
    double us = (double)(m5_time_us() - t0), plain = m5_spec_cost_of(&sp->cost, 1);
    if (!rc && plain > 0) sp->model_us += MTP_SHARE * (us / longest / plain - sp->model_us);
    for (int i = 0; i < n; i++) {
        m5_spec_seq *q = sp->model_seqs[i];
        if (rc) q->n_draft = 0;
        memcpy(q->draft, sp->mtp_drafts + (size_t)i * (size_t)longest, (size_t)q->n_draft * sizeof *q->draft);
        q->draft_us = us / n;
    }
}

/* ---- the model itself ---- */

/* Another sequence of this step is drafted for; its certain rows go in front of the guesses. */
static void ask_self(m5_spec *sp, int v, int at, const m5_spec_ask *a)
{
    int32_t *ids = sp->self_ids + (size_t)(v * sp->n_parallel + at) * (size_t)sp->max_hold;
    memcpy(ids, a->ids + (a->n_ids - a->n_rows), (size_t)a->n_rows * sizeof *ids);
    sp->self_seqs[v][at] = a->q;
    sp->self_asks[v][at] = (m5_self_ask){.seq = a->seq, .ids = ids, .n_certain = a->n_rows, .n_want = a->q->n_draft};
}

static void count(m5_spec_count *c, float keep, int right, bool wrong)
{
    c->right = c->right * keep + (float)right;
    c->wrong = c->wrong * keep + (float)wrong;
}

static void draft_self(m5_spec *sp, int v, int n, float *logits)
{
    double whole = 0;
    uint64_t t0 = m5_time_us();
    int rc = m5_self_guess(sp->model, &sp->self[v], sp->self_asks[v], n, sp->self_runs, logits, &sp->cost, &whole, NULL);
    double us = (double)(m5_time_us() - t0);
    if (!rc && whole > 0) sp->self_share[v] += MTP_SHARE * (us / whole - sp->self_share[v]);
    for (int i = 0; i < n; i++) {
        m5_spec_seq *q = sp->self_seqs[v][i];
        const m5_self_ask *a = &sp->self_asks[v][i];
        q->n_draft = rc ? 0 : a->n;
        q->draft_us = us / n;
        memcpy(q->draft, a->ids + a->n_certain, (size_t)q->n_draft * sizeof *q->draft);
        count(&q->sure[v], KEEP, a->n, a->stopped);
        count(&sp->sure[v], KEEP_ALL, a->n, a->stopped);
    }
}

/* ---- choice ---- */

/* A share that was counted over this request, that starts from what all requests saw. */
static double counted(const m5_spec_count *own, const m5_spec_count *all, double first)
{
    const double many = (double)PRIOR_ALL, few = (double)PRIOR;
    double prior = ((double)all->right + first * many) / ((double)(all->right + all->wrong) + many);
    return ((double)own->right + prior * few) / ((double)(own->right + own->wrong) + few);
}

static double acceptance(const m5_spec *sp, const m5_spec_seq *q, m5_spec_class c)
{
    double first = (double)FIRST[c];
    if (c == M5_CLASS_EXIT && sp->self[M5_SELF_EXIT].accept > 0) first = sp->self[M5_SELF_EXIT].accept;
    if (c == M5_CLASS_SKIP && sp->self[M5_SELF_SKIP].accept > 0) first = sp->self[M5_SELF_SKIP].accept;
    return counted(&q->seen[c], &sp->seen[c], first);
}

/* The time of a step of n rows; before the first measurement any unit does. */
typedef struct price {
    const m5_spec_cost *cost;
    double beside, per_row;
} price;

static double price_of(const price *p, double rows)
{
    if (p->beside > 0) return p->beside + p->per_row * rows;
    const int n = (int)rows;
    double us = m5_spec_cost_of(p->cost, n);
    if (!(us > 0)) return 1 + p->cost->slope * (rows - 1);
    return rows > n ? us + (m5_spec_cost_of(p->cost, n + 1) - us) * (rows - n) : us;
}

/* A draft that could be made: what it takes, what it brings. */
typedef struct option {
    m5_spec_source source;
    m5_spec_class cls;
    int k;
    double accept, rate;
    double each_us; /* to make a token of it */
    double share;   /* and this share of a forward over n_seq sequences of n_row rows and the tokens before it; 0 = none */
    int n_seq, n_row;
    double sure; /* chance that a chain goes on */
} option;

/* The length up to n with the most tokens per time, when `tokens` tokens of `rows` rows are in the step already. Replaces *best when that is better
 * than what it holds. */
static void consider(const price *p, option *best, option o, int n, int rows, double tokens)
{
    double gain = 0, each = 1, us = 0, reached = 1, more = 0;
    for (int k = 1; k <= n; k++) {
        us += reached * o.each_us;
        if (o.share > 0) us += reached * o.share * m5_spec_cost_of(p->cost, o.n_seq * (o.n_row + k - 1)) / o.n_seq;
        reached *= o.sure;
        more += reached;
        each *= o.accept * o.sure;
        gain += each;
        double rate = (tokens + gain) / (price_of(p, rows + more) + us);
        if (rate <= best->rate) continue;
        *best = o;
        best->k = k;
        best->rate = rate;
    }
}

static bool may_lose(const m5_spec *sp, const m5_spec_seq *q)
{
    return q->ledger_us + LOSS_SHARE * q->plain_us + LOSS_STEPS * m5_spec_cost_of(&sp->cost, 1) >= 0;
}

/* Chooses for one sequence. q->draft holds what needs no forward; the others are made later. */
static option choose(m5_spec *sp, const m5_spec_ask *a, const price *p, int want, int rows, double tokens, int n_share)
{
    m5_spec_seq *q = a->q;
    const bool ordered = has(q, M5_SPEC_SCRIPT), fixed = q->params.fixed;
    const double plain = price_of(p, 1);
    option best = {.rate = tokens / price_of(p, rows) * LEAST_GAIN};
    int found = draft_free(sp, a, want);
    option o = {.source = q->source, .cls = q->cls, .sure = 1};
    if (found) {
        if (fixed) return (option){.source = q->source, .cls = q->cls, .k = found};
        o.accept = acceptance(sp, q, q->cls);
        consider(p, &best, o, found, rows, tokens);
    }
    if (!ordered && mtp_ready(q, a->n_ids)) {
        if (fixed) return (option){.source = M5_SPEC_MTP, .cls = M5_CLASS_MTP, .k = want};
        o = (option){.source = M5_SPEC_MTP, .cls = M5_CLASS_MTP, .accept = acceptance(sp, q, M5_CLASS_MTP), .sure = 1};
        o.each_us = sp->mtp_us * plain / n_share;
        consider(p, &best, o, want, rows, tokens);
    }
    if (!ordered && model_ready(sp, q, a->ids, a->n_ids)) {
        if (fixed) return (option){.source = M5_SPEC_MODEL, .cls = M5_CLASS_MODEL, .k = want};
        o = (option){.source = M5_SPEC_MODEL, .cls = M5_CLASS_MODEL, .accept = acceptance(sp, q, M5_CLASS_MODEL), .sure = 1};
        o.each_us = sp->model_us * plain / n_share;
        consider(p, &best, o, want, rows, tokens);
    }
    for (int v = 0; v < M5_SELF_VARIANTS && !ordered; v++) {
        const m5_spec_source source = (m5_spec_source)(M5_SPEC_EXIT + v);
        const m5_spec_class cls = (m5_spec_class)(M5_CLASS_EXIT + v);
        const int most = want < M5_SELF_MAX_K ? want : M5_SELF_MAX_K;
        if (!has(q, source)) continue;
        if (fixed) return (option){.source = source, .cls = cls, .k = most};
        if (!(m5_spec_cost_of(&sp->cost, 1) > 0)) continue; /* what a guess takes is known as a share of that */
        o = (option){.source = source, .cls = cls, .accept = acceptance(sp, q, cls), .share = sp->self_share[v], .n_seq = n_share, .n_row = a->n_rows};
        o.sure = sp->self[v].confidence > 0 ? counted(&q->sure[v], &sp->sure[v], (double)FIRST_SURE) : 1;
        consider(p, &best, o, most, rows, tokens);
    }
    return best;
}

void m5_spec_propose(m5_spec *sp, const m5_spec_ask *asks, int n, double us_beside, double us_per_row, float *logits)
{
    const price p = {&sp->cost, us_beside, us_per_row};
    const bool measure = sp->n_step % MEASURE_EVERY == 0;
    int rows = 0, left = sp->max_rows, n_mtp = 0, n_model = 0, n_self[M5_SELF_VARIANTS] = {0};
    double tokens = n;
    for (int i = 0; i < n; i++) rows += asks[i].n_rows;
    for (int i = 0; i < n; i++) {
        m5_spec_seq *q = asks[i].q;
        int want = q->params.k < asks[i].room ? q->params.k : asks[i].room;
        q->n_draft = q->n_right = 0;
        q->draft_us = 0;
        if (want > left) want = left;
        if (want < 1 || !q->params.sources) continue;
        if (!q->params.fixed && (measure || !may_lose(sp, q))) continue;
        option o = choose(sp, &asks[i], &p, want, rows, tokens, n);
        if (o.k == 0) continue;
        q->source = o.source;
        q->cls = o.cls;
        q->n_draft = o.k;
        if (o.source == M5_SPEC_MTP) sp->mtp_asks[n_mtp++] = &asks[i];
        if (o.source == M5_SPEC_MODEL) {
            sp->model_seqs[n_model] = q;
            sp->model_asks[n_model++] = (m5_draft_ask){&q->model, asks[i].ids, asks[i].n_ids};
        }
        const int v = (int)o.source - M5_SPEC_EXIT;
        if (v >= 0 && v < M5_SELF_VARIANTS) ask_self(sp, v, n_self[v]++, &asks[i]);
        rows += o.k;
        left -= o.k;
        double each = 1;
        for (int k = 0; k < o.k; k++) tokens += each *= o.accept * o.sure;
    }
    if (n_mtp) draft_mtp(sp, n_mtp, logits);
    if (n_model) draft_model(sp, n_model);
    for (int v = 0; v < M5_SELF_VARIANTS; v++)
        if (n_self[v]) draft_self(sp, v, n_self[v], logits);
}

/* ---- what came of it ---- */

void m5_spec_checked(m5_spec *sp, m5_spec_seq *q, int n_right)
{
    if (!q->n_draft) return;
    q->n_right = n_right;
    if (q->source == M5_SPEC_MODEL) m5_draft_seq_checked(&q->model, n_right);
    count(&q->seen[q->cls], KEEP, n_right, n_right < q->n_draft);
    count(&sp->seen[q->cls], KEEP_ALL, n_right, n_right < q->n_draft);
}

static void fade(m5_spec_count *seen, float by, unsigned used)
{
    for (int c = 0; c < M5_SPEC_CLASSES; c++) {
        if (used >> c & 1) continue;
        seen[c].right *= by;
        seen[c].wrong *= by;
    }
}

void m5_spec_stepped(m5_spec *sp, const m5_spec_ask *asks, int n, int n_rows, double us, bool beside)
{
    int plain_rows = 0, drafted = 0;
    unsigned used = 0;
    for (int i = 0; i < n; i++) {
        plain_rows += asks[i].n_rows;
        drafted += asks[i].q->n_draft;
        if (asks[i].q->n_draft) used |= 1u << asks[i].q->cls;
    }
    sp->n_step++;
    fade(sp->seen, FADE_ALL, used);
    for (int i = 0; i < n; i++) fade(asks[i].q->seen, FADE, asks[i].q->n_draft ? 1u << asks[i].q->cls : 0);
    if (beside) return;
    m5_spec_cost_add(&sp->cost, n_rows, us); /* also those of answers that have ended */
    /* Each sequence's share: a token is worth the time of the plain step over its sequences, drafts pay for the rows they added. */
    double plain = m5_spec_cost_of(&sp->cost, plain_rows), extra = us > plain ? us - plain : 0;
    for (int i = 0; i < n; i++) {
        m5_spec_seq *q = asks[i].q;
        q->plain_us += (1 + q->n_right) * plain / n;
        if (q->n_draft) q->ledger_us += q->n_right * plain / n - extra * q->n_draft / drafted;
        q->ledger_us -= q->draft_us; /* also of a chain that stopped at once */
    }
}
