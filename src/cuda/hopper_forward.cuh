/*
 * What the parts of Hopper's forward share: sizes, shared memory, a warpgroup's state. hopper_forward.cu says how they work
 * together.
 */
#ifndef FATTN_CUDA_HOPPER_FORWARD_CUH
#define FATTN_CUDA_HOPPER_FORWARD_CUH

#include "cuda/hopper.h"
#include "cuda/hopper_tiles.cuh"

constexpr int GROUP_THREADS = 128;
constexpr float NOTHING = -1e30f; /* what powers refer to before a row has met a score */
constexpr float HIGH = 4294967296.0f;
constexpr float FAR_FROM_0 = 1 << 20; /* log2 units from which on floats do not hold a score's distance to the largest well */
enum { TURN = 1, ENDING = 4 };        /* named barriers, one for each warpgroup from there on */

template <class T> constexpr bool is_f16 = false;
template <> constexpr bool is_f16<__half> = true;

template <class T_, int dim_, int warpgroups_, int keys_, int tiles_, int stages_> struct sizes {
    typedef T_ T;
    static constexpr int dim = dim_, warpgroups = warpgroups_, keys = keys_, tiles = tiles_, stages = stages_;
    static constexpr int rows = HOPPER_ROWS * warpgroups, panels = dim / PANEL;
    static constexpr int own_q_bytes = HOPPER_ROWS * dim * 2, q_bytes = warpgroups * own_q_bytes, k_bytes = keys * dim * 2;
    static constexpr int k_at = tiles * q_bytes, v_at = k_at + stages * k_bytes, about_at = v_at + stages * k_bytes;
    static constexpr int about_bytes = HOPPER_ABOUT_BYTES(warpgroups), barriers_at = about_at + 2 * about_bytes;
    static constexpr int told = barriers_at, q_full = told + 16, q_empty = q_full + 16, k_full = q_empty + 16;
    static constexpr int k_empty = k_full + 8 * stages, v_full = k_empty + 8 * stages, v_empty = v_full + 8 * stages;
    static constexpr int v_tail = v_empty + 8 * stages;
    static_assert(v_tail + 8 <= barriers_at + HOPPER_BARRIERS, "hopper.h counts on it");
    static constexpr int loading_registers = warpgroups == 2 ? 24 : 32, computing_registers = warpgroups == 2 ? 240 : 160;
    static constexpr bool f16 = is_f16<T_>;
    static constexpr bool steady = !f16;
    static constexpr float shift = f16 ? 12.0f : 0.0f; /* probabilities are 2^shift times what they are: see scoring */
};

/* What is said of a tile, in shared memory; behind it int2 {lo, hi}, the keys that each row keeps. */
struct tile_about {
    int b;                    /* its sequence; -1: there are no more tiles */
    int head;                 /* the first query head */
    int first, rows;          /* number of its first row among the group's; how many rows exist */
    int q_first;              /* rows of packed tensors before the sequence */
    int head_kv;              /* coordinates of K and V: the head, */
    int k_first, seq_k;       /* the sequence's first key; how many it has */
    int lo, hi;               /* steps of keys: lo .. hi - 1 */
    int own_lo[3], own_hi[3]; /* the part that each warpgroup's rows keep any of; at least one step */
};

static_assert(sizeof(tile_about) <= HOPPER_ABOUT, "hopper.h counts on it");

/* A warpgroup at work. Element e of s and o: row 16 warp + lane / 4 + 8 (e / 2 % 2), column 8 (e / 4) + 2 (lane % 4) + e % 2.
 */
template <class S> struct worker {
    unsigned char *shared;
    uint32_t base;        /* its address */
    int own, thread, row; /* number of the warpgroup, of the thread in it, its first row in the warpgroup */
    int tile, step;       /* tiles, and steps of keys, so far */
    int warp_lo, warp_hi; /* keys that all rows of the warp keep */
    float c;              /* what scores are multiplied with to be in log2 units */
    float o[S::dim / 2], s[S::keys / 2];
    uint32_t p[S::keys / 4];
    float reference[2], l[2]; /* of the thread's two rows; l: of its own keys only */
    float correction[2];      /* what sums so far are multiplied with */
};

/* What is said of a tile. */
template <class S> __device__ __forceinline__ const tile_about *about_of(const worker<S> &u, int tile)
{
    return (const tile_about *)(u.shared + S::about_at + tile % 2 * S::about_bytes);
}

template <class S> __device__ __forceinline__ void turn_begin(const worker<S> &u)
{
    ptx_bar_sync(TURN + u.own, 2 * GROUP_THREADS);
}

template <class S> __device__ __forceinline__ void turn_end(const worker<S> &u)
{
    ptx_bar_arrive(TURN + (u.own + 1) % S::warpgroups, 2 * GROUP_THREADS);
}

template <class S> __device__ __forceinline__ void wait_full(const worker<S> &u, int barriers, int step)
{
    ptx_mbarrier_wait(u.base + barriers + 8 * (step % S::stages), step / S::stages & 1);
}

/* The warp will not read that stage again. */
template <class S> __device__ __forceinline__ void release(const worker<S> &u, int barriers, int step)
{
    if (u.thread % 32 == 0)
        ptx_mbarrier_arrive(u.base + barriers + 8 * (step % S::stages));
}

#endif
