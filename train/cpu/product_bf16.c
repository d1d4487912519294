/*
 * Matrix products of bf16 by oneDNN's matmul: C = op(A) op(B) + beta C with float sums, C of either type, rounded once.
 * Transposed operands are strides. A processor that oneDNN has no bf16 for (2.6: one without AVX-512) widens the operands and
 * takes the product of floats, which has the same sums up to their order.
 *
 * What oneDNN makes for a shape is kept: a step asks for the same few dozen products again and again, and making one anew, even
 * from oneDNN's own cache, takes longer than a small product.
 */
#include <dnnl.h>
#include <stdlib.h>
#include <string.h>

#include "train/cpu/chunks.h"
#include "train/cpu/cpu.h"
#include "train/cpu/numbers.h"
#include "train/error.h"

typedef struct shape {
    int64_t m, n, k, lda, ldb, ldc;
    int transpose_a, transpose_b, c_type;
    float beta;
} shape;

typedef struct made {
    shape of;
    dnnl_primitive_t primitive; /* NULL: nothing here yet */
    dnnl_memory_t a, b, c;
} made;

/* One thread works with a device; each has its own. */
enum { MADE_MOST = 128, PRODUCT_ARGUMENTS = 3 };
static _Thread_local made kept[MADE_MOST];
static _Thread_local int next_made;

static dnnl_engine_t engine_of_process(void)
{
    static _Thread_local dnnl_engine_t engine;
    if (!engine && dnnl_engine_create(&engine, dnnl_cpu, 0) != dnnl_success)
        engine = NULL;
    return engine;
}

static dnnl_stream_t stream_of_thread(void)
{
    static _Thread_local dnnl_stream_t stream;
    if (!stream && dnnl_stream_create(&stream, engine_of_process(), dnnl_stream_default_flags) != dnnl_success)
        stream = NULL;
    return stream;
}

/* [rows, cols], as the product sees it. */
static dnnl_memory_desc_t matrix_desc(int64_t rows, int64_t cols, bool transposed, int64_t ld, dnnl_data_type_t type)
{
    const dnnl_dims_t dims = {rows, cols}, strides = {transposed ? 1 : ld, transposed ? ld : 1};
    dnnl_memory_desc_t desc;
    dnnl_memory_desc_init_by_strides(&desc, 2, dims, type, strides);
    return desc;
}

static void forget(made *p)
{
    if (!p->primitive)
        return;
    dnnl_primitive_destroy(p->primitive);
    dnnl_memory_destroy(p->a);
    dnnl_memory_destroy(p->b);
    dnnl_memory_destroy(p->c);
    memset(p, 0, sizeof *p);
}

static dnnl_status_t describe(const shape *s, dnnl_primitive_desc_t *desc, dnnl_memory_desc_t of[PRODUCT_ARGUMENTS])
{
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_post_ops_t ops = NULL;
    of[0] = matrix_desc(s->m, s->k, s->transpose_a, s->lda, dnnl_bf16);
    of[1] = matrix_desc(s->k, s->n, s->transpose_b, s->ldb, dnnl_bf16);
    of[2] = matrix_desc(s->m, s->n, false, s->ldc, s->c_type == NUMBER_BF16 ? dnnl_bf16 : dnnl_f32);
    dnnl_status_t status = dnnl_matmul_desc_init(&matmul, &of[0], &of[1], NULL, &of[2]);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_create(&attr);
    if (status == dnnl_success)
        status = dnnl_post_ops_create(&ops);
    if (status == dnnl_success && s->beta != 0.0f)
        status = dnnl_post_ops_append_sum(ops, s->beta);
    if (status == dnnl_success)
        status = dnnl_primitive_attr_set_post_ops(attr, ops);
    if (status == dnnl_success)
        status = dnnl_primitive_desc_create(desc, &matmul, attr, engine_of_process(), NULL);
    dnnl_post_ops_destroy(ops);
    dnnl_primitive_attr_destroy(attr);
    return status;
}

static dnnl_status_t make(made *p, const shape *s)
{
    dnnl_primitive_desc_t desc = NULL;
    dnnl_memory_desc_t of[PRODUCT_ARGUMENTS];
    dnnl_status_t status = describe(s, &desc, of);
    if (status != dnnl_success)
        return status;
    status = dnnl_primitive_create(&p->primitive, desc);
    dnnl_primitive_desc_destroy(desc);
    dnnl_memory_t *const memories[PRODUCT_ARGUMENTS] = {&p->a, &p->b, &p->c};
    for (int i = 0; i < PRODUCT_ARGUMENTS && status == dnnl_success; i++)
        status = dnnl_memory_create(memories[i], &of[i], engine_of_process(), DNNL_MEMORY_NONE);
    p->of = *s;
    if (status != dnnl_success)
        forget(p);
    return status;
}

/* The one for a shape; NULL, with the reason, where there is none. */
static made *find(const shape *s, dnnl_status_t *status)
{
    *status = dnnl_success;
    for (int i = 0; i < MADE_MOST; i++)
        if (kept[i].primitive && memcmp(&kept[i].of, s, sizeof *s) == 0)
            return &kept[i];
    made *p = &kept[next_made];
    forget(p);
    *status = stream_of_thread() ? make(p, s) : dnnl_runtime_error;
    if (*status != dnnl_success)
        return NULL;
    next_made = (next_made + 1) % MADE_MOST;
    return p;
}

static dnnl_status_t run(made *p, const product_call *c)
{
    dnnl_memory_set_data_handle(p->a, (void *)(uintptr_t)c->a);
    dnnl_memory_set_data_handle(p->b, (void *)(uintptr_t)c->b);
    dnnl_memory_set_data_handle(p->c, c->c);
    const dnnl_exec_arg_t arguments[PRODUCT_ARGUMENTS] = {{DNNL_ARG_SRC, p->a}, {DNNL_ARG_WEIGHTS, p->b}, {DNNL_ARG_DST, p->c}};
    return dnnl_primitive_execute(p->primitive, stream_of_thread(), PRODUCT_ARGUMENTS, arguments);
}

/* -------------------------------------------------------------------------------------------------- where there is no bf16 */

static void widen_rows(device *d, float *to, const void *from, int64_t rows, int64_t cols, int64_t ld)
{
    const copy_call c = {
        .rows = rows, .cols = cols, .to_stride = cols, .from_stride = ld, .from_type = NUMBER_BF16, .to = to, .from = from};
    d->run->copy(d, &c);
}

static bool widened(device *d, const product_call *c)
{
    const int64_t a_rows = c->transpose_a ? c->k : c->m, a_cols = c->transpose_a ? c->m : c->k;
    const int64_t b_rows = c->transpose_b ? c->n : c->k, b_cols = c->transpose_b ? c->k : c->n;
    const bool narrow = c->c_type == NUMBER_BF16;
    const int64_t most = a_rows * a_cols + b_rows * b_cols + (narrow ? c->m * c->n : 0);
    float *memory = malloc((size_t)most * sizeof *memory);
    if (!memory)
        return train_fail_as(TRAIN_ERROR_WORK, "no memory for a product: it needs %zu bytes", (size_t)most * sizeof *memory);
    float *a = memory, *b = a + a_rows * a_cols, *sums = narrow ? b + b_rows * b_cols : c->c;
    product_call wide = *c;
    widen_rows(d, a, c->a, a_rows, a_cols, c->lda);
    widen_rows(d, b, c->b, b_rows, b_cols, c->ldb);
    if (narrow && c->beta != 0.0f)
        widen_rows(d, sums, c->c, c->m, c->n, c->ldc);
    wide.type = wide.c_type = NUMBER_F32;
    wide.from = NULL; /* it lies in C already */
    wide.a = a, wide.lda = a_cols;
    wide.b = b, wide.ldb = b_cols;
    wide.c = sums, wide.ldc = narrow ? c->n : c->ldc;
    bool good = cpu_product(d, &wide);
    if (narrow && good) {
        const copy_call back = {.rows = c->m,
                                .cols = c->n,
                                .to_stride = c->ldc,
                                .from_stride = c->n,
                                .to_type = NUMBER_BF16,
                                .to = c->c,
                                .from = sums};
        good = d->run->copy(d, &back);
    }
    free(memory);
    return good;
}

bool cpu_product_bf16(device *d, const product_call *c)
{
    shape s;
    dnnl_status_t status;
    memset(&s, 0, sizeof s); /* it is compared as bytes */
    s.m = c->m, s.n = c->n, s.k = c->k;
    s.lda = c->lda, s.ldb = c->ldb, s.ldc = c->ldc;
    s.transpose_a = c->transpose_a, s.transpose_b = c->transpose_b;
    s.c_type = c->c_type;
    s.beta = c->beta;
    made *p = c->k ? find(&s, &status) : NULL;
    if (p)
        status = run(p, c);
    if (!c->k || status == dnnl_unimplemented)
        return widened(d, c);
    return status == dnnl_success || train_fail_as(TRAIN_ERROR_WORK, "oneDNN: a product failed (%d)", (int)status);
}
