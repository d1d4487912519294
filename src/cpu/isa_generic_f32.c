/* The kernels for plain C, float: the words, then the algorithm, then the rows. The build gives this file its flags. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "vec_generic_f32.h"

#include "type_f32.h"

#include "decode.h"

#include "forward.h"

#include "backward.h"

#include "rows.h"

FATTN_KERNEL_TABLE(fattn_cpu_generic_f32, ROWS_F32);
