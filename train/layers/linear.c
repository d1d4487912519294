/*
 * Linear layer: out = f(x) W^T, or out = residual + f(x) W^T         f(x) [rows, in], W [out, in], out [rows, out]
 *
 * f is a feed: nothing, the norm before the product or SwiGLU. What it makes is read by this product alone and is cheap, so it
 * is not kept: backward makes it again.
 *
 * Backward: df = dout W,  dx from df by the feed,  dW += dout^T f(x),  dresidual = dout, which costs nothing where the tape
 * gives both the same memory. A feed's backward reads what f was made from anyway, so it makes f(x) as well, where df was,
 * and dW comes last.
 *
 * Both factors of a product have the same type, of activations: W is read in that type, and the gradient of a float output is
 * rounded to it first. Residual streams and logits are float, so that what every layer adds is rounded no more than the
 * products' sums are.
 */
#include "train/layers/layers.h"

typedef struct linear {
    matrix weight;
    feed feed;
    number_type type; /* of the product's factors */
} linear;

static const void *operand(const matrix *w, number_type type)
{
    return type == NUMBER_BF16 ? w->rounded : w->data;
}

static bool copy_rows(device *d, void *to, number_type to_type, const void *from, number_type from_type, bool add, int64_t rows,
                      int64_t cols)
{
    copy_call c = {.rows = rows,
                   .cols = cols,
                   .to_stride = cols,
                   .from_stride = cols,
                   .to_type = to_type,
                   .from_type = from_type,
                   .add = add,
                   .to = to,
                   .from = from};
    return d->run->copy(d, &c);
}

bool linear_forward(device *d, void *out, number_type out_type, const void *x, number_type type, int64_t rows,
                    const matrix *weight, const void *residual)
{
    product_call c = {.transpose_b = true,
                      .type = type,
                      .c_type = out_type,
                      .m = rows,
                      .n = weight->rows,
                      .k = weight->cols,
                      .a = x,
                      .lda = weight->cols,
                      .b = operand(weight, type),
                      .ldb = weight->cols,
                      .beta = residual ? 1.0f : 0.0f,
                      .from = residual,
                      .c = out,
                      .ldc = weight->rows};
    return d->run->product(d, &c);
}

bool linear_input_gradient(device *d, const linear_gradient *g, const matrix *w)
{
    product_call c = {.type = g->type,
                      .c_type = g->dx_type,
                      .m = g->rows,
                      .n = w->cols,
                      .k = w->rows,
                      .a = g->dout,
                      .lda = g->dout_stride,
                      .b = operand(w, g->type),
                      .ldb = w->cols,
                      .beta = g->add ? 1.0f : 0.0f,
                      .c = g->dx,
                      .ldc = w->cols};
    return d->run->product(d, &c);
}

bool linear_weight_gradient(device *d, const linear_gradient *g, const matrix *w)
{
    product_call c = {.transpose_a = true,
                      .type = g->type,
                      .c_type = NUMBER_F32,
                      .m = w->rows,
                      .n = w->cols,
                      .k = g->rows,
                      .a = g->dout,
                      .lda = g->dout_stride,
                      .b = g->x,
                      .ldb = w->cols,
                      .beta = 1.0f,
                      .c = w->grad,
                      .ldc = w->cols};
    return d->run->product(d, &c);
}

/* What the workspace of backward holds, one after the other: what the feed makes, the rounded gradient of out, the feed's own.
 */
static size_t in_steps(size_t bytes)
{
    return (bytes + MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN;
}

static size_t made_bytes(const node *n)
{
    const linear *l = n->state;
    return l->feed.make ? in_steps((size_t)(n->out->rows * l->weight.cols) * number_bytes(l->type)) : 0;
}

static size_t rounded_bytes(const node *n)
{
    const linear *l = n->state;
    return n->out->grad_type == l->type ? 0 : in_steps((size_t)(n->out->rows * n->out->cols) * number_bytes(l->type));
}

static bool forward(node *n)
{
    const linear *l = n->state;
    if (l->feed.make && !l->feed.make(n, &l->feed, n->workspace))
        return false;
    return linear_forward(n->device, n->out->data, n->out->type, l->feed.make ? n->workspace : n->in[0]->data, l->type,
                          n->out->rows, &l->weight, n->in[1] ? n->in[1]->data : NULL);
}

/* df and dx, then dW, from dout in the products' type. */
static bool backward_products(node *n, const void *dout)
{
    const linear *l = n->state;
    const tensor *x = n->in[0];
    const bool fed = l->feed.make != NULL;
    char *made = n->workspace;
    const linear_gradient g = {.rows = n->out->rows,
                               .type = l->type,
                               .dx_type = fed ? l->type : x->grad_type,
                               .add = !fed && n->accumulate[0],
                               .dout = dout,
                               .dout_stride = n->out->cols,
                               .x = fed ? made : x->data,
                               .dx = fed ? made : x->grad};
    return linear_input_gradient(n->device, &g, &l->weight) &&
           (!fed || l->feed.pass(n, &l->feed, made, made + made_bytes(n) + rounded_bytes(n))) &&
           linear_weight_gradient(n->device, &g, &l->weight);
}

static bool backward(node *n)
{
    const linear *l = n->state;
    const tensor *residual = n->in[1], *out = n->out;
    const void *dout = out->grad;
    if (out->grad_type != l->type) {
        void *rounded = (char *)n->workspace + made_bytes(n);
        if (!copy_rows(n->device, rounded, l->type, dout, out->grad_type, false, out->rows, out->cols))
            return false;
        dout = rounded;
    }
    if (!backward_products(n, dout))
        return false;
    return !residual || residual->grad == out->grad ||
           copy_rows(n->device, residual->grad, residual->grad_type, out->grad, out->grad_type, n->accumulate[1], out->rows,
                     out->cols);
}

/* out has the factors' type, or that of the residual. */
static tensor *record(tape *t, tensor *x, const feed *f, const matrix *weight, tensor *residual)
{
    node *n = tape_node(t, "linear", sizeof(linear));
    linear *l = n->state;
    *l = (linear){.weight = *weight, .type = f ? n->type : x->type};
    n->in[0] = x;
    n->in[1] = residual;
    n->out = tape_tensor(t, x->rows, weight->rows, residual ? NUMBER_F32 : l->type);
    n->reads_in[0] = true;
    n->passes_gradient = residual ? 1 : -1;
    if (f)
        l->feed = *f;
    n->saved_bytes = l->feed.saved_bytes * (size_t)x->rows;
    n->forward_workspace = made_bytes(n);
    n->backward_workspace = made_bytes(n) + rounded_bytes(n) + l->feed.scratch_bytes * (size_t)n->device->chunks;
    n->forward = forward;
    n->backward = backward;
    return n->out;
}

tensor *layer_linear(tape *t, tensor *x, const feed *f, const matrix *weight)
{
    return record(t, x, f, weight, NULL);
}

tensor *layer_linear_residual(tape *t, tensor *x, const feed *f, const matrix *weight, tensor *residual)
{
    return record(t, x, f, weight, residual);
}
