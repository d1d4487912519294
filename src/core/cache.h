/*
 * What appending to a cache is made of, whoever runs it: the call, the turn of a pair, and numbers as bytes.
 */
#ifndef FATTN_CORE_CACHE_H
#define FATTN_CORE_CACHE_H

#include <float.h>
#include <math.h>

#include "core/kernel.h"

enum { FATTN_BYTE_MOST = 127 };

/* A call, checked. */
typedef struct fattn_appending {
    fattn_problem problem;
    fattn_launch at; /* what says where a row of the cache lies */
    fattn_cache_args args;
    int64_t block; /* new rows of a unit on the CPU */
} fattn_appending;

/* New rows of sequence b. */
FATTN_INLINE int64_t fattn_appending_rows(const fattn_appending *a, int64_t b)
{
    return a->args.used_q ? a->args.used_q[b] : a->problem.desc.seq_q;
}

/* Elements of keys and queries that turn. */
FATTN_INLINE int64_t fattn_appending_turned(const fattn_appending *a)
{
    return a->args.rotary_cos ? a->args.rotary_dim : 0;
}

FATTN_INLINE void fattn_turn(double *x, double *y, double cosine, double sine)
{
    const double a = *x, b = *y;
    *x = a * cosine - b * sine;
    *y = a * sine + b * cosine;
}

/* The largest size among a row's numbers, one more looked at; +inf after one that is not finite. */
FATTN_INLINE double fattn_larger_size(double most, double x)
{
    const double size = fabs(x);
    return size <= most ? most : size <= DBL_MAX ? size : (double)INFINITY; /* NaN is neither */
}

/* The factor of a row of bytes. Below the smallest normal float there are too few digits to scale with, and subnormals count as
 * 0 anyway; a row that is not finite gets NaN, so that whoever reads it has NaN. */
FATTN_INLINE float fattn_byte_factor(double most)
{
    const double factor = most / FATTN_BYTE_MOST;
    return !(factor <= (double)FLT_MAX) ? NAN : factor < (double)FLT_MIN ? 0 : (float)factor;
}

/* A number of a row as a byte; factor > 0. */
FATTN_INLINE int8_t fattn_byte(double x, double factor)
{
    const double shift = 0x1.8p52; /* added to a smaller number, it leaves the nearest whole one, to even */
    return (int8_t)(x / factor + shift - shift);
}

#endif
