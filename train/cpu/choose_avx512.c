/* Where the loops are compiled for AVX-512 as well. */
#include <stdlib.h>

#include "train/cpu/cpu.h"

/* What the build gives loops_avx512.c. */
static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

device *device_cpu(void)
{
    const char *without = getenv("FATTN_TRAIN_NO_AVX512");
    return has_avx512() && !(without && *without) ? &cpu_device_avx512 : &cpu_device_base;
}
