/* SPDX-License-Identifier: Apache-2.0 */
/* The calibration run; see calibrate.h. May touch: base, model/model.h, the vocabulary and the sampler. Not here: the file (calib.c). */
#include "engine/calibrate.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/task.h"
#include "engine/row.h"
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
    SKIP_ROWS = 8,      /* rows of a guess without some layers, which sees the ones before it, as the tokens of a draft do */
    COARSE = 8,         /* depths of exits that are tried first */
    FINE = 4,           /* and around the best of them */
    ALL_EXITS = 12,     /* models of so few layers: every depth */
    TRIES = 2,          /* next layers that are tried for each cut */
    ROUNDS = 4,         /* of timing; the best counts, as others only take time away */
    STEPS = 2,
    TIME_TOK = 64,      /* what stands before the rows that are timed */
    ALONE = 4,          /* a row alone takes about as long as so many more beside each other: for progress only */
    MAX_K = M5_SELF_MAX_K
};
/* Beyond, a text is no longer the model's; there is nothing to choose from. */
static const double KL_END = 1.5;
static const double LEAST_SHARE = 0.05;
/* Half of the places are enough for a cut when its mean KL has no larger standard error then; larger ones need many texts, as those differ. In nats, as
 * all of these. */
static const double SURE_KL = 0.001;

/* Which places: of every step-th text the first 1 / part. Each text takes its prompt through the layers too, so few texts are cheap. */
typedef struct scope {
    int step, part;
} scope;
static const scope ALL = {1, 1}, EXITS = {1, 2}, SKIPS = {1, 4}, SINGLES = {2, 2};

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
    int n, n_prompt, first, row; /* first, row: number of its first place among all, and of its first row */
    int valid; /* the kept stream is that of the layers in use up to the front of this one */
} passage;

/* What comparing needs to know of a row of logits: all of it, or the ids that guesses are made of. */
typedef struct top {
    int32_t id;
    double z; /* log sum exp(x - max) */
} top;

typedef struct run {
    m5_model *m;
    const m5_calibrate_options *o;
    m5_calib *c;
    int n_vocab, n_guess, n_layer;
    passage texts[MAX_TEXTS];
    int n_text, n_place, n_row; /* rows: of all texts but their last tokens */
    float *whole;  /* [n_place, n_vocab] logits of the whole model */
    top *best;     /* [n_place, 2] of them: over all ids, over the first n_guess */
    float *stream; /* [n_layer / every, n_row or ROWS, n_embd] in front of every every-th layer: of the whole model, then of the last cut; or NULL */
    int every;
    float *logits; /* [ROWS, n_vocab] */
    float *kl;     /* [n_place], or the probability of a guess */
    float *found;  /* [n_place] those that count, side by side */
    bool *same;    /* [n_place] */
    double head;   /* share of the output matrix in the work of a row */
    double done, plan; /* rows of a forward */
} run;

static void say(run *r, double rows, const char *what)
{
    r->done += rows;
    if (r->o->progress) r->o->progress(r->o->ctx, r->plan > 0 && r->done < r->plan ? r->done / r->plan * 0.999 : 0.999, what);
}

/* Work of n rows through a share of the layers, and logits of n_out of them. */
static double work(const run *r, double n, double layers, double n_out, int n_ids)
{
    return n * layers * (1 - r->head) + n_out * r->head * n_ids / r->n_vocab;
}

/* ---- comparing rows ---- */

static top top_of(const float *x, int n)
{
    const float max = m5_row_max(x, n);
    return (top){m5_row_first_at(x, n, max), m5_row_log_sum(x, n, max)};
}

/* p (x - y); a logit of -infinity adds nothing. */
static inline float kl_part(float x, float shift, float y)
{
    const float lp = x - shift, t = m5_row_exp_neg(lp <= 0 ? lp : 0) * (x - y);
    return lp > -30 ? t : 0;
}

/* sum p (x - y) - (max x - max y) - (zx - zy), p = softmax(x). In eight lanes, merged in order, so that it vectorises. */
static double kl_of(const float *x, top tx, const float *y, top ty, int n)
{
    const float shift = x[tx.id] + (float)tx.z;
    double sum[8] = {0};
    int i = 0;
    for (; i + 8 <= n; i += 8)
        for (int k = 0; k < 8; k++) sum[k] += (double)kl_part(x[i + k], shift, y[i + k]);
    for (; i < n; i++) sum[0] += (double)kl_part(x[i], shift, y[i]);
    for (int k = 1; k < 8; k++) sum[0] += sum[k];
    double kl = sum[0] - ((double)x[tx.id] - (double)y[ty.id]) - (tx.z - ty.z);
    return kl > 0 ? kl : 0;
}

double m5_calib_kl(const float *x, const float *y, int n)
{
    return kl_of(x, top_of(x, n), y, top_of(y, n), n);
}

/* Rows of r->logits and the places they belong to. */
typedef struct rows_job {
    run *r;
    int n, n_ids, place[ROWS];
} rows_job;

static void keep_rows(void *ctx, int64_t begin, int64_t end, int worker)
{
    const rows_job *j = ctx;
    run *r = j->r;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const float *x = r->logits + i * r->n_vocab;
        const int at = j->place[i];
        memcpy(r->whole + (size_t)at * (size_t)r->n_vocab, x, (size_t)r->n_vocab * sizeof *x);
        r->best[2 * at] = top_of(x, r->n_vocab);
        r->best[2 * at + 1] = r->n_guess < r->n_vocab ? top_of(x, r->n_guess) : r->best[2 * at];
    }
}

static void compare_rows(void *ctx, int64_t begin, int64_t end, int worker)
{
    const rows_job *j = ctx;
    run *r = j->r;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const float *y = r->logits + i * r->n_vocab;
        const int at = j->place[i];
        const top best = r->best[2 * at + (j->n_ids < r->n_vocab)], ty = top_of(y, j->n_ids);
        r->kl[at] = (float)kl_of(r->whole + (size_t)at * (size_t)r->n_vocab, best, y, ty, j->n_ids);
        r->same[at] = ty.id == best.id;
    }
}

static void guess_rows(void *ctx, int64_t begin, int64_t end, int worker)
{
    const rows_job *j = ctx;
    run *r = j->r;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const top ty = top_of(r->logits + i * r->n_vocab, j->n_ids);
        r->kl[j->place[i]] = (float)exp(-ty.z);
        r->same[j->place[i]] = ty.id == r->best[2 * j->place[i]].id;
    }
}

static void each_row(run *r, m5_range_fn fn, rows_job *j)
{
    m5_pool_for(m5_cpu_pool(m5_model_cpu(r->m)), j->n, 1, fn, j);
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
    m5_sampler *samplers[AT_ONCE];
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

/* The draws of one step, side by side: over a large vocabulary they take as long as the forward. */
typedef struct draws {
    const run *r;
    writer *w;
    const m5_sampling *sampling;
    int slots[AT_ONCE], rc[AT_ONCE];
    m5_sample_out out[AT_ONCE];
    m5_error err[AT_ONCE];
} draws;

static void draw_rows(void *ctx, int64_t begin, int64_t end, int worker)
{
    draws *d = ctx;
    (void)worker;
    for (int64_t k = begin; k < end; k++) {
        const int slot = d->slots[k];
        const passage *t = &d->r->texts[d->w->text[slot]];
        m5_sampling own = *d->sampling;
        own.seed = (uint64_t)d->w->text[slot] + 1;
        m5_sample_in in = {.params = &own, .logits = d->r->logits + k * d->r->n_vocab, .ids = t->ids, .n_ids = (size_t)t->n, .n_prompt = (size_t)t->n_prompt};
        d->rc[k] = m5_sampler_draw(d->w->samplers[slot], &in, &d->out[k], &d->err[k]);
    }
}

/* One token for every text that is being written. */
static int write_step(run *r, writer *w, const m5_sampling *sampling, m5_error *err)
{
    m5_run runs[AT_ONCE];
    draws d = {.r = r, .w = w, .sampling = sampling};
    int n = 0;
    for (int i = 0; i < AT_ONCE; i++) {
        if (w->text[i] < 0) continue;
        passage *t = &r->texts[w->text[i]];
        runs[n] = (m5_run){.seq = w->seqs[i], .ids = t->ids + t->n - 1, .n_tok = 1, .n_out = 1};
        d.slots[n++] = i;
    }
    int rc = m5_model_forward(r->m, runs, n, r->logits, err);
    if (!rc) m5_pool_for(m5_cpu_pool(m5_model_cpu(r->m)), n, 1, draw_rows, &d);
    for (int k = 0; k < n && !rc; k++) {
        passage *t = &r->texts[w->text[d.slots[k]]];
        const int32_t id = d.out[k].id;
        if (d.rc[k]) return m5_error_set(err, d.rc[k], "%s", d.err[k].text);
        t->ids[t->n++] = id;
        r->n_place++;
        if (t->n - t->n_prompt >= w->each || r->n_place >= w->n_want || ends(m5_model_config(r->m), w->tok, id)) rc = begin_text(r, w, d.slots[k], err);
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
    int rc = 0;
    for (int i = 0; i < AT_ONCE && !rc; i++) rc = m5_sampler_new(&w.samplers[i], r->n_vocab, n_draw, err);
    if (!rc && tok) rc = m5_vocab_chat(&chat, weights, tok, NULL, err);
    w.chat = chat;
    for (int i = 0; i < AT_ONCE; i++) w.text[i] = -1;
    for (int i = 0; i < AT_ONCE && !rc; i++) rc = begin_text(r, &w, i, err);
    while (!rc && r->n_place < n && (w.text[0] >= 0 || w.text[1] >= 0 || w.text[2] >= 0 || w.text[3] >= 0)) {
        rc = write_step(r, &w, &sampling, err);
        if (r->o->progress) r->o->progress(r->o->ctx, (double)r->n_place / n * 0.999, "text");
    }
    for (int i = 0; i < AT_ONCE; i++) {
        m5_seq_free(w.seqs[i]);
        m5_sampler_free(w.samplers[i]);
    }
    m5_ids_free(&w.ids);
    m5_chat_free(chat);
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

/* Room for the stream in front of each layer, or of every second, fourth, ...: as much as fits. */
static void open_stream(run *r)
{
    const uint64_t one = (uint64_t)(r->n_row > ROWS ? r->n_row : ROWS) * (uint64_t)m5_model_config(r->m)->n_embd * sizeof *r->stream;
    const uint64_t room = r->o->stream_bytes ? r->o->stream_bytes : m5_memory_total_bytes() / 8;
    r->every = 1;
    while (r->every < r->n_layer && (uint64_t)((r->n_layer - 1) / r->every + 1) * one > room) r->every *= 2;
    if (r->every < r->n_layer) r->stream = m5_alloc(M5_MEM_SCRATCH, (size_t)((r->n_layer - 1) / r->every + 1) * (size_t)one);
    if (!r->stream) r->every = r->n_layer;
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
        passage *t = &r->texts[i];
        t->first = r->n_place;
        t->row = r->n_row;
        t->valid = r->n_layer;
        r->n_place += t->n - t->n_prompt;
        r->n_row += t->n - 1;
    }
    if (r->n_place < 1) return m5_error_set(err, M5_ERR_ARG, "there is no text to measure");
    const size_t places = (size_t)r->n_place;
    r->whole = m5_alloc(M5_MEM_SCRATCH, places * (size_t)r->n_vocab * sizeof *r->whole);
    r->best = m5_calloc(M5_MEM_SCRATCH, 2 * places, sizeof *r->best);
    r->kl = m5_calloc(M5_MEM_SCRATCH, places, sizeof *r->kl);
    r->found = m5_calloc(M5_MEM_SCRATCH, places, sizeof *r->found);
    r->same = m5_calloc(M5_MEM_SCRATCH, places, sizeof *r->same);
    if (!r->whole || !r->best || !r->kl || !r->found || !r->same)
        return m5_error_set(err, M5_ERR_NOMEM, "out of memory for the logits of %d places", r->n_place);
    open_stream(r);
    return 0;
}

/* Places of text i that are measured. */
static int places_of(const run *r, int i, scope w)
{
    const int n = r->texts[i].n - r->texts[i].n_prompt, part = r->n_text > 1 ? w.part : w.part * w.step;
    if (i % w.step) return 0;
    return n < 8 || part == 1 ? n : n / part > 8 ? n / part : 8;
}

/* ---- the model without some layers ---- */

static m5_layer_set rest_of(const run *r, const m5_layer_set *out)
{
    m5_layer_set rest = m5_layers_first(r->n_layer);
    for (int w = 0; w < M5_LAYER_WORDS; w++) rest.bits[w] &= ~out->bits[w];
    return rest;
}

static float *stream_at(const run *r, int layer, int row)
{
    const size_t n = (size_t)m5_model_config(r->m)->n_embd;
    return r->stream ? r->stream + ((size_t)(layer / r->every) * (size_t)r->n_row + (size_t)row) * n : NULL;
}

/* Where layers that differ from `at` on can begin: at a kept stream, and with all keys that they read. */
static int start_of(const run *r, const m5_layer_set *set, int at)
{
    for (;;) {
        at = m5_model_restart(r->m, set, at);
        if (at % r->every == 0) return at;
        at -= at % r->every;
    }
}

/* The first n places of a text through the layers in use from `first` on: `each` sees the rows of logits. keep: the stream becomes theirs. */
static int pass(run *r, const passage *t, int n, int first, bool keep, int n_ids, m5_range_fn each, const char *what, m5_error *err)
{
    const m5_layer_set *set = m5_model_layers(r->m);
    const int lead = t->n_prompt - 1, all = lead + n;
    int n_set = 0;
    for (int l = first; l < r->n_layer; l++) n_set += m5_layer_in(set, l);
    m5_seq *s = NULL;
    int rc = m5_seq_new(&s, r->m, err);
    for (int at = n_set ? 0 : lead, k; at < all && !rc; at += k) { /* without a layer nothing is read of the rows before */
        k = all - at < ROWS ? all - at : ROWS;
        const int n_out = at + k <= lead ? 0 : at < lead ? at + k - lead : k;
        const m5_stream from = {.first = first, .from = stream_at(r, first, t->row + at), .kept = keep ? stream_at(r, 0, t->row + at) : NULL,
                                .every = r->every, .step = (size_t)r->n_row * (size_t)m5_model_config(r->m)->n_embd};
        const m5_run one = {.seq = s, .ids = t->ids + at, .n_tok = k, .n_out = n_out};
        rows_job j = {.r = r, .n = n_out, .n_ids = n_ids};
        for (int i = 0; i < n_out; i++) j.place[i] = t->first + at + k - n_out - lead + i;
        rc = m5_model_forward_from(r->m, &one, 1, &from, n_ids, n_out ? r->logits : NULL, err);
        if (!rc && n_out) each_row(r, each, &j);
        say(r, work(r, k, (double)n_set / r->n_layer, n_out, n_ids), what);
    }
    m5_seq_free(s);
    return rc;
}

static int measure_whole(run *r, m5_error *err)
{
    int rc = 0;
    for (int i = 0; i < r->n_text && !rc; i++) rc = pass(r, &r->texts[i], places_of(r, i, ALL), 0, true, r->n_vocab, keep_rows, "the whole model", err);
    return rc;
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static bool sure(const run *r, const float *kl, int n)
{
    double sum = 0, squares = 0;
    for (int i = 0; i < n; i++) sum += (double)kl[i], squares += (double)kl[i] * (double)kl[i];
    const double mean = sum / n, error = sqrt(fmax(squares / n - mean * mean, 0) / n);
    return error <= (r->o->sure_kl > 0 ? r->o->sure_kl : SURE_KL);
}

/* c differs from the cut before it in one layer, so all that lies in front of that is known. A part of the places is compared over the ids that guesses
 * are made of: it only has to find an order. After all places the stream is c's. */
static int measure_cut(run *r, m5_calib_cut *c, scope w, int layer, m5_error *err)
{
    const m5_layer_set rest = rest_of(r, &c->out);
    const bool full = w.step * w.part == 1;
    int rc = m5_model_use_layers(r->m, &rest, err), n = 0;
    double sum = 0, same = 0;
    for (int i = 0; i < r->n_text && !rc; i++) {
        passage *t = &r->texts[i];
        const int k = places_of(r, i, w), at = layer < t->valid ? layer : t->valid;
        if (full && 2 * n >= r->n_place && sure(r, r->found, n)) {
            t->valid = at;
            continue;
        }
        if (k == 0) continue;
        rc = pass(r, t, k, start_of(r, &rest, at), full, full ? r->n_vocab : r->n_guess, compare_rows, "layers left out", err);
        if (full) t->valid = r->n_layer;
        for (int p = t->first; p < t->first + k; p++) {
            sum += (double)r->kl[p];
            same += r->same[p];
            r->found[n++] = r->kl[p];
        }
    }
    m5_model_use_layers(r->m, NULL, NULL);
    if (rc) return rc;
    qsort(r->found, (size_t)n, sizeof *r->found, by_value);
    c->n_tok = n;
    c->kl_mean = sum / n;
    c->kl_p99 = (double)r->found[(int)((double)(n - 1) * 0.99)];
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
        rc = measure_cut(r, c, SINGLES, l, err);
    }
    return rc;
}

/* The layers, at most TRIES, that hurt least alone and can join the set. */
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
    while (n > 1 && kl[n - 1] <= SURE_KL) n--; /* layers of no weight: nothing to choose between */
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
        int joined = 0;
        for (int i = 0; i < n && !rc; i++) {
            m5_calib_cut t = {.out = out, .n_out = c->n_cut + 1};
            m5_layer_put(&t.out, tries[i], true);
            if (n > 1) rc = measure_cut(r, &t, SINGLES, tries[i], err);
            if (i == 0 || t.kl_mean < best.kl_mean) best = t, joined = tries[i];
        }
        if (n == 0 || rc || (rc = measure_cut(r, &best, ALL, joined, err))) break;
        c->cuts[c->n_cut++] = best;
        out = best.out;
        if (best.kl_mean > KL_END) break;
    }
    return rc;
}

/* ---- guesses ---- */

static void count_guess(const run *r, int at, m5_calib_guess *g)
{
    for (int t = 0; t < M5_CALIB_THRESHOLDS; t++) {
        if (r->kl[at] < m5_calib_thresholds[t]) continue;
        g->share[t] += 1;
        g->right[t] += r->same[at];
    }
}

static void shares(m5_calib_guess *g, int n)
{
    for (int t = 0; t < M5_CALIB_THRESHOLDS && n; t++) {
        g->right[t] = g->share[t] > 0 ? g->right[t] / g->share[t] : 0;
        g->share[t] /= n;
    }
}

/* Guesses of the first layers: what stands in front of the next one, and the head. The stream must be the whole model's. */
static int measure_exit(run *r, m5_calib_guess *g, int depth, m5_error *err)
{
    int rc = m5_model_use_layers(r->m, &g->layers, err), n = 0;
    for (int i = 0; i < r->n_text && !rc; i++) {
        const passage *t = &r->texts[i];
        const int k = places_of(r, i, EXITS);
        rc = pass(r, t, k, start_of(r, &g->layers, depth), false, r->n_guess, guess_rows, "guesses", err);
        for (int p = t->first; p < t->first + k && !rc; p++) count_guess(r, p, g);
        n += k;
    }
    m5_model_use_layers(r->m, NULL, NULL);
    shares(g, n);
    return rc;
}

static int first_change(const m5_layer_set *a, const m5_layer_set *b)
{
    int l = 0;
    while (l < M5_MAX_LAYERS && m5_layer_in(a, l) == m5_layer_in(b, l)) l++;
    return l;
}

/* The stream of one step's rows; the cuts' has done its work. */
static float *step_stream(const run *r, int layer)
{
    return r->stream ? r->stream + (size_t)(layer / r->every) * (size_t)ROWS * (size_t)m5_model_config(r->m)->n_embd : NULL;
}

/* The next rows of some texts: guesses of n sets, then the whole model's state. Returns how many rows, or an error. */
static int guess_step(run *r, m5_calib_guess *g, int n, int first_text, m5_seq *const *seqs, int n_seq, int at, m5_error *err)
{
    const size_t n_embd = (size_t)m5_model_config(r->m)->n_embd;
    m5_run runs[ROWS / SKIP_ROWS];
    rows_job j = {.r = r, .n_ids = r->n_guess};
    int n_run = 0, rc = 0;
    for (int i = 0; i < n_seq; i++) {
        const passage *t = &r->texts[first_text + i];
        const int left = places_of(r, first_text + i, SKIPS) - at, k = left < SKIP_ROWS ? left : SKIP_ROWS;
        if (k <= 0) continue;
        runs[n_run++] = (m5_run){.seq = seqs[i], .ids = t->ids + t->n_prompt - 1 + at, .n_tok = k, .n_out = k};
        for (int p = 0; p < k; p++) j.place[j.n++] = t->first + at + p;
    }
    if (j.n == 0) return 0;
    for (int q = 0; q < n && !rc; q++) {
        /* a set has one layer less than the one before it, so it begins there */
        const int begin = q ? start_of(r, &g[q].layers, first_change(&g[q - 1].layers, &g[q].layers)) : 0;
        const m5_stream from = {.first = begin, .from = step_stream(r, begin), .kept = step_stream(r, 0), .every = r->every, .step = (size_t)ROWS * n_embd};
        if ((rc = m5_model_guess_from(r->m, runs, n_run, &g[q].layers, &from, r->n_guess, r->logits, err))) break;
        each_row(r, guess_rows, &j);
        for (int i = 0; i < j.n; i++) count_guess(r, j.place[i], &g[q]);
        say(r, work(r, j.n, 0.4, j.n, r->n_guess), "guesses");
    }
    for (int i = 0; i < n_run; i++) runs[i].n_out = 0;
    if (!rc) rc = m5_model_forward(r->m, runs, n_run, NULL, err);
    return rc ? rc : j.n;
}

/* Guesses without some layers, rows of many texts beside each other; behind them stands the whole model's state. */
static int measure_guesses(run *r, m5_calib_guess *g, int n, m5_error *err)
{
    m5_seq *seqs[ROWS / SKIP_ROWS] = {NULL};
    int rc = 0, total = 0;
    for (int first = 0; first < r->n_text && rc >= 0; first += ROWS / SKIP_ROWS) {
        const int n_seq = r->n_text - first < ROWS / SKIP_ROWS ? r->n_text - first : ROWS / SKIP_ROWS;
        for (int i = 0; i < n_seq && !rc; i++) {
            const passage *t = &r->texts[first + i];
            rc = m5_seq_new(&seqs[i], r->m, err);
            if (!rc) rc = feed(r, seqs[i], t->ids, t->n_prompt - 1, err);
            say(r, work(r, t->n_prompt - 1, 1, 0, 0), "guesses");
        }
        for (int at = 0; !rc; at += SKIP_ROWS) {
            const int k = guess_step(r, g, n, first, seqs, n_seq, at, err);
            if (k <= 0) {
                rc = k;
                break;
            }
            total += k;
        }
        for (int i = 0; i < n_seq; i++) {
            m5_seq_free(seqs[i]);
            seqs[i] = NULL;
        }
    }
    for (int q = 0; q < n; q++) shares(&g[q], total);
    return rc;
}

/* ---- time ---- */

static void least(double *best, uint64_t t0)
{
    double us = (double)(m5_time_us() - t0);
    if (us < 1) us = 1;
    if (*best <= 0 || us < *best) *best = us;
}

/* Forwards of some rows, guesses of one row and of four: by turns, behind the start of the first text, since only times of the same minute can be
 * compared. The best time of a forward over all calls stays, so a machine that was busy earlier makes no guess look cheap. */
static int measure_times(run *r, m5_calib_guess *g, int n, m5_error *err)
{
    static const int rows[] = {1, 2, 3, 4, 6, 9, 13};
    enum { N_ROWS = sizeof rows / sizeof rows[0] };
    m5_calib *c = r->c;
    const passage *t = &r->texts[0];
    m5_seq *s = NULL;
    int rc = m5_seq_new(&s, r->m, err);
    if (!rc) rc = feed(r, s, t->ids, t->n < TIME_TOK ? t->n : TIME_TOK, err);
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
            say(r, rows[i] + ALONE, "time");
        }
        for (int i = 0; i < 2 * n && !rc; i++) {
            m5_run one = {.seq = s, .ids = ids, .n_tok = i % 2 ? 4 : 1, .n_out = 1};
            uint64_t t0 = m5_time_us();
            rc = m5_model_guess(r->m, &one, 1, &g[i / 2].layers, r->n_guess, r->logits, err);
            if (!rc) r->same[0] = top_of(r->logits, r->n_guess).id > 0; /* part of the price */
            if (round) least(&g[i / 2].us[i % 2], t0);
            say(r, ALONE / 2, "time");
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
    for (int i = 0; i <= STEPS && !rc; i++) { /* the first warms up */
        m5_run one = {.seq = s, .ids = ids + i % t->n, .n_tok = 1, .n_out = 1};
        uint64_t t0 = m5_time_us();
        rc = m5_model_forward(r->m, &one, 1, r->logits, err);
        if (i) least(us, t0);
        say(r, ALONE, "time");
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

static int depth_of(const m5_layer_set *s)
{
    int n = 0;
    while (n < M5_MAX_LAYERS && m5_layer_in(s, n)) n++;
    return n;
}

static int measure_depths(run *r, const int *depths, int n, m5_error *err)
{
    m5_calib *c = r->c;
    const int from = c->n_exit;
    int rc = 0;
    for (int i = 0; i < n; i++) {
        if (!new_depth(c, depths[i], r->n_layer)) continue;
        c->exits[c->n_exit++].layers = m5_layers_first(depths[i]);
    }
    for (int i = from; i < c->n_exit && !rc; i++) rc = measure_exit(r, &c->exits[i], depth_of(&c->exits[i].layers), err);
    return rc ? rc : measure_times(r, c->exits + from, c->n_exit - from, err);
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
    int rc = measure_guesses(r, c->skips, c->n_skip, err);
    if (!rc && c->n_skip) rc = measure_times(r, c->skips, c->n_skip, err);
    choose(c, c->skips, c->n_skip, &c->chosen[M5_SELF_SKIP]);
    return rc;
}

/* ---- the run ---- */

/* Work that everything together takes, about: half of the layers lie behind a change, and cuts have three quarters of them. */
static double plan_rows(const run *r)
{
    const double exits = r->n_layer <= ALL_EXITS + 1 ? r->n_layer - 1 : COARSE + FINE, cuts = most_cuts(r), rows = r->n_row, p = r->n_place;
    const double few = (rows - p) / SINGLES.step + p / 4, single = work(r, few, 0.5, p / 4, r->n_guess);
    const double cut = work(r, rows, 0.4, p, r->n_vocab) + TRIES * 0.75 * single, skip = work(r, p / SKIPS.part, 0.4, p / SKIPS.part, r->n_guess);
    const double times = (ROUNDS + 1) * (3 * (38 + 7 * ALONE) + ALONE * (exits + cuts)) + ROUNDS * (STEPS + 1) * (cuts + 1) * ALONE;
    return work(r, rows, 1, p, r->n_vocab) + work(r, 0, 0, exits * p / EXITS.part, r->n_guess) + r->n_layer * single + cuts * (cut + skip) + rows - p + times;
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
    c->n_ids = r->n_guess < r->n_vocab ? r->n_guess : 0;
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
    r->head = fmin((double)cfg->n_vocab * cfg->n_embd / fmax((double)m5_model_weights(m)->n_params, 1), 1);
    r->logits = m5_alloc(M5_MEM_SCRATCH, (size_t)ROWS * (size_t)r->n_vocab * sizeof *r->logits);
    if (!r->logits) rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory for logits");
    if (rc || (rc = open_texts(r, err))) goto out;
    describe(r);
    r->plan = plan_rows(r);
    uint64_t t0 = m5_time_us();
    if ((rc = measure_whole(r, err))) goto out;
    if (o->estimate) o->estimate(o->ctx, (double)(m5_time_us() - t0) / 1e6 * r->plan / r->done);
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
        m5_free(r->found);
        m5_free(r->stream);
        m5_free(r->same);
        m5_free(r->logits);
    }
    m5_free(r);
    m5_free(c);
    return rc;
}
