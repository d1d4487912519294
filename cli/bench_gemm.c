/*
 * fattn bench gemm: the yardstick alone. The multiply-add peak of each vector unit on 1 .. n threads, a matrix product by
 * oneDNN if the program was built with it, and the speed of reading each cache and memory.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "bench.h"
#include "cli.h"
#include "json_out.h"
#include "machine.h"
#include "options.h"
#include "random.h"
#include "run.h"

#ifdef FATTN_WITH_ONEDNN
#include <dnnl.h>
#include <omp.h>
#endif

typedef struct gemm_options {
    option_ints threads;
    double seconds;
    int64_t size;
    bool json;
} gemm_options;

static void print_figure(const gemm_options *o, const char *what, const char *detail, int threads, const char *unit,
                         double value)
{
    if (!o->json) {
        printf("%-6s %-12s %2d threads %10.1f %s\n", what, detail, threads, value, unit);
        fflush(stdout);
        return;
    }
    char cpu[128];
    machine_cpu_name(cpu, sizeof cpu);
    json_out json = json_begin(stdout);
    json_string(&json, "op", what);
    json_string(&json, "detail", detail);
    json_string(&json, "device", "cpu");
    json_string(&json, "device_name", cpu);
    json_int(&json, "threads", threads);
    json_double(&json, unit, value);
    json_end(&json);
}

static void bench_peaks(const gemm_options *o, vector_unit best, int threads)
{
    static const char *const names[3][2] = {{"base f32", "base f64"}, {"avx2 f32", "avx2 f64"}, {"avx512 f32", "avx512 f64"}};
    for (int unit = UNIT_BASE; unit <= (int)best; unit++)
        for (int f64 = 0; f64 < 2; f64++)
            print_figure(o, "fma", names[unit][f64], threads, "gflops",
                         machine_fma_peak((vector_unit)unit, f64, threads, o->seconds / 4));
}

static void bench_reading(const gemm_options *o, vector_unit best, int threads)
{
    const size_t l1 = machine_cache(1), l2 = machine_cache(2), l3 = machine_cache(3);
    const size_t whole = (size_t)threads;
    if (l1)
        print_figure(o, "read", "L1", threads, "gbps", machine_read_bandwidth(best, whole * (l1 / 2), threads, o->seconds / 4));
    if (l1 && l2)
        print_figure(o, "read", "L2", threads, "gbps", machine_read_bandwidth(best, whole * (l2 / 2), threads, o->seconds / 4));
    if (l2 && l3 > 2 * l2 * whole)
        print_figure(o, "read", "L3", threads, "gbps", machine_read_bandwidth(best, l3 / 2, threads, o->seconds / 4));
    const size_t large = l3 * 4 > ((size_t)256 << 20) ? l3 * 4 : (size_t)256 << 20;
    print_figure(o, "read", "memory", threads, "gbps", machine_read_bandwidth(best, large, threads, o->seconds));
}

#ifdef FATTN_WITH_ONEDNN
/* Sets OpenMP's threads and returns how many there are. OMP_THREAD_LIMIT may allow fewer, and oneDNN, which divides its work
 * by the number it was told, would leave parts of the product undone. */
static int set_team(int threads)
{
    int there = 0;
    omp_set_dynamic(0);
    omp_set_num_threads(threads);
#pragma omp parallel reduction(+ : there)
    there++;
    omp_set_num_threads(there);
    if (there < threads)
        cli_note("the matrix product runs on %d of %d threads: OpenMP makes no more", there, threads);
    return there;
}

static bool bench_product(const gemm_options *o, int threads)
{
    const int64_t n = o->size;
    float *a = malloc((size_t)(n * n) * sizeof *a), *b = malloc((size_t)(n * n) * sizeof *b),
          *c = malloc((size_t)(n * n) * sizeof *c);
    double best = INFINITY;
    bool ok = a && b && c;
    random_state r = random_start(1, 1);
    for (int64_t i = 0; ok && i < n * n; i++) {
        a[i] = (float)(random_unit(&r) - 0.5);
        b[i] = (float)(random_unit(&r) - 0.5);
    }
    const int team = set_team(threads);
    const double end = machine_seconds() + o->seconds;
    for (int run = 0; ok && (run < 4 || machine_seconds() < end); run++) {
        const double start = machine_seconds();
        ok = dnnl_sgemm('N', 'N', n, n, n, 1, a, n, b, n, 0, c, n) == dnnl_success;
        if (run > 0) /* the first makes oneDNN generate its code */
            best = fmin(best, machine_seconds() - start);
    }
    free(a);
    free(b);
    free(c);
    if (!ok) {
        cli_error("bench: the matrix product of size %" PRId64 " failed", n);
        return false;
    }
    char detail[32];
    snprintf(detail, sizeof detail, "%" PRId64 " cubed", n);
    print_figure(o, "sgemm", detail, team, "gflops", 2e-9 * (double)n * (double)n * (double)n / best);
    return true;
}
#else
static bool bench_product(const gemm_options *o, int threads)
{
    (void)o;
    cli_note("no matrix product with %d threads: this program was built without oneDNN", threads);
    return true;
}
#endif

static bool machine_of(harness *h, fattn_context_info *info)
{
    *info = (fattn_context_info){.struct_size = sizeof *info};
    const fattn_context *context = harness_context(h, NULL, 0);
    if (context && fattn_context_query(context, info) == FATTN_OK)
        return true;
    cli_error("bench: %s", fattn_last_error());
    return false;
}

int bench_gemm(int argc, char **argv)
{
    gemm_options o = {.threads = option_ints_of(0), .seconds = 1, .size = 2048};
    const option_spec table[] = {{"threads", "N,...", OPTION_INTS, &o.threads, .high = 1024,
                                  .help = "threads; 0: one, and as many as the process may use"},
                                 {"size", "N", OPTION_INT, &o.size, .low = 1, .high = 65536, .help = "of the matrix product"},
                                 {"seconds", "X", OPTION_DOUBLE, &o.seconds, .low = 0.001, .high = 1e6, .help = "per figure"},
                                 {"json", NULL, OPTION_FLAG, &o.json, .help = "JSON lines"},
                                 {0}};
    const option_set set = {.usage = "fattn bench gemm [options]",
                            .about =
                                "Measures the machine: the multiply-add peak of each vector unit, a matrix product (oneDNN),\n"
                                "and reading from each cache and from memory. The best window counts.",
                            .table = table};
    int status;
    if (!options_parse(&set, argc, argv, &status))
        return status;
    harness h = harness_make();
    fattn_context_info info;
    status = machine_of(&h, &info) ? CLI_OK : CLI_FAILED;
    const bool automatic = o.threads.count == 1 && o.threads.item[0] == 0;
    if (automatic)
        o.threads = (option_ints){.count = info.threads > 1 ? 2 : 1, .item = {1, info.threads}};
    for (int i = 0; status == CLI_OK && i < o.threads.count; i++) {
        const int threads = o.threads.item[i] ? (int)o.threads.item[i] : info.threads;
        const vector_unit best = machine_unit("", info.cpu_features);
        bench_peaks(&o, best, threads);
        if (!bench_product(&o, threads))
            status = CLI_FAILED;
        bench_reading(&o, best, threads);
    }
    harness_free(&h);
    return status;
}
