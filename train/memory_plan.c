/*
 * Memory planned by lifetime: see memory_plan.h.
 *
 * Placing one buffer walks over those already placed in order of their offsets. Only the ones that live at a common time
 * matter; the lowest gap between them that is large enough is taken.
 */
#include "memory_plan.h"
#include <stdlib.h>
#include <string.h>

/* More than any machine has; even 2^17 such buffers can be added up. */
static const size_t most_bytes = (size_t)1 << 46;

int memory_add(memory_plan *a, size_t bytes, memory_use use)
{
    if (bytes > most_bytes) {
        a->failed = true;
        return -1;
    }
    if (a->count == a->capacity) {
        int capacity = a->capacity ? 2 * a->capacity : 64;
        planned_buffer *buffers = realloc(a->buffers, (size_t)capacity * sizeof *buffers);
        if (!buffers) {
            a->failed = true;
            return -1;
        }
        a->buffers = buffers;
        a->capacity = capacity;
    }
    planned_buffer *b = &a->buffers[a->count];
    memset(b, 0, sizeof *b);
    b->bytes = (bytes + MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN;
    b->use = use;
    for (int i = 0; i < MEMORY_LIVES; i++)
        b->life[i].last = -1;
    return a->count++;
}

bool memory_failed(const memory_plan *a)
{
    return a->failed;
}

static bool lives(const planned_buffer *b, int life)
{
    return b->life[life].first <= b->life[life].last;
}

void memory_touch(memory_plan *a, int number, int life, int time)
{
    planned_buffer *b = &a->buffers[number];
    if (!lives(b, life)) {
        b->life[life].first = b->life[life].last = time;
        return;
    }
    if (time < b->life[life].first)
        b->life[life].first = time;
    if (time > b->life[life].last)
        b->life[life].last = time;
}

static bool alive_together(const planned_buffer *a, const planned_buffer *b)
{
    for (int i = 0; i < MEMORY_LIVES; i++)
        for (int j = 0; j < MEMORY_LIVES; j++)
            if (lives(a, i) && lives(b, j) && a->life[i].first <= b->life[j].last && b->life[j].first <= a->life[i].last)
                return true;
    return false;
}

static bool alive_at(const planned_buffer *b, int time)
{
    for (int i = 0; i < MEMORY_LIVES; i++)
        if (lives(b, i) && b->life[i].first <= time && time <= b->life[i].last)
            return true;
    return false;
}

/* Largest first; equal sizes in the order they were added, so that the plan does not depend on the C library's qsort. */
static int compare_size(const void *x, const void *y)
{
    const planned_buffer *a = *(planned_buffer *const *)x, *b = *(planned_buffer *const *)y;
    if (a->bytes != b->bytes)
        return a->bytes > b->bytes ? -1 : 1;
    return a < b ? -1 : a > b;
}

/* Puts b at the lowest free offset and into `placed`, which is kept in order of offsets. */
static void place(planned_buffer *b, planned_buffer **placed, int *count)
{
    size_t offset = 0;
    for (int i = 0; i < *count; i++) {
        const planned_buffer *p = placed[i];
        if (!alive_together(b, p) || p->offset + p->bytes <= offset)
            continue;
        if (p->offset >= offset + b->bytes)
            break;
        offset = p->offset + p->bytes;
    }
    b->offset = offset;
    int at = *count;
    for (; at > 0 && placed[at - 1]->offset > offset; at--)
        placed[at] = placed[at - 1];
    placed[at] = b;
    ++*count;
}

static void find_peak(memory_plan *a)
{
    int end = -1;
    for (int i = 0; i < a->count; i++)
        for (int j = 0; j < MEMORY_LIVES; j++)
            if (a->buffers[i].life[j].last > end)
                end = a->buffers[i].life[j].last;
    size_t most = 0;
    for (int time = 0; time <= end; time++) {
        size_t use[MEMORY_USES] = {0}, all = 0;
        for (int i = 0; i < a->count; i++)
            if (alive_at(&a->buffers[i], time))
                use[a->buffers[i].use] += a->buffers[i].bytes;
        for (int i = 0; i < MEMORY_USES; i++)
            all += use[i];
        if (all > most) {
            most = all;
            memcpy(a->peak_use, use, sizeof use);
        }
    }
}

bool memory_place(memory_plan *a)
{
    planned_buffer **order = malloc(2 * (size_t)(a->count + 1) * sizeof *order);
    if (!order)
        return false;
    int used = 0, placed = 0;
    for (int i = 0; i < a->count; i++)
        if (a->buffers[i].bytes && (lives(&a->buffers[i], 0) || lives(&a->buffers[i], 1)))
            order[used++] = &a->buffers[i];
    qsort(order, (size_t)used, sizeof *order, compare_size);
    a->bytes = 0;
    for (int i = 0; i < used; i++) {
        place(order[i], order + a->count, &placed);
        if (order[i]->offset + order[i]->bytes > a->bytes)
            a->bytes = order[i]->offset + order[i]->bytes;
    }
    find_peak(a);
    free(order);
    return true;
}

bool memory_allocate(memory_plan *a, device *d)
{
    size_t bytes = a->bytes ? a->bytes : MEMORY_ALIGN;
    a->device = d;
    a->block = d->run->allocate(d, bytes);
    return a->block && d->run->fill(d, a->block, 0xff, bytes);
}

void *memory_address(const memory_plan *a, int number)
{
    if (number < 0)
        return NULL;
    const planned_buffer *b = &a->buffers[number];
    return lives(b, 0) || lives(b, 1) ? (char *)a->block + b->offset : NULL;
}

void memory_free(memory_plan *a)
{
    free(a->buffers);
    if (a->block)
        a->device->run->release(a->device, a->block);
    memset(a, 0, sizeof *a);
}
