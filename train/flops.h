/*
 * The work of a training step, as it is counted for MFU (model FLOPs utilisation): what the mathematics needs, whatever the
 * implementation computes again. And what a device reaches in a large product, to compare it with.
 */
#ifndef TRAIN_FLOPS_H
#define TRAIN_FLOPS_H

#include "model.h"

/* Forward and backward, for each token:
 *
 *     6 for every weight of a matrix that tokens are multiplied with (the head among them, the embedding's table not)
 *     12 head_dim for every key that a head's query sees: (seq + 1) / 2 on the average, or a window's fewer
 */
double flops_per_token(const model_config *c, int64_t seq, attention_path path);

/* FLOP/s of the best of a few products of the runtime's type, larger and larger ones until they take long enough. 0, with
 * train_error() set, if the device fails. */
double flops_peak(const runtime *r);

#endif
