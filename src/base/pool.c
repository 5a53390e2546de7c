/* SPDX-License-Identifier: Apache-2.0 */
/* Thread pool. Room: m5_pool_* of base/task.h. The clock, CPU counts and thread names live in task.c.
 *
 * A decode step is some hundred short jobs a few microseconds apart, so workers first watch an atomic for the next job; a server
 * that waits for a request must not burn a core, so after SPIN_US they sleep on a condition variable. The caller and the
 * barrier wait in the same way: on a machine with fewer free cores than threads, the thread that is waited for gets to run. The time is
 * measured, not counted in looks: a pause takes 10 to 140 cycles on x86 and next to none on Arm. A pool with more threads than may
 * run at once ("crowded") hands the core on between looks: the thread that is waited for is often one that has none.
 *
 * Each thing that is waited for has its own condition variable, and no more threads are woken than a job has pieces for: nobody wakes for nothing.
 *
 * A job has a gate. Workers enter it; when no piece of a range is left the caller shuts it and waits only for those inside. So a worker that the
 * system has not woken yet, or has given no core, delays nobody. */
#include "base/mem.h"
#include "base/task.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

/* SPIN_US: several times the gap between two jobs of one forward pass. */
enum { SPIN_US = 50, SPIN_LOOKS = 64, WAKE_ALL = 1 << 30, LINE_BYTES = 64, GATE_INSIDE = 0xffff, GATE_OPEN = 1 << 16, GATE_ENTERED = 1 << 17 };

/* A counter that threads wait for. Its own cache line: the spinning reads of one must not slow the writes of another. */
typedef struct signal_word {
    _Alignas(LINE_BYTES) atomic_uint value;
    atomic_int n_sleepers;
    pthread_cond_t wake;
} signal_word;

typedef struct pool_worker {
    m5_pool *pool;
    int index;
    pthread_t thread;
    _Alignas(LINE_BYTES) _Atomic int64_t next; /* piece of m5_pool_for: of this worker's run, taken by it and by those who are done with theirs */
} pool_worker;

struct m5_pool {
    signal_word job;                            /* number of the job now published */
    signal_word done;                           /* times that the last worker inside left a job, over all jobs */
    _Alignas(LINE_BYTES) _Atomic uint64_t gate; /* job number << 32 | workers that entered * GATE_ENTERED | GATE_OPEN | workers inside */
    signal_word barrier;                        /* barriers passed */
    _Alignas(LINE_BYTES) atomic_uint n_arrived;
    _Alignas(LINE_BYTES) pthread_mutex_t lock;
    atomic_uint n_wakes, n_futile;
    bool crowded;
    int n_threads, n_started;
    atomic_bool quit;
    m5_task_fn fn;
    void *ctx;
    pool_worker *workers; /* [n_threads], 0 unused */
};

static inline void spin_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* Waits until w->value != seen and returns the new value. */
static unsigned signal_wait(m5_pool *p, signal_word *w, unsigned seen)
{
    unsigned v;
    uint64_t start = 0;
    for (;;) {
        for (int i = 0; i < SPIN_LOOKS; i++) {
            v = atomic_load_explicit(&w->value, memory_order_acquire);
            if (v != seen) return v;
            spin_pause();
        }
        const uint64_t now = m5_time_us();
        if (!start) start = now;
        if (now - start >= SPIN_US) break;
        if (p->crowded) sched_yield();
    }
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&w->n_sleepers, 1);
    while ((v = atomic_load(&w->value)) == seen) {
        pthread_cond_wait(&w->wake, &p->lock);
        atomic_fetch_add(&p->n_wakes, 1);
        if (atomic_load(&w->value) == seen) atomic_fetch_add(&p->n_futile, 1);
    }
    atomic_fetch_sub(&w->n_sleepers, 1);
    pthread_mutex_unlock(&p->lock);
    return v;
}

/* The sequentially consistent pair (value, n_sleepers) here and (n_sleepers, value) in signal_wait: either the sleeper sees the new
 * value, or the signaller sees the sleeper. At most n_wake sleepers are woken; the others go on sleeping over this change. */
static void signal_add(m5_pool *p, signal_word *w, int64_t n_wake)
{
    atomic_fetch_add(&w->value, 1);
    if (atomic_load(&w->n_sleepers) == 0) return;
    pthread_mutex_lock(&p->lock);
    if (atomic_load(&w->n_sleepers) <= n_wake) {
        pthread_cond_broadcast(&w->wake);
    } else {
        for (int64_t i = 0; i < n_wake; i++) pthread_cond_signal(&w->wake);
    }
    pthread_mutex_unlock(&p->lock);
}

/* True when this worker is now inside job number `job`; fn and ctx then stay until it leaves. */
static bool gate_enter(m5_pool *p, unsigned job)
{
    uint64_t g = atomic_load(&p->gate);
    while (g >> 32 == job && (g & GATE_OPEN)) {
        if (atomic_compare_exchange_weak(&p->gate, &g, g + GATE_ENTERED + 1)) return true;
    }
    return false;
}

static void *worker_main(void *arg)
{
    pool_worker *w = arg;
    m5_pool *p = w->pool;
    m5_thread_name("m5-worker");
    for (unsigned seen = 0;;) {
        seen = signal_wait(p, &p->job, seen);
        if (atomic_load(&p->quit)) return NULL;
        if (!gate_enter(p, seen)) continue;
        p->fn(p->ctx, w->index, p->n_threads);
        /* The caller waits until nobody is inside, so only the last one to leave has news for it. */
        if (((atomic_fetch_sub(&p->gate, 1) - 1) & GATE_INSIDE) == 0) signal_add(p, &p->done, 1);
    }
}

int m5_pool_open(m5_pool **out, int n_threads, m5_error *err)
{
    *out = NULL;
    if (n_threads < 1 || n_threads > 4096) return m5_error_set(err, M5_ERR_ARG, "%d threads are out of range (1 to 4096)", n_threads);
    m5_pool *p = m5_calloc(M5_MEM_MISC, 1, sizeof *p);
    if (!p) return m5_error_set(err, M5_ERR_NOMEM, "out of memory for the thread pool");
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->job.wake, NULL);
    pthread_cond_init(&p->done.wake, NULL);
    pthread_cond_init(&p->barrier.wake, NULL);
    p->crowded = n_threads > m5_cpus_get().n_usable;
    p->n_threads = n_threads;
    p->n_started = 1;
    p->workers = m5_calloc(M5_MEM_MISC, (size_t)n_threads, sizeof *p->workers);
    if (!p->workers) {
        m5_pool_close(p);
        return m5_error_set(err, M5_ERR_NOMEM, "out of memory for %d threads", n_threads);
    }
    for (; p->n_started < n_threads; p->n_started++) {
        pool_worker *w = &p->workers[p->n_started];
        w->pool = p;
        w->index = p->n_started;
        if (pthread_create(&w->thread, NULL, worker_main, w) != 0) {
            int at = p->n_started;
            m5_pool_close(p);
            return m5_error_set(err, M5_ERR_NOMEM, "cannot start thread %d of %d", at + 1, n_threads);
        }
    }
    *out = p;
    return 0;
}

void m5_pool_close(m5_pool *p)
{
    if (!p) return;
    atomic_store(&p->quit, true);
    signal_add(p, &p->job, WAKE_ALL);
    for (int i = 1; i < p->n_started; i++) pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->job.wake);
    pthread_cond_destroy(&p->done.wake);
    pthread_cond_destroy(&p->barrier.wake);
    pthread_mutex_destroy(&p->lock);
    m5_free(p->workers);
    m5_free(p);
}

int m5_pool_size(const m5_pool *p)
{
    return p->n_threads;
}

m5_pool_wakes m5_pool_wakes_get(const m5_pool *p)
{
    return (m5_pool_wakes){.n = atomic_load(&p->n_wakes), .n_futile = atomic_load(&p->n_futile)};
}

/* For n_helpers workers beside the caller. */
static void publish(m5_pool *p, m5_task_fn fn, void *ctx, int64_t n_helpers)
{
    p->fn = fn;
    p->ctx = ctx;
    const uint64_t job = (uint32_t)(atomic_load(&p->job.value) + 1u);
    atomic_store(&p->gate, job << 32 | GATE_OPEN);
    signal_add(p, &p->job, n_helpers);
}

/* Waits until at least n_needed workers have entered and nobody is inside, with the gate shut. */
static void retire(m5_pool *p, unsigned n_needed)
{
    if (n_needed == 0) atomic_fetch_and(&p->gate, ~(uint64_t)GATE_OPEN);
    for (;;) {
        const unsigned seen = atomic_load(&p->done.value), g = (unsigned)atomic_load(&p->gate);
        if (g / GATE_ENTERED >= n_needed && (g & GATE_INSIDE) == 0) break;
        signal_wait(p, &p->done, seen);
    }
    atomic_fetch_and(&p->gate, ~(uint64_t)GATE_OPEN);
}

void m5_pool_run(m5_pool *p, m5_task_fn fn, void *ctx)
{
    if (p->n_threads == 1) {
        fn(ctx, 0, 1);
        return;
    }
    publish(p, fn, ctx, WAKE_ALL);
    fn(ctx, 0, p->n_threads);
    retire(p, (unsigned)p->n_threads - 1);
}

void m5_pool_barrier(m5_pool *p)
{
    if (p->n_threads == 1) return;
    unsigned seen = atomic_load(&p->barrier.value);
    if (atomic_fetch_add(&p->n_arrived, 1) + 1 == (unsigned)p->n_threads) {
        atomic_store(&p->n_arrived, 0);
        signal_add(p, &p->barrier, WAKE_ALL);
    } else {
        signal_wait(p, &p->barrier, seen);
    }
}

typedef struct range_job {
    m5_pool *pool;
    int64_t n, piece, n_piece;
    m5_range_fn fn;
    void *ctx;
} range_job;

/* The pieces of worker w are [first_piece(w), first_piece(w + 1)). */
static int64_t first_piece(const range_job *j, int w)
{
    return j->n_piece * w / j->pool->n_threads;
}

/* Own pieces first, in order: what a worker reads then lies in one run of memory, and what was fetched ahead at the end of a piece is wanted by the
 * next. After those the pieces that others have not got to. */
static void range_task(void *arg, int worker, int n_workers)
{
    range_job *j = arg;
    for (int k = 0; k < n_workers; k++) {
        const int owner = worker + k < n_workers ? worker + k : worker + k - n_workers;
        _Atomic int64_t *next = &j->pool->workers[owner].next;
        const int64_t stop = first_piece(j, owner + 1);
        while (atomic_load_explicit(next, memory_order_relaxed) < stop) {
            const int64_t i = atomic_fetch_add_explicit(next, 1, memory_order_relaxed), begin = i * j->piece;
            if (i < stop) j->fn(j->ctx, begin, j->n - begin < j->piece ? j->n : begin + j->piece, worker);
        }
    }
}

void m5_pool_for(m5_pool *p, int64_t n, int64_t grain, m5_range_fn fn, void *ctx)
{
    if (n <= 0) return;
    if (grain < 1) grain = 1;
    if (p->n_threads == 1 || n <= grain) {
        fn(ctx, 0, n, 0);
        return;
    }
    /* Eight pieces a thread level out a neighbour that steals a core; every piece but the last is a multiple of grain. */
    int64_t pieces = (int64_t)p->n_threads * 8;
    int64_t piece = (n + pieces - 1) / pieces;
    piece = (piece + grain - 1) / grain * grain;
    range_job j = {p, n, piece, (n + piece - 1) / piece, fn, ctx};
    for (int w = 0; w < p->n_threads; w++) atomic_store_explicit(&p->workers[w].next, first_piece(&j, w), memory_order_relaxed);
    publish(p, range_task, &j, j.n_piece - 1);
    range_task(&j, 0, p->n_threads);
    retire(p, 0);
}
