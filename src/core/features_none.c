/*
 * CPU features of machines for which there are no special kernels.
 */
#include "core/system.h"

uint32_t fattn_cpu_features(void)
{
    return 0;
}
