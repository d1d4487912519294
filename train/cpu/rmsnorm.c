/* RMS norm on the CPU: see layers/rmsnorm.c. */
#include <math.h>
#include <string.h>

#include "train/cpu/chunks.h"
#include "train/cpu/cpu.h"

static void forward(float *out, float *rstd, const float *x, int64_t rows, int64_t cols, const float *weight, float eps)
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

bool cpu_rmsnorm_forward(device *d, const rmsnorm_call *c)
{
    (void)d;
    forward(c->out, c->rstd, c->x, c->rows, c->cols, c->weight, c->eps);
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

bool cpu_rmsnorm_backward(device *d, const rmsnorm_call *n)
{
    const float *dout = n->dout;
    int64_t rows = n->rows, cols = n->cols;
    (void)d;
#pragma omp parallel for schedule(static) if (rows * cols > PARALLEL_WORK)
    for (int64_t chunk = 0; chunk < ROW_CHUNKS; chunk++) {
        float *dw = n->partial + chunk * cols;
        memset(dw, 0, (size_t)cols * sizeof *dw);
        for (int64_t r = chunk_begin(rows, chunk); r < chunk_begin(rows, chunk + 1); r++)
            backward_row(n->dx + r * cols, n->accumulate, dw, dout + r * cols, n->x + r * cols, n->weight, n->rstd[r], cols);
    }
    add_chunks(n->dweight, n->partial, cols);
    return true;
}
