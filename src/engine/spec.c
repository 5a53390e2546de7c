/* SPDX-License-Identifier: Apache-2.0 */
/* Sources of drafts behind one choice; see spec.h. */
#include "engine/spec.h"

#include "base/str.h"
#include "base/task.h"

#include <string.h>

enum {
    MAX_ROWS = 64,     /* drafted tokens of one step, over all sequences: beyond, rows cost what they bring */
    EXTRA_HOLD = 4,    /* certain rows that may stand before a full draft; their number is seldom above one */
    MEASURE_EVERY = 64 /* steps; then one without drafts, so that the cost of plain decoding stays known */
};
/* Weight of a new draft against older ones, of one step without use, of what earlier requests saw (in tokens). */
static const float KEEP = 0.93f, FADE = 0.985f, KEEP_ALL = 0.99f, FADE_ALL = 0.9995f, PRIOR = 3, PRIOR_ALL = 4;
/* Acceptance of each class before anything was seen. */
static const float FIRST[M5_SPEC_CLASSES] = {0.4f, 0.5f, 0.75f, 0.9f, 0.6f, 0.6f, 0.6f};
static const double LOSS_SHARE = 0.015, LOSS_STEPS = 0.5, LEAST_GAIN = 1.02;

/* ---- names ---- */

const char *m5_spec_source_name(m5_spec_source s)
{
    static const char *const names[M5_SPEC_SOURCES] = {"ngram", "mtp", "model", "script"};
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
                return m5_error_set(err, M5_ERR_ARG, "'%.*s' is not a source of drafts; off, auto, ngram, mtp and model are", (int)(n < 40 ? n : 40),
                                    p);
            *sources |= 1u << s;
        }
        p += n + (p[n] == ',');
    }
    if (!*sources) return m5_error_set(err, M5_ERR_ARG, "no source of drafts is named; off, auto, ngram, mtp and model are");
    if (*sources & M5_SPEC_OFF && *sources != M5_SPEC_OFF) return m5_error_set(err, M5_ERR_ARG, "'off' stands alone");
    return 0;
}

/* ---- requests ---- */

void m5_spec_open(m5_spec *sp, const m5_spec_params *p, int n_parallel)
{
    *sp = (m5_spec){.fixed = p->fixed};
    unsigned exist = 1u << M5_SPEC_NGRAM | 1u << M5_SPEC_SCRIPT;
    sp->sources = p->sources & M5_SPEC_OFF ? 0 : exist & (p->sources ? p->sources : M5_SPEC_AUTO);
    sp->max_k = !sp->sources ? 0 : p->k <= 0 ? M5_SPEC_DEFAULT_K : p->k < M5_SPEC_MAX_K ? p->k : M5_SPEC_MAX_K;
    sp->max_rows = sp->max_k * n_parallel < MAX_ROWS ? sp->max_k * n_parallel : MAX_ROWS;
    sp->max_hold = sp->max_k ? sp->max_k + EXTRA_HOLD : 0;
    m5_spec_cost_init(&sp->cost);
}

void m5_spec_begin(const m5_spec *sp, m5_spec_seq *q, const m5_spec_params *p, int n_prompt, int cap_ids)
{
    q->params = *p;
    q->params.sources = p->sources & M5_SPEC_OFF ? 0 : sp->sources & (p->sources ? p->sources : M5_SPEC_AUTO);
    if (!p->script) q->params.sources &= ~(1u << M5_SPEC_SCRIPT);
    if (p->k <= 0 || p->k > sp->max_k) q->params.k = sp->max_k;
    if (!p->sources) q->params.fixed |= sp->fixed;
    q->n_prompt = n_prompt;
    q->ngram_ready = q->params.sources & 1u << M5_SPEC_NGRAM && m5_ngram_begin(&q->ngram, cap_ids) == 0;
    memset(q->seen, 0, sizeof q->seen);
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

static bool has(const m5_spec_seq *q, m5_spec_source s)
{
    return q->params.sources >> s & 1;
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

/* ---- choice ---- */

static double acceptance(const m5_spec *sp, const m5_spec_seq *q, m5_spec_class c)
{
    const m5_spec_count *all = &sp->seen[c], *own = &q->seen[c];
    double prior = (double)(all->right + FIRST[c] * PRIOR_ALL) / (double)(all->right + all->wrong + PRIOR_ALL);
    return ((double)own->right + prior * (double)PRIOR) / (double)(own->right + own->wrong + PRIOR);
}

/* The time of a step of n rows; before the first measurement any unit does. */
typedef struct price {
    const m5_spec_cost *cost;
    double beside, per_row;
} price;

static double price_of(const price *p, int n)
{
    if (p->beside > 0) return p->beside + p->per_row * n;
    double us = m5_spec_cost_of(p->cost, n);
    return us > 0 ? us : 1 + p->cost->slope * (n - 1);
}

/* The length, up to n, that gives the most tokens per time, when `tokens` tokens of `rows` rows are in the step already; 0 when none is better than
 * that. */
static int best_length(const price *p, double accept, int n, int rows, double tokens)
{
    double gain = 0, each = 1, best = tokens / price_of(p, rows) * LEAST_GAIN;
    int best_k = 0;
    for (int k = 1; k <= n; k++) {
        each *= accept;
        gain += each;
        double rate = (tokens + gain) / price_of(p, rows + k);
        if (rate > best) best = rate, best_k = k;
    }
    return best_k;
}

static bool may_lose(const m5_spec *sp, const m5_spec_seq *q)
{
    return q->ledger_us + LOSS_SHARE * q->plain_us + LOSS_STEPS * m5_spec_cost_of(&sp->cost, 1) >= 0;
}

void m5_spec_propose(m5_spec *sp, const m5_spec_ask *asks, int n, double us_beside, double us_per_row)
{
    const price p = {&sp->cost, us_beside, us_per_row};
    const bool measure = sp->n_step % MEASURE_EVERY == 0;
    int rows = 0, left = sp->max_rows;
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
        int found = draft_free(sp, &asks[i], want);
        double accept = acceptance(sp, q, q->cls);
        q->n_draft = q->params.fixed ? found : best_length(&p, accept, found, rows, tokens);
        rows += q->n_draft;
        left -= q->n_draft;
        for (double each = accept, k = 0; k < q->n_draft; k++, each *= accept) tokens += each;
    }
}

/* ---- what came of it ---- */

static void count(m5_spec_count *c, float keep, int right, bool wrong)
{
    c->right = c->right * keep + (float)right;
    c->wrong = c->wrong * keep + (float)wrong;
}

void m5_spec_checked(m5_spec *sp, m5_spec_seq *q, int n_right)
{
    if (!q->n_draft) return;
    q->n_right = n_right;
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

void m5_spec_stepped(m5_spec *sp, const m5_spec_ask *asks, int n, double us, bool beside)
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
    m5_spec_cost_add(&sp->cost, plain_rows + drafted, us);
    /* Each sequence's share: a token is worth the time of the plain step over its sequences, drafts pay for the rows they added. */
    double plain = m5_spec_cost_of(&sp->cost, plain_rows), extra = us > plain ? us - plain : 0;
    for (int i = 0; i < n; i++) {
        m5_spec_seq *q = asks[i].q;
        q->plain_us += (1 + q->n_right) * plain / n;
        if (q->n_draft) q->ledger_us += q->n_right * plain / n - extra * q->n_draft / drafted - q->draft_us;
    }
}
