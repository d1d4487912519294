/*
 * Norm and rotation of queries or keys, for every row and head (D = dim, x a head's D numbers at position p):
 *
 *     u = x s w,   s = 1 / sqrt(mean(x^2) + eps)                       w [D], shared by the heads
 *     out_i       = u_i cos(p f_i) - u_{i+D/2} sin(p f_i)              i < D/2, f_i = theta^(-2i/D)
 *     out_{i+D/2} = u_{i+D/2} cos(p f_i) + u_i sin(p f_i)
 *
 * x and out [rows, heads * D]; row b*seq + i is at position i, so positions restart in every sequence, unless a list
 * says where rows are.
 *
 * Backward turns dout back by the same angle, g = R^T dout, and goes on as an RMS norm does: with h = g w and xs = x s,
 * dx = s (h - xs mean(h xs)) and dw += g xs.
 */
#include "train/layers/layers.h"
#include <assert.h>

typedef struct qknorm_rope {
    const parameter *weight;
    rotation rotate;
    float eps;
} qknorm_rope;

static qknorm_rope_call call_of(const node *n)
{
    const qknorm_rope *l = n->state;
    const tensor *x = n->in[0];
    return (qknorm_rope_call){.rows = x->rows,
                              .heads = l->rotate.heads,
                              .dim = l->rotate.dim,
                              .seq = l->rotate.seq,
                              .positions = l->rotate.positions,
                              .stride = x->stride,
                              .out_stride = n->out->stride,
                              .type = n->out->type,
                              .accumulate = n->accumulate[0],
                              .eps = l->eps,
                              .x = x->data,
                              .weight = l->weight->data,
                              .cos = l->rotate.cos,
                              .sin = l->rotate.sin,
                              .out = n->out->data,
                              .rstd = n->saved,
                              .dout = n->out->grad,
                              .dx = x->grad,
                              .dweight = l->weight->grad,
                              .partial = n->workspace};
}

static bool forward(node *n)
{
    qknorm_rope_call c = call_of(n);
    return n->device->run->qknorm_rope_forward(n->device, &c);
}

static bool backward(node *n)
{
    qknorm_rope_call c = call_of(n);
    return n->device->run->qknorm_rope_backward(n->device, &c);
}

tensor *layer_qknorm_rope(tape *t, tensor *x, const parameter *weight, const rotation *r, double eps)
{
    assert(x->cols == r->heads * r->dim && r->dim <= HEAD_DIM_MAX);
    node *n = tape_node(t, "qknorm_rope", sizeof(qknorm_rope));
    qknorm_rope *l = n->state;
    l->weight = weight;
    l->rotate = *r;
    l->eps = (float)eps;
    n->in[0] = x;
    n->out = tape_tensor(t, x->rows, x->cols, x->type);
    n->reads_in[0] = true;
    n->saved_bytes = (size_t)(x->rows * r->heads) * sizeof(float);
    n->backward_workspace = (size_t)(n->device->chunks * r->dim) * sizeof(float);
    n->forward = forward;
    n->backward = backward;
    return n->out;
}
