/* SPDX-License-Identifier: Apache-2.0 */
/* What the system lets this process use: cores and memory. Room: m5_cpu_*, m5_memory_* of base/task.h.
 *
 * On Linux three rules limit the cores: the affinity mask (taskset, cpusets), the quota of the control group, and what pays: hyperthreads share
 * the units that matrix products saturate, and slow cores would be waited for. The files are read below a root that tests replace. May touch: libc, base.
 */
#define _GNU_SOURCE
#include "base/task.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef __linux__
#include <sched.h>
#endif
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

enum { PATH_BYTES = 1200, LINE_BYTES = 512, MAX_CPU = 1024 };

/* First line of a small file of the system's, without its newline. */
static bool read_line(const char *root, const char *path, char *buf, size_t cap)
{
    char full[PATH_BYTES];
    if (snprintf(full, sizeof full, "%s%s", root, path) >= (int)sizeof full) return false;
    FILE *f = fopen(full, "re");
    if (!f) return false;
    bool ok = fgets(buf, (int)cap, f) != NULL;
    fclose(f);
    if (ok) buf[strcspn(buf, "\n")] = '\0';
    return ok;
}

/* --- control groups --------------------------------------------------------------------------------------------------------------- */

/* A folder of the control group file system; the first n_mount characters are the mount point, which holds the topmost group that is visible. */
typedef struct group {
    char dir[PATH_BYTES - 100];
    size_t n_mount;
} group;

static bool has_word(const char *list, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = list; *p; p += strcspn(p, ",") + (p[strcspn(p, ",")] == ',')) {
        if (strncmp(p, word, n) == 0 && (p[n] == ',' || p[n] == '\0')) return true;
    }
    return false;
}

/* This process's group: of version 2 with controller NULL, else of that controller's own tree (version 1). */
static bool group_find(group *g, const char *root, const char *controller)
{
    char full[PATH_BYTES], line[LINE_BYTES], mount[LINE_BYTES / 2] = "/sys/fs/cgroup";
    snprintf(full, sizeof full, "%s/proc/self/cgroup", root);
    FILE *f = fopen(full, "re");
    if (!f) return false;
    bool found = false;
    while (!found && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        char *names = strchr(line, ':'), *path = names ? strchr(names + 1, ':') : NULL;
        if (!path) continue;
        *path++ = '\0';
        names++;
        found = controller ? has_word(names, controller) : *names == '\0';
        if (!found) continue;
        /* Beside version 1 trees the version 2 tree has a folder of its own. */
        if (controller)
            snprintf(mount, sizeof mount, "/sys/fs/cgroup/%.200s", names);
        else if (snprintf(full, sizeof full, "%s/sys/fs/cgroup/unified", root) > 0 && access(full, F_OK) == 0)
            snprintf(mount, sizeof mount, "/sys/fs/cgroup/unified");
        g->n_mount = strlen(mount);
        if (snprintf(g->dir, sizeof g->dir, "%s%s", mount, path) >= (int)sizeof g->dir) found = false;
    }
    fclose(f);
    return found;
}

/* To the group above; false when there is none. A container often sees the path of its host, where only the last folder of this walk exists. */
static bool group_up(group *g)
{
    char *slash = strrchr(g->dir, '/');
    if (!slash || (size_t)(slash - g->dir) < g->n_mount) return false;
    *slash = '\0';
    return true;
}

static bool group_number(const group *g, const char *root, const char *file, long long *v, long long *second)
{
    char path[PATH_BYTES], line[LINE_BYTES];
    snprintf(path, sizeof path, "%s/%s", g->dir, file);
    if (!read_line(root, path, line, sizeof line)) return false;
    return second ? sscanf(line, "%lld %lld", v, second) == 2 : sscanf(line, "%lld", v) == 1;
}

/* Cores granted by the smallest quota on the way up, rounded up, or 0 when there is none. */
static int quota_cpus(const char *root)
{
    group g;
    int best = 0;
    for (int version = 2; version >= 1; version--) {
        if (!group_find(&g, root, version == 2 ? NULL : "cpu")) continue;
        do {
            long long quota, period;
            const bool set =
                version == 2 ? group_number(&g, root, "cpu.max", &quota, &period)
                             : group_number(&g, root, "cpu.cfs_quota_us", &quota, NULL) && group_number(&g, root, "cpu.cfs_period_us", &period, NULL);
            if (!set || quota <= 0 || period <= 0) continue;
            const long long cpus = quota / period + (quota % period != 0);
            if (best == 0 || cpus < best) best = cpus > MAX_CPU ? MAX_CPU : (int)cpus;
        } while (group_up(&g));
    }
    return best;
}

uint64_t m5_memory_limit_in(const char *root, uint64_t total)
{
    group g;
    for (int version = 2; version >= 1; version--) {
        if (!group_find(&g, root, version == 2 ? NULL : "memory")) continue;
        do {
            long long limit;
            if (group_number(&g, root, version == 2 ? "memory.max" : "memory.limit_in_bytes", &limit, NULL) && limit > 0 && (uint64_t)limit < total)
                total = (uint64_t)limit;
        } while (group_up(&g));
    }
    return total;
}

/* --- cores ------------------------------------------------------------------------------------------------------------------------ */

/* Whether a list such as "0-3,8" names the CPU. */
static bool list_has(const char *list, int cpu)
{
    for (const char *p = list; *p;) {
        char *end;
        const long low = strtol(p, &end, 10);
        if (end == p) return false;
        const long high = *end == '-' ? strtol(end + 1, &end, 10) : low;
        if (cpu >= low && cpu <= high) return true;
        p = end + strspn(end, ", ");
        if (p == end) return false;
    }
    return false;
}

static bool cpu_line(const char *root, int cpu, const char *file, char *line)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/%s", cpu, file);
    return read_line(root, path, line, LINE_BYTES);
}

/* The first of its hyperthreads that this process may use. */
static bool is_first_sibling(const char *root, const bool *allowed, int cpu)
{
    char line[LINE_BYTES];
    if (!cpu_line(root, cpu, "topology/thread_siblings_list", line)) return true;
    for (int other = 0; other < cpu; other++) {
        if (allowed[other] && list_has(line, other)) return false;
    }
    return true;
}

/* Physical fast cores. How fast a core is: by kind where Intel's hybrids name theirs (their clocks differ too little to tell), else by the capacity
 * that Arm systems state, else by the highest clock. */
static int fast_cores(const char *root, const bool *allowed, int n_cpu)
{
    char line[LINE_BYTES], slow_list[LINE_BYTES];
    if (!read_line(root, "/sys/devices/cpu_atom/cpus", slow_list, sizeof slow_list)) slow_list[0] = '\0';
    bool any_big = false;
    for (int cpu = 0; cpu < n_cpu; cpu++) any_big |= allowed[cpu] && !list_has(slow_list, cpu);
    long speed[MAX_CPU], max = 0;
    for (int cpu = 0; cpu < n_cpu; cpu++) {
        speed[cpu] = -1;
        if (!allowed[cpu] || !is_first_sibling(root, allowed, cpu) || (any_big && list_has(slow_list, cpu))) continue;
        speed[cpu] = 0;
        if (cpu_line(root, cpu, "cpu_capacity", line) || cpu_line(root, cpu, "cpufreq/cpuinfo_max_freq", line)) speed[cpu] = atol(line);
        if (speed[cpu] > max) max = speed[cpu];
    }
    /* Below 70 % of the fastest: efficiency cores. Turbo bins of equal cores stay within that. */
    int n = 0;
    for (int cpu = 0; cpu < n_cpu; cpu++) n += speed[cpu] >= 0 && speed[cpu] * 10 >= max * 7;
    return n;
}

m5_cpus m5_cpus_in(const char *root, const bool *allowed, int n_cpu)
{
    m5_cpus c = {0};
    if (n_cpu > MAX_CPU) n_cpu = MAX_CPU;
    for (int i = 0; i < n_cpu; i++) c.n_usable += allowed[i];
    c.n_fast = fast_cores(root, allowed, n_cpu);
    const int quota = quota_cpus(root);
    if (quota > 0 && quota < c.n_usable) c.n_usable = quota;
    if (quota > 0 && quota < c.n_fast) c.n_fast = quota;
    if (c.n_usable < 1) c.n_usable = 1;
    if (c.n_fast < 1) c.n_fast = 1;
    return c;
}

m5_cpus m5_cpus_get(void)
{
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    m5_cpus c = {.n_usable = online < 1 ? 1 : (int)online, .n_fast = online < 1 ? 1 : (int)online};
#if defined(__linux__)
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) != 0) return c;
    bool allowed[MAX_CPU];
    for (int cpu = 0; cpu < MAX_CPU; cpu++) allowed[cpu] = CPU_ISSET(cpu, &set);
    c = m5_cpus_in("", allowed, MAX_CPU);
#elif defined(__APPLE__)
    int n = 0;
    size_t len = sizeof n;
    if (sysctlbyname("hw.perflevel0.physicalcpu", &n, &len, NULL, 0) == 0 && n > 0) c.n_fast = n;
#endif
    return c;
}

int m5_cpu_count(void)
{
    return m5_cpus_get().n_fast;
}

/* --- memory ----------------------------------------------------------------------------------------------------------------------- */

uint64_t m5_memory_total_bytes(void)
{
    uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
#if defined(__linux__)
    total = m5_memory_limit_in("", total);
#elif defined(__APPLE__)
    size_t len = sizeof total;
    (void)sysctlbyname("hw.memsize", &total, &len, NULL, 0);
#endif
    return total;
}

uint64_t m5_memory_rss_bytes(void)
{
    char line[128];
    unsigned long long size, resident;
    if (!read_line("", "/proc/self/statm", line, sizeof line) || sscanf(line, "%llu %llu", &size, &resident) != 2) return 0;
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}
