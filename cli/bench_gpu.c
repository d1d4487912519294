/*
 * The clock of a GPU: calls are queued with marks between them, and the GPU notes when it passes each. So the host's work of
 * making a call counts only where it takes longer than the call itself.
 *
 * A GPU that was idle runs faster for a while than its power allows for long. So calls repeat before any sample is taken.
 */
#include <math.h>

#include "bench.h"

static const double warm_seconds = 0.25;
static const double batch_seconds = 0.01;   /* least time of calls that are queued at once while warming up */
static const double sample_seconds = 20e-6; /* least time between two marks, which are precise to half a microsecond */

enum { SAMPLES_MAX = GPU_MARKS - 1, CALLS_MAX = 1 << 16 };

/* Queues samples of `calls` calls each, sample i between marks i and i + 1, and waits. */
static bool run_samples(bench_turn *t, int samples, int calls)
{
    gpu_device *g = t->cell->place->gpu;
    bool ok = gpu_mark(g, 0);
    for (int i = 0; ok && i < samples; i++) {
        for (int c = 0; ok && c < calls; c++)
            ok = bench_turn_call(t);
        ok = ok && gpu_mark(g, i + 1);
    }
    return ok && gpu_wait(g);
}

bool bench_gpu_warm_up(bench_turn *t)
{
    const double end = machine_seconds() + warm_seconds;
    for (int calls = 1; machine_seconds() < end;) {
        if (!run_samples(t, 1, calls))
            return false;
        const double seconds = gpu_seconds(t->cell->place->gpu, 0, 1);
        t->call_seconds = fmax(seconds / calls, 1e-7);
        if (seconds < batch_seconds && calls < CALLS_MAX)
            calls *= 2;
    }
    return true;
}

/* Takes the times of `samples` samples. The first of several began while the GPU waited for work, and does not count. */
static void keep_samples(bench_turn *t, int samples, int calls)
{
    gpu_device *g = t->cell->place->gpu;
    for (int i = samples > 1; i < samples && t->runs < BENCH_RUNS_MAX; i++)
        t->samples[t->runs++] = gpu_seconds(g, i, i + 1) / calls;
    t->spent += gpu_seconds(g, 0, samples);
}

bool bench_gpu_sample(bench_turn *t, double seconds)
{
    const int calls = (int)ceil(fmin(sample_seconds / t->call_seconds, CALLS_MAX));
    const int samples = (int)fmin(fmax(seconds / (calls * t->call_seconds), 1), SAMPLES_MAX);
    const double end = t->spent + seconds;
    do {
        if (!run_samples(t, samples, calls))
            return false;
        keep_samples(t, samples, calls);
    } while (t->spent < end && t->runs < BENCH_RUNS_MAX);
    return !isnan(t->spent);
}

double bench_gpu_copy_bandwidth(const bench_place *place)
{
    enum { COPIES = 8 };
    const size_t bytes = (size_t)1 << 30;
    gpu_device *g = place->gpu;
    unsigned char *memory = gpu_allocate(g, 2 * bytes);
    double least = INFINITY;
    bool ok = memory && gpu_mark(g, 0);
    for (int i = 0; ok && i < COPIES; i++)
        ok = gpu_copy(g, memory + bytes, memory, bytes) && gpu_mark(g, i + 1);
    ok = ok && gpu_wait(g);
    for (int i = 1; ok && i < COPIES; i++)
        least = fmin(least, gpu_seconds(g, i, i + 1));
    gpu_release(g, memory);
    return ok ? 2 * (double)bytes / least * 1e-9 : (double)NAN;
}
