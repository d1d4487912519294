/*
 * Masks: every mask keeps, for query row i, one interval [lo, hi) of keys. One function, one case per mask.
 * Which tiles to skip, which need no test, and backward's ranges all follow from it.
 *
 * Plain C that CUDA compiles too.
 */
#ifndef FATTN_CORE_MASK_H
#define FATTN_CORE_MASK_H

#include "fattn/fattn.h"

typedef struct fattn_interval {
    int64_t lo, hi; /* lo <= hi; both in 0 .. seq_k */
} fattn_interval;

static inline int64_t fattn_mask_offset(const fattn_desc *desc)
{
    return desc->align == FATTN_ALIGN_BOTTOM_RIGHT ? desc->seq_k - desc->seq_q : 0;
}

/* The keys that row i keeps. desc is a valid one. */
static inline fattn_interval fattn_mask_row(const fattn_desc *desc, int64_t i)
{
    int64_t lo = 0, hi = desc->seq_k;
    const int64_t diagonal = i + fattn_mask_offset(desc);
    const int64_t unbounded = desc->seq_q + desc->seq_k; /* as far as any diagonal reaches; beyond it sums could overflow */
    switch (desc->mask) {
    case FATTN_MASK_CAUSAL:
        hi = diagonal + 1;
        break;
    case FATTN_MASK_WINDOW:
        if (desc->window_left >= 0 && desc->window_left < unbounded)
            lo = diagonal - desc->window_left;
        if (desc->window_right >= 0 && desc->window_right < unbounded)
            hi = diagonal + desc->window_right + 1;
        break;
    default:
        break;
    }
    if (lo < 0)
        lo = 0;
    if (hi > desc->seq_k)
        hi = desc->seq_k;
    if (lo >= hi)
        lo = hi = 0;
    return (fattn_interval){lo, hi};
}

#endif
