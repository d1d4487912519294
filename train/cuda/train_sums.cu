/*
 * The loss (layers/head.c), the gradient's norm and AdamW (optimizer.h).
 */
#include <float.h>

#include "train/cuda/numbers.cuh"

/* ------------------------------------------------------------------------------------------------------- cross-entropy */

/* A thread's part of sum of e^x, relative to the largest x so far. */
struct running_sum {
    float most = -FLT_MAX, sum = 0;

    template <int V> __device__ inline void add(const some<V> &x)
    {
        float largest = x.x[0];
#pragma unroll
        for (int v = 1; v < V; v++)
            largest = fmaxf(largest, x.x[v]);
        if (largest > most) {
            sum *= expf(most - largest);
            most = largest;
        }
#pragma unroll
        for (int v = 0; v < V; v++)
            sum += expf(x.x[v] - most);
    }

    /* Relative to the largest of the warp, and the same in all its lanes afterwards. */
    __device__ inline void join_warp()
    {
        const float all = warp_most(most);
        sum = warp_sum(sum * expf(most - all));
        most = all;
    }

    __device__ inline float log() const
    {
        return most + logf(sum);
    }
};

/* Who has a row: a warp, or where rows are long a block. Its threads read numbers AT_ONCE * V at a time. */
struct by_warp {
    static constexpr int THREADS = WARP;

    static __device__ inline int64_t first()
    {
        return first_warp();
    }

    static __device__ inline int64_t step()
    {
        return warp_step();
    }

    static __device__ inline int thread()
    {
        return lane();
    }

    static __device__ inline void sync()
    {
        __syncwarp();
    }

    static __device__ inline void join(running_sum &sum)
    {
        sum.join_warp();
    }
};

struct by_block {
    static constexpr int THREADS = CUDA_WIDE;

    static __device__ inline int64_t first()
    {
        return blockIdx.x;
    }

    static __device__ inline int64_t step()
    {
        return gridDim.x;
    }

    static __device__ inline int thread()
    {
        return threadIdx.x;
    }

    static __device__ inline void sync()
    {
        __syncthreads();
    }

    static __device__ inline void join(running_sum &sum)
    {
        constexpr int PARTS = THREADS / WARP;
        __shared__ running_sum parts[PARTS];
        sum.join_warp();
        __syncthreads(); /* the parts of the row before have been read */
        if (lane() == 0)
            parts[warp()] = sum;
        __syncthreads();
        sum = parts[lane() % PARTS];
        if (lane() >= PARTS)
            sum.sum = 0;
        sum.join_warp();
    }
};

constexpr int AT_ONCE = 4;

/* f(i, x) for each V numbers x from column i on that the thread has. before: called once the row's threads have read what comes
 * next, so that what they write may lie where earlier numbers and these do. */
template <int V, typename By, typename Before, typename F>
__device__ inline void for_row(const float *row, int64_t cols, Before before, F f)
{
    for (int64_t first = By::thread() * V; first - By::thread() * V < cols; first += AT_ONCE * By::THREADS * V) {
        some<V> x[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (first + k * By::THREADS * V < cols)
                x[k] = load<V>(row + first + k * By::THREADS * V);
        before();
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
            if (first + k * By::THREADS * V < cols)
                f(first + k * By::THREADS * V, x[k]);
    }
}

template <int V, typename By> __device__ inline float lse_of(const float *x, int64_t cols)
{
    running_sum sum;
    for_row<V, By>(
        x, cols, [] {}, [&](int64_t, const some<V> &some_x) { sum.add(some_x); });
    By::join(sum);
    return sum.log();
}

/* dx may lie in x's place: a number is no wider there, so that it is written where x has been read. */
template <int V, typename By, typename T>
__device__ inline void logits_gradient(const cross_entropy_call &c, int64_t r, int32_t target, float lse)
{
    T *dx = (T *)c.dx + r * c.dx_stride;
    for_row<V, By>(
        c.x + r * c.vocab, c.vocab, [] { By::sync(); },
        [&](int64_t i, some<V> d) {
#pragma unroll
            for (int v = 0; v < V; v++)
                d.x[v] = target < 0 ? 0.0f : c.factor * expf(d.x[v] - lse) - (i + v == target ? c.factor : 0.0f);
            store<V>(dx + i, d);
        });
    By::sync();
}

template <int V, typename By, typename T> __device__ inline void cross_entropy_rows(const cross_entropy_call &c)
{
    for (int64_t r = By::first(); r < c.rows; r += By::step()) {
        const int32_t target = c.targets[r];
        const float *x = c.x + r * c.vocab, lse = target < 0 ? 0.0f : lse_of<V, By>(x, c.vocab);
        if (By::thread() == 0)
            c.losses[r] = target < 0 ? 0.0 : (double)lse - (double)x[target];
        if (c.dx)
            logits_gradient<V, By, T>(c, r, target, lse);
    }
}

template <typename By, typename T> __device__ inline void cross_entropy(const cross_entropy_call &c)
{
    if (in_fours(c.x, c.vocab) && in_fours((const T *)c.dx, c.dx_stride))
        cross_entropy_rows<4, By, T>(c);
    else
        cross_entropy_rows<1, By, T>(c);
}

KERNEL cross_entropy_f32(const __grid_constant__ cross_entropy_call c)
{
    cross_entropy<by_warp, float>(c);
}

KERNEL cross_entropy_bf16(const __grid_constant__ cross_entropy_call c)
{
    cross_entropy<by_warp, bf16>(c);
}

KERNEL_OF(CUDA_WIDE) cross_entropy_wide_f32(const __grid_constant__ cross_entropy_call c)
{
    cross_entropy<by_block, float>(c);
}

KERNEL_OF(CUDA_WIDE) cross_entropy_wide_bf16(const __grid_constant__ cross_entropy_call c)
{
    cross_entropy<by_block, bf16>(c);
}

/* The sum over the rows, by one block. */
KERNEL loss_sum(const __grid_constant__ loss_sum_call c)
{
    double sum = 0;
#pragma unroll 8
    for (int64_t r = threadIdx.x; r < c.rows; r += CUDA_THREADS)
        sum += c.losses[r];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *c.sum = sum;
}

/* -------------------------------------------------------------------------------------------------------------- update */

/* Block `piece` adds up the squares of a piece. */
KERNEL grad_squares(const __grid_constant__ update_call c)
{
    const update_piece p = c.pieces[blockIdx.x];
    double sum = 0;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < p.count; i += CUDA_THREADS) {
        const double g = c.grad[p.offset + i];
        sum += g * g;
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        c.squares[blockIdx.x] = sum;
}

/* One block adds up the pieces. */
KERNEL grad_norm(const __grid_constant__ update_call c)
{
    double sum = 0;
#pragma unroll 4
    for (int64_t i = threadIdx.x; i < c.count; i += CUDA_THREADS)
        sum += c.squares[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *c.norm = *c.shared_norm = c.scale * sqrt(sum);
}

template <int V> __device__ inline void update_piece_of(const update_call &c, const update_piece &p, float factor)
{
    const float decay = p.decays ? c.decay : 1.0f;
    for (int64_t i = p.offset + threadIdx.x * V; i < p.offset + p.count; i += CUDA_THREADS * V) {
        const some<V> grad = load<V>(c.grad + i);
        float *m_at = c.m + (i - c.moments_first), *v_at = c.v + (i - c.moments_first);
        some<V> x = load<V>(c.data + i), m = load<V>(m_at), v = load<V>(v_at);
#pragma unroll
        for (int n = 0; n < V; n++) {
            const float g = grad.x[n] * factor;
            m.x[n] = c.beta1 * m.x[n] + (1.0f - c.beta1) * g;
            v.x[n] = c.beta2 * v.x[n] + (1.0f - c.beta2) * g * g;
            x.x[n] = x.x[n] * decay - c.step * m.x[n] / (sqrtf(v.x[n]) * c.root + c.eps);
        }
        store<V>(m_at, m);
        store<V>(v_at, v);
        store<V>(c.data + i, x);
        if (c.rounded)
            store<V>((bf16 *)c.rounded + i, x);
    }
}

/* Block `piece` updates a piece, unless the norm is not finite. */
KERNEL update_pieces(const __grid_constant__ update_call c)
{
    const update_piece p = c.pieces[blockIdx.x];
    const double norm = *c.norm, clip = c.clip > 0 ? c.clip / (norm + 1e-6) : 1.0;
    if (!isnan(c.limit) && !(isfinite(norm) && norm <= c.limit))
        return;
    const float factor = (float)(clip < 1.0 ? c.scale * clip : c.scale);
    if (p.offset % 4 == 0 && p.count % 4 == 0)
        update_piece_of<4>(c, p, factor);
    else
        update_piece_of<1>(c, p, factor);
}
