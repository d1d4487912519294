/*
 * A GPU as clients of the library use it: its memory, copies to and from it, and the time between two points of its work.
 * Nothing here names the driver's types, so that programs built without CUDA compile the same calls; memory_none.c then refuses
 * to open.
 *
 * Work of one opened GPU is done in order, on one stream. Calls that return false have set gpu_error(). An opened GPU belongs
 * to the thread that opened it.
 */
#ifndef FATTN_GPU_MEMORY_H
#define FATTN_GPU_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

enum { GPU_NAME = 128, GPU_MARKS = 65 };

typedef struct gpu_device gpu_device;

typedef struct gpu_info {
    char name[GPU_NAME];
    int capability; /* 90: compute capability 9.0 */
    int multiprocessors;
    size_t memory; /* bytes */
} gpu_info;

/* How many GPUs there are. 0: the reason, in room for `size` bytes. */
int gpu_count(char *reason, size_t size);

/* What GPU `index` is. False, with the reason, if the driver does not say. */
bool gpu_look(int index, gpu_info *info, char *reason, size_t size);

/* Opens GPU `index`: its primary context, current in this thread until gpu_close. NULL, with the reason, if that cannot be. */
gpu_device *gpu_open(int index, char *reason, size_t size);
void gpu_close(gpu_device *g);

/* The stream, for the library's args.stream. */
void *gpu_stream(const gpu_device *g);

/* "copying to the GPU: CUDA_ERROR_...: ...", of the first call that failed since gpu_forget_error; empty if none did. */
const char *gpu_error(const gpu_device *g);
bool gpu_error_is_memory(const gpu_device *g); /* it failed for want of memory alone: later calls may work */
void gpu_forget_error(gpu_device *g);

/* Memory of the GPU, aligned to 256 bytes at least. Releasing NULL does nothing. */
void *gpu_allocate(gpu_device *g, size_t bytes);
void gpu_release(gpu_device *g, void *memory);

/* Memory of the host that the GPU reaches too, for a few numbers that it tells the host. Releasing NULL does nothing. */
void *gpu_allocate_shared(gpu_device *g, size_t bytes);
void gpu_release_shared(gpu_device *g, void *memory);

/* Copies to the GPU, back, and within it. gpu_put may return before it is done, but the host's bytes may be changed; gpu_get
 * waits; gpu_copy does not. */
bool gpu_put(gpu_device *g, void *to, const void *host, size_t bytes);
bool gpu_get(gpu_device *g, void *host, const void *from, size_t bytes);
bool gpu_copy(gpu_device *g, void *to, const void *from, size_t bytes);

/* Sets every byte; does not wait. */
bool gpu_fill(gpu_device *g, void *to, unsigned char byte, size_t bytes);

/* Waits for all work. False after an error of any of it: the GPU is then of no more use to this process. */
bool gpu_wait(gpu_device *g);

/* Notes the time at which the work so far is done, as mark 0 .. GPU_MARKS-1; waits until it is, whatever work came later; and
 * the seconds between two marks, once gpu_wait has returned: NaN after an error. */
bool gpu_mark(gpu_device *g, int mark);
bool gpu_wait_mark(gpu_device *g, int mark);
double gpu_seconds(gpu_device *g, int from, int to);

#endif
