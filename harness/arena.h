/*
 * Memory of test tensors. An arena holds one or more tensors, with guard bands at both ends and whatever gaps their
 * strides leave. Every element that belongs to no tensor is filled with a NaN of its own: a kernel that uses such an
 * element shows it in its results, and one that writes it is found bit by bit. Outputs start as another NaN, so elements
 * that were not written are seen too.
 */
#ifndef HARNESS_ARENA_H
#define HARNESS_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#include "numbers.h"
#include "problem.h"

/* A tensor's place and shape in memory: [batch, heads, rows, cols]. */
typedef struct tensor {
    fattn_view view; /* data NULL if there are no elements */
    int64_t batch, heads, rows, cols;
    fattn_dtype type;          /* lists of integers too have one, FATTN_F32, for its size */
    size_t size;               /* bytes of an element */
    const unsigned char *real; /* [batch, rows]: whether a row belongs to a sequence; NULL: all do. Others are as gaps */
} tensor;

static inline bool tensor_empty(const tensor *t)
{
    return t->batch == 0 || t->heads == 0 || t->rows == 0 || t->cols == 0;
}

static inline int64_t tensor_count(const tensor *t)
{
    return t->batch * t->heads * t->rows * t->cols;
}

static inline void *tensor_row(const tensor *t, int64_t b, int64_t h, int64_t i)
{
    const int64_t offset = b * t->view.stride_batch + h * t->view.stride_head + i * t->view.stride_row;
    return (char *)t->view.data + offset * (int64_t)t->size;
}

static inline bool tensor_has_row(const tensor *t, int64_t b, int64_t i)
{
    return !t->real || t->real[b * t->rows + i];
}

static inline double tensor_get(const tensor *t, const void *row, int64_t d)
{
    return number_get(t->type, row, d);
}

static inline void tensor_put(const tensor *t, void *row, int64_t d, double value)
{
    number_put(t->type, row, d, value);
}

enum { ARENA_TENSORS_MAX = 3, ARENA_ISLANDS_MAX = 8 };

typedef struct arena {
    void *mapping; /* what the system gave */
    size_t mapped;
    size_t size;          /* bytes of an element */
    unsigned char *start; /* element 0 */
    int64_t count;        /* elements, guard bands included */
    int islands;          /* only these parts are filled and checked; one, unless the layout is far */
    int64_t low[ARENA_ISLANDS_MAX], high[ARENA_ISLANDS_MAX];
    unsigned char *owned[ARENA_ISLANDS_MAX]; /* per element of the island: belongs to a tensor */
    int tensors;
    const tensor *tensor[ARENA_TENSORS_MAX];
} arena;

/* Gives memory to 1 .. 3 tensors whose shape and size are set (three only for LAYOUT_PACKED, which puts them side by
 * side). Tensors without elements get NULL. Returns false if the system has no memory. The tensors must stay where they
 * are as long as the arena lives. */
bool arena_make(arena *a, layout_kind layout, bool input, tensor *const *tensors, int count);
void arena_free(arena *a);

/* Sets all: gaps and guard bands, and the tensors' own elements. */
void arena_poison(arena *a);

typedef enum arena_fault { ARENA_CLEAN, ARENA_OUTSIDE_WRITTEN, ARENA_NOT_WRITTEN } arena_fault;

/* Looks at an output's arena after a run. `where` gets the index of the first bad element counted from the first tensor's
 * data. `written` false: looks at the gaps only. */
arena_fault arena_inspect(const arena *a, bool written, int64_t *where);

/* Copies of what the islands hold, to compare runs bit by bit and to see that inputs stay as they are. */
size_t arena_bytes(const arena *a);
void arena_save(const arena *a, unsigned char *copy);
bool arena_same(const arena *a, const unsigned char *copy);

#endif
