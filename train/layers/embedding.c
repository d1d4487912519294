/*
 * Embedding: out[r] = W[tokens[r]]        tokens [rows], W [vocab, hidden], out [rows, hidden], float
 *
 * Backward: dW[tokens[r]] += dout[r].
 */
#include "train/layers/layers.h"

typedef struct embedding {
    const int32_t *tokens;
    matrix weight;
} embedding;

static embedding_call call_of(const node *n)
{
    const embedding *e = n->state;
    return (embedding_call){.rows = n->out->rows,
                            .vocab = e->weight.rows,
                            .hidden = e->weight.cols,
                            .tokens = e->tokens,
                            .weight = e->weight.data,
                            .out = n->out->data,
                            .dout = n->out->grad,
                            .dweight = e->weight.grad};
}

static bool forward(node *n)
{
    embedding_call c = call_of(n);
    return n->device->run->embedding_forward(n->device, &c);
}

static bool backward(node *n)
{
    embedding_call c = call_of(n);
    return n->device->run->embedding_backward(n->device, &c);
}

tensor *layer_embedding(tape *t, const int32_t *tokens, int64_t rows, const matrix *weight)
{
    node *n = tape_node(t, "embedding", sizeof(embedding));
    embedding *e = n->state;
    e->tokens = tokens;
    e->weight = *weight;
    n->out = tape_tensor(t, rows, weight->cols, NUMBER_F32);
    n->forward = forward;
    n->backward = backward;
    return n->out;
}
