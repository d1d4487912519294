/*
 * Backward for numbers of 16 bits on the tensor cores of compute capability 8.0 and later (FlashAttention-2, Dao 2023,
 * algorithm 2), what its two sides share: where a unit stands, tiles, products, and how warps hand each other weights. A unit
 * owns keys or rows of a head.
 *
 * Each result has one owner, so results are the same bits in every run; S and dP are computed on both sides, 7 products. Where
 * the caller lets gradients be added in any order there is the side of keys alone, which adds dQ too: 5 products. D = rowsum(dO
 * o O) - dlse comes first; dbias and dsinks come from exact.cu. A key or row whose result is not finite is computed again by
 * itself, as in forward.
 *
 * SHARE warps own the same 32 keys (or rows) of a unit. Each computes S and dP of them and its part of the tile, and sums
 * results for its part of the columns: for those it needs the weights, P and dS, of the others too, and they pass through
 * shared memory as left factors of products: every register of a warp is an 8 x 8 matrix of 16-bit numbers there, 128 bytes.
 *
 * Weights of bfloat16 are bfloat16. Those of binary16 are TF32, as many bits as binary16 but the exponents of float, since many
 * a dS would be below the smallest number of binary16; Q, K and dO are widened to TF32, exactly, on their way to that product.
 */
#ifndef FATTN_CUDA_TENSOR_BACKWARD_CUH
#define FATTN_CUDA_TENSOR_BACKWARD_CUH

#include "cuda/tensor_gradient.cuh"

constexpr int GRAD_THREADS = TENSOR_GRAD_THREADS, GRAD_WARPS = GRAD_THREADS / 32;

/* Registers of a 16 x 16 block of weights. */
template <class T> constexpr int WORDS = 4;
template <> constexpr int WORDS<__half> = 8;

template <class T> constexpr int32_t DTYPE = FATTN_BF16;
template <> constexpr int32_t DTYPE<__half> = FATTN_F16;

/* The sizes of a kernel: dims padded, warps that own the same, rows or keys of a tile of the other side, tiles in flight, and
 * rooms for weights of 16 bits: where there is room for two, P and dS have one each. */
template <class T, int dim_, int share_, int tile_, int stages_, int rooms_> struct sizes {
    static constexpr int32_t dtype = DTYPE<T>;
    static constexpr int dim = dim_, share = share_, tile = tile_, stages = stages_;
    static constexpr bool apart = rooms_ * 4 / WORDS<T> == 2;
    static constexpr int own = TENSOR_GRAD_OWN(share);               /* keys or rows that a unit owns */
    static constexpr int part = tile / share, columns = dim / share; /* of a warp */
    static constexpr int own_bytes = own * dim * 2, tile_bytes = tile * dim * 2, room_bytes = 512 * part;
    static constexpr int rooms_bytes = rooms_ * room_bytes;
};

/* What a unit needs in every loop is in shared memory or comes with the launch: registers are for sums. */
struct unit {
    const fattn_problem *problem;
    const fattn_launch *at;
    const tensor_grad_call *call;
    const float *delta;
    const fattn_sequence *seq;       /* in shared memory */
    int first;                       /* key or row */
    int head;                        /* of keys, or of rows */
    unsigned char *own[2], *tile[2]; /* K and V, or Q and dO, of the unit; stages of the other side's */
    unsigned char *room, *records;
};

template <class S> __device__ __forceinline__ grad_problem grad_of(const unit &u)
{
    return {u.problem, u.at, u.seq, u.delta, S::dtype};
}

/* Units: (sequence, head, tile), tiles fastest. */
template <class S>
__device__ inline void unit_begin(unit *u, const grad_problem &g, const tensor_grad_call &call, long long index)
{
    extern __shared__ __align__(128) unsigned char shared[];
    u->problem = g.problem;
    u->at = g.at;
    u->delta = g.delta;
    u->call = &call;
    u->first = (int)(index % call.tiles) * S::own;
    index /= call.tiles;
    u->head = (int)(index % call.heads);
    u->own[0] = shared;
    u->own[1] = u->own[0] + S::own_bytes;
    u->tile[0] = u->own[1] + S::own_bytes;
    u->tile[1] = u->tile[0] + S::stages * S::tile_bytes;
    u->room = u->tile[1] + S::stages * S::tile_bytes;
    u->seq = (const fattn_sequence *)(u->room + S::rooms_bytes);
    u->records = (unsigned char *)(u->seq + 1);
    if (threadIdx.x == 0)
        *(fattn_sequence *)u->seq = fattn_sequence_of(g.problem, g.at, index / call.heads);
    __syncthreads();
}

__device__ __forceinline__ int warp_group(int share)
{
    return threadIdx.x / 32 / share;
}

__device__ __forceinline__ int warp_part(int share)
{
    return threadIdx.x / 32 % share;
}

/* Index among the unit's own of element e of m-tile m, and among the tile's of n-tile n, of this warp. */
template <class S> __device__ __forceinline__ int own_of(int m, int e)
{
    return warp_group(S::share) * 32 + 16 * m + threadIdx.x % 32 / 4 + e / 2 * 8;
}

template <class S> __device__ __forceinline__ int other_of(int n, int e)
{
    return warp_part(S::share) * S::part + 8 * n + threadIdx.x % 4 * 2 + e % 2;
}

/* Column of a result. */
template <class S> __device__ __forceinline__ int column_of(int n, int e)
{
    return warp_part(S::share) * S::columns + 8 * n + threadIdx.x % 4 * 2 + e % 2;
}

/* Waits for the warps that share what they own. */
template <class S> __device__ __forceinline__ void meet(void)
{
    if (S::share == 1)
        __syncwarp();
    else
        ptx_bar_sync(1 + warp_group(S::share), 32 * S::share);
}

/* Where strip number `strip` of a sequence's rows begins among the sums of dQ. */
template <int dim>
__device__ inline long long strip_of(const fattn_problem &problem, const fattn_launch &at, const tensor_grad_call &call,
                                     const fattn_sequence &seq, int head, long long strip)
{
    const long long before = at.cu_q ? seq.q_first / TENSOR_GRAD_STRIP + seq.b : seq.b * TENSOR_GRAD_STRIPS(problem.desc.seq_q);
    return (head * call.strips + before + strip) * (dim * TENSOR_GRAD_STRIP);
}

/* ------------------------------------------------------------------------------------------------------------- loading */

/* load_lines of rows that begin anywhere and end in the middle of a piece. */
template <int rows, int dim>
__device__ inline void load_numbers(unsigned char *tile, const char *row, int64_t stride, int there, int count)
{
    constexpr int pieces = dim / PIECE;
    const int c = threadIdx.x % pieces;
#pragma unroll 1
    for (int r = threadIdx.x / pieces; r < rows; r += GRAD_THREADS / pieces) {
        const uint16_t *from = (const uint16_t *)(row + stride * r);
        union {
            uint16_t number[PIECE];
            uint4 piece;
        } x = {};
#pragma unroll
        for (int i = 0; i < PIECE; i++)
            if (r < there && c * PIECE + i < count)
                x.number[i] = from[c * PIECE + i];
        *(uint4 *)(tile + piece_at<dim>(r, c)) = x.piece;
    }
}

/* `rows` rows of a tensor from row `first` of a head on, of which `there` exist. */
template <int rows, int dim>
__device__ __forceinline__ void load_rows(unsigned char *tile, const fattn_view &view, const unit &u, int head, long long row,
                                          int there, int64_t count, bool lines)
{
    const char *from = (const char *)fattn_row(&view, 2, u.seq->b, head, row);
    if (lines)
        load_lines<rows, dim, GRAD_THREADS>(tile, from, 2 * view.stride_row, min(there, rows), count);
    else
        load_numbers<rows, dim>(tile, from, 2 * view.stride_row, min(there, rows), (int)count);
}

/* Q and dO of a query head, rows from `row` on. */
template <int rows, int dim>
__device__ __forceinline__ void load_queries(unsigned char *q, unsigned char *dout, const unit &u, int head, int row)
{
    const fattn_desc &d = u.problem->desc;
    load_rows<rows, dim>(q, u.at->q, u, head, u.seq->q_first + row, (int)u.seq->seq_q - row, d.dim, u.call->q_lines);
    load_rows<rows, dim>(dout, u.at->dout, u, head, u.seq->q_first + row, (int)u.seq->seq_q - row, d.dim_v, u.call->dout_lines);
}

/* K and V of a head of keys, from `key` on. */
template <int keys, int dim>
__device__ __forceinline__ void load_keys(unsigned char *k, unsigned char *v, const unit &u, int head, int key)
{
    const fattn_desc &d = u.problem->desc;
    load_rows<keys, dim>(k, u.at->k, u, head, u.seq->k_first + key, (int)u.seq->seq_k - key, d.dim, u.call->k_lines);
    load_rows<keys, dim>(v, u.at->v, u, head, u.seq->k_first + key, (int)u.seq->seq_k - key, d.dim_v, u.call->v_lines);
}

/* ------------------------------------------------------------------------------------------------------------ products */

/* acc = the warp's own times its part of the tile, over dim: acc[m-tile][n-tile][4]. */
template <class T, class S>
__device__ __forceinline__ void product(const unsigned char *own, const unsigned char *tile, float acc[2][S::part / 8][4])
{
    const int lane = threadIdx.x % 32, row = warp_group(S::share) * 32, other = warp_part(S::share) * S::part;
    const uint32_t a_at = ptx_shared_address(own), b_at = ptx_shared_address(tile);
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < S::part / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                acc[m][n][e] = 0;
#pragma unroll 4
    for (int d = 0; d < S::dim / 16; d++) {
        uint32_t a[2][4];
#pragma unroll
        for (int m = 0; m < 2; m++)
            ptx_ldmatrix_x4(a[m], a_at + piece_at<S::dim>(row + 16 * m + lane % 16, 2 * d + lane / 16));
#pragma unroll
        for (int n = 0; n < S::part / 16; n++) {
            uint32_t b[4];
            ptx_ldmatrix_x4(b, b_at + piece_at<S::dim>(other + 16 * n + lane % 8 + lane / 16 * 8, 2 * d + lane / 8 % 2));
#pragma unroll
            for (int m = 0; m < 2; m++) {
                ptx_mma(acc[m][2 * n], a[m], b, T());
                ptx_mma(acc[m][2 * n + 1], a[m], b + 2, T());
            }
        }
    }
}

/* A warp's weights as left factors. */
template <class T, class S> struct weights {
    uint32_t word[2][S::part / 16][WORDS<T>];
};

template <class S> __device__ __forceinline__ void pack(const float w[2][S::part / 8][4], weights<__nv_bfloat16, S> *to)
{
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int k = 0; k < S::part / 16; k++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                to->word[m][k][e] =
                    ptx_pack(w[m][2 * k + e / 2][e % 2 * 2], w[m][2 * k + e / 2][e % 2 * 2 + 1], __nv_bfloat16());
}

/* An accumulator is the left factor of m16n8k8 if that product counts its columns 0 2 4 6 1 3 5 7. */
template <class S> __device__ __forceinline__ void pack(const float w[2][S::part / 8][4], weights<__half, S> *to)
{
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < S::part / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                to->word[m][n / 2][n % 2 * 4 + e] = ptx_tf32(w[m][n][e % 2 * 2 + e / 2]);
}

/* sum += a b of 16 weights each; b: 16 x 8 numbers. */
__device__ __forceinline__ void multiply(float sum[4], const uint32_t a[4], const uint32_t b[2], __nv_bfloat16 type)
{
    ptx_mma(sum, a, b, type);
}

__device__ __forceinline__ void multiply(float sum[4], const uint32_t a[8], const uint32_t b[2], __half)
{
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const float2 wide = __half22float2(*(const __half2 *)&b[k]);
        ptx_mma_tf32(sum, a + 4 * k, __float_as_uint(wide.x), __float_as_uint(wide.y));
    }
}

/* Address of a 16 x 16 block of weights of a warp in a room. */
template <class T, class S> __device__ __forceinline__ uint32_t block_at(const unsigned char *room, int warp, int m, int k)
{
    return ptx_shared_address(room) + (uint32_t)(((warp * 2 + m) * (S::part / 16) + k) * WORDS<T> * 128);
}

template <class T, class S> __device__ __forceinline__ void hand_over(unsigned char *room, const weights<T, S> &w)
{
    if (S::share == 1)
        return;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int k = 0; k < S::part / 16; k++)
#pragma unroll
            for (int e = 0; e < WORDS<T>; e++)
                ptx_store_shared(block_at<T, S>(room, threadIdx.x / 32, m, k) + e * 128 + threadIdx.x % 32 * 4,
                                 w.word[m][k][e]);
}

/* sum += 16 weights of the own times rows `row` .. of a tile, the warp's columns. */
template <class T, class S>
__device__ __forceinline__ void add_block(const uint32_t a[2][WORDS<T>], uint32_t tile, int row,
                                          float sum[2][S::columns / 8][4])
{
    const int lane = threadIdx.x % 32, piece = warp_part(S::share) * (S::columns / PIECE);
#pragma unroll
    for (int n = 0; n < S::columns / 16; n++) {
        uint32_t b[4];
        ptx_ldmatrix_x4_trans(b, tile + piece_at<S::dim>(row + lane % 16, piece + 2 * n + lane / 16));
#pragma unroll
        for (int m = 0; m < 2; m++) {
            multiply(sum[m][2 * n], a[m], b, T());
            multiply(sum[m][2 * n + 1], a[m], b + 2, T());
        }
    }
}

/* sum += the warp's own weights times its part of the tile's rows. */
template <class T, class S>
__device__ __forceinline__ void add_own(const weights<T, S> &w, const unsigned char *tile, float sum[2][S::columns / 8][4])
{
#pragma unroll
    for (int k = 0; k < S::part / 16; k++) {
        uint32_t a[2][WORDS<T>];
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int e = 0; e < WORDS<T>; e++)
                a[m][e] = w.word[m][k][e];
        add_block<T, S>(a, ptx_shared_address(tile), warp_part(S::share) * S::part + 16 * k, sum);
    }
}

/* The same of what the other warps handed over. */
template <class T, class S>
__device__ __forceinline__ void add_others(const unsigned char *room, const unsigned char *tile,
                                           float sum[2][S::columns / 8][4])
{
#pragma unroll
    for (int i = 1; i < S::share; i++) {
        const int part = (warp_part(S::share) + i) % S::share, warp = warp_group(S::share) * S::share + part;
#pragma unroll
        for (int k = 0; k < S::part / 16; k++) {
            uint32_t a[2][WORDS<T>];
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (int e = 0; e < WORDS<T>; e += 4)
                    ptx_ldmatrix_x4(a[m] + e, block_at<T, S>(room, warp, m, k) + e * 128 + threadIdx.x % 32 * 16);
            add_block<T, S>(a, ptx_shared_address(tile), part * S::part + 16 * k, sum);
        }
    }
}

/* ------------------------------------------------------------------------------------------------------------- results */

/* Two neighbours of a row, the first at an even column. */
__device__ __forceinline__ void store_two(void *row, int32_t dtype, int column, int count, float x, float y)
{
    const bool whole = column + 1 < count && ((uintptr_t)row & 7) == 0;
    if (whole && dtype == FATTN_F32)
        ((float2 *)row)[column / 2] = make_float2(x, y);
    else if (whole && dtype == FATTN_BF16)
        ((uint32_t *)row)[column / 2] = ptx_pack(x, y, __nv_bfloat16());
    else if (whole)
        ((uint32_t *)row)[column / 2] = ptx_pack(x, y, __half());
    else {
        if (column < count)
            store_number(row, dtype, column, x);
        if (column + 1 < count)
            store_number(row, dtype, column + 1, y);
    }
}

/* Place of a number among results in shared memory: 8 rows and 8 columns meet every bank. */
template <int dim> __device__ __forceinline__ int staged_at(int row, int column)
{
    return row * dim + (column ^ (row % (dim < 64 ? 4 : 8) * 8));
}

/* Writes sums, multiplied, to rows row(r) of the unit, each by a warp as a whole: they pass through shared memory, where the
 * unit's own were. NULL: there is none. Returns which of the warp's rows, number warp + GRAD_WARPS i, are not finite: bits i.
 */
template <class S, class Row>
__device__ inline uint32_t store_rows(const unit &u, const float sum[2][S::columns / 8][4], float by, int32_t dtype,
                                      int64_t count, Row row)
{
    static_assert(S::own <= 32 * GRAD_WARPS, "a bit for each row");
    float *staged = (float *)u.own[0];
    const int lane = threadIdx.x % 32;
    uint32_t wrong = 0;
    __syncthreads();
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int n = 0; n < S::columns / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e += 2)
                *(float2 *)&staged[staged_at<S::dim>(own_of<S>(m, e), column_of<S>(n, 0))] =
                    make_float2(sum[m][n][e] * by, sum[m][n][e + 1] * by);
    __syncthreads();
#pragma unroll 1
    for (int i = 0; i < S::own / GRAD_WARPS; i++) {
        const int r = threadIdx.x / 32 + GRAD_WARPS * i;
        void *to = row(r);
        bool finite = true;
#pragma unroll
        for (int c = 2 * lane; to && c < S::dim; c += 64) {
            const float2 x = *(const float2 *)&staged[staged_at<S::dim>(r, c)];
            finite = finite && x.x - x.x == 0 && x.y - x.y == 0;
            store_two(to, dtype, c, (int)count, x.x, x.y);
        }
        wrong |= (uint32_t)__any_sync(0xffffffffu, !finite) << i;
    }
    return wrong;
}

#endif
