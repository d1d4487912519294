/*
 * The calls beside forward and backward: joining partial results and its gradient, appending to a cache, looking at a row. All
 * in double, by the functions of core that the CPU uses too; only sums over a warp's lanes have another order.
 *
 * Merging and appending give a row to a warp: lane l holds elements l, l + 32, .. of it in registers, reads all it needs of the
 * row before it writes, and writes what it read, so that results may take the place of what they come from.
 */
#include "core/cache.h"
#include "core/look.h"
#include "core/merge.h"
#include "cuda/calls.h"

#define KERNEL extern "C" __global__ void __launch_bounds__(CALLS_THREADS)

constexpr int WARP = CALLS_WARP, HELD = FATTN_DIM_MOST / WARP; /* elements of a row that a lane holds at most */

static_assert(sizeof(merge_launch) <= 4096, "what a kernel's parameters hold on every GPU and driver");

/* --------------------------------------------------------------------------------------------------------------- warps */

/* The warp's number among all, and how many there are. */
__device__ inline long long first_row()
{
    return ((long long)blockIdx.x * CALLS_THREADS + threadIdx.x) / WARP;
}

__device__ inline long long row_step()
{
    return (long long)gridDim.x * (CALLS_THREADS / WARP);
}

/* f(c, x) for each element x < n that the lane holds, in held[c]. */
template <typename F> __device__ inline void for_held(long long n, F f)
{
#pragma unroll
    for (int c = 0; c < HELD; c++) {
        const long long x = (long long)c * WARP + threadIdx.x % WARP;
        if (x < n)
            f(c, x);
    }
}

/* Joins a number of each lane in a fixed order; every lane gets the result. */
template <typename F> __device__ inline double over_warp(double x, F join)
{
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2)
        x = join(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* -------------------------------------------------------------------------------------------------------------- merging */

/* sum += w * row; a loop for each type. */
__device__ inline void add_scaled(double sum[HELD], double w, const void *row, int32_t dtype, long long n)
{
    if (dtype == FATTN_F64)
        for_held(n, [&](int c, long long x) { sum[c] += w * ((const double *)row)[x]; });
    else
        for_held(n, [&](int c, long long x) { sum[c] += w * (double)((const float *)row)[x]; });
}

__device__ inline void merge_row(const fattn_merging &m, const fattn_merge_place &at)
{
    fattn_merge_weights all = fattn_merge_weights_of(&m, &at);
    double sum[HELD] = {}, w;
    for (int p = 0; p < m.count; p++)
        if (fattn_merge_weigh(&all, fattn_merge_number(&m, m.lses[p], &at), &w))
            add_scaled(sum, w, fattn_merge_row(&m.outs[p], m.type, &at), m.type, m.dim);
    fattn_merge_settle(&all);
    __syncwarp(); /* every lane has read the numbers of the row, one of which lse may replace */
    void *row = fattn_merge_row(&m.out, m.out_dtype, &at);
    for_held(m.dim,
             [&](int c, long long x) { fattn_set_element(row, m.out_dtype, x, all.total != 0 ? sum[c] / all.total : sum[c]); });
    if (m.lse && threadIdx.x % WARP == 0)
        fattn_set_element((void *)m.lse, m.type, at.n, fattn_merge_lse(&all));
}

KERNEL calls_merge(const __grid_constant__ merge_launch launch)
{
    fattn_merging m = launch.call;
    m.outs = launch.views;
    m.lses = launch.numbers;
    for (long long n = first_row(); n < fattn_merging_rows(&m); n += row_step())
        merge_row(m, fattn_merge_place_of(&m, n));
}

/* The gradients of part p, from dout and out of the row. */
__device__ inline void backward_part(const fattn_merging &m, const fattn_merge_place &at, int p, const double dout[HELD],
                                     const double out[HELD])
{
    const double lse = fattn_merge_number(&m, m.lses[p], &at);
    const bool none = lse == -(double)INFINITY;
    const double w = none ? 0 : fattn_merge_weight(lse, fattn_merge_number(&m, m.lse, &at));
    const void *out_p = fattn_merge_row(&m.outs[p], m.type, &at);
    void *dout_p = fattn_merge_row(&m.douts[p], m.type, &at);
    double dot = 0;
    for_held(m.dim, [&](int c, long long x) {
        dot += dout[c] * (fattn_element(out_p, m.type, x) - out[c]);
        fattn_set_element(dout_p, m.type, x, none ? 0 : w * dout[c]);
    });
    dot = over_warp(dot, [](double a, double b) { return a + b; }) + (m.dlse ? fattn_merge_number(&m, m.dlse, &at) : 0);
    if (threadIdx.x % WARP == 0)
        fattn_set_element(m.dlses[p], m.type, at.n, none ? 0 : w * dot);
}

KERNEL calls_merge_backward(const __grid_constant__ merge_launch launch)
{
    fattn_merging m = launch.call;
    m.outs = launch.views;
    m.lses = launch.numbers;
    m.douts = launch.views + MERGE_HALF;
    m.dlses = launch.numbers + MERGE_HALF;
    for (long long n = first_row(); n < fattn_merging_rows(&m); n += row_step()) {
        const fattn_merge_place at = fattn_merge_place_of(&m, n);
        const void *out_row = fattn_merge_row(&m.out, m.out_dtype, &at), *dout_row = fattn_merge_row(&m.dout, m.out_dtype, &at);
        double out[HELD] = {}, dout[HELD] = {};
        for_held(m.dim, [&](int c, long long x) {
            out[c] = fattn_element(out_row, m.out_dtype, x);
            dout[c] = fattn_element(dout_row, m.out_dtype, x);
        });
        for (int p = 0; p < m.count; p++)
            backward_part(m, at, p, dout, out);
    }
}

/* ------------------------------------------------------------------------------------------------------------ appending */

/* A row of k_new, v_new or q on its way. */
struct moved_row {
    const void *from;
    void *to;      /* may be from */
    float *factor; /* of a row of bytes */
    long long n, turned, position;
};

/* New row i of sequence b: heads_kv rows of keys, as many of values, then the queries. */
__device__ inline moved_row moved_row_of(const fattn_appending &a, long long b, long long i, long long slot)
{
    const fattn_desc &d = a.problem.desc;
    const fattn_cache_args &args = a.args;
    const fattn_sequence s = {.b = b};
    const long long turned = fattn_appending_turned(&a), h = slot % d.heads_kv, j = args.used_k[b] + i;
    const size_t size = fattn_dtype_size(d.dtype), kv_size = fattn_dtype_size(d.kv_dtype);
    if (slot >= 2 * d.heads_kv) {
        void *q = fattn_row(&args.q, size, b, slot - 2 * d.heads_kv, i);
        return {q, q, nullptr, d.dim, turned, j};
    }
    const bool keys = slot < d.heads_kv;
    float *factors = keys ? args.k_scales : args.v_scales;
    return {fattn_row(keys ? &args.k_new : &args.v_new, size, b, h, i),
            fattn_key_row(&a.problem, &a.at, keys ? &args.k : &args.v, kv_size, &s, h, j),
            d.kv_dtype == FATTN_I8 ? factors + fattn_scale_index(&a.problem, &a.at, &s, h, j) : nullptr,
            keys ? d.dim : d.dim_v,
            keys ? turned : 0,
            j};
}

/* Element x of the row, turned with the other of its pair if it is one that turns. */
__device__ inline double moved_element(const fattn_appending &a, const moved_row &r, long long x)
{
    const int32_t dtype = a.problem.desc.dtype;
    if (x >= r.turned)
        return fattn_element(r.from, dtype, x);
    const long long pairs = r.turned / 2, pair = a.args.interleaved ? x / 2 : x % pairs;
    const long long one = a.args.interleaved ? 2 * pair : pair, other = a.args.interleaved ? one + 1 : one + pairs;
    double first = fattn_element(r.from, dtype, one), second = fattn_element(r.from, dtype, other);
    fattn_turn(&first, &second, (double)a.args.rotary_cos[r.position * pairs + pair],
               (double)a.args.rotary_sin[r.position * pairs + pair]);
    return x == one ? first : second;
}

template <typename bits> __device__ inline void copy_bits(const moved_row &r)
{
    for_held(r.n, [&](int, long long x) {
        if (x >= r.turned)
            ((bits *)r.to)[x] = ((const bits *)r.from)[x];
    });
}

/* Without a change of type: what does not turn keeps its bits, NaN's too. */
__device__ inline void copy_row(const fattn_appending &a, const moved_row &r)
{
    const int32_t dtype = a.problem.desc.dtype;
    double row[HELD];
    for_held(r.turned, [&](int c, long long x) { row[c] = moved_element(a, r, x); });
    __syncwarp(); /* both lanes of a pair have read it */
    for_held(r.turned, [&](int c, long long x) { fattn_set_element(r.to, dtype, x, row[c]); });
    if (r.from == r.to)
        return;
    if (fattn_dtype_size(dtype) == 8)
        copy_bits<uint64_t>(r);
    else if (fattn_dtype_size(dtype) == 4)
        copy_bits<uint32_t>(r);
    else
        copy_bits<uint16_t>(r);
}

__device__ inline void quantise_row(const fattn_appending &a, const moved_row &r)
{
    double row[HELD], most = 0;
    for_held(r.n, [&](int c, long long x) {
        row[c] = moved_element(a, r, x);
        most = fattn_larger_size(most, row[c]);
    });
    most = over_warp(most, [](double x, double y) { return fattn_larger_size(x, y); });
    const float factor = fattn_byte_factor(most);
    if (threadIdx.x % WARP == 0)
        *r.factor = factor;
    for_held(r.n, [&](int c, long long x) { ((int8_t *)r.to)[x] = factor > 0 ? fattn_byte(row[c], (double)factor) : 0; });
}

/* slots: rows that a new row of a sequence has in all heads of all tensors. */
KERNEL calls_append(const __grid_constant__ fattn_appending a, long long slots)
{
    const long long seq_q = a.problem.desc.seq_q, rows = a.problem.desc.batch * seq_q * slots;
    for (long long n = first_row(); n < rows; n += row_step()) {
        const long long b = n / slots / seq_q, i = n / slots % seq_q;
        if (i >= fattn_appending_rows(&a, b))
            continue;
        const moved_row r = moved_row_of(a, b, i, n % slots);
        if (r.factor)
            quantise_row(a, r);
        else
            copy_row(a, r);
    }
}

/* -------------------------------------------------------------------------------------------------------------- looking */

/* Joins a number of each thread of the block in a fixed order; every thread gets the result. */
template <typename F> __device__ inline double over_block(double x, F join)
{
    __shared__ double all[CALLS_THREADS];
    __syncthreads();
    all[threadIdx.x] = x;
    for (int step = CALLS_THREADS / 2; step > 0; step /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < step)
            all[threadIdx.x] = join(all[threadIdx.x], all[threadIdx.x + step]);
    }
    __syncthreads();
    return all[0];
}

/* Turns scores into probabilities, -inf into 0; a row of nothing but -inf stays 0. A thread has every CALLS_THREADS-th key. */
__device__ inline void normalise(double *score, long long n, double sink)
{
    double mine = sink, sum = 0;
    for (long long j = threadIdx.x; j < n; j += CALLS_THREADS)
        mine = fattn_larger_score(mine, score[j]);
    const double largest = over_block(mine, [](double a, double b) { return fattn_larger_score(a, b); });
    for (long long j = threadIdx.x; j < n; j += CALLS_THREADS)
        sum += score[j] = fattn_looking_weight(score[j], largest);
    sum = over_block(sum, [](double a, double b) { return a + b; });
    if (largest == -(double)INFINITY)
        return;
    sum += exp(sink - largest);
    for (long long j = threadIdx.x; j < n; j += CALLS_THREADS)
        score[j] /= sum;
}

/* One block. */
KERNEL calls_look(const __grid_constant__ fattn_problem problem, const __grid_constant__ fattn_launch at, long long batch,
                  long long head, long long row, double *scores, double *probabilities)
{
    const long long seq_k = problem.desc.seq_k;
    const fattn_sequence s = fattn_sequence_of(&problem, &at, batch);
    const fattn_interval keys = fattn_looking_keys(&s, row);
    for (long long j = threadIdx.x; j < seq_k; j += CALLS_THREADS) {
        const double score = fattn_looking_score(&problem, &at, &s, keys, head, row, j);
        if (scores)
            scores[j] = score;
        if (probabilities)
            probabilities[j] = score;
    }
    if (probabilities)
        normalise(probabilities, seq_k, fattn_looking_sink(&problem.desc, &at, head));
}
