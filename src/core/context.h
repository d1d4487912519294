/*
 * The context: what was asked for and found when it was made. Only the pool behind it changes afterwards.
 */
#ifndef FATTN_CORE_CONTEXT_H
#define FATTN_CORE_CONTEXT_H

#include "core/kernel.h"
#include "core/registry.h"

typedef struct fattn_pool fattn_pool;

struct fattn_context {
    int32_t threads;
    uint32_t features;
    fattn_parallel_for parallel_for; /* NULL: the pool */
    void *user;
    fattn_pool *pool; /* NULL if threads is 1 or the caller has a parallel_for */
    char *kernel;     /* forced names, or NULL */
    /* By op - 1: kernels that are forced, or all if none is, and whose CPU features are here; in the order of preference. */
    int32_t candidate_count[2];
    const fattn_kernel *candidates[2][FATTN_MAX_KERNELS];
};

/* The built-in pool for up to `threads` lanes; starts none yet. NULL without memory. */
fattn_pool *fattn_pool_create(int32_t threads);

/* Ends the threads, waits for them, and frees the pool. */
void fattn_pool_destroy(fattn_pool *pool);

#endif
