/*
 * Rows of the composed baseline's matrices, as teams of threads own them: where a row stands, what a thread holds of it, and
 * how its numbers become scores.
 */
#ifndef FATTN_CUDA_COMPOSED_ROWS_CUH
#define FATTN_CUDA_COMPOSED_ROWS_CUH

#include "cuda/composed.h"
#include "cuda/exact.cuh"
#include "cuda/ptx.cuh"

static_assert(THREADS == COMPOSED_THREADS, "exact.cuh's blocks are as large");

constexpr float LOG2_E = 1.44269504088896340736f;
constexpr int STRETCH = 128; /* keys of a warp's quads */

/* --------------------------------------------------------------------------------------------------------------- teams */

/* A row's threads: the lanes of a warp, or a block. */
template <int TEAM> __device__ __forceinline__ int team_rank()
{
    return threadIdx.x % TEAM;
}

template <int TEAM> __device__ __forceinline__ void team_wait()
{
    if (TEAM == 32)
        __syncwarp();
    else
        __syncthreads();
}

/* Over a warp; every lane gets it. */
template <class Join> __device__ __forceinline__ float warp_join(float x, Join join)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        x = join(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

/* ---------------------------------------------------------------------------------------------------------------- rows */

/* Row (h, i) of a sequence, and keys lo .. hi - 1 that it keeps. */
struct composed_row {
    fattn_sequence seq;
    long long number, i;
    int h, lo, hi;
    bool exists;
};

/* Row i of list b heads_q + h. Rows of one list share what takes most of the time to find. */
__device__ __forceinline__ composed_row composed_list_of(const fattn_problem &problem, const fattn_launch &at, unsigned list)
{
    const unsigned heads = (unsigned)problem.desc.heads_q;
    composed_row r;
    r.seq = fattn_sequence_of(&problem, &at, list / heads);
    r.h = (int)(list % heads);
    return r;
}

__device__ __forceinline__ void composed_set_row(const fattn_problem &problem, unsigned list, long long i, composed_row *r)
{
    r->i = i;
    r->number = list * problem.desc.seq_q + i;
    r->exists = i < r->seq.seq_q;
    const fattn_interval keep = r->exists ? fattn_mask_row(&r->seq.mask, i) : fattn_interval{0, 0};
    r->lo = (int)keep.lo;
    r->hi = (int)keep.hi;
}

__device__ __forceinline__ composed_row composed_row_of(const fattn_problem &problem, const fattn_launch &at, long long number)
{
    const unsigned list = (unsigned)number / (unsigned)problem.desc.seq_q;
    composed_row r = composed_list_of(problem, at, list);
    composed_set_row(problem, list, number - list * problem.desc.seq_q, &r);
    return r;
}

__device__ __forceinline__ long long composed_lse_index(const composed_row &r)
{
    return r.seq.lse_first + r.h * r.seq.lse_head + r.i;
}

/* Calls take(row) for each row of a team. A block has COMPOSED_TEAM_ROWS rows of one list for each of its teams. */
template <int TEAM, class Take>
__device__ __forceinline__ void composed_rows(const fattn_problem &problem, const fattn_launch &at,
                                              const composed_matrices &matrices, Take take)
{
    const int teams = blockDim.x / TEAM;
    const unsigned list = blockIdx.x / (unsigned)matrices.tiles, tile = blockIdx.x % (unsigned)matrices.tiles;
    composed_row r = composed_list_of(problem, at, list);
    for (int n = 0; n < COMPOSED_TEAM_ROWS; n++) {
        const long long i = ((long long)tile * COMPOSED_TEAM_ROWS + n) * teams + threadIdx.x / TEAM;
        if (i >= problem.desc.seq_q)
            return;
        composed_set_row(problem, list, i, &r);
        take(r);
    }
}

/* What the threads of a team hold of a row, from key `first` on: QUADS times four keys in a row, those of the next lane behind
 * them. So a warp's keys of one quad are a stretch of 128, and what the mask makes of it is a branch that all of its lanes
 * take. */
template <int TEAM, int QUADS> struct composed_part {
    float x[QUADS][4];

    static constexpr int KEYS_HELD = 4 * TEAM * QUADS;

    __device__ static __forceinline__ int key(int first, int quad)
    {
        return first + 4 * (team_rank<TEAM>() + TEAM * quad);
    }
};

/* Quads whose stretches the row meets, from .. to - 1, and those that lie within what it keeps. */
struct composed_quads {
    int from, to, within_from, within_to;

    __device__ __forceinline__ bool meet(int quad) const
    {
        return quad >= from && quad < to;
    }
    __device__ __forceinline__ bool within(int quad) const
    {
        return quad >= within_from && quad < within_to;
    }
};

template <int TEAM> __device__ __forceinline__ composed_quads composed_quads_of(const composed_row &r, int first)
{
    constexpr int BITS = TEAM == 32 ? 7 : 9; /* from a stretch to the warp's next: 4 TEAM keys; shifts round down */
    static_assert(1 << BITS == 4 * TEAM, "");
    const int base = first + 4 * (team_rank<TEAM>() / 32 * 32), last = (1 << BITS) - 1;
    return {(r.lo - STRETCH - base >> BITS) + 1, r.hi - base + last >> BITS, r.lo - base + last >> BITS,
            (r.hi - STRETCH - base >> BITS) + 1};
}

/* The numbers of stretches that the row meets, all loads at once. Lines have whole quads. */
template <int TEAM, int QUADS>
__device__ __forceinline__ void composed_load(const composed_row &r, const composed_quads &quads, const float *line, int first,
                                              composed_part<TEAM, QUADS> *part)
{
    const float4 *from = (const float4 *)(line + part->key(first, 0));
#pragma unroll
    for (int quad = 0; quad < QUADS; quad++) {
        float4 four = make_float4(0, 0, 0, 0);
        if (quads.meet(quad) && part->key(first, quad) < r.hi)
            four = from[TEAM * quad];
        part->x[quad][0] = four.x, part->x[quad][1] = four.y, part->x[quad][2] = four.z, part->x[quad][3] = four.w;
    }
}

/* Writes the keys that there are, in the inputs' type. */
template <int TEAM, int QUADS, class Narrow>
__device__ __forceinline__ void composed_store_narrow(const composed_part<TEAM, QUADS> &part, void *line, int first, int keys,
                                                      Narrow type)
{
    uint2 *to = (uint2 *)line + part.key(first, 0) / 4;
#pragma unroll
    for (int quad = 0; quad < QUADS; quad++)
        if (part.key(first, quad) < keys)
            to[TEAM * quad] =
                make_uint2(ptx_pack(part.x[quad][0], part.x[quad][1], type), ptx_pack(part.x[quad][2], part.x[quad][3], type));
}

template <int TEAM, int QUADS>
__device__ __forceinline__ void composed_store(const fattn_problem &problem, const composed_part<TEAM, QUADS> &part, void *line,
                                               int first)
{
    const int keys = (int)problem.desc.seq_k;
    if (problem.desc.dtype == FATTN_BF16)
        return composed_store_narrow(part, line, first, keys, __nv_bfloat16());
    if (problem.desc.dtype == FATTN_F16)
        return composed_store_narrow(part, line, first, keys, __half());
    float4 *to = (float4 *)line + part.key(first, 0) / 4;
#pragma unroll
    for (int quad = 0; quad < QUADS; quad++)
        if (part.key(first, quad) < keys)
            to[TEAM * quad] = make_float4(part.x[quad][0], part.x[quad][1], part.x[quad][2], part.x[quad][3]);
}

/* q.k of key k to its score; *slope: 1 - tanh^2, softcap's. */
template <bool ADJUSTED>
__device__ __forceinline__ float composed_score(const fattn_problem &problem, const fattn_launch &at,
                                                const exact_scoring<float> &how, const composed_row &r, int k, float x,
                                                float *slope)
{
    x *= how.scale;
    *slope = 1;
    if (!ADJUSTED)
        return x;
    if (how.capped) {
        const float t = tanhf(x / how.cap);
        x = how.cap * t;
        *slope = 1 - t * t;
    }
    if (how.biased)
        x += exact_load<float>(fattn_row(&at.bias, fattn_dtype_size(problem.desc.dtype), r.seq.b, r.h, r.i), problem.desc.dtype,
                               k);
    if (how.sloped) {
        const long long distance = r.i + r.seq.mask.offset - k;
        x -= at.slopes[r.h] * (float)(distance < 0 ? -distance : distance);
    }
    return x;
}

/* Products of a quad to scores, -inf where the row does not keep a key. */
template <bool ADJUSTED>
__device__ __forceinline__ void composed_scores(const fattn_problem &problem, const fattn_launch &at,
                                                const exact_scoring<float> &how, const composed_row &r, int key, bool within,
                                                float x[4], float slope[4])
{
#pragma unroll
    for (int e = 0; e < 4; e++)
        if (within || (key + e >= r.lo && key + e < r.hi))
            x[e] = composed_score<ADJUSTED>(problem, at, how, r, key + e, x[e], &slope[e]);
        else
            x[e] = -INFINITY, slope[e] = 1;
}

/* dropout's factors of keys key .. key + 3: `kept` or 0. */
__device__ __forceinline__ void composed_dropout(const fattn_problem &problem, const exact_scoring<float> &how,
                                                 const composed_row &r, int key, float kept, float factor[4])
{
    uint32_t word[FATTN_PHILOX_WORDS];
    fattn_philox(&how.dropout, (uint32_t)(key / FATTN_PHILOX_WORDS), (uint32_t)r.i,
                 (uint32_t)(r.seq.b * problem.desc.heads_q + r.h), word);
#pragma unroll
    for (int e = 0; e < FATTN_PHILOX_WORDS; e++)
        factor[e] = word[e] >= how.dropout.threshold ? kept : 0;
}

/* exp(x - m), m being finite where x is -inf. The difference is taken first: far scores are as exact as near ones. */
__device__ __forceinline__ float composed_exp(float x, float m)
{
    return ptx_exp2((x - m) * LOG2_E);
}

__device__ __forceinline__ float composed_finite(float m)
{
    return m == -INFINITY ? 0 : m;
}

#endif
