/*
 * Dropout on a residual branch: out = residual + m x / (1 - p)         x, out [rows, cols]; residual and out float
 *
 * m is 1 where word c % 4 of Philox4x32-10, with key dropout_key() and counter (c / 4, row, row / 2^32, 0), is at least p 2^32,
 * rounded; else 0. Backward draws it again: dx = m dout / (1 - p), dresidual = dout.
 */
#include "train/layers/layers.h"
#include <assert.h>
#include <math.h>

static dropout_call call_of(const node *n)
{
    const dropout *d = n->state;
    return (dropout_call){.rows = n->out->rows,
                          .cols = n->out->cols,
                          .key = dropout_key(d),
                          .least = (uint32_t)fmin(nearbyint(d->p * 0x1p32), 0x1p32 - 1),
                          .factor = (float)(1.0 / (1.0 - d->p))};
}

static bool forward(node *n)
{
    dropout_call c = call_of(n);
    c.from = n->in[0]->data;
    c.from_type = n->in[0]->type;
    c.add = n->in[1]->data;
    c.to = n->out->data;
    c.to_type = n->out->type;
    return n->device->run->dropout(n->device, &c);
}

static bool backward(node *n)
{
    const tensor *residual = n->in[1], *out = n->out;
    dropout_call c = call_of(n);
    assert(!n->accumulate[0]); /* nobody else reads the branch */
    c.from = out->grad;
    c.from_type = out->grad_type;
    c.to = n->in[0]->grad;
    c.to_type = n->in[0]->grad_type;
    const copy_call pass = {.rows = out->rows,
                            .cols = out->cols,
                            .to_stride = out->cols,
                            .from_stride = out->cols,
                            .to_type = residual->grad_type,
                            .from_type = out->grad_type,
                            .add = n->accumulate[1],
                            .to = residual->grad,
                            .from = out->grad};
    return n->device->run->dropout(n->device, &c) && (residual->grad == out->grad || n->device->run->copy(n->device, &pass));
}

tensor *layer_dropout_residual(tape *t, tensor *x, const dropout *d, tensor *residual)
{
    node *n = tape_node(t, "dropout", sizeof(dropout));
    *(dropout *)n->state = *d;
    n->in[0] = x;
    n->in[1] = residual;
    n->out = tape_tensor(t, x->rows, x->cols, NUMBER_F32);
    n->passes_gradient = 1;
    n->forward = forward;
    n->backward = backward;
    return n->out;
}
