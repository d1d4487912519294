/*
 * What the tensor-core kernels of sm_80 and their launches agree on.
 */
#ifndef FATTN_CUDA_TENSOR_H
#define FATTN_CUDA_TENSOR_H

#include <stdint.h>

enum {
    TENSOR_WARPS = 4,
    TENSOR_THREADS = 32 * TENSOR_WARPS,
    TENSOR_SIZES = 4 /* of kernels, by the larger of dim and dim_v: up to 64, 128, 256, 512 */
};

/* The sizes of forward kernels: X(name, dims padded, columns of values, m-tiles of 16 rows per warp, keys of a tile, and the
 * last two where scores are adjusted, which takes registers). Measured on an H200. */
#define TENSOR_FORWARD_SIZES(X)                                                                                                \
    X(64, 64, 64, 2, 64, 1, 64)                                                                                                \
    X(128, 128, 128, 2, 64, 1, 64)                                                                                             \
    X(256, 256, 256, 1, 64, 1, 32)                                                                                             \
    X(512, 512, 256, 1, 32, 1, 32)

/* Rows of a unit, and its bytes of shared memory: Q, two tiles of K and V, places of rows, factors of keys. */
#define TENSOR_ROWS(m_tiles) (16 * TENSOR_WARPS * (m_tiles))
#define TENSOR_FORWARD_SHARED(dim, width, m_tiles, keys)                                                                       \
    (TENSOR_ROWS(m_tiles) * ((dim)*2 + 32) + 2 * (keys) * ((dim) + (width)) * 2 + 4 * (keys)*4)

/* Likewise of backward kernels: X(name, dims padded, columns of results of a unit, rows of a tile that meets keys, keys of a
 * tile that meets rows). */
#define TENSOR_BACKWARD_SIZES(X)                                                                                               \
    X(64, 64, 64, 64, 64)                                                                                                      \
    X(128, 128, 128, 32, 64)                                                                                                   \
    X(256, 256, 128, 32, 32)
enum { TENSOR_BACKWARD_COUNT = 3, TENSOR_OWN = 16 * TENSOR_WARPS };

/* Two tensors of the unit's own rows, two tiles each of two others, and places of rows: two tiles' or the unit's own. */
#define TENSOR_BACKWARD_SHARED(dim, tile) (2 * (TENSOR_OWN + 2 * (tile)) * (dim)*2 + 2 * TENSOR_OWN * 40)

/* What a launch says besides the problem. */
typedef struct tensor_call {
    int64_t tiles, widths;                         /* of rows or keys, of columns of results */
    int32_t q_lines, k_lines, v_lines, dout_lines; /* every row begins at a multiple of 16 bytes and is whole pieces of 16 */
} tensor_call;

#endif
