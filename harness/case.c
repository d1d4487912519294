/*
 * Test cases: the memory of a problem's tensors, its numbers, and the truth; see run.h.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fill.h"
#include "run.h"

static tensor shape(const problem *p, int64_t heads, int64_t rows, int64_t cols)
{
    return (tensor){.batch = p->batch, .heads = heads, .rows = rows, .cols = cols, .size = p->dtype == FATTN_F64 ? 8 : 4};
}

static void set_shapes(test_case *c)
{
    const problem *p = &c->p;
    const int64_t heads_kv = p->heads_q / p->group;
    tensors *t = &c->t;
    t->q = t->dq = shape(p, p->heads_q, p->seq_q, p->dim);
    t->k = t->dk = shape(p, heads_kv, p->seq_k, p->dim);
    t->v = t->dv = shape(p, heads_kv, p->seq_k, p->dim_v);
    t->out = t->dout = shape(p, p->heads_q, p->seq_q, p->dim_v);
    t->lse = shape(p, p->heads_q, p->seq_q, 1);
}

/* The layout of one tensor in a problem of layout `layout`. */
static layout_kind layout_of(const test_case *c, const tensor *t)
{
    const layout_kind layout = c->p.layout;
    if (t == &c->t.lse) /* contiguous by contract */
        return layout == LAYOUT_FENCE_HIGH || layout == LAYOUT_FENCE_LOW || layout == LAYOUT_OFFSET ? layout : LAYOUT_BHSD;
    if (layout == LAYOUT_BROADCAST_ROW && t != &c->t.k && t != &c->t.v)
        return LAYOUT_BHSD;
    if (layout == LAYOUT_BROADCAST && t == &c->t.out) /* backward's input out is what forward wrote */
        return LAYOUT_BHSD;
    return layout;
}

static bool add(test_case *c, bool input, tensor *const *list, int count)
{
    arena *a = input ? &c->inputs[c->inputs_count++] : &c->outputs[c->outputs_count++];
    return arena_make(a, layout_of(c, list[0]), input, list, count);
}

/* q, k and v, or their gradients: side by side where the layout says so and the lengths allow. */
static bool add_qkv(test_case *c, bool input, tensor *q, tensor *k, tensor *v)
{
    tensor *const all[] = {q, k, v};
    if (c->p.layout == LAYOUT_PACKED && c->p.seq_q == c->p.seq_k)
        return add(c, input, all, 3);
    if (c->p.layout == LAYOUT_PACKED)
        return add(c, input, all, 1) && add(c, input, all + 1, 2);
    return add(c, input, all, 1) && add(c, input, all + 1, 1) && add(c, input, all + 2, 1);
}

static bool add_out(test_case *c, bool input)
{
    tensor *const out[] = {&c->t.out}, *const lse[] = {&c->t.lse};
    return add(c, input, out, 1) && add(c, input, lse, 1);
}

static bool place(test_case *c)
{
    tensors *t = &c->t;
    tensor *const dout[] = {&t->dout};
    if (!add_qkv(c, true, &t->q, &t->k, &t->v))
        return false;
    if (c->p.op == FATTN_OP_FORWARD)
        return add_out(c, false);
    return add_out(c, true) && add(c, true, dout, 1) && add_qkv(c, false, &t->dq, &t->dk, &t->dv);
}

static void put_result(const tensor *t, const double *values)
{
    if (tensor_empty(t))
        return;
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t i = 0; i < t->rows; i++)
                for (int64_t d = 0; d < t->cols; d++)
                    tensor_put(t, tensor_row(t, b, h, i), d, *values++);
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

/* An infinite value where the naive computation leaves the type's range: nothing is demanded there. */
static void excuse_overflow(test_case *c, const results *naive, result_kind kind)
{
    const int64_t rows = result_rows(&c->p, kind), cols = result_cols(&c->p, kind);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t e = row * cols; e < (row + 1) * cols; e++)
            if (isfinite(c->truth.value[kind][e]) && !isfinite(naive->value[kind][e]))
                c->truth.unit[kind][row] = INFINITY;
}

/* What one form of the naive computation says about each result. */
static bool learn_from(test_case *c, naive_form form)
{
    results naive = {0};
    const bool ok = naive_run(&c->p, &c->t, form, &naive);
    const int first = c->p.op == FATTN_OP_FORWARD ? RESULT_OUT : RESULT_DQ;
    const int end = c->p.op == FATTN_OP_FORWARD ? RESULT_DQ : RESULT_COUNT;
    for (int kind = first; ok && kind < end; kind++) {
        c->worst[kind] = fmax(c->worst[kind], naive_worst(c, &naive, (result_kind)kind));
        excuse_overflow(c, &naive, (result_kind)kind);
    }
    results_free(&naive);
    return ok;
}

static bool find_truth(test_case *c)
{
    if (!oracle_run(&c->p, &c->t, &c->truth) || !results_make(&c->got, &c->p, false))
        return false;
    if (c->p.op == FATTN_OP_BACKWARD) {
        put_result(&c->t.out, c->truth.value[RESULT_OUT]);
        put_result(&c->t.lse, c->truth.value[RESULT_LSE]);
    }
    return learn_from(c, NAIVE_PLAIN) && learn_from(c, NAIVE_FOLDED);
}

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

bool case_make(test_case *c, const problem *p, char *reason, size_t size)
{
    memset(c, 0, sizeof *c);
    c->p = *p;
    c->desc = problem_desc(p);
    set_shapes(c);
    bool ok = place(c);
    if (ok) {
        fill_inputs(p, &c->t.q, &c->t.k, &c->t.v, p->op == FATTN_OP_BACKWARD ? &c->t.dout : NULL);
        ok = find_truth(c) && save_inputs(c);
    }
    if (!ok) {
        snprintf(reason, size, "not enough memory for this problem");
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
    free(c->inputs_copy);
    free(c->outputs_copy);
    results_free(&c->truth);
    results_free(&c->got);
    memset(c, 0, sizeof *c);
}
