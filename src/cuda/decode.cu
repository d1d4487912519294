/*
 * Decode: forward for few query rows and many keys, at the speed at which keys and values can be read (Flash-Decoding, Dao,
 * Haziza, Massa and Sizov 2023), on the tensor cores of compute capability 8.0 and later.
 *
 * The rows of all query heads that share a key/value head are one list of up to 64, in tiles of 16. A unit is that list against
 * one chunk of DECODE_CHUNK keys. Each warp of a block has tiles of keys of its own on their way, which as many warps share as
 * there are tiles of rows: with up to 16 rows no warp waits for another before the end of the unit. There the sums of the warps
 * are joined, and a second kernel joins those of a row's chunks, in order. Chunks begin at multiples of DECODE_CHUNK whatever
 * the GPU, the batch or seq_k, so that a row's bits depend on its sequence alone.
 *
 * A tile of K makes room for the next as soon as its products are done, while its V is still at work.
 *
 * Bytes stay bytes in shared memory. A thread reads sixteen of a row at once and makes of them the factors of several products;
 * which dims and keys stand where in those is free, so the columns of Q, and of the results, are permuted instead.
 */
#include "cuda/decode.cuh"

/* ------------------------------------------------------------------------------------------------------------ products */

/* Four bytes as 16-bit numbers, the first and third, the second and fourth. bfloat16 holds 128 + x for x of 7 bits as 0x4300 +
 * x; 128 is taken off again, and 256 of a byte with its sign set. */
__device__ __forceinline__ void widen_bytes(uint32_t x, uint32_t *even, uint32_t *odd)
{
    constexpr uint32_t base = 0x43004300u;
    const uint32_t y = x >> 8;
    *even = ptx_subtract_bf16x2((x & 0x007f007fu) | base, (x & 0x00800080u) | base);
    *odd = ptx_subtract_bf16x2((y & 0x007f007fu) | base, (y & 0x00800080u) | base);
}

/* S of the warp's rows against a tile of keys. */
template <class T, class S>
__device__ __forceinline__ void scores_of(const unit<S> &u, const unsigned char *tile, float s[1][S::keys / 8][4])
{
    const int lane = threadIdx.x % 32;
    const uint32_t q = ptx_shared_address(u.q), k = ptx_shared_address(tile);
#pragma unroll
    for (int n = 0; n < S::keys / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            s[0][n][e] = 0;
#pragma unroll
    for (int block = 0; block < S::dim / 64; block++) {
        uint4 of_bytes[S::keys / 8];
        if (S::bytes)
#pragma unroll
            for (int n = 0; n < S::keys / 8; n++)
                of_bytes[n] = *(const uint4 *)(tile + key_piece<S, false>(8 * n + lane / 4, 4 * block + lane % 4));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int d = 4 * block + i;
            uint32_t a[4];
            ptx_ldmatrix_x4(a, q + piece_at<S::dim>(u.warp_row() + lane % 16, 2 * d + lane / 16));
#pragma unroll
            for (int n = 0; n < S::keys / 8; n += 2) {
                uint32_t b[4];
                if (S::bytes) {
                    widen_bytes((&of_bytes[n].x)[i], &b[0], &b[1]);
                    widen_bytes((&of_bytes[n + 1].x)[i], &b[2], &b[3]);
                } else {
                    ptx_ldmatrix_x4(b, k + key_piece<S, false>(8 * n + lane % 8 + lane / 16 * 8, 2 * d + lane / 8 % 2));
                }
                ptx_mma(s[0][n], a, b, T());
                ptx_mma(s[0][n + 1], a, b + 2, T());
            }
        }
    }
}

/* O += P V for 16 keys of bytes from row `first` of the tile on. A thread has the same bytes of four keys, whose columns of O
 * are n-tiles' own. */
template <class T, class S>
__device__ __forceinline__ void add_bytes(const unsigned char *tile, int first, const uint32_t a[4], float o[S::width / 8][4])
{
    const int lane = threadIdx.x % 32;
    constexpr int words = S::width > 64 ? 4 : 2; /* that a thread reads of a key at once */
#pragma unroll
    for (int block = 0; block < S::width / (32 * words); block++) {
        uint32_t x[4][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = first + lane % 4 * 2 + i % 2 + i / 2 * 8;
            if (words == 4)
                *(uint4 *)x[i] = *(const uint4 *)(tile + key_piece<S, true>(r, 8 * block + lane / 4));
            else
                *(uint2 *)x[i] = *(const uint2 *)(tile + key_piece<S, true>(r, lane / 8) + lane / 4 % 2 * 8);
        }
#pragma unroll
        for (int w = 0; w < words; w++)
#pragma unroll
            for (int upper = 0; upper < 2; upper++) {
                const uint32_t take = upper ? 0x7632 : 0x5410;
                uint32_t even[2], odd[2];
                widen_bytes(__byte_perm(x[0][w], x[1][w], take), &even[0], &odd[0]);
                widen_bytes(__byte_perm(x[2][w], x[3][w], take), &even[1], &odd[1]);
                const int n = 4 * words * block + 4 * w + 2 * upper;
                ptx_mma(o[n], a, even, T());
                ptx_mma(o[n + 1], a, odd, T());
            }
    }
}

/* O += P V. */
template <class T, class S>
__device__ __forceinline__ void add_values(const unsigned char *tile, const float p[1][S::keys / 8][4],
                                           float o[S::width / 8][4])
{
    const int lane = threadIdx.x % 32;
    const uint32_t v = ptx_shared_address(tile);
#pragma unroll
    for (int k = 0; k < S::keys / 16; k++) {
        uint32_t a[4];
#pragma unroll
        for (int e = 0; e < 4; e++)
            a[e] = ptx_pack(p[0][2 * k + e / 2][e % 2 * 2], p[0][2 * k + e / 2][e % 2 * 2 + 1], T());
        if constexpr (S::bytes) {
            add_bytes<T, S>(tile, 16 * k, a, o);
        } else {
#pragma unroll
            for (int n = 0; n < S::width / 16; n++) {
                uint32_t b[4];
                ptx_ldmatrix_x4_trans(b, v + key_piece<S, true>(16 * k + lane % 16, 2 * n + lane / 16));
                ptx_mma(o[2 * n], a, b, T());
                ptx_mma(o[2 * n + 1], a, b + 2, T());
            }
        }
    }
}

/* Column of the unit that element e of n-tile n of O is. */
template <class S> __device__ __forceinline__ int column_of(int n, int e)
{
    constexpr int own = S::width > 64 ? 16 : 8; /* bytes of a key that a thread has, one for each n-tile */
    return S::bytes ? n / own * 8 * own + (threadIdx.x % 4 * 2 + e % 2) * own + n % own : key_of(n, e);
}

/* ------------------------------------------------------------------------------------------------------------- the loop */

/* Waits for the warps that share tiles. */
__device__ __forceinline__ void team_sync(int row_tiles)
{
    if (row_tiles == 1)
        __syncwarp();
    else if (row_tiles == DECODE_WARPS)
        __syncthreads();
    else
        ptx_bar_sync(1 + threadIdx.x / (DECODE_THREADS / 2), DECODE_THREADS / 2);
}

/* Factors of a tile's keys, which a thread multiplies its scores or powers with. */
template <int keys> __device__ __forceinline__ void scale_keys(const float *factor, float s[1][keys / 8][4])
{
#pragma unroll
    for (int n = 0; n < keys / 8; n++) {
        const float2 own = *(const float2 *)(factor + key_of(n, 0));
        s[0][n][0] *= own.x;
        s[0][n][1] *= own.y;
        s[0][n][2] *= own.x;
        s[0][n][3] *= own.y;
    }
}

/* What row threadIdx.x % 16 of the warp's tile of rows keeps of the chunk. */
struct kept_keys {
    int lo, hi;
    bool there;
};

/* Products of tile `key` of the chunk, whose place among factors is `place`, become scores, and these powers. */
template <class S>
__device__ __forceinline__ void powers_of(const unit<S> &u, const scoring &how, int key, int place, int kept, row_sums<S> *sum,
                                          float s[1][S::keys / 8][4])
{
    if (S::adjusted)
        adjust_scores<S>(u, how, u.first + key, place, s);
    if (RARELY(kept == 1))
        drop_keys<S>(u, u.first + key, s);
    softmax(sum, how, s, u.halves());
    if (S::adjusted)
        weigh<S>(u, how, u.first + key, place, s);
}

/* The rows against the chunk. Step n of the loop is one tile of every warp; its copies are two groups, K and V, which are under
 * way `stages` steps earlier. One loop does both, so that the code of loading is there once. */
template <class T, class S> __device__ __forceinline__ void meet_chunk(const unit<S> &u, const scoring &how, row_sums<S> *sum)
{
    constexpr int stages = S::stages, runs = S::keys / DECODE_RUN;
    const int warp = threadIdx.x / 32, tiles = u.call->row_tiles, team = warp / tiles * tiles;
    const int start = u.lo / S::step * S::step, steps = (u.hi - start + S::step - 1) / S::step;
    const lane_place &lane = u.lane[u.warp_row() + threadIdx.x % 16];
    const kept_keys own = {(int)(lane.lo - u.first), (int)(lane.hi - u.first), lane.row >= 0};
    int page[runs], next_page[runs], stage = 0;
#pragma unroll
    for (int i = 0; i < runs; i++)
        next_page[i] = page_of(u, start + warp * S::keys + i * DECODE_RUN);
    load_queries<T>(u);
    ptx_cp_async_commit();
#pragma unroll 1
    for (int n = -stages; n < steps; n++) {
        const int ahead = start + (n + stages) * S::step + warp * S::keys;
#pragma unroll
        for (int i = 0; i < runs; i++) {
            page[i] = next_page[i];
            next_page[i] = page_of(u, ahead + S::step + i * DECODE_RUN);
        }
#pragma unroll 1
        for (int i = n < 0 ? tiles - 1 : 0; i < tiles; i++) {
            const int owner = team + i, key = start + n * S::step + owner * S::keys, place = owner * stages + stage;
            const unsigned char *tile = slot_of(u, owner, stage);
            float s[1][S::keys / 8][4];
            int kept = 0;
            if (n >= 0) {
                if (tiles == 1)
                    ptx_cp_async_wait<2 * stages - 1>(); /* for K */
                else if (i == 0)
                    ptx_cp_async_wait<2 * stages - 2>(); /* for V too */
                if (RARELY(n == 0 && i == 0)) {
                    __syncthreads();
                    arrange_queries(u);
                } else if (i == 0) {
                    team_sync(tiles);
                }
                kept = kept_of(own, own.there, key, S::keys);
                if (kept) {
                    scores_of<T>(u, tile, s);
                    if (S::bytes)
                        scale_keys<S::keys>(u.k_factor + place * S::keys, s);
                }
            }
            if (i == tiles - 1) {
                if (n >= 0)
                    team_sync(tiles);
                load_keys<T, S, false>(u, ahead, stage, page);
                ptx_cp_async_commit();
            }
            if (n < 0)
                continue;
            if (kept)
                powers_of(u, how, key, place, kept, sum, s);
            if (tiles == 1) {
                ptx_cp_async_wait<2 * stages - 1>();
                __syncwarp();
            }
            if (kept) {
                if (S::bytes)
                    scale_keys<S::keys>(u.v_factor + place * S::keys, s);
                add_values<T, S>(tile + S::k_bytes, s, sum->o[0]);
            }
        }
        if (n >= 0)
            team_sync(tiles);
        load_keys<T, S, true>(u, ahead, stage, page);
        ptx_cp_async_commit();
        stage = stage == stages - 1 ? 0 : stage + 1;
    }
    ptx_cp_async_wait<0>();
}

/* ------------------------------------------------------------------------------------------------------------- joining */

/* What powers of a row whose largest score is m refer to, in log2 units: see softmax. */
__device__ inline double reference_of(const scoring &how, float m)
{
    const float near = __fmul_rn(m, how.c);
    return fabsf(near) < FAR ? (double)near : (double)m * (double)how.c;
}

/* Index of the first row of a list's chunk among all partial sums. */
__device__ inline long long rows_before(const fattn_problem &problem, const decode_call &call, long long b, int head_kv,
                                        long long chunk)
{
    return ((b * problem.desc.heads_kv + head_kv) * call.chunks + chunk) * problem.group * problem.desc.seq_q;
}

/* Joins a number of each of the first DECODE_WARPS lanes in a fixed order; all of these get the result. */
template <typename F> __device__ __forceinline__ float over_teams(float x, F join)
{
#pragma unroll
    for (int step = DECODE_WARPS / 2; step > 0; step /= 2)
        x = join(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* The sums of the block's warps become those of the chunk. */
template <class S> __device__ inline void finish_chunk(const unit<S> &u, const scoring &how, const row_sums<S> &sum)
{
    const int tiles = u.call->row_tiles, team = threadIdx.x / 32 / tiles, dim_v = (int)u.problem->desc.dim_v;
    const int lane = threadIdx.x % 32;
    float *parts = (float *)u.tiles, *ends = parts + DECODE_WARPS * 16 * S::part_row; /* [team][row] */
    __syncthreads();                                                                  /* no warp reads tiles any more */
#pragma unroll
    for (int half = 0; half < 2; half++) {
        if (half >= u.halves())
            break;
        const int r = team * 16 * tiles + row_of(u, 0, 2 * half);
        float l = sum.l[0][half];
        l += __shfl_xor_sync(0xffffffffu, l, 1);
        l += __shfl_xor_sync(0xffffffffu, l, 2);
        if (threadIdx.x % 4 == 0)
            *(float2 *)(ends + 2 * r) = make_float2(sum.m[0][half], l);
#pragma unroll
        for (int n = 0; n < S::width / 8; n++)
#pragma unroll
            for (int e = 2 * half; e < 2 * half + 2; e++)
                parts[r * S::part_row + column_of<S>(n, e)] = sum.o[0][n][e];
    }
    __syncthreads();
    const long long first = rows_before(*u.problem, *u.call, u.b, u.head_kv, u.chunk);
#pragma unroll 1
    for (int r = threadIdx.x / 32; r < u.rows; r += DECODE_WARPS) {
        if (u.lane[r].lo >= u.lane[r].hi)
            continue;
        float2 end = make_float2(-INFINITY, 0); /* lane i has team i's */
        if (lane < DECODE_WARPS / tiles)
            end = *(const float2 *)(ends + 2 * (lane * 16 * tiles + r));
        const float m = over_teams(end.y == 0 ? -INFINITY : end.x, [](float a, float b) { return fmaxf(a, b); });
        const float weight = end.y == 0   ? 0
                             : end.x == m ? 1
                                          : ptx_exp2((float)(reference_of(how, end.x) - reference_of(how, m)));
        const float l = over_teams(weight * end.y, [](float a, float b) { return a + b; });
        float *to = u.call->sums + (first + r) * dim_v + u.column, o[S::width / 32] = {};
        if (lane == 0 && u.column == 0)
            *(float2 *)(u.call->ends + 2 * (first + r)) = make_float2(m, l);
#pragma unroll 1
        for (int i = 0; i < DECODE_WARPS / tiles; i++) {
            const float w = __shfl_sync(0xffffffffu, weight, i);
            const bool none = __shfl_sync(0xffffffffu, end.y, i) == 0;
#pragma unroll
            for (int x = 0; x < S::width / 32; x++)
                o[x] = none ? o[x] : fmaf(w, parts[(i * 16 * tiles + r) * S::part_row + 32 * x + lane], o[x]);
        }
#pragma unroll
        for (int x = 0; x < S::width / 32; x++)
            if (32 * x + lane < dim_v - (int)u.column)
                to[32 * x + lane] = o[x];
    }
}

/* ------------------------------------------------------------------------------------------------------------- kernels */

template <class T, class S>
__device__ inline void decode(const fattn_problem &problem, const fattn_launch &at, const decode_call &call)
{
    unit<S> u;
    row_sums<S> sum = {};
    scoring how = scoring_of(problem, S::adjusted);
    how.bytes = false; /* factors of bytes are multiplied with products, and with powers, here */
    ptx_wait_for_grids_before();
    ptx_let_grids_after_begin();
    if (!unit_begin(&u, problem, at, call, blockIdx.x))
        return;
    sum.m[0][0] = sum.m[0][1] = -INFINITY;
    unit_lanes(&u);
    if (u.lo >= u.hi)
        return;
    meet_chunk<T>(u, how, &sum);
    finish_chunk(u, how, sum);
}

/* The parts of a row, for join: where they stand, and how many. */
struct row_parts {
    const float2 *end; /* every `list`-th */
    const float *sum;  /* every `list`-th row of dim_v */
    long long list;
    int count;
};

/* Joins every DECODE_JOIN_WARPS-th part from the warp's own on into sum; m and l are the whole row's. A part without powers
 * adds nothing, whatever its sums are. */
template <int width>
__device__ __forceinline__ void join_warp(const scoring &how, const row_parts &parts, int dim_v, float sum[width / 32],
                                          float *m, float *l)
{
    constexpr float none = -1;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    *m = -INFINITY;
    *l = 0;
#pragma unroll 1
    for (int i = lane; i < parts.count; i += 32) {
        const float2 own = parts.end[i * parts.list];
        *m = fmaxf(*m, own.y == 0 ? -INFINITY : own.x);
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
        *m = fmaxf(*m, __shfl_xor_sync(0xffffffffu, *m, lanes));
    const double reference = reference_of(how, *m);
#pragma unroll 1
    for (int first = 0; first < parts.count; first += 32) {
        float2 own = make_float2(-INFINITY, 0);
        if (first + lane < parts.count)
            own = parts.end[(first + lane) * parts.list];
        const float weight = own.y == 0 ? none : own.x == *m ? 1 : ptx_exp2((float)(reference_of(how, own.x) - reference));
        *l += own.y == 0 ? 0 : weight * own.y;
#pragma unroll
        for (int i = 0; i < 32; i += DECODE_JOIN_WARPS) {
            const float w = __shfl_sync(0xffffffffu, weight, i + warp);
            const float *from = parts.sum + (first + i + warp) * parts.list * dim_v;
            const bool there = first + i + warp < parts.count;
#pragma unroll
            for (int x = 0; x < width / 32; x++) {
                const int c = 32 * x + lane;
                const float o = there && c < dim_v ? from[c] : 0;
                sum[x] = w == none ? sum[x] : fmaf(w, o, sum[x]);
            }
        }
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2)
        *l += __shfl_xor_sync(0xffffffffu, *l, lanes);
}

/* A block joins the chunks of a row: its warps each some of them, then its threads each a column. What the launch before does
 * not write may be read before that ends: those before it have. */
template <int width> __device__ inline void join(const fattn_problem &problem, const fattn_launch &at, const decode_call &call)
{
    __shared__ float sums[DECODE_JOIN_WARPS][width];
    const fattn_desc &d = problem.desc;
    const uint32_t seq_q = (uint32_t)d.seq_q, heads = (uint32_t)d.heads_q;
    const int warp = threadIdx.x / 32, head = (int)(blockIdx.x / seq_q % heads), head_kv = head / (int)problem.group;
    const long long b = blockIdx.x / seq_q / heads, i = blockIdx.x % seq_q;
    const scoring how = scoring_of(problem, call.adjusted != 0);
    ptx_let_grids_after_begin();
    const fattn_sequence seq = fattn_sequence_of(&problem, &at, b);
    if (i >= seq.seq_q) {
        ptx_wait_for_grids_before(); /* no launch ends before those before it */
        return;
    }
    const fattn_interval keep = fattn_mask_row(&seq.mask, i);
    const lane_place lane = {i, head, 0, keep.lo, keep.hi};
    const int first = (int)(keep.lo / DECODE_CHUNK), count = (int)((keep.hi + DECODE_CHUNK - 1) / DECODE_CHUNK) - first;
    const long long row = rows_before(problem, call, b, head_kv, first) + head % (int)problem.group * seq.seq_q + i;
    const row_parts parts = {(const float2 *)call.ends + row, call.sums + row * d.dim_v, problem.group * d.seq_q, count};
    void *out = fattn_query_row(&at.out, fattn_dtype_size(d.out_dtype), &seq, head, i);
    float sum[width / 32] = {}, m, l;
    ptx_wait_for_grids_before();
    join_warp<width>(how, parts, (int)d.dim_v, sum, &m, &l);
#pragma unroll
    for (int x = 0; x < width / 32; x++)
        sums[warp][32 * x + threadIdx.x % 32] = sum[x];
    const double reference = reference_of(how, m) - (double)how.shift;
    const float factor = (float)end_row(problem, at, head, (double)l, reference).factor;
    if (at.lse && threadIdx.x == DECODE_JOIN_THREADS - 1)
        ((float *)at.lse)[seq.lse_first + head * seq.lse_head + i] =
            (float)end_row(problem, at, head, (double)l, reference).lse;
    bool finite = true;
    __syncthreads();
    for (int c = threadIdx.x; c < (int)d.dim_v; c += DECODE_JOIN_THREADS) {
        float x = 0;
#pragma unroll
        for (int part = 0; part < DECODE_JOIN_WARPS; part++)
            x += sums[part][c];
        finite = finite && x - x == 0;
        store_number(out, d.out_dtype, c, l == 0 ? 0.0f : x * factor);
    }
    /* A NaN in l or lse is the row's own: only sums that stay finite are in doubt. */
    if (RARELY(__syncthreads_or(!finite) && l - l == 0 && warp == 0))
        row_apart<width>(&problem, &at, b, 0, lane);
}

#define DECODE(name, type, ...)                                                                                                \
    extern "C" __global__ void __launch_bounds__(DECODE_THREADS, sizes<__VA_ARGS__>::blocks)                                   \
        name(const __grid_constant__ fattn_problem problem, const __grid_constant__ fattn_launch at,                           \
             const __grid_constant__ decode_call call)                                                                         \
    {                                                                                                                          \
        decode<type, sizes<__VA_ARGS__>>(problem, at, call);                                                                   \
    }

#define DECODES(name, dim, width, keys, stages, keys_of_bytes, stages_of_bytes)                                                \
    DECODE(decode_f16_##name, __half, dim, width, keys, stages, false, false)                                                  \
    DECODE(decode_f16_##name##_adjusted, __half, dim, width, keys, stages, false, true)                                        \
    DECODE(decode_bf16_##name, __nv_bfloat16, dim, width, keys, stages, false, false)                                          \
    DECODE(decode_bf16_##name##_adjusted, __nv_bfloat16, dim, width, keys, stages, false, true)                                \
    DECODE(decode_bf16_##name##_bytes, __nv_bfloat16, dim, width, keys_of_bytes, stages_of_bytes, true, false)                 \
    DECODE(decode_bf16_##name##_bytes_adjusted, __nv_bfloat16, dim, width, keys_of_bytes, stages_of_bytes, true, true)

DECODE_SIZES(DECODES)

#define JOIN(width)                                                                                                            \
    extern "C" __global__ void __launch_bounds__(DECODE_JOIN_THREADS)                                                          \
        decode_join_##width(const __grid_constant__ fattn_problem problem, const __grid_constant__ fattn_launch at,            \
                            const __grid_constant__ decode_call call)                                                          \
    {                                                                                                                          \
        join<width>(problem, at, call);                                                                                        \
    }

JOIN(128)
JOIN(512)
