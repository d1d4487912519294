/*
 * The model's attention, as calls of the library: causal, over [batch, seq, heads, dim] laid out as the projections leave
 * it. Queries may be the last seq_q of seq_k positions (decoding). No copies, no transposes: the library takes strides.
 *
 * ATTENTION_BLOCK evaluates the key blocks [j, j + size) apart, each with its own out_j and lse_j, and merges them:
 *
 *     lse = ln(e^lse + e^lse_j)         out = e^(lse - lse') out + e^(lse_j - lse') out_j          lse' the new one
 *
 * which is exact, as the online softmax is. Blocks' results and their sums are float, and the sum is rounded once.
 *
 * A context whose kernels know no bf16 (composed on the CPU) is given floats: q, k, v and dout are widened into the workspace,
 * and what comes back is rounded.
 *
 * Dropout of probabilities is the library's: a function of the seed and of batch, head, query and key.
 */
#ifndef TRAIN_ATTENTION_H
#define TRAIN_ATTENTION_H

#include "dropout.h"
#include "model.h"

typedef struct attention {
    const fattn_context *context;
    attention_path path;
    device *device;
    number_type type; /* of q, k, v, out and their gradients; lse is float */
    bool widens;      /* the context is given floats */
    int64_t batch, heads, heads_kv, seq_q, seq_k, dim;
    dropout drop;             /* of probabilities */
    const int32_t *documents; /* [batch, seq], of the device: rows attend within their document; NULL: to all before them. Where
                                 ranks share sequences: as ring_place_documents() has them */
    ranks *ring;              /* whose shards have the other rows of the sequences (ring.h); NULL: all rows are here */
} attention;

/* Where the rows of a tensor lie: row b*seq + i at data + (b*seq + i) * stride, head h at column h*dim. */
typedef struct attention_rows {
    void *data;
    int64_t stride;
} attention_rows;

/* A problem of this runtime: its context, device and type. */
attention attention_problem(const runtime *r, attention_path path, int64_t batch, int64_t heads, int64_t heads_kv,
                            int64_t seq_q, int64_t seq_k, int64_t dim);
/* Bytes of workspace. False, with train_error() set, if the library refuses the problem. */
bool attention_workspace(const attention *a, fattn_op op, size_t *bytes);
/* lse [batch, heads, seq_q]. False with train_error() set. */
bool attention_forward(const attention *a, attention_rows q, attention_rows k, attention_rows v, attention_rows out, float *lse,
                       void *workspace, size_t bytes);
/* Writes dq, dk, dv. */
bool attention_backward(const attention *a, attention_rows q, attention_rows k, attention_rows v, attention_rows out,
                        attention_rows dout, const float *lse, attention_rows dq, attention_rows dk, attention_rows dv,
                        void *workspace, size_t bytes);

#endif
