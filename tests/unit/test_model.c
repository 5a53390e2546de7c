/* SPDX-License-Identifier: Apache-2.0 */
/* The forward pass and sequence memory on the tiny models of every family: logits and greedy tokens of a foreign implementation, then promise P1: the
 * same bits for every chunking, thread count, batch, hold and fork. */
#include "base/json.h"
#include "base/mem.h"
#include "model/model.h"
#include "model/mtp.h"
#include "model/safetensors.h"
#include "model/state.h"

#include "t.h"

#include <math.h>

enum { MAX_TOK = 96, N_LAST = 8 };

typedef struct golden {
    m5_st *st;
    int n_short, n_long, n_vocab, n_greedy;
    int32_t ids_short[MAX_TOK], ids_long[MAX_TOK], greedy[MAX_TOK];
    const float *logits_short, *logits_last, *mtp_logits;
    int32_t mtp_drafts[8];
    int n_mtp_drafts;
} golden;

static m5_error err;

static const m5_st_tensor *tensor(const m5_st *st, const char *name)
{
    const m5_st_tensor *t = m5_st_find(st, name);
    T_CHECK(t, "no tensor %s", name);
    return t;
}

static int json_ints(const m5_json *list, int32_t *out, int cap)
{
    int n = 0;
    for (size_t i = 0; i < m5_json_len(list) && n < cap; i++) out[n++] = (int32_t)m5_json_int(m5_json_at(list, i));
    return n;
}

static bool golden_open(golden *g, const char *name)
{
    char path[512], *text = NULL;
    size_t n = 0;
    memset(g, 0, sizeof *g);
    snprintf(path, sizeof path, "%s/models/%s/expected.safetensors", M5_TEST_DATA, name);
    if (!m5_path_exists(path)) return false;
    if (m5_st_open(&g->st, path, &err) < 0) return false;
    const m5_st_tensor *a = tensor(g->st, "ids_short"), *b = tensor(g->st, "ids_long"), *l = tensor(g->st, "logits_short");
    g->n_short = (int)a->n_elem;
    g->n_long = (int)b->n_elem;
    g->n_vocab = (int)l->shape[1];
    memcpy(g->ids_short, a->data, a->n_bytes);
    memcpy(g->ids_long, b->data, b->n_bytes);
    g->logits_short = (const float *)(const void *)l->data;
    g->logits_last = (const float *)(const void *)tensor(g->st, "logits_long_last8")->data;
    const m5_st_tensor *mtp = m5_st_find(g->st, "mtp_logits");
    g->mtp_logits = mtp ? (const float *)(const void *)mtp->data : NULL;
    snprintf(path, sizeof path, "%s/models/%s/expected.json", M5_TEST_DATA, name);
    m5_json *doc = NULL;
    if (m5_file_read(&text, &n, path, 1 << 20, &err) == 0 && m5_json_parse(&doc, text, n, NULL, &err) == 0) {
        g->n_greedy = json_ints(m5_json_get(doc, "greedy_tokens"), g->greedy, MAX_TOK);
        const m5_json *m = m5_json_get(doc, "mtp");
        if (m) g->n_mtp_drafts = json_ints(m5_json_get(m, "drafts"), g->mtp_drafts, 8);
    }
    m5_json_unref(doc);
    m5_free(text);
    return true;
}

static m5_model *open_model(const char *name, int n_threads, bool act_f32, m5_kv_type kv, bool mtp)
{
    char path[512];
    m5_model *m = NULL;
    m5_model_options o = {.cpu = {n_threads, 0xffffffffu, act_f32}, .kv_type = kv, .page_tok = m5_kv_in_tiles(kv) ? 32 : 16, .max_batch_tok = 128, .mtp = mtp};
    snprintf(path, sizeof path, "%s/models/%s", M5_TEST_DATA, name);
    int rc = m5_model_open(&m, path, &o, &err);
    T_CHECK(rc == 0, "%s: %s", name, err.text);
    return m;
}

static m5_seq *new_seq(m5_model *m)
{
    m5_seq *s = NULL;
    int rc = m5_seq_new(&s, m, &err);
    T_CHECK(rc == 0, "%s", err.text);
    return s;
}

static void feed(m5_seq *s, m5_model *m, const int32_t *ids, int n, bool hold, float *logits)
{
    m5_run r = {s, ids, n, logits ? n : 0, hold};
    int rc = m5_model_forward(m, &r, 1, logits, &err);
    T_CHECK(rc == 0, "%s", err.text);
}

static int largest(const float *x, int n)
{
    int best = 0;
    for (int i = 1; i < n; i++)
        if (x[i] > x[best]) best = i;
    return best;
}

static double max_diff(const float *a, const float *b, int n)
{
    double d = 0;
    for (int i = 0; i < n; i++)
        if (!(fabs((double)a[i] - (double)b[i]) <= d)) d = fabs((double)a[i] - (double)b[i]);
    return d;
}

/* ---- against the foreign implementation ----
 * The bounds lie three times above what was measured and below what the usual misreadings move (eps 1e-5 for 1e-6, erf for tanh gelu, a rounded
 * embedding scale: 1e-4 and more). */

static void check_golden(const char *name, const golden *g, float *buf)
{
    m5_model *m = open_model(name, 2, true, M5_KV_F32, false);
    if (!m) return;
    const int v = g->n_vocab;
    m5_seq *s = new_seq(m);
    feed(s, m, g->ids_short, g->n_short, false, buf);
    double d = max_diff(buf, g->logits_short, g->n_short * v);
    T_CHECK(d < 3e-5, "%s: short logits differ by %g", name, d);
    const float *last = buf + (size_t)(g->n_short - 1) * (size_t)v;
    for (int i = 0; i < g->n_greedy; i++) {
        int32_t id = (int32_t)largest(last, v);
        T_CHECK(id == g->greedy[i], "%s: greedy token %d is %d, expected %d", name, i, (int)id, (int)g->greedy[i]);
        feed(s, m, &id, 1, false, buf);
        last = buf;
    }
    m5_seq_reset(s);
    feed(s, m, g->ids_long, g->n_long, false, buf);
    d = max_diff(buf + (size_t)(g->n_long - N_LAST) * (size_t)v, g->logits_last, N_LAST * v);
    T_CHECK(d < 6e-5, "%s: long logits differ by %g", name, d);
    m5_seq_free(s);
    m5_model_close(m);
}

static void check_mtp(const char *name, const golden *g, float *buf)
{
    if (!g->mtp_logits) return;
    m5_model *m = open_model(name, 2, true, M5_KV_F32, true);
    if (!m) return;
    const int n = g->n_short, v = g->n_vocab;
    int32_t next[MAX_TOK], drafts[8];
    m5_seq *s = new_seq(m);
    T_CHECK(m5_mtp_present(m));
    feed(s, m, g->ids_short, n, false, buf);
    memcpy(next, g->ids_short + 1, (size_t)(n - 1) * sizeof *next);
    next[n - 1] = (int32_t)largest(buf + (size_t)(n - 1) * (size_t)v, v);
    m5_mtp_run r = {s, 0, m5_model_hidden_all(m), next, n, n};
    int rc = m5_mtp_forward(m, &r, 1, buf, &err);
    T_CHECK(rc == 0, "%s", err.text);
    double d = max_diff(buf, g->mtp_logits, n * v);
    T_CHECK(d < 3e-5, "%s: logits of the next-token head differ by %g", name, d);
    m5_mtp_run last = {s, n - 1, m5_model_hidden_all(m) + (size_t)(n - 1) * (size_t)m5_model_config(m)->n_embd, &next[n - 1], 1, 1};
    rc = m5_mtp_draft(m, &last, 1, g->n_mtp_drafts, drafts, buf, &err);
    T_CHECK(rc == 0, "%s", err.text);
    for (int i = 0; i < g->n_mtp_drafts; i++)
        T_CHECK(drafts[i] == g->mtp_drafts[i], "draft %d: %d, expected %d", i, (int)drafts[i], (int)g->mtp_drafts[i]);
    m5_seq_free(s);
    m5_model_close(m);
}

/* ---- P1 ---- */

typedef struct p1 {
    const char *name;
    const golden *g;
    m5_model *m;
    const float *want; /* logits of every row of ids_long, one chunk, alone, one thread */
    float *got;
} p1;

static void same_rows(const p1 *p, const char *what, int arg, const float *got, int row, int n)
{
    const size_t v = (size_t)p->g->n_vocab;
    for (int i = 0; i < n; i++)
        T_CHECK(memcmp(got + (size_t)i * v, p->want + (size_t)(row + i) * v, v * sizeof(float)) == 0, "%s: %s %d: row %d differs", p->name, what, arg,
                row + i);
}

static void chunked(const p1 *p, int chunk)
{
    m5_seq *s = new_seq(p->m);
    for (int i = 0; i < p->g->n_long; i += chunk) {
        const int n = p->g->n_long - i < chunk ? p->g->n_long - i : chunk;
        feed(s, p->m, p->g->ids_long + i, n, false, p->got);
        same_rows(p, "chunk", chunk, p->got, i, n);
    }
    m5_seq_free(s);
}

/* Three sequences share every batch in changing order: the one observed, one that decodes, one that prefills in threes and starts over. With experts,
 * rows of all of them meet at one expert's weights. */
static void with_companions(const p1 *p)
{
    const int v = p->g->n_vocab;
    m5_seq *s = new_seq(p->m), *a = new_seq(p->m), *b = new_seq(p->m);
    int step = 0;
    for (int i = 0; i < p->g->n_long; step++) {
        const int n = step % 2 ? 1 : (p->g->n_long - i < 5 ? p->g->n_long - i : 5);
        if (m5_seq_pos(b) > 30) m5_seq_reset(b);
        m5_run r[3] = {{a, p->g->ids_long + step % 40, 1, 1, false},
                       {s, p->g->ids_long + i, n, n, false},
                       {b, p->g->ids_long + step % 50, 3, step % 4, step % 3 == 0}};
        m5_run order[3];
        int before = 0;
        for (int k = 0; k < 3; k++) order[k] = r[(k + step) % 3];
        for (int k = 0; order[k].seq != s; k++) before += order[k].n_out;
        int rc = m5_model_forward(p->m, order, 3, p->got, &err);
        T_CHECK(rc == 0, "%s", err.text);
        if (r[2].hold) m5_seq_commit(b, step % 4);
        same_rows(p, "companions, step", step, p->got + (size_t)before * (size_t)v, i, n);
        i += n;
    }
    m5_seq_free(s);
    m5_seq_free(a);
    m5_seq_free(b);
}

/* Every step holds n_draft rows of which the first `keep` are the true continuation, the others are wrong. */
static void held(const p1 *p, int n_draft, int keep)
{
    const int chunk = 9;
    int32_t ids[16];
    m5_seq *s = new_seq(p->m);
    feed(s, p->m, p->g->ids_long, chunk, false, NULL);
    for (int i = chunk; i + n_draft <= p->g->n_long; i += keep > 0 ? keep : 1) {
        for (int d = 0; d < n_draft; d++) ids[d] = d < keep || keep == 0 ? p->g->ids_long[i + d] : (p->g->ids_long[i + d] + 7) % p->g->n_vocab;
        feed(s, p->m, ids, n_draft, true, p->got);
        same_rows(p, "hold, keeping", keep, p->got, i, keep > 0 ? keep : n_draft);
        m5_seq_commit(s, keep);
        T_EQ_INT(m5_seq_pos(s), i + keep);
        if (keep > 0) continue;
        feed(s, p->m, p->g->ids_long + i, 1, false, p->got);
        same_rows(p, "after nothing was kept", keep, p->got, i, 1);
    }
    m5_seq_free(s);
}

/* A fork and its origin go on independently, also with accepted rows still pending and in the middle of a page. */
static void forked(const p1 *p, bool pending)
{
    const int cut = 21, n = p->g->n_long;
    m5_seq *s = new_seq(p->m), *f = NULL;
    feed(s, p->m, p->g->ids_long, cut - 3, false, NULL);
    feed(s, p->m, p->g->ids_long + cut - 3, 3, pending, NULL);
    if (pending) m5_seq_commit(s, 3);
    int rc = m5_seq_fork(&f, s, &err);
    T_CHECK(rc == 0, "%s", err.text);
    feed(s, p->m, p->g->ids_long, 20, false, NULL); /* other tokens in the shared page and behind */
    feed(f, p->m, p->g->ids_long + cut, n - cut, false, p->got);
    same_rows(p, "fork, pending", pending, p->got, cut, n - cut);
    m5_seq_free(s);
    m5_seq_free(f);
}

/* Pages and a saved row bring a prefix back, twice, while its origin is gone. */
static void restored(const p1 *p, int cut, bool pending)
{
    m5_page *pages[16] = {0};
    const int n = p->g->n_long, page_tok = m5_model_page_tok(p->m), n_page = (cut + page_tok - 1) / page_tok;
    void *row = m5_alloc(M5_MEM_MISC, m5_model_row_bytes(p->m) + 1);
    m5_seq *s = new_seq(p->m);
    feed(s, p->m, p->g->ids_long, cut - 2, false, NULL);
    feed(s, p->m, p->g->ids_long + cut - 2, 2, pending, NULL);
    if (pending) m5_seq_commit(s, 2);
    m5_seq_row_save(s, row);
    for (int i = 0; i < n_page; i++) pages[i] = m5_seq_page_ref(s, i);
    m5_seq_free(s);
    for (int k = 0; k < 2; k++) {
        s = new_seq(p->m);
        feed(s, p->m, p->g->ids_long + 3, 5, false, NULL);
        int rc = m5_seq_restore(s, pages, cut, m5_model_recurrent(p->m) ? row : NULL, &err);
        T_CHECK(rc == 0, "%s", err.text);
        feed(s, p->m, p->g->ids_long + cut, n - cut, false, p->got);
        same_rows(p, "restore at", cut, p->got, cut, n - cut);
        m5_seq_free(s);
    }
    for (int i = 0; i < n_page; i++) m5_page_unref(p->m, pages[i]);
    m5_free(row);
    T_EQ_INT(m5_model_state_used(p->m), 0);
}

static void truncated(const p1 *p)
{
    const int n = p->g->n_long, cut = 19;
    m5_seq *s = new_seq(p->m);
    feed(s, p->m, p->g->ids_long, n, false, NULL);
    int rc = m5_seq_truncate(s, cut, &err);
    T_EQ_INT(rc, m5_model_recurrent(p->m) ? M5_ERR_UNSUPPORTED : 0);
    if (rc == 0) {
        feed(s, p->m, p->g->ids_long + cut, n - cut, false, p->got);
        same_rows(p, "cut at", cut, p->got, cut, n - cut);
    }
    T_EQ_INT(m5_seq_truncate(s, 0, &err), 0);
    T_EQ_INT(m5_seq_pos(s), 0);
    m5_seq_free(s);
}

/* ---- some of the layers ---- */

/* Part `kind` of the layers: the first half, then every second one from either end, with the layers whose keys they read. */
static m5_layer_set some_layers(const m5_model *m, int kind)
{
    const m5_config *c = m5_model_config(m);
    m5_layer_set s = m5_layers_first(kind == 0 ? (c->n_layer + 1) / 2 : 0);
    for (int l = c->n_layer - 1; l >= 0 && kind > 0; l--) {
        if (l % 2 != kind % 2) continue;
        m5_layer_put(&s, l, true);
        if (c->layers[l].mixer == M5_MIX_ATTN) m5_layer_put(&s, c->layers[l].kv_donor, true);
    }
    return s;
}

/* Guesses before every step, with wrong tokens and changing layers, leave no trace; one from all layers is the forward's own. */
static void guessed(const p1 *p, int keep)
{
    const int chunk = 9, n_draft = 4, v = p->g->n_vocab;
    const m5_layer_set all = m5_layers_first(m5_model_config(p->m)->n_layer);
    m5_seq *s = new_seq(p->m), *f = NULL;
    feed(s, p->m, p->g->ids_long, chunk, false, NULL);
    for (int i = chunk, step = 0; i + n_draft <= p->g->n_long; i += keep, step++) {
        int32_t wrong[3] = {p->g->ids_long[i], step % v, (step * 7) % v};
        for (int k = 0; k < 3; k++) {
            m5_layer_set set = some_layers(p->m, (step + k) % 3);
            m5_run r = {.seq = s, .ids = wrong, .n_tok = k + 1, .n_out = 1};
            int rc = m5_model_guess(p->m, &r, 1, &set, v, p->got, &err);
            T_CHECK(rc == 0, "%s: %s", p->name, err.text);
        }
        if (step % 3 == 1) {
            m5_run r = {.seq = s, .ids = p->g->ids_long + i, .n_tok = 3, .n_out = 3};
            int rc = m5_model_guess(p->m, &r, 1, &all, v, p->got, &err);
            T_CHECK(rc == 0, "%s: %s", p->name, err.text);
            same_rows(p, "guess from all layers, step", step, p->got, i, 3);
        }
        T_EQ_INT(m5_seq_pos(s), i);
        if (step == 2) { /* with pending rows that only some layers have applied */
            T_CHECK(m5_seq_fork(&f, s, &err) == 0, "%s", err.text);
            feed(f, p->m, p->g->ids_long + i, 5, false, p->got);
            same_rows(p, "fork after a guess", step, p->got, i, 5);
            m5_seq_free(f);
        }
        if (step % 4 == 3) m5_seq_settle(s);
        feed(s, p->m, p->g->ids_long + i, n_draft, true, p->got);
        same_rows(p, "after guesses, keeping", keep, p->got, i, n_draft);
        m5_seq_commit(s, keep);
    }
    m5_seq_free(s);
}

/* A model of some of the layers is a model: its bits do not depend on chunks and holds, and a guess at the start of a text is its forward. */
static void without_layers(const p1 *p, int kind)
{
    const m5_layer_set set = some_layers(p->m, kind);
    const int n = p->g->n_long, v = p->g->n_vocab, n_ids = n < 16 ? n : 16;
    float *want = m5_alloc(M5_MEM_TEXT, (size_t)n * (size_t)v * sizeof *want);
    p1 q = {p->name, p->g, p->m, want, p->got};
    m5_seq *s = new_seq(p->m);
    m5_run r = {.seq = s, .ids = p->g->ids_long, .n_tok = n_ids, .n_out = n_ids};
    int rc = m5_model_guess(p->m, &r, 1, &set, v, p->got, &err);
    T_CHECK(rc == 0, "%s: %s", p->name, err.text);
    m5_seq_free(s);
    rc = m5_model_use_layers(p->m, &set, &err);
    T_CHECK(rc == 0, "%s: %s", p->name, err.text);
    s = new_seq(p->m);
    feed(s, p->m, p->g->ids_long, n, false, want);
    m5_seq_free(s);
    T_CHECK(memcmp(want, p->want, (size_t)n * (size_t)v * sizeof *want) != 0, "%s: leaving layers out changed nothing", p->name);
    same_rows(&q, "guess and forward of layers", kind, p->got, 0, n_ids);
    chunked(&q, 5);
    held(&q, 4, 2);
    forked(&q, true);
    restored(&q, 27, true);
    s = new_seq(p->m);
    m5_layer_set all = m5_layers_first(m5_model_config(p->m)->n_layer);
    r.seq = s;
    T_EQ_INT(m5_model_guess(p->m, &r, 1, &all, v, p->got, &err), M5_ERR_ARG);
    m5_seq_free(s);
    T_EQ_INT(m5_model_use_layers(p->m, NULL, &err), 0);
    m5_free(want);
}

static void bad_layers(const m5_model *m)
{
    const m5_config *c = m5_model_config(m);
    m5_layer_set s = m5_layers_first(0);
    T_EQ_INT(m5_model_check_layers(m, &s, &err), M5_ERR_ARG);
    m5_layer_put(&s, c->n_layer, true);
    T_EQ_INT(m5_model_check_layers(m, &s, &err), M5_ERR_ARG);
    for (int l = 0; l < c->n_layer; l++) {
        if (c->layers[l].mixer != M5_MIX_ATTN || c->layers[l].kv_donor == l) continue;
        s = m5_layers_first(c->n_layer);
        m5_layer_put(&s, c->layers[l].kv_donor, false);
        T_EQ_INT(m5_model_check_layers(m, &s, &err), M5_ERR_ARG);
    }
}

static void check_p1(const char *name, const golden *g, bool act_f32, m5_kv_type kv, float *want, float *got)
{
    static const int chunks[] = {1, 2, 3, 7, 33};
    m5_model *m = open_model(name, 1, act_f32, kv, false);
    if (!m) return;
    m5_seq *s = new_seq(m);
    feed(s, m, g->ids_long, g->n_long, false, want);
    m5_seq_free(s);
    m5_model_close(m);
    for (int threads = 1; threads <= 3; threads++) {
        p1 p = {name, g, open_model(name, threads, act_f32, kv, false), want, got};
        for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) chunked(&p, chunks[i]);
        chunked(&p, g->n_long);
        if (threads != 2) {
            m5_model_close(p.m);
            continue;
        }
        with_companions(&p);
        for (int keep = 0; keep <= 4; keep++) held(&p, 4, keep);
        forked(&p, false);
        forked(&p, true);
        restored(&p, 32, false);
        restored(&p, 27, true);
        truncated(&p);
        for (int keep = 1; keep <= 3; keep++) guessed(&p, keep);
        for (int kind = 0; kind < 3; kind++) without_layers(&p, kind);
        bad_layers(p.m);
        m5_model_close(p.m);
    }
}

/* ---- limits ---- */

static void all_bytes(size_t out[M5_MEM_KIND_COUNT])
{
    for (int i = 0; i < M5_MEM_KIND_COUNT; i++) out[i] = m5_mem_bytes((m5_mem_kind)i);
}

static void nothing_left(const size_t at_start[M5_MEM_KIND_COUNT])
{
    for (int i = 0; i < M5_MEM_KIND_COUNT; i++)
        T_CHECK(m5_mem_bytes((m5_mem_kind)i) == at_start[i], "%zu bytes of %s, %zu before", m5_mem_bytes((m5_mem_kind)i),
                m5_mem_kind_name((m5_mem_kind)i), at_start[i]);
}

static void check_memory(const char *name, const golden *g, float *buf)
{
    size_t at_start[M5_MEM_KIND_COUNT];
    all_bytes(at_start);
    char path[512];
    m5_model *m = NULL;
    m5_seq *a = NULL, *b = NULL;
    /* Open once to learn the sizes, then with room for two rows, one ring and three pages. */
    m = open_model(name, 1, true, M5_KV_F32, false);
    if (!m) return;
    const size_t page = m5_model_page_bytes(m) + 64, row = m5_model_row_bytes(m);
    m5_model_close(m);
    m5_model_options o = {.cpu = {1, 0xffffffffu, true}, .kv_type = M5_KV_F32, .page_tok = 16, .max_batch_tok = 64, .max_draft = 1};
    o.state_bytes = 2 * row + 3 * page + page / 2;
    snprintf(path, sizeof path, "%s/models/%s", M5_TEST_DATA, name);
    int rc = m5_model_open(&m, path, &o, &err);
    T_CHECK(rc == 0, "%s", err.text);
    if (rc < 0) return;
    a = new_seq(m);
    b = new_seq(m);
    feed(a, m, g->ids_long, 16, false, NULL);
    feed(b, m, g->ids_long, 10, false, NULL);
    const uint64_t used = m5_model_state_used(m);
    m5_run r[2] = {{a, g->ids_long + 16, 16, 0, false}, {b, g->ids_long + 10, 16, 0, false}};
    rc = m5_model_forward(m, r, 2, NULL, &err);
    T_EQ_INT(rc, M5_ERR_NOMEM);
    T_CHECK(m5_seq_pos(a) == 16 && m5_seq_pos(b) == 10 && m5_model_state_used(m) == used, "a refused forward changed something");
    feed(a, m, g->ids_long + 16, 16, false, NULL);
    m5_seq_reset(b);
    feed(a, m, g->ids_long + 32, 1, false, buf);
    /* A step inside a page allocates nothing. */
    const uint64_t before = m5_mem_count();
    for (int i = 33; i < 46; i++) feed(a, m, g->ids_long + i, 1, false, buf);
    T_EQ_INT(m5_mem_count(), before);

    const int32_t bad = (int32_t)m5_model_config(m)->n_vocab, low = -1;
    m5_run wrong[] = {{a, &bad, 1, 1, false},        {a, &low, 1, 1, false},        {a, g->ids_long, 65, 1, false},
                      {a, g->ids_long, 0, 0, false}, {a, g->ids_long, 2, 3, false}, {a, g->ids_long, 2, 1, true}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) T_EQ_INT(m5_model_forward(m, &wrong[i], 1, buf, &err), M5_ERR_ARG);
    m5_run twice[2] = {{a, g->ids_long, 1, 0, false}, {a, g->ids_long, 1, 0, false}};
    T_EQ_INT(m5_model_forward(m, twice, 2, buf, &err), M5_ERR_ARG);
    T_EQ_INT(m5_seq_pos(a), 46);
    m5_seq_free(a);
    m5_seq_free(b);
    T_EQ_INT(m5_model_state_used(m), 0);
    m5_model_close(m);
    nothing_left(at_start);
}

/* Every allocation of open fails once: an error each time, nothing left behind. */
static void check_open_failures(const char *name)
{
    char path[512];
    m5_model_options o = {.cpu = {2, 0xffffffffu, false}, .max_batch_tok = 16};
    size_t at_start[M5_MEM_KIND_COUNT];
    all_bytes(at_start);
    snprintf(path, sizeof path, "%s/models/%s", M5_TEST_DATA, name);
    for (uint64_t n = 1; n < 100000; n += n < 40 ? 1 : 13) {
        m5_model *m = NULL;
        m5_mem_fail_at(n);
        int rc = m5_model_open(&m, path, &o, &err);
        m5_mem_fail_at(0);
        if (rc == 0) {
            m5_model_close(m);
            /* Products may do without their packed copy, so success before the end is no error; far behind it the loop is done. */
            if (n > 2000) break;
            continue;
        }
        T_CHECK(m == NULL, "an error with a model");
    }
    nothing_left(at_start);
}

int main(int argc, char **argv)
{
    char path[512], **names = NULL;
    size_t n = 0;
    snprintf(path, sizeof path, "%s/models", M5_TEST_DATA);
    if (m5_dir_list(&names, &n, path, &err) < 0) return t_done();
    m5_log_set_level(M5_LOG_ERROR);
    for (size_t i = 0; i < n; i++) {
        golden g = {0};
        if ((argc < 2 || strcmp(argv[1], names[i]) == 0) && golden_open(&g, names[i])) {
            float *want = m5_alloc(M5_MEM_TEXT, (size_t)MAX_TOK * 2 * (size_t)g.n_vocab * sizeof(float));
            float *got = m5_alloc(M5_MEM_TEXT, (size_t)MAX_TOK * 2 * (size_t)g.n_vocab * sizeof(float));
            check_golden(names[i], &g, got);
            check_mtp(names[i], &g, got);
            check_p1(names[i], &g, true, M5_KV_F32, want, got);
            check_p1(names[i], &g, false, M5_KV_I16, want, got);
            check_p1(names[i], &g, false, i % 3 == 0 ? M5_KV_Q8_0 : i % 3 == 1 ? M5_KV_F16 : M5_KV_BF16, want, got);
            if (strcmp(names[i], "qwen3_5") == 0) {
                check_memory(names[i], &g, got);
                check_open_failures(names[i]);
            }
            m5_free(want);
            m5_free(got);
        }
        m5_st_close(g.st);
        m5_free(names[i]);
    }
    m5_free(names);
    return t_done();
}
