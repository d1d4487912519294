/*
 * The loss (layers/cross_entropy.c), the gradient's norm and AdamW (optimizer.h).
 */
#include <float.h>

#include "train/cuda/numbers.cuh"

/* ------------------------------------------------------------------------------------------------------- cross-entropy */

/* A lane's part of sum of e^x, relative to the largest x so far. */
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

    /* ln of the warp's sum. */
    __device__ inline float log() const
    {
        const float all = warp_most(most);
        return all + logf(warp_sum(sum * expf(most - all)));
    }
};

__device__ inline bool logits_in_fours(const cross_entropy_call &c)
{
    return c.vocab % 4 == 0 && in_fours(c.x, 4);
}

/* lse of every row that has a target, by a warp each. */
template <int V> __device__ inline void cross_entropy_forward_rows(const cross_entropy_call &c)
{
    for (int64_t r = first_warp(); r < c.rows; r += warp_step()) {
        if (c.targets[r] < 0)
            continue;
        const float *x = c.x + r * c.vocab;
        running_sum sum;
#pragma unroll 4
        for (int64_t i = lane() * V; i < c.vocab; i += WARP * V)
            sum.add(load<V>(x + i));
        const float lse = sum.log();
        if (lane() == 0)
            c.lse[r] = lse;
    }
}

KERNEL cross_entropy_forward(const __grid_constant__ cross_entropy_call c)
{
    if (logits_in_fours(c))
        cross_entropy_forward_rows<4>(c);
    else
        cross_entropy_forward_rows<1>(c);
}

/* The sum over the rows, by one block. */
KERNEL cross_entropy_loss(const __grid_constant__ cross_entropy_call c)
{
    double sum = 0;
#pragma unroll 8
    for (int64_t r = threadIdx.x; r < c.rows; r += CUDA_THREADS)
        if (c.targets[r] >= 0)
            sum += (double)c.lse[r] - (double)c.x[r * c.vocab + c.targets[r]];
    sum = block_sum(sum);
    if (threadIdx.x == 0)
        *c.loss = sum;
}

template <int V, typename T> __device__ inline void cross_entropy_backward_rows(const cross_entropy_call &c)
{
    for (int64_t r = first_warp(); r < c.rows; r += warp_step()) {
        const int32_t target = c.targets[r];
        const float *x = c.x + r * c.vocab, lse = target < 0 ? 0.0f : c.lse[r];
        T *dx = (T *)c.dx + r * c.vocab;
#pragma unroll 4
        for (int64_t i = lane() * V; i < c.vocab; i += WARP * V) {
            some<V> d = load<V>(x + i);
#pragma unroll
            for (int v = 0; v < V; v++)
                d.x[v] = target < 0 ? 0.0f : c.factor * expf(d.x[v] - lse) - (i + v == target ? c.factor : 0.0f);
            store<V>(dx + i, d);
        }
    }
}

template <typename T> __device__ inline void cross_entropy_backward(const cross_entropy_call &c)
{
    if (logits_in_fours(c) && in_fours((const T *)c.dx, 4))
        cross_entropy_backward_rows<4, T>(c);
    else
        cross_entropy_backward_rows<1, T>(c);
}

KERNEL cross_entropy_backward_f32(const __grid_constant__ cross_entropy_call c)
{
    cross_entropy_backward<float>(c);
}

KERNEL cross_entropy_backward_bf16(const __grid_constant__ cross_entropy_call c)
{
    cross_entropy_backward<bf16>(c);
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
