/*
 * What a decode unit is, and how its queries, keys and values come to shared memory.
 */
#ifndef FATTN_CUDA_DECODE_CUH
#define FATTN_CUDA_DECODE_CUH

#include "cuda/decode.h"
#include "cuda/softmax.cuh"

#define RARELY(x)                                                                                                              \
    __builtin_expect(!!(x), 0) /* what follows is moved out of the way: fetching instructions is a good part of the time */

template <class T, bool bytes> struct number_of {
    using type = T;
};
template <class T> struct number_of<T, true> {
    using type = signed char;
};

/* Sizes of a kernel: dims padded, columns of values, keys of a warp's tile, tiles that it has room for, whether K and V are
 * bytes, and whether scores or probabilities are more than products and powers, factors of bytes aside. */
template <int dim_, int width_, int keys_, int stages_, bool bytes_, bool adjusted_> struct sizes {
    static constexpr int dim = dim_, width = width_, keys = keys_, stages = stages_, m_tiles = 1;
    static constexpr bool bytes = bytes_, adjusted = adjusted_;
    static constexpr int size = bytes ? 1 : 2; /* of a number of K and V */
    static constexpr int k_bytes = keys * dim * size, slot = keys * (dim + width) * size;
    static constexpr int step = DECODE_WARPS * keys;   /* keys that the block's warps meet at a time */
    static constexpr int blocks = width > 128 ? 2 : 3; /* of a multiprocessor at a time, as registers allow */
    static constexpr int part_row = width + 8;         /* floats of a row of a warp's sums: rows begin at different banks */
    static_assert(DECODE_WARPS * 16 * (part_row + 2) * 4 <= DECODE_WARPS * stages * slot + 16 * dim * 2, "sums fit");
    static_assert(keys % DECODE_RUN == 0, "tiles are whole runs");
};

/* -------------------------------------------------------------------------------------------------------------- a unit */

template <class S> struct unit {
    const fattn_problem *problem;
    const fattn_launch *at;
    const decode_call *call;
    fattn_sequence seq;
    long long b, column, first;   /* first: key of the chunk */
    int chunk, head_kv, rows;     /* rows of the list that exist */
    unsigned char *tiles, *q;     /* tiles: [warp][stage] of K and V */
    lane_place *lane;             /* lo, hi: of the chunk */
    float *k_factor, *v_factor;   /* [warp][stage][keys] of bytes */
    const char *k_from, *v_from;  /* the first key of the chunk, or of page 0 */
    const int32_t *pages;         /* of the chunk's keys; NULL: not paged */
    uint32_t page_size, page_row; /* page_row: where in its page the chunk begins */
    bool scattered;               /* pages of no whole runs */
    int lo, hi;                   /* keys of the chunk that any row keeps, from its first */
    __device__ int warp_row() const
    {
        return threadIdx.x / 32 % call->row_tiles * 16;
    }
    __device__ int halves() const /* of the warp's tile of rows: with 8 of them and less there is one */
    {
        return rows <= 8 ? 1 : 2;
    }
};

/* The chunk's pages. */
template <class S> __device__ inline void unit_pages(unit<S> *u)
{
    const long long size = u->problem->desc.page_size;
    u->scattered = size % DECODE_RUN != 0 || size > 1 << 30;
    u->page_size = (uint32_t)size;
    const bool small = ((u->first | size) >> 32) == 0; /* short divisions take a fifth of the time */
    const long long page = small ? (uint32_t)u->first / (uint32_t)size : u->first / size;
    u->page_row = (uint32_t)(u->first - page * size);
    u->pages = u->at->page_table + u->b * u->call->pages + page;
}

/* False: there is nothing to do. */
template <class S>
__device__ inline bool unit_begin(unit<S> *u, const fattn_problem &problem, const fattn_launch &at, const decode_call &call,
                                  uint32_t index)
{
    extern __shared__ __align__(128) unsigned char shared[];
    const uint32_t chunks = (uint32_t)call.chunks, widths = (uint32_t)call.widths, heads = (uint32_t)problem.desc.heads_kv;
    u->problem = &problem;
    u->at = &at;
    u->call = &call;
    u->chunk = (int)(index % chunks);
    index /= chunks;
    u->column = index % widths * S::width;
    index /= widths;
    u->head_kv = (int)(index % heads);
    u->b = index / heads;
    u->seq = fattn_sequence_of(&problem, &at, u->b);
    u->first = (long long)u->chunk * DECODE_CHUNK;
    u->rows = (int)(problem.group * u->seq.seq_q);
    if (u->rows == 0 || u->first >= u->seq.seq_k)
        return false;
    u->tiles = shared;
    u->q = u->tiles + DECODE_WARPS * S::stages * S::slot;
    u->lane = (lane_place *)(u->q + 16 * call.row_tiles * S::dim * 2);
    u->k_factor = (float *)(u->lane + 16 * call.row_tiles);
    u->v_factor = u->k_factor + S::step * S::stages;
    u->pages = nullptr;
    u->scattered = false;
    const bool paged = problem.desc.page_size != 0;
    if (RARELY(paged))
        unit_pages(u);
    const long long b = paged ? 0 : u->b, row = paged ? 0 : u->seq.k_first + u->first;
    u->k_from = (const char *)fattn_row(&at.k, S::size, b, u->head_kv, row);
    u->v_from = (const char *)fattn_row(&at.v, S::size, b, u->head_kv, row) + u->column * S::size;
    return true;
}

/* Finds what the rows keep of the chunk. */
template <class S> __device__ inline void unit_lanes(unit<S> *u)
{
    const int all = 16 * u->call->row_tiles, r = threadIdx.x;
    const long long last = u->first + DECODE_CHUNK;
    static_assert(DECODE_ROWS_MOST <= DECODE_THREADS, "a thread for each row");
    if (r < all) {
        lane_place lane = {-1, 0, 0, u->first, u->first};
        if (r < u->rows) {
            lane.head = (int)(u->head_kv * u->problem->group) + r / (int)u->seq.seq_q;
            lane.row = r % (int)u->seq.seq_q;
            const fattn_interval keep = fattn_mask_row(&u->seq.mask, lane.row);
            lane.lo = min(max((long long)keep.lo, u->first), last);
            lane.hi = max(min((long long)keep.hi, last), lane.lo);
        }
        u->lane[r] = lane;
    }
    __syncthreads();
    u->lo = DECODE_CHUNK;
    u->hi = 0;
    for (int i = threadIdx.x % 32; i < min(all, u->rows); i += 32)
        if (u->lane[i].lo < u->lane[i].hi) {
            u->lo = min(u->lo, (int)(u->lane[i].lo - u->first));
            u->hi = max(u->hi, (int)(u->lane[i].hi - u->first));
        }
    u->lo = __reduce_min_sync(0xffffffffu, u->lo);
    u->hi = __reduce_max_sync(0xffffffffu, u->hi);
}

/* ------------------------------------------------------------------------------------------------------------- queries */

/* 16 bytes of a row, its numbers from `first` on, to `place` of a tile; zeros from `columns` on, and where there is no row. */
template <class N>
__device__ __noinline__ void load_piece(unsigned char *place, const N *row, long long first, long long columns)
{
    constexpr int count = 16 / (int)sizeof(N);
    N numbers[count];
#pragma unroll
    for (int i = 0; i < count; i++)
        numbers[i] = row && first + i < columns ? row[first + i] : N(0.0f);
    *(uint4 *)place = *(const uint4 *)numbers;
}

template <class T, class S> __device__ inline void load_queries(const unit<S> &u)
{
    constexpr int pieces = S::dim / PIECE;
    const int dim = (int)u.problem->desc.dim;
    const uint32_t to = ptx_shared_address(u.q);
#pragma unroll 1
    for (int i = threadIdx.x; i < 16 * u.call->row_tiles * pieces; i += DECODE_THREADS) {
        const int r = i / pieces, c = i % pieces;
        const lane_place &lane = u.lane[r];
        const T *row = lane.row < 0 ? nullptr : (const T *)fattn_query_row(&u.at->q, 2, &u.seq, lane.head, lane.row);
        const bool there = row && c * PIECE < dim;
        if (RARELY(!u.call->q_lines))
            load_piece(u.q + piece_at<S::dim>(r, c), row, c * PIECE, dim);
        else
            ptx_cp_async_16(to + piece_at<S::dim>(r, c), there ? row + c * PIECE : (const T *)u.q, there);
    }
}

/* Where column x of 64 stands in a row of Q that meets bytes: a thread's sixteen bytes are four products' factors, and of four
 * bytes the first and third one register. */
__device__ inline int column_of_bytes(int x)
{
    return x % 16 / 4 * 16 + x / 16 * 2 + x / 2 % 2 + x % 2 * 8;
}

/* Q as products take it: a negative scale is Q's, which is exact, so that the largest score stays the largest product; and the
 * order of columns that bytes have. */
template <class S> __device__ inline void arrange_queries(const unit<S> &u)
{
    const uint32_t sign = u.problem->desc.scale < 0 ? 0x8000u : 0;
    if (!S::bytes && sign == 0)
        return;
    constexpr int blocks = S::dim / 64;
#pragma unroll 1
    for (int i = threadIdx.x; i < 16 * u.call->row_tiles * blocks; i += DECODE_THREADS) {
        const int r = i / blocks, block = i % blocks;
        uint16_t row[64];
#pragma unroll
        for (int c = 0; c < 8; c++)
            *(uint4 *)(row + 8 * c) = *(const uint4 *)(u.q + piece_at<S::dim>(r, 8 * block + c));
#pragma unroll
        for (int x = 0; x < 64; x++) {
            const int y = S::bytes ? column_of_bytes(x) : x;
            *(uint16_t *)(u.q + piece_at<S::dim>(r, 8 * block + y / 8) + y % 8 * 2) = (uint16_t)(row[x] ^ sign);
        }
    }
    __syncthreads();
}

/* ---------------------------------------------------------------------------------------------------------------- keys */

/* Byte of piece c, of 16 bytes, of row r in a tile of K or of V. As ldmatrix reads numbers of 16 bits; of bytes, eight threads
 * read four pieces of two rows of K, and two of four rows of V. */
template <class S, bool values> __device__ __forceinline__ uint32_t key_piece(int r, int c)
{
    constexpr int row = values ? S::width : S::dim;
    if (!S::bytes)
        return piece_at<row>(r, c);
    const int turn = values ? (row > 64 ? r & 6 : r / 2 & 3) : (row > 64 ? (r & 1) << 2 : 0);
    return (uint32_t)(r * row + ((c ^ turn) << 4));
}

template <class S> __device__ __forceinline__ unsigned char *slot_of(const unit<S> &u, int warp, int stage)
{
    return u.tiles + (warp * S::stages + stage) * S::slot;
}

/* The page of run `key` of the chunk, which is asked for before it is needed. */
template <class S> __device__ __forceinline__ int page_of(const unit<S> &u, int key)
{
    if (u.pages && !u.scattered && key < u.hi)
        return u.pages[(u.page_row + (uint32_t)key) / u.page_size];
    return 0;
}

/* A tile of K or V whose rows lie anyhow: the first `there` from key `key` of the sequence on, and their columns from `column`
 * on. Not inlined, to keep the loop short; so it takes no address of what is to stay in registers. */
template <class T, class S, bool values>
__device__ __noinline__ void load_scattered(const fattn_problem *problem, const fattn_launch *at, long long b, int head_kv,
                                            unsigned char *tile, long long key, int there, long long column)
{
    using N = typename number_of<T, S::bytes>::type;
    constexpr int count = 16 / (int)sizeof(N), pieces = (values ? S::width : S::dim) / count;
    const fattn_sequence seq = fattn_sequence_of(problem, at, b);
    const fattn_view &view = values ? at->v : at->k;
    const long long columns = values ? problem->desc.dim_v - column : problem->desc.dim;
#pragma unroll 1
    for (int i = threadIdx.x % 32; i < S::keys * pieces; i += 32) {
        const int r = i / pieces, c = i % pieces;
        const N *row = r < there ? (const N *)fattn_key_row(problem, at, &view, sizeof(N), &seq, head_kv, key + r) : nullptr;
        load_piece(tile + key_piece<S, values>(r, c), row ? row + column : row, c * count, columns);
    }
}

/* `count` rows of a tile from row `run` on, which lie `stride` bytes apart from `from` on in whole pieces; `there` of them
 * exist. */
template <class S, bool values, int count>
__device__ __forceinline__ void load_run(unsigned char *tile, int run, const char *from, long long stride, int there,
                                         int columns)
{
    constexpr int numbers = 16 / S::size, pieces = (values ? S::width : S::dim) / numbers;
    constexpr int across = pieces > 32 ? pieces / 32 : 1, rows = pieces > 32 ? 1 : 32 / pieces; /* of a warp's turn */
    const int first = threadIdx.x % 32 / (32 / rows), lane = threadIdx.x % (32 / rows), left = there - first;
    const uint32_t to = ptx_shared_address(tile);
    const char *row = from + first * stride + lane * 16;
    const long long step = rows * stride;
#pragma unroll
    for (int i = 0; i < count / rows; i++, row += step)
#pragma unroll
        for (int x = 0; x < across; x++) {
            const int c = x * 32 + lane;
            ptx_cp_async_16(to + key_piece<S, values>(run + i * rows + first, c), row + x * 512,
                            i * rows < left && c * numbers < columns);
        }
}

/* The factor of the thread's key of a tile of bytes. */
template <class S, bool values>
__device__ __forceinline__ void load_factors(const unit<S> &u, int key, int stage, const int page[S::keys / DECODE_RUN])
{
    const int r = threadIdx.x % 32;
    const bool exists = key + r < u.hi;
    float *to = (values ? u.v_factor : u.k_factor) + (threadIdx.x / 32 * S::stages + stage) * S::keys + r;
    long long index = 0;
    if (RARELY(exists && u.pages && !u.scattered)) {
        const int own = r / DECODE_RUN < S::keys / DECODE_RUN ? page[r / DECODE_RUN % (S::keys / DECODE_RUN)] : 0;
        index = ((long long)own * u.problem->desc.heads_kv + u.head_kv) * u.page_size + (u.page_row + key + r) % u.page_size;
    } else if (exists) {
        index = fattn_scale_index(u.problem, u.at, &u.seq, u.head_kv, u.first + key + r);
    }
    if (r < S::keys)
        ptx_cp_async_4(ptx_shared_address(to), (values ? u.at->v_scales : u.at->k_scales) + index, exists);
}

/* The warp's tile from `key` of the chunk on, K or V of it, into its stage. page: of its runs. */
template <class T, class S, bool values>
__device__ __forceinline__ void load_keys(const unit<S> &u, int key, int stage, const int page[S::keys / DECODE_RUN])
{
    const fattn_view &view = values ? u.at->v : u.at->k;
    const int there = u.hi - key;
    unsigned char *tile = slot_of(u, threadIdx.x / 32, stage) + (values ? S::k_bytes : 0);
    if (there <= 0 || key + S::keys <= u.lo)
        return;
    if (S::bytes)
        load_factors<S, values>(u, key, stage, page);
    if (RARELY(u.scattered || !(values ? u.call->v_lines : u.call->k_lines))) {
        load_scattered<T, S, values>(u.problem, u.at, u.b, u.head_kv, tile, u.first + key, there, values ? u.column : 0);
        return;
    }
    const int columns = (int)(values ? u.problem->desc.dim_v - u.column : u.problem->desc.dim);
    const long long stride = view.stride_row * S::size;
    const char *from = values ? u.v_from : u.k_from;
    if (!u.pages) {
        load_run<S, values, S::keys>(tile, 0, from + key * stride, stride, there, columns);
        return;
    }
#pragma unroll
    for (int i = 0; i < S::keys / DECODE_RUN; i++) {
        const uint32_t row = (u.page_row + (uint32_t)(key + DECODE_RUN * i)) % u.page_size;
        load_run<S, values, DECODE_RUN>(tile, DECODE_RUN * i, from + page[i] * (view.stride_batch * S::size) + row * stride,
                                        stride, there - DECODE_RUN * i, columns);
    }
}

#endif
