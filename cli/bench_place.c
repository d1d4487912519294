/*
 * Where cells lie: the host, or a GPU.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "cli.h"

static bool open_gpu(bench_place *place)
{
    char reason[300];
    gpu_info info;
    place->gpu = gpu_open(0, reason, sizeof reason);
    if (place->gpu && gpu_look(0, &info, reason, sizeof reason)) {
        memcpy(place->name, info.name, sizeof place->name);
        place->multiprocessors = info.multiprocessors;
        return true;
    }
    cli_error("--device: cuda: %s", reason);
    return false;
}

bool bench_place_open(bench_place *place, fattn_device device)
{
    *place = (bench_place){.device = device, .word = device == FATTN_DEVICE_CUDA ? "cuda" : "cpu"};
    if (device == FATTN_DEVICE_CUDA)
        return open_gpu(place);
    machine_cpu_name(place->name, sizeof place->name);
    return true;
}

void bench_place_close(bench_place *place)
{
    gpu_close(place->gpu);
    place->gpu = NULL;
}

fattn_context_options bench_context_options(const bench_place *place, const char *kernel, int threads)
{
    return (fattn_context_options){.struct_size = sizeof(fattn_context_options),
                                   .threads = place->gpu ? 1 : threads, /* a GPU's calls use none */
                                   .kernel = strcmp(kernel, "auto") ? kernel : NULL,
                                   .device = place->device};
}

void *bench_place_allocate(const bench_place *place, size_t bytes)
{
    return place->gpu ? gpu_allocate(place->gpu, bytes) : malloc(bytes + 1);
}

void bench_place_free(const bench_place *place, void *memory)
{
    if (place->gpu)
        gpu_release(place->gpu, memory);
    else
        free(memory);
}

bool bench_place_wait(const bench_place *place)
{
    return !place->gpu || gpu_wait(place->gpu);
}

const char *bench_place_error(const bench_place *place)
{
    return place->gpu && *gpu_error(place->gpu) ? gpu_error(place->gpu) : fattn_last_error();
}

void bench_place_forget(const bench_place *place)
{
    if (place->gpu)
        gpu_forget_error(place->gpu);
}
