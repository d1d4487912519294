/*
 * What a device computes: one struct for each operation, with the sizes, where the numbers lie, and for layers the fields of
 * both directions. Layers fill them in, and a device's table (device.h) has the functions that take them; kernels of a GPU take
 * them as their parameter, by value, so both compilers read this file. The mathematics stands with the layers, in layers/.
 *
 * rows = batch * seq everywhere; strides and leading dimensions count numbers. Fields of type `void *` point to numbers of the
 * call's `type`, all others are what they say. "Added to" means that there is a sum already.
 */
#ifndef TRAIN_OPERATIONS_H
#define TRAIN_OPERATIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Parameters, their gradients, what the optimiser keeps, the residual stream and the logits are float always; the other
 * activations, and what goes into matrix products, are of the type that the run asks for. */
typedef enum number_type { NUMBER_F32, NUMBER_BF16 } number_type;

static inline size_t number_bytes(number_type type)
{
    return type == NUMBER_BF16 ? 2 : 4;
}

/* C = op(A) op(B) + beta from, row-major:   op(A) [m, k], op(B) [k, n] of `type`, C and from [m, n] of c_type; `from` NULL: C
 * itself. The sums are float.
 *
 * The three products of a linear layer y = x W^T, x [rows, in], W [out, in], y [rows, out], with op as "transposed?":
 *
 *     y  = x W^T      no,  yes   m rows, n out, k in      a x,  b W
 *     dx = dy W       no,  no    m rows, n in,  k out     a dy, b W
 *     dW = dy^T x     yes, no    m out,  n in,  k rows    a dy, b x
 *
 * lda, ldb, ldc are the distances between rows as they lie in memory. A product with k = 0 scales. */
typedef struct product_call {
    bool transpose_a, transpose_b;
    number_type type, c_type;
    int64_t m, n, k;
    const void *a, *b, *from;
    void *c;
    int64_t lda, ldb, ldc; /* from has that of C */
    float beta;
} product_call;

/* to[r][c] = from[r][c], or is added to, rounded to its type. */
typedef struct copy_call {
    int64_t rows, cols, to_stride, from_stride;
    number_type to_type, from_type;
    bool add;
    void *to;
    const void *from;
} copy_call;

/* layers/embedding.c */
typedef struct embedding_call {
    int64_t rows, vocab, hidden;
    const int32_t *tokens; /* [rows] */
    const float *weight;   /* [vocab, hidden] */
    float *out;            /* [rows, hidden] */
    const float *dout;
    float *dweight; /* added to */
} embedding_call;

/* layers/rmsnorm.c */
typedef struct rmsnorm_call {
    int64_t rows, cols;
    number_type type; /* of out and dout */
    bool accumulate;  /* dx is added to */
    float eps;
    const float *x, *weight;
    void *out;   /* backward: NULL, or dout's place, where out is made again */
    float *rstd; /* [rows]; forward: may be NULL */
    const void *dout;
    float *dx;
    float *dweight; /* added to */
    float *partial; /* backward: [device's chunks, cols] */
} rmsnorm_call;

/* layers/qknorm_rope.c */
enum { HEAD_DIM_MAX = 512 };

typedef struct qknorm_rope_call {
    int64_t rows, heads, dim;
    int64_t seq, first;         /* row r is at position first + r % seq, unless positions says otherwise */
    const int32_t *positions;   /* [rows] or NULL */
    int64_t stride, out_stride; /* of x and dx, of out and dout */
    number_type type;
    bool accumulate;
    float eps;
    const void *x;
    const float *weight;    /* [dim] */
    const float *cos, *sin; /* [max_seq, dim / 2] */
    void *out;
    float *rstd; /* [rows, heads]; forward: may be NULL */
    const void *dout;
    void *dx;
    float *dweight; /* added to */
    float *partial; /* backward: [device's chunks, dim] */
} qknorm_rope_call;

/* layers/dropout.c: to = add + m factor from, where m is 0 or 1 */
typedef struct dropout_call {
    int64_t rows, cols;
    number_type to_type, from_type;
    uint64_t key;
    uint32_t least; /* kept is what draws at least this */
    float factor;
    const void *from; /* [rows, cols], as the next two */
    const float *add; /* NULL: nothing; may be `to` */
    void *to;
} dropout_call;

/* layers/swiglu.c */
typedef struct swiglu_call {
    int64_t rows, ffn;
    number_type type;
    const void *x; /* [rows, 2 ffn] */
    void *out;     /* [rows, ffn]; backward: NULL, or dout's place, where out is made again */
    const void *dout;
    void *dx;
} swiglu_call;

/* layers/head.c: each row's loss, 0 without a target, and its gradient */
typedef struct cross_entropy_call {
    int64_t rows, vocab;
    number_type type;       /* of dx */
    const float *x;         /* [rows, vocab] */
    const int32_t *targets; /* [rows]; -1: the row does not count */
    double *losses;         /* [rows] */
    float factor;           /* of the gradient of the sum over rows */
    void *dx;               /* [rows, vocab], dx_stride apart; NULL: not wanted. A row may begin where that of x does */
    int64_t dx_stride;
} cross_entropy_call;

/* sum = that of losses */
typedef struct loss_sum_call {
    int64_t rows;
    const double *losses; /* [rows] */
    double *sum;          /* shared with the host */
} loss_sum_call;

/* ATTENTION_BLOCK of attention.h: joins a block's result to the rows that it concerns. float only */
typedef struct merge_call {
    int64_t batch, heads, dim;
    int64_t seq, first, rows; /* the block concerns rows first .. first + rows - 1 of seq */
    int64_t out_stride;
    float *out, *lse;                   /* [batch, seq, heads, dim], [batch, heads, seq] */
    const float *block_out, *block_lse; /* [batch, rows, heads, dim], [batch, heads, rows] */
} merge_call;

/* A part of one parameter's numbers, for one thread or block. */
typedef struct update_piece {
    int64_t offset, count;
    int64_t decays; /* 0 or 1 */
} update_piece;

/* optimizer.c: the norm of the gradients, and AdamW. */
typedef struct update_call {
    int64_t count;              /* grad_norm: of all pieces; else of those that are worked on */
    const update_piece *pieces; /* [count] */
    const float *grad;
    double *squares;     /* [count]: each piece's sum of squares, of grad */
    double *norm;        /* read by the update */
    double *shared_norm; /* the same, for the host */
    double scale;        /* the gradient is scale times grad */
    double limit;        /* an update whose norm is not finite, or more, changes nothing; NaN: any norm will do */
    float *data, *m, *v; /* number i has its moments at i - moments_first */
    int64_t moments_first;
    void *rounded;                              /* the parameters in bf16, which the update writes too; NULL: none */
    double clip;                                /* the most that the norm may be; 0: any */
    float decay, beta1, beta2, step, root, eps; /* root: 1/sqrt(1 - beta2^t) */
} update_call;

#endif
