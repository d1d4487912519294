/*
 * One row: a key widened, the end of a softmax with sinks and lse, and the way out for rows that tiles cannot treat exactly.
 */
#ifndef FATTN_CPU_ROW_H
#define FATTN_CPU_ROW_H

#include "adjust.h"

/* The end of a row's softmax, in double: what O must be multiplied with, and lse. */
typedef struct row_end {
    double factor, lse;
} row_end;

/* l: the sum of probabilities, r: what they refer to, in log2 units; l == 0: no score above -inf. A sink is one more logit. */
static row_end end_row(const fattn_problem *problem, const fattn_launch *at, int64_t h, double l, double r)
{
    const bool has_sink = (problem->desc.flags & FATTN_WITH_SINKS) != 0;
    const double sink = has_sink ? (double)at->sinks[h] : -(double)INFINITY;
    if (l == 0)
        return (row_end){0, sink};
    const double above = sink * LOG2E - r;
    if (!(above > 0)) {
        const double total = l + (has_sink ? exp2(above) : 0);
        return (row_end){1 / total, REAL_LOG(total) + r * LN2};
    }
    const double small = exp2(-above), total = l * small + 1;
    return (row_end){small / total, REAL_LOG(total) + sink};
}

/* Key `key` of key/value head h, of K or V, as `dim` numbers of this file's type. scales: of bytes. */
static void widen_key(const fattn_problem *problem, const fattn_launch *at, const fattn_view *view, const float *scales,
                      const fattn_sequence *s, int64_t h, int64_t key, int64_t dim, real *to)
{
    const int32_t dtype = problem->desc.kv_dtype;
    const real factor = scales ? (real)scales[fattn_scale_index(problem, at, s, h, key)] : 1;
    widen(to, fattn_key_row(problem, at, view, fattn_dtype_size(dtype), s, h, key), dtype, dim, factor);
}

/* The score of a row with one key, in log2 units. q: [dim]; k: room for the key. */
static double score_alone(const fattn_problem *problem, const fattn_launch *at, const fattn_sequence *s, const place *lane,
                          int64_t key, const real *q, real *k)
{
    const fattn_desc *desc = &problem->desc;
    widen_key(problem, at, &at->k, at->k_scales, s, lane->h / problem->group, key, desc->dim, k);
    double x = 0;
    for (int64_t d = 0; d < desc->dim; d++)
        x += (double)q[d] * (double)k[d];
    return fattn_score(problem, at, s, lane->h, lane->i, key, x * desc->scale) * LOG2E;
}

/* out of one row again, number by number: in a tile, P = 0 for a key that the row does not keep still meets that key's value,
 * and 0 times a NaN or an infinity is NaN. Its reference is its own: the tile's is rounded to real, which for large scores is
 * far from them in log2 units. */
static void row_alone(const fattn_problem *problem, const fattn_launch *at, const fattn_sequence *s, const place *lane,
                      real *out)
{
    const fattn_desc *desc = &problem->desc;
    const fattn_dropout dropout = fattn_dropout_of(desc);
    const fattn_interval keep = fattn_mask_row(&s->mask, lane->i);
    const int64_t h_kv = lane->h / problem->group, list = s->b * desc->heads_q + lane->h;
    double l = 0, r = -(double)INFINITY, sum[FATTN_DIM_MOST] = {0};
    real q[FATTN_DIM_MOST], k[FATTN_DIM_MOST], v[FATTN_DIM_MOST];
    widen(q, fattn_query_row(&at->q, fattn_dtype_size(desc->dtype), s, lane->h, lane->i), desc->dtype, desc->dim, 1);
    for (int64_t key = keep.lo; key < keep.hi; key++)
        r = fmax(r, score_alone(problem, at, s, lane, key, q, k));
    for (int64_t key = keep.lo; key < keep.hi; key++) {
        widen_key(problem, at, &at->v, at->v_scales, s, h_kv, key, desc->dim_v, v);
        const double p = exp2(score_alone(problem, at, s, lane, key, q, k) - r);
        const bool kept = desc->dropout == 0 || fattn_dropout_keeps(&dropout, list, lane->i, key);
        const double weight = p * (kept ? 1 / (1 - desc->dropout) : 0);
        l += p;
        for (int64_t d = 0; d < desc->dim_v; d++)
            sum[d] += weight * (double)v[d];
    }
    const row_end end = end_row(problem, at, lane->h, l, r);
    for (int64_t d = 0; d < desc->dim_v; d++)
        out[d] = (real)(sum[d] * end.factor);
}

#endif
