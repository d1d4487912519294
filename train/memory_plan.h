/*
 * Memory planned by lifetime.
 *
 * A step is a fixed sequence of operations, so it is known beforehand when each buffer is first written and last read. The
 * plan gives every buffer an offset in one block such that two buffers overlap in memory only if they never live at the
 * same time; the block is then allocated once. A buffer may live twice (forward, and again when recomputed for backward).
 *
 * Placing is greedy: largest first, each at the lowest offset that is free for all of its lifetimes. O(n^2) for n buffers,
 * some hundreds.
 */
#ifndef TRAIN_MEMORY_PLAN_H
#define TRAIN_MEMORY_PLAN_H

#include "device.h"
#include <stdbool.h>
#include <stddef.h>

enum { MEMORY_ALIGN = 64, MEMORY_LIVES = 2 };

/* What the memory of a step is for, in its report. */
typedef enum memory_use { MEMORY_ACTIVATION, MEMORY_GRADIENT, MEMORY_WORKSPACE, MEMORY_USES } memory_use;

typedef struct planned_buffer {
    size_t bytes;
    memory_use use;
    struct {
        int first, last; /* times, both included; last < first: does not live */
    } life[MEMORY_LIVES];
    size_t offset; /* the plan's answer */
} planned_buffer;

typedef struct memory_plan {
    planned_buffer *buffers;
    int count, capacity;
    bool failed;                  /* a buffer could not be added */
    device *device;               /* whose memory the block is of */
    void *block;                  /* NULL before memory_allocate */
    size_t bytes;                 /* size of the block: the peak */
    size_t peak_use[MEMORY_USES]; /* how the bytes alive at the fullest moment are used; their sum is at most `bytes` */
} memory_plan;

/* Adds a buffer that does not live yet and returns its number; -1 if there is no memory for it, which memory_failed()
 * remembers. */
int memory_add(memory_plan *a, size_t bytes, memory_use use);
bool memory_failed(const memory_plan *a);
/* Buffer `number` is in use at `time` in its life number `life`. Times begin at 0. */
void memory_touch(memory_plan *a, int number, int life, int time);
/* Gives every buffer that lives an offset and fills bytes and peak_use. */
bool memory_place(memory_plan *a);
/* Allocates the block from a device, filled with NaNs: what is read without having been written shows. */
bool memory_allocate(memory_plan *a, device *d);
/* The address of a buffer; NULL if it never lives. */
void *memory_address(const memory_plan *a, int number);
void memory_free(memory_plan *a);

#endif
