/*
 * Two kinds of numbers: parameters, which last as long as the model and have names, and tensors, the activations of one
 * step, whose memory the tape plans.
 *
 * Everything is row-major, and lies in the memory of the model's device (device.h). Parameters are float. An activation is a
 * matrix [rows, cols] with rows = batch * seq, row b*seq + i being position i of sequence b; heads lie side by side in the
 * columns, [rows, heads * dim].
 */
#ifndef TRAIN_TENSOR_H
#define TRAIN_TENSOR_H

#include "operations.h"

enum { PARAMETER_NAME_SIZE = 96 };

/* A named parameter. All parameters of a model lie in one block of floats, their gradients in a second one at the same
 * offsets, so that the optimiser and a sum over ranks see two flat arrays. */
typedef struct parameter {
    char name[PARAMETER_NAME_SIZE]; /* "model.layers.0.self_attn.q_proj.weight" */
    int ndim;                       /* 1 or 2 */
    int64_t shape[2];               /* [out, in] of a matrix, [n, 1] of a vector (ndim 1) */
    int64_t size;                   /* shape[0] * shape[1] */
    int64_t offset;                 /* from the start of the block, in floats */
    float *data, *grad;             /* block + offset */
} parameter;

/* A matrix of parameters as a layer uses it: one parameter, or several with equal `cols` that lie one below the other
 * (q, k and v; gate and up), which makes one large matrix product out of several small ones. */
typedef struct matrix {
    int64_t rows, cols;  /* [out, in] */
    float *data, *grad;  /* contiguous; grad is added to */
    const void *rounded; /* data in bf16, for products; NULL where nobody needs it */
} matrix;

/* An activation [rows, cols]: element (r, c) is number r * stride + c of data. Views of some columns share the memory of the
 * whole. data and grad are set when the tape is planned; grad stays NULL if no gradient flows. */
typedef struct tensor {
    int64_t rows, cols, stride;
    number_type type, grad_type;
    void *data, *grad;

    /* for the tape; the last five count in `whole` */
    struct tensor *whole;          /* the tensor this is a view of; itself if it is none */
    int64_t first;                 /* the view's first column in `whole` */
    bool grad_begun;               /* while planning: some node has written the gradient, so the next one adds */
    int value_buffer, grad_buffer; /* numbers in the tape's memory_plan */
    struct node *writer;           /* NULL: somebody outside writes it */
    bool read, leaves_segment;     /* by some node; by one outside the segment that writes it */
    bool kept;                     /* for somebody outside */
} tensor;

#endif
