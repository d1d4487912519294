/*
 * Backward, what happens before the blocks: how a call is divided, and Q and dO packed for them. backward.h says how it all
 * fits together.
 *
 * Each sequence has a plan of its own that depends on nothing but the sequence, so the others of its batch change no bit of its
 * results. Where key/value heads share themselves out evenly to the lanes, a unit of work is one of them, with all that is done
 * to it: what is packed for it stays in the caches of its processor. Else the stages are passes over all heads, and ranges of
 * keys are units, with a partial dq each. Both add up the ranges in the same order, to the same bits.
 */
#ifndef FATTN_CPU_BACKWARD_PLAN_H
#define FATTN_CPU_BACKWARD_PLAN_H

#include "gradient.h"

enum {
    HEADS_ENOUGH = 32,     /* key/value heads that are units well enough, evenly shared out or not */
    RANGES_MOST = 8,       /* where they are units, each has a partial as large as dq in the workspace */
    RANGE_KEYS_LEAST = 512 /* shorter ranges would spend more on the partials of dq than they share out */
};

/* One sequence. Row and panel counts are per query head. */
typedef struct sequence_plan {
    fattn_sequence s;
    panels panels;                                          /* of seq_q rows */
    int64_t rows;                                           /* padded: whole vectors */
    int64_t row_first, panel_first;                         /* rows and panels of the sequences before it */
    int64_t ranges;                                         /* of keys */
    int64_t bounds[RANGES_MOST + 1];                        /* in blocks of keys */
    int64_t panel_from[RANGES_MOST], panel_to[RANGES_MOST]; /* other panels keep none of the range's keys */
    bool in_place;                                          /* blocks add to dq itself, else to partials */
    int64_t room_first, room_head;                          /* see rows_in_room */
} sequence_plan;

/* What holds for the whole call. */
typedef struct backward {
    const fattn_problem *problem;
    const fattn_launch *at;
    adjustment adjust;
    strips cols, cols_v;     /* of dim and dim_v */
    bool may_split, split;   /* whether ranges are units, as far as the workspace goes; and indeed */
    int64_t rows_all;        /* room for the padded rows of all sequences, one head */
    bool room_of_lanes;      /* heads that are units are packed each into the room of its lane */
    int64_t lane_rows;       /* of such a room */
    int64_t rows_room;       /* rows in all rooms */
    sequence_plan *sequence; /* [batch] */
    int64_t *first_prepare, *first_block, *first_reduce; /* [batch + 1]: units before each sequence */
    fattn_interval *keep; /* [rows_all] the keys that each row keeps; padding repeats the last row's */
    panel_span *spans;    /* [panels] the keys that each panel keeps */
    /* At rows_in_room: of each query head */
    real *qt, *dot; /* panels [dim, dim_v][width]; qt times the factor of adjust.h */
    real *qs, *dos; /* strips [rows][width]; qs times scale */
    real *partial;  /* [ranges, if they are units], [rows][dim padded] */
    /* At rows_in_call: */
    real *nlse, *nd;   /* per sequence [heads_q][rows] -lse log2(e), -D */
    uint8_t *oddities; /* per sequence [heads_q][panels], ODD_... */
    unsigned char *scratch;
    size_t scratch_size; /* per lane */
} backward;

/* What a panel holds that tiles cannot treat exactly, see block_careful. */
enum {
    ODD_NUMBER = 1, /* a NaN or an infinity in q or dout */
    ODD_ROW = 2     /* every score of a row that keeps keys was -inf: the row counts as empty */
};

/* The first of the rows of (sequence, query head) in arrays of the whole call. */
static inline int64_t rows_in_call(const backward *w, const sequence_plan *q, int64_t h)
{
    return q->row_first * w->problem->desc.heads_q + h * q->rows;
}

/* Likewise in what is packed and in partials, where a lane may have room for no more than the key/value head at hand. */
static inline int64_t rows_in_room(const sequence_plan *q, int64_t h)
{
    return q->room_first + (h - q->room_head) * q->rows;
}

static inline uint8_t *oddities_of(const backward *w, const sequence_plan *q, int64_t h)
{
    return w->oddities + q->panel_first * w->problem->desc.heads_q + h * q->panels.count;
}

/* Whether a row with this -lse log2(e) was taken for one without keys. */
static inline bool row_is_empty(real nlse)
{
    return nlse == REAL_LOWEST;
}

/* ------------------------------------------------------------------------------------------------------------- prepare */

static real dot(const real *a, const real *b, int64_t n)
{
    vec sum = v_set1(0);
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES)
        sum = v_fma(v_loadu(a + i), v_loadu(b + i), sum);
    real part[LANES] __attribute__((aligned(FATTN_ALIGNMENT)));
    v_store(part, sum);
    real total = across_sum(part);
    for (; i < n; i++)
        total += a[i] * b[i];
    return total;
}

/* A row of q, out or dout. */
static const real *query_row(const fattn_view *view, int32_t dtype, const sequence_plan *q, int64_t h, int64_t i, int64_t n,
                             real *copy)
{
    return row_as_real(fattn_query_row(view, fattn_dtype_size(dtype), &q->s, h, i), dtype, n, copy);
}

/* Room for the rows of a panel, widened. */
typedef struct wide_rows {
    real *q, *dout, *out; /* [PANEL_WIDTH][dim], [PANEL_WIDTH][dim_v], one row */
} wide_rows;

static wide_rows carve_wide(const backward *w, carver *c)
{
    const fattn_desc *desc = &w->problem->desc;
    const bool narrow_types = desc->dtype != REAL_DTYPE;
    wide_rows r;
    r.q = carve(c, narrow_types ? PANEL_WIDTH * desc->dim : 0);
    r.dout = carve(c, narrow_types ? PANEL_WIDTH * desc->dim_v : 0);
    r.out = carve(c, narrow_types ? desc->dim_v : 0);
    return r;
}

/* -lse log2(e) and -D of the rows of a panel; returns what is odd about them. */
static uint8_t prepare_rows(const backward *w, const sequence_plan *q, int64_t h, int64_t first, int64_t rows,
                            const real *const *q_row, const real *const *dout, real *out_copy)
{
    const fattn_desc *desc = &w->problem->desc;
    const int64_t base = rows_in_call(w, q, h) + first, number = q->s.lse_first + h * q->s.lse_head + first;
    const real *lse = (const real *)w->at->lse + number;
    const real *dlse = desc->flags & FATTN_WITH_DLSE ? (const real *)w->at->dlse + number : NULL;
    uint8_t odd = 0;
    for (int64_t i = 0; i < rows; i++) {
        const real *out = query_row(&w->at->out, desc->out_dtype, q, h, first + i, desc->dim_v, out_copy);
        const bool empty = lse[i] == -INFINITY;
        const real nd = empty ? 0 : (dlse ? dlse[i] : 0) - dot(dout[i], out, desc->dim_v);
        const fattn_interval keep = w->keep[q->row_first + first + i];
        w->nd[base + i] = nd;
        /* A row without a score above -inf: the lowest number makes every P of it 0. */
        w->nlse[base + i] = empty ? REAL_LOWEST : (real)(-(double)lse[i] * LOG2E);
        if (empty && keep.lo < keep.hi)
            odd |= ODD_ROW;
        /* A NaN or an infinity in dout leaves no D finite. */
        if (!empty && (nd * 0 != 0 || !all_finite(q_row[i], desc->dim)))
            odd |= ODD_NUMBER;
    }
    return odd;
}

static const real zeros[FATTN_DIM_MOST] __attribute__((aligned(FATTN_ALIGNMENT)));

/* One panel of one query head. */
static void prepare_panel(const backward *w, const sequence_plan *q, int64_t h, int64_t index, const wide_rows *wide)
{
    const fattn_desc *desc = &w->problem->desc;
    const int64_t first = panel_start(&q->panels, index), width = panel_start(&q->panels, index + 1) - first;
    const int64_t rows = min64(width, q->s.seq_q - first), base = rows_in_call(w, q, h) + first;
    const int64_t head = rows_in_room(q, h), at = head + first;
    const real *q_row[PANEL_WIDTH], *dout[PANEL_WIDTH];
    for (int64_t i = 0; i < rows; i++) {
        q_row[i] = query_row(&w->at->q, desc->dtype, q, h, first + i, desc->dim, wide->q + i * desc->dim);
        dout[i] = query_row(&w->at->dout, desc->out_dtype, q, h, first + i, desc->dim_v, wide->dout + i * desc->dim_v);
    }
    oddities_of(w, q, h)[index] = prepare_rows(w, q, h, first, rows, q_row, dout, wide->out);
    for (int64_t i = 0; i < rows; i++)
        if (row_is_empty(w->nlse[base + i])) /* like padding, whatever its numbers are */
            q_row[i] = dout[i] = zeros;
    for (int64_t i = rows; i < width; i++) { /* padding: P = 0 */
        w->nd[base + i] = 0;
        w->nlse[base + i] = REAL_LOWEST;
    }
    pack_transposed(w->qt + at * desc->dim, width, q_row, rows, desc->dim, w->adjust.q_factor);
    pack_transposed(w->dot + at * desc->dim_v, width, dout, rows, desc->dim_v, 1);
    pack_strips(w->qs + head * padded(&w->cols), &w->cols, q->rows, first, q_row, rows, desc->dim, (real)desc->scale);
    pack_strips(w->dos + head * padded(&w->cols_v), &w->cols_v, q->rows, first, dout, rows, desc->dim_v, 1);
}

/* Part number `part` of a key/value head. */
static void prepare_part(const backward *w, const sequence_plan *q, int64_t h_kv, int64_t part, void *scratch)
{
    const int64_t blocks = ceil_div(q->panels.count, BACKWARD_PANELS), h = h_kv * w->problem->group + part / blocks;
    const int64_t first = part % blocks * BACKWARD_PANELS, end = min64(first + BACKWARD_PANELS, q->panels.count);
    const int64_t head = rows_in_room(q, h);
    carver c = {scratch, 0};
    const wide_rows wide = carve_wide(w, &c);
    for (int64_t i = first; i < end; i++)
        prepare_panel(w, q, h, i, &wide);
    if (end == q->panels.count) {
        clear_padding(w->qs + head * padded(&w->cols), &w->cols, q->rows, q->s.seq_q);
        clear_padding(w->dos + head * padded(&w->cols_v), &w->cols_v, q->rows, q->s.seq_q);
    }
}

/* ---------------------------------------------------------------------------------------------------------- division */

/* The keys that rows and panels keep. */
static void divide_rows(const backward *w, const sequence_plan *q)
{
    for (int64_t i = 0; i < q->rows; i++)
        w->keep[q->row_first + i] = fattn_mask_row(&q->s.mask, min64(i, q->s.seq_q - 1));
    for (int64_t i = 0; i < q->panels.count; i++)
        w->spans[q->panel_first + i] =
            panel_span_of(w->keep + q->row_first + panel_start(&q->panels, i), panel_vecs(&q->panels, i));
}

/* Ranges of blocks of keys of nearly equal work. */
static void divide_keys(const backward *w, sequence_plan *q)
{
    const panel_span *spans = w->spans + q->panel_first;
    const int64_t blocks = ceil_div(q->s.seq_k, GRAD_KEYS);
    double total = 0, done = 0; /* whole numbers */
    int64_t range = 0;
    for (int64_t i = 0; i < q->panels.count; i++)
        total += (double)max64(spans[i].all.hi - spans[i].all.lo, 0);
    q->bounds[0] = 0;
    for (int64_t block = 0; block < blocks && q->ranges > 1; block++) {
        if (done * (double)q->ranges >= total * (double)(range + 1) && range + 1 < q->ranges)
            q->bounds[++range] = block;
        for (int64_t i = 0; i < q->panels.count; i++)
            done +=
                (double)max64(0, min64(spans[i].all.hi, (block + 1) * GRAD_KEYS) - max64(spans[i].all.lo, block * GRAD_KEYS));
    }
    while (range < q->ranges)
        q->bounds[++range] = blocks;
}

/* The panels that each range has to do with. */
static void divide_panels(const backward *w, sequence_plan *q)
{
    const panel_span *spans = w->spans + q->panel_first;
    for (int64_t range = 0; range < q->ranges; range++) {
        const int64_t lo = q->bounds[range] * GRAD_KEYS, hi = q->bounds[range + 1] * GRAD_KEYS;
        int64_t from = 0, to = q->panels.count;
        while (from < to && (spans[from].all.lo >= hi || spans[from].all.hi <= lo))
            from++;
        while (from < to && (spans[to - 1].all.lo >= hi || spans[to - 1].all.hi <= lo))
            to--;
        q->panel_from[range] = from;
        q->panel_to[range] = to;
    }
}

static int64_t ranges_of(int64_t seq_k)
{
    return clamp64(seq_k / RANGE_KEYS_LEAST, 1, RANGES_MOST);
}

/* Parts of what is done to one key/value head. */
static int64_t prepare_parts(const backward *w, const sequence_plan *q)
{
    return w->problem->group * ceil_div(q->panels.count, BACKWARD_PANELS);
}

static int64_t reduce_parts(const backward *w, const sequence_plan *q)
{
    return q->in_place ? 0 : w->problem->group * ceil_div(q->s.seq_q, BACKWARD_ROWS);
}

static void backward_divide(const backward *w)
{
    const fattn_desc *desc = &w->problem->desc;
    int64_t row = 0, panel = 0;
    w->first_prepare[0] = w->first_block[0] = w->first_reduce[0] = 0;
    for (int64_t b = 0; b < desc->batch; b++) {
        sequence_plan *q = &w->sequence[b];
        *q = (sequence_plan){.s = fattn_sequence_of(w->problem, w->at, b), .row_first = row, .panel_first = panel};
        q->room_first = row * desc->heads_q;
        q->panels = panels_of(q->s.seq_q);
        q->rows = panel_start(&q->panels, q->panels.count);
        q->ranges = ranges_of(q->s.seq_k);
        q->in_place = desc->grad_dtype == REAL_DTYPE && desc->dim == padded(&w->cols) && q->s.seq_q == q->rows &&
                      (!w->split || q->ranges == 1);
        divide_rows(w, q);
        divide_keys(w, q);
        divide_panels(w, q);
        row += q->rows;
        panel += q->panels.count;
        w->first_prepare[b + 1] = w->first_prepare[b] + desc->heads_kv * prepare_parts(w, q);
        w->first_block[b + 1] = w->first_block[b] + desc->heads_kv * q->ranges;
        w->first_reduce[b + 1] = w->first_reduce[b] + desc->heads_kv * reduce_parts(w, q);
    }
}

#endif
