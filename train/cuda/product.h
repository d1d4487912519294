/*
 * Matrix products on a GPU, by cuBLAS with memory of its own to work in: its calls then neither allocate nor differ from run to
 * run.
 */
#ifndef TRAIN_CUDA_PRODUCT_H
#define TRAIN_CUDA_PRODUCT_H

#include "gpu/cublas.h"
#include "train/operations.h"

/* What cuBLAS's manual recommends for Hopper; without it some products are several times slower. */
enum { PRODUCT_WORKSPACE = 32 << 20 };

typedef struct products {
    cublasLtHandle_t handle;
    void *stream, *workspace;
} products;

/* workspace: PRODUCT_WORKSPACE bytes of the GPU, whose context is current. False with train_error() set; close it all the same.
 */
bool products_open(products *p, void *stream, void *workspace);
void products_close(products *p);
bool products_run(products *p, const product_call *c);

#endif
