/*
 * Forward: out and lse, tile by tile with an online softmax (Milakov and Gimelshein 2018; FlashAttention-2, algorithm 1).
 *
 * A unit of work is a block of a few panels of queries of one head of one sequence against all its keys, BLOCK_KEYS at a time
 * (forward_panel.h). How rows are cut into panels depends on the sequence alone, so that neither threads nor the other
 * sequences of a batch change a bit of a result.
 *
 * Where query heads share a key/value head and sequences are shorter than a panel (decoding), the heads of the group are
 * folded into one list of rows. K and V are read in place; in a first pass, what cannot be is copied into rows that tiles can
 * read: other types, pages, values whose rows are not whole tiles, or are too far from each other.
 */
#ifndef FATTN_CPU_FORWARD_H
#define FATTN_CPU_FORWARD_H

#include "forward_panel.h"

#include "row.h"

/* ------------------------------------------------------------------------------------------------------------ division */

/* How the rows of one sequence are divided. */
typedef struct division {
    int64_t members; /* query heads folded into one list of rows: 1 or the group */
    int64_t lists;   /* of rows: heads_q / members */
    panels panels;   /* of members * seq_q rows */
    int64_t blocks;  /* units per list of rows */
} division;

static division division_of(const forward *f, int64_t seq_q)
{
    const fattn_problem *p = f->problem;
    division v = {.members = p->group > 1 && seq_q < PANEL_WIDTH ? p->group : 1};
    v.lists = p->desc.heads_q / v.members;
    v.panels = panels_of(v.members * seq_q);
    v.blocks = ceil_div(v.panels.count, f->block);
    return v;
}

/* Where copies of the keys of a sequence begin, in rows of one head. */
static int64_t keys_before(const forward *f, const fattn_sequence *s)
{
    return f->at->cu_k ? s->k_first : s->b * f->problem->desc.seq_k;
}

static real *keys_of(const forward *f, const fattn_sequence *s, int64_t h)
{
    const fattn_desc *desc = &f->problem->desc;
    return f->keys + (keys_before(f, s) * desc->heads_kv + h * s->seq_k) * desc->dim;
}

static real *values_of(const forward *f, const fattn_sequence *s, int64_t h)
{
    return f->values + (keys_before(f, s) * f->problem->desc.heads_kv + h * s->seq_k) * f->dim_v_padded;
}

/* ---------------------------------------------------------------------------------------------------------------- units */

/* Packs Q of a panel, and makes its O zero. */
static void panel_load(const forward_unit *u, const forward_panel *panel)
{
    const forward *f = u->call;
    const fattn_desc *desc = &f->problem->desc;
    const int64_t rows = min64(panel->width, u->rows - panel->first);
    const real *q[PANEL_WIDTH];
    for (int64_t r = 0; r < rows; r++) {
        const place *at = &u->lane[panel->first + r];
        q[r] = row_as_real(fattn_query_row(&f->at->q, fattn_dtype_size(desc->dtype), &u->seq, at->h, at->i), desc->dtype,
                           desc->dim, u->wide + r * desc->dim);
    }
    memset(u->o + panel->first * f->dim_v_padded, 0, (size_t)(panel->width * f->dim_v_padded) * sizeof(real));
    pack_transposed(u->q + panel->first * desc->dim, panel->width, q, rows, desc->dim, f->adjust.q_factor);
}

/* Says where a unit's rows stand and what they keep. */
static void unit_load(forward_unit *u, forward_panel *panel, const division *v, int64_t list, int64_t first_panel,
                      int64_t count)
{
    const int64_t row0 = panel_start(&v->panels, first_panel), end = panel_start(&v->panels, first_panel + count);
    u->rows = min64(end, v->panels.rows) - row0;
    int64_t h = list * v->members + row0 / u->seq.seq_q, row = row0 % u->seq.seq_q;
    for (int64_t i = 0; i < end - row0; i++) {
        u->lane[i] = place_of(u->call->problem, u->call->at, &u->seq, h, row);
        u->keep[i] = fattn_mask_row(&u->seq.mask, row);
        u->nref[i] = u->l[i] = 0;
        if (i >= u->rows - 1) /* padding repeats the last row */
            continue;
        if (++row == u->seq.seq_q)
            h++, row = 0;
    }
    for (int64_t i = 0; i < count; i++, panel++) {
        panel->vecs = panel_vecs(&v->panels, first_panel + i);
        panel->width = panel->vecs * LANES;
        panel->first = panel_start(&v->panels, first_panel + i) - row0;
        panel->pending = true;
        panel->keys = panel_span_of(u->keep + panel->first, panel->vecs);
    }
}

/* out = O / l and lse of one panel; rows that met no score above -inf get zeros. */
static void panel_store(const forward_unit *u, const forward_panel *panel)
{
    const forward *f = u->call;
    const fattn_desc *desc = &f->problem->desc;
    const size_t size = fattn_dtype_size(desc->out_dtype);
    const int64_t dim_v = desc->dim_v, rows = min64(panel->width, u->rows - panel->first);
    const real *l = u->l + panel->first, *nref = u->nref + panel->first;
    real *o = u->o + panel->first * f->dim_v_padded, *out[PANEL_WIDTH];
    void *target[PANEL_WIDTH];
    double lse[PANEL_WIDTH];
    real factor[PANEL_WIDTH] __attribute__((aligned(FATTN_ALIGNMENT))) = {0};
    for (int64_t i = 0; i < rows; i++) {
        const place *at = &u->lane[panel->first + i];
        const row_end end = end_row(f->problem, f->at, at->h, (double)l[i], -(double)nref[i]);
        factor[i] = (real)end.factor;
        lse[i] = end.lse;
        target[i] = fattn_query_row(&f->at->out, size, &u->seq, at->h, at->i);
        out[i] = desc->out_dtype == REAL_DTYPE ? target[i] : u->wide + i * dim_v;
    }
    unpack_transposed(out, o, panel->width, rows, dim_v, factor);
    for (int64_t i = 0; i < rows; i++) {
        const place *at = &u->lane[panel->first + i];
        if (l[i] == 0)
            memset(out[i], 0, (size_t)dim_v * sizeof(real));
        else if (l[i] * 0 == 0 && !all_finite(out[i], dim_v))
            row_alone(f->problem, f->at, &u->seq, at, out[i]);
        if (desc->out_dtype != REAL_DTYPE)
            narrow(target[i], desc->out_dtype, out[i], dim_v);
        if (f->at->lse)
            ((real *)f->at->lse)[u->seq.lse_first + at->h * u->seq.lse_head + at->i] = (real)lse[i];
    }
}

/* The scratch of one lane. */
static void unit_carve(forward_unit *u, const forward *f, carver *c)
{
    const fattn_desc *desc = &f->problem->desc;
    const int64_t rows = f->block * PANEL_WIDTH, tile = (BLOCK_KEYS + TILE_ROWS) * PANEL_WIDTH;
    const int64_t widest = max64(desc->dim, desc->dim_v);
    const bool narrow_types = desc->dtype != REAL_DTYPE || desc->out_dtype != REAL_DTYPE;
    u->q = carve(c, rows * desc->dim);
    u->o = carve(c, rows * f->dim_v_padded);
    u->p = carve(c, tile);
    u->tail = carve(c, TILE_ROWS * desc->dim);
    u->nref = carve(c, rows);
    u->l = carve(c, rows);
    u->sum = carve(c, PANEL_WIDTH);
    u->lo = carve(c, PANEL_WIDTH);
    u->hi = carve(c, PANEL_WIDTH);
    u->added = carve(c, f->adjust.added ? PIECE_KEYS * PANEL_WIDTH : 0);
    u->slope = carve(c, f->adjust.added ? PANEL_WIDTH : 0);
    u->diagonal = carve(c, f->adjust.added ? PANEL_WIDTH : 0);
    u->factor = carve(c, f->adjust.drop ? tile : 0);
    u->wide = carve(c, narrow_types ? PANEL_WIDTH * widest : 0);
    u->keep = carve_bytes(c, (size_t)rows * sizeof(fattn_interval));
    u->lane = carve_bytes(c, (size_t)rows * sizeof(place));
}

/* Points a unit at its keys and values. */
static void unit_point(forward_unit *u)
{
    const forward *f = u->call;
    u->k =
        f->copy_k ? keys_of(f, &u->seq, u->head_kv) : fattn_row(&f->at->k, sizeof(real), u->seq.b, u->head_kv, u->seq.k_first);
    u->k_row = f->copy_k ? f->problem->desc.dim : f->at->k.stride_row;
    u->v = f->copy_v ? values_of(f, &u->seq, u->head_kv)
                     : fattn_row(&f->at->v, sizeof(real), u->seq.b, u->head_kv, u->seq.k_first);
    u->v_row = f->copy_v ? f->dim_v_padded : f->at->v.stride_row;
}

/* Keys of a panel that a step takes: `n` of those that it keeps, or what there is of them, from number `first` on. */
static fattn_interval panel_keys(const forward_panel *panel, int64_t first, int64_t n)
{
    const int64_t from = min64(panel->keys.all.lo + first, panel->keys.all.hi);
    return (fattn_interval){from, min64(from + n, panel->keys.all.hi)};
}

/* What the tiles of a step ask for ahead. next: keys and panel of the step after it; those before `seen` were read already. */
static ahead_queue step_ahead(const forward_unit *u, const forward_panel *panel, fattn_interval keys,
                              const forward_panel *next_panel, fattn_interval next, int64_t seen, bool load_next)
{
    const forward *f = u->call;
    const fattn_desc *desc = &f->problem->desc;
    const int64_t size = (int64_t)fattn_dtype_size(desc->dtype), out_size = (int64_t)fattn_dtype_size(desc->out_dtype);
    const int64_t word = (int64_t)sizeof(real), from = max64(seen, next.lo);
    const place *at = &u->lane[panel->first], *next_at = &u->lane[next_panel->first];
    const int64_t rows = min64(panel->width, u->seq.seq_q - at->i); /* of one head: of others one does without */
    const int64_t next_rows = min64(next_panel->width, u->seq.seq_q - next_at->i);
    ahead_queue a = {0};
    ahead_add(&a, u->k + from * u->k_row, u->k_row * word, desc->dim * word, next.hi - from);
    ahead_add(&a, u->v + from * u->v_row, u->v_row * word, desc->dim_v * word, next.hi - from);
    if (desc->flags & FATTN_WITH_BIAS)
        ahead_add(&a, next_at->bias + next.lo * size, f->at->bias.stride_row * size, (next.hi - next.lo) * size, next_rows);
    if (load_next)
        ahead_add(&a, fattn_query_row(&f->at->q, (size_t)size, &u->seq, next_at->h, next_at->i), f->at->q.stride_row * size,
                  desc->dim * size, next_rows);
    if (keys.hi == panel->keys.all.hi) /* the last step */
        ahead_add(&a, fattn_query_row(&f->at->out, (size_t)out_size, &u->seq, at->h, at->i), f->at->out.stride_row * out_size,
                  desc->dim_v * out_size, rows);
    ahead_spread(&a, requests_of(ceil_div(keys.hi - keys.lo, TILE_ROWS), desc->dim));
    return a;
}

/* The steps of all panels of a unit. The panels take turns, so that keys and values of a step are read once for all of them. */
static void unit_steps(const forward_unit *u, forward_panel *panel, int64_t count)
{
    int64_t longest = 0, seen = 0;
    for (int64_t i = 0; i < count; i++)
        longest = max64(longest, panel[i].keys.all.hi - panel[i].keys.all.lo);
    for (int64_t i = 0; i < count && longest == 0; i++)
        panel_load(u, &panel[i]);
    for (int64_t first = 0, n = FIRST_KEYS; first < longest; first += n, n = BLOCK_KEYS)
        for (int64_t i = 0; i < count; i++) {
            const bool last = i + 1 == count;
            const forward_panel *next_panel = &panel[last ? 0 : i + 1];
            const fattn_interval keys = panel_keys(&panel[i], first, n);
            const fattn_interval next = panel_keys(next_panel, last ? first + n : first, last ? BLOCK_KEYS : n);
            if (first == 0)
                panel_load(u, &panel[i]);
            if (keys.lo >= keys.hi)
                continue;
            seen = max64(seen, keys.hi);
            key_step t = {.from = keys.lo, .to = keys.hi};
            t.ahead = step_ahead(u, &panel[i], keys, next_panel, next, seen, first == 0 && !last);
            panel_step(u, &panel[i], &t);
        }
}

static void forward_unit_run(void *arg, int32_t lane, int64_t unit)
{
    const forward *f = arg;
    forward_unit u = {.call = f};
    carver c = {f->scratch + (size_t)lane * f->scratch_size, 0};
    unit_carve(&u, f, &c);
    const int64_t b = sequence_of_unit(f->first_unit, f->problem->desc.batch, unit);
    u.seq = fattn_sequence_of(f->problem, f->at, b);
    const division v = division_of(f, u.seq.seq_q);
    /* Later blocks keep more keys under a causal mask: they go first, across all heads. */
    const int64_t within = unit - f->first_unit[b], list = within % v.lists, block = v.blocks - 1 - within / v.lists;
    const int64_t first = block * f->block, count = min64(f->block, v.panels.count - first);
    u.head_kv = list * v.members / f->problem->group;
    unit_point(&u);

    forward_panel panel[PANELS_MOST];
    unit_load(&u, panel, &v, list, first, count);
    unit_steps(&u, panel, count);
    for (int64_t i = 0; i < count; i++)
        panel_store(&u, &panel[i]);
}

/* ------------------------------------------------------------------------------------------------------ copies of K and V */

enum {
    COPY_KEYS = 256, /* of a unit */
    FAR_BYTES = 2048 /* rows that are further from each other */
};

/* Key `key` of head h and its value, as far as they are copied. */
static void copy_key(const forward *f, const fattn_sequence *s, int64_t h, int64_t key)
{
    const fattn_desc *desc = &f->problem->desc;
    const fattn_launch *at = f->at;
    real *v = values_of(f, s, h) + key * f->dim_v_padded;
    if (f->copy_k)
        widen_key(f->problem, at, &at->k, at->k_scales, s, h, key, desc->dim, keys_of(f, s, h) + key * desc->dim);
    widen_key(f->problem, at, &at->v, at->v_scales, s, h, key, desc->dim_v, v);
    for (int64_t d = desc->dim_v; d < f->dim_v_padded; d++)
        v[d] = 0;
}

static void forward_copy_run(void *arg, int32_t lane, int64_t unit)
{
    (void)lane;
    const forward *f = arg;
    const int64_t b = sequence_of_unit(f->first_copy, f->problem->desc.batch, unit);
    const fattn_sequence s = fattn_sequence_of(f->problem, f->at, b);
    const int64_t chunks = ceil_div(s.seq_k, COPY_KEYS), within = unit - f->first_copy[b], from = within % chunks * COPY_KEYS;
    for (int64_t key = from; key < min64(from + COPY_KEYS, s.seq_k); key++)
        copy_key(f, &s, within / chunks, key);
}

/* ----------------------------------------------------------------------------------------------------------------- call */

/* Panels per unit: as many as keep Q and O of a unit in a part of the L2 cache, fewer while threads would go without. */
static int64_t forward_block(const fattn_problem *problem, int64_t count)
{
    const int64_t panel_bytes = (problem->desc.dim + problem->desc.dim_v) * PANEL_WIDTH * (int64_t)sizeof(real);
    int64_t block = PANELS_MOST;
    while (block > 1 && block * panel_bytes > 256 * 1024)
        block /= 2;
    while (block > 1 && problem->lanes > 1 && count / block < 3 * problem->lanes)
        block /= 2;
    return block;
}

/* Whether tiles cannot read values where they lie. */
static bool values_must_be_copied(const forward *f)
{
    return f->copy_k || f->problem->desc.dim_v % TILE_ROWS != 0;
}

/* Or whether that is slower: the rows of a step are read as often as the tile has columns, and where they are far from each
 * other, too many of them fall into the same sets of the caches. By measurement: rows 2 KiB apart are as fast as copies or
 * faster, 4 KiB apart 5 % slower with AVX-512 and 30 % with AVX2. One panel would read a copy but once. */
static bool values_are_copied(const forward *f)
{
    const fattn_desc *desc = &f->problem->desc;
    const ptrdiff_t row = f->at->v.stride_row * (ptrdiff_t)sizeof(real);
    const bool far = row > FAR_BYTES || row < -FAR_BYTES;
    return values_must_be_copied(f) || (far && desc->seq_q * f->problem->group > PANEL_WIDTH);
}

static size_t forward_plan(forward *f, const fattn_problem *problem, unsigned char *workspace)
{
    const fattn_desc *desc = &problem->desc;
    const int64_t rows = fattn_rows_q(desc) * desc->heads_q, keys = fattn_rows_k(desc) * desc->heads_kv;
    *f = (forward){.problem = problem, .adjust = adjustment_of(desc)};
    f->block = forward_block(problem, ceil_div(rows, PANEL_WIDTH));
    f->dim_v_padded = round_to(desc->dim_v, TILE_ROWS);
    f->copy_k = desc->kv_dtype != REAL_DTYPE || desc->page_size > 0;
    const bool room = values_must_be_copied(f) || desc->seq_q * problem->group > PANEL_WIDTH; /* strides are not known yet */

    carver c = {workspace, 0};
    f->first_unit = carve_bytes(&c, (size_t)(desc->batch + 1) * sizeof(int64_t));
    f->first_copy = carve_bytes(&c, (size_t)(desc->batch + 1) * sizeof(int64_t));
    f->keys = carve(&c, f->copy_k ? keys * desc->dim : 0);
    f->values = carve(&c, room ? keys * f->dim_v_padded : 0);
    carver lane = {NULL, 0};
    forward_unit u;
    unit_carve(&u, f, &lane);
    f->scratch_size = lane.used;
    f->scratch = carve_bytes(&c, lane.used * (size_t)problem->lanes);
    return c.used;
}

/* Whether there are no rows. */
static bool forward_is_empty(const fattn_desc *desc)
{
    return desc->batch == 0 || desc->seq_q == 0;
}

static size_t forward_workspace(const fattn_problem *problem)
{
    forward f;
    return forward_is_empty(&problem->desc) ? 0 : forward_plan(&f, problem, NULL);
}

/* Numbers the units of all sequences. */
static void forward_divide(const forward *f)
{
    const fattn_desc *desc = &f->problem->desc;
    f->first_unit[0] = f->first_copy[0] = 0;
    for (int64_t b = 0; b < desc->batch; b++) {
        const fattn_sequence s = fattn_sequence_of(f->problem, f->at, b);
        const division v = division_of(f, s.seq_q);
        f->first_unit[b + 1] = f->first_unit[b] + v.lists * v.blocks;
        f->first_copy[b + 1] = f->first_copy[b] + (s.seq_q > 0 ? desc->heads_kv * ceil_div(s.seq_k, COPY_KEYS) : 0);
    }
}

static fattn_status forward_run(const fattn_problem *problem, const fattn_launch *at)
{
    forward f;
    if (forward_is_empty(&problem->desc))
        return FATTN_OK;
    forward_plan(&f, problem, at->workspace);
    f.at = at;
    f.copy_v = values_are_copied(&f);
    forward_divide(&f);
    if (f.copy_v)
        fattn_run_units(at->context, problem->lanes, f.first_copy[problem->desc.batch], forward_copy_run, &f);
    fattn_run_units(at->context, problem->lanes, f.first_unit[problem->desc.batch], forward_unit_run, &f);
    return FATTN_OK;
}

#endif
