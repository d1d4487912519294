/*
 * fattn_cache_append: every argument that makes no sense is refused by name before anything is written; the same bits from any
 * threads and whatever the caller's rounding mode is; and problems without rows.
 */
#include <fenv.h>

#include "cache.h"

static void untouched(const cache *c)
{
    const size_t size = size_of(c->kv);
    all_poison(c->k, (size_t)(c->rows * HKV * D) * size);
    all_poison(c->v, (size_t)(c->rows * HKV * DV) * size);
    all_poison(c->k_scales, sizeof c->k_scales);
    all_poison(c->v_scales, sizeof c->v_scales);
    void *q = make_numbers(c->desc.dtype, B * HQ * NEW * D, 3, 2);
    assert_memory_equal(q, c->q, B * HQ * NEW * D * size_of(c->desc.dtype));
    free(q);
}

static void refused(cache *c, fattn_status status, const char *words)
{
    assert_fails(append(c), status, words);
    untouched(c);
}

/* A paged cache of bytes with rotary tables and queries: everything that there is. */
static void everything(cache *c)
{
    cache_make(c, FATTN_F32, FATTN_I8, 3, NULL);
    use_rotary(c, 4, 1);
    c->used_k[0] = 5, c->used_k[1] = 0, c->used_k[2] = CAP - NEW;
    c->used_q[0] = 1, c->used_q[1] = 0, c->used_q[2] = NEW;
    c->args.used_q = c->used_q;
}

/* The call is refused with one argument set otherwise, and works without. */
#define SPOIL(field, value, status, words)                                                                                     \
    do {                                                                                                                       \
        const fattn_cache_args args_before = c.args;                                                                           \
        const fattn_desc desc_before = c.desc;                                                                                 \
        c.field = value;                                                                                                       \
        refused(&c, status, words);                                                                                            \
        c.args = args_before;                                                                                                  \
        c.desc = desc_before;                                                                                                  \
    } while (0)

static void presence(void **state)
{
    cache c;
    (void)state;
    everything(&c);
    assert_fails(fattn_cache_append(NULL, &c.desc, &c.args), FATTN_ERROR_ARGUMENT, "context is NULL");
    assert_fails(fattn_cache_append(c.context, NULL, &c.args), FATTN_ERROR_ARGUMENT, "desc is NULL");
    assert_fails(fattn_cache_append(c.context, &c.desc, NULL), FATTN_ERROR_ARGUMENT, "args is NULL");
    SPOIL(args.struct_size, 239, FATTN_ERROR_ARGUMENT, "args.struct_size is 239");
    SPOIL(args.stream, &c, FATTN_ERROR_ARGUMENT, "args.stream is not NULL");
    SPOIL(args.used_k, NULL, FATTN_ERROR_ARGUMENT, "args.used_k is NULL");
    SPOIL(args.page_table, NULL, FATTN_ERROR_ARGUMENT, "args.page_table is NULL");
    SPOIL(args.k_scales, NULL, FATTN_ERROR_ARGUMENT, "args.k_scales is NULL");
    SPOIL(args.v_scales, NULL, FATTN_ERROR_ARGUMENT, "args.v_scales is NULL");
    SPOIL(args.rotary_cos, NULL, FATTN_ERROR_ARGUMENT, "args.rotary_sin is given, but args.rotary_cos");
    SPOIL(args.rotary_sin, NULL, FATTN_ERROR_ARGUMENT, "args.rotary_sin is NULL, but args.rotary_cos");
    SPOIL(args.k_new.data, NULL, FATTN_ERROR_ARGUMENT, "args.k_new.data is NULL");
    SPOIL(args.v_new.data, NULL, FATTN_ERROR_ARGUMENT, "args.v_new.data is NULL");
    SPOIL(args.k.data, NULL, FATTN_ERROR_ARGUMENT, "args.k.data is NULL");
    SPOIL(args.v.data, NULL, FATTN_ERROR_ARGUMENT, "args.v.data is NULL");
    SPOIL(desc.page_size, 0, FATTN_ERROR_ARGUMENT, "desc.pages is");
    SPOIL(desc.kv_dtype, 0, FATTN_ERROR_ARGUMENT, "args.k_scales is given");
    SPOIL(desc.dim_v, 0, FATTN_ERROR_ARGUMENT, "desc.dim_v is 0");
    SPOIL(desc.total_q, 3, FATTN_ERROR_UNSUPPORTED, "desc.total_q and total_k are 3 and 0");
    SPOIL(desc.total_q, B * NEW, FATTN_ERROR_UNSUPPORTED, "but a cache takes no packed rows"); /* though as many as padded */
    c.desc.page_size = c.desc.pages = 0;
    refused(&c, FATTN_ERROR_ARGUMENT, "args.page_table is given");
    SPOIL(desc.total_k, 4, FATTN_ERROR_UNSUPPORTED, "desc.total_q and total_k are 0 and 4");
    cache_free(&c);
}

static void rotary_arguments(void **state)
{
    cache c;
    (void)state;
    everything(&c);
    SPOIL(args.interleaved, 2, FATTN_ERROR_ARGUMENT, "args.interleaved is 2");
    SPOIL(args.rotary_dim, 0, FATTN_ERROR_ARGUMENT, "args.rotary_dim is 0");
    SPOIL(args.rotary_dim, -2, FATTN_ERROR_ARGUMENT, "args.rotary_dim is -2");
    SPOIL(args.rotary_dim, 3, FATTN_ERROR_ARGUMENT, "args.rotary_dim is 3");
    SPOIL(args.rotary_dim, D + 2, FATTN_ERROR_ARGUMENT, "args.rotary_dim is 10");
    SPOIL(args.rotary_rows, -1, FATTN_ERROR_ARGUMENT, "args.rotary_rows is -1");
    SPOIL(args.rotary_rows, INT64_MAX, FATTN_ERROR_ARGUMENT, "args.rotary_rows is 9223372036854775807");
    SPOIL(args.rotary_rows, CAP - 1, FATTN_ERROR_ARGUMENT, "args.used_k[2] is 26, from where 5 new rows leave the 30");
    c.args.rotary_cos = c.args.rotary_sin = NULL;
    refused(&c, FATTN_ERROR_ARGUMENT, "args.rotary_dim, rotary_rows and interleaved are 4, 64 and 1");
    c.args.rotary_dim = c.args.rotary_rows = 0;
    refused(&c, FATTN_ERROR_ARGUMENT, "are 0, 0 and 1, but args.rotary_cos is NULL");
    c.args.interleaved = 0;
    assert_ok(append(&c));
    cache_free(&c);
}

/* Lengths and pages; the last sequence has the fault, so that all checks come before the first write. */
static void rows_that_do_not_fit(void **state)
{
    cache c;
    (void)state;
    everything(&c);
    c.used_k[2] = CAP - NEW + 1;
    refused(&c, FATTN_ERROR_ARGUMENT, "args.used_k[2] is 27, from where 5 new rows do not fit in desc.seq_k, 31");
    c.used_k[2] = -1;
    refused(&c, FATTN_ERROR_ARGUMENT, "args.used_k[2] is -1");
    c.used_k[2] = INT32_MAX;
    refused(&c, FATTN_ERROR_ARGUMENT, "args.used_k[2] is 2147483647");
    c.used_k[2] = CAP - NEW;
    c.used_q[2] = NEW + 1;
    refused(&c, FATTN_ERROR_ARGUMENT, "args.used_q[2] is 6, outside 0 .. desc.seq_q, 5");
    c.used_q[2] = -1;
    refused(&c, FATTN_ERROR_ARGUMENT, "args.used_q[2] is -1");
    c.used_q[2] = NEW;
    int32_t *last = &c.table[2 * c.columns + (CAP - 1) / 3];
    const int32_t page = *last;
    *last = -1;
    refused(&c, FATTN_ERROR_ARGUMENT, "args.page_table[2][10] is -1");
    *last = (int32_t)c.desc.pages;
    refused(&c, FATTN_ERROR_ARGUMENT, "args.page_table[2][10] is 36");
    *last = page;
    c.args.used_q = NULL; /* now all of seq_q, which sequence 0 too has room for */
    c.used_k[0] = CAP;
    refused(&c, FATTN_ERROR_ARGUMENT, "args.used_k[0] is 31, from where 5");
    c.args.used_q = c.used_q;
    c.used_q[0] = 0; /* but none fit anywhere; pages and positions of rows that are not written do not matter */
    for (int64_t i = 0; i < 2 * c.columns + (CAP - NEW) / 3; i++)
        c.table[i] = i % 2 ? -7 : INT32_MAX;
    assert_ok(append(&c));
    cache_free(&c);
}

static void overlaps(void **state)
{
    cache c;
    (void)state;
    everything(&c);
    float *const far = malloc(1 << 16); /* room that meets nothing else */
    assert_non_null(far);
    const fattn_view inputs[] = {c.args.k_new, c.args.v_new};
    static const char *const names[] = {"overlaps args.k_new", "overlaps args.v_new"};
    for (int i = 0; i < 2; i++) {
        c.args.k_new.data = c.args.v_new.data = far;
        (i == 0 ? &c.args.k_new : &c.args.v_new)->data = far + 8192;
        SPOIL(args.k.data, far + 8192, FATTN_ERROR_ARGUMENT, names[i]);
        SPOIL(args.v.data, far + 8192, FATTN_ERROR_ARGUMENT, names[i]);
        SPOIL(args.q.data, far + 8192, FATTN_ERROR_ARGUMENT, names[i]);
        SPOIL(args.k_scales, far + 8192, FATTN_ERROR_ARGUMENT, names[i]);
        SPOIL(args.v_scales, far + 8192, FATTN_ERROR_ARGUMENT, names[i]);
    }
    c.args.k_new = inputs[0], c.args.v_new = inputs[1];
    SPOIL(args.v.data, c.k, FATTN_ERROR_ARGUMENT, "args.v, at");
    SPOIL(args.v.data, (char *)c.k + 5, FATTN_ERROR_ARGUMENT, "overlaps args.k,");
    SPOIL(args.q.data, c.args.k_scales, FATTN_ERROR_ARGUMENT, "overlaps args.q,");
    SPOIL(args.v_scales, c.k_scales + 3, FATTN_ERROR_ARGUMENT, "overlaps args.k_scales");
    SPOIL(args.used_k, (const int32_t *)(const void *)c.k_scales, FATTN_ERROR_ARGUMENT, "overlaps args.used_k");
    SPOIL(args.used_q, (const int32_t *)(const void *)c.k_scales, FATTN_ERROR_ARGUMENT, "overlaps args.used_q");
    SPOIL(args.page_table, (const int32_t *)(const void *)c.v_scales, FATTN_ERROR_ARGUMENT, "overlaps args.page_table");
    SPOIL(args.rotary_cos, c.v_scales, FATTN_ERROR_ARGUMENT, "overlaps args.rotary_cos");
    SPOIL(args.rotary_sin, c.v_scales, FATTN_ERROR_ARGUMENT, "overlaps args.rotary_sin");
    SPOIL(args.k.stride_row, D - 1, FATTN_ERROR_ARGUMENT, "args.k overlaps itself");
    SPOIL(args.v.stride_batch, 0, FATTN_ERROR_ARGUMENT, "args.v.stride_batch is 0");
    SPOIL(args.q.stride_head, 0, FATTN_ERROR_ARGUMENT, "args.q.stride_head is 0");
    SPOIL(args.used_k, (const int32_t *)(const void *)((const char *)c.used_k + 1), FATTN_ERROR_ARGUMENT, "args.used_k is 0x");
    SPOIL(args.page_table, (const int32_t *)(const void *)((const char *)c.table + 2), FATTN_ERROR_ARGUMENT,
          "args.page_table is 0x");
    SPOIL(args.k_new.data, (char *)c.k_new + 2, FATTN_ERROR_ARGUMENT, "args.k_new.data is 0x");
    assert_ok(append(&c));
    free(far);
    cache_free(&c);
}

/* Pages that hold a key's row and its value's side by side overlap nowhere, nor do packed q, k and v. */
static void interleaved_memory(void **state)
{
    enum { PAGE = 16, ROW = HKV * (D + DV), TOKEN = HQ * D + ROW };
    static float pool[16 * PAGE * ROW], token[B * NEW * TOKEN];
    cache c;
    (void)state;
    cache_make(&c, FATTN_F32, 0, PAGE, NULL);
    use_rotary(&c, D, 0);
    fill(token, FATTN_F32, B * NEW * TOKEN, 11);
    c.args.k = (fattn_view){pool, PAGE * ROW, D, ROW};
    c.args.v = (fattn_view){pool + HKV * D, PAGE * ROW, DV, ROW};
    c.args.q = (fattn_view){token, NEW * TOKEN, D, TOKEN};
    c.args.k_new = (fattn_view){token + HQ * D, NEW * TOKEN, D, TOKEN};
    c.args.v_new = (fattn_view){token + (HQ + HKV) * D, NEW * TOKEN, DV, TOKEN};
    assert_ok(append(&c));
    for (int64_t b = 0; b < B; b++)
        for (int64_t i = 0; i < NEW; i++)
            assert_memory_equal(pool + (c.table[b * c.columns] * PAGE + i) * ROW + HKV * D,
                                token + (b * NEW + i) * TOKEN + (HQ + HKV) * D, HKV * DV * sizeof(float));
    cache_free(&c);
}

/* ------------------------------------------------------------------------------------------------- same bits, and none */

static void from_last_to_first(void *user, int32_t count, void (*body)(void *arg, int32_t index), void *arg)
{
    (void)user;
    for (int32_t i = count - 1; i >= 0; i--)
        body(arg, i);
}

/* A prompt long enough for many units. */
static void any_number_of_threads(void **state)
{
    enum { LONG = 900, N = B * HKV * LONG };
    static float k_new[N * D], cosine[LONG * D / 2];
    static int8_t k[2][N * D], v[2][N * D];
    static float scales[2][2][N], q[2][B * HQ * LONG * D];
    static const int32_t used[B] = {0, 0, 0};
    (void)state;
    fill(k_new, FATTN_F32, N * D, 1);
    fill(cosine, FATTN_F32, LONG * D / 2, 2);
    for (int run = 0; run < 5; run++) {
        static const int32_t threads[] = {1, 2, 3, 7, 7};
        const int to = run > 0;
        const fattn_context_options options = {
            .struct_size = sizeof options, .threads = threads[run], .parallel_for = run == 4 ? from_last_to_first : NULL};
        const fattn_desc desc = {.struct_size = sizeof desc,
                                 .dtype = FATTN_F32,
                                 .kv_dtype = FATTN_I8,
                                 .batch = B,
                                 .heads_q = HQ,
                                 .heads_kv = HKV,
                                 .seq_q = LONG,
                                 .seq_k = LONG,
                                 .dim = D,
                                 .dim_v = D};
        const fattn_cache_args args = {.struct_size = sizeof args,
                                       .k_new = fattn_view_bhsd(k_new, HKV, LONG, D),
                                       .v_new = fattn_view_bhsd(k_new, HKV, LONG, D),
                                       .q = fattn_view_bhsd(q[to], HQ, LONG, D),
                                       .k = fattn_view_bhsd(k[to], HKV, LONG, D),
                                       .v = fattn_view_bhsd(v[to], HKV, LONG, D),
                                       .used_k = used,
                                       .k_scales = scales[to][0],
                                       .v_scales = scales[to][1],
                                       .rotary_cos = cosine,
                                       .rotary_sin = cosine,
                                       .rotary_dim = D,
                                       .rotary_rows = LONG};
        fattn_context *context;
        assert_ok(fattn_context_create(&options, &context));
        fill(q[to], FATTN_F32, B * HQ * LONG * D, 3);
        memset(k[to], POISON, sizeof k[to]);
        memset(v[to], POISON, sizeof v[to]);
        assert_ok(fattn_cache_append(context, &desc, &args));
        assert_memory_equal(k[to], k[0], sizeof k[0]);
        assert_memory_equal(v[to], v[0], sizeof v[0]);
        assert_memory_equal(scales[to], scales[0], sizeof scales[0]);
        assert_memory_equal(q[to], q[0], sizeof q[0]);
        fattn_context_destroy(context);
    }
}

static void caller_rounds_otherwise(void **state)
{
#if (defined(__SSE__) || defined(__aarch64__)) && defined(FE_UPWARD)
    (void)state;
    for (int32_t kv = 0; kv <= FATTN_I8; kv += FATTN_I8) {
        cache c, nearest;
        cache_make(&c, FATTN_BF16, kv, 0, NULL);
        cache_make(&nearest, FATTN_BF16, kv, 0, NULL);
        use_rotary(&c, D, 0);
        use_rotary(&nearest, D, 0);
        c.used_k[0] = nearest.used_k[0] = 3; /* position 0 does not turn */
        assert_ok(append(&nearest));
        assert_int_equal(fesetround(FE_UPWARD), 0);
        const fattn_status status = append(&c);
        const int after = fegetround();
        fesetround(FE_TONEAREST);
        assert_ok(status);
        assert_int_equal(after, FE_UPWARD);
        assert_memory_equal(c.k, nearest.k, (size_t)c.rows * HKV * D * (kv ? 1 : 2));
        assert_memory_equal(c.k_scales, nearest.k_scales, sizeof c.k_scales);
        assert_memory_equal(c.q, nearest.q, B * HQ * NEW * D * 2);
        cache_free(&c);
        cache_free(&nearest);
    }
#else
    (void)state;
    skip(); /* src/core/flush.h leaves the mode alone here */
#endif
}

static void no_rows(void **state)
{
    cache c;
    (void)state;
    everything(&c);
    c.desc.seq_q = 0;
    c.used_q[0] = c.used_q[2] = 0;
    c.args.k_new.data = c.args.v_new.data = NULL;
    assert_ok(append(&c));
    untouched(&c);
    c.desc.batch = 0;
    c.args.used_k = NULL, c.args.used_q = NULL, c.args.page_table = NULL;
    assert_ok(append(&c));
    untouched(&c);
    cache_free(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(presence),
        cmocka_unit_test(rotary_arguments),
        cmocka_unit_test(rows_that_do_not_fit),
        cmocka_unit_test(overlaps),
        cmocka_unit_test(interleaved_memory),
        cmocka_unit_test(any_number_of_threads),
        cmocka_unit_test(caller_rounds_otherwise),
        cmocka_unit_test(no_rows),
    };
    return cmocka_run_group_tests_name("cache_errors", tests, NULL, NULL);
}
