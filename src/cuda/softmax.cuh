/*
 * What forward kernels on the tensor cores make of products: scores, probabilities, and sums.
 *
 * Scores have the shape of the accumulator of m16n8k16, s[m-tile][n-tile of 8 keys][4]. S, the sizes of a kernel, has m_tiles,
 * keys of a tile and width, the columns of values. U, its unit, has problem, at, seq, lane (places of its rows), k_factor and
 * v_factor ([stage][keys], of bytes) and warp_row(), the first row of the warp.
 */
#ifndef FATTN_CUDA_SOFTMAX_CUH
#define FATTN_CUDA_SOFTMAX_CUH

#include "cuda/alone.cuh"

/* ------------------------------------------------------------------------------------------------------------- softmax */

/* Row of the unit that element e of m-tile m belongs to, and key of the tile, n-tile n. */
template <class U> __device__ __forceinline__ int row_of(const U &u, int m, int e)
{
    return u.warp_row() + 16 * m + threadIdx.x % 32 / 4 + e / 2 * 8;
}

__device__ __forceinline__ int key_of(int n, int e)
{
    return 8 * n + threadIdx.x % 4 * 2 + e % 2;
}

/* -inf where a row does not keep a key. */
template <class S, class U>
__device__ __forceinline__ void drop_keys(const U &u, long long key, float s[S::m_tiles][S::keys / 8][4])
{
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const lane_place &lane = u.lane[row_of(u, m, 2 * half)];
            const int lo = (int)min(max(lane.lo - key, 0LL), (long long)S::keys);
            const int hi = (int)min(max(lane.hi - key, 0LL), (long long)S::keys);
#pragma unroll
            for (int n = 0; n < S::keys / 8; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++)
                    if (key_of(n, e) < lo || key_of(n, e) >= hi)
                        s[m][n][e] = -INFINITY;
        }
}

/* Products become scores in log2 units. */
template <class S, class U>
__device__ inline void adjust_scores(const U &u, const scoring &how, long long key, int stage,
                                     float s[S::m_tiles][S::keys / 8][4])
{
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const lane_place &lane = u.lane[row_of(u, m, 2 * half)];
            const fattn_desc &d = u.problem->desc;
            const void *bias = how.biased && lane.row >= 0
                                   ? fattn_row(&u.at->bias, fattn_dtype_size(d.dtype), u.seq.b, lane.head, lane.row)
                                   : NULL;
            const float slope = how.sloped ? u.at->slopes[lane.head] : 0.0f;
#pragma unroll
            for (int n = 0; n < S::keys / 8; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) {
                    const long long k = key + key_of(n, e);
                    float x = s[m][n][e] * how.scale;
                    if (how.bytes)
                        x *= u.k_factor[stage * S::keys + key_of(n, e)];
                    if (how.capped)
                        x = how.cap * tanhf(x / how.cap);
                    if (bias && k < u.seq.seq_k)
                        x += load_number(bias, d.dtype, k);
                    if (how.sloped) {
                        const long long distance = lane.row + u.seq.mask.offset - k;
                        x -= slope * (float)(distance < 0 ? -distance : distance);
                    }
                    s[m][n][e] = x * (float)LOG2E;
                }
        }
}

/* What dropout and the factors of bytes make of probabilities, once they are summed. */
template <class S, class U>
__device__ inline void weigh(const U &u, const scoring &how, long long key, int stage, float p[S::m_tiles][S::keys / 8][4])
{
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const lane_place &lane = u.lane[row_of(u, m, 2 * half)];
            const uint32_t list = (uint32_t)(u.seq.b * u.problem->desc.heads_q + lane.head);
#pragma unroll
            for (int n = 0; n < S::keys / 8; n++) {
                uint32_t word[FATTN_PHILOX_WORDS];
                const long long k = key + key_of(n, 2 * half);
                if (how.dropped)
                    fattn_philox(&how.dropout, (uint32_t)(k / FATTN_PHILOX_WORDS), (uint32_t)lane.row, list, word);
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) {
                    if (how.bytes)
                        p[m][n][e] *= u.v_factor[stage * S::keys + key_of(n, e)];
                    if (how.dropped) {
                        const uint32_t own = threadIdx.x % 2 ? word[2 + e % 2] : word[e % 2];
                        p[m][n][e] *= own >= how.dropout.threshold ? how.keep : 0.0f;
                    }
                }
            }
        }
}

/* Sums of a warp's rows; each thread has two rows of an m-tile, and l of its own keys only. */
template <class S> struct row_sums {
    float o[S::m_tiles][S::width / 8][4];
    float m[S::m_tiles][2], l[S::m_tiles][2]; /* m: the largest score, before it is multiplied with c */
};

constexpr float FAR = 1 << 20; /* log2 units from which on a score times c, rounded, may be far from itself */

/* Scores become probabilities, and what is there already refers to the new maximum. Near 0 the reference is the maximum times
 * c, rounded, the same number wherever it is used, so that rounding it does no harm. Far from 0 it would lie so far from the
 * scores that powers leave the range: there it is the product itself. halves: 1 if no m-tile has more than 8 rows. */
template <class S>
__device__ __forceinline__ void softmax(row_sums<S> *sum, const scoring &how, float s[S::m_tiles][S::keys / 8][4],
                                        int halves = 2)
{
    const float c = how.c;
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            if (half >= halves)
                break;
            float most = sum->m[m][half], before = most;
#pragma unroll
            for (int n = 0; n < S::keys / 8; n++)
                most = fmaxf(most, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            const float from = most == -INFINITY ? 0.0f : __fmul_rn(most, c);
            const float last = __fmul_rn(before, c), shifted = from - how.shift;
            const bool near_last = fabsf(last) < FAR;
            float correction;
            float l = 0;
            sum->m[m][half] = most;
            if (fabsf(from) < FAR) {
                correction = ptx_exp2(near_last ? last - from : fmaf(before, c, -from));
#pragma unroll
                for (int n = 0; n < S::keys / 8; n++)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; e++)
                        s[m][n][e] = ptx_exp2(fmaf(s[m][n][e], c, -shifted));
            } else {
                correction = ptx_exp2((before - most) * c - (near_last ? fmaf(before, c, -last) : 0.0f));
#pragma unroll
                for (int n = 0; n < S::keys / 8; n++)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; e++)
                        s[m][n][e] = ptx_exp2(fmaf(s[m][n][e] - most, c, how.shift));
            }
#pragma unroll
            for (int n = 0; n < S::keys / 8; n++)
                l += s[m][n][2 * half] + s[m][n][2 * half + 1];
            sum->l[m][half] = sum->l[m][half] * correction + l;
            if (__any_sync(0xffffffffu, correction != 1)) { /* a maximum moved: rare once there are many keys */
#pragma unroll
                for (int n = 0; n < S::width / 8; n++) {
                    sum->o[m][n][2 * half] *= correction;
                    sum->o[m][n][2 * half + 1] *= correction;
                }
            }
        }
}

/* --------------------------------------------------------------------------------------------------------- end of rows */

/* row_alone, not inlined: what gets an address of something would keep it out of registers, so it takes copies. */
template <int width>
__device__ __noinline__ void row_apart(const fattn_problem *problem, const fattn_launch *at, long long b, long long column,
                                       lane_place lane)
{
    row_alone<width>(*problem, *at, b, column, lane);
}

#endif
