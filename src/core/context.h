/*
 * The context: what was asked for and found when it was made. Only the pool behind it changes afterwards.
 */
#ifndef FATTN_CORE_CONTEXT_H
#define FATTN_CORE_CONTEXT_H

#include "core/kernel.h"
#include "core/registry.h"

typedef struct fattn_pool fattn_pool;
typedef struct fattn_merging fattn_merging;     /* merge.h */
typedef struct fattn_appending fattn_appending; /* cache.h */
typedef struct fattn_looking fattn_looking;     /* look.h */

/* A device that is not the CPU: how its part of a context is made and ended, and how calls run there, of kernels and others.
 * All get what core has read and checked, and launch their work on the call's stream. */
typedef struct fattn_backend {
    /* Opens GPU context->device_index for the forced kernels, and sets gpu, device_name, features and shared. */
    fattn_status (*open)(fattn_context *context);
    void (*close)(void *state);
    fattn_status (*run)(const fattn_kernel *kernel, const fattn_problem *problem, fattn_launch *launch);
    fattn_status (*merge)(const fattn_context *context, const fattn_merging *m); /* either way */
    fattn_status (*append)(const fattn_context *context, const fattn_appending *a);
    fattn_status (*look)(const fattn_context *context, const fattn_looking *l);
} fattn_backend;

#ifdef FATTN_HAVE_CUDA
extern const fattn_backend fattn_cuda_backend;
#endif

struct fattn_context {
    int32_t device, device_index;
    const fattn_backend *backend; /* NULL: the CPU */
    void *gpu;                    /* the backend's */
    const char *device_name;
    int32_t threads;
    uint32_t features;
    size_t shared;                   /* bytes of shared memory that a block of the GPU may have */
    fattn_parallel_for parallel_for; /* NULL: the pool */
    void *user;
    fattn_pool *pool; /* NULL if threads is 1 or the caller has a parallel_for */
    char *kernel;     /* forced names, or NULL */
    /* By op - 1: kernels that are forced, or all if none is, and whose device is the context's and has what they need; in the
     * order of preference. */
    int32_t candidate_count[2];
    const fattn_kernel *candidates[2][FATTN_MAX_KERNELS];
};

/* Refuses a NULL context, reads desc and fills in all of problem. */
fattn_status fattn_context_problem(const fattn_context *context, const fattn_desc *desc, fattn_problem *problem);

/* The built-in pool for up to `threads` lanes; starts none yet. NULL without memory. */
fattn_pool *fattn_pool_create(int32_t threads);

/* Ends the threads, waits for them, and frees the pool. */
void fattn_pool_destroy(fattn_pool *pool);

#endif
