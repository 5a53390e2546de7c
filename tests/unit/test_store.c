/* SPDX-License-Identifier: Apache-2.0 */
/* engine/store: state read back in another process gives the bits of a cold run; damaged, foreign and missing files are never used; budgets and
 * failing disks. */
#include "engine/store.h"

#include "base/mem.h"
#include "base/task.h"
#include "model/model.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "t.h"

enum { N_VOCAB = 100, PAGE = 8, N = 60 };
static char dir[] = "/tmp/m5-store-XXXXXX";
static int32_t ids[N];

/* One server's worth of state: a model, a tree, a store. */
typedef struct proc {
    m5_model *m;
    m5_prefix *p;
    m5_store *s;
} proc;

static uint64_t write_rate; /* 0 = the default */

static proc open_proc(const char *family, const char *fingerprint, uint64_t budget)
{
    char path[512];
    proc x = {0};
    m5_error err = {0};
    m5_model_options o = {.cpu = {.n_threads = 1, .cpu_mask = 0xffffffffu}, .kv_type = M5_KV_F16, .page_tok = PAGE, .max_batch_tok = 64};
    snprintf(path, sizeof path, "%s/models/%s", M5_TEST_DATA, family);
    T_CHECK(m5_model_open(&x.m, path, &o, &err) == 0, "%s", err.text);
    m5_store_options so = {.dir = dir, .budget_bytes = budget, .bytes_per_s = write_rate, .fingerprint = fingerprint};
    T_CHECK(m5_prefix_open(&x.p, x.m, (uint64_t)64 << 20, &err) == 0 && m5_store_open(&x.s, x.m, &so, &err) == 0, "%s", err.text);
    return x;
}

static void close_proc(proc *x)
{
    m5_store_close(x->s);
    m5_prefix_close(x->p);
    T_EQ_INT(m5_model_state_used(x->m), 0);
    m5_model_close(x->m);
}

/* Computes ids[0..n), keeping and writing state every `step` tokens; logits of the last. */
static void compute(proc *x, m5_seq *s, int n, int step, bool write, float *logits)
{
    m5_error err = {0};
    while (m5_seq_pos(s) < n) {
        int at = m5_seq_pos(s), k = n - at < step ? n - at : step;
        m5_run run = {.seq = s, .ids = ids + at, .n_tok = k, .n_out = at + k == n};
        T_CHECK(m5_model_forward(x->m, &run, 1, logits, &err) == 0, "%s", err.text);
        m5_page *const *pages;
        m5_row *row;
        m5_prefix_save(x->p, s, ids, true);
        if (!write) continue;
        T_CHECK(m5_prefix_export(x->p, ids, at + k, &pages, &row), "at %d", at + k);
        m5_store_put(x->s, ids, at + k, pages, row);
    }
}

/* Restores what the store has of ids[0..n) and checks the logits of the rest against a cold run. Returns the restored tokens. */
static int check(proc *x, int n)
{
    static float warm[4096], cold[4096];
    m5_seq *s = NULL, *c = NULL;
    m5_error err = {0};
    m5_prefix_match match;
    int at = m5_store_find(x->s, ids, n, m5_prefix_probe(x->p, ids, n));
    if (at > 0) m5_store_load(x->s, x->p, ids, at, &err);
    T_CHECK(m5_seq_new(&s, x->m, NULL) == 0 && m5_seq_new(&c, x->m, NULL) == 0, "sequences");
    m5_prefix_resume(x->p, s, ids, n, &match);
    compute(x, s, n, 64, false, warm);
    m5_run run = {.seq = c, .ids = ids, .n_tok = n, .n_out = 1};
    T_CHECK(m5_model_forward(x->m, &run, 1, cold, &err) == 0, "%s", err.text);
    T_CHECK(memcmp(warm, cold, (size_t)m5_model_config(x->m)->n_vocab * sizeof(float)) == 0, "restored %d of %d: other bits", match.n_resumed, n);
    m5_seq_free(s);
    m5_seq_free(c);
    return match.n_resumed;
}

static size_t n_files(void)
{
    m5_store_file *list = NULL;
    size_t n = 0;
    T_EQ_INT(m5_store_list(&list, &n, dir, NULL), 0);
    m5_free(list);
    return n;
}

static void write_all_states(const char *family)
{
    static float logits[4096];
    size_t n;
    T_EQ_INT(m5_store_clear(dir, true, &n, NULL), 0);
    proc x = open_proc(family, "0123456789abcdef", 1u << 30);
    m5_seq *s = NULL;
    T_EQ_INT(m5_seq_new(&s, x.m, NULL), 0);
    compute(&x, s, 50, 10, true, logits);
    m5_seq_free(s);
    close_proc(&x);
    T_EQ_INT(n_files(), 5);
}

static void test_restart(const char *family)
{
    write_all_states(family);
    proc x = open_proc(family, "0123456789abcdef", 1u << 30);
    T_EQ_INT(check(&x, 55), 50);
    close_proc(&x);
    x = open_proc(family, "0123456789abcdef", 1u << 30);
    int32_t keep = ids[33];
    ids[33] = (keep + 1) % N_VOCAB; /* a branch at 33: the checkpoint at 30 */
    T_EQ_INT(check(&x, 50), 30);
    ids[33] = keep;
    T_CHECK(check(&x, 52) >= 50, "the other branch");
    m5_store_stats st;
    m5_store_get_stats(x.s, &st);
    T_CHECK(st.n_loaded >= 5 && st.n_bad == 0, "%d loaded, %d bad", (int)st.n_loaded, (int)st.n_bad);
    close_proc(&x);
    /* Another model, or the same with other arithmetic, sees nothing. */
    x = open_proc(family, "0123456789abcdee", 1u << 30);
    T_EQ_INT(check(&x, 55), 0);
    close_proc(&x);
    T_EQ_INT(n_files(), 5);
}

/* Path of the file that reaches n_tok. */
static void find_file(int n_tok, char *path, size_t cap, char *name)
{
    m5_store_file *list = NULL;
    size_t n = 0;
    T_EQ_INT(m5_store_list(&list, &n, dir, NULL), 0);
    for (size_t i = 0; i < n; i++)
        if (list[i].n_tok == n_tok) {
            snprintf(path, cap, "%s/%s", dir, list[i].name);
            snprintf(name, 128, "%s", list[i].name);
        }
    m5_free(list);
}

static void test_damage(void)
{
    for (int kind = 0; kind < 40; kind++) {
        char path[512], name[128] = "";
        char *data = NULL;
        size_t n = 0;
        write_all_states("qwen3_5");
        find_file(40, path, sizeof path, name);
        T_EQ_INT(m5_store_verify(dir, name, NULL, NULL), 0);
        T_EQ_INT(m5_file_read(&data, &n, path, 1u << 30, NULL), 0);
        m5_file_remove(path, NULL);
        if (kind == 0) {
            T_EQ_INT(symlink("/etc/passwd", path), 0);
        } else if (kind == 1) {
            T_EQ_INT(mkfifo(path, 0600), 0);
        } else if (kind < 10) { /* cut short, also inside the header */
            T_EQ_INT(m5_file_write_atomic(path, data, kind == 2 ? 0 : n * (size_t)(kind - 2) / 9, 0600, NULL), 0);
        } else { /* one bit anywhere */
            size_t at = kind < 20 ? (size_t)(kind - 10) * 7 : n * (size_t)(kind - 20) / 20;
            data[at] ^= 1;
            T_EQ_INT(m5_file_write_atomic(path, data, n, 0600, NULL), 0);
        }
        m5_free(data);
        if (kind >= 2) T_EQ_INT(m5_store_verify(dir, name, NULL, NULL), M5_ERR_FORMAT);
        m5_log_set_level(M5_LOG_ERROR);
        proc x = open_proc("qwen3_5", "0123456789abcdef", 1u << 30);
        /* The load that meets the damage gives up; the next lookup does not see the file any more and takes the one before. */
        int at = check(&x, 45);
        T_CHECK(at <= 30, "damage %d: restored %d", kind, at);
        T_EQ_INT(m5_store_find(x.s, ids, 45, 0), 30);
        close_proc(&x);
        m5_log_set_level(M5_LOG_INFO);
        if (kind >= 2) T_CHECK(m5_store_verify(dir, name, NULL, NULL) == M5_ERR_NOTFOUND, "damage %d: the file is still there", kind);
        unlink(path);
    }
}

static void test_budget(void)
{
    static float logits[4096];
    size_t n;
    m5_store_file *list = NULL;
    T_EQ_INT(m5_store_clear(dir, true, &n, NULL), 0);
    proc x = open_proc("qwen3_5", "0123456789abcdef", 1u << 30);
    uint64_t one = m5_model_row_bytes(x.m) + 2 * m5_model_page_bytes(x.m) + 1024, budget = 4 * one;
    close_proc(&x);
    x = open_proc("qwen3_5", "0123456789abcdef", budget);
    for (int round = 0; round < 6; round++) {
        m5_seq *s = NULL;
        ids[0] = round;
        T_EQ_INT(m5_seq_new(&s, x.m, NULL), 0);
        compute(&x, s, 20, 10, true, logits);
        m5_seq_free(s);
        m5_store_flush(x.s);
        uint64_t total = 0;
        T_EQ_INT(m5_store_list(&list, &n, dir, NULL), 0);
        for (size_t i = 0; i < n; i++) total += list[i].n_bytes;
        m5_free(list);
        T_CHECK(total <= budget && n > 0, "%llu of %llu bytes in %zu files", (unsigned long long)total, (unsigned long long)budget, n);
    }
    m5_prefix_clear(x.p);
    T_CHECK(check(&x, 25) == 20, "the last one is there");
    close_proc(&x);
    ids[0] = 0;
}

static void test_bad_disk(void)
{
    static float logits[4096];
    size_t n;
    T_EQ_INT(m5_store_clear(dir, true, &n, NULL), 0);
    m5_log_set_level(M5_LOG_ERROR);
    /* A disk that takes only a little: the write fails, nothing half-written stays, the answer is right. */
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    small = old;
    small.rlim_cur = 2000;
    signal(SIGXFSZ, SIG_IGN);
    proc x = open_proc("qwen3_5", "0123456789abcdef", 1u << 30);
    setrlimit(RLIMIT_FSIZE, &small);
    m5_seq *s = NULL;
    T_EQ_INT(m5_seq_new(&s, x.m, NULL), 0);
    compute(&x, s, 20, 10, true, logits);
    m5_store_flush(x.s);
    setrlimit(RLIMIT_FSIZE, &old);
    m5_store_stats st;
    m5_store_get_stats(x.s, &st);
    T_EQ_INT(st.n_written, 0);
    T_EQ_INT(st.n_files, 0);
    T_EQ_INT(n_files(), 0);
    char **names = NULL;
    T_EQ_INT(m5_dir_list(&names, &n, dir, NULL), 0);
    T_EQ_INT(n, 0);
    m5_free(names);
    m5_seq_free(s);
    close_proc(&x);
    /* A folder that cannot be made. */
    m5_store_options so = {.dir = "/proc/nope/m5", .budget_bytes = 1u << 20, .fingerprint = "0123456789abcdef"};
    m5_store *none = NULL;
    m5_error err = {0};
    char path[512];
    snprintf(path, sizeof path, "%s/models/qwen3", M5_TEST_DATA);
    m5_model *m = NULL;
    m5_model_options o = {.cpu = {.n_threads = 1, .cpu_mask = 0xffffffffu}};
    T_EQ_INT(m5_model_open(&m, path, &o, &err), 0);
    T_CHECK(m5_store_open(&none, m, &so, &err) < 0 && none == NULL && err.text[0], "no folder");
    m5_model_close(m);
    m5_log_set_level(M5_LOG_INFO);
    /* Files left by a killed process go, but not those of a living one. */
    snprintf(path, sizeof path, "%s/0123456789abcdef-00000001-00000000-00000000000000000000000000000000.m5state.AAAAAA", dir);
    T_EQ_INT(m5_file_write_atomic(path, "x", 1, 0600, NULL), 0);
    x = open_proc("qwen3", "0123456789abcdef", 1u << 30);
    close_proc(&x);
    T_CHECK(m5_path_exists(path), "a young unfinished file stays");
    T_EQ_INT(m5_store_clear(dir, false, &n, NULL), 0);
    T_EQ_INT(n, 1);
}

/* What waits to be written cannot be read yet and is not lost by the attempt; files that stand on it are found when they are there. */
static void test_queued(void)
{
    static float logits[4096];
    size_t n;
    T_EQ_INT(m5_store_clear(dir, true, &n, NULL), 0);
    write_rate = 200000;
    proc x = open_proc("qwen3_5", "0123456789abcdef", 1u << 30);
    m5_seq *s = NULL;
    T_EQ_INT(m5_seq_new(&s, x.m, NULL), 0);
    compute(&x, s, 40, 10, true, logits);
    T_CHECK(m5_store_find(x.s, ids, 50, 0) < 40, "a queued file is offered");
    m5_store_flush(x.s);
    T_EQ_INT(m5_store_find(x.s, ids, 50, 0), 40);
    m5_prefix_clear(x.p);
    T_EQ_INT(check(&x, 50), 40);
    m5_seq_free(s);
    close_proc(&x);
    write_rate = 0;
}

int main(void)
{
    T_CHECK(mkdtemp(dir) != NULL, "temporary folder");
    for (int i = 0; i < N; i++) ids[i] = (i * 37 + 11) % N_VOCAB;
    test_restart("qwen3_5");
    test_restart("qwen3");
    test_restart("gemma3");
    test_damage();
    test_budget();
    test_bad_disk();
    test_queued();
    size_t n;
    m5_store_clear(dir, true, &n, NULL);
    rmdir(dir);
    return t_done();
}
