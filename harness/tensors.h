/*
 * The tensors of a problem, and where a row of one stands in memory.
 */
#ifndef HARNESS_TENSORS_H
#define HARNESS_TENSORS_H

#include "arena.h"
#include "geometry.h"

/* Unused ones are empty. Those below the line are what the descriptor asks for; lists of integers are tensors of one row. */
typedef struct tensors {
    tensor q, k, v, out, lse, dout, dq, dk, dv; /* lse: cols 1 */
    tensor bias, dbias;                         /* [batch or 1, heads or 1, rows or 1, keys], with strides of 0 */
    tensor dlse, slopes, sinks, dsinks;         /* the last three: one row of heads_q */
    tensor k_scales, v_scales;                  /* like k and v, cols 1 */
    tensor cu_q, cu_k, used_q, used_k, lo, hi, document_q, document_k, page_table;
} tensors;

/* Row i of head h of sequence b of a tensor with rows of queries. */
static inline void *query_row(const problem *p, const geometry *g, const tensor *t, int64_t b, int64_t h, int64_t i)
{
    return p->packed_q.kind ? tensor_row(t, 0, h, g->first_q[b] + i) : tensor_row(t, b, h, i);
}

/* The same of a tensor with rows of keys. */
static inline void *key_row(const problem *p, const geometry *g, const tensor *t, int64_t b, int64_t h, int64_t j)
{
    if (p->page_size > 0)
        return tensor_row(t, g->page[b * g->columns + j / p->page_size], h, j % p->page_size);
    return p->packed_k.kind ? tensor_row(t, 0, h, g->first_k[b] + j) : tensor_row(t, b, h, j);
}

/* Element d of key or value j, with its factor. */
static inline double key_get(const problem *p, const geometry *g, const tensor *t, const tensor *scales, int64_t b, int64_t h,
                             int64_t j, int64_t d)
{
    const double x = tensor_get(t, key_row(p, g, t, b, h, j), d);
    return t->type == FATTN_I8 ? x * tensor_get(scales, key_row(p, g, scales, b, h, j), 0) : x;
}

#endif
