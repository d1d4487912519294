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

/* What is done to x on its way into a linear layer. What that makes is not kept, but made twice: the layers below say what. */
typedef struct feed feed;
struct feed {
    bool (*make)(node *n, const feed *f, void *made);
    /* The gradient of what was made becomes that of x, and what was made lies in its place afterwards. */
    bool (*pass)(node *n, const feed *f, void *dmade, void *scratch);
    size_t saved_bytes, scratch_bytes; /* for each row, for each of the device's chunks */
    const parameter *weight;           /* of a norm */
    float eps;
};
/* the norm of layer_rmsnorm() */
feed feed_rmsnorm(const parameter *weight, double eps);
/* silu(gate) * up                   x = [gate | up] [rows, 2 in];  silu(z) = z / (1 + e^-z) */
feed feed_swiglu(void);

/* out = f(x) W^T                    f NULL: x itself; f(x) [rows, in], W [out, in], out [rows, out] of the type of f(x) */
tensor *layer_linear(tape *t, tensor *x, const feed *f, const matrix *weight);
/* out = residual + f(x) W^T         residual and out float; the gradient of residual is that of out, in place */
tensor *layer_linear_residual(tape *t, tensor *x, const feed *f, const matrix *weight, tensor *residual);
/* The forward of both, for those who need no tape. residual may be NULL, and may be out, whose type it has. */
bool linear_forward(device *d, void *out, number_type out_type, const void *x, number_type type, int64_t rows,
                    const matrix *weight, const void *residual);

/* dx = dout W, or is added to, and dW += dout^T x, of some rows. */
typedef struct linear_gradient {
    int64_t rows;
    number_type type, dx_type; /* type: of dout and x */
    bool add;
    const void *dout, *x;
    int64_t dout_stride;
    void *dx;
} linear_gradient;
bool linear_input_gradient(device *d, const linear_gradient *g, const matrix *w);
bool linear_weight_gradient(device *d, const linear_gradient *g, const matrix *w);

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

/* The loss: the sum over the rows with target >= 0 of logsumexp(logits) - logits[target],   logits = x W^T [rows, vocab] float,
 * of which not more than some rows exist at a time. With backward to come, forward is done by tape_finish() alone. */
typedef struct loss_state {
    const int32_t *targets; /* [rows], of the device */
    float scale;            /* set before backward: the gradient of scale * loss */
    double *loss;           /* written by whoever does forward; shared with the host */
} loss_state;
/* logits: where forward leaves them all; NULL: nowhere. chunk: how many rows at a time; 0: layer_head_rows(). */
void layer_head(tape *t, tensor *x, const matrix *weight, loss_state *state, tensor *logits, int64_t chunk);
int64_t layer_head_rows(int64_t rows, int64_t vocab);

#endif
