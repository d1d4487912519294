/*
 * What is dropped in one place of the model: a function of the step's seed, of the place, and of the number's position, so that
 * computing again, continuing a run and changing the device give the same masks.
 */
#ifndef TRAIN_DROPOUT_H
#define TRAIN_DROPOUT_H

#include <stddef.h>

#include "random.h"

typedef struct dropout {
    double p;             /* of dropping a number, in [0, 1); 0: no dropout, and the rest does not count */
    const uint64_t *seed; /* of the step and the micro-batch: read at every replay */
    uint64_t place;       /* tells the model's places apart */
} dropout;

/* Never 0, so that it is a seed for the attention library, too. */
static inline uint64_t dropout_key(const dropout *d)
{
    return random_with(*d->seed, d->place) | 1;
}

#endif
