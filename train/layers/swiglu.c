/*
 * SwiGLU: out = g sigmoid(g) u        x = [g | u] [rows, 2 ffn], out [rows, ffn]
 *
 * Backward, with s = sigmoid(g):  dg = dout u s (1 + g (1 - s)),  du = dout g s.
 */
#include "train/layers/layers.h"
#include <assert.h>

static swiglu_call call_of(const node *n)
{
    return (swiglu_call){.rows = n->out->rows,
                         .ffn = n->out->cols,
                         .type = n->out->type,
                         .x = n->in[0]->data,
                         .out = n->out->data,
                         .dout = n->out->grad,
                         .dx = n->in[0]->grad};
}

static bool forward(node *n)
{
    swiglu_call c = call_of(n);
    return n->device->run->swiglu_forward(n->device, &c);
}

static bool backward(node *n)
{
    swiglu_call c = call_of(n);
    assert(!n->accumulate[0]); /* nobody else reads gate and up */
    return n->device->run->swiglu_backward(n->device, &c);
}

tensor *layer_swiglu(tape *t, tensor *x)
{
    node *n = tape_node(t, "swiglu", 0);
    n->in[0] = x;
    n->out = tape_tensor(t, x->rows, x->cols / 2, x->type);
    n->reads_in[0] = true;
    n->forward = forward;
    n->backward = backward;
    return n->out;
}
