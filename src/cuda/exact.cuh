/*
 * What the exact kernels share: products of 64 x 64 tiles by FMA in real (float, or double for FATTN_F64), rows and keys of any
 * type widened on the way to shared memory, and scores as the header defines them.
 *
 * 256 threads, [16][16] of them: thread (ty, tx) owns rows 4 ty .. 4 ty + 3 and columns 4 tx .. 4 tx + 3 of a tile of scores,
 * and of a result of WIDTH columns the two groups of four that begin at 4 tx and 64 + 4 tx. Every product has the form
 * acc[m][n] += sum_k A[k][m] B[k][n] with A and B in shared memory.
 *
 * Tiles meet keys that a row does not keep with a weight of 0, and 0 times an infinity or a NaN is NaN. So when a result is not
 * finite the whole unit runs once more, `careful`: terms that the mask drops are left out one by one.
 */
#ifndef FATTN_CUDA_EXACT_CUH
#define FATTN_CUDA_EXACT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "core/dropout.h"
#include "core/sequence.h"
#include "cuda/exact.h"

constexpr int THREADS = EXACT_THREADS, SIDE = 16;
constexpr int ROWS = EXACT_TILE, KEYS = EXACT_TILE, WIDTH = EXACT_WIDTH;
constexpr int STEP = 16;        /* depth of a product at a time, where rows come from global memory */
constexpr int VALUES = 32;      /* rows of the right factor of a result at a time */
constexpr int PITCH = ROWS + 4; /* of a row of 64 in shared memory: keeps 16 bytes alignment, spreads over banks */

template <typename real> struct exact_shared {
    real a[STEP][PITCH], b[STEP][PITCH];
    real left[KEYS][PITCH]; /* P or dS, by the index that is summed over */
    real right[VALUES][WIDTH];
    long long row[ROWS]; /* lane's row of its sequence */
    int head[ROWS];
    long long lo[ROWS], hi[ROWS]; /* keys that a lane keeps */
    real lse[ROWS], delta[ROWS];  /* backward: in log2 units; D */
};

static_assert(sizeof(exact_shared<float>) == EXACT_SHARED_F32 && sizeof(exact_shared<double>) == EXACT_SHARED_F64,
              "exact.h says how much a launch asks for");

/* One element of a row as real. */
template <typename real> __device__ inline real exact_load(const void *row, int32_t dtype, long long d)
{
    switch (dtype) {
    case FATTN_F64:
        return (real)((const double *)row)[d];
    case FATTN_F32:
        return (real)((const float *)row)[d];
    case FATTN_F16:
        return (real)__half2float(((const __half *)row)[d]);
    case FATTN_BF16:
        return (real)__bfloat162float(((const __nv_bfloat16 *)row)[d]);
    default:
        return (real)((const signed char *)row)[d];
    }
}

template <typename real> __device__ inline void exact_store(void *row, int32_t dtype, long long d, real x)
{
    switch (dtype) {
    case FATTN_F64:
        ((double *)row)[d] = (double)x;
        break;
    case FATTN_F32:
        ((float *)row)[d] = (float)x;
        break;
    case FATTN_F16:
        ((__half *)row)[d] = __float2half_rn((float)x);
        break;
    default:
        ((__nv_bfloat16 *)row)[d] = __float2bfloat16_rn((float)x);
        break;
    }
}

__device__ inline float exact_exp2(float x)
{
    return exp2f(x);
}
__device__ inline double exact_exp2(double x)
{
    return exp2(x);
}
__device__ inline float exact_tanh(float x)
{
    return tanhf(x);
}
__device__ inline double exact_tanh(double x)
{
    return tanh(x);
}

/* -------------------------------------------------------------------------------------------------------------- units */

/* Query heads first .. first + count - 1, whose rows are one list. */
struct exact_heads {
    int first, count;
};

/* The tile of ROWS rows at hand, from number `first` of the list on. delta: backward's D; NULL in forward. */
template <typename real>
__device__ inline void exact_set_rows(exact_shared<real> *s, const fattn_launch &at, const fattn_sequence &seq,
                                      exact_heads heads, long long first, const real *delta)
{
    __syncthreads();
    for (int r = threadIdx.x; r < ROWS; r += THREADS) {
        const long long row = first + r;
        fattn_interval keep = {0, 0};
        s->head[r] = 0;
        s->row[r] = -1;
        if (row < heads.count * seq.seq_q) {
            const int head = (int)(heads.first + row / seq.seq_q);
            const long long i = row % seq.seq_q;
            s->head[r] = head;
            s->row[r] = i;
            keep = fattn_mask_row(&seq.mask, i);
            if (delta) {
                const long long index = seq.lse_first + head * seq.lse_head + i;
                const real lse = ((const real *)at.lse)[index];
                s->lse[r] = lse * (real)1.44269504088896340736;
                s->delta[r] = delta[index];
                if (lse == -INFINITY) /* no score above -inf: no gradients */
                    keep.lo = keep.hi = 0;
            }
        }
        s->lo[r] = keep.lo;
        s->hi[r] = keep.hi;
    }
    __syncthreads();
}

/* Keys that any row of the tile keeps, as a span. */
template <typename real> __device__ inline fattn_interval exact_span(const exact_shared<real> *s)
{
    fattn_interval span = {INT64_MAX, 0};
    for (int r = 0; r < ROWS; r++)
        if (s->lo[r] < s->hi[r]) {
            span.lo = s->lo[r] < span.lo ? s->lo[r] : span.lo;
            span.hi = s->hi[r] > span.hi ? s->hi[r] : span.hi;
        }
    return span;
}

/* ------------------------------------------------------------------------------------------------------------ products */

/* acc[i][j] += a row of A, 4 ty + i, times a row of B, 4 tx + j, over `depth` numbers. load_a(row, d), load_b(row, d). */
template <typename real, class LoadA, class LoadB>
__device__ inline void exact_rows_product(exact_shared<real> *s, real acc[4][4], long long depth, LoadA load_a, LoadB load_b)
{
    const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
    for (long long d0 = 0; d0 < depth; d0 += STEP) {
        __syncthreads();
        for (int e = threadIdx.x; e < ROWS * STEP; e += THREADS) {
            const int r = e / STEP, d = e % STEP;
            const bool there = d0 + d < depth;
            s->a[d][r] = there ? load_a(r, d0 + d) : (real)0;
            s->b[d][r] = there ? load_b(r, d0 + d) : (real)0;
        }
        __syncthreads();
#pragma unroll
        for (int d = 0; d < STEP; d++) {
            real x[4], y[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i] = s->a[d][4 * ty + i];
                y[i] = s->b[d][4 * tx + i];
            }
#pragma unroll
            for (int i = 0; i < 4; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    acc[i][j] = fma(x[i], y[j], acc[i][j]);
        }
    }
}

/* acc[i][c] += sum_k left[k][4 ty + i] * load(k, column c of this thread), over 64 indices k. Terms that `drop` names, by k and
 * row, are left out. */
template <typename real, class Load, class Drop>
__device__ inline void exact_weighted_sum(exact_shared<real> *s, real acc[4][8], Load load, Drop drop)
{
    const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
    for (int k0 = 0; k0 < KEYS; k0 += VALUES) {
        __syncthreads();
        for (int e = threadIdx.x; e < VALUES * WIDTH; e += THREADS)
            s->right[e / WIDTH][e % WIDTH] = load(k0 + e / WIDTH, e % WIDTH);
        __syncthreads();
#pragma unroll 4
        for (int k = 0; k < VALUES; k++) {
            real x[4], y[8];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                x[i] = s->left[k0 + k][4 * ty + i];
                y[i] = s->right[k][4 * tx + i];
                y[4 + i] = s->right[k][WIDTH / 2 + 4 * tx + i];
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (drop(k0 + k, 4 * ty + i))
                    continue;
#pragma unroll
                for (int c = 0; c < 8; c++)
                    acc[i][c] = fma(x[i], y[c], acc[i][c]);
            }
        }
    }
}

/* Column c of a thread's part of a result. */
__device__ inline int exact_column(int c)
{
    const int tx = threadIdx.x % SIDE;
    return c < 4 ? 4 * tx + c : WIDTH / 2 + 4 * tx + c - 4;
}

/* ------------------------------------------------------------------------------------------------------------- loading */

/* What products read: element d of a row of the tile, or of key `key`; 0 where there is none. */
template <typename real> struct exact_reader {
    const exact_shared<real> *s;
    const fattn_problem *problem;
    const fattn_launch *at;
    const fattn_sequence *seq;
    int head_kv;

    __device__ inline real query(const fattn_view &view, int32_t dtype, long long dim, int r, long long d) const
    {
        if (s->row[r] < 0 || d >= dim)
            return 0;
        return exact_load<real>(fattn_query_row(&view, fattn_dtype_size(dtype), seq, s->head[r], s->row[r]), dtype, d);
    }

    __device__ inline real key(const fattn_view &view, const float *scales, long long dim, long long k, long long d) const
    {
        const int32_t dtype = problem->desc.kv_dtype;
        if (k >= seq->seq_k || d >= dim)
            return 0;
        const void *row = fattn_key_row(problem, at, &view, fattn_dtype_size(dtype), seq, head_kv, k);
        const real x = exact_load<real>(row, dtype, d);
        return dtype == FATTN_I8 ? x * (real)scales[fattn_scale_index(problem, at, seq, head_kv, k)] : x;
    }

    __device__ inline real q(int r, long long d) const
    {
        return query(at->q, problem->desc.dtype, problem->desc.dim, r, d);
    }
    __device__ inline real dout(int r, long long d) const
    {
        return query(at->dout, problem->desc.out_dtype, problem->desc.dim_v, r, d);
    }
    __device__ inline real k(long long key_index, long long d) const
    {
        return key(at->k, at->k_scales, problem->desc.dim, key_index, d);
    }
    __device__ inline real v(long long key_index, long long d) const
    {
        return key(at->v, at->v_scales, problem->desc.dim_v, key_index, d);
    }
};

/* -------------------------------------------------------------------------------------------------------------- scores */

/* What holds for all scores of a call. */
template <typename real> struct exact_scoring {
    real scale, cap, keep; /* keep: 1 / (1 - dropout) */
    real lift, rest;       /* cuda_exact_lift(), scale / lift */
    bool capped, biased, sloped, dropped;
    fattn_dropout dropout;
};

template <typename real> __device__ inline exact_scoring<real> exact_scoring_of(const fattn_problem &problem)
{
    const fattn_desc &d = problem.desc;
    exact_scoring<real> s;
    s.scale = (real)d.scale;
    s.lift = (real)cuda_exact_lift(d.scale);
    s.rest = (real)(d.scale / cuda_exact_lift(d.scale));
    s.cap = (real)d.softcap;
    s.keep = (real)(1 / (1 - d.dropout));
    s.capped = d.softcap != 0;
    s.biased = (d.flags & FATTN_WITH_BIAS) != 0;
    s.sloped = (d.flags & FATTN_WITH_SLOPES) != 0;
    s.dropped = d.dropout != 0;
    s.dropout = fattn_dropout_of(&d);
    return s;
}

/* Turns products q.k of rows 4 ty + i with keys key + 4 tx + j into scores in log2 units, -inf where the row does not keep the
 * key. slope[i][j] becomes 1 - tanh^2, softcap's. */
template <typename real>
__device__ inline void exact_scores(const exact_shared<real> *s, const exact_scoring<real> &how, const fattn_problem &problem,
                                    const fattn_launch &at, const fattn_sequence &seq, long long key, real x[4][4],
                                    real slope[4][4])
{
    const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int r = 4 * ty + i;
        const long long lo = s->lo[r], hi = s->hi[r], row = s->row[r];
        const int h = s->head[r];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const long long k = key + 4 * tx + j;
            slope[i][j] = 1;
            if (k < lo || k >= hi) {
                x[i][j] = -INFINITY;
                continue;
            }
            real score = x[i][j] * how.scale;
            if (how.capped) {
                const real t = exact_tanh(score / how.cap);
                score = how.cap * t;
                slope[i][j] = 1 - t * t;
            }
            if (how.biased)
                score += exact_load<real>(fattn_row(&at.bias, fattn_dtype_size(problem.desc.dtype), seq.b, h, row),
                                          problem.desc.dtype, k);
            if (how.sloped) {
                const long long distance = row + seq.mask.offset - k;
                score -= (real)at.slopes[h] * (real)(distance < 0 ? -distance : distance);
            }
            x[i][j] = score * (real)1.44269504088896340736;
        }
    }
}

/* The factors of dropout on rows 4 ty + i and keys key + 4 tx + j; key is a multiple of 4. */
template <typename real>
__device__ inline void exact_dropout(const exact_shared<real> *s, const exact_scoring<real> &how, const fattn_problem &problem,
                                     const fattn_sequence &seq, long long key, real factor[4][4])
{
    const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t word[FATTN_PHILOX_WORDS];
        if (how.dropped)
            fattn_philox(&how.dropout, (uint32_t)((key + 4 * tx) / FATTN_PHILOX_WORDS), (uint32_t)s->row[4 * ty + i],
                         (uint32_t)(seq.b * problem.desc.heads_q + s->head[4 * ty + i]), word);
#pragma unroll
        for (int j = 0; j < 4; j++)
            factor[i][j] = !how.dropped ? (real)1 : word[j] >= how.dropout.threshold ? how.keep : (real)0;
    }
}

#endif
