/*
 * Backward for f32 on tensor cores, every number as two of binary16 (split.h). One launch of two kinds of units, which own what
 * they write, so that nothing is added in memory: units of keys own dK and dV, units of rows own dQ. Both compute S and dP.
 */
#include "cuda/split.cuh"
#include "cuda/tensor_gradient.cuh"

/* The sizes of a kernel: dims padded, m-tiles of own rows or keys per warp, rows or keys of a tile of the other side. */
template <int dim_, int m_tiles_, int tile_> struct sizes {
    static constexpr int dim = dim_, m_tiles = m_tiles_, tile = tile_;
    static constexpr int own = TENSOR_ROWS(m_tiles), pitch = SPLIT_PITCH(dim);
    static constexpr int own_bytes = own * pitch, tile_bytes = tile * pitch;
    static constexpr bool branches = dim >= 128; /* of their own for rare tiles; here they keep registers from being spilled */
};

struct unit {
    const fattn_problem *problem;
    const fattn_launch *at;
    const float *delta;
    fattn_sequence seq;
    long long first;
    int head_kv;
    unsigned char *own[2], *tile[2]; /* K and V, or Q and dO, of the unit; two tiles each of the other side's */
    grad_lane *lane;
};

__device__ __forceinline__ grad_problem grad_of(const unit &u)
{
    return {u.problem, u.at, &u.seq, u.delta, FATTN_F32};
}

/* Index among the unit's own rows, or keys, and among the tile's, of element e of m-tile m and n-tile n. */
template <int m_tiles = 1> __device__ __forceinline__ int own_of(int e, int m = 0)
{
    return (threadIdx.x / 32 * m_tiles + m) * 16 + threadIdx.x % 32 / 4 + e / 2 * 8;
}

__device__ __forceinline__ int other_of(int n, int e)
{
    return 8 * n + threadIdx.x % 4 * 2 + e % 2;
}

/* Units of one kind: (tile, sequence, key/value head), heads fastest. */
template <class S>
__device__ inline void unit_begin(unit *u, const fattn_problem &problem, const fattn_launch &at, const split_call &call,
                                  unsigned index)
{
    const unsigned heads = (unsigned)problem.desc.heads_kv, batch = (unsigned)problem.desc.batch;
    extern __shared__ __align__(128) unsigned char shared[];
    u->problem = &problem;
    u->at = &at;
    u->delta = call.delta;
    u->head_kv = (int)(index % heads);
    u->seq = fattn_sequence_of(&problem, &at, index / heads % batch);
    u->first = (long long)(index / heads / batch) * S::own;
    u->own[0] = shared;
    u->own[1] = u->own[0] + S::own_bytes;
    u->tile[0] = u->own[1] + S::own_bytes;
    u->tile[1] = u->tile[0] + 2 * S::tile_bytes;
    u->lane = (grad_lane *)(u->tile[1] + 2 * S::tile_bytes);
}

/* The unit's sequence and head in the lists: rows in those of Q and dO, keys in those of K and V. */
struct lists {
    const unsigned char *q, *k, *v, *dout, *lanes;
    const split_span *spans;
    long long rows, keys; /* how many there are */
};

template <class S> __device__ inline lists lists_of(const unit &u, const split_call &call)
{
    const long long row = split_queries(*u.problem, *u.at, u.seq, u.head_kv);
    const long long key = split_keys(*u.problem, *u.at, u.seq, u.head_kv);
    return {call.parts[0] + row * S::pitch,
            call.parts[1] + key * S::pitch,
            call.parts[2] + key * S::pitch,
            call.parts[3] + row * S::pitch,
            call.lanes + row * SPLIT_LANE_BYTES,
            call.spans + SPLIT_SPANS(row, S::tile, u.seq.b * u.problem->desc.heads_kv + u.head_kv),
            u.problem->group * u.seq.seq_q,
            u.seq.seq_k};
}

/* Rows first .. of two lists of `count` rows. */
template <int rows, int pitch>
__device__ __forceinline__ void load_two(unsigned char *to, unsigned char *to_other, const unsigned char *list,
                                         const unsigned char *other, long long first, long long count)
{
    split_load<rows, pitch>(to, list + first * pitch, count - first);
    split_load<rows, pitch>(to_other, other + first * pitch, count - first);
}

/* P and dS of the unit's own rows and the tile that is at number `stage`; of element e of (m, n) lane_at has the row, and
 * key_at the key, counted from `first`. dS has the power of two of the scale, as delta in the lanes. */
template <class S, bool adjusted, class Lane, class Key>
__device__ __forceinline__ void gradients(const unit &u, const scoring &how, int stage, bool whole, long long first,
                                          float s[S::m_tiles][S::tile / 8][4], float dp[S::m_tiles][S::tile / 8][4],
                                          Lane lane_at, Key key_at)
{
    const float power = split_power((float)fabs(u.problem->desc.scale));
    float s_unit[S::m_tiles], dp_unit[S::m_tiles];
    const unsigned char *s_tile = u.tile[0] + stage * S::tile_bytes, *dp_tile = u.tile[1] + stage * S::tile_bytes;
    split_product<S::dim, S::m_tiles, S::tile>(u.own[0], s_tile, s);
    split_product<S::dim, S::m_tiles, S::tile>(u.own[1], dp_tile, dp);
    const bool s_odd = split_product_units<S::dim, S::m_tiles>(u.own[0], s_tile, s_unit);
    const bool dp_odd = split_product_units<S::dim, S::m_tiles>(u.own[1], dp_tile, dp_unit);
    const bool odd = __any_sync(0xffffffffu, s_odd || dp_odd);
    const auto all = [&](auto kept) {
#pragma unroll
        for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
            for (int n = 0; n < S::tile / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const grad_lane &lane = lane_at(m, n, e);
                    const int key = key_at(m, n, e);
                    const bool keep = kept(lane, key);
                    /* A bias is there for keys that are kept; what else is dropped afterwards, which takes no branches. */
                    gradient<adjusted>(grad_of(u), how, lane, first + key, !adjusted || keep, &s[m][n][e], &dp[m][n][e],
                                       s_unit[m], dp_unit[m] * power);
                    s[m][n][e] = keep ? s[m][n][e] : 0.0f;
                    dp[m][n][e] = keep ? dp[m][n][e] : 0.0f;
                }
    };
    const auto settle = [&] {
        split_settle<S::dim, S::m_tiles, S::tile>(u.own[0], s_tile, s, s_unit);
        split_settle<S::dim, S::m_tiles, S::tile>(u.own[1], dp_tile, dp, dp_unit);
    };
    if (S::branches && odd)
        settle();
    if (whole && (S::branches || !odd)) /* most tiles: no comparisons */
        all([](const grad_lane &, int) { return true; });
    else {
        if (!S::branches && odd)
            settle();
        all([&](const grad_lane &lane, int key) {
            const int lo = (int)min(max(lane.place.lo - first, 0LL), (long long)INT32_MAX);
            const int hi = (int)min(max(lane.place.hi - first, 0LL), (long long)INT32_MAX);
            return key >= lo && key < hi;
        });
        if (!S::branches && odd) { /* P weights rows of dO, or nothing, dS the others */
            split_share<S::dim, S::m_tiles, S::tile>(dp_tile, s);
            split_share<S::dim, S::m_tiles, S::tile>(s_tile, dp);
        }
    }
}

/* -------------------------------------------------------------------------------------------------------------- keys */

/* Of 32 tiles per warp from a multiple of 128 on, which keep some of the unit's keys, and which keep all; in shared memory. */
struct tile_window {
    uint32_t some[TENSOR_WARPS], all[TENSOR_WARPS];
};

static_assert(sizeof(tile_window) == 32, "SPLIT_BACKWARD_SHARED counts on it");

template <class S> __device__ inline void set_window(const unit &u, const lists &at, tile_window *window, int first, int tiles)
{
    const int tile = first + (int)threadIdx.x;
    bool some = false, all = false;
    if (tile < tiles) {
        const split_span span = at.spans[tile];
        some = span.lo < u.first + S::own && span.hi > u.first;
        all = span.all_lo <= u.first && span.all_hi >= u.first + S::own;
    }
    const uint32_t some_of = __ballot_sync(0xffffffffu, some), all_of = __ballot_sync(0xffffffffu, all);
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        window->some[threadIdx.x / 32] = some_of;
        window->all[threadIdx.x / 32] = all_of;
    }
    __syncthreads();
}

/* The next tile from number `tile` on that keeps some of the unit's keys, or the number of tiles. *whole: it keeps all. */
template <class S>
__device__ inline int next_tile(const unit &u, const lists &at, tile_window *window, int tile, int tiles, bool *whole)
{
    while (tile < tiles) {
        const int place = tile & (THREADS - 1);
        if (place == 0)
            set_window<S>(u, at, window, tile, tiles);
        const uint32_t some = window->some[place / 32] >> place % 32;
        if (some) {
            const int skip = __ffs(some) - 1;
            *whole = window->all[place / 32] >> (place % 32 + skip) & 1;
            return tile + skip;
        }
        tile += 32 - place % 32;
    }
    return tiles;
}

template <class S> __device__ __forceinline__ void load_row_tile(const unit &u, const lists &at, int stage, int tile)
{
    const long long first = (long long)tile * S::tile;
    const uint32_t to = ptx_shared_address(u.lane + stage * S::tile) + threadIdx.x * 8;
    load_two<S::tile, S::pitch>(u.tile[0] + stage * S::tile_bytes, u.tile[1] + stage * S::tile_bytes, at.q, at.dout, first,
                                at.rows);
    constexpr int all = S::tile * SPLIT_LANE_BYTES, step = THREADS * 8;
    const int own = threadIdx.x * 8, bytes = (int)min(at.rows - first, (long long)S::tile) * SPLIT_LANE_BYTES - own;
    const unsigned char *from = at.lanes + first * SPLIT_LANE_BYTES + own; /* not read where nothing is there */
#pragma unroll
    for (int i = 0; i < (all + step - 1) / step; i++)
        if ((i + 1) * step <= all || i * step + own < all)
            ptx_cp_async_8(to + i * step, from + i * step, i * step < bytes);
}

/* Whether the thread's part of half of the rows, elements 2 half and 2 half + 1, is finite. */
template <int tiles> __device__ __forceinline__ bool finite_half(const float sum[tiles][4], int half)
{
    bool finite = true;
#pragma unroll
    for (int n = 0; n < tiles; n++)
        finite = finite && sum[n][2 * half] - sum[n][2 * half] == 0 && sum[n][2 * half + 1] - sum[n][2 * half + 1] == 0;
    return finite;
}

template <int tiles>
__device__ __forceinline__ void store_half(const float sum[tiles][4], int half, float by, void *row, long long count)
{
    float *to = (float *)row;
#pragma unroll
    for (int n = 0; n < tiles; n++) {
        const int column = other_of(n, 2 * half);
        const float x = sum[n][2 * half] * by, y = sum[n][2 * half + 1] * by;
        if (column + 1 < count && (uintptr_t)row % 8 == 0) {
            *(float2 *)(to + column) = make_float2(x, y);
            continue;
        }
        if (column < count)
            to[column] = x;
        if (column + 1 < count)
            to[column + 1] = y;
    }
}

/* The scale without the power of two that dS has. */
__device__ __forceinline__ float rest_of_scale(const fattn_desc &d)
{
    return (float)d.scale / split_power((float)d.scale);
}

/* Writes dK and dV of the unit's keys. */
template <class S>
__device__ inline void finish_keys(const unit &u, const float dk[S::m_tiles][S::dim / 8][4],
                                   const float dv[S::m_tiles][S::dim / 8][4])
{
    const fattn_desc &d = u.problem->desc;
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const long long key = u.first + own_of<S::m_tiles>(2 * half, m);
            const bool there = key < u.seq.seq_k;
            const bool finite = finite_half<S::dim / 8>(dk[m], half) && finite_half<S::dim / 8>(dv[m], half);
            if (there) {
                store_half<S::dim / 8>(dk[m], half, fabsf(rest_of_scale(d)), /* Q has the sign */
                                       fattn_key_row(u.problem, u.at, &u.at->dk, 4, &u.seq, u.head_kv, key), d.dim);
                store_half<S::dim / 8>(dv[m], half, 1.0f, fattn_key_row(u.problem, u.at, &u.at->dv, 4, &u.seq, u.head_kv, key),
                                       d.dim_v);
            }
            __syncwarp();
            const unsigned wrong = __ballot_sync(0xffffffffu, !finite && there);
            for (int g = 0; g < 8; g++)
                if (wrong >> (4 * g) & 15)
                    key_alone<S::dim>(u.problem, u.at, u.delta, u.seq.b, 0, u.head_kv,
                                      u.first + (threadIdx.x / 32 * S::m_tiles + m) * 16 + g + 8 * half);
        }
}

template <class S, bool adjusted>
__device__ inline void keys(const fattn_problem &problem, const fattn_launch &launch, const split_call &call, unsigned index)
{
    unit u;
    unit_begin<S>(&u, problem, launch, call, index);
    ptx_wait_for_grids_before(); /* the lists; no launch ends before those before it */
    if (u.first >= u.seq.seq_k)
        return;
    const scoring how = scoring_of(problem, adjusted);
    const lists at = lists_of<S>(u, call);
    tile_window *window = (tile_window *)(u.lane + 2 * S::tile);
    float dk[S::m_tiles][S::dim / 8][4] = {}, dv[S::m_tiles][S::dim / 8][4] = {};
    bool whole, next_whole;
    int stage = 0;
    load_two<S::own, S::pitch>(u.own[0], u.own[1], at.k, at.v, u.first, at.keys);
    const int tiles = (int)((at.rows + S::tile - 1) / S::tile);
    int tile = next_tile<S>(u, at, window, 0, tiles, &whole);
    if (tile < tiles)
        load_row_tile<S>(u, at, 0, tile);
    ptx_cp_async_commit();
    while (tile < tiles) {
        ptx_cp_async_wait<0>();
        __syncthreads();
        const int next = next_tile<S>(u, at, window, tile + 1, tiles, &next_whole);
        if (next < tiles)
            load_row_tile<S>(u, at, stage ^ 1, next);
        ptx_cp_async_commit();
        const grad_lane *lane = u.lane + stage * S::tile;
        const unsigned char *q = u.tile[0] + stage * S::tile_bytes, *dout = u.tile[1] + stage * S::tile_bytes;
        float s[S::m_tiles][S::tile / 8][4], dp[S::m_tiles][S::tile / 8][4];
        gradients<S, adjusted>(
            u, how, stage, whole, u.first, s, dp, [&](int, int n, int e) -> const grad_lane & { return lane[other_of(n, e)]; },
            [&](int m, int, int e) { return own_of<S::m_tiles>(e, m); });
        split_add<S::dim, S::m_tiles, S::tile>(s, split_scales_of<S::dim, S::m_tiles, S::tile, !S::branches>(dout, s), dout,
                                               dv);
        split_add<S::dim, S::m_tiles, S::tile>(dp, split_scales_of<S::dim, S::m_tiles, S::tile, !S::branches>(q, dp), q, dk);
        tile = next;
        whole = next_whole;
        stage ^= 1;
    }
    ptx_cp_async_wait<0>(); /* of a unit whose keys nobody keeps */
    finish_keys<S>(u, dk, dv);
}

/* ------------------------------------------------------------------------------------------------------------- queries */

/* Writes dQ of the unit's rows. */
template <class S> __device__ inline void finish_queries(const unit &u, const float dq[S::m_tiles][S::dim / 8][4])
{
    const fattn_desc &d = u.problem->desc;
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const lane_place place = u.lane[own_of<S::m_tiles>(2 * half, m)].place;
            if (place.row >= 0)
                store_half<S::dim / 8>(dq[m], half, rest_of_scale(d),
                                       fattn_query_row(&u.at->dq, 4, &u.seq, place.head, place.row), d.dim);
            __syncwarp();
            const unsigned wrong = __ballot_sync(0xffffffffu, !finite_half<S::dim / 8>(dq[m], half) && place.row >= 0);
            for (int g = 0; g < 8; g++)
                if (wrong >> (4 * g) & 15) {
                    const lane_place bad = u.lane[(threadIdx.x / 32 * S::m_tiles + m) * 16 + g + 8 * half].place;
                    query_alone<S::dim>(u.problem, u.at, u.delta, u.seq.b, 0, bad.head, bad.row);
                }
        }
}

template <class S, bool adjusted>
__device__ inline void queries(const fattn_problem &problem, const fattn_launch &launch, const split_call &call, unsigned index)
{
    unit u;
    unit_begin<S>(&u, problem, launch, call, index);
    ptx_wait_for_grids_before();                      /* the lists; no launch ends before those before it */
    u.first = (call.tiles[0] - 1) * S::own - u.first; /* the last rows first: with a causal mask they take longest */
    if (u.first >= problem.group * u.seq.seq_q)
        return;
    const scoring how = scoring_of(problem, adjusted);
    const lists at = lists_of<S>(u, call);
    float dq[S::m_tiles][S::dim / 8][4] = {};
    for (int r = threadIdx.x; r < S::own; r += THREADS)
        u.lane[r] = u.first + r < at.rows ? ((const grad_lane *)at.lanes)[u.first + r] : grad_lane{{-1, 0, 0, 0, 0}, 0, 0};
    __syncthreads();
    const fattn_interval span = span_of(u.lane, S::own);
    const int first = span.lo < span.hi ? (int)(span.lo / S::tile) : 0, end = (int)((span.hi + S::tile - 1) / S::tile);
    const split_kept kept =
        split_kept_of(u.lane[threadIdx.x / 32 * 16 * S::m_tiles + threadIdx.x % (16 * S::m_tiles)].place, S::tile);
    const auto load = [&](int tile) {
        const int stage = (tile - first) % 2 * S::tile_bytes;
        load_two<S::tile, S::pitch>(u.tile[0] + stage, u.tile[1] + stage, at.k, at.v, (long long)tile * S::tile, at.keys);
    };
    load_two<S::own, S::pitch>(u.own[0], u.own[1], at.q, at.dout, u.first, at.rows);
    if (first < end)
        load(first);
    ptx_cp_async_commit();
    for (int tile = first; tile < end; tile++) {
        const int stage = (tile - first) % 2;
        ptx_cp_async_wait<0>();
        __syncthreads();
        if (tile + 1 < end)
            load(tile + 1);
        ptx_cp_async_commit();
        if (!kept.any_of(tile))
            continue;
        float s[S::m_tiles][S::tile / 8][4], dp[S::m_tiles][S::tile / 8][4];
        gradients<S, adjusted>(
            u, how, stage, kept.all_of(tile), (long long)tile * S::tile, s, dp,
            [&](int m, int, int e) -> const grad_lane & { return u.lane[own_of<S::m_tiles>(e, m)]; },
            [&](int, int n, int e) { return other_of(n, e); });
        const unsigned char *k = u.tile[0] + stage * S::tile_bytes;
        split_add<S::dim, S::m_tiles, S::tile>(dp, split_scales_of<S::dim, S::m_tiles, S::tile, !S::branches>(k, dp), k, dq);
    }
    ptx_cp_async_wait<0>(); /* of a unit whose rows keep nothing */
    finish_queries<S>(u, dq);
}

/* ------------------------------------------------------------------------------------------------------------- kernels */

#define BACKWARD(name, adjusted, blocks, dim, m_keys, rows, m_rows, keys_of_tile)                                              \
    extern "C" __global__ void __launch_bounds__(THREADS, blocks)                                                              \
        name(const __grid_constant__ fattn_problem problem, const __grid_constant__ fattn_launch at,                           \
             const __grid_constant__ split_call call)                                                                          \
    {                                                                                                                          \
        if (blockIdx.x < call.rows_blocks)                                                                                     \
            queries<sizes<dim, m_rows, keys_of_tile>, adjusted>(problem, at, call, blockIdx.x);                                \
        else                                                                                                                   \
            keys<sizes<dim, m_keys, rows>, adjusted>(problem, at, call, blockIdx.x - (unsigned)call.rows_blocks);              \
    }

#define BACKWARDS(dim, m_keys, rows, m_rows, keys, blocks)                                                                     \
    BACKWARD(split_backward_##dim, false, blocks, dim, m_keys, rows, m_rows, keys)                                             \
    BACKWARD(split_backward_##dim##_adjusted, true, blocks, dim, m_keys, rows, m_rows, keys)

SPLIT_BACKWARD_SIZES(BACKWARDS)
