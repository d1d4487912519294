/*
 * Matrix products of a library, for the baseline `cuda_composed`: a batch of C = by A B, each matrix row-major. products.c runs
 * them with cuBLAS; products_none.c stands for it in builds without.
 */
#ifndef FATTN_CUDA_PRODUCTS_H
#define FATTN_CUDA_PRODUCTS_H

#include "cuda/cuda.h"

/* A matrix of each entry of the batch, one right behind the other. Addresses, and rows, are aligned to CUDA_PRODUCT_ALIGNMENT
 * bytes. */
typedef struct cuda_matrix {
    void *data;
    int32_t dtype;
    int64_t rows, columns, pitch; /* elements from row to row */
} cuda_matrix;

enum { CUDA_PRODUCT_ALIGNMENT = 16 };

/* Which of A and B take part transposed. */
typedef enum cuda_transposed { CUDA_AS_THEY_ARE, CUDA_A_TRANSPOSED, CUDA_B_TRANSPOSED } cuda_transposed;

/* C = by A B. The numbers added up are floats, also where C has 16 bits; f32 is not rounded to TF32. The order of additions
 * depends on sizes, pitches and `usual`, but not on `batch`. */
typedef struct cuda_product {
    cuda_transposed transposed;
    cuda_matrix a, b, c;
    int64_t batch, usual; /* entries there are, and how many to choose an algorithm for */
    float by;
} cuda_product;

/* Why there are no products, in a refusal's words; NULL if there are. */
const char *cuda_products_absent(void);

/* Makes a GPU ready for products, where there are any; its context is current. */
fattn_status cuda_products_open(cuda_gpu *gpu);
void cuda_products_close(cuda_gpu *gpu);

/* Runs a product whose sizes are all above 0. */
fattn_status cuda_product_run(const fattn_launch *at, const cuda_product *product);

#endif
