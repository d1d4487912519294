/* The loops for the processor that the build asks for. */
#include "train/cpu/table.h"

device cpu_device_base = {.run = &table, .kind = FATTN_DEVICE_CPU, .chunks = ROW_CHUNKS};
