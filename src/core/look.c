/*
 * Calls for looking: what dropout keeps, and the scores and probabilities of one row, straight from the definitions.
 */
#include <inttypes.h>
#include <math.h>

#include "core/context.h"
#include "core/dropout.h"
#include "core/error.h"
#include "core/look.h"
#include "core/pool.h"
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

/* Turns scores into probabilities, -inf into 0; a row of nothing but -inf stays 0. */
static void normalise(double *score, int64_t n, double sink)
{
    double m = sink, sum = 0;
    for (int64_t j = 0; j < n; j++)
        m = fattn_larger_score(m, score[j]);
    for (int64_t j = 0; j < n; j++)
        sum += score[j] = fattn_looking_weight(score[j], m);
    if (m != -(double)INFINITY)
        sum += exp(sink - m);
    for (int64_t j = 0; j < n && m != -(double)INFINITY; j++)
        score[j] /= sum;
}

static void look_at_row(void *arg, int32_t lane, int64_t unit)
{
    const fattn_looking *l = arg;
    const fattn_desc *d = &l->problem->desc;
    const fattn_sequence s = fattn_sequence_of(l->problem, l->at, l->batch);
    const fattn_interval keys = fattn_looking_keys(&s, l->row);
    (void)lane, (void)unit;
    for (int64_t j = 0; j < d->seq_k; j++) {
        const double score = fattn_looking_score(l->problem, l->at, &s, keys, l->head, l->row, j);
        if (l->scores)
            l->scores[j] = score;
        if (l->probabilities)
            l->probabilities[j] = score;
    }
    if (l->probabilities)
        normalise(l->probabilities, d->seq_k, fattn_looking_sink(d, l->at, l->head));
}

fattn_status fattn_scores(const fattn_context *context, const fattn_desc *desc, const fattn_forward_args *args, int64_t batch,
                          int64_t head, int64_t row, double *scores, double *probabilities)
{
    fattn_problem problem;
    fattn_launch at;
    const fattn_desc *d = &problem.desc;
    fattn_status status = fattn_context_problem(context, desc, &problem);
    if (status != FATTN_OK || (status = check_row(d, batch, head, row)) ||
        (status = fattn_scores_args_read(&problem, args, &at)))
        return status;
    at.context = context;
    fattn_looking l = {&problem, &at, batch, head, row, scores, probabilities};
    if (context->backend)
        return context->backend->look(context, &l);
    fattn_run_units(context, 1, 1, look_at_row, &l); /* for its floating-point mode */
    return FATTN_OK;
}
