/*
 * Backward, the gradients of bias and sinks. backward.h says how it all fits together.
 *
 * dbias = dS, summed over the sequences, heads and rows that the bias was broadcast over. A unit owns the elements of one
 * (sequence, head) of dbias and one block of keys, and computes the tiles of dS again for all that add to them, in order: two
 * products more than the five of backward, but no element has two writers, and nothing is stored for each (sequence, head).
 *
 *     dsink_h = - sum exp(sink_h - lse) D      over the rows of all sequences
 */
#ifndef FATTN_CPU_BACKWARD_BIAS_H
#define FATTN_CPU_BACKWARD_BIAS_H

#include "backward_block.h"

static fattn_dbias_shape bias_shape_of(const backward *w)
{
    return fattn_dbias_shape_of(&w->problem->desc, &w->at->dbias);
}

static int64_t bias_units(const backward *w)
{
    const fattn_dbias_shape s = bias_shape_of(w);
    return s.batch * s.heads * ceil_div(w->problem->desc.seq_k, GRAD_KEYS);
}

/* Sums of a unit: [rows][GRAD_KEYS]; rows of a panel where dbias has but one row. */
static real *bias_carve(const backward *w, carver *c)
{
    const fattn_desc *desc = &w->problem->desc;
    return carve(c, desc->flags & FATTN_WITH_DBIAS ? max64(desc->seq_q, PANEL_WIDTH) * GRAD_KEYS : 0);
}

/* Rows that forward took for rows without keys have no gradient, whatever their numbers are. */
static void clear_empty_rows(const key_block *kb, int64_t h, int64_t index)
{
    const backward *w = kb->call;
    const real *nlse = w->nlse + rows_in_call(w, kb->q, h) + panel_start(&kb->q->panels, index);
    for (int64_t i = 0; i < panel_vecs(&kb->q->panels, index) * LANES; i++)
        if (row_is_empty(nlse[i]))
            for (int64_t r = 0; r < kb->count; r++)
                kb->ds[r * P_ROW + i] = 0;
}

/* sum += dS of one sequence and head. */
static void bias_add(key_block *kb, int64_t h, int64_t block, bool one_row, real *sum)
{
    const backward *w = kb->call;
    const sequence_plan *q = kb->q;
    if (block * GRAD_KEYS >= q->s.seq_k)
        return;
    block_read(kb, h / w->problem->group, block);
    for (int64_t i = 0; i < q->panels.count; i++) {
        const int64_t first = panel_start(&q->panels, i), rows = min64(panel_start(&q->panels, i + 1), q->s.seq_q) - first;
        real *to[PANEL_WIDTH];
        if (!panel_meets(kb, i))
            continue;
        cells met = {.vecs = panel_vecs(&q->panels, i), .keys = kb->count};
        panel_gradients(kb, h, i, 0, true, &met);
        clear_cells(kb, &met);
        if (oddities_of(w, q, h)[i] & ODD_ROW)
            clear_empty_rows(kb, h, i);
        for (int64_t r = 0; r < rows; r++)
            to[r] = sum + ((one_row ? 0 : first) + r) * GRAD_KEYS;
        add_transposed(to, kb->ds, P_ROW, rows, kb->count);
    }
}

static void bias_store(const backward *w, int64_t rows, int64_t b, int64_t h, int64_t block, real *sum)
{
    const fattn_desc *desc = &w->problem->desc;
    const size_t size = fattn_dtype_size(desc->grad_dtype);
    const int64_t first = block * GRAD_KEYS, n = min64(GRAD_KEYS, desc->seq_k - first);
    if (rows == 1)
        for (int64_t r = 1; r < PANEL_WIDTH; r++)
            for (int64_t j = 0; j < n; j++)
                sum[j] += sum[r * GRAD_KEYS + j];
    for (int64_t i = 0; i < rows; i++) {
        char *row = fattn_row(&w->at->dbias, size, b, h, i);
        narrow(row + first * (int64_t)size, desc->grad_dtype, sum + i * GRAD_KEYS, n);
    }
}

static void bias_run(void *arg, int32_t lane, int64_t unit)
{
    const backward *w = arg;
    const fattn_desc *desc = &w->problem->desc;
    const fattn_dbias_shape shape = bias_shape_of(w);
    const int64_t blocks = ceil_div(desc->seq_k, GRAD_KEYS);
    const int64_t block = unit % blocks, h0 = unit / blocks % shape.heads, b0 = unit / blocks / shape.heads;
    const bool one_row = shape.rows == 1;
    key_block kb = {.call = w};
    carver c = {w->scratch + (size_t)lane * w->scratch_size, 0};
    block_carve(&kb, w, &c);
    real *sum = bias_carve(w, &c);
    memset(sum, 0, (size_t)((one_row ? PANEL_WIDTH : desc->seq_q) * GRAD_KEYS) * sizeof(real));
    for (int64_t b = b0; b < b0 + shape.sum_batch; b++)
        for (int64_t h = h0; h < h0 + shape.sum_heads; h++) {
            kb.q = &w->sequence[b];
            bias_add(&kb, h, block, one_row, sum);
        }
    bias_store(w, shape.rows, b0, h0, block, sum);
}

static void sink_run(void *arg, int32_t lane, int64_t h)
{
    (void)lane;
    const backward *w = arg;
    double sum = 0;
    for (int64_t b = 0; b < w->problem->desc.batch; b++) {
        const sequence_plan *q = &w->sequence[b];
        const real *lse = (const real *)w->at->lse + q->s.lse_first + h * q->s.lse_head;
        const real *nd = w->nd + rows_in_call(w, q, h);
        for (int64_t i = 0; i < q->s.seq_q; i++)
            if (lse[i] != -(real)INFINITY)
                sum += exp((double)w->at->sinks[h] - (double)lse[i]) * (double)nd[i];
    }
    w->at->dsinks[h] = (float)sum;
}

#endif
