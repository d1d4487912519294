/*
 * Opening libcuda.so.1.
 */
#include "gpu/driver.h"

#include <pthread.h>
#include <stdio.h>

#include "gpu/symbols.h"

static gpu_driver_calls calls;
static char absent[200];

static const char *find_calls(void *library)
{
    const gpu_symbol symbols[] = {
#define GPU_DRIVER_SYMBOL(call) {GPU_SYMBOL_NAME(call), &calls.call},
        GPU_DRIVER_CALLS(GPU_DRIVER_SYMBOL)
#undef GPU_DRIVER_SYMBOL
    };
    return gpu_symbols_find(library, symbols, sizeof symbols / sizeof *symbols);
}

static void open_driver(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    char text[120];
    int count = 0;
    if (!library) {
        snprintf(absent, sizeof absent, "there is no CUDA driver (libcuda.so.1) here");
        return;
    }
    const char *missing = find_calls(library);
    if (missing) {
        snprintf(absent, sizeof absent, "the CUDA driver is too old: it has no %s", missing);
        return;
    }
    CUresult result = calls.cuInit(0);
    if (result == CUDA_SUCCESS)
        result = calls.cuDeviceGetCount(&count);
    if (result != CUDA_SUCCESS)
        snprintf(absent, sizeof absent, "the CUDA driver does not start: %s", gpu_error_text(result, text, sizeof text));
    else if (count == 0)
        snprintf(absent, sizeof absent, "the CUDA driver sees no GPU");
}

static void open_once(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_driver);
}

const gpu_driver_calls *gpu_driver(void)
{
    open_once();
    return absent[0] ? NULL : &calls;
}

const char *gpu_driver_absent(void)
{
    open_once();
    return absent;
}

const char *gpu_error_text(CUresult result, char *text, size_t size)
{
    const char *name = NULL, *meaning = NULL;
    if (calls.cuGetErrorName)
        calls.cuGetErrorName(result, &name);
    if (calls.cuGetErrorString)
        calls.cuGetErrorString(result, &meaning);
    if (name)
        snprintf(text, size, "%s: %s", name, meaning ? meaning : "no further text");
    else
        snprintf(text, size, "CUresult %d", (int)result);
    return text;
}
