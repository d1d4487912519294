/*
 * What the forward kernels on tensor cores share: a unit's rows, what becomes of their products with keys, and their end. A
 * kernel brings its own loading and its products; S, its sizes: rows, keys, width, m_tiles, parts.
 */
#ifndef FATTN_CUDA_FORWARD_CUH
#define FATTN_CUDA_FORWARD_CUH

#include "cuda/softmax.cuh"

/* -------------------------------------------------------------------------------------------------------------- a unit */

template <class S> struct unit {
    const fattn_problem *problem;
    const fattn_launch *at;
    const tensor_call *call;
    fattn_sequence seq;
    long long b, first, column;
    int head_kv;
    unsigned char *q, *k, *v; /* k, v: two tiles each */
    lane_place *lane;
    float *k_factor, *v_factor; /* [2][keys] of bytes */
    long long span_lo, span_hi; /* keys that any row keeps */
    __device__ int warp_row() const
    {
        return threadIdx.x / 32 * 16 * S::m_tiles;
    }
};

template <class S> __device__ inline void unit_lanes(unit<S> *u)
{
    const fattn_problem &problem = *u->problem;
    for (int r = threadIdx.x; r < S::rows; r += THREADS) {
        const long long row = u->first + r;
        lane_place lane = {-1, 0, 0, 0, 0};
        if (row < problem.group * u->seq.seq_q) {
            lane.head = (int)(u->head_kv * problem.group + row / u->seq.seq_q);
            lane.row = row % u->seq.seq_q;
            const fattn_interval keep = fattn_mask_row(&u->seq.mask, lane.row);
            lane.lo = keep.lo;
            lane.hi = keep.hi;
        }
        u->lane[r] = lane;
    }
    __syncthreads();
    const fattn_interval span = span_of(u->lane, S::rows);
    u->span_lo = span.lo;
    u->span_hi = span.hi;
}

/* Whether the warp's rows keep all keys of a tile (2), some (1) or none (0). */
template <class S> __device__ inline int kept_of(const unit<S> &u, long long key)
{
    const int row = threadIdx.x / 32 * 16 * S::m_tiles + threadIdx.x % 32 % (16 * S::m_tiles);
    const lane_place &lane = u.lane[row];
    return kept_of(lane, lane.row >= 0, key, S::keys);
}

/* --------------------------------------------------------------------------------------------------------- end of rows */

/* row_apart, and lse. */
template <int width>
__device__ __noinline__ void row_and_lse_apart(const fattn_problem *problem, const fattn_launch *at, long long b,
                                               lane_place lane)
{
    const fattn_sequence seq = fattn_sequence_of(problem, at, b);
    const double lse = row_alone<width>(*problem, *at, b, 0, lane);
    if (at->lse && threadIdx.x % 32 == 0)
        ((float *)at->lse)[seq.lse_first + lane.head * seq.lse_head + lane.row] = (float)lse;
}

/* Writes out and lse of a warp's rows. */
template <class S> __device__ inline void finish_rows(const unit<S> &u, const scoring &how, row_sums<S> *sum)
{
    const fattn_desc &d = u.problem->desc;
    const size_t size = fattn_dtype_size(d.out_dtype);
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = row_of(u, m, 2 * half);
            const lane_place &lane = u.lane[r];
            float l = sum->l[m][half];
            l += __shfl_xor_sync(0xffffffffu, l, 1);
            l += __shfl_xor_sync(0xffffffffu, l, 2);
            const float near = __fmul_rn(sum->m[m][half], how.c);
            const double reference =
                S::parts == 1 && fabsf(near) < FAR ? (double)near : (double)sum->m[m][half] * (double)how.c;
            const row_end end = end_row(*u.problem, *u.at, lane.head, (double)l, reference - (double)how.shift);
            bool finite = true;
#pragma unroll
            for (int n = 0; n < S::width / 8; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++)
                    finite = finite && sum->o[m][n][e] - sum->o[m][n][e] == 0;
            if (lane.row >= 0) {
                void *out = fattn_query_row(&u.at->out, size, &u.seq, lane.head, lane.row);
                if (u.at->lse && u.column == 0 && threadIdx.x % 4 == 0)
                    ((float *)u.at->lse)[u.seq.lse_first + lane.head * u.seq.lse_head + lane.row] = (float)end.lse;
#pragma unroll
                for (int n = 0; n < S::width / 8; n++)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; e++)
                        if (u.column + key_of(n, e) < d.dim_v)
                            store_number(out, d.out_dtype, u.column + key_of(n, e),
                                         l == 0 ? 0.0f : sum->o[m][n][e] * (float)end.factor);
            }
            __syncwarp();
            /* A NaN in l or lse is the row's own: only sums that stay finite are in doubt. But parts of an infinity make
             * NaN of what is an infinite score. */
            const bool doubt = !finite && (l - l == 0 || S::parts > 1);
            unsigned wrong = __ballot_sync(0xffffffffu, doubt && lane.row >= 0);
            for (int g = 0; g < 8; g++) {
                if (!(wrong >> (4 * g) & 15))
                    continue;
                const lane_place &bad = u.lane[u.warp_row() + 16 * m + g + 8 * half];
                if (S::parts > 1)
                    row_and_lse_apart<S::width>(u.problem, u.at, u.b, bad);
                else
                    row_apart<S::width>(u.problem, u.at, u.b, u.column, bad);
            }
        }
}

#endif
