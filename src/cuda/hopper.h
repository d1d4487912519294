/*
 * What Hopper's kernels and their launches agree on.
 */
#ifndef FATTN_CUDA_HOPPER_H
#define FATTN_CUDA_HOPPER_H

#include <stdint.h>

/* The sizes of forward kernels: X(name, dims padded, warpgroups that compute, 64 rows each, keys of a step, tiles of Q, stages
 * of K and of V). Measured on an H200. */
#define HOPPER_FORWARD_SIZES(X)                                                                                                \
    X(64, 64, 3, 128, 2, 4)                                                                                                    \
    X(128, 128, 2, 128, 2, 2)                                                                                                  \
    X(256, 256, 2, 80, 1, 2)

enum {
    HOPPER_ROWS = 64,     /* of a warpgroup: wgmma's m */
    HOPPER_ABOUT = 64,    /* bytes of what is said of a tile, but for its rows */
    HOPPER_BARRIERS = 256 /* bytes of all barriers */
};

#define HOPPER_THREADS(warpgroups) (128 * ((warpgroups) + 1))

/* Shared memory: Q, or the results that go where it was; K; V; what is said of two tiles, with 8 bytes for each row; barriers.
 */
#define HOPPER_Q_BYTES(dim, warpgroups) (HOPPER_ROWS * (warpgroups) * (dim)*2)
#define HOPPER_ABOUT_BYTES(warpgroups)  (HOPPER_ABOUT + HOPPER_ROWS * (warpgroups)*8)
#define HOPPER_FORWARD_SHARED(dim, warpgroups, keys, tiles, stages)                                                            \
    ((tiles)*HOPPER_Q_BYTES(dim, warpgroups) + (stages) * (keys) * (dim)*4 + 2 * HOPPER_ABOUT_BYTES(warpgroups) +              \
     HOPPER_BARRIERS)

/* What a forward launch says besides the problem. A tile is `warpgroups` times 64 rows of `group` query heads that share keys:
 * row r is row r / group of head r % group among them. Blocks take their tiles in rounds, section after section. */
typedef struct hopper_call {
    int32_t group, group_log2;
    int32_t heads;                                /* groups in a sequence */
    int32_t groups;                               /* heads * batch */
    int32_t tiles;                                /* of a group, in the longest sequence */
    int32_t section;                              /* groups whose tiles are done together: their keys stay in the L2 cache */
    int32_t rounds, skew;                         /* of a section; by how much blocks shift from one section to the next */
    int32_t by_rows;                              /* in a section the last rows of all groups come first: they take longest */
    int32_t q_boxes, k_boxes, v_boxes, out_boxes; /* TMA can express the view */
    int32_t pairs;                                /* two results at an even column of out may be written at once */
} hopper_call;

#endif
