/*
 * Backward: dq, dk, dv with the scores computed again (FlashAttention-2, algorithm 2). Five products per tile:
 *
 *   P^T  = 2^(K Q^T - lse)      in log2 units, scale folded into Q; lse is subtracted last: accumulators that started at -lse
 *                               would round each partial sum to the size of lse, which costs small P of rows with a large
 *                               lse five times the error
 *   dS^T = P^T (V dO^T - D)     accumulators start at -D, D_i = sum_d dO_id O_id
 *   dV  += P^T dO,  dK += dS^T Q,  dQ += dS K      (scale is folded into the packed K and Q)
 *
 * Three passes over the threads:
 *
 *   prepare   per query head: Q and dO packed twice, transposed in panels (for the scores) and in column strips (for the
 *             gradients), and -lse, -D
 *   blocks    a unit is one key/value head and one range of its keys: it owns its dk and dv, summing over the query heads of
 *             the group, and adds to a partial dq of its own. Per block of GRAD_KEYS keys it walks over blocks of queries
 *   reduce    dq = the sum of the partials of all ranges, in order; left out where there is one range, and dim and seq_q are
 *             whole vectors: then blocks add to dq itself
 *
 * No atomics, and the number of ranges depends on the shape alone: the bits do not depend on threads.
 */
#ifndef FATTN_CPU_BACKWARD_H
#define FATTN_CPU_BACKWARD_H

#include "gradient.h"

enum {
    UNITS_WANTED = 32,     /* (head, range) units that a call should have, so that many threads find work */
    RANGES_MOST = 8,       /* each has a partial as large as dq in the workspace */
    RANGE_KEYS_LEAST = 256 /* shorter ranges would spend more on the partials of dq than they share out */
};

/* What holds for the whole call. Row counts are per query head. */
typedef struct backward {
    const fattn_problem *problem;
    const fattn_launch *at;
    panels panels;       /* of seq_q rows */
    strips cols, cols_v; /* of dim and dim_v */
    int64_t rows;        /* padded: whole vectors */
    int64_t ranges;      /* of keys per head, each a unit */
    span *spans;         /* [panels] the keys that each panel keeps */
    int64_t *bounds;     /* [ranges + 1] in blocks of keys */
    real *qt, *dot;      /* [batch heads_q] panels [dim, dim_v][width]; qt times scale log2(e) */
    real *qs, *dos;      /* [batch heads_q] strips [rows][width]; qs times scale */
    real *nlse, *nd;     /* [batch heads_q][rows] -lse log2(e), -D */
    uint8_t *oddities;   /* [batch heads_q][panels], ODD_... */
    bool reduce;         /* dq goes through partials; else blocks add to it in place */
    real *partial;       /* [ranges][batch heads_q][rows][dim padded] */
    unsigned char *scratch;
    size_t scratch_size; /* per lane */
} backward;

/* What a panel holds that tiles cannot treat exactly, see block_careful. */
enum {
    ODD_NUMBER = 1 /* a NaN or an infinity in q or dout */,
    ODD_ROW = 2 /* every score of a row that keeps keys was -inf */
};

/* ------------------------------------------------------------------------------------------------------------- prepare */

static real dot(const real *a, const real *b, int64_t n)
{
    vec sum = v_set1(0);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        sum = v_fma(v_loadu(a + i), v_loadu(b + i), sum);
    real part[LANES] __attribute__((aligned(FATTN_ALIGNMENT))), total = 0;
    v_store(part, sum);
    for (int l = 0; l < LANES; l++)
        total += part[l];
    for (; i < n; i++)
        total += a[i] * b[i];
    return total;
}

/* One panel of one query head. */
static void prepare_panel(const backward *w, int64_t b, int64_t h, int64_t index)
{
    const fattn_desc *desc = &w->problem->desc;
    const int64_t first = panel_start(&w->panels, index), width = panel_start(&w->panels, index + 1) - first;
    const int64_t rows = min64(width, desc->seq_q - first), head = b * desc->heads_q + h, base = head * w->rows;
    const real *q[PANEL_WIDTH], *dout[PANEL_WIDTH];
    real *nlse = w->nlse + base + first, *nd = w->nd + base + first;
    const real *lse = (const real *)w->at->lse + head * desc->seq_q + first;
    uint8_t *odd = w->oddities + head * w->panels.count + index;
    *odd = 0;
    for (int64_t i = 0; i < rows; i++) {
        q[i] = fattn_row(&w->at->q, sizeof(real), b, h, first + i);
        dout[i] = fattn_row(&w->at->dout, sizeof(real), b, h, first + i);
        nd[i] = -dot(dout[i], fattn_row(&w->at->out, sizeof(real), b, h, first + i), desc->dim_v);
        /* A row that kept no key: the lowest number makes every P of it 0. */
        nlse[i] = lse[i] == -INFINITY ? REAL_LOWEST : (real)(-(double)lse[i] * LOG2E);
        if (lse[i] == -INFINITY && fattn_mask_row(desc, first + i).hi > 0)
            *odd |= ODD_ROW;
        /* A NaN or an infinity in q leaves no lse finite, and one in dout no D. */
        if (nd[i] * 0 != 0 || (lse[i] * 0 != 0 && !all_finite(q[i], desc->dim)))
            *odd |= ODD_NUMBER;
    }
    for (int64_t i = rows; i < width; i++) { /* padding: P = 0 */
        nd[i] = 0;
        nlse[i] = REAL_LOWEST;
    }
    pack_transposed(w->qt + (base + first) * desc->dim, width, q, rows, desc->dim, (real)(desc->scale * LOG2E));
    pack_transposed(w->dot + (base + first) * desc->dim_v, width, dout, rows, desc->dim_v, 1);
    pack_strips(w->qs + base * padded(&w->cols), &w->cols, w->rows, first, q, rows, desc->dim, (real)desc->scale);
    pack_strips(w->dos + base * padded(&w->cols_v), &w->cols_v, w->rows, first, dout, rows, desc->dim_v, 1);
}

static void prepare_run(void *arg, int32_t lane, int64_t unit)
{
    (void)lane;
    const backward *w = arg;
    const fattn_desc *desc = &w->problem->desc;
    const int64_t blocks = ceil_div(w->panels.count, BACKWARD_PANELS), head = unit / blocks,
                  first = unit % blocks * BACKWARD_PANELS;
    const int64_t end = min64(first + BACKWARD_PANELS, w->panels.count);
    for (int64_t i = first; i < end; i++)
        prepare_panel(w, head / desc->heads_q, head % desc->heads_q, i);
    if (end == w->panels.count) {
        clear_padding(w->qs + head * w->rows * padded(&w->cols), &w->cols, w->rows, desc->seq_q);
        clear_padding(w->dos + head * w->rows * padded(&w->cols_v), &w->cols_v, w->rows, desc->seq_q);
    }
}

/* -------------------------------------------------------------------------------------------------------------- blocks */

/* One block of keys: pointers to its head and the scratch of its lane. */
typedef struct key_block {
    const backward *call;
    int64_t first, count; /* keys */
    const real *k, *v;    /* the first key's rows, or copies that end in zeros */
    ptrdiff_t k_row, v_row;
    real *k_copy, *v_copy;   /* [keys][dim, dim_v] of a block that is not whole groups */
    real *ks;                /* strips [keys][width] of K times scale */
    real *p, *ds;            /* [keys][P_ROW] */
    gradient dk, dv;         /* [keys] rows that sums go to: the outputs' own, or the copies */
    real *dk_copy, *dv_copy; /* [keys][padded dim, dim_v] */
    real *lo, *hi;           /* [width] of the panel at hand: the keys that a row keeps, from the block's first */
    bool odd;                /* a NaN or an infinity among the keys and values */
} key_block;

/* Fills the panel's columns of P^T and dS^T: keys outside what the panel keeps become zero. col: the panel's first row
 * within the block of queries; at: its first row of all heads. */
static void panel_gradients(const key_block *kb, int64_t index, int64_t col, int64_t at)
{
    const backward *w = kb->call;
    const fattn_desc *desc = &w->problem->desc;
    const int vecs = panel_vecs(&w->panels, index);
    const int64_t width = vecs * LANES, end = round_to(kb->count, TILE_ROWS);
    span keys = w->spans[index];
    keys.lo = max64(keys.lo, kb->first);
    keys.hi = min64(keys.hi, kb->first + kb->count);
    /* Whole groups, counted from the block's first key; those that reach past the kept keys are masked. */
    const int64_t from = keys.lo < keys.hi ? (keys.lo - kb->first) / TILE_ROWS * TILE_ROWS : 0;
    const int64_t to = keys.lo < keys.hi ? round_to(keys.hi - kb->first, TILE_ROWS) : 0;
    const groups g = groups_of(&keys, kb->first + from, kb->first + to, INT64_MAX);
    for (int64_t r = 0; r < end; r++)
        if (r < from || r >= to) {
            memset(kb->p + r * P_ROW + col, 0, (size_t)width * sizeof(real));
            memset(kb->ds + r * P_ROW + col, 0, (size_t)width * sizeof(real));
        }
    if (from >= to)
        return;
    if (g.clean_from > 0 || g.clean_to < g.count) {
        const int64_t first = panel_start(&w->panels, index);
        for (int64_t i = 0; i < width; i++) {
            const fattn_interval keep = fattn_mask_row(desc, min64(first + i, desc->seq_q - 1));
            kb->lo[i] = (real)clamp64(keep.lo - kb->first, 0, GRAD_KEYS);
            kb->hi[i] = (real)clamp64(keep.hi - kb->first, 0, GRAD_KEYS);
        }
    }
    grad_run scores = {.a_row = kb->k_row, .b = w->qt + at * desc->dim, .dim = desc->dim, .start = w->nlse + at};
    grad_run values = {.a_row = kb->v_row, .b = w->dot + at * desc->dim_v, .dim = desc->dim_v, .start = w->nd + at};
    scores.lo = values.lo = kb->lo;
    scores.hi = values.hi = kb->hi;
    const int64_t edge[] = {0, g.clean_from, g.clean_to, g.count};
    for (int i = 0; i < 3; i++) {
        const int64_t row = from + edge[i] * TILE_ROWS;
        scores.groups = values.groups = edge[i + 1] - edge[i];
        scores.key = values.key = row;
        scores.p = values.p = kb->p + row * P_ROW + col;
        values.ds = kb->ds + row * P_ROW + col;
        scores.a = kb->k + row * kb->k_row;
        values.a = kb->v + row * kb->v_row;
        if (scores.groups > 0)
            (i == 1 ? groups_plain : groups_masked)(vecs, &scores, &values);
    }
}

/* Does panel i keep any key of the block? */
static bool panel_meets(const key_block *kb, int64_t i)
{
    const span *keys = &kb->call->spans[i];
    return keys->lo < kb->first + kb->count && keys->hi > kb->first;
}

/* In a product of tiles a key that a row does not keep still meets that row, times 0; and 0 times a NaN or an infinity is NaN.
 * Where that could happen, the gradients of the block are summed pair by pair instead. */
static bool block_is_odd(const key_block *kb, int64_t head, int64_t first, int64_t end)
{
    const backward *w = kb->call;
    int odd = kb->odd ? ODD_NUMBER : 0;
    bool partial = false;
    for (int64_t i = first; i < end; i++) {
        odd |= w->oddities[head * w->panels.count + i];
        partial |= w->spans[i].in_lo > kb->first || w->spans[i].in_hi < kb->first + kb->count;
        partial |= panel_start(&w->panels, i + 1) > w->problem->desc.seq_q; /* padding rows would meet infinite keys as 0 inf */
    }
    return (odd & ODD_ROW) || (odd && partial);
}

/* The three products of block_step over kept pairs only. Rows that forward took for rows without keys give nothing. */
static void block_careful(const key_block *kb, int64_t b, int64_t h, const gradient *dq_head, int64_t row0, int64_t n)
{
    const backward *w = kb->call;
    const fattn_desc *desc = &w->problem->desc;
    const int64_t base = (b * desc->heads_q + h) * w->rows;
    for (int64_t col = 0; col < n && row0 + col < desc->seq_q; col++) {
        const fattn_interval keep = fattn_mask_row(desc, row0 + col);
        const real *q = fattn_row(&w->at->q, sizeof(real), b, h, row0 + col);
        const real *dout = fattn_row(&w->at->dout, sizeof(real), b, h, row0 + col);
        real *dq = dq_head->rows + (row0 + col) * dq_head->row;
        if (w->nlse[base + row0 + col] == REAL_LOWEST)
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

/* One block of keys against one block of panels [first, end) of one query head. */
static void block_step(const key_block *kb, int64_t head, const gradient *dq, int64_t first, int64_t end)
{
    const backward *w = kb->call;
    /* Panels that keep none of these keys are left out at both ends. */
    while (first < end && !panel_meets(kb, first))
        first++;
    while (first < end && !panel_meets(kb, end - 1))
        end--;
    if (first >= end)
        return;
    const int64_t row = panel_start(&w->panels, first), n = panel_start(&w->panels, end) - row, base = head * w->rows;
    int64_t lo = kb->count, hi = 0; /* the keys of the block that any of the panels keeps: others may hold NaNs */
    for (int64_t i = first; i < end; i++) {
        panel_gradients(kb, i, panel_start(&w->panels, i) - row, base + panel_start(&w->panels, i));
        lo = min64(lo, max64(w->spans[i].lo - kb->first, 0));
        hi = max64(hi, min64(w->spans[i].hi - kb->first, kb->count));
    }
    if (block_is_odd(kb, head, first, end)) {
        block_careful(kb, head / w->problem->desc.heads_q, head % w->problem->desc.heads_q, dq, row, n);
        return;
    }
    const int64_t tile = lo / TILE_ROWS * TILE_ROWS, rows = round_to(hi, TILE_ROWS) - tile;
    gradient_of_keys(&kb->dv, tile, rows, &w->cols_v, kb->p, w->dos + base * padded(&w->cols_v), w->rows, row, n);
    gradient_of_keys(&kb->dk, tile, rows, &w->cols, kb->ds, w->qs + base * padded(&w->cols), w->rows, row, n);
    gradient_of_queries(dq, row, n, &w->cols, kb->ds, kb->ks, lo, hi - lo);
}

static void block_carve(key_block *kb, const backward *w, carver *c)
{
    const fattn_desc *desc = &w->problem->desc;
    kb->k_copy = carve(c, GRAD_KEYS * desc->dim);
    kb->v_copy = carve(c, GRAD_KEYS * desc->dim_v);
    kb->ks = carve(c, GRAD_KEYS * padded(&w->cols));
    kb->p = carve(c, GRAD_KEYS * P_ROW);
    kb->ds = carve(c, GRAD_KEYS * P_ROW);
    kb->dk_copy = carve(c, GRAD_KEYS * padded(&w->cols));
    kb->dv_copy = carve(c, GRAD_KEYS * padded(&w->cols_v));
    kb->lo = carve(c, PANEL_WIDTH);
    kb->hi = carve(c, PANEL_WIDTH);
}

/* Rows [first, first + count) of a head of K or V, rounded up to whole groups: in place, or a copy that ends in zeros. */
static const real *block_rows(const real *head, ptrdiff_t *row, real *copy, int64_t first, int64_t count, int64_t dim)
{
    const real *at = head + first * *row;
    const int64_t whole = round_to(count, TILE_ROWS);
    if (whole == count)
        return at;
    for (int64_t r = 0; r < count; r++)
        memcpy(copy + r * dim, at + r * *row, (size_t)dim * sizeof(real));
    memset(copy + count * dim, 0, (size_t)((whole - count) * dim) * sizeof(real));
    *row = dim;
    return copy;
}

static void gradient_clear(gradient g, int64_t rows, const strips *s)
{
    for (int64_t r = 0; r < rows; r++)
        memset(g.rows + r * g.row, 0, (size_t)padded(s) * sizeof(real));
}

/* Zeros to add the gradient of keys [first, first + count) to: the output's own rows if they are whole vectors and groups. */
static gradient gradient_start(const fattn_view *to, real *copy, const strips *s, int64_t b, int64_t h, int64_t first,
                               int64_t count, int64_t dim)
{
    gradient g = {copy, padded(s)};
    if (dim == padded(s) && count % TILE_ROWS == 0)
        g = (gradient){fattn_row(to, sizeof(real), b, h, first), to->stride_row};
    gradient_clear(g, round_to(count, TILE_ROWS), s);
    return g;
}

/* Copies to the output what was not summed there. */
static void gradient_end(const gradient *g, const fattn_view *to, const real *copy, int64_t b, int64_t h, int64_t first,
                         int64_t count, int64_t dim)
{
    if (g->rows != copy)
        return;
    for (int64_t r = 0; r < count; r++)
        memcpy(fattn_row(to, sizeof(real), b, h, first + r), copy + r * g->row, (size_t)dim * sizeof(real));
}

static void block_load(key_block *kb, int64_t b, int64_t h, int64_t index)
{
    const backward *w = kb->call;
    const fattn_desc *desc = &w->problem->desc;
    kb->first = index * GRAD_KEYS;
    kb->count = min64(GRAD_KEYS, desc->seq_k - kb->first);
    kb->k_row = w->at->k.stride_row;
    kb->v_row = w->at->v.stride_row;
    kb->k = block_rows(fattn_row(&w->at->k, sizeof(real), b, h, 0), &kb->k_row, kb->k_copy, kb->first, kb->count, desc->dim);
    kb->v = block_rows(fattn_row(&w->at->v, sizeof(real), b, h, 0), &kb->v_row, kb->v_copy, kb->first, kb->count, desc->dim_v);
    const real *rows[GRAD_KEYS];
    kb->odd = false;
    for (int64_t r = 0; r < kb->count; r++) {
        rows[r] = kb->k + r * kb->k_row;
        kb->odd |= !all_finite(rows[r], desc->dim) || !all_finite(kb->v + r * kb->v_row, desc->dim_v);
    }
    pack_strips(kb->ks, &w->cols, GRAD_KEYS, 0, rows, kb->count, desc->dim, (real)desc->scale);
    kb->dk = gradient_start(&w->at->dk, kb->dk_copy, &w->cols, b, h, kb->first, kb->count, desc->dim);
    kb->dv = gradient_start(&w->at->dv, kb->dv_copy, &w->cols_v, b, h, kb->first, kb->count, desc->dim_v);
}

static void block_store(const key_block *kb, int64_t b, int64_t h)
{
    const backward *w = kb->call;
    gradient_end(&kb->dk, &w->at->dk, kb->dk_copy, b, h, kb->first, kb->count, w->problem->desc.dim);
    gradient_end(&kb->dv, &w->at->dv, kb->dv_copy, b, h, kb->first, kb->count, w->problem->desc.dim_v);
}

/* Where a range adds the dq of one query head: into a partial, or straight into dq if there is nothing to reduce. */
static gradient range_dq(const backward *w, int64_t range, int64_t head)
{
    const fattn_desc *desc = &w->problem->desc;
    const int64_t cols = padded(&w->cols), heads = desc->batch * desc->heads_q;
    if (w->reduce)
        return (gradient){w->partial + (range * heads + head) * w->rows * cols, cols};
    return (gradient){fattn_row(&w->at->dq, sizeof(real), head / desc->heads_q, head % desc->heads_q, 0), w->at->dq.stride_row};
}

static void blocks_run(void *arg, int32_t lane, int64_t unit)
{
    const backward *w = arg;
    const fattn_desc *desc = &w->problem->desc;
    /* The ranges of one head follow each other: what prepare packed for it stays in the caches that threads share. */
    const int64_t range = unit % w->ranges, head_kv = unit / w->ranges, group = w->problem->group;
    const int64_t b = head_kv / desc->heads_kv, h = head_kv % desc->heads_kv;
    const int64_t head0 = b * desc->heads_q + h * group;
    key_block kb = {.call = w};
    carver c = {w->scratch + (size_t)lane * w->scratch_size, 0};
    block_carve(&kb, w, &c);
    for (int64_t head = head0; head < head0 + group; head++)
        gradient_clear(range_dq(w, range, head), w->rows, &w->cols);
    for (int64_t i = w->bounds[range]; i < w->bounds[range + 1]; i++) {
        block_load(&kb, b, h, i);
        for (int64_t head = head0; head < head0 + group; head++) {
            const gradient dq = range_dq(w, range, head);
            for (int64_t p = 0; p < w->panels.count; p += BACKWARD_PANELS)
                block_step(&kb, head, &dq, p, min64(p + BACKWARD_PANELS, w->panels.count));
        }
        block_store(&kb, b, h);
    }
}

/* -------------------------------------------------------------------------------------------------------------- reduce */

static void reduce_run(void *arg, int32_t lane, int64_t unit)
{
    (void)lane;
    const backward *w = arg;
    const fattn_desc *desc = &w->problem->desc;
    const int64_t blocks = ceil_div(desc->seq_q, BACKWARD_ROWS), head = unit / blocks, row0 = unit % blocks * BACKWARD_ROWS;
    const int64_t cols = padded(&w->cols), stride = desc->batch * desc->heads_q * w->rows * cols;
    for (int64_t i = row0; i < min64(row0 + BACKWARD_ROWS, desc->seq_q); i++) {
        real *to = fattn_row(&w->at->dq, sizeof(real), head / desc->heads_q, head % desc->heads_q, i);
        const real *from = w->partial + (head * w->rows + i) * cols;
        for (int64_t d = 0; d < desc->dim; d += LANES) {
            vec sum = v_load(from + d);
            for (int64_t range = 1; range < w->ranges; range++)
                sum = v_add(sum, v_load(from + range * stride + d));
            real part[LANES] __attribute__((aligned(FATTN_ALIGNMENT)));
            v_store(part, sum);
            memcpy(to + d, part, (size_t)min64(LANES, desc->dim - d) * sizeof(real));
        }
    }
}

/* ---------------------------------------------------------------------------------------------------------------- call */

static size_t backward_plan(backward *w, const fattn_problem *problem, unsigned char *workspace)
{
    const fattn_desc *desc = &problem->desc;
    *w = (backward){.problem = problem, .cols = strips_of(desc->dim), .cols_v = strips_of(desc->dim_v)};
    w->panels = panels_of(desc->seq_q, TILE_VECS);
    w->rows = panel_start(&w->panels, w->panels.count);
    const int64_t heads = desc->batch * desc->heads_q, heads_kv = desc->batch * desc->heads_kv;
    w->ranges = clamp64(min64(ceil_div(UNITS_WANTED, heads_kv), desc->seq_k / RANGE_KEYS_LEAST), 1, RANGES_MOST);

    carver c = {workspace, 0};
    w->spans = carve_bytes(&c, (size_t)w->panels.count * sizeof(span));
    w->bounds = carve_bytes(&c, (RANGES_MOST + 1) * sizeof(int64_t));
    w->qt = carve(&c, heads * w->rows * desc->dim);
    w->dot = carve(&c, heads * w->rows * desc->dim_v);
    w->qs = carve(&c, heads * w->rows * padded(&w->cols));
    w->dos = carve(&c, heads * w->rows * padded(&w->cols_v));
    w->nlse = carve(&c, heads * w->rows);
    w->nd = carve(&c, heads * w->rows);
    w->oddities = carve_bytes(&c, (size_t)(heads * w->panels.count));
    w->reduce = w->ranges > 1 || desc->dim != padded(&w->cols) || desc->seq_q != w->rows;
    w->partial = carve(&c, w->reduce ? w->ranges * heads * w->rows * padded(&w->cols) : 0);
    carver lane = {NULL, 0};
    key_block kb;
    block_carve(&kb, w, &lane);
    w->scratch_size = lane.used;
    w->scratch = carve_bytes(&c, lane.used * (size_t)problem->lanes);
    return c.used;
}

/* The keys that each panel keeps, and ranges of blocks of keys of nearly equal work. */
static void backward_divide(const backward *w)
{
    const fattn_desc *desc = &w->problem->desc;
    double total = 0;
    for (int64_t i = 0; i < w->panels.count; i++) {
        w->spans[i] = no_rows;
        for (int64_t r = panel_start(&w->panels, i); r < min64(panel_start(&w->panels, i + 1), desc->seq_q); r++)
            span_add(&w->spans[i], fattn_mask_row(desc, r));
        total += (double)max64(w->spans[i].hi - w->spans[i].lo, 0);
    }
    const int64_t blocks = ceil_div(desc->seq_k, GRAD_KEYS);
    int64_t range = 0;
    double done = 0;
    w->bounds[0] = 0;
    for (int64_t block = 0; block < blocks && w->ranges > 1; block++) {
        if (done >= total * (double)(range + 1) / (double)w->ranges && range + 1 < w->ranges)
            w->bounds[++range] = block;
        for (int64_t i = 0; i < w->panels.count; i++)
            done += (double)max64(0, min64(w->spans[i].hi, (block + 1) * GRAD_KEYS) - max64(w->spans[i].lo, block * GRAD_KEYS));
    }
    while (range < w->ranges)
        w->bounds[++range] = blocks;
}

static size_t backward_workspace(const fattn_problem *problem)
{
    backward w;
    return backward_plan(&w, problem, NULL);
}

static void backward_run(const fattn_problem *problem, const fattn_launch *at)
{
    backward w;
    backward_plan(&w, problem, at->workspace);
    w.at = at;
    backward_divide(&w);
    const fattn_desc *desc = &problem->desc;
    const int64_t heads = desc->batch * desc->heads_q;
    fattn_run_units(at->context, problem->lanes, heads * ceil_div(w.panels.count, BACKWARD_PANELS), prepare_run, &w);
    fattn_run_units(at->context, problem->lanes, desc->batch * desc->heads_kv * w.ranges, blocks_run, &w);
    if (w.reduce)
        fattn_run_units(at->context, problem->lanes, heads * ceil_div(desc->seq_q, BACKWARD_ROWS), reduce_run, &w);
}

#endif
