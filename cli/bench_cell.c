/*
 * Times one problem with several kernels in turns: a slice of runs with the first, a slice with the second, ..., a probe of
 * the machine's peak, and again, so that a noisy neighbour or a changing clock meets all of them.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "cli.h"

enum { RUNS_MAX = 20000 };

static const double slice_seconds = 0.02; /* of one kernel's turn */
static const double probe_long = 0.03, probe_short = 0.003;

/* Slices and probes are no longer than the time that a kernel gets. */
static double at_most(const bench_cell *cell, double seconds)
{
    return fmin(seconds, cell->seconds);
}

/* A kernel at work. */
typedef struct turn {
    const char *asked;
    fattn_context *context;
    void *workspace;
    size_t bytes;
    double *samples; /* seconds of each run */
    int runs, next_set;
    double spent;
    vector_unit unit;
    bench_result result;
} turn;

typedef struct session {
    const bench_cell *cell;
    bench_data data;
    turn turns[BENCH_KERNELS_MAX];
    int threads; /* that the contexts use */
    uint32_t features;
    double peak[3];
    double read_gbps;
} session;

/* ---------------------------------------------------------------------------------------------------------- beginning */

/* Tries one run, which is the first of the warm-up. A kernel that refuses is left out, with a note. Returns an exit code. */
static int open_turn(session *s, turn *t)
{
    const bench_cell *cell = s->cell;
    const fattn_context_options options = {
        .struct_size = sizeof options, .threads = cell->threads, .kernel = strcmp(t->asked, "auto") ? t->asked : NULL};
    fattn_context_info info = {.struct_size = sizeof info};
    if (fattn_context_create(&options, &t->context) != FATTN_OK) {
        cli_error("--kernel: %s: %s", t->asked, fattn_last_error());
        return CLI_WRONG;
    }
    bool ok = fattn_context_query(t->context, &info) == FATTN_OK &&
              fattn_workspace_size(t->context, &s->data.desc, bench_op(cell), &t->bytes) == FATTN_OK;
    if (ok) {
        t->workspace = malloc(t->bytes + 1);
        t->samples = malloc(RUNS_MAX * sizeof *t->samples);
        if (!t->workspace || !t->samples) {
            cli_error("bench: no memory for a workspace of %zu bytes", t->bytes);
            return CLI_FAILED;
        }
        ok = bench_call(cell, t->context, &s->data, 0, t->workspace, t->bytes, &t->result.name) == FATTN_OK;
    }
    if (!ok) {
        cli_note("%s is left out: %s", t->asked, fattn_last_error());
        t->result.name = NULL;
        return CLI_OK;
    }
    s->threads = info.threads;
    s->features = info.cpu_features;
    t->unit = machine_unit(t->result.name, info.cpu_features);
    t->result.workspace = t->bytes;
    t->result.max_error = bench_error(cell, &s->data, &t->result.allowed_error);
    return CLI_OK;
}

static void close_turn(turn *t)
{
    fattn_context_destroy(t->context);
    free(t->workspace);
    free(t->samples);
}

/* Measures the peak of every unit that a kernel uses, once more. */
static void probe_peaks(session *s, double seconds)
{
    bool done[3] = {false};
    for (int i = 0; i < s->cell->kernels; i++) {
        const turn *t = &s->turns[i];
        if (!t->result.name || done[t->unit])
            continue;
        done[t->unit] = true;
        s->peak[t->unit] = fmax(s->peak[t->unit], machine_fma_peak(t->unit, s->cell->dtype == FATTN_F64, s->threads, seconds));
    }
}

/* Measures reading once more. */
static void probe_reading(session *s, double seconds)
{
    if (s->cell->pass == BENCH_DECODE)
        s->read_gbps = fmax(s->read_gbps, bench_read_bandwidth(&s->data, s->threads, seconds));
}

/* ------------------------------------------------------------------------------------------------------------- timing */

/* One kernel's turn. Its first run warms up and does not count, unless the turn has no time for a second. */
static void take_turn(session *s, turn *t)
{
    const double start = machine_seconds(), slice = at_most(s->cell, slice_seconds);
    bool counted = false;
    for (int run = 0; t->runs < RUNS_MAX; run++) {
        const double before = machine_seconds();
        if (bench_call(s->cell, t->context, &s->data, t->next_set, t->workspace, t->bytes, NULL) != FATTN_OK)
            break;
        const double after = machine_seconds();
        t->next_set = (t->next_set + 1) % s->data.sets;
        if (run > 0 || after - start > slice) {
            t->samples[t->runs++] = after - before;
            counted = true;
        }
        if (counted && after - start > slice)
            break;
    }
    t->spent += machine_seconds() - start;
}

static int compare_doubles(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void summarise(session *s, turn *t)
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
    t->result.peak_gflops = s->peak[t->unit];
}

static void time_all(session *s)
{
    const bench_cell *cell = s->cell;
    probe_peaks(s, at_most(cell, probe_long));
    probe_reading(s, at_most(cell, probe_long));
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < cell->kernels; i++) {
            turn *t = &s->turns[i];
            if (!t->result.name)
                continue;
            take_turn(s, t);
            more |= t->runs < RUNS_MAX && (t->spent < cell->seconds || t->runs < 3) && t->spent < 4 * cell->seconds + 1;
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
        s->turns[i].asked = cell->kernel[i];
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
    return report(s);
}

int bench_run_cell(const bench_cell *cell)
{
    session *s = calloc(1, sizeof *s);
    int code = CLI_FAILED;
    if (!s || !bench_data_make(&s->data, cell))
        cli_error("bench: no memory for this problem, or it cannot be run: %s", fattn_last_error());
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
