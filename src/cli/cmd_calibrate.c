/* SPDX-License-Identifier: Apache-2.0 */
/* `calibrate`: runs the measurement, writes the record, shows what it says. */
#include "cli/cli.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/task.h"
#include "engine/calibrate.h"

#include <stdio.h>
#include <string.h>

typedef struct bar {
    const m5_engine_options *eo;
    bool quiet;
    uint64_t begin_us;
} bar;

static void progress(void *ctx, double fraction, const char *what)
{
    const bar *b = ctx;
    if (b->eo->progress) b->eo->progress(b->eo->progress_ctx, fraction, what);
}

static void estimate(void *ctx, double seconds)
{
    const bar *b = ctx;
    if (b->quiet) return;
    m5_cli_clear_line();
    fprintf(stderr, "this takes about %.0f s\n", seconds < 1 ? 1 : seconds);
}

/* "0-5,8" */
static const char *layers_text(const m5_layer_set *s, int n_layer, char *out, size_t cap)
{
    size_t at = 0;
    out[0] = 0;
    for (int l = 0; l < n_layer && at < cap; l++) {
        int to = l;
        if (!m5_layer_in(s, l)) continue;
        while (to + 1 < n_layer && m5_layer_in(s, to + 1)) to++;
        at += (size_t)snprintf(out + at, cap - at, to > l ? "%s%d-%d" : "%s%d", at ? "," : "", l, to);
        l = to;
    }
    return out;
}

static int n_layers(const m5_layer_set *s)
{
    int n = 0;
    for (int l = 0; l < M5_MAX_LAYERS; l++) n += m5_layer_in(s, l);
    return n;
}

static void print_guesses(const m5_calib *c, const m5_calib_guess *g, int n, bool exits)
{
    char list[48];
    if (n == 0) return;
    printf(exits ? "\nearly exit: the first layers guess the next token\n" : "\nskipped layers: the others guess the next token\n");
    printf("%-22s %9s %9s %20s\n", exits ? "first layers" : "without layers", "ms", "right", "right when over 0.8");
    for (int i = 0; i < n; i++, g++) {
        m5_layer_set out = m5_layers_first(c->n_layer);
        for (int w = 0; w < M5_LAYER_WORDS; w++) out.bits[w] &= ~g->layers.bits[w];
        if (exits)
            snprintf(list, sizeof list, "%d", n_layers(&g->layers));
        else
            layers_text(&out, c->n_layer, list, sizeof list);
        printf("%-22.22s %9.2f %7.1f %% %8.1f %% of %4.1f %%\n", list, g->us[0] / 1e3, g->right[0] * 100, g->right[5] * 100, g->share[5] * 100);
    }
}

static void print_cuts(const m5_calib *c)
{
    char list[160], ids[48] = "";
    if (c->n_ids) snprintf(ids, sizeof ids, ", compared over the first %d ids", c->n_ids);
    if (c->n_single) printf("\none layer left out (%d tokens%s)\n%-6s %10s %10s %9s\n", c->singles[0].n_tok, ids, "layer", "KL mean", "KL 99 %", "same");
    for (int i = 0; i < c->n_single; i++) {
        const m5_calib_cut *s = &c->singles[i];
        printf("%-6s %10.4f %10.4f %7.1f %%\n", layers_text(&s->out, c->n_layer, list, sizeof list), s->kl_mean, s->kl_p99, s->top1 * 100);
    }
    if (c->n_cut)
        printf("\nlayers left out for good (--lossy-layer-skip KL)\n%10s %10s %9s %9s %7s  %s\n", "KL mean", "KL 99 %", "same", "speed", "tokens",
               "layers");
    for (int i = 0; i < c->n_cut; i++) {
        const m5_calib_cut *s = &c->cuts[i];
        printf("%10.4f %10.4f %7.1f %% %7.2f x %7d  %s\n", s->kl_mean, s->kl_p99, s->top1 * 100, s->speed, s->n_tok,
               layers_text(&s->out, c->n_layer, list, sizeof list));
    }
}

static void print_choice(const m5_calib *c, const char *name, const m5_calib_choice *o)
{
    char list[160];
    int n = n_layers(&o->layers);
    if (!n) {
        printf("%s: nothing to choose\n", name);
        return;
    }
    printf("%s: %d of %d layers (%s), guesses from %.2f on, at most %d a step: %.1f %% right, %.2f x expected%s\n", name, n, c->n_layer,
           layers_text(&o->layers, c->n_layer, list, sizeof list), o->confidence, o->k, o->accept * 100, o->speed,
           o->speed > M5_CALIB_LEAST_GAIN ? "" : ", which does not pay");
}

void m5_cli_calib_table(const m5_calib *c, const char *path)
{
    printf("%s (%s, %d threads), %d tokens of %s\n\nrows in a forward, ms:", c->model, c->isa, c->n_threads, c->n_tok,
           strcmp(c->text, "own") == 0 ? "its own text" : "the given text");
    for (int i = 0; i < c->n_cost; i++) printf("%s %d: %.2f", i ? "," : "", c->cost[i].rows, c->cost[i].us / 1e3);
    putchar('\n');
    print_guesses(c, c->exits, c->n_exit, true);
    print_cuts(c);
    print_guesses(c, c->skips, c->n_skip, false);
    putchar('\n');
    print_choice(c, "exit", &c->chosen[M5_SELF_EXIT]);
    print_choice(c, "skip", &c->chosen[M5_SELF_SKIP]);
    printf("kept in %s\n", path);
}

int m5_cli_calib_json(const m5_calib *c, const char *fingerprint)
{
    m5_buf b = {0};
    m5_calib_write(&b, c, fingerprint);
    const char *json = b.p ? strchr(b.p, '\n') : NULL;
    if (json) fputs(json + 1, stdout);
    m5_buf_free(&b);
    return json ? CLI_OK : CLI_FAILED;
}

static int measure(const m5_cli_opts *o, const m5_engine_options *eo, m5_error *err)
{
    m5_model *m = NULL;
    m5_calib *c = NULL;
    m5_buf path = {0};
    char *text = NULL;
    bar b = {eo, o->quiet, m5_time_us()};
    m5_model_options mo = {
        .cpu = {.n_threads = eo->n_threads, .cpu_mask = eo->cpu_mask ? eo->cpu_mask : 0xffffffffu, .act_f32 = eo->act_f32},
        .kv_type = (m5_kv_type)eo->kv_type,
        .max_batch_tok = M5_CALIBRATE_ROWS,
        .max_draft = M5_CALIBRATE_HOLD,
        .no_repack = eo->no_repack,
        .progress = eo->progress,
        .progress_ctx = eo->progress_ctx,
    };
    m5_calibrate_options co = {.n_tok = o->tokens, .progress = progress, .estimate = estimate, .ctx = &b};
    int rc = o->text ? m5_file_read(&text, &co.n_text, o->text, (size_t)64 << 20, err) : 0;
    co.text = text;
    if (!rc) rc = m5_model_open(&m, eo->model_path, &mo, err);
    m5_cli_clear_line();
    if (!rc) {
        m5_cpu_settle_wait(m5_model_cpu(m)); /* measure what a running server has */
        rc = m5_calibrate(&c, m, &co, err);
        m5_cli_clear_line();
    }
    const char *fingerprint = m ? m5_model_weights(m)->fingerprint : "";
    if (!rc && eo->calibration_path)
        m5_buf_puts(&path, eo->calibration_path);
    else if (!rc)
        m5_calib_path(&path, eo->calibration_dir, fingerprint);
    if (!rc && path.failed) rc = m5_error_set(err, M5_ERR_NOMEM, "out of memory");
    if (!rc) rc = m5_calib_save(c, path.p, fingerprint, err);
    if (!rc && o->json)
        rc = m5_cli_calib_json(c, fingerprint) ? m5_error_set(err, M5_ERR_NOMEM, "out of memory") : 0;
    else if (!rc)
        m5_cli_calib_table(c, path.p);
    m5_model_close(m);
    m5_free(c);
    m5_free(text);
    m5_buf_free(&path);
    return rc;
}

int m5_cmd_calibrate(const m5_cli_opts *given)
{
    m5_cli_opts o = *given;
    m5_engine_options eo;
    m5_cli_load load;
    m5_error err = {0};
    if (!o.model && o.args.n == 1) o.model = o.args.items[0];
    else if (o.args.n) return m5_cli_usage("'%s' is one argument too many. See 'm5-infer calibrate --help'.", o.args.items[o.model ? 0 : 1]);
    if (!o.model) return m5_cli_usage("no model given: m5-infer calibrate MODEL");
    int rc = m5_cli_engine_options(&eo, &o, &load);
    if (!rc && !eo.calibration_path && !eo.calibration_dir) rc = m5_cli_usage("no place for the record: neither --calibration, --cache-dir nor HOME is set");
    if (!rc && measure(&o, &eo, &err)) rc = m5_cli_fail(&err);
    m5_cli_load_deinit(&load);
    return rc;
}
