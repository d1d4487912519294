/* Where the loops are compiled once. */
#include "train/cpu/cpu.h"

device *device_cpu(void)
{
    return &cpu_device_base;
}
