/*
 * Backward for numbers of 16 bits on the tensor cores of compute capability 8.0 and later (FlashAttention-2, Dao 2023,
 * algorithm 2), in two kernels that each own what they write, so that results are the same bits in every run and nothing is
 * added in memory. Both compute S and dP again: 7 products instead of the 5 that atomic additions to dQ would need.
 *
 * Keys       a unit is KEYS keys, 16 per warp, against all rows that keep them, of all query heads of the group, in tiles of
 * ROWS rows: S^T = K Q^T and dP^T = V dO^T stay in registers, and are the left factors of dV += P^T dO and dK += dS^T Q.
 * Queries    a unit is 64 rows, 16 per warp, against all keys that they keep: S = Q K^T, dP = dO V^T, dQ += dS K.
 *
 * P and dS are rounded to the inputs' type, sums are float. For bf16 only: many a dS of binary16 would be below its smallest
 * number. D = rowsum(dO o O) - dlse comes from exact.cu, and so do dbias and
 * dsinks. A key or row whose result is not finite is computed again by itself, as in forward.
 */
#include "cuda/tensor.cuh"

/* What the rows of a tile bring along, in shared memory. */
struct grad_lane { /* 40 bytes */
    lane_place place;
    float lse, delta; /* lse in log2 units */
};

static_assert(sizeof(grad_lane) == 40, "TENSOR_BACKWARD_SHARED counts on it");

/* The sizes of a kernel: dims padded, columns of results of a unit, and how many rows or keys a tile of the other side has. */
template <int dim_, int width_, int tile_> struct sizes {
    static constexpr int dim = dim_, width = width_, tile = tile_;
    static constexpr int own = 16 * TENSOR_WARPS; /* keys or rows that the unit owns */
    static constexpr int own_bytes = own * dim * 2, tile_bytes = tile * dim * 2;
};

struct unit {
    const fattn_problem *problem;
    const fattn_launch *at;
    const tensor_call *call;
    const float *delta;
    fattn_sequence seq;
    long long first, column;
    int head_kv;
    unsigned char *own[2], *tile[2]; /* K and V, or Q and dO, of the unit; two tiles each of the other side's */
    grad_lane *lane;
};

/* Units: (sequence, key/value head, columns, tile), tiles fastest, the last rows first. */
template <class S>
__device__ inline void unit_begin(unit *u, const fattn_problem &problem, const fattn_launch &at, const tensor_call &call,
                                  const float *delta)
{
    extern __shared__ __align__(128) unsigned char shared[];
    long long index = blockIdx.x;
    u->problem = &problem;
    u->at = &at;
    u->call = &call;
    u->delta = delta;
    u->first = index % call.tiles * S::own;
    index /= call.tiles;
    u->column = index % call.widths * S::width;
    index /= call.widths;
    u->head_kv = (int)(index % problem.desc.heads_kv);
    u->seq = fattn_sequence_of(&problem, &at, index / problem.desc.heads_kv);
    u->own[0] = shared;
    u->own[1] = u->own[0] + S::own_bytes;
    u->tile[0] = u->own[1] + S::own_bytes;
    u->tile[1] = u->tile[0] + 2 * S::tile_bytes;
    u->lane = (grad_lane *)(u->tile[1] + 2 * S::tile_bytes);
}

/* Row number `row` of the list of the group's rows. Without gradients where there is none, or no score above -inf. */
__device__ inline grad_lane lane_of(const unit &u, long long row)
{
    grad_lane lane = {{-1, 0, 0, 0, 0}, 0, 0};
    if (row >= u.problem->group * u.seq.seq_q)
        return lane;
    lane.place.head = (int)(u.head_kv * u.problem->group + row / u.seq.seq_q);
    lane.place.row = row % u.seq.seq_q;
    const long long index = u.seq.lse_first + lane.place.head * u.seq.lse_head + lane.place.row;
    const float lse = ((const float *)u.at->lse)[index];
    const fattn_interval keep = fattn_mask_row(&u.seq.mask, lane.place.row);
    lane.lse = lse * (float)LOG2E;
    lane.delta = u.delta[index];
    if (lse != -INFINITY) {
        lane.place.lo = keep.lo;
        lane.place.hi = keep.hi;
    }
    return lane;
}

/* Rows of Q (which 0) or dO (1). */
template <class T, int rows, int dim>
__device__ __forceinline__ void load_queries(const unit &u, const grad_lane *lane, unsigned char *tile, int which)
{
    const fattn_view &view = which ? u.at->dout : u.at->q;
    const int64_t count = which ? u.problem->desc.dim_v : u.problem->desc.dim;
    load_tile<T, rows, dim>(tile, 0, count, which ? u.call->dout_lines : u.call->q_lines, [&](int r) -> const void * {
        const lane_place &place = lane[r].place;
        return place.row < 0 ? NULL : fattn_query_row(&view, 2, &u.seq, place.head, place.row);
    });
}

/* Keys key .. of K (which 0) or V (1). */
template <class T, int keys, int dim>
__device__ __forceinline__ void load_keys(const unit &u, unsigned char *tile, long long key, int which)
{
    const fattn_view &view = which ? u.at->v : u.at->k;
    const int64_t count = which ? u.problem->desc.dim_v : u.problem->desc.dim;
    const int there = (int)min(u.seq.seq_k - key, (long long)keys);
    const char *row = (const char *)fattn_row(&view, 2, u.seq.b, u.head_kv, u.seq.k_first + key);
    if (which ? u.call->v_lines : u.call->k_lines)
        load_lines<keys, dim>(tile, row, 2 * view.stride_row, there, count);
    else
        load_tile<T, keys, dim>(tile, 0, count, false, [&](int r) -> const void * {
            return r < there ? (const void *)(row + 2 * view.stride_row * r) : NULL;
        });
}

/* ------------------------------------------------------------------------------------------------------------ products */

/* acc = own rows of the warp times the tile's rows, over dim: acc[n-tile][4]. */
template <class T, class S>
__device__ __forceinline__ void product(const unsigned char *own, const unsigned char *tile, float acc[S::tile / 8][4])
{
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16;
    const uint32_t a_at = ptx_shared_address(own), b_at = ptx_shared_address(tile);
#pragma unroll
    for (int n = 0; n < S::tile / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            acc[n][e] = 0;
#pragma unroll
    for (int d = 0; d < S::dim / 16; d++) {
        uint32_t a[4];
        ptx_ldmatrix_x4(a, a_at + piece_at<S::dim>(row + lane % 16, 2 * d + lane / 16));
#pragma unroll
        for (int n = 0; n < S::tile / 16; n++) {
            uint32_t b[4];
            ptx_ldmatrix_x4(b, b_at + piece_at<S::dim>(16 * n + lane % 8 + lane / 16 * 8, 2 * d + lane / 8 % 2));
            ptx_mma(acc[2 * n], a, b, T());
            ptx_mma(acc[2 * n + 1], a, b + 2, T());
        }
    }
}

/* sum += weights times the tile's rows, columns from `column` on: sum[n-tile][4]. */
template <class T, class S>
__device__ __forceinline__ void add_weighted(const float weight[S::tile / 8][4], const unsigned char *tile, int column,
                                             float sum[S::width / 8][4])
{
    const int lane = threadIdx.x % 32;
    const uint32_t b_at = ptx_shared_address(tile);
#pragma unroll
    for (int k = 0; k < S::tile / 16; k++) {
        uint32_t a[4];
#pragma unroll
        for (int e = 0; e < 4; e++)
            a[e] = ptx_pack(weight[2 * k + e / 2][e % 2 * 2], weight[2 * k + e / 2][e % 2 * 2 + 1], T());
#pragma unroll
        for (int n = 0; n < S::width / 16; n++) {
            uint32_t b[4];
            ptx_ldmatrix_x4_trans(b, b_at + piece_at<S::dim>(16 * k + lane % 16, column / PIECE + 2 * n + lane / 16));
            ptx_mma(sum[2 * n], a, b, T());
            ptx_mma(sum[2 * n + 1], a, b + 2, T());
        }
    }
}

/* Index among the unit's own rows, or keys, and among the tile's, of element e of n-tile n. */
__device__ __forceinline__ int own_of(int e)
{
    return threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + e / 2 * 8;
}

__device__ __forceinline__ int other_of(int n, int e)
{
    return 8 * n + threadIdx.x % 4 * 2 + e % 2;
}

/* -------------------------------------------------------------------------------------------------------------- scores */

/* What becomes of a product of a row with a key that it keeps: a score in log2 units. *bend: softcap's 1 - tanh^2. */
__device__ inline float adjust_score(const unit &u, const scoring &how, const lane_place &place, long long key, float x,
                                     float *bend)
{
    x *= how.scale;
    if (how.capped) {
        const float t = tanhf(x / how.cap);
        x = how.cap * t;
        *bend = 1 - t * t;
    }
    if (how.biased)
        x += load_number(fattn_row(&u.at->bias, 2, u.seq.b, place.head, place.row), u.problem->desc.dtype, key);
    if (how.sloped) {
        const long long distance = place.row + u.seq.mask.offset - key;
        x -= u.at->slopes[place.head] * (float)(distance < 0 ? -distance : distance);
    }
    return x * (float)LOG2E;
}

/* s: a product q.k becomes P with dropout's factor, what dV is weighted with; dp: a product dO.v becomes dS, without scale. */
template <bool adjusted>
__device__ __forceinline__ void gradient(const unit &u, const scoring &how, const grad_lane &lane, long long key, bool whole,
                                         float *s, float *dp)
{
    const bool kept = whole || (key >= lane.place.lo && key < lane.place.hi);
    if (!adjusted) {
        const float p = kept ? ptx_exp2(fmaf(*s, how.c, -lane.lse)) : 0.0f;
        *dp = kept ? p * (*dp - lane.delta) : 0.0f;
        *s = p;
        return;
    }
    float bend = 1, factor = 1;
    if (!kept || lane.place.row < 0) { /* no such row: `whole` does not count it, and it has no bias to read */
        *s = *dp = 0;
        return;
    }
    const float p = ptx_exp2(adjust_score(u, how, lane.place, key, *s, &bend) - lane.lse);
    if (how.dropped)
        factor = fattn_dropout_keeps(&how.dropout, u.seq.b * u.problem->desc.heads_q + lane.place.head, lane.place.row, key)
                     ? how.keep
                     : 0.0f;
    *dp = p * (factor * *dp - lane.delta) * bend;
    *s = p * factor;
}

/* --------------------------------------------------------------------------------------------------------- by themselves */

/* A pair of a row and a key that it keeps, in double: what dV is weighted with, and dS without scale. By a warp. */
struct pair_gradients {
    double p, dx;
};

__device__ inline pair_gradients pair_alone(const fattn_problem &problem, const fattn_launch &at, const fattn_sequence &seq,
                                            const lane_place &place, long long key, const float *delta)
{
    const fattn_desc &d = problem.desc;
    const long long index = seq.lse_first + place.head * seq.lse_head + place.row;
    const int head_kv = (int)(place.head / problem.group);
    const void *q = fattn_query_row(&at.q, 2, &seq, place.head, place.row);
    const void *dout = fattn_query_row(&at.dout, fattn_dtype_size(d.out_dtype), &seq, place.head, place.row);
    const void *k = fattn_key_row(&problem, &at, &at.k, 2, &seq, head_kv, key);
    const void *v = fattn_key_row(&problem, &at, &at.v, 2, &seq, head_kv, key);
    double x = 0, dp = 0;
    for (long long c = threadIdx.x % 32; c < d.dim; c += 32)
        x += (double)load_number(q, d.dtype, c) * (double)load_number(k, d.dtype, c);
    for (long long c = threadIdx.x % 32; c < d.dim_v; c += 32)
        dp += (double)load_number(dout, d.out_dtype, c) * (double)load_number(v, d.dtype, c);
    for (int step = 16; step > 0; step /= 2) {
        x += __shfl_xor_sync(0xffffffffu, x, step);
        dp += __shfl_xor_sync(0xffffffffu, dp, step);
    }
    x *= d.scale;
    const double t = d.softcap != 0 ? tanh(x / d.softcap) : 0;
    const double p =
        exp(fattn_score(&problem, &at, &seq, place.head, place.row, key, x) - (double)((const float *)at.lse)[index]);
    const fattn_dropout dropout = fattn_dropout_of(&d);
    const bool keeps = d.dropout == 0 || fattn_dropout_keeps(&dropout, seq.b * d.heads_q + place.head, place.row, key);
    const double factor = keeps ? 1 / (1 - d.dropout) : 0;
    return {p * factor, p * (factor * dp - (double)delta[index]) * (1 - t * t)};
}

/* Adds weight times a row to a lane's columns column + lane + 32 i. */
template <int width>
__device__ inline void add_row(double sum[width / 32], double weight, const void *row, int32_t dtype, long long column,
                               long long count)
{
#pragma unroll
    for (int i = 0; i < width / 32; i++) {
        const long long c = column + threadIdx.x % 32 + 32 * i;
        if (c < count)
            sum[i] += weight * (double)load_number(row, dtype, c);
    }
}

template <int width>
__device__ inline void store_row(const double sum[width / 32], double by, void *row, int32_t dtype, long long column,
                                 long long count)
{
#pragma unroll
    for (int i = 0; i < width / 32; i++) {
        const long long c = column + threadIdx.x % 32 + 32 * i;
        if (c < count)
            store_number(row, dtype, c, (float)(sum[i] * by));
    }
}

/* The rows' keys without those of a row that has no score above -inf. */
__device__ inline fattn_interval keep_alone(const fattn_launch &at, const fattn_sequence &seq, int head, long long row)
{
    const float lse = ((const float *)at.lse)[seq.lse_first + head * seq.lse_head + row];
    return lse == -INFINITY ? fattn_interval{0, 0} : fattn_mask_row(&seq.mask, row);
}

/* dQ of one row. Takes copies, as row_alone of forward. */
template <int width>
__device__ __noinline__ void query_alone(const fattn_problem *problem, const fattn_launch *at, const float *delta, long long b,
                                         long long column, int head, long long row)
{
    const fattn_desc &d = problem->desc;
    const fattn_sequence seq = fattn_sequence_of(problem, at, b);
    const lane_place place = {row, head, 0, 0, 0};
    const fattn_interval keep = keep_alone(*at, seq, head, row);
    double sum[width / 32] = {};
    for (long long key = keep.lo; key < keep.hi; key++) {
        const pair_gradients g = pair_alone(*problem, *at, seq, place, key, delta);
        add_row<width>(sum, g.dx, fattn_key_row(problem, at, &at->k, 2, &seq, head / problem->group, key), d.dtype, column,
                       d.dim);
    }
    store_row<width>(sum, d.scale, fattn_query_row(&at->dq, fattn_dtype_size(d.grad_dtype), &seq, head, row), d.grad_dtype,
                     column, d.dim);
}

/* dK and dV of one key. */
template <int width>
__device__ __noinline__ void key_alone(const fattn_problem *problem, const fattn_launch *at, const float *delta, long long b,
                                       long long column, int head_kv, long long key)
{
    const fattn_desc &d = problem->desc;
    const fattn_sequence seq = fattn_sequence_of(problem, at, b);
    const size_t size = fattn_dtype_size(d.grad_dtype);
    double dk[width / 32] = {}, dv[width / 32] = {};
    for (long long r = 0; r < problem->group * seq.seq_q; r++) {
        const int head = (int)(head_kv * problem->group + r / seq.seq_q);
        const lane_place place = {r % seq.seq_q, head, 0, 0, 0};
        const fattn_interval keep = keep_alone(*at, seq, head, place.row);
        if (key < keep.lo || key >= keep.hi)
            continue;
        const pair_gradients g = pair_alone(*problem, *at, seq, place, key, delta);
        add_row<width>(dk, g.dx, fattn_query_row(&at->q, 2, &seq, head, place.row), d.dtype, column, d.dim);
        add_row<width>(dv, g.p, fattn_query_row(&at->dout, fattn_dtype_size(d.out_dtype), &seq, head, place.row), d.out_dtype,
                       column, d.dim_v);
    }
    store_row<width>(dk, d.scale, fattn_key_row(problem, at, &at->dk, size, &seq, head_kv, key), d.grad_dtype, column, d.dim);
    store_row<width>(dv, 1, fattn_key_row(problem, at, &at->dv, size, &seq, head_kv, key), d.grad_dtype, column, d.dim_v);
}

/* ------------------------------------------------------------------------------------------------------------- results */

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
__device__ __forceinline__ void store_half(const float sum[tiles][4], int half, float by, void *row, int32_t dtype,
                                           long long column, long long count)
{
#pragma unroll
    for (int n = 0; n < tiles; n++)
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; e++)
            if (column + other_of(n, e) < count)
                store_number(row, dtype, column + other_of(n, e), sum[n][e] * by);
}

/* -------------------------------------------------------------------------------------------------------------- keys */

/* Lanes of the tile that begins at row `first` of the list, and whether the unit's keys are kept by some (1) or all (2). */
template <class S> __device__ inline int set_lanes(const unit &u, grad_lane *lane, long long first)
{
    bool some = false, all = true;
    for (int r = threadIdx.x; r < S::tile; r += THREADS) {
        const grad_lane own = lane_of(u, first + r);
        lane[r] = own;
        some = some || (own.place.lo < u.first + S::own && own.place.hi > u.first);
        all = all && own.place.lo <= u.first && own.place.hi >= u.first + S::own;
    }
    return __syncthreads_or(some) ? 1 + __syncthreads_and(all) : 0;
}

/* The next tile from row `first` on that keeps some of the unit's keys: its lanes are set, and it is on its way. Returns its
 * first row, or the end of the list. */
template <class T, class S>
__device__ inline long long next_tile(const unit &u, int stage, long long first, long long end, int *kept)
{
    grad_lane *lane = u.lane + stage * S::tile;
    for (*kept = 0; first < end; first += S::tile) {
        *kept = set_lanes<S>(u, lane, first);
        if (*kept == 0)
            continue;
        load_queries<T, S::tile, S::dim>(u, lane, u.tile[0] + stage * S::tile_bytes, 0);
        load_queries<T, S::tile, S::dim>(u, lane, u.tile[1] + stage * S::tile_bytes, 1);
        break;
    }
    ptx_cp_async_commit();
    return first;
}

template <class T, class S> __device__ inline void flip_sign(unsigned char *tile)
{
    for (int i = threadIdx.x; i < S::own_bytes / 4; i += THREADS)
        ((uint32_t *)tile)[i] ^= 0x80008000u;
}

template <class T, class S, bool adjusted>
__device__ inline void keys(const fattn_problem &problem, const fattn_launch &at, const tensor_call &call, const float *delta)
{
    unit u;
    unit_begin<S>(&u, problem, at, call, delta);
    if (u.first >= u.seq.seq_k)
        return;
    const scoring how = scoring_of(problem, adjusted);
    const long long end = problem.group * u.seq.seq_q;
    float dk[S::width / 8][4] = {}, dv[S::width / 8][4] = {};
    load_keys<T, S::own, S::dim>(u, u.own[0], u.first, 0);
    load_keys<T, S::own, S::dim>(u, u.own[1], u.first, 1);
    int kept, stage = 0;
    long long row = next_tile<T, S>(u, 0, 0, end, &kept);
    bool flipped = !(problem.desc.scale < 0);
    while (row < end) {
        int next_kept;
        ptx_cp_async_wait<0>();
        __syncthreads();
        if (!flipped) {
            flip_sign<T, S>(u.own[0]);
            flipped = true;
        }
        const long long next = next_tile<T, S>(u, stage ^ 1, row + S::tile, end, &next_kept);
        __syncthreads();
        const grad_lane *lane = u.lane + stage * S::tile;
        const unsigned char *q = u.tile[0] + stage * S::tile_bytes, *dout = u.tile[1] + stage * S::tile_bytes;
        float s[S::tile / 8][4], dp[S::tile / 8][4];
        product<T, S>(u.own[0], q, s);
        product<T, S>(u.own[1], dout, dp);
#pragma unroll
        for (int n = 0; n < S::tile / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                gradient<adjusted>(u, how, lane[other_of(n, e)], u.first + own_of(e), kept == 2, &s[n][e], &dp[n][e]);
        add_weighted<T, S>(s, dout, (int)u.column, dv);
        add_weighted<T, S>(dp, q, (int)u.column, dk);
        row = next;
        kept = next_kept;
        stage ^= 1;
    }
    ptx_cp_async_wait<0>(); /* of a unit whose keys nobody keeps */
    const fattn_desc &d = problem.desc;
    const size_t size = fattn_dtype_size(d.grad_dtype);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const long long key = u.first + own_of(2 * half);
        const bool there = key < u.seq.seq_k;
        const bool finite = finite_half<S::width / 8>(dk, half) && finite_half<S::width / 8>(dv, half);
        if (there) {
            store_half<S::width / 8>(dk, half, (float)d.scale,
                                     fattn_key_row(&problem, &at, &at.dk, size, &u.seq, u.head_kv, key), d.grad_dtype, u.column,
                                     d.dim);
            store_half<S::width / 8>(dv, half, 1.0f, fattn_key_row(&problem, &at, &at.dv, size, &u.seq, u.head_kv, key),
                                     d.grad_dtype, u.column, d.dim_v);
        }
        __syncwarp();
        const unsigned wrong = __ballot_sync(0xffffffffu, !finite && there);
        for (int g = 0; g < 8; g++)
            if (wrong >> (4 * g) & 15)
                key_alone<S::width>(&problem, &at, delta, u.seq.b, u.column, u.head_kv,
                                    u.first + threadIdx.x / 32 * 16 + g + 8 * half);
    }
}

/* ------------------------------------------------------------------------------------------------------------- queries */

/* Keys that any of the unit's rows keeps. */
template <class S> __device__ inline fattn_interval span_of(const unit &u)
{
    long long lo = INT64_MAX, hi = 0;
    for (int r = threadIdx.x % 32; r < S::own; r += 32)
        if (u.lane[r].place.lo < u.lane[r].place.hi) {
            lo = min(lo, u.lane[r].place.lo);
            hi = max(hi, u.lane[r].place.hi);
        }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        lo = min(lo, __shfl_xor_sync(0xffffffffu, lo, step));
        hi = max(hi, __shfl_xor_sync(0xffffffffu, hi, step));
    }
    return {lo, hi};
}

/* Whether the warp's rows keep none (0), some (1) or all (2) of a tile's keys. */
template <class S> __device__ inline int kept_of(const unit &u, long long key)
{
    const lane_place &place = u.lane[threadIdx.x / 32 * 16 + threadIdx.x % 16].place;
    const bool all = place.row < 0 || (place.lo <= key && place.hi >= key + S::tile);
    const bool some = place.lo < key + S::tile && place.hi > key;
    if (!__any_sync(0xffffffffu, some))
        return 0;
    return __all_sync(0xffffffffu, all) ? 2 : 1;
}

template <class T, class S> __device__ __forceinline__ void load_key_tiles(const unit &u, long long key, int stage)
{
    load_keys<T, S::tile, S::dim>(u, u.tile[0] + stage * S::tile_bytes, key, 0);
    load_keys<T, S::tile, S::dim>(u, u.tile[1] + stage * S::tile_bytes, key, 1);
}

template <class T, class S, bool adjusted>
__device__ inline void queries(const fattn_problem &problem, const fattn_launch &at, const tensor_call &call,
                               const float *delta)
{
    unit u;
    unit_begin<S>(&u, problem, at, call, delta);
    u.first = (call.tiles - 1) * S::own - u.first; /* the last rows first: with a causal mask they take longest */
    if (u.first >= problem.group * u.seq.seq_q)
        return;
    const scoring how = scoring_of(problem, adjusted);
    float dq[S::width / 8][4] = {};
    for (int r = threadIdx.x; r < S::own; r += THREADS)
        u.lane[r] = lane_of(u, u.first + r);
    __syncthreads();
    const fattn_interval span = span_of<S>(u);
    const long long start = span.lo / S::tile * S::tile;
    load_queries<T, S::own, S::dim>(u, u.lane, u.own[0], 0);
    load_queries<T, S::own, S::dim>(u, u.lane, u.own[1], 1);
    if (start < span.hi)
        load_key_tiles<T, S>(u, start, 0);
    ptx_cp_async_commit();
    if (problem.desc.scale < 0) {
        ptx_cp_async_wait<0>();
        __syncthreads();
        flip_sign<T, S>(u.own[0]);
    }
    int stage = 0;
    for (long long key = start; key < span.hi; key += S::tile, stage ^= 1) {
        ptx_cp_async_wait<0>();
        __syncthreads();
        if (key + S::tile < span.hi)
            load_key_tiles<T, S>(u, key + S::tile, stage ^ 1);
        ptx_cp_async_commit();
        const int kept = kept_of<S>(u, key);
        if (kept == 0)
            continue;
        float s[S::tile / 8][4], dp[S::tile / 8][4];
        product<T, S>(u.own[0], u.tile[0] + stage * S::tile_bytes, s);
        product<T, S>(u.own[1], u.tile[1] + stage * S::tile_bytes, dp);
#pragma unroll
        for (int n = 0; n < S::tile / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                gradient<adjusted>(u, how, u.lane[own_of(e)], key + other_of(n, e), kept == 2, &s[n][e], &dp[n][e]);
        add_weighted<T, S>(dp, u.tile[0] + stage * S::tile_bytes, (int)u.column, dq);
    }
    ptx_cp_async_wait<0>(); /* of a unit whose rows keep nothing */
    const fattn_desc &d = problem.desc;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const lane_place place = u.lane[own_of(2 * half)].place;
        if (place.row >= 0)
            store_half<S::width / 8>(dq, half, (float)d.scale,
                                     fattn_query_row(&at.dq, fattn_dtype_size(d.grad_dtype), &u.seq, place.head, place.row),
                                     d.grad_dtype, u.column, d.dim);
        __syncwarp();
        const unsigned wrong = __ballot_sync(0xffffffffu, !finite_half<S::width / 8>(dq, half) && place.row >= 0);
        for (int g = 0; g < 8; g++)
            if (wrong >> (4 * g) & 15) {
                const lane_place bad = u.lane[threadIdx.x / 32 * 16 + g + 8 * half].place;
                query_alone<S::width>(&problem, &at, delta, u.seq.b, u.column, bad.head, bad.row);
            }
    }
}

/* ------------------------------------------------------------------------------------------------------------- kernels */

#define BACKWARD(kernel, name, type, adjusted, ...)                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                      \
        name(const __grid_constant__ fattn_problem problem, const __grid_constant__ fattn_launch at,                           \
             const __grid_constant__ tensor_call call, const float *delta)                                                     \
    {                                                                                                                          \
        kernel<type, sizes<__VA_ARGS__>, adjusted>(problem, at, call, delta);                                                  \
    }

#define BACKWARDS(name, dim, width, rows, columns)                                                                             \
    BACKWARD(keys, tensor_keys_bf16_##name, __nv_bfloat16, false, dim, width, rows)                                            \
    BACKWARD(keys, tensor_keys_bf16_##name##_adjusted, __nv_bfloat16, true, dim, width, rows)                                  \
    BACKWARD(queries, tensor_queries_bf16_##name, __nv_bfloat16, false, dim, width, columns)                                   \
    BACKWARD(queries, tensor_queries_bf16_##name##_adjusted, __nv_bfloat16, true, dim, width, columns)

TENSOR_BACKWARD_SIZES(BACKWARDS)
