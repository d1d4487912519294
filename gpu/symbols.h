/*
 * Finding the calls of a library that was opened at run time.
 */
#ifndef FATTN_GPU_SYMBOLS_H
#define FATTN_GPU_SYMBOLS_H

#include <dlfcn.h>
#include <stddef.h>

typedef struct gpu_symbol {
    const char *name;
    void *place; /* of a pointer to a function */
} gpu_symbol;

/* The name to look up for a call: headers give some a version, cuMemAlloc_v2, and it is the one that the macro becomes. */
#define GPU_SYMBOL_NAME(call)      GPU_SYMBOL_NAME_TEXT(call)
#define GPU_SYMBOL_NAME_TEXT(call) #call

/* Fills the places. The name of the first call that the library does not have, or NULL. */
static inline const char *gpu_symbols_find(void *library, const gpu_symbol *symbols, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        void *found = dlsym(library, symbols[i].name);
        if (!found)
            return symbols[i].name;
        *(void **)symbols[i].place = found;
    }
    return NULL;
}

#endif
