/*
 * Cross-entropy, the mean over the rows that have a target:
 *
 *     loss = 1/N sum_r (lse_r - x[r][target_r]),   lse_r = ln sum_c e^x[r][c]           x = logits [rows, vocab]
 *
 * Rows with target -1 do not count, N is the number of the others (at least 1). The rows' losses are added in double.
 *
 * Backward: dx[r][c] = scale/N (e^(x[r][c] - lse_r) - [c = target_r]), and 0 in rows that do not count.
 */
#include "train/fastmath.h"
#include "train/layers/chunks.h"
#include "train/layers/layers.h"
#include <assert.h>
#include <math.h>
#include <string.h>

typedef struct cross_entropy {
    loss_state *loss;
} cross_entropy;

static float row_lse(const float *x, int64_t vocab)
{
    float most = largest(x, vocab), sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < vocab; c++)
        sum += fast_exp(x[c] - most);
    return most + logf(sum);
}

static bool forward(node *n)
{
    loss_state *l = ((cross_entropy *)n->state)->loss;
    const tensor *x = n->in[0];
    float *lse = n->saved; /* [rows] */
    l->loss = 0.0;
    l->counted = 0;
    if (!l->targets)
        return true;
#pragma omp parallel for schedule(static) if (x->rows * x->cols > PARALLEL_WORK)
    for (int64_t r = 0; r < x->rows; r++)
        lse[r] = l->targets[r] < 0 ? 0.0f : row_lse(x->data + r * x->cols, x->cols);
    double sum = 0.0;
    for (int64_t r = 0; r < x->rows; r++) {
        if (l->targets[r] < 0)
            continue;
        sum += (double)lse[r] - (double)x->data[r * x->cols + l->targets[r]];
        l->counted++;
    }
    l->loss = l->counted ? sum / (double)l->counted : 0.0;
    return true;
}

static void backward_row(float *restrict dx, const float *restrict x, int64_t vocab, int32_t target, float lse, float factor)
{
    if (target < 0) {
        memset(dx, 0, (size_t)vocab * sizeof *dx);
        return;
    }
    for (int64_t c = 0; c < vocab; c++)
        dx[c] = factor * fast_exp(x[c] - lse);
    dx[target] -= factor;
}

static bool backward(node *n)
{
    const loss_state *l = ((cross_entropy *)n->state)->loss;
    const tensor *x = n->in[0];
    const float *lse = n->saved;
    float factor = l->counted ? l->scale / (float)l->counted : 0.0f;
    assert(!n->accumulate[0]); /* nobody else reads the logits */
#pragma omp parallel for schedule(static) if (x->rows * x->cols > PARALLEL_WORK)
    for (int64_t r = 0; r < x->rows; r++)
        backward_row(x->grad + r * x->cols, x->data + r * x->cols, x->cols, l->targets ? l->targets[r] : -1, lse[r], factor);
    return true;
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
