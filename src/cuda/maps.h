/*
 * Tensor maps: how TMA, Hopper's copies of whole boxes, sees a view.
 */
#ifndef FATTN_CUDA_MAPS_H
#define FATTN_CUDA_MAPS_H

#include "cuda/cuda.h"

enum { CUDA_MAP_COLUMNS = 64 }; /* of a box: 128 bytes, the unit that is swizzled */

/* A view as TMA's dimensions {columns, group, rows, heads / group, batch}, so that `group` heads that follow each other and
 * rows of them can be one box: {CUDA_MAP_COLUMNS, group, box_rows / group, 1, 1}, in shared memory box_rows rows of 128 bytes,
 * swizzled; row i * group + g is row i of the box's head g. */
typedef struct cuda_map_shape {
    int64_t columns, heads, rows, batch; /* none 0 */
    int group, box_rows;                 /* group divides heads and box_rows; box_rows / group is at most 256 */
} cuda_map_shape;

/* False where TMA cannot express the view: it wants 16-byte alignment of every row, strides above 0 and less than 2^40 bytes.
 */
bool cuda_map_encode(CUtensorMap *map, int32_t dtype, const fattn_view *view, cuda_map_shape shape);

#endif
