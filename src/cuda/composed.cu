/*
 * What the composed baseline does between its products: the softmax and its gradient, rows of the matrices at a time, and the
 * ends of the products, copies to where they can read and a look at what they made.
 *
 *     composed_softmax     S -> P in place, lse, state          a team of threads owns a row
 *     composed_gradient    S, dP -> P, dX in place, state       likewise
 *     composed_copy        a tensor -> contiguous, with zeros for rows that do not exist
 *     composed_look        results that are not finite are computed again, term by term
 *
 * A product multiplies what the mask drops with 0, and 0 times an infinity or a NaN of a key that no row keeps is NaN: so
 * numbers that are not finite are summed once more, over what is kept alone, as the exact kernels do.
 *
 * Only kept keys of a row are read; all of its probabilities are written.
 */
#include "cuda/composed_ends.cuh"
#include "cuda/composed_rows.cuh"

/* ------------------------------------------------------------------------------------------------------------- softmax */

/* Loads a part of a row and turns it to scores; returns the thread's largest. */
template <int TEAM, int QUADS, bool ADJUSTED>
__device__ __forceinline__ float
composed_read(const fattn_problem &problem, const fattn_launch &at, const exact_scoring<float> &how, const composed_row &r,
              const composed_quads &quads, const float *line, int first, composed_part<TEAM, QUADS> *s)
{
    float m = -INFINITY, ignored[4];
    composed_load(r, quads, line, first, s);
#pragma unroll
    for (int quad = 0; quad < QUADS; quad++)
        if (quads.meet(quad)) {
            if (quads.within(quad))
                composed_scores<ADJUSTED>(problem, at, how, r, s->key(first, quad), true, s->x[quad], ignored);
            else
                composed_scores<ADJUSTED>(problem, at, how, r, s->key(first, quad), false, s->x[quad], ignored);
#pragma unroll
            for (int e = 0; e < 4; e++)
                m = fmaxf(m, s->x[quad][e]);
        }
    return m;
}

/* Scores to exp(score - m), 0 where the row does not keep a key; returns the thread's sum. */
template <int TEAM, int QUADS>
__device__ __forceinline__ float composed_raise(const composed_quads &quads, float m, composed_part<TEAM, QUADS> *s)
{
    float l = 0;
#pragma unroll
    for (int quad = 0; quad < QUADS; quad++)
        if (quads.meet(quad)) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                l += s->x[quad][e] = composed_exp(s->x[quad][e], m);
        }
    return l;
}

/* The largest score of some keys of a row, and the sum of exp(score - m). */
struct composed_sums {
    float m, l;
};

__device__ __forceinline__ composed_sums composed_add(composed_sums a, composed_sums b)
{
    const float m = fmaxf(a.m, b.m), finite = composed_finite(m);
    return {m, a.l * composed_exp(a.m, finite) + b.l * composed_exp(b.m, finite)};
}

/* Adds those of a team's warps, in order. Waits until all of the team have come here. */
template <int TEAM> __device__ __forceinline__ composed_sums composed_join(const composed_row &r, composed_sums mine)
{
    __shared__ composed_sums part[2][TEAM / 32]; /* by rows' parity: those of the next may come while these are read */
    if (TEAM == 32) {
        __syncwarp();
        return mine;
    }
    part[r.i & 1][threadIdx.x / 32] = mine;
    __syncthreads();
    composed_sums all = part[r.i & 1][0];
#pragma unroll
    for (int i = 1; i < TEAM / 32; i++)
        all = composed_add(all, part[r.i & 1][i]);
    return all;
}

/* What exp(score - m) is to be multiplied with, and the row's lse. */
__device__ __forceinline__ float composed_finish_sums(const composed_sums &sums, bool has_sink, float sink, float *lse)
{
    *lse = sink;
    if (sums.l == 0)
        return 0;
    const float m = composed_finite(sums.m), above = sink - m;
    const float small = above > 0 ? ptx_exp2(-above * LOG2_E) : 1;
    const float total = sums.l * small + (above > 0 ? 1 : has_sink ? ptx_exp2(above * LOG2_E) : 0);
    *lse = (above > 0 ? sink : m) + logf(total);
    return small / total;
}

/* Powers to probabilities, dropped ones to 0. */
template <int TEAM, int QUADS, bool ADJUSTED>
__device__ __forceinline__ void composed_weigh(const fattn_problem &problem, const exact_scoring<float> &how,
                                               const composed_row &r, const composed_quads &quads, int first, float by,
                                               composed_part<TEAM, QUADS> *s)
{
#pragma unroll
    for (int quad = 0; quad < QUADS; quad++)
        if (quads.meet(quad)) {
            float factor[4] = {by, by, by, by};
            if (ADJUSTED && how.dropped)
                composed_dropout(problem, how, r, s->key(first, quad), by, factor);
#pragma unroll
            for (int e = 0; e < 4; e++)
                s->x[quad][e] *= factor[e];
        }
}

/* A row. Its warps take powers relative to the largest score of their own, and meet once. */
template <int TEAM, int QUADS, bool ADJUSTED>
__device__ __forceinline__ void composed_softmax_row(const fattn_problem &problem, const fattn_launch &at,
                                                     const composed_matrices &matrices, const exact_scoring<float> &how,
                                                     const composed_row &r)
{
    using part = composed_part<TEAM, QUADS>;
    const int keys = (int)problem.desc.seq_k;
    const bool has_sink = (problem.desc.flags & FATTN_WITH_SINKS) != 0, once = keys <= part::KEYS_HELD;
    float *line = matrices.s + r.number * matrices.pitch, lse;
    part s;
    composed_quads quads = composed_quads_of<TEAM>(r, 0);
    composed_sums sums = {-INFINITY, 0};
    for (int first = 0; first < keys && (once || first < r.hi); first += part::KEYS_HELD) {
        quads = composed_quads_of<TEAM>(r, first);
        const float mine = composed_read<TEAM, QUADS, ADJUSTED>(problem, at, how, r, quads, line, first, &s);
        const float m = fmaxf(sums.m, warp_join(mine, [](float a, float b) { return fmaxf(a, b); }));
        const float finite = composed_finite(m);
        sums.l = sums.l * composed_exp(sums.m, finite) + composed_raise(quads, finite, &s);
        sums.m = m;
    }
    sums.l = warp_join(sums.l, [](float a, float b) { return a + b; });
    const composed_sums all = composed_join<TEAM>(r, sums);
    const float m = composed_finite(all.m);
    const float by = composed_finish_sums(all, has_sink, has_sink ? at.sinks[r.h] : -INFINITY, &lse) * matrices.shift;
    for (int first = 0; first < keys; first += part::KEYS_HELD) {
        if (!once) {
            quads = composed_quads_of<TEAM>(r, first);
            composed_read<TEAM, QUADS, ADJUSTED>(problem, at, how, r, quads, line, first, &s);
            composed_raise(quads, m, &s);
            team_wait<TEAM>(); /* probabilities lie where scores of this part or an earlier one were */
        }
        composed_weigh<TEAM, QUADS, ADJUSTED>(problem, how, r, quads, first, once ? by * composed_exp(sums.m, m) : by, &s);
        composed_store(problem, s, line, first);
    }
    if (team_rank<TEAM>() == 0) {
        matrices.state[r.number] = all.l == 0 ? -INFINITY : 0;
        if (at.lse && r.exists)
            ((float *)at.lse)[composed_lse_index(r)] = lse;
    }
}

template <int TEAM, int QUADS, bool ADJUSTED>
__device__ __forceinline__ void composed_softmax(const fattn_problem &problem, const fattn_launch &at,
                                                 const composed_matrices &matrices)
{
    const exact_scoring<float> how = exact_scoring_of<float>(problem);
    composed_rows<TEAM>(problem, at, matrices, [&](const composed_row &r) {
        composed_softmax_row<TEAM, QUADS, ADJUSTED>(problem, at, matrices, how, r);
    });
}

/* ------------------------------------------------------------------------------------------------------------ gradient */

/* Products and dP of a quad that meets the row to P and dX. */
template <bool ADJUSTED>
__device__ __forceinline__ void composed_gradients(const fattn_problem &problem, const fattn_launch &at,
                                                   const exact_scoring<float> &how, const composed_row &r, float lse,
                                                   float delta, int key, bool within, float s[4], float dp[4])
{
    float slope[4], chosen[4];
    composed_scores<ADJUSTED>(problem, at, how, r, key, within, s, slope);
    if (ADJUSTED && how.dropped)
        composed_dropout(problem, how, r, key, 1, chosen);
#pragma unroll
    for (int e = 0; e < 4; e++) {
        const bool kept = within || (key + e >= r.lo && key + e < r.hi), dropped = ADJUSTED && how.dropped;
        const float p = composed_exp(s[e], lse);
        const float ds = p * ((dropped ? how.keep * chosen[e] * dp[e] : dp[e]) - delta);
        s[e] = kept ? dropped ? p * chosen[e] : p : 0;
        dp[e] = kept ? (ADJUSTED ? ds * slope[e] : ds) * how.lift : 0;
    }
}

template <int TEAM, int QUADS, bool ADJUSTED>
__device__ __forceinline__ void composed_gradient_row(const fattn_problem &problem, const fattn_launch &at,
                                                      const composed_matrices &matrices, const exact_scoring<float> &how,
                                                      composed_row r)
{
    using part = composed_part<TEAM, QUADS>;
    float *line = matrices.s + r.number * matrices.pitch, *gradients = matrices.dp + r.number * matrices.pitch;
    const float lse = r.exists ? ((const float *)at.lse)[composed_lse_index(r)] : -INFINITY;
    const float delta = r.exists ? matrices.delta[composed_lse_index(r)] : 0;
    if (lse == -INFINITY) /* no score above -inf: no gradients */
        r.lo = r.hi = 0;
    for (int first = 0; first < problem.desc.seq_k; first += part::KEYS_HELD) {
        const composed_quads quads = composed_quads_of<TEAM>(r, first);
        part s, dp;
        composed_load(r, quads, line, first, &s);
        composed_load(r, quads, gradients, first, &dp);
#pragma unroll
        for (int quad = 0; quad < QUADS; quad++)
            if (quads.meet(quad)) {
                const int key = s.key(first, quad);
                if (quads.within(quad))
                    composed_gradients<ADJUSTED>(problem, at, how, r, lse, delta, key, true, s.x[quad], dp.x[quad]);
                else
                    composed_gradients<ADJUSTED>(problem, at, how, r, lse, delta, key, false, s.x[quad], dp.x[quad]);
            }
        team_wait<TEAM>(); /* results lie where these numbers were, of this part or an earlier one */
        composed_store(problem, s, line, first);
        composed_store(problem, dp, gradients, first);
    }
    if (team_rank<TEAM>() == 0)
        matrices.state[r.number] = r.lo < r.hi ? 0 : -INFINITY;
}

template <int TEAM, int QUADS, bool ADJUSTED>
__device__ __forceinline__ void composed_gradient(const fattn_problem &problem, const fattn_launch &at,
                                                  const composed_matrices &matrices)
{
    const exact_scoring<float> how = exact_scoring_of<float>(problem);
    composed_rows<TEAM>(problem, at, matrices, [&](const composed_row &r) {
        composed_gradient_row<TEAM, QUADS, ADJUSTED>(problem, at, matrices, how, r);
    });
}

/* ------------------------------------------------------------------------------------------------------------- kernels */

#define PROBLEM                 const __grid_constant__ fattn_problem problem, const __grid_constant__ fattn_launch at
#define KERNEL(threads, blocks) extern "C" __global__ void __launch_bounds__(threads, blocks)
#define ROWS_OF(kernel, name, threads, blocks, team, adjusted)                                                                 \
    KERNEL(threads, blocks) composed_##kernel##_##name(PROBLEM, const __grid_constant__ composed_matrices matrices)            \
    {                                                                                                                          \
        composed_##kernel<team, 8, adjusted>(problem, at, matrices);                                                           \
    }

static_assert(composed_part<32, 8>::KEYS_HELD == COMPOSED_WARP_KEYS, "composed.h says which rows a warp takes");

ROWS_OF(softmax, warp, THREADS, 3, 32, false)
ROWS_OF(softmax, warp_adjusted, THREADS, 2, 32, true)
ROWS_OF(softmax, block, COMPOSED_BLOCK_THREADS, 6, COMPOSED_BLOCK_THREADS, false)
ROWS_OF(softmax, block_adjusted, COMPOSED_BLOCK_THREADS, 4, COMPOSED_BLOCK_THREADS, true)
ROWS_OF(gradient, warp, THREADS, 2, 32, false)
ROWS_OF(gradient, warp_adjusted, THREADS, 2, 32, true)
ROWS_OF(gradient, block, COMPOSED_BLOCK_THREADS, 4, COMPOSED_BLOCK_THREADS, false)
ROWS_OF(gradient, block_adjusted, COMPOSED_BLOCK_THREADS, 4, COMPOSED_BLOCK_THREADS, true)

KERNEL(THREADS, 2) composed_copy_rows(PROBLEM, const __grid_constant__ composed_copy c)
{
    composed_move(problem, at, c);
}

KERNEL(THREADS, 2)
composed_look_at(PROBLEM, const __grid_constant__ composed_matrices matrices, const __grid_constant__ composed_result result)
{
    composed_look(problem, at, matrices, result);
}
