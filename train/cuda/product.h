/*
 * Matrix products on a GPU, by cuBLASLt with memory of their own to work in: calls then neither allocate nor differ from run to
 * run. But the first call of each large product finds out which of the algorithms is the fastest; its results, and later ones,
 * have the bits that they have without.
 */
#ifndef TRAIN_CUDA_PRODUCT_H
#define TRAIN_CUDA_PRODUCT_H

#include "gpu/cublas.h"
#include "gpu/driver.h"
#include "gpu/memory.h"
#include "train/device.h"

/* What cuBLAS's manual recommends for Hopper; without it some products are several times slower. */
enum { PRODUCT_WORKSPACE = 32 << 20 };

/* A large product whose algorithm has been found. */
typedef struct tuned_product {
    gpu_product product;
    bool adds, elsewhere; /* to what is there; and what is there stays, the sum goes elsewhere */
    gpu_product_plan plan;
} tuned_product;

/* Shapes that are remembered, some four times those of a model; of further ones the first algorithm is taken. The work, in
 * GFLOP, that a product must be larger than to be tried. */
enum { TUNED_MOST = 64, TUNED_FROM = 4 };

typedef struct products {
    gpu_device *gpu;
    cublasLtHandle_t handle;
    void *workspace;
    CUfunction random, digest; /* kernels of train_trials.cu */
    double from;               /* TUNED_FROM, or what a test wants */
    bool slowest;              /* a test: of the algorithms that may be taken, the slowest is */
    bool noting;               /* work is being noted, not done: nothing can be found out */
    int tuned_count;
    tuned_product *tuned; /* [TUNED_MOST] */
} products;

/* workspace: PRODUCT_WORKSPACE bytes of the GPU, whose context is current. The caller sets the two kernels. False with
 * train_error() set; close it all the same. */
bool products_open(products *p, gpu_device *gpu, void *workspace);
void products_close(products *p);
bool products_run(products *p, const product_call *c);

/* What was found out is forgotten. */
void products_forget(products *p);

/* Of a device of device_open_cuda. */
products *products_of(device *d);

#endif
