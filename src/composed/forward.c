/*
 * Forward of the composed baseline. Unit (b, h, block of rows) writes its rows of P, out and lse.
 */
#include <math.h>

#include "composed/composed.h"
#include "core/pool.h"

/* S to P in place: softmax of the kept keys, then dropout, 0 elsewhere. lse, of these rows, is -inf where one counts as
 * empty. */
static void softmax_rows(const work *w, const block *at, const matrix *p, float *lse)
{
    const fattn_desc *d = &w->problem->desc;
    const float sink = d->flags & FATTN_WITH_SINKS ? w->launch->sinks[at->h] : -(float)INFINITY;
    const bool change = fattn_scores_change(d);
    for (int64_t i = 0; i < p->rows; i++) {
        float *row = p->data + i * p->stride;
        const fattn_interval kept = composed_kept(at, i, p->columns);
        if (change)
            composed_change(w, at, i, kept, row, NULL);
        const float value = w->words->softmax(row + kept.lo, kept.hi - kept.lo, sink);
        if (d->dropout > 0)
            composed_drop(w, at, i, kept, row);
        composed_clear(row, kept, p->columns);
        lse[i] = value;
    }
}

/* The caller's lse where it is not the one that tells empty rows: those have the sink's. */
static void sink_rows(float *lse, const float *row_lse, int64_t rows, float sink)
{
    for (int64_t i = 0; i < rows; i++)
        lse[i] = row_lse[i] == -(float)INFINITY ? sink : row_lse[i];
}

static void unit(void *arg, int32_t lane, int64_t number)
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
    float *const wanted = launch->lse ? (float *)launch->lse + index : NULL;
    float *const lse = wanted && !sinks ? wanted : w->row_lse + index;
    block at = {s, h, own.first, 0, NULL};
    const matrix q = composed_matrix(&launch->q, s->b, h, row, rows, d->dim);
    const matrix k = composed_matrix(&launch->k, s->b, h_kv, s->k_first, s->seq_k, d->dim);
    const matrix v = composed_matrix(&launch->v, s->b, h_kv, s->k_first, s->seq_k, d->dim_v);
    const matrix out = composed_matrix(&launch->out, s->b, h, row, rows, d->dim_v);
    const matrix p = composed_part_of(w, MATRIX_P, s, h, own.first, rows, 0, s->seq_k);

    const int threads = composed_threads_one();
    composed_scores(&at, (float)d->scale, &q, &k, &p);
    softmax_rows(w, &at, &p, lse);
    at.lse = lse;
    composed_rows(&at, 1, &p, &v, &out);
    composed_threads_restore(threads);
    if (wanted && sinks)
        sink_rows(wanted, lse, rows, launch->sinks[h]);
}

void composed_forward(const work *w)
{
    const fattn_desc *d = &w->problem->desc;
    fattn_run_units(w->launch->context, w->problem->lanes, d->batch * d->heads_q * w->blocks, unit, (void *)(uintptr_t)w);
}
