/*
 * Usable processors on Linux: those of the affinity mask, or fewer where a control group grants less processor time. Containers
 * are such groups: a machine of 64 processors with a quota of 2 runs 64 threads slower than 2.
 *
 * The quota is the least of the process's own group and all groups above it. Version 2 states it in cpu.max ("200000 100000"
 * or "max 100000"), version 1 in cpu.cfs_quota_us and cpu.cfs_period_us. Within a container the path in /proc/self/cgroup may
 * not exist under the mount, and the root of the mount is the container's group; the walk upwards ends there anyhow.
 */
#define _GNU_SOURCE
#include <limits.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/system.h"

static int32_t affinity_count(void)
{
    enum { MASK_CPUS = 16384 };
    static const size_t bytes = MASK_CPUS / 8;
    unsigned long mask[MASK_CPUS / 8 / sizeof(unsigned long)];
    if (sched_getaffinity(0, bytes, (cpu_set_t *)mask) != 0) {
        const long online = sysconf(_SC_NPROCESSORS_ONLN);
        return online < 1 ? 1 : online > FATTN_THREADS_MOST ? FATTN_THREADS_MOST : (int32_t)online;
    }
    const int count = CPU_COUNT_S(bytes, (cpu_set_t *)mask);
    return count < 1 ? 1 : count > FATTN_THREADS_MOST ? FATTN_THREADS_MOST : count;
}

static bool read_line(const char *path, char *line, int size)
{
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    const bool ok = fgets(line, size, file) != NULL;
    fclose(file);
    return ok;
}

/* Processors that a quota is worth, rounded up; FATTN_THREADS_MOST if there is no quota. */
static int32_t quota_count(long long quota, long long period)
{
    if (quota <= 0 || period <= 0 || quota / period >= FATTN_THREADS_MOST)
        return FATTN_THREADS_MOST;
    return (int32_t)((quota + period - 1) / period);
}

static int32_t group_limit(const char *mount, const char *group, bool version_2)
{
    char path[PATH_MAX], line[64];
    long long quota = -1, period = -1;
    if (version_2) {
        snprintf(path, sizeof path, "%s%s/cpu.max", mount, group);
        if (!read_line(path, line, sizeof line) || sscanf(line, "%lld %lld", &quota, &period) != 2)
            return FATTN_THREADS_MOST;
        return quota_count(quota, period);
    }
    snprintf(path, sizeof path, "%s%s/cpu.cfs_quota_us", mount, group);
    if (!read_line(path, line, sizeof line) || sscanf(line, "%lld", &quota) != 1)
        return FATTN_THREADS_MOST;
    snprintf(path, sizeof path, "%s%s/cpu.cfs_period_us", mount, group);
    if (!read_line(path, line, sizeof line) || sscanf(line, "%lld", &period) != 1)
        return FATTN_THREADS_MOST;
    return quota_count(quota, period);
}

/* The least limit of a group and those above it. */
static int32_t path_limit(const char *mount, char *group, bool version_2)
{
    int32_t least = FATTN_THREADS_MOST;
    for (;;) {
        const int32_t limit = group_limit(mount, group, version_2);
        least = limit < least ? limit : least;
        char *slash = strrchr(group, '/');
        if (!slash)
            return least;
        *slash = '\0'; /* "/a/b" to "/a" to "" */
    }
}

/* Whether "cpu" is among the comma-separated controllers. */
static bool has_cpu_controller(const char *controllers)
{
    for (const char *c = controllers; c; c = strchr(c, ',') ? strchr(c, ',') + 1 : NULL)
        if (strncmp(c, "cpu", 3) == 0 && (c[3] == ',' || c[3] == '\0'))
            return true;
    return false;
}

/* Lines read "0::/group" (version 2) or "4:cpu,cpuacct:/group" (version 1). */
static int32_t quota_limit(void)
{
    char line[PATH_MAX + 128];
    int32_t least = FATTN_THREADS_MOST;
    FILE *file = fopen("/proc/self/cgroup", "re");
    if (!file)
        return FATTN_THREADS_MOST;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *controllers++ = '\0';
        *group++ = '\0';
        int32_t limit = FATTN_THREADS_MOST;
        if (*controllers == '\0')
            limit = path_limit("/sys/fs/cgroup", group, true);
        else if (has_cpu_controller(controllers))
            limit = path_limit("/sys/fs/cgroup/cpu", group, false);
        least = limit < least ? limit : least;
    }
    fclose(file);
    return least;
}

int32_t fattn_usable_cpus(void)
{
    const int32_t affinity = affinity_count(), quota = quota_limit();
    return quota < affinity ? quota : affinity;
}
