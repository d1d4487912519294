/*
 * Forward for numbers of 16 bits on the tensor cores of compute capability 8.0 and later: mma.sync, ldmatrix, cp.async
 * (FlashAttention-2, Dao 2023).
 *
 * A unit is ROWS rows of one key/value head's queries, 16 or 32 per warp, against all keys that they keep, in tiles of KEYS
 * keys of which the next is on its way while one is at work. S = Q K^T, P and O stay in the registers of the warp that owns
 * their rows: an accumulator of S has the shape of the left factor of P V. P is rounded to the inputs' type, sums are float.
 *
 * A row whose result is not finite is computed again by itself (row_apart): in a tile P = 0 of a key that the row does not keep
 * meets that key's value, and 0 times an infinity or a NaN is NaN.
 */
#include "cuda/alone.cuh"
#include "cuda/tensor.cuh"

/* Sizes of a kernel: dims padded, m-tiles per warp, keys per tile. */
template <int dim_, int width_, int m_tiles_, int keys_> struct sizes {
    static constexpr int dim = dim_, width = width_, m_tiles = m_tiles_, keys = keys_;
    static constexpr int rows = TENSOR_ROWS(m_tiles);
    static constexpr int q_bytes = rows * dim * 2, k_bytes = keys * dim * 2, v_bytes = keys * width * 2;
};

/* -------------------------------------------------------------------------------------------------------------- a unit */

template <class S> struct unit {
    const fattn_problem *problem;
    const fattn_launch *at;
    const tensor_call *call;
    fattn_sequence seq;
    long long b, first, column;
    int head_kv;
    unsigned char *q, *k, *v; /* k, v: two tiles each */
    lane_place *lane;
    float *k_factor, *v_factor; /* [2][keys] of bytes */
    long long span_lo, span_hi; /* keys that any row keeps */
};

template <class S>
__device__ inline bool unit_begin(unit<S> *u, const fattn_problem &problem, const fattn_launch &at, const tensor_call &call)
{
    extern __shared__ __align__(128) unsigned char shared[];
    long long index = blockIdx.x;
    u->problem = &problem;
    u->at = &at;
    u->call = &call;
    /* The last rows first: with a causal mask they take longest. */
    u->first = (call.tiles - 1 - index % call.tiles) * S::rows;
    index /= call.tiles;
    u->column = index % call.widths * S::width;
    index /= call.widths;
    u->head_kv = (int)(index % problem.desc.heads_kv);
    u->b = index / problem.desc.heads_kv;
    u->seq = fattn_sequence_of(&problem, &at, u->b);
    u->q = shared;
    u->k = u->q + S::q_bytes;
    u->v = u->k + 2 * S::k_bytes;
    u->lane = (lane_place *)(u->v + 2 * S::v_bytes);
    u->k_factor = (float *)(u->lane + S::rows);
    u->v_factor = u->k_factor + 2 * S::keys;
    return u->first < problem.group * u->seq.seq_q;
}

template <class S> __device__ inline void unit_lanes(unit<S> *u)
{
    const fattn_problem &problem = *u->problem;
    for (int r = threadIdx.x; r < S::rows; r += THREADS) {
        const long long row = u->first + r;
        lane_place lane = {-1, 0, 0, 0, 0};
        if (row < problem.group * u->seq.seq_q) {
            lane.head = (int)(u->head_kv * problem.group + row / u->seq.seq_q);
            lane.row = row % u->seq.seq_q;
            const fattn_interval keep = fattn_mask_row(&u->seq.mask, lane.row);
            lane.lo = keep.lo;
            lane.hi = keep.hi;
        }
        u->lane[r] = lane;
    }
    __syncthreads();
    u->span_lo = INT64_MAX;
    u->span_hi = 0;
    for (int r = threadIdx.x % 32; r < S::rows; r += 32)
        if (u->lane[r].lo < u->lane[r].hi) {
            u->span_lo = min(u->span_lo, u->lane[r].lo);
            u->span_hi = max(u->span_hi, u->lane[r].hi);
        }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        u->span_lo = min(u->span_lo, __shfl_xor_sync(0xffffffffu, u->span_lo, step));
        u->span_hi = max(u->span_hi, __shfl_xor_sync(0xffffffffu, u->span_hi, step));
    }
}

template <class T, class S> __device__ inline void load_queries(const unit<S> &u)
{
    const fattn_desc &d = u.problem->desc;
    load_tile<T, S::rows, S::dim>(u.q, 0, d.dim, u.call->q_lines, [&](int r) -> const void * {
        const lane_place &lane = u.lane[r];
        return lane.row < 0 ? NULL : fattn_query_row(&u.at->q, 2, &u.seq, lane.head, lane.row);
    });
}

/* A negative scale is Q's: exact, and the largest score stays the largest product. */
template <class S> __device__ inline void flip_queries(const unit<S> &u)
{
    if (!(u.problem->desc.scale < 0))
        return;
    for (int i = threadIdx.x; i < S::q_bytes / 4; i += THREADS)
        ((uint32_t *)u.q)[i] ^= 0x80008000u;
    __syncthreads();
}

/* Keys key .. of K or V, columns from `first` on, into a tile. */
template <class T, class S, int dim>
__device__ __forceinline__ void load_rows(const unit<S> &u, const fattn_view &view, unsigned char *tile, long long key,
                                          int64_t first, int64_t count, bool lines)
{
    const fattn_problem *p = u.problem;
    const int there = (int)min(u.seq.seq_k - key, (long long)S::keys);
    if (lines && p->desc.page_size == 0) {
        const char *row = (const char *)fattn_row(&view, 2, u.seq.b, u.head_kv, u.seq.k_first + key) + 2 * first;
        load_lines<S::keys, dim>(tile, row, 2 * view.stride_row, there, count);
        return;
    }
    load_tile<T, S::keys, dim>(tile, first, count, lines, [&](int r) -> const void * {
        return r < there ? fattn_key_row(p, u.at, &view, 2, &u.seq, u.head_kv, key + r) : NULL;
    });
}

/* Keys key .. of K and V of bytes, and their factors. */
template <class T, class S> __device__ inline void load_byte_keys(const unit<S> &u, long long key, int stage)
{
    const fattn_problem *p = u.problem;
    const fattn_desc &d = p->desc;
    load_bytes<T, S::keys, S::dim>(u.k + stage * S::k_bytes, 0, d.dim, [&](int r) -> const void * {
        return key + r < u.seq.seq_k ? fattn_key_row(p, u.at, &u.at->k, 1, &u.seq, u.head_kv, key + r) : NULL;
    });
    load_bytes<T, S::keys, S::width>(u.v + stage * S::v_bytes, u.column, d.dim_v - u.column, [&](int r) -> const void * {
        return key + r < u.seq.seq_k ? fattn_key_row(p, u.at, &u.at->v, 1, &u.seq, u.head_kv, key + r) : NULL;
    });
    for (int r = threadIdx.x; r < S::keys; r += THREADS) {
        const bool there = key + r < u.seq.seq_k;
        const long long index = there ? fattn_scale_index(p, u.at, &u.seq, u.head_kv, key + r) : 0;
        u.k_factor[stage * S::keys + r] = there ? u.at->k_scales[index] : 0.0f;
        u.v_factor[stage * S::keys + r] = there ? u.at->v_scales[index] : 0.0f;
    }
}

/* Keys key .. of K and V into the tiles of `stage`. */
template <class T, class S, bool adjusted>
__device__ __forceinline__ void load_keys(const unit<S> &u, const scoring &how, long long key, int stage)
{
    const fattn_desc &d = u.problem->desc;
    if (adjusted && how.bytes) {
        load_byte_keys<T>(u, key, stage);
        return;
    }
    load_rows<T, S, S::dim>(u, u.at->k, u.k + stage * S::k_bytes, key, 0, d.dim, u.call->k_lines);
    load_rows<T, S, S::width>(u, u.at->v, u.v + stage * S::v_bytes, key, u.column, d.dim_v - u.column, u.call->v_lines);
}

/* ------------------------------------------------------------------------------------------------------------ products */

/* S of the warp's rows: s[m-tile][n-tile of 8 keys][4], see the ISA's figure for the accumulator of m16n8k16. */
template <class T, class S>
__device__ __forceinline__ void scores_of(const unit<S> &u, int stage, float s[S::m_tiles][S::keys / 8][4])
{
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 * S::m_tiles;
    const uint32_t q = ptx_shared_address(u.q), k = ptx_shared_address(u.k + stage * S::k_bytes);
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
        for (int n = 0; n < S::keys / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                s[m][n][e] = 0;
#pragma unroll
    for (int d = 0; d < S::dim / 16; d++) {
        uint32_t a[S::m_tiles][4];
#pragma unroll
        for (int m = 0; m < S::m_tiles; m++)
            ptx_ldmatrix_x4(a[m], q + piece_at<S::dim>(row + 16 * m + lane % 16, 2 * d + lane / 16));
#pragma unroll
        for (int n = 0; n < S::keys / 16; n++) {
            uint32_t b[4];
            ptx_ldmatrix_x4(b, k + piece_at<S::dim>(16 * n + lane % 8 + lane / 16 * 8, 2 * d + lane / 8 % 2));
#pragma unroll
            for (int m = 0; m < S::m_tiles; m++) {
                ptx_mma(s[m][2 * n], a[m], b, T());
                ptx_mma(s[m][2 * n + 1], a[m], b + 2, T());
            }
        }
    }
}

/* O += P V. */
template <class T, class S>
__device__ __forceinline__ void add_values(const unit<S> &u, int stage, const float p[S::m_tiles][S::keys / 8][4],
                                           float o[S::m_tiles][S::width / 8][4])
{
    const int lane = threadIdx.x % 32;
    const uint32_t v = ptx_shared_address(u.v + stage * S::v_bytes);
#pragma unroll
    for (int k = 0; k < S::keys / 16; k++) {
        uint32_t a[S::m_tiles][4];
#pragma unroll
        for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                a[m][e] = ptx_pack(p[m][2 * k + e / 2][e % 2 * 2], p[m][2 * k + e / 2][e % 2 * 2 + 1], T());
#pragma unroll
        for (int n = 0; n < S::width / 16; n++) {
            uint32_t b[4];
            ptx_ldmatrix_x4_trans(b, v + piece_at<S::width>(16 * k + lane % 16, 2 * n + lane / 16));
#pragma unroll
            for (int m = 0; m < S::m_tiles; m++) {
                ptx_mma(o[m][2 * n], a[m], b, T());
                ptx_mma(o[m][2 * n + 1], a[m], b + 2, T());
            }
        }
    }
}

/* ------------------------------------------------------------------------------------------------------------- softmax */

/* Row of the unit that element e of m-tile m belongs to, and key of the tile, n-tile n. */
template <class S> __device__ __forceinline__ int row_of(int m, int e)
{
    return threadIdx.x / 32 * 16 * S::m_tiles + 16 * m + threadIdx.x % 32 / 4 + e / 2 * 8;
}

__device__ __forceinline__ int key_of(int n, int e)
{
    return 8 * n + threadIdx.x % 4 * 2 + e % 2;
}

/* -inf where a row does not keep a key. */
template <class S>
__device__ __forceinline__ void drop_keys(const unit<S> &u, long long key, float s[S::m_tiles][S::keys / 8][4])
{
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const lane_place &lane = u.lane[row_of<S>(m, 2 * half)];
            const int lo = (int)min(max(lane.lo - key, 0LL), (long long)S::keys);
            const int hi = (int)min(max(lane.hi - key, 0LL), (long long)S::keys);
#pragma unroll
            for (int n = 0; n < S::keys / 8; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++)
                    if (key_of(n, e) < lo || key_of(n, e) >= hi)
                        s[m][n][e] = -INFINITY;
        }
}

/* Products become scores in log2 units. */
template <class S>
__device__ inline void adjust_scores(const unit<S> &u, const scoring &how, long long key, int stage,
                                     float s[S::m_tiles][S::keys / 8][4])
{
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const lane_place &lane = u.lane[row_of<S>(m, 2 * half)];
            const fattn_desc &d = u.problem->desc;
            const char *bias =
                how.biased && lane.row >= 0 ? (const char *)fattn_row(&u.at->bias, 2, u.seq.b, lane.head, lane.row) : NULL;
            const float slope = how.sloped ? u.at->slopes[lane.head] : 0.0f;
#pragma unroll
            for (int n = 0; n < S::keys / 8; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) {
                    const long long k = key + key_of(n, e);
                    float x = s[m][n][e] * how.scale;
                    if (how.bytes)
                        x *= u.k_factor[stage * S::keys + key_of(n, e)];
                    if (how.capped)
                        x = how.cap * tanhf(x / how.cap);
                    if (bias && k < u.seq.seq_k)
                        x += d.dtype == FATTN_F16 ? widen(((const __half *)bias)[k]) : widen(((const __nv_bfloat16 *)bias)[k]);
                    if (how.sloped) {
                        const long long distance = lane.row + u.seq.mask.offset - k;
                        x -= slope * (float)(distance < 0 ? -distance : distance);
                    }
                    s[m][n][e] = x * (float)LOG2E;
                }
        }
}

/* What dropout and the factors of bytes make of probabilities, once they are summed. */
template <class S>
__device__ inline void weigh(const unit<S> &u, const scoring &how, long long key, int stage,
                             float p[S::m_tiles][S::keys / 8][4])
{
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const lane_place &lane = u.lane[row_of<S>(m, 2 * half)];
            const uint32_t list = (uint32_t)(u.seq.b * u.problem->desc.heads_q + lane.head);
#pragma unroll
            for (int n = 0; n < S::keys / 8; n++) {
                uint32_t word[FATTN_PHILOX_WORDS];
                const long long k = key + key_of(n, 2 * half);
                if (how.dropped)
                    fattn_philox(&how.dropout, (uint32_t)(k / FATTN_PHILOX_WORDS), (uint32_t)lane.row, list, word);
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++) {
                    if (how.bytes)
                        p[m][n][e] *= u.v_factor[stage * S::keys + key_of(n, e)];
                    if (how.dropped) {
                        const uint32_t own = threadIdx.x % 2 ? word[2 + e % 2] : word[e % 2];
                        p[m][n][e] *= own >= how.dropout.threshold ? how.keep : 0.0f;
                    }
                }
            }
        }
}

/* Sums of a warp's rows; each thread has two rows of an m-tile, and l of its own keys only. */
template <class S> struct row_sums {
    float o[S::m_tiles][S::width / 8][4];
    float m[S::m_tiles][2], l[S::m_tiles][2]; /* m: the largest score, before it is multiplied with c */
};

constexpr float FAR = 1 << 20; /* log2 units from which on a score times c, rounded, may be far from itself */

/* Scores become probabilities, and what is there already refers to the new maximum. Near 0 the reference is the maximum times
 * c, rounded, the same number wherever it is used, so that rounding it does no harm. Far from 0 it would lie so far from the
 * scores that powers leave the range: there it is the product itself. */
template <class S>
__device__ __forceinline__ void softmax(row_sums<S> *sum, const scoring &how, float s[S::m_tiles][S::keys / 8][4])
{
    const float c = how.c;
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float most = sum->m[m][half], before = most;
#pragma unroll
            for (int n = 0; n < S::keys / 8; n++)
                most = fmaxf(most, fmaxf(s[m][n][2 * half], s[m][n][2 * half + 1]));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            const float from = most == -INFINITY ? 0.0f : __fmul_rn(most, c);
            const float last = __fmul_rn(before, c), shifted = from - how.shift;
            const bool near_last = fabsf(last) < FAR;
            float correction;
            float l = 0;
            sum->m[m][half] = most;
            if (fabsf(from) < FAR) {
                correction = ptx_exp2(near_last ? last - from : fmaf(before, c, -from));
#pragma unroll
                for (int n = 0; n < S::keys / 8; n++)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; e++)
                        s[m][n][e] = ptx_exp2(fmaf(s[m][n][e], c, -shifted));
            } else {
                correction = ptx_exp2((before - most) * c - (near_last ? fmaf(before, c, -last) : 0.0f));
#pragma unroll
                for (int n = 0; n < S::keys / 8; n++)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; e++)
                        s[m][n][e] = ptx_exp2(fmaf(s[m][n][e] - most, c, how.shift));
            }
#pragma unroll
            for (int n = 0; n < S::keys / 8; n++)
                l += s[m][n][2 * half] + s[m][n][2 * half + 1];
            sum->l[m][half] = sum->l[m][half] * correction + l;
            if (__any_sync(0xffffffffu, correction != 1)) { /* a maximum moved: rare once there are many keys */
#pragma unroll
                for (int n = 0; n < S::width / 8; n++) {
                    sum->o[m][n][2 * half] *= correction;
                    sum->o[m][n][2 * half + 1] *= correction;
                }
            }
        }
}

/* --------------------------------------------------------------------------------------------------------- end of rows */

/* row_alone, not inlined: what gets an address of something would keep it out of registers, so it takes copies. */
template <int width>
__device__ __noinline__ void row_apart(const fattn_problem *problem, const fattn_launch *at, long long b, long long column,
                                       lane_place lane)
{
    row_alone<width>(*problem, *at, b, column, lane);
}

/* Writes out and lse of a warp's rows. */
template <class S> __device__ inline void finish_rows(const unit<S> &u, const scoring &how, row_sums<S> *sum)
{
    const fattn_desc &d = u.problem->desc;
    const size_t size = fattn_dtype_size(d.out_dtype);
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int r = row_of<S>(m, 2 * half);
            const lane_place &lane = u.lane[r];
            float l = sum->l[m][half];
            l += __shfl_xor_sync(0xffffffffu, l, 1);
            l += __shfl_xor_sync(0xffffffffu, l, 2);
            const float near = __fmul_rn(sum->m[m][half], how.c);
            const double reference = fabsf(near) < FAR ? (double)near : (double)sum->m[m][half] * (double)how.c;
            const row_end end = end_row(*u.problem, *u.at, lane.head, (double)l, reference - (double)how.shift);
            bool finite = true;
#pragma unroll
            for (int n = 0; n < S::width / 8; n++)
#pragma unroll
                for (int e = 2 * half; e < 2 * half + 2; e++)
                    finite = finite && sum->o[m][n][e] - sum->o[m][n][e] == 0;
            if (lane.row >= 0) {
                void *out = fattn_query_row(&u.at->out, size, &u.seq, lane.head, lane.row);
                if (u.at->lse && u.column == 0 && threadIdx.x % 4 == 0)
                    ((float *)u.at->lse)[u.seq.lse_first + lane.head * u.seq.lse_head + lane.row] = (float)end.lse;
#pragma unroll
                for (int n = 0; n < S::width / 8; n++)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; e++)
                        if (u.column + key_of(n, e) < d.dim_v)
                            store_number(out, d.out_dtype, u.column + key_of(n, e),
                                         l == 0 ? 0.0f : sum->o[m][n][e] * (float)end.factor);
            }
            __syncwarp();
            /* A NaN in l or lse is the row's own: only sums that stay finite are in doubt. */
            unsigned wrong = __ballot_sync(0xffffffffu, !finite && lane.row >= 0 && l - l == 0);
            for (int g = 0; g < 8; g++)
                if (wrong >> (4 * g) & 15)
                    row_apart<S::width>(u.problem, u.at, u.b, u.column,
                                        u.lane[threadIdx.x / 32 * 16 * S::m_tiles + 16 * m + g + 8 * half]);
        }
}

/* ------------------------------------------------------------------------------------------------------------- kernels */

/* Whether the warp's rows keep all keys of a tile (2), some (1) or none (0). */
template <class S> __device__ inline int kept_of(const unit<S> &u, long long key)
{
    const int row = threadIdx.x / 32 * 16 * S::m_tiles + threadIdx.x % 32 % (16 * S::m_tiles);
    const lane_place &lane = u.lane[row];
    const bool all = lane.row < 0 || (lane.lo <= key && lane.hi >= key + S::keys);
    const bool some = lane.lo < key + S::keys && lane.hi > key;
    if (!__any_sync(0xffffffffu, some))
        return 0;
    return __all_sync(0xffffffffu, all) ? 2 : 1;
}

template <class T, class S, bool adjusted>
__device__ inline void forward(const fattn_problem &problem, const fattn_launch &at, const tensor_call &call)
{
    unit<S> u;
    row_sums<S> sum = {};
    if (!unit_begin(&u, problem, at, call))
        return;
    const scoring how = scoring_of(problem, adjusted);
    unit_lanes(&u);
#pragma unroll
    for (int m = 0; m < S::m_tiles; m++)
        sum.m[m][0] = sum.m[m][1] = -INFINITY;
    const long long start = u.span_lo / S::keys * S::keys;
    load_queries<T>(u);
    if (start < u.span_hi)
        load_keys<T, S, adjusted>(u, how, start, 0);
    ptx_cp_async_commit();
    if (problem.desc.scale < 0) {
        ptx_cp_async_wait<0>();
        __syncthreads();
        flip_queries(u);
    }
    int stage = 0;
    for (long long key = start; key < u.span_hi; key += S::keys, stage ^= 1) {
        ptx_cp_async_wait<0>();
        __syncthreads();
        if (key + S::keys < u.span_hi)
            load_keys<T, S, adjusted>(u, how, key + S::keys, stage ^ 1);
        ptx_cp_async_commit();
        const int kept = kept_of(u, key);
        if (kept == 0)
            continue;
        float s[S::m_tiles][S::keys / 8][4];
        scores_of<T>(u, stage, s);
        if (adjusted)
            adjust_scores(u, how, key, stage, s);
        if (kept == 1)
            drop_keys(u, key, s);
        softmax(&sum, how, s);
        if (adjusted)
            weigh(u, how, key, stage, s);
        add_values<T>(u, stage, s, sum.o);
    }
    ptx_cp_async_wait<0>(); /* of a unit whose rows keep nothing */
    finish_rows(u, how, &sum);
}

#define FORWARD(name, type, adjusted, ...)                                                                                     \
    extern "C" __global__ void __launch_bounds__(THREADS)                                                                      \
        name(const __grid_constant__ fattn_problem problem, const __grid_constant__ fattn_launch at,                           \
             const __grid_constant__ tensor_call call)                                                                         \
    {                                                                                                                          \
        forward<type, sizes<__VA_ARGS__>, adjusted>(problem, at, call);                                                        \
    }

#define FORWARDS(name, dim, width, m, keys, m_adjusted, keys_adjusted)                                                         \
    FORWARD(tensor_forward_f16_##name, __half, false, dim, width, m, keys)                                                     \
    FORWARD(tensor_forward_bf16_##name, __nv_bfloat16, false, dim, width, m, keys)                                             \
    FORWARD(tensor_forward_f16_##name##_adjusted, __half, true, dim, width, m_adjusted, keys_adjusted)                         \
    FORWARD(tensor_forward_bf16_##name##_adjusted, __nv_bfloat16, true, dim, width, m_adjusted, keys_adjusted)

TENSOR_FORWARD_SIZES(FORWARDS)
