/*
 * What the exact kernels and their launches agree on.
 */
#ifndef FATTN_CUDA_EXACT_H
#define FATTN_CUDA_EXACT_H

#include <math.h>

#include "core/inline.h"

enum {
    EXACT_THREADS = 256,
    EXACT_TILE = 64,          /* rows, and keys, of a tile of scores */
    EXACT_WIDTH = 128,        /* columns of a result that one unit computes; wider results take several units */
    EXACT_SHARED_F32 = 44800, /* bytes of shared memory, exact_shared<float> */
    EXACT_SHARED_F64 = 87808
};

/* A power of two about the root of the scale. Gradients of scores are multiplied by it and what is summed up with them by the
 * rest of the scale, so that neither becomes 0 or infinite where the gradients of q and k are not. */
FATTN_INLINE double cuda_exact_lift(double scale)
{
    int exponent = 0;
    if (scale != 0)
        frexp(scale, &exponent);
    return ldexp(1.0, exponent / 2);
}

#ifndef __CUDACC__
#include "core/kernel.h"

/* Launches for other kernels' backward. delta: room for D of every row, float or for FATTN_F64 double, as backward's workspace.
 * cuda_exact_delta sets it, cuda_exact_rest makes dbias and dsinks of it where they are wanted. */
fattn_status cuda_exact_delta(const fattn_problem *problem, const fattn_launch *at, void *delta);
fattn_status cuda_exact_rest(const fattn_problem *problem, const fattn_launch *at, void *delta);

/* Bytes of delta, and whether the grids of these launches are small enough. */
size_t cuda_exact_delta_bytes(const fattn_problem *problem);
bool cuda_exact_rest_fits(const fattn_problem *problem);
#endif

#endif
