/*
 * The gradients that many rows share: dbias, the sum of dS over what the bias is broadcast over, and
 *
 *     dsink = - sum_i exp(sink - lse_i) D_i
 *
 * A unit owns what it writes and adds in order, in double.
 */
#include <math.h>

#include "composed/composed.h"
#include "core/pool.h"

/* ---------------------------------------------------------------------------------------------------------------- dbias */

/* Elements of dbias that a unit sums; a row of sums lies on its stack. */
enum { SUM_ROWS = 64, SUM_KEYS = 512 };

/* dbias in units. */
typedef struct bias_units {
    fattn_dbias_shape shape;
    int64_t row_blocks, key_blocks;
} bias_units;

static bias_units units_of(const work *w)
{
    const fattn_desc *d = &w->problem->desc;
    const fattn_dbias_shape shape = fattn_dbias_shape_of(d, &w->launch->dbias);
    return (bias_units){shape, (shape.rows + SUM_ROWS - 1) / SUM_ROWS, (d->seq_k + SUM_KEYS - 1) / SUM_KEYS};
}

/* sum += dS of keys key .. key+keys-1, over sequences b0 .. b1-1, heads h0 .. h1-1 and rows i0 .. i1-1, where they exist. */
typedef struct bias_range {
    int64_t b0, b1, h0, h1, i0, i1, key, keys;
} bias_range;

static void add_rows(const work *w, const bias_range *r, double *sum)
{
    for (int64_t b = r->b0; b < r->b1; b++) {
        const fattn_sequence s = fattn_sequence_of(w->problem, w->launch, b);
        const int64_t keys = s.seq_k - r->key < r->keys ? s.seq_k - r->key : r->keys;
        for (int64_t h = r->h0; h < r->h1; h++)
            for (int64_t i = r->i0; i < r->i1 && i < s.seq_q; i++) {
                const matrix ds = composed_part_of(w, MATRIX_DS, &s, h, i, 1, r->key, keys);
                for (int64_t j = 0; j < keys; j++)
                    sum[j] += (double)ds.data[j];
            }
    }
}

static void bias_unit(void *arg, int32_t lane, int64_t number)
{
    const work *w = arg;
    const fattn_desc *d = &w->problem->desc;
    const bias_units units = units_of(w);
    const fattn_dbias_shape *shape = &units.shape;
    const int64_t key_block = number % units.key_blocks, row_block = number / units.key_blocks % units.row_blocks;
    const int64_t list = number / units.key_blocks / units.row_blocks, b = list / shape->heads, h = list % shape->heads;
    const int64_t key = key_block * SUM_KEYS, keys = d->seq_k - key < SUM_KEYS ? d->seq_k - key : SUM_KEYS;
    const int64_t first = row_block * SUM_ROWS, last = first + SUM_ROWS < shape->rows ? first + SUM_ROWS : shape->rows;
    bias_range r = {.b0 = b, .b1 = b + shape->sum_batch, .h0 = h, .h1 = h + shape->sum_heads, .key = key, .keys = keys};
    (void)lane;

    for (int64_t i = first; i < last; i++) {
        double sum[SUM_KEYS] = {0};
        r.i0 = i;
        r.i1 = i + shape->sum_rows;
        add_rows(w, &r, sum);
        float *row = (float *)fattn_row(&w->launch->dbias, sizeof(float), b, h, i) + key;
        for (int64_t j = 0; j < keys; j++)
            row[j] = (float)sum[j];
    }
}

void composed_dbias(const work *w)
{
    const bias_units u = units_of(w);
    fattn_run_units(w->launch->context, w->problem->lanes, u.shape.batch * u.shape.heads * u.row_blocks * u.key_blocks,
                    bias_unit, (void *)(uintptr_t)w);
}

/* --------------------------------------------------------------------------------------------------------------- dsinks */

static void sink_unit(void *arg, int32_t lane, int64_t h)
{
    const work *w = arg;
    const float *lse = w->launch->lse;
    const double sink = (double)w->launch->sinks[h];
    double sum = 0;
    (void)lane;
    for (int64_t b = 0; b < w->problem->desc.batch; b++) {
        const fattn_sequence s = fattn_sequence_of(w->problem, w->launch, b);
        for (int64_t i = 0; i < s.seq_q; i++) {
            const int64_t row = composed_row_index(&s, h, i);
            if (lse[row] != -(float)INFINITY)
                sum -= exp(sink - (double)lse[row]) * (double)w->delta[row];
        }
    }
    w->launch->dsinks[h] = (float)sum;
}

void composed_dsinks(const work *w)
{
    fattn_run_units(w->launch->context, w->problem->lanes, w->problem->desc.heads_q, sink_unit, (void *)(uintptr_t)w);
}
