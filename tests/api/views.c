/*
 * Tensors: which views are refused (missing, misaligned, out of the address space, outputs that overlap), which are not (any
 * strides of inputs, packed tensors), and problems without elements.
 */
#include <math.h>

#include "api.h"

/* The views of both calls, by name. */
typedef struct named {
    const char *name;
    fattn_view *view;
    bool output;
    bool backward;
} named;

enum { VIEWS = 12 };

static void list_views(fixture *f, named list[VIEWS])
{
    const named all[VIEWS] = {
        {"q", &f->forward.q, false, false},    {"k", &f->forward.k, false, false},     {"v", &f->forward.v, false, false},
        {"out", &f->forward.out, true, false}, {"q", &f->backward.q, false, true},     {"k", &f->backward.k, false, true},
        {"v", &f->backward.v, false, true},    {"out", &f->backward.out, false, true}, {"dout", &f->backward.dout, false, true},
        {"dq", &f->backward.dq, true, true},   {"dk", &f->backward.dk, true, true},    {"dv", &f->backward.dv, true, true},
    };
    memcpy(list, all, sizeof all);
}

static fattn_status call(fixture *f, bool backward)
{
    return backward ? fattn_backward(f->context, &f->desc, &f->backward) : fattn_forward(f->context, &f->desc, &f->forward);
}

/* Refused by the view's name. */
static void refused(fixture *f, const named *n, const char *words)
{
    char start[32];
    snprintf(start, sizeof start, "args.%s", n->name);
    assert_refused(f, call(f, n->backward), FATTN_ERROR_ARGUMENT, words);
    assert_non_null(strstr(fattn_last_error(), start));
}

static void pointers(void **state)
{
    fixture f;
    named all[VIEWS];
    (void)state;
    fixture_make(&f, FATTN_F64, NULL);
    list_views(&f, all);
    for (int i = 0; i < VIEWS; i++) {
        fattn_view *view = all[i].view;
        const fattn_view before = *view;
        view->data = NULL;
        refused(&f, &all[i], ".data is NULL");
        for (int shift = 1; shift < 8; shift += 3) {
            view->data = (char *)before.data + shift;
            refused(&f, &all[i], "not aligned");
        }
        *view = before;
    }
    f.forward.lse = (char *)f.forward.lse + 4;
    assert_refused(&f, call(&f, false), FATTN_ERROR_ARGUMENT, "args.lse");
    f.backward.lse = (const char *)f.backward.lse + 2;
    assert_refused(&f, call(&f, true), FATTN_ERROR_ARGUMENT, "args.lse");
    fixture_free(&f);
}

static void strides_that_leave_the_address_space(void **state)
{
    static const int64_t strides[] = {INT64_MAX, INT64_MIN, INT64_MAX / 8, INT64_MIN / 8, INT64_MAX / 16, INT64_MIN / 16};
    fixture f;
    named all[VIEWS];
    (void)state;
    fixture_make(&f, FATTN_F64, NULL);
    list_views(&f, all);
    for (int i = 0; i < VIEWS; i++)
        for (size_t s = 0; s < sizeof strides / sizeof *strides; s++) {
            const fattn_view before = *all[i].view;
            all[i].view->stride_batch = strides[s];
            refused(&f, &all[i], "address");
            *all[i].view = before;
            all[i].view->stride_head = strides[s];
            refused(&f, &all[i], "address");
            *all[i].view = before;
            all[i].view->stride_row = strides[s];
            refused(&f, &all[i], "address");
            *all[i].view = before;
        }
    fixture_free(&f);
}

static void outputs_that_overlap_themselves(void **state)
{
    fixture f;
    named all[VIEWS];
    (void)state;
    fixture_make(&f, FATTN_F32, NULL);
    list_views(&f, all);
    for (int i = 0; i < VIEWS; i++) {
        if (!all[i].output)
            continue;
        const fattn_view before = *all[i].view;
        all[i].view->stride_row = 0;
        refused(&f, &all[i], "stride_row is 0");
        *all[i].view = before;
        all[i].view->stride_head = 0;
        refused(&f, &all[i], "stride_head is 0");
        *all[i].view = before;
        all[i].view->stride_batch = 0;
        refused(&f, &all[i], "stride_batch is 0");
        *all[i].view = before;
        all[i].view->stride_row -= 1;
        refused(&f, &all[i], "overlaps itself");
        all[i].view->stride_row = -all[i].view->stride_row;
        refused(&f, &all[i], "overlaps itself");
        *all[i].view = before;
        all[i].view->stride_head -= 1;
        refused(&f, &all[i], "overlaps itself");
        *all[i].view = before;
        all[i].view->stride_batch = before.stride_head;
        refused(&f, &all[i], "overlaps itself");
        *all[i].view = before;
    }
    fixture_free(&f);
}

/* Outputs over inputs, over each other, over lse and the workspace. */
static void outputs_that_overlap_others(void **state)
{
    fixture f;
    named all[VIEWS];
    (void)state;
    fixture_make(&f, FATTN_F32, NULL);
    list_views(&f, all);
    for (int i = 0; i < VIEWS; i++)
        for (int j = 0; j < VIEWS; j++) {
            if (i == j || !all[i].output || all[i].backward != all[j].backward)
                continue;
            const fattn_view before = *all[i].view;
            for (int shift = -2; shift <= 2; shift++) {
                all[i].view->data = (float *)all[j].view->data + shift;
                refused(&f, &all[i], "overlaps args.");
            }
            *all[i].view = before;
        }
    f.forward.lse = f.forward.q.data;
    assert_refused(&f, call(&f, false), FATTN_ERROR_ARGUMENT, "args.lse");
    f.forward.lse = (float *)f.forward.out.data + 7;
    assert_refused(&f, call(&f, false), FATTN_ERROR_ARGUMENT, "args.lse");
    f.backward.dq.data = (void *)(uintptr_t)f.backward.lse;
    assert_refused(&f, call(&f, true), FATTN_ERROR_ARGUMENT, "overlaps args.lse");
    f.backward.dq.data = f.backward.workspace;
    if (f.backward.workspace_size > 0)
        assert_refused(&f, call(&f, true), FATTN_ERROR_ARGUMENT, "overlaps args.workspace");
    fixture_free(&f);
}

static void workspace_over_an_input(void **state)
{
    fixture f;
    (void)state;
    fixture_make(&f, FATTN_F32, "ref");
    void *own = f.forward.workspace;
    const size_t bytes = f.forward.workspace_size + sizeof f.q;
    double *memory = malloc(bytes);
    assert_non_null(memory);
    memcpy(memory, f.q, sizeof f.q);
    f.forward.q.data = memory;
    f.forward.workspace = memory;
    f.forward.workspace_size = bytes;
    assert_refused(&f, call(&f, false), FATTN_ERROR_ARGUMENT, "args.workspace");
    free(memory);
    f.forward.workspace = own;
    fixture_free(&f);
}

/* ------------------------------------------------------------------------------------------------------- valid layouts */

static void same(const float *a, const fattn_view *va, const float *b, const fattn_view *vb, int heads, int rows, int dim)
{
    for (int h = 0; h < BATCH * heads; h++)
        for (int i = 0; i < rows; i++)
            assert_memory_equal(a + h / heads * va->stride_batch + h % heads * va->stride_head + i * va->stride_row,
                                b + h / heads * vb->stride_batch + h % heads * vb->stride_head + i * vb->stride_row,
                                (size_t)dim * sizeof(float));
}

static void copy(float *to, const fattn_view *vt, const float *from, const fattn_view *vf, int heads, int rows, int dim)
{
    for (int h = 0; h < BATCH * heads; h++)
        for (int i = 0; i < rows; i++)
            memcpy(to + h / heads * vt->stride_batch + h % heads * vt->stride_head + i * vt->stride_row,
                   from + h / heads * vf->stride_batch + h % heads * vf->stride_head + i * vf->stride_row,
                   (size_t)dim * sizeof(float));
}

/* q, k, v of one token side by side, and their gradients likewise; the results are those of separate tensors. */
static void packed(void **state)
{
    enum { TOKEN = HEADS_Q * DIM + HEADS_KV * (DIM + DIM_V), S = SEQ_Q };
    static float qkv[BATCH * S * TOKEN], dqkv[BATCH * S * TOKEN];
    fixture f;
    (void)state;
    fixture_make(&f, FATTN_F32, NULL);
    f.desc.seq_k = S; /* the keys beyond are not used */
    fattn_view *plain[3] = {&f.forward.q, &f.forward.k, &f.forward.v};
    const int heads[3] = {HEADS_Q, HEADS_KV, HEADS_KV}, dim[3] = {DIM, DIM, DIM_V};
    const int start[3] = {0, HEADS_Q * DIM, HEADS_Q * DIM + HEADS_KV * DIM};
    fattn_view view[3], gradient[3];
    for (int t = 0; t < 3; t++) {
        view[t] = (fattn_view){qkv + start[t], S * TOKEN, dim[t], TOKEN};
        gradient[t] = (fattn_view){dqkv + start[t], S * TOKEN, dim[t], TOKEN};
        copy(view[t].data, &view[t], plain[t]->data, plain[t], heads[t], S, dim[t]);
    }
    size_t bytes[2];
    for (int op = 1; op <= 2; op++)
        assert_int_equal(fattn_workspace_size(f.context, &f.desc, (fattn_op)op, &bytes[op - 1]), FATTN_OK);
    assert_true(bytes[0] <= f.forward.workspace_size && bytes[1] <= f.backward.workspace_size);
    f.backward.dk.stride_head = S * DIM, f.backward.dk.stride_batch = HEADS_KV * S * DIM;
    f.backward.dv.stride_head = S * DIM_V, f.backward.dv.stride_batch = HEADS_KV * S * DIM_V;

    assert_int_equal(call(&f, false), FATTN_OK);
    memcpy(f.saved_out, f.out.data, sizeof f.saved_out);
    memcpy(f.saved_lse, f.lse.data, sizeof f.saved_lse);
    assert_int_equal(call(&f, true), FATTN_OK);
    fattn_forward_args forward = f.forward;
    forward.q = view[0], forward.k = view[1], forward.v = view[2];
    assert_int_equal(fattn_forward(f.context, &f.desc, &forward), FATTN_OK);
    assert_memory_equal(f.out.data, f.saved_out, Q_ROWS * DIM_V * sizeof(float));
    fattn_backward_args backward = f.backward;
    backward.q = view[0], backward.k = view[1], backward.v = view[2];
    backward.dq = gradient[0], backward.dk = gradient[1], backward.dv = gradient[2];
    assert_int_equal(fattn_backward(f.context, &f.desc, &backward), FATTN_OK);
    same(backward.dq.data, &backward.dq, f.backward.dq.data, &f.backward.dq, HEADS_Q, S, DIM);
    same(backward.dk.data, &backward.dk, f.backward.dk.data, &f.backward.dk, HEADS_KV, S, DIM);
    same(backward.dv.data, &backward.dv, f.backward.dv.data, &f.backward.dv, HEADS_KV, S, DIM_V);

    backward.dk.data = (float *)backward.dq.data + 1; /* the same layout, but one tensor within the other's rows */
    assert_int_equal(fattn_backward(f.context, &f.desc, &backward), FATTN_ERROR_ARGUMENT);
    fixture_free(&f);
}

/* Outputs with rows last to first, heads between rows, and room between everything. */
static void outputs_in_any_order(void **state)
{
    static float room[4096];
    fixture f;
    (void)state;
    fixture_make(&f, FATTN_F32, NULL);
    const fattn_view views[] = {
        {room + (SEQ_Q - 1) * DIM_V, HEADS_Q * SEQ_Q * DIM_V, SEQ_Q * DIM_V, -DIM_V},
        {room + 2000, -HEADS_Q * SEQ_Q * DIM_V, DIM_V, HEADS_Q * DIM_V},
        {room, DIM_V + 1, 3 * DIM_V, 7 * HEADS_Q * DIM_V},
    };
    for (size_t i = 0; i < sizeof views / sizeof *views; i++) {
        f.forward.out = views[i];
        assert_int_equal(call(&f, false), FATTN_OK);
        const fattn_view plain = fattn_view_bhsd(f.saved_out, HEADS_Q, SEQ_Q, DIM_V);
        same(views[i].data, &views[i], plain.data, &plain, HEADS_Q, SEQ_Q, DIM_V);
    }
    fixture_free(&f);
}

/* Inputs may repeat themselves: one key for all rows gives its value. */
static void broadcast_inputs(void **state)
{
    fixture f;
    (void)state;
    fixture_make(&f, FATTN_F32, NULL);
    f.forward.v.stride_batch = f.forward.v.stride_head = f.forward.v.stride_row = 0;
    f.forward.k.stride_row = -1;
    f.forward.k.data = (float *)f.forward.k.data + SEQ_K;
    assert_int_equal(call(&f, false), FATTN_OK);
    const float *out = (const float *)(void *)f.out.data, *v = f.forward.v.data;
    for (int i = 0; i < Q_ROWS * DIM_V; i++)
        assert_true(fabsf(out[i] - v[i % DIM_V]) <= 1e-6f);
    fixture_free(&f);
}

/* ---------------------------------------------------------------------------------------------------------- no elements */

static void is_zero(const output *o, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        assert_int_equal(o->data[i], 0);
    assert_guarded(o, bytes);
}

static void no_keys(void **state)
{
    static const int32_t dtypes[] = {FATTN_F32, FATTN_F64};
    (void)state;
    for (int t = 0; t < 2; t++) {
        const size_t size = dtypes[t] == FATTN_F64 ? 8 : 4;
        fixture f;
        fixture_make(&f, dtypes[t], NULL);
        f.desc.seq_k = 0;
        f.forward.k.data = f.forward.v.data = f.backward.k.data = f.backward.v.data = NULL;
        f.backward.dk.data = f.backward.dv.data = NULL;
        assert_int_equal(call(&f, false), FATTN_OK);
        is_zero(&f.out, Q_ROWS * DIM_V * size);
        for (int i = 0; i < Q_ROWS; i++)
            assert_true((size == 8 ? ((double *)(void *)f.lse.data)[i] : (double)((float *)(void *)f.lse.data)[i]) ==
                        -(double)INFINITY);
        assert_guarded(&f.lse, Q_ROWS * size);
        assert_int_equal(call(&f, true), FATTN_OK);
        is_zero(&f.dq, Q_ROWS * DIM * size);
        assert_guarded(&f.dk, 0);
        assert_guarded(&f.dv, 0);
        fixture_free(&f);
    }
}

static void no_queries(void **state)
{
    fixture f;
    (void)state;
    fixture_make(&f, FATTN_F32, NULL);
    f.desc.seq_q = 0;
    f.forward.q.data = f.forward.out.data = f.backward.q.data = f.backward.out.data = NULL;
    f.backward.dout.data = f.backward.dq.data = NULL;
    f.forward.lse = NULL;
    f.backward.lse = NULL;
    assert_int_equal(call(&f, false), FATTN_OK);
    assert_int_equal(call(&f, true), FATTN_OK);
    is_zero(&f.dk, K_ROWS * DIM * sizeof(float));
    is_zero(&f.dv, K_ROWS * DIM_V * sizeof(float));
    assert_guarded(&f.dq, 0);
    fixture_free(&f);
}

static void no_batch(void **state)
{
    static const fattn_view none = {NULL, 0, 0, 0};
    fixture f;
    (void)state;
    fixture_make(&f, FATTN_F32, NULL);
    f.desc.batch = 0;
    const fattn_forward_args forward = {
        .struct_size = sizeof forward, .q = none, .k = none, .v = none, .out = none, .kernel = &f.kernel};
    const fattn_backward_args backward = {.struct_size = sizeof backward, .q = none, .kernel = &f.kernel};
    assert_int_equal(fattn_forward(f.context, &f.desc, &forward), FATTN_OK);
    assert_int_equal(fattn_backward(f.context, &f.desc, &backward), FATTN_OK);
    for (int op = 1; op <= 2; op++) {
        size_t bytes = 1;
        assert_int_equal(fattn_workspace_size(f.context, &f.desc, (fattn_op)op, &bytes), FATTN_OK);
        assert_int_equal(bytes, 0);
    }
    f.kernel = "untouched";
    assert_untouched(&f);
    fixture_free(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pointers),
        cmocka_unit_test(strides_that_leave_the_address_space),
        cmocka_unit_test(outputs_that_overlap_themselves),
        cmocka_unit_test(outputs_that_overlap_others),
        cmocka_unit_test(workspace_over_an_input),
        cmocka_unit_test(packed),
        cmocka_unit_test(outputs_in_any_order),
        cmocka_unit_test(broadcast_inputs),
        cmocka_unit_test(no_keys),
        cmocka_unit_test(no_queries),
        cmocka_unit_test(no_batch),
    };
    return cmocka_run_group_tests_name("views", tests, NULL, NULL);
}
