/*
 * The kernels of backward, for the .cu files of the types: what comes before and after the sides, and the entries.
 */
#ifndef FATTN_CUDA_TENSOR_BACKWARD_KERNELS_CUH
#define FATTN_CUDA_TENSOR_BACKWARD_KERNELS_CUH

#include "cuda/tensor_backward_keys.cuh"
#include "cuda/tensor_backward_queries.cuh"

/* D of every row, 8 threads to a row, and zeros for the sums of dQ. */
template <class T>
__device__ inline void begin_gradients(const fattn_problem &problem, const fattn_launch &at, const tensor_grad_call &call,
                                       float *delta, long long sums)
{
    constexpr int32_t dtype = DTYPE<T>;
    const fattn_desc &d = problem.desc;
    const long long thread = (long long)blockIdx.x * GRAD_THREADS + threadIdx.x, unit = thread / 8;
    const long long i = unit % d.seq_q, h = unit / d.seq_q % d.heads_q, b = unit / d.seq_q / d.heads_q;
    for (long long n = thread; n < sums / 4; n += (long long)gridDim.x * GRAD_THREADS)
        ((float4 *)call.sums)[n] = make_float4(0, 0, 0, 0);
    fattn_sequence seq = {};
    float sum = 0;
    if (b < d.batch)
        seq = fattn_sequence_of(&problem, &at, b);
    const bool there = b < d.batch && i < seq.seq_q;
    if (there) {
        const void *out = fattn_query_row(&at.out, 2, &seq, h, i), *dout = fattn_query_row(&at.dout, 2, &seq, h, i);
        for (long long c = threadIdx.x % 8 * PIECE; c < d.dim_v; c += 8 * PIECE) {
            uint4 x[2];
            if (call.out_lines) {
                x[0] = *(const uint4 *)((const char *)out + 2 * c);
                x[1] = *(const uint4 *)((const char *)dout + 2 * c);
            }
#pragma unroll
            for (int k = 0; k < PIECE; k++)
                if (call.out_lines)
                    sum += load_number(&x[0], dtype, k) * load_number(&x[1], dtype, k);
                else if (c + k < d.dim_v)
                    sum += load_number(out, dtype, c + k) * load_number(dout, dtype, c + k);
        }
    }
#pragma unroll
    for (int step = 4; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const long long index = seq.lse_first + h * seq.lse_head + i;
    if (there && threadIdx.x % 8 == 0)
        delta[index] = sum - (d.flags & FATTN_WITH_DLSE ? ((const float *)at.dlse)[index] : 0.0f);
}

/* dQ of a strip of rows of its sums, by a warp. */
template <int dim>
__device__ inline void end_queries(const fattn_problem &problem, const fattn_launch &at, const tensor_grad_call &call,
                                   const float *delta)
{
    const fattn_desc &d = problem.desc;
    const long long strips = TENSOR_GRAD_STRIPS(d.seq_q), unit = (long long)blockIdx.x * GRAD_WARPS + threadIdx.x / 32;
    const long long strip = unit % strips, b = unit / strips / d.heads_q;
    const int h = (int)(unit / strips % d.heads_q), lane = threadIdx.x % 32;
    if (b >= d.batch)
        return;
    const fattn_sequence seq = fattn_sequence_of(&problem, &at, b);
    const long long row = strip * TENSOR_GRAD_STRIP + lane / 4;
    if (strip * TENSOR_GRAD_STRIP >= seq.seq_q)
        return;
    const float4 *sums = (const float4 *)(call.sums + strip_of<dim>(problem, at, call, seq, h, strip)) + lane;
    const float by = fabsf((float)d.scale);
    bool finite[2] = {true, true};
#pragma unroll 4
    for (int n = 0; n < dim / 8; n++) {
        const float4 x = sums[32 * n];
        const float sum[2][2] = {{x.x * by, x.y * by}, {x.z * by, x.w * by}};
#pragma unroll
        for (int half = 0; half < 2; half++) {
            finite[half] = finite[half] && sum[half][0] - sum[half][0] == 0 && sum[half][1] - sum[half][1] == 0;
            if (row + 8 * half < seq.seq_q)
                store_two(fattn_query_row(&at.dq, fattn_dtype_size(d.grad_dtype), &seq, h, row + 8 * half), d.grad_dtype,
                          8 * n + lane % 4 * 2, d.dim, sum[half][0], sum[half][1]);
        }
    }
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const unsigned wrong = __ballot_sync(0xffffffffu, !finite[half] && row + 8 * half < seq.seq_q);
        for (int g = 0; g < 8; g++)
            if (wrong >> (4 * g) & 15)
                query_alone<dim>(&problem, &at, delta, b, 0, h, strip * TENSOR_GRAD_STRIP + g + 8 * half);
    }
}

#define GRADIENTS_BEGIN(type)                                                                                                  \
    extern "C" __global__ void __launch_bounds__(GRAD_THREADS)                                                                 \
        tensor_gradients_begin(const __grid_constant__ fattn_problem problem, const __grid_constant__ fattn_launch at,         \
                               const __grid_constant__ tensor_grad_call call, float *delta, long long sums)                    \
    {                                                                                                                          \
        begin_gradients<type>(problem, at, call, delta, sums);                                                                 \
    }

#define GRADIENTS(name, type, adjusted, least, ...)                                                                            \
    extern "C" __global__ void __launch_bounds__(GRAD_THREADS, least)                                                          \
        name(const __grid_constant__ fattn_problem problem, const __grid_constant__ fattn_launch at,                           \
             const __grid_constant__ tensor_grad_call of_keys, const __grid_constant__ tensor_grad_call of_rows,               \
             const float *delta)                                                                                               \
    {                                                                                                                          \
        const grad_problem g = {&problem, &at, NULL, delta, DTYPE<type>};                                                      \
        if (blockIdx.x < of_keys.blocks)                                                                                       \
            keys<type, sizes<type, __VA_ARGS__>, adjusted, false>(g, of_keys, blockIdx.x);                                     \
        else                                                                                                                   \
            queries<type, sizes<type, __VA_ARGS__>, adjusted>(g, of_rows, blockIdx.x - of_keys.blocks);                        \
    }

#define UNORDERED(name, type, least, dim, ...)                                                                                 \
    extern "C" __global__ void __launch_bounds__(GRAD_THREADS, least)                                                          \
        tensor_unordered_##name(const __grid_constant__ fattn_problem problem, const __grid_constant__ fattn_launch at,        \
                                const __grid_constant__ tensor_grad_call call, const float *delta)                             \
    {                                                                                                                          \
        const grad_problem g = {&problem, &at, NULL, delta, DTYPE<type>};                                                      \
        keys<type, sizes<type, dim, __VA_ARGS__>, false, true>(g, call, blockIdx.x);                                           \
    }                                                                                                                          \
    extern "C" __global__ void __launch_bounds__(GRAD_THREADS)                                                                 \
        tensor_unordered_end_##name(const __grid_constant__ fattn_problem problem, const __grid_constant__ fattn_launch at,    \
                                    const __grid_constant__ tensor_grad_call call, const float *delta)                         \
    {                                                                                                                          \
        end_queries<dim>(problem, at, call, delta);                                                                            \
    }

#endif
