/*
 * The oracle: attention as the formulas say, one row after the other, in double. Other kernels are held against it, and it runs
 * what no other kernel can.
 *
 * Forward, for a query row i with kept keys [lo, hi):
 *
 *     s_j = scale q_i . k_j      m = max s_j      p_j = exp(s_j - m)      l = sum p_j
 *     out_i = sum p_j v_j / l    lse_i = m + ln l
 *
 * Backward, from what forward wrote:
 *
 *     D_i  = dout_i . out_i      p_j = exp(s_j - lse_i)      ds_j = p_j (dout_i . v_j - D_i)
 *     dq_i = scale sum_j ds_j k_j      dk_j = scale sum_i ds_ij q_i      dv_j = sum_i p_ij dout_i
 *
 * A unit of work is one (batch, kv head): it converts the keys and values to double once, and goes through the rows of the
 * group's query heads in order, so nothing depends on the number of threads. Only kept keys enter a row's results. Scratch per
 * lane, in doubles: k, v, dk, dv, single rows and the scores of one row; forward leaves the gradients' part alone.
 */
#include <math.h>
#include <string.h>

#include "core/kernel.h"
#include "core/mask.h"
#include "core/pool.h"

typedef struct work {
    const fattn_problem *problem;
    const fattn_launch *launch;
    size_t scratch; /* bytes per lane */
} work;

typedef struct rows {
    double *k, *v, *dk, *dv;             /* [seq_k][dim or dim_v] */
    double *q, *dq, *out, *dout, *score; /* one row each; score [seq_k] */
} rows;

static int32_t lanes_for(const fattn_problem *p)
{
    const int64_t units = p->desc.batch * p->desc.heads_kv;
    return units < p->lanes ? (int32_t)units : p->lanes;
}

static size_t scratch_size(const fattn_problem *p)
{
    const fattn_desc *d = &p->desc;
    const int64_t doubles = d->seq_k * 2 * (d->dim + d->dim_v) + 2 * (d->dim + d->dim_v) + d->seq_k;
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
    return r;
}

/* ---------------------------------------------------------------------------------------------------------------- rows */

static void load_row(const fattn_problem *p, const fattn_view *view, int64_t b, int64_t h, int64_t i, int64_t n, double *row)
{
    const void *source = fattn_row(view, fattn_dtype_size(p->desc.dtype), b, h, i);
    if (p->desc.dtype == FATTN_F64)
        memcpy(row, source, (size_t)n * sizeof(double));
    else
        for (int64_t x = 0; x < n; x++)
            row[x] = (double)((const float *)source)[x];
}

static void store_row(const fattn_problem *p, const fattn_view *view, int64_t b, int64_t h, int64_t i, int64_t n,
                      const double *row)
{
    void *target = fattn_row(view, fattn_dtype_size(p->desc.dtype), b, h, i);
    if (p->desc.dtype == FATTN_F64)
        memcpy(target, row, (size_t)n * sizeof(double));
    else
        for (int64_t x = 0; x < n; x++)
            ((float *)target)[x] = (float)row[x];
}

static double load_lse(const work *w, int64_t row)
{
    return w->problem->desc.dtype == FATTN_F64 ? ((const double *)w->launch->lse)[row]
                                               : (double)((const float *)w->launch->lse)[row];
}

static void store_lse(const work *w, int64_t row, double lse)
{
    if (!w->launch->lse)
        return;
    if (w->problem->desc.dtype == FATTN_F64)
        ((double *)w->launch->lse)[row] = lse;
    else
        ((float *)w->launch->lse)[row] = (float)lse;
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

static void load_keys(const work *w, const rows *r, int64_t b, int64_t h)
{
    const fattn_desc *d = &w->problem->desc;
    for (int64_t j = 0; j < d->seq_k; j++) {
        load_row(w->problem, &w->launch->k, b, h, j, d->dim, r->k + j * d->dim);
        load_row(w->problem, &w->launch->v, b, h, j, d->dim_v, r->v + j * d->dim_v);
    }
}

/* score[j] = scale q . k_j for the kept keys. */
static void scores(const fattn_desc *d, const rows *r, fattn_interval kept)
{
    for (int64_t j = kept.lo; j < kept.hi; j++)
        r->score[j] = d->scale * dot(r->q, r->k + j * d->dim, d->dim);
}

/* ------------------------------------------------------------------------------------------------------------- forward */

/* The largest score. A NaN wins over everything: it must reach the result. -inf if no key is kept. */
static double largest(const rows *r, fattn_interval kept)
{
    double m = -(double)INFINITY;
    for (int64_t j = kept.lo; j < kept.hi; j++) {
        if (isnan(r->score[j]))
            return r->score[j];
        if (r->score[j] > m)
            m = r->score[j];
    }
    return m;
}

/* r->out and the returned lse from r->q. */
static double forward_row(const fattn_desc *d, const rows *r, int64_t i)
{
    const fattn_interval kept = fattn_mask_row(d, i);
    memset(r->out, 0, (size_t)d->dim_v * sizeof(double));
    scores(d, r, kept);
    const double m = largest(r, kept);
    if (m == -(double)INFINITY)
        return m;
    double l = 0;
    for (int64_t j = kept.lo; j < kept.hi; j++) {
        const double p = exp(r->score[j] - m);
        l += p;
        add_scaled(r->out, p, r->v + j * d->dim_v, d->dim_v);
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
    const int64_t b = unit / d->heads_kv, h_kv = unit % d->heads_kv;
    const rows r = lane_rows(w, lane);
    load_keys(w, &r, b, h_kv);
    for (int64_t h = h_kv * p->group; h < (h_kv + 1) * p->group; h++)
        for (int64_t i = 0; i < d->seq_q; i++) {
            load_row(p, &w->launch->q, b, h, i, d->dim, r.q);
            const double lse = forward_row(d, &r, i);
            store_row(p, &w->launch->out, b, h, i, d->dim_v, r.out);
            store_lse(w, (b * d->heads_q + h) * d->seq_q + i, lse);
        }
}

/* ------------------------------------------------------------------------------------------------------------ backward */

/* r->dq, and the row's part of r->dk and r->dv, from r->q, r->out, r->dout. */
static void backward_row(const fattn_desc *d, const rows *r, int64_t i, double lse)
{
    const fattn_interval kept = fattn_mask_row(d, i);
    memset(r->dq, 0, (size_t)d->dim * sizeof(double));
    if (lse == -(double)INFINITY)
        return;
    scores(d, r, kept);
    const double delta = dot(r->dout, r->out, d->dim_v);
    for (int64_t j = kept.lo; j < kept.hi; j++) {
        const double p = exp(r->score[j] - lse);
        const double ds = p * (dot(r->dout, r->v + j * d->dim_v, d->dim_v) - delta) * d->scale;
        add_scaled(r->dq, ds, r->k + j * d->dim, d->dim);
        add_scaled(r->dk + j * d->dim, ds, r->q, d->dim);
        add_scaled(r->dv + j * d->dim_v, p, r->dout, d->dim_v);
    }
}

static void backward_unit(void *arg, int32_t lane, int64_t unit)
{
    const work *w = arg;
    const fattn_problem *p = w->problem;
    const fattn_launch *launch = w->launch;
    const fattn_desc *d = &p->desc;
    const int64_t b = unit / d->heads_kv, h_kv = unit % d->heads_kv;
    const rows r = lane_rows(w, lane);
    load_keys(w, &r, b, h_kv);
    memset(r.dk, 0, (size_t)(d->seq_k * d->dim) * sizeof(double));
    memset(r.dv, 0, (size_t)(d->seq_k * d->dim_v) * sizeof(double));
    for (int64_t h = h_kv * p->group; h < (h_kv + 1) * p->group; h++)
        for (int64_t i = 0; i < d->seq_q; i++) {
            load_row(p, &launch->q, b, h, i, d->dim, r.q);
            load_row(p, &launch->out, b, h, i, d->dim_v, r.out);
            load_row(p, &launch->dout, b, h, i, d->dim_v, r.dout);
            backward_row(d, &r, i, load_lse(w, (b * d->heads_q + h) * d->seq_q + i));
            store_row(p, &launch->dq, b, h, i, d->dim, r.dq);
        }
    for (int64_t j = 0; j < d->seq_k; j++) {
        store_row(p, &launch->dk, b, h_kv, j, d->dim, r.dk + j * d->dim);
        store_row(p, &launch->dv, b, h_kv, j, d->dim_v, r.dv + j * d->dim_v);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- table */

static void run(const fattn_problem *problem, const fattn_launch *launch, fattn_unit_fn unit)
{
    work w = {.problem = problem, .launch = launch, .scratch = scratch_size(problem)};
    fattn_run_units(launch->context, lanes_for(problem), problem->desc.batch * problem->desc.heads_kv, unit, &w);
}

static void forward(const fattn_problem *problem, const fattn_launch *launch)
{
    run(problem, launch, forward_unit);
}

static void backward(const fattn_problem *problem, const fattn_launch *launch)
{
    run(problem, launch, backward_unit);
}

extern const fattn_kernel_table fattn_ref;
FATTN_KERNEL_TABLE(fattn_ref, {.name = "ref_forward", .op = FATTN_OP_FORWARD, .workspace = workspace, .run = forward},
                   {.name = "ref_backward", .op = FATTN_OP_BACKWARD, .workspace = workspace, .run = backward});
