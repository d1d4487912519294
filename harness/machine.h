/*
 * The machine: its name, its caches, and how fast it multiplies and reads. What attention's speed is compared with.
 *
 * Other programs and virtual machines share the hardware, so everything is measured in windows of some 40 microseconds and
 * the best window counts: how fast the machine is when left alone.
 */
#ifndef HARNESS_MACHINE_H
#define HARNESS_MACHINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* "AMD EPYC 9555", or "unknown processor". */
void machine_cpu_name(char *text, size_t size);

/* Bytes of the data cache of level 1, 2 or 3; 0 if the system does not say. */
size_t machine_cache(int level);

/* Threads worth measuring with: CPUs that this process may use. */
int machine_cpus(void);

double machine_seconds(void);

/* Vector units, by what a kernel is compiled for. */
typedef enum vector_unit {
    UNIT_BASE,  /* x86: SSE2, a multiplication and an addition each; elsewhere: what the compiler uses by default */
    UNIT_AVX2,  /* 8 floats, fused multiply-add */
    UNIT_AVX512 /* 16 floats */
} vector_unit;

/* The unit that a kernel uses, by its name: ..._avx512_..., ..._avx2_..., ..._generic_...; the best that the CPU has for
 * any other name. features: FATTN_CPU_... bits. */
vector_unit machine_unit(const char *kernel, uint32_t features);

/* The most floating point operations per second, in 1e9, of `threads` threads at once: the sum of every thread's best
 * window. threads above machine_cpus() count as that many. */
double machine_fma_peak(vector_unit unit, bool f64, int threads, double seconds);

/* Bytes read per second, in 1e9, by `threads` threads that each read through their part of `bytes` over and over: the best
 * pass. Returns 0 without memory. */
double machine_read_bandwidth(vector_unit unit, size_t bytes, int threads, double seconds);

#endif
