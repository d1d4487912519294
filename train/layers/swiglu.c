/*
 * SwiGLU: out = g sigmoid(g) u        x = [g | u] [rows, 2 ffn], out [rows, ffn]
 *
 * Backward, with s = sigmoid(g):  dg = dout u s (1 + g (1 - s)),  du = dout g s.
 */
#include "train/layers/layers.h"
#include <assert.h>

static swiglu_call call_of(const node *n, void *out)
{
    const tensor *x = n->in[0];
    return (swiglu_call){.rows = x->rows, .ffn = x->cols / 2, .type = x->type, .x = x->data, .out = out, .dx = x->grad};
}

static bool make(node *n, const feed *f, void *made)
{
    swiglu_call c = call_of(n, made);
    (void)f;
    return n->device->run->swiglu_forward(n->device, &c);
}

static bool pass(node *n, const feed *f, void *dmade, void *scratch)
{
    swiglu_call c = call_of(n, dmade);
    (void)f, (void)scratch;
    assert(!n->accumulate[0]); /* nobody else reads gate and up */
    c.dout = dmade;
    return n->device->run->swiglu_backward(n->device, &c);
}

feed feed_swiglu(void)
{
    return (feed){.make = make, .pass = pass};
}
