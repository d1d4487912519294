/*
 * fattn gradcheck: gradients against finite differences.
 *
 * The loss is sum(dout * out) with random dout, summed in double. For a sampled element x of q, k or v,
 *
 *     (loss(x + h) - loss(x - h)) / ((x + h) - (x - h))
 *
 * with the differences that x really made after rounding, is compared with what backward says. An error counts as a part of
 * the tensor's largest gradient: 1e-7 is allowed in double (h = 3e-5) and 1e-3 in float (h = 2e-2, where rounding of the
 * loss and the curvature are about equally small). forward is done by the kernel of the same family, or by ref.
 */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "json_out.h"
#include "options.h"
#include "random.h"
#include "run.h"

static const char *const problems[] = {
    "q9k7/d8",
    "b2/h2/q12k12/d16/causal",
    "b2/h4/gqa2/q11k17/d8/v5/causal-br",
    "h6/gqa3/q33k20/d12/causal",
    "h4/gqa4/q1k19/d16",
    "b2/h2/q14k5/d8/causal-br",
    "h2/q40k40/d16/window:3,2",
    "h2/gqa2/q25k50/d24/v40/window-br:7,0",
    "q70k130/d16/causal-br",
    "b2/h3/gqa3/q97k97/d64/v48/causal",
    "q35k260/d33",
    "h2/q21k30/d16/scale:-0.4",
    "h2/q200k64/d80/window:-1,5",
};

enum { TENSORS = 3, SAMPLES_MAX = 100000 };

static const char *const tensor_names[TENSORS] = {"dq", "dk", "dv"};
static const char *const dtype_words[] = {"f32", "f64", NULL};

typedef struct grad_options {
    option_texts kernels;
    option_ints dtypes;
    int64_t seed, samples, threads;
    bool json;
} grad_options;

/* Contiguous tensors of one problem, bytes of either type. */
typedef struct grad_state {
    problem p;
    fattn_desc desc;
    size_t size;
    int64_t count[TENSORS], out_count, lse_count;
    void *x[TENSORS], *grad[TENSORS], *out, *dout, *lse;
} grad_state;

static double get(const grad_state *g, const void *array, int64_t i)
{
    return g->size == 4 ? (double)((const float *)array)[i] : ((const double *)array)[i];
}

static void put(const grad_state *g, void *array, int64_t i, double value)
{
    if (g->size == 4)
        ((float *)array)[i] = (float)value;
    else
        ((double *)array)[i] = value;
}

/* -------------------------------------------------------------------------------------------------------------- state */

static void *make_random(const grad_state *g, int64_t count, uint64_t stream)
{
    void *array = calloc((size_t)count + 1, g->size);
    random_state r = random_start(g->p.seed, stream);
    for (int64_t i = 0; array && i < count; i++)
        put(g, array, i, random_normal(&r));
    return array;
}

static void close_state(grad_state *g)
{
    for (int i = 0; i < TENSORS; i++) {
        free(g->x[i]);
        free(g->grad[i]);
    }
    free(g->out);
    free(g->dout);
    free(g->lse);
}

static bool open_state(grad_state *g, const problem *p)
{
    const int64_t kv = p->batch * (p->heads_q / p->group), q = p->batch * p->heads_q;
    *g = (grad_state){.p = *p, .desc = problem_desc(p), .size = p->dtype == FATTN_F64 ? 8 : 4};
    g->count[0] = q * p->seq_q * p->dim;
    g->count[1] = kv * p->seq_k * p->dim;
    g->count[2] = kv * p->seq_k * p->dim_v;
    g->out_count = q * p->seq_q * p->dim_v;
    g->lse_count = q * p->seq_q;
    bool ok = true;
    for (int i = 0; i < TENSORS; i++) {
        g->x[i] = make_random(g, g->count[i], (uint64_t)i);
        g->grad[i] = calloc((size_t)g->count[i] + 1, g->size);
        ok &= g->x[i] && g->grad[i];
    }
    g->dout = make_random(g, g->out_count, 9);
    g->out = calloc((size_t)g->out_count + 1, g->size);
    g->lse = calloc((size_t)g->lse_count + 1, g->size);
    return ok && g->dout && g->out && g->lse;
}

/* ------------------------------------------------------------------------------------------------------------ running */

static fattn_view view_q(const grad_state *g, void *array, int64_t dim)
{
    return fattn_view_bhsd(array, g->p.heads_q, g->p.seq_q, dim);
}

static fattn_view view_kv(const grad_state *g, void *array, int64_t dim)
{
    return fattn_view_bhsd(array, g->p.heads_q / g->p.group, g->p.seq_k, dim);
}

static bool forward(const grad_state *g, const fattn_context *context)
{
    size_t bytes = 0;
    if (fattn_workspace_size(context, &g->desc, FATTN_OP_FORWARD, &bytes) != FATTN_OK)
        return false;
    void *workspace = malloc(bytes + 1);
    const fattn_forward_args args = {.struct_size = sizeof args,
                                     .q = view_q(g, g->x[0], g->p.dim),
                                     .k = view_kv(g, g->x[1], g->p.dim),
                                     .v = view_kv(g, g->x[2], g->p.dim_v),
                                     .out = view_q(g, g->out, g->p.dim_v),
                                     .lse = g->lse,
                                     .workspace = workspace,
                                     .workspace_size = bytes};
    const bool ok = workspace && fattn_forward(context, &g->desc, &args) == FATTN_OK;
    free(workspace);
    return ok;
}

static bool backward(const grad_state *g, const fattn_context *context)
{
    size_t bytes = 0;
    if (fattn_workspace_size(context, &g->desc, FATTN_OP_BACKWARD, &bytes) != FATTN_OK)
        return false;
    void *workspace = malloc(bytes + 1);
    const fattn_backward_args args = {.struct_size = sizeof args,
                                      .q = view_q(g, g->x[0], g->p.dim),
                                      .k = view_kv(g, g->x[1], g->p.dim),
                                      .v = view_kv(g, g->x[2], g->p.dim_v),
                                      .out = view_q(g, g->out, g->p.dim_v),
                                      .dout = view_q(g, g->dout, g->p.dim_v),
                                      .dq = view_q(g, g->grad[0], g->p.dim),
                                      .dk = view_kv(g, g->grad[1], g->p.dim),
                                      .dv = view_kv(g, g->grad[2], g->p.dim_v),
                                      .lse = g->lse,
                                      .workspace = workspace,
                                      .workspace_size = bytes};
    const bool ok = workspace && fattn_backward(context, &g->desc, &args) == FATTN_OK;
    free(workspace);
    return ok;
}

static bool loss(const grad_state *g, const fattn_context *context, double *sum)
{
    if (!forward(g, context))
        return false;
    *sum = 0;
    for (int64_t i = 0; i < g->out_count; i++)
        *sum += get(g, g->out, i) * get(g, g->dout, i);
    return true;
}

/* The finite difference of element i of tensor t. */
static bool difference(const grad_state *g, const fattn_context *context, int t, int64_t i, double h, double *slope)
{
    const double x = get(g, g->x[t], i);
    double above, below, step;
    put(g, g->x[t], i, x + h);
    step = get(g, g->x[t], i);
    bool ok = loss(g, context, &above);
    put(g, g->x[t], i, x - h);
    step -= get(g, g->x[t], i);
    ok = ok && loss(g, context, &below);
    put(g, g->x[t], i, x);
    if (ok)
        *slope = (above - below) / step;
    return ok;
}

/* The largest error of tensor t on sampled elements, as a part of its largest gradient. */
static bool tensor_error(const grad_state *g, const fattn_context *context, int t, int64_t samples, double *error)
{
    const double h = g->size == 8 ? 3e-5 : 2e-2;
    random_state r = random_start(g->p.seed, 50 + (uint64_t)t);
    double largest = 0;
    *error = 0;
    for (int64_t i = 0; i < g->count[t]; i++)
        largest = fmax(largest, fabs(get(g, g->grad[t], i)));
    const bool all = g->count[t] <= samples;
    for (int64_t s = 0; s < (all ? g->count[t] : samples); s++) {
        const int64_t i = all ? s : random_below(&r, g->count[t]);
        double slope;
        if (!difference(g, context, t, i, h, &slope))
            return false;
        const double e = fabs(slope - get(g, g->grad[t], i)) / (largest > 0 ? largest : 1);
        *error = e > *error || isnan(e) ? e : *error; /* a NaN stays */
    }
    return true;
}

/* ---------------------------------------------------------------------------------------------------------- reporting */

/* A line; the first has the heads of the columns above it. */
static void print_result(const grad_options *o, bool first, const char *name, const char *kernel, const double errors[TENSORS],
                         double tolerance, bool passed)
{
    if (!o->json) {
        if (first)
            printf("%-24s %-46s %8s %8s %8s\n", "kernel", "problem", "dq", "dk", "dv");
        printf("%-24s %-46s %8.1e %8.1e %8.1e  %s\n", kernel, name, errors[0], errors[1], errors[2],
               passed ? "passed" : "FAILED");
        fflush(stdout);
        return;
    }
    json_out json = json_begin(stdout);
    json_string(&json, "problem", name);
    json_string(&json, "kernel", kernel);
    for (int t = 0; t < TENSORS; t++)
        json_double(&json, tensor_names[t], errors[t]);
    json_double(&json, "tolerance", tolerance);
    json_bool(&json, "passed", passed);
    json_end(&json);
}

/* The forward kernel of a backward kernel's family, if the library has one that can; else ref. */
static void forward_of(harness *h, const problem *p, const char *backward_name, char *name, size_t size)
{
    const char *at = strstr(backward_name, "_backward");
    problem q = *p;
    kernel_entry entries[KERNELS_MAX];
    q.op = FATTN_OP_FORWARD;
    snprintf(name, size, "%.*s_forward%s", at ? (int)(at - backward_name) : 0, backward_name, at ? at + 9 : "");
    const int count = harness_kernels(h, &q, entries);
    for (int i = 0; i < count; i++)
        if (!strcmp(entries[i].name, name) && !entries[i].refusal)
            return;
    snprintf(name, size, "ref");
}

/* One problem with one kernel. Returns whether it passed. */
static bool check_kernel(harness *h, const grad_options *o, const problem *p, const char *kernel, bool first)
{
    char name[PROBLEM_NAME_SIZE], forward_name[96];
    grad_state g;
    double errors[TENSORS] = {NAN, NAN, NAN};
    const double tolerance = p->dtype == FATTN_F64 ? 1e-7 : 1e-3;
    problem_print(p, name);
    forward_of(h, p, kernel, forward_name, sizeof forward_name);
    const fattn_context *down = harness_context(h, forward_name, (int)o->threads);
    const fattn_context *up = harness_context(h, kernel, (int)o->threads);
    bool ok = open_state(&g, p) && down && up && forward(&g, down) && backward(&g, up);
    for (int t = 0; ok && t < TENSORS; t++)
        ok = tensor_error(&g, down, t, o->samples, &errors[t]);
    if (!ok)
        cli_error("gradcheck: %s with %s: %s", name, kernel, fattn_last_error());
    close_state(&g);
    const bool passed = ok && errors[0] <= tolerance && errors[1] <= tolerance && errors[2] <= tolerance;
    print_result(o, first, name, kernel, errors, tolerance, passed);
    return passed;
}

static bool wanted(const grad_options *o, const char *kernel)
{
    for (int i = 0; i < o->kernels.count; i++) {
        const size_t length = strlen(o->kernels.item[i]);
        if (!strncmp(kernel, o->kernels.item[i], length) && (kernel[length] == '\0' || kernel[length] == '_'))
            return true;
    }
    return o->kernels.count == 0;
}

static void check_problem(harness *h, const grad_options *o, problem p, int counts[2])
{
    kernel_entry entries[KERNELS_MAX];
    p.op = FATTN_OP_BACKWARD;
    const int count = harness_kernels(h, &p, entries);
    for (int i = 0; i < count; i++)
        if (entries[i].of_type && !entries[i].refusal && wanted(o, entries[i].name))
            counts[check_kernel(h, o, &p, entries[i].name, counts[0] + counts[1] == 0)]++;
}

/* ---------------------------------------------------------------------------------------------------------------- main */

static bool parse(grad_options *o, int argc, char **argv, int *status)
{
    const option_spec table[] = {
        {"dtype", "NAME,...", OPTION_WORDS, &o->dtypes, .words = dtype_words, .help = "types"},
        {"kernel", "NAME,...", OPTION_TEXTS, &o->kernels, .help = "only these: names, or their beginnings up to an underscore"},
        {"samples", "N", OPTION_INT, &o->samples, .low = 1, .high = SAMPLES_MAX, .help = "elements of each tensor"},
        {"seed", "N", OPTION_INT, &o->seed, .help = "of the numbers and of the choice of elements"},
        {"threads", "N", OPTION_INT, &o->threads, .high = 1024, .help = "threads; 0: as many as the process may use"},
        {"json", NULL, OPTION_FLAG, &o->json, .help = "JSON lines"},
        {0}};
    const option_set set = {
        .usage = "fattn gradcheck [options] [PROBLEM]",
        .about = "Compares dq, dk and dv of every backward kernel with central finite differences of the loss\n"
                 "sum(dout * out), on sampled elements. Errors are parts of the largest gradient of the tensor;\n"
                 "1e-7 is allowed in double, 1e-3 in float. PROBLEM is a name as in fattn check.",
        .table = table,
        .positionals_max = 1};
    return options_parse(&set, argc, argv, status);
}

static int run(const grad_options *o, const char *const *names, int count)
{
    harness h = harness_make();
    int counts[2] = {0, 0}, status = CLI_OK;
    char complaint[200];
    for (int i = 0; i < count && status == CLI_OK; i++)
        for (int d = 0; d < o->dtypes.count && status == CLI_OK; d++) {
            problem p;
            if (!problem_parse(names[i], &p, complaint, sizeof complaint)) {
                cli_error("gradcheck: '%s': %s", names[i], complaint);
                status = CLI_WRONG;
                break;
            }
            p.dtype = o->dtypes.item[d] == 1 ? FATTN_F64 : FATTN_F32;
            p.seed = (uint64_t)o->seed;
            check_problem(&h, o, p, counts);
        }
    harness_free(&h);
    if (status != CLI_OK)
        return status;
    if (counts[0] + counts[1] == 0) {
        cli_error("--kernel: no backward kernel of that name runs here");
        return CLI_WRONG;
    }
    if (!o->json)
        printf("%d passed, %d failed\n", counts[1], counts[0]);
    return counts[0] ? CLI_FAILED : CLI_OK;
}

int cmd_gradcheck(int argc, char **argv)
{
    grad_options o = {.dtypes = {.count = 2, .item = {1, 0}}, .seed = 1, .samples = 24, .threads = 2};
    int status;
    if (!parse(&o, argc, argv, &status))
        return status;
    if (optind < argc)
        return run(&o, (const char *const *)&argv[optind], 1);
    return run(&o, problems, (int)(sizeof problems / sizeof problems[0]));
}
