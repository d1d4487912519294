/*
 * The gradient of an update: the sum over its micro-batches, wherever they are computed.
 *
 * Micro-batches 0 .. n - 1 of an update are shared out in order: rank r of R takes those from r n / R on, so that each has
 * `parts` = n / R. Each one's gradient is computed by itself, and all are added by one tree, neighbours first: 0+1, 2+3, ...,
 * then (0+1) + (2+3), and so on, one without partner waiting for the next round. As long as `parts` is a power of two, or there
 * is one rank, the bits are the same for any number of ranks. For that a rank keeps sums of 1, 2, 4, ... micro-batches that
 * wait for their partner: with 1 part none, with n parts as many blocks of gradients as n - 1 has binary digits.
 *
 * Where ranks share sequences (ranks.h) the rows of each count as micro-batches of their own, in the order of the ranks.
 *
 * The sum over ranks begins for each layer when its backward has ended, in the last part, while earlier layers are at work.
 */
#ifndef TRAIN_GRADIENTS_H
#define TRAIN_GRADIENTS_H

#include "model.h"
#include "ranks.h"

typedef struct gradients gradients;

/* owned: cuts of the model's block of parameters (ranks.h), so that a rank gets only the sums that it owns; NULL: each gets
 * all. Model, ranks and cuts outlive it. NULL with train_error() set. */
gradients *gradients_create(model *m, ranks *r, int64_t parts, const int64_t *owned);
void gradients_free(gradients *g);
size_t gradients_bytes(const gradients *g);

/* Before the first part of an update. */
bool gradients_begin(gradients *g);
/* For step_options.layer_done. */
bool gradients_layer(void *g, int layer);
/* After each part's backward; after the last one model->grad holds the sum, as far as this rank gets it. */
bool gradients_end_part(gradients *g);

#endif
