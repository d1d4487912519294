/*
 * Calls on a stream of their own, captured in a graph: nothing in them allocates or waits, and the graph gives the bits of
 * plain calls, each time that it is launched.
 */
#include "arena.h"
#include "gpu/driver.h"

enum { HEADS = 2, LONG = 70, WIDE = 32, ELEMENTS = HEADS * LONG * WIDE };

/* Forward and the backward behind it; pointers to the GPU. */
typedef struct call {
    fattn_desc desc;
    fattn_forward_args forward;
    fattn_backward_args backward;
} call;

static fattn_view tensor(int32_t dtype, uint64_t seed)
{
    return fattn_view_bhsd(there(take_numbers(dtype, ELEMENTS, seed, 1)), HEADS, LONG, WIDE);
}

/* Draws a call's tensors anew: the same numbers each time, and outputs that nothing has written. rows: of the queries. */
static call make(int32_t dtype, int64_t rows)
{
    call c = {.desc = {.struct_size = sizeof c.desc,
                       .dtype = dtype,
                       .mask = FATTN_MASK_CAUSAL,
                       .batch = 1,
                       .heads_q = HEADS,
                       .heads_kv = HEADS,
                       .seq_q = rows,
                       .seq_k = LONG,
                       .dim = WIDE,
                       .dim_v = WIDE,
                       .softcap = rows < LONG ? 20 : 0}}; /* which tiles of whole warpgroups refuse, so that cuda_decode runs */
    size_t bytes;
    arena_clear();
    c.forward = (fattn_forward_args){.struct_size = sizeof c.forward,
                                     .q = tensor(dtype, 1),
                                     .k = tensor(dtype, 2),
                                     .v = tensor(dtype, 3),
                                     .out = tensor(dtype, 0),
                                     .lse = there(take_numbers(FATTN_F32, HEADS * LONG, 0, 0)),
                                     .stream = gpu_stream(a.gpu)};
    c.backward = (fattn_backward_args){.struct_size = sizeof c.backward,
                                       .q = c.forward.q,
                                       .k = c.forward.k,
                                       .v = c.forward.v,
                                       .out = c.forward.out,
                                       .lse = c.forward.lse,
                                       .dout = tensor(dtype, 4),
                                       .dq = tensor(dtype, 0),
                                       .dk = tensor(dtype, 0),
                                       .dv = tensor(dtype, 0),
                                       .stream = gpu_stream(a.gpu)};
    assert_ok(fattn_workspace_size(a.gpu_context, &c.desc, FATTN_OP_FORWARD, &bytes));
    c.forward.workspace = there(take(bytes + 1));
    c.forward.workspace_size = bytes;
    assert_ok(fattn_workspace_size(a.gpu_context, &c.desc, FATTN_OP_BACKWARD, &bytes));
    c.backward.workspace = there(take(bytes + 1));
    c.backward.workspace_size = bytes;
    push();
    return c;
}

static void run(const call *c)
{
    assert_ok(fattn_forward(a.gpu_context, &c->desc, &c->forward));
    assert_ok(fattn_backward(a.gpu_context, &c->desc, &c->backward));
}

static CUgraphExec capture(const call *c)
{
    const gpu_driver_calls *cu = gpu_driver();
    CUgraph graph;
    CUgraphExec ready;
    assert_int_equal(cu->cuStreamBeginCapture(c->forward.stream, CU_STREAM_CAPTURE_MODE_GLOBAL), CUDA_SUCCESS);
    run(c);
    assert_int_equal(cu->cuStreamEndCapture(c->forward.stream, &graph), CUDA_SUCCESS);
    assert_int_equal(cu->cuGraphInstantiateWithFlags(&ready, graph, 0), CUDA_SUCCESS);
    assert_int_equal(cu->cuGraphDestroy(graph), CUDA_SUCCESS);
    return ready;
}

static void compare(int32_t dtype, int64_t rows)
{
    const gpu_driver_calls *cu = gpu_driver();
    call c = make(dtype, rows);
    run(&c);
    pull();
    unsigned char *plain = malloc(ARENA_ROOM);
    assert_non_null(plain);
    memcpy(plain, a.back, ARENA_ROOM);
    assert_memory_not_equal(plain, a.host, ARENA_ROOM); /* something was computed */
    CUgraphExec graph = capture(&c);
    for (int again = 0; again < 2; again++) {
        push(); /* outputs are as if nothing had run */
        assert_int_equal(cu->cuGraphLaunch(graph, c.forward.stream), CUDA_SUCCESS);
        pull();
        assert_memory_equal(a.back, plain, ARENA_ROOM);
    }
    assert_int_equal(cu->cuGraphExecDestroy(graph), CUDA_SUCCESS);
    free(plain);
}

static void single(void **state)
{
    (void)state;
    needs_gpu();
    compare(FATTN_F32, LONG);
}

static void narrow(void **state)
{
    (void)state;
    needs_gpu();
    compare(FATTN_BF16, LONG);
}

static void few_rows(void **state)
{
    (void)state;
    needs_gpu();
    compare(FATTN_BF16, 3);
}

/* The baseline, whose products are cuBLAS's. */
static void composed(void **state)
{
    const fattn_context_options options = {
        .struct_size = sizeof options, .device = FATTN_DEVICE_CUDA, .kernel = "cuda_composed"};
    fattn_context *const plain = a.gpu_context;
    size_t bytes;
    (void)state;
    needs_gpu();
    const fattn_desc desc = make(FATTN_BF16, LONG).desc;
    assert_ok(fattn_context_create(&options, &a.gpu_context));
    const bool can_run = fattn_workspace_size(a.gpu_context, &desc, FATTN_OP_FORWARD, &bytes) == FATTN_OK;
    if (can_run)
        compare(FATTN_BF16, LONG);
    fattn_context_destroy(a.gpu_context);
    a.gpu_context = plain;
    if (!can_run)
        skip();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(single), cmocka_unit_test(narrow), cmocka_unit_test(few_rows),
                                       cmocka_unit_test(composed)};
    return cmocka_run_group_tests(tests, arena_open, arena_close);
}
