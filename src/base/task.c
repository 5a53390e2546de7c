/* SPDX-License-Identifier: Apache-2.0 */
/* Clock, thread names, random bytes: every call that differs between systems and is not about files, the pool, or what the machine offers.
 * May touch: libc, pthreads, base. */
#define _GNU_SOURCE
#include "base/task.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/random.h>
#include <sys/resource.h>
#endif
uint64_t m5_time_us(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000u + (uint64_t)ts.tv_nsec / 1000u;
}

int64_t m5_time_unix_ms(void)
{
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    return (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

void m5_sleep_us(uint64_t us)
{
    struct timespec ts = {.tv_sec = (time_t)(us / 1000000u), .tv_nsec = (long)(us % 1000000u) * 1000};
    nanosleep(&ts, NULL);
}

#ifdef __linux__

void m5_thread_name(const char *name)
{
    pthread_setname_np(pthread_self(), name);
}

void m5_thread_background(void)
{
    /* On Linux a nice value belongs to a thread. 10: about a tenth of a core beside busy threads, all of an idle one. */
    setpriority(PRIO_PROCESS, 0, 10);
}

#else

void m5_thread_name(const char *name)
{
#ifdef __APPLE__
    pthread_setname_np(name);
#else
    (void)name;
#endif
}

void m5_thread_background(void) {}

#endif

void m5_random_bytes(void *p, size_t n)
{
#ifdef __linux__
    size_t done = 0;
    while (done < n) {
        ssize_t got = getrandom((char *)p + done, n - done, 0);
        if (got <= 0) break;
        done += (size_t)got;
    }
    if (done == n) return;
#else
    arc4random_buf(p, n);
    return;
#endif
    FILE *f = fopen("/dev/urandom", "rb");
    size_t got2 = f ? fread(p, 1, n, f) : 0;
    if (f) fclose(f);
    if (got2 != n) {
        /* Seeds only: no secret depends on this path. */
        uint64_t x = m5_time_us() ^ (uint64_t)(uintptr_t)p;
        for (size_t i = 0; i < n; i++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            ((unsigned char *)p)[i] = (unsigned char)(x >> 56);
        }
    }
}
