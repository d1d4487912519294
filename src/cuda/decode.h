/*
 * What the decode kernels and their launches agree on.
 */
#ifndef FATTN_CUDA_DECODE_H
#define FATTN_CUDA_DECODE_H

#include "core/kernel.h"

enum {
    DECODE_WARPS = 4,
    DECODE_THREADS = 32 * DECODE_WARPS,
    DECODE_ROWS_MOST = 16 * DECODE_WARPS, /* of the queries of a key/value head */
    DECODE_CHUNK = 512,                   /* keys of a unit: measured beside 128 .. 2048 */
    DECODE_RUN = 16,                      /* keys that are looked up in a page table at once */
    DECODE_JOIN_WARPS = 8,                /* of a row when its chunks are joined */
    DECODE_JOIN_THREADS = 32 * DECODE_JOIN_WARPS,
    DECODE_SIZES_COUNT = 4
};

/* The sizes of kernels: X(name, dims padded, columns of values, then of numbers of 16 bits and of bytes: keys of a warp's tile,
 * and tiles that it has room for). */
#define DECODE_SIZES(X)                                                                                                        \
    X(64, 64, 64, 32, 2, 32, 4)                                                                                                \
    X(128, 128, 128, 32, 1, 32, 2)                                                                                             \
    X(256, 256, 256, 16, 1, 16, 2)                                                                                             \
    X(512, 512, 256, 16, 1, 16, 2)

/* Bytes of shared memory: tiles of K and V of numbers of `size` bytes, 16 * row_tiles rows of Q, places of these, and factors
 * of keys. Sums of the block's warps take the place of tiles and Q. */
#define DECODE_SHARED(dim, width, keys, stages, size, row_tiles)                                                               \
    (DECODE_WARPS * (stages) * (keys) * (((dim) + (width)) * (size) + 8) + 16 * (row_tiles) * ((dim)*2 + 32))

/* Whether dividing the keys is faster than tiles of rows that no other block helps with. */
bool cuda_decode_divides(const fattn_problem *problem);

/* What a launch says besides the problem. */
typedef struct decode_call {
    int64_t chunks, widths;            /* of a sequence's keys; of columns of values */
    int64_t pages;                     /* in a row of the page table */
    int32_t row_tiles;                 /* of 16 rows: 1, 2 or 4. As many warps share a tile of keys */
    int32_t adjusted;                  /* scores or probabilities are more than products and powers, factors aside */
    int32_t q_lines, k_lines, v_lines; /* every row begins at a multiple of 16 bytes and is whole pieces of 16 */
    float *sums;                       /* [batch][heads_kv][chunks][rows of a list][dim_v]; rows: group * seq_q */
    float *ends;                       /* [batch][heads_kv][chunks][rows of a list][2]: largest score and sum of powers */
} decode_call;

#endif
