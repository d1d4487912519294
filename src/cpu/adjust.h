/*
 * What scores and probabilities become on their way: bias and ALiBi are added, softcap bends, dropout multiplies. Numbers per
 * (key, query) are prepared as [key][width] tiles that match a tile of scores.
 */
#ifndef FATTN_CPU_ADJUST_H
#define FATTN_CPU_ADJUST_H

#include "core/dropout.h"
#include "core/flush.h"

#include "tile.h"

/* What holds for a call. */
typedef struct adjustment {
    bool scores;     /* any of the next three */
    bool cap, added; /* softcap; bias or ALiBi */
    bool drop;
    real q_factor; /* on Q when it is packed for scores: into log2 units, or into units of the cap */
    real cap_log2; /* the cap, in log2 units */
    real keep;     /* 1 / (1 - dropout) */
    fattn_dropout dropout;
} adjustment;

/* Computed in the mode that units run in, whatever the caller's is. The compiler knows nothing of modes; volatile keeps the
 * arithmetic between the switches. */
static inline adjustment adjustment_of(const fattn_desc *desc)
{
    adjustment a = {.cap = desc->softcap != 0, .drop = desc->dropout != 0, .dropout = fattn_dropout_of(desc)};
    a.added = (desc->flags & (FATTN_WITH_BIAS | FATTN_WITH_SLOPES)) != 0;
    a.scores = fattn_scores_change(desc);
    volatile double scale = desc->scale, cap = desc->softcap, dropout = desc->dropout;
    const fattn_fp_mode mode = fattn_fp_enter();
    volatile real q_factor = (real)(a.cap ? scale / cap : scale * LOG2E), cap_log2 = (real)(cap * LOG2E);
    volatile real keep = (real)(1 / (1 - dropout));
    fattn_fp_leave(mode);
    a.q_factor = q_factor;
    a.cap_log2 = cap_log2;
    a.keep = keep;
    return a;
}

/* Where a lane of a panel stands. */
typedef struct place {
    int64_t h, i;     /* query head and row */
    const char *bias; /* of its first key, if there is one */
} place;

static inline place place_of(const fattn_problem *problem, const fattn_launch *at, const fattn_sequence *s, int64_t h,
                             int64_t i)
{
    const bool bias = (problem->desc.flags & FATTN_WITH_BIAS) != 0;
    return (place){h, i, bias ? fattn_row(&at->bias, fattn_dtype_size(problem->desc.dtype), s->b, h, i) : NULL};
}

/* Keys whose bias is made ready, or whose products are made, before what follows: they stay in the first-level cache. */
enum { PIECE_KEYS = 32 };

_Static_assert(PIECE_KEYS % TILE_ROWS == 0 && PIECE_KEYS % LANES == 0, "a piece is whole groups, and whole blocks of bias");

/* The bias and ALiBi of a panel's rows, or of its last ones. */
typedef struct added_run {
    const place *lane; /* NULL: nothing is added */
    int64_t lanes;     /* real rows */
    int64_t first;     /* numbers of keys are relative to this one */
    int64_t seq_k;
    int32_t dtype; /* of the bias */
    bool bias;
    const real *slope, *diagonal; /* [lanes], whole vectors: ALiBi's slope, negative; where the row stands */
} added_run;

/* slope, diagonal: room for the panel's rows. */
static added_run added_run_of(const fattn_problem *problem, const fattn_launch *at, const fattn_sequence *s, const place *lane,
                              int64_t lanes, int64_t first, real *slope, real *diagonal)
{
    added_run a = {.lane = lane, .lanes = lanes, .first = first, .seq_k = s->seq_k, .dtype = problem->desc.dtype};
    a.bias = (problem->desc.flags & FATTN_WITH_BIAS) != 0;
    if (problem->desc.flags & FATTN_WITH_SLOPES) {
        for (int64_t l = 0; l < PANEL_WIDTH; l++) {
            slope[l] = l < lanes ? (real)-at->slopes[lane[l].h] : 0;
            diagonal[l] = l < lanes ? (real)(lane[l].i + s->mask.offset - first) : 0;
        }
        a.slope = slope;
        a.diagonal = diagonal;
    }
    return a;
}

/* The same from lane `lane` on. */
static inline added_run added_lanes(const added_run *all, int64_t lane)
{
    added_run a = *all;
    if (a.lane) {
        a.lane += lane;
        a.lanes -= lane;
    }
    if (a.slope) {
        a.slope += lane;
        a.diagonal += lane;
    }
    return a;
}

/* to[c][l] = bias of key `key` + c, times a factor, for a vector of rows; 0 for rows and keys that there are not. */
INLINE void fill_bias(const int32_t dtype, const added_run *a, vec factor, real *to, ptrdiff_t width, int64_t lane, int64_t key)
{
    const int64_t lanes = clamp64(a->lanes - lane, 0, LANES), keys = min64(a->seq_k - key, LANES);
    const place *rows = a->lane + lane;
    vec block[LANES];
    if (lanes == LANES && keys == LANES) {
        UNROLL
        for (int l = 0; l < LANES; l++)
            block[l] = load_numbers(dtype, rows[l].bias, key);
    } else {
        real part[LANES * LANES] __attribute__((aligned(FATTN_ALIGNMENT))) = {0};
        for (int64_t l = 0; l < lanes; l++)
            widen(part + l * LANES, rows[l].bias + key * (int64_t)fattn_dtype_size(dtype), dtype, keys, 1);
        for (int l = 0; l < LANES; l++)
            block[l] = v_load(part + l * LANES);
    }
    v_transpose(block);
    UNROLL
    for (int c = 0; c < LANES; c++)
        v_store(to + c * width, v_mul(block[c], factor));
}

/* to[c][l] = bias + ALiBi of key number `key` + c, in log2 units, for `vecs` vectors of rows and n keys, or more up to whole
 * vectors. The sum comes first: slopes are mostly powers of 2, so that it rounds little. */
static void fill_added(const added_run *a, real *to, ptrdiff_t width, int vecs, int64_t key, int64_t n)
{
    const vec log2e = v_set1((real)LOG2E), bias_factor = a->slope ? v_set1(1) : log2e;
    for (int64_t lane = 0; lane < vecs * LANES; lane += LANES) {
        for (int64_t c = 0; c < n && a->bias; c += LANES)
            WITH_DTYPE(a->dtype, fill_bias(DTYPE, a, bias_factor, to + c * width + lane, width, lane, a->first + key + c));
        if (!a->slope)
            continue;
        const vec by = v_load(a->slope + lane), from = v_load(a->diagonal + lane);
        for (int64_t c = 0; c < n; c++) {
            const vec distance = v_abs(v_sub(from, v_set1((real)(key + c))));
            real *at = to + c * width + lane;
            v_store(at, v_mul(a->bias ? v_fma(by, distance, v_load(at)) : v_mul(by, distance), log2e));
        }
    }
}

/* Philox for LANES rows at once: the words of one quad of keys. As loops over arrays, so that the compiler finds vectors. */
static inline void philox_lanes(const fattn_dropout *d, uint32_t quad, const uint32_t *row, const uint32_t *list,
                                uint32_t word[FATTN_PHILOX_WORDS][LANES])
{
    uint32_t c0[LANES], c1[LANES], c2[LANES], c3[LANES], k0 = d->key[0], k1 = d->key[1];
    for (int l = 0; l < LANES; l++)
        c0[l] = quad, c1[l] = row[l], c2[l] = list[l], c3[l] = 0;
    for (int round = 0; round < FATTN_PHILOX_ROUNDS; round++) {
        for (int l = 0; l < LANES; l++) {
            const uint64_t a = (uint64_t)FATTN_PHILOX_M0 * c0[l], b = (uint64_t)FATTN_PHILOX_M1 * c2[l];
            c0[l] = (uint32_t)(b >> 32) ^ c1[l] ^ k0;
            c1[l] = (uint32_t)b;
            c2[l] = (uint32_t)(a >> 32) ^ c3[l] ^ k1;
            c3[l] = (uint32_t)a;
        }
        k0 += FATTN_PHILOX_W0;
        k1 += FATTN_PHILOX_W1;
    }
    memcpy(word[0], c0, sizeof c0);
    memcpy(word[1], c1, sizeof c1);
    memcpy(word[2], c2, sizeof c2);
    memcpy(word[3], c3, sizeof c3);
}

/* factor[c][lane] = what dropout multiplies the probability of key first + c with. */
static void fill_dropout(const fattn_problem *problem, const fattn_sequence *s, const adjustment *a, real *factor,
                         int64_t width, const place *lane, int64_t lanes, int64_t first, int64_t n)
{
    uint32_t row[PANEL_WIDTH] = {0}, list[PANEL_WIDTH] = {0}, word[FATTN_PHILOX_WORDS][LANES];
    for (int64_t l = 0; l < lanes; l++) {
        row[l] = (uint32_t)lane[l].i;
        list[l] = (uint32_t)(s->b * problem->desc.heads_q + lane[l].h);
    }
    const bool all = a->dropout.threshold == 0;
    const uint32_t last_dropped = all ? 0 : (uint32_t)(a->dropout.threshold - 1);
    for (int64_t quad = first / FATTN_PHILOX_WORDS; quad * FATTN_PHILOX_WORDS < first + n; quad++)
        for (int64_t l0 = 0; l0 < width; l0 += LANES) {
            philox_lanes(&a->dropout, (uint32_t)quad, row + l0, list + l0, word);
            for (int r = 0; r < FATTN_PHILOX_WORDS; r++) {
                const int64_t c = quad * FATTN_PHILOX_WORDS + r - first;
                for (int l = 0; l < LANES && c >= 0 && c < n; l++)
                    factor[c * width + l0 + l] = all || word[r][l] > last_dropped ? a->keep : 0;
            }
        }
}

#endif
