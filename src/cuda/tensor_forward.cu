/*
 * Forward for numbers of 16 bits on the tensor cores of compute capability 8.0 and later: mma.sync, ldmatrix, cp.async
 * (FlashAttention-2, Dao 2023).
 *
 * A unit is ROWS rows of one key/value head's queries, 16 or 32 per warp, against all keys that they keep, in tiles of KEYS
 * keys of which the next is on its way while one is at work. S = Q K^T, P and O stay in the registers of the warp that owns
 * their rows: an accumulator of S has the shape of the left factor of P V. P is rounded to the inputs' type, sums are float.
 *
 * A row whose result is not finite is computed again by itself (row_apart): in a tile P = 0 of a key that the row does not keep
 * meets that key's value, and 0 times an infinity or a NaN is NaN.
 */
#include "cuda/forward.cuh"

/* Sizes of a kernel: dims padded, m-tiles per warp, keys per tile. */
template <int dim_, int width_, int m_tiles_, int keys_> struct sizes {
    static constexpr int dim = dim_, width = width_, m_tiles = m_tiles_, keys = keys_, parts = 1;
    static constexpr int rows = TENSOR_ROWS(m_tiles);
    static constexpr int q_bytes = rows * dim * 2, k_bytes = keys * dim * 2, v_bytes = keys * width * 2;
};

/* -------------------------------------------------------------------------------------------------------------- a unit */

template <class S>
__device__ inline bool unit_begin(unit<S> *u, const fattn_problem &problem, const fattn_launch &at, const tensor_call &call)
{
    extern __shared__ __align__(128) unsigned char shared[];
    long long index = blockIdx.x;
    u->problem = &problem;
    u->at = &at;
    u->call = &call;
    /* The last rows first: with a causal mask they take longest. */
    u->first = (call.tiles - 1 - index % call.tiles) * S::rows;
    index /= call.tiles;
    u->column = index % call.widths * S::width;
    index /= call.widths;
    u->head_kv = (int)(index % problem.desc.heads_kv);
    u->b = index / problem.desc.heads_kv;
    u->seq = fattn_sequence_of(&problem, &at, u->b);
    u->q = shared;
    u->k = u->q + S::q_bytes;
    u->v = u->k + 2 * S::k_bytes;
    u->lane = (lane_place *)(u->v + 2 * S::v_bytes);
    u->k_factor = (float *)(u->lane + S::rows);
    u->v_factor = u->k_factor + 2 * S::keys;
    return u->first < problem.group * u->seq.seq_q;
}

template <class T, class S> __device__ inline void load_queries(const unit<S> &u)
{
    const fattn_desc &d = u.problem->desc;
    load_tile<T, S::rows, S::dim>(u.q, 0, d.dim, u.call->q_lines, [&](int r) -> const void * {
        const lane_place &lane = u.lane[r];
        return lane.row < 0 ? NULL : fattn_query_row(&u.at->q, 2, &u.seq, lane.head, lane.row);
    });
}

/* Keys key .. of K or V, columns from `first` on, into a tile. */
template <class T, class S, int dim>
__device__ __forceinline__ void load_rows(const unit<S> &u, const fattn_view &view, unsigned char *tile, long long key,
                                          int64_t first, int64_t count, bool lines)
{
    const fattn_problem *p = u.problem;
    const int there = (int)min(u.seq.seq_k - key, (long long)S::keys);
    if (lines && p->desc.page_size == 0) {
        const char *row = (const char *)fattn_row(&view, 2, u.seq.b, u.head_kv, u.seq.k_first + key) + 2 * first;
        load_lines<S::keys, dim>(tile, row, 2 * view.stride_row, there, count);
        return;
    }
    load_tile<T, S::keys, dim>(tile, first, count, lines, [&](int r) -> const void * {
        return r < there ? fattn_key_row(p, u.at, &view, 2, &u.seq, u.head_kv, key + r) : NULL;
    });
}

/* Keys key .. of K and V of bytes, and their factors. */
template <class T, class S> __device__ inline void load_byte_keys(const unit<S> &u, long long key, int stage)
{
    const fattn_problem *p = u.problem;
    const fattn_desc &d = p->desc;
    load_bytes<T, S::keys, S::dim>(u.k + stage * S::k_bytes, 0, d.dim, [&](int r) -> const void * {
        return key + r < u.seq.seq_k ? fattn_key_row(p, u.at, &u.at->k, 1, &u.seq, u.head_kv, key + r) : NULL;
    });
    load_bytes<T, S::keys, S::width>(u.v + stage * S::v_bytes, u.column, d.dim_v - u.column, [&](int r) -> const void * {
        return key + r < u.seq.seq_k ? fattn_key_row(p, u.at, &u.at->v, 1, &u.seq, u.head_kv, key + r) : NULL;
    });
    for (int r = threadIdx.x; r < S::keys; r += THREADS) {
        const bool there = key + r < u.seq.seq_k;
        const long long index = there ? fattn_scale_index(p, u.at, &u.seq, u.head_kv, key + r) : 0;
        u.k_factor[stage * S::keys + r] = there ? u.at->k_scales[index] : 0.0f;
        u.v_factor[stage * S::keys + r] = there ? u.at->v_scales[index] : 0.0f;
    }
}

/* Keys key .. of K and V into the tiles of `stage`. */
template <class T, class S, bool adjusted>
__device__ __forceinline__ void load_keys(const unit<S> &u, const scoring &how, long long key, int stage)
{
    const fattn_desc &d = u.problem->desc;
    if (adjusted && how.bytes) {
        load_byte_keys<T>(u, key, stage);
        return;
    }
    load_rows<T, S, S::dim>(u, u.at->k, u.k + stage * S::k_bytes, key, 0, d.dim, u.call->k_lines);
    load_rows<T, S, S::width>(u, u.at->v, u.v + stage * S::v_bytes, key, u.column, d.dim_v - u.column, u.call->v_lines);
}

/* ------------------------------------------------------------------------------------------------------------ products */

/* S of the warp's rows: s[m-tile][n-tile of 8 keys][4], see the ISA's figure for the accumulator of m16n8k16. */
template <class T, class S>
__device__ __forceinline__ void scores_of(const unit<S> &u, int stage, float s[S::m_tiles][S::keys / 8][4])
{
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 * S::m_tiles;
    const uint32_t q = ptx_shared_address(u.q), k = ptx_shared_address(u.k + stage * S::k_bytes);
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
        for (int n = 0; n < S::keys / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[m][n][e] = 0;
#pragma unroll
    for (int d = 0; d < S::dim / 16; d++) {
        uint32_t a[S::m_tiles][4];
#pragma unroll
        for (int m = 0; m < S::m_tiles; m++)
            ptx_ldmatrix_x4(a[m], q + piece_at<S::dim>(row + 16 * m + lane % 16, 2 * d + lane / 16));
#pragma unroll
        for (int n = 0; n < S::keys / 16; n++) {
            uint32_t b[4];
            ptx_ldmatrix_x4(b, k + piece_at<S::dim>(16 * n + lane % 8 + lane / 16 * 8, 2 * d + lane / 8 % 2));
#pragma unroll
            for (int m = 0; m < S::m_tiles; m++) {
                ptx_mma(s[m][2 * n], a[m], b, T());
                ptx_mma(s[m][2 * n + 1], a[m], b + 2, T());
            }
        }
    }
}

/* O += P V. */
template <class T, class S>
__device__ __forceinline__ void add_values(const unit<S> &u, int stage, const float p[S::m_tiles][S::keys / 8][4],
                                           float o[S::m_tiles][S::width / 8][4])
{
    const int lane = threadIdx.x % 32;
    const uint32_t v = ptx_shared_address(u.v + stage * S::v_bytes);
#pragma unroll
    for (int k = 0; k < S::keys / 16; k++) {
        uint32_t a[S::m_tiles][4];
#pragma unroll
        for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                a[m][e] = ptx_pack(p[m][2 * k + e / 2][e % 2 * 2], p[m][2 * k + e / 2][e % 2 * 2 + 1], T());
#pragma unroll
        for (int n = 0; n < S::width / 16; n++) {
            uint32_t b[4];
            ptx_ldmatrix_x4_trans(b, v + piece_at<S::width>(16 * k + lane % 16, 2 * n + lane / 16));
#pragma unroll
            for (int m = 0; m < S::m_tiles; m++) {
                ptx_mma(o[m][2 * n], a[m], b, T());
                ptx_mma(o[m][2 * n + 1], a[m], b + 2, T());
            }
        }
    }
}

/* ------------------------------------------------------------------------------------------------------------- kernels */

template <class T, class S, bool adjusted>
__device__ inline void forward(const fattn_problem &problem, const fattn_launch &at, const tensor_call &call)
{
    unit<S> u;
    row_sums<S> sum = {};
    if (!unit_begin(&u, problem, at, call))
        return;
    const scoring how = scoring_of(problem, adjusted);
    unit_lanes(&u);
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
        sum.m[m][0] = sum.m[m][1] = -INFINITY;
    const long long start = u.span_lo / S::keys * S::keys;
    load_queries<T>(u);
    if (start < u.span_hi)
        load_keys<T, S, adjusted>(u, how, start, 0);
    ptx_cp_async_commit();
    if (problem.desc.scale < 0) {
        ptx_cp_async_wait<0>();
        __syncthreads();
        flip_signs<THREADS>(u.q, S::q_bytes);
    }
    int stage = 0;
    for (long long key = start; key < u.span_hi; key += S::keys, stage ^= 1) {
        ptx_cp_async_wait<0>();
        __syncthreads();
        if (key + S::keys < u.span_hi)
            load_keys<T, S, adjusted>(u, how, key + S::keys, stage ^ 1);
        ptx_cp_async_commit();
        const int kept = kept_of(u, key);
        if (kept == 0)
            continue;
        float s[S::m_tiles][S::keys / 8][4];
        scores_of<T>(u, stage, s);
        if (adjusted)
            adjust_scores<S>(u, how, key, stage, s);
        if (kept == 1)
            drop_keys<S>(u, key, s);
        softmax(&sum, how, s);
        if (adjusted)
            weigh<S>(u, how, key, stage, s);
        add_values<T>(u, stage, s, sum.o);
    }
    ptx_cp_async_wait<0>(); /* of a unit whose rows keep nothing */
    finish_rows(u, how, &sum);
}

#define FORWARD(name, type, adjusted, ...)                                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                      \
        name(const __grid_constant__ fattn_problem problem, const __grid_constant__ fattn_launch at,                           \
             const __grid_constant__ tensor_call call)                                                                         \
    {                                                                                                                          \
        forward<type, sizes<__VA_ARGS__>, adjusted>(problem, at, call);                                                        \
    }

#define FORWARDS(name, dim, width, m, keys, m_adjusted, keys_adjusted)                                                         \
    FORWARD(tensor_forward_f16_##name, __half, false, dim, width, m, keys)                                                     \
    FORWARD(tensor_forward_bf16_##name, __nv_bfloat16, false, dim, width, m, keys)                                             \
    FORWARD(tensor_forward_f16_##name##_adjusted, __half, true, dim, width, m_adjusted, keys_adjusted)                         \
    FORWARD(tensor_forward_bf16_##name##_adjusted, __nv_bfloat16, true, dim, width, m_adjusted, keys_adjusted)

TENSOR_FORWARD_SIZES(FORWARDS)
