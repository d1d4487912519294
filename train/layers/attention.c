/*
 * The attention node: q, k, v -> out and, beside it, lse [batch, heads, seq]. That is all that backward is given; how the
 * gradient is computed is the library's affair (train/attention.h).
 *
 *     q, out [rows, heads * dim], k and v [rows, heads_kv * dim]; any of q, k, v may be columns of a wider tensor
 */
#include "train/layers/layers.h"
#include <assert.h>

static attention_rows values(const tensor *x)
{
    return (attention_rows){x->data, x->stride};
}

static attention_rows gradients(const tensor *x)
{
    return (attention_rows){x->grad, x->stride};
}

static bool forward(node *n)
{
    return attention_forward(n->state, values(n->in[0]), values(n->in[1]), values(n->in[2]), values(n->out), n->saved,
                             n->workspace, n->forward_workspace);
}

static bool backward(node *n)
{
    const tensor *q = n->in[0], *k = n->in[1], *v = n->in[2];
    assert(!n->accumulate[0] && !n->accumulate[1] && !n->accumulate[2]); /* the library writes gradients, it does not add */
    return attention_backward(n->state, values(q), values(k), values(v), values(n->out), gradients(n->out), n->saved,
                              gradients(q), gradients(k), gradients(v), n->workspace, n->backward_workspace);
}

tensor *layer_attention(tape *t, tensor *q, tensor *k, tensor *v, const attention *a)
{
    node *n = tape_node(t, "attention", sizeof(attention));
    *(attention *)n->state = *a;
    n->in[0] = q;
    n->in[1] = k;
    n->in[2] = v;
    n->out = tape_tensor(t, q->rows, q->cols, q->type);
    for (int i = 0; i < NODE_INPUTS; i++)
        n->reads_in[i] = true;
    n->reads_out = true;
    n->saved_bytes = (size_t)(a->batch * a->heads * a->seq_q) * sizeof(float);
    if (!attention_workspace(a, FATTN_OP_FORWARD, &n->forward_workspace))
        tape_fail(t);
    /* Evaluation by blocks has no backward; a step that wants one has refused it by now. */
    if (a->path.kind != ATTENTION_BLOCK && !attention_workspace(a, FATTN_OP_BACKWARD, &n->backward_workspace))
        tape_fail(t);
    n->forward = forward;
    n->backward = backward;
    return n->out;
}
