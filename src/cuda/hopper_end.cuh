/*
 * The end of a tile in Hopper's forward: out and lse, and rows that are computed again by themselves.
 */
#ifndef FATTN_CUDA_HOPPER_END_CUH
#define FATTN_CUDA_HOPPER_END_CUH

#include "cuda/alone.cuh"
#include "cuda/hopper_forward.cuh"

/* Where a tile's results go, once the loading warp may have written over what was said of it. */
struct tile_rows {
    int b, head, first, rows, q_first;
};

/* The end of a row's softmax: what O is multiplied with, and lse. m: in log2 units. */
__device__ __forceinline__ float2 end_of(float l, float m, float sink)
{
    const float above = sink * (float)LOG2E - m;
    if (l == 0)
        return make_float2(0, sink);
    if (!(above > 0)) {
        const float total = l + ptx_exp2(above);
        return make_float2(1 / total, fmaf(m, (float)LN2, logf(total)));
    }
    const float small = ptx_exp2(-above), total = fmaf(l, small, 1.0f);
    return make_float2(small / total, logf(total) + sink);
}

/* Row r of the warpgroup: its head and its number in the sequence. */
__device__ __forceinline__ lane_place lane_of(const hopper_call &call, const tile_rows &t, int own, int r)
{
    const int row = t.first + own * HOPPER_ROWS + r;
    lane_place lane = {row >> call.group_log2, t.head + (row & (call.group - 1)), 0, 0, 0};
    return lane;
}

__device__ __forceinline__ float *lse_of(const fattn_problem &problem, const fattn_launch &at, const tile_rows &t,
                                         const lane_place &lane)
{
    const fattn_desc &d = problem.desc;
    const long long row = at.cu_q ? lane.head * d.total_q + t.q_first : (t.b * d.heads_q + lane.head) * d.seq_q;
    return (float *)at.lse + row + lane.row;
}

/* Sets lse, what O is multiplied with, and of which of the thread's rows the result is in doubt. */
template <class S>
__device__ __forceinline__ void finish_row(worker<S> &u, const fattn_problem &problem, const fattn_launch &at,
                                           const hopper_call &call, const tile_rows &t, int half, float *factor, bool *doubt)
{
    const int r = u.row + 8 * half;
    const bool there = r < t.rows - u.own * HOPPER_ROWS;
    const lane_place lane = lane_of(call, t, u.own, r);
    const int2 keep = ((const int2 *)((const unsigned char *)about_of(u, u.tile) + HOPPER_ABOUT))[u.own * HOPPER_ROWS + r];
    const bool sinks = (problem.desc.flags & FATTN_WITH_SINKS) != 0;
    float l = u.l[half], unsound = 0;
    l += __shfl_xor_sync(ALL, l, 1);
    l += __shfl_xor_sync(ALL, l, 2);
    const float2 end = end_of(l, u.reference[half] - S::shift, there && sinks ? at.sinks[lane.head] : -INFINITY);
    if (at.lse && there && u.thread % 4 == 0)
        *lse_of(problem, at, t, lane) = end.y;
#pragma unroll
    for (int n = 0; n < S::dim / 8; n++)
        unsound = fmaf(u.o[4 * n + 2 * half + 1], 0.0f, fmaf(u.o[4 * n + 2 * half], 0.0f, unsound));
    /* A NaN in l is the row's own unless it comes of references that overflowed. */
    const bool own = l == l ? unsound == 0 && fabsf(u.reference[half]) < FAR_FROM_0 && l > 0 : !isinf(u.reference[half]);
    *doubt = there && keep.x < keep.y && !own;
    *factor = end.x;
    if (__any_sync(ALL, l == 0)) {
#pragma unroll
        for (int n = 0; n < S::dim / 8; n++)
#pragma unroll
            for (int e = 4 * n + 2 * half; e < 4 * n + 2 * half + 2; e++)
                u.o[e] = l == 0 ? 0.0f : u.o[e];
    }
}

/* The warpgroup's results through shared memory; what lies beyond the tensor TMA does not write. */
template <class S>
__device__ __forceinline__ void store_boxes(const worker<S> &u, const fattn_problem &problem, const fattn_launch &at,
                                            const hopper_call &call, const CUtensorMap *out, const tile_rows &t,
                                            const float factor[2])
{
    const int lane = u.thread % 32;
    const uint32_t to = u.base + u.tile % S::tiles * S::q_bytes + u.own * S::own_q_bytes;
#pragma unroll
    for (int j = 0; j < S::dim / 16; j++) {
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            r[i] = ptx_pack(u.o[8 * j + 2 * i] * factor[i % 2], u.o[8 * j + 2 * i + 1] * factor[i % 2], typename S::T());
        ptx_stmatrix_x4(to + panel_piece<HOPPER_ROWS>(u.thread / 32 * 16 + lane % 16, 2 * j + lane / 16), r);
    }
    ptx_fence_proxy_async();
    ptx_bar_sync(ENDING + u.own, GROUP_THREADS);
    if (u.thread != 0)
        return;
    const int row = t.q_first + ((t.first + u.own * HOPPER_ROWS) >> call.group_log2);
    if (t.rows > u.own * HOPPER_ROWS)
        for (int panel = 0; panel * PANEL < problem.desc.dim_v; panel++)
            ptx_tma_store(out, to + panel * HOPPER_ROWS * 128, panel * PANEL, 0, row, t.head >> call.group_log2,
                          at.cu_q ? 0 : t.b);
    ptx_bulk_commit();
}

/* One of the thread's rows from registers. */
template <class S>
__device__ __forceinline__ void store_row(const worker<S> &u, const fattn_problem &problem, const fattn_launch &at,
                                          const hopper_call &call, const tile_rows &t, int half, float factor)
{
    const bool wide = problem.desc.out_dtype == FATTN_F32;
    const lane_place lane = lane_of(call, t, u.own, u.row + 8 * half);
    unsigned char *out = (unsigned char *)fattn_row(&at.out, wide ? 4 : 2, t.b, lane.head, t.q_first + lane.row);
#pragma unroll
    for (int n = 0; n < S::dim / 8; n++) {
        const int column = 8 * n + u.thread % 4 * 2;
        const float x = u.o[4 * n + 2 * half] * factor, y = u.o[4 * n + 2 * half + 1] * factor;
        if (column >= problem.desc.dim_v)
            break;
        if (!call.pairs) {
            store_number(out, problem.desc.out_dtype, column, x);
            store_number(out, problem.desc.out_dtype, column + 1, y);
        } else if (wide) {
            *(float2 *)(out + 4 * column) = make_float2(x, y);
        } else {
            *(uint32_t *)(out + 2 * column) = ptx_pack(x, y, typename S::T());
        }
    }
}

/* Writes a tile's results. doubtful: four bits for each of eight rows of the warp, by half; those rows are not written. */
template <class S>
__device__ __forceinline__ void end_tile(worker<S> &u, const fattn_problem &problem, const fattn_launch &at,
                                         const hopper_call &call, const CUtensorMap *out, const tile_rows &t,
                                         unsigned doubtful[2])
{
    float factor[2];
    bool doubt[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        finish_row(u, problem, at, call, t, half, &factor[half], &doubt[half]);
        doubtful[half] = __ballot_sync(ALL, doubt[half]);
        doubt[half] = (doubtful[half] >> (u.thread % 32 / 4 * 4) & 15) != 0;
    }
    /* Rows of other sequences, or behind the used, follow at the end of some. */
    const bool box = call.out_boxes && (t.rows >= (u.own + 1) * HOPPER_ROWS || !(at.cu_q || at.used_q));
    if (!ptx_bar_or(ENDING + u.own, GROUP_THREADS, !box || (doubtful[0] | doubtful[1]) != 0)) {
        store_boxes(u, problem, at, call, out, t, factor);
        return;
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
        if (u.row + 8 * half < t.rows - u.own * HOPPER_ROWS && !doubt[half])
            store_row(u, problem, at, call, t, half, factor[half]);
}

/* The warp's rows in doubt, each by itself. */
template <class S>
__device__ __forceinline__ void rows_alone(const worker<S> &u, const fattn_problem &problem, const fattn_launch &at,
                                           const hopper_call &call, const tile_rows &t, const unsigned doubtful[2])
{
    const fattn_sequence seq = fattn_sequence_of(&problem, &at, t.b);
#pragma unroll 1
    for (int r = 0; r < 16; r++) {
        if ((doubtful[r / 8] >> (r % 8 * 4) & 15) == 0)
            continue;
        lane_place lane = lane_of(call, t, u.own, u.thread / 32 * 16 + r);
        const fattn_interval keep = fattn_mask_row(&seq.mask, lane.row);
        lane.lo = keep.lo;
        lane.hi = keep.hi;
        const double lse = row_alone<S::dim>(problem, at, t.b, 0, lane);
        __syncwarp();
        if (at.lse && u.thread % 32 == 0)
            *lse_of(problem, at, t, lane) = (float)lse;
    }
}

/* The loading warp may write to the tile of Q again, and to what was said of it. */
template <class S> __device__ __forceinline__ void release_queries(const worker<S> &u, int tile)
{
    if (u.thread != 0)
        return;
    ptx_bulk_wait_read<0>();
    ptx_mbarrier_arrive(u.base + S::q_empty + 8 * (tile % 2));
}

#endif
