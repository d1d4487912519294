/*
 * The CPU as a device: the host's memory, work that is done when a call returns, and the loops as they are compiled for the
 * file that includes this one.
 */
#ifndef TRAIN_CPU_TABLE_H
#define TRAIN_CPU_TABLE_H

#include <stdlib.h>
#include <string.h>

#include "train/cpu/chunks.h"
#include "train/cpu/copy.h"
#include "train/cpu/cpu.h"
#include "train/cpu/cross_entropy.h"
#include "train/cpu/dropout.h"
#include "train/cpu/embedding.h"
#include "train/cpu/merge.h"
#include "train/cpu/qknorm_rope.h"
#include "train/cpu/rmsnorm.h"
#include "train/cpu/swiglu.h"
#include "train/cpu/update.h"
#include "train/error.h"

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
                                   .copy = copy,
                                   .embedding_forward = embedding_forward,
                                   .embedding_backward = embedding_backward,
                                   .rmsnorm_forward = rmsnorm_forward,
                                   .rmsnorm_backward = rmsnorm_backward,
                                   .qknorm_rope_forward = qknorm_rope_forward,
                                   .qknorm_rope_backward = qknorm_rope_backward,
                                   .dropout = dropout,
                                   .swiglu_forward = swiglu_forward,
                                   .swiglu_backward = swiglu_backward,
                                   .cross_entropy = cross_entropy,
                                   .loss_sum = loss_sum,
                                   .merge = merge,
                                   .grad_squares = grad_squares,
                                   .grad_norm = grad_norm,
                                   .update = update};

#endif
