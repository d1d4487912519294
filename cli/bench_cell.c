/*
 * Times one problem with several kernels in turns: a slice of runs with the first, a slice with the second, ..., a probe of
 * the machine's peak, and again, so that a noisy neighbour or a changing clock meets all of them. On a GPU, whose clock takes
 * longer to settle, slices are longer, and each warms up unless the one before was the same kernel's.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "cli.h"

static const double slice_seconds = 0.02, slice_gpu = 0.25; /* of one kernel's turn */
static const double probe_long = 0.03, probe_short = 0.003;

/* Slices and probes are no longer than the time that a kernel gets. */
static double at_most(const bench_cell *cell, double seconds)
{
    return fmin(seconds, cell->seconds);
}

typedef struct session {
    const bench_cell *cell;
    bench_data data;
    bench_turn turns[BENCH_KERNELS_MAX];
    int threads; /* that the contexts use */
    double peak[3];
    double read_gbps;
    const bench_turn *warm; /* the kernel that the GPU ran last */
    bool failed;            /* the GPU did; bench_place_error says why */
} session;

/* ---------------------------------------------------------------------------------------------------------- beginning */

bool bench_turn_call(bench_turn *t)
{
    const int set = t->next_set;
    t->next_set = (set + 1) % t->data->sets;
    return bench_call(t->cell, t->context, t->data, set, t->workspace, t->bytes, NULL) == FATTN_OK;
}

/* A workspace, and the first run, which is the first of the warm-up. */
static fattn_status first_run(bench_turn *t)
{
    const bench_place *place = t->cell->place;
    fattn_status status = fattn_workspace_size(t->context, &t->data->desc, bench_op(t->cell), &t->bytes);
    if (status != FATTN_OK)
        return status;
    t->workspace = bench_place_allocate(place, t->bytes);
    t->samples = malloc(BENCH_RUNS_MAX * sizeof *t->samples);
    if (!t->workspace || !t->samples)
        return FATTN_ERROR_MEMORY;
    status = bench_call(t->cell, t->context, t->data, 0, t->workspace, t->bytes, &t->result.name);
    return status == FATTN_OK && !bench_place_wait(place) ? FATTN_ERROR_SYSTEM : status;
}

/* Notes what a run that went well says about the kernel and its context. */
static bool look_at_turn(session *s, bench_turn *t)
{
    fattn_context_info info = {.struct_size = sizeof info};
    if (fattn_context_query(t->context, &info) != FATTN_OK || !bench_data_fetch(&s->data))
        return false;
    s->threads = s->cell->place->gpu ? 0 : info.threads;
    t->unit = machine_unit(t->result.name, info.cpu_features);
    t->result.workspace = t->bytes;
    t->result.max_error = bench_error(s->cell, &s->data, &t->result.allowed_error);
    return true;
}

static int report_failure(const bench_turn *t, fattn_status status)
{
    const bool memory = status == FATTN_ERROR_MEMORY && !t->cell->place->gpu;
    cli_error("bench: %s, with a workspace of %zu bytes: %s", t->asked, t->bytes,
              memory ? "no memory" : bench_place_error(t->cell->place));
    return CLI_FAILED;
}

/* Tries one run. A kernel that refuses is left out, with a note. Returns an exit code. */
static int open_turn(session *s, bench_turn *t)
{
    const fattn_context_options options = bench_context_options(s->cell->place, t->asked, s->cell->threads);
    if (fattn_context_create(&options, &t->context) != FATTN_OK) {
        cli_error("--kernel: %s: %s", t->asked, fattn_last_error());
        return CLI_WRONG;
    }
    fattn_status status = bench_data_poison(&s->data, s->cell) ? first_run(t) : FATTN_ERROR_SYSTEM;
    if (status == FATTN_OK && !look_at_turn(s, t))
        status = FATTN_ERROR_SYSTEM;
    if (status == FATTN_OK)
        return CLI_OK;
    t->result.name = NULL;
    if (status == FATTN_ERROR_MEMORY || status == FATTN_ERROR_SYSTEM)
        return report_failure(t, status);
    cli_note("%s is left out: %s", t->asked, fattn_last_error());
    return CLI_OK;
}

static void close_turn(bench_turn *t)
{
    fattn_context_destroy(t->context);
    if (t->workspace)
        bench_place_free(t->cell->place, t->workspace);
    free(t->samples);
}

/* Measures the peak of every unit that a kernel uses, once more. A GPU has no such measurement here. */
static void probe_peaks(session *s, double seconds)
{
    bool done[3] = {false};
    for (int i = 0; i < s->cell->kernels && !s->cell->place->gpu; i++) {
        const bench_turn *t = &s->turns[i];
        if (!t->result.name || done[t->unit])
            continue;
        done[t->unit] = true;
        s->peak[t->unit] = fmax(s->peak[t->unit], machine_fma_peak(t->unit, s->cell->dtype == FATTN_F64, s->threads, seconds));
    }
}

/* Measures reading once more; on a GPU, copying. */
static void probe_reading(session *s, double seconds)
{
    const bench_place *place = s->cell->place;
    if (s->cell->pass != BENCH_DECODE || s->failed)
        return;
    const double gbps = place->gpu ? bench_gpu_copy_bandwidth(place) : bench_read_bandwidth(&s->data, s->threads, seconds);
    s->failed = isnan(gbps);
    s->read_gbps = fmax(s->read_gbps, gbps);
}

/* ------------------------------------------------------------------------------------------------------------- timing */

/* One kernel's turn on the CPU. Its first run warms up and does not count, unless the turn has no time for a second. */
static void take_cpu_turn(session *s, bench_turn *t)
{
    const double start = machine_seconds(), slice = at_most(s->cell, slice_seconds);
    bool counted = false;
    for (int run = 0; t->runs < BENCH_RUNS_MAX; run++) {
        const double before = machine_seconds();
        if (!bench_turn_call(t))
            break;
        const double after = machine_seconds();
        if (run > 0 || after - start > slice) {
            t->samples[t->runs++] = after - before;
            counted = true;
        }
        if (counted && after - start > slice)
            break;
    }
    t->spent += machine_seconds() - start;
}

static void take_turn(session *s, bench_turn *t)
{
    if (!s->cell->place->gpu) {
        take_cpu_turn(s, t);
        return;
    }
    if (s->warm != t)
        s->failed = !bench_gpu_warm_up(t);
    s->warm = t;
    s->failed = s->failed || !bench_gpu_sample(t, at_most(s->cell, slice_gpu));
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void summarise(session *s, bench_turn *t)
{
    if (t->runs == 0) {
        t->result.name = NULL;
        return;
    }
    qsort(t->samples, (size_t)t->runs, sizeof *t->samples, compare_doubles);
    const double low = t->samples[(t->runs - 1) / 2], high = t->samples[t->runs / 2];
    t->result.ms = 1e3 * (low + high) / 2;
    t->result.ms_min = 1e3 * t->samples[0];
    t->result.runs = t->runs;
    t->result.peak_gflops = s->cell->place->gpu ? (double)NAN : s->peak[t->unit];
}

static void time_all(session *s)
{
    const bench_cell *cell = s->cell;
    probe_peaks(s, at_most(cell, probe_long));
    probe_reading(s, at_most(cell, probe_long));
    for (bool more = true; more && !s->failed;) {
        more = false;
        for (int i = 0; i < cell->kernels && !s->failed; i++) {
            bench_turn *t = &s->turns[i];
            if (!t->result.name)
                continue;
            take_turn(s, t);
            more |= t->runs < BENCH_RUNS_MAX && (t->spent < cell->seconds || t->runs < 3) && t->spent < 4 * cell->seconds + 1;
        }
        probe_peaks(s, at_most(cell, probe_short));
        probe_reading(s, at_most(cell, slice_seconds));
    }
    probe_peaks(s, at_most(cell, probe_long));
    probe_reading(s, at_most(cell, probe_long));
    for (int i = 0; i < cell->kernels; i++)
        if (s->turns[i].result.name)
            summarise(s, &s->turns[i]);
}

/* ----------------------------------------------------------------------------------------------------------- reporting */

static int report(const session *s)
{
    const bench_cell *cell = s->cell;
    const bench_setting setting = {cell, &s->data.sequences, s->threads, s->read_gbps};
    int code = CLI_OK;
    double reference = 0;
    for (int i = 0; i < cell->kernels; i++) {
        const bench_result *r = &s->turns[i].result;
        if (!r->name)
            continue;
        if (reference == 0)
            reference = r->ms_min;
        if (cell->json)
            bench_print_json(&setting, r);
        else
            bench_print_row(&setting, r, reference);
        if (!(r->max_error <= r->allowed_error)) {
            cli_error("bench: %s is wrong: error %g, allowed %g", r->name, r->max_error, r->allowed_error);
            code = CLI_FAILED;
        }
    }
    return code;
}

/* Opens, times and prints. */
static int run_session(session *s)
{
    const bench_cell *cell = s->cell;
    bool any = false;
    for (int i = 0; i < cell->kernels; i++) {
        s->turns[i] = (bench_turn){.cell = cell, .data = &s->data, .asked = cell->kernel[i]};
        const int code = open_turn(s, &s->turns[i]);
        if (code != CLI_OK)
            return code;
        any |= s->turns[i].result.name != NULL;
    }
    if (!any) {
        cli_error("--kernel: no kernel of the list can run this problem");
        return CLI_FAILED;
    }
    if (cell->first && !cell->json)
        bench_print_heads();
    time_all(s);
    if (!s->failed)
        return report(s);
    cli_error("bench: %s", bench_place_error(cell->place));
    return CLI_FAILED;
}

int bench_run_cell(const bench_cell *cell)
{
    session *s = calloc(1, sizeof *s);
    int code = CLI_FAILED;
    bench_place_forget(cell->place);
    if (!s || !bench_data_make(&s->data, cell))
        cli_error("bench: no memory for this problem, or it cannot be run: %s", bench_place_error(cell->place));
    else {
        s->cell = cell;
        code = run_session(s);
        for (int i = 0; i < cell->kernels; i++)
            close_turn(&s->turns[i]);
    }
    if (s)
        bench_data_free(&s->data);
    free(s);
    return code;
}
