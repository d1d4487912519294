/*
 * The layers. Each function records one node on the tape and returns the tensor that the node writes; each lives in a file
 * of its own with its mathematics, and forward and backward side by side, as calls of the tape's device: what the device does
 * for them is in cpu/ and cuda/.
 *
 * rows = batch * seq everywhere; strides count numbers.
 */
#ifndef TRAIN_LAYERS_H
#define TRAIN_LAYERS_H

#include "train/attention.h"
#include "train/tape.h"

/* out[r] = weight[tokens[r]]        weight [vocab, hidden], tokens [rows] (read at every replay), out [rows, hidden] float */
tensor *layer_embedding(tape *t, const int32_t *tokens, int64_t rows, const matrix *weight);

/* out = x W^T                       x [rows, in], W [out, in], out [rows, out] of the type of x */
tensor *layer_linear(tape *t, tensor *x, const matrix *weight);
/* out = residual + x W^T            residual and out float; the gradient of residual is that of out, in place */
tensor *layer_linear_residual(tape *t, tensor *x, const matrix *weight, tensor *residual);
/* out = x W^T                       out float, its gradient of the type of x */
tensor *layer_linear_logits(tape *t, tensor *x, const matrix *weight);
/* The forward of all three, for those who need no tape. residual may be NULL, and may be out, whose type it has. */
bool linear_forward(device *d, void *out, number_type out_type, const void *x, number_type type, int64_t rows,
                    const matrix *weight, const void *residual);

/* out = x / sqrt(mean(x^2) + eps) * weight, by rows        x [rows, cols] float, out of the tape's type, weight [cols] */
tensor *layer_rmsnorm(tape *t, tensor *x, const parameter *weight, double eps);

/* Per head: the norm of a query or key, then its rotation by its position.
 * x, out [rows, heads * dim] (x may be a view), weight [dim], cos and sin [max_seq, dim/2]; row b*seq + i is at position i,
 * unless positions [rows] say otherwise (read at every replay). */
typedef struct rotation {
    const float *cos, *sin;
    int64_t heads, dim, seq;
    const int32_t *positions;
} rotation;
tensor *layer_qknorm_rope(tape *t, tensor *x, const parameter *weight, const rotation *r, double eps);

/* out = softmax(q k^T / sqrt(dim), masked) v      q, out [rows, heads * dim], k and v [rows, heads_kv * dim]
 * Keeps q, k, v, out and the logsumexp; see train/attention.h. If the library refuses, tape_plan() fails and train_error() says
 * why. */
tensor *layer_attention(tape *t, tensor *q, tensor *k, tensor *v, const attention *a);

/* out = residual + dropped(x) / (1 - p)      residual and out float; the gradient of residual is that of out, in place */
tensor *layer_dropout_residual(tape *t, tensor *x, const dropout *d, tensor *residual);

/* out = silu(gate) * up             x = [gate | up] [rows, 2 ffn], out [rows, ffn];  silu(z) = z / (1 + e^-z) */
tensor *layer_swiglu(tape *t, tensor *x);

/* The loss: the sum over the rows with target >= 0 of logsumexp(logits) - logits[target].   logits [rows, vocab] float */
typedef struct loss_state {
    const int32_t *targets; /* [rows], of the device */
    float scale;            /* set before backward: the gradient of scale * loss */
    double *loss;           /* written by forward; shared with the host */
} loss_state;
void layer_cross_entropy(tape *t, tensor *logits, loss_state *state);

#endif
