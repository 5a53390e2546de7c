/* SPDX-License-Identifier: Apache-2.0 */
/* `debug generate --guesses`: how often the likeliest guess of each source of drafts for the next token is right, and how often the second one when
 * the first is wrong. That is what a second branch at the root of a draft could bring. Greedy, one sequence, nothing is drafted. */
#include "cli/cli.h"

#include "base/mem.h"
#include "engine/self_draft.h"
#include "model/model.h"
#include "model/mtp.h"
#include "model/state.h"

#include <stdio.h>
#include <string.h>

enum { MIN_MATCH = 3, CHUNK = 256 };

typedef struct score {
    int n, first, second; /* places where it guessed; right at once; else right with the second guess */
} score;

typedef struct guesses {
    m5_model *model;
    m5_seq *seq;
    m5_ids ids;
    float *logits, *hidden; /* hidden: of the last token but one, where the next-token head needs it */
    int n_vocab;
    m5_layer_set self[M5_SELF_VARIANTS];
    score ngram, mtp, of_self[M5_SELF_VARIANTS];
    int32_t pair[4][2]; /* the two guesses of each source for the coming token, -1 = none */
} guesses;

static void best_two(const float *x, int n, int32_t *two)
{
    two[0] = two[1] = -1;
    for (int i = 0; i < n; i++) {
        if (two[0] < 0 || x[i] > x[two[0]]) {
            two[1] = two[0];
            two[0] = i;
        } else if (two[1] < 0 || x[i] > x[two[1]]) {
            two[1] = i;
        }
    }
}

/* What followed the longest, most recent match of the last tokens, and the best other token that followed a match. */
static void ngram_two(const m5_ids *ids, int32_t *two)
{
    const int n = (int)ids->n;
    int longest[2] = {0};
    two[0] = two[1] = -1;
    for (int at = n - 2; at >= MIN_MATCH - 1; at--) {
        int match = 0;
        while (match <= at && ids->p[at - match] == ids->p[n - 1 - match]) match++;
        if (match < MIN_MATCH) continue;
        const int32_t id = ids->p[at + 1];
        if (match > longest[0]) {
            if (two[0] != id) {
                two[1] = two[0];
                longest[1] = longest[0];
            }
            two[0] = id;
            longest[0] = match;
        } else if (id != two[0] && match > longest[1]) {
            two[1] = id;
            longest[1] = match;
        }
    }
}

static void count(score *s, const int32_t *two, int32_t truth)
{
    if (two[0] < 0) return;
    s->n++;
    if (two[0] == truth)
        s->first++;
    else
        s->second += two[1] == truth;
}

/* All guesses for the token behind the text, whose last token is not in the sequence yet. */
static int guess(guesses *g, m5_error *err)
{
    const int n = (int)g->ids.n, pos = m5_seq_pos(g->seq);
    int rc = 0;
    memset(g->pair, -1, sizeof g->pair);
    ngram_two(&g->ids, g->pair[0]);
    if (m5_mtp_present(g->model) && pos > 0) {
        const m5_mtp_run r = {.seq = g->seq, .pos = pos - 1, .hidden = g->hidden, .ids = g->ids.p + pos, .n_tok = 1, .n_out = 1};
        if ((rc = m5_mtp_forward(g->model, &r, 1, g->logits, err))) return rc;
        best_two(g->logits, g->n_vocab, g->pair[1]);
    }
    for (int v = 0; v < M5_SELF_VARIANTS; v++) {
        const m5_run r = {.seq = g->seq, .ids = g->ids.p + pos, .n_tok = n - pos, .n_out = 1};
        if (m5_model_check_layers(g->model, &g->self[v], NULL)) continue;
        if ((rc = m5_model_guess(g->model, &r, 1, &g->self[v], g->n_vocab, g->logits, err))) return rc;
        best_two(g->logits, g->n_vocab, g->pair[2 + v]);
    }
    return 0;
}

/* The rows of a forward that ended at the sequence's position fill the slots of the next-token head; the last hidden state waits for its token. */
static int saw(guesses *g, int pos, int n, m5_error *err)
{
    const size_t row = (size_t)m5_model_config(g->model)->n_embd;
    const float *hidden = m5_model_hidden_all(g->model);
    if (!hidden) return 0;
    memcpy(g->hidden, hidden + (size_t)(n - 1) * row, row * sizeof *hidden);
    const m5_mtp_run r = {.seq = g->seq, .pos = pos, .hidden = hidden, .ids = g->ids.p + pos + 1, .n_tok = n - 1};
    return n > 1 ? m5_mtp_forward(g->model, &r, 1, NULL, err) : 0;
}

static int run(guesses *g, int n_new, m5_error *err)
{
    int rc = 0, n_prompt = (int)g->ids.n;
    for (int at = 0; at < n_prompt - 1 && !rc;) {
        const int n = n_prompt - 1 - at < CHUNK ? n_prompt - 1 - at : CHUNK;
        const m5_run r = {.seq = g->seq, .ids = g->ids.p + at, .n_tok = n};
        rc = m5_model_forward(g->model, &r, 1, NULL, err);
        if (!rc) rc = saw(g, at, n, err);
        at += n;
    }
    for (int i = 0; i < n_new && !rc; i++) {
        const int pos = m5_seq_pos(g->seq);
        int32_t two[2];
        if ((rc = guess(g, err))) break;
        const m5_run r = {.seq = g->seq, .ids = g->ids.p + pos, .n_tok = 1, .n_out = 1};
        if ((rc = m5_model_forward(g->model, &r, 1, g->logits, err)) || (rc = saw(g, pos, 1, err))) break;
        best_two(g->logits, g->n_vocab, two);
        count(&g->ngram, g->pair[0], two[0]);
        count(&g->mtp, g->pair[1], two[0]);
        for (int v = 0; v < M5_SELF_VARIANTS; v++) count(&g->of_self[v], g->pair[2 + v], two[0]);
        if (m5_ids_push(&g->ids, two[0])) rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory for ids");
    }
    return rc;
}

static void print(const char *name, const score *s, const char *before)
{
    printf("%s\"%s\":{\"n\":%d,\"first\":%d,\"second\":%d}", before, name, s->n, s->first, s->second);
}

int m5_cli_guesses(const m5_cli_opts *o)
{
    guesses g = {0};
    m5_error err = {0};
    m5_engine_options eo;
    m5_cli_load load;
    int rc = m5_cli_engine_options(&eo, o, &load), code = 0;
    if (!rc) rc = m5_cli_ints(&g.ids, "ids", o->ids, 0, INT32_MAX);
    if (rc) goto out;
    const m5_model_options mo = {
        .cpu = {.n_threads = eo.n_threads, .cpu_mask = eo.cpu_mask ? eo.cpu_mask : 0xffffffffu, .act_f32 = eo.act_f32},
        .kv_type = (m5_kv_type)eo.kv_type,
        .max_batch_tok = CHUNK,
        .no_repack = eo.no_repack,
        .mtp = true,
    };
    code = m5_model_open(&g.model, o->model, &mo, &err);
    if (!code) code = m5_seq_new(&g.seq, g.model, &err);
    if (code) goto out;
    for (int v = 0; v < M5_SELF_VARIANTS; v++) g.self[v] = m5_self_default(g.model, (m5_self_variant)v);
    if (eo.exit_layer) code = m5_self_exit_after(&g.self[M5_SELF_EXIT], g.model, eo.exit_layer, &err);
    if (!code && eo.n_skip_layers) code = m5_self_skip_list(&g.self[M5_SELF_SKIP], g.model, eo.skip_layers, eo.n_skip_layers, &err);
    if (code) goto out;
    g.n_vocab = m5_model_config(g.model)->n_vocab;
    g.logits = m5_calloc(M5_MEM_SCRATCH, (size_t)g.n_vocab, sizeof *g.logits);
    g.hidden = m5_calloc(M5_MEM_SCRATCH, (size_t)m5_model_config(g.model)->n_embd, sizeof *g.hidden);
    code = g.logits && g.hidden ? run(&g, o->max_tokens, &err) : m5_error_set(&err, M5_ERR_NOMEM, "out of memory for guesses");
    if (code) goto out;
    print("ngram", &g.ngram, "{");
    print("mtp", &g.mtp, ",");
    for (int v = 0; v < M5_SELF_VARIANTS; v++) print(m5_spec_source_name((m5_spec_source)(M5_SPEC_EXIT + v)), &g.of_self[v], ",");
    puts("}");
out:
    if (code) rc = m5_cli_fail(&err);
    m5_cli_load_deinit(&load);
    m5_seq_free(g.seq);
    m5_model_close(g.model);
    m5_ids_free(&g.ids);
    m5_free(g.logits);
    m5_free(g.hidden);
    return rc;
}
