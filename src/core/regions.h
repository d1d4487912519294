/*
 * Regions: the bytes of a tensor, to see that tensors lie within the address space and outputs apart.
 *
 * A tensor becomes a region: three loops (batch, head, row) over runs of contiguous bytes, sorted by step. An output's region
 * must be nested, each step at least the span of all that the smaller ones reach, which every layout made by permuting and
 * slicing a contiguous buffer is. In a nested region, whether an address belongs to it follows from three divisions.
 *
 * Two regions overlap for certain where the lowest or highest byte of one belongs to the other. This is what is refused.
 * Interleaved tensors, such as packed q, k, v and their gradients, have no common byte and pass; odd overlaps in the middle of
 * two sparse regions are not found.
 */
#ifndef FATTN_CORE_REGIONS_H
#define FATTN_CORE_REGIONS_H

#include "fattn/fattn.h"

typedef struct fattn_region {
    const char *name;
    uintptr_t lo, hi;  /* first byte, and the one past the last; equal if it has no elements */
    uint64_t step[3];  /* bytes, descending */
    uint64_t count[3]; /* 1 where the step is 0 */
    uint64_t run;      /* contiguous bytes at the bottom */
} fattn_region;

/* Turns a view of a tensor [batch, heads, rows, dim] with elements of `size` bytes into a region, or says why it is none. */
fattn_status fattn_region_view(fattn_region *r, const char *name, const fattn_view *view, size_t size, int64_t batch,
                               int64_t heads, int64_t rows, int64_t dim);

/* The same for an output, whose elements must not overlap. */
fattn_status fattn_region_output(fattn_region *r, const char *name, const fattn_view *view, size_t size, int64_t batch,
                                 int64_t heads, int64_t rows, int64_t dim);

/* One contiguous array; NULL has no bytes. */
fattn_status fattn_region_array(fattn_region *r, const char *name, const void *data, size_t size, int64_t elements);

/* An error if the output shares bytes with any of the others. */
fattn_status fattn_region_apart(const fattn_region *output, const fattn_region *others, int count);

#endif
