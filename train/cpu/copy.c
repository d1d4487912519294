/* Copying and adding rows. */
#include <string.h>

#include "train/cpu/chunks.h"
#include "train/cpu/cpu.h"

static void copy(float *to, int64_t to_stride, const float *from, int64_t from_stride, int64_t rows, int64_t cols)
{
#pragma omp parallel for schedule(static) if (rows * cols > PARALLEL_WORK)
    for (int64_t r = 0; r < rows; r++)
        memcpy(to + r * to_stride, from + r * from_stride, (size_t)cols * sizeof *to);
}

static void add(float *to, int64_t to_stride, const float *from, int64_t from_stride, int64_t rows, int64_t cols)
{
#pragma omp parallel for schedule(static) if (rows * cols > PARALLEL_WORK)
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            to[r * to_stride + c] += from[r * from_stride + c];
}

bool cpu_copy(device *d, const copy_call *c)
{
    (void)d;
    (c->add ? add : copy)(c->to, c->to_stride, c->from, c->from_stride, c->rows, c->cols);
    return true;
}
