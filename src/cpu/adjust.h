/*
 * What scores and probabilities become on their way: bias and ALiBi are added, softcap bends, dropout multiplies. Numbers per
 * (key, query) are prepared as [key][width] tiles that match a tile of scores; softcap is computed inside the tiles.
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

enum { PIECE_KEYS = 32 }; /* keys for which bias and ALiBi are prepared at a time: the tile stays in the first-level cache */

_Static_assert(PIECE_KEYS % TILE_ROWS == 0, "a piece is whole groups");

/* add[c][lane] = bias of key first + c, for n <= PIECE_KEYS keys. wide: [lanes][n] for a narrower type. */
static void fill_bias(const fattn_problem *problem, real *add, int64_t width, const place *lane, int64_t lanes, int64_t first,
                      int64_t n, real *wide)
{
    const int32_t dtype = problem->desc.dtype;
    const int64_t size = (int64_t)fattn_dtype_size(dtype);
    const real *rows[PANEL_WIDTH];
    for (int64_t l = 0; l < lanes; l++)
        rows[l] = row_as_real(lane[l].bias + first * size, dtype, n, wide + l * n);
    transpose(add, width, rows, lanes, n);
}

/* Biases that will be wanted soon, `offset` bytes behind the first key of each lane. Their rows are too many for the processor
 * to fetch ahead by itself, and too many to be asked for at once: tiles ask for part g of n beside their work. */
typedef struct bias_ahead {
    const place *lane; /* NULL: nothing */
    int64_t lanes, offset;
} bias_ahead;

INLINE void fetch_bias(const bias_ahead *ahead, int64_t g, int64_t n)
{
    if (ahead->lane)
        for (int64_t l = g * ahead->lanes / n; l < (g + 1) * ahead->lanes / n; l++) {
            __builtin_prefetch(ahead->lane[l].bias + ahead->offset);
            __builtin_prefetch(ahead->lane[l].bias + ahead->offset + FATTN_ALIGNMENT);
        }
}

/* add[c][lane] = bias + ALiBi of key first + c, likewise. */
static void fill_added(const fattn_problem *problem, const fattn_launch *at, const fattn_sequence *s, real *add, int64_t width,
                       const place *lane, int64_t lanes, int64_t first, int64_t n, real *wide)
{
    const bool bias = (problem->desc.flags & FATTN_WITH_BIAS) != 0;
    if (bias)
        fill_bias(problem, add, width, lane, lanes, first, n, wide);
    if (!(problem->desc.flags & FATTN_WITH_SLOPES))
        return;
    real slope[PANEL_WIDTH] __attribute__((aligned(FATTN_ALIGNMENT))) = {0};
    real diagonal[PANEL_WIDTH] __attribute__((aligned(FATTN_ALIGNMENT))) = {0}; /* relative to the first key */
    for (int64_t l = 0; l < lanes; l++) {
        slope[l] = (real)-at->slopes[lane[l].h];
        diagonal[l] = (real)(lane[l].i + s->mask.offset - first);
    }
    for (int64_t l = 0; l < width; l += LANES) {
        const vec by = v_load(slope + l), from = v_load(diagonal + l);
        for (int64_t c = 0; c < n; c++) {
            const vec distance = v_abs(v_sub(from, v_set1((real)c)));
            real *to = add + c * width + l;
            v_store(to, bias ? v_fma(by, distance, v_load(to)) : v_mul(by, distance));
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
