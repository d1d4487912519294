/*
 * The layers. Each function records one node on the tape and returns the tensor that the node writes; each lives in a file
 * of its own with forward and backward side by side. Beside them stand the plain functions on arrays, where the decoder,
 * which needs no tape, calls them too.
 *
 * rows = batch * seq everywhere; strides count floats.
 */
#ifndef TRAIN_LAYERS_H
#define TRAIN_LAYERS_H

#include "train/attention.h"
#include "train/tape.h"

/* out[r] = weight[tokens[r]]        weight [vocab, hidden], tokens [rows] (read at every replay), out [rows, hidden] */
tensor *layer_embedding(tape *t, const int32_t *tokens, int64_t rows, const matrix *weight);
void embedding_forward(float *out, const int32_t *tokens, int64_t rows, const matrix *weight);

/* out = x W^T                       x [rows, in], W [out, in], out [rows, out] */
tensor *layer_linear(tape *t, tensor *x, const matrix *weight);
/* out = residual + x W^T            the gradient of residual is that of out, in place */
tensor *layer_linear_residual(tape *t, tensor *x, const matrix *weight, tensor *residual);
/* residual may be NULL, and may be out. */
void linear_forward(float *out, const float *x, int64_t rows, const matrix *weight, const float *residual);

/* out = x / sqrt(mean(x^2) + eps) * weight, by rows        x, out [rows, cols], weight [cols] */
tensor *layer_rmsnorm(tape *t, tensor *x, const parameter *weight, double eps);
/* rstd [rows], the factors 1/sqrt(...), may be NULL. */
void rmsnorm_forward(float *out, float *rstd, const float *x, int64_t rows, int64_t cols, const float *weight, float eps);

/* Per head: the norm of a query or key, then its rotation by its position.
 * x, out [rows, heads * dim] (x may be a view), weight [dim], cos and sin [max_seq, dim/2]; row b*seq + i is at position i. */
typedef struct rotation {
    const float *cos, *sin;
    int64_t heads, dim, seq;
} rotation;
tensor *layer_qknorm_rope(tape *t, tensor *x, const parameter *weight, const rotation *r, double eps);
/* Row i is at position `first` + i % r->seq. rstd [rows, heads] may be NULL. */
void qknorm_rope_forward(float *out, int64_t out_stride, float *rstd, const float *x, int64_t stride, int64_t rows,
                         const float *weight, const rotation *r, int64_t first, float eps);

/* out = softmax(q k^T / sqrt(dim), masked) v      q, out [rows, heads * dim], k and v [rows, heads_kv * dim]
 * Keeps q, k, v, out and the logsumexp; see train/attention.h. If the library refuses, tape_plan() fails and train_error() says
 * why. */
tensor *layer_attention(tape *t, tensor *q, tensor *k, tensor *v, const attention *a);

/* out = silu(gate) * up             x = [gate | up] [rows, 2 ffn], out [rows, ffn];  silu(z) = z / (1 + e^-z) */
tensor *layer_swiglu(tape *t, tensor *x);
void swiglu_forward(float *out, const float *x, int64_t rows, int64_t ffn);

/* The loss: mean over the rows with target >= 0 of logsumexp(logits) - logits[target].   logits [rows, vocab] */
typedef struct loss_state {
    const int32_t *targets; /* [rows]; set before each forward; NULL: nothing to do */
    double loss;            /* written by forward */
    int64_t counted;        /* written by forward: the rows that have a target */
    float scale;            /* set before backward: the gradient of scale * loss */
} loss_state;
void layer_cross_entropy(tape *t, tensor *logits, loss_state *state);

#endif
