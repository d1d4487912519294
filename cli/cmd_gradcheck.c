/*
 * fattn gradcheck: gradients against finite differences.
 *
 * The loss is sum(dout * out), and sum(dlse * lse) where the problem has dlse, with random dout and dlse, summed in double. For
 * a sampled number x of q, k, v, bias or sinks,
 *
 *     (loss(x + h) - loss(x - h)) / ((x + h) - (x - h))
 *
 * with the differences that x really made after rounding, is compared with what backward says. Where dbias lacks a dimension
 * that bias has, every number of bias that it sums over is moved at once. An error counts as a part of the tensor's largest
 * gradient: 1e-7 is allowed in double (h = 3e-5) and 1e-3 in float, where the loss is so coarse that h must be large, 0.1, and
 * a second difference with 0.2 takes out the curvature. forward is done by the kernel of the same family, or by ref.
 */
#include <getopt.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "gradcheck.h"
#include "json_out.h"
#include "options.h"
#include "random.h"

typedef struct grad_problem {
    const char *name;
    grad_join join;
    int parts;
} grad_problem;

static const grad_problem problems[] = {
    {"q9k7/d8", GRAD_WHOLE, 0},
    {"b2/h2/q12k12/d16/causal", GRAD_WHOLE, 0},
    {"b2/h4/gqa2/q11k17/d8/v5/causal-br", GRAD_WHOLE, 0},
    {"h6/gqa3/q33k20/d12/causal/dlse", GRAD_WHOLE, 0},
    {"h4/gqa4/q1k19/d16", GRAD_WHOLE, 0},
    {"b2/h2/q14k5/d8/causal-br", GRAD_WHOLE, 0},
    {"h2/q40k40/d16/window:3,2/dlse", GRAD_WHOLE, 0},
    {"h2/gqa2/q25k50/d24/v40/window-br:7,0", GRAD_WHOLE, 0},
    {"q70k130/d16/causal-br", GRAD_WHOLE, 0},
    {"b2/h3/gqa3/q97k97/d64/v48/causal", GRAD_WHOLE, 0},
    {"q35k260/d33", GRAD_WHOLE, 0},
    {"h2/q21k30/d16/scale:-0.4/dlse", GRAD_WHOLE, 0},
    {"h2/q200k64/d80/window:-1,5", GRAD_WHOLE, 0},
    {"h2/q40k50/d16/chunked:16", GRAD_WHOLE, 0},
    {"h2/q40k50/d16/prefix-br:9/dlse", GRAD_WHOLE, 0},
    {"b2/h2/q40k40/d16/document", GRAD_WHOLE, 0},
    {"b2/h2/gqa2/q40k40/d16/document-br:9,0/bias:hqk", GRAD_WHOLE, 0},
    {"b2/h2/q30k50/d16/intervals/dlse", GRAD_WHOLE, 0},
    {"b2/h2/q20k30/d16/softcap:1.5/dlse", GRAD_WHOLE, 0},
    {"b2/h4/gqa2/q50k70/d16/causal/alibi/softcap:3", GRAD_WHOLE, 0},
    {"b2/h2/q30k40/d16/dropout:0.3/dlse", GRAD_WHOLE, 0},
    {"b2/h4/gqa4/q25k25/d16/causal/sinks/dropout:0.1", GRAD_WHOLE, 0},
    {"b2/h2/q30k40/d16/sinks/dlse", GRAD_WHOLE, 0},
    {"h4/gqa2/q40k20/d16/causal-br/sinks/softcap:2", GRAD_WHOLE, 0},
    {"b2/h2/q12k20/d16/bias:bhqk", GRAD_WHOLE, 0},
    {"b2/h2/q12k20/d16/bias:hqk/causal/dlse", GRAD_WHOLE, 0},
    {"b2/h2/q12k20/d16/bias:bk", GRAD_WHOLE, 0},
    {"b2/h2/q12k20/d16/bias:qk/sinks", GRAD_WHOLE, 0},
    {"b2/h2/q12k20/d16/bias:hk/alibi", GRAD_WHOLE, 0},
    {"b2/h2/q12k20/d16/bias:k/dropout:0.2", GRAD_WHOLE, 0},
    {"b2/h2/q12k20/d16/bias:bhqk/dbias:hqk/softcap:3", GRAD_WHOLE, 0},
    {"b2/h2/q12k20/d16/bias:bhqk/dbias:bk/window:5,5", GRAD_WHOLE, 0},
    {"b2/h2/q70k90/d32/bias:hqk/dbias:k", GRAD_WHOLE, 0},
    {"b3/h2/q40k40/d16/packed-seqs:40,7,19/causal/dlse", GRAD_WHOLE, 0},
    {"b3/h4/gqa2/q40k50/d16/packed-q:9,40,0/packed-k:50,1,30/causal-br/bias:hk/sinks", GRAD_WHOLE, 0},
    {"b3/h2/q30k40/d16/used-q:30,11,5/used-k:17,40,0/bias:bqk/dropout:0.2", GRAD_WHOLE, 0},
    {"b2/h2/q100k300/d40/packed-seqs:100,60/window-br:20,3/alibi/softcap:5/sinks/dlse", GRAD_WHOLE, 0},
    {"b2/h2/q20k31/d16", GRAD_MERGE, 2},
    {"b2/h4/gqa2/q25k40/d16/causal/dlse", GRAD_MERGE, 3},
    {"b2/h2/q25k40/d16/bias:hqk/sinks/softcap:3/dlse", GRAD_MERGE, 4},
    {"b2/h2/q25k40/d16/document/bias:bk", GRAD_MERGE, 2},
    {"b2/h4/gqa2/q25k40/d16/causal-br/dlse", GRAD_RING, 3},
    {"h2/q25k40/d16/window:9,2/bias:hqk/sinks/dlse", GRAD_RING, 4},
};

enum { SAMPLES_MAX = 100000 };

/* The tensors whose gradients are checked. */
typedef enum grad_kind { GRAD_Q, GRAD_K, GRAD_V, GRAD_BIAS, GRAD_SINKS, GRADS } grad_kind;

static const char *const grad_names[GRADS] = {"dq", "dk", "dv", "dbias", "dsinks"};
static const char *const dtype_words[] = {"f32", "f64", NULL};
static const char *const join_words[] = {"merge", "ring", NULL};

typedef struct grad_options {
    option_texts kernels;
    option_ints dtypes;
    int64_t seed, samples, threads, parts;
    int join;
    bool json;
} grad_options;

/* ------------------------------------------------------------------------------------------------------------- numbers */

static const tensor *input_of(const grad_state *g, grad_kind kind)
{
    const tensors *t = &g->c.t;
    const tensor *const all[GRADS] = {&t->q, &t->k, &t->v, &t->bias, &t->sinks};
    return all[kind];
}

static const tensor *gradient_of(const grad_state *g, grad_kind kind)
{
    const tensors *t = &g->c.t;
    const tensor *const all[GRADS] = {&t->dq, &t->dk, &t->dv, &t->dbias, &t->dsinks};
    return all[kind];
}

static bool checked(const grad_state *g, grad_kind kind)
{
    const problem *p = &g->c.p;
    return kind == GRAD_BIAS ? p->dbias : kind == GRAD_SINKS ? p->dsinks : true;
}

/* A number of a tensor: which one, and where it lies. */
typedef struct place {
    int64_t b, h, i, d;
} place;

static place place_of(const tensor *t, int64_t index)
{
    const int64_t row = index / t->cols;
    return (place){row / t->rows / t->heads, row / t->rows % t->heads, row % t->rows, index % t->cols};
}

static bool exists(const tensor *t, place at)
{
    return tensor_has_row(t, at.b, at.i);
}

static double value_at(const tensor *t, place at)
{
    return tensor_get(t, tensor_row(t, at.b, at.h, at.i), at.d);
}

/* ---------------------------------------------------------------------------------------------------------- differences */

/* The numbers of an input that one number of its gradient stands for: one, or all over what dbias sums. */
typedef struct crowd {
    const tensor *t;
    place at;
    bool all_b, all_h, all_i;
    double *saved; /* [t's batch, heads, rows] */
} crowd;

static crowd crowd_of(const grad_state *g, grad_kind kind, place at, double *saved)
{
    const tensor *from = input_of(g, kind), *to = gradient_of(g, kind);
    return (crowd){from, at, from->batch != to->batch, from->heads != to->heads, from->rows != to->rows, saved};
}

/* Moves them by h, and by -h where `back`; h = 0 puts them back. Returns by how much they moved, on average. A NaN is an
 * element that nobody looks at, and stays. */
static double move(const crowd *c, double h)
{
    const tensor *t = c->t;
    double sum = 0;
    int64_t count = 0;
    for (int64_t b = c->all_b ? 0 : c->at.b; b < (c->all_b ? t->batch : c->at.b + 1); b++)
        for (int64_t head = c->all_h ? 0 : c->at.h; head < (c->all_h ? t->heads : c->at.h + 1); head++)
            for (int64_t i = c->all_i ? 0 : c->at.i; i < (c->all_i ? t->rows : c->at.i + 1); i++) {
                void *row = tensor_row(t, b, head, i);
                const double x = c->saved[(b * t->heads + head) * t->rows + i];
                if (!isfinite(x))
                    continue;
                tensor_put(t, row, c->at.d, x + h);
                sum += tensor_get(t, row, c->at.d) - x;
                count++;
            }
    return count > 0 ? sum / (double)count : 0;
}

static void save(const crowd *c)
{
    const tensor *t = c->t;
    for (int64_t x = 0; x < t->batch * t->heads * t->rows; x++) {
        const place at = place_of(t, x * t->cols + c->at.d);
        c->saved[x] = exists(t, at) ? value_at(t, at) : NAN;
    }
}

static bool loss(grad_state *g, const fattn_context *context, double *sum)
{
    if (!grad_forward(g, context))
        return false;
    *sum = grad_loss(g);
    return true;
}

/* The central difference by the numbers of a crowd, for steps of h. */
static bool difference(grad_state *g, const fattn_context *context, const crowd *c, double h, double *slope)
{
    double above = 0, below = 0;
    double step = move(c, h);
    bool ok = loss(g, context, &above);
    step -= move(c, -h);
    ok = ok && loss(g, context, &below);
    move(c, 0);
    *slope = step > 0 ? (above - below) / step : 0; /* nothing to move: nothing depends on it */
    return ok;
}

/* The slope, in float from two differences whose errors in h^2 cancel. */
static bool slope_of(grad_state *g, const fattn_context *context, const crowd *c, double *slope)
{
    double near = 0, far = 0;
    save(c);
    if (g->c.p.dtype == FATTN_F64)
        return difference(g, context, c, 3e-5, slope);
    const bool ok = difference(g, context, c, 0.1, &near) && difference(g, context, c, 0.2, &far);
    *slope = (4 * near - far) / 3;
    return ok;
}

static double largest_of(const tensor *t)
{
    double largest = 0;
    for (int64_t x = 0; x < tensor_count(t); x++) {
        const place at = place_of(t, x);
        const double size = exists(t, at) ? fabs(value_at(t, at)) : 0;
        largest = size > largest || isnan(size) ? size : largest; /* a NaN stays */
    }
    return largest;
}

/* The largest error of a gradient on sampled elements, as a part of its largest. */
static bool gradient_error(grad_state *g, const fattn_context *context, grad_kind kind, int64_t samples, double *error)
{
    const tensor *t = gradient_of(g, kind), *input = input_of(g, kind);
    const int64_t count = tensor_count(t);
    const double largest = largest_of(t);
    random_state r = random_start(g->c.p.seed, 50 + (uint64_t)kind);
    double *saved = malloc(((size_t)(input->batch * input->heads * input->rows) + 1) * sizeof *saved);
    bool ok = saved != NULL;
    *error = 0;
    for (int64_t s = 0; ok && s < (count <= samples ? count : samples); s++) {
        const place at = place_of(t, count <= samples ? s : random_below(&r, count));
        const crowd c = crowd_of(g, kind, at, saved);
        double slope;
        if (!exists(t, at))
            continue;
        ok = slope_of(g, context, &c, &slope);
        const double e = fabs(slope - value_at(t, at)) / (largest > 0 ? largest : 1);
        *error = e > *error || isnan(e) ? e : *error; /* a NaN stays */
    }
    free(saved);
    return ok;
}

/* ---------------------------------------------------------------------------------------------------------- reporting */

/* What a line says. Errors that were not asked for are negative. */
typedef struct grad_result {
    const char *kernel;
    char problem[PROBLEM_NAME_SIZE];
    grad_join join;
    int parts;
    double error[GRADS], tolerance;
    bool passed;
} grad_result;

static const char *join_name(grad_join join)
{
    return join == GRAD_WHOLE ? "none" : join_words[join - GRAD_MERGE];
}

static void print_json(const grad_result *r)
{
    json_out json = json_begin(stdout);
    json_string(&json, "problem", r->problem);
    json_string(&json, "kernel", r->kernel);
    json_string(&json, "join", join_name(r->join));
    json_int(&json, "parts", r->join == GRAD_WHOLE ? 1 : r->parts);
    for (int t = 0; t < GRADS; t++)
        json_double(&json, grad_names[t], r->error[t] < 0 ? NAN : r->error[t]);
    json_double(&json, "tolerance", r->tolerance);
    json_bool(&json, "passed", r->passed);
    json_end(&json);
}

/* A line; the first has the heads of the columns above it. */
static void print_result(const grad_options *o, bool first, const grad_result *r)
{
    char name[PROBLEM_NAME_SIZE + 32] = "";
    if (o->json) {
        print_json(r);
        return;
    }
    if (first)
        printf("%-24s %8s %8s %8s %8s %8s  %-6s %s\n", "kernel", "dq", "dk", "dv", "dbias", "dsinks", "", "problem");
    printf("%-24s", r->kernel);
    for (int t = 0; t < GRADS; t++)
        if (r->error[t] < 0)
            printf(" %8s", "");
        else
            printf(" %8.1e", r->error[t]);
    if (r->join != GRAD_WHOLE)
        snprintf(name, sizeof name, "  in %d parts, %s", r->parts, join_name(r->join));
    printf("  %-6s %s%s\n", r->passed ? "passed" : "FAILED", r->problem, name);
    fflush(stdout);
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
static bool check_kernel(harness *h, const grad_options *o, const problem *p, const grad_problem *how, const char *kernel,
                         bool first)
{
    char forward_name[96];
    grad_state g;
    grad_result r = {.kernel = kernel, .join = how->join, .parts = how->parts};
    r.tolerance = p->dtype == FATTN_F64 ? 1e-7 : 1e-3;
    problem_print(p, r.problem);
    forward_of(h, p, kernel, forward_name, sizeof forward_name);
    const fattn_context *down = harness_context(h, forward_name, (int)o->threads);
    const fattn_context *up = harness_context(h, kernel, (int)o->threads);
    bool ok = grad_open(&g, p, how->join, how->parts) && down && up && grad_forward(&g, down) && grad_backward(&g, up);
    r.passed = ok;
    for (int t = 0; t < GRADS; t++) {
        r.error[t] = -1;
        if (!ok || !checked(&g, (grad_kind)t))
            continue;
        ok = gradient_error(&g, down, (grad_kind)t, o->samples, &r.error[t]);
        r.passed &= ok && r.error[t] <= r.tolerance;
    }
    if (!ok)
        cli_error("gradcheck: %s with %s: %s", r.problem, kernel, fattn_last_error());
    grad_close(&g);
    print_result(o, first, &r);
    return r.passed;
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

static void check_problem(harness *h, const grad_options *o, const problem *p, const grad_problem *how, int counts[2])
{
    kernel_entry entries[KERNELS_MAX];
    const int count = harness_kernels(h, p, entries);
    for (int i = 0; i < count; i++)
        if (entries[i].of_type && !entries[i].refusal && wanted(o, entries[i].name))
            counts[check_kernel(h, o, p, how, entries[i].name, counts[0] + counts[1] == 0)]++;
}

/* ---------------------------------------------------------------------------------------------------------------- main */

static bool parse(grad_options *o, int argc, char **argv, int *status)
{
    const option_spec table[] = {
        {"dtype", "NAME,...", OPTION_WORDS, &o->dtypes, .words = dtype_words, .help = "types"},
        {"kernel", "NAME,...", OPTION_TEXTS, &o->kernels, .help = "only these: names, or their beginnings up to an underscore"},
        {"samples", "N", OPTION_INT, &o->samples, .low = 1, .high = SAMPLES_MAX, .help = "elements of each tensor"},
        {"parts", "N", OPTION_INT, &o->parts, .low = 1, .high = GRAD_PARTS_MAX,
         .help = "PROBLEM's keys in parts that are joined"},
        {"join", "NAME", OPTION_WORD, &o->join, .words = join_words, .help = "how: fattn_merge_backward, or lse of the whole"},
        {"seed", "N", OPTION_INT, &o->seed, .help = "of the numbers and of the choice of elements"},
        {"threads", "N", OPTION_INT, &o->threads, .high = 1024, .help = "threads; 0: as many as the process may use"},
        {"json", NULL, OPTION_FLAG, &o->json, .help = "JSON lines"},
        {0}};
    const option_set set = {
        .usage = "fattn gradcheck [options] [PROBLEM]",
        .about = "Compares the gradients of every backward kernel with central finite differences of the loss\n"
                 "sum(dout * out), and sum(dlse * lse) where the problem has dlse, on sampled elements: dq, dk, dv, and\n"
                 "dbias and dsinks where there are bias and sinks. Errors are parts of the largest gradient of the tensor;\n"
                 "1e-7 is allowed in double, 1e-3 in float. PROBLEM is a name as in fattn check.",
        .table = table,
        .positionals_max = 1};
    return options_parse(&set, argc, argv, status);
}

/* Reads a problem. Every gradient that there can be is wanted. */
static bool read_problem(const grad_options *o, const grad_problem *how, int dtype, problem *p)
{
    char name[PROBLEM_NAME_SIZE + 16], complaint[200];
    snprintf(name, sizeof name, "backward/%s", how->name);
    if (!problem_parse(name, p, complaint, sizeof complaint)) {
        cli_error("gradcheck: '%s': %s", how->name, complaint);
        return false;
    }
    p->op = FATTN_OP_BACKWARD;
    p->dtype = dtype == 1 ? FATTN_F64 : FATTN_F32;
    p->seed = (uint64_t)o->seed;
    p->dbias_dims = p->bias && !p->dbias ? p->bias_dims : p->dbias_dims;
    p->dbias = p->bias;
    p->dsinks = p->sinks;
    const char *wrong = grad_wrong(p, how->join, how->parts);
    if (wrong)
        cli_error("gradcheck: '%s': %s", how->name, wrong);
    return !wrong;
}

static int run(const grad_options *o, const grad_problem *list, int count)
{
    harness h = harness_make();
    int counts[2] = {0, 0}, status = CLI_OK;
    for (int i = 0; i < count && status == CLI_OK; i++)
        for (int d = 0; d < o->dtypes.count && status == CLI_OK; d++) {
            problem p;
            if (read_problem(o, &list[i], (int)o->dtypes.item[d], &p))
                check_problem(&h, o, &p, &list[i], counts);
            else
                status = CLI_WRONG;
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
    grad_options o = {.dtypes = {.count = 2, .item = {1, 0}}, .seed = 1, .samples = 24, .threads = 2, .parts = 1};
    int status;
    if (!parse(&o, argc, argv, &status))
        return status;
    if (optind < argc) {
        const grad_join join = o.parts == 1 ? GRAD_WHOLE : o.join == 0 ? GRAD_MERGE : GRAD_RING;
        const grad_problem one = {argv[optind], join, (int)o.parts};
        return run(&o, &one, 1);
    }
    if (o.parts > 1) {
        cli_error("--parts: %d needs a PROBLEM", (int)o.parts);
        return CLI_WRONG;
    }
    return run(&o, problems, (int)(sizeof problems / sizeof problems[0]));
}
