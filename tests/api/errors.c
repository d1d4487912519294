/*
 * Every call refuses what makes no sense and what is not supported, by the name of the field, and then has written nothing.
 * views.c has the tensors, features.c what optional arguments must be.
 */
#include <float.h>
#include <math.h>

#include "api.h"

/* One field of desc set to a value. */
typedef struct spoiled {
    const char *words; /* of the message */
    fattn_status status;
    size_t offset;
    enum { I32, I64, F64 } type;
    double number;
} spoiled;

#define FIELD(name, type) offsetof(fattn_desc, name), type

static const spoiled spoiled_descs[] = {
    {"desc.dtype is 0", FATTN_ERROR_ARGUMENT, FIELD(dtype, I32), 0},
    {"desc.dtype is 5", FATTN_ERROR_ARGUMENT, FIELD(dtype, I32), 5},
    {"desc.dtype is -1", FATTN_ERROR_ARGUMENT, FIELD(dtype, I32), -1},
    {"desc.out_dtype is 5", FATTN_ERROR_ARGUMENT, FIELD(out_dtype, I32), 5},
    {"desc.out_dtype is -1", FATTN_ERROR_ARGUMENT, FIELD(out_dtype, I32), -1},
    {"desc.out_dtype is 2", FATTN_ERROR_UNSUPPORTED, FIELD(out_dtype, I32), FATTN_F64},
    {"desc.out_dtype is 4", FATTN_ERROR_UNSUPPORTED, FIELD(out_dtype, I32), FATTN_BF16},
    {"desc.kv_dtype is 6", FATTN_ERROR_ARGUMENT, FIELD(kv_dtype, I32), 6},
    {"desc.kv_dtype is -1", FATTN_ERROR_ARGUMENT, FIELD(kv_dtype, I32), -1},
    {"desc.kv_dtype is 2", FATTN_ERROR_UNSUPPORTED, FIELD(kv_dtype, I32), FATTN_F64},
    {"desc.kv_dtype is 3", FATTN_ERROR_UNSUPPORTED, FIELD(kv_dtype, I32), FATTN_F16},
    {"desc.grad_dtype is 5", FATTN_ERROR_ARGUMENT, FIELD(grad_dtype, I32), FATTN_I8},
    {"desc.grad_dtype is -1", FATTN_ERROR_ARGUMENT, FIELD(grad_dtype, I32), -1},
    {"desc.grad_dtype is 2", FATTN_ERROR_UNSUPPORTED, FIELD(grad_dtype, I32), FATTN_F64},
    {"desc.grad_dtype is 4", FATTN_ERROR_UNSUPPORTED, FIELD(grad_dtype, I32), FATTN_BF16},
    {"desc.mask is 7", FATTN_ERROR_ARGUMENT, FIELD(mask, I32), 7},
    {"desc.mask_size is 0, less than 1", FATTN_ERROR_ARGUMENT, FIELD(mask, I32), FATTN_MASK_CHUNKED},
    {"desc.mask_size is 1, but desc.mask is 1", FATTN_ERROR_ARGUMENT, FIELD(mask_size, I64), 1},
    {"desc.mask_size is -1", FATTN_ERROR_ARGUMENT, FIELD(mask_size, I64), -1},
    {"desc.mask is -1", FATTN_ERROR_ARGUMENT, FIELD(mask, I32), -1},
    {"desc.align is 2", FATTN_ERROR_ARGUMENT, FIELD(align, I32), 2},
    {"desc.align is -1", FATTN_ERROR_ARGUMENT, FIELD(align, I32), -1},
    {"desc.flags is 0x80", FATTN_ERROR_ARGUMENT, FIELD(flags, I32), 0x80},
    {"desc.flags is 0x80000000", FATTN_ERROR_ARGUMENT, FIELD(flags, I32), INT32_MIN},
    {"FATTN_WITH_DBIAS without FATTN_WITH_BIAS", FATTN_ERROR_ARGUMENT, FIELD(flags, I32), FATTN_WITH_DBIAS},
    {"FATTN_WITH_DSINKS without FATTN_WITH_SINKS", FATTN_ERROR_ARGUMENT, FIELD(flags, I32), FATTN_WITH_DSINKS},
    {"desc.batch is -1", FATTN_ERROR_ARGUMENT, FIELD(batch, I64), -1},
    {"desc.heads_q is 0", FATTN_ERROR_ARGUMENT, FIELD(heads_q, I64), 0},
    {"desc.heads_q is -4", FATTN_ERROR_ARGUMENT, FIELD(heads_q, I64), -4},
    {"desc.heads_q is 3, not a multiple of desc.heads_kv, 2", FATTN_ERROR_ARGUMENT, FIELD(heads_q, I64), 3},
    {"desc.heads_kv is 0", FATTN_ERROR_ARGUMENT, FIELD(heads_kv, I64), 0},
    {"not a multiple of desc.heads_kv, 8", FATTN_ERROR_ARGUMENT, FIELD(heads_kv, I64), 8},
    {"desc.seq_q is -1", FATTN_ERROR_ARGUMENT, FIELD(seq_q, I64), -1},
    {"desc.seq_k is -1", FATTN_ERROR_ARGUMENT, FIELD(seq_k, I64), -1},
    {"desc.dim is 0", FATTN_ERROR_ARGUMENT, FIELD(dim, I64), 0},
    {"desc.dim is 513", FATTN_ERROR_ARGUMENT, FIELD(dim, I64), 513},
    {"desc.dim_v is 0", FATTN_ERROR_ARGUMENT, FIELD(dim_v, I64), 0},
    {"desc.dim_v is 513", FATTN_ERROR_ARGUMENT, FIELD(dim_v, I64), 513},
    {"desc.batch * desc.heads_q * desc.seq_q", FATTN_ERROR_ARGUMENT, FIELD(batch, I64), 0x1p62},
    {"desc.batch * desc.heads_q * desc.seq_q", FATTN_ERROR_ARGUMENT, FIELD(heads_q, I64), 0x1p60},
    {"desc.batch * desc.heads_q * desc.seq_q", FATTN_ERROR_ARGUMENT, FIELD(seq_q, I64), 0x1p60},
    {"desc.batch * desc.heads_kv * desc.seq_k", FATTN_ERROR_ARGUMENT, FIELD(seq_k, I64), 0x1p48},
    {"desc.batch * desc.heads_q * desc.total_q", FATTN_ERROR_ARGUMENT, FIELD(total_q, I64), 0x1p48},
    {"desc.batch * desc.heads_kv * desc.total_k", FATTN_ERROR_ARGUMENT, FIELD(total_k, I64), 0x1p60},
    {"desc.pages * desc.heads_kv * desc.page_size", FATTN_ERROR_ARGUMENT, FIELD(page_size, I64), 0x1p48},
    {"desc.pages * desc.heads_kv * desc.page_size", FATTN_ERROR_ARGUMENT, FIELD(pages, I64), 0x1p62},
    {"desc.total_q is -1", FATTN_ERROR_ARGUMENT, FIELD(total_q, I64), -1},
    {"desc.total_k is -1", FATTN_ERROR_ARGUMENT, FIELD(total_k, I64), -1},
    {"desc.page_size is -1", FATTN_ERROR_ARGUMENT, FIELD(page_size, I64), -1},
    {"desc.pages is -1", FATTN_ERROR_ARGUMENT, FIELD(pages, I64), -1},
    {"desc.pages is 3, but desc.page_size is 0", FATTN_ERROR_ARGUMENT, FIELD(pages, I64), 3},
    {"desc.window_left and window_right are 1 and 0", FATTN_ERROR_ARGUMENT, FIELD(window_left, I64), 1},
    {"desc.window_left and window_right are 0 and -1", FATTN_ERROR_ARGUMENT, FIELD(window_right, I64), -1},
    {"desc.scale is nan", FATTN_ERROR_ARGUMENT, FIELD(scale, F64), NAN},
    {"desc.scale is inf", FATTN_ERROR_ARGUMENT, FIELD(scale, F64), INFINITY},
    {"desc.scale is -inf", FATTN_ERROR_ARGUMENT, FIELD(scale, F64), -INFINITY},
    {"desc.scale is 1e+300", FATTN_ERROR_ARGUMENT, FIELD(scale, F64), 1e300},
    {"desc.softcap is -1", FATTN_ERROR_ARGUMENT, FIELD(softcap, F64), -1},
    {"desc.softcap is nan", FATTN_ERROR_ARGUMENT, FIELD(softcap, F64), NAN},
    {"desc.softcap is inf", FATTN_ERROR_ARGUMENT, FIELD(softcap, F64), INFINITY},
    {"desc.softcap is 1e-39, below the smallest", FATTN_ERROR_ARGUMENT, FIELD(softcap, F64), 1e-39},
    {"desc.dropout is 1", FATTN_ERROR_ARGUMENT, FIELD(dropout, F64), 1},
    {"desc.dropout is -0.5", FATTN_ERROR_ARGUMENT, FIELD(dropout, F64), -0.5},
    {"desc.dropout is nan", FATTN_ERROR_ARGUMENT, FIELD(dropout, F64), NAN},
    {"desc.seed is 7", FATTN_ERROR_ARGUMENT, FIELD(seed, I64), 7},
};

static fattn_desc spoil(fattn_desc desc, const spoiled *s)
{
    const int32_t i32 = (int32_t)(s->type == I32 ? s->number : 0);
    const int64_t i64 = (int64_t)(s->type == I64 ? s->number : 0);
    unsigned char *field = (unsigned char *)&desc + s->offset;
    if (s->type == I32)
        memcpy(field, &i32, sizeof i32);
    else if (s->type == I64)
        memcpy(field, &i64, sizeof i64);
    else
        memcpy(field, &s->number, sizeof s->number);
    return desc;
}

/* Every call that takes a descriptor refuses this one. */
static void refused_everywhere(fixture *f, const fattn_desc *desc, fattn_status status, const char *words)
{
    size_t bytes = 12345;
    int64_t lo = 77, hi = 78;
    fattn_kernel_info info = {.struct_size = sizeof info, .name = "untouched"};
    for (int op = FATTN_OP_FORWARD; op <= FATTN_OP_BACKWARD; op++) {
        assert_refused(f, fattn_workspace_size(f->context, desc, (fattn_op)op, &bytes), status, words);
        assert_refused(f, fattn_kernel_query(f->context, desc, (fattn_op)op, 0, &info), status, words);
    }
    assert_refused(f, fattn_mask_interval(desc, 0, &lo, &hi), status, words);
    assert_refused(f, fattn_forward(f->context, desc, &f->forward), status, words);
    assert_refused(f, fattn_backward(f->context, desc, &f->backward), status, words);
    assert_true(bytes == 12345 && lo == 77 && hi == 78);
    assert_string_equal(info.name, "untouched");
}

static void fields_of_desc(void **state)
{
    fixture f;
    (void)state;
    fixture_make(&f, FATTN_F32, NULL);
    for (size_t i = 0; i < sizeof spoiled_descs / sizeof *spoiled_descs; i++) {
        const fattn_desc desc = spoil(f.desc, &spoiled_descs[i]);
        refused_everywhere(&f, &desc, spoiled_descs[i].status, spoiled_descs[i].words);
    }
    refused_everywhere(&f, NULL, FATTN_ERROR_ARGUMENT, "desc is NULL");
    fixture_free(&f);
}

static void windows(void **state)
{
    fixture f;
    (void)state;
    fixture_make(&f, FATTN_F32, NULL);
    f.desc.mask = FATTN_MASK_WINDOW;
    f.desc.window_left = -2;
    refused_everywhere(&f, &f.desc, FATTN_ERROR_ARGUMENT, "desc.window_left is -2");
    f.desc.window_left = INT64_MAX;
    f.desc.window_right = INT64_MIN;
    refused_everywhere(&f, &f.desc, FATTN_ERROR_ARGUMENT, "desc.window_right is -9223372036854775808");
    f.desc.window_right = -1;
    assert_int_equal(fattn_forward(f.context, &f.desc, &f.forward), FATTN_OK);
    fixture_free(&f);
}

/* Fields that another field rules out. */
static void fields_that_disagree(void **state)
{
    fixture f;
    (void)state;
    fixture_make(&f, FATTN_F32, NULL);
    const fattn_desc before = f.desc;
    f.desc.mask = FATTN_MASK_DOCUMENT;
    f.desc.window_left = -2;
    refused_everywhere(&f, &f.desc, FATTN_ERROR_ARGUMENT, "desc.window_left is -2");
    f.desc = before;
    f.desc.mask = FATTN_MASK_PREFIX;
    f.desc.mask_size = -1;
    refused_everywhere(&f, &f.desc, FATTN_ERROR_ARGUMENT, "desc.mask_size is -1");
    f.desc.window_right = 1;
    refused_everywhere(&f, &f.desc, FATTN_ERROR_ARGUMENT, "desc.window_left and window_right");
    f.desc = before;
    f.desc.page_size = 4;
    f.desc.pages = 9;
    f.desc.total_k = 14;
    refused_everywhere(&f, &f.desc, FATTN_ERROR_ARGUMENT, "k and v are either paged or packed");
    f.desc = before;
    f.desc.dtype = FATTN_F64;
    f.desc.kv_dtype = FATTN_I8;
    refused_everywhere(&f, &f.desc, FATTN_ERROR_UNSUPPORTED, "desc.kv_dtype is 5 and desc.dtype 2");
    f.desc = before;
    f.desc.dtype = FATTN_F16;
    f.desc.out_dtype = FATTN_BF16;
    refused_everywhere(&f, &f.desc, FATTN_ERROR_UNSUPPORTED, "desc.out_dtype is 4 and desc.dtype 3");
    f.desc = before;
    f.desc.dropout = 0.5;
    f.desc.heads_q = f.desc.heads_kv = (int64_t)1 << 33;
    f.desc.seq_q = f.desc.seq_k = 1;
    refused_everywhere(&f, &f.desc, FATTN_ERROR_UNSUPPORTED, "desc.dropout is 0.5");
    fixture_free(&f);
}

static void dtype_that_fits_what_is_large(void **state)
{
    fixture f;
    (void)state;
    fixture_make(&f, FATTN_F64, NULL);
    f.desc.scale = 1e300; /* only floats cannot hold it */
    f.desc.out_dtype = FATTN_F64;
    assert_int_equal(fattn_forward(f.context, &f.desc, &f.forward), FATTN_OK);
    fixture_free(&f);
}

/* ---------------------------------------------------------------------------------------------------------- arguments */

/* features.c has the pointers that come with a feature. */
static void reserved_and_stream(void **state)
{
    fixture f;
    int something = 0;
    (void)state;
    fixture_make(&f, FATTN_F32, NULL);
    f.forward.stream = f.backward.stream = &something;
    assert_refused(&f, fattn_forward(f.context, &f.desc, &f.forward), FATTN_ERROR_ARGUMENT, "args.stream is not NULL");
    assert_refused(&f, fattn_backward(f.context, &f.desc, &f.backward), FATTN_ERROR_ARGUMENT, "args.stream is not NULL");
    f.forward.stream = f.backward.stream = NULL;
    f.forward.reserved = 1;
    assert_refused(&f, fattn_forward(f.context, &f.desc, &f.forward), FATTN_ERROR_ARGUMENT, "args.reserved is 1");
    f.backward.reserved = 2;
    assert_refused(&f, fattn_backward(f.context, &f.desc, &f.backward), FATTN_ERROR_ARGUMENT, "args.reserved is 2");
    fixture_free(&f);
}

static void null_pointers(void **state)
{
    fixture f;
    size_t bytes = 1;
    int64_t row = 1;
    (void)state;
    fixture_make(&f, FATTN_F32, NULL);
    assert_refused(&f, fattn_forward(NULL, &f.desc, &f.forward), FATTN_ERROR_ARGUMENT, "context is NULL");
    assert_refused(&f, fattn_forward(f.context, &f.desc, NULL), FATTN_ERROR_ARGUMENT, "args is NULL");
    assert_refused(&f, fattn_backward(NULL, &f.desc, &f.backward), FATTN_ERROR_ARGUMENT, "context is NULL");
    assert_refused(&f, fattn_backward(f.context, &f.desc, NULL), FATTN_ERROR_ARGUMENT, "args is NULL");
    assert_refused(&f, fattn_workspace_size(NULL, &f.desc, FATTN_OP_FORWARD, &bytes), FATTN_ERROR_ARGUMENT, "context is NULL");
    assert_refused(&f, fattn_workspace_size(f.context, &f.desc, FATTN_OP_FORWARD, NULL), FATTN_ERROR_ARGUMENT, "bytes is NULL");
    assert_refused(&f, fattn_kernel_query(f.context, &f.desc, FATTN_OP_FORWARD, 0, NULL), FATTN_ERROR_ARGUMENT, "info is NULL");
    assert_refused(&f, fattn_context_query(f.context, NULL), FATTN_ERROR_ARGUMENT, "info is NULL");
    assert_refused(&f, fattn_context_query(NULL, NULL), FATTN_ERROR_ARGUMENT, "context is NULL");
    assert_refused(&f, fattn_context_create(NULL, NULL), FATTN_ERROR_ARGUMENT, "context is NULL");
    assert_refused(&f, fattn_mask_interval(&f.desc, 0, NULL, &row), FATTN_ERROR_ARGUMENT, "lo is NULL");
    assert_refused(&f, fattn_mask_interval(&f.desc, 0, &row, NULL), FATTN_ERROR_ARGUMENT, "hi is NULL");
    assert_int_equal(row, 1);
    f.backward.lse = NULL;
    assert_refused(&f, fattn_backward(f.context, &f.desc, &f.backward), FATTN_ERROR_ARGUMENT, "args.lse is NULL");
    f.forward.lse = NULL; /* this one is allowed, and so is not asking for the kernel */
    f.forward.kernel = NULL;
    assert_int_equal(fattn_forward(f.context, &f.desc, &f.forward), FATTN_OK);
    fattn_context_destroy(NULL);
    fixture_free(&f);
}

static void rows_and_operations(void **state)
{
    fixture f;
    size_t bytes;
    int64_t lo, hi;
    (void)state;
    fixture_make(&f, FATTN_F32, NULL);
    assert_refused(&f, fattn_mask_interval(&f.desc, -1, &lo, &hi), FATTN_ERROR_ARGUMENT, "row is -1");
    assert_refused(&f, fattn_mask_interval(&f.desc, SEQ_Q, &lo, &hi), FATTN_ERROR_ARGUMENT, "row is 5");
    assert_refused(&f, fattn_workspace_size(f.context, &f.desc, (fattn_op)0, &bytes), FATTN_ERROR_ARGUMENT, "op is 0");
    assert_refused(&f, fattn_workspace_size(f.context, &f.desc, (fattn_op)3, &bytes), FATTN_ERROR_ARGUMENT, "op is 3");
    fixture_free(&f);
}

static void workspaces(void **state)
{
    static const char *const kernels[] = {"ref", NULL};
    (void)state;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        fixture f;
        fixture_make(&f, FATTN_F32, kernels[i]);
        const fattn_forward_args forward = f.forward;
        const fattn_backward_args backward = f.backward;
        if (forward.workspace_size > 0) {
            f.forward.workspace_size--;
            assert_refused(&f, fattn_forward(f.context, &f.desc, &f.forward), FATTN_ERROR_WORKSPACE, "args.workspace_size");
            f.forward.workspace = NULL;
            assert_refused(&f, fattn_forward(f.context, &f.desc, &f.forward), FATTN_ERROR_WORKSPACE, "args.workspace is NULL");
        }
        if (backward.workspace_size > 0) {
            f.backward.workspace_size = 0;
            assert_refused(&f, fattn_backward(f.context, &f.desc, &f.backward), FATTN_ERROR_WORKSPACE,
                           "args.workspace_size is 0");
            f.backward.workspace = NULL;
            assert_refused(&f, fattn_backward(f.context, &f.desc, &f.backward), FATTN_ERROR_WORKSPACE,
                           "args.workspace is NULL");
        }
        f.forward = forward;
        f.backward = backward;
        fixture_free(&f);
    }
}

/* A workspace at any address will do, and larger ones than needed. */
static void workspaces_at_any_address(void **state)
{
    fixture f;
    (void)state;
    fixture_make(&f, FATTN_F32, NULL);
    const size_t bytes = f.forward.workspace_size;
    unsigned char *memory = malloc(bytes + 131);
    void *own = f.forward.workspace;
    assert_non_null(memory);
    for (size_t shift = 0; shift < 67; shift++) {
        memset(memory, POISON, bytes + 131);
        f.forward.workspace = memory + shift;
        assert_int_equal(fattn_forward(f.context, &f.desc, &f.forward), FATTN_OK);
        for (size_t i = 0; i < bytes + 131; i++)
            if (i < shift || i >= shift + bytes)
                assert_int_equal(memory[i], POISON);
        assert_memory_equal(f.out.data, f.saved_out, Q_ROWS * DIM_V * sizeof(float));
    }
    free(memory);
    f.forward.workspace = own;
    fixture_free(&f);
}

static void last_error_is_kept(void **state)
{
    fixture f;
    char message[512];
    (void)state;
    fixture_make(&f, FATTN_F32, NULL);
    assert_refused(&f, fattn_forward(f.context, &f.desc, NULL), FATTN_ERROR_ARGUMENT, "args is NULL");
    snprintf(message, sizeof message, "%s", fattn_last_error());
    assert_int_equal(fattn_forward(f.context, &f.desc, &f.forward), FATTN_OK);
    assert_string_equal(fattn_last_error(), message); /* success leaves it */
    fixture_free(&f);
}

static void no_error_at_first(void **state)
{
    (void)state;
    assert_string_equal(fattn_last_error(), "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_error_at_first), /* before any call fails */
        cmocka_unit_test(fields_of_desc),
        cmocka_unit_test(windows),
        cmocka_unit_test(fields_that_disagree),
        cmocka_unit_test(dtype_that_fits_what_is_large),
        cmocka_unit_test(reserved_and_stream),
        cmocka_unit_test(null_pointers),
        cmocka_unit_test(rows_and_operations),
        cmocka_unit_test(workspaces),
        cmocka_unit_test(workspaces_at_any_address),
        cmocka_unit_test(last_error_is_kept),
    };
    return cmocka_run_group_tests_name("errors", tests, NULL, NULL);
}
