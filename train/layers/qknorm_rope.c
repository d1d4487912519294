/*
 * Norm and rotation of queries or keys, for every row and head (D = dim, x a head's D numbers at position p):
 *
 *     u = x s w,   s = 1 / sqrt(mean(x^2) + eps)                       w [D], shared by the heads
 *     out_i       = u_i cos(p f_i) - u_{i+D/2} sin(p f_i)              i < D/2, f_i = theta^(-2i/D)
 *     out_{i+D/2} = u_{i+D/2} cos(p f_i) + u_i sin(p f_i)
 *
 * x and out [rows, heads * D]; row b*seq + i is at position i, so positions restart in every sequence.
 *
 * Backward turns dout back by the same angle, g = R^T dout, and goes on as an RMS norm does: with h = g w and xs = x s,
 * dx = s (h - xs mean(h xs)) and dw += g xs.
 *
 * The loops handle both halves at once; `omp simd` tells the compiler that the halves do not overlap.
 */
#include "train/layers/chunks.h"
#include "train/layers/layers.h"
#include <assert.h>
#include <math.h>
#include <string.h>

enum { MAX_DIM = 512 };

typedef struct qknorm_rope {
    const parameter *weight;
    rotation rotate;
    float eps;
} qknorm_rope;

static float head_forward(float *restrict out, const float *restrict x, const float *restrict w, const float *restrict cosine,
                          const float *restrict sine, int64_t dim, float eps)
{
    int64_t half = dim / 2;
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (int64_t d = 0; d < dim; d++)
        squares += x[d] * x[d];
    float s = 1.0f / sqrtf(squares / (float)dim + eps);
#pragma omp simd
    for (int64_t d = 0; d < half; d++) {
        float u1 = x[d] * s * w[d], u2 = x[d + half] * s * w[d + half];
        out[d] = u1 * cosine[d] - u2 * sine[d];
        out[d + half] = u2 * cosine[d] + u1 * sine[d];
    }
    return s;
}

void qknorm_rope_forward(float *out, int64_t out_stride, float *rstd, const float *x, int64_t stride, int64_t rows,
                         const float *weight, const rotation *r, int64_t first, float eps)
{
    int64_t dim = r->dim, half = dim / 2;
#pragma omp parallel for schedule(static) if (rows * r->heads * dim > PARALLEL_WORK)
    for (int64_t row = 0; row < rows; row++) {
        int64_t position = first + row % r->seq;
        for (int64_t h = 0; h < r->heads; h++) {
            float s = head_forward(out + row * out_stride + h * dim, x + row * stride + h * dim, weight,
                                   r->cos + position * half, r->sin + position * half, dim, eps);
            if (rstd)
                rstd[row * r->heads + h] = s;
        }
    }
}

static bool forward(node *n)
{
    const qknorm_rope *l = n->state;
    const tensor *x = n->in[0];
    qknorm_rope_forward(n->out->data, n->out->stride, n->saved, x->data, x->stride, x->rows, l->weight->data, &l->rotate, 0,
                        l->eps);
    return true;
}

static void head_backward(float *restrict dx, float *restrict dw, const float *restrict dout, const float *restrict x,
                          const float *restrict w, const float *restrict cosine, const float *restrict sine, float s,
                          int64_t dim, bool accumulate)
{
    int64_t half = dim / 2;
    float g1[MAX_DIM / 2], g2[MAX_DIM / 2], dot = 0.0f;
    const float *w2 = w + half, *x2 = x + half;
    float *dw2 = dw + half, *dx2 = dx + half;
#pragma omp simd
    for (int64_t d = 0; d < half; d++) {
        g1[d] = dout[d] * cosine[d] + dout[d + half] * sine[d];
        g2[d] = dout[d + half] * cosine[d] - dout[d] * sine[d];
    }
#pragma omp simd reduction(+ : dot)
    for (int64_t d = 0; d < half; d++)
        dot += g1[d] * w[d] * x[d] + g2[d] * w2[d] * x2[d];
    float slope = dot * s * s / (float)dim;
#pragma omp simd
    for (int64_t d = 0; d < half; d++) {
        dw[d] += g1[d] * x[d] * s;
        dw2[d] += g2[d] * x2[d] * s;
    }
#pragma omp simd
    for (int64_t d = 0; d < half; d++) {
        dx[d] = (accumulate ? dx[d] : 0.0f) + s * (g1[d] * w[d] - slope * x[d]);
        dx2[d] = (accumulate ? dx2[d] : 0.0f) + s * (g2[d] * w2[d] - slope * x2[d]);
    }
}

static bool backward(node *n)
{
    const qknorm_rope *l = n->state;
    const rotation *r = &l->rotate;
    const tensor *x = n->in[0], *out = n->out;
    const float *rstd = n->saved;
    float *partial = n->workspace; /* [ROW_CHUNKS, dim] */
    int64_t dim = r->dim, half = dim / 2;
#pragma omp parallel for schedule(static) if (x->rows * x->cols > PARALLEL_WORK)
    for (int64_t chunk = 0; chunk < ROW_CHUNKS; chunk++) {
        float *dw = partial + chunk * dim;
        memset(dw, 0, (size_t)dim * sizeof *dw);
        for (int64_t row = chunk_begin(x->rows, chunk); row < chunk_begin(x->rows, chunk + 1); row++)
            for (int64_t h = 0; h < r->heads; h++)
                head_backward(x->grad + row * x->stride + h * dim, dw, out->grad + row * out->stride + h * dim,
                              x->data + row * x->stride + h * dim, l->weight->data, r->cos + row % r->seq * half,
                              r->sin + row % r->seq * half, rstd[row * r->heads + h], dim, n->accumulate[0]);
    }
    add_chunks(l->weight->grad, partial, dim);
    return true;
}

tensor *layer_qknorm_rope(tape *t, tensor *x, const parameter *weight, const rotation *r, double eps)
{
    assert(x->cols == r->heads * r->dim && r->dim <= MAX_DIM);
    node *n = tape_node(t, "qknorm_rope", sizeof(qknorm_rope));
    qknorm_rope *l = n->state;
    l->weight = weight;
    l->rotate = *r;
    l->eps = (float)eps;
    n->in[0] = x;
    n->out = tape_tensor(t, x->rows, x->cols);
    n->reads_in[0] = true;
    n->saved_bytes = (size_t)(x->rows * r->heads) * sizeof(float);
    n->backward_workspace = (size_t)(ROW_CHUNKS * r->dim) * sizeof(float);
    n->forward = forward;
    n->backward = backward;
    return n->out;
}
