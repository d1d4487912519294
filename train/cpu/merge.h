/* Joining what one key block gives to the rows that it concerns, on the CPU: see attention.h. */
#ifndef TRAIN_CPU_MERGE_H
#define TRAIN_CPU_MERGE_H

#include <math.h>

#include "train/device.h"

static bool merge(device *d, const merge_call *c)
{
    int64_t width = c->heads * c->dim;
    (void)d;
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < c->batch * c->rows; n++) {
        int64_t batch = n / c->rows, i = n % c->rows, row = batch * c->seq + c->first + i;
        for (int64_t h = 0; h < c->heads; h++) {
            float *total = c->lse + (batch * c->heads + h) * c->seq + c->first + i;
            float other = c->block_lse[(batch * c->heads + h) * c->rows + i];
            float most = fmaxf(*total, other), merged = most + logf(expf(*total - most) + expf(other - most));
            float keep = expf(*total - merged), take = expf(other - merged);
            float *o = c->out + row * c->out_stride + h * c->dim;
            const float *p = c->block_out + n * width + h * c->dim;
            for (int64_t j = 0; j < c->dim; j++)
                o[j] = keep * o[j] + take * p[j];
            *total = merged;
        }
    }
    return true;
}

#endif
