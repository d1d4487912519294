/*
 * Calls on two streams at once: of two contexts on one GPU, and of one context that two threads use. Forward, the backward
 * behind it and a decode step give the bits that they give alone, however often they meet.
 */
#include <pthread.h>

#include "arena.h"
#include "gpu/driver.h"

enum { SIDES = 2, QUEUED = 4, ROUNDS = 8, HEADS = 4, GROUPS = 2, MESSAGE = 200 };

/* What one of the two does; pointers to the GPU. */
typedef struct side {
    fattn_desc desc, step_desc; /* forward and backward; one query a sequence */
    fattn_forward_args forward, step;
    fattn_backward_args backward;
    fattn_context *context;
    CUstream stream;
    pthread_barrier_t *start; /* NULL: at once */
    char wrong[MESSAGE];      /* "" */
} side;

/* The two differ in type and sizes, so that they run different kernels, and differently long. */
static const struct {
    int32_t dtype;
    int64_t seq, dim;
} shapes[SIDES] = {{FATTN_BF16, 256, 64}, {FATTN_F32, 130, 40}};

static fattn_view tensor(const fattn_desc *d, int64_t heads, int64_t seq, uint64_t seed)
{
    return fattn_view_bhsd(there(take_numbers(d->dtype, heads * seq * d->dim, seed, 1)), heads, seq, d->dim);
}

static void *workspace_of(fattn_context *context, const fattn_desc *desc, fattn_op op, size_t *bytes)
{
    assert_ok(fattn_workspace_size(context, desc, op, bytes));
    return there(take(*bytes + 1));
}

static void make_forward(side *s, const fattn_desc *desc, fattn_forward_args *args, uint64_t seed)
{
    *args = (fattn_forward_args){.struct_size = sizeof *args,
                                 .q = tensor(desc, HEADS, desc->seq_q, seed),
                                 .k = tensor(desc, GROUPS, desc->seq_k, seed + 1),
                                 .v = tensor(desc, GROUPS, desc->seq_k, seed + 2),
                                 .out = tensor(desc, HEADS, desc->seq_q, 0),
                                 .lse = there(take_numbers(FATTN_F32, HEADS * desc->seq_q, 0, 0)),
                                 .stream = s->stream};
    args->workspace = workspace_of(s->context, desc, FATTN_OP_FORWARD, &args->workspace_size);
}

static void make_backward(side *s, uint64_t seed)
{
    const fattn_desc *d = &s->desc;
    const fattn_forward_args *f = &s->forward;
    s->backward = (fattn_backward_args){.struct_size = sizeof s->backward,
                                        .q = f->q,
                                        .k = f->k,
                                        .v = f->v,
                                        .out = f->out,
                                        .lse = f->lse,
                                        .dout = tensor(d, HEADS, d->seq_q, seed),
                                        .dq = tensor(d, HEADS, d->seq_q, 0),
                                        .dk = tensor(d, GROUPS, d->seq_k, 0),
                                        .dv = tensor(d, GROUPS, d->seq_k, 0),
                                        .stream = s->stream};
    s->backward.workspace = workspace_of(s->context, d, FATTN_OP_BACKWARD, &s->backward.workspace_size);
}

static void make(side *s, int number, fattn_context *context)
{
    const int64_t seq = shapes[number].seq, dim = shapes[number].dim;
    *s = (side){.context = context,
                .desc = {.struct_size = sizeof s->desc,
                         .dtype = shapes[number].dtype,
                         .mask = FATTN_MASK_CAUSAL,
                         .align = FATTN_ALIGN_BOTTOM_RIGHT,
                         .batch = 1,
                         .heads_q = HEADS,
                         .heads_kv = GROUPS,
                         .seq_q = seq,
                         .seq_k = seq,
                         .dim = dim,
                         .dim_v = dim}};
    s->step_desc = s->desc;
    s->step_desc.seq_q = 1;
    s->step_desc.seq_k = 5 * seq;
    assert_int_equal(gpu_driver()->cuStreamCreate(&s->stream, CU_STREAM_NON_BLOCKING), CUDA_SUCCESS);
    make_forward(s, &s->desc, &s->forward, 10 + 100 * (uint64_t)number);
    make_backward(s, 20 + 100 * (uint64_t)number);
    make_forward(s, &s->step_desc, &s->step, 30 + 100 * (uint64_t)number);
}

/* ------------------------------------------------------------------------------------------------------------- running */

static bool queue(const side *s)
{
    return fattn_forward(s->context, &s->desc, &s->forward) == FATTN_OK &&
           fattn_backward(s->context, &s->desc, &s->backward) == FATTN_OK &&
           fattn_forward(s->context, &s->step_desc, &s->step) == FATTN_OK;
}

/* Queues all several times, and waits. A thread; what went wrong is in s->wrong. */
static void *run(void *arg)
{
    side *s = arg;
    if (s->start)
        pthread_barrier_wait(s->start);
    for (int i = 0; i < QUEUED && !s->wrong[0]; i++)
        if (!queue(s))
            snprintf(s->wrong, sizeof s->wrong, "%s", fattn_last_error());
    if (gpu_driver()->cuStreamSynchronize(s->stream) != CUDA_SUCCESS)
        snprintf(s->wrong, sizeof s->wrong, "the stream failed");
    return NULL;
}

static void run_together(side sides[SIDES])
{
    pthread_barrier_t start;
    pthread_t thread[SIDES];
    assert_int_equal(pthread_barrier_init(&start, NULL, SIDES), 0);
    for (int i = 0; i < SIDES; i++) {
        sides[i].start = &start;
        assert_int_equal(pthread_create(&thread[i], NULL, run, &sides[i]), 0);
    }
    for (int i = 0; i < SIDES; i++)
        assert_int_equal(pthread_join(thread[i], NULL), 0);
    for (int i = 0; i < SIDES; i++) {
        sides[i].start = NULL;
        assert_string_equal(sides[i].wrong, "");
    }
    assert_int_equal(pthread_barrier_destroy(&start), 0);
}

/* What each of them writes alone is what both write together. Workspaces too: nothing else touches them. */
static void compare(fattn_context *first, fattn_context *second)
{
    side sides[SIDES];
    unsigned char *alone = malloc(ARENA_ROOM);
    assert_non_null(alone);
    arena_clear();
    make(&sides[0], 0, first);
    make(&sides[1], 1, second);
    push();
    for (int i = 0; i < SIDES; i++) {
        run(&sides[i]);
        assert_string_equal(sides[i].wrong, "");
    }
    pull();
    memcpy(alone, a.back, ARENA_ROOM);
    assert_memory_not_equal(alone, a.host, ARENA_ROOM); /* something was computed */
    for (int round = 0; round < ROUNDS; round++) {
        push(); /* outputs are as if nothing had run */
        assert_true(gpu_wait(a.gpu));
        run_together(sides);
        pull();
        assert_memory_equal(a.back, alone, ARENA_ROOM);
    }
    for (int i = 0; i < SIDES; i++)
        assert_int_equal(gpu_driver()->cuStreamDestroy(sides[i].stream), CUDA_SUCCESS);
    free(alone);
}

static fattn_context *context_of(const char *kernel)
{
    const fattn_context_options options = {.struct_size = sizeof options, .device = FATTN_DEVICE_CUDA, .kernel = kernel};
    fattn_context *context;
    assert_ok(fattn_context_create(&options, &context));
    return context;
}

static void one_context(void **state)
{
    (void)state;
    needs_gpu();
    compare(a.gpu_context, a.gpu_context);
}

static void two_contexts(void **state)
{
    (void)state;
    needs_gpu();
    fattn_context *other = context_of("");
    compare(a.gpu_context, other);
    fattn_context_destroy(other);
}

/* Kernels that take any options, and those on tensor cores of any GPU, beside each other. */
static void families(void **state)
{
    (void)state;
    needs_gpu();
    fattn_context *exact = context_of("cuda_exact"), *tensor = context_of("cuda_tensor");
    compare(tensor, exact);
    fattn_context_destroy(exact);
    fattn_context_destroy(tensor);
}

/* The baseline, whose products all go through one handle of cuBLAS. */
static void baseline(void **state)
{
    (void)state;
    needs_gpu();
    fattn_context *plain = context_of("cuda_composed");
    size_t bytes;
    const fattn_desc desc = {.struct_size = sizeof desc,
                             .dtype = FATTN_F32,
                             .batch = 1,
                             .heads_q = 1,
                             .heads_kv = 1,
                             .seq_q = 1,
                             .seq_k = 1,
                             .dim = 8,
                             .dim_v = 8};
    const bool absent = fattn_workspace_size(plain, &desc, FATTN_OP_FORWARD, &bytes) == FATTN_ERROR_UNSUPPORTED &&
                        strstr(fattn_last_error(), "needs cuBLAS");
    if (absent)
        print_message("skipped: %s\n", fattn_last_error());
    else
        compare(plain, plain);
    fattn_context_destroy(plain);
    if (absent)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_context), cmocka_unit_test(two_contexts),
                                       cmocka_unit_test(families), cmocka_unit_test(baseline)};
    return cmocka_run_group_tests(tests, arena_open, arena_close);
}
