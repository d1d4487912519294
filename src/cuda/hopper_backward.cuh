/*
 * What the three launches of Hopper's backward share: where blocks of rows and tiles of keys lie, and how rows are written.
 */
#ifndef FATTN_CUDA_HOPPER_BACKWARD_CUH
#define FATTN_CUDA_HOPPER_BACKWARD_CUH

#include "cuda/hopper_backward.h"
#include "cuda/hopper_tiles.cuh"
#include "cuda/tensor_gradient.cuh"

constexpr int KEYS = HOPPER_BACKWARD_KEYS, HALF = KEYS / 2;

/* The numbers of a block's rows, [HOPPER_ROW_NUMBERS][rows], by which array: what S and dP start from, -lse / scale and -D, and
 * the keys that the row keeps. The first is infinite, so that P is 0, where there is no such row or no score above -inf. */
enum { NUMBER_LSE, NUMBER_DELTA, NUMBER_LO, NUMBER_HI };

/* Keys that a block's rows keep: any of them those in lo .. hi - 1, all of them those in all_lo .. all_hi - 1. */
struct block_span {
    int lo, hi, all_lo, all_hi;
};

/* The first block of sequence b. */
template <int rows>
__device__ __forceinline__ int first_block(const fattn_launch &at, const hopper_backward_call &call, long long b)
{
    return at.cu_q ? (int)(at.cu_q[b] / rows + b) : (int)(b * call.row_blocks);
}

/* The sequence that block number `block` of a head belongs to. */
template <int rows>
__device__ inline long long sequence_of_block(const fattn_launch &at, const hopper_backward_call &call, long long batch,
                                              int block)
{
    if (!at.cu_q)
        return block / call.row_blocks; /* of 32 bits */
    long long lo = 0, hi = batch;       /* first_block(lo) <= block < first_block(hi) */
    while (hi - lo > 1) {
        const long long middle = lo + (hi - lo) / 2;
        if (first_block<rows>(at, call, middle) <= block)
            lo = middle;
        else
            hi = middle;
    }
    return lo;
}

/* Its sequence, and its first row there, which may lie behind the last. */
template <int rows>
__device__ __forceinline__ fattn_sequence block_rows(const fattn_problem &problem, const fattn_launch &at,
                                                     const hopper_backward_call &call, int block, long long *first)
{
    const long long b = sequence_of_block<rows>(at, call, problem.desc.batch, block);
    *first = (long long)(block - first_block<rows>(at, call, b)) * rows;
    return fattn_sequence_of(&problem, &at, b);
}

/* A tile of keys: number `number` of a key/value head of a sequence. */
struct key_tile {
    int b, head, number;
};

/* Tile number t in the order in which they are taken. */
__device__ __forceinline__ key_tile tile_of(const hopper_backward_call &call, int heads_kv, int heads, int t)
{
    const int section = t / (call.together * call.key_tiles), rest = t - section * call.together * call.key_tiles;
    const int width = min(call.together, heads - section * call.together);
    const int number = rest / width, head = section * call.together + rest - number * width;
    return {head / heads_kv, head % heads_kv, number};
}

/* Where element (row, column) of a block of sums lies, in pieces of four floats: a lane's two rows and two columns of m64n8,
 * j of a warp's part of a product of 64 rows and 64 columns. */
__device__ __forceinline__ int sums_at(int piece, int warp, int j)
{
    return ((piece * 4 + warp) * 8 + j) * 32 + (int)threadIdx.x % 32;
}

/* 0, or NaN if a number of half 0 or 1 of a lane's two rows is not finite. */
template <int n> __device__ __forceinline__ float doubt_of(const float (&d)[n], int half)
{
    float doubt = 0;
#pragma unroll
    for (int j = 0; j < n / 4; j++)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; e++)
            doubt = fmaf(d[4 * j + e], 0.0f, doubt);
    return doubt;
}

#endif
