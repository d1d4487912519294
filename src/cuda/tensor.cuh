/*
 * What the tensor-core kernels share: tiles of numbers of 16 bits in shared memory, what scores become, and scores by
 * themselves.
 *
 * Shared memory holds rows of 16-byte pieces, piece c of row r at place c ^ r % 8, so that neither ldmatrix nor cp.async meets
 * a bank twice.
 */
#ifndef FATTN_CUDA_TENSOR_CUH
#define FATTN_CUDA_TENSOR_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/dropout.h"
#include "core/sequence.h"
#include "cuda/ptx.cuh"
#include "cuda/tensor.h"

#define LOG2E 1.4426950408889634
#define LN2   0.69314718055994531

constexpr int THREADS = TENSOR_THREADS, PIECE = 8; /* numbers in 16 bytes */

/* Where the rows of a unit stand, in shared memory. */
struct lane_place { /* 32 bytes */
    long long row;  /* -1: there is none */
    int head;
    int pad;
    long long lo, hi;
};

static_assert(sizeof(lane_place) == 32, "TENSOR_FORWARD_SHARED counts on it");

template <class T> __device__ inline float widen(T x);
template <> __device__ inline float widen(__half x)
{
    return __half2float(x);
}
template <> __device__ inline float widen(__nv_bfloat16 x)
{
    return __bfloat162float(x);
}

template <class T> __device__ inline T narrow(float x);
template <> __device__ inline __half narrow(float x)
{
    return __float2half_rn(x);
}
template <> __device__ inline __nv_bfloat16 narrow(float x)
{
    return __float2bfloat16_rn(x);
}

__device__ inline void store_number(void *row, int32_t dtype, long long d, float x)
{
    if (dtype == FATTN_F32)
        ((float *)row)[d] = x;
    else if (dtype == FATTN_F16)
        ((__half *)row)[d] = __float2half_rn(x);
    else
        ((__nv_bfloat16 *)row)[d] = __float2bfloat16_rn(x);
}

__device__ inline float load_number(const void *row, int32_t dtype, long long d)
{
    return dtype == FATTN_F16    ? widen(((const __half *)row)[d])
           : dtype == FATTN_BF16 ? widen(((const __nv_bfloat16 *)row)[d])
           : dtype == FATTN_F32  ? ((const float *)row)[d]
                                 : (float)((const signed char *)row)[d];
}

/* ------------------------------------------------------------------------------------------------------------- loading */

/* Byte of piece c of row r in a tile of rows of `dim` numbers. Two rows of 4 pieces stand in the place of one of 8. */
template <int dim> __device__ __forceinline__ uint32_t piece_at(int r, int c)
{
    return (uint32_t)(r * dim * 2 + ((c ^ (dim < 64 ? r / 2 & 3 : r & 7)) << 4));
}

/* A tile of `rows` rows: row(r) is its address, or NULL: zeros. `lines`: rows are whole pieces, aligned. Columns from `first`
 * on, up to `count` of them; the rest of dim is zeros. */
template <class T, int rows, int dim, class Row>
__device__ __forceinline__ void load_tile(unsigned char *tile, int64_t first, int64_t count, bool lines, Row row)
{
    constexpr int pieces = dim / PIECE, step = THREADS / pieces;
    const int c = threadIdx.x % pieces;
    const uint32_t to = ptx_shared_address(tile);
    for (int r = threadIdx.x / pieces; r < rows; r += step) {
        const T *from = (const T *)row(r);
        if (lines) {
            const bool there = from && c * PIECE < count;
            ptx_cp_async_16(to + piece_at<dim>(r, c), there ? (const void *)(from + first + c * PIECE) : (const void *)tile,
                            there);
            continue;
        }
        T numbers[PIECE];
#pragma unroll
        for (int i = 0; i < PIECE; i++)
            numbers[i] = from && c * PIECE + i < count ? from[first + c * PIECE + i] : narrow<T>(0.0f);
        *(uint4 *)(tile + piece_at<dim>(r, c)) = *(const uint4 *)numbers;
    }
}

/* The same of rows that lie `stride` bytes apart, from `row` on; the first `there` of them exist. Whole pieces only. */
template <int rows, int dim, int threads = THREADS>
__device__ __forceinline__ void load_lines(unsigned char *tile, const char *row, int64_t stride, int there, int64_t count)
{
    constexpr int pieces = dim / PIECE, step = threads / pieces;
    static_assert(rows % step == 0, "every thread has as many rows");
    const int c = threadIdx.x % pieces, first = threadIdx.x / pieces;
    const uint32_t to = ptx_shared_address(tile);
    const char *from = row + first * stride + c * 16;
    const bool columns = c * PIECE < count;
#pragma unroll
    for (int i = 0; i < rows / step; i++, from += step * stride) {
        const bool exists = columns && first + i * step < there;
        ptx_cp_async_16(to + piece_at<dim>(first + i * step, c), exists ? from : row, exists);
    }
}

/* The same as load_tile of signed bytes, which 16-bit numbers hold exactly. */
template <class T, int rows, int dim, class Row>
__device__ inline void load_bytes(unsigned char *tile, int64_t first, int64_t count, Row row)
{
    constexpr int pieces = dim / PIECE, step = THREADS / pieces;
    const int c = threadIdx.x % pieces;
    for (int r = threadIdx.x / pieces; r < rows; r += step) {
        const signed char *from = (const signed char *)row(r);
        T numbers[PIECE];
#pragma unroll
        for (int i = 0; i < PIECE; i++)
            numbers[i] = narrow<T>(from && c * PIECE + i < count ? (float)from[first + c * PIECE + i] : 0.0f);
        *(uint4 *)(tile + piece_at<dim>(r, c)) = *(const uint4 *)numbers;
    }
}

/* The other sign to all numbers of a tile, by the block: a negative scale is the left factor's, which is exact, and the largest
 * score stays the largest product. */
template <int threads> __device__ __forceinline__ void flip_signs(unsigned char *tile, int bytes)
{
    for (int i = threadIdx.x; i < bytes / 4; i += threads)
        ((uint32_t *)tile)[i] ^= 0x80008000u;
    __syncthreads();
}

/* -------------------------------------------------------------------------------------------------------------- scores */

/* What holds for all scores of a call. */
struct scoring {
    float c;     /* what scores are multiplied with to be in log2 units */
    float shift; /* probabilities are 2^shift times what they are: binary16 has few exponents below 1 */
    float scale, cap, keep;
    bool capped, biased, sloped, dropped, bytes;
    fattn_dropout dropout;
};

/* scale is without its sign, which Q has taken. */
__device__ inline scoring scoring_of(const fattn_problem &problem, bool adjusted)
{
    const fattn_desc &d = problem.desc;
    scoring s;
    s.scale = fabsf((float)d.scale);
    s.c = adjusted ? 1.0f : (float)(fabs(d.scale) * LOG2E);
    s.cap = (float)d.softcap;
    s.keep = (float)(1 / (1 - d.dropout));
    s.shift = d.dtype != FATTN_F16 ? 0.0f : d.dropout > 0.75 ? 0.0f : 12.0f;
    s.capped = d.softcap != 0;
    s.biased = (d.flags & FATTN_WITH_BIAS) != 0;
    s.sloped = (d.flags & FATTN_WITH_SLOPES) != 0;
    s.dropped = d.dropout != 0;
    s.bytes = d.kv_dtype == FATTN_I8;
    s.dropout = fattn_dropout_of(&d);
    return s;
}

/* What has the keys lo .. hi - 1 that a row keeps, none where there is no row. */
template <class Row> __device__ inline const Row &kept_by(const Row &row)
{
    return row;
}

/* Keys that any of `count` rows keeps. */
template <class Row> __device__ inline fattn_interval span_of(const Row *rows, int count)
{
    long long lo = INT64_MAX, hi = 0;
    for (int r = threadIdx.x % 32; r < count; r += 32) {
        const auto &row = kept_by(rows[r]);
        if (row.lo < row.hi) {
            lo = min(lo, (long long)row.lo);
            hi = max(hi, (long long)row.hi);
        }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        lo = min(lo, __shfl_xor_sync(0xffffffffu, lo, step));
        hi = max(hi, __shfl_xor_sync(0xffffffffu, hi, step));
    }
    return {lo, hi};
}

/* Whether the rows of a warp, one of them each thread's, keep all keys of a tile of `keys` (2), some (1) or none (0). */
template <class Row, class Key> __device__ inline int kept_of(const Row &row, bool there, Key key, int keys)
{
    const bool all = !there || (row.lo <= key && row.hi >= key + keys);
    const bool some = row.lo < key + keys && row.hi > key;
    if (!__any_sync(0xffffffffu, some))
        return 0;
    return __all_sync(0xffffffffu, all) ? 2 : 1;
}

/* The score of a row with a kept key in double and in log2 units, by a warp. */
__device__ inline double score_alone(const fattn_problem &problem, const fattn_launch &at, const fattn_sequence &seq,
                                     const lane_place &lane, long long key)
{
    const fattn_desc &d = problem.desc;
    const int head_kv = (int)(lane.head / problem.group);
    const bool bytes = d.kv_dtype == FATTN_I8;
    const void *q = fattn_query_row(&at.q, fattn_dtype_size(d.dtype), &seq, lane.head, lane.row);
    const void *k = fattn_key_row(&problem, &at, &at.k, fattn_dtype_size(d.kv_dtype), &seq, head_kv, key);
    double x = 0;
    for (long long c = threadIdx.x % 32; c < d.dim; c += 32)
        x += (double)load_number(q, d.dtype, c) * (double)load_number(k, d.kv_dtype, c);
    for (int step = 16; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    if (bytes)
        x *= (double)at.k_scales[fattn_scale_index(&problem, &at, &seq, head_kv, key)];
    return fattn_score(&problem, &at, &seq, lane.head, lane.row, key, x * d.scale) * LOG2E;
}

#endif
