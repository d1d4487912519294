/* The loops for AVX-512. The build gives this file its flags. */
#include "train/cpu/table.h"

device cpu_device_avx512 = {.run = &table, .kind = FATTN_DEVICE_CPU, .chunks = ROW_CHUNKS};
