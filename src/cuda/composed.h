/*
 * What the kernels of the composed baseline and their launches agree on. composed.c says what it is.
 */
#ifndef FATTN_CUDA_COMPOSED_H
#define FATTN_CUDA_COMPOSED_H

#include "core/kernel.h"

enum {
    COMPOSED_THREADS = 256,
    COMPOSED_WARP_KEYS = 1024,    /* what a warp holds in registers, 32 for each thread; it takes rows up to that */
    COMPOSED_BLOCK_THREADS = 128, /* these take a longer row together */
    COMPOSED_TEAM_ROWS = 4,       /* rows that a warp, or such a block, takes one after another */
    COMPOSED_PIECE = 16           /* bytes of a row of a tensor that a thread moves or looks at */
};

/* The matrices of a call: row (b, h, i) is number (b heads_q + h) seq_q + i. Scores and gradients of probabilities are floats;
 * probabilities and gradients of scores take their places, in the inputs' type, each row from the same byte on. */
typedef struct composed_matrices {
    float *s, *dp; /* dp: backward */
    float *state;  /* of each row: -inf if it keeps no key with a score above -inf, else 0 */
    const float *delta;
    int64_t pitch; /* floats from row to row; a multiple of 8 */
    int64_t tiles; /* blocks for the rows of one (b, h) */
    float shift;   /* what probabilities are multiplied by, for the range of their type */
} composed_matrices;

/* A tensor that is copied to where products can read it; rows that do not exist become 0. */
typedef struct composed_copy {
    fattn_view from;
    unsigned char *to; /* [batch, heads, rows, pitch] */
    int64_t heads, rows, columns, pitch;
    int64_t pieces; /* of all rows together */
    int32_t dtype, keys;
} composed_copy;

/* A result of a product, sum_k left[k] right[k], that is looked at. */
typedef struct composed_result {
    fattn_view to;
    const unsigned char *from; /* [batch, heads, rows, pitch], where the product put it: `to` itself or a copy */
    const unsigned char *left; /* P or dX, in the inputs' type */
    fattn_view right;          /* what it was multiplied with */
    int64_t heads, rows, columns, pitch;
    int64_t pieces;
    float by; /* the product's factor */
    int32_t dtype;
    int32_t keys;   /* to's rows are keys */
    int32_t copied; /* `from` is not `to` */
    int32_t none;   /* there was no product */
} composed_result;

#ifndef __CUDACC__
extern const fattn_kernel_table fattn_cuda_composed;

/* Whether a list of kernels names one of these. */
bool cuda_composed_is_forced(const char *kernels);
#endif

#endif
