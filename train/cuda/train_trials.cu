/*
 * What the trying out of products needs (product.c): random numbers, and a number that stands for all bits of a result.
 */
#include "train/cuda/numbers.cuh"

/* Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014, with the constants of Stafford's mix 13: a
 * permutation of 64-bit numbers, after which neighbours have nothing in common. */
__device__ inline uint64_t mixed(uint64_t z)
{
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* f(i) for all i below n, by the grid's threads. */
template <typename F> __device__ inline void for_each(int64_t n, F f)
{
    for (int64_t i = (int64_t)blockIdx.x * CUDA_THREADS + threadIdx.x; i < n; i += (int64_t)gridDim.x * CUDA_THREADS)
        f(i);
}

/* Numbers of bf16 of both signs, from 1/8 to less than 32; two that follow each other are also such a float. Sums of products
 * of theirs are rounded in most of their additions, so that the order of these shows. */
KERNEL random_numbers(uint16_t *to, int64_t count)
{
    for_each(count, [&](int64_t i) {
        const uint32_t bits = (uint32_t)mixed((uint64_t)i), exponent = 124 + (bits >> 7) % 8;
        to[i] = (uint16_t)((bits & 0x807f) | exponent << 7);
    });
}

/* The sum of all parts[] stands for the bits of count halves of words, each with its place. */
KERNEL digest_bits(const uint16_t *of, int64_t count, uint64_t *parts)
{
    __shared__ uint64_t warps[WARPS];
    uint64_t sum = 0;
    for_each(count, [&](int64_t i) { sum += mixed((uint64_t)i << 16 | of[i]); });
    sum = warp_sum(sum);
    if (lane() == 0)
        warps[warp()] = sum;
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (int w = 1; w < WARPS; w++)
        sum += warps[w];
    parts[blockIdx.x] = sum;
}
