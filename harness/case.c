/*
 * Test cases: a problem's numbers and the truth; see run.h. Its memory is in case_tensors.c.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fill.h"
#include "random.h"
#include "run.h"

/* --------------------------------------------------------------------------------------------------------------- truth */

/* Writes out or lse where backward reads it, rounded to its type. */
static void put_result(const test_case *c, const tensor *t, const double *values)
{
    const problem *p = &c->p;
    for (int64_t bh = 0; bh < p->batch * p->heads_q && !tensor_empty(t); bh++)
        for (int64_t i = 0; i < c->g.seq_q[bh / p->heads_q]; i++)
            for (int64_t d = 0; d < t->cols; d++)
                tensor_put(t, query_row(p, &c->g, t, bh / p->heads_q, bh % p->heads_q, i), d,
                           values[(bh * p->seq_q + i) * t->cols + d]);
}

/* Turns out and lse into those of more keys than the problem has: a larger lse, and an out that other values have moved. */
static void add_other_keys(test_case *c)
{
    const problem *p = &c->p;
    random_state r = random_start(p->seed, 60);
    for (int64_t bh = 0; bh < p->batch * p->heads_q; bh++)
        for (int64_t i = 0; i < p->seq_q; i++) {
            double *lse = &c->truth.value[RESULT_LSE][bh * p->seq_q + i];
            const double other = 2 * random_normal(&r); /* the other keys' lse; it is the row's if there is none else */
            double *out = &c->truth.value[RESULT_OUT][(bh * p->seq_q + i) * p->dim_v];
            *lse = isinf(*lse) && *lse < 0 ? other : *lse + log1p(exp(other));
            for (int64_t d = 0; d < p->dim_v; d++)
                out[d] = 0.7 * out[d] + 0.3 * random_normal(&r);
        }
}

/* The error of the naive computation in the worst row, in units. */
static double naive_worst(const test_case *c, const results *naive, result_kind kind)
{
    const int64_t rows = result_rows(&c->p, kind), cols = result_cols(&c->p, kind);
    const double eps = c->p.dtype == FATTN_F64 ? 0x1p-53 : 0x1p-24;
    double worst = 0;
    for (int64_t row = 0; row < rows; row++) {
        const double unit = c->truth.unit[kind][row] * eps;
        for (int64_t e = row * cols; e < (row + 1) * cols; e++) {
            const double error = fabs(naive->value[kind][e] - c->truth.value[kind][e]);
            if (isfinite(error) && unit > 0 && isfinite(unit))
                worst = fmax(worst, error / unit);
        }
    }
    return worst;
}

/* An infinite value where the naive computation, or rounding to the result's type, leaves the range: nothing is demanded. */
static void excuse_overflow(test_case *c, const results *naive, result_kind kind)
{
    const int64_t rows = result_rows(&c->p, kind), cols = result_cols(&c->p, kind);
    const fattn_dtype type = result_type(&c->p, kind);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t e = row * cols; e < (row + 1) * cols; e++)
            if (isfinite(c->truth.value[kind][e]) && !isfinite(type_round(type, naive->value[kind][e])))
                c->truth.unit[kind][row] = INFINITY;
}

/* What one form of the naive computation says about each result. */
static bool learn_from(test_case *c, naive_form form)
{
    results naive = {0};
    const bool ok = naive_run(&c->p, &c->g, &c->t, form, &naive);
    for (int kind = 0; ok && kind < RESULT_COUNT; kind++)
        if (result_wanted(&c->p, (result_kind)kind)) {
            c->worst[kind] = fmax(c->worst[kind], naive_worst(c, &naive, (result_kind)kind));
            excuse_overflow(c, &naive, (result_kind)kind);
        }
    results_free(&naive);
    return ok;
}

static bool find_truth(test_case *c)
{
    if (!results_make(&c->truth, &c->p, true) || !results_make(&c->got, &c->p, false) ||
        !oracle_forward(&c->p, &c->g, &c->t, &c->truth))
        return false;
    if (c->p.op == FATTN_OP_BACKWARD) {
        if (c->p.part)
            add_other_keys(c);
        put_result(c, &c->t.out, c->truth.value[RESULT_OUT]);
        put_result(c, &c->t.lse, c->truth.value[RESULT_LSE]);
        if (!oracle_backward(&c->p, &c->g, &c->t, &c->truth))
            return false;
    }
    return learn_from(c, NAIVE_PLAIN) && learn_from(c, NAIVE_FOLDED);
}

/* -------------------------------------------------------------------------------------------------------------- making */

static bool save_inputs(test_case *c)
{
    size_t in = 0, out = 0;
    for (int i = 0; i < c->inputs_count; i++)
        in += arena_bytes(&c->inputs[i]);
    for (int i = 0; i < c->outputs_count; i++)
        out += arena_bytes(&c->outputs[i]);
    c->inputs_copy = malloc(in + 1);
    c->outputs_copy = malloc(out + 1);
    if (!c->inputs_copy || !c->outputs_copy)
        return false;
    unsigned char *to = c->inputs_copy;
    for (int i = 0; i < c->inputs_count; i++) {
        arena_save(&c->inputs[i], to);
        to += arena_bytes(&c->inputs[i]);
    }
    return true;
}

/* The sequence that is run alone: with dropout only the first draws the same elements. -1: none, as where it would have other
 * strides alone. */
static int64_t choose_single(const problem *p, const geometry *g)
{
    if (p->batch < 2 || p->layout == LAYOUT_FAR || p->layout == LAYOUT_HSBD)
        return -1;
    if (p->dropout > 0)
        return g->seq_q[0] + g->seq_k[0] > 0 ? 0 : -1;
    random_state r = random_start(p->seed, 61);
    for (int tries = 0; tries < 8; tries++) {
        const int64_t b = random_below(&r, p->batch);
        if (g->seq_q[b] > 0 && g->seq_k[b] > 0)
            return b;
    }
    return -1;
}

static bool add_single(test_case *c)
{
    c->single_b = choose_single(&c->p, &c->g);
    if (c->single_b < 0)
        return true;
    c->single = calloc(1, sizeof *c->single);
    return c->single && case_make_single(c, c->single_b, c->single);
}

bool case_make(test_case *c, const problem *p, char *reason, size_t size)
{
    memset(c, 0, sizeof *c);
    c->p = *p;
    c->desc = problem_desc(p);
    bool ok = geometry_make(&c->g, p) && case_place(c);
    if (ok) {
        fill_inputs(p, &c->g, &c->t);
        ok = find_truth(c) && save_inputs(c) && add_single(c);
    }
    if (!ok) {
        snprintf(reason, size, "no memory for this problem");
        case_free(c);
    }
    return ok;
}

void case_free(test_case *c)
{
    for (int i = 0; i < c->inputs_count; i++)
        arena_free(&c->inputs[i]);
    for (int i = 0; i < c->outputs_count; i++)
        arena_free(&c->outputs[i]);
    if (c->single) {
        case_free(c->single);
        free(c->single);
    }
    free(c->inputs_copy);
    free(c->outputs_copy);
    free(c->real_q);
    free(c->real_k);
    free(c->real_bias);
    results_free(&c->truth);
    results_free(&c->got);
    geometry_free(&c->g);
    memset(c, 0, sizeof *c);
}

/* -------------------------------------------------------------------------------------------------- one sequence alone */

static void copy_queries(const test_case *from, const tensor *source, const test_case *to, const tensor *target)
{
    const int64_t b = from->single_b;
    for (int64_t h = 0; h < source->heads && !tensor_empty(source); h++)
        for (int64_t i = 0; i < to->g.seq_q[0]; i++)
            memcpy(query_row(&to->p, &to->g, target, 0, h, i), query_row(&from->p, &from->g, source, b, h, i),
                   (size_t)source->cols * source->size);
}

static void copy_keys(const test_case *from, const tensor *source, const test_case *to, const tensor *target)
{
    const int64_t b = from->single_b;
    for (int64_t h = 0; h < source->heads && !tensor_empty(source); h++)
        for (int64_t j = 0; j < to->g.seq_k[0]; j++)
            memcpy(key_row(&to->p, &to->g, target, 0, h, j), key_row(&from->p, &from->g, source, b, h, j),
                   (size_t)source->cols * source->size);
}

static void copy_bias(const test_case *from, const test_case *to)
{
    const tensor *t = &to->t.bias;
    for (int64_t h = 0; h < t->heads && !tensor_empty(t); h++)
        for (int64_t i = 0; i < t->rows && (t->rows == 1 || i < to->g.seq_q[0]); i++)
            memcpy(tensor_row(t, 0, h, i), tensor_row(&from->t.bias, from->t.bias.batch > 1 ? from->single_b : 0, h, i),
                   (size_t)t->cols * t->size);
}

bool case_make_single(const test_case *c, int64_t b, test_case *single)
{
    const tensors *from = &c->t, *to = &single->t;
    single->p = c->p;
    single->p.batch = 1;
    single->desc = c->desc;
    single->desc.batch = 1;
    if (!geometry_single(&single->g, &single->p, &c->g, b) || !case_place(single))
        return false;
    single->desc.total_q = single->g.total_q;
    single->desc.total_k = single->g.total_k;
    single->desc.pages = single->g.pages;
    copy_queries(c, &from->q, single, &to->q);
    copy_keys(c, &from->k, single, &to->k);
    copy_keys(c, &from->v, single, &to->v);
    if (c->p.op == FATTN_OP_BACKWARD) {
        copy_queries(c, &from->out, single, &to->out);
        copy_queries(c, &from->lse, single, &to->lse);
        copy_queries(c, &from->dout, single, &to->dout);
    }
    if (c->p.dlse)
        copy_queries(c, &from->dlse, single, &to->dlse);
    if (c->p.kv_i8) {
        copy_keys(c, &from->k_scales, single, &to->k_scales);
        copy_keys(c, &from->v_scales, single, &to->v_scales);
    }
    if (c->p.bias)
        copy_bias(c, single);
    for (int64_t h = 0; h < c->p.heads_q && (c->p.alibi || c->p.sinks); h++) {
        if (c->p.alibi)
            ((float *)to->slopes.view.data)[h] = ((const float *)from->slopes.view.data)[h];
        if (c->p.sinks)
            ((float *)to->sinks.view.data)[h] = ((const float *)from->sinks.view.data)[h];
    }
    return save_inputs(single);
}

static bool same_queries(const test_case *c, const tensor *all, const tensor *alone)
{
    const test_case *single = c->single;
    for (int64_t h = 0; h < all->heads && !tensor_empty(alone); h++)
        for (int64_t i = 0; i < single->g.seq_q[0]; i++)
            if (memcmp(query_row(&single->p, &single->g, alone, 0, h, i), query_row(&c->p, &c->g, all, c->single_b, h, i),
                       (size_t)all->cols * all->size) != 0)
                return false;
    return true;
}

static bool same_keys(const test_case *c, const tensor *all, const tensor *alone)
{
    const test_case *single = c->single;
    for (int64_t h = 0; h < all->heads && !tensor_empty(alone); h++)
        for (int64_t j = 0; j < single->g.seq_k[0]; j++)
            if (memcmp(key_row(&single->p, &single->g, alone, 0, h, j), key_row(&c->p, &c->g, all, c->single_b, h, j),
                       (size_t)all->cols * all->size) != 0)
                return false;
    return true;
}

bool case_single_same(const test_case *c, result_kind *kind)
{
    const tensors *all = &c->t, *alone = &c->single->t;
    if (c->p.op == FATTN_OP_FORWARD) {
        *kind = RESULT_OUT;
        if (!same_queries(c, &all->out, &alone->out))
            return false;
        *kind = RESULT_LSE;
        return same_queries(c, &all->lse, &alone->lse);
    }
    *kind = RESULT_DQ;
    if (!same_queries(c, &all->dq, &alone->dq))
        return false;
    *kind = RESULT_DK;
    if (!same_keys(c, &all->dk, &alone->dk))
        return false;
    *kind = RESULT_DV;
    return same_keys(c, &all->dv, &alone->dv);
}
