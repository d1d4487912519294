/*
 * Numbers for the inputs of a problem.
 */
#ifndef HARNESS_FILL_H
#define HARNESS_FILL_H

#include "arena.h"

/* Fills q, k and v, and dout unless it is NULL, as p->fill and p->seed say. */
void fill_inputs(const problem *p, const tensor *q, const tensor *k, const tensor *v, const tensor *dout);

static inline void tensor_put(const tensor *t, void *row, int64_t d, double value)
{
    if (t->size == 4)
        ((float *)row)[d] = (float)value;
    else
        ((double *)row)[d] = value;
}

static inline double tensor_get(const tensor *t, const void *row, int64_t d)
{
    return t->size == 4 ? (double)((const float *)row)[d] : ((const double *)row)[d];
}

#endif
