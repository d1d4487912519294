/*
 * How fast a cell's memory can be read: what decoding is compared with.
 *
 * machine_read_bandwidth times whole passes over a buffer, and a pass is much longer than a call that reads one set. On a
 * machine that others use, short windows find it left alone more often than long ones. So plain reading goes through the very
 * sets that the calls read, in the same order, and a window is what one call reads, by all threads at once.
 */
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>

#include "bench.h"

enum { READERS_MAX = 256, WINDOW_LEAST = 1 << 18 };

/* What the readers share. Each window they start together, and it lasts until the last has done its part, as a call does. */
typedef struct reading {
    const bench_data *data;
    size_t part;       /* bytes of a set that each thread reads */
    int sets;          /* that a window has */
    atomic_int window; /* the window that runs, from 1; -1: no more */
    atomic_int done;   /* readers that are through with it, the first not counted */
} reading;

typedef struct reader {
    reading *all;
    int index;
    uint64_t sum;
} reader;

/* Eight sums, so that no addition waits for the one before. */
static uint64_t read_all(const uint64_t *from, size_t count)
{
    uint64_t sum[8] = {0};
    for (size_t i = 0; i + 8 <= count; i += 8)
        for (int lane = 0; lane < 8; lane++)
            sum[lane] += from[i + (size_t)lane];
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

/* Reads this thread's part of window number `window`. */
static void read_window(reader *r, int window)
{
    const bench_data *data = r->all->data;
    for (int i = 0; i < r->all->sets; i++) {
        const size_t set = ((size_t)window * (size_t)r->all->sets + (size_t)i) % (size_t)data->sets;
        const void *from = (unsigned char *)data->memory + set * data->set_bytes + (size_t)r->index * r->all->part;
        r->sum += read_all(from, r->all->part / sizeof(uint64_t));
    }
}

/* Every reader but the first. */
static void *run_reader(void *argument)
{
    reader *r = argument;
    for (int seen = 0;;) {
        const int window = atomic_load(&r->all->window);
        if (window < 0)
            return NULL;
        if (window == seen) {
            sched_yield();
            continue;
        }
        read_window(r, window);
        seen = window;
        atomic_fetch_add(&r->all->done, 1);
    }
}

/* The first reader times the windows. Returns the least seconds. */
static double time_windows(reader *first, int others, double seconds)
{
    reading *all = first->all;
    const double end = machine_seconds() + seconds;
    double least = INFINITY;
    for (int window = 1; window == 1 || (machine_seconds() < end && window < INT_MAX); window++) {
        atomic_store(&all->done, 0);
        const double start = machine_seconds();
        atomic_store(&all->window, window);
        read_window(first, window);
        while (atomic_load(&all->done) < others)
            sched_yield();
        least = fmin(least, machine_seconds() - start);
    }
    atomic_store(&all->window, -1);
    return least;
}

double bench_read_bandwidth(const bench_data *data, int threads, double seconds)
{
    reader readers[READERS_MAX];
    pthread_t ids[READERS_MAX];
    const int cpus = machine_cpus(), most = threads < cpus ? threads : cpus;
    int count = most < 1 ? 1 : most > READERS_MAX ? READERS_MAX : most;
    const size_t part = data->set_bytes / (size_t)count / 64 * 64;
    if (part == 0)
        return 0;
    reading all = {.data = data, .part = part, .sets = 1 + (int)(WINDOW_LEAST / (part * (size_t)count))};
    for (int i = 0; i < count; i++) {
        readers[i] = (reader){.all = &all, .index = i};
        if (i > 0 && pthread_create(&ids[i], NULL, run_reader, &readers[i]) != 0)
            count = i;
    }
    const double least = time_windows(&readers[0], count - 1, seconds);
    for (int i = 1; i < count; i++)
        pthread_join(ids[i], NULL);
    return (double)(part * (size_t)count * (size_t)all.sets) / least * 1e-9;
}
