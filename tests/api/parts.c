/*
 * A problem cut into parts by its keys: each part computed by itself and joined by fattn_merge equals the whole in one pass,
 * out, lse and all gradients, by either way of differentiating: through fattn_merge_backward, or as a ring does, with the
 * whole's out and lse for each part.
 */
#include "numbers.h"

enum { B = 2, HQ = 4, HKV = 2, SQ = 31, SK = 61, D = 12, DV = 9, PARTS = 4 };
enum { Q_N = B * HQ * SQ, K_N = B * HKV * SK };

/* Where the parts' keys begin; the last is long, one has a single key. */
static const int64_t cut[PARTS + 1] = {0, 17, 18, 30, SK};

typedef struct whole {
    fattn_context *context;
    int32_t dtype;
    void *q, *k, *v, *dout, *dlse;
    fattn_desc desc;
    fattn_view vq, vk, vv, vdout;
    int32_t hi[PARTS][SQ], lo[SQ]; /* what rows keep of the parts */
} whole;

static void whole_make(whole *w, int32_t dtype, int32_t out_dtype, int32_t mask)
{
    memset(w, 0, sizeof *w);
    w->dtype = dtype;
    w->q = make_numbers(dtype, Q_N * D, 1, 2);
    w->k = make_numbers(dtype, K_N * D, 2, 2);
    w->v = make_numbers(dtype, K_N * DV, 3, 2);
    w->dout = make_numbers(out_dtype ? out_dtype : dtype, Q_N * DV, 4, 1);
    w->dlse = make_numbers(dtype == FATTN_F64 ? FATTN_F64 : FATTN_F32, Q_N, 5, 1);
    w->vq = fattn_view_bhsd(w->q, HQ, SQ, D);
    w->vk = fattn_view_bhsd(w->k, HKV, SK, D);
    w->vv = fattn_view_bhsd(w->v, HKV, SK, DV);
    w->vdout = fattn_view_bhsd(w->dout, HQ, SQ, DV);
    w->desc = (fattn_desc){.struct_size = sizeof w->desc,
                           .dtype = dtype,
                           .out_dtype = out_dtype,
                           .mask = mask,
                           .batch = B,
                           .heads_q = HQ,
                           .heads_kv = HKV,
                           .seq_q = SQ,
                           .seq_k = SK,
                           .dim = D,
                           .dim_v = DV};
    for (int p = 0; p < PARTS; p++)
        for (int i = 0; i < SQ; i++)
            w->hi[p][i] = i + 1 - (int32_t)cut[p]; /* may be negative, or beyond the part */
}

static void whole_free(whole *w)
{
    free(w->q), free(w->k), free(w->v), free(w->dout), free(w->dlse);
    fattn_context_destroy(w->context);
}

/* The descriptor of a part: its keys alone. What is causal in the whole is an interval in the part. */
static fattn_desc part_desc(const whole *w, int p)
{
    fattn_desc desc = w->desc;
    desc.seq_k = cut[p + 1] - cut[p];
    desc.mask = w->desc.mask == FATTN_MASK_CAUSAL ? FATTN_MASK_INTERVALS : FATTN_MASK_FULL;
    if (w->dtype == FATTN_F16 || w->dtype == FATTN_BF16)
        desc.out_dtype = FATTN_F32;
    return desc;
}

static fattn_view keys_from(const fattn_view *view, int32_t dtype, int64_t first)
{
    fattn_view part = *view;
    part.data = (char *)view->data + first * view->stride_row * (int64_t)size_of(dtype);
    return part;
}

static fattn_forward_args part_args(const whole *w, int p)
{
    const bool causal = w->desc.mask == FATTN_MASK_CAUSAL;
    return (fattn_forward_args){.q = w->vq,
                                .k = keys_from(&w->vk, w->dtype, cut[p]),
                                .v = keys_from(&w->vv, w->dtype, cut[p]),
                                .mask_lo = causal ? w->lo : NULL,
                                .mask_hi = causal ? w->hi[p] : NULL};
}

typedef struct result {
    void *out, *lse, *dq, *dk, *dv;
} result;

static result result_make(int32_t dtype, int32_t type, int64_t keys)
{
    return (result){make_numbers(dtype, Q_N * DV, 0, 0), make_numbers(type, Q_N, 0, 0), make_numbers(dtype, Q_N * D, 0, 0),
                    make_numbers(dtype, B * HKV * keys * D, 0, 0), make_numbers(dtype, B * HKV * keys * DV, 0, 0)};
}

static void result_free(result *r)
{
    free(r->out), free(r->lse), free(r->dq), free(r->dk), free(r->dv);
}

static void one_pass(const whole *w, const result *r)
{
    run_forward(
        w->context, &w->desc,
        (fattn_forward_args){.q = w->vq, .k = w->vk, .v = w->vv, .out = fattn_view_bhsd(r->out, HQ, SQ, DV), .lse = r->lse});
}

static void part_forward(const whole *w, int p, const result *r)
{
    const fattn_desc desc = part_desc(w, p);
    fattn_forward_args args = part_args(w, p);
    args.out = fattn_view_bhsd(r->out, HQ, SQ, DV);
    args.lse = r->lse;
    run_forward(w->context, &desc, args);
}

/* Lists for the calls that join. */
typedef struct lists {
    fattn_view outs[PARTS], douts[PARTS];
    const void *lses[PARTS];
    void *dlses[PARTS];
} lists;

static lists lists_of(const result part[PARTS])
{
    lists l = {0};
    for (int p = 0; p < PARTS; p++) {
        l.outs[p] = fattn_view_bhsd(part[p].out, HQ, SQ, DV);
        l.lses[p] = part[p].lse;
    }
    return l;
}

static void join(const whole *w, const lists *l, const result *r)
{
    const fattn_merge_args args = {.struct_size = sizeof args,
                                   .count = PARTS,
                                   .outs = l->outs,
                                   .lses = l->lses,
                                   .out = fattn_view_bhsd(r->out, HQ, SQ, DV),
                                   .lse = r->lse};
    assert_ok(fattn_merge(w->context, &w->desc, &args));
}

/* ------------------------------------------------------------------------------------------------------------- forward */

/* What the same numbers give in double, at once. */
static void truth(const whole *w, double *out, double *lse)
{
    fattn_context *ref = make_context(1, "ref");
    fattn_desc desc = w->desc;
    desc.dtype = FATTN_F64;
    desc.out_dtype = 0;
    double *q = as_doubles(w->q, w->dtype, Q_N * D), *k = as_doubles(w->k, w->dtype, K_N * D);
    double *v = as_doubles(w->v, w->dtype, K_N * DV);
    run_forward(ref, &desc,
                (fattn_forward_args){.q = fattn_view_bhsd(q, HQ, SQ, D),
                                     .k = fattn_view_bhsd(k, HKV, SK, D),
                                     .v = fattn_view_bhsd(v, HKV, SK, DV),
                                     .out = fattn_view_bhsd(out, HQ, SQ, DV),
                                     .lse = lse});
    free(q), free(k), free(v);
    fattn_context_destroy(ref);
}

/* Values are below 2. A partial's lse is below 16 and rounded, so that a weight is off by 16 roundoffs at most, and an output,
 * a mean of values, by as many again for the sum of weights. */
static void check_forward(const whole *w)
{
    const int32_t dtype = w->desc.out_dtype ? w->desc.out_dtype : w->dtype,
                  type = w->dtype == FATTN_F64 ? FATTN_F64 : FATTN_F32;
    result part[PARTS], once = result_make(dtype, type, SK), joined = result_make(dtype, type, SK);
    double *out = malloc(sizeof(double) * Q_N * DV), *lse = malloc(sizeof(double) * Q_N);
    one_pass(w, &once);
    for (int p = 0; p < PARTS; p++) {
        part[p] = result_make(type, type, cut[p + 1] - cut[p]);
        part_forward(w, p, &part[p]);
    }
    const lists l = lists_of(part);
    join(w, &l, &joined);
    truth(w, out, lse);
    const double error = worst_error(joined.out, dtype, out, Q_N * DV), allowed = worst_error(once.out, dtype, out, Q_N * DV);
    if (!(error <= 2 * allowed + 64 * roundoff(type)))
        fail_msg("dtype %d: out is off by %g, at once by %g", (int)w->dtype, error, allowed);
    const double lse_error = worst_error(joined.lse, type, lse, Q_N), lse_allowed = worst_error(once.lse, type, lse, Q_N);
    if (!(lse_error <= 2 * lse_allowed + 16 * roundoff(type)))
        fail_msg("dtype %d: lse is off by %g, at once by %g", (int)w->dtype, lse_error, lse_allowed);
    for (int p = 0; p < PARTS; p++)
        result_free(&part[p]);
    result_free(&once), result_free(&joined);
    free(out), free(lse);
}

static void parts_make_the_whole(void **state)
{
    static const int32_t types[][2] = {{FATTN_F32, 0},  {FATTN_F64, 0}, {FATTN_BF16, FATTN_F32},
                                       {FATTN_BF16, 0}, {FATTN_F16, 0}, {FATTN_F16, FATTN_F32}};
    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int32_t mask = FATTN_MASK_FULL; mask <= FATTN_MASK_CAUSAL; mask++)
            for (int n = 0, pairs = 1; n < pairs; n++) {
                whole w;
                whole_make(&w, types[t][0], types[t][1], mask);
                w.context = context_of_pair(&w.desc, n, &pairs);
                check_forward(&w);
                whole_free(&w);
            }
}

/* ------------------------------------------------------------------------------------------------------------ backward */

static void one_pass_backward(const whole *w, const result *r)
{
    fattn_desc desc = w->desc;
    desc.flags = FATTN_WITH_DLSE;
    run_backward(w->context, &desc,
                 (fattn_backward_args){.q = w->vq,
                                       .k = w->vk,
                                       .v = w->vv,
                                       .out = fattn_view_bhsd(r->out, HQ, SQ, DV),
                                       .dout = w->vdout,
                                       .dq = fattn_view_bhsd(r->dq, HQ, SQ, D),
                                       .dk = fattn_view_bhsd(r->dk, HKV, SK, D),
                                       .dv = fattn_view_bhsd(r->dv, HKV, SK, DV),
                                       .lse = r->lse,
                                       .dlse = w->dlse});
}

/* dq, dk and dv of part p, whose out, lse, dout and dlse these are. */
static void part_backward(const whole *w, int p, const void *out, const void *lse, const void *dout, const void *dlse,
                          const result *r)
{
    const int64_t keys = cut[p + 1] - cut[p];
    const fattn_forward_args f = part_args(w, p);
    fattn_desc desc = part_desc(w, p);
    desc.flags = FATTN_WITH_DLSE;
    run_backward(w->context, &desc,
                 (fattn_backward_args){.q = f.q,
                                       .k = f.k,
                                       .v = f.v,
                                       .mask_lo = f.mask_lo,
                                       .mask_hi = f.mask_hi,
                                       .out = fattn_view_bhsd(out, HQ, SQ, DV),
                                       .dout = fattn_view_bhsd(dout, HQ, SQ, DV),
                                       .dq = fattn_view_bhsd(r->dq, HQ, SQ, D),
                                       .dk = fattn_view_bhsd(r->dk, HKV, keys, D),
                                       .dv = fattn_view_bhsd(r->dv, HKV, keys, DV),
                                       .lse = lse,
                                       .dlse = dlse});
}

static void near(const char *name, double got, double wanted, double error)
{
    if (!(fabs(got - wanted) <= error))
        fail_msg("%s is %.17g, not %.17g", name, got, wanted);
}

/* The parts' dq add up to the whole's, and their dk and dv are its slices. */
static void check_gradients(const whole *w, const result part[PARTS], const result *once, double error)
{
    for (int64_t n = 0; n < Q_N * D; n++) {
        double sum = 0;
        for (int p = 0; p < PARTS; p++)
            sum += get(part[p].dq, w->dtype, n);
        near("dq", sum, get(once->dq, w->dtype, n), error);
    }
    for (int p = 0; p < PARTS; p++)
        for (int64_t h = 0; h < B * HKV; h++)
            for (int64_t j = cut[p]; j < cut[p + 1]; j++) {
                const int64_t here = h * (cut[p + 1] - cut[p]) + j - cut[p], there = h * SK + j;
                for (int64_t x = 0; x < D; x++)
                    near("dk", get(part[p].dk, w->dtype, here * D + x), get(once->dk, w->dtype, there * D + x), error);
                for (int64_t x = 0; x < DV; x++)
                    near("dv", get(part[p].dv, w->dtype, here * DV + x), get(once->dv, w->dtype, there * DV + x), error);
            }
}

static void join_backward(const whole *w, lists *l, const result *whole_result, void *dout[PARTS], void *dlse[PARTS])
{
    for (int p = 0; p < PARTS; p++) {
        l->douts[p] = fattn_view_bhsd(dout[p], HQ, SQ, DV);
        l->dlses[p] = dlse[p];
    }
    const fattn_merge_backward_args args = {.struct_size = sizeof args,
                                            .count = PARTS,
                                            .outs = l->outs,
                                            .lses = l->lses,
                                            .out = fattn_view_bhsd(whole_result->out, HQ, SQ, DV),
                                            .lse = whole_result->lse,
                                            .dout = w->vdout,
                                            .dlse = w->dlse,
                                            .douts = l->douts,
                                            .dlses = l->dlses};
    assert_ok(fattn_merge_backward(w->context, &w->desc, &args));
}

static void check_backward(const whole *w, double error)
{
    const int32_t type = w->dtype;
    result part[PARTS], once = result_make(type, type, SK), joined = result_make(type, type, SK);
    void *dout[PARTS], *dlse[PARTS];
    for (int p = 0; p < PARTS; p++) {
        part[p] = result_make(type, type, cut[p + 1] - cut[p]);
        part_forward(w, p, &part[p]);
        dout[p] = make_numbers(type, Q_N * DV, 0, 0);
        dlse[p] = make_numbers(type, Q_N, 0, 0);
    }
    lists l = lists_of(part);
    join(w, &l, &joined);
    one_pass(w, &once);
    one_pass_backward(w, &once);
    join_backward(w, &l, &joined, dout, dlse);
    for (int p = 0; p < PARTS; p++)
        part_backward(w, p, part[p].out, part[p].lse, dout[p], dlse[p], &part[p]);
    check_gradients(w, part, &once, error);
    for (int p = 0; p < PARTS; p++)
        part_backward(w, p, joined.out, joined.lse, w->dout, w->dlse, &part[p]); /* the ring's way */
    check_gradients(w, part, &once, error);
    for (int p = 0; p < PARTS; p++)
        result_free(&part[p]), free(dout[p]), free(dlse[p]);
    result_free(&once), result_free(&joined);
}

static void gradients(void **state)
{
    (void)state;
    for (int32_t dtype = FATTN_F32; dtype <= FATTN_F64; dtype++)
        for (int32_t mask = FATTN_MASK_FULL; mask <= FATTN_MASK_CAUSAL; mask++)
            for (int n = 0, pairs = 1; n < pairs; n++) {
                whole w;
                whole_make(&w, dtype, 0, mask);
                w.context = context_of_pair(&w.desc, n, &pairs);
                check_backward(&w, 1024 * roundoff(dtype)); /* gradients are sums of up to 31 rows, of a size of some 10 */
                whole_free(&w);
            }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_make_the_whole), cmocka_unit_test(gradients)};
    unsetenv("FATTN_KERNEL"); /* these tests force their own */
    return cmocka_run_group_tests_name("parts", tests, NULL, NULL);
}
