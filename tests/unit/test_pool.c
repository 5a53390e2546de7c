/* SPDX-License-Identifier: Apache-2.0 */
/* base/pool.c: every worker runs once, barriers order phases, ranges are covered exactly once, sleeping workers wake up,
 * and only those for whom there is something to do. */
#include "base/task.h"
#include "t.h"

#include <stdatomic.h>
#include <time.h>

enum { N_THREADS = 4, N_PHASES = 50 };

typedef struct phase_job {
    m5_pool *pool;
    atomic_int hits[N_THREADS], arrived[N_PHASES];
    atomic_int n_bad;
} phase_job;

static void phase_task(void *ctx, int worker, int n_workers)
{
    phase_job *j = ctx;
    atomic_fetch_add(&j->hits[worker], 1);
    for (int i = 0; i < N_PHASES; i++) {
        atomic_fetch_add(&j->arrived[i], 1);
        m5_pool_barrier(j->pool);
        if (atomic_load(&j->arrived[i]) != n_workers) atomic_fetch_add(&j->n_bad, 1);
    }
}

typedef struct cover_job {
    atomic_int seen[1000];
    int64_t grain;
    atomic_int n_bad;
} cover_job;

static void cover_range(void *ctx, int64_t begin, int64_t end, int worker)
{
    cover_job *j = ctx;
    if (begin % j->grain != 0 || begin >= end || worker < 0 || worker >= N_THREADS) atomic_fetch_add(&j->n_bad, 1);
    for (int64_t i = begin; i < end; i++) atomic_fetch_add(&j->seen[i], 1);
}

static void check_pool(int n_threads)
{
    m5_pool *p = NULL;
    m5_error err = {0};
    T_EQ_INT(m5_pool_open(&p, n_threads, &err), 0);
    if (!p) return;
    T_EQ_INT(m5_pool_size(p), n_threads);
    for (int round = 0; round < 20; round++) {
        phase_job j = {.pool = p};
        m5_pool_run(p, phase_task, &j);
        for (int i = 0; i < n_threads; i++) T_EQ_INT(atomic_load(&j.hits[i]), 1);
        T_EQ_INT(atomic_load(&j.n_bad), 0);
        /* Longer than the spin, so that workers sleep in between. */
        if (round % 5 == 0) nanosleep(&(struct timespec){0, 2000000}, NULL);
    }
    static const int sizes[] = {0, 1, 2, 15, 16, 17, 999, 1000};
    static const int grains[] = {1, 3, 16, 5000};
    for (size_t a = 0; a < sizeof sizes / sizeof *sizes; a++) {
        for (size_t b = 0; b < sizeof grains / sizeof *grains; b++) {
            cover_job c = {.grain = grains[b]};
            m5_pool_for(p, sizes[a], grains[b], cover_range, &c);
            /* A range job may end before a worker has noticed it: the next job must not count that worker. */
            phase_job j = {.pool = p};
            m5_pool_run(p, phase_task, &j);
            for (int i = 0; i < n_threads; i++) T_EQ_INT(atomic_load(&j.hits[i]), 1);
            int n_wrong = 0;
            for (int i = 0; i < 1000; i++) n_wrong += atomic_load(&c.seen[i]) != (i < sizes[a]);
            T_EQ_INT(n_wrong, 0);
            T_EQ_INT(atomic_load(&c.n_bad), 0);
        }
    }
    m5_pool_close(p);
}

static void check_idle(void)
{
    m5_pool *p = NULL;
    if (m5_pool_open(&p, N_THREADS, NULL) != 0) return;
    nanosleep(&(struct timespec){0, 50000000}, NULL);
    clock_t before = clock();
    nanosleep(&(struct timespec){0, 200000000}, NULL);
    double used_s = (double)(clock() - before) / CLOCKS_PER_SEC;
    T_CHECK(used_s < 0.05, "an idle pool used %.3f s of CPU in 0.2 s", used_s);
    m5_pool_close(p);
}

static void pause_us(long us)
{
    nanosleep(&(struct timespec){0, us * 1000}, NULL);
}

/* The caller is done first, then the workers one after another, so that each sleeps long before the next is done. */
static void uneven_range(void *ctx, int64_t begin, int64_t end, int worker)
{
    (void)ctx;
    (void)begin;
    (void)end;
    pause_us(worker ? 2000 * worker : 300);
}

static void check_wakes(void)
{
    enum { ROUNDS = 20 };
    m5_pool *p = NULL;
    if (m5_pool_open(&p, N_THREADS, NULL) != 0) return;
    pause_us(20000);
    for (int i = 0; i < ROUNDS; i++) {
        m5_pool_for(p, 4, 1, uneven_range, NULL);
        pause_us(2000);
    }
    /* Three workers for the job, the caller for its end. POSIX lets a thread wake for no reason; that it does so every tenth time was never seen. */
    const m5_pool_wakes all = m5_pool_wakes_get(p);
    T_CHECK(all.n_futile <= ROUNDS / 10, "%u of %u wakes were futile", all.n_futile, all.n);
    T_CHECK(all.n > 0 && all.n <= N_THREADS * ROUNDS + ROUNDS / 10, "%u threads woke for %d jobs of four pieces", all.n, ROUNDS);
    pause_us(20000);
    const unsigned before = m5_pool_wakes_get(p).n;
    for (int i = 0; i < ROUNDS; i++) {
        m5_pool_for(p, 2, 1, uneven_range, NULL);
        pause_us(6000);
    }
    /* A job of two pieces: one worker, and the caller when it waits. */
    const unsigned n = m5_pool_wakes_get(p).n - before;
    T_CHECK(n > 0 && n <= 2 * ROUNDS + ROUNDS / 10, "%u threads woke for %d jobs of two pieces", n, ROUNDS);
    m5_pool_close(p);
}

typedef struct runs_job {
    atomic_int n_first[2];    /* pieces that a worker has run */
    atomic_int first_of_1;    /* where worker 1 began; -1: nowhere */
    atomic_int n_by_0_behind; /* pieces of worker 1's half that the caller ran */
} runs_job;

/* The caller stays in its first piece until the worker has begun, the worker in its first until the caller has run all others of its half. */
static void runs_range(void *ctx, int64_t begin, int64_t end, int worker)
{
    runs_job *j = ctx;
    (void)end;
    const bool first = atomic_fetch_add(&j->n_first[worker], 1) == 0;
    if (worker == 1 && first) atomic_store(&j->first_of_1, (int)begin);
    if (worker == 0 && begin >= 800) atomic_fetch_add(&j->n_by_0_behind, 1);
    for (int ms = 0; first && ms < 5000 && (worker ? atomic_load(&j->n_by_0_behind) < 7 : atomic_load(&j->n_first[1]) == 0); ms++) pause_us(1000);
}

static void check_runs(void)
{
    m5_pool *p = NULL;
    if (m5_pool_open(&p, 2, NULL) != 0) return;
    runs_job j = {.first_of_1 = -1};
    m5_pool_for(p, 1600, 100, runs_range, &j);
    T_EQ_INT(atomic_load(&j.first_of_1), 800);
    T_EQ_INT(atomic_load(&j.n_first[0]), 8 + 7); /* its own, and all of the other's but the one that was held */
    m5_pool_close(p);
}

int main(void)
{
    m5_pool *p = NULL;
    m5_error err = {0};
    T_EQ_INT(m5_pool_open(&p, 0, &err), M5_ERR_ARG);
    T_CHECK(p == NULL, "a failed open must give NULL");
    m5_pool_close(NULL);
    for (int n = 1; n <= N_THREADS; n++) check_pool(n);
    check_idle();
    check_wakes();
    check_runs();
    return t_done();
}
