/*
 * What backward kernels on tensor cores share: what the rows of a tile bring along, how products become P and dS, and gradients
 * of a row or a key by itself.
 */
#ifndef FATTN_CUDA_TENSOR_GRADIENT_CUH
#define FATTN_CUDA_TENSOR_GRADIENT_CUH

#include "cuda/tensor.cuh"

struct grad_lane { /* 40 bytes */
    lane_place place;
    float lse, delta; /* lse in log2 units */
};

/* A sequence of a call. */
struct grad_problem {
    const fattn_problem *problem;
    const fattn_launch *at;
    const fattn_sequence *seq;
    const float *delta;
    int32_t dtype; /* the problem's, known when a kernel is compiled */
};

__device__ inline const lane_place &kept_by(const grad_lane &lane)
{
    return lane.place;
}

/* Row number `row` of the list of the group's rows, without delta. It has no gradients where there is no row, or no score above
 * -inf. */
__device__ inline grad_lane lane_of(const fattn_problem &problem, const fattn_launch &at, const fattn_sequence &seq,
                                    int head_kv, long long row)
{
    grad_lane lane = {{-1, 0, 0, 0, 0}, 0, 0};
    if (row >= problem.group * seq.seq_q)
        return lane;
    lane.place.head = (int)(head_kv * problem.group + row / seq.seq_q);
    lane.place.row = row % seq.seq_q;
    const long long index = seq.lse_first + lane.place.head * seq.lse_head + lane.place.row;
    const float lse = ((const float *)at.lse)[index];
    const fattn_interval keep = fattn_mask_row(&seq.mask, lane.place.row);
    lane.lse = lse * (float)LOG2E;
    if (lse != -INFINITY) {
        lane.place.lo = keep.lo;
        lane.place.hi = keep.hi;
    }
    return lane;
}

/* -------------------------------------------------------------------------------------------------------------- scores */

/* What becomes of a product of a row with a key that it keeps: a score in log2 units. *bend: softcap's 1 - tanh^2. */
__device__ inline float adjust_score(const grad_problem &g, const scoring &how, const lane_place &place, long long key, float x,
                                     float *bend)
{
    x *= how.scale;
    if (how.capped) {
        const float t = tanhf(x / how.cap);
        x = how.cap * t;
        *bend = 1 - t * t;
    }
    if (how.biased)
        x += load_number(fattn_row(&g.at->bias, fattn_dtype_size(g.dtype), g.seq->b, place.head, place.row), g.dtype, key);
    if (how.sloped) {
        const long long distance = place.row + g.seq->mask.offset - key;
        x -= g.at->slopes[place.head] * (float)(distance < 0 ? -distance : distance);
    }
    return x * (float)LOG2E;
}

/* s: a product q.k becomes P with dropout's factor, what dV is weighted with; dp: a product dO.v becomes dS, without scale.
 * s_unit, dp_unit: what the products are in, powers of two. */
template <bool adjusted>
__device__ __forceinline__ void gradient(const grad_problem &g, const scoring &how, const grad_lane &lane, long long key,
                                         bool whole, float *s, float *dp, float s_unit = 1, float dp_unit = 1)
{
    const bool kept = whole || (key >= lane.place.lo && key < lane.place.hi);
    if (!adjusted) {
        const float p = kept ? ptx_exp2(fmaf(*s, how.c * s_unit, -lane.lse)) : 0.0f;
        *dp = kept ? p * fmaf(*dp, dp_unit, -lane.delta) : 0.0f;
        *s = p;
        return;
    }
    float bend = 1, factor = 1;
    if (!kept || lane.place.row < 0) { /* no such row: `whole` does not count it, and it has no bias to read */
        *s = *dp = 0;
        return;
    }
    const float p = ptx_exp2(adjust_score(g, how, lane.place, key, *s * s_unit, &bend) - lane.lse);
    if (how.dropped)
        factor = fattn_dropout_keeps(&how.dropout, g.seq->b * g.problem->desc.heads_q + lane.place.head, lane.place.row, key)
                     ? how.keep
                     : 0.0f;
    *dp = p * fmaf(factor * dp_unit, *dp, -lane.delta) * bend;
    *s = p * factor;
}

/* --------------------------------------------------------------------------------------------------------- by themselves */

/* A pair of a row and a key that it keeps, in double: what dV is weighted with, and dS without scale. By a warp. */
struct pair_gradients {
    double p, dx;
};

__device__ __noinline__ pair_gradients pair_alone(const fattn_problem &problem, const fattn_launch &at,
                                                  const fattn_sequence &seq, const lane_place &place, long long key,
                                                  const float *delta)
{
    const fattn_desc &d = problem.desc;
    const size_t size = fattn_dtype_size(d.dtype);
    const long long index = seq.lse_first + place.head * seq.lse_head + place.row;
    const int head_kv = (int)(place.head / problem.group);
    const void *q = fattn_query_row(&at.q, size, &seq, place.head, place.row);
    const void *dout = fattn_query_row(&at.dout, fattn_dtype_size(d.out_dtype), &seq, place.head, place.row);
    const void *k = fattn_key_row(&problem, &at, &at.k, size, &seq, head_kv, key);
    const void *v = fattn_key_row(&problem, &at, &at.v, size, &seq, head_kv, key);
    double x = 0, dp = 0;
    for (long long c = threadIdx.x % 32; c < d.dim; c += 32)
        x += (double)load_number(q, d.dtype, c) * (double)load_number(k, d.dtype, c);
    for (long long c = threadIdx.x % 32; c < d.dim_v; c += 32)
        dp += (double)load_number(dout, d.out_dtype, c) * (double)load_number(v, d.dtype, c);
    for (int step = 16; step > 0; step /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, step);
        dp += __shfl_xor_sync(0xffffffffu, dp, step);
    }
    x *= d.scale;
    const double t = d.softcap != 0 ? tanh(x / d.softcap) : 0;
    const double p =
        exp(fattn_score(&problem, &at, &seq, place.head, place.row, key, x) - (double)((const float *)at.lse)[index]);
    const fattn_dropout dropout = fattn_dropout_of(&d);
    const bool keeps = d.dropout == 0 || fattn_dropout_keeps(&dropout, seq.b * d.heads_q + place.head, place.row, key);
    const double factor = keeps ? 1 / (1 - d.dropout) : 0;
    return {p * factor, p * (factor * dp - (double)delta[index]) * (1 - t * t)};
}

/* Adds weight times a row to a lane's columns column + lane + 32 i. */
template <int width>
__device__ inline void add_row(double sum[(width + 31) / 32], double weight, const void *row, int32_t dtype, long long column,
                               long long count)
{
#pragma unroll
    for (int i = 0; i < (width + 31) / 32; i++) {
        const long long c = column + threadIdx.x % 32 + 32 * i;
        if (c < count)
            sum[i] += weight * (double)load_number(row, dtype, c);
    }
}

template <int width>
__device__ inline void store_row(const double sum[(width + 31) / 32], double by, void *row, int32_t dtype, long long column,
                                 long long count)
{
#pragma unroll
    for (int i = 0; i < (width + 31) / 32; i++) {
        const long long c = column + threadIdx.x % 32 + 32 * i;
        if (c < count)
            store_number(row, dtype, c, (float)(sum[i] * by));
    }
}

/* The rows' keys without those of a row that has no score above -inf. */
__device__ inline fattn_interval keep_alone(const fattn_launch &at, const fattn_sequence &seq, int head, long long row)
{
    const float lse = ((const float *)at.lse)[seq.lse_first + head * seq.lse_head + row];
    return lse == -INFINITY ? fattn_interval{0, 0} : fattn_mask_row(&seq.mask, row);
}

/* dQ of one row, `width` columns from `column` on. Takes copies, as row_apart of forward. */
template <int width>
__device__ __noinline__ void query_alone(const fattn_problem *problem, const fattn_launch *at, const float *delta, long long b,
                                         long long column, int head, long long row)
{
    const fattn_desc &d = problem->desc;
    const fattn_sequence seq = fattn_sequence_of(problem, at, b);
    const lane_place place = {row, head, 0, 0, 0};
    const fattn_interval keep = keep_alone(*at, seq, head, row);
    const long long end = min(column + width, (long long)d.dim);
    double sum[(width + 31) / 32] = {};
    for (long long key = keep.lo; key < keep.hi; key++) {
        const pair_gradients g = pair_alone(*problem, *at, seq, place, key, delta);
        add_row<width>(sum, g.dx,
                       fattn_key_row(problem, at, &at->k, fattn_dtype_size(d.dtype), &seq, head / problem->group, key), d.dtype,
                       column, end);
    }
    store_row<width>(sum, d.scale, fattn_query_row(&at->dq, fattn_dtype_size(d.grad_dtype), &seq, head, row), d.grad_dtype,
                     column, end);
}

/* dK and dV of one key, likewise. */
template <int width>
__device__ __noinline__ void key_alone(const fattn_problem *problem, const fattn_launch *at, const float *delta, long long b,
                                       long long column, int head_kv, long long key)
{
    const fattn_desc &d = problem->desc;
    const fattn_sequence seq = fattn_sequence_of(problem, at, b);
    const size_t size = fattn_dtype_size(d.grad_dtype);
    const long long end_k = min(column + width, (long long)d.dim), end_v = min(column + width, (long long)d.dim_v);
    double dk[(width + 31) / 32] = {}, dv[(width + 31) / 32] = {};
    for (long long r = 0; r < problem->group * seq.seq_q; r++) {
        const int head = (int)(head_kv * problem->group + r / seq.seq_q);
        const lane_place place = {r % seq.seq_q, head, 0, 0, 0};
        const fattn_interval keep = keep_alone(*at, seq, head, place.row);
        if (key < keep.lo || key >= keep.hi)
            continue;
        const pair_gradients g = pair_alone(*problem, *at, seq, place, key, delta);
        add_row<width>(dk, g.dx, fattn_query_row(&at->q, fattn_dtype_size(d.dtype), &seq, head, place.row), d.dtype, column,
                       end_k);
        add_row<width>(dv, g.p, fattn_query_row(&at->dout, fattn_dtype_size(d.out_dtype), &seq, head, place.row), d.out_dtype,
                       column, end_v);
    }
    store_row<width>(dk, d.scale, fattn_key_row(problem, at, &at->dk, size, &seq, head_kv, key), d.grad_dtype, column, end_k);
    store_row<width>(dv, 1, fattn_key_row(problem, at, &at->dv, size, &seq, head_kv, key), d.grad_dtype, column, end_v);
}

#endif
