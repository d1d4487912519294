/*
 * Linear layer: out = x W^T, or out = residual + x W^T         x [rows, in], W [out, in], out [rows, out]
 *
 * Backward: dx = dout W,  dW += dout^T x,  dresidual = dout, which costs nothing where the tape gives both the same memory.
 */
#include "train/gemm.h"
#include "train/layers/chunks.h"
#include "train/layers/layers.h"
#include <string.h>

typedef struct linear {
    matrix weight;
} linear;

static void copy(float *to, const float *from, int64_t rows, int64_t cols)
{
#pragma omp parallel for schedule(static) if (rows * cols > PARALLEL_WORK)
    for (int64_t r = 0; r < rows; r++)
        memcpy(to + r * cols, from + r * cols, (size_t)cols * sizeof *to);
}

static void add(float *to, const float *from, int64_t rows, int64_t cols)
{
#pragma omp parallel for schedule(static) if (rows * cols > PARALLEL_WORK)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            to[r * cols + c] += from[r * cols + c];
}

void linear_forward(float *out, const float *x, int64_t rows, const matrix *weight, const float *residual)
{
    if (residual && residual != out)
        copy(out, residual, rows, weight->rows);
    gemm(false, true, rows, weight->rows, weight->cols, x, weight->cols, weight->data, weight->cols, residual ? 1.0f : 0.0f,
         out, weight->rows);
}

static bool forward(node *n)
{
    const linear *l = n->state;
    linear_forward(n->out->data, n->in[0]->data, n->out->rows, &l->weight, n->in[1] ? n->in[1]->data : NULL);
    return true;
}

static bool backward(node *n)
{
    const matrix *w = &((const linear *)n->state)->weight;
    const tensor *x = n->in[0], *residual = n->in[1];
    const float *dout = n->out->grad;
    int64_t rows = x->rows, in = w->cols, out = w->rows;
    gemm(false, false, rows, in, out, dout, out, w->data, in, n->accumulate[0] ? 1.0f : 0.0f, x->grad, in);
    gemm(true, false, out, in, rows, dout, out, x->data, in, 1.0f, w->grad, in);
    if (residual && residual->grad != dout)
        (n->accumulate[1] ? add : copy)(residual->grad, dout, rows, out);
    return true;
}

tensor *layer_linear_residual(tape *t, tensor *x, const matrix *weight, tensor *residual)
{
    node *n = tape_node(t, "linear", sizeof(linear));
    ((linear *)n->state)->weight = *weight;
    n->in[0] = x;
    n->in[1] = residual;
    n->out = tape_tensor(t, x->rows, weight->rows);
    n->reads_in[0] = true;
    n->passes_gradient = residual ? 1 : -1;
    n->forward = forward;
    n->backward = backward;
    return n->out;
}

tensor *layer_linear(tape *t, tensor *x, const matrix *weight)
{
    return layer_linear_residual(t, x, weight, NULL);
}
