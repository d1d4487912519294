/*
 * The sequences of a batch, packed, padded or all alike: where one lies, how long it is, what its rows keep. Kernels ask here,
 * and work with rows and keys that count from 0 in each sequence.
 */
#ifndef FATTN_CORE_SEQUENCE_H
#define FATTN_CORE_SEQUENCE_H

#include <math.h>

#include "core/convert.h"
#include "core/kernel.h"
#include "core/mask.h"

typedef struct fattn_sequence {
    int64_t b;
    int64_t seq_q, seq_k;        /* rows and keys that exist */
    int64_t q_first, k_first;    /* rows of packed tensors before it; else 0 */
    int64_t lse_first, lse_head; /* element (h, i) of lse is lse_first + h * lse_head + i */
    fattn_rows_mask mask;
} fattn_sequence;

FATTN_INLINE fattn_sequence fattn_sequence_of(const fattn_problem *problem, const fattn_launch *at, int64_t b)
{
    const fattn_desc *d = &problem->desc;
    fattn_sequence s = {.b = b, .seq_q = d->seq_q, .seq_k = d->seq_k};
    int64_t row = b * d->seq_q, key = b * d->seq_k; /* of arrays that hold one number per row */
    s.lse_first = b * d->heads_q * d->seq_q;
    s.lse_head = d->seq_q;
    if (at->cu_q) {
        row = s.q_first = s.lse_first = at->cu_q[b];
        s.lse_head = d->total_q;
        s.seq_q = at->cu_q[b + 1] - s.q_first;
    }
    if (at->cu_k) {
        key = s.k_first = at->cu_k[b];
        s.seq_k = at->cu_k[b + 1] - s.k_first;
    }
    if (at->used_q)
        s.seq_q = at->used_q[b];
    if (at->used_k)
        s.seq_k = at->used_k[b];
    s.mask = fattn_mask_of(d, s.seq_q, s.seq_k);
    if (d->mask == FATTN_MASK_INTERVALS) {
        s.mask.lo = at->mask_lo + (at->cu_q ? row : b * at->mask_stride);
        s.mask.hi = at->mask_hi + (at->cu_q ? row : b * at->mask_stride);
    }
    if (d->mask == FATTN_MASK_DOCUMENT) {
        s.mask.document_q = at->document_q + row;
        s.mask.document_k = at->document_k + key;
    }
    return s;
}

/* Row i of head h of q, out, dout, dq. */
FATTN_INLINE void *fattn_query_row(const fattn_view *view, size_t size, const fattn_sequence *s, int64_t h, int64_t i)
{
    return fattn_row(view, size, s->b, h, s->q_first + i);
}

/* Key or value j of head h, from wherever it lies. */
FATTN_INLINE void *fattn_key_row(const fattn_problem *problem, const fattn_launch *at, const fattn_view *view, size_t size,
                                 const fattn_sequence *s, int64_t h, int64_t j)
{
    const int64_t page_size = problem->desc.page_size;
    if (page_size == 0)
        return fattn_row(view, size, s->b, h, s->k_first + j);
    const int64_t pages = (problem->desc.seq_k + page_size - 1) / page_size; /* in a row of the table */
    return fattn_row(view, size, at->page_table[s->b * pages + j / page_size], h, j % page_size);
}

/* Index of the factor of key j of head h in k_scales and v_scales. */
FATTN_INLINE int64_t fattn_scale_index(const fattn_problem *problem, const fattn_launch *at, const fattn_sequence *s, int64_t h,
                                       int64_t j)
{
    const fattn_desc *d = &problem->desc;
    if (d->page_size > 0) {
        const int64_t pages = (d->seq_k + d->page_size - 1) / d->page_size;
        return (at->page_table[s->b * pages + j / d->page_size] * d->heads_kv + h) * d->page_size + j % d->page_size;
    }
    return at->cu_k ? h * d->total_k + s->k_first + j : (s->b * d->heads_kv + h) * d->seq_k + j;
}

/* What a score becomes before the mask: softcap, bias and ALiBi of scale q.k. The definition, in double. */
FATTN_INLINE double fattn_score(const fattn_problem *problem, const fattn_launch *at, const fattn_sequence *s, int64_t h,
                                int64_t i, int64_t j, double x)
{
    const fattn_desc *d = &problem->desc;
    if (d->softcap != 0)
        x = d->softcap * tanh(x / d->softcap);
    if (d->flags & FATTN_WITH_BIAS)
        x += fattn_element(fattn_row(&at->bias, fattn_dtype_size(d->dtype), s->b, h, i), d->dtype, j);
    if (d->flags & FATTN_WITH_SLOPES)
        x -= (double)at->slopes[h] * fabs((double)(i + s->mask.offset - j));
    return x;
}

#endif
