/*
 * RMS norm of every row: u = x s, out = u w,  s = 1 / sqrt(mean(x^2) + eps)      x, out [rows, cols], w [cols], s [rows]
 *
 * Backward, with g = dout w:  dx = s (g - u mean(g u)),  dw += sum over rows of dout u.
 */
#include "train/layers/chunks.h"
#include "train/layers/layers.h"
#include <math.h>
#include <string.h>

typedef struct rmsnorm {
    const parameter *weight;
    float eps;
} rmsnorm;

void rmsnorm_forward(float *out, float *rstd, const float *x, int64_t rows, int64_t cols, const float *weight, float eps)
{
#pragma omp parallel for schedule(static) if (rows * cols > PARALLEL_WORK)
    for (int64_t r = 0; r < rows; r++) {
        const float *xr = x + r * cols;
        float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
        for (int64_t c = 0; c < cols; c++)
            squares += xr[c] * xr[c];
        float s = 1.0f / sqrtf(squares / (float)cols + eps);
        for (int64_t c = 0; c < cols; c++)
            out[r * cols + c] = xr[c] * s * weight[c];
        if (rstd)
            rstd[r] = s;
    }
}

static bool forward(node *n)
{
    const rmsnorm *l = n->state;
    const tensor *x = n->in[0];
    rmsnorm_forward(n->out->data, n->saved, x->data, x->rows, x->cols, l->weight->data, l->eps);
    return true;
}

static void backward_row(float *restrict dx, bool accumulate, float *restrict dw, const float *restrict dout,
                         const float *restrict x, const float *restrict w, float s, int64_t cols)
{
    float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
    for (int64_t c = 0; c < cols; c++)
        dot += dout[c] * w[c] * x[c];
    float slope = dot * s * s / (float)cols; /* mean(g u) s, to be multiplied with x s */
    for (int64_t c = 0; c < cols; c++)
        dw[c] += dout[c] * x[c] * s;
    if (accumulate)
        for (int64_t c = 0; c < cols; c++)
            dx[c] += s * (dout[c] * w[c] - slope * x[c]);
    else
        for (int64_t c = 0; c < cols; c++)
            dx[c] = s * (dout[c] * w[c] - slope * x[c]);
}

static bool backward(node *n)
{
    const rmsnorm *l = n->state;
    const tensor *x = n->in[0];
    const float *rstd = n->saved;
    float *partial = n->workspace; /* [ROW_CHUNKS, cols] */
    int64_t cols = x->cols;
#pragma omp parallel for schedule(static) if (x->rows * cols > PARALLEL_WORK)
    for (int64_t chunk = 0; chunk < ROW_CHUNKS; chunk++) {
        float *dw = partial + chunk * cols;
        memset(dw, 0, (size_t)cols * sizeof *dw);
        for (int64_t r = chunk_begin(x->rows, chunk); r < chunk_begin(x->rows, chunk + 1); r++)
            backward_row(x->grad + r * cols, n->accumulate[0], dw, n->out->grad + r * cols, x->data + r * cols, l->weight->data,
                         rstd[r], cols);
    }
    add_chunks(l->weight->grad, partial, cols);
    return true;
}

tensor *layer_rmsnorm(tape *t, tensor *x, const parameter *weight, double eps)
{
    node *n = tape_node(t, "rmsnorm", sizeof(rmsnorm));
    rmsnorm *l = n->state;
    l->weight = weight;
    l->eps = (float)eps;
    n->in[0] = x;
    n->out = tape_tensor(t, x->rows, x->cols);
    n->reads_in[0] = true;
    n->saved_bytes = (size_t)x->rows * sizeof(float);
    n->backward_workspace = (size_t)(ROW_CHUNKS * x->cols) * sizeof(float);
    n->forward = forward;
    n->backward = backward;
    return n->out;
}
