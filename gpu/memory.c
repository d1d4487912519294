/*
 * See memory.h; through the driver.
 */
#include "gpu/memory.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "gpu/driver.h"

struct gpu_device {
    CUdevice device;
    CUcontext context; /* the primary one */
    CUstream stream;
    CUevent mark[GPU_MARKS]; /* made when first noted */
    char error[300];
    bool error_is_memory;
};

static void explain(CUresult result, const char *what, char *reason, size_t size)
{
    char text[200];
    snprintf(reason, size, "%s: %s", what, gpu_error_text(result, text, sizeof text));
}

static bool done(gpu_device *g, CUresult result, const char *what)
{
    if (result != CUDA_SUCCESS && !g->error[0]) {
        explain(result, what, g->error, sizeof g->error);
        g->error_is_memory = result == CUDA_ERROR_OUT_OF_MEMORY;
    }
    return result == CUDA_SUCCESS;
}

static CUdeviceptr address(const void *memory)
{
    return (CUdeviceptr)(uintptr_t)memory;
}

/* ------------------------------------------------------------------------------------------------------------- looking */

int gpu_count(char *reason, size_t size)
{
    const gpu_driver_calls *cu = gpu_driver();
    int count = 0;
    if (!cu) {
        snprintf(reason, size, "%s", gpu_driver_absent());
        return 0;
    }
    const CUresult result = cu->cuDeviceGetCount(&count);
    if (result == CUDA_SUCCESS)
        return count;
    explain(result, "counting GPUs", reason, size);
    return 0;
}

static CUresult read_info(const gpu_driver_calls *cu, CUdevice device, gpu_info *info)
{
    int major = 0, minor = 0;
    CUresult result = cu->cuDeviceGetName(info->name, sizeof info->name, device);
    if (result == CUDA_SUCCESS)
        result = cu->cuDeviceTotalMem(&info->memory, device);
    if (result == CUDA_SUCCESS)
        result = cu->cuDeviceGetAttribute(&info->multiprocessors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
    if (result == CUDA_SUCCESS)
        result = cu->cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, device);
    if (result == CUDA_SUCCESS)
        result = cu->cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, device);
    info->capability = 10 * major + minor;
    return result;
}

bool gpu_look(int index, gpu_info *info, char *reason, size_t size)
{
    CUdevice device;
    *info = (gpu_info){0};
    if (gpu_count(reason, size) == 0)
        return false;
    CUresult result = gpu_driver()->cuDeviceGet(&device, index);
    if (result == CUDA_SUCCESS)
        result = read_info(gpu_driver(), device, info);
    if (result != CUDA_SUCCESS)
        explain(result, "looking at a GPU", reason, size);
    return result == CUDA_SUCCESS;
}

/* ------------------------------------------------------------------------------------------------------------- opening */

static CUresult open_device(const gpu_driver_calls *cu, gpu_device *g, int index)
{
    CUresult result = cu->cuDeviceGet(&g->device, index);
    if (result == CUDA_SUCCESS)
        result = cu->cuDevicePrimaryCtxRetain(&g->context, g->device);
    if (result != CUDA_SUCCESS) {
        g->context = NULL;
        return result;
    }
    result = cu->cuCtxPushCurrent(g->context);
    return result == CUDA_SUCCESS ? cu->cuStreamCreate(&g->stream, CU_STREAM_NON_BLOCKING) : result;
}

gpu_device *gpu_open(int index, char *reason, size_t size)
{
    if (gpu_count(reason, size) == 0)
        return NULL;
    gpu_device *g = calloc(1, sizeof *g);
    if (!g) {
        snprintf(reason, size, "no memory");
        return NULL;
    }
    const CUresult result = open_device(gpu_driver(), g, index);
    if (result == CUDA_SUCCESS)
        return g;
    explain(result, "opening a GPU", reason, size);
    gpu_close(g);
    return NULL;
}

void gpu_close(gpu_device *g)
{
    CUcontext before, now = NULL;
    if (!g)
        return;
    const gpu_driver_calls *cu = gpu_driver();
    for (int i = 0; i < GPU_MARKS; i++)
        if (g->mark[i])
            cu->cuEventDestroy(g->mark[i]);
    if (g->stream)
        cu->cuStreamDestroy(g->stream);
    if (g->context && cu->cuCtxGetCurrent(&now) == CUDA_SUCCESS && now == g->context)
        cu->cuCtxPopCurrent(&before);
    if (g->context)
        cu->cuDevicePrimaryCtxRelease(g->device);
    free(g);
}

void *gpu_stream(const gpu_device *g)
{
    return g->stream;
}

const char *gpu_error(const gpu_device *g)
{
    return g->error;
}

bool gpu_error_is_memory(const gpu_device *g)
{
    return g->error_is_memory;
}

void gpu_forget_error(gpu_device *g)
{
    g->error[0] = '\0';
    g->error_is_memory = false;
}

/* -------------------------------------------------------------------------------------------------------------- memory */

void *gpu_allocate(gpu_device *g, size_t bytes)
{
    CUdeviceptr memory = 0;
    char what[80];
    snprintf(what, sizeof what, "%zu bytes of the GPU's memory", bytes);
    const bool ok = done(g, gpu_driver()->cuMemAlloc(&memory, bytes > 0 ? bytes : 1), what);
    return ok ? (void *)(uintptr_t)memory : NULL;
}

void gpu_release(gpu_device *g, void *memory)
{
    if (memory)
        done(g, gpu_driver()->cuMemFree(address(memory)), "freeing the GPU's memory");
}

void *gpu_allocate_shared(gpu_device *g, size_t bytes)
{
    void *memory = NULL;
    const bool ok = done(g, gpu_driver()->cuMemAllocHost(&memory, bytes > 0 ? bytes : 1), "memory that the GPU shares");
    return ok ? memory : NULL;
}

void gpu_release_shared(gpu_device *g, void *memory)
{
    if (memory)
        done(g, gpu_driver()->cuMemFreeHost(memory), "freeing memory that the GPU shares");
}

bool gpu_put(gpu_device *g, void *to, const void *host, size_t bytes)
{
    return bytes == 0 || done(g, gpu_driver()->cuMemcpyHtoDAsync(address(to), host, bytes, g->stream), "copying to the GPU");
}

bool gpu_get(gpu_device *g, void *host, const void *from, size_t bytes)
{
    return bytes == 0 ||
           (done(g, gpu_driver()->cuMemcpyDtoHAsync(host, address(from), bytes, g->stream), "copying from the GPU") &&
            gpu_wait(g));
}

bool gpu_copy(gpu_device *g, void *to, const void *from, size_t bytes)
{
    return bytes == 0 ||
           done(g, gpu_driver()->cuMemcpyDtoDAsync(address(to), address(from), bytes, g->stream), "copying within the GPU");
}

bool gpu_fill(gpu_device *g, void *to, unsigned char byte, size_t bytes)
{
    return bytes == 0 ||
           done(g, gpu_driver()->cuMemsetD8Async(address(to), byte, bytes, g->stream), "filling the GPU's memory");
}

/* ---------------------------------------------------------------------------------------------------------------- time */

bool gpu_wait(gpu_device *g)
{
    return done(g, gpu_driver()->cuStreamSynchronize(g->stream), "running on the GPU");
}

bool gpu_mark(gpu_device *g, int mark)
{
    const gpu_driver_calls *cu = gpu_driver();
    if (!g->mark[mark] && !done(g, cu->cuEventCreate(&g->mark[mark], CU_EVENT_DEFAULT), "making an event"))
        return false;
    return done(g, cu->cuEventRecord(g->mark[mark], g->stream), "recording an event");
}

bool gpu_wait_mark(gpu_device *g, int mark)
{
    return done(g, gpu_driver()->cuEventSynchronize(g->mark[mark]), "running on the GPU");
}

double gpu_seconds(gpu_device *g, int from, int to)
{
    float ms = 0;
    const bool ok = done(g, gpu_driver()->cuEventElapsedTime(&ms, g->mark[from], g->mark[to]), "timing the GPU");
    return ok ? 1e-3 * (double)ms : (double)NAN;
}
