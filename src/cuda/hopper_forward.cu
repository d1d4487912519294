/*
 * Forward for numbers of 16 bits on Hopper, compute capability 9.0a: wgmma, TMA, warpgroups of different duties
 * (FlashAttention-3, Shah et al. 2024).
 *
 * A block takes tiles of 64 rows per computing warpgroup, one after another. Its first warpgroup only loads, by TMA: one warp
 * finds the tiles, says what there is to say of them and loads Q of a tile or two; another loads K and V in some stages, from
 * the last keys that any row keeps to the first. The other warpgroups own 64 rows each: S, P and O stay in their registers, an
 * accumulator of S has the shape of the left factor of P V. S of the next keys is started together with P V of these, so that
 * tensor cores work while powers of 2 are taken; warpgroups take turns in starting products, so that one's powers run beside
 * another's products. Results go by TMA from where the warpgroup's Q was.
 *
 * What powers refer to. f16: the largest score so far, as ever. bf16 (`steady`): the largest score of the first keys, for as
 * long as all keys of a step are kept: P in bf16 and sums in float have exponents to spare, so that neither a maximum nor a
 * correction is needed. A warp whose sums pass HIGH computes its scores again, by mma.sync, and takes the true maximum.
 *
 * A row whose result is not finite, or whose scores are FAR_FROM_0, is computed again by itself (alone.cuh).
 */
#include "cuda/hopper_end.cuh"
#include "cuda/hopper_load.cuh"

/* x, without the compiler's knowing: it would keep all that follows from x in registers, and has none. */
__device__ __forceinline__ uint32_t afresh(uint32_t x)
{
    asm volatile("" : "+r"(x));
    return x;
}

/* S = Q K^T begins. */
template <class S> __device__ __forceinline__ void start_scores(worker<S> &u, int tile, int step)
{
    const uint32_t base = afresh(u.base);
    const uint64_t q = ptx_wgmma_descriptor(base + tile % S::tiles * S::q_bytes + u.own * S::own_q_bytes, 16);
    const uint64_t k = ptx_wgmma_descriptor(base + S::k_at + step % S::stages * S::k_bytes, 16);
#pragma unroll
    for (int d = 0; d < S::dim / 16; d++) {
        const uint64_t a = ptx_wgmma_further(q, d / 4 * HOPPER_ROWS * 128 + d % 4 * 32);
        const uint64_t b = ptx_wgmma_further(k, d / 4 * S::keys * 128 + d % 4 * 32);
        if (d == 0)
            ptx_wgmma<0>(u.s, a, b, typename S::T());
        else
            ptx_wgmma<1>(u.s, a, b, typename S::T());
    }
    ptx_wgmma_commit();
}

/* O += P V begins. */
template <class S> __device__ __forceinline__ void start_values(worker<S> &u, int step)
{
    const uint64_t v = ptx_wgmma_descriptor(afresh(u.base) + S::v_at + step % S::stages * S::k_bytes, S::keys * 128);
#pragma unroll
    for (int k = 0; k < S::keys / 16; k++)
        ptx_wgmma<1, 1>(u.o, u.p + 4 * k, ptx_wgmma_further(v, k * 16 * 128), typename S::T());
    ptx_wgmma_commit();
}

/* -inf where a row does not keep a key of step n. */
template <class S> __device__ __forceinline__ void drop_keys(worker<S> &u, int n)
{
    const int2 *places = (const int2 *)((const unsigned char *)about_of(u, u.tile) + HOPPER_ABOUT) + u.own * HOPPER_ROWS;
    const int key = n * S::keys + u.thread % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int2 keep = places[u.row + 8 * half];
        const int lo = keep.x - key, hi = keep.y - key;
#pragma unroll
        for (int e = 0; e < S::keys / 2; e++)
            if (e / 2 % 2 == half && (e / 4 * 8 + e % 2 < lo || e / 4 * 8 + e % 2 >= hi))
                u.s[e] = -INFINITY;
    }
}

/* Largest score of a row, in log2 units. */
template <class S> __device__ __forceinline__ float row_most(const worker<S> &u, int half)
{
    float most = fmaxf(u.s[2 * half], u.s[2 * half + 1]);
#pragma unroll
    for (int n = 1; n < S::keys / 8; n++)
        most = fmaxf(most, fmaxf(u.s[4 * n + 2 * half], u.s[4 * n + 2 * half + 1]));
    most = fmaxf(most, __shfl_xor_sync(ALL, most, 1));
    most = fmaxf(most, __shfl_xor_sync(ALL, most, 2));
    return __fmul_rn(most, u.c);
}

/* Scores of a row become probabilities; returns the sum of this thread's. */
template <class S> __device__ __forceinline__ float powers(worker<S> &u, int half)
{
    const float from = u.reference[half] - S::shift;
    float l = 0;
#pragma unroll
    for (int n = 0; n < S::keys / 8; n++)
#pragma unroll
        for (int e = 4 * n + 2 * half; e < 4 * n + 2 * half + 2; e++) {
            u.s[e] = ptx_exp2(fmaf(u.s[e], u.c, -from));
            l += u.s[e];
        }
    return l;
}

/* Of a tile's first keys. */
template <class S> __device__ __forceinline__ void softmax_first(worker<S> &u)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        u.reference[half] = fmaxf(row_most(u, half), NOTHING);
        u.l[half] = powers(u, half);
    }
}

/* Of others: what is there already will refer to the new maximum. */
template <class S> __device__ __forceinline__ void softmax_next(worker<S> &u)
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float most = fmaxf(row_most(u, half), u.reference[half]);
        u.correction[half] = ptx_exp2(u.reference[half] - most);
        u.reference[half] = most;
        u.l[half] = fmaf(u.l[half], u.correction[half], powers(u, half));
    }
}

template <class S> __device__ __forceinline__ void correct(worker<S> &u)
{
#pragma unroll
    for (int e = 0; e < S::dim / 2; e++)
        u.o[e] *= u.correction[e / 2 % 2];
}

template <class S> __device__ __forceinline__ void pack(worker<S> &u)
{
#pragma unroll
    for (int i = 0; i < S::keys / 4; i++)
        u.p[i] = ptx_pack(u.s[2 * i], u.s[2 * i + 1], typename S::T());
}

/* The warp's scores of a step once more, by mma.sync, whose accumulators have the same shape: what a warp can do alone. */
template <class S> __device__ __forceinline__ void scores_again(worker<S> &u)
{
    const int lane = u.thread % 32;
    const uint32_t q = u.base + u.tile % S::tiles * S::q_bytes + u.own * S::own_q_bytes;
    const uint32_t k = u.base + S::k_at + u.step % S::stages * S::k_bytes;
#pragma unroll
    for (int e = 0; e < S::keys / 2; e++)
        u.s[e] = 0;
#pragma unroll 1
    for (int d = 0; d < S::dim / 16; d++) {
        uint32_t a[4], b[4];
        ptx_ldmatrix_x4(a, q + panel_piece<HOPPER_ROWS>(u.thread / 32 * 16 + lane % 16, 2 * d + lane / 16));
#pragma unroll
        for (int n = 0; n < S::keys / 16; n++) {
            ptx_ldmatrix_x4(b, k + panel_piece<S::keys>(16 * n + lane % 8 + lane / 16 * 8, 2 * d + lane / 8 % 2));
            ptx_mma(u.s + 8 * n, a, b, typename S::T());
            ptx_mma(u.s + 8 * n + 4, a, b + 2, typename S::T());
        }
    }
}

/* One step: scores of keys n, and the values of the step before. */
template <class S> __device__ __forceinline__ void step_on(worker<S> &u, int n)
{
    wait_full(u, S::k_full, u.step);
    turn_begin(u);
    ptx_wgmma_fence();
    start_scores(u, u.tile, u.step);
    wait_full(u, S::v_full, u.step - 1);
    ptx_wgmma_fence();
    start_values(u, u.step - 1);
    turn_end(u);
    ptx_wgmma_wait<1>();
    ptx_wgmma_done(u.s);
    /* Strictly: a row whose last key is the step's last has had no keys before. */
    const bool kept = n * S::keys >= u.warp_lo && (n + 1) * S::keys < u.warp_hi;
    if (S::steady && kept) {
        const float l0 = powers(u, 0), l1 = powers(u, 1);
        ptx_wgmma_wait<0>();
        ptx_wgmma_done(u.o);
        if (__any_sync(ALL, l0 > HIGH || l1 > HIGH)) {
            scores_again(u);
            softmax_next(u);
            correct(u);
        } else {
            u.l[0] += l0;
            u.l[1] += l1;
        }
        release(u, S::k_empty, u.step);
    } else {
        release(u, S::k_empty, u.step);
        if (!kept)
            drop_keys(u, n);
        softmax_next(u);
        ptx_wgmma_wait<0>();
        ptx_wgmma_done(u.o);
        correct(u);
    }
    release(u, S::v_empty, u.step - 1);
    ptx_wgmma_done(u.s);
    pack(u);
}

/* Steps whose keys no row of the warpgroup keeps. */
template <class S> __device__ __forceinline__ void pass_by(worker<S> &u, int steps)
{
    for (; steps > 0; steps--, u.step++) {
        turn_begin(u);
        wait_full(u, S::k_full, u.step);
        release(u, S::k_empty, u.step);
        turn_end(u);
        wait_full(u, S::v_full, u.step);
        release(u, S::v_empty, u.step);
    }
}

/* A negative scale is Q's: exact, and the largest score stays the largest product. */
template <class S> __device__ __forceinline__ void flip_queries(const worker<S> &u, int tile)
{
    uint4 *q = (uint4 *)(u.shared + tile % S::tiles * S::q_bytes + u.own * S::own_q_bytes);
    for (int i = u.thread; i < S::own_q_bytes / 16; i += GROUP_THREADS) {
        const uint4 x = q[i];
        q[i] = make_uint4(x.x ^ 0x80008000u, x.y ^ 0x80008000u, x.z ^ 0x80008000u, x.w ^ 0x80008000u);
    }
    ptx_fence_proxy_async();
    ptx_bar_sync(ENDING + u.own, GROUP_THREADS);
}

/* ------------------------------------------------------------------------------------------------------------- kernels */

template <class S> __device__ __forceinline__ worker<S> worker_of(const fattn_problem &problem, unsigned char *shared)
{
    worker<S> u;
    u.shared = shared;
    u.base = ptx_shared_address(shared);
    u.own = __shfl_sync(ALL, threadIdx.x / GROUP_THREADS - 1, 0);
    u.thread = threadIdx.x % GROUP_THREADS;
    u.row = u.thread / 32 * 16 + u.thread % 32 / 4;
    u.tile = u.step = 0;
    u.c = (float)(fabs(problem.desc.scale) * LOG2E);
#pragma unroll
    for (int e = 0; e < S::dim / 2; e++)
        u.o[e] = 0;
    return u;
}

/* Waits for tile number `tile`; whether there is one. Its queries are ready then, and the warpgroup begins `above` steps later.
 */
template <class S>
__device__ __forceinline__ bool wait_tile(const worker<S> &u, const fattn_problem &problem, int tile, int *above)
{
    const tile_about *about = about_of(u, tile);
    ptx_mbarrier_wait(u.base + S::q_full + 8 * (tile % 2), tile / 2 & 1);
    *above = 0;
    if (about->b < 0)
        return false;
    if (problem.desc.scale < 0)
        flip_queries(u, tile);
    *above = about->hi - about->own_hi[u.own];
    return true;
}

/* All steps of the tile at hand, whose first scores are there, but for the last step's values. */
template <class S> __device__ __forceinline__ void compute_tile(worker<S> &u)
{
    const tile_about *about = about_of(u, u.tile);
    const int2 keep =
        ((const int2 *)((const unsigned char *)about + HOPPER_ABOUT))[u.own * HOPPER_ROWS + u.thread / 32 * 16 + u.thread % 16];
    const int lo = about->own_lo[u.own];
    int n = about->own_hi[u.own] - 1;
    u.warp_lo = __reduce_max_sync(ALL, keep.x);
    u.warp_hi = __reduce_min_sync(ALL, keep.y);
    if (n * S::keys < u.warp_lo || (n + 1) * S::keys > u.warp_hi)
        drop_keys(u, n);
    softmax_first(u);
    pack(u);
    release(u, S::k_empty, u.step);
    u.step++;
    if (S::tiles > 1 && u.tile > 0)
        release_queries(u, u.tile - 1);
#pragma unroll 1
    for (n--; n >= lo; n--, u.step++)
        step_on(u, n);
}

template <class S>
__device__ __forceinline__ void compute(const fattn_problem &problem, const fattn_launch &at, const hopper_call &call,
                                        const CUtensorMap *out, unsigned char *shared)
{
    worker<S> u = worker_of<S>(problem, shared);
    int first;
    if (!wait_tile(u, problem, 0, &first))
        return;
    if (u.own == S::warpgroups - 1)
        turn_end(u);
    pass_by(u, first);
    wait_full(u, S::k_full, u.step);
    ptx_wgmma_fence();
    start_scores(u, 0, u.step);
    ptx_wgmma_wait<0>();
    ptx_wgmma_done(u.s);
    for (bool more = true; more; u.tile++) {
        compute_tile(u);
        const tile_about *about = about_of(u, u.tile);
        const tile_rows t = {about->b, about->head, about->first, about->rows, about->q_first};
        const int last = u.step - 1, below = about->own_lo[u.own] - about->lo; /* below, above: steps to pass by */
        int above = 0;
        unsigned doubtful[2];
        wait_full(u, S::v_full, last);
        /* The loading warp comes to the next tile only once it has room for all of this one. */
        if (S::tiles > 1 && below == 0)
            more = wait_tile(u, problem, u.tile + 1, &above);
        turn_begin(u);
        ptx_wgmma_fence();
        start_values(u, last);
        const bool apart = S::tiles == 1 || below + above > 0;
        if (apart) {
            turn_end(u);
            ptx_wgmma_wait<0>();
            release(u, S::v_empty, last);
            pass_by(u, below);
        }
        if (S::tiles > 1) { /* the next tile's first scores; without one, of what lies there */
            if (below > 0)
                more = wait_tile(u, problem, u.tile + 1, &above);
            pass_by(u, above);
            if (more)
                wait_full(u, S::k_full, u.step);
            ptx_wgmma_fence();
            start_scores(u, u.tile + 1, u.step);
            if (!apart)
                turn_end(u);
            ptx_wgmma_wait<1>();
        }
        ptx_wgmma_done(u.o);
        if (!apart)
            release(u, S::v_empty, last);
        end_tile(u, problem, at, call, out, t, doubtful);
#pragma unroll
        for (int e = 0; e < S::dim / 2; e++)
            u.o[e] = 0;
        ptx_wgmma_done(u.o);
        if (S::tiles == 1) {
            release_queries(u, u.tile);
            more = wait_tile(u, problem, u.tile + 1, &above);
            pass_by(u, above);
            if (more)
                wait_full(u, S::k_full, u.step);
            ptx_wgmma_fence();
            start_scores(u, u.tile + 1, u.step);
        }
        ptx_wgmma_wait<0>();
        ptx_wgmma_done(u.s);
        if ((doubtful[0] | doubtful[1]) != 0)
            rows_alone(u, problem, at, call, t, doubtful);
    }
    if (u.thread == 0)
        ptx_bulk_wait<0>();
}

template <class S>
__device__ __forceinline__ void forward(const fattn_problem &problem, const fattn_launch &at, const hopper_call &call,
                                        const CUtensorMap *q, const CUtensorMap *k, const CUtensorMap *v,
                                        const CUtensorMap *out)
{
    extern __shared__ __align__(1024) unsigned char shared[];
    const uint32_t base = ptx_shared_address(shared);
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2; i++) {
            ptx_mbarrier_init(base + S::told + 8 * i, 1);
            ptx_mbarrier_init(base + S::q_full + 8 * i, 1);
            ptx_mbarrier_init(base + S::q_empty + 8 * i, S::warpgroups);
        }
        for (int i = 0; i < S::stages; i++) {
            ptx_mbarrier_init(base + S::k_full + 8 * i, 1);
            ptx_mbarrier_init(base + S::k_empty + 8 * i, 4 * S::warpgroups);
            ptx_mbarrier_init(base + S::v_full + 8 * i, 1);
            ptx_mbarrier_init(base + S::v_empty + 8 * i, 4 * S::warpgroups);
        }
        ptx_mbarrier_init(base + S::v_tail, 1);
        ptx_fence_mbarrier_init();
    }
    __syncthreads();
    if (threadIdx.x < GROUP_THREADS) {
        ptx_setmaxnreg_dec<S::loading_registers>();
        if (threadIdx.x < 32)
            load<S>(problem, at, call, k, v, shared);
        else if (threadIdx.x < 64)
            find_tiles<S>(problem, at, call, q, shared);
    } else {
        ptx_setmaxnreg_inc<S::computing_registers>();
        compute<S>(problem, at, call, out, shared);
    }
}

#define FORWARD(name, T, dim, warpgroups, keys, tiles, stages)                                                                 \
    extern "C" __global__ void __launch_bounds__(HOPPER_THREADS(warpgroups), 1) name(                                          \
        const __grid_constant__ fattn_problem problem, const __grid_constant__ fattn_launch at,                                \
        const __grid_constant__ hopper_call call, const __grid_constant__ CUtensorMap q,                                       \
        const __grid_constant__ CUtensorMap k, const __grid_constant__ CUtensorMap v, const __grid_constant__ CUtensorMap out) \
    {                                                                                                                          \
        forward<sizes<T, dim, warpgroups, keys, tiles, stages>>(problem, at, call, &q, &k, &v, &out);                          \
    }
#define FORWARDS(name, ...)                                                                                                    \
    FORWARD(hopper_forward_f16_##name, __half, __VA_ARGS__)                                                                    \
    FORWARD(hopper_forward_bf16_##name, __nv_bfloat16, __VA_ARGS__)

HOPPER_FORWARD_SIZES(FORWARDS)
