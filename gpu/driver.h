/*
 * The CUDA driver, opened at run time: a program or library built with it runs on machines without a GPU too, and is tied to no
 * toolkit. The library's CUDA kernels and the clients that put tensors on a GPU share this; each links its own copy.
 *
 * Calls keep the driver's names and types, gpu_driver()->cuMemAlloc(...): cuda.h alone says what they do.
 */
#ifndef FATTN_GPU_DRIVER_H
#define FATTN_GPU_DRIVER_H

#include <cuda.h>
#include <stddef.h>

/* Every call that is used anywhere, once. */
#define GPU_DRIVER_CALLS(X)                                                                                                    \
    X(cuInit)                                                                                                                  \
    X(cuGetErrorName)                                                                                                          \
    X(cuGetErrorString)                                                                                                        \
    X(cuDeviceGetCount)                                                                                                        \
    X(cuDeviceGet)                                                                                                             \
    X(cuDeviceGetName)                                                                                                         \
    X(cuDeviceGetAttribute)                                                                                                    \
    X(cuDeviceTotalMem)                                                                                                        \
    X(cuDevicePrimaryCtxRetain)                                                                                                \
    X(cuDevicePrimaryCtxRelease)                                                                                               \
    X(cuCtxPushCurrent)                                                                                                        \
    X(cuCtxPopCurrent)                                                                                                         \
    X(cuCtxGetCurrent)                                                                                                         \
    X(cuCtxSynchronize)                                                                                                        \
    X(cuModuleLoadData)                                                                                                        \
    X(cuModuleUnload)                                                                                                          \
    X(cuModuleGetFunction)                                                                                                     \
    X(cuFuncSetAttribute)                                                                                                      \
    X(cuFuncLoad)                                                                                                              \
    X(cuLaunchKernelEx)                                                                                                        \
    X(cuTensorMapEncodeTiled)                                                                                                  \
    X(cuMemAlloc)                                                                                                              \
    X(cuMemFree)                                                                                                               \
    X(cuMemAllocHost)                                                                                                          \
    X(cuMemFreeHost)                                                                                                           \
    X(cuMemcpyHtoDAsync)                                                                                                       \
    X(cuMemcpyDtoHAsync)                                                                                                       \
    X(cuMemcpyDtoDAsync)                                                                                                       \
    X(cuMemsetD8Async)                                                                                                         \
    X(cuStreamCreate)                                                                                                          \
    X(cuStreamDestroy)                                                                                                         \
    X(cuStreamSynchronize)                                                                                                     \
    X(cuStreamWaitEvent)                                                                                                       \
    X(cuStreamBeginCapture)                                                                                                    \
    X(cuStreamEndCapture)                                                                                                      \
    X(cuGraphInstantiateWithFlags)                                                                                             \
    X(cuGraphLaunch)                                                                                                           \
    X(cuGraphExecDestroy)                                                                                                      \
    X(cuGraphDestroy)                                                                                                          \
    X(cuEventCreate)                                                                                                           \
    X(cuEventDestroy)                                                                                                          \
    X(cuEventRecord)                                                                                                           \
    X(cuEventSynchronize)                                                                                                      \
    X(cuEventElapsedTime)

typedef struct gpu_driver_calls {
#define GPU_FIELD(call) __typeof__(&call) call;
    GPU_DRIVER_CALLS(GPU_FIELD)
#undef GPU_FIELD
} gpu_driver_calls;

/* The driver, opened and initialised by the first call, for good; NULL where there is none that works or no GPU. Any thread may
 * call it. */
const gpu_driver_calls *gpu_driver(void);

/* Why gpu_driver() is NULL: one line without an end of line, static. */
const char *gpu_driver_absent(void);

/* "CUDA_ERROR_INVALID_VALUE: invalid argument". text: room for `size` bytes; returned. */
const char *gpu_error_text(CUresult result, char *text, size_t size);

#endif
