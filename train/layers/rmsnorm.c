/*
 * RMS norm of every row: u = x s, out = u w,  s = 1 / sqrt(mean(x^2) + eps)      x, out [rows, cols], w [cols], s [rows]
 *
 * Backward, with g = dout w:  dx = s (g - u mean(g u)),  dw += sum over rows of dout u.
 *
 * x is the residual stream, float always; out goes into a product, and has the tape's type.
 */
#include "train/layers/layers.h"

static rmsnorm_call call_of(const node *n, const parameter *weight, float eps, void *out)
{
    const tensor *x = n->in[0];
    return (rmsnorm_call){.rows = x->rows,
                          .cols = x->cols,
                          .type = n->type,
                          .accumulate = n->accumulate[0],
                          .eps = eps,
                          .x = x->data,
                          .weight = weight->data,
                          .out = out,
                          .rstd = n->saved,
                          .dx = x->grad,
                          .dweight = weight->grad};
}

/* -------------------------------------------------------------------------------------------------- before a linear layer */

static bool make(node *n, const feed *f, void *made)
{
    rmsnorm_call c = call_of(n, f->weight, f->eps, made);
    return n->device->run->rmsnorm_forward(n->device, &c);
}

static bool pass(node *n, const feed *f, void *dmade, void *scratch)
{
    rmsnorm_call c = call_of(n, f->weight, f->eps, dmade);
    c.dout = dmade;
    c.partial = scratch;
    return n->device->run->rmsnorm_backward(n->device, &c);
}

feed feed_rmsnorm(const parameter *weight, double eps)
{
    return (feed){.make = make,
                  .pass = pass,
                  .saved_bytes = sizeof(float),
                  .scratch_bytes = (size_t)weight->size * sizeof(float),
                  .weight = weight,
                  .eps = (float)eps};
}

/* ----------------------------------------------------------------------------------------------------------- by itself */

typedef struct rmsnorm {
    const parameter *weight;
    float eps;
} rmsnorm;

static bool forward(node *n)
{
    const rmsnorm *l = n->state;
    rmsnorm_call c = call_of(n, l->weight, l->eps, n->out->data);
    return n->device->run->rmsnorm_forward(n->device, &c);
}

static bool backward(node *n)
{
    const rmsnorm *l = n->state;
    rmsnorm_call c = call_of(n, l->weight, l->eps, NULL);
    c.dout = n->out->grad;
    c.partial = n->workspace;
    return n->device->run->rmsnorm_backward(n->device, &c);
}

tensor *layer_rmsnorm(tape *t, tensor *x, const parameter *weight, double eps)
{
    node *n = tape_node(t, "rmsnorm", sizeof(rmsnorm));
    *(rmsnorm *)n->state = (rmsnorm){weight, (float)eps};
    n->in[0] = x;
    n->out = tape_tensor(t, x->rows, x->cols, n->type);
    n->reads_in[0] = true;
    n->saved_bytes = (size_t)x->rows * sizeof(float);
    n->backward_workspace = (size_t)(n->device->chunks * x->cols) * sizeof(float);
    n->forward = forward;
    n->backward = backward;
    return n->out;
}
