/*
 * AdamW as PyTorch has it, with the gradient's norm clipped first.
 *
 *     g *= min(1, clip / (|g| + 1e-6))            |g| over all parameters
 *     p *= 1 - lr * weight_decay                  matrices only, and not always the embedding
 *     m = beta1 m + (1 - beta1) g
 *     v = beta2 v + (1 - beta2) g^2
 *     p -= lr / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + eps)          t = 1, 2, ...
 */
#ifndef TRAIN_OPTIMIZER_H
#define TRAIN_OPTIMIZER_H

#include "model.h"
#include "ranks.h"

typedef struct optimizer_options {
    double beta1, beta2, eps, weight_decay;
    double clip;          /* the most that the norm may be; 0: no clipping */
    bool spare_embedding; /* does not decay, though it is a matrix; a tied head is the embedding */
    ranks *among; /* the moments are shared out among these, and each updates its share; NULL: every rank has and updates all */
} optimizer_options;

/* beta1 0.9, beta2 0.95, eps 1e-8, weight_decay 0.1, clip 1. */
optimizer_options optimizer_defaults(void);

typedef struct optimizer {
    optimizer_options options;
    int64_t step;  /* updates made so far: t. A resumed run sets it */
    double scale;  /* the gradient is so many times what stands in the model; 1 at first */
    double limit;  /* with a larger norm, or one that is not finite, nothing is changed; NaN: any will do. Infinite at first */
    int64_t *cuts; /* [ranks + 1]: the shares, as numbers of model->data; NULL: not shared out */
    int64_t first, count; /* this rank's */
    float *m, *v;         /* [count] in the memory of the model's device, laid out as model->data + first */
    float *gathered;      /* [2][model->size], of the host: optimizer_gather */
    model *target;
    struct optimizer_work *work; /* how it is cut up; private */
} optimizer;

/* The model is where it will stay: model_place() comes before. */
optimizer *optimizer_create(model *m, const optimizer_options *options);
void optimizer_free(optimizer *o);
/* One update from the gradients in the model (of each rank's share, where it is shared out), which it leaves as they are;
 * *norm: the norm of all of them, summed in double in a fixed order. Waits. Returns false and changes nothing if the norm is
 * beyond the limit; false, with TRAIN_ERROR_WORK, if the device failed. The bits are the same whether the moments are shared
 * out or not. */
bool optimizer_update(optimizer *o, double lr, double *norm);
/* Counts an update that was not made, so that the learning rate goes on. */
void optimizer_skip(optimizer *o);
size_t optimizer_bytes(const optimizer *o);

/* All ranks before rank 0 looks at the moments, where they are shared out; it leaves nothing useful in the gradients. */
bool optimizer_gather(optimizer *o);
/* The whole moments as the host reads them, 0: m, 1: v; NULL with train_error() set. */
const float *optimizer_look(const optimizer *o, int which);
void optimizer_look_end(const optimizer *o, const float *seen);
/* Takes this rank's share of moments [model->size], of the host. */
bool optimizer_put(optimizer *o, const float *mean, const float *square);

#endif
