/*
 * Embedding on the CPU. Equal tokens meet in one row of dW, so backward's work is shared out by columns: a thread adds up all
 * rows, in order, for columns of its own.
 */
#ifndef TRAIN_CPU_EMBEDDING_H
#define TRAIN_CPU_EMBEDDING_H

#include <string.h>

#include "train/cpu/chunks.h"
#include "train/device.h"

static bool embedding_forward(device *d, const embedding_call *e)
{
    int64_t hidden = e->hidden;
    (void)d;
#pragma omp parallel for schedule(static) if (e->rows * hidden > PARALLEL_WORK)
    for (int64_t r = 0; r < e->rows; r++)
        memcpy(e->out + r * hidden, e->weight + e->tokens[r] * hidden, (size_t)hidden * sizeof *e->out);
    return true;
}

static bool embedding_backward(device *d, const embedding_call *e)
{
    enum { COLUMNS = 32 }; /* a thread's share: two cache lines, so threads do not write to each other's */
    int64_t rows = e->rows, hidden = e->hidden;
    (void)d;
#pragma omp parallel for schedule(static) if (rows * hidden > PARALLEL_WORK)
    for (int64_t first = 0; first < hidden; first += COLUMNS) {
        int64_t count = hidden - first < COLUMNS ? hidden - first : COLUMNS;
        for (int64_t r = 0; r < rows; r++) {
            const float *dout = e->dout + r * hidden + first;
            float *dw = e->dweight + e->tokens[r] * hidden + first;
            for (int64_t c = 0; c < count; c++)
                dw[c] += dout[c];
        }
    }
    return true;
}

#endif
