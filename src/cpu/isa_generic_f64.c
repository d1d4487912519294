/* The kernels for plain C, double: the words, then the algorithm, then the rows. The build gives this file its flags. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "vec_generic_f64.h"

#include "type_f64.h"

#include "decode.h"

#include "forward.h"

#include "backward.h"

#include "rows.h"

FATTN_KERNEL_TABLE(fattn_cpu_generic_f64, ROWS_F64);
