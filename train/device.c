/* What is the same on every device: see device.h. */
#include "device.h"

#include <stdlib.h>

#include "error.h"

void device_close(device *d)
{
    if (d)
        d->run->close(d);
}

const void *device_look(device *d, const void *from, size_t bytes)
{
    if (d->kind == FATTN_DEVICE_CPU)
        return from;
    void *copy = malloc(bytes ? bytes : 1);
    if (!copy) {
        train_fail_as(TRAIN_ERROR_WORK, "no memory for a copy of %zu bytes", bytes);
        return NULL;
    }
    if (d->run->get(d, copy, from, bytes))
        return copy;
    free(copy);
    return NULL;
}

void device_look_end(device *d, const void *seen)
{
    if (d->kind != FATTN_DEVICE_CPU)
        free((void *)(uintptr_t)seen);
}
