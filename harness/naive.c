/*
 * Naive attention in three precisions; see naive.h. The loops are in naive_body.h.
 */
#include "naive.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *const result_names[RESULT_COUNT] = {"out", "lse", "dq", "dk", "dv"};

static double largest(const double *values, int64_t count)
{
    double result = 0;
    for (int64_t i = 0; i < count; i++)
        result = fmax(result, values[i]);
    return result;
}

#define REAL    float
#define EXP     expf
#define EXP2    exp2f
#define LOG     logf
#define LOG2    log2f
#define NAME(x) x##_float
#include "naive_body.h"

#define REAL    double
#define EXP     exp
#define EXP2    exp2
#define LOG     log
#define LOG2    log2
#define NAME(x) x##_double
#include "naive_body.h"

#define REAL    long double
#define EXP     expl
#define EXP2    exp2l
#define LOG     logl
#define LOG2    log2l
#define NAME(x) x##_long
#include "naive_body.h"

int64_t result_rows(const problem *p, result_kind kind)
{
    if (kind == RESULT_DK || kind == RESULT_DV)
        return p->batch * (p->heads_q / p->group) * p->seq_k;
    return p->batch * p->heads_q * p->seq_q;
}

int64_t result_cols(const problem *p, result_kind kind)
{
    return kind == RESULT_LSE ? 1 : kind == RESULT_OUT || kind == RESULT_DV ? p->dim_v : p->dim;
}

bool results_make(results *r, const problem *p, bool units)
{
    const int count = p->op == FATTN_OP_FORWARD ? RESULT_DQ : RESULT_COUNT;
    *r = (results){0};
    for (int kind = 0; kind < count; kind++) {
        const int64_t rows = result_rows(p, kind);
        r->value[kind] = calloc((size_t)(rows * result_cols(p, kind)) + 1, sizeof(double));
        if (units)
            r->unit[kind] = calloc((size_t)rows + 1, sizeof(double));
        if (!r->value[kind] || (units && !r->unit[kind]))
            return false;
    }
    return true;
}

void results_free(results *r)
{
    for (int kind = 0; kind < RESULT_COUNT; kind++) {
        free(r->value[kind]);
        free(r->unit[kind]);
    }
    *r = (results){0};
}

bool oracle_run(const problem *p, const tensors *t, results *r)
{
    if (!results_make(r, p, true))
        return false;
    return p->dtype == FATTN_F64 ? run_long(p, t, r, NAIVE_PLAIN, false) : run_double(p, t, r, NAIVE_PLAIN, false);
}

bool naive_run(const problem *p, const tensors *t, naive_form form, results *r)
{
    if (!results_make(r, p, false))
        return false;
    return p->dtype == FATTN_F64 ? run_double(p, t, r, form, true) : run_float(p, t, r, form, true);
}
