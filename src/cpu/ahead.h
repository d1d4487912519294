/*
 * Asking for memory ahead of its use. Memory takes longer to answer than a group of keys takes to compute, and tiles read rows
 * in an order in which the processor does not see them coming. So what a later step will want is asked for beside the tiles, a
 * few lines at a time: requests that come in bursts keep the tiles' own loads waiting.
 */
#ifndef FATTN_CPU_AHEAD_H
#define FATTN_CPU_AHEAD_H

#include "tile.h"

enum { AHEAD_MOST = 5, AHEAD_TERMS = 16 /* of a tile's sums, between requests */ };

typedef struct rows_ahead {
    const char *row;
    ptrdiff_t stride;
    int64_t bytes, rows;
} rows_ahead;

/* What is to be asked for beside some tiles, in this order. */
typedef struct ahead_queue {
    int64_t lines; /* in all; then, of each request */
    int64_t at;    /* byte of the first row that is left */
    int count, next;
    rows_ahead rows[AHEAD_MOST];
} ahead_queue;

/* `rows` rows of `bytes` bytes, `stride` bytes apart. They need not exist: to ask is no access. */
static void ahead_add(ahead_queue *a, const void *row, ptrdiff_t stride, int64_t bytes, int64_t rows)
{
    if (stride == 0)
        rows = min64(rows, 1);
    if (rows <= 0 || bytes <= 0)
        return;
    a->rows[a->count++] = (rows_ahead){row, stride, bytes, rows};
    a->lines += rows * ceil_div(bytes, FATTN_ALIGNMENT);
}

/* Requests that `groups` tiles of sums of n terms make. */
static int64_t requests_of(int64_t groups, int64_t n)
{
    return groups * ceil_div(n, AHEAD_TERMS);
}

static void ahead_spread(ahead_queue *a, int64_t requests)
{
    a->lines = ceil_div(a->lines, max64(requests, 1));
}

/* One request. */
INLINE void ahead_fetch(ahead_queue *a)
{
    if (a->next == a->count)
        return;
    rows_ahead *r = &a->rows[a->next];
    for (int64_t i = 0; i < a->lines; i++) {
        __builtin_prefetch(r->row + a->at, 0, 2);
        a->at += FATTN_ALIGNMENT;
        if (a->at < r->bytes)
            continue;
        a->at = 0;
        r->row += r->stride;
        if (--r->rows == 0) {
            a->next++;
            break;
        }
    }
}

/* acc[r][j] += sum_n a[r row + n] b[n ldb + j] for a whole tile, asking beside it. */
INLINE void tile_mac_ahead(const int vecs, vec *acc, const real *a, ptrdiff_t row, const real *b, ptrdiff_t ldb, int64_t n,
                           ahead_queue *ahead)
{
    for (int64_t i = 0; i < n; i += AHEAD_TERMS) {
        ahead_fetch(ahead);
        tile_mac(TILE_ROWS, vecs, acc, a + i, row, 1, b + i * ldb, ldb, min64(n - i, AHEAD_TERMS));
    }
}

/* to = the sums of tile_mac_ahead for `groups` tiles below each other. What follows on them where scores are adjusted would
 * take the accumulators' registers. */
INLINE void tile_products(const int vecs, const ptrdiff_t width, real *to, ptrdiff_t to_row, const real *a, ptrdiff_t row,
                          const real *b, int64_t n, int64_t groups, ahead_queue *ahead)
{
    for (int64_t g = 0; g < groups; g++, a += TILE_ROWS * row, to += TILE_ROWS * to_row) {
        vec acc[TILE_ROWS * TILE_VECS];
        UNROLL
        for (int i = 0; i < TILE_ROWS * vecs; i++)
            acc[i] = v_set1(0);
        tile_mac_ahead(vecs, acc, a, row, b, width, n, ahead);
        UNROLL
        for (int i = 0; i < TILE_ROWS * vecs; i++)
            v_store(to + i / vecs * to_row + i % vecs * LANES, acc[i]);
    }
}

#endif
