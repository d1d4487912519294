/*
 * Work on rows and on single numbers: copies, embedding, dropout, SwiGLU, and joining the results of attention's key blocks.
 */
#include "train/cuda/numbers.cuh"
#include "train/philox.h"

/* f(r, i) for the first of each V columns of all rows, by the grid's threads. */
template <int V, typename F> __device__ inline void for_all(int64_t rows, int64_t cols, F f)
{
    const int64_t step = (int64_t)gridDim.x * CUDA_THREADS, width = cols / V, all = rows * width;
    for (int64_t n = (int64_t)blockIdx.x * CUDA_THREADS + threadIdx.x; n < all; n += step) {
        const int64_t r = quotient(n, width);
        f(r, (n - r * width) * V);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- copy */

template <int V, typename To, typename From> __device__ inline void copy_rows(const copy_call &c)
{
    for_all<V>(c.rows, c.cols, [&](int64_t r, int64_t i) {
        To *to = (To *)c.to + r * c.to_stride + i;
        some<V> x = load<V>((const From *)c.from + r * c.from_stride + i);
        if (c.add) {
            const some<V> y = load<V>(to);
#pragma unroll
            for (int v = 0; v < V; v++)
                x.x[v] += y.x[v];
        }
        store<V>(to, x);
    });
}

template <typename To, typename From> __device__ inline void copy(const copy_call &c)
{
    if (c.cols % 4 == 0 && in_fours((const To *)c.to, c.to_stride) && in_fours((const From *)c.from, c.from_stride))
        copy_rows<4, To, From>(c);
    else
        copy_rows<1, To, From>(c);
}

KERNEL copy_f32_f32(const __grid_constant__ copy_call c)
{
    copy<float, float>(c);
}

KERNEL copy_f32_bf16(const __grid_constant__ copy_call c)
{
    copy<float, bf16>(c);
}

KERNEL copy_bf16_f32(const __grid_constant__ copy_call c)
{
    copy<bf16, float>(c);
}

KERNEL copy_bf16_bf16(const __grid_constant__ copy_call c)
{
    copy<bf16, bf16>(c);
}

/* ----------------------------------------------------------------------------------------------------------- embedding */

KERNEL embedding_forward(const __grid_constant__ embedding_call c)
{
    for (int64_t r = first_warp(); r < c.rows; r += warp_step())
        for (int64_t i = lane(); i < c.hidden; i += WARP)
            c.out[r * c.hidden + i] = c.weight[c.tokens[r] * c.hidden + i];
}

/*
 * Backward: block x has a token, and adds up all rows that have it. Where there are fewer rows than tokens it has a row, and
 * goes on with that row's token only if no row before has it: tokens that do not occur cost nothing then, however many there
 * are. The block looks at CUDA_SCAN tokens at a time, and notes where it found its own as bits. Block y has some of the column
 * groups, of WARP V columns each. Its warps share them out, and where there are fewer groups than warps, several have the same
 * group, and every so many words of those bits.
 */
constexpr int FOUR = 4, SCAN_WORDS = CUDA_SCAN / WARP, SCANS = CUDA_SCAN / CUDA_THREADS / FOUR;

/* The row that a bit of a word stands for, less the first. A thread looks at FOUR tokens at a time. */
__device__ inline int row_of_bit(int word, int bit)
{
    const int fours = word / WARPS / FOUR * CUDA_THREADS + word % WARPS * WARP + bit;
    return fours * FOUR + word / WARPS % FOUR;
}

/* The four tokens from row r on; -1 where there are none. */
__device__ inline int4 four_tokens(const embedding_call &c, int64_t r)
{
    const int32_t *t = c.tokens + r;
    const int64_t left = c.rows - r;
    if (left >= FOUR && in_fours(t, 4))
        return *(const int4 *)t;
    return make_int4(left > 0 ? t[0] : -1, left > 1 ? t[1] : -1, left > 2 ? t[2] : -1, left > 3 ? t[3] : -1);
}

enum found { NOWHERE, BEFORE, HERE };

/* Does the token stand in rows first .. first + CUDA_SCAN - 1, and before row r? If not before, words[] say where. */
__device__ inline found find_token(const embedding_call &c, int32_t token, int64_t r, int64_t first, uint32_t words[SCAN_WORDS])
{
    uint32_t mine = 0; /* a bit for each token that the thread looked at */
    bool before = false;
    static_assert(SCANS * FOUR <= 32, "they must fit");
#pragma unroll
    for (int k = 0; k < SCANS; k++) {
        const int4 t = four_tokens(c, first + (k * CUDA_THREADS + threadIdx.x) * FOUR);
        mine |= (uint32_t)((t.x == token) + 2 * (t.y == token) + 4 * (t.z == token) + 8 * (t.w == token)) << k * FOUR;
    }
    if (!__syncthreads_or(mine != 0)) /* the words of before have been read, too */
        return NOWHERE;
    for (int n = 0; n < SCANS * FOUR; n++) {
        const int word = n * WARPS + warp();
        const bool found = mine >> n & 1;
        const uint32_t bits = __ballot_sync(0xffffffffu, found);
        before = before || (found && first + row_of_bit(word, lane()) < r);
        if (lane() == 0)
            words[word] = bits;
    }
    return __syncthreads_or(before) ? BEFORE : HERE;
}

/* Adds V columns of the rows that a word's bits stand for, having asked for several at once. */
template <int V> __device__ inline void add_rows(some<V> &sum, const float *dout, int64_t hidden, int word, uint32_t bits)
{
    constexpr int AT_ONCE = 4;
    while (bits) {
        some<V> next[AT_ONCE];
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++) {
            next[k] = {};
            if (bits)
                next[k] = load<V>(dout + row_of_bit(word, __ffs((int)bits) - 1) * hidden);
            bits &= bits - 1; /* 0 stays 0 */
        }
#pragma unroll
        for (int k = 0; k < AT_ONCE; k++)
#pragma unroll
            for (int v = 0; v < V; v++)
                sum.x[v] += next[k].x[v];
    }
}

/* The rows of every so many words, in an order of their own; a warp. there: do its columns exist? */
template <int V>
__device__ inline void add_found(some<V> &sum, const float *dout, int64_t hidden, const uint32_t *words, int part, int parts,
                                 bool there)
{
    for (int first = 0; first < SCAN_WORDS; first += WARP) {
        const uint32_t mine = (first + lane()) % parts == part ? words[first + lane()] : 0;
        for (uint32_t left = __ballot_sync(0xffffffffu, mine != 0); left; left &= left - 1) {
            const int from = __ffs((int)left) - 1;
            const uint32_t bits = __shfl_sync(0xffffffffu, mine, from);
            if (there)
                add_rows<V>(sum, dout, hidden, first + from, bits);
        }
    }
}

/* The warp's part of the block's columns. */
struct column_share {
    int64_t group; /* its first group; further ones are `step` on */
    int64_t step, end;
    int part, parts; /* which of the words */
};

__device__ inline column_share share_columns(int64_t groups)
{
    const int64_t each = (groups + gridDim.y - 1) / gridDim.y, begin = blockIdx.y * each;
    const int there = each < WARPS ? (int)each : WARPS, parts = WARPS / there;
    const int64_t end = begin + each < groups ? begin + each : groups;
    return {warp() < there * parts ? begin + warp() % there : end, there, end, warp() / there, parts};
}

/* Adds the warps' sums of a group, of which the first has the total. */
template <int V>
__device__ inline void keep_sum(const embedding_call &c, int32_t token, int64_t group, const column_share &s, some<V> sum,
                                some<4> (*parts)[WARP])
{
    const int64_t col = (group * WARP + lane()) * V;
    __syncthreads();
    store<V>(parts[warp()][lane()].x, sum);
    __syncthreads();
    if (s.part > 0 || group >= s.end || col >= c.hidden)
        return;
    for (int p = 1; p < s.parts; p++)
#pragma unroll
        for (int v = 0; v < V; v++)
            sum.x[v] += parts[warp() + p * s.step][lane()].x[v];
    some<V> total = load<V>(c.dweight + token * c.hidden + col);
#pragma unroll
    for (int v = 0; v < V; v++)
        total.x[v] += sum.x[v];
    store<V>(c.dweight + token * c.hidden + col, total);
}

/* The whole block calls this, with the same token and r. False: no row has the token, or one before r. */
template <int V>
__device__ inline bool sum_token(const embedding_call &c, int32_t token, int64_t r, int64_t ahead, const column_share &s,
                                 uint32_t *words, some<4> (*parts)[WARP])
{
    const int64_t group = s.group + ahead, col = (group * WARP + lane()) * V;
    some<V> sum = {};
    bool any = false;
    for (int64_t first = 0; first < c.rows; first += CUDA_SCAN) {
        const found where = find_token(c, token, r, first, words);
        if (where == BEFORE)
            return false;
        any = any || where == HERE;
        if (where == HERE && group < s.end)
            add_found<V>(sum, c.dout + first * c.hidden + col, c.hidden, words, s.part, s.parts, col < c.hidden);
    }
    if (any)
        keep_sum<V>(c, token, group, s, sum, parts);
    return any;
}

template <int V> __device__ inline void embedding_backward_of(const embedding_call &c, uint32_t *words, some<4> (*parts)[WARP])
{
    const int64_t groups = (c.hidden + WARP * V - 1) / (WARP * V), each = (groups + gridDim.y - 1) / gridDim.y;
    const column_share s = share_columns(groups);
    const bool by_token = c.vocab <= c.rows;
    for (int64_t n = blockIdx.x; n < (by_token ? c.vocab : c.rows); n += gridDim.x) {
        const int32_t token = by_token ? (int32_t)n : c.tokens[n];
        const int64_t r = by_token ? 0 : n;
        for (int64_t ahead = 0; ahead < each && sum_token<V>(c, token, r, ahead, s, words, parts);)
            ahead += s.step;
    }
}

KERNEL embedding_backward(const __grid_constant__ embedding_call c)
{
    __shared__ uint32_t words[SCAN_WORDS];
    __shared__ __align__(16) some<4> parts[WARPS][WARP];
    if (c.hidden % 4 == 0 && in_fours(c.dout, 4) && in_fours(c.dweight, 4))
        embedding_backward_of<4>(c, words, parts);
    else
        embedding_backward_of<1>(c, words, parts);
}

/* ------------------------------------------------------------------------------------------------------------- dropout */

/* A thread has the four columns of a draw. */
template <typename To, typename From, bool ADD> __device__ inline void dropout(const dropout_call &c)
{
    const int64_t step = (int64_t)gridDim.x * CUDA_THREADS, width = (c.cols + 3) / 4, all = c.rows * width;
    const bool fours = c.cols % 4 == 0;
    for (int64_t n = (int64_t)blockIdx.x * CUDA_THREADS + threadIdx.x; n < all; n += step) {
        const int64_t r = quotient(n, width), i = (n - r * width) * 4, at = r * c.cols + i;
        const philox_words w = philox(c.key, (uint32_t)(i / 4), (uint32_t)r, (uint32_t)(r >> 32), 0);
        const From *from = (const From *)c.from + at;
        To *to = (To *)c.to + at;
        if (fours) {
            const some<4> x = load<4>(from);
            some<4> sum = {};
            if (ADD)
                sum = load<4>(c.add + at);
#pragma unroll
            for (int v = 0; v < 4; v++)
                sum.x[v] += w.word[v] >= c.least ? x.x[v] * c.factor : 0.0f;
            store<4>(to, sum);
            continue;
        }
        for (int v = 0; v < 4 && i + v < c.cols; v++) {
            const float x = w.word[v] >= c.least ? number(from[v]) * c.factor : 0.0f;
            set(to[v], (ADD ? c.add[at + v] : 0.0f) + x);
        }
    }
}

KERNEL dropout_branch_f32(const __grid_constant__ dropout_call c)
{
    dropout<float, float, true>(c);
}

KERNEL dropout_branch_bf16(const __grid_constant__ dropout_call c)
{
    dropout<float, bf16, true>(c);
}

KERNEL dropout_grad_f32(const __grid_constant__ dropout_call c)
{
    dropout<float, float, false>(c);
}

KERNEL dropout_grad_bf16(const __grid_constant__ dropout_call c)
{
    dropout<bf16, float, false>(c);
}

/* -------------------------------------------------------------------------------------------------------------- swiglu */

template <int V, typename T> __device__ inline void swiglu_forward_rows(const swiglu_call &c)
{
    for_all<V>(c.rows, c.ffn, [&](int64_t r, int64_t i) {
        const T *x = (const T *)c.x + r * 2 * c.ffn + i;
        some<V> gate = load<V>(x);
        const some<V> up = load<V>(x + c.ffn);
#pragma unroll
        for (int v = 0; v < V; v++)
            gate.x[v] = gate.x[v] * sigmoid(gate.x[v]) * up.x[v];
        store<V>((T *)c.out + r * c.ffn + i, gate);
    });
}

template <int V, typename T> __device__ inline void swiglu_backward_rows(const swiglu_call &c)
{
    for_all<V>(c.rows, c.ffn, [&](int64_t r, int64_t i) {
        const T *x = (const T *)c.x + r * 2 * c.ffn + i;
        T *dx = (T *)c.dx + r * 2 * c.ffn + i;
        const some<V> gate = load<V>(x), up = load<V>(x + c.ffn), dout = load<V>((const T *)c.dout + r * c.ffn + i);
        some<V> dgate, dup, product;
#pragma unroll
        for (int v = 0; v < V; v++) {
            const float s = sigmoid(gate.x[v]), silu = gate.x[v] * s;
            dgate.x[v] = dout.x[v] * up.x[v] * (s + silu * (1.0f - s));
            dup.x[v] = dout.x[v] * silu;
            product.x[v] = silu * up.x[v];
        }
        store<V>(dx, dgate);
        store<V>(dx + c.ffn, dup);
        if (c.out)
            store<V>((T *)c.out + r * c.ffn + i, product);
    });
}

KERNEL swiglu_forward_f32(const __grid_constant__ swiglu_call c)
{
    c.ffn % 4 == 0 ? swiglu_forward_rows<4, float>(c) : swiglu_forward_rows<1, float>(c);
}

KERNEL swiglu_forward_bf16(const __grid_constant__ swiglu_call c)
{
    c.ffn % 4 == 0 ? swiglu_forward_rows<4, bf16>(c) : swiglu_forward_rows<1, bf16>(c);
}

KERNEL swiglu_backward_f32(const __grid_constant__ swiglu_call c)
{
    c.ffn % 4 == 0 ? swiglu_backward_rows<4, float>(c) : swiglu_backward_rows<1, float>(c);
}

KERNEL swiglu_backward_bf16(const __grid_constant__ swiglu_call c)
{
    c.ffn % 4 == 0 ? swiglu_backward_rows<4, bf16>(c) : swiglu_backward_rows<1, bf16>(c);
}

/* ---------------------------------------------------------------------------------------------------------------- merge */

/* A warp has a head of a row of the block. */
KERNEL merge_rows(const __grid_constant__ merge_call c)
{
    for (int64_t n = first_warp(); n < c.batch * c.rows * c.heads; n += warp_step()) {
        const int64_t h = n % c.heads, i = n / c.heads % c.rows, batch = n / c.heads / c.rows;
        float *total = c.lse + (batch * c.heads + h) * c.seq + c.first + i;
        const float before = *total, other = c.block_lse[(batch * c.heads + h) * c.rows + i], most = fmaxf(before, other);
        const float merged = most + logf(expf(before - most) + expf(other - most));
        const float keep = expf(before - merged), take = expf(other - merged);
        float *out = c.out + (batch * c.seq + c.first + i) * c.out_stride + h * c.dim;
        const float *block = c.block_out + n * c.dim;
        for (int64_t d = lane(); d < c.dim; d += WARP)
            out[d] = keep * out[d] + take * block[d];
        __syncwarp(); /* every lane has read the sum */
        if (lane() == 0)
            *total = merged;
    }
}
