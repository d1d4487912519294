/*
 * Running and judging; see run.h.
 */
#include "run.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fill.h"

/* What runs now, for the fault handler. */
static char running[PROBLEM_NAME_SIZE + 96];

static int fault_fd = STDOUT_FILENO;

static void on_fault(int number)
{
    static const char head[] = "FAIL ", tail[] = ": touches memory outside its tensors (a signal ended the run)\n";
    if (write(fault_fd, head, sizeof head - 1) < 0 || write(fault_fd, running, strlen(running)) < 0 ||
        write(fault_fd, tail, sizeof tail - 1) < 0)
        _exit(2);
    _exit(number ? 1 : 2);
}

void harness_catch_faults(int fd)
{
    static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    struct sigaction action = {.sa_handler = on_fault};
    fault_fd = fd;
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        sigaction(signals[i], &action, NULL);
}

/* ----------------------------------------------------------------------------------------------------------- contexts */

harness harness_make(void)
{
    return (harness){.forward = fattn_forward, .backward = fattn_backward, .threads = {1, 2, 7}, .threads_count = 3};
}

/* Forgets the context that was made first. */
static void drop_oldest(harness *h)
{
    fattn_context_destroy(h->cache[0].context);
    free(h->cache[0].kernel);
    h->cached--;
    memmove(&h->cache[0], &h->cache[1], (size_t)h->cached * sizeof h->cache[0]);
}

void harness_free(harness *h)
{
    while (h->cached)
        drop_oldest(h);
}

static bool same_text(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

fattn_context *harness_context(harness *h, const char *kernel, int threads)
{
    for (int i = 0; i < h->cached; i++)
        if (h->cache[i].threads == threads && same_text(h->cache[i].kernel, kernel))
            return h->cache[i].context;
    if (h->cached == HARNESS_CONTEXTS_MAX)
        drop_oldest(h);
    const fattn_context_options options = {.struct_size = sizeof options, .threads = threads, .kernel = kernel};
    fattn_context *context;
    if (fattn_context_create(&options, &context) != FATTN_OK)
        return NULL;
    h->cache[h->cached].kernel = kernel ? strdup(kernel) : NULL;
    h->cache[h->cached].threads = threads;
    h->cache[h->cached++].context = context;
    return context;
}

int harness_kernels(harness *h, const problem *p, kernel_entry entries[KERNELS_MAX])
{
    const fattn_desc desc = problem_desc(p);
    const char *other = p->dtype == FATTN_F64 ? "_f32" : "_f64";
    fattn_context *context = harness_context(h, NULL, 1);
    fattn_context_info machine = {.struct_size = sizeof machine};
    if (!context || fattn_context_query(context, &machine) != FATTN_OK)
        return 0;
    int count = 0;
    for (int index = 0; count < KERNELS_MAX; index++) {
        fattn_kernel_info info = {.struct_size = sizeof info};
        if (fattn_kernel_query(context, &desc, p->op, index, &info) != FATTN_OK)
            break;
        const size_t length = strlen(info.name);
        entries[count++] = (kernel_entry){.name = info.name,
                                          .refusal = info.can_run   ? NULL
                                                     : info.refusal ? info.refusal
                                                                    : "gives no reason",
                                          .lacks = info.needs & ~machine.cpu_features,
                                          .of_type = length < 5 || strcmp(info.name + length - 4, other) != 0,
                                          .selected = info.selected != 0};
    }
    return count;
}

/* ------------------------------------------------------------------------------------------------------------ running */

static bool fail(verdict *v, const char *format, ...) __attribute__((format(printf, 2, 3)));

static bool fail(verdict *v, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(v->text, sizeof v->text, format, list);
    va_end(list);
    v->passed = false;
    return false;
}

enum { WORKSPACE_BAND = 64, WORKSPACE_SKEW = 1 }; /* the skew: any alignment is allowed */

static fattn_status call(harness *h, test_case *c, const fattn_context *context, unsigned char *workspace, size_t bytes,
                         bool with_lse, const char **kernel)
{
    const tensors *t = &c->t;
    if (c->p.op == FATTN_OP_FORWARD) {
        const fattn_forward_args args = {.struct_size = sizeof args,
                                         .q = t->q.view,
                                         .k = t->k.view,
                                         .v = t->v.view,
                                         .out = t->out.view,
                                         .lse = with_lse ? t->lse.view.data : NULL,
                                         .workspace = bytes ? workspace : NULL,
                                         .workspace_size = bytes,
                                         .kernel = kernel};
        return h->forward(context, &c->desc, &args);
    }
    const fattn_backward_args args = {.struct_size = sizeof args,
                                      .q = t->q.view,
                                      .k = t->k.view,
                                      .v = t->v.view,
                                      .out = t->out.view,
                                      .dout = t->dout.view,
                                      .dq = t->dq.view,
                                      .dk = t->dk.view,
                                      .dv = t->dv.view,
                                      .lse = t->lse.view.data ? t->lse.view.data : (const void *)&c->desc, /* empty: anything */
                                      .workspace = bytes ? workspace : NULL,
                                      .workspace_size = bytes,
                                      .kernel = kernel};
    return h->backward(context, &c->desc, &args);
}

static bool bytes_are(const unsigned char *bytes, unsigned char value, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != value)
            return false;
    return true;
}

/* One call with fresh outputs and a workspace full of NaN. */
static bool run_once(harness *h, test_case *c, const char *kernel, int threads, bool with_lse, const char **ran, verdict *v)
{
    const fattn_context *context = harness_context(h, kernel, threads);
    size_t bytes = 0;
    if (!context || fattn_workspace_size(context, &c->desc, c->p.op, &bytes) != FATTN_OK)
        return fail(v, "with %d threads: %s", threads, fattn_last_error());
    for (int i = 0; i < c->outputs_count; i++)
        arena_poison(&c->outputs[i]);
    unsigned char *block = malloc(bytes + 2 * WORKSPACE_BAND + WORKSPACE_SKEW);
    if (!block)
        return fail(v, "no memory for a workspace of %zu bytes", bytes);
    memset(block, 0xff, bytes + 2 * WORKSPACE_BAND + WORKSPACE_SKEW);
    unsigned char *workspace = block + WORKSPACE_BAND + WORKSPACE_SKEW;
    const fattn_status status = call(h, c, context, workspace, bytes, with_lse, ran);
    const bool tidy =
        bytes_are(block, 0xff, WORKSPACE_BAND + WORKSPACE_SKEW) && bytes_are(workspace + bytes, 0xff, WORKSPACE_BAND);
    free(block);
    if (status != FATTN_OK)
        return fail(v, "%s with %d threads: %s", fattn_status_name(status), threads, fattn_last_error());
    return tidy || fail(v, "writes outside its workspace of %zu bytes with %d threads", bytes, threads);
}

/* ------------------------------------------------------------------------------------------------------------ judging */

static const char *output_name(const test_case *c, int index)
{
    static const char *const forward[] = {"out", "lse"}, *const backward[] = {"dq", "dk", "dv"};
    if (c->outputs[index].tensors > 1)
        return c->outputs[index].tensors == 3 ? "packed dq, dk, dv" : "packed dk, dv";
    return c->p.op == FATTN_OP_FORWARD ? forward[index] : backward[index];
}

/* Guard bands, gaps, elements not written, inputs. */
static bool judge_memory(const test_case *c, bool with_lse, int threads, verdict *v)
{
    const unsigned char *copy = c->inputs_copy;
    for (int i = 0; i < c->inputs_count; i++) {
        if (!arena_same(&c->inputs[i], copy))
            return fail(v, "input changed with %d threads", threads);
        copy += arena_bytes(&c->inputs[i]);
    }
    for (int i = 0; i < c->outputs_count; i++) {
        int64_t where = 0;
        const bool expected = with_lse || i == 0 || c->p.op == FATTN_OP_BACKWARD;
        const arena_fault fault = arena_inspect(&c->outputs[i], expected, &where);
        if (fault != ARENA_CLEAN)
            return fail(v, "%s: element at offset %" PRId64 " %s (%d threads)", output_name(c, i), where,
                        fault == ARENA_NOT_WRITTEN ? "was not written" : "lies outside the tensor and was written", threads);
    }
    return true;
}

static void get_result(const tensor *t, double *values)
{
    if (tensor_empty(t))
        return;
    for (int64_t b = 0; b < t->batch; b++)
        for (int64_t h = 0; h < t->heads; h++)
            for (int64_t i = 0; i < t->rows; i++)
                for (int64_t d = 0; d < t->cols; d++)
                    *values++ = tensor_get(t, tensor_row(t, b, h, i), d);
}

/* Whether x is what truth demands, and how much of the allowance it takes. */
static bool judge_element(double x, double truth, double unit, double allowed, double *part)
{
    *part = 0;
    if (isnan(truth))
        return isnan(x);
    if (isinf(truth))
        return x == truth;
    if (unit == 0)
        return x == 0;
    if (!isfinite(unit)) /* the type's range is too small */
        return true;
    *part = fabs(x - truth) / allowed;
    return *part <= 1;
}

/* How many equal numbers are summed where all keys and values are the same: each addition may round the same way, the naive
 * computation's too, or by luck not. */
static double equal_terms(const problem *p)
{
    return p->layout == LAYOUT_BROADCAST_ROW || p->fill == FILL_HIGH ? (double)p->seq_k : 0;
}

static bool judge_result(test_case *c, const tensor *t, result_kind kind, verdict *v)
{
    const problem *p = &c->p;
    const bool forward = p->op == FATTN_OP_FORWARD;
    const double eps = p->dtype == FATTN_F64 ? 0x1p-53 : 0x1p-24;
    const double units = (forward ? 2 : 3) * (c->worst[kind] + 1) + equal_terms(p) / 4;
    const double terms = (double)(p->seq_k + p->seq_q * p->group + 4);
    const double tiny = 256 * terms * (p->dtype == FATTN_F64 ? DBL_MIN : (double)FLT_MIN);
    const int64_t rows = result_rows(p, kind), cols = result_cols(p, kind);
    get_result(t, c->got.value[kind]);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t d = 0; d < cols; d++) {
            const double x = c->got.value[kind][row * cols + d], truth = c->truth.value[kind][row * cols + d];
            const double unit = c->truth.unit[kind][row], allowed = units * eps * unit + tiny;
            double part;
            const bool ok = judge_element(x, truth, unit, allowed, &part);
            v->worst = fmax(v->worst, part);
            if (part > 0 && eps * unit > tiny)
                v->units = fmax(v->units, fabs(x - truth) / (eps * unit));
            if (!ok)
                return fail(v,
                            "%s[b%" PRId64 " h%" PRId64 " i%" PRId64 " d%" PRId64
                            "] = %.9g instead of %.9g, error %.3g units, allowed %.3g (naive %.3g)",
                            result_names[kind], row / t->rows / t->heads, row / t->rows % t->heads, row % t->rows, d, x, truth,
                            fabs(x - truth) / (eps * unit), units, c->worst[kind]);
        }
    return true;
}

static bool judge_numbers(test_case *c, verdict *v)
{
    const tensors *t = &c->t;
    if (c->p.op == FATTN_OP_FORWARD)
        return judge_result(c, &t->out, RESULT_OUT, v) && judge_result(c, &t->lse, RESULT_LSE, v);
    return judge_result(c, &t->dq, RESULT_DQ, v) && judge_result(c, &t->dk, RESULT_DK, v) &&
           judge_result(c, &t->dv, RESULT_DV, v);
}

static void save_outputs(test_case *c)
{
    unsigned char *to = c->outputs_copy;
    for (int i = 0; i < c->outputs_count; i++) {
        arena_save(&c->outputs[i], to);
        to += arena_bytes(&c->outputs[i]);
    }
}

static bool same_outputs(const test_case *c, bool with_lse)
{
    const unsigned char *copy = c->outputs_copy;
    for (int i = 0; i < c->outputs_count; i++) {
        const bool compared = with_lse || i == 0 || c->p.op == FATTN_OP_BACKWARD;
        if (compared && !arena_same(&c->outputs[i], copy))
            return false;
        copy += arena_bytes(&c->outputs[i]);
    }
    return true;
}

/* Another run that must repeat the first one's bits. */
static bool repeat(harness *h, test_case *c, const char *kernel, int threads, bool with_lse, const char *what, verdict *v)
{
    const char *ran = NULL;
    if (!run_once(h, c, kernel, threads, with_lse, &ran, v) || !judge_memory(c, with_lse, threads, v))
        return false;
    return same_outputs(c, with_lse) ||
           fail(v, "%s (%d threads) gives other bits than the first (%d)", what, threads, h->threads[0]);
}

/* A causal mask is a window of (-1, 0): the same bits. */
static bool repeat_as_window(harness *h, test_case *c, const char *kernel, verdict *v)
{
    const fattn_desc causal = c->desc;
    c->desc.mask = FATTN_MASK_WINDOW;
    c->desc.window_left = -1;
    const bool same = repeat(h, c, kernel, h->threads[0], true, "a run with window (-1, 0) for causal", v);
    c->desc = causal;
    return same;
}

static void set_running(const test_case *c, const char *kernel)
{
    char name[PROBLEM_NAME_SIZE];
    problem_print(&c->p, name);
    snprintf(running, sizeof running, "%s@%s", name, kernel);
}

verdict case_run(harness *h, test_case *c, const char *kernel)
{
    verdict v = {.passed = true};
    const char *ran = NULL;
    set_running(c, kernel);
    if (!run_once(h, c, kernel, h->threads[0], true, &ran, &v) || !judge_memory(c, true, h->threads[0], &v))
        return v;
    if (!ran || strcmp(ran, kernel) != 0) {
        fail(&v, "the call reports that '%s' ran", ran ? ran : "(nothing)");
        return v;
    }
    if (!judge_numbers(c, &v))
        return v;
    save_outputs(c);
    if (!repeat(h, c, kernel, h->threads[0], true, "a second run", &v))
        return v;
    for (int i = 1; i < h->threads_count; i++)
        if (!repeat(h, c, kernel, h->threads[i], true, "a run", &v))
            return v;
    if (c->p.mask == FATTN_MASK_CAUSAL && !repeat_as_window(h, c, kernel, &v))
        return v;
    if (c->p.op == FATTN_OP_FORWARD)
        repeat(h, c, kernel, h->threads[0], false, "a run without lse", &v);
    return v;
}

verdict case_run_automatic(harness *h, test_case *c, const char *promised)
{
    verdict v = {.passed = true};
    const char *ran = NULL;
    set_running(c, "automatic");
    if (!run_once(h, c, promised, h->threads[0], true, &ran, &v))
        return v;
    save_outputs(c);
    if (!run_once(h, c, NULL, h->threads[0], true, &ran, &v))
        return v;
    if (!ran || strcmp(ran, promised) != 0)
        fail(&v, "the query promised '%s', but '%s' ran", promised, ran ? ran : "(nothing)");
    else if (!same_outputs(c, true))
        fail(&v, "an automatic call gives other bits than %s forced", promised);
    return v;
}
