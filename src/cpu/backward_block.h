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
    real *added, *slope, *factor; /* [PIECE_KEYS or keys][width] of the panel at hand, see gradient.h */
    real *bias_copy;              /* [width][PIECE_KEYS] */
    real *range_sum;              /* [group][rows][dim padded]: dq of ranges behind the first, where they are no units */
    bool odd;                     /* a NaN or an infinity among the keys and values */
} key_block;

/* The lanes of a panel of head h, for adjust.h. Returns how many are real. */
static int64_t panel_places(const backward *w, const sequence_plan *q, int64_t index, int64_t h, place *lane)
{
    const int64_t first = panel_start(&q->panels, index);
    const int64_t rows = min64(panel_start(&q->panels, index + 1), q->s.seq_q) - first;
    for (int64_t i = 0; i < rows; i++)
        lane[i] = place_of(w->problem, w->at, &q->s, h, first + i);
    return rows;
}

/* Dropout's factors of keys [from, to) of the block; `to` may reach past its count. */
static void panel_dropout(const key_block *kb, int64_t h, int64_t index, int64_t from, int64_t to)
{
    const backward *w = kb->call;
    const int64_t width = panel_vecs(&kb->q->panels, index) * LANES, n = min64(to, kb->count) - from;
    place lane[PANEL_WIDTH];
    const int64_t lanes = panel_places(w, kb->q, index, h, lane);
    fill_dropout(w->problem, &kb->q->s, &w->adjust, kb->factor, width, lane, lanes, kb->first + from, n);
    memset(kb->factor + n * width, 0, (size_t)((to - from - n) * width) * sizeof(real));
}

/* P^T of run->groups groups of a panel; with bias or ALiBi a piece at a time. */
static void panel_probabilities(const key_block *kb, int64_t h, int64_t index, bool masked, grad_run run)
{
    const backward *w = kb->call;
    const int vecs = panel_vecs(&kb->q->panels, index);
    const int64_t all = run.groups, width = vecs * LANES;
    if (!w->adjust.added) {
        probabilities(vecs, masked, &run);
        return;
    }
    place lane[PANEL_WIDTH];
    const int64_t lanes = panel_places(w, kb->q, index, h, lane);
    const int64_t size = (int64_t)fattn_dtype_size(w->problem->desc.dtype);
    const bool bias = (w->problem->desc.flags & FATTN_WITH_BIAS) != 0;
    const int64_t next_panel = width * w->at->bias.stride_row * size; /* whose turn is next with these keys */
    run.added = kb->added;
    for (int64_t g = 0; g < all; g += PIECE_KEYS / TILE_ROWS) {
        run.groups = min64(PIECE_KEYS / TILE_ROWS, all - g);
        fill_added(w->problem, w->at, &kb->q->s, kb->added, width, lane, lanes, kb->first + run.key,
                   min64(run.groups * TILE_ROWS, kb->count - run.key), kb->bias_copy);
        run.ahead = (bias_ahead){bias ? lane : NULL, lanes, (kb->first + run.key) * size + next_panel};
        probabilities(vecs, masked, &run);
        run.a += PIECE_KEYS * run.a_row;
        run.p += PIECE_KEYS * P_ROW;
        if (run.slope)
            run.slope += PIECE_KEYS * width;
        run.key += PIECE_KEYS;
    }
}

static void panel_limits(const key_block *kb, int64_t index)
{
    const fattn_interval *keep = kb->call->keep + kb->q->row_first + panel_start(&kb->q->panels, index);
    for (int64_t i = 0; i < panel_vecs(&kb->q->panels, index) * LANES; i++) {
        kb->lo[i] = (real)clamp64(keep[i].lo - kb->first, 0, GRAD_KEYS);
        kb->hi[i] = (real)clamp64(keep[i].hi - kb->first, 0, GRAD_KEYS);
    }
}

/* Keys from .. to-1 of the block become zero in the panel's columns of P^T and dS^T. */
static void clear_keys(const key_block *kb, int64_t from, int64_t to, int64_t col, int64_t width)
{
    for (int64_t r = from; r < to; r++) {
        memset(kb->p + r * P_ROW + col, 0, (size_t)width * sizeof(real));
        memset(kb->ds + r * P_ROW + col, 0, (size_t)width * sizeof(real));
    }
}

/* Fills the columns of P^T and dS^T of panel `index` of query head h, from column `col` on: keys outside what the panel keeps
 * become zero. bias: dS is wanted as the gradient of the bias, before softcap. */
static void panel_gradients(const key_block *kb, int64_t h, int64_t index, int64_t col, bool bias)
{
    const backward *w = kb->call;
    const fattn_desc *desc = &w->problem->desc;
    const int vecs = panel_vecs(&kb->q->panels, index);
    const int64_t width = vecs * LANES, end = round_to(kb->count, TILE_ROWS);
    const int64_t at = rows_before(w, kb->q, h) + panel_start(&kb->q->panels, index);
    span keys = w->spans[kb->q->panel_first + index];
    keys.lo = max64(keys.lo, kb->first);
    keys.hi = min64(keys.hi, kb->first + kb->count);
    /* Whole groups, counted from the block's first key; those that reach past the kept keys are masked. */
    const int64_t from = keys.lo < keys.hi ? (keys.lo - kb->first) / TILE_ROWS * TILE_ROWS : end;
    const int64_t to = keys.lo < keys.hi ? round_to(keys.hi - kb->first, TILE_ROWS) : end;
    clear_keys(kb, 0, from, col, width);
    clear_keys(kb, to, end, col, width);
    if (from >= to)
        return;
    const groups g = groups_of(&keys, kb->first + from, kb->first + to, INT64_MAX);
    if (g.clean_from > 0 || g.clean_to < g.count)
        panel_limits(kb, index);
    if (w->adjust.drop)
        panel_dropout(kb, h, index, from, to);
    grad_run scores = {.a_row = kb->k_row, .b = w->qt + at * desc->dim, .dim = desc->dim, .start = w->nlse + at};
    grad_run values = {.a_row = kb->v_row, .b = w->dot + at * desc->dim_v, .dim = desc->dim_v, .start = w->nd + at};
    scores.lo = values.lo = kb->lo;
    scores.hi = values.hi = kb->hi;
    scores.cap_log2 = w->adjust.cap_log2;
    const int64_t edge[] = {0, g.clean_from, g.clean_to, g.count};
    for (int i = 0; i < 3; i++) {
        const int64_t row = from + edge[i] * TILE_ROWS, tile = edge[i] * TILE_ROWS * width;
        scores.groups = values.groups = edge[i + 1] - edge[i];
        if (scores.groups <= 0)
            continue;
        scores.key = values.key = row;
        scores.p = values.p = kb->p + row * P_ROW + col;
        values.ds = kb->ds + row * P_ROW + col;
        scores.a = kb->k + row * kb->k_row;
        values.a = kb->v + row * kb->v_row;
        scores.slope = w->adjust.cap ? kb->slope + tile : NULL;
        values.slope = bias ? NULL : scores.slope;
        values.factor = w->adjust.drop ? kb->factor + tile : NULL;
        panel_probabilities(kb, h, index, i != 1, scores);
        score_gradients(vecs, i != 1, &values);
    }
}

/* Does panel i keep any key of the block? */
static bool panel_meets(const key_block *kb, int64_t i)
{
    const span *keys = &kb->call->spans[kb->q->panel_first + i];
    return keys->lo < kb->first + kb->count && keys->hi > kb->first;
}

/* In a product of tiles a key that a row does not keep still meets that row, times 0; and 0 times a NaN or an infinity is NaN.
 * Where that could happen, the gradients of the block are summed pair by pair instead. */
static bool block_is_odd(const key_block *kb, int64_t h, int64_t first, int64_t end)
{
    const backward *w = kb->call;
    const span *spans = w->spans + kb->q->panel_first;
    int odd = kb->odd ? ODD_NUMBER : 0;
    bool partial = false;
    for (int64_t i = first; i < end; i++) {
        odd |= oddities_of(w, kb->q, h)[i];
        partial |= spans[i].in_lo > kb->first || spans[i].in_hi < kb->first + kb->count;
        partial |= panel_start(&kb->q->panels, i + 1) > kb->q->s.seq_q; /* padding rows would meet infinite keys as 0 inf */
    }
    return (odd & ODD_NUMBER) && (partial || (odd & ODD_ROW));
}

/* The three products of block_step over kept pairs only. Rows that forward took for rows without keys give nothing. */
static void block_careful(const key_block *kb, int64_t h, const gradient *dq_head, int64_t row0, int64_t n)
{
    const backward *w = kb->call;
    const fattn_desc *desc = &w->problem->desc;
    const int64_t base = rows_before(w, kb->q, h);
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

/* The keys of the block that panel i keeps, in whole groups: others may hold NaNs. */
static span panel_keys(const key_block *kb, int64_t i)
{
    const span *keys = &kb->call->spans[kb->q->panel_first + i];
    return (span){.lo = max64(keys->lo - kb->first, 0), .hi = min64(keys->hi - kb->first, kb->count)};
}

/* The three products of panels [first, end) of query head h, that all keep the same keys; their columns begin at `col`. */
static void block_products(const key_block *kb, int64_t h, const gradient *dq, int64_t first, int64_t end, int64_t col)
{
    const backward *w = kb->call;
    const sequence_plan *q = kb->q;
    const int64_t row = panel_start(&q->panels, first), n = panel_start(&q->panels, end) - row, base = rows_before(w, q, h);
    const span keys = panel_keys(kb, first);
    const int64_t tile = keys.lo / TILE_ROWS * TILE_ROWS, rows = round_to(keys.hi, TILE_ROWS) - tile;
    gradient_of_keys(&kb->dv, tile, rows, &w->cols_v, kb->p + col, w->dos + base * padded(&w->cols_v), q->rows, row, n);
    gradient_of_keys(&kb->dk, tile, rows, &w->cols, kb->ds + col, w->qs + base * padded(&w->cols), q->rows, row, n);
    gradient_of_queries(dq, row, n, &w->cols, kb->ds + col, kb->ks, keys.lo, keys.hi - keys.lo);
}

/* One block of keys against one block of panels [first, end) of query head h. */
static void block_step(const key_block *kb, int64_t h, const gradient *dq, int64_t first, int64_t end)
{
    const sequence_plan *q = kb->q;
    /* Panels that keep none of these keys are left out at both ends. */
    while (first < end && !panel_meets(kb, first))
        first++;
    while (first < end && !panel_meets(kb, end - 1))
        end--;
    if (first >= end)
        return;
    const int64_t row = panel_start(&q->panels, first);
    for (int64_t i = first; i < end; i++)
        panel_gradients(kb, h, i, panel_start(&q->panels, i) - row, false);
    if (block_is_odd(kb, h, first, end)) {
        block_careful(kb, h, dq, row, panel_start(&q->panels, end) - row);
        return;
    }
    /* Panels that keep the same keys go together: longer sums, fewer passes over the gradients. */
    for (int64_t i = first, next; i < end; i = next) {
        const span keys = panel_keys(kb, i);
        for (next = i + 1; next < end; next++) {
            const span other = panel_keys(kb, next);
            if (other.lo != keys.lo || other.hi != keys.hi)
                break;
        }
        if (keys.lo < keys.hi)
            block_products(kb, h, dq, i, next, panel_start(&q->panels, i) - row);
    }
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
    kb->slope = carve(c, w->adjust.cap ? tile : 0);
    kb->factor = carve(c, w->adjust.drop ? tile : 0);
    kb->bias_copy = carve(c, w->adjust.added && desc->dtype != REAL_DTYPE ? PIECE_KEYS * PANEL_WIDTH : 0);
    const bool again = !w->split && ranges_of(desc->seq_k) > 1;
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
