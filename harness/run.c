/*
 * Running; see run.h. What comes out is judged in judge.c.
 */
#include "run.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "call.h"
#include "mirror.h"

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

static void set_running(const test_case *c, const char *kernel)
{
    char name[PROBLEM_NAME_SIZE];
    problem_print(&c->p, name);
    snprintf(running, sizeof running, "%s@%s", name, kernel ? kernel : "automatic");
}

/* ----------------------------------------------------------------------------------------------------------- contexts */

harness harness_make(void)
{
    return (harness){
        .forward = fattn_forward, .backward = fattn_backward, .threads = {1, 2, 7}, .threads_count = 3, .patience = 120};
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
    mirror_close(h->gpu);
    h->gpu = NULL;
}

bool harness_use_gpu(harness *h, char *reason, size_t size)
{
    harness_free(h);
    h->threads[0] = 1; /* of the host; they do nothing */
    h->threads_count = 1;
    h->gpu = mirror_open(0, reason, size);
    return h->gpu != NULL;
}

static bool same_text(const char *a, const char *b)
{
    return a && b ? !strcmp(a, b) : a == b;
}

/* harness_context, and why not. */
static fattn_context *make_context(harness *h, const char *kernel, int threads, fattn_status *status)
{
    for (int i = 0; i < h->cached; i++)
        if (h->cache[i].threads == threads && same_text(h->cache[i].kernel, kernel))
            return h->cache[i].context;
    if (h->cached == HARNESS_CONTEXTS_MAX)
        drop_oldest(h);
    const fattn_context_options options = {.struct_size = sizeof options,
                                           .threads = threads,
                                           .kernel = kernel,
                                           .device = h->gpu ? FATTN_DEVICE_CUDA : FATTN_DEVICE_CPU};
    fattn_context *context;
    *status = fattn_context_create(&options, &context);
    if (*status != FATTN_OK)
        return NULL;
    h->cache[h->cached].kernel = kernel ? strdup(kernel) : NULL;
    h->cache[h->cached].threads = threads;
    h->cache[h->cached++].context = context;
    return context;
}

fattn_context *harness_context(harness *h, const char *kernel, int threads)
{
    fattn_status status;
    return make_context(h, kernel, threads, &status);
}

/* Whether a kernel's name ends in no type, or in this one. */
static bool name_is_of(const char *name, fattn_dtype type)
{
    static const struct {
        const char *end;
        fattn_dtype type;
    } ends[] = {{"_f32", FATTN_F32}, {"_f64", FATTN_F64}, {"_f16", FATTN_F16}, {"_bf16", FATTN_BF16}};
    for (int i = 0; i < 4; i++) {
        const size_t length = strlen(name), end = strlen(ends[i].end);
        if (length > end && !strcmp(name + length - end, ends[i].end))
            return ends[i].type == type;
    }
    return true;
}

int harness_kernels(harness *h, const problem *p, kernel_entry entries[KERNELS_MAX])
{
    return harness_kernels_of(h, p, h->gpu ? FATTN_DEVICE_CUDA : FATTN_DEVICE_CPU, entries);
}

int harness_kernels_of(harness *h, const problem *p, fattn_device device, kernel_entry entries[KERNELS_MAX])
{
    const fattn_desc desc = problem_desc(p);
    fattn_context *context = harness_context(h, NULL, 1);
    fattn_context_info machine = {.struct_size = sizeof machine};
    if (!context || fattn_context_query(context, &machine) != FATTN_OK)
        return 0;
    int count = 0;
    for (int index = 0; count < KERNELS_MAX; index++) {
        fattn_kernel_info info = {.struct_size = sizeof info};
        if (fattn_kernel_query(context, &desc, p->op, index, &info) != FATTN_OK)
            break;
        if (info.device != (int32_t)device)
            continue;
        entries[count++] = (kernel_entry){.name = info.name,
                                          .refusal = info.can_run   ? NULL
                                                     : info.refusal ? info.refusal
                                                                    : "gives no reason",
                                          .lacks = info.device == machine.device ? info.needs & ~machine.cpu_features : 0,
                                          .of_type = name_is_of(info.name, p->dtype),
                                          .selected = info.selected != 0,
                                          .rounds = (fattn_dtype)info.rounds,
                                          .unordered = info.unordered != 0};
    }
    return count;
}

/* ------------------------------------------------------------------------------------------------------------ running */

bool verdict_fail(verdict *v, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    vsnprintf(v->text, sizeof v->text, format, list);
    va_end(list);
    v->passed = false;
    return false;
}

/* The same for want of memory. */
static bool lack_memory(verdict *v, const char *what)
{
    v->no_memory = true;
    return verdict_fail(v, "no memory: %s", what);
}

enum { WORKSPACE_BAND = 64, WORKSPACE_SKEW = 1 }; /* the skew: any alignment is allowed */

/* A list that is wanted but has no elements may be anything; one that decides by its presence must be something. */
static const void *list_of(const test_case *c, const tensor *t, bool wanted)
{
    return !wanted ? NULL : t->view.data ? t->view.data : &c->desc;
}

fattn_forward_args case_forward_args(const test_case *c)
{
    const tensors *t = &c->t;
    const problem *p = &c->p;
    const bool intervals = p->mask == FATTN_MASK_INTERVALS, documents = p->mask == FATTN_MASK_DOCUMENT;
    return (fattn_forward_args){.struct_size = sizeof(fattn_forward_args),
                                .q = t->q.view,
                                .k = t->k.view,
                                .v = t->v.view,
                                .out = t->out.view,
                                .lse = t->lse.view.data,
                                .cu_seqlens_q = list_of(c, &t->cu_q, p->packed_q.kind),
                                .cu_seqlens_k = list_of(c, &t->cu_k, p->packed_k.kind),
                                .used_q = list_of(c, &t->used_q, p->used_q.kind),
                                .used_k = list_of(c, &t->used_k, p->used_k.kind),
                                .mask_lo = list_of(c, &t->lo, intervals),
                                .mask_hi = list_of(c, &t->hi, intervals),
                                .bias = p->bias ? &t->bias.view : NULL,
                                .slopes = list_of(c, &t->slopes, p->alibi),
                                .sinks = list_of(c, &t->sinks, p->sinks),
                                .mask_stride = case_mask_stride(c),
                                .document_q = list_of(c, &t->document_q, documents),
                                .document_k = list_of(c, &t->document_k, documents),
                                .page_table = list_of(c, &t->page_table, p->page_size > 0),
                                .k_scales = list_of(c, &t->k_scales, p->kv_i8),
                                .v_scales = list_of(c, &t->v_scales, p->kv_i8)};
}

fattn_backward_args case_backward_args(const test_case *c, const fattn_forward_args *forward)
{
    const tensors *t = &c->t;
    const problem *p = &c->p;
    fattn_backward_args args = call_backward_of(forward);
    args.lse = args.lse ? args.lse : &c->desc;
    args.dout = t->dout.view;
    args.dlse = list_of(c, &t->dlse, p->dlse);
    args.dq = t->dq.view;
    args.dk = t->dk.view;
    args.dv = t->dv.view;
    args.dbias = p->dbias ? &t->dbias.view : NULL;
    args.dsinks = p->dsinks && args.sinks ? t->dsinks.view.data : NULL;
    return args;
}

static bool bytes_are(const unsigned char *bytes, unsigned char value, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (bytes[i] != value)
            return false;
    return true;
}

/* Calls the library, on the harness's device. block: the workspace with what surrounds it. */
static bool call(harness *h, test_case *c, const fattn_context *context, fattn_forward_args *args, unsigned char *block,
                 size_t bytes, int threads, verdict *v)
{
    const bool forward = c->p.op == FATTN_OP_FORWARD;
    fattn_backward_args backward = case_backward_args(c, args);
    fattn_view bias, dbias;
    char reason[300];
    bool no_memory = false;
    if (h->gpu) {
        if (!mirror_push(h->gpu, c, block, bytes, &no_memory, reason, sizeof reason))
            return no_memory ? lack_memory(v, reason) : verdict_fail(v, "%s", reason);
        mirror_move_forward(h->gpu, args, &bias);
        mirror_move_backward(h->gpu, &backward, &bias, &dbias);
    }
    const fattn_status status = forward ? h->forward(context, &c->desc, args) : h->backward(context, &c->desc, &backward);
    if (h->gpu && !mirror_pull(h->gpu, c, reason, sizeof reason))
        return verdict_fail(v, "%s", reason);
    if (status == FATTN_ERROR_MEMORY && h->gpu) /* the driver's, as it launches: calls allocate nothing */
        return lack_memory(v, fattn_last_error());
    return status == FATTN_OK ||
           verdict_fail(v, "%s with %d threads: %s", fattn_status_name(status), threads, fattn_last_error());
}

static bool try_call(harness *h, test_case *c, const char *kernel, int threads, bool with_lse, const char **ran, verdict *v)
{
    fattn_status status;
    const fattn_context *context = make_context(h, kernel, threads, &status);
    fattn_forward_args args = case_forward_args(c);
    set_running(c, kernel);
    if (!context && status == FATTN_ERROR_MEMORY)
        return lack_memory(v, fattn_last_error());
    if (!context || fattn_workspace_size(context, &c->desc, c->p.op, &args.workspace_size) != FATTN_OK)
        return verdict_fail(v, "with %d threads: %s", threads, fattn_last_error());
    for (int i = 0; i < c->outputs_count; i++)
        arena_poison(&c->outputs[i]);
    const size_t bytes = args.workspace_size, all = bytes + 2 * WORKSPACE_BAND + WORKSPACE_SKEW;
    unsigned char *block = malloc(all);
    if (!block) {
        char what[60];
        snprintf(what, sizeof what, "a workspace of %zu bytes", bytes);
        return lack_memory(v, what);
    }
    memset(block, 0xff, all);
    unsigned char *workspace = block + WORKSPACE_BAND + WORKSPACE_SKEW;
    args.workspace = bytes ? workspace : NULL;
    args.kernel = ran;
    args.lse = with_lse || c->p.op == FATTN_OP_BACKWARD ? args.lse : NULL;
    const bool ok = call(h, c, context, &args, block, all, threads, v);
    const bool tidy =
        bytes_are(block, 0xff, WORKSPACE_BAND + WORKSPACE_SKEW) && bytes_are(workspace + bytes, 0xff, WORKSPACE_BAND);
    free(block);
    return ok && (tidy || verdict_fail(v, "writes outside its workspace of %zu bytes with %d threads", bytes, threads));
}

bool case_call(harness *h, test_case *c, const char *kernel, int threads, bool with_lse, const char **ran, verdict *v)
{
    const double pause = 0.25;
    while (!try_call(h, c, kernel, threads, with_lse, ran, v)) {
        if (!v->no_memory || h->patience <= 0)
            return false;
        v->no_memory = false;
        v->passed = true;
        if (h->gpu)
            mirror_shrink(h->gpu); /* or two programs could wait for each other */
        h->patience -= pause;
        nanosleep(&(struct timespec){.tv_nsec = (long)(pause * 1e9)}, NULL);
    }
    return true;
}
