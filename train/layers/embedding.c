/*
 * Embedding: out[r] = W[tokens[r]]        tokens [rows], W [vocab, hidden], out [rows, hidden]
 *
 * Backward: dW[tokens[r]] += dout[r]. Equal tokens meet in one row of dW, so the work is shared out by columns: a thread adds
 * up all rows, in order, for columns of its own.
 */
#include "train/layers/chunks.h"
#include "train/layers/layers.h"
#include <string.h>

typedef struct embedding {
    const int32_t *tokens;
    matrix weight;
} embedding;

void embedding_forward(float *out, const int32_t *tokens, int64_t rows, const matrix *weight)
{
    int64_t hidden = weight->cols;
#pragma omp parallel for schedule(static) if (rows * hidden > PARALLEL_WORK)
    for (int64_t r = 0; r < rows; r++)
        memcpy(out + r * hidden, weight->data + tokens[r] * hidden, (size_t)hidden * sizeof *out);
}

static bool forward(node *n)
{
    const embedding *e = n->state;
    embedding_forward(n->out->data, e->tokens, n->out->rows, &e->weight);
    return true;
}

static bool backward(node *n)
{
    enum { COLUMNS = 32 }; /* a thread's share: two cache lines, so threads do not write to each other's */
    const embedding *e = n->state;
    int64_t rows = n->out->rows, hidden = e->weight.cols;
#pragma omp parallel for schedule(static) if (rows * hidden > PARALLEL_WORK)
    for (int64_t first = 0; first < hidden; first += COLUMNS) {
        int64_t count = hidden - first < COLUMNS ? hidden - first : COLUMNS;
        for (int64_t r = 0; r < rows; r++) {
            const float *dout = n->out->grad + r * hidden + first;
            float *dw = e->weight.grad + e->tokens[r] * hidden + first;
            for (int64_t c = 0; c < count; c++)
                dw[c] += dout[c];
        }
    }
    return true;
}

tensor *layer_embedding(tape *t, const int32_t *tokens, int64_t rows, const matrix *weight)
{
    node *n = tape_node(t, "embedding", sizeof(embedding));
    embedding *e = n->state;
    e->tokens = tokens;
    e->weight = *weight;
    n->out = tape_tensor(t, rows, weight->cols);
    n->forward = forward;
    n->backward = backward;
    return n->out;
}
