/*
 * Backward: dq, dk, dv with the scores computed again (FlashAttention-2, algorithm 2). Five products per tile:
 *
 *   P^T  = 2^(K Q^T - lse)      in log2 units, scale folded into Q; lse is subtracted last: accumulators that started at -lse
 *                               would round each partial sum to the size of lse, which costs small P of rows with a large
 *                               lse five times the error
 *   dS^T = P^T (V dO^T - D)     accumulators start at -D, D_i = sum_d dO_id O_id - dlse_i
 *   dV  += P^T dO,  dK += dS^T Q,  dQ += dS K      (scale is folded into the packed K and Q)
 *
 * Softcap, bias, ALiBi and dropout come between (adjust.h). What is done to a key/value head and the query heads of its group:
 *
 *   prepare   Q and dO packed twice, transposed in panels (for the scores) and in column strips (for the gradients), and -lse,
 *             -D (backward_plan.h)
 *   blocks    of the keys, or of one range of them: dk and dv are summed over the query heads of the group. Per block of
 *             GRAD_KEYS keys it walks over blocks of queries
 *   reduce    dq = the sum of the partials of all ranges, in order, rounded to its type; left out where blocks add to dq itself
 *
 * and then dbias, dsinks, if asked for (backward_bias.h).
 *
 * No atomics, and ranges depend on the sequence alone: the bits do not depend on threads.
 */
#ifndef FATTN_CPU_BACKWARD_H
#define FATTN_CPU_BACKWARD_H

#include "backward_block.h"

#include "backward_bias.h"

/* -------------------------------------------------------------------------------------------------------------- blocks */

static void gradient_clear(gradient g, int64_t rows, const strips *s)
{
    for (int64_t r = 0; r < rows; r++)
        memset(g.rows + r * g.row, 0, (size_t)padded(s) * sizeof(real));
}

/* Zeros to add the gradient of a block's keys to: the output's own rows if they are whole vectors and groups of this type. */
static gradient gradient_start(const key_block *kb, const fattn_view *to, int64_t h, real *copy, const strips *s, int64_t dim)
{
    gradient g = {copy, padded(s)};
    if (kb->call->problem->desc.grad_dtype == REAL_DTYPE && dim == padded(s) && kb->count % TILE_ROWS == 0)
        g = (gradient){fattn_row(to, sizeof(real), kb->q->s.b, h, kb->q->s.k_first + kb->first), to->stride_row};
    gradient_clear(g, round_to(kb->count, TILE_ROWS), s);
    return g;
}

/* Writes to the output what was not summed there. */
static void gradient_end(const key_block *kb, const gradient *g, const fattn_view *to, int64_t h, const real *copy, int64_t dim)
{
    const int32_t dtype = kb->call->problem->desc.grad_dtype;
    if (g->rows != copy)
        return;
    for (int64_t r = 0; r < kb->count; r++)
        narrow(fattn_row(to, fattn_dtype_size(dtype), kb->q->s.b, h, kb->q->s.k_first + kb->first + r), dtype,
               copy + r * g->row, dim);
}

static void block_load(key_block *kb, int64_t h, int64_t index)
{
    const backward *w = kb->call;
    const fattn_desc *desc = &w->problem->desc;
    const real *rows[GRAD_KEYS];
    block_read(kb, h, index);
    kb->odd = false;
    for (int64_t r = 0; r < kb->count; r++) {
        rows[r] = kb->k + r * kb->k_row;
        kb->odd |= !all_finite(rows[r], desc->dim) || !all_finite(kb->v + r * kb->v_row, desc->dim_v);
    }
    pack_strips(kb->ks, &w->cols, GRAD_KEYS, 0, rows, kb->count, desc->dim, (real)desc->scale);
    kb->dk = gradient_start(kb, &w->at->dk, h, kb->dk_copy, &w->cols, desc->dim);
    kb->dv = gradient_start(kb, &w->at->dv, h, kb->dv_copy, &w->cols_v, desc->dim_v);
}

static void block_store(const key_block *kb, int64_t h)
{
    const backward *w = kb->call;
    gradient_end(kb, &kb->dk, &w->at->dk, h, kb->dk_copy, w->problem->desc.dim);
    gradient_end(kb, &kb->dv, &w->at->dv, h, kb->dv_copy, w->problem->desc.dim_v);
}

/* Where the sum of all ranges is made, or that of one range that is a unit. */
static gradient dq_of(const backward *w, const sequence_plan *q, int64_t range, int64_t h)
{
    const int64_t cols = padded(&w->cols);
    if (q->in_place)
        return (gradient){fattn_query_row(&w->at->dq, sizeof(real), &q->s, h, 0), w->at->dq.stride_row};
    return (gradient){w->partial + ((w->split ? range * w->rows_room : 0) + rows_in_room(q, h)) * cols, cols};
}

/* Where range `range` adds the dq of member m of the group of head h_kv. */
static gradient range_dq(const key_block *kb, int64_t range, int64_t h_kv, int64_t m)
{
    const backward *w = kb->call;
    const int64_t cols = padded(&w->cols);
    if (w->split || range == 0)
        return dq_of(w, kb->q, range, h_kv * w->problem->group + m);
    return (gradient){kb->range_sum + m * kb->q->rows * cols, cols};
}

/* to += from */
static void gradient_add(gradient to, gradient from, int64_t first, int64_t end, int64_t cols)
{
    for (int64_t r = first; r < end; r++)
        for (int64_t d = 0; d < cols; d += LANES)
            v_storeu(to.rows + r * to.row + d, v_add(v_loadu(to.rows + r * to.row + d), v_load(from.rows + r * from.row + d)));
}

/* Shares the keys of the next block of the range out to the panels of this one, which ask for them. */
static void block_ahead(key_block *kb, int64_t range, int64_t index)
{
    const sequence_plan *q = kb->q;
    int64_t meeting = 0;
    for (int64_t i = q->panel_from[range]; i < q->panel_to[range]; i++)
        meeting += panel_meets(kb, i);
    kb->ahead_key = min64((index + 1) * GRAD_KEYS, q->s.seq_k);
    kb->ahead_end = index + 1 < q->bounds[range + 1] ? min64(kb->ahead_key + GRAD_KEYS, q->s.seq_k) : kb->ahead_key;
    kb->ahead_share = ceil_div(GRAD_KEYS, max64(meeting * kb->call->problem->group, 1));
}

static void range_run(key_block *kb, int64_t range, int64_t h_kv)
{
    const backward *w = kb->call;
    const sequence_plan *q = kb->q;
    const int64_t group = w->problem->group, from = q->panel_from[range], to = q->panel_to[range];
    const int64_t first = panel_start(&q->panels, from), end = panel_start(&q->panels, to);
    for (int64_t m = 0; m < group; m++) {
        const gradient dq = range_dq(kb, range, h_kv, m);
        if (range == 0 && (q->in_place || !w->split)) /* where the sum of all ranges is made */
            gradient_clear(dq, q->rows, &w->cols);
        else
            gradient_clear((gradient){dq.rows + first * dq.row, dq.row}, end - first, &w->cols);
    }
    for (int64_t i = q->bounds[range]; i < q->bounds[range + 1]; i++) {
        block_load(kb, h_kv, i);
        block_ahead(kb, range, i);
        for (int64_t m = 0; m < group; m++) {
            const gradient dq = range_dq(kb, range, h_kv, m);
            for (int64_t p = from; p < to; p += BACKWARD_PANELS)
                block_step(kb, h_kv * group + m, &dq, p, min64(p + BACKWARD_PANELS, to));
        }
        block_store(kb, h_kv);
    }
    for (int64_t m = 0; m < group && !w->split && range > 0; m++)
        gradient_add(range_dq(kb, 0, h_kv, m), range_dq(kb, range, h_kv, m), first, end, padded(&w->cols));
}

/* -------------------------------------------------------------------------------------------------------------- reduce */

/* Part number `part` of a key/value head. */
static void reduce_part(const backward *w, const sequence_plan *q, int64_t h_kv, int64_t part)
{
    const fattn_desc *desc = &w->problem->desc;
    const int64_t blocks = ceil_div(q->s.seq_q, BACKWARD_ROWS), h = h_kv * w->problem->group + part / blocks;
    const int64_t row0 = part % blocks * BACKWARD_ROWS;
    const int64_t cols = padded(&w->cols), ranges = w->split ? q->ranges : 1;
    real row[FATTN_DIM_MOST + LANES] __attribute__((aligned(FATTN_ALIGNMENT)));
    for (int64_t i = row0; i < min64(row0 + BACKWARD_ROWS, q->s.seq_q); i++) {
        memset(row, 0, (size_t)cols * sizeof(real));
        for (int64_t range = 0; range < ranges; range++) {
            if (w->split &&
                (i < panel_start(&q->panels, q->panel_from[range]) || i >= panel_start(&q->panels, q->panel_to[range])))
                continue;
            const real *from = dq_of(w, q, range, h).rows + i * cols;
            /* The first as it is: adding it to 0 would turn -0 into 0, which blocks that add to dq itself do not. */
            for (int64_t d = 0; d < cols; d += LANES)
                v_store(row + d, range == 0 ? v_load(from + d) : v_add(v_load(row + d), v_load(from + d)));
        }
        narrow(fattn_query_row(&w->at->dq, fattn_dtype_size(desc->grad_dtype), &q->s, h, i), desc->grad_dtype, row, desc->dim);
    }
}

/* --------------------------------------------------------------------------------------------------------------- units */

static void *lane_scratch(const backward *w, int32_t lane)
{
    return w->scratch + (size_t)lane * w->scratch_size;
}

static key_block key_block_of(const backward *w, const sequence_plan *q, int32_t lane)
{
    key_block kb = {.call = w, .q = q};
    carver c = {lane_scratch(w, lane), 0};
    block_carve(&kb, w, &c);
    return kb;
}

/* All of one key/value head, in the lane's own room if it has one. */
static void head_run(void *arg, int32_t lane, int64_t unit)
{
    const backward *w = arg;
    const int64_t heads = w->problem->desc.heads_kv, h = unit % heads;
    sequence_plan q = w->sequence[unit / heads];
    if (w->room_of_lanes) {
        q.room_first = lane * w->lane_rows;
        q.room_head = h * w->problem->group;
    }
    for (int64_t part = 0; part < prepare_parts(w, &q); part++)
        prepare_part(w, &q, h, part, lane_scratch(w, lane));
    key_block kb = key_block_of(w, &q, lane);
    for (int64_t range = 0; range < q.ranges; range++)
        range_run(&kb, range, h);
    for (int64_t part = 0; part < reduce_parts(w, &q); part++)
        reduce_part(w, &q, h, part);
}

/* Or each stage of all of them, in units of one part or range. */
static void prepare_run(void *arg, int32_t lane, int64_t unit)
{
    const backward *w = arg;
    const int64_t b = sequence_of_unit(w->first_prepare, w->problem->desc.batch, unit), within = unit - w->first_prepare[b];
    const int64_t parts = prepare_parts(w, &w->sequence[b]);
    prepare_part(w, &w->sequence[b], within / parts, within % parts, lane_scratch(w, lane));
}

static void blocks_run(void *arg, int32_t lane, int64_t unit)
{
    const backward *w = arg;
    const int64_t b = sequence_of_unit(w->first_block, w->problem->desc.batch, unit), within = unit - w->first_block[b];
    key_block kb = key_block_of(w, &w->sequence[b], lane);
    /* The ranges of one head follow each other: what was packed for it stays in the caches that threads share. */
    range_run(&kb, within % kb.q->ranges, within / kb.q->ranges);
}

static void reduce_run(void *arg, int32_t lane, int64_t unit)
{
    (void)lane;
    const backward *w = arg;
    const int64_t b = sequence_of_unit(w->first_reduce, w->problem->desc.batch, unit), within = unit - w->first_reduce[b];
    const int64_t parts = reduce_parts(w, &w->sequence[b]);
    reduce_part(w, &w->sequence[b], within / parts, within % parts);
}

/* ---------------------------------------------------------------------------------------------------------------- call */

static size_t backward_plan(backward *w, const fattn_problem *problem, unsigned char *workspace)
{
    const fattn_desc *desc = &problem->desc;
    const int64_t heads = desc->heads_q, batch = desc->batch;
    *w = (backward){
        .problem = problem, .adjust = adjustment_of(desc), .cols = strips_of(desc->dim), .cols_v = strips_of(desc->dim_v)};
    w->may_split = problem->lanes > 1 && ranges_of(desc->seq_k) > 1 && batch * desc->heads_kv < HEADS_ENOUGH;
    /* Every sequence is padded to whole vectors. */
    w->rows_all =
        desc->total_q > 0 ? round_to(desc->total_q + batch * (LANES - 1), LANES) : batch * round_to(desc->seq_q, LANES);
    /* dbias reads all again; and sequences much shorter than the longest may take less room all together. */
    const int64_t all = w->rows_all * heads;
    w->lane_rows = problem->group * round_to(desc->seq_q, LANES);
    w->room_of_lanes = !(desc->flags & FATTN_WITH_DBIAS) && problem->lanes * w->lane_rows < all;
    w->rows_room = w->room_of_lanes && !w->may_split ? problem->lanes * w->lane_rows : all;
    const int64_t panels_all = w->rows_all / PANEL_WIDTH + batch + 1, rows = w->rows_all * heads;

    carver c = {workspace, 0};
    w->sequence = carve_bytes(&c, (size_t)batch * sizeof(sequence_plan));
    w->first_prepare = carve_bytes(&c, (size_t)(batch + 1) * sizeof(int64_t));
    w->first_block = carve_bytes(&c, (size_t)(batch + 1) * sizeof(int64_t));
    w->first_reduce = carve_bytes(&c, (size_t)(batch + 1) * sizeof(int64_t));
    w->keep = carve_bytes(&c, (size_t)w->rows_all * sizeof(fattn_interval));
    w->spans = carve_bytes(&c, (size_t)panels_all * sizeof(panel_span));
    w->qt = carve(&c, w->rows_room * desc->dim);
    w->dot = carve(&c, w->rows_room * desc->dim_v);
    w->qs = carve(&c, w->rows_room * padded(&w->cols));
    w->dos = carve(&c, w->rows_room * padded(&w->cols_v));
    w->nlse = carve(&c, rows);
    w->nd = carve(&c, rows);
    w->oddities = carve_bytes(&c, (size_t)(heads * panels_all));
    w->partial = carve(&c, (w->may_split ? ranges_of(desc->seq_k) : 1) * w->rows_room * padded(&w->cols));
    carver lane = {NULL, 0};
    key_block kb = {.call = w};
    block_carve(&kb, w, &lane);
    bias_carve(w, &lane);
    w->scratch_size = lane.used;
    w->scratch = carve_bytes(&c, lane.used * (size_t)problem->lanes);
    return c.used;
}

/* Whether key/value heads share themselves out evenly to the lanes. */
static bool heads_are_even(const backward *w)
{
    const fattn_desc *desc = &w->problem->desc;
    const fattn_sequence first = fattn_sequence_of(w->problem, w->at, 0);
    bool even = desc->batch * desc->heads_kv % w->problem->lanes == 0;
    for (int64_t b = 1; b < desc->batch && even; b++) {
        const fattn_sequence s = fattn_sequence_of(w->problem, w->at, b);
        even = s.seq_q == first.seq_q && s.seq_k == first.seq_k;
    }
    return even;
}

/* Whether nothing is to be written. */
static bool backward_is_empty(const fattn_desc *desc)
{
    return desc->batch == 0 && !(desc->flags & (FATTN_WITH_DBIAS | FATTN_WITH_DSINKS));
}

static size_t backward_workspace(const fattn_problem *problem)
{
    backward w;
    return backward_is_empty(&problem->desc) ? 0 : backward_plan(&w, problem, NULL);
}

static fattn_status backward_run(const fattn_problem *problem, const fattn_launch *at)
{
    const fattn_desc *desc = &problem->desc;
    backward w;
    if (backward_is_empty(desc))
        return FATTN_OK;
    backward_plan(&w, problem, at->workspace);
    w.at = at;
    w.split = w.may_split && desc->batch > 0 && !heads_are_even(&w);
    backward_divide(&w);
    if (w.split) {
        fattn_run_units(at->context, problem->lanes, w.first_prepare[desc->batch], prepare_run, &w);
        fattn_run_units(at->context, problem->lanes, w.first_block[desc->batch], blocks_run, &w);
        fattn_run_units(at->context, problem->lanes, w.first_reduce[desc->batch], reduce_run, &w);
    } else {
        fattn_run_units(at->context, problem->lanes, desc->batch * desc->heads_kv, head_run, &w);
    }
    if (desc->flags & FATTN_WITH_DBIAS)
        fattn_run_units(at->context, problem->lanes, bias_units(&w), bias_run, &w);
    if (desc->flags & FATTN_WITH_DSINKS)
        fattn_run_units(at->context, problem->lanes, desc->heads_q, sink_run, &w);
    return FATTN_OK;
}

#endif
