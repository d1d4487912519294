/*
 * Opening libcublas.so.
 */
#include "gpu/cublas.h"

#include <pthread.h>
#include <stdio.h>

#include "gpu/symbols.h"

static gpu_cublas_calls calls;
static char absent[200];

/* The types of the calls are the same in both; older ones have no calls with sizes of 64 bits. */
static const char *const names[] = {"libcublas.so.13", "libcublas.so.12"};

static void open_cublas(void)
{
    const gpu_symbol symbols[] = {
#define GPU_CUBLAS_SYMBOL(call) {GPU_SYMBOL_NAME(call), &calls.call},
        GPU_CUBLAS_CALLS(GPU_CUBLAS_SYMBOL)
#undef GPU_CUBLAS_SYMBOL
    };
    snprintf(absent, sizeof absent, "there is no cuBLAS (%s or %s) here", names[0], names[1]);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        const char *missing = library ? gpu_symbols_find(library, symbols, sizeof symbols / sizeof *symbols) : "";
        if (!missing) {
            absent[0] = '\0';
            return;
        }
        if (library) {
            snprintf(absent, sizeof absent, "%s is too old: it has no %s", names[i], missing);
            dlclose(library);
        }
    }
}

static void open_once(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_cublas);
}

const gpu_cublas_calls *gpu_cublas(void)
{
    open_once();
    return absent[0] ? NULL : &calls;
}

const char *gpu_cublas_absent(void)
{
    open_once();
    return absent;
}

const char *gpu_cublas_error_text(cublasStatus_t status, char *text, size_t size)
{
    const char *name = calls.cublasGetStatusName(status), *meaning = calls.cublasGetStatusString(status);
    snprintf(text, size, "%s: %s", name ? name : "no name", meaning ? meaning : "no further text");
    return text;
}
