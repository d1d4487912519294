/*
 * RMS norms of rows (layers/rmsnorm.c), and of queries' and keys' heads with their rotation (layers/qknorm_rope.c).
 *
 * A warp takes a row, or a head of a row: sums over it are sums over the warp. Gradients of weights are sums over all rows: a
 * block takes a chunk of rows and writes its sum to partial[chunk], add_chunks adds the chunks in order.
 */
#include "train/cuda/numbers.cuh"

/* The rows of a chunk, as cpu/chunks.h cuts them. */
__device__ inline int64_t chunk_begin(int64_t rows, int64_t chunk)
{
    return rows * chunk / CUDA_CHUNKS;
}

/* Sets *sum to that of f(row, col) over a column, in thread `lane` of warp 0 for column lane of the 32 that block x has; false
 * in other threads, and behind the last column. The calling warp adds rows begin, begin + step .. up to end, and the warps'
 * sums are added in order. */
template <typename F> __device__ inline bool column_sum(int64_t cols, int64_t begin, int64_t end, int step, float *sum, F f)
{
    __shared__ float parts[WARPS][WARP];
    const int64_t col = (int64_t)blockIdx.x * WARP + lane();
    float mine = 0;
#pragma unroll 8
    for (int64_t row = begin; row < end; row += step)
        if (col < cols)
            mine += f(row, col);
    parts[warp()][lane()] = mine;
    __syncthreads();
    if (warp() > 0 || col >= cols)
        return false;
    for (int w = 1; w < WARPS; w++)
        mine += parts[w][lane()];
    *sum = mine;
    return true;
}

/* ------------------------------------------------------------------------------------------------------------- rmsnorm */

template <int V, typename T> __device__ inline void rmsnorm_forward_rows(const rmsnorm_call &c)
{
    for (int64_t r = first_warp(); r < c.rows; r += warp_step()) {
        const float *x = c.x + r * c.cols;
        T *out = (T *)c.out + r * c.cols;
        float squares = 0;
        for (int64_t i = lane() * V; i < c.cols; i += WARP * V) {
            const some<V> a = load<V>(x + i);
#pragma unroll
            for (int v = 0; v < V; v++)
                squares += a.x[v] * a.x[v];
        }
        const float s = 1.0f / sqrtf(warp_sum(squares) / (float)c.cols + c.eps);
        for (int64_t i = lane() * V; i < c.cols; i += WARP * V) {
            some<V> a = load<V>(x + i);
            const some<V> w = load<V>(c.weight + i);
#pragma unroll
            for (int v = 0; v < V; v++)
                a.x[v] = a.x[v] * s * w.x[v];
            store<V>(out + i, a);
        }
        if (c.rstd && lane() == 0)
            c.rstd[r] = s;
    }
}

template <typename T> __device__ inline bool rows_in_fours(const rmsnorm_call &c)
{
    return c.cols % 4 == 0 && in_fours(c.x, 4) && in_fours(c.weight, 4) && in_fours((const T *)c.out, 4) &&
           in_fours((const T *)c.dout, 4) && in_fours(c.dx, 4);
}

template <typename T> __device__ inline void rmsnorm_forward(const rmsnorm_call &c)
{
    if (rows_in_fours<T>(c))
        rmsnorm_forward_rows<4, T>(c);
    else
        rmsnorm_forward_rows<1, T>(c);
}

KERNEL rmsnorm_forward_f32(const __grid_constant__ rmsnorm_call c)
{
    rmsnorm_forward<float>(c);
}

KERNEL rmsnorm_forward_bf16(const __grid_constant__ rmsnorm_call c)
{
    rmsnorm_forward<bf16>(c);
}

/* dx of all rows */
template <int V, typename T> __device__ inline void rmsnorm_backward_rows(const rmsnorm_call &c)
{
    for (int64_t r = first_warp(); r < c.rows; r += warp_step()) {
        const float *x = c.x + r * c.cols, s = c.rstd[r];
        const T *dout = (const T *)c.dout + r * c.cols;
        float *dx = c.dx + r * c.cols, dot = 0;
        for (int64_t i = lane() * V; i < c.cols; i += WARP * V) {
            const some<V> a = load<V>(x + i), g = load<V>(dout + i), w = load<V>(c.weight + i);
#pragma unroll
            for (int v = 0; v < V; v++)
                dot += g.x[v] * w.x[v] * a.x[v];
        }
        const float slope = warp_sum(dot) * s * s / (float)c.cols;
        for (int64_t i = lane() * V; i < c.cols; i += WARP * V) {
            const some<V> a = load<V>(x + i), g = load<V>(dout + i), w = load<V>(c.weight + i);
            some<V> d = {};
            if (c.accumulate)
                d = load<V>(dx + i);
#pragma unroll
            for (int v = 0; v < V; v++)
                d.x[v] += s * (g.x[v] * w.x[v] - slope * a.x[v]);
            store<V>(dx + i, d);
        }
    }
}

template <typename T> __device__ inline void rmsnorm_backward(const rmsnorm_call &c)
{
    if (rows_in_fours<T>(c))
        rmsnorm_backward_rows<4, T>(c);
    else
        rmsnorm_backward_rows<1, T>(c);
}

KERNEL rmsnorm_backward_f32(const __grid_constant__ rmsnorm_call c)
{
    rmsnorm_backward<float>(c);
}

KERNEL rmsnorm_backward_bf16(const __grid_constant__ rmsnorm_call c)
{
    rmsnorm_backward<bf16>(c);
}

/* dw of a chunk of rows, block y. */
template <typename T> __device__ inline void rmsnorm_weights(const rmsnorm_call &c)
{
    const int64_t chunk = blockIdx.y;
    float sum;
    if (column_sum(c.cols, chunk_begin(c.rows, chunk) + warp(), chunk_begin(c.rows, chunk + 1), WARPS, &sum,
                   [&](int64_t r, int64_t col) {
                       return number(((const T *)c.dout)[r * c.cols + col]) * c.x[r * c.cols + col] * c.rstd[r];
                   }))
        c.partial[chunk * c.cols + (int64_t)blockIdx.x * WARP + lane()] = sum;
}

KERNEL rmsnorm_weights_f32(const __grid_constant__ rmsnorm_call c)
{
    rmsnorm_weights<float>(c);
}

KERNEL rmsnorm_weights_bf16(const __grid_constant__ rmsnorm_call c)
{
    rmsnorm_weights<bf16>(c);
}

/* Both at once, with everything read once: a warp holds a row of at most CUDA_HELD numbers, and its sum of dw. */
constexpr int HELD = CUDA_HELD / (4 * WARP);

struct held_row {
    some<4> x[HELD];
};

/* f(p, i) for each four columns i .. i + 3 that the lane holds, as number p. */
template <typename F> __device__ inline void for_held(int64_t cols, F f)
{
#pragma unroll
    for (int p = 0; p < HELD; p++) {
        const int i = 4 * (p * WARP + lane());
        if (i < cols)
            f(p, i);
    }
}

template <typename T> __device__ inline void held_row_backward(const rmsnorm_call &c, int64_t r, held_row &dw)
{
    const float *x = c.x + r * c.cols, s = c.rstd[r];
    const T *dout = (const T *)c.dout + r * c.cols;
    T *out = c.out ? (T *)c.out + r * c.cols : NULL;
    float *dx = c.dx + r * c.cols, dot = 0;
    held_row a, g;
    for_held(c.cols, [&](int p, int i) {
        a.x[p] = load<4>(x + i);
        g.x[p] = load<4>(dout + i);
    });
    for_held(c.cols, [&](int p, int i) {
        const some<4> w = load<4>(c.weight + i);
#pragma unroll
        for (int v = 0; v < 4; v++) {
            dw.x[p].x[v] += g.x[p].x[v] * a.x[p].x[v] * s;
            g.x[p].x[v] *= w.x[v];
            dot += g.x[p].x[v] * a.x[p].x[v];
        }
    });
    const float slope = warp_sum(dot) * s * s / (float)c.cols;
    for_held(c.cols, [&](int p, int i) {
        some<4> d = {};
        if (c.accumulate)
            d = load<4>(dx + i);
#pragma unroll
        for (int v = 0; v < 4; v++)
            d.x[v] += s * (g.x[p].x[v] - slope * a.x[p].x[v]);
        store<4>(dx + i, d);
        if (out) {
            const some<4> w = load<4>(c.weight + i);
#pragma unroll
            for (int v = 0; v < 4; v++)
                a.x[p].x[v] = a.x[p].x[v] * s * w.x[v];
            store<4>(out + i, a.x[p]);
        }
    });
}

template <typename T> __device__ inline void rmsnorm_backward_held(const rmsnorm_call &c)
{
    __shared__ __align__(16) float parts[WARPS][CUDA_HELD];
    const int64_t chunk = blockIdx.x, end = chunk_begin(c.rows, chunk + 1);
    held_row dw = {};
    for (int64_t r = chunk_begin(c.rows, chunk) + warp(); r < end; r += WARPS)
        held_row_backward<T>(c, r, dw);
    for_held(c.cols, [&](int p, int i) { store<4>(&parts[warp()][i], dw.x[p]); });
    __syncthreads();
    for (int i = threadIdx.x; i < c.cols; i += CUDA_THREADS) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++)
            sum += parts[w][i];
        c.partial[chunk * c.cols + i] = sum;
    }
}

KERNEL_FOR(2) rmsnorm_backward_held_f32(const __grid_constant__ rmsnorm_call c)
{
    rmsnorm_backward_held<float>(c);
}

KERNEL_FOR(2) rmsnorm_backward_held_bf16(const __grid_constant__ rmsnorm_call c)
{
    rmsnorm_backward_held<bf16>(c);
}

/* total[col] += sum over chunks of partial[chunk][col]: a warp has some of the chunks, one behind the other. */
KERNEL add_chunks(float *total, const float *partial, int64_t cols)
{
    constexpr int SHARE = (CUDA_CHUNKS + WARPS - 1) / WARPS;
    const int end = (warp() + 1) * SHARE < CUDA_CHUNKS ? (warp() + 1) * SHARE : CUDA_CHUNKS;
    float sum;
    if (column_sum(cols, warp() * SHARE, end, 1, &sum, [&](int64_t chunk, int64_t col) { return partial[chunk * cols + col]; }))
        total[(int64_t)blockIdx.x * WARP + lane()] += sum;
}

/* --------------------------------------------------------------------------------------------------------- qknorm_rope */

/*
 * A team of lanes has a head: `team` of them, a power of two, so that small heads fill a warp too. Lane `at` of it holds pairs
 * (i, i + dim/2), V at a time: i = V (at + team p) + 0 .. V-1 for p = 0, 1, ..
 */
constexpr int HELD_PAIRS = HEAD_DIM_MAX / 2 / WARP;

template <int V> struct lanes {
    static constexpr int P = HELD_PAIRS / V; /* groups of V pairs that a lane holds at most */
    int half, team, at;

    __device__ inline explicit lanes(int64_t dim) : half((int)dim / 2), team(1)
    {
        while (team < WARP && team * V < half)
            team *= 2;
        at = lane() % team;
    }

    /* f(p, i) */
    template <typename F> __device__ inline void for_pairs(F f) const
    {
#pragma unroll
        for (int p = 0; p < P; p++) {
            const int i = V * (at + team * p);
            if (i < half)
                f(p, i);
        }
    }

    __device__ inline float sum(float x) const
    {
        for (int step = team / 2; step > 0; step /= 2)
            x += __shfl_xor_sync(0xffffffffu, x, step);
        return x;
    }

    __device__ inline int teams() const
    {
        return WARP / team; /* in a warp */
    }
};

/* The lane's pairs of a head. */
template <int V> struct pairs {
    some<V> low[lanes<V>::P], high[lanes<V>::P];
};

/* A head of a row. */
struct head {
    int64_t x, out, angles; /* where its numbers begin */
};

__device__ inline head head_at(const qknorm_rope_call &c, int64_t n)
{
    const int64_t row = quotient(n, c.heads), h = n - row * c.heads;
    const int64_t position = c.positions ? c.positions[row] : c.first + row - quotient(row, c.seq) * c.seq;
    return {row * c.stride + h * c.dim, row * c.out_stride + h * c.dim, position * (c.dim / 2)};
}

template <int V, typename T>
__device__ inline void head_forward(const qknorm_rope_call &c, const lanes<V> &l, int64_t n, bool there)
{
    const head at = head_at(c, there ? n : 0);
    const T *x = (const T *)c.x + at.x;
    T *out = (T *)c.out + at.out;
    pairs<V> a;
    float squares = 0;
    l.for_pairs([&](int p, int i) {
        a.low[p] = load<V>(x + i);
        a.high[p] = load<V>(x + i + l.half);
#pragma unroll
        for (int v = 0; v < V; v++)
            squares += a.low[p].x[v] * a.low[p].x[v] + a.high[p].x[v] * a.high[p].x[v];
    });
    const float s = 1.0f / sqrtf(l.sum(squares) / (float)c.dim + c.eps);
    if (!there)
        return;
    l.for_pairs([&](int p, int i) {
        const some<V> w1 = load<V>(c.weight + i), w2 = load<V>(c.weight + i + l.half);
        const some<V> cosine = load<V>(c.cos + at.angles + i), sine = load<V>(c.sin + at.angles + i);
#pragma unroll
        for (int v = 0; v < V; v++) {
            const float u1 = a.low[p].x[v] * s * w1.x[v], u2 = a.high[p].x[v] * s * w2.x[v];
            a.low[p].x[v] = u1 * cosine.x[v] - u2 * sine.x[v];
            a.high[p].x[v] = u2 * cosine.x[v] + u1 * sine.x[v];
        }
        store<V>(out + i, a.low[p]);
        store<V>(out + i + l.half, a.high[p]);
    });
    if (c.rstd && l.at == 0)
        c.rstd[n] = s;
}

template <int V, typename T> __device__ inline void qknorm_rope_forward_of(const qknorm_rope_call &c)
{
    const lanes<V> l(c.dim);
    const int64_t all = c.rows * c.heads;
    for (int64_t n = first_warp() * l.teams(); n < all; n += warp_step() * l.teams())
        head_forward<V, T>(c, l, n + lane() / l.team, n + lane() / l.team < all);
}

template <typename T> __device__ inline bool heads_in_eights(const qknorm_rope_call &c)
{
    return c.dim % 16 == 0 && in_eights((const T *)c.x, c.stride) && in_eights((const T *)c.out, c.out_stride) &&
           in_eights((const T *)c.dx, c.stride) && in_eights((const T *)c.dout, c.out_stride) && in_eights(c.weight, 8) &&
           in_eights(c.cos, 8) && in_eights(c.sin, 8);
}

template <typename T> __device__ inline void qknorm_rope_forward(const qknorm_rope_call &c)
{
    if (heads_in_eights<T>(c))
        qknorm_rope_forward_of<8, T>(c);
    else
        qknorm_rope_forward_of<1, T>(c);
}

KERNEL qknorm_rope_forward_f32(const __grid_constant__ qknorm_rope_call c)
{
    qknorm_rope_forward<float>(c);
}

KERNEL qknorm_rope_forward_bf16(const __grid_constant__ qknorm_rope_call c)
{
    qknorm_rope_forward<bf16>(c);
}

/* dw: the lane's part of the sum. */
template <int V, typename T>
__device__ inline void head_backward(const qknorm_rope_call &c, const lanes<V> &l, int64_t n, bool there, pairs<V> &dw)
{
    const head at = head_at(c, there ? n : 0);
    const T *x = (const T *)c.x + at.x, *dout = (const T *)c.dout + at.out;
    T *dx = (T *)c.dx + at.x;
    const float s = there ? c.rstd[n] : 0.0f;
    pairs<V> a, g;
    float dot = 0;
    l.for_pairs([&](int p, int i) {
        const some<V> d1 = load<V>(dout + i), d2 = load<V>(dout + i + l.half);
        const some<V> w1 = load<V>(c.weight + i), w2 = load<V>(c.weight + i + l.half);
        const some<V> cosine = load<V>(c.cos + at.angles + i), sine = load<V>(c.sin + at.angles + i);
        a.low[p] = load<V>(x + i);
        a.high[p] = load<V>(x + i + l.half);
#pragma unroll
        for (int v = 0; v < V; v++) {
            const float g1 = d1.x[v] * cosine.x[v] + d2.x[v] * sine.x[v], g2 = d2.x[v] * cosine.x[v] - d1.x[v] * sine.x[v];
            if (there) {
                dw.low[p].x[v] += g1 * a.low[p].x[v] * s;
                dw.high[p].x[v] += g2 * a.high[p].x[v] * s;
            }
            g.low[p].x[v] = g1 * w1.x[v];
            g.high[p].x[v] = g2 * w2.x[v];
            dot += g.low[p].x[v] * a.low[p].x[v] + g.high[p].x[v] * a.high[p].x[v];
        }
    });
    const float slope = l.sum(dot) * s * s / (float)c.dim;
    if (!there)
        return;
    l.for_pairs([&](int p, int i) {
        some<V> d1 = {}, d2 = {};
        if (c.accumulate) {
            d1 = load<V>(dx + i);
            d2 = load<V>(dx + i + l.half);
        }
#pragma unroll
        for (int v = 0; v < V; v++) {
            d1.x[v] += s * (g.low[p].x[v] - slope * a.low[p].x[v]);
            d2.x[v] += s * (g.high[p].x[v] - slope * a.high[p].x[v]);
        }
        store<V>(dx + i, d1);
        store<V>(dx + i + l.half, d2);
    });
}

/* Block `chunk` has a chunk of the heads of all rows, and writes partial[chunk]: the teams' sums, added in order. */
template <int V, typename T> __device__ inline void qknorm_rope_backward_of(const qknorm_rope_call &c, float *parts)
{
    const lanes<V> l(c.dim);
    const int64_t chunk = blockIdx.x, all = c.rows * c.heads, end = chunk_begin(all, chunk + 1);
    const int mine = warp() * l.teams() + lane() / l.team; /* the team's number in the block */
    pairs<V> dw = {};
    for (int64_t n = chunk_begin(all, chunk); n < end; n += WARPS * l.teams())
        head_backward<V, T>(c, l, n + mine, n + mine < end, dw);
    l.for_pairs([&](int p, int i) {
#pragma unroll
        for (int v = 0; v < V; v++) {
            parts[mine * c.dim + i + v] = dw.low[p].x[v];
            parts[mine * c.dim + i + v + l.half] = dw.high[p].x[v];
        }
    });
    __syncthreads();
    for (int i = threadIdx.x; i < c.dim; i += CUDA_THREADS) {
        float sum = 0;
        for (int t = 0; t < WARPS * l.teams(); t++)
            sum += parts[t * c.dim + i];
        c.partial[chunk * c.dim + i] = sum;
    }
}

template <typename T> __device__ inline void qknorm_rope_backward(const qknorm_rope_call &c)
{
    __shared__ float parts[WARPS * HEAD_DIM_MAX]; /* teams times dim: never more than with whole warps as teams */
    if (heads_in_eights<T>(c))
        qknorm_rope_backward_of<8, T>(c, parts);
    else
        qknorm_rope_backward_of<1, T>(c, parts);
}

KERNEL qknorm_rope_backward_f32(const __grid_constant__ qknorm_rope_call c)
{
    qknorm_rope_backward<float>(c);
}

KERNEL qknorm_rope_backward_bf16(const __grid_constant__ qknorm_rope_call c)
{
    qknorm_rope_backward<bf16>(c);
}
