/*
 * Linear layer: out = x W^T, or out = residual + x W^T         x [rows, in], W [out, in], out [rows, out]
 *
 * Backward: dx = dout W,  dW += dout^T x,  dresidual = dout, which costs nothing where the tape gives both the same memory.
 *
 * Both factors of a product have the type of x: W is read in that type, and the gradient of a float output is rounded to it
 * first. Residual streams and logits are float, so that what every layer adds is rounded no more than the products' sums are.
 */
#include "train/layers/layers.h"

typedef struct linear {
    matrix weight;
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

static bool forward(node *n)
{
    const linear *l = n->state;
    return linear_forward(n->device, n->out->data, n->out->type, n->in[0]->data, n->in[0]->type, n->out->rows, &l->weight,
                          n->in[1] ? n->in[1]->data : NULL);
}

/* dx = dout W and dW += dout^T x, from dout in the type of x. */
static bool backward_products(node *n, const void *dout)
{
    const matrix *w = &((const linear *)n->state)->weight;
    const tensor *x = n->in[0];
    int64_t rows = x->rows, in = w->cols, out = w->rows;
    product_call dx = {.type = x->type,
                       .c_type = x->grad_type,
                       .m = rows,
                       .n = in,
                       .k = out,
                       .a = dout,
                       .lda = out,
                       .b = operand(w, x->type),
                       .ldb = in,
                       .beta = n->accumulate[0] ? 1.0f : 0.0f,
                       .c = x->grad,
                       .ldc = in};
    product_call dw = {.transpose_a = true,
                       .type = x->type,
                       .c_type = NUMBER_F32,
                       .m = out,
                       .n = in,
                       .k = rows,
                       .a = dout,
                       .lda = out,
                       .b = x->data,
                       .ldb = in,
                       .beta = 1.0f,
                       .c = w->grad,
                       .ldc = in};
    return n->device->run->product(n->device, &dx) && n->device->run->product(n->device, &dw);
}

static bool backward(node *n)
{
    const tensor *x = n->in[0], *residual = n->in[1], *out = n->out;
    const void *dout = out->grad;
    if (out->grad_type != x->type) {
        if (!copy_rows(n->device, n->workspace, x->type, dout, out->grad_type, false, out->rows, out->cols))
            return false;
        dout = n->workspace;
    }
    if (!backward_products(n, dout))
        return false;
    return !residual || residual->grad == out->grad ||
           copy_rows(n->device, residual->grad, residual->grad_type, out->grad, out->grad_type, n->accumulate[1], out->rows,
                     out->cols);
}

static tensor *record(tape *t, tensor *x, const matrix *weight, tensor *residual, number_type type)
{
    node *n = tape_node(t, "linear", sizeof(linear));
    ((linear *)n->state)->weight = *weight;
    n->in[0] = x;
    n->in[1] = residual;
    n->out = tape_tensor(t, x->rows, weight->rows, type);
    n->reads_in[0] = true;
    n->passes_gradient = residual ? 1 : -1;
    if (residual && type != x->type)
        n->backward_workspace = (size_t)(n->out->rows * n->out->cols) * number_bytes(x->type);
    n->forward = forward;
    n->backward = backward;
    return n->out;
}

tensor *layer_linear(tape *t, tensor *x, const matrix *weight)
{
    return record(t, x, weight, NULL, x->type);
}

tensor *layer_linear_residual(tape *t, tensor *x, const matrix *weight, tensor *residual)
{
    return record(t, x, weight, residual, NUMBER_F32);
}

tensor *layer_linear_logits(tape *t, tensor *x, const matrix *weight)
{
    tensor *out = record(t, x, weight, NULL, NUMBER_F32);
    out->grad_type = x->type;
    return out;
}
