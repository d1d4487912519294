/*
 * What the machine lends to the trainer: a device, the attention library on it, and a number of threads.
 *
 * There is one pool of threads, OpenMP's: the matrix products of oneDNN run on it, the layers do, and the fattn contexts
 * made here are given a parallel_for that is an OpenMP loop. Two pools would take the cores from each other.
 *
 * GCC's OpenMP lets idle threads spin for milliseconds, and if another program wants the cores, a step then takes ten times
 * as long (measured: 1,400 against 15,000 tokens/s). It spins a thousand times less where a process has more OpenMP threads
 * than processors (its manual, GOMP_SPINCOUNT). So the runtime keeps a few more, asleep, unless
 * very many processors are idle. OMP_WAIT_POLICY and GOMP_SPINCOUNT overrule that.
 *
 * Subnormal numbers are flushed to zero on these threads (exponentials of far-off keys and AdamW's second moments would
 * else fall among them, at a hundred cycles each). The setting stays on the calling thread.
 */
#ifndef TRAIN_RUNTIME_H
#define TRAIN_RUNTIME_H

#include "ranks.h"

typedef struct runtime {
    device *device;
    number_type type; /* of activations and of what goes into matrix products */
    int threads;
    fattn_context *flash; /* kernels chosen by the library */
    fattn_context
        *composed; /* the baseline: the kernel `composed` of the device; on the CPU `ref` if the library was built without it */
    bool composed_widens;      /* composed computes in f32 only, and is given floats in place of bf16 */
    ranks *ranks;              /* of which this process is one; alone, if nothing else was asked for */
    struct sleepers *sleepers; /* the threads that exist only to be counted; NULL: none */
} runtime;

typedef struct runtime_options {
    int threads; /* 0: as many as the process may use; OMP_THREAD_LIMIT can make it fewer, OMP_NUM_THREADS does not count */
    fattn_device device;      /* FATTN_DEVICE_CPU or FATTN_DEVICE_CUDA */
    int32_t index;            /* which GPU */
    number_type type;         /* as above */
    const ranks_place *place; /* which rank this process is; NULL: the only one */
} runtime_options;

/* False, with train_error() set, if it cannot be. */
bool runtime_open(runtime *r, const runtime_options *options);
/* Ranks with code 0, unless they were closed before and r->ranks is NULL. */
void runtime_close(runtime *r);

/* What a call of the attention library came to: true for FATTN_OK, else false, with train_error() set. The kind is
 * TRAIN_ERROR_GIVEN if the call makes no sense or cannot be done, TRAIN_ERROR_WORK if memory or a GPU failed. */
bool runtime_library_did(fattn_status status);

#endif
