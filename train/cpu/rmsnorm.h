/* RMS norm on the CPU: see layers/rmsnorm.c. */
#ifndef TRAIN_CPU_RMSNORM_H
#define TRAIN_CPU_RMSNORM_H

#include <math.h>
#include <string.h>

#include "train/cpu/chunks.h"
#include "train/cpu/numbers.h"
#include "train/device.h"

static float inverse_norm(const float *x, int64_t cols, float eps)
{
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (int64_t c = 0; c < cols; c++)
        squares += x[c] * x[c];
    return 1.0f / sqrtf(squares / (float)cols + eps);
}

static void rmsnorm_forward_row(const rmsnorm_call *n, int64_t row, float s)
{
    const float *x = n->x + row * n->cols;
    float scratch[PIECE];
    const int64_t piece = piece_of(n->type, n->cols);
    for (int64_t i = 0; i < n->cols; i += piece) {
        const int64_t count = n->cols - i < piece ? n->cols - i : piece;
        float *out = room_for_numbers(n->out, n->type, row * n->cols + i, scratch);
        for (int64_t c = 0; c < count; c++)
            out[c] = x[i + c] * s * n->weight[i + c];
        write_numbers(n->out, n->type, row * n->cols + i, count, scratch);
    }
}

static bool rmsnorm_forward(device *d, const rmsnorm_call *n)
{
    (void)d;
#pragma omp parallel for schedule(static) if (n->rows * n->cols > PARALLEL_WORK)
    for (int64_t r = 0; r < n->rows; r++) {
        const float s = inverse_norm(n->x + r * n->cols, n->cols, n->eps);
        rmsnorm_forward_row(n, r, s);
        if (n->rstd)
            n->rstd[r] = s;
    }
    return true;
}

static float dot_of(const float *dout, const float *w, const float *x, int64_t cols)
{
    float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
    for (int64_t c = 0; c < cols; c++)
        dot += dout[c] * w[c] * x[c];
    return dot;
}

static void rmsnorm_backward_piece(float *restrict dx, bool accumulate, float *restrict dw, const float *restrict dout,
                                   const float *restrict x, const float *restrict w, float s, float slope, int64_t cols)
{
    for (int64_t c = 0; c < cols; c++)
        dw[c] += dout[c] * x[c] * s;
    if (accumulate)
        for (int64_t c = 0; c < cols; c++)
            dx[c] += s * (dout[c] * w[c] - slope * x[c]);
    else
        for (int64_t c = 0; c < cols; c++)
            dx[c] = s * (dout[c] * w[c] - slope * x[c]);
}

static void rmsnorm_backward_row(const rmsnorm_call *n, float *dw, int64_t row)
{
    const int64_t cols = n->cols, first = row * cols, piece = piece_of(n->type, cols);
    const float *x = n->x + first, s = n->rstd[row];
    float scratch[PIECE], dot = 0.0f;
    for (int64_t i = 0; i < cols; i += piece) {
        const int64_t count = cols - i < piece ? cols - i : piece;
        dot += dot_of(read_numbers(n->dout, n->type, first + i, count, scratch), n->weight + i, x + i, count);
    }
    const float slope = dot * s * s / (float)cols; /* mean(g u) s, to be multiplied with x s */
    for (int64_t i = 0; i < cols; i += piece) {
        const int64_t count = cols - i < piece ? cols - i : piece;
        const float *dout = read_numbers(n->dout, n->type, first + i, count, scratch);
        rmsnorm_backward_piece(n->dx + first + i, n->accumulate, dw + i, dout, x + i, n->weight + i, s, slope, count);
    }
    if (n->out)
        rmsnorm_forward_row(n, row, s);
}

static bool rmsnorm_backward(device *d, const rmsnorm_call *n)
{
    int64_t rows = n->rows, cols = n->cols;
    (void)d;
#pragma omp parallel for schedule(static) if (rows * cols > PARALLEL_WORK)
    for (int64_t chunk = 0; chunk < ROW_CHUNKS; chunk++) {
        float *dw = n->partial + chunk * cols;
        memset(dw, 0, (size_t)cols * sizeof *dw);
        for (int64_t r = chunk_begin(rows, chunk); r < chunk_begin(rows, chunk + 1); r++)
            rmsnorm_backward_row(n, dw, r);
    }
    add_chunks(n->dweight, n->partial, cols);
    return true;
}

#endif
