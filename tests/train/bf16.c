/*
 * bf16 on the CPU against f32: products, gradients of a step, the losses of a run, evaluation by key blocks; and that
 * recomputing gives the same bits. bf16 has 8 bits, so errors are compared with the largest number of each tensor, and a bound
 * is a few times what is measured; a wrong formula gives about 1. The suite runs this once more with oneDNN told that there is
 * no AVX-512, where it knows no bf16.
 */
#include "support.h"
#include "train/cpu/cpu.h"
#include "train/cpu/numbers.h"
#include "train/error.h"
#include "train/evaluate.h"
#include "train/optimizer.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static runtime narrow;

static int open_narrow(void **state)
{
    (void)state;
    require(runtime_open(&narrow, &(runtime_options){.device = FATTN_DEVICE_CPU, .type = NUMBER_BF16}));
    return 0;
}

static int close_narrow(void **state)
{
    (void)state;
    runtime_close(&narrow);
    return 0;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static void rounding(void **state)
{
    (void)state;
    const struct {
        float from;
        uint16_t to;
    } cases[] = {{0, 0},
                 {-0.0f, 0x8000},
                 {1, 0x3f80},
                 {1.00390625f, 0x3f80}, /* halves: to the even one */
                 {1.01171875f, 0x3f82},
                 {1.004f, 0x3f81},
                 {3.4e38f, 0x7f80},
                 {INFINITY, 0x7f80},
                 {-INFINITY, 0xff80}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(round_bf16(cases[i].from), cases[i].to);
    assert_true(isnan(widen(round_bf16(NAN))));
    for (uint32_t x = 0; x < 1u << 16; x++)
        if (!isnan(widen((uint16_t)x)))
            assert_int_equal(round_bf16(widen((uint16_t)x)), x);
    assert_int_equal(bits_of(widen(0x3f81)), 0x3f810000);
}

/* ------------------------------------------------------------------------------------------------------------- products */

enum { SIDE_M = 37, SIDE_N = 29, SIDE_K = 53, PAD = 3 };

static void fill_bf16(uint16_t *x, int64_t n, uint64_t seed)
{
    float *f = malloc((size_t)n * sizeof *f);
    fill_normal(f, n, 0, 1, seed);
    for (int64_t i = 0; i < n; i++)
        x[i] = round_bf16(f[i]);
    free(f);
}

/* Against plain loops in double, with rows further apart than they are long. */
static void check_product(bool ta, bool tb, number_type c_type, float beta, bool beside)
{
    enum { M = SIDE_M, N = SIDE_N, K = SIDE_K, MOST = (SIDE_K + PAD) * (SIDE_K + PAD), LDC = SIDE_N + PAD };
    static uint16_t a[MOST], b[MOST], c16[SIDE_M * LDC], from16[SIDE_M * LDC];
    static float c32[SIDE_M * LDC], from32[SIDE_M * LDC], got[SIDE_M * SIDE_N];
    static double want[SIDE_M * SIDE_N];
    const int64_t lda = (ta ? M : K) + PAD, ldb = (tb ? K : N) + PAD;
    fill_bf16(a, MOST, 1);
    fill_bf16(b, MOST, 2);
    fill_bf16(from16, M * LDC, 3);
    memcpy(c16, from16, sizeof c16);
    for (int i = 0; i < M * LDC; i++)
        c32[i] = from32[i] = widen(from16[i]);
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++) {
            double sum = beta * (double)from32[i * LDC + j];
            for (int k = 0; k < K; k++)
                sum += (double)widen(a[ta ? k * lda + i : i * lda + k]) * (double)widen(b[tb ? j * ldb + k : k * ldb + j]);
            want[i * N + j] = sum;
        }
    if (beside) {
        memset(c16, 0xff, sizeof c16);
        memset(c32, 0xff, sizeof c32);
    }
    const bool wide = c_type == NUMBER_F32;
    const product_call call = {.transpose_a = ta,
                               .transpose_b = tb,
                               .type = NUMBER_BF16,
                               .c_type = c_type,
                               .m = M,
                               .n = N,
                               .k = K,
                               .a = a,
                               .lda = lda,
                               .b = b,
                               .ldb = ldb,
                               .beta = beta,
                               .from = !beside ? NULL
                                       : wide  ? (const void *)from32
                                               : from16,
                               .c = wide ? (void *)c32 : c16,
                               .ldc = LDC};
    require(cpu_product(device_cpu(), &call));
    for (int i = 0; i < M; i++)
        for (int j = 0; j < N; j++)
            got[i * N + j] = wide ? c32[i * LDC + j] : widen(c16[i * LDC + j]);
    check_error("product", error_fd(got, want, M * N), wide ? 1e-6 : 4e-3);
    assert_true(beside || c16[N] == from16[N]); /* between the rows nothing was written */
}

static void products(void **state)
{
    (void)state;
    for (int i = 0; i < 32; i++)
        check_product(i & 1, i & 2, i & 4 ? NUMBER_BF16 : NUMBER_F32, i & 8 ? 1.0f : 0.0f, (i & 24) == 24);
}

/* ---------------------------------------------------------------------------------------------------------------- steps */

enum { CONFIGS = 2, BATCH = 3, SEQ = 65, ROWS = BATCH * SEQ };

/* A plain shape, and one that nothing divides, with rows longer than a piece. */
static const model_config configs[CONFIGS] = {{SHAPE_64, .vocab = 258, .layers = 2, .max_seq = SEQ, .tied = true},
                                              {.vocab = 531,
                                               .hidden = 517,
                                               .layers = 2,
                                               .heads = 3,
                                               .heads_kv = 1,
                                               .head_dim = 22,
                                               .ffn = 600,
                                               .max_seq = SEQ,
                                               .rope_theta = 1e4,
                                               .rms_eps = 1e-6}};

static float *gradients(const runtime *r, const model_config *c, const char *path, bool recompute, double p, double *loss)
{
    int32_t tokens[ROWS], targets[ROWS];
    model *m = random_model(c, 5);
    require(model_place(m, r));
    const step_options options = {
        .batch = BATCH, .seq = SEQ, .attention = path_of(path), .backward = true, .recompute = recompute, .dropout = p};
    model_step *s = step_create(m, r, &options);
    require(s);
    random_tokens(tokens, ROWS, c->vocab, 1);
    random_tokens(targets, ROWS, c->vocab, 2);
    targets[7] = targets[ROWS - 1] = -1;
    for (int part = 0; part < 2; part++) {
        step_seed(s, 10 + (uint64_t)part);
        require(step_forward(s, tokens, targets, loss));
        require(step_backward(s, 0.5f / (float)step_targets(s)));
    }
    float *grad = malloc((size_t)m->size * sizeof *grad);
    memcpy(grad, m->grad, (size_t)m->size * sizeof *grad);
    step_free(s);
    model_free(m);
    return grad;
}

static void compare(const model_config *c, const char *path, double p)
{
    double loss, wanted_loss;
    float *wanted = gradients(test_runtime(), c, path, false, p, &wanted_loss);
    float *grad = gradients(&narrow, c, path, false, p, &loss);
    float *again = gradients(&narrow, c, path, true, p, &loss);
    model *m = random_model(c, 5);
    check_error(path, fabs(loss - wanted_loss) / wanted_loss, 5e-3);
    for (int i = 0; i < m->parameter_count; i++) {
        const parameter *q = &m->parameters[i];
        char name[PARAMETER_NAME_SIZE + 40];
        snprintf(name, sizeof name, "%s %g %s", path, p, q->name);
        check_error(name, error_ff(grad + q->offset, wanted + q->offset, q->size), 1e-1);
    }
    assert_memory_equal(grad, again, (size_t)m->size * sizeof *grad);
    model_free(m);
    free(wanted);
    free(grad);
    free(again);
}

/* The masks of dropout are the same in both types, or errors would be about 1. */
static void steps(void **state)
{
    const char *const paths[] = {"composed", "flash", "window:9"};
    (void)state;
    for (int c = 0; c < CONFIGS; c++)
        for (int p = 0; p < 3; p++) {
            compare(&configs[c], paths[p], 0);
            compare(&configs[c], paths[p], 0.2);
        }
}

/* ----------------------------------------------------------------------------------------------------------------- runs */

enum { STEPS = 60 };

static void run(const runtime *r, const char *path, double losses[STEPS])
{
    int32_t tokens[ROWS + 1];
    const model_config *c = &configs[0];
    const optimizer_options options = optimizer_defaults();
    model *m = model_create(c, 3);
    require(m && model_place(m, r));
    const step_options shape = {.batch = BATCH, .seq = SEQ, .attention = path_of(path), .backward = true};
    model_step *s = step_create(m, r, &shape);
    optimizer *o = optimizer_create(m, &options);
    require(s && o);
    for (int i = 0; i < STEPS; i++) {
        double norm;
        random_tokens(tokens, ROWS + 1, 16, (uint64_t)i % 3 + 1);
        require(model_zero_grad(m));
        require(step_forward(s, tokens, tokens + 1, &losses[i]));
        require(step_backward(s, 1.0f / (float)step_targets(s)));
        require(optimizer_update(o, 5e-4, &norm));
    }
    optimizer_free(o);
    step_free(s);
    model_free(m);
}

static void runs(void **state)
{
    const char *const paths[] = {"composed", "flash"};
    double wide[STEPS], slim[STEPS];
    (void)state;
    for (int p = 0; p < 2; p++) {
        run(test_runtime(), paths[p], wide);
        run(&narrow, paths[p], slim);
        for (int i = 0; i < STEPS; i++)
            check_error(paths[p], fabs(slim[i] - wide[i]) / wide[0], 1e-2);
        assert_true(wide[STEPS - 1] < 0.7 * wide[0]);
    }
}

/* ---------------------------------------------------------------------------------------------------------------- blocks */

static double loss_of(const char *path)
{
    int32_t tokens[ROWS];
    double loss;
    const model_config *c = &configs[0];
    model *m = random_model(c, 8);
    require(model_place(m, &narrow));
    model_step *s = step_create(m, &narrow, &(step_options){.batch = BATCH, .seq = SEQ, .attention = path_of(path)});
    require(s);
    random_tokens(tokens, ROWS, c->vocab, 4);
    require(step_forward(s, tokens, tokens, &loss));
    step_free(s);
    model_free(m);
    return loss;
}

/* Key blocks are exact: what differs is the rounding of what attention gives, in few numbers. */
static void blocks(void **state)
{
    (void)state;
    const double flash = loss_of("flash");
    check_error("block:7", fabs(loss_of("block:7") - flash) / flash, 1e-3);
    check_error("block:64", fabs(loss_of("block:64") - flash) / flash, 1e-3);
    check_error("composed", fabs(loss_of("composed") - flash) / flash, 1e-3);
    assert_true(fabs(loss_of("window:3") - flash) / flash > 3e-3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rounding), cmocka_unit_test(products), cmocka_unit_test(steps),
                                       cmocka_unit_test(runs), cmocka_unit_test(blocks)};
    return cmocka_run_group_tests_name("bf16", tests, open_narrow, close_narrow);
}
