/*
 * See memory.h; in a program that was built without CUDA. No GPU can be opened, so that the rest is never reached.
 */
#include "gpu/memory.h"

#include <math.h>
#include <stdio.h>

int gpu_count(char *reason, size_t size)
{
    snprintf(reason, size, "this program was built without CUDA");
    return 0;
}

bool gpu_look(int index, gpu_info *info, char *reason, size_t size)
{
    (void)index;
    *info = (gpu_info){0};
    return gpu_count(reason, size) > 0;
}

gpu_device *gpu_open(int index, char *reason, size_t size)
{
    (void)index;
    gpu_count(reason, size);
    return NULL;
}

void gpu_close(gpu_device *g)
{
    (void)g;
}

void *gpu_stream(const gpu_device *g)
{
    (void)g;
    return NULL;
}

const char *gpu_error(const gpu_device *g)
{
    (void)g;
    return "";
}

bool gpu_error_is_memory(const gpu_device *g)
{
    (void)g;
    return false;
}

void gpu_forget_error(gpu_device *g)
{
    (void)g;
}

void *gpu_allocate(gpu_device *g, size_t bytes)
{
    (void)g, (void)bytes;
    return NULL;
}

void gpu_release(gpu_device *g, void *memory)
{
    (void)g, (void)memory;
}

void *gpu_allocate_shared(gpu_device *g, size_t bytes)
{
    (void)g, (void)bytes;
    return NULL;
}

void gpu_release_shared(gpu_device *g, void *memory)
{
    (void)g, (void)memory;
}

bool gpu_put(gpu_device *g, void *to, const void *host, size_t bytes)
{
    (void)g, (void)to, (void)host, (void)bytes;
    return false;
}

bool gpu_get(gpu_device *g, void *host, const void *from, size_t bytes)
{
    (void)g, (void)host, (void)from, (void)bytes;
    return false;
}

bool gpu_copy(gpu_device *g, void *to, const void *from, size_t bytes)
{
    (void)g, (void)to, (void)from, (void)bytes;
    return false;
}

bool gpu_fill(gpu_device *g, void *to, unsigned char byte, size_t bytes)
{
    (void)g, (void)to, (void)byte, (void)bytes;
    return false;
}

bool gpu_wait(gpu_device *g)
{
    (void)g;
    return false;
}

bool gpu_mark(gpu_device *g, int mark)
{
    (void)g, (void)mark;
    return false;
}

bool gpu_wait_mark(gpu_device *g, int mark)
{
    (void)g, (void)mark;
    return false;
}

double gpu_seconds(gpu_device *g, int from, int to)
{
    (void)g, (void)from, (void)to;
    return (double)NAN;
}
