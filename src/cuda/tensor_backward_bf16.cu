/* Backward of bfloat16. */
#include "cuda/tensor_backward_kernels.cuh"

GRADIENTS_BEGIN(__nv_bfloat16)

#define KERNELS(name, dim, share, tile, stages, rooms, tile_adjusted, blocks)                                                  \
    GRADIENTS(tensor_gradients_##name, __nv_bfloat16, false, blocks, dim, share, tile, stages, rooms)                          \
    GRADIENTS(tensor_gradients_##name##_adjusted, __nv_bfloat16, true, 1, dim, share, tile_adjusted, stages, 2)                \
    UNORDERED(name, __nv_bfloat16, blocks, dim, share, tile, stages, rooms)

TENSOR_GRAD_SIZES_BF16(KERNELS)
