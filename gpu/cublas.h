/*
 * cuBLAS, opened at run time, as driver.h opens the driver: what is built with it runs where there is none. Only files of
 * builds that found cublas_v2.h (FATTN_CUBLAS) include this.
 *
 * Calls keep cuBLAS's names and types, gpu_cublas()->cublasGemmEx_64(...): cublas_v2.h alone says what they do. cuBLAS works in
 * the context that is current in the calling thread, and its runtime finds the primary one there. A handle is for one thread at
 * a time; give it memory of its own to work in (cublasSetWorkspace): then its calls neither allocate nor, on one stream, differ
 * from run to run, and can be captured in a graph.
 */
#ifndef FATTN_GPU_CUBLAS_H
#define FATTN_GPU_CUBLAS_H

#include <cublasLt.h>
#include <cublas_v2.h>
#include <stddef.h>

/* Every call that is used anywhere, once. cuBLASLt's come with the library that cuBLAS itself needs; the ..._internal are what
 * the header's inline functions call. */
#define GPU_CUBLAS_CALLS(X)                                                                                                    \
    X(cublasGetStatusName)                                                                                                     \
    X(cublasGetStatusString)                                                                                                   \
    X(cublasCreate)                                                                                                            \
    X(cublasDestroy)                                                                                                           \
    X(cublasSetStream)                                                                                                         \
    X(cublasSetWorkspace)                                                                                                      \
    X(cublasSetMathMode)                                                                                                       \
    X(cublasGemmEx_64)                                                                                                         \
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

#endif
