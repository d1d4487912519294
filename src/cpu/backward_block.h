/*
 * Backward, one block of keys: its scores and gradients against blocks of queries. backward.h says how it all fits together.
 */
#ifndef FATTN_CPU_BACKWARD_BLOCK_H
#define FATTN_CPU_BACKWARD_BLOCK_H

#include "backward_plan.h"

/* One block of keys: pointers to its head and the scratch of its lane. */
typedef struct key_block {
    const backward *call;
    const sequence_plan *q;
    int64_t first, count; /* keys */
    const real *k, *v;    /* the first key's rows, or copies that end in zeros */
    ptrdiff_t k_row, v_row;
    wide_rows wide;
    real *k_copy, *v_copy;        /* [keys][dim, dim_v] of a block that is not whole groups, or of another type */
    real *ks;                     /* strips [keys][width] of K times scale */
    real *p, *ds;                 /* [keys][P_ROW] */
    gradient dk, dv;              /* [keys] rows that sums go to: the outputs' own, or the copies */
    real *dk_copy, *dv_copy;      /* [keys][padded dim, dim_v] */
    real *lo, *hi;                /* [width] of the panel at hand: the keys that a row keeps, from the block's first */
    real *bend, *factor;          /* [keys][width] of the panel at hand, see gradient.h */
    real *added;                  /* [PIECE_KEYS][width], see adjust.h */
    real *slope, *diagonal;       /* [width] of the panel at hand, likewise */
    real *range_sum;              /* [group][rows][dim padded]: dq of ranges behind the first, where they are no units */
    int64_t ahead_key, ahead_end; /* keys that the next block will read and nobody asked for yet */
    int64_t ahead_share;          /* those that each panel asks for */
    bool odd;                     /* a NaN or an infinity among the keys and values */
} key_block;

/* Makes ready what adjust.h adds to the scores of panel `index` of query head h, and dropout's factors of keys [from, to) of
 * the block; in the rest of the last group P is 0 and must not meet a NaN. lane: room for the panel's places. */
static added_run panel_adjust(const key_block *kb, int64_t h, int64_t index, int64_t from, int64_t to, place *lane)
{
    const backward *w = kb->call;
    const sequence_plan *q = kb->q;
    const int64_t first = panel_start(&q->panels, index), end = panel_start(&q->panels, index + 1), width = end - first;
    const int64_t lanes = min64(end, q->s.seq_q) - first;
    if (w->adjust.added || w->adjust.drop)
        for (int64_t i = 0; i < lanes; i++)
            lane[i] = place_of(w->problem, w->at, &q->s, h, first + i);
    if (w->adjust.drop) {
        fill_dropout(w->problem, &q->s, &w->adjust, kb->factor, width, lane, lanes, kb->first + from, to - from);
        memset(kb->factor + (to - from) * width, 0, (size_t)((round_to(to, TILE_ROWS) - to) * width) * sizeof(real));
    }
    if (!w->adjust.added)
        return (added_run){0};
    return added_run_of(w->problem, w->at, &q->s, lane, lanes, kb->first, kb->slope, kb->diagonal);
}

/* P^T of a stretch; with bias or ALiBi a piece at a time. */
static void stretch_probabilities(const key_block *kb, const stretch *part, int panel, const added_run *added, grad_run run)
{
    const int64_t all = run.groups;
    if (!added->lane) {
        probabilities(part->vecs, panel, part->masked, &run);
        return;
    }
    run.added = kb->added;
    for (int64_t g = 0; g < all; g += PIECE_KEYS / TILE_ROWS) {
        run.groups = min64(PIECE_KEYS / TILE_ROWS, all - g);
        fill_added(added, kb->added, run.width, part->vecs, run.key, run.groups * TILE_ROWS);
        probabilities(part->vecs, panel, part->masked, &run);
        run = grad_run_from(&run, PIECE_KEYS, 0);
    }
}

/* Cells that no stretch filled become zero. */
static void clear_cells(const key_block *kb, const cells *c)
{
    const uint32_t all = (uint32_t)((UINT64_C(1) << c->vecs) - 1);
    for (int64_t g = 0; g < ceil_div(c->keys, TILE_ROWS); g++)
        for (uint32_t left = all & ~c->met[g]; left; left &= left - 1) {
            const int64_t cell = g * TILE_ROWS * P_ROW + __builtin_ctz(left) * LANES;
            for (int r = 0; r < TILE_ROWS; r++) {
                v_store(kb->p + cell + r * P_ROW, v_set1(0));
                v_store(kb->ds + cell + r * P_ROW, v_set1(0));
            }
        }
}

/* What to ask for beside the tiles of panel `index`: the bias of the next panel, and some keys and values of the next block. */
static ahead_queue panel_ahead(key_block *kb, int64_t h, int64_t index, int64_t groups)
{
    const backward *w = kb->call;
    const fattn_desc *desc = &w->problem->desc;
    const int64_t size = (int64_t)fattn_dtype_size(desc->dtype), next = panel_start(&kb->q->panels, index + 1);
    const fattn_view *views[] = {&w->at->k, &w->at->v};
    const int64_t dims[] = {desc->dim, desc->dim_v};
    ahead_queue a = {0};
    if (desc->flags & FATTN_WITH_BIAS && next < kb->q->s.seq_q)
        ahead_add(&a, place_of(w->problem, w->at, &kb->q->s, h, next).bias + kb->first * size, w->at->bias.stride_row * size,
                  kb->count * size, min64(PANEL_WIDTH, kb->q->s.seq_q - next));
    const int64_t rows = min64(kb->ahead_share, kb->ahead_end - kb->ahead_key);
    for (int i = 0; i < 2; i++)
        ahead_add(&a, fattn_row(views[i], (size_t)size, kb->q->s.b, h / w->problem->group, kb->q->s.k_first + kb->ahead_key),
                  views[i]->stride_row * size, dims[i] * size, rows);
    kb->ahead_key += rows;
    ahead_spread(&a, requests_of(groups, desc->dim) + requests_of(groups, desc->dim_v));
    return a;
}

/* Where all of panel `index` of query head h reads and writes from key `from` of the block on: for P^T, and for dS^T. */
static void panel_runs(const key_block *kb, int64_t h, int64_t index, int64_t from, int64_t column, grad_run *scores,
                       grad_run *values)
{
    const backward *w = kb->call;
    const fattn_desc *desc = &w->problem->desc;
    const int64_t first = panel_start(&kb->q->panels, index), cell = from * P_ROW + column * LANES;
    const int64_t at = rows_in_room(kb->q, h) + first, number = rows_in_call(w, kb->q, h) + first;
    *scores = (grad_run){.a = kb->k + from * kb->k_row,
                         .a_row = kb->k_row,
                         .b = w->qt + at * desc->dim,
                         .width = panel_vecs(&kb->q->panels, index) * LANES,
                         .dim = desc->dim,
                         .key = from,
                         .start = w->nlse + number,
                         .lo = kb->lo,
                         .hi = kb->hi,
                         .p = kb->p + cell,
                         .bend = w->adjust.cap ? kb->bend : NULL,
                         .cap_log2 = w->adjust.cap_log2};
    *values = *scores;
    values->a = kb->v + from * kb->v_row;
    values->a_row = kb->v_row;
    values->b = w->dot + at * desc->dim_v;
    values->dim = desc->dim_v;
    values->start = w->nd + number;
    values->ds = kb->ds + cell;
    values->factor = w->adjust.drop ? kb->factor : NULL;
}

/* P^T and dS^T of a stretch. all_scores, all_values: of the panel. */
static void stretch_gradients(const key_block *kb, const stretch *part, int panel, const added_run *added,
                              const grad_run *all_scores, const grad_run *all_values)
{
    const int64_t row = part->group * TILE_ROWS, l = part->vec * LANES;
    const added_run part_added = added_lanes(added, l);
    grad_run scores = grad_run_from(all_scores, row, l), values = grad_run_from(all_values, row, l);
    scores.groups = values.groups = part->count;
    stretch_probabilities(kb, part, panel, &part_added, scores);
    score_gradients(part->vecs, panel, part->masked, &values);
}

/* Fills the cells of panel `index` of query head h that it keeps, its first vector being number `column`. bias: dS is wanted as
 * the gradient of the bias, before softcap. */
static void panel_gradients(key_block *kb, int64_t h, int64_t index, int64_t column, bool bias, cells *met)
{
    const backward *w = kb->call;
    const int vecs = panel_vecs(&kb->q->panels, index);
    const panel_span *keys = &w->spans[kb->q->panel_first + index];
    const fattn_interval *keep = w->keep + kb->q->row_first + panel_start(&kb->q->panels, index);
    /* Whole groups, counted from the block's first key. */
    const int64_t from = max64(keys->all.lo - kb->first, 0) / TILE_ROWS * TILE_ROWS;
    const int64_t to = min64(keys->all.hi - kb->first, kb->count);
    if (from >= to)
        return;
    stretch parts[STRETCHES_MOST];
    place lane[PANEL_WIDTH];
    grad_run scores, values;
    const int count = stretches_of(keys, vecs, kb->first + from, kb->first + to, INT64_MAX, parts);
    const added_run added = panel_adjust(kb, h, index, from, to, lane);
    ahead_queue ahead = panel_ahead(kb, h, index, ceil_div(to - from, TILE_ROWS));
    panel_runs(kb, h, index, from, column, &scores, &values);
    scores.ahead = values.ahead = &ahead;
    if (bias)
        values.bend = NULL;
    bool bounded = false;
    for (int i = 0; i < count; i++) {
        const stretch *part = &parts[i];
        if (part->masked && !bounded)
            row_bounds(keep, vecs * LANES, kb->first, GRAD_KEYS, kb->lo, kb->hi);
        bounded |= part->masked;
        stretch_gradients(kb, part, vecs, &added, &scores, &values);
        for (int64_t g = 0; g < part->count; g++)
            met->met[from / TILE_ROWS + part->group + g] |= ((1u << part->vecs) - 1) << (column + part->vec);
    }
}

/* Does panel i keep any key of the block? */
static bool panel_meets(const key_block *kb, int64_t i)
{
    const span *keys = &kb->call->spans[kb->q->panel_first + i].all;
    return keys->lo < kb->first + kb->count && keys->hi > kb->first;
}

/* In a product of tiles a key that a row does not keep still meets that row, times 0; and 0 times a NaN or an infinity is NaN.
 * Where that could happen, the gradients of the block are summed pair by pair instead. */
static bool block_is_odd(const key_block *kb, int64_t h, int64_t first, int64_t end)
{
    const backward *w = kb->call;
    const panel_span *spans = w->spans + kb->q->panel_first;
    int odd = kb->odd ? ODD_NUMBER : 0;
    bool partial = false;
    for (int64_t i = first; i < end; i++) {
        odd |= oddities_of(w, kb->q, h)[i];
        partial |= spans[i].all.in_lo > kb->first || spans[i].all.in_hi < kb->first + kb->count;
        partial |= panel_start(&kb->q->panels, i + 1) > kb->q->s.seq_q; /* padding rows would meet infinite keys as 0 inf */
    }
    return (odd & ODD_NUMBER) && (partial || (odd & ODD_ROW));
}

/* The three products of block_step over kept pairs only. Rows that forward took for rows without keys give nothing. */
static void block_careful(const key_block *kb, int64_t h, const gradient *dq_head, int64_t row0, int64_t n)
{
    const backward *w = kb->call;
    const fattn_desc *desc = &w->problem->desc;
    const int64_t base = rows_in_call(w, kb->q, h);
    for (int64_t col = 0; col < n && row0 + col < kb->q->s.seq_q; col++) {
        const fattn_interval keep = w->keep[kb->q->row_first + row0 + col];
        const real *q = query_row(&w->at->q, desc->dtype, kb->q, h, row0 + col, desc->dim, kb->wide.q);
        const real *dout = query_row(&w->at->dout, desc->out_dtype, kb->q, h, row0 + col, desc->dim_v, kb->wide.dout);
        real *dq = dq_head->rows + (row0 + col) * dq_head->row;
        if (row_is_empty(w->nlse[base + row0 + col]))
            continue;
        for (int64_t r = max64(keep.lo - kb->first, 0); r < min64(keep.hi - kb->first, kb->count); r++) {
            const real p = kb->p[r * P_ROW + col], ds = kb->ds[r * P_ROW + col] * (real)desc->scale;
            const real *k = kb->k + r * kb->k_row;
            real *dk = kb->dk.rows + r * kb->dk.row, *dv = kb->dv.rows + r * kb->dv.row;
            for (int64_t d = 0; d < desc->dim_v; d++)
                dv[d] += p * dout[d];
            for (int64_t d = 0; d < desc->dim; d++) {
                dk[d] += ds * q[d];
                dq[d] += ds * k[d];
            }
        }
    }
}

/* One block of keys against one block of panels [first, end) of query head h. */
static void block_step(key_block *kb, int64_t h, const gradient *dq, int64_t first, int64_t end)
{
    const sequence_plan *q = kb->q;
    /* Panels that keep none of these keys are left out at both ends. */
    while (first < end && !panel_meets(kb, first))
        first++;
    while (first < end && !panel_meets(kb, end - 1))
        end--;
    if (first >= end)
        return;
    const int64_t row = panel_start(&q->panels, first), n = panel_start(&q->panels, end) - row;
    cells met = {.vecs = n / LANES, .keys = kb->count};
    for (int64_t i = first; i < end; i++)
        panel_gradients(kb, h, i, (panel_start(&q->panels, i) - row) / LANES, false, &met);
    if (block_is_odd(kb, h, first, end)) {
        block_careful(kb, h, dq, row, n);
        return;
    }
    clear_cells(kb, &met);
    const backward *w = kb->call;
    const int64_t base = rows_in_room(q, h);
    gradient_of_keys(&kb->dv, &met, &w->cols_v, kb->p, w->dos + base * padded(&w->cols_v), q->rows, row);
    gradient_of_keys(&kb->dk, &met, &w->cols, kb->ds, w->qs + base * padded(&w->cols), q->rows, row);
    gradient_of_queries(dq, row, &met, &w->cols, kb->ds, kb->ks);
}

/* The scratch of one lane. What prepare uses comes first. */
static void block_carve(key_block *kb, const backward *w, carver *c)
{
    const fattn_desc *desc = &w->problem->desc;
    const int64_t tile = GRAD_KEYS * PANEL_WIDTH;
    kb->wide = carve_wide(w, c);
    kb->k_copy = carve(c, GRAD_KEYS * desc->dim);
    kb->v_copy = carve(c, GRAD_KEYS * desc->dim_v);
    kb->ks = carve(c, GRAD_KEYS * padded(&w->cols));
    kb->p = carve(c, GRAD_KEYS * P_ROW);
    kb->ds = carve(c, GRAD_KEYS * P_ROW);
    kb->dk_copy = carve(c, GRAD_KEYS * padded(&w->cols));
    kb->dv_copy = carve(c, GRAD_KEYS * padded(&w->cols_v));
    kb->lo = carve(c, PANEL_WIDTH);
    kb->hi = carve(c, PANEL_WIDTH);
    kb->added = carve(c, w->adjust.added ? PIECE_KEYS * PANEL_WIDTH : 0);
    kb->slope = carve(c, w->adjust.added ? PANEL_WIDTH : 0);
    kb->diagonal = carve(c, w->adjust.added ? PANEL_WIDTH : 0);
    kb->bend = carve(c, w->adjust.cap ? tile : 0);
    kb->factor = carve(c, w->adjust.drop ? tile : 0);
    const bool again = ranges_of(desc->seq_k) > 1; /* needed where ranges are no units: known only once the lengths are */
    kb->range_sum = carve(c, again ? w->problem->group * round_to(desc->seq_q, LANES) * padded(&w->cols) : 0);
}

/* Rows [first, first + count) of a head of K or V, rounded up to whole groups: in place, or a copy that ends in zeros. */
static const real *block_rows(const key_block *kb, const fattn_view *view, int64_t h, int64_t dim, ptrdiff_t *row, real *copy)
{
    const int32_t dtype = kb->call->problem->desc.dtype;
    const size_t size = fattn_dtype_size(dtype);
    const int64_t whole = round_to(kb->count, TILE_ROWS), first = kb->q->s.k_first + kb->first;
    *row = view->stride_row;
    if (whole == kb->count && dtype == REAL_DTYPE)
        return fattn_row(view, size, kb->q->s.b, h, first);
    for (int64_t r = 0; r < kb->count; r++)
        widen(copy + r * dim, fattn_row(view, size, kb->q->s.b, h, first + r), dtype, dim, 1);
    memset(copy + kb->count * dim, 0, (size_t)((whole - kb->count) * dim) * sizeof(real));
    *row = dim;
    return copy;
}

/* Block number `index` of the keys of head h. */
static void block_read(key_block *kb, int64_t h, int64_t index)
{
    const backward *w = kb->call;
    const fattn_desc *desc = &w->problem->desc;
    kb->first = index * GRAD_KEYS;
    kb->count = min64(GRAD_KEYS, kb->q->s.seq_k - kb->first);
    kb->k = block_rows(kb, &w->at->k, h, desc->dim, &kb->k_row, kb->k_copy);
    kb->v = block_rows(kb, &w->at->v, h, desc->dim_v, &kb->v_row, kb->v_copy);
}

#endif
