/*
 * Usable processors where the system only tells how many are online.
 */
#include <unistd.h>

#include "core/system.h"

int32_t fattn_usable_cpus(void)
{
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online < 1 ? 1 : online > FATTN_THREADS_MOST ? FATTN_THREADS_MOST : (int32_t)online;
}
