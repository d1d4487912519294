/*
 * Opening and closing a GPU for a context, and launching.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda/composed.h"
#include "cuda/products.h"

#define LISTED(id, name) [CUDA_IMAGE_##id] = &fattn_cuda_##name##_image,
static const cuda_image *const images[CUDA_IMAGES] = {CUDA_IMAGE_LIST(LISTED)};

static fattn_status fail(CUresult result, const char *what)
{
    char text[200];
    return fattn_fail(result == CUDA_ERROR_OUT_OF_MEMORY ? FATTN_ERROR_MEMORY : FATTN_ERROR_SYSTEM, "%s: %s", what,
                      gpu_error_text(result, text, sizeof text));
}

/* -------------------------------------------------------------------------------------------------------------- opening */

static CUresult read_attributes(const gpu_driver_calls *cu, cuda_gpu *gpu)
{
    int major = 0, minor = 0;
    const struct {
        CUdevice_attribute attribute;
        int *to;
    } wanted[] = {{CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &major},
                  {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &minor},
                  {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, &gpu->shared_most},
                  {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &gpu->multiprocessors}};
    CUresult result = cu->cuDeviceGetName(gpu->name, sizeof gpu->name, gpu->device);
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted && result == CUDA_SUCCESS; i++)
        result = cu->cuDeviceGetAttribute(wanted[i].to, wanted[i].attribute, gpu->device);
    gpu->capability = 10 * major + minor;
    gpu->features = FATTN_CUDA_SM80 | (gpu->capability == 90 ? FATTN_CUDA_SM90 : 0);
    return result;
}

/* Its code is put on the GPU now: a call that is captured in a graph could not do so. One that asks for more shared memory than
 * the GPU has is left out; its kernel does not choose it, or refuses. */
static CUresult load_function(const gpu_driver_calls *cu, const cuda_gpu *gpu, CUmodule module, const cuda_function *f,
                              CUfunction *function)
{
    if (f->shared > (size_t)gpu->shared_most)
        return CUDA_SUCCESS;
    CUresult result = cu->cuModuleGetFunction(function, module, f->name);
    if (result == CUDA_SUCCESS)
        result = cu->cuFuncLoad(*function);
    if (result == CUDA_SUCCESS && f->shared > 0)
        result = cu->cuFuncSetAttribute(*function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, (int)f->shared);
    return result;
}

static CUresult load_images(const gpu_driver_calls *cu, cuda_gpu *gpu)
{
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < CUDA_IMAGES && result == CUDA_SUCCESS; i++) {
        if (images[i]->needs & ~gpu->features)
            continue;
        result = cu->cuModuleLoadData(&gpu->module[i], images[i]->bytes);
        for (int f = 0; f < images[i]->count && result == CUDA_SUCCESS; f++)
            result = load_function(cu, gpu, gpu->module[i], &images[i]->functions[f], &gpu->function[i][f]);
    }
    return result;
}

static void close_gpu(void *state)
{
    const gpu_driver_calls *cu = gpu_driver();
    cuda_gpu *gpu = state;
    CUcontext before;
    if (gpu->context && cu->cuCtxPushCurrent(gpu->context) == CUDA_SUCCESS) {
        cu->cuCtxSynchronize(); /* kernels may still run */
        cuda_products_close(gpu);
        for (int i = 0; i < CUDA_IMAGES; i++)
            if (gpu->module[i])
                cu->cuModuleUnload(gpu->module[i]);
        cu->cuCtxPopCurrent(&before);
    }
    if (gpu->context)
        cu->cuDevicePrimaryCtxRelease(gpu->device);
    free(gpu);
}

static fattn_status find_gpu(const gpu_driver_calls *cu, int32_t index, cuda_gpu *gpu)
{
    int count = 0;
    CUresult result = cu->cuDeviceGetCount(&count);
    if (result == CUDA_SUCCESS && (index < 0 || index >= count))
        return fattn_fail(FATTN_ERROR_ARGUMENT, "options.device_index is %" PRId32 ", but there are %d GPUs", index, count);
    if (result == CUDA_SUCCESS)
        result = cu->cuDeviceGet(&gpu->device, index);
    if (result == CUDA_SUCCESS)
        result = read_attributes(cu, gpu);
    if (result != CUDA_SUCCESS)
        return fail(result, "looking at a GPU");
    if (gpu->capability < 80)
        return fattn_fail(FATTN_ERROR_UNSUPPORTED, "GPU %" PRId32 ", %s, has compute capability %d.%d, but kernels need 8.0",
                          index, gpu->name, gpu->capability / 10, gpu->capability % 10);
    return FATTN_OK;
}

/* kernel: the forced ones, or NULL. The library of products takes a tenth of a second and 150 MB to open. */
static fattn_status prepare_gpu(const gpu_driver_calls *cu, const char *kernel, cuda_gpu *gpu)
{
    CUcontext before;
    CUresult result = cu->cuDevicePrimaryCtxRetain(&gpu->context, gpu->device);
    if (result != CUDA_SUCCESS) {
        gpu->context = NULL;
        return fail(result, "opening a GPU");
    }
    result = cu->cuCtxPushCurrent(gpu->context);
    if (result != CUDA_SUCCESS)
        return fail(result, "opening a GPU");
    result = load_images(cu, gpu);
    fattn_status status = result == CUDA_SUCCESS ? FATTN_OK : fail(result, "loading kernels onto a GPU");
    if (status == FATTN_OK && kernel && cuda_composed_is_forced(kernel))
        status = cuda_products_open(gpu);
    result = cu->cuCtxPopCurrent(&before);
    return status == FATTN_OK && result != CUDA_SUCCESS ? fail(result, "opening a GPU") : status;
}

static fattn_status open_gpu(fattn_context *context)
{
    const gpu_driver_calls *cu = gpu_driver();
    if (!cu)
        return fattn_fail(FATTN_ERROR_SYSTEM, "options.device is FATTN_DEVICE_CUDA, but %s", gpu_driver_absent());
    cuda_gpu *gpu = calloc(1, sizeof *gpu);
    if (!gpu)
        return fattn_fail(FATTN_ERROR_MEMORY, "no memory for a GPU's state of %zu bytes", sizeof *gpu);
    fattn_status status = find_gpu(cu, context->device_index, gpu);
    if (status != FATTN_OK || (status = prepare_gpu(cu, context->kernel, gpu))) {
        close_gpu(gpu);
        return status;
    }
    context->gpu = gpu;
    context->device_name = gpu->name;
    context->features = gpu->features;
    context->shared = (size_t)gpu->shared_most;
    return FATTN_OK;
}

/* --------------------------------------------------------------------------------------------------------------- calls */

/* The calling thread may have another GPU's context, or none, and gets that back. */
static fattn_status begin(const fattn_context *context)
{
    const cuda_gpu *gpu = context->gpu;
    const CUresult result = gpu_driver()->cuCtxPushCurrent(gpu->context);
    return result == CUDA_SUCCESS ? FATTN_OK : fail(result, "turning to a GPU");
}

static fattn_status end(fattn_status status)
{
    CUcontext before;
    const CUresult result = gpu_driver()->cuCtxPopCurrent(&before);
    return status == FATTN_OK && result != CUDA_SUCCESS ? fail(result, "turning back from a GPU") : status;
}

static fattn_status run(const fattn_kernel *kernel, const fattn_problem *problem, fattn_launch *at)
{
    const fattn_status status = begin(at->context);
    return status == FATTN_OK ? end(kernel->run(problem, at)) : status;
}

static fattn_status merge(const fattn_context *context, const fattn_merging *m)
{
    const fattn_status status = begin(context);
    return status == FATTN_OK ? end(cuda_merge(context, m)) : status;
}

static fattn_status append(const fattn_context *context, const fattn_appending *a)
{
    const fattn_status status = begin(context);
    return status == FATTN_OK ? end(cuda_append(context, a)) : status;
}

static fattn_status look(const fattn_context *context, const fattn_looking *l)
{
    const fattn_status status = begin(context);
    return status == FATTN_OK ? end(cuda_look(context, l)) : status;
}

const fattn_backend fattn_cuda_backend = {
    .open = open_gpu, .close = close_gpu, .run = run, .merge = merge, .append = append, .look = look};

/* ------------------------------------------------------------------------------------------------------------ launching */

static fattn_status launch(const fattn_launch *at, cuda_image_id image, int function, cuda_shape shape, size_t shared,
                           bool early, void **arguments)
{
    const gpu_driver_calls *cu = gpu_driver();
    const cuda_gpu *gpu = at->context->gpu;
    const cuda_function *f = &images[image]->functions[function];
    if (shape.blocks == 0)
        return FATTN_OK;
    /* Only where machine code that waits is run: PTX for 8.0 has no word for it. */
    CUlaunchAttribute overlaps = {.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                                  .value = {.programmaticStreamSerializationAllowed = 1}};
    const CUlaunchConfig config = {.gridDimX = (unsigned)shape.blocks,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = (unsigned)shape.threads,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .sharedMemBytes = (unsigned)shared,
                                   .hStream = at->stream,
                                   .attrs = &overlaps,
                                   .numAttrs = early && gpu->capability == 90};
    const CUresult result = cu->cuLaunchKernelEx(&config, gpu->function[image][function], arguments, NULL);
    return result == CUDA_SUCCESS ? FATTN_OK : fail(result, f->name);
}

fattn_status cuda_launch(const fattn_launch *at, cuda_image_id image, int function, cuda_shape shape, void **arguments)
{
    return launch(at, image, function, shape, images[image]->functions[function].shared, false, arguments);
}

fattn_status cuda_launch_early(const fattn_launch *at, cuda_image_id image, int function, cuda_shape shape, size_t shared,
                               void **arguments)
{
    return launch(at, image, function, shape, shared, true, arguments);
}
