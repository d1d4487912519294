/*
 * Lists of numbers split in parts (split.h): loading pieces of them, and products.
 *
 * Tensor cores truncate where they add, each time, so sums of many products would drift towards 0. Here a sum is of one tile's
 * products, and what is carried from tile to tile is added in float, rounded. Of products of rows with rows (split_product)
 * those with a second part, which are in 2^-11 of the unit, are summed apart from those of first parts; of weights with rows
 * (split_add) all are in one sum, the small ones first.
 */
#ifndef FATTN_CUDA_SPLIT_CUH
#define FATTN_CUDA_SPLIT_CUH

#include <cfloat>

#include "cuda/split.h"
#include "cuda/tensor.cuh"

typedef __half part;

constexpr float SECOND = 0x1p-11f; /* what second parts are in */

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

/* The tiles of keys that a warp's rows keep: some keys of those from `some` to `some_end`, all of those from `all` to
 * `all_end`.
 */
struct split_kept {
    int some, some_end, all, all_end;

    __device__ bool any_of(int tile) const
    {
        return tile >= some && tile < some_end;
    }
    __device__ bool all_of(int tile) const
    {
        return tile >= all && tile < all_end;
    }
};

/* place: of one of the rows, each lane's. */
__device__ __forceinline__ split_kept split_kept_of(const lane_place &place, int keys)
{
    const bool there = place.row >= 0, any = there && place.lo < place.hi;
    split_kept kept;
    kept.some = __reduce_min_sync(0xffffffffu, any ? (int)(place.lo / keys) : INT32_MAX);
    kept.some_end = __reduce_max_sync(0xffffffffu, any ? (int)((place.hi + keys - 1) / keys) : 0);
    kept.all = __reduce_max_sync(0xffffffffu, there ? (int)((place.lo + keys - 1) / keys) : 0);
    kept.all_end = __reduce_min_sync(0xffffffffu, there ? (int)(place.hi / keys) : INT32_MAX);
    return kept;
}

/* `rows` rows of a list into a tile; only the first `there` of them exist, the others become zeros. */
template <int rows, int pitch>
__device__ __forceinline__ void split_load(unsigned char *tile, const unsigned char *from, long long there)
{
    const int bytes = (int)min(there, (long long)rows) * pitch - (int)threadIdx.x * 16;
    const uint32_t to = ptx_shared_address(tile) + threadIdx.x * 16;
    const unsigned char *own = from + threadIdx.x * 16; /* not read where nothing is there */
#pragma unroll
    for (int i = 0; i < (rows * pitch / 16 + THREADS - 1) / THREADS; i++)
        if ((i + 1) * THREADS * 16 <= rows * pitch || (i * THREADS + (int)threadIdx.x) * 16 < rows * pitch)
            ptx_cp_async_16(to + i * THREADS * 16, own + i * THREADS * 16, i * THREADS * 16 < bytes);
}

/* Parts of two numbers of at most 2^15; of larger ones, or such that are not finite, the first is not finite. */
__device__ __forceinline__ void split_pair(float x, float y, uint32_t parts[SPLIT_PARTS])
{
    parts[0] = ptx_pack(x, y, part());
    const float2 first = __half22float2(*(const __half2 *)&parts[0]);
    parts[1] = ptx_pack((x - first.x) * (1 / SECOND), (y - first.y) * (1 / SECOND), part());
}

/* The same of two weights, of which second parts are in the unit too, and the first parts in SECOND of it, to be multiplied
 * with second parts. Then one sum takes all products. Numbers below 2^-17 of the largest have fewer bits here, the last worth
 * 2^-40 of the largest. */
__device__ __forceinline__ void split_weights(float x, float y, uint32_t *first, uint32_t *first_small, uint32_t *second)
{
    *first = ptx_pack(x, y, part());
    const __half2 parts = *(const __half2 *)first, small = __hmul2(parts, __float2half2_rn(SECOND));
    const float2 wide = __half22float2(parts);
    *first_small = *(const uint32_t *)&small;
    *second = ptx_pack(x - wide.x, y - wide.y, part());
}

/* The power of two that numbers are multiplied with to become at most 2^15, the largest at least 2^14 if it is not tiny; its
 * inverse too is a normal float. An infinity stays one. */
__device__ __forceinline__ float split_scale(uint32_t largest)
{
    return __uint_as_float(min(268 - (largest >> 23), 253u) << 23);
}

/* The power of two in a number, of a tiny one the least that is a normal float. */
__device__ __forceinline__ float split_power(float x)
{
    return __uint_as_float(max(__float_as_uint(x) & 0x7f800000u, 1u << 23));
}

__device__ __forceinline__ float split_inverse(float scale)
{
    return __uint_as_float((254u << 23) - __float_as_uint(scale));
}

template <int dim> __device__ __forceinline__ const split_units &split_units_of(const unsigned char *row)
{
    return *(const split_units *)(row + SPLIT_UNIT(dim));
}

/* x, of own rows and rows of another tile, times the shares of the other's rows. */
template <int dim, int m_tiles, int others>
__device__ __forceinline__ void split_share(const unsigned char *other, float x[m_tiles][others / 8][4])
{
#pragma unroll
    for (int n = 0; n < others / 8; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int row = 8 * n + threadIdx.x % 4 * 2 + i;
            const float share = split_units_of<dim>(other + row * SPLIT_PITCH(dim)).share;
#pragma unroll
            for (int m = 0; m < m_tiles; m++) {
                x[m][n][i] *= share;
                x[m][n][i + 2] *= share;
            }
        }
}

/* The left factors of 16 x 16 numbers from 16 rows of a tile; at: the lane's address. */
template <int dim> __device__ __forceinline__ void split_left(uint32_t a[SPLIT_PARTS][4], uint32_t at)
{
#pragma unroll
    for (int i = 0; i < SPLIT_PARTS; i++)
        ptx_ldmatrix_x4(a[i], at + i * dim * 2);
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

/* The units of the warp's m-tile m of own rows: those of its first row. */
template <int dim, int m_tiles> __device__ __forceinline__ const split_units &split_own_units(const unsigned char *own, int m)
{
    return split_units_of<dim>(own + (threadIdx.x / 32 * m_tiles + m) * 16 * SPLIT_PITCH(dim));
}

/* The units of products of a warp's m-tiles with a tile. Returns whether split_settle has to come before they are used. */
template <int dim, int m_tiles>
__device__ __forceinline__ bool split_product_units(const unsigned char *own, const unsigned char *other, float unit[m_tiles])
{
    const split_units &tile = split_units_of<dim>(other);
    bool odd = tile.uneven;
#pragma unroll
    for (int m = 0; m < m_tiles; m++) {
        const split_units &rows = split_own_units<dim, m_tiles>(own, m);
        unit[m] = rows.tile * tile.tile;
        odd = odd || rows.uneven || unit[m] < FLT_MIN; /* or there are no rows */
    }
    return odd;
}

/* Products take the shares of the rows, and where their unit would be no normal float, that of the own rows. */
template <int dim, int m_tiles, int others>
__device__ __forceinline__ void split_settle(const unsigned char *own, const unsigned char *other,
                                             float acc[m_tiles][others / 8][4], float unit[m_tiles])
{
    split_share<dim, m_tiles, others>(other, acc);
#pragma unroll
    for (int m = 0; m < m_tiles; m++) {
        const unsigned char *rows = own + (threadIdx.x / 32 * m_tiles + m) * 16 * SPLIT_PITCH(dim);
        const bool tiny = unit[m] < FLT_MIN;
        if (tiny)
            unit[m] = split_units_of<dim>(other).tile;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const split_units &row = split_units_of<dim>(rows + (half * 8 + threadIdx.x % 32 / 4) * SPLIT_PITCH(dim));
#pragma unroll
            for (int n = 0; n < others / 8; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++)
                    acc[m][n][e] *= tiny ? row.row : row.share;
        }
    }
}

/* acc = the warp's own rows, 16 m_tiles of them, times `others` rows of another tile, over dim, in the units of both. */
template <int dim, int m_tiles, int others>
__device__ __forceinline__ void split_product(const unsigned char *own, const unsigned char *other,
                                              float acc[m_tiles][others / 8][4])
{
    constexpr int pitch = SPLIT_PITCH(dim), pairs = others % 32 == 0 ? 2 : 1;
    const int lane = threadIdx.x % 32;
    const uint32_t a_at = ptx_shared_address(own) + (threadIdx.x / 32 * 16 * m_tiles + lane % 16) * pitch + lane / 16 * 16;
    const uint32_t b_at = ptx_shared_address(other) + (lane % 8 + lane / 16 * 8) * pitch + lane / 8 % 2 * 16;
    float small[m_tiles][others / 8][4]; /* sums of products with a second part */
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
#pragma unroll
            for (int i = 0; i < 3; i++)
#pragma unroll
                for (int m = 0; m < m_tiles; m++)
#pragma unroll
                    for (int j = 0; j < 2 * pairs; j++)
                        ptx_mma(i < 2 ? small[m][2 * n + j] : acc[m][2 * n + j], a[m][i == 0], b[j / 2][i == 1] + j % 2 * 2,
                                part());
        }
    }
#pragma unroll
    for (int m = 0; m < m_tiles; m++)
#pragma unroll
        for (int n = 0; n < others / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                acc[m][n][e] = fmaf(small[m][n][e], SECOND, acc[m][n][e]);
}

/* The powers of two with which a tile's weights are at most 2^15: of each m-tile those of a thread's two rows. */
template <int m_tiles> struct split_scales {
    float of[m_tiles][2];
};

/* As split_scale, of weights for rows in `unit`: unit / scale is not 0, so that what is so small that it would be keeps as many
 * bits as a float has there. */
__device__ __forceinline__ float split_weight_scale(float largest, float unit)
{
    const uint32_t most = (__float_as_uint(unit) >> 23) + 148;
    return __uint_as_float(min(268 - (__float_as_uint(largest) >> 23), min(most, 253u)) << 23);
}

/* Nearly the same, of weights up to 2^x, x <= 0, in few instructions. */
__device__ __forceinline__ float split_power_scale(float x, float unit)
{
    constexpr float whole = 0x1.8p23f; /* the last bits of this and a number are those of the number, rounded */
    const int least = max(-112, -7 - (int)(__float_as_uint(unit) >> 23)), bits = __float_as_int(whole);
    return __int_as_float((141 - (max(__float_as_int(whole + x), bits + least) - bits)) << 23);
}

/* Weights take the shares of the other tile's rows, unless they have them. Returns their scales: of the largest of each of the
 * unit's own rows or keys. */
template <int dim, int m_tiles, int others, bool shared = false>
__device__ __forceinline__ split_scales<m_tiles> split_scales_of(const unsigned char *other,
                                                                 float weight[m_tiles][others / 8][4])
{
    constexpr int n_tiles = others / 8;
    const split_units &tile = split_units_of<dim>(other);
    split_scales<m_tiles> scale;
    if (!shared && tile.uneven)
        split_share<dim, m_tiles, others>(other, weight);
#pragma unroll
    for (int m = 0; m < m_tiles; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float largest = 0;
#pragma unroll
            for (int n = 0; n < n_tiles; n++)
                largest = fmaxf(largest, fmaxf(fabsf(weight[m][n][2 * half]), fabsf(weight[m][n][2 * half + 1])));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
            scale.of[m][half] = split_weight_scale(largest, tile.tile);
        }
    return scale;
}

/* sum += weights times `others` rows of another tile: weight[m-tile][n-tile][4], as products leave them. */
template <int dim, int m_tiles, int others>
__device__ __forceinline__ void split_add(const float weight[m_tiles][others / 8][4], const split_scales<m_tiles> &scale,
                                          const unsigned char *other, float sum[m_tiles][dim / 8][4])
{
    constexpr int pitch = SPLIT_PITCH(dim), steps = others / 16, pairs = dim < 128 ? 2 : 1; /* registers */
    const uint32_t b_at = ptx_shared_address(other) + threadIdx.x % 16 * pitch + threadIdx.x % 32 / 16 * 16;
    const float unit = split_units_of<dim>(other).tile;
    uint32_t a[steps][m_tiles][3][4];
#pragma unroll
    for (int k = 0; k < steps; k++)
#pragma unroll
        for (int m = 0; m < m_tiles; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const float *two = &weight[m][2 * k + e / 2][e % 2 * 2];
                split_weights(two[0] * scale.of[m][e % 2], two[1] * scale.of[m][e % 2], &a[k][m][0][e], &a[k][m][1][e],
                              &a[k][m][2][e]);
            }
#pragma unroll
    for (int n = 0; n < dim / 16; n += pairs) {
        if (dim == 256 && n % 4 == 0) /* else the compiler looks so far ahead that registers are spilled */
            __syncwarp();
        float acc[m_tiles][2 * pairs][4];
        uint32_t b[steps][SPLIT_PARTS][pairs][4];
        split_clear<m_tiles, 2 * pairs>(acc);
#pragma unroll
        for (int k = 0; k < steps; k++)
#pragma unroll
            for (int j = 0; j < pairs; j++)
#pragma unroll
                for (int i = 0; i < SPLIT_PARTS; i++)
                    ptx_ldmatrix_x4_trans(b[k][i][j], b_at + 16 * k * pitch + 2 * dim * i + 32 * (n + j));
#pragma unroll
        for (int i = 2; i >= 0; i--) /* the small ones first: what is added to large sums is truncated most */
#pragma unroll
            for (int k = 0; k < steps; k++)
#pragma unroll
                for (int m = 0; m < m_tiles; m++)
#pragma unroll
                    for (int j = 0; j < 2 * pairs; j++)
                        ptx_mma(acc[m][j], a[k][m][i], b[k][i == 1][j / 2] + j % 2 * 2, part());
#pragma unroll
        for (int m = 0; m < m_tiles; m++)
#pragma unroll
            for (int i = 0; i < 2 * pairs; i++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sum[m][2 * n + i][e] = fmaf(acc[m][i][e], unit * split_inverse(scale.of[m][e / 2]), sum[m][2 * n + i][e]);
    }
}

#endif
