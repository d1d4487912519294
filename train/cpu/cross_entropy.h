/* Cross-entropy on the CPU: see layers/head.c. */
#ifndef TRAIN_CPU_CROSS_ENTROPY_H
#define TRAIN_CPU_CROSS_ENTROPY_H

#include <math.h>
#include <string.h>

#include "train/cpu/chunks.h"
#include "train/cpu/fastmath.h"
#include "train/cpu/numbers.h"
#include "train/device.h"

static float row_lse(const float *x, int64_t vocab)
{
    float most = largest(x, vocab), sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < vocab; c++)
        sum += fast_exp(x[c] - most);
    return most + logf(sum);
}

/* Piece by piece, each read before it is written: dx may lie in x's place. */
static void gradient_row(const cross_entropy_call *c, int64_t row, float lse)
{
    const int64_t piece = piece_of(c->type, c->vocab);
    const int32_t target = c->targets[row];
    const float factor = c->factor, *x = c->x + row * c->vocab;
    float scratch[PIECE];
    for (int64_t i = 0; i < c->vocab; i += piece) {
        const int64_t count = c->vocab - i < piece ? c->vocab - i : piece, to = row * c->dx_stride + i;
        float *dx = room_for_numbers(c->dx, c->type, to, scratch);
        if (target < 0)
            memset(dx, 0, (size_t)count * sizeof *dx);
        for (int64_t j = 0; j < count && target >= 0; j++)
            dx[j] = factor * fast_exp(x[i + j] - lse);
        if (target >= i && target - i < count)
            dx[target - i] -= factor;
        write_numbers(c->dx, c->type, to, count, scratch);
    }
}

static void do_row(const cross_entropy_call *c, int64_t row)
{
    const float *x = c->x + row * c->vocab;
    const int32_t target = c->targets[row];
    const float lse = target < 0 ? 0.0f : row_lse(x, c->vocab);
    c->losses[row] = target < 0 ? 0.0 : (double)lse - (double)x[target];
    if (c->dx)
        gradient_row(c, row, lse);
}

static bool cross_entropy(device *d, const cross_entropy_call *c)
{
    (void)d;
#pragma omp parallel for schedule(static) if (c->rows * c->vocab > PARALLEL_WORK)
    for (int64_t r = 0; r < c->rows; r++)
        do_row(c, r);
    return true;
}

static bool loss_sum(device *d, const loss_sum_call *c)
{
    double sum = 0.0;
    (void)d;
    for (int64_t r = 0; r < c->rows; r++)
        sum += c->losses[r];
    *c->sum = sum;
    return true;
}

#endif
