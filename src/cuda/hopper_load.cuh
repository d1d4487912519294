/*
 * The loading warps of Hopper's forward: which tiles, what is said of them, and TMA.
 */
#ifndef FATTN_CUDA_HOPPER_LOAD_CUH
#define FATTN_CUDA_HOPPER_LOAD_CUH

#include "cuda/hopper_forward.cuh"

struct tile_place {
    int m, head, b; /* number of the tile among the group's, the group, the sequence; m < 0: none */
};

/* What this block does in a turn. Blocks go to and fro over the tiles of a section, from round to round: those that had a
 * longer tile in one have a shorter one in the next. Those that the last round leaves out are others in the next section. Turns
 * end when *more is false. */
__device__ inline tile_place place_of(const hopper_call &call, int turn, bool *more)
{
    const int blocks = gridDim.x, section = turn / call.rounds, round = turn - section * call.rounds;
    const long long first = (long long)section * call.section;
    const int groups = (int)min((long long)call.section, call.groups - first);
    const int block = (int)((blockIdx.x + (long long)section * call.skew) % blocks);
    const long long index = (long long)round * blocks + (round % 2 ? blocks - 1 - block : block);
    *more = groups > 0;
    if (index >= (long long)groups * call.tiles)
        return {-1, 0, 0};
    const int major = (int)index / (call.by_rows ? groups : call.tiles);
    const int minor = (int)index - major * (call.by_rows ? groups : call.tiles);
    const int group = (int)first + (call.by_rows ? minor : major);
    return {call.tiles - 1 - (call.by_rows ? major : minor), group % call.heads, group / call.heads};
}

/* This block's next tile that has rows, from turn *turn on. By a warp. */
template <class S>
__device__ inline tile_place next_tile(const fattn_problem &problem, const fattn_launch &at, const hopper_call &call, int *turn)
{
    for (bool more = true; __all_sync(ALL, more); *turn += 32) {
        const tile_place p = place_of(call, *turn + threadIdx.x % 32, &more);
        const bool has_rows =
            p.m >= 0 && (long long)p.m * S::rows < call.group * (long long)fattn_sequence_of(&problem, &at, p.b).seq_q;
        const unsigned which = __ballot_sync(ALL, has_rows);
        if (which != 0) {
            *turn += __ffs(which);
            return place_of(call, *turn - 1, &more);
        }
    }
    return {-1, 0, 0};
}

/* Writes what is said of a tile. By a warp. */
template <class S>
__device__ inline void describe(const fattn_problem &problem, const hopper_call &call, const fattn_sequence &seq, tile_place p,
                                tile_about *about)
{
    const int lane = threadIdx.x % 32, first = p.m * S::rows;
    const int rows = (int)min((long long)(call.group * seq.seq_q - first), (long long)S::rows);
    int2 *places = (int2 *)((unsigned char *)about + HOPPER_ABOUT);
    int all_lo = INT_MAX, all_hi = 0, own_lo[S::warpgroups], own_hi[S::warpgroups];
#pragma unroll
    for (int w = 0; w < S::warpgroups; w++) {
        int lo = INT_MAX, hi = 0;
        for (int r = w * HOPPER_ROWS + lane; r < (w + 1) * HOPPER_ROWS; r += 32) {
            int2 place = {0, INT_MAX};
            if (r < rows) {
                const fattn_interval keep = fattn_mask_row(&seq.mask, (first + r) >> call.group_log2);
                place = {(int)keep.lo, (int)keep.hi};
                if (place.x < place.y) {
                    lo = min(lo, place.x);
                    hi = max(hi, place.y);
                }
            }
            places[r] = place;
        }
        own_lo[w] = __reduce_min_sync(ALL, lo) / S::keys;
        own_hi[w] = (__reduce_max_sync(ALL, hi) + S::keys - 1) / S::keys;
        all_lo = min(all_lo, own_lo[w]);
        all_hi = max(all_hi, own_hi[w]);
    }
    if (all_lo >= all_hi)
        all_lo = 0, all_hi = 1;
#pragma unroll
    for (int w = 0; w < S::warpgroups; w++) {
        const bool none = own_lo[w] >= own_hi[w];
        about->own_lo[w] = none ? all_hi - 1 : own_lo[w];
        about->own_hi[w] = none ? all_hi : own_hi[w];
    }
    about->b = p.b;
    about->head = p.head * call.group;
    about->first = first;
    about->rows = rows;
    about->q_first = (int)seq.q_first;
    about->head_kv = (int)(p.head * call.group / problem.group);
    about->k_first = (int)seq.k_first;
    about->seq_k = (int)seq.seq_k;
    about->lo = all_lo;
    about->hi = all_hi;
}

/* Q of a tile. */
template <class S>
__device__ inline void load_queries(const fattn_problem &problem, const fattn_launch &at, const hopper_call &call,
                                    const CUtensorMap *q, unsigned char *to, uint32_t full, const tile_about &about)
{
    const int own_rows = HOPPER_ROWS >> call.group_log2, row = about.q_first + (about.first >> call.group_log2);
    if (!call.q_boxes) {
        for (int w = 0; w < S::warpgroups; w++)
            load_plain<HOPPER_ROWS, S::dim>(to + w * S::own_q_bytes, (int)problem.desc.dim, [&](int r) -> const void * {
                const int i = about.first + w * HOPPER_ROWS + r, head = about.head + (i & (call.group - 1));
                const bool there = w * HOPPER_ROWS + r < about.rows;
                return there ? fattn_row(&at.q, 2, about.b, head, about.q_first + (i >> call.group_log2)) : NULL;
            });
    }
    if (threadIdx.x % 32 != 0)
        return;
    if (!call.q_boxes) {
        ptx_mbarrier_arrive(full);
        return;
    }
    ptx_mbarrier_arrive_expect(full, S::q_bytes);
    for (int w = 0; w < S::warpgroups; w++)
        for (int panel = 0; panel < S::panels; panel++)
            ptx_tma_load(ptx_shared_address(to) + w * S::own_q_bytes + panel * HOPPER_ROWS * 128, q, full, panel * PANEL, 0,
                         row + w * own_rows, about.head >> call.group_log2, at.cu_q ? 0 : about.b);
}

/* Finds the block's tiles, says what there is to say of them, and loads Q. A warp of its own: it takes as long as a step or
 * two. */
template <class S>
__device__ inline void find_tiles(const fattn_problem &problem, const fattn_launch &at, const hopper_call &call,
                                  const CUtensorMap *q, unsigned char *shared)
{
    const uint32_t base = ptx_shared_address(shared);
    const bool first = threadIdx.x % 32 == 0;
    int turn = 0;
    for (int tile = 0;; tile++) {
        const uint32_t full = base + S::q_full + 8 * (tile % 2), told = base + S::told + 8 * (tile % 2);
        tile_about *about = (tile_about *)(shared + S::about_at + tile % 2 * S::about_bytes);
        const tile_place p = next_tile<S>(problem, at, call, &turn);
        ptx_mbarrier_wait(base + S::q_empty + 8 * (tile % 2), (tile / 2 & 1) ^ 1);
        if (p.m < 0) {
            if (first) {
                about->b = -1;
                ptx_mbarrier_arrive(told);
                ptx_mbarrier_arrive(full);
            }
            return;
        }
        const fattn_sequence seq = fattn_sequence_of(&problem, &at, p.b);
        describe<S>(problem, call, seq, p, about);
        __syncwarp();
        if (first)
            ptx_mbarrier_arrive(told);
        if (S::tiles == 1 && tile > 0)
            ptx_mbarrier_wait(base + S::q_empty + 8 * ((tile - 1) % 2), (tile - 1) / 2 & 1);
        load_queries<S>(problem, at, call, q, shared + tile % S::tiles * S::q_bytes, full, *about);
    }
}

/* Where the warp that loads K and V is. */
template <class S> struct loader {
    const fattn_problem *problem;
    const fattn_launch *at;
    unsigned char *shared;
    uint32_t base;      /* its address */
    int head_kv, b;     /* of the tile */
    int k_first, seq_k; /* the sequence's keys */
    int step, tails;    /* steps of keys so far; those that had rows behind the last key */
};

/* Keys or values of step n into a stage. What lies behind the sequence's last key may be anything: if `cut`, it becomes 0. */
template <class S>
__device__ inline void load_step(loader<S> &u, const fattn_view &view, bool boxes, const CUtensorMap *map, int columns,
                                 unsigned char *to, uint32_t full, int n, bool cut)
{
    const int key = n * S::keys, there = u.seq_k - key;
    const uint32_t tail = u.base + S::v_tail, address = ptx_shared_address(to);
    if (!boxes) {
        load_plain<S::keys, S::dim>(to, columns, [&](int r) -> const void * {
            return r < there ? fattn_row(&view, 2, u.b, u.head_kv, u.k_first + key + r) : NULL;
        });
        if (threadIdx.x == 0)
            ptx_mbarrier_arrive(full);
        return;
    }
    if (threadIdx.x == 0) {
        ptx_mbarrier_arrive_expect(cut ? tail : full, S::k_bytes);
        for (int panel = 0; panel < S::panels; panel++)
            ptx_tma_load(address + panel * S::keys * 128, map, cut ? tail : full, panel * PANEL, 0, u.k_first + key, u.head_kv,
                         u.at->cu_k ? 0 : u.b);
    }
    if (!cut)
        return;
    ptx_mbarrier_wait(tail, u.tails++ & 1);
    for (int panel = 0; panel < S::panels; panel++)
        for (int i = max(there, 0) * 128 + threadIdx.x * 16; i < S::keys * 128; i += 32 * 16)
            *(uint4 *)(to + panel * S::keys * 128 + i) = make_uint4(0, 0, 0, 0);
    ptx_fence_proxy_async();
    __syncwarp();
    if (threadIdx.x == 0)
        ptx_mbarrier_arrive(full);
}

template <class S> __device__ inline void load_keys(loader<S> &u, const hopper_call &call, const CUtensorMap *map, int n)
{
    const int stage = u.step % S::stages;
    ptx_mbarrier_wait(u.base + S::k_empty + 8 * stage, (u.step / S::stages & 1) ^ 1);
    load_step(u, u.at->k, call.k_boxes, map, (int)u.problem->desc.dim, u.shared + S::k_at + stage * S::k_bytes,
              u.base + S::k_full + 8 * stage, n, false);
}

/* Values of step number `step`: those behind the last key meet probabilities of 0. */
template <class S>
__device__ inline void load_values(loader<S> &u, const hopper_call &call, const CUtensorMap *map, int step, int n)
{
    const int stage = step % S::stages;
    const bool cut = (u.at->cu_k || u.at->used_k) && u.seq_k - n * S::keys < S::keys;
    ptx_mbarrier_wait(u.base + S::v_empty + 8 * stage, (step / S::stages & 1) ^ 1);
    load_step(u, u.at->v, call.v_boxes, map, (int)u.problem->desc.dim_v, u.shared + S::v_at + stage * S::k_bytes,
              u.base + S::v_full + 8 * stage, n, cut);
}

/* All K and V of the block's tiles. */
template <class S>
__device__ inline void load(const fattn_problem &problem, const fattn_launch &at, const hopper_call &call, const CUtensorMap *k,
                            const CUtensorMap *v, unsigned char *shared)
{
    loader<S> u = {&problem, &at, shared, ptx_shared_address(shared)};
    for (int tile = 0;; tile++) {
        const tile_about *about = (const tile_about *)(shared + S::about_at + tile % 2 * S::about_bytes);
        ptx_mbarrier_wait(u.base + S::told + 8 * (tile % 2), tile / 2 & 1);
        if (about->b < 0)
            return;
        u.head_kv = about->head_kv;
        u.b = about->b;
        u.k_first = about->k_first;
        u.seq_k = about->seq_k;
        const int lo = about->lo, hi = about->hi;
        for (int n = hi - 1; n >= lo; n--, u.step++) {
            load_keys(u, call, k, n);
            if (n < hi - 1)
                load_values(u, call, v, u.step - 1, n + 1);
        }
        load_values(u, call, v, u.step - 1, lo);
    }
}

#endif
