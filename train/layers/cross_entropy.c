/*
 * Cross-entropy, the sum over the rows that have a target:
 *
 *     loss = sum_r (lse_r - x[r][target_r]),   lse_r = ln sum_c e^x[r][c]               x = logits [rows, vocab], float
 *
 * Rows with target -1 do not count. The rows' losses are added in double. What the sum is divided by is the caller's affair: a
 * mean may be over several batches, with another number of targets in each.
 *
 * Backward: dx[r][c] = scale (e^(x[r][c] - lse_r) - [c = target_r]), and 0 in rows that do not count.
 */
#include "train/layers/layers.h"
#include <assert.h>

typedef struct cross_entropy {
    loss_state *loss;
} cross_entropy;

static cross_entropy_call call_of(const node *n)
{
    const loss_state *l = ((cross_entropy *)n->state)->loss;
    const tensor *x = n->in[0];
    return (cross_entropy_call){.rows = x->rows,
                                .vocab = x->cols,
                                .type = x->grad_type,
                                .x = x->data,
                                .targets = l->targets,
                                .lse = n->saved,
                                .loss = l->loss,
                                .factor = l->scale,
                                .dx = x->grad};
}

static bool forward(node *n)
{
    cross_entropy_call c = call_of(n);
    return n->device->run->cross_entropy_forward(n->device, &c);
}

static bool backward(node *n)
{
    cross_entropy_call c = call_of(n);
    assert(!n->accumulate[0]); /* nobody else reads the logits */
    return n->device->run->cross_entropy_backward(n->device, &c);
}

void layer_cross_entropy(tape *t, tensor *logits, loss_state *state)
{
    node *n = tape_node(t, "cross_entropy", sizeof(cross_entropy));
    ((cross_entropy *)n->state)->loss = state;
    n->in[0] = logits;
    n->reads_in[0] = true;
    n->saved_bytes = (size_t)logits->rows * sizeof(float);
    n->forward = forward;
    n->backward = backward;
}
