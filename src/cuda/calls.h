/*
 * What the kernels of the calls beside forward and backward agree on with their launches.
 */
#ifndef FATTN_CUDA_CALLS_H
#define FATTN_CUDA_CALLS_H

#include "core/merge.h"

enum {
    CALLS_THREADS = 256,
    CALLS_WARP = 32,
    MERGE_PARTS = 96,            /* that a launch joins: the parameters of a kernel have 4 KB */
    MERGE_HALF = MERGE_PARTS / 2 /* that a launch of the gradient takes */
};

/* A call, and its lists by value: views[p] and numbers[p] are outs and lses; the gradient's douts and dlses stand MERGE_HALF
 * further. */
typedef struct merge_launch {
    fattn_merging call; /* whose own lists are the host's */
    fattn_view views[MERGE_PARTS];
    void *numbers[MERGE_PARTS];
} merge_launch;

#endif
