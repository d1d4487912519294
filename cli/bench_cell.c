/*
 * Times one problem with several kernels in turns: a slice of runs with the first, a slice with the second, ..., a probe of
 * the machine's peak, and again, so that a noisy neighbour or a changing clock meets all of them.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"
#include "cli.h"
#include "json_out.h"

enum { RUNS_MAX = 20000 };

static const double slice_seconds = 0.02; /* of one kernel's turn */
static const double probe_long = 0.03, probe_short = 0.003;

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
    const fattn_desc desc = problem_desc(&cell->p);
    const fattn_context_options options = {
        .struct_size = sizeof options, .threads = cell->threads, .kernel = strcmp(t->asked, "auto") ? t->asked : NULL};
    fattn_context_info info = {.struct_size = sizeof info};
    if (fattn_context_create(&options, &t->context) != FATTN_OK) {
        cli_error("--kernel: %s: %s", t->asked, fattn_last_error());
        return CLI_WRONG;
    }
    bool ok = fattn_context_query(t->context, &info) == FATTN_OK &&
              fattn_workspace_size(t->context, &desc, cell->p.op, &t->bytes) == FATTN_OK;
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
        s->peak[t->unit] =
            fmax(s->peak[t->unit], machine_fma_peak(t->unit, s->cell->p.dtype == FATTN_F64, s->threads, seconds));
    }
}

static void probe_reading(session *s)
{
    if (!s->cell->decode)
        return;
    const vector_unit best = machine_unit("", s->features);
    const size_t bytes = s->data.set_bytes * (size_t)s->data.sets;
    s->read_gbps = fmax(s->read_gbps, machine_read_bandwidth(best, bytes, s->threads, 10 * probe_long));
}

/* ------------------------------------------------------------------------------------------------------------- timing */

/* One kernel's turn. Its first run warms up and does not count, unless the turn has no time for a second. */
static void take_turn(session *s, turn *t)
{
    const double start = machine_seconds();
    bool counted = false;
    for (int run = 0; t->runs < RUNS_MAX; run++) {
        const double before = machine_seconds();
        if (bench_call(s->cell, t->context, &s->data, t->next_set, t->workspace, t->bytes, NULL) != FATTN_OK)
            break;
        const double after = machine_seconds();
        t->next_set = (t->next_set + 1) % s->data.sets;
        if (run > 0 || after - start > slice_seconds) {
            t->samples[t->runs++] = after - before;
            counted = true;
        }
        if (counted && after - start > slice_seconds)
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
    probe_peaks(s, probe_long);
    probe_reading(s);
    for (bool more = true; more;) {
        more = false;
        for (int i = 0; i < cell->kernels; i++) {
            turn *t = &s->turns[i];
            if (!t->result.name)
                continue;
            take_turn(s, t);
            more |= t->runs < RUNS_MAX && (t->spent < cell->seconds || t->runs < 3) && t->spent < 4 * cell->seconds + 1;
        }
        probe_peaks(s, probe_short);
    }
    probe_peaks(s, probe_long);
    probe_reading(s);
    for (int i = 0; i < cell->kernels; i++)
        if (s->turns[i].result.name)
            summarise(s, &s->turns[i]);
}

/* ------------------------------------------------------------------------------------------------------------ printing */

static void mask_name(const problem *p, char *text, size_t size)
{
    const char *br = p->align == FATTN_ALIGN_BOTTOM_RIGHT ? "-br" : "";
    if (p->mask == FATTN_MASK_WINDOW)
        snprintf(text, size, "window%s:%" PRId64 ",%" PRId64, br, p->left, p->right);
    else
        snprintf(text, size, "%s%s", p->mask == FATTN_MASK_CAUSAL ? "causal" : "full", br);
}

static void print_json(const session *s, const bench_result *r)
{
    const bench_cell *cell = s->cell;
    const problem *p = &cell->p;
    const double operations = bench_operations(cell), bytes = bench_bytes(cell), gbps = bytes / r->ms * 1e-6;
    char mask[80], cpu[128];
    mask_name(p, mask, sizeof mask);
    machine_cpu_name(cpu, sizeof cpu);
    json_out json = json_begin(stdout);
    json_string(&json, "op", p->op == FATTN_OP_FORWARD ? "forward" : "backward");
    json_string(&json, "pass", cell->decode ? "decode" : p->op == FATTN_OP_FORWARD ? "fwd" : "bwd");
    json_string(&json, "kernel", r->name);
    json_string(&json, "device", "cpu");
    json_string(&json, "device_name", cpu);
    json_string(&json, "dtype", p->dtype == FATTN_F64 ? "f64" : "f32");
    json_string(&json, "layout", layout_names[p->layout]);
    json_int(&json, "batch", p->batch);
    json_int(&json, "heads", p->heads_q);
    json_int(&json, "heads_kv", p->heads_q / p->group);
    json_int(&json, "seq_q", p->seq_q);
    json_int(&json, "seq_k", p->seq_k);
    json_int(&json, "dim", p->dim);
    json_int(&json, "dim_v", p->dim_v);
    json_string(&json, "mask", mask);
    json_int(&json, "threads", s->threads);
    json_double(&json, "ms", r->ms);
    json_double(&json, "ms_min", r->ms_min);
    json_int(&json, "runs", r->runs);
    json_double(&json, "gflops", operations / r->ms * 1e-6);
    json_double(&json, "peak_gflops", r->peak_gflops);
    json_double(&json, "fraction_of_peak", operations / r->ms_min * 1e-6 / r->peak_gflops);
    json_double(&json, "bytes", bytes);
    json_double(&json, "gbps", gbps);
    if (cell->decode) {
        json_double(&json, "copy_gbps", s->read_gbps);
        json_double(&json, "fraction_of_copy", s->read_gbps > 0 ? bytes / r->ms_min * 1e-6 / s->read_gbps : NAN);
    }
    json_int(&json, "workspace_bytes", (int64_t)r->workspace);
    json_double(&json, "max_error", r->max_error);
    json_end(&json);
}

/* Columns; `fastest` is the least time of the first kernel of the cell, to which the others are compared. */
static void print_row(const session *s, const bench_result *r, double reference)
{
    const bench_cell *cell = s->cell;
    const problem *p = &cell->p;
    const double operations = bench_operations(cell), bytes = bench_bytes(cell);
    char mask[80], shape[96];
    mask_name(p, mask, sizeof mask);
    snprintf(shape, sizeof shape, "b%" PRId64 " h%" PRId64 ":%" PRId64 " %" PRId64 "x%" PRId64 " d%" PRId64, p->batch,
             p->heads_q, p->heads_q / p->group, p->seq_q, p->seq_k, p->dim);
    if (p->dim_v != p->dim)
        snprintf(shape + strlen(shape), sizeof shape - strlen(shape), ",%" PRId64, p->dim_v);
    printf("%-26s %-26s %-10s %-4s %3d %10.4f %10.4f %8.1f %6.3f", r->name, shape, mask, layout_names[p->layout], s->threads,
           r->ms, r->ms_min, operations / r->ms * 1e-6, operations / r->ms_min * 1e-6 / r->peak_gflops);
    printf(" %7.1f", bytes / r->ms * 1e-6);
    if (cell->decode)
        printf(" %6.3f", s->read_gbps > 0 ? bytes / r->ms_min * 1e-6 / s->read_gbps : NAN);
    else
        printf(" %6s", "");
    printf(" %8.1e %6.2f\n", r->max_error, reference / r->ms_min);
    fflush(stdout);
}

static void print_heads(void)
{
    printf("%-26s %-26s %-10s %-4s %3s %10s %10s %8s %6s %7s %6s %8s %6s\n", "kernel", "shape", "mask", "lay", "thr", "ms",
           "ms_min", "gflops", "/peak", "GB/s", "/copy", "error", "speed");
}

static int report(const session *s)
{
    const bench_cell *cell = s->cell;
    int code = CLI_OK;
    double reference = 0;
    for (int i = 0; i < cell->kernels; i++) {
        const bench_result *r = &s->turns[i].result;
        if (!r->name)
            continue;
        if (reference == 0)
            reference = r->ms_min;
        if (cell->json)
            print_json(s, r);
        else
            print_row(s, r, reference);
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
        print_heads();
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
