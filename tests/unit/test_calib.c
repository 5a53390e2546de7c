/* SPDX-License-Identifier: Apache-2.0 */
/* engine/calib and engine/calibrate: the record is whole or ignored, and what a run measures of tiny models is true. */
#include "engine/calibrate.h"

#include "base/mem.h"
#include "base/task.h"

#include <math.h>
#include <unistd.h>

#include "t.h"

static char dir[] = "/tmp/m5-calib-XXXXXX";
static const char *const print = "0123456789abcdef0123456789abcdef";
static m5_calib one, two;

static void fill(m5_calib *c)
{
    memset(c, 0, sizeof *c);
    strcpy(c->model, "a \"model\" \xc3\xa9");
    strcpy(c->isa, "ref");
    strcpy(c->text, "own");
    c->n_layer = 70;
    c->n_threads = 3;
    c->n_tok = 512;
    c->made_unix_ms = 1764000000123;
    c->n_cost = 2;
    c->cost[0].rows = 1, c->cost[0].us = 1.0 / 3;
    c->cost[1].rows = 9, c->cost[1].us = 1e5 + 0.1;
    c->n_exit = c->n_skip = 2;
    for (int i = 0; i < 2; i++) {
        c->exits[i].layers = m5_layers_first(3 + 65 * i);
        c->skips[i].layers = m5_layers_first(70);
        m5_layer_put(&c->skips[i].layers, 66 + i, false);
        for (int t = 0; t < M5_CALIB_THRESHOLDS; t++) c->exits[i].share[t] = 1.0 / (t + 1), c->exits[i].right[t] = t / 9.0;
        c->skips[i].us[1] = 17.25 + i;
    }
    c->n_single = 1;
    c->singles[0] = (m5_calib_cut){.n_out = 1, .n_tok = 128, .kl_mean = 1e-9, .kl_p99 = 0.1, .top1 = 0.9999};
    m5_layer_put(&c->singles[0].out, 69, true);
    c->n_cut = 4;
    for (int i = 0; i < 4; i++) {
        c->cuts[i] = (m5_calib_cut){.n_out = i < 3 ? i + 1 : 3, .n_tok = 512, .kl_mean = 0.01 * (i + 1), .kl_p99 = 0.5, .top1 = 0.9, .speed = 1.1};
        for (int l = 0; l < c->cuts[i].n_out; l++) m5_layer_put(&c->cuts[i].out, 5 + 2 * l, true);
    }
    c->cuts[3].kl_mean = 0.025;
    c->chosen[M5_SELF_EXIT] = (m5_calib_choice){m5_layers_first(68), 0.8f, 0.75, 4, 1.0200001};
    c->chosen[M5_SELF_SKIP] = (m5_calib_choice){.speed = 0.5};
}

static void record_round_trip(void)
{
    m5_buf b = {0};
    m5_error err = {0};
    fill(&one);
    m5_calib_write(&b, &one, print);
    T_CHECK(!b.failed && m5_calib_read(&two, b.p, b.n, print, &err) == 0, "%s", err.text);
    T_CHECK(memcmp(&one, &two, sizeof one) == 0, "the record came back changed");
    T_EQ_INT(m5_calib_read(&two, b.p, b.n, "0123456789abcdef0123456789abcdee", &err), M5_ERR_FORMAT);
    for (size_t n = 0; n < b.n; n++) {
        T_CHECK(m5_calib_read(&two, b.p, n, print, &err) != 0, "torn at %zu of %zu", n, b.n);
        b.p[n] ^= 1;
        T_CHECK(m5_calib_read(&two, b.p, b.n, print, &err) != 0, "damaged at %zu of %zu", n, b.n);
        b.p[n] ^= 1;
    }
    m5_buf_putc(&b, '\n');
    T_CHECK(m5_calib_read(&two, b.p, b.n, print, &err) != 0, "something behind the end");
    m5_buf_free(&b);
}

static void what_it_says(void)
{
    fill(&one);
    T_CHECK(m5_calib_find_cut(&one, 0.009) == NULL, "nothing is so close");
    T_CHECK(m5_calib_find_cut(&one, 0.01) == &one.cuts[0], "the first");
    T_CHECK(m5_calib_find_cut(&one, 0.0299) == &one.cuts[3], "the only one of three layers");
    T_CHECK(m5_calib_find_cut(&one, 0.5) == &one.cuts[3], "of two with three layers the better one");
    m5_self_draft d = m5_calib_self_draft(&one, M5_SELF_EXIT);
    T_CHECK(d.known && d.pays && d.confidence == 0.8f && d.accept == 0.75 && m5_layer_in(&d.layers, 67) && !m5_layer_in(&d.layers, 68), "the exit");
    d = m5_calib_self_draft(&one, M5_SELF_SKIP);
    T_CHECK(d.known && !d.pays && !m5_layer_in(&d.layers, 0), "no skip");
}

static void kl_and_speed(void)
{
    enum { N = 3000 };
    static float x[N], y[N];
    for (int i = 0; i < N; i++) x[i] = (float)((i * 7919) % 1000) / 60 - 5, y[i] = x[i] + (float)((i * 104729) % 100) / 80;
    double zx = 0, zy = 0, kl = 0;
    for (int i = 0; i < N; i++) zx += exp((double)x[i]), zy += exp((double)y[i]);
    for (int i = 0; i < N; i++) kl += exp((double)x[i]) / zx * (log(exp((double)x[i]) / zx) - log(exp((double)y[i]) / zy));
    T_CHECK(fabs(m5_calib_kl(x, y, N) - kl) < 1e-5, "%g, should be %g", m5_calib_kl(x, y, N), kl);
    T_CHECK(m5_calib_kl(x, x, N) == 0, "the KL of nothing left out is %g", m5_calib_kl(x, x, N));
    double cost[8];
    for (int i = 0; i < 8; i++) cost[i] = 100 + 10 * i;
    m5_calib_guess g = {.us = {20, 20}, .share = {1}, .right = {1}};
    T_CHECK(fabs(m5_calib_expect(&g, 0, 3, cost) - 4 * 110 / (3 * 20 + 140.0)) < 1e-9, "three right guesses");
    g.right[0] = 0;
    T_CHECK(fabs(m5_calib_expect(&g, 0, 1, cost) - 110 / (20 + 120.0)) < 1e-9, "a wrong guess");
    g.share[0] = 0;
    T_CHECK(fabs(m5_calib_expect(&g, 0, 5, cost) - 110 / (20 + 110.0)) < 1e-9, "a guess that is never sure");
}

/* The same measurement written down plainly: every place on its own, from the start of the text. Returns the share of equal likeliest tokens. */
static double by_hand(m5_model *m, const m5_layer_set *rest, const int32_t *ids, int n, double *kl)
{
    const size_t v = (size_t)m5_model_config(m)->n_vocab;
    float *logits = m5_calloc(M5_MEM_SCRATCH, 2 * v, sizeof *logits);
    int same = 0;
    *kl = 0;
    for (int i = 1; i <= n && logits; i++) {
        size_t best[2] = {0};
        for (int pass = 0; pass < 2; pass++) {
            float *x = logits + (size_t)pass * v;
            m5_seq *s = NULL;
            m5_error err = {0};
            T_EQ_INT(m5_model_use_layers(m, pass ? rest : NULL, &err), 0);
            T_EQ_INT(m5_seq_new(&s, m, &err), 0);
            m5_run r = {.seq = s, .ids = ids, .n_tok = i, .n_out = 1};
            T_CHECK(m5_model_forward(m, &r, 1, x, &err) == 0, "%s", err.text);
            m5_seq_free(s);
            for (size_t k = 1; k < v; k++)
                if (x[k] > x[best[pass]]) best[pass] = k;
        }
        same += best[0] == best[1];
        *kl += m5_calib_kl(logits, logits + v, (int)v) / n;
    }
    m5_model_use_layers(m, NULL, NULL);
    m5_free(logits);
    return (double)same / n;
}

static m5_model *open_model(const char *family)
{
    char path[512];
    m5_model *m = NULL;
    m5_error err = {0};
    m5_model_options o = {.cpu = {.n_threads = 2, .cpu_mask = 0xffffffffu}, .page_tok = 16, .max_batch_tok = M5_CALIBRATE_ROWS, .max_draft = M5_CALIBRATE_HOLD};
    snprintf(path, sizeof path, "%s/models/%s", M5_TEST_DATA, family);
    T_CHECK(m5_model_open(&m, path, &o, &err) == 0, "%s: %s", family, err.text);
    return m;
}

static void watch(void *ctx, double fraction, const char *what)
{
    (void)what;
    if (fraction < 0 || fraction > 1) *(int *)ctx = -1;
    if (fraction == 1) *(int *)ctx = 1;
}

static void family(const char *name)
{
    m5_model *m = open_model(name);
    m5_calib *c = NULL, *back = NULL;
    m5_error err = {0};
    int end = 0;
    if (!m) return;
    m5_calibrate_options o = {.n_tok = 96, .progress = watch, .ctx = &end};
    T_CHECK(m5_calibrate(&c, m, &o, &err) == 0, "%s: %s", name, err.text);
    if (!c) goto out;
    const m5_config *cfg = m5_model_config(m);
    const m5_layer_set all = m5_layers_first(cfg->n_layer);
    T_EQ_INT(end, 1);
    T_CHECK(memcmp(m5_model_layers(m), &all, sizeof all) == 0, "%s: left as it was", name);
    T_EQ_INT(c->n_exit, cfg->n_layer - 1);
    T_CHECK(c->n_tok == 96 && c->n_single >= 1 && c->n_cut >= 1 && c->n_skip == c->n_cut, "%s: %d places, %d and %d cuts", name, c->n_tok, c->n_single, c->n_cut);
    for (int i = 0; i < c->n_cut; i++) {
        T_EQ_INT(c->cuts[i].n_out, i + 1);
        T_CHECK(c->cuts[i].kl_mean > 0 && c->cuts[i].kl_p99 >= c->cuts[i].kl_mean / 100 && c->cuts[i].speed > 0, "%s: a cut changes something", name);
        for (int l = 0; l < cfg->n_layer; l++) /* never a layer whose keys another one reads that stays */
            T_CHECK(cfg->layers[l].mixer != M5_MIX_ATTN || m5_layer_in(&c->cuts[i].out, l) || !m5_layer_in(&c->cuts[i].out, cfg->layers[l].kv_donor),
                    "%s: layer %d has lost its keys", name, l);
    }
    for (int v = 0; v < M5_SELF_VARIANTS; v++) {
        T_CHECK(m5_model_check_layers(m, &c->chosen[v].layers, &err) == 0, "%s: %s", name, err.text);
        T_CHECK(c->chosen[v].speed > 0 && c->chosen[v].k > 0, "%s: a choice has a speed", name);
    }
    /* saved, read back, and not taken for another model's */
    m5_buf path = {0};
    m5_calib_path(&path, dir, m5_model_weights(m)->fingerprint);
    T_CHECK(m5_calib_save(c, path.p, m5_model_weights(m)->fingerprint, &err) == 0, "%s", err.text);
    T_CHECK(m5_calib_load(&back, path.p, m, true, &err) == 0 && memcmp(back, c, sizeof *c) == 0, "%s: %s", name, err.text);
    m5_free(back);
    T_CHECK(m5_calib_save(c, path.p, print, &err) == 0, "%s", err.text);
    T_EQ_INT(m5_calib_load(&back, path.p, m, false, &err), M5_ERR_FORMAT);
    T_CHECK(m5_path_exists(path.p), "a file of the user's stays");
    T_EQ_INT(m5_calib_load(&back, path.p, m, true, &err), M5_ERR_FORMAT);
    T_CHECK(!m5_path_exists(path.p), "a foreign record under the model's name goes");
    T_EQ_INT(m5_calib_load(&back, path.p, m, true, &err), M5_ERR_NOTFOUND);
    m5_layer_put(&c->chosen[M5_SELF_SKIP].layers, cfg->n_layer, true);
    c->n_layer++;
    T_CHECK(m5_calib_save(c, path.p, m5_model_weights(m)->fingerprint, &err) == 0, "%s", err.text);
    T_EQ_INT(m5_calib_load(&back, path.p, m, true, &err), M5_ERR_FORMAT);
    m5_buf_free(&path);
out:
    m5_free(c);
    m5_model_close(m);
}

/* What a run says of given ids is what a plain measurement finds, and what it says twice. */
static void true_figures(const char *name)
{
    enum { N = 16 };
    m5_model *m = open_model(name);
    m5_calib *c = NULL, *again = NULL;
    m5_error err = {0};
    int32_t ids[N];
    if (!m) return;
    for (int i = 0; i < N; i++) ids[i] = (i * 37 + 11) % m5_model_config(m)->n_vocab;
    m5_calibrate_options o = {.ids = ids, .n_ids = N, .n_tok = 96};
    T_CHECK(m5_calibrate(&c, m, &o, &err) == 0 && m5_calibrate(&again, m, &o, &err) == 0, "%s: %s", name, err.text);
    if (!c || !again) goto out;
    const int n = m5_model_config(m)->n_layer;
    m5_layer_set rest = m5_layers_first(n);
    double kl, same = by_hand(m, &rest, ids, N - 1, &kl);
    T_CHECK(same == 1 && kl == 0, "%s: nothing left out changes nothing, not %g", name, kl);
    T_EQ_INT(c->n_tok, N - 1);
    for (int i = 0; i < c->n_cut; i++) {
        T_CHECK(c->cuts[i].kl_mean == again->cuts[i].kl_mean && memcmp(&c->cuts[i].out, &again->cuts[i].out, sizeof rest) == 0, "%s: run twice", name);
        rest = m5_layers_first(n);
        for (int l = 0; l < n; l++)
            if (m5_layer_in(&c->cuts[i].out, l)) m5_layer_put(&rest, l, false);
        same = by_hand(m, &rest, ids, N - 1, &kl);
        T_CHECK(fabs(c->cuts[i].kl_mean - kl) < 1e-6 * kl + 1e-7, "%s: cut %d, KL %g by hand, %g in the record", name, i, kl, c->cuts[i].kl_mean);
        T_CHECK(fabs(c->cuts[i].top1 - same) < 1e-9, "%s: cut %d, %g the same by hand, %g in the record", name, i, same, c->cuts[i].top1);
    }
    for (int i = 0; i < c->n_exit; i++) { /* over the first half of the places */
        same = by_hand(m, &c->exits[i].layers, ids, 8, &kl);
        T_CHECK(fabs(c->exits[i].right[0] - same) < 1e-9 && c->exits[i].share[0] == 1, "%s: exit %d, %g right by hand, %g in the record", name, i + 1,
                same, c->exits[i].right[0]);
    }
out:
    m5_free(c);
    m5_free(again);
    m5_model_close(m);
}

int main(void)
{
    m5_log_set_level(M5_LOG_ERROR);
    if (!mkdtemp(dir)) return 1;
    record_round_trip();
    what_it_says();
    kl_and_speed();
    static const char *const names[] = {"qwen3_5", "qwen3_5_moe", "gemma4", "gemma3", "llama3", "smollm2"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) family(names[i]);
    true_figures("qwen3_5");
    true_figures("gemma4");
    rmdir(dir);
    return t_done();
}
