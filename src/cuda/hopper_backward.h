/*
 * What Hopper's backward kernels and their launches agree on.
 */
#ifndef FATTN_CUDA_HOPPER_BACKWARD_H
#define FATTN_CUDA_HOPPER_BACKWARD_H

#include <stdint.h>

enum {
    HOPPER_BACKWARD_THREADS = 512, /* four warpgroups */
    HOPPER_PASS_THREADS = 256,     /* of the passes before and after */
    HOPPER_BACKWARD_KEYS = 128,    /* of a tile: two warpgroups' */
    HOPPER_BACKWARD_ROOM = 512,    /* bytes of what the warpgroups tell each other, and of barriers */
    HOPPER_ROW_NUMBERS = 4,        /* of 4 bytes, for each row: see hopper_backward.cuh */
    HOPPER_TILE_WARPS = 8          /* that hold a tile's keys, 16 each */
};

/* Rows of a block; a block of sums of dQ, rows * dim, is 32 KiB. */
#define HOPPER_BACKWARD_ROWS(dim) ((dim) == 64 ? 128 : 64)

/* Shared memory: two tiles of K and one of V; two blocks each of Q, dO and dS; a block of sums of dQ where they are added in
 * order; numbers of two blocks' rows. */
#define HOPPER_BACKWARD_SHARED(dim, ordered)                                                                                   \
    (3 * HOPPER_BACKWARD_KEYS * (dim)*2 + 4 * HOPPER_BACKWARD_ROWS(dim) * (dim)*2 +                                            \
     2 * HOPPER_BACKWARD_ROWS(dim) * HOPPER_BACKWARD_KEYS * 2 + (ordered)*HOPPER_BACKWARD_ROWS(dim) * (dim)*4 +                \
     2 * HOPPER_BACKWARD_ROWS(dim) * HOPPER_ROW_NUMBERS * 4 + HOPPER_BACKWARD_ROOM)

/* What the launches say besides the problem. A head's blocks of rows are numbered through all sequences; those of packed
 * sequence b begin at cu_seqlens_q[b] / rows + b, so that each has blocks of its own. Block number `head * blocks + block` is
 * meant where an array holds something for each block of each head. */
typedef struct hopper_backward_call {
    int64_t blocks;       /* of a head */
    int32_t row_blocks;   /* of the longest sequence */
    int32_t key_tiles;    /* likewise */
    int32_t tiles;        /* key_tiles * heads_kv * batch */
    int32_t together;     /* key/value heads whose tiles are taken side by side, the first keys of all of them first */
    int32_t q_map, k_map; /* TMA can read the tensor */
    int32_t v_map, dout_map;
    int32_t out_lines, dout_lines; /* rows are whole, aligned pieces of 16 bytes, of 16-bit numbers */
    int32_t dq_lines, dk_lines, dv_lines;
    /* The workspace. */
    float *sums;     /* dQ without scale: [heads * blocks][rows * dim], in the order of the tensor cores' registers */
    float *numbers;  /* [heads * blocks][HOPPER_ROW_NUMBERS][rows] */
    float *delta;    /* like lse */
    int32_t *spans;  /* [blocks][4], see hopper_backward.cuh */
    int32_t *turns;  /* [heads * blocks]: tiles of keys that have added to the block's sums */
    uint32_t *wrong; /* [tiles][HOPPER_TILE_WARPS]: which of a warp's keys are to be computed by themselves */
    int32_t *next;   /* the next tile that nobody has taken */
} hopper_backward_call;

#endif
