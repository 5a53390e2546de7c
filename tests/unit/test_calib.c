/* SPDX-License-Identifier: Apache-2.0 */
/* engine/calib and engine/calibrate: the record is whole or ignored, and what a run measures of tiny models is true. */
#include "engine/calibrate.h"

#include "base/mem.h"
#include "base/task.h"
#include "m5.h"

#include <math.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>
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
    c->n_ids = 65536;
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

static bool same_set(const m5_layer_set *a, const m5_layer_set *b) { return memcmp(a, b, sizeof *a) == 0; }
static bool same_guess(const m5_calib_guess *a, const m5_calib_guess *b)
{
    return same_set(&a->layers, &b->layers) && memcmp(a->us, b->us, sizeof a->us) == 0 && memcmp(a->share, b->share, sizeof a->share) == 0 &&
           memcmp(a->right, b->right, sizeof a->right) == 0;
}
static bool same_cut(const m5_calib_cut *a, const m5_calib_cut *b)
{
    return same_set(&a->out, &b->out) && a->n_out == b->n_out && a->n_tok == b->n_tok && a->kl_mean == b->kl_mean && a->kl_p99 == b->kl_p99 &&
           a->top1 == b->top1 && a->speed == b->speed;
}
/* Member by member: what lies in the padding of a struct is the compiler's affair. */
static bool same_record(const m5_calib *a, const m5_calib *b)
{
    bool same = strcmp(a->model, b->model) == 0 && strcmp(a->isa, b->isa) == 0 && strcmp(a->text, b->text) == 0 && a->n_layer == b->n_layer &&
                a->n_threads == b->n_threads && a->n_tok == b->n_tok && a->n_ids == b->n_ids && a->made_unix_ms == b->made_unix_ms && a->n_cost == b->n_cost &&
                a->n_exit == b->n_exit && a->n_skip == b->n_skip && a->n_single == b->n_single && a->n_cut == b->n_cut;
    if (!same) return false;
    for (int i = 0; i < a->n_cost; i++) same = same && a->cost[i].rows == b->cost[i].rows && a->cost[i].us == b->cost[i].us;
    for (int i = 0; i < a->n_exit; i++) same = same && same_guess(&a->exits[i], &b->exits[i]);
    for (int i = 0; i < a->n_skip; i++) same = same && same_guess(&a->skips[i], &b->skips[i]);
    for (int i = 0; i < a->n_single; i++) same = same && same_cut(&a->singles[i], &b->singles[i]);
    for (int i = 0; i < a->n_cut; i++) same = same && same_cut(&a->cuts[i], &b->cuts[i]);
    for (int v = 0; v < M5_SELF_VARIANTS; v++) {
        const m5_calib_choice *x = &a->chosen[v], *y = &b->chosen[v];
        same = same && same_set(&x->layers, &y->layers) && x->confidence == y->confidence && x->accept == y->accept && x->k == y->k && x->speed == y->speed;
    }
    return same;
}

static void record_round_trip(void)
{
    m5_buf b = {0};
    m5_error err = {0};
    fill(&one);
    m5_calib_write(&b, &one, print);
    T_CHECK(!b.failed && m5_calib_read(&two, b.p, b.n, print, &err) == 0, "%s", err.text);
    T_CHECK(same_record(&one, &two), "the record came back changed");
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
    m5_model_options o = {.cpu = {.n_threads = 2, .cpu_mask = 0xffffffffu}, .page_tok = 32, .max_batch_tok = M5_CALIBRATE_ROWS, .max_draft = M5_CALIBRATE_HOLD};
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
    T_CHECK(m5_calib_load(&back, path.p, m, true, &err) == 0 && same_record(back, c), "%s: %s", name, err.text);
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

/* The layer that a cut leaves out and the one before it does not. */
static int joined(const m5_calib *c, int i)
{
    int l = 0;
    while (!m5_layer_in(&c->cuts[i].out, l) || (i > 0 && m5_layer_in(&c->cuts[i - 1].out, l))) l++;
    return l;
}

/* What is kept between layers, all of it, some or nothing, saves time and changes no figure: beginning a forward in the middle gives the bits of the whole
 * one, also when texts were left out at the end of an earlier cut. */
static void same_without_stream(const char *name, int n_ids, int step, double sure)
{
    m5_model *m = open_model(name);
    m5_calib *c[3] = {NULL};
    m5_error err = {0};
    int32_t ids[120];
    bool more = false;
    if (!m) return;
    const m5_config *cfg = m5_model_config(m);
    for (int i = 0; i < n_ids; i++) ids[i] = (i * step + i / 13 * 5 + 11) % cfg->n_vocab;
    for (int i = 0; i < 3; i++) {
        m5_calibrate_options o = {.n_tok = n_ids ? n_ids : 96, .ids = n_ids ? ids : NULL, .n_ids = (size_t)n_ids, .sure_kl = sure};
        o.stream_bytes = i == 0 ? 0 : i == 1 ? (uint64_t)cfg->n_layer / 2 * 320 * (uint64_t)cfg->n_embd * 4 : 1;
        T_CHECK(m5_calibrate(&c[i], m, &o, &err) == 0, "%s: %s", name, err.text);
    }
    for (int k = 1; k < 3 && c[0] && c[k]; k++) {
        const m5_calib *a = c[0], *b = c[k];
        T_CHECK(a->n_exit >= 1 && a->n_exit == b->n_exit && a->n_skip >= 1 && a->n_skip == b->n_skip && a->n_single == b->n_single && a->n_cut == b->n_cut,
                "%s: as many sets", name);
        for (int i = 0; i < a->n_exit && i < b->n_exit; i++)
            T_CHECK(memcmp(a->exits[i].right, b->exits[i].right, sizeof a->exits[i].right) == 0 &&
                        memcmp(a->exits[i].share, b->exits[i].share, sizeof a->exits[i].share) == 0, "%s: exit %d, stream %d", name, i, k);
        for (int i = 0; i < a->n_skip && i < b->n_skip; i++)
            T_CHECK(memcmp(a->skips[i].right, b->skips[i].right, sizeof a->skips[i].right) == 0 &&
                        memcmp(a->skips[i].share, b->skips[i].share, sizeof a->skips[i].share) == 0, "%s: skip %d, stream %d", name, i, k);
        for (int i = 0; i < a->n_single && i < b->n_single; i++)
            T_CHECK(a->singles[i].kl_mean == b->singles[i].kl_mean && a->singles[i].top1 == b->singles[i].top1, "%s: single %d, stream %d", name, i, k);
        for (int i = 0; i < a->n_cut && i < b->n_cut; i++)
            T_CHECK(same_set(&a->cuts[i].out, &b->cuts[i].out) && a->cuts[i].n_tok == b->cuts[i].n_tok && a->cuts[i].kl_mean == b->cuts[i].kl_mean &&
                        a->cuts[i].kl_p99 == b->cuts[i].kl_p99 && a->cuts[i].top1 == b->cuts[i].top1, "%s: cut %d, stream %d", name, i, k);
    }
    for (int i = 1; c[0] && i < c[0]->n_cut; i++) more = more || (c[0]->cuts[i].n_tok > c[0]->cuts[i - 1].n_tok && joined(c[0], i) > joined(c[0], i - 1));
    T_CHECK(more || sure == 0, "%s: the test needs a text that a cut passes by and the next one, which begins later, does not", name);
    for (int i = 0; i < 3; i++) m5_free(c[i]);
    m5_model_close(m);
}

/* Guesses of some layers behind the whole model's state, eight rows at a time, as m5_model_guess gives them: share of right ones. */
static double guessed_by_hand(m5_model *m, const m5_layer_set *set, const int32_t *ids, int n)
{
    const int v = m5_model_config(m)->n_vocab;
    float *x = m5_calloc(M5_MEM_SCRATCH, 16 * (size_t)v, sizeof *x);
    m5_seq *s = NULL;
    m5_error err = {0};
    int right = 0;
    T_EQ_INT(m5_seq_new(&s, m, &err), 0);
    for (int at = 0; at < n && x && s; at += 8) {
        const int k = n - at < 8 ? n - at : 8;
        m5_run r = {.seq = s, .ids = ids + at, .n_tok = k, .n_out = k};
        T_EQ_INT(m5_model_guess(m, &r, 1, set, v, x, &err), 0);
        T_EQ_INT(m5_model_forward(m, &r, 1, x + 8 * (size_t)v, &err), 0);
        for (int row = 0; row < k; row++) {
            const float *a = x + (size_t)row * (size_t)v, *b = a + 8 * (size_t)v;
            int best[2] = {0};
            for (int i = 1; i < v; i++) {
                if (a[i] > a[best[0]]) best[0] = i;
                if (b[i] > b[best[1]]) best[1] = i;
            }
            right += best[0] == best[1];
        }
    }
    m5_seq_free(s);
    m5_free(x);
    return (double)right / n;
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
    for (int i = 0; i < c->n_single; i++) { /* over a quarter of them, at least eight */
        rest = m5_layers_first(n);
        for (int l = 0; l < n; l++)
            if (m5_layer_in(&c->singles[i].out, l)) m5_layer_put(&rest, l, false);
        same = by_hand(m, &rest, ids, 8, &kl);
        T_CHECK(c->singles[i].n_tok == 8 && fabs(c->singles[i].kl_mean - kl) < 1e-6 * kl + 1e-7 && fabs(c->singles[i].top1 - same) < 1e-9,
                "%s: single %d, KL %g by hand, %g in the record", name, i, kl, c->singles[i].kl_mean);
    }
    for (int i = 0; i < c->n_skip; i++) {
        same = guessed_by_hand(m, &c->skips[i].layers, ids, 8);
        T_CHECK(fabs(c->skips[i].right[0] - same) < 1e-9, "%s: skip %d, %g right by hand, %g in the record", name, i, same, c->skips[i].right[0]);
    }
out:
    m5_free(c);
    m5_free(again);
    m5_model_close(m);
}

/* ---- layers left out by wish ---- */

enum { N_PROMPT = 250, N_NEW = 24 };

typedef struct answer {
    pthread_mutex_t mu;
    pthread_cond_t cv;
    int32_t ids[N_NEW];
    int n, n_cached;
    bool done;
} answer;

static void on_event(void *ctx, const m5_event *ev)
{
    answer *a = ctx;
    pthread_mutex_lock(&a->mu);
    if (ev->kind == M5_EVENT_TOKEN && a->n < N_NEW) a->ids[a->n++] = ev->id;
    if (ev->kind == M5_EVENT_DONE) {
        a->n_cached = ev->usage.n_cached;
        a->done = true;
        pthread_cond_signal(&a->cv);
    }
    pthread_mutex_unlock(&a->mu);
}

static int32_t prompt[N_PROMPT];

/* One answer of an engine of its own; *n_left_out -1: the whole model was served. */
static answer ask(const m5_engine_options *o, int *n_left_out)
{
    answer a = {.n = 0};
    m5_engine *e = NULL;
    m5_request *r = NULL;
    m5_error err = {0};
    m5_engine_info info;
    pthread_mutex_init(&a.mu, NULL);
    pthread_cond_init(&a.cv, NULL);
    T_CHECK(m5_engine_open(&e, o, &err) == 0, "%s", err.text);
    if (!e) return a;
    m5_engine_get_info(e, &info);
    *n_left_out = info.lossy ? info.lossy->n_layers : -1;
    m5_gen_params p = {.ids = prompt, .n_ids = N_PROMPT, .max_tokens = N_NEW, .ignore_eos = true};
    m5_sampling_default(&p.sampling);
    p.sampling.temperature = 0;
    pthread_mutex_lock(&a.mu);
    a.done = m5_engine_submit(e, &p, on_event, &a, &r, &err) != 0;
    while (!a.done) pthread_cond_wait(&a.cv, &a.mu);
    pthread_mutex_unlock(&a.mu);
    m5_request_free(r);
    m5_engine_close(e);
    T_EQ_INT(a.n, N_NEW);
    return a;
}

static bool same_answer(const answer *a, const int32_t *ids)
{
    return memcmp(a->ids, ids, sizeof a->ids) == 0;
}

/* The likeliest tokens of the model without some layers, by forwards alone. */
static void greedy(m5_model *m, const m5_layer_set *rest, int32_t *out)
{
    m5_seq *s = NULL;
    m5_error err = {0};
    const int v = m5_model_config(m)->n_vocab;
    float *x = m5_calloc(M5_MEM_SCRATCH, (size_t)v, sizeof *x);
    T_EQ_INT(m5_model_use_layers(m, rest, &err), 0);
    T_EQ_INT(m5_seq_new(&s, m, &err), 0);
    for (int at = 0; at < N_PROMPT; at += 50) {
        m5_run r = {.seq = s, .ids = prompt + at, .n_tok = 50, .n_out = 1};
        T_CHECK(m5_model_forward(m, &r, 1, x, &err) == 0, "%s", err.text);
    }
    for (int i = 0; i < N_NEW && x; i++) {
        out[i] = 0;
        for (int k = 1; k < v; k++)
            if (x[k] > x[out[i]]) out[i] = k;
        m5_run r = {.seq = s, .ids = &out[i], .n_tok = 1, .n_out = 1};
        T_CHECK(m5_model_forward(m, &r, 1, x, &err) == 0, "%s", err.text);
    }
    m5_seq_free(s);
    m5_model_use_layers(m, NULL, NULL);
    m5_free(x);
}

static void remove_all(const char *folder)
{
    char **names = NULL;
    size_t n = 0;
    if (m5_dir_list(&names, &n, folder, NULL)) return;
    for (size_t i = 0; i < n; i++) {
        char path[512];
        snprintf(path, sizeof path, "%s/%s", folder, names[i]);
        m5_file_remove(path, NULL);
        m5_free(names[i]);
    }
    m5_free(names);
}

static void write_at(const char *name, const char *text, int seconds_ago)
{
    char path[512];
    struct timespec t[2] = {{.tv_sec = time(NULL) - seconds_ago}, {.tv_sec = time(NULL) - seconds_ago}};
    m5_error err = {0};
    snprintf(path, sizeof path, "%s/%s", dir, name);
    T_CHECK(m5_file_write_atomic(path, text, strlen(text), 0600, &err) == 0, "%s", err.text);
    T_EQ_INT(utimensat(AT_FDCWD, path, t, 0), 0);
}

static bool there(const char *name)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return m5_path_exists(path);
}

/* What `cache` sees and removes: records and old leftovers of theirs, nothing else; and a new record clears leftovers away. */
static void administration(void)
{
    static const char *const keep[] = {"notes.m5calib", "0123456789abcdef.m5calib.bak", "0123456789abcdef.m5calibs", "0123456789ABCDEF.m5calib",
                                       "mine.m5calib.aBcDeF", "0123456789abcdef-0000.m5state.aBcDeF"};
    enum { N_KEEP = sizeof keep / sizeof keep[0] };
    m5_calib_file *list = NULL;
    m5_buf path = {0}, link = {0};
    m5_error err = {0};
    size_t n = 0;
    char whose[66];
    T_EQ_INT(m5_calib_list(&list, &n, "/nowhere/at/all", &err), M5_ERR_NOTFOUND);
    T_CHECK(m5_calib_clear("/nowhere/at/all", true, &n, &err) == 0 && n == 0, "no folder, nothing to do");
    for (int i = 0; i < N_KEEP; i++) write_at(keep[i], "x", 900);
    fill(&one);
    m5_calib_path(&path, dir, print);
    const char *name = strrchr(path.p, '/') + 1;
    write_at("00000000000000aa.m5calib.aBcDeF", "M5CAL", 900);
    write_at("00000000000000aa.m5calib.zzzzz0", "M5CAL", 5); /* perhaps of a run that lives */
    T_CHECK(m5_calib_save(&one, path.p, print, &err) == 0, "%s", err.text);
    T_CHECK(!there("00000000000000aa.m5calib.aBcDeF") && there("00000000000000aa.m5calib.zzzzz0"), "a new record takes old leftovers away");
    write_at("00000000000000ab.m5calib", "M5CALIB 1 torn", 0);
    m5_buf_printf(&link, "%s/00000000000000ac.m5calib", dir);
    T_EQ_INT(symlink(path.p, link.p), 0);
    T_CHECK(m5_calib_list(&list, &n, dir, &err) == 0 && n == 2, "%zu records, %s", n, err.text);
    for (size_t i = 0; i < n && n == 2; i++) {
        const bool mine = strcmp(list[i].name, name) == 0;
        T_CHECK(list[i].whole == mine && strcmp(list[i].model, mine ? one.model : "") == 0 && list[i].n_tok == (mine ? 512 : 0), "%s", list[i].name);
    }
    m5_free(list);
    T_CHECK(m5_calib_view(&two, whose, dir, name, &err) == 0 && same_record(&one, &two) && strcmp(whose, print) == 0, "%s", err.text);
    T_EQ_INT(m5_calib_view(&two, whose, dir, "00000000000000ab.m5calib", &err), M5_ERR_FORMAT);
    T_EQ_INT(m5_calib_view(&two, whose, dir, "00000000000000ff.m5calib", &err), M5_ERR_NOTFOUND);
    T_EQ_INT(m5_calib_view(&two, whose, dir, "../x", &err), M5_ERR_ARG);
    write_at("00000000000000aa.m5calib.aBcDeF", "M5CAL", 900);
    T_CHECK(m5_calib_clear(dir, false, &n, &err) == 0 && n == 2, "%zu bad ones, %s", n, err.text);
    T_CHECK(there(name) && !there("00000000000000ab.m5calib") && !there("00000000000000aa.m5calib.aBcDeF"), "only what is bad goes");
    T_CHECK(m5_calib_clear(dir, true, &n, &err) == 0 && n == 1 && !there(name), "%zu gone, %s", n, err.text);
    T_CHECK(there("00000000000000aa.m5calib.zzzzz0"), "a young file may be somebody's");
    for (int i = 0; i < N_KEEP; i++) T_CHECK(there(keep[i]), "%s is no file of ours", keep[i]);
    T_EQ_INT(readlink(link.p, whose, 1), 1);
    m5_buf_free(&path);
    m5_buf_free(&link);
    remove_all(dir);
}

/* A record decides whether self-drafts are used unasked, and they change no answer, with layers left out or not. */
static void drafts(m5_calib *c, const m5_engine_options *like, const char *file, const char *fingerprint, const int32_t *whole, const int32_t *less)
{
    m5_engine_options o = *like;
    m5_engine_info info;
    m5_error err = {0};
    int n = 0;
    o.spec = (m5_spec_params){0};
    o.lossy_layer_skip = 0;
    for (int pays = 0; pays < 2; pays++) {
        m5_engine *e = NULL;
        c->chosen[M5_SELF_EXIT] = (m5_calib_choice){m5_layers_first(c->n_layer - 1), 0.05, 0.7, 3, pays ? 1.5 : 1.01};
        T_CHECK(m5_calib_save(c, file, fingerprint, &err) == 0 && m5_engine_open(&e, &o, &err) == 0, "%s", err.text);
        if (!e) return;
        m5_engine_get_info(e, &info);
        T_CHECK((info.spec_auto >> M5_SPEC_EXIT & 1) == (unsigned)pays && info.spec_sources >> M5_SPEC_EXIT & 1, "pays %d: sources %x", pays, info.spec_auto);
        m5_engine_close(e);
    }
    for (int s = M5_SPEC_EXIT; s <= M5_SPEC_SKIP; s++)
        for (int lossy = 0; lossy < 2; lossy++) {
            o.lossy_layer_skip = lossy ? 100 : 0;
            o.spec = (m5_spec_params){.sources = 1u << s, .k = 4, .fixed = true};
            answer a = ask(&o, &n);
            T_CHECK(same_answer(&a, lossy ? less : whole), "source %d, lossy %d: drafts changed the answer", s, lossy);
        }
}

static void left_out(const char *name)
{
    char path[512];
    m5_model *m = open_model(name);
    m5_calib *c = NULL;
    m5_error err = {0};
    m5_engine *e = NULL;
    int32_t whole[N_NEW], less[N_NEW];
    int n = 0;
    if (!m) return;
    snprintf(path, sizeof path, "%s/models/%s", M5_TEST_DATA, name);
    for (int i = 0; i < N_PROMPT; i++) prompt[i] = (i % 23 * 41 + i / 60) % m5_model_config(m)->n_vocab;
    m5_engine_options o = {.model_path = path, .n_threads = 2, .n_parallel = 1, .cache_ram_bytes = 16 << 20, .cache_dir = dir, .cache_disk_bytes = 64 << 20,
                           .checkpoint_every = 48, .calibration_dir = dir, .spec = {.k = 6}};
    o.lossy_layer_skip = 100;
    T_EQ_INT(m5_engine_open(&e, &o, &err), M5_ERR_NOTFOUND);
    T_CHECK(strstr(err.text, "m5-infer calibrate"), "%s", err.text);
    T_CHECK(m5_calibrate(&c, m, &(m5_calibrate_options){.n_tok = 32}, &err) == 0, "%s", err.text);
    if (!c || !c->n_cut) goto out;
    m5_buf file = {0};
    m5_calib_path(&file, dir, m5_model_weights(m)->fingerprint);
    T_CHECK(m5_calib_save(c, file.p, m5_model_weights(m)->fingerprint, &err) == 0, "%s", err.text);
    const m5_calib_cut *cut = &c->cuts[c->n_cut - 1];
    m5_layer_set rest = m5_layers_first(c->n_layer);
    for (int l = 0; l < c->n_layer; l++)
        if (m5_layer_in(&cut->out, l)) m5_layer_put(&rest, l, false);
    greedy(m, NULL, whole);
    greedy(m, &rest, less);
    T_CHECK(memcmp(whole, less, sizeof less) != 0, "%s: the test needs answers that differ", name);
    answer a = ask(&o, &n);
    T_CHECK(n == cut->n_out && same_answer(&a, less), "%s: %d layers left out, not the answer of the model without them", name, n);
    a = ask(&o, &n);
    T_CHECK(a.n_cached > 0 && same_answer(&a, less), "%s: %d tokens of kept state", name, a.n_cached);
    m5_engine_options other = o; /* state of the model without layers is nothing to the whole one, nor the other way */
    other.lossy_layer_skip = 0;
    a = ask(&other, &n);
    T_CHECK(n == -1 && a.n_cached == 0 && same_answer(&a, whole), "%s: the whole model, %d tokens of another's state", name, a.n_cached);
    other.lossy_layer_skip = 1e-12;
    a = ask(&other, &n);
    T_CHECK(n == 0 && a.n_cached > 0 && same_answer(&a, whole), "%s: nothing is so close to the whole model", name);
    if (c->n_cut > 1) {
        other.lossy_layer_skip = c->cuts[0].kl_mean;
        a = ask(&other, &n);
        T_CHECK(n == 1 && a.n_cached == 0, "%s: %d layers left out, %d tokens of another set's state", name, n, a.n_cached);
    }
    /* other threads, chunks and drafts: the same bits within the mode */
    other = (m5_engine_options){.model_path = path, .n_threads = 1, .n_parallel = 2, .prefill_chunk = 7, .no_cache = true, .calibration_path = file.p,
                                .lossy_layer_skip = 100, .spec = {.sources = M5_SPEC_OFF}};
    a = ask(&other, &n);
    T_CHECK(n == cut->n_out && same_answer(&a, less), "%s: one thread, no drafts", name);
    other.spec = (m5_spec_params){.k = 4, .fixed = true};
    a = ask(&other, &n);
    T_CHECK(same_answer(&a, less), "%s: always drafts", name);
    drafts(c, &other, file.p, m5_model_weights(m)->fingerprint, whole, less);
    m5_buf_free(&file);
out:
    remove_all(dir);
    m5_free(c);
    m5_model_close(m);
}

int main(void)
{
    m5_log_set_level(M5_LOG_ERROR);
    if (!mkdtemp(dir)) return 1;
    record_round_trip();
    what_it_says();
    kl_and_speed();
    administration();
    static const char *const names[] = {"qwen3_5", "qwen3_5_moe", "gemma4", "gemma3", "llama3", "smollm2"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) family(names[i]);
    true_figures("qwen3_5");
    true_figures("gemma4");
    static const char *const streams[] = {"qwen3_5", "gemma4", "smollm2"};
    for (int i = 0; i < 6; i++) same_without_stream(streams[i / 2], i % 2 * 120, 37, 0);
    same_without_stream("gemma3", 40, 45, 0.0135);
    same_without_stream("gemma3_linear", 80, 3, 0.0135);
    static const char *const served[] = {"qwen3_5", "qwen3_5_mtp", "gemma4", "smollm2"};
    for (size_t i = 0; i < sizeof served / sizeof served[0]; i++) left_out(served[i]);
    rmdir(dir);
    return t_done();
}
