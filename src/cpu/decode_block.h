/*
 * Decode, one block of keys: its scores against a unit's rows, their softmax, and the values that it adds. decode.h says how it
 * all fits together.
 */
#ifndef FATTN_CPU_DECODE_BLOCK_H
#define FATTN_CPU_DECODE_BLOCK_H

#include "row.h"

enum {
    DECODE_WIDE = TILE_ROWS * TILE_VECS >= 24, /* there are 32 registers, not 16 */
    DECODE_KEYS = DECODE_WIDE ? 16 : 32,       /* per block, measured against 16 .. 128: memory shall not wait for requests */
    DECODE_CHUNK = 512,                        /* keys per unit */
    DECODE_TILE = 4,                           /* rows at a time */
    DECODE_RISE = 30,      /* in log2 units, how far scores may rise above a row's reference before it moves */
    DECODE_ROWS = 8,       /* rows per unit */
    DECODE_ROWS_MOST = 64, /* rows per key/value head that are not refused: sums take room for each chunk */
    DECODE_ROWS_WORTH = 8, /* rows up to which it is faster than tiles: measured with 8, 16 and 32 rows, seq_k 8192, dim 128 */
    DECODE_ROWS_WORTH_COPIED = 32,
    LINE = FATTN_ALIGNMENT,             /* bytes of a cache line */
    DECODE_SHARE = DECODE_WIDE ? 4 : 2, /* keys that may share a load of the queries */
    DECODE_VECS = DECODE_WIDE ? 4 : 2,  /* of O per row that registers hold for DECODE_TILE rows */
};

_Static_assert(DECODE_KEYS % DECODE_SHARE == 0, "a block is whole shares");
_Static_assert(DECODE_KEYS % LANES == 0 && DECODE_CHUNK % DECODE_KEYS == 0, "blocks are whole vectors, chunks whole blocks");

/* What holds for the whole call. */
typedef struct decode {
    const fattn_problem *problem;
    const fattn_launch *at;
    adjustment adjust;
    int64_t dim, dim_v;  /* padded to LANES */
    int64_t chunks;      /* of the longest sequence */
    int64_t *first_unit; /* [batch + 1] */
    int64_t *first_row;  /* [batch + 1]: rows of all heads before each sequence */
    real *ref, *l;       /* [rows][chunks] */
    real *sum;           /* [rows][chunks][dim_v] */
    unsigned char *scratch;
    size_t scratch_size; /* per lane */
} decode;

/* One unit: rows of one list against one chunk. */
typedef struct decode_unit {
    const decode *call;
    fattn_sequence seq;
    int64_t head_kv;
    int64_t rows;
    place lane[DECODE_ROWS];
    fattn_interval keep[DECODE_ROWS];
    real *q, *o;                                 /* [DECODE_ROWS][dim], [DECODE_ROWS][dim_v] */
    real *p;                                     /* [DECODE_ROWS][DECODE_KEYS]: scores, then probabilities */
    real *part;                                  /* [DECODE_TILE][DECODE_KEYS][LANES]: partial sums of dot products */
    real *k_copy, *v_copy;                       /* [DECODE_KEYS][dim, dim_v] of rows that are not whole vectors */
    real *k_factor, *v_factor;                   /* [DECODE_KEYS] of bytes */
    real *bias;                                  /* [DECODE_KEYS] */
    real *l;                                     /* [DECODE_ROWS][LANES]: sums of probabilities */
    real ref[DECODE_ROWS];                       /* what they refer to; the lowest number: no score above -inf yet */
    const void *k[DECODE_KEYS], *v[DECODE_KEYS]; /* rows of the block at hand */
    const void *next[DECODE_KEYS];               /* keys of the next block, to be fetched */
    int64_t k_block, v_block;                    /* bytes from a row to that of the next block; 0 if paged */
} decode_unit;

/* Asks for the `bytes` at row. */
INLINE void fetch(const void *row, int64_t bytes)
{
    for (int64_t i = 0; i < bytes; i += LINE)
        __builtin_prefetch((const char *)row + i);
}

/* -------------------------------------------------------------------------------------------------------------- scores */

/* Partial sums of the products of `rows` queries with `share` keys from key j on. */
INLINE void score_keys(const int rows, const int share, const int32_t dtype, const int64_t dim, const decode_unit *u,
                       int64_t first, int64_t j)
{
    const real *q = u->q + first * dim;
    vec acc[DECODE_TILE * DECODE_SHARE];
    UNROLL
    for (int i = 0; i < rows * share; i++)
        acc[i] = v_set1(0);
    for (int64_t d = 0; d < dim; d += LANES) {
        vec k[DECODE_SHARE];
        UNROLL
        for (int i = 0; i < share; i++)
            k[i] = load_numbers(dtype, u->k[j + i], d);
        UNROLL
        for (int r = 0; r < rows; r++) {
            const vec x = v_load(q + r * dim + d);
            UNROLL
            for (int i = 0; i < share; i++)
                acc[r * share + i] = v_fma(x, k[i], acc[r * share + i]);
        }
    }
    UNROLL
    for (int i = 0; i < rows * share; i++)
        v_store(u->part + (i / share * DECODE_KEYS + j + i % share) * LANES, acc[i]);
}

/* Products of rows first .. first + rows - 1 with the n keys of the block, into u->p; n rounded up to whole vectors. */
INLINE void score_rows(const int rows, const int32_t dtype, const int64_t dim, const decode_unit *u, int64_t first, int64_t n,
                       int64_t bytes)
{
    const int share = dtype == REAL_DTYPE ? 2 : DECODE_SHARE; /* wide rows need their requests spread out more */
    for (int64_t j = 0; j < round_to(n, max64(LANES, DECODE_SHARE)); j += share) {
        for (int64_t i = j; i < j + share; i++) {
            fetch(u->v[i], first == 0 ? bytes : 0);
            fetch((const char *)u->v[i] + u->v_block, first == 0 && DECODE_WIDE ? bytes : 0);
        }
        score_keys(rows, share, dtype, dim, u, first, j);
    }
    for (int r = 0; r < rows; r++)
        for (int64_t j = 0; j < n; j += LANES) {
            vec block[LANES], sum[4];
            UNROLL
            for (int l = 0; l < LANES; l++)
                block[l] = v_load(u->part + (r * DECODE_KEYS + j + l) * LANES);
            v_transpose(block);
            UNROLL
            for (int l = 0; l < 4; l++)
                sum[l] = l < LANES ? block[l % LANES] : v_set1(0);
            UNROLL
            for (int l = 4; l < LANES; l++)
                sum[l % 4] = v_add(sum[l % 4], block[l]);
            v_store(u->p + (first + r) * DECODE_KEYS + j, v_add(v_add(sum[0], sum[2]), v_add(sum[1], sum[3])));
        }
}

/* Calls `call` with the compile-time constant ROWS, the least of 1, 2 and DECODE_TILE that is at least `rows`. */
#define WITH_ROWS(rows, call)                                                                                                  \
    do {                                                                                                                       \
        if ((rows) == 1) {                                                                                                     \
            enum { ROWS = 1 };                                                                                                 \
            call;                                                                                                              \
        } else if ((rows) == 2) {                                                                                              \
            enum { ROWS = 2 };                                                                                                 \
            call;                                                                                                              \
        } else {                                                                                                               \
            enum { ROWS = DECODE_TILE };                                                                                       \
            call;                                                                                                              \
        }                                                                                                                      \
    } while (0)

/* Calls `call` with DIM, `dim` itself, but for the usual ones a compile-time constant: loops of constant length read memory
 * half as fast again. */
#define WITH_DIM(dim, call)                                                                                                    \
    do {                                                                                                                       \
        if ((dim) == 128) {                                                                                                    \
            enum { DIM = 128 };                                                                                                \
            call;                                                                                                              \
        } else if ((dim) == 64) {                                                                                              \
            enum { DIM = 64 };                                                                                                 \
            call;                                                                                                              \
        } else {                                                                                                               \
            const int64_t DIM = (dim);                                                                                         \
            call;                                                                                                              \
        }                                                                                                                      \
    } while (0)

static void score_tile(const decode_unit *u, int32_t dtype, int64_t first, int64_t n, int64_t bytes)
{
    WITH_DTYPE(dtype, WITH_ROWS(u->rows - first, WITH_DIM(u->call->dim, score_rows(ROWS, DTYPE, DIM, u, first, n, bytes))));
}

/* ------------------------------------------------------------------------------------------------------------- softmax */

/* What a row's products become before the mask: in log2 units. */
static void adjust_row(const decode_unit *u, int64_t r, int64_t key, int64_t n)
{
    const decode *c = u->call;
    const fattn_desc *desc = &c->problem->desc;
    const place *lane = &u->lane[r];
    real *s = u->p + r * DECODE_KEYS;
    for (int64_t j = 0; j < n && desc->kv_dtype == FATTN_I8; j += LANES)
        v_store(s + j, v_mul(v_load(s + j), v_load(u->k_factor + j)));
    for (int64_t j = 0; j < n && c->adjust.cap; j += LANES)
        v_store(s + j, v_mul(v_tanh(v_load(s + j)), v_set1(c->adjust.cap_log2)));
    if (desc->flags & FATTN_WITH_BIAS) {
        const size_t size = fattn_dtype_size(desc->dtype);
        widen(u->bias, lane->bias + key * (int64_t)size, desc->dtype, n, 1);
        for (int64_t j = 0; j < n; j++)
            s[j] += u->bias[j] * (real)LOG2E;
    }
    if (desc->flags & FATTN_WITH_SLOPES) {
        const real slope = (real)((double)c->at->slopes[lane->h] * LOG2E);
        for (int64_t j = 0; j < n; j++)
            s[j] -= slope * (real)(lane->i + u->seq.mask.offset > key + j ? lane->i + u->seq.mask.offset - key - j
                                                                          : key + j - lane->i - u->seq.mask.offset);
    }
}

static real across_max(const real *s, int64_t n)
{
    vec m = v_load(s);
    for (int64_t j = LANES; j < n; j += LANES)
        m = v_max(v_load(s + j), m);
    real part[LANES] __attribute__((aligned(FATTN_ALIGNMENT))), most = REAL_LOWEST;
    v_store(part, m);
    for (int l = 0; l < LANES; l++)
        most = part[l] > most ? part[l] : most;
    return most;
}

/* Drops the keys that row r does not keep; n becomes whole vectors. */
static void mask_row(const decode_unit *u, int64_t r, int64_t key, int64_t n)
{
    real *s = u->p + r * DECODE_KEYS;
    const real lo = (real)clamp64(u->keep[r].lo - key, 0, n), hi = (real)clamp64(u->keep[r].hi - key, 0, n);
    real index[LANES] __attribute__((aligned(FATTN_ALIGNMENT)));
    if (lo == 0 && hi == (real)DECODE_KEYS)
        return;
    for (int l = 0; l < LANES; l++)
        index[l] = (real)l;
    for (int64_t j = 0; j < n; j += LANES)
        v_store(s + j, v_keep(v_load(s + j), v_add(v_load(index), v_set1((real)j)), v_set1(lo), v_set1(hi), -INFINITY));
}

/* What dropout and the factors of bytes make of a row's probabilities, once they are summed. */
static void weigh_row(const decode_unit *u, int64_t r, int64_t key, int64_t n)
{
    const decode *c = u->call;
    const int64_t list = u->seq.b * c->problem->desc.heads_q + u->lane[r].h;
    real *p = u->p + r * DECODE_KEYS;
    for (int64_t j = 0; j < n && c->problem->desc.kv_dtype == FATTN_I8; j++)
        p[j] *= u->v_factor[j];
    for (int64_t quad = key / FATTN_PHILOX_WORDS; quad * FATTN_PHILOX_WORDS < key + n && c->adjust.drop; quad++) {
        uint32_t word[FATTN_PHILOX_WORDS];
        fattn_philox(&c->adjust.dropout, (uint32_t)quad, (uint32_t)u->lane[r].i, (uint32_t)list, word);
        for (int64_t j = max64(quad * FATTN_PHILOX_WORDS, key); j < min64((quad + 1) * FATTN_PHILOX_WORDS, key + n); j++)
            p[j - key] *= word[j - quad * FATTN_PHILOX_WORDS] >= c->adjust.dropout.threshold ? c->adjust.keep : 0;
    }
}

/* Moves the reference of row r to the largest score so far. */
static void move_reference(decode_unit *u, int64_t r, int64_t n)
{
    const decode *c = u->call;
    real *o = u->o + r * c->dim_v, *l = u->l + r * LANES;
    const real most = across_max(u->p + r * DECODE_KEYS, n), before = u->ref[r];
    if (!(most > before))
        return;
    /* The root of the factor, applied twice: the factor itself may be too small a number where sums are large. 0 for a row that
     * has nothing yet. */
    const vec root = v_set1((real)exp2(((double)before - (double)most) / 2));
    u->ref[r] = most;
    v_store(l, v_mul(v_mul(v_load(l), root), root));
    for (int64_t d = 0; d < c->dim_v; d += LANES)
        v_store(o + d, v_mul(v_mul(v_load(o + d), root), root));
}

/* Scores of row r with n keys from `key` on become probabilities. */
static void softmax_row(decode_unit *u, int64_t r, int64_t key, int64_t n)
{
    real *p = u->p + r * DECODE_KEYS, *l = u->l + r * LANES;
    vec sum = v_set1(0);
    bool move = u->ref[r] == REAL_LOWEST;
    adjust_row(u, r, key, n);
    mask_row(u, r, key, n);
    for (int64_t j = 0; j < n && !move; j += LANES)
        move = v_any_above(v_sub(v_load(p + j), v_set1(u->ref[r])), v_set1(DECODE_RISE));
    if (move)
        move_reference(u, r, n);
    for (int64_t j = 0; j < n; j += LANES) {
        const vec e = v_exp2(v_sub(v_load(p + j), v_set1(u->ref[r])));
        v_store(p + j, e);
        sum = v_add(sum, e);
    }
    v_store(l, v_add(v_load(l), sum));
    if (u->call->adjust.drop || u->call->problem->desc.kv_dtype == FATTN_I8)
        weigh_row(u, r, key, n);
}

/* -------------------------------------------------------------------------------------------------------------- values */

/* O of `rows` rows, `vecs` vectors from number d on, += P V over n keys. */
INLINE void value_columns(const int rows, const int vecs, const int32_t dtype, const int64_t dim_v, const decode_unit *u,
                          int64_t first, int64_t d, int64_t n, int64_t ahead)
{
    const real *p = u->p + first * DECODE_KEYS;
    real *o = u->o + first * dim_v + d;
    vec acc[DECODE_TILE * DECODE_VECS];
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int i = 0; i < vecs; i++)
            acc[r * vecs + i] = v_load(o + r * dim_v + i * LANES);
    }
    for (int64_t j = 0; j < n; j++) {
        vec v[DECODE_VECS];
        fetch(u->next[j], ahead);
        fetch((const char *)u->next[j] + u->k_block, ahead);
        UNROLL
        for (int i = 0; i < vecs; i++)
            v[i] = load_numbers(dtype, u->v[j], d + i * LANES);
        UNROLL
        for (int r = 0; r < rows; r++) {
            const vec weight = v_set1(p[r * DECODE_KEYS + j]);
            UNROLL
            for (int i = 0; i < vecs; i++)
                acc[r * vecs + i] = v_fma(weight, v[i], acc[r * vecs + i]);
        }
    }
    UNROLL
    for (int r = 0; r < rows; r++) {
        UNROLL
        for (int i = 0; i < vecs; i++)
            v_store(o + r * dim_v + i * LANES, acc[r * vecs + i]);
    }
}

INLINE void value_rows(const int rows, const int32_t dtype, const int64_t dim_v, const decode_unit *u, int64_t first, int64_t n,
                       int64_t bytes)
{
    int64_t d = 0;
    for (; d + DECODE_VECS * LANES <= dim_v; d += DECODE_VECS * LANES)
        value_columns(rows, DECODE_VECS, dtype, dim_v, u, first, d, n, d == 0 && first == 0 ? bytes : 0);
    for (; d < dim_v; d += LANES)
        value_columns(rows, 1, dtype, dim_v, u, first, d, n, d == 0 && first == 0 ? bytes : 0);
}

static void value_tile(const decode_unit *u, int32_t dtype, int64_t first, int64_t n, int64_t bytes)
{
    WITH_DTYPE(dtype, WITH_ROWS(u->rows - first, WITH_DIM(u->call->dim_v, value_rows(ROWS, DTYPE, DIM, u, first, n, bytes))));
}

#endif
