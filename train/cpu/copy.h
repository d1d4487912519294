/* Copying and adding rows. */
#ifndef TRAIN_CPU_COPY_H
#define TRAIN_CPU_COPY_H

#include <string.h>

#include "train/cpu/chunks.h"
#include "train/cpu/numbers.h"
#include "train/device.h"

static void copy_piece(const copy_call *c, int64_t to_at, int64_t from_at, int64_t count)
{
    float from_scratch[PIECE], to_scratch[PIECE];
    const float *from = read_numbers(c->from, c->from_type, from_at, count, from_scratch);
    float *to = room_for_numbers(c->to, c->to_type, to_at, to_scratch);
    if (c->add) {
        const float *sum = read_numbers(c->to, c->to_type, to_at, count, to_scratch);
        for (int64_t i = 0; i < count; i++)
            to[i] = sum[i] + from[i];
    } else if (c->to_type == NUMBER_F32)
        memcpy(to, from, (size_t)count * sizeof *to);
    write_numbers(c->to, c->to_type, to_at, count, c->add ? to : from);
}

static bool copy(device *d, const copy_call *c)
{
    const bool plain = c->to_type == c->from_type && !c->add;
    const int64_t size = (int64_t)number_bytes(c->to_type);
    (void)d;
#pragma omp parallel for schedule(static) if (c->rows * c->cols > PARALLEL_WORK)
    for (int64_t r = 0; r < c->rows; r++) {
        const int64_t to = r * c->to_stride, from = r * c->from_stride;
        if (plain)
            memcpy((char *)c->to + to * size, (const char *)c->from + from * size, (size_t)(c->cols * size));
        for (int64_t i = 0; i < c->cols && !plain; i += PIECE)
            copy_piece(c, to + i, from + i, c->cols - i < PIECE ? c->cols - i : PIECE);
    }
    return true;
}

#endif
