/*
 * What joining partial results is made of, whoever runs it: the call, the places of its rows, and the weights of a row's
 * partials. merge.c has the formulas.
 */
#ifndef FATTN_CORE_MERGE_H
#define FATTN_CORE_MERGE_H

#include <math.h>

#include "core/convert.h"
#include "core/kernel.h"

/* Either call, checked; forward leaves what belongs to gradients unset. */
typedef struct fattn_merging {
    int64_t batch, heads, rows, dim; /* of out; 1 and total_q where the rows are packed */
    int32_t count;
    int32_t type, out_dtype; /* of partials and of numbers per row; of out and dout */
    bool backward;
    const fattn_view *outs;
    const void *const *lses;
    fattn_view out;
    const void *lse; /* forward writes it, or it is NULL */
    fattn_view dout;
    const void *dlse;
    const fattn_view *douts;
    void *const *dlses;
    int64_t block; /* rows of a unit on the CPU */
    void *stream;  /* of a GPU */
} fattn_merging;

FATTN_INLINE int64_t fattn_merging_rows(const fattn_merging *m)
{
    return m->batch * m->heads * m->rows;
}

/* A row of the result: of which sequence and head, and its place among the numbers per row. */
typedef struct fattn_merge_place {
    int64_t b, h, i, n;
} fattn_merge_place;

FATTN_INLINE fattn_merge_place fattn_merge_place_of(const fattn_merging *m, int64_t n)
{
    return (fattn_merge_place){n / m->rows / m->heads, n / m->rows % m->heads, n % m->rows, n};
}

FATTN_INLINE void *fattn_merge_row(const fattn_view *view, int32_t dtype, const fattn_merge_place *at)
{
    return fattn_row(view, fattn_dtype_size(dtype), at->b, at->h, at->i);
}

FATTN_INLINE double fattn_merge_number(const fattn_merging *m, const void *numbers, const fattn_merge_place *at)
{
    return fattn_element(numbers, m->type, at->n);
}

/* exp(lse - whole), and 1 rather than NaN where both are the same infinity. */
FATTN_INLINE double fattn_merge_weight(double lse, double whole)
{
    return lse == whole ? 1 : exp(lse - whole);
}

/* The largest lse of a row's partials, and the sum of their weights so far, exp(lse - largest). */
typedef struct fattn_merge_weights {
    double largest, total;
} fattn_merge_weights;

/* Before any is weighed. A NaN is passed over, and reaches the row by its weight. */
FATTN_INLINE fattn_merge_weights fattn_merge_weights_of(const fattn_merging *m, const fattn_merge_place *at)
{
    double largest = -(double)INFINITY;
    for (int32_t p = 0; p < m->count; p++) {
        const double lse = fattn_merge_number(m, m->lses[p], at);
        largest = lse > largest ? lse : largest;
    }
    return (fattn_merge_weights){largest, 0};
}

/* Adds a partial's weight. False: it adds nothing to the row, whatever its numbers are, being empty or infinitely outweighed.
 */
FATTN_INLINE bool fattn_merge_weigh(fattn_merge_weights *all, double lse, double *weight)
{
    if (lse == -(double)INFINITY)
        return false;
    *weight = fattn_merge_weight(lse, all->largest);
    if (*weight == 0 && isinf(all->largest))
        return false;
    all->total += *weight;
    return true;
}

/* After all are: of infinite weights one outweighs all else, two are in no proportion. */
FATTN_INLINE void fattn_merge_settle(fattn_merge_weights *all)
{
    if (isinf(all->largest) && all->total > 1)
        all->total = (double)NAN;
}

FATTN_INLINE double fattn_merge_lse(const fattn_merge_weights *all)
{
    return all->total == 0 ? all->largest : all->largest + log(all->total);
}

#endif
