/* SPDX-License-Identifier: Apache-2.0 */
/* Clock, cores, memory of the machine, thread names, random bytes: every call that differs between systems and is not about files or the pool.
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
#include <sched.h>
#include <sys/random.h>
#include <sys/resource.h>
#endif
#ifdef __APPLE__
#include <sys/sysctl.h>
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

/* First line of a small file of the kernel's, without its newline. */
static bool read_line(const char *path, char *buf, size_t cap)
{
    FILE *f = fopen(path, "re");
    if (!f) return false;
    bool ok = fgets(buf, (int)cap, f) != NULL;
    fclose(f);
    if (ok) buf[strcspn(buf, "\n")] = '\0';
    return ok;
}

/* Path of this process's cgroup below /sys/fs/cgroup (version 2), or "". */
static void cgroup_dir(char *buf, size_t cap)
{
    char line[512];
    buf[0] = '\0';
    if (read_line("/proc/self/cgroup", line, sizeof line) && strncmp(line, "0::", 3) == 0) snprintf(buf, cap, "/sys/fs/cgroup%s", line + 3);
}

/* Cores granted by cpu.max, or 0 when there is no quota. The smallest quota on the way up to the root counts. */
static int cgroup_cpus(void)
{
    char dir[600], path[700], line[128];
    int best = 0;
    cgroup_dir(dir, sizeof dir);
    while (dir[0]) {
        snprintf(path, sizeof path, "%s/cpu.max", dir);
        long long quota, period;
        if (read_line(path, line, sizeof line) && sscanf(line, "%lld %lld", &quota, &period) == 2 && quota > 0 && period > 0) {
            int cpus = (int)((quota + period - 1) / period);
            if (cpus < 1) cpus = 1;
            if (best == 0 || cpus < best) best = cpus;
        }
        char *slash = strrchr(dir, '/');
        if (!slash || strcmp(dir, "/sys/fs/cgroup") == 0) break;
        *slash = '\0';
    }
    return best;
}

/* Physical cores among the allowed ones: hyperthreads share the units that matrix products saturate, and slow cores would be waited for. */
static int physical_cores(const cpu_set_t *set)
{
    long max_khz = 0, khz[CPU_SETSIZE];
    int n = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        khz[cpu] = -1;
        if (!CPU_ISSET(cpu, set)) continue;
        char path[128], line[128];
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", cpu);
        int first = cpu;
        if (read_line(path, line, sizeof line)) first = atoi(line);
        if (first != cpu && first >= 0 && first < CPU_SETSIZE && CPU_ISSET(first, set)) continue;
        khz[cpu] = 0;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/cpufreq/cpuinfo_max_freq", cpu);
        if (read_line(path, line, sizeof line)) khz[cpu] = atol(line);
        if (khz[cpu] > max_khz) max_khz = khz[cpu];
    }
    /* Cores below 70 % of the fastest are efficiency cores; turbo bins of equal cores stay within that. */
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) n += khz[cpu] >= 0 && khz[cpu] * 10 >= max_khz * 7;
    return n;
}

int m5_cpu_count(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    int n = sched_getaffinity(0, sizeof set, &set) == 0 ? physical_cores(&set) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    int quota = cgroup_cpus();
    if (quota > 0 && quota < n) n = quota;
    return n < 1 ? 1 : n;
}

uint64_t m5_memory_total_bytes(void)
{
    uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    char dir[600], path[700], line[128];
    cgroup_dir(dir, sizeof dir);
    while (dir[0]) {
        snprintf(path, sizeof path, "%s/memory.max", dir);
        unsigned long long limit;
        if (read_line(path, line, sizeof line) && sscanf(line, "%llu", &limit) == 1 && limit > 0 && limit < total) total = limit;
        char *slash = strrchr(dir, '/');
        if (!slash || strcmp(dir, "/sys/fs/cgroup") == 0) break;
        *slash = '\0';
    }
    return total;
}

uint64_t m5_memory_rss_bytes(void)
{
    char line[128];
    unsigned long long size, resident;
    if (!read_line("/proc/self/statm", line, sizeof line) || sscanf(line, "%llu %llu", &size, &resident) != 2) return 0;
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

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

int m5_cpu_count(void)
{
    int n = 0;
#ifdef __APPLE__
    size_t len = sizeof n;
    if (sysctlbyname("hw.perflevel0.physicalcpu", &n, &len, NULL, 0) != 0) n = 0;
#endif
    if (n < 1) n = (int)sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n;
}

uint64_t m5_memory_total_bytes(void)
{
#ifdef __APPLE__
    uint64_t total = 0;
    size_t len = sizeof total;
    if (sysctlbyname("hw.memsize", &total, &len, NULL, 0) == 0) return total;
#endif
    return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

uint64_t m5_memory_rss_bytes(void)
{
    return 0;
}

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
