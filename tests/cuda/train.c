/*
 * The trainer on a GPU against the CPU: loss and gradients of a step, losses of a run, what a decoder says, evaluation by key
 * blocks, checkpoints that change the device; and that the GPU gives the same bits in every run, with and without recomputing.
 *
 * Float agrees to rounding. bf16 has 8 bits: its errors are compared with the largest gradient of each parameter, and the bound
 * is a few times what is measured; a wrong formula gives about 1.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/trainers_gpu.h"
#include "tests/train/folder.h"
#include "train/checkpoint.h"
#include "train/cuda/product.h"
#include "train/error.h"
#include "train/optimizer.h"

static const char *const type_names[TYPES] = {"f32", "bf16"};

/* A plain shape, one that nothing divides, and one with rows and heads wider than kernels hold at once. */
static const model_config configs[] = {{SHAPE_64, .vocab = 258, .layers = 2, .max_seq = 96, .tied = true},
                                       {.vocab = 37,
                                        .hidden = 45,
                                        .layers = 3,
                                        .heads = 3,
                                        .heads_kv = 1,
                                        .head_dim = 22,
                                        .ffn = 71,
                                        .max_seq = 70,
                                        .rope_theta = 1e4,
                                        .rms_eps = 1e-6},
                                       {.vocab = 30,
                                        .hidden = 1028,
                                        .layers = 1,
                                        .heads = 2,
                                        .heads_kv = 1,
                                        .head_dim = 320,
                                        .ffn = 40,
                                        .max_seq = 65,
                                        .rope_theta = 1e4,
                                        .rms_eps = 1e-6}};
enum { CONFIGS = 3, BATCH = 3, SEQ = 65, ROWS = BATCH * SEQ };

/* Numbers of a model's device, in memory of the caller's. */
static float *fetch(const model *m, const float *from)
{
    float *copy = malloc((size_t)m->size * sizeof *copy);
    assert_non_null(copy);
    require(m->device->run->get(m->device, copy, from, (size_t)m->size * sizeof *copy));
    return copy;
}

static model *model_on(const runtime *r, const model_config *c)
{
    model *m = random_model(c, 5);
    require(model_place(m, r));
    return m;
}

static model_step *step_on(const runtime *r, model *m, const char *path, bool recompute, double p)
{
    model_step *s = step_create(
        m, r,
        &(step_options){
            .batch = BATCH, .seq = SEQ, .attention = path_of(path), .backward = true, .recompute = recompute, .dropout = p});
    require(s);
    return s;
}

static void fill_tokens(const model_config *c, int32_t tokens[ROWS], int32_t targets[ROWS])
{
    random_tokens(tokens, ROWS, c->vocab, 1);
    random_tokens(targets, ROWS, c->vocab, 2);
    targets[7] = targets[ROWS - 1] = -1;
}

/* ------------------------------------------------------------------------------------------------------------ gradients */

/* Loss and gradients of one step; two micro-batches' worth, so that gradients are added to. */
static float *gradients(const runtime *r, const model_config *c, const char *path, bool recompute, double p, double *loss)
{
    int32_t tokens[ROWS], targets[ROWS];
    model *m = model_on(r, c);
    model_step *s = step_on(r, m, path, recompute, p);
    fill_tokens(c, tokens, targets);
    for (int part = 0; part < 2; part++) {
        step_seed(s, 30 + (uint64_t)part);
        require(step_forward(s, tokens, targets, loss));
        require(step_backward(s, 0.5f / (float)step_targets(s)));
    }
    assert_int_equal(step_targets(s), ROWS - 2);
    float *grad = fetch(m, m->grad);
    step_free(s);
    model_free(m);
    return grad;
}

/* Dropout draws the same on both, or errors would be about 1. */
static void compare_gradients(const model_config *c, const char *path, number_type type, double p, double loss_bound,
                              double bound)
{
    double loss, wanted_loss;
    float *wanted = gradients(test_runtime(), c, path, false, p, &wanted_loss);
    float *grad = gradients(&gpu[type], c, path, false, p, &loss);
    float *again = gradients(&gpu[type], c, path, true, p, &loss);
    model *m = random_model(c, 5);
    assert_memory_equal(grad, again, (size_t)m->size * sizeof *grad);
    check_error(path, fabs(loss - wanted_loss) / wanted_loss, loss_bound);
    for (int i = 0; i < m->parameter_count; i++) {
        const parameter *q = &m->parameters[i];
        char name[PARAMETER_NAME_SIZE + 40];
        snprintf(name, sizeof name, "%s %s %g %s", type_names[type], path, p, q->name);
        check_error(name, error_ff(grad + q->offset, wanted + q->offset, q->size), bound);
    }
    model_free(m);
    free(wanted);
    free(grad);
    free(again);
}

static const char *const paths[] = {"composed", "flash", "window:9"};

static void gradients_f32(void **state)
{
    (void)state;
    need_gpu();
    for (int c = 0; c < CONFIGS; c++)
        for (int p = 0; p < 3; p++)
            for (int drop = 0; drop < 2; drop++)
                compare_gradients(&configs[c], paths[p], NUMBER_F32, drop * 0.2, 1e-6, 2e-5);
}

static void gradients_bf16(void **state)
{
    (void)state;
    need_gpu();
    for (int c = 0; c < CONFIGS; c++)
        for (int p = 0; p < 3; p++)
            for (int drop = 0; drop < 2; drop++)
                compare_gradients(&configs[c], paths[p], NUMBER_BF16, drop * 0.2, 5e-3, 1e-1);
}

/* ----------------------------------------------------------------------------------------------------------------- runs */

enum { STEPS = 20 };

static void run(const runtime *r, const model_config *c, const char *path, double losses[STEPS], double norms[STEPS],
                float **parameters)
{
    int32_t tokens[ROWS], targets[ROWS];
    const optimizer_options options = optimizer_defaults();
    model *m = model_on(r, c);
    model_step *s = step_on(r, m, path, false, 0);
    optimizer *o = optimizer_create(m, &options);
    require(o);
    for (int i = 0; i < STEPS; i++) {
        fill_tokens(c, tokens, targets);
        require(model_zero_grad(m));
        require(step_forward(s, tokens, targets, NULL));
        require(step_backward(s, 1.0f / (float)step_targets(s)));
        require(step_loss(s, &losses[i]));
        require(optimizer_update(o, 1e-3, &norms[i]));
    }
    assert_int_equal(o->step, STEPS);
    *parameters = fetch(m, m->data);
    optimizer_free(o);
    step_free(s);
    model_free(m);
}

static void compare_runs(number_type type, const char *path, double bound)
{
    double wanted[STEPS], wanted_norms[STEPS], losses[STEPS], norms[STEPS];
    float *parameters[3];
    const model_config *c = &configs[0];
    run(test_runtime(), c, path, wanted, wanted_norms, &parameters[0]);
    run(&gpu[type], c, path, losses, norms, &parameters[1]);
    run(&gpu[type], c, path, losses, norms, &parameters[2]);
    for (int i = 0; i < STEPS; i++) {
        check_error("loss", fabs(losses[i] - wanted[i]) / wanted[i], bound);
        check_error("norm", fabs(norms[i] - wanted_norms[i]) / wanted_norms[i], 20 * bound);
    }
    assert_true(losses[STEPS - 1] < losses[0]);
    model *m = random_model(c, 5);
    assert_memory_equal(parameters[1], parameters[2], (size_t)m->size * sizeof(float));
    model_free(m);
    for (int i = 0; i < 3; i++)
        free(parameters[i]);
}

static void runs(void **state)
{
    (void)state;
    need_gpu();
    compare_runs(NUMBER_F32, "composed", 2e-5);
    compare_runs(NUMBER_F32, "flash", 2e-5);
    compare_runs(NUMBER_BF16, "flash", 1e-2);
}

/* What changes between the steps of a run after a device noted their work: targets that do not count, the factor of the
 * gradients, micro-batches. A whole batch without targets, too. */
static const struct {
    int without, parts;
    float scale;
} script[] = {{2, 1, 1}, {2, 1, 1}, {2, 1, 1},    {9, 1, 1},    {9, 1, 1},    {9, 1, 1},    {9, 2, 0.5f}, {9, 2, 0.5f},
              {9, 1, 8}, {9, 1, 8}, {2, 3, 0.3f}, {2, 3, 0.3f}, {2, 3, 0.3f}, {ROWS, 1, 1}, {ROWS, 1, 1}, {2, 1, 1}};
enum { LINES = sizeof script / sizeof *script };

/* fresh: every micro-batch has a step of its own, whose work is never noted. losses: of an update, added up. */
static void follow_script(const runtime *r, const char *path, bool fresh, double losses[LINES], double norms[LINES],
                          float **parameters)
{
    const model_config *c = &configs[0];
    const optimizer_options options = optimizer_defaults();
    int32_t tokens[ROWS], targets[ROWS];
    double loss;
    model *m = model_on(r, c);
    model_step *s = NULL;
    optimizer *o = optimizer_create(m, &options);
    require(o);
    for (int i = 0; i < LINES; i++) {
        require(model_zero_grad(m));
        losses[i] = 0;
        for (int part = 0; part < script[i].parts; part++) {
            if (fresh)
                step_free(s);
            s = fresh || !s ? step_on(r, m, path, false, 0) : s;
            random_tokens(tokens, ROWS, c->vocab, 10 * (uint64_t)i + (uint64_t)part);
            random_tokens(targets, ROWS, c->vocab, 1000 + 10 * (uint64_t)i + (uint64_t)part);
            for (int row = 0; row < script[i].without; row++)
                targets[row] = -1;
            require(step_forward(s, tokens, targets, &loss) && step_backward(s, script[i].scale / ROWS));
            losses[i] += loss;
        }
        require(optimizer_update(o, 1e-3, &norms[i]));
    }
    *parameters = fetch(m, m->data);
    optimizer_free(o);
    step_free(s);
    model_free(m);
}

static void changes(void **state)
{
    (void)state;
    need_gpu();
    double losses[3][LINES], norms[3][LINES];
    float *parameters[3];
    for (int type = 0; type < TYPES; type++) {
        const double bound = type == NUMBER_BF16 ? 1e-2 : 2e-5;
        follow_script(test_runtime(), "flash", false, losses[0], norms[0], &parameters[0]);
        follow_script(&gpu[type], "flash", false, losses[1], norms[1], &parameters[1]);
        follow_script(&gpu[type], "flash", true, losses[2], norms[2], &parameters[2]);
        model *m = random_model(&configs[0], 5);
        assert_memory_equal(losses[1], losses[2], sizeof losses[1]);
        assert_memory_equal(norms[1], norms[2], sizeof norms[1]);
        assert_memory_equal(parameters[1], parameters[2], (size_t)m->size * sizeof(float));
        model_free(m);
        for (int i = 0; i < LINES; i++) {
            check_error("loss", fabs(losses[1][i] - losses[0][i]), bound * losses[0][i]);
            check_error("norm", fabs(norms[1][i] - norms[0][i]), 20 * bound * norms[0][i]);
        }
        for (int i = 0; i < 3; i++)
            free(parameters[i]);
    }
}

/* A norm that is no number, or beyond the limit, changes nothing. */
static void not_finite(void **state)
{
    (void)state;
    need_gpu();
    const optimizer_options options = optimizer_defaults();
    const float infinite = INFINITY;
    double norm = 0;
    model *m = model_on(&gpu[0], &configs[0]);
    optimizer *o = optimizer_create(m, &options);
    require(o);
    float *before = fetch(m, m->data);
    require(m->device->run->put(m->device, m->grad + 3, &infinite, sizeof infinite));
    assert_false(optimizer_update(o, 0.1, &norm));
    assert_true(isinf(norm));
    assert_int_equal(o->step, 0);
    require(model_zero_grad(m));
    const float three = 3;
    require(m->device->run->put(m->device, m->grad + 3, &three, sizeof three));
    o->limit = 2.5;
    assert_false(optimizer_update(o, 0.1, &norm));
    assert_true(norm == 3);
    float *after = fetch(m, m->data);
    assert_memory_equal(before, after, (size_t)m->size * sizeof *before);
    o->limit = 3;
    require(optimizer_update(o, 0.1, &norm));
    free(before);
    free(after);
    optimizer_free(o);
    model_free(m);
}

/* --------------------------------------------------------------------------------------------------- using a model */

/* The logits after each of two chunks of tokens and three single ones. */
static void decode(const runtime *r, const char *path, float *logits)
{
    const model_config *c = &configs[0];
    int32_t tokens[ROWS];
    const int64_t sizes[] = {40, 5, 1, 1, 1};
    const float *found;
    model *m = model_on(r, c);
    decoder *d = decoder_create(m, r, path_of(path), c->max_seq);
    require(d);
    random_tokens(tokens, ROWS, c->vocab, 9);
    for (int i = 0; i < 5; i++) {
        require(decoder_feed(d, tokens + decoder_length(d), sizes[i], &found));
        memcpy(logits + i * c->vocab, found, (size_t)c->vocab * sizeof *logits);
    }
    decoder_free(d);
    model_free(m);
}

static void decoding(void **state)
{
    (void)state;
    need_gpu();
    const int64_t count = 5 * configs[0].vocab;
    float *wanted = malloc(2 * (size_t)count * sizeof *wanted), *logits = wanted + count;
    assert_non_null(wanted);
    for (int p = 0; p < 3; p++)
        for (int type = 0; type < TYPES; type++) {
            decode(test_runtime(), paths[p], wanted);
            decode(&gpu[type], paths[p], logits);
            check_error(paths[p], error_ff(logits, wanted, count), type == NUMBER_BF16 ? 4e-2 : 1e-5);
        }
    decode(test_runtime(), "block:7", wanted);
    for (int type = 0; type < TYPES; type++) {
        decode(&gpu[type], "block:7", logits);
        check_error("block:7", error_ff(logits, wanted, count), type == NUMBER_BF16 ? 4e-2 : 1e-5);
    }
    free(wanted);
}

/* ----------------------------------------------------------------------------------------------------------- checkpoints */

static model *load(const runtime *r, const char *path, optimizer **o)
{
    const optimizer_options options = optimizer_defaults();
    checkpoint_state state;
    require(checkpoint_read_state(path, &state));
    model *m = checkpoint_load_model(path, &state);
    require(m && model_place(m, r));
    *o = optimizer_create(m, &options);
    require(*o && checkpoint_load_optimizer(path, &state, *o));
    checkpoint_state_free(&state);
    return m;
}

static void compare_parts(const model *a, const float *in_a, const model *b, const float *in_b)
{
    float *x = fetch(a, in_a), *y = fetch(b, in_b);
    assert_memory_equal(x, y, (size_t)a->size * sizeof *x);
    free(x);
    free(y);
}

/* Saved from a GPU, it is the same on the CPU and again on a GPU. */
static void checkpoints(void **state)
{
    (void)state;
    need_gpu();
    int32_t tokens[ROWS], targets[ROWS];
    const optimizer_options options = optimizer_defaults();
    double norm;
    model *m = model_on(&gpu[1], &configs[1]), *others[2];
    optimizer *o = optimizer_create(m, &options), *other;
    model_step *s = step_on(&gpu[1], m, "flash", false, 0);
    require(o);
    fill_tokens(&configs[1], tokens, targets);
    require(step_forward(s, tokens, targets, NULL) && step_backward(s, 1.0f / (float)step_targets(s)) &&
            optimizer_update(o, 1e-3, &norm));
    char folder[FOLDER_PATH], path[FOLDER_PATH];
    folder_make(folder);
    folder_file(path, folder, "run");
    checkpoint_state saved = {.step = o->step, .model = m->config, .configuration = (char[]){"{}"}};
    require(checkpoint_save(path, m, o, &saved));
    for (int i = 0; i < 2; i++) {
        others[i] = load(i ? &gpu[0] : test_runtime(), path, &other);
        compare_parts(m, m->data, others[i], others[i]->data);
        compare_parts(m, o->m, others[i], other->m);
        compare_parts(m, o->v, others[i], other->v);
        assert_int_equal(other->step, 1);
        optimizer_free(other);
        model_free(others[i]);
    }
    folder_remove(folder);
    step_free(s);
    optimizer_free(o);
    model_free(m);
}

/* ------------------------------------------------------------------------------------------------------ tried products */

/* With some products of more than wide_from, in GFLOP, whose results are so many that another order of additions shows. */
static const model_config wide = {.vocab = 258,
                                  .hidden = 256,
                                  .layers = 2,
                                  .heads = 4,
                                  .heads_kv = 2,
                                  .head_dim = 64,
                                  .ffn = 512,
                                  .max_seq = 256,
                                  .rope_theta = 1e4,
                                  .rms_eps = 1e-6,
                                  .tied = true};
static const double wide_from = 0.1;
enum { WIDE_BATCH = 4, WIDE_ROWS = WIDE_BATCH * 256, WIDE_STEPS = 4 };

/* Steps of a model from a checkpoint's on, and saves it again. slowest: of the algorithms that may be taken; from: infinity, to
 * try none. */
static void go_on(const runtime *r, const char *path, int steps, double from, bool slowest, double losses[])
{
    static int32_t tokens[WIDE_ROWS], targets[WIDE_ROWS];
    products *tried = products_of(r->device);
    optimizer *o;
    model *m = load(r, path, &o);
    products_forget(tried);
    tried->from = from;
    tried->slowest = slowest;
    model_step *s =
        step_create(m, r, &(step_options){.batch = WIDE_BATCH, .seq = 256, .attention = path_of("flash"), .backward = true});
    require(s);
    for (int i = 0; i < steps; i++) {
        double norm;
        random_tokens(tokens, WIDE_ROWS, wide.vocab, 50 + (uint64_t)o->step);
        random_tokens(targets, WIDE_ROWS, wide.vocab, 60 + (uint64_t)o->step);
        require(model_zero_grad(m) && step_forward(s, tokens, targets, &losses[i]) && step_backward(s, 1.0f));
        require(optimizer_update(o, 1e-3, &norm));
    }
    assert_true(isinf(from) ? tried->tuned_count == 0 : tried->tuned_count > 5 && tried->tuned_count < TUNED_MOST);
    tried->from = TUNED_FROM;
    tried->slowest = false;
    checkpoint_state saved = {.step = o->step, .model = m->config, .configuration = (char[]){"{}"}};
    require(checkpoint_save(path, m, o, &saved));
    step_free(s);
    optimizer_free(o);
    model_free(m);
}

/* A run whose products are not tried, and runs that stop, go on, and try them with the most different outcomes: the same losses
 * and the same parameters. */
static void tried_products(void **state)
{
    (void)state;
    need_gpu();
    enum { RUNS = 3 };
    const struct {
        double from;
        bool slowest[2]; /* before and after it stops */
    } each[RUNS] = {{INFINITY, {false, false}}, {wide_from, {true, false}}, {wide_from, {false, true}}};
    const optimizer_options options = optimizer_defaults();
    char folder[FOLDER_PATH], path[RUNS][FOLDER_PATH];
    folder_make(folder);
    for (int type = 0; type < TYPES; type++) {
        double losses[RUNS][2 * WIDE_STEPS];
        optimizer *o[RUNS];
        model *m[RUNS], *first = model_on(&gpu[type], &wide);
        o[0] = optimizer_create(first, &options);
        require(o[0]);
        for (int i = 0; i < RUNS; i++) {
            folder_file(path[i], folder, (const char *const[]){"untried", "slowest", "fastest"}[i]);
            checkpoint_state begun = {.model = first->config, .configuration = (char[]){"{}"}};
            require(checkpoint_save(path[i], first, o[0], &begun));
        }
        optimizer_free(o[0]);
        model_free(first);
        for (int i = 0; i < RUNS; i++) {
            for (int half = 0; half < 2; half++)
                go_on(&gpu[type], path[i], WIDE_STEPS, each[i].from, each[i].slowest[half], losses[i] + half * WIDE_STEPS);
            m[i] = load(&gpu[type], path[i], &o[i]);
            assert_memory_equal(losses[i], losses[0], sizeof losses[0]);
            compare_parts(m[i], m[i]->data, m[0], m[0]->data);
            compare_parts(m[i], o[i]->m, m[0], o[0]->m);
        }
        for (int i = 0; i < RUNS; i++) {
            optimizer_free(o[i]);
            model_free(m[i]);
        }
    }
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_f32), cmocka_unit_test(gradients_bf16),
                                       cmocka_unit_test(runs),          cmocka_unit_test(changes),
                                       cmocka_unit_test(not_finite),    cmocka_unit_test(decoding),
                                       cmocka_unit_test(checkpoints),   cmocka_unit_test(tried_products)};
    return cmocka_run_group_tests_name("train on a GPU", tests, open_gpu, close_gpu);
}
