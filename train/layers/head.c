/*
 * The head and its loss, the sum over the rows that have a target:
 *
 *     logits = x W^T                                                   x [rows, hidden], W [vocab, hidden], logits float
 *     loss = sum_r (lse_r - logits[r][target_r]),   lse_r = ln sum_c e^logits[r][c]
 *
 * Rows with target -1 do not count. The rows' losses are added in double. What the sum is divided by is the caller's affair: a
 * mean may be over several batches, with another number of targets in each.
 *
 * Backward, with g[r][c] = scale (e^(logits[r][c] - lse_r) - [c = target_r]), and 0 in rows that do not count:
 * dx = g W,  dW += g^T x.
 *
 * With many words logits are the largest activation by far. So the rows go by chunks, one after the other, and only a chunk's
 * logits exist: backward computes them again, then its loss, puts g in their place, rounded for products, and makes dx and its
 * part of dW from that. As backward thus does all that forward does, forward is left out where backward follows.
 */
#include "train/layers/layers.h"
#include <assert.h>

/* A chunk has this many logits, 1 GiB, but no fewer rows than its part of dW is worth, and a power of two of them. */
enum { CHUNK_LOGITS = 1 << 28, CHUNK_ROWS = 2048 };

typedef struct head {
    matrix weight;
    loss_state *loss;
    tensor *logits;
    int64_t chunk; /* rows */
} head;

int64_t layer_head_rows(int64_t rows, int64_t vocab)
{
    const int64_t most = CHUNK_LOGITS / vocab > CHUNK_ROWS ? CHUNK_LOGITS / vocab : CHUNK_ROWS;
    int64_t chunk = CHUNK_ROWS;
    while (2 * chunk <= most)
        chunk *= 2;
    return rows <= most ? rows : chunk;
}

/* The workspace: rows' losses, then a chunk's logits. */
static size_t losses_bytes(int64_t rows)
{
    return ((size_t)rows * sizeof(double) + MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN;
}

/* Rows `first` and up of a matrix. */
static void *rows_from(void *x, number_type type, int64_t first, int64_t cols)
{
    return (char *)x + (size_t)(first * cols) * number_bytes(type);
}

static bool find_sum(node *n)
{
    const loss_state *l = ((head *)n->state)->loss;
    const loss_sum_call c = {.rows = n->in[0]->rows, .losses = n->workspace, .sum = l->loss};
    return n->device->run->loss_sum(n->device, &c);
}

/* A chunk's logits. */
static bool find_logits(node *n, int64_t first, int64_t rows, float *logits)
{
    const tensor *x = n->in[0];
    return linear_forward(n->device, logits, NUMBER_F32, rows_from(x->data, x->type, first, x->cols), x->type, rows,
                          &((head *)n->state)->weight, NULL);
}

static cross_entropy_call losses_of(const node *n, int64_t first, int64_t rows, const float *logits)
{
    const head *h = n->state;
    return (cross_entropy_call){.rows = rows,
                                .vocab = h->weight.rows,
                                .x = logits,
                                .targets = h->loss->targets + first,
                                .losses = (double *)n->workspace + first};
}

static float *chunk_room(const node *n)
{
    return (float *)((char *)n->workspace + losses_bytes(n->in[0]->rows));
}

static bool forward(node *n)
{
    const head *h = n->state;
    const int64_t rows = n->in[0]->rows, vocab = h->weight.rows;
    for (int64_t first = 0; first < rows; first += h->chunk) {
        const int64_t some = rows - first < h->chunk ? rows - first : h->chunk;
        float *logits = h->logits ? rows_from(h->logits->data, NUMBER_F32, first, vocab) : chunk_room(n);
        const cross_entropy_call c = losses_of(n, first, some, logits);
        if (!find_logits(n, first, some, logits) || !n->device->run->cross_entropy(n->device, &c))
            return false;
    }
    return find_sum(n);
}

/* Loss and gradients of one chunk; the gradient of its logits lies in their place. */
static bool backward_chunk(node *n, int64_t first, int64_t rows)
{
    const head *h = n->state;
    const tensor *x = n->in[0];
    float *logits = chunk_room(n);
    cross_entropy_call c = losses_of(n, first, rows, logits);
    c.type = x->type;
    c.factor = h->loss->scale;
    c.dx = logits;
    c.dx_stride = c.vocab * (int64_t)(sizeof(float) / number_bytes(c.type));
    const linear_gradient g = {.rows = rows,
                               .type = x->type,
                               .dx_type = x->grad_type,
                               .add = n->accumulate[0],
                               .dout = c.dx,
                               .dout_stride = c.dx_stride,
                               .x = rows_from(x->data, x->type, first, x->cols),
                               .dx = rows_from(x->grad, x->grad_type, first, x->cols)};
    return find_logits(n, first, rows, logits) && n->device->run->cross_entropy(n->device, &c) &&
           linear_input_gradient(n->device, &g, &h->weight) && linear_weight_gradient(n->device, &g, &h->weight);
}

static bool backward(node *n)
{
    const head *h = n->state;
    const tensor *x = n->in[0];
    for (int64_t first = 0; first < x->rows; first += h->chunk)
        if (!backward_chunk(n, first, x->rows - first < h->chunk ? x->rows - first : h->chunk))
            return false;
    return find_sum(n);
}

void layer_head(tape *t, tensor *x, const matrix *weight, loss_state *state, tensor *logits, int64_t chunk)
{
    node *n = tape_node(t, "head", sizeof(head));
    const int64_t rows = chunk ? chunk : layer_head_rows(x->rows, weight->rows);
    const size_t room = (size_t)(rows < x->rows ? rows : x->rows) * (size_t)weight->rows * sizeof(float);
    *(head *)n->state = (head){*weight, state, logits, rows};
    n->in[0] = x;
    n->reads_in[0] = true;
    n->late = true;
    n->forward_workspace = losses_bytes(x->rows) + (logits ? 0 : room);
    n->backward_workspace = losses_bytes(x->rows) + room;
    n->forward = forward;
    n->backward = backward;
}
