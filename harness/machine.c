/*
 * The machine's name, caches, clock and CPUs; see machine.h.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* CPU_COUNT */
#endif
#include "machine.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fattn/fattn.h"

void machine_cpu_name(char *text, size_t size)
{
    snprintf(text, size, "unknown processor");
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file)
        return;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (!colon || strncmp(line, "model name", 10) != 0)
            continue;
        line[strcspn(line, "\n")] = '\0';
        colon += 1 + strspn(colon + 1, " \t");
        snprintf(text, size, "%s", colon);
        break;
    }
    fclose(file);
}

size_t machine_cache(int level)
{
#ifdef _SC_LEVEL1_DCACHE_SIZE
    const int names[] = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE, _SC_LEVEL3_CACHE_SIZE};
    const long bytes = sysconf(names[level - 1]);
    return bytes > 0 ? (size_t)bytes : 0;
#else
    return 0 * (size_t)level;
#endif
}

int machine_cpus(void)
{
#ifdef __linux__
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
#endif
    const long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (int)count : 1;
}

double machine_seconds(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

vector_unit machine_unit(const char *kernel, uint32_t features)
{
    if (strstr(kernel, "_avx512"))
        return UNIT_AVX512;
    if (strstr(kernel, "_avx2"))
        return UNIT_AVX2;
    if (strstr(kernel, "_generic"))
        return UNIT_BASE;
    return features & FATTN_CPU_AVX512 ? UNIT_AVX512 : features & FATTN_CPU_AVX2 ? UNIT_AVX2 : UNIT_BASE;
}
