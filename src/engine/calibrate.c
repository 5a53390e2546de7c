/* SPDX-License-Identifier: Apache-2.0 */
/* The calibration run; see calibrate.h. May touch: base, model/model.h, the vocabulary and the sampler. Not here: the file (calib.c). */
#include "engine/calibrate.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/task.h"
#include "engine/sampler.h"
#include "engine/spec_cost.h"
#include "engine/vocab.h"
#include "m5.h"
#include "model/mtp.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = M5_CALIBRATE_ROWS,
    MAX_TEXTS = 64,
    AT_ONCE = 4,        /* texts that are written together */
    EXIT_ROWS = 16,     /* rows of a guess: those of the first layers have the bits of single ones */
    SKIP_ROWS = 8,      /* here a guess sees the ones before it, as the tokens of a draft do */
    EXIT_PART = 2,      /* and the part of the places */
    SKIP_PART = 3,
    COARSE = 8,         /* depths of exits that are tried first */
    FINE = 4,           /* and around the best of them */
    ALL_EXITS = 12,     /* models of so few layers: every depth */
    TRIES = 2,          /* next layers that are tried for each cut */
    PART = 4,           /* singles and tries: a PART-th of the places */
    ROUNDS = 5,         /* of timing; the best counts, as others only take time away */
    STEPS = 4,
    MAX_K = M5_SELF_MAX_K
};
/* Beyond, a text is no longer the model's; there is nothing to choose from. */
static const double KL_END = 1.5;
static const double LEAST_SHARE = 0.05;

static const char *const prompts[] = {
    "Why is the sky blue?",
    "Write a short story about a lighthouse keeper who finds a letter.",
    "Write a Python function that merges two sorted lists, with comments.",
    "List ten facts about the planet Mars.",
    "Explain how a refrigerator works to a child.",
    "Translate into French: The weather is nice today, and we are going for a walk along the river.",
    "What are the advantages and disadvantages of working from home?",
    "Give a JSON object that describes a book with title, author, year and three keywords.",
    "A train leaves at 9:40 and arrives at 13:05. How long does it take? Explain step by step.",
    "Write a polite letter to a landlord about a broken heater.",
    "Summarise the causes of the First World War.",
    "Compare a list and a hash table, and say when to use which.",
};
enum { N_PROMPT = sizeof prompts / sizeof prompts[0] };

/* ids[n_prompt..) are the places. */
typedef struct passage {
    int32_t *ids;
    int n, n_prompt, first; /* first: number of its first place among all */
} passage;

typedef struct run {
    m5_model *m;
    const m5_calibrate_options *o;
    m5_calib *c;
    int n_vocab, n_guess, n_layer;
    passage texts[MAX_TEXTS];
    int n_text, n_place;
    float *whole;  /* [n_place, n_vocab] logits of the whole model */
    int32_t *best; /* [n_place] their likeliest token */
    float *logits; /* [ROWS, n_vocab] */
    float *kl;     /* [n_place], or the probability of a guess */
    bool *same;    /* [n_place] */
    double done, plan; /* rows of a forward */
} run;

static void say(run *r, double rows, const char *what)
{
    r->done += rows;
    if (r->o->progress) r->o->progress(r->o->ctx, r->plan > 0 && r->done < r->plan ? r->done / r->plan * 0.999 : 0.999, what);
}

/* ---- comparing rows ---- */

static int largest(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

/* log sum exp(x - max) */
static double log_sum(const float *x, int n, float max)
{
    double sum = 0;
    for (int i = 0; i < n; i += 256) {
        float part = 0;
        for (int k = i; k < n && k < i + 256; k++)
            if (x[k] - max > -30) part += expf(x[k] - max);
        sum += (double)part;
    }
    return log(sum);
}

static double kl_of(const float *x, int bx, const float *y, int by, int n)
{
    const double zx = log_sum(x, n, x[bx]), zy = log_sum(y, n, y[by]);
    const float shift = x[bx] + (float)zx;
    double sum = 0;
    for (int i = 0; i < n; i++) {
        const float lp = x[i] - shift;
        if (lp > -30 && x[i] != y[i]) sum += (double)(expf(lp) * (x[i] - y[i]));
    }
    double kl = sum - ((double)x[bx] - (double)y[by]) - (zx - zy);
    return kl > 0 ? kl : 0;
}

double m5_calib_kl(const float *x, const float *y, int n)
{
    return kl_of(x, largest(x, n), y, largest(y, n), n);
}

typedef struct rows_job {
    run *r;
    int first;
} rows_job;

static void keep_rows(void *ctx, int64_t begin, int64_t end, int worker)
{
    const rows_job *j = ctx;
    run *r = j->r;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const float *x = r->logits + i * r->n_vocab;
        memcpy(r->whole + (j->first + i) * r->n_vocab, x, (size_t)r->n_vocab * sizeof *x);
        r->best[j->first + i] = largest(x, r->n_vocab);
    }
}

static void compare_rows(void *ctx, int64_t begin, int64_t end, int worker)
{
    const rows_job *j = ctx;
    run *r = j->r;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const float *y = r->logits + i * r->n_vocab;
        const int64_t at = j->first + i;
        const int by = largest(y, r->n_vocab);
        r->kl[at] = (float)kl_of(r->whole + at * r->n_vocab, r->best[at], y, by, r->n_vocab);
        r->same[at] = by == r->best[at];
    }
}

static void guess_rows(void *ctx, int64_t begin, int64_t end, int worker)
{
    const rows_job *j = ctx;
    run *r = j->r;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const float *y = r->logits + i * r->n_vocab;
        const int by = largest(y, r->n_guess);
        r->kl[j->first + i] = (float)exp(-log_sum(y, r->n_guess, y[by]));
        r->same[j->first + i] = by == r->best[j->first + i];
    }
}

/* ---- text ---- */

static int add_text(run *r, const int32_t *ids, int n, int n_prompt, int room, m5_error *err)
{
    passage *t = &r->texts[r->n_text];
    *t = (passage){.n = n, .n_prompt = n_prompt};
    t->ids = m5_alloc(M5_MEM_MISC, (size_t)(n + room) * sizeof *ids);
    if (!t->ids) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for text");
    memcpy(t->ids, ids, (size_t)n * sizeof *ids);
    r->n_text++;
    return 0;
}

/* The prompt of text number i: a question in the model's own template, plain text without one, any ids without a tokenizer. */
static int prompt_ids(m5_ids *ids, const m5_tokenizer *t, const m5_chat *chat, bool own_template, int i, int n_vocab, m5_error *err)
{
    const char *s = prompts[i % N_PROMPT];
    ids->n = 0;
    if (!t) {
        for (int k = 0; k < 4; k++)
            if (m5_ids_push(ids, (int32_t)(m5_sampler_uniform(77, (uint64_t)(i * 4 + k)) * n_vocab))) return m5_error_set(err, M5_ERR_NOMEM, "out of memory");
        return 0;
    }
    if (!own_template) return m5_tokenize(t, ids, s, strlen(s), M5_SPECIAL_NONE, true, err);
    m5_buf json = {0}, text = {0};
    m5_json *vars = NULL;
    m5_text_span *spans = NULL;
    size_t n_spans = 0;
    m5_buf_puts(&json, "{\"add_generation_prompt\":true,\"messages\":[{\"role\":\"user\",\"content\":");
    m5_json_write_str(&json, s, strlen(s));
    m5_buf_puts(&json, "}]}");
    int rc = json.failed ? m5_error_set(err, M5_ERR_NOMEM, "out of memory") : m5_json_parse(&vars, json.p, json.n, NULL, err);
    if (!rc) rc = m5_chat_render(chat, vars, 0, &text, &spans, &n_spans, err);
    if (!rc) rc = m5_tokenize_spans(t, ids, text.p, text.n, spans, n_spans, false, err);
    m5_json_unref(vars);
    m5_free(spans);
    m5_buf_free(&json);
    m5_buf_free(&text);
    return rc;
}

static bool ends(const m5_config *c, const m5_tokenizer *t, int32_t id)
{
    int32_t stop[64];
    int n = t ? m5_tokenizer_stop_ids(t, stop, 64) : 0;
    for (int i = 0; i < c->n_eos; i++)
        if (c->eos[i] == id) return true;
    for (int i = 0; i < n; i++)
        if (stop[i] == id) return true;
    return false;
}

static int feed(run *r, m5_seq *s, const int32_t *ids, int n, m5_error *err)
{
    int rc = 0;
    for (int at = 0; at < n && !rc; at += ROWS) {
        m5_run one = {.seq = s, .ids = ids + at, .n_tok = n - at < ROWS ? n - at : ROWS};
        rc = m5_model_forward(r->m, &one, 1, NULL, err);
    }
    return rc;
}

/* Texts that are being written: AT_ONCE at a time, each with a sequence. */
typedef struct writer {
    const m5_tokenizer *tok;
    const m5_chat *chat;
    bool own_template;
    m5_sampler *sampler;
    m5_ids ids;
    m5_seq *seqs[AT_ONCE];
    int text[AT_ONCE]; /* -1 = none */
    int each, n_want;
} writer;

/* The next prompt takes the place, while texts are wanted. */
static int begin_text(run *r, writer *w, int slot, m5_error *err)
{
    w->text[slot] = -1;
    m5_seq_free(w->seqs[slot]);
    w->seqs[slot] = NULL;
    if (r->n_place >= w->n_want || r->n_text == MAX_TEXTS) return 0;
    int rc = prompt_ids(&w->ids, w->tok, w->chat, w->own_template, r->n_text, r->n_vocab, err);
    if (!rc && w->ids.n == 0) rc = m5_error_set(err, M5_ERR_FORMAT, "a prompt gives no token");
    if (!rc) rc = m5_seq_new(&w->seqs[slot], r->m, err);
    if (!rc) rc = feed(r, w->seqs[slot], w->ids.p, (int)w->ids.n - 1, err);
    if (rc) return rc;
    w->text[slot] = r->n_text;
    return add_text(r, w->ids.p, (int)w->ids.n, (int)w->ids.n, w->each, err);
}

/* One token for every text that is being written. */
static int write_step(run *r, writer *w, const m5_sampling *sampling, m5_error *err)
{
    m5_run runs[AT_ONCE];
    int slots[AT_ONCE], n = 0;
    for (int i = 0; i < AT_ONCE; i++) {
        if (w->text[i] < 0) continue;
        passage *t = &r->texts[w->text[i]];
        runs[n] = (m5_run){.seq = w->seqs[i], .ids = t->ids + t->n - 1, .n_tok = 1, .n_out = 1};
        slots[n++] = i;
    }
    int rc = m5_model_forward(r->m, runs, n, r->logits, err);
    for (int k = 0; k < n && !rc; k++) {
        passage *t = &r->texts[w->text[slots[k]]];
        m5_sampling own = *sampling;
        m5_sample_out drawn;
        own.seed = (uint64_t)w->text[slots[k]] + 1;
        m5_sample_in in = {.params = &own, .logits = r->logits + (size_t)k * (size_t)r->n_vocab, .ids = t->ids, .n_ids = (size_t)t->n, .n_prompt = (size_t)t->n_prompt};
        if ((rc = m5_sampler_draw(w->sampler, &in, &drawn, err))) break;
        t->ids[t->n++] = drawn.id;
        r->n_place++;
        if (t->n - t->n_prompt >= w->each || r->n_place >= w->n_want || ends(m5_model_config(r->m), w->tok, drawn.id)) rc = begin_text(r, w, slots[k], err);
    }
    return rc;
}

/* The model's own texts, drawn with a fixed seed, until there are n places. */
static int write_texts(run *r, const m5_tokenizer *tok, int n, m5_error *err)
{
    const m5_weights *weights = m5_model_weights(r->m);
    writer w = {.tok = tok, .own_template = weights->chat_template, .each = n / AT_ONCE > 16 ? n / AT_ONCE : 16, .n_want = n};
    m5_chat *chat = NULL;
    m5_sampling sampling;
    int n_draw = tok && m5_tokenizer_n_vocab(tok) < r->n_vocab ? m5_tokenizer_n_vocab(tok) : r->n_vocab;
    m5_sampling_default(&sampling);
    int rc = m5_sampler_new(&w.sampler, r->n_vocab, n_draw, err);
    if (!rc && tok) rc = m5_vocab_chat(&chat, weights, tok, NULL, err);
    w.chat = chat;
    for (int i = 0; i < AT_ONCE; i++) w.text[i] = -1;
    for (int i = 0; i < AT_ONCE && !rc; i++) rc = begin_text(r, &w, i, err);
    while (!rc && r->n_place < n && (w.text[0] >= 0 || w.text[1] >= 0 || w.text[2] >= 0 || w.text[3] >= 0)) {
        rc = write_step(r, &w, &sampling, err);
        if (r->o->progress) r->o->progress(r->o->ctx, (double)r->n_place / n * 0.999, "text");
    }
    for (int i = 0; i < AT_ONCE; i++) m5_seq_free(w.seqs[i]);
    m5_ids_free(&w.ids);
    m5_chat_free(chat);
    m5_sampler_free(w.sampler);
    return rc;
}

/* AT_ONCE windows of the given text, spread over it. */
static int read_text(run *r, const m5_tokenizer *tok, int n, m5_error *err)
{
    m5_ids ids = {0};
    int rc = 0;
    if (r->o->ids)
        for (size_t i = 0; i < r->o->n_ids && !rc; i++) rc = m5_ids_push(&ids, r->o->ids[i]);
    else if (tok)
        rc = m5_tokenize(tok, &ids, r->o->text, r->o->n_text, M5_SPECIAL_NONE, true, err);
    else
        rc = m5_error_set(err, M5_ERR_ARG, "the model brings no tokenizer, so no text can be read");
    if (!rc && ids.n < 2) rc = m5_error_set(err, M5_ERR_ARG, "the text is too short");
    int all = (int)(ids.n < (1u << 28) ? ids.n : 1u << 28), n_window = all > 4 * AT_ONCE ? AT_ONCE : 1, each = n / n_window + 1;
    if (each > all / n_window) each = all / n_window;
    for (int i = 0; i < n_window && !rc; i++) {
        rc = add_text(r, ids.p + (size_t)i * (size_t)(all / n_window), each, 1, 0, err);
        r->n_place += each - 1;
    }
    m5_ids_free(&ids);
    return rc;
}

static int open_texts(run *r, m5_error *err)
{
    m5_tokenizer *tok = NULL;
    int n = r->o->n_tok > 0 ? r->o->n_tok : M5_CALIBRATE_TOK;
    const uint64_t fit = m5_memory_total_bytes() / 8 / ((uint64_t)r->n_vocab * sizeof(float));
    if ((uint64_t)n > fit && fit >= 16) {
        m5_log(M5_LOG_WARN, "%d places instead of %d: their logits would take more than an eighth of the memory", (int)fit, n);
        n = (int)fit;
    }
    int rc = m5_vocab_tokenizer(&tok, m5_model_weights(r->m), err);
    if (!rc) rc = r->o->text || r->o->ids ? read_text(r, tok, n, err) : write_texts(r, tok, n, err);
    m5_tokenizer_free(tok);
    if (rc) return rc;
    r->n_place = 0;
    for (int i = 0; i < r->n_text; i++) {
        r->texts[i].first = r->n_place;
        r->n_place += r->texts[i].n - r->texts[i].n_prompt;
    }
    if (r->n_place < 1) return m5_error_set(err, M5_ERR_ARG, "there is no text to measure");
    const size_t places = (size_t)r->n_place;
    r->whole = m5_alloc(M5_MEM_SCRATCH, places * (size_t)r->n_vocab * sizeof *r->whole);
    r->best = m5_calloc(M5_MEM_SCRATCH, places, sizeof *r->best);
    r->kl = m5_calloc(M5_MEM_SCRATCH, places, sizeof *r->kl);
    r->same = m5_calloc(M5_MEM_SCRATCH, places, sizeof *r->same);
    if (!r->whole || !r->best || !r->kl || !r->same) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for the logits of %d places", r->n_place);
    return 0;
}

/* Places of a text that are measured over 1 / part of it. */
static int places_of(const passage *t, int part)
{
    int n = t->n - t->n_prompt;
    return n < 8 || part == 1 ? n : n / part > 8 ? n / part : 8;
}

/* ---- the model without some layers ---- */

static m5_layer_set rest_of(const run *r, const m5_layer_set *out)
{
    m5_layer_set rest = m5_layers_first(r->n_layer);
    for (int w = 0; w < M5_LAYER_WORDS; w++) rest.bits[w] &= ~out->bits[w];
    return rest;
}

/* Every measured place of the texts through the layers in use: `each` sees the rows of logits. */
static int pass(run *r, int part, m5_range_fn each, double share, const char *what, m5_error *err)
{
    int rc = 0;
    for (int i = 0; i < r->n_text && !rc; i++) {
        const passage *t = &r->texts[i];
        const int n = places_of(t, part);
        m5_seq *s = NULL;
        rc = m5_seq_new(&s, r->m, err);
        if (!rc) rc = feed(r, s, t->ids, t->n_prompt - 1, err);
        for (int at = 0; at < n && !rc; at += ROWS) {
            const int k = n - at < ROWS ? n - at : ROWS;
            m5_run one = {.seq = s, .ids = t->ids + t->n_prompt - 1 + at, .n_tok = k, .n_out = k};
            rows_job j = {r, t->first + at};
            rc = m5_model_forward(r->m, &one, 1, r->logits, err);
            if (!rc) m5_pool_for(m5_cpu_pool(m5_model_cpu(r->m)), k, 1, each, &j);
            say(r, k * share, what);
        }
        m5_seq_free(s);
    }
    return rc;
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static int measure_cut(run *r, m5_calib_cut *c, int part, m5_error *err)
{
    const m5_layer_set rest = rest_of(r, &c->out);
    int rc = m5_model_use_layers(r->m, &rest, err), n = 0;
    if (!rc) rc = pass(r, part, compare_rows, 1 - (double)c->n_out / r->n_layer, "layers left out", err);
    m5_model_use_layers(r->m, NULL, NULL);
    if (rc) return rc;
    double sum = 0, same = 0;
    for (int i = 0; i < r->n_text; i++) {
        const passage *t = &r->texts[i];
        for (int k = 0; k < places_of(t, part); k++, n++) {
            sum += (double)r->kl[t->first + k];
            same += r->same[t->first + k];
            r->kl[n] = r->kl[t->first + k]; /* n never overtakes */
        }
    }
    qsort(r->kl, (size_t)n, sizeof *r->kl, by_value);
    c->n_tok = n;
    c->kl_mean = sum / n;
    c->kl_p99 = (double)r->kl[(int)((double)(n - 1) * 0.99)];
    c->top1 = same / n;
    return 0;
}

static bool can_leave(const run *r, const m5_layer_set *out, int layer)
{
    m5_layer_set rest = rest_of(r, out);
    if (!m5_layer_in(&rest, layer)) return false;
    m5_layer_put(&rest, layer, false);
    return m5_model_check_layers(r->m, &rest, NULL) == 0;
}

static int measure_singles(run *r, m5_error *err)
{
    const m5_layer_set none = {0};
    int rc = 0;
    for (int l = 0; l < r->n_layer && !rc; l++) {
        if (!can_leave(r, &none, l)) continue;
        m5_calib_cut *c = &r->c->singles[r->c->n_single++];
        c->n_out = 1;
        m5_layer_put(&c->out, l, true);
        rc = measure_cut(r, c, PART, err);
    }
    return rc;
}

/* The TRIES layers that hurt least alone and can join the set. */
static int next_layers(const run *r, const m5_layer_set *out, int tries[TRIES])
{
    const m5_calib *c = r->c;
    double kl[TRIES];
    int n = 0;
    for (int i = 0; i < c->n_single; i++) {
        int l = 0, at = n;
        while (!m5_layer_in(&c->singles[i].out, l)) l++;
        if (!can_leave(r, out, l)) continue;
        while (at > 0 && kl[at - 1] > c->singles[i].kl_mean) at--;
        if (at == TRIES) continue;
        if (n < TRIES) n++;
        for (int k = n - 1; k > at; k--) kl[k] = kl[k - 1], tries[k] = tries[k - 1];
        kl[at] = c->singles[i].kl_mean;
        tries[at] = l;
    }
    return n;
}

static int most_cuts(const run *r)
{
    int n = r->n_layer / 2;
    return n < M5_CALIB_MAX_SETS ? n : M5_CALIB_MAX_SETS;
}

static int measure_cuts(run *r, m5_error *err)
{
    m5_calib *c = r->c;
    m5_layer_set out = {0};
    int rc = 0;
    while (c->n_cut < most_cuts(r) && !rc) {
        int tries[TRIES], n = next_layers(r, &out, tries);
        m5_calib_cut best = {0};
        for (int i = 0; i < n && !rc; i++) {
            m5_calib_cut t = {.out = out, .n_out = c->n_cut + 1};
            m5_layer_put(&t.out, tries[i], true);
            if (n > 1) rc = measure_cut(r, &t, PART, err);
            if (i == 0 || t.kl_mean < best.kl_mean) best = t;
        }
        if (n == 0 || rc || (rc = measure_cut(r, &best, 1, err))) break;
        c->cuts[c->n_cut++] = best;
        out = best.out;
        if (best.kl_mean > KL_END) break;
    }
    return rc;
}

/* ---- guesses ---- */

static void count_guesses(const run *r, int first, int n, m5_calib_guess *g)
{
    for (int at = first; at < first + n; at++)
        for (int t = 0; t < M5_CALIB_THRESHOLDS; t++) {
            if (r->kl[at] < m5_calib_thresholds[t]) continue;
            g->share[t] += 1;
            g->right[t] += r->same[at];
        }
}

/* Guesses of n sets at 1 / part of the places, `rows` beside each other; behind them stands the whole model's state. */
static int measure_guesses(run *r, m5_calib_guess *g, int n, int part, int rows, m5_error *err)
{
    int rc = 0, total = 0;
    for (int i = 0; i < r->n_text && !rc; i++) {
        const passage *t = &r->texts[i];
        const int n_tok = places_of(t, part);
        m5_seq *s = NULL;
        rc = m5_seq_new(&s, r->m, err);
        if (!rc) rc = feed(r, s, t->ids, t->n_prompt - 1, err);
        for (int at = 0; at < n_tok && !rc; at += rows) {
            const int k = n_tok - at < rows ? n_tok - at : rows;
            m5_run one = {.seq = s, .ids = t->ids + t->n_prompt - 1 + at, .n_tok = k, .n_out = k};
            rows_job j = {r, t->first + at};
            for (int q = 0; q < n && !rc; q++) {
                rc = m5_model_guess(r->m, &one, 1, &g[q].layers, r->n_guess, r->logits, err);
                if (rc) break;
                m5_pool_for(m5_cpu_pool(m5_model_cpu(r->m)), k, 1, guess_rows, &j);
                count_guesses(r, j.first, k, &g[q]);
                say(r, 0.7 * k, "guesses");
            }
            one.n_out = 0;
            if (!rc) rc = m5_model_forward(r->m, &one, 1, NULL, err);
            total += k;
        }
        m5_seq_free(s);
    }
    for (int q = 0; q < n && total; q++)
        for (int t = 0; t < M5_CALIB_THRESHOLDS; t++) {
            g[q].right[t] = g[q].share[t] > 0 ? g[q].right[t] / g[q].share[t] : 0;
            g[q].share[t] /= total;
        }
    return rc;
}

/* ---- time ---- */

static void least(double *best, uint64_t t0)
{
    double us = (double)(m5_time_us() - t0);
    if (us < 1) us = 1;
    if (*best <= 0 || us < *best) *best = us;
}

/* Forwards of some rows, guesses of one row and of four: by turns, behind the first text. */
static int measure_times(run *r, m5_calib_guess *g, int n, m5_error *err)
{
    static const int rows[] = {1, 2, 3, 4, 6, 9, 13};
    enum { N_ROWS = sizeof rows / sizeof rows[0] };
    m5_calib *c = r->c;
    const passage *t = &r->texts[0];
    m5_seq *s = NULL;
    int rc = m5_seq_new(&s, r->m, err);
    if (!rc) rc = feed(r, s, t->ids, t->n, err);
    int32_t ids[M5_CALIBRATE_HOLD];
    for (int i = 0; i < M5_CALIBRATE_HOLD; i++) ids[i] = t->ids[i % t->n];
    c->n_cost = N_ROWS;
    for (int round = 0; round <= ROUNDS && !rc; round++) {
        for (int i = 0; i < N_ROWS && !rc; i++) {
            m5_run one = {.seq = s, .ids = ids, .n_tok = rows[i], .n_out = rows[i], .hold = true};
            uint64_t t0 = m5_time_us();
            rc = m5_model_forward(r->m, &one, 1, r->logits, err);
            c->cost[i].rows = rows[i];
            if (round) least(&c->cost[i].us, t0); /* the first warms up */
            say(r, rows[i], "time");
        }
        for (int i = 0; i < 2 * n && !rc; i++) {
            m5_run one = {.seq = s, .ids = ids, .n_tok = i % 2 ? 4 : 1, .n_out = 1};
            uint64_t t0 = m5_time_us();
            rc = m5_model_guess(r->m, &one, 1, &g[i / 2].layers, r->n_guess, r->logits, err);
            if (!rc) r->same[0] = largest(r->logits, r->n_guess) > 0; /* part of the price */
            if (round) least(&g[i / 2].us[i % 2], t0);
            say(r, one.n_tok, "time");
        }
    }
    m5_seq_free(s);
    return rc;
}

/* One token after the other through the layers in use. */
static int time_decode(run *r, double *us, m5_error *err)
{
    const passage *t = &r->texts[0];
    const int32_t *ids = t->ids;
    m5_seq *s = NULL;
    int rc = m5_seq_new(&s, r->m, err);
    if (!rc) rc = feed(r, s, ids, t->n < 8 ? t->n : 8, err);
    for (int i = 0; i <= STEPS && !rc; i++) {
        m5_run one = {.seq = s, .ids = ids + i % t->n, .n_tok = 1, .n_out = 1};
        uint64_t t0 = m5_time_us();
        rc = m5_model_forward(r->m, &one, 1, r->logits, err);
        if (i) least(us, t0);
        say(r, 1, "time");
    }
    m5_seq_free(s);
    return rc;
}

static int measure_speeds(run *r, m5_error *err)
{
    m5_calib *c = r->c;
    double whole = 0;
    int rc = 0;
    for (int round = 0; round < ROUNDS && !rc; round++) {
        rc = time_decode(r, &whole, err);
        for (int i = 0; i < c->n_cut && !rc; i++) {
            const m5_layer_set rest = rest_of(r, &c->cuts[i].out);
            if (!(rc = m5_model_use_layers(r->m, &rest, err))) rc = time_decode(r, &c->cuts[i].speed, err);
            m5_model_use_layers(r->m, NULL, NULL);
        }
    }
    for (int i = 0; i < c->n_cut; i++) c->cuts[i].speed = c->cuts[i].speed > 0 ? whole / c->cuts[i].speed : 0;
    return rc;
}

/* ---- choosing ---- */

double m5_calib_expect(const m5_calib_guess *g, int t, int k, const double *cost)
{
    const double share = g->share[t], stands = share * g->right[t], per_row = (g->us[1] - g->us[0]) / 3;
    double tokens = 1, us = 0, go_on = 1, right = 1;
    for (int j = 1; j <= k; j++) { /* the j-th guess is made when those before it were sure enough; a guess computes the rows before it again */
        us += go_on * (g->us[0] + (per_row > 0 ? per_row : 0) * (j - 1));
        us += go_on * (1 - share) * cost[j]; /* it is not sure: j - 1 guesses are checked */
        go_on *= share;
        right *= stands;
        tokens += right;
    }
    us += go_on * cost[k + 1];
    return us > 0 ? tokens * cost[1] / us : 0;
}

static void choose(const m5_calib *c, const m5_calib_guess *g, int n, m5_calib_choice *out)
{
    m5_spec_cost model;
    double cost[MAX_K + 2];
    m5_spec_cost_init(&model);
    for (int i = 0; i < c->n_cost; i++) model.us[c->cost[i].rows] = c->cost[i].us;
    for (int i = 1; i <= MAX_K + 1; i++) cost[i] = m5_spec_cost_of(&model, i);
    *out = (m5_calib_choice){0};
    for (int i = 0; i < n; i++, g++)
        for (int t = 0; t < M5_CALIB_THRESHOLDS; t++)
            for (int k = 1; k <= MAX_K && g->share[t] >= LEAST_SHARE; k++) { /* a few places say nothing */
                double speed = m5_calib_expect(g, t, k, cost);
                if (speed <= out->speed) continue;
                *out = (m5_calib_choice){g->layers, (double)m5_calib_thresholds[t], g->right[t], k, speed};
            }
}

/* Whether a depth is still to be measured. */
static bool new_depth(const m5_calib *c, int depth, int n_layer)
{
    const m5_layer_set s = m5_layers_first(depth);
    for (int i = 0; i < c->n_exit; i++)
        if (memcmp(&c->exits[i].layers, &s, sizeof s) == 0) return false;
    return depth >= 1 && depth < n_layer;
}

static int by_depth(const void *a, const void *b)
{
    const m5_calib_guess *x = a, *y = b;
    for (int w = M5_LAYER_WORDS - 1; w >= 0; w--)
        if (x->layers.bits[w] != y->layers.bits[w]) return x->layers.bits[w] < y->layers.bits[w] ? -1 : 1;
    return 0;
}

static int measure_depths(run *r, const int *depths, int n, m5_error *err)
{
    m5_calib *c = r->c;
    const int from = c->n_exit;
    int rc;
    for (int i = 0; i < n; i++) {
        if (!new_depth(c, depths[i], r->n_layer)) continue;
        c->exits[c->n_exit++].layers = m5_layers_first(depths[i]);
    }
    rc = measure_guesses(r, c->exits + from, c->n_exit - from, EXIT_PART, EXIT_ROWS, err);
    return rc ? rc : measure_times(r, c->exits + from, c->n_exit - from, err);
}

static int depth_of(const m5_layer_set *s)
{
    int n = 0;
    while (n < M5_MAX_LAYERS && m5_layer_in(s, n)) n++;
    return n;
}

static int measure_exits(run *r, m5_error *err)
{
    m5_calib *c = r->c;
    int depths[ALL_EXITS], n = 0, rc;
    if (r->n_layer <= ALL_EXITS + 1) {
        for (int l = 1; l < r->n_layer; l++) depths[n++] = l;
        if ((rc = measure_depths(r, depths, n, err))) return rc;
    } else {
        const int step = r->n_layer / (COARSE + 1);
        for (int i = 1; i <= COARSE; i++) depths[n++] = i * r->n_layer / (COARSE + 1);
        if ((rc = measure_depths(r, depths, n, err))) return rc;
        choose(c, c->exits, c->n_exit, &c->chosen[M5_SELF_EXIT]);
        const int best = depth_of(&c->chosen[M5_SELF_EXIT].layers);
        n = 0;
        for (int d = 1; d <= FINE / 2; d++) {
            const int away = step > FINE ? d * step / (FINE / 2 + 1) : d;
            depths[n++] = best - away;
            depths[n++] = best + away;
        }
        if ((rc = measure_depths(r, depths, n, err))) return rc;
    }
    qsort(c->exits, (size_t)c->n_exit, sizeof *c->exits, by_depth);
    choose(c, c->exits, c->n_exit, &c->chosen[M5_SELF_EXIT]);
    return 0;
}

static int measure_skips(run *r, m5_error *err)
{
    m5_calib *c = r->c;
    for (int i = 0; i < c->n_cut; i++) c->skips[c->n_skip++].layers = rest_of(r, &c->cuts[i].out);
    int rc = measure_guesses(r, c->skips, c->n_skip, SKIP_PART, SKIP_ROWS, err);
    if (!rc && c->n_skip) rc = measure_times(r, c->skips, c->n_skip, err);
    choose(c, c->skips, c->n_skip, &c->chosen[M5_SELF_SKIP]);
    return rc;
}

/* ---- the run ---- */

/* Rows of a forward that everything together takes, about; a row alone takes as long as several beside each other. */
static double plan_rows(const run *r)
{
    const double exits = r->n_layer <= ALL_EXITS + 1 ? r->n_layer - 1 : COARSE + FINE, cuts = most_cuts(r), p = r->n_place;
    const double times = (ROUNDS + 1) * (2 * 38 + 5 * (exits + cuts)) + ROUNDS * (STEPS + 1) * (cuts + 1);
    return p + 0.7 * p * (exits / EXIT_PART + cuts / SKIP_PART) + r->n_layer * p / PART + cuts * p * 0.75 * (1 + (double)TRIES / PART) + times;
}

static void describe(run *r)
{
    m5_calib *c = r->c;
    const m5_weights *w = m5_model_weights(r->m);
    snprintf(c->model, sizeof c->model, "%.90s", w->config.name);
    snprintf(c->isa, sizeof c->isa, "%s", m5_cpu_isa_name(m5_model_cpu(r->m)));
    snprintf(c->text, sizeof c->text, "%s", r->o->text || r->o->ids ? "file" : "own");
    c->n_layer = r->n_layer;
    c->n_threads = m5_pool_size(m5_cpu_pool(m5_model_cpu(r->m)));
    c->n_tok = r->n_place;
    c->made_unix_ms = m5_time_unix_ms();
}

int m5_calibrate(m5_calib **out, m5_model *m, const m5_calibrate_options *o, m5_error *err)
{
    const m5_config *cfg = m5_model_config(m);
    *out = NULL;
    run *r = m5_calloc(M5_MEM_MISC, 1, sizeof *r);
    m5_calib *c = m5_calloc(M5_MEM_MISC, 1, sizeof *c);
    int rc = r && c ? 0 : m5_error_set(err, M5_ERR_NOMEM, "out of memory for a calibration");
    if (rc) goto out;
    *r = (run){.m = m, .o = o, .c = c, .n_vocab = cfg->n_vocab, .n_layer = cfg->n_layer};
    r->n_guess = cfg->n_vocab > 2 * M5_MTP_SHORTLIST ? M5_MTP_SHORTLIST : cfg->n_vocab;
    r->logits = m5_alloc(M5_MEM_SCRATCH, (size_t)ROWS * (size_t)r->n_vocab * sizeof *r->logits);
    if (!r->logits) rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory for logits");
    if (rc || (rc = open_texts(r, err))) goto out;
    describe(r);
    r->plan = plan_rows(r);
    uint64_t t0 = m5_time_us();
    if ((rc = pass(r, 1, keep_rows, 1, "the whole model", err))) goto out;
    if (o->estimate) o->estimate(o->ctx, (double)(m5_time_us() - t0) / 1e6 * r->plan / r->n_place);
    if ((rc = measure_exits(r, err)) || (rc = measure_singles(r, err)) || (rc = measure_cuts(r, err))) goto out;
    if ((rc = measure_skips(r, err)) || (rc = measure_speeds(r, err))) goto out;
    if (o->progress) o->progress(o->ctx, 1, "");
    *out = c;
    c = NULL;
out:
    for (int i = 0; r && i < r->n_text; i++) m5_free(r->texts[i].ids);
    if (r) {
        m5_free(r->whole);
        m5_free(r->best);
        m5_free(r->kl);
        m5_free(r->same);
        m5_free(r->logits);
    }
    m5_free(r);
    m5_free(c);
    return rc;
}
