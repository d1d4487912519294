/*
 * Forward for f32 on tensor cores, every number as two of binary16 (split.h).
 *
 * A unit is as in tensor_forward.cu: ROWS rows of one key/value head's queries against all keys that they keep, in tiles of
 * KEYS keys. There is room for two tiles of K and of V: the next come while one is at work.
 */
#include "cuda/forward.cuh"
#include "cuda/split.cuh"

/* -------------------------------------------------------------------------------------------------------------- a unit */

/* Sizes of a kernel: dims padded, m-tiles per warp, keys per tile. */
template <int dim_, int m_tiles_, int keys_> struct sizes {
    static constexpr int dim = dim_, width = dim_, m_tiles = m_tiles_, keys = keys_, parts = SPLIT_PARTS;
    static constexpr int rows = TENSOR_ROWS(m_tiles), pitch = SPLIT_PITCH(dim);
    static constexpr int q_bytes = rows * pitch, k_bytes = keys * pitch;
};

/* Returns whether there are such rows. */
template <class S>
__device__ inline bool unit_begin(unit<S> *u, const fattn_problem &problem, const fattn_launch &at, const split_call &call)
{
    extern __shared__ __align__(128) unsigned char shared[];
    const unsigned heads = (unsigned)problem.desc.heads_kv, batch = (unsigned)problem.desc.batch;
    u->problem = &problem;
    u->at = &at;
    u->column = 0;
    u->head_kv = (int)(blockIdx.x % heads);
    u->b = blockIdx.x / heads % batch;
    /* The last rows of all sequences and heads first: with a causal mask they take longest. */
    u->first = (call.tiles[0] - 1 - blockIdx.x / heads / batch) * S::rows;
    u->seq = fattn_sequence_of(&problem, &at, u->b);
    u->q = shared;
    u->k = u->q + S::q_bytes;
    u->v = u->k + 2 * S::k_bytes;
    u->lane = (lane_place *)(u->v + 2 * S::k_bytes);
    return u->first < problem.group * u->seq.seq_q;
}

/* Scores in their units become scores, and the units 1. */
template <class S> __device__ __forceinline__ void take_units(float s[S::m_tiles][S::keys / 8][4], float unit[S::m_tiles])
{
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++) {
#pragma unroll
        for (int n = 0; n < S::keys / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[m][n][e] *= unit[m];
        unit[m] = 1;
    }
}

/* As softmax, of scores in units. The reference is the largest product itself, so that distances from it are exact. Returns the
 * scales of the probabilities, which take the shares of the tile's rows of values: a tile may have small ones only. */
template <class S, bool adjusted>
__device__ __forceinline__ split_scales<S::m_tiles> softmax_in_units(row_sums<S> *sum, float c, const float unit[S::m_tiles],
                                                                     const unsigned char *v_tile,
                                                                     float s[S::m_tiles][S::keys / 8][4])
{
    const split_units &v_units = split_units_of<S::dim>(v_tile);
    split_scales<S::m_tiles> scales;
    float correction[S::m_tiles][2];
    bool rare = false; /* once there are many keys */
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float before = sum->m[m][half];
            float of_tile = -INFINITY, l[2] = {0, 0};
#pragma unroll
            for (int n = 0; n < S::keys / 8; n++)
                of_tile = fmaxf(of_tile, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
            of_tile *= unit[m];
            of_tile = fmaxf(of_tile, __shfl_xor_sync(0xffffffffu, of_tile, 1));
            of_tile = fmaxf(of_tile, __shfl_xor_sync(0xffffffffu, of_tile, 2));
            const float most = fmaxf(before, of_tile), from = most == -INFINITY ? 0.0f : most;
            correction[m][half] = ptx_exp2((before - from) * c);
            scales.of[m][half] = split_power_scale((of_tile - from) * c, v_units.tile);
#pragma unroll
            for (int n = 0; n < S::keys / 8; n++) {
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++)
                    s[m][n][e] = ptx_exp2(fmaf(s[m][n][e], unit[m], -from) * c);
                l[n % 2] += s[m][n][2 * half] + s[m][n][2 * half + 1];
            }
            sum->m[m][half] = most;
            sum->l[m][half] = sum->l[m][half] * correction[m][half] + (l[0] + l[1]);
            rare = rare || correction[m][half] != 1;
        }
    if (__any_sync(0xffffffffu, rare || (!adjusted && v_units.uneven))) {
#pragma unroll
        for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
            for (int n = 0; n < S::width / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    sum->o[m][n][e] *= correction[m][e / 2];
        if (!adjusted && v_units.uneven)
            scales = split_scales_of<S::dim, S::m_tiles, S::keys>(v_tile, s);
    }
    return scales;
}

template <class S, bool adjusted>
__device__ inline void forward(const fattn_problem &problem, const fattn_launch &at, const split_call &call)
{
    unit<S> u;
    row_sums<S> sum = {};
    const bool there = unit_begin(&u, problem, at, call);
    if (there)
        unit_lanes(&u);
    ptx_wait_for_grids_before(); /* the lists; no launch ends before those before it */
    if (!there)
        return;
    scoring how = scoring_of(problem, adjusted);
    how.bytes = false; /* their factors are in the parts */
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
        sum.m[m][0] = sum.m[m][1] = -INFINITY;
    const int first = u.span_lo < u.span_hi ? (int)(u.span_lo / S::keys) : 0, end = (int)((u.span_hi + S::keys - 1) / S::keys);
    const split_kept kept = split_kept_of(u.lane[u.warp_row() + threadIdx.x % 32 % (16 * S::m_tiles)], S::keys);
    const long long keys = split_keys(problem, at, u.seq, u.head_kv);
    const unsigned char *k = call.parts[1] + keys * S::pitch, *v = call.parts[2] + keys * S::pitch;
    const auto load = [&](int tile) {
        const long long key = (long long)tile * S::keys;
        const int stage = (tile - first) % 2 * S::k_bytes;
        split_load<S::keys, S::pitch>(u.k + stage, k + key * S::pitch, u.seq.seq_k - key);
        split_load<S::keys, S::pitch>(u.v + stage, v + key * S::pitch, u.seq.seq_k - key);
    };
    split_load<S::rows, S::pitch>(u.q, call.parts[0] + (split_queries(problem, at, u.seq, u.head_kv) + u.first) * S::pitch,
                                  problem.group * u.seq.seq_q - u.first);
    if (first < end)
        load(first);
    ptx_cp_async_commit();
    for (int tile = first; tile < end; tile++) {
        float s[S::m_tiles][S::keys / 8][4], unit[S::m_tiles];
        const unsigned char *k_tile = u.k + (tile - first) % 2 * S::k_bytes, *v_tile = u.v + (tile - first) % 2 * S::k_bytes;
        const long long key = (long long)tile * S::keys;
        ptx_cp_async_wait<0>();
        __syncthreads();
        if (tile + 1 < end)
            load(tile + 1);
        ptx_cp_async_commit();
        if (!kept.any_of(tile))
            continue;
        split_product<S::dim, S::m_tiles, S::keys>(u.q, k_tile, s);
        const bool odd = __any_sync(0xffffffffu, split_product_units<S::dim, S::m_tiles>(u.q, k_tile, unit));
        const bool whole = kept.all_of(tile);
        if (adjusted) {
            if (odd)
                split_settle<S::dim, S::m_tiles, S::keys>(u.q, k_tile, s, unit);
            take_units<S>(s, unit);
            adjust_scores<S>(u, how, key, 0, s);
            if (!whole)
                drop_keys<S>(u, key, s);
        } else if (odd || !whole) { /* rare, and one branch */
            if (odd)
                split_settle<S::dim, S::m_tiles, S::keys>(u.q, k_tile, s, unit);
            drop_keys<S>(u, key, s);
        }
        split_scales<S::m_tiles> scales = softmax_in_units<S, adjusted>(&sum, how.c, unit, v_tile, s);
        if (adjusted) {
            weigh<S>(u, how, key, 0, s);
            scales = split_scales_of<S::dim, S::m_tiles, S::keys>(v_tile, s);
        }
        split_add<S::dim, S::m_tiles, S::keys>(s, scales, v_tile, sum.o);
    }
    ptx_cp_async_wait<0>(); /* of a unit whose rows keep nothing */
    finish_rows(u, how, &sum);
}

/* ------------------------------------------------------------------------------------------------------------- kernels */

#define FORWARD(name, adjusted, blocks, ...)                                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS, blocks)                                                              \
        name(const __grid_constant__ fattn_problem problem, const __grid_constant__ fattn_launch at,                           \
             const __grid_constant__ split_call call)                                                                          \
    {                                                                                                                          \
        forward<sizes<__VA_ARGS__>, adjusted>(problem, at, call);                                                              \
    }

#define FORWARDS(dim, m, keys, blocks, m_adjusted, keys_adjusted, blocks_adjusted)                                             \
    FORWARD(split_forward_##dim, false, blocks, dim, m, keys)                                                                  \
    FORWARD(split_forward_##dim##_adjusted, true, blocks_adjusted, dim, m_adjusted, keys_adjusted)

SPLIT_FORWARD_SIZES(FORWARDS)
