/*
 * fattn_merge and its gradient against plain loops; special values; the same bits in place and from any threads. parts.c joins
 * results of kernels, merge_errors.c has what is refused.
 */
#include <fenv.h>

#include "merge.h"

static bool close_to(double got, double wanted, double error)
{
    return got == wanted || (isnan(got) && isnan(wanted)) || fabs(got - wanted) <= error;
}

/* ------------------------------------------------------------------------------------------------------- against loops */

/* Row n from the formulas of the header, without caring for large exponents. */
static double plain_row(const parts *p, int64_t n, double out[DV])
{
    double total = 0;
    memset(out, 0, DV * sizeof *out);
    for (int32_t i = 0; i < p->count; i++)
        total += exp(get(p->lse[i], p->type, n));
    for (int32_t i = 0; i < p->count; i++)
        for (int64_t x = 0; x < DV && get(p->lse[i], p->type, n) > -(double)INFINITY; x++)
            out[x] += exp(get(p->lse[i], p->type, n) - log(total)) * get(p->out[i], p->type, at(&p->outs[i], n, x));
    return log(total);
}

static void check_forward(const parts *p)
{
    const int32_t dtype = p->desc.out_dtype ? p->desc.out_dtype : p->desc.dtype;
    for (int64_t n = 0; n < ROWS; n++) {
        double out[DV];
        const double lse = plain_row(p, n, out);
        assert_true(close_to(get(p->whole_lse, p->type, n), lse, 4 * roundoff(p->type) * (1 + fabs(lse))));
        for (int64_t x = 0; x < DV; x++)
            assert_true(close_to(get(p->whole, dtype, at(&p->forward.out, n, x)), out[x],
                                 roundoff(dtype) * fabs(out[x]) + 1e-14 + (dtype == FATTN_F16 ? 0x1p-25 : 0)));
    }
}

static void check_backward(const parts *p)
{
    const int32_t dtype = p->desc.out_dtype ? p->desc.out_dtype : p->desc.dtype;
    const double error = 2 * roundoff(p->type);
    for (int64_t n = 0; n < ROWS; n++)
        for (int32_t i = 0; i < p->count; i++) {
            const double lse_p = get(p->lse[i], p->type, n);
            const double w = exp(lse_p - get(p->whole_lse, p->type, n));
            double dot = get(p->dlse, p->type, n);
            for (int64_t x = 0; x < DV; x++) {
                const double dout = get(p->dout, dtype, at(&p->backward.dout, n, x));
                dot +=
                    dout * (get(p->out[i], p->type, at(&p->outs[i], n, x)) - get(p->whole, dtype, at(&p->forward.out, n, x)));
                assert_true(close_to(get(p->dout_p[i], p->type, at(&p->douts[i], n, x)), w * dout, error));
            }
            assert_true(close_to(get(p->dlse_p[i], p->type, n), w * dot, 20 * error));
        }
}

static const int32_t types[][2] = {{FATTN_F32, 0},         {FATTN_F64, 0},         {FATTN_F16, 0},
                                   {FATTN_BF16, 0},        {FATTN_F16, FATTN_F32}, {FATTN_BF16, FATTN_F32},
                                   {FATTN_F32, FATTN_F32}, {FATTN_F64, FATTN_F64}};
enum { TYPES = sizeof types / sizeof *types };

static void against_loops(void **state)
{
    static const int32_t counts[] = {1, 2, PARTS_MOST};
    (void)state;
    for (int t = 0; t < TYPES; t++)
        for (int c = 0; c < 3; c++) {
            parts p;
            parts_make(&p, types[t][0], types[t][1], counts[c]);
            assert_ok(fattn_merge(p.context, &p.desc, &p.forward));
            check_forward(&p);
            assert_ok(fattn_merge_backward(p.context, &p.desc, &p.backward));
            check_backward(&p);
            parts_free(&p);
        }
}

/* One partial is returned as it is. */
static void one_part(void **state)
{
    parts p;
    (void)state;
    parts_make(&p, FATTN_F64, 0, 1);
    p.forward.out = fattn_view_bhsd(p.whole, H, S, DV);
    assert_ok(fattn_merge(p.context, &p.desc, &p.forward));
    assert_memory_equal(p.whole, p.out[0], ROWS * DV * sizeof(double));
    assert_memory_equal(p.whole_lse, p.lse[0], ROWS * sizeof(double));
    parts_free(&p);
}

/* Packed: [heads, total, dim], whatever batch, seq_q and the batch stride say. */
static void packed(void **state)
{
    parts p;
    (void)state;
    parts_make(&p, FATTN_F32, 0, 3);
    p.desc.total_q = B * S; /* the same rows, only in another order */
    p.desc.batch = 5;
    p.desc.seq_q = 4;
    p.forward.out = (fattn_view){p.whole, -12345, B * S * DV, DV};
    for (int32_t i = 0; i < p.count; i++)
        p.outs[i] = (fattn_view){p.out[i], 999, B * S * DV, DV};
    assert_ok(fattn_merge(p.context, &p.desc, &p.forward));
    for (int64_t n = 0; n < ROWS; n++) {
        double total = 0, out = 0;
        for (int32_t i = 0; i < p.count; i++) {
            total += exp(get(p.lse[i], FATTN_F32, n));
            out += exp(get(p.lse[i], FATTN_F32, n)) * get(p.out[i], FATTN_F32, n * DV);
        }
        assert_true(close_to(get(p.whole_lse, FATTN_F32, n), log(total), 1e-6));
        assert_true(close_to(get(p.whole, FATTN_F32, n * DV), out / total, 1e-6));
    }
    parts_free(&p);
}

/* Weights are exponentials to base e: of two equal halves of 4096 equal keys, each lse is ln 2048, and the whole's ln 4096. */
static void base_e(void **state)
{
    enum { KEYS = 4096, N = 4 };
    const float zero[N] = {0};
    fattn_context *context = make_context(1, NULL);
    float v[KEYS], out[2] = {0}, lse[2] = {0}, whole = 0, whole_lse = 0;
    fattn_desc desc = {.struct_size = sizeof desc,
                       .dtype = FATTN_F32,
                       .batch = 1,
                       .heads_q = 1,
                       .heads_kv = 1,
                       .seq_q = 1,
                       .seq_k = KEYS / 4,
                       .dim = N,
                       .dim_v = 1};
    (void)state;
    for (int j = 0; j < KEYS; j++)
        v[j] = j < KEYS / 4 ? 1 : 5;
    fattn_view outs[2];
    const void *lses[2];
    for (int p = 0; p < 2; p++) {
        desc.seq_k = p == 0 ? KEYS / 4 : KEYS - KEYS / 4;
        run_forward(context, &desc,
                    (fattn_forward_args){.q = {(void *)(uintptr_t)zero, 0, 0, 0},
                                         .k = {(void *)(uintptr_t)zero, 0, 0, 0},
                                         .v = fattn_view_bhsd(v + (p == 0 ? 0 : KEYS / 4), 1, desc.seq_k, 1),
                                         .out = fattn_view_bhsd(&out[p], 1, 1, 1),
                                         .lse = &lse[p]});
        outs[p] = fattn_view_bhsd(&out[p], 1, 1, 1);
        lses[p] = &lse[p];
        assert_true(close_to((double)lse[p], log((double)desc.seq_k), 1e-6));
    }
    const fattn_merge_args args = {.struct_size = sizeof args,
                                   .count = 2,
                                   .outs = outs,
                                   .lses = lses,
                                   .out = fattn_view_bhsd(&whole, 1, 1, 1),
                                   .lse = &whole_lse};
    assert_ok(fattn_merge(context, &desc, &args));
    assert_true(close_to((double)whole, 4, 4e-6)); /* a quarter of 1s and three of 5s */
    assert_true(close_to((double)whole_lse, log(KEYS), 1e-6));
    fattn_context_destroy(context);
}

/* ------------------------------------------------------------------------------------------------------- special values */

static void empties(void **state)
{
    static const int32_t dtypes[] = {FATTN_F32, FATTN_F64, FATTN_BF16};
    (void)state;
    for (int t = 0; t < 3; t++) {
        const int32_t dtype = dtypes[t];
        parts p;
        parts_make(&p, dtype, 0, 3);
        for (int32_t i = 0; i < 3; i++)
            set(p.lse[i], p.type, 4, -(double)INFINITY); /* row 4 has no keys at all, row 5 only those of part 1 */
        set(p.lse[0], p.type, 5, -(double)INFINITY);
        set(p.lse[2], p.type, 5, -(double)INFINITY);
        for (int64_t x = 0; x < DV; x++) {
            set(p.out[0], p.type, at(&p.outs[0], 4, x), NAN);
            set(p.out[1], p.type, at(&p.outs[1], 4, x), INFINITY);
            set(p.out[2], p.type, at(&p.outs[2], 5, x), NAN);
        }
        assert_ok(fattn_merge(p.context, &p.desc, &p.forward));
        check_forward(&p);
        assert_true(get(p.whole_lse, p.type, 4) == -(double)INFINITY);
        assert_true(get(p.whole_lse, p.type, 5) == get(p.lse[1], p.type, 5));
        for (int64_t x = 0; x < DV; x++)
            assert_true(get(p.whole, dtype, at(&p.forward.out, 4, x)) == 0);
        assert_ok(fattn_merge_backward(p.context, &p.desc, &p.backward));
        for (int32_t i = 0; i < 3; i++)
            for (int64_t x = 0; x < DV; x++) {
                assert_true(get(p.dout_p[i], p.type, at(&p.douts[i], 4, x)) == 0);
                assert_true((get(p.dout_p[i], p.type, at(&p.douts[i], 5, x)) == 0) == (i != 1));
                assert_true(get(p.dlse_p[i], p.type, 4) == 0);
                assert_true((get(p.dlse_p[i], p.type, 5) == 0) == (i != 1));
            }
        parts_free(&p);
    }
}

/* A NaN reaches its own row and no other; +inf outweighs all else, and two of them are in no proportion. */
static void nan_and_infinity(void **state)
{
    parts p, clean;
    (void)state;
    parts_make(&p, FATTN_F32, 0, 3);
    parts_make(&clean, FATTN_F32, 0, 3);
    set(p.out[1], FATTN_F32, at(&p.outs[1], 3, 2), NAN);
    set(p.lse[2], FATTN_F32, 8, NAN);
    set(p.lse[0], FATTN_F32, 11, INFINITY);
    set(p.lse[0], FATTN_F32, 13, INFINITY);
    set(p.lse[1], FATTN_F32, 13, INFINITY);
    assert_ok(fattn_merge(p.context, &p.desc, &p.forward));
    assert_ok(fattn_merge(clean.context, &clean.desc, &clean.forward));
    assert_ok(fattn_merge_backward(p.context, &p.desc, &p.backward));
    assert_ok(fattn_merge_backward(clean.context, &clean.desc, &clean.backward));
    for (int64_t n = 0; n < ROWS; n++) {
        const double lse = get(p.whole_lse, FATTN_F32, n);
        assert_true(n == 11 ? lse == (double)INFINITY : isnan(lse) == (n == 8 || n == 13));
        for (int64_t x = 0; x < DV; x++) {
            const double out = get(p.whole, FATTN_F32, at(&p.forward.out, n, x));
            assert_int_equal(isnan(out), n == 8 || n == 13 || (n == 3 && x == 2));
            if (n == 11)
                assert_true(out == get(p.out[0], FATTN_F32, at(&p.outs[0], n, x)));
            else if (!isnan(out))
                assert_true(out == get(clean.whole, FATTN_F32, at(&p.forward.out, n, x)));
            for (int32_t i = 0; n != 3 && n != 8 && n != 11 && n != 13 && i < 3; i++)
                assert_true(get(p.dout_p[i], FATTN_F32, at(&p.douts[i], n, x)) ==
                            get(clean.dout_p[i], FATTN_F32, at(&p.douts[i], n, x)));
        }
    }
    assert_true(isnan(get(p.dlse_p[1], FATTN_F32, 3)) && isnan(get(p.dlse_p[0], FATTN_F32, 8)));
    assert_true(get(p.dlse_p[0], FATTN_F32, 11) == get(p.dlse, FATTN_F32, 11)); /* all of it, as out_0 is out */
    assert_true(get(p.dlse_p[1], FATTN_F32, 11) == 0);
    parts_free(&p);
    parts_free(&clean);
}

/* Large lses of either sign cost nothing: only differences matter. */
static void large_exponents(void **state)
{
    static const double shifts[] = {3e4, -3e4};
    (void)state;
    for (int k = 0; k < 2; k++) {
        parts p, near_zero;
        parts_make(&p, FATTN_F64, 0, 3);
        parts_make(&near_zero, FATTN_F64, 0, 3);
        for (int32_t i = 0; i < 3; i++)
            for (int64_t n = 0; n < ROWS; n++)
                set(p.lse[i], FATTN_F64, n, get(p.lse[i], FATTN_F64, n) + shifts[k]);
        assert_ok(fattn_merge(p.context, &p.desc, &p.forward));
        assert_ok(fattn_merge(near_zero.context, &near_zero.desc, &near_zero.forward));
        for (int64_t n = 0; n < ROWS * DV; n++)
            assert_true(close_to(get(p.whole, FATTN_F64, n), get(near_zero.whole, FATTN_F64, n), 1e-10));
        for (int64_t n = 0; n < ROWS; n++)
            assert_true(close_to(get(p.whole_lse, FATTN_F64, n) - shifts[k], get(near_zero.whole_lse, FATTN_F64, n), 1e-10));
        parts_free(&p);
        parts_free(&near_zero);
    }
}

/* ------------------------------------------------------------------------------------------------------- same bits */

static void in_place(void **state)
{
    (void)state;
    for (int t = 0; t < TYPES; t++)
        for (int32_t i = 0; i < 3; i++) {
            parts p;
            parts_make(&p, types[t][0], types[t][1], 3);
            const int32_t dtype = types[t][1] ? types[t][1] : types[t][0];
            assert_ok(fattn_merge(p.context, &p.desc, &p.forward));
            p.forward.out = p.outs[i];
            if (dtype != p.type) { /* out is of another type: it cannot lie there */
                assert_fails(fattn_merge(p.context, &p.desc, &p.forward), FATTN_ERROR_ARGUMENT, "args.out");
                parts_free(&p);
                continue;
            }
            p.forward.lse = p.lse[i];
            assert_ok(fattn_merge(p.context, &p.desc, &p.forward));
            const fattn_view whole = fattn_view_bshd(p.whole, H, S, DV);
            assert_memory_equal(p.lse[i], p.whole_lse, ROWS * size_of(p.type));
            for (int64_t n = 0; n < ROWS; n++)
                assert_memory_equal((char *)p.out[i] + (size_t)at(&p.outs[i], n, 0) * size_of(dtype),
                                    (char *)p.whole + (size_t)at(&whole, n, 0) * size_of(dtype), DV * size_of(dtype));
            parts_free(&p);
        }
}

static void from_last_to_first(void *user, int32_t count, void (*body)(void *arg, int32_t index), void *arg)
{
    (void)user;
    for (int32_t i = count - 1; i >= 0; i--)
        body(arg, i);
}

/* Many rows, so that there is work for many threads. */
static void any_number_of_threads(void **state)
{
    enum { LONG = 700, N = B * H * LONG };
    static float out[2][N * DV], lse[2][N], whole[2][N * DV], whole_lse[2][N], dout_p[2][2][N * DV], dlse_p[2][2][N];
    uint64_t seed = 5;
    (void)state;
    for (int p = 0; p < 2; p++) {
        fill(out[p], FATTN_F32, N * DV, ++seed);
        fill(lse[p], FATTN_F32, N, ++seed);
    }
    const fattn_view outs[2] = {fattn_view_bhsd(out[0], H, LONG, DV), fattn_view_bhsd(out[1], H, LONG, DV)};
    const void *const lses[2] = {lse[0], lse[1]};
    for (int32_t run = 0; run < 5; run++) {
        static const int32_t threads[] = {1, 2, 3, 7, 7};
        const fattn_context_options options = {
            .struct_size = sizeof options, .threads = threads[run], .parallel_for = run == 4 ? from_last_to_first : NULL};
        const fattn_desc desc = {.struct_size = sizeof desc,
                                 .dtype = FATTN_F32,
                                 .batch = B,
                                 .heads_q = H,
                                 .heads_kv = H,
                                 .seq_q = LONG,
                                 .dim = 1,
                                 .dim_v = DV};
        fattn_context *context;
        const int to = run > 0;
        const fattn_view douts[2] = {fattn_view_bhsd(dout_p[to][0], H, LONG, DV), fattn_view_bhsd(dout_p[to][1], H, LONG, DV)};
        void *const dlses[2] = {dlse_p[to][0], dlse_p[to][1]};
        const fattn_merge_args forward = {.struct_size = sizeof forward,
                                          .count = 2,
                                          .outs = outs,
                                          .lses = lses,
                                          .out = fattn_view_bhsd(whole[to], H, LONG, DV),
                                          .lse = whole_lse[to]};
        const fattn_merge_backward_args backward = {.struct_size = sizeof backward,
                                                    .count = 2,
                                                    .outs = outs,
                                                    .lses = lses,
                                                    .out = forward.out,
                                                    .lse = whole_lse[to],
                                                    .dout = outs[1],
                                                    .douts = douts,
                                                    .dlses = dlses};
        assert_ok(fattn_context_create(&options, &context));
        memset(whole[to], POISON, sizeof whole[to]);
        memset(dout_p[to], POISON, sizeof dout_p[to]);
        assert_ok(fattn_merge(context, &desc, &forward));
        assert_ok(fattn_merge_backward(context, &desc, &backward));
        assert_memory_equal(whole[to], whole[0], sizeof whole[0]);
        assert_memory_equal(whole_lse[to], whole_lse[0], sizeof whole_lse[0]);
        assert_memory_equal(dout_p[to], dout_p[0], sizeof dout_p[0]);
        assert_memory_equal(dlse_p[to], dlse_p[0], sizeof dlse_p[0]);
        fattn_context_destroy(context);
    }
}

static void caller_rounds_otherwise(void **state)
{
#if (defined(__SSE__) || defined(__aarch64__)) && defined(FE_UPWARD)
    parts p, nearest;
    (void)state;
    parts_make(&p, FATTN_BF16, 0, 3);
    parts_make(&nearest, FATTN_BF16, 0, 3);
    assert_ok(fattn_merge(nearest.context, &nearest.desc, &nearest.forward));
    assert_int_equal(fesetround(FE_UPWARD), 0);
    const fattn_status status = fattn_merge(p.context, &p.desc, &p.forward);
    const int after = fegetround();
    fesetround(FE_TONEAREST);
    assert_ok(status);
    assert_int_equal(after, FE_UPWARD);
    assert_memory_equal(p.whole, nearest.whole, ROWS * DV * 2);
    assert_memory_equal(p.whole_lse, nearest.whole_lse, ROWS * 4);
    parts_free(&p);
    parts_free(&nearest);
#else
    (void)state;
    skip(); /* src/core/flush.h leaves the mode alone here */
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(against_loops),
        cmocka_unit_test(one_part),
        cmocka_unit_test(packed),
        cmocka_unit_test(base_e),
        cmocka_unit_test(empties),
        cmocka_unit_test(nan_and_infinity),
        cmocka_unit_test(large_exponents),
        cmocka_unit_test(in_place),
        cmocka_unit_test(any_number_of_threads),
        cmocka_unit_test(caller_rounds_otherwise),
    };
    return cmocka_run_group_tests_name("merge", tests, NULL, NULL);
}
