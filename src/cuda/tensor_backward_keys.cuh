/*
 * Backward's side of keys: K and V of a unit against all rows that keep them, of all query heads of the group: S^T = K Q^T,
 * dP^T = V dO^T, dV += P^T dO, dK += dS^T Q, and where gradients may be added in any order dQ += dS K, in sums in the workspace
 * that have the order of an accumulator's elements.
 */
#ifndef FATTN_CUDA_TENSOR_BACKWARD_KEYS_CUH
#define FATTN_CUDA_TENSOR_BACKWARD_KEYS_CUH

#include "cuda/tensor_backward.cuh"

/* What the rows of a tile bring along, in shared memory: lse in log2 units; lo | hi << 16, the unit's keys that they keep; and
 * of every 32 rows which groups of 32 keys some of them keep, and all, the latter in the high half. */
template <class S> struct tile_records {
    float lse[S::tile], delta[S::tile];
    uint32_t keep[S::tile];
};

template <class S> struct key_records {
    tile_records<S> tile[3];
    uint32_t state[3][8];
};

/* Where a walk over rows stands. */
struct row_place {
    int head, row;
};

/* A row's on its way: thread r has row r. */
struct row_record {
    float lse, delta; /* lse as it is */
    uint32_t keep;
};

template <class S> __device__ inline row_record fetch_record(const unit &u, row_place at)
{
    row_record r = {0, 0, 0};
    const int row = at.row + (int)threadIdx.x;
    if (threadIdx.x < S::tile && row < u.seq->seq_q) {
        const long long index = u.seq->lse_first + at.head * u.seq->lse_head + row;
        const fattn_interval keep = fattn_mask_row(&u.seq->mask, row);
        r.lse = ((const float *)u.at->lse)[index];
        r.delta = u.delta[index];
        r.keep = (uint32_t)min(max((long long)keep.lo - u.first, 0LL), (long long)S::own) |
                 (uint32_t)min(max((long long)keep.hi - u.first, 0LL), (long long)S::own) << 16;
    }
    return r;
}

/* Without gradients where there is no row, or no score above -inf. */
template <class S> __device__ inline void put_record(key_records<S> *to, int slot, row_record r)
{
    if (threadIdx.x >= S::tile)
        return;
    if (r.lse == -INFINITY)
        r = {0, 0, 0};
    to->tile[slot].lse[threadIdx.x] = r.lse * (float)LOG2E;
    to->tile[slot].delta[threadIdx.x] = r.delta;
    to->tile[slot].keep[threadIdx.x] = r.keep;
    const uint32_t lo = r.keep & 0xffff, hi = r.keep >> 16;
    uint32_t some = 0, all = 0;
#pragma unroll
    for (int g = 0; g < S::own / 32; g++) {
        some |= (uint32_t)(lo < 32 * g + 32 && hi > 32 * g) << g;
        all |= (uint32_t)(lo <= 32 * g && hi >= 32 * g + 32) << g;
    }
    some = __reduce_or_sync(0xffffffffu, some);
    all = __reduce_and_sync(0xffffffffu, all);
    if (threadIdx.x % 32 == 0)
        to->state[slot][threadIdx.x / 32] = some | all << 16;
}

template <class S> __device__ __forceinline__ uint32_t tile_state(const key_records<S> *records, int slot)
{
    uint32_t some = 0, all = 0xffff0000u;
#pragma unroll
    for (int w = 0; w < S::tile / 32; w++) {
        some |= records->state[slot][w];
        all &= records->state[slot][w];
    }
    return (some & 0xffff) | all;
}

/* A walk over the rows that may keep the unit's keys: tiles of the group's heads, one after the other. */
struct row_walk {
    int lo, hi, end; /* rows of each head; behind the last head */
};

template <class S> __device__ inline row_walk walk_of(const unit &u)
{
    const fattn_interval rows =
        fattn_mask_rows(&u.seq->mask, u.first, min((long long)u.first + S::own, (long long)u.seq->seq_k));
    const int group = (int)u.problem->group, head = u.head * group;
    return {(int)rows.lo / S::tile * S::tile, (int)rows.hi, rows.lo < rows.hi ? head + group : head};
}

template <class S> __device__ __forceinline__ row_place behind(const row_walk &w, row_place at)
{
    return at.row + S::tile < w.hi ? row_place{at.head, at.row + S::tile} : row_place{at.head + 1, w.lo};
}

/* Products become P and dS. whole: all rows keep all keys of the warp's group. */
template <class S, bool adjusted, bool whole>
__device__ __forceinline__ void weigh_keys(const unit &u, const scoring &how, const tile_records<S> &rows, const row_place &at,
                                           float s[2][S::part / 8][4], float dp[2][S::part / 8][4])
{
#pragma unroll
    for (int n = 0; n < S::part / 8; n++) {
        const int r = other_of<S>(n, 0);
        const float2 lse = *(const float2 *)&rows.lse[r], delta = *(const float2 *)&rows.delta[r];
        const uint2 keep = whole ? make_uint2(0, 0) : *(const uint2 *)&rows.keep[r];
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const uint32_t key = own_of<S>(m, e), k = e % 2 ? keep.y : keep.x;
                const bool kept = whole || (key >= (k & 0xffff) && key < k >> 16);
                const grad_lane lane = {
                    {at.row + r + e % 2, at.head, 0, 0, 0}, e % 2 ? lse.y : lse.x, e % 2 ? delta.y : delta.x};
                gradient<adjusted>(grad_of<S>(u), how, lane, u.first + key, kept, &s[m][n][e], &dp[m][n][e]);
            }
    }
}

/* Adds dS K of a tile to the sums of dQ. A warp has 16 or 32 rows, and some columns. */
template <class S> struct query_sums {
    static constexpr int strips = S::dim >= 64 ? 2 : 1, across = S::tile / 16 / strips,
                         columns = S::dim / (GRAD_WARPS / across);
};

template <class S>
__device__ __forceinline__ void add_queries(const unit &u, const unsigned char *room, uint32_t groups, const row_place &at)
{
    typedef query_sums<S> Q;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int strip = warp % Q::across * Q::strips, column = warp / Q::across * Q::columns;
    const uint32_t k_at = ptx_shared_address(u.own[0]);
    float sum[Q::strips][Q::columns / 8][4] = {};
#pragma unroll
    for (int g = 0; g < S::own / 32; g++)
        if (groups >> g & 1)
#pragma unroll
            for (int m = 0; m < 2; m++) {
                uint32_t a[Q::strips][4];
#pragma unroll
                for (int i = 0; i < Q::strips; i++) {
                    const int row = 16 * (strip + i);
                    const uint32_t from = block_at<__nv_bfloat16, S>(room, g * S::share + row / S::part, m, row % S::part / 16);
                    ptx_ldmatrix_x4_trans(a[i], from + (lane / 8 % 2 * 2 + lane / 16) * 128 + lane % 8 * 16);
                }
#pragma unroll
                for (int n = 0; n < Q::columns / 16; n++) {
                    uint32_t b[4];
                    const int piece = column / PIECE + 2 * n + lane / 16;
                    ptx_ldmatrix_x4_trans(b, k_at + piece_at<S::dim>(32 * g + 16 * m + lane % 16, piece));
#pragma unroll
                    for (int i = 0; i < Q::strips; i++) {
                        ptx_mma(sum[i][2 * n], a[i], b, __nv_bfloat16());
                        ptx_mma(sum[i][2 * n + 1], a[i], b + 2, __nv_bfloat16());
                    }
                }
            }
#pragma unroll
    for (int i = 0; i < Q::strips; i++) {
        const int row = at.row + 16 * (strip + i);
        if (row >= u.seq->seq_q)
            break;
        float *to = u.call->sums + strip_of<S::dim>(*u.problem, *u.at, *u.call, *u.seq, at.head, row / 16) + 4 * lane;
#pragma unroll
        for (int n = 0; n < Q::columns / 8; n++)
            ptx_red_add(to + (column / 8 + n) * 128, sum[i][n]);
    }
}

/* One tile of rows. state: see tile_records. */
template <class T, class S, bool adjusted, bool unordered>
__device__ __forceinline__ void meet_rows(const unit &u, const scoring &how, const tile_records<S> &rows, const row_place &at,
                                          int stage, uint32_t state, float dk[2][S::columns / 8][4],
                                          float dv[2][S::columns / 8][4])
{
    const unsigned char *q = u.tile[0] + stage * S::tile_bytes, *dout = u.tile[1] + stage * S::tile_bytes;
    unsigned char *of_p = u.room, *of_ds = S::apart ? u.room + S::room_bytes : u.room;
    const bool kept = state >> warp_group(S::share) & 1, whole = state >> (16 + warp_group(S::share)) & 1;
    weights<T, S> p, ds;
    if (kept) {
        float s[2][S::part / 8][4], dp[2][S::part / 8][4];
        product<T, S>(u.own[0], q, s);
        product<T, S>(u.own[1], dout, dp);
        if (!adjusted && whole)
            weigh_keys<S, adjusted, true>(u, how, rows, at, s, dp);
        else
            weigh_keys<S, adjusted, false>(u, how, rows, at, s, dp);
        pack<S>(s, &p);
        pack<S>(dp, &ds);
        hand_over<T, S>(of_p, p);
        if (!S::apart) {
            add_own<T, S>(p, dout, dv);
            meet<S>();
            add_others<T, S>(of_p, dout, dv);
            meet<S>();
        }
        hand_over<T, S>(of_ds, ds);
        if (S::apart)
            add_own<T, S>(p, dout, dv);
        add_own<T, S>(ds, q, dk);
        if (!unordered)
            meet<S>();
    }
    if (unordered)
        __syncthreads();
    if (kept) {
        if (S::apart)
            add_others<T, S>(of_p, dout, dv);
        add_others<T, S>(of_ds, q, dk);
    }
    if (unordered)
        add_queries<S>(u, of_ds, state & 0xffff, at);
}

/* Writes dK and dV of the unit. */
template <class S>
__device__ inline void finish_keys(const unit &u, const float dk[2][S::columns / 8][4], const float dv[2][S::columns / 8][4])
{
    const fattn_launch &at = *u.at;
    const fattn_desc &d = u.problem->desc;
    const auto row_of = [&](const fattn_view &view) {
        return [&](int r) {
            return u.first + r < u.seq->seq_k
                       ? fattn_key_row(u.problem, &at, &view, fattn_dtype_size(d.grad_dtype), u.seq, u.head, u.first + r)
                       : NULL;
        };
    };
    uint32_t wrong = store_rows<S>(u, dk, (float)d.scale, d.grad_dtype, d.dim, row_of(at.dk));
    wrong |= store_rows<S>(u, dv, 1, d.grad_dtype, d.dim_v, row_of(at.dv));
    for (; wrong; wrong &= wrong - 1)
        key_alone<S::dim>(u.problem, &at, u.delta, u.seq->b, 0, u.head,
                          u.first + threadIdx.x / 32 + GRAD_WARPS * (__ffs((int)wrong) - 1));
}

template <class T, class S, bool adjusted, bool unordered>
__device__ inline void keys(const grad_problem &g, const tensor_grad_call &call, long long index)
{
    unit u;
    unit_begin<S>(&u, g, call, index);
    if (u.first >= u.seq->seq_k)
        return;
    const scoring how = scoring_of(*g.problem, adjusted);
    key_records<S> *records = (key_records<S> *)u.records;
    float dk[2][S::columns / 8][4] = {}, dv[2][S::columns / 8][4] = {};
    const row_walk walk = walk_of<S>(u);
    row_place now = {u.head * (int)g.problem->group, walk.lo};
    const auto load = [&](row_place at, int slot, int stage) {
        if (at.head < walk.end && (tile_state<S>(records, slot) & 0xffff))
            load_queries<S::tile, S::dim>(u.tile[0] + stage * S::tile_bytes, u.tile[1] + stage * S::tile_bytes, u, at.head,
                                          at.row);
        ptx_cp_async_commit();
    };
    load_keys<S::own, S::dim>(u.own[0], u.own[1], u, u.head, u.first);
    ptx_cp_async_commit();
    row_place first = now;
#pragma unroll 1
    for (int slot = 0; slot < 2 && first.head < walk.end; slot++, first = behind<S>(walk, first))
        put_record<S>(records, slot, fetch_record<S>(u, first));
    __syncthreads();
    load(now, 0, 0);
    if (g.problem->desc.scale < 0) {
        ptx_cp_async_wait<1>();
        __syncthreads();
        flip_signs<GRAD_THREADS>(u.own[0], S::own_bytes);
    }
    for (int slot = 0, stage = 0; now.head < walk.end;) {
        const int next_slot = slot == 2 ? 0 : slot + 1;
        const row_place next = behind<S>(walk, now), after = behind<S>(walk, next);
        row_record record;
        ptx_cp_async_wait<0>();
        __syncthreads();
        if (after.head < walk.end)
            record = fetch_record<S>(u, after);
        if (S::stages == 2)
            load(next, next_slot, stage ^ 1);
        const uint32_t state = tile_state<S>(records, slot);
        if (state & 0xffff)
            meet_rows<T, S, adjusted, unordered>(u, how, records->tile[slot], now, stage, state, dk, dv);
        if (S::stages == 1) {
            __syncthreads();
            load(next, next_slot, 0);
        } else
            stage ^= 1;
        if (after.head < walk.end)
            put_record<S>(records, next_slot == 2 ? 0 : next_slot + 1, record);
        now = next;
        slot = next_slot;
    }
    ptx_cp_async_wait<0>(); /* of a unit whose keys nobody keeps */
    finish_keys<S>(u, dk, dv);
}

#endif
