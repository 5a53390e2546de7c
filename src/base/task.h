/* SPDX-License-Identifier: Apache-2.0 */
/* Threads, clock, files and the operating system: the home of every call that is not plain C11 + POSIX threads, so that a port
 * touches this file alone. Room: base/task.c (clock, threads), base/pool.c, base/machine.c (cores, memory), base/file.c (mmap, read, atomic write,
 * directories). */
#ifndef M5_BASE_TASK_H
#define M5_BASE_TASK_H

#include "base/err.h"

#include <stdint.h>

/* Pool of n_threads workers, of which the calling thread is number 0. Workers spin briefly for the next job, then sleep: an idle pool uses
 * no CPU. With more threads than m5_cpus_get().n_usable they give way instead of spinning. Thread: one caller at a time (the engine thread). */
typedef struct m5_pool m5_pool;
typedef void (*m5_task_fn)(void *ctx, int worker, int n_workers);
typedef void (*m5_range_fn)(void *ctx, int64_t begin, int64_t end, int worker);

int m5_pool_open(m5_pool **out, int n_threads, m5_error *err);
void m5_pool_close(m5_pool *p);
int m5_pool_size(const m5_pool *p);
/* Runs fn once on every worker and returns when all are done. */
void m5_pool_run(m5_pool *p, m5_task_fn fn, void *ctx);
/* Barrier between the workers of the job now running; every worker must call it the same number of times. */
void m5_pool_barrier(m5_pool *p);
/* Splits [0, n) into pieces of at least grain. Each worker has a run of neighbouring pieces and then helps the others with theirs; which worker runs
 * a piece never changes its result. */
void m5_pool_for(m5_pool *p, int64_t n, int64_t grain, m5_range_fn fn, void *ctx);
/* How often sleeping threads were woken since the pool was opened, and how often although what they wait for had not happened. */
typedef struct m5_pool_wakes {
    unsigned n, n_futile;
} m5_pool_wakes;
m5_pool_wakes m5_pool_wakes_get(const m5_pool *p);

/* Affinity mask and quota of the control group (version 1 or 2, also of the groups above) respected, at least 1. */
typedef struct m5_cpus {
    int n_usable; /* hardware threads that may run at the same time */
    int n_fast;   /* the physical performance cores among them */
} m5_cpus;
m5_cpus m5_cpus_get(void);
int m5_cpu_count(void); /* n_fast: how many threads compute when nobody says */
/* From the files of another root than "" and for given CPUs; memory: the smaller of total and the control group's limit. For tests. */
m5_cpus m5_cpus_in(const char *root, const bool *allowed, int n_cpu);
uint64_t m5_memory_limit_in(const char *root, uint64_t total);
uint64_t m5_time_us(void);    /* monotonic */
int64_t m5_time_unix_ms(void);
uint64_t m5_memory_total_bytes(void); /* of the machine or the cgroup, whichever is smaller */
uint64_t m5_memory_rss_bytes(void);
void m5_thread_name(const char *name);
void m5_thread_background(void); /* lowers the priority of the calling thread */
void m5_random_bytes(void *p, size_t n); /* from the operating system */

/* Whole file mapped read-only. A mapping stays valid when the path is replaced by rename. */
typedef struct m5_map {
    const uint8_t *p;
    size_t n;
} m5_map;
int m5_map_open(m5_map *out, const char *path, m5_error *err); /* regular files only; empty files give n = 0 */
void m5_map_close(m5_map *m);
void m5_map_prefetch(const m5_map *m, size_t offset, size_t n);
void m5_map_drop(const m5_map *m, size_t offset, size_t n); /* these pages will not be read again soon */

int m5_file_read(char **out, size_t *n, const char *path, size_t max_bytes, m5_error *err); /* NUL-terminated; caller m5_free */
/* Writes beside the target, syncs, renames: the target holds the old or the whole new content, never a part. */
int m5_file_write_atomic(const char *path, const void *p, size_t n, int mode, m5_error *err);
/* The same for a file made of parts that are not in memory together, without the sync (a torn file after a power cut must be found by its
 * checksum). pace (may be NULL) is called before each piece of at most 1 MiB and may sleep; returning false gives up with M5_ERR_CANCELLED. */
typedef struct m5_file_part {
    const void *p;
    size_t n;
} m5_file_part;
int m5_file_write_parts(const char *path, const m5_file_part *parts, int n_part, int mode, bool (*pace)(void *ctx, size_t n), void *ctx, m5_error *err);
/* As m5_map_open, but refuses a symbolic link at the end of the path. */
int m5_map_open_nofollow(m5_map *out, const char *path, m5_error *err);
/* Removes a file; one that does not exist is no error. */
int m5_file_remove(const char *path, m5_error *err);
/* Size and time of last change of a regular file, links not followed; false when it is none. */
bool m5_file_stat(const char *path, uint64_t *n_bytes, int64_t *unix_ms);
void m5_file_touch(const char *path); /* time of last change = now; failure is ignored */
uint64_t m5_disk_free_bytes(const char *dir); /* for this user; 0 when unknown */
void m5_sleep_us(uint64_t us);
bool m5_path_is_dir(const char *path);
bool m5_path_exists(const char *path);
int m5_dir_make(const char *path, int mode, m5_error *err); /* with parents */
/* Names in a directory, sorted bytewise, without . and ..; caller frees each and the array with m5_free. */
int m5_dir_list(char ***out, size_t *n, const char *path, m5_error *err);

#endif
