/*
 * What looking at a row is made of, whoever runs it: the call, a score, and what becomes of scores.
 */
#ifndef FATTN_CORE_LOOK_H
#define FATTN_CORE_LOOK_H

#include "core/sequence.h"

/* One row that is looked at. */
typedef struct fattn_looking {
    const fattn_problem *problem;
    const fattn_launch *at;
    int64_t batch, head, row;
    double *scores, *probabilities; /* [seq_k], or NULL */
} fattn_looking;

/* The keys that row i of a sequence keeps: none if it does not exist. */
FATTN_INLINE fattn_interval fattn_looking_keys(const fattn_sequence *s, int64_t i)
{
    const fattn_interval none = {0, 0};
    return i < s->seq_q ? fattn_mask_row(&s->mask, i) : none;
}

/* q . k_j in double, times scale. */
FATTN_INLINE double fattn_looking_product(const fattn_problem *p, const fattn_launch *at, const fattn_sequence *s, int64_t h,
                                          int64_t i, int64_t j)
{
    const fattn_desc *d = &p->desc;
    const int64_t h_kv = h / p->group;
    const void *q = fattn_query_row(&at->q, fattn_dtype_size(d->dtype), s, h, i);
    const void *k = fattn_key_row(p, at, &at->k, fattn_dtype_size(d->kv_dtype), s, h_kv, j);
    double sum = 0;
    for (int64_t x = 0; x < d->dim; x++)
        sum += fattn_element(q, d->dtype, x) * fattn_element(k, d->kv_dtype, x);
    return sum * d->scale * (d->kv_dtype == FATTN_I8 ? (double)at->k_scales[fattn_scale_index(p, at, s, h_kv, j)] : 1);
}

/* The score of row i of head h with key j, before the softmax; keys: those that the row keeps. */
FATTN_INLINE double fattn_looking_score(const fattn_problem *p, const fattn_launch *at, const fattn_sequence *s,
                                        fattn_interval keys, int64_t h, int64_t i, int64_t j)
{
    if (j < keys.lo || j >= keys.hi)
        return -(double)INFINITY;
    return fattn_score(p, at, s, h, i, j, fattn_looking_product(p, at, s, h, i, j));
}

/* The sink of head h: -inf where there is none. */
FATTN_INLINE double fattn_looking_sink(const fattn_desc *d, const fattn_launch *at, int64_t h)
{
    return d->flags & FATTN_WITH_SINKS ? (double)at->sinks[h] : -(double)INFINITY;
}

/* A NaN wins over everything. */
FATTN_INLINE double fattn_larger_score(double a, double b)
{
    return isnan(a) || a > b ? a : b;
}

/* What a score weighs against the row's largest: -inf nothing, whatever that is. */
FATTN_INLINE double fattn_looking_weight(double score, double largest)
{
    return score == -(double)INFINITY ? 0 : exp(score - largest);
}

#endif
