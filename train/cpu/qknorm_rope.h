/*
 * Norm and rotation of queries or keys on the CPU: see layers/qknorm_rope.c. The loops handle both halves of a head at once;
 * `omp simd` tells the compiler that the halves do not overlap.
 */
#ifndef TRAIN_CPU_QKNORM_ROPE_H
#define TRAIN_CPU_QKNORM_ROPE_H

#include <math.h>
#include <string.h>

#include "train/cpu/chunks.h"
#include "train/cpu/numbers.h"
#include "train/device.h"

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

static int64_t position_of(const qknorm_rope_call *c, int64_t row)
{
    return c->positions ? c->positions[row] : c->first + row % c->seq;
}

static bool qknorm_rope_forward(device *d, const qknorm_rope_call *c)
{
    int64_t dim = c->dim, half = dim / 2;
    (void)d;
#pragma omp parallel for schedule(static) if (c->rows * c->heads * dim > PARALLEL_WORK)
    for (int64_t row = 0; row < c->rows; row++) {
        int64_t position = position_of(c, row);
        for (int64_t h = 0; h < c->heads; h++) {
            const int64_t to = row * c->out_stride + h * dim;
            float x_scratch[PIECE], out_scratch[PIECE];
            const float *x = read_numbers(c->x, c->type, row * c->stride + h * dim, dim, x_scratch);
            float s = head_forward(room_for_numbers(c->out, c->type, to, out_scratch), x, c->weight, c->cos + position * half,
                                   c->sin + position * half, dim, c->eps);
            write_numbers(c->out, c->type, to, dim, out_scratch);
            if (c->rstd)
                c->rstd[row * c->heads + h] = s;
        }
    }
    return true;
}

static void head_backward(float *restrict dx, float *restrict dw, const float *restrict dout, const float *restrict x,
                          const float *restrict w, const float *restrict cosine, const float *restrict sine, float s,
                          int64_t dim, bool accumulate)
{
    int64_t half = dim / 2;
    float g1[HEAD_DIM_MAX / 2], g2[HEAD_DIM_MAX / 2], dot = 0.0f;
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

/* The heads of a row are a few cache lines among those of queries, keys and values. */
__attribute__((always_inline)) static inline void prefetch_heads(const qknorm_rope_call *c, int64_t row)
{
    const int64_t count = c->heads * c->dim;
    prefetch_numbers(c->x, c->type, row * c->stride, count);
    prefetch_numbers(c->dx, c->type, row * c->stride, count);
    prefetch_numbers(c->dout, c->type, row * c->out_stride, count);
}

static void heads_backward_row(const qknorm_rope_call *c, float *dw, int64_t row)
{
    enum { AHEAD = 6 };
    int64_t dim = c->dim, half = dim / 2, position = position_of(c, row);
    if (row + AHEAD < c->rows)
        prefetch_heads(c, row + AHEAD);
    for (int64_t h = 0; h < c->heads; h++) {
        const int64_t at = row * c->stride + h * dim;
        float x_scratch[PIECE], dx_scratch[PIECE], dout_scratch[PIECE];
        const float *dout = read_numbers(c->dout, c->type, row * c->out_stride + h * dim, dim, dout_scratch);
        const float *x = read_numbers(c->x, c->type, at, dim, x_scratch);
        if (c->accumulate)
            read_numbers(c->dx, c->type, at, dim, dx_scratch);
        head_backward(room_for_numbers(c->dx, c->type, at, dx_scratch), dw, dout, x, c->weight, c->cos + position * half,
                      c->sin + position * half, c->rstd[row * c->heads + h], dim, c->accumulate);
        write_numbers(c->dx, c->type, at, dim, dx_scratch);
    }
}

static bool qknorm_rope_backward(device *d, const qknorm_rope_call *c)
{
    int64_t dim = c->dim;
    (void)d;
#pragma omp parallel for schedule(static) if (c->rows * c->heads * dim > PARALLEL_WORK)
    for (int64_t chunk = 0; chunk < ROW_CHUNKS; chunk++) {
        float *dw = c->partial + chunk * dim;
        memset(dw, 0, (size_t)dim * sizeof *dw);
        for (int64_t row = chunk_begin(c->rows, chunk); row < chunk_begin(c->rows, chunk + 1); row++)
            heads_backward_row(c, dw, row);
    }
    add_chunks(c->dweight, c->partial, dim);
    return true;
}

#endif
