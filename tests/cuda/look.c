/*
 * fattn_scores on a GPU against the CPU's: every mask and feature, packed, padded and paged keys, bytes.
 */
#include "arena.h"

enum {
    B = 3,
    HQ = 4,
    HKV = 2,
    SQ = 7,
    SK = 300,
    D = 24,
    DV = 5,
    PAGE = 16,
    COLUMNS = (SK + PAGE - 1) / PAGE,
    PAGES = B * COLUMNS
};
enum { PACKED_Q = 3 + 0 + SQ, PACKED_K = 40 + 17 + SK };

typedef struct looked {
    fattn_desc desc;
    fattn_forward_args args;
    fattn_view bias; /* args.bias points here on the host */
    double *scores, *probabilities;
} looked;

static const void *take_list(const int32_t *list, size_t count)
{
    return memcpy(take(count * sizeof *list), list, count * sizeof *list);
}

static void make(looked *l, int32_t dtype, int32_t kv_dtype)
{
    const int32_t kv = kv_dtype ? kv_dtype : dtype;
    const double size = kv == FATTN_I8 ? 127 : 2;
    arena_clear();
    *l = (looked){.desc = {.struct_size = sizeof l->desc,
                           .dtype = dtype,
                           .kv_dtype = kv_dtype,
                           .batch = B,
                           .heads_q = HQ,
                           .heads_kv = HKV,
                           .seq_q = SQ,
                           .seq_k = SK,
                           .dim = D,
                           .dim_v = DV}};
    l->args.struct_size = sizeof l->args;
    l->args.q = fattn_view_bshd(take_numbers(dtype, B * HQ * SQ * D, 1, 2), HQ, SQ, D);
    l->args.k = fattn_view_bhsd(take_numbers(kv, PAGES * PAGE * HKV * D, 2, size), HKV, SK, D);
    l->args.v = fattn_view_bhsd(take_numbers(kv, PAGES * PAGE * HKV * DV, 3, size), HKV, SK, DV);
    l->scores = take_numbers(FATTN_F64, SK, 0, 0);
    l->probabilities = take_numbers(FATTN_F64, SK, 0, 0);
    if (kv == FATTN_I8) {
        l->args.k_scales = take_numbers(FATTN_F32, PAGES * PAGE * HKV, 4, 0.02);
        l->args.v_scales = take_numbers(FATTN_F32, PAGES * PAGE * HKV, 5, 0.02);
    }
}

static fattn_forward_args args_there(const looked *l, fattn_view *bias)
{
    const fattn_forward_args *host = &l->args;
    fattn_forward_args args = *host;
    *bias = view_there(l->bias);
    args.q = view_there(host->q), args.k = view_there(host->k), args.v = view_there(host->v);
    args.bias = host->bias ? bias : NULL;
    const void **const pointers[] = {
        (const void **)&args.cu_seqlens_q, (const void **)&args.cu_seqlens_k, (const void **)&args.used_q,
        (const void **)&args.used_k,       (const void **)&args.mask_lo,      (const void **)&args.mask_hi,
        (const void **)&args.slopes,       (const void **)&args.sinks,        (const void **)&args.document_q,
        (const void **)&args.document_k,   (const void **)&args.page_table,   (const void **)&args.k_scales,
        (const void **)&args.v_scales};
    for (size_t i = 0; i < sizeof pointers / sizeof *pointers; i++)
        *pointers[i] = there(*pointers[i]);
    args.stream = a.stream;
    return args;
}

typedef struct look {
    const looked *of;
    int64_t b, h, i;
    double *scores, *probabilities;
} look;

static fattn_status look_there(const void *what)
{
    const look *w = what;
    fattn_view bias;
    const fattn_forward_args args = args_there(w->of, &bias);
    return fattn_scores(a.gpu_context, &w->of->desc, &args, w->b, w->h, w->i, there(w->scores), there(w->probabilities));
}

/* Some rows of every head and sequence, and those of one only in part. apart: the GPU's in threads of their own. */
static void compare_called(const looked *l, bool apart)
{
    for (int64_t n = 0; n < B * HQ * SQ; n += 5) {
        const look w = {
            l, n / SQ / HQ, n / SQ % HQ, n % SQ, n % 3 == 1 ? NULL : l->scores, n % 3 == 2 ? NULL : l->probabilities};
        push();
        assert_ok(fattn_scores(a.cpu_context, &l->desc, &l->args, w.b, w.h, w.i, w.scores, w.probabilities));
        if (apart)
            assert_ok_apart(look_there, &w);
        else
            assert_ok(look_there(&w));
        pull();
        assert_alike("scores", l->scores, FATTN_F64, SK, 1e-14, 1e-13);
        assert_alike("probabilities", l->probabilities, FATTN_F64, SK, 1e-12, 1e-15);
        assert_rest();
    }
}

static void compare(const looked *l)
{
    compare_called(l, false);
}

static void without_a_context(void **state)
{
    looked l;
    (void)state;
    needs_gpu();
    make(&l, FATTN_BF16, 0);
    compare_called(&l, true);
}

static void types(void **state)
{
    static const int32_t all[][2] = {{FATTN_F32, 0},  {FATTN_F64, 0},        {FATTN_F16, 0},
                                     {FATTN_BF16, 0}, {FATTN_F32, FATTN_I8}, {FATTN_BF16, FATTN_I8}};
    looked l;
    (void)state;
    needs_gpu();
    for (size_t t = 0; t < sizeof all / sizeof *all; t++) {
        make(&l, all[t][0], all[t][1]);
        compare(&l);
    }
}

static void features(void **state)
{
    looked l;
    (void)state;
    needs_gpu();
    make(&l, FATTN_F32, 0);
    l.desc.softcap = 5;
    compare(&l);
    l.desc.flags = FATTN_WITH_BIAS | FATTN_WITH_SLOPES | FATTN_WITH_SINKS;
    l.bias = (fattn_view){take_numbers(FATTN_F32, HQ * SQ * SK, 6, 3), 0, SQ * SK, SK};
    l.args.bias = &l.bias;
    l.args.slopes = take_numbers(FATTN_F32, HQ, 7, 0.2);
    l.args.sinks = take_numbers(FATTN_F32, HQ, 8, 4);
    compare(&l);
    set(l.bias.data, FATTN_F32, 5, NAN);
    set(l.bias.data, FATTN_F32, SK + 6, INFINITY);
    set(l.bias.data, FATTN_F32, SK + 7, -(double)INFINITY);
    compare(&l);
}

static void use_mask(looked *l, int32_t mask)
{
    int32_t lo[SQ], hi[SQ], document_q[B * SQ], document_k[B * SK];
    l->desc.mask = mask;
    l->desc.align = mask % 2 ? FATTN_ALIGN_BOTTOM_RIGHT : FATTN_ALIGN_TOP_LEFT;
    l->desc.mask_size = mask == FATTN_MASK_CHUNKED || mask == FATTN_MASK_PREFIX ? 4 : 0;
    if (mask == FATTN_MASK_WINDOW || mask == FATTN_MASK_DOCUMENT)
        l->desc.window_left = 200, l->desc.window_right = 9;
    for (int32_t i = 0; i < SQ; i++)
        lo[i] = 20 * i, hi[i] = i == 2 ? 0 : 20 * i + 50;
    for (int32_t i = 0; i < B * SQ; i++)
        document_q[i] = i % SQ / 2;
    for (int32_t j = 0; j < B * SK; j++)
        document_k[j] = j % SK / 100;
    if (mask == FATTN_MASK_INTERVALS)
        l->args.mask_lo = take_list(lo, SQ), l->args.mask_hi = take_list(hi, SQ);
    if (mask == FATTN_MASK_DOCUMENT)
        l->args.document_q = take_list(document_q, B * SQ), l->args.document_k = take_list(document_k, B * SK);
}

static void masks(void **state)
{
    looked l;
    (void)state;
    needs_gpu();
    for (int32_t mask = FATTN_MASK_FULL; mask <= FATTN_MASK_INTERVALS; mask++) {
        make(&l, FATTN_BF16, 0);
        use_mask(&l, mask);
        compare(&l);
    }
}

/* Sequences of differing lengths, packed and padded, one of them without queries. */
static void lengths(void **state)
{
    static const int32_t cu_q[B + 1] = {0, 3, 3, PACKED_Q}, cu_k[B + 1] = {0, 40, 57, PACKED_K}, used_q[B] = {4, 0, SQ},
                                  used_k[B] = {SK, 17, 0};
    looked l;
    (void)state;
    needs_gpu();
    make(&l, FATTN_F16, 0);
    l.desc.mask = FATTN_MASK_CAUSAL, l.desc.align = FATTN_ALIGN_BOTTOM_RIGHT;
    l.args.used_q = take_list(used_q, B), l.args.used_k = take_list(used_k, B);
    compare(&l);
    l.args.used_q = l.args.used_k = NULL;
    l.desc.total_q = PACKED_Q, l.desc.total_k = PACKED_K;
    l.args.cu_seqlens_q = take_list(cu_q, B + 1), l.args.cu_seqlens_k = take_list(cu_k, B + 1);
    l.args.q = fattn_view_bhsd(l.args.q.data, HQ, PACKED_Q, D);
    l.args.k = fattn_view_bhsd(l.args.k.data, HKV, PACKED_K, D);
    l.args.v = fattn_view_bhsd(l.args.v.data, HKV, PACKED_K, DV);
    compare(&l);
}

static void pages(void **state)
{
    int32_t table[PAGES];
    (void)state;
    needs_gpu();
    for (int32_t n = 0; n < PAGES; n++)
        table[n] = (n * 7 + 3) % PAGES;
    for (int bytes = 0; bytes < 2; bytes++) {
        looked l;
        make(&l, FATTN_BF16, bytes ? FATTN_I8 : 0);
        l.desc.page_size = PAGE, l.desc.pages = PAGES;
        l.args.page_table = take_list(table, PAGES);
        l.args.k = fattn_view_bhsd(l.args.k.data, HKV, PAGE, D);
        l.args.v = fattn_view_bhsd(l.args.v.data, HKV, PAGE, DV);
        compare(&l);
    }
}

static void refusals(void **state)
{
    looked l;
    fattn_view bias;
    (void)state;
    needs_gpu();
    make(&l, FATTN_F32, 0);
    push();
    fattn_forward_args args = args_there(&l, &bias);
    double *scores = there(l.scores);
    assert_fails(fattn_scores(a.gpu_context, &l.desc, &args, 0, 0, SQ, scores, NULL), FATTN_ERROR_ARGUMENT, "row is 7");
    args.k.data = NULL;
    assert_fails(fattn_scores(a.gpu_context, &l.desc, &args, 0, 0, 0, scores, NULL), FATTN_ERROR_ARGUMENT,
                 "args.k.data is NULL");
    pull();
    assert_rest();
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(types),
                                       cmocka_unit_test(features),
                                       cmocka_unit_test(masks),
                                       cmocka_unit_test(lengths),
                                       cmocka_unit_test(pages),
                                       cmocka_unit_test(refusals),
                                       cmocka_unit_test(without_a_context)};
    return cmocka_run_group_tests_name("cuda_look", tests, arena_open, arena_close);
}
