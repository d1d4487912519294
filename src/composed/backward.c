/*
 * Backward of the composed baseline, in two passes, each over units that write nothing in common:
 *
 *     (b, h, block of rows)    P and dS of these rows, whole, and dQ
 *     (b, h_kv, block of keys) dK and dV of these keys, summed over the group's heads in order
 *
 * P is recomputed from q, k and lse, as the operation is given no more; a framework that kept P saves one product of five.
 */
#include "composed/composed.h"
#include "core/pool.h"

static matrix whole(const work *w, int which, int64_t row, int64_t rows, int64_t key, int64_t keys)
{
    const fattn_desc *d = &w->problem->desc;
    const int64_t size = d->batch * d->heads_q * d->seq_q * d->seq_k;
    float *data = (float *)(void *)w->launch->workspace + which * size + row * d->seq_k + key;
    return (matrix){data, rows, keys, d->seq_k};
}

/* S to P in place. */
static void probability_rows(const work *w, const block *at, const matrix *p)
{
    for (int64_t i = 0; i < p->rows; i++) {
        float *row = p->data + i * p->stride;
        const fattn_interval kept = composed_kept(at, i, p->columns);
        w->words->probabilities(row + kept.lo, kept.hi - kept.lo, at->lse[i]);
        composed_clear(row, kept, p->columns);
    }
}

/* D of one row: dout . out */
static float row_delta(const matrix *dout, const matrix *out, int64_t i)
{
    const float *x = dout->data + i * dout->stride, *y = out->data + i * out->stride;
    float sum = 0;
    for (int64_t d = 0; d < out->columns; d++)
        sum += x[d] * y[d];
    return sum;
}

/* dP to dS in place. */
static void gradient_rows(const work *w, const block *at, const matrix *p, const matrix *ds, const matrix *dout,
                          const matrix *out)
{
    for (int64_t i = 0; i < ds->rows; i++) {
        float *row = ds->data + i * ds->stride;
        const fattn_interval kept = composed_kept(at, i, ds->columns);
        const float delta = row_delta(dout, out, i);
        w->words->gradient(row + kept.lo, p->data + i * p->stride + kept.lo, kept.hi - kept.lo, delta,
                           (float)w->problem->desc.scale);
        composed_clear(row, kept, ds->columns);
    }
}

static void row_unit(void *arg, int32_t lane, int64_t number)
{
    const work *w = arg;
    const fattn_desc *d = &w->problem->desc;
    const fattn_launch *launch = w->launch;
    const int64_t b = number / w->blocks / d->heads_q, h = number / w->blocks % d->heads_q, h_kv = h / w->problem->group;
    const int64_t first = number % w->blocks * w->rows;
    const int64_t rows = d->seq_q - first < w->rows ? d->seq_q - first : w->rows;
    const int64_t row = (b * d->heads_q + h) * d->seq_q + first; /* of all heads */
    const block at = {d, first, 0, (const float *)launch->lse + row};
    const matrix q = composed_matrix(&launch->q, b, h, first, rows, d->dim);
    const matrix k = composed_matrix(&launch->k, b, h_kv, 0, d->seq_k, d->dim);
    const matrix v = composed_matrix(&launch->v, b, h_kv, 0, d->seq_k, d->dim_v);
    const matrix out = composed_matrix(&launch->out, b, h, first, rows, d->dim_v);
    const matrix dout = composed_matrix(&launch->dout, b, h, first, rows, d->dim_v);
    const matrix dq = composed_matrix(&launch->dq, b, h, first, rows, d->dim);
    const matrix p = whole(w, 0, row, rows, 0, d->seq_k), ds = whole(w, 1, row, rows, 0, d->seq_k);
    (void)lane;

    const int threads = composed_threads_one();
    composed_scores(&at, (float)d->scale, &q, &k, &p);
    probability_rows(w, &at, &p);
    composed_scores(&at, 1, &dout, &v, &ds);
    gradient_rows(w, &at, &p, &ds, &dout, &out);
    composed_rows(&at, &ds, &k, &dq);
    composed_threads_restore(threads);
}

static void key_unit(void *arg, int32_t lane, int64_t number)
{
    const work *w = arg;
    const fattn_desc *d = &w->problem->desc;
    const fattn_launch *launch = w->launch;
    const int64_t group = w->problem->group;
    const int64_t b = number / w->key_blocks / d->heads_kv, h_kv = number / w->key_blocks % d->heads_kv;
    const int64_t first = number % w->key_blocks * w->keys;
    const int64_t keys = d->seq_k - first < w->keys ? d->seq_k - first : w->keys;
    const matrix dk = composed_matrix(&launch->dk, b, h_kv, first, keys, d->dim);
    const matrix dv = composed_matrix(&launch->dv, b, h_kv, first, keys, d->dim_v);
    (void)lane;

    const int threads = composed_threads_one();
    for (int64_t h = h_kv * group; h < (h_kv + 1) * group; h++) {
        const int64_t row = (b * d->heads_q + h) * d->seq_q;
        const block at = {d, 0, first, (const float *)launch->lse + row};
        const matrix q = composed_matrix(&launch->q, b, h, 0, d->seq_q, d->dim);
        const matrix dout = composed_matrix(&launch->dout, b, h, 0, d->seq_q, d->dim_v);
        const matrix p = whole(w, 0, row, d->seq_q, first, keys), ds = whole(w, 1, row, d->seq_q, first, keys);
        composed_columns(&at, &p, &dout, &dv, h > h_kv * group);
        composed_columns(&at, &ds, &q, &dk, h > h_kv * group);
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
}
