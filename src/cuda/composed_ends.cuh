/*
 * The ends of the composed baseline's products: copies to where they can read, and a look at what they made.
 */
#ifndef FATTN_CUDA_COMPOSED_ENDS_CUH
#define FATTN_CUDA_COMPOSED_ENDS_CUH

#include "cuda/composed_rows.cuh"

/* Row i of head h of sequence b, of a tensor of queries or of keys; NULL if it does not exist. */
__device__ __forceinline__ unsigned char *composed_place(const fattn_problem &problem, const fattn_launch &at,
                                                         const fattn_view &view, int32_t dtype, bool keys, long long b,
                                                         long long h, long long i)
{
    const fattn_sequence seq = fattn_sequence_of(&problem, &at, b);
    const size_t size = fattn_dtype_size(dtype);
    if (i >= (keys ? seq.seq_k : seq.seq_q))
        return NULL;
    return (unsigned char *)(keys ? fattn_key_row(&problem, &at, &view, size, &seq, h, i)
                                  : fattn_query_row(&view, size, &seq, h, i));
}

__device__ __forceinline__ void composed_move(const fattn_problem &problem, const fattn_launch &at, const composed_copy &c)
{
    const long long piece = (long long)blockIdx.x * THREADS + threadIdx.x;
    if (piece >= c.pieces)
        return;
    const int size = (int)fattn_dtype_size(c.dtype), held = COMPOSED_PIECE / size;
    const long long number = piece / (c.pitch / held), first = piece % (c.pitch / held) * held;
    const long long list = number / c.rows;
    const unsigned char *row =
        composed_place(problem, at, c.from, c.dtype, c.keys != 0, list / c.heads, list % c.heads, number % c.rows);
    unsigned char *to = c.to + piece * COMPOSED_PIECE;
    for (int e = 0; e < held; e++) {
        const bool there = row && first + e < c.columns;
        if (size == 4)
            ((uint32_t *)to)[e] = there ? ((const uint32_t *)row)[first + e] : 0;
        else
            ((uint16_t *)to)[e] = there ? ((const uint16_t *)row)[first + e] : (uint16_t)0;
    }
}

/* Column c of a row of queries' result: over the keys that it keeps. */
__device__ __forceinline__ float composed_sum_keys(const fattn_problem &problem, const fattn_launch &at,
                                                   const composed_matrices &matrices, const composed_result &result,
                                                   const composed_row &r, long long c)
{
    const size_t size = fattn_dtype_size(problem.desc.dtype);
    const unsigned char *left = result.left + r.number * matrices.pitch * 4;
    float sum = 0;
    for (int k = r.lo; k < r.hi; k++)
        sum = fmaf(exact_load<float>(left, problem.desc.dtype, k),
                   exact_load<float>(fattn_key_row(&problem, &at, &result.right, size, &r.seq, r.h / problem.group, k),
                                     problem.desc.dtype, c),
                   sum);
    return sum;
}

/* Column c of a key's result: over the rows that keep it, of its group's heads. */
__device__ __forceinline__ float composed_sum_rows(const fattn_problem &problem, const fattn_launch &at,
                                                   const composed_matrices &matrices, const composed_result &result,
                                                   long long b, long long h_kv, int k, long long c)
{
    const fattn_desc &d = problem.desc;
    const size_t size = fattn_dtype_size(d.dtype);
    float sum = 0;
    for (long long row = 0; row < problem.group * d.seq_q; row++) {
        const long long number = (b * d.heads_kv + h_kv) * problem.group * d.seq_q + row;
        const composed_row r = composed_row_of(problem, at, number);
        if (k < r.lo || k >= r.hi || matrices.state[number] != 0)
            continue;
        sum = fmaf(exact_load<float>(result.left + number * matrices.pitch * 4, d.dtype, k),
                   exact_load<float>(fattn_query_row(&result.right, size, &r.seq, r.h, r.i), d.dtype, c), sum);
    }
    return sum;
}

/* Computes row `number` of a result again; a warp. */
__device__ __noinline__ void composed_again(const fattn_problem &problem, const fattn_launch &at,
                                            const composed_matrices &matrices, const composed_result &result, long long number)
{
    const long long list = number / result.rows, b = list / result.heads, h = list % result.heads, i = number % result.rows;
    unsigned char *to = composed_place(problem, at, result.to, result.dtype, result.keys != 0, b, h, i);
    if (!to)
        return;
    for (long long c = threadIdx.x % 32; c < result.columns; c += 32) {
        float sum = 0;
        if (result.keys)
            sum = composed_sum_rows(problem, at, matrices, result, b, h, (int)i, c);
        else if (matrices.state[number] == 0)
            sum = composed_sum_keys(problem, at, matrices, result, composed_row_of(problem, at, number), c);
        exact_store(to, result.dtype, c, sum * result.by);
    }
}

/* Whether the numbers of a piece are finite, the first `count` of them. */
__device__ __forceinline__ bool composed_is_finite(const unsigned char *from, int32_t dtype, int count)
{
    const uint32_t exponent = dtype == FATTN_F32 ? 0x7f800000u : dtype == FATTN_F16 ? 0x7c00u : 0x7f80u;
    const uint4 four = *(const uint4 *)from;
    const uint32_t word[4] = {four.x, four.y, four.z, four.w};
    bool finite = true;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        const uint32_t bits = dtype == FATTN_F32 ? word[e / 2] : word[e / 2] >> e % 2 * 16;
        finite = finite && ((bits & exponent) != exponent || (dtype == FATTN_F32 ? e / 2 : e) >= count);
    }
    return finite;
}

/* Looks at a piece of a result, and brings it to where it belongs. */
__device__ __forceinline__ void composed_look(const fattn_problem &problem, const fattn_launch &at,
                                              const composed_matrices &matrices, const composed_result &result)
{
    const long long piece = (long long)blockIdx.x * THREADS + threadIdx.x;
    const bool there = piece < result.pieces, whole = result.columns == result.pitch;
    const int held = COMPOSED_PIECE / (int)fattn_dtype_size(result.dtype);
    const long long in_row = result.pitch / held;
    const unsigned char *from = result.from + piece * COMPOSED_PIECE;
    const int count =
        there && !whole && result.columns - piece % in_row * held < held ? (int)(result.columns - piece % in_row * held) : held;
    const bool finite = !there || (!result.none && composed_is_finite(from, result.dtype, count));
    if (there && result.copied && finite) {
        const long long number = piece / in_row, first = piece % in_row * held, list = number / result.rows;
        unsigned char *to = composed_place(problem, at, result.to, result.dtype, result.keys != 0, list / result.heads,
                                           list % result.heads, number % result.rows);
        for (int e = 0; e < count && to; e++)
            exact_store(to, result.dtype, first + e, exact_load<float>(from, result.dtype, e));
    }
    unsigned again = __ballot_sync(0xffffffffu, !finite);
    while (again) {
        const long long row = __shfl_sync(0xffffffffu, piece, __ffs(again) - 1) / in_row;
        composed_again(problem, at, matrices, result, row);
        again &= ~__ballot_sync(0xffffffffu, piece / in_row == row);
    }
}

#endif
