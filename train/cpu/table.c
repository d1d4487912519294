/* The CPU as a device: the host's memory, and work that is done when a call returns. */
#include <stdlib.h>
#include <string.h>

#include "train/cpu/chunks.h"
#include "train/cpu/cpu.h"
#include "train/error.h"

enum { CACHE_LINE = 64 };

static void *allocate(device *d, size_t bytes)
{
    (void)d;
    void *memory = aligned_alloc(CACHE_LINE, bytes ? (bytes + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE : CACHE_LINE);
    if (!memory)
        train_fail_as(TRAIN_ERROR_WORK, "no memory: %zu bytes are needed", bytes);
    return memory;
}

static void release(device *d, void *memory)
{
    (void)d;
    free(memory);
}

static bool put(device *d, void *to, const void *from, size_t bytes)
{
    (void)d;
    if (bytes)
        memcpy(to, from, bytes);
    return true;
}

static bool fill(device *d, void *to, unsigned char byte, size_t bytes)
{
    (void)d;
    if (bytes)
        memset(to, byte, bytes);
    return true;
}

static bool at_once(device *d, device_mark mark)
{
    (void)d, (void)mark;
    return true;
}

static void stay(device *d)
{
    (void)d;
}

device *device_cpu(void)
{
    static const device_table table = {.allocate = allocate,
                                       .release = release,
                                       .allocate_shared = allocate,
                                       .release_shared = release,
                                       .put = put,
                                       .get = put,
                                       .fill = fill,
                                       .mark = at_once,
                                       .wait = at_once,
                                       .close = stay,
                                       .product = cpu_product,
                                       .copy = cpu_copy,
                                       .embedding_forward = cpu_embedding_forward,
                                       .embedding_backward = cpu_embedding_backward,
                                       .rmsnorm_forward = cpu_rmsnorm_forward,
                                       .rmsnorm_backward = cpu_rmsnorm_backward,
                                       .qknorm_rope_forward = cpu_qknorm_rope_forward,
                                       .qknorm_rope_backward = cpu_qknorm_rope_backward,
                                       .dropout = cpu_dropout,
                                       .swiglu_forward = cpu_swiglu_forward,
                                       .swiglu_backward = cpu_swiglu_backward,
                                       .cross_entropy_forward = cpu_cross_entropy_forward,
                                       .cross_entropy_backward = cpu_cross_entropy_backward,
                                       .merge = cpu_merge,
                                       .grad_squares = cpu_grad_squares,
                                       .grad_norm = cpu_grad_norm,
                                       .update = cpu_update};
    static device cpu = {.run = &table, .kind = FATTN_DEVICE_CPU, .chunks = ROW_CHUNKS};
    return &cpu;
}
