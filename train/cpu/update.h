/*
 * The gradient's norm and AdamW on the CPU: see optimizer.h. Pieces are shared out to the threads, and the norm adds the
 * pieces' sums in order, so nothing depends on the number of threads.
 */
#ifndef TRAIN_CPU_UPDATE_H
#define TRAIN_CPU_UPDATE_H

#include <math.h>

#include "train/cpu/numbers.h"
#include "train/device.h"

static bool grad_squares(device *d, const update_call *c)
{
    (void)d;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < c->count; i++) {
        const float *g = c->grad + c->pieces[i].offset;
        double sum = 0.0;
#pragma omp simd reduction(+ : sum)
        for (int64_t j = 0; j < c->pieces[i].count; j++)
            sum += (double)g[j] * (double)g[j];
        c->squares[i] = sum;
    }
    return true;
}

static bool grad_norm(device *d, const update_call *c)
{
    double sum = 0.0;
    (void)d;
    for (int64_t i = 0; i < c->count; i++)
        sum += c->squares[i];
    *c->norm = *c->shared_norm = c->scale * sqrt(sum);
    return true;
}

/* What is the same for every number in an update. */
typedef struct factors {
    float grad, decay, beta1, beta2, step, root, eps;
} factors;

static void advance(float *restrict p, float *restrict m, float *restrict v, const float *restrict grad, int64_t count,
                    factors f, float decay)
{
    for (int64_t i = 0; i < count; i++) {
        float g = grad[i] * f.grad;
        m[i] = f.beta1 * m[i] + (1.0f - f.beta1) * g;
        v[i] = f.beta2 * v[i] + (1.0f - f.beta2) * g * g;
        p[i] = p[i] * decay - f.step * m[i] / (sqrtf(v[i]) * f.root + f.eps);
    }
}

static bool update(device *d, const update_call *c)
{
    double norm = *c->norm, clip = c->clip > 0 ? c->clip / (norm + 1e-6) : 1.0;
    factors f = {.grad = (float)(clip < 1.0 ? c->scale * clip : c->scale),
                 .decay = c->decay,
                 .beta1 = c->beta1,
                 .beta2 = c->beta2,
                 .step = c->step,
                 .root = c->root,
                 .eps = c->eps};
    (void)d;
    if (!isnan(c->limit) && !(isfinite(norm) && norm <= c->limit))
        return true;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < c->count; i++) {
        int64_t at = c->pieces[i].offset, moment = at - c->moments_first;
        advance(c->data + at, c->m + moment, c->v + moment, c->grad + at, c->pieces[i].count, f,
                c->pieces[i].decays ? f.decay : 1.0f);
        if (c->rounded)
            write_numbers(c->rounded, NUMBER_BF16, at, c->pieces[i].count, c->data + at);
    }
    return true;
}

#endif
