/*
 * A program of the first hour: compiled with the header as it first was (first/fattn/fattn.h), linked with the library of
 * today. Its structs are shorter than the library's; behind each lie bytes of 0xff, so that a library that looks beyond
 * struct_size sees pointers, flags and sizes that make no sense.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h> /* after the headers it wants */

#include "fattn/fattn.h"

_Static_assert(sizeof(fattn_desc) == 128, "this is the first header, not today's");
_Static_assert(sizeof(void *) != 8 || (sizeof(fattn_forward_args) == 248 && sizeof(fattn_backward_args) == 400), "likewise");

enum { BATCH = 2, HEADS = 4, HEADS_KV = 2, SEQ_Q = 9, SEQ_K = 21, DIM = 24, DIM_V = 16 };
enum { Q_ROWS = BATCH * HEADS * SEQ_Q, K_ROWS = BATCH * HEADS_KV * SEQ_K };

/* A struct, and what lies behind it in memory. */
#define BEFORE_POISON(type)                                                                                                    \
    union {                                                                                                                    \
        type own;                                                                                                              \
        unsigned char bytes[sizeof(type) + 512];                                                                               \
    }

typedef BEFORE_POISON(fattn_desc) placed_desc;
typedef BEFORE_POISON(fattn_forward_args) placed_forward;
typedef BEFORE_POISON(fattn_backward_args) placed_backward;
typedef BEFORE_POISON(fattn_context_options) placed_options;

#define PLACE(placed, ...)                                                                                                     \
    do {                                                                                                                       \
        memset((placed), 0xff, sizeof *(placed));                                                                              \
        memcpy((placed), &(__VA_ARGS__), sizeof(placed)->own);                                                                 \
    } while (0)

static void assert_poison_behind(const void *placed, size_t own, size_t all)
{
    for (size_t i = own; i < all; i++)
        assert_int_equal(((const unsigned char *)placed)[i], 0xff);
}

/* ------------------------------------------------------------------------------------------------------------ the truth */

typedef struct numbers {
    double q[Q_ROWS * DIM], k[K_ROWS * DIM], v[K_ROWS * DIM_V], dout[Q_ROWS * DIM_V];
    double out[Q_ROWS * DIM_V], lse[Q_ROWS];
    double dq[Q_ROWS * DIM], dk[K_ROWS * DIM], dv[K_ROWS * DIM_V];
} numbers;

static double dot(const double *a, const double *b, int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* One query row, forward and backward: causal, the last row at the last key. */
static void compute_row(numbers *x, int row, int first_key, int keys)
{
    const double scale = 1 / sqrt((double)DIM), *q = x->q + row * DIM, *dout = x->dout + row * DIM_V;
    double p[SEQ_K], sum = 0, *out = x->out + row * DIM_V;
    for (int j = 0; j < keys; j++)
        sum += p[j] = exp(scale * dot(q, x->k + (first_key + j) * DIM, DIM));
    x->lse[row] = log(sum);
    for (int j = 0; j < keys; j++) {
        p[j] /= sum;
        for (int d = 0; d < DIM_V; d++)
            out[d] += p[j] * x->v[(first_key + j) * DIM_V + d];
    }
    for (int j = 0; j < keys; j++) {
        const int key = first_key + j;
        const double ds = scale * p[j] * (dot(dout, x->v + key * DIM_V, DIM_V) - dot(dout, out, DIM_V));
        for (int d = 0; d < DIM; d++) {
            x->dq[row * DIM + d] += ds * x->k[key * DIM + d];
            x->dk[key * DIM + d] += ds * q[d];
        }
        for (int d = 0; d < DIM_V; d++)
            x->dv[key * DIM_V + d] += p[j] * dout[d];
    }
}

static void compute(numbers *x)
{
    for (int b = 0; b < BATCH; b++)
        for (int h = 0; h < HEADS; h++)
            for (int i = 0; i < SEQ_Q; i++)
                compute_row(x, (b * HEADS + h) * SEQ_Q + i, (b * HEADS_KV + h / (HEADS / HEADS_KV)) * SEQ_K,
                            i + SEQ_K - SEQ_Q + 1);
}

static void fill(double *x, int count, uint64_t seed)
{
    for (int i = 0; i < count; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = (double)(float)((double)(seed >> 40) / (1 << 23) - 1);
    }
}

/* ------------------------------------------------------------------------------------------------------------ the calls */

/* The same numbers in the type of the call. */
typedef struct memory {
    int32_t dtype;
    size_t size;
    void *q, *k, *v, *dout, *out, *lse, *dq, *dk, *dv;
} memory;

static void *typed(const memory *m, const double *values, size_t count)
{
    void *all = malloc(count * m->size);
    assert_non_null(all);
    for (size_t i = 0; i < count; i++) {
        if (m->dtype == FATTN_F64)
            ((double *)all)[i] = values ? values[i] : NAN;
        else
            ((float *)all)[i] = values ? (float)values[i] : NAN;
    }
    return all;
}

static memory memory_make(const numbers *x, int32_t dtype)
{
    memory m = {.dtype = dtype, .size = dtype == FATTN_F64 ? 8 : 4};
    m.q = typed(&m, x->q, Q_ROWS * DIM);
    m.k = typed(&m, x->k, K_ROWS * DIM);
    m.v = typed(&m, x->v, K_ROWS * DIM_V);
    m.dout = typed(&m, x->dout, Q_ROWS * DIM_V);
    m.out = typed(&m, NULL, Q_ROWS * DIM_V);
    m.lse = typed(&m, NULL, Q_ROWS);
    m.dq = typed(&m, NULL, Q_ROWS * DIM);
    m.dk = typed(&m, NULL, K_ROWS * DIM);
    m.dv = typed(&m, NULL, K_ROWS * DIM_V);
    return m;
}

static void memory_free(memory *m)
{
    void *all[] = {m->q, m->k, m->v, m->dout, m->out, m->lse, m->dq, m->dk, m->dv};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

static void assert_near(const memory *m, const void *got, const double *wanted, int count)
{
    const double most = m->dtype == FATTN_F64 ? 1e-12 : 2e-5;
    for (int i = 0; i < count; i++) {
        const double x = m->dtype == FATTN_F64 ? ((const double *)got)[i] : (double)((const float *)got)[i];
        if (!(fabs(x - wanted[i]) <= most * (1 + fabs(wanted[i]))))
            fail_msg("element %d is %.17g, not %.17g", i, x, wanted[i]);
    }
}

static void place_desc(placed_desc *desc, int32_t dtype)
{
    const fattn_desc own = {.struct_size = sizeof own,
                            .dtype = dtype,
                            .mask = FATTN_MASK_CAUSAL,
                            .align = FATTN_ALIGN_BOTTOM_RIGHT,
                            .batch = BATCH,
                            .heads_q = HEADS,
                            .heads_kv = HEADS_KV,
                            .seq_q = SEQ_Q,
                            .seq_k = SEQ_K,
                            .dim = DIM,
                            .dim_v = DIM_V};
    PLACE(desc, own);
}

static void *workspace(const fattn_context *context, const fattn_desc *desc, fattn_op op, size_t *bytes)
{
    *bytes = SIZE_MAX;
    assert_int_equal(fattn_workspace_size(context, desc, op, bytes), FATTN_OK);
    void *space = malloc(*bytes + 1);
    assert_non_null(space);
    return space;
}

static void call_forward(const fattn_context *context, const placed_desc *desc, const memory *m)
{
    placed_forward args;
    const char *kernel = NULL;
    fattn_forward_args own = {.struct_size = sizeof own,
                              .q = fattn_view_bhsd(m->q, HEADS, SEQ_Q, DIM),
                              .k = fattn_view_bhsd(m->k, HEADS_KV, SEQ_K, DIM),
                              .v = fattn_view_bhsd(m->v, HEADS_KV, SEQ_K, DIM_V),
                              .out = fattn_view_bhsd(m->out, HEADS, SEQ_Q, DIM_V),
                              .lse = m->lse,
                              .kernel = &kernel};
    own.workspace = workspace(context, &desc->own, FATTN_OP_FORWARD, &own.workspace_size);
    PLACE(&args, own);
    if (fattn_forward(context, &desc->own, &args.own) != FATTN_OK)
        fail_msg("%s", fattn_last_error());
    assert_non_null(kernel);
    free(own.workspace);
}

static void call_backward(const fattn_context *context, const placed_desc *desc, const memory *m)
{
    placed_backward args;
    fattn_backward_args own = {.struct_size = sizeof own,
                               .q = fattn_view_bhsd(m->q, HEADS, SEQ_Q, DIM),
                               .k = fattn_view_bhsd(m->k, HEADS_KV, SEQ_K, DIM),
                               .v = fattn_view_bhsd(m->v, HEADS_KV, SEQ_K, DIM_V),
                               .out = fattn_view_bhsd(m->out, HEADS, SEQ_Q, DIM_V),
                               .dout = fattn_view_bhsd(m->dout, HEADS, SEQ_Q, DIM_V),
                               .dq = fattn_view_bhsd(m->dq, HEADS, SEQ_Q, DIM),
                               .dk = fattn_view_bhsd(m->dk, HEADS_KV, SEQ_K, DIM),
                               .dv = fattn_view_bhsd(m->dv, HEADS_KV, SEQ_K, DIM_V),
                               .lse = m->lse};
    own.workspace = workspace(context, &desc->own, FATTN_OP_BACKWARD, &own.workspace_size);
    PLACE(&args, own);
    if (fattn_backward(context, &desc->own, &args.own) != FATTN_OK)
        fail_msg("%s", fattn_last_error());
    free(own.workspace);
}

static fattn_context *make_context(const char *kernel)
{
    placed_options options;
    fattn_context *context = NULL;
    const fattn_context_options own = {.struct_size = sizeof own, .threads = 2, .kernel = kernel};
    PLACE(&options, own);
    assert_int_equal(fattn_context_create(&options.own, &context), FATTN_OK);
    return context;
}

static void check(int32_t dtype, const char *kernel)
{
    static numbers x;
    placed_desc desc;
    memset(&x, 0, sizeof x);
    fill(x.q, Q_ROWS * DIM, 1);
    fill(x.k, K_ROWS * DIM, 2);
    fill(x.v, K_ROWS * DIM_V, 3);
    fill(x.dout, Q_ROWS * DIM_V, 4);
    compute(&x);
    memory m = memory_make(&x, dtype);
    fattn_context *context = make_context(kernel);
    place_desc(&desc, dtype);
    call_forward(context, &desc, &m);
    assert_near(&m, m.out, x.out, Q_ROWS * DIM_V);
    assert_near(&m, m.lse, x.lse, Q_ROWS);
    call_backward(context, &desc, &m);
    assert_near(&m, m.dq, x.dq, Q_ROWS * DIM);
    assert_near(&m, m.dk, x.dk, K_ROWS * DIM);
    assert_near(&m, m.dv, x.dv, K_ROWS * DIM_V);
    fattn_context_destroy(context);
    memory_free(&m);
}

static void results(void **state)
{
    (void)state;
    check(FATTN_F32, "");
    check(FATTN_F64, "");
    check(FATTN_F32, "ref");
    check(FATTN_F64, "ref");
}

static void intervals(void **state)
{
    placed_desc desc;
    int64_t lo = -1, hi = -1;
    (void)state;
    place_desc(&desc, FATTN_F32);
    assert_int_equal(fattn_mask_interval(&desc.own, 3, &lo, &hi), FATTN_OK);
    assert_true(lo == 0 && hi == 3 + SEQ_K - SEQ_Q + 1);
    assert_poison_behind(&desc, sizeof desc.own, sizeof desc);
}

/* Structs that the library fills in: behind the old size nothing is written. */
static void queries(void **state)
{
    BEFORE_POISON(fattn_context_info) info;
    BEFORE_POISON(fattn_kernel_info) kernel;
    placed_desc desc;
    (void)state;
    fattn_context *context = make_context(NULL);
    memset(&info, 0xff, sizeof info);
    info.own.struct_size = sizeof info.own;
    assert_int_equal(fattn_context_query(context, &info.own), FATTN_OK);
    assert_true(info.own.threads == 2 && info.own.builtin_pool == 1 && info.own.struct_size == sizeof info.own);
    assert_poison_behind(&info, sizeof info.own, sizeof info);
    place_desc(&desc, FATTN_F32);
    int selected = 0;
    for (int32_t i = 0;; i++) {
        memset(&kernel, 0xff, sizeof kernel);
        kernel.own.struct_size = sizeof kernel.own;
        const fattn_status status = fattn_kernel_query(context, &desc.own, FATTN_OP_FORWARD, i, &kernel.own);
        assert_poison_behind(&kernel, sizeof kernel.own, sizeof kernel);
        if (status != FATTN_OK)
            break;
        selected += kernel.own.selected;
    }
    assert_int_equal(selected, 1);
    assert_null(kernel.own.name);
    fattn_context_destroy(context);
}

/* What was refused then may be done now, but what made no sense still makes none. */
static void refusals(void **state)
{
    placed_desc desc;
    size_t bytes;
    (void)state;
    fattn_context *context = make_context(NULL);
    place_desc(&desc, FATTN_F32);
    desc.own.struct_size--;
    assert_int_equal(fattn_workspace_size(context, &desc.own, FATTN_OP_FORWARD, &bytes), FATTN_ERROR_ARGUMENT);
    place_desc(&desc, FATTN_F32);
    desc.own.heads_q = 3;
    assert_int_equal(fattn_workspace_size(context, &desc.own, FATTN_OP_FORWARD, &bytes), FATTN_ERROR_ARGUMENT);
    assert_non_null(strstr(fattn_last_error(), "heads_q"));
    assert_string_equal(fattn_status_name(FATTN_ERROR_WORKSPACE), "FATTN_ERROR_WORKSPACE");
    fattn_context_destroy(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(results), cmocka_unit_test(intervals), cmocka_unit_test(queries),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests_name("first_client", tests, NULL, NULL);
}
