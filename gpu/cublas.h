/*
 * cuBLAS, opened at run time, as driver.h opens the driver: what is built with it runs where there is none. Only files of
 * builds that found cublas_v2.h (FATTN_CUBLAS) include this.
 *
 * Calls keep cuBLAS's names and types, gpu_cublas()->cublasLtCreate(...): cublasLt.h alone says what they do. cuBLAS works in
 * the context that is current in the calling thread, and its runtime finds the primary one there. cuBLASLt keeps nothing of a
 * call in its handle: any number of threads and streams use one. Its calls neither allocate nor, on one stream, differ from run
 * to run, and can be captured in a graph.
 */
#ifndef FATTN_GPU_CUBLAS_H
#define FATTN_GPU_CUBLAS_H

#include <cublasLt.h>
#include <cublas_v2.h>
#include <stdbool.h>
#include <stddef.h>

/* Every call that is used anywhere, once. cuBLASLt comes with the library that cuBLAS itself needs; the ..._internal are what
 * the header's inline functions call. */
#define GPU_CUBLAS_CALLS(X)                                                                                                    \
    X(cublasGetStatusName)                                                                                                     \
    X(cublasGetStatusString)                                                                                                   \
    X(cublasLtCreate)                                                                                                          \
    X(cublasLtDestroy)                                                                                                         \
    X(cublasLtMatmul)                                                                                                          \
    X(cublasLtMatmulAlgoGetHeuristic)                                                                                          \
    X(cublasLtMatmulDescInit_internal)                                                                                         \
    X(cublasLtMatmulDescSetAttribute)                                                                                          \
    X(cublasLtMatmulPreferenceInit_internal)                                                                                   \
    X(cublasLtMatmulPreferenceSetAttribute)                                                                                    \
    X(cublasLtMatrixLayoutInit_internal)                                                                                       \
    X(cublasLtMatrixLayoutSetAttribute)

typedef struct gpu_cublas_calls {
#define GPU_CUBLAS_FIELD(call) __typeof__(&call) call;
    GPU_CUBLAS_CALLS(GPU_CUBLAS_FIELD)
#undef GPU_CUBLAS_FIELD
} gpu_cublas_calls;

/* cuBLAS, opened by the first call, for good; NULL where there is none. Any thread may call it. */
const gpu_cublas_calls *gpu_cublas(void);

/* Why gpu_cublas() is NULL: one line without an end of line, static. */
const char *gpu_cublas_absent(void);

/* "CUBLAS_STATUS_INVALID_VALUE: an unsupported value...". text: room for `size` bytes; returned. Once gpu_cublas() is not NULL.
 */
const char *gpu_cublas_error_text(cublasStatus_t status, char *text, size_t size);

/* ------------------------------------------------------------------------------------------------------------- products */

/* A batch of C = by op(A) op(B) + beta D, row-major: op(A) [m, k], op(B) [k, n] of `type`, C and D [m, n] of c_type, with D in
 * C's place or beside it. Sums are floats; f32 is not rounded to TF32. ld: numbers from row to row as they lie in memory. The
 * matrices of a batch lie one right behind the other. All sizes are above 0. */
typedef struct gpu_product {
    cudaDataType type, c_type;
    bool transpose_a, transpose_b;
    int64_t m, n, k, lda, ldb, ldc;
    int64_t usual;      /* entries of a batch to choose an algorithm for */
    uint32_t alignment; /* of the addresses, in bytes; that of rows cuBLASLt sees in ld */
    uint64_t workspace; /* bytes there are; 0: sums are not cut along k */
} gpu_product;

/* Room for what cuBLASLt makes, which may be newer than the header that this was compiled with, and have more to say. */
typedef union gpu_cublas_room {
    cublasLtMatmulDescOpaque_t how;
    cublasLtMatrixLayoutOpaque_t layout;
    cublasLtMatmulPreferenceOpaque_t preference;
    uint64_t bytes[128];
} gpu_cublas_room;

/* How a product is done; it holds nothing that must be freed. */
typedef struct gpu_product_plan {
    gpu_cublas_room how, a, b, c; /* as cuBLASLt sees them: a is the product's B, b its A */
    cublasLtMatmulAlgo_t algorithm;
} gpu_product_plan;

/* Where the numbers are. */
typedef struct gpu_product_at {
    float by, beta;
    const void *a, *b, *d;
    void *c, *workspace;
    uint64_t workspace_size;
    void *stream;
} gpu_product_at;

/* Once gpu_cublas() is not NULL: describes the product in *plan, with the algorithm that cuBLASLt thinks the fastest. It
 * remembers its answers. */
cublasStatus_t gpu_product_choose(cublasLtHandle_t handle, const gpu_product *p, gpu_product_plan *plan);

/* The same, and sets *choices to that algorithm and others that may be faster, *count of them. */
enum { GPU_PRODUCT_CHOICES = 8 };
typedef struct gpu_product_choices {
    int count;
    cublasLtMatmulAlgo_t algorithm[GPU_PRODUCT_CHOICES];
} gpu_product_choices;
cublasStatus_t gpu_product_list(cublasLtHandle_t handle, const gpu_product *p, gpu_product_plan *plan,
                                gpu_product_choices *choices);

/* entries: of the batch, at most 65535, what the third dimension of a grid has. */
cublasStatus_t gpu_product_run(cublasLtHandle_t handle, gpu_product_plan *plan, int32_t entries, const gpu_product_at *at);

#endif
