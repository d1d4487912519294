/*
 * What the kernels for f32 on tensor cores begin with: the lists that split.h describes, in one launch. Blocks are those of Q,
 * then those of K, V, in backward dO, from which comes D = rowsum(dO o O) - dlse, and what else rows bring along.
 */
#include "cuda/split.cuh"
#include "cuda/tensor_gradient.cuh"

constexpr int PIECES = SPLIT_PIECES;

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

/* What a block is at work on. */
struct splitting {
    int which; /* 0: q, 1: k, 2: v, 3: dout, 4: lanes */
    int b, head_kv;
    long long first; /* of the rows of the list that the block has */
};

__device__ inline splitting splitting_of(const fattn_problem &problem, const split_call &call)
{
    const fattn_desc &d = problem.desc;
    splitting s;
    for (s.which = 0; blockIdx.x >= call.first[s.which + 1]; s.which++)
        ;
    const bool lanes = s.which == SPLIT_TENSORS, keys = s.which == 1 || s.which == 2;
    const int rows_log = 31 - __clz(lanes ? THREADS : SPLIT_LIST_ROWS(call.dim)), rows = 1 << rows_log;
    const unsigned index = (unsigned)(blockIdx.x - call.first[s.which]), heads = (unsigned)d.heads_kv;
    const unsigned chunks = (unsigned)(((keys ? d.seq_k : problem.group * d.seq_q) + rows - 1) >> rows_log);
    s.first = (long long)(index % chunks) * rows;
    s.head_kv = (int)(index / chunks % heads);
    s.b = (int)(index / chunks / heads);
    return s;
}

/* What a thread has of a tile: pieces of eight numbers, as many threads as the tile has 32 numbers apart. */
struct pieces {
    float x[PIECES][PIECE];
    int threads, thread; /* of the tile */
    int of_row;          /* log2 of the pieces of a row */
    long long first;     /* the tile's first row */

    __device__ long long row(int i) const
    {
        return first + ((i * threads + thread) >> of_row);
    }
    __device__ int column(int i) const
    {
        return (((i * threads + thread) & ((1 << of_row) - 1))) * PIECE;
    }
};

__device__ inline void pieces_begin(pieces *p, const split_call &call, const splitting &s)
{
    const int rows = call.tile[s.which == 1 || s.which == 2];
    p->threads = rows * call.dim / (PIECES * PIECE);
    p->thread = (int)threadIdx.x & (p->threads - 1);
    p->of_row = 31 - __clz(call.dim / PIECE);
    p->first = s.first + ((int)threadIdx.x >> (31 - __clz(p->threads))) * rows;
}

/* A row of the list of a key/value head's queries. */
struct query_place {
    int head;
    long long row;
};

__device__ inline query_place query_of(const fattn_problem &problem, const fattn_sequence &seq, int head_kv, long long row)
{
    const int head = (int)(head_kv * problem.group);
    if (row < seq.seq_q)
        return {head, row};
    return {(int)(head + row / seq.seq_q), row % seq.seq_q};
}

/* The pieces' numbers; zeros where there is no row. */
__device__ inline void read_pieces(const fattn_problem &problem, const fattn_launch &at, const fattn_sequence &seq,
                                   const splitting &s, long long there, pieces *p)
{
    const fattn_desc &d = problem.desc;
    const bool keys = s.which == 1 || s.which == 2;
    const fattn_view &view = s.which == 0 ? at.q : s.which == 1 ? at.k : s.which == 2 ? at.v : at.dout;
    const int64_t count = s.which < 2 ? d.dim : d.dim_v;
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const long long row = p->row(i);
        float factor = 1;
#pragma unroll
        for (int j = 0; j < PIECE; j++)
            p->x[i][j] = 0;
        if (row >= there)
            continue;
        if (!keys) {
            const query_place q = query_of(problem, seq, s.head_kv, row);
            read_piece(fattn_query_row(&view, 4, &seq, q.head, q.row), FATTN_F32, 1, p->column(i), count, p->x[i]);
            continue;
        }
        if (d.kv_dtype == FATTN_I8)
            factor = (s.which == 1 ? at.k_scales : at.v_scales)[fattn_scale_index(&problem, &at, &seq, s.head_kv, row)];
        read_piece(fattn_key_row(&problem, &at, &view, fattn_dtype_size(d.kv_dtype), &seq, s.head_kv, row), d.kv_dtype, factor,
                   p->column(i), count, p->x[i]);
    }
}

constexpr uint32_t INFINITE = 0x7f800000; /* bits of an infinity; NaNs are above */

__device__ __forceinline__ uint32_t size_of(float x)
{
    return __float_as_uint(x) & 0x7fffffffu;
}

/* Sizes of a tile's numbers, as bits. */
struct tile_sizes {
    uint32_t largest; /* of the finite ones of the tile */
    bool doubt;       /* whether a row of the warp's pieces may not suit the tile's unit */
};

/* `part` of a size, at least the least size above 0. */
__device__ __forceinline__ uint32_t part_of(uint32_t size, float part)
{
    return max(__float_as_uint(__uint_as_float(size) * part), 1u);
}

/* The larger size of two numbers, or a NaN: one instruction. */
__device__ __forceinline__ float larger(float x, float y)
{
    float size;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(size) : "f"(fabsf(x)), "f"(fabsf(y)));
    return size;
}

__device__ inline tile_sizes sizes_of(const pieces &p)
{
    __shared__ uint32_t of_warp[TENSOR_WARPS];
    tile_sizes sizes = {0, false};
    float least = INFINITY, least_of_pieces = INFINITY; /* of pieces that are not 0: a number, and a piece's largest */
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        float largest_of = 0, least_of = INFINITY;
#pragma unroll
        for (int j = 0; j < PIECE; j++) {
            largest_of = larger(largest_of, p.x[i][j]);
            least_of = fminf(least_of, fabsf(p.x[i][j]));
        }
        sizes.largest = max(sizes.largest, size_of(largest_of));
        least = largest_of == 0 ? least : fminf(least, least_of);
        least_of_pieces = largest_of == 0 ? least_of_pieces : fminf(least_of_pieces, largest_of);
    }
    const bool finite = sizes.largest < INFINITE;
    if (!finite) {
        sizes.largest = 0;
#pragma unroll
        for (int i = 0; i < PIECES; i++)
#pragma unroll
            for (int j = 0; j < PIECE; j++)
                if (size_of(p.x[i][j]) < INFINITE)
                    sizes.largest = max(sizes.largest, size_of(p.x[i][j]));
    }
    sizes.largest = __reduce_max_sync(0xffffffffu, sizes.largest);
    if (p.threads > 32) { /* of the whole block alike */
        if (threadIdx.x % 32 == 0)
            of_warp[threadIdx.x / 32] = sizes.largest;
        __syncthreads();
        for (int w = 0; w < p.threads / 32; w++)
            sizes.largest = max(sizes.largest, of_warp[((int)threadIdx.x - p.thread) / 32 + w]);
    }
    sizes.doubt = __any_sync(0xffffffffu, !finite || __float_as_uint(least) < part_of(sizes.largest, SPLIT_RANGE) ||
                                              __float_as_uint(least_of_pieces) < part_of(sizes.largest, SPLIT_EVEN));
    return sizes;
}

/* A row, of which each of some threads, which come here together, has a piece. */
struct row_size {
    uint32_t of; /* the size that the row's unit is for */
    bool uneven; /* the unit is not the tile's */
    bool apart;  /* a number is not finite, or a quarter of those that are not 0 are too small */
};

__device__ inline row_size size_of_row(const float x[PIECE], uint32_t of_tile, int of_row)
{
    constexpr int one = 1 << 16; /* of two counts */
    uint32_t largest = 0;
    int counts = 0; /* of numbers that are not 0, and in ones of too small ones */
#pragma unroll
    for (int j = 0; j < PIECE; j++)
        largest = max(largest, size_of(x[j]) < INFINITE ? size_of(x[j]) : 0);
    for (int step = (1 << of_row) / 2; step > 0; step /= 2)
        largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    row_size size = {of_tile, largest != 0 && largest < part_of(of_tile, SPLIT_EVEN), false};
    if (size.uneven)
        size.of = max(largest, part_of(of_tile, SPLIT_LEAST));
    const uint32_t least = part_of(size.of, SPLIT_RANGE);
#pragma unroll
    for (int j = 0; j < PIECE; j++)
        if (size_of(x[j]) != 0)
            counts += size_of(x[j]) >= INFINITE ? one * SPLIT_DIM_MOST / 4 : size_of(x[j]) < least ? one + 1 : 1;
    for (int step = (1 << of_row) / 2; step > 0; step /= 2)
        counts += __shfl_xor_sync(0xffffffffu, counts, step);
    size.apart = counts >= one && 4 * (counts / one) >= counts % one;
    return size;
}

__device__ inline void write_piece(unsigned char *to, int dim, const float x[PIECE], float scale, bool apart)
{
    uint32_t pairs[PIECE / 2][SPLIT_PARTS];
#pragma unroll
    for (int i = 0; i < PIECE / 2; i++)
        split_pair(apart ? NAN : x[2 * i] * scale, apart ? NAN : x[2 * i + 1] * scale, pairs[i]);
#pragma unroll
    for (int p = 0; p < SPLIT_PARTS; p++)
        *(uint4 *)(to + p * dim * 2) = make_uint4(pairs[0][p], pairs[1][p], pairs[2][p], pairs[3][p]);
}

/* D = dout . out - dlse of each row, whose pieces of dout the threads have. Goes to delta, and with the power of two of the
 * scale to the row's lane. */
__device__ inline void set_delta(const fattn_problem &problem, const fattn_launch &at, const split_call &call,
                                 const fattn_sequence &seq, const splitting &s, long long there, const pieces &p)
{
    const fattn_desc &d = problem.desc;
    const long long list = split_queries(problem, at, seq, s.head_kv);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const long long row = p.row(i);
        const query_place q = query_of(problem, seq, s.head_kv, min(row, there - 1));
        float out[PIECE];
        double sum = 0;
        if (row < there) {
            read_piece(fattn_query_row(&at.out, 4, &seq, q.head, q.row), FATTN_F32, 1, p.column(i), d.dim_v, out);
#pragma unroll
            for (int j = 0; j < PIECE; j++)
                sum += (double)p.x[i][j] * (double)out[j];
        }
        for (int step = (1 << p.of_row) / 2; step > 0; step /= 2)
            sum += __shfl_xor_sync(0xffffffffu, sum, step);
        if (row >= there || p.column(i) != 0)
            continue;
        const long long index = seq.lse_first + q.head * seq.lse_head + q.row;
        if (d.flags & FATTN_WITH_DLSE)
            sum -= (double)((const float *)at.dlse)[index];
        call.delta[index] = (float)sum;
        ((grad_lane *)call.lanes)[list + row].delta = (float)sum * split_power((float)d.scale);
    }
}

__device__ inline void split_rows(const fattn_problem &problem, const fattn_launch &at, const split_call &call,
                                  const fattn_sequence &seq, const splitting &s)
{
    const bool keys = s.which == 1 || s.which == 2;
    const long long there = keys ? seq.seq_k : problem.group * seq.seq_q;
    pieces p;
    if (s.first >= there)
        return;
    pieces_begin(&p, call, s);
    read_pieces(problem, at, seq, s, there, &p);
    const tile_sizes sizes = sizes_of(p);
    row_size size[PIECES];
    bool uneven = false;
#pragma unroll
    for (int i = 0; i < PIECES; i++)
        size[i] = {sizes.largest, false, false};
    if (sizes.doubt) {
#pragma unroll
        for (int i = 0; i < PIECES; i++) {
            size[i] = size_of_row(p.x[i], sizes.largest, p.of_row);
            uneven = uneven || size[i].uneven;
        }
    }
    uneven = p.threads > 32 ? __syncthreads_or(uneven) : __any_sync(0xffffffffu, uneven);
    const float scale = split_scale(sizes.largest), sign = s.which == 0 && problem.desc.scale < 0 ? -1.0f : 1.0f;
    unsigned char *list =
        call.parts[s.which] +
        (keys ? split_keys(problem, at, seq, s.head_kv) : split_queries(problem, at, seq, s.head_kv)) * SPLIT_PITCH(call.dim);
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const float own_scale = split_scale(size[i].of), unit = split_inverse(own_scale);
        unsigned char *to = list + p.row(i) * SPLIT_PITCH(call.dim);
        if (p.row(i) >= there)
            continue;
        write_piece(to + p.column(i) * 2, call.dim, p.x[i], own_scale * sign, size[i].apart);
        if (p.column(i) == 0)
            *(float4 *)(to + SPLIT_UNIT(call.dim)) =
                make_float4(unit, split_inverse(scale), scale * unit, __int_as_float(uneven)); /* split_units, in one piece */
    }
    if (s.which == 3)
        set_delta(problem, at, call, seq, s, there, p);
}

/* Lanes of a list's rows but for delta, and of each tile of them the span. */
__device__ inline void list_lanes(const fattn_problem &problem, const fattn_launch &at, const split_call &call,
                                  const fattn_sequence &seq, const splitting &s)
{
    const long long row = s.first + threadIdx.x, first = split_queries(problem, at, seq, s.head_kv);
    const int tile = call.tile[0];
    const grad_lane lane = lane_of(problem, at, seq, s.head_kv, row);
    const bool any = lane.place.lo < lane.place.hi;
    split_span span = {any ? lane.place.lo : INT64_MAX, lane.place.hi, lane.place.lo, lane.place.hi};
    for (int step = tile / 2; step > 0; step /= 2) {
        span.lo = min((long long)span.lo, __shfl_xor_sync(0xffffffffu, (long long)span.lo, step));
        span.hi = max((long long)span.hi, __shfl_xor_sync(0xffffffffu, (long long)span.hi, step));
        span.all_lo = max((long long)span.all_lo, __shfl_xor_sync(0xffffffffu, (long long)span.all_lo, step));
        span.all_hi = min((long long)span.all_hi, __shfl_xor_sync(0xffffffffu, (long long)span.all_hi, step));
    }
    if (lane.place.row < 0)
        return;
    ((grad_lane *)call.lanes)[first + row].place = lane.place;
    ((grad_lane *)call.lanes)[first + row].lse = lane.lse;
    if (row % tile == 0)
        call.spans[SPLIT_SPANS(first, tile, s.b * problem.desc.heads_kv + s.head_kv) + row / tile] = span;
}

extern "C" __global__ void __launch_bounds__(THREADS, 6)
    split_lists(const __grid_constant__ fattn_problem problem, const __grid_constant__ fattn_launch at,
                const __grid_constant__ split_call call)
{
    const splitting s = splitting_of(problem, call);
    ptx_wait_for_grids_before();
    ptx_let_grids_after_begin(); /* they read what was there before this launch, and wait for the lists */
    const fattn_sequence seq = fattn_sequence_of(&problem, &at, s.b);
    if (s.which < SPLIT_TENSORS)
        split_rows(problem, at, call, seq, s);
    else
        list_lanes(problem, at, call, seq, s);
}
