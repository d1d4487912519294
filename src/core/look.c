/*
 * Calls for looking: what dropout keeps, and the scores and probabilities of one row, straight from the definitions.
 */
#include <inttypes.h>
#include <math.h>

#include "core/dropout.h"
#include "core/error.h"
#include "core/pool.h"
#include "core/sequence.h"
#include "core/validate.h"

static fattn_status check_row(const fattn_desc *d, int64_t batch, int64_t head, int64_t row)
{
    const struct {
        const char *name, *size_name;
        int64_t value, size;
    } all[] = {{"batch", "batch", batch, d->batch}, {"head", "heads_q", head, d->heads_q}, {"row", "seq_q", row, d->seq_q}};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].value < 0 || all[i].value >= all[i].size)
            return fattn_fail(FATTN_ERROR_ARGUMENT, "%s is %" PRId64 ", outside the %" PRId64 " of desc.%s", all[i].name,
                              all[i].value, all[i].size, all[i].size_name);
    return FATTN_OK;
}

fattn_status fattn_dropout_keep(const fattn_desc *desc, int64_t batch, int64_t head, int64_t row, uint8_t *keep)
{
    fattn_problem problem;
    const fattn_desc *d = &problem.desc;
    fattn_status status = fattn_desc_read(desc, &problem);
    if (status != FATTN_OK || (status = check_row(d, batch, head, row)))
        return status;
    if (!keep && d->seq_k > 0)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "keep is NULL");
    const fattn_dropout dropout = fattn_dropout_of(d);
    for (int64_t j = 0; j < d->seq_k; j++)
        keep[j] = d->dropout == 0 || fattn_dropout_keeps(&dropout, batch * d->heads_q + head, row, j);
    return FATTN_OK;
}

/* q . k_j in double, times scale. */
static double product(const fattn_problem *p, const fattn_launch *at, const fattn_sequence *s, int64_t h, int64_t i, int64_t j)
{
    const fattn_desc *d = &p->desc;
    const int64_t h_kv = h / p->group;
    const void *q = fattn_query_row(&at->q, fattn_dtype_size(d->dtype), s, h, i);
    const void *k = fattn_key_row(p, at, &at->k, fattn_dtype_size(d->kv_dtype), s, h_kv, j);
    double sum = 0;
    for (int64_t x = 0; x < d->dim; x++)
        sum += fattn_element(q, d->dtype, x) * fattn_element(k, d->kv_dtype, x);
    return sum * d->scale * (d->kv_dtype == FATTN_I8 ? (double)at->k_scales[fattn_scale_index(p, at, s, h_kv, j)] : 1);
}

/* A NaN wins over everything. */
static double larger(double a, double b)
{
    return isnan(a) || a > b ? a : b;
}

/* Turns scores into probabilities, -inf into 0; a row of nothing but -inf stays 0. */
static void normalise(double *score, int64_t n, double sink)
{
    double m = sink, sum = 0;
    for (int64_t j = 0; j < n; j++)
        m = larger(m, score[j]);
    for (int64_t j = 0; j < n; j++)
        sum += score[j] = score[j] == -(double)INFINITY ? 0 : exp(score[j] - m);
    if (m != -(double)INFINITY)
        sum += exp(sink - m);
    for (int64_t j = 0; j < n && m != -(double)INFINITY; j++)
        score[j] /= sum;
}

/* One row that is looked at. */
typedef struct looking {
    const fattn_problem *problem;
    const fattn_launch *at;
    int64_t batch, head, row;
    double *scores, *probabilities;
} looking;

static void look_at_row(void *arg, int32_t lane, int64_t unit)
{
    const looking *l = arg;
    const fattn_desc *d = &l->problem->desc;
    const fattn_sequence s = fattn_sequence_of(l->problem, l->at, l->batch);
    const fattn_interval kept = l->row < s.seq_q ? fattn_mask_row(&s.mask, l->row) : (fattn_interval){0, 0};
    (void)lane, (void)unit;
    for (int64_t j = 0; j < d->seq_k; j++) {
        double score = -(double)INFINITY;
        if (kept.lo <= j && j < kept.hi)
            score = fattn_score(l->problem, l->at, &s, l->head, l->row, j, product(l->problem, l->at, &s, l->head, l->row, j));
        if (l->scores)
            l->scores[j] = score;
        if (l->probabilities)
            l->probabilities[j] = score;
    }
    if (l->probabilities)
        normalise(l->probabilities, d->seq_k, d->flags & FATTN_WITH_SINKS ? (double)l->at->sinks[l->head] : -(double)INFINITY);
}

fattn_status fattn_scores(const fattn_context *context, const fattn_desc *desc, const fattn_forward_args *args, int64_t batch,
                          int64_t head, int64_t row, double *scores, double *probabilities)
{
    fattn_problem problem = {.lanes = 1};
    fattn_launch at;
    const fattn_desc *d = &problem.desc;
    if (!context)
        return fattn_fail(FATTN_ERROR_ARGUMENT, "context is NULL");
    fattn_status status = fattn_desc_read(desc, &problem);
    if (status != FATTN_OK || (status = check_row(d, batch, head, row)) ||
        (status = fattn_scores_args_read(&problem, args, &at)))
        return status;
    looking l = {&problem, &at, batch, head, row, scores, probabilities};
    fattn_run_units(context, 1, 1, look_at_row, &l); /* for its floating-point mode */
    return FATTN_OK;
}
