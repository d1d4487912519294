/*
 * Work on rows and on single numbers: copies, embedding, dropout, SwiGLU, and joining the results of attention's key blocks.
 */
#include "train/cuda/numbers.cuh"
#include "train/philox.h"

/* f(r, i) for the first of each V columns of all rows, by the grid's threads. */
template <int V, typename F> __device__ inline void for_all(int64_t rows, int64_t cols, F f)
{
    const int64_t step = (int64_t)gridDim.x * CUDA_THREADS, width = cols / V, all = rows * width;
    for (int64_t n = (int64_t)blockIdx.x * CUDA_THREADS + threadIdx.x; n < all; n += step) {
        const int64_t r = quotient(n, width);
        f(r, (n - r * width) * V);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- copy */

template <int V, typename To, typename From> __device__ inline void copy_rows(const copy_call &c)
{
    for_all<V>(c.rows, c.cols, [&](int64_t r, int64_t i) {
        To *to = (To *)c.to + r * c.to_stride + i;
        some<V> x = load<V>((const From *)c.from + r * c.from_stride + i);
        if (c.add) {
            const some<V> y = load<V>(to);
#pragma unroll
            for (int v = 0; v < V; v++)
                x.x[v] += y.x[v];
        }
        store<V>(to, x);
    });
}

template <typename To, typename From> __device__ inline void copy(const copy_call &c)
{
    if (c.cols % 4 == 0 && in_fours((const To *)c.to, c.to_stride) && in_fours((const From *)c.from, c.from_stride))
        copy_rows<4, To, From>(c);
    else
        copy_rows<1, To, From>(c);
}

KERNEL copy_f32_f32(const __grid_constant__ copy_call c)
{
    copy<float, float>(c);
}

KERNEL copy_f32_bf16(const __grid_constant__ copy_call c)
{
    copy<float, bf16>(c);
}

KERNEL copy_bf16_f32(const __grid_constant__ copy_call c)
{
    copy<bf16, float>(c);
}

KERNEL copy_bf16_bf16(const __grid_constant__ copy_call c)
{
    copy<bf16, bf16>(c);
}

/* ----------------------------------------------------------------------------------------------------------- embedding */

KERNEL embedding_forward(const __grid_constant__ embedding_call c)
{
    for (int64_t r = first_warp(); r < c.rows; r += warp_step())
        for (int64_t i = lane(); i < c.hidden; i += WARP)
            c.out[r * c.hidden + i] = c.weight[c.tokens[r] * c.hidden + i];
}

/* Adds up V columns of some rows of dout in order, having asked for several at once. */
template <int V> struct column_sum {
    static constexpr int AT_ONCE = 4;
    const float *dout;
    int64_t hidden;
    bool there; /* are the columns? */
    some<V> sum;

    /* The rows first + b for each bit b of `found`. */
    __device__ inline void add(int64_t first, unsigned found)
    {
        while (found) {
            some<V> next[AT_ONCE];
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++) {
                next[k] = {};
                if (found && there)
                    next[k] = load<V>(dout + (first + __ffs((int)found) - 1) * hidden);
                found &= found - 1; /* 0 stays 0 */
            }
#pragma unroll
            for (int k = 0; k < AT_ONCE; k++)
#pragma unroll
                for (int v = 0; v < V; v++)
                    sum.x[v] += next[k].x[v];
        }
    }
};

/* The sum over the rows of the warp's share that hold `token`. The warp looks at 32 tokens at a time. */
template <int V> __device__ inline some<V> sum_of_token(const embedding_call &c, int32_t token, int64_t col)
{
    const int64_t share = (c.rows + WARPS - 1) / WARPS, begin = warp() * share, rest = c.rows - begin;
    const int64_t end = begin + (rest < share ? rest : share);
    column_sum<V> s = {c.dout + col, c.hidden, col < c.hidden, {}};
    for (int64_t r = begin; r < end; r += WARP)
        s.add(r, __ballot_sync(0xffffffffu, r + lane() < end && c.tokens[r + lane()] == token));
    return s.sum;
}

/* Block y has a token and block x some columns of its row of dweight: a lane has V columns, a warp an eighth of the rows. */
template <int V> __device__ inline void embedding_backward_of(const embedding_call &c, some<4> (*parts)[WARP])
{
    const int64_t wide = WARP * V;
    for (int64_t token = blockIdx.y; token < c.vocab; token += gridDim.y)
        for (int64_t first = blockIdx.x * wide; first < c.hidden; first += gridDim.x * wide) {
            const int64_t col = first + lane() * V;
            some<V> sum = sum_of_token<V>(c, (int32_t)token, col);
            __syncthreads();
            store<V>(parts[warp()][lane()].x, sum);
            __syncthreads();
            if (warp() > 0 || col >= c.hidden)
                continue;
            some<V> total = load<V>(c.dweight + token * c.hidden + col);
            for (int w = 1; w < WARPS; w++)
#pragma unroll
                for (int v = 0; v < V; v++)
                    sum.x[v] += parts[w][lane()].x[v];
#pragma unroll
            for (int v = 0; v < V; v++)
                total.x[v] += sum.x[v];
            store<V>(c.dweight + token * c.hidden + col, total);
        }
}

KERNEL embedding_backward(const __grid_constant__ embedding_call c)
{
    __shared__ __align__(16) some<4> parts[WARPS][WARP];
    if (c.hidden % 4 == 0 && in_fours(c.dout, 4) && in_fours(c.dweight, 4))
        embedding_backward_of<4>(c, parts);
    else
        embedding_backward_of<1>(c, parts);
}

/* ------------------------------------------------------------------------------------------------------------- dropout */

/* A thread has the four columns of a draw. */
template <typename To, typename From, bool ADD> __device__ inline void dropout(const dropout_call &c)
{
    const int64_t step = (int64_t)gridDim.x * CUDA_THREADS, width = (c.cols + 3) / 4, all = c.rows * width;
    const bool fours = c.cols % 4 == 0;
    for (int64_t n = (int64_t)blockIdx.x * CUDA_THREADS + threadIdx.x; n < all; n += step) {
        const int64_t r = quotient(n, width), i = (n - r * width) * 4, at = r * c.cols + i;
        const philox_words w = philox(c.key, (uint32_t)(i / 4), (uint32_t)r, (uint32_t)(r >> 32), 0);
        const From *from = (const From *)c.from + at;
        To *to = (To *)c.to + at;
        if (fours) {
            const some<4> x = load<4>(from);
            some<4> sum = {};
            if (ADD)
                sum = load<4>(c.add + at);
#pragma unroll
            for (int v = 0; v < 4; v++)
                sum.x[v] += w.word[v] >= c.least ? x.x[v] * c.factor : 0.0f;
            store<4>(to, sum);
            continue;
        }
        for (int v = 0; v < 4 && i + v < c.cols; v++) {
            const float x = w.word[v] >= c.least ? number(from[v]) * c.factor : 0.0f;
            set(to[v], (ADD ? c.add[at + v] : 0.0f) + x);
        }
    }
}

KERNEL dropout_branch_f32(const __grid_constant__ dropout_call c)
{
    dropout<float, float, true>(c);
}

KERNEL dropout_branch_bf16(const __grid_constant__ dropout_call c)
{
    dropout<float, bf16, true>(c);
}

KERNEL dropout_grad_f32(const __grid_constant__ dropout_call c)
{
    dropout<float, float, false>(c);
}

KERNEL dropout_grad_bf16(const __grid_constant__ dropout_call c)
{
    dropout<bf16, float, false>(c);
}

/* -------------------------------------------------------------------------------------------------------------- swiglu */

template <int V, typename T> __device__ inline void swiglu_forward_rows(const swiglu_call &c)
{
    for_all<V>(c.rows, c.ffn, [&](int64_t r, int64_t i) {
        const T *x = (const T *)c.x + r * 2 * c.ffn + i;
        some<V> gate = load<V>(x);
        const some<V> up = load<V>(x + c.ffn);
#pragma unroll
        for (int v = 0; v < V; v++)
            gate.x[v] = gate.x[v] * sigmoid(gate.x[v]) * up.x[v];
        store<V>((T *)c.out + r * c.ffn + i, gate);
    });
}

template <int V, typename T> __device__ inline void swiglu_backward_rows(const swiglu_call &c)
{
    for_all<V>(c.rows, c.ffn, [&](int64_t r, int64_t i) {
        const T *x = (const T *)c.x + r * 2 * c.ffn + i;
        T *dx = (T *)c.dx + r * 2 * c.ffn + i;
        const some<V> gate = load<V>(x), up = load<V>(x + c.ffn), dout = load<V>((const T *)c.dout + r * c.ffn + i);
        some<V> dgate, dup;
#pragma unroll
        for (int v = 0; v < V; v++) {
            const float s = sigmoid(gate.x[v]), silu = gate.x[v] * s;
            dgate.x[v] = dout.x[v] * up.x[v] * (s + silu * (1.0f - s));
            dup.x[v] = dout.x[v] * silu;
        }
        store<V>(dx, dgate);
        store<V>(dx + c.ffn, dup);
    });
}

KERNEL swiglu_forward_f32(const __grid_constant__ swiglu_call c)
{
    c.ffn % 4 == 0 ? swiglu_forward_rows<4, float>(c) : swiglu_forward_rows<1, float>(c);
}

KERNEL swiglu_forward_bf16(const __grid_constant__ swiglu_call c)
{
    c.ffn % 4 == 0 ? swiglu_forward_rows<4, bf16>(c) : swiglu_forward_rows<1, bf16>(c);
}

KERNEL swiglu_backward_f32(const __grid_constant__ swiglu_call c)
{
    c.ffn % 4 == 0 ? swiglu_backward_rows<4, float>(c) : swiglu_backward_rows<1, float>(c);
}

KERNEL swiglu_backward_bf16(const __grid_constant__ swiglu_call c)
{
    c.ffn % 4 == 0 ? swiglu_backward_rows<4, bf16>(c) : swiglu_backward_rows<1, bf16>(c);
}

/* ---------------------------------------------------------------------------------------------------------------- merge */

/* A warp has a head of a row of the block. */
KERNEL merge_rows(const __grid_constant__ merge_call c)
{
    for (int64_t n = first_warp(); n < c.batch * c.rows * c.heads; n += warp_step()) {
        const int64_t h = n % c.heads, i = n / c.heads % c.rows, batch = n / c.heads / c.rows;
        float *total = c.lse + (batch * c.heads + h) * c.seq + c.first + i;
        const float before = *total, other = c.block_lse[(batch * c.heads + h) * c.rows + i], most = fmaxf(before, other);
        const float merged = most + logf(expf(before - most) + expf(other - most));
        const float keep = expf(before - merged), take = expf(other - merged);
        float *out = c.out + (batch * c.seq + c.first + i) * c.out_stride + h * c.dim;
        const float *block = c.block_out + n * c.dim;
        for (int64_t d = lane(); d < c.dim; d += WARP)
            out[d] = keep * out[d] + take * block[d];
        __syncwarp(); /* every lane has read the sum */
        if (lane() == 0)
            *total = merged;
    }
}
