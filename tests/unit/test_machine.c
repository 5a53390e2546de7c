/* SPDX-License-Identifier: Apache-2.0 */
/* base/machine.c: cores and memory that the system grants, from made-up system files: control groups of both versions, hyperthreads, slow cores. */
#define _GNU_SOURCE
#include "base/task.h"
#include "t.h"

#include <ftw.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_CPU = 32, GIB = 30 };

static char root[64];

static void put(const char *path, const char *text)
{
    char full[512];
    const int n = snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(root) + 1; p < full + n; p++) {
        if (*p != '/') continue;
        *p = '\0';
        mkdir(full, 0700);
        *p = '/';
    }
    FILE *f = fopen(full, "w");
    T_CHECK(f && fputs(text, f) >= 0, "cannot write %s", full);
    if (f) fclose(f);
}

static void put_cpu(int cpu, const char *file, const char *text)
{
    char path[128];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/%s", cpu, file);
    put(path, text);
}

static void begin(void)
{
    snprintf(root, sizeof root, "/tmp/m5-machine-XXXXXX");
    T_CHECK(mkdtemp(root) != NULL, "no folder");
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static void end(void)
{
    T_EQ_INT(nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS), 0);
}

static m5_cpus count(int first, int last)
{
    bool allowed[MAX_CPU] = {false};
    for (int i = first; i <= last; i++) allowed[i] = true;
    return m5_cpus_in(root, allowed, MAX_CPU);
}

static void expect(const char *what, m5_cpus c, int n_usable, int n_fast)
{
    T_CHECK(c.n_usable == n_usable && c.n_fast == n_fast, "%s: %d usable, %d fast, not %d, %d", what, c.n_usable, c.n_fast, n_usable, n_fast);
}

static void test_plain(void)
{
    begin();
    expect("no files at all", count(0, 7), 8, 8);
    expect("affinity", count(2, 4), 3, 3);
    bool none[1] = {false};
    expect("nothing allowed", m5_cpus_in(root, none, 1), 1, 1);
    T_EQ_INT((int)(m5_memory_limit_in(root, (uint64_t)8 << GIB) >> GIB), 8);
    end();
}

static void test_group_v2(void)
{
    begin();
    put("/proc/self/cgroup", "0::/system.slice/m5.service\n");
    put("/sys/fs/cgroup/system.slice/m5.service/cpu.max", "max 100000\n");
    expect("no quota", count(0, 7), 8, 8);
    put("/sys/fs/cgroup/system.slice/m5.service/cpu.max", "250000 100000\n");
    expect("2.5 cores", count(0, 7), 3, 3);
    put("/sys/fs/cgroup/system.slice/cpu.max", "100000 100000\n");
    expect("one core in the group above", count(0, 7), 1, 1);
    put("/sys/fs/cgroup/system.slice/cpu.max", "1000 100000\n");
    expect("a hundredth", count(0, 7), 1, 1);
    put("/sys/fs/cgroup/system.slice/cpu.max", "nonsense\n");
    expect("damaged", count(0, 7), 3, 3);
    expect("quota above the mask", count(0, 1), 2, 2);
    put("/sys/fs/cgroup/system.slice/m5.service/memory.max", "max\n");
    T_EQ_INT((int)(m5_memory_limit_in(root, (uint64_t)8 << GIB) >> GIB), 8);
    put("/sys/fs/cgroup/system.slice/memory.max", "3221225472\n");
    T_EQ_INT((int)(m5_memory_limit_in(root, (uint64_t)8 << GIB) >> GIB), 3);
    end();
    begin();
    /* A container that sees its host's path but has only its own files. */
    put("/proc/self/cgroup", "0::/docker/0123456789abcdef\n");
    put("/sys/fs/cgroup/cpu.max", "400000 100000\n");
    expect("container", count(0, 15), 4, 4);
    end();
}

static void test_group_v1(void)
{
    begin();
    put("/proc/self/cgroup", "5:memory:/docker/x\n4:cpuset:/\n2:cpu,cpuacct:/docker/x\n0::/\n");
    put("/sys/fs/cgroup/unified/cgroup.procs", "");
    put("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "100000\n");
    expect("no quota", count(0, 7), 8, 8);
    put("/sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "150000\n");
    expect("1.5 cores", count(0, 7), 2, 2);
    put("/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "9223372036854771712\n");
    T_EQ_INT((int)(m5_memory_limit_in(root, (uint64_t)8 << GIB) >> GIB), 8);
    put("/sys/fs/cgroup/memory/docker/x/memory.limit_in_bytes", "2147483648\n");
    T_EQ_INT((int)(m5_memory_limit_in(root, (uint64_t)8 << GIB) >> GIB), 2);
    put("/sys/fs/cgroup/unified/cpu.max", "100000 100000\n");
    expect("version 2 beside it", count(0, 7), 1, 1);
    end();
}

static void test_hyperthreads(void)
{
    begin();
    for (int i = 0; i < 8; i++) put_cpu(i, "topology/thread_siblings_list", (const char *[]){"0,4", "1,5", "2,6", "3,7"}[i % 4]);
    expect("pairs", count(0, 7), 8, 4);
    expect("second halves alone", count(4, 7), 4, 4);
    expect("one and a half cores", count(3, 5), 3, 3);
    for (int i = 0; i < 8; i++) put_cpu(i, "topology/thread_siblings_list", i < 4 ? "0-3" : "4-7");
    expect("fours", count(0, 7), 8, 2);
    expect("two of four", count(1, 2), 2, 1);
    end();
}

static void test_slow_cores(void)
{
    begin();
    for (int i = 0; i < 8; i++) put_cpu(i, "cpu_capacity", i < 4 ? "250\n" : i < 7 ? "850\n" : "1024\n");
    /* Clocks say less than capacities: a slow core may run at a high one. */
    for (int i = 0; i < 8; i++) put_cpu(i, "cpufreq/cpuinfo_max_freq", "2000000\n");
    expect("Arm, three sizes", count(0, 7), 8, 4);
    expect("only slow ones allowed", count(0, 3), 4, 4);
    end();
    begin();
    for (int i = 0; i < 8; i++) put_cpu(i, "cpufreq/cpuinfo_max_freq", i < 4 ? "3000000\n" : i < 6 ? "2700000\n" : "1800000\n");
    expect("by clock, with turbo bins", count(0, 7), 8, 6);
    end();
    begin();
    /* An Intel hybrid: four fast cores with two threads each, four slow cores at 75 % of the clock. */
    put("/sys/devices/cpu_core/cpus", "0-7\n");
    put("/sys/devices/cpu_atom/cpus", "8-11\n");
    for (int i = 0; i < 12; i++) {
        char pair[16];
        snprintf(pair, sizeof pair, i < 8 ? "%d-%d\n" : "%d\n", i < 8 ? i / 2 * 2 : i, i / 2 * 2 + 1);
        put_cpu(i, "topology/thread_siblings_list", pair);
        put_cpu(i, "cpufreq/cpuinfo_max_freq", i < 8 ? "5200000\n" : "3900000\n");
    }
    expect("Intel hybrid", count(0, 11), 12, 4);
    expect("its slow cores alone", count(8, 11), 4, 4);
    put("/proc/self/cgroup", "0::/\n");
    put("/sys/fs/cgroup/cpu.max", "300000 100000\n");
    expect("with a quota", count(0, 11), 3, 3);
    end();
}

int main(void)
{
    test_plain();
    test_group_v2();
    test_group_v1();
    test_hyperthreads();
    test_slow_cores();
    const m5_cpus c = m5_cpus_get();
    T_CHECK(c.n_usable >= 1 && c.n_fast >= 1 && c.n_fast <= c.n_usable, "%d usable, %d fast", c.n_usable, c.n_fast);
    T_EQ_INT(m5_cpu_count(), c.n_fast);
    return t_done();
}
