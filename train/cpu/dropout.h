/* Dropout on the CPU: see layers/dropout.c. */
#ifndef TRAIN_CPU_DROPOUT_H
#define TRAIN_CPU_DROPOUT_H

#include "train/cpu/chunks.h"
#include "train/cpu/numbers.h"
#include "train/device.h"
#include "train/philox.h"

/* Columns first .. first + count - 1 of a row; first is a multiple of 4. */
static void drop_piece(const dropout_call *c, int64_t row, int64_t first, int64_t count)
{
    const int64_t at = row * c->cols + first;
    float from_scratch[PIECE], to_scratch[PIECE], factor[PIECE + 3];
    for (int64_t i = 0; i < count; i += 4) {
        const philox_words w = philox(c->key, (uint32_t)((first + i) / 4), (uint32_t)row, (uint32_t)(row >> 32), 0);
        for (int j = 0; j < 4; j++)
            factor[i + j] = w.word[j] >= c->least ? c->factor : 0.0f;
    }
    const float *from = read_numbers(c->from, c->from_type, at, count, from_scratch);
    float *to = room_for_numbers(c->to, c->to_type, at, to_scratch);
    for (int64_t i = 0; i < count; i++)
        to[i] = (c->add ? c->add[at + i] : 0.0f) + (factor[i] != 0.0f ? from[i] * factor[i] : 0.0f);
    write_numbers(c->to, c->to_type, at, count, to_scratch);
}

static bool dropout(device *d, const dropout_call *c)
{
    (void)d;
#pragma omp parallel for schedule(static) if (c->rows * c->cols > PARALLEL_WORK)
    for (int64_t r = 0; r < c->rows; r++)
        for (int64_t i = 0; i < c->cols; i += PIECE)
            drop_piece(c, r, i, c->cols - i < PIECE ? c->cols - i : PIECE);
    return true;
}

#endif
