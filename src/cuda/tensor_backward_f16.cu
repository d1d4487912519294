/* Backward of binary16. */
#include "cuda/tensor_backward_kernels.cuh"

GRADIENTS_BEGIN(__half)

#define KERNELS(name, dim, share, tile, stages, rooms, tile_adjusted, blocks)                                                  \
    GRADIENTS(tensor_gradients_##name, __half, false, blocks, dim, share, tile, stages, rooms)                                 \
    GRADIENTS(tensor_gradients_##name##_adjusted, __half, true, 1, dim, share, tile_adjusted, stages, 2)

TENSOR_GRAD_SIZES_F16(KERNELS)
