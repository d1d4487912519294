/* Cross-entropy on the CPU: see layers/cross_entropy.c. */
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

static bool cross_entropy_forward(device *d, const cross_entropy_call *c)
{
    double sum = 0.0;
    (void)d;
#pragma omp parallel for schedule(static) if (c->rows * c->vocab > PARALLEL_WORK)
    for (int64_t r = 0; r < c->rows; r++)
        c->lse[r] = c->targets[r] < 0 ? 0.0f : row_lse(c->x + r * c->vocab, c->vocab);
    for (int64_t r = 0; r < c->rows; r++)
        if (c->targets[r] >= 0)
            sum += (double)c->lse[r] - (double)c->x[r * c->vocab + c->targets[r]];
    *c->loss = sum;
    return true;
}

static void loss_backward_row(const cross_entropy_call *c, int64_t row)
{
    const int64_t first = row * c->vocab, piece = piece_of(c->type, c->vocab);
    const int32_t target = c->targets[row];
    const float lse = c->lse[row], factor = c->factor, *x = c->x + first;
    float scratch[PIECE];
    for (int64_t i = 0; i < c->vocab; i += piece) {
        const int64_t count = c->vocab - i < piece ? c->vocab - i : piece;
        float *dx = room_for_numbers(c->dx, c->type, first + i, scratch);
        if (target < 0)
            memset(dx, 0, (size_t)count * sizeof *dx);
        for (int64_t j = 0; j < count && target >= 0; j++)
            dx[j] = factor * fast_exp(x[i + j] - lse);
        if (target >= i && target - i < count)
            dx[target - i] -= factor;
        write_numbers(c->dx, c->type, first + i, count, scratch);
    }
}

static bool cross_entropy_backward(device *d, const cross_entropy_call *c)
{
    (void)d;
#pragma omp parallel for schedule(static) if (c->rows * c->vocab > PARALLEL_WORK)
    for (int64_t r = 0; r < c->rows; r++)
        loss_backward_row(c, r);
    return true;
}

#endif
