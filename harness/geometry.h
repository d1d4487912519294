/*
 * Where the sequences of a problem lie, how long they are and which pairs they keep: everything that stands in a call's lists
 * of integers. Drawn from the problem's seed, or given by its name.
 *
 * Masks are defined pair by pair, as the header's sentences say it, and pages are looked up one key at a time: on purpose in
 * another way than any kernel would.
 */
#ifndef HARNESS_GEOMETRY_H
#define HARNESS_GEOMETRY_H

#include "problem.h"

typedef struct geometry {
    int64_t batch, rows, keys;        /* of the problem: batch, seq_q, seq_k */
    int64_t *seq_q, *seq_k;           /* [batch]: rows and keys that exist */
    int64_t *room_q, *room_k;         /* [batch]: rows in memory */
    int64_t *first_q, *first_k;       /* [batch]: packed rows before the sequence, else 0 */
    int64_t total_q, total_k;         /* packed rows, else 0 */
    int32_t *lo, *hi;                 /* [batch][rows]; NULL without intervals */
    int32_t *document_q, *document_k; /* [batch][rows], [batch][keys]; NULL without documents */
    int64_t columns, pages;           /* of the page table; 0 if not paged */
    int32_t *page;                    /* [batch][columns]; -1: unused */
} geometry;

bool geometry_make(geometry *g, const problem *p);

/* Sequence b of another problem's geometry alone, in new places. p: that problem with a batch of 1. */
bool geometry_single(geometry *g, const problem *p, const geometry *all, int64_t b);
void geometry_free(geometry *g);

/* The descriptor's fields that depend on drawn lengths; 0 where they do not apply. */
void geometry_totals(const problem *p, int64_t *total_q, int64_t *total_k, int64_t *pages);

/* Whether row i keeps key j: masks without arrays, for a sequence of these lengths; and all masks, for sequence b. */
bool mask_keeps(const problem *p, int64_t seq_q, int64_t seq_k, int64_t i, int64_t j);
bool geometry_keeps(const geometry *g, const problem *p, int64_t b, int64_t i, int64_t j);

/* Row i stands at key i + this. */
int64_t geometry_offset(const geometry *g, const problem *p, int64_t b);

#endif
