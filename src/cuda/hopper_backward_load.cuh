/*
 * Warpgroup 0 of Hopper's backward: the warp that fetches, and the threads that add blocks of dQ in order. And what it and the
 * other warpgroups agree on: where things lie in shared memory.
 */
#ifndef FATTN_CUDA_HOPPER_BACKWARD_LOAD_CUH
#define FATTN_CUDA_HOPPER_BACKWARD_LOAD_CUH

#include "cuda/hopper_backward.cuh"

template <int dim_, bool ordered_> struct sizes {
    static constexpr int dim = dim_, rows = HOPPER_BACKWARD_ROWS(dim), panels = dim / PANEL, pieces = rows * dim / 4096;
    static constexpr bool ordered = ordered_;
    static constexpr bool ahead = dim == 64 && ordered; /* see hear(); as measured */
    static constexpr int k_bytes = KEYS * dim * 2, q_bytes = rows * dim * 2, slot_bytes = rows * KEYS * 2;
    static constexpr int numbers_bytes = rows * HOPPER_ROW_NUMBERS * 4, sums_bytes = rows * dim * 4;
    static constexpr int k_at = 0, v_at = 2 * k_bytes, q_at = v_at + k_bytes, dout_at = q_at + 2 * q_bytes;
    static constexpr int slot_at = dout_at + 2 * q_bytes, sums_at = slot_at + 2 * slot_bytes;
    static constexpr int numbers_at = sums_at + ordered * sums_bytes, items_at = numbers_at + 2 * numbers_bytes;
    static constexpr int tiles_at = items_at + 8 * 16, handed_at = tiles_at + 4 * 16;
    static constexpr int k_full = handed_at + 16, k_empty = k_full + 16, q_full = k_empty + 16, q_empty = q_full + 16;
    static constexpr int dout_full = q_empty + 16, dout_empty = dout_full + 16, slot_full = dout_empty + 16;
    static constexpr int slot_empty = slot_full + 32, v_full = slot_empty + 16, v_empty = v_full + 8;
    static constexpr int sums_full = v_empty + 8, sums_empty = sums_full + 16;
    static constexpr int announced = sums_empty + 8, end = announced + 16;
    static_assert(end <= HOPPER_BACKWARD_SHARED(dim, ordered), "hopper_backward.h counts on it");
};

/* What is said of an item, in a ring of 8: no warpgroup is that far behind another. */
struct item {
    int block; /* head * blocks + block */
    int flags; /* SOME or WHOLE of the first half of keys, of the second half << 2; LAST; the next item's, without LAST, << NEXT
                */
    int turn;  /* tiles that add to the block's sums before */
    int pad;
};

enum { SOME = 1, WHOLE = 2, LAST = 16, NEXT = 8, NO_TILE = -1 };

extern __shared__ __align__(1024) unsigned char shared[];

/* The phase that the i-th use of one of two buffers fills has this parity. */
__device__ __forceinline__ uint32_t parity(int i)
{
    return (i >> 1) & 1;
}

/* ------------------------------------------------------------------------------------------------------------- loading */

/* A tensor's rows from row `first` of a sequence on, to where they are in shared memory. */
struct source {
    const fattn_view *view;
    const CUtensorMap *map;
    int columns;
};

/* by_tma: whether rows behind the sequence's are none. Arrives at the barrier, with `more` bytes that the caller fetches. */
template <int rows, int dim>
__device__ __forceinline__ void load_rows(const source &s, bool by_tma, uint32_t to, uint32_t barrier, uint32_t more, int b,
                                          int head, int row, int there)
{
    if (!by_tma)
        load_plain<rows, dim>(shared + (to - ptx_shared_address(shared)), s.columns,
                              [&](int r) { return r < there ? fattn_row(s.view, 2, b, head, row + r) : NULL; });
    if (threadIdx.x % 32 == 0) {
        ptx_mbarrier_arrive_expect(barrier, more + (by_tma ? rows * dim * 2 : 0));
        if (by_tma)
#pragma unroll
            for (int panel = 0; panel < dim / PANEL; panel++)
                ptx_tma_load(to + panel * rows * 128, s.map, barrier, panel * PANEL, 0, row, head, b);
    }
}

/* Lengths of a sequence, and what stands before it in packed tensors. */
struct lengths {
    int q_b, k_b; /* indices in tensors */
    int q_first, k_first, seq_q, seq_k;
    bool q_ends, k_ends; /* there are no rows behind the last */
};

__device__ __forceinline__ lengths lengths_of(const fattn_problem &problem, const fattn_launch &at, int b)
{
    const fattn_sequence seq = fattn_sequence_of(&problem, &at, b);
    return {at.cu_q ? 0 : b, at.cu_k ? 0 : b, (int)seq.q_first,       (int)seq.k_first,
            (int)seq.seq_q,  (int)seq.seq_k,  !at.cu_q && !at.used_q, !at.cu_k && !at.used_k};
}

/* A walk over a tile's items: the blocks of rows of each head, the last first, that keep any of its keys. */
struct walk {
    int head, heads; /* of the group, still to come */
    int top, blocks; /* blocks of the head still to be looked at; all of them */
    unsigned found;  /* by lane, those of the last 32 looked at that are still to come */
    int base;        /* lane i's is number base - i */
    int flags, turn; /* of the lane's */
};

template <class S>
__device__ __forceinline__ bool walk_next(walk *w, const hopper_backward_call &call, int first, int key, item *next, int *block)
{
    const int lane = threadIdx.x % 32;
    while (w->found == 0) {
        if (w->top <= 0) {
            if (w->heads == 0)
                return false;
            w->head++;
            w->heads--;
            w->top = w->blocks;
        }
        const int own = w->top - 1 - lane;
        bool any = false;
        if (own >= 0) {
            const int4 span = *(const int4 *)(call.spans + 4 * (first + own));
            w->flags = 0;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int lo = key + half * HALF, hi = lo + HALF;
                if (span.x < hi && span.y > lo)
                    w->flags |= (span.z <= lo && span.w >= hi ? WHOLE : SOME) << (2 * half);
            }
            w->turn = key / KEYS - span.x / KEYS;
            any = w->flags != 0;
        }
        w->base = w->top - 1;
        w->found = __ballot_sync(ALL, any);
        w->top -= 32;
    }
    const int chosen = __ffs(w->found) - 1;
    w->found &= w->found - 1;
    *block = w->base - chosen;
    next->block = w->head * (int)call.blocks + first + *block;
    next->flags = __shfl_sync(ALL, w->flags, chosen);
    next->turn = __shfl_sync(ALL, w->turn, chosen);
    return true;
}

struct maps {
    CUtensorMap q, k, v, dout;
};

/* Item number i: Q, dO and the numbers of its rows; of none (block < 0), only word of it. V comes with a tile's first. */
template <class S>
__device__ __forceinline__ void load_item(const fattn_problem &problem, const fattn_launch &at,
                                          const hopper_backward_call &call, const maps &map, const lengths &seq, int i, item it,
                                          int head, int row)
{
    const uint32_t base = ptx_shared_address(shared);
    const int stage = i & 1, there = seq.seq_q - row;
    const bool whole = there >= S::rows || seq.q_ends;
    const source q = {&at.q, &map.q, (int)problem.desc.dim};
    const source dout = {&at.dout, &map.dout, (int)problem.desc.dim_v};
    const uint32_t q_full = base + S::q_full + 8 * stage, dout_full = base + S::dout_full + 8 * stage;
    ptx_mbarrier_wait(base + S::q_empty + 8 * stage, parity(i) ^ 1);
    if (threadIdx.x % 32 == 0)
        *(int4 *)(shared + S::items_at + 16 * (i & 7)) = make_int4(it.block, it.flags, it.turn, 0);
    if (it.block < 0) {
        ptx_mbarrier_wait(base + S::dout_empty + 8 * stage, parity(i) ^ 1);
        if (threadIdx.x % 32 == 0) {
            ptx_mbarrier_arrive(q_full);
            ptx_mbarrier_arrive(dout_full);
        }
        return;
    }
    load_rows<S::rows, S::dim>(q, whole && call.q_map, base + S::q_at + stage * S::q_bytes, q_full, S::numbers_bytes, seq.q_b,
                               head, seq.q_first + row, there);
    if (threadIdx.x % 32 == 0)
        ptx_bulk_load(base + S::numbers_at + stage * S::numbers_bytes,
                      (const char *)call.numbers + (long long)it.block * S::numbers_bytes, S::numbers_bytes, q_full);
    ptx_mbarrier_wait(base + S::dout_empty + 8 * stage, parity(i) ^ 1);
    load_rows<S::rows, S::dim>(dout, whole && call.dout_map, base + S::dout_at + stage * S::q_bytes, dout_full, 0, seq.q_b,
                               head, seq.q_first + row, there);
}

/* Whether a walk is about to end: then the next tile is taken, whose number is some way off. Not much earlier: tiles that lie
 * taken while others are at work would keep those waiting that add after them. */
__device__ __forceinline__ bool few_left(const walk &w)
{
    return w.heads == 0 && w.top <= 0 && __popc(w.found) <= 2;
}

/* The warp that fetches. */
template <class S>
__device__ __forceinline__ void load(const fattn_problem &problem, const fattn_launch &at, const hopper_backward_call &call,
                                     const maps &map)
{
    const fattn_desc &d = problem.desc;
    const uint32_t base = ptx_shared_address(shared);
    const bool leader = threadIdx.x % 32 == 0;
    int i = 0, tiles = 0, taken = 0;
    ptx_wait_for_grids_before();
    if (leader)
        taken = atomicAdd(call.next, 1);
#pragma unroll 1
    for (;;) {
        const int t = __shfl_sync(ALL, taken, 0);
        if (t >= call.tiles)
            break;
        const key_tile tile = tile_of(call, (int)d.heads_kv, (int)(d.heads_kv * d.batch), t);
        const lengths seq = lengths_of(problem, at, tile.b);
        const int key = tile.number * KEYS, there = seq.seq_k - key;
        if (there <= 0) {
            if (leader)
                taken = atomicAdd(call.next, 1);
            continue;
        }
        const bool whole = there >= KEYS || seq.k_ends;
        const uint32_t k_full = base + S::k_full + 8 * (tiles & 1);
        const source k = {&at.k, &map.k, (int)d.dim}, v = {&at.v, &map.v, (int)d.dim_v};
        ptx_mbarrier_wait(base + S::k_empty + 8 * (tiles & 1), parity(tiles) ^ 1);
        if (leader)
            *(int4 *)(shared + S::tiles_at + 16 * (tiles & 3)) = make_int4(tile.b, tile.head, tile.number, t);
        load_rows<KEYS, S::dim>(k, whole && call.k_map, base + S::k_at + (tiles & 1) * S::k_bytes, k_full, 0, seq.k_b,
                                tile.head, seq.k_first + key, there);
        walk w = {tile.head * (int)problem.group - 1, (int)problem.group, 0, (seq.seq_q + S::rows - 1) / S::rows, 0, 0, 0, 0};
        const int first = first_block<S::rows>(at, call, tile.b);
        item now = {-1, 0, 0, 0}, next = now;
        int head = 0, row = 0, block = 0;
        bool more = walk_next<S>(&w, call, first, key, &next, &block), begun = false, took = false;
#pragma unroll 1
        do {
            now = next;
            head = w.head;
            row = block * S::rows;
            more = more && walk_next<S>(&w, call, first, key, &next, &block);
            now.flags |= more ? next.flags << NEXT : LAST;
            if (!took && few_left(w)) {
                took = true;
                if (leader)
                    taken = atomicAdd(call.next, 1);
            }
            load_item<S>(problem, at, call, map, seq, i++, now, head, row);
            if (!begun) {
                ptx_mbarrier_wait(base + S::v_empty, (tiles & 1) ^ 1);
                load_rows<KEYS, S::dim>(v, whole && call.v_map, base + S::v_at, base + S::v_full, 0, seq.k_b, tile.head,
                                        seq.k_first + key, there);
            }
            begun = true;
        } while (more);
        tiles++;
    }
    ptx_mbarrier_wait(base + S::k_empty + 8 * (tiles & 1), parity(tiles) ^ 1);
    if (leader) {
        *(int4 *)(shared + S::tiles_at + 16 * (tiles & 3)) = make_int4(NO_TILE, 0, 0, 0);
        ptx_mbarrier_arrive(base + S::k_full + 8 * (tiles & 1));
    }
}

/* One of the two threads that add blocks of dQ in order: block number `which`, which + 2, ... of those that are staged. It
 * hears of a block while the block is being computed, and waits for its turn meanwhile. */
template <class S> __device__ __forceinline__ void add_in_order(const hopper_backward_call &call, int which)
{
    const uint32_t base = ptx_shared_address(shared);
    ptx_wait_for_grids_before();
#pragma unroll 1
    for (int i = which;; i += 2) {
        ptx_mbarrier_wait(base + S::announced + 8 * which, parity(i));
        const int2 handed = *(const int2 *)(shared + S::handed_at + 8 * which); /* block, turn */
        if (handed.x < 0)
            break;
        float *to = call.sums + (long long)handed.x * (S::rows * S::dim);
        int *turn = call.turns + handed.x;
        while (handed.y != 0 && ptx_load_acquire(turn) != handed.y)
            ;
        ptx_fence_proxy_async_global();
        ptx_mbarrier_wait(base + S::sums_full + 8 * which, parity(i)); /* its own: it may wait before i - 1 is staged */
        if (handed.y == 0)
            ptx_bulk_store(to, base + S::sums_at, S::sums_bytes);
        else
            ptx_bulk_add(to, base + S::sums_at, S::sums_bytes);
        ptx_bulk_commit();
        ptx_bulk_wait_read<0>();
        ptx_mbarrier_arrive(base + S::sums_empty);
        ptx_bulk_wait<0>();
        ptx_fence_proxy_async_global();
        ptx_store_release(turn, handed.y + 1);
    }
}

#endif
