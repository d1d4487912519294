/*
 * Masks: every mask keeps, for query row i, one interval [lo, hi) of keys. One function, one case per mask.
 * Which tiles to skip, which need no test, and backward's ranges all follow from it.
 *
 * Plain C that CUDA compiles too.
 */
#ifndef FATTN_CORE_MASK_H
#define FATTN_CORE_MASK_H

#include "core/inline.h"
#include "fattn/fattn.h"

typedef struct fattn_interval {
    int64_t lo, hi; /* lo <= hi; both in 0 .. seq_k */
} fattn_interval;

/* The mask of one sequence. */
typedef struct fattn_rows_mask {
    int32_t kind;                           /* fattn_mask */
    int64_t seq_q, seq_k;                   /* of this sequence */
    int64_t offset;                         /* row i stands at key i + offset */
    int64_t left, right, size;              /* desc.window_left, window_right, mask_size */
    const int32_t *lo, *hi;                 /* of row 0 */
    const int32_t *document_q, *document_k; /* of row 0 and key 0 */
} fattn_rows_mask;

/* What a descriptor says for a sequence of these lengths; the arrays stay NULL. */
FATTN_INLINE fattn_rows_mask fattn_mask_of(const fattn_desc *desc, int64_t seq_q, int64_t seq_k)
{
    fattn_rows_mask m = {0};
    m.kind = desc->mask;
    m.seq_q = seq_q;
    m.seq_k = seq_k;
    m.offset = desc->align == FATTN_ALIGN_BOTTOM_RIGHT ? seq_k - seq_q : 0;
    m.left = desc->window_left;
    m.right = desc->window_right;
    m.size = desc->mask_size;
    return m;
}

/* The first of n ascending numbers that is at least x; n if none is. */
FATTN_INLINE int64_t fattn_lower_bound(const int32_t *numbers, int64_t n, int64_t x)
{
    int64_t lo = 0;
    while (lo < n) {
        const int64_t middle = lo + (n - lo) / 2;
        if (numbers[middle] < x)
            lo = middle + 1;
        else
            n = middle;
    }
    return lo;
}

FATTN_INLINE int64_t fattn_larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The keys that row i keeps. */
FATTN_INLINE fattn_interval fattn_mask_row(const fattn_rows_mask *m, int64_t i)
{
    int64_t lo = 0, hi = m->seq_k;
    const int64_t diagonal = i + m->offset;
    const int64_t unbounded = m->seq_q + m->seq_k; /* as far as any diagonal reaches; beyond it sums could overflow */
    switch (m->kind) {
    case FATTN_MASK_CAUSAL:
        hi = diagonal + 1;
        break;
    case FATTN_MASK_CHUNKED:
        lo = diagonal < 0 ? 0 : diagonal / m->size * m->size;
        hi = diagonal + 1;
        break;
    case FATTN_MASK_PREFIX:
        hi = fattn_larger(diagonal + 1, m->size);
        break;
    case FATTN_MASK_INTERVALS:
        lo = m->lo[i];
        hi = m->hi[i];
        break;
    case FATTN_MASK_DOCUMENT:
        lo = fattn_lower_bound(m->document_k, m->seq_k, m->document_q[i]);
        hi = fattn_lower_bound(m->document_k, m->seq_k, (int64_t)m->document_q[i] + 1);
        break;
    default:
        break;
    }
    if (m->kind == FATTN_MASK_WINDOW || m->kind == FATTN_MASK_DOCUMENT) {
        if (m->left >= 0 && m->left < unbounded)
            lo = fattn_larger(lo, diagonal - m->left);
        if (m->right >= 0 && m->right < unbounded && diagonal + m->right + 1 < hi)
            hi = diagonal + m->right + 1;
    }
    if (lo < 0)
        lo = 0;
    if (hi > m->seq_k)
        hi = m->seq_k;
    if (lo >= hi)
        lo = hi = 0;
    return (fattn_interval){lo, hi};
}

/* Rows outside which none keeps any of the keys key_lo .. key_hi - 1; of masks with arrays all rows. */
FATTN_INLINE fattn_interval fattn_mask_rows(const fattn_rows_mask *m, int64_t key_lo, int64_t key_hi)
{
    int64_t lo = 0, hi = m->seq_q;
    const int64_t unbounded = m->seq_q + m->seq_k;
    switch (m->kind) {
    case FATTN_MASK_CAUSAL:
        lo = key_lo - m->offset;
        break;
    case FATTN_MASK_CHUNKED:
        lo = key_lo - m->offset;
        if (m->size < unbounded)
            hi = ((key_hi - 1) / m->size + 1) * m->size - m->offset;
        break;
    case FATTN_MASK_PREFIX:
        lo = key_lo < m->size ? 0 : key_lo - m->offset;
        break;
    case FATTN_MASK_WINDOW:
        if (m->left >= 0 && m->left < unbounded)
            hi = key_hi + m->left - m->offset;
        if (m->right >= 0 && m->right < unbounded)
            lo = key_lo - m->right - m->offset;
        break;
    default:
        break;
    }
    if (lo < 0)
        lo = 0;
    if (hi > m->seq_q)
        hi = m->seq_q;
    if (lo >= hi)
        lo = hi = 0;
    return (fattn_interval){lo, hi};
}

#endif
