/*
 * Forward of a row by itself, number by number and in double: what a tile cannot do where keys that the row does not keep hold
 * an infinity or a NaN, or where scores are so far from 0 that floats do not hold their distances.
 */
#ifndef FATTN_CUDA_ALONE_CUH
#define FATTN_CUDA_ALONE_CUH

#include "cuda/tensor.cuh"

/* The end of a row's softmax, in double: what O is multiplied with, and lse. m: in log2 units. */
struct row_end {
    double factor, lse;
};

__device__ inline row_end end_row(const fattn_problem &problem, const fattn_launch &at, int head, double l, double m)
{
    const bool has_sink = (problem.desc.flags & FATTN_WITH_SINKS) != 0;
    const double sink = has_sink ? (double)at.sinks[head] : -(double)INFINITY;
    if (l == 0)
        return {0, sink};
    const double above = sink * LOG2E - m;
    if (!(above > 0)) {
        const double total = l + (has_sink ? exp2(above) : 0);
        return {1 / total, log(total) + m * LN2};
    }
    const double small = exp2(-above), total = l * small + 1;
    return {small / total, log(total) + sink};
}

/* `width` columns from `column` on of one row again, number by number, by a warp. Returns its lse. */
template <int width>
__device__ __forceinline__ double row_alone(const fattn_problem &problem, const fattn_launch &at, long long b, long long column,
                                            const lane_place &lane)
{
    const fattn_desc &d = problem.desc;
    const fattn_sequence seq = fattn_sequence_of(&problem, &at, b);
    const fattn_dropout dropout = fattn_dropout_of(&d);
    const bool bytes = d.kv_dtype == FATTN_I8;
    const int head_kv = (int)(lane.head / problem.group);
    double m = -(double)INFINITY, l = 0, sum[width / 32] = {};
    for (long long key = lane.lo; key < lane.hi; key++)
        m = fmax(m, score_alone(problem, at, seq, lane, key));
    const double reference = m == -(double)INFINITY ? 0 : m; /* every score is -inf, or NaN, which its power stays */
    for (long long key = lane.lo; key < lane.hi; key++) {
        const void *v = fattn_key_row(&problem, &at, &at.v, fattn_dtype_size(d.kv_dtype), &seq, head_kv, key);
        const double p = exp2(score_alone(problem, at, seq, lane, key) - reference);
        double weight = p;
        if (d.dropout != 0)
            weight = fattn_dropout_keeps(&dropout, b * d.heads_q + lane.head, lane.row, key) ? p / (1 - d.dropout) : 0;
        if (bytes)
            weight *= (double)at.v_scales[fattn_scale_index(&problem, &at, &seq, head_kv, key)];
        l += p;
#pragma unroll
        for (int i = 0; i < width / 32; i++) {
            const long long c = column + threadIdx.x % 32 + 32 * i;
            if (c < d.dim_v)
                sum[i] += weight * (double)load_number(v, d.kv_dtype, c);
        }
    }
    const row_end end = end_row(problem, at, lane.head, l, m);
    void *out = fattn_query_row(&at.out, fattn_dtype_size(d.out_dtype), &seq, lane.head, lane.row);
#pragma unroll
    for (int i = 0; i < width / 32; i++) {
        const long long c = column + threadIdx.x % 32 + 32 * i;
        if (c < d.dim_v)
            store_number(out, d.out_dtype, c, l == 0 ? 0.0f : (float)(sum[i] * end.factor));
    }
    return end.lse;
}

#endif
