/* SPDX-License-Identifier: Apache-2.0 */
/* engine/prefix: what is resumed from the tree gives the bits of a cold run (P1), for a model with and one without recurrent layers; branches,
 * budgets, and a random mix of conversations against a tree that is far too small. */
#include "engine/prefix.h"

#include "base/mem.h"
#include "model/model.h"

#include "t.h"

enum { N_VOCAB = 100, PAGE = 8 };

static m5_model *open_tiny(const char *family)
{
    char path[512];
    m5_model *m = NULL;
    m5_error err = {0};
    m5_model_options o = {.cpu = {.n_threads = 1, .cpu_mask = 0xffffffffu}, .kv_type = M5_KV_F16, .page_tok = PAGE, .max_batch_tok = 64};
    snprintf(path, sizeof path, "%s/models/%s", M5_TEST_DATA, family);
    T_CHECK(m5_model_open(&m, path, &o, &err) == 0, "%s: %s", path, err.text);
    return m;
}

static uint64_t rng_state = 88172645463325252u;
static uint32_t rng(uint32_t n)
{
    rng_state ^= rng_state << 13;
    rng_state ^= rng_state >> 7;
    rng_state ^= rng_state << 17;
    return (uint32_t)(rng_state >> 33) % n;
}

/* Appends ids[m5_seq_pos(s) .. n) to s in slices; logits of the last token. save: a checkpoint after every slice. */
static void feed(m5_model *m, m5_prefix *p, m5_seq *s, const int32_t *ids, int n, int slice, float *logits)
{
    m5_error err = {0};
    while (m5_seq_pos(s) < n) {
        int at = m5_seq_pos(s), k = n - at < slice ? n - at : slice;
        m5_run run = {.seq = s, .ids = ids + at, .n_tok = k, .n_out = at + k == n};
        T_CHECK(m5_model_forward(m, &run, 1, logits, &err) == 0, "%s", err.text);
        if (err.code) return;
        if (p) m5_prefix_save(p, s, ids, true);
    }
}

/* Resumes ids from p, computes the rest, compares with a cold run. Returns the resumed tokens. */
static int check(m5_model *m, m5_prefix *p, const int32_t *ids, int n, int slice)
{
    static float warm[4096], cold[4096];
    m5_seq *s = NULL, *c = NULL;
    m5_error err = {0};
    m5_prefix_match match;
    size_t bytes = (size_t)m5_model_config(m)->n_vocab * sizeof(float);
    T_CHECK(m5_seq_new(&s, m, &err) == 0 && m5_seq_new(&c, m, &err) == 0, "%s", err.text);
    int probe = m5_prefix_probe(p, ids, n);
    m5_prefix_resume(p, s, ids, n, &match);
    T_EQ_INT(match.n_resumed, probe);
    T_EQ_INT(m5_seq_pos(s), match.n_resumed);
    T_CHECK(match.n_resumed < n && match.n_common >= match.n_resumed, "%d of %d, common %d", match.n_resumed, n, match.n_common);
    feed(m, p, s, ids, n, slice, warm);
    feed(m, NULL, c, ids, n, 64, cold);
    T_CHECK(memcmp(warm, cold, bytes) == 0, "resumed at %d of %d: other bits", match.n_resumed, n);
    m5_seq_free(s);
    m5_seq_free(c);
    return match.n_resumed;
}

static void test_branches(const char *family)
{
    m5_model *m = open_tiny(family);
    if (!m) return;
    m5_prefix *p = NULL;
    T_EQ_INT(m5_prefix_open(&p, m, (uint64_t)64 << 20, NULL), 0);
    bool rec = m5_model_recurrent(m);
    int32_t a[100], b[100];
    for (int i = 0; i < 100; i++) a[i] = b[i] = (int32_t)rng(N_VOCAB);
    T_EQ_INT(check(m, p, a, 50, 10), 0);
    /* The same prompt again: the last token is computed, so at most 49 resume; with rows the checkpoint at 40. */
    T_EQ_INT(check(m, p, a, 50, 10), rec ? 40 : 49);
    T_EQ_INT(check(m, p, a, 51, 10), 50);
    T_EQ_INT(check(m, p, a, 90, 7), 51);
    /* A branch inside a page, in the middle. */
    b[45] = (a[45] + 1) % N_VOCAB;
    T_EQ_INT(check(m, p, b, 80, 10), rec ? 40 : 45);
    /* Both branches live side by side. */
    T_EQ_INT(check(m, p, a, 90, 10), rec ? 86 : 89);
    T_EQ_INT(check(m, p, b, 81, 10), 80);
    /* Nothing in common. */
    b[0] = (a[0] + 1) % N_VOCAB;
    T_EQ_INT(check(m, p, b, 30, 30), 0);
    m5_prefix_match match;
    m5_seq *s = NULL;
    T_EQ_INT(m5_seq_new(&s, m, NULL), 0);
    b[0] = a[0];
    b[20] = (a[20] + 1) % N_VOCAB;
    m5_prefix_resume(p, s, b, 60, &match);
    T_EQ_INT(match.n_common, 20);
    T_EQ_INT(match.stored, a[20]);
    m5_seq_free(s);
    m5_prefix_clear(p);
    m5_prefix_stats st;
    m5_prefix_get_stats(p, &st);
    T_EQ_INT(st.bytes, 0);
    T_EQ_INT(st.n_node, 0);
    T_EQ_INT(st.n_checkpoint, 0);
    T_EQ_INT(m5_model_state_used(m), 0);
    T_EQ_INT(check(m, p, a, 50, 10), 0);
    m5_prefix_close(p);
    m5_model_close(m);
}

/* Conversations that grow, branch and are forgotten under a budget of a few pages and rows. */
static void test_small_budget(const char *family)
{
    m5_model *m = open_tiny(family);
    if (!m) return;
    m5_prefix *p = NULL;
    uint64_t budget = 14 * m5_model_page_bytes(m) + 6 * m5_model_row_bytes(m);
    T_EQ_INT(m5_prefix_open(&p, m, budget, NULL), 0);
    static int32_t talk[6][120];
    int len[6];
    for (int t = 0; t < 6; t++) {
        len[t] = 10;
        for (int i = 0; i < 120; i++) talk[t][i] = i < 12 ? i : (int32_t)rng(N_VOCAB);
    }
    int n_hit = 0;
    m5_prefix_stats st;
    for (int step = 0; step < 150; step++) {
        int t = (int)rng(6);
        n_hit += check(m, p, talk[t], len[t], 1 + (int)rng(20)) > 0;
        m5_prefix_get_stats(p, &st);
        T_CHECK(st.bytes <= budget, "%llu > %llu", (unsigned long long)st.bytes, (unsigned long long)budget);
        len[t] += 1 + (int)rng(9);
        if (len[t] > 100 || rng(10) == 0) {
            len[t] = 10 + (int)rng(10);
            for (int i = 12 + (int)rng(5); i < 120; i++) talk[t][i] = (int32_t)rng(N_VOCAB);
        }
    }
    T_CHECK(n_hit > 40, "%d hits", n_hit);
    T_CHECK(st.n_evicted_bytes > 0, "nothing was evicted");
    T_CHECK(m5_prefix_evict(p, 1) && m5_prefix_evict(p, UINT64_MAX) && !m5_prefix_evict(p, 1), "evict to the last byte");
    m5_prefix_get_stats(p, &st);
    T_EQ_INT(st.bytes, 0);
    m5_prefix_close(p);
    T_EQ_INT(m5_model_state_used(m), 0);
    m5_model_close(m);
}

int main(void)
{
    static const char *const families[] = {"qwen3_5", "qwen3", "gemma3", "qwen3_next", "llama3"};
    for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) test_branches(families[i]);
    test_small_budget("qwen3_5");
    test_small_budget("qwen3");
    return t_done();
}
