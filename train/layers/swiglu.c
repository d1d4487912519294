/*
 * SwiGLU: out = g sigmoid(g) u        x = [g | u] [rows, 2 ffn], out [rows, ffn]
 *
 * Backward, with s = sigmoid(g):  dg = dout u s (1 + g (1 - s)),  du = dout g s.
 */
#include "train/fastmath.h"
#include "train/layers/chunks.h"
#include "train/layers/layers.h"
#include <assert.h>

void swiglu_forward(float *out, const float *x, int64_t rows, int64_t ffn)
{
#pragma omp parallel for schedule(static) if (rows * ffn > PARALLEL_WORK)
    for (int64_t r = 0; r < rows; r++) {
        const float *restrict gate = x + r * 2 * ffn, *restrict up = gate + ffn;
        float *restrict y = out + r * ffn;
        for (int64_t c = 0; c < ffn; c++)
            y[c] = gate[c] * sigmoid(gate[c]) * up[c];
    }
}

static bool forward(node *n)
{
    swiglu_forward(n->out->data, n->in[0]->data, n->out->rows, n->out->cols);
    return true;
}

static void backward_row(float *restrict dgate, float *restrict dup, const float *restrict dout, const float *restrict gate,
                         const float *restrict up, int64_t ffn)
{
    for (int64_t c = 0; c < ffn; c++) {
        float s = sigmoid(gate[c]), silu = gate[c] * s;
        dgate[c] = dout[c] * up[c] * (s + silu * (1.0f - s));
        dup[c] = dout[c] * silu;
    }
}

static bool backward(node *n)
{
    int64_t rows = n->out->rows, ffn = n->out->cols;
    const float *x = n->in[0]->data;
    float *dx = n->in[0]->grad;
    assert(!n->accumulate[0]); /* nobody else reads gate and up */
#pragma omp parallel for schedule(static) if (rows * ffn > PARALLEL_WORK)
    for (int64_t r = 0; r < rows; r++)
        backward_row(dx + r * 2 * ffn, dx + r * 2 * ffn + ffn, n->out->grad + r * ffn, x + r * 2 * ffn, x + r * 2 * ffn + ffn,
                     ffn);
    return true;
}

tensor *layer_swiglu(tape *t, tensor *x)
{
    node *n = tape_node(t, "swiglu", 0);
    n->in[0] = x;
    n->out = tape_tensor(t, x->rows, x->cols / 2);
    n->reads_in[0] = true;
    n->forward = forward;
    n->backward = backward;
    return n->out;
}
