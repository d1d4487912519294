/*
 * Opening libnccl.so.
 */
#include "gpu/nccl.h"

#include <pthread.h>
#include <stdio.h>

#include "gpu/symbols.h"

static gpu_nccl_calls calls;
static char absent[200];

static void open_nccl(void)
{
    static const char name[] = "libnccl.so.2";
    const gpu_symbol symbols[] = {
#define GPU_NCCL_SYMBOL(call) {GPU_SYMBOL_NAME(call), &calls.call},
        GPU_NCCL_CALLS(GPU_NCCL_SYMBOL)
#undef GPU_NCCL_SYMBOL
    };
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    const char *missing = library ? gpu_symbols_find(library, symbols, sizeof symbols / sizeof *symbols) : NULL;
    if (!library)
        snprintf(absent, sizeof absent, "there is no NCCL (%s) here", name);
    else if (missing)
        snprintf(absent, sizeof absent, "%s is too old: it has no %s", name, missing);
}

static void open_once(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_nccl);
}

const gpu_nccl_calls *gpu_nccl(void)
{
    open_once();
    return absent[0] ? NULL : &calls;
}

const char *gpu_nccl_absent(void)
{
    open_once();
    return absent;
}
