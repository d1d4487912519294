/*
 * Forward for f32 on tensor cores, every number as three of bf16 (split.h).
 *
 * A unit is as in tensor_forward.cu: ROWS rows of one key/value head's queries against all keys that they keep, in tiles of
 * KEYS keys. There is room for one tile of K and one of V: V comes while scores are computed, the next K while O += P V is.
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
    long long index = blockIdx.x;
    u->problem = &problem;
    u->at = &at;
    /* The last rows first: with a causal mask they take longest. */
    u->first = (call.tiles[0] - 1 - index % call.tiles[0]) * S::rows;
    index /= call.tiles[0];
    u->column = 0;
    u->head_kv = (int)(index % problem.desc.heads_kv);
    u->b = index / problem.desc.heads_kv;
    u->seq = fattn_sequence_of(&problem, &at, u->b);
    u->q = shared;
    u->k = u->q + S::q_bytes;
    u->v = u->k + S::k_bytes;
    u->lane = (lane_place *)(u->v + S::k_bytes);
    return u->first < problem.group * u->seq.seq_q;
}

/* Keys key .. of a list that begins with the unit's first key. */
template <class S>
__device__ __forceinline__ void load_keys(const unit<S> &u, unsigned char *tile, const unsigned char *list, long long key)
{
    split_load<S::keys, S::pitch>(tile, list + key * S::pitch, u.seq.seq_k - key);
    ptx_cp_async_commit();
}

template <class S, bool adjusted>
__device__ inline void forward(const fattn_problem &problem, const fattn_launch &at, const split_call &call)
{
    unit<S> u;
    row_sums<S> sum = {};
    if (!unit_begin(&u, problem, at, call))
        return;
    scoring how = scoring_of(problem, adjusted);
    how.bytes = false; /* their factors are in the parts */
    unit_lanes(&u);
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
        sum.m[m][0] = sum.m[m][1] = -INFINITY;
    const long long start = u.span_lo / S::keys * S::keys, keys = split_keys(problem, at, u.seq, u.head_kv);
    const unsigned char *q = call.parts[0] + (split_queries(problem, at, u.seq, u.head_kv) + u.first) * S::pitch;
    const unsigned char *k = call.parts[1] + keys * S::pitch, *v = call.parts[2] + keys * S::pitch;
    split_load<S::rows, S::pitch>(u.q, q, problem.group * u.seq.seq_q - u.first);
    if (start < u.span_hi)
        load_keys(u, u.k, k, start);
    if (problem.desc.scale < 0) {
        ptx_cp_async_wait<0>();
        __syncthreads();
        flip_queries(u);
    }
    for (long long key = start; key < u.span_hi; key += S::keys) {
        float s[S::m_tiles][S::keys / 8][4];
        const int kept = kept_of(u, key);
        ptx_cp_async_wait<0>();
        __syncthreads();
        load_keys(u, u.v, v, key);
        if (kept) {
            split_product<S::dim, S::m_tiles, S::keys>(u.q, u.k, s);
            if (adjusted)
                adjust_scores<S>(u, how, key, 0, s);
            if (kept == 1)
                drop_keys<S>(u, key, s);
            softmax(&sum, how, s);
            if (adjusted)
                weigh<S>(u, how, key, 0, s);
        }
        ptx_cp_async_wait<0>();
        __syncthreads();
        if (key + S::keys < u.span_hi)
            load_keys(u, u.k, k, key + S::keys);
        if (kept)
            split_add<S::dim, S::m_tiles, S::keys>(s, u.v, sum.o);
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
