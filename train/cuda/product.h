/*
 * Matrix products on a GPU, by cuBLASLt with memory of their own to work in: calls then neither allocate nor differ from run to
 * run, but for the first of each large product, which finds out which of the algorithms is the fastest.
 */
#ifndef TRAIN_CUDA_PRODUCT_H
#define TRAIN_CUDA_PRODUCT_H

#include "gpu/cublas.h"
#include "gpu/memory.h"
#include "train/operations.h"

/* What cuBLAS's manual recommends for Hopper; without it some products are several times slower. */
enum { PRODUCT_WORKSPACE = 32 << 20 };

/* A large product whose algorithm has been found. */
typedef struct tuned_product {
    gpu_product product;
    bool adds, elsewhere; /* to what is there; and what is there stays, the sum goes elsewhere */
    gpu_product_plan plan;
} tuned_product;

enum { TUNED_MOST = 64 };

typedef struct products {
    gpu_device *gpu;
    cublasLtHandle_t handle;
    void *workspace;
    bool noting; /* work is being noted, not done: nothing can be found out */
    int tuned_count;
    tuned_product *tuned; /* [TUNED_MOST] */
} products;

/* workspace: PRODUCT_WORKSPACE bytes of the GPU, whose context is current. False with train_error() set; close it all the same.
 */
bool products_open(products *p, gpu_device *gpu, void *workspace);
void products_close(products *p);
bool products_run(products *p, const product_call *c);

#endif
