/*
 * Forward of the composed baseline. Unit (b, h, block of rows) writes its rows of P, out and lse.
 */
#include "composed/composed.h"
#include "core/pool.h"

/* S to P in place: softmax of the kept keys, 0 elsewhere; and lse. */
static void softmax_rows(const work *w, const block *at, const matrix *p, float *lse)
{
    for (int64_t i = 0; i < p->rows; i++) {
        float *row = p->data + i * p->stride;
        const fattn_interval kept = composed_kept(at, i, p->columns);
        const float value = w->words->softmax(row + kept.lo, kept.hi - kept.lo);
        composed_clear(row, kept, p->columns);
        lse[i] = value;
    }
}

static void unit(void *arg, int32_t lane, int64_t number)
{
    const work *w = arg;
    const fattn_desc *d = &w->problem->desc;
    const fattn_launch *launch = w->launch;
    const int64_t b = number / w->blocks / d->heads_q, h = number / w->blocks % d->heads_q;
    const int64_t first = number % w->blocks * w->rows;
    const int64_t rows = d->seq_q - first < w->rows ? d->seq_q - first : w->rows;
    const int64_t row = (b * d->heads_q + h) * d->seq_q + first; /* of all heads */
    float *const lse = (launch->lse ? (float *)launch->lse : w->own_lse) + row;
    block at = {d, first, 0, NULL};
    const matrix q = composed_matrix(&launch->q, b, h, first, rows, d->dim);
    const matrix k = composed_matrix(&launch->k, b, h / w->problem->group, 0, d->seq_k, d->dim);
    const matrix v = composed_matrix(&launch->v, b, h / w->problem->group, 0, d->seq_k, d->dim_v);
    const matrix out = composed_matrix(&launch->out, b, h, first, rows, d->dim_v);
    const matrix p = {(float *)(void *)launch->workspace + row * d->seq_k, rows, d->seq_k, d->seq_k};
    (void)lane;

    const int threads = composed_threads_one();
    composed_scores(&at, (float)d->scale, &q, &k, &p);
    softmax_rows(w, &at, &p, lse);
    at.lse = lse;
    composed_rows(&at, &p, &v, &out);
    composed_threads_restore(threads);
}

void composed_forward(const work *w)
{
    const fattn_desc *d = &w->problem->desc;
    fattn_run_units(w->launch->context, w->problem->lanes, d->batch * d->heads_q * w->blocks, unit, (void *)(uintptr_t)w);
}
