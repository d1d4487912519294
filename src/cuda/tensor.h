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

/* Likewise of backward kernels: X(name, dims padded, warps that own the same keys or rows, rows or keys of a tile of the other
 * side, tiles in flight, rooms for weights of 16 bits, rows or keys of a tile where scores are adjusted, which takes
 * registers, blocks that share a processor). */
#define TENSOR_GRAD_SIZES_BF16(X)                                                                                              \
    X(32, 32, 2, 64, 2, 2, 64, 2)                                                                                              \
    X(64, 64, 2, 128, 2, 1, 64, 1)                                                                                             \
    X(128, 128, 2, 64, 2, 2, 32, 1)                                                                                            \
    X(256, 256, 4, 64, 1, 2, 64, 1)
#define TENSOR_GRAD_SIZES_F16(X)                                                                                               \
    X(32, 32, 2, 64, 2, 2, 64, 2)                                                                                              \
    X(64, 64, 2, 64, 2, 2, 64, 1)                                                                                              \
    X(128, 128, 2, 64, 2, 2, 32, 1)                                                                                            \
    X(256, 256, 4, 64, 1, 2, 64, 1)
enum { TENSOR_GRAD_SIZES = 4, TENSOR_GRAD_THREADS = 256, TENSOR_GRAD_ROWS_MOST = 1 << 30 };

/* Keys, or rows, that a unit owns. */
#define TENSOR_GRAD_OWN(share) (32 * (TENSOR_GRAD_THREADS / 32) / (share))

/* Two tensors of a unit's own, tiles of two others, rooms of weights (4 bytes each of binary16), a sequence, records of rows:
 * three tiles' or the unit's own. */
#define TENSOR_GRAD_RECORDS(share, tile)                                                                                       \
    (3 * 12 * (tile) + 96 > 16 * TENSOR_GRAD_OWN(share) ? 3 * 12 * (tile) + 96 : 16 * TENSOR_GRAD_OWN(share))
#define TENSOR_GRAD_SHARED(dim, share, tile, stages, rooms)                                                                    \
    (4 * (TENSOR_GRAD_OWN(share) + (stages) * (tile)) * (dim) + (rooms)*512 * ((tile) / (share)) + 160 +                       \
     TENSOR_GRAD_RECORDS(share, tile))

/* Rows of a strip of the sums of dQ, see tensor_grad_call, and strips of so many rows. */
#define TENSOR_GRAD_STRIP        16
#define TENSOR_GRAD_STRIPS(rows) (((rows) + TENSOR_GRAD_STRIP - 1) / TENSOR_GRAD_STRIP)

/* What a launch says besides the problem. */
typedef struct tensor_call {
    int64_t tiles, widths;             /* of rows or keys, of columns of results */
    int32_t q_lines, k_lines, v_lines; /* every row begins at a multiple of 16 bytes and is whole pieces of 16 */
} tensor_call;

/* The same of a side of backward. */
typedef struct tensor_grad_call {
    int64_t blocks, tiles, heads;                             /* of the launch; of keys or rows; of keys or queries */
    int32_t q_lines, k_lines, v_lines, dout_lines, out_lines; /* out_lines: of out and dout */
    float *sums;    /* of dQ, where keys add to it: [head][strip][dim / 8][16 x 8 as m16n8k16 has them]; else NULL */
    int64_t strips; /* of a head, of all sequences */
} tensor_grad_call;

#endif
