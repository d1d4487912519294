/*
 * What core and the kernels share: the normalised problem, the launch, and the rows of the registry.
 *
 * Every kernel file ends with its table of rows. The registry (registry.c) lists the tables in the order of preference;
 * the first row that can and should run wins.
 */
#ifndef FATTN_CORE_KERNEL_H
#define FATTN_CORE_KERNEL_H

#include <stdbool.h>

#include "core/inline.h"
#include "fattn/fattn.h"

/* A descriptor that passed validation, with its defaults filled in: every type set, scale never 0, and every field that a
 * shorter caller's struct lacks zero. */
typedef struct fattn_problem {
    fattn_desc desc;
    int64_t group;  /* heads_q / heads_kv */
    int32_t lanes;  /* the context's threads: the most lanes that a kernel may use, hence scratch areas it asks for */
    int32_t device; /* the context's, fattn_device */
} fattn_problem;

/* Where things lie; what the descriptor does not ask for is unset. Packed tensors have a batch stride of 0, and their rows
 * count through (sequence.h). */
typedef struct fattn_launch {
    const fattn_context *context;
    fattn_view q, k, v, out, dout, dq, dk, dv, bias, dbias;
    void *lse; /* may be NULL in forward */
    const void *dlse;
    const float *slopes, *sinks;
    float *dsinks;
    const int32_t *cu_q, *cu_k, *used_q, *used_k; /* each may be NULL */
    const int32_t *mask_lo, *mask_hi, *document_q, *document_k;
    int64_t mask_stride;
    const int32_t *page_table;
    const float *k_scales, *v_scales;
    unsigned char *workspace; /* aligned to FATTN_ALIGNMENT */
    void *stream;             /* of a GPU */
} fattn_launch;

/* Cache line and vector size; workspaces are aligned to it before kernels see them. */
#define FATTN_ALIGNMENT 64

/* The largest dim and dim_v that validation lets through. */
#define FATTN_DIM_MOST 512

typedef struct fattn_kernel {
    const char *name;   /* <family>_<algorithm>_<type> */
    const char *family; /* of kernels that stand in for each other where one is forced by it; NULL: none */
    fattn_op op;
    int32_t rounds; /* fattn_dtype that probabilities and their gradients are rounded to before they are multiplied; 0: none */
    bool unordered; /* adds in no fixed order: for descriptors with FATTN_UNORDERED alone */
    int32_t device; /* fattn_device whose memory it works on */
    uint32_t needs; /* FATTN_CPU_... and FATTN_CUDA_... bits */
    const char *(*refuse)(const fattn_problem *);   /* cannot: the reason, static; NULL: can. A NULL function: always can */
    const char *(*unworthy)(const fattn_problem *); /* should not unless forced: the reason; NULL (either way): should */
    size_t (*shared)(const fattn_problem *);        /* bytes of a GPU's shared memory that a block needs at least; a NULL
                                                       function: what every GPU of `needs` has. Asked where refuse is silent */
    size_t (*workspace)(const fattn_problem *);     /* bytes; a NULL function: none */
    fattn_status (*run)(const fattn_problem *, const fattn_launch *); /* on the CPU never fails: refuse has said what could */
} fattn_kernel;

typedef struct fattn_kernel_table {
    const fattn_kernel *rows;
    int32_t count;
} fattn_kernel_table;

/* Defines a file's table from its rows. */
#define FATTN_KERNEL_TABLE(table, ...)                                                                                         \
    static const fattn_kernel table##_rows[] = {__VA_ARGS__};                                                                  \
    const fattn_kernel_table table = {table##_rows, (int32_t)(sizeof table##_rows / sizeof table##_rows[0])}

/* What pointers to nothing point at. */
static inline void *fattn_nothing(void)
{
    static unsigned char nothing[FATTN_ALIGNMENT] __attribute__((aligned(FATTN_ALIGNMENT)));
    return nothing;
}

/* Address of row (b, h, i) of a view whose elements have `size` bytes. */
FATTN_INLINE void *fattn_row(const fattn_view *view, size_t size, int64_t b, int64_t h, int64_t i)
{
    const int64_t offset = b * view->stride_batch + h * view->stride_head + i * view->stride_row;
    return (char *)view->data + offset * (int64_t)size;
}

FATTN_INLINE size_t fattn_dtype_size(int32_t dtype)
{
    return dtype == FATTN_F64 ? 8 : dtype == FATTN_F32 ? 4 : dtype == FATTN_I8 ? 1 : 2;
}

/* All query rows, and all keys, of one head: what tensors of that many rows are sized by. */
FATTN_INLINE int64_t fattn_rows_q(const fattn_desc *desc)
{
    return desc->total_q > 0 ? desc->total_q : desc->batch * desc->seq_q;
}

FATTN_INLINE int64_t fattn_rows_k(const fattn_desc *desc)
{
    return desc->total_k > 0 ? desc->total_k : desc->batch * desc->seq_k;
}

/* The elements of dbias, [batch, heads, rows, seq_k], and how many sequences, heads and rows each of them is the sum over:
 * where a stride is 0 there is one, of them all. Element (b, h, i) sums those from b, h and i on. */
typedef struct fattn_dbias_shape {
    int64_t batch, heads, rows;
    int64_t sum_batch, sum_heads, sum_rows;
} fattn_dbias_shape;

FATTN_INLINE fattn_dbias_shape fattn_dbias_shape_of(const fattn_desc *desc, const fattn_view *dbias)
{
    fattn_dbias_shape s = {desc->batch, desc->heads_q, desc->seq_q, 1, 1, 1};
    if (dbias->stride_batch == 0)
        s.batch = 1, s.sum_batch = desc->batch;
    if (dbias->stride_head == 0)
        s.heads = 1, s.sum_heads = desc->heads_q;
    if (dbias->stride_row == 0)
        s.rows = 1, s.sum_rows = desc->seq_q;
    return s;
}

/* Whether scores are more than scale q.k. */
FATTN_INLINE bool fattn_scores_change(const fattn_desc *desc)
{
    return desc->softcap != 0 || (desc->flags & (FATTN_WITH_BIAS | FATTN_WITH_SLOPES)) != 0;
}

FATTN_INLINE size_t fattn_round_up(size_t n, size_t multiple)
{
    return (n + multiple - 1) / multiple * multiple;
}

#endif
