/*
 * CPU features of machines whose kernels need no bit: aarch64, where NEON always is, and all that run the portable C.
 */
#include "core/system.h"

uint32_t fattn_cpu_features(void)
{
    return 0;
}
