/*
 * Lists of numbers split in parts (split.h): loading pieces of them, and products.
 *
 * Tensor cores truncate where they add, each time, so sums of many products would drift towards 0. Here a sum is of one tile's
 * products; the products of first parts, which are few, are summed apart from those that are 2^-8 of them or less; and
 * what is carried from tile to tile is added in float, rounded.
 */
#ifndef FATTN_CUDA_SPLIT_CUH
#define FATTN_CUDA_SPLIT_CUH

#include "cuda/split.h"
#include "cuda/tensor.cuh"

typedef __nv_bfloat16 part;

/* Numbers of the first row of a key/value head's queries, or of its keys, in a list of all. */
__device__ inline long long split_queries(const fattn_problem &problem, const fattn_launch &at, const fattn_sequence &seq,
                                          int head_kv)
{
    return (at.cu_q ? seq.q_first : seq.b * problem.desc.seq_q) * problem.desc.heads_q + head_kv * problem.group * seq.seq_q;
}

__device__ inline long long split_keys(const fattn_problem &problem, const fattn_launch &at, const fattn_sequence &seq,
                                       int head_kv)
{
    return (at.cu_k ? seq.k_first : seq.b * problem.desc.seq_k) * problem.desc.heads_kv + head_kv * seq.seq_k;
}

/* `rows` rows of a list into a tile; only the first `there` of them exist, the others become zeros. */
template <int rows, int pitch>
__device__ __forceinline__ void split_load(unsigned char *tile, const unsigned char *from, long long there)
{
    const int bytes = (int)min(there, (long long)rows) * pitch;
    const uint32_t to = ptx_shared_address(tile);
#pragma unroll
    for (int i = 0; i < (rows * pitch / 16 + THREADS - 1) / THREADS; i++) {
        const int at = (i * THREADS + (int)threadIdx.x) * 16;
        if (at < rows * pitch)
            ptx_cp_async_16(to + at, from + (at < bytes ? at : 0), at < bytes);
    }
}

/* Parts of two numbers; of numbers that are not finite, the first part is them and the rest anything. */
__device__ __forceinline__ void split_pair(float x, float y, uint32_t parts[SPLIT_PARTS])
{
#pragma unroll
    for (int i = 0; i < SPLIT_PARTS; i++) {
        parts[i] = ptx_pack(x, y, part());
        x -= __uint_as_float(parts[i] << 16);
        y -= __uint_as_float(parts[i] & 0xffff0000u);
    }
}

/* The left factors of 16 x 16 numbers from 16 rows of a tile; at: the lane's address. */
template <int dim> __device__ __forceinline__ void split_left(uint32_t a[SPLIT_PARTS][4], uint32_t at)
{
#pragma unroll
    for (int i = 0; i < SPLIT_PARTS; i++)
        ptx_ldmatrix_x4(a[i], at + i * dim * 2);
}

/* big += products of first parts, small += those of the other parts that count, for `pairs` pairs of n-tiles from tile `first`
 * on. */
template <int m_tiles, int pairs, int n_tiles>
__device__ __forceinline__ void split_multiply(const uint32_t a[m_tiles][SPLIT_PARTS][4],
                                               const uint32_t b[pairs][SPLIT_PARTS][4], int first,
                                               float big[m_tiles][n_tiles][4], float small[m_tiles][n_tiles][4])
{
    constexpr int left[] = {2, 0, 1, 1, 0, 0}, right[] = {0, 2, 1, 0, 1, 0}; /* the smallest first */
#pragma unroll
    for (int i = 0; i < 6; i++)
#pragma unroll
        for (int m = 0; m < m_tiles; m++)
#pragma unroll
            for (int n = 0; n < 2 * pairs; n++)
                ptx_mma(i < 5 ? small[m][first + n] : big[m][first + n], a[m][left[i]], b[n / 2][right[i]] + n % 2 * 2, part());
}

template <int m_tiles, int n_tiles> __device__ __forceinline__ void split_clear(float x[m_tiles][n_tiles][4])
{
#pragma unroll
    for (int m = 0; m < m_tiles; m++)
#pragma unroll
        for (int n = 0; n < n_tiles; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                x[m][n][e] = 0;
}

/* acc = the warp's own rows, 16 m_tiles of them, times `others` rows of another tile, over dim. */
template <int dim, int m_tiles, int others>
__device__ __forceinline__ void split_product(const unsigned char *own, const unsigned char *other,
                                              float acc[m_tiles][others / 8][4])
{
    constexpr int pitch = SPLIT_PITCH(dim), pairs = others % 32 == 0 ? 2 : 1;
    const int lane = threadIdx.x % 32;
    const uint32_t a_at = ptx_shared_address(own) + (threadIdx.x / 32 * 16 * m_tiles + lane % 16) * pitch + lane / 16 * 16;
    const uint32_t b_at = ptx_shared_address(other) + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 16;
    float small[m_tiles][others / 8][4];
    split_clear<m_tiles, others / 8>(acc);
    split_clear<m_tiles, others / 8>(small);
#pragma unroll
    for (int d = 0; d < dim / 16; d++) {
        uint32_t a[m_tiles][SPLIT_PARTS][4];
#pragma unroll
        for (int m = 0; m < m_tiles; m++)
            split_left<dim>(a[m], a_at + 16 * m * pitch + 32 * d);
#pragma unroll
        for (int n = 0; n < others / 16; n += pairs) {
            uint32_t b[pairs][SPLIT_PARTS][4];
#pragma unroll
            for (int i = 0; i < pairs; i++)
                split_left<dim>(b[i], b_at + 16 * (n + i) * pitch + 32 * d);
            split_multiply<m_tiles, pairs, others / 8>(a, b, 2 * n, acc, small);
        }
    }
#pragma unroll
    for (int m = 0; m < m_tiles; m++)
#pragma unroll
        for (int n = 0; n < others / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                acc[m][n][e] += small[m][n][e];
}

/* sum += weights times `others` rows of another tile: weight[m-tile][n-tile][4], as products leave them. */
template <int dim, int m_tiles, int others>
__device__ __forceinline__ void split_add(const float weight[m_tiles][others / 8][4], const unsigned char *other,
                                          float sum[m_tiles][dim / 8][4])
{
    constexpr int pitch = SPLIT_PITCH(dim), steps = others / 16, pairs = 2;
    const uint32_t b_at = ptx_shared_address(other) + threadIdx.x % 16 * pitch + threadIdx.x % 32 / 16 * 16;
    uint32_t a[steps][m_tiles][SPLIT_PARTS][4];
#pragma unroll
    for (int k = 0; k < steps; k++)
#pragma unroll
        for (int m = 0; m < m_tiles; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                uint32_t parts[SPLIT_PARTS];
                split_pair(weight[m][2 * k + e / 2][e % 2 * 2], weight[m][2 * k + e / 2][e % 2 * 2 + 1], parts);
#pragma unroll
                for (int i = 0; i < SPLIT_PARTS; i++)
                    a[k][m][i][e] = parts[i];
            }
#pragma unroll
    for (int n = 0; n < dim / 16; n += pairs) {
        float big[m_tiles][2 * pairs][4], small[m_tiles][2 * pairs][4];
        split_clear<m_tiles, 2 * pairs>(big);
        split_clear<m_tiles, 2 * pairs>(small);
#pragma unroll
        for (int k = 0; k < steps; k++) {
            uint32_t b[pairs][SPLIT_PARTS][4];
#pragma unroll
            for (int j = 0; j < pairs; j++)
#pragma unroll
                for (int i = 0; i < SPLIT_PARTS; i++)
                    ptx_ldmatrix_x4_trans(b[j][i], b_at + 16 * k * pitch + 2 * dim * i + 32 * (n + j));
            split_multiply<m_tiles, pairs, 2 * pairs>(a[k], b, 0, big, small);
        }
#pragma unroll
        for (int m = 0; m < m_tiles; m++)
#pragma unroll
            for (int i = 0; i < 2 * pairs; i++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sum[m][2 * n + i][e] += big[m][i][e] + small[m][i][e];
    }
}

#endif
