/*
 * What was measured, as JSON lines and as a table.
 */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "json_out.h"

/* What follows from a result. Averages follow from the median, fractions compare best with best. */
typedef struct figures {
    double gflops, fraction_of_peak, bytes, gbps, fraction_of_copy, ns_per_score;
} figures;

static figures figures_of(const bench_setting *s, const bench_result *r)
{
    const double operations = bench_operations(s->cell, s->sequences), bytes = bench_bytes(s->cell, s->sequences);
    return (figures){.gflops = operations / r->ms * 1e-6,
                     .fraction_of_peak = operations / r->ms_min * 1e-6 / r->peak_gflops,
                     .bytes = bytes,
                     .gbps = bytes / r->ms * 1e-6,
                     .fraction_of_copy = s->read_gbps > 0 ? bytes / r->ms_min * 1e-6 / s->read_gbps : NAN,
                     .ns_per_score = s->sequences->scores > 0 ? r->ms * 1e6 / s->sequences->scores : NAN};
}

/* ---------------------------------------------------------------------------------------------------------------- JSON */

static void json_shape(json_out *json, const bench_setting *s)
{
    const bench_cell *cell = s->cell;
    char mask[BENCH_TEXT];
    bench_mask_name(&cell->mask, mask);
    json_string(json, "dtype", bench_type_name(cell->dtype));
    json_string(json, "out_dtype", bench_type_name(bench_out_type(cell)));
    json_string(json, "grad_dtype", bench_type_name(bench_grad_type(cell)));
    json_string(json, "kv_dtype", bench_type_name(bench_kv_type(cell)));
    json_string(json, "layout", cell->bshd ? "bshd" : "bhsd");
    json_int(json, "batch", cell->batch);
    json_int(json, "heads", cell->heads);
    json_int(json, "heads_kv", cell->heads_kv);
    json_int(json, "seq_q", cell->seq_q);
    json_int(json, "seq_k", cell->seq_k);
    json_int(json, "dim", cell->dim);
    json_int(json, "dim_v", cell->dim_v);
    json_string(json, "mask", mask);
}

static void json_features(json_out *json, const bench_setting *s)
{
    const bench_cell *cell = s->cell;
    char bias[BENCH_TEXT];
    bench_bias_name(cell->bias, bias);
    json_string(json, "bias", bias);
    json_bool(json, "dbias", cell->dbias && cell->pass == BENCH_BACKWARD && !(cell->bias & BIAS_NONE));
    json_bool(json, "alibi", cell->alibi);
    json_double(json, "softcap", cell->softcap);
    json_bool(json, "sinks", cell->sinks);
    json_double(json, "dropout", cell->dropout);
    json_bool(json, "varlen", cell->varlen);
    json_bool(json, "unordered", cell->unordered);
    json_int(json, "longest_q", s->sequences->longest_q);
    json_int(json, "longest_k", s->sequences->longest_k);
    json_int(json, "page", cell->page);
    json_int(json, "scores", (int64_t)s->sequences->scores);
}

void bench_print_json(const bench_setting *s, const bench_result *r)
{
    static const char *const passes[] = {"fwd", "bwd", "decode"};
    const figures f = figures_of(s, r);
    const bench_place *place = s->cell->place;
    json_out json = json_begin(stdout);
    json_string(&json, "op", s->cell->pass == BENCH_BACKWARD ? "backward" : "forward");
    json_string(&json, "pass", passes[s->cell->pass]);
    json_string(&json, "kernel", r->name);
    json_string(&json, "device", place->word);
    json_string(&json, "device_name", place->name);
    if (place->gpu)
        json_int(&json, "multiprocessors", place->multiprocessors);
    json_shape(&json, s);
    json_features(&json, s);
    json_int(&json, "threads", s->threads);
    json_double(&json, "ms", r->ms);
    json_double(&json, "ms_min", r->ms_min);
    json_int(&json, "runs", r->runs);
    json_double(&json, "ns_per_score", f.ns_per_score);
    json_double(&json, "gflops", f.gflops);
    if (place->gpu)
        json_double(&json, "tflops", 1e-3 * f.gflops);
    json_double(&json, "peak_gflops", r->peak_gflops);
    json_double(&json, "fraction_of_peak", f.fraction_of_peak);
    json_double(&json, "bytes", f.bytes);
    json_double(&json, "gbps", f.gbps);
    if (s->cell->pass == BENCH_DECODE) {
        json_double(&json, "copy_gbps", s->read_gbps);
        json_double(&json, "fraction_of_copy", f.fraction_of_copy);
    }
    json_int(&json, "workspace_bytes", (int64_t)r->workspace);
    json_double(&json, "max_error", r->max_error);
    json_end(&json);
}

/* --------------------------------------------------------------------------------------------------------------- table */

static void append(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void append(char *text, size_t size, const char *format, ...)
{
    const size_t used = strlen(text);
    va_list list;
    va_start(list, format);
    vsnprintf(text + used, size - used, format, list);
    va_end(list);
}

static void shape_text(const bench_cell *cell, char *text, size_t size)
{
    text[0] = '\0';
    append(text, size, "b%" PRId64 " h%" PRId64 ":%" PRId64 " %" PRId64 "x%" PRId64 " d%" PRId64, cell->batch, cell->heads,
           cell->heads_kv, cell->seq_q, cell->seq_k, cell->dim);
    if (cell->dim_v != cell->dim)
        append(text, size, ",%" PRId64, cell->dim_v);
}

static void feature_text(const bench_cell *cell, char *text, size_t size)
{
    char bias[BENCH_TEXT];
    bench_bias_name(cell->bias, bias);
    text[0] = '\0';
    if (cell->out_f32)
        append(text, size, " out:f32");
    if (cell->grad_f32 && cell->pass == BENCH_BACKWARD)
        append(text, size, " grad:f32");
    if (cell->kv_i8)
        append(text, size, " kv:i8");
    if (!(cell->bias & BIAS_NONE))
        append(text, size, " %s:%s", cell->dbias && cell->pass == BENCH_BACKWARD ? "dbias" : "bias", bias);
    if (cell->softcap > 0)
        append(text, size, " softcap:%g", cell->softcap);
    if (cell->dropout > 0)
        append(text, size, " dropout:%g", cell->dropout);
    if (cell->page > 0)
        append(text, size, " page:%" PRId64, cell->page);
    append(text, size, "%s%s%s%s", cell->alibi ? " alibi" : "", cell->sinks ? " sinks" : "", cell->varlen ? " varlen" : "",
           cell->unordered && cell->pass == BENCH_BACKWARD ? " unordered" : "");
}

void bench_print_heads(void)
{
    printf("%-26s %-4s %-26s %-14s %-4s %3s %10s %10s %8s %6s %7s %6s %8s %6s %s\n", "kernel", "type", "shape", "mask", "lay",
           "thr", "ms", "ms_min", "gflops", "/peak", "GB/s", "/copy", "error", "speed", "features");
}

/* A fraction, or room where there is none. */
static void print_fraction(double fraction)
{
    if (isnan(fraction))
        printf(" %6s", "");
    else
        printf(" %6.3f", fraction);
}

/* `reference` is the least time of the first kernel of the cell, to which the others are compared. */
void bench_print_row(const bench_setting *s, const bench_result *r, double reference)
{
    const bench_cell *cell = s->cell;
    const figures f = figures_of(s, r);
    char mask[BENCH_TEXT], shape[BENCH_TEXT], features[200];
    bench_mask_name(&cell->mask, mask);
    shape_text(cell, shape, sizeof shape);
    feature_text(cell, features, sizeof features);
    printf("%-26s %-4s %-26s %-14s %-4s %3d %10.4f %10.4f %8.1f", r->name, bench_type_name(cell->dtype), shape, mask,
           cell->bshd ? "bshd" : "bhsd", s->threads, r->ms, r->ms_min, f.gflops);
    print_fraction(f.fraction_of_peak);
    printf(" %7.1f", f.gbps);
    print_fraction(cell->pass == BENCH_DECODE ? f.fraction_of_copy : (double)NAN);
    printf(" %8.1e %6.2f%s\n", r->max_error, reference / r->ms_min, features);
    fflush(stdout);
}
