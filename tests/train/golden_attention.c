/*
 * The library against PyTorch's attention in double (tools/golden_attention.py): every kernel that can run, in the types
 * float and double, forward and backward. Backward is given the golden out and lse.
 */
#include "support.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES = 10 };

/* One case with its arrays, in double as read or narrowed to float. */
typedef struct golden_case {
    fattn_desc desc;
    void *q, *k, *v, *dout, *out, *lse, *dq, *dk, *dv;
    int64_t out_count, lse_count, dq_count, dk_count, dv_count;
} golden_case;

static void *values(const safetensors_file *f, int number, const char *name, fattn_dtype dtype, int64_t *count)
{
    char full[32];
    int64_t n;
    snprintf(full, sizeof full, "%d.%s", number, name);
    double *wide = golden_doubles(f, full, &n);
    if (count)
        *count = n;
    if (dtype == FATTN_F64)
        return wide;
    float *narrow = malloc((size_t)n * sizeof *narrow);
    assert_non_null(narrow);
    for (int64_t i = 0; i < n; i++)
        narrow[i] = (float)wide[i];
    free(wide);
    return narrow;
}

static golden_case read_case(const safetensors_file *f, int number, fattn_dtype dtype)
{
    char name[32];
    snprintf(name, sizeof name, "%d.problem", number);
    int64_t *p = golden_integers(f, name, NULL);
    double *scale = values(f, number, "scale", FATTN_F64, NULL);
    golden_case c = {.desc = {.struct_size = sizeof(fattn_desc),
                              .dtype = dtype,
                              .batch = p[0],
                              .heads_q = p[1],
                              .heads_kv = p[2],
                              .seq_q = p[3],
                              .seq_k = p[4],
                              .dim = p[5],
                              .dim_v = p[6],
                              .mask = (int32_t)p[7],
                              .align = (int32_t)p[8],
                              .window_left = p[9],
                              .window_right = p[10],
                              .scale = *scale}};
    free(p);
    free(scale);
    c.q = values(f, number, "q", dtype, NULL);
    c.k = values(f, number, "k", dtype, NULL);
    c.v = values(f, number, "v", dtype, NULL);
    c.dout = values(f, number, "dout", dtype, NULL);
    c.out = values(f, number, "out", dtype, &c.out_count);
    c.lse = values(f, number, "lse", dtype, &c.lse_count);
    c.dq = values(f, number, "dq", dtype, &c.dq_count);
    c.dk = values(f, number, "dk", dtype, &c.dk_count);
    c.dv = values(f, number, "dv", dtype, &c.dv_count);
    return c;
}

static void free_case(golden_case *c)
{
    void *all[] = {c->q, c->k, c->v, c->dout, c->out, c->lse, c->dq, c->dk, c->dv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void *blank(const golden_case *c, int64_t count)
{
    size_t bytes = (size_t)count * (c->desc.dtype == FATTN_F64 ? sizeof(double) : sizeof(float));
    void *p = malloc(bytes + 1);
    assert_non_null(p);
    return memset(p, 0xff, bytes + 1); /* NaNs */
}

static void check(const golden_case *c, const char *name, const void *found, const void *wanted, int64_t count)
{
    bool wide = c->desc.dtype == FATTN_F64;
    check_error(name, wide ? error_dd(found, wanted, count) : error_ff(found, wanted, count), wide ? 1e-13 : 3e-6);
}

static void run_forward(const fattn_context *context, const golden_case *c, const char *name)
{
    const fattn_desc *d = &c->desc;
    size_t bytes;
    assert_int_equal(fattn_workspace_size(context, d, FATTN_OP_FORWARD, &bytes), FATTN_OK);
    void *out = blank(c, c->out_count), *lse = blank(c, c->lse_count), *workspace = malloc(bytes + 1);
    const char *ran = NULL;
    fattn_forward_args args = {.struct_size = sizeof args,
                               .q = fattn_view_bhsd(c->q, d->heads_q, d->seq_q, d->dim),
                               .k = fattn_view_bhsd(c->k, d->heads_kv, d->seq_k, d->dim),
                               .v = fattn_view_bhsd(c->v, d->heads_kv, d->seq_k, d->dim_v),
                               .out = fattn_view_bhsd(out, d->heads_q, d->seq_q, d->dim_v),
                               .lse = lse,
                               .workspace = workspace,
                               .workspace_size = bytes,
                               .kernel = &ran};
    if (fattn_forward(context, d, &args) != FATTN_OK)
        fail_msg("%s: %s", name, fattn_last_error());
    assert_string_equal(ran, name);
    check(c, name, out, c->out, c->out_count);
    check(c, name, lse, c->lse, c->lse_count);
    free(out);
    free(lse);
    free(workspace);
}

static void run_backward(const fattn_context *context, const golden_case *c, const char *name)
{
    const fattn_desc *d = &c->desc;
    size_t bytes;
    assert_int_equal(fattn_workspace_size(context, d, FATTN_OP_BACKWARD, &bytes), FATTN_OK);
    void *dq = blank(c, c->dq_count), *dk = blank(c, c->dk_count), *dv = blank(c, c->dv_count), *workspace = malloc(bytes + 1);
    const char *ran = NULL;
    fattn_backward_args args = {.struct_size = sizeof args,
                                .q = fattn_view_bhsd(c->q, d->heads_q, d->seq_q, d->dim),
                                .k = fattn_view_bhsd(c->k, d->heads_kv, d->seq_k, d->dim),
                                .v = fattn_view_bhsd(c->v, d->heads_kv, d->seq_k, d->dim_v),
                                .out = fattn_view_bhsd(c->out, d->heads_q, d->seq_q, d->dim_v),
                                .dout = fattn_view_bhsd(c->dout, d->heads_q, d->seq_q, d->dim_v),
                                .dq = fattn_view_bhsd(dq, d->heads_q, d->seq_q, d->dim),
                                .dk = fattn_view_bhsd(dk, d->heads_kv, d->seq_k, d->dim),
                                .dv = fattn_view_bhsd(dv, d->heads_kv, d->seq_k, d->dim_v),
                                .lse = c->lse,
                                .workspace = workspace,
                                .workspace_size = bytes,
                                .kernel = &ran};
    if (fattn_backward(context, d, &args) != FATTN_OK)
        fail_msg("%s: %s", name, fattn_last_error());
    assert_string_equal(ran, name);
    check(c, name, dq, c->dq, c->dq_count);
    check(c, name, dk, c->dk, c->dk_count);
    check(c, name, dv, c->dv, c->dv_count);
    free(dq);
    free(dk);
    free(dv);
    free(workspace);
}

/* Every kernel of one operation that can run this case; returns how many there were. */
static int run_kernels(const golden_case *c, fattn_op op)
{
    int ran = 0;
    fattn_context *any, *forced;
    assert_int_equal(
        fattn_context_create(&(fattn_context_options){.struct_size = sizeof(fattn_context_options), .threads = 2}, &any),
        FATTN_OK);
    fattn_kernel_info info = {.struct_size = sizeof info};
    for (int i = 0; fattn_kernel_query(any, &c->desc, op, i, &info) == FATTN_OK; i++) {
        if (!info.can_run)
            continue;
        fattn_context_options options = {.struct_size = sizeof options, .threads = 2, .kernel = info.name};
        assert_int_equal(fattn_context_create(&options, &forced), FATTN_OK);
        (op == FATTN_OP_FORWARD ? run_forward : run_backward)(forced, c, info.name);
        fattn_context_destroy(forced);
        ran++;
    }
    fattn_context_destroy(any);
    return ran;
}

static void run_all(fattn_dtype dtype)
{
    safetensors_file *f = golden_open("attention.safetensors");
    for (int number = 0; number < CASES; number++) {
        golden_case c = read_case(f, number, dtype);
        assert_true(run_kernels(&c, FATTN_OP_FORWARD) >= 1);
        assert_true(run_kernels(&c, FATTN_OP_BACKWARD) >= 1);
        free_case(&c);
    }
    safetensors_close(f);
}

static void in_double(void **state)
{
    (void)state;
    run_all(FATTN_F64);
}

static void in_float(void **state)
{
    (void)state;
    run_all(FATTN_F32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(in_double), cmocka_unit_test(in_float)};
    return cmocka_run_group_tests_name("golden attention", tests, NULL, NULL);
}
