/*
 * Backward's side of queries: Q and dO of a unit against all keys that they keep: S = Q K^T, dP = dO V^T, dQ += dS K.
 */
#ifndef FATTN_CUDA_TENSOR_BACKWARD_QUERIES_CUH
#define FATTN_CUDA_TENSOR_BACKWARD_QUERIES_CUH

#include "cuda/tensor_backward.cuh"

/* What the unit's rows bring along, in shared memory: a row that is not there keeps no keys. */
struct own_row {
    int lo, hi;
    float lse, delta;
};

static_assert(sizeof(own_row) == 16 && sizeof(fattn_sequence) <= 160, "TENSOR_GRAD_SHARED counts on it");

template <class S> __device__ inline void put_own_rows(const unit &u)
{
    own_row *rows = (own_row *)u.records;
    for (int r = threadIdx.x; r < S::own; r += GRAD_THREADS) {
        own_row own = {0, 0, 0, 0};
        if (u.first + r < u.seq->seq_q) {
            const long long index = u.seq->lse_first + u.head * u.seq->lse_head + u.first + r;
            const float lse = ((const float *)u.at->lse)[index];
            const fattn_interval keep = fattn_mask_row(&u.seq->mask, u.first + r);
            if (lse != -INFINITY)
                own = {(int)keep.lo, (int)keep.hi, lse * (float)LOG2E, u.delta[index]};
        }
        rows[r] = own;
    }
    __syncthreads();
}

/* dp: products become dS. */
template <class S, bool adjusted, bool whole>
__device__ __forceinline__ void weigh_queries(const unit &u, const scoring &how, int key, float s[2][S::part / 8][4],
                                              float dp[2][S::part / 8][4])
{
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = own_of<S>(m, 2 * half);
            const own_row &row = ((const own_row *)u.records)[r];
            const int lo = whole ? 0 : row.lo - key;
            const int hi = whole ? 0 : row.hi - key;
            const grad_lane lane = {{u.first + r < u.seq->seq_q ? u.first + r : -1, u.head, 0, 0, 0}, row.lse, row.delta};
#pragma unroll
            for (int n = 0; n < S::part / 8; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) {
                    const bool kept = whole || (other_of<S>(n, e) >= lo && other_of<S>(n, e) < hi);
                    gradient<adjusted>(grad_of<S>(u), how, lane, key + other_of<S>(n, e), kept, &s[m][n][e], &dp[m][n][e]);
                }
        }
}

/* One tile of keys. */
template <class T, class S, bool adjusted>
__device__ __forceinline__ void meet_keys(const unit &u, const scoring &how, int key, int stage, float dq[2][S::columns / 8][4])
{
    const unsigned char *k = u.tile[0] + stage * S::tile_bytes, *v = u.tile[1] + stage * S::tile_bytes;
    const int r = warp_group(S::share) * 32 + threadIdx.x % 32;
    const int kept = kept_of(((const own_row *)u.records)[r], u.first + r < u.seq->seq_q, key, S::tile);
    weights<T, S> ds;
    if (kept == 0)
        return;
    {
        float s[2][S::part / 8][4], dp[2][S::part / 8][4];
        product<T, S>(u.own[0], k, s);
        product<T, S>(u.own[1], v, dp);
        if (!adjusted && kept == 2)
            weigh_queries<S, adjusted, true>(u, how, key, s, dp);
        else
            weigh_queries<S, adjusted, false>(u, how, key, s, dp);
        pack<S>(dp, &ds);
    }
    hand_over<T, S>(u.room, ds);
    add_own<T, S>(ds, k, dq);
    meet<S>();
    add_others<T, S>(u.room, k, dq);
}

template <class S> __device__ inline void finish_queries(const unit &u, const float dq[2][S::columns / 8][4])
{
    const fattn_desc &d = u.problem->desc;
    uint32_t wrong = store_rows<S>(u, dq, (float)d.scale, d.grad_dtype, d.dim, [&](int r) {
        return u.first + r < u.seq->seq_q
                   ? fattn_query_row(&u.at->dq, fattn_dtype_size(d.grad_dtype), u.seq, u.head, u.first + r)
                   : NULL;
    });
    for (; wrong; wrong &= wrong - 1)
        query_alone<S::dim>(u.problem, u.at, u.delta, u.seq->b, 0, u.head,
                            u.first + threadIdx.x / 32 + GRAD_WARPS * (__ffs((int)wrong) - 1));
}

template <class T, class S, bool adjusted>
__device__ inline void queries(const grad_problem &g, const tensor_grad_call &call, long long index)
{
    unit u;
    unit_begin<S>(&u, g, call, index);
    u.first = (int)(call.tiles - 1) * S::own - u.first; /* the last rows first: with a causal mask they take longest */
    if (u.first >= u.seq->seq_q)
        return;
    const scoring how = scoring_of(*g.problem, adjusted);
    const int head_kv = (int)(u.head / g.problem->group);
    float dq[2][S::columns / 8][4] = {};
    load_queries<S::own, S::dim>(u.own[0], u.own[1], u, u.head, u.first);
    ptx_cp_async_commit();
    put_own_rows<S>(u);
    const fattn_interval span = span_of((const own_row *)u.records, S::own);
    const int start = (int)span.lo / S::tile * S::tile;
    const auto load = [&](int key, int stage) {
        if (key < span.hi)
            load_keys<S::tile, S::dim>(u.tile[0] + stage * S::tile_bytes, u.tile[1] + stage * S::tile_bytes, u, head_kv, key);
        ptx_cp_async_commit();
    };
    load(start, 0);
    if (g.problem->desc.scale < 0) {
        ptx_cp_async_wait<1>();
        __syncthreads();
        flip_signs<GRAD_THREADS>(u.own[0], S::own_bytes);
    }
    int stage = 0;
    for (int key = start; key < span.hi; key += S::tile) {
        ptx_cp_async_wait<0>();
        __syncthreads();
        if (S::stages == 2)
            load(key + S::tile, stage ^ 1);
        meet_keys<T, S, adjusted>(u, how, key, stage, dq);
        if (S::stages == 1) {
            __syncthreads();
            load(key + S::tile, 0);
        } else
            stage ^= 1;
    }
    ptx_cp_async_wait<0>(); /* of a unit whose rows keep nothing */
    finish_queries<S>(u, dq);
}

#endif
