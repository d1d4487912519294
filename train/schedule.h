/*
 * The learning rate of step s = 0, 1, ..., steps - 1:
 *
 *     s < warmup      lr (s + 1) / warmup
 *     constant        lr
 *     cosine          min_lr + (lr - min_lr) (1 + cos(pi (s - warmup) / (steps - warmup))) / 2
 */
#ifndef TRAIN_SCHEDULE_H
#define TRAIN_SCHEDULE_H

#include <stdint.h>

typedef enum schedule_kind { SCHEDULE_COSINE = 0, SCHEDULE_CONSTANT } schedule_kind;

typedef struct lr_schedule {
    schedule_kind kind;
    double lr, min_lr;
    int64_t warmup, steps;
} lr_schedule;

double schedule_lr(const lr_schedule *s, int64_t step);

#endif
