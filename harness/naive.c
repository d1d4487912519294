/*
 * Naive attention in three precisions; see naive.h. The loops are in naive_body.h.
 */
#include "naive.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "naive_features.h"

const char *const result_names[RESULT_COUNT] = {"out", "lse", "dq", "dk", "dv", "dbias", "dsinks"};

static double largest(const double *values, int64_t count)
{
    double result = 0;
    for (int64_t i = 0; i < count; i++)
        result = fmax(result, values[i]);
    return result;
}

bool result_wanted(const problem *p, result_kind kind)
{
    const bool forward = kind == RESULT_OUT || kind == RESULT_LSE;
    if (forward != (p->op == FATTN_OP_FORWARD))
        return false;
    return kind == RESULT_DBIAS ? p->dbias : kind == RESULT_DSINKS ? p->dsinks : true;
}

int64_t result_rows(const problem *p, result_kind kind)
{
    switch (kind) {
    case RESULT_DK:
    case RESULT_DV:
        return p->batch * (p->heads_q / p->group) * p->seq_k;
    case RESULT_DBIAS:
        return (p->dbias_dims & HAS_BATCH ? p->batch : 1) * (p->dbias_dims & HAS_HEAD ? p->heads_q : 1) *
               (p->dbias_dims & HAS_ROW ? p->seq_q : 1) * p->seq_k;
    case RESULT_DSINKS:
        return p->heads_q;
    default:
        return p->batch * p->heads_q * p->seq_q;
    }
}

int64_t result_cols(const problem *p, result_kind kind)
{
    switch (kind) {
    case RESULT_OUT:
    case RESULT_DV:
        return p->dim_v;
    case RESULT_DQ:
    case RESULT_DK:
        return p->dim;
    default:
        return 1;
    }
}

fattn_dtype result_type(const problem *p, result_kind kind)
{
    switch (kind) {
    case RESULT_OUT:
        return problem_out_type(p);
    case RESULT_LSE:
        return problem_lse_type(p);
    case RESULT_DSINKS:
        return FATTN_F32;
    default:
        return problem_grad_type(p);
    }
}

#define REAL    float
#define EXP     expf
#define EXP2    exp2f
#define LOG     logf
#define LOG2    log2f
#define TANH    tanhf
#define NAME(x) x##_float
#include "naive_body.h"

#define REAL    double
#define EXP     exp
#define EXP2    exp2
#define LOG     log
#define LOG2    log2
#define TANH    tanh
#define NAME(x) x##_double
#include "naive_body.h"

#define REAL    long double
#define EXP     expl
#define EXP2    exp2l
#define LOG     logl
#define LOG2    log2l
#define TANH    tanhl
#define NAME(x) x##_long
#include "naive_body.h"

bool results_make(results *r, const problem *p, bool units)
{
    *r = (results){0};
    for (int kind = 0; kind < RESULT_COUNT; kind++) {
        const int64_t rows = result_rows(p, (result_kind)kind);
        if (kind != RESULT_OUT && kind != RESULT_LSE && !result_wanted(p, (result_kind)kind))
            continue; /* out and lse always: backward starts from them */
        r->value[kind] = calloc((size_t)(rows * result_cols(p, (result_kind)kind)) + 1, sizeof(double));
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

static bool oracle(const problem *p, const geometry *g, const tensors *t, results *r, fattn_op op)
{
    return p->dtype == FATTN_F64 ? run_long(p, g, t, r, NAIVE_PLAIN, op) : run_double(p, g, t, r, NAIVE_PLAIN, op);
}

bool oracle_forward(const problem *p, const geometry *g, const tensors *t, results *r)
{
    return oracle(p, g, t, r, FATTN_OP_FORWARD);
}

bool oracle_backward(const problem *p, const geometry *g, const tensors *t, results *r)
{
    return oracle(p, g, t, r, FATTN_OP_BACKWARD);
}

bool naive_run(const problem *p, const geometry *g, const tensors *t, naive_form form, results *r)
{
    if (!results_make(r, p, false))
        return false;
    return p->dtype == FATTN_F64 ? run_double(p, g, t, r, form, p->op) : run_float(p, g, t, r, form, p->op);
}
