/*
 * What the trainer's kernels share: numbers of both types as floats, singly and four or eight at a time, and sums over a warp
 * and a block in a fixed order. Nothing adds with atomics, so that results are the same bits in every run.
 */
#ifndef TRAIN_CUDA_NUMBERS_CUH
#define TRAIN_CUDA_NUMBERS_CUH

#include <cuda_bf16.h>
#include <stdint.h>

#include "train/cuda/kernels.h"
#include "train/operations.h"

#define KERNEL extern "C" __global__ void __launch_bounds__(CUDA_THREADS)
/* With blocks of so many threads. */
#define KERNEL_OF(threads) extern "C" __global__ void __launch_bounds__(threads)
/* With registers for so many blocks at a time on a multiprocessor. */
#define KERNEL_FOR(blocks) extern "C" __global__ void __launch_bounds__(CUDA_THREADS, blocks)

typedef __nv_bfloat16 bf16;

constexpr int WARP = 32, WARPS = CUDA_THREADS / WARP;

/* ------------------------------------------------------------------------------------------------------------- numbers */

__device__ inline float number(float x)
{
    return x;
}

__device__ inline float number(bf16 x)
{
    return __bfloat162float(x);
}

__device__ inline void set(float &to, float x)
{
    to = x;
}

__device__ inline void set(bf16 &to, float x)
{
    to = __float2bfloat16_rn(x);
}

/* V numbers that follow each other, V 1, 4 or 8. */
template <int V> struct some {
    float x[V];
};

__device__ inline some<4> load_four(const float *p)
{
    const float4 f = *(const float4 *)p;
    return {f.x, f.y, f.z, f.w};
}

__device__ inline some<4> load_four(const bf16 *p)
{
    const uint2 b = *(const uint2 *)p;
    return {__uint_as_float(b.x << 16), __uint_as_float(b.x & 0xffff0000u), __uint_as_float(b.y << 16),
            __uint_as_float(b.y & 0xffff0000u)};
}

__device__ inline some<8> load_eight(const float *p)
{
    const float4 f = *(const float4 *)p, g = *(const float4 *)(p + 4);
    return {f.x, f.y, f.z, f.w, g.x, g.y, g.z, g.w};
}

__device__ inline some<8> load_eight(const bf16 *p)
{
    const uint4 b = *(const uint4 *)p;
    const uint32_t twos[] = {b.x, b.y, b.z, b.w};
    some<8> s;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        s.x[2 * n] = __uint_as_float(twos[n] << 16);
        s.x[2 * n + 1] = __uint_as_float(twos[n] & 0xffff0000u);
    }
    return s;
}

__device__ inline uint32_t two(float low, float high)
{
    const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
    return *(const uint32_t *)&both;
}

__device__ inline void store_four(float *p, const some<4> &s)
{
    *(float4 *)p = make_float4(s.x[0], s.x[1], s.x[2], s.x[3]);
}

__device__ inline void store_four(bf16 *p, const some<4> &s)
{
    *(uint2 *)p = make_uint2(two(s.x[0], s.x[1]), two(s.x[2], s.x[3]));
}

__device__ inline void store_eight(float *p, const some<8> &s)
{
    *(float4 *)p = make_float4(s.x[0], s.x[1], s.x[2], s.x[3]);
    *(float4 *)(p + 4) = make_float4(s.x[4], s.x[5], s.x[6], s.x[7]);
}

__device__ inline void store_eight(bf16 *p, const some<8> &s)
{
    *(uint4 *)p = make_uint4(two(s.x[0], s.x[1]), two(s.x[2], s.x[3]), two(s.x[4], s.x[5]), two(s.x[6], s.x[7]));
}

template <int V, typename T> __device__ inline some<V> load(const T *p)
{
    if constexpr (V == 8)
        return load_eight(p);
    else if constexpr (V == 4)
        return load_four(p);
    else
        return {number(*p)};
}

template <int V, typename T> __device__ inline void store(T *p, const some<V> &s)
{
    if constexpr (V == 8)
        store_eight(p, s);
    else if constexpr (V == 4)
        store_four(p, s);
    else
        set(*p, s.x[0]);
}

/* Can rows that begin at p, `stride` apart, be read four numbers, or eight, at a time? */
template <typename T> __device__ inline bool in_fours(const T *p, int64_t stride)
{
    return (uintptr_t)p % (4 * sizeof(T)) == 0 && stride % 4 == 0;
}

template <typename T> __device__ inline bool in_eights(const T *p, int64_t stride)
{
    return (uintptr_t)p % 16 == 0 && stride % 8 == 0;
}

/* n / d of what is not negative: 32 bits, where they do, are several times faster. */
__device__ inline int64_t quotient(int64_t n, int64_t d)
{
    return (n | d) >> 32 ? n / d : (int64_t)((uint32_t)n / (uint32_t)d);
}

/* 1 / (1 + e^-z) */
__device__ inline float sigmoid(float z)
{
    return 1.0f / (1.0f + expf(-z));
}

/* ---------------------------------------------------------------------------------------------------------------- sums */

__device__ inline int lane()
{
    return threadIdx.x % WARP;
}

__device__ inline int warp()
{
    return threadIdx.x / WARP;
}

/* The warp's number among all of the grid, and how many there are. */
__device__ inline int64_t first_warp()
{
    return (int64_t)blockIdx.x * WARPS + warp();
}

__device__ inline int64_t warp_step()
{
    return (int64_t)gridDim.x * WARPS;
}

template <typename T> __device__ inline T warp_sum(T x)
{
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

__device__ inline float warp_most(float x)
{
#pragma unroll
    for (int step = WARP / 2; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* Over the block's threads; thread 0 gets it. */
__device__ inline double block_sum(double x)
{
    __shared__ double parts[WARPS];
    x = warp_sum(x);
    if (lane() == 0)
        parts[warp()] = x;
    __syncthreads();
    double sum = 0;
    for (int w = 0; w < WARPS && threadIdx.x == 0; w++)
        sum += parts[w];
    return sum;
}

#endif
