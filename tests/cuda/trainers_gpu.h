/*
 * The trainer's runtimes on a GPU, one for each type, for the tests in this folder; all that need one skip themselves where
 * there is none.
 */
#ifndef FATTN_TESTS_CUDA_TRAINERS_GPU_H
#define FATTN_TESTS_CUDA_TRAINERS_GPU_H

#include "gpu/memory.h"
#include "tests/train/support.h"

enum { TYPES = 2 };

static runtime gpu[TYPES]; /* by number_type */

static int open_gpu(void **state)
{
    char reason[300];
    (void)state;
    for (int type = 0; type < TYPES && gpu_count(reason, sizeof reason) > 0; type++)
        require(runtime_open(&gpu[type], &(runtime_options){.device = FATTN_DEVICE_CUDA, .type = (number_type)type}));
    return 0;
}

static int close_gpu(void **state)
{
    (void)state;
    for (int type = 0; type < TYPES; type++)
        if (gpu[type].device)
            runtime_close(&gpu[type]);
    return 0;
}

static void need_gpu(void)
{
    if (!gpu[0].device)
        skip();
}

#endif
