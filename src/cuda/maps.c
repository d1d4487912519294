/*
 * Views as tensor maps.
 */
#include "cuda/maps.h"

enum { DIMENSIONS = 5 };

/* Bytes from one index of a dimension to the next; where there is one index only any will do. False: TMA cannot. */
static bool stride_of(int64_t size, int64_t elements, cuuint64_t *bytes)
{
    *bytes = 16;
    if (size == 1)
        return true;
    if (elements <= 0 || elements >= ((int64_t)1 << 40) / 2 || elements % 8 != 0)
        return false;
    *bytes = (cuuint64_t)(elements * 2);
    return true;
}

bool cuda_map_encode(CUtensorMap *map, int32_t dtype, const fattn_view *view, cuda_map_shape shape)
{
    const CUtensorMapDataType type = dtype == FATTN_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    const int64_t sizes[DIMENSIONS] = {shape.columns, shape.group, shape.rows, shape.heads / shape.group, shape.batch};
    const int64_t steps[DIMENSIONS] = {1, view->stride_head, view->stride_row, shape.group * view->stride_head,
                                       view->stride_batch};
    const cuuint32_t box[DIMENSIONS] = {CUDA_MAP_COLUMNS, (cuuint32_t)shape.group, (cuuint32_t)(shape.box_rows / shape.group),
                                        1, 1};
    const cuuint32_t every[DIMENSIONS] = {1, 1, 1, 1, 1};
    cuuint64_t dimensions[DIMENSIONS], strides[DIMENSIONS];
    for (int i = 0; i < DIMENSIONS; i++) {
        if (sizes[i] < 1 || sizes[i] > INT32_MAX || (i > 0 && !stride_of(sizes[i], steps[i], &strides[i - 1])))
            return false;
        dimensions[i] = (cuuint64_t)sizes[i];
    }
    if ((uintptr_t)view->data % 16 != 0)
        return false;
    return gpu_driver()->cuTensorMapEncodeTiled(map, type, DIMENSIONS, view->data, dimensions, strides, box, every,
                                                CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                                CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}
