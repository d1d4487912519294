/*
 * What the kernels for f32 on tensor cores begin with: the lists that split.h describes, in one launch. Blocks are those of Q,
 * then those of K, V, in backward dO, from which comes D = rowsum(dO o O) - dlse, and what else rows bring along.
 */
#include "cuda/split.cuh"
#include "cuda/tensor_gradient.cuh"

/* Numbers c .. c + 7 of a row as they are, zeros behind its end. */
__device__ inline void read_piece(const void *row, int32_t dtype, float factor, int c, int64_t count, float x[PIECE])
{
    const float *from = (const float *)row + c;
    if (dtype == FATTN_F32 && c + PIECE <= count && (uintptr_t)from % 16 == 0) {
        *(float4 *)x = *(const float4 *)from;
        *(float4 *)(x + 4) = *(const float4 *)(from + 4);
        return;
    }
    for (int i = 0; i < PIECE; i++)
        x[i] = c + i < count ? load_number(row, dtype, c + i) * factor : 0.0f;
}

/* A number's parts. Those of an infinity or a NaN are that and zeros, and a number that is just too large for bf16 is not one.
 */
__device__ inline void split_special(float x, part parts[SPLIT_PARTS])
{
    for (int i = 0; i < SPLIT_PARTS; i++) {
        parts[i] = __float2bfloat16_rz(x);
        x = x - x == 0 ? x - __bfloat162float(parts[i]) : 0.0f;
    }
}

__device__ inline void write_piece(unsigned char *to, int dim, const float x[PIECE])
{
    uint32_t pairs[SPLIT_PARTS][PIECE / 2];
    bool ordinary = true;
#pragma unroll
    for (int i = 0; i < PIECE; i++)
        ordinary = ordinary && fabsf(x[i]) < 0x1p127f;
#pragma unroll
    for (int i = 0; i < PIECE / 2; i++) {
        uint32_t parts[SPLIT_PARTS];
        if (ordinary)
            split_pair(x[2 * i], x[2 * i + 1], parts);
        else {
            part low[SPLIT_PARTS], high[SPLIT_PARTS];
            split_special(x[2 * i], low);
            split_special(x[2 * i + 1], high);
            for (int p = 0; p < SPLIT_PARTS; p++)
                parts[p] = __bfloat16_as_ushort(low[p]) | (uint32_t)__bfloat16_as_ushort(high[p]) << 16;
        }
#pragma unroll
        for (int p = 0; p < SPLIT_PARTS; p++)
            pairs[p][i] = parts[p];
    }
#pragma unroll
    for (int p = 0; p < SPLIT_PARTS; p++)
        *(uint4 *)(to + p * dim * 2) = make_uint4(pairs[p][0], pairs[p][1], pairs[p][2], pairs[p][3]);
}

/* Which tensor a block is at work on, and where in it. */
struct splitting {
    int which; /* 0: q, 1: k, 2: v, 3: dout, 4: lanes */
    int64_t count;
    int b, head, chunk;
};

__device__ inline splitting splitting_of(const fattn_problem &problem, const split_call &call)
{
    const fattn_desc &d = problem.desc;
    splitting s;
    for (s.which = 0; blockIdx.x >= call.first[s.which + 1]; s.which++)
        ;
    const bool lanes = s.which == SPLIT_TENSORS, keys = s.which == 1 || s.which == 2;
    const int heads = (int)(keys || lanes ? d.heads_kv : d.heads_q);
    const int64_t threads = lanes ? problem.group * d.seq_q : (keys ? d.seq_k : d.seq_q) * (call.dim / PIECE);
    const int chunks = (int)((threads + THREADS - 1) / THREADS), index = (int)(blockIdx.x - call.first[s.which]);
    s.count = s.which < 2 ? d.dim : d.dim_v;
    s.chunk = index % chunks;
    s.head = index / chunks % heads;
    s.b = index / chunks / heads;
    return s;
}

/* D = dout . out - dlse of a row, whose piece this thread has; `pieces` threads have the row. Goes to delta and to the row's
 * lane. */
__device__ inline void set_delta(const fattn_problem &problem, const fattn_launch &at, const split_call &call,
                                 const fattn_sequence &seq, int head, long long row, int c, const float dout[PIECE],
                                 long long place)
{
    const fattn_desc &d = problem.desc;
    float out[PIECE];
    double sum = 0;
    if (row < seq.seq_q) {
        read_piece(fattn_query_row(&at.out, 4, &seq, head, row), FATTN_F32, 1, c, d.dim_v, out);
#pragma unroll
        for (int i = 0; i < PIECE; i++)
            sum += (double)dout[i] * (double)out[i];
    }
    for (int step = call.dim / PIECE / 2; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (row >= seq.seq_q || c != 0)
        return;
    const long long index = seq.lse_first + head * seq.lse_head + row;
    if (d.flags & FATTN_WITH_DLSE)
        sum -= (double)((const float *)at.dlse)[index];
    call.delta[index] = (float)sum;
    ((grad_lane *)call.lanes)[place].delta = (float)sum;
}

__device__ inline void split_tensor(const fattn_problem &problem, const fattn_launch &at, const split_call &call,
                                    const fattn_sequence &seq, const splitting &s)
{
    const fattn_desc &d = problem.desc;
    const int pieces = call.dim / PIECE;
    const int64_t row = (int64_t)s.chunk * (THREADS / pieces) + (int)threadIdx.x / pieces;
    const int c = (int)threadIdx.x % pieces * PIECE;
    const bool keys = s.which == 1 || s.which == 2, there = row < (keys ? seq.seq_k : seq.seq_q);
    const fattn_view &view = s.which == 0 ? at.q : s.which == 1 ? at.k : s.which == 2 ? at.v : at.dout;
    float x[PIECE], factor = 1;
    if (there && keys && d.kv_dtype == FATTN_I8)
        factor = (s.which == 1 ? at.k_scales : at.v_scales)[fattn_scale_index(&problem, &at, &seq, s.head, row)];
    if (there && keys)
        read_piece(fattn_key_row(&problem, &at, &view, fattn_dtype_size(d.kv_dtype), &seq, s.head, row), d.kv_dtype, factor, c,
                   s.count, x);
    else if (there)
        read_piece(fattn_query_row(&view, 4, &seq, s.head, row), FATTN_F32, factor, c, s.count, x);
    const long long place =
        row + (keys ? split_keys(problem, at, seq, s.head)
                    : split_queries(problem, at, seq, (int)(s.head / problem.group)) + s.head % problem.group * seq.seq_q);
    if (there)
        write_piece(call.parts[s.which] + place * SPLIT_PITCH(call.dim) + c * 2, call.dim, x);
    if (s.which == 3)
        set_delta(problem, at, call, seq, s.head, row, c, x, place);
}

/* Lanes of a list's rows but for delta, and of each tile of them the span. */
__device__ inline void list_lanes(const fattn_problem &problem, const fattn_launch &at, const split_call &call,
                                  const fattn_sequence &seq, const splitting &s)
{
    const grad_problem g = {&problem, &at, &seq, call.delta, FATTN_F32};
    const long long row = (long long)s.chunk * THREADS + threadIdx.x, first = split_queries(problem, at, seq, s.head);
    const grad_lane lane = lane_of(g, s.head, row);
    const bool any = lane.place.lo < lane.place.hi;
    split_span span = {any ? lane.place.lo : INT64_MAX, lane.place.hi, lane.place.lo, lane.place.hi};
    for (int step = call.tile / 2; step > 0; step /= 2) {
        span.lo = min((long long)span.lo, __shfl_xor_sync(0xffffffffu, (long long)span.lo, step));
        span.hi = max((long long)span.hi, __shfl_xor_sync(0xffffffffu, (long long)span.hi, step));
        span.all_lo = max((long long)span.all_lo, __shfl_xor_sync(0xffffffffu, (long long)span.all_lo, step));
        span.all_hi = min((long long)span.all_hi, __shfl_xor_sync(0xffffffffu, (long long)span.all_hi, step));
    }
    if (lane.place.row < 0)
        return;
    ((grad_lane *)call.lanes)[first + row].place = lane.place;
    ((grad_lane *)call.lanes)[first + row].lse = lane.lse;
    if (row % call.tile == 0)
        call.spans[SPLIT_SPANS(first, call.tile, s.b * problem.desc.heads_kv + s.head) + row / call.tile] = span;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    split_lists(const __grid_constant__ fattn_problem problem, const __grid_constant__ fattn_launch at,
                const __grid_constant__ split_call call)
{
    const splitting s = splitting_of(problem, call);
    const fattn_sequence seq = fattn_sequence_of(&problem, &at, s.b);
    if (s.which < SPLIT_TENSORS)
        split_tensor(problem, at, call, seq, s);
    else
        list_lanes(problem, at, call, seq, s);
}
