/*
 * Backward on Hopper's tensor cores (wgmma) with the 5 products of FlashAttention-2 (Dao 2023, algorithm 2): dK and dV of a
 * tile of keys stay in registers, dQ is added up in memory.
 *
 * A block of threads is one multiprocessor's and takes tiles of 128 keys until there are no more. For each block of rows, of
 * all query heads of the group, that keeps any of the keys (an item):
 *
 * Warpgroup 0    a warp fetches K, V, Q, dO and the rows' numbers into shared memory, through TMA where it can be; two others
 *                add blocks of dQ in order.
 * Warpgroups 1, 2    64 keys each: S^T = K Q^T, P, dP^T = V dO^T, dV += P^T dO, dS, dK += dS^T Q. P and dS stay in registers,
 * as left factors; dS goes to shared memory once more. Warpgroup 3    dQ = dS K, added to float sums in the workspace.
 *
 * The warpgroups meet at mbarriers only, and the two of keys not at all, so that their exponentials drift apart and fall under
 * each other's products. Accumulators of S start at -lse / scale and those of dP at -D: neither takes registers or
 * subtractions. Within a warpgroup exp runs under dK's product of the item before, and dS under dV's of this one.
 *
 * Sums of dQ. In any order: red.global.add from registers, where the caller allows it (FATTN_UNORDERED). In order: the block of
 * sums is staged in shared memory and added as a whole when the tiles before it have added theirs, which turns[] counts; the
 * first replaces what was there. Tiles are taken in the order in which they add, and a tile waits only for such as were taken
 * before it, so that the oldest of all always runs on: no deadlock, whatever else the GPU does.
 *
 * P and dS are rounded to bf16; all sums are float. A key whose gradient is not finite is noted, and computed again by itself
 * in hopper_passes.cu.
 */
#include "cuda/hopper_backward_load.cuh"

constexpr int LOADING_REGISTERS = 32, KEYS_REGISTERS = 208, SUMS_REGISTERS = 64;

/* ----------------------------------------------------------------------------------------------------------------- dQ */

/* d = dS K of 64 rows and 64 columns, over the keys' halves from .. to - 1. */
template <class S, int from, int to> __device__ __forceinline__ void product_of_sums(float (&d)[32], uint64_t ds, uint64_t k)
{
    ptx_wgmma_fence();
#pragma unroll
    for (int i = 4 * from; i < 4 * to; i++) {
        const uint64_t a = ptx_wgmma_further(ds, (i >> 2) * (S::rows * 128) + (i & 3) * 32), b = ptx_wgmma_further(k, i * 2048);
        if (i == 4 * from)
            ptx_wgmma<0, 0, 1>(d, a, b, __nv_bfloat16());
        else
            ptx_wgmma<1, 0, 1>(d, a, b, __nv_bfloat16());
    }
    ptx_wgmma_commit();
    ptx_wgmma_wait<0>();
    ptx_wgmma_done(d);
}

/* Tells who adds in order of the staged-th block to come; block -1: there is none. */
template <class S> __device__ __forceinline__ void announce(int staged, int block, int turn)
{
    *(int2 *)(shared + S::handed_at + 8 * (staged & 1)) = make_int2(block, turn);
    ptx_mbarrier_arrive(ptx_shared_address(shared) + S::announced + 8 * (staged & 1));
}

/* One item's dQ. n: of its tile among all; i: of the item. */
template <class S>
__device__ __forceinline__ void add_item(const hopper_backward_call &call, const item &it, int n, int i, int *staged)
{
    const uint32_t base = ptx_shared_address(shared);
    const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32, stage = i & 1;
    float d[32];
    if (S::ordered && threadIdx.x % 128 == 0)
        announce<S>(*staged, it.block, it.turn);
    if (S::ordered)
        ptx_mbarrier_wait(base + S::sums_empty, (*staged & 1) ^ 1);
#pragma unroll 1 /* registers */
    for (int piece = 0; piece < S::pieces; piece++) {
        const uint64_t ds = ptx_wgmma_descriptor(base + S::slot_at + stage * S::slot_bytes + piece / S::panels * 8192, 16);
        const uint64_t k =
            ptx_wgmma_descriptor(base + S::k_at + (n & 1) * S::k_bytes + piece % S::panels * (KEYS * 128), KEYS * 128);
        if (!(it.flags & 3))
            product_of_sums<S, 1, 2>(d, ds, k);
        else if (!(it.flags & 12))
            product_of_sums<S, 0, 1>(d, ds, k);
        else
            product_of_sums<S, 0, 2>(d, ds, k);
        if (piece == S::pieces - 1 && lane == 0)
            ptx_mbarrier_arrive(base + S::slot_empty + 8 * stage);
        float *to = call.sums + (long long)it.block * (S::rows * S::dim);
#pragma unroll
        for (int j = 0; j < 8; j++)
            if (S::ordered)
                *(float4 *)(shared + S::sums_at + 16 * sums_at(piece, warp, j)) =
                    make_float4(d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]);
            else
                ptx_red_add(to + 4 * sums_at(piece, warp, j), d + 4 * j);
    }
    if (S::ordered) {
        ptx_fence_proxy_async();
        __syncwarp();
        if (lane == 0)
            ptx_mbarrier_arrive(base + S::sums_full + 8 * (*staged & 1));
        ++*staged;
    }
}

template <class S> __device__ __forceinline__ void sum_rows(const hopper_backward_call &call)
{
    const uint32_t base = ptx_shared_address(shared);
    const int lane = threadIdx.x % 32;
    int i = 0, staged = 0;
    ptx_wait_for_grids_before();
#pragma unroll 1
    for (int n = 0;; n++) {
        ptx_mbarrier_wait(base + S::k_full + 8 * (n & 1), parity(n));
        if (*(const int *)(shared + S::tiles_at + 16 * (n & 3)) == NO_TILE)
            break;
        bool last = false;
#pragma unroll 1
        for (; !last; i++) {
            ptx_mbarrier_wait(base + S::slot_full + 16 * (i & 1), parity(i));
            ptx_mbarrier_wait(base + S::slot_full + 16 * (i & 1) + 8, parity(i));
            const int4 words = *(const int4 *)(shared + S::items_at + 16 * (i & 7));
            const item it = {words.x, words.y, words.z, 0};
            last = it.flags & LAST;
            if (it.block >= 0)
                add_item<S>(call, it, n, i, &staged);
            else if (lane == 0)
                ptx_mbarrier_arrive(base + S::slot_empty + 8 * (i & 1));
        }
        if (lane == 0)
            ptx_mbarrier_arrive(base + S::k_empty + 8 * (n & 1));
    }
    if (S::ordered) {
        ptx_mbarrier_wait(base + S::sums_empty, (staged & 1) ^ 1);
        if (threadIdx.x % 128 == 0) {
            announce<S>(staged, -1, 0);
            announce<S>(staged + 1, -1, 0);
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------------- keys */

/* What stays the same for a key warpgroup through a tile. */
struct key_group {
    uint32_t base; /* of shared memory */
    uint64_t k, v; /* its keys' and values' descriptors */
    uint32_t slot; /* where the lane's matrix of dS goes, in the first of two slots */
    int half, warp, lane;
    int key; /* of the lane's first row of accumulators */
    float log2_scale;
};

/* Accumulators begin with a number of their column's row. */
template <int n> __device__ __forceinline__ void start(float (&d)[n], int numbers_at)
{
    const float2 *numbers = (const float2 *)(shared + numbers_at) + threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < n / 4; j++) {
        const float2 x = numbers[4 * j];
        d[4 * j] = d[4 * j + 2] = x.x;
        d[4 * j + 1] = d[4 * j + 3] = x.y;
    }
    ptx_wgmma_done(d);
    ptx_wgmma_fence();
}

/* S^T += K Q^T, or dP^T += V dO^T. */
template <class S> __device__ __forceinline__ void scores(float (&d)[S::rows / 2], uint64_t own, uint32_t rows_at)
{
    const uint64_t b = ptx_wgmma_descriptor(rows_at, 16);
#pragma unroll
    for (int i = 0; i < S::dim / 16; i++)
        ptx_wgmma<1>(d, ptx_wgmma_further(own, (i >> 2) * (KEYS * 128) + (i & 3) * 32),
                     ptx_wgmma_further(b, (i >> 2) * (S::rows * 128) + (i & 3) * 32), __nv_bfloat16());
    ptx_wgmma_commit();
}

/* dV += P^T dO, or dK += dS^T Q. */
template <class S>
__device__ __forceinline__ void add_weighted(float (&d)[S::dim / 2], const uint32_t (&weight)[S::rows / 4], uint32_t rows_at)
{
    const uint64_t b = ptx_wgmma_descriptor(rows_at, S::rows * 128);
#pragma unroll
    for (int i = 0; i < S::rows / 16; i++)
        ptx_wgmma<1, 1>(d, weight + 4 * i, ptx_wgmma_further(b, i * 2048), __nv_bfloat16());
    ptx_wgmma_commit();
}

/* P = 2^(scale log2(e) (S - lse / scale)). masked: 0 where the row does not keep the key. */
template <class S, bool masked>
__device__ __forceinline__ void powers(const key_group &g, float (&s)[S::rows / 2], int numbers_at)
{
    const int2 *lo = (const int2 *)(shared + numbers_at + NUMBER_LO * S::rows * 4) + threadIdx.x % 4;
    const int2 *hi = (const int2 *)(shared + numbers_at + NUMBER_HI * S::rows * 4) + threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < S::rows / 8; j++) {
        int2 from, to;
        if (masked)
            from = lo[4 * j], to = hi[4 * j];
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float x = s[4 * j + e] * g.log2_scale;
            if (masked) {
                const int key = g.key + e / 2 * 8;
                if (key < (e % 2 ? from.y : from.x) || key >= (e % 2 ? to.y : to.x))
                    x = -INFINITY;
            }
            s[4 * j + e] = ptx_exp2(x);
        }
    }
}

/* When a key warpgroup hears an item's flags: before the item's first product, which then waits for them; or, S::ahead, under
 * that product, as what to do was said with the item before. A tile's first item has none before it: it is heard twice. */
enum moment { FIRST, BEFORE, UNDER, AFTER };

/* The flags of item number i that are known from this moment on. */
template <class S, moment now> __device__ __forceinline__ int hear(const key_group &g, int i, int known)
{
    if (S::ahead == (now == BEFORE))
        return known;
    if (now == AFTER) /* else the compiler sees no uniform values any more, where they decide about the next item either */
        return __shfl_sync(ALL, known, 0);
    if (now == FIRST)
        ptx_mbarrier_wait(g.base + S::q_full + 8 * (i & 1), parity(i));
    return *(const int *)(shared + S::items_at + 16 * (i & 7) + 4);
}

/* Item number i, of tile number `tile`, and its flags, of which `known` are. first: there is no dK of an item before to come,
 * and rows may keep a part of the keys. */
template <class S, bool first>
__device__ __forceinline__ int step(const key_group &g, int i, int tile, int known, float (&dk)[S::dim / 2],
                                    float (&dv)[S::dim / 2], uint32_t (&weight)[S::rows / 4])
{
    const int stage = i & 1, numbers_at = S::numbers_at + stage * S::numbers_bytes;
    const uint32_t q = g.base + S::q_at + stage * S::q_bytes, q_before = g.base + S::q_at + (stage ^ 1) * S::q_bytes;
    const uint32_t dout = g.base + S::dout_at + stage * S::q_bytes;
    float s[S::rows / 2];
    start(s, numbers_at + NUMBER_LSE * S::rows * 4);
    scores<S>(s, g.k, q);
    const int flags = hear<S, UNDER>(g, i, known);
    const bool last = flags & LAST;
    if (first) {
        ptx_wgmma_wait<0>();
    } else {
        add_weighted<S>(dk, weight, q_before);
        ptx_wgmma_wait<1>();
    }
    ptx_wgmma_done(s);
    if (g.lane == 0 && last)
        ptx_mbarrier_arrive(g.base + S::k_empty + 8 * (tile & 1));
    powers<S, first>(g, s, numbers_at);
    ptx_wgmma_done(s);
    if (!first) {
        ptx_wgmma_wait<0>();
        if (g.lane == 0)
            ptx_mbarrier_arrive(g.base + S::q_empty + 8 * (stage ^ 1));
    }
#pragma unroll
    for (int j = 0; j < S::rows / 4; j++)
        weight[j] = ptx_pack(s[2 * j], s[2 * j + 1], __nv_bfloat16());
    ptx_mbarrier_wait(g.base + S::dout_full + 8 * stage, parity(i));
    if (first)
        ptx_mbarrier_wait(g.base + S::v_full, tile & 1);
    float dp[S::rows / 2];
    start(dp, numbers_at + NUMBER_DELTA * S::rows * 4);
    scores<S>(dp, g.v, dout);
    add_weighted<S>(dv, weight, dout);
    ptx_wgmma_wait<1>();
    ptx_wgmma_done(dp);
    if (g.lane == 0 && last)
        ptx_mbarrier_arrive(g.base + S::v_empty);
#pragma unroll
    for (int j = 0; j < S::rows / 4; j++) {
        dp[2 * j] *= __uint_as_float(weight[j] << 16);
        dp[2 * j + 1] *= __uint_as_float(weight[j] & 0xffff0000u);
    }
    ptx_wgmma_done(dp);
    ptx_wgmma_wait<0>();
    if (g.lane == 0)
        ptx_mbarrier_arrive(g.base + S::dout_empty + 8 * stage);
#pragma unroll
    for (int j = 0; j < S::rows / 4; j++)
        weight[j] = ptx_pack(dp[2 * j], dp[2 * j + 1], __nv_bfloat16());
    ptx_mbarrier_wait(g.base + S::slot_empty + 8 * stage, parity(i) ^ 1);
#pragma unroll
    for (int j = 0; j < S::rows / 16; j++)
        ptx_stmatrix_x4_trans(g.slot + stage * S::slot_bytes + j * 2048, weight + 4 * j);
    ptx_fence_proxy_async();
    __syncwarp();
    if (g.lane == 0)
        ptx_mbarrier_arrive(g.base + S::slot_full + 16 * stage + 8 * g.half);
    return flags;
}

/* The same of an item none of whose rows keeps any of the warpgroup's keys. */
template <class S> __device__ __forceinline__ int skip(const key_group &g, int i, int tile, int known)
{
    const int stage = i & 1, flags = hear<S, UNDER>(g, i, known);
    const bool last = flags & LAST;
    ptx_mbarrier_wait(g.base + S::dout_full + 8 * stage, parity(i));
    ptx_mbarrier_wait(g.base + S::slot_empty + 8 * stage, parity(i) ^ 1);
    if (last)
        ptx_mbarrier_wait(g.base + S::v_full, tile & 1);
    if (g.lane == 0) {
        ptx_mbarrier_arrive(g.base + S::q_empty + 8 * stage);
        ptx_mbarrier_arrive(g.base + S::dout_empty + 8 * stage);
        ptx_mbarrier_arrive(g.base + S::slot_full + 16 * stage + 8 * g.half);
        if (last) {
            ptx_mbarrier_arrive(g.base + S::k_empty + 8 * (tile & 1));
            ptx_mbarrier_arrive(g.base + S::v_empty);
        }
    }
    return flags;
}

/* The dK of the item before number i that is still to come. */
template <class S>
__device__ __forceinline__ void add_last(const key_group &g, int i, float (&dk)[S::dim / 2],
                                         const uint32_t (&weight)[S::rows / 4])
{
    const int stage = (i & 1) ^ 1;
    ptx_wgmma_fence();
    add_weighted<S>(dk, weight, g.base + S::q_at + stage * S::q_bytes);
    ptx_wgmma_wait<0>();
    ptx_wgmma_done(dk);
    if (g.lane == 0)
        ptx_mbarrier_arrive(g.base + S::q_empty + 8 * stage);
}

/* Writes a warp's 16 rows of dK or dV, times `by`, by way of 2 KiB of its own in shared memory, 64 columns after the other.
 * row: of the first; the first `there` exist. */
template <class S>
__device__ __forceinline__ void store_panels(const float (&d)[S::dim / 2], float by, unsigned char *scratch, char *row,
                                             long long stride, int there, int columns)
{
    const int lane = threadIdx.x % 32, c = lane % 8;
    const uint32_t to = ptx_shared_address(scratch) + lane % 16 * 128;
#pragma unroll
    for (int panel = 0; panel < S::panels; panel++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float *x = d + 32 * panel + 8 * j;
            uint32_t r[4];
#pragma unroll
            for (int e = 0; e < 4; e++)
                r[e] = ptx_pack(x[2 * e] * by, x[2 * e + 1] * by, __nv_bfloat16());
            ptx_stmatrix_x4(to + ((2 * j + lane / 16) ^ lane % 8) * 16, r);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int r = 4 * i + lane / 8;
            if (r < there && panel * PANEL + 8 * c < columns)
                *(uint4 *)(row + r * stride + panel * 128 + c * 16) = *(const uint4 *)(scratch + r * 128 + ((c ^ r % 8) << 4));
        }
        __syncwarp();
    }
}

/* The same number by number, for gradients of other types and rows that are not whole pieces. */
template <class S>
__device__ __forceinline__ void store_numbers(const float (&d)[S::dim / 2], float by, unsigned char *scratch, char *row,
                                              long long stride, int there, int columns, int32_t dtype)
{
    const int lane = threadIdx.x % 32;
    float *numbers = (float *)scratch; /* [16][32] */
#pragma unroll
    for (int part = 0; part < S::dim / 32; part++) {
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                *(float2 *)(numbers + (lane / 4 + 8 * half) * 32 + 8 * j + lane % 4 * 2) =
                    make_float2(d[16 * part + 4 * j + 2 * half] * by, d[16 * part + 4 * j + 2 * half + 1] * by);
        __syncwarp();
#pragma unroll 1
        for (int r = 0; r < there; r++)
            if (part * 32 + lane < columns)
                store_number(row + r * stride, dtype, part * 32 + lane, numbers[r * 32 + lane]);
        __syncwarp();
    }
}

/* Writes dK and dV of a warp's 16 keys, and which of them are not finite. i: of the next item, whose slot of dS serves on the
 * way. pending: the dK of the item before is still to come; dV leaves meanwhile. */
template <class S>
__device__ __forceinline__ void store_keys(const fattn_problem &problem, const fattn_launch &at,
                                           const hopper_backward_call &call, const key_group &g, int i, int4 tile, bool pending,
                                           const uint32_t (&weight)[S::rows / 4], float (&dk)[S::dim / 2],
                                           const float (&dv)[S::dim / 2])
{
    const fattn_desc &d = problem.desc;
    const size_t size = fattn_dtype_size(d.grad_dtype);
    const fattn_sequence seq = fattn_sequence_of(&problem, &at, tile.x);
    const int first = tile.z * KEYS + g.half * HALF + g.warp * 16, there = min((int)seq.seq_k - first, 16);
    unsigned char *scratch = shared + S::slot_at + (i & 1) * S::slot_bytes + g.half * (S::rows * 128) + g.warp * 2048;
    char *dk_row = (char *)fattn_key_row(&problem, &at, &at.dk, size, &seq, tile.y, first);
    char *dv_row = (char *)fattn_key_row(&problem, &at, &at.dv, size, &seq, tile.y, first);
    const long long dk_stride = at.dk.stride_row * (long long)size, dv_stride = at.dv.stride_row * (long long)size;
    ptx_mbarrier_wait(g.base + S::slot_empty + 8 * (i & 1), parity(i) ^ 1);
    if (pending) {
        ptx_wgmma_fence();
        add_weighted<S>(dk, weight, g.base + S::q_at + ((i & 1) ^ 1) * S::q_bytes);
    }
    if (call.dv_lines)
        store_panels<S>(dv, 1.0f, scratch, dv_row, dv_stride, there, (int)d.dim_v);
    else
        store_numbers<S>(dv, 1.0f, scratch, dv_row, dv_stride, there, (int)d.dim_v, d.grad_dtype);
    ptx_wgmma_wait<0>();
    ptx_wgmma_done(dk);
    if (pending && g.lane == 0)
        ptx_mbarrier_arrive(g.base + S::q_empty + 8 * ((i & 1) ^ 1));
    if (call.dk_lines)
        store_panels<S>(dk, (float)d.scale, scratch, dk_row, dk_stride, there, (int)d.dim);
    else
        store_numbers<S>(dk, (float)d.scale, scratch, dk_row, dk_stride, there, (int)d.dim, d.grad_dtype);
    const unsigned upper = __ballot_sync(ALL, g.lane / 4 < there && doubt_of(dk, 0) + doubt_of(dv, 0) != 0);
    const unsigned lower = __ballot_sync(ALL, g.lane / 4 + 8 < there && doubt_of(dk, 1) + doubt_of(dv, 1) != 0);
    uint32_t wrong = 0;
    if ((upper | lower) != 0)
        for (int r = 0; r < 16; r++)
            wrong |= ((r < 8 ? upper : lower) >> (4 * (r % 8)) & 15 ? 1u : 0u) << r;
    if (g.lane == 0)
        call.wrong[(long long)tile.w * HOPPER_TILE_WARPS + 4 * g.half + g.warp] = wrong;
    ptx_bar_sync(1 + g.half, 128); /* the next item's dS is another warp's too */
}

template <class S>
__device__ __forceinline__ void sum_keys(const fattn_problem &problem, const fattn_launch &at, const hopper_backward_call &call)
{
    key_group g;
    g.base = ptx_shared_address(shared);
    g.half = __shfl_sync(ALL, threadIdx.x / 128, 0) - 1;
    g.warp = __shfl_sync(ALL, threadIdx.x / 32 % 4, 0);
    g.lane = threadIdx.x % 32;
    g.v = ptx_wgmma_descriptor(g.base + S::v_at + g.half * HALF * 128, 16);
    g.slot = g.base + S::slot_at + g.half * (S::rows * 128) + (g.lane / 16 * 8 + g.lane % 8) * 128 +
             (((g.warp * 2 + g.lane / 8 % 2) ^ g.lane % 8) << 4);
    g.log2_scale = (float)(problem.desc.scale * LOG2E);
    int i = 0;
#pragma unroll 1
    for (int tile = 0;; tile++) {
        ptx_mbarrier_wait(g.base + S::k_full + 8 * (tile & 1), parity(tile));
        const int4 *place = (const int4 *)(shared + S::tiles_at + 16 * (tile & 3));
        if (place->x == NO_TILE)
            break;
        g.k = ptx_wgmma_descriptor(g.base + S::k_at + (tile & 1) * S::k_bytes + g.half * HALF * 128, 16);
        g.key = place->z * KEYS + g.half * HALF + g.warp * 16 + g.lane / 4;
        float dk[S::dim / 2], dv[S::dim / 2];
        uint32_t weight[S::rows / 4]; /* P, then dS, of an item */
        bool pending = false;
#pragma unroll
        for (int j = 0; j < S::dim / 2; j++)
            dk[j] = dv[j] = 0;
        int flags = hear<S, FIRST>(g, i, 0);
#pragma unroll 1
        for (;;) {
            ptx_mbarrier_wait(g.base + S::q_full + 8 * (i & 1), parity(i));
            flags = hear<S, BEFORE>(g, i, flags);
            const int kept = flags >> (2 * g.half) & 3;
            if (pending && kept != WHOLE)
                add_last<S>(g, i, dk, weight);
            if (kept == 0)
                flags = skip<S>(g, i, tile, flags);
            else if (kept == WHOLE && pending)
                flags = step<S, false>(g, i, tile, flags, dk, dv, weight);
            else
                flags = step<S, true>(g, i, tile, flags, dk, dv, weight);
            flags = hear<S, AFTER>(g, i, flags);
            pending = kept != 0;
            i++;
            if (flags & LAST)
                break;
            flags >>= NEXT;
        }
        store_keys<S>(problem, at, call, g, i, *place, pending, weight, dk, dv);
    }
}

/* ------------------------------------------------------------------------------------------------------------- kernels */

template <class S> __device__ __forceinline__ void make_barriers(void)
{
    const uint32_t base = ptx_shared_address(shared);
    for (int i = 0; i < 2; i++) {
        ptx_mbarrier_init(base + S::k_full + 8 * i, 1);
        ptx_mbarrier_init(base + S::k_empty + 8 * i, 12);
        ptx_mbarrier_init(base + S::q_full + 8 * i, 1);
        ptx_mbarrier_init(base + S::q_empty + 8 * i, 8);
        ptx_mbarrier_init(base + S::dout_full + 8 * i, 1);
        ptx_mbarrier_init(base + S::dout_empty + 8 * i, 8);
        ptx_mbarrier_init(base + S::slot_full + 16 * i, 4);
        ptx_mbarrier_init(base + S::slot_full + 16 * i + 8, 4);
        ptx_mbarrier_init(base + S::slot_empty + 8 * i, 4);
        ptx_mbarrier_init(base + S::announced + 8 * i, 1);
        ptx_mbarrier_init(base + S::sums_full + 8 * i, 4);
    }
    ptx_mbarrier_init(base + S::v_full, 1);
    ptx_mbarrier_init(base + S::v_empty, 8);
    ptx_mbarrier_init(base + S::sums_empty, 1);
    ptx_fence_mbarrier_init();
}

template <class S>
__device__ __forceinline__ void backward(const fattn_problem &problem, const fattn_launch &at, const hopper_backward_call &call,
                                         const maps &map)
{
    const int group = __shfl_sync(ALL, threadIdx.x / 128, 0), warp = __shfl_sync(ALL, threadIdx.x / 32, 0);
    if (threadIdx.x == 0)
        make_barriers<S>();
    __syncthreads();
    ptx_let_grids_after_begin();
    if (group == 0) {
        ptx_setmaxnreg_dec<LOADING_REGISTERS>();
        if (warp == 0)
            load<S>(problem, at, call, map);
        else if (S::ordered && warp < 3 && threadIdx.x % 32 == 0)
            add_in_order<S>(call, warp - 1);
    } else if (group == 3) {
        ptx_setmaxnreg_dec<SUMS_REGISTERS>();
        sum_rows<S>(call);
    } else {
        ptx_setmaxnreg_inc<KEYS_REGISTERS>();
        sum_keys<S>(problem, at, call);
    }
}

#define BACKWARD(name, ...)                                                                                                    \
    extern "C" __global__ void __launch_bounds__(HOPPER_BACKWARD_THREADS, 1)                                                   \
        name(const __grid_constant__ fattn_problem problem, const __grid_constant__ fattn_launch at,                           \
             const __grid_constant__ hopper_backward_call call, const __grid_constant__ maps map)                              \
    {                                                                                                                          \
        backward<sizes<__VA_ARGS__>>(problem, at, call, map);                                                                  \
    }

BACKWARD(hopper_backward_64, 64, false)
BACKWARD(hopper_backward_64_ordered, 64, true)
BACKWARD(hopper_backward_128, 128, false)
BACKWARD(hopper_backward_128_ordered, 128, true)
