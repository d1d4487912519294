/*
 * Judging the scores and probabilities that the library shows of a row: put together to out and lse, they are the truth's.
 */
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "naive_features.h"
#include "random.h"
#include "run.h"

enum { ROWS = 2, COLS_MAX = 512 };

/* Scores are in double, and so is this: errors are some hundred roundings, or subnormal. */
static bool close_to(double x, double truth, double unit)
{
    return !isfinite(truth) || !isfinite(unit) || fabs(x - truth) <= 512 * (0x1p-53 * (unit + fabs(truth)) + DBL_MIN);
}

static double value_of(const test_case *c, int64_t b, int64_t h, int64_t j, int64_t d)
{
    return key_get(&c->p, &c->g, &c->t.v, &c->t.v_scales, b, h / c->p.group, j, d);
}

static bool look_at(const test_case *c, int64_t b, int64_t h, int64_t i, const double *scores, const double *prob, verdict *v)
{
    const problem *p = &c->p;
    const int64_t row = (b * p->heads_q + h) * p->seq_q + i, n = c->g.seq_k[b];
    const double lse = c->truth.value[RESULT_LSE][row];
    double out[COLS_MAX] = {0}, total = 0;
    for (int64_t j = 0; j < p->seq_k; j++) {
        const bool kept = j < n && geometry_keeps(&c->g, p, b, i, j);
        if (!kept && (scores[j] != -(double)INFINITY || (prob[j] != 0 && !isnan(lse)))) /* a NaN row is NaN throughout */
            return verdict_fail(v, "key %" PRId64 " is not kept, but has score %g and probability %g", j, scores[j], prob[j]);
        total += isfinite(lse) ? exp(scores[j] - lse) : 0;
        const double m = dropout_factor(p->dropout, c->desc.seed, b * p->heads_q + h, i, j);
        for (int64_t d = 0; kept && d < p->dim_v && prob[j] != 0; d++)
            out[d] += m * prob[j] * value_of(c, b, h, j, d);
    }
    if (p->sinks && isfinite(lse))
        total += exp((double)((const float *)c->t.sinks.view.data)[h] - lse);
    if (isfinite(lse) && !close_to(total, 1, c->truth.unit[RESULT_LSE][row]))
        return verdict_fail(v, "scores sum to %.17g of exp(lse)", total);
    for (int64_t d = 0; d < p->dim_v; d++)
        if (!close_to(out[d], c->truth.value[RESULT_OUT][row * p->dim_v + d], c->truth.unit[RESULT_OUT][row]))
            return verdict_fail(
                v, "probabilities give out[b%" PRId64 " h%" PRId64 " i%" PRId64 " d%" PRId64 "] = %.17g instead of %.17g", b, h,
                i, d, out[d], c->truth.value[RESULT_OUT][row * p->dim_v + d]);
    return true;
}

verdict case_look(harness *h, const test_case *c)
{
    const problem *p = &c->p;
    const fattn_context *context = harness_context(h, NULL, 1);
    const fattn_forward_args args = case_forward_args(c);
    verdict v = {.passed = true};
    double *scores = malloc((size_t)(2 * p->seq_k + 1) * sizeof *scores);
    random_state r = random_start(p->seed, 62);
    for (int n = 0; scores && context && n < ROWS && p->batch > 0 && v.passed; n++) {
        const int64_t b = random_below(&r, p->batch), head = random_below(&r, p->heads_q);
        if (c->g.seq_q[b] == 0)
            continue;
        const int64_t i = random_below(&r, c->g.seq_q[b]);
        if (fattn_scores(context, &c->desc, &args, b, head, i, scores, scores + p->seq_k) != FATTN_OK)
            verdict_fail(&v, "fattn_scores: %s", fattn_last_error());
        else
            look_at(c, b, head, i, scores, scores + p->seq_k, &v);
    }
    free(scores);
    return v;
}
