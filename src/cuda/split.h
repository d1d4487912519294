/*
 * What the kernels for f32 on tensor cores and their launches agree on.
 *
 * A number x is unit (h + 2^-11 l), h and l of binary16, its parts: 23 bits. unit is a power of two, the same for all numbers
 * of a tile of 16 or 32 rows, of which the largest has 2^14 <= h <= 2^15. Products in float are those of parts, the three
 * largest of four. A number below 2^-26 (SPLIT_RANGE) of the largest has fewer bits, the last worth 2^-50 of the largest.
 *
 * A row whose largest number is below 2^-12 (SPLIT_EVEN) of the tile's has a unit of its own, and the tile is uneven: then what
 * is multiplied with a row of it takes its share of the tile's unit, before or after the product. So a number errs by 2^-24 of
 * itself or, if it is smaller, by 2^-39 of the largest of its row, down to rows 2^-40 of the tile's largest (SPLIT_LEAST).
 * Where a quarter or more of a row's numbers, zeros apart, has fewer bits all the same, or a number is not finite, the row is
 * NaN in the list, so that what it takes part in is not finite and is computed by itself (alone.cuh).
 *
 * Q, K, V and dO are split once, into lists in the workspace: the rows of a key/value head's queries, or its keys, one behind
 * the other, each SPLIT_PITCH bytes: the parts of its numbers, each padded to the kernel's dim, and 16 bytes more, so that
 * eight rows of a tile in shared memory, which is a piece of such a list, lie in different banks; there stand split_units. Q
 * has the sign of the scale. Backward also lists what rows bring along (grad_lane), and of each tile of rows the keys that it
 * keeps.
 */
#ifndef FATTN_CUDA_SPLIT_H
#define FATTN_CUDA_SPLIT_H

#include "cuda/tensor.h"

enum { SPLIT_PARTS = 2, SPLIT_DIM_MOST = 256, SPLIT_DIM_MOST_BACKWARD = 128, SPLIT_TENSORS = 4, SPLIT_TILE_MOST = 32 };

#define SPLIT_UNIT(dim)  (2 * SPLIT_PARTS * (dim)) /* bytes from the beginning of a row to its unit */
#define SPLIT_PITCH(dim) (SPLIT_UNIT(dim) + 16)

#define SPLIT_RANGE 0x1p-26f /* numbers below this part of the largest number that their unit is for are too small */
#define SPLIT_EVEN  0x1p-12f /* rows whose largest is below this part of their tile's have units of their own */
#define SPLIT_LEAST 0x1p-40f /* but for no less than this part of it */

/* What stands behind a row's parts; 0 of a row that does not exist. */
typedef struct split_units {
    float row, tile; /* units */
    float share;     /* row / tile */
    int32_t uneven;  /* whether any row of the tile has a share other than 1 */
} split_units;

/* Pieces of eight numbers that a thread has of the lists, and rows that its block has: whole tiles, of at least 1024 numbers.
 */
enum { SPLIT_PIECES = 4 };
#define SPLIT_LIST_ROWS(dim) (TENSOR_THREADS * SPLIT_PIECES * 8 / (dim))

/* The sizes of forward kernels: X(dims padded, then m-tiles of 16 rows per warp, keys of a tile and blocks per multiprocessor
 * that registers are shared among; the same where scores are adjusted). Measured on an H200. */
#define SPLIT_FORWARD_SIZES(X)                                                                                                 \
    X(32, 1, 32, 4, 1, 32, 3)                                                                                                  \
    X(64, 2, 32, 2, 1, 32, 3)                                                                                                  \
    X(128, 1, 32, 2, 1, 32, 2)                                                                                                 \
    X(256, 1, 16, 1, 1, 16, 1)

/* Q, two tiles of K and of V, places of rows. */
#define SPLIT_FORWARD_SHARED(dim, m_tiles, keys) (TENSOR_ROWS(m_tiles) * (SPLIT_PITCH(dim) + 32) + 4 * (keys)*SPLIT_PITCH(dim))

/* Likewise of backward kernels: X(dims padded, then of units that own keys m-tiles and rows of a tile, of those that own rows
 * m-tiles and keys of a tile, and blocks). */
#define SPLIT_BACKWARD_SIZES(X)                                                                                                \
    X(32, 1, 32, 2, 32, 3)                                                                                                     \
    X(64, 1, 32, 2, 32, 1)                                                                                                     \
    X(128, 1, 16, 1, 16, 1)

/* Two tensors of the unit's own rows, two tiles each of two others, what rows bring along, two tiles' or the unit's own, and
 * which tiles meet a unit's keys. */
#define SPLIT_BACKWARD_SHARED(dim, m_tiles, tile)                                                                              \
    (2 * (TENSOR_ROWS(m_tiles) + 2 * (tile)) * SPLIT_PITCH(dim) + 32 +                                                         \
     SPLIT_LANE_BYTES * (TENSOR_ROWS(m_tiles) > 2 * (tile) ? TENSOR_ROWS(m_tiles) : 2 * (tile)))

/* Keys that a tile of rows keeps: rows that keep any lie in [lo, hi), and every row keeps [all_lo, all_hi). */
typedef struct split_span {
    int64_t lo, hi, all_lo, all_hi;
} split_span;

enum { SPLIT_LANE_BYTES = 40 }; /* of a grad_lane */

/* Tile number 0 of list number i, of those of a sequence's key/value head, which begins at row `first` of all rows. */
#define SPLIT_SPANS(first, tile, i) ((first) / (tile) + (i))

/* Where the lists are, and which blocks make each. */
typedef struct split_call {
    int64_t tiles[2];                    /* of own rows (0) and own keys (1), of a unit's list */
    unsigned char *parts[SPLIT_TENSORS]; /* q, k, v, dout */
    unsigned char *lanes;                /* of rows */
    split_span *spans;                   /* of tiles of rows */
    float *delta;                        /* D, in the order of lse */
    int64_t first[SPLIT_TENSORS + 2];    /* the first block of each list; lanes are the last */
    int64_t rows_blocks;                 /* of backward: those that own rows come first */
    int32_t dim;                         /* padded */
    int32_t tile[2]; /* rows of a tile of Q and dO (0), and of K and V (1); a power of two, 16 to SPLIT_TILE_MOST */
} split_call;

#endif
