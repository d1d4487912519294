/*
 * RMS norm of every row: u = x s, out = u w,  s = 1 / sqrt(mean(x^2) + eps)      x, out [rows, cols], w [cols], s [rows]
 *
 * Backward, with g = dout w:  dx = s (g - u mean(g u)),  dw += sum over rows of dout u.
 *
 * x is the residual stream, float always; out goes into a product, and has the tape's type.
 */
#include "train/layers/layers.h"

typedef struct rmsnorm {
    const parameter *weight;
    float eps;
} rmsnorm;

static rmsnorm_call call_of(const node *n)
{
    const rmsnorm *l = n->state;
    const tensor *x = n->in[0];
    return (rmsnorm_call){.rows = x->rows,
                          .cols = x->cols,
                          .type = n->out->type,
                          .accumulate = n->accumulate[0],
                          .eps = l->eps,
                          .x = x->data,
                          .weight = l->weight->data,
                          .out = n->out->data,
                          .rstd = n->saved,
                          .dout = n->out->grad,
                          .dx = x->grad,
                          .dweight = l->weight->grad,
                          .partial = n->workspace};
}

static bool forward(node *n)
{
    rmsnorm_call c = call_of(n);
    return n->device->run->rmsnorm_forward(n->device, &c);
}

static bool backward(node *n)
{
    rmsnorm_call c = call_of(n);
    return n->device->run->rmsnorm_backward(n->device, &c);
}

tensor *layer_rmsnorm(tape *t, tensor *x, const parameter *weight, double eps)
{
    node *n = tape_node(t, "rmsnorm", sizeof(rmsnorm));
    rmsnorm *l = n->state;
    l->weight = weight;
    l->eps = (float)eps;
    n->in[0] = x;
    n->out = tape_tensor(t, x->rows, x->cols, n->type);
    n->reads_in[0] = true;
    n->saved_bytes = (size_t)x->rows * sizeof(float);
    n->backward_workspace = (size_t)(n->device->chunks * x->cols) * sizeof(float);
    n->forward = forward;
    n->backward = backward;
    return n->out;
}
