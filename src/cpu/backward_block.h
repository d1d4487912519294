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
    real *slope, *factor;         /* [keys][width] of the panel at hand, see gradient.h */
    real *added;                  /* [PIECE_KEYS][width], see adjust.h */
    real *alibi, *diagonal;       /* [width] of the panel at hand, likewise */
    real *range_sum;              /* [group][rows][dim padded]: dq of ranges behind the first, where they are no units */
    int64_t ahead_key, ahead_end; /* keys that the next block will read and nobody asked for yet */
    int64_t ahead_share;          /* those that each panel asks for */
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
static void panel_dropout(const key_block *kb, int64_t width, const place *lane, int64_t lanes, int64_t from, int64_t to)
{
    const backward *w = kb->call;
    const int64_t n = min64(to, kb->count) - from;
    fill_dropout(w->problem, &kb->q->s, &w->adjust, kb->factor, width, lane, lanes, kb->first + from, n);
    memset(kb->factor + n * width, 0, (size_t)((to - from - n) * width) * sizeof(real));
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
        run.a += PIECE_KEYS * run.a_row;
        run.p += PIECE_KEYS * P_ROW;
        if (run.slope)
            run.slope += PIECE_KEYS * run.width;
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

/* Cells that no stretch filled become zero. */
static void clear_cells(const key_block *kb, const cells *c)
{
    const uint32_t all = (uint32_t)((UINT64_C(1) << c->vecs) - 1);
    for (int64_t g = 0; g < ceil_div(c->keys, TILE_ROWS); g++)
        for (int64_t v = 0; v < c->vecs && c->met[g] != all; v++)
            for (int64_t r = g * TILE_ROWS; r < (g + 1) * TILE_ROWS && !(c->met[g] >> v & 1); r++) {
                v_store(kb->p + r * P_ROW + v * LANES, v_set1(0));
                v_store(kb->ds + r * P_ROW + v * LANES, v_set1(0));
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

/* Fills the cells of panel `index` of query head h that it keeps, its first vector being number `column`. bias: dS is wanted as
 * the gradient of the bias, before softcap. */
static void panel_gradients(key_block *kb, int64_t h, int64_t index, int64_t column, bool bias, cells *met)
{
    const backward *w = kb->call;
    const fattn_desc *desc = &w->problem->desc;
    const int vecs = panel_vecs(&kb->q->panels, index);
    const int64_t width = vecs * LANES, first = panel_start(&kb->q->panels, index);
    const int64_t at = rows_at(kb->q, h) + first, number = rows_before(w, kb->q, h) + first;
    const panel_span *keys = &w->spans[kb->q->panel_first + index];
    /* Whole groups, counted from the block's first key. */
    const int64_t from = max64(keys->all.lo - kb->first, 0) / TILE_ROWS * TILE_ROWS;
    const int64_t to = min64(keys->all.hi - kb->first, kb->count);
    if (from >= to)
        return;
    stretch parts[STRETCHES_MOST];
    const int count = stretches_of(keys, vecs, kb->first + from, kb->first + to, INT64_MAX, parts);
    ahead_queue ahead = panel_ahead(kb, h, index, ceil_div(to - from, TILE_ROWS));
    bool limited = false;
    place lane[PANEL_WIDTH];
    const int64_t lanes = w->adjust.added || w->adjust.drop ? panel_places(w, kb->q, index, h, lane) : 0;
    added_run added = {0};
    if (w->adjust.added)
        added = added_run_of(w->problem, w->at, &kb->q->s, lane, lanes, kb->first, kb->alibi, kb->diagonal);
    if (w->adjust.drop)
        panel_dropout(kb, width, lane, lanes, from, round_to(to, TILE_ROWS));
    for (int i = 0; i < count; i++) {
        const stretch *part = &parts[i];
        const int64_t l = part->vec * LANES, row = from + part->group * TILE_ROWS, tile = part->group * TILE_ROWS * width + l;
        const int64_t cell = row * P_ROW + column * LANES + l;
        grad_run scores = {.a = kb->k + row * kb->k_row,
                           .a_row = kb->k_row,
                           .b = w->qt + at * desc->dim + l,
                           .width = width,
                           .dim = desc->dim,
                           .groups = part->count,
                           .key = row,
                           .start = w->nlse + number + l,
                           .lo = kb->lo + l,
                           .hi = kb->hi + l,
                           .p = kb->p + cell,
                           .ahead = &ahead,
                           .slope = w->adjust.cap ? kb->slope + tile : NULL,
                           .cap_log2 = w->adjust.cap_log2};
        grad_run values = scores;
        values.a = kb->v + row * kb->v_row;
        values.a_row = kb->v_row;
        values.b = w->dot + at * desc->dim_v + l;
        values.dim = desc->dim_v;
        values.start = w->nd + number + l;
        values.ds = kb->ds + cell;
        values.factor = w->adjust.drop ? kb->factor + tile : NULL;
        if (bias)
            values.slope = NULL;
        if (part->masked && !limited)
            panel_limits(kb, index);
        limited |= part->masked;
        const added_run part_added = added_lanes(&added, l);
        stretch_probabilities(kb, part, vecs, &part_added, scores);
        score_gradients(part->vecs, vecs, part->masked, &values);
        for (int64_t g = 0; g < part->count; g++)
            met->met[row / TILE_ROWS + g] |= ((1u << part->vecs) - 1) << (column + part->vec);
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
    const int64_t base = rows_at(q, h);
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
    kb->alibi = carve(c, w->adjust.added ? PANEL_WIDTH : 0);
    kb->diagonal = carve(c, w->adjust.added ? PANEL_WIDTH : 0);
    kb->slope = carve(c, w->adjust.cap ? tile : 0);
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
