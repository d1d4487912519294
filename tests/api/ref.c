/*
 * The oracle against numbers worked out by hand, and against attention written again here in the way of the textbook: whole
 * matrices, the softmax's Jacobian, no tricks. Other kernels are tested against the oracle elsewhere.
 */
#include <math.h>

#include "api.h"

typedef struct sizes {
    int64_t batch, heads_q, heads_kv, seq_q, seq_k, dim, dim_v;
    int32_t mask, align;
    int64_t left, right;
    double scale;
} sizes;

/* Tensors in double, contiguous [batch, heads, seq, dim]. */
typedef struct tensors {
    double *q, *k, *v, *dout, *out, *lse, *dq, *dk, *dv;
} tensors;

static double *numbers(int64_t count, uint64_t seed)
{
    double *x = calloc((size_t)count + 1, sizeof *x);
    assert_non_null(x);
    for (int64_t i = 0; seed && i < count; i++)
        x[i] = 2 * random_number(&seed);
    return x;
}

static tensors make_tensors(const sizes *s, bool random)
{
    const int64_t q = s->batch * s->heads_q * s->seq_q, k = s->batch * s->heads_kv * s->seq_k;
    const uint64_t r = random;
    return (tensors){numbers(q * s->dim, r),       numbers(k * s->dim, 2 * r), numbers(k * s->dim_v, 3 * r),
                     numbers(q * s->dim_v, 4 * r), numbers(q * s->dim_v, 0),   numbers(q, 0),
                     numbers(q * s->dim, 0),       numbers(k * s->dim, 0),     numbers(k * s->dim_v, 0)};
}

static void free_tensors(tensors *t)
{
    free(t->q), free(t->k), free(t->v), free(t->dout), free(t->out), free(t->lse), free(t->dq), free(t->dk), free(t->dv);
}

static bool keeps(const sizes *s, int64_t i, int64_t j)
{
    const int64_t at = s->align == FATTN_ALIGN_BOTTOM_RIGHT ? i + s->seq_k - s->seq_q : i;
    if (s->mask == FATTN_MASK_CAUSAL)
        return j <= at;
    if (s->mask == FATTN_MASK_WINDOW)
        return (s->left < 0 || j >= at - s->left) && (s->right < 0 || j <= at + s->right);
    return true;
}

/* One head, whole matrices: P [seq_q, seq_k]; then dS_ij = sum_l dP_il P_il (delta_jl - P_ij). Adds to dk and dv. */
static void textbook_head(const sizes *s, const double *q, const double *k, const double *v, const double *dout, double *out,
                          double *lse, double *dq, double *dk, double *dv)
{
    const double scale = s->scale != 0 ? s->scale : pow((double)s->dim, -0.5);
    double *p = numbers(s->seq_k, 0), *dp = numbers(s->seq_k, 0);
    for (int64_t i = 0; i < s->seq_q; i++) {
        double total = 0;
        for (int64_t j = 0; j < s->seq_k; j++) {
            double score = 0;
            for (int64_t d = 0; d < s->dim; d++)
                score += scale * q[i * s->dim + d] * k[j * s->dim + d];
            p[j] = keeps(s, i, j) ? exp(score) : 0;
            total += p[j];
        }
        lse[i] = log(total);
        for (int64_t j = 0; j < s->seq_k; j++) {
            p[j] = total > 0 ? p[j] / total : 0;
            dp[j] = 0;
            for (int64_t d = 0; d < s->dim_v; d++) {
                out[i * s->dim_v + d] += p[j] * v[j * s->dim_v + d];
                dv[j * s->dim_v + d] += p[j] * dout[i * s->dim_v + d];
                dp[j] += dout[i * s->dim_v + d] * v[j * s->dim_v + d];
            }
        }
        for (int64_t j = 0; j < s->seq_k; j++) {
            double ds = 0;
            for (int64_t l = 0; l < s->seq_k; l++)
                ds += dp[l] * p[l] * ((j == l) - p[j]);
            for (int64_t d = 0; d < s->dim; d++) {
                dq[i * s->dim + d] += scale * ds * k[j * s->dim + d];
                dk[j * s->dim + d] += scale * ds * q[i * s->dim + d];
            }
        }
    }
    free(p);
    free(dp);
}

static void textbook(const sizes *s, const tensors *t)
{
    for (int64_t b = 0; b < s->batch; b++)
        for (int64_t h = 0; h < s->heads_q; h++) {
            const int64_t q = (b * s->heads_q + h) * s->seq_q;
            const int64_t k = (b * s->heads_kv + h * s->heads_kv / s->heads_q) * s->seq_k;
            textbook_head(s, t->q + q * s->dim, t->k + k * s->dim, t->v + k * s->dim_v, t->dout + q * s->dim_v,
                          t->out + q * s->dim_v, t->lse + q, t->dq + q * s->dim, t->dk + k * s->dim, t->dv + k * s->dim_v);
        }
}

static fattn_desc describe(const sizes *s, int32_t dtype)
{
    return (fattn_desc){.struct_size = sizeof(fattn_desc),
                        .dtype = dtype,
                        .mask = s->mask,
                        .align = s->align,
                        .batch = s->batch,
                        .heads_q = s->heads_q,
                        .heads_kv = s->heads_kv,
                        .seq_q = s->seq_q,
                        .seq_k = s->seq_k,
                        .dim = s->dim,
                        .dim_v = s->dim_v,
                        .window_left = s->left,
                        .window_right = s->right,
                        .scale = s->scale};
}

/* Forward and backward by ref, in double. */
static void oracle(const sizes *s, const tensors *t)
{
    fattn_context *context = make_context(2, "ref");
    const fattn_desc desc = describe(s, FATTN_F64);
    size_t forward_bytes, backward_bytes;
    assert_int_equal(fattn_workspace_size(context, &desc, FATTN_OP_FORWARD, &forward_bytes), FATTN_OK);
    assert_int_equal(fattn_workspace_size(context, &desc, FATTN_OP_BACKWARD, &backward_bytes), FATTN_OK);
    const fattn_view q = fattn_view_bhsd(t->q, s->heads_q, s->seq_q, s->dim),
                     k = fattn_view_bhsd(t->k, s->heads_kv, s->seq_k, s->dim);
    const fattn_view v = fattn_view_bhsd(t->v, s->heads_kv, s->seq_k, s->dim_v);
    const fattn_view out = fattn_view_bhsd(t->out, s->heads_q, s->seq_q, s->dim_v);
    void *workspace = malloc(forward_bytes > backward_bytes ? forward_bytes : backward_bytes);
    const fattn_forward_args forward = {.struct_size = sizeof forward,
                                        .q = q,
                                        .k = k,
                                        .v = v,
                                        .out = out,
                                        .lse = t->lse,
                                        .workspace = workspace,
                                        .workspace_size = forward_bytes};
    const fattn_backward_args backward = {.struct_size = sizeof backward,
                                          .q = q,
                                          .k = k,
                                          .v = v,
                                          .out = out,
                                          .lse = t->lse,
                                          .dout = fattn_view_bhsd(t->dout, s->heads_q, s->seq_q, s->dim_v),
                                          .dq = fattn_view_bhsd(t->dq, s->heads_q, s->seq_q, s->dim),
                                          .dk = fattn_view_bhsd(t->dk, s->heads_kv, s->seq_k, s->dim),
                                          .dv = fattn_view_bhsd(t->dv, s->heads_kv, s->seq_k, s->dim_v),
                                          .workspace = workspace,
                                          .workspace_size = backward_bytes};
    assert_int_equal(fattn_forward(context, &desc, &forward), FATTN_OK);
    assert_int_equal(fattn_backward(context, &desc, &backward), FATTN_OK);
    free(workspace);
    fattn_context_destroy(context);
}

static void near(const char *name, const double *got, const double *wanted, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (got[i] != wanted[i] && !(fabs(got[i] - wanted[i]) <= 1e-13 * (1 + fabs(wanted[i]))))
            fail_msg("%s[%lld] is %.17g, not %.17g", name, (long long)i, got[i], wanted[i]);
}

static void against_the_textbook(void **state)
{
    static const sizes problems[] = {
        {1, 1, 1, 1, 1, 1, 1, FATTN_MASK_FULL, 0, 0, 0, 0},
        {2, 4, 2, 5, 7, 3, 6, FATTN_MASK_FULL, 0, 0, 0, 0},
        {2, 6, 2, 9, 9, 8, 8, FATTN_MASK_CAUSAL, FATTN_ALIGN_TOP_LEFT, 0, 0, 0.7},
        {1, 3, 1, 4, 11, 5, 2, FATTN_MASK_CAUSAL, FATTN_ALIGN_TOP_LEFT, 0, 0, -1.5},
        {1, 3, 3, 4, 11, 5, 2, FATTN_MASK_CAUSAL, FATTN_ALIGN_BOTTOM_RIGHT, 0, 0, 0},
        {1, 2, 1, 11, 4, 5, 2, FATTN_MASK_CAUSAL, FATTN_ALIGN_BOTTOM_RIGHT, 0, 0, 0}, /* rows without keys */
        {1, 2, 1, 12, 12, 5, 2, FATTN_MASK_WINDOW, FATTN_ALIGN_TOP_LEFT, 2, 1, 0},
        {1, 2, 1, 13, 6, 5, 2, FATTN_MASK_WINDOW, FATTN_ALIGN_TOP_LEFT, 2, 1, 0}, /* likewise */
        {1, 2, 2, 5, 16, 4, 4, FATTN_MASK_WINDOW, FATTN_ALIGN_BOTTOM_RIGHT, 3, -1, 0},
    };
    (void)state;
    for (size_t n = 0; n < sizeof problems / sizeof *problems; n++) {
        const sizes *s = &problems[n];
        const int64_t q = s->batch * s->heads_q * s->seq_q, k = s->batch * s->heads_kv * s->seq_k;
        tensors wanted = make_tensors(s, true), got = make_tensors(s, true);
        textbook(s, &wanted);
        oracle(s, &got);
        near("out", got.out, wanted.out, q * s->dim_v);
        near("lse", got.lse, wanted.lse, q);
        near("dq", got.dq, wanted.dq, q * s->dim);
        near("dk", got.dk, wanted.dk, k * s->dim);
        near("dv", got.dv, wanted.dv, k * s->dim_v);
        free_tensors(&wanted);
        free_tensors(&got);
    }
}

/* q = 1, k = {0, ln 3}: p = {1/4, 3/4}. v = {0, 4}: out = 3. dout = 1: dp = {0, 4}, D = 3, ds = {-3/4, 3/4}. */
static void by_hand(void **state)
{
    static const sizes s = {1, 1, 1, 1, 2, 1, 1, FATTN_MASK_FULL, 0, 0, 0, 1};
    tensors t = make_tensors(&s, false);
    const double ln3 = log(3), out = 3, lse = log(4), dq = 0.75 * ln3, dk[2] = {-0.75, 0.75}, dv[2] = {0.25, 0.75};
    (void)state;
    t.q[0] = 1, t.k[1] = ln3, t.v[1] = 4, t.dout[0] = 1;
    oracle(&s, &t);
    near("out", t.out, &out, 1);
    near("lse", t.lse, &lse, 1);
    near("dq", t.dq, &dq, 1);
    near("dk", t.dk, dk, 2);
    near("dv", t.dv, dv, 2);
    free_tensors(&t);
}

/* Scores of 1000 overflow exp, in double too, unless the largest is taken away first. */
static void large_scores(void **state)
{
    static const sizes s = {1, 1, 1, 1, 2, 1, 1, FATTN_MASK_FULL, 0, 0, 0, 1};
    tensors t = make_tensors(&s, false);
    const double out = 2, lse = 1000 + log(2);
    (void)state;
    t.q[0] = 1, t.k[0] = t.k[1] = 1000, t.v[0] = 1, t.v[1] = 3;
    oracle(&s, &t);
    near("out", t.out, &out, 1);
    near("lse", t.lse, &lse, 1);
    free_tensors(&t);
}

static bool any_nan(const double *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (isnan(x[i]))
            return true;
    return false;
}

/* What the mask hides is not read: NaN in keys and values that no row keeps reaches nothing; NaN in one query stays in its row.
 */
static void nan_stays_where_it_is(void **state)
{
    static const sizes s = {1, 1, 1, 3, 6, 2, 2, FATTN_MASK_CAUSAL, FATTN_ALIGN_TOP_LEFT,
                            0, 0, 0}; /* keys 3, 4, 5 are hidden */
    tensors t = make_tensors(&s, true);
    (void)state;
    for (int64_t i = 3 * 2; i < 6 * 2; i++)
        t.k[i] = t.v[i] = NAN;
    oracle(&s, &t);
    assert_false(any_nan(t.out, 6) || any_nan(t.lse, 3) || any_nan(t.dq, 6) || any_nan(t.dk, 12) || any_nan(t.dv, 12));
    for (int64_t i = 3 * 2; i < 6 * 2; i++)
        assert_true(t.dk[i] == 0 && t.dv[i] == 0);
    t.q[1 * 2] = NAN; /* row 1 keeps keys 0 and 1 */
    oracle(&s, &t);
    assert_true(any_nan(t.out + 2, 2) && any_nan(t.lse + 1, 1) && any_nan(t.dq + 2, 2));
    assert_false(any_nan(t.out, 2) || any_nan(t.out + 4, 2) || any_nan(t.dq, 2) || any_nan(t.dq + 4, 2));
    assert_true(any_nan(t.dk, 4) && any_nan(t.dv, 4));
    assert_false(any_nan(t.dk + 4, 8) || any_nan(t.dv + 4, 8));
    free_tensors(&t);
}

/* A row whose every score is -inf is one without keys. */
static void scores_of_minus_infinity(void **state)
{
    static const sizes s = {1, 1, 1, 2, 2, 1, 1, FATTN_MASK_FULL, 0, 0, 0, 1};
    tensors t = make_tensors(&s, true);
    (void)state;
    t.k[0] = t.k[1] = INFINITY;
    t.q[0] = -1; /* its scores are -inf; those of row 1 are not looked at */
    oracle(&s, &t);
    assert_true(t.out[0] == 0 && t.lse[0] == -(double)INFINITY && t.dq[0] == 0);
    free_tensors(&t);
}

/* f32 is f64 on the same numbers, rounded. */
static void floats(void **state)
{
    fixture f32, f64;
    (void)state;
    fixture_make(&f32, FATTN_F32, "ref");
    fixture_make(&f64, FATTN_F64, "ref");
    fattn_view *tensor[][2] = {
        {&f32.forward.q, &f64.forward.q}, {&f32.forward.k, &f64.forward.k}, {&f32.forward.v, &f64.forward.v}};
    const int count[] = {Q_ROWS * DIM, K_ROWS * DIM, K_ROWS * DIM_V};
    for (int t = 0; t < 3; t++)
        for (int i = 0; i < count[t]; i++)
            ((double *)tensor[t][1]->data)[i] = (double)((float *)tensor[t][0]->data)[i];
    assert_int_equal(fattn_forward(f32.context, &f32.desc, &f32.forward), FATTN_OK);
    assert_int_equal(fattn_forward(f64.context, &f64.desc, &f64.forward), FATTN_OK);
    for (int i = 0; i < Q_ROWS * DIM_V; i++)
        assert_true(((float *)(void *)f32.out.data)[i] == (float)((double *)(void *)f64.out.data)[i]);
    for (int i = 0; i < Q_ROWS; i++)
        assert_true(((float *)(void *)f32.lse.data)[i] == (float)((double *)(void *)f64.lse.data)[i]);
    assert_guarded(&f32.out, Q_ROWS * DIM_V * sizeof(float));
    assert_guarded(&f32.lse, Q_ROWS * sizeof(float));
    fixture_free(&f32);
    fixture_free(&f64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand), cmocka_unit_test(against_the_textbook),  cmocka_unit_test(large_scores),
        cmocka_unit_test(floats),  cmocka_unit_test(nan_stays_where_it_is), cmocka_unit_test(scores_of_minus_infinity),
    };
    return cmocka_run_group_tests_name("ref", tests, NULL, NULL);
}
