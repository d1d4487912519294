/*
 * Numbers for the inputs of a problem.
 */
#ifndef HARNESS_FILL_H
#define HARNESS_FILL_H

#include "tensors.h"

/* Fills every input that has elements, as p->fill and p->seed say: the rows that belong to a sequence. out and lse, inputs of
 * backward, are not among them, nor are lists of integers. What is no number of a tensor's type is rounded to one, so that all
 * who read it read the same. */
void fill_inputs(const problem *p, const geometry *g, const tensors *t);

#endif
