/*
 * Cross-entropy, the mean over the rows that have a target:
 *
 *     loss = 1/N sum_r (lse_r - x[r][target_r]),   lse_r = ln sum_c e^x[r][c]           x = logits [rows, vocab], float
 *
 * Rows with target -1 do not count, N is the number of the others. The rows' losses are added in double.
 *
 * Backward: dx[r][c] = scale/N (e^(x[r][c] - lse_r) - [c = target_r]), and 0 in rows that do not count.
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
                                .counted = l->counted,
                                .type = x->grad_type,
                                .x = x->data,
                                .targets = l->targets,
                                .lse = n->saved,
                                .loss = l->loss,
                                .factor = l->counted ? l->scale / (float)l->counted : 0.0f,
                                .dx = x->grad};
}

static bool forward(node *n)
{
    cross_entropy_call c = call_of(n);
    return c.counted == 0 || n->device->run->cross_entropy_forward(n->device, &c);
}

static bool backward(node *n)
{
    cross_entropy_call c = call_of(n);
    assert(!n->accumulate[0]); /* nobody else reads the logits */
    if (c.counted == 0)
        return n->device->run->fill(n->device, c.dx, 0, (size_t)(c.rows * c.vocab) * number_bytes(c.type));
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
