/*
 * Forward: out and lse, tile by tile with an online softmax (Milakov and Gimelshein 2018; FlashAttention-2, algorithm 1).
 *
 * A unit of work is a block of a few panels of queries of one head against all its keys, BLOCK_KEYS at a time. For each
 * panel and block of keys, in log2 units (Q is packed with scale log2(e) folded in):
 *
 *   first block     S^T = K Q^T is stored; its row maximum becomes the reference r; P = 2^(S - r); l = sum P; O^T = V^T P^T
 *   later blocks    the accumulators start at -r, and P = 2^(S - r) leaves the registers without S ever being stored;
 *                   l += sum P; O^T += V^T P^T. Nothing is rescaled: float has the exponent range to spare, up to SUM_LIMIT
 *   sum too large   (or NaN) the block is done again the first way: r moves to the new maximum, O and l are multiplied by
 *                   2^(r_old - r_new)
 *   end             out = O / l, lse = (r + log2 l) ln 2
 *
 * The first way makes the reference the largest score so far, whose P is 1, so l >= 1 for a row that has met a score above
 * -inf, and l == 0 says that it met none. Which way a block takes depends on the data alone, and blocks of keys start at
 * multiples of BLOCK_KEYS, so the bits of the result depend neither on threads nor on how panels are grouped into units.
 *
 * Where query heads share a key/value head and sequences are shorter than a panel (decoding), the heads of the group are
 * folded into one list of rows. V is packed once per head as [dim_v / TILE_ROWS][seq_k][TILE_ROWS], in a first pass, unless
 * there is one panel only, which would read it but once, and dim_v is whole tiles.
 */
#ifndef FATTN_CPU_FORWARD_H
#define FATTN_CPU_FORWARD_H

#include "tile.h"

enum { PANELS_MOST = 4, FORWARD_ROWS = PANELS_MOST * PANEL_WIDTH };

/* What holds for the whole call. */
typedef struct forward {
    const fattn_problem *problem;
    const fattn_launch *at;
    int64_t members;      /* query heads folded into one list of rows: 1 or the group */
    int64_t heads;        /* lists of rows per batch entry: heads_q / members */
    panels panels;        /* of members * seq_q rows */
    int64_t block;        /* panels per unit */
    int64_t blocks;       /* units per list of rows */
    int64_t dim_v_padded; /* to TILE_ROWS */
    bool pack;            /* V is packed; else read in place */
    real *packed;         /* [batch][heads_kv][dim_v_padded / TILE_ROWS][seq_k][TILE_ROWS] */
    unsigned char *scratch;
    size_t scratch_size; /* per lane */
} forward;

/* One unit: pointers to its head and the scratch of its lane. */
typedef struct forward_unit {
    const forward *call;
    int64_t rows;                    /* real rows, without the padding of the last vector */
    const real *k, *v, *v_plain;     /* key 0; v: packed, or v_plain */
    ptrdiff_t k_row, v_row, v_group; /* from key to key; from TILE_ROWS of dim_v to the next */
    real *q, *o, *p, *tail;          /* [dim][width], [dim_v_padded][width] per panel; [keys][width]; [TILE_ROWS][dim] */
    real *nref, *l;                  /* [rows] -r; sum of probabilities */
    real *sum, *alpha, *lo, *hi;     /* [width] of the panel at hand */
    fattn_interval *keep;            /* [rows] */
    const real *rows_q[FORWARD_ROWS];
    real *out[FORWARD_ROWS];
    real *lse[FORWARD_ROWS]; /* NULL if not wanted */
} forward_unit;

typedef struct forward_panel {
    int64_t first, width; /* rows within the unit */
    int vecs;
    span keys;
    bool started; /* O holds something */
    bool pending; /* some row that keeps keys has met no score above -inf yet */
} forward_panel;

/* ------------------------------------------------------------------------------------------------------------- scores */

/* Where a run of groups reads and writes. */
typedef struct score_run {
    const real *k;
    ptrdiff_t k_row;
    const real *q; /* [dim][width] */
    real *p;       /* [groups * TILE_ROWS][width] */
    int64_t dim, groups;
    int64_t key;                 /* of the first row, relative to the block */
    const real *start, *lo, *hi; /* [width]: -r; which keys a row keeps, relative to the block */
    real *fold;                  /* [width]: row sums of P, or row maxima of S */
} score_run;

/* S^T or P^T for groups of TILE_ROWS keys. `final`: P = 2^(start + S), summed; else S, with its maximum. */
INLINE void score_groups(const int vecs, const bool masked, const bool final, const score_run *run)
{
    const ptrdiff_t width = vecs * LANES;
    const real *k = run->k;
    real *p = run->p;
    vec fold[TILE_VECS];
    UNROLL
    for (int j = 0; j < vecs; j++)
        fold[j] = v_load(run->fold + j * LANES);
    for (int64_t g = 0; g < run->groups; g++, k += TILE_ROWS * run->k_row, p += TILE_ROWS * width) {
        vec acc[TILE_ROWS * TILE_VECS];
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            UNROLL
            for (int j = 0; j < vecs; j++)
                acc[r * vecs + j] = final ? v_load(run->start + j * LANES) : v_set1(0);
        }
        tile_mac(TILE_ROWS, vecs, acc, k, run->k_row, 1, run->q, width, run->dim);
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            const vec key = v_set1((real)(run->key + g * TILE_ROWS + r));
            UNROLL
            for (int j = 0; j < vecs; j++) {
                vec s = acc[r * vecs + j];
                if (masked)
                    s = v_keep(s, key, v_load(run->lo + j * LANES), v_load(run->hi + j * LANES), -INFINITY);
                if (final)
                    s = v_exp2(s);
                v_store(p + r * width + j * LANES, s);
                fold[j] = final ? v_add(fold[j], s) : v_max(s, fold[j]);
            }
        }
    }
    UNROLL
    for (int j = 0; j < vecs; j++)
        v_store(run->fold + j * LANES, fold[j]);
}

static void score_plain(int vecs, bool final, const score_run *run)
{
    if (final)
        WITH_VECS(vecs, score_groups(VECS, false, true, run));
    else
        WITH_VECS(vecs, score_groups(VECS, false, false, run));
}

static void score_masked(int vecs, bool final, const score_run *run)
{
    if (final)
        WITH_VECS(vecs, score_groups(VECS, true, true, run));
    else
        WITH_VECS(vecs, score_groups(VECS, true, false, run));
}

/* The intervals of a panel's rows, relative to the block's first key and cut at its end (the last group may reach past it), as
 * numbers that the tile can compare with. */
static void panel_bounds(const forward_unit *u, const forward_panel *panel, int64_t block)
{
    for (int64_t i = 0; i < panel->width; i++) {
        const fattn_interval keep = u->keep[panel->first + i];
        u->lo[i] = (real)clamp64(keep.lo - block, 0, BLOCK_KEYS);
        u->hi[i] = (real)clamp64(keep.hi - block, 0, BLOCK_KEYS);
    }
}

/* Scores of a panel with keys [from, to) of the block that starts at `block`, into u->p. */
static void panel_scores(const forward_unit *u, const forward_panel *panel, int64_t block, int64_t from, int64_t to, bool final)
{
    const int64_t dim = u->call->problem->desc.dim, seq_k = u->call->problem->desc.seq_k;
    const groups g = groups_of(&panel->keys, from, to, seq_k);
    score_run run = {.k_row = u->k_row,
                     .q = u->q + panel->first * dim,
                     .dim = dim,
                     .start = u->nref + panel->first,
                     .lo = u->lo,
                     .hi = u->hi,
                     .fold = u->sum};
    const int64_t edge[] = {0, g.clean_from, g.clean_to, g.whole};
    if (g.clean_from > 0 || g.clean_to < g.count)
        panel_bounds(u, panel, block);
    for (int i = 0; i < 3; i++) {
        run.groups = edge[i + 1] - edge[i];
        if (run.groups <= 0)
            continue;
        const int64_t key = from + edge[i] * TILE_ROWS;
        run.k = u->k + key * u->k_row;
        run.p = u->p + edge[i] * TILE_ROWS * panel->width;
        run.key = key - block;
        if (i == 1)
            score_plain(panel->vecs, final, &run);
        else
            score_masked(panel->vecs, final, &run);
    }
    if (g.whole < g.count) { /* the last keys of all do not fill a group: a copy with rows of zeros, which the mask drops */
        const int64_t key = from + g.whole * TILE_ROWS;
        memset(u->tail, 0, (size_t)(TILE_ROWS * dim) * sizeof(real));
        for (int64_t r = 0; r < seq_k - key; r++)
            memcpy(u->tail + r * dim, u->k + (key + r) * u->k_row, (size_t)dim * sizeof(real));
        run.groups = 1;
        run.k = u->tail;
        run.k_row = dim;
        run.p = u->p + g.whole * TILE_ROWS * panel->width;
        run.key = key - block;
        score_masked(panel->vecs, final, &run);
    }
}

/* ------------------------------------------------------------------------------------------------------------- softmax */

/* The first way: moves the reference to the largest score so far, and leaves the factor for O in u->alpha. */
static void panel_rebase(const forward_unit *u, forward_panel *panel, int64_t block, int64_t from, int64_t to)
{
    real *nref = u->nref + panel->first, *l = u->l + panel->first;
    for (int64_t i = 0; i < panel->width; i++)
        u->sum[i] = l[i] == 0 ? -INFINITY : -nref[i];
    panel_scores(u, panel, block, from, to, false);
    const int64_t width = panel->width;
    for (int64_t j = 0; j < width; j += LANES) {
        /* The lowest number for a row without a score above -inf: 2^(-inf - that) is 0, and no finite score is less. */
        const vec ref = v_max(v_set1(REAL_LOWEST), v_load(u->sum + j));
        const vec shift = v_sub(v_set1(0), ref);
        vec sum = v_set1(0);
        for (int64_t key = 0; key < to - from; key++) {
            const vec e = v_exp2(v_add(v_load(u->p + key * width + j), shift));
            v_store(u->p + key * width + j, e);
            sum = v_add(sum, e);
        }
        for (int i = 0; i < LANES; i++)
            u->alpha[j + i] = l[j + i] == 0 ? -INFINITY : -nref[j + i];
        const vec alpha = v_exp2(v_add(v_load(u->alpha + j), shift));
        v_store(u->alpha + j, alpha);
        v_store(l + j, v_fma(v_load(l + j), alpha, sum));
        v_store(nref + j, shift);
    }
    panel->pending = false;
    for (int64_t i = 0; i < width; i++) {
        const fattn_interval keep = u->keep[panel->first + i];
        panel->pending |= l[i] == 0 && keep.lo < keep.hi;
    }
}

/* The second way; false if a sum came out too large or NaN, and nothing has changed but u->p. */
static bool panel_extend(const forward_unit *u, const forward_panel *panel, int64_t block, int64_t from, int64_t to)
{
    real *l = u->l + panel->first;
    memset(u->sum, 0, (size_t)panel->width * sizeof(real));
    panel_scores(u, panel, block, from, to, true);
    for (int64_t j = 0; j < panel->width; j += LANES)
        if (v_any_above(v_load(u->sum + j), v_set1(SUM_LIMIT)))
            return false;
    for (int64_t j = 0; j < panel->width; j += LANES)
        v_store(l + j, v_add(v_load(l + j), v_load(u->sum + j)));
    return true;
}

/* ---------------------------------------------------------------------------------------------------------- accumulate */

typedef enum { O_SET, O_ADD, O_SCALE } o_mode;

/* O^T = V^T P^T, + O^T or + alpha O^T, over n keys. */
INLINE void accumulate_groups(const int vecs, const o_mode mode, const forward_unit *u, const forward_panel *panel,
                              const real *v, int64_t n)
{
    const ptrdiff_t width = vecs * LANES;
    real *o = u->o + panel->first * u->call->dim_v_padded;
    const int64_t count = u->call->dim_v_padded / TILE_ROWS;
    for (int64_t g = 0; g < count; g++, v += u->v_group, o += TILE_ROWS * width) {
        vec acc[TILE_ROWS * TILE_VECS];
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            UNROLL
            for (int j = 0; j < vecs; j++) {
                const real *at = o + r * width + j * LANES;
                acc[r * vecs + j] = mode == O_SET   ? v_set1(0)
                                    : mode == O_ADD ? v_load(at)
                                                    : v_mul(v_load(at), v_load(u->alpha + j * LANES));
            }
        }
        if (u->call->pack) /* a constant step keeps the addresses of the hot loop simple */
            tile_mac(TILE_ROWS, vecs, acc, v, 1, TILE_ROWS, u->p, width, n);
        else
            tile_mac(TILE_ROWS, vecs, acc, v, 1, u->v_row, u->p, width, n);
        UNROLL
        for (int r = 0; r < TILE_ROWS; r++) {
            UNROLL
            for (int j = 0; j < vecs; j++)
                v_store(o + r * width + j * LANES, acc[r * vecs + j]);
        }
    }
}

static void panel_accumulate(const forward_unit *u, const forward_panel *panel, o_mode mode, int64_t from, int64_t n)
{
    const real *v = u->v + from * u->v_row;
    if (mode == O_ADD)
        WITH_VECS(panel->vecs, accumulate_groups(VECS, O_ADD, u, panel, v, n));
    else if (mode == O_SET)
        WITH_VECS(panel->vecs, accumulate_groups(VECS, O_SET, u, panel, v, n));
    else
        WITH_VECS(panel->vecs, accumulate_groups(VECS, O_SCALE, u, panel, v, n));
}

/* One panel against the keys that it keeps of one block. */
static void panel_step(const forward_unit *u, forward_panel *panel, int64_t block)
{
    const int64_t from = max64(block, panel->keys.lo), to = min64(block + BLOCK_KEYS, panel->keys.hi);
    if (from >= to)
        return;
    o_mode mode = O_ADD;
    if (panel->pending || !panel_extend(u, panel, block, from, to)) {
        panel_rebase(u, panel, block, from, to);
        mode = panel->started ? O_SCALE : O_SET;
    }
    panel_accumulate(u, panel, mode, from, to - from);
    panel->started = true;
}

/* ---------------------------------------------------------------------------------------------------------------- units */

/* Points a unit's rows at q, out and lse, finds their intervals, and packs Q. */
static void unit_load(forward_unit *u, forward_panel *panel, int64_t b, int64_t h, int64_t first_panel, int64_t count)
{
    const forward *f = u->call;
    const fattn_desc *desc = &f->problem->desc;
    const int64_t row0 = panel_start(&f->panels, first_panel);
    const int64_t end = panel_start(&f->panels, first_panel + count);
    u->rows = min64(end, f->panels.rows) - row0;
    for (int64_t i = 0; i < end - row0; i++) {
        const int64_t row = min64(row0 + i, f->panels.rows - 1); /* padding repeats the last row's interval */
        const int64_t head = h * f->members + row / desc->seq_q, at = row % desc->seq_q;
        u->keep[i] = fattn_mask_row(desc, at);
        u->nref[i] = u->l[i] = 0;
        if (i >= u->rows)
            continue;
        u->rows_q[i] = fattn_row(&f->at->q, sizeof(real), b, head, at);
        u->out[i] = fattn_row(&f->at->out, sizeof(real), b, head, at);
        u->lse[i] = f->at->lse ? (real *)f->at->lse + (b * desc->heads_q + head) * desc->seq_q + at : NULL;
    }
    for (int64_t i = 0; i < count; i++, panel++) {
        panel->vecs = panel_vecs(&f->panels, first_panel + i);
        panel->width = panel->vecs * LANES;
        panel->first = panel_start(&f->panels, first_panel + i) - row0;
        panel->started = false;
        panel->pending = true;
        panel->keys = no_rows;
        for (int64_t r = 0; r < panel->width; r++)
            span_add(&panel->keys, u->keep[panel->first + r]);
        pack_transposed(u->q + panel->first * desc->dim, panel->width, u->rows_q + panel->first, u->rows - panel->first,
                        desc->dim, (real)(desc->scale * LOG2E));
    }
}

/* out of one row again, number by number: in a tile, P = 0 for a key that the row does not keep still meets that key's value,
 * and 0 times a NaN or an infinity is NaN. */
static void row_alone(const forward_unit *u, int64_t i)
{
    const fattn_desc *desc = &u->call->problem->desc;
    const ptrdiff_t v_row = u->call->at->v.stride_row;
    double l = 0, sum[FATTN_DIM_MOST] = {0};
    for (int64_t key = u->keep[i].lo; key < u->keep[i].hi; key++) {
        const real *k = u->k + key * u->k_row, *v = u->v_plain + key * v_row;
        double s = 0;
        for (int64_t d = 0; d < desc->dim; d++)
            s += (double)u->rows_q[i][d] * (double)k[d];
        const double p = exp2(s * desc->scale * LOG2E + (double)u->nref[i]);
        l += p;
        for (int64_t d = 0; d < desc->dim_v; d++)
            sum[d] += p * (double)v[d];
    }
    for (int64_t d = 0; d < desc->dim_v; d++)
        u->out[i][d] = (real)(sum[d] / l);
}

/* out = O / l and lse of one panel; rows that met no score above -inf get zeros and -inf. */
static void panel_store(const forward_unit *u, const forward_panel *panel)
{
    const int64_t dim_v = u->call->problem->desc.dim_v;
    const real *l = u->l + panel->first, *nref = u->nref + panel->first;
    const int64_t rows = min64(panel->width, u->rows - panel->first);
    if (!panel->started)
        memset(u->o + panel->first * u->call->dim_v_padded, 0, (size_t)(panel->width * dim_v) * sizeof(real));
    for (int64_t i = 0; i < panel->width; i++)
        u->alpha[i] = l[i] == 0 ? 0 : 1 / l[i];
    unpack_transposed(u->out + panel->first, u->o + panel->first * u->call->dim_v_padded, panel->width, rows, dim_v, u->alpha);
    for (int64_t i = 0; i < rows; i++) {
        if (l[i] == 0)
            memset(u->out[panel->first + i], 0, (size_t)dim_v * sizeof(real));
        else if (l[i] * 0 == 0 && !all_finite(u->out[panel->first + i], dim_v))
            row_alone(u, panel->first + i);
        if (u->lse[panel->first + i])
            *u->lse[panel->first + i] = l[i] == 0 ? -INFINITY : (real)(REAL_LOG(l[i]) - (double)nref[i] * LN2);
    }
}

/* The scratch of one lane. */
static void unit_carve(forward_unit *u, const forward *f, carver *c)
{
    const int64_t rows = f->block * PANEL_WIDTH, dim = f->problem->desc.dim;
    u->q = carve(c, rows * dim);
    u->o = carve(c, rows * f->dim_v_padded);
    u->p = carve(c, (BLOCK_KEYS + TILE_ROWS) * PANEL_WIDTH);
    u->tail = carve(c, TILE_ROWS * dim);
    u->nref = carve(c, rows);
    u->l = carve(c, rows);
    u->sum = carve(c, PANEL_WIDTH);
    u->alpha = carve(c, PANEL_WIDTH);
    u->lo = carve(c, PANEL_WIDTH);
    u->hi = carve(c, PANEL_WIDTH);
    u->keep = carve_bytes(c, (size_t)rows * sizeof(fattn_interval));
}

static void forward_unit_run(void *arg, int32_t lane, int64_t unit)
{
    const forward *f = arg;
    const fattn_desc *desc = &f->problem->desc;
    /* Later blocks keep more keys under a causal mask: they go first, across all heads. */
    const int64_t lists = desc->batch * f->heads, list = unit % lists, block = f->blocks - 1 - unit / lists;
    const int64_t b = list / f->heads, h = list % f->heads;
    const int64_t head_kv = f->members > 1 ? h : h / f->problem->group;
    const int64_t first = block * f->block, count = min64(f->block, f->panels.count - first);

    forward_unit u = {.call = f};
    carver c = {f->scratch + (size_t)lane * f->scratch_size, 0};
    unit_carve(&u, f, &c);
    u.k = fattn_row(&f->at->k, sizeof(real), b, head_kv, 0);
    u.k_row = f->at->k.stride_row;
    u.v_plain = fattn_row(&f->at->v, sizeof(real), b, head_kv, 0);
    if (f->pack) {
        u.v = f->packed + (b * desc->heads_kv + head_kv) * f->dim_v_padded * desc->seq_k;
        u.v_row = TILE_ROWS;
        u.v_group = TILE_ROWS * desc->seq_k;
    } else {
        u.v = u.v_plain;
        u.v_row = f->at->v.stride_row;
        u.v_group = TILE_ROWS;
    }

    forward_panel panel[PANELS_MOST];
    unit_load(&u, panel, b, h, first, count);
    int64_t lo = INT64_MAX, hi = 0;
    for (int64_t i = 0; i < count; i++) {
        lo = min64(lo, panel[i].keys.lo);
        hi = max64(hi, panel[i].keys.hi);
    }
    for (int64_t key = lo < hi ? lo / BLOCK_KEYS * BLOCK_KEYS : hi; key < hi; key += BLOCK_KEYS)
        for (int64_t i = 0; i < count; i++)
            panel_step(&u, &panel[i], key);
    for (int64_t i = 0; i < count; i++)
        panel_store(&u, &panel[i]);
}

/* ----------------------------------------------------------------------------------------------------------- packing V */

enum { PACK_KEYS = 256 };

static void forward_pack_run(void *arg, int32_t lane, int64_t unit)
{
    (void)lane;
    const forward *f = arg;
    const fattn_desc *desc = &f->problem->desc;
    const int64_t chunks = ceil_div(desc->seq_k, PACK_KEYS), head = unit / chunks, key0 = unit % chunks * PACK_KEYS;
    const int64_t b = head / desc->heads_kv, h = head % desc->heads_kv, whole = desc->dim_v / TILE_ROWS;
    real *to = f->packed + head * f->dim_v_padded * desc->seq_k;
    for (int64_t key = key0; key < min64(key0 + PACK_KEYS, desc->seq_k); key++) {
        const real *v = fattn_row(&f->at->v, sizeof(real), b, h, key);
        for (int64_t g = 0; g < whole; g++)
            memcpy(to + (g * desc->seq_k + key) * TILE_ROWS, v + g * TILE_ROWS, TILE_ROWS * sizeof(real));
        for (int64_t d = whole * TILE_ROWS; d < f->dim_v_padded; d++)
            to[(whole * desc->seq_k + key) * TILE_ROWS + d % TILE_ROWS] = d < desc->dim_v ? v[d] : 0;
    }
}

/* ----------------------------------------------------------------------------------------------------------------- call */

/* Panels per unit: as many as keep Q and O of a unit in a part of the L2 cache, fewer while threads would go without. */
static int64_t forward_block(const fattn_problem *problem, int64_t lists, int64_t count)
{
    const int64_t panel_bytes = (problem->desc.dim + problem->desc.dim_v) * PANEL_WIDTH * (int64_t)sizeof(real);
    int64_t block = PANELS_MOST;
    while (block > 1 && block * panel_bytes > 256 * 1024)
        block /= 2;
    while (block > 1 && problem->lanes > 1 && lists * ceil_div(count, block) < 3 * problem->lanes)
        block /= 2;
    return block;
}

static size_t forward_plan(forward *f, const fattn_problem *problem, unsigned char *workspace)
{
    const fattn_desc *desc = &problem->desc;
    *f = (forward){.problem = problem, .members = 1};
    if (problem->group > 1 && desc->seq_q < PANEL_WIDTH)
        f->members = problem->group;
    f->heads = desc->heads_q / f->members;
    f->panels = panels_of(f->members * desc->seq_q, TILE_VECS);
    f->block = forward_block(problem, desc->batch * f->heads, f->panels.count);
    f->blocks = ceil_div(f->panels.count, f->block);
    f->dim_v_padded = round_to(desc->dim_v, TILE_ROWS);
    f->pack = f->panels.count > 1 || desc->dim_v % TILE_ROWS != 0;

    carver c = {workspace, 0};
    f->packed = carve(&c, f->pack ? desc->batch * desc->heads_kv * desc->seq_k * f->dim_v_padded : 0);
    carver lane = {NULL, 0};
    forward_unit u;
    unit_carve(&u, f, &lane);
    f->scratch_size = lane.used;
    f->scratch = carve_bytes(&c, lane.used * (size_t)problem->lanes);
    return c.used;
}

static size_t forward_workspace(const fattn_problem *problem)
{
    forward f;
    return forward_plan(&f, problem, NULL);
}

static void forward_run(const fattn_problem *problem, const fattn_launch *at)
{
    forward f;
    forward_plan(&f, problem, at->workspace);
    f.at = at;
    const fattn_desc *desc = &problem->desc;
    if (f.pack)
        fattn_run_units(at->context, problem->lanes, desc->batch * desc->heads_kv * ceil_div(desc->seq_k, PACK_KEYS),
                        forward_pack_run, &f);
    fattn_run_units(at->context, problem->lanes, desc->batch * f.heads * f.blocks, forward_unit_run, &f);
}

#endif
