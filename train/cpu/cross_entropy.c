/* Cross-entropy on the CPU: see layers/cross_entropy.c. */
#include <math.h>
#include <string.h>

#include "train/cpu/chunks.h"
#include "train/cpu/cpu.h"
#include "train/cpu/fastmath.h"

static float row_lse(const float *x, int64_t vocab)
{
    float most = largest(x, vocab), sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < vocab; c++)
        sum += fast_exp(x[c] - most);
    return most + logf(sum);
}

bool cpu_cross_entropy_forward(device *d, const cross_entropy_call *c)
{
    double sum = 0.0;
    (void)d;
#pragma omp parallel for schedule(static) if (c->rows * c->vocab > PARALLEL_WORK)
    for (int64_t r = 0; r < c->rows; r++)
        c->lse[r] = c->targets[r] < 0 ? 0.0f : row_lse(c->x + r * c->vocab, c->vocab);
    for (int64_t r = 0; r < c->rows; r++)
        if (c->targets[r] >= 0)
            sum += (double)c->lse[r] - (double)c->x[r * c->vocab + c->targets[r]];
    *c->loss = sum / (double)c->counted;
    return true;
}

static void backward_row(float *restrict dx, const float *restrict x, int64_t vocab, int32_t target, float lse, float factor)
{
    if (target < 0) {
        memset(dx, 0, (size_t)vocab * sizeof *dx);
        return;
    }
    for (int64_t c = 0; c < vocab; c++)
        dx[c] = factor * fast_exp(x[c] - lse);
    dx[target] -= factor;
}

bool cpu_cross_entropy_backward(device *d, const cross_entropy_call *c)
{
    float *dx = c->dx;
    (void)d;
#pragma omp parallel for schedule(static) if (c->rows * c->vocab > PARALLEL_WORK)
    for (int64_t r = 0; r < c->rows; r++)
        backward_row(dx + r * c->vocab, c->x + r * c->vocab, c->vocab, c->targets[r], c->lse[r], c->factor);
    return true;
}
