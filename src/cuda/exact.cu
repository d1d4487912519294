/*
 * The exact kernels: every problem that the header describes, on every GPU, by FMA in float (double for FATTN_F64).
 *
 * Forward    a unit is 64 rows of one key/value head's queries against all keys that they keep, for WIDTH columns of values:
 *            online softmax over tiles of 64 keys (Milakov and Gimelshein 2018; FlashAttention-2, Dao 2023, algorithm 1).
 * Backward   D = rowsum(dO o O) - dlse first, then a kernel that owns rows (dQ) and one that owns keys (dK, dV): each element
 * is the sum of one thread in a fixed order, so results are the same bits in every run. dbias and dsinks have theirs.
 *
 * Who writes what: forward's unit its rows' out (and lse, where it has the first columns); likewise dQ's unit; dK's and dV's
 * unit its keys.
 */
#include "exact.cuh"

/* ------------------------------------------------------------------------------------------------------------- forward */

/* Where a unit stands: (sequence, key/value head, columns, tile), tiles fastest. */
struct exact_unit {
    long long b, first, column; /* first row or key; first column */
    int head_kv;
};

__device__ inline exact_unit exact_unit_of(const fattn_problem &problem, long long tiles, long long widths)
{
    exact_unit u;
    long long unit = blockIdx.x;
    u.first = unit % tiles * ROWS;
    unit /= tiles;
    u.column = unit % widths * WIDTH;
    unit /= widths;
    u.head_kv = (int)(unit % problem.desc.heads_kv);
    u.b = unit / problem.desc.heads_kv;
    return u;
}

__device__ inline float exact_max(float a, float b)
{
    return fmaxf(a, b);
}
__device__ inline double exact_max(double a, double b)
{
    return fmax(a, b);
}

/* Over the 16 threads that share rows. */
template <typename real> __device__ inline real exact_across_max(real x)
{
#pragma unroll
    for (int step = SIDE / 2; step > 0; step /= 2)
        x = exact_max(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

template <typename real> __device__ inline real exact_across_sum(real x)
{
#pragma unroll
    for (int step = SIDE / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

template <typename real> struct exact_rows_sum {
    real o[4][8], m[4], l[4]; /* m: the largest score, in log2 units, -inf before there is one; l: of the thread's own keys */
};

/* One pass over the keys. careful: leaves out values of keys that a row does not keep. */
template <typename real, bool careful>
__device__ inline void exact_forward_pass(exact_shared<real> *s, const fattn_problem &problem, const fattn_launch &at,
                                          const fattn_sequence &seq, const exact_unit &u, exact_rows_sum<real> *sum)
{
    const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
    const exact_scoring<real> how = exact_scoring_of<real>(problem);
    const exact_reader<real> read = {s, &problem, &at, &seq, u.head_kv};
    const fattn_interval span = exact_span(s);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        sum->m[i] = -INFINITY;
        sum->l[i] = 0;
#pragma unroll
        for (int c = 0; c < 8; c++)
            sum->o[i][c] = 0;
    }
    for (long long key = span.lo / KEYS * KEYS; key < span.hi; key += KEYS) {
        real x[4][4] = {}, slope[4][4], factor[4][4];
        exact_rows_product(
            s, x, problem.desc.dim, [&](int r, long long d) { return read.q(r, d); },
            [&](int r, long long d) { return read.k(key + r, d); });
        exact_scores(s, how, problem, at, seq, key, x, slope);
        exact_dropout(s, how, problem, seq, key, factor);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            real most = exact_max(exact_max(x[i][0], x[i][1]), exact_max(x[i][2], x[i][3]));
            most = exact_max(sum->m[i], exact_across_max(most));
            const real correction = most == -INFINITY ? (real)1 : exact_exp2(sum->m[i] - most);
            sum->m[i] = most;
            sum->l[i] *= correction;
#pragma unroll
            for (int c = 0; c < 8; c++)
                sum->o[i][c] *= correction;
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const real p = x[i][j] == -INFINITY ? (real)0 : exact_exp2(x[i][j] - most);
                sum->l[i] += p;
                s->left[4 * tx + j][4 * ty + i] = p * factor[i][j];
            }
        }
        exact_weighted_sum(
            s, sum->o, [&](int r, int c) { return read.v(key + r, u.column + c); },
            [&](int k, int r) { return careful && (key + k < s->lo[r] || key + k >= s->hi[r]); });
        __syncthreads();
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        sum->l[i] = exact_across_sum(sum->l[i]);
}

/* Divides a row's sums, with its sink, and writes out and lse. */
template <typename real>
__device__ inline void exact_forward_row(const exact_shared<real> *s, const fattn_problem &problem, const fattn_launch &at,
                                         const fattn_sequence &seq, const exact_unit &u, const exact_rows_sum<real> *sum, int i)
{
    const int r = 4 * (threadIdx.x / SIDE) + i, h = s->head[r];
    const fattn_desc &d = problem.desc;
    if (s->row[r] < 0)
        return;
    const bool has_sink = (d.flags & FATTN_WITH_SINKS) != 0;
    const double sink = has_sink ? (double)at.sinks[h] : -(double)INFINITY, l = (double)sum->l[i], m = (double)sum->m[i];
    double by = 0, lse = sink;
    if (l != 0) { /* NaN too */
        const double above = sink * 1.4426950408889634 - m;
        const double small = above > 0 ? exp2(-above) : 1, total = l * small + (above > 0 ? 1 : has_sink ? exp2(above) : 0);
        by = small / total;
        lse = above > 0 ? log(total) + sink : log(total) + m * 0.69314718055994531;
    }
    if (at.lse && u.column == 0 && threadIdx.x % SIDE == 0)
        ((real *)at.lse)[seq.lse_first + h * seq.lse_head + s->row[r]] = (real)lse;
    void *out = fattn_query_row(&at.out, fattn_dtype_size(d.out_dtype), &seq, h, s->row[r]);
#pragma unroll
    for (int c = 0; c < 8; c++)
        if (u.column + exact_column(c) < d.dim_v)
            exact_store(out, d.out_dtype, u.column + exact_column(c), l == 0 ? (real)0 : (real)(sum->o[i][c] * (real)by));
}

template <typename real> __device__ inline bool exact_finite(const real acc[4][8])
{
    bool finite = true;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int c = 0; c < 8; c++)
            finite = finite && acc[i][c] - acc[i][c] == 0;
    return finite;
}

template <typename real>
__device__ inline void exact_forward(const fattn_problem &problem, const fattn_launch &at, long long tiles, long long widths)
{
    extern __shared__ __align__(16) unsigned char shared[];
    exact_shared<real> *s = (exact_shared<real> *)shared;
    const exact_unit u = exact_unit_of(problem, tiles, widths);
    const fattn_sequence seq = fattn_sequence_of(&problem, &at, u.b);
    if (u.first >= (long long)problem.group * seq.seq_q)
        return;
    exact_rows_sum<real> sum;
    exact_set_rows<real>(s, at, seq, {(int)(u.head_kv * problem.group), (int)problem.group}, u.first, NULL);
    exact_forward_pass<real, false>(s, problem, at, seq, u, &sum);
    if (__syncthreads_or(!exact_finite(sum.o)))
        exact_forward_pass<real, true>(s, problem, at, seq, u, &sum);
#pragma unroll
    for (int i = 0; i < 4; i++)
        exact_forward_row(s, problem, at, seq, u, &sum, i);
}

/* ------------------------------------------------------------------------------------------------------------ backward */

/* P and dS of rows 4 ty + i and keys key + 4 tx + j: p is what dV is weighted with, ds the gradient of the score, dx that of
 * rest q.k, with the scale's rest. Exactly 0 where a row does not keep a key. */
template <typename real> struct exact_gradients {
    real p[4][4], ds[4][4], dx[4][4];
};

template <typename real>
__device__ inline void exact_gradients_of(exact_shared<real> *s, const exact_reader<real> &read, const exact_scoring<real> &how,
                                          long long key, exact_gradients<real> *g)
{
    const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
    real x[4][4] = {}, dp[4][4] = {}, slope[4][4], factor[4][4];
    exact_rows_product(
        s, x, read.problem->desc.dim, [&](int r, long long d) { return read.q(r, d); },
        [&](int r, long long d) { return read.k(key + r, d); });
    exact_rows_product(
        s, dp, read.problem->desc.dim_v, [&](int r, long long d) { return read.dout(r, d); },
        [&](int r, long long d) { return read.v(key + r, d); });
    exact_scores(s, how, *read.problem, *read.at, *read.seq, key, x, slope);
    exact_dropout(s, how, *read.problem, *read.seq, key, factor);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int r = 4 * ty + i;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const long long k = key + 4 * tx + j;
            const bool kept = k >= s->lo[r] && k < s->hi[r];
            const real p = kept ? exact_exp2(x[i][j] - s->lse[r]) : (real)0;
            g->p[i][j] = p * factor[i][j];
            g->ds[i][j] = kept ? p * (factor[i][j] * dp[i][j] - s->delta[r]) : (real)0;
            g->dx[i][j] = g->ds[i][j] * slope[i][j] * how.lift;
        }
    }
}

template <typename real>
__device__ inline void exact_store_row(void *row, int32_t dtype, long long column, long long dim, const real acc[8], real by)
{
#pragma unroll
    for (int c = 0; c < 8; c++)
        if (column + exact_column(c) < dim)
            exact_store(row, dtype, column + exact_column(c), acc[c] * by);
}

/* D of row (b, h, i), which a warp computes; blockDim.x / 32 rows to a block. */
template <typename real> __device__ inline void exact_delta(const fattn_problem &problem, const fattn_launch &at, real *delta)
{
    const fattn_desc &d = problem.desc;
    const long long unit = (long long)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const long long i = unit % d.seq_q, h = unit / d.seq_q % d.heads_q, b = unit / d.seq_q / d.heads_q;
    if (b >= d.batch)
        return;
    const fattn_sequence seq = fattn_sequence_of(&problem, &at, b);
    if (i >= seq.seq_q)
        return;
    const size_t size = fattn_dtype_size(d.out_dtype);
    const void *out = fattn_query_row(&at.out, size, &seq, h, i), *dout = fattn_query_row(&at.dout, size, &seq, h, i);
    double sum = 0;
    for (long long c = threadIdx.x % 32; c < d.dim_v; c += 32)
        sum += exact_load<double>(out, d.out_dtype, c) * exact_load<double>(dout, d.out_dtype, c);
    for (int step = 16; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const long long index = seq.lse_first + h * seq.lse_head + i;
    if (d.flags & FATTN_WITH_DLSE)
        sum -= (double)((const real *)at.dlse)[index];
    if (threadIdx.x % 32 == 0)
        delta[index] = (real)sum;
}

template <typename real, bool careful>
__device__ inline void exact_queries_pass(exact_shared<real> *s, const exact_reader<real> &read, const exact_scoring<real> &how,
                                          long long column, real acc[4][8])
{
    const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
    const fattn_interval span = exact_span(s);
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int c = 0; c < 8; c++)
            acc[i][c] = 0;
    for (long long key = span.lo / KEYS * KEYS; key < span.hi; key += KEYS) {
        exact_gradients<real> g;
        exact_gradients_of(s, read, how, key, &g);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                s->left[4 * tx + j][4 * ty + i] = g.dx[i][j];
        exact_weighted_sum(
            s, acc, [&](int r, int c) { return read.k(key + r, column + c); },
            [&](int k, int r) { return careful && (key + k < s->lo[r] || key + k >= s->hi[r]); });
        __syncthreads();
    }
}

/* dQ of ROWS rows, WIDTH columns. */
template <typename real>
__device__ inline void exact_queries(const fattn_problem &problem, const fattn_launch &at, const real *delta, long long tiles,
                                     long long widths)
{
    extern __shared__ __align__(16) unsigned char shared[];
    exact_shared<real> *s = (exact_shared<real> *)shared;
    const fattn_desc &d = problem.desc;
    const exact_unit u = exact_unit_of(problem, tiles, widths);
    const fattn_sequence seq = fattn_sequence_of(&problem, &at, u.b);
    if (u.first >= (long long)problem.group * seq.seq_q)
        return;
    const exact_scoring<real> how = exact_scoring_of<real>(problem);
    const exact_reader<real> read = {s, &problem, &at, &seq, u.head_kv};
    real acc[4][8];
    exact_set_rows<real>(s, at, seq, {(int)(u.head_kv * problem.group), (int)problem.group}, u.first, delta);
    exact_queries_pass<real, false>(s, read, how, u.column, acc);
    if (__syncthreads_or(!exact_finite(acc)))
        exact_queries_pass<real, true>(s, read, how, u.column, acc);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int r = 4 * (threadIdx.x / SIDE) + i;
        if (s->row[r] >= 0)
            exact_store_row(fattn_query_row(&at.dq, fattn_dtype_size(d.grad_dtype), &seq, s->head[r], s->row[r]), d.grad_dtype,
                            u.column, d.dim, acc[i], how.rest);
    }
}

/* Sums over all rows of a key/value head's query heads, tile by tile. */
template <typename real, bool careful>
__device__ inline void exact_keys_pass(exact_shared<real> *s, const exact_reader<real> &read, const exact_scoring<real> &how,
                                       const real *delta, const exact_unit &u, real dk[4][8], real dv[4][8])
{
    const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
    const long long group = read.problem->group, key = u.first;
    const auto drop = [&](int row, int k) { return careful && (key + k < s->lo[row] || key + k >= s->hi[row]); };
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int c = 0; c < 8; c++)
            dk[i][c] = dv[i][c] = 0;
    for (long long first = 0; first < group * read.seq->seq_q; first += ROWS) {
        exact_gradients<real> g;
        exact_set_rows<real>(s, *read.at, *read.seq, {(int)(u.head_kv * group), (int)group}, first, delta);
        const fattn_interval span = exact_span(s);
        if (span.hi <= key || span.lo >= key + KEYS)
            continue;
        exact_gradients_of(s, read, how, key, &g);
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                s->left[4 * ty + i][4 * tx + j] = g.p[i][j];
        exact_weighted_sum(
            s, dv, [&](int r, int c) { return read.dout(r, u.column + c); }, drop);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                s->left[4 * ty + i][4 * tx + j] = g.dx[i][j];
        exact_weighted_sum(
            s, dk, [&](int r, int c) { return read.q(r, u.column + c); }, drop);
    }
}

/* dK and dV of KEYS keys, WIDTH columns of each. */
template <typename real>
__device__ inline void exact_keys(const fattn_problem &problem, const fattn_launch &at, const real *delta, long long tiles,
                                  long long widths)
{
    extern __shared__ __align__(16) unsigned char shared[];
    exact_shared<real> *s = (exact_shared<real> *)shared;
    const fattn_desc &d = problem.desc;
    const exact_unit u = exact_unit_of(problem, tiles, widths);
    const fattn_sequence seq = fattn_sequence_of(&problem, &at, u.b);
    if (u.first >= seq.seq_k)
        return;
    const exact_scoring<real> how = exact_scoring_of<real>(problem);
    const exact_reader<real> read = {s, &problem, &at, &seq, u.head_kv};
    const size_t size = fattn_dtype_size(d.grad_dtype);
    real dk[4][8], dv[4][8];
    exact_keys_pass<real, false>(s, read, how, delta, u, dk, dv);
    if (__syncthreads_or(!exact_finite(dk) || !exact_finite(dv)))
        exact_keys_pass<real, true>(s, read, how, delta, u, dk, dv);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const long long k = u.first + 4 * (threadIdx.x / SIDE) + i;
        if (k >= seq.seq_k)
            continue;
        exact_store_row(fattn_key_row(&problem, &at, &at.dk, size, &seq, u.head_kv, k), d.grad_dtype, u.column, d.dim, dk[i],
                        how.rest);
        exact_store_row(fattn_key_row(&problem, &at, &at.dv, size, &seq, u.head_kv, k), d.grad_dtype, u.column, d.dim_v, dv[i],
                        (real)1);
    }
}

/* dbias: a block owns ROWS rows (all of them where they are summed) and KEYS keys of one of its (batch, head) entries, and adds
 * up the (sequence, query head) pairs that share the entry. */
template <typename real>
__device__ inline void exact_bias(const fattn_problem &problem, const fattn_launch &at, const real *delta, long long row_tiles,
                                  long long key_tiles)
{
    extern __shared__ __align__(16) unsigned char shared[];
    exact_shared<real> *s = (exact_shared<real> *)shared;
    const int ty = threadIdx.x / SIDE, tx = threadIdx.x % SIDE;
    const fattn_desc &d = problem.desc;
    const fattn_dbias_shape shape = fattn_dbias_shape_of(&d, &at.dbias);
    const exact_scoring<real> how = exact_scoring_of<real>(problem);
    const size_t size = fattn_dtype_size(d.grad_dtype);
    long long unit = blockIdx.x;
    const long long key = unit % key_tiles * KEYS;
    unit /= key_tiles;
    const long long first = unit % row_tiles * ROWS;
    unit /= row_tiles;
    const long long h0 = unit % shape.heads, b0 = unit / shape.heads;
    real acc[4][4] = {};
    for (long long b = b0; b < b0 + shape.sum_batch; b++) {
        const fattn_sequence seq = fattn_sequence_of(&problem, &at, b);
        for (long long h = h0; h < h0 + shape.sum_heads; h++) {
            const exact_reader<real> read = {s, &problem, &at, &seq, (int)(h / problem.group)};
            const long long end = shape.sum_rows > 1 ? seq.seq_q : first + ROWS;
            for (long long row = first; row < end && row < seq.seq_q; row += ROWS) {
                exact_gradients<real> g;
                exact_set_rows<real>(s, at, seq, {(int)h, 1}, row, delta);
                const fattn_interval span = exact_span(s);
                if (span.hi <= key || span.lo >= key + KEYS)
                    continue;
                exact_gradients_of(s, read, how, key, &g);
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        acc[i][j] += g.ds[i][j];
            }
        }
    }
    if (shape.sum_rows > 1) { /* over the rows of the tile too, in order */
        __syncthreads();
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                s->left[4 * ty + i][4 * tx + j] = acc[i][j];
        __syncthreads();
        for (int k = threadIdx.x; k < KEYS && key + k < d.seq_k; k += THREADS) {
            real sum = 0;
            for (int r = 0; r < ROWS; r++)
                sum += s->left[r][k];
            exact_store(fattn_row(&at.dbias, size, b0, h0, 0), d.grad_dtype, key + k, sum);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (first + 4 * ty + i < shape.rows && key + 4 * tx + j < d.seq_k)
                exact_store(fattn_row(&at.dbias, size, b0, h0, first + 4 * ty + i), d.grad_dtype, key + 4 * tx + j, acc[i][j]);
}

/* dsinks of head blockIdx.x. */
template <typename real>
__device__ inline void exact_sinks(const fattn_problem &problem, const fattn_launch &at, const real *delta)
{
    __shared__ double part[THREADS];
    const long long h = blockIdx.x;
    const double sink = (double)at.sinks[h];
    double sum = 0;
    for (long long b = 0; b < problem.desc.batch; b++) {
        const fattn_sequence seq = fattn_sequence_of(&problem, &at, b);
        for (long long i = threadIdx.x; i < seq.seq_q; i += THREADS) {
            const long long index = seq.lse_first + h * seq.lse_head + i;
            const double lse = (double)((const real *)at.lse)[index];
            if (lse != -(double)INFINITY)
                sum -= exp(sink - lse) * (double)delta[index];
        }
    }
    part[threadIdx.x] = sum;
    for (int step = THREADS / 2; step > 0; step /= 2) {
        __syncthreads();
        if (threadIdx.x < step)
            part[threadIdx.x] += part[threadIdx.x + step];
    }
    if (threadIdx.x == 0)
        at.dsinks[h] = (float)part[0];
}

/* ------------------------------------------------------------------------------------------------------------- kernels */

#define PROBLEM const __grid_constant__ fattn_problem problem, const __grid_constant__ fattn_launch at

/* A kernel in both precisions; parameters say `real` for theirs. */
#define KERNEL(name, parameters, arguments)                                                                                    \
    KERNEL_OF(name, f32, float, parameters, arguments)                                                                         \
    KERNEL_OF(name, f64, double, parameters, arguments)
#define KERNEL_OF(name, suffix, type, parameters, arguments)                                                                   \
    extern "C" __global__ void __launch_bounds__(THREADS) name##_##suffix(PROBLEM, parameters(type))                           \
    {                                                                                                                          \
        name<type> arguments;                                                                                                  \
    }
#define TILES(real)           long long tiles, long long widths
#define SUMS(real)            real *delta
#define DELTA(real)           const real *delta
#define DELTA_AND_TILES(real) const real *delta, long long tiles, long long widths

KERNEL(exact_forward, TILES, (problem, at, tiles, widths))
KERNEL(exact_delta, SUMS, (problem, at, delta))
KERNEL(exact_queries, DELTA_AND_TILES, (problem, at, delta, tiles, widths))
KERNEL(exact_keys, DELTA_AND_TILES, (problem, at, delta, tiles, widths))
KERNEL(exact_bias, DELTA_AND_TILES, (problem, at, delta, tiles, widths)) /* tiles of rows, and of keys */
KERNEL(exact_sinks, DELTA, (problem, at, delta))
