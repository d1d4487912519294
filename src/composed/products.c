/*
 * Matrix products of the composed baseline, on oneDNN's sgemm: row-major, one thread.
 *
 * sgemm multiplies everything, also the zeros outside what is kept, and takes only rows that lie one after the other. Where
 * that is not what attention means (a NaN or infinity in an operand, which 0 would not silence) or not possible (strides less
 * than a row), the same product is a plain loop over what is kept. Also if sgemm finds no memory for its packing, and where a
 * sum has no terms.
 */
#include <math.h>
#include <oneapi/dnnl/dnnl.h>
#include <string.h>

#include "composed/composed.h"

/* From libgomp, on which oneDNN runs; its header is the compiler's own and not there for every compiler. */
extern int omp_get_max_threads(void);
extern void omp_set_num_threads(int count);

int composed_threads_one(void)
{
    const int before = omp_get_max_threads();
    omp_set_num_threads(1);
    return before;
}

void composed_threads_restore(int before)
{
    omp_set_num_threads(before);
}

matrix composed_matrix(const fattn_view *view, int64_t b, int64_t h, int64_t first, int64_t rows, int64_t columns)
{
    float *data = rows > 0 ? fattn_row(view, sizeof(float), b, h, first) : NULL; /* without elements there may be no tensor */
    return (matrix){data, rows, columns, view->stride_row};
}

fattn_interval composed_kept(const block *at, int64_t i, int64_t columns)
{
    fattn_interval kept = fattn_mask_row(&at->sequence->mask, at->row + i);
    if (at->lse && at->lse[i] == -(float)INFINITY)
        return (fattn_interval){0, 0};
    kept.lo -= at->key;
    kept.hi -= at->key;
    if (kept.lo < 0)
        kept.lo = 0;
    if (kept.hi > columns)
        kept.hi = columns;
    if (kept.hi <= kept.lo)
        kept.lo = kept.hi = 0;
    return kept;
}

static float *row(const matrix *m, int64_t i)
{
    return m->data + i * m->stride;
}

/* Whether sgemm can read or write it. */
static bool regular(const matrix *m)
{
    return m->rows == 1 || m->stride >= m->columns;
}

static int64_t leading(const matrix *m)
{
    return m->rows == 1 ? m->columns : m->stride;
}

/* No NaN and no infinity: an exponent of all ones is either. */
static bool all_finite(const matrix *m)
{
    for (int64_t i = 0; i < m->rows; i++) {
        const float *r = row(m, i);
        uint32_t found = 0;
        for (int64_t x = 0; x < m->columns; x++) {
            uint32_t bits;
            memcpy(&bits, &r[x], sizeof bits);
            found |= (bits & 0x7f800000) == 0x7f800000;
        }
        if (found)
            return false;
    }
    return true;
}

/* y += a x */
static void add_scaled(float *y, float a, const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        y[i] += a * x[i];
}

/* ---------------------------------------------------------------------------------------------------------- c = a b^T */

static void scores_plain(const block *at, float alpha, const matrix *a, const matrix *b, const matrix *c)
{
    for (int64_t i = 0; i < c->rows; i++) {
        const fattn_interval kept = composed_kept(at, i, c->columns);
        for (int64_t j = kept.lo; j < kept.hi; j++) {
            const float *x = row(a, i), *y = row(b, j);
            float sum = 0;
            for (int64_t d = 0; d < a->columns; d++)
                sum += x[d] * y[d];
            row(c, i)[j] = alpha * sum;
        }
    }
}

void composed_scores(const block *at, float alpha, const matrix *a, const matrix *b, const matrix *c)
{
    if (c->columns == 0)
        return;
    if (!regular(a) || !regular(b) ||
        dnnl_sgemm('N', 'T', c->rows, c->columns, a->columns, alpha, a->data, leading(a), b->data, leading(b), 0, c->data,
                   leading(c)) != dnnl_success)
        scores_plain(at, alpha, a, b, c);
}

/* ------------------------------------------------------------------------------------------------------------ c = p b */

static void rows_plain(const block *at, float alpha, const matrix *p, const matrix *b, const matrix *c)
{
    for (int64_t i = 0; i < c->rows; i++) {
        const fattn_interval kept = composed_kept(at, i, p->columns);
        memset(row(c, i), 0, (size_t)c->columns * sizeof(float));
        for (int64_t j = kept.lo; j < kept.hi; j++)
            add_scaled(row(c, i), alpha * row(p, i)[j], row(b, j), c->columns);
    }
}

void composed_rows(const block *at, float alpha, const matrix *p, const matrix *b, const matrix *c)
{
    if (p->columns == 0 || !regular(b) || !regular(c) || !all_finite(b) ||
        dnnl_sgemm('N', 'N', c->rows, c->columns, p->columns, alpha, p->data, leading(p), b->data, leading(b), 0, c->data,
                   leading(c)) != dnnl_success)
        rows_plain(at, alpha, p, b, c);
}

/* ---------------------------------------------------------------------------------------------------------- c = p^T a */

static void columns_plain(const block *at, float alpha, const matrix *p, const matrix *a, const matrix *c, bool add)
{
    for (int64_t j = 0; !add && j < c->rows; j++)
        memset(row(c, j), 0, (size_t)c->columns * sizeof(float));
    for (int64_t i = 0; i < p->rows; i++) {
        const fattn_interval kept = composed_kept(at, i, p->columns);
        for (int64_t j = kept.lo; j < kept.hi; j++)
            add_scaled(row(c, j), alpha * row(p, i)[j], row(a, i), c->columns);
    }
}

void composed_columns(const block *at, float alpha, const matrix *p, const matrix *a, const matrix *c, bool add)
{
    if (p->rows == 0 || !regular(a) || !regular(c) || !all_finite(a) ||
        dnnl_sgemm('T', 'N', c->rows, c->columns, p->rows, alpha, p->data, leading(p), a->data, leading(a), add ? 1 : 0,
                   c->data, leading(c)) != dnnl_success)
        columns_plain(at, alpha, p, a, c, add);
}
