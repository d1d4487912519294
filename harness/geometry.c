/*
 * Lengths, masks and pages of a problem; see geometry.h.
 */
#include "geometry.h"

#include <stdlib.h>
#include <string.h>

#include "random.h"

/* Streams of random numbers, apart from those of the fills. */
enum { STREAM_LENGTHS = 40, STREAM_MASK, STREAM_PAGES };

/* --------------------------------------------------------------------------------------------------------------- masks */

int64_t geometry_offset(const geometry *g, const problem *p, int64_t b)
{
    return p->align == FATTN_ALIGN_BOTTOM_RIGHT ? g->seq_k[b] - g->seq_q[b] : 0;
}

static bool in_window(const problem *p, int64_t diagonal, int64_t j)
{
    return (p->left < 0 || diagonal - j <= p->left) && (p->right < 0 || j - diagonal <= p->right);
}

bool mask_keeps(const problem *p, int64_t seq_q, int64_t seq_k, int64_t i, int64_t j)
{
    const int64_t diagonal = i + (p->align == FATTN_ALIGN_BOTTOM_RIGHT ? seq_k - seq_q : 0);
    switch (p->mask) {
    case FATTN_MASK_CAUSAL:
        return j <= diagonal;
    case FATTN_MASK_WINDOW:
    case FATTN_MASK_DOCUMENT:
        return in_window(p, diagonal, j);
    case FATTN_MASK_CHUNKED:
        return j <= diagonal && j / p->mask_size == diagonal / p->mask_size;
    case FATTN_MASK_PREFIX:
        return j <= diagonal || j < p->mask_size;
    default:
        return true;
    }
}

bool geometry_keeps(const geometry *g, const problem *p, int64_t b, int64_t i, int64_t j)
{
    if (g->lo && (j < g->lo[b * g->rows + i] || j >= g->hi[b * g->rows + i]))
        return false;
    if (g->document_q && g->document_q[b * g->rows + i] != g->document_k[b * g->keys + j])
        return false;
    return mask_keeps(p, g->seq_q[b], g->seq_k[b], i, j);
}

/* -------------------------------------------------------------------------------------------------------------- memory */

static bool allocate(geometry *g, const problem *p)
{
    const size_t batch = (size_t)p->batch + 1;
    *g = (geometry){.batch = p->batch, .rows = p->seq_q, .keys = p->seq_k};
    int64_t **const lists[] = {&g->seq_q, &g->seq_k, &g->room_q, &g->room_k, &g->first_q, &g->first_k};
    bool ok = true;
    for (int i = 0; i < 6; i++)
        ok &= (*lists[i] = calloc(batch, sizeof(int64_t))) != NULL;
    if (p->mask == FATTN_MASK_INTERVALS) {
        g->lo = calloc(batch * ((size_t)p->seq_q + 1), sizeof(int32_t));
        g->hi = calloc(batch * ((size_t)p->seq_q + 1), sizeof(int32_t));
        ok &= g->lo && g->hi;
    }
    if (p->mask == FATTN_MASK_DOCUMENT) {
        g->document_q = calloc(batch * ((size_t)p->seq_q + 1), sizeof(int32_t));
        g->document_k = calloc(batch * ((size_t)p->seq_k + 1), sizeof(int32_t));
        ok &= g->document_q && g->document_k;
    }
    if (p->page_size > 0) {
        g->columns = (p->seq_k + p->page_size - 1) / p->page_size;
        g->page = calloc(batch * ((size_t)g->columns + 1), sizeof(int32_t));
        ok &= g->page != NULL;
    }
    return ok;
}

void geometry_free(geometry *g)
{
    void *const parts[] = {g->seq_q, g->seq_k, g->room_q, g->room_k,     g->first_q,   g->first_k,
                           g->lo,    g->hi,    g->page,   g->document_q, g->document_k};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        free(parts[i]);
    *g = (geometry){0};
}

/* ------------------------------------------------------------------------------------------------------------- drawing */

/* Now and then empty, one row or all; else anything between. */
static int64_t draw_length(random_state *r, int64_t most)
{
    const int64_t kind = random_below(r, 10);
    if (kind == 0 || most == 0)
        return 0;
    return kind == 1 ? 1 : kind < 4 ? most : 1 + random_below(r, most);
}

static int64_t length_of(const length_list *l, random_state *r, int64_t b, int64_t most)
{
    return l->kind == LENGTHS_NONE ? most : l->kind == LENGTHS_GIVEN ? l->item[b] : draw_length(r, most);
}

static void draw_lengths(geometry *g, const problem *p)
{
    random_state r = random_start(p->seed, STREAM_LENGTHS);
    const bool alike = p->packed_q.kind == LENGTHS_DRAWN && p->packed_k.kind == LENGTHS_DRAWN && p->seq_q == p->seq_k &&
                       random_below(&r, 2) == 0; /* self-attention */
    for (int64_t b = 0; b < p->batch; b++) {
        g->room_q[b] = length_of(&p->packed_q, &r, b, p->seq_q);
        g->room_k[b] = alike ? g->room_q[b] : length_of(&p->packed_k, &r, b, p->seq_k);
        g->seq_q[b] = length_of(&p->used_q, &r, b, g->room_q[b]);
        g->seq_k[b] = length_of(&p->used_k, &r, b, g->room_k[b]);
    }
}

static void place_packed(geometry *g, const problem *p)
{
    for (int64_t b = 0; b < p->batch; b++) {
        g->first_q[b] = g->total_q;
        g->first_k[b] = g->total_k;
        g->total_q += p->packed_q.kind ? g->room_q[b] : 0;
        g->total_k += p->packed_k.kind ? g->room_k[b] : 0;
    }
}

/* Intervals of one sequence: some rows empty, reversed or reaching out of range, half of the time moving on with the rows. */
static void draw_intervals(const problem *p, random_state *r, int64_t keys, int32_t *lo, int32_t *hi)
{
    const bool moving = random_below(r, 2) == 0;
    const int64_t width = random_below(r, keys + 2);
    for (int64_t i = 0; i < p->seq_q; i++) {
        const int64_t from = moving ? i * keys / (p->seq_q + 1) - width / 2 : random_below(r, keys + 1);
        const int64_t to = moving ? from + width : random_below(r, keys + 3);
        const int64_t kind = random_below(r, 24);
        lo[i] = kind == 0 ? -5 : kind == 1 ? INT32_MIN : (int32_t)from;
        hi[i] = kind == 0 ? (int32_t)keys + 9 : kind == 1 ? INT32_MAX : kind == 2 ? (int32_t)from : (int32_t)to;
        if (kind == 3) {
            lo[i] = INT32_MAX;
            hi[i] = -7;
        }
    }
}

static void draw_documents(random_state *r, int64_t n, int32_t *ids)
{
    int32_t id = (int32_t)random_below(r, 3) - 1;
    const int64_t often = 1 + random_below(r, 30);
    for (int64_t i = 0; i < n; i++) {
        if (i > 0 && random_below(r, often) == 0)
            id += 1 + (int32_t)random_below(r, 2);
        ids[i] = id;
    }
}

static void draw_masks(geometry *g, const problem *p)
{
    random_state r = random_start(p->seed, STREAM_MASK);
    for (int64_t b = 0; b < p->batch && g->lo; b++) {
        int32_t *lo = g->lo + b * g->rows, *hi = g->hi + b * g->rows;
        if (p->mask_shared && b > 0) {
            memcpy(lo, g->lo, (size_t)g->rows * sizeof *lo);
            memcpy(hi, g->hi, (size_t)g->rows * sizeof *hi);
        } else
            draw_intervals(p, &r, p->mask_shared ? g->keys : g->seq_k[b], lo, hi);
    }
    for (int64_t b = 0; b < p->batch && g->document_q; b++) {
        int32_t *q = g->document_q + b * g->rows, *k = g->document_k + b * g->keys;
        const bool alike = random_below(&r, 4) > 0;
        draw_documents(&r, g->rows, q);
        draw_documents(&r, g->keys, k);
        if (alike) /* one text, of which the rows are the beginning or all */
            memcpy(k, q, (size_t)(g->rows < g->keys ? g->rows : g->keys) * sizeof *k);
        for (int64_t j = 1; j < g->keys; j++)
            k[j] = k[j] < k[j - 1] ? k[j - 1] : k[j];
    }
}

/* Pages in no order, with some between that no sequence uses. */
static bool draw_pages(geometry *g, const problem *p)
{
    random_state r = random_start(p->seed, STREAM_PAGES);
    int64_t used = 0;
    for (int64_t b = 0; b < p->batch; b++)
        used += p->page_size > 0 ? (g->seq_k[b] + p->page_size - 1) / p->page_size : 0;
    g->pages = p->page_size > 0 ? used + 3 : 0;
    int32_t *order = calloc((size_t)g->pages + 1, sizeof *order);
    if (!order)
        return false;
    for (int64_t i = 0; i < g->pages; i++) {
        const int64_t other = random_below(&r, i + 1);
        order[i] = order[other];
        order[other] = (int32_t)i;
    }
    int64_t next = 0;
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t c = 0; c < g->columns; c++)
            g->page[b * g->columns + c] = c * p->page_size < g->seq_k[b] ? order[next++] : -1;
    free(order);
    return true;
}

bool geometry_make(geometry *g, const problem *p)
{
    if (!allocate(g, p))
        return false;
    draw_lengths(g, p);
    place_packed(g, p);
    draw_masks(g, p);
    return draw_pages(g, p);
}

bool geometry_single(geometry *g, const problem *p, const geometry *all, int64_t b)
{
    if (!allocate(g, p))
        return false;
    g->room_q[0] = all->room_q[b];
    g->room_k[0] = all->room_k[b];
    g->seq_q[0] = all->seq_q[b];
    g->seq_k[0] = all->seq_k[b];
    place_packed(g, p);
    for (int64_t i = 0; i < g->rows && g->lo; i++) {
        g->lo[i] = all->lo[b * g->rows + i];
        g->hi[i] = all->hi[b * g->rows + i];
    }
    for (int64_t i = 0; i < g->rows && g->document_q; i++)
        g->document_q[i] = all->document_q[b * g->rows + i];
    for (int64_t j = 0; j < g->keys && g->document_k; j++)
        g->document_k[j] = all->document_k[b * g->keys + j];
    return draw_pages(g, p);
}

void geometry_totals(const problem *p, int64_t *total_q, int64_t *total_k, int64_t *pages)
{
    geometry g;
    *total_q = *total_k = *pages = 0;
    if (!p->packed_q.kind && !p->packed_k.kind && p->page_size == 0)
        return;
    if (geometry_make(&g, p)) {
        *total_q = g.total_q;
        *total_k = g.total_k;
        *pages = g.pages;
    }
    geometry_free(&g);
}
