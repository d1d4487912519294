/*
 * Backward of the composed baseline, in two passes, each over units that write nothing in common:
 *
 *     (b, h, block of rows)    P, dS and dX of these rows, whole, and dQ
 *     (b, h_kv, block of keys) dK and dV of these keys, summed over the group's heads in order
 *
 * and, where they are asked for, one for dbias and one for dsinks, in sums.c. P is recomputed from q, k and lse, as the
 * operation is given no more; a framework that kept P saves one product of five.
 *
 * dX is the gradient of q.k. It differs from dS by the factor scale alone, unless there is a softcap: then it is a matrix of
 * its own, which holds scale dscore until dS is there. Otherwise it takes dS's place, and the factor is in it, or, with a bias,
 * whose gradient is dS as it is, in the products.
 */
#include <math.h>

#include "composed/composed.h"
#include "core/pool.h"

static int matrix_dx(const fattn_desc *d)
{
    return d->softcap != 0 ? MATRIX_DX : MATRIX_DS;
}

/* The factor scale, in the elements of dS or in the products with it. With a bias this does not depend on whether dbias is
 * wanted, so that the other gradients do not either. */
static float element_scale(const fattn_desc *d)
{
    return d->softcap != 0 || (d->flags & FATTN_WITH_BIAS) ? 1 : (float)d->scale;
}

static float product_scale(const fattn_desc *d)
{
    return d->softcap == 0 && (d->flags & FATTN_WITH_BIAS) ? (float)d->scale : 1;
}

/* ---------------------------------------------------------------------------------------------------------------- rows */

/* lse, or -inf if every one of n scores is: a sink hides that. */
static float lse_of_scores(const float *s, int64_t n, float lse)
{
    for (int64_t j = 0; j < n; j++)
        if (s[j] != -(float)INFINITY)
            return lse;
    return -(float)INFINITY;
}

/* S to P in place. row_lse, of these rows, is written with sinks only. */
static void probability_rows(const work *w, const block *at, const matrix *p, const matrix *dx, float *row_lse)
{
    const fattn_desc *d = &w->problem->desc;
    const bool change = fattn_scores_change(d), sinks = (d->flags & FATTN_WITH_SINKS) != 0;
    for (int64_t i = 0; i < p->rows; i++) {
        float *row = p->data + i * p->stride;
        fattn_interval kept = composed_kept(at, i, p->columns);
        if (change)
            composed_change(w, at, i, kept, row, d->softcap != 0 ? dx->data + i * dx->stride : NULL);
        if (sinks) {
            row_lse[i] = lse_of_scores(row + kept.lo, kept.hi - kept.lo, at->lse[i]);
            if (row_lse[i] == -(float)INFINITY)
                kept = (fattn_interval){0, 0};
        }
        w->words->probabilities(row + kept.lo, kept.hi - kept.lo, at->lse[i]);
        composed_clear(row, kept, p->columns);
    }
}

/* dout . out of one row */
static float row_delta(const matrix *dout, const matrix *out, int64_t i)
{
    const float *x = dout->data + i * dout->stride, *y = out->data + i * out->stride;
    float sum = 0;
    for (int64_t d = 0; d < out->columns; d++)
        sum += x[d] * y[d];
    return sum;
}

/* What gradient_rows works on. */
typedef struct gradients {
    matrix p, ds, dx, dout, out;
    const float *dlse; /* of these rows, or NULL */
    float *delta;      /* D of these rows, written, or NULL */
} gradients;

/* dP to dS in place; with dropout P to m P. */
static void gradient_rows(const work *w, const block *at, const gradients *g)
{
    const fattn_desc *d = &w->problem->desc;
    const float scale = element_scale(d);
    for (int64_t i = 0; i < g->ds.rows; i++) {
        float *row = g->ds.data + i * g->ds.stride, *p = g->p.data + i * g->p.stride, *dx = g->dx.data + i * g->dx.stride;
        const fattn_interval kept = composed_kept(at, i, g->ds.columns);
        const float delta = row_delta(&g->dout, &g->out, i) - (g->dlse ? g->dlse[i] : 0);
        if (d->dropout > 0)
            composed_drop_gradient(w, at, i, kept, row, p, delta, scale);
        else
            w->words->gradient(row + kept.lo, p + kept.lo, kept.hi - kept.lo, delta, scale);
        composed_clear(row, kept, g->ds.columns);
        if (d->softcap != 0) {
            w->words->multiply(dx + kept.lo, row + kept.lo, kept.hi - kept.lo);
            composed_clear(dx, kept, g->dx.columns);
        }
        if (g->delta)
            g->delta[i] = delta;
    }
}

static void row_unit(void *arg, int32_t lane, int64_t number)
{
    const work *w = arg;
    const fattn_desc *d = &w->problem->desc;
    const fattn_launch *launch = w->launch;
    part own;
    (void)lane;
    if (!composed_part_rows(w, number, &own))
        return;
    const fattn_sequence *s = &own.s;
    const int64_t h = own.h, h_kv = h / w->problem->group, rows = own.count, row = s->q_first + own.first;
    const int64_t index = composed_row_index(s, h, own.first);
    const bool sinks = (d->flags & FATTN_WITH_SINKS) != 0;
    block at = {s, h, own.first, 0, (const float *)launch->lse + index};
    const matrix q = composed_matrix(&launch->q, s->b, h, row, rows, d->dim);
    const matrix k = composed_matrix(&launch->k, s->b, h_kv, s->k_first, s->seq_k, d->dim);
    const matrix v = composed_matrix(&launch->v, s->b, h_kv, s->k_first, s->seq_k, d->dim_v);
    const matrix dq = composed_matrix(&launch->dq, s->b, h, row, rows, d->dim);
    const gradients g = {.p = composed_part_of(w, MATRIX_P, s, h, own.first, rows, 0, s->seq_k),
                         .ds = composed_part_of(w, MATRIX_DS, s, h, own.first, rows, 0, s->seq_k),
                         .dx = composed_part_of(w, matrix_dx(d), s, h, own.first, rows, 0, s->seq_k),
                         .out = composed_matrix(&launch->out, s->b, h, row, rows, d->dim_v),
                         .dout = composed_matrix(&launch->dout, s->b, h, row, rows, d->dim_v),
                         .dlse = d->flags & FATTN_WITH_DLSE ? (const float *)launch->dlse + index : NULL,
                         .delta = sinks ? w->delta + index : NULL};

    const int threads = composed_threads_one();
    composed_scores(&at, (float)d->scale, &q, &k, &g.p);
    probability_rows(w, &at, &g.p, &g.dx, sinks ? w->row_lse + index : NULL);
    if (sinks)
        at.lse = w->row_lse + index;
    composed_scores(&at, 1, &g.dout, &v, &g.ds);
    gradient_rows(w, &at, &g);
    composed_rows(&at, product_scale(d), &g.dx, &k, &dq);
    composed_threads_restore(threads);
}

/* ---------------------------------------------------------------------------------------------------------------- keys */

static void key_unit(void *arg, int32_t lane, int64_t number)
{
    const work *w = arg;
    const fattn_desc *d = &w->problem->desc;
    const fattn_launch *launch = w->launch;
    const int64_t group = w->problem->group;
    part own;
    (void)lane;
    if (!composed_part_keys(w, number, &own))
        return;
    const fattn_sequence *s = &own.s;
    const int64_t h_kv = own.h, keys = own.count;
    const float *lse = d->flags & FATTN_WITH_SINKS ? w->row_lse : (const float *)launch->lse;
    const matrix dk = composed_matrix(&launch->dk, s->b, h_kv, s->k_first + own.first, keys, d->dim);
    const matrix dv = composed_matrix(&launch->dv, s->b, h_kv, s->k_first + own.first, keys, d->dim_v);

    const int threads = composed_threads_one();
    for (int64_t h = h_kv * group; h < (h_kv + 1) * group; h++) {
        const block at = {s, h, 0, own.first, lse + composed_row_index(s, h, 0)};
        const matrix q = composed_matrix(&launch->q, s->b, h, s->q_first, s->seq_q, d->dim);
        const matrix dout = composed_matrix(&launch->dout, s->b, h, s->q_first, s->seq_q, d->dim_v);
        const matrix p = composed_part_of(w, MATRIX_P, s, h, 0, s->seq_q, own.first, keys);
        const matrix dx = composed_part_of(w, matrix_dx(d), s, h, 0, s->seq_q, own.first, keys);
        composed_columns(&at, 1, &p, &dout, &dv, h > h_kv * group);
        composed_columns(&at, product_scale(d), &dx, &q, &dk, h > h_kv * group);
    }
    composed_threads_restore(threads);
}

void composed_backward(const work *w)
{
    const fattn_desc *d = &w->problem->desc;
    const fattn_context *context = w->launch->context;
    const int32_t lanes = w->problem->lanes;
    void *arg = (void *)(uintptr_t)w;
    fattn_run_units(context, lanes, d->batch * d->heads_q * w->blocks, row_unit, arg);
    fattn_run_units(context, lanes, d->batch * d->heads_kv * w->key_blocks, key_unit, arg);
    if (d->flags & FATTN_WITH_DBIAS)
        composed_dbias(w);
    if (d->flags & FATTN_WITH_DSINKS)
        composed_dsinks(w);
}
