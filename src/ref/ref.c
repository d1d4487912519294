/*
 * The oracle: attention as the formulas say, one row after the other, in double. Other kernels are held against it, and it runs
 * what no other kernel can.
 *
 * Forward, for a query row i with kept keys [lo, hi), a sink z (-inf without one) and dropout's factors m_j:
 *
 *     s_j = score(scale q_i . k_j)      M = max(s_j, z)      p_j = exp(s_j - M)      l = exp(z - M) + sum p_j
 *     out_i = sum m_j p_j v_j / l       lse_i = M + ln l
 *
 * where score() is softcap, bias and ALiBi, fattn_score() of sequence.h. Backward, from what forward wrote:
 *
 *     D_i  = dout_i . out_i - dlse_i    p_j = exp(s_j - lse_i)      ds_j = p_j (m_j dout_i . v_j - D_i)
 *     dx_j = ds_j scale (1 - tanh(x_j / cap)^2)
 *     dq_i = sum_j dx_j k_j             dk_j = sum_i dx_ij q_i      dv_j = sum_i m_ij p_ij dout_i
 *     dbias = ds                        dsink = - sum_i exp(z - lse_i) D_i
 *
 * A unit of work is one (sequence, kv head): it converts the keys and values to double once, and goes through the rows of the
 * group's query heads in order, so nothing depends on the number of threads. Only kept keys enter a row's results. The sums
 * over sequences and heads that dbias and dsinks ask for are passes of their own, whose units own what they write. Scratch per
 * lane, in doubles: k, v, dk, dv, single rows and numbers per key of one row; forward leaves the gradients' part alone.
 */
#include <math.h>
#include <string.h>

#include "core/dropout.h"
#include "core/kernel.h"
#include "core/mask.h"
#include "core/pool.h"
#include "core/sequence.h"

typedef struct work {
    const fattn_problem *problem;
    const fattn_launch *launch;
    fattn_dropout dropout;
    size_t scratch; /* bytes per lane */
} work;

typedef struct rows {
    double *k, *v, *dk, *dv;      /* [seq_k][dim or dim_v] */
    double *q, *dq, *out, *dout;  /* one row each */
    double *score, *slope, *keep; /* [seq_k], of one row: s; ds/dx without scale; dropout's factors */
    double *sum;                  /* [seq_k]: of dbias */
} rows;

static int32_t lanes_for(const fattn_problem *p)
{
    const bool sums = p->desc.flags & (FATTN_WITH_DBIAS | FATTN_WITH_DSINKS); /* written even for an empty batch */
    const int64_t units = p->desc.batch * p->desc.heads_q + sums;
    return units < p->lanes ? (int32_t)units : p->lanes;
}

static size_t scratch_size(const fattn_problem *p)
{
    const fattn_desc *d = &p->desc;
    const int64_t doubles = (d->seq_k + 1) * 2 * (d->dim + d->dim_v) + 4 * d->seq_k;
    return fattn_round_up((size_t)doubles * sizeof(double), FATTN_ALIGNMENT);
}

static size_t workspace(const fattn_problem *p)
{
    return (size_t)lanes_for(p) * scratch_size(p);
}

static rows lane_rows(const work *w, int32_t lane)
{
    const fattn_desc *d = &w->problem->desc;
    rows r;
    r.k = (double *)(void *)(w->launch->workspace + (size_t)lane * w->scratch);
    r.v = r.k + d->seq_k * d->dim;
    r.dk = r.v + d->seq_k * d->dim_v;
    r.dv = r.dk + d->seq_k * d->dim;
    r.q = r.dv + d->seq_k * d->dim_v;
    r.dq = r.q + d->dim;
    r.out = r.dq + d->dim;
    r.dout = r.out + d->dim_v;
    r.score = r.dout + d->dim_v;
    r.slope = r.score + d->seq_k;
    r.keep = r.slope + d->seq_k;
    r.sum = r.keep + d->seq_k;
    return r;
}

/* ---------------------------------------------------------------------------------------------------------------- rows */

static void load(const void *from, int32_t dtype, int64_t n, double *row)
{
    for (int64_t x = 0; x < n; x++)
        row[x] = fattn_element(from, dtype, x);
}

static void store(void *to, int32_t dtype, int64_t n, const double *row)
{
    for (int64_t x = 0; x < n; x++)
        fattn_set_element(to, dtype, x, row[x]);
}

static void load_query(const fattn_view *view, int32_t dtype, const fattn_sequence *s, int64_t h, int64_t i, int64_t n,
                       double *row)
{
    load(fattn_query_row(view, fattn_dtype_size(dtype), s, h, i), dtype, n, row);
}

/* Key or value j of head h. */
static void load_key(const work *w, const fattn_view *view, const float *scales, const fattn_sequence *s, int64_t h, int64_t j,
                     int64_t n, double *row)
{
    const int32_t dtype = w->problem->desc.kv_dtype;
    const void *from = fattn_key_row(w->problem, w->launch, view, fattn_dtype_size(dtype), s, h, j);
    const double factor = dtype == FATTN_I8 ? (double)scales[fattn_scale_index(w->problem, w->launch, s, h, j)] : 1;
    load(from, dtype, n, row);
    for (int64_t x = 0; x < n && dtype == FATTN_I8; x++)
        row[x] *= factor;
}

static double row_number(const work *w, const void *numbers, const fattn_sequence *s, int64_t h, int64_t i)
{
    const int32_t dtype = w->problem->desc.dtype == FATTN_F64 ? FATTN_F64 : FATTN_F32;
    return fattn_element(numbers, dtype, s->lse_first + h * s->lse_head + i);
}

static void store_lse(const work *w, const fattn_sequence *s, int64_t h, int64_t i, double lse)
{
    const int32_t dtype = w->problem->desc.dtype == FATTN_F64 ? FATTN_F64 : FATTN_F32;
    if (w->launch->lse)
        fattn_set_element(w->launch->lse, dtype, s->lse_first + h * s->lse_head + i, lse);
}

static double dot(const double *a, const double *b, int64_t n)
{
    double sum = 0;
    for (int64_t x = 0; x < n; x++)
        sum += a[x] * b[x];
    return sum;
}

/* y += a x */
static void add_scaled(double *y, double a, const double *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

static void load_keys(const work *w, const rows *r, const fattn_sequence *s, int64_t h)
{
    const fattn_desc *d = &w->problem->desc;
    for (int64_t j = 0; j < s->seq_k; j++) {
        load_key(w, &w->launch->k, w->launch->k_scales, s, h, j, d->dim, r->k + j * d->dim);
        load_key(w, &w->launch->v, w->launch->v_scales, s, h, j, d->dim_v, r->v + j * d->dim_v);
    }
}

/* score, slope and keep of row (h, i), whose q is loaded, for the kept keys. */
static void score_row(const work *w, const rows *r, const fattn_sequence *s, int64_t h, int64_t i, fattn_interval kept)
{
    const fattn_desc *d = &w->problem->desc;
    for (int64_t j = kept.lo; j < kept.hi; j++) {
        const double x = d->scale * dot(r->q, r->k + j * d->dim, d->dim);
        r->score[j] = fattn_score(w->problem, w->launch, s, h, i, j, x);
        const double t = d->softcap != 0 ? tanh(x / d->softcap) : 0;
        r->slope[j] = 1 - t * t;
        r->keep[j] = d->dropout == 0                                                 ? 1
                     : fattn_dropout_keeps(&w->dropout, s->b * d->heads_q + h, i, j) ? 1 / (1 - d->dropout)
                                                                                     : 0;
    }
}

/* ------------------------------------------------------------------------------------------------------------- forward */

/* The largest score, or the sink. A NaN wins over everything: it must reach the result. -inf if there is nothing. */
static double largest(const rows *r, fattn_interval kept, double sink)
{
    double m = sink;
    for (int64_t j = kept.lo; j < kept.hi; j++) {
        if (isnan(r->score[j]))
            return r->score[j];
        if (r->score[j] > m)
            m = r->score[j];
    }
    return m;
}

/* r->out and the returned lse from r->q. */
static double forward_row(const work *w, const rows *r, const fattn_sequence *s, int64_t h, int64_t i)
{
    const fattn_desc *d = &w->problem->desc;
    const fattn_interval kept = fattn_mask_row(&s->mask, i);
    const double sink = d->flags & FATTN_WITH_SINKS ? (double)w->launch->sinks[h] : -(double)INFINITY;
    memset(r->out, 0, (size_t)d->dim_v * sizeof(double));
    score_row(w, r, s, h, i, kept);
    if (largest(r, kept, -(double)INFINITY) == -(double)INFINITY)
        return sink;
    const double m = largest(r, kept, sink);
    double l = exp(sink - m);
    for (int64_t j = kept.lo; j < kept.hi; j++) {
        const double p = exp(r->score[j] - m);
        l += p;
        add_scaled(r->out, p * r->keep[j], r->v + j * d->dim_v, d->dim_v);
    }
    for (int64_t x = 0; x < d->dim_v; x++)
        r->out[x] /= l;
    return m + log(l);
}

static void forward_unit(void *arg, int32_t lane, int64_t unit)
{
    const work *w = arg;
    const fattn_problem *p = w->problem;
    const fattn_desc *d = &p->desc;
    const fattn_sequence s = fattn_sequence_of(p, w->launch, unit / d->heads_kv);
    const int64_t h_kv = unit % d->heads_kv;
    const rows r = lane_rows(w, lane);
    load_keys(w, &r, &s, h_kv);
    for (int64_t h = h_kv * p->group; h < (h_kv + 1) * p->group; h++)
        for (int64_t i = 0; i < s.seq_q; i++) {
            load_query(&w->launch->q, d->dtype, &s, h, i, d->dim, r.q);
            store_lse(w, &s, h, i, forward_row(w, &r, &s, h, i));
            store(fattn_query_row(&w->launch->out, fattn_dtype_size(d->out_dtype), &s, h, i), d->out_dtype, d->dim_v, r.out);
        }
}

/* ------------------------------------------------------------------------------------------------------------ backward */

/* Loads row (h, i) of q, out and dout, and returns D. */
static double load_rows(const work *w, const rows *r, const fattn_sequence *s, int64_t h, int64_t i)
{
    const fattn_desc *d = &w->problem->desc;
    const fattn_launch *at = w->launch;
    load_query(&at->q, d->dtype, s, h, i, d->dim, r->q);
    load_query(&at->out, d->out_dtype, s, h, i, d->dim_v, r->out);
    load_query(&at->dout, d->out_dtype, s, h, i, d->dim_v, r->dout);
    const double dlse = d->flags & FATTN_WITH_DLSE ? row_number(w, at->dlse, s, h, i) : 0;
    return dot(r->dout, r->out, d->dim_v) - dlse;
}

/* r->dq, and the row's part of r->dk and r->dv. */
static void backward_row(const work *w, const rows *r, const fattn_sequence *s, int64_t h, int64_t i)
{
    const fattn_desc *d = &w->problem->desc;
    const fattn_interval kept = fattn_mask_row(&s->mask, i);
    const double lse = row_number(w, w->launch->lse, s, h, i), delta = load_rows(w, r, s, h, i);
    memset(r->dq, 0, (size_t)d->dim * sizeof(double));
    if (lse == -(double)INFINITY)
        return;
    score_row(w, r, s, h, i, kept);
    for (int64_t j = kept.lo; j < kept.hi; j++) {
        const double p = exp(r->score[j] - lse);
        const double ds = p * (r->keep[j] * dot(r->dout, r->v + j * d->dim_v, d->dim_v) - delta);
        const double dx = ds * r->slope[j] * d->scale;
        add_scaled(r->dq, dx, r->k + j * d->dim, d->dim);
        add_scaled(r->dk + j * d->dim, dx, r->q, d->dim);
        add_scaled(r->dv + j * d->dim_v, p * r->keep[j], r->dout, d->dim_v);
    }
}

static void backward_unit(void *arg, int32_t lane, int64_t unit)
{
    const work *w = arg;
    const fattn_problem *p = w->problem;
    const fattn_launch *at = w->launch;
    const fattn_desc *d = &p->desc;
    const size_t size = fattn_dtype_size(d->grad_dtype);
    const fattn_sequence s = fattn_sequence_of(p, at, unit / d->heads_kv);
    const int64_t h_kv = unit % d->heads_kv;
    const rows r = lane_rows(w, lane);
    load_keys(w, &r, &s, h_kv);
    memset(r.dk, 0, (size_t)(s.seq_k * d->dim) * sizeof(double));
    memset(r.dv, 0, (size_t)(s.seq_k * d->dim_v) * sizeof(double));
    for (int64_t h = h_kv * p->group; h < (h_kv + 1) * p->group; h++)
        for (int64_t i = 0; i < s.seq_q; i++) {
            backward_row(w, &r, &s, h, i);
            store(fattn_query_row(&at->dq, size, &s, h, i), d->grad_dtype, d->dim, r.dq);
        }
    for (int64_t j = 0; j < s.seq_k; j++) {
        store(fattn_row(&at->dk, size, s.b, h_kv, s.k_first + j), d->grad_dtype, d->dim, r.dk + j * d->dim);
        store(fattn_row(&at->dv, size, s.b, h_kv, s.k_first + j), d->grad_dtype, d->dim_v, r.dv + j * d->dim_v);
    }
}

/* ------------------------------------------------------------------------------------------------------ dbias, dsinks */

/* r->sum += ds of row (h, i). */
static void add_bias_row(const work *w, const rows *r, const fattn_sequence *s, int64_t h, int64_t i)
{
    const fattn_desc *d = &w->problem->desc;
    const fattn_launch *at = w->launch;
    const int64_t h_kv = h / w->problem->group;
    const fattn_interval kept = fattn_mask_row(&s->mask, i);
    const double lse = row_number(w, at->lse, s, h, i), delta = load_rows(w, r, s, h, i);
    if (lse == -(double)INFINITY)
        return;
    for (int64_t j = kept.lo; j < kept.hi; j++) {
        load_key(w, &at->k, NULL, s, h_kv, j, d->dim, r->k + j * d->dim);
        load_key(w, &at->v, NULL, s, h_kv, j, d->dim_v, r->v);
        r->score[j] = dot(r->dout, r->v, d->dim_v);
    }
    memcpy(r->dk, r->score, (size_t)s->seq_k * sizeof(double));
    score_row(w, r, s, h, i, kept);
    for (int64_t j = kept.lo; j < kept.hi; j++)
        r->sum[j] += exp(r->score[j] - lse) * (r->keep[j] * r->dk[j] - delta);
}

/* One (sequence, head) of dbias, or the sum over those that it is broadcast over. */
static void bias_unit(void *arg, int32_t lane, int64_t unit)
{
    const work *w = arg;
    const fattn_desc *d = &w->problem->desc;
    const fattn_view *to = &w->launch->dbias;
    const fattn_dbias_shape shape = fattn_dbias_shape_of(d, to);
    const int64_t b0 = unit / shape.heads, h0 = unit % shape.heads;
    const rows r = lane_rows(w, lane);
    for (int64_t i0 = 0; i0 < shape.rows; i0++) {
        memset(r.sum, 0, (size_t)d->seq_k * sizeof(double));
        for (int64_t i = i0; i < i0 + shape.sum_rows; i++)
            for (int64_t b = b0; b < b0 + shape.sum_batch; b++) {
                const fattn_sequence s = fattn_sequence_of(w->problem, w->launch, b);
                for (int64_t h = h0; h < h0 + shape.sum_heads && i < s.seq_q; h++)
                    add_bias_row(w, &r, &s, h, i);
            }
        store(fattn_row(to, fattn_dtype_size(d->grad_dtype), b0, h0, i0), d->grad_dtype, d->seq_k, r.sum);
    }
}

static void sink_unit(void *arg, int32_t lane, int64_t h)
{
    const work *w = arg;
    const rows r = lane_rows(w, lane);
    double sum = 0;
    for (int64_t b = 0; b < w->problem->desc.batch; b++) {
        const fattn_sequence s = fattn_sequence_of(w->problem, w->launch, b);
        for (int64_t i = 0; i < s.seq_q; i++) {
            const double lse = row_number(w, w->launch->lse, &s, h, i), delta = load_rows(w, &r, &s, h, i);
            if (lse != -(double)INFINITY)
                sum -= exp((double)w->launch->sinks[h] - lse) * delta;
        }
    }
    w->launch->dsinks[h] = (float)sum;
}

/* ---------------------------------------------------------------------------------------------------------------- table */

static void run(const fattn_problem *problem, const fattn_launch *launch, int64_t units, fattn_unit_fn unit)
{
    work w = {
        .problem = problem, .launch = launch, .dropout = fattn_dropout_of(&problem->desc), .scratch = scratch_size(problem)};
    fattn_run_units(launch->context, lanes_for(problem), units, unit, &w);
}

static fattn_status forward(const fattn_problem *problem, const fattn_launch *launch)
{
    run(problem, launch, problem->desc.batch * problem->desc.heads_kv, forward_unit);
    return FATTN_OK;
}

static fattn_status backward(const fattn_problem *problem, const fattn_launch *launch)
{
    const fattn_desc *d = &problem->desc;
    run(problem, launch, d->batch * d->heads_kv, backward_unit);
    const fattn_dbias_shape shape = fattn_dbias_shape_of(d, &launch->dbias);
    if (d->flags & FATTN_WITH_DBIAS)
        run(problem, launch, shape.batch * shape.heads, bias_unit);
    if (d->flags & FATTN_WITH_DSINKS)
        run(problem, launch, d->heads_q, sink_unit);
    return FATTN_OK;
}

extern const fattn_kernel_table fattn_ref;
FATTN_KERNEL_TABLE(fattn_ref, {.name = "ref_forward", .op = FATTN_OP_FORWARD, .workspace = workspace, .run = forward},
                   {.name = "ref_backward", .op = FATTN_OP_BACKWARD, .workspace = workspace, .run = backward});
