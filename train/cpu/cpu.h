/*
 * The operations on the CPU: loops on OpenMP's threads, products by oneDNN. All arithmetic is float. Each loop is a header, and
 * table.h lists them; loops_<set>.c includes that and is compiled for an instruction set, and device_cpu() gives the device
 * with the best that the processor has. FATTN_TRAIN_NO_AVX512, if it is not empty, has it do without AVX-512: tests run both.
 */
#ifndef TRAIN_CPU_CPU_H
#define TRAIN_CPU_CPU_H

#include "train/device.h"

extern device cpu_device_base, cpu_device_avx512;

bool cpu_product(device *d, const product_call *c);
/* Of bf16, m and n not 0, and what is added to C lying there. */
bool cpu_product_bf16(device *d, const product_call *c);

#endif
