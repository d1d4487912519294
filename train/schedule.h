/*
 * The learning rate of step s = 0, 1, ..., steps - 1:
 *
 *     s < warmup      lr (s + 1) / warmup
 *     else            min_lr + (lr - min_lr) left
 *
 *     constant        left = 1, and min_lr does not count
 *     linear          left = 1 - x                      x = (s - warmup) / (steps - warmup)
 *     cosine          left = (1 + cos(pi x)) / 2
 *     wsd             left = 1, and in the last `decay` steps 1 - sqrt(y),  y = (s - (steps - decay)) / decay
 *
 * wsd: warm-up, stable, decay.
 */
#ifndef TRAIN_SCHEDULE_H
#define TRAIN_SCHEDULE_H

#include <stdint.h>

typedef enum schedule_kind { SCHEDULE_COSINE, SCHEDULE_LINEAR, SCHEDULE_CONSTANT, SCHEDULE_WSD } schedule_kind;

typedef struct lr_schedule {
    schedule_kind kind;
    double lr, min_lr;
    int64_t warmup, steps;
    int64_t decay; /* wsd */
} lr_schedule;

double schedule_lr(const lr_schedule *s, int64_t step);

#endif
