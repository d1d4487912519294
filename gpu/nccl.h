/*
 * NCCL, opened at run time, as cublas.h opens cuBLAS. Only files of builds that found nccl.h (FATTN_NCCL) include this.
 *
 * Calls keep NCCL's names and types, gpu_nccl()->ncclAllReduce(...): nccl.h alone says what they do. A communicator works on
 * the GPU whose context is current in the thread that makes it.
 */
#ifndef FATTN_GPU_NCCL_H
#define FATTN_GPU_NCCL_H

#include <nccl.h>
#include <stddef.h>

/* Every call that is used anywhere, once. */
#define GPU_NCCL_CALLS(X)                                                                                                      \
    X(ncclGetUniqueId)                                                                                                         \
    X(ncclGetErrorString)                                                                                                      \
    X(ncclGetLastError)                                                                                                        \
    X(ncclCommInitRank)                                                                                                        \
    X(ncclCommDestroy)                                                                                                         \
    X(ncclCommAbort)                                                                                                           \
    X(ncclAllReduce)                                                                                                           \
    X(ncclReduce)                                                                                                              \
    X(ncclBroadcast)                                                                                                           \
    X(ncclAllGather)                                                                                                           \
    X(ncclSend)                                                                                                                \
    X(ncclRecv)                                                                                                                \
    X(ncclGroupStart)                                                                                                          \
    X(ncclGroupEnd)

typedef struct gpu_nccl_calls {
#define GPU_NCCL_FIELD(call) __typeof__(&call) call;
    GPU_NCCL_CALLS(GPU_NCCL_FIELD)
#undef GPU_NCCL_FIELD
} gpu_nccl_calls;

/* NCCL, opened by the first call, for good; NULL where there is none. Any thread may call it. */
const gpu_nccl_calls *gpu_nccl(void);

/* Why gpu_nccl() is NULL: one line without an end of line, static. */
const char *gpu_nccl_absent(void);

#endif
