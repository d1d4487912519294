/*
 * What comes before and after Hopper's backward kernel, for each block of rows of each query head:
 *
 * Before     D = rowsum(dO o O) - dlse, what the rows' accumulators start from and which keys they keep, the span of keys of
 * the block; sums of dQ that are added to in any order become 0. After      dQ = scale times the sums, in its own type; rows
 * and keys whose gradients are not finite are computed again by themselves (tensor_gradient.cuh).
 *
 * The last blocks come first: what the launch before touched last is still in the GPU's cache.
 */
#include "cuda/hopper_backward.cuh"

constexpr int PASS_THREADS = HOPPER_PASS_THREADS;

/* ------------------------------------------------------------------------------------------------------------- before */

/* Eight numbers of each of n rows, `stride` bytes apart, the first `there` of which exist, from where one has `columns` more
 * on; else zeros. */
template <int n>
__device__ __forceinline__ void load_eights(uint4 (&x)[n], const char *from, long long stride, int there, long long columns,
                                            bool lines)
{
#pragma unroll
    for (int i = 0; i < n; i++)
        x[i] = make_uint4(0, 0, 0, 0);
    if (lines) {
#pragma unroll
        for (int i = 0; i < n; i++)
            if (i < there && columns > 0)
                x[i] = *(const uint4 *)(from + i * stride);
        return;
    }
#pragma unroll
    for (int i = 0; i < n; i++)
#pragma unroll
        for (int e = 0; e < 8; e++)
            if (i < there && e < columns)
                ((uint32_t *)&x[i])[e / 2] |= (uint32_t)((const uint16_t *)(from + i * stride))[e] << (16 * (e % 2));
}

__device__ __forceinline__ float dot_pair(uint32_t a, uint32_t b)
{
    return __uint_as_float(a << 16) * __uint_as_float(b << 16) +
           __uint_as_float(a & 0xffff0000u) * __uint_as_float(b & 0xffff0000u);
}

/* The block's span of keys, by threads that have a row each or none; for all heads alike. */
__device__ inline void set_span(const fattn_sequence &seq, long long row, bool exists, int *span)
{
    __shared__ block_span s;
    if (threadIdx.x == 0)
        s = {INT32_MAX, 0, 0, INT32_MAX};
    __syncthreads();
    if (exists) {
        const fattn_interval keep = fattn_mask_row(&seq.mask, row);
        if (keep.lo < keep.hi) {
            atomicMin(&s.lo, (int)keep.lo);
            atomicMax(&s.hi, (int)keep.hi);
        }
        atomicMax(&s.all_lo, (int)keep.lo);
        atomicMin(&s.all_hi, (int)keep.hi);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        *(int4 *)span = make_int4(s.lo, s.hi, s.all_lo, s.all_hi);
}

/* Numbers of row `row`, number r of the block. d: the row's product of dO and O. */
template <int rows>
__device__ __forceinline__ void set_numbers(const fattn_problem &problem, const fattn_launch &at,
                                            const hopper_backward_call &call, const fattn_sequence &seq, int head,
                                            long long block, int r, long long row, bool exists, float d)
{
    float *to = call.numbers + block * HOPPER_ROW_NUMBERS * rows + r;
    const double scale = problem.desc.scale;
    const float nothing = scale < 0 ? INFINITY : -INFINITY;
    float start = nothing;
    fattn_interval keep = {0, 0};
    if (exists) {
        const long long index = seq.lse_first + head * seq.lse_head + row;
        const float lse = ((const float *)at.lse)[index];
        if (problem.desc.flags & FATTN_WITH_DLSE)
            d -= ((const float *)at.dlse)[index];
        call.delta[index] = d;
        if (lse != -INFINITY) {
            keep = fattn_mask_row(&seq.mask, row);
            start = -lse * (float)(1 / scale);
        }
    }
    to[NUMBER_LSE * rows] = start;
    to[NUMBER_DELTA * rows] = exists ? -d : 0.0f;
    to[NUMBER_LO * rows] = __int_as_float((int)keep.lo);
    to[NUMBER_HI * rows] = __int_as_float((int)keep.hi);
}

template <int dim, bool ordered>
__device__ __forceinline__ void before(const fattn_problem &problem, const fattn_launch &at, const hopper_backward_call &call)
{
    constexpr int rows = HOPPER_BACKWARD_ROWS(dim), lanes = dim / 8, step = PASS_THREADS / lanes;
    const fattn_desc &d = problem.desc;
    const int index = (int)(gridDim.x - 1 - blockIdx.x);
    ptx_let_grids_after_begin();
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *call.next = 0;
    if (call.blocks == 0) /* a block of threads for the line above */
        return;
    const int head = index / (int)call.blocks, block = index % (int)call.blocks;
    long long first;
    const fattn_sequence seq = block_rows<rows>(problem, at, call, block, &first);
    if (first >= seq.seq_q)
        return;
    if (ordered && threadIdx.x == 0)
        call.turns[index] = 0;
    if (!ordered)
#pragma unroll
        for (int i = 0; i < rows * dim / 4 / PASS_THREADS; i++)
            ((float4 *)call.sums)[(long long)index * (rows * dim / 4) + i * PASS_THREADS + threadIdx.x] =
                make_float4(0, 0, 0, 0);
    const int own = threadIdx.x / lanes, column = threadIdx.x % lanes * 8;
    const int there = (int)(seq.seq_q - first - own + step - 1) / step; /* of the thread's rows; not above 0: none */
    const char *out = (const char *)fattn_query_row(&at.out, 2, &seq, head, first + own) + 2 * column;
    const char *dout = (const char *)fattn_query_row(&at.dout, 2, &seq, head, first + own) + 2 * column;
    uint4 x[rows / step], y[rows / step];
    load_eights(x, out, 2 * step * at.out.stride_row, there, d.dim_v - column, call.out_lines != 0);
    load_eights(y, dout, 2 * step * at.dout.stride_row, there, d.dim_v - column, call.dout_lines != 0);
    __shared__ float dots[rows];
#pragma unroll
    for (int i = 0; i < rows / step; i++) {
        float sum = dot_pair(x[i].x, y[i].x) + dot_pair(x[i].y, y[i].y) + dot_pair(x[i].z, y[i].z) + dot_pair(x[i].w, y[i].w);
#pragma unroll
        for (int across = lanes / 2; across > 0; across /= 2)
            sum += __shfl_xor_sync(ALL, sum, across);
        if (threadIdx.x % lanes == 0)
            dots[own + i * step] = sum;
    }
    __syncthreads();
    if (threadIdx.x < rows)
        set_numbers<rows>(problem, at, call, seq, head, index, threadIdx.x, first + threadIdx.x,
                          first + threadIdx.x < seq.seq_q, dots[threadIdx.x]);
    if (head == 0)
        set_span(seq, first + threadIdx.x, threadIdx.x < rows && first + threadIdx.x < seq.seq_q, call.spans + 4 * block);
}

/* -------------------------------------------------------------------------------------------------------------- after */

/* A quad's lanes have two numbers each of columns 8 j + 2 lane in x[j]; afterwards columns 8 lane .. 8 lane + 7. */
__device__ __forceinline__ void transpose_quad(uint32_t (&x)[4])
{
#pragma unroll
    for (int step = 1; step < 4; step <<= 1) {
        const bool upper = threadIdx.x & step;
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (!(j & step)) {
                const uint32_t y = __shfl_xor_sync(ALL, upper ? x[j] : x[j + step], step);
                x[j] = upper ? y : x[j];
                x[j + step] = upper ? x[j + step] : y;
            }
    }
}

/* Writes half 0 or 1 of a lane's two rows of an accumulator of n / 2 * 4 columns, times `by`, from column `column` on. row:
 * NULL where there is none. Without lines, number by number. */
template <int n>
__device__ __forceinline__ void store_accumulator(const float (&d)[n], int half, float by, void *row, int32_t dtype, bool lines,
                                                  int column, int columns)
{
    const int lane = threadIdx.x % 4;
    if (!lines) {
#pragma unroll
        for (int j = 0; j < n / 4; j++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (row && column + 8 * j + 2 * lane + e < columns)
                    store_number(row, dtype, column + 8 * j + 2 * lane + e, d[4 * j + 2 * half + e] * by);
        return;
    }
#pragma unroll
    for (int q = 0; q < n / 16; q++) {
        uint32_t x[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            x[j] = ptx_pack(d[16 * q + 4 * j + 2 * half] * by, d[16 * q + 4 * j + 2 * half + 1] * by, __nv_bfloat16());
        transpose_quad(x);
        const int c = column + 32 * q + 8 * lane;
        if (row && c < columns)
            *(uint4 *)((__nv_bfloat16 *)row + c) = make_uint4(x[0], x[1], x[2], x[3]);
    }
}

/* Keys of tile t that the kernel found not to be finite: a warp's each. */
template <int dim>
__device__ inline void mend_keys(const fattn_problem &problem, const fattn_launch &at, const hopper_backward_call &call, int t,
                                 uint32_t wrong)
{
    const fattn_desc &d = problem.desc;
    const key_tile tile = tile_of(call, (int)d.heads_kv, (int)(d.heads_kv * d.batch), t);
    const fattn_sequence seq = fattn_sequence_of(&problem, &at, tile.b);
    const long long first = (long long)tile.number * KEYS + threadIdx.x / 32 * 16;
#pragma unroll 1
    for (int r = 0; r < 16; r++)
        if (wrong >> r & 1 && first + r < seq.seq_k)
            key_alone<dim>(&problem, &at, call.delta, tile.b, 0, tile.head, first + r);
}

/* dQ of a block: a warp has 16 rows and 64 columns. */
template <int dim>
__device__ inline void finish_rows(const fattn_problem &problem, const fattn_launch &at, const hopper_backward_call &call,
                                   int index)
{
    constexpr int rows = HOPPER_BACKWARD_ROWS(dim);
    const fattn_desc &d = problem.desc;
    const int piece = threadIdx.x / 128, warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
    const int head = index / (int)call.blocks, block = index % (int)call.blocks;
    long long first;
    const fattn_sequence seq = block_rows<rows>(problem, at, call, block, &first);
    if (first >= seq.seq_q)
        return;
    const int2 span = *(const int2 *)(call.spans + 4 * block);
    const float4 *from = (const float4 *)call.sums + (long long)index * (rows * dim / 4);
    const long long row = first + piece / (dim / PANEL) * 64 + warp * 16 + lane / 4;
    const int column = piece % (dim / PANEL) * PANEL;
    float sum[32];
#pragma unroll
    for (int j = 0; j < 8; j++)
        *(float4 *)&sum[4 * j] = __ldcs(from + sums_at(piece, warp, j));
#pragma unroll
    for (int e = 0; e < 32; e++)
        sum[e] = span.x < span.y ? sum[e] : 0.0f; /* else nobody has added anything */
    unsigned wrong[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const bool there = row + 8 * half < seq.seq_q;
        store_accumulator(sum, half, (float)d.scale,
                          there ? fattn_query_row(&at.dq, fattn_dtype_size(d.grad_dtype), &seq, head, row + 8 * half) : NULL,
                          d.grad_dtype, call.dq_lines, column, (int)d.dim);
        wrong[half] = __ballot_sync(ALL, there && doubt_of(sum, half) != 0);
    }
    if ((wrong[0] | wrong[1]) == 0)
        return;
    __syncwarp();
#pragma unroll 1
    for (int r = 0; r < 16; r++)
        if ((r < 8 ? wrong[0] : wrong[1]) >> (4 * (r % 8)) & 15)
            query_alone<PANEL>(&problem, &at, call.delta, seq.b, column, head, row - lane / 4 + r);
}

template <int dim>
__device__ __forceinline__ void after(const fattn_problem &problem, const fattn_launch &at, const hopper_backward_call &call)
{
    const int index = (int)(gridDim.x - 1 - blockIdx.x);
    uint32_t wrong = 0;
    ptx_wait_for_grids_before();
    if (index < call.tiles)
        wrong = call.wrong[(long long)index * HOPPER_TILE_WARPS + threadIdx.x / 32];
    if (index < problem.desc.heads_q * call.blocks)
        finish_rows<dim>(problem, at, call, index);
    if (wrong != 0) /* of a tile that is none it may be anything */
        mend_keys<dim>(problem, at, call, index, wrong);
}

/* ------------------------------------------------------------------------------------------------------------- kernels */

#define PASS(name, body)                                                                                                       \
    extern "C" __global__ void __launch_bounds__(PASS_THREADS)                                                                 \
        name(const __grid_constant__ fattn_problem problem, const __grid_constant__ fattn_launch at,                           \
             const __grid_constant__ hopper_backward_call call)                                                                \
    {                                                                                                                          \
        body(problem, at, call);                                                                                               \
    }
#define COMMA ,

PASS(hopper_before_64, before<64 COMMA false>)
PASS(hopper_before_64_ordered, before<64 COMMA true>)
PASS(hopper_before_128, before<128 COMMA false>)
PASS(hopper_before_128_ordered, before<128 COMMA true>)
PASS(hopper_after_64, after<64>)
PASS(hopper_after_128, after<128>)
